"""Prompts: what a model is asked and shown, the same for all backends. The instruction comes first,
what is known follows as JSON, and the schema of the answer goes beside it. Equal input gives an
equal prompt, to the letter."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from math import isfinite
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import (
    BaseModel,
    PlainSerializer,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    WrapSerializer,
)
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from bae.core_schemas import computed_schemas, field_schema
from bae.draft import hold
from bae.exceptions import BaeLMError, NodeError, text_of
from bae.language_model import scene
from bae.lm.requests import Prompt, Question, Turn
from bae.lm.schemas import choice_schema, fill_schema, has_schema, notes_on
from bae.plan import plan_of
from bae.secrets import MASK, veil_of

if TYPE_CHECKING:
    from bae.node import Node

T = TypeVar("T")

Resolved = Mapping["type[Node]", Mapping[str, Any]]
"""Values of the fields of several classes that have a source."""

_STEP = (
    "You carry out one step of a program. The first line says what to make. The JSON after it is "
    'what is known; values under "context" were looked up for this step.'
)
SYSTEM = (
    f"{_STEP} Answer with one JSON object that fits the schema you are given, and with nothing "
    "else."
)
TEXT_SYSTEM = f"{_STEP} Answer with the text that is to be made, and with nothing else."
IN_TEXT = "Answer in plain text, not in JSON"
CHOOSE = "Choose what comes next."
CHOOSE_AND_MAKE = "Choose what comes next, and make it."
OR_STOP = '"None" is to stop here.'
EARLIER = 'Earlier steps are under "before", the oldest first.'


def system_text(default: str = SYSTEM) -> str:
    """The system text of what is asked here: that of the graph, or bae's own."""
    now = scene.get()
    if now.system is not None:
        return now.system
    return f"{default} {EARLIER}" if now.shown or now.omitted else default


_KNOWN = "__bae_prompts__"


def once(cls: type[BaseModel], key: object, make: Callable[[], T]) -> T:
    """What `make` returns for a class, worked out on first use and stored on the class."""
    try:
        return cls.__dict__[_KNOWN][key]
    except KeyError:
        pass
    if _KNOWN not in cls.__dict__:
        type.__setattr__(cls, _KNOWN, {})
    value = cls.__dict__[_KNOWN][key] = make()
    return value


def asked_fields(cls: type[Node]) -> tuple[str, ...]:
    """The fields a model is asked for: the plain ones, without those that have a default and a
    type that JSON cannot express. A field that is answered in plain text is the only one."""

    def find() -> tuple[str, ...]:
        plan = plan_of(cls, strict=True)
        plain = plan.plain
        if plan.text is not None:
            for problem in plan.problems:
                if problem.code == "bae-text-not-alone":
                    said = f"{problem.place}: {problem.message}"
                    raise NodeError(said, node_type=cls, code=problem.code, fix=problem.fix)
            return (plan.text.name,)
        return tuple(
            f.name
            for f in plain
            if f.required or has_schema(field_schema(cls, f.name), "validation")
        )

    return once(cls, "asked", find)


def shown_fields(cls: type[Node]) -> frozenset[str]:
    """The fields a model may see: those that JSON can express, which a client or a connection is
    not. Computed fields are among them."""

    def find() -> frozenset[str]:
        plan_of(cls, strict=True)
        schemas = {name: field_schema(cls, name) for name in cls.__pydantic_fields__}
        schemas |= computed_schemas(cls)
        return frozenset(n for n, schema in schemas.items() if has_schema(schema, "serialization"))

    return once(cls, "shown", find)


def fill_prompt(
    target: type[Node],
    fields: tuple[str, ...],
    resolved: Mapping[str, Any],
    instruction: str,
    source: Node | None,
    turns: tuple[Turn, ...] = (),
) -> Prompt:
    """Ask for some fields of a node."""
    known = _known_nodes(source)
    if resolved:
        known["context"] = context_of(target, resolved)
    form = text_form(target)
    return Prompt(
        system_text(TEXT_SYSTEM if form else SYSTEM),
        text_of_question(instruction, known, form),
        None if form else once(target, fields, lambda: fill_schema(target, fields)),
        re.sub(r"[^A-Za-z0-9_-]", "_", target.__name__)[:64],
        Question((), (), target, fields, resolved, None, instruction, source),
        turns,
    )


def text_form(target: type[Node]) -> str:
    """What a prompt ends with that asks for plain text: how to answer, with the description of the
    field, and its bounds where the text is its value. Empty where JSON is asked for."""

    def make() -> str:
        field = plan_of(target, strict=True).text
        if field is None:
            return ""
        about = " ".join((field.info.description or "").split())
        if field.parse is None:
            schema = fill_schema(target, (field.name,))["properties"][field.name]
            about = notes_on(schema)
        return f"{IN_TEXT}: {about}" if about else f"{IN_TEXT}."

    return once(target, "text", make)


