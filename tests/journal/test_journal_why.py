"""Where a value came from: what `journal.why` finds in the lines of a run, without its classes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, SecretStr

from bae import LM, Dep, DepError, Gate, Graph, Map, Node, OpenGate, Recall
from bae.exceptions import FillError, JournalError
from bae.journal import Journal, Line, Provenance
from bae.journal.shape import hash_of
from bae.journal.stored_runs import StoredRun
from bae.lm import Answer, Usage
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import Client, make_client
from journal_parts import with_line
from toy_backend import ToyBackend

pytestmark = pytest.mark.once


class Mood(StrEnum):
    LOW = "low"
    HIGH = "high"


class Weather(BaseModel):
    degrees: float


async def get_city() -> str:
    return "Oslo"


async def get_weather(city: Annotated[str, Dep(get_city)]) -> Weather:
    return Weather(degrees=len(city))


async def ask_mood(lm: LM) -> Mood:
    return (await lm.make(Morning(message="asked"), Guess)).mood


async def shout(word: str) -> str:
    return word.upper()


async def nowhere() -> str:
    raise LookupError("nowhere to be found")


class Guess(EndNode):
    mood: Mood


class Short(Node):
    word: str
    city: Annotated[str, Dep(get_city)]

    async def __call__(self) -> Shortened: ...


class Shortened(EndNode):
    text: str


class Morning(Node):
    message: str
    tone: str = "dry"

    async def __call__(self) -> Noon:
        return Noon(note=self.message.upper())


class Noon(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    guess: Annotated[Mood, Dep(ask_mood)]
    note: str

    async def __call__(self) -> Evening | Morning: ...


class Evening(EndNode):
    noon: Annotated[Noon, Recall()]
    note: Annotated[str, Recall(Noon)]
    city: Annotated[str, Dep(get_city)]
    lost: Annotated[str, Dep(nowhere)] = "home"
    words: list[str]
    loud: Annotated[list[str], Map(shout, over="words")]
    shorts: Annotated[list[Shortened], Map(Short, over="words")]
    fine: Annotated[bool, Gate("Fine?")]


graph = Graph(start=Morning, end=Evening)


def lm() -> ScriptedLM:
    return ScriptedLM(
        {
            Guess: lambda _: {"mood": "high"},
            Evening: lambda asked: {"words": ["a", "b"] if asked.errors else 3},
            Shortened: lambda asked: {"text": asked.source.word * 2},
        },
        choices=[Evening],
    )


async def yes(_: OpenGate) -> bool:
    return True


async def record_run(journal: Journal) -> None:
    await graph.arun(Morning(message="up"), lm(), journal=journal, run_id="r", answer=yes)


async def test_every_field_of_a_real_run_has_a_provenance(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    result = await graph.arun(Morning(message="up"), lm(), journal=journal, run_id="r")
    assert result.waiting
    with pytest.raises(JournalError, match="waits for a person"):
        await journal.why("r", "Evening.fine")
    done = await graph.answer("r", "Evening.fine", True, lm=lm(), journal=journal)
    assert done.result.fine

    async def told(place: str) -> tuple[str, str, Any]:
        provenance = await journal.why("r", place)
        assert provenance.kept == "value" or provenance.source == "default"
        return provenance.source, provenance.by, provenance.value

    assert await told("Morning.message") == ("caller", "", "up")
    assert await told("Morning.tone") == ("default", "", "dry")
    assert await told("Noon.note") == ("body", "Morning.__call__", "UP")
    assert await told("Noon.weather") == ("dep", "get_weather", {"degrees": 4.0})
    assert await told("Noon.weather(city)") == ("dep", "get_city", "Oslo")
    assert await told("Noon.guess") == ("dep", "ask_mood", "high")
    assert await told("Evening.note") == ("recall", "1:Noon.note", "UP")
    assert await told("Evening.city") == ("dep", "get_city", "Oslo")
    assert await told("Evening.lost") == ("default", "nowhere", None)
    assert await told("Evening.words") == ("lm", "", ["a", "b"])
    assert await told("Evening.loud") == ("map", "shout", ["A", "B"])
    assert await told("Evening.loud[1]") == ("map", "shout", "B")
    assert await told("Evening.fine") == ("gate", "Fine?", True)
    assert await told("2:Evening.shorts[1]/1:Shortened.text") == ("lm", "", "bb")
    assert await told("Evening.shorts[0]/Short.city") == ("dep", "get_city", "Oslo")
    assert await told("Evening.shorts[0]/Short.word") == ("caller", "2:Evening.shorts[0]", "a")

    words = await journal.why("r", "Evening.words")
    assert [attempt.verdict for attempt in words.attempts] == ["invalid", "valid"]
    assert words.usage.attempts == 2
    assert (await journal.why("r", "Noon.guess")).usage.calls == 1
    assert (await journal.why("r", "Evening.lost")).error == "LookupError: nowhere to be found"
    node = await journal.why("r", "Evening.noon")
    assert node.origin is not None
    assert (node.origin.place, node.origin.source) == ("1:Noon", "body")
    shorts = await journal.why("r", "Evening.shorts")
    assert shorts.usage.calls == 2
    assert shorts.inputs["words"] == words
    assert "its default is used" in caplog.text


async def test_every_field_of_every_node_of_a_real_run_is_explained_as_json(journal: Journal):
    result = await graph.arun(Morning(message="up"), lm(), journal=journal, run_id="r", answer=yes)
    nested = result.journal.nested()
    for path, trace in {"": result.trace, **nested}.items():
        for step, node in enumerate(trace):
            for name in type(node).model_fields:
                place = f"{path}/" * bool(path) + f"{step}:{type(node).__name__}.{name}"
                provenance = await journal.why("r", place)
                assert provenance.place == place
                assert str(provenance).startswith(place)
                assert json.loads(json.dumps(dataclasses.asdict(provenance)))["place"] == place


async def test_why_separates_the_work_of_a_fork_from_its_parent(journal: Journal):
    await graph.arun(Morning(message="up"), lm(), journal=journal, run_id="r", answer=yes)
    other = await graph.fork("r", journal=journal, at=1, note="other")
    await graph.resume(other, lm(), journal=journal, answer=yes)

    note = await journal.why(other, "Noon.note")
    assert (note.source, note.by, note.value) == ("fork", "r", "other")
    assert (await journal.why(other, "Evening.note")).origin == note
    weather = await journal.why(other, "Noon.weather")
    assert (weather.source, weather.by, weather.value) == ("dep", "get_weather", {"degrees": 4.0})
    assert (await journal.why(other, "Morning.message")).source == "caller"
    assert (await journal.why("r", "Noon.note")).source == "body"


async def test_why_explains_a_missing_value_of_a_failed_run(journal: Journal):
    class Lost(EndNode):
        place: Annotated[str, Dep(nowhere)]

    with pytest.raises(DepError):
        await Graph(start=Lost).arun(Lost(), journal=journal, run_id="r")

    provenance = await journal.why("r", "Lost.place")

    assert (provenance.source, provenance.by, provenance.kept) == ("dep", "nowhere", "missing")
    assert provenance.error == "LookupError: nowhere to be found"
    assert "failed: LookupError" in str(provenance)


# What is known of the LM calls behind a value.


def costing(answer: Any) -> Answer:
    usage = Usage(calls=1, input_tokens=30, output_tokens=12, cost=0.002, models=("m-1",))
    return Answer(json.dumps(answer), usage)


class Begin(Node):
    message: str

    async def __call__(self) -> Look: ...


class Look(Node):
    city: Annotated[str, Dep(get_city)]
    mood: Mood
    shorts: Annotated[list[Shortened], Map(Short, over="words")]
    words: list[str]

    async def __call__(self) -> End | Begin: ...


class End(EndNode):
    mood: Annotated[Mood, Recall()]
    top: str


looks = Graph(start=Begin, end=End)


async def record_look_ups(journal: Journal) -> None:
    tries = iter([{"mood": "?", "words": ["a", "b"]}, {"mood": "low"}])

    def answer(prompt: Any) -> Answer:
        if prompt.question.types:
            return costing({"answer": {"choice": "End", "fields": {"top": "a hat"}}})
        wanted = prompt.question.target
        return costing(next(tries) if wanted is Look else {"text": prompt.question.source.word * 3})

    await looks.arun(Begin(message="up"), ToyBackend(answer), journal=journal, run_id="r")


async def test_why_shows_model_prompts_attempts_and_cost_of_a_filled_field(journal: Journal):
    await record_look_ups(journal)
    provenance = await journal.why("r", "Look.mood")
    assert (provenance.source, provenance.by, provenance.value) == ("lm", "m-1", "low")
    assert [attempt.verdict for attempt in provenance.attempts] == ["invalid", "valid"]
    assert provenance.prompts == tuple(attempt.prompt for attempt in provenance.attempts)
    assert (provenance.models, provenance.cost, provenance.usage.tokens) == (("m-1",), 0.004, 84)
    # A choice and a fill in one call share their answer.
    top = await journal.why("r", "End.top")
    assert (top.source, top.models, len(top.prompts)) == ("lm", ("m-1",), 1)
    assert (await journal.why("r", "End")).note == "the LM chose it among End, Begin"


async def test_why_sums_up_the_usage_of_the_items_of_a_map(
    journal: Journal,
):
    await record_look_ups(journal)
    whole, item = await journal.why("r", "Look.shorts"), await journal.why("r", "Look.shorts[1]")
    assert (whole.cost, len(whole.prompts), whole.attempts) == (0.004, 2, ())
    assert (item.inside, item.cost, len(item.prompts)) == ("1:Look.shorts[1]", 0.002, 1)
    text = await journal.why("r", f"{item.inside}/1:Shortened.text")
    assert (text.source, text.value, text.models) == ("lm", "bbb", ("m-1",))
    assert await journal.why("r", "Look.shorts[1]/Shortened.text") == text


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be somewhere that is not UTC."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
async def test_why_prints_a_readable_explanation_in_the_local_time_zone(
    journal: Journal,
):
    def printed(found: Provenance) -> list[str]:
        text = re.sub(r"in (less than )?[\d.]+ (m?s)", "in 1 s", str(found))
        text = re.sub(r"prompt [0-9a-f]{16}", "prompt aa", text)
        return re.sub(r"20\d\d-[-\d]+ [\d:]+\+09:00", "NOW", text).splitlines()

    await record_look_ups(journal)
    assert printed(await journal.why("r", "End.mood")) == [
        '2:End.mood = "low"',
        "  recalled from 1:Look.mood, NOW",
        "    filled by m-1, in 1 s, 2 answers, 84 tokens, $0.004, prompt aa, NOW",
        "      answer 1 was invalid: mood: Input should be 'low' or 'high'",
        "      answer 2 was valid",
    ]
    await graph.arun(Morning(message="up"), lm(), journal=journal, run_id="day", answer=yes)
    assert printed(await journal.why("day", "Noon.weather")) == [
        '1:Noon.weather = {"degrees": 4.0}',
        "  from get_weather(), in 1 s, NOW",
        '    city = "Oslo"',
        "      from get_city(), in 1 s, NOW",
    ]


# What is not there, or not any more.


def get_token() -> SecretStr:
    return SecretStr("hush")


class Held(EndNode):
    model_config = {"arbitrary_types_allowed": True}

    given: int
    client: Annotated[Client, Dep(make_client)]
    token: Annotated[SecretStr, Dep(get_token)]
    city: Annotated[str, Dep(get_city)]
    late: Annotated[bool, Gate("Late?", timeout=1e-6)] = True


async def test_why_explains_given_and_live_values(journal: Journal):
    held = Graph(start=Held)
    result = await held.arun(
        Held(given=1), journal=journal, run_id="r", dep_cache={get_city: "Rome"}
    )
    if result.waiting:
        await held.resume("r", journal=journal)
    client = await journal.why("r", "Held.client")
    assert (client.kept, "no journal stores" in str(client)) == ("live", True)
    assert (await journal.why("r", "Held.token")).kept == "withheld"
    city = await journal.why("r", "Held.city")
    assert (city.value, city.note) == ("Rome", "the value was given in dep_cache")
    late = await journal.why("r", "Held.late")
    assert (late.source, late.note) == ("default", "nobody answered 'Late?' in time")


async def test_why_reports_an_answer_that_the_run_has_not_read(journal: Journal):
    await graph.arun(Morning(message="up"), lm(), journal=journal, run_id="r")
    await graph.answer("r", "Evening.fine", False, journal=journal, go_on=False)
    provenance = await journal.why("r", "Evening.fine")
    assert (provenance.source, provenance.value) == ("gate", False)
    assert provenance.note == "the run has not been resumed since"


class Turn(Node):
    number: int

    async def __call__(self) -> Turn | None:
        return Turn(number=self.number + 1) if self.number < 2 else None


async def test_why_looks_at_the_newest_node_of_a_class_by_default(journal: Journal):
    await Graph(start=Turn).arun(Turn(number=1), journal=journal, run_id="r")
    assert (await journal.why("r", "Turn.number")).value == 2
    assert (await journal.why("r", "Turn.number", step=0)).value == 1
    assert (await journal.why("r", "0:Turn.number")).value == 1
    with pytest.raises(JournalError, match=r"at '7:Turn.number'.*mean 1:Turn.number") as raised:
        await journal.why("r", "Turn.number", step=7)
    assert raised.value.code == "bae-why-unknown"
    with pytest.raises(JournalError, match="step=1 was passed"):
        await journal.why("r", "0:Turn.number", step=1)


async def test_why_explains_a_missing_value_by_its_progress(journal: Journal):
    reached = asyncio.Event()

    async def wait(word: str) -> str:
        if word == "a":
            return "A"
        reached.set()
        await asyncio.Event().wait()
        return ""

    class Slow(EndNode):
        words: list[str]
        loud: Annotated[list[str], Map(wait, over="words", limit=1)]

    slow = Graph(start=Slow)
    task = asyncio.create_task(slow.arun(Slow(words=["a", "b"]), journal=journal, run_id="r"))
    await reached.wait()
    with pytest.raises(JournalError, match="has no value in the run r: 1 of its items") as raised:
        await journal.why("r", "Slow.loud")
    assert (raised.value.code, raised.value.run_id) == ("bae-why-pending", "r")
    assert "graph.resume" in str(raised.value)
    with pytest.raises(JournalError, match="1 of its items are done"):
        await journal.why("r", "Slow.loud[1]")
    assert (await journal.why("r", "Slow.loud[0]")).value == "A"
    task.cancel()
    await asyncio.wait([task])

    with pytest.raises(FillError):
        wrong = ToyBackend(lambda _: {"mood": "?"})
        await looks.arun(Begin(message="up"), wrong, journal=journal, run_id="filling")
    with pytest.raises(JournalError, match=r"the LM was filling Look, and its answer \d was inv"):
        await journal.why("filling", "Look.mood")


@pytest.mark.parametrize(
    ("place", "said", "fix"),
    [
        ("Noon.nte", "did you mean 1:Noon.note?", "1:Noon.weather, 1:Noon.guess, 1:Noon.note"),
        ("Shortened.text", "Shortened is a node of 2 graphs", "2:Evening.shorts[1]/Shortened.text"),
        ("9:Evening.shorts[0]/Short.word", "did you mean 2:Evening.shorts", "0:Morning.message"),
        ("", "nothing is recorded at ''", "write Node.field; there is 0:Morning.message"),
    ],
)
async def test_why_refuses_an_unknown_place_with_the_known_places(
    journal: Journal, place: str, said: str, fix: str
):
    await record_run(journal)
    with pytest.raises(JournalError) as raised:
        await journal.why("r", place)
    assert said in raised.value.message
    assert fix in (raised.value.fix or "")
    assert raised.value.code == "bae-why-unknown"


async def test_why_names_a_damaged_line(journal: Journal):
    await record_run(journal)
    line = next(line for line in (await journal.read("r")).lines if line.kind == "SourceEnded")
    await with_line(journal, "r", line._replace(data="{}"))
    with pytest.raises(JournalError, match=f"line {line.n}, a SourceEnded, ") as raised:
        await journal.why("r", "Noon.note")
    assert raised.value.code == "bae-journal-damaged"


def get_below() -> int:
    return 1


def get_above(x: Annotated[int, Dep(get_below)]) -> int:
    return x + 1


class Above(EndNode):
    value: Annotated[int, Dep(get_above)]


async def test_why_stops_following_a_chain_without_end(journal: Journal):
    await Graph(start=Above).arun(Above(), journal=journal, run_id="r")
    run, length = await journal.read("r"), 1000
    shape = json.loads(run.shape)
    above = next(call for call in shape["calls"] if call["inputs"])
    shape["calls"] = [{**above, "inputs": {"x": {"call": n + 1}}} for n in range(length)]
    shape["calls"].append({**above, "inputs": {}})
    lines: list[Line] = []
    for line in run.lines:
        depths = range(length, 0, -1) if "(x)" in line.data else [1]
        for data in (line.data.replace("(x)", "(x)" * depth) for depth in depths):
            lines.append(line._replace(n=len(lines), data=data))
    info = dataclasses.replace(run.info, run_id="long", shape=hash_of(shape))
    await journal.put(StoredRun(info, json.dumps(shape), tuple(lines), {}))

    provenance = await journal.why("long", "Above.value")
    assert str(provenance)
    depth = 0
    while provenance.inputs:
        provenance, depth = provenance.inputs["x"], depth + 1
    assert 100 <= depth < length
