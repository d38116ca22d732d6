"""Nodes and values as a model sees them: JSON in a fixed order, with masks in place of hidden
parts. Equal values make equal prompts."""

from __future__ import annotations

import json
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

from bae.core_schemas import computed_schemas, field_schema, field_schemas
from bae.draft import hold
from bae.exceptions import BaeLMError, NodeError, text_of
from bae.file_proof import file_in
from bae.files import in_use, is_reference
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.schemas import has_schema
from bae.secrets import MASK, veil_of
from bae.tools import ToolCall

if TYPE_CHECKING:
    from bae.language_model import Scene
    from bae.secrets import Copies
    from bae.turns import Messages

T = TypeVar("T")

_SCALARS = frozenset({str, int, bool, NoneType})
_SECRETS = SecretStr, SecretBytes, Secret
_KNOWN = "__bae_prompts__"


def once(cls: type[BaseModel], key: object, make: Callable[[], T]) -> T:
    """The result of `make` for a class, computed on first use and stored on the class."""
    try:
        return cls.__dict__[_KNOWN][key]
    except KeyError:
        pass
    if _KNOWN not in cls.__dict__:
        type.__setattr__(cls, _KNOWN, {})
    value = cls.__dict__[_KNOWN][key] = make()
    return value


def shown_fields(cls: type[Node]) -> frozenset[str]:
    """The fields that a model may see as JSON, including computed fields. A field is left out if
    JSON cannot express its value, such as a client, or if it has the turns of a conversation."""

    def find() -> frozenset[str]:
        turns = plan_of(cls, strict=True).turns
        schemas = field_schemas(cls) | computed_schemas(cls)
        return frozenset(
            name
            for name, schema in schemas.items()
            if has_schema(schema, "serialization") and (turns is None or name != turns.name)
        )

    return once(cls, "shown", find)


def asked_fields(cls: type[Node]) -> tuple[str, ...]:
    """The plain fields that a model is asked for. A field is left out if it has a default and a
    type that JSON cannot express. If one field is in plain text, the model is asked for no
    other."""

    def find() -> tuple[str, ...]:
        plan = plan_of(cls, strict=True)
        for problem in plan.problems:
            if problem.code == "bae-text-not-alone":
                message = f"{problem.place}: {problem.message}"
                raise NodeError(message, node_type=cls, code=problem.code, fix=problem.fix)
        return tuple(
            f.name
            for f in plan.plain
            if f.fills != "calls"
            if f.required or f.fills == "text" or _is_askable(field_schema(cls, f.name))
        )

    return once(cls, "asked", find)


def _is_askable(schema: Any) -> bool:
    """Whether a model can answer with a value of this type: JSON can express it, and it is no
    file."""
    return has_schema(schema, "validation") and not file_in(schema)


def offers_tools(cls: type[Node]) -> bool:
    """Whether a model may call tools before it fills a node."""
    return once(cls, "tools", lambda: plan_of(cls).tools is not None)


def text_of_answer(value: Any) -> str:
    """A JSON value as models write it, with spaces: small models do worse with another form."""
    return _sendable(json.dumps(value, ensure_ascii=False))


def text_of_json(value: Any) -> str:
    """The text of a JSON value in a prompt, in compact form."""
    try:
        return to_json(value).decode()
    except PydanticSerializationError:  # half a surrogate pair, which JSON can escape
        return _sendable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _sendable(text: str) -> str:
    if text.isascii():
        return text
    # Half a surrogate pair cannot be sent as text, but its escape in JSON can.
    return text.encode("utf-8", "backslashreplace").decode()


def _fields_in_clear(cls: type[Node]) -> tuple[str, ...]:
    """The fields of a class in the order of their declaration, if none of them is hidden."""

    def find() -> tuple[str, ...]:
        declared = *cls.__pydantic_fields__, *cls.__pydantic_computed_fields__
        return declared if veil_of(cls) is None else ()

    return once(cls, "in clear", find)


def seen_of(node: Node, copies: Copies | None = None) -> Any:
    """A node as a model sees it, as JSON. `copies` are the fields of each class that may hold a
    copy of a secret."""
    cls = type(node)
    return _seen_values(cls, node, shown_fields(cls), copies)


def context_of(
    cls: type[Node], resolved: Mapping[str, Any], copies: Copies | None = None
) -> dict[str, Any]:
    """The resolved values of a node before it is filled: the JSON that a model sees."""
    names = shown_fields(cls) & resolved.keys()
    # Not by `model_construct`, which makes defaults for all absent fields.
    shell = cls.__new__(cls)
    hold(shell, dict(resolved), None, set(resolved))
    if cls.__pydantic_decorators__.model_serializers:  # these need the whole node
        values = {n: resolved[n] for n in resolved if n in names}
        return as_json(values, f"the context of {cls.__name__}", copies, shell)
    return _seen_values(cls, shell, names, copies)


