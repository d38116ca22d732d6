"""Transitions, and examples, out of journals: the steps that an LM took in runs that have ended,
and the answers that people corrected by forking a run, gathered over all runs of a graph, each
once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pydantic import SecretBytes, SecretStr

from bae.assignable import union_members
from bae.evals.case_runs import is_eval_run
from bae.evals.case_types import every_node
from bae.exceptions import BaeError, BaeLMError, JournalError, describe
from bae.journal.decoder import MANY_LINES, decode, off_loop
from bae.lm.prompts import asked_fields, shown_fields
from bae.optimizer.transitions import Correction, Key, Steps, Transition, steps_of
from bae.plan import plan_of
from bae.recorder import checked_store
from bae.secrets import Secrets

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal, StoredRun
    from bae.node import Node

_LOG: Final = logging.getLogger("bae.optimizer")
_LINES_AT_ONCE: Final = 4 * MANY_LINES
"""How many lines are read before they are decoded together, away from the event loop."""
_AT_ONCE: Final = 200
"""How many transitions are made examples of together."""


async def examples_from(
    journal: Journal,
    graph: Graph[Any, Any],
    *,
    limit: int | None = None,
    was: str | Iterable[str] = (),
    evals: bool = False,
    without: Iterable[str] = (),
) -> list[Any]:
    """What the runs of a graph have to teach, as a list of `dspy.Example`:

    ```python
    examples = await examples_from(journal, graph)
    ```

    They are the steps that an LM took in runs that have ended, those of graphs inside them too,
    the newest run first, at most `limit`. Where a person has forked a run with another value for a
    field that the LM had filled, theirs is the answer, however the forked run came out, and the
    LM's own is left out; of several such the newest counts. It is the answer to the same question
    in other runs, too: where the LM was at an equal node and filled the same class in the same
    context. Steps that are known only in part,
    because something was redacted or is a secret, are left out, and so are runs that the classes of
    today cannot read, which a warning says. Runs belong to a graph by its name: where that was
    another, give the old one with `was`.

    Runs of evaluations, as `bae eval` and `bae.evals.evaluate` make them, are left out, since cases
    that were learned tell nothing any more; what a person corrected in one counts all the same.
    Give `evals=True` to learn from them too. `without` has the ids of runs that nothing is to be
    learned from: not what they did, and not what a person corrected in them.
    """
    from bae.optimizer.examples import example_of
    from bae.optimizer.splits import with_corrections

    found, corrected_at = await _gathered(journal, graph, limit, was, evals, without)
    secrets = Secrets(every_node(graph))
    examples: list[Any] = []
    times: list[float] = []

    def tell(some: Sequence[Transition]) -> None:
        for each in some:
            example = _told(each, example_of, secrets)
            if example is not None:
                examples.append(example)
                times.append(corrected_at.get(id(each), 0.0))

    for first in range(0, len(found), _AT_ONCE):
        # In a thread however few they are: importing DSPy alone takes seconds.
        await off_loop(MANY_LINES, tell, found[first : first + _AT_ONCE])
    if len(examples) < len(found):
        _LOG.warning(
            "%s of %s left out: what an LM saw there cannot be shown without what no journal keeps",
            _counted(len(found) - len(examples)),
            graph.name,
        )
    return await off_loop(len(examples), with_corrections, examples, times)


async def transitions_from(
    journal: Journal,
    graph: Graph[Any, Any],
    *,
    limit: int | None = None,
    was: str | Iterable[str] = (),
    evals: bool = False,
    without: Iterable[str] = (),
) -> list[Transition]:
    """The same as `examples_from` has, as nodes, and without DSPy: each with the answer of its own
    run, or what a person has made of that."""
    found, _ = await _gathered(journal, graph, limit, was, evals, without)
    return found


async def _gathered(
    journal: Journal,
    graph: Graph[Any, Any],
    limit: int | None,
    was: str | Iterable[str],
    evals: bool,
    without: Iterable[str],
) -> tuple[list[Transition], dict[int, float]]:
    """The transitions, and when those of them were corrected that were, by their ids."""
    checked_store(journal)
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: give how many are wanted at most, or None for all")
    graph.prove()
    names = dict.fromkeys([graph.name, *([was] if isinstance(was, str) else was)])
    left_out = frozenset([without] if isinstance(without, str) else without)
    gathering = _Gathering(journal, graph, tuple(names), evals, left_out)
    found = await gathering.all(limit)
    gathering.tell(found)
    return found, gathering.corrected_at


class _Run(NamedTuple):
    """A run that has something to tell: it has ended, or was forked from another."""

    run_id: str
    started: float
    ended: bool
    forked: bool


class _Gathering:
    """The transitions of all runs of a graph."""

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
        self._newest: dict[Key, Correction] = {}
        self._of_runs: dict[tuple[str, Key], Correction] = {}
        self._read: set[str] = set()
        self._unread: dict[str, str] = {}
        """Why runs could not be read, by their ids."""
        self._unusable: Counter[str] = Counter()
        self._from_evals = 0
        self.corrected_at: dict[int, float] = {}

    async def all(self, limit: int | None) -> list[Transition]:
        """All transitions, or so many, those of the newest runs first."""
        runs = await self._runs()
        forks: dict[str, Steps] = {}
        # A fork may be listed before what it was forked from, or after it, so they come first.
        async with aclosing(self._steps([run for run in runs if run.forked])) as read:
            async for run, steps in read:
                forks[run.run_id] = steps
                self._note(run.run_id, steps.corrected)
        found: list[Transition] = []
        met: set[Key] = set()
        async with aclosing(self._steps(runs, forks)) as read:
            async for run, steps in read:
                for key, taken in _answers(run, steps):
                    if len(found) == limit:
                        return found
                    if key in met:
                        continue
                    met.add(key)
                    best = self._better(key) or taken
                    if self._is_wanted(best) and self._is_usable(best):
                        found.append(best)
        return found

    async def _runs(self) -> list[_Run]:
        """The runs that have something to tell, the newest first."""
        found = [
            _Run(info.run_id, info.started, info.status == "ended", info.parent is not None)
            for name in self._names
            async for info in self._journal.every_run(graph=name)
            if (info.status == "ended" or info.parent is not None)
            and info.run_id not in self._without
        ]
        return found if len(self._names) == 1 else sorted(found, key=lambda run: -run.started)

    async def _steps(
        self, runs: Sequence[_Run], known: Mapping[str, Steps] = MappingProxyType({})
    ) -> AsyncGenerator[tuple[_Run, Steps], None]:
        """What the runs have to tell, read a number of them at a time."""
        ahead: list[_Run] = []
        stored: dict[str, StoredRun] = {}
        lines = 0
        for run in runs:
            ahead.append(run)
            if run.run_id not in known and run.run_id not in self._unread:
                one = await self._stored(run)
                if one is not None:
                    stored[run.run_id] = one
                    lines += len(one.lines)
            if lines >= _LINES_AT_ONCE or run is runs[-1]:
                made = {**known, **await off_loop(MANY_LINES, self._decoded, list(stored.values()))}
                for each in ahead:
                    if each.run_id in made:
                        yield each, made[each.run_id]
                ahead, stored, lines = [], {}, 0

    async def _stored(self, run: _Run) -> StoredRun | None:
        try:
            found = await self._journal.read(run.run_id)
        except JournalError as error:
            if error.code == "bae-journal-damaged":
                self._read.add(run.run_id)
                self._unread[run.run_id] = error.message
            elif error.code != "bae-run-unknown":  # it was deleted meanwhile
                raise
            return None
        self._read.add(run.run_id)
        return found

    def _decoded(self, stored: Sequence[StoredRun]) -> dict[str, Steps]:
        found: dict[str, Steps] = {}
        for run in stored:
            run_id = run.info.run_id
            try:
                found[run_id] = steps_of(run_id, decode(self._graph, run.lines, partial=True))
            except BaeError as error:
                self._unread[run_id] = error.message
            except Exception as error:  # whatever today's classes do with what others wrote
                self._unread[run_id] = describe(error)
        return found

    def _note(self, run_id: str, corrected: Mapping[Key, Correction]) -> None:
        for key, correction in corrected.items():
            self._of_runs[run_id, key] = correction
            if correction.at > self._newest.setdefault(key, correction).at:
                self._newest[key] = correction

    def _better(self, key: Key) -> Transition | None:
        """The answer that a person has put in the place of the LM's, where one has. It may be the
        correction of a correction, and then both have a part in it."""
        newest = self._newest.get(key)
        if newest is None:
            return None
        names = set(newest.transition.corrected)
        seen = {newest.parent}
        before = self._of_runs.get((newest.parent, key))
        while before is not None:
            names.update(before.transition.corrected)
            again = before.parent in seen  # a file can say that a run is its own parent
            seen.add(before.parent)
            before = None if again else self._of_runs.get((before.parent, key))
        asked = asked_fields(cast("type[Node]", newest.transition.next_type))
        better = replace(newest.transition, corrected=tuple(n for n in asked if n in names))
        self.corrected_at[id(better)] = newest.at
        return better

    def _is_wanted(self, found: Transition) -> bool:
        """Whether it is no step of an evaluation, or they are asked for, or a person has put it
        right; and of no run that is to be left out, whose steps its forks have as well."""
        if found.run_id in self._without:
            return False
        wanted = self._evals or bool(found.corrected) or not is_eval_run(found.root)
        self._from_evals += not wanted
        return wanted

    def _is_usable(self, found: Transition) -> bool:
        """Whether the classes of today still lead there by an LM, and all that it saw is known."""
        why = _not_usable(found, self._secrets)
        if why:
            self._unusable[why] += 1
        return not why

    def tell(self, found: Sequence[Transition]) -> None:
        """Say what was passed over."""
        name = self._graph.name
        if self._unread:
            run_id, why = next(iter(self._unread.items()))
            _LOG.warning(
                "%d of %d runs of %s were passed over, since they cannot be read with the classes "
                "of today, such as %s: %s",
                len(self._unread),
                len(self._read),
                name,
                run_id,
                why,
            )
        level = logging.INFO if found else logging.WARNING
        if self._from_evals:
            _LOG.log(
                level,
                "%s in evaluations of %s left out: give evals=True to learn from their cases too",
                _counted(self._from_evals),
                name,
            )
        if self._unusable:
            told = "; ".join(f"{count} because {why}" for why, count in self._unusable.items())
            _LOG.log(level, "steps in runs of %s were left out: %s", name, told)


def _answers(run: _Run, steps: Steps) -> Iterator[tuple[Key, Transition]]:
    """What there is to learn from a run: all of it where it has ended, and what people have put
    right in it however it came out."""
    if run.ended:
        yield from steps.taken.items()
    for key, correction in steps.corrected.items():
        yield key, correction.transition


def _not_usable(found: Transition, secrets: Secrets) -> str:
    """Why nothing can be learned from a transition; empty where something can."""
    node, following = found.node, found.next_node
    plan = plan_of(type(node))
    if plan.written or found.next_type not in plan.offered:
        return f"no LM leads from {plan.name} to {found.next_type.__name__} today"
    unknown = [f"{plan.name}.{name}" for name in _lacking(node, secrets.fields(type(node)))]
    if following is not None:
        cls = type(following)
        context = [field.name for field in plan_of(cls).context]
        names = _lacking(following, secrets.fields(cls), context)
        held = following.__dict__.keys() - secrets.fields(cls)
        names += [name for name in asked_fields(cls) if name not in held]
        unknown += [f"{cls.__name__}.{name}" for name in names]
    # Neither a secret nor what was redacted can be told, nor what no journal keeps.
    return f"what was in {', '.join(unknown)} cannot be told" if unknown else ""


def _told(found: Transition, example_of: Callable[..., Any], secrets: Secrets) -> Any:
    try:
        return example_of(found, secrets)
    except BaeLMError:  # a serializer, or a computed field, that cannot do without what is missing
        return None


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _lacking(node: Node, hidden: frozenset[str], names: Iterable[str] | None = None) -> list[str]:
    """The fields of a node that the LM has seen, or given, and that cannot be told: they are
    hidden, or are not there because they were redacted. Of `names` alone, where given."""
    cls = type(node)
    wanted = cls.__pydantic_fields__.keys() if names is None else set(names)
    return [
        name
        for name in cls.__pydantic_fields__
        if name in wanted
        and (name in hidden or name not in node.__dict__)
        and name in shown_fields(cls)
        and not _is_masked(cls, name)
        and not cls.__pydantic_fields__[name].exclude
    ]


def _is_masked(cls: type[Node], name: str) -> bool:
    """Whether an LM sees of a field only that there is something: nothing is missed without it."""
    members = union_members(cls.__pydantic_fields__[name].annotation)
    return all(each in (SecretStr, SecretBytes, NoneType) for each in members)
