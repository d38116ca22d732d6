"""Schemas of node classes in artifacts. If the schema of a class has changed, the class's artifact
is refused. A schema has the fields with their types and sources, the successors, and the texts of
`NodeConfig`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema

from bae.assignable import type_name
from bae.core_schemas import field_schema
from bae.evals.case_types import every_node
from bae.lm.policies.learned import NodePart
from bae.node import Node
from bae.plan import NodePlan, plan_of
from bae.prompts.questions import names_of
from bae.prompts.values import find_visible_fields, list_fields_to_fill, once

if TYPE_CHECKING:
    from bae.graph import Graph

PARTS: Final[tuple[NodePart, NodePart]] = ("fill", "choice")


class NodeSchema(BaseModel):
    """The schema of a node class in an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hash: str
    """A hash of the other attributes, independent of their order."""
    fields: dict[str, str]
    """The JSON schema and the source of each field, as text, by field name."""
    leads_to: list[str]
    """The names of the successors."""
    words: dict[str, str] = {}
    """The instruction of the class's `NodeConfig`, and the descriptions of the successors."""


def schema_of(cls: type[Node]) -> NodeSchema:
    """Return the schema of a node class.

    It contains names, types, bounds, sources, successors and the texts of `NodeConfig`. It ignores
    field descriptions, titles, examples, defaults, docstrings and order.
    """
    return once(cls, "schema", lambda: _build_schema(plan_of(cls, strict=True)))


def schema_changes(old: NodeSchema, new: NodeSchema) -> list[str]:
    """Describe the changes from `old` to `new`, with one text for each change."""
    if old.hash == new.hash:
        return []
    changes = [
        *type_changes(old.fields, new.fields),
        *(f"it no longer leads to {name}" for name in old.leads_to if name not in new.leads_to),
        *(f"it leads to {name} now" for name in new.leads_to if name not in old.leads_to),
        *(
            f"its {name} was {old.words.get(name)!r}, is {new.words.get(name)!r}"
            for name in {**old.words, **new.words}
            if old.words.get(name) != new.words.get(name)
        ),
    ]
    return changes or ["its hash does not match its fields"]


def type_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Describe the changes between two sets of fields. `old` and `new` have the types by field
    name."""
    for name, text in old.items():
        if name not in new:
            yield f"{name} is gone (was {text})"
        elif new[name] != text:
            yield f"{name} was {text}, is {new[name]}"
    for name, text in new.items():
        if name not in old:
            yield f"{name} is new ({text})"


def find_visible_types(cls: type[Node]) -> dict[str, str]:
    """Return the fields of a node that an LLM sees: their types by field name."""

    def find() -> dict[str, str]:
        shown = find_visible_fields(cls)
        declared = {
            n: field
            for n, field in cls.__pydantic_fields__.items()
            if n in shown and not field.exclude
        }
        computed = [name for name in cls.__pydantic_computed_fields__ if name in shown]
        types = {name: _type_text(cls, name) for name in declared}
        return dict(sorted((types | dict.fromkeys(computed, "computed")).items()))

    return once(cls, "seen", find)


def is_filled(cls: type[Node]) -> bool:
    """Whether an LLM fills fields of the class, and nodes still have the LLM's answer. A field with
    `Text(parse)` has only the parsed value, not the text of the answer."""
    return bool(list_fields_to_fill(cls)) and not any(
        field.is_parsed for field in plan_of(cls, strict=True).plain
    )


def is_trained(cls: type[Node]) -> bool:
    """Whether the fill of the class can be learned. If the fill follows tool calls, its answer
    depends on results that no example shows, and training would have to call the tools again."""
    return is_filled(cls) and plan_of(cls).tools is None


def why_untrained(cls: type[Node]) -> str:
    """Return why the fill of the class cannot be learned. Empty if it can."""
    plan = plan_of(cls, strict=True)
    if any(field.is_parsed for field in plan.plain):
        return (
            "Text(parse) makes the value from the LM's text, and nodes do not store this text to "
            "learn from: the prompt of the fill stays as it is"
        )
    if plan.tools is not None and list_fields_to_fill(cls):
        return (
            "its fill follows tool calls, which training does not repeat: the prompt of the fill "
            "stays as it is, and you can write it by hand"
        )
    return ""


def chooses(cls: type[Node]) -> bool:
    """Whether an LLM chooses the successor of the class."""
    plan = plan_of(cls, strict=True)
    return not plan.written and len(plan.offered) > 1


def nodes_among(nodes: Graph[Any, Any] | Iterable[type[Node]], by: str) -> tuple[type[Node], ...]:
    """Return the node classes of a graph, or the given classes, without duplicates. `by` names the
    calling function in errors."""
    from bae.graph import Graph

    if isinstance(nodes, Graph):
        return every_node(nodes)
    error = TypeError(f"{by} takes a Graph, or node classes, and not {nodes!r}")
    if isinstance(nodes, type) or not isinstance(cast(object, nodes), Iterable):
        raise error
    classes = tuple(dict.fromkeys(nodes))
    if not all(is_node_class(cls) for cls in classes):
        raise error
    return classes


def is_node_class(value: object) -> bool:
    """Whether a value is a node class."""
    return isinstance(value, type) and issubclass(value, Node)


def _build_schema(plan: NodePlan) -> NodeSchema:
    fields = {
        field.name: f"{_type_text(plan.node, field.name)}{field.describe_in_schema()}"
        for field in plan.fields.values()
    }
    offered = names_of(plan.offered)
    words = {"instruction": plan.instruction} if plan.instruction != plan.name else {}
    for name, cls in offered.items():
        if cls is not NoneType and (description := plan_of(cls).description):
            words[f"description of {name}"] = description
    text = json.dumps([sorted(fields.items()), sorted(offered), sorted(words.items())])
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return NodeSchema(hash=digest, fields=fields, leads_to=list(offered), words=words)


def _type_text(cls: type[Node], name: str) -> str:
    """Return the JSON schema of a field as text: `string`, or `{"minLength": 3, "type":
    "string"}`."""
    try:
        schema = field_schema(cls, name)
        while schema["type"] == "default":
            schema = schema["schema"]
        plain_schema = _plain(GenerateJsonSchema().generate(schema, "validation"))
    except Exception:  # JSON has no such type, or the type's own code raises
        return type_name(cls.__pydantic_fields__[name].annotation)
    only: Any = plain_schema.get("type") if plain_schema.keys() == {"type"} else None
    return only or json.dumps(plain_schema, sort_keys=True, ensure_ascii=False)


_LEFT_OUT = ("title", "description", "default", "examples", "deprecated", "required")


def _plain(schema: Any) -> Any:
    """Return a JSON schema without titles, descriptions, defaults and examples, and with sorted
    alternatives."""
    if isinstance(schema, list):
        return [_plain(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key in ("properties", "$defs"):  # their keys are the user's names
            plain[key] = {name: _plain(subschema) for name, subschema in value.items()}
        elif key in ("enum", "anyOf", "oneOf"):
            plain[key] = sorted(
                _plain(value), key=lambda option: json.dumps(option, sort_keys=True)
            )
        elif key not in _LEFT_OUT and not key.startswith("x-"):
            plain[key] = _plain(value)
    return plain
