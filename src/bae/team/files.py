"""Works with files that other programs use or have written: locks between processes, temporary
folders, untrusted files, and secrets that must stay in the user's checkout."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from bae.given_files import open_file

INCLUDE: Final = ".worktreeinclude"
"""The file that lists the untracked files that a new worktree needs. It has the syntax of
`.gitignore`."""


def read_file(path: Path, most: int) -> bytes | None:
    """Return the content of a file that untrusted code may have written. If the file has more than
    `most` bytes, return the first `most` + 1 bytes. If it is a link, a pipe or another special
    file, or cannot be read, return None."""
    try:
        with open_file(path, follow=False) as file:
            return file.read(most + 1)
    except OSError:
        return None


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder with a lock. The lock shows other processes that the folder is in use."""

    file: int = -1

    def cleanup(self) -> None:
        """Remove the folder and release its lock."""
        delete_folder(Path(self.name))  # the standard library cannot delete very deep folders
        super().cleanup()
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def make_folder() -> TemporaryFolder:
    """Create a locked temporary folder. There are no symbolic links in the folder's path."""
    parent = os.path.realpath(tempfile.gettempdir())
    while True:
        folder = TemporaryFolder(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
        with suppress(OSError):  # another process may remove the folder before it is locked
            folder.file = os.open(folder.name, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(folder.file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.stat(folder.name)
            return folder
        folder.cleanup()


def remove_abandoned() -> None:
    """Remove the temporary folders that ended processes of bae have left."""
    for path in Path(os.path.realpath(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # the folder is in use, is another user's, or was just removed
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete_folder(path)
            finally:
                os.close(file)


def is_secret(path: Path, name: str) -> bool:
    """Whether a file seems to contain a key or a password, judged by its name and its text."""
    *folders, last = Path(name.lower()).parts
    if _SECRET_FOLDERS & set(folders):
        return True
    if _PACKAGES & set(folders):
        return False
    harmless = any(fnmatch(last, pattern) for pattern in _HARMLESS_NAMES)
    if not harmless and any(fnmatch(last, pattern) for pattern in _SECRET_NAMES):
        return True
    return _SECRET_TEXT.search(read_file(path, _SEARCHED) or b"") is not None


def copy_files(root: Path, to: Path, names: Sequence[str]) -> list[str]:
    """Copy the files `names` from `root` to another folder. Files that exist there stay. Returns
    the files that were left out: secrets, unreadable files, and links that lead out of `root`."""
    left_out: list[str] = []
    for name in names:
        source, target = root / name, to / name
        try:
            if os.path.lexists(target):
                continue
            real = source.resolve()
            inside = real.is_relative_to(root) and not name.endswith("/")
            if not inside or is_secret(real, name):
                left_out.append(name)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        except OSError:
            left_out.append(name)
    return left_out


def copy_new(source: Path, to: Path, known: frozenset[str]) -> list[str]:
    """Copy the content of a folder to another folder, without the files and folders `known`.
    Existing files stay, and nothing is written through a link. A later change of a copy does not
    change the original. If a link or a file of an installation contains the path of `source`, the
    copy contains the path `to`. Returns the new files and folders, without the content of new
    folders."""
    source, to = Path(os.path.realpath(source)), Path(os.path.realpath(to))
    roots = os.fsencode(source), os.fsencode(to)
    return _copy_folder(source, to, "", known, roots)


def _copy_folder(
    source: Path, to: Path, inside: str, known: frozenset[str], roots: tuple[bytes, bytes]
) -> list[str]:
    new_names: list[str] = []
    with os.scandir(source / inside) as scanned:
        entries = list(scanned)
    for entry in entries:
        name = os.path.join(inside, entry.name)
        target = to / name
        if name in known or name == ".git":
            continue
        is_new = not os.path.lexists(target)
        new_names += [name] if is_new else []
        if entry.is_symlink():
            if is_new:
                target.symlink_to(os.fsdecode(_move_path(os.fsencode(os.readlink(entry)), roots)))
        elif entry.is_dir():
            if is_new:
                target.mkdir()
            if target.is_dir() and not target.is_symlink():
                inner = _copy_folder(source, to, name, known, roots)
                new_names += [] if is_new else inner
        elif entry.is_file() and is_new:
            _copy_file(Path(entry.path), target, roots)
    return new_names


def _copy_file(source: Path, target: Path, roots: tuple[bytes, bytes]) -> None:
    text = source.read_bytes() if _may_have_own_path(source) else b""
    if roots[0] in text:
        target.write_bytes(text.replace(*roots))
        # The time is not copied. Otherwise compiled code of the old file would seem up to date.
        shutil.copymode(source, target)
    else:
        with source.open("rb") as reader, target.open("xb") as writer:
            try:
                fcntl.ioctl(writer, _CLONE, reader.fileno())
            except OSError:  # the file system cannot clone files
                shutil.copyfileobj(reader, writer, 2**20)
        shutil.copystat(source, target)


def _may_have_own_path(path: Path) -> bool:
    """Whether a file may contain the path of its own folder, as scripts of virtual environments
    do."""
    if path.parent.name not in ("bin", ".bin") and not any(
        fnmatch(path.name, pattern) for pattern in _SELF_NAMED
    ):
        return False
    return path.stat().st_size <= _LARGEST_SCRIPT


def _move_path(path: bytes, roots: tuple[bytes, bytes]) -> bytes:
    before, after = roots
    return after + path[len(before) :] if path == before or path.startswith(before + b"/") else path


def delete_folder(directory: Path) -> None:
    """Delete a folder with its content. Very deep folders, and folders without permissions, are
    deleted too. Files that cannot be deleted stay."""
    if not directory.is_dir() or directory.is_symlink():
        return
    name = os.path.join(directory, f".removed-{os.urandom(8).hex()}-")
    _add_permissions(directory, stat.S_IRWXU)
    folders, moved_count = _delete_files(directory), 0
    while folders:
        folder = folders.pop()
        for inner in _delete_files(folder):
            with suppress(OSError):  # move the folder up, because a deep path may be too long
                os.rename(inner, f"{name}{moved_count}")
                folders.append(f"{name}{moved_count}")
            moved_count += 1
        with suppress(OSError):
            os.rmdir(folder)
    with suppress(OSError):
        directory.rmdir()


def _delete_files(folder: str | Path) -> list[str]:
    """Delete the files in a folder, make its subfolders accessible, and return the subfolders."""
    folders: list[str] = []
    for entry in _list_folder(folder):
        with suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                _add_permissions(Path(entry), stat.S_IRWXU)
                folders.append(entry.path)
            else:
                os.unlink(entry)
    return folders


def make_accessible(directory: Path) -> None:
    """Make a folder readable for git after untrusted code ran in the folder. The owner gets
    permission to read all files and to change all subfolders. Pipes and devices are removed,
    because git would wait for them."""
    _add_permissions(directory, stat.S_IRWXU)
    folders: list[str | Path] = [directory]
    while folders:
        for entry in _list_folder(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                _add_permissions(Path(entry), stat.S_IRWXU)
                folders.append(entry.path)
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                _add_permissions(Path(entry), stat.S_IRUSR)
            else:
                with suppress(OSError):
                    os.unlink(entry)


def _list_folder(folder: str | Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _add_permissions(path: Path, mode: int) -> None:
    with suppress(OSError):
        now = path.lstat().st_mode
        if now & mode != mode and not stat.S_ISLNK(now):
            path.chmod(stat.S_IMODE(now) | mode)


class FileLock:
    """A lock between processes, on a file. If another process has the lock, `acquire` tries again
    every 10 milliseconds, so no thread is blocked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def descriptors(self) -> tuple[int, ...]:
        """Return the open file of the lock. Pass it to a child process that must keep the lock if
        this process is killed."""
        return () if self._file is None else (self._file,)

    async def acquire(self, *, exclusive: bool, timeout: float) -> None:
        """Take the lock. If this process has the lock already, switch between shared and exclusive.
        Raises TimeoutError if other processes keep the lock for `timeout` seconds."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        until = time.monotonic() + timeout
        while True:
            try:
                return fcntl.flock(self._file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{self.path} is held by another process") from None
            await asyncio.sleep(0.01)

    def release(self) -> None:
        """Release the lock, also for child processes that have its open file."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    @asynccontextmanager
    async def hold(self, *, exclusive: bool, timeout: float) -> AsyncGenerator[None]:
        """Take the lock for the duration of the block."""
        try:
            await self.acquire(exclusive=exclusive, timeout=timeout)
            yield
        finally:
            self.release()


_PREFIX: Final = "bae_team_run_"
_CLONE: Final = 0x40049409  # FICLONE
_LARGEST_SCRIPT: Final = 2**20
_SELF_NAMED: Final = (
    *("*.pth", "*.egg-link", "__editable__*.py", "direct_url.json", "pyvenv.cfg", "RECORD"),
)
_SEARCHED: Final = 2**16
_SECRET_NAMES: Final = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.asc", "*.gpg"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".git-credentials", "*credential*"),
    *("*secret*", "service-account*.json", ".htpasswd", ".vault-token", "*.tfvars"),
)
_HARMLESS_NAMES: Final = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")
_SECRET_FOLDERS: Final = {".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker", "secrets"}
_PACKAGES: Final = {"node_modules", ".venv", "venv", "site-packages", "vendor"}
"""Folders of published packages. `is_secret` does not check files in these folders, because the
names of these files say nothing about secrets, and reading the files would be slow."""
_SECRET_TEXT: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY"
    rb"|\b(sk-[\w-]{20,}|gh[pousr]_\w{30,}|AKIA[0-9A-Z]{16}|xox[bp]-\w+)"
)
