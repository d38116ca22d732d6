"""A chat with a shop: the LLM has two tools, and one of them asks you first.

`history` has the earlier turns of the thread.

    bae chat examples/chat.py
    bae run examples/chat.py --set text="Please cancel my order B-4."  # one turn alone
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated

from pydantic import Field

from bae import Graph, Messages, Node, NodeConfig, Thread, Tool, ToolCall, ToolError, Tools

ORDERS = {"A-17": "a lamp, shipped on Monday", "B-4": "an umbrella, still in the warehouse"}


def look_up_order(number: str) -> str:
    """What an order is, and where."""
    if number not in ORDERS:  # the LLM reads the error, and can ask for the number
        raise ToolError(f"there is no order {number}")
    return ORDERS[number]


def cancel_order(number: str) -> str:
    """Cancel an order that is still in the warehouse."""
    if "warehouse" not in ORDERS.get(number, ""):
        raise ToolError(f"order {number} is not in the warehouse")
    return f"{number} is cancelled"


class Message(Node):
    text: str = Field(description="what you want to know or change")

    async def __call__(self) -> Reply: ...


class Reply(Node):
    node_config = NodeConfig(
        instruction="Answer the customer of a small shop. Look up orders before you speak of them."
    )
    history: Annotated[Messages, Thread(last=20)]
    calls: Annotated[list[ToolCall], Tools(look_up_order, Tool(cancel_order, approve=True))]
    text: str = Field(description="the reply to the customer", max_length=400)

    async def __call__(self) -> None: ...


graph = Graph(start=Message, end=Reply)
