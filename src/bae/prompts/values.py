"""Nodes and values in the form that a model sees: JSON in a fixed order, with masks in place of
hidden parts. Equal values give equal prompts."""

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
    """Return the result of `make`. It is computed on first use, and stored on the class under the
    key."""
    try:
        return cls.__dict__[_KNOWN][key]
    except KeyError:
        pass
    if _KNOWN not in cls.__dict__:
        type.__setattr__(cls, _KNOWN, {})
    value = cls.__dict__[_KNOWN][key] = make()
    return value


def find_visible_fields(cls: type[Node]) -> frozenset[str]:
    """Return the fields that a model may see as JSON, including computed fields. Fields that JSON
    cannot express, such as a client, are left out. So is a field with the turns of a
    conversation."""

    def find() -> frozenset[str]:
        turns = plan_of(cls, strict=True).turns
        schemas = field_schemas(cls) | computed_schemas(cls)
        return frozenset(
            name
            for name, schema in schemas.items()
            if has_schema(schema, "serialization") and (turns is None or name != turns.name)
        )

    return once(cls, "shown", find)


def list_fields_to_fill(cls: type[Node]) -> tuple[str, ...]:
    """Return the plain fields that a model is asked for. A field is left out if it has a default
    and JSON cannot express its type. If one field is in plain text, it is the only field."""

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
    """Return whether a model can answer with a value of this type. JSON must express the type, and
    files are not possible."""
    return has_schema(schema, "validation") and not file_in(schema)


def offers_tools(cls: type[Node]) -> bool:
    """Return whether a model may call tools before it fills a node."""
    return once(cls, "tools", lambda: plan_of(cls).tools is not None)


def text_of_answer(value: Any) -> str:
    """Return JSON in the form that models write, with spaces. Small models do worse with another
    form."""
    return _escape_surrogates(json.dumps(value, ensure_ascii=False))


