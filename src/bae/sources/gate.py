"""`Gate`: a person's answer is the value of a field."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from bae.assignable import type_name, union_members
from bae.draft import validated
from bae.exceptions import BaeError, GateError, Problem, a_warning, faults
from bae.markers import Gate, OpenGate
from bae.records import NOTHING, GateOpened
from bae.run import GateAnswerer, Waiting
from bae.scheduling import PendingValue
from bae.sources import FieldPlan, Told

if TYPE_CHECKING:
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.resolver import Resolution
    from bae.sources import Before

ATTEMPTS = 3
"""How often a gate is asked when the answers do not fit."""


class GateField(FieldPlan):
    """A field whose value a person gives."""

    __slots__ = ("question",)
    kind = "gate"
    noun = "a Gate"
    style = "person"
    began = ""
    stored = "answer"
    is_remade = False
    asks_person = True
    invalid = GateError, "bae-gate-invalid"

    marker: Gate

    def __init__(self, name: str, info: FieldInfo, marker: Gate) -> None:
        super().__init__(name, info, marker)
        self.question = marker.question

    @classmethod
    def sentence(cls, told: Told) -> str:
        """A person, and the question."""
        return f"answered by a person who was asked {told.by!r}"

    @classmethod
    def phrase(cls, told: Told) -> str:
        """That it is an answer, and the question."""
        return f"answered: {told.by}{told.took}"

    @classmethod
    def row(cls, told: Told) -> str:
        """A person."""
        return "a person"

    def schema_words(self) -> str:
        """A person."""
        return " from a person"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        """The question."""
        return f"“{self.marker.question}”"

    def fill_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """A yes-or-no question of a node that an LM fills: the gate is asked first, since its
        answer is context for the LM, so that a person would approve what is not there yet."""
        members = {member for member in union_members(self.annotation) if member is not NoneType}
        if plan.plain and members == {bool}:
            names = ", ".join(field.name for field in plan.plain)
            it = "them" if len(plan.plain) > 1 else "it"
            yield a_warning(
                "bae-gate-before-fill",
                f"the question is asked before the LM fills {names}, so the person does not "
                f"see {it}",
                f"put the gate on a node after {plan.name}, one that shows {names}; or on a node "
                "before it, where the answer is for the LM to work with",
                f"{plan.name}.{self.name}",
            )

    def start(self, at: Resolution, place: Place) -> PendingValue:
        """Ask a person."""
        compute = partial(self._ask, at)
        what = self.question, self.kind, compute
        return at.flow.add(PendingValue(at.run, at.plan.node, place, *what))

    async def _ask(self, at: Resolution, pending: PendingValue) -> Any:
        """Ask a person, again if the answer does not fit the field. Without an `answer` callable,
        raise what the run waits for."""
        run, path, step = pending.run, pending.place.path, pending.place.step
        gate, what = self.marker, (self.name, self.annotation, dict(at.known))
        opened = OpenGate(self.question, pending.node_type, *what, None, path, step)
        answered = run.past.gate_answer(opened)
        if answered is not NOTHING:
            return answered
        since, now = run.past.opened.get(opened.address), time()
        if gate.timeout is not None:
            opened = replace(opened, deadline=(since or now) + gate.timeout)
        if since is None:
            run.writer.write(GateOpened(now, path, step, opened))
        value = await _answer(run.options.answer, opened, self)
        return await run.writer.settle_answer(run, opened, value)


async def _answer(answer_with: GateAnswerer | None, opened: OpenGate, field: GateField) -> Any:
    """The answer that is given in time, or the default of the field."""
    if opened.deadline is not None and opened.deadline <= time():
        return _default(opened, field)
    if answer_with is None:
        raise Waiting([opened])
    bound = asyncio.timeout(None if opened.deadline is None else opened.deadline - time())
    try:
        async with bound:
            return await _ask(answer_with, opened)
    except TimeoutError:
        if not bound.expired():
            raise
    return _default(opened, field)


async def _ask(answer_with: GateAnswerer, opened: OpenGate) -> Any:
    last: ValidationError | None = None
    for _ in range(ATTEMPTS):
        try:
            answering = answer_with(opened)
            if not isawaitable(answering):
                raise _error(
                    opened,
                    "the callable given as answer= is not async, so it would block the run",
                    "write `async def answer(gate): …`; ask a terminal in it with "
                    "`await asyncio.to_thread(input, gate.question)`",
                )
            answer = await answering
        except (BaeError, Waiting):  # an answerer that raises Waiting leaves the gate open
            raise
        except Exception as error:
            said = f"answering {opened.question!r} raised {type(error).__name__}"
            fix = "fix the callable given as answer=…"
            raise _error(opened, said, fix, cause=error) from error
        try:
            validated(opened.node_type, {opened.field_name: answer})
            return answer  # the node validates it once more, as it does every value
        except ValidationError as error:
            opened = replace(opened, problem="; ".join(faults(error)))
            last = error
    wanted = type_name(opened.type)
    said = f"{ATTEMPTS} answers to {opened.question!r} were not {wanted}: {opened.problem}"
    raise _error(opened, said, f"answer with a {wanted}", "bae-gate-invalid", last)


def _default(opened: OpenGate, field: GateField) -> Any:
    """The default of the field, when there is no answer in time."""
    if not field.required:
        return field.info.get_default(call_default_factory=True, validated_data={})
    raise _error(
        opened,
        f"no answer to {opened.question!r} within {field.marker.timeout:g} s",
        "give the field a default, which is used then, or the gate more time",
        "bae-gate-timeout",
    )


def _error(
    opened: OpenGate,
    said: str,
    fix: str,
    code: str = GateError.code,
    cause: Exception | None = None,
) -> GateError:
    return GateError(
        f"{opened.place}: {said}",
        gates=[opened],
        node_type=opened.node_type,
        field_name=opened.field_name,
        code=code,
        cause=cause,
        fix=fix,
    )
