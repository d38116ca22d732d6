"""Check a run that comes from a file. `RunCheck` reads the run's lines in order, as a journal would
later. It refuses lines that no run can have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError
from pydantic_core import to_json

from bae import records
from bae.approvals import REVOKED
from bae.exceptions import JournalError, faults
from bae.journal.decoder import LineReader, StoredHistory
from bae.journal.lines import StoredNode, damaged_line_error
from bae.journal.shape import ShapeView
from bae.journal.stored_runs import CANCEL, DEATH, LATEST, MESSAGE, Line, StoredRun, messages_in
from bae.place import Place
from bae.records import Record, Unstored
from bae.sources import find_source_kind
from bae.usage import Usage
from bae.work import CALL_ID

if TYPE_CHECKING:
    from bae.node import Node
    from bae.records import Asker
    from bae.work import Step

AHEAD: Final = 2
"""How many steps a line may be ahead of the newest complete node. The next node may be in progress,
and the dependencies of the node after it may have started."""
NODES: Final = records.kinds_with("node", "start node", "step node", "filled node")
"""The kinds of records that store a node."""


class RunCheck:
    """Checks the lines of a run, in order. `run` has everything but the lines. For a contradiction,
    the check raises a `JournalError` (`bae-journal-damaged` or `bae-journal-version`)."""

    def __init__(self, run: StoredRun) -> None:
        self._info = run.info
        self._answers = run.answers
        self._history = StoredHistory(ShapeView(run.shape, run.info.shape))
        self._reader = LineReader(history=self._history)
        self._newest: dict[str, int] = {}
        """The step of the newest complete node, by the path of its graph. It is -1 if the graph has
        no complete node."""
        self._run_id = ""
        """The run id in the newest `RunStarted`."""
        self._end: records.RunEnded | None = None
        """The newest record, if it ends the run."""
        self._conversations: dict[tuple[str, int, Asker, str], _Conversation] = {}
        self._is_changed = False
        """Whether the run was resumed with classes other than those of its shape."""

    def add(self, line: Line) -> None:
        """Check the next line. Raises a `JournalError` if the line contradicts an earlier line."""
        before = self._history.step(line.path, line.step)
        has_node = before is not None and before.node is not None
        try:
            record = self._reader.read(line)
        except JournalError as error:
            if error.code == "bae-journal-unreadable":
                raise damaged_line_error(line, error.message, error) from error
            raise
        assert record is not None
        fault = self._fault(record, has_node) or self._step_fault(record) or _number_fault(record)
        fault = fault or self._conversation_fault(record)
        if fault:
            raise damaged_line_error(line, fault)
        self._end = None
        if isinstance(record, records.RunEnded) and not record.path:
            self._end = record

    def finish(self) -> str:
        """Return the contradiction between the run's entry and its lines; empty if there is none.
        Call this after the last line."""
        info, history, end = self._info, self._history, self._end
        parent = history.forks[-1].parent if history.forks else None
        if info.parent != parent:
            return f"its parent is {info.parent!r}, and its lines say {parent!r}"
        if not history.forks and self._run_id != info.run_id:
            return f"its lines are those of the run {self._run_id!r}"
        outcome = None if end is None else end.outcome
        # After the last line, a process may have claimed the run, or a load may have cancelled it.
        possible = (outcome, "running", "cancelled")
        if (info.status == "ended" != outcome) or (outcome and info.status not in possible):
            return f"its status is {info.status!r}, but its lines end differently"
        if info.status == "queued" and history.count > 1:
            return "its status is 'queued', and its lines say that it has begun"
        if info.waiting and info.status != "waiting":
            return f"its status is {info.status!r}, and it waits for an answer"
        for gate in info.waiting:
            source = history.gates.get(gate.address)
            if source is None or source.gate is None or gate.place != source.gate.place:
                return f"no line opens the gate {gate.address!r} of {gate.place!r}"
        messages = {f"{MESSAGE}{number}" for number, _ in messages_in(self._answers)}
        gates = [answer for answer in self._answers if not answer.startswith((CANCEL, DEATH))]
        answered = {gate.removesuffix(REVOKED) for gate in {*gates} - messages}
        unknown = sorted(answered - history.gates.keys())
        return f"no line opens the gate {unknown[0]!r}, which has an answer" if unknown else ""

    def _fault(self, record: Record, has_node: bool) -> str:
        """Return the contradiction between a record and the lines before it; empty if there is
        none."""
        path, history = record.path, self._history
        is_first = history.count == 1
        if is_first is not (isinstance(record, records.RunStarted) and not path):
            return "a run has one RunStarted, as its first line"
        if path not in self._newest and not isinstance(record, records.RunStarted | records.LMUsed):
            return f"no graph has started at {path!r}"
        if self._end is not None and not isinstance(record, records.RunResumed | records.RunForked):
            return "the run has ended before it"
        match record:
            case records.RunStarted():
                return self._start_fault(record)
            case records.RunResumed() | records.RunForked():
                if path:
                    return f"it is about the run, and not about the graph at {path!r}"
                self._is_changed |= isinstance(record, records.RunResumed) and bool(record.changes)
            case records.StepStarted(node=node, made=made):
                if not has_node and (made or cast("Node | None", node) is None):
                    return f"no line has the node of step {record.step}"
            case records.ChoiceStarted() | records.ChoiceMade():
                name, step = type(record.node).__name__, self._step_at(path, record.step - 1)
                if step is None or step.name != name:
                    return f"the run is not at {name} before step {record.step}"
            case records.SourceEnded(called_at=place) if place:
                fault_place = Place.parse(place)
                if fault_place is None or history.source(fault_place) is None:
                    return f"nothing was called for {place!r}"
            case records.Recalled(origin=origin):
                if self._step_at(origin.path, origin.step) is None:
                    return f"there is no node at step {origin.step} of {origin.path!r} to recall"
            case records.RunEnded(gates=gates):
                unknown = [gate.address for gate in gates if gate.address not in history.gates]
                if unknown:
                    return f"no line opens the gate {unknown[0]!r}"
            case _:
                pass
        return self._class_fault(record)

    def _start_fault(self, record: records.RunStarted) -> str:
        path, info = record.path, self._info
        if not path and record.graph != info.graph:
            return f"it starts the graph {record.graph!r}, and this is a run of {info.graph!r}"
        # The lines that a fork shares have the id of the run that wrote them.
        if self._run_id and record.run_id != self._run_id and not self._history.forks:
            return f"it belongs to the run {record.run_id!r}, but the lines before it do not"
        self._run_id = record.run_id
        self._forget_conversations(path, 0)
        place = Place.parse(path) if path else None
        if path and (place is None or not place.field or str(place) != path):
            return f"{path!r} is not the place of a field"
        if place is not None and place.path and place.path not in self._newest:
            return f"no graph has started at {place.path!r}"
        self._newest[path] = -1
        return self._class_fault(record)

    def _class_fault(self, record: Record) -> str:
        """Return the fault of a class or field that is missing in the shape of the run's
        classes."""
        shape, path = self._history.shape, record.path
        if self._is_changed or not shape.graphs:
            return ""
        if path and shape.graph_at(path) is None:
            return f"no graph runs for {path!r}"
        if isinstance(record, records.CallEnded | records.ClassMet):  # a class outside the graph
            return ""
        for cls in _classes(record):
            if shape.class_at(path, cls.__name__) is None:
                return f"its graph has no node {cls.__name__}"
        field: str = getattr(record, "field", "")
        node: type | None = getattr(record, "node_type", None)  # may be outside the graph for tools
        place = Place(path, node="" if node is None else node.__name__, field=field)
        if field and node is not None and shape.field_at(place) is None:
            return f"there is no field {place}"
        if isinstance(record, records.SourceEnded | records.ItemEnded):
            return self._value_fault(record, place)
        return self._node_fault(record)

    def _value_fault(self, record: records.SourceEnded | records.ItemEnded, place: Place) -> str:
        """Return the fault of a subgraph's result that is none of the subgraph's nodes."""
        call = self._history.shape.call_at(
            place._replace(parameter=getattr(record, "parameter", ""))
        )
        classes = None if call is None else self._history.shape.find_classes(call)
        has_value = getattr(record, "error", None) is None and not getattr(record, "called_at", "")
        value = record.value
        if classes is None or not has_value or isinstance(value, Unstored | list):
            return ""
        try:
            node = StoredNode.model_validate_json(to_json(value), strict=True)
        except ValidationError as error:
            return (
                f"the graph for {place} ends with a node, but this is no node: {faults(error)[0]}"
            )
        return "" if node.type in classes else f"the graph for {place} has no node {node.type}"

    def _node_fault(self, record: Record) -> str:
        """Return the fault of a node that lacks a required field."""
        node = getattr(record, "node", None) if isinstance(record, NODES) else None
        # The outer graph gives the fields of a subgraph's start again.
        is_inner_start = isinstance(record, records.RunStarted) and record.path
        if not isinstance(node, StoredNode) or is_inner_start:
            return ""
        cls = self._history.shape.class_at(record.path, node.type) or {"fields": {}}
        for name, drawn in cls["fields"].items():
            is_needed = drawn["required"] and find_source_kind(drawn["kind"]).stored == "node"
            if is_needed and name not in node.fields and name not in node.withheld:
                return f"the node {node.type} lacks {name}"
        return ""

    def _step_fault(self, record: Record) -> str:
        """Return why the run cannot have a line about the record's step now; empty if it can."""
        path, step = record.path, record.step
        newest = self._newest.get(path, -1)
        match record:
            case records.RunStarted():
                return "" if step == 0 else "a graph starts at step 0"
            case records.LMUsed():  # it may replace the lines of a redacted graph
                return ""
            case records.StepStarted():
                if step != newest + 1:
                    return f"step {step} starts where step {newest + 1} is next"
                self._newest[path] = step
            case records.RunForked():
                self._forget_conversations(path, step)
                if step > newest + 1:
                    return f"it forks at step {step}, and the run has {newest + 1} nodes"
                self._newest[path] = step
            case records.RunEnded(outcome="ended") if step != newest + 1:
                return f"it ends after {step} nodes, and has {newest + 1}"
            case _ if step > newest + AHEAD:
                return f"it is about step {step}, and step {newest + 1} is next"
            case _:
                pass
        return ""

    def _conversation_fault(self, record: Record) -> str:
        """Return the contradiction between a record and the earlier lines of its conversation with
        tools."""
        check = _CHECKS.get(type(record))
        if check is None:
            return ""
        asker: Asker = getattr(record, "asker")  # noqa: B009
        question: str = getattr(record, "question")  # noqa: B009
        spot = record.path, record.step
        step = self._history.step(record.path, record.step - (asker.kind == "body"))
        if step is None or (asker, question) not in step.loops:
            return f"nothing asks an LM as {asker}"
        conversation = self._conversations.setdefault((*spot, asker, question), _Conversation())
        fault = check(conversation, record)
        return fault if fault or conversation.is_begun else "no tools were offered before it"

    def _forget_conversations(self, path: str, step: int) -> None:
        """Forget the conversations of a graph from `step` on, because the graph does that step
        again."""
        forgotten = [key for key in self._conversations if key[0] == path and key[1] >= step]
        for key in forgotten:
            del self._conversations[key]

    def _step_at(self, path: str, number: int) -> Step | None:
        """Return the step with this number if its node is known, otherwise None."""
        step = self._history.step(path, number)
        return None if step is None or step.node is None else step


