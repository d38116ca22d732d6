"""Where a value of a run came from, found in its lines alone. `places.py` finds the field that is
meant, `story.py` has the lines by place, `sourced.py` tells of sources; what comes out is a
`Provenance`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from bae.exceptions import JournalError
from bae.journal.store import StoredRun
from bae.journal.telling.places import Spotted, find, not_yet
from bae.journal.telling.provenance import JudgedAnswer, Kept, Provenance, ValueSource
from bae.journal.telling.sourced import Sourced, key_of
from bae.journal.telling.spent import with_usage
from bae.journal.telling.story import (
    Entry,
    NodeStory,
    Story,
    asker_said,
    field_in,
    is_unset,
    node_in,
)

__all__ = ["JudgedAnswer", "Provenance", "why"]


def why(stored: StoredRun, place: str, step: int | None = None) -> Provenance:
    """Where the value of a field came from.

    `place` is the field as `Outfit.mood`, or `2:Outfit.mood` for that of step 2, with the place of
    a graph inside the run before it: `2:Report.summaries[3]/1:Summary.text`. A class that the run
    met several times is taken at its newest node, or at `step`. `Outfit` alone is the whole node,
    `Report.summaries[3]` one item of a map, `Day.weather(city)` a parameter of the function behind
    a field.
    """
    story = Story.of(stored)
    return _Why(story).at(find(story, place, step))


class _Why(Sourced):
    def __init__(self, story: Story) -> None:
        super().__init__(story)
        self._found: dict[Spotted, Provenance] = {}
        self._asked: set[Spotted] = set()

    def at(self, spot: Spotted) -> Provenance:
        if spot not in self._found:
            if spot in self._asked:  # lines that lead back to themselves are no lines of a run
                raise not_yet(self.story, spot)
            self._asked.add(spot)
            self._found[spot] = self._at(spot)
        return self._found[spot]

    def _at(self, spot: Spotted) -> Provenance:
        node = self.story.nodes[spot.path, spot.step]
        if not spot.field:
            return self._node(spot, node)
        if spot.item is not None:
            return self.item(spot, spot.item)
        if spot.route:
            return self.parameter(spot)
        found = (
            self._changed(spot, node)
            or self._recalled(spot)
            or self.ended(spot)
            or self._given(spot, node)
            or self._filled(spot, node)
            or self.shared(spot)
            or self.answered(spot)
            or self.failed(spot, node)
            or self._before_fork(spot, node)
            or self._default(spot, node)
        )
        if found is None:
            raise not_yet(self.story, spot)
        return found

    def _node(self, spot: Spotted, node: NodeStory) -> Provenance:
        """A node as a whole: how it came to be."""
        if node.forked is not None:
            parent = node.forked.data["parent"]
            return self.made(spot, "fork", node.forked, parent, *node_in(node.forked))
        if node.filled is not None:
            return self._with_choice(self._by_lm(spot, node.filled), node)
        if node.given is not None:
            return self._by_giver(spot, node.given, *node_in(node.given))
        raise not_yet(self.story, spot)

    def _with_choice(self, made: Provenance, node: NodeStory) -> Provenance:
        here = self.story.at(made.path, made.step)
        started = [entry for entry in here if entry.line.kind == "ChoiceStarted"]
        if node.chosen is None or not started:
            return made
        offered = ("the end" if name is None else name for name in started[-1].data["offered"])
        return replace(made, note=f"the LM chose it among {', '.join(offered)}")

    # A field: whoever can tell first does.

    def _changed(self, spot: Spotted, node: NodeStory) -> Provenance | None:
        entry = node.forked
        if entry is None or spot.field not in entry.data.get("changed", ()):
            return None
        kept = field_in(entry.data["node"], spot.field) or ("missing", None)
        return self.made(spot, "fork", entry, entry.data["parent"], *kept)

    def _recalled(self, spot: Spotted) -> Provenance | None:
        entry = self.story.recalled.get(key_of(spot))
        if entry is None:
            return None
        path, step, field = entry.data["origin"]
        node = self.story.nodes.get((path, step))
        origin = None
        if node is not None:
            # The lines about it may be gone; that it was recalled still holds.
            with suppress(JournalError):
                origin = self.at(Spotted(path, step, node.name, field))
        if origin is None:
            return self.made(spot, "recall", entry, f"step {step}", "missing", None)
        made = self.made(spot, "recall", entry, origin.place, origin.kept, origin.value)
        return replace(made, origin=origin)

    def _given(self, spot: Spotted, node: NodeStory) -> Provenance | None:
        entry = node.given
        kept = None if entry is None else field_in(entry.data["node"], spot.field)
        if entry is None or kept is None:
            return None
        if is_unset(entry, spot.field):
            return self.made(spot, "default", entry, "", *kept)
        return self._by_giver(spot, entry, *kept)

    def _filled(self, spot: Spotted, node: NodeStory) -> Provenance | None:
        entry = node.filled
        kept = None if entry is None else field_in(entry.data["node"], spot.field)
        if entry is None or kept is None:
            return None
        if is_unset(entry, spot.field):
            return self.made(spot, "default", entry, "", *kept)
        return replace(self._by_lm(spot, entry), kept=kept[0], value=kept[1])

    def _before_fork(self, spot: Spotted, node: NodeStory) -> Provenance | None:
        """A field that a fork left as it was, and whose line the two runs do not share: that of a
        node which a body had returned whole, for one."""
        entry = node.forked
        kept = None if entry is None else field_in(entry.data["node"], spot.field)
        if entry is None or kept is None:
            return None
        kind = self.kind(spot)
        if kind in ("", "plain"):
            made = self._by_giver(spot, entry, *kept)
        else:
            made = self.made(spot, cast(ValueSource, kind), entry, self.by(spot), *kept)
        return replace(made, note=f"in the run {entry.data['parent']}, which this was forked from")

    def _default(self, spot: Spotted, node: NodeStory) -> Provenance | None:
        kinds = ("StepStarted", "RunForked")
        here = [e for e in self.story.at(spot.path, spot.step) if e.line.kind in kinds]
        if not node.whole or not here:
            return None
        field = self.story.shape.field_at(spot.path, spot.node, spot.field)
        if field is None or not field["required"]:
            made = self.made(spot, "default", here[-1], "", "missing", None)
            return made if field is not None else replace(made, note="no line says more about it")
        source: ValueSource = "body" if field["kind"] == "plain" else field["kind"]
        made = self.made(spot, source, here[-1], self.by(spot), "live", None)
        return replace(made, note="nothing more is recorded of it")

    # Who made a node.

    def _by_giver(self, spot: Spotted, entry: Entry, kept: Kept, value: Any) -> Provenance:
        """The caller, or the body of the node before."""
        if entry.line.kind == "RunStarted" or spot.step == 0:
            return self.made(spot, "caller", entry, spot.path, kept, value)
        before = self.story.nodes.get((spot.path, spot.step - 1))
        by = f"{before.name}.__call__" if before is not None and before.name else "a body"
        asked = [e for e in self.story.at(spot.path, spot.step) if asker_said(e.data) == by]
        return with_usage(self.story, self.made(spot, "body", entry, by, kept, value), asked)

    def _by_lm(self, spot: Spotted, entry: Entry) -> Provenance:
        kinds = ("AnswerJudged", "LMUsed")
        here = [e for e in self.story.at(spot.path, spot.step) if e.line.kind in kinds]
        filling = [e for e in here if asker_said(e.data) == f"filling {spot.node}"]
        # One call may choose and fill: its answers are then those of the choice.
        chose = [e for e in here if asker_said(e.data).startswith("choosing after ")]
        judged = filling if any(e.line.kind == "AnswerJudged" for e in filling) else chose
        made = self.made(spot, "lm", entry, "", *node_in(entry))
        made = with_usage(self.story, made, [entry, *judged])
        return replace(made, by=", ".join(made.models), seconds=entry.data["seconds"])
