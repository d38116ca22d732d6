"""What an evaluation says of LM calls: calls, tokens, cost, validity and time, for each node and in
total."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Any

import pytest

from bae import BaeLMError, Dep, Graph, Map, Node, Usage
from bae.evals import Case, evaluate
from bae.journal import MemoryJournal
from bae.lm import LM
from bae.testing import ScriptedLM
from bae.usage import Attempt, report_usage, tell
from eval_graphs import Bug, Length, Ticket, Word, counting, lengths, rows, tickets, total, words


async def test_an_invalid_answer_lowers_the_validity_of_the_requested_node() -> None:
    lm = ScriptedLM([Bug, {"severity": "huge"}, {"severity": "low"}])

    evaluation = await evaluate(tickets, [Case({"text": "a"})], {"lm": lm})

    assert {n: (r.judged, r.validity, r.calls) for n, r in rows(evaluation).items()} == {
        "Ticket": (1, 1.0, 1),
        "Bug": (2, 0.5, 2),
    }
    assert (total(evaluation).judged, total(evaluation).calls) == (3, 3)
    assert total(evaluation).validity == pytest.approx(2 / 3)


async def test_answers_of_a_failed_lm_without_usage_reports_are_counted() -> None:
    class Silent(ScriptedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            tell(Attempt(1, "{}", "invalid", ("count: missing",)))
            raise BaeLMError("enough")

    evaluation = await evaluate(words, lengths("a"), {"lm": Silent()})

    row = rows(evaluation)["Length"]
    assert (row.judged, row.validity, row.calls) == (1, 0.0, 0)


async def test_node_rows_add_up_to_the_totals_of_the_journals() -> None:
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

    evaluation = await evaluate(graph, cases, {"lm": lm()}, journal=journal)

    assert [r.error for r in evaluation.contenders[0].cases] == [""] * 3
    for result in evaluation.contenders[0].cases:
        resumed = await graph.resume(result.run_id, journal=journal)
        assert result.usage.calls == resumed.usage.calls > 0
    by_name = rows(evaluation)
    assert {n: r.calls for n, r in by_name.items()} == {
        "Story": 6,
        "Length": 3,
        "Ticket": 6,
        "Bug": 3,
    }
    assert total(evaluation).calls == sum(row.calls for row in by_name.values()) == 18


class Costly(ScriptedLM):
    """An LM that says what it used, without a price."""

    async def fill(self, *args: Any, **kwargs: Any) -> Any:
        report_usage(Usage(calls=1, input_tokens=10, output_tokens=5, cost=None))
        return await super().fill(*args, **kwargs)


async def test_an_unknown_cost_is_not_zero() -> None:
    lm = Costly({Length: lambda _: {"count": 1}})

    evaluation = await evaluate(words, lengths("a"), {"dear": lm, "free": counting()})

    assert (total(evaluation).cost, total(evaluation, 1).cost) == (None, 0.0)
    assert total(evaluation).tokens == 15
    assert "| dear | 1 | 1 | 1.00 [0.21, 1.00] | 100 % | 2 | 15 | ? |" in evaluation.to_markdown()
    assert "| free | 1 | 1 | 1.00 [0.21, 1.00] | 100 % | 1 | 0 | $0 |" in evaluation.to_markdown()
    line = next(csv.DictReader(io.StringIO(evaluation.to_csv())))
    assert line["cost"] == ""
    assert evaluation.to_json()["contenders"][0]["total"]["cost"] is None


@pytest.mark.once
async def test_the_table_has_the_calls_and_tokens_counted_by_the_provider() -> None:
    pytest.importorskip("anthropic")
    from bae.lm.anthropic_backend import AnthropicBackend
    from bae.testing import Provider
    from bae.testing.wire import tokens_in

    texts: list[str] = []

    def answer(asked: Any) -> str:
        wrong = len(texts) % 3 == 0
        texts.append('{"count": "many"}' if wrong else '{"count": 1}')
        return texts[-1]

    async with Provider() as provider:
        provider.always(answer)
        one = AnthropicBackend("claude-haiku-4-5", base_url=provider.url, api_key="a key")
        async with one:
            evaluation = await evaluate(
                words, lengths("a", "b", "c", "d"), {"claude": one}, concurrency=1
            )
        asked = provider.requests

    row = rows(evaluation)["Length"]
    assert len(asked) == 6
    for measures in (row, total(evaluation)):
        assert measures.calls == len(asked)
        assert measures.input_tokens == sum(request.tokens for request in asked)
        assert measures.output_tokens == sum(tokens_in(text) for text in texts)
        assert (measures.judged, measures.validity) == (6, pytest.approx(4 / 6))
    assert f"| {row.calls} | {row.tokens} |" in evaluation.to_markdown()


@pytest.mark.once
async def test_a_combined_choice_and_fill_counts_for_the_choosing_node() -> None:
    pytest.importorskip("anthropic")
    from bae.lm.anthropic_backend import AnthropicBackend
    from bae.testing import Provider

    good = {"answer": {"choice": "Bug", "fields": {"severity": "low", "part": "a"}}}
    bad = {"answer": {"choice": "Bugs", "fields": {"severity": "low", "part": "a"}}}

    async with Provider() as provider:
        provider.script(good, bad, good, *[bad] * 3)
        async with AnthropicBackend("m", base_url=provider.url, api_key="a key") as backend:
            cases = [Case({"text": text}, text, {"part": "a"}) for text in ("once", "twice", "no")]
            evaluation = await evaluate(tickets, cases, {"claude": backend}, concurrency=1)
        asked = provider.requests

    assert len(asked) == 6
    assert [r.outcome for r in evaluation.contenders[0].cases] == ["ended", "ended", "failed"]
    assert {n: (r.calls, r.judged, r.validity) for n, r in rows(evaluation).items()} == {
        "Ticket": (6, 6, pytest.approx(2 / 6)),
        "Bug": (0, 0, None),
    }
    assert rows(evaluation)["Ticket"].seconds_p50 > 0
