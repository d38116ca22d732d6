"""Endpoints for threads. A thread is a conversation, and its turns are runs. A client starts a turn
as it starts any run, and gives the id of the thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field
from starlette.responses import Response

from bae.exceptions import JournalError
from bae.journal.earlier_turns import get_turn
from bae.journal.provenance import MadeCall
from bae.journal.report import NodeReport, report_run
from bae.journal.stored_runs import Listed, RunInfo, StoredRun
from bae.journal.stored_thread import ThreadTurn
from bae.serve.endpoints import ApiCall, CutAt, Endpoint, Form, ListCut, get_row
from bae.serve.problems import Refused, unknown_run
from bae.serve.views import (
    CUT,
    SHORT,
    Value,
    WaitingGate,
    data_of,
    labels_of,
    take_page,
    value_of,
    waiting_gates,
)
from bae.sources import KINDS, find_source_kind

_PAGE: Final = 200
_PREVIEW: Final = 120
"""The maximum length of a message in the list of threads."""


class ThreadsQuery(Form):
    """The threads to list.

    - `before`: the `next` of the previous page.
    - `graph`: only threads of this graph.
    - `q`: only threads whose ids contain this text.
    """

    before: str | None = None
    graph: str | None = None
    q: Annotated[str, Field(max_length=200)] = ""
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class TurnsQuery(Form):
    """The turns to list.

    - `before`: the id of a run. The turns before this run are listed. By default, the newest turns
      are listed.
    - `limit`: the maximum number of turns. A page of long texts has fewer turns.
    - `cut`: the maximum number of characters of a text. A longer text is cut.
      `/runs/R/steps/N?cut=0` has the complete text.
    """

    before: str | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cut: ListCut = CUT


class TurnQuery(Form):
    """`cut` is the maximum number of characters of a value. A longer value is cut; 0 cuts no
    value."""

    cut: CutAt = SHORT * 4


class ThreadRow(BaseModel):
    """A thread in a list, with its newest turn. `text` is the beginning of the user's message in
    this turn. If the graph is not served, `text` is empty."""

    thread: str
    graph: str
    run_id: str
    text: str = ""
    status: Listed
    updated: float


class ThreadPage(BaseModel):
    """A page of threads, the newest first. Give `next` as `before` to get the next page."""

    threads: list[ThreadRow]
    next: str | None = None


class TurnView(BaseModel):
    """A turn: the user's message and the reply.

    - `reply`: empty unless the run has ended.
    - `is_shown`: whether later turns see this turn. A turn that failed, was cancelled, or was
      replaced is not shown.
    - `replaces`: the turn that this fork replaces, or null.
    - `waiting`: the first five questions to people that the run waits for.
    """

    run_id: str
    user: str
    reply: str
    status: Listed
    started: float
    updated: float
    is_shown: bool
    replaces: str | None = None
    waiting: list[WaitingGate] = Field(default_factory=list[WaitingGate])
    error: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class TurnCall(BaseModel):
    """A tool call of a turn.

    - `state`: "done", "failed", "waiting", "begun" or "asked". A call in the state "asked" has not
      begun.
    - `person`: what a person did: "approved" the call, or "answered" with the result.
    """

    name: str
    arguments: Value
    state: str
    result: Value | None = None
    error: str = ""
    seconds: float
    place: str
    person: str = ""


class TurnDetails(BaseModel):
    """The details of a turn.

    - `start`: the fields of the first node.
    - `end`: the class of the last node; null if the run has not ended.
    - `reply`: the fields of the last node, if the run has ended.
    - `calls`: the tool calls.
    - `thoughts`: the thoughts of the models, if the journal stores thoughts.
    """

    run_id: str
    start: dict[str, Value]
    end: str | None = None
    reply: dict[str, Value] = Field(default_factory=dict[str, Value])
    calls: list[TurnCall]
    thoughts: list[str]


class ThreadDetails(BaseModel):
    """Turns of a thread, the oldest first. `total` is the number of turns in the thread. To get
    earlier turns, give the run of the first turn as `before`."""

    thread: str
    graph: str
    turns: list[TurnView]
    total: int


async def list_threads(call: ApiCall) -> ThreadPage:
    api, query = call.api, call.query
    rows: list[ThreadRow] = []
    before, has_more = query.before, True
    checked_threads: set[str] = set()  # a thread may have many runs, but gets only one row
    if before is not None:
        await api.info(call.user, before)
    while has_more and len(rows) < query.limit:
        page = await api.journal.runs(
            limit=_PAGE,
            before=before,
            graph=api.stored_name(query.graph),
            metadata=api.only(call.user),
        )
        has_more = len(page) == _PAGE
        for info in page:
            before = info.run_id
            if info.thread is None or not api.may_see(call.user, info):
                continue
            if info.thread in checked_threads or query.q.lower() not in info.thread.lower():
                continue
            checked_threads.add(info.thread)
            newest = await api.journal.runs(thread=info.thread, limit=1)
            if newest and newest[0].run_id == info.run_id:
                rows.append(await _view_row(call, info, info.thread))
                if len(rows) == query.limit:
                    has_more = True
                    break
    return ThreadPage(threads=rows, next=rows[-1].run_id if rows and has_more else None)


async def show_thread(call: ApiCall) -> ThreadDetails:
    infos = await runs_of(call, call.path["thread"])
    graph = call.api.graph_of(infos[0])
    thread = call.path["thread"]
    turns = await graph.thread(thread, journal=call.api.journal).turns()
    query, total, end = call.query, len(turns), len(turns)
    if query.before is not None:
        end = next((n for n, turn in enumerate(turns) if turn.run_id == query.before), -1)
        if end < 0:
            raise unknown_run(query.before)
    newest = turns[max(0, end - query.limit) : end][::-1]
    parents = {info.run_id: info.parent for info in infos}
    page = take_page((_view_turn(turn, parents, query.cut) for turn in newest), _text_length)
    return ThreadDetails(thread=thread, graph=graph.name, total=total, turns=page[::-1])


async def show_turn(call: ApiCall) -> TurnDetails:
    """Show the details of a turn."""
    run_id, thread = call.path["run"], call.path["thread"]
    info = await call.api.info(call.user, run_id)
    if info.thread != thread:
        raise unknown_run(run_id)
    return await call.api.fold_run(call.user, run_id, _view_details, call.query.cut)


def _view_details(stored: StoredRun, cut: int) -> TurnDetails:
    report = report_run(stored)
    nodes: Sequence[NodeReport] = report.graphs[0].nodes if report.graphs else ()
    all_nodes = [node for graph in report.graphs for node in graph.nodes]
    rounds = sorted((r for node in all_nodes for r in node.rounds), key=lambda round_: round_.at)
    answers = sorted((a for node in all_nodes for a in node.calls), key=lambda answer: answer.at)
    has_ended = bool(report.ended_at)
    return TurnDetails(
        run_id=stored.info.run_id,
        start=_view_fields(nodes[0], cut) if nodes else {},
        end=report.ended_at or None,
        reply=_view_fields(nodes[-1], cut) if nodes and has_ended else {},
        calls=[_view_call(call, cut) for round_ in rounds for call in round_.calls],
        thoughts=[data_of(answer.thinking, cut) for answer in answers if answer.thinking],
    )


def _view_fields(node: NodeReport, cut: int) -> dict[str, Value]:
    """Return the fields of a node, without earlier turns and tool calls."""
    return {
        field.field: value_of(field.value, cut, field.kept)
        for field in node.fields
        if field.state == "there" and _is_shown(field.source)
    }


def _is_shown(source: str) -> bool:
    """Return whether a field with this source is shown. A conversation shows earlier turns and tool
    calls elsewhere."""
    kind = find_source_kind(source) if source in KINDS else None
    return kind is None or not (kind.is_turns or kind.fills == "calls")


def _view_call(call: MadeCall, cut: int) -> TurnCall:
    return TurnCall(
        name=call.name,
        arguments=value_of(call.arguments, cut),
        state=call.state,
        result=value_of(call.result, cut) if call.state == "done" else None,
        error=(call.error or "")[:SHORT],
        seconds=call.seconds,
        place=call.place,
        person=call.person,
    )


def _view_turn(turn: ThreadTurn, parents: Mapping[str, str | None], cut: int) -> TurnView:
    parent = parents.get(turn.run_id)
    return TurnView(
        replaces=parent if parent in parents else None,
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


def _text_length(turn: TurnView) -> int:
    return len(turn.user) + len(turn.reply)


async def delete_thread(call: ApiCall) -> Response:
    """Delete all runs of a thread."""
    infos = await runs_of(call, call.path["thread"])
    graph = call.api.graph_of(infos[0])
    await graph.thread(call.path["thread"], journal=call.api.journal).delete()
    return Response(status_code=204)


async def runs_of(call: ApiCall, thread: str) -> list[RunInfo]:
    """Return the runs of a thread, the newest first. Raises `Refused` for an unknown thread, and
    for a thread with a run that the user may not see. A model reads all turns of the thread, and
    could repeat a hidden turn to the user."""
    infos = await thread_of(call, thread)
    if not infos:
        raise _unknown_thread(thread)
    return infos


async def thread_of(call: ApiCall, thread: str) -> list[RunInfo]:
    """Return the runs of a thread, the newest first, or an empty list for a new thread. Raises
    `Refused` for a thread with a run that the user may not see."""
    infos = [info async for info in call.api.journal.every_run(thread=thread)]
    if not all(call.api.may_see(call.user, info) for info in infos):
        raise _unknown_thread(thread)
    return infos


def _unknown_thread(thread: str) -> Refused:
    detail = f"there is no thread {thread[:200]!r}"
    return Refused(404, "bae-serve-path", detail, "list them: GET /threads; or give another id")


async def _view_row(call: ApiCall, info: RunInfo, thread: str) -> ThreadRow:
    graph = call.api.find_graph(info)
    text = ""
    if graph is not None:
        with suppress(JournalError):  # the run was deleted, or is damaged: /runs shows it
            turn, _, _ = await get_turn(call.api.journal, graph, info.run_id, info.change)
            text = turn.user[:_PREVIEW]
    return ThreadRow(
        thread=thread,
        graph=info.graph,
        run_id=info.run_id,
        text=text,
        status=info.standing(),
        updated=info.updated,
    )


ENDPOINTS: Final = (
    get_row("/threads", "List threads, the newest first.", list_threads, ThreadPage, ThreadsQuery),
    get_row(
        "/threads/{thread}", "Show the turns of a thread.", show_thread, ThreadDetails, TurnsQuery
    ),
    get_row(
        "/threads/{thread}/turns/{run}",
        "Show the details of a turn: its fields, tool calls and thoughts.",
        show_turn,
        TurnDetails,
        TurnQuery,
    ),
    Endpoint("DELETE", "/threads/{thread}", "admin", "Delete a thread.", delete_thread, {204: ""}),
)
