"""The disk that stores are made on: its file system, and the time of a durable write. On a file
system in memory nothing survives a power cut, so the figures mean nothing there.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def file_system(folder: Path) -> str:
    """Return the system's name for the kind of file system, or `unknown`."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    place = str(folder.resolve())
    longest = ("", "unknown")
    for line in mounts.read_text().splitlines():
        _, at, kind, *_ = line.split()
        under = at if at.endswith("/") else f"{at}/"
        if (place + "/").startswith(under) and len(at) >= len(longest[0]):
            longest = (at, kind)
    return longest[1]


def seconds_to_be_safe(folder: Path, times: int = 200) -> float:
    """Return the median time to append a page to a file and flush it to the disk."""
    file = folder / "page"
    seconds: list[float] = []
    page = os.urandom(4096)
    opened = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(times):
            start = time.perf_counter()
            os.write(opened, page)
            os.fsync(opened)
            seconds.append(time.perf_counter() - start)
    finally:
        os.close(opened)
        file.unlink()
    return statistics.median(seconds)
