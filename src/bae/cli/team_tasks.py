"""`bae team tasks`: the plan in a person's hands: look, approve, add, edit, drop."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from bae.cli.options import AsJSON, examples
from bae.cli.team_project import (
    Team,
    counted,
    find_task,
    open_team,
    read_file,
    read_text,
    run_async,
)

group = typer.Typer(
    help="Look at the tasks, approve and change them.\n\nWithout a command, the tasks are listed.",
    invoke_without_command=True,
    epilog=examples(
        "bae team tasks",
        "bae team tasks show add-login",
        "bae team tasks edit add-login --after sessions --priority 5",
        "bae team tasks approve",
    ),
)

TaskName = Annotated[
    str, typer.Argument(metavar="TASK", show_default=False, help="A task: its key, or its number.")
]
_TASKS: Final = typer.Argument(
    metavar="TASK…", show_default=False, help="Tasks: their keys or numbers."
)
SomeTasks = Annotated[list[str], _TASKS]
AllOrSome = Annotated[list[str] | None, _TASKS]
Title = Annotated[str | None, typer.Option("--title", show_default=False, help="One line.")]
Description = Annotated[
    str | None,
    typer.Option(
        "--description",
        "-d",
        show_default=False,
        help="What is to be done, as the worker reads it; `@FILE` for a file of it.",
    ),
]
KindName = Annotated[
    str | None,
    typer.Option("--kind", show_default=False, help="The worker: backend, frontend or test."),
]
Criteria = Annotated[
    list[str] | None,
    typer.Option(
        "--criterion",
        "-c",
        metavar="TEXT",
        show_default=False,
        help="When it is done; may be given several times.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        show_default=False,
        help="A file that it likely changes; several times.",
    ),
]
Tests = Annotated[
    list[str] | None,
    typer.Option(
        "--test",
        metavar="TEST",
        show_default=False,
        help="A test, file or group of tests that fails now, and that it has to make pass; several "
        "times. Others that fail already may still fail then.",
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="TASK",
        show_default=False,
        help="A task that must be merged first; several times. An empty text: none.",
    ),
]
Priority = Annotated[
    int | None, typer.Option("--priority", "-p", show_default=False, help="Higher ones are first.")
]
EditsTests = Annotated[
    bool | None,
    typer.Option(
        "--edits-tests/--keeps-tests",
        show_default=False,
        help="Whether it may change or remove tests that exist.",
    ),
]


@group.callback()
def tasks(context: typer.Context) -> None:
    """Look at the tasks, approve and change them."""
    if context.invoked_subcommand is None:
        list_()


@group.command("list", epilog=examples("bae team tasks list", "bae team tasks list --json"))
def list_(as_json: AsJSON = False) -> None:
    """Draw the tasks as a graph: each below the task that it waits for."""

    async def work() -> None:
        from bae.cli.printing import print_json
        from bae.cli.team_output import as_data, print_tasks

        async with open_team() as team:
            found = await team.tasks()
            print_json(as_data(found)) if as_json else print_tasks(found)

    run_async(work)


@group.command(epilog=examples("bae team tasks show add-login"))
def show(task: TaskName, as_json: AsJSON = False) -> None:
    """Show one task: what is planned, what was tried, what was asked and answered."""

    async def work() -> None:
        from bae.cli.printing import print_json
        from bae.cli.team_output import as_data, print_task

        async with open_team() as team:
            found = find_task(await team.tasks(), task)
            attempts = await team.store.attempts(found.id)
            blockers = [
                each
                for each in await team.store.blockers(team.project.id)
                if each.task_id == found.id
            ]
            if as_json:
                more = {"attempts": as_data(attempts), "blockers": as_data(blockers)}
                print_json(found.model_dump(mode="json") | more)
            else:
                print_task(found, attempts, blockers)

    run_async(work)


@group.command(epilog=examples("bae team tasks approve", "bae team tasks approve prices orders"))
def approve(tasks: AllOrSome = None) -> None:
    """Approve tasks, so that they may run: those that are named, or all."""

    async def work() -> None:
        from bae.cli.printing import note
        from bae.cli.team_output import print_next

        async with open_team() as team:
            known = await team.tasks()
            named = [find_task(known, each) for each in tasks] if tasks else known
            found = [task for task in named if not task.approved]
            await team.store.approve_tasks([task.id for task in found])
            note(f"{counted(len(found), 'task')} approved")
            print_next("bae team run")

    run_async(work)


@group.command(
    epilog=examples(
        "bae team tasks add 'Add a login page' --kind frontend --after sessions -c 'it says hello'",
        "bae team tasks add --from tasks.json",
        "A file has a list of objects with key, title, description, kind, criteria, files, "
        "tests, depends_on, priority and edits_tests; all but title may be left out.",
    )
)
def add(
    title: Annotated[
        str | None, typer.Argument(metavar="TITLE", show_default=False, help="One line.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", show_default=False, help="Its short name. Left out: from the title."),
    ] = None,
    description: Description = None,
    kind: KindName = None,
    criteria: Criteria = None,
    files: Files = None,
    tests: Tests = None,
    after: After = None,
    priority: Priority = None,
    edits_tests: EditsTests = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", show_default=False, help="Tasks in a JSON file; `-`: stdin."
        ),
    ] = None,
) -> None:
    """Add a task, or the tasks in a file. What you add yourself is approved."""
    from bae.cli.exits import Misuse

    if (title is None) == (source is None):
        raise Misuse("there is no task to add", fix="give a title, or --from FILE")

    async def work() -> None:
        from bae.cli.team_output import print_tasks

        async with open_team() as team:
            if source is not None:
                planned = _read_tasks(read_file(source), source)
            else:
                values = _values(
                    title, description, kind, criteria, files, tests, priority, edits_tests
                )
                planned = [{"key": key} | values | await _after(team, after)]
            added = [_checked(each) for each in planned]
            await team.store.add_tasks(team.project.id, added)
            print_tasks(await team.tasks())
            _note_kinds(*(each.kind for each in added))

    run_async(work)


@group.command(
    epilog=examples(
        "bae team tasks edit add-login --description @login.md",
        "bae team tasks edit add-login --after sessions --after pages",
        "bae team tasks edit add-login --after ''",
    )
)
def edit(
    task: TaskName,
    title: Title = None,
    key: Annotated[str | None, typer.Option("--key", show_default=False, help="A new key.")] = None,
    description: Description = None,
    kind: KindName = None,
    criteria: Criteria = None,
    files: Files = None,
    tests: Tests = None,
    after: After = None,
    priority: Priority = None,
    edits_tests: EditsTests = None,
) -> None:
    """Change a task that is neither in progress nor completed; what is not named stays."""

    async def work() -> None:
        from bae.cli.team_output import print_task
        from bae.team.models import as_planned

        async with open_team() as team:
            found = find_task(await team.tasks(), task)
            values = _values(
                title, description, kind, criteria, files, tests, priority, edits_tests
            )
            values |= await _after(team, after)
            values |= {} if key is None else {"key": key}
            planned = _checked(as_planned(found).model_dump() | values)
            print_task(await team.store.edit_task(found.id, planned), (), ())
            _note_kinds(planned.kind)

    run_async(work)


@group.command(epilog=examples("bae team tasks drop add-login"))
def drop(tasks: SomeTasks) -> None:
    """Drop tasks that are neither in progress nor completed. Their branches stay."""

    async def work() -> None:
        from bae.cli.printing import note

        async with open_team() as team:
            known = await team.tasks()
            found = {task.key: task for task in (find_task(known, each) for each in tasks)}
            # Those that others need come last.
            for task in reversed(known):
                if task.key in found:
                    await team.store.drop_task(task.id)
            note(f"{counted(len(found), 'task')} dropped")

    run_async(work)


def _values(
    title: str | None,
    description: str | None,
    kind: str | None,
    criteria: list[str] | None,
    files: list[str] | None,
    tests: list[str] | None,
    priority: int | None,
    edits_tests: bool | None,
) -> dict[str, Any]:
    """What a command line says about a task."""
    values: dict[str, Any] = {
        "title": title,
        "description": None if description is None else read_text(description),
        "kind": kind,
        "criteria": criteria,
        "files": files,
        "tests": tests,
        "priority": priority,
        "edits_tests": edits_tests,
    }
    return {name: value for name, value in values.items() if value is not None}


async def _after(team: Team, named: list[str] | None) -> dict[str, Any]:
    if named is None:
        return {}
    known = await team.tasks()
    return {"depends_on": [find_task(known, each).key for each in named if each]}


def _note_kinds(*kinds: str) -> None:
    """Point out kinds that only workers of the user's own may have."""
    from bae.cli.printing import note
    from bae.team.planning import KINDS

    for kind in dict.fromkeys(each for each in kinds if each not in KINDS):
        own = f"of the kind {kind!r}, which `bae team run --workers FILE` needs to have"
        note(f"there is no worker {own}; others are {', '.join(KINDS)}")


def _read_tasks(text: str, source: str) -> list[dict[str, Any]]:
    from pydantic import TypeAdapter, ValidationError

    from bae.cli.exits import refused

    try:
        return TypeAdapter(list[dict[str, Any]]).validate_json(text)
    except ValidationError as error:
        raise refused(f"{source} is no list of tasks", 'write [{"title": …}, …]', error) from error


def _checked(values: dict[str, Any]) -> Any:
    """A task from what a person wrote; its key is made from its title where there is none."""
    from pydantic import ValidationError

    from bae.cli.exits import refused
    from bae.exceptions import faults
    from bae.team.models import PlannedTask

    if not values.get("key"):
        made = re.sub(r"[^a-z0-9]+", "-", str(values.get("title", "")).lower()).strip("-")
        values = values | {"key": made[:60].strip("-")}
    try:
        return PlannedTask.model_validate(values)
    except ValidationError as error:
        raise refused(f"this is no task: {'; '.join(faults(error))}", "correct it") from error
