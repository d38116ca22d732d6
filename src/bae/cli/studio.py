"""`bae studio`: serves a page for graphs, a journal and a team on this machine. The page uses the
API of `bae.serve`."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.journals import file_to_read, file_to_write
from bae.cli.lm import check_lm
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    MaxIters,
    Modules,
    examples,
    flag,
    option,
)
from bae.cli.printing import note, out, print_json
from bae.cli.questions import can_ask
from bae.cli.serve import find_token, need_server
from bae.cli.signals import run_until_signal
from bae.cli.studio_source import StudioSource, absolute_lm, load_graphs
from bae.exceptions import BaeError
from bae.lm.registry import cached_lm, find_default_name

if TYPE_CHECKING:
    from collections.abc import Generator

    from bae.serve.studio import Studio
    from bae.serve.studio_login import Logins

EPILOG: Final = examples(
    "bae studio app.py --lm local --open",
    "bae studio app.py refunds.py --journal runs.db",
    "bae studio --journal runs.db",
    "bae studio --team . --open",
)
PORT: Final = 8421
"""The default port. It is fixed because a browser stores a login for one address."""
_PORTS: Final = 20
"""How many ports the studio tries, starting at `PORT`."""


def studio(
    modules: Modules = None,
    journal: JournalFile = None,
    team: Annotated[
        str | None, option("--team DIR", "The repository of a team, to show and steer it.")
    ] = None,
    port: Annotated[
        int | None,
        option(
            "--port PORT",
            f"The port; 0 is a free one. Default: {PORT}, or the next that is free.",
            min=0,
            max=65535,
        ),
    ] = None,
    opens: Annotated[bool, flag("--open", "Open the page in the browser.")] = False,
    host: Annotated[str, option("--host ADDRESS", "The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        option(
            "--allow-host NAME",
            "A name under which the page is reached, besides loopback names. Repeatable.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        option(
            "--allow-origin ORIGIN",
            "A site whose pages may use the API, such as http://127.0.0.1:5173. Repeatable.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "--token TOKEN",
            "A token for scripts. Browsers have tokens of their own. Default: a new token.",
            envvar="BAE_STUDIO_TOKEN",
        ),
    ] = None,
    lm: LMName = None,
    max_iters: MaxIters = 10,
    as_json: AsJSON = False,
) -> None:
    """Open a page to watch, chat with and steer runs and teams.

    The printed link logs in one browser for 30 days, also if the studio is restarted meanwhile.
    Press Enter for another link, or call the same command again.

    Without a graph, the page shows the runs of the journal, but cannot start or answer them. With
    --team, the page can also make and approve plans, and start and steer the team.
    """
    need_server()
    from bae.serve.access import parse_origin

    key = find_token(token)
    try:
        origins = [parse_origin(origin) for origin in allow_origin or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--allow-origin'") from error
    graphs, arguments = load_graphs(modules, journal, team)
    for graph in graphs.values():
        if lm is not None:
            check_lm(graph, lm)
    name = lm or find_default_name().name
    file = None
    if graphs:
        file = file_to_write(journal)
    elif journal is not None or team is None:
        file = file_to_read(journal)
    source = StudioSource(
        modules=modules or (),
        graphs=graphs,
        named=arguments,
        file=file,
        team=None if team is None else Path(team).resolve(),
        lm_name=None if lm is None else absolute_lm(lm),
        lm=name,
        model=cached_lm(name) if name and graphs else None,
        max_iters=max_iters,
        key=key,
        hosts=(host, *(allow_host or ())),
        origins=origins,
    )
    serves = {
        "modules": [
            os.path.abspath(module) if "/" in module else module for module in modules or ()
        ],
        "folder": os.getcwd(),
        "journal": file and file.absolute,
        "team": source.team and str(source.team),
        "options": [lm, max_iters, host, port, *source.hosts, *origins],
        "token": token and sha256(token.encode()).hexdigest(),
    }
    with _open_logins() as logins:
        if url := _find_running(logins, serves):
            _print_links(url, logins, token, source, opens=opens, as_json=as_json)
            note("this studio is running already")
            return
        run_until_signal(_serve(source, logins, host, port, serves, opens=opens, as_json=as_json))


async def _serve(
    source: StudioSource,
    logins: Logins,
    host: str,
    port: int | None,
    serves: dict[str, Any],
    *,
    opens: bool,
    as_json: bool,
) -> None:
    async with AsyncExitStack() as stack:
        studio = await stack.enter_async_context(source.open(logins))
        url = await _listen(stack, studio, host, port)
        logins.announce(url, serves)
        stack.callback(logins.withdraw, url)
        show = partial(_print_links, url, logins, source.key, source, as_json=as_json)
        show(opens=opens)
        if not as_json:
            note("the link logs in one browser; Enter prints another, Ctrl-C stops the studio")
        with _call_on_enter(partial(show, opens=False)):
            await asyncio.Event().wait()


async def _listen(stack: AsyncExitStack, studio: Studio, host: str, port: int | None) -> str:
    """Listen on `port`, and return the address. Without a port, take the first free port, starting
    at `PORT`."""
    from bae.serve.server import listening

    if port is not None:
        return await stack.enter_async_context(listening(studio.api, host, port, app=studio))
    for number in range(PORT, PORT + _PORTS):
        try:
            opened = listening(studio.api, host, number, app=studio)
            url = await stack.enter_async_context(opened)
        except BaeError as error:
            if error.code != "bae-serve-address" or number == PORT + _PORTS - 1:
                raise
            continue
        if number != PORT:
            note(
                f"port {PORT} is taken, so this studio is on {number}; --port chooses another port"
            )
        return url
    raise AssertionError


def _print_links(
    url: str, logins: Logins, key: str | None, source: StudioSource, *, opens: bool, as_json: bool
) -> None:
    """Print a new link to the studio. With `as_json`, print the link and facts about the studio as
    JSON."""
    link = f"{_local_address(url)}/#token={logins.make_link_token()}"
    if as_json:
        about = {"url": url, "link": link, "token": key, "graphs": [*source.graphs]}
        print_json({**about, "journal": source.file, "team": source.team and str(source.team)})
    else:
        out().print(f"bae studio: {link}", soft_wrap=True)
    if opens and not webbrowser.open(link):
        note("no browser could be opened: open the link yourself")


def _local_address(url: str) -> str:
    """Return the address for a browser on this machine, even if the server listens on all
    addresses."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


