"""What `bae.assignable` promises: three-valued answers about types that never mislead the proof."""

import collections
import collections.abc as abc
import enum
import os
import pathlib
import sys
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Generic,
    Literal,
    NamedTuple,
    Never,
    NewType,
    Optional,
    Protocol,
    Self,
    TypeVar,
    TypeVarTuple,
    Union,
    Unpack,
    runtime_checkable,
)

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType, TypedDict

from bae.assignable import assignable, could_hold, type_name, union_members
from naming import describe_value

T = TypeVar("T")
K = TypeVar("K")
Sent = TypeVar("Sent", contravariant=True)
Number = TypeVar("Number", int, float)
Ts = TypeVarTuple("Ts")

needs_type_statement = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="the type statement came with Python 3.12"
)


class Animal:
    def speak(self) -> str:
        return ""


class Dog(Animal): ...


AnyAnimal = TypeVar("AnyAnimal", bound=Animal)
UserId = NewType("UserId", int)
AdminId = NewType("AdminId", UserId)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Weather(BaseModel):
    sunny: bool = True


class Storm(Weather):
    wind: int = 9


class Box(BaseModel, Generic[T]):
    item: T


class IntBox(Box[int]): ...


class Numbers(list[int]): ...


class Bag(list[T]): ...


class Holder(Generic[T]): ...


class DogHolder(Holder[Dog]): ...


class Sink(Generic[Sent]): ...


class Point(NamedTuple):
    x: int
    y: str


class Named(TypedDict):
    name: str


class Person(Named):
    age: int


class Speaks(Protocol):
    def speak(self) -> str: ...


@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class HasSize(Protocol):
    size: int


@runtime_checkable
class Gives(Protocol[T]):
    def close(self) -> T: ...


class File:
    size = 1

    def close(self) -> None: ...


class Said(Speaks): ...


Text = TypeAliasType("Text", str)
Maybe = TypeAliasType("Maybe", Optional[T], type_params=(T,))
Spread = TypeAliasType("Spread", tuple[*Ts], type_params=(Ts,))
Flipped = TypeAliasType("Flipped", dict[T, K], type_params=(K, T))


FITS = [
    # the ends of the lattice
    (int, Any),
    (Any, object),
    (None, object),
    (None, type(None)),
    (Never, int),
    (list[Never], list[int]),
    # classes
    (Dog, Animal),
    (Storm, Weather),
    (bool, int),
    (int, float),
    (float, complex),
    (Size, int),
    (pathlib.Path, os.PathLike),
    # unions
    (int, int | str),
    (int | str, str | int | None),
    (int | None, Union[None, float]),
    # wrappers
    (Annotated[int, "a"], int),
    (int, Annotated[int, Field(gt=0)]),
    # aliases
    (Text, str),
    (int, Maybe[int]),
    (Maybe[bool], int | None),
    (Flipped[int, str], dict[str, int]),
    # NewType
    (UserId, int),
    (AdminId, UserId),
    # type variables
    (T, T),
    # literals and enums
    (Literal["a"], str),
    (Literal["a"], Literal["a", "b"]),
    (Literal[Color.RED], Color),
    # containers
    (list[int], list),
    (list[Dog], Sequence[Animal]),
    (list[bool], Iterable[float]),
    (typing.List[int], abc.MutableSequence[int]),  # noqa: UP006
    (set[int], abc.Set[int]),
    (dict[str, int], Mapping[str, float]),
    (dict[str, int], Iterable[str]),
    (str, Sequence),
    (list, list[Any]),
    # own generics
    (Bag[Dog], Bag[Animal]),
    # tuples
    (tuple[int, int], tuple[int, ...]),
    (tuple[bool, ...], tuple[int, ...]),
    (tuple[int, str], tuple[float, str | None]),
    (tuple[int, str], Sequence[int | str]),
    (tuple[int, ...], Sequence[float]),
    # callables and classes as values
    (Callable[[int], str], Callable),
    (type[int], Callable),
    (type[Dog], type[Animal]),
    # TypedDict
    (Named, dict),
    # protocols
    (File, Closes),
    (Said, Speaks),
    # pydantic generics
    (Box[int], Box),
    (Box[int], Box[float]),
    (Box[Storm], Box[Weather]),
    (IntBox, Box[int | None]),
    (RootModel[list[int]], RootModel[Sequence[int]]),
]

