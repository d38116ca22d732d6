"""What is different about the classes of a graph since a run was stored, by their shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bae.journal.shape import Json, Shape, ShapeView

ChangeKind = Literal[
    "class-new",
    "class-gone",
    "route-new",
    "route-gone",
    "field-new",
    "field-gone",
    "source",
    "type",
    "default",
    "validator",
    "other",
    "stored",
]
"""What a change is about: "source" is another kind of source, "other" what no stored value depends
on, and "stored" a stored value that cannot be read, for whatever reason."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the classes that a run began with and those of today.

    `place` is the class, field or route, as `AnticipateDay.mood`, `what` says what is different
    about it, and `means` what that is for a run. `breaks` tells whether the run cannot be resumed;
    where no run is looked at, whether there may be such runs. `fix` says what to do about it then.
    `graph` names the graph where it is one inside the run's.
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
    """How the shape of a graph differs from a stored one; nothing where that cannot be read.
    `breaks` is true where what a run has stored may be refused."""
    before, now = _flat(ShapeView(old)), _flat(ShapeView(new.json))
    graphs = {graph for graph, _ in before} & {graph for graph, _ in now}
    found: list[Change] = []
    for key, drawn in {**before, **now}.items():
        graph, place = key
        cls = graph, drawn["class"]
        if graph not in graphs or (key != cls and not (cls in before and cls in now)):
            continue  # it came, or went, with its graph or class
        if key not in now:
            found.append(_gone(place, graph, now.get(cls, {})))
        elif key not in before:
            found.append(_new(place, graph, now[key]))
        elif before[key] != now[key]:
            found.append(_changed(place, graph, before[key], now[key]))
    return found


Key = tuple[str, str]
"""A graph by its name, which is empty for the run's own, and a place in it."""
_MAY_REFUSE: Final = "what was stored may be refused"


def _flat(shape: ShapeView) -> dict[Key, Json]:
    """What a shape says of each class, route, field and parameter."""
    found: dict[Key, Json] = {}
    for number, graph in enumerate(shape.graphs):
        name = graph["name"] if number else ""
        for cls, drawn in graph["classes"].items():
            of_class = {"class": cls}
            own = {key: drawn.get(key) for key in ("written", "validators", "closed")}
            found[name, cls] = {**of_class, **own}
            for target in [*drawn["next"], *(["None"] if drawn["ends"] else [])]:
                found[name, f"{cls} -> {target}"] = of_class
            for field, use in drawn["fields"].items():
                place = f"{cls}.{field}"
                # The number of a call means nothing in another shape.
                found[name, place] = {**of_class, **{k: use[k] for k in use if k != "call"}}
                for parameter, call in _calls(shape, use, "", set()):
                    said = {f"returned {key}": call.get(key) for key in ("by", "type", "schema")}
                    found.setdefault((name, place + parameter), {**of_class}).update(said)
    return found


def _calls(
    shape: ShapeView, use: Json, parameter: str, seen: set[int]
) -> Iterator[tuple[str, Json]]:
    """The functions behind a field, and behind their parameters."""
    number: int | None = use.get("call")
    if number is None or number in seen:
        return
    seen.add(number)
    call = shape.calls[number]
    yield parameter, call
    for name, below in call["inputs"].items():
        yield from _calls(shape, below, f"{parameter}({name})", seen)


def _gone(place: str, graph: str, cls: Json) -> Change:
    node, arrow, target = place.partition(" -> ")
    if arrow:
        means = "a run that has decided to go there, and is not there yet, cannot"
        fix = f"let {node} return {target} until these runs are done, or fork them at {node}"
        return Change(place, "is no route any more", means, True, "route-gone", graph, fix)
    if "." not in place:
        means = "a run that has such a node, or is to go there, cannot read it"
        fix = f"keep {place} where the graph can reach it; if it was renamed, keep the old name "
        fix += "until these runs are done"
        what = "is not in the graph any more"
        return Change(place, what, means, True, "class-gone", graph, fix)
    if cls.get("closed") and "(" not in place:
        fix = f"give {place.partition('.')[0]} extra='ignore' until these runs are done"
        return Change(place, "is gone", _MAY_REFUSE, True, "field-gone", graph, fix)
    means = "its stored value is ignored"
    return Change(place, "is gone", means, False, "field-gone", graph)


