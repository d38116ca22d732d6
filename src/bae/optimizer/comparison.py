"""Whether a learned prompt is better: every held-out example is asked once with it and once
without, as a run asks, and the scores are compared, with a confidence interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bae.evals.intervals import Interval, interval, paired_difference
from bae.exceptions import BudgetError
from bae.node import Node
from bae.optimizer.calls import CallLog, backend_of, student_for, with_log
from bae.optimizer.progress import Progress, Telling
from bae.tasks import all_or_first_error
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.judge import Judge
    from bae.graph import Graph
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.lm.policies.learned import LearnedPrompt
    from bae.optimizer.metrics import Metric, PartMetric
    from bae.optimizer.predictors import NodePredictor
    from bae.optimizer.questions import PartQuestions, Settled, Settling


@dataclass(frozen=True, slots=True)
class Comparison:
    """One part of a node before and after it was optimized, on the same `n` held-out examples.

    `before` and `after` are the mean scores, `difference` is between the two scores of each
    example, all with their intervals. `validity_before` and `validity_after` are the shares of
    questions that were answered at the first try. `scores` are the pairs, in the order of the
    examples. `calls_before`, `calls_after`, `tokens_before` and `tokens_after` are what it took to
    have all the answers, as a run has them: with what was learned, a choice and the fill of what is
    chosen are two calls where they may have been one. An answer from a log counts as it did when
    it was given; a judge's do not count.
    """

    node: str
    part: str
    n: int
    before: Interval
    after: Interval
    difference: Interval
    validity_before: float
    validity_after: float
    scores: tuple[tuple[float, float], ...]
    calls_before: int = 0
    calls_after: int = 0
    tokens_before: int = 0
    tokens_after: int = 0

    @property
    def better(self) -> bool:
        """Whether the mean score is higher than before."""
        return self.difference.mean > 0

    @property
    def certain(self) -> bool:
        """Whether that is more than chance, at the level of the interval."""
        return self.difference.low > 0

    def __str__(self) -> str:
        said = (
            f"{self.node}, {self.part}, on {self.n} examples: {self.before} before, {self.after}"
            f" after, a difference of {self.difference}"
        )
        if self.calls_before == self.calls_after:
            return said
        return f"{said}; {self.calls_before} calls before, {self.calls_after} after"


async def compare(
    cls: type[Node],
    after: NodePredictor,
    held_out: Iterable[Any],
    metric: Metric | Judge | None = None,
    *,
    lm: LM | str | Any = None,
    calls: CallLog | str | Path | None = None,
    concurrency: int = 4,
    budget: Budget | None = None,
    progress: Callable[[Progress], None] | None = None,
    graph: Graph[Any, Any] | None = None,
) -> list[Comparison]:
    """Compare a node class before and after it was optimized, on examples that were held out.

    There is one comparison for each part that has learned something and has examples. Every example
    is asked as a run asks: a wrong answer is asked for again, and where there is no valid one, or
    the prompt does not fit into the model, the score is 0. Without what was learned, a choice is
    asked for together with the fill of what is chosen, where the LM does both in one call; with
    it, in two calls, which are counted. Give the `graph` to have fills of such successors asked
    for so too, and not by themselves. There a learned prompt for the fill changes how the choice is
    asked, and so what is chosen. A fill is scored where both sides choose its node, and, by itself,
    where neither does; where one side alone does, the other scores 0, and a note counts these.

    A question that the LM refuses scores 0 too, with a note, unless it refuses five in a row that
    are not too long: that ends it, with the LM's error.

    The other arguments are as for `aoptimize_node`: an LM that is pinned to the class goes before
    `lm`, as in a run. A budget that runs out raises `BudgetError`, once the calls that are under
    way have landed in the log.
    """
    from bae.optimizer.examples import choice_examples, fill_examples
    from bae.optimizer.metrics import metrics_for
    from bae.optimizer.predictors import artifact_of, fresh_predictor
    from bae.optimizer.questions import PARTS, PartQuestions, Settling

    _check(cls, after, concurrency, graph)
    examples = list(held_out)
    prompts = artifact_of(after).prompts()
    fresh = fresh_predictor(cls)
    log = calls if isinstance(calls, CallLog) else CallLog(calls)
    found: list[Comparison] = []
    try:
        await log.open()
        if budget is not None:
            log.charge(budget)
        student = backend_of(student_for(cls, lm), f"{cls.__name__} is to be compared")
        with budget or nullcontext():
            for part in PARTS:
                learned_prompt: LearnedPrompt | None = getattr(prompts, part)
                chosen = (fill_examples if part == "fill" else choice_examples)(cls, examples)
                if learned_prompt is None or not chosen:
                    continue
                questions = PartQuestions(cls, part, getattr(fresh, part), graph)
                telling = Telling(cls.__name__, part, log, progress, phase="comparing")
                sides = _Sides(
                    questions,
                    Settling(questions, lm, graph),
                    metrics_for(cls, part, with_log(metric, log, telling.note)),
                    student,
                    learned_prompt,
                    log,
                    telling,
                )
                found.append(await sides.compared(chosen, concurrency))
    finally:
        if log is not calls:
            await log.aclose()
    return found


@dataclass(slots=True)
class _Sides:
    """One part of a node, asked with a learned prompt and without."""

    asked: PartQuestions
    settling: Settling
    metric: PartMetric
    student: Backend
    learned_prompt: LearnedPrompt
    log: CallLog
    telling: Telling
    scores: dict[tuple[int, bool], float] = field(default_factory=dict[tuple[int, bool], float])
    valid: dict[tuple[int, bool], bool] = field(default_factory=dict[tuple[int, bool], bool])
    settled: dict[tuple[int, bool], Settled] = field(
        default_factory=dict[tuple[int, bool], "Settled"]
    )
    strayed: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    used: dict[bool, Usage] = field(default_factory=lambda: {False: Usage(), True: Usage()})

    async def compared(self, examples: list[Any], concurrency: int) -> Comparison:
        """Ask about every example once with the learned prompt and once without."""
        count = len(examples)
        # By example, not one side after the other, so that both are asked of a model as it is then.
        left = iter([(place, taught) for place in range(count) for taught in (False, True)])
        out_of_budget: list[BudgetError] = []

        async def worker() -> None:
            for place, taught in left:
                try:
                    await self._one(place, examples[place], taught)
                except BudgetError as error:
                    # The others are not cancelled: calls in progress are paid for, and kept.
                    out_of_budget.append(error)
                if out_of_budget:
                    return

        await all_or_first_error([worker] * min(concurrency, 2 * count))
        if out_of_budget:
            raise out_of_budget.pop(0)
        before, after = ([self.scores[n, side] for n in range(count)] for side in (False, True))
        intervals = interval(before), interval(after)
        difference = paired_difference(before, after)
        assert intervals[0] is not None
        assert intervals[1] is not None
        assert difference is not None  # there are examples
        self._note_strayed(count)
        self.telling.best = intervals[1].mean
        self.telling.phase = "compared"
        self.telling.tell()
        return Comparison(
            node=self.asked.cls.__name__,
            part=self.asked.part,
            n=count,
            before=intervals[0],
            after=intervals[1],
            difference=difference,
            validity_before=sum(self.valid[n, False] for n in range(count)) / count,
            validity_after=sum(self.valid[n, True] for n in range(count)) / count,
            scores=tuple(zip(before, after, strict=True)),
            calls_before=self.used[False].calls,
            calls_after=self.used[True].calls,
            tokens_before=self.used[False].tokens,
            tokens_after=self.used[True].tokens,
        )

    async def _one(self, place: int, example: Any, taught: bool) -> None:
        backend = self.log.around(self.student)
        known = self.asked.known(dict(example))
        settled = await self.settling.settled(
            backend, known, self.learned_prompt if taught else None
        )
        self.used[taught] += backend.used
        if settled.not_taken:
            side = "with what was learned" if taught else "without it"
            self.telling.note(f"asked {side}, the LM would not take a prompt: {settled.not_taken}")
        self.valid[place, taught] = settled.valid
        self.settled[place, taught] = settled
        other = self.settled.get((place, not taught))
        if other is not None:  # whether only one reaches the node is known from both
            await self._score(place, example, taught, settled, other)
            await self._score(place, example, not taught, other, settled)

    async def _score(
        self, place: int, example: Any, taught: bool, settled: Settled, other: Settled
    ) -> None:
        if settled.chosen is False and other.chosen:
            self.strayed[taught] += 1
            self.scores[place, taught] = 0.0
        else:
            score = await self.metric(example, settled.answer, index=place)
            self.scores[place, taught] = score.value
        self.telling.scored += 1
        self.telling.tell()

    def _note_strayed(self, count: int) -> None:
        name = self.asked.cls.__name__
        for taught, strayed in self.strayed.items():
            sides = ("with what was learned", "without it")[:: 1 if taught else -1]
            if strayed:
                self.telling.note(
                    f"asked {sides[0]}, the LM does not choose {name} on {strayed} of {count} "
                    f"examples where it does {sides[1]}: a run does not reach {name} then, and "
                    "these score 0"
                )


def _check(cls: Any, after: Any, concurrency: int, graph: Any) -> None:
    from bae.evals.case_types import every_node
    from bae.graph import Graph
    from bae.optimizer.node_schemas import is_node_class

    if not is_node_class(cls):
        raise TypeError(f"compare({cls!r}, …): give a node class")
    name = cls.__name__
    node: Any = getattr(after, "node", None)
    if not is_node_class(node):
        raise TypeError(
            f"compare({name}, {repr(after)[:200]}): give the NodePredictor of {name}, as "
            "optimize_node and predictor_of make it"
        )
    if node is not cls:
        raise ValueError(
            f"compare({name}, …) was given the predictor of {node.__name__}: give that of {name}, "
            f"or compare {node.__name__}"
        )
    if concurrency < 1:
        raise ValueError(f"compare(concurrency={concurrency!r}): give 1 or more")
    if graph is None:
        return
    if not isinstance(graph, Graph):
        raise TypeError(f"compare(graph={graph!r}): give the Graph that {name} runs in")
    if cls not in every_node(cast("Graph[Any, Any]", graph)):
        raise ValueError(f"compare({name}, graph=…): the graph {graph.name} has no node {name}")