@contextmanager
def _open_logins() -> Generator[Logins]:
    """Open the stored logins of this user. If logins cannot be stored, they end with this
    process."""
    from bae.serve.studio_login import Logins, login_file

    with ExitStack() as stack:
        try:
            logins = stack.enter_context(Logins(login_file()))
        except (OSError, RuntimeError, BaeError) as error:
            note(f"logins are forgotten when the studio stops: {error}")
            logins = stack.enter_context(Logins(None))
        yield logins


def _find_running(logins: Logins, serves: dict[str, Any]) -> str | None:
    """Return the address of a running studio that was started with exactly `serves`: the same parts
    and options. Return None if there is none."""
    from urllib.request import ProxyHandler, build_opener

    url = logins.find_server(serves)
    if url is None:
        return None
    with suppress(OSError, ValueError):
        # Without the proxies of the environment: the address is on this machine.
        opener = build_opener(ProxyHandler({}))
        with opener.open(f"{_local_address(url)}/api/health", timeout=2):
            return url
    return None


@contextmanager
def _call_on_enter(call: Any) -> Generator[None]:
    """Call `call` for each line that the user types, as long as the block runs."""
    loop = asyncio.get_running_loop()
    listens = False

    def read() -> None:
        if not can_ask():  # the process is in the background: reading would suspend it
            return
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin)
        else:
            call()

    if can_ask():
        with suppress(NotImplementedError, OSError, ValueError):
            loop.add_reader(sys.stdin, read)
            listens = True
    try:
        yield
    finally:
        if listens:
            loop.remove_reader(sys.stdin)
