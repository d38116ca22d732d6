"""What a journal can keep: for a type, whether its values can be written as JSON and read back as
they were, must be made anew, or are secrets; and the writing and reading itself, always through the
declared type. Worked out once per class and call. `nodes.py` does the same for whole nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import SchemaSerializer, SchemaValidator, from_json, to_json

from bae.assignable import type_name
from bae.core_schemas import by_value, compiled
from bae.journal.coding.checking import Check, check_for
from bae.journal.coding.exact import Facts, Mode, exact_config, made_exact
from bae.journal.coding.sameness import is_plain, same

if TYPE_CHECKING:
    from bae.node import Node

Verdict = Literal["keep", "live", "secret"]
"""What becomes of a value: it is kept, made anew on resume, or withheld unless asked for."""


class Unkeepable(Exception):
    """Raised where a value turns out not to read back as it is; the text says why."""


class Kept:
    """How the values of one type are kept.

    `verdict` is "keep", "live" or "secret", and `why` says in words why it is not "keep". With
    `judges`, a value that its type has validators or bounds against is refused when it is read: so
    it is for fields, and not for what functions return, which nobody has judged before either.
    """

    def __init__(self, schema: Any, config: Any = None, judges: bool = False) -> None:
        facts = Facts()
        self._schema, self._config, self._judges = schema, config, judges
        self._exact = made_exact(schema, "exact", facts)
        self.facts = facts
        self.verdict: Verdict = "live" if facts.live else "secret" if facts.secret else "keep"
        self.why = facts.live or facts.secret
        self._serializer: SchemaSerializer | None = None
        self._teller: SchemaSerializer | None = None
        self._check: Check | None = None
        self._validators: dict[Mode, SchemaValidator] = {}

    def dump(self, value: Any) -> str:
        """The value as JSON. Raises `Unkeepable` where it would not read back as it is."""
        if self.facts.live:
            raise Unkeepable(self.facts.live)
        serializer = self._serializer
        if serializer is None:
            serializer = self._prepare()
        try:
            if self.facts.doubtful:
                text = self._tried(serializer, value)
            else:
                text = serializer.to_json(value, warnings="error", by_alias=False)
                if self._check is not None and not self._check(value):
                    raise Unkeepable("a part of it would read back as something else")
            if self.facts.open:
                refuse_deep(text)
        except Unkeepable:
            raise
        except Exception as error:
            raise Unkeepable(first_line(error)) from error
        return text.decode()

    def _tried(self, serializer: SchemaSerializer, value: Any) -> bytes:
        """A value as JSON that is known to read back, whatever pydantic thinks of it."""
        read = self._validator("exact").validate_json
        try:
            text = serializer.to_json(value, warnings="none", by_alias=False)
            if same(value, read(text)):
                return text
        except Exception:
            if not self.facts.choices:
                raise
        if self.facts.choices:
            if self._teller is None:
                told = made_exact(self._schema, "told", Facts())
                config = exact_config(self._config, "told")
                self._teller = compiled(SchemaSerializer, told, config)
            text = self._teller.to_json(value, warnings="none", by_alias=False)
            if same(value, read(text)):
                return text
        raise Unkeepable("it reads back as something else")

    def load(self, data: Any) -> Any:
        """A value from JSON that was read. Raises what pydantic, or a validator, raises."""
        text = to_json(data, inf_nan_mode="constants")
        try:
            value = self.exactly(data)
        except Exception:
            # A validator may know how to read what was written by an older class.
            return self._validator("full").validate_json(text)
        if not self.facts.judged:
            return value
        try:
            judged = self._validator("judge").validate_json(text)
        except Exception:
            return self._validator("full").validate_json(text) if self._judges else value
        return judged if same(value, judged) else value

    def exactly(self, data: Any) -> Any:
        """A value from JSON that was read, by its type alone: no validator has a say."""
        return self._validator("exact").validate_json(to_json(data, inf_nan_mode="constants"))

    def _prepare(self) -> SchemaSerializer:
        if not self.facts.doubtful:
            # What a function returns nobody has validated; of fields pydantic knows more.
            exact = not self._judges or self.facts.free
            self._check = check_for(self._exact, exact)
        config = exact_config(self._config, "exact")
        self._serializer = compiled(SchemaSerializer, self._exact, config)
        return self._serializer

    def _validator(self, mode: Mode) -> SchemaValidator:
        found = self._validators.get(mode)
        if found is None:
            schema = by_value(made_exact(self._schema, mode, Facts()))
            config = exact_config(self._config, mode)
            found = self._validators[mode] = compiled(SchemaValidator, schema, config)
        return found


class KeptPlain(Kept):
    """Values that nothing is declared of: kept when they are made of what JSON has."""

    def __init__(self) -> None:
        super().__init__({"type": "any"})

    def dump(self, value: Any) -> str:
        """The value as JSON; `Unkeepable` where it is not made of what JSON has."""
        try:
            if is_plain(value):
                text = to_json(value)
                refuse_deep(text)
                return text.decode()
        except (ValueError, RecursionError) as error:
            raise Unkeepable(first_line(error)) from error
        raise Unkeepable("its type is not declared, and it is not made of plain values")

    def load(self, data: Any) -> Any:
        """The value as it was read."""
        return data


class KeptNever(Kept):
    """Values that are made anew, whatever they are."""

    def __init__(self, why: str) -> None:
        super().__init__({"type": "any"})
        self.verdict, self.why = "live", why

    def dump(self, value: Any) -> str:
        """Refuses every value."""
        raise Unkeepable(self.why)


def kept_type(declared: Any) -> Kept:
    """How values of a type are kept."""
    if declared is Any or declared is object:
        return KeptPlain()
    try:
        schema = _schema_of(declared)
    except PydanticUserError as error:
        if _is_typed_dict(declared):  # pydantic takes those of older Pythons only by another name
            return KeptPlain()
        return KeptNever(f"{type_name(declared)} has no schema: {first_line(error)}")
    return Kept(schema)


def refuse_deep(text: bytes) -> None:
    """Refuse what is nested deeper than JSON is read, with the record around it."""
    if text.count(b"[") + text.count(b"{") > _SURELY_SHALLOW:
        from_json(b"[" * _AROUND + text + b"]" * _AROUND)


_SURELY_SHALLOW: Final = 150
_AROUND: Final = 8


def first_line(error: BaseException) -> str:
    """The first telling line of what an exception says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if not line.endswith(":")), "")
    return said or type(error).__name__


