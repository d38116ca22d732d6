"""What an evaluation found, as data: rows of numbers for each contender, the cases behind them, and
the differences between contenders. `page.py` and `writing.py` make text of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.cases import Case
    from bae.evals.intervals import Interval
    from bae.optimizer.scores import Score

Outcome = Literal["ended", "failed", "unscored", "not run"]
"""How a case came out: its run ended and was scored; it failed, which scores 0; it ended, and
whatever scores it failed; or it was not run to its end, as the evaluation was stopped first."""


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one node class, or of all, for one contender.

    - `node`: the name of the class; empty in the row of the total.
    - `cases`: how many cases were run to an end, or met a node of the class.
    - `score`: the mean score with its interval, over `score.n` cases; None where nothing was
      scored. A node is scored where cases expect fields of it; one from which the LM chooses by
      whether it chose a successor that the case names under `nodes`, or else one that can lead to
      the expected end; by the mean of both where both are known.
    - `validity`: valid answers of those that were `judged`; None where none was. An answer that
      chooses and fills at once is the choosing node's, and so is what it used.
    - `calls`, `input_tokens`, `output_tokens`, `cached_tokens`, `cost`: what LM calls used; a cost
      of None is unknown.
    - `seconds_mean`, `seconds_p50`, `seconds_p95`: of the total, how long a case took; of a node
      class, the LM work for one node: its fill, and the choice from it.
    """

    node: str
    cases: int
    score: Interval | None
    validity: float | None
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    seconds_mean: float
    seconds_p50: float
    seconds_p95: float
    judged: int = 0
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Those in and those out."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case with one contender: how it came out, and its `run_id` to look it up by.

    - `score` is None where there is none, and `error` says why; `why` is what the metric said, or
      what was missed of all that the case expects.
    - `usage` is what the run used, `judging` what its metric did.
    - `nodes` has the scores of nodes by the names of their classes.
    - `asked` is what the case begins with and expects, as JSON, and `end` the node that the run
      ended at, `{"type": …, "fields": {…}}`; None where it did not. Secrets are left out of both.
    - `metric_error` is what a metric failed with, where one did.
    """

    case: Case
    run_id: str
    score: float | None = None
    why: str = ""
    error: str = ""
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    outcome: Outcome = "ended"
    judging: Usage = field(default_factory=Usage)
    nodes: dict[str, Score] = field(default_factory=dict[str, "Score"])
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    end: Mapping[str, Any] | None = None
    metric_error: str = ""

    @property
    def failed(self) -> bool:
        """Whether the run failed: by an error, by its time, or at a gate that nobody answers."""
        return self.outcome == "failed"


@dataclass(frozen=True, slots=True)
class Contender:
    """One LM over all cases: its total, its rows by node class, and each case in order."""

    name: str
    total: Row
    nodes: list[Row]
    cases: list[CaseResult]

    @property
    def failed(self) -> list[CaseResult]:
        """The cases whose runs failed."""
        return [result for result in self.cases if result.failed]

    @property
    def not_run(self) -> list[CaseResult]:
        """The cases that were not run, or not to their end, as the evaluation was stopped."""
        return [result for result in self.cases if result.outcome == "not run"]

    @property
    def unscored(self) -> list[CaseResult]:
        """The cases that ended and that could not be scored."""
        return [result for result in self.cases if result.outcome == "unscored"]

    @property
    def judging(self) -> Usage:
        """What scoring the cases used, where an LM judges them; it is in no row."""
        return Usage.total(result.judging for result in self.cases)


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much `contender` scores better than `against`, over the cases that both were scored
    on; None where there are none."""

    contender: str
    against: str
    interval: Interval | None

    @property
    def certain(self) -> bool:
        """Whether there is a difference beyond chance: its interval excludes 0."""
        return self.interval is not None and (self.interval.low > 0 or self.interval.high < 0)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` returns: the contenders in the order they were given, and what each further
    one differs by from the first. Write it with `to_markdown`, `to_json` or `to_csv`.

    `journal` is the file with the runs, where there is one, and `stopped` says why not all cases
    were run, where that is so. Ask `complete` before you rely on a score.
    """

    graph: str
    contenders: list[Contender]
    differences: list[Difference] = field(default_factory=list[Difference])
    journal: str = ""
    stopped: str = ""

    @property
    def complete(self) -> bool:
        """Whether every case was run and scored. Else the scores are of some cases alone, and
        those that are missing may well be the worse ones."""
        return not any(each.unscored or each.not_run for each in self.contenders)

    @property
    def metric_errors(self) -> int:
        """How often a metric failed: a mistake in it, or a score that is none."""
        return sum(bool(r.metric_error) for each in self.contenders for r in each.cases)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values; `format` is "bae-evaluation-1"."""
        from bae.evals.writing import to_json

        return to_json(self)

    def to_markdown(self) -> str:
        """Tables for people: the totals, one for each node class, the differences, and the cases
        that failed or scored less than 1, with what was expected and what came, and the command
        that shows their run."""
        from bae.evals.page import to_markdown

        return to_markdown(self)

    def to_csv(self) -> str:
        """One flat table: a line for each contender and node class, the total under the node "",
        numbers unrounded and unknown ones empty."""
        from bae.evals.writing import to_csv

        return to_csv(self)
