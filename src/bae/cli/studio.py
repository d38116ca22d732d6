"""`bae studio`: a page on this machine, on the API of `bae.serve`, for graphs, a journal and a
team."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import webbrowser
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.exits import Misuse
from bae.cli.journals import file_to_read, file_to_write, open_to_read, open_to_write
from bae.cli.lm import check_lm
from bae.cli.loading import is_configured, load_proved
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
from bae.exceptions import BaeError
from bae.graph import Graph
from bae.lm.registry import cached_lm, find_default_name

if TYPE_CHECKING:
    from collections.abc import Generator

    from bae.cli.team_project import Team
    from bae.journal.store import Journal
    from bae.language_model import LM
    from bae.serve import API
    from bae.serve.studio import Studio
    from bae.serve.studio_login import Logins

EPILOG: Final = examples(
    "bae studio app.py --lm local --open",
    "bae studio app.py refunds.py --journal runs.db",
    "bae studio --journal runs.db",
    "bae studio --team . --open",
)
PORT: Final = 8421
"""The port where none is named: a browser keeps its login by address."""
_PORTS: Final = 20
"""How many ports are tried, from the first on."""


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
            "Pages of another site that may use the API, as http://127.0.0.1:5173. Repeatable.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "--token TOKEN",
            "A token for scripts, besides those of browsers. Default: a new one.",
            envvar="BAE_STUDIO_TOKEN",
        ),
    ] = None,
    lm: LMName = None,
    max_iters: MaxIters = 10,
    as_json: AsJSON = False,
) -> None:
    """Open a page to watch, chat with and steer runs and teams.

    The printed link logs a browser in, once; the browser stays logged in for 30 days, also when the
    studio is restarted. Press Enter for another link, or call the same command again.

    Without MODULE the runs of the journal are shown, and nothing can be started or answered. With
    --team, plans can be made and approved, and the team can be started and steered.
    """
    need_server()
    from bae.serve.access import checked_origin

    key = find_token(token)
    try:
        origins = [checked_origin(each) for each in allow_origin or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--allow-origin'") from error
    graphs, named = _load_graphs(modules, journal, team)
    for graph in graphs.values():
        if lm is not None:
            check_lm(graph, lm)
    name = lm or find_default_name().name
    file = None
    if graphs:
        file = file_to_write(journal)
    elif journal is not None or team is None:
        file = file_to_read(journal)
    source = _Source(
        modules=modules or (),
        graphs=graphs,
        named=named,
        file=file,
        team=None if team is None else Path(team).resolve(),
        named_lm=None if lm is None else _absolute_lm(lm),
        lm=name,
        model=cached_lm(name) if name and graphs else None,
        max_iters=max_iters,
        key=key,
        hosts=(host, *(allow_host or ())),
        origins=origins,
    )
    serves = {
        "modules": [os.path.abspath(each) if "/" in each else each for each in modules or ()],
        "folder": os.getcwd(),
        "journal": file and os.path.abspath(file),
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


def _absolute_lm(name: str) -> str:
    """The name of an LM for a process in another folder."""
    kind, _, rest = name.partition(":")
    file, colon, more = rest.partition(":")
    if kind in ("python", "scripted", "local") and os.path.isfile(file):
        return f"{kind}:{os.path.abspath(file)}{colon}{more}"
    return name


def _load_graphs(
    modules: Sequence[str] | None, journal: str | None, team: str | None
) -> tuple[dict[str, Graph[Any, Any]], dict[str, str]]:
    """The graphs that are named, by their names, or the one that the project configures; and what
    the command line calls each."""
    named: list[str | None] = [*(modules or ())]
    if not named and journal is None and team is None and is_configured():
        named = [None]
    found: dict[str, Graph[Any, Any]] = {}
    first: dict[str, str] = {}
    for each in named:
        graph = load_proved(each)
        if graph.name in found:
            raise Misuse(
                f"{first[graph.name]} and {each} have graphs of the same name, {graph.name}",
                code="bae-command-refused",
                fix='give one of them another name, Graph(…, name="…"), or serve one of them',
            )
        found[graph.name], first[graph.name] = graph, each or ""
    return found, first


@dataclass(frozen=True)
class _Source:
    """What a studio serves."""

    modules: Sequence[str]
    graphs: dict[str, Graph[Any, Any]]
    named: dict[str, str]
    """The graphs as the command line calls them; the one that the project configures is empty."""
    file: str | None
    """The journal; None is that of the team."""
    team: Path | None
    named_lm: str | None
    lm: str
    model: LM | None
    max_iters: int
    key: str
    hosts: Sequence[str]
    origins: Sequence[str]

    @asynccontextmanager
    async def open(self, logins: Logins) -> AsyncGenerator[Studio]:
        """The studio, with everything open that it serves."""
        from bae.serve.studio import Studio
        from bae.serve.studio_page import StudioPage

        page = StudioPage()
        async with AsyncExitStack() as stack:
            team: Team | None = None
            agents: Journal | None = None
            if self.team is not None:
                team, agents = await _open_team(stack, self.team)
            if self.file is not None:
                opened = open_to_write(self.file) if self.graphs else open_to_read(self.file)
                kept = await stack.enter_async_context(opened)
            else:
                assert agents is not None
                kept = agents
            # Without a graph nothing can be done to runs; with a team it has endpoints that act.
            can_act = bool(self.graphs) or team is not None
            api = self._make_api(kept, self.graphs, logins, reads_only=not can_act)
            runs: dict[str, API] = {}
            names: list[str] = []
            if team is not None and agents is not None:
                from bae.team import ServedTeam, TeamJobs, add_team_jobs, add_teams

                name = team.project.name
                teams = {name: ServedTeam(team.store, team.project, team.repository, agents)}
                add_teams(api, teams)
                jobs = await stack.enter_async_context(TeamJobs(self.named_lm))
                add_team_jobs(api, teams, jobs)
                names.append(name)
                if kept is not agents:
                    runs[name] = self._make_api(agents, {}, logins, reads_only=True)
                    await stack.enter_async_context(runs[name].open())
            yield Studio(
                api,
                logins,
                page,
                journal=self.shown_journal,
                serve_command=self.serve_command,
                run_commands={name: self.run_command(name) for name in self.graphs},
                lm=self.lm or None,
                teams=names,
                team_runs=runs,
            )

    def _make_api(
        self,
        journal: Journal,
        graphs: dict[str, Graph[Any, Any]],
        logins: Logins,
        *,
        reads_only: bool,
    ) -> API:
        from bae.serve import LOOPBACK, User, bearer, router
        from bae.serve.access import VERBS

        user = User(_user_name(), frozenset({"read"}) if reads_only else VERBS)
        return router(
            graphs,
            journal=journal,
            lm=self.model,
            max_iters=self.max_iters,
            auth=logins.auth(user, bearer(self.key, user=user)),
            hosts=(*LOOPBACK, *self.hosts),
            origins=self.origins,
            recover=bool(graphs),
        )

    @property
    def shown_journal(self) -> str:
        """What the page calls the journal."""
        return self.file or f"runs of the team in {self.team}"

    def run_command(self, graph: str) -> str:
        """The command that starts a run of a graph in a terminal, in the journal that is shown."""
        words = ["bae", "run", *filter(None, [self.named[graph]])]
        return shlex.join([*words, "--journal", self.file] if self.file else words)

    @property
    def serve_command(self) -> str:
        """The command that serves more graphs for the runs that are shown."""
        words = ["bae", "studio", *self.modules, "MODULE"]
        words += ["--journal", self.file] if self.file else []
        words += ["--team", os.path.relpath(self.team)] if self.team else []
        return shlex.join(words)


async def _open_team(stack: AsyncExitStack, folder: Path) -> tuple[Team, Journal]:
    """The team of a repository, and the journal of its agents' runs."""
    from bae.cli.team_project import need_team, open_team

    need_team("bae studio --team")
    team = await stack.enter_async_context(open_team(folder))
    return team, await stack.enter_async_context(team.store.journal())


