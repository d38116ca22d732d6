"""MCP: servers whose tools a model may call, and graphs as MCP servers. The official SDK is
imported when a server is opened or a graph is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.mcp.servers import MCP, servers_of
    from bae.mcp.serving import GraphServer

__all__ = ["MCP", "GraphServer", "servers_of"]

__getattr__, __dir__ = export_lazily(
    __name__, {"servers": "MCP servers_of", "serving": "GraphServer"}
)