def _new(place: str, graph: str, now: Json) -> Change:
    if " -> " in place:
        means = "a run may take it from now on"
        return Change(place, "is a new route", means, False, "route-new", graph)
    if "." not in place:
        return Change(place, "is new", "a run may go there from now on", False, "class-new", graph)
    if now.get("kind", "dep") != "plain":
        means = "nodes that are not done yet get it"
        return Change(place, "is new and has a source", means, False, "field-new", graph)
    if not now["required"]:
        means = "stored nodes have the default"
        return Change(place, "is new and has a default", means, False, "field-new", graph)
    means = "a node that was stored without it cannot be built"
    fix = f"give {place} a default, or a source"
    return Change(place, "is new and has no default", means, True, "field-new", graph, fix)


def _changed(place: str, graph: str, before: Json, now: Json) -> Change:
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    # What follows from another change is not told: parts of a source with it, and what a function
    # returns with the type of the field.
    told = [key for key in keys if key in _OWN] if "kind" in keys else keys
    if not {"type", "schema"}.isdisjoint(keys):
        told = [key for key in told if key not in ("returned type", "returned schema")]
    what = " and ".join(dict.fromkeys(_in_words(key, before, now) for key in told))
    kinds: list[ChangeKind] = [kind for kind, its in _KINDS if not its.isdisjoint(keys)]
    kind = kinds[0] if kinds else "other"
    if not _may_refuse(keys, before, now):
        return Change(place, what, "no stored value depends on it", False, kind, graph)
    fix = f"let {place} take the old values too: widen the type, or convert them in a validator"
    if kind == "source":
        fix = f"keep the source of {place} until these runs are done, or rename the field"
    elif kind == "default":
        fix = f"give {place} its default back"
    return Change(place, what, _MAY_REFUSE, True, kind, graph, fix)


_OWN: Final = ("kind", "type", "schema", "required", "validators")
_KINDS: Final[list[tuple[ChangeKind, set[str]]]] = [
    ("source", {"kind"}),
    ("type", {"type", "schema", "returned type", "returned schema"}),
    ("validator", {"validators", "closed"}),
    ("default", {"required"}),
]


def _may_refuse(keys: Sequence[str], before: Json, now: Json) -> bool:
    for key in keys:
        match key:
            case "kind" | "schema" | "returned schema":
                return True
            case "type" | "returned type" if now.get(key.replace("type", "schema")) is None:
                if now.get(key) is not None:  # else it may be anything now
                    return True
            case "validators" if _added(before, now):
                return True
            case "closed" if now["closed"]:
                return True
            case "required" if now["required"] and now["kind"] != "plain":
                return True  # nodes of which the source failed were stored without it
            case _:
                pass
    return False


def _in_words(key: str, before: Json, now: Json) -> str:
    old, new = before.get(key), now.get(key)
    match key:
        case "kind":
            return f"had {_SOURCES[before[key]]} and has {_SOURCES[now[key]]} now"
        case "type":
            return f"was {old} and is {new} now"
        case "schema" if before.get("type") == now.get("type"):
            return f"is {now.get('type')} still, and that type has changed"
        case "schema":
            return _in_words("type", before, now)
        case "returned by":
            return f"comes from {new} now, not {old}"
        case "returned type" | "returned schema":
            returned = before.get("returned type"), now.get("returned type")
            changed = (
                "another type now"
                if returned[0] == returned[1]
                else " now, not ".join(each or "anything" for each in returned[::-1])
            )
            return f"has a function that returns {changed}"
        case "required":
            return "has no default any more" if new else "has a default now"
        case "validators":
            added = _added(before, now)
            return f"is validated by {', '.join(added)} now" if added else "has fewer validators"
        case "written":
            return "has a written body now" if new else "has an empty body now"
        case "closed":
            return "accepts no unknown fields any more" if new else "accepts unknown fields now"
        case _:
            return f"has another {_KEYS.get(key, key)} now"


_SOURCES: Final = {
    "plain": "no source",
    "dep": "Dep",
    "map": "Map",
    "gate": "Gate",
    "recall": "Recall",
}
_KEYS: Final = {"over": "field to map over", "from": "class to recall from"}


def _added(before: Json, now: Json) -> list[str]:
    return [v for v in now.get("validators") or () if v not in (before.get("validators") or ())]
