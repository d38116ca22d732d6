"""What a node class looks like to those who learn for it: its fields with their types and sources,
and where it leads, as readable texts with a hash. Artefacts carry it, so that one which was made
for other fields is refused by name; see `artefacts.py`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from types import NoneType
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from bae.lm.prompts import names_of, once
from bae.markers import Dep, Gate, Map, Recall
from bae.optimizer.type_texts import type_text
from bae.plan import FieldPlan, NodePlan, plan_of

if TYPE_CHECKING:
    from bae.node import Node


class NodeSchema(BaseModel):
    """A node class as an artefact knows it: `fields` by name, each with its type and where its
    value comes from, and what it `leads_to`. `words` are the instruction of its `NodeConfig`, which
    a learned one replaces, and the descriptions of what it leads to. `hash` is of all, whatever
    their order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hash: str
    fields: dict[str, str]
    leads_to: list[str]
    words: dict[str, str] = {}


def schema_of(cls: type[Node]) -> NodeSchema:
    """The schema of a node class, worked out once.

    Names, types, bounds, sources, successors and the words of `NodeConfig` are in it. Descriptions
    of fields, titles, examples, defaults and docstrings are not, nor is the order of anything. It
    is the same in every process, on every Python, and wherever the class is defined.
    """
    return once(cls, "learnt", lambda: _drawn(plan_of(cls, strict=True)))


def differences(old: NodeSchema, new: NodeSchema) -> list[str]:
    """What is other in `new`, one text for each field or successor; empty where nothing is."""
    if old.hash == new.hash:
        return []
    return list(_differences(old, new)) or ["its hash is not the one of its fields"]


def _differences(old: NodeSchema, new: NodeSchema) -> Iterator[str]:
    for name, text in old.fields.items():
        if name not in new.fields:
            yield f"{name} is gone (was {text})"
        elif new.fields[name] != text:
            yield f"{name} was {text}, is {new.fields[name]}"
    for name, text in new.fields.items():
        if name not in old.fields:
            yield f"{name} is new ({text})"
    for name in old.leads_to:
        if name not in new.leads_to:
            yield f"it leads no more to {name}"
    for name in new.leads_to:
        if name not in old.leads_to:
            yield f"it leads to {name} now"
    for name in {**old.words, **new.words}:
        was, now = old.words.get(name), new.words.get(name)
        if was != now:
            yield f"its {name} was {was!r}, is {now!r}"


def _drawn(plan: NodePlan) -> NodeSchema:
    fields = {field.name: _field(plan, field) for field in plan.fields.values()}
    leads_to = list(names_of(plan.offered))
    words = {"instruction": plan.instruction} if plan.instruction != plan.name else {}
    for name, cls in names_of(plan.offered).items():
        if cls is not NoneType and (description := plan_of(cls).description):
            words[f"description of {name}"] = description
    parts = [sorted(fields.items()), sorted(leads_to), *([sorted(words.items())] if words else [])]
    said = json.dumps(parts, separators=(",", ":"))
    found = hashlib.sha256(said.encode()).hexdigest()[:32]
    return NodeSchema(hash=found, fields=fields, leads_to=leads_to, words=words)


def _field(plan: NodePlan, field: FieldPlan) -> str:
    kind = type_text(plan, field)
    by = field.call.name if field.call is not None else ""
    match field.marker:
        case None:
            return kind if field.text is None else f"{kind} in plain text"
        case Dep():
            return f"{kind} from {by}"
        case Map(over=over):
            return f"{kind} from {by} for each of {over}"
        case Gate():
            return f"{kind} from a person"
        case Recall(node_type=node_type):
            return f"{kind} recalled{f' from {node_type.__name__}' if node_type else ''}"