class Choice:
    """What is the same each time one of `types` is chosen: their names, which of them come filled,
    the instruction with what there is to say of each option, and the schema. Worked out once."""

    __slots__ = ("fillable", "instruction", "names", "schema", "types")

    def __init__(
        self, types: tuple[type[Node] | type[None], ...], fillable: tuple[type[Node], ...]
    ) -> None:
        self.types = types
        self.names = names_of(types)
        self.fillable = tuple(cls for cls in fillable if cls in types and _has_json(cls))
        self.instruction = choice_instruction(types, make=bool(self.fillable))
        options = [
            option_text(name, cls, filled=cls in self.fillable)
            for name, cls in self.names.items()
            if cls is not NoneType
        ]
        if any("\n" in each or ": " in each for each in options):
            self.instruction = "\n".join([self.instruction, *options])
        filled = {cls: (cls, asked_fields(cls)) for cls in self.fillable}
        self.schema = choice_schema({n: filled.get(cast(Any, c)) for n, c in self.names.items()})

    def prompt(
        self,
        source: Node | None,
        context: Mapping[str, Any] | None = None,
        turns: tuple[Turn, ...] = (),
        resolved: Resolved | None = None,
    ) -> Prompt:
        """Ask for the choice; `resolved` are values for those that come filled."""
        known = _known_nodes(source)
        if context is not None:
            known["context"] = _jsonable(context, "the context of a choice")
        elif resolved and (contexts := self._contexts(resolved)):
            known["context"] = contexts
        return Prompt(
            system_text(),
            text_of_question(self.instruction, known),
            self.schema,
            "Choice",
            Question(self.types, self.fillable, None, (), _NOTHING, context, "", source),
            turns,
        )

    def _contexts(self, resolved: Resolved) -> dict[str, Any]:
        """The values that were resolved for the options, by the names of the options. A value that
        several have is there once, under all their names."""
        owners: dict[str, list[str]] = {}
        found: dict[str, tuple[str, Any]] = {}
        for name, cls in self.names.items():
            if cls in self.fillable and cls in resolved:
                for field, value in context_of(cls, resolved[cls]).items():
                    key = text_of_json([field, value])
                    owners.setdefault(key, []).append(name)
                    found[key] = field, value
        contexts: dict[str, Any] = {}
        for key, (field, value) in found.items():
            contexts.setdefault(", ".join(owners[key]), {})[field] = value
        return contexts


def option_text(name: str, cls: type[Node], *, filled: bool) -> str:
    """What a model is told of an option: its description; and the instruction, if it is `filled` by
    the same answer, or else the fields that would be asked for, which the schema does not have."""
    plan = plan_of(cls, strict=True)
    said = f"- {name}: {plan.description}" if plan.description else f"- {name}"
    if plan.text is not None:
        about = text_form(cls).removeprefix(IN_TEXT).lstrip(":. ")
        said += f"\nIt is a text: {about}" if about else "\nIt is a text."
    elif not filled and (asked := asked_fields(cls)):
        schema = once(cls, asked, lambda: fill_schema(cls, asked))
        parts = {key: schema[key] for key in ("properties", "required", "$defs") if key in schema}
        said += f"\nIts fields: {text_of_json(parts)}"
    elif filled and plan.instruction != plan.name:
        said += f"\nTo make it: {plan.instruction}"
    return said.replace("\n", "\n  ")


def filled_options(types: Sequence[type[Node] | type[None]], asked: str) -> tuple[type[Node], ...]:
    """Those of `types` that came filled with the choice, by the text that was asked."""
    return tuple(
        cls
        for name, cls in names_of(types).items()
        if cls is not NoneType and option_text(name, cls, filled=False) not in asked
    )


def _has_json(cls: type[Node]) -> bool:
    """Whether there are fields to ask for, in JSON."""
    return bool(asked_fields(cls)) and plan_of(cls, strict=True).text is None


def choice_of(
    types: tuple[type[Node] | type[None], ...],
    fillable: tuple[type[Node], ...],
    resolved: tuple[type[Node], ...] = (),
) -> Choice:
    """The choice among `types`, of which those in `fillable` come filled where they can: there is
    something to ask for, and nothing is to be resolved first, or that is `resolved`."""

    def make() -> Choice:
        filled = (c for c in fillable if c in resolved or not plan_of(c, strict=True).context)
        return Choice(types, tuple(filled))

    for cls in types:
        if cls is not NoneType:
            return once(cls, (types, fillable, resolved), make)
    return make()


