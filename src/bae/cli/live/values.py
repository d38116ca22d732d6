"""Values in a few characters, safe to put on a terminal: cut short before they are written out,
secrets left out, nothing in them that a terminal would obey."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from itertools import islice
from typing import Any, Final, cast

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from bae.cli.texts import WITHHELD, cut, in_one_line, quoted
from bae.lm.http import without_password
from bae.node import Node

LONGEST: Final = 400
"""Characters after which a value is cut, however wide the terminal is."""
_DEEPEST: Final = 5
_BRACKETS: Final[dict[type[Any], str]] = {
    list: "[]",
    tuple: "()",
    set: "{}",
    frozenset: "{}",
    deque: "[]",
    dict: "{}",
}


class Shown:
    """A value that may have to be shown, and its text once it was: worked out where it is drawn,
    not where the run waits. One that is `hidden` is let go of at once."""

    __slots__ = ("_model", "_text", "_value")

    def __init__(self, value: Any, *, hidden: bool = False) -> None:
        self._model = ""
        self._value = None if hidden else value
        self._text = WITHHELD if hidden else None

    @property
    def text(self) -> str:
        """The value in one line."""
        value = self._value  # looked at first: it is gone once the text is there
        if self._text is None:
            if isinstance(value, BaseModel) and _shows_its_fields(type(value)):
                self._model = type(value).__name__
            self._text = text_of(value)
            self._value = None
        return self._text

    @property
    def inline(self) -> str:
        """The same among others: a model with its name around it."""
        text = self.text
        return f"{self._model}({text})" if self._model else text


def text_of(value: Any, longest: int = LONGEST) -> str:
    """A value in one line of at most so many characters. A model is shown without its name, as its
    fields."""
    try:
        if isinstance(value, BaseModel) and _shows_its_fields(type(value)):
            said = _joined(_model_fields(value, _DEEPEST), " ", longest)
        else:
            said = _text(value, _DEEPEST, longest)
    except Exception:  # whatever a class does when it is looked at
        said = f"<{type(value).__name__}>"
    return cut(in_one_line(said), longest)


def is_hidden(info: FieldInfo | None) -> bool:
    """Whether a field is not to be shown at all: it has `repr=False`."""
    return info is not None and not info.repr


def _text(value: Any, deeper: int, longest: int) -> str:
    kind = cast("type[Any]", type(value))
    if isinstance(value, str) and kind.__repr__ is str.__repr__:
        # The end of a URL may be further on, so that what is cut off is cut off afterwards.
        return quoted(without_password(value[: 4 * longest])[: longest + 1])
    if isinstance(value, bytes | bytearray):
        return repr(bytes(value[: longest + 1]))
    if isinstance(value, int) and value.bit_length() >= 1000:
        return f"<int of {value.bit_length()} bits>"
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return WITHHELD
    if isinstance(value, type):
        return cast("type[Any]", value).__name__
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    base = next((each for each in _BRACKETS if kind.__repr__ is each.__repr__), None)
    if base is not None:
        opening, closing = _BRACKETS[base]
        parts = _items(value, deeper, longest) if deeper else ["…"]
        return f"{opening}{_joined(parts, ', ', longest)}{closing}"
    if isinstance(value, BaseModel) and _shows_its_fields(kind):
        parts = _model_fields(value, deeper) if deeper else ["…"]
        return f"{kind.__name__}({_joined(parts, ', ', longest)})"
    if is_dataclass(value) and kind.__dataclass_params__.repr:
        held = (
            (each.name, getattr(value, each.name, ...)) for each in fields_of(value) if each.repr
        )
        parts = _named(held, deeper) if deeper else ["…"]
        return f"{kind.__name__}({_joined(parts, ', ', longest)})"
    if kind.__repr__ is object.__repr__:
        return f"<{kind.__name__}>"
    try:
        shown = str(value) if kind.__module__ in _TRUSTED else repr(value)
    except Exception:
        return f"<{kind.__name__}>"
    return cut(without_password(shown), longest)


_TRUSTED: Final = ("datetime", "decimal", "pathlib", "uuid", "ipaddress", "pydantic_core")
"""Modules of classes that are shown as their text."""


def _items(value: Any, deeper: int, longest: int) -> Iterator[str]:
    if isinstance(value, dict):
        for key, held in islice(cast("dict[Any, Any]", value).items(), longest + 1):
            yield f"{_text(key, deeper - 1, longest)}: {_text(held, deeper - 1, longest)}"
    else:
        for each in islice(value, longest + 1):
            yield _text(each, deeper - 1, longest)


def _model_fields(model: BaseModel, deeper: int) -> Iterator[str]:
    declared = type(model).__pydantic_fields__
    held = (
        (name, value)
        for name, value in model.__dict__.items()
        if name in declared and not is_hidden(declared[name])
    )
    yield from _named(held, deeper)
    yield from _named((model.__pydantic_extra__ or {}).items(), deeper)


def _named(held: Iterable[tuple[str, Any]], deeper: int) -> Iterator[str]:
    for name, value in held:
        yield f"{name}={_text(value, deeper - 1, LONGEST)}"


def _joined(parts: Iterable[str], between: str, longest: int) -> str:
    """As many parts as there is room for: the rest is not even looked at."""
    said: list[str] = []
    length = 0
    for part in parts:
        if length > longest:
            said.append("…")
            break
        said.append(part)
        length += len(part) + len(between)
    return between.join(said)


def _shows_its_fields(kind: type[Any]) -> bool:
    """Whether a model shows its fields; one that shows itself otherwise may have a reason to."""
    return (
        kind.__repr__ is BaseModel.__repr__
        and kind.__str__ is BaseModel.__str__
        and kind.__repr_args__ in (BaseModel.__repr_args__, Node.__repr_args__)
    )
