"""What an evaluation says of conversations with tools: rounds, calls and errors, for each node and
in total; and a metric that looks at the calls."""

from __future__ import annotations

import csv
import io
from typing import Any

import tool_runs
from bae import GraphResult
from bae.evals import Case, Evaluation, evaluate
from bae.journal import MemoryJournal
from bae.optimizer import Score
from bae.testing import Call, ScriptedLM
from eval_graphs import counting, lengths, results, rows, total, words

CASES = [
    Case({"text": "How large is it?"}, name="size"),
    Case({"text": "How do I clean it?"}, name="care"),
]


async def evaluate_tools(**options: Any) -> Evaluation:
    return await evaluate(tool_runs.GRAPH, CASES, {"lm": tool_runs.make_scripted_lm}, **options)


async def test_tool_rounds_and_calls_are_counted_by_node() -> None:
    journal = MemoryJournal()
    evaluation = await evaluate_tools(journal=journal)

    reply, brief = rows(evaluation)["Reply"], rows(evaluation)["Brief"]
    assert (reply.rounds, reply.tool_calls, reply.tool_errors) == (6, 10, 4)
    assert (brief.rounds, brief.tool_calls, brief.calls) == (0, 0, 2)
    assert (reply.calls, reply.judged, reply.validity) == (6, 2, 1.0)
    everything = total(evaluation)
    assert (everything.calls, everything.rounds, everything.tool_calls) == (8, 6, 10)
    for result in evaluation.contenders[0].cases:
        resumed = await tool_runs.GRAPH.resume(result.run_id, journal=journal)
        assert result.usage.calls == resumed.usage.calls == 4
        assert result.tool_calls == 5


async def test_a_report_has_a_column_for_tool_calls_only_if_tools_were_called() -> None:
    evaluation = await evaluate_tools()

    assert "| 10 in 6 rounds, 4 errors |" in evaluation.to_markdown()
    line = next(csv.DictReader(io.StringIO(evaluation.to_csv())))
    assert (line["rounds"], line["tool_calls"], line["tool_errors"]) == ("6", "10", "4")
    data = evaluation.to_json()["contenders"][0]
    assert data["total"]["tool_calls"] == 10
    assert [case["tool_calls"] for case in data["cases"]] == [5, 5]
    without = await evaluate(words, lengths("a"), {"lm": counting()})
    assert "tools" not in without.to_markdown()


async def test_a_metric_can_read_the_tool_calls_of_a_run() -> None:
    def searched_first(case: Case, result: GraphResult[Any]) -> Score:
        names = [call.name for call in result.result.calls]
        return Score(float(names[:1] == ["search"]), f"it called {', '.join(names)}")

    def lm() -> ScriptedLM:
        return ScriptedLM({"Reply": [Call("read_page", page="a"), {"text": "so"}]})

    lms = {"searches": tool_runs.make_scripted_lm, "reads": lm}
    evaluation = await evaluate(tool_runs.GRAPH, CASES, lms, metric=searched_first)

    assert [
        contender.total.score and contender.total.score.mean for contender in evaluation.contenders
    ] == [1.0, 0.0]
    assert results(evaluation, 1)["size"].why == "it called read_page"


async def test_a_case_that_fails_between_tool_calls_has_its_rounds_and_usage() -> None:
    def lm() -> ScriptedLM:
        calls = [Call("search", query="a")] * 6
        return ScriptedLM({"Reply": [*calls]})

    evaluation = await evaluate(tool_runs.GRAPH, CASES[:1], {"lm": lm})

    [result] = evaluation.contenders[0].cases
    assert result.failed
    assert "after 6 rounds" in result.error
    assert rows(evaluation)["Reply"].rounds == result.usage.calls == 6
