"""Endpoints for the graphs that are served, and for the server itself."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from bae import __version__
from bae.graph import Graph
from bae.graph_plan import plan_of_graph
from bae.pictures import picture_of
from bae.pictures.picture import Box
from bae.plan import plan_of
from bae.prompts.messages import Prompt
from bae.serve.drawing import lay_out
from bae.serve.endpoints import ApiCall, Endpoint, get_row
from bae.serve.problems import Refused
from bae.serve.starts import Starts
from bae.serve.views import (
    BoxView,
    ClassFieldView,
    ClassView,
    EdgeView,
    GraphList,
    GraphRow,
    GraphView,
    Health,
    ProblemView,
    PromptMessage,
    PromptPage,
    PromptView,
    ToolView,
)


def starts_of(call: ApiCall) -> Starts:
    """Return the `Starts` of the graph in the path of a request. Raises `Refused` if no such graph
    is served."""
    name = call.path["graph"]
    starts = call.api.starts.get(name)
    if starts is None:
        names = ", ".join(call.api.starts) or "none"
        raise Refused(
            404, "bae-serve-no-graph", f"no graph {name[:200]!r} is served", f"served: {names}"
        )
    return starts


async def list_graphs(call: ApiCall) -> GraphList:
    return GraphList(graphs=[_view_row(start) for start in call.api.starts.values()])


async def show_graph(call: ApiCall) -> GraphView:
    return await call.api.fold(_view_graph, starts_of(call))


def _view_graph(starts: Starts) -> GraphView:
    graph, picture = starts.graph, picture_of(starts.graph)
    layout = lay_out([box.name for box in picture.boxes], picture.edges)
    names = {box.id: box.name for box in picture.boxes}
    plans = plan_of_graph(graph).plans
    tools = [(cls, plan.tools) for cls, plan in plans.items() if plan.tools is not None]
    return GraphView(
        **_view_row(starts).model_dump(),
        nodes=[cls.__name__ for cls in graph.nodes],
        classes=[_view_class(box) for box in picture.boxes],
        edges=[
            EdgeView(
                source=names[arrow.tail],
                target=names[arrow.head],
                chosen_by=arrow.kind,
                line=[*line],
            )
            for arrow, line in zip(picture.arrows, layout.lines, strict=True)
        ],
        boxes=[
            BoxView(node=box.name, x=x, y=y, width=size.width, height=size.height)
            for box, (x, y), size in zip(picture.boxes, layout.corners, layout.sizes, strict=True)
        ],
        tools=[
            ToolView(
                node=cls.__name__,
                name=spec.name,
                description=spec.description,
                arguments=dict(spec.schema),
            )
            for cls, field in tools
            for spec in field.tool_specs
        ],
        problems=problems_of(graph),
        start_schema=starts.form_schema,
        end_schemas=starts.ends,
        mermaid=graph.to_mermaid(fields=True),
    )


def _view_class(box: Box) -> ClassView:
    return ClassView(
        node=box.name,
        about=box.doc,
        ending=box.ending,
        chosen_by=box.chooser,
        lm=box.lm,
        fields=[
            ClassFieldView(
                name=field.name,
                type=field.type,
                source=field.source,
                origin=field.origin,
                description=field.description,
                required=field.required,
            )
            for field in box.fields
        ],
    )


async def list_prompts(call: ApiCall) -> PromptPage:
    """List the prompts of a graph."""
    starts = starts_of(call)
    prompts = await call.api.fold(starts.graph.prompts)
    return PromptPage(prompts=[_view_prompt(prompt) for prompt in prompts])


def _view_prompt(prompt: Prompt) -> PromptView:
    question = prompt.question
    source = question.source
    return PromptView(
        source=None if source is None else type(source).__name__,
        target=question.target.__name__ if question.target else None,
        options=[cls.__name__ for cls in question.types],
        by_body=source is not None and plan_of(type(source)).written,
        system=prompt.system,
        messages=[
            PromptMessage(role=message.role, text=message.text) for message in prompt.conversation
        ],
        tools=[tool.name for tool in prompt.tools],
        answer_schema=None if prompt.schema is None else {**prompt.schema},
    )


def problems_of(graph: Graph[Any, Any]) -> list[ProblemView]:
    """Return the problems that the validation of a graph found."""
    return [
        ProblemView(
            severity=problem.severity,
            code=problem.code,
            place=problem.place,
            message=problem.message,
            fix=problem.fix,
        )
        for problem in graph.validate(journal=True)
    ]


async def show_health(call: ApiCall) -> Health:
    return Health(bae=__version__)


async def show_openapi(call: ApiCall) -> Response:
    root = quote(call.request.scope.get("root_path", ""))
    return Response(call.api.document(root), media_type="application/json")


def _view_row(starts: Starts) -> GraphRow:
    return GraphRow(
        name=starts.name,
        start=starts.graph.start.__name__,
        ends=[cls.__name__ for cls in starts.graph.terminal_nodes],
        about=starts.about,
    )


ENDPOINTS: Final = (
    get_row("/graphs", "List the graphs.", list_graphs, GraphList),
    get_row(
        "/graphs/{graph}",
        "Show a graph: nodes, edges, problems and schemas.",
        show_graph,
        GraphView,
    ),
    get_row(
        "/graphs/{graph}/prompts",
        "Show the prompts that a graph can send, with sample values.",
        list_prompts,
        PromptPage,
    ),
    Endpoint("GET", "/health", None, "Check that the server answers.", show_health, {200: Health}),
    get_row("/openapi.json", "Describe this API.", show_openapi, "application/json"),
)
