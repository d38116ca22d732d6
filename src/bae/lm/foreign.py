"""Any LM as a backend, so that policies go around one that has the four methods and no more: a
`ScriptedLM`, or a class of your own. It is asked through those methods, as the run would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_json

from bae.lm.backend import Answer, Backend, Prompt, Question
from bae.lm.protocol import is_lm
from bae.lm.usage import Usage, metered, report

if TYPE_CHECKING:
    from bae.lm.protocol import LM
    from bae.node import Node


class Foreign(Backend):
    """An LM that is no backend. It asks again by itself, so nothing asks it again; and it chooses
    first and fills then."""

    def __init__(self, lm: LM) -> None:
        if isinstance(lm, type) or not is_lm(lm):
            from bae.failures import not_an_lm

            raise not_an_lm(lm)
        super().__init__(attempts=0, retries=0, one_call=False)
        self.lm = lm
        named = getattr(lm, "model", None)
        cls = type(lm)
        self.model = (
            named if isinstance(named, str) and named else f"{cls.__module__}.{cls.__qualname__}"
        )

    async def answer(self, prompt: Prompt) -> Answer:
        """Have the LM choose or fill. What it reports is the usage of the answer."""
        used: list[Usage] = []
        try:
            with metered() as used:
                if prompt.question.types:
                    value, text = await self._choose(prompt)
                else:
                    value, text = await self._fill(prompt.question)
        except BaseException as error:
            spent = Usage.total(used)
            if isinstance(error, Exception) and spent.calls:
                # Whoever asked counts a failure as one call.
                spent = replace(spent, calls=spent.calls - 1)
            if spent != Usage():
                report(spent)
            raise
        # An LM that reports nothing was asked all the same, and nobody knows what it cost.
        usage = Usage.total(used) if used else Usage(calls=1, cost=None)
        return Answer(text, usage, value=value)

    def least_cost(self, usage: Usage) -> float | None:
        """Nothing: whether its cost is known at all is seen by what it reports."""
        return 0.0

    async def aclose(self) -> None:
        """Close the LM, where it has an `aclose`."""
        close = getattr(self.lm, "aclose", None)
        if close is not None:
            await close()

    def __getattr__(self, name: str) -> Any:
        # What a written body knows its LM by, besides the four methods, is there still.
        if name == "lm":
            raise AttributeError(name)
        return getattr(self.lm, name)

    def __repr__(self) -> str:
        return repr(self.lm)

    async def _choose(self, prompt: Prompt) -> tuple[Any, str]:
        question = prompt.question
        context = question.context
        if context is None:
            context = {} if question.source is None else dict(question.source)
        chosen = await self.lm.choose_type(question.types, context)
        names: Sequence[str] = prompt.schema["properties"]["choice"]["enum"]
        for offered, name in zip(question.types, names, strict=True):
            if offered is chosen:
                return {"choice": name}, ""
        return {"choice": repr(chosen)}, ""  # nothing that was offered, as the asking layer says

    async def _fill(self, question: Question) -> tuple[Any, str]:
        from bae.failures import filled_other
        from bae.plan import plan_of

        target = cast("type[Node]", question.target)
        node = await self.lm.fill(
            target, question.resolved, question.instruction, source=question.source
        )
        if type(node) is not target:
            raise filled_other(plan_of(target), node)
        try:
            text = to_json({name: getattr(node, name) for name in question.fields}).decode()
        except (ValueError, TypeError):  # what JSON cannot say
            text = ""
        return node, text
