"""The messages and the slash commands, such as `/retry`, that a user types into `bae chat` at a
terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text

from bae.cli import exits
from bae.cli.approvals import grant_line
from bae.cli.chat_session import RESUMABLE, UNFINISHED, ChatSession, LastTurn
from bae.cli.chat_threads import list_threads, new_thread_id, thread_cost
from bae.cli.printing import err, note, print_error, print_hanging
from bae.cli.questions import typed_line
from bae.cli.wording import count, cut_text, in_lines
from bae.exceptions import BaeError
from bae.graph_plan import plan_of_graph

if TYPE_CHECKING:
    from bae.journal import ThreadTurn

_MOST_TURNS: Final = 3
"""Maximum earlier turns that are printed when a conversation continues."""
_MOST_CHARACTERS: Final = 300
"""Maximum printed characters of an earlier message or reply."""
_MOST_THREADS: Final = 20
"""Maximum threads that `/thread` lists."""

LineOutcome = tuple[int, str]
"""The exit code of a typed line, and the text that the editor shows next."""


class ChatCommands:
    """Carries out the lines that the user types, one at a time."""

    ABOUT: ClassVar[dict[str, str]] = {
        "/help": "list the commands",
        "/retry": "send the last message again, in its place",
        "/edit": "change the last message and send it again, in its place",
        "/resume": "continue the last turn where it stopped",
        "/drop": "drop a turn that waits or was interrupted",
        "/revoke": "list the yeses for tools; /revoke TOOL takes one back",
        "/thread": "list the threads; /thread ID switches to one",
        "/new": "begin a new thread",
        "/image": "/image PATH sends a file with the next message",
        "/show": "show all of the last turn",
        "/why": "/why FIELD shows where a value of the last turn came from",
        "/cost": "show what the thread has cost",
        "/quit": "leave, as Ctrl-D does",
    }
    SHORT: ClassVar[dict[str, str]] = {"/exit": "/quit", "/q": "/quit", "/?": "/help"}
    CONTINUES: ClassVar[tuple[int, ...]] = (
        exits.DONE,
        exits.FAILED,
        exits.WAITING,
        exits.ELSEWHERE,
        exits.INTERRUPTED,
    )
    """If a turn ends with one of these exit codes, the chat continues."""

    def __init__(self, talk: ChatSession) -> None:
        self._talk = talk
        self.is_over = False
        self.replaces = False
        """Whether the next message replaces the last message."""
        self.draft = ""
        """The text in the editor before the user types, such as the last message after /edit."""
        self._hinted = False
        self._methods: dict[str, Callable[[str], Awaitable[LineOutcome]]] = {
            "/help": self._help,
            "/retry": self._retry,
            "/edit": self._edit,
            "/resume": self._resume,
            "/drop": self._drop,
            "/revoke": self._revoke,
            "/thread": self._thread,
            "/new": self._new,
            "/image": self._image,
            "/show": self._show,
            "/why": self._why,
            "/cost": self._cost,
            "/quit": self._quit,
        }

    async def begin(self, *, is_new: bool) -> int:
        """Print the name of the thread and its last turns. If the last turn is unfinished, ask what
        to do with the turn. Return the exit code."""
        talk = self._talk
        turns = [] if is_new else await talk.read()
        quiet = talk.options.quiet
        if not quiet:
            length = f"{count(len(turns), 'turn')} so far" if turns else "new"
            note(f"chat with {talk.graph.name}, thread {talk.thread} ({length})")
            note("Enter sends, Alt-Enter is a new line, /help lists commands, Ctrl-D leaves")
            if not any(plan.turns for plan in plan_of_graph(talk.graph).plans.values()):
                note(
                    "no node of the graph has the earlier turns, so each message stands alone; "
                    "to show them to the LLM, add to a node: "
                    "history: Annotated[Messages, Thread()]"
                )
            self._show_turns(turns)
        return await self._settle_last_turn()

    async def take(self, text: str) -> LineOutcome:
        """Carry out a command, or send a message. Print an error instead of raising it."""
        self._hinted = False
        self.draft = ""
        replaces, self.replaces = self.replaces, False
        if not text.strip():
            return exits.DONE, ""
        try:
            if text.startswith("/") and not text.startswith("//"):
                return await self._command(text)
            message = text.removeprefix("/") if text.startswith("//") else text
            return await self._send(message, replaces=replaces)
        except BaeError as error:
            print_error(error)
            return exits.FAILED, ""

    def interrupt(self) -> None:
        """Forget the half-typed line, because the user pressed Ctrl-C."""
        self.replaces, self.draft = False, ""
        if not self._hinted:
            note("Ctrl-D or /quit leaves")
        self._hinted = True

    async def _send(self, message: str, *, replaces: bool) -> LineOutcome:
        if replaces:
            await self._talk.check_newest()
            return await self._talk.send_again(message), ""
        if await self._talk.is_left_behind():
            self._show_turns((await self._talk.read())[-1:])
            return await self._settle_last_turn(), message
        if self._talk.last.standing in UNFINISHED:
            note("the last turn is not finished: /resume continues it, /drop drops it")
            return exits.DONE, message
        code = await self._talk.send(message)
        return code, message if self._talk.refused else ""

    async def _command(self, text: str) -> LineOutcome:
        name, _, rest = text.strip().partition(" ")
        name = self.SHORT.get(name.lower(), name.lower())
        method = self._methods.get(name)
        if method is None:
            near = get_close_matches(name, self.ABOUT, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            note(
                f"there is no command {name}: {hint}/help lists them; a message that begins with "
                "a slash is typed with two"
            )
            return exits.DONE, text
        return await method(rest.strip())

    # The last turn.

    async def _retry(self, rest: str) -> LineOutcome:
        if not self._has_last():
            return exits.DONE, ""
        await self._talk.check_newest()
        self._show_message(self._talk.last.text)
        return await self._talk.send_again(self._talk.last.text), ""

    async def _edit(self, rest: str) -> LineOutcome:
        if self._has_last():
            self.replaces, self.draft = True, self._talk.last.text or ""
        return exits.DONE, self.draft

    async def _resume(self, rest: str) -> LineOutcome:
        if self._talk.last.standing not in RESUMABLE:
            note("there is no turn to continue")
            return exits.DONE, ""
        return await self._talk.resume(), ""

    async def _drop(self, rest: str) -> LineOutcome:
        if self._talk.last.standing not in UNFINISHED:
            note("there is no turn to drop; /edit or /retry replaces the last one")
        else:
            await self._talk.drop()
            note("dropped: later turns do not see it")
        return exits.DONE, ""

    def _has_last(self) -> bool:
        if not self._talk.last.run_id:
            note("there is no turn yet")
        return bool(self._talk.last.run_id)

    async def _settle_last_turn(self) -> int:
        """If the last turn is unfinished, resume or drop the turn, as the user decides. Return the
        exit code."""
        match self._talk.last.standing:
            case "waiting":
                return await self._talk.resume()
            case "interrupted":
                note("the last turn was interrupted; its progress is saved")
                try:
                    word = (await typed_line("resume it or drop it? (r/d): ")).strip().lower()
                except (EOFError, KeyboardInterrupt):
                    word = ""
                if word.startswith("r"):
                    return await self._talk.resume()
                if word.startswith("d"):
                    return (await self._drop(""))[0]
                note("/resume continues it, /drop drops it")
            case "running" | "queued":
                note("another process works on the last turn: a message is refused until it ends")
            case _:
                pass
        return exits.DONE

    # Threads.

    def _show_turns(self, turns: list[ThreadTurn]) -> None:
        if len(turns) > _MOST_TURNS:
            note(f"… {count(len(turns) - _MOST_TURNS, 'earlier turn')}")
        for turn in turns[-_MOST_TURNS:]:
            turn_text = Text("> ", style="bold").append(_shorten(turn.user))
            if turn.reply:
                turn_text.append(f"\n{_shorten(turn.reply)}")
            if turn.status in UNFINISHED:
                turn_text.append(f"\n({turn.status})")
            elif not turn.is_shown:
                reason = "sent again" if turn.status == "ended" else turn.status
                turn_text.append(f"\n({reason}: later turns do not see it)")
            turn_text.stylize("dim")
            err().print(turn_text, soft_wrap=True)

    def _show_message(self, text: str | None) -> None:
        """Print the message that `/retry` sends again."""
        if not self._talk.options.quiet and text:
            message = Text("> ", style="bold").append(_shorten(text))
            message.stylize("dim")
            err().print(message, soft_wrap=True)

    async def _thread(self, rest: str) -> LineOutcome:
        talk = self._talk
        if not rest:
            await list_threads(talk.journal, talk.graph.name, talk.thread, _MOST_THREADS)
            return exits.DONE, ""
        talk.thread, before = rest, talk.thread
        try:
            return await self.begin(is_new=False), ""
        except BaeError:
            talk.thread = before
            raise

    async def _new(self, rest: str) -> LineOutcome:
        talk = self._talk
        if talk.stored:
            note(talk.resume_hint())
        talk.thread = new_thread_id(talk.graph.name)
        talk.last, talk.stored = LastTurn(), False
        return await self.begin(is_new=True), ""

    # Reports.

    async def _show(self, rest: str) -> LineOutcome:
        from bae.cli.runs import show

        await self._report(show)
        return exits.DONE, ""

    async def _why(self, rest: str) -> LineOutcome:
        from bae.cli.runs import why

        if not rest:
            note("name a field, as /why Reply.text")
            return exits.DONE, ""
        ends = [cls.__name__ for cls in self._talk.graph.terminal_nodes]
        place = rest if "." in rest or len(ends) != 1 else f"{ends[0]}.{rest}"
        await self._report(why, place)
        return exits.DONE, ""

    async def _report(self, command: Callable[..., None], *arguments: Any) -> None:
        """Call another command of bae for the last run. The command opens the journal itself."""
        talk = self._talk
        if self._has_last():
            run_id, file = talk.last.run_id, talk.command_line.journal
            await asyncio.to_thread(command, run_id, *arguments, journal=file)

    async def _cost(self, rest: str) -> LineOutcome:
        note(await thread_cost(self._talk.journal, self._talk.thread))
        return exits.DONE, ""

    async def _revoke(self, rest: str) -> LineOutcome:
        talk = self._talk
        if not talk.last.run_id:
            note("no tool has a yes")
            return exits.DONE, ""
        if rest:
            await talk.journal.revoke(talk.last.run_id, rest)
        grants = await talk.journal.approvals(talk.last.run_id)
        for grant in grants:
            print_hanging(err(), grant_line(grant, talk.last.run_id), 2)
        note("/revoke TOOL takes one back" if grants else "no tool has a yes")
        return exits.DONE, ""

    # Other commands.

    async def _image(self, rest: str) -> LineOutcome:
        if rest:
            note(f"{self._talk.attach(rest)} goes with the next message")
        else:
            note("name a file, as /image photo.png")
        return exits.DONE, ""

    async def _help(self, rest: str) -> LineOutcome:
        for name, about in self.ABOUT.items():
            err().print(Text(f"  {name:<9}", style="cyan").append(about, style="default"))
        note("Ctrl-C stops the turn that runs; \\ before Enter, or Alt-Enter, begins a new line")
        return exits.DONE, ""

    async def _quit(self, rest: str) -> LineOutcome:
        self.is_over = True
        return exits.DONE, ""


def _shorten(text: str) -> str:
    """Cut a message or a reply to at most two lines."""
    lines = [line for line in text.strip().split("\n") if line.strip()]
    beginning = "\n".join(lines[:2])
    is_complete = len(lines) <= 2 and len(beginning) <= _MOST_CHARACTERS
    return in_lines(
        beginning if is_complete else f"{cut_text(beginning, _MOST_CHARACTERS).removesuffix('…')}…"
    )