def _seen_values(cls: type[Node], node: Node, names: frozenset[str], copies: Copies | None) -> Any:
    try:
        dumped = _dumped(node, names)
        if type(dumped) is dict and not (copies and cls in copies):
            values = cast(dict[str, Any], dumped)
            if _SCALARS.issuperset(map(type, values.values())):
                in_clear = filter(values.__contains__, _fields_in_clear(cls))
                if [*values] == [*in_clear]:
                    return values
        return in_order(dumped, node, copies=copies)
    except Exception as error:  # serializers and computed fields are the node's own code
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
        except Exception:  # a user's serializer may raise anything
            return [name]
    return []


def as_json(
    values: Mapping[str, Any], what: str, copies: Copies | None, holder: Node | None = None
) -> dict[str, Any]:
    """Values by name, as JSON. If they are fields of a `holder`, they are as the model sees
    them."""
    values = dict(values)
    try:
        dumped = to_jsonable_python(values, by_alias=False)
        if holder is None:
            return in_order(dumped, values, copies=copies)
        return dict(sorted(in_order(dumped, holder, copies=copies).items()))
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


def known_nodes(previous: Node | None, scene: Scene) -> dict[str, Any]:
    """The earlier nodes of the scene and the previous node, as a model sees them in a question."""
    known: dict[str, Any] = {}
    if scene.shown or scene.omitted:
        before: list[Any] = [
            {type(node).__name__: seen_of(node, scene.hidden)} for node in scene.shown
        ]
        if scene.omitted:
            many = (
                "1 earlier step is" if scene.omitted == 1 else f"{scene.omitted} earlier steps are"
            )
            before.insert(0, f"({many} left out)")
        known["before"] = before
    if previous is not None:
        known[type(previous).__name__] = seen_of(previous, scene.hidden)
    return known


def shown_turns(
    scene: Scene, previous: Node | None, *asked: tuple[type[Node], Mapping[str, Any]]
) -> Messages | None:
    """The earlier turns of the thread that a question shows, or None. They are in the resolved
    values of a node that the question asks for, otherwise in the newest shown node that has
    turns."""
    for cls, values in asked:
        field = plan_of(cls).turns
        if field is not None and field.name in values:
            return values[field.name]
    for node in (previous, *reversed(scene.shown)):
        field = None if node is None else plan_of(type(node)).turns
        if field is not None and field.name in node.__dict__:
            return node.__dict__[field.name]
    return None


def not_shown(
    cls: type[Node],
    context: dict[str, Any],
    known: Mapping[str, Any],
    previous: Node | None,
    scene: Scene,
) -> dict[str, Any]:
    """The context of a class, without values that the question shows already. These are values that
    were recalled from a node in the same question, if the node shows them without a mask. Recalled
    tool calls have their results if their node shows the results."""
    origins = scene.origins.get(cls) if scene.origins else None
    if not origins:
        return context
    context = context | {
        name: [_with_outcome(call.model_dump(mode="json")) for call in getattr(node, field)]
        for name, (node, field) in origins.items()
        if name in context and _shows_results(type(node), field)
    }
    shown: dict[int, Any] = {}
    if scene.shown:
        entries = known["before"][-len(scene.shown) :]
        shown = {
            id(node): entry[type(node).__name__]
            for node, entry in zip(scene.shown, entries, strict=True)
        }
    if previous is not None:
        shown[id(previous)] = known[type(previous).__name__]
    return {
        name: value
        for name, value in context.items()
        if name not in origins
        or not _is_shown(value, *origins[name], shown)
        # An earlier node shows a placeholder in place of a file, so the value is shown here.
        or (in_use() and origins[name][0] is not previous and _has_file(value))
    }


def _has_file(value: Any) -> bool:
    """Whether JSON has a reference to a file."""
    if isinstance(value, list):
        return any(map(_has_file, cast("list[Any]", value)))
    if not isinstance(value, dict):
        return False
    return is_reference(value) or any(map(_has_file, cast("dict[str, Any]", value).values()))


def _is_shown(value: Any, node: Node, field: str, shown: Mapping[int, Any]) -> bool:
    """Whether the node that a value was recalled from shows the same value, as JSON."""
    there = shown.get(id(node))
    if field:
        there = cast(dict[str, Any], there).get(field) if isinstance(there, dict) else None
    text = text_of_json(value)
    return there is not None and text_of_json(there) == text and MASK not in text


def text_of_question(instruction: str, known: Mapping[str, Any], form: str = "") -> str:
    """The text of a question: the instruction, the known values as JSON, and the form of the answer
    if that is not JSON."""
    parts = instruction, text_of_json(known) if known else "", form
    return "\n\n".join(part for part in parts if part)


def nodes_that_fit(nodes: Sequence[Node], limit: int, copies: Copies | None) -> tuple[Node, ...]:
    """The newest nodes that fit: together, their texts in a prompt have at most `limit`
    characters."""
    left = limit
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        left -= len(text_of_json({type(node).__name__: seen_of(node, copies)}))
        if left < 0:
            return tuple(nodes[index + 1 :])
    return tuple(nodes)


