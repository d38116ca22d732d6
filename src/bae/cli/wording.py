"""How values, times, tokens, costs and errors are worded in a few characters, and texts that are
safe to print, whatever their origin: nothing in them that a terminal would obey, and nothing that a
stream cannot write. All that the commands show of values, messages and names goes through this."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, cast

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import ValidationError

from bae.exceptions import BaeError, describe
from bae.files import with_placeholders
from bae.lm.http import remove_passwords
from bae.tools import ToolCall
from bae.usage import Usage

WITHHELD: Final = "(withheld)"
"""What stands for a secret."""
_JOINERS: Final = "\u200c\u200d"
"""They hold emoji of several parts and letters of some scripts together; terminals obey no such."""
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e\n]")


def in_one_line(text: str) -> str:
    """A text in one line. Control characters, marks that turn the direction of writing and halves
    of characters are spelled out, as `\\x1b`; the ends of lines and other gaps are spaces."""
    if text.isprintable():
        return text
    return "".join(each if _is_safe(each) else _spell(each) for each in text)


def in_lines(text: str, below: int = 0) -> str:
    """The same, with lines that stay lines: those after the first are indented by `below`."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return f"\n{' ' * below}".join(map(in_one_line, lines))


def without_controls(text: str) -> str:
    """The text as it is, with what a terminal would obey spelled out; the ends of lines stay."""
    if text.isprintable():
        return text
    return "".join(each if each == "\n" or _is_safe(each) else _spell(each) for each in text)


def in_json(value: Any, *, ascii_only: bool = False) -> str:
    """JSON with the characters as they are, but for those that a terminal would obey or that are
    halves: JSON has a way to spell these."""
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    return _NOT_PLAIN.sub(lambda match: _in_json(match[0]), text)


def cut_text(text: str, longest: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= longest else f"{text[: max(0, longest - 1)]}…"


def _is_safe(char: str) -> bool:
    return char.isprintable() or char in _JOINERS


def _spell(char: str) -> str:
    return " " if char.isspace() else repr(char)[1:-1]


def _in_json(char: str) -> str:
    return char if _is_safe(char) else json.dumps(char)[1:-1]


# --- values, times and costs ---------------------------------------------------------------------

LONGEST: Final = 400
"""Characters after which a value is cut, however wide the terminal is."""
_DEEPEST: Final = 5
"""How deep values inside of others are looked at."""
_CONTAINERS: Final[dict[Any, Any]] = {
    cast("type[Any]", each).__repr__: each for each in (list, tuple, dict)
}
"""The built-in classes by how they write their values."""
_AS_TEXT: Final = ("datetime", "decimal", "pathlib", "uuid", "ipaddress", "pydantic_core")
"""Modules of classes that are shown as their text."""

_JOINER: Final = re.compile(r"\\\\|\\u(200[cd])")
"""A backslash as `repr` spells it, or a joiner: parts of an emoji stay together, as elsewhere."""


def text_of(value: Any, longest: int = LONGEST) -> str:
    """A value in one line of at most so many characters, safe to put on a terminal. A model is
    shown without its name, as its fields."""
    try:
        if isinstance(value, BaseModel) and type(value).__repr__ is BaseModel.__repr__:
            text = _join(_write_fields(value, _DEEPEST), " ")
        else:
            text = _write(value, _DEEPEST)
    except Exception:  # whatever a class does when it is looked at
        text = f"<{type(value).__name__}>"
    # The end of a URL may be further on, so that it is cut afterwards.
    return cut_text(in_one_line(remove_passwords(text[: 4 * LONGEST])), longest)


def inline_text_of(value: Any) -> str:
    """The same among others: a model with its name around it."""
    if isinstance(value, BaseModel) and type(value).__repr__ is BaseModel.__repr__:
        return f"{type(value).__name__}({text_of(value)})"
    return text_of(value)


def _write(value: Any, depth: int) -> str:
    """A value as Python writes it; of a long one only the beginning, so that no run waits for the
    rest. A class that writes itself in a way of its own may have something to hide."""
    kind = cast("type[Any]", type(value))
    writes = kind.__repr__
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return WITHHELD
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, type):
        return cast("type[Any]", value).__name__
    if writes in (str.__repr__, bytes.__repr__):
        return _JOINER.sub(_joiner, repr(value[: 4 * LONGEST]))
    if kind.__module__ in _AS_TEXT:
        return str(value)
    if writes is object.__repr__:
        return f"<{kind.__name__}>"
    inside, written_as = depth - 1, _CONTAINERS.get(writes)
    if written_as in (list, tuple):
        text = _join((_write(each, inside) for each in value), ", ") if depth else "…"
        return f"[{text}]" if written_as is list else f"({text})"
    if written_as is dict:
        pairs = (f"{_write(key, inside)}: {_write(each, inside)}" for key, each in value.items())
        return f"{{{_join(pairs, ', ') if depth else '…'}}}"
    if isinstance(value, ToolCall):
        given = (f"{name}={_write(each, inside)}" for name, each in value.arguments.items())
        return f"{value.name}({_join(given, ', ') if depth else '…'})"
    if writes is BaseModel.__repr__:
        return f"{kind.__name__}({_join(_write_fields(value, inside), ', ') if depth else '…'})"
    return repr(value)


