"""Evaluations: cases run side by side for several LMs, those that fail, and being stopped."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import pytest

from bae import BaeError, BaeLMError, BudgetError, Dep, Gate, Graph, JournalError, Node, Usage
from bae.evals import Case, CaseResult, evaluate
from bae.journal import MemoryJournal, SQLiteJournal
from bae.lm import LM, Budget, WithPrompts
from bae.optimizer import Judge, fields_metric
from bae.testing import ScriptedLM
from bae.usage import report_usage
from eval_graphs import (
    Bug,
    Hooked,
    Length,
    Word,
    always_bug,
    counting,
    lengths,
    outcomes,
    results,
    rows,
    scores,
    tickets,
    total,
    words,
)

# Failing cases


async def test_a_failed_case_scores_0_and_keeps_its_run(tmp_path: Path) -> None:
    lm = ScriptedLM(
        {Length: lambda asked: {"count": "x"} if asked.source.text == "b" else {"count": 1}}
    )  # type: ignore[union-attr]
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        evaluation = await evaluate(words, lengths("a", "b", "c"), {"lm": lm}, journal=journal)
        failed = results(evaluation)["b"]
        stored = await journal.read(failed.run_id)
        listed = [info.run_id async for info in journal.every_run()]

    assert failed.failed
    assert failed.score == 0.0
    assert failed.error.startswith("FillError: [bae-fill-invalid] Length: ")
    assert stored.info.status == "failed"
    assert sorted(listed) == sorted(r.run_id for r in evaluation.contenders[0].cases)
    assert all(run_id.startswith("eval-") for run_id in listed)
    assert total(evaluation).score is not None
    assert total(evaluation).score.mean == pytest.approx(2 / 3)
    assert rows(evaluation)["Length"].score is not None
    assert rows(evaluation)["Length"].score.n == 3
    assert "lm: 1 case failed, which scores 0." in evaluation.to_markdown()


async def test_a_case_that_exceeds_its_timeout_fails_without_ending_other_cases() -> None:
    async def slow(word: Word) -> None:
        if word.text == "b":
            await asyncio.Event().wait()

    journal = MemoryJournal()

    lms = {"lm": Hooked(slow)}

    evaluation = await evaluate(words, lengths("a", "b", "c"), lms, journal=journal, timeout=0.2)

    late = results(evaluation)["b"]
    assert late.failed
    assert late.score == 0.0
    assert late.error == "TimeoutError: the case took longer than 0.2 s"
    assert late.seconds >= 0.2
    stored = await journal.read(late.run_id)
    assert (stored.info.status, stored.info.error) == ("failed", late.error)
    assert [results(evaluation)[name].score for name in "ac"] == [1.0, 1.0]


async def test_a_case_that_waits_for_a_person_fails_and_is_cancelled(
    tmp_path: Path,
) -> None:
    class Asking(Node):
        go: Annotated[bool, Gate("go on?")]

        async def __call__(self) -> None: ...

    async def yes(gate: Any) -> bool:
        return True

    graph = Graph(start=Asking)
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        waiting = await evaluate(graph, [Case({})], {"no lm": None}, journal=journal)
        [run] = await journal.runs()
    answered = await evaluate(graph, [Case({}, expected={"go": True})], {"no lm": None}, answer=yes)

    assert outcomes(waiting) == ["failed"]
    assert "the run waits for a person: Asking.go: go on?" in waiting.contenders[0].cases[0].error
    assert (run.status, run.owner, run.waiting) == ("failed", None, ())
    assert run.error == waiting.contenders[0].cases[0].error
    assert scores(answered) == [1.0]


async def test_any_exception_in_a_node_fails_only_its_case() -> None:
    class Rude(Node):
        async def __call__(self) -> None:
            raise asyncio.CancelledError

    class Broken(Node):
        async def __call__(self) -> None:
            raise RuntimeError("the well is dry")

    assert outcomes(await evaluate(Graph(start=Rude), [Case({})], {"no lm": None})) == ["failed"]
    evaluation = await evaluate(Graph(start=Broken), [Case({})], {"no lm": None})
    said = "Broken.__call__ raised RuntimeError; caused by RuntimeError: the well is dry"
    assert said in evaluation.contenders[0].cases[0].error
    assert "the well is dry" in evaluation.to_markdown()


# What is no case's fault


async def test_a_missing_lm_or_judge_is_refused_before_the_first_run(
    tmp_path: Path,
) -> None:
    lm = counting()
    judge = Judge(f"scripted:{tmp_path / 'none.json'}")

    with pytest.raises(BaeError) as caught:
        await evaluate(words, lengths("a"), {"good": lm, "bad": "lokal"})
    with pytest.raises(BaeError) as missing:
        await evaluate(words, lengths("a"), {"lm": lm}, node_metrics={Length: judge})

    assert caught.value.code == "bae-lm-unknown-name"
    assert missing.value.code == "bae-script-invalid"
    assert lm.asked == []


async def test_a_journal_that_cannot_be_written_ends_the_evaluation() -> None:
    journal = MemoryJournal()
    await journal.close()

    with pytest.raises(JournalError):
        await evaluate(words, lengths("a", "b"), {"lm": counting()}, journal=journal)


async def test_a_metric_that_raises_for_the_first_case_ends_the_evaluation_and_names_it() -> None:
    def broken(case: Case, result: Any) -> float:
        raise KeyError(case.name)

    lm = counting()
    with pytest.raises(BaeError) as caught:
        await evaluate(words, lengths("a", "b", "c"), {"lm": lm}, metric=broken)
    with pytest.raises(BaeError) as beyond:
        await evaluate(words, lengths("a"), {"lm": counting()}, metric=lambda *_: 7)

    assert caught.value.code == "bae-metric-failed"
    assert "the case 'a'" in caught.value.message
    assert isinstance(caught.value.cause, KeyError)
    assert len(lm.asked) == 1
    assert beyond.value.code == "bae-metric-score"


async def test_a_failed_judge_leaves_its_case_without_a_score() -> None:
    async def judged(case: Case, result: Any) -> float:
        report_usage(Usage(calls=1, input_tokens=7))
        if case.name == "b":
            raise BaeLMError("the judge is asleep")
        return 1.0

    evaluation = await evaluate(words, lengths("a", "b"), {"lm": counting()}, metric=judged)

    unscored = results(evaluation)["b"]
    assert (unscored.outcome, unscored.score) == ("unscored", None)
    assert "could not be scored: BaeLMError: [bae-lm-failed] the judge is asleep" in unscored.error
    assert total(evaluation).score is not None
    assert total(evaluation).score.n == 1
    # And what the judge used is told apart from what the cases did.
    assert (evaluation.contenders[0].judging.calls, total(evaluation).calls) == (2, 2)
    page = evaluation.to_markdown()
    assert "judged with 2 LM calls · 14 tokens · $0, not counted above" in page
    # The mean is of one case of two, and nobody is to take it for more.
    assert "| lm | 2 | 1 | 1.00 [0.21, 1.00] |" in page
    assert "1 case could not be scored, so the means are over the other cases" in page
    assert (evaluation.complete, evaluation.metric_errors) == (False, 0)


async def test_judge_usage_is_separate_in_every_report() -> None:
    class Judging(ScriptedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            report_usage(Usage(calls=1, input_tokens=600, output_tokens=17, cost=0.25))
            return await super().fill(*args, **kwargs)

    judge = Judge(Judging({"Verdict": lambda _: {"reason": "far off", "grade": "poor"}}))
    lm = counting(a=3, b=3)

    evaluation = await evaluate(words, lengths("a", "b"), {"lm": lm}, node_metrics={Length: judge})

    used = evaluation.contenders[0].judging
    assert f"judged with {used.calls} LM calls · 1,234 tokens · $0.50" in evaluation.to_markdown()
    data = evaluation.to_json()["contenders"][0]
    assert (data["judging"]["calls"], data["judging"]["cost"]) == (used.calls, 0.5)
    assert data["total"]["calls"] == 2


async def test_a_metric_that_never_answers_leaves_its_case_without_a_score() -> None:
    async def asleep(case: Case, result: Any) -> float:
        await asyncio.Event().wait()
        return 1.0

    evaluation = await evaluate(words, lengths("a"), {"lm": counting()}, metric=asleep, timeout=0.1)

    assert evaluation.contenders[0].cases[0].error == "the metric took longer than 0.1 s"
    assert total(evaluation).score is None


# Stopping


async def test_a_spent_budget_leaves_the_remaining_cases_unscored() -> None:
    lm, other = counting(), counting(a=9)

    evaluation = await evaluate(
        words,
        lengths("a", "b", "c", "d"),
        {"one": lm, "two": other},
        budget=Budget(calls=5),
        concurrency=1,
    )

    assert outcomes(evaluation) == ["ended", "ended", "ended", "not run"]
    assert scores(evaluation, 1) == [0.0, 1.0, None, None]
    assert [total(evaluation).cases, total(evaluation, 1).cases] == [3, 2]
    assert total(evaluation).score is not None
    assert total(evaluation).score.n == 3
    assert (total(evaluation).calls, total(evaluation, 1).calls) == (3, 2)
    # One that was begun has spent something perhaps; the others have no run at all.
    assert [bool(r.run_id) for r in evaluation.contenders[0].cases] == [True, True, True, False]
    assert [bool(r.run_id) for r in evaluation.contenders[1].cases] == [True, True, True, False]
    assert evaluation.stopped == "budget: 5 of 5 calls spent"
    assert evaluation.differences[0].interval is not None
    assert evaluation.differences[0].interval.n == 2
    page = evaluation.to_markdown()
    assert "Not all cases were run: budget: 5 of 5 calls spent." in page
    assert "two: 2 cases not run, and not scored." in page


async def test_a_case_cut_short_by_the_budget_keeps_its_usage() -> None:
    cases = [Case({"text": "a"}), Case({"text": "b"})]

    evaluation = await evaluate(
        tickets, cases, {"lm": always_bug()}, budget=Budget(calls=3), concurrency=1
    )

    assert outcomes(evaluation) == ["ended", "not run"]
    assert evaluation.contenders[0].cases[1].run_id
    assert total(evaluation).calls == 3


async def test_a_spent_budget_is_recognized_as_the_cause_of_another_exception() -> None:
    class Wrapping(Node):
        async def __call__(self, lm: LM) -> None:
            try:
                await lm.make(Word(text="a"), Length)
            except BudgetError as error:
                raise RuntimeError("no answer") from error

    async def judged(case: Case, result: Any) -> float:
        if case.name == "b":
            spent = BudgetError("all spent", budget=budget)
            raise BaeError("the judge failed", code="bae-judge-failed", cause=spent)
        return 1.0

    none, budget = Budget(calls=0), Budget(calls=9)
    evaluation = await evaluate(Graph(start=Wrapping), [Case({})], {"lm": counting()}, budget=none)
    scored = await evaluate(
        words,
        lengths("a", "b", "c"),
        {"lm": counting()},
        metric=judged,
        budget=budget,
        concurrency=1,
    )

    assert outcomes(evaluation) == ["not run"]
    assert total(evaluation).score is None
    assert outcomes(scored) == ["ended", "not run", "not run"]


async def test_the_spent_budget_of_one_lm_fails_only_its_own_cases() -> None:
    from bae.lm import Budgeted

    limited = Budgeted(counting(), Budget(calls=1))

    evaluation = await evaluate(words, lengths("a", "b"), {"lm": limited}, concurrency=1)

    assert outcomes(evaluation) == ["ended", "failed"]
    assert evaluation.stopped == ""


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_evaluation_that_ends_early_leaves_nothing_running(cancelled: bool) -> None:
    waiting: set[str] = set()
    reached, stop, journal = asyncio.Event(), asyncio.Event(), MemoryJournal()

    async def hold(word: Word) -> None:
        if word.text == "a":
            return
        waiting.add(word.text)
        if len(waiting) == 2:
            reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            waiting.discard(word.text)

    options: Any = {"journal": journal, "concurrency": 2, **({} if cancelled else {"stop": stop})}
    cases = lengths("a", "b", "c", "d")
    task = asyncio.ensure_future(evaluate(words, cases, {"lm": Hooked(hold)}, **options))
    await reached.wait()
    if cancelled:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        stop.set()
        found = await task
        assert outcomes(found) == ["ended", *["not run"] * 3]
        assert [bool(r.run_id) for r in found.contenders[0].cases] == [True, True, True, False]
        assert found.stopped == "it was stopped"

    assert not waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    statuses = [info.status async for info in journal.every_run()]
    assert sorted(statuses) == ["cancelled", "cancelled", "ended"]


async def test_the_concurrency_limit_bounds_and_is_reached_by_running_cases() -> None:
    together = asyncio.Barrier(3)
    active: list[int] = []
    most: list[int] = []

    class Meeting(Node):
        number: int

        async def __call__(self) -> None:
            active.append(self.number)
            most.append(len(active))
            await together.wait()
            active.remove(self.number)

    cases = [Case({"number": n}) for n in range(6)]

    evaluation = await evaluate(Graph(start=Meeting), cases, {"a": None, "b": None}, concurrency=3)

    assert outcomes(evaluation, 1) == ["ended"] * 6
    assert max(most) == 3


# What is given to the runs


async def test_a_dependency_value_of_the_caller_reaches_every_case_run() -> None:
    made: list[str] = []

    async def weather() -> str:
        raise AssertionError("nobody may ask for it")

    async def client() -> str:
        made.append("client")
        return "made"

    class Day(Node):
        sky: Annotated[str, Dep(weather)]
        by: Annotated[str, Dep(client)]

        async def __call__(self) -> None: ...

    given: dict[Any, Any] = {weather: "blue"}

    evaluation = await evaluate(
        Graph(start=Day),
        [Case({}, expected={"sky": "blue"}), Case({})],
        {"no lm": None},
        dep_cache=given,
    )

    assert scores(evaluation) == [1.0, 1.0]
    assert made == ["client", "client"]
    assert list(given) == [weather]


async def test_a_scripted_lm_starts_again_for_every_case(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"count": 1}]', encoding="utf-8")
    name = f"scripted:{script}"
    made: list[LM] = []

    def taught() -> LM:
        made.append(WithPrompts(name, {}))
        return made[-1]

    evaluation = await evaluate(words, lengths("a", "b", "c"), {"file": name, "taught": taught})

    assert scores(evaluation) == scores(evaluation, 1) == [1.0, 1.0, 1.0]
    assert len(made) == 3


# Progress


async def test_progress_is_called_for_every_case_until_it_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[tuple[int, int, str, str, int]] = []

    def progress(done: int, of: int, contender: str, result: CaseResult) -> None:
        told.append((done, of, contender, result.case.name, result.usage.calls))
        if done == 3:
            raise RuntimeError("the screen is gone")

    lms = {"x": counting(), "y": counting()}
    with caplog.at_level(logging.WARNING, "bae.evals"):
        evaluation = await evaluate(words, lengths("a", "b"), lms, progress=progress, concurrency=1)

    assert told == [(1, 4, "x", "a", 1), (2, 4, "y", "a", 1), (3, 4, "x", "b", 1)]
    assert total(evaluation, 1).cases == 2
    assert "is not called again" in caplog.text


async def test_an_unstorable_value_fails_only_its_own_case(tmp_path: Path) -> None:
    class Odd(Node):
        kind: str

        async def __call__(self) -> Found:
            return Found(value=object() if self.kind == "odd" else 1)

    class Found(Node):
        value: Any

        async def __call__(self) -> None: ...

    cases = [Case({"kind": kind}, kind) for kind in ("a", "odd", "b")]
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        evaluation = await evaluate(Graph(start=Odd), cases, {"no lm": None}, journal=journal)

    assert outcomes(evaluation) == ["ended", "failed", "ended"]
    assert "[bae-journal-field] Found.value" in results(evaluation)["odd"].error


# Metrics that fail


async def test_a_metric_that_raises_after_the_first_case_leaves_its_case_unscored() -> None:
    def fussy(case: Case, result: Any) -> float:
        if case.name == "b":
            raise KeyError("b")
        return 1 / result.result.count

    evaluation = await evaluate(
        words, lengths("a", "b", "c"), {"x": counting(a=0), "y": counting()}, metric=fussy
    )

    assert (scores(evaluation), scores(evaluation, 1)) == ([None, None, 1.0], [1.0, None, 1.0])
    unscored = results(evaluation)["b"]
    assert unscored.outcome == "unscored"
    assert "fussy raised KeyError; caused by KeyError: 'b'" in unscored.metric_error
    assert unscored.metric_error in unscored.error
    assert (evaluation.metric_errors, evaluation.complete) == (3, False)
    data = evaluation.to_json()
    assert (data["metric_errors"], data["complete"]) == (3, False)
    assert "| y | 3 | 2 | 1.00" in evaluation.to_markdown()


@pytest.mark.parametrize("own", [True, False])
async def test_a_node_metric_that_raises_leaves_its_case_without_a_score(
    own: bool,
) -> None:
    def broken(expected: Node, given: Node) -> float:
        if expected == Bug(severity="low"):
            raise ZeroDivisionError
        return 1.0

    cases = [
        Case({"text": "a"}, "a", nodes={"Bug": {"severity": "high"}}),
        Case({"text": "b"}, "b", nodes={"Bug": {"severity": "low"}}),
    ]

    evaluation = await evaluate(
        tickets,
        cases,
        {"lm": always_bug()},
        metric=(lambda *_: 1.0) if own else None,
        node_metrics={Bug: broken},
    )

    assert [(r.outcome, r.score) for r in evaluation.contenders[0].cases] == [
        ("ended", 1.0),
        ("ended", 1.0) if own else ("unscored", None),
    ]
    assert ["Bug" in r.nodes for r in evaluation.contenders[0].cases] == [True, False]
    assert "ZeroDivisionError" in evaluation.contenders[0].cases[1].metric_error
    assert evaluation.metric_errors == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"concurrency": 0}, "one case or more at once"),
        ({"max_iters": -1}, "max_iters"),
        ({"lms": ["local"]}, 'give one LM or more by their names in tables, as {"local"'),
        ({"lms": {}}, "give one LM or more"),
        ({"node_metrics": {Bug: lambda *_: 1}}, "the nodes of the graph are eval_graphs.Word, "),
        ({"lms": {"a": 5}}, "give an LM, the name of one"),
        ({"lms": {"a": ScriptedLM}}, "give an LM, the name of one"),
        ({"metric": "exact"}, "give a function of a case and the result"),
        ({"metric": lambda case: 1}, "give a function of a case and the result"),
        ({"metric": Judge("local")}, "give this metric for the class to score, as {Reply: judge}"),
        ({"metric": fields_metric}, "give this metric for the class to score"),
        ({"node_metrics": fields_metric}, "give metrics by the class of the node"),
        ({"node_metrics": {Length: "exact"}}, "a function of the expected node and the given one"),
    ],
)
async def test_arguments_of_the_wrong_type_are_refused_before_the_first_run(
    given: dict[str, Any], said: str
) -> None:
    lm = counting()
    arguments = {"graph": words, "cases": lengths("a"), "lms": {"lm": lm}, **given}

    with pytest.raises((TypeError, ValueError)) as caught:
        await evaluate(**arguments)

    assert said in str(caught.value)
    assert lm.asked == []