def _classes(record: Record) -> list[type[Node]]:
    """Return the classes in a record that the record's graph must have."""
    match record:
        case _ if isinstance(record, NODES):
            node: Node | None = getattr(record, "node", None)
            return [] if node is None else [type(node)]
        case records.ChoiceMade(chosen=chosen):
            return [] if chosen is type(None) else [chosen]
        case records.FillStarted(target=target):
            return [target]
        case records.GateOpened(gate=gate):
            return [gate.node_type]
        case _:
            asker: Asker | None = getattr(record, "asker", None)
            cls: type[Node] | None = getattr(record, "node_type", asker and asker.node)
            return [] if cls is None else [cls]


@dataclass(slots=True)
class _Conversation:
    """The lines of a conversation with tools so far."""

    is_begun: bool = False
    rounds: int = 0
    calls: dict[str, str] = field(default_factory=dict[str, str])
    """The names of the tools, by the id of the call."""
    ended: set[str] = field(default_factory=set[str])
    """The ids of the calls that have ended."""


_Check = Callable[[_Conversation, Any], str]
_CHECKS: Final[dict[type[Record], _Check]] = {}
"""The function that finds the contradiction between a record and its conversation, by kind of
record."""


def _checks(kind: type[Record]) -> Callable[[_Check], _Check]:
    def register(check: _Check) -> _Check:
        _CHECKS[kind] = check
        return check

    return register


