"""Endpoints for the questions of a run to people: gates, tool approvals, and their answers."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, Field
from pydantic_core import from_json

from bae.approvals import Grant
from bae.exceptions import BaeError, GateError, JournalError, describe
from bae.files import visible
from bae.graph import Graph
from bae.graph_plan import plan_of_graph
from bae.journal.decoder import graph_at
from bae.journal.gates import all_gates, encode_answer
from bae.journal.node_codec import read_gate_answer
from bae.journal.report import RunReport, report_run
from bae.journal.stored_runs import RunInfo, StoredRun
from bae.markers import OpenGate
from bae.plan import plan_of
from bae.serve.endpoints import ApiCall, CutAt, Endpoint, Form, Number, get_row
from bae.serve.files import find_named_files
from bae.serve.problems import InputFault, Refused, not_resumed, refusal_of, wrong_input
from bae.serve.runs import RunDetails, view_run
from bae.serve.starts import answer_schema
from bae.serve.views import SHORT, GatePage, GateView, Value, size_of, take_page, value_of
from bae.tool_plan import AskPlan


class GatesQuery(Form):
    """Questions from the number `start` on. `past` includes questions whose answer the run has
    used. Longer values are cut after `cut` characters; 0 means never. A page of long values has
    fewer than `limit`: continue after its last question."""

    past: bool = False
    start: Number = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cut: CutAt = SHORT


class AnswerBody(Form):
    """An answer to a gate: a `value`, or a `decision` about a tool call. "edit" needs all
    `arguments` of the call. An approval with the scope "run" holds for all calls of the tool in
    the run, and with "thread" also in other turns of the thread."""

    gate: Annotated[str, Field(min_length=1, max_length=2_000)]
    value: Any = None
    decision: Literal["approve", "edit", "refuse"] | None = None
    arguments: dict[str, Any] | None = None
    reason: Annotated[str, Field(max_length=10_000)] = ""
    scope: Literal["call", "run", "thread"] = "call"


class RevokeBody(Form):
    """A tool by its name or its place, such as `Reply.calls(refund)`."""

    tool: Annotated[str, Field(min_length=1, max_length=2_000)]


class ApprovalView(BaseModel):
    """An approval of all calls of a tool: the run that asked, and the address of its gate."""

    tool: str
    place: str
    address: str
    revoked: bool
    scope: Literal["run", "thread"]
    run_id: str


class ApprovalPage(BaseModel):
    """Approvals of all calls of a tool, the oldest first in each run."""

    approvals: list[ApprovalView]


async def list_gates(call: ApiCall) -> GatePage:
    """The questions of a run."""
    gates, total = await call.api.fold_run(call.user, call.path["run"], _list_questions, call)
    return GatePage(gates=gates, total=total)


async def answer_gate(call: ApiCall) -> RunDetails:
    """Answer a question. The same answer may be sent again."""
    await resume_answered(call, await store_answer(call))
    return await view_run(call, call.path["run"])


async def store_answer(call: ApiCall) -> Graph[Any, Any]:
    """Store an answer, and return the graph of the run."""
    api, body, run_id = call.api, call.body, call.path["run"]
    info = await api.info(call.user, run_id)
    graph = api.graph_of(info)
    value = _value_of(body)
    named_files = await find_named_files(call, value)
    try:
        with visible(named_files):
            await graph.answer(
                run_id, body.gate, value, journal=api.journal, go_on=False, by=call.user.name
            )
    except GateError as error:
        if error.code == "bae-gate-answered":
            with visible(named_files):
                await _check_same_answer(call, graph, value, error)
        elif error.code == "bae-gate-invalid":
            raise _misfit_refusal(body, error) from error
        else:
            raise
    return graph


async def resume_answered(call: ApiCall, graph: Graph[Any, Any]) -> None:
    """Resume a run after an answer."""
    run_id = call.path["run"]
    try:
        await call.api.owner.resume(graph, run_id)
    except BaeError as error:
        # The owner of the run takes the answer, or this server when it recovers the run.
        if error.code in ("bae-run-owned", "bae-run-taken", "bae-run-ended"):
            return
        raise not_resumed(error, "the answer is stored", run_id) or error from error
    except Refused:
        pass  # the answer is stored, and the server resumes the run when there is room


def _value_of(body: AnswerBody) -> Any:
    if body.decision is None:
        if body.arguments is not None or body.reason or body.scope != "call":
            fix = "give the decision approve, edit or refuse"
            raise wrong_input(["body", "decision"], "it is missing", fix)
        return body.value
    decision: dict[str, Any] = {"approve": body.decision != "refuse"}
    if body.decision == "edit" and body.arguments is None:
        fix = "give all arguments of the call"
        raise wrong_input(["body", "arguments"], "it is missing", fix)
    if body.arguments is not None:
        decision["arguments"] = body.arguments
    if body.reason:
        decision["reason"] = body.reason
    return decision | ({"scope": body.scope} if body.scope != "call" else {})


async def list_approvals(call: ApiCall) -> ApprovalPage:
    """The approvals of all calls of a tool in a run and in its thread."""
    run_id = call.path["run"]
    await call.api.info(call.user, run_id)
    return _page_of(await call.api.journal.approvals(run_id))


async def revoke_approval(call: ApiCall) -> ApprovalPage:
    """Revoke the approvals of a tool: its next call asks again."""
    run_id = call.path["run"]
    await call.api.info(call.user, run_id)
    await call.api.journal.revoke(run_id, call.body.tool)
    return _page_of(await call.api.journal.approvals(run_id))


def _page_of(grants: list[Grant]) -> ApprovalPage:
    return ApprovalPage(approvals=[ApprovalView(**grant._asdict()) for grant in grants])


def _misfit_refusal(body: AnswerBody, error: GateError) -> Refused:
    """The refusal for an answer that does not fit, with the wrong parts of the body."""
    refused = refusal_of(error)
    assert refused is not None
    part = "value" if body.decision is None else "arguments"
    faults = refused.body.errors or [InputFault(loc=["value"], msg=describe(error.cause or error))]
    for fault in faults:
        inner = fault.loc[1:]
        if inner[:1] in ([error.field_name], [part]):
            inner = inner[1:]
        fault.loc = ["body", part, *inner]
    refused.body.errors = faults
    refused.body.place = ".".join(str(each) for each in faults[0].loc)
    return refused


async def _check_same_answer(
    call: ApiCall, graph: Graph[Any, Any], value: Any, error: GateError
) -> None:
    """Refuse an answer that differs from the stored answer of the gate."""
    stored = await call.api.journal.read(call.path["run"])
    for gate, _ in all_gates(stored):
        stored_answer = stored.answers.get(gate.address)
        if call.body.gate not in gate.names or stored_answer is None:
            continue
        with suppress(BaeError):
            typed, new_answer, _ = await encode_answer(graph, stored, gate, value)
            with visible(stored.files):
                if read_gate_answer(typed, stored_answer) == read_gate_answer(typed, new_answer):
                    return
        refused = refusal_of(error)
        assert refused is not None
        refused.body.answered_by = stored.answered_by.get(gate.address)
        refused.body.answer = value_of(from_json(stored_answer), SHORT).model_dump(
            exclude_none=True
        )
        raise refused
    raise error


def _list_questions(stored: StoredRun, call: ApiCall) -> tuple[list[GateView], int]:
    query = call.query
    gates = [gate for gate, is_used in all_gates(stored) if query.past or not is_used]
    return view_gates(call, stored, gates, query.start, query.limit)


def view_gates(
    call: ApiCall, stored: StoredRun, gates: list[OpenGate], start: int, limit: int
) -> tuple[list[GateView], int]:
    """A page of the questions of a run, and the number of all questions."""
    if not gates:
        return [], 0
    report = report_run(stored)
    page = (_view_gate(call, stored, gate, report) for gate in gates[start : start + limit])
    return take_page(page, lambda gate: size_of(gate.context.values())), len(gates)


def _view_gate(call: ApiCall, stored: StoredRun, gate: OpenGate, report: RunReport) -> GateView:
    info = stored.info
    nodes = next((graph.nodes for graph in report.graphs if graph.path == gate.path), ())
    fields = next((node.fields for node in nodes if node.step == gate.step), ())
    arguments = {} if gate.call is None else gate.call.arguments
    context_values = {name: value_of(value, call.query.cut) for name, value in arguments.items()}
    if gate.call is None:
        context_values = {
            field.field: value_of(field.value, call.query.cut, field.kept)
            for field in fields
            if field.state == "there" and field.field != gate.field_name
        }
    context: dict[str, Value] = context_values
    details = _find_details(call, info, gate)
    answer = stored.answers.get(gate.address)
    return GateView(
        run_id=info.run_id,
        graph=info.graph,
        gate=gate.address,
        place=gate.place,
        question=gate.question,
        kind="gate" if gate.call is None or details.is_question else "approval",
        since=info.updated,
        deadline=gate.deadline,
        answered=answer is not None,
        answered_by=stored.answered_by.get(gate.address),
        answer=None if answer is None else value_of(from_json(answer), call.query.cut),
        answer_schema=details.answer,
        arguments_schema=details.arguments,
        context=context,
        tool=None if gate.call is None else gate.call.name,
        thread=info.thread,
    )


class _QuestionDetails(NamedTuple):
    """The details of a question from the code of the graph: the schemas of the answer and of the
    arguments of a tool call, and whether the call is itself a question to a person."""

    answer: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    is_question: bool = False


def _find_details(call: ApiCall, info: RunInfo, gate: OpenGate) -> _QuestionDetails:
    """The details of a question, if the graph is served."""
    graph = call.api.find_graph(info)
    if graph is None:
        return _QuestionDetails()
    try:
        plans = plan_of_graph(graph_at(graph, gate.path)).plans
    except JournalError:
        return _QuestionDetails()  # its classes have changed
    cls = next((plan for plan in plans if plan.__name__ == gate.node_type.__name__), None)
    field = None if cls is None else plan_of(cls).fields.get(gate.field_name)
    if cls is None or field is None:
        return _QuestionDetails()
    if gate.call is None:  # with the bounds of the field
        bounds = cls.model_fields[gate.field_name].metadata
        return _QuestionDetails(answer_schema(Annotated[(field.annotation, *bounds)]))
    answer = answer_schema(field.answer_type(gate.call.name, gate.parameter.count("(")))
    name = gate.call.name
    tool = next((each for each in getattr(field, "planned", ()) if each.name == name), None)
    if isinstance(tool, AskPlan):
        return _QuestionDetails(answer, is_question=True)
    return _QuestionDetails(answer, None if tool is None else tool.form_schema)


ENDPOINTS: Final = (
    get_row(
        "/runs/{run}/gates",
        "List the questions of a run to people.",
        list_gates,
        GatePage,
        GatesQuery,
    ),
    Endpoint(
        "POST",
        "/runs/{run}/answers",
        "answer",
        "Answer a gate, or decide about a tool call.",
        answer_gate,
        {200: RunDetails},
        body=AnswerBody,
    ),
    get_row(
        "/runs/{run}/approvals",
        "List the approvals of all calls of a tool.",
        list_approvals,
        ApprovalPage,
    ),
    Endpoint(
        "POST",
        "/runs/{run}/approvals/revoke",
        "answer",
        "Revoke the approvals of a tool.",
        revoke_approval,
        {200: ApprovalPage},
        body=RevokeBody,
    ),
)
