"""A small MCP server with the stock of a shop, made with the official SDK. `use_an_mcp_server.py`
starts it."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("warehouse")
STOCK = {"lamp": 3, "umbrella": 0}


@server.tool()
def count_stock(item: str) -> int:
    """How many pieces of an item are in stock."""
    return STOCK.get(item, 0)


if __name__ == "__main__":
    server.run()
