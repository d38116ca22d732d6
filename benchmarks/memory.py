"""The memory a process holds, now and at most, as the system counts it.

Resident memory sees what Rust and C extensions allocate, which Python's own tracing does not. On
Linux the high-water mark can be reset, so a peak during imports does not hide a later one.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def peak() -> int:
    """Return the most resident bytes so far, or since `reset_peak` where that is possible."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def reset_peak() -> None:
    """Make `peak` start again from the resident memory of now; does nothing where that is
    impossible."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return
