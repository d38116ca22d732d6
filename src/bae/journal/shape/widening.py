"""Whether a type that was changed still takes what was stored under it, as far as two JSON schemas
tell. `comparing.py` asks for every field; whether the values of one run are taken is seen by
reading them, which `changes.py` does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

Schema = dict[str, Any]


class Difference(NamedTuple):
    """One thing that is different about a type: `inside` leads there from the field, as
    `.level` or `[].name`; `narrower` where what was taken before may be refused now."""

    inside: str
    what: str
    narrower: bool


_DEEPEST, _MOST_STEPS = 40, 5_000
"""How far types are compared that lead to each other in many ways."""


@dataclass(slots=True)
class Differences:
    """Compares schemas of one shape with those of another; `old` and `new` are their classes."""

    old: Mapping[str, Schema]
    new: Mapping[str, Schema]
    nodes: frozenset[str] = frozenset()
    """Node classes that are compared by themselves, and are not looked into here."""
    _open: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _steps: int = 0
    _known: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])

    def between(self, old: Schema, new: Schema, inside: str = "") -> list[Difference]:
        """All that is different, nothing where both take the same."""
        pair = _said(old), _said(new)
        if pair in self._open:  # classes that lead to themselves: it is said once, further up
            return []
        self._steps += 1
        if len(self._open) > _DEEPEST or self._steps > _MOST_STEPS:
            return [Difference(inside, "is too entangled to be compared", True)]
        self._open.append(pair)
        before, now = _looked_up(old, self.old), _looked_up(new, self.new)
        found = list(self._compare(before, now, inside))
        self._open.pop()
        return found

    def _compare(self, old: Schema, new: Schema, inside: str) -> Iterator[Difference]:
        if "node" in old and old["node"] == new.get("node") and old["node"] in self.nodes:
            return
        if not new and old:
            yield Difference(inside, f"was {_name(old)} and may be anything now", False)
        elif not old and new:
            yield Difference(inside, f"could be anything and must be {_name(new)} now", True)
        elif _branches(old) is not None or _branches(new) is not None:
            yield from self._unions(old, new, inside)
        elif _kind(old) != _kind(new):
            wider = (_kind(old), _kind(new)) == ("integer", "number")
            yield Difference(inside, f"was {_name(old)} and is {_name(new)} now", not wider)
        else:
            yield from self._objects(old, new, inside)
            yield from self._arrays(old, new, inside)
            yield from _values(old, new, inside)
            yield from _bounds(old, new, inside)
            yield from _rest(old, new, inside)

    def _unions(self, old: Schema, new: Schema, inside: str) -> Iterator[Difference]:
        before, now = _branches(old) or [old], _branches(new) or [new]
        lost: list[Schema] = []
        used: list[Schema] = []
        for branch in before:
            found = next((b for b in now if self._takes(branch, b)), None)
            if found is None:
                lost.append(branch)
            else:
                used.append(found)
        left = [b for b in now if b not in used and not any(self._takes(b, a) for a in before)]
        if len(lost) == 1 and len(left) == 1:  # one of the choices has changed: say what about it
            yield from self.between(lost[0], left[0], inside)
            return
        if lost:
            names = " or ".join(_name(_looked_up(b, self.old)) for b in lost)
            yield Difference(inside, f"could be {names} and cannot now", True)
        if left:
            names = " or ".join(_name(_looked_up(b, self.new)) for b in left)
            yield Difference(inside, f"may be {names} now", False)

    def _takes(self, old: Schema, new: Schema) -> bool:
        pair = _said(old), _said(new)
        if pair not in self._known:
            self._known[pair] = not any(each.narrower for each in self.between(old, new))
        return self._known[pair]

    def _objects(self, old: Schema, new: Schema, inside: str) -> Iterator[Difference]:
        if ("properties" in old) != ("properties" in new):  # a class, and a dict of anything
            yield Difference(inside, f"was {_name(old)} and is {_name(new)} now", True)
            return
        before = cast(dict[str, Schema], old.get("properties") or {})
        now = cast(dict[str, Schema], new.get("properties") or {})
        needed, was_needed = set(new.get("required", ())), set(old.get("required", ()))
        closed = new.get("additionalProperties") is False
        for name in now:
            if name in before:
                yield from self.between(before[name], now[name], f"{inside}.{name}")
                if before[name].get("description") != now[name].get("description"):
                    yield Difference(f"{inside}.{name}", "is described differently", False)
                if name in needed - was_needed:
                    yield Difference(f"{inside}.{name}", "has no default any more", True)
            elif name in needed:
                yield Difference(f"{inside}.{name}", "is new and has no default", True)
            else:
                yield Difference(f"{inside}.{name}", "is new and has a default", False)
        for name in before:
            if name not in now:
                yield Difference(f"{inside}.{name}", "is gone", closed)
        extra, extra_now = old.get("additionalProperties"), new.get("additionalProperties")
        if isinstance(extra, dict) and isinstance(extra_now, dict):
            values = cast(Schema, extra), cast(Schema, extra_now)
            yield from self.between(*values, f"{inside}[]")
        elif isinstance(extra_now, dict) and extra_now:
            what = f"could hold anything and must hold {_name(cast(Schema, extra_now))} now"
            yield Difference(inside, what, True)
        elif closed and extra not in (None, False):
            yield Difference(inside, "takes no other keys any more", True)

    def _arrays(self, old: Schema, new: Schema, inside: str) -> Iterator[Difference]:
        before, now = old.get("prefixItems", []), new.get("prefixItems", [])
        if len(before) != len(now):
            yield Difference(inside, f"had {len(before)} parts and has {len(now)} now", True)
            return
        for index, pair in enumerate(zip(before, now, strict=True)):
            yield from self.between(*pair, f"{inside}[{index}]")
        items, items_now = old.get("items"), new.get("items")
        if isinstance(items, dict) and isinstance(items_now, dict):
            yield from self.between(cast(Schema, items), cast(Schema, items_now), f"{inside}[]")
        elif isinstance(items_now, dict) and items_now and not before:
            what = f"could hold anything and must hold {_name(cast(Schema, items_now))} now"
            yield Difference(inside, what, True)


def _values(old: Schema, new: Schema, inside: str) -> Iterator[Difference]:
    before, now = _members(old), _members(new)
    if now is None:
        if before is not None:
            yield Difference(inside, f"could be one of {_listed(before)} and is free now", False)
        return
    if before is None:
        yield Difference(inside, f"must be one of {_listed(now)} now", True)
        return
    if gone := [each for each in before if each not in now]:
        yield Difference(inside, f"cannot be {_listed(gone)} any more", True)
    if more := [each for each in now if each not in before]:
        yield Difference(inside, f"may be {_listed(more)} now", False)


_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_OTHER = ("pattern", "format", "multipleOf", "python", "contentMediaType", "discriminator")


def _bounds(old: Schema, new: Schema, inside: str) -> Iterator[Difference]:
    for key in (*_LOWER, *_UPPER, *_OTHER):
        before, now = old.get(key), new.get(key)
        if before == now:
            continue
        if now is None:
            yield Difference(inside, f"has {key} {before} no more", False)
        elif before is None:
            yield Difference(inside, f"has {key} {now} now", True)
        else:
            wider = (key in _LOWER and now < before) or (key in _UPPER and now > before)
            yield Difference(inside, f"had {key} {before} and has {now} now", not wider)


_HANDLED = frozenset(
    {
        *_LOWER,
        *_UPPER,
        *_OTHER,
        *("type", "enum", "const", "properties", "required", "additionalProperties", "items"),
        *("prefixItems", "uniqueItems", "description", "validators", "node", "$name", "$ref"),
    }
)


def _rest(old: Schema, new: Schema, inside: str) -> Iterator[Difference]:
    """What is said in other words than pydantic's own: whether it is narrower nobody can tell."""
    before, now = old.get("validators", []), new.get("validators", [])
    if more := [name for name in now if name not in before]:
        yield Difference(inside, f"is validated by {', '.join(more)} now", True)
    for key in {**old, **new}:
        if key not in _HANDLED and old.get(key) != new.get(key):
            yield Difference(inside, f"has another {key} now", True)


