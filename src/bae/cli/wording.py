"""Short texts for values, times, tokens, costs and errors, safe to print whatever their origin:
without control sequences for a terminal, and without characters that a stream cannot encode. All
commands format values, messages and names here."""

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
"""Joiners hold parts of an emoji, or letters of some scripts, together. Terminals ignore them."""
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e\n]")


def in_one_line(text: str) -> str:
    """A text in one line. Control characters, marks of text direction and lone surrogates are
    escaped, as `\\x1b`; line ends and other gaps become spaces."""
    if text.isprintable():
        return text
    return "".join(char if _is_safe(char) else _spell(char) for char in text)


def in_lines(text: str, below: int = 0) -> str:
    """A safe text with its lines. Lines after the first are indented by `below`."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return f"\n{' ' * below}".join(map(in_one_line, lines))


def without_controls(text: str) -> str:
    """The text with control sequences escaped. Line ends stay."""
    if text.isprintable():
        return text
    return "".join(char if char == "\n" or _is_safe(char) else _spell(char) for char in text)


def in_json(value: Any, *, ascii_only: bool = False) -> str:
    """JSON with readable characters. Control characters and lone surrogates are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only)
    return _NOT_PLAIN.sub(lambda match: _in_json(match[0]), text)


def cut_text(text: str, longest: int) -> str:
    """Cut a text to a length."""
    return text if len(text) <= longest else f"{text[: max(0, longest - 1)]}…"


def _is_safe(char: str) -> bool:
    return char.isprintable() or char in _JOINERS


def _spell(char: str) -> str:
    return " " if char.isspace() else repr(char)[1:-1]


def _in_json(char: str) -> str:
    return char if _is_safe(char) else json.dumps(char)[1:-1]


# --- values, times and costs ---------------------------------------------------------------------

LONGEST: Final = 400
"""Maximum characters of a value, however wide the terminal is."""
_DEEPEST: Final = 5
"""Maximum depth of nested values."""
_CONTAINERS: Final[dict[Any, Any]] = {
    cast("type[Any]", each).__repr__: each for each in (list, tuple, dict)
}
"""The built-in classes by the method that writes their values."""
_AS_TEXT: Final = ("datetime", "decimal", "pathlib", "uuid", "ipaddress", "pydantic_core")
"""Modules whose classes are shown as text."""

_JOINER: Final = re.compile(r"\\\\|\\u(200[cd])")
"""An escaped backslash, or a joiner: the parts of an emoji stay together."""


def text_of(value: Any, longest: int = LONGEST) -> str:
    """A value in one line of limited length, safe for a terminal. A model is shown as its fields,
    without its name."""
    try:
        if isinstance(value, BaseModel) and type(value).__repr__ is BaseModel.__repr__:
            text = _join(_write_fields(value, _DEEPEST), " ")
        else:
            text = _write(value, _DEEPEST)
    except Exception:  # a class may raise anything here
        text = f"<{type(value).__name__}>"
    # Cut only afterwards: the end of a URL may be further on.
    return cut_text(in_one_line(remove_passwords(text[: 4 * LONGEST])), longest)


def inline_text_of(value: Any) -> str:
    """A value in one line, for use inside other text: a model with its name."""
    if isinstance(value, BaseModel) and type(value).__repr__ is BaseModel.__repr__:
        return f"{type(value).__name__}({text_of(value)})"
    return text_of(value)


def _write(value: Any, depth: int) -> str:
    """A value as Python writes it. Only the beginning of a long value is formatted, so that no run
    waits. A class with its own `__repr__` is written by that, which may hide values."""
    kind = cast("type[Any]", type(value))
    write_method = kind.__repr__
    if isinstance(value, Secret | SecretStr | SecretBytes):
        return WITHHELD
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, type):
        return cast("type[Any]", value).__name__
    if write_method in (str.__repr__, bytes.__repr__):
        return _JOINER.sub(_joiner, repr(value[: 4 * LONGEST]))
    if kind.__module__ in _AS_TEXT:
        return str(value)
    if write_method is object.__repr__:
        return f"<{kind.__name__}>"
    inner_depth, container = depth - 1, _CONTAINERS.get(write_method)
    if container in (list, tuple):
        text = _join((_write(item, inner_depth) for item in value), ", ") if depth else "…"
        return f"[{text}]" if container is list else f"({text})"
    if container is dict:
        pairs = (
            f"{_write(key, inner_depth)}: {_write(each, inner_depth)}"
            for key, each in value.items()
        )
        return f"{{{_join(pairs, ', ') if depth else '…'}}}"
    if isinstance(value, ToolCall):
        arguments = (
            f"{name}={_write(each, inner_depth)}" for name, each in value.arguments.items()
        )
        return f"{value.name}({_join(arguments, ', ') if depth else '…'})"
    if write_method is BaseModel.__repr__:
        return (
            f"{kind.__name__}({_join(_write_fields(value, inner_depth), ', ') if depth else '…'})"
        )
    return repr(value)


def _joiner(spelled: re.Match[str]) -> str:
    return chr(int(spelled[1], 16)) if spelled[1] else spelled[0]


def _write_fields(model: BaseModel, depth: int) -> Iterator[str]:
    for name, value in model.__repr_args__():
        yield f"{name}={_write(value, depth)}"


def _join(parts: Iterable[str], between: str) -> str:
    """Join parts up to the maximum length. Further parts are not formatted."""
    texts: list[str] = []
    length = 0
    for part in parts:
        texts.append(part)
        length += len(part)
        if length > 4 * LONGEST:
            break
    return between.join(texts)


def describe_duration(seconds: float) -> str:
    """A duration such as `0.4 s` or `2 min 05 s`. Empty for no measurable time."""
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
    """A number with its unit, such as `1 node` or `1,204 tokens`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def cost(usage: Usage) -> str:
    """The cost of calls: `$0.0041`, `$0` for a free model, or that the cost is unknown."""
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
    """Tokens and cost of calls, if there are any."""
    tokens = [count(usage.tokens, "token")] if usage.tokens else []
    return [*tokens, *([cost(usage)] if usage.cost else [])]


def size_of(value: Any) -> str:
    """The size of a JSON value, such as `12 items, 3.4 KB`."""
    try:
        size = len(value) if isinstance(value, str) else len(json.dumps(value, default=str))
    except ValueError:  # a value that contains itself
        return ""
    text = f"{size / 1000:,.1f} KB" if size >= 1000 else f"{size} B"
    if isinstance(value, list):
        return f"{count(len(cast('list[Any]', value)), 'item')}, {text}"
    return text


def call_text(name: str, arguments: Mapping[str, Any], longest: int = LONGEST) -> str:
    """A tool call in one line, such as `search(query='kettle')`. Long arguments are cut."""
    longest_argument = max(12, longest // max(1, len(arguments)))
    arguments_text = _join(
        (f"{key}={text_of(value, longest_argument)}" for key, value in arguments.items()), ", "
    )
    return cut_text(in_one_line(f"{name}({arguments_text})"), longest)


def result_text(value: Any, longest: int = 60) -> str:
    """The result of a tool. A long result is cut, and its size is added."""
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
    """An error in one line: the message, and causes that add information."""
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
