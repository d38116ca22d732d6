"""Values in a few characters, safe to put on a terminal: cut short before they are written out,
secrets left out, nothing in them that a terminal would obey, and nobody's own `__repr__` waited
for. `rows.py` and `lines.py` show values through this."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from threading import Thread
from typing import Any, Final, cast

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from bae.cli.texts import WITHHELD, cut, in_one_line, quoted
from bae.lm.http import without_password
from bae.node import Node

LONGEST: Final = 400
"""Characters after which a value is cut, however wide the terminal is."""
PATIENCE: Final = 0.05
"""Seconds that the `__repr__` of a class of somebody's own may take."""
_DEEPEST: Final = 5


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
            if isinstance(value, BaseModel) and _shows_itself_plainly(type(value)):
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
        model = cast(object, value)
        if isinstance(model, BaseModel) and _shows_itself_plainly(type(model)):
            said = _joined(_fields_of_model(model, _DEEPEST), " ", longest)
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
    write = _WRITERS.get(kind.__repr__)
    if write is not None:
        return write(value, deeper, longest)
    if isinstance(value, type):
        return cast("type[Any]", value).__name__
    if kind.__repr__ is object.__repr__:
        return f"<{kind.__name__}>"
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, BaseModel) and _shows_itself_plainly(kind):
        if deeper == 0:
            return f"{kind.__name__}(…)"
        return f"{kind.__name__}({_joined(_fields_of_model(value, deeper), ', ', longest)})"
    if is_dataclass(value) and _is_written_by_dataclass(kind):
        if deeper == 0:
            return f"{kind.__name__}(…)"
        held = (
            (field.name, getattr(value, field.name, ...))
            for field in fields_of(value)
            if field.repr
        )
        return f"{kind.__name__}({_joined(_named(held, deeper), ', ', longest)})"
    if kind.__module__.partition(".")[0] in _TRUSTED:
        return _own(value, longest)
    return _asked(value, kind, longest)


def _string(value: str, deeper: int, longest: int) -> str:
    # The end of a URL may be further on, so that what is cut off is cut off afterwards.
    near = without_password(str.__getitem__(value, slice(4 * longest)))
    return quoted(near[: longest + 1])


def _bytes(value: bytes, deeper: int, longest: int) -> str:
    return repr(bytes(value[: longest + 1]))


def _number(value: int, deeper: int, longest: int) -> str:
    return (
        int.__repr__(value) if value.bit_length() < 1000 else f"<int of {value.bit_length()} bits>"
    )


def _in_brackets(
    opening: str, closing: str, each_of: Callable[[Any], Iterator[Any]]
) -> Callable[[Any, int, int], str]:
    # `each_of` is that of the built-in class: a subclass may go through its items for ever.
    def write(value: Any, deeper: int, longest: int) -> str:
        parts = (_text(each, deeper - 1, longest) for each in each_of(value))
        said = _joined(parts if deeper else iter("…"), ", ", longest)
        return f"{opening}{said}{closing}"

    return write


def _mapping(value: dict[Any, Any], deeper: int, longest: int) -> str:
    parts = (
        f"{_text(key, deeper - 1, longest)}: {_text(each, deeper - 1, longest)}"
        for key, each in dict[Any, Any].items(value)
    )
    said = _joined(parts if deeper else iter("…"), ", ", longest)
    return f"{{{said}}}"


def _fields_of_model(model: BaseModel, deeper: int) -> Iterator[str]:
    declared = type(model).__pydantic_fields__
    held = (
        (name, value)
        for name, value in model.__dict__.items()
        if name in declared and not is_hidden(declared[name])
    )
    yield from _named(held, deeper)
    yield from _named((model.__pydantic_extra__ or {}).items(), deeper)


def _named(held: Any, deeper: int) -> Iterator[str]:
    for name, value in held:
        yield f"{name}={_text(value, deeper - 1, LONGEST)}"


def _joined(parts: Iterator[str], between: str, longest: int) -> str:
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


def _shows_itself_plainly(kind: type[Any]) -> bool:
    """Whether a model shows its fields; one that shows itself otherwise may have a reason to."""
    return (
        kind.__repr__ is BaseModel.__repr__
        and kind.__str__ is BaseModel.__str__
        and kind.__repr_args__ in (BaseModel.__repr_args__, Node.__repr_args__)
    )


def _is_written_by_dataclass(kind: type[Any]) -> bool:
    code = getattr(getattr(kind.__repr__, "__wrapped__", None), "__code__", None)
    return getattr(code, "co_filename", "") == "<string>"


def _own(value: Any, longest: int) -> str:
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return WITHHELD
    return cut(without_password(str(value)), longest)


def _asked(value: Any, kind: type[Any], longest: int) -> str:
    """What a class of somebody's own says of its objects, unless that takes long: then it is asked
    no more."""
    if kind in _slow:
        return f"<{kind.__name__}>"
    said: list[str] = []

    def ask() -> None:
        try:
            said.append(cut(repr(value), longest))
        except BaseException:
            said.append(f"<{kind.__name__}>")

    asking = Thread(target=ask, daemon=True, name="bae repr")
    asking.start()
    asking.join(PATIENCE)
    if not said:
        _slow.add(kind)
        return f"<{kind.__name__}>"
    return said[0]


_slow: Final[set[type[Any]]] = set()
_TRUSTED: Final = frozenset(
    {"datetime", "decimal", "fractions", "ipaddress", "pathlib", "pydantic", "pydantic_core"}
    | {"re", "uuid", "zoneinfo"}
)
"""Whose `__str__` is quick."""
_Write = Callable[[Any, int, int], str]


def _by_repr(kinds: Iterable[tuple[Any, _Write]]) -> dict[Any, _Write]:
    return {kind.__repr__: write for kind, write in kinds}


_WRITERS: Final = _by_repr(
    [
        (str, _string),
        (bytes, _bytes),
        (bytearray, _bytes),
        (int, _number),
        (bool, lambda value, deeper, longest: str(value)),
        (float, lambda value, deeper, longest: float.__repr__(value)),
        (type(None), lambda value, deeper, longest: "None"),
        (list, _in_brackets("[", "]", list[Any].__iter__)),
        (tuple, _in_brackets("(", ")", tuple[Any, ...].__iter__)),
        (set, _in_brackets("{", "}", set[Any].__iter__)),
        (frozenset, _in_brackets("{", "}", frozenset[Any].__iter__)),
        (deque, _in_brackets("[", "]", deque[Any].__iter__)),
        (dict, _mapping),
        (OrderedDict, _mapping),
        (defaultdict, _mapping),
    ]
)
"""How the built-in classes are shown, and those that leave their `__repr__` as it is."""
