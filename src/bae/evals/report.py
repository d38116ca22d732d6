"""The report of an evaluation: rows of numbers for each contender, their cases, and the differences
between contenders. It can be read as data, JSON and CSV."""

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
"""How a case ended. "ended": its run ended and was scored. "failed": its run failed, so it scores
0. "unscored": its run ended, but its metric failed. "not run": the evaluation was stopped before
the case ended."""
NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one node class, or the total, for one contender.

    If an answer chooses and fills in one call, its usage and validity count for the node that
    chooses.
    """

    node: str
    """The name of the class. Empty for the total."""
    cases: int
    """The number of cases that ended or failed. For a class, the number of cases that reached
    it."""
    score: Interval | None
    """The mean score with its interval, over `score.n` cases. None if nothing was scored. A node
    class is scored by its expected fields and by the LM's choice of a successor. If there are both
    scores, the score is their mean. If the case names a successor in `nodes`, choosing it is right.
    Otherwise a choice is right if it can lead to the expected end."""
    validity: float | None
    """The share of valid answers among the `judged` answers. None without answers."""
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    """The cost of LM calls. None if it is unknown."""
    seconds_mean: float
    """The mean time of a case. For a class, the mean time of the LM work for one node: its fill,
    and the choice of its successor."""
    seconds_p50: float
    """The median of the times that `seconds_mean` averages."""
    seconds_p95: float
    """The 95th percentile of the times that `seconds_mean` averages."""
    judged: int = 0
    """The number of answers that bae checked against the types and validators."""
    cached_tokens: int = 0
    rounds: int = 0
    """The number of rounds with tools."""
    tool_calls: int = 0
    tool_errors: int = 0
    """The number of tool calls that ended with an error."""

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case with one contender. Use its `run_id` to look at the run."""

    case: Case
    run_id: str
    score: float | None = None
    """The score. If the case has no score, this is None and `error` says why."""
    why: str = ""
    """The metric's reason, or the expectations that the run missed."""
    error: str = ""
    """Why the run failed, the case has no score, or the case was not run. Otherwise empty."""
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    """The LM usage of the run."""
    outcome: CaseOutcome = "ended"
    judging: Usage = field(default_factory=Usage)
    """The LM usage of the metric."""
    nodes: dict[str, Score] = field(default_factory=dict[str, "Score"])
    """The scores of nodes by class name."""
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The inputs and expectations of the case as JSON, without secrets."""
    end: Mapping[str, Any] | None = None
    """The last node of the run, `{"type": …, "fields": {…}}`, without secrets. None if the run did
    not end."""
    metric_error: str = ""
    """The error of a metric. Otherwise empty."""
    scoring_error: str = ""
    """Why the case could not be scored. Otherwise empty."""
    tool_calls: int = 0
    """The number of tool calls of the run."""

    @property
    def failed(self) -> bool:
        """Whether the run failed because of an error, its timeout or an unanswered gate."""
        return self.outcome == "failed"


@dataclass(frozen=True, slots=True)
class Contender:
    """The results of one LM."""

    name: str
    total: Row
    nodes: list[Row]
    """A row for each node class."""
    cases: list[CaseResult]
    """The results of all cases, in order."""

    @property
    def failed(self) -> list[CaseResult]:
        """The cases whose runs failed."""
        return [result for result in self.cases if result.failed]

    @property
    def not_run(self) -> list[CaseResult]:
        """The cases that had not ended when the evaluation was stopped."""
        return [result for result in self.cases if result.outcome == NOT_RUN]

    @property
    def unscored(self) -> list[CaseResult]:
        """The cases that ended but could not be scored."""
        return [result for result in self.cases if result.outcome == "unscored"]

    @property
    def imperfect(self) -> list[CaseResult]:
        """The cases that ended with a score of less than 1. The lowest score is first."""
        scored = [(case_.score, case_) for case_ in self.cases if case_.outcome == "ended"]
        lower = [(score, result) for score, result in scored if score is not None and score < 1]
        return [result for _, result in sorted(lower, key=lambda pair: pair[0])]

    @property
    def judging(self) -> Usage:
        """The usage of judges. No row contains it."""
        return Usage.total(result.judging for result in self.cases)


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better `contender` scores than `against`."""

    contender: str
    against: str
    interval: Interval | None
    """The difference over the cases that have a score for both. None if there are no such cases."""

    @property
    def certain(self) -> bool:
        """Whether the difference is significant: its interval excludes 0."""
        return self.interval is not None and self.interval.excludes_zero


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate`. Export it with `to_markdown`, `to_json` or `to_csv`. Check
    `complete` before you rely on a score."""

    graph: str
    """The name of the graph."""
    contenders: list[Contender]
    """The results of the LMs, in the order of the argument `lms`."""
    differences: list[Difference] = field(default_factory=list[Difference])
    """The difference of each further contender from the first contender."""
    journal: str = ""
    """The file with the runs, or empty."""
    stopped: str = ""
    """Why not all cases were run, or empty."""

    @property
    def complete(self) -> bool:
        """Whether every case was run and scored. If not, the scores cover only some cases, and the
        missing cases may be worse."""
        return not any(contender.unscored or contender.not_run for contender in self.contenders)

    @property
    def metric_errors(self) -> int:
        """How often a metric raised or returned no score."""
        return sum(bool(r.metric_error) for contender in self.contenders for r in contender.cases)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values. The `format` is "bae-evaluation-1"."""
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
        """Return the evaluation as a Markdown page.

        First come tables of the totals, of the differences and of each node class. Then the page
        lists the cases that failed, have no score or scored less than 1. For each case, the page
        shows the expected and the actual result, and the command that shows the run.
        """
        from bae.evals.page import to_markdown

        return to_markdown(self)

    def to_csv(self) -> str:
        """Return a CSV table with a line for each contender and node class. In the line of the
        total, `node` is empty. Numbers are not rounded, and unknown numbers are empty."""
        out = io.StringIO()
        writer = csv.DictWriter(out, _COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for contender in self.contenders:
            writer.writerow({**_flat(contender.name, contender.total), **_counts(contender)})
            writer.writerows(_flat(contender.name, row) for row in contender.nodes)
        return _writable(out.getvalue())


def as_json(value: Any) -> Any:
    """Return a value as JSON. Parts without a JSON form become text."""
    try:
        return to_jsonable_python(
            value, fallback=str, bytes_mode="base64", inf_nan_mode="strings", by_alias=False
        )
    except Exception:  # circular values, serializers that raise
        return short(value, 1000)


def _writable(value: Any) -> Any:
    """Escape lone surrogates, because an LLM may write them, but a file cannot store them."""
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
    """Make the contenders. All contenders have rows for the same node classes: the classes with LM
    work or a score for any contender, in the order of `names`."""
    rows = {
        contender: [_node_row(cls, node, cases) for cls, node in names.items()]
        for contender, cases in runs.items()
    }
    rows_of_all = [row for contender_rows in rows.values() for row in contender_rows]
    used_classes = {
        row.node for row in rows_of_all if row.calls or row.judged or row.score is not None
    }
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
    """Compare each further contender with the first, over the cases that have a score for both."""
    differences: list[Difference] = []
    for contender in contenders[1:]:
        first = contenders[0]
        pairs = [
            (before.score, after.score)
            for before, after in zip(first.cases, contender.cases, strict=True)
            if before.score is not None and after.score is not None
        ]
        gain = paired_difference([b for b, _ in pairs], [a for _, a in pairs])
        differences.append(Difference(contender.name, first.name, gain))
    return differences


def _total(runs: Sequence[CaseRun]) -> Row:
    finished = [run.result for run in runs if run.result.outcome != NOT_RUN]
    scores = [result.score for result in finished if result.score is not None]
    measured = [node for run in runs for node in run.nodes.values()]
    return _row("", len(finished), measured, scores, [result.seconds for result in finished])


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
    """Return the percentile for a share, interpolated between neighbors."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
