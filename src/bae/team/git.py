"""Runs git for the team. Commands run without hooks, without prompts and without the caller's
environment. A commit changes only the files that its caller names. Merges need no checkout."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Self

from bae.subprocesses import run_program
from bae.tasks import finish_despite_cancel
from bae.team.files import FileLock
from bae.team.models import TeamError, bounded

OLDEST: Final = (2, 38)
"""The oldest supported version of git. Earlier versions cannot merge without a checkout."""
LARGEST_OUTPUT: Final = 64 * 2**20
"""The most bytes that a git command may print."""
BRANCHES: Final = "refs/heads/"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
KEPT: Final = "refs/bae/kept/"
"""The prefix of refs that keep work which is on no branch: uncommitted files of worktrees, and
abandoned attempts."""
_INHERITED: Final = ("HOME", "PATH", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM")
_SETTINGS: Final = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",  # a program that the repository names
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "merge.conflictStyle": "zdiff3",
    "merge.verifySignatures": "false",
    "submodule.recurse": "false",
    "worktree.guessRemote": "false",
}


class GitError(TeamError):
    """A git command failed, or a team cannot work with the state of the repository."""

    code: str = "bae-team-git"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A merge with conflicts."""

    files: tuple[str, ...]
    """The files with conflicts."""
    text: str
    """A text that shows both sides of each conflict."""
    tree: str = ""
    """The merged tree, with conflict markers in the files."""


MADE: Final = "bae-made.txt"
"""The file in a worktree's git directory that lists what setup has made in the worktree. It has the
syntax of `.gitignore`."""
_BYPRODUCTS: Final = ("__pycache__/", "*.pyc", ".pytest_cache/", "node_modules/", ".venv/")


class Checkout(NamedTuple):
    """A directory with files of the repository, and its git directory. Every git command gets both
    paths. Git must not search for the git directory, because code that ran in the checkout may have
    replaced `.git`."""

    path: Path
    git_dir: Path

    def list_exclusions(self) -> list[str]:
        """Return the options of `git ls-files` that exclude what setup and tests have made."""
        options = [f"--exclude={pattern}" for pattern in _BYPRODUCTS]
        setup_results = self.git_dir / MADE
        return [*options, f"--exclude-from={setup_results}"] if setup_results.is_file() else options


