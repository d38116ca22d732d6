"""What an evaluation found: rows of numbers for each contender, the cases behind them, and the
differences between contenders; as data, JSON and CSV."""

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
"""How a case ended: its run ended and was scored; it failed, which scores 0; it ended, and its
metric failed; or it was not run to its end, since the evaluation was stopped."""
NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one node class, or of all, for one contender.

    - `node`: the name of the class; empty in the row of the total.
    - `cases`: how many cases were run to an end, or reached a node of the class.
    - `score`: the mean score with its interval, over `score.n` cases; None if nothing was scored. A
      node is scored by the fields that cases expect of it; by the LM's choice of a successor, which
      should be one that the case names under `nodes`, or else one that can lead to the expected
      end; and by the mean of both if both are known.
    - `validity`: the share of valid answers among those `judged`; None without any. An answer that
      chooses and fills at once counts for the choosing node, and so does its usage.
    - `calls`, `input_tokens`, `output_tokens`, `cached_tokens`, `cost`: what LM calls used; a cost
      of None is unknown.
    - `seconds_mean`, `seconds_p50`, `seconds_p95`: of the total, how long a case took; of a node
      class, the LM work for one node: its fill, and the choice from it.
    - `rounds`, `tool_calls`, `tool_errors`: the rounds of conversations with tools, the calls in
      them, and how many of the calls ended with an error.
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
        """Those in and those out."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case with one contender: how it came out, and its `run_id` to look it up by.

    - `score` is None if there is none, and `error` says why; `why` is the reason of the metric, or
      what was missed of all that the case expects.
    - `usage` is what the run used, `judging` what its metric did; `tool_calls` is how many tools
      its LMs called.
    - `nodes` has the scores of nodes by the names of their classes.
    - `asked` is what the case begins with and expects, as JSON, and `end` the node that the run
      ended at, `{"type": …, "fields": {…}}`; None where it did not. Secrets are left out of both.
    - `metric_error` is what a metric failed with, where one did; `scoring_error` is why the case
      could not be scored.
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
        """Whether the run failed: by an error, by its time, or at an unanswered gate."""
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
        return [result for result in self.cases if result.outcome == NOT_RUN]

    @property
    def unscored(self) -> list[CaseResult]:
        """The cases that ended and that could not be scored."""
        return [result for result in self.cases if result.outcome == "unscored"]

    @property
    def imperfect(self) -> list[CaseResult]:
        """The cases that ended with a score of less than 1, the lowest first."""
        scored = [(each.score, each) for each in self.cases if each.outcome == "ended"]
        lower = [(score, each) for score, each in scored if score is not None and score < 1]
        return [each for _, each in sorted(lower, key=lambda pair: pair[0])]

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
        return self.interval is not None and self.interval.excludes_zero


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
        contenders = [
            {
                "name": each.name,
                "total": each.total,
                "nodes": each.nodes,
                **_counts(each),
                "judging": each.judging,
                "cases": [_case_data(result) for result in each.cases],
            }
            for each in self.contenders
        ]
        differences = [
            {
                "contender": each.contender,
                "against": each.against,
                "score": each.interval,
                "certain": each.certain,
            }
            for each in self.differences
        ]
        found = {
            "format": FORMAT,
            "graph": self.graph,
            "journal": self.journal,
            "stopped": self.stopped,
            "complete": self.complete,
            "metric_errors": self.metric_errors,
            "contenders": contenders,
            "differences": differences,
        }
        return _writable(as_json(found))

    def to_markdown(self) -> str:
        """Tables for people: the totals, one for each node class, the differences, and the cases
        that failed or scored less than 1, with the expected and the actual result, and the command
        that shows their run."""
        from bae.evals.page import to_markdown

        return to_markdown(self)

    def to_csv(self) -> str:
        """One flat table: a line for each contender and node class, the total under the node "",
        numbers unrounded and unknown ones empty."""
        out = io.StringIO()
        writer = csv.DictWriter(out, _COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for each in self.contenders:
            writer.writerow({**_flat(each.name, each.total), **_counts(each)})
            writer.writerows(_flat(each.name, row) for row in each.nodes)
        return _writable(out.getvalue())


def as_json(value: Any) -> Any:
    """A value as JSON; what has no form in it becomes text."""
    try:
        return to_jsonable_python(
            value, fallback=str, bytes_mode="base64", inf_nan_mode="strings", by_alias=False
        )
    except Exception:  # circular values, serializers that raise
        return short(value, 1000)


def _writable(value: Any) -> Any:
    """What any file can hold: lone surrogates, which a model can bring in, become escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        return {_writable(name): _writable(each) for name, each in held.items()}
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
    # A name must not look like a formula to a spreadsheet.
    formula = contender[:1] in ("=", "+", "-", "@", "\t", "\r")
    found: dict[str, Any] = {"contender": f"'{contender}" if formula else contender, "scored": 0}
    found |= {each.name: getattr(row, each.name) for each in fields(row)}
    score = found.pop("score")
    if score is not None:
        found |= {"score": score.mean, "score_low": score.low, "score_high": score.high}
        found["scored"] = score.n
    return found


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
    """The contenders by name, each with rows for the same node classes, in the order of `names`:
    those with LM work or a score in any."""
    rows = {
        contender: [_node_row(cls, node, cases) for cls, node in names.items()]
        for contender, cases in runs.items()
    }
    every = [row for each in rows.values() for row in each]
    shown = {row.node for row in every if row.calls or row.judged or row.score is not None}
    return [
        Contender(
            contender,
            _total(cases),
            [row for row in rows[contender] if row.node in shown],
            [each.result for each in cases],
        )
        for contender, cases in runs.items()
    ]


