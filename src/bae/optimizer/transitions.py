"""Read transitions, which are the steps of runs to learn from, as nodes. Transitions come from a
trace, or from all runs in a journal. People's corrections are applied, and a step that several runs
share is read once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import SecretBytes, SecretStr

from bae.assignable import union_members
from bae.evals.case_runs import is_eval_run
from bae.evals.case_types import every_node
from bae.exceptions import JournalError
from bae.graph import checked_store
from bae.history import History
from bae.journal.codec import same
from bae.journal.decoder import decode
from bae.optimizer.node_schemas import chooses
from bae.plan import plan_of
from bae.prompts.values import find_visible_fields, list_fields_to_fill
from bae.records import RunStarted
from bae.result import GraphResult
from bae.secrets import Secrets, hidden_fields, secret_fields
from bae.threads import in_thread
from bae.work import GraphRun, Work

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.journal.stored_runs import RunInfo, StoredRun
    from bae.node import Node
    from bae.records import Record

log = logging.getLogger("bae.optimizer")


@dataclass(frozen=True, slots=True)
class Transition:
    """A step of a run, from `node` to `next_node`."""

    node: Node
    next_type: type[Node] | type[None]
    """The class of `next_node`. NoneType if the run ended although it could have continued."""
    next_node: Node | None
    """The next node. None if the run ended."""
    run_id: str = ""
    path: str = ""
    """The place of the inner graph. Empty for the run's own graph."""
    step: int = 0
    """The step of `node`."""
    root: str = ""
    """The original run before any forks. Without forks, this is the `run_id`."""
    corrected: tuple[str, ...] = ()
    """The fields of `next_node` that a person corrected."""
    corrected_at: float = 0.0
    """The time of the correction."""


def transitions_of(trace: Sequence[Node] | GraphResult[Any]) -> list[Transition]:
    """Return the transitions of a trace or of a result.

    There is a transition to each node but the first, whether the LLM or a written body led there.
    If the LLM ended the run although it could have continued, there is also a transition to None.
    Inner graphs are not included: read these with `transitions_from`.
    """
    nodes: Sequence[Node]
    if isinstance(trace, GraphResult):
        nodes, run_id = trace.trace, trace.run_id
        ended = not trace.waiting and not trace.unfinished
        # A fork keeps the id of its original run in this record.
        started = (record.run_id for record in trace.journal.of(RunStarted) if not record.path)
        root = next(started, "") or run_id
    else:
        nodes, run_id, ended = trace, "", True
        root = _trace_root(nodes)
    transitions = [
        Transition(node, type(following), following, run_id, "", step, root)
        for step, (node, following) in enumerate(pairwise(nodes))
    ]
    if ended and nodes and chooses(type(nodes[-1])) and plan_of(type(nodes[-1])).may_end:
        transitions.append(Transition(nodes[-1], NoneType, None, run_id, "", len(nodes) - 1, root))
    return transitions


def _trace_root(nodes: Sequence[Node]) -> str:
    """Return a root for a trace without a run. Equal traces have the same root. Fields that no LLM
    sees are left out, because a value such as a client may differ in every process."""
    shown = [
        (
            type(node).__name__,
            [
                (name, node.__dict__[name])
                for name, info in type(node).__pydantic_fields__.items()
                if name in node.__dict__ and info.repr and name in find_visible_fields(type(node))
            ],
        )
        for node in nodes
    ]
    text = repr(shown).encode("utf-8", "backslashreplace")
    return f"trace-{sha256(text).hexdigest()[:16]}"


class AnswerKey(NamedTuple):
    """Identifies an answer of an LM in all runs that share it. A fork shares the records of its
    parent, with their exact times."""

    path: str
    step: int
    at: float
    seconds: float
    root: str


@dataclass(slots=True)
class Steps:
    """The steps of one run to learn from."""

    transitions: dict[AnswerKey, Transition] = field(default_factory=dict[AnswerKey, Transition])
    """The transitions that an LM made."""
    corrected: dict[AnswerKey, Transition] = field(default_factory=dict[AnswerKey, Transition])
    """People's corrections of these transitions."""