class Repository:
    """A git repository with the user's checkout. `open` opens a repository, and `create` makes a
    new one. If the caller is cancelled while a git command runs, the cancellation is raised after
    the command has finished, because a killed git command leaves lock files."""

    def __init__(self, checkout: Checkout, common: Path, *, timeout: float = 120.0) -> None:
        self.checkout = checkout
        self.root = checkout.path
        self.common = common
        self.timeout = timeout
        self.author: tuple[str, str] = ("bae team", "team@bae.invalid")
        self.alive = FileLock(common / "bae-team.lock")
        """The lock that shows that a process works on the repository. Every working process and
        its git commands share this lock."""
        self._programs: tuple[tuple[str, str], ...] = ()
        self._results: dict[tuple[str, ...], tuple[int, bytes, str]] = {}
        self._holders = 0
        self._worktrees = FileLock(common / "bae-worktrees.lock")
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path, *, timeout: float = 120.0) -> Self:
        """Open the repository of a directory. Raises GitError if the directory is not in a git work
        tree."""
        path = await asyncio.to_thread(path.resolve)
        self = cls(Checkout(path, path / ".git"), path / ".git", timeout=timeout)
        await self._check_version(path)
        paths = ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
        args = ("rev-parse", "--path-format=absolute", *paths)
        code, output, problem = await self._run_command(args, path, _make_environment())
        if code:
            await cls.refuse_bare(path)
            fix = "run `git init` there, or name a directory inside a git work tree"
            raise GitError(f"{path} is not in a git work tree: {problem}", fix=fix)
        root, git_dir, common = map(Path, os.fsdecode(output).removesuffix("\n").split("\n"))
        self = cls(Checkout(root, git_dir), common, timeout=timeout)
        _, output, _ = await self.run_git("config", "-z", "--get-regexp", _PROGRAMS)
        entries = (os.fsdecode(entry).partition("\n") for entry in output.split(b"\0"))
        self._programs = tuple((key, value) for key, _, value in entries if value)
        return self

    async def _check_version(self, path: Path) -> None:
        """Raise GitError if git is too old. A process reads the version once for each PATH."""
        search_path = os.environ.get("PATH", "")
        if search_path in _CHECKED_PATHS:
            return
        version = (
            (await self._run_command(("version",), path, _make_environment()))[1].decode().strip()
        )
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
            raise GitError(f"{version} is too old", fix="install git 2.38 or later")
        _CHECKED_PATHS.add(search_path)

    @classmethod
    async def refuse_bare(cls, path: Path) -> None:
        """Raise GitError if a directory is in a bare repository, or in a `.git` folder."""
        self = cls(Checkout(path, path), path)
        args = ("rev-parse", "--is-bare-repository", "--is-inside-git-dir")
        code, output, _ = await self._run_command(args, path, _make_environment())
        if code == 0 and b"true" in output:
            raise GitError(
                f"{path} is in a bare repository, or in a .git folder: there are no files to work "
                "on",
                fix="clone it, or run `git worktree add ../work` there, and use that directory",
            )

    @classmethod
    async def create(cls, path: Path, *, timeout: float = 120.0) -> Self:
        """Create a repository with one empty commit on `main`. Existing files do not change."""
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        path = await asyncio.to_thread(path.resolve)
        self = cls(Checkout(path, path / ".git"), path / ".git", timeout=timeout)
        await self.git("init", "--quiet", "--initial-branch=main", "--template=")
        tree = await self.git("mktree", stdin=b"")
        await self.move(BRANCHES + "main", await self.commit_tree(tree, [], "Start"), None)
        return self

    # --- commands ---

    async def git(
        self,
        *args: str,
        at: Checkout | None = None,
        stdin: bytes | None = None,
        index: Path | None = None,
    ) -> str:
        """Run a git command, and return its output without the last line break. The command runs in
        the user's checkout, or in the checkout `at`. Raises GitError if the command fails."""
        code, output, problem = await self.run_git(*args, at=at, stdin=stdin, index=index)
        text = output.decode("utf-8", "replace").removesuffix("\n")
        if code:
            raise GitError(f"git {args[0]} failed with {code}: {problem or bounded(text)}")
        return text

    async def run_git(
        self,
        *args: str,
        at: Checkout | None = None,
        stdin: bytes | None = None,
        index: Path | None = None,
    ) -> tuple[int, bytes, str]:
        """Run a git command, and return its exit code, its output and its error text."""
        at = at or self.checkout
        # Filters run at the root of the user's checkout. In a worktree, an LLM could have written
        # the script or module that a filter runs.
        filters = {
            key: f"cd {shlex.quote(str(self.root))} && {command}"
            for key, command in self._programs
            if key.startswith("filter.")
        }
        env = _make_environment(filters) | {
            "GIT_DIR": str(at.git_dir),
            "GIT_WORK_TREE": str(at.path),
        }
        for role in ("AUTHOR", "COMMITTER"):
            env[f"GIT_{role}_NAME"], env[f"GIT_{role}_EMAIL"] = self.author
        if index:
            env["GIT_INDEX_FILE"] = str(index)
        return await self._run_command(args, at.path, env, stdin)

    async def _run_cached(self, *args: str) -> tuple[int, bytes, str]:
        """Run a git command as `run_git` does, and cache its result. All commits and trees in
        `args` must be ids, so that the result never changes."""
        if args in self._results:
            return self._results[args]
        code, output, problem = await self.run_git(*args)
        # `git merge-base` ends with 1 if there is no common ancestor, or if a commit is no ancestor
        # of the other. These are results. Any other failure may be temporary.
        if code == 0 or (code == 1 and args[0] == "merge-base"):
            self._cache_result(args, output, code)
        return code, output, problem

    def _cache_result(self, args: tuple[str, ...], output: bytes, code: int = 0) -> None:
        if len(output) <= _LARGEST_RESULT:
            self._results[args] = code, output, ""
            for oldest in tuple(self._results)[:-_MOST_RESULTS]:
                del self._results[oldest]

    async def _run_command(
        self, args: Sequence[str], cwd: Path, env: dict[str, str], stdin: bytes | None = None
    ) -> tuple[int, bytes, str]:
        program = run_program(
            ("git", *args),
            given=stdin or b"",
            cwd=str(cwd),
            env=env,
            timeout=self.timeout,
            limit=LARGEST_OUTPUT,
            grace=5.0,  # git needs time to remove its lock files
            # A git command may outlive a killed run. The next run waits for this lock.
            pass_fds=self.alive.descriptors(),
        )
        try:
            result = await finish_despite_cancel(program)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not await asyncio.to_thread(cwd.is_dir):
                raise GitError(f"there is no directory {cwd}", error) from error
            raise GitError("git was not found", error, fix="install git 2.38 or later") from error
        if result.bound == "timeout":
            raise GitError(f"git {args[0]} took over {self.timeout:g} s in {cwd}")
        if result.bound is not None:
            raise GitError(f"git {args[0]} printed more than {LARGEST_OUTPUT} bytes")
        return result.status, result.out, result.err.decode("utf-8", "replace").strip()

    def runs(self, path: str) -> bool:
        """Whether the user's git runs this file of the repository. Git runs hooks, and the scripts
        that filters and drivers in git's settings name."""
        for key, value in self._programs:
            if key == "core.hookspath":
                folder = os.path.relpath(os.path.join(self.root, value), self.root)
                if path.startswith(f"{folder}/"):
                    return True
            elif path in (os.path.normpath(word.strip("'\"")) for word in value.split()):
                return True
        return False

    @asynccontextmanager
    async def administration(self) -> AsyncGenerator[None]:
        """Lock the list of worktrees for this block. Otherwise another task or process could add or
        remove worktrees at the same time."""
        async with self._turn, self._worktrees.hold(exclusive=True, timeout=self.timeout):
            yield

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Register this process as working while the block runs. Meanwhile no other process cleans
        up the repository."""
        await self.begin_work()
        try:
            yield
        finally:
            self.end_work()

    async def begin_work(self) -> None:
        """Register this process as working until `end_work` is called as often as this method."""
        await self.alive.acquire(exclusive=False, timeout=self.timeout)
        self._holders += 1

    def end_work(self) -> None:
        """Undo one call of `begin_work`."""
        self._holders -= 1
        if self._holders == 0:
            self.alive.release()

    @asynccontextmanager
    async def alone(self, patience: float) -> AsyncGenerator[None]:
        """Ensure that no other process works on the repository while the block runs. Raises
        TimeoutError if another process still works after `patience` seconds."""
        try:
            await self.alive.acquire(exclusive=True, timeout=patience)
            yield
        finally:
            if self._holders:
                await self.alive.acquire(exclusive=False, timeout=self.timeout)
            else:
                self.alive.release()

    async def is_in_use(self) -> bool:
        """Whether another process works on the repository."""
        try:
            async with self.alone(0):
                return False
        except TimeoutError:
            return True

    # --- commits and refs ---

    async def resolve(self, name: str) -> str | None:
        """Return the id of the commit that a name stands for, or None. A complete id is returned
        unchanged, even if the repository does not have the commit."""
        if _COMMIT.fullmatch(name):
            return name
        # A task resolves branches dozens of times, so branches are read without a process if
        # possible.
        if name == "HEAD" or name.startswith(BRANCHES):
            commit = await asyncio.to_thread(self._read_ref, name, self.checkout)
            if commit is not None:
                return commit or None
        args = ("rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}")
        is_fixed = _COMMIT.fullmatch(name.rstrip("^"))
        code, output, _ = await (self._run_cached(*args) if is_fixed else self.run_git(*args))
        return output.decode().strip() if code == 0 else None

    def _read_ref(self, name: str, at: Checkout) -> str | None:
        """Read the commit of a branch, or of a checkout's HEAD, from git's files. Return an empty
        text if there is no such branch, and None if only git can resolve the name."""
        folder = at.git_dir if name == "HEAD" else self.common
        try:
            text = (folder / name).read_text("ascii").strip()
        except FileNotFoundError:
            return self._read_packed_ref(name)
        except (OSError, ValueError):
            return None
        if name == "HEAD" and text.startswith(f"ref: {BRANCHES}"):
            return self._read_ref(text.removeprefix("ref: "), at)
        return text if _COMMIT.fullmatch(text) else None

    def _read_packed_ref(self, name: str) -> str | None:
        """Read the commit of a branch that has no file of its own. Return an empty text if there is
        no such branch, and None if only git can resolve the name."""
        if not _PLAIN_REF.fullmatch(name) or not (self.common / BRANCHES).is_dir():
            return None
        try:
            lines = (self.common / "packed-refs").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            return None
        return next(
            (id for id, _, ref in (line.partition(" ") for line in lines) if ref == name), ""
        )

    async def head(self, at: Checkout) -> str:
        """Return the current commit of a checkout."""
        commit = await asyncio.to_thread(self._read_ref, "HEAD", at)
        return commit or await self.git("rev-parse", "--verify", "HEAD", at=at)

    async def tree_of(self, name: str) -> str:
        """Return the tree of a commit."""
        commit = await self.commit_id(name)
        code, output, problem = await self._run_cached(*_name_tree(commit))
        if code:
            raise GitError(f"the tree of {commit[:12]} cannot be found: {problem}")
        return output.decode().strip()

    async def _read_output(self, *args: str) -> str | None:
        """Return the output of a git command, or None if the command fails."""
        code, output, _ = await self.run_git(*args)
        return output.decode().strip() if code == 0 else None

    async def commit_id(self, name: str) -> str:
        """Return the id of the commit that a name stands for. Raises GitError if there is no such
        commit. As in `resolve`, a complete id is returned unchanged."""
        commit = await self.resolve(name)
        if commit is None:
            problem = "has no commit yet" if name == "HEAD" else f"has no commit {name}"
            first_commit = "commit something first, as with `git commit --allow-empty -m Start`"
            fix = first_commit if name == "HEAD" else None
            raise GitError(f"the repository in {self.root} {problem}", fix=fix)
        return commit

    async def current_branch(self) -> str | None:
        """Return the branch of the user's checkout, without `refs/heads/`. None if HEAD is
        detached."""
        branch = await self._read_output("symbolic-ref", "--quiet", "HEAD")
        return branch and branch.removeprefix(BRANCHES)

    async def merge_base(self, one: str, other: str) -> str | None:
        """Return the newest common ancestor of two commits, or None."""
        ids = await self.resolve(one), await self.resolve(other)
        if None in ids or ids[0] == ids[1]:
            return ids[0] and ids[1]
        code, output, _ = await self._run_cached("merge-base", *filter(None, ids))
        return output.decode().strip() if code == 0 else None

    async def contains(self, commit: str, older: str) -> bool:
        """Whether `older` is the same commit or in the commit's history."""
        ids = await self.resolve(older), await self.resolve(commit)
        if None in ids or ids[0] == ids[1]:
            return None not in ids
        return (await self._run_cached("merge-base", "--is-ancestor", *filter(None, ids)))[0] == 0

    async def move(self, ref: str, to: str, before: str | None) -> bool:
        """Set a ref to a commit if the ref is still at `before`, and return whether it was set. If
        `before` is None, the ref must not exist."""
        code, _, problem = await self.run_git("update-ref", "--", ref, to, before or "0" * len(to))
        if code and await self.resolve(ref) == before:
            raise GitError(f"{ref} cannot be set to {to[:12]}: {problem}")
        return code == 0

    async def commit_tree(self, tree: str, parents: Iterable[str], message: str) -> str:
        """Create a commit that is on no branch, and return its id."""
        args = [word for parent in parents for word in ("-p", parent)]
        text = message.encode("utf-8", "replace").replace(b"\0", b" ")
        commit = await self.git("commit-tree", tree, *args, stdin=text.rstrip() + b"\n")
        self._cache_result(_name_tree(commit), tree.encode())
        return commit

    async def commit(self, at: Checkout, paths: Iterable[str], message: str) -> str | None:
        """Commit the files `paths`, and no others, on the branch of a checkout. If such a file is
        missing, the commit deletes it. Returns the commit, or None if nothing changed."""
        names = list(dict.fromkeys(map(named_path, paths)))
        await asyncio.to_thread(_refuse_links, at.path, names)
        return await finish_despite_cancel(self._commit(at, names, message))

    async def _commit(self, at: Checkout, names: list[str], message: str) -> str | None:
        head = await self.head(at)
        tree = await self.write_tree(at, names)
        if tree == await self.tree_of(head):
            return None
        commit = await self.commit_tree(tree, [head], message)
        await self.git("update-ref", "HEAD", commit, head, at=at)
        return commit

    async def write_tree(
        self, at: Checkout, names: Sequence[str], index: Path | None = None
    ) -> str:
        """Add files to an index, and return the tree of the index. Without `index`, the checkout's
        own index is used."""
        if names:
            # If a folder replaces a file, the file must come before the folder's files. Sorting
            # ensures this.
            paths = b"".join(os.fsencode(name) + b"\0" for name in sorted(names))
            args = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            await self.git(*args, at=at, stdin=paths, index=index)
        return await self.git("write-tree", at=at, index=index)

    async def list_files(self, commit: str) -> tuple[str, ...]:
        """Return the paths of all files in a commit."""
        args = ("ls-tree", "-r", "-z", "--full-tree", "--name-only")
        code, output, problem = await self._run_cached(*args, await self.commit_id(commit))
        if code:
            raise GitError(f"the files of {commit[:12]} cannot be listed: {problem}")
        return split_paths(output)

    async def list_checkout(self, at: Checkout | None = None) -> tuple[str, ...]:
        """Return the paths of the files in a checkout that git tracks or would add. What setup has
        made is left out."""
        args = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
        exclusions = await asyncio.to_thread((at or self.checkout).list_exclusions)
        code, output, problem = await self.run_git(*args, *exclusions, at=at)
        if code:
            raise GitError(f"git ls-files failed with {code}: {problem}")
        return split_paths(output)

    async def read_files(self, commit: str, paths: Sequence[str]) -> list[bytes | None]:
        """Return the contents of files in a commit or a tree. The content of a path is None if
        there is no file, or a folder instead."""
        if not paths:
            return []
        names = [os.fsencode(f"{commit}:{path}") for path in paths]
        stdin = b"".join(name + b"\0" for name in names)
        code, output, problem = await self.run_git("cat-file", "--batch", "-z", stdin=stdin)
        if code:
            raise GitError(f"files cannot be read as they are at {commit[:12]}: {problem}")
        contents: list[bytes | None] = []
        at = 0
        for name in names:
            missing = name + b" missing\n"
            if output.startswith(missing, at):
                contents.append(None)
                at += len(missing)
                continue
            start = output.index(b"\n", at) + 1
            kind, size = output[at:start].split()[-2:]
            end = start + int(size)
            contents.append(output[start:end] if kind == b"blob" else None)
            at = end + 1
        return contents

    async def find_commit(self, text: str, within: str) -> str | None:
        """Return the newest commit in a range whose message contains a text, or None."""
        first, _, last = within.partition("..")
        ids = await self.resolve(first), await self.resolve(last)
        if None not in ids:
            within = f"{ids[0]}..{ids[1]}"
            if ids[0] == ids[1]:
                return None
        args = ("rev-list", "-1", "--fixed-strings", f"--grep={text}", within)
        code, output, problem = await (self.run_git if None in ids else self._run_cached)(*args)
        if code:
            raise GitError(f"the commits {within} cannot be searched: {problem}")
        return output.decode().strip() or None

    async def changed_files(self, before: str, after: str) -> tuple[str, ...]:
        """Return the paths of the files that differ between two commits. Empty if a commit does not
        exist."""
        ids = await self.resolve(before), await self.resolve(after)
        args = ("diff-tree", "-r", "-z", "--name-only", "--no-renames")
        if None in ids or ids[0] == ids[1]:
            return ()
        return split_paths((await self._run_cached(*args, *filter(None, ids)))[1])

    # --- merges ---

    async def merge(
        self, branch: str, into: str, message: str, *, squash: bool = True
    ) -> str | Conflict:
        """Merge a branch into another without a checkout. Returns the new commit, or the conflict.
        No ref moves. With `squash`, the commit's only parent is `into`."""
        ours, theirs = await self.commit_id(into), await self.commit_id(branch)
        tree = await self.merge_tree(branch, into)
        if isinstance(tree, Conflict):
            return tree
        parents = [ours] if squash else [ours, theirs]
        return await self.commit_tree(tree, parents, message)

    async def merge_tree(self, branch: str, into: str) -> str | Conflict:
        """Return the tree of a merge, or the conflict. `into` and `branch` become the labels of the
        conflict markers."""
        args = ("merge-tree", "--write-tree", "-z", "--name-only", "--messages", into, branch)
        code, output, problem = await self.run_git(*args)
        if code not in (0, 1):
            raise GitError(f"{branch} cannot be merged into {into}: {problem}")
        tree, *parts = output.split(b"\0")
        if code == 0:
            return tree.decode().strip()
        end = parts.index(b"")
        files = tuple(dict.fromkeys(map(os.fsdecode, parts[:end])))
        messages = [part.decode("utf-8", "replace").strip() for part in parts[end + 1 :]]
        conflicts = [
            message for message in messages if message.startswith("CONFLICT (") and ":" in message
        ]
        contents = await self.read_files(tree.decode(), files)
        texts = [
            _show_conflict(name, content or b"")
            for name, content in zip(files, contents, strict=True)
        ]
        text = "\n\n".join(("\n".join(conflicts), *filter(None, texts)))
        return Conflict(files, bounded(text), tree.decode())


