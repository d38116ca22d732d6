"""Questions at the terminal, for fields of the start node, secrets, and gates of a run. The user
can edit the typed line as in a shell. `prompt_toolkit` is imported only for the first question."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from time import localtime, strftime, time
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from rich.text import Text

from bae.cli.live.screen import turn_logging
from bae.cli.printing import err
from bae.cli.signals import run_until_signal
from bae.cli.values import (
    Typed,
    UnfitText,
    answer_field,
    describe_type,
    is_secret,
    is_yes_or_no,
    read,
    spell_value,
)
from bae.cli.wording import WITHHELD, cut_text, in_lines, in_one_line, text_of
from bae.exceptions import faults
from bae.plan import plan_of
from bae.run import Waiting

if TYPE_CHECKING:
    from bae.cli.live import Display
    from bae.markers import OpenGate
    from bae.node import Node

_SHORT: Final = 50
"""Maximum characters of a type description in a prompt."""


def can_ask() -> bool:
    """Return whether bae can ask at the terminal. Questions go to stderr, and answers come from
    stdin. A background process cannot ask, because reading from stdin would suspend the
    process."""
    try:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        with suppress(AttributeError, OSError):  # not on Unix, or the terminal of another process
            return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, ValueError, OSError):  # stdin or stderr is closed or missing
        return False
    return True


def ask_field(cls: type[Node], name: str) -> Typed | None:
    """Ask for a field of a node until the answer is valid. Return None if the user takes the
    field's default. Raise EOFError on Ctrl-D, and KeyboardInterrupt on Ctrl-C."""
    return run_until_signal(_ask_for_field(cls, name, with_default=True))


def ask_answer(cls: type[Node], name: str) -> Any:
    """Ask for the answer to a gate until the answer is valid. Enter alone is not accepted, because
    an answer is final."""
    return run_until_signal(_ask_for_answer(cls, name))


class AtTerminal:
    """An `answer=` function that asks at the terminal, one gate at a time. The display pauses
    during a question. After Ctrl-D, this gate and all later gates stay open."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._turn = asyncio.Lock()
        self._has_stopped = False

    async def __call__(self, gate: OpenGate) -> Any:
        """Ask for the answer to a gate, after the gates that opened before it."""
        async with self._turn:
            if self._has_stopped:
                raise Waiting([gate])
            with self._display.asking():
                forget_typed()
                err().print(_describe_gate(gate), soft_wrap=True)
                try:
                    return await _ask_until_accepted(gate, in_thread=self._display.in_thread)
                except EOFError:
                    self._has_stopped = True
                    raise Waiting([gate]) from None
                except (
                    KeyboardInterrupt
                ):  # the line editor read Ctrl-C as a key: no signal was sent
                    signal.raise_signal(signal.SIGINT)
                    await asyncio.Event().wait()  # until the run is cancelled
                    raise


async def _ask_until_accepted(gate: OpenGate, *, in_thread: bool) -> Any:
    """Ask for the answer to a gate until the run accepts it. If the tool refuses the typed
    arguments, ask again at once, before a question about another call."""
    while True:
        value = await _ask_for_answer(*answer_field(gate), in_thread=in_thread)
        field = plan_of(gate.node_type).fields.get(gate.field_name)
        if not gate.parameter or field is None:
            return value
        try:
            field.check_answer(gate.node_type, gate, value)
            return value
        except ValidationError as error:
            _print_misfit("; ".join(faults(error)))


def _print_misfit(why: str, *, forget: bool = True) -> None:
    if forget:
        forget_typed()
    message = Text("  that does not fit: ", style="red").append(in_lines(why, 6))
    err().print(message, soft_wrap=True)


async def _ask_for_answer(cls: type[Node], name: str, *, in_thread: bool = False) -> Any:
    """Ask for the answer to a gate, and return it in the form that the run takes."""
    typed = await _ask_for_field(cls, name, with_default=False, in_thread=in_thread)
    return None if typed is None else typed.to_input(cls, name)


async def _ask_for_field(
    cls: type[Node], name: str, *, with_default: bool, in_thread: bool = False
) -> Typed | None:
    kind = _describe_kind(cls.__pydantic_fields__[name].annotation, in_thread=in_thread)
    _introduce_field(cls, name, kind)
    prompt = _make_prompt(cls, name, kind, with_default=with_default)
    while True:
        text = await typed_line(prompt, hidden=is_secret(cls, name))
        try:
            if not with_default and not text.strip():
                err().print(_explain_empty_answer(cls, name), soft_wrap=True)
            elif not text and not cls.__pydantic_fields__[name].is_required():
                return None
            else:
                return read(cls, name, text)
        except UnfitText as misfit:
            _print_misfit(str(misfit), forget=not with_default)


# --- lines --------------------------------------------------------------------------------------


async def typed_line(
    prompt: str, *, hidden: bool = False, default: str = "", **session_options: Any
) -> str:
    """Read a line after the prompt. With `hidden`, typed characters are not shown. The user can
    edit `default`. Raise EOFError on Ctrl-D, and KeyboardInterrupt on Ctrl-C. While the user types,
    text that bae prints appears above the line, unless stdout is a file."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output
    from prompt_toolkit.patch_stdout import patch_stdout

    stdout, stderr = sys.stdout, sys.stderr
    output: Any = create_output(stdout=getattr(stderr, "rich_proxied_file", stderr))
    if hasattr(
        output, "enable_cpr"
    ):  # bae needs no cursor position, and waiting for the reply would delay the prompt
        output.enable_cpr = False
    session: PromptSession[str] = PromptSession(output=output, **session_options)
    with patch_stdout(raw=True):
        if not stdout.isatty():
            sys.stdout = stdout
        proxy = sys.stderr
        turn_logging(stderr, proxy)
        try:
            return await session.prompt_async(
                prompt, is_password=hidden, default=default, handle_sigint=False
            )
        finally:
            turn_logging(proxy, stderr)


