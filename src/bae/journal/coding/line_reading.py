"""One line into one record, for every kind of record. `decoding.py` goes through the lines of a run
with it, `rebuilding.py` knows what was before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from bae.exceptions import JournalError
from bae.journal.coding.line_objects import Data, Missing
from bae.journal.coding.rebuilding import Inside, Rebuilt, Refused
from bae.journal.node_codec import node_codec
from bae.records import (
    LIVE,
    WITHHELD,
    AnswerJudged,
    AnswerRestarted,
    Asker,
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
    RecordedError,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
)
from bae.usage import Attempt, Usage

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Line
    from bae.node import Node


class LineReading:
    """Reads the lines of a run, one after another."""

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
            raise damaged(line, str(error)) from error
        except Refused as error:
            raise _refused(line, error) from error
        except JournalError as error:
            if error.code != "bae-journal-unreadable":
                raise
            error.message = f"line {line.n}, {line.kind}: {error.message}"
            raise

    def node(self, here: Inside, data: Data, partial: bool = False) -> Node:
        cls = here.cls(data.text("type"))
        data.inside("fields")
        for key in ("withheld", "unset", "bare"):
            if key in data:
                data.texts(key)
        return node_codec(cls).load(data.held, self.given, partial or self.partial)

    def run_started(self, line: Line, here: Inside, data: Data) -> Record:
        here = self.rebuilt.begin(line.path)
        # What a graph inside starts with, the run around it gives again, secrets too.
        node = self.node(here, data.inside("node"), partial=bool(line.path))
        here.drafts[0] = node
        limit = data.get("max_iters", int)
        return RunStarted(*_place(line), data.text("run_id"), data.text("graph"), node, limit)

    def step_started(self, line: Line, here: Inside, data: Data) -> Record:
        made: dict[str, Any] = {}
        if "made" in data:
            made = self.rebuilt.made(here, line.step, data.inside("node").inside("fields").held)
            node = self.rebuilt.whole(here, line.step, made)
        elif "node" in data:
            node = self.node(here, data.inside("node"))
        else:
            node = self.rebuilt.whole(here, line.step)
        here.trace[line.step] = node
        return StepStarted(*_place(line), node, tuple(made))

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
        self.rebuilt.asked(here, line.step, cls, field, route)
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
            count = data.get("count", int) if "count" in data else None
            return here.listed(line.step, cls, field, count)
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
        return AnswerJudged(*_place(line), _asker(here, data), attempt)

    def answer_restarted(self, line: Line, here: Inside, data: Data) -> Record:
        error = _error(data.inside("error"))
        return AnswerRestarted(*_place(line), _asker(here, data), error, data.number("wait"))

    def lm_answered(self, line: Line, here: Inside, data: Data) -> Record:
        value = self._answer(here, cast(Any, data.get("value", dict, NoneType)))
        said = _asker(here, data), cast(Any, data.text("method")), data.text("asked")
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
        return LMUsed(*_place(line), _asker(here, data), _usage(data.inside("usage")))

    def run_ended(self, line: Line, here: Inside, data: Data) -> Record:
        outcome = data.text("outcome")
        if outcome not in ("ended", "waiting", "failed", "cancelled"):
            raise Missing(f"has {outcome!r} for 'outcome'")
        error = _error(data.inside("error")) if "error" in data else None
        gates = tuple(self.rebuilt.gate_at(address) for address in data.texts("gates"))
        node = here.last() if outcome == "ended" else None
        return RunEnded(*_place(line), cast(Any, outcome), node, error, gates)


_Way = Callable[[LineReading, "Line", Inside, Data], Record]

_KINDS: Final[dict[str, _Way]] = {
    "RunStarted": LineReading.run_started,
    "StepStarted": LineReading.step_started,
    "Returned": LineReading.returned,
    "RunResumed": LineReading.run_resumed,
    "RunForked": LineReading.run_forked,
    "SourceStarted": LineReading.source_started,
    "SourceEnded": LineReading.source_ended,
    "ItemEnded": LineReading.item_ended,
    "Recalled": LineReading.recalled,
    "GateOpened": LineReading.gate_opened,
    "ChoiceStarted": LineReading.choice_started,
    "ChoiceMade": LineReading.choice_made,
    "FillStarted": LineReading.fill_started,
    "FillEnded": LineReading.fill_ended,
    "AnswerJudged": LineReading.answer_judged,
    "AnswerRestarted": LineReading.answer_restarted,
    "LMAnswered": LineReading.lm_answered,
    "LMUsed": LineReading.lm_used,
    "RunEnded": LineReading.run_ended,
}


def _place(line: Line) -> tuple[float, str, int]:
    return line.at, line.path, line.step


def _asker(here: Inside, data: Data) -> Asker:
    said = data.inside("asker")
    kind = said.text("kind")
    if kind not in ("fill", "choice", "body", "source"):
        raise Missing(f"has {kind!r} for the kind of 'asker'")
    field = said.text("field") if "field" in said else ""
    parameter = said.text("parameter") if "parameter" in said else ""
    return Asker(kind, here.cls(said.text("node")), field, parameter)


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


def damaged(line: Line, what: str, cause: BaseException | None = None) -> JournalError:
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
