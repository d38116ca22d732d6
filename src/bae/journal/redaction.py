"""Redaction: the values of named fields, and all texts of LM calls, removed from a stored run and
from the runs that share its lines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, cast

from pydantic_core import from_json, to_json

from bae.exceptions import JournalError
from bae.journal.decoder import off_loop
from bae.journal.node_codec import is_node
from bae.journal.shape import ShapeView
from bae.journal.store import Claim, Journal, Line, Rewrite, RunInfo, StoredRun
from bae.place import Place
from bae.tasks import gone

_WITHHELD: Final = "withheld"
_OF_A_FIELD: Final = ("SourceStarted", "SourceEnded", "ItemEnded", "Recalled", "GateOpened")
_NEEDED: Final = {
    **{kind: {"node", "field"} for kind in _OF_A_FIELD},
    "Recalled": {"node", "field", "origin"},
    "FillStarted": {"target"},
}
_WITH_USAGE: Final = ("ChoiceMade", "FillEnded", "LMUsed")

_Field = tuple[str, str]
"""A class and a field of it, which may have a parameter after it, as `weather(place)`."""
_Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Redaction:
    """What `Journal.redact` removed.

    - `runs`: the redacted runs, the named one first, then those that share lines with it.
    - `places`: the redacted fields: the named ones, and those that bae copied the same values to
      or from (by a `Recall`, a `Dep` shared by several fields, the items of a `Map` of graphs).
    - `values`: how many values were removed; `texts`: how many prompts and answers of LM calls, and
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
    family = await _sharing_lines(journal, run_id)
    claims: list[tuple[Claim, RunInfo]] = []
    is_done = False
    try:
        for info in family:
            if info.status != "ended":  # an ended run is written by nobody else
                claims.append((await journal.claim(info.run_id), info))
        runs = [await journal.read(info.run_id) for info in family]
        lines = sum(len(run.lines) for run in runs)
        report, changes = await off_loop(lines, _redacted, runs, places)
        await journal.rewrite(changes)
        is_done = True
        return report
    finally:
        task = asyncio.ensure_future(_release(journal, claims, is_done))
        await gone([task])
        task.result()


async def _sharing_lines(journal: Journal, run_id: str) -> list[RunInfo]:
    """The run, and those that share lines with it: the run it was forked from, those forked from
    it, and so on."""
    infos: dict[str, RunInfo] = {run_id: (await journal.read(run_id)).info}
    related: dict[str, set[str]] = {}
    async for info in journal.every_run():
        infos[info.run_id] = info
        if info.parent is not None:
            related.setdefault(info.run_id, set()).add(info.parent)
            related.setdefault(info.parent, set()).add(info.run_id)
    found = [run_id]
    for each in found:
        found.extend(sorted(r for r in related.get(each, ()) if r not in found and r in infos))
    return [infos[each] for each in found]


async def _release(
    journal: Journal, claims: Sequence[tuple[Claim, RunInfo]], is_redacted: bool
) -> None:
    """Give up the claims with the status that each run had; a claim removed its error."""
    for claim, info in claims:
        error = re.sub(r"^(\[[\w-]+\] )?.+", rf"\1{_WITHHELD}", info.error, flags=re.DOTALL)
        last = error if is_redacted else info.error
        await journal.release(claim, info.status, (), info.waiting, last)


def _redacted(runs: Sequence[StoredRun], places: Sequence[str]) -> tuple[Redaction, list[Rewrite]]:
    opened = [_OpenRun(run) for run in runs]
    wanted = _wanted(opened, places)
    seen: set[Line] = set()
    values = texts = 0
    changes: list[Rewrite] = []
    for run in opened:
        changed: list[Line] = []
        for line, new, gone_values, gone_texts in run.redact(wanted):
            if new != line:
                changed.append(new)
            if line not in seen:  # a line that runs share counts once
                seen.add(line)
                values, texts = values + gone_values, texts + gone_texts
        changes.append(Rewrite(run.info.run_id, changed, run.answered(wanted)))
    names = tuple(sorted(f"{cls}.{field}" for cls, field in wanted))
    return Redaction(tuple(run.info.run_id for run in opened), names, values, texts), changes


