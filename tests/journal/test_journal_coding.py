"""Records to lines and back: reading through the classes of a graph gives the written nodes and
values; an unreadable line is reported with its number, its content and the reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from bae import LM, Dep, Gate, Graph, Map, Node, OpenGate, Recall
from bae.journal import MemoryJournal
from bae.journal.decoder import decode
from bae.journal.lines import Encoder
from bae.journal.stored_runs import Line
from bae.records import (
    LIVE,
    AnswerJudged,
    AnswerRestarted,
    Asker,
    LMAnswered,
    LMUsed,
    Origin,
    Recalled,
    Record,
    RecordedError,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    StepStarted,
)
from bae.usage import Attempt, Usage
from end_node import EndNode
from journal_parts import expect_refusal


def shout(word: str) -> tuple[str, float]:
    return word.upper(), 1.0


class Ask(Node):
    message: str

    async def __call__(self) -> Look: ...


class Look(Node):
    words: list[str]
    shouted: Annotated[list[tuple[str, float]], Map(shout, over="words")]

    async def __call__(self) -> Judge | Done: ...


class Judge(Node):
    message: Annotated[str, Recall(Ask)]

    async def __call__(self, lm: LM) -> Done | None:
        return await lm.make(self, Done)


class Done(EndNode):
    text: str


graph = Graph(start=Ask)


async def test_a_subgraph_result_with_a_live_value_is_not_stored() -> None:
    class Place(BaseModel):
        name: str

    class Town(Place):
        people: int = 1

    async def get_place() -> Place:
        return Town(name="Ulm")

    class Ending(EndNode):
        place: Annotated[Place, Dep(get_place)]
        fine: int = 1

    class Around(EndNode):
        inner: Annotated[Ending, Dep(Ending)]

    around, journal = Graph(start=Around), MemoryJournal()
    await around.arun(Around(), journal=journal, run_id="r")
    *_, inner, _, _ = decode(around, (await journal.read("r")).lines)[0]
    assert isinstance(inner, SourceEnded)
    assert inner.field == "inner"
    assert inner.value is LIVE


async def test_only_prompts_of_nodes_without_secrets_are_stored() -> None:
    attempt = Attempt(1, "the answer", "invalid", ("token: t0ken is wrong",), asked="the question")

    def said(encoder: Encoder, by: Asker) -> dict[str, Any]:
        return json.loads(encoder.encode(AnswerJudged(1.0, "", 0, by, attempt)))

    class Open(Node):
        text: str

        async def __call__(self) -> Shut | Plain: ...

    class Shut(EndNode):
        token: SecretStr

    class Plain(EndNode):
        text: str

    some = Encoder(Graph(start=Open))
    askers = Asker("fill", Shut), Asker("choice", Open), Asker("body", Open)
    for asker in (*askers, Asker("source", Open, "found")):
        data = said(some, asker)
        assert "asked" not in data
        assert "answer" not in data
        assert data["errors"] == ["token"]
        assert len(data["prompt"]) == 16
    assert said(some, Asker("fill", Plain))["asked"] == "the question"
    assert (
        said(Encoder(Graph(start=Open), secrets=True), Asker("fill", Shut))["answer"]
        == "the answer"
    )
    assert "asked" not in said(Encoder(graph, prompts=False), Asker("fill", Look))
    assert said(Encoder(graph), Asker("fill", Look))["answer"] == "the answer"


async def test_prompts_of_a_node_that_may_recall_a_secret_are_not_stored() -> None:
    class Told(Node):
        word: str = Field(repr=False)

        async def __call__(self) -> Used: ...

    class Used(Node):
        word: Annotated[str, Recall()]

        async def __call__(self) -> Last: ...

    class Last(EndNode):
        text: str

    attempt = Attempt(1, "the answer", "valid", asked="the question")
    record = AnswerJudged(1.0, "", 2, Asker("fill", Last), attempt)
    assert "asked" not in json.loads(Encoder(Graph(start=Told)).encode(record))


def lines_of(graph: Graph[Any, Any], records: Iterable[Record]) -> list[Line]:
    encoder = Encoder(graph)
    return [
        Line(n, type(r).__name__, r.at, r.path, r.step, encoder.encode(r))
        for n, r in enumerate(records)
    ]


def test_every_kind_of_record_reads_back_unchanged() -> None:
    start = Ask(message="a")
    records: list[Record] = [
        RunStarted(1.0, "", 0, "r", "Ask", start),
        StepStarted(1.5, "", 0, start),
        RunResumed(2.0, "", 1, "somebody", ("Ask.x is new",)),
        RunForked(3.0, "", 0, "parent", Ask(message="b"), ("message",)),
        Recalled(3.5, "", 1, Judge, "message", "b", Origin("", 0, "message")),
        AnswerRestarted(
            4.0, "", 1, Asker("fill", Look), RecordedError("TimeoutError", "late"), 0.5
        ),
        AnswerJudged(
            4.5,
            "",
            1,
            Asker("source", Look, "found", "(by)"),
            Attempt(2, "\ud800", "cut-off", ("a: b",), Usage(1, 2, 3, 4, None)),
        ),
        LMUsed(5.0, "", 1, Asker("choice", Ask), Usage(1, cost=0.25, models=("m",))),
        LMAnswered(6.0, "", 1, Asker("body", Judge), "decide", "abc", "", type(None)),
        LMAnswered(6.0, "", 1, Asker("body", Judge), "decide", "abc", "", None),
        LMAnswered(6.0, "", 1, Asker("body", Judge), "make", "abc", "Done", Done(text="x")),
        LMAnswered(6.0, "", 1, Asker("body", Judge), "choose_type", "abc", "", Done),
        RunEnded(7.0, "", 1, "cancelled", None, RecordedError("CancelledError", "")),
        RunResumed(8.0, "", 1, "somebody else"),
        RunEnded(9.0, "", 1, "ended", Ask(message="b")),
    ]
    read, _ = decode(graph, lines_of(graph, records))
    judged = records[6]
    assert isinstance(judged, AnswerJudged)
    judged.attempt = dataclasses.replace(judged.attempt, answer="?")
    assert read == records


START = {"run_id": "r", "graph": "Ask", "max_iters": 10}
ASK = {"type": "Ask", "fields": {"message": "hi"}}


@pytest.mark.parametrize(
    ("kind", "data", "code", "said"),
    [
        ("StepStarted", "{", "bae-journal-damaged", "Invalid JSON"),
        ("RunStarted", {}, "bae-journal-damaged", "run_id: Field required"),
        ("Unheard", {}, "bae-journal-version", "Unheard"),
        ("StepStarted", {}, "bae-journal-unreadable", "step 1"),
        ("StepStarted", {"node": {"type": "Gone", "fields": {}}}, "bae-journal-unreadable", "Gone"),
        (
            "ItemEnded",
            {"node": "Look", "field": "shouted", "index": 0, "value": 3},
            "bae-journal-unreadable",
            "Look.shouted",
        ),
        (
            "Recalled",
            {"node": "Judge", "field": "message", "origin": ["", 7, "x"]},
            "bae-journal-unreadable",
            "step 7",
        ),
        (
            "LMUsed",
            {"asker": {"kind": "body", "node": "Ask"}, "usage": {"calls": "1"}},
            "bae-journal-damaged",
            "usage.calls: ",
        ),
    ],
)
def test_an_unreadable_line_is_reported_with_its_place_and_the_reason(
    kind: str, data: Any, code: str, said: str
) -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    first = Line(0, "RunStarted", 1.0, "", 0, json.dumps({**START, "node": ASK}))
    with expect_refusal(code) as raised:
        decode(graph, [first, Line(1, kind, 2.0, "", 1, text)])
    assert "line 1" in raised.value.message
    assert said in raised.value.message
    assert raised.value.fix


async def test_the_answer_to_a_secret_gate_is_not_stored() -> None:
    class Locked(EndNode):
        code: Annotated[SecretStr, Gate("the code?")]

    async def tell(gate: OpenGate) -> str:
        return "sesame"

    locked = Graph(start=Locked)
    journal = MemoryJournal()
    await locked.arun(Locked(), journal=journal, run_id="r")
    with expect_refusal("bae-journal-secret"):
        await locked.answer("r", "code", "sesame", journal=journal)
    result = await locked.resume("r", journal=journal, answer=tell)
    assert result.trace[0].code == SecretStr("sesame")
    stored = await journal.read("r")
    assert not any("sesame" in line.data for line in stored.lines)
    assert stored.answers == {}
