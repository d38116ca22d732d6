"""The program that runs an untrusted command for bae. It sets limits, watches the command, and ends
all processes of the command. In a sandbox, this program is pid 1. Elsewhere, it adopts processes
that the command leaves behind.

bae starts the program by its path: `python -I -S confine.py SPEC`. It uses only the standard
library. If bae ends or closes stdin, the program stops the command. stdout is the command's output.
stderr gets a line of JSON that tells how the command ended. If the command cannot be prepared, the
line before has the reason as `refused`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time

TYPE_CHECKING = False  # this program starts for every command, and `typing` loads slowly
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final, NoReturn

INTERVAL: Final = 0.05
"""Seconds between two measurements of the command's processes."""


def main() -> NoReturn:
    """Run the command that the JSON in the first argument specifies, and report how it ended."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    wake, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, _ignore_signal)
    # Without this, the command could access this process, for example through /proc/1/fd.
    _prctl(_SET_DUMPABLE, 0)
    if os.getpid() != 1:
        _prctl(_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _become_command(spec)
    exit_code, ended_by = _watch_command(child, wake, spec)
    if os.getpid() != 1:  # if pid 1 ends, the kernel ends the other processes
        _end_all(child)
    _report(2, exit_code=exit_code, ended_by=ended_by)
    os._exit(0)


def _ignore_signal(number: int, frame: object) -> None:
    """Handle a signal whose only effect is to wake `select`."""


def _watch_command(child: int, wake: int, spec: dict[str, Any]) -> tuple[int | None, str]:
    disk = _Disk(spec["written"], spec["disk"])
    while True:
        ready = select.select([0, wake], [], [], INTERVAL)[0]
        if 0 in ready and not os.read(0, 1):
            return None, "stopped"
        if wake in ready:
            os.read(wake, 4096)
        for pid, status in _reap_children():
            if pid == child:
                if disk.is_exceeded([], at_end=True):
                    return None, "disk"
                code = os.waitstatus_to_exitcode(status)
                return (code if code >= 0 else 128 - code), "exit"
        pids = _find_processes()
        tasks, memory = _measure_use(pids, spec["processes"])
        if tasks >= spec["processes"]:
            return None, "processes"
        # The quick measurement counts shared memory for each process, so it may be too high.
        if memory > spec["memory"] and sum(map(_measure_memory, pids)) > spec["memory"]:
            return None, "memory"
        if disk.is_exceeded(pids):
            return None, "disk"


class _Disk:
    """Measures the disk space of the files that the command wrote. Each check reads the free space,
    which is cheap. The files are measured only from time to time, or if the free space fell by more
    than the command's limit."""

    def __init__(self, paths: list[str], most: int) -> None:
        self.paths = paths
        self.most = most
        self.began = time.time()
        self.free = self._find_free()
        self.next_look = time.monotonic() + _LOOK_SECONDS

    def is_exceeded(self, pids: list[int], *, at_end: bool = False) -> bool:
        free = self._find_free()
        shrank = any(before - now > self.most for before, now in zip(self.free, free, strict=True))
        if not shrank and (at_end or time.monotonic() < self.next_look):
            return False
        start = time.monotonic()
        used = self._measure(pids)
        seconds = time.monotonic() - start
        self.next_look = start + seconds + max(_LOOK_SECONDS, 20 * seconds)
        # The next check compares with the free space that there would be without the command's
        # files. This space is computed again, because other processes may have changed it.
        self.free = [now + used for now in free]
        return used > self.most

    def _find_free(self) -> list[int]:
        free: list[int] = []
        for path in self.paths:
            with contextlib.suppress(OSError):
                state = os.statvfs(path)
                free.append(state.f_bavail * state.f_frsize)
                continue
            free.append(0)
        return free

    def _measure(self, pids: list[int]) -> int:
        counted: set[tuple[int, int]] = set()
        used = 0
        for state in self._list_files(pids):
            file_id = state.st_dev, state.st_ino
            if state.st_ctime >= self.began and file_id not in counted:
                counted.add(file_id)
                used += max(state.st_blocks * 512, _SMALLEST)
                if used > self.most:
                    break
        return used

    def _list_files(self, pids: list[int]) -> Iterable[os.stat_result]:
        folders = list(self.paths)
        while folders:
            path = folders.pop()
            try:
                entries = _list_folder(path)
            except OSError:
                continue
            for entry in entries:
                with contextlib.suppress(OSError):
                    state = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    yield state
        devices = set[int]()
        for path in self.paths:
            with contextlib.suppress(OSError):
                devices.add(os.stat(path).st_dev)
        for pid in pids:  # open files that were deleted
            with contextlib.suppress(OSError):
                for number in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        state = os.stat(f"/proc/{pid}/fd/{number}")
                        if state.st_nlink == 0 and state.st_dev in devices:
                            yield state