def differences_of(contenders: Sequence[Contender]) -> list[Difference]:
    """Each further contender against the first, over the cases that both have a score for."""
    found: list[Difference] = []
    for other in contenders[1:]:
        first = contenders[0]
        pairs = [
            (before.score, after.score)
            for before, after in zip(first.cases, other.cases, strict=True)
            if before.score is not None and after.score is not None
        ]
        apart = paired_difference([b for b, _ in pairs], [a for _, a in pairs])
        found.append(Difference(other.name, first.name, apart))
    return found


def _total(runs: Sequence[CaseRun]) -> Row:
    over = [each.result for each in runs if each.result.outcome != NOT_RUN]
    scores = [result.score for result in over if result.score is not None]
    measured = [node for each in runs for node in each.nodes.values()]
    return _row("", len(over), measured, scores, [result.seconds for result in over])


def _node_row(cls: type[Node], name: str, runs: Sequence[CaseRun]) -> Row:
    measured = [each.nodes[cls] for each in runs if cls in each.nodes]
    scores = [each.result.nodes[name].value for each in runs if name in each.result.nodes]
    seconds = [taken for node in measured for taken in node.seconds.values()]
    return _row(name, len(measured), measured, scores, seconds)


def _row(
    node: str,
    cases: int,
    measured: Sequence[NodeMeasure],
    scores: Sequence[float],
    seconds: Sequence[float],
) -> Row:
    used = Usage.total(each.usage for each in measured)
    judged = sum(each.judged for each in measured)
    valid = sum(each.valid for each in measured)
    taken = sorted(seconds)
    return Row(
        node,
        cases,
        interval(scores),
        valid / judged if judged else None,
        used.calls,
        used.input_tokens,
        used.output_tokens,
        used.cost,
        sum(taken) / len(taken) if taken else 0.0,
        _percentile(taken, 0.5),
        _percentile(taken, 0.95),
        judged,
        used.cached_tokens,
        sum(each.rounds for each in measured),
        sum(each.tool_calls for each in measured),
        sum(each.tool_errors for each in measured),
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the others is, interpolated between neighbors."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
