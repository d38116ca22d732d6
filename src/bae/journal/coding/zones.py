"""Times with all that belongs to them: JSON has the offset of a zone and not its name, and does not
say which of two hours that a clock shows twice is meant. Where there is such a thing a time is
written as `{"$zone": "Europe/Berlin", "value": …, "fold": 1}`; both forms are read. `exact.py` puts
this in the place of times."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from pydantic_core import PydanticSerializationUnexpectedValue

from bae.core_schemas import Schema

ZONE: Final = "$zone"


def with_zone(schema: Schema) -> Schema:
    """A schema of times that reads either form, and writes the one that is needed."""
    kind = schema["type"]
    plain = {key: value for key, value in schema.items() if key != "ref"}
    kept: Schema = {
        "type": "function-before",
        "function": {"type": "no-info", "function": _READ[kind]},
        "schema": plain,
        "serialization": {
            "type": "function-wrap",
            "function": _WRITE[kind],
            "schema": {"type": kind},
            "when_used": "json",
        },
    }
    return {**kept, "ref": schema["ref"]} if "ref" in schema else kept


def same_time(one: Any, two: Any) -> bool:
    """Whether two times are equal in all that is kept of them."""
    return bool(one == two) and one.fold == two.fold and _name(one) == _name(two)


def has_kept_zone(value: Any) -> bool:
    """Whether the zone of a time can be kept: it has a name, or an offset that JSON can hold."""
    if value.tzinfo is None or _name(value):
        return True
    offset = value.utcoffset()
    return offset is not None and not offset.microseconds and not offset.seconds % 60


def _name(value: Any) -> str | None:
    return value.tzinfo.key if type(value.tzinfo) is ZoneInfo else None


def _written(cls: type[dt.datetime] | type[dt.time], value: Any, handler: Any) -> Any:
    if not isinstance(value, cls):
        raise PydanticSerializationUnexpectedValue(f"{type(value).__name__} is no {cls.__name__}")
    name = _name(value)
    if name is None and not value.fold:
        return handler(value)
    local = value.replace(fold=0) if name is None else value.replace(fold=0, tzinfo=None)
    said: dict[str, Any] = {ZONE: name, "value": local.isoformat()}
    return {**said, "fold": 1} if value.fold else said


def _read(cls: type[dt.datetime] | type[dt.time], data: Any) -> Any:
    if not isinstance(data, dict) or ZONE not in data:
        return cast(Any, data)
    said = cast("dict[str, Any]", data)
    try:
        value = cls.fromisoformat(said["value"])
        if said[ZONE] is not None:
            value = value.replace(tzinfo=ZoneInfo(said[ZONE]))
        return value.replace(fold=said.get("fold", 0))
    except (KeyError, TypeError, OSError) as error:  # a zone that nobody here knows is a KeyError
        raise ValueError(f"a time in the zone {said[ZONE]!r} cannot be read: {error}") from error


def _write_datetime(value: Any, handler: Any) -> Any:
    return _written(dt.datetime, value, handler)


def _write_time(value: Any, handler: Any) -> Any:
    return _written(dt.time, value, handler)


def _read_datetime(data: Any) -> Any:
    return _read(dt.datetime, data)


def _read_time(data: Any) -> Any:
    return _read(dt.time, data)


_WRITE: Final = {"datetime": _write_datetime, "time": _write_time}
_READ: Final = {"datetime": _read_datetime, "time": _read_time}
