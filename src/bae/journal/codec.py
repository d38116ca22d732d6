"""Values as JSON and back, by round trip. A written value is read back through its declared type,
and is refused if it comes back as anything else. Pydantic's own serializers and validators do the
work; nothing is imported by a name found in data."""

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
from bae.files import collect_files, in_use, is_collecting
from bae.secrets import is_masked, secret_in
from bae.turns import IS_TURNS, as_references, is_referring

Keeping = Literal["keep", "live", "secret"]
"""How a value is treated: stored, computed again on resume, or withheld unless asked for."""

STORED_CONFIG: Final[CoreSchemaDict] = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
}
"""How values outside models are written; a model inside them keeps its own settings."""


class Unkeepable(Exception):
    """Raised for a value that does not read back unchanged; the text is the reason."""


class ValueCodec:
    """How the values of one type are stored. `verdict` is "keep", "live" or "secret", and `why` the
    reason if it is not "keep". Values of the type `plain` are stored without reading them back."""

    def __init__(self, schema: Any, config: CoreSchemaDict | None = None, live: str = "") -> None:
        self._schema = schema
        self._config = cast(Any, {**(config or {}), **STORED_CONFIG})
        self.plain = _plain_type(schema, self._config)
        is_open = self.plain is None  # a value may have more parts than its type declares
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
        """The value as JSON. Raises `Unkeepable` if it does not read back unchanged."""
        if self.verdict == "live":
            raise Unkeepable(self.why)
        if in_use() and not is_collecting():
            with collect_files():  # the JSON that is read back below refers to its files
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
        """A value from parsed JSON. Raises any error of pydantic, or of a validator."""
        if self.has_turns and not is_referring():
            with as_references():
                return self.load(data)
        text = to_json(data, inf_nan_mode="constants")
        return self._validator.validate_json(text, by_name=True)

    def _write(self, value: Any) -> bytes:
        write = self._serializer
        if not self._masked:
            return write.to_json(value, by_alias=False, round_trip=True, warnings="none")
        # In JSON pydantic masks its secrets; as objects it leaves them unmasked.
        data = write.to_python(value, by_alias=False, round_trip=True, warnings="none")
        return to_json(_in_clear(data), bytes_mode="base64", inf_nan_mode="constants")

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        return SchemaSerializer(self._schema, self._config)

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self._schema, self._config)


_SURELY_SHALLOW: Final = 150
"""How many nested brackets JSON may surely have to be read, including the record around it."""
_AROUND: Final = 8
SURELY_READ: Final = 1000
"""How many digits a number may surely have to be read."""
_PLAIN: Final[dict[str, type]] = {"str": str, "int": int, "float": float, "bool": bool}


def _plain_type(schema: Any, config: CoreSchemaDict) -> type | None:
    """The type whose values need not be read back, which saves half the time for a small node: the
    type of a field without anything else."""
    while schema["type"] in ("default", "definitions"):
        schema = schema["schema"]
    more = [*(schema.keys() - {"type", "metadata"})]
    more += [name for name in config if name.startswith(("str_", "allow_inf_nan"))]
    return None if more else _PLAIN.get(schema["type"])


def value_codec(declared: Any, schema: Callable[[], Any] | None = None) -> ValueCodec:
    """How the values of a type are stored; `schema` makes its core schema."""
    try:
        return ValueCodec(type_schema(declared) if schema is None else schema())
    except Exception as error:  # making a schema runs any code of the type
        # Pydantic refuses the TypedDict of older Pythons, whose values are plain dicts.
        if isinstance(declared, type) and hasattr(declared, "__total__"):
            return ANYTHING
        why = f"{type_name(declared)} has no schema: {describe(error)}"
        return ValueCodec({"type": "any"}, live=why)


def difference(one: Any, two: Any) -> str:
    """Where and how a value that was read back differs from the written value; empty if they have
    the same types and are equal, at every depth. Private attributes of models do not count. A
    number may come back as the wider type that is declared, and NaN equals itself."""
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
    except Exception:  # the value has its own comparison
        return _OTHER


def _same_atoms(one: list[Any], two: list[Any]) -> bool:
    types = [*map(type, one)]
    return _ATOMS.issuperset(types) and types == [*map(type, two)] and one == two


def _different_model(one: BaseModel, two: BaseModel) -> str:
    """The `difference` of models of one class, in whatever order their fields were set. Most
    dependencies return models, so the simplest fields are compared here."""
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
    """How the parts of a value are shown, and the parts by name; None if it has none."""
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
    """Whether two values have the same types and are equal, at every depth."""
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
"""The types that JSON cannot hold, and the reasons."""


def _why_live(schema: Any) -> str:
    """Why no value of a type can be stored; empty if values can be, or if only trying tells."""
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


def json_text(value: Any) -> str:
    """A JSON value as text; half a surrogate pair is replaced."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


ANYTHING: Final = ValueCodec({"type": "any"})
"""For values without a declared type: stored if they consist of JSON types."""
