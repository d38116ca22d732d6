"""Redaction: removes the values of named fields, and all texts of LM calls and errors, from a
stored run and from the runs that share lines with it."""

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
from bae.sources import find_source_kind

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
"""The attributes of texts, arguments and results in lines about tools, by the kind of the line."""
_ROUNDS: Final = {name for name in _CONVERSATIONS if WITHHELD_MESSAGE in KINDS[name].stored}
"""The kinds of lines about a round. Redaction marks these lines as withheld."""

_Field = tuple[str, str]
"""The name of a class and the name of a field. A parameter may follow the field, as
`weather(place)`."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What `Journal.redact` removed."""

    runs: tuple[str, ...]
    """The ids of the redacted runs: the named run first, then the runs that share lines with it."""
    places: tuple[str, ...]
    """The redacted fields: the named fields, and the fields whose values bae copied to or from
    them. bae copies a value for a `Recall`, for a `Dep` that several fields share, and into the
    start node of a graph."""
    values: int
    """The number of removed values."""
    texts: int
    """The number of removed texts: prompts, answers and thinking of LM calls, the contents of
    conversations with tools, and messages of errors."""

    def __str__(self) -> str:
        return (
            f"{_count(self.values, 'value')} of {', '.join(self.places)} and "
            f"{_count(self.texts, 'text')} of LM calls and errors are gone from "
            f"{_count(len(self.runs), 'run')}"
        )


async def redact(journal: Journal, run_id: str, places: Sequence[str]) -> Redaction:
    """Remove the values of fields from a run, as `Journal.redact` describes."""
    if not places:
        raise TypeError('redact(run_id) without a place: name a field, as "Person.email"')
    check_replaces(journal, "redact a run")
    related_runs = await _find_related_runs(journal, run_id)
    claims: list[tuple[Claim, RunInfo]] = []
    try:
        for info in related_runs:
            if info.status != "ended":  # an ended run needs no claim: no process writes it
                claims.append((await journal.claim(info.run_id), info))
        runs = [await journal.read(info.run_id) for info in related_runs]
        lines = sum(len(run.lines) for run in runs)
        report, redacted = await off_loop(lines, _redact_runs, runs, places)
        # The claim changed the status of the run: store the entry from before the claim.
        redacted_runs = [
            with_other(run, info=_redact_info(info))
            for run, info in zip(redacted, related_runs, strict=True)
        ]
        await journal.replace(redacted_runs, [claim for claim, _ in claims], erase=True)
        return report
    except BaseException as error:
        for claim, info in claims:
            await give_up_claim(journal, claim, info, error)
        raise


async def _find_related_runs(journal: Journal, run_id: str) -> list[RunInfo]:
    """Return the run and all runs that may share lines with it: its parent, its forks, their
    parents and forks, and so on."""
    infos = {run_id: (await journal.read(run_id)).info}
    related: defaultdict[str, set[str]] = defaultdict(set)
    async for info in journal.every_run():
        infos[info.run_id] = info
        if info.parent is not None:
            related[info.run_id].add(info.parent)
            related[info.parent].add(info.run_id)
    run_ids = [run_id]
    for related_id in run_ids:
        run_ids.extend(sorted(r for r in related[related_id] if r not in run_ids))
    # A parent is missing if only its fork was loaded.
    return [infos[related_id] for related_id in run_ids if related_id in infos]


def _redact_info(info: RunInfo) -> RunInfo:
    error = re.sub(r"^(\[[\w-]+\] )?.+", rf"\1{_WITHHELD}", info.error, flags=re.DOTALL)
    waiting = tuple(
        with_other(gate, question=_WITHHELD) if _is_of_call(gate.address) else gate
        for gate in info.waiting
    )
    return with_other(info, error=error, waiting=waiting, owner=None, lease_until=None)


