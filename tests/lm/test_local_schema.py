"""Bounded schemas: everything in them has an end, and what fits them fits the type they came
from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import UUID4, AnyUrl, BaseModel, Field, HttpUrl, TypeAdapter, create_model

from bae import BaeLMError
from bae.lm.local_schema import FORMS, LARGEST, LONGEST_LIST, LONGEST_TEXT, bound_schema
from bae.prompts.schemas import outline


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


class Point(NamedTuple):
    x: int
    y: float


class Leaf(BaseModel):
    name: str
    size: int = Field(ge=1)


class Tree(BaseModel):
    leaf: Leaf
    children: list[Tree] = []
    twin: Tree | None = None


class Ping(BaseModel):
    pong: Pong | None
    leaf: Leaf


class Pong(BaseModel):
    pings: list[Ping] = Field(max_length=2)
    by_name: dict[str, Pong] = {}


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Node(BaseModel):
    """Needs another one of itself."""

    next: Node


def schema_of(annotation: Any) -> dict[str, Any]:
    return create_model("Asked", value=(annotation, ...)).model_json_schema()


def value_of(annotation: Any, **options: Any) -> Any:
    """What the bound_schema schema says of a field of this type."""
    made = bound_schema(schema_of(annotation), **options)
    found = made["properties"]["value"]
    while "$ref" in found:
        found = made["$defs"][found["$ref"].rpartition("/")[2]]
    return found


# --- any type ---------------------------------------------------------------------------------

scalars = st.sampled_from(
    [
        str,
        int,
        float,
        bool,
        None,
        Any,
        date,
        datetime,
        time,
        timedelta,
        UUID,
        UUID4,
        HttpUrl,
        AnyUrl,
        IPv4Address,
        Size,
        Literal["a", 1, None],
        Point,
        Leaf,
        Tree,
        Ping,
        Pong,
        Cat | Dog,
        Annotated[Cat | Dog, Field(discriminator="kind")],
        Annotated[int, Field(gt=3, lt=90, multiple_of=7)],
        Annotated[int, Field(ge=10**16)],
        Annotated[float, Field(gt=0, lt=1)],
        Annotated[float, Field(ge=1e-5, le=2e-5)],
        Annotated[float, Field(ge=0.5, le=0.5)],
        Annotated[str, Field(min_length=250)],
        Annotated[str, Field(max_length=3)],
        Annotated[str, Field(pattern=r"^[a-c]+$")],
    ]
)
types = st.recursive(
    scalars,
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]),
        inner.map(lambda t: t | None if t is not None else t),
        inner.map(lambda t: dict[str, t]),
        inner.map(lambda t: dict[Size, t]),
        inner.map(lambda t: Annotated[list[t], Field(min_length=1, max_length=9)]),
        inner.map(lambda t: Annotated[dict[str, t], Field(min_length=2)]),
        st.tuples(inner, inner).map(lambda two: tuple[two[0], two[1]]),
    ),
    max_leaves=3,
)


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for key, part in schema.items():
            if key not in ("enum", "const", "required"):
                yield from parts(list(part.values()) if key in MAPS else part)
    elif isinstance(schema, list):
        for part in schema:
            yield from parts(part)


MAPS = ("properties", "patternProperties", "$defs")


@settings(max_examples=60)
@given(types)
def test_every_part_of_a_bounded_schema_has_a_bound(annotation: Any):
    for part in parts(bound_schema(schema_of(annotation))):
        match part.get("type"):
            case "string" if "maxLength" not in part:
                assert part["pattern"] in FORMS.values()
            case "string":
                assert 0 <= part.get("minLength", 0) <= part["maxLength"]
            case "integer":
                assert part["minimum"] <= part["maximum"]
            case "number":
                ends = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
                assert len(ends & part.keys()) == 2
                assert "multipleOf" in part
            case "array":
                assert 0 <= part["minItems"] <= part["maxItems"]
            case "object":
                assert part["additionalProperties"] is False
                assert ("patternProperties" in part) == ("maxProperties" in part)
            case _:
                pass
        assert not {"format", "oneOf", "allOf", "uniqueItems", "propertyNames"} & part.keys()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data(), types)
def test_a_value_that_fits_a_bounded_schema_fits_its_type(data: Any, annotation: Any):
    model = create_model("Asked", value=(annotation, ...))
    schema = bound_schema(model.model_json_schema(), longest_text=20, longest_list=2, deepest=2)
    answer = data.draw(values(schema, schema.get("$defs", {})))
    model.model_validate_json(json.dumps(answer, ensure_ascii=False))


def values(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a grammar made from a bound_schema schema lets through."""
    if "$ref" in schema:
        return values(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return st.one_of([values(part, defs) for part in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum") or [schema.get("const")])
    match schema["type"]:
        case "string":
            least, most = schema.get("minLength", 0), schema.get("maxLength", 99)
            if "pattern" in schema:
                texts = st.from_regex(schema["pattern"], fullmatch=True)
                return texts.filter(lambda text: "\n" not in text and least <= len(text) <= most)
            return st.text(st.characters(codec="utf-8"), min_size=least, max_size=most)
        case "integer" | "number":
            return numbers(schema)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return arrays(schema, defs)
        case _:
            return objects(schema, defs)


def numbers(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    step = schema.get("multipleOf", 1)
    made = st.integers(math.ceil(low / step), math.floor(high / step)).map(
        lambda number: number * step if step >= 1 else round(number * step, 9)
    )
    return made.filter(
        lambda number: (
            low <= number <= high
            and number not in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))
        )
    )


def arrays(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    first = [values(part, defs) for part in schema.get("prefixItems", ())]
    least, most = schema["minItems"] - len(first), schema["maxItems"] - len(first)
    if most <= 0:
        return st.tuples(*first).map(list)
    rest = st.lists(values(schema["items"], defs), min_size=max(0, least), max_size=most)
    return st.tuples(st.tuples(*first), rest).map(lambda two: [*two[0], *two[1]])


def objects(schema: dict[str, Any], defs: dict[str, Any]) -> st.SearchStrategy[Any]:
    for pattern, part in schema.get("patternProperties", {}).items():
        keys = st.from_regex(pattern, fullmatch=True).filter(lambda text: "\n" not in text)
        sizes = {"min_size": schema["minProperties"], "max_size": schema["maxProperties"]}
        return st.dictionaries(keys, values(part, defs), **sizes)
    fields = {name: values(subschema, defs) for name, subschema in schema["properties"].items()}
    needed = {name: fields.pop(name) for name in schema["required"]}
    return st.fixed_dictionaries(needed, optional=fields)


# --- texts with a form ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "annotation"),
    [
        ("date", date),
        ("date-time", datetime),
        ("time", time),
        ("duration", timedelta),
        ("uuid", UUID),
        ("ipv6", IPv6Address),
        ("uri", HttpUrl),
    ],
)
def test_pydantic_accepts_the_pattern_of_each_format(word: str, annotation: Any):
    adapter = TypeAdapter(annotation)
    assert adapter.json_schema()["format"] == word
    assert value_of(annotation) == {"type": "string", "pattern": FORMS[word]}

    @settings(max_examples=20)
    @given(st.from_regex(FORMS[word], fullmatch=True))
    def fits(text: str) -> None:
        text = text.removesuffix("\n")  # Python lets one stand after the end
        adapter.validate_json(json.dumps(text))
        assert len(text) <= 80

    fits()


# --- what wins --------------------------------------------------------------------------------


def test_an_unbounded_schema_gets_bounds_and_tighter_bounds_of_the_schema_win():
    assert value_of(str) == {"type": "string", "maxLength": LONGEST_TEXT}
    assert value_of(list[bool]) == {
        "type": "array",
        "minItems": 0,
        "maxItems": LONGEST_LIST,
        "items": {"type": "boolean"},
    }
    assert value_of(list[list[str]])["items"]["maxItems"] == LONGEST_LIST // 2
    assert value_of(str, longest_text=7)["maxLength"] == 7
    assert value_of(list[str], longest_list=2)["maxItems"] == 2
    assert value_of(Annotated[str, Field(max_length=3)])["maxLength"] == 3
    assert value_of(Annotated[list[int], Field(max_length=2)])["maxItems"] == 2
    bounds = {"type": "integer", "minimum": 1, "maximum": 5}
    assert value_of(Annotated[int, Field(ge=1, le=5)]) == bounds


@pytest.mark.parametrize(
    ("pattern", "is_kept"),
    [
        *(
            (pattern, True)
            for pattern in (r"^\d{3}$", "[a-z]+", r"^(?P<a>x|y)?\.[^b]$", r"(?i)abc")
        ),
        *(
            (pattern, False)
            for pattern in (r"\bword", r"^(?=a)b", r"(a)\1", r"a\Z", "(?<!a)b", "a++")
        ),
    ],
)
def test_a_pattern_is_kept_if_a_grammar_can_express_it(pattern: str, is_kept: bool):
    properties = {"a": {"type": "string", "pattern": pattern}}
    made = bound_schema({"type": "object", "properties": properties})["properties"]["a"]
    assert made.get("pattern") == (pattern if is_kept else None)
    assert made["maxLength"] == LONGEST_TEXT


# --- recursion --------------------------------------------------------------------------------


@pytest.mark.parametrize("deepest", [1, 2, 4])
def test_a_recursive_type_is_nested_up_to_the_limit(deepest: int):
    schema = bound_schema(schema_of(Tree), deepest=deepest)
    level, found = 0, schema["properties"]["value"]
    while found is not None:
        level += 1
        tree = schema["$defs"][found["$ref"].rpartition("/")[2]]
        found = tree["properties"].get("twin", {}).get("anyOf", [None])[0]
    assert level == deepest


def test_a_type_that_always_contains_itself_is_refused():
    with pytest.raises(BaeLMError, match="of Asked: there is no value for value") as caught:
        bound_schema(schema_of(Node))
    assert caught.value.code == "bae-lm-schema-unbounded"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5},
        {"type": "string", "minLength": 5, "maxLength": 3},
        {"type": "array", "items": False, "minItems": 1},
        {"anyOf": []},
    ],
    ids=str,
)
def test_an_unfillable_field_is_named_and_an_optional_field_is_left_out(schema: Any):
    asked = {"type": "object", "properties": {"odd": schema, "even": {"type": "null"}}}
    with pytest.raises(BaeLMError, match="no value for odd"):
        bound_schema({**asked, "required": ["odd"]})
    assert list(bound_schema(asked)["properties"]) == ["even"]


