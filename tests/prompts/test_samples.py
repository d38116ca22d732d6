"""Samples of JSON schemas: whatever model pydantic makes a schema of, a sample of the schema is a
valid one, always the same, and the provider's wrong answer never is."""

import enum
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from time import process_time
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import (
    UUID4,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    ValidationError,
    create_model,
)

from bae.prompts.samples import misfit
from bae.testing import ScriptError, sample

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(BaseModel):
    model_config = ConfigDict(extra="forbid")
    left: int
    right: str = "r"


class Tree(BaseModel):
    name: str
    children: list["Tree"]
    parent: Optional["Tree"]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    owner: Optional[Pair] = None


# --- models of every shape --------------------------------------------------------------------

HASHABLE = st.sampled_from(
    [int, str, Decimal, date, datetime, timedelta, UUID, Path, IPv4Address, IPv6Address, Level,
     Color, Literal["a", "b", "c"]]
)  # fmt: skip
SCALARS = HASHABLE | st.sampled_from(
    [bool, float, bytes, time, None, Any, HttpUrl, UUID4, AwareDatetime, SecretStr,
     Literal[1, "one", True], Pair, Tree, Annotated[Cat | Dog, Field(discriminator="kind")]]
)  # fmt: skip
PATTERNS = st.sampled_from(
    [
        r"^\d{3}-\d{4}$",
        r"^[A-Z][a-z]+$",
        r"^(red|green|blue)$",
        r"^#(?:[0-9a-fA-F]{3}){1,2}$",
        r"^[\w.+-]+@[\w-]+\.[a-z]{2,}$",
        r"^https?://[^/\s]+(/.*)?$",
        r"[aeiou]{2}",
        r"^[^\W\d_]{2,8}?$",
        r"^v\d+(\.\d+){2}$",
        r"^\S+ \S+$",
    ]
)


@st.composite
def bounded_numbers(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from([int, float]))
    low = draw(st.integers(-(10**6), 10**6))
    bounds: dict[str, Any] = {}
    multiple = draw(st.sampled_from([None, 1, 2, 7, 25]))
    if draw(st.booleans()):
        bounds[draw(st.sampled_from(["ge", "gt"]))] = low
    if draw(st.booleans()):
        # Wide enough to hold a multiple, wherever it starts.
        span = draw(st.integers((multiple or 1) * 2, 10**6))
        bounds[draw(st.sampled_from(["le", "lt"]))] = low + span
    if multiple is not None:
        bounds["multiple_of"] = multiple
    return Annotated[kind, Field(**bounds)]


@st.composite
def narrow_floats(draw: st.DrawFn) -> Any:
    low = draw(st.floats(-1e9, 1e9, allow_subnormal=False))
    gap = draw(st.floats(1e-6, 1.0)) * max(1.0, abs(low))
    return Annotated[float, Field(gt=low, lt=low + gap)]


@st.composite
def bounded_texts(draw: st.DrawFn) -> Any:
    low = draw(st.integers(0, 200))
    high = draw(st.none() | st.integers(low, low + 50))
    return Annotated[str, Field(min_length=low, max_length=high)]


patterned_texts = PATTERNS.map(lambda pattern: Annotated[str, Field(pattern=pattern)])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    sizes = st.tuples(st.integers(0, 3), st.integers(3, 4))
    keys = st.sampled_from(
        [str, int, date, Level, Literal["x", "y"], Annotated[str, Field(min_length=3)]]
    )
    return st.one_of(
        st.tuples(inner, sizes).map(
            lambda made: Annotated[
                list[made[0]], Field(min_length=made[1][0], max_length=made[1][1])
            ]
        ),
        inner.map(lambda item: list[item]),
        inner.map(lambda item: tuple[item, ...]),
        st.tuples(inner, inner).map(lambda items: tuple[items]),
        HASHABLE.map(lambda item: set[item]),
        st.just(Annotated[set[Level], Field(min_length=2)]),
        st.just(Annotated[frozenset[int], Field(min_length=5)]),
        st.tuples(keys, inner).map(lambda made: dict[made[0], made[1]]),
        inner.map(lambda item: Annotated[dict[str, item], Field(min_length=3)]),
        inner.map(Optional.__getitem__),
        st.tuples(inner, inner).map(lambda items: Union[items]),
        models(inner),
    )


def models(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[type[BaseModel]]:
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=5)
    return fields.map(
        lambda found: create_model(
            "Model",
            **{
                f"field_{number}": (kind, Field(description="a field")) if needed else (kind, None)
                for number, (kind, needed) in enumerate(found)
            },
        )
    )


types = st.recursive(
    SCALARS | bounded_numbers() | narrow_floats() | bounded_texts() | patterned_texts,
    containers,
    max_leaves=6,
)


