"""Format values, times, tokens, costs and errors as short texts for all commands. The texts are
safe to print, whatever their origin: they have no control sequences for a terminal, and no
characters that a stream cannot encode."""

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
"""The text in place of a secret."""
_JOINERS: Final = "\u200c\u200d"
"""Characters that join the parts of an emoji, or the letters of some scripts. Terminals
do not interpret them."""
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e\n]")


def in_one_line(text: str) -> str:
    """Return a text as one line that is safe to print. Control characters, marks of text direction
    and lone surrogates are escaped, for example as `\\x1b`. Line ends and other white space become
    spaces."""
    if text.isprintable():
        return text
    return "".join(char if _is_safe(char) else _escape(char) for char in text)


def in_lines(text: str, below: int = 0) -> str:
    """Return a text that is safe to print, with its line ends. Lines after the first are indented
    by `below` spaces."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return f"\n{' ' * below}".join(map(in_one_line, lines))


def without_controls(text: str) -> str:
    """Escape the control characters of a text, except line ends."""
    if text.isprintable():
        return text
    return "".join(char if char == "\n" or _is_safe(char) else _escape(char) for char in text)


def in_json(value: Any, *, ascii_only: bool = False) -> str:
    """Return a value as indented JSON. Control characters and lone surrogates are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    return _NOT_PLAIN.sub(lambda match: _escape_json(match[0]), text)


def cut_text(text: str, longest: int) -> str:
    """Cut a text to at most `longest` characters. The last character of a cut text is `…`."""
    return text if len(text) <= longest else f"{text[: max(0, longest - 1)]}…"


def _is_safe(char: str) -> bool:
    return char.isprintable() or char in _JOINERS


def _escape(char: str) -> str:
    return " " if char.isspace() else repr(char)[1:-1]


def _escape_json(char: str) -> str:
    return char if _is_safe(char) else json.dumps(char)[1:-1]


# --- values, times and costs ---------------------------------------------------------------------

LONGEST: Final = 400
"""Maximum characters of a value, however wide the terminal is."""
_DEEPEST: Final = 5
"""Maximum depth of nested values."""
_CONTAINERS: Final[dict[Any, Any]] = {
    cast("type[Any]", kind).__repr__: kind for kind in (list, tuple, dict)
}
"""The built-in containers by their `__repr__` method, which most subclasses share."""
_AS_TEXT: Final = ("datetime", "decimal", "pathlib", "uuid", "ipaddress", "pydantic_core")
"""Modules whose classes are shown as text."""

_JOINER: Final = re.compile(r"\\\\|\\u(200[cd])")
"""Finds escaped joiners in a `repr`, to restore them. It also finds escaped backslashes, because
the text after them is no joiner."""


def text_of(value: Any, longest: int = LONGEST) -> str:
    """Return a value as one line that is safe to print and has at most `longest` characters. A
    model is shown as its fields, without its name."""
    try:
        if isinstance(value, BaseModel) and type(value).__repr__ is BaseModel.__repr__:
            text = _join(_format_fields(value, _DEEPEST), " ")
        else:
            text = _format(value, _DEEPEST)
    except Exception:  # a class may raise anything here
        text = f"<{type(value).__name__}>"
    # Cut the text last: in a URL that was cut, a password may not be recognized.
    return cut_text(in_one_line(remove_passwords(text[: 4 * LONGEST])), longest)


def inline_text_of(value: Any) -> str:
    """Return a value as one line for use inside other text. A model is shown with its name."""
    if isinstance(value, BaseModel) and type(value).__repr__ is BaseModel.__repr__:
        return f"{type(value).__name__}({text_of(value)})"
    return text_of(value)


