"""Questions at the terminal: fields of the start node, secrets, and gates of a run. Lines can be
edited as in a shell; `prompt_toolkit` is imported at the first question."""

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
    """Whether a terminal can ask: questions go to stderr, answers come from stdin. A background
    process would be stopped when it reads."""
    try:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        with suppress(AttributeError, OSError):  # no Unix, or not this process's terminal
            return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, ValueError, OSError):  # closed or missing
        return False
    return True


def ask_field(cls: type[Node], name: str) -> Typed | None:
    """Ask for a field of a node until the answer fits. None means its default. Ctrl-D raises
    EOFError, Ctrl-C KeyboardInterrupt."""
    return run_until_signal(_ask(cls, name, with_default=True))


def ask_answer(cls: type[Node], name: str) -> Any:
    """Ask for the answer to a gate. Enter alone is never an answer, since an answer is final."""
    return run_until_signal(_answer(cls, name))


class AtTerminal:
    """The `answer=` of a run: asks at the terminal, one gate at a time, with the display paused.
    Ctrl-D leaves the run waiting."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._turn = asyncio.Lock()
        self._left = False

    async def __call__(self, gate: OpenGate) -> Any:
        """Ask one gate, after the gates that opened before it."""
        async with self._turn:
            if self._left:
                raise Waiting([gate])
            with self._display.asking():
                forget_typed()
                err().print(_question(gate), soft_wrap=True)
                try:
                    return await _fitting_answer(gate, in_thread=self._display.in_thread)
                except EOFError:
                    self._left = True
                    raise Waiting([gate]) from None
                except KeyboardInterrupt:  # the key while editing a line, not the signal
                    signal.raise_signal(signal.SIGINT)
                    await asyncio.Event().wait()  # until the run is cancelled
                    raise


async def _fitting_answer(gate: OpenGate, *, in_thread: bool) -> Any:
    """The typed answer to a gate. Arguments that the tool refuses are asked for again at once: a
    later question would be about another call."""
    while True:
        value = await _answer(*answer_field(gate), in_thread=in_thread)
        field = plan_of(gate.node_type).fields.get(gate.field_name)
        if not gate.parameter or field is None:
            return value
        try:
            field.check_answer(gate.node_type, gate, value)
            return value
        except ValidationError as error:
            _say_misfit("; ".join(faults(error)))


def _say_misfit(why: str, *, forget: bool = True) -> None:
    if forget:
        forget_typed()
    message = Text("  that does not fit: ", style="red").append(in_lines(why, 6))
    err().print(message, soft_wrap=True)


async def _answer(cls: type[Node], name: str, *, in_thread: bool = False) -> Any:
    """The typed answer to a gate, as the run accepts it."""
    typed = await _ask(cls, name, with_default=False, in_thread=in_thread)
    return None if typed is None else typed.given_to(cls, name)


async def _ask(
    cls: type[Node], name: str, *, with_default: bool, in_thread: bool = False
) -> Typed | None:
    kind = _kind(cls.__pydantic_fields__[name].annotation, in_thread=in_thread)
    _introduce(cls, name, kind)
    prompt = _prompt_of(cls, name, kind, with_default=with_default)
    while True:
        text = await typed_line(prompt, hidden=is_secret(cls, name))
        try:
            if not with_default and not text.strip():
                err().print(_nothing_typed(cls, name), soft_wrap=True)
            elif not text and not cls.__pydantic_fields__[name].is_required():
                return None
            else:
                return read(cls, name, text)
        except UnfitText as misfit:
            _say_misfit(str(misfit), forget=not with_default)


# --- lines --------------------------------------------------------------------------------------


async def typed_line(
    prompt: str, *, hidden: bool = False, default: str = "", **session_options: Any
) -> str:
    """Read a line after the prompt. `hidden` does not show it, and `default` can be edited. Raises
    EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C. Prints appear above the line, unless they go
    to a file."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output
    from prompt_toolkit.patch_stdout import patch_stdout

    stdout, stderr = sys.stdout, sys.stderr
    output: Any = create_output(stdout=getattr(stderr, "rich_proxied_file", stderr))
    if hasattr(output, "enable_cpr"):  # few terminals need it, and without it there is a delay
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
    """Discard earlier keystrokes before a question appears, since they cannot be its answer."""
    with suppress(Exception):  # no Unix, or the terminal is gone
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


