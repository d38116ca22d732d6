"""The records of a run as events of AG-UI 1.0: steps, tool calls, and the reply while the LLM
writes the reply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bae.journal.decoder import LineReader, StoredHistory
from bae.journal.live_texts import TextPiece
from bae.journal.shape import ShapeView
from bae.journal.stored_runs import Line, StoredRun
from bae.place import Place
from bae.plan import plan_of
from bae.run_tree import WorkChange
from bae.serve.views import CUT
from bae.work import LMQuestion, Step, ToolRun, Work

if TYPE_CHECKING:
    from bae.graph import Graph

AgentEvent = dict[str, Any]
AGAIN: Final = "~"
"""Separates the id of a reply from a number. A reply gets a number if an earlier text of the reply
was withdrawn."""


def reply_id(run_id: str) -> str:
    """Return the id of the message with a run's reply."""
    return f"{run_id}:reply"


def interrupt_id(run_id: str, address: str) -> str:
    """Return the id of a gate's question. The id includes the run, because gates of other turns
    have the same addresses."""
    return f"{run_id}:{address}"


class RunEvents:
    """Makes events from the records of a run. AG-UI has no event that withdraws a text. If a sent
    text becomes void, the client gets all messages again, without that text."""

    def __init__(
        self, graph: Graph[Any, Any], stored: StoredRun, messages: Iterable[Mapping[str, Any]]
    ) -> None:
        self.run_id = stored.info.run_id
        self.messages: list[dict[str, Any]] = [dict(message) for message in messages]
        """The messages that the client has."""
        self.history = StoredHistory(ShapeView(stored.shape, stored.info.shape))
        self._reader = LineReader(history=self.history)
        self._text_fields = {cls.__name__: plan_of(cls).text for cls in graph.terminal_nodes}
        self._events: list[AgentEvent] = []
        self._steps: dict[Step, str] = {}
        """The names of the open steps."""
        self._text_by_place: dict[str, str] = {}
        """The texts in progress."""
        self._place = ""
        """The place of the text in the open message."""
        self._sent_text = ""
        self._text_id = ""
        self._reply_count = 0
        self._thoughts: dict[str, str] = {}
        """The message ids of the thoughts in progress, by place."""
        self._thought_count = 0

    def read(self, lines: Iterable[Line], *, muted: bool = False) -> list[AgentEvent]:
        """Read the next records, and return their events. With `muted`, return no events, because
        the client has the events already."""
        self.history.on_change = None if muted else self._add_change
        for line in lines:
            self._reader.read(line)
        return self._take_events()

    def write(self, pieces: Iterable[TextPiece]) -> list[AgentEvent]:
        """Return the events for pieces of text in progress."""
        for piece in pieces:
            place = Place.parse(piece.place)
            if place is None:
                continue
            text = self._text_by_place[piece.place] = self._text_by_place.get(piece.place, "")[
                : piece.start
            ]
            if not place.field:
                self._add_thought(piece)
            elif not place.path and place.value_text == self._text_fields.get(place.node):
                self._show_text(piece.place, text + piece.delta)
            self._text_by_place[piece.place] = text + piece.delta
        return self._take_events()

    def reply(self, text: str) -> list[AgentEvent]:
        """Return the events for the final reply."""
        self._end_thoughts()
        if self._text_id and not text.startswith(self._sent_text):
            self._withdraw_text()
        self._send_text(text)
        self._end_text()
        return self._take_events()

    def close(self, *, is_void: bool) -> list[AgentEvent]:
        """Return the events that end all open messages and steps. With `is_void`, the open text is
        withdrawn, because no record has that text."""
        self._end_thoughts()
        if self._text_id:
            (self._withdraw_text if is_void else self._end_text)()
        for name in reversed(self._steps.values()):
            self._add("STEP_FINISHED", stepName=name)
        self._steps.clear()
        return self._take_events()

    def call_ids(self) -> dict[str, str]:
        """Return the ids of the tool calls that wait for a person or had to wait. The keys are the
        addresses of the calls' gates."""
        return {
            gate.gate.address: self._id_of(call)
            for step in self.history.steps()
            for call in step.tool_calls
            for gate in call.gates
            if gate.gate is not None
        }

    def _add(self, type: str, **more: Any) -> None:
        self._events.append({"type": type, **more})

    def _take_events(self) -> list[AgentEvent]:
        events, self._events = self._events, []
        return events

    # Records

    def _add_change(self, change: WorkChange, work: Work) -> None:
        match work:
            case Step() if change == "started" and work not in self._steps:
                name = self._steps[work] = str(work.place)
                self._add("STEP_STARTED", stepName=name)
            case Step() if change == "ended" and work in self._steps:
                self._add("STEP_FINISHED", stepName=self._steps.pop(work))
            case LMQuestion(loop=loop) if change == "round" and loop is not None:
                round_ = loop.rounds[-1]
                for request in (*round_.ran, *round_.calls):
                    call = loop.calls[request["id"]]
                    self._add_call(call, request["arguments"])
                    if call.is_native:
                        self._add_result(call)
            case ToolRun() if change == "ended" and work.state == "done":
                self._add_result(work)
            case _:
                pass

    def _id_of(self, call: ToolRun) -> str:
        return f"{self.run_id}:{call.place}"

    def _add_call(self, call: ToolRun, arguments: Any) -> None:
        call_id, text = self._id_of(call), _as_text(arguments)
        self._add("TOOL_CALL_START", toolCallId=call_id, toolCallName=call.name)
        self._add("TOOL_CALL_ARGS", toolCallId=call_id, delta=text)
        self._add("TOOL_CALL_END", toolCallId=call_id)
        function = {"name": call.name, "arguments": text}
        tool_call = {"id": call_id, "type": "function", "function": function}
        self.messages.append({"id": call_id, "role": "assistant", "toolCalls": [tool_call]})

    def _add_result(self, call: ToolRun) -> None:
        call_id = self._id_of(call)
        text = _as_text(call.result) if call.tool_error is None else call.tool_error
        cut_length = len(text) - CUT
        if cut_length > 0:
            text = f"{text[:CUT]}… ({cut_length:,} more characters)"
        content = {"toolCallId": call_id, "content": text}
        self._add("TOOL_CALL_RESULT", messageId=f"{call_id}:result", **content)
        self.messages.append({"id": f"{call_id}:result", "role": "tool", **content})

    # The text of the reply

    def _show_text(self, place: str, text: str) -> None:
        """Send a text in progress. If neither the text nor the sent text begins with the other,
        withdraw the sent text first. A void text is withdrawn only now, because the new text often
        begins in the same way."""
        if not text:
            return
        self._end_thoughts()
        if self._text_id and (place != self._place or not _share_beginning(text, self._sent_text)):
            self._withdraw_text()
        self._place = place
        if len(text) > len(self._sent_text):
            self._send_text(text)

    def _send_text(self, text: str) -> None:
        """Send the part of a text that was not sent yet."""
        if not self._text_id:
            again = f"{AGAIN}{self._reply_count}" if self._reply_count else ""
            self._text_id, self._sent_text = f"{reply_id(self.run_id)}{again}", ""
            self._reply_count += 1
            self._add("TEXT_MESSAGE_START", messageId=self._text_id, role="assistant")
        if delta := text[len(self._sent_text) :]:
            self._add("TEXT_MESSAGE_CONTENT", messageId=self._text_id, delta=delta)
        self._sent_text = text

    def _end_text(self) -> None:
        self._add("TEXT_MESSAGE_END", messageId=self._text_id)
        message = {"id": self._text_id, "role": "assistant", "content": self._sent_text}
        self.messages.append(message)
        self._text_id = self._sent_text = self._place = ""

    def _withdraw_text(self) -> None:
        """Send all messages again, without the open text."""
        self._end_text()
        self.messages.pop()
        self._add("MESSAGES_SNAPSHOT", messages=[*self.messages])

    # Thoughts of the model

    def _add_thought(self, piece: TextPiece) -> None:
        if not piece.delta or not piece.start:
            self._end_thought(piece.place)
        if not piece.delta:
            return
        message_id = self._thoughts.get(piece.place)
        if message_id is None:
            self._thought_count += 1
            message_id = self._thoughts[piece.place] = (
                f"{self.run_id}:thought{AGAIN}{self._thought_count}"
            )
            self._add("REASONING_START", messageId=message_id)
            self._add("REASONING_MESSAGE_START", messageId=message_id, role="reasoning")
        self._add("REASONING_MESSAGE_CONTENT", messageId=message_id, delta=piece.delta)

    def _end_thought(self, place: str) -> None:
        message_id = self._thoughts.pop(place, None)
        if message_id is not None:
            self._add("REASONING_MESSAGE_END", messageId=message_id)
            self._add("REASONING_END", messageId=message_id)

    def _end_thoughts(self) -> None:
        for place in [*self._thoughts]:
            self._end_thought(place)


def _share_beginning(text: str, other_text: str) -> bool:
    """Return whether one of two texts begins with the other text."""
    return text.startswith(other_text) or other_text.startswith(text)


def _as_text(value: Any) -> str:
    """Return a text as it is, and any other value of a tool call as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
