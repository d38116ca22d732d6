"""How the user takes over a team's work: the change of a task as a diff, all merged tasks as one
merge commit or one patch with the proving tests in its message, and the cleanup of merged branches.
Nothing here runs without a person's command."""

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
"""How many tests of a task a message lists."""
_PLAIN: Final = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


@dataclass(frozen=True, slots=True)
class ProvedTask:
    """A merged task and the tests that prove it: the tests it names, otherwise the new tests of its
    work. A task approved without tests has none. `review` is the review of the merged
    work, if there was one."""

    task: Task
    tests: tuple[str, ...]
    review: Review | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """The team's work that a branch does not have yet: everything between `start`, the commit of
    the branch, and `head`, the commit of the team's branch. `commit` is the merge commit, once it
    exists."""

    into: str
    branch: str
    start: str
    head: str
    tasks: tuple[ProvedTask, ...] = ()
    commit: str | None = None

    @property
    def message(self) -> str:
        """The message of the merge: the tasks, the tests that prove each, and the findings of
        reviewers."""
        many = len(self.tasks)
        lines = [f"Merge {many} {'task' if many == 1 else 'tasks'} of {self.branch}"]
        for task in self.tasks:
            lines += ["", f"{task.task.key}: {_in_one_line(task.task.title)}"]
            lines += (f"- {_in_one_line(name)}" for name in task.tests[:MOST_TESTS])
            if len(task.tests) > MOST_TESTS:
                lines.append(f"- and {len(task.tests) - MOST_TESTS} more tests")
            if not task.tests:
                lines.append("- without tests, as a person approved")
            if task.review is not None:
                lines += (f"- review, {_in_one_line(str(f))}" for f in task.review.findings)
        return "\n".join(lines) + "\n"


async def diff_task(
    project: Project, repository: Repository, task: Task, *, stat: bool = False
) -> str:
    """The change of a task as a git diff: its merged commit, otherwise its branch against its start
    on the team's branch. With `stat`, the number of changed lines by file."""
    start, end = await _find_change(project, repository, task)
    return await read_diff(repository, start, end, *(("--stat", "--summary") if stat else ()))


async def diff_attempt(
    project: Project, repository: Repository, task: Task, attempt: TaskAttempt
) -> str:
    """The change that an attempt at a task was judged by, as a git diff."""
    commit = attempt.commit and await repository.resolve(attempt.commit)
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
    """The difference between two commits as a git diff, independent of the user's git settings."""
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
    """Find the team's work that the branch `into` does not have. Default: the user's current
    branch. A missing branch would start at the user's commit."""
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
    proved: list[ProvedTask] = []
    for task in await store.tasks(project.id):
        if task.commit is None or not await repository.contains(head, task.commit):
            continue  # a task merged a moment ago is for the next delivery
        if await repository.contains(start, task.commit):
            continue
        before = await reports.find(await repository.commit_id(f"{task.commit}^"))
        tests = find_proving_tests(task, await store.attempts(task.id), before)
        review = await _find_review(repository, task, reviews.get(task.id, ()))
        proved.append(ProvedTask(task, tests, review))
    return Delivery(branch, project.branch, start, head, tuple(proved))


async def _find_review(
    repository: Repository, task: Task, reviews: Sequence[Review]
) -> Review | None:
    """The review of the merged work. Reviews of refused work are left out."""
    from bae.team.workspaces import trailer

    within = f"{task.commit}^..{task.commit}"
    for review in reversed(reviews):
        if await repository.find_commit(trailer(task.branch, review.commit), within):
            return review
    return None


def find_proving_tests(
    task: Task, attempts: Sequence[TaskAttempt], before: TestReport | None
) -> tuple[str, ...]:
    """The tests that prove a task: the tests it names; otherwise the tests that pass with its work
    and did not pass `before`; otherwise the passing tests in files that it changed."""
    if task.proof == "none":
        return ()
    if task.proof == "named-tests":
        return task.tests
    last = next((attempt for attempt in reversed(attempts) if attempt.outcome == "passed"), None)
    if last is None or last.report is None:
        return ()
    if task.proof == "failing-tests":  # they pass when the feature is complete
        old_ids = {case.id for case in before.cases} if before else set[str]()
        return tuple(case.id for case in last.report.of("failed") if case.id not in old_ids)
    passed = [case.id for case in last.report.of("passed")]
    passed_before = {case.id for case in before.of("passed")} if before else set[str]()
    new_ids = [id for id in passed if id not in passed_before] if before else []
    return tuple(new_ids or (id for id in passed if id.partition("::")[0] in last.files))


async def merge_work(
    project: Project, repository: Repository, store: Store, into: str | None = None
) -> Delivery:
    """Merge the team's branch into the branch `into` with one merge commit of the user. Default:
    the user's current branch. A missing branch is created. Raises GitError and changes
    nothing if there are conflicts, or if the branch is checked out with uncommitted changes."""
    from bae.team.integration import fast_forward

    delivery = await find_delivery(project, repository, store, into)
    if not delivery.tasks:
        return delivery
    user_repository = await _as_user(repository)
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
    """The team's work as one patch for `git am` and `git apply`, with the message of the merge in
    its header. Nothing is merged. The text is empty if there is nothing to merge."""
    delivery = await find_delivery(project, repository, store, into)
    if not delivery.tasks:
        return delivery, ""
    tree = await _merge_tree(repository, delivery)
    commit = await (await _as_user(repository)).commit_tree(
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


async def _as_user(repository: Repository) -> Repository:
    """The repository, with the user as the author of commits."""
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
    """Delete the branches of merged tasks and of delivered features, and return their names. A
    branch stays if it has newer commits or a worktree. With `dry_run` nothing is deleted."""
    from bae.team.schedule import DONE
    from bae.team.workspaces import trailer

    head = await repository.resolve(BRANCHES + project.branch)
    cleaned: list[str] = []
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
        cleaned.append(task.branch)
    feature_branches = {task.feature_branch for task in tasks if task.feature}
    feature_branches -= {task.feature_branch for task in tasks if task.status not in DONE}
    for branch in sorted(feature_branches):
        tip = await repository.resolve(BRANCHES + branch)
        if tip and head and await repository.contains(head, tip):
            if not dry_run:
                await repository.git("update-ref", "-d", BRANCHES + branch, tip)
            cleaned.append(branch)
    return cleaned


def _in_one_line(text: str) -> str:
    """Text of an LLM as one line of a commit message."""
    from bae.team.workspaces import TRAILER

    return " ".join(strip_escapes(text).replace(TRAILER, "Task:").split())