def steps_of(run_id: str, records: Iterable[Record]) -> Steps:
    """Return the transitions that an LM made in a run, and people's corrections of them. Of an
    inner graph, only the last attempt is used, and only if it has ended."""
    history = History(records)
    root, forks, steps = history.run_id, history.forks, Steps()
    # Records before a fork belong to the parent of the fork.
    owners = [root, *(fork.parent for fork in forks[1:]), run_id] if forks else [run_id]

    def owner(at: float) -> str:
        return owners[sum(fork.at < at for fork in forks)]

    for graph in history.graphs.values():
        if not _has_ended(graph):
            continue
        for step in graph.trace:
            path, number, choice, filled = graph.path, step.number, step.choice, step.filled
            if choice is not None and choice.chosen is NoneType and step.node is not None:
                key = AnswerKey(path, number + 1, choice.ended or 0.0, choice.took, root)
                by = owner(key.at)
                steps.transitions[key] = Transition(
                    step.node, NoneType, None, by, path, number, root
                )
            if filled is None or step.before is None or step.before.node is None:
                continue
            cls, asked = type(filled.node), list_fields_to_fill(type(filled.node))
            chosen = step.before.choice is not None and step.before.choice.chosen is cls
            if not chosen and not asked:
                continue  # with nothing to choose and nothing to fill, no LM was asked
            key = AnswerKey(path, number, filled.at, filled.seconds, root)
            complete = step.node if step.forked is None else step.replaced
            following = complete if type(complete) is cls else filled.node
            transition = Transition(
                step.before.node, cls, following, owner(key.at), path, number - 1, root
            )
            steps.transitions[key] = transition
            fork = step.forked
            changed = () if fork is None else [name for name in asked if name in fork.changed]
            if fork is not None and changed and type(fork.node) is cls:
                # An earlier fork may have corrected other fields.
                before, after = following.__dict__, fork.node.__dict__
                differ = (name for name in asked if not same(before.get(name), after.get(name)))
                names = {*changed, *differ}
                steps.corrected[key] = replace(
                    transition,
                    next_node=fork.node,
                    run_id=owners[forks.index(fork) + 1],
                    corrected=tuple(name for name in asked if name in names),
                    corrected_at=fork.at,
                )
    steps.transitions = dict(sorted(steps.transitions.items(), key=lambda item: item[0].at))
    return steps


def _has_ended(graph: GraphRun) -> bool:
    """Whether an inner graph and all inner graphs around it have ended. The run itself need not
    have ended."""
    work: Work | None = graph
    while work is not None:
        if isinstance(work, GraphRun) and work.path and work.outcome != "ended":
            return False
        work = work.inside
    return True


# --- transitions of a journal -----------------------------------------------------------------


async def transitions_from(
    journal: Journal,
    graph: Graph[Any, Any],
    *,
    limit: int | None = None,
    was: str | Iterable[str] = (),
    evals: bool = False,
    without: Iterable[str] = (),
) -> list[Transition]:
    """Read the transitions of a graph's runs: the steps of `examples_from` as nodes, without DSPy.
    A transition has the answer of its own run, or a person's correction of this answer."""
    checked_store(journal)
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: give the most transitions to read, or None for all")
    graph.prove()
    names = dict.fromkeys([graph.name, *([was] if isinstance(was, str) else was)])
    left_out = frozenset([without] if isinstance(without, str) else without)
    reader = _JournalReader(journal, graph, tuple(names), evals, left_out)
    transitions = await reader.read_all(limit)
    reader.log_skipped(transitions)
    return transitions