@_checks(records.ToolsOffered)
def _offer_fault(conversation: _Conversation, record: records.ToolsOffered) -> str:
    conversation.is_begun = True
    return ""


@_checks(records.RoundMade)
def _round_fault(conversation: _Conversation, record: records.RoundMade) -> str:
    if record.number != conversation.rounds + 1:
        return f"it is round {record.number}, and round {conversation.rounds + 1} is next"
    unfinished = conversation.calls.keys() - conversation.ended
    if unfinished:
        return f"the call {min(unfinished)} of the round before has no result"
    conversation.rounds += 1
    for call in (*record.ran, *record.calls):
        id: str = call["id"]
        if id in conversation.calls or not CALL_ID.fullmatch(id):
            return f"{id!r} is the id of another call, or not a valid id"
        conversation.calls[id] = call["name"]
    conversation.ended |= {call["id"] for call in record.ran}
    strings = [call["id"] for call in record.ran if isinstance(call["arguments"], str)]
    return f"the arguments of the call {strings[0]} are not a JSON object" if strings else ""


@_checks(records.ToolStarted)
def _start_fault(
    conversation: _Conversation, record: records.ToolStarted | records.ToolEnded
) -> str:
    if record.id in conversation.ended or conversation.calls.get(record.id) != record.name:
        return f"the LM has not called {record.name!r} as {record.id!r}, or the call has ended"
    return ""


