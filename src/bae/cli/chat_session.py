"""The turns of `bae chat`. Each message runs the graph once in the thread. Ctrl-C stops only the
turn in progress."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from rich.text import Text

from bae.cli import exits
from bae.cli.chat_files import file_fields, place_file
from bae.cli.chat_screen import TurnScreen, reply_text
from bae.cli.exits import refusal
from bae.cli.live import Display, PlainLines
from bae.cli.live.screen import can_redraw
from bae.cli.outcome import CommandLine, advise
from bae.cli.printing import err, error_data, note, out, print_error, print_json_line
from bae.cli.questions import AtTerminal
from bae.cli.signals import SLOW_STOP, STOPPING, Signals
from bae.cli.start import build_node
from bae.cli.values import UnfitText, fields_of, is_secret, print_node, read_json
from bae.cli.wording import in_lines, in_one_line
from bae.exceptions import BaeError, JournalError, RunCancelled
from bae.graph_plan import plan_of_graph
from bae.journal.stored_runs import Listed
from bae.observers import observing
from bae.plan import plan_of
from bae.tasks import wait_until_ended
from bae.unicode import readable

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal import Journal, ThreadTurn
    from bae.lm import LM
    from bae.node import Node
    from bae.result import GraphResult

UNFINISHED: Final = ("waiting", "interrupted")
"""If the last turn has one of these states, the thread takes no message."""
RESUMABLE: Final = (*UNFINISHED, "failed", "cancelled")
"""If the last turn has one of these states, it can continue where it stopped."""

RunTurn = Callable[[Any], Awaitable["GraphResult[Any]"]]
"""A function that begins or continues a run. Its argument is an async function that answers
gates."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options of `bae chat` for all turns."""

    text_field: str
    """The field of the start node that takes the message."""
    fields: Mapping[str, Any]
    """The other fields of the start node, as JSON."""
    model: LM | str | None
    max_iters: int = 10
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    asks: bool = False
    """Whether bae can ask the user questions at a terminal."""
    as_json: bool = False
    quiet: bool = False


@dataclass(slots=True)
class LastTurn:
    """The newest turn of the thread. If the thread has no turn, all fields are empty."""

    run_id: str = ""
    text: str | None = ""
    """The message as the user typed it, or None if the journal does not have the message."""
    standing: Listed | Literal[""] = ""
    """The state of the run."""


