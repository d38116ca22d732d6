"""Scores of graphs over cases: how good, how valid, how dear and how fast each LM is, side by side,
in total and for each node."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.evals.cases import (
        Case,
        load_cases,
    )
    from bae.evals.datasets import (
        cases_of,
        load_dataset,
        metric_of,
    )
    from bae.evals.evaluating import (
        CaseMetric,
        evaluate,
    )
    from bae.evals.intervals import (
        Interval,
        interval,
        paired_difference,
    )
    from bae.evals.report import (
        CaseResult,
        Contender,
        Difference,
        Evaluation,
        Row,
    )

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
    "metric_of",
    "paired_difference",
]

# Modules are imported when a name of theirs is first asked for: many programs only run graphs.
_MODULES = {
    "Case": "cases",
    "CaseMetric": "evaluating",
    "CaseResult": "report",
    "Contender": "report",
    "Difference": "report",
    "Evaluation": "report",
    "Interval": "intervals",
    "Row": "report",
    "cases_of": "datasets",
    "evaluate": "evaluating",
    "interval": "intervals",
    "load_cases": "cases",
    "load_dataset": "datasets",
    "metric_of": "datasets",
    "paired_difference": "intervals",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bae.evals' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"bae.evals.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
