"""`bae team tasks`: list, show, approve, add, edit and drop the tasks of a plan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bae.cli.exits import Misuse, refusal
from bae.cli.later import call_later
from bae.cli.options import AsJSON, examples
from bae.cli.team_project import (
    OneTask,
    Team,
    can_ask,
    find_user,
    open_team,
    read_file,
    read_text,
    run_async,
    team_command,
)

if TYPE_CHECKING:
    from bae.cli.printing import note, out, print_json
    from bae.cli.team_output import as_data, print_next, print_task, print_tasks
    from bae.cli.wording import count, in_one_line
    from bae.team.models import PlannedTask, Task
else:
    note, out, print_json = call_later("bae.cli.printing", "note out print_json")
    as_data, print_next, print_task, print_tasks = call_later(
        "bae.cli.team_output", "as_data print_next print_task print_tasks"
    )
    count, in_one_line = call_later("bae.cli.wording", "count in_one_line")

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
_TASKS: Final = typer.Argument(metavar="TASK…", help="The keys or numbers of tasks.")


def _make_option(kind: Any, *names: str, help: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, help=help, **more)]


_FIELDS: Final = {
    "description": _make_option(
        str | None,
        "--description",
        "-d",
        help="What the worker has to do; `@FILE` reads it from a file.",
    ),
    "kind": _make_option(
        str | None, "--kind", help="The kind of worker: backend, frontend, test or docs."
    ),
    "criteria": _make_option(
        list[str] | None,
        "--criterion",
        "-c",
        metavar="TEXT",
        help="A criterion that shows when the task is done. Repeat for several.",
    ),
    "files": _make_option(
        list[str] | None,
        "--file",
        "-f",
        metavar="FILE",
        help="An existing file that the task is likely to change. Repeat for several.",
    ),
    "new_files": _make_option(
        list[str] | None,
        "--new-file",
        metavar="FILE",
        help="A file that the task creates. Repeat for several.",
    ),
    "tests": _make_option(
        list[str] | None,
        "--test",
        metavar="TEST",
        help=(
            "A test, file or group of tests that must pass afterwards. Repeat for several. Other "
            "tests that fail already may still fail."
        ),
    ),
    "depends_on": _make_option(
        list[str] | None,
        "--after",
        metavar="TASK",
        help="A task that must be merged first. Repeat for several. An empty text means none.",
    ),
    "priority": _make_option(
        int | None, "--priority", "-p", help="Tasks with a higher priority start first."
    ),
    "proof": _make_option(
        Literal["new-tests", "named-tests", "failing-tests", "none"] | None,
        "--proof",
        help=(
            "The proof that the task is done: new tests that fail without the work (usual), the "
            "tests that --test names, failing acceptance tests of the feature, or none. A task "
            "without a proof must be approved with --without-tests."
        ),
    ),
    "feature": _make_option(
        str | None,
        "--feature",
        metavar="NAME",
        help=(
            "The feature that the task belongs to. The tasks of a feature reach the team's branch "
            "together."
        ),
    ),
    "may": _make_option(
        Literal["add-tests", "change-tests", "change-test-setup"] | None,
        "--may",
        help=(
            "The changes to existing tests that the task may make: only add tests (usual), also "
            "change and remove tests, or also change how tests are run."
        ),
    ),
    "edits_tests": _make_option(
        bool | None,
        "--edits-tests/--keeps-tests",
        help=(
            "--edits-tests is short for --may change-tests, and --keeps-tests is short for --may "
            "add-tests."
        ),
    ),
}
"""The options of `add` and `edit`. Each option sets the task field that is its key."""


@group.callback()
def tasks(context: typer.Context) -> None:
    """Look at the tasks, approve and change them."""
    if context.invoked_subcommand is None:
        list_()


@team_command(group, "bae team tasks list", "bae team tasks list --json", name="list")
async def list_(team: Team, as_json: AsJSON = False) -> None:
    """Draw the tasks as a graph. Each task is below one of its dependencies."""
    planned = await team.tasks()
    if as_json:
        print_json(as_data(planned))
    else:
        print_tasks(planned, interrupted=await team.is_interrupted())


@team_command(group, "bae team tasks show add-login")
async def show(team: Team, task: OneTask, as_json: AsJSON = False) -> None:
    """Show one task with its plan, attempts, reviews, questions and answers."""
    chosen_task = await team.task(task)
    attempts = await team.store.attempts(chosen_task.id)
    all_blockers = await team.store.blockers(team.project.id)
    blockers = [blocker for blocker in all_blockers if blocker.task_id == chosen_task.id]
    flaky = (await team.store.flaky_tests(team.project.id)).get(chosen_task.id, ())
    reviews = (await team.store.reviews(team.project.id)).get(chosen_task.id, ())
    if as_json:
        extra = {"attempts": as_data(attempts), "blockers": as_data(blockers), "flaky": flaky}
        print_json(chosen_task.model_dump(mode="json") | extra | {"reviews": as_data(reviews)})
    else:
        print_task(chosen_task, attempts, blockers, flaky, reviews)


@team_command(
    group,
    "bae team tasks approve",
    "bae team tasks approve prices orders",
    "bae team tasks approve user-guide --without-tests",
)
async def approve(
    team: Team,
    tasks: Annotated[list[str] | None, _TASKS] = None,
    without_tests: Annotated[
        bool,
        typer.Option(
            "--without-tests",
            help="Approve the named tasks to be merged without tests that prove them.",
        ),
    ] = False,
) -> None:
    """Approve the named tasks, or all tasks, so that they may run.

    A task without tests must be named with --without-tests, or confirmed at a terminal. When its
    work is merged, its status is merged instead of completed.
    """
    if without_tests and not tasks:
        raise Misuse("--without-tests is for tasks that are named", fix="name each of them")
    chosen_tasks = [await team.task(task) for task in tasks] if tasks else await team.tasks()
    if not chosen_tasks:
        raise refusal("there are no tasks", fix="bae team plan 'WHAT TO BUILD'")
    unapproved = [task for task in chosen_tasks if not task.approved]
    untested = [task for task in unapproved if task.proof == "none"]
    for task in untested:
        note(f"without tests: {task.key}, {in_one_line(task.title)}{_describe_files(task)}")
    confirmed = (
        untested if without_tests else [task for task in untested if _confirm_untested(task)]
    )
    approve, by = team.store.approve_tasks, find_user()
    approved_count = await approve([task.id for task in unapproved], by=by)
    approved_count += await approve([task.id for task in confirmed], without_tests=True, by=by)
    note(f"{count(approved_count, 'task')} approved")
    unapproved_keys = [task.key for task in untested if task not in confirmed]
    commands = (
        [f"bae team tasks approve {' '.join(unapproved_keys)} --without-tests"]
        if unapproved_keys
        else []
    )
    print_next(*commands, "bae team run")


def _describe_files(task: Task) -> str:
    return f"; may change {', '.join(task.paths)}" if task.paths else "; text for people only"


def _confirm_untested(task: Task) -> bool:
    """Ask at a terminal whether a task may be merged without tests."""
    return can_ask() and typer.confirm(f"Merge {task.key} without tests?", err=True)


@team_command(
    group,
    "bae team tasks add 'Add a login page' --kind frontend --after sessions -c 'it says hello'",
    "bae team tasks add --from tasks.json",
    "A file has a list of objects with key, title, description, kind, criteria, files, "
    "new_files, tests, depends_on, priority, proof, may and feature; all but title may be left "
    "out.",
    options=_FIELDS,
)
async def add(
    team: Team,
    title: Annotated[str | None, typer.Argument(metavar="TITLE", help="One line.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="The short name of the task. Default: made from the title."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="A JSON file of tasks; `-` reads stdin."),
    ] = None,
    **fields: Any,
) -> None:
    """Add a task, or the tasks in a file. Added tasks are approved, unless their proof is none."""
    from bae.team.steering import check_files

    if (title is None) == (source is None):
        raise Misuse("there is no task to add", fix="give a title, or --from FILE")
    if source is not None:
        planned = _read_tasks(read_file(source), source)
    else:
        planned = [await _read_fields(team, title=title, key=key, **fields)]
    added = [_make_task(values) for values in planned]
    await check_files(team.store, team.repository, team.project, added)
    await team.store.add_tasks(team.project.id, added, by=find_user())
    print_tasks(await team.tasks())
    _note_kinds(*(task.kind for task in added))
    _note_untested(*added)


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
    """Change a task that is neither in progress nor merged. Other fields keep their values."""
    from bae.team.models import headline
    from bae.team.steering import change_task, check_files

    chosen_task = await team.task(task)
    changes = await _read_fields(team, title=title, key=key, **fields)
    planned = change_task(chosen_task, changes)
    if "files" in changes or "new_files" in changes:
        await check_files(team.store, team.repository, team.project, [planned])
    edited = await team.store.edit_task(chosen_task.id, planned, by=find_user())
    print_task(edited.model_copy(update={"reason": headline(edited.reason)}), (), ())
    _note_kinds(planned.kind)
    _note_untested(planned)
    if edited.status in ("blocked", "failed", "cancelled"):
        print_next(f"bae team retry {edited.key}", "bae team run")


@team_command(group, "bae team tasks drop add-login")
async def drop(team: Team, tasks: Annotated[list[str], _TASKS]) -> None:
    """Drop tasks that are neither in progress nor merged. The branches of the tasks stay."""
    ids = {(await team.task(task)).id for task in tasks}
    # A task is dropped after the tasks that depend on it.
    for task in reversed(await team.tasks()):
        if task.id in ids:
            await team.store.drop_task(task.id, by=find_user())
    note(f"{count(len(ids), 'task')} dropped")


async def _read_fields(team: Team, **fields: Any) -> dict[str, Any]:
    """Return the task fields that the options of a command set."""
    values = {name: value for name, value in fields.items() if value is not None}
    if "edits_tests" in values:
        level = "change-tests" if values.pop("edits_tests") else "add-tests"
        values.setdefault("may", level)
    if "description" in values:
        values["description"] = read_text(values["description"])
    if "depends_on" in values:
        values["depends_on"] = [
            (await team.task(value)).key for value in values["depends_on"] if value
        ]
    return values


def print_brief(task_name: str, *, with_tools: bool, as_json: bool) -> None:
    """Print the first brief for the worker of a task: `bae prompts --task`."""

    async def write() -> None:
        from bae.team.worker import preview_brief

        async with open_team() as team:
            task = await team.task(task_name)
            brief = await preview_brief(team.store, team.repository, task, with_tools=with_tools)
        if as_json:
            print_json({"task": task.key, "brief": brief})
        else:
            out().print(brief, soft_wrap=True, markup=False, highlight=False)

    run_async(write)


def _note_untested(*tasks: PlannedTask) -> None:
    """Print the command that approves tasks without tests, if there are any."""
    if untested := [task.key for task in tasks if task.proof == "none"]:
        print_next(f"bae team tasks approve {' '.join(untested)} --without-tests")


def _note_kinds(*kinds: str) -> None:
    """Print a note for each kind of task that has no built-in worker."""
    from bae.team.planning import KINDS

    for kind in dict.fromkeys(kind for kind in kinds if kind not in KINDS):
        note(
            f"there is no worker of the kind {kind!r}: add one with `bae team run --workers FILE`, "
            f"or use {', '.join(KINDS)}"
        )


def _read_tasks(text: str, source: str) -> list[dict[str, Any]]:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(list[dict[str, Any]]).validate_json(text)
    except ValidationError as error:
        raise refusal(
            f"{source} is not a list of tasks", 'write [{"title": …}, …]', error
        ) from error


def _make_task(values: dict[str, Any]) -> PlannedTask:
    """Return the task that a person describes. If the key is missing, derive it from the title."""
    from bae.team.steering import make_task

    if not values.get("key"):
        slug = re.sub(r"[^a-z0-9]+", "-", str(values.get("title", "")).lower()).strip("-")
        values = values | {"key": slug[:60].strip("-")}
    return make_task(values)
