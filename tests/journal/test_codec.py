"""Values in a journal: a value is stored completely through its declared type, or refused. Types
without a JSON form are live, secrets are recognized, and no value is stored in part."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ImportString,
    PlainSerializer,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema, from_json
from typing_extensions import TypeAliasType

from bae.journal.codec import Unkeepable, same, value_codec
from journal_graphs import Client
from naming import describe_value, shortly

T = TypeVar("T")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


class Animal(BaseModel):
    name: str


class Dog(Animal):
    tricks: int = 2


class Cat(BaseModel):
    kind: Literal["cat"] = Field("cat", alias="Kind")
    lives: int


class Cow(BaseModel):
    kind: Literal["cow"] = Field("cow", alias="Kind")
    lives: int


class Aliased(BaseModel):
    x: int = Field(alias="X")
    y: int = Field(1, validation_alias="Y", serialization_alias="why")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    x: int


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    day: dt.date
    pair: tuple[int, ...]
    some: set[int]
    colour: Colour


class Growing(BaseModel):
    n: int

    @model_validator(mode="after")
    def grow(self) -> Growing:
        self.n += 1
        return self


class Weighed(BaseModel):
    kg: int

    @field_validator("kg", mode="before")
    @classmethod
    def parsed(cls, value: Any) -> int:
        return int(value.removesuffix("kg"))  # takes nothing but text


class Tree(BaseModel):
    value: int
    below: list[Tree] = []


class Box(BaseModel, Generic[T]):
    held: T


class Sealed(BaseModel, Generic[T]):
    """Says how its bytes and numbers are written, without which JSON has no place for some."""

    model_config = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )

    held: T


class Hidden(BaseModel):
    name: str
    token: str = Field(repr=False)


@dataclasses.dataclass
class Point:
    x: int
    more: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Point3(Point):
    z: int = 1


@dataclasses.dataclass
class Covered:
    key: str = dataclasses.field(repr=False)


class Own:
    """A custom class that defines how pydantic reads and writes it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    __hash__ = None

    def __str__(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value),
            core_schema.is_instance_schema(cls),
            serialization=core_schema.to_string_ser_schema(),
        )


Nested = TypeAliasType("Nested", "dict[str, Nested] | list[Nested] | int | str")


def there_and_back(declared: Any, value: Any) -> Any:
    codec = value_codec(declared)
    return codec.load(from_json(codec.dump(value)))


KEPT: list[tuple[Any, Any]] = [
    (dt.datetime, dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))),
    (Animal | Dog, Dog(name="a", tricks=3)),
    (Annotated[Cat | Cow, Field(discriminator="kind")], Cow(Kind="cow", lives=1)),
    (Aliased, Aliased(X=1, Y=3)),
    (Open, Open(x=1, more=[2])),
    (Strict, Strict(day=dt.date(2024, 1, 1), pair=(1,), some={1}, colour=Colour.RED)),
    (Box[Animal], Box[Animal](held=Animal(name="a"))),
    (Own, Own("a")),
    (collections.defaultdict[str, int], collections.defaultdict(int, a=1)),
    (Nested, {"a": [1, {"b": "x"}]}),
]


@pytest.mark.parametrize(("declared", "value"), KEPT, ids=shortly)
def test_a_value_of_its_declared_type_reads_back_unchanged(declared: Any, value: Any) -> None:
    assert value_codec(declared).verdict == "keep"
    assert same(there_and_back(declared, value), value)


class Text(str):
    """A text with more to it."""


class Row(list[int]):
    pass


REFUSED: list[tuple[Any, Any]] = [
    (Animal, Dog(name="a")),
    (Box[Animal], Box[Animal](held=Dog(name="a"))),
    (Animal, Animal.model_construct(name=5)),
    (Point, Point3(1)),
    (dt.date, dt.datetime(2024, 1, 1)),
    (str, Text("a")),
    (Any, (1, 2)),
    (Any, Client()),
    (dict[int | str, int], {1: 1, "1": 2}),
    (collections.defaultdict[str, int], collections.defaultdict(lambda: 7, a=1)),
    (str, "half a character: \ud800"),
    # What JSON, or pydantic, does not tell apart or takes no part of.
    (dt.datetime, dt.datetime(2024, 6, 1, tzinfo=BERLIN)),
    (dt.datetime, dt.datetime(2024, 10, 27, 2, 30, fold=1)),
    # What a model's own code does not do twice.
    (Growing, Growing(n=1)),
    (Weighed, Weighed(kg="5kg")),
    (Annotated[dt.date, PlainSerializer(lambda day: "some day")], dt.date(2024, 1, 1)),
]


@pytest.mark.parametrize(("declared", "value"), REFUSED, ids=shortly)
def test_a_value_that_would_read_back_changed_is_refused(declared: Any, value: Any) -> None:
    with pytest.raises(Unkeepable) as refused:
        value_codec(declared).dump(value)
    assert str(refused.value)


