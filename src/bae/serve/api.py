"""`router` makes an API from graphs and a journal. The API is an ASGI application. FastAPI and
Starlette can mount the API, and uvicorn can serve it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, TypeVar, cast

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from bae.exceptions import describe
from bae.failures import not_an_lm_error
from bae.graph import Graph, checked_store
from bae.journal.feeds import Feeds, Subscriber
from bae.journal.store import Journal
from bae.journal.stored_runs import RunInfo, StoredRun
from bae.serve.access import (
    LOOPBACK,
    STARTED_BY,
    Auth,
    Gatekeeper,
    User,
    Verb,
    Visible,
    parse_origin,
)
from bae.serve.endpoints import (
    ApiCall,
    Endpoint,
    check_body,
    check_media,
    find_endpoint,
    raw_path,
    read_body,
    read_query,
)
from bae.serve.files import Uploads
from bae.serve.live import FEEDS, OpenFeed, serve_feeds
from bae.serve.openapi import describe_api
from bae.serve.owner import RunOwner
from bae.serve.problems import Refused, make_refusal, unknown_run
from bae.serve.run_rows import Previews
from bae.serve.starts import Starts
from bae.serve.table import TABLE
from bae.serve.views import GateView, dump
from bae.tasks import wait_until_ended
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.lm import LM

P = ParamSpec("P")
T = TypeVar("T")

FOLDS: Final = 2
"""The maximum number of long runs that are read at the same time, each in a worker thread."""
STOP_SECONDS: Final = 0.1
"""Seconds between two checks whether uvicorn stops."""
HEADERS: Final = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


class API:
    """An ASGI application. Mount the API with `app.mount("/bae", api)`, and open it together with
    the application: `FastAPI(lifespan=api.open)`. Runs belong to the API, so a closed connection
    never ends a run. When the API closes, it hands over its runs. Another process can then resume
    the runs at once."""

    def __init__(
        self,
        graphs: Mapping[str, Graph[Any, Any]],
        journal: Journal,
        auth: Auth,
        *,
        lm: LM | str | None,
        max_iters: int,
        visible: Visible | Literal["own"] | None,
        hosts: Sequence[str],
        origins: Sequence[str],
        at_once: int,
        recover: bool,
    ) -> None:
        for graph in graphs.values():
            graph.prove()
        self.graphs = dict(graphs)
        self.journal = journal
        self.feeds = Feeds(journal)
        self.previews = Previews(journal)
        self.starts = {name: Starts(name, graph) for name, graph in graphs.items()}
        self.owner = RunOwner(self.graphs, journal, lm, max_iters, at_once)
        self.endpoints: tuple[Endpoint, ...] = TABLE
        """The endpoints. The studio or a team can add further endpoints."""
        self.feed_kinds: dict[str, OpenFeed] = dict(FEEDS)
        """The feeds of the WebSocket, by the first part of the feeds' names."""
        self.sockets: dict[str, Callable[[WebSocket], Awaitable[None]]] = {}
        """Functions for other WebSockets, by path. Each function accepts the connection itself."""
        self.inbox_sources: list[Callable[[ApiCall], Awaitable[list[GateView]]]] = []
        """Functions that return further questions for the inbox, such as the questions of a
        team."""
        self.hidden_graphs: set[str] = set()
        """The names of graphs whose runs the inbox leaves out. Functions in `inbox_sources` return
        the questions of these runs, if they have any."""
        self.uploads = Uploads()
        """The files that users have sent for later runs."""
        self._streams: set[Subscriber[Any]] = set()
        self._auth, self._visible, self._recover = auth, visible, recover
        self._gatekeeper = Gatekeeper(
            frozenset(host.lower() for host in hosts), frozenset(map(parse_origin, origins))
        )
        self._folds = asyncio.Semaphore(FOLDS)
        self._document: tuple[str, bytes] | None = None

    @asynccontextmanager
    async def open(self, app: object = None) -> AsyncGenerator[None]:
        """Accept runs inside the block, and resume runs that can continue. `app` is unused. FastAPI
        passes its application to `lifespan=api.open`."""
        async with AsyncExitStack() as stack:
            for graph in self.graphs.values():
                await stack.enter_async_context(graph.open())
            await stack.enter_async_context(self.owner.open(recover=self._recover))
            stack.callback(self.close)
            stopping = asyncio.create_task(_stop_with_uvicorn(self.close))
            try:
                yield
            finally:
                stopping.cancel()
                await wait_until_ended([stopping])

    def close(self) -> None:
        """End all streams, and take no more runs. A server must call this function before it waits
        for its connections to end."""
        self.owner.close()
        for stream in self._streams:
            stream.close()

    @contextmanager
    def streaming(self, stream: Subscriber[Any]) -> Generator[None]:
        """Close `stream` if the server stops during the block."""
        self._streams.add(stream)
        try:
            if self.owner.closing.is_set():
                stream.close()
            yield
        finally:
            self._streams.discard(stream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                request = Request(scope, receive)
                response = await self._respond(request)
                for name, value in (HEADERS | self._gatekeeper.headers_for(request)).items():
                    response.headers.setdefault(name, value)
                await response(scope, receive, send)
            case "websocket":
                await serve_feeds(self, scope, receive, send)
            case _:
                await self._run_lifespan(receive, send)

    # The rights of users. All endpoints and feeds must read runs with the following methods.

    async def user_of(self, request: HTTPConnection, verbs: Sequence[Verb]) -> User:
        """Return the user of a request. Raises `Refused` if the user may do none of the verbs."""
        user = await self._auth(request)
        if user is None:
            raise Refused(
                401,
                "bae-serve-auth",
                "the request has no valid token",
                "send the token: authorization: Bearer TOKEN",
                headers={"www-authenticate": "Bearer"},
            )
        if user.can.isdisjoint(verbs):
            detail = f"{user.name} may not {verbs[0]}"
            raise Refused(403, "bae-serve-verb", detail, "ask for the right")
        return user

    def check_site(self, request: HTTPConnection) -> None:
        """Raise `Refused` for a request to another host name, or from a page of another site."""
        self._gatekeeper.check(request)

    def check_host(self, request: HTTPConnection) -> None:
        """Raise `Refused` for a request to another host name."""
        self._gatekeeper.check_host(request)

    async def get_user(self, request: HTTPConnection) -> User | None:
        """Return the user of a request, or None if the request has no valid token."""
        return await self._auth(request)

    def may_see(self, user: User, info: RunInfo) -> bool:
        """Return whether a user may see a run."""
        if self._visible is None:
            return True
        if callable(self._visible):
            return self._visible(user, info)
        return info.metadata.get(STARTED_BY) == user.name

    def only(self, user: User) -> dict[str, str] | None:
        """Return the metadata by which a store selects the runs that a user may see. None selects
        all runs. Then the caller must check each run with `may_see`."""
        return {STARTED_BY: user.name} if self._visible == "own" else None

    async def info(self, user: User, run_id: str) -> RunInfo:
        """Return the entry of a run. Raises `Refused` if the user may not see the run."""
        info = (await self.journal.lines(run_id, limit=0)).info
        if not self.may_see(user, info):
            raise unknown_run(run_id)
        return info

    async def read(self, user: User, run_id: str) -> StoredRun:
        """Return a run with the bytes of its images and documents. The nodes of the run need these
        bytes. Raises `Refused` if the user may not see the run."""
        await self.info(user, run_id)
        return await self.journal.read(run_id)

    async def fold(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` in a worker thread, and return the result. Only a few calls run at a time."""
        async with self.folding():
            return await in_thread(work, *args, **kwargs)

    async def fold_run(
        self,
        user: User,
        run_id: str,
        work: Callable[Concatenate[StoredRun, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Read a run, call `work` with the run in a worker thread, and return the result. The run
        has no bytes of files. Only a few calls run at a time, and the run is not read before its
        turn. Raises `Refused` if the user may not see the run."""
        await self.info(user, run_id)
        async with self.folding():
            return await in_thread(work, await self.journal.read_texts(run_id), *args, **kwargs)

    def folding(self) -> asyncio.Semaphore:
        """Return the semaphore that limits how many long runs are in memory. With more runs, the
        garbage collector would stop the event loop for too long."""
        return self._folds

    def find_graph(self, info: RunInfo) -> Graph[Any, Any] | None:
        """Return the graph of a run, or None if the graph is not served here."""
        return next((graph for graph in self.graphs.values() if graph.name == info.graph), None)

    def stored_name(self, name: str | None) -> str | None:
        """Return the name of a graph in the journal, for the name under which the API serves the
        graph. A name that the API does not serve is returned as it is."""
        starts = self.starts.get(name or "")
        return name if starts is None else starts.graph.name

    def graph_of(self, info: RunInfo) -> Graph[Any, Any]:
        """Return the graph of a run. Raises `Refused` if the graph is not served here."""
        graph = self.find_graph(info)
        if graph is not None:
            return graph
        raise Refused(
            409,
            "bae-serve-graph",
            f"the graph {info.graph} of the run {info.run_id} is not served here",
            "serve it too: router({name: graph, …})",
            run_id=info.run_id,
        )

    def document(self, root: str = "") -> bytes:
        """Return the OpenAPI document of the API, for the path `root` where the API is mounted."""
        if self._document is None or self._document[0] != root:
            self._document = root, dump(describe_api(self.endpoints, self.starts, root))
        return self._document[1]

    async def _respond(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except ClientDisconnect:
            return Response(status_code=400)  # the client closed the connection
        except Exception as error:
            return make_refusal(error, request.url.path).response()

    async def _answer(self, request: Request) -> Response:
        self._gatekeeper.check(request)
        if request.method == "OPTIONS" and self._gatekeeper.headers_for(request):
            return Response(status_code=204)  # it is a preflight request
        endpoint, path = find_endpoint(self.endpoints, request.method, raw_path(request.scope))
        check_media(endpoint, request)
        if endpoint.verb is None:
            user = User("", frozenset())
        else:
            user = await self.user_of(request, (endpoint.verb, *endpoint.or_verbs))
        query = read_query(endpoint.query, request)
        call = ApiCall(self, user, request, path, query)
        if endpoint.body is not None:
            call.body = check_body(endpoint.body, await read_body(request, endpoint.longest))
        answer = await endpoint.handler(call)
        if isinstance(answer, Response):
            return answer
        status, model = (200, answer) if isinstance(answer, BaseModel) else answer
        text = await in_thread(dump, model)  # the response may have megabytes
        return Response(text, status, media_type="application/json")

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """Open and close the API for a server. The server sends lifespan messages if no other
        application mounts the API."""
        async with AsyncExitStack() as stack:
            await receive()
            try:
                await stack.enter_async_context(self.open())
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": describe(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def _stop_with_uvicorn(close: Callable[[], None]) -> None:
    """Call `close` as soon as uvicorn begins to stop. Uvicorn waits for open streams before it
    closes the application. Without this call, uvicorn would wait for streams that do not end."""
    if threading.current_thread() is not threading.main_thread():
        return
    server: Any = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not hasattr(server, "should_exit"):
        return  # it is not uvicorn
    while not server.should_exit:  # noqa: ASYNC110
        await asyncio.sleep(STOP_SECONDS)
    close()


def router(
    graphs: Graph[Any, Any] | Mapping[str, Graph[Any, Any]],
    *,
    journal: Journal,
    auth: Auth,
    lm: LM | str | None = None,
    max_iters: int = 10,
    visible: Visible | Literal["own"] | None = None,
    hosts: Sequence[str] = LOOPBACK,
    origins: Sequence[str] = (),
    at_once: int = 100,
    recover: bool = True,
) -> API:
    """Make an API of graphs. A journal stores the runs.

    ```python
    api = router({"support": graph}, journal=journal, lm="claude-cli:sonnet", auth=bearer(TOKEN))
    app = FastAPI(lifespan=api.open)
    app.mount("/bae", api)
    ```

    - `auth` finds the user of a request. Give `bearer(token)`, `public()`, or an async function of
      the request that returns a `User` or None. There is no default.
    - `visible` limits the runs that a user may see. With "own", users see the runs that they
      started. A function of a `User` and a `RunInfo` decides for each run. By default, users see
      all runs of the journal.
    - `lm` and `max_iters` are passed to `graph.arun` for all runs.
    - `hosts` are the host names of the API. The default is the names of the loopback interface.
    - `origins` are the web pages of other sites that may use the API, such as
      "https://shop.example". The default is no page.
    - `at_once` is the maximum number of runs in progress in this process. The API refuses further
      runs.
    - With `recover`, the API resumes runs of these graphs at the start and every few seconds:
      queued runs, interrupted runs, and waiting runs that have an answer or are past a deadline.
    """
    checked_store(journal)
    if not callable(auth):
        raise TypeError(f"router(auth={auth!r}): give bearer(token), public() or a function")
    if journal.secrets:
        raise ValueError(
            "router(journal=…): this journal stores secrets in clear, and the API would send them; "
            "give a journal without secrets=True"
        )
    graphs_by_name = _name_graphs(graphs)
    _check_options(visible, max_iters, at_once, hosts=hosts, origins=origins)
    _check_lm(lm)
    return API(
        graphs_by_name,
        journal,
        auth,
        lm=lm,
        max_iters=max_iters,
        visible=visible,
        hosts=hosts,
        origins=origins,
        at_once=at_once,
        recover=recover,
    )


def _name_graphs(graphs: object) -> dict[str, Graph[Any, Any]]:
    """Return graphs by the names under which the API serves them. Raises ValueError if two graphs
    have the same name in the journal."""
    if isinstance(graphs, Graph):
        graph = cast("Graph[Any, Any]", graphs)
        return _name_graphs({graph.name: graph})
    if not isinstance(graphs, Mapping):
        raise TypeError(f"router({graphs!r}): give a graph, or graphs by their names")
    graphs_by_name: dict[str, Graph[Any, Any]] = {}
    first: dict[str, str] = {}
    for name, graph in cast("Mapping[object, object]", graphs).items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ValueError(f"router({{{name!r}: …}}): give the graph a name that can be typed")
        if not isinstance(graph, Graph):
            raise TypeError(f"router({{{name!r}: {graph!r}}}): give a Graph")
        graphs_by_name[name] = cast("Graph[Any, Any]", graph)
        first_name = first.setdefault(graph.name, name)
        if graphs_by_name[first_name] is not graph:
            raise ValueError(
                f"router({{{first_name!r}: …, {name!r}: …}}): "
                f"both graphs are named {graph.name!r}, "
                'and runs are found by that name; give one graph another name, Graph(…, name="…")'
            )
    return graphs_by_name


def _check_options(visible: object, max_iters: int, at_once: int, **names: object) -> None:
    """Raise for options that would show too many runs, or would refuse every request."""
    if visible not in (None, "own") and not callable(visible):
        raise TypeError(f'router(visible={visible!r}): give "own", or a function of user and run')
    if max_iters < 0 or at_once < 1:
        raise ValueError(
            f"router(max_iters={max_iters}, at_once={at_once}): give at least 0, where 0 means no "
            "limit of nodes, and at least one run"
        )
    for option, value in names.items():
        if isinstance(value, str):
            raise TypeError(f"router({option}={value!r}): give a list, {option}=[{value!r}]")


def _check_lm(lm: object) -> None:
    """Raise if no run could use `lm`. If `lm` is a name, the LM is not created."""
    from bae.language_model import is_lm
    from bae.lm.registry import check_lm_name

    if isinstance(lm, str):
        check_lm_name(lm)
    elif lm is not None and (isinstance(lm, type) or not is_lm(lm)):
        raise not_an_lm_error(lm)
