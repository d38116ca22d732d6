"""The user's own checkout: it moves by fast-forward only, and only when it is clean. A move that
was killed halfway is completed by the next run."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bae.tasks import finish_despite_cancel
from bae.team.git import BRANCHES, Repository, remove_stale
from bae.team.models import bounded

_NOTE: Final = "bae-fast-forward.json"
_UNFINISHED: Final = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG"),
    *("rebase-merge", "rebase-apply"),
)


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of the user's checkout: the commit that it is at now, and the reason why it was
    left alone, if it was."""

    commit: str
    reason: str = ""


async def fast_forward(repository: Repository, to: str, *, branch: str | None = None) -> Moved:
    """Move the user's checkout and its branch to a newer commit. It is left alone unless it is
    clean, on a branch (the one given, if any) and behind that commit; files that git does not
    track, ignored ones included, are never overwritten."""
    to = await repository.commit_id(to)
    head = await repository.commit_id("HEAD")
    if head == to:
        return Moved(head)
    reason = await _reason_to_stay(repository, head, to, branch)
    if reason:
        return Moved(head, reason)
    async with repository.at_work():
        return await finish_despite_cancel(_move(repository, head, to))


async def repair(repository: Repository) -> Moved | None:
    """Complete a fast-forward that was killed halfway; None where there was none. Only files are
    written that are as they were before, or hold what git had put there, or the beginning of it.
    Call it inside `repository.alone`."""
    note = repository.common / _NOTE
    try:
        written = (await asyncio.to_thread(note.stat)).st_mtime
        said: dict[str, str] = json.loads(await asyncio.to_thread(note.read_text))
        before, after = said["before"], said["after"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError):  # killed while the note was written: nothing had begun
        await asyncio.to_thread(note.unlink)
        return None
    branch = await repository.current_branch()
    refs = ("index", "HEAD", "ORIG_HEAD", *([BRANCHES + branch] if branch else []))
    folders = {repository.checkout.git_dir, repository.common}
    locks = [folder / f"{ref}.lock" for folder in folders for ref in refs]
    # Later ones are of the user's own commands.
    await asyncio.to_thread(remove_stale, locks, written - 1, written + repository.timeout)
    head = await repository.commit_id("HEAD")
    if head == before:
        await _undo(repository, before, after)
    await asyncio.to_thread(note.unlink)
    if head != before:
        return Moved(head, "" if head == after else "it was moved by other means")
    reason = await _reason_to_stay(repository, before, after, None)
    return Moved(before, reason) if reason else await _move(repository, before, after)


async def _reason_to_stay(
    repository: Repository, head: str, to: str, branch: str | None
) -> str | None:
    here = await repository.current_branch()
    if here is None:
        return "it is on no branch"
    if branch not in (None, here):
        return f"it is on {here}, not on {branch}"
    if not await repository.contains(to, head):
        return f"{here} has commits that {to[:12]} does not have"
    for name in _UNFINISHED:
        if await asyncio.to_thread((repository.checkout.git_dir / name).exists):
            return f"an operation of git's is not finished there ({name})"
    args = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all")
    changes = await repository.git(*args)
    if changes:
        names = [part[3:] for part in changes.split("\0") if part]
        return f"it has uncommitted changes: {bounded(', '.join(names), 500)}"
    return None


async def _move(repository: Repository, head: str, to: str) -> Moved:
    note = repository.common / _NOTE
    await asyncio.to_thread(note.write_text, json.dumps({"before": head, "after": to}))
    args = ("merge", "--ff-only", "--no-overwrite-ignore", "--no-stat", "--quiet", to)
    code, output, problem = await repository.run_git(*args)
    await asyncio.to_thread(note.unlink)
    if code:
        return Moved(head, problem or output.decode("utf-8", "replace").strip())
    return Moved(to)


async def _undo(repository: Repository, before: str, after: str) -> None:
    known: list[str] = []
    new: list[str] = []
    for name in await repository.changed_files(before, after):
        args = ("cat-file", "--filters")
        missing, old, _ = await repository.run_git(*args, f"{before}:{name}")
        _, written, _ = await repository.run_git(*args, f"{after}:{name}")
        now = await asyncio.to_thread(_content, repository.root / name)
        if now is not None and now != old and written.startswith(now):
            (new if missing else known).append(name)
    if known:
        paths = ("--pathspec-from-file=-", "--pathspec-file-nul")
        await repository.git("checkout", "--quiet", before, *paths, stdin=_joined(known))
    if new:
        await repository.git("update-index", "--force-remove", "-z", "--stdin", stdin=_joined(new))
        for name in new:
            with suppress(FileNotFoundError):
                await asyncio.to_thread((repository.root / name).unlink)


def _content(path: Path) -> bytes | None:
    """What a file holds, nothing where there is none; None where it cannot be of git's making."""
    try:
        return None if path.is_symlink() else path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError:
        return None


def _joined(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)
