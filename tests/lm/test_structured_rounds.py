"""Tools for a model without native tool calls: a round is one structured answer, a call or the
values of the node, whatever the user has named things."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from bae import Graph, Node, ToolCall, Tools
from bae.lm import Prompt
from end_node import EndNode
from toy_backend import ToyBackend


def answer(action: str) -> str:
    """A tool with names that a round has too."""
    return f"{action}!"


def look_up(next_step: str) -> str:
    return f"{next_step}!"


class Plain(EndNode):
    calls: Annotated[list[ToolCall], Tools(answer)]
    text: str


class Clashing(EndNode):
    calls: Annotated[list[ToolCall], Tools(look_up)]
    action: str


class Start(Node):
    async def __call__(self) -> Plain | Clashing: ...


def tag_of(option: dict[str, Any]) -> dict[str, Any]:
    """The first property of an alternative, with the one value that it may have."""
    tag, part = next(iter(option["properties"].items()))
    return {tag: part["const"]}


@pytest.mark.parametrize(
    ("target", "arguments", "values"),
    [
        (Plain, {"action": "a"}, {"text": "done"}),
        (Clashing, {"next_step": "a"}, {"action": "done"}),
    ],
    ids=["parameters", "fields"],
)
async def test_parameters_and_fields_may_use_the_key_names_of_a_round(
    target: type[Any], arguments: dict[str, Any], values: dict[str, Any]
):
    rounds: list[Prompt] = []

    def say(prompt: Prompt) -> dict[str, Any]:
        if len(prompt.question.types) > 1:
            return {"choice": target.__name__}
        rounds.append(prompt)
        assert prompt.schema is not None
        call, final = prompt.schema["properties"]["next_step"]["anyOf"]
        given = {**tag_of(call), **arguments} if len(rounds) == 1 else {**tag_of(final), **values}
        return {"next_step": given}

    graph = Graph(start=Start, end=(Plain, Clashing))
    run = await graph.arun(Start(), ToyBackend(say))

    assert [call.result for call in run.result.calls] == ["a!"]
    assert {name: getattr(run.result, name) for name in values} == values
