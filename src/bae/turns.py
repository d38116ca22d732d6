"""`Messages`: the earlier turns of a thread, for a node and for the LLM. A turn is one run of the
thread, with the user's message and the reply."""

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
"""How many earlier turns are read for classes outside the graph. The options of their `Thread`
fields are not known when the run starts."""
_CUT_AT: Final = 4
"""How many equal parts a window of turns has. Turns are left out a part at a time."""
_LONGEST_CALL: Final = 2_000
"""How many characters of a tool call, with its result, the LLM reads in later turns."""
IS_TURNS: Final = "bae_turns"
"""The metadata key that marks the core schema of `Messages`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of a thread.

    - `user`: the text of the user.
    - `reply`: the text of the reply.
    - `run_id`: the id of the turn's run.
    - `at`: the time when the run began, in seconds since 1970.
    - `calls`: the tool calls of the turn, if the field has `Thread(calls=True)`.
    """

    user: str
    reply: str
    run_id: str = ""
    at: float = 0.0
    calls: tuple[ToolCall, ...] = ()

    def messages(self) -> tuple[Message, Message]:
        """Return the turn as an LLM reads it. Tool calls are in the user's message. If a model read
        them as text in its own message, it would begin to write calls as text."""
        from bae.prompts.messages import Message, TextPart, replace_blank

        parts = [TextPart(replace_blank(self.user, "(no text)"))]
        parts += [TextPart(_call_text(call)) for call in self.calls]
        reply = TextPart(replace_blank(self.reply, "(no text)"))
        return Message("user", tuple(parts), "turn"), Message("assistant", (reply,), "turn")

    @property
    def size(self) -> int:
        """How many characters of the turn an LLM reads."""
        return len(self.user) + len(self.reply) + sum(len(_call_text(call)) for call in self.calls)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Messages(Sequence[Turn]):
    """The earlier turns of a thread, the oldest first. It is the value of a field with `Thread()`.

    A `Messages` is an immutable sequence of `Turn`. In a test, make it from pairs of texts:
    `Messages([("My name is Ana.", "Hello Ana!")])`.

    - `thread`: the id of the thread; empty for a run without a thread.
    - `omitted`: how many older turns of the thread are left out.
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
        all_turns = tuple(turn if isinstance(turn, Turn) else _make_turn(turn) for turn in turns)
        object.__setattr__(self, "turns", all_turns)
        object.__setattr__(self, "thread", thread)
        object.__setattr__(self, "omitted", omitted)

    def __repr__(self) -> str:
        # A printed node shows its values, but not the texts of the conversation.
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
            # Without the reference, pydantic would use `plain_schema` at the next use of the type.
            ref=schema.get("ref"),
        )

    @property
    def ends(self) -> tuple[str, str]:
        """The run ids of the first and the last turn."""
        return (self.turns[0].run_id, self.turns[-1].run_id) if self.turns else ("", "")

    def without_calls(self) -> Messages:
        """Return these turns without their tool calls."""
        if not any(turn.calls for turn in self.turns):
            return self
        turns = [replace(turn, calls=()) for turn in self.turns]
        return Messages(turns, self.thread, self.omitted)

    def newest(self, last: int | None, limit: int) -> Messages:
        """Return the newest turns: at most `last` turns, with at most `limit` characters in all.

        If older turns have to be left out, they are left out in steps of a quarter of `last`. Then
        the beginning of the prompt stays the same for several runs, and providers can cache it. At
        least half a step of the newest turns stays, as far as `limit` allows.
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
        """Return the turns as an LLM reads them, before the question. If turns are left out, a note
        says how many, even if no turn is shown."""
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
"""The earlier turns of the current run, or of the run whose stored values are being read."""


@contextmanager
def as_references() -> Generator[None]:
    """Write and read values as JSON with references in place of turns, inside this block. A value
    with turns from `turns_in_use` then refers to these turns, so a journal stores each turn
    once."""
    token = _refers.set(True)
    try:
        yield
    finally:
        _refers.reset(token)


_refers: ContextVar[bool] = ContextVar("bae_refers", default=False)
is_referring: Final = _refers.get
"""Whether the code runs inside `as_references`."""


def _write_messages(value: Any, serialize: Callable[[Any], Any]) -> Any:
    own_turns = turns_in_use.get() if is_referring() else None
    if own_turns is not None and isinstance(value, Messages) and value.turns:
        first, last = value.ends
        part = _turns_until(own_turns, last, len(value))
        has_calls = part == value.turns
        if has_calls or Messages(part).without_calls().turns == value.turns:
            reference = {"thread": value.thread, "omitted": value.omitted, "calls": has_calls}
            return {**reference, "first": first, "last": last, "count": len(value)}
    return serialize(value)


def _read_messages(data: Any, validate: Callable[[Any], Any]) -> Any:
    if not is_referring() or not isinstance(data, dict) or "first" not in data:
        return validate(data)
    stored = cast("Mapping[str, Any]", data)
    own_turns = turns_in_use.get() or Messages()
    # Turns that are missing in `turns_in_use` are counted as omitted. This happens only when the
    # run is shown, not when it is resumed.
    turns = _turns_until(own_turns, stored["last"], stored["count"])
    missing = stored["count"] - len(turns)
    messages = Messages(turns, stored["thread"], stored["omitted"] + missing)
    return messages if stored["calls"] else messages.without_calls()


def _turns_until(messages: Messages, last: str, count: int) -> tuple[Turn, ...]:
    """Return the `count` turns that end with the run `last`, as far as `messages` has them."""
    end = next((n for n, turn in enumerate(messages.turns, 1) if turn.run_id == last), 0)
    return messages.turns[max(0, end - count) : end]


class TurnOptions(NamedTuple):
    """The options of a run in a thread. `Graph.arun` explains them."""

    thread: str
    busy: str = "wait"
    busy_timeout: float = 300.0
    interrupted: str | None = None


def _make_turn(item: object) -> Turn:
    pair = cast("tuple[object, ...]", item)
    if not isinstance(item, tuple | list) or [*map(type, pair)] != [str, str]:
        raise TypeError(f"Messages([{item!r:.100}]): give pairs of texts, (user, reply), or Turns")
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
