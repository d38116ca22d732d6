"""Gates that are asked at the terminal while the run goes on: one at a time, with the display out
of the way. Ctrl-D leaves the run waiting. `carrying.py` gives the answerer to the run."""

from __future__ import annotations

import asyncio
from time import localtime, strftime, time
from typing import TYPE_CHECKING, Any

from bae.cli.printing import err
from bae.cli.running.terminal_input import forget_typed, typed_line
from bae.cli.start.questions import (
    default_of,
    introduce,
    is_secret,
    nothing_typed,
    prompt_of,
    refusal,
)
from bae.cli.start.typed import Misfit, read
from bae.cli.texts import WITHHELD, in_lines
from bae.run import Waiting

if TYPE_CHECKING:
    from rich.console import Console

    from bae.cli.live import Display
    from bae.markers import OpenGate


class AtTerminal:
    """What a run gets as `answer=`: asks the person at the terminal."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._turn = asyncio.Lock()
        self._left = False

    async def __call__(self, gate: OpenGate) -> Any:
        """Ask one gate, once those that were open before it have their answers."""
        async with self._turn:
            if self._left:
                raise Waiting([gate])
            with self._display.asking():
                try:
                    return await _asked(gate)
                except EOFError:
                    self._left = True
                    raise Waiting([gate]) from None


async def _asked(gate: OpenGate) -> Any:
    console = err()
    secret = is_secret(gate.node_type, gate.field_name)
    forget_typed()
    console.print(question(gate), soft_wrap=True)
    introduce(gate.node_type, gate.field_name)
    prompt = prompt_of(gate.node_type, gate.field_name)
    try:
        while True:
            text = await typed_line(prompt, hidden=secret)
            if not text.strip():
                console.print(nothing_typed(gate.node_type, gate.field_name), soft_wrap=True)
                continue
            try:
                typed = read(gate.node_type, gate.field_name, text)
            except Misfit as misfit:
                forget_typed()
                console.print(refusal(misfit), soft_wrap=True)
            else:
                return typed.given_to(gate.node_type, gate.field_name)
    except (EOFError, asyncio.CancelledError):
        _end_line(console)
        raise


def question(gate: OpenGate) -> Any:
    """What is asked, what is known at the node, and until when."""
    from rich.text import Text

    from bae.cli.live.values import text_of

    said = Text("? ", style="bold yellow").append(in_lines(gate.question, 4), style="bold")
    said.append(f"  {gate.place}", style="dim")
    hidden = {name for name in gate.context if is_secret(gate.node_type, name)}
    for name, value in gate.context.items():
        shown = WITHHELD if name in hidden else text_of(value)
        said.append(f"\n    {name}: ", style="dim").append(shown)
    if gate.problem:
        said.append(f"\n  the answer before did not fit: {in_lines(gate.problem, 6)}", style="red")
    said.append(f"\n{until(gate)}  Ctrl-D leaves the run waiting", style="dim")
    return said


def until(gate: OpenGate) -> str:
    """How long there is to answer, and what happens then."""
    if gate.deadline is None:
        return ""
    info = gate.node_type.__pydantic_fields__[gate.field_name]
    then = "the run fails" if info.is_required() else f"it is {default_of(info)}"
    left = max(0.0, gate.deadline - time())
    at = strftime("%H:%M:%S", localtime(gate.deadline))
    if left >= 86_400:
        at = strftime("%Y-%m-%d %H:%M", localtime(gate.deadline))
    return f"  until {at}, then {then}"


def _end_line(console: Console) -> None:
    console.file.write("\n")
    console.file.flush()
