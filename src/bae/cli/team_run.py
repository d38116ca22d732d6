"""`bae team run`: runs a team and shows its work."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bae.cli import exits
from bae.cli.exits import Misuse, refusal
from bae.cli.later import call_later
from bae.cli.options import AsJSON, LMName, Quiet, budget_of
from bae.cli.team_project import (
    AllowUnsandboxed,
    Team,
    UpdateCheckout,
    Workers,
    can_ask,
    find_lm,
    load_workers,
    team_command,
    with_settings,
)

if TYPE_CHECKING:
    from bae.cli.printing import err, note, out, print_json
    from bae.cli.team_output import (
        as_data,
        print_address,
        print_blockers,
        print_fields,
        print_next,
        print_tasks,
    )
    from bae.cli.wording import count, in_one_line
    from bae.lm.policies.budget import Budget
    from bae.team.lead import TeamSummary
    from bae.team.models import Task
    from bae.team.programs import CodingProgram
else:
    err, note, out, print_json = call_later("bae.cli.printing", "err note out print_json")
    as_data, print_address, print_blockers, print_fields, print_next, print_tasks = call_later(
        "bae.cli.team_output",
        "as_data print_address print_blockers print_fields print_next print_tasks",
    )
    count, in_one_line = call_later("bae.cli.wording", "count in_one_line")

group = typer.Typer()


@team_command(
    group,
    "bae team run",
    "bae team run --max-agents 3 --budget cost=2.50 --timeout 3600",
    "bae team run --dry-run",
    "Another terminal can watch, answer and steer meanwhile: see `bae team --help`.",
    "A run that was interrupted or killed continues with the same command.",
    interrupted="- progress is saved; continue with: bae team run",
)
async def run(
    team: Team,
    max_agents: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="How many workers at a time."),
    ] = 5,
    lm: LMName = None,
    workers: Workers = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS",
            help=(
                "The limit of the run, such as `cost=2.50` or `calls=200,tokens=1000000`: `calls` "
                "of the language model, `tokens` in and out, `cost` in US dollars."
            ),
        ),
    ] = None,
    task_budget: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS",
            help=(
                "The limit of each task, in the same form. Default: `tokens=1000000`; with "
                "claude-code `cost=5`, with codex `tokens=5000000`."
            ),
        ),
    ] = None,
    worker: Annotated[
        Literal["auto", "loop", "oneshot", "claude-code", "codex"],
        typer.Option(
            help=(
                "How workers work: `loop` is a conversation with tools, `oneshot` is one answer "
                "with all edits, and `auto` is `loop` for models with tool calls, `oneshot` "
                "for others. `claude-code` and `codex` are programs on your machine that replace "
                "the model."
            ),
        ),
    ] = "auto",
    allow_network: Annotated[
        bool,
        typer.Option(
            "--allow-network",
            help=(
                "Let the program of --worker use this machine's network. Without "
                "this option, bae asks at a terminal."
            ),
        ),
    ] = False,
    max_rounds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            help="The highest number of requests in a worker's conversation.",
        ),
    ] = 40,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Seconds after which the run ends.",
        ),
    ] = None,
    task_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Seconds without progress after which a task fails.",
        ),
    ] = 300.0,
    retries: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="How often a failed task is tried again."),
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show which tasks would run, in which order, and exit."),
    ] = False,
    require_sandbox: Annotated[
        bool,
        typer.Option("--require-sandbox", help="Refuse to run tests with less than a sandbox."),
    ] = False,
    approve_tests: Annotated[
        bool,
        typer.Option("--approve-tests", help="Ask you to approve acceptance tests."),
    ] = False,
    update_checkout: UpdateCheckout = None,
    allow_unsandboxed: AllowUnsandboxed = None,
    edit_format: Annotated[
        Literal["auto", "whole", "blocks"],
        typer.Option(
            help=(
                "The form of the model's edits: `whole` files, SEARCH/REPLACE `blocks`, or `auto`, "
                "which depends on the length of each file."
            ),
        ),
    ] = "auto",
    require_review: Annotated[
        bool,
        typer.Option(
            "--require-review",
            help="Refuse work with a blocking finding of the reviewer.",
        ),
    ] = False,
    no_review: Annotated[
        bool, typer.Option("--no-review", help="Do not review the work with a second model.")
    ] = False,
    reviewer: Annotated[
        str | None,
        typer.Option(
            metavar="LM",
            help="The language model that reviews. Default: the model of the workers.",
        ),
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Wait for answers to questions. Default: only at a terminal.",
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the team over HTTP, on this machine.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJSON = False,
) -> None:
    """Let the team work on the approved tasks.

    The team works until every task is merged or needs you. A task starts as soon as its
    dependencies are merged. A worker reads the code, edits it in a worktree of its own, runs tests
    in a sandbox, and submits the work. Work that tests prove is merged into the team's branch. Your
    own branch and files do not change without --update-checkout.

    The exit code is 0 if all tasks are completed, merged or skipped, 3 if a task waits for an
    answer, 4 if another run is in progress, and 1 otherwise.
    """
    options: dict[str, Any] = {
        "max_agents": max_agents,
        "budget": _read_budget(budget, "--budget"),
        "timeout": timeout,
        "task_timeout": task_timeout,
        "retries": retries,
        "wait": can_ask() if wait is None else wait,
    }
    if task_budget is not None:
        options["task_budget"] = _read_budget(task_budget, "--task-budget")
    if no_review and (require_review or reviewer):
        option = "--require-review" if require_review else "--reviewer"
        raise Misuse(f"--no-review turns off what {option} asks for", fix="leave one of them out")
    project = with_settings(
        team.project, update_checkout=update_checkout, allow_unsandboxed=allow_unsandboxed
    )
    team = replace(team, project=project)
    tasks = await _check_team(team, require_sandbox=require_sandbox)
    if dry_run:
        await _print_dry_run(team, tasks, max_agents, retries)
        return
    from bae.cli.team_board import watch as show
    from bae.team.lead import LeadAgent
    from bae.team.workbench import Workbench

    load_workers(team, workers)
    worker_mode = await _find_worker(worker, allow_network=allow_network)
    model = find_lm(lm) if lm is not None or isinstance(worker_mode, str) else None
    store_and_project = team.store, team.project.id
    async with AsyncExitStack() as stack:
        # The log prints nothing, because events and the summary show all failures.
        worker_log, no_output = logging.getLogger("bae.team.worker_runs"), logging.NullHandler()
        worker_log.addHandler(no_output)
        stack.callback(worker_log.removeHandler, no_output)
        review = "require" if require_review else "off" if no_review else "advise"
        opening = Workbench.open(
            team.project,
            team.store,
            edit_format=edit_format,
            worker=worker_mode,
            rounds=max_rounds,
            approve_tests=approve_tests,
            review=review,
            reviewer=find_lm(reviewer) if reviewer else None,
        )
        bench = await stack.enter_async_context(opening)
        if serve:
            from bae.team.team_server import serving

            server = serving(*store_and_project, journal=bench.journal)
            address = await stack.enter_async_context(server)
            print_address(err(), address)
        if not (quiet or as_json):
            board = show(*store_and_project, err(), journal=bench.journal)
            await stack.enter_async_context(_run_beside(board))
        summary = await LeadAgent(bench, model, **options).run()
    is_board_shown = err().is_terminal and out().is_terminal and not quiet
    await _print_summary(team, summary, as_json=as_json, is_board_shown=is_board_shown)


async def _find_worker(
    name: Literal["auto", "loop", "oneshot", "claude-code", "codex"], *, allow_network: bool
) -> Literal["auto", "loop", "oneshot"] | CodingProgram:
    """Return the mode of workers, or their coding program. A coding program needs the network. If
    neither `allow_network` nor a person at the terminal allows it, raise ProgramError."""
    if name != "claude-code" and name != "codex":
        return name
    from bae.team.known_programs import PROGRAMS

    program = PROGRAMS[name](allow_network=True)
    await program.check()
    if not allow_network and can_ask():
        note(program.describe_reach())
        allow_network = typer.confirm(f"Let {name} work on the tasks?", err=True)
    program.allow_network = allow_network
    await program.check()
    return program


async def _check_team(team: Team, *, require_sandbox: bool) -> list[Task]:
    """Return all tasks. Raise an error if the team cannot run, before an LLM is called."""
    import asyncio

    from bae.team import sandbox
    from bae.team.project import find_problems

    problems = await asyncio.to_thread(find_problems, team.project)
    if problems:
        raise refusal("\n".join(problems), fix="bae team init --test COMMAND")
    tasks = await team.tasks()
    if not tasks:
        raise refusal("there are no tasks", fix="bae team plan 'WHAT TO BUILD'")
    unapproved = sum(not task.approved for task in tasks)
    if unapproved == len(tasks):
        raise refusal("no task is approved yet", fix="bae team tasks approve")
    branch = team.project.branch
    if await team.repository.current_branch() == branch and not team.project.update_checkout:
        raise refusal(
            f"your checkout is on {branch}, which the team moves",
            fix="switch to another branch, or have your files moved too with --update-checkout",
        )
    if unapproved:
        note(f"not approved, and so not run: {count(unapproved, 'task')}")
    unsandboxed = team.project.allow_unsandboxed
    protection = await sandbox.protection(require=require_sandbox, unsandboxed=unsandboxed)
    if protection != sandbox.Protection.BUBBLEWRAP:
        note(f"tests run with less than a sandbox: {protection}; --require-sandbox refuses that")
    return tasks


async def _print_summary(
    team: Team, summary: TeamSummary, *, as_json: bool, is_board_shown: bool
) -> None:
    """Print the outcome of a run. Raise typer.Exit if tasks are not done. If the board was shown,
    do not print the tasks and questions again."""
    from bae.cli.team_output import counts_text, spent_text, staged_text
    from bae.team.models import TaskStatus

    blockers = await team.store.blockers(team.project.id, open_only=True)
    if as_json:
        print_json(summary.model_dump(mode="json") | {"blockers": as_data(blockers)})
    else:
        if not is_board_shown:
            print_tasks(summary.tasks, blockers)
            print_blockers(blockers, summary.tasks)
        branch = team.project.branch
        user_branch = await team.repository.current_branch() or "HEAD"
        checkout = summary.checkout
        not_moved = (
            f"left where it was, since {checkout.reason}\n" if checkout and checkout.reason else ""
        )
        hint = (
            f"`git diff {user_branch}...{branch}` shows the work\n"
            f"`git merge --no-ff {branch}` takes it"
        )
        if await team.repository.contains("HEAD", summary.head):
            not_moved = hint = ""
        merged = (TaskStatus.COMPLETED, TaskStatus.MERGED)
        has_merged = any(task.status in merged for task in summary.tasks)
        print_fields(
            {
                "run": f"{_ENDS[summary.ended]} after {summary.seconds:.0f} s",
                "tasks": counts_text(summary.counts),
                "spent": spent_text(summary.spent),
                "merged": f"{branch} is at {summary.head[:12]}" if has_merged else "",
                "staged": staged_text(summary.tasks),
                "checkout": not_moved + hint,
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
    from bae.team.models import headline
    from bae.team.schedule import plan_dry_run
    from bae.team.team_run import read_held, read_paused

    approved = [task for task in tasks if task.approved]
    held_tasks = await read_held(team.store, team.project.id)
    plan = plan_dry_run(approved, max_agents=max_agents, held=held_tasks, retries=retries)
    if None in await read_paused(team.store, team.project.id):
        note("the run is paused: nothing is started before bae team resume")
    for number, round_ in enumerate(plan.rounds, 1):
        out().print(f"{number:>3}  {', '.join(task.key for task in round_)}", soft_wrap=True)
    path = " -> ".join(task.key for task in plan.critical_path)
    out().print(f"The longest chain: {path or 'none'}", soft_wrap=True)
    for task in plan.left:
        reason = in_one_line(headline(task.reason) or task.status)
        out().print(f"not started: {task.key}, {reason}", soft_wrap=True, markup=False)


@asynccontextmanager
async def _run_beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run `work` as long as the block runs. If the work fails, print a note after the block, and do
    not raise the error."""
    import asyncio

    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            note(f"the work could not be shown: {error!r}")


def _read_budget(limits: str | None, option: str) -> Budget | None:
    budget = budget_of(limits)
    if budget is not None and budget.seconds is not None:
        raise typer.BadParameter("limit the time with --timeout", param_hint=f"'{option}'")
    return budget
