"""Evaluate graphs on cases: score, validity, cost and latency of each LLM, in total and for each
node class."""

from bae.evals.cases import Case, CaseMetric, load_cases
from bae.evals.datasets import cases_of
from bae.evals.evaluation import evaluate
from bae.evals.intervals import Interval, interval, paired_difference
from bae.evals.report import CaseResult, Contender, Difference, Evaluation, Row
from bae.rooms import export_lazily

__all__ = [
    "Case",
    "CaseMetric",
    "CaseResult",
    "Contender",
    "Difference",
    "Evaluation",
    "Interval",
    "Row",
    "cases_of",
    "evaluate",
    "interval",
    "load_cases",
    "paired_difference",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {},
    former={
        "load_dataset": ("evals.datasets", "call load_cases(path, graph, evaluators=[…])"),
    },
)
