"""Nodes from JSON, exactly as they were: what is stored was valid once and is not made over a
second time, though today's class must not refuse it. `nodes.py` has one of these for each class."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError
from pydantic_core import SchemaValidator, to_json

from bae.core_schemas import by_value, compiled
from bae.draft import complete, fields_schema, from_answer, hold, model_config_of, validated
from bae.journal.coding.exact import Mode, exact_config, fields_exact
from bae.journal.coding.nodes import KeptNode, secret_needed, unreadable

if TYPE_CHECKING:
    from bae.node import Node


class NodeReading:
    """How nodes of a class are read."""

    def __init__(self, kept: KeptNode) -> None:
        self._kept = kept
        self._readers: dict[tuple[Mode, frozenset[str]], SchemaValidator] = {}
        self._joiners: dict[tuple[frozenset[str], frozenset[str]], SchemaValidator] = {}

    def load(self, said: Mapping[str, Any], given: Mapping[str, Any], partial: bool) -> Node:
        """A node, or the draft of one; see `KeptNode.load`."""
        cls = self._kept.cls
        data = cast("dict[str, Any]", said["fields"])
        absent = frozenset(cast("list[str]", said.get("withheld", ())))
        again = {n: given[place] for n in absent if (place := f"{cls.__name__}.{n}") in given}
        plain = [f.name for f in self._kept.plan.plain if f.name in absent and f.name not in again]
        if plain and not partial:
            raise secret_needed(f"{cls.__name__}.{name}" for name in plain)
        try:
            if again:
                again = validated(cls, again)
            unset = frozenset(cast("list[str]", said.get("unset", ())))
            return self._exactly(data, absent.difference(again), again, unset)
        except Exception as error:
            refused = error
        # Today's class does not take it as it is; it may know how to read it all the same.
        known = frozenset(name for name in data if name in self._kept.fields)
        try:
            return from_answer(cls, {**data, **again}, known)
        except Exception as error:
            better = error if isinstance(error, ValidationError) else refused
            raise unreadable(cls.__name__, better) from better

    def _exactly(
        self,
        data: dict[str, Any],
        absent: frozenset[str],
        again: dict[str, Any],
        unset: frozenset[str],
    ) -> Node:
        cls, fields = self._kept.cls, self._kept.fields
        known = {name: value for name, value in data.items() if name in fields}
        text = to_json(known, inf_nan_mode="constants")
        wanted = frozenset(fields).difference(absent, again)
        read = cast("dict[str, Any]", self._reader("exact", wanted).validate_json(text))
        held = {**read, **again}
        values = {name: held[name] for name in fields if name in held}
        missing = [f.name for f in self._kept.plan.plain if f.name not in values]
        if not absent.issuperset(missing):
            raise ValueError(f"there is no {', '.join(missing)}, which the class now requires")
        if any(fields[name].facts.judged for name in known):
            self._reader("judge", frozenset(known)).validate_json(text)
        node = cls.__new__(cls)
        extra = self._extra(data)
        said = {name for name in values if name in data or name in again}.union(extra or ())
        hold(node, values, extra, said.difference(unset))
        if len(values) == len(fields):
            complete(node, {})
            # A validator that does more each time it is asked is not to have its way twice.
            cast("dict[str, Any]", node.__dict__).update(values)
        return node

    def _extra(self, data: dict[str, Any]) -> dict[str, Any] | None:
        others = {name: value for name, value in data.items() if name not in self._kept.fields}
        match self._kept.cls.model_config.get("extra"):
            case "allow":
                return others
            case "forbid" if others:
                raise ValueError(f"it has {', '.join(others)}, which the class does not take")
            case _:
                return None

    def _reader(self, mode: Mode, names: frozenset[str]) -> SchemaValidator:
        found = self._readers.get((mode, names))
        if found is None:
            cls = self._kept.cls
            listed = [name for name in self._kept.fields if name in names]
            schema = by_value(fields_exact(cls, listed, mode))
            config = exact_config(model_config_of(cls), mode)
            found = self._readers[mode, names] = compiled(SchemaValidator, schema, config)
        return found

    def joined(self, draft: Node, values: Mapping[str, Any], whole: bool) -> Node:
        """A draft with values of its sources; see `KeptNode.joined`."""
        node = copy(draft)
        if whole:
            complete(node, values)
        elif values:
            fields = self._kept.fields
            held = {n: v for n, v in draft.__dict__.items() if n in fields}
            checked = self._checked(held, values)
            in_order = {name: checked[name] for name in fields if name in checked}
            given = draft.__pydantic_fields_set__ | values.keys()
            hold(node, in_order, draft.__pydantic_extra__, given)
        return node

    def _checked(self, held: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of sources as the fields take them, with those that are valid already beside."""
        key = frozenset(held), frozenset(values)
        found = self._joiners.get(key)
        if found is None:
            cls = self._kept.cls
            schema = fields_schema(cls, [n for n in self._kept.fields if n in held or n in values])
            inner = schema["schema"] if schema["type"] == "definitions" else schema
            for name in held:
                inner["fields"][name] = {**inner["fields"][name], "schema": {"type": "any"}}
            config = cast(Any, model_config_of(cls))
            found = self._joiners[key] = SchemaValidator(schema, config)
        checked, _, _ = found.validate_python({**held, **values})
        return checked
