"""The response to an AG-UI request. Server-sent events follow a run until the run ends or waits for
a person."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, cast

from starlette.types import Receive, Scope, Send

from bae.journal.decoder import off_loop
from bae.journal.earlier_turns import read_turn
from bae.journal.feeds import FeedBatch, Subscriber, subscribe
from bae.journal.stored_runs import Line, RunInfo
from bae.plan import plan_of
from bae.records import RecordedError
from bae.serve.ag_ui_events import AgentEvent, RunEvents, interrupt_id
from bae.serve.ag_ui_input import RESPONSE, AgentRequest, is_approval
from bae.serve.endpoints import ApiCall
from bae.serve.gates import GatesQuery, list_gates
from bae.serve.graphs import starts_of
from bae.serve.problems import Refused, make_refusal
from bae.serve.records import (
    SEND_SECONDS,
    ClientGone,
    EventResponse,
    batches,
    close_with_client,
    sending,
)
from bae.serve.runs import RunDetails, view_run
from bae.serve.views import GateView, UsageView, Value, dump
from bae.tasks import wait_until_ended

PROTOCOL: Final = "1.0"
_FEW: Final = 50
"""The maximum number of records that are read on the event loop. More records are read in a
thread."""
_STOPPED: Final = {
    "": (
        "bae-serve-closing",
        "the server stops, and the run continues later: send the same request again to follow it",
    ),
    "deleted": ("bae-run-unknown", "the run was deleted"),
    "reset": ("bae-run-unknown", "the run was replaced by another"),
}
"""The code and the message for a stream that ends before the run."""


@dataclass(frozen=True, slots=True)
class Follow:
    """A run for a stream to follow."""

    info: RunInfo
    messages: Sequence[dict[str, Any]]
    """The messages before the run's reply. The client has these messages, or gets them first."""
    muted: int = -1
    """The number of the last record whose events the client has; -1 if the client has no events."""


