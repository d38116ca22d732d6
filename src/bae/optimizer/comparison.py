"""Compare learned prompts with plain prompts. `compare` asks every held-out example with and
without the learned prompt, as a run would, and compares the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bae.evals.intervals import Interval, interval, paired_difference
from bae.exceptions import BudgetError
from bae.optimizer.calls import CallLog, backend_of, log_of, student_for, with_log
from bae.optimizer.node_schemas import PARTS, is_node_class
from bae.optimizer.optimization import Progress, ProgressReporter
from bae.tasks import all_or_first_error
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.judge import Judge
    from bae.graph import Graph
    from bae.language_model import LM
    from bae.lm.policies.budget import Budget
    from bae.lm.policies.learned import LearnedPrompt
    from bae.node import Node
    from bae.optimizer.calls import LoggedLM
    from bae.optimizer.metrics import Metric, PartMetric
    from bae.optimizer.predictors import NodePredictor
    from bae.optimizer.questions import RunAnswer, RunAsker


@dataclass(frozen=True, slots=True)
class Comparison:
    """One part of a node with and without its learned prompt, on the same held-out examples.

    Usage counts as in a run. With a learned prompt, a choice and the fill of the chosen node are
    two calls. Without a learned prompt, they may be one call. An answer from a log counts with its
    original usage. Calls of judges do not count.
    """

    node: str
    """The name of the node class."""
    part: str
    """The part of the node: `fill` or `choice`."""
    n: int
    """The number of examples."""
    before: Interval
    """The mean score without the learned prompt, with its interval."""
    after: Interval
    """The mean score with the learned prompt, with its interval."""
    difference: Interval
    """The mean gain from the learned prompt over the pairs of scores, with its interval."""
    validity_before: float
    """The share of questions without the learned prompt whose first answer was valid."""
    validity_after: float
    """The share of questions with the learned prompt whose first answer was valid."""
    scores: tuple[tuple[float, float], ...]
    """For each example, in order: the score without and the score with the learned prompt."""
    calls_before: int = 0
    """LM calls without the learned prompt."""
    calls_after: int = 0
    """LM calls with the learned prompt."""
    tokens_before: int = 0
    """Tokens without the learned prompt."""
    tokens_after: int = 0
    """Tokens with the learned prompt."""

    @property
    def better(self) -> bool:
        """Whether the mean score is higher with the learned prompt."""
        return self.difference.mean > 0

    @property
    def certain(self) -> bool:
        """Whether the gain is significant: its interval is above 0."""
        return self.difference.low > 0

    def __str__(self) -> str:
        text = (
            f"{self.node}, {self.part}, on {self.n} examples: {self.before} before, {self.after}"
            f" after, a difference of {self.difference}"
        )
        if self.calls_before == self.calls_after:
            return text
        return f"{text}; {self.calls_before} calls before, {self.calls_after} after"


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
    """Compare a node class with and without its learned prompts, on held-out examples.

    Returns one comparison for each part that has a learned prompt and examples. Examples are asked
    as in a run, so an invalid answer is asked for again. If no answer is valid, or if the prompt is
    too long for the LLM, the score is 0.

    If the LM can choose and fill in one call, a question without a learned prompt takes one call.
    With a learned prompt it takes two calls, and both count.

    Pass the `graph` to ask for a fill together with the choice before it, as a run does. Then a
    learned prompt for the fill changes how the choice is asked, and may change the choice. If only
    one side chooses the node, the other side scores 0, and a note counts these examples. Without
    the `graph`, if a recalled value is also in the previous node, the prompt shows the value twice,
    but a run shows it once.

    A question that the LLM refuses scores 0 and gives a note. The fifth refusal in a row raises the
    LM's error. A refusal because of a too long prompt does not count.

    The other arguments are as for `aoptimize_node`. An LM that is pinned to the class takes
    precedence over `lm`, as in a run. If the budget is spent, `BudgetError` is raised after the
    calls in progress have ended and are in the log.
    """
    from bae.optimizer.examples import part_examples
    from bae.optimizer.metrics import metrics_for
    from bae.optimizer.predictors import artifact_of, fresh_predictor
    from bae.optimizer.questions import PartQuestions, RunAsker

    _check_arguments(cls, after, concurrency, graph)
    examples = list(held_out)
    prompts, fresh = artifact_of(after).prompts(), fresh_predictor(cls)
    comparisons: list[Comparison] = []
    async with log_of(calls, budget) as log:
        student = backend_of(student_for(cls, lm), f"{cls.__name__} is to be compared")
        for part in PARTS:
            prompt: LearnedPrompt | None = getattr(prompts, part)
            examples_of_part = part_examples(cls, part, examples)
            if prompt is None or not examples_of_part:
                continue
            questions = PartQuestions(cls, part, getattr(fresh, part), graph)
            reporter = ProgressReporter(cls.__name__, part, log, progress, phase="comparing")
            sides = _Sides(
                RunAsker(questions, lm, graph),
                metrics_for(cls, part, with_log(metric, log, reporter.note)),
                {False: None, True: prompt},
                lambda: log.around(student),
                reporter,
            )
            known_values = [questions.known(dict(example)) for example in examples_of_part]
            pairs = await sides.ask_all(
                [*zip(examples_of_part, known_values, strict=True)], concurrency
            )
            comparisons.append(sides.result(pairs))
    return comparisons


@dataclass(frozen=True, slots=True)
class _Scored:
    """The answer of one side to an example, its usage, and its score."""

    answer: RunAnswer
    used: Usage
    score: float = 0.0


_Pair = tuple[_Scored, _Scored]
"""The scored answers to an example: without the learned prompt, and with it."""


@dataclass(frozen=True, slots=True)
class _Sides:
    """One part of a node, asked without its learned prompt and with it."""

    asker: RunAsker
    metric: PartMetric
    prompts: Mapping[bool, LearnedPrompt | None]
    """The prompt of each side; True is the side with the learned prompt."""
    new_backend: Callable[[], LoggedLM]
    reporter: ProgressReporter

    async def ask_all(self, examples: list[tuple[Any, Any]], concurrency: int) -> list[_Pair]:
        """Ask every example on both sides. `examples` are pairs of an example and its known
        values."""
        pairs: dict[int, _Pair] = {}
        remaining = iter(enumerate(examples))
        out_of_budget: list[BudgetError] = []

        async def worker() -> None:
            for index, (example, known_values) in remaining:
                try:
                    # Ask both sides at about the same time, because a provider may change a model.
                    before, after = (
                        await self._ask(known_values, False),
                        await self._ask(known_values, True),
                    )
                    pairs[index] = (
                        await self._score(index, example, before, after),
                        await self._score(index, example, after, before),
                    )
                except BudgetError as error:
                    # Other calls in progress are not cancelled: they are paid for and logged.
                    out_of_budget.append(error)
                if out_of_budget:
                    return

        await all_or_first_error([worker] * min(concurrency, len(examples)))
        if out_of_budget:
            raise out_of_budget.pop(0)
        return [pairs[place] for place in range(len(examples))]

    def result(self, pairs: list[_Pair]) -> Comparison:
        """Return the comparison. If only one side chooses the node on some examples, give a
        note."""
        node, count = self.reporter.node, len(pairs)
        for learned in (False, True):
            lost = sum(_is_lost(pair[learned].answer, pair[not learned].answer) for pair in pairs)
            if lost:
                self.reporter.note(
                    f"asked {_side(learned)}, the LM does not choose {node} on {lost} of {count} "
                    f"examples, but does when asked {_side(not learned)}: a run would not reach "
                    f"{node}, so these examples score 0"
                )
        before, after = zip(*pairs, strict=True)
        scores = [[scored.score for scored in side] for side in (before, after)]
        means = [interval(side) for side in scores]
        difference = paired_difference(*scores)
        used = [Usage.total(scored.used for scored in side) for side in (before, after)]
        validity = [sum(scored.answer.valid for scored in side) / count for side in (before, after)]
        assert means[0] is not None
        assert means[1] is not None
        assert difference is not None  # there are examples
        self.reporter.best = means[1].mean
        self.reporter.phase = "compared"
        self.reporter.report()
        return Comparison(
            node=node,
            part=self.reporter.part,
            n=count,
            before=means[0],
            after=means[1],
            difference=difference,
            validity_before=validity[0],
            validity_after=validity[1],
            scores=tuple(zip(*scores, strict=True)),
            calls_before=used[0].calls,
            calls_after=used[1].calls,
            tokens_before=used[0].tokens,
            tokens_after=used[1].tokens,
        )

    async def _ask(self, known: Mapping[str, Any], learned: bool) -> _Scored:
        backend = self.new_backend()
        answer = await self.asker.ask(backend, known, self.prompts[learned])
        if answer.refusal:
            self.reporter.note(f"asked {_side(learned)}, the LM refused a prompt: {answer.refusal}")
        return _Scored(answer, backend.used)

    async def _score(self, place: int, example: Any, scored: _Scored, other: _Scored) -> _Scored:
        value = 0.0
        if not _is_lost(scored.answer, other.answer):
            value = (await self.metric(example, scored.answer.answer, index=place)).value
        self.reporter.scored += 1
        self.reporter.report()
        return replace(scored, score=value)


def _is_lost(answer: RunAnswer, other: RunAnswer) -> bool:
    """Whether a run reaches the node with the answer `other`, but not with `answer`."""
    return answer.chosen is False and bool(other.chosen)


def _side(learned: bool) -> str:
    return "with the learned prompt" if learned else "without it"


def _check_arguments(cls: Any, after: Any, concurrency: int, graph: Any) -> None:
    from bae.evals.case_types import every_node
    from bae.graph import Graph

    if not is_node_class(cls) or getattr(after, "node", None) is not cls:
        raise TypeError(
            f"compare({cls!r}, {after!r:.200}): give a node class and its NodePredictor, as "
            "optimize_node and predictor_of make it"
        )
    if concurrency < 1:
        raise ValueError(f"compare(concurrency={concurrency!r}): give 1 or more")
    if graph is not None and not (
        isinstance(graph, Graph) and cls in every_node(cast("Graph[Any, Any]", graph))
    ):
        raise TypeError(f"compare(graph={graph!r}): give the Graph that {cls.__name__} runs in")
