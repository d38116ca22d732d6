"""What people do while a team works, from any terminal: watch, answer questions, steer and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bae.cli.options import AsJSON, examples
from bae.cli.team_project import find_task, open_team, read_text, run_async

if TYPE_CHECKING:
    from bae.team.models import Action

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
    """Show the work live, until Ctrl-C.

    Tasks, agents, questions and what happened last are shown. The work may be done by another
    process. Where there is no terminal, each event is a line.
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
    """Serve a page that shows the work, until Ctrl-C.

    Its WebSocket sends every event, from any number on: `/events?after=0`.
    """

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
    """Answer a question, so that its task continues.

    It continues at once where the team is running, and in the next run otherwise.
    """

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
    """Stop a task, or the run, after its attempt."""
    _request("stop", task)


@group.command(epilog=examples("bae team kill", "bae team kill report"))
def kill(task: OneOrAll = None) -> None:
    """End a task, or the run, now. Work that is not merged stays on its branch."""
    _request("kill", task)


@group.command(epilog=examples("bae team pause", "bae team pause report"))
def pause(task: OneOrAll = None) -> None:
    """Start nothing new until `bae team resume`.

    A task in progress stops after its attempt.
    """
    _request("pause", task)


@group.command(epilog=examples("bae team resume", "bae team resume report"))
def resume(task: OneOrAll = None) -> None:
    """Continue a task, or the run, that was paused."""
    _request("resume", task)


@group.command(epilog=examples("bae team retry", "bae team retry report"))
def retry(task: OneOrAll = None) -> None:
    """Do a task again, or all that failed.

    It may have failed, been cancelled or skipped, or be blocked.
    """
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


def _until_interrupted(work: Callable[[], Any]) -> None:
    """What goes on until Ctrl-C, which is its normal end."""
    try:
        run_async(work)
    except KeyboardInterrupt:
        return
