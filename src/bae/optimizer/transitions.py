"""Transitions: the steps of runs that an LM can learn from, as nodes; out of a trace, or out of the
records of a run with what people corrected in forks of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bae.history import History
from bae.lm.prompts import asked_fields, shown_fields
from bae.optimizer.node_schemas import chooses
from bae.plan import plan_of
from bae.records import RunStarted
from bae.result import GraphResult
from bae.work import GraphRun, Work

if TYPE_CHECKING:
    from bae.node import Node
    from bae.records import Record


UNNAMED: Final = "trace-"
"""How the root of a trace begins that belongs to no run anybody knows."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of a run: from `node` on to `next_node`.

    `next_type` is NoneType, and `next_node` None, if the run ended though it could have continued.
    `step` is that of `node`, `path` the place of a graph that ran inside another. `root` is the run
    that this one was forked from in the first place, or its own `run_id`. `corrected` names the
    fields of `next_node` that a person corrected.
    """

    node: Node
    next_type: type[Node] | type[None]
    next_node: Node | None
    run_id: str = ""
    path: str = ""
    step: int = 0
    root: str = ""
    corrected: tuple[str, ...] = ()


def transitions_of(trace: Sequence[Node] | GraphResult[Any]) -> list[Transition]:
    """The transitions of a trace, or of a result's: one for each node that another came before,
    whether the LM or a written body led to it, and one to None where the LM ended the run and could
    have continued. Graphs that ran inside are not among them; a journal has those."""
    nodes: Sequence[Node]
    run_id, over = "", True
    if isinstance(trace, GraphResult):
        nodes, run_id = trace.trace, trace.run_id
        over = not trace.waiting and not trace.unfinished
        root = _begun_as(trace) or run_id
    else:
        nodes = trace
        root = _of_nobody(nodes)
    found = [
        Transition(node, type(following), following, run_id, "", step, root)
        for step, (node, following) in enumerate(pairwise(nodes))
    ]
    if over and nodes and chooses(type(nodes[-1])) and plan_of(type(nodes[-1])).may_end:
        found.append(Transition(nodes[-1], NoneType, None, run_id, "", len(nodes) - 1, root))
    return found


def _begun_as(result: GraphResult[Any]) -> str:
    """The id that a run was begun under, which that of a fork is not."""
    started = (each for each in result.journal.of(RunStarted) if not each.path)
    return next((each.run_id for each in started), "")


def _of_nobody(nodes: Sequence[Node]) -> str:
    """A root for a trace without a run: the same for the same nodes, and another for others."""
    said = [
        (type(node).__name__, [(n, v) for n, v in node.__dict__.items() if _is_told(node, n)])
        for node in nodes
    ]
    text = repr(said).encode("utf-8", "backslashreplace")
    return f"{UNNAMED}{sha256(text).hexdigest()[:16]}"


def _is_told(node: Node, name: str) -> bool:
    """Whether a field is data, and none that is kept out of sight: the address of a client is
    another in every process."""
    info = type(node).__pydantic_fields__.get(name)
    return info is not None and bool(info.repr) and name in shown_fields(type(node))


class Key(NamedTuple):
    """What tells an answer of an LM from all others, in every run that has it: a fork shares the
    lines of the run it was forked from, to the very instant."""

    root: str
    path: str
    step: int
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Correction:
    """An answer that a person has corrected, at the time `at`, in a fork of the run `parent`."""

    at: float
    parent: str
    transition: Transition


@dataclass(slots=True)
class Steps:
    """The transitions that the LM made in a run, and those of its answers that were corrected."""

    taken: dict[Key, Transition] = field(default_factory=dict[Key, Transition])
    corrected: dict[Key, Correction] = field(default_factory=dict[Key, Correction])


def steps_of(run_id: str, records: Iterable[Record]) -> Steps:
    """What an LM did in a run, and what people have corrected of it.

    Of a graph inside the run only the try that counts is there, where it has ended. Whether the run
    itself has ended is for others to look at.
    """
    history = History(records)
    root, forks, found = history.run_id, history.forks, Steps()
    # What was recorded before a fork belongs to the run that it was forked from.
    owners = [root, *(fork.parent for fork in forks[1:]), run_id] if forks else [run_id]

    def owner(at: float) -> str:
        return owners[sum(fork.at < at for fork in forks)]

    for graph in history.graphs.values():
        if not _has_ended(graph):
            continue
        for step in graph.trace:
            path, number, choice, filled = graph.path, step.number, step.choice, step.filled
            if choice is not None and choice.chosen is NoneType and step.node is not None:
                key = Key(root, path, number + 1, choice.ended or 0.0, choice.took)
                by = owner(key.at)
                found.taken[key] = Transition(step.node, NoneType, None, by, path, number, root)
            if filled is None or step.before is None or step.before.node is None:
                continue
            cls, asked = type(filled.node), asked_fields(type(filled.node))
            chosen = step.before.choice is not None and step.before.choice.chosen is cls
            if not chosen and not asked:
                continue  # with nothing to choose and nothing to fill, no LM was asked
            key = Key(root, path, number, filled.at, filled.seconds)
            whole = step.node if step.forked is None else step.replaced
            following = whole if type(whole) is cls else filled.node
            made = Transition(
                step.before.node, cls, following, owner(key.at), path, number - 1, root
            )
            found.taken[key] = made
            fork = step.forked
            if fork is not None and type(fork.node) is cls:
                corrected = tuple(name for name in asked if name in fork.changed)
                if corrected:
                    by = owners[forks.index(fork) + 1]
                    better = replace(made, next_node=fork.node, run_id=by, corrected=corrected)
                    found.corrected[key] = Correction(fork.at, fork.parent, better)
    found.taken = dict(sorted(found.taken.items(), key=lambda each: each[0].at))
    return found


def _has_ended(graph: GraphRun) -> bool:
    """Whether a graph inside the run has ended, and so have those that it runs in."""
    inside: Work | None = graph
    while inside is not None:
        if isinstance(inside, GraphRun) and inside.path and inside.outcome != "ended":
            return False
        inside = inside.inside
    return True
