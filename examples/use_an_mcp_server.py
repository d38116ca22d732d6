"""An agent with the tools of an MCP server: a program that starts with the run and ends with it.

It needs the extra `mcp`. `bae mcp list examples/use_an_mcp_server.py` shows the tools.

    bae run examples/use_an_mcp_server.py --set text="Do you have lamps?"
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bae import MCP, Graph, Node, ToolCall, Tools

SERVER = Path(__file__).with_name("mcp_data") / "warehouse.py"
warehouse = MCP.stdio(sys.executable, str(SERVER), only=["count_stock"], timeout=10)


class Question(Node):
    text: str = Field(description="what you want to know")

    async def __call__(self) -> Answer: ...


class Answer(Node):
    calls: Annotated[list[ToolCall], Tools(warehouse)]
    text: str = Field(description="the answer, from the results", max_length=120)

    async def __call__(self) -> None: ...


graph = Graph(start=Question, end=Answer)
