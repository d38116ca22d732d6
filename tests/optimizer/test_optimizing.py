"""Optimizing a node by an optimizer's name, against a model that is wrong by design: the learned
prompt, its examples, its limits, and the progress reports."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import threading
import time
from typing import Any

import pytest

pytest.importorskip("dspy")
pytest.importorskip("optuna")
pytest.importorskip("anthropic")
pytest.importorskip("h11")

from bae import BaeError, BaeLMError, BudgetError
from bae.lm import Budget
from bae.optimizer import Progress, Score, aoptimize_node, compare, optimize_node
from bae.optimizer.calls import CallLog
from bae.optimizer.optimizers import OPTIMIZERS
from bae.optimizer.predictors import artifact_of, fresh_predictor
from bae.testing import ScriptedLM, Status
from wrong_by_design import (
    CODES,
    COLOURS,
    HINT,
    SMALL,
    Coded,
    Parcel,
    answer,
    asks,
    conversation,
    fills,
    right_examples,
)

pytestmark = pytest.mark.once


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_each_optimizer_finds_the_prompt_that_corrects_a_wrong_model(
    optimizer, student, teacher
):
    optimized = await aoptimize_node(
        Coded,
        right_examples(),
        lm=student,
        teacher=teacher,
        optimizer=optimizer,
        minimum=4,  # there are as many codes, and so as many choices to learn
        **SMALL[optimizer],
    )

    fill, choice = await compare(Coded, optimized, right_examples(20, seed=1), lm=student)
    for predictor in (fill, choice):
        assert predictor.before.high < 0.3
        assert predictor.after.low > 0.7
        assert predictor.certain
    assert optimized.made is not None
    assert (optimized.made.optimizer, optimized.made.seed) == (optimizer, 0)
    assert (optimized.made.model, optimized.made.teacher) == ("student", "teacher")
    assert optimized.made.examples == {"fill": 24, "choice": 24}
    if optimizer == "gepa":
        assert HINT in optimized.fill.signature.instructions


async def test_an_optimizer_asks_exactly_the_questions_of_a_run(provider, student):
    from bae import Graph
    from bae.lm import WithPrompts

    optimized = await aoptimize_node(Coded, right_examples(), lm=student, minimum=4)
    held_out = right_examples(4, seed=1)
    await compare(Coded, optimized, held_out, lm=student)
    asked = [dict(request.body) for request in provider.requests]
    before = provider.received

    lm = WithPrompts(student, {Coded: artifact_of(optimized).prompts()})
    parcel = Parcel(**{n: held_out[0][n] for n in ("colour", "weight")})
    result = await Graph(start=Parcel).arun(parcel, lm=lm)

    assert [type(node).__name__ for node in result.trace[:2]] == ["Parcel", "Coded"]
    run = [dict(request.body) for request in provider.requests[before:]]
    assert len(run) >= 2  # the fill of Coded, and the choice after it
    assert run[0] in asked
    assert run[1] in asked


async def test_an_example_is_not_shown_in_its_own_question(provider, student):
    await aoptimize_node(Coded, fills(), lm=student, max_labeled_demos=24)

    assert provider.received
    for request in provider.requests:
        asked, shown = conversation(request)
        assert shown
        parcel = json.loads(asked.split("\n\n", 1)[1])["Parcel"]
        assert parcel not in [known["Parcel"] for known, _ in shown]


async def test_corrections_by_people_are_shown_first(student):
    examples = fills()
    weights = {examples[place]["weight"] for place in (3, 11, 20)}
    for example in examples:
        example["corrected"] = ["code"] if example["weight"] in weights else []

    optimized = await aoptimize_node(
        Coded, examples, lm=student, max_labeled_demos=3, max_bootstrapped_demos=0
    )

    assert {demo.source["Parcel"]["weight"] for demo in optimized.fill.demos} == weights


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_the_seed_of_an_optimization_determines_its_result(optimizer, student, teacher):
    async def found(seed: int) -> Any:
        made = await aoptimize_node(
            Coded,
            fills(12),
            lm=student,
            teacher=teacher,
            optimizer=optimizer,
            seed=seed,
            **SMALL[optimizer],
        )
        return artifact_of(made).model_dump(exclude={"made"})

    first = await found(3)
    assert first == await found(3)
    if optimizer == "bootstrap":
        assert first != await found(4)


async def test_too_few_examples_leave_a_part_unchanged_and_are_reported(provider, student, caplog):
    heard: list[Progress] = []
    optimized = await aoptimize_node(Coded, fills(9), lm=student, progress=heard.append)

    assert optimized.is_fresh
    assert provider.received == 0
    assert [(progress.part, progress.phase) for progress in heard] == [
        ("fill", "skipped"),
        ("choice", "skipped"),
    ]
    assert "there are 9 examples, and learning needs 10 or more" in heard[0].note
    assert not caplog.messages
    assert len(optimized.made.notes) == 1
    assert not (await aoptimize_node(Coded, fills(9), lm=student, minimum=9)).is_fresh


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_a_spent_budget_ends_an_optimizer_with_its_best_result(
    optimizer, provider, student, teacher
):
    with Budget(calls=1000) as around:
        budget = Budget(calls=14 if optimizer != "bootstrap" else 2)
        optimized = await aoptimize_node(
            Coded,
            fills(),
            lm=student,
            teacher=teacher,
            optimizer=optimizer,
            budget=budget,
            **SMALL[optimizer],
        )

    assert provider.received == budget.calls == budget.usage.calls == around.usage.calls
    (note,) = [note for note in optimized.made.notes if "budget" in note]
    assert note.startswith("fill: the budget ran out, and this is the best until then")
    if optimizer == "bootstrap":
        assert sum(demo.source["Parcel"]["colour"] in COLOURS for demo in optimized.fill.demos) == 8


async def test_a_budget_spent_between_two_candidates_leaves_the_better_candidate(provider):
    def half_right(received: Any) -> Any:
        answer_ = answer(received)
        right = CODES["amber"], CODES["blue"]
        return {"code": "??"} if "code" in answer_ and answer_["code"] not in right else answer_

    provider.always(half_right)
    given: dict[str, Any] = {"optimizer": "gepa", "max_metric_calls": 80}
    async with asks(provider) as lm:
        await aoptimize_node(Coded, fills(), lm=lm, **given)
        proposals = [
            place
            for place, request in enumerate(provider.requests)
            if "new_instruction" in str(request.schema)
        ]
        budget = Budget(calls=proposals[1])  # so that the second one is the first to be refused
        optimized = await aoptimize_node(Coded, fills(), lm=lm, budget=budget, **given)

    assert HINT in optimized.fill.signature.instructions
    assert "budget ran out" in optimized.made.notes[0]
    assert 0 < optimized.made.best["fill"] < 1


async def test_gepa_ends_at_an_instruction_with_a_perfect_score(provider, student):
    heard: list[Progress] = []

    await aoptimize_node(Coded, fills(), lm=student, optimizer="gepa", progress=heard.append)

    scored = max(progress.scored for progress in heard if progress.part == "fill")
    assert scored < 6 * 24
    assert max(report.best or 0.0 for report in heard) == 1.0


async def test_a_spent_budget_of_the_caller_is_an_error(student, teacher):
    with pytest.raises(BudgetError) as caught, Budget(calls=3) as around:
        await aoptimize_node(
            Coded, fills(), lm=student, teacher=teacher, optimizer="gepa", budget=Budget(calls=99)
        )
    assert caught.value.budget is around


async def test_gepa_reflects_on_the_feedback_of_a_metric(provider, student):
    def metric(expected: Coded, given: Coded) -> Score:
        right = expected.code == given.code
        return Score(float(right), "" if right else f"the book says {expected.code}, dear")

    await aoptimize_node(
        Coded, fills(), {Coded: metric}, lm=student, optimizer="gepa", max_metric_calls=30
    )

    reflected = [
        request.text for request in provider.requests if "new_instruction" in str(request.schema)
    ]
    assert reflected
    assert "the book says" in reflected[0]


async def test_a_dspy_lm_is_optimized_like_any_lm(provider):
    import dspy

    lm = dspy.LM(
        "openai/student", api_base=f"{provider.url}/v1", api_key="a key", cache=False, num_retries=0
    )
    optimized = await aoptimize_node(Coded, fills(12), lm=lm)

    (fill,) = await compare(Coded, optimized, fills(8, seed=1), lm=lm)
    await lm.aclose()
    assert fill.certain


async def test_progress_reports_every_phase_with_its_counts(student, teacher):
    heard: list[Progress] = []

    await aoptimize_node(
        Coded,
        fills(),
        lm=student,
        teacher=teacher,
        optimizer="miprov2",
        progress=heard.append,
        **SMALL["miprov2"],
    )

    told = [progress for progress in heard if progress.part == "fill"]
    phases = list(dict.fromkeys(progress.phase for progress in told))
    assert phases == ["bootstrapping", "proposing", "trying", "done"]
    assert [report.scored for report in told] == sorted(report.scored for report in told)
    assert told[-1].calls > 20
    assert told[-1].best == 1.0
    assert all(threading.current_thread() is threading.main_thread() for _ in told)


async def test_a_failing_progress_listener_does_not_end_the_optimization(student, caplog):
    told: list[Progress] = []

    def listen(progress: Progress) -> None:
        told.append(progress)
        raise RuntimeError("the screen is gone")

    with caplog.at_level(logging.WARNING, "bae.optimizer"):
        optimized = await aoptimize_node(Coded, fills(), lm=student, progress=listen)

    assert not optimized.is_fresh
    assert [report.part for report in told] == ["fill", "choice"]
    assert "the screen is gone" in caplog.text


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_dspy_output_does_not_reach_the_terminal(optimizer, student, teacher, capfd):
    def listen(progress: Progress) -> None:
        if progress.phase == "done":
            print("said by the user")
            print("told by the user", file=sys.stderr)

    before = sys.stdout, sys.stderr
    await aoptimize_node(
        Coded,
        fills(12),
        lm=student,
        teacher=teacher,
        optimizer=optimizer,
        progress=listen,
        **SMALL[optimizer],
    )

    assert (sys.stdout, sys.stderr) == before
    assert capfd.readouterr() == ("said by the user\n", "told by the user\n")


async def test_an_lm_that_fails_ends_the_optimization_with_its_error(provider, student, tmp_path):
    def failing(received: Any) -> Any:
        return Status(401) if provider.received > 5 else answer(received)

    provider.always(failing)
    with pytest.raises(BaeLMError) as caught:
        await aoptimize_node(
            Coded, fills(), lm=student, optimizer="gepa", calls=tmp_path / "calls.sqlite"
        )
    assert caught.value.status == 401
    assert no_thread_is_left()

    provider.always(answer)
    calls = CallLog(tmp_path / "calls.sqlite")
    await aoptimize_node(
        Coded, fills(), lm=student, optimizer="gepa", calls=calls, max_metric_calls=20
    )
    await calls.aclose()
    assert calls.statistics().from_log >= 5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
async def test_cancelling_an_optimization_leaves_no_thread_or_request(
    optimizer, provider, student, tmp_path, capfd
):
    calls = CallLog(tmp_path / "calls.sqlite")
    with provider.held():
        task = asyncio.create_task(
            aoptimize_node(
                Coded,
                fills(),
                lm=student,
                optimizer=optimizer,
                calls=calls,
                **SMALL[optimizer],
            )
        )
        await provider.arrived(4 if optimizer == "gepa" else 1)
        since = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - since < 2
        await provider.idle()
    await calls.aclose()
    assert no_thread_is_left()
    gc.collect()
    assert capfd.readouterr() == ("", "")


THREADS_BEFORE: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def _threads_before():
    THREADS_BEFORE[:] = threading.enumerate()


def no_thread_is_left() -> bool:
    """Whether all threads were there before the test, or are of pools that are there for good."""
    new = [thread for thread in threading.enumerate() if thread not in THREADS_BEFORE]
    return all(thread.name.startswith(("bae 0", "asyncio_")) for thread in new)


async def test_two_nodes_can_be_optimized_at_once(student, teacher, capfd):
    found = await asyncio.gather(
        aoptimize_node(Coded, fills(12), lm=student, teacher=teacher, optimizer="gepa"),
        aoptimize_node(Coded, fills(12), lm=student, teacher=teacher, **SMALL["bootstrap"]),
    )

    assert not any(predictor.is_fresh for predictor in found)
    assert capfd.readouterr() == ("", "")


async def test_the_sync_call_in_a_running_loop_raises_an_error_with_a_fix():
    with pytest.raises(BaeError, match="await aoptimize_node") as caught:
        optimize_node(Coded, [], lm=ScriptedLM())
    assert caught.value.code == "bae-run-in-loop"


def test_optimize_node_can_be_called_without_an_event_loop():
    scripted = ScriptedLM({Coded: lambda asked: {"code": CODES[asked.source.colour]}})

    optimized = optimize_node(Coded, fills(), lm=scripted, max_labeled_demos=0)

    assert len(optimized.fill.demos) == 4
    assert optimized.choice.signature.equals(fresh_predictor(Coded).choice.signature)


def test_a_missing_optuna_is_an_error_that_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BaeLMError) as caught:
        optimize_node(Coded, fills(), lm=ScriptedLM(), optimizer="miprov2")
    assert caught.value.code == "bae-lm-extra-missing"
    assert ".[optimize]" in str(caught.value)


async def test_an_answer_that_is_not_json_scores_zero(provider, student):
    provider.always(
        lambda received: "no idea" if "code" in received.schema["properties"] else answer(received)
    )

    optimized = await aoptimize_node(
        Coded, fills(12), lm=student, optimizer="gepa", max_metric_calls=20
    )

    assert optimized.made.best == {"fill": 0.0}
