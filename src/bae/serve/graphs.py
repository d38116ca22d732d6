"""Endpoints about the graphs that are served, and about the server."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from bae import __version__
from bae.serve.endpoints import ApiCall, Endpoint
from bae.serve.problems import Refused
from bae.serve.starts import Starts
from bae.serve.views import EdgeView, GraphList, GraphRow, GraphView, Health, ProblemView


def starts_of(call: ApiCall) -> Starts:
    """The graph that the path of a request names."""
    name = call.path["graph"]
    found = call.api.starts.get(name)
    if found is None:
        known = ", ".join(call.api.starts) or "none"
        raise Refused(
            404, "bae-serve-no-graph", f"no graph {name[:200]!r} is served", f"served: {known}"
        )
    return found


async def list_graphs(call: ApiCall) -> GraphList:
    return GraphList(graphs=[_row(each) for each in call.api.starts.values()])


async def show_graph(call: ApiCall) -> GraphView:
    found = starts_of(call)
    graph = found.graph
    return GraphView(
        **_row(found).model_dump(),
        nodes=[cls.__name__ for cls in graph.nodes],
        edges=[
            EdgeView(source=cls.__name__, target=each.__name__)
            for cls, targets in graph.edges.items()
            for each in targets
        ],
        problems=[
            ProblemView(
                severity=each.severity,
                code=each.code,
                place=each.place,
                message=each.message,
                fix=each.fix,
            )
            for each in graph.validate(journal=True)
        ],
        start_schema=found.schema,
        end_schemas=found.ends,
        mermaid=graph.to_mermaid(fields=True),
    )


async def show_health(call: ApiCall) -> Health:
    return Health(bae=__version__)


async def show_openapi(call: ApiCall) -> Response:
    return Response(call.api.document(), media_type="application/json")


def _row(found: Starts) -> GraphRow:
    return GraphRow(
        name=found.name,
        start=found.graph.start.__name__,
        ends=[cls.__name__ for cls in found.graph.terminal_nodes],
        about=found.about,
    )


ENDPOINTS: Final = (
    Endpoint("GET", "/graphs", "read", "List the graphs.", list_graphs, {200: GraphList}),
    Endpoint(
        "GET",
        "/graphs/{graph}",
        "read",
        "Show a graph: nodes, edges, problems and schemas.",
        show_graph,
        {200: GraphView},
        refusals=(404,),
    ),
    Endpoint("GET", "/health", None, "Tell that the server answers.", show_health, {200: Health}),
    Endpoint(
        "GET",
        "/openapi.json",
        "read",
        "Describe this API.",
        show_openapi,
        {200: "application/json"},
    ),
)