# --- texts ----------------------------------------------------------------------------------------


def _question(gate: OpenGate) -> Text:
    """The question, the known fields of its node, and the deadline."""
    text = Text("? ", style="bold yellow").append(in_lines(gate.question, 4), style="bold")
    # Several gates in a nested graph may have the same name: the path distinguishes them.
    text.append(f"  {gate.path}/{gate.place}" if gate.path else f"  {gate.place}", style="dim")
    is_quoted = gate.call is not None and str(gate.call) in gate.question
    for name, value in () if is_quoted else gate.context.items():
        is_hidden = not gate.parameter and is_secret(gate.node_type, name)
        shown = WITHHELD if is_hidden else text_of(value)
        text.append(f"\n    {name}: ", style="dim").append(shown)
    if gate.problem:
        text.append(f"\n  the answer before did not fit: {in_lines(gate.problem, 6)}", style="red")
    text.append(f"\n{describe_deadline(gate)}  Ctrl-D leaves the run waiting", style="dim")
    return text


def describe_deadline(gate: OpenGate) -> str:
    """The deadline of a gate, and its default."""
    if gate.deadline is None:
        return ""
    info = gate.node_type.__pydantic_fields__[gate.field_name]
    then = "the run fails" if info.is_required() else f"it is {_default_of(info)}"
    if gate.parameter:
        then = "the LM reads that nobody answered"
    far = gate.deadline - time() >= 86_400
    at = strftime("%Y-%m-%d %H:%M" if far else "%H:%M:%S", localtime(gate.deadline))
    return f"  until {at}, then {then}"


def _introduce(cls: type[Node], name: str, kind: str) -> None:
    """Print the description of a field, and its type if that is long."""
    info = cls.__pydantic_fields__[name]
    text = Text(name, style="bold")
    if info.description:
        text.append(f" - {in_lines(info.description, 4)}", style="dim")
    if len(kind) > _SHORT:
        text.append(f"\n  {kind}", style="cyan")
    if text.plain != name:
        err().print(text, soft_wrap=True)


def _prompt_of(cls: type[Node], name: str, kind: str, *, with_default: bool) -> str:
    """The prompt: the field, its type, and the value of Enter alone, as `size (small | large, Enter
    for small): `."""
    info = cls.__pydantic_fields__[name]
    facts = [kind] if len(kind) <= _SHORT else []
    if is_secret(cls, name):
        facts = ["not shown"]
    elif with_default and not info.is_required():
        facts.append(f"Enter for {_default_of(info)}")
    return f"{name} ({', '.join(facts)}): " if facts else f"{name}: "


def _kind(annotation: Any, *, in_thread: bool) -> str:
    if is_yes_or_no(annotation):
        return "y/n"
    kind = in_one_line(describe_type(annotation, in_thread=in_thread))
    return "str" if kind == "text" else kind


def _nothing_typed(cls: type[Node], name: str) -> Text:
    """The message for an empty answer to a gate."""
    empty = ""
    with suppress(UnfitText):
        read(cls, name, "")
        empty = ', "" for an empty text'
    return Text(f"  type an answer{empty}; Ctrl-D leaves the run waiting", style="dim")


def _default_of(info: FieldInfo) -> str:
    """The default of a field in a few characters."""
    if info.default_factory is not None:
        return "what the program makes"
    value: Any = info.get_default()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) or hasattr(value, "value"):
        return cut_text(in_one_line(spell_value(value)), 40) or "no text"
    return text_of(value, 40)
