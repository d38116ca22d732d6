"""What a judge promises: a score with a reason from an ordinary LLM call, which sees the value to
judge and nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from pydantic import Field

from bae import BaeError, BaeLMError, BudgetError, Dep, FillError, Node
from bae.evals.judge import GRADES, Judged, Verdict
from bae.lm import Budget
from bae.optimizer import Judge, Score
from bae.optimizer.metrics import metrics_for
from bae.testing import Provider, ScriptedLM
from bae.usage import metered
from bounded import BOUND


async def get_article() -> str: ...


class Summary(Node):
    article: Annotated[str, Dep(get_article)]
    text: str
    key: str = Field(default="", repr=False)

    async def __call__(self) -> None: ...


GOLD = Summary(article="long", text="Rain all day, take a coat.", key="hidden-1")
GIVEN = Summary(article="long", text="It pours; wear something.", key="hidden-2")


@pytest.mark.parametrize("grade", list(GRADES))
async def test_a_verdict_becomes_a_score_with_its_reason(grade: str) -> None:
    lm = ScriptedLM([{"reason": "no coat in it", "grade": grade}])
    score = await Judge(lm, "the advice matters")(GOLD, GIVEN)
    assert score == Score(GRADES[grade], "no coat in it")
    assert 0 <= score.value <= 1


async def test_the_judge_sees_rubric_and_filled_fields_and_no_secret_or_context() -> None:
    lm = ScriptedLM([{"reason": "", "grade": "fair"}])
    await Judge(lm, "the advice matters")(GOLD, GIVEN)
    [asked] = lm.asked
    assert asked.target is Verdict
    assert asked.source == Judged(
        rubric="the advice matters",
        expected={"text": "Rain all day, take a coat."},
        given={"text": "It pours; wear something."},
    )


async def test_an_identical_answer_scores_1_without_an_llm_call() -> None:
    lm = ScriptedLM()
    assert await Judge(lm)(GOLD, GOLD.model_copy()) == Score(1.0)
    assert lm.asked == []


async def test_an_invalid_verdict_is_requested_again() -> None:
    lm = ScriptedLM([{"reason": "x", "grade": "8/10"}, {"reason": "x", "grade": "good"}])
    assert (await Judge(lm)(GOLD, GIVEN)).value == 0.75


async def test_a_judge_without_a_verdict_raises_an_error_that_names_the_node() -> None:
    lm = ScriptedLM({Verdict: lambda asked: {"reason": "?", "grade": "8/10"}})
    with pytest.raises(BaeError) as raised:
        await Judge(lm)(GOLD, GIVEN)
    assert raised.value.code == "bae-judge-failed"
    assert "Summary" in raised.value.message
    assert isinstance(raised.value.cause, FillError)


class Broken(ScriptedLM):
    async def fill(self, *given: Any, **options: Any) -> Any:
        raise ZeroDivisionError("by code of somebody's")


async def test_an_error_of_the_judges_lm_is_reported_as_a_failed_judge() -> None:
    fill = metrics_for(Summary, "fill", Judge(Broken()))
    with pytest.raises(BaeError) as raised:
        await fill({"source": {}, "article": "long", "text": GOLD.text}, {"text": "It pours."})
    assert raised.value.code == "bae-judge-failed"
    assert isinstance(raised.value.cause, ZeroDivisionError)
    assert "by code of somebody's" in str(raised.value)


@pytest.mark.parametrize("lm", [5, None, ScriptedLM, object()])
def test_a_judge_refuses_an_object_that_is_not_an_lm(lm: Any) -> None:
    with pytest.raises(BaeLMError) as raised:
        Judge(lm)
    assert raised.value.code == "bae-lm-type"


def test_a_judge_refuses_an_unknown_lm_name_at_once() -> None:
    with pytest.raises(BaeLMError, match="anthropc") as raised:
        Judge("anthropc")
    assert "anthropic" in raised.value.fix


async def test_a_judge_shortens_long_answers_and_reasons() -> None:
    lm = ScriptedLM([{"reason": "r" * 601, "grade": "good"}])
    long = GIVEN.model_copy(update={"text": "x" * 50_000})
    assert await Judge(lm, longest=100)(GOLD, long) == Score(0.75, f"{'r' * 599}…")
    assert len(lm.asked) == 1
    shown = lm.asked[0].source
    assert isinstance(shown, Judged)
    assert isinstance(shown.given, str)
    assert len(shown.given) < 150
    assert shown.given.endswith("(cut off here)")
    assert shown.expected == {"text": GOLD.text}


async def test_a_judge_may_be_a_metric_for_all_nodes_or_one_class() -> None:
    example = {"source": {}, "article": "long", "text": GOLD.text}

    def judge(grade: str) -> Judge:
        lm = ScriptedLM({Verdict: lambda asked: {"reason": "so so", "grade": grade}})
        return Judge(lm, threshold=0.5)

    for metric in (judge("fair"), {Summary: judge("fair")}):
        fill = metrics_for(Summary, "fill", metric)
        assert await fill(example, {"text": "It pours."}) == Score(0.5, "so so")
        assert fill.accept == 0.5
        assert (await fill(example, {"text": 3})).value == 0  # no words are wasted on it
    assert metrics_for(Summary, "fill", None).accept == 1


@pytest.mark.once
async def test_a_judge_requests_the_reason_before_the_grade() -> None:
    pytest.importorskip("anthropic")
    from bae.lm import AnthropicBackend

    async with asyncio.timeout(BOUND), Provider() as provider:
        provider.script({"reason": "no coat", "grade": "poor"}, {"reason": "x", "grade": "good"})
        async with AnthropicBackend(
            model="judge-1", base_url=provider.url, api_key="k", one_call=False
        ) as lm:
            judge = Judge(lm)
            with metered() as used:
                assert await judge(GOLD, GIVEN) == Score(0.25, "no coat")
            assert [usage.calls for usage in used] == [1]
            assert used[0].input_tokens > 0
            with pytest.raises(BudgetError), Budget(calls=1):
                assert (await judge(GOLD, GIVEN)).value == 0.75
                await judge(GOLD, GIVEN)
        sent = json.dumps(provider.requests[0].body)
        assert sent.index("reason") < sent.index("grade")
        assert "hidden" not in sent
        assert "take a coat" in sent


@pytest.mark.once
@pytest.mark.slow
async def test_the_small_local_model_can_be_constrained_to_a_verdict() -> None:
    pytest.importorskip("xllamacpp")
    score = await Judge("local")(GOLD, GIVEN)
    assert score.value in GRADES.values()