def _looked_up(schema: Schema, classes: Mapping[str, Schema]) -> Schema:
    seen: set[str] = set()
    name = schema.get("$ref")
    while isinstance(name, str) and name in classes and name not in seen:
        seen.add(name)
        schema = {**classes[name], "$name": name}
        name = schema.get("$ref")
    return schema


def _branches(schema: Schema) -> list[Schema] | None:
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return schema[key]
    return None


def _kind(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    if "python" in schema:
        return "python"
    members = _members(schema)
    if members is None:
        return "" if kind is None else _said(kind)
    kinds = {_JSON_KINDS.get(member.__class__, "value") for member in members}
    return kinds.pop() if len(kinds) == 1 else "value"


_JSON_KINDS: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


def _members(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _name(schema: Schema) -> str:
    name = schema.get("$name") or schema.get("$ref") or schema.get("python")
    if name:
        return str(name)
    branches = _branches(schema)
    if branches is not None:
        return " or ".join(_name(branch) for branch in branches)
    members = _members(schema)
    if members is not None:
        return _listed(members)
    items = schema.get("items")
    if _kind(schema) == "array" and isinstance(items, dict) and items:
        return f"array of {_name(cast(Schema, items))}"
    shown = _kind(schema) or "anything"
    return f"{shown} ({schema['format']})" if "format" in schema else shown


def _listed(values: list[Any]) -> str:
    shown = [_said(value) for value in values[:6]]
    return ", ".join(shown) + (", …" if len(values) > 6 else "")


def _said(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