def _wanted(runs: Sequence[_OpenRun], places: Sequence[str]) -> set[_Field]:
    """The fields that places name, and those that bae copied the same values to or from."""
    fields: dict[str, set[str]] = {}
    for run in runs:
        for cls, names in run.fields.items():
            fields.setdefault(cls, set()).update(names)
    wanted: set[_Field] = set()
    for place in places:
        named = Place.parse(place)
        known = fields.get(named.node) if named is not None and not named.path else None
        if named is None or known is None or (named.field and named.field not in known):
            raise _unknown(place, fields)
        if named.field:
            wanted.add((named.node, f"{named.field}{named.parameter}"))
        else:
            wanted |= {(named.node, name) for name in known}
    while more := {field for run in runs for field in run.copies(wanted)} - wanted:
        wanted |= more
    return wanted


class _OpenRun:
    """A stored run with the data of its lines parsed. `fields` are those of its classes."""

    def __init__(self, run: StoredRun) -> None:
        self.info = run.info
        self.lines = [(line, _parsed(run, line)) for line in run.lines]
        self._answers = run.answers
        self._shape = ShapeView(run.shape)
        self._classes: dict[tuple[str, int], set[str]] = {}
        self.fields: dict[str, set[str]] = {}
        for name, cls in self._shape_classes():
            self.fields.setdefault(name, set()).update(cls["fields"])
        for line, data in self.lines:
            here = self._classes.setdefault((line.path, line.step), set())
            if line.kind in _OF_A_FIELD or line.kind == "FillStarted":
                here.add(data["target" if line.kind == "FillStarted" else "node"])
            for node in _nodes(line, data):
                names = {*node["fields"], *node.get(_WITHHELD, ())}
                self.fields.setdefault(node["type"], set()).update(names)
                if line.kind != "LMAnswered":
                    here.add(node["type"])

    def copies(self, wanted: set[_Field]) -> Iterator[_Field]:
        """The fields that hold the same values: what a field was recalled from and what recalled
        it, the fields of one shared `Dep`, and where the graphs of a `Map` begin."""
        for line, data in self.lines:
            if line.kind == "Recalled":
                path, step, field = data["origin"]
                names = self._classes.get((path, step), set())
                fields = {n: [field] if field else self.fields.get(n, ()) for n in names}
                origin = {(name, each) for name in names for each in fields[name]}
                if (data["node"], data["field"]) in wanted:
                    yield from origin
                elif origin & wanted:
                    yield data["node"], data["field"]
        shared = self._shared_calls(wanted)
        for name, cls in self._shape_classes():
            for field, found in cls["fields"].items():
                if found["kind"] == "dep" and found["call"] in shared and found.get("cache", True):
                    yield name, field
                graph = self._graph_behind(found)
                if graph is not None and (name, found.get("over")) in wanted:
                    yield from ((graph["start"], each) for each in self.fields[graph["start"]])

    def redact(self, wanted: set[_Field]) -> Iterator[tuple[Line, Line, int, int]]:
        """Each line, what is left of it, and how many values and texts are gone."""
        shared = self._shared_calls(wanted)
        for line, data in self.lines:
            before = _json(data)
            inside = _is_inside(line.path, wanted)
            values = sum(_withhold(n, None if inside else wanted) for n in _nodes(line, data))
            if line.kind in ("SourceEnded", "ItemEnded") and (
                inside or self._is_source(line, data, wanted, shared)
            ):
                values += _withhold_value(data)
            texts = _withhold_message(data)
            if line.kind == "AnswerJudged":  # of any call: bodies pass values on to others
                texts += sum(data.pop(key, None) is not None for key in ("asked", "answer"))
                data["errors"] = [_place_of(error) for error in data.get("errors", ())]
            new = line
            if inside:
                # The graph that made the value will run again: only what it used is still true.
                usage: _Data = data.get("usage", {}) if line.kind in _WITH_USAGE else {}
                start = (self._shape.graph_at(line.path) or {}).get("start", "")
                asker = data.get("asker", {"kind": "body", "node": start})
                data = {"asker": asker, "usage": usage}
                new = line._replace(kind="LMUsed")
            after = _json(data)
            yield line, line if after == before else new._replace(data=after), values, texts

    def answered(self, wanted: set[_Field]) -> list[str]:
        """The addresses of the gates among the fields that a person has answered."""
        return [address for address in self._answers if _is_inside(address, wanted)]

    def _graph_behind(self, field: _Data) -> _Data | None:
        call: int | None = field.get("call")
        graph: int | None = None if call is None else self._shape.calls[call].get("graph")
        return None if graph is None else self._shape.graphs[graph]

    def _is_source(self, line: Line, data: _Data, wanted: set[_Field], shared: set[int]) -> bool:
        place = data["node"], data["field"], data.get("parameter", "")
        if _is_wanted(*place, wanted):
            return True
        is_shared = data.get("source") == "dep" and self._shape.is_shared(line.path, *place)
        if is_shared and self._shape.call_at(line.path, *place) in shared:
            return True
        value = data.get("value")  # of a graph, the node it ended at
        return is_node(value) and any((value["type"], name) in wanted for name in value["fields"])

    def _shared_calls(self, wanted: set[_Field]) -> set[int]:
        """The calls behind such fields that are made once for the run: their value is stored with
        the field, or parameter, that needed it first."""
        return {
            found["call"]
            for name, cls in self._shape_classes()
            for field, found in cls["fields"].items()
            if (name, field) in wanted and found["kind"] == "dep" and found.get("cache", True)
        }

    def _shape_classes(self) -> Iterator[tuple[str, _Data]]:
        for graph in self._shape.graphs:
            yield from graph["classes"].items()


