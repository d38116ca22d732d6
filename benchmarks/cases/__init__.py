"""The cases: what each letter asks, and the module that answers.

A case module has `measure(case, contenders, settings)`, which takes the contenders by key, runs
those that can take part, and returns a `Result` with the table and the verdicts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from benchmarks.contenders import Contender
from benchmarks.report import Result
from benchmarks.sampling import Settings

QUESTIONS = {
    "a1": ("chain", "What does one of 1,000 steps cost?"),
    "a2": ("chain", "What does one of 1,000 three-way choices cost?"),
    "b": ("mapping", "What does one item of a map over 100, 1,000 and 10,000 cost?"),
    "c": ("dataflow", "How close to its longest path does an uneven dependency graph finish?"),
    "d": ("crowd", "What do 10,000 runs at once on one event loop cost, in time and memory?"),
    "e": ("build", "How long does building a graph of 200 node types take?"),
    "f": ("imports", "How long does the import take, and does it open a socket?"),
    "g": ("cold_start", "How long does a program take that starts, runs two steps and exits?"),
}

Field = Mapping[str, Contender]


def measure(case: str, contenders: Field, settings: Settings) -> Result:
    """Answer one of `QUESTIONS`."""
    module = importlib.import_module(f"{__name__}.{QUESTIONS[case][0]}")
    answer: Callable[[str, Field, Settings], Result] = module.measure
    return answer(case, contenders, settings)
