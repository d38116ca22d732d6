"""`Gate`: a person supplies the value of a field."""

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
from bae.sources import FieldPlan, SourceFacts

if TYPE_CHECKING:
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.resolver import Resolution
    from bae.sources import Before


class GateField(FieldPlan):
    """The plan of a field with a `Gate`."""

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
    def sentence(cls, facts: SourceFacts) -> str:
        return f"answered by a person who was asked {facts.by!r}"

    @classmethod
    def phrase(cls, facts: SourceFacts) -> str:
        return f"answered: {facts.by}{facts.took}"

    @classmethod
    def row(cls, facts: SourceFacts) -> str:
        return "a person"

    def describe_in_schema(self) -> str:
        return " from a person"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        return f"“{self.marker.question}”"

    def fill_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Warn about a yes-or-no question on a node that an LLM fills. The gate opens before the
        LLM fills the node, because the answer is context for the LLM. So the person would approve
        fields that do not exist yet."""
        members = {member for member in union_members(self.annotation) if member is not NoneType}
        if plan.plain and members == {bool}:
            names = ", ".join(field.name for field in plan.plain)
            pronoun = "them" if len(plan.plain) > 1 else "it"
            yield a_warning(
                "bae-gate-before-fill",
                f"the question is asked before the LM fills {names}, so the person does not "
                f"see {pronoun}",
                f"put the gate on a node after {plan.name}, one that shows {names}; or on a node "
                "before it, where the answer is for the LM to work with",
                f"{plan.name}.{self.name}",
            )

    def start(self, at: Resolution, place: Place) -> PendingValue:
        """Ask a person."""
        compute = partial(self._ask, at)
        details = self.question, self.kind, compute
        return at.flow.add(PendingValue(at.run, at.plan.node, place, *details))

    async def _ask(self, at: Resolution, pending: PendingValue) -> Any:
        """Return the stored answer of a person, or ask a person. If the answer does not fit the
        field, ask again, at most three times in all. After the timeout, return the default. If the
        gate stays open, or there is no `answer` callable, raise `Waiting`."""
        run, path, step = pending.run, pending.place.path, pending.place.step
        gate, details = self.marker, (self.name, self.annotation, dict(at.known))
        opened = OpenGate(self.question, pending.node_type, *details, None, path, step)
        stored_answer = run.past.gate_answer(opened)
        if stored_answer is not NOTHING:
            return stored_answer
        since, now = run.past.opened.get(opened.address), time()
        if gate.timeout is not None:
            opened = replace(opened, deadline=(since or now) + gate.timeout)
        if since is None:
            run.writer.write(GateOpened(now, path, step, opened))

        def check(answer: Any) -> None:
            # Validate here to ask the person again. The node validates every value once more.
            validate_values(opened.node_type, {opened.field_name: answer})

        value = await answer_in_time(run.options.answer, opened, check)
        if value is LATE:
            value = _use_default(opened, self)
        return await run.writer.settle_answer(run, opened, value)


def _use_default(opened: OpenGate, field: GateField) -> Any:
    """Return the default of the field after a timeout. Raise `GateError` if there is no default."""
    if not field.required:
        return field.info.get_default(call_default_factory=True, validated_data={})
    raise gate_error(
        opened,
        f"no answer to {opened.question!r} within {field.marker.timeout:g} s",
        "give the field a default, or give the gate more time",
        "bae-gate-timeout",
    )
