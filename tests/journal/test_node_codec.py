"""Nodes in a journal: complete nodes and drafts are read back unchanged with any validators,
aliases and constructors; and a changed class reads the values that still fit."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
)

from bae import Dep, JournalError, Map, Node, Recall
from bae.journal.codec import same
from bae.journal.node_codec import node_codec
from end_node import EndNode
from journal_graphs import Client
from journal_parts import expect_refusal


class Place(BaseModel):
    name: str


async def get_place() -> Place:
    return Place(name="Ulm")


async def get_client() -> AsyncIterator[Client]:
    yield Client()


async def get_options() -> list[str]:
    return ["a"]


def shout(word: str) -> str:
    return word.upper()


class Look(EndNode):
    place: Annotated[Place, Dep(get_place)]
    luck: Annotated[str, Dep(shout)] = "some"
    words: list[str]
    shouted: Annotated[list[str], Map(shout, over="words")]
    asked: Annotated[str, Recall()]
    client: Annotated[Client | None, Dep(get_client)]


def there_and_back(node: Node) -> Any:
    codec = node_codec(type(node))
    return codec.load(json.loads(codec.dump(node)))


def test_a_partial_node_reads_back_as_a_partial_node() -> None:
    draft = Look(words=["a"])
    back = there_and_back(draft)
    assert same(back, draft)
    assert back.model_fields_set == {"words"}
    assert "weather" not in back.__dict__
    assert "luck" not in back.__dict__
    with_more = Look(words=["a"], luck="none")
    assert same(there_and_back(with_more), with_more)


class Scalars(EndNode):
    """Texts and numbers alone are written in one step; the default is not always given."""

    name: str
    count: int
    share: float
    done: bool = False


HALF_A_PAIR = "\ud83d"


@given(
    st.text(st.characters(codec="utf-8"), max_size=50),
    st.integers(),
    st.floats(),
    st.sampled_from([{}, {"done": True}]),
)
@example("x" * 2000, 10**3000, 0.5, {"done": True})
@example("x" * 2000, -7, float("nan"), {"done": True})
@example('ü\x00\n"', 10**40, float("-inf"), {"done": True})
def test_any_texts_and_numbers_read_back_unchanged(
    name: str, count: int, share: float, more: dict[str, bool]
) -> None:
    node = Scalars(name=name, count=count, share=share, **more)
    back = there_and_back(node)
    assert same(back, node)
    assert back.model_fields_set == node.model_fields_set


def test_a_value_assigned_to_a_field_later_is_read_back_or_refused() -> None:
    node = Scalars(name="a", count=1, share=0.5, done=True)
    for name, value in (("name", HALF_A_PAIR), ("count", "one"), ("done", 1.5)):
        changed = node.model_copy(update={name: value})
        with pytest.raises(JournalError, match=f"Scalars.{name}"):
            node_codec(Scalars).dump(changed)
    data = json.loads(node_codec(Scalars).dump(node.model_copy(update={"more": 1})))
    assert data["fields"] == {"name": "a", "count": 1, "share": 0.5, "done": True}


class Odd(EndNode):
    """Its fields have validators and serializers that do not take what they have made."""

    weight: int
    day: dt.date
    options: Annotated[list[str], Dep(get_options)]
    pick: str

    @field_validator("weight", mode="before")
    @classmethod
    def parsed(cls, value: Any) -> Any:
        return int(value.removesuffix("kg"))

    @field_serializer("day")
    def in_words(self, day: dt.date) -> str:
        return f"{day:%d %B}"

    @field_validator("pick")
    @classmethod
    def is_offered(cls, value: str, info: ValidationInfo) -> str:
        if value not in info.data["options"]:
            raise ValueError("it is not offered")
        return value


def test_stored_fields_are_read_without_running_validators_again() -> None:
    node = Odd(weight="5kg", day=dt.date(2024, 3, 1), options=["a"], pick="a")
    codec = node_codec(Odd)
    data = json.loads(codec.dump(node))
    assert data["fields"] == {"weight": 5, "day": "2024-03-01", "options": ["a"], "pick": "a"}
    assert data["bare"] == ["weight", "day"]
    assert same(codec.load(data), node)
    # What an LM has filled is read before the rest of the node is there.
    filled = codec.load(json.loads(codec.dump(node, plain=True)))
    assert filled.__dict__ == {"weight": 5, "day": dt.date(2024, 3, 1), "pick": "a"}


def test_a_default_outside_its_own_bounds_is_refused_on_write() -> None:
    class Sentinel(EndNode):
        score: int = Field(-1, ge=0)

    class Finite(EndNode):
        model_config = ConfigDict(allow_inf_nan=False)

        score: float = float("nan")

    for node in (Sentinel(), Finite()):
        with pytest.raises(JournalError, match=rf"{type(node).__name__}\.score"):
            node_codec(type(node)).dump(node)


def test_a_node_with_its_own_constructor_reads_back() -> None:
    class Built(EndNode):
        n: int

        def __init__(self, n: int, **more: Any) -> None:
            super().__init__(n=n * 10, **more)

    assert there_and_back(Built(2)).n == 20


def test_an_unstorable_value_of_a_plain_field_is_refused_by_name() -> None:
    class Loose(EndNode):
        place: Place
        anything: Any = None

    class Town(Place):
        people: int = 1

    class Hidden(EndNode):
        anything: Annotated[Any, Dep(get_place)]

    for node, name in (
        (Loose(place=Town(name="Ulm")), "Loose.place"),
        (Loose(place=Place(name="Ulm"), anything=Client()), "Loose.anything"),
        (Loose(place=Place(name="\ud800")), "Loose.place"),
    ):
        with expect_refusal("bae-journal-field") as raised:
            node_codec(type(node)).dump(node)
        assert raised.value.message.startswith(name)
        assert raised.value.fix
    # A source is found again, so it is left out instead.
    assert there_and_back(Hidden(anything=Client())).__dict__ == {}
