"""Values as JSON and back, by round trip: what is written is read back through the declared type,
and a value that would come back as anything else is refused. Pydantic's own serializers and
validators do the work; nothing is imported by a name found in data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Literal, cast
from uuid import UUID

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaSerializer, SchemaValidator, from_json, to_json

from bae.assignable import type_name
from bae.core_schemas import Schema, parts, type_schema
from bae.secrets import is_masked, secret_in

Verdict = Literal["keep", "live", "secret"]
"""What becomes of a value: it is stored, made again on resume, or withheld unless asked for."""

STORED_CONFIG: Final[Schema] = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
}
"""How values outside models are written; a model inside them keeps its own settings."""


class Unkeepable(Exception):
    """Raised where a value does not read back as it is; the text says why."""


class ValueCodec:
    """How the values of one type are stored.

    `verdict` is "keep", "live" or "secret", and `why` says why it is not "keep". With `validated`,
    the values are those of fields, so that pydantic has made them what their type says: those of
    the simplest types are not read back when they are written.
    """

    def __init__(
        self, schema: Any, config: Schema | None = None, validated: bool = False, live: str = ""
    ) -> None:
        self._schema = schema
        self._config = cast(Any, {**(config or {}), **STORED_CONFIG})
        live = live or _why_live(schema)
        secret = "" if live else secret_in(schema)
        self.verdict: Verdict = "live" if live else "secret" if secret else "keep"
        self.why = live or secret
        self.sure = validated and is_sure(schema) and not any(map(_changes_text, config or ()))
        """Whether every value of the type reads back as it is."""
        self._masked = bool(secret) and any(map(is_masked, parts(schema)))

    def dump(self, value: Any) -> str:
        """The value as JSON. Raises `Unkeepable` where it would not read back as it is."""
        if self.verdict == "live":
            raise Unkeepable(self.why)
        try:
            text = self.write(value)
            if not self.sure:
                refuse_deep(text)
                unlike = difference(value, self.read(text))
                if unlike:
                    raise Unkeepable(unlike.removeprefix(": "))
        except Unkeepable:
            raise
        except Exception as error:
            raise Unkeepable(first_line(error)) from error
        return text.decode()

    def load(self, data: Any) -> Any:
        """A value from JSON that was parsed. Raises what pydantic, or a validator, raises."""
        return self.read(to_json(data, inf_nan_mode="constants"))

    def write(self, value: Any) -> bytes:
        """The value as JSON, unchecked where the type is not `sure`."""
        warnings = "error" if self.sure else "none"
        if not self._masked:
            return self._serializer.to_json(
                value, by_alias=False, round_trip=True, warnings=warnings
            )
        # In JSON pydantic masks its secrets; as objects it leaves them whole.
        found = self._serializer.to_python(
            value, by_alias=False, round_trip=True, warnings=warnings
        )
        return to_json(_in_clear(found), bytes_mode="base64", inf_nan_mode="constants")

    def read(self, text: bytes) -> Any:
        """A value from its JSON."""
        return self._validator.validate_json(text, by_name=True)

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        return SchemaSerializer(self._schema, self._config)

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self._schema, self._config)


def value_codec(declared: Any, schema: Callable[[], Any] | None = None) -> ValueCodec:
    """How the values of a type are stored; `schema` makes its core schema."""
    try:
        return ValueCodec(type_schema(declared) if schema is None else schema())
    except PydanticUserError as error:
        # Pydantic refuses the TypedDict of older Pythons, whose values are plain dicts.
        if isinstance(declared, type) and hasattr(declared, "__total__"):
            return ANYTHING
        why = f"{type_name(declared)} has no schema: {first_line(error)}"
        return ValueCodec({"type": "any"}, live=why)


def is_plain(value: Any) -> bool:
    """Whether a value is made of what JSON has and nothing else, so that it reads back equal."""
    try:
        ANYTHING.dump(value)
    except Unkeepable:
        return False
    return True


_SURE: Final[dict[str, tuple[str, ...]]] = {
    "str": (),
    "int": (),
    "float": (),
    "bool": (),
    "none": (),
    "literal": ("expected",),
    "nullable": ("schema",),
    "default": ("schema", "default", "default_factory", "default_factory_takes_data"),
    "list": ("items_schema",),
    "set": ("items_schema",),
    "frozenset": ("items_schema",),
    "tuple": ("items_schema", "variadic_item_index"),
    "dict": ("keys_schema", "values_schema"),
}
"""The types whose validated values read back as they are, with what their schema may say: no bounds
and no validators, since a value may break them after it was validated."""


def is_sure(schema: Any) -> bool:
    """Whether every validated value of a core schema reads back as it is."""
    kind: str = schema["type"]
    known = _SURE.get(kind)
    if known is None or not schema.keys() <= {"type", "metadata", "strict", "ref", *known}:
        return False
    match kind:
        case "literal":
            return all(type(each) in (str, int, bool) for each in schema["expected"])
        case "default" if "default_factory" in schema:
            return schema["default_factory"] in (list, dict, set) and is_sure(schema["schema"])
        case "default":
            return is_plain(schema.get("default")) and is_sure(schema["schema"])
        case "tuple":
            return all(map(is_sure, schema["items_schema"]))
        case "dict":
            keys = schema.get("keys_schema", {}).get("type")
            return keys == "str" and is_sure(schema.get("values_schema", {"type": "any"}))
        case "list" | "set" | "frozenset":
            return is_sure(schema.get("items_schema", {"type": "any"}))
        case "nullable":
            return is_sure(schema["schema"])
        case _:
            return True


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
    if issubclass(kind, BaseModel):
        return _different_model(one, two)
    if issubclass(kind, _LISTS):
        return _different_list(one, two)
    if issubclass(kind, dict):
        return _different_dict(one, two)
    if issubclass(kind, _TIMES):
        return _different_time(one, two)
    if is_dataclass(kind):
        return _different_dataclass(one, two)
    try:
        return "" if bool(one == two) else _OTHER
    except Exception:
        return _OTHER  # not even to be compared


def same(one: Any, two: Any) -> bool:
    """Whether two values are of the same types and equal, all the way down."""
    return not difference(one, two)


_type_of: Final[Callable[[Any], Any]] = type
_LISTS: Final = (list, tuple, deque)
_TIMES: Final = (datetime, time)
_NUMBERS: Final = frozenset({bool, int, float})
_ATOMS: Final = frozenset({str, int, float, bool, bytes, Decimal, UUID, date, timedelta})
_OTHER: Final = ": it reads back as something else"


def _different_list(one: Any, two: Any) -> str:
    for index, (first, second) in enumerate(zip(one, two, strict=False)):
        found = difference(first, second)
        if found:
            return f"[{index}]{found}"
    same = len(one) == len(two) and getattr(one, "maxlen", 0) == getattr(two, "maxlen", 0)
    return "" if same else _OTHER


def _different_dict(one: dict[Any, Any], two: dict[Any, Any]) -> str:
    made = getattr(one, "default_factory", None), getattr(two, "default_factory", None)
    if len(one) != len(two) or made[0] is not made[1]:
        return _OTHER
    for (key, first), (other, second) in zip(one.items(), two.items(), strict=True):
        found = difference(key, other) or difference(first, second)
        if found:
            return f"[{key!r}]{found}"
    return ""


def _different_dataclass(one: Any, two: Any) -> str:
    for field in fields(one):
        found = difference(getattr(one, field.name, None), getattr(two, field.name, None))
        if found:
            return f".{field.name}{found}"
    return ""


def _different_model(one: BaseModel, two: BaseModel) -> str:
    held, other = one.__dict__, two.__dict__
    for name in type(one).__pydantic_fields__:
        if (name in held) is not (name in other):
            return f".{name}{_OTHER}"
        found = difference(held.get(name), other.get(name))
        if found:
            return f".{name}{found}"
    return difference(one.__pydantic_extra__, two.__pydantic_extra__)


def _different_time(one: Any, two: Any) -> str:
    if one.tzinfo is not None and one.tzinfo.utcoffset(None) is None:
        return (
            f": JSON keeps only the offset of its time zone {one.tzinfo}; convert it to UTC, and "
            "keep the name of the zone in a field of its own"
        )
    if one.fold != two.fold:
        return ": JSON does not keep its fold"
    return "" if one == two and one.utcoffset() == two.utcoffset() else _OTHER


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
        for name, field in _named_fields(part):
            if field.get("serialization_exclude") is True and field["schema"]["type"] != "default":
                return f"{name} is left out when it is written: it has exclude=True"
    return ""


def _named_fields(part: Schema) -> Iterable[tuple[str, Schema]]:
    if part["type"] == "model-fields":
        return cast("dict[str, Schema]", part["fields"]).items()
    return ()


def _changes_text(setting: str) -> bool:
    return setting.startswith("str_")


def _in_clear(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_clear(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_in_clear(each) for each in cast("list[Any]", value)]
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return _in_clear(cast(Any, value).get_secret_value())
    return value


def refuse_deep(text: bytes) -> None:
    """Refuse what is nested deeper than JSON is read, with the record around it."""
    if text.count(b"[") + text.count(b"{") > _SURELY_SHALLOW:
        from_json(b"[" * _AROUND + text + b"]" * _AROUND)


_SURELY_SHALLOW: Final = 150
_AROUND: Final = 8


def first_line(error: BaseException) -> str:
    """The first line of what an exception says that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), "") or type(error).__name__


ANYTHING: Final = ValueCodec({"type": "any"})
"""For values that nothing is declared of: stored when they are made of what JSON has."""