@pytest.mark.parametrize(
    ("declared", "value", "said"),
    [
        (list[Animal], [Animal(name="a"), Dog(name="b")], "[1]: a Dog reads back as a Animal"),
        (Box[str], Box[str].model_construct(held=Word.YES), ".held: a Word reads back as a str"),
        (dict[str, Any], {"a": (1,)}, "['a']: a tuple reads back as a list"),
        (Point, Point(1, Row([1])), ".more: a Row reads back as a list"),
    ],
)
def test_a_refusal_shows_where_and_how_a_value_differs(
    declared: Any, value: Any, said: str
) -> None:
    with pytest.raises(Unkeepable) as refused:
        value_codec(declared).dump(value)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("declared", "value", "back"),
    [(int, True, 1), (float, 3, 3.0), (list[float], [1], [1.0]), (float | None, 1, 1.0)],
)
def test_a_number_of_a_narrower_type_is_read_back_as_the_declared_type(
    declared: Any, value: Any, back: Any
) -> None:
    read_back = there_and_back(declared, value)
    assert read_back == back
    assert type(read_back) is type(back)


@pytest.mark.parametrize(
    "declared",
    [
        Client,
        list[Client],
        type,
        Callable[[], int],
        dict[str, Client | None],
        dict[str, ImportString[Any]],  # nothing is imported by a name found in data
    ],
    ids=describe_value,
)
def test_a_type_without_a_json_form_is_live_with_a_reason(declared: Any) -> None:
    codec = value_codec(declared)
    assert codec.verdict == "live"
    assert codec.why
    with pytest.raises(Unkeepable):
        codec.dump(Client())


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (SecretStr, SecretStr("a")),
        (dict[str, list[SecretStr]], {"a": [SecretStr("x")]}),
        (Box[SecretStr], Box[SecretStr](held=SecretStr("x"))),
        (list[Hidden], [Hidden(name="a", token="b")]),
        (Covered, Covered("k")),
    ],
    ids=str,
)
def test_a_secret_type_is_recognized_and_reads_back_if_it_is_written(
    declared: Any, value: Any
) -> None:
    codec = value_codec(declared)
    assert codec.verdict == "secret"
    assert codec.why
    assert same(there_and_back(declared, value), value)


def test_values_nested_too_deeply_for_json_are_refused_on_write() -> None:
    def deep(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    def tree(levels: int) -> Tree:
        found = Tree(value=0)
        for _ in range(levels):
            found = Tree(value=1, below=[found])
        return found

    assert there_and_back(Any, deep(180)) == deep(180)
    assert there_and_back(Tree, tree(80)) == tree(80)
    for declared, value in ((Any, deep(400)), (Any, deep(200_000)), (Tree, tree(150))):
        with pytest.raises(Unkeepable):
            value_codec(declared).dump(value)


def test_a_model_that_lacks_a_field_is_not_stored_with_another_value() -> None:
    class Weather(BaseModel):
        city: str | None = None

    weather = Weather()
    del weather.city
    with pytest.raises(Unkeepable, match="city"):
        value_codec(Weather).dump(weather)


text = st.text(st.characters(exclude_categories=["Cs"]))
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: dt.timedelta(minutes=minutes))
zones = st.just(dt.UTC) | st.none() | offsets.map(dt.timezone)
leaves: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats()),
    (bool, st.booleans()),
    (str, text),
    (bytes, st.binary()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (dt.datetime, st.datetimes(timezones=zones).map(lambda when: when.replace(fold=0))),
    (dt.timedelta, st.timedeltas()),
    (Colour, st.sampled_from(Colour)),
    (Animal, st.builds(Animal, name=text)),
    (Point, st.builds(Point, st.integers(), st.lists(st.integers()))),
]


def _containers(
    inner: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    def made(each: tuple[Any, st.SearchStrategy[Any]]) -> list[tuple[Any, st.SearchStrategy[Any]]]:
        declared, values = each
        return [
            (list[declared], st.lists(values, max_size=3)),
            (tuple[declared, ...], st.lists(values, max_size=3).map(tuple)),
            (tuple[int, declared], st.tuples(st.integers(), values)),
            (dict[str, declared], st.dictionaries(text, values, max_size=3)),
            (dict[int, declared], st.dictionaries(st.integers(), values, max_size=3)),
            (declared | None, st.none() | values),
            (Sealed[declared], values.map(lambda held: Sealed[declared](held=held))),
        ]

    return inner.flatmap(lambda each: st.sampled_from(made(each)))


typed = st.recursive(st.sampled_from(leaves), _containers, max_leaves=3)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_values_of_nested_types_read_back_unchanged(data: st.DataObject) -> None:
    declared, values = data.draw(typed)
    value = data.draw(values)
    back = there_and_back(declared, value)
    assert same(back, value), (declared, value, back)
