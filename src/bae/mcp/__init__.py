"""MCP: servers whose tools a model may call, and graphs as MCP servers. bae imports the official
SDK when it opens a server or serves a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.mcp.servers import MCP
    from bae.mcp.serving import GraphServer

__all__ = ["MCP", "GraphServer"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {"servers": "MCP", "serving": "GraphServer"},
    former={"servers_of": ("mcp.servers", "`bae mcp list` lists the tools of servers")},
)
