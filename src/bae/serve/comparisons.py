"""Endpoints that compare two runs, or a run with today's code."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from bae.exceptions import BaeError, ReplayError
from bae.journal.comparison import ComparedNode, compare_reports
from bae.journal.earlier_turns import read_earlier_runs
from bae.journal.provenance import Provenance
from bae.journal.replay import repeat
from bae.journal.report import report_run
from bae.journal.stored_runs import StoredRun
from bae.serve.endpoints import ApiCall, Endpoint, Form, ListCut, NoBody, Number, get_row
from bae.serve.problems import Refused
from bae.serve.run_rows import preview_of
from bae.serve.views import CUT, SHORT, FieldView, RunRow, field_of, row_of, size_of, take_page
from bae.threads import in_thread

REPLAY_SECONDS: Final = 60.0
"""The maximum seconds of a replay. A replay calls the bodies of nodes, which may be slow."""


_TRACE: Final = 1_000
"""The maximum number of nodes that a replay lists."""


class CompareQuery(Form):
    """The runs to compare.

    - `a`, `b`: the ids of the runs.
    - `same`: whether to list equal nodes too.
    - `start`, `limit`: the number of the first node, and the maximum number of nodes. A page of
      long values has fewer nodes. Continue after the last node of the page.
    - `cut`: the maximum number of characters of a value. A longer value is cut.
    """

    a: Annotated[str, Field(min_length=1, max_length=1_000)]
    b: Annotated[str, Field(min_length=1, max_length=1_000)]
    same: bool = False
    start: Number = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cut: ListCut = SHORT


class FieldPair(BaseModel):
    """A field that differs between two runs. `a` and `b` are the field in each run, or null in a
    run without the field."""

    name: str
    a: FieldView | None
    b: FieldView | None


class NodePair(BaseModel):
    """A node of two runs.

    - `path`: the path of the node's graph, such as `Report#2.summaries[3]`: item 3 of the field
      `summaries`, at the second visit to `Report`.
    - `visit`: the number of the node among the nodes of its class in its graph, from 1.
    - `state`: "same" or "differs" if both runs have the node. "a" or "b" if only that run has the
      node.
    - `a`, `b`: the place of the node in each run, or "" in a run without the node.
    """

    path: str
    node: str
    visit: int
    state: Literal["same", "differs", "a", "b"]
    a: str
    b: str
    fields: list[FieldPair]


class ComparisonView(BaseModel):
    """The differences of two runs. Times are not compared.

    - `first`: the place of the first node that differs; null if no node differs. The place is that
      in run `a`, or in run `b` if only run `b` has the node.
    - `nodes`: the nodes on this page.
    - `total`: the number of nodes on all pages.
    """

    a: RunRow
    b: RunRow
    first: str | None
    nodes: list[NodePair]
    total: int


class ReplayView(BaseModel):
    """The outcome of a replay.

    - `outcome`: "same" if the replay took the same path, or "differs". The outcome is "unknown" if
      values are missing, or if the recording ends early.
    - `trace`: the first 1,000 nodes. Only a replay with the outcome "same" has a trace.
    - `code`, `why`: the code of the error and the reason, if the outcome is not "same".
    - `diff`: a diff from the recorded question, tool, arguments or node to those of the replay. It
      is empty if there is nothing to compare. A long diff is cut.
    """

    outcome: Literal["same", "differs", "unknown"]
    trace: list[str] = Field(default_factory=list[str])
    code: str = ""
    why: str = ""
    diff: str = ""


async def compare_runs(call: ApiCall) -> ComparisonView:
    """Compare two runs."""
    query, api = call.query, call.api
    await api.info(call.user, query.a)
    await api.info(call.user, query.b)
    async with api.folding():
        a, b = [await api.journal.read_texts(run_id) for run_id in (query.a, query.b)]
        return await in_thread(_compare, a, b, query)


def _compare(a: StoredRun, b: StoredRun, query: CompareQuery) -> ComparisonView:
    nodes = compare_reports(report_run(a), report_run(b))
    listed_nodes = nodes if query.same else [node for node in nodes if node.state != "same"]
    first = next((node for node in nodes if node.state != "same"), None)
    pairs = (
        _view_pair(listed_node, query.cut)
        for listed_node in listed_nodes[query.start : query.start + query.limit]
    )
    return ComparisonView(
        a=row_of(a.info, preview_of(a.lines)),
        b=row_of(b.info, preview_of(b.lines)),
        first=None if first is None else first.a or first.b,
        nodes=take_page(pairs, _pair_size),
        total=len(listed_nodes),
    )


def _pair_size(pair: NodePair) -> int:
    return size_of(side for field in pair.fields for side in (field.a, field.b))


def _view_pair(node: ComparedNode, cut: int) -> NodePair:
    def view_field(field: Provenance | None) -> FieldView | None:
        return None if field is None else field_of(field, cut)

    pairs = [
        FieldPair(name=field.name, a=view_field(field.a), b=view_field(field.b))
        for field in node.fields
    ]
    return NodePair(
        path=node.path,
        node=node.node,
        visit=node.visit,
        state=node.state,
        a=node.a,
        b=node.b,
        fields=pairs,
    )


async def replay_run(call: ApiCall) -> ReplayView:
    """Repeat a run with the recorded values. No LLM, function or person is asked."""
    api, run_id = call.api, call.path["run"]
    stored = await api.read(call.user, run_id)
    graph = api.graph_of(stored.info)
    try:
        async with asyncio.timeout(REPLAY_SECONDS):
            replayed = await repeat(
                graph, stored, None, await read_earlier_runs(api.journal, stored)
            )
    except TimeoutError:
        raise Refused(
            503,
            "bae-serve-slow",
            f"the replay took longer than {REPLAY_SECONDS:g} s",
            f"use the command line, which has no limit: bae runs replay {run_id}",
            run_id=run_id,
        ) from None
    except ReplayError as error:
        outcome = "differs" if error.code == ReplayError.code else "unknown"
        diff = error.diff[:CUT]
        return ReplayView(outcome=outcome, code=error.code, why=error.message, diff=diff)
    except BaeError as error:  # today's code fails: in the run, the code did not fail
        outcome = "unknown" if error.code == "bae-journal-secret" else "differs"
        return ReplayView(outcome=outcome, code=error.code, why=error.message)
    return ReplayView(outcome="same", trace=[*replayed.trace[:_TRACE]])


ENDPOINTS: Final = (
    get_row(
        "/compare",
        "Compare two runs: the nodes and fields that differ.",
        compare_runs,
        ComparisonView,
        CompareQuery,
    ),
    Endpoint(
        "POST",
        "/runs/{run}/replay",
        "run",
        "Repeat a run with the recorded values, and show the difference.",
        replay_run,
        {200: ReplayView},
        body=NoBody,
    ),
)
