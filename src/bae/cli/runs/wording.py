"""Times, lengths of time and usage of LMs in the words that the commands print."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bae.lm.usage import Usage


def when(at: float) -> str:
    """A time, in the time zone of whoever reads it."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(at: float, now: float) -> str:
    """How long ago something was."""
    seconds = max(0.0, now - at)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return f"{int(seconds)} s ago"


def long(seconds: float) -> str:
    """How long something took, in the unit that fits."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def spent(usage: Usage) -> str:
    """What LM calls used."""
    parts = [f"{usage.calls} call{'' if usage.calls == 1 else 's'}"]
    if usage.tokens:
        parts.append(f"{usage.tokens:,} tokens")
    if usage.cost is None:
        parts.append("cost unknown")
    elif usage.cost:
        parts.append(f"${usage.cost:.4g}")
    if usage.models:
        parts.append(", ".join(usage.models))
    return ", ".join(parts)


def runs(number: int) -> str:
    """So many runs."""
    return "1 run" if number == 1 else f"{number} runs"


def plain(text: str) -> str:
    """A text without what a terminal would take for a command, on one line."""
    return "".join(each if each.isprintable() else " " for each in text)
