"""Evaluation of graphs over cases: score, validity, cost and latency of each model, in total and
for each node class."""

from bae.evals.cases import Case, CaseMetric, load_cases
from bae.evals.datasets import cases_of, load_dataset
from bae.evals.evaluation import evaluate
from bae.evals.intervals import Interval, interval, paired_difference
from bae.evals.report import CaseResult, Contender, Difference, Evaluation, Row

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
    "load_dataset",
    "paired_difference",
]
