"""For tests of tools over HTTP: nodes that are filled after tool calls, and a script of calls for
each way that a backend gets them, natively or by a schema."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from bae import Graph, Node, Text, ToolCall, ToolError, Tools
from bae.lm.backend import Backend
from bae.prompts.tools import WRAPPER
from bae.testing import Call, Calls
from end_node import EndNode


async def search(query: str, limit: int = 2) -> list[str]:
    """Search the catalog.

    Args:
        query: what to look for
    """
    return [f"{query} {number}" for number in range(limit)]


def read_page(page: int) -> str:
    """Read a page."""
    if page > 100:
        raise ToolError("there are 100 pages")
    return f"this is page {page}"


def now() -> str:
    """Tell the time."""
    return "noon"


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    calls: Annotated[list[ToolCall], Tools(search, read_page, now)]
    answer: str
    pages: list[int] = Field(max_length=3)


class Writing(Node):
    text: str

    async def __call__(self) -> Note: ...


class Note(EndNode):
    calls: Annotated[list[ToolCall], Tools(search)]
    note: Annotated[str, Text()] = Field(description="one line")


class Working(Node):
    text: str

    async def __call__(self) -> Work: ...


class Work(EndNode):
    calls: Annotated[list[ToolCall], Tools(search, now)]


class Pricing(Node):
    text: str

    async def __call__(self) -> Prices: ...


class Prices(EndNode):
    """Its schema does not fit the channel of Claude for structured output."""

    calls: Annotated[list[ToolCall], Tools(search, now)]
    by_name: dict[str, float]


class Hurrying(Node):
    text: str

    async def __call__(self) -> Hurry: ...


class Hurry(EndNode):
    calls: Annotated[list[ToolCall], Tools(search, now, limit=1, on_limit="answer")]
    answer: str


QUESTION, WRITING, WORKING = Graph(start=Question), Graph(start=Writing), Graph(start=Working)
PRICING, HURRYING = Graph(start=Pricing), Graph(start=Hurrying)


def rounds(lm: Backend, *answers: Any) -> list[Any]:
    """The answers of a provider for this backend: calls in its format, and an answer."""
    if lm.calls_tools:
        return list(answers)
    made: list[Any] = []
    for answer in answers:
        if isinstance(answer, Call):
            made.append({WRAPPER: {"action": answer.name, **answer.arguments}})
        elif isinstance(answer, Calls | list):
            raise TypeError("a model without native tool calls makes one in a round")
        elif isinstance(answer, dict):
            made.append({WRAPPER: {"action": "answer", **answer}})
        else:
            made.append(answer)
    return made
