"""Times and lengths of time in words, for people: the same wherever a run is told of."""

from __future__ import annotations

from datetime import datetime


def when(at: float) -> str:
    """A time in the local zone of the reader, with how far that is from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def iso(at: float) -> str:
    """The same to the microsecond, as ISO 8601 has it, for programs."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="microseconds")


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
