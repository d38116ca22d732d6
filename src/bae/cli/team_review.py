"""Commands that review a team's work and take it over: the change and the log of a task, the merge
into a branch of the user, the patch, and the cleanup of merged branches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bae.cli.exits import refusal
from bae.cli.later import call_later
from bae.cli.options import AsJSON
from bae.cli.team_project import OneTask, Team, team_command

if TYPE_CHECKING:
    from bae.cli.printing import note, out, print_hanging, print_json
    from bae.cli.team_output import print_next
    from bae.team.delivery import Delivery
    from bae.team.task_log import LogEntry, TaskLog
else:
    note, out, print_hanging, print_json = call_later(
        "bae.cli.printing", "note out print_hanging print_json"
    )
    (print_next,) = call_later("bae.cli.team_output", "print_next")

group = typer.Typer()
Into = Annotated[
    str | None,
    typer.Option(
        metavar="BRANCH",
        help=(
            "The branch to merge into. It is created at your commit if it is missing. Default: "
            "your current branch."
        ),
    ),
]


@team_command(
    group,
    "bae team diff report",
    "bae team diff report --stat",
    "bae team diff report > report.diff",
)
async def diff(
    team: Team,
    task: OneTask,
    stat: Annotated[
        bool, typer.Option("--stat", help="Show only the files and the number of changed lines.")
    ] = False,
) -> None:
    """Show the change of a task, merged or not.

    For a merged task, this is the merged commit. Otherwise it is the difference between the task's
    branch and the commit that the branch started from. The output is colored at a terminal, and
    plain git output elsewhere.
    """
    from bae.team import diff_task

    chosen_task = await team.task(task)
    text = await diff_task(team.project, team.repository, chosen_task, stat=stat)
    if out().is_terminal:
        _print_diff(text)
    else:
        _write(text)


def _print_diff(text: str) -> None:
    from rich.text import Text

    from bae.cli.wording import in_lines

    console = out()
    in_header = False  # the lines above the first hunk of a file
    for line in text.removesuffix("\n").split("\n"):
        in_header = line.partition(" ")[0] == "diff" or (in_header and not line.startswith("@@"))
        style = "bold" if in_header else _STYLES.get(line[:1], "")
        console.print(Text(in_lines(line), style=style), soft_wrap=True)


_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


def _write(text: str) -> None:
    """Write git's output to stdout byte for byte, so that git can apply the output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


