"""Transitions: the single steps of runs that an LM can learn from, as nodes. `transitions_of` takes
them out of a trace, `collecting.py` out of a journal; `examples.py` makes DSPy's examples of
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from bae.lm.prompts import shown_fields
from bae.optimizer.node_schemas import chooses
from bae.plan import plan_of
from bae.records import RunStarted
from bae.result import GraphResult

if TYPE_CHECKING:
    from bae.node import Node

UNNAMED: Final = "trace-"
"""How the root of a trace begins that belongs to no run anybody knows."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of a run: from `node` on to `next_node`.

    `next_type` is NoneType, and `next_node` None, where the run ended though it could have gone on.
    `step` is that of `node`, `path` the place of a graph that ran inside another. `root` is the run
    that this one was forked from in the first place, or its own `run_id`. `corrected` names the
    fields of `next_node` that a person has put right: what stands there is the better answer.
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
    have gone on. Graphs that ran inside are not among them; a journal has those."""
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
