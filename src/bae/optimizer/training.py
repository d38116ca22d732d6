"""One part of a node trained by one of DSPy's optimizers: an adapter asks bae's backends as a run
does, answers are scored on the event loop, and the result is put into the part's predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticUndefined

from bae.lm.extras import load_dspy
from bae.optimizer.bridge import QUIET, Bridge, OutOfBudget, silence_dspy
from bae.optimizer.dspy_adapter import AskingAdapter, AskingLM
from bae.optimizer.optimizers import Training, run_optimizer, split_validation
from bae.optimizer.splits import is_corrected

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.optimizer.calls import CallLog
    from bae.optimizer.metrics import PartMetric
    from bae.optimizer.optimization import ProgressReporter
    from bae.optimizer.questions import PartQuestions

_dspy = load_dspy("optimize_node")


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
        self._stopped = 0

    def may_ask(self, question: str) -> None:
        """Raise `TeacherStopped` where the teacher is to be asked no more."""
        if question not in self._scores and self._fruitless >= self._most:
            self._stopped += 1
            raise TeacherStopped(f"{self._fruitless} answers of the teacher were not good enough")

    def record(self, question: str, score: float, good: bool) -> None:
        """Note what an answer was worth, and whether it can be an example."""
        self._scores[question] = score
        self._good.update([question] if good else [])

    def note(self) -> str:
        """A note if few or none of the answers were good; empty otherwise."""
        asked, good = len(self._scores), len(self._good)
        if not asked or (good and not self._stopped):
            return ""
        best = max(self._scores.values())
        more = "a higher max_fruitless" if good else "a lower accept"
        stopped = ", and it was asked no more" if self._stopped else ""
        return (
            f"{good or 'none'} of {asked} answers of the teacher were good enough to be examples"
            f"{stopped}: it takes a score of {self.accept:g}, and the best had {best:.2g}; give "
            f"another teacher, or {more}"
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
    bridge = Bridge(budget)
    accept = options.get("accept")
    accept = metric.accept if accept is None else accept
    teacher_answers = TeacherAnswers(accept, fruitless_limit(options))
    adapter = AskingAdapter(bridge, log, backends, questions, reporter, teacher_answers.may_ask)
    plain = [_without_origin(questions, each) for each in examples]
    places = {id(each): index for index, each in enumerate(plain)}

    def score(example: Any, prediction: Any, trace: Any) -> tuple[float, str]:
        answer = questions.answer(dict(prediction))
        candidate, question = adapter.candidate, adapter.question
        place = places[id(example)]

        async def judged() -> tuple[float, str]:
            found = await metric(examples[place], answer, index=place, trace=trace)
            value = found.value
            reporter.scored += 1
            if reporter.phase == "trying":
                board.add(candidate, example, value)
                reporter.best = board.best if apart else None
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
        student=AskingLM("student"),
        teacher=AskingLM("teacher"),
        adapter=adapter,
        seed=seed,
        concurrency=concurrency,
        calls=None if budget is None else budget.calls,
        is_over=lambda: bridge.spent is not None or board.best == 1.0,
        options=options,
    )
    made, scored = split_validation(training)
    board = Scoreboard(scored)
    # With a single question it is both, and a score of it says nothing.
    apart = not {id(each) for each in made} & {id(each) for each in scored}

    def work() -> Any:
        with _dspy.context(
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
                # Progress bars that DSPy left open print when they are freed: free them here, where
                # it is silent.
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
        # What was found was never asked, and could not be.
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
    signature = _dspy.Signature(fields, questions.signature.instructions)
    predictor.signature = signature
    return predictor


def _demo(questions: PartQuestions, demo: Any) -> Any:
    """A demonstration with the fields of the signature, and nothing that DSPy notes beside them."""
    inputs = [name for name in questions.signature.input_fields if name in demo]
    values = {name: demo[name] for name in questions.signature.fields if name in demo}
    return _dspy.Example(values).with_inputs(*inputs)


def _without_origin(questions: PartQuestions, example: Any) -> Any:
    """The example without where it comes from, which is nothing for a model to see."""
    inputs = list(example.inputs().keys())
    values = {name: value for name, value in example.items() if name in questions.signature.fields}
    return _dspy.Example(values).with_inputs(*inputs)
