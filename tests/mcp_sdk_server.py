"""An MCP server made with the official SDK, as a program on stdio and as an app for HTTP."""

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

server = MCPServer("sdk", log_level="CRITICAL")


class Hit(BaseModel):
    title: str
    score: float


class Consent(BaseModel):
    yes: bool


@server.tool()
def search(query: str, most: int = 2) -> list[Hit]:
    """Search the catalog."""
    return [Hit(title=f"{query} {n}", score=1 / (n + 1)) for n in range(most)]


@server.tool()
def fail() -> str:
    raise ValueError("the index is gone")


@server.tool()
async def climb(ctx: Context) -> str:
    await ctx.report_progress(1, 2, "half way")
    return "up"


@server.tool()
async def consent(ctx: Context) -> str:
    answer = await ctx.elicit("May I?", Consent)
    return str(answer)


@server.tool()
def ask_more() -> InputRequiredResult:
    asked = ElicitRequest(
        params=ElicitRequestFormParams(
            message="May I?", requested_schema={"type": "object", "properties": {}}
        )
    )
    return InputRequiredResult(input_requests={"one": asked})


@server.tool()
def draw() -> Image:
    return Image(data=b"12345", format="png")


if __name__ == "__main__":
    server.run()
