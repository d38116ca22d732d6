"""One part of a node trained by one of DSPy's optimizers: an adapter asks bae's backends as a run
does, answers are scored on the event loop, and the result is put into the part's predictor."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic_core import PydanticUndefined

from bae.evals.judge import Refusals
from bae.exceptions import BaeLMError, FillError, text_of
from bae.language_model import PLAIN_SCENE
from bae.lm.backend import ask_to_fill
from bae.lm.extras import load_dspy
from bae.lm.signatures import answer_class, is_known, known_inputs, model_name
from bae.optimizer.bridge import QUIET, Bridge, OutOfBudget, silence_dspy
from bae.optimizer.optimizers import run_optimizer
from bae.optimizer.questions import Reworded, node_like
from bae.optimizer.splits import is_corrected, sides
from bae.prompts.values import text_of_question

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.optimizer.calls import CallLog
    from bae.optimizer.metrics import PartMetric
    from bae.optimizer.optimization import ProgressReporter
    from bae.optimizer.questions import PartQuestions

Role = Literal["student", "teacher"]

_dspy = load_dspy("optimize_node")


class Training:
    """One part of a node in training, with examples of which no two ask the same.

    For optimizers it has the fresh `predictor`, the examples that candidates are `made` from and
    those that they are `scored` on, the `student` and the `teacher`, and what scores an answer.
    """

    def __init__(
        self,
        questions: PartQuestions,
        examples: list[Any],
        metric: PartMetric,
        backends: Mapping[Any, Backend],
        options: Mapping[str, Any],
        *,
        log: CallLog,
        reporter: ProgressReporter,
        budget: Budget | None,
        seed: int,
        concurrency: int,
    ) -> None:
        self.options, self.seed, self.concurrency = options, seed, concurrency
        self.calls = None if budget is None else budget.calls
        accept = options.get("accept")
        self.accept: float = metric.accept if accept is None else accept
        self.student, self.teacher = AskingLM("student"), AskingLM("teacher")
        self._bridge = Bridge(budget)
        self.adapter = AskingAdapter(self._bridge, log, backends, questions, reporter)
        self.predictor = _without_defaults(questions)
        self._questions, self._metric, self._reporter = questions, metric, reporter
        self._origins = examples
        plain = [_example(questions, each) for each in examples]
        self._places = {id(each): place for place, each in enumerate(plain)}
        self.made, self.scored = self._split(plain)
        # With a single question it is both, and a score of it says nothing.
        self._apart = not {id(each) for each in self.made} & {id(each) for each in self.scored}
        self._board = Scoreboard(self.scored)
        self._bootstrapped: dict[str, tuple[float, bool]] = {}
        """The scores of the teacher's answers by what was asked, and whether they are good."""

    async def run(self, optimizer: str) -> float | None:
        """Optimize the predictor of the part, in place. Returns the score of what was found, if it
        has one: its mean over the examples that candidates are scored on and not made from."""
        adapter, reporter, bridge = self.adapter, self._reporter, self._bridge
        reporter.report()
        with silence_dspy():
            found = await bridge.run(lambda: self._work(optimizer))
        if bridge.spent is not None:
            reporter.note(
                f"the budget ran out, and this is the best until then: {bridge.spent.message}"
            )
        best: float | None = None
        # If all was refused, what was found was never asked, and could not be.
        if found is not None and (adapter.answered or not adapter.refusals):
            instruction, predictor = found.signature.instructions, self._questions.predictor
            predictor.signature = self._questions.signature.with_instructions(instruction)
            predictor.demos = [_example(self._questions, each) for each in found.demos]
            if self._apart:
                best = self._board.mean(adapter.candidate_of(instruction, found.demos))
        for note in (adapter.note(), self._teacher_note()):
            if note:
                reporter.note(note)
        reporter.phase = "done"
        reporter.report()
        return best

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to spend, or to gain."""
        return self._bridge.spent is not None or self._board.best == 1.0

    @property
    def threshold(self) -> float:
        """From which score on an answer is good; 0 would mean none to DSPy."""
        return self.accept or -1.0

    def is_corrected(self, example: Any) -> bool:
        """Whether a person corrected the answer of an example."""
        return is_corrected(self._origins[self._places[id(example)]])

    def value(self, example: Any, given: Any, trace: Any = None) -> float:
        """The score alone, as DSPy calls a metric: with a trace while it bootstraps."""
        return self.score(example, given, trace)[0]

    def score(self, example: Any, prediction: Any, trace: Any) -> tuple[float, str]:
        """The score of an answer, and why; from a thread of the optimizer."""
        reporter, place = self._reporter, self._places[id(example)]
        answer = self._questions.answer(dict(prediction))
        candidate, question = self.adapter.candidate, self.adapter.question

        async def judged() -> tuple[float, str]:
            found = await self._metric(self._origins[place], answer, index=place, trace=trace)
            value = found.value
            reporter.scored += 1
            if reporter.phase == "trying":
                self._board.add(candidate, example, value)
                reporter.best = self._board.best if self._apart else None
            elif trace is not None:
                if self.is_corrected(example) and answer != self._questions.answer(dict(example)):
                    value = _NEVER  # no other answer replaces a person's
                self._bootstrapped[question] = found.value, value >= self.accept
            reporter.report()
            return value, found.why

        return self._bridge.call(judged)

    def _split(self, examples: list[Any]) -> tuple[list[Any], list[Any]]:
        """The examples to make candidates from, and those to score them on. There are some of each,
        where an optimizer scores candidates."""
        share = self.options.get("validation")
        if share is None:
            return examples, []
        # By what they were made from: that says which runs they belong to.
        made, scored = sides(self._origins, share, self.seed)
        if not made or not scored:  # all of one run
            half = max(1, round(len(examples) * (1 - share)))
            return examples[:half], examples[half:] or examples[:half]
        return [examples[place] for place in made], [examples[place] for place in scored]

    def _work(self, optimizer: str) -> Any:
        """Have an optimizer do its work, in this thread and those that it starts. Returns the
        predictor that it found; None if there was no budget for that."""
        with _dspy.context(
            lm=self.student,
            adapter=self.adapter,
            trace=None,
            callbacks=[],
            send_stream=None,
            track_usage=False,
            disable_history=True,
            warn_on_type_mismatch=False,
            max_errors=10**9,
            num_threads=self.concurrency,
            **{QUIET: True},
        ):
            try:
                return run_optimizer(optimizer, self)
            except OutOfBudget:
                return None
            except BaseException as error:
                # Progress bars that DSPy left open print when they are freed: free them here, where
                # it is silent.
                clear_frames(error.__traceback__)
                raise

    def _teacher_note(self) -> str:
        """A note if the teacher has answered, and none of its answers is good."""
        answers = self._bootstrapped.values()
        if not self.adapter.answered or not answers or any(good for _, good in answers):
            return ""
        best = max(score for score, _ in answers)
        return (
            f"none of {len(answers)} answers of the teacher were good enough to be examples: it "
            f"takes a score of {self.accept:g}, and the best had {best:.2g}; give another teacher, "
            "or a lower accept"
        )


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


class RequestRefused(Exception):
    """The LM refused a request of an optimizer's own."""


