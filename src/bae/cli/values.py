"""What is typed for a field becomes a value of it: JSON where the field takes that, and else the
text as it is. `--set`, gates and questions are read with it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from bae.assignable import type_name, union_members
from bae.draft import validated
from bae.exceptions import describe
from bae.node import Node
from bae.secrets import secret_fields

_TEXT: Final = "…"
_YES_OR_NO: Final = {"y": True, "yes": True, "n": False, "no": False}


class Misfit(Exception):
    """What was typed is no value of the field; the message says why."""


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed: `said` as JSON has it, and the `value` that the field makes of that."""

    said: Any
    value: Any

    def given_to(self, cls: type[Node], name: str) -> Any:
        """What to hand on where it is validated once more: as it was said, where the field takes
        that outside of JSON too."""
        try:
            validated(cls, {name: self.said})
        except Exception:  # validators may raise anything; what was made of it did fit
            return self.value
        return self.said


def read(cls: type[Node], name: str, text: str) -> Typed:
    """What `text` says for the field `name`. Raises `Misfit`."""
    why = Misfit("it is no value of the field")
    for said in _readings(text, cls.__pydantic_fields__[name].annotation):
        try:
            return read_json(cls, name, said)
        except Misfit as misfit:
            why = misfit
    raise why


def read_json(cls: type[Node], name: str, said: Any) -> Typed:
    """A value of JSON for the field `name`. Raises `Misfit`."""
    try:
        return Typed(said, validated(cls, {name: said}, said=frozenset({name}))[name])
    except Exception as error:  # validators may raise anything, at what they do not expect
        raise Misfit(_reason(error, name)) from error


def loads(text: str) -> Any:
    """What JSON says. Raises ValueError where it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _readings(text: str, annotation: Any) -> Iterator[Any]:
    """What a text may mean, the likeliest first. Words that are offered are taken in any case."""
    word = text.strip().lower()
    if is_yes_or_no(annotation) and word in _YES_OR_NO:
        yield _YES_OR_NO[word]  # a strict field takes no text
    with suppress(ValueError):
        yield loads(text)
    yield text
    yield from (each for each in choices_of(annotation) if each.lower() == word)
    # The name of a member comes last: it may be the value of another.
    for member in _members(annotation):
        if member.name.lower() == word:
            yield to_jsonable_python(member.value)
    yield text.strip()


def _reason(error: Exception, name: str) -> str:
    if not isinstance(error, ValidationError):
        return describe(error)
    said: list[str] = []
    for each in error.errors(include_url=False):
        place = [str(part) for part in each["loc"]]
        if place[:1] == [name]:
            place = place[1:]
        said.append(f"{'.'.join(place)}: {each['msg']}" if place else each["msg"])
    return "; ".join(said)


# --- what a field takes -------------------------------------------------------------------------


def is_secret(cls: type[Node], name: str) -> bool:
    """Whether what is typed for a field is not to be shown."""
    return name in secret_fields(cls)


def is_yes_or_no(annotation: Any) -> bool:
    """Whether a field is true or false, or perhaps nothing."""
    return {each for each in union_members(annotation) if each is not NoneType} == {bool}


def choices_of(annotation: Any) -> list[str]:
    """What may be typed where only a few values are allowed: those of a Literal or an Enum."""
    found: list[str] = []
    for member in union_members(annotation):
        if get_origin(member) is Literal:
            found.extend(spell_value(value) for value in get_args(member))
        elif isinstance(member, type) and issubclass(member, Enum):
            found.extend(spell_value(each) for each in member)
        elif member is not NoneType:
            return []
    return list(dict.fromkeys(found))


def _members(annotation: Any) -> list[Enum]:
    """The members of the enums that a field takes."""
    found: list[Enum] = []
    for kind in union_members(annotation):
        if isinstance(kind, type) and issubclass(kind, Enum):
            found.extend(kind)
    return found


def describe_type(annotation: Any) -> str:
    """What may be typed, in a few words: `yes or no`, `red | blue`, `1 (LOW) | 2 (HIGH)`, `int`."""
    if is_yes_or_no(annotation):
        return "yes or no"
    names = {spell_value(each): each.name for each in _members(annotation)}
    choices = [
        each if names.get(each, each).lower() == each.lower() else f"{each} ({names[each]})"
        for each in choices_of(annotation)
    ]
    if choices:
        return " | ".join(choices)
    kinds = [each for each in union_members(annotation) if each is not NoneType]
    if kinds == [str]:
        return "text"
    structured = (list, tuple, set, frozenset, dict, BaseModel)
    origins = [get_origin(each) or each for each in kinds]
    if any(isinstance(each, type) and issubclass(each, structured) for each in origins):
        return f"{type_name(annotation)}, as JSON"
    return type_name(annotation)


def spell_value(value: Any) -> str:
    """A value of a Literal, or a member of an Enum, as it is typed."""
    if isinstance(value, Enum):
        value = value.value
    return value if isinstance(value, str) else json.dumps(value, default=str)


def example_of(cls: type[Node], name: str) -> str | None:
    """Something that could be typed for a field, and would be taken where that can be found. For a
    secret there is nothing: a command is copied as it is, and the shell keeps it."""
    if is_secret(cls, name):
        return None
    annotation = cls.__pydantic_fields__[name].annotation
    candidates = ["yes"] if is_yes_or_no(annotation) else choices_of(annotation)[:1]
    if str in union_members(annotation):
        candidates.append(_TEXT)
    for each in (*candidates, _sample(cls, name)):
        with suppress(Misfit):
            read(cls, name, each)
            return each
    return _TEXT


def set_example(cls: type[Node], name: str) -> str:
    """A `--set` that could be typed for a field."""
    return f"--set {shlex.quote(f'{name}={example_of(cls, name) or _TEXT}')}"


def _sample(cls: type[Node], name: str) -> str:
    from bae.testing import sample

    try:
        schema = cls.model_json_schema(by_alias=False)
        made: Any = sample({**schema["properties"][name], "$defs": schema.get("$defs", {})})
    except Exception:  # no JSON schema, or nothing that is known to fit it
        return _TEXT
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)
