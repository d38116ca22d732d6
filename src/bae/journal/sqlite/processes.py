"""Names for processes by which others can tell that one has died, where they can see it: on the
same machine, since the same start of it, in the same space of process numbers. Elsewhere nobody can
tell, and a lease has to run out."""

from __future__ import annotations

import os
import socket
from functools import cache
from hashlib import sha256
from pathlib import Path
from secrets import token_hex


def own_name() -> str:
    """A name that nobody else has, nor this process another time."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{_world()}.{_born(pid) or ''}:{token_hex(4)}"


def has_died(name: str) -> bool:
    """Whether the process of that name is known to be gone. False where that cannot be seen."""
    parts = name.rsplit(":", 3)
    if len(parts) != 4 or not parts[1].isdecimal():
        return False
    world, _, born = parts[2].partition(".")
    if not (world and born) or world != _world():
        return False
    return _born(int(parts[1])) not in (born, None)


@cache
def _world() -> str:
    """Where process numbers mean the same; empty where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return sha256(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
    except OSError:
        return ""


def _born(pid: int) -> str | None:
    """When a process was started, in a count of its own; empty where it is gone, and None where
    that cannot be seen: there is no descriptor left to look with, or others are hidden."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if _answers(pid) else ""
    except OSError:
        return None
    # The second field is a name in brackets, which may hold anything.
    state, *rest = told.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def _answers(pid: int) -> bool:
    """Whether there is such a process, be it one that is hidden from this user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
