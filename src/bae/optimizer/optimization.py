"""`optimize_node`: optimize the fill and the choice of a node class, under a budget, with a call
log and progress reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from pydantic_core import to_jsonable_python

from bae.exceptions import describe
from bae.graph import run_sync
from bae.lm.signatures import has_instruction
from bae.node import Node
from bae.optimizer.calls import CallLog, backend_of, log_of, student_for, with_log
from bae.optimizer.node_schemas import PARTS, NodePart, is_node_class, why_untrained
from bae.optimizer.optimizers import checked_options
from bae.plan import plan_of
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.evals.judge import Judge
    from bae.graph import Graph
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.optimizer.metrics import Metric
    from bae.optimizer.predictors import NodePredictor

P = ParamSpec("P")
T = TypeVar("T")

Phase = Literal[
    "read", "bootstrapping", "proposing", "trying", "comparing", "compared", "done", "skipped"
]

log = logging.getLogger("bae.optimizer")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one part of a node while it is optimized or compared."""

    node: str
    """The name of the node class."""
    part: str
    """The part of the node: `fill` or `choice`."""
    phase: Phase
    calls: int = 0
    """Questions that LMs answered."""
    from_log: int = 0
    """Questions that the call log answered."""
    earlier: int = 0
    """LM calls of earlier processes for the answers from the log."""
    scored: int = 0
    """Answers with a score."""
    best: float | None = None
    """The mean score of the best candidate so far, if the optimizer tries candidates. In the phase
    "compared", the score of the learned prompt on the held-out examples."""
    note: str = ""
    """A remark, or empty."""


@dataclass(slots=True)
class ProgressReporter:
    """Reports the progress of one part to a listener. If the listener raises, it is not called
    again."""

    node: str
    part: NodePart
    calls: CallLog
    listener: Callable[[Progress], None] | None = None
    phase: Phase = "bootstrapping"
    scored: int = 0
    best: float | None = None
    notes: list[str] = field(default_factory=list[str])

    def report(self, note: str = "") -> None:
        """Report the current state."""
        if self.listener is None:
            return
        statistics = self.calls.statistics()
        counts = statistics.calls, statistics.from_log, statistics.earlier.calls, self.scored
        try:
            self.listener(Progress(self.node, self.part, self.phase, *counts, self.best, note))
        except Exception as error:
            self.listener = None
            log.warning("progress raised, and is not called again: %s", describe(error))

    def note(self, text: str) -> None:
        """Record a note once, and send it to the listener or to the log."""
        if text not in self.notes:
            self.notes.append(text)
            if self.listener is None:
                log.warning("%s, %s: %s", self.node, self.part, text)
            self.report(text)


MINIMUM = 10
"""The default of `minimum`: the number of different questions that a part needs to be optimized."""


