"""What a new worktree needs and git does not have: the files that `.worktreeinclude` names. Files
that look like secrets are never copied."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from bae.team.git import Repository, split_paths

INCLUDE: Final = ".worktreeinclude"
"""A file in the root of the repository, written like a `.gitignore`."""
_SECRET_NAMES: Final = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.asc", "*.gpg"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".git-credentials", "*credential*"),
    *("*secret*", "service-account*.json", ".htpasswd", ".vault-token", "*.tfvars"),
)
_HARMLESS_NAMES: Final = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")
_SECRET_FOLDERS: Final = {".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker", "secrets"}
_PACKAGES: Final = {"node_modules", ".venv", "venv", "site-packages", "vendor"}
"""Folders of published packages: their names say nothing about secrets, and they are large."""
_SECRET_TEXT: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY"
    rb"|\b(sk-[\w-]{20,}|gh[pousr]_\w{30,}|AKIA[0-9A-Z]{16}|xox[bp]-\w+)"
)
_READ: Final = 2**16


async def copy_included(repository: Repository, to: Path, *, most: int = 50_000) -> tuple[str, ...]:
    """Copy the files that git does not have and `.worktreeinclude` names into a new worktree. What
    is left out is returned: secrets, links that lead out of the repository, more than `most`."""
    include = repository.root / INCLUDE
    if not await asyncio.to_thread(include.is_file):
        return ()
    args = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={include}")
    _, output, _ = await repository.run_git(*args)
    names = split_paths(output)
    left_out = await asyncio.to_thread(_copy, repository.root, to, names[:most])
    return (*left_out, *names[most:])


def is_secret(path: Path, name: str) -> bool:
    """Whether a file looks like one that holds a key or a password, by its name or its text."""
    *folders, last = Path(name.lower()).parts
    if _SECRET_FOLDERS & set(folders):
        return True
    if _PACKAGES & set(folders):
        return False
    harmless = any(fnmatch(last, pattern) for pattern in _HARMLESS_NAMES)
    if not harmless and any(fnmatch(last, pattern) for pattern in _SECRET_NAMES):
        return True
    with open(path, "rb") as file:
        return _SECRET_TEXT.search(file.read(_READ)) is not None


def _copy(root: Path, to: Path, names: Sequence[str]) -> list[str]:
    left_out: list[str] = []
    for name in names:
        source, target = root / name, to / name
        try:
            if os.path.lexists(target):
                continue
            inside = source.resolve().is_relative_to(root) and not name.endswith("/")
            if not inside or is_secret(source, name):
                left_out.append(name)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        except OSError:
            left_out.append(name)
    return left_out
