"""Times, lengths of time and usage of LMs in the words that the commands print."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from bae.journal.provenance import long, when

if TYPE_CHECKING:
    from bae.usage import Usage

__all__ = ["ago", "iso", "long", "runs", "spent", "when"]


def ago(at: float, now: float) -> str:
    """How long ago something was."""
    seconds = max(0.0, now - at)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return f"{int(seconds)} s ago"


def iso(at: float) -> str:
    """A time as ISO 8601 has it, to the microsecond, for programs."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="microseconds")


def spent(usage: Usage) -> str:
    """What LM calls used."""
    parts = [f"{usage.calls} LM call{'' if usage.calls == 1 else 's'}"]
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
