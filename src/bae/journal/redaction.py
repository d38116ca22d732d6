"""Redaction: the values of named fields, and all texts of LM calls, removed from a stored run and
from the runs that share its lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_other
from difflib import get_close_matches
from typing import Final, cast

from pydantic_core import from_json, to_json

from bae.exceptions import JournalError
from bae.journal.decoder import off_loop, read_history
from bae.journal.node_codec import is_node
from bae.journal.resume import give_up_claim
from bae.journal.shape import Json
from bae.journal.store import Journal, check_replaces
from bae.journal.stored_runs import MESSAGE, Claim, Line, RunInfo, StoredRun
from bae.place import Place
from bae.records import KINDS, WITHHELD_MESSAGE, kinds_with
from bae.sources import kind_named

_WITHHELD: Final = WITHHELD_MESSAGE


def _kinds(*roles: str) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in kinds_with(*roles))


_WITH_VALUE: Final = _kinds("outcome", "value", "called value")
_WITH_USAGE: Final = _kinds("usage")
_OUTSIDE: Final = _kinds("called value")
_WITH_TEXTS: Final = _kinds("attempt")
_ANSWERS: Final = _kinds("answer")
_RECALLED: Final = _kinds("recalled")
_GATES: Final = _kinds("gate")
_SPOKEN: Final = ("asked", "said", "echo", "called", "tools", "calls")
_CONVERSATIONS: Final = {
    kind.__name__: [n for n, role in kind.stored.items() if role.name in _SPOKEN]
    for kind in kinds_with(*_SPOKEN)
}
"""The attributes with texts, arguments and results in lines about tools."""
_ROUNDS: Final = {name for name in _CONVERSATIONS if WITHHELD_MESSAGE in KINDS[name].stored}

_Field = tuple[str, str]
"""A class and a field of it, perhaps with a parameter after it, as `weather(place)`."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What `Journal.redact` removed.

    - `runs`: the redacted runs: the named run first, then the runs that share lines with it.
    - `places`: the redacted fields: the named fields, and fields whose values bae copied to or from
      them (by a `Recall`, by a `Dep` that several fields share, into the start of a graph).
    - `values`: how many values were removed. `texts`: how many prompts and answers of LM calls, and
      messages of errors.
    """

    runs: tuple[str, ...]
    places: tuple[str, ...]
    values: int
    texts: int

    def __str__(self) -> str:
        return (
            f"{_count(self.values, 'value')} of {', '.join(self.places)} and "
            f"{_count(self.texts, 'text')} of LM calls and errors are gone from "
            f"{_count(len(self.runs), 'run')}"
        )


async def redact(journal: Journal, run_id: str, places: Sequence[str]) -> Redaction:
    """Remove the values of fields from a run; see `Journal.redact`."""
    if not places:
        raise TypeError('redact(run_id) without a place: name a field, as "Person.email"')
    check_replaces(journal, "redact a run")
    family = await _sharing_lines(journal, run_id)
    claims: list[tuple[Claim, RunInfo]] = []
    try:
        for info in family:
            if info.status != "ended":  # no other process writes an ended run
                claims.append((await journal.claim(info.run_id), info))
        runs = [await journal.read(info.run_id) for info in family]
        lines = sum(len(run.lines) for run in runs)
        report, redacted = await off_loop(lines, _redact_runs, runs, places)
        # A claim has changed the entry: restore the entry that the run had before.
        changed = [
            with_other(run, info=_redacted_info(info))
            for run, info in zip(redacted, family, strict=True)
        ]
        await journal.replace(changed, [claim for claim, _ in claims], erase=True)
        return report
    except BaseException as error:
        for claim, info in claims:
            await give_up_claim(journal, claim, info, error)
        raise


async def _sharing_lines(journal: Journal, run_id: str) -> list[RunInfo]:
    """The run, and the runs that share lines with it: the run it was forked from, the runs forked
    from it, and so on."""
    infos = {run_id: (await journal.read(run_id)).info}
    related: defaultdict[str, set[str]] = defaultdict(set)
    async for info in journal.every_run():
        infos[info.run_id] = info
        if info.parent is not None:
            related[info.run_id].add(info.parent)
            related[info.parent].add(info.run_id)
    run_ids = [run_id]
    for each in run_ids:  # some may be missing: their forks were loaded without them
        run_ids.extend(sorted(r for r in related[each] if r not in run_ids))
    return [infos[each] for each in run_ids if each in infos]


def _redacted_info(info: RunInfo) -> RunInfo:
    error = re.sub(r"^(\[[\w-]+\] )?.+", rf"\1{_WITHHELD}", info.error, flags=re.DOTALL)
    waiting = tuple(
        with_other(gate, question=_WITHHELD) if _is_of_call(gate.address) else gate
        for gate in info.waiting
    )
    return with_other(info, error=error, waiting=waiting, owner=None, lease_until=None)


def _redact_runs(
    runs: Sequence[StoredRun], places: Sequence[str]
) -> tuple[Redaction, list[StoredRun]]:
    opened = [_OpenRun(run) for run in runs]
    wanted = _wanted_fields(opened, places)
    counts: dict[Line, tuple[int, int]] = {}  # a line that runs share counts once
    changed: list[StoredRun] = []
    for stored, run in zip(runs, opened, strict=True):
        lines: list[Line] = []
        shared, held = run.shared_calls(wanted), wanted | run.holders(wanted)
        for line, data in run.lines:
            new, counts[line] = run.redact_line(line, data, wanted, shared, held)
            lines.append(new)
        # Messages of people to the LM may repeat any value.
        kept = {g: text for g, text in run.answers.items() if not _is_said(g, text)}
        answers = {g: text for g, text in kept.items() if not _is_inside(g, wanted)}
        texts = [*(line.data for line in lines), *answers.values()]
        files = {h: data for h, data in stored.files.items() if any(h in text for text in texts)}
        people = {g: who for g, who in run.answered_by.items() if g in answers}
        changed.append(
            with_other(stored, lines=tuple(lines), answers=answers, files=files, answered_by=people)
        )
    names = tuple(sorted(f"{cls}.{field}" for cls, field in wanted))
    values, texts = (sum(each) for each in zip((0, 0), *counts.values(), strict=True))
    return Redaction(tuple(run.run_id for run in opened), names, values, texts), changed


def _wanted_fields(runs: Sequence[_OpenRun], places: Sequence[str]) -> set[_Field]:
    """The fields that places name, and the fields whose values bae copied to or from them."""
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs:
        for cls, names in run.fields.items():
            fields[cls] |= names
    wanted: set[_Field] = set()
    for place in places:
        named = Place.parse(place)
        if (
            named is None
            or named.path
            or named.node not in fields
            or (named.field and named.field not in fields[named.node])
        ):
            raise _unknown(place, fields)
        chosen = [f"{named.field}{named.parameter}"] if named.field else fields[named.node]
        wanted |= {(named.node, each) for each in chosen}
    while more := {field for run in runs for field in run.copies(wanted)} - wanted:
        wanted |= more
    return wanted


class _OpenRun:
    """A stored run with the data of its lines parsed. `fields` are those of its classes."""

    def __init__(self, run: StoredRun) -> None:
        self.run_id = run.info.run_id
        self.answers = run.answers
        self.answered_by = run.answered_by
        self._history = read_history(run)  # a run that cannot be read in full is not redacted
        self._shape = self._history.shape
        self.lines = [(line, cast(Json, from_json(line.data))) for line in run.lines]
        self.fields: defaultdict[str, set[str]] = defaultdict(set)
        for name, field, _ in self._shape.fields():
            self.fields[name].add(field)
        for line, data in self.lines:
            for node in _nodes(line, data):
                self.fields[node["type"]].update(node["fields"], node.get(_WITHHELD, ()))

    def copies(self, wanted: set[_Field]) -> Iterator[_Field]:
        """The fields that hold the same values: recalled from each other, with one shared `Dep`, or
        at the start of graphs inside."""
        for line, data in self.lines:
            if line.kind in _RECALLED and (own := self._recalling(line, data)):
                path, number, field = data["origin"]
                step = self._history.step(path, number)
                cls = "" if step is None else step.name
                origin = {(cls, each) for each in ([field] if field else self.fields[cls])}
                if own in wanted:
                    yield from origin
                elif origin & wanted:
                    yield own
        shared = self.shared_calls(wanted)
        for name, field, drawn in self._shape.fields():
            if _is_shared(drawn) and drawn["call"] in shared:
                yield name, field
            for around, inside in self._starts(name, drawn):
                if around in wanted:
                    yield inside
                elif inside in wanted:
                    yield around

    def _recalling(self, line: Line, data: Json) -> _Field | None:
        """The field that stores a recalled value: the field that recalls it, or the field at the
        start of a graph whose `Dep` binds it. None for a parameter of a function."""
        name, field, parameter = data["node"], data["field"], data.get("parameter", "")
        if not parameter:
            return name, field
        drawn = self._shape.field_at(Place(line.path, line.step, name, field)) or {}
        start = self._shape.start_behind(drawn) if "call" in drawn else ""
        each = parameter[1:-1]
        return (start, each) if start and each in drawn.get("bound", {}) else None

    def _starts(self, name: str, drawn: Json) -> Iterator[tuple[_Field, _Field]]:
        """The fields whose values start the graph behind a field of a class, each with the field of
        the start."""
        start = self._shape.start_behind(drawn) if "call" in drawn else ""
        if not start:
            return
        bound = cast(Json, drawn.get("bound", {}))
        for each, use in bound.items():
            if "field" in use:
                yield (name, use["field"]), (start, each)
        if "over" in drawn:  # an item may be the node itself
            for each in self.fields[start] - bound.keys():
                yield (name, drawn["over"]), (start, each)

    def holders(self, wanted: set[_Field]) -> set[_Field]:
        """The fields that hold a node with a wanted field, because a graph ended at it."""
        fields: set[_Field] = set()
        while True:
            classes = {cls for cls, _ in wanted | fields}
            more = {
                (name, field)
                for name, field, use in self._shape.fields()
                if "call" in use and not classes.isdisjoint(self._shape.ends_behind(use))
            }
            if more <= fields:
                return fields
            fields |= more

    def redact_line(
        self, line: Line, data: Json, wanted: set[_Field], shared: set[int], held: set[_Field]
    ) -> tuple[Line, tuple[int, int]]:
        """The rest of a line, and how many values and texts were removed. `held` are the wanted
        fields of nodes, and the fields that hold such nodes."""
        before = to_json(data, inf_nan_mode="constants")
        inside = _is_inside(line.path, wanted)
        values = sum(_withhold(n, None if inside else held) for n in _nodes(line, data))
        if line.kind in _WITH_VALUE and (
            inside or self._is_source(line, data, wanted, shared, held)
        ):
            values += "value" in data
            if "value" in data or "items" in data:  # items have lines of their own
                data.pop("value", None)
                data.pop("items", None)
                data["unstored"] = _WITHHELD
        texts = 0
        error: Json = {} if line.kind in _CONVERSATIONS else data.get("error") or {}
        if error.get("message", _WITHHELD) != _WITHHELD:  # it may quote any value of the run
            error["message"] = _WITHHELD
            texts += 1
        # Of any call: bodies pass values on to others, and answers repeat questions.
        if line.kind in _WITH_TEXTS:
            texts += sum(data.pop(key, None) is not None for key in ("asked", "answer", "thinking"))
            data["errors"] = [self._place_of(error) for error in data["errors"]]
        elif line.kind in _CONVERSATIONS:
            texts += _withhold_texts(data, _CONVERSATIONS[line.kind])
            if line.kind in _ROUNDS:
                data[_WITHHELD] = True
        elif line.kind in _GATES and _is_of_call(data["gate"]):
            texts += data["question"] != _WITHHELD
            data["question"] = _WITHHELD
        elif line.kind in _ANSWERS:
            texts += sum(_withhold(node, None) > 0 for node in _nodes(line, data))
        if inside:
            # The graph that computed the value will run again: only its usage is still true.
            start = (self._shape.graph_at(line.path) or {}).get("start", "")
            asker = data.get("asker", {"kind": "body", "node": start})
            # The usage of a round is also in the line of the whole fill.
            is_counted = line.kind in _WITH_USAGE and line.kind not in _ROUNDS
            usage: Json = data["usage"] if is_counted else {}
            line = line._replace(kind="LMUsed")
            data = {"asker": asker, "usage": usage}
        after = to_json(data, inf_nan_mode="constants")
        return line if after == before else line._replace(data=after.decode()), (values, texts)

    def _is_source(
        self, line: Line, data: Json, wanted: set[_Field], shared: set[int], held: set[_Field]
    ) -> bool:
        if line.kind in _OUTSIDE:  # of a class outside the graph: little is known of its values
            call = self._shape.call_named(data.get("graph", ""), data.get("place", ""))
            return call is None or bool(data.get("arguments")) or call in shared
        names = data["node"], data["field"], data.get("parameter", "")
        place = Place(line.path, line.step, *names)
        is_shared = self._shape.is_shared(place)
        if (is_shared and self._shape.call_at(place) in shared) or _is_wanted(place, wanted):
            return True
        value = data.get("value")  # for a graph, the node it ended at
        return is_node(value) and any((value["type"], name) in held for name in value["fields"])

    def _place_of(self, error: str) -> str:
        """The field that an error about an answer begins with, without words that may quote it: the
        rest of the place may have keys of the answer, and a refusal is a text of the model."""
        name = error.partition(": ")[0].partition(".")[0]
        is_field = any(name in names for names in self.fields.values())
        return f"{name}: {_WITHHELD}" if is_field else _WITHHELD

    def shared_calls(self, wanted: set[_Field]) -> set[int]:
        """The calls behind such fields that are made once for the run: their value is stored with
        the field, or parameter, that needed it first."""
        return {
            drawn["call"]
            for name, field, drawn in self._shape.fields()
            if (name, field) in wanted and _is_shared(drawn)
        }


def _is_shared(field: Json) -> bool:
    is_one = "call" in field and kind_named(field["kind"]).stored == "call"
    return is_one and field.get("cache", True)


def _nodes(line: Line, data: Json) -> Iterator[Json]:
    """The nodes that a line stores, without the value of a source."""
    for key in ("node", "value") if line.kind in _ANSWERS else ("node",):
        if is_node(data.get(key)):
            yield data[key]


def _withhold(node: Json, wanted: set[_Field] | None) -> int:
    """Remove some fields of a node, or all of them, and count them."""
    names = [n for n in node["fields"] if wanted is None or (node["type"], n) in wanted]
    for name in names:
        del node["fields"][name]
    if names:
        node[_WITHHELD] = [*node.get(_WITHHELD, ()), *names]
    return len(names)


def _withhold_texts(data: Json, names: Sequence[str]) -> int:
    """Remove the texts of a conversation with tools, or the arguments and results of tools, and
    count them."""
    before = {name: data[name] for name in names if data.get(name) not in (None, "", [], {})}
    for name, value in before.items():
        data[name] = _WITHHELD
        if isinstance(value, dict):
            data[name] = {}
        elif name in _LISTED:
            data[name] = [_without_values(each) for each in cast("list[Json]", value)]
    return sum(data[name] != value for name, value in before.items())


_LISTED: Final = ("tools", "calls", "ran")


def _without_values(listed: Json) -> Json:
    """A tool or a call with only its name left."""
    kept = {key: listed[key] for key in ("id", "name") if key in listed}
    return {**kept, "arguments": {}, _WITHHELD: True} if "id" in kept else kept


def _is_wanted(at: Place, wanted: set[_Field]) -> bool:
    """Whether a field, or a parameter behind it, is wanted."""
    return not wanted.isdisjoint({(at.node, at.field), (at.node, f"{at.field}{at.parameter}")})


def _is_inside(place: str, wanted: set[_Field]) -> bool:
    """Whether a place is such a field, or in a graph that runs for one."""
    at = Place.parse(place)
    while at is not None:
        if _is_wanted(at, wanted):
            return True
        at = at.outer
    return False


def _is_of_call(gate: str) -> bool:
    """Whether a gate asks about a tool call: its question shows the arguments."""
    place = Place.parse(gate)
    return place is not None and bool(place.parameter)


def _is_said(gate: str, answer: str) -> bool:
    """Whether an answer may repeat any value: a message to the LM, or an answer about a tool call
    other than a plain yes or no."""
    if gate.startswith(MESSAGE):
        return True
    if not _is_of_call(gate):
        return False
    value = from_json(answer)
    told = cast(Json, value) if isinstance(value, dict) else Json()
    is_decision = "approve" in told or "repeat" in told
    return not is_decision or any(told.get(key) for key in ("arguments", "reason", "outcome"))


def _unknown(place: str, fields: dict[str, set[str]]) -> JournalError:
    known = [f"{cls}.{name}" for cls, names in fields.items() for name in sorted(names)]
    near = get_close_matches(place, known, n=3, cutoff=0.5)
    return JournalError(
        f"the run has no field {place}, so nothing was redacted",
        code="bae-redact-unknown",
        fix=f"name one as {' or '.join(near) if near else 'Person.email'}, or a class for all of "
        f"its fields; there are {', '.join(known)}",
    )


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
