"""Commands for any terminal while a team works: watch, answer questions, steer and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bae.cli.exits import refusal
from bae.cli.later import call_later
from bae.cli.options import AsJSON
from bae.cli.team_project import (
    OneTask,
    Team,
    ask,
    can_ask,
    find_user,
    read_text,
    team_command,
)

if TYPE_CHECKING:
    from bae.cli.printing import note, out, print_json
    from bae.cli.team_output import as_data, print_address, print_blockers, print_next
    from bae.team.models import Action
    from bae.team.steering import Steered, Steering
else:
    note, out, print_json = call_later("bae.cli.printing", "note out print_json")
    as_data, print_address, print_blockers, print_next = call_later(
        "bae.cli.team_output", "as_data print_address print_blockers print_next"
    )

group = typer.Typer()
OneOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="The key or number of a task. Default: the whole run.",
    ),
]


@team_command(group, "bae team watch", interrupted="")
async def watch(
    team: Team,
    after: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Without a terminal, also print the events after this number.",
        ),
    ] = None,
) -> None:
    """Show the work live, until Ctrl-C.

    A board shows tasks, agents, questions and the latest events, also if another process does the
    work. Without a terminal, the command prints a line for each event and each step of an agent.
    """
    from bae.cli.team_board import watch as show

    await show(team.store, team.project.id, out(), after=after)


@team_command(group, "bae team serve", "bae team serve --port 8080", interrupted="")
async def serve(
    team: Team,
    port: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=65535, help="The port; 0 picks a free one."),
    ] = 0,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A host name of the server, besides loopback names. Repeat for several.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar="BAE_TEAM_TOKEN",
            help="The token that every request must send. Default: a new one, which is printed.",
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Serve the team over HTTP, until Ctrl-C.

    The API shows the plan, the tasks, the work and the open questions. It also takes answers and
    steers the team. /openapi.json describes the endpoints. Every request needs a token, on this
    machine too. To watch the work at a terminal, use `bae team watch`.
    """
    import asyncio

    from bae.cli.serve import find_token, need_server

    need_server()
    from bae.team.team_server import serving

    key, hosts = find_token(token), allow_host or ()
    store_and_project = team.store, team.project.id
    async with serving(*store_and_project, host=host, port=port, token=key, hosts=hosts) as address:
        if as_json:
            print_json({"url": address.url, "token": address.token if token is None else None})
        else:
            print_address(out(), address, is_token_given=token is not None)
        await asyncio.Event().wait()


@team_command(group, "bae team blockers", "bae team blockers --all", "bae team blockers --full")
async def blockers(
    team: Team,
    every: Annotated[bool, typer.Option("--all", help="Include answered questions.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Show the output below each question.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """List the questions that tasks wait for."""
    questions = await team.store.blockers(team.project.id, open_only=not every)
    if as_json:
        print_json(as_data(questions))
    elif questions:
        print_blockers(questions, await team.tasks(), full=full)
    else:
        out().print("No task waits for an answer.")


@team_command(
    group,
    "bae team answer 1 'Ten of them.'",
    "bae team answer report @answer.md",
    "bae team answer",
)
async def answer(
    team: Team,
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION",
            help=(
                "The number of the question, or its task. Default: all open questions, asked at "
                "the terminal."
            ),
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(metavar="ANSWER", help="The answer; `@FILE` reads it from a file."),
    ] = None,
) -> None:
    """Answer a question, so that its task continues.

    If the team is running, the task continues at once, otherwise in the next run.
    """
    keys = {task.id: task.key for task in await team.tasks()}
    waiting = await team.store.blockers(team.project.id, open_only=True)
    if question is not None:
        waiting = [
            blocker for blocker in waiting if question in (str(blocker.id), keys[blocker.task_id])
        ]
    if not waiting:
        missing = f"there is no open question {question or ''}".rstrip()
        raise refusal(missing, fix="bae team blockers --all")
    if text is None and not can_ask():
        raise refusal("there is no answer", fix="bae team answer QUESTION 'ANSWER'")
    running = await team.is_running()
    for blocker in waiting[: 1 if text is not None else None]:
        reply = read_text(text) if text is not None else None
        try:
            reply = reply or await ask(f"{keys[blocker.task_id]}: {blocker.summary}")
        except EOFError:
            break
        await team.store.answer_blocker(blocker.id, reply, by=find_user())
        note(f"{keys[blocker.task_id]} continues{'' if running else ' in the next run'}")
    if not running:
        print_next("bae team run")


@team_command(group, "bae team note report 'Keep the names of the old report.'", name="note")
async def add_note(
    team: Team,
    task: OneTask,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The note; `@FILE` reads it from a file."),
    ],
) -> None:
    """Send a note to the worker of a task. An LLM reads the note before its next round, and a
    coding program with its next turn."""
    request = await _steer(team, "note", task, read_text(text))
    key = request.task.key if request and request.task else task
    note(f"the worker of {key} reads the note before its next LM call or turn")


@team_command(group, "bae team stop", "bae team stop report")
async def stop(team: Team, task: OneOrAll = None) -> None:
    """Stop a task, or the run, after its current round or attempt."""
    await _request(team, "stop", task)


@team_command(group, "bae team kill", "bae team kill report")
async def kill(team: Team, task: OneOrAll = None) -> None:
    """End a task, or the run, now. Unmerged work stays on its branch."""
    await _request(team, "kill", task)


@team_command(group, "bae team pause", "bae team pause report")
async def pause(team: Team, task: OneOrAll = None) -> None:
    """Pause a task, or the run, until `bae team resume`.

    A task in progress stops after its current round or attempt.
    """
    await _request(team, "pause", task)


@team_command(group, "bae team resume", "bae team resume report")
async def resume(team: Team, task: OneOrAll = None) -> None:
    """Continue a task, or the run, that was paused."""
    await _request(team, "resume", task)


@team_command(group, "bae team retry", "bae team retry report")
async def retry(
    team: Team,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="The key or number of a task. Default: all failed tasks."
        ),
    ] = None,
) -> None:
    """Retry a task, or all failed tasks.

    A task can be retried if it failed, was cancelled or skipped, or is blocked.
    """
    await _request(team, "retry", task)


@team_command(group, "bae team skip report")
async def skip(team: Team, task: OneTask) -> None:
    """Do without a task. Tasks that depend on it continue."""
    await _request(team, "skip", task)


async def _request(team: Team, action: Action, task_name: str | None) -> None:
    request = await _steer(team, action, task_name)
    if request is None:
        note("no run is in progress")
        return
    when = "the run takes it now" if request.is_running else "the next run takes it"
    note(f"{action} {request.task.key if request.task else 'the run'}: {when}")


async def _steer(
    team: Team, action: Steering, task_name: str | None, text: str = ""
) -> Steered | None:
    from bae.team.steering import steer

    team_parts = team.store, team.repository, team.project.id
    return await steer(*team_parts, action, task_name, text=text, by=find_user())