def _redact_runs(
    runs: Sequence[StoredRun], places: Sequence[str]
) -> tuple[Redaction, list[StoredRun]]:
    parsed_runs = [_ParsedRun(run) for run in runs]
    targets = _find_targets(parsed_runs, places)
    counts: dict[Line, tuple[int, int]] = {}  # a line that runs share counts once
    redacted_runs: list[StoredRun] = []
    for stored, run in zip(runs, parsed_runs, strict=True):
        lines: list[Line] = []
        shared, node_fields = run.find_shared_calls(targets), targets | run.find_holders(targets)
        for line, data in run.lines:
            new, counts[line] = run.redact_line(line, data, targets, shared, node_fields)
            lines.append(new)
        # Messages of people to the LM may repeat any value.
        safe = {g: text for g, text in run.answers.items() if not _may_repeat_value(g, text)}
        answers = {g: text for g, text in safe.items() if not _is_inside(g, targets)}
        texts = [*(line.data for line in lines), *answers.values()]
        files = {h: data for h, data in stored.files.items() if any(h in text for text in texts)}
        people = {g: who for g, who in run.answered_by.items() if g in answers}
        redacted_runs.append(
            with_other(stored, lines=tuple(lines), answers=answers, files=files, answered_by=people)
        )
    names = tuple(sorted(f"{cls}.{field}" for cls, field in targets))
    values, texts = (sum(column) for column in zip((0, 0), *counts.values(), strict=True))
    return Redaction(tuple(run.run_id for run in parsed_runs), names, values, texts), redacted_runs


def _find_targets(runs: Sequence[_ParsedRun], places: Sequence[str]) -> set[_Field]:
    """Return the targets, which are the fields to redact: the fields that `places` name, and the
    fields whose values bae copied to or from them."""
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs:
        for cls, field_names in run.fields.items():
            fields[cls] |= field_names
    targets: set[_Field] = set()
    for place in places:
        parsed = Place.parse(place)
        if (
            parsed is None
            or parsed.path
            or parsed.node not in fields
            or (parsed.field and parsed.field not in fields[parsed.node])
        ):
            raise _unknown_field_error(place, fields)
        names = [f"{parsed.field}{parsed.parameter}"] if parsed.field else fields[parsed.node]
        targets |= {(parsed.node, name) for name in names}
    while more := {field for run in runs for field in run.find_copies(targets)} - targets:
        targets |= more
    return targets


