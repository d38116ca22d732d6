"""The JSON schema of an answer, and the way back: what fits it becomes the node it was made from,
with values of the declared types, whatever these types are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    ValidationInfo,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import core_schema
from typing_extensions import TypedDict

from bae import Dep, Graph, Map, Node
from bae.prompts.schemas import choice_schema, fill_schema
from bae.prompts.values import list_fields_to_fill
from end_node import EndNode
from toy_backend import ToyBackend

T = TypeVar("T")


class End(Node):
    async def __call__(self) -> None: ...


def node_of(**fields: Any) -> type[Node]:
    """A node class with these fields, which ends a run."""
    return create_model("Target", __base__=End, **fields)


def route_schema(options: dict[str, type[Node] | None]) -> dict[str, Any]:
    asked = {
        n: None if cls is None else (cls, list_fields_to_fill(cls)) for n, cls in options.items()
    }
    return choice_schema(asked)


def schema_of(cls: type[Node]) -> dict[str, Any]:
    return fill_schema(cls, list_fields_to_fill(cls))


async def fill_node(cls: type[Node], answer: dict[str, Any] | str, **resolved: Any) -> Any:
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


@pytest.mark.parametrize(
    "schema",
    [schema_of(Full), route_schema({"Full": Full, "End": None})],
    ids=["fill", "route"],
)
def test_a_schema_has_every_description_and_no_docstring(schema: dict[str, Any]):
    schema_text = json.dumps(schema)

    assert "DOC" not in schema_text
    told = ("what it is called", "the inner one", "which colour", "checked name", "typed name")
    assert all(described in schema_text for described in (*told, "some text"))


def test_a_schema_is_a_closed_object_without_field_titles():
    class Page(BaseModel):
        """A page."""

        title: str
        description: str = Field(description="A page.")

    schema_text = schema_of(node_of(page=(Page, ...), title=(str, ...), count=(int, 3)))

    assert (schema_text["type"], schema_text["additionalProperties"]) == ("object", False)
    assert schema_text["required"] == ["page", "title"]
    assert schema_text["properties"]["count"] == {"type": "integer", "default": 3}
    page = schema_text["$defs"]["Page"]
    assert page["title"] == "Page"
    assert "description" not in page
    assert page["properties"] == {  # fields of these names are fields
        "title": {"type": "string"},
        "description": {"type": "string", "description": "A page."},
    }


def test_a_choice_schema_is_an_enum_of_class_names():
    assert route_schema({"A": None, "None": None}) == {
        "type": "object",
        "title": "Choice",
        "properties": {"choice": {"type": "string", "enum": ["A", "None"]}},
        "required": ["choice"],
        "additionalProperties": False,
    }
    target = node_of(n=(int, ...))
    options = route_schema({"A": target, "None": None})["properties"]["answer"]["anyOf"]
    closed = {"type": "object", "additionalProperties": False}
    asked = {"title": "A", "properties": {"n": {"type": "integer"}}, "required": ["n"], **closed}
    assert options == [
        {
            "properties": {"choice": {"type": "string", "const": "A"}, "fields": asked},
            "required": ["choice", "fields"],
            **closed,
        },
        {
            "properties": {"choice": {"type": "string", "const": "None"}},
            "required": ["choice"],
            **closed,
        },
    ]


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


class Aliased(BaseModel):
    deep: int = Field(alias="deepAlias")
    choices: int = Field(default=0, validation_alias=AliasChoices("first", "second"))


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


TYPES: list[tuple[str, Any, Any]] = [
    ("big", int, 10**30),
    ("date", date, date(2024, 2, 29)),
    ("datetime", datetime, datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)),
    ("decimal", Decimal, Decimal("1.10")),
    ("bytes", bytes, b"abc"),
    ("enum", Colour, Colour.BLUE),
    ("literal", Literal["a", 1, True, None], 1),
    ("literal enum", Literal[Mood.CALM, Level.HIGH], Level.HIGH),
    ("literal enum keys", dict[Literal[Mood.CALM], int], {Mood.CALM: 1}),
    ("set", set[int], {1, 2}),
    ("tuple", tuple[int, str, date], (1, "a", date(2024, 1, 1))),
    ("dict", dict[str, Inner], {"a": Inner(name="x")}),
    ("int keys", dict[int, str], {1: "a"}),
    ("named tuple", Tupled, Tupled("a", 2)),
    ("dataclass", Plain, Plain("a")),
    ("typed dict", Typed, {"name": "a"}),
    ("subclass first", Child | Inner, Child(name="a", age=3)),
    ("union", int | str | list[date], [date(2024, 1, 1)]),
    ("discriminated", Annotated[Cat | Dog, Field(discriminator="kind")], Dog(good=False)),
    ("generic", Box[list[Inner]], Box[list[Inner]](inside=[Inner(name="a")])),
    ("recursive", Tree, Tree(value=1, below=[Tree(value=2, below=[Tree(value=3)])])),
    ("nested alias", Aliased, Aliased(deepAlias=3, first=4)),
    ("strict model", Strict, Strict(day=date(2024, 1, 1), colour=Colour.RED, pair=(1, 2))),
    ("strict field", Annotated[date, Field(strict=True)], date(2024, 1, 1)),
    ("base64", Encoded, Encoded(data=b"\xff\x00")),
    ("opaque", Opaque, Opaque(3)),
]


def as_answered(cls: type[Node], node: Node) -> dict[str, Any]:
    """The plain fields of a node as a model would answer them: the node's own names at the top,
    and below them what the schema says."""
    said = node.model_dump(mode="json", by_alias=True)
    fields = cls.__pydantic_fields__
    return {name: said[fields[name].alias or name] for name in list_fields_to_fill(cls)}


def with_first_alias(value: Any) -> Any:
    """Dumping knows nothing of aliases that are for reading alone; the schema names the first."""
    if isinstance(value, dict):
        named = {"choices": "first"} if "deepAlias" in value else {}
        return {named.get(key, key): with_first_alias(item) for key, item in value.items()}
    return [with_first_alias(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("strict", [False, True], ids=["lax", "strict"])
@pytest.mark.parametrize(
    ("annotation", "value"), [case[1:] for case in TYPES], ids=[case[0] for case in TYPES]
)
async def test_a_value_is_read_back_unchanged(annotation: Any, value: Any, strict: bool):
    target = create_model(
        "Target",
        __base__=type("Base", (End,), {"model_config": ConfigDict(strict=strict)}),
        value=(annotation, ...),
    )
    node = target(value=value)
    answer = with_first_alias(as_answered(target, node))
    back = await fill_node(target, json.loads(json.dumps(answer)))

    assert back == node
    assert type(back.value) is type(node.value)
    assert schema_of(target)["required"] == ["value"]


# The way back: aliases


async def test_a_schema_uses_field_names_instead_of_aliases():
    target = node_of(
        one=(int, Field(alias="two")),
        two=(int, Field(alias="one")),
        three=(int, Field(validation_alias=AliasChoices("four", "five"))),
    )
    lm = ToyBackend({"one": 1, "two": "x", "three": 3}, {"two": 2})
    node: Any = await lm.fill(target, {}, "Target")

    assert list(lm.prompts[0].schema["properties"]) == ["one", "two", "three"]
    assert (node.one, node.two, node.three) == (1, 2, 3)
    assert lm.prompts[1].question.fields == ("two",)
    assert "- two: Input should be a valid integer" in lm.prompts[1].corrections[0].correction


# The way back: defaults and keys that nobody asked for


async def test_an_omitted_field_has_its_default():
    made = []
    target = node_of(
        a=(int, 3),
        b=(list[int], Field(default_factory=list)),
        c=(date, Field(default="2024-01-01", validate_default=True, strict=True)),
        d=(str, Field(default_factory=lambda data: made.append(data) or "d")),
    )
    node: Any = await fill_node(target, {})

    assert (node.a, node.b, node.c, node.d) == (3, [], date(2024, 1, 1), "d")
    assert len(made) == 1
    assert node.model_fields_set == set()


@pytest.mark.parametrize("extra", ["ignore", "allow", "forbid"])
async def test_unrequested_keys_are_left_out(extra: Any):
    class Careful(EndNode):
        model_config = ConfigDict(extra=extra)
        word: Annotated[str, Dep(lambda: "resolved")]
        items: list[int]
        doubled: Annotated[list[int], Map(abs, over="items")]

    answer = {"items": [1], "word": "mine", "doubled": [7], "more": 1, "__class__": "x"}
    node = await fill_node(Careful, answer, word="resolved")

    assert (node.word, node.items, node.model_extra or {}) == ("resolved", [1], {})
    assert "doubled" not in node.__dict__


async def test_the_alias_of_a_resolved_field_cannot_override_it():
    class Careful(EndNode):
        word: Annotated[str, Dep(lambda: "resolved")] = Field(alias="text")
        text: str = Field(alias="word")

    node = await fill_node(Careful, {"text": "mine", "word": "nobody's"}, word="resolved")

    assert (node.word, node.text) == ("resolved", "mine")


# The way back: a model's own code


@pytest.mark.parametrize("strict", [False, True], ids=["lax", "strict"])
async def test_every_kind_of_validator_runs_once(strict: bool):
    calls: list[str] = []

    def add_one(value: int) -> int:
        calls.append("add one")
        return value + 1

    def around(value: Any, handler: Any) -> Any:
        return add_one(handler(value))

    class Checks(EndNode):
        model_config = ConfigDict(strict=strict)
        before: Annotated[int, BeforeValidator(add_one)]
        after: Annotated[int, AfterValidator(add_one)]
        wrap: Annotated[int, WrapValidator(around)]
        each: list[Annotated[int, AfterValidator(add_one)]]
        day: date

        @field_validator("day")
        @classmethod
        def looks_around(cls, day: date, info: ValidationInfo) -> date:
            return day + timedelta(days=info.data["after"])

        @model_validator(mode="before")
        @classmethod
        def first(cls, values: dict[str, Any]) -> dict[str, Any]:
            calls.append(f"model before {values['day']!r}")
            return values

        @model_validator(mode="after")
        def last(self) -> Checks:
            calls.append("model after")
            return self

    answer = {"before": 1, "after": 1, "wrap": 1, "each": [1, 2], "day": "2024-01-01"}
    node = await fill_node(Checks, answer)

    wanted = {"before": 2, "after": 2, "wrap": 2, "each": [2, 3], "day": date(2024, 1, 3)}
    assert dict(node) == wanted
    assert calls == ["model before '2024-01-01'", *["add one"] * 5, "model after"]


async def test_a_strict_node_with_resolved_fields_and_maps_can_be_filled():
    day = date(2024, 1, 1)

    def get_day() -> date:
        return day

    def double(number: int) -> int:
        return number * 2

    class Begins(Node):
        async def __call__(self) -> Whole: ...

    class Whole(EndNode):
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