class _JournalReader:
    """Reads the transitions of all runs of a graph."""

    def __init__(
        self,
        journal: Journal,
        graph: Graph[Any, Any],
        names: Sequence[str],
        evals: bool,
        without: frozenset[str],
    ) -> None:
        self._journal = journal
        self._graph = graph
        self._names = names
        self._evals = evals
        self._without = without
        self._secrets = Secrets(every_node(graph))
        self._read_count = 0
        self._unreadable: dict[str, str] = {}
        """Why runs could not be read, by run id."""
        self._left_out: Counter[str] = Counter()
        """The number of steps that were left out, by reason."""

    async def read_all(self, limit: int | None) -> list[Transition]:
        """Read all transitions, or at most `limit`, from the newest run on."""
        runs = [
            run
            for name in self._names
            async for run in self._journal.every_run(graph=name)
            if (run.status == "ended" or run.parent is not None) and run.run_id not in self._without
        ]
        if len(self._names) > 1:
            runs.sort(key=lambda run: -run.started)
        # A fork may be listed before or after its parent, so corrections are read first.
        forks = {run.run_id: await self._read_steps(run) for run in runs if run.parent is not None}
        newest: dict[AnswerKey, Transition] = {}
        for steps in forks.values():
            for key, correction in steps.corrected.items():
                if correction.corrected_at > newest.setdefault(key, correction).corrected_at:
                    newest[key] = correction
        transitions: list[Transition] = []
        seen_keys: set[AnswerKey] = set()
        for run in runs:
            steps = forks[run.run_id] if run.run_id in forks else await self._read_steps(run)
            answers = steps.corrected
            if run.status == "ended":
                answers = {**steps.transitions, **answers}
            for key, transition in answers.items():
                if len(transitions) == limit:
                    return transitions
                best = newest.get(key, transition)
                if key not in seen_keys and self._is_wanted(best):
                    transitions.append(best)
                seen_keys.add(key)
        return transitions

    async def _read_steps(self, run: RunInfo) -> Steps:
        try:
            stored = await self._journal.read(run.run_id)
        except JournalError as error:
            if error.code == "bae-run-unknown":  # the run was just deleted
                return Steps()
            if error.code != "bae-journal-damaged":
                raise
            self._read_count += 1
            self._unreadable[run.run_id] = error.message
            return Steps()
        self._read_count += 1
        return await in_thread(self._decode, run.run_id, stored)

    def _decode(self, run_id: str, stored: StoredRun) -> Steps:
        try:
            records, _ = decode(self._graph, stored.lines, files=stored.files, partial=True)
        except JournalError as error:  # today's classes may refuse old values
            self._unreadable[run_id] = error.message
            return Steps()
        return steps_of(run_id, records)

    def _is_wanted(self, step: Transition) -> bool:
        """Whether to learn from a transition.

        The run of the transition must not be in `without`. It must not be from an evaluation,
        unless evaluations are wanted or a person corrected the transition. Today's classes must
        still have this step, and all values that the LM saw must be known.
        """
        if step.run_id in self._without:  # a fork also has the steps of its parents
            return False
        why = ""
        if not (self._evals or step.corrected or not is_eval_run(step.root)):
            why = "they are from evaluations, which evals=True includes"
        why = why or _why_unusable(step, self._secrets)
        if why:
            self._left_out[why] += 1
        return not why

    def log_skipped(self, transitions: Sequence[Transition]) -> None:
        """Log the runs and steps that were left out."""
        name = self._graph.name
        if self._unreadable:
            run_id, why = next(iter(self._unreadable.items()))
            log.warning(
                "%d of %d runs of %s are skipped: today's classes cannot read them, such as %s: %s",
                *(len(self._unreadable), self._read_count, name, run_id, why),
            )
        if self._left_out:
            reasons = "; ".join(f"{count} because {why}" for why, count in self._left_out.items())
            level = logging.INFO if transitions else logging.WARNING
            log.log(level, "steps in runs of %s were left out: %s", name, reasons)


def _why_unusable(step: Transition, secrets: Secrets) -> str:
    """Return why nothing can be learned from a transition. Empty if it is usable."""
    node, following = step.node, step.next_node
    plan = plan_of(type(node))
    if plan.written or step.next_type not in plan.offered:
        return f"no LM leads from {plan.name} to {step.next_type.__name__} today"
    hidden = secrets.fields(type(node))
    unknown = [f"{plan.name}.{name}" for name in _unknown_fields(node, hidden)]
    if following is not None:
        cls = type(following)
        hidden = secrets.fields(cls)
        context = {field.name for field in plan_of(cls).context}
        names = [name for name in _unknown_fields(following, hidden) if name in context]
        known_names = following.__dict__.keys() - hidden
        names += [name for name in list_fields_to_fill(cls) if name not in known_names]
        unknown += [f"{cls.__name__}.{name}" for name in names]
    return f"the values of {', '.join(unknown)} are secret or redacted" if unknown else ""


def _unknown_fields(node: Node, hidden: frozenset[str]) -> list[str]:
    """Return the fields of a node that an LLM sees, but whose values are hidden or redacted here.
    If there are hidden fields, computed fields are included, because they may depend on these."""
    cls = type(node)
    shown = find_visible_fields(cls)
    computed = cls.__pydantic_computed_fields__ if hidden else {}
    return [
        name
        for name, info in {**cls.__pydantic_fields__, **computed}.items()
        if (name in computed or name in hidden or name not in node.__dict__)
        and name in shown
        and not _is_masked(cls, name, hidden)
        and not getattr(info, "exclude", False)
    ]


def _is_masked(cls: type[Node], name: str, hidden: frozenset[str]) -> bool:
    """Whether an LLM sees a mask instead of the value of a field."""
    if name in plan_of(cls).revealed:
        return False
    if name in hidden_fields(cls) or (name in hidden and name not in secret_fields(cls)):
        return True
    info = cls.__pydantic_fields__.get(name)
    members = () if info is None else union_members(info.annotation)
    return bool(members) and all(member in (SecretStr, SecretBytes, NoneType) for member in members)
