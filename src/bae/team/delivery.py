"""Gives a team's work to the user. A task's change is shown as a diff. All merged tasks become one
merge commit or one patch, whose message names the tests that prove each task. Merged branches are
deleted. Nothing here runs without a person's command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bae.team.git import BRANCHES, Conflict, GitError, Repository, shown_path
from bae.team.models import (
    Project,
    Review,
    Task,
    TaskAttempt,
    TeamError,
    TestReport,
    strip_escapes,
)

if TYPE_CHECKING:
    from bae.team.store import Store

MOST_TESTS: Final = 20
"""The most tests that a merge message lists for a task."""
_PLAIN: Final = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


@dataclass(frozen=True, slots=True)
class ProvedTask:
    """A merged task, with the tests that prove its work."""

    task: Task
    tests: tuple[str, ...]
    """The ids of the proving tests. Empty for a task that a person approved without tests."""
    review: Review | None = None
    """The review of the merged work, or None if the work was not reviewed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The team's work that a branch of the user does not have yet."""

    into: str
    """The user's branch."""
    branch: str
    """The team's branch."""
    start: str
    """The newest commit of the user's branch. If the branch does not exist yet, the user's current
    commit."""
    head: str
    """The newest commit of the team's branch."""
    tasks: tuple[ProvedTask, ...] = ()
    """The merged tasks that the user's branch does not have yet."""
    commit: str | None = None
    """The merge commit, or None if the work is not merged."""

    @property
    def message(self) -> str:
        """The message of the merge commit. It lists the tasks, the tests that prove each task, and
        the findings of reviewers."""
        count = len(self.tasks)
        lines = [f"Merge {count} {'task' if count == 1 else 'tasks'} of {self.branch}"]
        for task in self.tasks:
            lines += ["", f"{task.task.key}: {_put_on_one_line(task.task.title)}"]
            lines += (f"- {_put_on_one_line(name)}" for name in task.tests[:MOST_TESTS])
            if len(task.tests) > MOST_TESTS:
                lines.append(f"- and {len(task.tests) - MOST_TESTS} more tests")
            if not task.tests:
                lines.append("- without tests, as a person approved")
            if task.review is not None:
                lines += (f"- review, {_put_on_one_line(str(f))}" for f in task.review.findings)
        return "\n".join(lines) + "\n"


async def diff_task(
    project: Project, repository: Repository, task: Task, *, stat: bool = False
) -> str:
    """Return the change of a task as a git diff. If the task is merged, this is the change of its
    merged commit. Otherwise this is the change of its branch so far. With `stat`, return the number
    of changed lines for each file instead."""
    start, end = await _find_change(project, repository, task)
    return await read_diff(repository, start, end, *(("--stat", "--summary") if stat else ()))


async def diff_attempt(
    project: Project, repository: Repository, task: Task, attempt: TaskAttempt
) -> str:
    """Return the change that was judged in an attempt at a task, as a git diff."""
    # "^0" makes git look the commit up: a complete id alone resolves to itself.
    commit = attempt.commit and await repository.resolve(f"{attempt.commit}^0")
    if not commit:
        reason = "its commit is gone" if attempt.commit else "it has written nothing"
        raise TeamError(
            f"attempt {attempt.number} at {task.key} has no change to show: {reason}",
            code="bae-team-unknown",
            fix="look at the log of the task",
        )
    into = await repository.resolve(BRANCHES + (task.feature_branch or project.branch))
    start = into and await repository.merge_base(into, commit)
    if start is None or start == commit:
        start = task.base or await repository.commit_id(f"{commit}^")
    return await read_diff(repository, start, commit)


async def read_diff(repository: Repository, start: str, end: str, *options: str) -> str:
    """Return the difference between two commits as a git diff. The user's git settings do not
    change the format."""
    code, output, problem = await repository.run_git("diff", *_PLAIN, *options, start, end)
    if code:
        raise GitError(f"the change from {start} to {end} cannot be shown: {problem}")
    return output.decode("utf-8", "surrogateescape")


async def _find_change(project: Project, repository: Repository, task: Task) -> tuple[str, str]:
    if task.commit is not None:
        return await repository.commit_id(f"{task.commit}^"), task.commit
    tip = await repository.resolve(BRANCHES + task.branch)
    into = BRANCHES + (task.feature_branch or project.branch)
    start = tip and await repository.merge_base(into, tip)
    if tip is None or not start or start == tip:
        raise TeamError(
            f"nothing is written for {task.key} yet: it is {task.status.label}",
            code="bae-team-unknown",
            fix="bae team run",
        )
    return start, tip