def _format(value: Any, depth: int) -> str:
    """Return a value in the way that Python writes it. Only the beginning of a long value is
    formatted, so that a run does not wait. A class with its own `__repr__` is formatted by that
    method, which may hide values."""
    kind = cast("type[Any]", type(value))
    write_method = kind.__repr__
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return WITHHELD
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, type):
        return cast("type[Any]", value).__name__
    if write_method in (str.__repr__, bytes.__repr__):
        return _JOINER.sub(_restore_joiner, repr(value[: 4 * LONGEST]))
    if kind.__module__ in _AS_TEXT:
        return str(value)
    if write_method is object.__repr__:
        return f"<{kind.__name__}>"
    inner_depth, container = depth - 1, _CONTAINERS.get(write_method)
    if container in (list, tuple):
        text = _join((_format(item, inner_depth) for item in value), ", ") if depth else "…"
        return f"[{text}]" if container is list else f"({text})"
    if container is dict:
        pairs = (
            f"{_format(key, inner_depth)}: {_format(item, inner_depth)}"
            for key, item in value.items()
        )
        return f"{{{_join(pairs, ', ') if depth else '…'}}}"
    if isinstance(value, ToolCall):
        arguments = (
            f"{name}={_format(item, inner_depth)}" for name, item in value.arguments.items()
        )
        return f"{value.name}({_join(arguments, ', ') if depth else '…'})"
    if write_method is BaseModel.__repr__:
        return (
            f"{kind.__name__}({_join(_format_fields(value, inner_depth), ', ') if depth else '…'})"
        )
    return repr(value)


def _restore_joiner(spelled: re.Match[str]) -> str:
    return chr(int(spelled[1], 16)) if spelled[1] else spelled[0]


def _format_fields(model: BaseModel, depth: int) -> Iterator[str]:
    for name, value in model.__repr_args__():
        yield f"{name}={_format(value, depth)}"


def _join(parts: Iterable[str], between: str) -> str:
    """Join parts until the text is long enough. Later parts are never formatted."""
    texts: list[str] = []
    length = 0
    for part in parts:
        texts.append(part)
        length += len(part)
        if length > 4 * LONGEST:
            break
    return between.join(texts)


def describe_duration(seconds: float) -> str:
    """Return a duration such as `0.4 s` or `2 min 05 s`. Empty for less than 5 ms."""
    if seconds < 0.005:
        return ""
    if seconds < 0.095:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, remaining = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remaining:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def count(number: int, what: str) -> str:
    """Return a number with its noun, such as `1 node` or `1,204 tokens`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def cost(usage: Usage) -> str:
    """Return the cost of LM calls: `$0.0041`, `$0` for a free model, or `cost unknown`. Empty
    without calls."""
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
    """Return texts for the tokens and the cost of LM calls, without zeros and unknown costs."""
    tokens = [count(usage.tokens, "token")] if usage.tokens else []
    return [*tokens, *([cost(usage)] if usage.cost else [])]


def size_of(value: Any) -> str:
    """Return the size of a JSON value, such as `12 items, 3.4 KB`."""
    try:
        size = len(value) if isinstance(value, str) else len(json.dumps(value, default=str))
    except ValueError:  # a value that contains itself
        return ""
    text = f"{size / 1000:,.1f} KB" if size >= 1000 else f"{size} B"
    if isinstance(value, list):
        return f"{count(len(cast('list[Any]', value)), 'item')}, {text}"
    return text


def call_text(name: str, arguments: Mapping[str, Any], longest: int = LONGEST) -> str:
    """Return a tool call as one line, such as `search(query='kettle')`. Long arguments are cut."""
    longest_argument = max(12, longest // max(1, len(arguments)))
    arguments_text = _join(
        (f"{key}={text_of(value, longest_argument)}" for key, value in arguments.items()), ", "
    )
    return cut_text(in_one_line(f"{name}({arguments_text})"), longest)


def result_text(value: Any, longest: int = 60) -> str:
    """Return the result of a tool as one line. A long result is cut, and its size is added."""
    value = with_placeholders(value)
    text = text_of(value, longest + 1)
    return text if len(text) <= longest else f"{cut_text(text, longest)} ({size_of(value)})"


def summary_of(nodes: int, seconds: float, usage: Usage) -> str:
    """Summarize a run in one line: `3 nodes in 4.3 s · 2 LM calls · 1,204 tokens · $0.0041`."""
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
    """Return an error as one line: its message, and the messages of causes that add information."""
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
    except Exception:  # formatting an error may raise anything
        line = type(error).__name__
    return in_one_line(line[:1000])