@pytest.mark.parametrize("far", [10**17, -(10**17)])
def test_a_bounded_integer_range_has_many_values_far_from_zero(far: int):
    key = "minimum" if far > 0 else "maximum"
    asked = {"type": "object", "properties": {"id": {"type": "integer", key: far}}}
    found = bound_schema(asked)["properties"]["id"]
    assert found[key] == far
    assert found["maximum"] - found["minimum"] == LARGEST


# --- what the model is told -------------------------------------------------------------------


def test_an_outline_shows_types_bounds_and_field_descriptions():
    class Order(BaseModel):
        garment: str = Field(max_length=20, description="a specific\n  garment")
        size: Size
        count: int = Field(ge=1, le=123456789)
        share: float = Field(gt=0, lt=1)
        day: date
        tags: list[str] = Field(default=[], min_length=1, max_length=3)
        spot: tuple[int, bool]
        prices: dict[Size, int | None]
        pet: Annotated[Cat | Dog, Field(discriminator="kind")]
        tree: Tree

    assert outline(Order.model_json_schema()) == "\n".join(
        [
            "{",
            '  "garment": string (at most 20 characters; a specific garment),',
            '  "size": "S" | "L",',
            '  "count": integer (1 to 123456789),',
            '  "share": number (above 0; below 1),',
            '  "day": date,',
            '  "tags"?: [string, ...] (1 to 3 items),',
            '  "spot": [integer, true | false],',
            '  "prices": {"S" | "L": integer | null, ...},',
            '  "pet": {"kind": "cat", "lives": integer} | '
            '{"kind": "dog", "tricks": [string, ...]},',
            '  "tree": Tree',
            "}",
            'Tree: {"leaf": {"name": string, "size": integer (at least 1)}, '
            '"children"?: [Tree, ...], "twin"?: Tree | null}',
        ]
    )


