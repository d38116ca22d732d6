"""The AG-UI 1.0 endpoint, through which a chat front end talks to a graph. A thread of AG-UI is a
thread of the journal. A run of AG-UI is a request: it begins a turn of the thread, answers
interrupts, or shows the thread. The front end gets the records of bae's run as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from bae import __version__
from bae.core_schemas import field_schema
from bae.exceptions import GateError, JournalError
from bae.file_proof import file_in
from bae.files import visible
from bae.graph_plan import plan_of_graph
from bae.journal.decoder import off_loop
from bae.journal.earlier_turns import read_turn
from bae.journal.gates import all_gates
from bae.journal.run_checks import check_names, check_thread
from bae.journal.stored_runs import RunInfo
from bae.plan import plan_of
from bae.serve.access import STARTED_BY
from bae.serve.ag_ui_events import AGAIN, interrupt_id, reply_id
from bae.serve.ag_ui_input import (
    CANCELLED,
    AgentRequest,
    AnyMessage,
    ResumeEntry,
    answer_of,
    file_fields,
    is_approval,
    message_field,
    read_start,
    start_fields,
)
from bae.serve.ag_ui_stream import AgentStream, Follow
from bae.serve.endpoints import ApiCall, Endpoint, get_row
from bae.serve.files import find_named_files
from bae.serve.gates import AnswerBody, GatesQuery, list_gates, resume_answered, store_answer
from bae.serve.graphs import starts_of
from bae.serve.problems import Refused, refusal_of
from bae.serve.runs import CANCEL_SECONDS, view_run
from bae.serve.threads import thread_of
from bae.serve.views import dump

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

LONGEST: Final = 32 << 20
"""The maximum size of a request in bytes. A request has all messages of the thread, with their
images."""
MESSAGE: Final = "ag_ui_message"
"""The key in a run's metadata for the id of the message that began the turn."""
_OVER: Final = ("ended", "failed", "cancelled")
_STALE: Final = ("bae-gate-answered", "bae-gate-cancelled", "bae-gate-timeout", "bae-gate-unknown")
"""The codes of errors for answers to closed questions."""
_BUSY: Final = (
    "send a request without messages to follow the turn, or cancel it: POST /runs/R/cancel"
)


