"""The worktrees of a team. Each task has a worktree on its own branch, and test runs have temporary
worktrees. Worktrees of a killed run are removed without losing work."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from bae import BaeError
from bae.tasks import finish_despite_cancel
from bae.team.environment import SETUP, Cause, find_setup_cause
from bae.team.files import (
    INCLUDE,
    FileLock,
    copy_files,
    copy_new,
    delete_folder,
    make_accessible,
    remove_abandoned,
)
from bae.team.git import (
    BRANCHES,
    KEPT,
    MADE,
    Checkout,
    Conflict,
    GitError,
    Repository,
    named_path,
    remove_stale,
    split_paths,
)
from bae.team.guarded_files import read_manifests
from bae.team.models import TeamError, bounded, strip_escapes
from bae.team.sandbox import Ran
from bae.team.test_runs import write_command

ATTEMPT: Final = "Bae-Attempt:"
"""Begins the line of a commit message that names the attempt with the committed edits."""
TRAILER: Final = "Bae-Task:"
"""Begins the line of a merge commit's message that names the merged work."""
_PREFIX: Final = "bae."
_CHECK: Final = _PREFIX + "check-"
_TRASH: Final = "removed."
_READY: Final = "bae-ready.txt"
_SETUP: Final = "setup"
_SETUP_SECONDS: Final = 3600.0
_MOST_COMMITS: Final = 10_000
_MODULES: Final = ".gitmodules"
_MOST_COPIED: Final = 50_000


class WorkspaceError(TeamError):
    """A worktree could not be prepared, or leftovers of a killed run could not be cleaned up."""

    code: str = "bae-team-workspace"


class SetupError(WorkspaceError):
    """The setup command failed."""

    reason: Cause = SETUP
    """The likely cause."""
    output: str = ""
    """The full output of the setup command."""


