"""How DSPy's programs ask while they are optimised: an adapter hands each question over to bae's
backends, on the event loop. A part of a node is asked as a run asks it, see `questions.py`; what
an optimiser asks for itself, such as a better instruction, goes with a JSON schema as well."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from bae.evals.judge import Refusals
from bae.exceptions import BaeLMError, FillError, text_of
from bae.lm.backend import ask_to_fill
from bae.lm.extras import load_dspy
from bae.lm.prompts import text_of_question
from bae.lm.signatures import answer_class, is_known, known_inputs, model_name
from bae.optimizer.bridging import Bridge, OutOfBudget
from bae.optimizer.questions import Exactly, recalled

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.optimizer.calls import CallLog
    from bae.optimizer.progress import Phase, Telling
    from bae.optimizer.questions import PartQuestions
    from bae.optimizer.teaching import Teaching

Role = Literal["student", "teacher"]

_dspy = load_dspy("optimize_node")


def asking_lm(role: Role) -> Any:
    """A `dspy.LM` that stands for one of the LMs of an optimisation: the adapter knows which. DSPy
    hands it about and copies it with another `rollout_id`; it is never asked itself."""
    return _lm_class()(role)


class NotTaken(Exception):
    """The LM would not take a request of an optimiser's own."""


class AskingAdapter(_dspy.Adapter):
    """Asks bae's backends what DSPy's programs ask, from any thread.

    `backends` are asked through `calls`, in their roles. `candidate` is what this thread has asked
    with last: the instruction and the demonstrations; `question` adds what it has asked. A question
    that the LM would not take has no answer, and is counted in `not_taken` by what it said.
    """

    def __init__(
        self,
        bridge: Bridge,
        calls: CallLog,
        backends: Mapping[Role, Backend],
        questions: PartQuestions,
        telling: Telling,
        teaching: Teaching,
    ) -> None:
        _dspy.Adapter.__init__(self)
        self._bridge = bridge
        self._calls = calls
        self._backends = backends
        self._questions = questions
        self._telling = telling
        self._teaching = teaching
        self.taken = 0
        self._refusals = Refusals()
        self.not_taken: Counter[str] = Counter()
        self._here = threading.local()

    @property
    def candidate(self) -> str:
        """What this thread has asked with last, as one text."""
        return getattr(self._here, "candidate", "")

    @property
    def question(self) -> str:
        """What this thread has asked last, and with what, as one text."""
        return getattr(self._here, "question", "")

    def candidate_of(self, instruction: str, demos: Sequence[Any]) -> str:
        """An instruction and demonstrations as one text."""
        learned_prompt = self._questions.learned_prompt(instruction, map(dict, demos))
        shown = (
            [] if learned_prompt is None else [[e.known, e.answer] for e in learned_prompt.examples]
        )
        return json.dumps([instruction, shown])

    def __call__(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Ask, and give the outputs by their names in the signature."""
        given = {**lm.kwargs, **lm_kwargs}
        role: Role = getattr(lm, "role", "student")
        backend = self._calls.around(self._backends[role], given.get("rollout_id"))
        if any(is_known(field) for field in signature.input_fields.values()):
            if role == "teacher":
                # A backend has its temperature for good: what a further round can do to have
                # another answer is to show the examples in another order.
                turn = given.get("rollout_id") or 0
                demos = [*demos[turn:], *demos[:turn]]
            return [self._part(backend, role, signature, demos, inputs)]
        return [self._program(backend, signature, inputs)]

    async def acall(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """The same for async programs, in a thread."""
        return await asyncio.to_thread(self, lm, lm_kwargs, signature, demos, inputs)

    def _part(
        self, backend: Backend, role: Role, signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> dict[str, Any]:
        questions = self._questions
        learned_prompt = questions.learned_prompt(signature.instructions, map(dict, demos))
        known = questions.known(inputs)
        self._here.candidate = self.candidate_of(signature.instructions, demos)
        self._here.question = json.dumps([self.candidate, known])
        phase: Phase = "trying"
        if role == "teacher":
            phase = "bootstrapping"
            self._teaching.may_ask(self.question)

        async def asked() -> dict[str, Any] | None:
            self._telling.phase = phase
            try:
                answer = await questions.answered(backend, known, learned_prompt)
            except BaeLMError as error:
                if not self._refusals.is_about_the_question(error):
                    raise
                self.not_taken[error.message] += 1
                return None
            self.taken += 1
            self._refusals.taken()
            return answer

        return questions.outputs(self._bridge.call(asked))

    def _program(self, backend: Backend, signature: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        target, instruction = answer_class(signature), signature.instructions
        known = known_inputs(signature, inputs)
        exactly = Exactly(backend, text_of_question(instruction, known))
        source = recalled("Known", known.get("context", {}))

        async def asked() -> Any:
            self._telling.phase = "proposing"
            try:
                made = await ask_to_fill(exactly, target, {}, instruction, source)
            except BaeLMError as error:
                if not self._refusals.is_about_the_question(error):
                    raise
                raise NotTaken(error.message) from error
            self._telling.tell()
            return made

        try:
            made = self._bridge.call(asked, expected=(FillError, NotTaken))
        except (FillError, NotTaken, OutOfBudget) as error:
            kept = _as_it_is(signature, inputs)
            if kept is None:
                raise
            if isinstance(error, FillError):
                self._note("the teacher gave no valid instruction, so one was left as it was")
            elif isinstance(error, NotTaken):
                self._note(f"the teacher could not be asked for an instruction: {text_of(error)}")
            return kept
        return {n: getattr(made, model_name(n, f)) for n, f in signature.output_fields.items()}

    def _note(self, text: str) -> None:
        async def noted() -> None:
            self._telling.note(text)

        self._bridge.call(noted)


def _as_it_is(signature: Any, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where a better instruction was asked for, the one there is; None for other questions. An
    optimiser finds it no better, and goes on."""
    for output, given in _INSTRUCTIONS.items():
        if list(signature.output_fields) == [output] and given in inputs:
            return {output: inputs[given]}
    return None


_INSTRUCTIONS = {
    "proposed_instruction": "basic_instruction",  # MIPROv2
    "new_instruction": "current_instruction",  # GEPA
}
"""What optimisers call the instruction that they ask for, and the one there is."""


@cache
def _lm_class() -> Any:
    dspy: Any = load_dspy("optimize_node")

    class AskingLM(dspy.LM):
        """Stands for an LM of bae."""

        def __init__(self, role: Role) -> None:
            dspy.LM.__init__(self, f"bae/{role}", cache=False, num_retries=0, engine=_Nobody())
            self.role = role

    return AskingLM


class _Nobody:
    """The engine of an LM that is not asked past the adapter."""

    def complete(self, request: Any) -> Any:
        """Refuse."""
        raise RuntimeError(
            "an LM of an optimisation was asked past its adapter: ask through a dspy.Predict"
        )
