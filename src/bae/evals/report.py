"""The report of an evaluation: rows of numbers for each contender, the cases behind them, and the
differences between contenders, as data, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic_core import to_jsonable_python

from bae.evals.intervals import Interval, interval, paired_difference
from bae.evals.metrics import short
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.case_runs import CaseRun
    from bae.evals.cases import Case
    from bae.evals.metrics import Score
    from bae.evals.scoring import NodeMeasure
    from bae.node import Node

FORMAT: Final = "bae-evaluation-1"

CaseOutcome = Literal["ended", "failed", "unscored", "not run"]
"""How a case ended. "ended": its run ended and was scored. "failed": its run failed, which scores
0. "unscored": its run ended, but its metric failed. "not run": the evaluation was stopped
before."""
NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one node class, or the total, for one contender.

    - `node`: the name of the class. Empty for the total.
    - `cases`: how many cases ended or failed; for a class, how many reached it.
    - `score`: the mean score with its interval, over `score.n` cases. None if nothing was scored. A
      node class is scored by its expected fields and by the LM's choice of a successor; if both are
      known, the score is their mean. A choice is right if the case names that class in `nodes`, or
      otherwise if it can lead to the expected end.
    - `validity`: the share of valid answers among the `judged` answers, or None without answers. An
      answer that chooses and fills in one call counts for the choosing node, and so does its usage.
    - `calls`, `input_tokens`, `output_tokens`, `cached_tokens`, `cost`: the usage of LM calls. A
      cost of None is unknown.
    - `seconds_mean`, `seconds_p50`, `seconds_p95`: the time of a case; for a class, the time of the
      LM work for one node: its fill, and the choice of its successor.
    - `rounds`, `tool_calls`, `tool_errors`: the rounds with tools, their calls, and how many calls
      ended with an error.
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
    rounds: int = 0
    tool_calls: int = 0
    tool_errors: int = 0

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case with one contender. Look at its run with its `run_id`.

    - `score`: None if the case has no score; then `error` says why. `why` is the metric's reason,
      or the expectations that were missed.
    - `usage`: the usage of the run. `judging`: the usage of its metric. `tool_calls`: how many tool
      calls its LMs made.
    - `nodes`: the scores of nodes by the names of their classes.
    - `asked`: the inputs and expectations of the case, as JSON. `end`: the last node of the run,
      `{"type": …, "fields": {…}}`, or None. Both are without secrets.
    - `metric_error`: the error of a metric. `scoring_error`: why the case could not be scored.
    """

    case: Case
    run_id: str
    score: float | None = None
    why: str = ""
    error: str = ""
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    outcome: CaseOutcome = "ended"
    judging: Usage = field(default_factory=Usage)
    nodes: dict[str, Score] = field(default_factory=dict[str, "Score"])
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    end: Mapping[str, Any] | None = None
    metric_error: str = ""
    scoring_error: str = ""
    tool_calls: int = 0

    @property
    def failed(self) -> bool:
        """Whether the run failed because of an error, its timeout or an unanswered gate."""
        return self.outcome == "failed"