class AgentStream(EventResponse):
    """The events of one AG-UI run. Closing the connection does not affect bae's run.

    - RUN_STARTED is the first event.
    - `messages` come next, unless `messages` is None because the client has the same messages.
    - The events of the run to `follow` come next. Without such a run, the result in `details` comes
      next.
    - RUN_FINISHED or RUN_ERROR is the last event.

    With an `error`, the stream has no events of a run, unless the error `is_late`. A late error is
    sent after these events. `unused` explains which parts of the message the graph does not use.
    """

    def __init__(
        self,
        call: ApiCall,
        messages: Sequence[dict[str, Any]] | None,
        *,
        follow: Follow | None = None,
        details: RunDetails | None = None,
        error: Refused | None = None,
        is_late: bool = False,
        unused: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._call, self._messages, self._error = call, messages, error
        self._to_follow, self._details = follow, details
        self._is_late, self._unused = is_late, unused

    @property
    def _request(self) -> AgentRequest:
        return self._call.body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        with suppress(ClientGone):
            try:
                await self._send(send, self._begin_events())
                last: list[AgentEvent] = []
                if self._error is None or self._is_late:
                    if self._to_follow is not None:
                        last = await self._send_run(self._to_follow, receive, send)
                    else:
                        last = self._success_events(self._details)
                if self._error is not None and (not last or last[-1]["type"] != "RUN_ERROR"):
                    body = self._error.body
                    text = f"{body.detail}; {body.fix}" if body.fix else body.detail
                    last.append(_error_event(body.type, text))
            except ClientGone:
                raise
            except Exception as error:
                problem = make_refusal(error, "an AG-UI stream").body
                last = [_error_event(problem.type, problem.detail)]
            await self._send(send, last)
            async with sending(SEND_SECONDS):
                await send({"type": "http.response.body", "body": b""})

    def _begin_events(self) -> list[AgentEvent]:
        request = self._request
        ids = {"threadId": request.thread_id, "runId": request.run_id}
        run_facts: dict[str, Any] = {"protocolVersion": PROTOCOL}
        if self._to_follow is not None:
            run_facts["metadata"] = {"bae": {"run": self._to_follow.info.run_id}}
        events: list[AgentEvent] = [{"type": "RUN_STARTED", **ids, **run_facts}]
        unused = {"tools": request.tools, "context": request.context}
        ignored: dict[str, Any] = {name: len(value) for name, value in unused.items() if value}
        if self._unused:
            ignored["parts"] = [*self._unused]
        if ignored:
            events.append({"type": "CUSTOM", "name": "bae.ignored", "value": ignored})
        if self._messages is not None:
            if request.messages:  # without an empty snapshot, the client would keep its own order
                events.append({"type": "MESSAGES_SNAPSHOT", "messages": []})
            events.append({"type": "MESSAGES_SNAPSHOT", "messages": self._messages})
        return events

    async def _send_run(self, follow: Follow, receive: Receive, send: Send) -> list[AgentEvent]:
        """Send the events of a run, except the last events. Return the last events."""
        api, info = self._call.api, follow.info
        stored = await api.journal.read(info.run_id)
        events = RunEvents(starts_of(self._call).graph, stored, follow.messages)
        old = [line for line in stored.lines if line.n <= follow.muted]
        await off_loop(len(old), events.read, old, muted=True)
        after, last_stored = follow.muted, max((line.n for line in stored.lines), default=-1)
        while True:
            async with subscribe(api.feeds.run(info.run_id), after) as lines:
                tasks = [asyncio.create_task(close_with_client(receive, lines))]
                try:
                    with api.streaming(lines):
                        async for batch in batches(lines):
                            await self._send_batch(events, batch, send)
                            # Text in progress must follow the events of the stored records.
                            if len(tasks) == 1 and lines.number >= last_stored:
                                texts = self._send_texts(events, info.run_id, send, lines)
                                tasks.append(asyncio.create_task(texts))
                finally:
                    for task in tasks:
                        task.cancel()
                    await wait_until_ended(tasks)
                after, end = lines.number, lines.end
            last = await self._end_events(events, info.run_id, end)
            if last is not None:
                return last

    async def _send_batch(
        self, events: RunEvents, batch: FeedBatch[Line] | None, send: Send
    ) -> None:
        if batch is None:
            await self._send(send, None)
            return
        lines = [item.value for item in batch.items]
        async with self._sending:
            if len(lines) <= _FEW:
                new_events = events.read(lines)
            else:
                new_events = await self._call.api.fold(events.read, lines)
            await self._write(send, new_events)

    async def _send_texts(
        self, events: RunEvents, run_id: str, send: Send, lines: Subscriber[Line]
    ) -> None:
        """Send the run's text in progress."""
        try:
            async for pieces in self._call.api.owner.texts.follow(run_id, thoughts=True):
                async with self._sending:
                    await self._write(send, events.write(pieces))
        except ClientGone:
            lines.close()

    async def _end_events(
        self, events: RunEvents, run_id: str, end: str
    ) -> list[AgentEvent] | None:
        """Return the events at the end of a run. Return None if the run continues."""
        call = replace(self._call, path={"run": run_id}, query=GatesQuery())
        match end:
            case "ended":
                stored = await call.api.journal.read_texts(run_id)
                graph = starts_of(self._call).graph
                secrets = call.api.journal.secrets
                turn = await off_loop(len(stored.lines), read_turn, stored, graph, secrets)
                details = await view_run(call, run_id)
                closing_events = [*events.reply(turn[0].reply), *events.close(is_void=False)]
                return [*closing_events, *self._success_events(details)]
            case "gap":  # the client is slow: read the rest from the store
                return None
            case "waiting":
                open_gates = [gate for gate in (await list_gates(call)).gates if not gate.answered]
                if not open_gates:
                    return None
                ids = events.call_ids()
                interrupts = [_view_interrupt(gate, ids.get(gate.gate)) for gate in open_gates]
                outcome = {"type": "interrupt", "interrupts": interrupts}
                return [*events.close(is_void=True), self._finish_event(outcome=outcome)]
            case "cancelled":
                closing_events = events.close(is_void=False)
                if self._request.protocol_version is None:
                    # Clients before 1.0 do not know the outcome "cancelled".
                    return [
                        *closing_events,
                        _error_event("bae-run-cancelled", "the run was cancelled"),
                    ]
                return [*closing_events, self._finish_event(outcome={"type": "cancelled"})]
            case "failed":
                closing_events = events.close(is_void=False)
                return [*closing_events, _failure_event(events)]
            case _:
                return [*events.close(is_void=False), _error_event(*_STOPPED[end])]

    def _success_events(self, details: RunDetails | None) -> list[AgentEvent]:
        if details is None:
            return [self._finish_event(outcome={"type": "success"})]
        state_events: list[AgentEvent] = []
        state = self._view_state(details)
        if state is not None:
            state_events.append({"type": "STATE_SNAPSHOT", "snapshot": state})
        run_usage = None if self._to_follow is None else details.usage
        usage = [] if run_usage is None else _view_usage(run_usage)
        finish_fields = {"result": details.result} | ({"usage": usage} if usage else {})
        return [*state_events, self._finish_event(outcome={"type": "success"}, **finish_fields)]

    def _view_state(self, details: RunDetails) -> dict[str, Any] | None:
        """Return the client's state with the fields of the result. Text and tool calls are left
        out, because the client has them as messages. Return None if the result has no other
        fields."""
        graph, result = starts_of(self._call).graph, details.result
        cls = next((c for c in graph.terminal_nodes if c.__name__ == details.end), None)
        if cls is None or not isinstance(result, dict):
            return None
        calls = plan_of(cls).tools
        message_fields = {plan_of(cls).text, "" if calls is None else calls.name}
        result_fields = cast("dict[str, Any]", result).items()
        fields = {name: value for name, value in result_fields if name not in message_fields}
        return {**self._request.state_fields, **fields} if fields else None

    def _finish_event(self, **more: Any) -> AgentEvent:
        ids = {"threadId": self._request.thread_id, "runId": self._request.run_id}
        return {"type": "RUN_FINISHED", **ids, **more}

    async def _send(self, send: Send, events: Sequence[AgentEvent] | None) -> None:
        async with self._sending:
            await self._write(send, events)

    async def _write(self, send: Send, events: Sequence[AgentEvent] | None) -> None:
        """Send events. For None, send a sign of life."""
        if events is None:
            text = b": alive\n\n"
        else:
            text = b"".join(b"data: " + dump(event) + b"\n\n" for event in events)
        if text:
            async with sending(SEND_SECONDS):
                await send({"type": "http.response.body", "body": text, "more_body": True})


def _view_interrupt(gate: GateView, call_id: str | None) -> AgentEvent:
    """Return a question to the user as an interrupt."""
    context = {name: _plain_value(value) for name, value in gate.context.items()}
    gate_facts = {
        "run": gate.run_id,
        "gate": gate.gate,
        "place": gate.place,
        "context": context,
    }
    interrupt: AgentEvent = {
        "id": interrupt_id(gate.run_id, gate.gate),
        "metadata": {"bae": gate_facts},
    }
    if is_approval(gate):
        interrupt |= {"reason": "tool_call", "responseSchema": RESPONSE}
    else:
        schema = gate.answer_schema
        is_yes = schema is not None and schema.get("type") == "boolean"
        interrupt["reason"] = "confirmation" if is_yes else "input_required"
        if schema is not None:
            interrupt["responseSchema"] = schema
    if gate.question:
        interrupt["message"] = gate.question
    if call_id is not None:
        interrupt["toolCallId"] = call_id
    if gate.deadline is not None:
        interrupt["expiresAt"] = datetime.fromtimestamp(gate.deadline, UTC).isoformat()
    return interrupt


def _plain_value(value: Value) -> Any:
    """Return a value for the person who answers. A long value is cut."""
    if value.kept == "cut":
        return f"{value.text}… ({value.size} characters)"
    return value.value if value.kept == "value" else f"[{value.kept}]"


def _view_usage(usage: UsageView) -> list[dict[str, Any]]:
    """Return the usage of a run. If the run used several models, leave out the model."""
    if not usage.calls:
        return []
    counts: dict[str, Any] = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
        "cachedInputTokens": usage.cached_tokens,
    }
    return [counts | ({"model": usage.models[0]} if len(usage.models) == 1 else {})]


def _failure_event(events: RunEvents) -> AgentEvent:
    """Return an event with the reason why a run failed."""
    error = events.history.run.end_error
    if not isinstance(error, RecordedError):
        return _error_event("bae-run-failed", "the run has failed")
    return _error_event(error.code or error.type_name, error.message or error.type_name)


def _error_event(code: str, message: str) -> AgentEvent:
    return {"type": "RUN_ERROR", "code": code, "message": message}
