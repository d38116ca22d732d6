"""`bae serve`: serves a graph over HTTP."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Final

import typer

from bae.cli.journals import file_to_write, open_to_write
from bae.cli.learned import lm_with_learned
from bae.cli.lm import check_lm, make_lm
from bae.cli.loading import load_proved
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    MaxIters,
    Module,
    Optimized,
    examples,
    option,
)
from bae.cli.printing import note, out, print_json
from bae.cli.signals import run_until_signal
from bae.exceptions import BaeError

EPILOG: Final = examples(
    "bae serve app.py --lm local",
    "bae serve app.py --port 8800 --journal runs.db",
    "bae serve app.py --allow-origin http://127.0.0.1:5173",
    "BAE_SERVE_TOKEN=… bae serve app.py --host 0.0.0.0 --allow-host bae.example.com",
)
SHORTEST_TOKEN: Final = 8
"""The minimum length of a token that the user chooses."""


def serve(
    module: Module = None,
    port: Annotated[int, option("--port PORT", "The port; 0 is a free one.", min=0, max=65535)] = 0,
    host: Annotated[str, option("--host ADDRESS", "The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        option(
            "--allow-host NAME",
            "Another host name of the server, besides the names of loopback. Repeatable.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        option(
            "--allow-origin ORIGIN",
            "A web page of another site that may use the API: http://127.0.0.1:5173. Repeatable.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "--token TOKEN",
            "The token for every request. Default: a new token, which is printed.",
            envvar="BAE_SERVE_TOKEN",
        ),
    ] = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MaxIters = 10,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Serve a graph over HTTP: start, follow, answer and inspect its runs.

    Every request needs a token, on this machine too. The server resumes interrupted runs, and runs
    whose gates have answers. A server that stops takes no new runs and hands over its runs: the
    next server continues them. /openapi.json describes the endpoints.
    """
    need_server()
    from bae.serve import bearer, router
    from bae.serve.access import LOOPBACK, parse_origin
    from bae.serve.server import listening

    key = find_token(token)
    try:
        origins = [parse_origin(origin) for origin in allow_origin or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--allow-origin'") from error
    graph = load_proved(module)
    check_lm(graph, lm, begins=True)
    # All runs share one LM: each run gets the next answer of a scripted LM, not the first.
    model = lm_with_learned(graph, make_lm(graph, lm, quiet=as_json), optimized)
    file = file_to_write(journal)
    names = (*LOOPBACK, host, *(allow_host or ()))

    async def serve_graph() -> None:
        async with open_to_write(file) as run_journal:
            api = router(
                graph,
                journal=run_journal,
                lm=model,
                max_iters=max_iters,
                auth=bearer(key),
                hosts=names,
                origins=origins,
            )
            async with listening(api, host, port) as url:
                if as_json:
                    print_json({"url": url, "token": key, "graphs": [graph.name], "journal": file})
                else:
                    out().print(f"{graph.name} is served at {url}", soft_wrap=True)
                    if token is None:
                        out().print(f"token: {key}", soft_wrap=True)
                    note(f"runs are kept in {file}; Ctrl-C stops the server")
                await asyncio.Event().wait()

    run_until_signal(serve_graph())


def find_token(given: str | None) -> str:
    """Return the token that every request needs: `given`, or a new token. Raise BadParameter if
    `given` is too short, or not ASCII."""
    if given is None:
        return secrets.token_urlsafe(24)
    if len(given) < SHORTEST_TOKEN or not given.isascii():
        raise typer.BadParameter(
            f"give at least {SHORTEST_TOKEN} ASCII characters, or leave it out",
            param_hint="'--token'",
        )
    return given


def need_server() -> None:
    """Raise BaeError if the packages of the extra `serve` are missing."""
    from bae.lm.extras import install_line, is_there

    if not (is_there("starlette") and is_there("uvicorn") and is_there("websockets")):
        raise BaeError(
            "a server needs the packages starlette, uvicorn and websockets",
            code="bae-serve-missing",
            fix=install_line("serve"),
        )
