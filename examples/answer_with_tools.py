"""An agent with two tools: the LLM calls functions until it can answer.

The tools are plain functions, and `calls` has the LLM's calls.

    bae run examples/answer_with_tools.py --set text="What is a lamp in pounds?"
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated, Literal

from pydantic import Field

from bae import Graph, Node, ToolCall, ToolError, Tools

PRICES = {"lamp": 40.0, "umbrella": 29.0}
RATES = {"pounds": 0.86, "dollars": 1.08}


async def look_up_price(item: str) -> float:
    """The price of an item, in euros."""
    if item not in PRICES:  # the LLM reads the error, and can correct its call
        raise ToolError(f"no {item} is sold; what is: {', '.join(PRICES)}")
    return PRICES[item]


def convert_euros(euros: float, to: Literal["pounds", "dollars"]) -> float:
    """Convert euros to another currency."""
    return round(euros * RATES[to], 2)


class Question(Node):
    text: str = Field(description="what you want to know")

    async def __call__(self) -> Answer: ...


class Answer(Node):
    calls: Annotated[list[ToolCall], Tools(look_up_price, convert_euros)]
    text: str = Field(description="the answer, from the results", max_length=120)

    async def __call__(self) -> None: ...


graph = Graph(start=Question, end=Answer)
