"""Asks a person at a gate. If the answer does not fit, asks again, until the gate's deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from inspect import isawaitable
from time import time
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from bae.assignable import type_name
from bae.exceptions import BaeError, GateError, faults
from bae.run import GateAnswerer, Waiting

if TYPE_CHECKING:
    from bae.markers import OpenGate

ATTEMPTS: Final = 3
"""How many answers a person may give at a gate before the run fails."""

Check = Callable[[Any], Any]
"""Validates an answer. Raises pydantic's ValidationError if it does not fit."""


class Late:
    """The type of `LATE`."""


LATE: Final = Late()
"""Returned instead of an answer if no answer came before the deadline."""


async def answer_in_time(
    answer_with: GateAnswerer | None, opened: OpenGate, check: Check
) -> Any | Late:
    """Return the answer to a gate, or `LATE` after the gate's deadline. Raises `Waiting` if there
    is no answerer."""
    if opened.deadline is not None and opened.deadline <= time():
        return LATE
    if answer_with is None:
        raise Waiting([opened])
    bound = asyncio.timeout(None if opened.deadline is None else opened.deadline - time())
    try:
        async with bound:
            return await _ask(answer_with, opened, check)
    except TimeoutError:
        if not bound.expired():
            raise
    return LATE


async def _ask(answer_with: GateAnswerer, opened: OpenGate, check: Check) -> Any:
    last: ValidationError | None = None
    for _ in range(ATTEMPTS):
        try:
            answering = answer_with(opened)
            if not isawaitable(answering):
                raise gate_error(
                    opened,
                    "the callable given as answer= is not async, so it would block the run",
                    "write `async def answer(gate): …`; ask a terminal in it with "
                    "`await asyncio.to_thread(input, gate.question)`",
                )
            answer = await answering
        except (BaeError, Waiting):  # an answerer raises Waiting to leave the gate open
            raise
        except Exception as error:
            message = f"answering {opened.question!r} raised {type(error).__name__}"
            fix = "fix the callable given as answer=…"
            raise gate_error(opened, message, fix, cause=error) from error
        try:
            check(answer)
            return answer
        except ValidationError as error:
            opened = replace(opened, problem="; ".join(faults(error)))
            last = error
    expected = type_name(opened.type)
    message = f"{ATTEMPTS} answers to {opened.question!r} were not {expected}: {opened.problem}"
    raise gate_error(opened, message, f"answer with a {expected}", "bae-gate-invalid", last)


def gate_error(
    opened: OpenGate,
    message: str,
    fix: str,
    code: str = GateError.code,
    cause: Exception | None = None,
) -> GateError:
    """Make an error about a gate."""
    return GateError(
        f"{opened.place}: {message}",
        gates=[opened],
        node_type=opened.node_type,
        field_name=opened.field_name,
        code=code,
        cause=cause,
        fix=fix,
    )
