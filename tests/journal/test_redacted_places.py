"""Every place of a run where a value can be stored has a text of its own here. After the field that
holds it was redacted, the text is in no line, no file of the database and no export: neither of the
run nor of its forks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from bae import (
    LM,
    BaeError,
    Dep,
    FillError,
    Gate,
    Graph,
    Map,
    Node,
    Recall,
    ReplayError,
    ToolCall,
    ToolError,
    Tools,
)
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from bae.journal.lines import DATA
from bae.lm import Answer
from bae.lm.backend import CallPart, ResultPart
from end_node import EndNode
from toy_backend import ToyBackend

pytestmark = pytest.mark.once


class Part(BaseModel):
    name: str


def find_city() -> str:
    return "text-of-city"


def find_part(city: Annotated[str, Dep(find_city)]) -> Part:
    return Part(name="text-of-part")


def find_mood() -> str:
    return "text-of-mood"


def find_tint() -> str:
    return "text-of-tint"


def shout(word: str) -> str:
    return word.upper()


class Hint(EndNode):
    """A class outside the graph, which a function and a body ask for."""

    mood: Annotated[str, Dep(find_mood)]
    tint: Annotated[str, Dep(find_tint)]
    words: str


async def ask_hint(lm: LM) -> int:
    return len((await lm.fill(Hint, {}, "Give a hint.")).words)


class Summary(EndNode):
    page: Annotated[str, Recall()]
    summary: str


class Page(Node):
    page: str

    async def __call__(self) -> Summary: ...


inner = Graph(start=Page, end=Summary)


class Ask(Node):
    model_config = ConfigDict(extra="allow")
    question: str
    city: Annotated[str, Dep(find_city)]
    part: Annotated[Part, Dep(find_part)]
    hint: Annotated[int, Dep(ask_hint)]
    made: str = Field(default_factory=lambda: "text-of-factory")

    async def __call__(self) -> Plan | Stop: ...


class Stop(EndNode):
    why: str


class Plan(Node):
    question: Annotated[str, Recall(Ask)]
    steps: list[str]
    weights: dict[str, int]
    loud: Annotated[list[str], Map(shout, over="steps")]
    summary: Annotated[Summary, Dep(inner, page="note")]
    recalled: Annotated[Summary, Dep(inner, page=Recall(Ask))]
    summaries: Annotated[list[Summary], Map(inner, over="steps")]
    note: str
    approved: Annotated[str, Gate("Approved?")]

    async def __call__(self, lm: LM) -> Draft:
        hint = await lm.make(self, Hint)
        filled = await lm.fill(Hint, {}, "Another hint.", source=self)
        return Draft(text=f"{len(hint.words)} {len(filled.words)}")


class Draft(Node):
    text: str
    city: Annotated[str, Dep(find_city)]
    tint: Annotated[str, Dep(find_tint)]

    async def __call__(self, lm: LM) -> Sent | Stop | None:
        return await lm.decide(self)


async def look_up(word: str) -> str:
    """Look up a word."""
    if word == "text-of-mistake":
        raise ToolError("text-of-tool-error")
    return "text-of-result"


def refuse_first(sent: Sent) -> None:
    if sent.body == "text-of-first-body":
        raise ToolError("text-of-accept")


class Sent(EndNode):
    calls: Annotated[list[ToolCall], Tools(look_up, accept=refuse_first)]
    body: str


graph = Graph(start=Ask)

ANSWERS = {
    "body": "text-of-body",
    "note": "text-of-note",
    "steps": ["text-of-step"],
    "summary": "text-of-summary",
    "weights": {"text-of-weight": 1},
    "words": "text-of-words",
}


def answer(prompt: Any) -> Any:
    """The fields that are asked for; the first time, a number that is none, by a telling key."""
    schema = prompt.schema
    if prompt.tools and len(prompt.conversation) == 1:
        words = ("text-of-argument", "text-of-mistake")
        calls = (CallPart("", "look_up", {"word": word}) for word in words)
        ran = (
            CallPart("", "search", {"word": "text-of-own"}),
            ResultPart("", "search", "text-of-found"),
        )
        return Answer("text-of-comment", calls=(*calls,), echo="text-of-echo", ran=(ran,))
    if prompt.tools and "text-of-accept" not in str(prompt):
        return {"body": "text-of-first-body"}
    if schema["title"] == "Choice":
        chosen = {"Ask": "Plan", "Draft": "Sent"}[type(prompt.question.source).__name__]
        if "answer" not in schema["properties"]:
            return {"choice": chosen}
        return {"answer": {"choice": chosen}}
    found = {name: ANSWERS[name] for name in schema["properties"]}
    if "weights" in found and not prompt.corrections:
        found["weights"] = {"text-of-weight": "none"}
    return found


async def approve(gate: Any) -> str:
    return "text-of-gate"


def find_files_with(folder: Path, text: str) -> list[str]:
    return [p.name for p in folder.iterdir() if text.encode() in p.read_bytes()]


PLACES = {
    "text-of-question": "Ask.question",
    "text-of-extra": "Ask.more",
    "text-of-factory": "Ask.made",
    "text-of-city": "Ask.city",
    "text-of-part": "Ask.part",
    "text-of-words": "Hint.words",
    "text-of-mood": "Hint.mood",
    "text-of-tint": "Draft.tint",
    "text-of-weight": "Plan.weights",
    "text-of-step": "Plan.steps",
    "TEXT-OF-STEP": "Plan.loud",
    "text-of-note": "Plan.note",
    "text-of-summary": "Summary.summary",
    "text-of-gate": "Plan.approved",
    "text-of-body": "Sent.body",
    "text-of-argument": "Sent.calls",
    "text-of-mistake": "Sent.calls",
    "text-of-result": "Sent.calls",
    "text-of-tool-error": "Sent.calls",
    "text-of-own": "Sent.calls",
    "text-of-found": "Sent.calls",
}
SAID = ["text-of-comment", "text-of-echo", "text-of-first-body", "text-of-accept"]
"""What was said in a conversation, and is in no field."""


class CallingBackend(ToyBackend):
    calls_tools = True


async def record(journal: Journal) -> None:
    more: Any = {"more": "text-of-extra"}
    start = Ask(question="text-of-question", **more)
    lm = CallingBackend(answer)
    await graph.arun(start, lm, journal=journal, run_id="run", answer=approve)
    for step in range(4):
        await graph.fork("run", at=step, journal=journal, new_id=f"fork-{step}")
    await graph.fork("fork-1", at=1, journal=journal, new_id="fork of a fork")


@pytest.mark.parametrize(("text", "place"), PLACES.items(), ids=PLACES)
async def test_no_byte_of_a_redacted_value_stays_in_the_journal_or_an_export(
    text: str, place: str, tmp_path: Path
):
    files, exports = tmp_path / "files", tmp_path / "exports"
    files.mkdir(), exports.mkdir()
    async with SQLiteJournal(files / "runs.db", durability="normal") as journal:
        await record(journal)
        assert find_files_with(files, text)
        done = await journal.redact("fork of a fork", place)
        assert done.values > 0
        assert len(done.runs) == 6
        assert find_files_with(files, text) == []
        await journal.export(exports / "runs.jsonl", list(done.runs))
    assert find_files_with(files, text) == []
    assert find_files_with(exports, text) == []


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("Page.page", "text-of-note"),  # which another class binds to it
        ("Page.page", "text-of-step"),  # and maps over
        ("Page.page", "text-of-question"),  # and recalls for it
        ("Ask.question", "text-of-question"),
        ("Plan.question", "text-of-question"),
        ("Summary.page", "text-of-note"),
    ],
)
async def test_the_start_of_a_subgraph_is_redacted_inside_and_outside(
    named: str, text: str, tmp_path: Path
):
    async with SQLiteJournal(tmp_path / "runs.db", durability="normal") as journal:
        await record(journal)
        await journal.redact("run", named)
        assert find_files_with(tmp_path, text) == []


@pytest.mark.parametrize("place", ["Ask.question", "Draft.text"])
async def test_llm_answers_to_bodies_and_functions_are_redacted_with_any_field(
    place: str, tmp_path: Path
):
    async with SQLiteJournal(tmp_path / "runs.db", durability="normal") as journal:
        await record(journal)
        assert find_files_with(tmp_path, "text-of-words")
        await journal.redact("run", place)
        assert find_files_with(tmp_path, "text-of-words") == []
        lines = (await journal.read("run")).lines
        (made, *_) = [json.loads(line.data) for line in lines if line.kind == "LMAnswered"]
        withheld = ["mood", "tint", "words"]
        assert made["value"] == {"type": "Hint", "fields": {}, "withheld": withheld}


@pytest.mark.parametrize("text", SAID)
@pytest.mark.parametrize("place", ["Ask.question", "Sent.calls"])
async def test_text_between_tool_calls_is_redacted_with_any_field(
    text: str, place: str, tmp_path: Path
):
    async with SQLiteJournal(tmp_path / "runs.db", durability="normal") as journal:
        await record(journal)
        assert find_files_with(tmp_path, text)
        await journal.redact("run", place)
        assert find_files_with(tmp_path, text) == []
        lines = (await journal.read("run")).lines
        ended = [json.loads(line.data) for line in lines if line.kind == "ToolEnded"]
        assert [(call["id"], call["name"]) for call in ended] == [
            ("c2", "look_up"),
            ("c3", "look_up"),
        ]


async def test_a_replay_reports_a_redacted_answer():
    async with MemoryJournal() as journal:
        await record(journal)
        await journal.redact("run", "Draft.text")
        given = {"Draft.text": "13 13"}
        with pytest.raises(ReplayError, match="it was redacted") as caught:
            await graph.replay("run", journal=journal, given=given)
    assert caught.value.code == "bae-replay-live"


async def test_the_run_of_the_redaction_tests_has_every_kind_of_line_with_values():
    async with MemoryJournal() as journal:
        await record(journal)
        kinds = {line.kind for line in (await journal.read("fork of a fork")).lines}
        kinds |= {line.kind for line in (await journal.read("run")).lines}
    # These have a message of an error at most, and names and numbers.
    others = {"AnswerRestarted", "ClassMet", "LMFailed", "RunResumed", "TurnStarted", "TurnsShown"}
    assert set(DATA) - kinds == others


async def test_a_resumed_body_requests_redacted_answers_again(
    tmp_path: Path,
):
    failing = [True]

    class Asks(Node):
        word: str

        async def __call__(self, lm: LM) -> Stop:
            hint = await lm.make(self, Hint)
            if failing.pop():
                raise RuntimeError(hint.words)
            return Stop(why=hint.words)

    asks, lm = Graph(start=Asks), ToyBackend(answer)
    async with SQLiteJournal(tmp_path / "runs.db", durability="normal") as journal:
        with pytest.raises(BaeError):
            await asks.arun(Asks(word="w-1"), lm, journal=journal, run_id="run")
        await journal.redact("run", "Asks.word")
        assert find_files_with(tmp_path, "text-of-words") == []
        failing.append(False)
        given = {"Asks.word": "w-1"}
        result = await asks.resume("run", lm, journal=journal, given=given)
        assert result.trace[-1] == Stop(why="text-of-words")
        assert lm.calls == 2


async def test_refusals_and_validation_errors_quote_no_redacted_value(tmp_path: Path):
    class Strict(EndNode):
        sizes: dict[str, int]

        @field_validator("sizes")
        @classmethod
        def check(cls, sizes: dict[str, int]) -> dict[str, int]:
            raise ValueError(f"text-of-message {sizes}")

    class Begin(Node):
        word: str

        async def __call__(self) -> Strict: ...

    for number, said in enumerate(
        ({"sizes": {"text-of-key": "x"}}, {"sizes": {"text-of-key": 1}}, "text-of-refusal: no")
    ):
        async with SQLiteJournal(tmp_path / "runs.db", durability="normal") as journal:
            with pytest.raises(FillError):
                await Graph(start=Begin).arun(
                    Begin(word="w"), ToyBackend(*[said] * 3), journal=journal, run_id=str(number)
                )
            assert find_files_with(tmp_path, "text-of-")
            await journal.redact(str(number), "Begin.word")
            assert find_files_with(tmp_path, "text-of-") == []


async def test_forks_of_a_missing_run_are_redacted_together(tmp_path: Path):
    files = tmp_path / "files"
    files.mkdir()
    async with SQLiteJournal(tmp_path / "all.db", durability="normal") as journal:
        await record(journal)
        await journal.export(tmp_path / "forks.jsonl", ["fork-1", "fork-2"])
    async with SQLiteJournal(files / "runs.db", durability="normal") as other:
        assert len(await other.load(tmp_path / "forks.jsonl")) == 2
        done = await other.redact("fork-1", "Ask.question")
        assert set(done.runs) == {"fork-1", "fork-2"}
        assert find_files_with(files, "text-of-question") == []
