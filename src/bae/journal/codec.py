"""Values as JSON and back, by round trip: what is written is read back through the declared type,
and a value that would come back as anything else is refused. Pydantic's own serializers and
validators do the work; nothing is imported by a name found in data."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Literal, cast
from uuid import UUID

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import SchemaSerializer, SchemaValidator, from_json, to_json

from bae.assignable import type_name
from bae.core_schemas import CoreSchemaDict, parts, type_schema
from bae.exceptions import describe
from bae.files import collected, in_use, is_collecting
from bae.secrets import is_masked, secret_in
from bae.turns import IS_TURNS, as_references, is_referring

Keeping = Literal["keep", "live", "secret"]
"""What becomes of a value: it is stored, made again on resume, or withheld unless asked for."""

STORED_CONFIG: Final[CoreSchemaDict] = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
}
"""How values outside models are written; a model inside them keeps its own settings."""


class Unkeepable(Exception):
    """Raised where a value does not read back as it is; the text says why."""


class ValueCodec:
    """How the values of one type are stored: `verdict` is "keep", "live" or "secret", and `why`
    says why it is not "keep". Values of the type `plain` are stored without reading them back."""

    def __init__(self, schema: Any, config: CoreSchemaDict | None = None, live: str = "") -> None:
        self._schema = schema
        self._config = cast(Any, {**(config or {}), **STORED_CONFIG})
        self.plain = _plain_type(schema, self._config)
        is_open = self.plain is None  # there may be more in it than its type says
        live = live or (_why_live(schema) if is_open else "")
        secret = secret_in(schema) if is_open and not live else ""
        self.verdict: Keeping = "live" if live else "secret" if secret else "keep"
        self.why = live or secret
        self._masked = bool(secret) and any(map(is_masked, parts(schema)))
        self.has_turns = is_open and any(
            IS_TURNS in part.get("metadata", ()) for part in parts(schema)
        )
        """Whether there may be earlier turns of a thread in a value."""

    def dump(self, value: Any) -> str:
        """The value as JSON. Raises `Unkeepable` where it would not read back as it is."""
        if self.verdict == "live":
            raise Unkeepable(self.why)
        if in_use() and not is_collecting():
            with collected():  # what is read back below refers to the files in it
                return self.dump(value)
        if self.has_turns and not is_referring():
            with as_references():
                return self.dump(value)
        try:
            if type(value) is self.plain:
                text = to_json(value, inf_nan_mode="constants")
                if len(text) < SURELY_READ or self.plain is str:
                    return text.decode()
            text = self._write(value)
            if len(text) > _SURELY_SHALLOW < text.count(b"[") + text.count(b"{"):
                from_json(b"[" * _AROUND + text + b"]" * _AROUND)
            unlike = difference(value, self._validator.validate_json(text, by_name=True))
        except Exception as error:
            raise Unkeepable(describe(error)) from error
        if unlike:
            raise Unkeepable(unlike.removeprefix(": "))
        return text.decode()

    def load(self, data: Any) -> Any:
        """A value from JSON that was parsed. Raises what pydantic, or a validator, raises."""
        if self.has_turns and not is_referring():
            with as_references():
                return self.load(data)
        text = to_json(data, inf_nan_mode="constants")
        return self._validator.validate_json(text, by_name=True)

    def _write(self, value: Any) -> bytes:
        write = self._serializer
        if not self._masked:
            return write.to_json(value, by_alias=False, round_trip=True, warnings="none")
        # In JSON pydantic masks its secrets; as objects it leaves them whole.
        found = write.to_python(value, by_alias=False, round_trip=True, warnings="none")
        return to_json(_in_clear(found), bytes_mode="base64", inf_nan_mode="constants")

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        return SchemaSerializer(self._schema, self._config)

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self._schema, self._config)


_SURELY_SHALLOW: Final = 150
"""How many brackets are in JSON that is sure to be read, with the record around it."""
_AROUND: Final = 8
SURELY_READ: Final = 1000
"""How many digits surely make a number that is read."""
_PLAIN: Final[dict[str, type]] = {"str": str, "int": int, "float": float, "bool": bool}


def _plain_type(schema: Any, config: CoreSchemaDict) -> type | None:
    """The type whose values need not be read back, which saves half of a small node: that of a
    field which has no more than a type."""
    while schema["type"] in ("default", "definitions"):
        schema = schema["schema"]
    more = [*(schema.keys() - {"type", "metadata"})]
    more += [name for name in config if name.startswith(("str_", "allow_inf_nan"))]
    return None if more else _PLAIN.get(schema["type"])


def value_codec(declared: Any, schema: Callable[[], Any] | None = None) -> ValueCodec:
    """How the values of a type are stored; `schema` makes its core schema."""
    try:
        return ValueCodec(type_schema(declared) if schema is None else schema())
    except Exception as error:  # whatever a type does when it is asked for its schema
        # Pydantic refuses the TypedDict of older Pythons, whose values are plain dicts.
        if isinstance(declared, type) and hasattr(declared, "__total__"):
            return ANYTHING
        why = f"{type_name(declared)} has no schema: {describe(error)}"
        return ValueCodec({"type": "any"}, live=why)


def difference(one: Any, two: Any) -> str:
    """Where and how a value that was read back differs from the one that was written; empty where
    they are of the same types and equal, all the way down. Private attributes of models do not
    count, a number may come back as the wider type that is declared, and NaN equals itself."""
    if one is two:
        return ""
    kind = _type_of(one)
    if kind is not type(two):
        if kind in _NUMBERS and type(two) in _NUMBERS and one == two:
            return ""
        return f": a {kind.__name__} reads back as a {type(two).__name__}"
    if kind in _ATOMS:
        return "" if one == two or (one != one and two != two) else _OTHER
    if kind is list and _same_atoms(one, two):
        return ""
    if issubclass(kind, BaseModel):
        return _different_model(one, two)
    inside = _inside(one, kind)
    if inside is not None:
        shown, parts_of_one = inside
        _, parts_of_two = _inside(two, kind) or inside
        if len(parts_of_one) != len(parts_of_two):
            return _OTHER
        for (name, first), (other, second) in zip(parts_of_one, parts_of_two, strict=True):
            if first is second and name is other:
                continue
            unlike = difference(first, second) or difference(name, other)
            if unlike:
                return f"{shown.format(name)}{unlike}"
        return ""
    if issubclass(kind, datetime | time):
        unlike = _different_time(one, two)
        if unlike:
            return unlike
    try:
        return "" if bool(one == two) else _OTHER
    except Exception:  # the comparison is code of the value's own
        return _OTHER


def _same_atoms(one: list[Any], two: list[Any]) -> bool:
    types = [*map(type, one)]
    return _ATOMS.issuperset(types) and types == [*map(type, two)] and one == two


def _different_model(one: BaseModel, two: BaseModel) -> str:
    """`difference` of models of one class, whatever order their fields were set in. It is what
    dependencies return most, so that the simplest fields are compared here."""
    held, other = one.__dict__, two.__dict__
    for name in type(one).__pydantic_fields__:
        first, second = held.get(name, ...), other.get(name, ...)
        kind = _type_of(first)
        if kind in _ATOMS and kind is type(second) and first == second:
            continue
        unlike = difference(first, second)
        if unlike:
            return f".{name}{unlike}"
    return difference(one.__pydantic_extra__, two.__pydantic_extra__)


def _inside(value: Any, kind: Any) -> tuple[str, Collection[tuple[Any, Any]]] | None:
    """How parts of a value are shown, and the parts by name; None if it has none."""
    if issubclass(kind, (list, tuple, deque)):
        numbered: list[tuple[Any, Any]] = [*enumerate(value)]
        if issubclass(kind, deque):
            numbered.append(("maxlen", value.maxlen))
        return "[{}]", numbered
    if issubclass(kind, defaultdict):
        return "[{!r}]", [("default_factory", value.default_factory), *value.items()]
    if issubclass(kind, dict):
        return "[{!r}]", value.items()
    if is_dataclass(kind):
        return ".{}", [(field.name, getattr(value, field.name, None)) for field in fields(kind)]
    return None


def same(one: Any, two: Any) -> bool:
    """Whether two values are of the same types and equal, all the way down."""
    return not difference(one, two)


_type_of: Final[Callable[[Any], Any]] = type
_NUMBERS: Final = frozenset({bool, int, float})
_ATOMS: Final = frozenset({str, int, float, bool, bytes, Decimal, UUID, date, timedelta})
_OTHER: Final = ": it reads back as something else"


def _different_time(one: Any, two: Any) -> str:
    if one.tzinfo is not None and one.tzinfo.utcoffset(None) is None:
        return (
            f": JSON keeps only the offset of its time zone {one.tzinfo}; convert it to UTC, and "
            "keep the name of the zone in a field of its own"
        )
    if one.fold != two.fold:
        return ": JSON does not keep its fold"
    return "" if one.utcoffset() == two.utcoffset() else _OTHER


_NEVER: Final[dict[str, str]] = {
    "is-instance": "an object of {0} is not made of plain values",
    "is-subclass": "a class has no place in JSON",
    "callable": "a function has no place in JSON",
    "generator": "an iterator can be walked only once",
}
"""What JSON cannot hold, and why."""


def _why_live(schema: Any) -> str:
    """Why no value of a type can be stored; empty where they can, or only trying tells."""
    for part in parts(schema, written=True):
        kind: str = part["type"]
        function = cast(Any, part.get("function") or {})
        if getattr(function.get("function"), "__name__", "") == "import_string":
            return "what it names would be imported when it is read"
        if kind in _NEVER and "serialization" not in part:
            cls = part.get("cls_repr") or getattr(part.get("cls"), "__name__", "a class")
            return _NEVER[kind].format(cls)
    return ""


def _in_clear(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_clear(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_in_clear(each) for each in cast("list[Any]", value)]
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return _in_clear(cast(Any, value).get_secret_value())
    return value


def quoted(value: Any) -> str:
    """A value made of what JSON has, as JSON; half of a character pair is replaced."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


ANYTHING: Final = ValueCodec({"type": "any"})
"""For values that nothing is declared of: stored when they are made of what JSON has."""
