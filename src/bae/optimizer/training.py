"""Train one part of a node with one of DSPy's optimizers. An adapter asks bae's backends as a run
does, metrics score the answers on the event loop, and the part's predictor gets the result."""

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
from bae.lm.signatures import answer_class, dump_inputs, is_known, model_name
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
    """The training of one part of a node, on examples of different questions. Optimizers use its
    public attributes."""

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
        """The part's predictor with the plain prompt, for optimizers to copy."""
        self._questions, self._metric, self._reporter = questions, metric, reporter
        self._origins = examples
        plain = [_example(questions, example) for example in examples]
        self._places = {id(item): place for place, item in enumerate(plain)}
        self.trained, self.scored = self._split(plain)
        """The examples to make candidates from, and the examples to score candidates on."""
        # A single example is on both sides, so its score has no meaning.
        self._apart = not {id(item) for item in self.trained} & {id(item) for item in self.scored}
        self._board = Scoreboard(self.scored)
        self._bootstrapped: dict[str, tuple[float, bool]] = {}
        """For each question to the teacher: the score of its answer, and whether the answer is
        good."""

    async def run(self, optimizer: str) -> float | None:
        """Optimize the part's predictor in place. Return its mean score on the examples for
        scoring, or None if it has no such score."""
        adapter, reporter, bridge = self.adapter, self._reporter, self._bridge
        reporter.report()
        with silence_dspy():
            optimized = await bridge.run(lambda: self._work(optimizer))
        if bridge.spent is not None:
            reporter.note(
                f"the budget ran out, and this is the best until then: {bridge.spent.message}"
            )
        best: float | None = None
        # If the LM refused all questions, it would refuse this prompt too.
        if optimized is not None and (adapter.answered or not adapter.refusals):
            instruction, predictor = optimized.signature.instructions, self._questions.predictor
            predictor.signature = self._questions.signature.with_instructions(instruction)
            predictor.demos = [_example(self._questions, demo) for demo in optimized.demos]
            if self._apart:
                best = self._board.mean(adapter.candidate_of(instruction, optimized.demos))
        for note in (adapter.note(), self._teacher_note()):
            if note:
                reporter.note(note)
        reporter.phase = "done"
        reporter.report()
        return best

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent or the best possible score is reached."""
        return self._bridge.spent is not None or self._board.best == 1.0

    @property
    def threshold(self) -> float:
        """The lowest score of a good answer, for DSPy. DSPy reads 0 as no threshold, so 0 becomes
        -1."""
        return self.accept or -1.0

    def is_corrected(self, example: Any) -> bool:
        """Whether a person corrected the answer of an example."""
        return is_corrected(self._origins[self._places[id(example)]])

    def value(self, example: Any, given: Any, trace: Any = None) -> float:
        """Score an answer. DSPy calls this as its metric, and passes a trace while it
        bootstraps."""
        return self.score(example, given, trace)[0]

    def score(self, example: Any, prediction: Any, trace: Any) -> tuple[float, str]:
        """Score an answer, and return the score with its reason. Call this from a thread of the
        optimizer."""
        reporter, place = self._reporter, self._places[id(example)]
        answer = self._questions.answer(dict(prediction))
        candidate, question = self.adapter.candidate, self.adapter.question

        async def judge() -> tuple[float, str]:
            score = await self._metric(self._origins[place], answer, index=place, trace=trace)
            value = score.value
            reporter.scored += 1
            if reporter.phase == "trying":
                self._board.add(candidate, example, value)
                reporter.best = self._board.best if self._apart else None
            elif trace is not None:
                if self.is_corrected(example) and answer != self._questions.answer(dict(example)):
                    value = _NEVER_GOOD  # no other answer may replace a person's answer
                self._bootstrapped[question] = score.value, value >= self.accept
            reporter.report()
            return value, score.why

        return self._bridge.call(judge)

    def _split(self, examples: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the examples to make candidates from, and the examples to score candidates on. If
        the optimizer scores candidates, both lists have examples."""
        share = self.options.get("validation")
        if share is None:
            return examples, []
        # Split by the original examples, because only they have their runs.
        made, scored = sides(self._origins, share, self.seed)
        if not made or not scored:  # all examples come from one run
            half = max(1, round(len(examples) * (1 - share)))
            return examples[:half], examples[half:] or examples[:half]
        return [examples[place] for place in made], [examples[place] for place in scored]

    def _work(self, optimizer: str) -> Any:
        """Run an optimizer in this thread and in threads that it starts. Return its predictor, or
        None if the budget ran out before there was a predictor."""
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
                # DSPy's open progress bars print when they are freed. Free them here, where output
                # is silenced.
                clear_frames(error.__traceback__)
                raise

    def _teacher_note(self) -> str:
        """Return a note if the teacher has answered, but no answer is good. Otherwise return an
        empty text."""
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
    """Represents the student or the teacher for DSPy, which copies it with other `rollout_id`
    values. The adapter asks the real LM instead."""

    def __init__(self, role: Role) -> None:
        _dspy.LM.__init__(self, f"bae/{role}", cache=False, num_retries=0, engine=_NoEngine())
        self.role = role


