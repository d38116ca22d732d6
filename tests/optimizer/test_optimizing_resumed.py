"""An optimization that is killed and started again: it asks nothing twice, and ends as if nothing
had happened. The killing is done to a real process, which asks a provider on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dspy")
pytest.importorskip("optuna")
pytest.importorskip("anthropic")
pytest.importorskip("h11")

import wrong_by_design
from bae import BaeError
from bae.lm import Budget
from bae.lm.backend import Prompt, Question
from bae.optimizer import aoptimize_node
from bae.optimizer.calls import CallLog
from bae.optimizer.optimizers import OPTIMIZERS
from bae.prompts.messages import ask_in_text
from bae.testing import ScriptedLM
from wrong_by_design import SMALL, Coded, answer, asks, fills, optimize_with, wrong_provider

pytestmark = pytest.mark.once


class Holding:
    """Answers like the model, but only a limited number of requests for each optimizer: later
    requests wait forever. Notes its answers."""

    def __init__(self, most: dict[str, int]) -> None:
        self.left = dict(most)
        self.held: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.changed = asyncio.Event()

    async def __call__(self, received: Any) -> Any:
        optimizer = received.model.partition("-")[2]
        if self.left[optimizer] <= 0:
            self.held[optimizer] += 1
            self.changed.set()
            await asyncio.Event().wait()
        self.left[optimizer] -= 1
        self.answered[json.dumps(received.body, sort_keys=True)] += 1
        return answer(received)

    async def until_held(self, expected: dict[str, int]) -> None:
        async with asyncio.timeout(240):
            while any(self.held[name] < count for name, count in expected.items()):
                await self.changed.wait()
                self.changed.clear()


async def test_a_killed_and_resumed_optimizer_repeats_no_paid_call(tmp_path):
    # Each is stopped in the middle of something else: an optimizer that asks one at a time waits
    # for one answer, and the others, which are trying a candidate, for as many as they ask at once.
    at_work = {"bootstrap": 1, "miprov2": 4, "gepa": 4}
    async with wrong_provider() as provider:
        first = Holding({"bootstrap": 2, "miprov2": 10, "gepa": 3})
        provider.always(first)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, wrong_by_design.__file__, provider.url, str(tmp_path)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            await first.until_held(at_work)
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        spent = sum(first.answered.values())
        assert spent == 15

        unbounded = dict.fromkeys(OPTIMIZERS, 10**6)
        second = Holding(unbounded)
        provider.always(second)
        resumed = {
            name: await optimize_with(name, provider.url, tmp_path / f"{name}.sqlite")
            for name in OPTIMIZERS
        }
        whole = Holding(unbounded)
        provider.always(whole)
        alone = {
            name: await optimize_with(name, provider.url, tmp_path / f"{name}-alone.sqlite")
            for name in OPTIMIZERS
        }

    assert resumed == alone
    assert first.answered + second.answered == whole.answered
    for name in OPTIMIZERS:
        assert len(read_rows(tmp_path / f"{name}.sqlite")) == len(
            read_rows(tmp_path / f"{name}-alone.sqlite")
        )


def read_rows(file: Path) -> list[Any]:
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT key, text FROM answers ORDER BY key").fetchall()
    database.close()
    return rows


async def test_a_budget_includes_the_spending_of_earlier_processes(provider, student, tmp_path):
    file = tmp_path / "calls.sqlite"
    given: dict[str, Any] = {"lm": student, "optimizer": "gepa", "calls": file, **SMALL["gepa"]}
    first = Budget(calls=10)
    cut_short = await aoptimize_node(Coded, fills(12), budget=first, **given)
    assert first.usage.calls == provider.received == 10
    assert "budget ran out" in cut_short.made.notes[0]

    same = Budget(calls=10)
    again = await aoptimize_node(Coded, fills(12), budget=same, **given)
    assert same.usage.calls == 10
    assert same.usage.tokens == first.usage.tokens
    assert same.elapsed > 0
    assert provider.received == 10
    assert again.made.notes == cut_short.made.notes

    more = Budget(calls=500)
    whole = await aoptimize_node(Coded, fills(12), budget=more, **given)
    assert more.usage.calls == provider.received > 10
    assert whole.made.best == {"fill": 1.0}


async def test_answers_from_before_a_cancellation_are_reused(provider, student, tmp_path):
    given: dict[str, Any] = {"lm": student, "optimizer": "gepa", **SMALL["gepa"]}
    holding = Holding({"": 2})
    provider.always(holding)
    task = asyncio.create_task(
        aoptimize_node(Coded, fills(12), calls=tmp_path / "calls.sqlite", **given)
    )
    await holding.until_held({"": 4})
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(read_rows(tmp_path / "calls.sqlite")) == 2

    provider.always(answer)
    log = CallLog(tmp_path / "calls.sqlite")
    before = provider.received
    await aoptimize_node(Coded, fills(12), calls=log, **given)
    await log.aclose()
    assert log.statistics().calls == provider.received - before
    assert len(read_rows(tmp_path / "calls.sqlite")) == 2 + log.statistics().calls


async def test_one_call_log_serves_optimizations_with_different_lms(provider, student, tmp_path):
    async with CallLog(tmp_path / "calls.sqlite") as log:
        await aoptimize_node(Coded, fills(12), lm=student, calls=log, max_bootstrapped_demos=1)
        asked = provider.received
        await aoptimize_node(Coded, fills(12), lm=student, calls=log, max_bootstrapped_demos=1)
        assert provider.received == asked
        async with asks(provider, "another") as other:
            await aoptimize_node(Coded, fills(12), lm=other, calls=log, max_bootstrapped_demos=1)
        assert provider.received == 2 * asked


@pytest.mark.parametrize("content", [b"no database at all" * 99, None])
async def test_a_file_that_is_not_a_call_log_is_refused_at_once(
    content, provider, student, tmp_path
):
    file = tmp_path / "calls.sqlite"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)

    with pytest.raises(BaeError) as caught:
        await aoptimize_node(Coded, fills(12), lm=student, calls=file)
    assert caught.value.code == "bae-calls-unusable"
    assert str(file) in caught.value.message
    assert provider.received == 0


def question(text: str = "What?") -> Prompt:
    return Prompt("", ask_in_text(text), {"type": "object"}, "Coded", Question())


async def test_concurrent_equal_questions_of_a_rollout_are_asked_once(provider, student):
    provider.always({"code": "K1"})
    log = CallLog()
    first, other = log.around(student, rollout=1), log.around(student, rollout=2)

    answers = await asyncio.gather(*(first.answer(question()) for _ in range(3)))
    await other.answer(question())
    await first.answer(question())

    assert {answer.text for answer in answers} == {'{"code": "K1"}'}
    assert provider.received == 2
    assert log.statistics() == type(log.statistics())(calls=2, from_log=1, joined=2)


async def test_an_lm_without_settings_causes_a_single_warning(tmp_path, caplog):
    scripted = ScriptedLM()
    with caplog.at_level(logging.WARNING, "bae.optimizer"):
        async with CallLog(tmp_path / "calls.sqlite") as log:
            log.around(scripted)
            log.around(scripted, rollout=1)
    (message,) = caplog.messages
    assert "ScriptedLM has no settings" in message
