"""The JSON schema of an answer, and the way back: what fits it becomes the node it was made from,
with values of the declared types, whatever these types are."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    PrivateAttr,
    RootModel,
    Tag,
    ValidationInfo,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from typing_extensions import TypedDict

from bae import Dep, Graph, Map, Node
from bae.lm.prompts import asked_fields, choice_of, fill_prompt
from bae.lm.schemas import choice_schema, fill_schema
from toy_backend import ToyBackend, route

T = TypeVar("T")


class End(Node):
    async def __call__(self) -> None: ...


def node_of(**fields: Any) -> type[Node]:
    """A node class with these fields, which ends a run."""
    return create_model("Target", __base__=End, **fields)


def route_schema(options: dict[str, type[Node] | None]) -> dict[str, Any]:
    asked = {n: None if cls is None else (cls, asked_fields(cls)) for n, cls in options.items()}
    return choice_schema(asked)


def schema_of(cls: type[Node]) -> dict[str, Any]:
    return fill_schema(cls, asked_fields(cls))


async def filled(cls: type[Node], answer: dict[str, Any] | str, **resolved: Any) -> Any:
    """The node that one answer makes; a second one is not asked for."""
    return await ToyBackend(answer, attempts=0).fill(cls, resolved, cls.__name__)


# What is in a schema


class Colour(Enum):
    """DOC of an enum."""

    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    """DOC of a model."""

    name: str = Field(description="what it is called")


class Child(Inner):
    age: int = 0


class Box(BaseModel, Generic[T]):
    """DOC of a generic model."""

    inside: T


class Root(RootModel[list[int]]):
    """DOC of a root model."""


@dataclass
class Plain:
    """DOC of a dataclass."""

    name: str = ""


@pydantic_dataclass
class Checked:
    """DOC of a dataclass of pydantic's."""

    name: str = Field(default="", description="checked name")


class Typed(TypedDict):
    """DOC of a typed dict."""

    name: Annotated[str, Field(description="typed name")]


class Tupled(NamedTuple):
    """DOC of a named tuple."""

    name: str
    number: int = 0


class Tree(BaseModel):
    """DOC of a tree."""

    value: int
    below: list[Tree] = []


class Full(Node):
    """DOC of a node."""

    inner: Inner = Field(description="the inner one")
    child: Child
    colour: Colour = Field(description="which colour")
    box: Box[Inner]
    boxes: list[Box[Colour]]
    root: Root
    plain: Plain
    checked: Checked
    typed: Typed
    tupled: Tupled
    tree: Tree
    either: Inner | Plain | None
    text: str = Field(description="some text")

    async def __call__(self) -> End:
        """DOC of a method."""
        return End()


class Begin(Node):
    async def __call__(self) -> Full | End: ...


@pytest.mark.parametrize(
    "schema",
    [schema_of(Full), route_schema({"Full": Full, "End": None})],
    ids=["fill", "route"],
)
def test_no_docstring_is_in_a_schema_and_every_description_is(schema: dict[str, Any]):
    said = json.dumps(schema)

    assert "DOC" not in said
    for described in (
        "what it is called",
        "the inner one",
        "which colour",
        "checked name",
        "typed name",
        "some text",
    ):
        assert described in said


def test_a_description_that_says_what_a_docstring_says_stays():
    target = node_of(colour=(Colour, Field(description="DOC of an enum.")))

    assert schema_of(target)["properties"]["colour"]["description"] == "DOC of an enum."


def test_fields_named_title_and_description_are_fields():
    class Page(BaseModel):
        """A page."""

        title: str
        description: str = Field(description="A page.")

    said = schema_of(node_of(page=(Page, ...), title=(str, ...), description=(str, ...)))

    assert list(said["properties"]) == ["page", "title", "description"]
    assert said["$defs"]["Page"]["properties"] == {
        "title": {"type": "string"},
        "description": {"type": "string", "description": "A page."},
    }
    assert "description" not in said["$defs"]["Page"]


