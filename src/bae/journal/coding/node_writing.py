"""Nodes into JSON, with one call of pydantic's serializer for all fields that can be trusted to
read back; the others one by one, each tried. `nodes.py` has one of these for each way to write a
class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import SchemaSerializer

from bae.core_schemas import compiled
from bae.draft import field_schema, model_config_of
from bae.journal.coding.checking import Check, check_for
from bae.journal.coding.exact import Facts, exact_config, fields_exact, made_exact
from bae.journal.coding.nodes import KeptNode, quoted
from bae.journal.coding.sameness import is_plain
from bae.journal.coding.values import Unkeepable, refuse_deep

if TYPE_CHECKING:
    from bae.node import Node


class NodeWriting:
    """How nodes of a class are written, with `secrets` or without, all they hold or only what is
    `plain`."""

    def __init__(self, kept: KeptNode, secrets: bool, plain: bool) -> None:
        self._kept = kept
        fields = kept.plan.plain if plain else kept.plan.fields.values()
        wanted = [field.name for field in fields if field.name not in kept.live]
        self._withheld = [] if secrets else [n for n in wanted if n in kept.secret]
        self._stored = frozenset(wanted).difference(self._withheld)
        self._doubtful = [n for n in wanted if n in self._stored and kept.fields[n].facts.doubtful]
        certain = [n for n in wanted if n in self._stored and n not in self._doubtful]
        schema = fields_exact(kept.cls, certain, "exact")
        config = exact_config(model_config_of(kept.cls), "exact")
        self._serializer = compiled(SchemaSerializer, schema, config)
        self._checks = [
            (name, check) for name in certain if (check := _check(kept, name)) is not None
        ]
        self._open = any(kept.fields[n].facts.open for n in certain)
        self._head = f'{{"type":{quoted(kept.cls.__name__)},"fields":'

    def dump(self, node: Node, whole: bool = False) -> str:
        """The node as JSON. With `whole`, `Unkeepable` is raised where a source would be left
        out."""
        held = node.__dict__
        given = node.__pydantic_fields_set__
        try:
            text = self._serializer.to_json(held, warnings="error", by_alias=False)
            if self._checks and not all(check(held[n]) for n, check in self._checks if n in held):
                raise Unkeepable
            if self._open:
                refuse_deep(text)
            fields = text.decode()
        except Exception:  # said of one of the fields: which one, and whether it can be left out
            fields = self._one_by_one(node, whole)
        if self._doubtful or node.__pydantic_extra__:
            fields = self._with_more(fields, node, whole)
        if not self._withheld and given >= held.keys():
            return f"{self._head}{fields}}}"
        return f"{self._head}{fields}{self._tail(node)}"

    def _tail(self, node: Node) -> str:
        """What is said of fields that are not there, or were not given."""
        held, given = node.__dict__, node.__pydantic_fields_set__
        withheld = [name for name in self._withheld if name in held]
        unset = [name for name in held if name in self._stored and name not in given]
        said = f',"withheld":{quoted(withheld)}' if withheld else ""
        return f'{said},"unset":{quoted(unset)}}}' if unset else f"{said}}}"

    def _with_more(self, fields: str, node: Node, whole: bool) -> str:
        parts = [fields[1:-1]] if len(fields) > 2 else []
        held = node.__dict__
        parts += [self._dumped(n, held[n], whole) for n in self._doubtful if n in held]
        for name, value in (node.__pydantic_extra__ or {}).items():
            if not is_plain(value):
                why = "it is no declared field, and not made of plain values"
                raise self._kept.unfit(name, why)
            parts.append(f"{quoted(name)}:{quoted(value)}")
        return f"{{{','.join(filter(None, parts))}}}"

    def _one_by_one(self, node: Node, whole: bool) -> str:
        """The certain fields, of a node that has something in one that does not read back:
        dependencies are left out then, and for other fields it is said which."""
        parts = [
            self._dumped(name, value, whole)
            for name, value in node.__dict__.items()
            if name in self._stored and name not in self._doubtful
        ]
        return f"{{{','.join(filter(None, parts))}}}"

    def _dumped(self, name: str, value: Any, whole: bool) -> str:
        kept = self._kept
        try:
            return f"{quoted(name)}:{kept.fields[name].dump(value)}"
        except Unkeepable as error:
            if kept.plan.fields[name].kind in ("plain", "gate"):
                raise kept.unfit(name, str(error)) from error
            if whole:
                raise
            return ""  # it is made anew, or found again


def _check(kept: KeptNode, name: str) -> Check | None:
    alone = made_exact(field_schema(kept.cls, name), "exact", Facts())
    return check_for(alone, kept.fields[name].facts.free)