class ManifestError(WorkspaceError):
    """The setup command failed without the network, with manifests that no person has committed.
    bae asks a person. `digest` is a digest of these manifests."""

    def __init__(self, message: str, *, digest: str, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.digest = digest

    @property
    def question(self) -> str:
        """The question to the person."""
        return f"{self.message}\n\n{self.fix}"


RunCommand = Callable[[tuple[str, ...], Path, bool], Awaitable[Ran]]
"""Runs a setup command in a directory. The last argument is whether the command has the network."""


@dataclass
class Workspace:
    """A worktree of a task, or a temporary worktree without a branch."""

    repository: Repository
    checkout: Checkout
    team: str
    """The team's branch."""
    branch: str | None
    base: str
    """The commit that the work starts from."""
    left_out: tuple[str, ...] = ()
    """Files that `.worktreeinclude` names but that were not copied, and missing submodules."""
    submodules: tuple[str, ...] = ()
    """The folders of submodules. A task cannot change them."""

    @property
    def path(self) -> Path:
        """The directory of the worktree."""
        return self.checkout.path

    @property
    def name(self) -> str:
        """The name of the directory without the prefix `bae.`."""
        return self.path.name.removeprefix(_PREFIX)

    async def head(self) -> str:
        """Return the current commit of the worktree."""
        if self.branch is not None:
            return await self.repository.commit_id(BRANCHES + self.branch)
        return await self.repository.head(self.checkout)

    async def commit(self, paths: Sequence[str], message: str) -> str | None:
        """Commit the named files and return the commit. Return None if the files are unchanged."""
        if INCLUDE in (named_path(path).casefold() for path in paths):
            raise WorkspaceError(
                f"{INCLUDE} decides which files a worktree gets: only the user may change it"
            )
        return await self.repository.commit(self.checkout, paths, message)

    async def commit_attempt(self, paths: Sequence[str], title: str, mark: str) -> str | None:
        """Commit the files of an attempt. If `mark` is not empty, the commit message has the mark,
        for `find_attempt`."""
        title = " ".join(title.split()).replace(ATTEMPT, "")
        return await self.commit(
            paths, f"{title}\n\n{ATTEMPT} {mark}\n" if mark else f"{title}\n\n"
        )

    async def find_attempt(self, mark: str) -> str | None:
        """Find the commit of the attempt with this mark. Return None if there is none."""
        within = f"{self.base}..{await self.head()}"
        return await self.repository.find_commit(f"{ATTEMPT} {mark}", within)

    async def uncommitted(self) -> tuple[str, ...]:
        """List the files that were changed, added or removed since the last commit. Files that git
        ignores or `.worktreeinclude` names are left out."""
        ignored = await asyncio.to_thread(self.checkout.list_exclusions)
        include = self.repository.root / INCLUDE
        if await asyncio.to_thread(include.is_file):
            ignored.append(f"--exclude-from={include}")
        args = ("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard")
        code, output, problem = await self.repository.run_git(*args, *ignored, at=self.checkout)
        if code:
            raise GitError(f"the files of {self.path} cannot be listed: {problem}")
        names = dict.fromkeys(split_paths(output))
        return tuple(await asyncio.to_thread(_list_files, self.path, names))

    async def changed(self) -> tuple[str, ...]:
        """List the files with changes since the base, committed or not."""
        committed = await self.repository.changed_files(self.base, await self.head())
        return tuple(sorted({*committed, *await self.uncommitted()}))

    async def diff(self) -> str:
        """Return the diff since the base, in a bounded length. Untracked files are not in it."""
        args = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", self.base)
        return bounded(await self.repository.git(*args, at=self.checkout))

    async def update(self) -> Conflict | None:
        """Merge the team's branch into the task's branch.

        If there is a conflict, commit the files with conflict markers and return the conflict.
        Commit your changes before the call. If an uncommitted change would be overwritten, the
        merge fails."""
        branch, team = f"{BRANCHES}{self.branch}", BRANCHES + self.team
        head, newest = await self.head(), await self.repository.commit_id(team)
        if not await self.repository.contains(head, newest):
            merged = await self.repository.merge_tree(branch, team)
            tree = merged.tree if isinstance(merged, Conflict) else merged
            message = f"Merge {self.team} into {self.branch}"
            commit = await self.repository.commit_tree(tree, [head, newest], message)
            args = ("merge", "--ff-only", "--no-overwrite-ignore", "--no-stat", "--quiet", commit)
            await self.repository.git(*args, at=self.checkout)
            self.base = newest
            return merged if isinstance(merged, Conflict) else None
        self.base = newest
        return None

    async def keep(self, why: str) -> str | None:
        """Store uncommitted changes in a commit under `refs/bae/kept/`, and return the ref. Return
        None if there are no changes. The files stay as they are."""
        return await finish_despite_cancel(self._keep_changes(why))

    async def restore(self, why: str) -> str | None:
        """Reset the files to the last commit. Uncommitted changes, for example by tests, are first
        stored as in `keep`. Return the ref, or None if there are no changes."""
        return await finish_despite_cancel(self._restore_files(why))

    async def bring_back(self) -> str | None:
        """Restore the files that the last `keep` stored, and return the ref. Return None if nothing
        is stored for the current commit, or if there are uncommitted changes."""
        form = "--format=%(refname) %(parent)"
        args = ("for-each-ref", "--sort=-creatordate", form, f"{KEPT}{self.name}/")
        lines = (await self.repository.git(*args)).splitlines()
        head = await self.head()
        kept_ref = next(
            (ref for ref, _, parent in (line.partition(" ") for line in lines) if parent == head),
            None,
        )
        if kept_ref is None or await self.uncommitted():
            return None
        restore = ("restore", "--no-overlay", "--worktree", f"--source={kept_ref}", "--", ".")
        await finish_despite_cancel(self.repository.git(*restore, at=self.checkout))
        return kept_ref

    async def _restore_files(self, why: str) -> str | None:
        if not await self.uncommitted():
            return None
        kept_ref = await self._keep_changes(why)
        await asyncio.to_thread(_remove_files, self.path, await self.uncommitted())
        await self.repository.git("reset", "--hard", "--quiet", "HEAD", at=self.checkout)
        return kept_ref

    async def _keep_changes(self, why: str) -> str | None:
        await asyncio.to_thread(make_accessible, self.path)
        tree = await self._write_tree()
        head = await self.head()
        if tree == await self.repository.tree_of(head):
            return None
        commit = await self.repository.commit_tree(tree, [head], f"Left in {self.name}: {why}")
        return await keep_commit(self.repository, self.name, commit)

    async def _write_tree(self) -> str:
        """Write a git tree with all files as they are now, and return its hash."""
        git_index = self.checkout.git_dir / "index"
        temporary_index = git_index.with_name("bae-index.tmp")
        names = await self.uncommitted()
        try:
            await asyncio.to_thread(shutil.copyfile, git_index, temporary_index)
            return await self.repository.write_tree(self.checkout, names, temporary_index)
        finally:
            await asyncio.to_thread(temporary_index.unlink, missing_ok=True)


async def keep_commit(repository: Repository, name: str, commit: str) -> str:
    """Store a ref for a commit that is on no branch, so that git does not delete the commit. Return
    the ref."""
    ref = f"{KEPT}{name}/{commit[:12]}"
    await repository.move(ref, commit, None)
    return ref


@dataclass
class RecoveredWork:
    """The result of cleaning up after a killed run."""

    worktrees: list[str] = field(default_factory=list[str])
    """The names of the removed worktrees."""
    kept: list[str] = field(default_factory=list[str])
    """The refs that store uncommitted work."""
    problems: list[str] = field(default_factory=list[str])
    """The worktrees and folders that could not be removed, with the reasons."""


class Workspaces:
    """The worktrees of a team, in one directory. By default, the directory is beside the
    repository.

    `run` runs the `setup` command in the sandbox. Setup has the network only in a folder with the
    newest commit of a person. It runs there once for each such commit, and worktrees get a copy of
    the result. If the manifests of a worktree differ from the manifests of that commit, setup runs
    again in the worktree, without the network."""

    def __init__(
        self,
        repository: Repository,
        team: str,
        directory: Path | None = None,
        *,
        setup: Sequence[str] = (),
        run: RunCommand | None = None,
    ) -> None:
        root = repository.root
        self.repository = repository
        self.team = team
        self.directory = (directory or root.parent / f".{root.name}.team").resolve()
        self.setup = tuple(setup)
        self._run = run
        self._open: set[Path] = set()
        self._setting_up = asyncio.Lock()
        if self.setup and run is None:
            raise ValueError("a setup command needs `run`")

    async def start(self, branch: str) -> Workspace:
        """Create the worktree of a task's branch, or reuse an existing worktree.

        An existing branch is continued, unless it was merged. A new or merged branch starts at the
        head of the team's branch."""
        path = self.directory / (_PREFIX + branch.removeprefix("bae/").replace("/", "-"))
        admin = (await asyncio.to_thread(self._list_worktrees)).get(path)
        if admin and not await asyncio.to_thread(_has_work, path, admin):
            await self._remove_worktree(path, admin)
        is_new = False
        try:
            async with self.repository.administration():
                if path not in await asyncio.to_thread(self._list_worktrees):
                    # If a folder exists, git refuses to create the worktree, and the folder must
                    # not be removed.
                    is_new = not await asyncio.to_thread(path.exists)
                    await self._set_branch(branch, path.name.removeprefix(_PREFIX))
                    await self._add_worktree(path, branch)
            head = await self.repository.commit_id(BRANCHES + self.team)
            base = await self.repository.merge_base(head, BRANCHES + branch)
            if base is None:
                raise WorkspaceError(f"{branch} and {self.team} have no commit in common")
            return await self._prepare_worktree(path, branch, base)
        except BaseException:
            if is_new:  # the worktree has no work yet
                await finish_despite_cancel(self._remove_worktree(path))
            raise

    @asynccontextmanager
    async def scratch(self, commit: str, base: str | None = None) -> AsyncGenerator[Workspace]:
        """Create a temporary worktree of a commit for tests, and remove it when the block ends."""
        commit = await self.repository.commit_id(commit)
        path = self.directory / f"{_CHECK}{os.urandom(4).hex()}"
        try:
            async with self.repository.administration():
                await self._add_worktree(path, "--detach", commit)
            workspace = await self._prepare_worktree(path, None, base or commit)
            await self.refresh(workspace)
            yield workspace
        finally:
            await finish_despite_cancel(self._remove_worktree(path))

    async def remove(self, workspace: Workspace, why: str = "removed") -> str | None:
        """Remove a worktree, but not its branch. Uncommitted changes are stored as in
        `Workspace.keep`. Return their ref, or None if there are no changes."""
        kept_ref = await workspace.keep(why) if workspace.branch else None
        await finish_despite_cancel(self._remove_worktree(workspace.path))
        return kept_ref

    async def clean(self) -> RecoveredWork:
        """Remove the worktrees and lock files of a killed run. Uncommitted changes are kept under
        `refs/bae/kept/`. Call this method inside `repository.alone`."""
        recovered = RecoveredWork()
        await asyncio.to_thread(self._remove_locks)
        worktrees = await asyncio.to_thread(self._list_worktrees)
        for path, admin in worktrees.items():
            if path in self._open:
                continue
            try:
                kept_ref = await self._remove_unused(path, admin, "the run was killed")
                recovered.worktrees.append(path.name.removeprefix(_PREFIX))
                recovered.kept += [kept_ref] if kept_ref else []
            except (BaeError, OSError) as error:
                recovered.problems.append(f"{path} is left as it is: {error}")
        await asyncio.to_thread(self._empty_trash)
        await asyncio.to_thread(remove_abandoned)
        for path in await asyncio.to_thread(_list_folders, self.directory, _PREFIX):
            if path not in worktrees:
                recovered.problems.append(f"{path} is left as it is: git does not know it")
        return recovered

    async def _remove_unused(self, path: Path, admin: Path, why: str) -> str | None:
        """Remove an unused worktree. Return the ref that stores its uncommitted changes, or None if
        there are none."""
        kept_ref = None
        if await asyncio.to_thread(_has_work, path, admin) and not path.name.startswith(_CHECK):
            workspace = Workspace(self.repository, Checkout(path, admin), self.team, None, "")
            kept_ref = await workspace.keep(why)
        await self._remove_worktree(path, admin)
        return kept_ref

    async def _set_branch(self, branch: str, name: str) -> None:
        """Create a task's branch at the head of the team's branch. An existing branch with unmerged
        work stays as it is."""
        head = await self.repository.commit_id(BRANCHES + self.team)
        tip = await self.repository.resolve(BRANCHES + branch)
        if tip and not await self.repository.contains(head, tip):
            if not await self.repository.find_commit(trailer(branch, tip), f"{tip}..{head}"):
                return
            await keep_commit(self.repository, name, tip)
        if tip != head and not await self.repository.move(BRANCHES + branch, head, tip):
            raise WorkspaceError(f"{branch} was moved by another process")

    async def _add_worktree(self, path: Path, *arguments: str) -> None:
        await asyncio.to_thread(self.directory.mkdir, parents=True, exist_ok=True)
        await self._mark_open(path)
        await self.repository.git("worktree", "add", "--quiet", str(path), *arguments)

    async def _mark_open(self, path: Path) -> None:
        await self.repository.begin_work()
        if path in self._open:
            self.repository.end_work()
        self._open.add(path)

    async def _prepare_worktree(self, path: Path, branch: str | None, base: str) -> Workspace:
        await self._mark_open(path)
        admin = (await asyncio.to_thread(self._list_worktrees))[path]
        workspace = Workspace(self.repository, Checkout(path, admin), self.team, branch, base)
        links: dict[str, str] = {}
        if await asyncio.to_thread((path / _MODULES).is_file):
            links = await self._find_submodules(self.repository.checkout, await workspace.head())
        workspace.submodules = tuple(links)
        ready = admin / _READY
        if not await asyncio.to_thread(ready.exists):
            missing = [
                name
                for name in links
                if not await self._write_submodule(
                    path / name, self.repository.root / name, links[name]
                )
            ]
            workspace.left_out = (*await self._copy_included(path), *missing)
            installed = await self._copy_setup(workspace.checkout) if self.setup else ""
            await asyncio.to_thread(ready.write_text, installed)
        return workspace

    async def refresh(self, workspace: Workspace) -> None:
        """Run setup again, without the network, if the manifests of a worktree have changed. Raise
        ManifestError if setup fails."""

        if not self.setup or self._run is None:
            return
        ready = workspace.checkout.git_dir / _READY
        head = await workspace.head()
        manifests = await read_manifests(self.repository, head, self.setup)
        if await asyncio.to_thread(ready.read_text) == manifests:
            return
        ran = await self._run(self.setup, workspace.path, False)
        if ran.exit_code != 0:
            raise ManifestError(
                f"{_describe_failed_setup(self.setup, ran)}\n\nIt ran without the network, because "
                "the manifests differ from the manifests of your newest commit",
                digest=manifests,
                fix="Read the manifests. Take them into a commit of yours, by hand or with `git "
                f"merge --no-ff {self.team}`, so that setup runs for it with the network. Then "
                "answer `yes`. Any other answer is guidance for the next attempt.",
            )
        await asyncio.to_thread(ready.write_text, manifests)

    async def _copy_setup(self, to: Checkout) -> str:
        """Copy the result of setup for the newest commit of a person into a worktree. If there is
        no result yet, run setup.

        Return the digest of that commit's manifests, or an empty text if no person has made a
        commit."""
        commit = await self._find_commit_of_person()
        if commit is None:
            return ""
        setup_folder = self.directory / _SETUP
        await asyncio.to_thread(setup_folder.mkdir, parents=True, exist_ok=True)
        key = sha256("\0".join((commit, *self.setup)).encode()).hexdigest()[:12]
        marker, lock = setup_folder / f"{key}.ready", FileLock(setup_folder / "lock")
        async with self._setting_up, lock.hold(exclusive=True, timeout=_SETUP_SECONDS):
            committed_files = await self.repository.list_files(commit)
            if not await asyncio.to_thread(marker.exists):
                await self._set_up(commit, setup_folder / key)
                await asyncio.to_thread(_remove_others, setup_folder, key)
                await asyncio.to_thread(marker.touch)
            copied_files = await asyncio.to_thread(
                copy_new, setup_folder / key, to.path, frozenset(committed_files)
            )
        lines = b"".join(b"/%b\n" % _escape(os.fsencode(name)) for name in copied_files)
        await asyncio.to_thread((to.git_dir / MADE).write_bytes, lines)
        return await read_manifests(self.repository, commit, self.setup)

    async def _set_up(self, commit: str, path: Path) -> None:
        """Run the setup command, with the network, in a folder with the files of a commit."""
        assert self._run is not None
        await asyncio.to_thread(delete_folder, path)
        await asyncio.to_thread(path.mkdir, parents=True)
        await self._check_out_alone(commit, path)
        await self._copy_included(path)
        ran = await self._run(self.setup, path, True)
        if ran.exit_code != 0:
            raise SetupError(
                _describe_failed_setup(self.setup, ran),
                fix="run it in a fresh clone, and correct it",
                reason=find_setup_cause(ran),
                output=strip_escapes(ran.output).strip(),
            )

    async def _check_out_alone(self, commit: str, path: Path) -> None:
        """Write the files of a commit into a folder with a repository of its own.

        The repository has the history since the last tag with a number, because some builds read
        their version from the history. It has no remotes and no other branches."""
        checkout = Checkout(path, path / ".git")
        args = ("describe", "--tags", "--abbrev=0", "--match=*[0-9]*", commit)
        code, output, _ = await self.repository.run_git(*args)
        tag = "" if code else os.fsdecode(output).strip()
        depth = 1
        if tag:
            since = await self.repository.git("rev-list", "--count", f"{tag}..{commit}")
            depth += min(int(since), _MOST_COMMITS)
        tags = [f"refs/tags/{tag}:refs/tags/{tag}"] if tag else []
        await self.repository.git("init", "--quiet", "--template=", at=checkout)
        source = self.repository.common.as_uri()
        fetch = ("fetch", "--quiet", "--no-tags", f"--depth={depth}", source, commit, *tags)
        await self.repository.git(*fetch, at=checkout)
        await self.repository.git("update-ref", "HEAD", commit, at=checkout)
        await self.repository.git("read-tree", commit, at=checkout)
        await self.repository.git("checkout-index", "--all", "--index", at=checkout)

    async def _find_commit_of_person(self) -> str | None:
        """Find the newest commit in the history of the user's branch that a person made."""
        args = ("log", "--topo-order", f"--max-count={_MOST_COMMITS}", "--format=%H %ce", "HEAD")
        lines = (await self.repository.git(*args)).splitlines()
        bae_email = self.repository.author[1]
        commits = (line.partition(" ") for line in lines)
        return next((commit for commit, _, email in commits if email != bae_email), None)

    async def _find_submodules(self, at: Checkout, commit: str) -> dict[str, str]:
        """Return the commit of each submodule in a commit, by the path of the submodule."""
        _, output, _ = await self.repository.run_git("ls-tree", "-r", "-z", commit, at=at)
        entries = (entry.split(b"\t", 1) for entry in output.split(b"\0") if b"\t" in entry)
        return {
            os.fsdecode(path): description.split()[2].decode()
            for description, path in entries
            if description.startswith(b"160000 ")
        }

    async def _write_submodule(self, to: Path, source: Path, commit: str) -> bool:
        """Write the files of a submodule into a new worktree, as plain files. Do the same for the
        submodules inside it.

        The files come from the repositories in the user's checkout, without the network. Return
        whether the repository at `source` exists."""
        if not await asyncio.to_thread((source / ".git").exists):
            return False
        try:
            submodule = Checkout(to, (await Repository.open(source)).checkout.git_dir)
        except GitError:  # the submodule's repository was removed
            return False
        index = submodule.git_dir / f"index-of-bae.{os.urandom(4).hex()}.tmp"
        try:
            await self.repository.git("read-tree", commit, at=submodule, index=index)
            await self.repository.git(
                "checkout-index", "--all", "--force", at=submodule, index=index
            )
        except GitError as error:
            name = source.relative_to(self.repository.root)
            raise WorkspaceError(
                f"the submodule {name} has no commit {commit[:12]} on this machine",
                error,
                fix=f"run `git submodule update --init --recursive` in {self.repository.root}",
            ) from error
        finally:
            await asyncio.to_thread(index.unlink, missing_ok=True)
        for name, inner in (await self._find_submodules(submodule, commit)).items():
            await self._write_submodule(to / name, source / name, inner)
        return True

    async def _copy_included(self, to: Path) -> tuple[str, ...]:
        """Copy the untracked files that `.worktreeinclude` names into a new worktree.

        Return the files that were not copied: secrets, links that lead out of the repository, and
        all files after the first 50,000."""
        include = self.repository.root / INCLUDE
        if not await asyncio.to_thread(include.is_file):
            return ()
        args = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={include}")
        _, output, _ = await self.repository.run_git(*args)
        names = split_paths(output)
        root = self.repository.root
        left_out = await asyncio.to_thread(copy_files, root, to, names[:_MOST_COPIED])
        return (*left_out, *names[_MOST_COPIED:])

    async def _remove_worktree(self, path: Path, admin: Path | None = None) -> None:
        """Remove a worktree. Its folder is renamed first. So if a kill interrupts the removal, the
        rest of the folder is not taken for a worktree with work."""
        async with self.repository.administration():
            entries = await asyncio.to_thread(self._list_worktrees)
            admin = admin or entries.get(path)
            trash = self.directory / (_TRASH + path.name)
            await asyncio.to_thread(delete_folder, trash)
            with suppress(FileNotFoundError):
                await asyncio.to_thread(path.rename, trash)
            if admin is not None:
                await asyncio.to_thread(delete_folder, admin)
        if path in self._open:
            self._open.remove(path)
            self.repository.end_work()
        await asyncio.to_thread(delete_folder, trash)

    def _empty_trash(self) -> None:
        for path in _list_folders(self.directory, _TRASH):
            delete_folder(path)

    def _list_worktrees(self) -> dict[Path, Path]:
        """Return the folders of the team's worktrees, each with the folder in which git stores its
        records of the worktree. The records may be incomplete."""
        entries: dict[Path, Path] = {}
        for admin in _list_folders(self.repository.common / "worktrees", _PREFIX):
            path = self.directory / admin.name
            with suppress(OSError):
                pointer = os.fsdecode((admin / "gitdir").read_bytes()).strip()
                # The file is empty if git was killed before it wrote the path.
                path = Path(pointer).parent if pointer else path
            if path.parent == self.directory and path.name.startswith(_PREFIX):
                entries[path] = admin
        return entries

    def _remove_locks(self) -> None:
        common = self.repository.common
        for admin in self._list_worktrees().values():
            remove_stale(admin.rglob("*.lock"))
        remove_stale((common / "refs" / "bae").rglob("*.lock"))
        remove_stale((common / "refs" / "heads" / "bae").rglob("*.lock"))
        remove_stale([common / "refs" / "heads" / f"{self.team}.lock"])


def _describe_failed_setup(command: Sequence[str], ran: Ran) -> str:
    output = bounded(strip_escapes(ran.output).strip(), 4000)
    why = ran.problem or f"failed with {ran.exit_code}"
    return f"the setup command {write_command(command)}: {why}\n{output}"


def _escape(name: bytes) -> bytes:
    """Escape a name for `.gitignore`. A line break becomes `?`, because `.gitignore` cannot express
    line breaks."""
    return re.sub(rb"([\\*?\[ ])", rb"\\\1", name).replace(b"\n", b"?")


def _remove_others(place: Path, key: str) -> None:
    """Remove the results of setup for earlier commits. Worktrees do not need them, because each has
    a copy."""
    for path in place.iterdir():
        if path.suffix == ".ready" and path.stem != key:
            path.unlink(missing_ok=True)
        elif path.is_dir() and path.name != key:
            delete_folder(path)


def trailer(branch: str, tip: str) -> str:
    """Return the line of a merge commit's message that names the merged work."""
    return f"{TRAILER} {branch} {tip}"


def _has_work(path: Path, admin: Path) -> bool:
    """Return whether a worktree may have work. A worktree whose creation or removal was interrupted
    has none.

    If the worktree is locked, or if git's records are incomplete, raise WorkspaceError: the
    worktree must stay."""
    with suppress(FileNotFoundError):
        reason = (admin / "locked").read_text().strip()
        # `locked` is the first file that git writes. With this content, or without `gitdir`, git
        # was killed while it created the worktree.
        if reason == "initializing" or not (admin / "gitdir").exists():
            return False
        raise WorkspaceError(f"{path} is locked: {reason or 'git worktree unlock'}")
    if not path.is_dir():  # a kill interrupted its removal
        return False
    missing = [name for name in ("HEAD", "index", "commondir") if not (admin / name).is_file()]
    if missing:
        raise WorkspaceError(f"{admin} has no {missing[0]}", fix=f"look at {path} and remove it")
    return True


def _list_files(root: Path, names: Sequence[str] | dict[str, None]) -> list[str]:
    """List the files of paths. A path that ends with `/` is a repository: its files are listed."""
    paths: list[str] = []
    for name in names:
        if not name.endswith("/"):
            paths.append(name)
            continue
        for folder, folders, files in os.walk(root / name):
            folders[:] = [entry for entry in folders if entry != ".git"]
            place = Path(folder).relative_to(root)
            paths += [str(place / entry) for entry in files if entry != ".git"]
    return paths


def _remove_files(root: Path, names: Sequence[str]) -> None:
    for name in names:
        with suppress(OSError):
            (root / name).unlink()


def _list_folders(directory: Path, prefix: str) -> list[Path]:
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return []
    return [path for path in paths if path.name.startswith(prefix) and path.is_dir()]
