"""`bae team tasks`: the plan in a person's hands: look, approve, add, edit, drop."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.exits import Misuse, refused
from bae.cli.options import AsJSON, examples
from bae.cli.printing import note, print_json
from bae.cli.team_output import as_data, print_next, print_task, print_tasks
from bae.cli.team_project import OneTask, Team, read_file, read_text, team_command
from bae.cli.wording import count

if TYPE_CHECKING:
    from bae.team.models import PlannedTask

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
_TASKS: Final = typer.Argument(metavar="TASK…", help="Tasks: their keys or numbers.")


def _make_option(kind: Any, *names: str, help: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, help=help, **more)]


_FIELDS: Final = {
    "description": _make_option(
        str | None,
        "--description",
        "-d",
        help="What is to be done, as the worker reads it; `@FILE` for a file of it.",
    ),
    "kind": _make_option(str | None, "--kind", help="The worker: backend, frontend or test."),
    "criteria": _make_option(
        list[str] | None,
        "--criterion",
        "-c",
        metavar="TEXT",
        help="When it is done; may be given several times.",
    ),
    "files": _make_option(
        list[str] | None,
        "--file",
        "-f",
        metavar="FILE",
        help="A file that it likely changes; several times.",
    ),
    "tests": _make_option(
        list[str] | None,
        "--test",
        metavar="TEST",
        help="A test, file or group of tests that fails now, and that it has to make pass; several "
        "times. Others that fail already may still fail then.",
    ),
    "depends_on": _make_option(
        list[str] | None,
        "--after",
        metavar="TASK",
        help="A task that must be merged first; several times. An empty text: none.",
    ),
    "priority": _make_option(int | None, "--priority", "-p", help="Higher ones are first."),
    "edits_tests": _make_option(
        bool | None,
        "--edits-tests/--keeps-tests",
        help="Whether it may change or remove tests that exist.",
    ),
}
"""The options of `add` and `edit`, by the fields of a task that they set."""


@group.callback()
def tasks(context: typer.Context) -> None:
    """Look at the tasks, approve and change them."""
    if context.invoked_subcommand is None:
        list_()


@team_command(group, "bae team tasks list", "bae team tasks list --json", name="list")
async def list_(team: Team, as_json: AsJSON = False) -> None:
    """Draw the tasks as a graph: each below the task that it waits for."""
    found = await team.tasks()
    if as_json:
        print_json(as_data(found))
    else:
        print_tasks(found, interrupted=await team.is_interrupted())


@team_command(group, "bae team tasks show add-login")
async def show(team: Team, task: OneTask, as_json: AsJSON = False) -> None:
    """Show one task: what is planned, what was tried, what was asked and answered."""
    found = await team.task(task)
    attempts = await team.store.attempts(found.id)
    asked = await team.store.blockers(team.project.id)
    blockers = [each for each in asked if each.task_id == found.id]
    if as_json:
        more = {"attempts": as_data(attempts), "blockers": as_data(blockers)}
        print_json(found.model_dump(mode="json") | more)
    else:
        print_task(found, attempts, blockers)


@team_command(group, "bae team tasks approve", "bae team tasks approve prices orders")
async def approve(team: Team, tasks: Annotated[list[str] | None, _TASKS] = None) -> None:
    """Approve tasks, so that they may run: those that are named, or all."""
    named = [await team.task(each) for each in tasks] if tasks else await team.tasks()
    found = [task.id for task in named if not task.approved]
    await team.store.approve_tasks(found)
    note(f"{count(len(found), 'task')} approved")
    print_next("bae team run")


@team_command(
    group,
    "bae team tasks add 'Add a login page' --kind frontend --after sessions -c 'it says hello'",
    "bae team tasks add --from tasks.json",
    "A file has a list of objects with key, title, description, kind, criteria, files, "
    "tests, depends_on, priority and edits_tests; all but title may be left out.",
    options=_FIELDS,
)
async def add(
    team: Team,
    title: Annotated[str | None, typer.Argument(metavar="TITLE", help="One line.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Its short name. Left out: from the title."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Tasks in a JSON file; `-`: stdin."),
    ] = None,
    **fields: Any,
) -> None:
    """Add a task, or the tasks in a file. What you add yourself is approved."""
    if (title is None) == (source is None):
        raise Misuse("there is no task to add", fix="give a title, or --from FILE")
    if source is not None:
        planned = _read_tasks(read_file(source), source)
    else:
        planned = [await _read_fields(team, title=title, key=key, **fields)]
    added = [_check_task(each) for each in planned]
    await team.store.add_tasks(team.project.id, added)
    print_tasks(await team.tasks())
    _note_kinds(*(each.kind for each in added))


@team_command(
    group,
    "bae team tasks edit add-login --description @login.md",
    "bae team tasks edit add-login --after sessions --after pages",
    "bae team tasks edit add-login --after ''",
    options=_FIELDS,
)
async def edit(
    team: Team,
    task: OneTask,
    title: Annotated[str | None, typer.Option("--title", help="One line.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="A new key.")] = None,
    **fields: Any,
) -> None:
    """Change a task that is neither in progress nor completed; what is not named stays."""
    from bae.team.models import as_planned

    found = await team.task(task)
    given = await _read_fields(team, title=title, key=key, **fields)
    planned = _check_task(as_planned(found).model_dump() | given)
    print_task(await team.store.edit_task(found.id, planned), (), ())
    _note_kinds(planned.kind)


@team_command(group, "bae team tasks drop add-login")
async def drop(team: Team, tasks: Annotated[list[str], _TASKS]) -> None:
    """Drop tasks that are neither in progress nor completed. Their branches stay."""
    found = {(await team.task(each)).id for each in tasks}
    # Those that others need come last.
    for task in reversed(await team.tasks()):
        if task.id in found:
            await team.store.drop_task(task.id)
    note(f"{count(len(found), 'task')} dropped")


async def _read_fields(team: Team, **fields: Any) -> dict[str, Any]:
    """What a command line sets of a task."""
    given = {name: value for name, value in fields.items() if value is not None}
    if "description" in given:
        given["description"] = read_text(given["description"])
    if "depends_on" in given:
        given["depends_on"] = [(await team.task(each)).key for each in given["depends_on"] if each]
    return given


def _note_kinds(*kinds: str) -> None:
    """Point out kinds that only workers of the user's own may have."""
    from bae.team.planning import KINDS

    for kind in dict.fromkeys(each for each in kinds if each not in KINDS):
        own = f"of the kind {kind!r}, which `bae team run --workers FILE` needs to have"
        note(f"there is no worker {own}; others are {', '.join(KINDS)}")


def _read_tasks(text: str, source: str) -> list[dict[str, Any]]:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(list[dict[str, Any]]).validate_json(text)
    except ValidationError as error:
        raise refused(f"{source} is no list of tasks", 'write [{"title": …}, …]', error) from error


def _check_task(values: dict[str, Any]) -> PlannedTask:
    """A task from what a person wrote; its key is made from its title where there is none."""
    from pydantic import ValidationError

    from bae.exceptions import faults
    from bae.team.models import PlannedTask

    if not values.get("key"):
        made = re.sub(r"[^a-z0-9]+", "-", str(values.get("title", "")).lower()).strip("-")
        values = values | {"key": made[:60].strip("-")}
    try:
        return PlannedTask.model_validate(values)
    except ValidationError as error:
        raise refused(f"this is no task: {'; '.join(faults(error))}", "correct it") from error
