"""One part of a node trained by one of DSPy's optimizers: an adapter asks bae's backends as a run
does, answers are scored on the event loop, and the result is put into the part's predictor."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic_core import PydanticUndefined

from bae.evals.judge import Refusals
from bae.exceptions import BaeLMError, FillError, text_of
from bae.lm.backend import ask_to_fill
from bae.lm.extras import load_dspy
from bae.lm.prompts import text_of_question
from bae.lm.signatures import answer_class, is_known, known_inputs, model_name
from bae.optimizer.bridge import QUIET, Bridge, OutOfBudget, silence_dspy
from bae.optimizer.optimizers import Training, run_optimizer, split_validation
from bae.optimizer.questions import Reworded, node_like
from bae.optimizer.splits import is_corrected

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.optimizer.calls import CallLog
    from bae.optimizer.metrics import PartMetric
    from bae.optimizer.optimization import Phase, ProgressReporter
    from bae.optimizer.questions import PartQuestions


Role = Literal["student", "teacher"]

_dspy = load_dspy("optimize_node")


def asking_lm(role: Role) -> Any:
    """A `dspy.LM` that stands for one of the LMs of an optimization: the adapter knows which. DSPy
    hands it about and copies it with another `rollout_id`; it is never asked itself."""
    return _lm_class()(role)


class Refused(Exception):
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
        teacher_answers: TeacherAnswers,
    ) -> None:
        _dspy.Adapter.__init__(self)
        self._bridge = bridge
        self._calls = calls
        self._backends = backends
        self._questions = questions
        self._reporter = reporter
        self._teacher_answers = teacher_answers
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
            self._teacher_answers.may_ask(self.question)

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
            kept = _as_it_is(signature, inputs)
            if kept is None:
                raise
            if isinstance(error, FillError):
                self._note("the teacher gave no valid instruction, so one was left as it was")
            elif isinstance(error, Refused):
                self._note(f"the teacher could not be asked for an instruction: {text_of(error)}")
            return kept
        return {n: getattr(made, model_name(n, f)) for n, f in signature.output_fields.items()}

    def _note(self, text: str) -> None:
        async def noted() -> None:
            self._reporter.note(text)

        self._bridge.call(noted)


def _as_it_is(signature: Any, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where a better instruction was asked for, the one there is; None for other questions. An
    optimizer finds it no better, and continues."""
    for output, given in _INSTRUCTIONS.items():
        if list(signature.output_fields) == [output] and given in inputs:
            return {output: inputs[given]}
    return None


_INSTRUCTIONS = {
    "proposed_instruction": "basic_instruction",  # MIPROv2
    "new_instruction": "current_instruction",  # GEPA
}
"""What optimizers call the instruction that they ask for, and the one there is."""


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
            "an LM of an optimization was asked past its adapter: ask through a dspy.Predict"
        )


class TeacherStopped(Exception):
    """The teacher is not asked: its answers have not been good enough, or there is nothing new to
    ask. DSPy continues with the next example."""


class TeacherAnswers:
    """What became of the teacher's answers, from the thread that bootstraps.

    An answer is good with a score of `accept`; after `fruitless_limit` that were not, only what was
    asked before may be asked, which costs nothing.
    """

    def __init__(self, accept: float, fruitless_limit: int) -> None:
        self.accept = accept
        self._most = fruitless_limit
        self._scores: dict[str, float] = {}
        self._good: set[str] = set()
        self._refused = 0

    def may_ask(self, question: str) -> None:
        """Raise `TeacherStopped` where the teacher is to be asked no more."""
        if question not in self._scores and self._fruitless >= self._most:
            self._refused += 1
            raise TeacherStopped(f"{self._fruitless} answers of the teacher were not good enough")

    def record(self, question: str, score: float, good: bool) -> None:
        """Note what an answer was worth, and whether it can be an example."""
        self._scores[question] = score
        self._good.update([question] if good else [])

    def note(self) -> str:
        """What is worth knowing about it; empty where nothing is."""
        asked, fruitless = len(self._scores), self._fruitless
        if not asked or (fruitless < asked and not self._refused):
            return ""
        best = max(self._scores.values())
        more = "a higher max_fruitless" if fruitless < asked else "a lower accept"
        outcome = (
            f"{fruitless} of {asked} answers of the teacher were not good enough to be examples"
            if fruitless < asked
            else f"no answer of the teacher, of {asked}, was good enough to be an example"
        )
        ended = ", and it was asked no more" if self._refused else ""
        return (
            f"{outcome}{ended}: it takes a score of {self.accept:g}, and the best had {best:.2g}; "
            f"give another teacher, or {more}"
        )

    @property
    def _fruitless(self) -> int:
        return len(self._scores) - len(self._good)