async def find_delivery(
    project: Project, repository: Repository, store: Store, into: str | None = None
) -> Delivery:
    """Find the team's work that the branch `into` does not have. The default is the user's current
    branch. If `into` does not exist, compare with the user's current commit."""
    from bae.team.workbench import open_reports  # slow to load

    branch = into or await repository.current_branch()
    if branch is None:
        raise GitError("your checkout is on no branch", fix="name a branch with --into")
    if branch == project.branch:
        raise GitError(f"{branch} is the team's own branch", fix="name another branch")
    if (await repository.run_git("check-ref-format", BRANCHES + branch))[0] or branch[0] == "-":
        raise GitError(f"{branch!r} is not a valid branch name", fix="name another branch")
    head = await repository.resolve(BRANCHES + project.branch)
    if head is None:
        raise GitError(f"there is no {project.branch} yet", fix="bae team run")
    start = await repository.resolve(BRANCHES + branch) or await repository.commit_id("HEAD")
    reports = open_reports(project, repository, store, {})
    reviews = await store.reviews(project.id)
    proved_tasks: list[ProvedTask] = []
    for task in await store.tasks(project.id):
        if task.commit is None or not await repository.contains(head, task.commit):
            continue  # the next delivery has tasks that were merged after `head`
        if await repository.contains(start, task.commit):
            continue
        before = await reports.find(await repository.commit_id(f"{task.commit}^"))
        tests = find_proving_tests(task, await store.attempts(task.id), before)
        review = await _find_review(repository, task, reviews.get(task.id, ()))
        proved_tasks.append(ProvedTask(task, tests, review))
    return Delivery(branch, project.branch, start, head, tuple(proved_tasks))


async def _find_review(
    repository: Repository, task: Task, reviews: Sequence[Review]
) -> Review | None:
    """Return the review of a task's merged work, or None. Reviews of refused work are ignored."""
    from bae.team.workspaces import trailer

    within = f"{task.commit}^..{task.commit}"
    for review in reversed(reviews):
        if await repository.find_commit(trailer(task.branch, review.commit), within):
            return review
    return None


def find_proving_tests(
    task: Task, attempts: Sequence[TaskAttempt], before: TestReport | None
) -> tuple[str, ...]:
    """Return the ids of the tests that prove a task. With the proof `none`, no test proves the
    task. With `named-tests`, these are the tests that the task names. With `failing-tests`, these
    are the task's new tests, which fail until the feature is complete. Otherwise, these are the
    tests that pass with the work and did not pass before. If there are none, these are the passing
    tests in files that the task changed. `before` is the test report from before the task, or None
    if that report is unknown."""
    if task.proof == "none":
        return ()
    if task.proof == "named-tests":
        return task.tests
    last = next((attempt for attempt in reversed(attempts) if attempt.outcome == "passed"), None)
    if last is None or last.report is None:
        return ()
    if task.proof == "failing-tests":  # these tests pass when the feature is complete
        old_ids = {case.id for case in before.cases} if before else set[str]()
        return tuple(case.id for case in last.report.of("failed") if case.id not in old_ids)
    passed = [case.id for case in last.report.of("passed")]
    passed_before = {case.id for case in before.of("passed")} if before else set[str]()
    new_ids = [id for id in passed if id not in passed_before] if before else []
    return tuple(new_ids or (id for id in passed if id.partition("::")[0] in last.files))


async def merge_work(
    project: Project, repository: Repository, store: Store, into: str | None = None
) -> Delivery:
    """Merge the team's branch into the branch `into`, as one merge commit by the user. The default
    is the user's current branch. If `into` does not exist, it is created. If there are conflicts,
    or `into` is checked out with uncommitted changes or in another worktree, GitError is raised and
    nothing changes."""
    from bae.team.integration import fast_forward

    delivery = await find_delivery(project, repository, store, into)
    if not delivery.tasks:
        return delivery
    user_repository = await _copy_as_user(repository)
    ref = BRANCHES + delivery.into
    before = delivery.start if await repository.resolve(ref) else None
    path = await repository.git("for-each-ref", "--format=%(worktreepath)", ref)
    is_checked_out = await repository.current_branch() == delivery.into
    if path and not is_checked_out:
        raise GitError(
            f"{delivery.into} is checked out in {path}",
            fix="run the command there, or name another branch",
        )
    if is_checked_out:
        await _refuse_changes(repository, delivery)
    tree = await _merge_tree(repository, delivery)
    commit = await user_repository.commit_tree(
        tree, [delivery.start, delivery.head], delivery.message
    )
    if is_checked_out:
        checkout = await fast_forward(repository, commit, branch=delivery.into)
        if checkout.reason:
            raise _make_refusal(delivery, checkout.reason)
    elif not await repository.move(ref, commit, before):
        raise _make_refusal(delivery, "another process has moved it")
    return replace(delivery, commit=commit)


