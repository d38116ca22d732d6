"""What later questions show of tool calls: names and arguments, and with `show="results"` what came
of them; never what differs from one run to the next."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest

from bae import Graph, Node, Recall, ToolCall, ToolError, Tools
from bae.testing import Call, ScriptedLM
from end_node import EndNode


def halve(number: int) -> int:
    """Halve a number."""
    if number % 2:
        raise ToolError("it is odd")
    return number // 2


class Start(Node):
    async def __call__(self) -> Plain | Open: ...


class Plain(Node):
    calls: Annotated[list[ToolCall], Tools(halve)]

    async def __call__(self) -> Between: ...


class Open(Node):
    calls: Annotated[list[ToolCall], Tools(halve, show="results")]

    async def __call__(self) -> Between: ...


class Between(Node):
    word: str

    async def __call__(self) -> End: ...


class End(EndNode):
    plain: Annotated[list[ToolCall] | None, Recall(Plain)] = None
    open: Annotated[list[ToolCall] | None, Recall(Open)] = None
    text: str


NAMES = [
    {"name": "halve", "arguments": {"number": 4}},
    {"name": "halve", "arguments": {"number": 3}},
]
OUTCOMES = [{**NAMES[0], "result": 2}, {**NAMES[1], "error": "it is odd"}]


def known(prompt: Any) -> dict[str, Any]:
    """The JSON of a question, which follows the instruction."""
    return json.loads(prompt.text.partition("\n\n")[2])


@pytest.mark.parametrize(
    ("target", "field", "shown"), [(Plain, "plain", NAMES), (Open, "open", OUTCOMES)]
)
def test_tool_calls_are_shown_as_their_field_configures(
    target: type[Node], field: str, shown: list[Any]
):
    calls = [Call("halve", number=4), Call("halve", number=3)]
    lm = ScriptedLM([target, calls, [], {"word": "so"}, {"text": "done"}])

    Graph(start=Start, end=End).run(Start(), lm=lm)

    by_target = {prompt.question.target: prompt for prompt in lm.prompts}
    assert known(by_target[Between])[target.__name__]["calls"] == shown
    assert known(by_target[End])["context"][field] == shown