def _schema_of(declared: Any) -> Any:
    try:
        return TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True)).core_schema
    except PydanticSchemaGenerationError:
        raise
    except PydanticUserError:  # a type with settings of its own
        return TypeAdapter(declared).core_schema


def _is_typed_dict(declared: Any) -> bool:
    return isinstance(declared, type) and hasattr(declared, "__total__")


# The rest of what can be asked of values stands in modules of its own.


def read_field(cls: type[Node], name: str, text: str) -> Any:
    """The value of one field from its JSON; a `JournalError` where today's class refuses it."""
    from bae.journal.coding.nodes import kept_node

    return kept_node(cls).read_field(name, text)


def dump_answer(cls: type[Node], name: str, value: Any) -> str:
    """The answer at a gate as JSON: as the field has it, or else as it was given, since the node is
    still to make its value of it. A `JournalError` where JSON can hold neither."""
    from bae.journal.coding.nodes import kept_node

    return kept_node(cls).dump_answer(name, value)


def read_answer(cls: type[Node], name: str, text: str) -> Any:
    """What `dump_answer` has written, as it was given."""
    from bae.journal.coding.nodes import kept_node

    return kept_node(cls).load_answer(name, from_json(text))


def read_node(cls: type[Node], said: dict[str, Any]) -> Node:
    """A node, or the draft of one, from what a record says of it."""
    from bae.journal.coding.nodes import kept_node

    return kept_node(cls).load(said)