MISFITS = [
    (int, None),
    (None, int),
    (int, str),
    (float, int),
    (int, bool),
    (Weather, Storm),
    (int | None, int),
    (int | str, int | None),
    (Maybe[int], int),
    (Flipped[int, str], dict[int, str]),
    (int, UserId),
    (UserId, AdminId),
    (str, Literal["a"]),
    (Literal["a", "b"], Literal["a"]),
    (Literal[1], Literal[True]),
    (Literal["a"], int),
    (Color, str),
    (Literal[Color.RED], Literal["red"]),
    (list[int], list[str]),
    (list[int], set[int]),
    (Sequence[int], list[int]),
    (dict[str, int], dict[str, str]),
    (dict[str, int], Iterable[int]),
    (str, list[str]),
    (Coroutine[Any, Any, int], int),
    (tuple[int, str], tuple[int, int]),
    (tuple[int, str], tuple[int]),
    (tuple[int, ...], tuple[int, int]),
    (tuple[int, str], tuple[int, ...]),
    (tuple[int, str], Point),
    (int, Callable),
    (type[Animal], type[Dog]),
    (Dog, type[Dog]),
    (Animal, Closes),
    (Box[int], Box[str]),
    (Box[int], IntBox),
]

UNKNOWN = [
    (Any, int),
    (list[Any], list[int]),
    (T, int),
    (Dog, AnyAnimal),
    (Number, int),
    (int, Number),
    ("Dog", Animal),
    (ForwardRef("Dog"), Animal),
    (Self, Animal),
    (list, list[int]),
    (tuple, tuple[int]),
    (tuple[int, *tuple[str, ...]], tuple[int, str]),
    (tuple[int], tuple[int, Unpack[Ts]]),  # noqa: UP044
    (tuple[int, str], Spread[int, str]),
    (type, type[int]),
    (Callable[[int], str], Callable[[str], int]),
    (Animal, Speaks),
    (File, HasSize),
    (File, Gives[None]),
    (pathlib.Path, os.PathLike[str]),
    # the keys of a TypedDict, the bound of a variable, all values of an enum: left to run time
    (dict[str, str], Named),
    (AnyAnimal, Animal),
    (Color, Literal[Color.RED, Color.BLUE]),
    # what a generic takes, and does not give
    (Sink[int], Sink[str]),
    (Box, Box[int]),
    (42, int),
    # the arguments of a base
    (Numbers, list[str]),
    (Point, tuple[str, int]),
    (DogHolder, Holder[str]),
    (collections.Counter[str], Mapping[str, float]),
    ({}.items().__class__, Iterable[int]),
    # a type checker says yes, pydantic says no
    (str, Sequence[str]),
    (list[str], list[Sequence[str]]),
]


@pytest.mark.parametrize(
    ("source", "target", "answer"),
    [
        pytest.param(*pair, answer, id=f"{pair[0]!r} -> {pair[1]!r}")
        for answer, rows in ((True, FITS), (False, MISFITS), (None, UNKNOWN))
        for pair in rows
    ],
)
def test_assignable_is_true_false_or_none_if_unknown(
    source: Any, target: Any, answer: bool | None
) -> None:
    assert assignable(source, target) is answer


def test_types_are_compared_despite_metadata_that_refuses_comparison() -> None:
    class Touchy:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        def __hash__(self) -> int:
            return id(self)

    assert assignable(list[Annotated[int, Touchy()]], list[Annotated[int, Touchy()]]) is True
    assert assignable(list[Annotated[int, Touchy()]], list[Annotated[str, Touchy()]]) is False
    assert union_members(Annotated[int | None, Touchy()]) == (int, type(None))