@dataclass(frozen=True, slots=True)
class Contender:
    """The results of one LM: its total, a row for each node class, and all cases in order."""

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
        """The cases that did not run to their end because the evaluation was stopped."""
        return [result for result in self.cases if result.outcome == NOT_RUN]

    @property
    def unscored(self) -> list[CaseResult]:
        """The cases that ended but could not be scored."""
        return [result for result in self.cases if result.outcome == "unscored"]

    @property
    def imperfect(self) -> list[CaseResult]:
        """The cases that ended with a score of less than 1, the lowest first."""
        scored = [(case_.score, case_) for case_ in self.cases if case_.outcome == "ended"]
        lower = [(score, result) for score, result in scored if score is not None and score < 1]
        return [result for _, result in sorted(lower, key=lambda pair: pair[0])]

    @property
    def judging(self) -> Usage:
        """The usage of judges. No row contains it."""
        return Usage.total(result.judging for result in self.cases)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better `contender` scores than `against`, over the cases that both have a score for.
    The interval is None if there are no such cases."""

    contender: str
    against: str
    interval: Interval | None

    @property
    def certain(self) -> bool:
        """Whether the difference is significant: its interval excludes 0."""
        return self.interval is not None and self.interval.excludes_zero


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate`: the contenders in their given order, and the difference of each
    further contender from the first. Export it with `to_markdown`, `to_json` or `to_csv`.

    `journal` is the file with the runs, or empty. `stopped` says why not all cases were run, or is
    empty. Check `complete` before you rely on a score.
    """

    graph: str
    contenders: list[Contender]
    differences: list[Difference] = field(default_factory=list[Difference])
    journal: str = ""
    stopped: str = ""

    @property
    def complete(self) -> bool:
        """Whether every case was run and scored. If not, the scores cover only some cases, and the
        missing cases may be worse."""
        return not any(contender.unscored or contender.not_run for contender in self.contenders)

    @property
    def metric_errors(self) -> int:
        """How often a metric failed: it raised, or returned no score."""
        return sum(bool(r.metric_error) for contender in self.contenders for r in contender.cases)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values; `format` is "bae-evaluation-1"."""
        contenders = [
            {
                "name": contender.name,
                "total": contender.total,
                "nodes": contender.nodes,
                **_counts(contender),
                "judging": contender.judging,
                "cases": [_case_data(result) for result in contender.cases],
            }
            for contender in self.contenders
        ]
        differences = [
            {
                "contender": difference.contender,
                "against": difference.against,
                "score": difference.interval,
                "certain": difference.certain,
            }
            for difference in self.differences
        ]
        data = {
            "format": FORMAT,
            "graph": self.graph,
            "journal": self.journal,
            "stopped": self.stopped,
            "complete": self.complete,
            "metric_errors": self.metric_errors,
            "contenders": contenders,
            "differences": differences,
        }
        return _writable(as_json(data))

    def to_markdown(self) -> str:
        """The evaluation as a Markdown page: tables of the totals, of each node class and of the
        differences, then the cases that failed or scored less than 1, each with the expected and
        the actual result and the command that shows its run."""
        from bae.evals.page import to_markdown

        return to_markdown(self)

    def to_csv(self) -> str:
        """One table with a line for each contender and node class. The total has the node "".
        Numbers are not rounded, and unknown numbers are empty."""
        out = io.StringIO()
        writer = csv.DictWriter(out, _COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for contender in self.contenders:
            writer.writerow({**_flat(contender.name, contender.total), **_counts(contender)})
            writer.writerows(_flat(contender.name, row) for row in contender.nodes)
        return _writable(out.getvalue())


def as_json(value: Any) -> Any:
    """A value as JSON. Parts without a JSON form become text."""
    try:
        return to_jsonable_python(
            value, fallback=str, bytes_mode="base64", inf_nan_mode="strings", by_alias=False
        )
    except Exception:  # circular values, serializers that raise
        return short(value, 1000)


def _writable(value: Any) -> Any:
    """Escape lone surrogates, which a model may write and a file cannot store."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {_writable(name): _writable(item) for name, item in items}
    return [*map(_writable, cast("list[Any]", value))] if isinstance(value, list) else value


_COLUMNS: Final = (
    *("contender", "node", "cases", "failed", "not_run", "unscored"),
    *("score", "score_low", "score_high", "scored", "validity", "judged"),
    *("calls", "input_tokens", "output_tokens", "cached_tokens", "cost"),
    *("seconds_mean", "seconds_p50", "seconds_p95"),
    *("rounds", "tool_calls", "tool_errors"),
)


def _counts(contender: Contender) -> dict[str, int]:
    return {
        "failed": len(contender.failed),
        "unscored": len(contender.unscored),
        "not_run": len(contender.not_run),
    }


