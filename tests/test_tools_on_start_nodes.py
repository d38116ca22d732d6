"""A start node with `Tools`: the caller fills it, so no LM could call them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bae import Graph, Node, ToolCall, Tools


def count(word: str) -> int:
    """Count the letters of a word."""
    return len(word)


class Required(Node):
    calls: Annotated[list[ToolCall], Tools(count)]

    async def __call__(self) -> None: ...


class Optional(Node):
    calls: Annotated[list[ToolCall], Tools(count)] = Field(default=[])

    async def __call__(self) -> None: ...


class Again(Node):
    calls: Annotated[list[ToolCall], Tools(count)]

    async def __call__(self) -> Again | None: ...


class Outer(Node):
    text: str

    async def __call__(self) -> Answered: ...


class Answered(Node):
    calls: Annotated[list[ToolCall], Tools(Graph(start=Required))]

    async def __call__(self) -> None: ...


def problems(graph: Graph[Node, Node]) -> list[tuple[str, str]]:
    return [(problem.code, problem.place) for problem in graph.validate()]


def test_tools_on_a_start_node_that_no_llm_fills_are_refused_before_the_run():
    assert problems(Graph(start=Required)) == [("bae-tools-start", "Required.calls")]
    assert problems(Graph(start=Outer)) == [("bae-tools-start", "Required.calls")]


def test_a_start_node_may_have_tools_with_a_default_or_a_later_fill():
    assert problems(Graph(start=Again)) == []
    assert problems(Graph(start=Optional)) == []