def test_a_schema_is_a_closed_object_with_titles_of_classes_alone():
    said = schema_of(node_of(inner=(Inner, ...), count=(int, 3)))

    assert (said["type"], said["additionalProperties"]) == ("object", False)
    assert said["required"] == ["inner"]
    assert said["properties"]["count"] == {"type": "integer", "default": 3}
    assert said["$defs"]["Inner"]["title"] == "Inner"
    assert "title" not in said["$defs"]["Inner"]["properties"]["name"]


def test_constraints_are_told():
    said = schema_of(
        node_of(
            text=(str, Field(min_length=2, max_length=5, pattern="^a")),
            number=(int, Field(gt=1, le=9, multiple_of=2)),
            several=(list[int], Field(min_length=1, max_length=3)),
        )
    )["properties"]

    assert said == {
        "text": {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^a"},
        "number": {"type": "integer", "exclusiveMinimum": 1, "maximum": 9, "multipleOf": 2},
        "several": {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 1,
            "maxItems": 3,
        },
    }


def test_fields_with_a_source_and_those_that_json_cannot_say_are_not_asked_for():
    class Client: ...

    class Mixed(Node):
        word: Annotated[str, Dep(lambda: "w")]
        items: list[int]
        doubled: Annotated[list[int], Map(abs, over="items")]
        client: Client | None = None
        kind: type[int] = int

        async def __call__(self) -> None: ...

    assert asked_fields(Mixed) == ("items",)
    assert list(schema_of(Mixed)["properties"]) == ["items"]


def test_two_models_of_one_name_are_told_apart():
    def make(kind: type) -> type[BaseModel]:
        return create_model("Twin", __module__=kind.__name__, value=(kind, ...))

    one, two = node_of(twin=(make(int), ...)), node_of(twin=(make(str), ...))
    said = route_schema({"One": one, "Two": two})
    branches = said["properties"]["answer"]["anyOf"]
    refs = [branch["properties"]["fields"]["properties"]["twin"]["$ref"] for branch in branches]
    kinds = [said["$defs"][ref.rpartition("/")[2]]["properties"]["value"]["type"] for ref in refs]

    assert kinds == ["integer", "string"]


def test_a_choice_is_an_enum_of_names_and_fields_come_with_those_that_can_be_filled():
    assert route_schema({"A": None, "None": None}) == {
        "type": "object",
        "title": "Choice",
        "properties": {"choice": {"type": "string", "enum": ["A", "None"]}},
        "required": ["choice"],
        "additionalProperties": False,
    }
    target = node_of(n=(int, ...))
    assert route_schema({"A": target, "None": None})["properties"]["answer"]["anyOf"] == [
        {
            "type": "object",
            "properties": {
                "choice": {"type": "string", "const": "A"},
                "fields": {
                    "type": "object",
                    "title": "A",
                    "properties": {"n": {"type": "integer"}},
                    "required": ["n"],
                    "additionalProperties": False,
                },
            },
            "required": ["choice", "fields"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"choice": {"type": "string", "const": "None"}},
            "required": ["choice"],
            "additionalProperties": False,
        },
    ]


def test_schemas_are_worked_out_once():
    first, second = (fill_prompt(Full, asked_fields(Full), {}, "Full", None) for _ in range(2))
    assert first.schema is second.schema
    assert choice_of((Full, Node), (Full,)) is choice_of((Full, Node), (Full,))


# The way back: types


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mood(StrEnum):
    CALM = "calm"
    WILD = "wild"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


class Red(BaseModel):
    """A model with fields named as parts of schemas are."""

    kind: Literal[Mood.CALM]
    default: Literal[Mood.CALM, Level.LOW] = Mood.CALM
    config: dict[str, Literal[Mood.CALM]] = {}
    fields: list[Literal[Mood.WILD]] = []
    type: int = 0


class Blue(BaseModel):
    kind: Literal[Mood.WILD]
    below: list[Red | Blue] = []


class Aliased(BaseModel):
    deep: int = Field(alias="deepAlias")
    choices: int = Field(default=0, validation_alias=AliasChoices("first", "second"))


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    colour: Colour
    pair: tuple[int, int] = (0, 0)
    tags: frozenset[str] = frozenset()


class Encoded(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Opaque:
    """A type with a reading of its own, that takes nothing but itself from Python."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_after_validator_function(cls, core_schema.int_schema()),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda opaque: opaque.number, return_schema=core_schema.int_schema()
            ),
        )


def _kind(value: Any) -> str:
    return value.get("kind") if isinstance(value, dict) else value.kind


TYPES: list[tuple[str, Any, Any]] = [
    ("text", str, "größe"),
    ("bool", bool, True),
    ("none", int | None, None),
    ("big", int, 10**30),
    ("float", float, 0.1),
    ("date", date, date(2024, 2, 29)),
    ("datetime", datetime, datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)),
    ("naive", datetime, datetime(2024, 2, 29, 12, 30)),
    ("time", time, time(12, 30)),
    ("timedelta", timedelta, timedelta(days=1, seconds=5, microseconds=3)),
    ("uuid", UUID, UUID(int=7)),
    ("decimal", Decimal, Decimal("1.10")),
    ("url", AnyUrl, AnyUrl("https://example.com/a?b=c")),
    ("bytes", bytes, b"abc"),
    ("path", Path, Path("a/b")),
    ("ip", IPv4Address, IPv4Address("10.0.0.1")),
    ("fraction", Fraction, Fraction(1, 3)),
    ("enum", Colour, Colour.BLUE),
    ("int enum", Level, Level.HIGH),
    ("str enum", Mood, Mood.WILD),
    ("literal", Literal["a", 1, True, None], 1),
    ("literal enum", Literal[Mood.CALM, Level.HIGH], Level.HIGH),
    ("literal enums", list[Literal[Mood.CALM]] | None, [Mood.CALM]),
    (
        "literal enums below",
        Blue,
        Blue(
            kind=Mood.WILD,
            below=[
                Red(kind=Mood.CALM, config={"a": Mood.CALM}, fields=[Mood.WILD]),
                Blue(kind=Mood.WILD),
            ],
        ),
    ),
    (
        "literal enum discriminator",
        list[Annotated[Red | Blue, Field(discriminator="kind")]],
        [Blue(kind=Mood.WILD), Red(kind=Mood.CALM, default=Level.LOW)],
    ),
    ("literal enum keys", dict[Literal[Mood.CALM], int], {Mood.CALM: 1}),
    ("set", set[int], {1, 2}),
    ("frozenset", frozenset[Mood], frozenset({Mood.CALM})),
    ("tuple", tuple[int, str, date], (1, "a", date(2024, 1, 1))),
    ("tuples", tuple[Colour, ...], (Colour.RED, Colour.BLUE)),
    ("deque", deque[int], deque([1, 2])),
    ("dict", dict[str, Inner], {"a": Inner(name="x")}),
    ("int keys", dict[int, str], {1: "a"}),
    ("date keys", dict[date, int], {date(2024, 1, 1): 1}),
    ("enum keys", dict[Colour, int], {Colour.RED: 1}),
    ("int enum keys", dict[Level, int], {Level.LOW: 1}),
    ("named tuple", Tupled, Tupled("a", 2)),
    ("named tuples", list[Tupled], [Tupled("a", 2), Tupled("b")]),
    ("dataclass", Plain, Plain("a")),
    ("pydantic dataclass", Checked, Checked("a")),
    ("typed dict", Typed, {"name": "a"}),
    ("model", Inner, Inner(name="a")),
    ("models", list[Inner] | None, [Inner(name="a")]),
    ("subclass first", Child | Inner, Child(name="a", age=3)),
    ("union", int | str | list[date], [date(2024, 1, 1)]),
    ("smart union", int | str, "1"),
    ("discriminated", Annotated[Cat | Dog, Field(discriminator="kind")], Dog(good=False)),
    (
        "callable discriminator",
        list[
            Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(_kind)]
        ],
        [Cat(lives=1), Dog()],
    ),
    ("generic", Box[list[Inner]], Box[list[Inner]](inside=[Inner(name="a")])),
    ("recursive", Tree, Tree(value=1, below=[Tree(value=2, below=[Tree(value=3)])])),
    ("root", Root, Root([1, 2])),
    ("frozen", set[Frozen], {Frozen(name="a")}),
    ("nested alias", Aliased, Aliased(deepAlias=3, first=4)),
    ("strict model", Strict, Strict(day=date(2024, 1, 1), colour=Colour.RED, pair=(1, 2))),
    ("strict field", Annotated[date, Field(strict=True)], date(2024, 1, 1)),
    ("strict models", dict[str, list[Strict]], {"a": [Strict(day=date.min, colour=Colour.RED)]}),
    ("base64", Encoded, Encoded(data=b"\xff\x00")),
    ("opaque", Opaque, Opaque(3)),
    ("opaques", dict[str, Opaque | None], {"a": Opaque(3), "b": None}),
]


def as_answered(cls: type[Node], node: Node) -> dict[str, Any]:
    """The plain fields of a node as a model would answer them: the node's own names at the top,
    and below them what the schema says."""
    said = node.model_dump(mode="json", by_alias=True)
    fields = cls.__pydantic_fields__
    return {name: said[fields[name].alias or name] for name in asked_fields(cls)}


def with_first_alias(value: Any) -> Any:
    """Dumping knows nothing of aliases that are for reading alone; the schema names the first."""
    if isinstance(value, dict):
        named = {"choices": "first"} if "deepAlias" in value else {}
        return {named.get(key, key): with_first_alias(each) for key, each in value.items()}
    return [with_first_alias(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("strict", [False, True], ids=["lax", "strict"])
@pytest.mark.parametrize(
    ("annotation", "value"), [each[1:] for each in TYPES], ids=[each[0] for each in TYPES]
)
async def test_a_value_comes_back_as_what_it_was(annotation: Any, value: Any, strict: bool):
    target = create_model(
        "Target",
        __base__=type("Base", (End,), {"model_config": ConfigDict(strict=strict)}),
        value=(annotation, ...),
    )
    node = target(value=value)
    answer = with_first_alias(as_answered(target, node))
    back = await filled(target, json.loads(json.dumps(answer)))

    assert back == node
    assert type(back.value) is type(node.value)
    assert schema_of(target)["required"] == ["value"]


async def test_everything_at_once_comes_back_as_instances():
    target = node_of(**{f"f{i}": (each[1], ...) for i, each in enumerate(TYPES)})
    node = target(**{f"f{i}": each[2] for i, each in enumerate(TYPES)})
    back = await filled(target, with_first_alias(as_answered(target, node)))

    assert back == node
    assert [type(value) for value in dict(back).values()] == [
        type(value) for value in dict(node).values()
    ]


async def test_what_is_filled_with_the_choice_comes_back_the_same():
    node = Full(
        inner=Inner(name="a"),
        child=Child(name="b"),
        colour=Colour.RED,
        box=Box[Inner](inside=Inner(name="c")),
        boxes=[Box[Colour](inside=Colour.BLUE)],
        root=Root([1]),
        plain=Plain("d"),
        checked=Checked("e"),
        typed={"name": "f"},
        tupled=Tupled("g", 1),
        tree=Tree(value=1, below=[Tree(value=2)]),
        either=None,
        text="h",
    )
    lm = ToyBackend(route("Full", **as_answered(Full, node)))
    result = await Graph(start=Begin).arun(Begin(), lm)

    assert result.trace[1] == node
    assert lm.calls == 1


ANY_DATE = st.dates()
NODES = {
    "words": (list[str], st.lists(st.text(max_size=5), max_size=3)),
    "day": (date, ANY_DATE),
    "moment": (datetime, st.datetimes(timezones=st.just(UTC))),
    "span": (
        timedelta,
        st.timedeltas(min_value=timedelta(days=-999), max_value=timedelta(days=999)),
    ),
    "number": (float, st.floats(allow_nan=False, allow_infinity=False)),
    "whole": (int, st.integers()),
    "exact": (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=3)),
    "id": (UUID, st.uuids()),
    "colours": (set[Colour], st.sets(st.sampled_from(Colour))),
    "levels": (dict[Level, date], st.dictionaries(st.sampled_from(Level), ANY_DATE)),
    "pairs": (
        list[tuple[int, date]],
        st.lists(st.tuples(st.integers(), ANY_DATE), max_size=3),
    ),
    "tupled": (Tupled, st.builds(Tupled, st.text(max_size=4), st.integers())),
    "plain": (Plain, st.builds(Plain, st.text(max_size=4))),
    "pet": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        st.builds(Cat, kind=st.just("cat"), lives=st.integers())
        | st.builds(Dog, kind=st.just("dog"), good=st.booleans()),
    ),
    "tree": (
        Tree,
        st.recursive(
            st.builds(Tree, value=st.integers(), below=st.just([])),
            lambda below: st.builds(Tree, value=st.integers(), below=st.lists(below, max_size=3)),
            max_leaves=5,
        ),
    ),
    "strict": (
        Strict,
        st.builds(
            Strict,
            day=ANY_DATE,
            colour=st.sampled_from(Colour),
            pair=st.tuples(st.integers(), st.integers()),
            tags=st.frozensets(st.text(max_size=3), max_size=3),
        ),
    ),
    "maybe": (Inner | None, st.none() | st.builds(Inner, name=st.text(max_size=4))),
    "opaque": (Opaque, st.builds(Opaque, st.integers())),
}


@settings(deadline=None, max_examples=120)
@given(st.data())
async def test_any_node_comes_back_from_its_own_answer(data: Any):
    names = data.draw(st.sets(st.sampled_from(sorted(NODES)), min_size=1).map(sorted))
    strict = data.draw(st.booleans())
    aliased = data.draw(st.booleans())
    base = type("Base", (End,), {"model_config": ConfigDict(strict=strict)})
    fields: dict[str, Any] = {}
    for i, name in enumerate(names):
        # Aliases that are names of other fields: they must not be taken for these.
        alias = {"alias": names[i - 1]} if aliased and len(names) > 1 else {}
        fields[name] = (NODES[name][0], Field(**alias))
    target = create_model("Target", __base__=base, **fields)
    values = {name: data.draw(NODES[name][1], label=name) for name in names}
    by_alias = {target.__pydantic_fields__[name].alias or name: values[name] for name in names}
    node = target(**by_alias)
    back = await filled(target, json.loads(json.dumps(as_answered(target, node))))

    assert back == node


# The way back: aliases


async def test_a_node_is_asked_for_by_the_names_of_its_fields_and_never_by_their_aliases():
    target = node_of(
        one=(int, Field(alias="two")),
        two=(int, Field(alias="one")),
        three=(int, Field(validation_alias=AliasChoices("four", "five"))),
    )
    lm = ToyBackend({"one": 1, "two": 2, "three": 3})
    node: Any = await lm.fill(target, {}, "Target")

    assert list(lm.prompts[0].schema["properties"]) == ["one", "two", "three"]
    assert (node.one, node.two, node.three) == (1, 2, 3)


async def test_a_fault_in_a_field_with_an_alias_is_told_by_its_name_and_asked_for_alone():
    target = node_of(one=(int, Field(alias="uno")), two=(int, Field(alias="dos")))
    lm = ToyBackend({"one": "x", "two": 2}, {"one": 1})
    node: Any = await lm.fill(target, {}, "Target")

    assert (node.one, node.two) == (1, 2)
    assert lm.prompts[1].question.fields == ("one",)
    assert "- one: Input should be a valid integer" in lm.prompts[1].turns[0].correction
    assert "uno" not in lm.prompts[1].flat()


# The way back: defaults and keys that nobody asked for


async def test_what_is_left_out_has_its_default():
    made = []
    target = node_of(
        a=(int, 3),
        b=(list[int], Field(default_factory=list)),
        c=(date, Field(default="2024-01-01", validate_default=True, strict=True)),
        d=(str, Field(default_factory=lambda data: made.append(data) or "d")),
    )
    node: Any = await filled(target, {})

    assert (node.a, node.b, node.c, node.d) == (3, [], date(2024, 1, 1), "d")
    assert len(made) == 1
    assert node.model_fields_set == set()


@pytest.mark.parametrize("extra", ["ignore", "allow", "forbid"])
async def test_keys_that_nobody_asked_for_are_left_out(extra: Any):
    class Careful(Node):
        model_config = ConfigDict(extra=extra)
        word: Annotated[str, Dep(lambda: "resolved")]
        items: list[int]
        doubled: Annotated[list[int], Map(abs, over="items")]

        async def __call__(self) -> None: ...

    answer = {"items": [1], "word": "mine", "doubled": [7], "more": 1, "__class__": "x"}
    node = await filled(Careful, answer, word="resolved")

    assert (node.word, node.items, node.model_extra or {}) == ("resolved", [1], {})
    assert "doubled" not in node.__dict__


async def test_a_key_by_the_alias_of_a_resolved_field_does_not_override_it():
    class Careful(Node):
        word: Annotated[str, Dep(lambda: "resolved")] = Field(alias="text")
        text: str = Field(alias="word")

        async def __call__(self) -> None: ...

    node = await filled(Careful, {"text": "mine", "word": "nobody's"}, word="resolved")

    assert (node.word, node.text) == ("resolved", "mine")


# The way back: a model's own code


@pytest.mark.parametrize("strict", [False, True], ids=["lax", "strict"])
async def test_every_kind_of_validator_runs_once(strict: bool):
    calls: list[str] = []

    def note(name: str, change: Any = lambda value: value) -> Any:
        def validate(value: Any) -> Any:
            calls.append(name)
            return change(value)

        return validate

    def around(value: Any, handler: Any) -> Any:
        calls.append("wrap")
        return handler(value) + 1

    class Checks(Node):
        model_config = ConfigDict(strict=strict)
        before: Annotated[int, BeforeValidator(note("before", lambda v: v + 1))]
        after: Annotated[int, AfterValidator(note("after", lambda v: v * 2))]
        wrap: Annotated[int, WrapValidator(around)]
        plain: Annotated[str, PlainValidator(note("plain", str), json_schema_input_type=int)]
        each: list[Annotated[int, AfterValidator(note("each", lambda v: v * 2))]]
        day: date

        @field_validator("day")
        @classmethod
        def looks_around(cls, day: date, info: ValidationInfo) -> date:
            calls.append(f"info {sorted(info.data)}")
            return day + timedelta(days=1)

        @model_validator(mode="before")
        @classmethod
        def first(cls, values: dict[str, Any]) -> dict[str, Any]:
            calls.append(f"model before {values['day']!r}")
            return values

        @model_validator(mode="wrap")
        @classmethod
        def outside(cls, values: Any, handler: Any) -> Any:
            calls.append("model wrap")
            return handler(values)

        @model_validator(mode="after")
        def last(self) -> Checks:
            calls.append("model after")
            return self

        async def __call__(self) -> None: ...

    answer = {"before": 1, "after": 1, "wrap": 1, "plain": 1, "each": [1, 2], "day": "2024-01-01"}
    node = await filled(Checks, answer)

    assert dict(node) == {
        "before": 2,
        "after": 2,
        "wrap": 2,
        "plain": "1",
        "each": [2, 4],
        "day": date(2024, 1, 2),
    }
    assert sorted(calls) == sorted(
        [
            "model wrap",
            "model before '2024-01-01'",
            "before",
            "after",
            "wrap",
            "plain",
            "each",
            "each",
            "info ['after', 'before', 'each', 'plain', 'wrap']",
            "model after",
        ]
    )


async def test_a_validator_before_the_model_may_put_python_values_where_json_is_read():
    class Split(Node):
        model_config = ConfigDict(strict=True)
        start: date
        end: date

        @model_validator(mode="before")
        @classmethod
        def split(cls, values: dict[str, Any]) -> dict[str, Any]:
            start, _, end = values["start"].partition("/")
            return {"start": date.fromisoformat(start), "end": end or values["end"]}

        async def __call__(self) -> None: ...

    node = await filled(Split, {"start": "2024-01-01/2024-01-02"})

    assert (node.start, node.end) == (date(2024, 1, 1), date(2024, 1, 2))


async def test_a_strict_node_with_resolved_fields_and_maps_is_filled_and_completed():
    day = date(2024, 1, 1)

    def get_day() -> date:
        return day

    def double(number: int) -> int:
        return number * 2

    class Begins(Node):
        async def __call__(self) -> Whole: ...

    class Whole(Node):
        model_config = ConfigDict(strict=True)
        seen: Annotated[date, Dep(get_day)]
        until: date
        numbers: tuple[int, ...]
        doubled: Annotated[list[int], Map(double, over="numbers")]
        _private: list[str] = PrivateAttr(default_factory=list)

        def model_post_init(self, context: Any) -> None:
            self._private.append("made")

        @model_validator(mode="after")
        def in_order(self) -> Whole:
            assert self.seen <= self.until
            assert len(self.doubled) == len(self.numbers)
            return self

        async def __call__(self) -> None: ...

    lm = ToyBackend({"until": "x", "numbers": [1, 2]}, {"until": "2024-02-01"})
    result = await Graph(start=Begins).arun(Begins(), lm)
    node = result.trace[-1]

    assert dict(node) == {
        "seen": day,
        "until": date(2024, 2, 1),
        "numbers": (1, 2),
        "doubled": [2, 4],
    }
    assert node._private == ["made"]
    assert lm.prompts[1].question.fields == ("until",)


async def test_private_attributes_of_a_strict_node_are_made():
    class Secretive(Node):
        model_config = ConfigDict(strict=True)
        day: date
        _seen: list[int] = PrivateAttr(default_factory=lambda: [1])

        async def __call__(self) -> None: ...

    node = await filled(Secretive, {"day": "2024-01-01"})

    assert (node._seen, node.model_fields_set) == ([1], {"day"})


async def test_a_recursive_strict_node_is_filled():
    class Branch(Node):
        model_config = ConfigDict(strict=True)
        day: date
        below: Branch | None = None

        async def __call__(self) -> None: ...

    node = await filled(Branch, {"day": "2024-01-01", "below": {"day": "2024-01-02"}})

    assert type(node.below) is Branch
    assert node.below.day == date(2024, 1, 2)


async def test_a_frozen_node_is_filled():
    class Solid(Node):
        model_config = ConfigDict(frozen=True)
        day: date

        async def __call__(self) -> None: ...

    node = await filled(Solid, {"day": "2024-01-01"})

    assert hash(node) == hash(Solid(day=date(2024, 1, 1)))


async def test_a_constructor_of_the_nodes_own_is_called():
    class Counts(Node):
        number: int

        def __init__(self, **values: Any) -> None:
            super().__init__(**{**values, "number": values["number"] + 1})

        async def __call__(self) -> None: ...

    assert (await filled(Counts, {"number": 1})).number == 2


# Every type of the table is one that a schema can say


@pytest.mark.parametrize("annotation", [each[1] for each in TYPES], ids=[each[0] for each in TYPES])
def test_a_field_has_the_schema_that_pydantic_gives_it_less_docstrings(annotation: Any):
    target = node_of(value=(annotation, ...))
    plain = create_model("Target", value=(annotation, ...))
    theirs = plain.model_json_schema(schema_generator=GenerateJsonSchema)["properties"]["value"]
    ours = schema_of(target)["properties"]["value"]

    for told in (theirs, ours):
        told.pop("title", None)
        told.pop("description", None)
    assert without_docs(ours) == without_docs(theirs)


def without_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_docs(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_docs(each)
        for key, each in schema.items()
        if key not in ("title", "description")
    }


class Either(Node):
    when: date | str
    who: UUID | str | int
    long: timedelta | str
    raw: bytes | str

    async def __call__(self) -> None: ...


async def test_a_union_takes_an_answer_as_it_would_from_json():
    said = {
        "when": "2024-01-01",
        "who": "12345678-1234-5678-1234-567812345678",
        "long": "PT1H",
        "raw": "text",
    }
    node = await ToyBackend(said).make(Either(**said), Either)

    assert node == Either.model_validate_json(json.dumps(said))
    assert (type(node.when), type(node.who), type(node.long)) == (date, UUID, timedelta)
