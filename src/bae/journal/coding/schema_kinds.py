"""What is known of pydantic's core schemas as far as a faithful copy goes: which kinds read back as
they were written, which can never be, and whose functions are in them. `exact.py` goes by it."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, cast

from bae.journal.coding.sameness import is_plain

CONFIG_BOUNDS: Final = frozenset(
    {
        "str_strip_whitespace",
        "str_to_lower",
        "str_to_upper",
        "str_max_length",
        "str_min_length",
    }
)
"""Settings of a model that judge its values, or change them."""

BOUNDS: Final = frozenset(
    {
        "gt",
        "ge",
        "lt",
        "le",
        "multiple_of",
        "min_length",
        "max_length",
        "pattern",
        "strip_whitespace",
        "to_lower",
        "to_upper",
        "max_digits",
        "decimal_places",
        "allow_inf_nan",
        "now_op",
        "tz_constraint",
        "allowed_schemes",
        "host_required",
    }
)
"""What of a schema judges a value of the right type, or changes it."""

BOUNDED: Final = frozenset(
    {
        "str",
        "int",
        "float",
        "decimal",
        "bytes",
        "date",
        "time",
        "datetime",
        "timedelta",
        "list",
        "set",
        "frozenset",
        "tuple",
        "dict",
        "ordered-dict",
        "deque",
        "url",
        "multi-host-url",
    }
)

CERTAIN: Final = BOUNDED.difference(("url", "multi-host-url", "ordered-dict", "deque")) | {
    "any",
    "none",
    "bool",
    "uuid",
    "nullable",
    "default",
    "model",
    "model-fields",
    "model-field",
    "typed-dict-field",
    "dataclass",
    "dataclass-args",
    "dataclass-field",
    "definitions",
    "definition-ref",
    "missing-sentinel",
}
"""What reads back as it was, as far as it goes; the rest is tried with each value."""

TOLD_APART: Final = frozenset({"str", "int", "float", "bool", "none"})
"""What JSON tells apart by itself."""

NEVER: Final[dict[str, str]] = {
    "is-instance": "an object of {0} is not made of plain values",
    "is-subclass": "a class has no place in JSON",
    "callable": "a function has no place in JSON",
    "generator": "an iterator can be walked only once",
}
"""What JSON cannot hold, and why."""

OPAQUE: Final = frozenset({"any", "function-plain", "is-instance", "function-after"})
"""What says nothing of how its values are written."""

FUNCTIONS: Final = ("function-before", "function-wrap", "function-after")

NO_SCHEMAS: Final = frozenset(
    {"metadata", "serialization", "default", "members", "config", "expected", "function", "cls"}
)
"""What may look like a schema inside one and is none."""


def is_certain(schema: dict[str, Any]) -> bool:
    """Whether values read back as they were, as far as this layer goes."""
    match schema["type"]:
        case "dict":
            return schema.get("keys_schema", {}).get("type") == "str"
        case "union":
            kinds: set[str] = {c["type"] for c in schema["choices"] if isinstance(c, dict)}
            return len(kinds) == len(schema["choices"]) and kinds <= TOLD_APART
        case "tagged-union":
            return True
        case "enum":
            return all(type(member.value) in (str, int) for member in schema["members"])
        case "literal":
            return all(type(each) in (str, int, bool) for each in schema["expected"])
        case kind:
            return kind in CERTAIN


def is_exact_default(schema: dict[str, Any]) -> bool:
    """Whether a default is plainly of no subclass; one that is validated is as any value."""
    if schema.get("validate_default"):
        return True
    if "default_factory" in schema:
        return schema["default_factory"] in (list, dict, set)
    return is_plain(schema.get("default"))


def is_of_callers(key: str) -> bool:
    """Whether what a field says under this key is for those outside: names, and what they see."""
    return key.endswith("_alias") or key.startswith("serialization_exclude")


def is_secret(serialization: dict[str, Any] | None) -> bool:
    """Whether this is how pydantic hides a secret."""
    function: Any = None if serialization is None else serialization.get("function")
    name = getattr(function, "__name__", "")
    return "secret" in name and getattr(function, "__module__", "") == "pydantic.types"


def is_sequence(serialization: dict[str, Any] | None) -> bool:
    """Whether this is how pydantic writes a `Sequence`, which may be a list or a tuple."""
    function: Any = None if serialization is None else serialization.get("function")
    return getattr(function, "__name__", "") == "serialize_sequence_via_list"


def is_users(function: Any) -> bool:
    """Whether a function is somebody's own, and none of pydantic's."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    if function is None:
        return False
    return not str(getattr(function, "__module__", "")).startswith(("pydantic.", "pydantic_core."))


def imports(function: Any) -> bool:
    """Whether a function imports what a text names."""
    return getattr(function, "__name__", "") == "import_string"


def asks_the_world(function: Any) -> bool:
    """Whether a function looks if there is a file, as there was when the value was made."""
    return str(getattr(function, "__qualname__", "")).startswith("PathType.")