def fruitless_limit(options: Mapping[str, Any]) -> int:
    """How many answers of the teacher may be of no use, by the options of an optimizer."""
    most = options.get("max_fruitless")
    if most is not None:
        return most
    # MIPROv2 makes two of its sets of examples without a teacher.
    sets = max(1, options.get("num_candidates", 0) - 2)
    return sets * (3 * options.get("max_bootstrapped_demos", 0) + 4)


class Scoreboard:
    """Mean scores, by candidate, over the examples that all candidates are to be scored on."""

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._scores: dict[str, dict[int, float]] = {}
        self._best: float | None = None

    def expect(self, examples: Sequence[Any]) -> None:
        """Take these for the examples that count. They have to stay the same objects."""
        self._expected = {id(each) for each in examples}

    def add(self, candidate: str, example: Any, score: float) -> float | None:
        """Note a score, and answer the mean of the best candidate with a score for each example;
        None where there is none yet."""
        if id(example) in self._expected:
            scores = self._scores.setdefault(candidate, {})
            scores[id(example)] = score
            mean = self.mean(candidate)
            if mean is not None:
                self._best = mean if self._best is None else max(self._best, mean)
        return self._best

    @property
    def best(self) -> float | None:
        """The mean of the best candidate with a score for each example."""
        return self._best

    def mean(self, candidate: str) -> float | None:
        """The mean score of a candidate; None where it has not been scored on each example."""
        scores = self._scores.get(candidate, {})
        if not scores or len(scores) < len(self._expected):
            return None
        return sum(scores.values()) / len(scores)


