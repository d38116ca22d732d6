"""A conversation with a small model inside the process. `history` has the earlier turns.

bae chat examples/studio/talk.py --lm local
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated

from pydantic import Field

from bae import Graph, Messages, Node, NodeConfig, Thread


class Say(Node):
    text: str = Field(description="what you say")

    async def __call__(self) -> Answer: ...


class Answer(Node):
    node_config = NodeConfig(instruction="Answer in one or two friendly sentences.")
    history: Annotated[Messages, Thread(last=6)]
    text: str = Field(description="the answer", max_length=300)

    async def __call__(self) -> None: ...


graph = Graph(start=Say, end=Answer, name="talk")