def _joiner(spelled: re.Match[str]) -> str:
    return chr(int(spelled[1], 16)) if spelled[1] else spelled[0]


def _write_fields(model: BaseModel, depth: int) -> Iterator[str]:
    for name, value in model.__repr_args__():
        yield f"{name}={_write(value, depth)}"


def _join(parts: Iterable[str], between: str) -> str:
    """As many parts as can be shown: the rest is not even looked at."""
    shown: list[str] = []
    length = 0
    for part in parts:
        shown.append(part)
        length += len(part)
        if length > 4 * LONGEST:
            break
    return between.join(shown)


def describe_duration(seconds: float) -> str:
    """How long something takes, as `0.4 s` or `2 min 05 s`; nothing where it is no time at all."""
    if seconds < 0.005:
        return ""
    if seconds < 0.095:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def count(number: int, what: str) -> str:
    """A number of things, as `1 node` or `1,204 tokens`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def cost(usage: Usage) -> str:
    """What calls cost: `$0.0041`, `$0` of a model that is free, and that it is not known."""
    if not usage.calls:
        return ""
    if usage.cost is None:
        return "cost unknown"
    if not usage.cost:
        return "$0"
    if usage.cost >= 100:
        return f"${usage.cost:,.0f}"
    if usage.cost >= 0.1:
        return f"${usage.cost:.2f}"
    return f"${usage.cost:.6f}"[:9] if usage.cost < 0.0001 else f"${usage.cost:.4f}"


def describe_spending(usage: Usage) -> list[str]:
    """Tokens and cost of a few calls, as far as there is something to say."""
    tokens = [count(usage.tokens, "token")] if usage.tokens else []
    return [*tokens, *([cost(usage)] if usage.cost else [])]


def size_of(value: Any) -> str:
    """How large a value of JSON is, as `12 items, 3.4 KB`."""
    try:
        size = len(value) if isinstance(value, str) else len(json.dumps(value, default=str))
    except ValueError:  # it holds itself
        return ""
    text = f"{size / 1000:,.1f} KB" if size >= 1000 else f"{size} B"
    if isinstance(value, list):
        return f"{count(len(cast('list[Any]', value)), 'item')}, {text}"
    return text


def call_text(name: str, arguments: Mapping[str, Any], longest: int = LONGEST) -> str:
    """The call of a tool in one line, as `search(query='kettle')`. Of many or long arguments the
    beginning is shown."""
    each = max(12, longest // max(1, len(arguments)))
    given = _join((f"{key}={text_of(value, each)}" for key, value in arguments.items()), ", ")
    return cut_text(in_one_line(f"{name}({given})"), longest)


def result_text(value: Any, longest: int = 60) -> str:
    """The result of a tool, or the beginning of it and how large it is."""
    value = with_placeholders(value)
    text = text_of(value, longest + 1)
    return text if len(text) <= longest else f"{cut_text(text, longest)} ({size_of(value)})"


def summary_of(nodes: int, seconds: float, usage: Usage) -> str:
    """A run in one line: `3 nodes in 4.3 s · 2 LM calls · 1,204 tokens · $0.0041`."""
    parts = [f"{count(nodes, 'node')} in {describe_duration(seconds) or '0 s'}"]
    if usage.calls:
        parts.append(count(usage.calls, "LM call"))
    if usage.tokens:
        parts.append(count(usage.tokens, "token"))
    parts += filter(None, [cost(usage)])
    if usage.calls and usage.models:
        parts.append(in_one_line(", ".join(usage.models)))
    return " · ".join(parts)


def line_of(error: BaseException) -> str:
    """An error in one line: what happened, and the causes as far as they add something."""
    try:
        line = error.message if isinstance(error, BaeError) else describe(error)
        cause = error.cause if isinstance(error, BaeError) else None
        while cause is not None and not isinstance(cause, ValidationError):
            text = cause.message if isinstance(cause, BaeError) else describe(cause)
            name = type(cause).__name__
            if line.endswith(name):  # "… raised TimeoutError"
                line += text.removeprefix(name)
            elif text not in line:
                line += f": {text}"
            cause = cause.cause if isinstance(cause, BaeError) else None
    except Exception:  # whatever it does when it is written out
        line = type(error).__name__
    return in_one_line(line[:1000])