def text_of_json(value: Any) -> str:
    """Return the compact text of a JSON value for a prompt."""
    try:
        return to_json(value).decode()
    except PydanticSerializationError:  # the text has half a surrogate pair
        return _escape_surrogates(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _escape_surrogates(text: str) -> str:
    """Return the text with escapes in place of half surrogate pairs, which cannot be sent."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _list_unhidden_fields(cls: type[Node]) -> tuple[str, ...]:
    """Return the fields of a class in the order of their declaration. If any field is hidden,
    return nothing."""

    def find() -> tuple[str, ...]:
        declared = *cls.__pydantic_fields__, *cls.__pydantic_computed_fields__
        return declared if veil_of(cls) is None else ()

    return once(cls, "in clear", find)


def show_node(node: Node, copies: Copies | None = None) -> Any:
    """Return a node as JSON in the form that a model sees. `copies` has, for each class, the fields
    that may contain a copy of a secret."""
    cls = type(node)
    return _show_values(cls, node, find_visible_fields(cls), copies)


def context_of(
    cls: type[Node], resolved: Mapping[str, Any], copies: Copies | None = None
) -> dict[str, Any]:
    """Return the resolved values of a node that is not filled yet, as JSON in the form that a model
    sees."""
    names = find_visible_fields(cls) & resolved.keys()
    # `model_construct` would add the defaults of all absent fields.
    shell = cls.__new__(cls)
    hold(shell, dict(resolved), None, set(resolved))
    if cls.__pydantic_decorators__.model_serializers:  # they need the complete node
        values = {n: resolved[n] for n in resolved if n in names}
        return as_json(values, f"the context of {cls.__name__}", copies, shell)
    return _show_values(cls, shell, names, copies)


def _show_values(cls: type[Node], node: Node, names: frozenset[str], copies: Copies | None) -> Any:
    try:
        dumped = _dump(node, names)
        if type(dumped) is dict and not (copies and cls in copies):
            values = cast(dict[str, Any], dumped)
            if _SCALARS.issuperset(map(type, values.values())):
                in_clear = filter(values.__contains__, _list_unhidden_fields(cls))
                if [*values] == [*in_clear]:
                    return values
        return in_order(dumped, node, copies=copies)
    except Exception as error:  # serializers and computed fields are the node's own code
        place = ".".join([cls.__name__, *_find_failing_field(cls, node, names)])
        fix = (
            "annotate the field with a type that JSON can express, or leave it out with "
            "Field(exclude=True)"
        )
        if isinstance(error, UnicodeDecodeError) or "utf-8" in text_of(error):
            fix = (
                'encode bytes that are no text with model_config = ConfigDict(ser_json_bytes="'
                'base64", val_json_bytes="base64"), or leave them out with Field(exclude=True)'
            )
        raise _json_error(place, error, fix) from error


def _dump(node: Node, names: AbstractSet[str]) -> Any:
    return type(node).__pydantic_serializer__.to_python(
        node, mode="json", include=set(names), by_alias=False, warnings=False
    )


def _find_failing_field(cls: type[Node], node: Node, names: frozenset[str]) -> list[str]:
    """Return the first field whose serialization fails by itself, in a list. The list is empty if
    there is no such field."""
    for name in (n for n in cls.__pydantic_fields__ if n in names):
        try:
            _dump(node, {name})
        except Exception:  # a user's serializer may raise anything
            return [name]
    return []


def as_json(
    values: Mapping[str, Any], what: str, copies: Copies | None, holder: Node | None = None
) -> dict[str, Any]:
    """Return values by name as JSON. If they are fields of a `holder`, they have the form that a
    model sees in a node."""
    values = dict(values)
    try:
        dumped = to_jsonable_python(values, by_alias=False)
        if holder is None:
            return in_order(dumped, values, copies=copies)
        return dict(sorted(in_order(dumped, holder, copies=copies).items()))
    except Exception as error:
        raise _json_error(what, error, "give it values that JSON can express") from error


def _json_error(what: str, error: Exception, fix: str) -> BaeLMError:
    return BaeLMError(
        f"{what} cannot be shown to the LM as JSON",
        code="bae-lm-prompt",
        sent=False,
        cause=error,
        fix=fix,
    )


def show_nodes(previous: Node | None, scene: Scene) -> dict[str, Any]:
    """Return the nodes that a question shows, as JSON: the earlier nodes (`scene.shown`)
    under `before`, and the previous node under its class name."""
    known: dict[str, Any] = {}
    if scene.shown or scene.omitted:
        before: list[Any] = [
            {type(node).__name__: show_node(node, scene.hidden)} for node in scene.shown
        ]
        if scene.omitted:
            many = (
                "1 earlier step is" if scene.omitted == 1 else f"{scene.omitted} earlier steps are"
            )
            before.insert(0, f"({many} left out)")
        known["before"] = before
    if previous is not None:
        known[type(previous).__name__] = show_node(previous, scene.hidden)
    return known


def find_turns(
    scene: Scene, previous: Node | None, *asked: tuple[type[Node], Mapping[str, Any]]
) -> Messages | None:
    """Return the earlier turns of the thread that a question shows, or None. A requested node may
    have the turns in its resolved values. Otherwise the newest shown node with turns has them."""
    for cls, values in asked:
        field = plan_of(cls).turns
        if field is not None and field.name in values:
            return values[field.name]
    for node in (previous, *reversed(scene.shown)):
        field = None if node is None else plan_of(type(node)).turns
        if field is not None and field.name in node.__dict__:
            return node.__dict__[field.name]
    return None


def drop_shown_values(
    cls: type[Node],
    context: dict[str, Any],
    known: Mapping[str, Any],
    previous: Node | None,
    scene: Scene,
) -> dict[str, Any]:
    """Return the context of a class without the values that the question already shows. These
    values were recalled from a node that the question shows, and that node shows them without a
    mask. Recalled tool calls include their results if the field of that node shows results."""
    origins = scene.origins.get(cls) if scene.origins else None
    if not origins:
        return context
    context = context | {
        name: [_add_outcome(call.model_dump(mode="json")) for call in getattr(node, field)]
        for name, (node, field) in origins.items()
        if name in context and _shows_results(type(node), field)
    }
    shown_nodes: dict[int, Any] = {}
    if scene.shown:
        entries = known["before"][-len(scene.shown) :]
        shown_nodes = {
            id(node): entry[type(node).__name__]
            for node, entry in zip(scene.shown, entries, strict=True)
        }
    if previous is not None:
        shown_nodes[id(previous)] = known[type(previous).__name__]
    return {
        name: value
        for name, value in context.items()
        if name not in origins
        or not _is_shown(value, *origins[name], shown_nodes)
        # An earlier node shows a placeholder in place of a file, so the context shows the file.
        or (in_use() and origins[name][0] is not previous and _has_file(value))
    }


def _has_file(value: Any) -> bool:
    """Return whether a JSON value contains a reference to a file."""
    if isinstance(value, list):
        return any(map(_has_file, cast("list[Any]", value)))
    if not isinstance(value, dict):
        return False
    return is_reference(value) or any(map(_has_file, cast("dict[str, Any]", value).values()))


def _is_shown(value: Any, node: Node, field: str, shown: Mapping[int, Any]) -> bool:
    """Return whether a question shows the node that the value was recalled from, with the same
    value as JSON."""
    shown_value = shown.get(id(node))
    if field:
        shown_value = (
            cast(dict[str, Any], shown_value).get(field) if isinstance(shown_value, dict) else None
        )
    text = text_of_json(value)
    return shown_value is not None and text_of_json(shown_value) == text and MASK not in text


def text_of_question(instruction: str, known: Mapping[str, Any], form: str = "") -> str:
    """Return the text of a question: the instruction, the known values as JSON, and the form of an
    answer that is not JSON."""
    parts = instruction, text_of_json(known) if known else "", form
    return "\n\n".join(part for part in parts if part)


def nodes_that_fit(nodes: Sequence[Node], limit: int, copies: Copies | None) -> tuple[Node, ...]:
    """Return the newest nodes whose texts in a prompt have at most `limit` characters together."""
    characters_left = limit
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        characters_left -= len(text_of_json({type(node).__name__: show_node(node, copies)}))
        if characters_left < 0:
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
    """Return `dumped`, the JSON of `value`, in the form that a model sees. Hidden parts are masked,
    unless `clear`. With `sorts`, sets, the keys of dicts, and fields are put in a fixed order."""
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
        shown_items = [
            in_order(item, of, sorts, clear, copies)
            for item, of in zip(listed, _match_values(value, listed), strict=True)
        ]
        is_set = sorts and isinstance(value, AbstractSet)
        return sorted(shown_items, key=json.dumps) if is_set else shown_items
    if not isinstance(dumped, dict):
        return dumped
    items = cast(dict[str, Any], dumped)
    if isinstance(value, BaseModel):
        cls = type(value)
        if cls is ToolCall and not clear:
            return {name: in_order(items[name], None) for name in ("name", "arguments")}
        declared = [*cls.__pydantic_fields__, *cls.__pydantic_computed_fields__]
        return _order_fields(items, declared, value, sorts, clear, copies)
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        return _order_fields(items, names, value, sorts, clear, copies)
    sources: Iterable[Any] = _match_values(
        value.values() if isinstance(value, Mapping) else None, items
    )
    entries = {
        key: in_order(items[key], of, sorts, clear, copies)
        for key, of in zip(items, sources, strict=True)
    }
    has_order = not isinstance(value, Mapping) or isinstance(value, OrderedDict)
    return entries if has_order or not sorts else dict(sorted(entries.items()))


def _match_values(value: Any, dumped: Collection[Any]) -> Iterable[Any]:
    """Return the values that `dumped` was made from, in the same order. If the numbers differ,
    return None for every value."""
    same = isinstance(value, Collection) and len(cast(Collection[Any], value)) == len(dumped)
    return cast(Iterable[Any], value) if same else [None] * len(dumped)


def _order_fields(
    dumped: dict[str, Any],
    declared: list[str],
    holder: Any,
    sorts: bool,
    clear: bool,
    copies: Copies | None,
) -> dict[str, Any]:
    """Return the fields of a node, model or dataclass in the form that a model sees. See
    `in_order`."""
    cls: type = type(cast(object, holder))
    veil = veil_of(cls, copies)
    if veil is None and not clear:
        is_plain = all(type(value) in _SCALARS for value in dumped.values())
        if is_plain and list(dumped) == declared:
            return dumped
    turns = _find_turns_field(cls)
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
        source = getattr(holder, name, None) if looks else None
        if isinstance(value, list) and _shows_results(cls, name):
            value, source = [*map(_add_outcome, cast("list[Any]", value))], None
        # A field's own serializer decides on the order and the visible parts of the value.
        is_own = looks and _is_serialized(cls, name)
        ordered[name] = in_order(
            value, None if reveals and is_own else source, sorts and not is_own, reveals, copies
        )
    return ordered


def _find_turns_field(cls: type) -> str:
    """Return the name of the field with the earlier turns, or "". The JSON of a node never includes
    this field."""
    turns = plan_of(cast(Any, cls)).turns if issubclass(cls, Node) else None
    return "" if turns is None else turns.name


def _shows_results(cls: type, name: str) -> bool:
    """Return whether a field of a node shows the results of its tool calls."""
    field = plan_of(cast(Any, cls)).fields.get(name) if issubclass(cls, Node) else None
    return field is not None and field.shows_results


def _add_outcome(call: Any) -> Any:
    """Return a tool call with its result or error, and without values that differ from run to
    run."""
    outcome = "result" if call["error"] is None else "error"
    return {name: call[name] for name in ("name", "arguments", outcome)}


def _is_serialized(cls: Any, name: str) -> bool:
    """Return whether a field has a serializer of its own."""
    if not issubclass(cls, BaseModel):
        return False
    field_names = [s.info.fields for s in cls.__pydantic_decorators__.field_serializers.values()]
    info = cls.__pydantic_fields__.get(name)
    metadata = [] if info is None else info.metadata
    by_type = any(
        isinstance(serializer, PlainSerializer | WrapSerializer) for serializer in metadata
    )
    return by_type or any(name in names or "*" in names for names in field_names)