async def _serve(
    source: _Source,
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
        with _on_enter(partial(show, opens=False)):
            await asyncio.Event().wait()


async def _listen(stack: AsyncExitStack, studio: Studio, host: str, port: int | None) -> str:
    """Listen on the port that is named, or else on the first free one from `PORT` on."""
    from bae.serve.server import listening

    if port is not None:
        return await stack.enter_async_context(listening(studio.api, host, port, app=studio))
    for each in range(PORT, PORT + _PORTS):
        try:
            opened = listening(studio.api, host, each, app=studio)
            url = await stack.enter_async_context(opened)
        except BaeError as error:
            if error.code != "bae-serve-address" or each == PORT + _PORTS - 1:
                raise
            continue
        if each != PORT:
            note(f"port {PORT} is taken, so this studio is on {each}; --port names another")
        return url
    raise AssertionError


def _print_links(
    url: str, logins: Logins, key: str | None, source: _Source, *, opens: bool, as_json: bool
) -> None:
    """Print where the studio is, with a new link."""
    link = f"{_reachable(url)}/#token={logins.make_link_token()}"
    if as_json:
        found = {"url": url, "link": link, "token": key, "graphs": [*source.graphs]}
        print_json({**found, "journal": source.file, "team": source.team and str(source.team)})
    else:
        out().print(f"bae studio: {link}", soft_wrap=True)
    if opens and not webbrowser.open(link):
        note("no browser could be opened: open the link yourself")


def _reachable(url: str) -> str:
    """The address for a browser on this machine: a server on all addresses has one of them."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


@contextmanager
def _open_logins() -> Generator[Logins]:
    """The logins of this user; without a place for them, those of this process alone."""
    from bae.serve.studio_login import Logins, login_file

    with ExitStack() as stack:
        try:
            logins = stack.enter_context(Logins(login_file()))
        except (OSError, RuntimeError, BaeError) as error:
            note(f"logins are forgotten when the studio stops: {error}")
            logins = stack.enter_context(Logins(None))
        yield logins


def _find_running(logins: Logins, serves: dict[str, Any]) -> str | None:
    """The address of a studio that serves the same and answers."""
    from urllib.request import ProxyHandler, build_opener

    url = logins.find_server(serves)
    if url is None:
        return None
    with suppress(OSError, ValueError):
        # No proxy of the environment is asked for an address of this machine.
        opener = build_opener(ProxyHandler({}))
        with opener.open(f"{_reachable(url)}/api/health", timeout=2):
            return url
    return None


def _user_name() -> str:
    from bae.cli.team_project import find_user

    return find_user() or "studio"


@contextmanager
def _on_enter(call: Any) -> Generator[None]:
    """Call something for each line that is typed at the terminal."""
    loop = asyncio.get_running_loop()
    listens = False

    def read() -> None:
        if not can_ask():  # in the background by now: reading would stop the process
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