@team_command(
    group, "bae team log report", "bae team log report --full", "bae team log report --json"
)
async def log(
    team: Team,
    task: OneTask,
    full: Annotated[
        bool, typer.Option("--full", help="Show prompts, answers, results and outputs.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Show the log of a task's worker, oldest entry first.

    The log has LLM calls with their usage, tool calls, edits, test runs, reviews, questions to you,
    and merges.
    """
    from bae.team import read_task_log

    chosen_task = await team.task(task)
    async with team.store.journal() as journal:
        task_log = await read_task_log(team.store, journal, chosen_task)
    if as_json:
        print_json(task_log.model_dump(mode="json"))
    else:
        _print_log(task_log, full=full)


def _print_log(log: TaskLog, *, full: bool) -> None:
    from rich.text import Text

    from bae.cli.team_output import spent_text
    from bae.cli.wording import count, in_one_line

    task = log.task
    facts = [task.status.label]
    facts += [count(len(log.attempts), "attempt")] if log.attempts else []
    facts += filter(None, [spent_text(log.spent)])
    head = Text(task.key, style="bold").append(f"  {in_one_line(task.title)}", style="not bold")
    print_hanging(out(), head.append(f"  {', '.join(facts)}", style="dim not bold"), 4)
    entries = [entry for entry in log.entries if full or entry.kind not in _MINOR]
    if not entries:
        note("nothing has happened yet: bae team run")
    for entry in entries:
        _print_entry(entry, full=full)
    if entries and not full:
        print_next(f"bae team log {task.key} --full")


def _print_entry(entry: LogEntry, *, full: bool) -> None:
    from time import localtime, strftime

    from rich.text import Text

    from bae.cli.wording import (
        cost,
        cut_text,
        describe_duration,
        describe_spending,
        in_lines,
        in_one_line,
    )

    label, style = _LABELS[entry.kind]
    line = Text(strftime("%H:%M:%S  ", localtime(entry.at)), style="dim")
    line.append(f"{label:<12}", style=style if entry.ok else "yellow")
    facts = [entry.text if full else cut_text(in_one_line(entry.text), _LONGEST)]
    if entry.usage is not None:
        unknown_cost = [cost(entry.usage)] if entry.usage.cost is None else []
        facts = [*entry.usage.models, *describe_spending(entry.usage), *unknown_cost, *facts]
    facts += [describe_duration(entry.seconds)]
    line.append(in_one_line(", ".join(filter(None, facts))), style="not dim")
    print_hanging(out(), line, _INDENT)
    first, _, lower_lines = entry.detail.strip().partition("\n")
    detail = lower_lines.strip("\n") if first == entry.text else entry.detail.rstrip()
    if full and detail.strip():
        below = Text(" " * _INDENT + in_lines(detail, _INDENT), style="dim")
        out().print(below, soft_wrap=True)


_LABELS: Final = {
    "status": ("task", "bold"),
    "correction": ("correction", "bold"),
    "lm": ("asked", "cyan"),
    "tool": ("called", "cyan"),
    "program": ("program", "cyan"),
    "submission": ("submitted", "bold"),
    "edits": ("edited", "green"),
    "tests": ("tested", "green"),
    "review": ("reviewed", "green"),
    "question": ("asks you", "yellow"),
    "answer": ("answered", "green"),
    "steered": ("steered", "yellow"),
    "merge": ("merged", "green"),
    "activity": ("", "dim"),
}
_MINOR: Final = ("activity",)
"""The kinds of entries that only --full shows."""
_LONGEST: Final = 160
_INDENT: Final = 10


@team_command(group, "bae team merge", "bae team merge --into review")
async def merge(team: Team, into: Into = None, as_json: AsJSON = False) -> None:
    """Merge the team's work into a branch of yours.

    You are the author of the merge commit. Its message lists the tasks with the tests that prove
    them, and the findings of reviewers. If there are conflicts, or you have uncommitted changes,
    nothing is changed, and the exit code is 1.
    """
    from bae.team import merge_work

    delivery = await merge_work(team.project, team.repository, team.store, into)
    if as_json:
        print_json(_delivery_as_json(delivery))
    elif delivery.commit is None:
        await _note_nothing_to_merge(team, delivery)
    else:
        from bae.cli.wording import in_lines

        out().print(in_lines(delivery.message.rstrip()), markup=False, soft_wrap=True)
        note(f"{delivery.into} is at {delivery.commit[:12]}")
        print_next(f"git show --first-parent {delivery.into}", "bae team clean")


@team_command(
    group,
    "bae team patch work.patch",
    "bae team patch | git -C ../other am",
    "Apply the patch with `git am`, which commits the work too, or with `git apply`.",
)
async def patch(
    team: Team,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The file to write. Default: stdout.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            metavar="BRANCH",
            help="The branch that the patch applies to. Default: your current branch.",
        ),
    ] = None,
) -> None:
    """Write the team's work as one patch, and merge nothing.

    The header of the patch lists the tasks with the tests that prove them, and the findings of
    reviewers. The patch applies to your branch, or to --into BRANCH.
    """
    from bae.cli.wording import count
    from bae.team import format_patch

    delivery, text = await format_patch(team.project, team.repository, team.store, into)
    if not text:
        await _note_nothing_to_merge(team, delivery)
    elif file is None or file == "-":
        _write(text)
    else:
        _write_file(file, text)
        note(f"{file} has {count(len(delivery.tasks), 'task')} for {delivery.into}")
        print_next(f"git am {file}")


def _write_file(path: str, text: str) -> None:
    try:
        Path(path).write_bytes(text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise refusal(f"{path} cannot be written", "name another file", error) from error


@team_command(group, "bae team clean --dry-run", "bae team clean")
async def clean(
    team: Team,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the branches that would be deleted.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Delete the branches of merged tasks and of complete features.

    A branch stays if it has newer commits or a worktree. `bae team diff` still shows the work.
    """
    from bae.cli.wording import count
    from bae.team import clean_branches

    names = await clean_branches(team.project, team.repository, team.store, dry_run=dry_run)
    if as_json:
        print_json({"branches": names, "deleted": not dry_run})
        return
    for name in names:
        out().print(name, markup=False, soft_wrap=True)
    branch_count = count(len(names), "branch").replace("branchs", "branches")
    note(f"{branch_count} would be deleted" if dry_run else f"{branch_count} deleted")


async def _note_nothing_to_merge(team: Team, delivery: Delivery) -> None:
    from bae.cli.team_output import staged_text

    note(f"there is nothing to merge: {delivery.into} has all merged tasks of {delivery.branch}")
    if staged := staged_text(await team.tasks()):
        note(f"staged: {staged}")


def _delivery_as_json(delivery: Delivery) -> dict[str, object]:
    return {
        "into": delivery.into,
        "commit": delivery.commit,
        "message": delivery.message if delivery.tasks else "",
        "tasks": [
            {
                "key": task.task.key,
                "tests": task.tests,
                "review": task.review.model_dump(mode="json") if task.review else None,
            }
            for task in delivery.tasks
        ],
    }
