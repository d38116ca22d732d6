"""`Gate`: a person's answer is the value of a field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

from bae.assignable import union_members
from bae.draft import validate_values
from bae.exceptions import GateError, Problem, a_warning
from bae.gates import LATE, answer_in_time, gate_error
from bae.markers import Gate, OpenGate
from bae.records import NOTHING, GateOpened
from bae.scheduling import PendingValue
from bae.sources import FieldPlan, Told

if TYPE_CHECKING:
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.resolver import Resolution
    from bae.sources import Before


class GateField(FieldPlan):
    """A field whose value a person supplies."""

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
        """The kind of the value, a person's answer, with the question."""
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
        """A yes-or-no question of a node that an LM fills. The gate is asked first, since its
        answer is context for the LM, so a person would approve fields that do not exist yet."""
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
        """Ask a person, again if the answer does not fit the field. Raises `Waiting` without an
        `answer` callable."""
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

        def check(answer: Any) -> None:
            # The node validates it again, as it validates every value.
            validate_values(opened.node_type, {opened.field_name: answer})

        value = await answer_in_time(run.options.answer, opened, check)
        if value is LATE:
            value = _default(opened, self)
        return await run.writer.settle_answer(run, opened, value)


def _default(opened: OpenGate, field: GateField) -> Any:
    """The default of the field, if there is no answer in time."""
    if not field.required:
        return field.info.get_default(call_default_factory=True, validated_data={})
    raise gate_error(
        opened,
        f"no answer to {opened.question!r} within {field.marker.timeout:g} s",
        "give the field a default, which is used then, or the gate more time",
        "bae-gate-timeout",
    )
