"""Prompts, the same for all backends: the class name as the instruction, what is known as JSON, and
the schema of the answer beside it. Equal input gives an equal prompt, to the letter."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_jsonable_python

from bae.exceptions import BaeLMError
from bae.lm.backend import Prompt, Question, Turn
from bae.lm.ordering import ordered
from bae.lm.schemas import fill_schema, route_schema, shown_fields

if TYPE_CHECKING:
    from bae.node import Node

SYSTEM = (
    "You carry out one step of a program. The first line says what to make. The JSON after it is "
    'what is known; values under "context" were looked up for this step. Answer with one JSON '
    "object that fits the schema you are given, and with nothing else."
)
CHOOSE = "Choose what comes next."
CHOOSE_AND_MAKE = "Choose what comes next, and make it."
OR_STOP = '"None" is to stop here.'


def fill_prompt(
    target: type[Node],
    fields: tuple[str, ...],
    resolved: Mapping[str, Any],
    instruction: str,
    source: Node | None,
    turns: tuple[Turn, ...] = (),
) -> Prompt:
    """Ask for some fields of a node."""
    known = {} if source is None else {type(source).__name__: seen_of(source)}
    if resolved:
        known["context"] = context_of(target, resolved)
    return Prompt(
        system=SYSTEM,
        text=text_of_question(instruction, known),
        schema=fill_schema(target, fields),
        name=re.sub(r"[^A-Za-z0-9_-]", "_", target.__name__)[:64],
        question=Question(
            target=target,
            fields=fields,
            resolved=resolved,
            instruction=instruction,
            source=source,
        ),
        turns=turns,
    )


def choice_prompt(
    names: Mapping[str, type[Node] | type[None]],
    fillable: Sequence[type[Node]],
    source: Node | None,
    context: Mapping[str, Any] | None,
    turns: tuple[Turn, ...] = (),
) -> Prompt:
    """Ask for one of the names, and for the fields of those that can be filled at once."""
    known: dict[str, Any] = {}
    if source is not None:
        known[type(source).__name__] = seen_of(source)
    if context is not None:
        known["context"] = _jsonable(context, "the context of a choice")
    instruction = choice_instruction(tuple(names.values()), make=bool(fillable))
    options = {
        name: cast("type[Node]", cls) if cls in fillable else None for name, cls in names.items()
    }
    return Prompt(
        system=SYSTEM,
        text=text_of_question(instruction, known),
        schema=route_schema(options),
        name="Choice",
        question=Question(
            types=tuple(names.values()),
            fillable=tuple(fillable),
            context=context,
            source=source,
        ),
        turns=turns,
    )


def choice_instruction(types: Sequence[type[Node] | type[None]], *, make: bool = False) -> str:
    """What a model is told that is to choose among `types`, and to `make` the chosen one too."""
    told = CHOOSE_AND_MAKE if make else CHOOSE
    return f"{told} {OR_STOP}" if NoneType in types else told


def text_of_question(instruction: str, known: Mapping[str, Any]) -> str:
    """The text of a question: the instruction, and what is known, as JSON values, after it."""
    return f"{instruction}\n\n{text_of_json(known)}" if known else instruction


def text_of_answer(value: Any) -> str:
    """A JSON value as models write one, with spaces: a small model that is shown another form does
    worse at what stands in it."""
    return _sendable(json.dumps(value, ensure_ascii=False))


def text_of_json(value: Any) -> str:
    """A JSON value as it stands in a prompt."""
    return _sendable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _sendable(said: str) -> str:
    # Half a character is no text that can be sent, but in JSON its escape is.
    return said.encode("utf-8", "backslashreplace").decode()


def names_of(types: Sequence[type[Node] | type[None]]) -> dict[str, type[Node] | type[None]]:
    """The types by the name a model knows them by: the class name, numbered where two share one."""
    names: dict[str, type[Node] | type[None]] = {}
    for cls in types:
        name = "None" if cls is NoneType else cls.__name__
        number = 1
        while (name if number == 1 else f"{name}_{number}") in names:
            number += 1
        names[name if number == 1 else f"{name}_{number}"] = cls
    return names


def seen_of(node: Node) -> Any:
    """What a model sees of a node, as JSON."""
    return _seen(type(node), node, shown_fields(type(node)))


def context_of(cls: type[Node], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What a model sees, as JSON, of the values that were looked up for a node to be filled."""
    names = shown_fields(cls) & resolved.keys()
    if cls.__pydantic_decorators__.model_serializers:  # says the whole node, which is not there yet
        values = {n: resolved[n] for n in resolved if n in names}
        return _jsonable(values, f"the context of {cls.__name__}")
    # Not by `model_construct`, which makes defaults for all that is not there.
    shell = cls.__new__(cls)
    for name, value in (
        ("__dict__", dict(resolved)),
        ("__pydantic_fields_set__", set(resolved)),
        ("__pydantic_extra__", None),
        ("__pydantic_private__", None),
    ):
        object.__setattr__(shell, name, value)
    return _seen(cls, shell, names)


def _seen(cls: type[Node], node: Node, names: frozenset[str]) -> Any:
    try:
        said = cls.__pydantic_serializer__.to_python(
            node,
            mode="json",
            include=set(names),
            by_alias=False,
            warnings=False,
            fallback=_older,
        )
        return ordered(said, node)
    except Exception as error:  # serializers and computed fields are code of the node's own
        place = ".".join([cls.__name__, *_unsayable(cls, node, names)])
        fix = "annotate what is no data with its own type, or leave it out with Field(exclude=True)"
        if isinstance(error, UnicodeDecodeError) or "utf-8" in str(error):
            fix = (
                'say bytes that are no text with model_config = ConfigDict(ser_json_bytes="base64",'
                ' val_json_bytes="base64"), or leave them out with Field(exclude=True)'
            )
        raise BaeLMError(
            f"{place} cannot be shown to the LM as JSON",
            code="bae-lm-prompt",
            sent=False,
            cause=error,
            fix=fix,
        ) from error


def _unsayable(cls: type[Node], node: Node, names: frozenset[str]) -> list[str]:
    """The first field that cannot be said, where it is one alone."""
    for name in (n for n in cls.__pydantic_fields__ if n in names):
        try:
            cls.__pydantic_serializer__.to_python(
                node, mode="json", include={name}, warnings=False, fallback=_older
            )
        except Exception:
            return [name]
    return []


def _jsonable(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    values = dict(values)
    try:
        return ordered(to_jsonable_python(values, by_alias=False, fallback=_older), values)
    except Exception as error:
        raise BaeLMError(
            f"{what} cannot be shown to the LM as JSON",
            code="bae-lm-prompt",
            sent=False,
            cause=error,
            fix="give it values that JSON can say",
        ) from error


def _older(value: Any) -> Any:
    """What older versions of pydantic do not know how to say, where nothing declares its type."""
    if isinstance(value, deque):
        return list(cast("deque[Any]", value))
    raise TypeError(f"{type(value).__name__} has no JSON")
