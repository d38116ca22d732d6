"""Schemas for providers: each provider gets a form that it accepts and that allows the values of
the given schema. Descriptions have the limits that the form cannot express."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae.lm.provider_schemas import (
    MOST_OPTIONAL,
    MOST_UNIONS,
    for_claude,
    for_claude_program,
    unfit,
)
from bae.prompts.samples import sample

PLAIN = {
    *("$ref", "$defs", "definitions", "type", "enum", "const", "anyOf", "oneOf", "allOf", "not"),
    *("properties", "required", "additionalProperties", "propertyNames", "items", "contains"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
    *("minProperties", "maxProperties", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly"),
}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "beside a description": (
        {"type": "string", "format": "uri", "description": "where it is"},
        {"type": "string", "description": "where it is (format: uri)"},
    ),
    "a property with the name of a word": (
        {"type": "object", "properties": {"format": {"type": "string", "format": "date"}}},
        {
            "type": "object",
            "properties": {"format": {"type": "string", "description": "(format: date)"}},
        },
    ),
    "a tuple": (
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string", "format": "date"}],
            "minItems": 2,
            "maxItems": 2,
        },
        {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {
                "anyOf": [{"type": "integer"}, {"type": "string", "description": "(format: date)"}]
            },
            "description": '(prefixItems: [{"type": "integer"}, '
            '{"type": "string", "format": "date"}])',
        },
    ),
    "keys by patterns": (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "integer"}]},
            "description": '(patternProperties: {"^a": {"type": "integer"}})',
        },
    ),
    "a number without end": (
        {"type": "number", "default": float("inf"), "maximum": float("inf")},
        {"type": "number", "description": "(default: Infinity; maximum: Infinity)"},
    ),
    "recursion": (
        {"$defs": {"A": {"items": {"$ref": "#/$defs/A"}, "format": "x"}}, "$ref": "#/$defs/A"},
        {
            "$defs": {"A": {"items": {"$ref": "#/$defs/A"}, "description": "(format: x)"}},
            "$ref": "#/$defs/A",
        },
    ),
}


@pytest.mark.parametrize(("schema", "expected"), CASES.values(), ids=list(CASES))
def test_a_schema_is_reduced_to_plain_keywords(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = json.dumps(schema)
    assert for_claude_program(schema) == expected
    assert json.dumps(schema) == before


WORDS = st.sampled_from(["a", "b", "format", "type"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.fixed_dictionaries(
        {"type": st.just("string"), "format": st.sampled_from(["date", "uuid", "email", "odd"])}
    ),
    st.fixed_dictionaries(
        {"type": st.just("string"), "pattern": st.sampled_from(["^[a-z]{2}$", "^(?P<n>a|b)$"])}
    ),
    st.fixed_dictionaries(
        {"type": st.just("integer"), "minimum": st.integers(0, 3), "maximum": st.integers(4, 9)},
        optional={"hint": st.just("none"), "description": st.just("a number")},
    ),
    st.lists(st.sampled_from(["a", "b", 1, 2.5]), min_size=1, unique=True).map(
        lambda found: {"enum": found}
    ),
    st.just({"const": {"format": "kept"}}),
)


def nest_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found}),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "maxItems": st.just(2)}),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda found: {
                "type": "array",
                "prefixItems": found,
                "minItems": len(found),
                "maxItems": len(found),
            }
        ),
        st.dictionaries(WORDS, inner, min_size=1, max_size=3).map(
            lambda found: {"type": "object", "properties": found, "required": list(found)}
        ),
        inner.map(lambda found: {"type": "object", "additionalProperties": found}),
        inner.map(lambda found: {"type": "object", "patternProperties": {"^(?P<n>k)$": found}}),
    )


SCHEMAS = st.recursive(LEAVES, nest_schemas, max_leaves=8)


def words_in(schema: Any) -> set[str]:
    """Every word of a schema, and of those in it."""
    found = set(schema)
    for word, value in schema.items():
        if word in ("properties", "$defs"):
            found.update(*(words_in(part) for part in value.values()))
        elif word in ("anyOf", "oneOf", "allOf"):
            found.update(*(words_in(item) for item in value))
        elif word in ("items", "additionalProperties", "propertyNames") and value not in (0, 1):
            found |= words_in(value)
    return found


@settings(max_examples=40)
@given(SCHEMAS, st.integers(0, 3))
def test_a_reduced_schema_allows_every_value_of_the_original(schema: Any, seed: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    made = for_claude_program(schema)
    assert words_in(made) <= PLAIN
    value = sample(schema, seed)
    for draft in (jsonschema.Draft7Validator, jsonschema.Draft202012Validator):
        draft.check_schema(made)
        draft(made).validate(value)


# --- Claude's structured output ----------------------------------------------------------------


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({}, "any type"),
        ({"type": "array", "items": {}}, "any type"),
        ({"type": "object"}, "not all named"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "not all named"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "prefixItems"),
        ({"type": ["string", "null"]}, "several types"),
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"$ref": "#/$defs/A"}]}, "allOf"),
        ({"enum": [["a"]]}, "not plain"),
    ],
)
def test_the_reason_why_a_schema_does_not_fit_is_reported(part: Any, why: str) -> None:
    definitions = {"$defs": {"A": {"type": "string"}}}
    assert why in (unfit({**_object({"x": part}), **definitions}) or "")


def test_optional_properties_and_alternatives_of_a_schema_are_limited() -> None:
    names = [f"p{number}" for number in range(MOST_OPTIONAL + 1)]
    text = {"type": "string"}
    assert unfit(_object(dict.fromkeys(names[:-1], text), [])) is None
    assert "left out" in (unfit(_object(dict.fromkeys(names, text), [])) or "")
    either = {"anyOf": [text, {"type": "null"}]}
    assert unfit(_object(dict.fromkeys(names[:MOST_UNIONS], either))) is None
    assert "alternatives" in (unfit(_object(dict.fromkeys(names[: MOST_UNIONS + 1], either))) or "")


_plain = st.sampled_from(
    [
        {"type": "string", "maxLength": 5},
        {"type": "integer", "minimum": 1},
        {"enum": ["a", "b"]},
        {"type": "string", "format": "date"},
        {"$ref": "#/$defs/A"},
        {},
    ]
)
_described = st.builds(lambda part, n: {**part, "description": f"told {n}"}, _plain, st.integers())
_schemas = st.recursive(
    _plain | _described,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4).map(_object),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
        st.builds(
            lambda inner_schema: {"type": "object", "additionalProperties": inner_schema}, inner
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from("uvwxyz"), _schemas, max_size=4))
def test_a_schema_that_fits_keeps_all_its_properties_and_descriptions(
    properties: dict[str, Any],
) -> None:
    schema = {**_object(properties), "$defs": {"A": _object({"inner": {"type": "boolean"}})}}
    if unfit(schema) is not None:
        return
    pytest.importorskip("anthropic")
    before, after = (
        list(_names_and_descriptions(schema)),
        list(_names_and_descriptions(for_claude(schema))),
    )
    assert set(before) <= set(after)


def _names_and_descriptions(schema: Any) -> Any:
    """The names of properties, and what descriptions say, without the limits put into them."""
    if isinstance(schema, list):
        for part in schema:
            yield from _names_and_descriptions(part)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "description":
                yield value.partition("\n")[0]
            elif key == "properties":
                yield from value
            yield from _names_and_descriptions(value)
