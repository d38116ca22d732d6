"""Endpoints about threads, the conversations whose turns are runs. A turn is started as any run,
with the id of its thread."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, Field
from starlette.responses import Response

from bae.journal.stored_runs import Listed, RunInfo
from bae.journal.stored_thread import ThreadTurn
from bae.serve.endpoints import ApiCall, Endpoint, Form, ListCut
from bae.serve.problems import Refused, unknown_run
from bae.serve.views import (
    CUT,
    SHORT,
    WaitingGate,
    data_of,
    fitting,
    labels_of,
    waiting_gates,
)

_PAGE: Final = 200


class ThreadsQuery(Form):
    """Threads whose newest turn began before that of the run `before`: the `next` of the page
    before."""

    before: str | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class TurnsQuery(Form):
    """The newest turns, or those before the turn of the run `before`. Longer texts are cut after
    `cut` characters: `/runs/R/steps` has all of them. A page of long texts has fewer than
    `limit`."""

    before: str | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cut: ListCut = CUT


class ThreadRow(BaseModel):
    """A thread in a list, with its newest turn."""

    thread: str
    graph: str
    run_id: str
    status: Listed
    updated: float


class ThreadPage(BaseModel):
    """Threads, the newest first."""

    threads: list[ThreadRow]
    next: str | None = None


class TurnView(BaseModel):
    """A turn: what the user wrote and what was replied. `is_shown` says whether later turns see
    it."""

    run_id: str
    user: str
    reply: str
    status: Listed
    started: float
    updated: float
    is_shown: bool
    waiting: list[WaitingGate] = Field(default_factory=list[WaitingGate])
    error: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ThreadDetails(BaseModel):
    """Turns of a thread, the oldest first, and how many there are. Give the run of the first as
    `before` for those before it."""

    thread: str
    graph: str
    turns: list[TurnView]
    total: int


async def list_threads(call: ApiCall) -> ThreadPage:
    api, query = call.api, call.query
    found: list[ThreadRow] = []
    before, more = query.before, True
    looked_at: set[str] = set()  # a long thread is one thread
    if before is not None:
        await api.info(call.user, before)
    while more and len(found) < query.limit:
        page = await api.journal.runs(limit=_PAGE, before=before, metadata=api.only(call.user))
        more = len(page) == _PAGE
        for info in page:
            before = info.run_id
            if info.thread is None or not api.may_see(call.user, info):
                continue
            if info.thread in looked_at:
                continue
            looked_at.add(info.thread)
            newest = await api.journal.runs(thread=info.thread, limit=1)
            if newest and newest[0].run_id == info.run_id:
                found.append(_row(info, info.thread))
                if len(found) == query.limit:
                    more = True
                    break
    return ThreadPage(threads=found, next=found[-1].run_id if found and more else None)


async def show_thread(call: ApiCall) -> ThreadDetails:
    infos = await runs_of(call, call.path["thread"])
    graph = call.api.graph_of(infos[0])
    thread = call.path["thread"]
    turns = await graph.thread(thread, journal=call.api.journal).turns()
    query, total, end = call.query, len(turns), len(turns)
    if query.before is not None:
        end = next((n for n, each in enumerate(turns) if each.run_id == query.before), -1)
        if end < 0:
            raise unknown_run(query.before)
    newest = turns[max(0, end - query.limit) : end][::-1]
    page = fitting((_turn(each, query.cut) for each in newest), _size)
    return ThreadDetails(thread=thread, graph=graph.name, total=total, turns=page[::-1])


def _turn(turn: ThreadTurn, cut: int) -> TurnView:
    return TurnView(
        run_id=turn.run_id,
        user=data_of(turn.user, cut),
        reply=data_of(turn.reply, cut),
        status=turn.status,
        started=turn.started,
        updated=turn.updated,
        is_shown=turn.is_shown,
        waiting=waiting_gates(turn.waiting),
        error=turn.error[:SHORT],
        metadata=labels_of(turn.metadata),
    )


def _size(turn: TurnView) -> int:
    return len(turn.user) + len(turn.reply)


async def delete_thread(call: ApiCall) -> Response:
    """Delete all runs of a thread."""
    infos = await runs_of(call, call.path["thread"])
    graph = call.api.graph_of(infos[0])
    await graph.thread(call.path["thread"], journal=call.api.journal).delete()
    return Response(status_code=204)


async def runs_of(call: ApiCall, thread: str) -> list[RunInfo]:
    """The runs of a thread. One that the user may not see whole is unknown: its turns would be
    shown to a model, and by that to the user."""
    infos = await thread_of(call, thread)
    if not infos:
        raise _unknown_thread(thread)
    return infos


async def thread_of(call: ApiCall, thread: str) -> list[RunInfo]:
    """The same, and nothing for a new thread."""
    infos = [info async for info in call.api.journal.every_run(thread=thread)]
    if not all(call.api.may_see(call.user, info) for info in infos):
        raise _unknown_thread(thread)
    return infos


def _unknown_thread(thread: str) -> Refused:
    detail = f"there is no thread {thread[:200]!r}"
    return Refused(404, "bae-serve-path", detail, "list them: GET /threads; or give another id")


def _row(info: RunInfo, thread: str) -> ThreadRow:
    return ThreadRow(
        thread=thread,
        graph=info.graph,
        run_id=info.run_id,
        status=info.standing(),
        updated=info.updated,
    )


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/threads",
        "read",
        "List threads, the newest first.",
        list_threads,
        {200: ThreadPage},
        ThreadsQuery,
        refusals=(404, 422),
    ),
    Endpoint(
        "GET",
        "/threads/{thread}",
        "read",
        "Show the turns of a thread.",
        show_thread,
        {200: ThreadDetails},
        TurnsQuery,
        refusals=(404, 409, 422),
    ),
    Endpoint(
        "DELETE",
        "/threads/{thread}",
        "admin",
        "Delete a thread.",
        delete_thread,
        {204: ""},
        refusals=(404, 409),
    ),
)