@dataclass(slots=True)
class ChatSession:
    """A conversation in one thread. Set `journal` before the first turn."""

    graph: Graph[Any, Any]
    command_line: CommandLine
    options: ChatOptions
    thread: str
    journal: Journal = field(init=False)
    last: LastTurn = field(default_factory=LastTurn)
    attached: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the start node for the next message only, such as an image."""
    stored: bool = False
    """Whether the thread has a turn."""
    refused: bool = False
    """Whether the last message was refused, because another turn was in progress."""
    signals: Signals = field(init=False)
    """The signal handlers for all turns."""
    _display: Display | None = None

    def __post_init__(self) -> None:
        self.signals = Signals(self.resume_hint)

    def listen(self, *, ends_at_ctrl_c: bool) -> None:
        """Make signals end the chat between turns. If a signal came before this call, the chat ends
        at once.

        Without `ends_at_ctrl_c`, Ctrl-C does not end the chat. A Ctrl-C before this call is
        ignored, because the user may have meant the turn that has just ended. A Ctrl-C after this
        call stops a turn that is about to begin.
        """
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if ends_at_ctrl_c or self.signals.code != exits.INTERRUPTED:
                task.cancel()

        if not ends_at_ctrl_c and self.signals.code == exits.INTERRUPTED:
            self.signals.reset()
        self.signals.calls(stop)

    # `signals.work` uses the session as its display, and calls these methods.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because the screen is clear between turns."""

    def say(self, text: str) -> None:
        """Print a line. If a turn is in progress, the line is above its display."""
        if self._display is None:
            note(text)
        else:
            self._display.say(text)

    def resume_hint(self) -> str:
        """Return a hint with the command that continues the conversation. Return an empty text if
        the thread has no turn."""
        return f"continue with: {self.command_line.chat(self.thread)}" if self.stored else ""

    # Turns.

    async def read(self) -> list[ThreadTurn]:
        """Read the turns of the thread, and set `last` and `stored`."""
        turns = await self.graph.thread(self.thread, journal=self.journal).turns()
        self.stored = bool(turns)
        self.last = LastTurn()
        if turns:
            newest = turns[-1]
            text = await self._typed_text(newest.run_id)
            self.last = LastTurn(newest.run_id, text, newest.status)
        return turns

    async def is_left_behind(self) -> bool:
        """Return whether another process added a turn to the thread and died during the turn."""
        interrupted_runs = await self.journal.runs(
            thread=self.thread, status="interrupted", limit=1
        )
        return bool(interrupted_runs) and self.last.standing != "interrupted"

    async def _typed_text(self, run_id: str) -> str | None:
        """Return the message of a stored turn as the user typed it. Return None if the journal does
        not have the message.

        The message in the thread may differ: it has masks for secrets and placeholders for images.
        """
        place = f"{self.graph.start.__name__}.{self.options.text_field}"
        try:
            origin = await self.journal.why(run_id, place, step=0)
        except JournalError as error:
            if error.code not in ("bae-why-unknown", "bae-why-pending"):
                raise
            return None  # the class of the node has changed since the run
        if origin.kept != "value":
            return None
        value = origin.value
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    async def send(self, text: str) -> int:
        """Run a turn with a message, and return its exit code. Raises BaeError if the start node
        does not accept the message."""
        node = self._make_start_node(text)
        run_id = os.urandom(12).hex()
        return await self._take_turn(run_id, text, partial(self._begin, node, run_id))

    def _begin(self, node: Node, run_id: str, answer: Any) -> Awaitable[GraphResult[Any]]:
        options = self.options
        return self.graph.arun(
            node,
            options.model,
            options.max_iters,
            journal=self.journal,
            run_id=run_id,
            answer=answer,
            thread=self.thread,
            busy="refuse",
            metadata=options.metadata,
        )

    async def send_again(self, text: str | None) -> int:
        """Replace the last turn by a turn with the message `text`. Returns the exit code of the new
        turn."""
        if text is None:
            place = f"{self.graph.start.__name__}.{self.options.text_field}"
            problem = f"the journal does not have the {place} of the last turn"
            raise refusal(problem, "it cannot be repeated: type the message again with /edit")
        changed = self._changed_fields(text)
        if self.last.standing in UNFINISHED:
            await self.drop()
        try:
            run_id = await self.graph.fork(
                self.last.run_id,
                at=0,
                journal=self.journal,
                thread=self.thread,
                changed=changed,
            )
        except JournalError as error:
            if error.code not in ("bae-run-unknown", "bae-fork-step"):
                raise
            return await self.send(text)  # the last turn stopped before its first node was stored
        return await self._take_turn(run_id, text, partial(self._resume, run_id))

    async def check_newest(self) -> None:
        """Raise if another process has added a turn to the thread. The user does not know the new
        turn, which /retry and /edit would replace."""
        (newest,) = await self.journal.runs(thread=self.thread, limit=1) or (None,)
        if newest is None or newest.run_id == self.last.run_id:
            return
        try:
            await self.journal.info(self.last.run_id)
        except JournalError as error:
            if error.code != "bae-run-unknown":
                raise
            return  # the last turn stopped before the journal had any of its records
        await self.read()
        problem = "another process has added a turn to the thread"
        raise refusal(problem, f"/retry and /edit replace that turn now: {self.last.text!r:.200}")

    async def resume(self) -> int:
        """Continue the last turn where it stopped, and return its exit code."""
        run_id, text = self.last.run_id, self.last.text
        return await self._take_turn(run_id, text, partial(self._resume, run_id))

    def _resume(self, run_id: str, answer: Any) -> Awaitable[GraphResult[Any]]:
        options, start = self.options, self.graph.start.__name__
        secrets = {f"{start}.{name}": value for name, value in self._secrets().items()}
        return self.graph.resume(
            run_id,
            options.model,
            options.max_iters,
            journal=self.journal,
            answer=answer,
            given=secrets,
        )

    async def drop(self) -> None:
        """Cancel the last turn. Later turns do not see it."""
        await self.journal.cancel(self.last.run_id)
        self.last.standing = "cancelled"

    def _make_start_node(self, text: str) -> Node:
        _check_text(text)
        fields = {**self.options.fields, **self.attached, self.options.text_field: text}
        return build_node(self.graph.start, fields)

    def _changed_fields(self, text: str) -> dict[str, Any]:
        """Return the start node's fields that a repeated turn sets again: the message, the attached
        files, and the secrets, which the journal does not store."""
        start, name = self.graph.start, self.options.text_field
        _check_text(text)
        try:
            raw_values = {**self.attached, name: text}
            values = {
                field_name: read_json(start, field_name, value).value
                for field_name, value in raw_values.items()
            }
        except UnfitText as misfit:
            raise refusal(f"{start.__name__}.{name} does not take this value: {misfit}") from None
        return values | self._secrets()

    def _secrets(self) -> dict[str, Any]:
        """Return the secrets of the start node by field. The journal does not store them."""
        start, fields = self.graph.start, self.options.fields
        hidden = [name for name in fields if is_secret(start, name)]
        return {name: read_json(start, name, fields[name]).value for name in hidden}

    def attach(self, path: str) -> str:
        """Read a file for the next message, and return the file's placeholder. Raises if no field
        of the start node accepts the file."""
        start = self.graph.start
        names = [name for name in file_fields(start) if name not in self.options.fields]
        name, value, file = place_file(start, names, self.attached, path)
        self.attached[name] = value
        return file.placeholder

    # One turn, from its beginning to its outcome.

    async def _take_turn(self, run_id: str, text: str | None, begin: RunTurn) -> int:
        """Run a turn, print its outcome, and return its exit code."""
        self.last = LastTurn(run_id, text, "running")
        display = self._display = self._new_display()
        began = perf_counter()
        try:
            result, error, code = await self._run_on_display(run_id, begin, display)
        finally:
            self._display = None
        self.stored = self.stored or display.history_of(run_id) is not None
        self.refused = getattr(error, "code", "") == "bae-thread-busy"
        self.attached = self.attached if self.refused else {}
        if isinstance(error, BaeError):
            advise(error, run_id, self.command_line, kept=False)
        if result is not None and result.waiting:
            self.last.standing, code = "waiting", exits.WAITING
        elif result is not None:
            self.last.standing = "running" if result.unfinished else "ended"
        elif isinstance(error, RunCancelled) or code == exits.INTERRUPTED:
            self.last.standing = "cancelled"
        elif error is None:
            self.last.standing = "interrupted"
        else:
            self.last.standing, code = "failed", exits.FAILED
        if self.refused and isinstance(error, BaeError):
            await self.read()
            is_waiting = self.last.standing == "waiting"
            code = exits.WAITING if is_waiting else exits.ELSEWHERE
            error.fix = "send the message again when that turn has ended"
            if is_waiting:
                error.fix = f"answer it at a terminal: {self.command_line.chat(self.thread)}"
        self._print(result, error, display)
        if self.options.as_json:
            print_json_line(self._as_data(result, error, perf_counter() - began, display))
        elif self.options.asks and not self.options.quiet:
            err().print()
        return code

    async def _run_on_display(
        self, run_id: str, begin: RunTurn, display: Display
    ) -> tuple[GraphResult[Any] | None, BaseException | None, int]:
        """Run a turn with a display. Returns the result or None, the error or None, and the exit
        code of a signal or 0."""
        stop, signals = asyncio.Event(), self.signals
        with display:
            signals.calls(stop.set)
            answer = AtTerminal(display) if self.options.asks else None
            with observing(display.observe, patience=inf):
                task = asyncio.ensure_future(begin(answer))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    if isinstance(display, TurnScreen):
                        display.hold()
                    loop = asyncio.get_running_loop()
                    later = loop.call_later(SLOW_STOP, display.say, STOPPING)
                    await self._stop(run_id, task, forever=signals.code == exits.INTERRUPTED)
                    later.cancel()
            finally:
                task.cancel()
                stopped.cancel()
                await wait_until_ended([task, stopped])
        code = signals.code
        if task.cancelled():
            return None, None, code
        error = task.exception()
        return (task.result() if error is None else None), error, code

    async def _stop(self, run_id: str, task: asyncio.Future[Any], *, forever: bool) -> None:
        """Stop the run, and wait until it has ended. With `forever`, also store in the journal that
        the run is cancelled. The chat then does not offer to resume the run."""
        if forever:
            try:
                await self.journal.cancel(run_id)
            except JournalError:  # the run is not in the journal yet, or has just ended
                task.cancel()
        else:
            task.cancel()
        await asyncio.wait([task])

    def _new_display(self) -> Display:
        console = err()
        if self.options.quiet:
            return Display(console)
        if can_redraw(console):
            return TurnScreen(console, self.graph.terminal_nodes, plan_of_graph(self.graph).hidden)
        return PlainLines(console)

    # The outcome of a turn.

    def _print(
        self, result: GraphResult[Any] | None, error: BaseException | None, display: Display
    ) -> None:
        node = _find_end_node(result)
        on_screen = isinstance(display, TurnScreen)
        if isinstance(display, TurnScreen):
            display.finish(node)
        is_shown = on_screen and sys.stdout.isatty()
        if node is not None and not self.options.as_json and not is_shown:
            self._print_reply(node)
        if isinstance(display, TurnScreen) and node is not None:
            display.footer()
        if result is not None and result.waiting:
            self._print_waiting([gate.question for gate in result.waiting])
        elif self.refused and error is not None:
            print_error(error)
        elif self.last.standing == "cancelled":
            self._print_hint("stopped: later turns do not see this one", "/retry sends it again")
        elif self.last.standing == "failed" and error is not None:
            print_error(error)
            commands = "/resume continues it, /retry sends it again, /edit changes it"
            self._print_hint("later turns do not see this one", commands)

    def _print_reply(self, node: Node) -> None:
        reply = reply_text(node, plan_of_graph(self.graph).hidden)
        if reply is None:
            print_node(node, out(), plan_of_graph(self.graph).hidden)
        else:
            out().print(Text(in_lines(reply)), soft_wrap=True)

    def _print_waiting(self, questions: list[str]) -> None:
        for question in questions:
            note(f"the turn waits for an answer: {in_one_line(question)}")
        if self.options.asks:
            note("/resume asks again, /drop drops the turn")
        else:
            note(f"answer it at a terminal: {self.command_line.chat(self.thread)}")

    def _print_hint(self, message: str, commands: str) -> None:
        """Print a message, and at a terminal the commands that help."""
        if not self.options.quiet:
            note(f"{message}; {commands}" if self.options.asks else message)

    def _as_data(
        self,
        result: GraphResult[Any] | None,
        error: BaseException | None,
        seconds: float,
        display: Display,
    ) -> dict[str, Any]:
        node = _find_end_node(result)
        copies = plan_of_graph(self.graph).hidden
        history = display.history_of(self.last.run_id)
        usage = None if history is None else history.usage
        spent = ("calls", "input_tokens", "output_tokens", "cost")
        result_fields = {} if node is None else fields_of(node, copies)
        if node is not None and (turns := plan_of(type(node)).turns) is not None:
            result_fields.pop(turns.name, None)  # each line would repeat all earlier turns
        return {
            "thread": self.thread,
            "run_id": self.last.run_id,
            "outcome": self.last.standing,
            "reply": None if node is None else reply_text(node, copies),
            "result": None
            if node is None
            else {"type": type(node).__name__, "fields": result_fields},
            "waiting": [] if result is None else [gate.address for gate in result.waiting],
            "seconds": round(seconds, 3),
            "usage": {name: getattr(usage, name, None) for name in spent},
            "error": error_data(error),
        }


def _check_text(text: str) -> None:
    """Raise if a message has bytes that are not UTF-8. No journal and no model accepts such a
    message."""
    if readable(text, 0) != text:
        fix = "send UTF-8: iconv -f latin1 -t utf-8 converts a file"
        raise refusal("the message has bytes that are not UTF-8", fix)


def _find_end_node(result: GraphResult[Any] | None) -> Node | None:
    """Return the last node of a run, or None if the run has not ended."""
    if result is None or result.waiting or result.unfinished:
        return None
    return result.result
