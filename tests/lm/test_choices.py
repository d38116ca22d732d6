"""Choosing on top of one method: one of the names that were offered, asked for again where it is
none of them, and never guessed at."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal

import pytest

from asked_nodes import Fork, Left, Right
from bae import Node, RouteError
from bae.journal import AnswerJudged
from bae.lm import Answer
from bounded import run
from end_node import EndNode
from toy_backend import ToyBackend, choose


class Open(Node):
    async def __call__(self) -> Left | Right | None: ...


async def test_a_choice_with_one_candidate_needs_no_llm_call():
    lm = ToyBackend()

    assert await lm.choose_type([Left], {}) is Left
    assert await lm.choose_type([NoneType], {}) is NoneType
    assert lm.calls == 0
    with pytest.raises(ValueError, match="nothing to choose from"):
        await lm.choose_type([], {})


@pytest.mark.parametrize(
    "outside",
    [
        choose("Elsewhere"),
        choose("left"),
        choose(" Left"),
        choose("None"),
        choose(1),
        choose(True),
        choose(None),
        choose(["Left"]),
        choose({"choice": "Left"}),
        {},
        {"answer": {"choice": "Left"}},
        {"Choice": "Left"},
    ],
    ids=str,
)
async def test_an_invalid_choice_is_requested_again_and_finally_an_error(outside: Any):
    lm = ToyBackend(outside, choose("Right"))
    assert type((await run(Fork(), lm)).trace[-1]) is Right
    (turn,) = lm.prompts[1].corrections
    assert turn.correction.startswith("That was not valid:\n- choice: ")
    assert turn.correction.endswith("is not one of Left, Right\nAnswer again.")
    assert lm.rejected == [lm.prompts[0]]

    lm = ToyBackend(lambda prompt: outside)
    with pytest.raises(RouteError) as caught:
        await run(Fork(), lm)
    assert (caught.value.code, caught.value.node_type) == ("bae-choice-outside", Fork)
    assert "among Left, Right" in caught.value.message
    assert lm.calls == 3
    assert caught.value.journal is not None
    assert len(caught.value.journal.of(AnswerJudged)) == 3


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Left", "bae-choice-unparsable"),
        ('"Left"', "bae-choice-unparsable"),
        ("", "bae-choice-empty"),
        (Answer('{"choice": "Le', stop="cut-off"), "bae-choice-cut-off"),
        (Answer("I would rather not", stop="refused"), "bae-choice-refused"),
    ],
    ids=["text", "no object", "empty", "cut off", "refused"],
)
async def test_answers_without_a_choice_have_distinct_error_codes(said: Any, code: str):
    lm = ToyBackend(lambda prompt: said)
    with pytest.raises(RouteError) as caught:
        await run(Fork(), lm)

    error = caught.value
    assert (error.code, error.node_type) == (code, Fork)
    assert len(error.tried) == lm.calls == (1 if code == "bae-choice-refused" else 3)
    assert error.fix


async def test_none_is_offered_only_if_the_return_type_allows_it():
    lm = ToyBackend(choose("None"))
    result = await run(Open(), lm)
    assert len(result.trace) == 1
    assert lm.prompts[0].schema["properties"]["choice"]["enum"] == ["Left", "Right", "None"]

    lm = ToyBackend(choose("Left"))
    await run(Fork(), lm)
    assert lm.prompts[0].schema["properties"]["choice"]["enum"] == ["Left", "Right"]
    assert "None" not in lm.prompts[0].text


async def test_two_candidate_classes_with_one_name_are_distinguished():
    def twin(value: str) -> type[Node]:
        class Twin(EndNode):
            text: Literal["one", "two"] = value  # type: ignore[assignment]

        return Twin

    one, two = twin("one"), twin("two")
    for name, chosen in (("Twin", one), ("Twin_2", two), ("None", NoneType)):
        lm = ToyBackend(choose(name))
        assert await lm.choose_type([one, two, NoneType], {}) is chosen
        names = lm.prompts[0].schema["properties"]["choice"]["enum"]
        assert names == ["Twin", "Twin_2", "None"]
