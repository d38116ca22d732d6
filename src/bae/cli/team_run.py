"""`bae team run` and what people do meanwhile: watch, answer questions, steer and stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli import exits
from bae.cli.options import AsJSON, LMName, Quiet, examples
from bae.cli.team_project import Team, Workers, counted, find_task, open_team, read_text, run_async

if TYPE_CHECKING:
    from bae.lm.policies.budget import Budget
    from bae.team.lead import TeamSummary
    from bae.team.models import Action, Task

group = typer.Typer()

OneTask = Annotated[
    str, typer.Argument(metavar="TASK", show_default=False, help="A task: its key, or its number.")
]
OneOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        show_default=False,
        help="A task: its key, or its number. Left out: the whole run.",
    ),
]
Port = Annotated[
    int,
    typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 takes a free one."),
]


@group.command(
    epilog=examples(
        "bae team run",
        "bae team run --max-agents 3 --budget cost=2.50 --timeout 3600",
        "bae team run --dry-run",
        "Another terminal can watch, answer and steer meanwhile: see `bae team --help`.",
        "A run that was interrupted or killed continues with the same command.",
    )
)
def run(
    max_agents: Annotated[
        int,
        typer.Option("--max-agents", metavar="N", min=1, help="How many workers at a time."),
    ] = 5,
    lm: LMName = None,
    workers: Workers = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="LIMITS",
            show_default=False,
            help="What the run may spend, as `cost=2.50` or `calls=200,tokens=1000000`: `calls` "
            "of the language model, `tokens` in and out, `cost` in US dollars.",
        ),
    ] = None,
    task_budget: Annotated[
        str | None,
        typer.Option(
            "--task-budget",
            metavar="LIMITS",
            show_default=False,
            help="What each task may spend, in the same form.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            show_default=False,
            help="How long the run may take.",
        ),
    ] = None,
    task_timeout: Annotated[
        float,
        typer.Option(
            "--task-timeout", metavar="SECONDS", min=1, help="How long a task may stand still."
        ),
    ] = 300.0,
    retries: Annotated[
        int,
        typer.Option(
            "--retries", metavar="N", min=0, help="How often a failed task is tried again."
        ),
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run in which order, and end.")
    ] = False,
    require_sandbox: Annotated[
        bool,
        typer.Option("--require-sandbox", help="Refuse to run tests with less than a sandbox."),
    ] = False,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            show_default=False,
            help="Whether to wait for answers to questions. Left out: at a terminal it waits.",
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve a page that shows the work, on this machine.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJSON = False,
) -> None:
    """Let the team work on the approved tasks, until all are merged or need you.

    Each task is started the moment the tasks it depends on are merged. Its worker writes code and
    tests in a worktree of its own, runs the tests in a sandbox, corrects itself, and is merged into
    the team's branch. Your own checkout moves along where it is clean.

    The exit code is 0 where all tasks are completed, 3 where one waits for an answer, and 1 else.
    """
    limits = (_budget(budget, "--budget"), _budget(task_budget, "--task-budget"))

    async def work() -> None:
        async with open_team() as team:
            tasks = await _check(team, require_sandbox=require_sandbox)
            if dry_run:
                await _print_dry_run(team, tasks, max_agents, retries)
                return
            from bae.cli.printing import err, out
            from bae.cli.team_project import find_lm, load_workers

            load_workers(team, workers)
            options: dict[str, Any] = {
                "max_agents": max_agents,
                "budget": limits[0],
                "task_budget": limits[1],
                "timeout": timeout,
                "task_timeout": task_timeout,
                "retries": retries,
                "wait": _is_watched() if wait is None else wait,
            }
            summary = await _run(team, find_lm(lm), options, quiet=quiet or as_json, serve=serve)
            shown = err().is_terminal and out().is_terminal and not quiet
            await _report(team, summary, as_json=as_json, shown=shown)

    try:
        run_async(work)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("- what was done is kept; continue with: bae team run")
        raise


async def _check(team: Team, *, require_sandbox: bool) -> list[Task]:
    """Report what is missing before anything is spent: the tasks that may run."""
    from bae.cli.exits import refused
    from bae.cli.printing import note
    from bae.team import sandbox
    from bae.team.project import find_problems

    problems = await asyncio.to_thread(find_problems, team.project)
    if problems:
        raise refused("\n".join(problems), fix="bae team init --test COMMAND")
    tasks = await team.tasks()
    if not tasks:
        raise refused("there are no tasks", fix="bae team plan 'WHAT TO BUILD'")
    approved = [task for task in tasks if task.approved]
    if not approved:
        raise refused("no task is approved yet", fix="bae team tasks approve")
    if len(approved) < len(tasks):
        note(f"not approved, and so not run: {counted(len(tasks) - len(approved), 'task')}")
    protection = await sandbox.protection(require=require_sandbox)
    if protection != sandbox.Protection.BUBBLEWRAP:
        note(f"tests run with less than a sandbox: {protection}; --require-sandbox refuses that")
    return tasks


async def _run(
    team: Team, lm: Any, options: dict[str, Any], *, quiet: bool, serve: bool
) -> TeamSummary:
    from bae.cli.printing import err, note
    from bae.team.board import watch
    from bae.team.lead import LeadAgent
    from bae.team.workbench import Workbench

    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(Workbench.open(team.project, team.store))
        if serve:
            from bae.team.server import serving

            address = await stack.enter_async_context(serving(team.store, team.project.id))
            note(f"the work is shown at {address.url}")
        if not quiet:
            watching = watch(team.store, team.project.id, err())
            await stack.enter_async_context(_beside(watching))
        return await LeadAgent(bench, lm, **options).run()


async def _report(team: Team, summary: TeamSummary, *, as_json: bool, shown: bool) -> None:
    """Print what a run has come to, where the board has not `shown` it; the exit code says it in
    short."""
    from bae.cli.printing import print_json
    from bae.cli.team_output import (
        as_data,
        counts_text,
        print_blockers,
        print_fields,
        print_next,
        print_tasks,
        spent_text,
    )

    blockers = await team.store.blockers(team.project.id, open_only=True)
    if as_json:
        print_json(summary.model_dump(mode="json") | {"blockers": as_data(blockers)})
    else:
        moved = summary.checkout
        if not shown:
            print_tasks(summary.tasks)
            print_blockers(blockers, summary.tasks)
        print_fields(
            {
                "run": f"{_ENDS[summary.ended]} after {summary.seconds:.0f} s",
                "tasks": counts_text(summary.counts),
                "spent": spent_text(summary.spent),
                "merged": f"{team.project.branch} is at {summary.head[:12]}",
                "checkout": _left(moved.reason, team.project.branch) if moved else "",
                "notes": "\n".join(summary.notes),
            }
        )
        if summary.ended in _NEXT:
            print_next(*_NEXT[summary.ended])
        elif summary.ended == "waiting" and not blockers:
            print_next("bae team resume", "bae team run")
        elif blockers:
            print_next(f"bae team answer {blockers[0].id} 'YOUR ANSWER'", "bae team run")
        elif not all(task.approved for task in summary.tasks):
            print_next("bae team tasks approve", "bae team run")
        elif not summary.done and summary.ended == "done":
            print_next("bae team tasks show TASK", "bae team retry", "bae team run")
    if not summary.done:
        raise typer.Exit(exits.WAITING if summary.ended == "waiting" else exits.FAILED)


def _left(reason: str, branch: str) -> str:
    return (
        f"left where it was, since {reason}; `git merge {branch}` takes the work" if reason else ""
    )


_ENDS: Final = {
    "done": "done",
    "waiting": "waits for answers",
    "paused": "paused",
    "stopped": "stopped",
    "killed": "killed",
    "budget": "ended by its budget",
    "timeout": "ended by its timeout",
}
_NEXT: Final = {
    "paused": ("bae team resume", "bae team run"),
    "budget": ("bae team run --budget MORE",),
    "timeout": ("bae team run",),
}


async def _print_dry_run(team: Team, tasks: list[Task], max_agents: int, retries: int) -> None:
    from bae.cli.printing import note, out
    from bae.cli.texts import in_one_line
    from bae.team.controls import read_held, read_paused
    from bae.team.schedule import plan_dry_run

    approved = [task for task in tasks if task.approved]
    held = await read_held(team.store, team.project.id)
    plan = plan_dry_run(approved, max_agents=max_agents, held=held, retries=retries)
    if None in await read_paused(team.store, team.project.id):
        note("the run is paused: nothing is started before bae team resume")
    for number, each in enumerate(plan.rounds, 1):
        out().print(f"{number:>3}  {', '.join(task.key for task in each)}", soft_wrap=True)
    path = " -> ".join(task.key for task in plan.critical_path)
    out().print(f"The longest chain: {path or 'none'}", soft_wrap=True)
    for task in plan.left:
        why = in_one_line(task.reason or task.status)
        out().print(f"not started: {task.key}, {why}", soft_wrap=True, markup=False)


# What people do meanwhile


@group.command(epilog=examples("bae team watch"))
def watch(
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="N",
            min=0,
            show_default=False,
            help="Where there is no terminal: print the events after this number, too.",
        ),
    ] = None,
) -> None:
    """Show the work live, until Ctrl-C: tasks, agents, questions and what happened last.

    The work may be done by another process. Where there is no terminal, each event is a line.
    """

    async def work() -> None:
        from bae.cli.printing import out
        from bae.team.board import watch as show

        async with open_team() as team:
            await show(team.store, team.project.id, out(), after=after)

    _until_interrupted(work)


@group.command(epilog=examples("bae team serve", "bae team serve --port 8080"))
def serve(
    port: Port = 0,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="The address; others than this machine need a token."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TEXT",
            envvar="BAE_TEAM_TOKEN",
            show_default=False,
            help="What a client has to send.",
        ),
    ] = None,
) -> None:
    """Serve a page that shows the work, and the events by WebSocket, until Ctrl-C."""

    async def work() -> None:
        from bae.cli.printing import out
        from bae.team.server import serving

        async with (
            open_team() as team,
            serving(team.store, team.project.id, host=host, port=port, token=token) as address,
        ):
            out().print(f"page    {address.url}", soft_wrap=True, markup=False)
            out().print(f"events  {address.events()}", soft_wrap=True, markup=False)
            await asyncio.Event().wait()

    _until_interrupted(work)


@group.command(epilog=examples("bae team blockers", "bae team blockers --all"))
def blockers(
    every: Annotated[bool, typer.Option("--all", help="Those with an answer, too.")] = False,
    as_json: AsJSON = False,
) -> None:
    """List the questions that tasks wait for."""

    async def work() -> None:
        from bae.cli.printing import out, print_json
        from bae.cli.team_output import as_data, print_blockers

        async with open_team() as team:
            found = await team.store.blockers(team.project.id, open_only=not every)
            if as_json:
                print_json(as_data(found))
            elif found:
                print_blockers(found, await team.tasks())
            else:
                out().print("No task waits for an answer.")

    run_async(work)


@group.command(
    epilog=examples(
        "bae team answer 1 'Ten of them.'", "bae team answer report @answer.md", "bae team answer"
    )
)
def answer(
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION",
            show_default=False,
            help="The number of the question, or its task. Left out: all that are open are asked "
            "at the terminal.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="ANSWER", show_default=False, help="The answer; `@FILE` for a file of it."
        ),
    ] = None,
) -> None:
    """Answer a question, so that its task continues: at once where the team is running."""

    async def work() -> None:
        from bae.cli.exits import refused
        from bae.cli.printing import note
        from bae.cli.team_output import print_next
        from bae.cli.team_project import ask, can_ask

        async with open_team() as team:
            known = {task.id: task for task in await team.tasks()}
            found = await team.store.blockers(team.project.id, open_only=True)
            if question is not None:
                found = [
                    each for each in found if question in (str(each.id), known[each.task_id].key)
                ]
            if not found:
                raise refused(
                    f"there is no open question {question or ''}".rstrip(),
                    fix="bae team blockers --all",
                )
            if text is None and not can_ask():
                raise refused("there is no answer", fix="bae team answer QUESTION 'ANSWER'")
            running = await team.is_running()
            for each in found[: 1 if text is not None else None]:
                said = read_text(text) if text is not None else None
                try:
                    said = said or await ask(f"{known[each.task_id].key}: {each.question}")
                except EOFError:
                    break
                await team.store.answer_blocker(each.id, said)
                note(f"{known[each.task_id].key} continues{'' if running else ' in the next run'}")
            if not running:
                print_next("bae team run")

    run_async(work)


@group.command(epilog=examples("bae team note report 'Keep the names of the old report.'"))
def note(
    task: OneTask,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", show_default=False, help="What to mind; `@FILE` for a file of it."
        ),
    ],
) -> None:
    """Steer a task: the next attempt at it sees the note."""

    async def work() -> None:
        from bae.cli.printing import note as say

        async with open_team() as team:
            found = find_task(await team.tasks(), task)
            await team.store.add_note(found.id, read_text(text))
            say(f"the next attempt at {found.key} sees the note")

    run_async(work)


@group.command(epilog=examples("bae team stop", "bae team stop report"))
def stop(task: OneOrAll = None) -> None:
    """Stop a task, or the run, after the attempts that are in progress."""
    _request("stop", task)


@group.command(epilog=examples("bae team kill", "bae team kill report"))
def kill(task: OneOrAll = None) -> None:
    """End a task, or the run, now. Work that is not merged stays on its branch."""
    _request("kill", task)


@group.command(epilog=examples("bae team pause", "bae team pause report"))
def pause(task: OneOrAll = None) -> None:
    """Start nothing new until `resume`; what is in progress is finished."""
    _request("pause", task)


@group.command(epilog=examples("bae team resume", "bae team resume report"))
def resume(task: OneOrAll = None) -> None:
    """Continue a task, or the run, that was paused."""
    _request("resume", task)


@group.command(epilog=examples("bae team retry", "bae team retry report"))
def retry(task: OneOrAll = None) -> None:
    """Do a task again that failed, was cancelled, skipped or is blocked; or all that failed."""
    _request("retry", task)


@group.command(epilog=examples("bae team skip report"))
def skip(task: OneTask) -> None:
    """Do without a task: those that depend on it continue."""
    _request("skip", task)


def _request(action: Action, named: str | None) -> None:
    async def work() -> None:
        from bae.cli.exits import refused
        from bae.cli.printing import note as say
        from bae.team.controls import add_request

        async with open_team() as team:
            task = find_task(await team.tasks(), named) if named is not None else None
            if task is not None and task.status == "completed":
                raise refused(
                    f"{task.key} is completed: its work is merged",
                    fix="what is to be changed is a task of its own: bae team tasks add",
                )
            running = await team.is_running()
            if task is None and action in ("stop", "kill") and not running:
                say("no run is in progress")
                return
            await add_request(team.store, team.project.id, action, task.id if task else None)
            taken = "the run takes it now" if running else "the next run takes it"
            say(f"{action} {task.key if task else 'the run'}: {taken}")

    run_async(work)


# Running


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Something that goes on until the block ends. What it fails with is reported, and does not end
    the block."""
    from bae.cli.printing import note as say

    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            say(f"the work could not be shown: {error!r}")


def _is_watched() -> bool:
    from bae.cli.team_project import can_ask

    return can_ask()


def _budget(said: str | None, option: str) -> Budget | None:
    from bae.cli.options import budget_of

    budget = budget_of(said)
    if budget is not None and budget.seconds is not None:
        raise typer.BadParameter("limit the time with --timeout", param_hint=f"'{option}'")
    return budget


def _until_interrupted(work: Callable[[], Any]) -> None:
    """What goes on until Ctrl-C, which is its normal end."""
    try:
        run_async(work)
    except KeyboardInterrupt:
        return
