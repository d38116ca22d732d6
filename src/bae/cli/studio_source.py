"""`StudioSource`: the graphs, the journal and the team that `bae studio` serves."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bae.cli.exits import Misuse
from bae.cli.journals import open_to_read, open_to_write
from bae.cli.loading import is_configured, load_proved
from bae.graph import Graph

if TYPE_CHECKING:
    from bae.cli.team_project import Team
    from bae.journal.store import Journal
    from bae.language_model import LM
    from bae.serve import API
    from bae.serve.studio import Studio
    from bae.serve.studio_login import Logins


def load_graphs(
    modules: Sequence[str] | None, journal: str | None, team: str | None
) -> tuple[dict[str, Graph[Any, Any]], dict[str, str]]:
    """Load the graphs that the command line names. If the command line names no graph, journal or
    team, load the graph that the project configures. Return the graphs by name, and the
    command-line argument of each graph by the graph's name."""
    arguments: list[str | None] = [*(modules or ())]
    if not arguments and journal is None and team is None and is_configured():
        arguments = [None]
    graphs: dict[str, Graph[Any, Any]] = {}
    argument_of: dict[str, str] = {}
    for module in arguments:
        graph = load_proved(module)
        if graph.name in graphs:
            raise Misuse(
                f"{argument_of[graph.name]} and {module} have graphs of the same name, "
                f"{graph.name}",
                code="bae-command-refused",
                fix='give one of them another name, Graph(…, name="…"), or serve only one of them',
            )
        graphs[graph.name], argument_of[graph.name] = graph, module or ""
    return graphs, argument_of


def absolute_lm(name: str) -> str:
    """Return the LM name `name`, with an absolute path if it names a file. A process in another
    folder then finds the same LM."""
    kind, _, rest = name.partition(":")
    file, colon, more = rest.partition(":")
    if kind in ("python", "scripted", "local") and os.path.isfile(file):
        return f"{kind}:{os.path.abspath(file)}{colon}{more}"
    return name


@dataclass(frozen=True)
class StudioSource:
    """The parts that a studio serves, and the options of its server."""

    modules: Sequence[str]
    graphs: dict[str, Graph[Any, Any]]
    named: dict[str, str]
    """The command-line argument of each graph, by the graph's name. It is empty for the graph that
    the project configures."""
    file: str | None
    """The journal, or None for the journal of the team."""
    team: Path | None
    lm_name: str | None
    """The name in `--lm`, for the team's processes. A file in the name has an absolute path."""
    lm: str
    """The name of the studio's LM, which the page shows. It is empty if there is no LM."""
    model: LM | None
    """The LM of runs that the studio starts. None without graphs, or without an LM."""
    max_iters: int
    key: str
    """The token for scripts."""
    hosts: Sequence[str]
    origins: Sequence[str]

    @asynccontextmanager
    async def open(self, logins: Logins) -> AsyncGenerator[Studio]:
        """Open all parts, and yield the studio."""
        from bae.serve.studio import Studio
        from bae.serve.studio_page import StudioPage

        page = StudioPage()
        async with AsyncExitStack() as stack:
            team: Team | None = None
            agents: Journal | None = None
            if self.team is not None:
                team, agents = await _open_team(stack, self.team)
            if self.file is not None:
                opened_journal = (
                    open_to_write(self.file) if self.graphs else open_to_read(self.file)
                )
                run_journal = await stack.enter_async_context(opened_journal)
            else:
                assert agents is not None
                run_journal = agents
            # Without a graph, runs are read-only. A team can be steered, which needs all rights.
            can_act = bool(self.graphs) or team is not None
            api = self._make_api(run_journal, self.graphs, logins, reads_only=not can_act)
            runs: dict[str, API] = {}
            names: list[str] = []
            if team is not None and agents is not None:
                from bae.team import ServedTeam, TeamJobs, add_team_jobs, add_teams

                name = team.project.name
                teams = {name: ServedTeam(team.store, team.project, team.repository, agents)}
                add_teams(api, teams)
                jobs = await stack.enter_async_context(TeamJobs(self.lm_name))
                add_team_jobs(api, teams, jobs)
                names.append(name)
                if run_journal is not agents:
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
        from bae.serve import User, bearer, router
        from bae.serve.access import LOOPBACK, VERBS

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
        """The name of the journal on the page."""
        return self.file or f"runs of the team in {self.team}"

    def run_command(self, graph: str) -> str:
        """Return the terminal command that starts a run of a graph in the journal of the studio."""
        words = ["bae", "run", *filter(None, [self.named[graph]])]
        return shlex.join([*words, "--journal", self.file] if self.file else words)

    @property
    def serve_command(self) -> str:
        """The command that starts this studio with one more graph, named MODULE."""
        words = ["bae", "studio", *self.modules, "MODULE"]
        words += ["--journal", self.file] if self.file else []
        words += ["--team", os.path.relpath(self.team)] if self.team else []
        return shlex.join(words)


async def _open_team(stack: AsyncExitStack, folder: Path) -> tuple[Team, Journal]:
    """Open the team of a repository, and the journal of its agents' runs."""
    from bae.cli.team_project import need_team, open_team

    need_team("bae studio --team")
    team = await stack.enter_async_context(open_team(folder))
    return team, await stack.enter_async_context(team.store.journal())


def _user_name() -> str:
    from bae.cli.team_project import find_user

    return find_user() or "studio"
