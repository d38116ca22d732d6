"""What a journal keeps of a value: everything, exactly, through the declared type; or it says that
it cannot. Types that no JSON holds are live, secrets are told from the rest, and nothing is kept in
part."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import fractions
import ipaddress
import math
import pathlib
import re
import uuid
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AnyUrl,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    FilePath,
    HttpUrl,
    ImportString,
    Json,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    SerializeAsAny,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic import dataclasses as pydantic_dataclasses
from pydantic_core import core_schema, from_json
from typing_extensions import TypeAliasType, TypedDict

from bae.journal.codec import Unkeepable, is_plain, same, value_codec
from bae.records import LIVE, WITHHELD
from naming import shortly, shown

T = TypeVar("T")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Odd(enum.Enum):
    PAIR = (1, 2)
    NOTHING = None


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Animal(BaseModel):
    name: str


class Dog(Animal):
    tricks: int = 2


class Puppy(Animal):
    """Has nothing more than an Animal, and is something else all the same."""


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Cow(BaseModel):
    kind: Literal["cow"] = "cow"
    lives: int


class AliasedCat(BaseModel):
    kind: Literal["cat"] = Field("cat", alias="Kind")


class AliasedCow(BaseModel):
    kind: Literal["cow"] = Field("cow", alias="Kind")


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    x: int = Field(alias="X")
    y: int = Field(1, validation_alias="Y", serialization_alias="why")


class LeftOut(BaseModel):
    x: int = Field(exclude=True)

    @computed_field
    @property
    def double(self) -> int:
        return self.x * 2


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    x: int


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    x: int
    day: dt.date
    pair: tuple[int, ...]
    some: set[int]
    colour: Colour
    raw: bytes


class Counting(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def one_more(cls, value: int) -> int:
        return value + 1


class Weighed(BaseModel):
    kg: int

    @field_validator("kg", mode="before")
    @classmethod
    def parsed(cls, value: Any) -> int:
        return int(value.removesuffix("kg"))  # takes nothing but text


class Wrapped(BaseModel):
    n: int

    @model_validator(mode="wrap")
    @classmethod
    def unpacked(cls, value: Any, handler: Any) -> Any:
        return handler(value["n"] if "n" in value and isinstance(value["n"], dict) else value)


class Growing(BaseModel):
    n: int

    @model_validator(mode="after")
    def grow(self) -> Growing:
        self.n += 1
        return self


class Settled(BaseModel):
    n: int
    _seen: bool = PrivateAttr(False)

    @model_validator(mode="after")
    def see(self) -> Settled:
        self._seen = True
        return self


class Shown(BaseModel):
    day: dt.date
    some: set[int]

    @field_serializer("day")
    def as_people_say(self, day: dt.date) -> str:
        return day.strftime("%d.%m.%y")

    @model_serializer
    def as_a_word(self) -> str:
        return "shown"


class Doubled(BaseModel):
    x: int

    def __init__(self, x: int, **more: Any) -> None:
        super().__init__(x=x * 2, **more)


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


class Numbers(RootModel[list[int]]):
    pass


class Anything(BaseModel):
    value: Any


class AsValue(BaseModel):
    model_config = ConfigDict(use_enum_values=True)

    colour: Colour


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
class Made:
    x: int
    sum: int = dataclasses.field(init=False, default=3)


@dataclasses.dataclass
class Raised:
    x: int

    def __post_init__(self) -> None:
        self.x += 1


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    x: int


@dataclasses.dataclass
class Covered:
    key: str = dataclasses.field(repr=False)


@pydantic_dataclasses.dataclass
class Checked:
    x: int
    animal: Animal


class Settings(TypedDict, total=False):
    a: int
    day: dt.date


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Own:
    """A class of somebody's own that tells pydantic how to read and write it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.text == self.text

    __hash__ = None

    def __str__(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )


class OwnPlain(Own):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )


class OwnEither(Own):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_after_validator_function(cls, core_schema.str_schema()),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.to_string_ser_schema(),
        )


class OwnBefore(Own):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value),
            core_schema.is_instance_schema(cls),
            serialization=core_schema.to_string_ser_schema(),
        )


