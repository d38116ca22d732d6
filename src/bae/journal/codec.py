"""Write values as JSON, and read them back.

`ValueCodec` reads each value that it has written through the value's declared type. It refuses a
value that reads back as anything else. Pydantic's own serializers and validators do the work. No
name in the data is ever imported.
"""

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
"""How a journal treats a value. "keep": the journal stores it. "live": a resumed run computes it
again. "secret": the journal withholds it, unless it has `secrets=True`."""

STORED_CONFIG: Final[CoreSchemaDict] = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
}
"""The pydantic settings for values outside models. A model inside a value uses its own settings."""


class Unkeepable(Exception):
    """Raised for a value that does not read back unchanged. The message is the reason."""


class ValueCodec:
    """Writes and reads the values of one type as JSON."""

    def __init__(self, schema: Any, config: CoreSchemaDict | None = None, live: str = "") -> None:
        self._schema = schema
        self._config = cast(Any, {**(config or {}), **STORED_CONFIG})
        self.plain = _plain_type(schema, self._config)
        """`str`, `int`, `float` or `bool`: values of exactly this type are stored without reading
        them back, unless they are long numbers. None if every value must be read back."""
        has_parts = self.plain is None  # only then may a value have live or secret parts
        live = live or (_find_live_reason(schema) if has_parts else "")
        secret = secret_in(schema) if has_parts and not live else ""
        self.verdict: Keeping = "live" if live else "secret" if secret else "keep"
        """How a journal treats the values of this type."""
        self.why = live or secret
        """Why the verdict is not "keep"; empty if it is."""
        self._masked = bool(secret) and any(map(is_masked, parts(schema)))
        self.has_turns = has_parts and any(
            IS_TURNS in part.get("metadata", ()) for part in parts(schema)
        )
        """Whether a value may contain earlier turns of a thread."""

    def dump(self, value: Any) -> str:
        """Return a value as JSON. Raises `Unkeepable` if the value does not read back unchanged."""
        if self.verdict == "live":
            raise Unkeepable(self.why)
        if in_use() and not is_collecting():
            with collect_files():  # the JSON has only references to files, and is read back below
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
        """Return the value for parsed JSON. Raises any error of pydantic or of a validator."""
        if self.has_turns and not is_referring():
            with as_references():
                return self.load(data)
        text = to_json(data, inf_nan_mode="constants")
        return self._validator.validate_json(text, by_name=True)

    def _write(self, value: Any) -> bytes:
        write = self._serializer
        if not self._masked:
            return write.to_json(value, by_alias=False, round_trip=True, warnings="none")
        # Pydantic's `to_json` masks secrets, and its `to_python` does not.
        data = write.to_python(value, by_alias=False, round_trip=True, warnings="none")
        return to_json(_unmask(data), bytes_mode="base64", inf_nan_mode="constants")

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        return SchemaSerializer(self._schema, self._config)

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self._schema, self._config)


_SURELY_SHALLOW: Final = 150
"""JSON with at most this number of brackets is never nested too deeply to be read. JSON with more
brackets is parsed as a test."""
_AROUND: Final = 8
"""How many levels of brackets a stored line puts around a value, at most."""
SURELY_READ: Final = 1000
"""JSON with fewer characters than this has no number that is too long to be read."""
_PLAIN: Final[dict[str, type]] = {"str": str, "int": int, "float": float, "bool": bool}


def _plain_type(schema: Any, config: CoreSchemaDict) -> type | None:
    """Return the type whose values need not be read back, or None. Without reading back, a small
    node takes half the time. The type must be `str`, `int`, `float` or `bool`, and its schema must
    have no constraint or setting."""
    while schema["type"] in ("default", "definitions"):
        schema = schema["schema"]
    options = [*(schema.keys() - {"type", "metadata"})]
    options += [name for name in config if name.startswith(("str_", "allow_inf_nan"))]
    return None if options else _PLAIN.get(schema["type"])


