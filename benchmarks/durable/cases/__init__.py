"""The cases: what each asks, and the module that answers.

A case module has `measure(people, keys, settings)`, which asks the processes of those contenders
that it is about and returns the `Result`s, one for each table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.durable.samples import Team
from benchmarks.report import Result
from benchmarks.sampling import Settings

QUESTIONS = {
    "chain": "What does a step cost that is stored before the next one begins?",
    "crowd": "And one of 100 and of 1,000 runs at once?",
    "size": "How large is the store after 250 to 2,000 steps with nodes of 2 KB?",
    "listing": "How long does it take to open a journal of 100,000 runs and list the newest 50?",
    "resume": "How long does it take to take up a run after 1,000 steps?",
}

Measure = Callable[[Team, list[str], Settings], list[Result]]


def measure(case: str, people: Team, keys: list[str], settings: Settings) -> list[Result]:
    """Answer one of `QUESTIONS`."""
    answer: Measure = importlib.import_module(f"{__name__}.{case}").measure
    return answer(people, keys, settings)
