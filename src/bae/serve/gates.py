"""Endpoints for a run's questions to people: gates, tool approvals, and answers."""

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
from bae.serve.problems import InputFault, Refused, not_resumed_refusal, refusal_of, wrong_input
from bae.serve.runs import RunDetails, view_run
from bae.serve.starts import answer_schema
from bae.serve.views import SHORT, GatePage, GateView, Value, size_of, take_page, value_of
from bae.tool_plan import AskPlan


class GatesQuery(Form):
    """The questions to list.

    - `past`: whether to list questions whose answer the run has used.
    - `start`, `limit`: the number of the first question, and the maximum number of questions. A
      page of long values has fewer questions. Continue after the last question of the page.
    - `cut`: the maximum number of characters of a value. A longer value is cut; 0 cuts no value.
    """

    past: bool = False
    start: Number = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cut: CutAt = SHORT


class AnswerBody(Form):
    """An answer to a gate.

    - `gate`: the gate, as `GET /inbox` or `GET /runs/R/gates` lists it.
    - `value`: the answer to a question.
    - `decision`: the answer to the question whether a tool may be called. Give a `decision` instead
      of a `value`.
    - `arguments`: all arguments of the call, in place of the model's arguments. The decision "edit"
      needs them.
    - `reason`: why the call is refused. The model reads the reason.
    - `scope`: which calls the approval covers. "call" is this call only. "run" is every call of the
      tool for the same field in this run. "thread" is every call of the tool for the same field in
      this thread.
    """

    gate: Annotated[str, Field(min_length=1, max_length=2_000)]
    value: Any = None
    decision: Literal["approve", "edit", "refuse"] | None = None
    arguments: dict[str, Any] | None = None
    reason: Annotated[str, Field(max_length=10_000)] = ""
    scope: Literal["call", "run", "thread"] = "call"


class RevokeBody(Form):
    """The name or the place of a tool. A place is for example `Reply.calls(refund)`."""

    tool: Annotated[str, Field(min_length=1, max_length=2_000)]


class ApprovalView(BaseModel):
    """An approval of all calls of a tool.

    - `tool`: the name of the tool.
    - `place`: the field and the tool, such as `Reply.calls(refund)`.
    - `address`: the address of the gate where a person approved.
    - `revoked`: whether the approval was revoked.
    - `scope`: "run", or "thread" if the approval covers the other turns of the thread too.
    - `run_id`: the run that asked the person.
    """

    tool: str
    place: str
    address: str
    revoked: bool
    scope: Literal["run", "thread"]
    run_id: str


class ApprovalPage(BaseModel):
    """Approvals of all calls of a tool. The approvals of each run are in order, the oldest
    first."""

    approvals: list[ApprovalView]


async def list_gates(call: ApiCall) -> GatePage:
    """List the questions of a run."""
    gates, total = await call.api.fold_run(call.user, call.path["run"], _list_questions, call)
    return GatePage(gates=gates, total=total)


async def answer_gate(call: ApiCall) -> RunDetails:
    """Answer a question. If the question has an equal answer already, the request is no error."""
    await resume_answered(call, await store_answer(call))
    return await view_run(call, call.path["run"])


async def store_answer(call: ApiCall) -> Graph[Any, Any]:
    """Store an answer, and return the graph of the run. Raises `Refused` if the gate has a
    different answer already."""
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
    """Resume a run whose gate was answered. Do nothing if the run has ended, if another process
    owns the run, or if this server has no room for the run."""
    run_id = call.path["run"]
    try:
        await call.api.owner.resume(graph, run_id)
    except BaeError as error:
        # The run's owner uses the answer. If the owner dies, this server recovers the run.
        if error.code in ("bae-run-owned", "bae-run-taken", "bae-run-ended"):
            return
        raise not_resumed_refusal(error, "the answer is stored", run_id) or error from error
    except Refused:
        pass  # the answer is stored: this server resumes the run when it has room for the run


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
    """List the approvals of all calls of a tool, in a run and in its thread."""
    run_id = call.path["run"]
    await call.api.info(call.user, run_id)
    return _page_of(await call.api.journal.approvals(run_id))


async def revoke_approval(call: ApiCall) -> ApprovalPage:
    """Revoke the approvals of a tool. The next call of the tool asks again."""
    run_id = call.path["run"]
    await call.api.info(call.user, run_id)
    await call.api.journal.revoke(run_id, call.body.tool)
    return _page_of(await call.api.journal.approvals(run_id))


def _page_of(grants: list[Grant]) -> ApprovalPage:
    return ApprovalPage(approvals=[ApprovalView(**grant._asdict()) for grant in grants])


def _misfit_refusal(body: AnswerBody, error: GateError) -> Refused:
    """Return the refusal of an invalid answer, with the wrong parts of the body."""
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
    refused.body.place = ".".join(str(part) for part in faults[0].loc)
    return refused


async def _check_same_answer(
    call: ApiCall, graph: Graph[Any, Any], value: Any, error: GateError
) -> None:
    """Raise `Refused` if the gate's stored answer differs from the new answer. If the gate has no
    stored answer, raise `error`."""
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
    """Return a page of a run's questions, and the number of questions on all pages."""
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
    """The details of a question that only the code of the graph has."""

    answer: dict[str, Any] | None = None
    """The JSON schema of the answer."""
    arguments: dict[str, Any] | None = None
    """The JSON schema of the tool call's arguments."""
    is_question: bool = False
    """Whether the tool call is itself a question to a person."""


def _find_details(call: ApiCall, info: RunInfo, gate: OpenGate) -> _QuestionDetails:
    """Return the details of a question. Without the code of the graph, return no details."""
    graph = call.api.find_graph(info)
    if graph is None:
        return _QuestionDetails()
    try:
        plans = plan_of_graph(graph_at(graph, gate.path)).plans
    except JournalError:
        return _QuestionDetails()  # the classes of the graph have changed
    cls = next((plan for plan in plans if plan.__name__ == gate.node_type.__name__), None)
    field = None if cls is None else plan_of(cls).fields.get(gate.field_name)
    if cls is None or field is None:
        return _QuestionDetails()
    if gate.call is None:
        bounds = cls.model_fields[gate.field_name].metadata
        return _QuestionDetails(answer_schema(Annotated[(field.annotation, *bounds)]))
    answer = answer_schema(field.answer_type(gate.call.name, gate.parameter.count("(")))
    name = gate.call.name
    tool = next((plan for plan in getattr(field, "planned", ()) if plan.name == name), None)
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