class AskingAdapter(_dspy.Adapter):
    """Asks bae's backends what DSPy's programs ask, from any thread.

    `backends` are asked through `calls`, in their roles. `candidate` is what this thread has asked
    with last: the instruction and the demonstrations; `question` adds what it has asked. A question
    that the LM refused has no answer, and is counted in `refusals` by the message.
    """

    def __init__(
        self,
        bridge: Bridge,
        calls: CallLog,
        backends: Mapping[Role, Backend],
        questions: PartQuestions,
        reporter: ProgressReporter,
    ) -> None:
        _dspy.Adapter.__init__(self)
        self._bridge = bridge
        self._calls = calls
        self._backends = backends
        self._questions = questions
        self._reporter = reporter
        self._in_a_row = Refusals()
        self._here = threading.local()
        self.answered = 0
        self.refusals: Counter[str] = Counter()

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
        prompt = self._questions.learned_prompt(instruction, map(dict, demos))
        shown = [] if prompt is None else [[each.known, each.answer] for each in prompt.examples]
        return json.dumps([instruction, shown])

    def note(self) -> str:
        """A note on questions that the LM refused; empty if it took all."""
        if not self.refusals:
            return ""
        count, why = self.refusals.total(), next(iter(self.refusals))
        if self.answered:
            every = count + self.answered
            return f"the LM refused {count} of {every} questions, which score 0: {why}"
        return (
            f"the LM refused all {count} questions, so it stays as it is: {why}; if they are too "
            "long, show fewer examples: lower max_labeled_demos and max_bootstrapped_demos"
        )

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
                rotation = given.get("rollout_id") or 0
                demos = [*demos[rotation:], *demos[:rotation]]
            return [self._part(backend, role, signature, demos, inputs)]
        return [self._program(backend, signature, inputs)]

    def _part(
        self, backend: Backend, role: Role, signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask what a run asks."""
        questions = self._questions
        learned_prompt = questions.learned_prompt(signature.instructions, map(dict, demos))
        known = questions.known(inputs)
        self._here.candidate = self.candidate_of(signature.instructions, demos)
        self._here.question = json.dumps([self.candidate, known])

        async def asked() -> dict[str, Any] | None:
            self._reporter.phase = "bootstrapping" if role == "teacher" else "trying"
            try:
                answer = await questions.ask_once(backend, known, learned_prompt)
            except BaeLMError as error:
                if not self._in_a_row.is_about_the_question(error):
                    raise
                self.refusals[error.message] += 1
                return None
            self.answered += 1
            self._in_a_row.reset()
            return answer

        return questions.outputs(self._bridge.call(asked))

    def _program(self, backend: Backend, signature: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """Ask what an optimizer wants to know for itself, such as a better instruction. Where there
        is no answer the current instruction stays: an optimizer finds it no better, and
        continues."""
        target, instruction = answer_class(signature), signature.instructions
        known = known_inputs(signature, inputs)
        text = text_of_question(instruction, known)
        exactly = Reworded(backend, lambda _: text)
        previous = node_like("Known", known.get("context", {}))
        current = {
            proposed: inputs[given]
            for proposed, given in _INSTRUCTIONS.items()
            if list(signature.output_fields) == [proposed] and given in inputs
        }

        async def asked() -> Any:
            self._reporter.phase = "proposing"
            try:
                made = await ask_to_fill(exactly, target, {}, instruction, previous, PLAIN_SCENE)
            except FillError:
                if current:
                    self._reporter.note(
                        "the teacher gave no valid instruction, so one was left as it was"
                    )
                raise
            except BaeLMError as error:
                if not self._in_a_row.is_about_the_question(error):
                    raise
                if current:
                    self._reporter.note(
                        f"the teacher could not be asked for an instruction: {text_of(error)}"
                    )
                raise RequestRefused(error.message) from error
            self._reporter.report()
            return made

        try:
            made = self._bridge.call(asked, expected=(FillError, RequestRefused))
        except (FillError, RequestRefused, OutOfBudget):
            if not current:
                raise
            return current
        return {n: getattr(made, model_name(n, f)) for n, f in signature.output_fields.items()}


_INSTRUCTIONS: Final = {
    "proposed_instruction": "basic_instruction",  # MIPROv2
    "new_instruction": "current_instruction",  # GEPA
}
"""The names of a proposed and of the current instruction in optimizers."""
_NEVER: Final = float("-inf")
"""A score that is never good enough."""


class Scoreboard:
    """Mean scores, by candidate, over the examples that all candidates are scored on. These have to
    stay the same objects."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self._expected = {id(each) for each in examples}
        self._scores: dict[str, dict[int, float]] = {}
        self.best: float | None = None
        """The mean of the best candidate with a score for each example."""

    def add(self, candidate: str, example: Any, score: float) -> None:
        """Note a score."""
        if id(example) in self._expected:
            self._scores.setdefault(candidate, {})[id(example)] = score
            mean = self.mean(candidate)
            if mean is not None:
                self.best = mean if self.best is None else max(self.best, mean)

    def mean(self, candidate: str) -> float | None:
        """The mean score of a candidate; None if it has not been scored on each example."""
        scores = self._scores.get(candidate, {})
        if not scores or len(scores) < len(self._expected):
            return None
        return sum(scores.values()) / len(scores)


def _without_defaults(questions: PartQuestions) -> Any:
    """The predictor for DSPy: without defaults, which it would put in where an example has nothing.
    A run does not show the model a field with its default."""
    fields = {name: copy(field) for name, field in questions.signature.fields.items()}
    for name in questions.signature.input_fields:
        fields[name].default = PydanticUndefined
    predictor = questions.predictor.deepcopy()
    predictor.signature = _dspy.Signature(fields, questions.signature.instructions)
    return predictor


def _example(questions: PartQuestions, given: Any) -> Any:
    """An example or a demonstration with the fields of the signature alone: where it comes from,
    and what DSPy notes beside them, is nothing for a model to see."""
    inputs = [name for name in questions.signature.input_fields if name in given]
    values = {name: given[name] for name in questions.signature.fields if name in given}
    return _dspy.Example(values).with_inputs(*inputs)