async def optimize_part(
    questions: PartQuestions,
    examples: list[Any],
    metric: PartMetric,
    backends: Mapping[Any, Backend],
    optimizer: str,
    options: Mapping[str, Any],
    *,
    log: CallLog,
    reporter: ProgressReporter,
    budget: Budget | None,
    seed: int,
    concurrency: int,
) -> float | None:
    """Optimize the predictor of a part, in place, with examples of which no two ask the same.
    Returns the score of what was found, if it has one: its mean over the validation examples, which
    candidates are scored on and not made from."""
    dspy = load_dspy("optimize_node")
    bridge = Bridge(budget)
    accept = options.get("accept")
    accept = metric.accept if accept is None else accept
    teacher_answers = TeacherAnswers(accept, fruitless_limit(options))
    adapter = AskingAdapter(bridge, log, backends, questions, reporter, teacher_answers)
    plain = [_without_origin(questions, each) for each in examples]
    places = {id(each): index for index, each in enumerate(plain)}
    board = Scoreboard()

    def score(example: Any, prediction: Any, trace: Any) -> tuple[float, str]:
        answer = questions.answer(dict(prediction))
        candidate, question = adapter.candidate, adapter.question
        place = places[id(example)]

        async def judged() -> tuple[float, str]:
            found = await metric(examples[place], answer, index=place, trace=trace)
            value = found.value
            reporter.scored += 1
            if reporter.phase == "trying":
                best = board.add(candidate, example, value)
                reporter.best = best if apart else None
            elif trace is not None:
                if is_corrected(examples[place]) and answer != questions.answer(dict(example)):
                    value = _NEVER  # no other answer replaces a person's
                teacher_answers.record(question, found.value, value >= accept)
            reporter.report()
            return value, found.why

        return bridge.call(judged)

    training = Training(
        predictor=_without_defaults(questions),
        examples=plain,
        origins=examples,
        score=score,
        accept=accept,
        student=asking_lm("student"),
        teacher=asking_lm("teacher"),
        adapter=adapter,
        seed=seed,
        concurrency=concurrency,
        calls=None if budget is None else budget.calls,
        is_over=lambda: bridge.spent is not None or board.best == 1.0,
        options=options,
    )
    made, scored = split_validation(training)
    board.expect(scored)
    # With a single question it is both, and a score of it says nothing.
    apart = not {id(each) for each in made} & {id(each) for each in scored}

    def work() -> Any:
        with dspy.context(
            lm=training.student,
            adapter=adapter,
            trace=None,
            callbacks=[],
            send_stream=None,
            track_usage=False,
            disable_history=True,
            warn_on_type_mismatch=False,
            max_errors=10**9,
            num_threads=concurrency,
            **{QUIET: True},
        ):
            try:
                return run_optimizer(optimizer, training, made, scored)
            except OutOfBudget:
                return None
            except BaseException as error:
                # Bars that DSPy has left open say so when they are let go of: that is to be here,
                # where nobody hears it.
                clear_frames(error.__traceback__)
                raise

    reporter.report()
    with silence_dspy():
        found = await bridge.run(work)
    if bridge.spent is not None:
        reporter.note(
            f"the budget ran out, and this is the best until then: {bridge.spent.message}"
        )
    best: float | None = None
    if adapter.refusals and not adapter.answered:
        # What was found was never questions, and could not be.
        reporter.note(_all_refused(adapter))
    elif found is not None:
        questions.predictor.signature = questions.signature.with_instructions(found.instruction)
        questions.predictor.demos = [_demo(questions, each) for each in found.demos]
        if apart:
            best = board.mean(adapter.candidate_of(found.instruction, found.demos))
        if adapter.refusals:
            reporter.note(_some_refused(adapter))
        if note := teacher_answers.note():
            reporter.note(note)
    reporter.phase = "done"
    reporter.report()
    return best


_NEVER: Final = float("-inf")
"""A score that is never good enough."""


def _all_refused(adapter: AskingAdapter) -> str:
    count, why = adapter.refusals.total(), next(iter(adapter.refusals))
    questions = "the only question" if count == 1 else f"all {count} questions"
    return (
        f"the LM refused {questions}, so it stays as it is: {why}; if that is because they are too "
        "long, show fewer examples: lower max_labeled_demos and max_bootstrapped_demos"
    )


def _some_refused(adapter: AskingAdapter) -> str:
    count, why = adapter.refusals.total(), next(iter(adapter.refusals))
    every = count + adapter.answered
    return f"the LM refused {count} of {every} questions, which score 0: {why}"


def _without_defaults(questions: PartQuestions) -> Any:
    """The predictor for DSPy: without defaults, which it would put in where an example has nothing.
    A run does not show the model a field with its default."""
    fields = {name: copy(field) for name, field in questions.signature.fields.items()}
    for name in questions.signature.input_fields:
        fields[name].default = PydanticUndefined
    predictor = questions.predictor.deepcopy()
    signature = load_dspy("optimize_node").Signature(fields, questions.signature.instructions)
    predictor.signature = signature
    return predictor


def _demo(questions: PartQuestions, demo: Any) -> Any:
    """A demonstration with the fields of the signature, and nothing that DSPy notes beside them."""
    inputs = [name for name in questions.signature.input_fields if name in demo]
    values = {name: demo[name] for name in questions.signature.fields if name in demo}
    return load_dspy("optimize_node").Example(values).with_inputs(*inputs)


def _without_origin(questions: PartQuestions, example: Any) -> Any:
    """The example without where it comes from, which is nothing for a model to see."""
    inputs = list(example.inputs().keys())
    values = {name: value for name, value in example.items() if name in questions.signature.fields}
    return load_dspy("optimize_node").Example(values).with_inputs(*inputs)
