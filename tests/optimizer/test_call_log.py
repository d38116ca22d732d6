"""What the call log promises beyond answering from a file: a budget is charged for what its own
optimization reads, judges are asked through it, and sync code can close the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bae import Node
from bae.lm import Backend, Budget, Usage
from bae.lm.backend import Answer, Prompt
from bae.optimizer import Judge, Score
from bae.optimizer.calls import CallLog


class Note(Node):
    text: str

    async def __call__(self) -> None: ...


class Says(Backend):
    """A backend that answers by a function, and remembers its questions."""

    model = "says"

    def __init__(self, say: Callable[[Prompt], Any], **options: Any) -> None:
        super().__init__(**options)
        self.say = say
        self.asked: list[Prompt] = []

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    async def answer(self, prompt: Prompt) -> Answer:
        self.asked.append(prompt)
        return Answer(json.dumps(self.say(prompt)), Usage(calls=1, input_tokens=10, cost=0.0))


@pytest.fixture
def lm() -> Says:
    return Says(lambda prompt: {"text": "fine"})


async def ask_for_notes(
    log: CallLog, lm: Backend, *texts: str, budget: Budget | None = None
) -> None:
    """Ask for a note with each of these instructions, as an optimization with a budget does."""
    around = log.around(lm)
    if budget is None:
        for text in texts:
            await around.fill(Note, {}, text)
        return
    log.charge(budget)
    with budget:
        for text in texts:
            await around.fill(Note, {}, text)


# Budgets


async def test_a_budget_is_charged_only_for_logged_answers_it_reads(lm: Says, tmp_path: Path):
    async with CallLog(tmp_path / "calls.sqlite") as log:
        await ask_for_notes(log, lm, *(f"by another {number}" for number in range(20)))
        await ask_for_notes(log, lm, "mine", "mine too")

    budget = Budget(calls=4)
    async with CallLog(tmp_path / "calls.sqlite") as log:
        await ask_for_notes(log, lm, "mine", "mine too", "mine at last", budget=budget)
    assert budget.usage.calls == 3
    assert budget.usage.tokens == 30
    assert len(lm.asked) == 23


async def test_a_budget_is_charged_once_for_an_answer_read_often(lm: Says, tmp_path: Path):
    file = tmp_path / "calls.sqlite"
    first = Budget(calls=10)
    async with CallLog(file) as log:
        await ask_for_notes(log, lm, "a", "b", budget=first)
    async with CallLog(file) as log:  # another object, as where the path is given twice
        await ask_for_notes(log, lm, "a", "b", "b", budget=first)
    assert first.usage.calls == 2

    second = Budget(calls=10)
    async with CallLog(file) as log:
        await ask_for_notes(log, lm, "a", "a", budget=second)
        await ask_for_notes(log, lm, "a", "b", budget=second)
    assert second.usage.calls == 2


async def test_answers_paid_by_another_budget_of_this_process_are_free(lm: Says, tmp_path: Path):
    for _ in range(2):
        async with CallLog(tmp_path / "calls.sqlite") as log:
            optimizing, comparing = Budget(calls=10), Budget(calls=10)
            await ask_for_notes(log, lm, "a", budget=optimizing)
            await ask_for_notes(log, lm, "a", "b", budget=comparing)
        assert (optimizing.usage.calls, comparing.usage.calls) == (1, 1)
    assert len(lm.asked) == 2


async def test_an_outer_budget_is_charged_only_for_new_calls(lm: Says, tmp_path: Path):
    async with CallLog(tmp_path / "calls.sqlite") as log:
        await ask_for_notes(log, lm, "a")
    async with CallLog(tmp_path / "calls.sqlite") as log:
        with Budget(calls=10) as around:
            await ask_for_notes(log, lm, "a", "b", budget=Budget(calls=10))
    assert around.usage.calls == 1


# Judges


GOLD, GIVEN = Note(text="rain"), Note(text="it pours")


def make_judge(log: CallLog, lm: Backend, notes: list[str]) -> Judge:
    """A judge as an optimization asks it."""
    from bae.optimizer.calls import with_log

    pytest.importorskip("dspy")
    return with_log(Judge(lm), log, notes.append)


@pytest.mark.once
@pytest.mark.parametrize("stop", ["end", "refused"])
async def test_a_judge_without_a_verdict_scores_zero(stop: Any, tmp_path: Path):
    class Judges(Says):
        async def answer(self, prompt: Prompt) -> Answer:
            return replace(await super().answer(prompt), stop=stop)

    notes: list[str] = []
    lm = Judges(lambda prompt: {"reason": "?", "grade": "8/10"})
    asked: set[int] = set()
    for _ in range(2):
        budget = Budget(calls=100)
        async with CallLog(tmp_path / "calls.sqlite") as log:
            log.charge(budget)
            with budget:
                score = await make_judge(log, lm, notes)(GOLD, GIVEN)
        assert score == Score(0.0, "the judge gave no verdict")
        asked |= {len(lm.asked), budget.usage.calls}
    assert len(asked) == 1
    assert set(notes) == {"the judge gave no verdict on some answers, which count 0"}


async def test_a_failed_question_is_not_asked_again_after_a_resume(
    tmp_path: Path,
):
    from bae import FillError

    lm = Says(lambda prompt: {"text": 3})
    for _ in range(2):
        async with CallLog(tmp_path / "calls.sqlite") as log:
            with pytest.raises(FillError):
                await log.around(lm).fill(Note, {}, "a")
    assert len(lm.asked) == lm.attempts + 1
