"""Node classes as DSPy signatures: inputs, outputs, and their descriptions."""

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


def test_sources_are_inputs_and_plain_fields_are_outputs_with_their_descriptions() -> None:
    signature = node_to_signature(Mood)
    assert list(signature.input_fields) == ["weather", "before", "allowed", "found"]
    assert list(signature.output_fields) == ["names", "text", "level"]
    assert signature.instructions == "Mood"
    assert "docstring" not in repr(signature)
    assert signature.fields["level"].default == 3
    assert signature.fields["text"].is_required()
    changed = signature.with_instructions("Say how it feels")  # as optimizers do
    assert changed.fields["level"].metadata == [Ge(1)]
    again = signature.load_state(changed.dump_state())
    assert again.instructions == "Say how it feels"
    assert again.equals(changed)


class Awkward(EndNode):
    instructions: Annotated[str, Recall()]
    config: Annotated[str, Recall()]
    client: Annotated[Client, Dep(connect)]
    clients: Annotated[list[Client], Dep(connect)]
    delete: str
    lm: str
    lm_: str
    count: Count


def test_names_reserved_by_dspy_get_an_underscore() -> None:
    signature = node_to_signature(Awkward)
    assert list(signature.input_fields) == ["instructions_", "config_", "client", "clients"]
    assert list(signature.output_fields) == ["delete_", "lm__", "lm_", "count"]
    dspy.Predict(signature.with_instructions("Be awkward"))


def test_the_previous_node_is_an_additional_input() -> None:
    signature = with_source(node_to_signature(Mood))
    assert next(iter(signature.input_fields)) == "source"
    assert signature.instructions == "Mood"

    class Taken(EndNode):
        source: Annotated[str, Recall()]
        text: str

    assert list(with_source(node_to_signature(Taken)).input_fields) == ["source_", "source"]


def test_a_choice_signature_allows_only_the_offered_names() -> None:
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
        f"field_{number}": candidate
        for number, candidate in enumerate(product(TYPES, (None, *SOURCES)))
    }
    drawn |= dict.fromkeys(AWKWARD, (str, None))
    made: dict[str, Any] = {
        name: (kind if source is None else Annotated[kind, source()], Field(description=name))
        for name, (kind, source) in drawn.items()
    }
    cls = create_model("Drawn", __base__=Node, __module__=__name__, **made)
    signature = node_to_signature(cls, is_start=is_start)
    # Optimizers make signatures again from the fields of others.
    for variant in (signature, signature.with_instructions("Other")):
        known = {model_name(n, f): f for n, f in variant.fields.items()}
        outputs = {model_name(n, f) for n, f in variant.output_fields.items()}
        assert known.keys() == drawn.keys()
        assert outputs == {n for n, (_, source) in drawn.items() if source is None and not is_start}
        for name in drawn:
            info = cls.model_fields[name]
            assert known[name].annotation == (int if info.annotation is Count else info.annotation)
            assert known[name].json_schema_extra["desc"] == name
    assert signature.instructions == "Drawn"
