"""Endpoints for the graph of a run. The picture of the graph shows the path that the run took. The
picture is drawn from the types stored with the run. Another endpoint has the fields that a fork may
change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from bae.graph import Graph
from bae.journal.decoder import read_history
from bae.journal.report import report_run
from bae.journal.shape import Json, ShapeView, shape_of
from bae.journal.stored_runs import Listed, StoredRun
from bae.node import Node
from bae.place import Place
from bae.serve.drawing import lay_out
from bae.serve.endpoints import ApiCall, CutAt, Form, get_row
from bae.serve.graphs import problems_of
from bae.serve.problems import Refused
from bae.serve.starts import answer_schema
from bae.serve.steps import number_in
from bae.serve.views import CUT, BoxView, EdgeView, FieldView, ProblemView, field_of
from bae.work import GraphRun

MOST_INNER: Final = 500
"""The maximum number of inner graphs in a view."""


class PathQuery(Form):
    """`path` is the path of a graph inside the run, such as `2:Report.summaries`. The empty path is
    the graph of the run itself."""

    path: Annotated[str, Field(max_length=2_000)] = ""


class ForkFormQuery(Form):
    """`cut` is the maximum number of characters of a value. A longer value is cut; 0 cuts no
    value."""

    cut: CutAt = CUT


class RunFieldView(BaseModel):
    """A field of a node class. `kind` is the kind of the field's source. `graph` is the name of the
    graph that runs for the field, or null."""

    name: str
    type: str
    kind: str
    required: bool
    graph: str | None = None


class RunBoxView(BoxView):
    """A node class in the picture of a run.

    - `visits`: the number of times that the run has visited the node class.
    - `is_current`: whether the run is at this node class now, or stopped here before its end.
    - `is_start`: whether the graph starts here.
    - `ends`: whether a run may end here.
    """

    visits: int
    is_current: bool
    is_start: bool
    ends: bool
    fields: list[RunFieldView]


class RunEdgeView(EdgeView):
    """An edge in the picture of a run. `taken` is the number of times that the run has taken the
    edge."""

    taken: int


class InnerRunView(BaseModel):
    """A graph that ran for a `field` of the node at `step`. `path` is the path for the picture of
    this graph. `nodes` is the number of nodes in its run so far. `outcome` is empty while the graph
    runs."""

    path: str
    graph: str
    node: str
    step: int
    field: str
    nodes: int
    outcome: str


class RunGraphView(BaseModel):
    """The picture of a graph in a run.

    - `path`: the path of the graph; empty for the graph of the run itself.
    - `classes`: where the node classes in the picture come from. "run" means the types stored with
      the run. "served" means the classes of the served graph, for a run without stored types.
    - `problems`: the problems of the served graph. The list is empty for an inner graph, and if the
      served graph differs from the types stored with the run.
    - `inner`: graphs that ran for fields of this graph, at most 500.
    - `inner_total`: the number of all such graphs.
    """

    run_id: str
    graph: str
    path: str
    status: Listed
    classes: str
    boxes: list[RunBoxView]
    edges: list[RunEdgeView]
    problems: list[ProblemView]
    inner: list[InnerRunView]
    inner_total: int


class EditableField(FieldView):
    """A field that a fork may change. `field_schema` is the JSON schema of the field's type, or
    null. If the field is `needed`, its value is not stored, and the fork must give a value."""

    field_schema: dict[str, Any] | None
    needed: bool


class ForkFormView(BaseModel):
    """The fields of a node that `POST /runs/R/forks` may change. `at` is the step of the node."""

    run_id: str
    at: int
    node: str
    fields: list[EditableField]


async def show_run_graph(call: ApiCall) -> RunGraphView:
    """Show the graph of a run, with the path that the run took."""
    run_id = call.path["run"]
    info = await call.api.info(call.user, run_id)
    served = call.api.find_graph(info)
    return await call.api.fold_run(call.user, run_id, _view_run, served, call.query.path)


def _view_run(stored: StoredRun, served: Graph[Any, Any] | None, path: str) -> RunGraphView:
    info, shape, classes = stored.info, ShapeView(stored.shape, stored.info.shape), "run"
    served_shape = None if served is None else shape_of(served)
    if not shape.graphs and served_shape is not None:
        shape, classes = ShapeView(served_shape.json, served_shape.hash), "served"
    graph_shape = shape.graph_at(path)
    if graph_shape is None:
        raise Refused(
            404,
            "bae-serve-path",
            f"the run has no graph at {path[:200]!r}"
            if path
            else "the run has no stored types, and its graph is not served",
            "the field `inner` of the outer graph lists the paths"
            if path
            else "serve the graph of the run",
            run_id=info.run_id,
        )
    empty_run = GraphRun(0.0, path=path)
    graph_run = read_history(stored).graphs.get(path) or empty_run
    classes_by_name: Mapping[str, Json] = graph_shape["classes"]
    names = [*classes_by_name]
    # If the code changed while the run was parked, the trace may have classes that the stored types
    # lack.
    trace = [step.name for step in graph_run.trace if step.name]
    edges = [
        (name, other)
        for name in names
        for other in classes_by_name[name]["next"]
        if other in classes_by_name
    ]
    layout = lay_out(names, [(names.index(a), names.index(b)) for a, b in edges])
    visit_counts, edge_counts = Counter(trace), Counter(pairwise(trace))
    is_over = graph_run.outcome == "ended" or info.status == "ended"
    current = "" if is_over or not trace else trace[-1]
    is_same_shape = (
        served_shape is not None
        and served is not None
        and served_shape.hash == info.shape
        and not path
    )
    return RunGraphView(
        run_id=info.run_id,
        graph=graph_shape["name"],
        path=path,
        status=info.standing(),
        classes=classes,
        boxes=[
            RunBoxView(
                node=name,
                x=x,
                y=y,
                width=size.width,
                height=size.height,
                visits=visit_counts[name],
                is_current=name == current,
                is_start=name == graph_shape["start"],
                ends=classes_by_name[name]["ends"],
                fields=_fields_of(classes_by_name[name], shape),
            )
            for name, (x, y), size in zip(names, layout.corners, layout.sizes, strict=True)
        ],
        edges=[
            RunEdgeView(
                source=tail,
                target=head,
                chosen_by=_find_chooser(classes_by_name[tail]),
                line=[*line],
                taken=edge_counts[tail, head],
            )
            for (tail, head), line in zip(edges, layout.lines, strict=True)
        ],
        problems=problems_of(served) if is_same_shape and served is not None else [],
        inner=[_view_inner(inner) for inner in [*graph_run.inner.values()][:MOST_INNER]],
        inner_total=len(graph_run.inner),
    )


def _fields_of(cls: Json, shape: ShapeView) -> list[RunFieldView]:
    return [
        RunFieldView(
            name=name,
            type=use["type"],
            kind=use["kind"],
            required=use["required"],
            graph=_find_inner_graph(use, shape),
        )
        for name, use in cls["fields"].items()
    ]


def _find_inner_graph(use: Json, shape: ShapeView) -> str | None:
    """Return the name of the first graph that runs for a field."""
    numbers: list[int] = [c["graph"] for _, c in shape.walk_calls(use) if "graph" in c]
    return shape.graphs[numbers[0]]["name"] if numbers else None


def _find_chooser(cls: Json) -> str:
    """Return who chooses the next node: "certain", "code" or "lm"."""
    if len(cls["next"]) + cls["ends"] < 2:
        return "certain"
    return "code" if cls["written"] else "lm"


def _view_inner(run: GraphRun) -> InnerRunView:
    place = Place.parse(run.path) or Place()
    return InnerRunView(
        path=run.path,
        graph=run.name,
        node=place.node,
        step=place.step,
        field=place.field,
        nodes=len(run.steps) + run.dropped,
        outcome=run.outcome,
    )


async def show_fork_form(call: ApiCall) -> ForkFormView:
    """Show the fields that a fork at a node may change."""
    number = number_in(call, "step")
    run_id = call.path["run"]
    graph = call.api.graph_of(await call.api.info(call.user, run_id))
    return await call.api.fold_run(
        call.user, run_id, _view_fork_form, graph, number, call.query.cut
    )


def _view_fork_form(stored: StoredRun, graph: Graph[Any, Any], at: int, cut: int) -> ForkFormView:
    run_id = stored.info.run_id
    nodes = {node.step: node for node in report_run(stored).graphs[0].nodes}
    node = nodes.get(at)
    if node is None or not node.whole:
        raise Refused(
            404,
            "bae-fork-step",
            f"the run {run_id} has no complete node at step {at}",
            "list them: GET /runs/R/steps",
            run_id=run_id,
        )
    cls = next((cls for cls in graph.nodes if cls.__name__ == node.name), None)
    if cls is None:
        raise Refused(
            409,
            "bae-run-changed",
            f"the graph {graph.name} no longer has the class {node.name}",
            "fork at a node whose class exists, or serve the code that began the run",
            run_id=run_id,
        )
    stored_fields = {field.field: field for field in node.fields}
    fields: list[EditableField] = []
    for name, info in cls.__pydantic_fields__.items():
        value = stored_fields.get(name)
        if value is None:
            continue
        view = field_of(value, cut)
        needed = info.is_required() and value.kept != "value"
        schema = _schema_of(cls, name)
        fields.append(EditableField(**view.model_dump(), field_schema=schema, needed=needed))
    return ForkFormView(run_id=run_id, at=at, node=node.name, fields=fields)


def _schema_of(cls: type[Node], name: str) -> Json | None:
    info = cls.__pydantic_fields__[name]
    about = Field(description=info.description)
    return answer_schema(Annotated[(info.annotation, *info.metadata, about)])


ENDPOINTS: Final = (
    get_row(
        "/runs/{run}/graph",
        "Show the graph of a run, with the path of the run.",
        show_run_graph,
        RunGraphView,
        PathQuery,
    ),
    get_row(
        "/runs/{run}/steps/{step}/fork",
        "Show the fields that a fork at a node may change.",
        show_fork_form,
        ForkFormView,
        ForkFormQuery,
    ),
)