@dataclass(slots=True)
class _Conversation:
    """A request for a thread. `infos` has the thread's runs, the oldest first."""

    call: ApiCall
    graph: Graph[Any, Any]
    request: AgentRequest
    infos: list[RunInfo]

    async def snapshot(
        self, info: RunInfo | None, message: AnyMessage | None = None, *, replays: bool = True
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return the messages before the reply of the run `info`. Also return whether the client
        needs the messages, because its own messages differ.

        Without `info`, the messages are those of all ended turns. With `replays`, the client gets
        all events of the run again. If it has a message of the run already, it needs the messages:
        they replace its own, so no message is shown twice.
        """
        turns = await self._find_turns(info)
        expected = [id for turn in turns for id in (_user_id(turn), reply_id(turn.run_id))]
        expected += [] if info is None else [_user_id(info)]
        client_messages = [
            message.model_dump(exclude_unset=True) for message in self.request.messages
        ]
        if _is_in_step(
            client_messages, expected, info.run_id if info is not None and replays else None
        ):
            return client_messages, False
        messages: list[dict[str, Any]] = []
        for turn in turns:
            user, reply, _ = await self._read_turn(turn)
            messages.append({"id": _user_id(turn), "role": "user", "content": user})
            reply_message = {"id": reply_id(turn.run_id), "role": "assistant", "content": reply}
            messages.append(reply_message)
        if info is not None:
            content = (await self._read_turn(info))[0] if message is None else message.content
            messages.append({"id": _user_id(info), "role": "user", "content": content})
        return messages, True

    async def _find_turns(self, info: RunInfo | None) -> list[RunInfo]:
        """Return the ended turns before the run `info`, or all ended turns if `info` is None. Turns
        that a fork replaced are left out."""
        ended = self._ended_before(info)
        if not any(turn.parent for turn in ended):
            return ended
        unvisited = {turn.run_id: turn for turn in ended}
        turns: list[RunInfo] = []
        run_id = ended[-1].run_id
        while run_id in unvisited:
            turns.append(unvisited.pop(run_id))
            run_id = (await self._read_turn(turns[-1]))[2]
        return turns[::-1]

    def _ended_before(self, info: RunInfo | None) -> list[RunInfo]:
        """Return the ended turns before the run `info`, or all ended turns if `info` is None. Turns
        that a fork replaced are included."""
        before = self.infos
        if info is not None:
            ids = [info.run_id for info in self.infos]
            # A fork replaces its parent: neither the parent nor later turns come before the fork.
            places = [ids.index(name) for name in (info.run_id, info.parent) if name in ids]
            before = self.infos[: min(places, default=len(ids))]
        return [turn for turn in before if turn.status == "ended"]

    async def _read_turn(self, info: RunInfo) -> tuple[str, str, str]:
        """Return the user's message in a turn, the reply, and the run id of the previous turn."""
        journal = self.call.api.journal
        stored = await journal.read_texts(info.run_id)
        lines = len(stored.lines)
        turn, before, _ = await off_loop(lines, read_turn, stored, self.graph, journal.secrets)
        return turn.user, turn.reply, before


async def run_agent(call: ApiCall) -> Response:
    """Begin a turn of a thread, answer interrupts, or show a thread."""
    starts, request = starts_of(call), call.body
    assert isinstance(request, AgentRequest)
    graph = starts.graph
    check_thread(request.thread_id)
    check_names(request.run_id, graph.name)
    message_field(graph.start)
    infos = (await thread_of(call, request.thread_id))[::-1]
    if infos and infos[-1].graph != graph.name:
        raise Refused(
            409,
            "bae-ag-ui-thread",
            f"the thread {request.thread_id} is a conversation with the graph {infos[-1].graph}",
            "use another thread for a conversation with another graph",
        )
    talk = _Conversation(call, graph, request, infos)
    if request.resume:
        return await _answer_interrupts(talk, request.resume)
    message = request.new_message
    if message is not None:
        return await _begin_turn(talk, message)
    if request.messages and request.messages[-1].role == "tool":
        raise Refused(
            422,
            "bae-ag-ui-tool",
            "the last message is the result of a tool of the page, but no model calls these tools",
            "make it a tool of the graph: Tools(…); or have a person answer: Gate(…)",
            place=f"body.messages.{len(request.messages) - 1}",
        )
    return await _show_thread(talk)


async def _show_thread(talk: _Conversation, *, error: Refused | None = None) -> Response:
    """Send the conversation so far, to a page that has just been loaded. If a turn is in progress,
    the response follows that turn. An `error` comes last."""
    newest = talk.infos[-1] if talk.infos else None
    if newest is not None and newest.status not in _OVER:
        return await _follow_run(talk, newest, error=error)
    messages, is_sent = await talk.snapshot(None)
    ended = next((info for info in reversed(talk.infos) if info.status == "ended"), None)
    details = None if ended is None else await view_run(talk.call, ended.run_id)
    messages_to_send = messages if is_sent else None
    return AgentStream(talk.call, messages_to_send, details=details, error=error, is_late=True)


async def _begin_turn(talk: _Conversation, message: AnyMessage) -> Response:
    """Start a run with the user's message, and follow the run. If the message began a run before,
    follow or repeat that run."""
    call, request, graph = talk.call, talk.request, talk.graph
    api, run_id = call.api, request.run_id
    starts = starts_of(call)
    existing = await _find_turn(talk, run_id, message)
    if existing is not None:
        return await _follow_run(talk, existing)
    earlier = [info for info in talk.infos if info.metadata.get(MESSAGE) == message.id]
    answered = next(
        (info for info in reversed(earlier) if info.status not in ("failed", "cancelled")), None
    )
    if answered is not None and answered.status != "ended":
        # The message began a run that has not ended: the page was loaded again, for example.
        return await _follow_run(talk, answered)
    fields, unused = start_fields(starts, request, message)
    with visible(await find_named_files(call, fields)):
        start = read_start(starts, request, fields)
    open_run = talk.infos[-1] if talk.infos else None
    if open_run is not None and open_run.status == "waiting" and not open_run.can_continue():
        error = Refused(
            409,
            "bae-thread-busy",
            f"the thread waits for an answer: {open_run.waiting[0].question}",
            "answer with resume; a request without messages shows the question",
        )
        return AgentStream(call, None, error=error)
    if answered is not None:
        return await _repeat_turn(talk, answered, start, message, unused)
    run_options: dict[str, Any] = {"thread": request.thread_id, "busy": "refuse"}
    run_options["metadata"] = {STARTED_BY: call.user.name, MESSAGE: message.id}
    async with api.owner.alone(run_id):
        existing = await _find_turn(talk, run_id, message)
        if existing is None:
            try:
                await api.owner.start(graph, start, run_id, **run_options)
            except JournalError as error:
                if error.code == "bae-thread-busy":
                    raise Refused(409, error.code, error.message, _BUSY) from error
                if error.code != "bae-run-exists":  # another process was quicker
                    raise
                await _find_turn(talk, run_id, message)
    talk.infos.append(await api.journal.info(run_id))
    return await _follow_run(talk, talk.infos[-1], message, unused=unused)


async def _repeat_turn(
    talk: _Conversation,
    old: RunInfo,
    start: Node,
    message: AnyMessage,
    unused: Sequence[str],
) -> Response:
    """Repeat a message that has a reply. The new turn replaces the old turn and all later turns."""
    call, request = talk.call, talk.request
    if "edit" not in call.user.can:
        raise Refused(
            403,
            "bae-serve-verb",
            f"{call.user.name} may not edit: the message {message.id} has a reply",
            "send a message with an id of its own, or ask for the right",
        )
    await talk.graph.fork(
        old.run_id,
        at=0,
        journal=call.api.journal,
        new_id=request.run_id,
        thread=request.thread_id,
        changed={field.name: getattr(start, field.name) for field in plan_of(type(start)).plain},
    )
    await call.api.owner.resume(talk.graph, request.run_id)
    talk.infos.append(await call.api.journal.info(request.run_id))
    return await _follow_run(talk, talk.infos[-1], message, unused=unused)


async def _find_turn(talk: _Conversation, run_id: str, message: AnyMessage) -> RunInfo | None:
    """Return the run with the id `run_id` if `message` began that run in this thread. Return None
    if there is no run with this id. Raises `Refused` if another message began the run."""
    try:
        info = await talk.call.api.journal.info(run_id)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        return None
    is_mine = talk.call.api.may_see(talk.call.user, info) and info.graph == talk.graph.name
    is_turn = info.thread == talk.request.thread_id and info.metadata.get(MESSAGE) == message.id
    if is_mine and is_turn:
        return info
    raise Refused(
        409,
        "bae-run-exists",
        f"there is a run {run_id} already, and another message began it",
        "give the new run another id",
        run_id=run_id,
    )


async def _answer_interrupts(talk: _Conversation, entries: Sequence[ResumeEntry]) -> Response:
    """Answer the gates that `entries` names, and follow the run that asked. A gate without an
    answer stays open. The last event of the stream asks the client about this gate again."""
    call, request = talk.call, talk.request
    if "answer" not in call.user.can:
        raise Refused(
            403, "bae-serve-verb", f"{call.user.name} may not answer", "ask for the right"
        )
    message = request.new_message
    is_new = message is not None and message.id not in map(_user_id, talk.infos)
    try:
        if message is not None and is_new and all(entry.status == "cancelled" for entry in entries):
            # The user cancels the questions, and writes another message instead.
            with suppress(Refused):  # the questions are closed: there is nothing to cancel
                info, *_ = await _find_asking_run(talk, entries)
                if info.status not in _OVER:
                    await call.api.journal.cancel(info.run_id, timeout=CANCEL_SECONDS)
            talk.infos = (await thread_of(call, request.thread_id))[::-1]
            return await _begin_turn(talk, message)
        info, last, answers = await _find_asking_run(talk, entries)
        is_first = info.status == "waiting" and any(
            gate.address in answers for gate in info.waiting if not gate.answered
        )
        await _store_answers(
            replace(call, path={"run": info.run_id}, query=GatesQuery()), talk, answers
        )
    except (GateError, JournalError, Refused) as error:
        refused = refusal_of(error)
        if refused is None or refused.status >= 500:
            raise
        if refused.body.type in _STALE:
            # Without the current questions, the page would ask the closed question forever.
            talk.infos = (await thread_of(call, request.thread_id))[::-1]
            return await _show_thread(talk, error=refused)
        return AgentStream(call, None, error=refused)
    info = await call.api.journal.info(info.run_id)
    if is_first:
        messages, is_sent = await talk.snapshot(info, replays=False)
        has_some = any(message.id.startswith(f"{info.run_id}:") for message in request.messages)
        if not is_sent and (has_some or last < 0):
            follow = Follow(info, messages, muted=last)
            return AgentStream(call, None, follow=follow)
    return await _follow_run(talk, info)


async def _find_asking_run(
    talk: _Conversation, entries: Sequence[ResumeEntry]
) -> tuple[RunInfo, int, dict[str, ResumeEntry]]:
    """Return the newest run of the thread that asked all these questions, the number of its last
    record, and the entries by gate address."""
    for info in reversed(talk.infos):
        prefix = interrupt_id(info.run_id, "")
        if not all(entry.interrupt_id.startswith(prefix) for entry in entries):
            continue
        answers = {entry.interrupt_id.removeprefix(prefix): entry for entry in entries}
        stored = await talk.call.api.journal.read(info.run_id)
        gates = await off_loop(len(stored.lines), all_gates, stored)
        if answers.keys() <= {gate.address for gate, _ in gates}:
            return info, stored.lines[-1].n, answers
    ids = ", ".join(entry.interrupt_id for entry in entries)
    raise Refused(
        409,
        "bae-gate-unknown",
        f"no run of the thread asks {ids[:500]}",
        "answer the interrupts of the newest run; a request without messages shows them",
    )


async def _store_answers(
    call: ApiCall, talk: _Conversation, entries: Mapping[str, ResumeEntry]
) -> None:
    """Store the answers to a run's gates, and resume the run. If the user cancels a gate that is
    not a tool approval, cancel the run instead."""
    run_id = call.path["run"]
    gates = {gate.gate: gate for gate in (await list_gates(call)).gates}
    answers: list[tuple[str, Any]] = []
    is_cancelled = False
    for address, entry in entries.items():
        gate = gates.get(address)
        if entry.status == "resolved":
            value = entry.payload if gate is None else answer_of(gate, entry.payload)
            answers.append((address, value))
        elif gate is not None and not gate.answered:
            if is_approval(gate):
                answers.append((gate.gate, {"approve": False, "reason": CANCELLED}))
            else:
                is_cancelled = True
    if is_cancelled:  # the run cannot continue without an answer to the cancelled gate
        await call.api.journal.cancel(run_id, timeout=CANCEL_SECONDS)
        return
    for gate, value in answers:
        await store_answer(replace(call, body=AnswerBody(gate=gate, value=value)))
    await resume_answered(call, talk.graph)


async def _follow_run(
    talk: _Conversation,
    info: RunInfo,
    message: AnyMessage | None = None,
    *,
    error: Refused | None = None,
    unused: Sequence[str] = (),
) -> Response:
    """Stream all events of a run. If the run is interrupted, or waits and can continue, resume the
    run first."""
    if info.is_interrupted() or (info.status == "waiting" and info.can_continue()):
        await resume_answered(replace(talk.call, path={"run": info.run_id}), talk.graph)
    messages, is_sent = await talk.snapshot(info, message)
    return AgentStream(
        talk.call,
        messages if is_sent else None,
        follow=Follow(info, messages),
        error=error,
        is_late=True,
        unused=unused,
    )


def _user_id(info: RunInfo) -> str:
    """Return the id of the message that began a run."""
    message_id = info.metadata.get(MESSAGE)
    return message_id if isinstance(message_id, str) else f"{info.run_id}:user"


def _is_in_step(messages: list[dict[str, Any]], expected: list[str], replayed: str | None) -> bool:
    """Return whether a client has the messages with the `expected` ids in this order, and no other
    user message or reply. If `replayed` is the id of a run, the client must not have another
    message of that run."""
    missing_ids = [*expected]
    for message in messages:
        id: str = message["id"]
        first = id.rpartition(AGAIN)[0]
        if missing_ids and missing_ids[0] in (id, first):
            missing_ids.pop(0)
            continue
        has_text = message["role"] == "assistant" and bool(message.get("content"))
        is_replayed = replayed is not None and id.startswith(f"{replayed}:")
        if id in expected or message["role"] == "user" or has_text or is_replayed:
            return False
    return not missing_ids


async def show_agent(call: ApiCall) -> Response:
    """Show the capabilities of a graph as an AG-UI agent."""
    starts = starts_of(call)
    graph, plans = starts.graph, [*plan_of_graph(starts.graph).plans.values()]
    files = {file_in(field_schema(graph.start, name)) for name in file_fields(graph.start)}
    capabilities: dict[str, Any] = {
        "identity": {
            "name": starts.name,
            "type": "bae",
            "description": starts.about,
            "version": __version__,
        },
        "transport": {"streaming": True, "websocket": False, "httpBinary": False},
        "tools": {
            "supported": any(plan.tools is not None for plan in plans),
            "parallelCalls": True,
            "clientProvided": False,
        },
        "output": {"structuredOutput": True},
        "state": {"snapshots": True, "deltas": False, "persistentState": True},
        "multimodal": {"input": {"image": "Image" in files, "pdf": "Document" in files}},
        "humanInTheLoop": {
            "supported": plan_of_graph(graph).asks_person,
            "approvals": plan_of_graph(graph).asks_person,
            "interrupts": True,
            "approveWithEdits": True,
        },
        "custom": {
            "bae": {"messageField": message_field(graph.start), "startSchema": starts.schema}
        },
    }
    return Response(dump(capabilities), media_type="application/json")


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/ag-ui/{graph}",
        "run",
        "Run a turn of a conversation with a graph, as an AG-UI 1.0 agent.",
        run_agent,
        {200: "text/event-stream"},
        body=AgentRequest,
        longest=LONGEST,
    ),
    get_row(
        "/ag-ui/{graph}",
        "Show the capabilities of a graph as an AG-UI agent.",
        show_agent,
        "application/json",
    ),
)