async def format_patch(
    project: Project, repository: Repository, store: Store, into: str | None = None
) -> tuple[Delivery, str]:
    """Return the team's work, and the same work as one patch for `git am` or `git apply`. The patch
    has the merge message in its header. The patch is empty if there is nothing to merge. Nothing is
    merged."""
    delivery = await find_delivery(project, repository, store, into)
    if not delivery.tasks:
        return delivery, ""
    tree = await _merge_tree(repository, delivery)
    commit = await (await _copy_as_user(repository)).commit_tree(
        tree, [delivery.start], delivery.message
    )
    options = ("--stdout", "--binary", "--no-signature", "--no-attach", "--keep-subject", "-1")
    code, output, problem = await repository.run_git("format-patch", *_PLAIN, *options, commit)
    if code:
        raise GitError(f"the patch cannot be written: {problem}")
    return delivery, output.decode("utf-8", "surrogateescape")


async def _merge_tree(repository: Repository, delivery: Delivery) -> str:
    tree = await repository.merge_tree(delivery.head, delivery.start)
    if isinstance(tree, Conflict):
        names = ", ".join(map(shown_path, tree.files))
        raise GitError(
            f"{delivery.branch} has conflicts with {delivery.into} in {names}; nothing was merged",
            fix=f"resolve them yourself: git merge --no-ff {delivery.branch}",
        )
    return tree


async def _refuse_changes(repository: Repository, delivery: Delivery) -> None:
    args = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all")
    changes = [part[3:] for part in (await repository.git(*args)).split("\0") if part]
    if changes:
        raise _make_refusal(delivery, f"it has uncommitted changes: {', '.join(changes[:20])}")


def _make_refusal(delivery: Delivery, reason: str) -> GitError:
    return GitError(
        f"{delivery.branch} was not merged into {delivery.into}: {reason}",
        fix="commit or stash your changes, or merge into another branch with --into",
    )


async def _copy_as_user(repository: Repository) -> Repository:
    """Return a copy of the repository that commits as the user. Raises GitError if git does not
    know the user's name and email."""
    identity: list[str] = []
    for key in ("name", "email"):
        _, output, _ = await repository.run_git("config", "--get", f"user.{key}")
        variable = os.environ.get(f"GIT_AUTHOR_{key.upper()}", "")
        identity.append(variable or output.decode("utf-8", "replace").strip())
    if not all(identity):
        raise GitError(
            "git does not know who you are, and the merge is a commit of yours",
            fix="git config user.name 'YOUR NAME' && git config user.email YOU@EXAMPLE.COM",
        )
    user_repository = copy(repository)
    user_repository.author = identity[0], identity[1]
    return user_repository


async def clean_branches(
    project: Project, repository: Repository, store: Store, *, dry_run: bool = False
) -> list[str]:
    """Delete the branches of merged tasks and of delivered features, and return the branch names. A
    branch with commits that are not merged, or with a worktree, stays. With `dry_run`, only return
    the names."""
    from bae.team.schedule import DONE
    from bae.team.workspaces import trailer

    head = await repository.resolve(BRANCHES + project.branch)
    deleted_branches: list[str] = []
    tasks = await store.tasks(project.id)
    for task in tasks:
        ref = BRANCHES + task.branch
        tip = await repository.resolve(ref) if task.commit is not None else None
        if tip is None or head is None:
            continue
        merged = await repository.find_commit(trailer(task.branch, tip), f"{tip}..{head}")
        if not merged or await repository.git("for-each-ref", "--format=%(worktreepath)", ref):
            continue
        if not dry_run:
            await repository.git("update-ref", "-d", ref, tip)
        deleted_branches.append(task.branch)
    feature_branches = {task.feature_branch for task in tasks if task.feature}
    feature_branches -= {task.feature_branch for task in tasks if task.status not in DONE}
    for branch in sorted(feature_branches):
        tip = await repository.resolve(BRANCHES + branch)
        if tip and head and await repository.contains(head, tip):
            if not dry_run:
                await repository.git("update-ref", "-d", BRANCHES + branch, tip)
            deleted_branches.append(branch)
    return deleted_branches


def _put_on_one_line(text: str) -> str:
    """Return an LLM's text as one line for a commit message, without terminal escapes and without
    bae's own trailer."""
    from bae.team.workspaces import TRAILER

    return " ".join(strip_escapes(text).replace(TRAILER, "Task:").split())