def _flat(contender: str, row: Row) -> dict[str, Any]:
    # A spreadsheet must not read a name as a formula.
    formula = contender[:1] in ("=", "+", "-", "@", "\t", "\r")
    line: dict[str, Any] = {"contender": f"'{contender}" if formula else contender, "scored": 0}
    line |= {field_.name: getattr(row, field_.name) for field_ in fields(row)}
    score = line.pop("score")
    if score is not None:
        line |= {"score": score.mean, "score_low": score.low, "score_high": score.high}
        line["scored"] = score.n
    return line


def _case_data(result: CaseResult) -> dict[str, Any]:
    names = ("end", "run_id", "outcome", "score", "why", "error", "metric_error", "seconds")
    return {
        "name": result.case.name,
        **result.asked,
        **{name: getattr(result, name) for name in (*names, "usage", "judging", "tool_calls")},
        "nodes": {n: {"score": s.value, "why": s.why} for n, s in sorted(result.nodes.items())},
        "metadata": as_json(dict(result.case.metadata)),
    }


# --- rows of tables ---------------------------------------------------------------------------


def contenders_of(
    runs: Mapping[str, Sequence[CaseRun]], names: Mapping[type[Node], str]
) -> list[Contender]:
    """Make the contenders. All have rows for the same node classes, in the order of `names`: the
    classes with LM work or a score for any contender."""
    rows = {
        contender: [_node_row(cls, node, cases) for cls, node in names.items()]
        for contender, cases in runs.items()
    }
    every = [row for contender_rows in rows.values() for row in contender_rows]
    used_classes = {row.node for row in every if row.calls or row.judged or row.score is not None}
    return [
        Contender(
            contender,
            _total(cases),
            [row for row in rows[contender] if row.node in used_classes],
            [case_.result for case_ in cases],
        )
        for contender, cases in runs.items()
    ]


def differences_of(contenders: Sequence[Contender]) -> list[Difference]:
    """Compare each further contender with the first, over the cases that both have a score for."""
    differences: list[Difference] = []
    for other in contenders[1:]:
        first = contenders[0]
        pairs = [
            (before.score, after.score)
            for before, after in zip(first.cases, other.cases, strict=True)
            if before.score is not None and after.score is not None
        ]
        gain = paired_difference([b for b, _ in pairs], [a for _, a in pairs])
        differences.append(Difference(other.name, first.name, gain))
    return differences


def _total(runs: Sequence[CaseRun]) -> Row:
    over = [run.result for run in runs if run.result.outcome != NOT_RUN]
    scores = [result.score for result in over if result.score is not None]
    measured = [node for run in runs for node in run.nodes.values()]
    return _row("", len(over), measured, scores, [result.seconds for result in over])


def _node_row(cls: type[Node], name: str, runs: Sequence[CaseRun]) -> Row:
    measured = [run.nodes[cls] for run in runs if cls in run.nodes]
    scores = [run.result.nodes[name].value for run in runs if name in run.result.nodes]
    seconds = [taken for node in measured for taken in node.seconds.values()]
    return _row(name, len(measured), measured, scores, seconds)


def _row(
    node: str,
    cases: int,
    measured: Sequence[NodeMeasure],
    scores: Sequence[float],
    seconds: Sequence[float],
) -> Row:
    usage = Usage.total(measure.usage for measure in measured)
    judged = sum(measure.judged for measure in measured)
    valid = sum(measure.valid for measure in measured)
    ordered = sorted(seconds)
    return Row(
        node,
        cases,
        interval(scores),
        valid / judged if judged else None,
        usage.calls,
        usage.input_tokens,
        usage.output_tokens,
        usage.cost,
        sum(ordered) / len(ordered) if ordered else 0.0,
        _percentile(ordered, 0.5),
        _percentile(ordered, 0.95),
        judged,
        usage.cached_tokens,
        sum(measure.rounds for measure in measured),
        sum(measure.tool_calls for measure in measured),
        sum(measure.tool_errors for measure in measured),
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile for a share, interpolated between neighbors."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
