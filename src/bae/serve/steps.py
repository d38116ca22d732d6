"""Endpoints for the details of a run: its nodes, the sources of values, the calls of LLMs, and the
timeline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from time import time
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from bae.exceptions import JournalError
from bae.journal.critical_paths import critical_path
from bae.journal.decoder import read_history
from bae.journal.questions import AskedQuestion, list_questions
from bae.journal.report import NodeReport, RunReport, report_run, timeline
from bae.journal.stored_runs import StoredRun
from bae.journal.why import why
from bae.serve.endpoints import ApiCall, CutAt, Form, ListCut, Number, get_row
from bae.serve.problems import Refused
from bae.serve.views import (
    CUT,
    SHORT,
    CallPage,
    CallView,
    StepPage,
    StepView,
    TimelineView,
    data_of,
    size_of,
    step_of,
    take_page,
    timeline_of,
    usage_of,
)


class StepsQuery(Form):
    """The nodes to list.

    - `path`: the path of a graph inside the run; empty for the graph of the run itself.
    - `node`: only nodes of this class.
    - `q`: only nodes with this text in their class, field names, functions or values.
    - `start`, `limit`: the number of the first node, and the maximum number of nodes. A page of
      long values has fewer nodes. Continue after the last node of the page.
    - `around`: the number of the node in the middle of the page. Give `around` instead of `start`.
    - `cut`: the maximum number of characters of a value. A longer value is cut.
      `/steps/N?cut=0` has the complete value.
    """

    path: str = ""
    node: Annotated[str, Field(max_length=1_000)] = ""
    q: Annotated[str, Field(max_length=200)] = ""
    start: Number = 0
    around: Number | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cut: ListCut = SHORT


class StepQuery(Form):
    """The node to show.

    - `path`: the path of a graph inside the run; empty for the graph of the run itself.
    - `cut`: the maximum number of characters of a value. A longer value is cut; 0 cuts no value.
    """

    path: str = ""
    cut: CutAt = CUT


class WhyQuery(Form):
    """The value to explain.

    - `field`: a field of the node.
    - `path`: the path of a graph inside the run; empty for the graph of the run itself.
    - `cut`: the maximum number of characters of a value. A longer value is cut; 0 cuts no value.
    """

    field: Annotated[str, Field(min_length=1, max_length=1_000)]
    path: str = ""
    cut: CutAt = CUT


class CallsQuery(Form):
    """The calls to list: the number of the first call, and the maximum number of calls."""

    start: Number = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 100


class TimelineQuery(Form):
    """The bars to list.

    - `start`, `limit`: the number of the first bar, and the maximum number of bars.
    - `place`: a step, such as `3` or `2:Report.parts/1`. The response has the number of the step's
      first bar as `index`.
    """

    place: Annotated[str, Field(max_length=2_000)] = ""
    start: Number = 0
    limit: Annotated[int, Field(ge=1, le=5_000)] = 500


class CallQuery(Form):
    """`cut` is the maximum number of characters of a text. A longer text is cut; 0 cuts no text."""

    cut: CutAt = CUT


class Why(BaseModel):
    """The origin of a value: a `Provenance` without its empty parts."""

    provenance: dict[str, Any]


async def list_steps(call: ApiCall) -> StepPage:
    return await call.api.fold_run(call.user, call.path["run"], _list_steps, call.query)


def _list_steps(stored: StoredRun, query: StepsQuery) -> StepPage:
    report = report_run(stored)
    nodes = [node for node in _nodes_at(report, query.path) if _is_selected(node, query)]
    start = query.start if query.around is None else max(0, query.around - query.limit // 2)
    steps = (step_of(query.path, node, query.cut) for node in nodes[start : start + query.limit])
    return StepPage(
        steps=take_page(steps, lambda step: size_of(step.fields)),
        total=len(nodes),
        paths=[graph.path for graph in report.graphs if graph.path][:1_000],
    )


def _is_selected(node: NodeReport, query: StepsQuery) -> bool:
    if query.node and node.name != query.node:
        return False
    if not query.q:
        return True
    searched_text = query.q.casefold()
    return any(searched_text in text.casefold() for text in _texts_of(node))


def _texts_of(node: NodeReport) -> Iterator[str]:
    yield node.name
    for field in node.fields:
        yield field.field
        yield field.by
        value = field.value
        yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def show_step(call: ApiCall) -> StepView:
    number = number_in(call, "step")
    return await call.api.fold_run(call.user, call.path["run"], _view_step, number, call.query)


def _view_step(stored: StoredRun, number: int, query: StepQuery) -> StepView:
    for node in _nodes_at(report_run(stored), query.path):
        if node.step == number:
            return step_of(query.path, node, query.cut)
    raise _unknown_step(number)


async def explain_field(call: ApiCall) -> Why:
    """Explain where the value of a field came from."""
    number = number_in(call, "step")
    return await call.api.fold_run(call.user, call.path["run"], _explain, number, call.query)


def _explain(stored: StoredRun, number: int, query: WhyQuery) -> Why:
    history = read_history(stored)
    graph = history.graphs.get(query.path) if query.path else history.run
    if graph is None:
        raise _unknown_graph(query.path)
    name = next((step.name for step in graph.trace if step.name and step.number == number), None)
    if name is None:
        raise _unknown_step(number)
    before = f"{query.path}/" if query.path else ""
    provenance = why(stored, f"{before}{number}:{name}.{query.field}", None)
    return Why(provenance=data_of(provenance, query.cut))


async def list_calls(call: ApiCall) -> CallPage:
    query = call.query
    questions = await _read_questions(call)
    page = [*enumerate(questions)][query.start : query.start + query.limit]
    return CallPage(
        calls=[_view_call(n, question, None) for n, question in page], total=len(questions)
    )


async def show_call(call: ApiCall) -> CallView:
    number = number_in(call, "call")
    questions = await _read_questions(call)
    if number >= len(questions):
        fix = "list them: GET /runs/R/calls"
        raise Refused(
            404,
            "bae-serve-path",
            f"the run has no call {number}; it has {len(questions)}, from 0",
            fix,
        )
    return _view_call(number, questions[number], call.query.cut)


async def show_timeline(call: ApiCall) -> TimelineView:
    return await call.api.fold_run(call.user, call.path["run"], _view_timeline, call.query)


def _view_timeline(stored: StoredRun, query: TimelineQuery) -> TimelineView:
    now = time()
    work, path = timeline(stored, now=now), critical_path(stored, now=now)
    view = timeline_of(work, path, query.start, query.limit)
    if query.place:
        places = enumerate(entry.place for entry in work.every())
        view.index = next((n for n, place in places if place.startswith(f"{query.place}:")), None)
    return view


def number_in(call: ApiCall, name: str) -> int:
    """Return the number that is the variable `name` of the path. Raises `Refused` if it is no
    number."""
    text = call.path[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        fix = "give a number from 0 on"
        raise Refused(404, "bae-serve-path", f"{text[:50]!r} is not a number", fix)
    return int(text)


def _nodes_at(report: RunReport, path: str) -> Sequence[NodeReport]:
    for graph in report.graphs:
        if graph.path == path:
            return graph.nodes
    raise _unknown_graph(path)


def _unknown_graph(path: str) -> Refused:
    return Refused(
        404, "bae-serve-path", f"no graph ran at {path[:200]!r}", "see `paths` of /steps"
    )


def _unknown_step(number: int) -> Refused:
    fix = "list them: GET /runs/R/steps"
    return Refused(404, "bae-serve-path", f"the run has no step {number}", fix)


async def _read_questions(call: ApiCall) -> list[AskedQuestion]:
    try:
        return await call.api.fold_run(call.user, call.path["run"], list_questions)
    except JournalError as error:
        if error.code != "bae-journal-damaged":
            raise
        raise Refused(409, error.code, error.message, error.fix or "") from error


def _view_call(number: int, question: AskedQuestion, cut: int | None) -> CallView:
    view = CallView(
        number=number,
        by=question.by,
        place=question.place,
        at=question.at,
        seconds=question.seconds,
        outcome=question.outcome,
        error=question.error if cut is not None else question.error[:SHORT],
        usage=usage_of(question.usage),
    )
    if cut is not None:
        view.asked = data_of(question.asked, cut)
        view.answers = [data_of(answer, cut) for answer in question.answers]
        view.rounds = [data_of(round_, cut) for round_ in question.rounds]
    return view


ENDPOINTS: Final = (
    get_row("/runs/{run}/steps", "List the nodes of a run.", list_steps, StepPage, StepsQuery),
    get_row("/runs/{run}/steps/{step}", "Show a node.", show_step, StepView, StepQuery),
    get_row(
        "/runs/{run}/steps/{step}/why",
        "Explain where the value of a field came from.",
        explain_field,
        Why,
        WhyQuery,
    ),
    get_row(
        "/runs/{run}/timeline",
        "Show what ran when, and the critical path.",
        show_timeline,
        TimelineView,
        TimelineQuery,
    ),
    get_row("/runs/{run}/calls", "List the calls of LLMs.", list_calls, CallPage, CallsQuery),
    get_row(
        "/runs/{run}/calls/{call}",
        "Show a call of an LLM, with its prompts and answers.",
        show_call,
        CallView,
        CallQuery,
    ),
)
