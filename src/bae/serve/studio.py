"""The studio: a page and the API of `bae.serve` in one ASGI application. The API has the paths
below `/api`. The page has all other paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bae import __version__
from bae.plan import plan_of
from bae.serve.access import Verb, token_of
from bae.serve.ag_ui_input import file_fields, message_field
from bae.serve.api import API, HEADERS
from bae.serve.endpoints import ApiCall, Endpoint, Form, get_row
from bae.serve.problems import Refused, make_refusal
from bae.serve.starts import Starts
from bae.serve.studio_login import Logins
from bae.serve.studio_page import StudioPage
from bae.serve.views import GraphRow

API_PATH: Final = "/api"


class StudioGraph(GraphRow):
    """A graph that the page can run.

    - `message`: the field of the start node for the user's message; null if the graph cannot chat.
    - `replies`: the field with the reply, by the class of the last node.
    - `run_command`: a command that starts a run in a terminal. Append the fields of the start node.
    - `files`: the fields of the start node for images and documents.
    """

    message: str | None = None
    replies: dict[str, str] = Field(default_factory=dict[str, str])
    run_command: str = ""
    files: list[str] = Field(default_factory=list[str])


class StudioTeam(BaseModel):
    """A team. `runs` is the path of an API with the runs of the team's agents. If the runs are in
    another journal than the page's, this API can only read."""

    name: str
    runs: str


class ReadOnly(BaseModel):
    """Why the page cannot start or answer runs, and a command that starts a studio without this
    limit."""

    reason: str
    command: str


class StudioView(BaseModel):
    """The data that the page loads first.

    - `user`, `can`: the name of the user, and the verbs that the user may do.
    - `journal`: the journal of the runs.
    - `graphs`: the graphs that the page can run. Runs of other graphs are read-only.
    - `teams`: the teams of the page.
    - `lm`: the LLM of new runs; null without an LLM.
    - `serve_command`: a command that starts a studio with more graphs.
    - `read_only`: why the page cannot start runs; null if it can.
    """

    bae: str
    user: str
    can: list[Verb]
    journal: str
    graphs: list[StudioGraph]
    teams: list[StudioTeam]
    lm: str | None
    serve_command: str
    read_only: ReadOnly | None = None


class LoginBody(Form):
    """The token of a login link."""

    token: Annotated[str, Field(min_length=1, max_length=200)]


class LoginView(BaseModel):
    """The token for all later requests. `expires` is the time when the token expires, in seconds
    since 1970."""

    token: str
    expires: float


class LogoutBody(Form):
    """The browsers to log out. By default only this browser. `everywhere` logs out all browsers,
    and all login links become invalid."""

    everywhere: bool = False


class LogoutView(BaseModel):
    """The result of a logout. The token is no longer valid."""

    logged_out: bool = True


@dataclass(frozen=True)
class Studio:
    """The ASGI application of the studio. To serve it, write
    `listening(studio.api, app=studio)`."""

    api: API
    logins: Logins
    page: StudioPage
    journal: str
    """The name of the journal, for the page."""
    serve_command: str
    """A command that starts a studio with more graphs."""
    lm: str | None = None
    """The name of the LLM of new runs."""
    teams: Sequence[str] = ()
    run_commands: Mapping[str, str] = field(default_factory=dict[str, str])
    """Commands that start runs, by the names of graphs."""
    team_runs: Mapping[str, API] = field(default_factory=dict[str, API])
    """APIs for the runs of teams' agents, by the names of the teams. A team is missing if the runs
    of its agents are in the journal of `api`."""

    def __post_init__(self) -> None:
        self.api.endpoints += (
            get_row(
                "/studio",
                "Show what the studio serves, and the rights of the user.",
                self.show_studio,
                StudioView,
            ),
            Endpoint(
                "POST",
                "/login",
                None,
                "Exchange the token of a link, once, for the token of a browser.",
                self.log_in,
                {200: LoginView},
                body=LoginBody,
                refusals=(400, 401, 403, 413, 415, 429),
            ),
            Endpoint(
                "POST",
                "/logout",
                "read",
                "Log out this browser.",
                self.log_out,
                {200: LogoutView},
                body=LogoutBody,
            ),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] == "http" and not f"{path}/".startswith(f"{API_PATH}/"):
            request = Request(scope, receive)
            await self._respond(request)(scope, receive, send)
            return
        for name, api in self.team_runs.items():
            mount = self._runs_of(name)
            if path.startswith(f"{mount}/"):
                await api(_mount_scope(scope, mount), receive, send)
                return
        await self.api(_mount_scope(scope, API_PATH), receive, send)

    def _respond(self, request: Request) -> Response:
        try:
            return self.page.respond(request, self.api)
        except Exception as error:
            response = make_refusal(error, request.url.path).response()
            response.headers.update(HEADERS)
            return response

    def _runs_of(self, team: str) -> str:
        """Return the path of the API with the runs of a team's agents. The path is not
        percent-encoded."""
        return f"{API_PATH}/teams/{team}/agents" if team in self.team_runs else API_PATH

    async def show_studio(self, call: ApiCall) -> StudioView:
        """Show the data that the page loads first."""
        reason = "no graph is served"
        has_graphs = bool(self.api.starts)
        return StudioView(
            bae=__version__,
            user=call.user.name,
            can=sorted(call.user.can),
            journal=self.journal,
            graphs=[
                _view_graph(start, self.run_commands.get(start.name, ""))
                for start in self.api.starts.values()
            ],
            teams=[StudioTeam(name=team, runs=quote(self._runs_of(team))) for team in self.teams],
            lm=self.lm,
            serve_command=self.serve_command,
            read_only=None if has_graphs else ReadOnly(reason=reason, command=self.serve_command),
        )

    async def log_in(self, call: ApiCall) -> LoginView:
        """Exchange the token of a login link for the token of a browser."""
        token, expires = self.logins.exchange(call.body.token)
        return LoginView(token=token, expires=expires)

    async def log_out(self, call: ApiCall) -> LogoutView:
        """Log out this browser, or all browsers."""
        self.logins.forget(None if call.body.everywhere else token_of(call.request))
        return LogoutView()


def _view_graph(starts: Starts, run_command: str) -> StudioGraph:
    graph = starts.graph
    try:
        message = message_field(graph.start)
    except Refused:
        message = None
    return StudioGraph(
        name=starts.name,
        start=graph.start.__name__,
        ends=[cls.__name__ for cls in graph.terminal_nodes],
        about=starts.about,
        message=message,
        replies={cls.__name__: name for cls in graph.terminal_nodes if (name := plan_of(cls).text)},
        run_command=run_command,
        files=file_fields(graph.start),
    )


def _mount_scope(scope: Scope, mount: str) -> dict[str, Any]:
    """Return the scope for an application that is mounted at the path `mount`."""
    return {**scope, "root_path": mount}
