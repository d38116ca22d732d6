"""Node classes as DSPy signatures: which fields are inputs and which outputs, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
from annotated_types import Ge
from pydantic import AfterValidator, BaseModel, Field, create_model

from bae import Dep, Gate, Map, Node, Recall
from bae.lm.signatures import choice_signature, model_name, node_to_signature, with_source
from end_node import EndNode

dspy = pytest.importorskip("dspy")

Count = NewType("Count", int)


class Client:
    """No data: nothing that JSON can say."""


class Weather(BaseModel):
    sky: str


async def get_weather() -> Weather: ...
async def connect() -> Client: ...
async def look_up(name: str) -> str: ...


class Mood(EndNode):
    """A docstring of Mood, for people alone."""

    weather: Annotated[Weather, Dep(get_weather)]
    before: Annotated[str, Recall()]
    allowed: Annotated[bool, Gate("May I?")]
    names: list[str]
    found: Annotated[list[str], Map(look_up, over="names")]
    text: str = Field(description="in one word", min_length=2)
    level: Annotated[int, Ge(1)] = 3


def test_fields_with_a_source_are_inputs_and_plain_ones_outputs() -> None:
    signature = node_to_signature(Mood)
    assert list(signature.input_fields) == ["weather", "before", "allowed", "found"]
    assert list(signature.output_fields) == ["names", "text", "level"]


def test_the_instruction_is_the_class_name_alone() -> None:
    signature = node_to_signature(Mood)
    assert signature.instructions == "Mood"
    assert "docstring" not in repr(signature)


def test_descriptions_types_constraints_and_defaults_are_kept() -> None:
    fields = node_to_signature(Mood).fields
    assert fields["text"].json_schema_extra["desc"] == "in one word"
    assert fields["weather"].annotation is Weather
    assert fields["names"].annotation == list[str]
    assert fields["level"].metadata == [Ge(1)]
    assert fields["level"].default == 3
    assert fields["text"].is_required()


def test_a_signature_can_be_changed_as_optimizers_do_and_keeps_its_fields() -> None:
    signature = node_to_signature(Mood)
    changed = signature.with_instructions("Say how it feels")
    assert changed.instructions == "Say how it feels"
    assert {n: f.annotation for n, f in changed.fields.items()} == {
        n: f.annotation for n, f in signature.fields.items()
    }
    assert changed.fields["level"].metadata == [Ge(1)]
    again = signature.load_state(changed.dump_state())
    assert again.instructions == "Say how it feels"
    assert again.equals(changed)


class Awkward(EndNode):
    instructions: Annotated[str, Recall()]
    config: Annotated[str, Recall()]
    delete: str
    lm: str
    lm_: str
    count: Count


def test_names_that_dspy_needs_for_itself_get_an_underscore_and_the_model_sees_their_own() -> None:
    signature = node_to_signature(Awkward)
    assert list(signature.input_fields) == ["instructions_", "config_"]
    assert list(signature.output_fields) == ["delete_", "lm__", "lm_", "count"]
    known = {name: model_name(name, field) for name, field in signature.fields.items()}
    assert list(known.values()) == list(Awkward.model_fields)
    assert signature.instructions == "Awkward"
    dspy.Predict(signature.with_instructions("Be awkward"))


class Connected(EndNode):
    client: Annotated[Client, Dep(connect)]
    clients: Annotated[list[Client], Dep(connect)]
    text: str


def test_a_field_that_is_no_data_is_an_input_all_the_same() -> None:
    signature = node_to_signature(Connected)
    assert list(signature.input_fields) == ["client", "clients"]
    assert signature.fields["client"].annotation is Client
    signature.with_instructions("Be connected")


def test_the_node_the_run_comes_from_is_one_more_input() -> None:
    signature = with_source(node_to_signature(Mood))
    assert next(iter(signature.input_fields)) == "source"
    assert signature.instructions == "Mood"

    class Taken(EndNode):
        source: Annotated[str, Recall()]
        text: str

    assert list(with_source(node_to_signature(Taken)).input_fields) == ["source_", "source"]


def test_a_choice_can_only_be_one_of_its_names() -> None:
    signature = choice_signature(("Mood", "None"))
    assert signature.output_fields["choice"].annotation == Literal["Mood", "None"]


SOURCES: list[Callable[[], Any]] = [
    lambda: Dep(get_weather),
    Recall,
    lambda: Gate("Well?"),
    lambda: Map(look_up, over="other"),
]
TYPES: list[Any] = [
    str,
    int,
    float,
    bool,
    list[str],
    dict[str, int],
    Optional[int],
    str | None,
    Literal["a", "b"],
    Weather,
    list[Weather],
    Count,
    Annotated[int, Ge(0)],
    Annotated[str, AfterValidator(str.strip)],
    Any,
]
AWKWARD = ["instructions", "fields", "signature", "config", "lm", "demos", "source", "bae"]


@pytest.mark.parametrize("is_start", [False, True])
def test_every_node_class_becomes_a_signature_by_the_same_rules(is_start: bool) -> None:
    drawn = {
        f"field_{number}": each for number, each in enumerate(product(TYPES, (None, *SOURCES)))
    }
    drawn |= dict.fromkeys(AWKWARD, (str, None))
    made: dict[str, Any] = {
        name: (kind if source is None else Annotated[kind, source()], Field(description=name))
        for name, (kind, source) in drawn.items()
    }
    cls = create_model("Drawn", __base__=Node, __module__=__name__, **made)
    signature = node_to_signature(cls, is_start=is_start)
    # Optimizers make signatures again from the fields of others.
    for each in (signature, signature.with_instructions("Other")):
        known = {model_name(n, f): f for n, f in each.fields.items()}
        outputs = {model_name(n, f) for n, f in each.output_fields.items()}
        assert known.keys() == drawn.keys()
        assert outputs == {n for n, (_, source) in drawn.items() if source is None and not is_start}
        for name in drawn:
            info = cls.model_fields[name]
            assert known[name].annotation == (int if info.annotation is Count else info.annotation)
            assert known[name].json_schema_extra["desc"] == name
    assert signature.instructions == "Drawn"