class OneWay(Own):
    """Can be written, and not read."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            lambda value: cls("something else"),
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )


class Client:
    pass


Nested = TypeAliasType("Nested", "dict[str, Nested] | list[Nested] | int | str")


def there_and_back(declared: Any, value: Any) -> Any:
    kept = value_codec(declared)
    return kept.load(from_json(kept.dump(value)))


EXACT: list[tuple[Any, Any]] = [
    (int, 10**400),
    (float, math.nan),
    (float, -math.inf),
    (float, -0.0),
    (str, "a\x00é\u2028"),
    (bytes, bytes(range(256))),
    (None, None),
    (Any, {"a": [1, 2.5, None, {"b": True}]}),
    (dict[str, Any], {"a": [1, {"b": None}]}),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[dt.date, int], {dt.date(2024, 1, 1): 1}),
    (dict[bytes, int], {b"\xff": 1}),
    (dict[float, int], {1.5: 1, 2.0: 2}),
    (dict[bool, int], {True: 1}),
    (dict[uuid.UUID, int], {uuid.UUID(int=5): 1}),
    (dict[Colour, int], {Colour.RED: 1}),
    (set[int], {3, 1}),
    (frozenset[str], frozenset("ab")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2)),
    (list[float], [math.nan, 1.0]),
    (dt.datetime, dt.datetime(2024, 1, 1, 1, 2, 3, 4)),
    (dt.datetime, dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    (dict[dt.datetime, int], {dt.datetime(2024, 6, 1): 1}),
    (dt.time, dt.time(1, 2, tzinfo=dt.UTC)),
    (dt.date, dt.date.min),
    (dt.timedelta, dt.timedelta.max),
    (dt.timedelta, dt.timedelta(microseconds=-1)),
    (AwareDatetime, dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    (Decimal, Decimal("1.00")),
    (uuid.UUID, uuid.UUID(int=7)),
    (complex, 1 + 2j),
    (fractions.Fraction, fractions.Fraction(1, 3)),
    (Colour, Colour.RED),
    (Odd, Odd.PAIR),
    (Odd, Odd.NOTHING),
    (Level, Level.LOW),
    (Word, Word.YES),
    (Rights, Rights.READ | Rights.WRITE),
    (Literal["a", 1], 1),
    (Literal[Colour.RED, "green"], Colour.RED),
    (Literal[Colour.RED, "green"], "green"),
    (int | str, 1),
    (int | str, "1"),
    (bool | int, True),
    (bool | int, 1),
    (float | int, 1.0),
    (float | int, 1),
    (int | None, None),
    (dt.date | str, dt.date(2024, 1, 1)),
    (Animal | Dog, Dog(name="a")),
    (Cat | Cow, Cow(lives=1)),
    (Annotated[Cat | Cow, Field(discriminator="kind")], Cow(lives=1)),
    (Annotated[AliasedCat | AliasedCow, Field(discriminator="kind")], AliasedCow()),
    (Animal, Animal(name="a")),
    (list[Animal], [Animal(name="a")]),
    (Aliased, Aliased(x=1, y=3)),
    (Open, Open(x=1, more=[2])),
    (
        Frozen,
        Frozen(x=1, day=dt.date(2024, 1, 1), pair=(1,), some={1}, colour=Colour.RED, raw=b"a"),
    ),
    (Wrapped, Wrapped(n=1)),
    (Tree, Tree(value=1, below=[Tree(value=2)])),
    (Box[int], Box[int](held=1)),
    (Box[Animal], Box[Animal](held=Animal(name="a"))),
    (Numbers, Numbers([1, 2])),
    (Anything, Anything(value={"a": [1]})),
    (AsValue, AsValue(colour=Colour.RED)),
    (Point, Point(1, [2])),
    (Made, Made(1)),
    (Slotted, Slotted(1)),
    (Checked, Checked(1, Animal(name="a"))),
    (Settings, {"a": 1, "day": dt.date(2024, 1, 1)}),
    (Settings, {}),
    (Pair, Pair(1, "b")),
    (Own, Own("a")),
    (OwnPlain, OwnPlain("a")),
    (OwnEither, OwnEither("a")),
    (OwnBefore, OwnBefore("a")),
    (pathlib.Path, pathlib.Path("a/b")),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("/x")),
    (re.Pattern[str], re.compile("a+")),
    (ipaddress.IPv4Address, ipaddress.ip_address("1.2.3.4")),
    (ipaddress.IPv6Network, ipaddress.ip_network("::/64")),
    (collections.deque[int], collections.deque([1])),
    (collections.Counter[str], collections.Counter("aab")),
    (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
    (collections.defaultdict[str, int], collections.defaultdict(int, a=1)),
    (zoneinfo.ZoneInfo, BERLIN),
    (AnyUrl, AnyUrl("http://a.b/c?d")),
    (HttpUrl, HttpUrl("http://a.b")),
    (Sequence[int], [1]),
    (Mapping[str, int], {"a": 1}),
    (Json[list[int]], [1]),
    (JsonValue, {"a": [1, None]}),
    (ByteSize, ByteSize(5)),
    (Base64Bytes, b"hello"),
    (Nested, {"a": [1, {"b": "x"}]}),
    (list, [1, "a"]),
    (tuple, (1, 2)),
    (object, "plain"),
]


@pytest.mark.parametrize(("declared", "value"), EXACT, ids=shortly)
def test_a_value_of_its_declared_type_reads_back_exactly_as_it_was(
    declared: Any, value: Any
) -> None:
    kept = value_codec(declared)
    assert kept.verdict == "keep"
    assert same(there_and_back(declared, value), value)


class Text(str):
    """A text with more to it."""


class Share(float):
    pass


class Raw(bytes):
    pass


class Row(list[int]):
    pass


class Bag(set[int]):
    pass


class Moment(dt.datetime):
    pass


class Key(uuid.UUID):
    pass


class Named(BaseModel):
    word: str = Word.YES


NOT_THAT_ONE: list[tuple[Any, Any]] = [
    (Animal, Dog(name="a")),
    (Animal, Puppy(name="a")),
    (list[Animal], [Animal(name="a"), Dog(name="b")]),
    (dict[str, list[Animal | None]], {"a": [None, Puppy(name="b")]}),
    (tuple[int, Animal], (1, Dog(name="a"))),
    (tuple[int, *tuple[Animal, ...]], (1, Animal(name="a"), Dog(name="b"))),
    (Box[Animal], Box[Animal](held=Dog(name="a"))),
    (SerializeAsAny[Animal], Dog(name="a")),
    (Tree, Tree(value=1, below=[Tree.model_construct(value=2, below=[Dog(name="a")])])),
    (Animal, Animal.model_construct(name=5)),
    (Animal, Animal.model_construct()),
    (Animal, {"name": "a"}),
    (Point, Point3(1)),
    (int, "1"),
    (dt.date, dt.datetime(2024, 1, 1)),
    (dt.datetime, dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=61)))),
    (str, Text("a")),
    (str, Word.YES),
    (list[str], ["a", Text("b")]),
    (dict[str, int], {Text("a"): 1}),
    (dict[str, str], {"a": Text("a")}),
    (str | None, Text("a")),
    (str | int, Text("a")),
    (Literal["yes", "no"], Word.YES),
    (int, Level.LOW),
    (float, Share(0.5)),
    (bytes, Raw(b"a")),
    (bytes | None, Raw(b"a")),
    (dt.datetime, Moment(2024, 1, 1)),
    (uuid.UUID, Key(int=1)),
    (list[int], Row([1])),
    (set[int], Bag([1])),
    (tuple[int, str], Pair(1, "b")),
    (dict[str, int], collections.Counter("aab")),
    (dict[str, int], collections.OrderedDict(a=1)),
    (Mapping[str, int], collections.OrderedDict(a=1)),
    (Named, Named()),
    (Any, (1, 2)),
    (Any, {1: 2}),
    (Any, Client()),
    (dict[str, Any], {"a": dt.date(2024, 1, 1)}),
    (dict[int | str, int], {1: 1, "1": 2}),
    (dict[tuple[int, int], int], {(1, 2): 3}),
    (Anything, Anything(value=Animal(name="a"))),
    (Open, Open(x=1, day=dt.date(2024, 1, 1))),
    (Settings, {"a": 1, "unheard": 2}),
    (re.Pattern[str], re.compile("a", re.IGNORECASE)),
    (collections.deque[int], collections.deque([1], maxlen=3)),
    (collections.defaultdict[str, int], collections.defaultdict(lambda: 7, a=1)),
    (OneWay, OneWay("a")),
    (dt.datetime, dt.datetime(2024, 6, 1, tzinfo=BERLIN)),
    (dt.datetime, dt.datetime(2024, 10, 27, 2, 30, fold=1)),
    (list[AwareDatetime], [dt.datetime(2024, 6, 1, tzinfo=BERLIN)]),
    (dt.time, dt.time(1, 2, tzinfo=BERLIN)),
    (Decimal, Decimal("NaN")),
    (dt.date | str, "2024-01-01"),
    (list[int] | set[int], {1}),
    (list[Dog | Animal], [Animal(name="a"), Dog(name="b")]),
    (Sequence[int], (1,)),
    (Box[bytes], Box[bytes](held=b"\xff")),
    (Box[float], Box[float](held=math.nan)),
    (Counting, Counting(n=1)),
    (Weighed, Weighed(kg="5kg")),
    (Growing, Growing(n=1)),
    (Shown, Shown(day=dt.date(2024, 1, 1), some={1})),
    (Doubled, Doubled(2)),
    (Raised, Raised(1)),
    (FilePath, pathlib.Path("/is/not/there")),
    (Annotated[int, Field(ge=0)], -1),
    (Annotated[dt.date, PlainSerializer(lambda day: "some day")], dt.date(2024, 1, 1)),
    (Annotated[str, AfterValidator(pathlib.Path)], pathlib.Path("a")),
    (str, "half a character: \ud800"),
]


@pytest.mark.parametrize(
    ("declared", "value", "back"),
    [(int, True, 1), (float, 3, 3.0), (list[float], [1], [1.0]), (float | None, 1, 1.0)],
)
def test_a_number_of_a_narrower_type_comes_back_as_the_one_that_is_declared(
    declared: Any, value: Any, back: Any
) -> None:
    assert same(there_and_back(declared, value), back)
    assert back == value


@pytest.mark.parametrize(("declared", "value"), NOT_THAT_ONE, ids=shortly)
def test_a_value_that_would_come_back_as_something_else_is_refused(
    declared: Any, value: Any
) -> None:
    with pytest.raises(Unkeepable) as refused:
        value_codec(declared).dump(value)
    assert str(refused.value)


@pytest.mark.parametrize(
    "declared",
    [
        Client,
        list[Client],
        type,
        type[int],
        Callable[[], int],
        Iterator[int],
        ImportString,
        bytearray,
        Exception,
        dict[str, Client | None],
        Annotated[Client, BeforeValidator(lambda value: value)],
        LeftOut,
    ],
    ids=shown,
)
def test_a_type_that_no_json_holds_is_live_and_says_why(declared: Any) -> None:
    kept = value_codec(declared)
    assert kept.verdict == "live"
    assert kept.why
    with pytest.raises(Unkeepable):
        kept.dump(Client())


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (SecretStr, SecretStr("a")),
        (SecretBytes, SecretBytes(b"\xff")),
        (Secret[int], Secret[int](4)),
        (Secret[dt.date], Secret[dt.date](dt.date(2024, 1, 1))),
        (dict[str, list[SecretStr]], {"a": [SecretStr("x")]}),
        (SecretStr | None, None),
        (Box[SecretStr], Box[SecretStr](held=SecretStr("x"))),
        (Hidden, Hidden(name="a", token="b")),
        (list[Hidden], [Hidden(name="a", token="b")]),
        (Covered, Covered("k")),
    ],
    ids=str,
)
def test_a_secret_is_told_from_the_rest_and_reads_back_where_it_is_written(
    declared: Any, value: Any
) -> None:
    kept = value_codec(declared)
    assert kept.verdict == "secret"
    assert kept.why
    assert same(there_and_back(declared, value), value)


def test_what_is_nested_deeper_than_json_is_read_is_refused_when_it_is_written() -> None:
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


def test_a_validator_of_today_reads_what_an_older_class_has_written() -> None:
    class Place(BaseModel):
        city: str

        @model_validator(mode="before")
        @classmethod
        def was_called_town(cls, value: Any) -> Any:
            return {"city": value["town"]} if "town" in value else value

    assert value_codec(Place).load({"town": "Ulm"}) == Place(city="Ulm")


def test_a_value_that_nothing_reads_any_more_is_refused_by_pydantic() -> None:
    with pytest.raises(ValueError, match="name"):
        value_codec(Animal).load({"title": "a"})


def test_validators_that_set_private_attributes_have_done_so_after_a_read() -> None:
    read = value_codec(Settled).load({"n": 1})
    assert read._seen


def test_nothing_is_imported_by_a_name_found_in_data() -> None:
    kept = value_codec(dict[str, ImportString[Any]])
    assert kept.verdict == "live"


def test_what_was_not_kept_says_so() -> None:
    assert "made again" in repr(LIVE)
    assert "secret" in repr(WITHHELD)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_values_are_kept_whatever_is_declared_of_them(value: Any) -> None:
    if "\\ud" in ascii(value):  # half a character
        return
    assert is_plain(value)
    assert same(there_and_back(Any, value), value)


zones = (
    st.just(dt.UTC)
    | st.none()
    | st.integers(-23 * 60, 23 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
)
text = st.text(st.characters(exclude_categories=["Cs"]))
leaves: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats()),
    (bool, st.booleans()),
    (str, text),
    (bytes, st.binary()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (dt.datetime, st.datetimes(timezones=zones).map(lambda when: when.replace(fold=0))),
    (dt.date, st.dates()),
    (dt.time, st.times().map(lambda when: when.replace(fold=0))),
    (dt.timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Animal, st.builds(Animal, name=text)),
    (Point, st.builds(Point, st.integers(), st.lists(st.integers()))),
    (Pair, st.builds(Pair, st.integers(), text)),
    (pathlib.Path, text.filter(lambda each: "\x00" not in each).map(pathlib.Path)),
    (complex, st.complex_numbers(allow_nan=False, allow_infinity=False)),
    (ipaddress.IPv6Address, st.ip_addresses(v=6)),
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


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_values_of_types_made_of_types_read_back_exactly(data: st.DataObject) -> None:
    declared, values = data.draw(typed)
    value = data.draw(values)
    back = there_and_back(declared, value)
    assert same(back, value), (declared, value, back)


mixed: list[tuple[Any, Any]] = [
    (int | str | None, st.integers() | text | st.none()),
    (bool | int | float | str, st.booleans() | st.integers() | st.floats() | text),
    (dt.date | str, st.dates() | text | st.dates().map(str)),
    (list[int] | set[int], st.lists(st.integers()) | st.sets(st.integers())),
    (Animal | Dog | Cat, st.builds(Animal, name=text) | st.builds(Dog, name=text)),
    (bytes | str | uuid.UUID, st.binary() | text | st.uuids() | st.uuids().map(str)),
    (dict[int | str, int], st.dictionaries(st.integers() | text, st.integers())),
    (Any, plain | st.dates() | st.tuples(plain)),
    (Decimal | float | int, st.decimals(allow_nan=False) | st.floats() | st.integers()),
]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_where_types_overlap_a_value_is_kept_exactly_or_not_at_all(data: st.DataObject) -> None:
    declared, values = data.draw(st.sampled_from(mixed))
    value = data.draw(values)
    kept = value_codec(declared)
    try:
        written = kept.dump(value)
    except Unkeepable:
        return
    assert same(kept.load(from_json(written)), value), (declared, value)


def test_a_plain_validator_that_reads_its_own_writing_is_kept() -> None:
    declared = Annotated[set[int], PlainValidator(set)]
    assert there_and_back(declared, {1, 2}) == {1, 2}