class _ParsedRun:
    """A stored run with parsed lines. `fields` has the names of the fields of each class."""

    def __init__(self, run: StoredRun) -> None:
        self.run_id = run.info.run_id
        self.answers = run.answers
        self.answered_by = run.answered_by
        self._history = read_history(run)  # raises an error if a line is damaged
        self._shape = self._history.shape
        self.lines = [(line, cast(Json, from_json(line.data))) for line in run.lines]
        self.fields: defaultdict[str, set[str]] = defaultdict(set)
        for name, field, _ in self._shape.fields():
            self.fields[name].add(field)
        for line, data in self.lines:
            for node in _nodes(line, data):
                self.fields[node["type"]].update(node["fields"], node.get(_WITHHELD, ()))

    def find_copies(self, targets: set[_Field]) -> Iterator[_Field]:
        """Yield the fields whose values bae copied to or from the targets: by a recall, by a `Dep`
        that several fields share, or into the start node of a graph inside the run."""
        for line, data in self.lines:
            if line.kind in _RECALLED and (recalling := self._find_recalling_field(line, data)):
                path, number, field = data["origin"]
                step = self._history.step(path, number)
                cls = "" if step is None else step.name
                origin = {(cls, name) for name in ([field] if field else self.fields[cls])}
                if recalling in targets:
                    yield from origin
                elif origin & targets:
                    yield recalling
        shared_calls = self.find_shared_calls(targets)
        for name, field, stored_field in self._shape.fields():
            if _is_shared(stored_field) and stored_field["call"] in shared_calls:
                yield name, field
            for outer, inner in self._find_start_fields(name, stored_field):
                if outer in targets:
                    yield inner
                elif inner in targets:
                    yield outer

    def _find_recalling_field(self, line: Line, data: Json) -> _Field | None:
        """Return the field that gets the recalled value of a line. If a `Dep` passes the value to a
        graph, return the field of the graph's start node. Return None if a parameter of a function
        gets the value."""
        name, field, parameter = data["node"], data["field"], data.get("parameter", "")
        if not parameter:
            return name, field
        stored_field = self._shape.field_at(Place(line.path, line.step, name, field)) or {}
        start = self._shape.find_start(stored_field) if "call" in stored_field else ""
        argument = parameter[1:-1]
        return (start, argument) if start and argument in stored_field.get("bound", {}) else None

    def _find_start_fields(self, name: str, stored_field: Json) -> Iterator[tuple[_Field, _Field]]:
        """Yield the fields of the class `name` whose values a graph starts with, each with the
        field of the start node that gets the value. The graph computes the field `stored_field`."""
        start = self._shape.find_start(stored_field) if "call" in stored_field else ""
        if not start:
            return
        bound = cast(Json, stored_field.get("bound", {}))
        for start_field, use in bound.items():
            if "field" in use:
                yield (name, use["field"]), (start, start_field)
        if "over" in stored_field:  # an item may be the start node itself
            for start_field in self.fields[start] - bound.keys():
                yield (name, stored_field["over"]), (start, start_field)

    def find_holders(self, targets: set[_Field]) -> set[_Field]:
        """Return the fields whose value is a node with a target field, because the graph that
        computes the value ended at the node."""
        fields: set[_Field] = set()
        while True:
            classes = {cls for cls, _ in targets | fields}
            more = {
                (name, field)
                for name, field, use in self._shape.fields()
                if "call" in use and not classes.isdisjoint(self._shape.find_ends(use))
            }
            if more <= fields:
                return fields
            fields |= more

    def redact_line(
        self,
        line: Line,
        data: Json,
        targets: set[_Field],
        shared_calls: set[int],
        node_fields: set[_Field],
    ) -> tuple[Line, tuple[int, int]]:
        """Redact a line. Return the new line, and how many values and texts were removed.
        `shared_calls` are the numbers of the calls that compute targets once for the run.
        `node_fields` are the targets, and the fields whose value is a node with a target field."""
        before = to_json(data, inf_nan_mode="constants")
        inside = _is_inside(line.path, targets)
        values = sum(_withhold(n, None if inside else node_fields) for n in _nodes(line, data))
        if line.kind in _WITH_VALUE and (
            inside or self._has_target(line, data, targets, shared_calls, node_fields)
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
        # Remove the texts of all LM calls: bodies pass values on, and answers repeat questions.
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
            # The graph will run again. Keep only the usage, which was paid.
            start = (self._shape.graph_at(line.path) or {}).get("start", "")
            asker = data.get("asker", {"kind": "body", "node": start})
            # The line of a fill includes the usage of its rounds.
            is_counted = line.kind in _WITH_USAGE and line.kind not in _ROUNDS
            usage: Json = data["usage"] if is_counted else {}
            line = line._replace(kind="LMUsed")
            data = {"asker": asker, "usage": usage}
        after = to_json(data, inf_nan_mode="constants")
        return line if after == before else line._replace(data=after.decode()), (values, texts)

    def _has_target(
        self,
        line: Line,
        data: Json,
        targets: set[_Field],
        shared_calls: set[int],
        node_fields: set[_Field],
    ) -> bool:
        """Whether the value in a line must be removed."""
        if line.kind in _OUTSIDE:  # arguments of calls outside the graph may have any value
            call = self._shape.find_call(data.get("graph", ""), data.get("place", ""))
            return call is None or bool(data.get("arguments")) or call in shared_calls
        names = data["node"], data["field"], data.get("parameter", "")
        place = Place(line.path, line.step, *names)
        is_shared = self._shape.is_shared(place)
        if (is_shared and self._shape.call_at(place) in shared_calls) or _is_target(place, targets):
            return True
        value = data.get("value")  # the value of a graph is its last node
        return is_node(value) and any(
            (value["type"], name) in node_fields for name in value["fields"]
        )

    def _place_of(self, error: str) -> str:
        """Return the field with which an error about an answer begins, without the rest of the
        error. The rest may quote keys of the answer, or the words of a model that refused to
        answer."""
        name = error.partition(": ")[0].partition(".")[0]
        is_field = any(name in names for names in self.fields.values())
        return f"{name}: {_WITHHELD}" if is_field else _WITHHELD

    def find_shared_calls(self, targets: set[_Field]) -> set[int]:
        """Return the numbers of the calls that compute targets once for the run. The journal stores
        the value of such a call with the field or parameter that needed the value first."""
        return {
            stored_field["call"]
            for name, field, stored_field in self._shape.fields()
            if (name, field) in targets and _is_shared(stored_field)
        }


def _is_shared(field: Json) -> bool:
    has_call = "call" in field and find_source_kind(field["kind"]).stored == "call"
    return has_call and field.get("cache", True)


def _nodes(line: Line, data: Json) -> Iterator[Json]:
    """Yield the nodes that a line stores, except a node that is the value of a source."""
    for key in ("node", "value") if line.kind in _ANSWERS else ("node",):
        if is_node(data.get(key)):
            yield data[key]


def _withhold(node: Json, targets: set[_Field] | None) -> int:
    """Remove the targets from a node, or all fields if `targets` is None. Return the number of
    removed fields."""
    names = [n for n in node["fields"] if targets is None or (node["type"], n) in targets]
    for name in names:
        del node["fields"][name]
    if names:
        node[_WITHHELD] = [*node.get(_WITHHELD, ()), *names]
    return len(names)


def _withhold_texts(data: Json, names: Sequence[str]) -> int:
    """Remove the attributes `names` from a line about tools. Return the number of removed
    values."""
    before = {name: data[name] for name in names if data.get(name) not in (None, "", [], {})}
    for name, value in before.items():
        data[name] = _WITHHELD
        if isinstance(value, dict):
            data[name] = {}
        elif name in _LISTED:
            data[name] = [_without_values(entry) for entry in cast("list[Json]", value)]
    return sum(data[name] != value for name, value in before.items())


_LISTED: Final = ("tools", "calls", "ran")


def _without_values(entry: Json) -> Json:
    """Reduce a tool to its name, or a call to its id and name."""
    names = {key: entry[key] for key in ("id", "name") if key in entry}
    return {**names, "arguments": {}, _WITHHELD: True} if "id" in names else names


def _is_target(at: Place, targets: set[_Field]) -> bool:
    """Whether the field at a place, or the parameter at the place, is a target."""
    return not targets.isdisjoint({(at.node, at.field), (at.node, f"{at.field}{at.parameter}")})


def _is_inside(place: str, targets: set[_Field]) -> bool:
    """Whether a place is a target, or is in a graph that runs for a target."""
    at = Place.parse(place)
    while at is not None:
        if _is_target(at, targets):
            return True
        at = at.outer
    return False


def _is_of_call(gate: str) -> bool:
    """Whether a gate asks about a tool call. The question of such a gate shows the arguments."""
    place = Place.parse(gate)
    return place is not None and bool(place.parameter)


def _may_repeat_value(gate: str, answer: str) -> bool:
    """Whether an answer of a person may repeat any value: it is a message to the LM, or more than
    yes or no about a tool call."""
    if gate.startswith(MESSAGE):
        return True
    if not _is_of_call(gate):
        return False
    value = from_json(answer)
    data = cast(Json, value) if isinstance(value, dict) else Json()
    is_decision = "approve" in data or "repeat" in data
    return not is_decision or any(data.get(key) for key in ("arguments", "reason", "outcome"))


def _unknown_field_error(place: str, fields: dict[str, set[str]]) -> JournalError:
    existing = [f"{cls}.{name}" for cls, names in fields.items() for name in sorted(names)]
    near = get_close_matches(place, existing, n=3, cutoff=0.5)
    return JournalError(
        f"the run has no field {place}, so nothing was redacted",
        code="bae-redact-unknown",
        fix=f"name a field, as {' or '.join(near) if near else 'Person.email'}, or a class for all "
        f"of its fields; the run has {', '.join(existing)}",
    )


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
