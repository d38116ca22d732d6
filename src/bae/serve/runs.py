"""Endpoints for runs: start, show, cancel, resume, fork and delete."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from os import urandom
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import from_json
from starlette.responses import Response

from bae.exceptions import BaeError, JournalError
from bae.files import visible
from bae.graph import Graph
from bae.graph_plan import plan_of_graph
from bae.history import History
from bae.journal.decoder import read_history
from bae.journal.resume import fork_line, result_of
from bae.journal.run_checks import check_names, check_thread
from bae.journal.run_writer import encoder_for
from bae.journal.stored_runs import RunInfo, StoredRun
from bae.node import Node
from bae.prompts.values import show_node
from bae.records import RunStarted
from bae.serve.access import STARTED_BY
from bae.serve.endpoints import ApiCall, Endpoint, Form, NoBody, Number, get_row
from bae.serve.failures import FailureNotes, FailureView, failure_of
from bae.serve.files import find_named_files
from bae.serve.graphs import starts_of
from bae.serve.problems import Refused, not_resumed_refusal, refusal_of
from bae.serve.run_rows import preview_of
from bae.serve.threads import thread_of
from bae.serve.views import BudgetView, RunRow, UsageView, budget_view, row_of, usage_of

BUSY_SECONDS: Final = 25.0
"""The seconds that a turn waits for an earlier turn."""
CANCEL_SECONDS: Final = 5.0
"""The seconds that a request waits for the end of a cancelled run."""
_Id = Annotated[str, Field(min_length=1, max_length=200)]


def _make_id_validator(check: Callable[[str], None]) -> AfterValidator:
    """Return a validator for ids. Pydantic reports a wrong id as a fault of its field."""

    def validate_id(name: str) -> str:
        try:
            check(name)
        except JournalError as error:
            raise ValueError(f"{error.message} ({error.fix})") from error
        return name

    return AfterValidator(validate_id)


RunId = Annotated[_Id, _make_id_validator(lambda name: check_names(name, "graph"))]
ThreadId = Annotated[_Id, _make_id_validator(check_thread)]


class RunDetails(RunRow):
    """A run, with its usage and its end.

    - `usage`: the usage of the run's LLM calls.
    - `end`: the class of the last node, if the run has ended and its graph is served.
    - `result`: the last node, if the run has ended and its graph is served.
    - `no_result`: why the result cannot be read.
    - `failure`: why the run failed.
    - `forks`: the ids of the run's newest forks, at most 50.
    - `in_progress`: whether this server works on the run.
    - `max_iters`: the maximum number of nodes; 0 means no limit.
    - `budgets`: the budgets of this server's LLM, if the graph is served. New LLM calls of the run
      count against them.
    """

    usage: UsageView | None = None
    end: str | None = None
    result: Any = None
    no_result: str = ""
    failure: FailureView | None = None
    forks: list[str] = Field(default_factory=list[str])
    in_progress: bool = False
    max_iters: int = 0
    budgets: list[BudgetView] = Field(default_factory=list[BudgetView])


class StartQuery(Form):
    """`wait` is the maximum number of seconds to wait for the end of the run."""

    wait: Annotated[float, Field(ge=0, le=300)] = 0


class StartBody(Form):
    """A run to start.

    - `run_id`: an id for the run. If the same request is sent again, no second run starts.
    - `start`: the fields of the start node.
    - `thread`: the id of a conversation. The run is the next turn.
    - `busy`: what to do while another turn of the conversation is in progress. "refuse" refuses
      this run. "wait" waits for the other turn. "cancel" cancels the other turn.
    - `metadata`: any JSON object. The server adds the name of the user as `by`.
    """

    run_id: RunId | None = None
    start: Any = Field(description="the fields of the start node")
    thread: ThreadId | None = None
    busy: Literal["refuse", "wait", "cancel"] = "refuse"
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ResumeBody(Form):
    """`given` has the secrets of the run, such as `{"Login.token": "…"}`. The journal does not
    store secrets."""

    given: dict[str, Any] = Field(default_factory=dict[str, Any])


class ForkBody(Form):
    """A fork: a new run that repeats a run up to a node.

    - `at`: the step of the node.
    - `changed`: other values for fields of the node.
    - `run_id`: an id for the fork.
    - `thread`: the thread of the run, to replace the turn with the fork.
    - `go_on`: whether the fork continues at once. Otherwise the fork continues when it is resumed,
      or when another server finds it.
    """

    at: Number
    changed: dict[str, Any] = Field(default_factory=dict[str, Any])
    run_id: RunId | None = None
    thread: ThreadId | None = None
    go_on: bool = True


async def start_run(call: ApiCall) -> tuple[int, RunDetails]:
    """Start a run. The status is 201 for a new run, or 202 if the request has waited in vain for
    its end. The status is 200 if there is a run with the same id and an equal start already."""
    starts, body, api = starts_of(call), call.body, call.api
    files = await find_named_files(call, body.start)
    with visible(files):
        # With files, use a worker thread: bae computes the hashes of the files again.
        start = await api.fold(starts.node, body.start) if files else starts.node(body.start)
    run_id = body.run_id or urandom(12).hex()
    options: dict[str, Any] = {"metadata": {**body.metadata, STARTED_BY: call.user.name}}
    if body.thread is not None:
        await thread_of(call, body.thread)
        options |= {"thread": body.thread, "busy": body.busy, "busy_timeout": BUSY_SECONDS}
    async with api.owner.alone(run_id):
        existing = None if body.run_id is None else await _find_existing(call, run_id)
        if existing is None:
            try:
                await api.owner.start(starts.graph, start, run_id, **options)
            except JournalError as error:  # another process was quicker
                existing = (
                    await _find_existing(call, run_id) if error.code == "bae-run-exists" else None
                )
                if existing is None:
                    raise
        if existing is not None:
            _check_same_start(call, starts.graph, existing, start)
    status = 201 if existing is None else 200
    if call.query.wait and not await api.owner.wait(run_id, call.query.wait) and status == 201:
        status = 202
    return status, await view_run(call, run_id)


async def show_run(call: ApiCall) -> RunDetails:
    return await view_run(call, call.path["run"])


async def view_run(call: ApiCall, run_id: str) -> RunDetails:
    """Return a run without its steps."""
    api = call.api
    notes = api.owner.failures.of(run_id)
    info, preview, history, failure = await api.fold_run(call.user, run_id, _read_details, notes)
    row = row_of(info, preview)
    view = RunDetails(**row.model_dump(), usage=usage_of(history.usage), failure=failure)
    view.max_iters = history.run.max_iters
    view.in_progress = run_id in api.owner.run_ids
    view.error, view.metadata = info.error, info.metadata
    forks = await api.journal.forks(run_id)
    view.forks = [info.run_id for info in forks if api.may_see(call.user, info)]
    graph = api.find_graph(info)
    if graph is not None:
        view.budgets = [budget_view(budget) for budget in api.owner.budgets()]
    if graph is not None and info.status == "ended":
        view.end = info.summary.node if info.summary else None
        try:
            async with api.folding():
                stored = await api.read(call.user, run_id)
                last = (await result_of(graph, stored, None, api.journal)).trace[-1]
            del stored
            view.end = type(last).__name__
            view.result = await api.fold(show_node, last, plan_of_graph(graph).hidden)
        except BaeError as error:  # the classes may have changed since the run ended
            view.no_result = error.message
    return view


def _read_details(
    stored: StoredRun, notes: FailureNotes | None
) -> tuple[RunInfo, str, History, FailureView | None]:
    info = stored.info
    failure = failure_of(stored, notes) if info.status == "failed" else None
    return info, preview_of(stored.lines), read_history(stored), failure


async def cancel_run(call: ApiCall) -> tuple[int, RunDetails]:
    """Cancel a run."""
    run_id = call.path["run"]
    await call.api.info(call.user, run_id)
    try:
        await call.api.journal.cancel(run_id, timeout=CANCEL_SECONDS)
    except JournalError as error:
        if error.code != "bae-cancel-timeout":  # the request is stored: the run stops later
            raise
    return 202, await view_run(call, run_id)


async def resume_run(call: ApiCall) -> tuple[int, RunDetails]:
    """Resume a run that stopped."""
    run_id = call.path["run"]
    info = await call.api.info(call.user, run_id)
    if info.status != "ended":
        graph = call.api.graph_of(info)
        try:
            await call.api.owner.resume(graph, run_id, call.body.given or None)
        except JournalError as error:
            raise refusal_of(error, "body", "given") or error from error
    return 202, await view_run(call, run_id)


async def fork_run(call: ApiCall) -> tuple[int, RunDetails]:
    """Fork a run at a step. The status is 200 if the same fork exists already."""
    api, run_id, body = call.api, call.path["run"], call.body
    info = await api.info(call.user, run_id)
    graph = api.graph_of(info)
    if body.thread is not None:
        await thread_of(call, body.thread)
    new_id, status = body.run_id or urandom(12).hex(), 201
    without_recovery = nullcontext() if body.go_on else api.owner.leaving(new_id)
    try:
        with without_recovery, visible(await find_named_files(call, body.changed)):
            await graph.fork(
                run_id,
                at=body.at,
                journal=api.journal,
                new_id=new_id,
                thread=body.thread,
                changed=body.changed,
            )
    except JournalError as error:
        old = await _find_existing(call, new_id) if error.code == "bae-run-exists" else None
        if old is None:
            raise _fork_refusal(error) or error from error
        if not await _is_fork(call, graph, old):
            raise _id_refusal(new_id) from error
        status = 200
    if body.go_on and status == 201:
        try:
            await api.owner.resume(graph, new_id)
        except JournalError as error:
            raise (
                not_resumed_refusal(error, f"the fork {new_id} is stored", new_id) or error
            ) from error
    return status, await view_run(call, new_id)


def _fork_refusal(error: JournalError) -> Refused | None:
    refused = refusal_of(error, "body", _PARTS.get(error.code, "changed"))
    if refused is not None and error.places:
        names = ", ".join(f'"{place.rpartition(".")[2]}": …' for place in error.places)
        refused.body.fix = f'give the values again: {{"changed": {{{names}}}}}'
    return refused


_PARTS: Final = {"bae-fork-step": "at", "bae-fork-thread": "thread"}
"""The wrong part of the body, by the code of an error."""


async def _is_fork(call: ApiCall, graph: Graph[Any, Any], old: StoredRun) -> bool:
    """Return whether the run `old` is the fork that the request describes."""
    body, journal, parent = call.body, call.api.journal, call.path["run"]
    forked = next((line for line in reversed(old.lines) if line.kind == "RunForked"), None)
    if forked is None or old.info.thread != body.thread or old.info.parent != parent:
        return False
    stored = await journal.read(parent)
    with visible(await find_named_files(call, body.changed)):
        line, _ = await fork_line(graph, stored, body.at, journal, body.changed)
    new_data, old_data = from_json(line.data), from_json(forked.data)
    return forked.step == body.at and all(
        new_data[key] == old_data[key] for key in ("node", "changed")
    )


async def delete_run(call: ApiCall) -> Response:
    """Delete a run that is not in progress and has no forks."""
    api, run_id = call.api, call.path["run"]
    await api.info(call.user, run_id)
    if not await api.journal.delete([run_id]):
        raise Refused(
            409,
            "bae-run-owned",
            f"the run {run_id} was not deleted: it is in progress, or has forks",
            "cancel it, and delete its forks first",
            run_id=run_id,
        )
    return Response(status_code=204)


async def _find_existing(call: ApiCall, run_id: str) -> StoredRun | None:
    try:
        stored = await call.api.journal.read_texts(run_id)
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
        return None
    if not call.api.may_see(call.user, stored.info):
        raise _id_refusal(run_id)
    return stored


def _check_same_start(call: ApiCall, graph: Graph[Any, Any], old: StoredRun, start: Node) -> None:
    """Raise `Refused` if the run with the same id has a different start."""
    run_id = old.info.run_id
    record = RunStarted(0.0, "", 0, run_id, graph.name, start, 0)
    new = from_json(encoder_for(graph, call.api.journal).encode(record))["node"]
    is_same = old.info.graph == graph.name and old.info.thread == call.body.thread
    if not is_same or from_json(old.lines[0].data).get("node") != new:
        raise _id_refusal(run_id)


def _id_refusal(run_id: str) -> Refused:
    return Refused(
        409,
        "bae-run-exists",
        f"there is a run {run_id} already, with another start",
        "give the new run another id",
        run_id=run_id,
    )


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/graphs/{graph}/runs",
        "run",
        "Start a run.",
        start_run,
        {200: RunDetails, 201: RunDetails, 202: RunDetails},
        StartQuery,
        body=StartBody,
    ),
    get_row("/runs/{run}", "Show a run.", show_run, RunDetails),
    Endpoint("DELETE", "/runs/{run}", "admin", "Delete a run.", delete_run, {204: ""}),
    Endpoint(
        "POST",
        "/runs/{run}/cancel",
        "run",
        "Cancel a run.",
        cancel_run,
        {202: RunDetails},
        body=NoBody,
    ),
    Endpoint(
        "POST",
        "/runs/{run}/resume",
        "run",
        "Resume a run where it stopped.",
        resume_run,
        {202: RunDetails},
        body=ResumeBody,
    ),
    Endpoint(
        "POST",
        "/runs/{run}/forks",
        "edit",
        "Fork a run at a step, with other values.",
        fork_run,
        {200: RunDetails, 201: RunDetails},
        body=ForkBody,
    ),
)
