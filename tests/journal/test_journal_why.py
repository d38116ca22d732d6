"""Where a value came from: what `journal.why` finds in the lines of a run, without its classes."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from bae import LM, Dep, DepError, Gate, Graph, Map, Node, OpenGate, Recall
from bae.exceptions import JournalError
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from bae.journal.store import Line, RunInfo, StoredRun
from bae.journal.why import why
from bae.testing import ScriptedLM
from end_node import EndNode

pytestmark = pytest.mark.once


NEEDED: dict[str, dict[str, Any]] = {
    "RunStarted": {"run_id": "run-1", "graph": "Start", "max_iters": 10},
    "RunForked": {"changed": []},
    "AnswerJudged": {"errors": [], "usage": {}},
    "ChoiceMade": {"seconds": 0.5, "usage": {}},
    "FillEnded": {"usage": {}},
    "SourceEnded": {"seconds": 0.25},
}
"""What lines of a kind have, where a test does not say otherwise."""


class Told:
    """Lines of a run as they are written one after the other."""

    def __init__(self, shape: dict[str, Any] | None = None) -> None:
        self.lines: list[Line] = []
        self.shape = "" if shape is None else json.dumps(shape)
        self.answers: dict[str, str] = {}

    def add(self, kind: str, step: int = 0, path: str = "", **data: Any) -> Told:
        n = len(self.lines)
        data = {**NEEDED.get(kind, {}), **data}
        self.lines.append(Line(n, kind, 1_700_000_000.0 + n, path, step, json.dumps(data)))
        return self

    @property
    def stored(self) -> StoredRun:
        info = RunInfo("run-1", "Start", "running", 0.0, 0.0, "hash")
        return StoredRun(info, self.shape, tuple(self.lines), self.answers)


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": name, "fields": fields}


def field(kind: str = "plain", required: bool = True, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "type": "str", "required": required, **more}


def cls(*after: str, written: bool = False, **fields: Any) -> dict[str, Any]:
    return {"fields": fields, "next": list(after), "ends": not after, "written": written}


SHAPE = {
    "format": 2,
    "types": {},
    "graphs": [
        {
            "name": "Start",
            "start": "Start",
            "classes": {
                "Start": cls("Day", message=field(), tone=field(required=False)),
                "Day": cls(
                    "Outfit",
                    "Start",
                    weather=field("dep", call=0),
                    city=field("dep", call=1),
                    words=field(),
                    loud=field("map", call=2, over="words"),
                    summaries=field("map", call=3, over="words"),
                    fine=field("gate", False, question="Fine?"),
                    mood=field(),
                ),
                "Outfit": cls(
                    mood=field("recall"),
                    day=field("recall"),
                    place=field("dep", call=1),
                    spare=field("dep", False, call=4),
                    top=field(),
                ),
            },
        },
        {
            "name": "Summary",
            "start": "Summary",
            "classes": {
                "Summary": cls("Done", word=field(), city=field("dep", call=1)),
                "Done": cls(text=field()),
            },
        },
    ],
    "calls": [
        {"by": "get_weather", "kind": "async", "inputs": {"city": {"call": 1}}},
        {"by": "get_city", "kind": "async", "inputs": {}},
        {"by": "shout", "kind": "async", "inputs": {}},
        {"by": "Summary", "kind": "graph", "inputs": {}, "graph": 1},
        {"by": "get_spare", "kind": "async", "inputs": {}},
    ],
}

USED = {"calls": 1, "input_tokens": 30, "output_tokens": 12, "cost": 0.002, "models": ["m-1"]}


def source(told: Told, step: int, name: str, field: str, by: str, value: Any, **more: Any) -> None:
    kind = more.pop("source", "dep")
    path = more.pop("path", "")
    base = {"node": name, "field": field, "source": kind, "by": by}
    if "parameter" in more:
        base["parameter"] = more.pop("parameter")
    told.add("SourceStarted", step, path, **base)
    said = {"value": value} if value is not None else {}
    told.add("SourceEnded", step, path, **base, seconds=0.25, **said, **more)


def a_day() -> Told:
    """A run with every kind of source, from its start to its end."""
    told = Told(SHAPE)
    told.add("RunStarted", node={**node("Start", message="up", tone="dry"), "unset": ["tone"]})
    told.add("StepStarted", 0)
    source(told, 1, "Day", "weather", "get_city", "Oslo", parameter="(city)")
    source(told, 1, "Day", "weather", "get_weather", {"degrees": 3})
    told.add("FillStarted", 1, target="Day")
    judged = {"asker": {"kind": "fill", "node": "Day"}, "usage": {"models": ["m-1"]}}
    told.add(
        "AnswerJudged", 1, **judged, number=1, verdict="invalid", errors=["mood: no"], prompt="aa"
    )
    told.add("AnswerJudged", 1, **judged, number=2, verdict="valid", errors=[], prompt="bb")
    told.add(
        "FillEnded", 1, node=node("Day", words=["a", "b"], mood="low"), seconds=1.5, usage=USED
    )
    base = {"node": "Day", "field": "loud", "source": "map", "by": "shout"}
    told.add("SourceStarted", 1, **base)
    for index, value in ((1, "B"), (0, "A")):
        told.add("ItemEnded", 1, node="Day", field="loud", index=index, value=value)
    told.add("SourceEnded", 1, **base, seconds=0.5, items=None)
    base = {"node": "Day", "field": "summaries", "source": "map", "by": "Summary"}
    told.add("SourceStarted", 1, **base)
    for index, word in enumerate("ab"):
        path = f"1:Day.summaries[{index}]"
        told.add("RunStarted", 0, path, node=node("Summary", word=word))
        told.add("StepStarted", 0, path)
        told.add("FillStarted", 1, path, target="Done")
        told.add(
            "AnswerJudged",
            1,
            path,
            asker={"kind": "fill", "node": "Done"},
            number=1,
            verdict="valid",
            errors=[],
            usage={"models": ["m-2"]},
            prompt=f"c{index}",
        )
        told.add(
            "FillEnded",
            1,
            path,
            node=node("Done", text=word * 3),
            seconds=0.5,
            usage={**USED, "models": ["m-2"]},
        )
        told.add("StepStarted", 1, path)
        told.add("RunEnded", 1, path, outcome="ended", gates=[])
        done = {"type": "Done", "fields": {"text": word * 3}}
        told.add("ItemEnded", 1, node="Day", field="summaries", index=index, value=done)
    told.add("SourceEnded", 1, **base, seconds=1.0, items=None)
    told.add("GateOpened", 1, gate="1:Day.fine", node="Day", field="fine", question="Fine?")
    source(told, 1, "Day", "fine", "Fine?", True, source="gate")
    told.add("StepStarted", 1)
    told.add("ChoiceStarted", 2, node="Day", offered=["Outfit", "Start"])
    told.add("ChoiceMade", 2, node="Day", chosen="Outfit", seconds=0.5, usage=USED)
    told.add("Recalled", 2, node="Outfit", field="mood", origin=["", 1, "mood"])
    told.add("Recalled", 2, node="Outfit", field="day", origin=["", 1, ""])
    base = {"node": "Outfit", "field": "spare", "source": "dep", "by": "get_spare"}
    told.add("SourceStarted", 2, **base)
    error = {"type": "ValueError", "code": None, "message": "none left"}
    told.add("SourceEnded", 2, **base, seconds=0.1, error=error)
    told.add("FillEnded", 2, node=node("Outfit", top="a jumper"), seconds=1.0, usage={})
    told.add("StepStarted", 2)
    return told.add("RunEnded", 2, outcome="ended", gates=[])


def test_a_field_that_the_lm_filled_has_its_model_prompts_attempts_and_cost():
    found = why(a_day().stored, "Day.mood")

    assert (found.source, found.by, found.value) == ("lm", "m-1", "low")
    assert found.models == ("m-1",)
    assert found.prompts == ("aa", "bb")
    assert [(a.number, a.verdict, a.errors) for a in found.attempts] == [
        (1, "invalid", ("mood: no",)),
        (2, "valid", ()),
    ]
    assert found.seconds == 1.5
    assert found.cost == 0.002
    assert found.usage.tokens == 42


def test_a_choice_and_a_fill_in_one_call_share_their_answers():
    told = Told(SHAPE).add("RunStarted", node=node("Day")).add("StepStarted", 0)
    told.add(
        "AnswerJudged",
        1,
        asker={"kind": "choice", "node": "Day"},
        number=1,
        verdict="valid",
        errors=[],
        usage={"models": ["m-3"]},
        prompt="dd",
    )
    told.add("ChoiceMade", 1, node="Day", chosen="Outfit", seconds=0.0, usage={})
    told.add("FillEnded", 1, node=node("Outfit", top="a hat"), seconds=2.0, usage=USED)

    found = why(told.stored, "Outfit.top")

    assert (found.source, found.prompts, found.seconds) == ("lm", ("dd",), 2.0)
    assert found.models == ("m-1", "m-3")


def test_a_dependency_has_its_function_and_those_of_its_inputs():
    found = why(a_day().stored, "Day.weather")

    assert (found.source, found.by, found.seconds) == ("dep", "get_weather", 0.25)
    assert found.value == {"degrees": 3}
    assert list(found.inputs) == ["city"]
    city = found.inputs["city"]
    assert (city.place, city.by, city.value) == ("1:Day.weather(city)", "get_city", "Oslo")
    assert why(a_day().stored, "Day.weather(city)") == city


def test_a_dependency_that_was_called_for_another_field_is_found_there():
    found = why(a_day().stored, "Outfit.place")

    assert (found.place, found.source, found.by) == ("2:Outfit.place", "dep", "get_city")
    assert found.value == "Oslo"
    assert found.note == "called once for the run, first for 1:Day.weather(city)"
    assert why(a_day().stored, "Day.city").value == "Oslo"
    inside = why(a_day().stored, "1:Day.summaries[0]/Summary.city")
    assert (inside.value, inside.path) == ("Oslo", "1:Day.summaries[0]")


def test_an_item_that_a_graph_made_leads_into_it():
    told = a_day()
    found = why(told.stored, "Day.summaries[1]")

    assert found.inside == "1:Day.summaries[1]"
    assert found.models == ("m-2",)
    assert found.prompts == ("c1",)
    assert found.cost == 0.002
    text = why(told.stored, f"{found.inside}/1:Done.text")
    assert (text.source, text.value, text.models) == ("lm", "bbb", ("m-2",))
    assert why(told.stored, "Day.summaries[1]/Done.text") == text
    word = why(told.stored, "1:Day.summaries[1]/0:Summary.word")
    assert (word.source, word.by, word.value) == ("caller", "1:Day.summaries[1]", "b")


def test_a_map_of_a_graph_sums_up_what_its_items_used():
    found = why(a_day().stored, "Day.summaries")

    assert found.cost == 0.004
    assert found.models == ("m-2",)
    assert found.prompts == ("c0", "c1")
    assert found.attempts == ()


def test_a_node_as_a_whole_says_how_it_came_to_be():
    found = why(a_day().stored, "Outfit")

    assert (found.place, found.field, found.source) == ("2:Outfit", "", "lm")
    assert found.note == "the LM chose it among Outfit, Start"
    assert why(a_day().stored, "Start").source == "caller"


def test_what_a_body_returned_has_the_body_and_what_it_asked():
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="up")).add("StepStarted", 0)
    by, asker = "Start.__call__", {"kind": "body", "node": "Start"}
    told.add(
        "AnswerJudged", 1, asker=asker, number=1, verdict="valid", errors=[], usage={}, prompt="ee"
    )
    told.add("LMUsed", 1, asker=asker, usage=USED)
    told.add("Returned", 1, node=node("Day", words=[], mood="low"))
    told.add("StepStarted", 1)
    told.add("StepStarted", 2, node={**node("Outfit", top="a hat"), "withheld": ["mood"]})

    found = why(told.stored, "Day.mood")

    assert (found.source, found.by, found.value) == ("body", by, "low")
    assert (found.prompts, found.cost, found.models) == (("ee",), 0.002, ("m-1",))
    top = why(told.stored, "Outfit.top")
    assert (top.source, top.by, top.value) == ("body", "Day.__call__", "a hat")
    mood = why(told.stored, "Outfit.mood")
    assert (mood.source, mood.kept, mood.value) == ("body", "withheld", None)


def test_a_fork_of_a_node_that_a_body_returned_whole_still_names_the_body():
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="up")).add("StepStarted", 0)
    told.add("RunForked", 1, parent="run-0", node=node("Day", words=[], mood="x"), changed=["mood"])

    found = why(told.stored, "Day.words")

    assert (found.source, found.by) == ("body", "Start.__call__")
    assert "run-0" in found.note


def test_the_newest_node_of_a_class_is_taken_and_a_step_chooses_another():
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="one")).add("StepStarted", 0)
    told.add("StepStarted", 1, node=node("Start", message="two"))

    assert why(told.stored, "Start.message").value == "two"
    assert why(told.stored, "Start.message", 0).value == "one"
    assert why(told.stored, "0:Start.message").value == "one"
    with pytest.raises(JournalError, match=r"at '7:Start.message'.*mean 1:Start.message") as raised:
        why(told.stored, "Start.message", 7)
    assert raised.value.code == "bae-why-unknown"
    with pytest.raises(JournalError, match="step=1 is another"):
        why(told.stored, "0:Start.message", 1)


def test_a_graph_that_was_begun_anew_counts_from_its_new_beginning():
    told = Told(SHAPE).add("RunStarted", node=node("Day")).add("StepStarted", 0)
    path = "1:Day.summaries[0]"
    told.add("RunStarted", 0, path, node=node("Summary", word="old"))
    told.add("FillEnded", 1, path, node=node("Done", text="old"), seconds=1.0, usage=USED)
    told.add("RunStarted", 0, path, node=node("Summary", word="new"))

    assert why(told.stored, f"{path}/Summary.word").value == "new"
    with pytest.raises(JournalError, match="nothing is recorded at"):
        why(told.stored, f"{path}/Done.text")


def test_lines_that_lead_back_to_themselves_come_to_an_end():
    told = Told(SHAPE).add("RunStarted", node=node("Outfit"))
    told.add("Recalled", 0, node="Outfit", field="mood", origin=["", 0, "mood"])

    assert why(told.stored, "Outfit.mood").kept == "missing"


def test_a_value_that_no_journal_holds_says_so():
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="up")).add("StepStarted", 0)
    source(told, 1, "Day", "weather", "get_weather", None, unstored="live")
    source(told, 1, "Day", "city", "get_city", None, unstored="withheld")

    assert why(told.stored, "Day.weather").kept == "live"
    assert why(told.stored, "Day.city").kept == "withheld"
    assert "no journal holds" in str(why(told.stored, "Day.weather"))


def test_a_value_from_dep_cache_says_so():
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="up")).add("StepStarted", 0)
    told.add(
        "SourceEnded",
        1,
        node="Day",
        field="weather",
        source="dep",
        by="get_weather",
        seconds=0.0,
        value=1,
    )

    assert why(told.stored, "Day.weather").note == "the value was given in dep_cache"


def test_a_gate_that_timed_out_left_its_default():
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="up")).add("StepStarted", 0)
    told.add(
        "GateOpened",
        1,
        gate="1:Day.fine",
        node="Day",
        field="fine",
        question="Fine?",
        deadline=1_700_000_003.0,
    )
    source(told, 1, "Day", "fine", "Fine?", True, source="gate")

    found = why(told.stored, "Day.fine")

    assert (found.source, found.value) == ("default", True)
    assert found.note == "nobody answered 'Fine?' in time"


def test_an_answer_that_the_run_has_not_taken_in_yet_is_told():
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="up")).add("StepStarted", 0)
    told.add("GateOpened", 1, gate="1:Day.fine", node="Day", field="fine", question="Fine?")
    told.add("RunEnded", 1, outcome="waiting", gates=["1:Day.fine"])
    with pytest.raises(JournalError, match="waits for a person, who is asked 'Fine\\?'") as raised:
        why(told.stored, "Day.fine")
    assert raised.value.code == "bae-why-pending"

    told.answers["1:Day.fine"] = "false"

    found = why(told.stored, "Day.fine")
    assert (found.source, found.value) == ("gate", False)
    assert found.note == "the run has not been resumed since"


def begun() -> Told:
    told = Told(SHAPE).add("RunStarted", node=node("Start", message="up")).add("StepStarted", 0)
    base = {"node": "Day", "field": "weather", "source": "dep", "by": "get_weather"}
    told.add("SourceStarted", 1, **base)
    told.add("FillStarted", 1, target="Day")
    told.add(
        "AnswerJudged",
        1,
        asker={"kind": "fill", "node": "Day"},
        number=1,
        verdict="invalid",
        errors=["x"],
        usage={},
        prompt="aa",
    )
    told.add("SourceStarted", 1, node="Day", field="loud", source="map", by="shout")
    return told.add("ItemEnded", 1, node="Day", field="loud", index=4, value="E")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("Day.weather", "get_weather had begun and has not ended"),
        ("Day.mood", "the LM was filling Day, and its answer 1 was invalid"),
        ("Day.loud", "1 of its items are done"),
        ("Day.loud[2]", "1 of its items are done"),
        ("Day", "the LM was filling Day"),
    ],
)
def test_a_value_that_is_not_there_yet_says_how_far_it_is(place: str, said: str):
    with pytest.raises(JournalError, match="has no value in the run run-1") as raised:
        why(begun().stored, place)

    assert said in raised.value.message
    assert raised.value.code == "bae-why-pending"
    assert raised.value.run_id == "run-1"
    assert "graph.resume" in str(raised.value)


def test_an_item_that_is_done_is_told_before_the_map_is():
    assert why(begun().stored, "Day.loud[4]").value == "E"


@pytest.mark.parametrize(
    ("place", "said", "fix"),
    [
        ("Day.moood", "did you mean 1:Day.mood?", "1:Day.weather, 1:Day.city, 1:Day.words"),
        ("Dya.mood", "did you mean 1:Day.mood?", "0:Start.message, 0:Start.tone, 1:Day."),
        ("Done.text", "Done was met in 2 graphs", "1:Day.summaries[1]/Done.text"),
        ("9:Day.loud[0]/Summary.word", "did you mean 1:Day.summaries[1]/0:Summary.word?", ""),
        ("", "nothing is recorded at ''", "write Node.field; there is 0:Start.message"),
    ],
)
def test_a_place_that_is_not_there_is_answered_with_those_that_are(place: str, said: str, fix: str):
    with pytest.raises(JournalError) as raised:
        why(a_day().stored, place)

    assert said in raised.value.message
    assert fix in (raised.value.fix or "")
    assert raised.value.code == "bae-why-unknown"


@pytest.mark.parametrize("kind", ["RunStarted", "SourceEnded", "AnswerJudged", "FillEnded"])
@pytest.mark.parametrize("data", ["{", "[]", '{"node": 3}', "{}", "3", "null"])
def test_a_damaged_line_is_named(kind: str, data: str):
    told = a_day()
    line = next(line for line in told.lines if line.kind == kind)
    told.lines[line.n] = line._replace(data=data)

    with pytest.raises(JournalError, match=f"line {line.n}, a {kind}, ") as raised:
        why(told.stored, "Day.mood")

    assert raised.value.code == "bae-journal-damaged"


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be somewhere that is not UTC."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_what_is_found_reads_well_on_a_terminal_with_times_of_whoever_reads_it():
    assert str(why(a_day().stored, "Outfit.mood")).splitlines() == [
        '2:Outfit.mood = "low"',
        "  recalled from 1:Day.mood, 2023-11-15 07:13:58+09:00",
        "    filled by m-1, in 1.5 s, 2 answers, 42 tokens, $0.002, prompt bb, "
        "2023-11-15 07:13:29+09:00",
        "      answer 1 was invalid: mood: no",
        "      answer 2 was valid",
    ]
    assert str(why(a_day().stored, "Day.weather")).splitlines() == [
        '1:Day.weather = {"degrees": 3}',
        "  from get_weather(), in 250 ms, 2023-11-15 07:13:25+09:00",
        '    city = "Oslo"',
        "      from get_city(), in 250 ms, 2023-11-15 07:13:23+09:00",
    ]


# Real runs.


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


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "runs.db")
    async with made as journal:
        yield journal


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
        found = await journal.why("r", place)
        assert found.kept == "value" or found.source == "default"
        return found.source, found.by, found.value

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


async def test_every_field_of_every_node_of_a_real_run_is_told_as_json(journal: Journal):
    async def yes(_: OpenGate) -> bool:
        return True

    result = await graph.arun(Morning(message="up"), lm(), journal=journal, run_id="r", answer=yes)
    nested = result.journal.nested()
    for path, trace in {"": result.trace, **nested}.items():
        for step, node in enumerate(trace):
            for name in type(node).model_fields:
                place = f"{path}/" * bool(path) + f"{step}:{type(node).__name__}.{name}"
                found = await journal.why("r", place)
                assert found.place == place
                assert str(found).startswith(place)
                assert json.loads(json.dumps(dataclasses.asdict(found)))["place"] == place


async def test_a_forked_run_says_what_is_its_own(journal: Journal):
    async def yes(_: OpenGate) -> bool:
        return True

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


async def test_a_run_that_failed_says_why_a_field_is_not_there(journal: Journal):
    class Lost(EndNode):
        place: Annotated[str, Dep(nowhere)]

    with pytest.raises(DepError):
        await Graph(start=Lost).arun(Lost(), journal=journal, run_id="r")

    found = await journal.why("r", "Lost.place")

    assert (found.source, found.by, found.kept) == ("dep", "nowhere", "missing")
    assert found.error == "LookupError: nowhere to be found"
    assert "failed: LookupError" in str(found)