def _list_folder(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except PermissionError:  # the command may have hidden the folder
        os.chmod(path, 0o700)
        with os.scandir(path) as entries:
            return list(entries)


_LOOK_SECONDS: Final = 5.0
"""The least number of seconds between two measurements of the files, unless the free space fell by
more than the limit."""
_SMALLEST: Final = 4096
"""The least size that a file counts with, so that the limit also bounds the number of files."""


def _reap_children() -> Iterable[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            yield child


def _find_processes() -> list[int]:
    """Return the command's processes. As pid 1, these are all other processes of the namespace.
    Elsewhere, these are the descendants of this process."""
    if os.getpid() == 1:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    processes: list[int] = []
    unread = [os.getpid()]
    while unread:
        pid = unread.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    unread += map(int, file.read().split())
        processes.append(pid)
    return processes[1:]


def _measure_use(pids: list[int], most: int) -> tuple[int, int]:
    """Return how many threads the processes have, and how many bytes of memory. With `most` or more
    processes, only the processes are counted."""
    if len(pids) >= most:
        return len(pids), 0
    tasks = pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
            # The name before the last parenthesis may contain spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
            tasks += int(fields[17])
            pages += int(fields[21])
    return tasks, pages * resource.getpagesize()


def _measure_memory(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _end_all(child: int) -> None:
    """Kill all descendants of this process. They are suspended first, so that no descendant starts
    another process meanwhile."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    stopped: set[int] = set()
    while new := set(_find_processes()) - stopped:
        for pid in new:
            _send_signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _send_signal(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


# --- the command's side ---------------------------------------------------------------------------


def _become_command(spec: dict[str, Any]) -> NoReturn:
    """Turn this process into the command, with limits that it cannot raise."""
    channel = os.dup(2)  # the command does not inherit the duplicate
    try:
        os.setsid()
        os.chdir(spec["cwd"])
        os.dup2(os.open(spec.get("stdin") or os.devnull, os.O_RDONLY), 0)
        os.dup2(1, 2)
        os.nice(5)  # bae and the parent process have precedence
        _set_limits(spec)
        # With root's capabilities, the command could raise limits and read other processes.
        for capability in range(64):
            with contextlib.suppress(NotImplementedError):
                _prctl(_DROP_CAPABILITY, capability)
        if spec["landlock"] is not None:
            _prctl(_SET_NO_NEW_PRIVS, 1)
            _restrict_files(spec["landlock"]["read"], spec["landlock"]["write"])
            _restrict_calls(spec["landlock"]["network"])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(spec["command"][0], spec["command"])
        except OSError as error:
            os.write(2, f"cannot start {spec['command'][0]}: {error.strerror}\n".encode())
    except BaseException as error:
        _report(channel, refused=f"{error}")
    os._exit(127)


def _set_limits(spec: dict[str, Any]) -> None:
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, spec["file_size"])]
    # Not RLIMIT_AS: Node reserves far more addresses than it uses.
    limits += [(resource.RLIMIT_DATA, spec["memory"]), (resource.RLIMIT_NOFILE, 4096)]
    # The kernel counts all tasks of a user against this limit. In a sandbox with its own users,
    # there are two other tasks: this process and its parent. The kernel does not apply this limit
    # to root, so a control group limits root.
    others = 2 if os.getppid() == 1 and spec["landlock"] is None else _count_user_tasks()
    limits.append((resource.RLIMIT_NPROC, others + spec["processes"]))
    for which, most in limits:
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


def _count_user_tasks() -> int:
    tasks = 0
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    tasks += len(os.listdir(f"/proc/{name}/task"))
    return tasks


_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on every architecture
_READ: Final = 0b1101  # execute, read file, read directory
_FILE_RIGHTS: Final = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14
"""The rights that Landlock accepts in a rule for a file."""


def _restrict_files(read: list[str], write: list[str]) -> None:
    """Allow this process to read and write only these paths, by Landlock. From version 6 on,
    Landlock also denies signals to other processes."""
    version = _syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 3:
        raise NotImplementedError(f"Landlock {version} cannot prevent truncation; 3 is needed")
    all_rights = (1 << 15) - 1
    scoped = 0b11 if version >= 6 else 0
    attributes = struct.pack("=QQQ", all_rights, 0, scoped)[: 24 if version >= 6 else 8]
    rules = _syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    for paths, allowed in ((read, _READ), (write, all_rights)):
        for path in filter(os.path.exists, paths):
            path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rights = allowed if os.path.isdir(path) else allowed & _FILE_RIGHTS
            _syscall(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", rights, path_fd), 0)
            os.close(path_fd)
    _syscall(_LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""The audit number of the architecture and the system call number of socket(), by machine."""
_IO_URING_SETUP: Final = 425


def _restrict_calls(network: bool) -> None:
    """Deny io_uring, which can open sockets, by seccomp. Without `network`, deny sockets too."""
    audit, socket = _ARCHITECTURES[os.uname().machine]
    refused = [_IO_URING_SETUP] if network else [_IO_URING_SETUP, socket]
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    last = len(refused) + 1
    program = [
        (load, 0, 0, 4),
        (equal, 0, last + 2, audit),  # other architectures have other numbers
        (load, 0, 0, 0),
        (at_least, last, 0, 0x40000000),  # x32 has other numbers too
        *((equal, last - 1 - index, 0, number) for index, number in enumerate(refused)),
        (answer, 0, 0, 0x7FFF0000),  # allowed
        (answer, 0, 0, 0x00050000 | 13),  # EACCES
    ]
    code = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    )
    filters = struct.pack("@HP", len(program), ctypes.addressof(code))
    _prctl(_SET_SECCOMP, 2, filters)


_SET_DUMPABLE, _SET_SECCOMP, _DROP_CAPABILITY = 4, 22, 24
_SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 36, 38


def _prctl(option: int, *values: Any) -> None:
    if sys.platform == "linux":
        function = ctypes.CDLL(None, use_errno=True).prctl
        _check_result(function(option, *(_to_long(value) for value in (*values, 0, 0, 0, 0)[:4])))


def _syscall(*values: Any) -> int:
    return _check_result(ctypes.CDLL(None, use_errno=True).syscall(*map(_to_long, values)))


def _to_long(value: Any) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def _check_result(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise NotImplementedError(f"the kernel refuses a sandbox: {os.strerror(number)}")
    return answer


def _report(channel: int, **values: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(channel, json.dumps(values).encode() + b"\n")


if __name__ == "__main__":
    main()
