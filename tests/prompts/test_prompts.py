"""The prompt of a model: the instruction, the known values as JSON, and no hidden values. Equal
input gives an equal prompt, to the letter, in every process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    computed_field,
    field_serializer,
    model_serializer,
)
from pydantic.json_schema import SkipJsonSchema

import bae
from bae import BaeLMError, Dep, Graph, Node, NodeConfig, Recall
from bae.lm import Prompt
from bae.prompts.questions import fill_prompt
from end_node import EndNode
from toy_backend import ToyBackend, choose


class Out(EndNode):
    text: str


def known(prompt: Prompt) -> dict[str, Any]:
    """The text under the instruction, which must be JSON."""
    _, _, said = prompt.text.partition("\n\n")
    return json.loads(said) if said else {}


async def prompt_of(source: Node, target: type[Node] = Out, **resolved: Any) -> Prompt:
    """The prompt that asks for a target, with a source and resolved values."""
    lm = ToyBackend({name: "x" for name in target.__pydantic_fields__ if name not in resolved})
    await lm.fill(target, resolved, target.__name__, source=source)
    return lm.prompts[0]


async def known_fields(source: Node) -> Any:
    return known(await prompt_of(source))[type(source).__name__]


# The shape of it


async def test_the_previous_node_is_shown_under_its_class_name():
    def get_weather() -> str:
        return "rain"

    class Morning(Node):
        message: str
        hours: list[int]

        async def __call__(self) -> Outfit: ...

    class Outfit(EndNode):
        weather: Annotated[str, Dep(get_weather)]
        message: Annotated[str, Recall()]
        top: str = Field(description="a garment")

    lm = ToyBackend({"top": "coat"})
    result = await Graph(start=Morning).arun(Morning(message="hm", hours=[7, 8]), lm)

    (prompt,) = lm.prompts
    assert prompt.text.splitlines() == [
        "Outfit",
        "",
        '{"Morning":{"message":"hm","hours":[7,8]},"context":{"weather":"rain"}}',
    ]
    assert result.trace[-1].model_dump() == {"weather": "rain", "message": "hm", "top": "coat"}


async def test_a_recalled_value_is_left_out_only_if_its_own_node_is_shown():
    class Order(Node):
        note: str

        async def __call__(self) -> Parcel: ...

    class Parcel(Node):
        label: str

        async def __call__(self) -> Bill: ...

    class Bill(EndNode):
        order: Annotated[str, Recall(Order)]
        parcel: Annotated[Parcel, Recall()]
        total: int

    lm = ToyBackend({"label": "fragile"}, {"total": 3})
    await Graph(start=Order).arun(Order(note="fragile"), lm)
    assert known(lm.prompts[1]) == {
        "Parcel": {"label": "fragile"},
        "context": {"order": "fragile"},  # of another node than the one that is shown
    }


async def test_a_recalled_value_hidden_by_its_own_node_is_shown():
    class Login(Node):
        token: str = Field(repr=False)
        size: float

        @field_serializer("size")
        def in_words(self, size: float) -> str:
            return f"{size} m"

        async def __call__(self) -> Entry: ...

    class Entry(EndNode):
        node_config = NodeConfig(show=("token",))
        token: Annotated[str, Recall()]
        size: Annotated[float, Recall()]
        text: str

    lm = ToyBackend({"text": "in"})
    await Graph(start=Login).arun(Login(token="t-17", size=2.5), lm)
    assert known(lm.prompts[0]) == {
        "Login": {"token": "**********", "size": "2.5 m"},
        "context": {"token": "t-17", "size": 2.5},
    }


async def test_a_choice_prompt_shows_the_source_and_explains_none():
    class Fork(Node):
        x: int = 3

        async def __call__(self) -> Out | None: ...

    lm = ToyBackend(choose("None"), one_call=False)
    await lm.decide(Fork())

    assert lm.prompts[0].text == (
        'Choose what comes next. "None" is to stop here.\n- Out\n'
        '  Its fields: {"properties":{"text":{"type":"string"}},"required":["text"]}\n\n'
        '{"Fork":{"x":3}}'
    )
    assert lm.prompts[0].schema["properties"]["choice"]["enum"] == ["Out", "None"]


@pytest.mark.parametrize("name", ["Größe", "Box[int]", "X" * 100, "a.b c/d"])
def test_the_schema_name_is_valid_for_every_provider(name: str):
    target = type(name, (Out,), {"__module__": __name__})

    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", fill_prompt(target, ("text",), {}, "", None).name)


# What is not for the model


class Client:
    """A connection, which JSON cannot say."""

    def __repr__(self) -> str:
        return "LIVE"


@dataclass
class Session:
    client: Client


class Wrapped(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    client: Client


class Holder(EndNode):
    word: str = "w"
    client: Client = Field(default_factory=Client)
    maybe: Client | None = None
    several: list[Client] = Field(default_factory=lambda: [Client()])
    by_name: dict[str, Client] = Field(default_factory=lambda: {"a": Client()})
    session: Session = Field(default_factory=lambda: Session(Client()))
    wrapped: Wrapped = Field(default_factory=lambda: Wrapped(client=Client()))
    kind: type[Client] = Client
    call: Any = Field(default=print, exclude=True)
    hidden: str = Field(default="HIDDEN", exclude=True)
    skipped: SkipJsonSchema[str] = "SKIPPED"
    secret: SecretStr = SecretStr("SECRET")


async def test_live_objects_excluded_fields_and_secrets_are_not_shown():
    prompt = await prompt_of(Holder())

    assert known(prompt) == {"Holder": {"word": "w", "secret": "**********"}}


@pytest.mark.parametrize(
    "value", [Client(), {"a": [Client()]}, print, object()], ids=["object", "deep", "code", "bare"]
)
async def test_a_value_without_json_in_an_any_field_raises_an_error_with_a_fix(value: Any):
    class Loose(Node):
        anything: Any

        async def __call__(self) -> Out: ...

    lm = ToyBackend()
    with pytest.raises(BaeLMError) as caught:
        await Graph(start=Loose).arun(Loose(anything=value), lm)

    assert caught.value.code == "bae-lm-prompt"
    assert "Loose.anything cannot be shown to the LM as JSON" in caught.value.message
    assert "Field(exclude=True)" in (caught.value.fix or "")
    assert caught.value.cause is not None
    assert lm.calls == 0


async def test_a_value_that_can_be_read_only_once_is_not_read_for_the_prompt():
    class Reads(EndNode):
        lines: Iterable[int]

    source = Reads(lines=iter([1, 2, 3]))
    assert await known_fields(source) == {}
    assert list(source.lines) == [1, 2, 3]
    assert list((await ToyBackend({"lines": [4, 5]}).fill(Reads, {}, "Reads")).lines) == [4, 5]


async def test_computed_fields_with_data_are_shown():
    class Cart(EndNode):
        prices: list[int]

        @computed_field
        @property
        def total(self) -> int:
            return sum(self.prices)

        @computed_field
        @property
        def client(self) -> Client:
            return Client()

    assert await known_fields(Cart(prices=[1, 2])) == {"prices": [1, 2], "total": 3}


async def test_prompts_show_field_names_instead_of_aliases():
    class Inner(BaseModel):
        model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
        deep: int = Field(alias="deepAlias")

    class Aliased(EndNode):
        model_config = ConfigDict(serialize_by_alias=True)
        number: int = Field(alias="numberAlias")
        inner: Inner

    assert await known_fields(Aliased(number=1, inner=Inner(deep=2))) == {
        "number": 1,
        "inner": {"deep": 2},
    }


# A node that has code of its own


async def test_collecting_context_runs_no_code_of_nodes():
    made: list[str] = []

    def make() -> str:
        made.append("default")
        return "d"

    class Careful(EndNode):
        word: Annotated[str, Dep(lambda: "w")]
        name: str
        shout: str = Field(default_factory=lambda data: data["name"].upper())
        other: str = Field(default_factory=make)

        def model_post_init(self, context: Any) -> None:
            made.append(f"post {self.name}")

    lm = ToyBackend({"name": "n"})
    node = await lm.fill(Careful, {"word": "w"}, "Careful")

    assert known(lm.prompts[0]) == {"context": {"word": "w"}}
    assert (node.shout, made) == ("N", ["default", "post n"])


async def test_a_field_serializer_applies_in_source_and_context():
    class Money(EndNode):
        cents: Annotated[int, Dep(lambda: 150)]
        text: str = ""

        @field_serializer("cents")
        def in_euros(self, cents: int) -> str:
            return f"{cents / 100} €"

    assert await known_fields(Money(cents=150)) == {"cents": "1.5 €", "text": ""}
    lm = ToyBackend({})
    await lm.fill(Money, {"cents": 250}, "Money")
    assert known(lm.prompts[0]) == {"context": {"cents": "2.5 €"}}


class Loose(EndNode):
    number: float = 0
    inside: dict[str, list[float]] = {}
    anything: Any = None


async def test_values_without_a_json_form_are_shown_as_text():
    for value in (float("inf"), float("-inf"), float("nan"), 1e300):
        shown = await known_fields(Loose(number=value, inside={"a": [value]}))
        text = value if value == 1e300 else str(value)
        assert (shown["number"], shown["inside"]) == (text, {"a": [text]})
    prompt = await prompt_of(Loose(anything="a\ud800b"))  # half a character
    assert prompt.text.encode()
    assert known(prompt)["Loose"]["anything"] == "a\ud800b"


# One order


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pair:
    left: frozenset[str] = field(default_factory=frozenset)
    right: str = ""


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Heap(EndNode):
    names: set[str] = set()
    frozen: set[Frozen] = set()
    by_name: dict[str, set[int]] = {}
    either: list[str] | set[str] = []
    extra: Extra = Extra()
    anything: Any = None

    @computed_field
    @property
    def computed(self) -> set[str]:
        return set(self.names)


WORDS = st.sets(st.text(max_size=4), max_size=5)
FROZEN_WORDS = st.frozensets(st.text(max_size=4), max_size=5)
FROZEN = st.builds(Frozen, name=st.text(max_size=3), tags=FROZEN_WORDS)
ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | WORDS | FROZEN_WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Pair, FROZEN_WORDS, st.text(max_size=3))
        | FROZEN
    ),
    max_leaves=8,
)
HEAPS = st.fixed_dictionaries(
    {},
    optional={
        "names": WORDS,
        "frozen": st.sets(FROZEN),
        "by_name": st.dictionaries(st.text(max_size=3), st.sets(st.integers()), max_size=4),
        "either": WORDS | st.lists(st.text(max_size=3), max_size=4),
        "extra": st.dictionaries(st.sampled_from("abcdef"), st.integers()).map(
            lambda extra: Extra(**extra)
        ),
        "anything": ANYTHING,
    },
)


def otherwise(value: Any) -> Any:
    """An equal value with everything that has no order in another one."""
    match value:
        case Extra():
            return Extra(**dict(reversed((value.model_extra or {}).items())))
        case Pair():
            return Pair(otherwise(value.left), value.right)
        case Frozen():
            return Frozen(name=value.name, tags=otherwise(value.tags))
        case set() | frozenset():
            # Grown beyond its size and shrunk again: elements that collide lie elsewhere.
            grown = {otherwise(item) for item in reversed(list(value))}
            fillers = {("filler", number) for number in range(50)}
            grown |= fillers
            grown -= fillers
            return type(value)(grown)
        case dict():
            return {key: otherwise(item) for key, item in reversed(value.items())}
        case list() | tuple():
            return type(value)(otherwise(item) for item in value)
        case _:
            return value


@settings(max_examples=60)
@given(HEAPS)
def test_equal_nodes_make_equal_prompts_in_any_order_of_creation(values: Any):
    one, two = Heap(**values), Heap(**otherwise(values))
    assert one == two

    first = fill_prompt(Out, ("text",), {}, "Out", one)
    assert first == fill_prompt(Out, ("text",), {}, "Out", two)
    assert known(first)["Heap"].keys() == {*Heap.__pydantic_fields__, "computed"}


async def test_lists_ordered_dicts_and_fields_keep_their_order():
    class Steps(EndNode):
        first: Annotated[int, Dep(lambda: 1)]
        steps: list[str]
        ranks: OrderedDict[str, int]

    given: dict[str, Any] = {"steps": ["b", "a"], "ranks": OrderedDict(z=1, a=2)}
    early, late = Steps(first=1, **given), Steps(**given)
    late.first = 1
    assert list(late.__dict__) != list(early.__dict__)
    shown = await prompt_of(early)
    assert shown == await prompt_of(late)
    assert '"first":1,"steps":["b","a"],"ranks":{"z":1,"a":2}' in shown.text


PROGRAM = """
import sys
from datetime import date
from typing import Annotated, Any
from types import NoneType
from pydantic import BaseModel
from bae import Dep, Node
from bae.prompts.questions import choice_of, fill_prompt

