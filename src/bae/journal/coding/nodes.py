"""Nodes as a journal keeps them, `{"type": …, "fields": {…}}`: what is known of a class, worked out
once. `node_writing.py` and `node_reading.py` do the two halves of the work, `values.py` the same
for single values, `kept_calls.py` for what dependencies return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from bae.draft import field_schema, model_config_of, validated
from bae.exceptions import JournalError, describe, faults
from bae.journal.coding.routes import asked_at
from bae.journal.coding.sameness import is_plain
from bae.journal.coding.values import Kept, Unkeepable
from bae.node import Node
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.journal.coding.kept_calls import KeptGraph
    from bae.journal.coding.node_reading import NodeReading
    from bae.journal.coding.node_writing import NodeWriting

_KEPT: Final = "__bae_kept__"


def kept_node(cls: type[Node]) -> KeptNode:
    """How nodes of a class are kept."""
    found = cast("KeptNode | None", cls.__dict__.get(_KEPT))
    if found is None:
        found = KeptNode(cls)
        type.__setattr__(cls, _KEPT, found)
    return found


class KeptNode:
    """How the nodes of one class are kept: `fields` says it of each, `live` and `secret` name the
    fields that no journal holds, and those that are not shown to it."""

    def __init__(self, cls: type[Node]) -> None:
        self.cls = cls
        self.plan = plan_of(cls, strict=True)
        config = model_config_of(cls)
        self.fields = {n: Kept(field_schema(cls, n), config, judges=True) for n in self.plan.fields}
        self.live = frozenset(n for n, kept in self.fields.items() if kept.facts.live)
        self.secret = frozenset(
            field.name
            for field in self.plan.fields.values()
            if not field.info.repr or self.fields[field.name].facts.secret
        )
        self._calls: dict[tuple[str, str], Kept | KeptGraph] = {}
        self._writing: dict[tuple[bool, bool], NodeWriting] = {}
        self._reading: NodeReading | None = None

    def call(self, field: str, route: str = "") -> Kept | KeptGraph:
        """How the values of the dependency behind a field are kept, or of a parameter further
        down; of a gate, those of the field."""
        found = self._calls.get((field, route))
        if found is None:
            from bae.journal.coding.kept_calls import kept_call

            asked = asked_at(self.plan.fields[field], route)
            if asked is None:
                raise KeyError(f"{field}{route}")
            found = self.fields[field] if asked.call is None else kept_call(asked.call)
            self._calls[field, route] = found
        return found

    def dump(self, node: Node, *, secrets: bool = False, plain: bool = False) -> str:
        """A node as JSON: all that it holds, or only its `plain` fields. Dependencies that no
        journal can hold are left out, and so are secrets unless they are asked for. Raises
        `JournalError` where a plain field has a value that no journal can hold."""
        return self._written(secrets, plain).dump(node)

    def dump_whole(self, node: Node) -> str:
        """A node as JSON with all its fields, secrets too. Raises `Unkeepable` where one of them
        cannot be kept."""
        if self.live:
            name = min(self.live)
            raise Unkeepable(f"{self.cls.__name__}.{name}: {self.fields[name].why}")
        return self._written(secrets=True, plain=False).dump(node, whole=True)

    def _written(self, secrets: bool, plain: bool) -> NodeWriting:
        writing = self._writing.get((secrets, plain))
        if writing is None:
            from bae.journal.coding.node_writing import NodeWriting

            writing = self._writing[secrets, plain] = NodeWriting(self, secrets, plain)
        return writing

    def load(
        self,
        said: Mapping[str, Any],
        given: Mapping[str, Any] | None = None,
        partial: bool = False,
    ) -> Node:
        """A node, or the draft of one, from what `dump` has written.

        A plain field that was withheld is taken from `given`, by `Class.field`; with `partial` it
        is left out. Raises `JournalError` where today's class refuses it.
        """
        return self._read().load(said, given or {}, partial)

    def joined(self, draft: Node, values: Mapping[str, Any], whole: bool) -> Node:
        """A copy of a draft with values of its sources added, made whole or left a draft."""
        return self._read().joined(draft, values, whole)

    def _read(self) -> NodeReading:
        if self._reading is None:
            from bae.journal.coding.node_reading import NodeReading

            self._reading = NodeReading(self)
        return self._reading

    def dump_field(self, name: str, value: Any) -> str:
        """The value of one field as JSON."""
        try:
            return self.fields[name].dump(value)
        except Unkeepable as error:
            raise self.unfit(name, str(error)) from error

    def read_field(self, name: str, text: str) -> Any:
        """The value of one field from its JSON."""
        try:
            return self.fields[name].load(from_json(text))
        except Exception as error:
            raise unreadable(f"{self.cls.__name__}.{name}", error) from error

    def dump_answer(self, name: str, value: Any) -> str:
        """The answer at a gate as JSON: as the field has it, or else as it was given, or at least
        as the field makes it."""
        try:
            return self.fields[name].dump(value)
        except Unkeepable:
            if is_plain(value):
                return quoted(value)
        return self.dump_field(name, validated(self.cls, {name: value})[name])

    def load_answer(self, name: str, data: Any) -> Any:
        """What `dump_answer` has written."""
        try:
            return self.fields[name].exactly(data)
        except Exception:
            return data  # the node makes its value of it, as it did before

    def unfit(self, name: str, why: str) -> JournalError:
        """What is raised where a field has a value that no journal can hold."""
        return JournalError(
            f"{self.cls.__name__}.{name}: a journal cannot keep the value it has here: {why}",
            code="bae-journal-field",
            fix="give it a value of exactly the type that is declared, declare what it is, or make "
            "it a Dep, which is made anew",
        )


def unreadable(place: str, error: BaseException) -> JournalError:
    """What is raised where today's classes refuse what was recorded."""
    said = "; ".join(faults(error)) if isinstance(error, ValidationError) else describe(error)
    return JournalError(
        f"{place} is recorded with what its class refuses today: {said}",
        code="bae-journal-unreadable",
        cause=error,
        fix="go on with the classes that the run was begun with, or let today's read what they "
        "wrote: a default for a new field, a validator for an old form",
    )


def secret_needed(names: Iterable[str]) -> JournalError:
    """What is raised where plain fields that were withheld are not given again."""
    listed = list(names)
    example = ", ".join(f'"{name}": …' for name in listed)
    return JournalError(
        f"the run needs {', '.join(listed)}, which the journal does not have: it was withheld as a "
        "secret, or redacted",
        places=listed,
        code="bae-journal-secret",
        fix=f"give it again: given={{{example}}}; a journal with secrets=True keeps the secrets of "
        "new runs",
    )


def quoted(value: Any) -> str:
    """A plain value as JSON."""
    return to_json(value, inf_nan_mode="constants").decode()
