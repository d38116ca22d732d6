"""How DSPy's programs ask bae's backends: an adapter that asks exactly as a run does, from
any thread, and `dspy.LM`s that stand for the LMs of an optimization."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from bae.evals.judge import Refusals
from bae.exceptions import BaeLMError, FillError, text_of
from bae.lm.backend import ask_to_fill
from bae.lm.extras import load_dspy
from bae.lm.prompts import text_of_question
from bae.lm.signatures import answer_class, is_known, known_inputs, model_name
from bae.optimizer.bridge import Bridge, OutOfBudget
from bae.optimizer.questions import Reworded, node_like

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.optimizer.calls import CallLog
    from bae.optimizer.optimization import Phase, ProgressReporter
    from bae.optimizer.questions import PartQuestions

Role = Literal["student", "teacher"]

_dspy = load_dspy("optimize_node")


class AskingLM(_dspy.LM):
    """Stands for one of the LMs of an optimization: the adapter knows which. DSPy passes it around
    and copies it with another `rollout_id`; it is never asked itself."""

    def __init__(self, role: Role) -> None:
        _dspy.LM.__init__(self, f"bae/{role}", cache=False, num_retries=0, engine=_NoEngine())
        self.role = role


class _NoEngine:
    """The engine of an LM that is asked through the adapter alone."""

    def complete(self, request: Any) -> Any:
        """Refuse."""
        raise RuntimeError(
            "an LM of an optimization was asked past its adapter: ask through a dspy.Predict"
        )


class Refused(Exception):
    """The LM refused a request of an optimizer's own."""


class AskingAdapter(_dspy.Adapter):
    """Asks bae's backends what DSPy's programs ask, from any thread.

    `backends` are asked through `calls`, in their roles. `candidate` is what this thread has asked
    with last: the instruction and the demonstrations; `question` adds what it has asked. A question
    that the LM refused has no answer, and is counted in `refusals` by the message.
    `may_ask_teacher` raises for a question that the teacher is not to be asked.
    """

    def __init__(
        self,
        bridge: Bridge,
        calls: CallLog,
        backends: Mapping[Role, Backend],
        questions: PartQuestions,
        reporter: ProgressReporter,
        may_ask_teacher: Callable[[str], None],
    ) -> None:
        _dspy.Adapter.__init__(self)
        self._bridge = bridge
        self._calls = calls
        self._backends = backends
        self._questions = questions
        self._reporter = reporter
        self._may_ask_teacher = may_ask_teacher
        self.answered = 0
        self._refusals = Refusals()
        self.refusals: Counter[str] = Counter()
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
        """Ask, and return the outputs by their names in the signature."""
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
            self._may_ask_teacher(self.question)

        async def asked() -> dict[str, Any] | None:
            self._reporter.phase = phase
            try:
                answer = await questions.ask_once(backend, known, learned_prompt)
            except BaeLMError as error:
                if not self._refusals.is_about_the_question(error):
                    raise
                self.refusals[error.message] += 1
                return None
            self.answered += 1
            self._refusals.reset()
            return answer

        return questions.outputs(self._bridge.call(asked))

    def _program(self, backend: Backend, signature: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        target, instruction = answer_class(signature), signature.instructions
        known = known_inputs(signature, inputs)
        text = text_of_question(instruction, known)
        exactly = Reworded(backend, lambda _: text)
        source = node_like("Known", known.get("context", {}))

        async def asked() -> Any:
            self._reporter.phase = "proposing"
            try:
                made = await ask_to_fill(exactly, target, {}, instruction, source)
            except BaeLMError as error:
                if not self._refusals.is_about_the_question(error):
                    raise
                raise Refused(error.message) from error
            self._reporter.report()
            return made

        try:
            made = self._bridge.call(asked, expected=(FillError, Refused))
        except (FillError, Refused, OutOfBudget) as error:
            current = _current_instruction(signature, inputs)
            if current is None:
                raise
            if isinstance(error, FillError):
                self._note("the teacher gave no valid instruction, so one was left as it was")
            elif isinstance(error, Refused):
                self._note(f"the teacher could not be asked for an instruction: {text_of(error)}")
            return current
        return {n: getattr(made, model_name(n, f)) for n, f in signature.output_fields.items()}

    def _note(self, text: str) -> None:
        async def report() -> None:
            self._reporter.note(text)

        self._bridge.call(report)


def _current_instruction(signature: Any, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The current instruction, if a better one was asked for; None for other questions. An
    optimizer finds it no better, and continues."""
    for output, given in _INSTRUCTIONS.items():
        if list(signature.output_fields) == [output] and given in inputs:
            return {output: inputs[given]}
    return None


_INSTRUCTIONS = {
    "proposed_instruction": "basic_instruction",  # MIPROv2
    "new_instruction": "current_instruction",  # GEPA
}
"""The names of a proposed and of the current instruction in optimizers."""
