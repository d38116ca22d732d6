"""Evaluations: what a graph scores over cases, what it costs, and how fast it is, for several LMs
side by side."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
import json
import logging
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import SecretStr

from bae import (
    BaeError,
    BaeLMError,
    BudgetError,
    Dep,
    Gate,
    Graph,
    GraphResult,
    JournalError,
    Map,
    Node,
    Usage,
)
from bae.evals import Case, CaseResult, Evaluation, Row, amounts, evaluate
from bae.journal import MemoryJournal, SQLiteJournal
from bae.lm import LM, Budget, Taught
from bae.lm.usage import Attempt, report, tell
from bae.optimizer import Judge, Score, fields_metric
from bae.testing import ScriptedLM
from bae.testing.scripted import Asked


class Ticket(Node):
    text: str

    async def __call__(self) -> Bug | Question: ...


class Bug(Node):
    severity: Literal["low", "high"]
    part: str = "all"

    async def __call__(self) -> None: ...


class Question(Node):
    topic: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    reply: str

    async def __call__(self) -> None: ...


tickets = Graph(start=Ticket, end=(Bug, Reply))


class Word(Node):
    text: str

    async def __call__(self) -> Length: ...


class Length(Node):
    count: int

    async def __call__(self) -> None: ...


words = Graph(start=Word, end=Length)


def counting(**wrong: int) -> ScriptedLM:
    """An LM that counts the letters of a word, but for those that it has another number for."""

    def count(asked: Asked) -> dict[str, Any]:
        assert isinstance(asked.source, Word)
        text = asked.source.text
        return {"count": wrong.get(text, len(text))}

    return ScriptedLM({Length: count})


def lengths(*texts: str) -> list[Case]:
    return [Case({"text": text}, text, {"count": len(text)}) for text in texts]


def always_bug(severity: str = "high") -> ScriptedLM:
    return ScriptedLM({Bug: lambda _: {"severity": severity}})


def total(found: Evaluation, at: int = 0) -> Row:
    return found.contenders[at].total


def rows(found: Evaluation, at: int = 0) -> dict[str, Row]:
    return {row.node: row for row in found.contenders[at].nodes}


def results(found: Evaluation, at: int = 0) -> dict[str, CaseResult]:
    return {result.case.name: result for result in found.contenders[at].cases}


# Scores


async def test_contenders_stand_side_by_side_and_are_compared_case_by_case() -> None:
    cases = lengths("a", "bb", "ccc", "dddd")
    wrong = counting(a=9, bb=9, ccc=9, dddd=9)

    found = await evaluate(
        words, cases, {"wrong": wrong, "right": counting(), "half": counting(a=9, bb=9)}
    )

    assert [each.name for each in found.contenders] == ["wrong", "right", "half"]
    assert [each.total.score and each.total.score.mean for each in found.contenders] == [0, 1, 0.5]
    assert [(d.contender, d.against) for d in found.differences] == [
        ("right", "wrong"),
        ("half", "wrong"),
    ]
    assert [d.interval and d.interval.mean for d in found.differences] == [1.0, 0.5]
    assert [d.certain for d in found.differences] == [True, False]
    assert [result.case.name for result in found.contenders[2].cases] == ["a", "bb", "ccc", "dddd"]


async def test_ending_at_another_type_than_expected_scores_nothing() -> None:
    cases = [
        Case({"text": "a"}, "typed", expected_type="Bug"),
        Case({"text": "b"}, "other", {"reply": "b"}, "Reply"),
        Case({"text": "c"}, "untyped", {"reply": "c"}),
        Case({"text": "d"}, "nothing"),
    ]

    found = await evaluate(tickets, cases, {"lm": always_bug()})

    scores = {name: (r.score, r.why) for name, r in results(found).items()}
    assert scores == {
        "typed": (1.0, ""),
        "other": (0.0, "ended at Bug, not at Reply"),
        "untyped": (0.0, "Bug has no reply"),
        "nothing": (1.0, ""),
    }


async def test_only_the_expected_fields_are_compared_and_the_reason_is_kept() -> None:
    cases = [
        Case({"text": "a"}, expected={"severity": "low"}),
        Case({"text": "b"}, expected={"part": "all"}),
    ]

    found = await evaluate(tickets, cases, {"lm": always_bug()})

    first, second = found.contenders[0].cases
    assert (first.score, second.score) == (0.0, 1.0)
    assert "severity: 'high', where 'low' was expected" in first.why


async def test_a_metric_may_be_async_and_say_why() -> None:
    async def shorter(case: Case, result: GraphResult[Any]) -> Score:
        return Score(1 / result.result.count, f"as {case.name} is")

    def truthy(case: Case, result: GraphResult[Any]) -> bool:
        return result.result.count > 1

    found = await evaluate(words, lengths("a", "bb"), {"lm": counting()}, metric=shorter)
    plain = await evaluate(words, lengths("a", "bb"), {"lm": counting()}, metric=truthy)

    assert [(r.score, r.why) for r in found.contenders[0].cases] == [
        (1, "as a is"),
        (0.5, "as bb is"),
    ]
    assert [r.score for r in plain.contenders[0].cases] == [0.0, 1.0]


async def test_a_case_can_have_a_metric_of_its_own() -> None:
    cases = [
        Case({"text": "a"}, metric=lambda *_: 0.25),
        Case({"text": "b"}, expected={"count": 1}),
    ]

    found = await evaluate(words, cases, {"lm": counting()})
    overruled = await evaluate(words, cases, {"lm": counting()}, metric=lambda *_: 0.75)

    assert [r.score for r in found.contenders[0].cases] == [0.25, 1.0]
    assert [r.score for r in overruled.contenders[0].cases] == [0.75, 0.75]


async def test_nodes_on_the_way_are_scored_by_what_is_expected_of_them() -> None:
    def lm() -> ScriptedLM:
        return ScriptedLM(
            {Question: lambda _: {"topic": "billing"}, Reply: lambda _: {"reply": "no"}},
            choices=[Question, Question],
        )

    cases = [
        Case({"text": "a"}, "right", {"reply": "no"}, nodes={"Question": {"topic": "Billing"}}),
        Case({"text": "b"}, "wrong", nodes={"Question": {"topic": "login"}, "Bug": {}}),
    ]

    found = await evaluate(tickets, cases, {"lm": lm()}, concurrency=1)

    by_name = rows(found)
    assert by_name["Question"].score is not None
    assert by_name["Question"].score.mean == 0.5
    assert by_name["Reply"].score is not None
    assert by_name["Reply"].score.n == 1
    assert results(found)["wrong"].nodes["Bug"].why == "the run did not get to it"
    assert by_name["Bug"].score is not None
    assert by_name["Bug"].score.mean == 0.0


async def test_all_that_a_case_expects_counts_in_its_score_and_what_was_missed_is_named() -> None:
    def lm() -> ScriptedLM:
        return ScriptedLM(
            {Question: lambda _: {"topic": "billing"}, Reply: lambda _: {"reply": "no"}},
            choices=[Question] * 6,
        )

    topic = {"Question": {"topic": "billing"}}
    other = {"Question": {"topic": "login"}}
    cases = [
        Case({"text": "a"}, "all", {"reply": "no"}, "Reply", nodes=topic),
        Case({"text": "b"}, "nodes alone", nodes={**other, "Bug": {}}),
        Case({"text": "c"}, "the way", {"reply": "no"}, nodes=other),
        Case({"text": "d"}, "the end", {"reply": "yes"}, nodes=topic),
        Case({"text": "e"}, "the type", expected_type="Bug", nodes={**topic, "Bug": {}}),
        Case({"text": "f"}, "nothing"),
    ]

    found = await evaluate(tickets, cases, {"lm": lm()}, concurrency=1)

    login = "Question: topic: 'billing', where 'login' was expected"
    assert {name: (r.score, r.why) for name, r in results(found).items()} == {
        "all": (1.0, ""),
        "nodes alone": (0.0, f"{login}; Bug: the run did not get to it"),
        "the way": (0.5, login),
        "the end": (0.5, "reply: 'no', where 'yes' was expected"),
        "the type": (
            pytest.approx(1 / 3),
            "ended at Reply, not at Bug; Bug: the run did not get to it",
        ),
        "nothing": (1.0, ""),
    }
    # The row of the end has the score of the end alone.
    assert [results(found)[name].nodes["Reply"].value for name in ("the way", "the end")] == [1, 0]


async def test_metrics_of_nodes_take_part_in_the_score_of_a_case_at_the_end_and_on_the_way() -> (
    None
):
    lm = ScriptedLM({Question: [{"topic": "a"}], Reply: [{"reply": "b"}]}, choices=[Question])
    case = Case({"text": "a"}, expected={"reply": "x"}, nodes={"Question": {"topic": "y"}})

    found = await evaluate(
        tickets,
        [case],
        {"lm": lm},
        node_metrics={Question: lambda *_: Score(0.25, "vague"), Reply: lambda *_: 0.75},
    )

    [result] = found.contenders[0].cases
    assert (result.score, result.why) == (0.5, "Reply: 0.75; Question: vague")


async def test_the_last_node_of_a_class_is_the_one_that_counts() -> None:
    class Guess(Node):
        number: int

        async def __call__(self) -> Guess | None: ...

    lm = ScriptedLM([Guess, {"number": 2}, Guess, {"number": 3}, None])

    found = await evaluate(
        Graph(start=Guess), [Case({"number": 1}, nodes={"Guess": {"number": 3}})], {"lm": lm}
    )

    assert rows(found)["Guess"].score is not None
    assert rows(found)["Guess"].score.mean == 1.0
    assert rows(found)["Guess"].calls == 5


async def test_of_the_items_of_a_map_the_last_is_the_one_that_counts() -> None:
    class Titles(Node):
        texts: list[str]
        counted: Annotated[list[Length], Map(words, over="texts")]

        async def __call__(self) -> None: ...

    first_may_go = asyncio.Event()

    class LastFirst(ScriptedLM):
        async def fill(
            self, target: Any, resolved: Any, instruction: str, source: Any = None
        ) -> Any:
            if source.text != "a":
                first_may_go.set()
            else:
                await first_may_go.wait()
            return await super().fill(target, resolved, instruction, source)

    lm = LastFirst({Length: lambda asked: {"count": len(asked.source.text)}})  # type: ignore[union-attr]
    case = Case({"texts": ["a", *["b"] * 9, "cc"]}, nodes={"Length": {"count": 2}})

    found = await evaluate(Graph(start=Titles), [case], {"lm": lm})

    assert rows(found)["Length"].score is not None
    assert rows(found)["Length"].score.mean == 1.0
    assert rows(found)["Length"].calls == 11


async def test_a_metric_of_a_node_is_given_the_expected_node_and_the_given_one() -> None:
    met: list[tuple[Bug, Bug]] = []

    async def close(expected: Bug, given: Bug) -> float:
        met.append((expected, given))
        return 0.5

    cases = [Case({"text": "a"}, expected={"severity": "low"})]

    found = await evaluate(tickets, cases, {"lm": always_bug()}, node_metrics={Bug: close})

    assert met == [(Bug(severity="low", part="all"), Bug(severity="high", part="all"))]
    assert found.contenders[0].cases[0].score == 0.5
    assert rows(found)["Bug"].score is not None
    assert rows(found)["Bug"].score.mean == 0.5


# What LM calls used


async def test_a_wrong_answer_counts_against_the_node_that_was_asked_for() -> None:
    lm = ScriptedLM([Bug, {"severity": "huge"}, {"severity": "low"}])

    found = await evaluate(tickets, [Case({"text": "a"})], {"lm": lm})

    assert {n: (r.judged, r.validity, r.calls) for n, r in rows(found).items()} == {
        "Ticket": (1, 1.0, 1),
        "Bug": (2, 0.5, 2),
    }
    assert (total(found).judged, total(found).calls) == (3, 3)
    assert total(found).validity == pytest.approx(2 / 3)


async def test_answers_of_an_lm_that_reports_nothing_are_counted_where_it_fails_too() -> None:
    class Silent(ScriptedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            tell(Attempt(1, "{}", "invalid", ("count: missing",)))
            raise BaeLMError("enough")

    found = await evaluate(words, lengths("a"), {"lm": Silent()})

    row = rows(found)["Length"]
    assert (row.judged, row.validity, row.calls) == (1, 0.0, 0)


async def test_the_rows_of_nodes_add_up_to_what_the_journals_of_the_runs_say() -> None:
    async def translated(text: str, lm: LM) -> str:
        return (await lm.make(Word(text=text), Length)).model_dump_json()

    async def whole(lm: LM) -> str:
        return await translated("dep", lm)

    class Story(Node):
        texts: list[str]
        lengths: Annotated[list[Length], Map(words, over="texts")]
        hint: Annotated[str, Dep(whole)]

        async def __call__(self, lm: LM) -> Ending:
            await lm.make(Word(text="body"), Length)
            return Ending()

    class Ending(Node):
        async def __call__(self) -> Ticket: ...

    def lm() -> ScriptedLM:
        return ScriptedLM(
            {
                Length: lambda asked: {"count": len(asked.source.text)},  # type: ignore[union-attr]
                Ticket: lambda _: {"text": "a"},
                Bug: lambda _: {"severity": "low"},
            }
        )

    journal = MemoryJournal()
    graph = Graph(start=Story)
    cases = [Case({"texts": ["a", "bb"]}), Case({"texts": ["ccc"]}), Case({"texts": []})]

    found = await evaluate(graph, cases, {"lm": lm()}, journal=journal)

    assert [r.error for r in found.contenders[0].cases] == [""] * 3
    for result in found.contenders[0].cases:
        kept = await graph.resume(result.run_id, journal=journal)
        assert result.usage.calls == kept.usage.calls > 0
    by_name = rows(found)
    assert {n: r.calls for n, r in by_name.items()} == {
        "Story": 6,
        "Length": 3,
        "Ticket": 6,
        "Bug": 3,
    }
    assert total(found).calls == sum(row.calls for row in by_name.values()) == 18


class Costly(ScriptedLM):
    """An LM that says what it used, without a price."""

    async def fill(self, *args: Any, **kwargs: Any) -> Any:
        report(Usage(calls=1, input_tokens=10, output_tokens=5, cost=None))
        return await super().fill(*args, **kwargs)


async def test_a_cost_that_nobody_knows_is_not_nothing() -> None:
    lm = Costly({Length: lambda _: {"count": 1}})

    found = await evaluate(words, lengths("a"), {"dear": lm, "free": counting()})

    assert (total(found).cost, total(found, 1).cost) == (None, 0.0)
    assert total(found).tokens == 15
    assert "| dear | 1 | 1 | 1.00 [0.21, 1.00] | 100 % | 2 | 15 | ? |" in found.to_markdown()
    assert "| free | 1 | 1 | 1.00 [0.21, 1.00] | 100 % | 1 | 0 | $0 |" in found.to_markdown()
    line = next(csv.DictReader(io.StringIO(found.to_csv())))
    assert line["cost"] == ""
    assert found.to_json()["contenders"][0]["total"]["cost"] is None


@pytest.mark.once
async def test_the_table_has_the_calls_and_tokens_that_the_provider_has_counted() -> None:
    pytest.importorskip("anthropic")
    from bae.lm.anthropic_backend import AnthropicBackend
    from bae.testing import Provider
    from bae.testing.tokens import tokens_in

    said: list[str] = []

    def answer(asked: Any) -> str:
        wrong = len(said) % 3 == 0
        said.append('{"count": "many"}' if wrong else '{"count": 1}')
        return said[-1]

    async with Provider() as provider:
        provider.always(answer)
        one = AnthropicBackend("claude-haiku-4-5", base_url=provider.url, api_key="a key")
        async with one:
            found = await evaluate(
                words, lengths("a", "b", "c", "d"), {"claude": one}, concurrency=1
            )
        asked = provider.requests

    row = rows(found)["Length"]
    assert len(asked) == 6
    for each in (row, total(found)):
        assert each.calls == len(asked)
        assert each.input_tokens == sum(request.tokens for request in asked)
        assert each.output_tokens == sum(tokens_in(text) for text in said)
        assert (each.judged, each.validity) == (6, pytest.approx(4 / 6))
    assert f"| {row.calls} | {row.tokens} |" in found.to_markdown()


@pytest.mark.once
async def test_an_answer_that_chooses_and_fills_at_once_is_the_choosing_nodes_valid_or_not() -> (
    None
):
    pytest.importorskip("anthropic")
    from bae.lm.anthropic_backend import AnthropicBackend
    from bae.testing import Provider

    good = {"answer": {"choice": "Bug", "fields": {"severity": "low", "part": "a"}}}
    bad = {"answer": {"choice": "Bugs", "fields": {"severity": "low", "part": "a"}}}

    async with Provider() as provider:
        provider.script(good, bad, good, *[bad] * 3)
        async with AnthropicBackend("m", base_url=provider.url, api_key="a key") as backend:
            cases = [Case({"text": text}, text, {"part": "a"}) for text in ("once", "twice", "no")]
            found = await evaluate(tickets, cases, {"claude": backend}, concurrency=1)
        asked = provider.requests

    assert len(asked) == 6
    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "ended", "failed"]
    assert {n: (r.calls, r.judged, r.validity) for n, r in rows(found).items()} == {
        "Ticket": (6, 6, pytest.approx(2 / 6)),
        "Bug": (0, 0, None),
    }
    assert rows(found)["Ticket"].seconds_p50 > 0


# Failing cases


async def test_a_case_that_fails_scores_0_and_its_run_can_be_looked_at(tmp_path: Path) -> None:
    lm = ScriptedLM(
        {Length: lambda asked: {"count": "x"} if asked.source.text == "b" else {"count": 1}}
    )  # type: ignore[union-attr]
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        found = await evaluate(words, lengths("a", "b", "c"), {"lm": lm}, journal=journal)
        failed = results(found)["b"]
        stored = await journal.read(failed.run_id)
        listed = [info.run_id async for info in journal.every_run()]

    assert failed.failed
    assert failed.score == 0.0
    assert failed.error.startswith("FillError: [bae-fill-invalid] Length: ")
    assert stored.info.status == "failed"
    assert sorted(listed) == sorted(r.run_id for r in found.contenders[0].cases)
    assert all(run_id.startswith("eval-") for run_id in listed)
    assert total(found).score is not None
    assert total(found).score.mean == pytest.approx(2 / 3)
    assert rows(found)["Length"].score is not None
    assert rows(found)["Length"].score.n == 3
    assert "lm: 1 case failed, which scores 0." in found.to_markdown()


@pytest.mark.once
async def test_the_command_beside_a_failing_case_shows_its_run(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    file = tmp_path / "odd name|.db"
    async with SQLiteJournal(file) as journal:
        found = await evaluate(words, lengths("a"), {"lm": ScriptedLM()}, journal=journal)

    row = next(line for line in found.to_markdown().splitlines() if "bae runs show" in line)
    assert "odd name\\|.db" in row
    command = row.split("`")[1].replace("\\|", "|")
    program, *arguments = shlex.split(command)
    shown = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert shown.returncode == 0, shown.stderr
    assert found.contenders[0].cases[0].run_id in shown.stdout


async def test_a_case_that_takes_too_long_fails_alone() -> None:
    class Slow(ScriptedLM):
        async def fill(
            self, target: Any, resolved: Any, instruction: str, source: Any = None
        ) -> Any:
            if source.text == "b":
                await asyncio.Event().wait()
            return await super().fill(target, resolved, instruction, source)

    lm = Slow({Length: lambda _: {"count": 1}})
    journal = MemoryJournal()

    found = await evaluate(words, lengths("a", "b", "c"), {"lm": lm}, journal=journal, timeout=0.2)

    late = results(found)["b"]
    assert late.failed
    assert late.score == 0.0
    assert late.error == "TimeoutError: the case took longer than 0.2 s"
    assert late.seconds >= 0.2
    stored = await journal.read(late.run_id)
    assert (stored.info.status, stored.info.error) == ("failed", late.error)
    assert [results(found)[name].score for name in "ac"] == [1.0, 1.0]


async def test_a_case_that_waits_for_a_person_fails_unless_somebody_answers() -> None:
    class Asking(Node):
        go: Annotated[bool, Gate("go on?")]

        async def __call__(self) -> None: ...

    async def yes(gate: Any) -> bool:
        return True

    graph = Graph(start=Asking)
    waiting = await evaluate(graph, [Case({})], {"no lm": None})
    answered = await evaluate(graph, [Case({}, expected={"go": True})], {"no lm": None}, answer=yes)

    assert waiting.contenders[0].cases[0].failed
    assert "the run waits for a person: Asking.go: go on?" in waiting.contenders[0].cases[0].error
    assert answered.contenders[0].cases[0].score == 1.0


async def test_a_cancellation_that_a_cases_own_code_raises_is_a_failure_of_the_case() -> None:
    class Rude(Node):
        async def __call__(self) -> None:
            raise asyncio.CancelledError

    found = await evaluate(Graph(start=Rude), [Case({}), Case({})], {"no lm": None})

    assert [r.outcome for r in found.contenders[0].cases] == ["failed", "failed"]


# What is no case's fault


async def test_an_lm_that_is_none_is_refused_before_anything_runs() -> None:
    lm = counting()

    with pytest.raises(BaeError) as caught:
        await evaluate(words, lengths("a"), {"good": lm, "bad": "lokal"})

    assert caught.value.code == "bae-lm-unknown-name"
    assert lm.asked == []


async def test_a_journal_that_cannot_be_written_ends_the_evaluation() -> None:
    journal = MemoryJournal()
    await journal.close()

    with pytest.raises(JournalError):
        await evaluate(words, lengths("a", "b"), {"lm": counting()}, journal=journal)


async def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="give one LM or more"):
        await evaluate(words, lengths("a"), {})
    with pytest.raises(ValueError, match="one case or more at once"):
        await evaluate(words, lengths("a"), {"lm": counting()}, concurrency=0)
    with pytest.raises(ValueError, match="max_iters"):
        await evaluate(words, lengths("a"), {"lm": counting()}, max_iters=-1)
    with pytest.raises(ValueError, match="which is no node of Word"):
        await evaluate(words, lengths("a"), {"lm": counting()}, node_metrics={Bug: lambda *_: 1})


async def test_a_metric_that_raises_for_the_first_case_ends_it_there_and_says_for_which() -> None:
    def broken(case: Case, result: GraphResult[Any]) -> float:
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


async def test_a_judge_that_cannot_be_asked_leaves_its_case_without_a_score() -> None:
    async def judged(case: Case, result: GraphResult[Any]) -> float:
        report(Usage(calls=1, input_tokens=7))
        if case.name == "b":
            raise BaeLMError("the judge is asleep")
        return 1.0

    found = await evaluate(words, lengths("a", "b"), {"lm": counting()}, metric=judged)

    unscored = results(found)["b"]
    assert (unscored.outcome, unscored.score) == ("unscored", None)
    assert "could not be scored: BaeLMError: [bae-lm-failed] the judge is asleep" in unscored.error
    assert total(found).score is not None
    assert total(found).score.n == 1
    # And what the judge used is told apart from what the cases did.
    assert (found.contenders[0].judging.calls, total(found).calls) == (2, 2)
    page = found.to_markdown()
    assert "judged with 2 LM calls · 14 tokens · $0, not counted above" in page
    # The mean is of one case of two, and nobody is to take it for more.
    assert "| lm | 2 | 1 | 1.00 [0.21, 1.00] |" in page
    assert "1 case could not be scored, and no mean has them" in page
    assert (found.complete, found.metric_errors) == (False, 0)


async def test_what_a_judge_used_is_told_apart_in_every_report() -> None:
    class Judging(ScriptedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            report(Usage(calls=1, input_tokens=600, output_tokens=17, cost=0.25))
            return await super().fill(*args, **kwargs)

    judge = Judge(Judging({"Verdict": lambda _: {"reason": "far off", "grade": "poor"}}))

    found = await evaluate(
        words, lengths("a", "b"), {"lm": counting(a=3, b=3)}, node_metrics={Length: judge}
    )

    used = found.contenders[0].judging
    assert f"judged with {used.calls} LM calls · 1,234 tokens · $0.50" in found.to_markdown()
    data = found.to_json()["contenders"][0]
    assert (data["judging"]["calls"], data["judging"]["cost"]) == (used.calls, 0.5)
    assert data["total"]["calls"] == 2


async def test_a_metric_that_never_answers_leaves_its_case_without_a_score() -> None:
    async def asleep(case: Case, result: GraphResult[Any]) -> float:
        await asyncio.Event().wait()
        return 1.0

    found = await evaluate(words, lengths("a"), {"lm": counting()}, metric=asleep, timeout=0.1)

    assert found.contenders[0].cases[0].error == "the metric took longer than 0.1 s"
    assert total(found).score is None


# Stopping


async def test_a_budget_that_runs_out_leaves_the_rest_not_run_and_not_scored() -> None:
    lm, other = counting(), counting(a=9)

    found = await evaluate(
        words,
        lengths("a", "b", "c", "d"),
        {"one": lm, "two": other},
        budget=Budget(calls=5),
        concurrency=1,
    )

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "ended", "ended", "not run"]
    assert [r.score for r in found.contenders[1].cases] == [0.0, 1.0, None, None]
    assert [total(found).cases, total(found, 1).cases] == [3, 2]
    assert total(found).score is not None
    assert total(found).score.n == 3
    assert (total(found).calls, total(found, 1).calls) == (3, 2)
    # One that was begun has spent something perhaps; the others have no run at all.
    assert [bool(r.run_id) for r in found.contenders[0].cases] == [True, True, True, False]
    assert [bool(r.run_id) for r in found.contenders[1].cases] == [True, True, True, False]
    assert found.stopped == "budget: 5 of 5 calls spent"
    assert found.differences[0].interval is not None
    assert found.differences[0].interval.n == 2
    page = found.to_markdown()
    assert "Not all cases were run: budget: 5 of 5 calls spent." in page
    assert "two: 2 cases not run, and not scored." in page


async def test_a_case_that_the_budget_cut_short_has_spent_what_it_spent() -> None:
    found = await evaluate(
        tickets,
        [Case({"text": "a"}), Case({"text": "b"})],
        {"lm": always_bug()},
        budget=Budget(calls=3),
        concurrency=1,
    )

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "not run"]
    assert found.contenders[0].cases[1].run_id
    assert total(found).calls == 3


async def test_a_budget_that_runs_out_in_a_dependency_ends_the_evaluation_too() -> None:
    async def asked(lm: LM) -> int:
        return (await lm.make(Word(text="a"), Length)).count  # type: ignore[attr-defined]

    class Depending(Node):
        count: Annotated[int, Dep(asked)]

        async def __call__(self) -> None: ...

    found = await evaluate(
        Graph(start=Depending),
        [Case({}), Case({})],
        {"lm": counting()},
        budget=Budget(calls=1),
        concurrency=1,
    )

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "not run"]


async def test_a_budget_that_ran_out_may_be_the_cause_of_what_a_body_raises() -> None:
    class Wrapping(Node):
        async def __call__(self, lm: LM) -> None:
            try:
                await lm.make(Word(text="a"), Length)
            except BudgetError as error:
                raise RuntimeError("no answer") from error

    found = await evaluate(
        Graph(start=Wrapping), [Case({})], {"lm": counting()}, budget=Budget(calls=0)
    )

    assert [r.outcome for r in found.contenders[0].cases] == ["not run"]
    assert total(found).score is None


async def test_the_budget_of_one_lm_is_that_lms_failure() -> None:
    from bae.lm import Budgeted

    limited = Budgeted(counting(), Budget(calls=1))

    found = await evaluate(words, lengths("a", "b"), {"lm": limited}, concurrency=1)

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "failed"]
    assert found.stopped == ""


class Held(ScriptedLM):
    """An LM that answers the first question and no other."""

    def __init__(self) -> None:
        super().__init__({Length: lambda asked: {"count": len(asked.source.text)}})  # type: ignore[union-attr]
        self.waiting = 0
        self.reached = asyncio.Event()

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        if source.text != "a":
            self.waiting += 1
            if self.waiting == 2:
                self.reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1
        return await super().fill(target, resolved, instruction, source)


async def test_an_evaluation_that_is_stopped_has_what_was_done_until_then() -> None:
    lm, stop = Held(), asyncio.Event()
    journal = MemoryJournal()
    task = asyncio.ensure_future(
        evaluate(
            words,
            lengths("a", "b", "c", "d"),
            {"lm": lm},
            journal=journal,
            concurrency=2,
            stop=stop,
        )
    )
    await lm.reached.wait()
    stop.set()
    found = await task

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", *["not run"] * 3]
    assert [bool(r.run_id) for r in found.contenders[0].cases] == [True, True, True, False]
    assert found.stopped == "it was stopped"
    assert lm.waiting == 0
    assert sorted([info.status async for info in journal.every_run()]) == [
        "cancelled",
        "cancelled",
        "ended",
    ]


async def test_an_evaluation_that_may_be_stopped_and_is_not_comes_to_its_end() -> None:
    found = await evaluate(words, lengths("a"), {"lm": counting()}, stop=asyncio.Event())

    assert found.contenders[0].cases[0].score == 1.0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancelled_evaluation_leaves_nothing_running() -> None:
    lm = Held()
    journal = MemoryJournal()
    task = asyncio.ensure_future(
        evaluate(words, lengths("a", "b", "c", "d"), {"lm": lm}, journal=journal, concurrency=2)
    )
    await lm.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert lm.waiting == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert sorted([info.status async for info in journal.every_run()]) == [
        "cancelled",
        "cancelled",
        "ended",
    ]


async def test_as_many_cases_run_at_once_as_may_and_no_more() -> None:
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

    found = await evaluate(Graph(start=Meeting), cases, {"a": None, "b": None}, concurrency=3)

    assert [r.outcome for r in found.contenders[1].cases] == ["ended"] * 6
    assert max(most) == 3


# What is given to the runs


async def test_values_for_dependencies_go_to_every_run_and_those_made_stay_in_theirs() -> None:
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

    found = await evaluate(
        Graph(start=Day),
        [Case({}, expected={"sky": "blue"}), Case({})],
        {"no lm": None},
        dep_cache=given,
    )

    assert [r.score for r in found.contenders[0].cases] == [1.0, 1.0]
    assert made == ["client", "client"]
    assert list(given) == [weather]


async def test_a_script_that_is_named_begins_anew_for_every_case(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"count": 1}]', encoding="utf-8")

    found = await evaluate(words, lengths("a", "b", "c"), {"file": f"scripted:{script}"})

    assert [r.score for r in found.contenders[0].cases] == [1.0, 1.0, 1.0]


# Progress


async def test_progress_is_told_of_every_case_with_what_it_used() -> None:
    told: list[tuple[int, int, str, str, int]] = []

    def progress(done: int, of: int, contender: str, result: CaseResult) -> None:
        told.append((done, of, contender, result.case.name, result.usage.calls))

    await evaluate(
        words,
        lengths("a", "b"),
        {"x": counting(), "y": counting()},
        progress=progress,
        concurrency=1,
    )

    assert told == [
        (1, 4, "x", "a", 1),
        (2, 4, "y", "a", 1),
        (3, 4, "x", "b", 1),
        (4, 4, "y", "b", 1),
    ]


async def test_progress_that_raises_is_told_no_more_and_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[int] = []

    def progress(done: int, of: int, contender: str, result: CaseResult) -> None:
        told.append(done)
        raise RuntimeError("the screen is gone")

    with caplog.at_level(logging.WARNING, "bae.evals"):
        found = await evaluate(words, lengths("a", "b"), {"lm": counting()}, progress=progress)

    assert total(found).cases == 2
    assert told == [1]
    assert "is told no more" in caplog.text


# Writing


async def test_text_from_elsewhere_means_nothing_to_the_page() -> None:
    odd = "a | b\n# c `d` <i> [x](y) \x1b[31m"

    class Odd(ScriptedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            raise BaeLMError(odd)

    page = (await evaluate(words, [Case({"text": "a"}, odd)], {odd: Odd()})).to_markdown()

    tables = [line for line in page.splitlines() if line.startswith("|")]
    columns = {
        len([1 for a, b in itertools.pairwise(line) if b == "|" and a != "\\"]) for line in tables
    }
    assert columns == {10, 6}
    assert "\x1b" not in page
    assert "\\`d\\` \\<i\\> \\[x\\](y)" in page
    assert not any(line.startswith("# c") for line in page.splitlines())


async def test_the_page_says_everything_once_and_in_order() -> None:
    cases = [Case({"text": n}, n, {"severity": "high"}) for n in ("a", "b")]

    found = await evaluate(tickets, cases, {"low": always_bug("low"), "high": always_bug()})

    page = [line for line in found.to_markdown().splitlines() if line]
    shown = [line.rsplit(" | ", 2)[0] if re.search(r"\ds \|$", line) else line for line in page]
    shown = [line.rpartition(" | eval-")[0] or line for line in shown]
    head = "|  | cases | scored | score | valid | calls | tokens | cost | p50 | p95 |"
    rule = "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    why = "severity: 'low', where 'high' was expected"
    expected, came = '\\{"severity": "high"\\}', 'Bug \\{"severity": "low", "part": "all"\\}'
    assert shown == [
        "# Ticket: 2 cases",
        head,
        rule,
        "| low | 2 | 2 | 0.00 [0.00, 0.66] | 100 % | 4 | 0 | $0",
        "| high | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 4 | 0 | $0",
        "## Differences",
        "|  | score | beyond chance |",
        "| --- | ---: | --- |",
        "| high against low | +1.00 [+0.07, +1.00] | yes |",
        "## Ticket",
        head,
        rule,
        "| low | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 2 | 0 | $0",
        "| high | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 2 | 0 | $0",
        "## Bug",
        head,
        rule,
        "| low | 2 | 2 | 0.00 [0.00, 0.66] | 100 % | 2 | 0 | $0",
        "| high | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 2 | 0 | $0",
        "## Cases of low that failed or scored less than 1",
        "| case | score | why | expected | came | its run |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| a | 0.00 | {why} | {expected} | {came}",
        f"| b | 0.00 | {why} | {expected} | {came}",
    ]


async def test_the_flat_table_has_the_numbers_unrounded() -> None:
    found = await evaluate(words, lengths("a", "b", "c"), {"=lm": counting(b=9)})

    lines = list(csv.DictReader(io.StringIO(found.to_csv())))

    assert [(line["contender"], line["node"]) for line in lines] == [
        ("'=lm", ""),
        ("'=lm", "Length"),
    ]
    assert float(lines[0]["score"]) == total(found).score.mean  # type: ignore[union-attr]
    assert (lines[0]["failed"], lines[0]["not_run"], lines[1]["failed"]) == ("0", "0", "")
    assert float(lines[1]["seconds_p95"]) == rows(found)["Length"].seconds_p95


async def test_the_json_has_everything_and_is_the_same_each_time_but_for_times_and_ids() -> None:
    async def once() -> dict[str, Any]:
        cases = [*lengths("a", "bb"), Case({"text": "c"}, "c", metadata={"at": Path("x")})]
        found = await evaluate(words, cases, {"x": counting(bb=9), "y": counting()})
        return json.loads(json.dumps(found.to_json()))

    def steady(value: Any) -> Any:
        if isinstance(value, Mapping):
            changing = ("seconds", "run_id")
            return {k: steady(v) for k, v in value.items() if not k.startswith(changing)}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [steady(each) for each in value]
        return value

    first = await once()

    assert first["format"] == "bae-evaluation-1"
    assert steady(first) == steady(await once())
    case = first["contenders"][0]["cases"][1]
    assert (case["name"], case["score"], case["outcome"]) == ("bb", 0.0, "ended")
    assert case["why"]
    assert case["run_id"].startswith("eval-")
    assert first["contenders"][0]["cases"][2]["metadata"] == {"at": "x"}
    assert first["differences"][0]["score"]["n"] == 3


@pytest.mark.once
def test_evaluations_need_no_package_beyond_pydantic() -> None:
    code = (
        "import sys, bae.evals; bae.evals.evaluate; bae.evals.load_cases; bae.evals.Evaluation;"
        "print({'dspy', 'pydantic_evals', 'optuna', 'rich', 'typer'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert ran.stdout.strip() == "set()", ran.stderr


# What scores are of


class Sorting(Node):
    text: str

    async def __call__(self) -> Keep | Drop: ...


class Keep(Node):
    place: int

    async def __call__(self) -> None: ...


class Drop(Node):
    reason: str

    async def __call__(self) -> None: ...


sortings = Graph(start=Sorting)


class Flaky(ScriptedLM):
    """An LM that keeps the first thing in place 1, drops the second, and then is down."""

    def __init__(self) -> None:
        super().__init__({Keep: [{"place": 1}], Drop: [{"reason": "old"}]}, choices=[Keep, Drop])

    async def choose_type(self, types: Any, context: Any) -> Any:
        if len(self.asked) > 3:
            raise ConnectionError("down")
        return await super().choose_type(types, context)


async def test_a_node_has_the_score_of_every_case_that_expects_it_failed_ones_too() -> None:
    cases = [Case({"text": text}, text, {"place": 1}) for text in ("a", "b", "c", "d")]

    found = await evaluate(sortings, cases, {"lm": Flaky()}, concurrency=1)

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "ended", "failed", "failed"]
    keep = rows(found)["Keep"].score
    assert keep is not None
    assert (keep.n, keep.mean) == (4, 0.25)
    # The other end did nothing wrong by being there.
    assert rows(found)["Drop"].score is None


async def test_a_choice_is_scored_by_whether_it_can_lead_to_the_expected_end() -> None:
    cases = [
        Case({"text": "a"}, "right", expected_type="Keep"),
        Case({"text": "b"}, "wrong", expected_type="Keep"),
        Case({"text": "c"}, "none", expected_type="Drop"),
        Case({"text": "d"}, "untold"),
    ]

    found = await evaluate(sortings, cases, {"lm": Flaky()}, concurrency=1)

    told = {name: result.nodes.get("Sorting") for name, result in results(found).items()}
    assert told == {
        "right": Score(1.0),
        "wrong": Score(0.0, "chose Drop, where Keep was expected"),
        "none": Score(0.0, "no valid choice, where Drop was expected"),
        "untold": None,
    }
    assert rows(found)["Sorting"].score is not None
    assert rows(found)["Sorting"].score.n == 3


async def test_a_choice_on_the_way_is_scored_too_and_one_that_tells_nothing_is_not() -> None:
    class Digging(Node):
        async def __call__(self) -> Digging | Ticket: ...

    lm = ScriptedLM(
        {Ticket: lambda _: {"text": "a"}, Question: [{"topic": "x"}], Reply: [{"reply": "y"}]},
        choices=[Ticket, Question],
    )

    found = await evaluate(Graph(start=Digging), [Case({}, expected={"reply": "y"})], {"lm": lm})

    # Reply comes after Question alone; to dig on would have led there as well.
    assert {n: s.value for n, s in found.contenders[0].cases[0].nodes.items()} == {
        "Reply": 1.0,
        "Ticket": 1.0,
    }


class Routing(Node):
    text: str

    async def __call__(self) -> Calm | Cross | Lost: ...


class Calm(Node):
    async def __call__(self) -> Sent: ...


class Cross(Node):
    async def __call__(self) -> Sent: ...


class Lost(Node):
    async def __call__(self) -> Sent: ...


class Sent(Node):
    reply: str

    async def __call__(self) -> None: ...


async def test_where_branches_meet_again_the_named_successors_say_which_choice_is_right() -> None:
    lm = ScriptedLM({Sent: lambda _: {"reply": "x"}}, choices=[Cross] * 5)
    named: dict[str, list[str]] = {
        "right": ["Cross"],
        "wrong": ["Calm"],
        "one of two": ["Calm", "Cross"],
        "none of two": ["Calm", "Lost"],
        "all": ["Calm", "Cross", "Lost"],
    }
    cases = [
        Case({"text": "a"}, name, {"reply": "x"}, nodes={each: {} for each in nodes})
        for name, nodes in named.items()
    ]

    found = await evaluate(Graph(start=Routing), cases, {"lm": lm}, concurrency=1)

    assert {name: r.nodes.get("Routing") for name, r in results(found).items()} == {
        "right": Score(1.0),
        "wrong": Score(0.0, "chose Cross, where Calm was expected"),
        "one of two": Score(1.0),
        "none of two": Score(0.0, "chose Cross, where Calm or Lost was expected"),
        "all": None,
    }


async def test_in_a_loop_a_named_successor_may_be_chosen_before_the_last_choice() -> None:
    class Desk(Node):
        note: str = ""

        async def __call__(self) -> Search | Desk | Sent: ...

    class Search(Node):
        async def __call__(self) -> Desk: ...

    def lm(*choices: Any) -> ScriptedLM:
        return ScriptedLM(
            {Sent: lambda _: {"reply": "x"}, Desk: lambda _: {"note": "n"}}, choices=choices
        )

    found = await evaluate(
        Graph(start=Desk),
        [Case({}, nodes={"Search": {}, "Desk": {}})],
        {"searched": lm(Search, Sent), "not": lm(Desk, Sent)},
    )

    assert found.contenders[0].cases[0].nodes["Desk"] == Score(1.0)
    # The fields are as expected, of which there are none; the choice is not.
    assert found.contenders[1].cases[0].nodes["Desk"] == Score(
        0.5, "chose Sent, where Search was expected"
    )


async def test_every_run_begins_with_a_node_of_its_own() -> None:
    class Counted(Node):
        seen: list[str] = []
        anything: Any = None

        async def __call__(self) -> None:
            self.seen.append("x")
            self.anything.append("x")

    given = Counted(anything=[])
    held: list[str] = []
    cases = [
        Case(given, expected={"seen": ["x"], "anything": ["x"]}),
        Case({"anything": held, "seen": ()}, expected={"seen": ["x"], "anything": ["x"]}),
    ]

    found = await evaluate(Graph(start=Counted), cases, {"a": None, "b": None}, concurrency=1)

    assert [r.score for each in found.contenders for r in each.cases] == [1.0] * 4
    assert (given.seen, given.anything, held) == ([], [], [])


async def test_what_came_is_compared_off_the_event_loop() -> None:
    scoring_in: list[str] = []

    class Telling:
        def __eq__(self, other: object) -> bool:
            scoring_in.append(threading.current_thread().name)
            return False

        __hash__ = None  # type: ignore[assignment]

    class Long(Node):
        value: Any

        async def __call__(self) -> None: ...

    case = Case(Long(value=Telling()), expected={"value": 1})

    await evaluate(Graph(start=Long), [case], {"no lm": None})

    assert scoring_in
    assert threading.main_thread().name not in scoring_in


# Failing cases say why, and keep to themselves


async def test_the_reason_of_a_failure_has_what_caused_it() -> None:
    class Broken(Node):
        async def __call__(self) -> None:
            raise RuntimeError("the well is dry")

    found = await evaluate(Graph(start=Broken), [Case({})], {"no lm": None})

    said = "Broken.__call__ raised RuntimeError; caused by RuntimeError: the well is dry"
    assert said in found.contenders[0].cases[0].error
    assert "the well is dry" in found.to_markdown()


async def test_a_value_that_no_journal_can_keep_fails_its_case_alone(tmp_path: Path) -> None:
    class Odd(Node):
        kind: str

        async def __call__(self) -> Found:
            return Found(value=object() if self.kind == "odd" else 1)

    class Found(Node):
        value: Any

        async def __call__(self) -> None: ...

    cases = [Case({"kind": kind}, kind) for kind in ("a", "odd", "b")]
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        found = await evaluate(Graph(start=Odd), cases, {"no lm": None}, journal=journal)

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "failed", "ended"]
    assert "[bae-journal-field] Found.value" in results(found)["odd"].error


async def test_a_run_that_waits_for_a_person_leaves_their_queue(tmp_path: Path) -> None:
    class Asking(Node):
        go: Annotated[bool, Gate("go on?")]

        async def __call__(self) -> None: ...

    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        found = await evaluate(Graph(start=Asking), [Case({})], {"no lm": None}, journal=journal)
        waiting = await journal.runs(status="waiting")
        [run] = await journal.runs()

    assert waiting == []
    assert (run.status, run.owner, run.waiting) == ("failed", None, ())
    assert run.error == found.contenders[0].cases[0].error
    assert "Asking.go: go on?" in run.error


# Metrics that fail


async def test_a_metric_that_raises_later_leaves_that_case_without_a_score_and_goes_on() -> None:
    def fussy(case: Case, result: GraphResult[Any]) -> float:
        if case.name == "b":
            raise KeyError("b")
        return 1.0

    found = await evaluate(words, lengths("a", "b", "c"), {"lm": counting()}, metric=fussy)

    assert [r.score for r in found.contenders[0].cases] == [1.0, None, 1.0]
    unscored = results(found)["b"]
    assert unscored.outcome == "unscored"
    assert "fussy raised KeyError; caused by KeyError: 'b'" in unscored.metric_error
    assert unscored.metric_error in unscored.error
    assert (found.metric_errors, found.complete) == (1, False)
    data = found.to_json()
    assert (data["metric_errors"], data["complete"]) == (1, False)
    assert "| lm | 3 | 2 | 1.00" in found.to_markdown()


async def test_a_metric_that_fails_for_one_contender_of_the_first_case_ends_nothing() -> None:
    def fussy(case: Case, result: GraphResult[Any]) -> float:
        return 1 / result.result.count

    found = await evaluate(
        words, lengths("a", "b"), {"x": counting(a=0), "y": counting()}, metric=fussy
    )

    assert [r.score for r in found.contenders[0].cases] == [None, 1.0]
    assert [r.score for r in found.contenders[1].cases] == [1.0, 1.0]


@pytest.mark.parametrize("own", [True, False])
async def test_a_metric_of_a_node_that_fails_leaves_a_case_without_a_score_unless_it_has_a_metric(
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

    found = await evaluate(
        tickets,
        cases,
        {"lm": always_bug()},
        metric=(lambda *_: 1.0) if own else None,
        node_metrics={Bug: broken},
    )

    assert [(r.outcome, r.score) for r in found.contenders[0].cases] == [
        ("ended", 1.0),
        ("ended", 1.0) if own else ("unscored", None),
    ]
    assert ["Bug" in r.nodes for r in found.contenders[0].cases] == [True, False]
    assert "ZeroDivisionError" in found.contenders[0].cases[1].metric_error
    assert found.metric_errors == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_metric_that_raises_what_ends_programs_has_just_failed(
    error: type[BaseException], is_async: bool
) -> None:
    def leaving(case: Case, result: GraphResult[Any]) -> float:
        if case.name == "b":
            raise error
        return 1.0

    async def leaving_async(case: Case, result: GraphResult[Any]) -> float:
        return leaving(case, result)

    metric: Any = leaving_async if is_async else leaving

    found = await evaluate(words, lengths("a", "b", "c"), {"lm": counting()}, metric=metric)

    assert [r.score for r in found.contenders[0].cases] == [1.0, None, 1.0]
    assert f"the metric raised {error.__name__}" in results(found)["b"].error


async def test_a_judge_whose_lm_is_not_there_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    lm = counting()
    judge = Judge(f"scripted:{tmp_path / 'none.json'}")

    with pytest.raises(BaeError) as caught:
        await evaluate(words, lengths("a"), {"lm": lm}, node_metrics={Length: judge})

    assert caught.value.code == "bae-script-invalid"
    assert lm.asked == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lms": ["local"]}, 'give the LMs by the names that tables call them, as {"local"'),
        ({"lms": {"a": 5}}, "give an LM, the name of one"),
        ({"lms": {"a": ScriptedLM}}, "give an LM, the name of one"),
        ({"lms": {1: None}}, "the name of an LM is a text"),
        ({"graph": Word}, "give a Graph of it"),
        ({"cases": "hi"}, "give a list of Cases"),
        ({"metric": "exact"}, "give a function of a case and the result"),
        ({"metric": lambda case: 1}, "give a function of a case and the result"),
        ({"metric": Judge("local")}, "say node_metrics={Reply: Judge(…)}"),
        ({"metric": fields_metric}, "say node_metrics={Reply: fields_metric}"),
        ({"node_metrics": fields_metric}, "give metrics by the class of the node"),
        ({"node_metrics": {Length: "exact"}}, "a function of the expected node and the given one"),
    ],
)
async def test_arguments_of_another_kind_are_refused_before_the_first_run(
    given: dict[str, Any], said: str
) -> None:
    lm = counting()
    arguments = {"graph": words, "cases": lengths("a"), "lms": {"lm": lm}, **given}

    with pytest.raises(TypeError) as caught:
        await evaluate(**arguments)

    assert said in str(caught.value)
    assert lm.asked == []


async def test_what_a_function_makes_in_place_of_an_lm_is_of_each_run_its_own(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"count": 1}]', encoding="utf-8")
    made: list[LM] = []

    def taught() -> LM:
        made.append(Taught(f"scripted:{script}", {}))
        return made[-1]

    found = await evaluate(words, lengths("a", "b", "c"), {"taught": taught})

    assert [r.score for r in found.contenders[0].cases] == [1.0, 1.0, 1.0]
    assert len(made) == 3


# What reports have of a case


async def test_the_report_has_what_went_in_what_was_expected_and_what_came() -> None:
    class Login(Node):
        user: str
        password: SecretStr

        async def __call__(self) -> Session:
            return Session(user=self.user, token="t0ken", odd={1, 2})  # type: ignore[arg-type]

    class Session(Node):
        user: str
        token: SecretStr
        odd: Any = None

        async def __call__(self) -> None: ...

    fields = {"user": "ann", "password": "hunter2"}
    cases = [
        Case(fields, "fields", {"user": "bob", "token": "s3same"}),
        Case(Login(**fields), "node", {"user": "ann"}),  # type: ignore[arg-type]
    ]

    found = await evaluate(Graph(start=Login), cases, {"no lm": None})

    data = json.loads(json.dumps(found.to_json()))
    first, second = data["contenders"][0]["cases"]
    assert first["input"] == second["input"] == {"user": "ann"}
    assert first["expected"] == {"user": "bob"}
    assert first["end"]["type"] == "Session"
    assert first["end"]["fields"]["user"] == "ann"
    assert first["end"]["withheld"] == ["token"]
    page = found.to_markdown()
    assert '\\{"user": "bob"\\} | Session \\{"user": "ann"' in page
    for secret in ("hunter2", "t0ken", "s3same"):
        assert secret not in page + json.dumps(data)


async def test_what_came_is_cut_where_it_is_long() -> None:
    class Long(Node):
        text: str

        async def __call__(self) -> None: ...

    case = Case({"text": "a " * 100_000}, expected={"text": "b " * 100_000})

    page = (await evaluate(Graph(start=Long), [case], {"no lm": None})).to_markdown()

    assert len(page) < 4000
    assert 'Long \\{"text": "a a a' in page


async def test_halves_of_characters_lose_no_evaluation(tmp_path: Path) -> None:
    half = "\ud800"
    case = Case({"text": "a"}, half, metadata={half: [half, b"\xff", float("nan")]})

    found = await evaluate(words, [case], {half: counting()}, metric=lambda *_: Score(0.5, half))

    for text in (found.to_markdown(), found.to_csv(), json.dumps(found.to_json())):
        (tmp_path / "report").write_text(text, encoding="utf-8")
    assert "\\\\ud800" in found.to_markdown()
    said = json.dumps(found.to_json(), ensure_ascii=False, allow_nan=False)
    assert said.encode()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (amounts.score(0.9967), "0.997"),
        (amounts.score(0.999999), "0.9999"),
        (amounts.score(1.0), "1.00"),
        (amounts.score(0.004), "0.004"),
        (amounts.score(0.0), "0.00"),
        (amounts.share(0.9967), "99 %"),
        (amounts.dollars(0.00002), "$2.0e-05"),
        (amounts.dollars(0.99999), "$1.00"),
        (amounts.seconds(9.999), "10s"),
    ],
)
def test_no_number_looks_better_than_it_is(number: str, said: str) -> None:
    assert number == said


async def test_where_a_graph_has_secrets_the_words_of_a_cause_stay_out_of_the_report() -> None:
    class Login(Node):
        password: SecretStr

        async def __call__(self) -> None:
            raise RuntimeError(self.password.get_secret_value())

    found = await evaluate(Graph(start=Login), [Case({"password": "hunter2"})], {"no lm": None})

    assert "caused by RuntimeError" in found.contenders[0].cases[0].error
    assert "hunter2" not in json.dumps(found.to_json()) + found.to_markdown()


async def test_a_budget_that_runs_out_behind_the_error_of_a_metric_ends_the_evaluation() -> None:
    async def judged(case: Case, result: GraphResult[Any]) -> float:
        if case.name == "b":
            spent = BudgetError("all spent", budget=budget)
            raise BaeError("the judge failed", code="bae-judge-failed", cause=spent)
        return 1.0

    budget = Budget(calls=9)
    found = await evaluate(
        words,
        lengths("a", "b", "c"),
        {"lm": counting()},
        metric=judged,
        budget=budget,
        concurrency=1,
    )

    assert [r.outcome for r in found.contenders[0].cases] == ["ended", "not run", "not run"]