@_checks(records.ToolEnded)
def _end_fault(conversation: _Conversation, record: records.ToolEnded) -> str:
    fault = _start_fault(conversation, record)
    if record.reused and record.reused not in conversation.ended:
        fault = fault or f"the call {record.reused!r} has no result to use again"
    if record.error is not None and record.result is not None:
        fault = fault or "a call has a result or an error, and not both"
    conversation.ended.add(record.id)
    return fault


@_checks(records.RoundReplied)
def _reply_fault(conversation: _Conversation, record: records.RoundReplied) -> str:
    has_round = record.number == conversation.rounds
    if record.kind == "cut":
        has_round = 0 < record.number <= conversation.rounds
    elif record.kind not in ("told", "steered"):
        has_round = has_round and record.number > 0
    return "" if has_round else f"there is no round {record.number} for this record"


def _number_fault(record: Record) -> str:
    """Return the fault of a number that no run can have measured or counted."""
    attempt, gate = getattr(record, "attempt", None), getattr(record, "gate", None)
    usage = getattr(record if attempt is None else attempt, "usage", Usage())
    numbers: dict[str, float | None] = {
        name: getattr(record, name, None) for name in ("seconds", "wait", "index", "max_iters")
    }
    numbers |= {
        f"usage.{name}": getattr(usage, name)
        for name in Usage.__dataclass_fields__
        if name != "models"
    }
    numbers["number"] = getattr(record if attempt is None else attempt, "number", None)
    numbers["item"] = getattr(getattr(record, "asker", None), "item", None)
    numbers["deadline"] = None if gate is None else gate.deadline
    for name, number in numbers.items():
        below = LATEST if name == "deadline" else inf
        if number is not None and not 0 <= number < below:
            return f"{name} is {number}"
    return ""
