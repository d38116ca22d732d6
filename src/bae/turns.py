"""`Messages`: the earlier turns of a thread, for a node and for the LM. A turn is one run of the
thread: the message of the user, and the reply."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, overload

from pydantic_core import core_schema

from bae.tools import ToolCall

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

    from bae.prompts.messages import Message

TURNS: Final = 20
"""How many turns are read for a class outside the graph, whose `Thread` is not known in advance."""
_CUT_AT: Final = 4
"""A window of turns has this many equal parts. The oldest part is left out as a whole."""
_LONGEST_CALL: Final = 2_000
"""How many characters of a tool call and its result are shown in later turns."""
IS_TURNS: Final = "bae_turns"
"""A key in the metadata of the core schema of `Messages`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One earlier turn of a thread: the text of the `user` and the `reply`.

    `run_id` is the run, and `at` the time when it began. `calls` are the tool calls of the turn, if
    the field has `Thread(calls=True)`.
    """

    user: str
    reply: str
    run_id: str = ""
    at: float = 0.0
    calls: tuple[ToolCall, ...] = ()

    def messages(self) -> tuple[Message, Message]:
        """The turn as an LM reads it. Tool calls are part of the user's message, because a model
        that reads calls in its own messages begins to write such calls."""
        from bae.prompts.messages import Message, TextPart, said_or

        parts = [TextPart(said_or(self.user, "(no text)"))]
        parts += [TextPart(_call_text(call)) for call in self.calls]
        reply = TextPart(said_or(self.reply, "(no text)"))
        return Message("user", tuple(parts), "turn"), Message("assistant", (reply,), "turn")

    @property
    def size(self) -> int:
        """How many characters an LM reads of the turn."""
        return len(self.user) + len(self.reply) + sum(len(_call_text(call)) for call in self.calls)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Messages(Sequence[Turn]):
    """The earlier turns of a thread, the oldest first: the value of a field with `Thread()`.

    It is a sequence of `Turn`, and never changes. In a test, make it from pairs of texts:
    `Messages([("My name is Ana.", "Hello Ana!")])`. `thread` is the id of the thread, empty for a
    run without a thread. `omitted` is how many earlier turns the field leaves out.
    """

    turns: tuple[Turn, ...]
    thread: str
    omitted: int

    def __init__(
        self,
        turns: Iterable[Turn | tuple[str, str]] = (),
        thread: str = "",
        omitted: int = 0,
    ) -> None:
        if isinstance(turns, str):
            raise TypeError(f"Messages({turns!r}): give turns, as [(user, reply), …]")
        all_turns = tuple(turn if isinstance(turn, Turn) else _turn_of_pair(turn) for turn in turns)
        object.__setattr__(self, "turns", all_turns)
        object.__setattr__(self, "thread", thread)
        object.__setattr__(self, "omitted", omitted)

    def __repr__(self) -> str:
        # Without the texts: a printed node shows its own values, not the conversation.
        count = "1 turn" if len(self.turns) == 1 else f"{len(self.turns)} turns"
        thread = f" of {self.thread!r}" if self.thread else ""
        omitted = f", {self.omitted} omitted" if self.omitted else ""
        return f"<Messages: {count}{thread}{omitted}>"

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, index: int | slice) -> Turn | tuple[Turn, ...]:
        return self.turns[index]

    def __len__(self) -> int:
        return len(self.turns)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = handler.resolve_ref_schema(handler(source))
        plain_schema = cast(
            "core_schema.CoreSchema", {k: v for k, v in schema.items() if k != "ref"}
        )
        return core_schema.json_or_python_schema(
            core_schema.no_info_wrap_validator_function(_read_messages, plain_schema),
            plain_schema,
            serialization=core_schema.wrap_serializer_function_ser_schema(
                _write_messages, schema=plain_schema
            ),
            metadata={IS_TURNS: True},
            # Without it, pydantic would use the other schema at the next use of the type.
            ref=schema.get("ref"),
        )

    @property
    def ends(self) -> tuple[str, str]:
        """The ids of the runs of the first and the last turn."""
        return (self.turns[0].run_id, self.turns[-1].run_id) if self.turns else ("", "")

    def without_calls(self) -> Messages:
        """The same turns without their tool calls."""
        if not any(turn.calls for turn in self.turns):
            return self
        turns = [replace(turn, calls=()) for turn in self.turns]
        return Messages(turns, self.thread, self.omitted)

    def newest(self, last: int | None, limit: int) -> Messages:
        """The newest turns: at most `last` of them, with at most `limit` characters together.

        If turns are left out, the window moves in steps of a quarter of `last`. So the beginning of
        the prompt stays the same for several turns, and providers can cache it. A step leaves at
        least half a step of the newest turns, if they fit.
        """
        total = self.omitted + len(self.turns)
        step = 1 if last is None else max(1, last // _CUT_AT)
        first = 0 if last is None else -(-max(0, total - last) // step) * step
        first = max(first, self.omitted)
        turns = self.turns[first - self.omitted :]
        sizes = accumulate(turn.size for turn in reversed(turns))
        fitting = sum(size <= limit for size in sizes)
        if fitting < len(turns):
            needed = total - fitting
            first = max(needed, min(-(-needed // step) * step, total - -(-step // 2)))
        return Messages(self.turns[first - self.omitted :], self.thread, first)

    def messages(self) -> tuple[Message, ...]:
        """The turns as an LM reads them, before the question. A note has the number of turns that
        are left out, even if no turn is shown."""
        from bae.prompts.messages import TextPart

        messages = [message for turn in self.turns for message in turn.messages()]
        if not self.omitted:
            return tuple(messages)
        turns = "1 earlier turn is" if self.omitted == 1 else f"{self.omitted} earlier turns are"
        note = f"({turns} left out)"
        if not messages:
            return Turn(note, "").messages()
        messages[0] = replace(messages[0], parts=(TextPart(note), *messages[0].parts))
        return tuple(messages)


turns_in_use: ContextVar[Messages | None] = ContextVar("bae_turns", default=None)
"""The earlier turns of the current run, or of the run whose values are being read."""


@contextmanager
def as_references() -> Generator[None]:
    """Inside this block, JSON has references in place of the turns in `turns_in_use`, at any depth
    of a value. So a journal stores each turn once."""
    token = _refers.set(True)
    try:
        yield
    finally:
        _refers.reset(token)


_refers: ContextVar[bool] = ContextVar("bae_refers", default=False)
is_referring: Final = _refers.get
"""Whether JSON has references in place of turns."""


def _write_messages(value: Any, serialize: Callable[[Any], Any]) -> Any:
    own_turns = turns_in_use.get() if is_referring() else None
    if own_turns is not None and isinstance(value, Messages) and value.turns:
        first, last = value.ends
        part = _turns_until(own_turns, last, len(value))
        calls = part == value.turns
        if calls or Messages(part).without_calls().turns == value.turns:
            about = {"thread": value.thread, "omitted": value.omitted, "calls": calls}
            return {**about, "first": first, "last": last, "count": len(value)}
    return serialize(value)


def _read_messages(data: Any, validate: Callable[[Any], Any]) -> Any:
    if not is_referring() or not isinstance(data, dict) or "first" not in data:
        return validate(data)
    stored = cast("Mapping[str, Any]", data)
    own_turns = turns_in_use.get() or Messages()
    # Turns that the reader does not have count as omitted. Then the run is only shown.
    turns = _turns_until(own_turns, stored["last"], stored["count"])
    missing = stored["count"] - len(turns)
    messages = Messages(turns, stored["thread"], stored["omitted"] + missing)
    return messages if stored["calls"] else messages.without_calls()


def _turns_until(known: Messages, last: str, count: int) -> tuple[Turn, ...]:
    """The `count` turns that end with the run `last`."""
    end = next((n for n, turn in enumerate(known.turns, 1) if turn.run_id == last), 0)
    return known.turns[max(0, end - count) : end]


class TurnOptions(NamedTuple):
    """How a run takes its turn in a thread; `Graph.arun` explains the options."""

    thread: str
    busy: str = "wait"
    busy_timeout: float = 300.0
    interrupted: str | None = None


def _turn_of_pair(given: object) -> Turn:
    pair = cast("tuple[object, ...]", given)
    if not isinstance(given, tuple | list) or [*map(type, pair)] != [str, str]:
        raise TypeError(f"Messages([{given!r:.100}]): give pairs of texts, (user, reply), or Turns")
    return Turn(*cast("tuple[str, str]", pair))


def _call_text(call: ToolCall) -> str:
    import json

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, default=str)

    outcome = f"error: {call.error}" if call.error else text(call.result)
    call_text = f"[{call.name} {text(call.arguments)}: {outcome}]"
    if len(call_text) <= _LONGEST_CALL:
        return call_text
    return f"{call_text[:_LONGEST_CALL]}… (cut: {len(call_text):,} characters)]"