class _NoEngine:
    """The engine of an LM that must be asked through the adapter."""

    def complete(self, request: Any) -> Any:
        """Raise, because the adapter must ask the real LM."""
        raise RuntimeError(
            "an LM of an optimization was asked past its adapter: ask through a dspy.Predict"
        )


class RequestRefused(Exception):
    """The LM refused the optimizer's own question, such as for a better instruction."""


class AskingAdapter(_dspy.Adapter):
    """Passes the questions of DSPy's programs to bae's backends, from any thread. `backends` are
    the backends by role. They are asked through the log `calls`."""

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
        """The number of questions that the LM refused, by the LM's message. These questions have no
        answer."""

    @property
    def candidate(self) -> str:
        """The instruction and demonstrations of this thread's last question, as one text."""
        return getattr(self._here, "candidate", "")

    @property
    def question(self) -> str:
        """This thread's last question with its candidate, as one text."""
        return getattr(self._here, "question", "")

    def candidate_of(self, instruction: str, demos: Sequence[Any]) -> str:
        """Return an instruction and demonstrations as one text, by which candidates are
        compared."""
        prompt = self._questions.learned_prompt(instruction, map(dict, demos))
        example_values = (
            []
            if prompt is None
            else [[example.known, example.answer] for example in prompt.examples]
        )
        return json.dumps([instruction, example_values])

    def note(self) -> str:
        """Return a note on the questions that the LM refused, or an empty text."""
        if not self.refusals:
            return ""
        count, why = self.refusals.total(), next(iter(self.refusals))
        if self.answered:
            total = count + self.answered
            return f"the LM refused {count} of {total} questions, which score 0: {why}"
        return (
            f"the LM refused all {count} questions, so the prompt stays as it is: {why}; if they "
            "are too long, show fewer examples: lower max_labeled_demos and max_bootstrapped_demos"
        )

    def __call__(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Any,
        demos: list[Any],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Ask an LM a question from DSPy. Return the outputs with the names of the signature."""
        settings = {**lm.kwargs, **lm_kwargs}
        role: Role = getattr(lm, "role", "student")
        backend = self._calls.around(self._backends[role], settings.get("rollout_id"))
        if any(is_known(field) for field in signature.input_fields.values()):
            if role == "teacher":
                # A backend's temperature is fixed. To get another answer in a further round, show
                # the examples in another order.
                rotation = settings.get("rollout_id") or 0
                demos = [*demos[rotation:], *demos[:rotation]]
            return [self._ask_part(backend, role, signature, demos, inputs)]
        return [self._ask_optimizer_question(backend, signature, inputs)]

    def _ask_part(
        self, backend: Backend, role: Role, signature: Any, demos: list[Any], inputs: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask an LM a question about the node's part, as a run does."""
        questions = self._questions
        learned_prompt = questions.learned_prompt(signature.instructions, map(dict, demos))
        known_values = questions.known(inputs)
        self._here.candidate = self.candidate_of(signature.instructions, demos)
        self._here.question = json.dumps([self.candidate, known_values])

        async def ask() -> dict[str, Any] | None:
            self._reporter.phase = "bootstrapping" if role == "teacher" else "trying"
            try:
                answer = await questions.ask_once(backend, known_values, learned_prompt)
            except BaeLMError as error:
                if not self._in_a_row.is_about_the_question(error):
                    raise
                self.refusals[error.message] += 1
                return None
            self.answered += 1
            self._in_a_row.reset()
            return answer

        return questions.outputs(self._bridge.call(ask))

    def _ask_optimizer_question(
        self, backend: Backend, signature: Any, inputs: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask the optimizer's own question, such as for a better instruction.

        If the LLM gives no new instruction, return the current instruction. Then the optimizer
        finds no improvement and continues. For any other question, raise the error.
        """
        target, instruction = answer_class(signature), signature.instructions
        known_values = dump_inputs(signature, inputs)
        text = text_of_question(instruction, known_values)
        exactly = Reworded(backend, lambda _: text)
        previous = node_like("Known", known_values.get("context", {}))
        current = {
            proposed_key: inputs[current_key]
            for proposed_key, current_key in _INSTRUCTIONS.items()
            if list(signature.output_fields) == [proposed_key] and current_key in inputs
        }

        async def ask() -> Any:
            self._reporter.phase = "proposing"
            try:
                answer = await ask_to_fill(exactly, target, {}, instruction, previous, PLAIN_SCENE)
            except FillError:
                if current:
                    self._reporter.note(
                        "the teacher gave no valid instruction, so an instruction did not change"
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
            return answer

        try:
            made = self._bridge.call(ask, expected=(FillError, RequestRefused))
        except (FillError, RequestRefused, OutOfBudget):
            if not current:
                raise
            return current
        return {
            name: getattr(made, model_name(name, info))
            for name, info in signature.output_fields.items()
        }


_INSTRUCTIONS: Final = {
    "proposed_instruction": "basic_instruction",  # MIPROv2
    "new_instruction": "current_instruction",  # GEPA
}
"""The output name of a proposed instruction, and the input name of the current instruction."""
_NEVER_GOOD: Final = float("-inf")
"""A score below every threshold."""


class Scoreboard:
    """The scores of candidates on the examples for scoring. Examples are compared by identity."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self._expected = {id(example) for example in examples}
        self._scores: dict[str, dict[int, float]] = {}
        self.best: float | None = None
        """The mean score of the best candidate. Only candidates with a score for every example
        count."""

    def add(self, candidate: str, example: Any, score: float) -> None:
        """Store the score of a candidate. If the example is not for scoring, ignore it."""
        if id(example) in self._expected:
            self._scores.setdefault(candidate, {})[id(example)] = score
            mean = self.mean(candidate)
            if mean is not None:
                self.best = mean if self.best is None else max(self.best, mean)

    def mean(self, candidate: str) -> float | None:
        """Return the mean score of a candidate, or None if it does not have a score for every
        example."""
        scores = self._scores.get(candidate, {})
        if not scores or len(scores) < len(self._expected):
            return None
        return sum(scores.values()) / len(scores)


def _without_defaults(questions: PartQuestions) -> Any:
    """Return the part's predictor without field defaults. DSPy would show a default where a value
    is missing, but a run does not show the LLM a field with its default."""
    fields = {name: copy(field) for name, field in questions.signature.fields.items()}
    for name in questions.signature.input_fields:
        fields[name].default = PydanticUndefined
    predictor = questions.predictor.deepcopy()
    predictor.signature = _dspy.Signature(fields, questions.signature.instructions)
    return predictor


def _example(questions: PartQuestions, given: Any) -> Any:
    """Return an example or a demonstration with only the fields of the signature. The LLM must not
    see the example's metadata or DSPy's own keys."""
    inputs = [name for name in questions.signature.input_fields if name in given]
    values = {name: given[name] for name in questions.signature.fields if name in given}
    return _dspy.Example(values).with_inputs(*inputs)
