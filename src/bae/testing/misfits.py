"""Valid JSON that does not fit a schema, for the fault `WrongSchema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from bae.testing.references import References, Schema, kind_of
from bae.testing.samples import sample


def misfit(schema: Mapping[str, Any] | None) -> Any:
    """Valid JSON that does not fit `schema`: a sample of it with one property of a wrong type, as
    a model gets it wrong, or something else altogether where every property takes anything."""
    if schema is None:
        return _OBJECT
    references = References(schema)
    for candidate in _candidates(sample(schema)):
        if not _fits(schema, candidate, references):
            return candidate
    return ["unexpected"]


def _candidates(right: Any) -> Iterator[Any]:
    if isinstance(right, dict):
        found = cast(dict[str, Any], right)
        for name in found:
            for wrong in (_OBJECT, "unexpected", ["unexpected"], 0.5):
                yield {**found, name: wrong}
        yield {}
    yield _OBJECT


_OBJECT = {"unexpected": [None]}
"""An object that nothing makes a value of; true would do as a number, and so as an address."""

_PYTHON: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def _fits(schema: Any, value: Any, references: References) -> bool:
    """Whether `value` is of the right types, whatever its bounds and formats are."""
    if not isinstance(schema, Mapping):
        return schema is not False
    rules = cast(Schema, schema)
    if "$ref" in rules and not _fits(references.target(rules["$ref"]), value, references):
        return False
    if not all(_fits(member, value, references) for member in rules.get("allOf", ())):
        return False
    for combination in ("anyOf", "oneOf"):
        options = rules.get(combination)
        if options is not None and not any(_fits(each, value, references) for each in options):
            return False
    if "const" in rules and rules["const"] != value:
        return False
    if "enum" in rules and value not in rules["enum"]:
        return False
    given = rules.get("type", kind_of(rules, ""))
    kinds = cast(list[str], given if isinstance(given, list) else [given])
    if kinds != [""] and not any(isinstance(value, _PYTHON.get(kind, object)) for kind in kinds):
        return False
    if isinstance(value, dict):
        return _object_fits(rules, cast(dict[str, Any], value), references)
    if isinstance(value, list):
        items = rules.get("items", True)
        return all(_fits(items, item, references) for item in cast(list[Any], value))
    return True


def _object_fits(rules: Schema, value: Mapping[str, Any], references: References) -> bool:
    properties = cast(Mapping[str, Any], rules.get("properties", {}))
    others = rules.get("additionalProperties", True)
    return all(name in value for name in rules.get("required", ())) and all(
        _fits(properties.get(name, others), each, references) for name, each in value.items()
    )