def choice_instruction(types: Sequence[type[Node] | type[None]], *, make: bool = False) -> str:
    """The instruction to choose among `types`, and to `make` the chosen one too."""
    text = CHOOSE_AND_MAKE if make else CHOOSE
    return f"{text} {OR_STOP}" if NoneType in types else text


def names_of(types: Sequence[type[Node] | type[None]]) -> dict[str, type[Node] | type[None]]:
    """The types by the name a model knows them by: the class name, numbered where two share one."""
    names: dict[str, type[Node] | type[None]] = {}
    for cls in types:
        name = own = "None" if cls is NoneType else cls.__name__
        number = 1
        while name in names:
            number += 1
            name = f"{own}_{number}"
        names[name] = cls
    return names


def text_of_question(instruction: str, known: Mapping[str, Any], form: str = "") -> str:
    """The text of a question: the instruction, what is known, as JSON, and the form of the answer
    where that is not JSON."""
    parts = instruction, text_of_json(known) if known else "", form
    return "\n\n".join(part for part in parts if part)


def text_of_answer(value: Any) -> str:
    """A JSON value as models write one, with spaces: small models do worse when they are shown
    another form."""
    return _sendable(json.dumps(value, ensure_ascii=False))


def text_of_json(value: Any) -> str:
    """A JSON value as it is written in a prompt."""
    try:
        return to_json(value).decode()
    except PydanticSerializationError:  # half a surrogate pair, which JSON can escape
        return _sendable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


_NOTHING: Mapping[str, Any] = {}
_SCALARS = frozenset({str, int, bool, NoneType})
_SECRETS = SecretStr, SecretBytes, Secret


def _sendable(text: str) -> str:
    if text.isascii():
        return text
    # Half a surrogate pair cannot be sent as text, but its escape in JSON can.
    return text.encode("utf-8", "backslashreplace").decode()


def seen_of(node: Node) -> Any:
    """What a model sees of a node, as JSON."""
    cls = type(node)
    return _seen(cls, node, shown_fields(cls))


def _known_nodes(source: Node | None) -> dict[str, Any]:
    """What a model sees of the nodes before a question: those of the scene and the previous one."""
    now = scene.get()
    known: dict[str, Any] = {}
    if now.shown or now.omitted:
        before: list[Any] = [{type(node).__name__: seen_of(node)} for node in now.shown]
        if now.omitted:
            steps = "1 earlier step is" if now.omitted == 1 else f"{now.omitted} earlier steps are"
            before.insert(0, f"({steps} left out)")
        known["before"] = before
    if source is not None:
        known[type(source).__name__] = seen_of(source)
    return known


def nodes_that_fit(nodes: Sequence[Node], limit: int) -> tuple[Node, ...]:
    """The newest of some nodes whose text in a prompt has at most `limit` characters."""
    left = limit
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        left -= len(text_of_json({type(node).__name__: seen_of(node)}))
        if left < 0:
            return tuple(nodes[index + 1 :])
    return tuple(nodes)


