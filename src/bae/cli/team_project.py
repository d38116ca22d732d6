"""Common parts of the `bae team` commands: the team of the repository, the LM, questions at the
terminal, and the tasks and files that a person names."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from bae import given_files
from bae.cli.exits import refusal
from bae.cli.later import call_later
from bae.cli.options import examples
from bae.exceptions import BaeError
from bae.given_files import read_stdin

if TYPE_CHECKING:
    from bae.cli.printing import err, note
    from bae.cli.wording import in_lines
    from bae.language_model import LM
    from bae.markers import OpenGate
    from bae.run import GateAnswerer
    from bae.team.git import Repository
    from bae.team.models import Project, Task
    from bae.team.store import Store
else:
    err, note = call_later("bae.cli.printing", "err note")
    (in_lines,) = call_later("bae.cli.wording", "in_lines")

P = ParamSpec("P")
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="FILE",
        help="A file outside the repository, or a module, that registers workers of your own.",
    ),
]
UpdateCheckout = Annotated[
    bool | None,
    typer.Option(
        "--update-checkout/--no-update-checkout",
        help=(
            "If your checkout is clean, fast-forward it to each merge. Default: the setting of "
            "`init`, at first no."
        ),
    ),
]
AllowUnsandboxed = Annotated[
    bool | None,
    typer.Option(
        "--allow-unsandboxed/--no-allow-unsandboxed",
        help=(
            "If no sandbox works, run commands with limits on time and memory alone. Default: the "
            "setting of `init`, at first no."
        ),
    ),
]
Allow = Annotated[
    str | None,
    typer.Option(
        metavar="GLOBS",
        help=(
            "Guarded files that tasks may change without asking you, such as "
            "`package.json,.github/**`. Guarded files run on your machine or instruct later "
            "workers. An empty text means none."
        ),
    ),
]
OneTask = Annotated[str, typer.Argument(metavar="TASK", help="The key or number of a task.")]


@dataclass(frozen=True)
class Team:
    """The team of a repository, with its open store."""

    store: Store
    project: Project
    repository: Repository

    async def tasks(self) -> list[Task]:
        """Return all tasks of the project."""
        return await self.store.tasks(self.project.id)

    async def task(self, named: str) -> Task:
        """Return the task that a person names by its key or number."""
        from bae.team.steering import find_task

        return await find_task(self.store, self.project.id, named)

    async def is_running(self) -> bool:
        """Return whether any process runs the team."""
        from bae.team.team_run import is_running

        return await is_running(self.repository)

    async def is_interrupted(self) -> bool:
        """Return whether a killed run left tasks in progress."""
        has_started = any(task.status == "in_progress" for task in await self.tasks())
        return has_started and not (await self.is_running() or await self.repository.is_in_use())


def team_command(
    group: typer.Typer,
    *lines: str,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    interrupted: str | None = None,
) -> Callable[[Callable[Concatenate[Team, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Add an async function to a group as a command, with `lines` as its examples.

    The function's first argument is the team of the repository around this directory. `options` are
    further parameters, which the function gets as keyword arguments. On Ctrl-C, the note
    `interrupted` is printed. If `interrupted` is an empty text, Ctrl-C ends the command without an
    error.
    """

    def add(work: Callable[Concatenate[Team, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @wraps(work)
        def run_command(*args: P.args, **kwargs: P.kwargs) -> None:
            async def with_team() -> None:
                async with open_team() as team:
                    await work(team, *args, **kwargs)

            try:
                run_async(with_team)
            except KeyboardInterrupt as interrupt:
                if interrupted:
                    interrupt.add_note(interrupted)
                if interrupted != "":
                    raise

        _, *parameters = inspect.signature(work, eval_str=True).parameters.values()
        extra_parameters = [
            inspect.Parameter(
                option_name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
            )
            for option_name, annotation in (options or {}).items()
        ]
        parameters = [
            parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD
        ]
        run_command.__signature__ = inspect.Signature([*parameters, *extra_parameters])  # type: ignore[attr-defined]
        return group.command(name, epilog=examples(*lines))(run_command)

    return add


def run_async(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the work of a command. Ctrl-C, SIGTERM and SIGHUP cancel the work, and everything that it
    started ends too. Raise BaeError if the packages of the extra `team` are missing."""
    from bae.cli.signals import run_until_signal

    need_team("bae team")
    run_until_signal(work())


def need_team(by: str) -> None:
    """Raise BaeError if the packages of the extra `team` are missing. `by` is the command that
    needs the packages."""
    from bae.lm.extras import need

    need("sqlalchemy", extra="team", by=by)


@asynccontextmanager
async def open_team(folder: Path | None = None) -> AsyncGenerator[Team]:
    """Open the team of the repository around a folder. Default: this directory."""
    from bae.team.git import Repository
    from bae.team.store import Store, store_path

    start = folder or Path.cwd()
    fix = "bae team init"
    if find_work_tree(start) is None:
        await Repository.refuse_bare(start)
        raise refusal(f"{start} is not in a git work tree", fix)
    repository = await Repository.open(start)
    path = store_path(repository.root)
    if not path.exists():
        raise refusal(f"{repository.root} has no team yet", fix)
    async with await Store.open(path) as store:
        for project in await store.projects():
            if project.root == str(repository.root):
                yield Team(store, project, repository)
                return
        raise refusal(f"{path} has no project for {repository.root}", fix)


def with_settings(
    project: Project,
    *,
    update_checkout: bool | None = None,
    allow_unsandboxed: bool | None = None,
    allow: str | None = None,
) -> Project:
    """Return the project with changed settings. A setting that is None does not change."""
    globs = (
        None if allow is None else tuple(glob for glob in map(str.strip, allow.split(",")) if glob)
    )
    settings: dict[str, Any] = {
        "update_checkout": update_checkout,
        "allow_unsandboxed": allow_unsandboxed,
        "allow": globs,
    }
    changed = {name: value for name, value in settings.items() if value is not None}
    return project.model_copy(update=changed)


def find_work_tree(path: Path) -> Path | None:
    """Return `path`, or its nearest parent, that has a `.git`. Return None if there is none."""
    path = path.resolve()
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)


def find_folder(root: Path, named: str) -> str:
    """Return the path from the root of the repository to the folder that a person names. The path
    of the root itself is empty."""
    path = (root / named).resolve()
    if not path.is_relative_to(root) or not path.is_dir():
        raise refusal(
            f"there is no folder {named} in {root}",
            fix="name a folder by its path from the root of the repository",
        )
    return "" if path == root else path.relative_to(root).as_posix()


def find_lm(name: str | None) -> LM:
    """Return the named LM. Without a name, return the default LM of this machine, and print a note
    about the choice."""
    from bae.lm.registry import (
        VARIABLE,
        cached_lm,
        find_default_lm,
        find_default_name,
        refuse_local,
    )

    default = find_default_name().name
    if name is None:
        refuse_local(default)
    if name is not None or default:
        if name is None and not os.environ.get(VARIABLE, "").strip():
            note(f"using {default}: --lm names another")
        return cached_lm(name or default)
    try:
        return find_default_lm("the team needs one")
    except BaeError as error:
        _, _, missing = (error.fix or "").partition("\n")
        if missing:
            error.fix = f"name one with --lm, or set BAE_LM; `bae lm list` says more\n{missing}"
        raise


def load_workers(team: Team, source: str | None) -> Sequence[str]:
    """Import the workers of a file or module. Return the kinds of tasks that have a worker."""
    from bae.lm.registry import load_module
    from bae.team.worker import worker_kinds

    if source is not None:
        inside = Path(source).resolve().is_relative_to(team.project.root)
        if source.endswith(".py") and inside:
            raise refusal(
                f"{source} is in the repository, where the team may change it: it would run "
                "outside the sandbox",
                fix="keep the file elsewhere, or install it as a module",
            )
        try:
            load_module(source)
        except Exception as error:  # the code of the workers may raise any error
            raise refusal(f"the workers of {source} cannot be imported", None, error) from error
    return worker_kinds()


def find_user() -> str | None:
    """Return the name of the user at the command line, or None if the system has no name."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # for example in a container whose user id has no name
        return None


def can_ask() -> bool:
    """Return whether there is a person at the terminal."""
    from bae.cli import questions

    return questions.can_ask()


async def ask(question: str, default: str = "") -> str:
    """Ask at the terminal. Enter alone takes the default. Raise EOFError on Ctrl-D."""
    from rich.text import Text

    from bae.cli.questions import forget_typed, typed_line

    forget_typed()
    text = Text("? ", style="bold yellow").append(in_lines(question, 2), style="bold")
    err().print(text, soft_wrap=True)
    prompt = f"  (Enter for {default}) > " if default else "  > "
    while not (typed := (await typed_line(prompt)).strip() or default):
        pass
    return typed


def answer_at_terminal() -> GateAnswerer:
    """Return an `answer=` function that asks at the terminal, one question at a time. After Ctrl-D,
    this question and all later questions stay open."""
    import asyncio

    from bae.run import Waiting

    one_at_a_time = asyncio.Lock()
    has_left = False

    async def answer(gate: OpenGate) -> str:
        nonlocal has_left
        async with one_at_a_time:
            if has_left:
                raise Waiting([gate])
            try:
                return await ask(str(gate.context.get("question", gate.question)))
            except EOFError:
                has_left = True
                raise Waiting([gate]) from None

    return answer


def read_text(value: str) -> str:
    """Return the text of an option. If the option is `@FILE`, return the text of the file."""
    return read_file(value[1:]) if value.startswith("@") else value


def read_file(path: str) -> str:
    """Return the text of a file that a person names. `-` means stdin."""
    try:
        return read_stdin() if path == "-" else given_files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path} cannot be read", "give a text file", error) from error


def split_command(command: str | None) -> tuple[str, ...]:
    """Split a command that a person types into words. Without a command, return no words."""
    try:
        return tuple(shlex.split(command or ""))
    except ValueError as error:
        raise refusal(f"{command!r} is not a command: {error}", "close its quotes") from error