def _nodes(line: Line, data: _Data) -> Iterator[_Data]:
    """The nodes that a line stores, but for the value of a source."""
    for key in ("node", "value") if line.kind == "LMAnswered" else ("node",):
        if is_node(data.get(key)):
            yield data[key]


def _withhold(node: _Data, wanted: set[_Field] | None) -> int:
    """Remove some fields of a node, or all of them, and count them."""
    names = [n for n in node["fields"] if wanted is None or (node["type"], n) in wanted]
    for name in names:
        del node["fields"][name]
    if names:
        node[_WITHHELD] = [*node.get(_WITHHELD, ()), *names]
    return len(names)


def _withhold_value(data: _Data) -> int:
    """Remove the value of a source; the items of a map have lines of their own."""
    count = int("value" in data)
    if count or "items" in data:
        data.pop("value", None)
        data.pop("items", None)
        data["unstored"] = _WITHHELD
    return count


def _withhold_message(data: _Data) -> int:
    """Remove the words of an error, which may quote any value of the run."""
    error = data.get("error")
    if not isinstance(error, dict) or cast(_Data, error).get("message") in (None, _WITHHELD):
        return 0
    cast(_Data, error)["message"] = _WITHHELD
    return 1


def _is_wanted(node: str, field: str, route: str, wanted: set[_Field]) -> bool:
    """Whether a field, or a parameter behind it, is wanted."""
    return (node, field) in wanted or (bool(route) and (node, f"{field}{route}") in wanted)


def _is_inside(place: str, wanted: set[_Field]) -> bool:
    """Whether a place is such a field, or in a graph that runs for one."""
    at = Place.parse(place)
    while at is not None:
        if _is_wanted(at.node, at.field, at.parameter, wanted):
            return True
        at = at.outer
    return False


def _place_of(error: str) -> str:
    """What was wrong with an answer, without the words that may quote it."""
    place, colon, _ = error.partition(": ")
    return f"{place}: {_WITHHELD}" if colon else _WITHHELD


def _parsed(run: StoredRun, line: Line) -> _Data:
    """The data of a line: nothing is redacted in a run that cannot be read whole."""
    try:
        data = from_json(line.data)
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        held = cast(_Data, data)
        needed = _NEEDED.get(line.kind, set())
        if not needed <= held.keys():
            raise ValueError(f"it lacks {', '.join(needed - held.keys())}")
    except ValueError as error:
        raise JournalError(
            f"line {line.n} of the run {run.info.run_id} cannot be read, so nothing was redacted",
            run_id=run.info.run_id,
            code="bae-journal-damaged",
            cause=error,
            fix="delete the run: what is in it cannot be told",
        ) from error
    return held


def _unknown(place: str, fields: dict[str, set[str]]) -> JournalError:
    known = [f"{cls}.{name}" for cls, names in fields.items() for name in sorted(names)]
    near = get_close_matches(place, known, n=3, cutoff=0.5)
    return JournalError(
        f"the run has no field {place}, so nothing was redacted",
        code="bae-redact-unknown",
        fix=f"name one as {' or '.join(near) if near else 'Person.email'}, or a class for all of "
        f"its fields; there are {', '.join(known)}",
    )


def _json(data: _Data) -> str:
    return to_json(data, inf_nan_mode="constants").decode()


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