# Masks replace hidden values. Sets and the keys of dicts are sorted, and fields are in the order of
# their declaration, so that equal values make equal prompts.


def in_order(
    dumped: Any,
    value: Any,
    sorts: bool = True,
    clear: bool = False,
    copies: Copies | None = None,
) -> Any:
    """`dumped`, the JSON of `value`, as a model sees it. Hidden parts are masked, unless `clear`.
    With `sorts`, values without an order of their own are sorted."""
    if value is not None and isinstance(value, RootModel):
        veil = None if clear else veil_of(cast(type, type(cast(object, value))), copies)
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
            in_order(each, of, sorts, clear, copies)
            for each, of in zip(listed, _shown_values(value, listed), strict=True)
        ]
        is_set = sorts and isinstance(value, AbstractSet)
        return sorted(found, key=json.dumps) if is_set else found
    if not isinstance(dumped, dict):
        return dumped
    items = cast(dict[str, Any], dumped)
    if isinstance(value, BaseModel):
        cls = type(value)
        if cls is ToolCall and not clear:
            return {name: in_order(items[name], None) for name in ("name", "arguments")}
        declared = [*cls.__pydantic_fields__, *cls.__pydantic_computed_fields__]
        return _fields_in_order(items, declared, value, sorts, clear, copies)
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        return _fields_in_order(items, names, value, sorts, clear, copies)
    held: Iterable[Any] = _shown_values(
        value.values() if isinstance(value, Mapping) else None, items
    )
    entries = {
        key: in_order(items[key], of, sorts, clear, copies)
        for key, of in zip(items, held, strict=True)
    }
    has_order = not isinstance(value, Mapping) or isinstance(value, OrderedDict)
    return entries if has_order or not sorts else dict(sorted(entries.items()))


def _shown_values(value: Any, dumped: Collection[Any]) -> Iterable[Any]:
    """The values that were dumped, in their order; None for each if the numbers differ."""
    same = isinstance(value, Collection) and len(cast(Collection[Any], value)) == len(dumped)
    return cast(Iterable[Any], value) if same else [None] * len(dumped)


def _fields_in_order(
    dumped: dict[str, Any],
    declared: list[str],
    holder: Any,
    sorts: bool,
    clear: bool,
    copies: Copies | None,
) -> dict[str, Any]:
    cls: type = type(cast(object, holder))
    veil = veil_of(cls, copies)
    if veil is None and not clear:
        is_plain = all(type(value) in _SCALARS for value in dumped.values())
        if is_plain and list(dumped) == declared:
            return dumped
    turns = _turns_in(cls)
    names = [name for name in dumped if name != turns]
    if sorts:
        extra = sorted({*names}.difference(declared))
        names = [name for name in declared if name in dumped and name != turns] + extra
    ordered: dict[str, Any] = {}
    for name in names:
        value, reveals = dumped[name], clear
        if veil is not None and not clear:
            if name in veil.masked:
                ordered[name] = None if value is None else MASK
                continue
            reveals = name in veil.revealed
        # Look up a value only if it is needed: reading a computed field computes it again.
        looks = isinstance(value, list | dict) or reveals or (veil is not None and veil.looks)
        held = getattr(holder, name, None) if looks else None
        if isinstance(value, list) and _shows_results(cls, name):
            value, held = [*map(_with_outcome, cast("list[Any]", value))], None
        # The serializer of a field decides on the order, and on the shown parts of a value.
        is_own = looks and _is_serialized(cls, name)
        ordered[name] = in_order(
            value, None if reveals and is_own else held, sorts and not is_own, reveals, copies
        )
    return ordered


def _turns_in(cls: type) -> str:
    """The name of the field with the earlier turns, or "". JSON never includes this field."""
    turns = plan_of(cast(Any, cls)).turns if issubclass(cls, Node) else None
    return "" if turns is None else turns.name


def _shows_results(cls: type, name: str) -> bool:
    """Whether the results of the tool calls in a field of a node are shown."""
    field = plan_of(cast(Any, cls)).fields.get(name) if issubclass(cls, Node) else None
    return field is not None and field.shows_results


def _with_outcome(call: Any) -> Any:
    """A tool call with its result or error, and without values that differ from run to run."""
    outcome = "result" if call["error"] is None else "error"
    return {name: call[name] for name in ("name", "arguments", outcome)}


def _is_serialized(cls: Any, name: str) -> bool:
    """Whether a field has a serializer of its own."""
    if not issubclass(cls, BaseModel):
        return False
    named = [s.info.fields for s in cls.__pydantic_decorators__.field_serializers.values()]
    info = cls.__pydantic_fields__.get(name)
    own = [] if info is None else info.metadata
    by_type = any(isinstance(each, PlainSerializer | WrapSerializer) for each in own)
    return by_type or any(name in names or "*" in names for names in named)