async def aoptimize_node(
    node_cls: type[Node],
    trainset: Iterable[Any],
    metric: Metric | Judge | None = None,
    *,
    lm: LM | str | Any = None,
    teacher: LM | str | Any = None,
    optimizer: str = "bootstrap",
    budget: Budget | None = None,
    seed: int = 0,
    calls: CallLog | str | Path | None = None,
    concurrency: int = 4,
    progress: Callable[[Progress], None] | None = None,
    minimum: int = MINIMUM,
    graph: Graph[Any, Any] | None = None,
    **options: Any,
) -> NodePredictor:
    """Optimize the prompts of a node class: for its fill, and for the choice of its successor.

    - `trainset`: examples from `examples_from` or `trace_to_examples`, or traces or results. Equal
      questions count once, with the corrected answer or otherwise with the most frequent answer.
    - `metric`: scores an answer; see `metrics_for`.
    - `lm`: the LM to optimize for: an LM, its name, a `dspy.LM`, or None for the default. As in a
      run, an LM that is pinned to the class takes precedence. If no part has enough questions, no
      LM is needed.
    - `teacher`: the LM that answers examples and proposes instructions. The default is the LM to
      optimize for.
    - `optimizer`: "bootstrap", "miprov2" or "gepa". `options` are its options; see `OPTIONS`.
    - `budget`: limits all questions, including the questions of judges. If this budget runs out,
      the optimizer ends with its best result, and a note says so. If another budget around this
      call runs out, `BudgetError` is raised.
    - `seed`: the same seed with the same answers gives the same result.
    - `calls`: a `CallLog` or its path, to resume after the process was killed.
    - `concurrency`: how many examples are asked at once. "bootstrap" asks one example at a time.
    - `progress`: called with a `Progress` from time to time.
    - `minimum`: a part with fewer different questions does not change, and a note says so.
    - `graph`: the graph of the class. Prompts use its system text. Without the graph, if a recalled
      value is also in the previous node, prompts show the value twice, but a run shows it once.

    The result's `made` has the notes, the number of `examples` and `questions` of each part, and
    the name of the LM as `model`. `made.best` is the mean score on the examples with which
    candidates were scored, if there were any. If a learned instruction replaces the instruction of
    the `NodeConfig`, a note says so.

    If the LLM refuses a question, or the question is too long, the score is 0, and a note counts
    these questions. If the LLM refuses all questions, the part does not change. The fifth refusal
    in a row ends the optimization, but too long questions do not count as refusals here. An invalid
    answer does not end the optimization, but any other error of the LM does.

    If cancelled, the optimization stops at once. It leaves no thread behind, except the thread of a
    sync metric, which ends when the metric returns.
    """
    from bae.optimizer.artifacts import Made
    from bae.optimizer.examples import examples_in, part_examples
    from bae.optimizer.metrics import metrics_for
    from bae.optimizer.predictors import fresh_predictor
    from bae.optimizer.questions import PartQuestions, scene_in
    from bae.optimizer.splits import distinct
    from bae.optimizer.training import Training

    # In a thread, because this may import the packages of the optimizer.
    settings = await in_thread(checked_options, optimizer, options)
    _check_arguments(node_cls, concurrency=concurrency, minimum=minimum, seed=seed)
    examples = await in_thread(examples_in, trainset)
    by_part = {part: part_examples(node_cls, part, examples) for part in PARTS}
    different = {part: distinct(part_set) for part, part_set in by_part.items()}
    predictor = fresh_predictor(node_cls)
    untrained = why_untrained(node_cls)
    parts: list[NodePart] = [
        part
        for part in PARTS
        if getattr(predictor, part) is not None and not (part == "fill" and untrained)
    ]
    description: dict[str, Any] = {"optimizer": optimizer, "seed": seed, "options": options}
    backends: dict[str, Backend] = {}
    # Find an LM only if something can be learned. There may be no default LM, for example if all
    # nodes have pinned LMs.
    if any(len(different[part]) >= minimum for part in parts):
        student = backend_of(student_for(node_cls, lm), f"{node_cls.__name__} is to be optimized")
        teacher_backend = student if teacher is None else backend_of(teacher, "it is to teach")
        backends = {"student": student, "teacher": teacher_backend}
        description["model"] = student.model or repr(student)
        description["teacher"] = teacher_backend.model or repr(teacher_backend)
    if (system := scene_in(graph, node_cls).system) is not None:
        description["system"] = system
    made = Made.model_validate(to_jsonable_python(description))
    best: dict[str, float] = {}
    questions: dict[str, int] = {}
    async with log_of(calls, budget) as log:
        if untrained:
            reporter = ProgressReporter(node_cls.__name__, "fill", log, progress, phase="skipped")
            reporter.note(untrained)
        for part in parts:
            examples_of_part, different_examples = by_part[part], different[part]
            reporter = ProgressReporter(node_cls.__name__, part, log, progress)
            made.examples[part] = len(examples_of_part)
            if not examples_of_part and any(by_part.values()):
                # This is normal: a start node, for example, is never filled.
                reporter.phase = "skipped"
                reporter.report()
            elif len(different_examples) < minimum:
                reporter.phase = "skipped"
                reporter.note(
                    _describe_shortage(len(examples_of_part), len(different_examples), minimum)
                )
            else:
                questions[part] = len(different_examples)
                training = Training(
                    PartQuestions(node_cls, part, getattr(predictor, part), graph),
                    different_examples,
                    metrics_for(node_cls, part, with_log(metric, log, reporter.note)),
                    backends,
                    settings,
                    log=log,
                    reporter=reporter,
                    budget=budget,
                    seed=seed,
                    concurrency=concurrency,
                )
                reached = await training.run(optimizer)
                if reached is not None:
                    best[part] = reached
                if part == "fill" and _replaces_own_instruction(node_cls, predictor):
                    reporter.note("its instruction replaces the one in NodeConfig")
            made.notes.extend(f"{part}: {note}" for note in reporter.notes)
    extra = {"questions": questions, "best": best}
    predictor.made = made.model_copy(update={name: value for name, value in extra.items() if value})
    return predictor


def _run_synchronously(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(lambda: work(*args, **kwargs), "optimize_node()", "await aoptimize_node(…)")

    update_wrapper(call, work)
    call.__name__ = call.__qualname__ = "optimize_node"
    call.__doc__ = (
        "`aoptimize_node` for sync callers. Inside a running event loop, await `aoptimize_node`."
    )
    return call


optimize_node = _run_synchronously(aoptimize_node)
"""`aoptimize_node` for sync callers. Inside a running event loop, await `aoptimize_node`."""


def _check_arguments(cls: Any, **numbers: Any) -> None:
    """Raise for invalid arguments, before an LM is asked."""
    if not is_node_class(cls):
        raise TypeError(f"optimize_node({cls!r:.80}): give a node class")
    for name, value in numbers.items():
        least, most = (0, 2**32 - 1) if name == "seed" else (1, 2**32 - 1)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"optimize_node({name}={value!r}): give a number from {least} on")


def _replaces_own_instruction(cls: type[Node], predictor: NodePredictor) -> bool:
    plan = plan_of(cls)
    is_written = plan.instruction != plan.name
    return is_written and not has_instruction(predictor.fill.signature, plan.instruction)


def _describe_shortage(count: int, questions: int, minimum: int) -> str:
    shortage = "there is 1 example" if count == 1 else f"there are {count or 'no'} examples"
    if questions < count:
        shortage += " of 1 question" if questions == 1 else f" of {questions} questions"
    return f"{shortage}, and learning needs {minimum} or more questions: the prompt stays as it is"
