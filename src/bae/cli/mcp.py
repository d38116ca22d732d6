"""The command `bae mcp`: list the MCP servers that a graph uses, or serve a graph as an MCP
server."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from bae.cli import exits
from bae.cli.journals import journal_for, open_to_write
from bae.cli.learned import lm_with_learned
from bae.cli.lm import check_lm
from bae.cli.loading import load, load_proved
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    MaxIters,
    Module,
    Optimized,
    above_zero,
    examples,
    flag,
    option,
    refuse_both_journals,
)
from bae.cli.printing import error_data, note, out, print_error, print_hanging, print_json
from bae.cli.signals import run_until_signal
from bae.cli.wording import count, in_lines
from bae.exceptions import ToolServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bae.mcp import MCP
    from bae.tools import Tool

group = typer.Typer(no_args_is_help=True, help="List MCP servers, and serve a graph as one.")

_TIMEOUT: Final = 60.0


@group.command(
    "list",
    epilog=examples(
        "bae mcp list app.py", "bae mcp list app.py --json", "bae mcp list --timeout 5"
    ),
)
def list_servers(
    module: Module = None,
    timeout: Annotated[
        float,
        option(
            "--timeout SECONDS",
            "How long to wait for each server.",
            callback=above_zero,
        ),
    ] = _TIMEOUT,
    as_json: AsJSON = False,
) -> None:
    """List the MCP servers of a graph, and their tools.

    bae starts each server or connects to it, lists its tools, and closes it again. No tool is
    called. The exit code is 1 if a server could not be opened.
    """
    from bae.mcp.servers import servers_of

    servers = servers_of(load(module).graph)
    listed = [
        (server, places, run_until_signal(_read_tools(server, timeout)))
        for server, places in servers.items()
    ]
    if as_json:
        print_json({"servers": [_as_data(*row) for row in listed]})
    else:
        for row in listed:
            _print_server(*row)
        if not listed:
            note("the graph uses no MCP server: name one in Tools(…)")
    if any(isinstance(tools, ToolServerError) for _, _, tools in listed):
        raise typer.Exit(exits.FAILED)


async def _read_tools(server: MCP, timeout: float) -> Any:
    try:
        async with server.within(timeout).open() as tools:
            return tools
    except ToolServerError as error:
        return error


def _print_server(server: MCP, places: Sequence[str], tools_or_error: Any) -> None:
    out().print(Text(f"{server.name}  {server.address}  ({', '.join(places)})", style="bold"))
    if isinstance(tools_or_error, ToolServerError):
        print_error(tools_or_error)
        return
    for tool in tools_or_error:
        first = (tool.description.strip().splitlines() or [""])[0]
        print_hanging(out(), Text(f"  {tool.name}  {in_lines(first, 4)}"), 4)
    out().print(f"  {count(len(tools_or_error), 'tool')}")


def _as_data(server: MCP, places: Sequence[str], tools_or_error: Any) -> dict[str, Any]:
    failed = isinstance(tools_or_error, ToolServerError)
    tools: Sequence[Tool] = () if failed else tools_or_error
    return {
        "name": server.name,
        "address": server.address,
        "fields": list(places),
        "tools": [
            {"name": tool.name, "description": tool.description, "schema": dict(tool.schema or {})}
            for tool in tools
        ],
        "error": error_data(tools_or_error) if failed else None,
    }


@group.command(
    "serve",
    epilog=examples(
        "bae mcp serve app.py --lm claude-cli:sonnet",
        "claude mcp add wardrobe -- bae mcp serve app.py --lm local",
    ),
)
def serve(
    context: typer.Context,
    module: Module = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MaxIters = 10,
    journal: JournalFile = None,
    no_journal: Annotated[bool, flag("--no-journal", "Do not store the runs.")] = False,
) -> None:
    """Serve a graph as an MCP tool over stdin and stdout.

    The fields of the start node are the arguments of the tool. The last node is the tool's result.
    The server reports progress. Only the protocol is written to stdout: output of the graph goes to
    stderr. The server ends when stdin is closed.
    """
    from bae.lm.extras import install_line, is_there

    if not is_there("mcp"):
        raise ToolServerError(
            "bae mcp serve needs the package mcp, which is not installed",
            code="bae-mcp-missing",
            fix=install_line("mcp"),
        )
    from bae.mcp import GraphServer
    from bae.mcp.serving import take_stdio

    refuse_both_journals(context, no_journal=no_journal)
    with take_stdio() as wire:  # importing the module may print
        graph = load_proved(module)
        check_lm(graph, lm, begins=True)
        model = lm_with_learned(graph, lm, optimized)
        file = None if no_journal else journal_for(graph, journal, "no run can be resumed")

        async def serve_graph() -> None:
            async with open_to_write(file) if file else nullcontext() as opened:
                server = GraphServer(graph, model, journal=opened, max_iters=max_iters)
                await server.serve_stdio(wire)

        run_until_signal(serve_graph())
