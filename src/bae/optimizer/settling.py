"""What comes of a question in a run: everything is asked that the run asks until it has the answer,
in the order and in as many calls as the run needs. `comparing.py` asks so, with a learned prompt
and without; `questions.py` has the questions themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from bae.evals.case_types import every_node
from bae.evals.judge import Refusals
from bae.exceptions import BaeLMError, FillError, RouteError
from bae.language_model import in_scene
from bae.lm.backend import choice_with
from bae.lm.prompts import names_of
from bae.node import Node
from bae.optimizer.calls import student_for
from bae.optimizer.questions import PartQuestion, Told
from bae.plan import NodePlan, plan_of
from bae.usage import Attempt, Event, metered

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm.backend import Backend
    from bae.lm.policies.learned import LearnedPrompt
    from bae.optimizer.questions import PartQuestions


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of a question: the answer, or why there is none; whether nothing had to be asked
    for again; and why the LM would not take it, as where it is too long. `chosen` says of a fill
    whether the run comes to it, where it is this question that decides: whether the LM chose the
    node when it was asked to choose and fill at once; None where it was not asked so."""

    answer: dict[str, Any] | None
    valid: bool
    why: str = ""
    not_taken: str = ""
    chosen: bool | None = None


class Settling:
    """Asks the questions of one part of a node as runs ask them.

    `lm` is what runs are given as theirs: which LM other nodes ask is seen by it. `graph` says
    from where a run comes: a fill that a run asks for together with the choice of it, in one call,
    is asked for so here, and by itself where there is no graph. An LM that refuses one question
    may take the next, but one that refuses all has failed: see `refusals.py`.
    """

    def __init__(self, of: PartQuestions, lm: Any, graph: Graph[Any, Any] | None = None) -> None:
        self._of = of
        self._lm = lm
        self._refusals = Refusals()
        self._choosers: dict[str, list[NodePlan]] = {}
        for cls in () if graph is None else every_node(graph):
            plan = plan_of(cls, strict=True)
            if not plan.written and len(plan.offered) > 1 and of.cls in plan.successors:
                self._choosers.setdefault(cls.__name__, []).append(plan)

    async def settled(
        self, backend: Backend, known: Mapping[str, Any], learned_prompt: LearnedPrompt | None
    ) -> Settled:
        """Ask until there is an answer, with a learned prompt for this part or without any."""
        with in_scene(self._of.scene):
            question = PartQuestion(self._of, known)
        asked = Told(self._of.taught(backend, question, learned_prompt), known)
        verdicts: list[str] = []

        def watch(event: Event) -> None:
            if isinstance(event, Attempt):
                verdicts.append(event.verdict)

        answer: dict[str, Any] | None = None
        why = not_taken = ""
        at_once = _AtOnce()
        with metered(watch), in_scene(self._of.scene):
            try:
                if self._of.part == "choice":
                    answer = await self._choice(backend, asked, question)
                else:
                    made = await self._made_at_once(backend, asked, question, at_once)
                    if made is None:
                        verdicts.clear()  # those were about the choice
                        made = await asked.fill(
                            self._of.cls, question.resolved, self._of.instruction, question.source
                        )
                    answer = self._of.said(made)
                self._refusals.taken()
            except (FillError, RouteError) as error:
                self._refusals.taken()
                why = error.message
            except BaeLMError as error:  # a run that asks this fails, and the next one need not
                if not self._refusals.is_about_the_question(error):
                    raise
                verdicts.clear()
                why = not_taken = error.message
        valid = bool(verdicts) and all(each == "valid" for each in verdicts)
        return Settled(answer, valid, why, not_taken, at_once.chosen)

    async def _choice(
        self, backend: Backend, asked: Backend, question: PartQuestion
    ) -> dict[str, Any]:
        """What is chosen. Where a run would have it filled by the very answer that chooses, and the
        learned prompt does not let it, it is filled here too: the run asks for that, and pays for
        it."""
        types, source = self._of.types, cast(Node, question.source)
        fillable = self._fillable(self._of.cls)
        try:
            chosen, made = await asked.route(source, types, fillable)
        except FillError as error:  # there is no valid fill, but there is a choice
            if error.node_type not in types:
                raise
            chosen = error.node_type
        else:
            if made is None and chosen in choice_with(backend, types, fillable, source).fillable:
                with suppress(FillError):
                    await asked.fill(chosen, {}, plan_of(chosen).instruction, source)
        names = {cls: name for name, cls in names_of(types).items()}
        return {"choice": names[chosen]}

    async def _made_at_once(
        self, backend: Backend, asked: Backend, question: PartQuestion, at_once: _AtOnce
    ) -> Node | None:
        """The node, where a run has it filled by the very answer that chooses it, and the model
        does choose it. With a learned prompt for the fill it does not, but still asks for the
        choice, and in other words than without: what it chooses is noted `at_once`."""
        cls, source = self._of.cls, question.source
        choosers = [] if source is None else self._choosers.get(type(source).__name__, [])
        if source is None or len(choosers) != 1:
            return None
        types, fillable = choosers[0].offered, self._fillable(choosers[0].node)
        if cls not in choice_with(backend, types, fillable, source).fillable:
            return None
        at_once.chosen = False
        try:
            chosen, made = await asked.route(source, types, fillable)
        except RouteError:
            return None
        except FillError as error:
            if error.node_type is cls:
                at_once.chosen = True
                raise
            return None
        at_once.chosen = chosen is cls
        return made if type(made) is cls else None

    def _fillable(self, cls: type[Node]) -> Sequence[type[Node]]:
        """The successors that ask the same LM in a run."""
        own = student_for(cls, self._lm)
        successors = plan_of(cls, strict=True).successors
        return [each for each in successors if _is_same(student_for(each, self._lm), own)]


@dataclass(slots=True)
class _AtOnce:
    """What an LM chose that was asked to choose and fill at once; None where it was not."""

    chosen: bool | None = None


def _is_same(lm: object, other: object) -> bool:
    return lm is other or (isinstance(lm, str) and lm == other)