def _show_conflict(name: str, content: bytes | None) -> str:
    """Return the parts of a merged file that have conflict markers, with line numbers. Empty if the
    file has no conflict markers or is binary."""
    if content is None or b"\0" in content:
        return ""
    lines = content.decode("utf-8", "replace").splitlines()
    shown_lines: set[int] = set()
    start = None
    for number, line in enumerate(lines):
        if line.startswith("<<<<<<< "):
            start = number
        elif line.startswith(">>>>>>> ") and start is not None:
            shown_lines |= set(range(max(0, start - 3), min(len(lines), number + 4)))
    text = "\n".join(f"{n + 1:>5} {lines[n]}" for n in sorted(shown_lines))
    return f"{name}:\n{text}" if text else ""


def named_path(path: str) -> str:
    """Return a path inside a checkout as git names it. Raises GitError if the path leads out of the
    checkout or into `.git`."""
    parts = PurePosixPath(path).parts
    inside = parts and not path.startswith("/") and ".." not in parts and "\0" not in path
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        inside = False
    if not inside:
        raise GitError(f"{path!r} is not a path inside the repository")
    if any(fold_name(part) in (".git", "git~1") for part in parts):
        raise GitError(f"{path!r} belongs to git itself")
    return "/".join(parts)


def fold_name(name: str) -> str:
    """Return a file name in the form in which macOS and Windows compare names."""
    return _IGNORED_CHARACTERS.sub("", name).casefold().rstrip(". ")