def test_the_size_of_an_outline_is_linear_in_the_number_of_types():
    layer: Any = Leaf
    for number in range(30):
        layer = create_model(f"Layer{number}", left=(layer, ...), right=(layer, ...))
    assert len(outline(layer.model_json_schema())) < 5000

    one = [{"$ref": f"#/$defs/T{number}"} for number in range(12)]
    fields = {f"f{number}": reference for number, reference in enumerate(one)}
    each_in_each = {f"T{n}": {"type": "object", "properties": fields} for n in range(12)}
    outline_text = outline({"type": "object", "properties": {"a": one[0]}, "$defs": each_in_each})
    assert outline_text.startswith('{\n  "a"?: T0\n}\nT0: {"f0"?: T0, "f1"?: T1')
    assert len(outline_text) < 5000


def test_an_outline_shows_the_first_of_very_many_enum_values():
    names = [f"name-{number}" for number in range(3000)]
    schema = {"type": "object", "properties": {"a": {"enum": names}}, "required": ["a"]}
    outline_text = outline(schema)
    assert '"a": "name-0" | "name-1" | ' in outline_text
    assert outline_text.endswith(" …\n}")
    assert len(outline_text) < 1500
    few = outline({**schema, "properties": {"a": {"enum": names[:50]}}})
    assert '"name-49"\n}' in few


@pytest.mark.parametrize(
    "huge",
    [
        {"type": "string", "minLength": 10**8},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**8},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 10**8},
        {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "propertyNames": {"minLength": 10**8},
            "minProperties": 1,
        },
    ],
)
def test_a_schema_with_a_huge_minimum_size_is_refused(huge: dict[str, Any]):
    schema = {"type": "object", "properties": {"huge": huge}, "required": ["huge"]}
    with pytest.raises(BaeLMError, match="there is no value for huge") as caught:
        bound_schema(schema)
    assert caught.value.code == "bae-lm-schema-unbounded"
    assert "a size below 1,000,000" in str(caught.value)
