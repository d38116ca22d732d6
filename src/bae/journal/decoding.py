"""Lines into records: what a journal has stored of a run, read through the classes of its graph, so
that the records are those that the run wrote. Nothing is imported by a name found in a line: names
are looked up in the graph. `rebuilding.py` puts nodes together, `recording.py` indexes the result
for a run that is resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic_core import from_json

from bae.exceptions import JournalError
from bae.journal.line_objects import Data, Missing, RecordedError
from bae.journal.nodes import kept_node, secret_needed
from bae.journal.rebuilding import Inside, Rebuilt, Refused, graph_at
from bae.journal.records import (
    AnswerJudged,
    AnswerRestarted,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMAnswered,
    LMUsed,
    Origin,
    Recalled,
    Record,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
)
from bae.journal.values import LIVE, WITHHELD
from bae.lm.usage import Attempt, Usage

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Line
    from bae.node import Node

__all__ = ["RecordedError", "decode", "graph_at"]


def decode(
    graph: Graph[Any, Any],
    lines: Iterable[Line],
    *,
    given: Mapping[str, Any] | None = None,
    partial: bool = False,
) -> list[Record]:
    """The records of a run, as the run wrote them.

    `given` has the values of plain fields that were withheld as secrets, by `Class.field`; without
    them `JournalError` (`bae-journal-secret`) names all that are missing. With `partial` such a
    field is just absent, which serves to show a run and not to go on with it.
    """
    every = list(lines)
    try:
        return _decoded(graph, every, given or {}, partial)
    except (JournalError, Refused) as error:
        if isinstance(error, JournalError) and error.code != "bae-journal-unreadable":
            raise
        from bae.journal.gone import without_gone

        # It may speak of a field that was taken out since, and that nothing depends on.
        left = without_gone(graph, every)
        if left == every:
            raise
    return _decoded(graph, left, given or {}, partial)


def _decoded(
    graph: Graph[Any, Any], lines: Sequence[Line], given: Mapping[str, Any], partial: bool
) -> list[Record]:
    read = _Reading(graph, given, partial)
    parsed = [(line, _object(line)) for line in lines]
    if not partial:
        read.ask_for_secrets(parsed)
    return [read.record(line, data) for line, data in parsed]


def _object(line: Line) -> Data:
    try:
        found = from_json(line.data)
    except ValueError as error:
        raise _damaged(line, "is no JSON", error) from error
    if not isinstance(found, dict):
        raise _damaged(line, "is no JSON object")
    return Data(cast(dict[str, Any], found))


class _Reading:
    def __init__(self, graph: Graph[Any, Any], given: Mapping[str, Any], partial: bool) -> None:
        self.rebuilt = Rebuilt(graph)
        self.given = given
        self.partial = partial

    def record(self, line: Line, data: Data) -> Record:
        way = _KINDS.get(line.kind)
        if way is None:
            raise JournalError(
                f"line {line.n} is a {line.kind}, which this bae does not know",
                code="bae-journal-version",
                fix="read the journal with the bae that wrote it, or a newer one",
            )
        try:
            return way(self, line, self.rebuilt.at(line.path), data)
        except Missing as error:
            raise _damaged(line, str(error)) from error
        except Refused as error:
            raise _refused(line, error) from error
        except JournalError as error:
            if error.code != "bae-journal-unreadable":
                raise
            error.message = f"line {line.n}, {line.kind}: {error.message}"
            raise

    def ask_for_secrets(self, parsed: Sequence[tuple[Line, Data]]) -> None:
        """Refuse to go on without the plain fields that were withheld, naming all of them."""
        wanted: dict[str, None] = {}
        for line, data in parsed:
            if not isinstance(data.held.get("node"), dict):
                continue
            node = data.inside("node").held
            withheld: Any = node.get("withheld")
            cls = self.rebuilt.class_at(line.path, node.get("type")) if withheld else None
            if cls is not None and isinstance(withheld, list):
                plain = (field.name for field in kept_node(cls).plan.plain)
                wanted |= {f"{cls.__name__}.{n}": None for n in plain if n in withheld}
        missing = [name for name in wanted if name not in self.given]
        if missing:
            raise secret_needed(missing)

    def node(self, here: Inside, data: Data) -> Node:
        cls = here.cls(data.text("type"))
        data.inside("fields")
        for key in ("withheld", "unset"):
            if key in data:
                data.texts(key)
        return kept_node(cls).load(data.held, self.given, self.partial)

    def run_started(self, line: Line, here: Inside, data: Data) -> Record:
        here = self.rebuilt.begin(line.path)
        node = self.node(here, data.inside("node"))
        here.drafts[0] = node
        limit = data.get("max_iters", int)
        return RunStarted(*_place(line), data.text("run_id"), data.text("graph"), node, limit)

    def step_started(self, line: Line, here: Inside, data: Data) -> Record:
        if "node" in data:
            node = self.node(here, data.inside("node"))
        else:
            node = self.rebuilt.whole(here, line.step)
        here.trace[line.step] = node
        return StepStarted(*_place(line), node)

    def returned(self, line: Line, here: Inside, data: Data) -> Record:
        node = self.node(here, data.inside("node"))
        here.drafts[line.step] = node
        return Returned(*_place(line), node)

    def run_resumed(self, line: Line, here: Inside, data: Data) -> Record:
        return RunResumed(*_place(line), data.text("owner"), data.texts("changes"))

    def run_forked(self, line: Line, here: Inside, data: Data) -> Record:
        node = self.node(here, data.inside("node"))
        here.cut(line.step)
        here.drafts[line.step] = here.trace[line.step] = node
        return RunForked(*_place(line), data.text("parent"), node, data.texts("changed"))

    def source_started(self, line: Line, here: Inside, data: Data) -> Record:
        cls, field, route = self._field(here, data)
        source = _source(data)
        return SourceStarted(*_place(line), cls, field, source, data.text("by"), route)

    def source_ended(self, line: Line, here: Inside, data: Data) -> Record:
        cls, field, route = self._field(here, data)
        source = _source(data)
        value: Any = None
        error: BaseException | None = None
        if "error" in data:
            error = _error(data.inside("error"))
            self.rebuilt.failed(here, line.step, cls, field, route)
        else:
            value = self._value(line, here, cls, field, route, data)
            self.rebuilt.found(here, line.step, cls, field, route, value)
        what = cls, field, source, data.text("by"), data.number("seconds"), value, error, route
        return SourceEnded(*_place(line), *what)

    def item_ended(self, line: Line, here: Inside, data: Data) -> Record:
        cls, field, _ = self._field(here, data)
        value = self._value(line, here, cls, field, "", data)
        index = data.get("index", int)
        here.items.setdefault((line.step, cls, field), {})[index] = value
        return ItemEnded(*_place(line), cls, field, index, value)

    def _value(
        self, line: Line, here: Inside, cls: type[Node], field: str, route: str, data: Data
    ) -> Any:
        if "live" in data:
            return LIVE
        if "withheld" in data:
            return WITHHELD
        if "items" in data:
            return here.listed(line.step, cls, field)
        if "value" not in data:
            raise Missing("lacks a value")
        return self.rebuilt.value(cls, field, route, data.held["value"])

    def _field(self, here: Inside, data: Data) -> tuple[type[Node], str, str]:
        cls, field = here.cls(data.text("node")), data.text("field")
        route = data.text("route") if "route" in data else ""
        self.rebuilt.check_field(cls, field, route)
        return cls, field, route

    def recalled(self, line: Line, here: Inside, data: Data) -> Record:
        cls, field, _ = self._field(here, data)
        said = data.listed("origin")
        if [type(each) for each in said] != [str, int, str]:
            raise Missing("has something else for 'origin'")
        origin = Origin(*said)
        value = self.rebuilt.recalled(origin)
        here.recalls[line.step, cls, field] = value
        return Recalled(*_place(line), cls, field, value, origin)

    def gate_opened(self, line: Line, here: Inside, data: Data) -> Record:
        cls, field, _ = self._field(here, data)
        deadline = data.number("deadline") if "deadline" in data else None
        gate = self.rebuilt.gate(here, line.step, cls, field, data.text("question"), deadline)
        return GateOpened(*_place(line), gate)

    def choice_started(self, line: Line, here: Inside, data: Data) -> Record:
        names = data.listed("offered")
        if not all(name is None or isinstance(name, str) for name in names):
            raise Missing("has something that is no name in 'offered'")
        node = here.standing(line.step, data.text("node"))
        return ChoiceStarted(*_place(line), node, tuple(map(here.offered, names)))

    def choice_made(self, line: Line, here: Inside, data: Data) -> Record:
        node = here.standing(line.step, data.text("node"))
        chosen = here.offered(data.get("chosen", str, NoneType))
        usage = _usage(data.inside("usage"))
        return ChoiceMade(*_place(line), node, chosen, data.number("seconds"), usage)

    def fill_started(self, line: Line, here: Inside, data: Data) -> Record:
        target = here.cls(data.text("target"))
        return FillStarted(*_place(line), target, self.rebuilt.context(here, line.step, target))

    def fill_ended(self, line: Line, here: Inside, data: Data) -> Record:
        filled = self.node(here, data.inside("node"))
        node = self.rebuilt.filled(here, line.step, filled)
        here.drafts[line.step] = node
        usage = _usage(data.inside("usage"))
        return FillEnded(*_place(line), node, data.number("seconds"), usage)

    def answer_judged(self, line: Line, here: Inside, data: Data) -> Record:
        attempt = Attempt(
            data.get("number", int),
            data.text("answer") if "answer" in data else "",
            cast(Any, data.text("verdict")),
            data.texts("errors"),
            _usage(data.inside("usage")),
            data.text("asked") if "asked" in data else "",
        )
        return AnswerJudged(*_place(line), data.text("by"), attempt)

    def answer_restarted(self, line: Line, here: Inside, data: Data) -> Record:
        error = _error(data.inside("error"))
        return AnswerRestarted(*_place(line), data.text("by"), error, data.number("wait"))

    def lm_answered(self, line: Line, here: Inside, data: Data) -> Record:
        value = self._answer(here, cast(Any, data.get("value", dict, NoneType)))
        said = data.text("by"), cast(Any, data.text("method")), data.text("asked")
        return LMAnswered(*_place(line), *said, data.text("target"), value)

    def _answer(self, here: Inside, value: dict[str, Any] | None) -> Any:
        """What an LM answered; as it is written where the class is none of the graph's: whoever
        asks again knows it."""
        if value is None:
            return None
        said = Data(value)
        if "class" in said:
            name = said.get("class", str, NoneType)
            return here.offered(name) if name is None or name in here.classes else value
        if value.get("withheld") and not self.partial:
            return WITHHELD
        return self.node(here, said) if said.text("type") in here.classes else value

    def lm_used(self, line: Line, here: Inside, data: Data) -> Record:
        return LMUsed(*_place(line), data.text("by"), _usage(data.inside("usage")))

    def run_ended(self, line: Line, here: Inside, data: Data) -> Record:
        outcome = data.text("outcome")
        if outcome not in ("ended", "waiting", "failed", "cancelled"):
            raise Missing(f"has {outcome!r} for 'outcome'")
        error = _error(data.inside("error")) if "error" in data else None
        gates = tuple(self.rebuilt.gate_at(address) for address in data.texts("gates"))
        node = here.last() if outcome == "ended" else None
        return RunEnded(*_place(line), cast(Any, outcome), node, error, gates)


_Way = Callable[[_Reading, "Line", Inside, Data], Record]

_KINDS: Final[dict[str, _Way]] = {
    "RunStarted": _Reading.run_started,
    "StepStarted": _Reading.step_started,
    "Returned": _Reading.returned,
    "RunResumed": _Reading.run_resumed,
    "RunForked": _Reading.run_forked,
    "SourceStarted": _Reading.source_started,
    "SourceEnded": _Reading.source_ended,
    "ItemEnded": _Reading.item_ended,
    "Recalled": _Reading.recalled,
    "GateOpened": _Reading.gate_opened,
    "ChoiceStarted": _Reading.choice_started,
    "ChoiceMade": _Reading.choice_made,
    "FillStarted": _Reading.fill_started,
    "FillEnded": _Reading.fill_ended,
    "AnswerJudged": _Reading.answer_judged,
    "AnswerRestarted": _Reading.answer_restarted,
    "LMAnswered": _Reading.lm_answered,
    "LMUsed": _Reading.lm_used,
    "RunEnded": _Reading.run_ended,
}


def _place(line: Line) -> tuple[float, str, int]:
    return line.at, line.path, line.step


def _source(data: Data) -> Literal["dep", "map", "gate"]:
    source = data.text("source")
    if source not in ("dep", "map", "gate"):
        raise Missing(f"has {source!r} for 'source'")
    return cast(Any, source)


def _error(data: Data) -> RecordedError:
    return RecordedError(data.text("type"), data.text("message"), data.get("code", str, NoneType))


def _usage(data: Data) -> Usage:
    held = dict(data.held)
    if "models" in held:
        held["models"] = data.texts("models")
    try:
        return Usage(**held)
    except TypeError as error:
        raise Missing(f"has something else for 'usage': {error}") from error


def _damaged(line: Line, what: str, cause: BaseException | None = None) -> JournalError:
    return JournalError(
        f"line {line.n}, a {line.kind}, {what}",
        code="bae-journal-damaged",
        cause=cause,
        fix="take the journal from a backup; the lines before this one are readable",
    )


def _refused(line: Line, error: Refused) -> JournalError:
    return JournalError(
        f"line {line.n}, {line.kind}: {error}",
        code="bae-journal-unreadable",
        cause=error.__cause__,
        fix="go on with the classes that the run was begun with, or give today's the names again",
    )
