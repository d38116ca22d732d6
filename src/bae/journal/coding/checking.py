"""What must be looked at in a value before JSON can be trusted with it: an object of a subclass, of
which only what its declared class has would come back; anything at all where the type says `Any`; a
zone that JSON cannot name. Most fields need no look, since pydantic has made plain values of what
it was given. `values.py` asks for one check per type."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, cast
from uuid import UUID

from bae.core_schemas import Schema
from bae.journal.coding.sameness import is_plain
from bae.journal.coding.zones import has_kept_zone

Check = Callable[[Any], bool]


def check_for(schema: Any, exact: bool = True) -> Check | None:
    """What tells whether a value of the schema reads back as it is; None where all do. Where it is
    not to be `exact`, pydantic has validated the value, which then is of no subclass of `str` or
    whatever else pydantic makes plain."""
    return _Checks(exact).of(schema)


class _Is:
    """Whether a value is of one of these types, and of no subclass."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = frozenset(kinds)

    def __call__(self, value: Any) -> bool:
        return type(value) in self.kinds


_AS_IT_COMES: Final[dict[str, Check]] = {
    "bytes": _Is(bytes),
    "date": _Is(date),
    "timedelta": _Is(timedelta),
    "uuid": _Is(UUID),
}
"""What pydantic leaves as it is, subclasses too."""
_MADE_PLAIN: Final[dict[str, Check]] = {
    "none": _Is(type(None)),
    "str": _Is(str),
    # Equal to what they come back as, and good for it to every type checker.
    "int": _Is(int, bool),
    "float": _Is(float, int, bool),
    "bool": _Is(bool),
    "decimal": _Is(Decimal),
}
"""What pydantic makes of a subclass."""
_HOLDING: Final[dict[str, type]] = {
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "tuple": tuple,
    "dict": dict,
}


class _Checks:
    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._defined: dict[str, Any] = {}
        self._made: dict[str, Check | None] = {}

    def of(self, schema: Any) -> Check | None:
        if isinstance(schema, tuple):
            schema = cast(Any, schema[0])
        found = cast(Schema, schema)
        kind: str = found["type"]
        inner = self._of(found, kind)
        if self._exact and kind in _HOLDING:
            return _exactly(_HOLDING[kind], inner)
        return inner

    def _of(self, found: Schema, kind: str) -> Check | None:
        match kind:
            case "any":
                return is_plain
            case "datetime":
                return lambda value: type(value) is datetime and has_kept_zone(value)
            case "time":
                return lambda value: type(value) is time and has_kept_zone(value)
            case "literal" if self._exact:
                return _Is(*map(type, found["expected"]))
            case "definitions":
                self._defined |= {d["ref"]: d for d in found["definitions"]}
                return self.of(found["schema"])
            case "definition-ref":
                return self._referred(found["schema_ref"])
            case "nullable":
                return _if_any(self.of(found["schema"]))
            case "default" | "function-after" | "function-before" | "function-wrap":
                return self.of(found["schema"])
            case "list" | "set" | "frozenset":
                return _each(self.of(found.get("items_schema") or {"type": "any"}))
            case "dict":
                return self._dict(found)
            case "tuple":
                return self._tuple(found)
            case "union":
                return self._union(found["choices"])
            case "tagged-union":
                return self._union([c for c in found["choices"].values() if isinstance(c, dict)])
            case "model":
                return self._model(found)
            case "dataclass":
                return self._dataclass(found)
            case _:
                return _AS_IT_COMES.get(kind) or (_MADE_PLAIN.get(kind) if self._exact else None)

    def _referred(self, ref: str) -> Check:
        if ref not in self._made:
            self._made[ref] = None
            self._made[ref] = self.of(self._defined[ref])

        def check(value: Any) -> bool:
            made = self._made[ref]
            return made is None or made(value)

        return check

    def _dict(self, schema: Schema) -> Check | None:
        keys = _each(self.of(schema["keys_schema"])) if self._exact else None
        values = _each(self.of(schema.get("values_schema") or {"type": "any"}))
        if keys is None:
            return None if values is None else lambda value: values(value.values())
        return lambda value: keys(value) and (values is None or values(value.values()))

    def _tuple(self, schema: Schema) -> Check | None:
        checks = [self.of(each) for each in schema["items_schema"]]
        index: int | None = schema.get("variadic_item_index")
        if not any(checks):
            return None
        if index is not None and len(checks) == 1:
            return _each(checks[0])

        def check(value: Any) -> bool:
            middle = len(value) - len(checks) + 1
            all_checks = checks
            if index is not None:
                all_checks = [*checks[:index], *[checks[index]] * middle, *checks[index + 1 :]]
            pairs = zip(all_checks, value, strict=False)
            return all(each is None or each(item) for each, item in pairs)

        return check

    def _union(self, choices: list[Any]) -> Check | None:
        checks = [self.of(each) for each in choices]
        if not any(checks):
            return None
        certain = [each for each in checks if each is not None]
        rest = len(certain) < len(checks)

        def check(value: Any) -> bool:
            plain = type(value).__module__ == "builtins"
            return (rest and plain) or any(_passes(each, value) for each in certain)

        return check

    def _model(self, schema: Schema) -> Check:
        cls: type = schema["cls"]
        inner: Any = schema["schema"]
        while inner["type"] in ("function-after", "function-before", "function-wrap"):
            inner = inner["schema"]
        if inner["type"] != "model-fields":  # a root model
            root = self.of(inner)
            return lambda value: type(value) is cls and (root is None or root(value.root))
        names = frozenset(inner["fields"])
        checks = [(n, c) for n, f in inner["fields"].items() if (c := self.of(f["schema"]))]

        def check(value: Any) -> bool:
            if type(value) is not cls or not value.__dict__.keys() >= names:
                return False
            if value.__pydantic_extra__ and not is_plain(value.__pydantic_extra__):
                return False
            return not checks or all(each(value.__dict__[name]) for name, each in checks)

        return check

    def _dataclass(self, schema: Schema) -> Check:
        cls: type = schema["cls"]
        args: Any = schema["schema"]
        while args["type"] != "dataclass-args":
            args = args["schema"]
        checks = [(f["name"], c) for f in args["fields"] if (c := self.of(f["schema"]))]
        return lambda value: (
            type(value) is cls and all(each(getattr(value, name)) for name, each in checks)
        )


def _passes(check: Check, value: Any) -> bool:
    try:
        return check(value)
    except (AttributeError, TypeError):
        return False  # a value of another choice


def _if_any(check: Check | None) -> Check | None:
    return None if check is None else lambda value: value is None or check(value)


def _each(check: Check | None) -> Check | None:
    if isinstance(check, _Is):  # the same, and much quicker
        kinds = check.kinds
        return lambda value: kinds.issuperset(map(type, value))
    return None if check is None else lambda value: all(map(check, value))


def _exactly(kind: type, inner: Check | None) -> Check:
    if inner is None:
        return _Is(kind)
    return lambda value: type(value) is kind and inner(value)
