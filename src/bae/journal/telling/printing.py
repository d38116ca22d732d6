"""Runs as text for a terminal: a table of many, the story of one. It reads lines alone, so the code
that the run was made with need not be there. `commands.py` prints it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from time import time
from typing import Any, Final

from bae.journal.files.line_data import is_node
from bae.journal.shape.shapes import Json
from bae.journal.store import RunInfo, StoredRun
from bae.journal.telling.spent import usage_of
from bae.journal.telling.story import Entry, NodeStory, Story
from bae.lm.usage import Usage

WIDTH: Final = 100
"""Characters after which a value is cut, unless all of it is asked for."""
_SUMS: Final = ("ChoiceMade", "FillEnded", "LMUsed")
"""The lines that say what LM calls used; those of single answers are parts of these."""


def table_of(infos: Sequence[RunInfo]) -> str:
    """Runs as a table, one a line."""
    if not infos:
        return "no runs"
    rows = [("RUN", "GRAPH", "STATUS", "STARTED", "LASTED", "")]
    now = time()
    rows += [
        (
            info.run_id,
            info.graph,
            "interrupted" if info.is_interrupted(now) else info.status,
            _when(info.started),
            _long(info.updated - info.started),
            _about(info),
        )
        for info in infos
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]
        ).rstrip()
        for row in rows
    )


def story_of(stored: StoredRun, *, full: bool = False) -> str:
    """What happened in a run: its nodes in order with where each value came from, what graphs
    inside it did, what LM calls cost, and how it came out. `full` cuts nothing off and shows the
    texts of prompts and answers, where the journal has them."""
    return "\n".join(_Telling(Story.of(stored), full).lines(stored))


class _Telling:
    """One run while it is told."""

    def __init__(self, story: Story, full: bool) -> None:
        self._story = story
        self._full = full

    def lines(self, stored: StoredRun) -> Iterator[str]:
        info = stored.info
        status = "interrupted" if info.is_interrupted(time()) else info.status
        yield f"{info.graph}, run {info.run_id}: {status}"
        yield f"  started {_when(info.started)}, lasted {_long(info.updated - info.started)}"
        if info.parent:
            yield f"  forked from {info.parent}"
        used = Usage.total(usage_of(e.data) for e in self._story.entries if e.line.kind in _SUMS)
        if used != Usage():
            yield f"  {_spent(used)}"
        for entry in self._story.entries:
            if entry.line.kind == "RunResumed":
                changes = "".join(f"\n    {each}" for each in entry.data.get("changes") or ())
                yield f"  resumed {_when(entry.line.at)}{changes}"
        for path in self._story.paths():
            nodes = self._story.trace(path)
            if nodes:
                yield f"\n  in {path}" if path else ""
            for node in nodes:
                yield from self._node(path, node, "    " if path else "")
        yield ""
        yield from self._outcome(info)

    def _node(self, path: str, node: NodeStory, indent: str) -> Iterator[str]:
        here = self._story.at(path, node.step)
        state = "" if node.whole else "  (not whole yet)"
        yield f"{indent}{node.step:>3}  {node.name}{state}{self._made(node, here)}"
        for entry in here:
            yield from self._asked(entry, f"{indent}       ")
        names = self._story.fields(path, node.name)
        width = max(map(len, names), default=0)
        for name in names:
            value, source = self._field(path, node, name)
            if value or source:
                said = f"   <- {source}" if source else ""
                yield f"{indent}       {name.ljust(width)}  {value}{said}".rstrip()

    def _made(self, node: NodeStory, here: Sequence[Entry]) -> str:
        """How a node came to be, as far as the LM had a hand in it."""
        parts: list[str] = []
        for entry in here:
            if entry.line.kind == "ChoiceStarted":
                offered = (name or "the end" for name in entry.data["offered"])
                parts.append(f"chosen among {', '.join(offered)}")
        if node.chosen is not None and usage_of(node.chosen.data) != Usage():
            parts.append(_spent(usage_of(node.chosen.data)))
        if node.filled is not None:
            parts.append(f"filled in {_long(node.filled.data.get('seconds', 0.0))}")
            used = usage_of(node.filled.data)
            if used != Usage():
                parts.append(_spent(used))
        if node.forked is not None:
            changed = ", ".join(node.forked.data.get("changed", ())) or "nothing"
            parts.append(f"forked from {node.forked.data['parent']} with {changed} changed")
        return f"   <- {'; '.join(parts)}" if parts else ""

    def _asked(self, entry: Entry, indent: str) -> Iterator[str]:
        """What went wrong with an answer, or all of it where all is asked for."""
        data = entry.data
        match entry.line.kind:
            case "AnswerJudged" if self._full or data.get("verdict") != "valid":
                errors = "; ".join(data.get("errors") or ())
                said = f"{data['by']}, answer {data['number']}: {data['verdict']}"
                yield f"{indent}{said}{f': {self._cut(errors)}' if errors else ''}"
                if self._full:
                    for key in ("asked", "answer"):
                        text = str(data.get(key, "(not kept)"))
                        yield f"{indent}  {key}:"
                        yield from (f"{indent}    {line}" for line in text.splitlines())
            case "AnswerRestarted":
                yield f"{indent}{data['by']}, sent again: {_error(data['error'])}"
            case "LMUsed":
                yield f"{indent}{data['by']} asked an LM: {_spent(usage_of(data))}"
            case _:
                pass

    def _field(self, path: str, node: NodeStory, name: str) -> tuple[str, str]:
        """The value of a field and where it came from."""
        story, place = self._story, (path, node.step, node.name, name, "")
        if place in story.recalled:
            at, step, field = story.recalled[place].data["origin"]
            other = story.nodes.get((at, step))
            origin = f"{at}/{step}" if at else str(step)
            named = other.name if other is not None else "?"
            return "", f"recalled from {origin}:{named}{f'.{field}' if field else ''}"
        if place in story.ended:
            data = story.ended[place].data
            if data.get("items"):
                items = story.items.get(place, {})
                value = f"[{', '.join(self._value(items[i].data) for i in sorted(items))}]"
                return self._cut(value), f"{data['by']} for {len(items)} items{_took(data)}"
            asked = "answered: " if data["source"] == "gate" else ""
            return self._value(data), f"{asked}{data['by']}{_took(data)}"
        if place in story.failed and story.failed[place].data["error"].get("type") != "Waiting":
            data = story.failed[place].data
            return "", f"{data['by']} failed: {_error(data['error'])}"
        for entry in node.entries():
            said: Json = entry.data["node"]
            if name in said.get("fields", {}):
                return self._json(said["fields"][name]), ""
            if name in said.get("withheld", ()):
                return "(withheld)", ""
        return self._unfinished(place)

    def _unfinished(self, place: Any) -> tuple[str, str]:
        story = self._story
        if place in story.gates:
            return "", f"waits for a person: {story.gates[place].data['question']}"
        if place in story.begun:
            return "", f"{story.begun[place].data['by']} has begun"
        where = place[0], place[2], place[3]
        call = story.shape.call_at(*where)
        if call is not None and call in story.shared and story.shape.is_shared(*where):
            first = story.shared[call]
            return self._value(first.data), f"{first.data['by']}, called before"
        return "", ""

    def _outcome(self, info: RunInfo) -> Iterator[str]:
        if info.status == "ended":
            trace = self._story.trace("")
            yield f"ended at {trace[-1].name}" if trace else "ended"
        elif info.status == "waiting":
            for gate in info.waiting:
                answered = " (answered)" if gate.answered else ""
                yield f"waits at {gate.address}: {gate.question}{answered}"
        elif info.status == "failed":
            yield f"failed: {info.error}"
        elif info.is_interrupted(time()):
            yield "interrupted: graph.resume goes on with it"
        else:
            by = f" by {info.owner}" if info.owner else ""
            yield f"{info.status}{by}"

    def _value(self, data: Json) -> str:
        if "value" in data:
            return self._json(data["value"])
        if data.get("live"):
            return "(live)"
        return "(withheld)" if data.get("withheld") else ""

    def _json(self, value: Any) -> str:
        said = f"{value['type']} " if is_node(value) else ""
        shown = value["fields"] if is_node(value) else value
        return self._cut(said + json.dumps(shown, ensure_ascii=False))

    def _cut(self, text: str) -> str:
        return text if self._full or len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _about(info: RunInfo) -> str:
    if info.waiting and info.status == "waiting":
        return "; ".join(f"{gate.place}: {gate.question}" for gate in info.waiting)
    if info.error:
        return info.error if len(info.error) <= WIDTH else f"{info.error[: WIDTH - 1]}…"
    if info.parent:
        return f"forked from {info.parent}"
    return f"by {info.owner}" if info.status == "running" and info.owner else ""


def _spent(usage: Usage) -> str:
    parts = [f"{usage.calls} call{'' if usage.calls == 1 else 's'}"]
    if usage.tokens:
        parts.append(f"{usage.tokens} tokens")
    if usage.cost is None:
        parts.append("cost unknown")
    elif usage.cost:
        parts.append(f"${usage.cost:.4g}")
    if usage.models:
        parts.append(", ".join(usage.models))
    return ", ".join(parts)


def _error(error: Json) -> str:
    return f"{error.get('type', 'error')}: {error.get('message', '')}"


def _took(data: Json) -> str:
    seconds = data.get("seconds") or 0.0
    return f", {_long(seconds)}" if seconds >= 0.001 else ""


def _when(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _long(seconds: float) -> str:
    """How long something took, in the unit that fits."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * length or unit == "s":
            return f"{seconds / length:.3g} {unit}" if seconds >= 0.001 else "0 s"
    return "0 s"
