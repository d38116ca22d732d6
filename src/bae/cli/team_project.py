"""The team that a command of `bae team` is about, and what its commands have in common: the LM, the
questions at the terminal, the tasks and files that a person names."""

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
            "Fast-forward your checkout to each merge, if it is clean. Default: the setting of "
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
            "Guarded files, which run on your machine or instruct later workers, that tasks may "
            "change without asking you, such as `package.json,.github/**`. An empty text means "
            "none."
        ),
    ),
]
OneTask = Annotated[str, typer.Argument(metavar="TASK", help="The key or number of a task.")]


@dataclass(frozen=True)
class Team:
    """The team of a repository: its state is open."""

    store: Store
    project: Project
    repository: Repository

    async def tasks(self) -> list[Task]:
        """All its tasks."""
        return await self.store.tasks(self.project.id)

    async def task(self, named: str) -> Task:
        """The task that a person names by its key or number."""
        from bae.team.steering import find_task

        return await find_task(self.store, self.project.id, named)

    async def is_running(self) -> bool:
        """Whether a run is in progress, in any process."""
        from bae.team.team_run import is_running

        return await is_running(self.repository)

    async def is_interrupted(self) -> bool:
        """Whether tasks are in progress that no process works on, since their run was killed."""
        stored = any(task.status == "in_progress" for task in await self.tasks())
        return stored and not (await self.is_running() or await self.repository.is_in_use())


def team_command(
    group: typer.Typer,
    *lines: str,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    interrupted: str | None = None,
) -> Callable[[Callable[Concatenate[Team, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Add a command to a group, with `lines` as its examples: an async function that is given the
    team of the repository around this directory first. `options` are more parameters of the
    command, by their names, which it takes as keywords. `interrupted` is noted on Ctrl-C; an empty
    text makes that the command's normal end."""

    def add(work: Callable[Concatenate[Team, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
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

        _, *own = inspect.signature(work, eval_str=True).parameters.values()
        more = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for each, kind in (options or {}).items()
        ]
        own = [each for each in own if each.kind is not each.VAR_KEYWORD]
        run.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
        return group.command(name, epilog=examples(*lines))(run)

    return add


def run_async(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Carry out what a command does. The packages of the extra `team` are asked for first. Ctrl-C,
    SIGTERM and SIGHUP cancel it, so that everything it started ends with it."""
    from bae.cli.signals import run_until_signal

    need_team("bae team")
    run_until_signal(work())


def need_team(by: str) -> None:
    """Raise BaeError where the packages of the extra `team` are missing."""
    from bae.lm.extras import need

    need("sqlalchemy", extra="team", by=by)


@asynccontextmanager
async def open_team(folder: Path | None = None) -> AsyncGenerator[Team]:
    """The team of the repository around a folder, or else around this directory."""
    from bae.team.git import Repository
    from bae.team.store import Store, store_path

    here = folder or Path.cwd()
    fix = "bae team init"
    if find_work_tree(here) is None:
        await Repository.refuse_bare(here)
        raise refusal(f"{here} is not in a git work tree", fix)
    repository = await Repository.open(here)
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
    """The project with the settings that a person names; the others are as they were."""
    globs = (
        None if allow is None else tuple(each for each in map(str.strip, allow.split(",")) if each)
    )
    named: dict[str, Any] = {
        "update_checkout": update_checkout,
        "allow_unsandboxed": allow_unsandboxed,
        "allow": globs,
    }
    changed = {name: value for name, value in named.items() if value is not None}
    return project.model_copy(update=changed)


def find_work_tree(path: Path) -> Path | None:
    """The nearest directory at or above a path that git knows."""
    path = path.resolve()
    return next((each for each in (path, *path.parents) if (each / ".git").exists()), None)


def find_folder(root: Path, named: str) -> str:
    """The folder of a repository that a person names, by its path from the root."""
    path = (root / named).resolve()
    if not path.is_relative_to(root) or not path.is_dir():
        raise refusal(
            f"there is no folder {named} in {root}",
            fix="name a folder by its path from the root of the repository",
        )
    return "" if path == root else path.relative_to(root).as_posix()


def find_lm(named: str | None) -> LM:
    """The LM that is named, or else the one that this machine offers, which is reported."""
    from bae.lm.registry import VARIABLE, cached_lm, find_default_lm, find_default_name

    default = find_default_name().name
    if named is None:
        from bae.team.workbench import refuse_local

        refuse_local(default)
    if named is not None or default:
        if named is None and not os.environ.get(VARIABLE, "").strip():
            note(f"using {default}: --lm names another")
        return cached_lm(named or default)
    try:
        return find_default_lm("the team needs one")
    except BaeError as error:
        _, _, lacking = (error.fix or "").partition("\n")
        if lacking:
            error.fix = f"name one with --lm, or set BAE_LM; `bae lm list` says more\n{lacking}"
        raise


def load_workers(team: Team, named: str | None) -> Sequence[str]:
    """Import the workers of a file or module: the kinds of tasks that there are workers for."""
    from bae.lm.registry import load_module
    from bae.team.worker import worker_kinds

    if named is not None:
        inside = Path(named).resolve().is_relative_to(team.project.root)
        if named.endswith(".py") and inside:
            raise refusal(
                f"{named} is in the repository, where the team may change it: it would run outside "
                "the sandbox",
                fix="keep the file elsewhere, or install it as a module",
            )
        try:
            load_module(named)
        except Exception as error:  # whatever the code of the workers raises
            raise refusal(f"the workers of {named} cannot be imported", None, error) from error
    return worker_kinds()


def find_user() -> str | None:
    """Who is at the command line, by the name that this system knows."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # as in a container without a user of that number
        return None


def can_ask() -> bool:
    """Whether there is a person at the terminal."""
    from bae.cli import questions

    return questions.can_ask()


async def ask(question: str, default: str = "") -> str:
    """Ask at the terminal; Enter takes the default. Ctrl-D is an EOFError."""
    from rich.text import Text

    from bae.cli.questions import forget_typed, typed_line

    forget_typed()
    shown = Text("? ", style="bold yellow").append(in_lines(question, 2), style="bold")
    err().print(shown, soft_wrap=True)
    prompt = f"  (Enter for {default}) > " if default else "  > "
    while not (typed := (await typed_line(prompt)).strip() or default):
        pass
    return typed


def answer_at_terminal() -> GateAnswerer:
    """An `answer=` that asks the person at the terminal, one question at a time. Ctrl-D leaves the
    rest open."""
    import asyncio

    from bae.run import Waiting

    one_at_a_time = asyncio.Lock()
    left = False

    async def answer(gate: OpenGate) -> str:
        nonlocal left
        async with one_at_a_time:
            if left:
                raise Waiting([gate])
            try:
                return await ask(str(gate.context.get("question", gate.question)))
            except EOFError:
                left = True
                raise Waiting([gate]) from None

    return answer


def read_text(given: str) -> str:
    """The value of an option: a text, or with `@` before it the file that has it."""
    return read_file(given[1:]) if given.startswith("@") else given


def read_file(path: str) -> str:
    """The text of a file that a person names; `-` is stdin."""
    try:
        return read_stdin() if path == "-" else given_files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"{path} cannot be read", "give a text file", error) from error


def split_command(command: str | None) -> tuple[str, ...]:
    """The words of a command that a person types."""
    try:
        return tuple(shlex.split(command or ""))
    except ValueError as error:
        raise refusal(f"{command!r} is no command: {error}", "close its quotes") from error