def shown_path(path: str) -> str:
    """Return a path as valid text. Bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


def split_paths(output: bytes) -> tuple[str, ...]:
    """Return the paths in the output of a git command that ran with `-z`."""
    return tuple(os.fsdecode(part) for part in output.split(b"\0") if part)


def remove_stale(locks: Iterable[Path], since: float = 0.0, until: float = float("inf")) -> None:
    """Remove lock files of killed git commands. `since` and `until` bound the times when the lock
    files were last changed."""
    for lock in locks:
        with suppress(OSError):
            if since <= lock.stat().st_mtime <= until:
                lock.unlink()


def find_folders(names: Iterable[str]) -> set[str]:
    """Return all folders, at any depth, that contain the files."""
    return {str(folder) for name in names for folder in PurePosixPath(name).parents}


def _refuse_links(root: Path, names: Iterable[str]) -> None:
    folders = find_folders(names)
    for name in names:
        path = root / name
        if path.is_symlink():
            raise GitError(f"{name!r} is a symbolic link", fix="name files only")
        if path.is_dir() and name not in folders:
            raise GitError(f"{name!r} is a directory", fix="name the files in it")


def _name_tree(commit: str) -> tuple[str, ...]:
    return "rev-parse", "--verify", f"{commit}^{{tree}}"


_CHECKED_PATHS: Final = set[str]()
"""The values of PATH whose git is new enough."""
_PLAIN_REF: Final = re.compile(rf"{BRANCHES}[\w./-]+")
_IGNORED_CHARACTERS: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that macOS ignores in names."""
_MOST_RESULTS: Final = 500
_LARGEST_RESULT: Final = 2**16
_PROGRAMS: Final = (
    r"^(core\.hookspath|filter\..*\.(clean|smudge|process)|merge\..*\.driver"
    r"|diff\..*\.(command|textconv))$"
)
"""The git settings that name programs."""


def _make_environment(extra_settings: Mapping[str, str] | None = None) -> dict[str, str]:
    settings = {**_SETTINGS, **(extra_settings or {})}
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env |= {"LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    env |= dict.fromkeys(("GIT_ASKPASS", "SSH_ASKPASS", "GIT_EDITOR"), "false")
    env |= {"GIT_LITERAL_PATHSPECS": "1", "GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env
