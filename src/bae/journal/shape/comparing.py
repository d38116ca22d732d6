"""What is different about the classes of a graph since a run began, and what each difference means
for such a run. Two shapes are compared and nothing else; which changes matter to the records of one
run is for `changes.py` to say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bae.journal.shape.shapes import Json, Shape, ShapeView
from bae.journal.shape.widening import Difference, Differences

ChangeKind = Literal[
    "start",
    "class-new",
    "class-gone",
    "route-new",
    "route-gone",
    "body",
    "validator",
    "field-new",
    "field-gone",
    "source",
    "type",
    "default",
    "by",
    "description",
    "stored",
]
"""What a change is about. "stored" is none of the classes: something that was stored cannot be
read, whatever the reason."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the classes a run began with and those of now.

    `place` is the class, field or route, as `AnticipateDay.mood`, `what` says what is different
    about it, and `means` what that is for a run. `breaks` tells whether the run cannot go on; where
    no run is looked at, whether one that has been there may not be able to. `fix` says what to do
    about it then. `graph` names the graph where it is one inside the run's.
    """

    place: str
    what: str
    means: str
    breaks: bool = False
    kind: ChangeKind = "stored"
    graph: str = ""
    fix: str = ""

    def __str__(self) -> str:
        where = f"{self.place} (in the graph {self.graph})" if self.graph else self.place
        return f"{where} {self.what}: {self.means}"


def changes(old: str, new: Shape) -> list[Change]:
    """How the shape of a graph differs from one that was stored as JSON, class by class.

    A stored shape that cannot be read, or is in the notation of a newer bae, is passed over.
    """
    before, now = ShapeView(old), ShapeView(new.json)
    if not before.known or not before.graphs:
        return []
    found: dict[Change, None] = {}
    comparison = _Comparison(before, now)
    comparison.ahead.append((0, 0))
    for pair in comparison.ahead:
        found.update(dict.fromkeys(comparison.graphs(*pair)))
    return list(found)


_LEFT_OUT = "what was stored for it is left out"


class _Comparison:
    """Two shapes side by side. Graphs are compared from the run's own on, along the fields that
    lead to them."""

    def __init__(self, before: ShapeView, now: ShapeView) -> None:
        self.before = before
        self.now = now
        self.ahead: list[tuple[int, int]] = []
        self.graph = ""
        self.nodes = _nodes(before) & _nodes(now)

    def graphs(self, old: int, new: int) -> Iterator[Change]:
        before, now = self.before.graphs[old], self.now.graphs[new]
        self.graph = before["name"] if old else ""
        if before["start"] != now["start"]:
            yield self._change(
                now["start"],
                "start",
                f"is where the graph starts now, which was {before['start']}",
                "a run that is under way goes on from where it is",
            )
        for name, cls in before["classes"].items():
            if name in now["classes"]:
                yield from self._classes(name, cls, now["classes"][name])
            else:
                yield self._change(
                    name,
                    "class-gone",
                    "is not in the graph any more",
                    "a run that has been at such a node, or is to go there, cannot read it",
                    breaks=True,
                    fix=f"keep {name} where the graph can reach it; if it was renamed, keep the "
                    "old name until these runs are done",
                )
        for name in now["classes"]:
            if name not in before["classes"]:
                yield self._change(name, "class-new", "is new", "a run may go there from now on")

    def _classes(self, name: str, before: Json, now: Json) -> Iterator[Change]:
        yield from self._routes(name, before, now)
        if before["written"] != now["written"]:
            said = "a written body now" if now["written"] else "an empty body now"
            who = "it decides where to go on" if now["written"] else "the LM goes on from it"
            yield self._change(name, "body", f"has {said}", f"{who}, where that is not done yet")
        yield from self._validators(name, before, now)
        closed = bool(now.get("closed"))
        if closed and not before.get("closed"):
            yield self._change(
                name,
                "validator",
                "takes no fields any more that it does not have",
                "a node that was stored with more may be refused",
                breaks=True,
                fix=f"give {name} extra='ignore' until these runs are done",
            )
        for field, old in before["fields"].items():
            place = f"{name}.{field}"
            if field in now["fields"]:
                yield from self._fields(place, old, now["fields"][field])
            else:
                means = "a node that was stored with it is refused" if closed else _LEFT_OUT
                fix = f"give {name} extra='ignore' until these runs are done" if closed else ""
                yield self._change(place, "field-gone", "is gone", means, breaks=closed, fix=fix)
        for field, new in now["fields"].items():
            if field not in before["fields"]:
                yield self._new_field(f"{name}.{field}", new)

    def _routes(self, name: str, before: Json, now: Json) -> Iterator[Change]:
        old, new = _offered(before), _offered(now)
        for target in old:
            if target not in new:
                yield self._change(
                    f"{name} -> {target}",
                    "route-gone",
                    "is no route any more",
                    "a run that has decided to go there, and is not there yet, stands on a way "
                    "that the types do not show",
                    breaks=True,
                    fix=f"let {name} return {target} until these runs are done, or fork them at "
                    f"{name}",
                )
        for target in new:
            if target not in old:
                means = "a run may take it from now on"
                yield self._change(f"{name} -> {target}", "route-new", "is a new route", means)

    def _validators(self, place: str, before: Json, now: Json) -> Iterator[Change]:
        for validator in now.get("validators", []):
            if validator not in before.get("validators", []):
                yield self._change(
                    place,
                    "validator",
                    f"is validated by {validator} now",
                    "what was stored may be refused",
                    breaks=True,
                    fix=f"let {validator} pass what was stored before",
                )

    def _new_field(self, place: str, new: Json) -> Change:
        if new["kind"] != "plain":
            what = f"is new, with a {_source(new)}"
            means = "nodes that are not done yet get it from there"
            return self._change(place, "field-new", what, means)
        if not new["required"]:
            means = "nodes that were stored have the default"
            return self._change(place, "field-new", "is new and has a default", means)
        return self._change(
            place,
            "field-new",
            "is new and has no default",
            "a node that was stored without it cannot be built",
            breaks=True,
            fix=f"give {place} a default, or a source",
        )

    def _fields(self, place: str, before: Json, now: Json) -> Iterator[Change]:
        if before["kind"] != now["kind"]:
            yield self._change(
                place,
                "source",
                f"had {_source(before)} and has {_source(now)} now",
                "a value that was stored stands if it can be read as what it is now",
                breaks=True,
                fix=f"keep the source of {place} until these runs are done, or give it a new name "
                "and a default",
            )
        else:
            yield from self._sources(place, before, now)
        yield from self._types(place, before, now)
        yield from self._validators(place, before, now)
        if before["required"] and not now["required"]:
            means = "nothing that was stored changes"
            yield self._change(place, "default", "has a default now", means)
        elif now["required"] and not before["required"]:
            yield self._change(
                place,
                "default",
                "has no default any more",
                "a node that was stored without a value, because its source had failed, cannot be "
                "built",
                breaks=now["kind"] != "plain",
                fix=f"give {place} its default back",
            )
        if before.get("description") != now.get("description"):
            means = "the LM is told so from now on"
            yield self._change(place, "description", "is described differently", means)

    def _sources(self, place: str, before: Json, now: Json) -> Iterator[Change]:
        yield from self._calls(place, before, now, [])
        for key, said in (("question", "asks"), ("over", "goes over"), ("from", "looks at")):
            if before.get(key) != now.get(key):
                what = f"{said} {now.get(key) or 'any node'!r} now, not {before.get(key)!r}"
                means = "what was stored stands; the rest is asked for in the new way"
                yield self._change(place, "by", what, means)

    def _calls(
        self, place: str, before: Json, now: Json, seen: list[tuple[int, int]]
    ) -> Iterator[Change]:
        """The functions and graphs behind a field, and behind their parameters."""
        was: int | None = before.get("call")
        is_now: int | None = now.get("call")
        if was is None or is_now is None or (was, is_now) in seen:
            return
        seen.append((was, is_now))
        old, new = self.before.calls[was], self.now.calls[is_now]
        if old["by"] != new["by"]:
            what = f"comes from {new['by']} now, not {old['by']}"
            means = f"what {old['by']} has given stands; the rest comes from the new one"
            yield self._change(place, "by", what, means)
        if "graph" in old and "graph" in new:
            graphs = old["graph"], new["graph"]
            if graphs not in self.ahead:
                self.ahead.append(graphs)
        elif (old.get("returns"), new.get("returns")) != (before.get("type"), now.get("type")):
            yield from self._returns(place, old, new)
        for name, below in old["inputs"].items():
            inner = f"{place}({name})"
            if name in new["inputs"]:
                yield from self._calls(inner, below, new["inputs"][name], seen)
            else:
                yield self._change(inner, "field-gone", "is gone", _LEFT_OUT)
        for name in new["inputs"]:
            if name not in old["inputs"]:
                means = "calls that are not done yet get it"
                yield self._change(f"{place}({name})", "field-new", "is new", means)

    def _returns(self, place: str, old: Json, new: Json) -> Iterator[Change]:
        function = f"what {new['by']} returns"
        for each in self._differences(old, new, "returns"):
            yield self._typed(place, each, f"{function}{each.inside} {each.what}")

    def _types(self, place: str, before: Json, now: Json) -> Iterator[Change]:
        for each in self._differences(before, now, "type"):
            yield self._typed(f"{place}{each.inside}", each, each.what)

    def _differences(self, before: Json, now: Json, name: str) -> list[Difference]:
        old, new = before.get("schema"), now.get("schema")
        found: list[Difference] = []
        if old is not None and new is not None:
            comparison = Differences(self.before.types, self.now.types, self.nodes)
            found = comparison.between(old, new)
        if not found and before.get(name) != now.get(name):
            # Both take the same, spelled differently; or what is declared no more may be anything.
            sure = (old is not None and new is not None) or name not in now
            what = f"was {before.get(name, 'anything')} and is {now.get(name, 'anything')} now"
            found = [Difference("", what, not sure)]
        return found

    def _typed(self, place: str, difference: Difference, what: str) -> Change:
        if not difference.narrower:
            return self._change(place, "type", what, "what was stored is taken as it is")
        return self._change(
            place,
            "type",
            what,
            "a value that was stored may be refused",
            breaks=True,
            fix=f"have {place} take the old values too: widen its type, or convert them in a "
            "validator that runs before it",
        )

    def _change(
        self,
        place: str,
        kind: ChangeKind,
        what: str,
        means: str,
        *,
        breaks: bool = False,
        fix: str = "",
    ) -> Change:
        return Change(place, what, means, breaks, kind, self.graph, fix)


def _offered(cls: Json) -> list[str]:
    return [*cls["next"], *(["None"] if cls["ends"] else [])]


def _nodes(view: ShapeView) -> frozenset[str]:
    return frozenset(name for graph in view.graphs for name in graph["classes"])


def _source(field: Json) -> str:
    names = {"plain": "no source", "dep": "Dep", "map": "Map", "gate": "Gate", "recall": "Recall"}
    return names.get(field["kind"]) or str(field["kind"])