def forget_typed() -> None:
    """Discard the keys that the user typed before a question, so that they do not become the
    answer."""
    with suppress(Exception):  # not on Unix, or the terminal is closed
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


# --- texts ----------------------------------------------------------------------------------------


def _describe_gate(gate: OpenGate) -> Text:
    """Return a gate's question, its context and its deadline."""
    text = Text("? ", style="bold yellow").append(in_lines(gate.question, 4), style="bold")
    # Several gates in a nested graph may have the same name: the path distinguishes them.
    text.append(f"  {gate.path}/{gate.place}" if gate.path else f"  {gate.place}", style="dim")
    is_quoted = gate.call is not None and str(gate.call) in gate.question
    for name, value in () if is_quoted else gate.context.items():
        is_hidden = not gate.parameter and is_secret(gate.node_type, name)
        value_text = WITHHELD if is_hidden else text_of(value)
        text.append(f"\n    {name}: ", style="dim").append(value_text)
    if gate.problem:
        text.append(f"\n  the answer before did not fit: {in_lines(gate.problem, 6)}", style="red")
    text.append(f"\n{describe_deadline(gate)}  Ctrl-D leaves the run waiting", style="dim")
    return text


def describe_deadline(gate: OpenGate) -> str:
    """Describe when a gate closes and what happens then. Empty for a gate without a deadline."""
    if gate.deadline is None:
        return ""
    info = gate.node_type.__pydantic_fields__[gate.field_name]
    then = "the run fails" if info.is_required() else f"it is {_describe_default(info)}"
    if gate.parameter:
        then = "the LM reads that nobody answered"
    far = gate.deadline - time() >= 86_400
    at = strftime("%Y-%m-%d %H:%M" if far else "%H:%M:%S", localtime(gate.deadline))
    return f"  until {at}, then {then}"


def _introduce_field(cls: type[Node], name: str, kind: str) -> None:
    """Print the description of a field, and its type if the type is too long for the prompt."""
    info = cls.__pydantic_fields__[name]
    text = Text(name, style="bold")
    if info.description:
        text.append(f" - {in_lines(info.description, 4)}", style="dim")
    if len(kind) > _SHORT:
        text.append(f"\n  {kind}", style="cyan")
    if text.plain != name:
        err().print(text, soft_wrap=True)


def _make_prompt(cls: type[Node], name: str, kind: str, *, with_default: bool) -> str:
    """Return a prompt such as `size (small | large, Enter for small): `."""
    info = cls.__pydantic_fields__[name]
    facts = [kind] if len(kind) <= _SHORT else []
    if is_secret(cls, name):
        facts = ["not shown"]
    elif with_default and not info.is_required():
        facts.append(f"Enter for {_describe_default(info)}")
    return f"{name} ({', '.join(facts)}): " if facts else f"{name}: "


def _describe_kind(annotation: Any, *, in_thread: bool) -> str:
    if is_yes_or_no(annotation):
        return "y/n"
    kind = in_one_line(describe_type(annotation, in_thread=in_thread))
    return "str" if kind == "text" else kind


def _explain_empty_answer(cls: type[Node], name: str) -> Text:
    """Return the message for an empty answer to a gate."""
    empty = ""
    with suppress(UnfitText):
        read(cls, name, "")
        empty = ', "" for an empty text'
    return Text(f"  type an answer{empty}; Ctrl-D leaves the run waiting", style="dim")


def _describe_default(info: FieldInfo) -> str:
    """Describe the default of a field in a few characters."""
    if info.default_factory is not None:
        return "what the program makes"
    value: Any = info.get_default()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) or hasattr(value, "value"):
        return cut_text(in_one_line(spell_value(value)), 40) or "no text"
    return text_of(value, 40)
