"""Print the output of `bae team`: the project, the graph of tasks, the details of a task, questions
and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from bae.cli.printing import err, out, print_hanging
from bae.cli.wording import cost, count, cut_text, in_lines, in_one_line
from bae.team.models import TaskStatus, headline
from bae.usage import Usage

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from bae.team import Address
    from bae.team.budgets import Spent
    from bae.team.models import Blocker, Project, Review, Task, TaskAttempt

MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "pending": ("○", "dim"),
    "ready": ("○", "cyan"),
    "in_progress": ("●", "bold cyan"),
    "blocked": ("?", "bold yellow"),
    "staged": ("◐", "green"),
    "completed": ("✓", "green"),
    "merged": ("+", "green"),
    "failed": ("✗", "bold red"),
    "cancelled": ("⊘", "magenta"),
    "skipped": ("-", "dim"),
}
_S = TaskStatus
ORDER: Final = (
    *(_S.IN_PROGRESS, _S.BLOCKED, _S.FAILED, _S.READY, _S.PENDING),
    *(_S.CANCELLED, _S.SKIPPED, _S.STAGED, _S.MERGED, _S.COMPLETED),
)
"""The statuses of tasks, the most important first."""
INTERRUPTED: Final = "interrupted"
"""The label of a task in progress whose run was killed."""
_LABEL: Final = 13
_WIDE: Final = 1_000
"""The width of output without a terminal, so that tasks are not wrapped."""


def print_fields(fields: Mapping[str, str]) -> None:
    """Print each field as a line with its name and value. Empty values are left out."""
    for name, value in fields.items():
        if value:
            line = Text(f"{name:<{_LABEL}}", style="bold")
            print_hanging(out(), line.append(in_lines(value, _LABEL), style="not bold"), _LABEL)


def print_next(*commands: str) -> None:
    """Print on stderr the commands that the user may type next."""
    for number, command in enumerate(commands):
        line = Text("next: " if not number else "      ", style="dim").append(command, style="cyan")
        err().print(line, soft_wrap=True)


def print_address(console: Console, address: Address, *, is_token_given: bool = False) -> None:
    """Print the address of a served team, and an example request. The token is left out if the user
    chose it."""
    token = "$BAE_TEAM_TOKEN" if is_token_given else address.token
    fields = {
        "api": address.url,
        "docs": f"{address.url}/openapi.json",
        "token": "" if is_token_given else token,
        "try": f'curl -H "Authorization: Bearer {token}" "{address.url}/teams"',
        "board": "bae team watch",
    }
    for name, value in fields.items():
        if value:
            console.print(Text(f"{name:<6}{value}"), soft_wrap=True)


async def print_project(project: Project, state: Path) -> None:
    """Print a project and the sandbox of its tests."""
    from bae.team import sandbox
    from bae.team.test_runs import write_command

    protection = await sandbox.protection()
    print_fields(
        {
            "project": project.name,
            "folder": str(Path(project.root) / project.folder),
            "languages": ", ".join(project.languages),
            "tests": write_command(project.test_command),
            "report": project.report,
            "setup": write_command(project.setup) if project.setup else "",
            "branch": project.branch,
            "checkout": "follows the team's branch" if project.update_checkout else "",
            "allowed": ", ".join(project.allow),
            "sandbox": f"{protection}; {_TEST_FILES[sandbox.can_mount(protection)]}",
            "state": str(state),
        }
    )


_TEST_FILES: Final = {
    True: "test files are mounted read-only",
    False: "test files are compared after each run",
}


def print_tasks(
    tasks: Sequence[Task],
    questions: Sequence[Blocker] = (),
    *,
    interrupted: bool = False,
    spent: Mapping[int, str] | None = None,
) -> None:
    """Print the tasks as a tree. Above a task is the dependency with the longest chain of
    dependencies.

    If a task has one of the `questions`, its reason is left out. With `interrupted`, tasks in
    progress are marked as interrupted. `spent` has the spending of tasks as text, by task number.
    """
    if not tasks:
        out().print("There are no tasks yet.")
        return
    console = out()
    if not console.is_terminal:
        console.width = _WIDE
    for task in tasks:
        if task.proof == "none" and not task.approved:
            text = f"to be approved without tests: {task.key}  {in_one_line(task.title)}"
            console.print(Text(text, style="bold yellow"))
    console.print(draw_tasks(tasks, questions, interrupted=interrupted, spent=spent))


def draw_tasks(
    tasks: Sequence[Task],
    questions: Sequence[Blocker] = (),
    *,
    interrupted: bool = False,
    spent: Mapping[int, str] | None = None,
) -> Tree:
    """Return the tree that `print_tasks` prints. A task with several dependencies names every
    dependency that is not directly above the task."""
    from rich.tree import Tree

    root = Tree("", hide_root=True)
    by_key = {task.key: task for task in tasks}
    branches: dict[str, Tree] = {}
    depths: dict[str, int] = {}
    in_questions = {question.task_id for question in questions}

    def place(task: Task) -> None:
        if task.key in branches:
            return
        for key in task.depends_on:
            place(by_key[key])
        above = max(task.depends_on, key=lambda key: depths[key], default=None)
        depths[task.key] = depths[above] + 1 if above is not None else 0
        others = [key for key in task.depends_on if key != above]
        parent = branches[above] if above is not None else root
        shows_reason = task.id not in in_questions
        used = (spent or {}).get(task.id, "")
        branches[task.key] = parent.add(_draw_task(task, others, shows_reason, interrupted, used))

    for task in tasks:
        place(task)
    return root


_PROOFS: Final = {
    "named-tests": "proved by named tests",
    "failing-tests": "writes acceptance tests",
    "none": "WITHOUT TESTS",
}
_LEVELS: Final = {
    "change-tests": "may change tests",
    "change-test-setup": "may change tests and how they run",
}


def _draw_task(
    task: Task, others: Sequence[str], shows_reason: bool, interrupted: bool, used: str
) -> Text:
    stopped = interrupted and task.status == "in_progress"
    mark, style = MARKS["ready" if stopped else task.status]
    line = Text(f"{mark} ", style=style).append(task.key, style="bold")
    line.append(f"  {in_one_line(task.title)}")
    facts = [task.kind]
    label = INTERRUPTED if stopped else task.status.label
    facts += [label] if task.approved else ["not approved"]
    facts += [f"feature {task.feature}"] if task.feature else []
    facts += [f"priority {task.priority}"] if task.priority else []
    facts += [_PROOFS[task.proof]] if task.proof in _PROOFS else []
    facts += [_LEVELS[task.may]] if task.may in _LEVELS else []
    facts += [f"also after {', '.join(others)}"] if others else []
    facts += [used] if used else []
    line.append(f"  {', '.join(facts)}", style="dim")
    if task.reason and shows_reason and task.status in ("blocked", "failed", "cancelled"):
        line.append(f"\n  {in_one_line(headline(task.reason))}", style=style)
    return line


def _describe_feature(task: Task) -> str:
    if task.status != "staged":
        return task.feature
    return f"{task.feature}: merged into {task.feature_branch}, not yet into the team's branch"


def print_task(
    task: Task,
    attempts: Sequence[TaskAttempt],
    blockers: Sequence[Blocker],
    flaky: Sequence[str] = (),
    reviews: Sequence[Review] = (),
) -> None:
    """Print all details of a task."""
    is_question = headline(task.reason, 1000) in [blocker.summary for blocker in blockers]
    print_fields(
        {
            "task": f"{task.key} (number {task.id})",
            "title": task.title,
            "kind": task.kind,
            "status": task.status.label + ("" if task.approved else ", not approved"),
            "reason": "" if is_question else task.reason,
            "feature": _describe_feature(task),
            "after": ", ".join(task.depends_on),
            "priority": str(task.priority or ""),
            "proof": _PROOFS.get(task.proof, ""),
            "tests": _LEVELS.get(task.may, ""),
            "to pass": ", ".join(task.tests),
            "files": ", ".join(task.files),
            "new files": ", ".join(task.new_files),
            "branch": task.branch if attempts else "",
            "commit": task.commit or "",
            "flaky tests": ", ".join(flaky),
            "description": task.description,
            "done when": "\n".join(f"- {criterion}" for criterion in task.criteria),
            "notes": "\n".join(f"- {note}" for note in task.notes),
        }
    )
    for blocker in blockers:
        answer = "open" if blocker.answer is None else blocker.answer
        # The output below a question is often the failure of an attempt, which is printed next.
        repeats = any(
            attempt.failure and attempt.failure in blocker.question for attempt in attempts
        )
        question = blocker.summary if repeats else blocker.question
        print_fields({f"question {blocker.id}": f"{question}\n-> {answer}"})
    for attempt in attempts:
        facts = [attempt.outcome, ", ".join(attempt.files)]
        if attempt.report is not None:
            facts.append(count(len(attempt.report.cases), "test"))
        description = "; ".join(fact for fact in facts if fact)
        description += f"\n{cut_text(attempt.failure, 2_000)}" if attempt.failure else ""
        print_fields({f"attempt {attempt.number}": description})
    for review in reviews:
        lines = [f"{review.commit[:12]}: {review.headline}"]
        lines += (
            f"- {'blocking: ' if finding.blocking else ''}{finding}" for finding in review.findings
        )
        print_fields({"review": "\n".join(lines)})


def print_blockers(
    blockers: Sequence[Blocker], tasks: Sequence[Task], *, full: bool = False
) -> None:
    """Print questions with the keys of their tasks. With `full`, print the output below each
    question too."""
    by_id = {task.id: task for task in tasks}
    for blocker in blockers:
        line = Text(f"{blocker.id:>3} ", style="bold yellow")
        line.append(by_id[blocker.task_id].key, style="bold")
        question = blocker.question if full else blocker.summary
        line.append(f"  {in_lines(question, 4)}")
        if blocker.is_folded and not full:
            key = by_id[blocker.task_id].key
            line.append(f"\n    the output: bae team tasks show {key}", style="dim")
        if blocker.answer is not None:
            line.append(f"\n    -> {in_lines(blocker.answer, 7)}", style="green")
        print_hanging(out(), line, 4)


def as_data(models: Sequence[Any]) -> list[dict[str, Any]]:
    """Return models as JSON values."""
    return [model.model_dump(mode="json") for model in models]


def counts_text(counts: Mapping[TaskStatus, int], in_progress: str = "") -> str:
    """Describe the number of tasks by status, the most important status first. `in_progress`
    replaces the label of tasks in progress."""
    labels = {_S.IN_PROGRESS: in_progress or _S.IN_PROGRESS.label}
    parts = [
        f"{counts[status]} {labels.get(status, status.label)}"
        for status in ORDER
        if counts.get(status)
    ]
    return ", ".join(parts) or "no tasks yet"


def staged_text(tasks: Sequence[Task]) -> str:
    """Name the branches of incomplete features that have merged tasks. Empty if there are none."""
    branches = sorted({task.feature_branch for task in tasks if task.status is _S.STAGED})
    return f"{', '.join(branches)}, until the feature is complete" if branches else ""


def spent_text(spending: Spent) -> str:
    """Describe the spending. Empty if there were no LM calls."""
    if not spending.calls:
        return ""
    parts = [count(spending.calls, "LM call")]
    parts += [count(spending.tokens, "token")] if spending.tokens else []
    if spending.cost != 0:
        least = "at least " if spending.cost and spending.unpriced else ""
        parts.append(f"{least}{cost(Usage(spending.calls, cost=spending.cost))}")
    return ", ".join(parts)
