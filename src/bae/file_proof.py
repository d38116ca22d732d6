"""Checks images and documents in the proof of a graph. It finds files that an LLM would have to
fill, models that do not accept files, and bytes that a model would read as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bae import files
from bae.core_schemas import field_schema, parts
from bae.exceptions import BaeLMError, Problem, an_error
from bae.files import OF_FILE
from bae.graph_plan import plan_of_graph
from bae.language_model import RoutingLM
from bae.plan import FieldPlan, NodePlan
from bae.secrets import secret_fields

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node


class ShownFile(NamedTuple):
    """A field that always holds a file, and that an LLM sees."""

    asking: NodePlan
    """The node whose LM sees the field."""
    place: str
    """The field, such as `Question.photo`."""
    kind: str
    """The kind of file: "image" or "document"."""


def file_in(schema: Any) -> str:
    """Return the name of a file class that is somewhere in a core schema, such as `Image`. Return
    an empty text if there is none."""
    return next((file_class for part in parts(schema) if (file_class := _file_class(part))), "")


def holds_file(cls: type[Node], name: str) -> bool:
    """Return whether a field may hold a file."""
    return bool(file_in(field_schema(cls, name)))


def file_problems(graph: Graph[Any, Any]) -> Iterator[Problem]:
    """Yield the problems of files and bytes in the fields that the LLMs of a graph see or fill."""
    graph_plan = plan_of_graph(graph)
    for plan in map(graph_plan.plans.__getitem__, graph_plan.filled_nodes):
        for field in plan.plain:
            file_class = "" if field.is_parsed or not field.required else _field_file(plan, field)
            if file_class:
                yield an_error(
                    "bae-file-filled",
                    f"the LM fills it, and no model gives a file: it holds {_a(file_class)}",
                    f"have code make the {file_class}, as Annotated[…, Dep(…)] or Recall(), or "
                    "give it in a body",
                    f"{plan.name}.{field.name}",
                )
    for plan, field in dict.fromkeys(_seen_fields(graph)):
        if _shows_bytes(plan, field):
            yield an_error(
                "bae-bytes-shown",
                "an LM sees it, and would read the bytes as text",
                "declare it Image or Document, which are sent as files; leave it out of what the "
                "LM sees with Field(exclude=True); or say how JSON has the bytes, with "
                'model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")',
                f"{plan.name}.{field.name}",
            )
    for shown in _files_shown_by(graph):  # graphs inside this graph have their own proof
        refused = find_file_error(shown.asking.lm, shown)
        if refused is not None:
            yield an_error(refused.code, refused.message, refused.fix or "", shown.place)


def find_file_error(lm: object, shown: ShownFile) -> BaeLMError | None:
    """Return the error for a field with a file if the LM's model is known not to accept this kind
    of file; otherwise None. `lm` may be the name of an LM."""
    refuser: object = None
    if isinstance(lm, RoutingLM):
        refuser = lm.find_refuser(shown.kind)
    elif isinstance(lm, str):
        from bae.rooms import no_lm_takes

        refuser = lm if no_lm_takes(lm, shown.kind) else None
    if refuser is None:
        return None
    return BaeLMError(
        f"{refuser!r} takes no {shown.kind}s, and is to see {shown.place}",
        code="bae-lm-files",
        sent=False,
        fix=f"use a model that takes {shown.kind}s, for {shown.asking.name} alone with "
        "NodeConfig(lm=…), or leave the field out of what the model sees with Field(exclude=True)",
    )


def find_shown_files(graph: Graph[Any, Any]) -> tuple[ShownFile, ...]:
    """Return the fields that an LLM sees and that always hold a file, in this graph and in the
    graphs inside it."""
    return tuple(dict.fromkeys(shown for inner in graph.graphs for shown in _files_shown_by(inner)))


def _files_shown_by(graph: Graph[Any, Any]) -> Iterator[ShownFile]:
    for asking, plan, field in _asked_fields(graph):
        if kind := _sure_kind(plan, field):
            yield ShownFile(asking, f"{plan.name}.{field.name}", kind)


def _asked_fields(graph: Graph[Any, Any]) -> Iterator[tuple[NodePlan, NodePlan, FieldPlan]]:
    """Yield each field that a question shows, as a tuple: the node whose LM is asked, the node with
    the field, and the field."""
    graph_plan = plan_of_graph(graph)
    plans = graph_plan.plans
    for cls in graph_plan.filled_nodes:
        yield from ((plans[cls], plans[cls], field) for field in plans[cls].context)
    for plan in plans.values():
        if plan.written:
            continue
        askers = [plans[cls] for cls in plan.successors if plans[cls].plain]
        if len(plan.offered) > 1:
            askers.append(plan)
        for field in plan.fields.values() if askers else ():
            yield from ((asker, plan, field) for asker in askers)


def _seen_fields(graph: Graph[Any, Any]) -> Iterator[tuple[NodePlan, FieldPlan]]:
    """Yield the fields that LLMs see or fill."""
    for _, plan, field in _asked_fields(graph):
        yield plan, field
    graph_plan = plan_of_graph(graph)
    for plan in map(graph_plan.plans.__getitem__, graph_plan.filled_nodes):
        yield from ((plan, field) for field in plan.plain)


def _is_hidden(plan: NodePlan, field: FieldPlan) -> bool:
    """Return whether a model sees nothing of a field, or only a mask."""
    return bool(field.info.exclude) or field.name in secret_fields(plan.node)


def _shows_bytes(plan: NodePlan, field: FieldPlan) -> bool:
    if _is_hidden(plan, field) or "ser_json_bytes" in plan.node.model_config:
        return False
    if field.annotation in (str, int, float, bool):
        return False
    inside = parts(field_schema(plan.node, field.name), written=True)
    encoded = {
        id(part)
        for model in inside
        if model["type"] == "model" and "ser_json_bytes" in cast("Any", model.get("config") or {})
        for part in parts(model["schema"], written=True)
    }
    return any(part["type"] == "bytes" and id(part) not in encoded for part in inside)


def _field_file(plan: NodePlan, field: FieldPlan) -> str:
    if field.annotation in (str, int, float, bool):
        return ""
    return file_in(field_schema(plan.node, field.name))


def _sure_kind(plan: NodePlan, field: FieldPlan) -> str:
    """Return the kind of file that a field always holds. Return an empty text if the field may hold
    something else."""
    if not field.required or _is_hidden(plan, field) or not _field_file(plan, field):
        return ""
    schema = field_schema(plan.node, field.name)
    while schema["type"] == "definitions":
        schema = schema["schema"]
    choices: list[Any] = schema["choices"] if schema["type"] == "union" else [schema]
    # A choice with a tag is a tuple of the schema and the tag.
    classes = [
        _file_class(choice[0] if isinstance(choice, tuple) else choice) for choice in choices
    ]
    kinds = {getattr(files, name).kind if name else "" for name in classes}
    return kinds.pop() if len(kinds) == 1 else ""


def _file_class(schema: Any) -> str:
    return str(cast("Any", schema.get("metadata") or {}).get(OF_FILE, ""))


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AI' else 'a'} {name}"