def exec_types(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {
        "__name__": __name__,
        "Any": Any,
        "BaseModel": BaseModel,
        "Iterable": Iterable,
    }
    exec(code, names)
    return names


def test_types_are_compared_despite_unhashable_metadata() -> None:
    assert assignable(list[Annotated[int, []]], list[Annotated[str, []]]) is False
    assert assignable(tuple[Annotated[int, []], int], Sequence[int]) is not False


@needs_type_statement
def test_a_type_statement_is_compared_by_its_value() -> None:
    ns = exec_types("type A = int | str\ntype B[T] = list[T] | None\ntype C = B[A]")
    a, b, c = ns["A"], ns["B"], ns["C"]
    assert assignable(int, a) is True
    assert assignable(a, int) is False
    assert assignable(list[int], b[float]) is True
    assert assignable(list[str], b[int]) is False
    assert assignable(list[bool], c) is True
    assert assignable(list[int], b) is True  # bare: its parameter is Any
    assert assignable(b, list[int] | None) is None
    assert union_members(c) == (list[a], type(None))
    assert union_members(a | None) == (int, str, type(None))
    assert type_name(c) == "C"
    assert type_name(list[b[int]]) == "list[B[int]]"


@needs_type_statement
def test_recursive_aliases_are_compared_in_finite_time() -> None:
    ns = exec_types(
        "type Json = dict[str, Json] | list[Json] | str | int | None\n"
        "type Tree = dict[str, Tree] | list[Tree] | str | int | float | None\n"
        "type Odd = dict[str, Odd] | list[Odd] | bytes\n"
        "type Nested = Iterable[Nested]\n"
    )
    json, tree, odd = ns["Json"], ns["Tree"], ns["Odd"]
    assert assignable(json, tree) is True
    assert assignable(tree, json) is False
    assert assignable(json, odd) is False
    assert assignable(dict[str, list[int]], json) is True
    assert assignable(dict[str, list[bytes]], json) is False
    assert assignable(str, ns["Nested"]) is None
    assert assignable(list[int], ns["Nested"]) is False


@needs_type_statement
def test_an_alias_of_only_itself_is_unknown() -> None:
    ns = exec_types("type A = A\ntype B = C\ntype C = B\ntype D = D | int")
    assert assignable(int, ns["A"]) is None
    assert assignable(ns["B"], int) is None
    assert assignable(str, ns["D"]) is False
    assert union_members(ns["A"]) == (ns["A"],)
    assert union_members(ns["D"]) == (int,)
    assert could_hold(1, ns["A"])


@pytest.mark.parametrize(
    ("tp", "name"),
    [
        (int, "int"),
        (None, "None"),
        (type(None), "None"),
        (Any, "Any"),
        (Weather, "Weather"),
        (list[Weather], "list[Weather]"),
        (typing.List[Weather], "list[Weather]"),  # noqa: UP006
        (Optional[Weather], "Weather | None"),
        (Union[int, str, None], "int | str | None"),
        (dict[str, int], "dict[str, int]"),
        (Mapping[str, list[int]], "Mapping[str, list[int]]"),
        (Literal["a", 1, None, Color.RED], "Literal['a', 1, None, Color.RED]"),
        (Callable[[int], str], "Callable[[int], str]"),
        (Callable[..., Any], "Callable[..., Any]"),
        (Callable, "Callable"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[()], "tuple[()]"),
        (type[Weather], "type[Weather]"),
        (Annotated[int, Field(gt=0)], "int"),
        ("Weather", "Weather"),
        (T, "T"),
        (UserId, "UserId"),
        (Box[int], "Box[int]"),
        (Maybe[int], "Maybe[int]"),
    ],
)
def test_a_type_is_spelled_the_way_its_author_would(tp: Any, name: str) -> None:
    assert type_name(tp) == name


@pytest.mark.parametrize(
    ("tp", "members"),
    [
        (int, (int,)),
        (Optional[int], (int, type(None))),
        (Union[None, str, int], (type(None), str, int)),
        (Union[Annotated[int | str, "x"], None], (int, str, type(None))),
        (Union[Maybe[int], int, str], (int, type(None), str)),
        (list[int | None], (list[int | None],)),
        (Literal["a", "b"], (Literal["a", "b"],)),
        (Optional["Dog"], (ForwardRef("Dog"), type(None))),
    ],
)
def test_a_union_is_listed_flat_and_in_order(tp: Any, members: tuple[Any, ...]) -> None:
    assert union_members(tp) == members


HELD = [
    (1, int),
    (True, int),
    (None, None),
    (None, int | None),
    (1, Any),
    ("a", Literal["a", "b"]),
    (1, UserId),
    ([""], list[int]),
    ({}, Mapping[str, int]),
    (Dog(), Animal),
    (1, T),
    (print, Callable[[int], str]),
    (1, "Weather"),
    (1, Speaks),
    (File(), Closes),
    (Box[int](item=1), Box[str]),
    (Box(item=1), Box[int]),
    (1, Maybe[int]),
    (Point(1, ""), tuple[int, str]),
]

NOT_HELD = [
    ("1", int),
    (1, float),
    (None, int),
    (1, Never),
    ("c", Literal["a", "b"]),
    ((), list[int]),
    ([], Named),
    (Animal(), Dog),
    (Weather(), Box[int]),
    (b"", int | str | None),
]


@pytest.mark.parametrize(
    ("value", "tp", "might"),
    [*((*pair, True) for pair in HELD), *((*pair, False) for pair in NOT_HELD)],
    ids=describe_value,
)
def test_could_hold_is_true_only_for_values_whose_class_fits(
    value: Any, tp: Any, might: bool
) -> None:
    assert could_hold(value, tp) is might


# --- properties: types made together with a value of each ---------------------------------------

Made = tuple[Any, Any]


def only(tp: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Made]:
    return st.tuples(st.just(tp), values)


# No bool and no IntEnum: strict pydantic refuses them as int, and a type checker does not.
leaves: st.SearchStrategy[Made] = st.one_of(
    only(int, st.integers()),
    only(float, st.floats(allow_nan=False)),
    only(str, st.text(max_size=3)),
    only(bytes, st.binary(max_size=3)),
    only(None, st.none()),
    only(object, st.integers()),
    only(Color, st.sampled_from(Color)),
    only(Literal["a", "b"], st.sampled_from(["a", "b"])),
    only(Literal["a"], st.just("a")),
    only(Literal[Color.RED], st.just(Color.RED)),
    only(UserId, st.integers()),
    only(Text, st.text(max_size=3)),
    only(Weather, st.just(Weather())),
    only(Storm, st.just(Storm())),
    only(Named, st.just({"name": "a"})),
    only(Person, st.just({"name": "a", "age": 1})),
    only(Point, st.just(Point(1, "a"))),
    only(IntBox, st.just(IntBox(item=1))),
)


def containers(inner: st.SearchStrategy[Made]) -> st.SearchStrategy[Made]:
    def repeated(make: Callable[[Any], Any], build: Callable[[list[Any]], Any]) -> Any:
        return st.tuples(inner, st.integers(0, 2)).map(
            lambda drawn: (make(drawn[0][0]), build([drawn[0][1]] * drawn[1]))
        )

    def union(pair: tuple[Made, Made]) -> Made:
        return Union[pair[0][0], pair[1][0]], pair[0][1]

    def other_union(pair: tuple[Made, Made]) -> Made:
        return Union[pair[0][0], pair[1][0]], pair[1][1]

    pairs = st.tuples(inner, inner)
    return st.one_of(
        repeated(lambda t: list[t], list),
        repeated(lambda t: Sequence[t], list),
        repeated(lambda t: Sequence[t], tuple),
        repeated(lambda t: tuple[t, ...], tuple),
        repeated(lambda t: dict[str, t], lambda values: {str(i): v for i, v in enumerate(values)}),
        repeated(lambda t: Mapping[str, t], lambda vs: {str(i): v for i, v in enumerate(vs)}),
        inner.map(lambda made: (Annotated[made[0], "meta"], made[1])),
        inner.map(lambda made: (Optional[made[0]], made[1])),
        inner.map(lambda made: (Maybe[made[0]], made[1])),
        inner.map(lambda made: (tuple[made[0]], (made[1],))),
        pairs.map(lambda two: (tuple[two[0][0], two[1][0]], (two[0][1], two[1][1]))),
        pairs.map(union),
        pairs.map(other_union),
    )


made = st.recursive(leaves, containers, max_leaves=6)
types = made.map(lambda pair: pair[0]) | st.sampled_from(
    [
        Any,
        T,
        AnyAnimal,
        ForwardRef("Dog"),
        list,
        Callable[[int], str],
        Speaks,
        Self,
        Box[int],
    ]
)


@given(types)
def test_every_type_fits_itself(tp: Any) -> None:
    assert assignable(tp, tp) is True
    assert assignable(list[tp], Sequence[tp]) is not False


@given(types, types)
def test_a_member_fits_its_union(one: Any, other: Any) -> None:
    assert assignable(one, Union[one, other]) is True
    assert assignable(one, Union[other, one]) is True


@given(types)
def test_every_type_has_a_name_on_one_line(tp: Any) -> None:
    name = type_name(tp)
    assert name
    assert not any(noise in name for noise in ("\n", "typing.", "<"))


@given(made)
def test_could_hold_is_true_for_values_of_the_type(pair: Made) -> None:
    tp, value = pair
    assert could_hold(value, tp) is True


@given(made, types)
def test_could_hold_is_true_for_values_of_an_assignable_type(pair: Made, target: Any) -> None:
    source, value = pair
    if assignable(source, target) is True:
        promoted = isinstance(value, int) and could_hold(float(value), target)
        assert could_hold(value, target) or promoted


@given(made, made)
def test_values_of_an_assignable_type_pass_strict_pydantic(pair: Made, other: Made) -> None:
    (source, value), (target, _) = pair, other
    if assignable(source, target) is True:
        try:
            TypeAdapter(target).validate_python(value, strict=True)
        except ValidationError as error:
            pytest.fail(f"{type_name(source)} -> {type_name(target)}: {error}")