def context_of(cls: type[Node], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What a model sees, as JSON, of the values that were resolved for a node to be filled."""
    names = shown_fields(cls) & resolved.keys()
    # Not by `model_construct`, which makes defaults for all that is not there.
    shell = cls.__new__(cls)
    hold(shell, dict(resolved), None, set(resolved))
    if cls.__pydantic_decorators__.model_serializers:  # these need the whole node
        values = {n: resolved[n] for n in resolved if n in names}
        return _jsonable(values, f"the context of {cls.__name__}", shell)
    return _seen(cls, shell, names)


def _seen(cls: type[Node], node: Node, names: frozenset[str]) -> Any:
    try:
        return in_order(_dumped(node, names), node)
    except Exception as error:  # serializers and computed fields are code of the node's own
        place = ".".join([cls.__name__, *_failing_field(cls, node, names)])
        fix = (
            "annotate the field with a type that JSON can express, or leave it out with "
            "Field(exclude=True)"
        )
        if isinstance(error, UnicodeDecodeError) or "utf-8" in text_of(error):
            fix = (
                'encode bytes that are no text with model_config = ConfigDict(ser_json_bytes="'
                'base64", val_json_bytes="base64"), or leave them out with Field(exclude=True)'
            )
        raise _not_json(place, error, fix) from error


def _dumped(node: Node, names: AbstractSet[str]) -> Any:
    return type(node).__pydantic_serializer__.to_python(
        node, mode="json", include=set(names), by_alias=False, warnings=False
    )


def _failing_field(cls: type[Node], node: Node, names: frozenset[str]) -> list[str]:
    """The first field that fails by itself, if any."""
    for name in (n for n in cls.__pydantic_fields__ if n in names):
        try:
            _dumped(node, {name})
        except Exception:  # a serializer of the user's may raise anything
            return [name]
    return []


def _jsonable(values: Mapping[str, Any], what: str, holder: Node | None = None) -> dict[str, Any]:
    """Values by name as JSON, those of fields of a `holder` as the model sees these."""
    values = dict(values)
    try:
        dumped = to_jsonable_python(values, by_alias=False)
        if holder is None:
            return in_order(dumped, values)
        return dict(sorted(in_order(dumped, holder).items()))
    except Exception as error:
        raise _not_json(what, error, "give it values that JSON can express") from error


def _not_json(what: str, error: Exception, fix: str) -> BaeLMError:
    return BaeLMError(
        f"{what} cannot be shown to the LM as JSON",
        code="bae-lm-prompt",
        sent=False,
        cause=error,
        fix=fix,
    )


# Masks in the place of hidden values. And one order for what has none of its own, so that equal
# values make equal prompts: sets, the keys of dicts, and fields that were set in another order than
# declared.


def in_order(dumped: Any, value: Any, sorts: bool = True, clear: bool = False) -> Any:
    """`dumped`, which is `value` as JSON, as a model sees it: with masks in the place of hidden
    parts, unless `clear`, and in one order wherever the value has none, if it `sorts`."""
    if value is not None and isinstance(value, RootModel):
        veil = None if clear else veil_of(cast(type, type(cast(object, value))))
        if veil is not None and veil.masked:
            return MASK
        value = cast(Any, value).root
    if clear and isinstance(value, _SECRETS):
        return to_jsonable_python(cast(Any, value).get_secret_value(), by_alias=False)
    if isinstance(dumped, float):
        return dumped if isfinite(dumped) else str(dumped)
    if isinstance(dumped, list):
        listed = cast(list[Any], dumped)
        found = [
            in_order(each, of, sorts, clear)
            for each, of in zip(listed, _held(value, listed), strict=True)
        ]
        is_set = sorts and isinstance(value, AbstractSet)
        return sorted(found, key=json.dumps) if is_set else found
    if not isinstance(dumped, dict):
        return dumped
    items = cast(dict[str, Any], dumped)
    if isinstance(value, BaseModel):
        cls = type(value)
        declared = [*cls.__pydantic_fields__, *cls.__pydantic_computed_fields__]
        return _fields_in_order(items, declared, value, sorts, clear)
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
        return _fields_in_order(items, names, value, sorts, clear)
    held: Iterable[Any] = _held(value.values() if isinstance(value, Mapping) else None, items)
    entries = {
        key: in_order(items[key], of, sorts, clear) for key, of in zip(items, held, strict=True)
    }
    has_order = not isinstance(value, Mapping) or isinstance(value, OrderedDict)
    return entries if has_order or not sorts else dict(sorted(entries.items()))


def _held(value: Any, dumped: Collection[Any]) -> Iterable[Any]:
    """The values that were dumped, as far as they can be told apart."""
    same = isinstance(value, Collection) and len(cast(Collection[Any], value)) == len(dumped)
    return cast(Iterable[Any], value) if same else [None] * len(dumped)


def _fields_in_order(
    dumped: dict[str, Any], declared: list[str], holder: Any, sorts: bool, clear: bool
) -> dict[str, Any]:
    cls: type = type(cast(object, holder))
    veil = veil_of(cls)
    if veil is None and not clear:
        is_plain = all(type(value) in _SCALARS for value in dumped.values())
        if is_plain and list(dumped) == declared:
            return dumped
    names = list(dumped)
    if sorts:
        names = [name for name in declared if name in dumped]
        names += sorted(dumped.keys() - set(names))  # extra ones
    found: dict[str, Any] = {}
    for name in names:
        value, reveals = dumped[name], clear
        if veil is not None and not clear:
            if name in veil.masked:
                found[name] = None if value is None else MASK
                continue
            reveals = name in veil.revealed
        # Only what holds something is looked up: a computed field is computed again by that.
        looks = isinstance(value, list | dict) or reveals or (veil is not None and veil.looks)
        held = getattr(holder, name, None) if looks else None
        # A serializer of its own chooses the order, and what of a value is shown on purpose.
        is_own = looks and _is_serialized(cls, name)
        found[name] = in_order(
            value, None if reveals and is_own else held, sorts and not is_own, reveals
        )
    return found


def _is_serialized(cls: Any, name: str) -> bool:
    """Whether a field has a serializer of its own."""
    if not issubclass(cls, BaseModel):
        return False
    named = [s.info.fields for s in cls.__pydantic_decorators__.field_serializers.values()]
    info = cls.__pydantic_fields__.get(name)
    own = [] if info is None else info.metadata
    by_type = any(isinstance(each, PlainSerializer | WrapSerializer) for each in own)
    return by_type or any(name in names or "*" in names for names in named)
