"""An evaluation as data in a file: CSV for spreadsheets, JSON for programs. Nothing is worked out
here; `report.py` has the numbers, and `page.py` writes them for people."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, cast

from bae.evals.shown import as_json

if TYPE_CHECKING:
    from bae.evals.intervals import Interval
    from bae.evals.report import CaseResult, Evaluation, Row
    from bae.usage import Usage

FORMAT: Final = "bae-evaluation-1"


def to_csv(found: Evaluation) -> str:
    """One flat table with unrounded numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FLAT)
    for each in found.contenders:
        for row in (each.total, *each.nodes):
            score = row.score
            bounds = (
                ("", "", "", 0) if score is None else (score.mean, score.low, score.high, score.n)
            )
            total = row is each.total
            writer.writerow(
                [
                    _inert(each.name),
                    row.node,
                    row.cases,
                    len(each.failed) if total else "",
                    len(each.not_run) if total else "",
                    len(each.unscored) if total else "",
                    *bounds,
                    _or_empty(row.validity),
                    row.judged,
                    row.calls,
                    row.input_tokens,
                    row.output_tokens,
                    row.cached_tokens,
                    _or_empty(row.cost),
                    row.seconds_mean,
                    row.seconds_p50,
                    row.seconds_p95,
                ]
            )
    return printable(out.getvalue())


def printable(said: str) -> str:
    """A text that any file can hold: halves of characters, which models and JSON can bring in, as
    their numbers."""
    return said.encode("utf-8", "backslashreplace").decode()


def to_json(found: Evaluation) -> dict[str, Any]:
    """Everything, as JSON values."""
    return _printable_json(
        {
            "format": FORMAT,
            "graph": found.graph,
            "journal": found.journal,
            "stopped": found.stopped,
            "complete": found.complete,
            "metric_errors": found.metric_errors,
            "contenders": [
                {
                    "name": each.name,
                    "total": _row_data(each.total),
                    "nodes": [_row_data(row) for row in each.nodes],
                    "failed": len(each.failed),
                    "unscored": len(each.unscored),
                    "not_run": len(each.not_run),
                    "judging": _usage_data(each.judging),
                    "cases": [_case_data(result) for result in each.cases],
                }
                for each in found.contenders
            ],
            "differences": [
                {
                    "contender": each.contender,
                    "against": each.against,
                    "score": _interval_data(each.interval),
                    "certain": each.certain,
                }
                for each in found.differences
            ],
        }
    )


_FLAT: Final = (
    "contender",
    "node",
    "cases",
    "failed",
    "not_run",
    "unscored",
    "score",
    "score_low",
    "score_high",
    "scored",
    "validity",
    "judged",
    "calls",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cost",
    "seconds_mean",
    "seconds_p50",
    "seconds_p95",
)


# CSV.


def _inert(said: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{said}" if said[:1] in ("=", "+", "-", "@", "\t", "\r") else said


def _or_empty(value: float | None) -> float | str:
    return "" if value is None else value


# JSON.


def _printable_json(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        held = cast(dict[str, Any], value)
        return {printable(name): _printable_json(each) for name, each in held.items()}
    if isinstance(value, list):
        return [_printable_json(each) for each in cast(list[Any], value)]
    if isinstance(value, float) and not isfinite(value):  # no number in JSON
        return str(value)
    return value


def _row_data(row: Row) -> dict[str, Any]:
    return {**asdict(row), "score": _interval_data(row.score)}


def _interval_data(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _usage_data(used: Usage) -> dict[str, Any]:
    return {**asdict(used), "models": list(used.models)}


def _case_data(result: CaseResult) -> dict[str, Any]:
    case = result.case
    return {
        "name": case.name,
        **result.asked,
        "end": result.end,
        "run_id": result.run_id,
        "outcome": result.outcome,
        "score": result.score,
        "why": result.why,
        "error": result.error,
        "metric_error": result.metric_error,
        "seconds": result.seconds,
        "usage": _usage_data(result.usage),
        "judging": _usage_data(result.judging),
        "nodes": {n: {"score": s.value, "why": s.why} for n, s in sorted(result.nodes.items())},
        "metadata": as_json(dict(case.metadata)),
    }