def value_codec(declared: Any, schema: Callable[[], Any] | None = None) -> ValueCodec:
    """Return the codec for the values of a type. `schema` makes the type's core schema, by default
    `type_schema`."""
    try:
        return ValueCodec(type_schema(declared) if schema is None else schema())
    except Exception as error:  # making a schema may run code of the type
        # Pydantic refuses the TypedDict of older Pythons, whose values are plain dicts.
        if isinstance(declared, type) and hasattr(declared, "__total__"):
            return ANYTHING
        why = f"{type_name(declared)} has no schema: {describe(error)}"
        return ValueCodec({"type": "any"}, live=why)


def difference(one: Any, two: Any) -> str:
    """Describe the first difference between a written value and the value read back.

    The result says where the values differ and how. It is empty if the values are equal and have
    the same types, at every depth. Equal numbers may have different types, because a number reads
    back as its declared type. NaN equals NaN. Private attributes of models are ignored.
    """
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
        return _compare_models(one, two)
    listing = _list_parts(one, kind)
    if listing is not None:
        template, parts_of_one = listing
        _, parts_of_two = _list_parts(two, kind) or listing
        if len(parts_of_one) != len(parts_of_two):
            return _OTHER
        for (name, first), (other, second) in zip(parts_of_one, parts_of_two, strict=True):
            if first is second and name is other:
                continue
            unlike = difference(first, second) or difference(name, other)
            if unlike:
                return f"{template.format(name)}{unlike}"
        return ""
    if issubclass(kind, datetime | time):
        unlike = _compare_times(one, two)
        if unlike:
            return unlike
    try:
        return "" if bool(one == two) else _OTHER
    except Exception:  # the value has its own comparison
        return _OTHER


def _same_atoms(one: list[Any], two: list[Any]) -> bool:
    types = [*map(type, one)]
    return _ATOMS.issuperset(types) and types == [*map(type, two)] and one == two


def _compare_models(one: BaseModel, two: BaseModel) -> str:
    """Return the `difference` of two models of one class. The order in which fields were set does
    not matter. Most dependencies return models, so this function compares simple fields itself,
    which is faster."""
    values, other_values = one.__dict__, two.__dict__
    for name in type(one).__pydantic_fields__:
        first, second = values.get(name, ...), other_values.get(name, ...)
        kind = _type_of(first)
        if kind in _ATOMS and kind is type(second) and first == second:
            continue
        unlike = difference(first, second)
        if unlike:
            return f".{name}{unlike}"
    return difference(one.__pydantic_extra__, two.__pydantic_extra__)


def _list_parts(value: Any, kind: Any) -> tuple[str, Collection[tuple[Any, Any]]] | None:
    """Return a format for the names of a value's parts, and the parts by name. None if the value
    has no parts."""
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
    """Return whether two values are equal and have the same types, at every depth."""
    return not difference(one, two)


_type_of: Final[Callable[[Any], Any]] = type
_NUMBERS: Final = frozenset({bool, int, float})
_ATOMS: Final = frozenset({str, int, float, bool, bytes, Decimal, UUID, date, timedelta})
_OTHER: Final = ": it reads back as something else"


def _compare_times(one: Any, two: Any) -> str:
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
"""Why JSON cannot hold values of a type, by the name of the type in a core schema."""


def _find_live_reason(schema: Any) -> str:
    """Return why no value of a type can be stored. Empty if some values can be stored: then each
    value is tried."""
    for part in parts(schema, written=True):
        kind: str = part["type"]
        function = cast(Any, part.get("function") or {})
        if getattr(function.get("function"), "__name__", "") == "import_string":
            return "reading it back would import the object that it names"
        if kind in _NEVER and "serialization" not in part:
            cls = part.get("cls_repr") or getattr(part.get("cls"), "__name__", "a class")
            return _NEVER[kind].format(cls)
    return ""


def _unmask(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmask(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_unmask(item) for item in cast("list[Any]", value)]
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return _unmask(cast(Any, value).get_secret_value())
    return value


def json_text(value: Any) -> str:
    """Return a JSON value as text. Half a surrogate pair is replaced."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


ANYTHING: Final = ValueCodec({"type": "any"})
"""The codec for values without a declared type. It stores values that consist of JSON types."""