class Deep(BaseModel):
    words: frozenset[str]
    model_config = {"frozen": True}

class Source(Node):
    words: set[str]
    deep: set[Deep]
    by_word: dict[str, set[str]]
    anything: Any
    async def __call__(self) -> None: ...

class Target(Node):
    found: Annotated[set[str], Dep(set)]
    day: date
    deep: Deep
    async def __call__(self) -> None: ...

words = ["alpha", "beta", "gamma", "delta", "epsilon"]
source = Source(
    words=set(words),
    deep={Deep(words=frozenset(words[i:])) for i in range(4)},
    by_word={word: set(words) for word in words},
    anything={frozenset(words), ("a", frozenset(words))},
)
print(fill_prompt(Target, ("day", "deep"), {"found": set(words)}, "Target", source))
choice = choice_of((Target, Source, NoneType), (Source,))
print(choice.prompt(source, {"a": set(words)}))
print(list(set(words)))
"""


def test_prompts_do_not_depend_on_the_hash_seed():
    said = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        env["PYTHONPATH"] = str(Path(bae.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
        )
        said.append(done.stdout.splitlines())
    one, two = said

    assert one[-1] != two[-1]  # or this proves nothing
    assert one[:-1] == two[:-1]
    assert sum("alpha" in line for line in one[:-1]) == one.count("schema:") == 2


async def test_a_model_serializer_is_used_only_for_a_complete_node():
    class Short(EndNode):
        word: Annotated[str, Dep(lambda: "w")]
        text: str

        @model_serializer
        def in_short(self) -> str:
            return f"{self.word}/{self.text}"

    assert await known_fields(Short(word="a", text="b")) == "a/b"
    lm = ToyBackend({"text": "x"})
    await lm.fill(Short, {"word": "w"}, "Short")
    assert known(lm.prompts[0]) == {"context": {"word": "w"}}
