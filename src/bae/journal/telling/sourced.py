"""Where the value of a field came from that has a source: the function, graph or person behind it,
what that was given, and the items of a map. `why.py` asks for fields of every kind."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, cast

from bae.exceptions import JournalError
from bae.journal.telling.places import Spotted, address, not_yet
from bae.journal.telling.provenance import Kept, Provenance, ValueSource
from bae.journal.telling.spent import with_usage
from bae.journal.telling.story import Entry, NodeStory, Place, Story, asker_said, value_in


class Sourced(ABC):
    """Answers for the sources of one run. A value that several others came from is told once."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self._told: dict[Place, Provenance] = {}

    @abstractmethod
    def at(self, spot: Spotted) -> Provenance:
        """Where the value at any place came from."""

    def ended(self, spot: Spotted) -> Provenance | None:
        """A source that came to a value for this very field."""
        entry = self.story.ended.get(key_of(spot))
        return None if entry is None else self._source(spot, entry)

    def shared(self, spot: Spotted) -> Provenance | None:
        """A dependency that was called before, for another field."""
        where = spot.path, spot.node, spot.field, spot.route
        call = self.story.shape.call_at(*where)
        if call is None or not self.story.shape.is_shared(*where):
            return None
        entry = self.story.shared.get(call)
        if entry is None:
            return None
        line, data = entry
        first = Spotted(line.path, line.step, data["node"], data["field"], data.get("route", ""))
        made = self._source(first, entry)
        return replace(
            made,
            place=address(spot),
            path=spot.path,
            step=spot.step,
            node=spot.node,
            field=spot.field,
            note=f"called once for the run, first for {made.place}",
        )

    def answered(self, spot: Spotted) -> Provenance | None:
        """A gate that has its answer while the run has not gone on yet."""
        entry = self.story.gates.get(key_of(spot))
        answer = self.story.answers.get(address(spot))
        if entry is None or answer is None:
            return None
        made = self.made(spot, "gate", entry, entry.data["question"], "value", json.loads(answer))
        return replace(made, note="the run has not gone on since")

    def failed(self, spot: Spotted, node: NodeStory) -> Provenance | None:
        """A source that failed, or that waited for one which did: its default stands, or the run
        failed with it."""
        place, entry = self._failure(spot)
        if entry is None or place is None:
            return None
        source: ValueSource = "default"
        if not node.whole:
            source = cast(ValueSource, self.kind(spot) or entry.data["source"])
        made = self.made(spot, source, entry, entry.data["by"], "missing", None)
        error = entry.data["error"]
        said = f"{error['type']}: {error['message']}" if error.get("message") else error["type"]
        by = "" if place == key_of(spot) else f"{entry.data['by']} raised "
        return replace(made, error=f"{by}{said}", seconds=entry.data["seconds"])

    def parameter(self, spot: Spotted) -> Provenance:
        """A parameter of the function behind a field."""
        node = self.story.nodes[spot.path, spot.step]
        found = self.ended(spot) or self.shared(spot) or self.failed(spot, node)
        if found is None:
            raise not_yet(self.story, spot)
        return found

    def item(self, spot: Spotted, index: int) -> Provenance:
        """One item of a map."""
        whole = spot._replace(item=None)
        entry = self.story.items.get(key_of(whole), {}).get(index)
        if entry is None:
            raise not_yet(self.story, spot)
        made = self.made(spot, "map", entry, self.by(whole), *value_in(entry.data))
        inside = self.story.inside(address(spot))
        if not inside:
            return made
        seconds = entry.line.at - inside[0].line.at
        return with_usage(self.story, replace(made, inside=address(spot), seconds=seconds), [])

    def made(
        self, spot: Spotted, source: ValueSource, entry: Entry, by: str, kept: Kept, value: Any
    ) -> Provenance:
        """What a line says of the value at a place."""
        return Provenance(
            self.story.run_id,
            address(spot),
            spot.path,
            spot.step,
            spot.node,
            spot.field,
            source,
            by,
            entry.line.at,
            kept,
            value,
        )

    def kind(self, spot: Spotted) -> str:
        """What kind of source a field had; empty where the shape does not tell."""
        field = self.story.shape.field_at(spot.path, spot.node, spot.field)
        return "" if field is None else ("dep" if spot.route else field["kind"])

    def by(self, spot: Spotted) -> str:
        """The name of the function, graph or question behind a field."""
        for table in (self.story.ended, self.story.begun):
            if key_of(spot) in table:
                return table[key_of(spot)].data["by"]
        call = self.story.shape.call_at(spot.path, spot.node, spot.field, spot.route)
        return "" if call is None else self.story.shape.calls[call]["by"]

    def _source(self, spot: Spotted, entry: Entry) -> Provenance:
        place = key_of(spot)
        if place not in self._told:
            self._told[place] = self._tell(spot, entry)
        return self._told[place]

    def _tell(self, spot: Spotted, entry: Entry) -> Provenance:
        data = entry.data
        kept, value = value_in(data)
        by, source = data["by"], cast(ValueSource, data["source"])
        if source == "gate" and self._is_late(spot, entry):
            made = self.made(spot, "default", entry, by, kept, value)
            return replace(made, seconds=data["seconds"], note=f"nobody answered {by!r} in time")
        made = self.made(spot, source, entry, by, kept, value)
        made = replace(made, seconds=data["seconds"], inputs=self._inputs(spot))
        start = self.story.begun.get(key_of(spot))
        if source == "map":
            made = self._of_items(spot, made)
        elif source == "dep" and self.story.inside(address(spot)):
            made = replace(made, inside=address(spot))
        if start is None and source == "dep" and not data["seconds"]:
            made = replace(made, note="the value was given in dep_cache")
        asks = f"{spot.node}.{spot.field}{spot.route}"
        during = [
            e
            for e in self.story.between(start, entry)
            if e.line.path == spot.path and asker_said(e.data) == asks
        ]
        return with_usage(self.story, made, during)

    def _of_items(self, spot: Spotted, made: Provenance) -> Provenance:
        done = self.story.items.get(key_of(spot), {})
        items = tuple(
            self.at(spot._replace(item=index)) if index in done else None
            for index in range(max(done, default=-1) + 1)
        )
        if all(item is not None and item.kept == "value" for item in items):
            value = [item.value for item in items if item is not None]
            return replace(made, items=items, kept="value", value=value)
        others: list[Kept] = [i.kept for i in items if i is not None and i.kept != "value"]
        kept = others[0] if others else "missing"
        return replace(made, items=items, kept=kept, value=None)

    def _inputs(self, spot: Spotted) -> dict[str, Provenance]:
        places = {n: spot._replace(route=f"{spot.route}({n})") for n in self._parameters(spot)}
        field = self.story.shape.field_at(spot.path, spot.node, spot.field)
        if field is not None and field.get("over") and not spot.route:
            places = {field["over"]: spot._replace(field=field["over"]), **places}
        found: dict[str, Provenance] = {}
        for name, place in places.items():
            try:
                found[name] = self.at(place)
            except JournalError:  # not among the lines: a live value that was made anew, say
                continue
        return found

    def _parameters(self, spot: Spotted) -> list[str]:
        call = self.story.shape.call_at(spot.path, spot.node, spot.field, spot.route)
        if call is not None:
            return list(self.story.shape.calls[call]["inputs"])
        deeper = (
            place[4].removeprefix(spot.route)[1:-1]
            for place in self.story.ended
            if place[:4] == key_of(spot)[:4] and place[4].startswith(f"{spot.route}(")
        )
        return [name for name in deeper if ")(" not in name]

    def _failure(self, spot: Spotted) -> tuple[Place | None, Entry | None]:
        start = key_of(spot)
        failed = self.story.failed
        if start in failed:
            return start, failed[start]
        for place, entry in failed.items():
            if place[:4] == start[:4] and place[4].startswith(start[4]):
                return place, entry
        return None, None

    def _is_late(self, spot: Spotted, entry: Entry) -> bool:
        opened = self.story.gates.get(key_of(spot))
        deadline = None if opened is None else opened.data.get("deadline")
        late = deadline is not None and entry.line.at >= deadline
        return late and address(spot) not in self.story.answers


def key_of(spot: Spotted) -> Place:
    """A place as the story of a run knows it."""
    return spot.path, spot.step, spot.node, spot.field, spot.route
