"""Control groups that bound how many processes root can have, which no rlimit does."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Final


def make(processes: int) -> str | None:
    """A new group of at most so many processes and threads; None where none can be made."""
    parent = _parent()
    if parent is None:
        return None
    path = parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
    try:
        path.mkdir()
        (path / "pids.max").write_text(str(processes))
    except OSError:
        with contextlib.suppress(OSError):
            path.rmdir()
        return None
    return str(path)


def joining(group: str, command: list[str]) -> list[str]:
    """The command, started as a member of the group, as are all its children."""
    return ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', f"{group}/cgroup.procs", *command]


def remove(group: str) -> None:
    """Kill the members of a group and remove it. Blocks until they have ended, a second at most."""
    for _ in range(100):
        try:
            os.rmdir(group)
            return
        except FileNotFoundError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                for pid in map(int, Path(group, "cgroup.procs").read_text().split()):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


_PREFIX: Final = "bae-"
_numbers = itertools.count()


@cache
def _parent() -> Path | None:
    """The group that new ones are made in, without those that killed processes left there."""
    root = Path("/sys/fs/cgroup")
    parent = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if "pids" in controllers.split(","):
                parent = root / "pids" / own.lstrip("/")
            elif not controllers and parent is None and (root / "cgroup.controllers").exists():
                # Version 2: a group with processes has no groups with limits in it, but the root.
                group = root / own.lstrip("/")
                parent = group if group == root else group.parent
        for left in parent.glob(f"{_PREFIX}*-*") if parent is not None else ():
            pid = left.name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                with contextlib.suppress(OSError):
                    left.rmdir()
    return parent