@many
@given(models(types), st.integers(0, 5))
def test_a_sample_of_the_schema_of_any_model_is_valid(model, seed):
    schema = model.model_json_schema()
    value = sample(schema, seed)
    model.model_validate_json(json.dumps(value, allow_nan=False))
    assert sample(json.loads(json.dumps(schema)), seed) == value


@many
@given(models(types))
def test_a_misfit_is_json_that_its_model_always_rejects(model):
    for type_ in (model, create_model("TakesAnything", anything=(Any, ...))):
        with pytest.raises(ValidationError):
            type_.model_validate_json(json.dumps(misfit(type_.model_json_schema())))


# --- by example -------------------------------------------------------------------------------


def test_a_recursive_type_is_sampled_one_level_deep():
    value = sample(Tree.model_json_schema())
    assert value["children"]
    assert all(child["children"] == [] for child in value["children"])


def test_different_seeds_give_different_samples():
    schema = {"type": "string"}
    assert len({sample(schema, seed) for seed in range(20)}) > 5


def test_a_sample_has_values_for_optional_fields():
    class Both(BaseModel):
        one: int | None
        two: str = "default"

    value = sample(Both.model_json_schema())
    assert isinstance(value["one"], int)
    assert set(value) == {"one", "two"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": {"a": [1]}}, {"a": [1]}),
        ({"enum": [None]}, None),
        ({"type": "null"}, None),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, 4),
        ({"type": "integer", "minimum": 1, "maximum": 10, "multipleOf": 7}, 7),
        ({"type": "number", "minimum": 0.25, "maximum": 0.25}, 0.25),
        ({"type": "string", "maxLength": 0}, ""),
        ({"type": "array", "items": False}, []),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": False}, [1]),
        ({"oneOf": [False, {"const": 2}]}, 2),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"const": 1}}}, 1),
    ],
)
def test_a_schema_with_one_valid_value_is_sampled_as_that_value(schema, value):
    assert sample(schema) == value


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (False, "allows no value"),
        ({"enum": []}, "its enum allows no value"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no number is within its bounds"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "no number is within"),
        ({"type": "string", "minLength": 2, "maxLength": 1}, "no text that fits"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "no text that fits"),
        ({"type": "string", "pattern": "^(?=b)a$"}, "no text that fits"),
        ({"type": "array", "items": {"const": 1}, "uniqueItems": True, "minItems": 2}, "1 items"),
        ({"anyOf": [False]}, "allows no value"),
        ({"$ref": "#/$defs/Gone"}, "points to nothing in the schema"),
        ({"$ref": "https://example.com/schema"}, "points to nothing in the schema"),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}},
            },
            "hold another one, without end",
        ),
    ],
)
def test_an_error_explains_why_nothing_fits(schema, why):
    with pytest.raises(ScriptError, match=why) as caught:
        sample(schema)
    assert caught.value.code == "bae-sample-impossible"
    assert "script an answer" in str(caught.value)


HUGE = 10**8


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": HUGE},
        {"type": "string", "format": "binary", "minLength": HUGE},
        {"type": "string", "pattern": "^a{100000000}$"},
        {"type": "string", "pattern": "^(([ab]{1000}){1000}){1000}$"},
        {"type": "string", "pattern": "^(?:){4000000000}$"},
        {"type": "string", "pattern": "^[a-z]{3000}$", "maxLength": 2},
        {"type": "array", "minItems": HUGE},
        {"type": "array", "items": True, "minItems": HUGE},
        {"type": "array", "items": {"type": "null"}, "minItems": HUGE},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": HUGE},
        {
            "type": "array",
            "minItems": 1000,
            "items": {
                "type": "array",
                "minItems": 1000,
                "items": {"type": "array", "minItems": 1000, "items": {"type": "integer"}},
            },
        },
        {"type": "array", "minItems": 4000, "items": {"type": "string", "minLength": 90_000}},
        {"type": "object", "minProperties": HUGE, "additionalProperties": {"type": "integer"}},
        {"type": "integer", "minimum": 10**400, "multipleOf": 0.5},
        {"type": "number", "minimum": 1e308, "multipleOf": 1e-300},
    ],
    ids=json.dumps,
)
def test_a_huge_sample_is_refused_before_it_is_created(schema):
    started = process_time()
    with pytest.raises(ScriptError) as caught:
        sample({"type": "object", "properties": {"huge": schema}, "required": ["huge"]})
    assert caught.value.code == "bae-sample-impossible"
    assert process_time() - started < 5


def test_a_sample_of_realistic_size_is_complete():
    assert len(sample({"type": "string", "minLength": 50_000})) >= 50_000
    assert len(sample({"type": "string", "pattern": "^[a-z]{3000}$"})) == 3000
    assert len(sample({"type": "array", "minItems": 4000, "items": {"type": "integer"}})) == 4000
