"""What somebody types for a field becomes a value of it: JSON where the field takes that, and else
the text as it stands. `node.py` reads --set with it, `questions.py` what is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic_core import to_json

from bae.assignable import type_name, union_members
from bae.cli.start.literals import Twice, exactly, loads, plainly
from bae.draft import validated
from bae.exceptions import describe

if TYPE_CHECKING:
    from bae.node import Node


class Misfit(Exception):
    """What was typed is no value of the field; the message says why."""


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed: `said` as JSON has it, and the `value` that the field makes of that."""

    said: Any
    value: Any

    def given_to(self, cls: type[Node], name: str) -> Any:
        """What to hand to somebody who validates it once more: as it was said, where the field
        takes that outside of JSON too."""
        said = plainly(self.said)
        try:
            validated(cls, {name: said})
        except Exception:  # validators may raise anything; what was made of it did fit
            return self.value
        return said


def read(cls: type[Node], name: str, text: str) -> Typed:
    """What `text` says for the field `name`. Raises `Misfit`."""
    annotation = cls.__pydantic_fields__[name].annotation
    why: Exception | None = None
    fitting: list[Typed] = []
    for said in _readings(text, annotation):
        try:
            fitting.append(_typed(cls, name, said))
        except Exception as error:  # validators may raise anything, at what they do not expect
            why = error
    if not fitting:
        try:
            loads(text)
        except Twice as twice:
            raise Misfit(str(twice)) from None
        except ValueError:
            pass
        raise Misfit(_why(why, name))
    # A field whose validator looks at other fields takes all there is until the node is whole.
    return next((each for each in fitting if _is_declared(annotation, each.said)), fitting[0])


def reads_json(cls: type[Node], name: str, said: Any) -> Typed:
    """A value of JSON for the field `name`, as `literals.loads` has read it. Raises `Misfit`."""
    try:
        return _typed(cls, name, said)
    except Exception as error:
        raise Misfit(_why(error, name)) from error


def _typed(cls: type[Node], name: str, said: Any) -> Typed:
    read = partial(validated, cls, said=frozenset({name}))
    return Typed(*exactly(said, lambda each: read({name: each})[name]))


def choices_of(annotation: Any) -> list[str]:
    """What may be typed where only a few values are allowed: those of a Literal or an Enum."""
    found: list[str] = []
    for member in union_members(annotation):
        if get_origin(member) is Literal:
            found.extend(spelled(value) for value in get_args(member))
        elif isinstance(member, type) and issubclass(member, Enum):
            found.extend(spelled(each) for each in member)
        elif member is not NoneType:
            return []
    return list(dict.fromkeys(found))


def is_yes_or_no(annotation: Any) -> bool:
    """Whether a field is true or false, or perhaps nothing."""
    return {each for each in union_members(annotation) if each is not NoneType} == {bool}


def wanted(annotation: Any) -> str:
    """What may be typed, in a few words: `yes or no`, `red | blue`, `1 (LOW) | 2 (HIGH)`, `int`."""
    if is_yes_or_no(annotation):
        return "yes or no"
    names = {spelled(each): each.name for each in _members(annotation)}
    choices = [
        each if names.get(each, each).lower() == each.lower() else f"{each} ({names[each]})"
        for each in choices_of(annotation)
    ]
    if choices:
        return " | ".join(choices)
    named = type_name(annotation)
    text = [each for each in union_members(annotation) if each is not NoneType]
    if text == [str]:
        return "text"
    return f"{named}, as JSON" if _is_structured(text) else named


def _readings(text: str, annotation: Any) -> Iterator[Any]:
    """What a text may mean, the likeliest first."""
    if is_yes_or_no(annotation) and text.strip().lower() in _YES | _NO:
        yield text.strip().lower() in _YES
    text = _meant(text, choices_of(annotation)) or text
    with suppress(ValueError):
        yield loads(text)
    yield text
    # The name of a member comes last: it may be the value of another.
    members = {each.name: each for each in _members(annotation)}
    named = _meant(text, list(members))
    if named is not None:
        with suppress(ValueError):
            yield loads(to_json(members[named].value).decode())


def _meant(text: str, offered: list[str]) -> str | None:
    """Which of several words somebody has typed, in whatever case."""
    word = text.strip()
    if word in offered:
        return word
    return next((each for each in offered if each.lower() == word.lower()), None)


def _members(annotation: Any) -> list[Enum]:
    """The members of the enums that a field takes."""
    found: list[Enum] = []
    for kind in union_members(annotation):
        if isinstance(kind, type) and issubclass(kind, Enum):
            found.extend(kind)
    return found


_YES = frozenset({"y", "yes"})
_NO = frozenset({"n", "no"})


def _is_declared(annotation: Any, said: Any) -> bool:
    """Whether JSON is of the declared type, whatever validators say."""
    from pydantic import ConfigDict, TypeAdapter

    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except Exception:  # a model has its own settings, and must be given none
        try:
            adapter = TypeAdapter(annotation)
        except Exception:  # a type that Pydantic has no schema for: the field alone can tell
            return True
    try:
        adapter.validate_json(json.dumps(said))
    except Exception:  # it is of another type, or a validator inside it raises
        return False
    return True


def _is_structured(members: list[Any]) -> bool:
    """Whether a value is a list, an object or the like, which only JSON can say."""
    from pydantic import BaseModel

    for member in members:
        kind = get_origin(member) or member
        if isinstance(kind, type) and issubclass(
            kind, list | tuple | set | frozenset | dict | BaseModel
        ):
            return True
    return False


def spelled(value: Any) -> str:
    """A value of a Literal, or a member of an Enum, as it is typed."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def _why(error: Exception | None, name: str) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return "it is no value of the field" if error is None else describe(error)
    said: list[str] = []
    for each in error.errors(include_url=False):
        place = [str(part) for part in each["loc"]]
        if place[:1] == [name]:
            place = place[1:]
        said.append(f"{'.'.join(place)}: {each['msg']}" if place else each["msg"])
    return "; ".join(said)
