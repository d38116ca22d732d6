"""Records into lines and back: what is read through the classes of a graph is what the run wrote,
node by node and value by value; and what cannot be read says which line, what, and why."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    field_validator,
)

from bae import LM, Dep, Gate, Graph, JournalError, Map, Node, OpenGate, Recall
from bae.exceptions import DepError
from bae.journal import MemoryJournal
from bae.journal.codec import same
from bae.journal.decoder import decode, graph_at
from bae.journal.keepable import notes, unkeepable
from bae.journal.lines import Encoder
from bae.journal.node_codec import node_codec
from bae.journal.store import Line
from bae.lm import report
from bae.records import (
    LIVE,
    WITHHELD,
    AnswerJudged,
    AnswerRestarted,
    Asker,
    ChoiceMade,
    FillEnded,
    FillStarted,
    ItemEnded,
    LMAnswered,
    LMUsed,
    Origin,
    Recalled,
    Record,
    RecordedError,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    StepStarted,
    TextArrived,
)
from bae.result import GraphResult
from bae.testing import ScriptedLM
from bae.usage import Attempt, Usage

T = TypeVar("T")


class Place(BaseModel):
    name: str


class Weather(BaseModel):
    place: Place
    degrees: float
    since: dt.datetime = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Client:
    """Something that is opened, and that no journal can hold."""


async def get_place() -> Place:
    return Place(name="Ulm")


async def get_weather(place: Annotated[Place, Dep(get_place)]) -> Weather:
    return Weather(place=place, degrees=3)


async def get_client() -> AsyncIterator[Client]:
    yield Client()


async def get_counts(client: Annotated[Client, Dep(get_client)]) -> dict[int, set[str]]:
    return {1: {"a", "b"}, 2: set()}


def shout(word: str, weather: Annotated[Weather, Dep(get_weather)]) -> tuple[str, float]:
    return word.upper(), weather.degrees


async def fails() -> str:
    raise ValueError("no luck\nand more")


class Word(Node):
    word: str

    async def __call__(self) -> Meaning: ...


class Meaning(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    word: Annotated[str, Recall()]
    text: str

    async def __call__(self) -> None: ...


class Ask(Node):
    message: str

    async def __call__(self) -> Look: ...


class Look(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    counts: Annotated[dict[int, set[str]], Dep(get_counts)]
    luck: Annotated[str, Dep(fails)] = "some"
    words: list[str]
    shouted: Annotated[list[tuple[str, float]], Map(shout, over="words")]
    meanings: Annotated[list[Meaning], Map(Word, over="words")]

    async def __call__(self) -> Judge | Tell: ...


class Judge(Node):
    message: Annotated[str, Recall(Ask)]
    look: Annotated[Look, Recall()]
    allowed: Annotated[bool, Gate("go on?")]
    why: str = "because"

    async def __call__(self) -> Tell:
        return Tell(tone="kind")  # a draft: the run finds the rest


class Tell(Node):
    tone: str
    again: Annotated[Weather, Dep(get_weather)]
    said: Annotated[str, Recall(Judge)] = "nothing"

    async def __call__(self, lm: LM) -> Done | None:
        assert await lm.choose_type((Done, Look), {}) is Done
        report(Usage(calls=1))
        return await lm.make(self, Done)


class Done(Node):
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Ask)


def script() -> ScriptedLM:
    return ScriptedLM(
        {
            Look: [{"words": "none at all"}, {"words": ["a", "b", "c"]}],
            Meaning: lambda asked: {"text": "it means something"},
            Judge: [{"why": "so"}],
            Done: [{"text": "done"}],
        },
        choices=[Judge, Done],
    )


async def yes(gate: OpenGate) -> Any:
    return True


async def recorded(
    graph: Graph[Any, Any], start: Node, lm: Any = None, **options: Any
) -> tuple[GraphResult[Any], tuple[Line, ...]]:
    journal = options.pop("journal", None) or MemoryJournal()
    result = await graph.arun(start, lm, journal=journal, run_id="r", **options)
    return result, (await journal.read("r")).lines


def written(result: GraphResult[Any]) -> list[Record]:
    return [record for record in result.journal if not isinstance(record, TextArrived)]


def assert_alike(live: Sequence[Record], read: Sequence[Record]) -> None:
    """That records are the same, as far as errors and live objects can be."""
    assert [type(each) for each in live] == [type(each) for each in read]
    for one, two in zip(live, read, strict=True):
        for field in dataclasses.fields(one):
            was, now = getattr(one, field.name), getattr(two, field.name)
            if isinstance(was, RecordedError):
                assert now == was
            elif isinstance(was, BaseException):
                assert isinstance(now, RecordedError)
                assert now.type_name == type(was).__name__
            elif isinstance(was, OpenGate):
                assert dataclasses.replace(now, context={}) == dataclasses.replace(was, context={})
                assert same(dict(now.context), dict(was.context))
            elif isinstance(was, Attempt | Usage):
                assert now == was
            elif now is LIVE:
                assert isinstance(was, Client)
            else:
                assert same(now, was), (field.name, one, two)


async def test_what_is_read_of_a_run_is_what_it_wrote() -> None:
    result, lines = await recorded(graph, Ask(message="hi"), script(), answer=yes)
    read = decode(graph, lines)
    assert_alike(written(result), read)
    all_kinds = (
        "RunStarted StepStarted Returned SourceStarted SourceEnded ItemEnded Recalled GateOpened "
        "ChoiceStarted ChoiceMade FillStarted FillEnded AnswerJudged LMAnswered LMUsed RunEnded"
    )
    assert {type(record).__name__ for record in read} == set(all_kinds.split())
    steps = [r.node for r in read if isinstance(r, StepStarted) and not r.path]
    assert all(same(now, was) for now, was in zip(steps, result.trace, strict=True))
    assert [node.model_fields_set for node in steps] == [n.model_fields_set for n in result.trace]


async def test_every_beginning_of_a_run_reads_as_what_it_is_the_beginning_of() -> None:
    result, lines = await recorded(graph, Ask(message="hi"), script(), answer=yes)
    live = written(result)
    for count in range(1, len(lines)):
        assert_alike(live[:count], decode(graph, lines[:count]))


async def test_a_node_is_stored_once_and_sources_not_again_with_it() -> None:
    _, lines = await recorded(graph, Ask(message="hi"), script(), answer=yes)
    outer = [line for line in lines if not line.path]
    filled = next(line for line in outer if line.kind == "FillEnded")
    assert json.loads(filled.data)["node"] == {
        "type": "Look",
        "fields": {"words": ["a", "b", "c"]},
    }
    steps = [json.loads(line.data) for line in outer if line.kind == "StepStarted"]
    assert steps[:4] == [{}, {}, {}, {}]
    assert steps[4] == {"node": {"type": "Done", "fields": {"text": "done"}}}
    assert sum("shouted" in line.data for line in lines if line.kind == "SourceEnded") == 1
    assert sum('"items":' in line.data for line in lines) == 2


async def test_a_run_that_waits_reads_with_its_gates() -> None:
    result, lines = await recorded(graph, Ask(message="hi"), script())
    read = decode(graph, lines)
    assert_alike(written(result), read)
    ended = read[-1]
    assert isinstance(ended, RunEnded)
    assert [gate.address for gate in ended.gates] == ["2:Judge.allowed"]
    alone = [line for line in lines if line.kind != "GateOpened"]
    again = decode(graph, alone)[-1]
    assert isinstance(again, RunEnded)
    assert again.gates[0].question == "go on?"
    assert again.gates[0].type is bool


async def test_a_failed_run_reads_with_errors_that_name_what_was_raised() -> None:
    class Broken(Node):
        luck: Annotated[str, Dep(fails)]

        async def __call__(self) -> None: ...

    journal = MemoryJournal()
    small = Graph(start=Broken)
    with pytest.raises(DepError):
        await recorded(small, Broken(), journal=journal)
    *_, source, ended = decode(small, (await journal.read("r")).lines)
    assert isinstance(source, SourceEnded)
    assert source.error == RecordedError("ValueError", "no luck")
    assert str(source.error) == "ValueError: no luck"
    assert isinstance(ended, RunEnded)
    assert isinstance(ended.error, RecordedError)
    assert ended.error.code == "bae-dep-failed"
    assert str(ended.error).startswith("[bae-dep-failed] DepError: Broken.luck")
    encoded = Encoder(small).encode(ended)
    assert json.loads(encoded)["error"]["type"] == "DepError"


class Counted(Node):
    n: int

    async def __call__(self) -> Counted | None:
        return Counted(n=self.n + 1) if self.n < 3 else None


class Sums(Node):
    inner: Annotated[Counted, Dep(Graph(start=Counted, name="counting"))]
    kept: Annotated[Counted, Dep(Counted, cache=False)]

    async def __call__(self) -> None: ...


class Zero(Counted):
    n: int = 0

    async def __call__(self) -> Counted | None:
        return Counted(n=1)


class Outer(Node):
    inner: Annotated[Counted, Dep(Zero)]
    other: Annotated[Counted, Dep(Zero, cache=False)]

    async def __call__(self) -> None: ...


async def test_graphs_behind_fields_and_parameters_are_found_by_their_path() -> None:
    async def doubled(one: Annotated[Counted, Dep(Zero, cache=False)]) -> int:
        return one.n * 2

    class Deep(Node):
        twice: Annotated[int, Dep(doubled)]
        outer: Annotated[Outer, Dep(Outer)]

        async def __call__(self) -> None: ...

    deep = Graph(start=Deep)
    result, lines = await recorded(deep, Deep())
    paths = {line.path for line in lines}
    assert paths == {
        "",
        "0:Deep.twice(one)",
        "0:Deep.outer",
        "0:Deep.outer/0:Outer.inner",
        "0:Deep.outer/0:Outer.other",
    }
    assert_alike(written(result), decode(deep, lines))
    for path in paths:
        assert graph_at(deep, path).start.__name__ in ("Deep", "Zero", "Outer")
    for wrong in ("0:Deep.none", "nonsense", "0:None.twice", "0:Deep.twice", "0:Deep.twice(two)"):
        with pytest.raises(JournalError) as raised:
            graph_at(deep, wrong)
        assert raised.value.code == "bae-journal-unreadable"


async def test_a_graph_that_was_begun_again_is_read_from_its_new_beginning() -> None:
    tries = 0

    class Flaky(Node):
        n: int = 1

        async def __call__(self) -> Counted:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ValueError
            return Counted(n=3)

    class Around(Node):
        inner: Annotated[Counted, Dep(Flaky, retries=1)]

        async def __call__(self) -> None: ...

    around = Graph(start=Around)
    result, lines = await recorded(around, Around())
    assert sum(line.kind == "RunStarted" for line in lines) == 3
    assert_alike(written(result), decode(around, lines))


async def test_a_cached_value_is_found_wherever_it_was_asked_for_first() -> None:
    class First(Node):
        weather: Annotated[Weather, Dep(get_weather)]

        async def __call__(self) -> Second:
            return Second()

    class Second(Node):
        place: Annotated[Place, Dep(get_place)]
        weather: Annotated[Weather, Dep(get_weather)]

        async def __call__(self) -> None: ...

    two = Graph(start=First)
    result, lines = await recorded(two, First())
    assert sum(line.kind == "SourceEnded" for line in lines) == 2
    assert_alike(written(result), decode(two, lines))


async def test_what_the_caller_put_into_the_cache_is_kept_too() -> None:
    other = Weather(place=Place(name="elsewhere"), degrees=30)
    cache = {get_weather: other}
    result, lines = await recorded(
        graph, Ask(message="hi"), script(), answer=yes, dep_cache=cache, prefetch=False
    )
    assert result.trace[1].weather == other
    assert_alike(written(result), decode(graph, lines))


async def test_classes_that_are_generic_are_found_by_their_names() -> None:
    class Holding(Node, Generic[T]):
        held: T
        inner: Annotated[Counted, Dep(Zero)]

        async def __call__(self) -> None: ...

    generic = Graph(start=Holding[int])
    result, lines = await recorded(generic, Holding[int](held=1))
    assert "0:Holding[int].inner" in {line.path for line in lines}
    assert_alike(written(result), decode(generic, lines))


async def test_nodes_that_hold_nodes_of_their_own_class_read_back() -> None:
    class Branch(Node):
        name: str
        below: list[Branch] = []
        first: Annotated[Branch | None, Recall()] = None

        async def __call__(self) -> Branch | None:
            return None if self.first else Branch(name="next", below=[self])

    tree = Graph(start=Branch)
    result, lines = await recorded(tree, Branch(name="a", below=[Branch(name="b", first=None)]))
    assert len(result.trace) == 2
    assert_alike(written(result), decode(tree, lines))


async def test_a_live_dependency_is_left_out_and_the_node_a_draft_without_it() -> None:
    class Calls(Node):
        client: Annotated[Client, Dep(get_client)]
        counts: Annotated[dict[int, set[str]], Dep(get_counts)]

        async def __call__(self) -> Given:
            return Given(client=self.client, n=1)

    class Given(Node):
        client: Annotated[Client, Dep(get_client)]
        n: int

        async def __call__(self) -> None: ...

    live = Graph(start=Calls)
    _, lines = await recorded(live, Calls())
    read = decode(live, lines)
    first, second = (record.node for record in read if isinstance(record, StepStarted))
    assert first.__dict__ == {"counts": {1: {"a", "b"}, 2: set()}}
    assert second.__dict__ == {"n": 1}
    assert any(isinstance(r, SourceEnded) and r.value is LIVE for r in read)
    assert not any("Client object" in line.data for line in lines)


async def test_an_item_or_value_of_another_class_than_declared_is_made_anew() -> None:
    class Hot(Weather):
        burns: bool = True

    async def get_hot() -> Weather:
        return Hot(place=Place(name="Ulm"), degrees=40)

    def either(n: int) -> Weather:
        return (
            Hot(place=Place(name="Ulm"), degrees=n)
            if n
            else Weather(place=Place(name=""), degrees=n)
        )

    class Feel(Node):
        weather: Annotated[Weather, Dep(get_hot)]
        numbers: list[int]
        more: Annotated[list[Weather], Map(either, over="numbers")]

        async def __call__(self) -> None: ...

    feel = Graph(start=Feel)
    _, lines = await recorded(feel, Feel(numbers=[0, 1]))
    read = decode(feel, lines)
    items = {r.index: r.value for r in read if isinstance(r, ItemEnded)}
    assert items[0] == Weather(place=Place(name=""), degrees=0)
    assert items[1] is LIVE
    assert all(r.value is LIVE for r in read if isinstance(r, SourceEnded))


async def test_a_graph_that_ends_at_a_node_with_something_live_is_run_again() -> None:
    class Hot(Weather):
        burns: bool = True

    async def get_hot() -> Weather:
        return Hot(place=Place(name="Ulm"), degrees=40)

    class Ending(Node):
        weather: Annotated[Weather, Dep(get_hot)]
        fine: int = 1

        async def __call__(self) -> None: ...

    class Around(Node):
        inner: Annotated[Ending, Dep(Ending)]

        async def __call__(self) -> None: ...

    around = Graph(start=Around)
    _, lines = await recorded(around, Around())
    *_, inner, _, _ = decode(around, lines)
    assert isinstance(inner, SourceEnded)
    assert inner.field == "inner"
    assert inner.value is LIVE


class Login(Node):
    user: str
    token: SecretStr
    note: str = Field("hush", repr=False)

    async def __call__(self) -> Session:
        return Session(user=self.user)


class Key(BaseModel):
    value: str = Field(repr=False)


async def get_key() -> Key:
    return Key(value="s3cret")


async def get_plain_key() -> str:
    return "s3cret too"


class Session(Node):
    user: str
    key: Annotated[Key, Dep(get_key)]
    hidden: Annotated[str, Dep(get_plain_key)] = Field(repr=False)
    again: Annotated[str, Dep(get_plain_key)]

    async def __call__(self) -> None: ...


login = Graph(start=Login)


async def test_secrets_are_not_written_and_must_be_given_again() -> None:
    start = Login(user="me", token=SecretStr("t0ken"), note="n0te")
    result, lines = await recorded(login, start)
    everything = "".join(line.data for line in lines)
    for secret in ("t0ken", "n0te", "s3cret"):
        assert secret not in everything
    with pytest.raises(JournalError) as raised:
        decode(login, lines)
    assert raised.value.code == "bae-journal-secret"
    assert raised.value.places == ("Login.token", "Login.note")
    assert "Login.token, Login.note" in str(raised.value)
    again = {"Login.token": "t0ken", "Login.note": "n0te"}
    first, second = (
        r.node for r in decode(login, lines, given=again) if isinstance(r, StepStarted)
    )
    assert same(first, result.trace[0])
    assert second.__dict__ == {"user": "me"}
    with pytest.raises(JournalError) as raised:
        decode(login, lines, given={"Login.token": "t0ken"})
    assert "Login.token" not in raised.value.message
    shown = next(r.node for r in decode(login, lines, partial=True) if isinstance(r, StepStarted))
    assert shown.__dict__ == {"user": "me"}
    values = [r.value for r in decode(login, lines, partial=True) if isinstance(r, SourceEnded)]
    assert values == [WITHHELD] * 2


async def test_secrets_are_written_where_they_are_asked_for() -> None:
    journal = MemoryJournal(secrets=True)
    start = Login(user="me", token=SecretStr("t0ken"), note="n0te")
    result, lines = await recorded(login, start, journal=journal)
    assert_alike(written(result), decode(login, lines))


async def test_prompts_of_nodes_with_secrets_are_not_written_and_others_are() -> None:
    attempt = Attempt(1, "the answer", "invalid", ("token: t0ken is wrong",), asked="the question")

    def said(encoder: Encoder, by: Asker) -> dict[str, Any]:
        return json.loads(encoder.encode(AnswerJudged(1.0, "", 0, by, attempt)))

    class Open(Node):
        text: str

        async def __call__(self) -> Shut | Plain: ...

    class Shut(Node):
        token: SecretStr

        async def __call__(self) -> None: ...

    class Plain(Node):
        text: str

        async def __call__(self) -> None: ...

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


async def test_prompts_of_a_node_that_may_recall_a_secret_are_not_written() -> None:
    class Told(Node):
        word: str = Field(repr=False)

        async def __call__(self) -> Used: ...

    class Used(Node):
        word: Annotated[str, Recall()]

        async def __call__(self) -> Last: ...

    class Last(Node):
        text: str

        async def __call__(self) -> None: ...

    attempt = Attempt(1, "the answer", "valid", asked="the question")
    record = AnswerJudged(1.0, "", 2, Asker("fill", Last), attempt)
    assert "asked" not in json.loads(Encoder(Graph(start=Told)).encode(record))


async def test_what_a_secret_dependency_failed_with_is_not_quoted() -> None:
    async def get_token() -> SecretStr:
        raise ValueError("t0ken is not valid")

    class Sealed(Node):
        token: Annotated[SecretStr | None, Dep(get_token)] = None

        async def __call__(self) -> None: ...

    _, lines = await recorded(Graph(start=Sealed), Sealed())
    assert not any("t0ken" in line.data for line in lines)


def lines_of(graph: Graph[Any, Any], records: Iterable[Record]) -> list[Line]:
    encoder = Encoder(graph)
    return [
        Line(n, type(r).__name__, r.at, r.path, r.step, encoder.encode(r))
        for n, r in enumerate(records)
    ]


def test_records_that_only_some_runs_write_read_back_too() -> None:
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
        LMAnswered(6.0, "", 1, Asker("body", Tell), "decide", "abc", "", type(None)),
        LMAnswered(6.0, "", 1, Asker("body", Tell), "decide", "abc", "", None),
        LMAnswered(6.0, "", 1, Asker("body", Tell), "make", "abc", "Done", Done(text="x")),
        RunEnded(7.0, "", 1, "cancelled", None, RecordedError("CancelledError", "")),
        RunResumed(8.0, "", 1, "somebody else"),
        RunEnded(9.0, "", 1, "ended", Ask(message="b")),
    ]
    read = decode(graph, lines_of(graph, records))
    mended = dataclasses.replace(cast_judged(records[6]).attempt, answer="?")
    records[6] = dataclasses.replace(cast_judged(records[6]), attempt=mended)
    assert read == records


def cast_judged(record: Record) -> AnswerJudged:
    assert isinstance(record, AnswerJudged)
    return record


def test_an_answer_of_a_class_that_is_none_of_the_graphs_is_left_as_it_is_written() -> None:
    class Aside(Node):
        n: int

        async def __call__(self) -> None: ...

    by = Asker("body", Ask)
    records: list[Record] = [
        LMAnswered(1.0, "", 1, by, "make", "abc", "Aside", Aside(n=1)),
        LMAnswered(1.0, "", 1, by, "choose_type", "abc", "", Aside),
        LMAnswered(1.0, "", 1, by, "make", "abc", "Login", Login(user="a", token=SecretStr("b"))),
    ]
    lines = lines_of(graph, records)
    one, two, _ = (r.value for r in decode(graph, lines) if isinstance(r, LMAnswered))
    assert node_codec(Aside).load(one) == Aside(n=1)
    assert two == {"class": "Aside"}
    (*_, secret) = (r.value for r in decode(graph, lines) if isinstance(r, LMAnswered))
    assert secret is WITHHELD


START = {"run_id": "r", "graph": "Ask", "max_iters": 10}
ASK = {"type": "Ask", "fields": {"message": "hi"}}


@pytest.mark.parametrize(
    ("kind", "data", "code", "said"),
    [
        ("StepStarted", "{", "bae-journal-damaged", "Invalid JSON"),
        ("StepStarted", "[]", "bae-journal-damaged", "should be an object"),
        ("RunStarted", {}, "bae-journal-damaged", "run_id: Field required"),
        ("RunStarted", {**START, "node": 5}, "bae-journal-damaged", "node: Input should be"),
        ("RunStarted", {**START, "node": {"type": "Ask"}}, "bae-journal-damaged", "node.fields: "),
        ("Unheard", {}, "bae-journal-version", "Unheard"),
        ("StepStarted", {}, "bae-journal-unreadable", "step 1"),
        ("StepStarted", {"node": {"type": "Gone", "fields": {}}}, "bae-journal-unreadable", "Gone"),
        (
            "StepStarted",
            {"node": {"type": "Ask", "fields": {"message": 5}}},
            "bae-journal-unreadable",
            "message: Input should be a valid string",
        ),
        ("SourceEnded", {"node": "Look"}, "bae-journal-damaged", "field: Field required"),
        (
            "ItemEnded",
            {"node": "Look", "field": "shouted", "index": 0, "value": 3},
            "bae-journal-unreadable",
            "Look.shouted",
        ),
        (
            "ItemEnded",
            {"node": "Look", "field": "shouted", "index": 0},
            "bae-journal-damaged",
            "lacks a value",
        ),
        ("RunEnded", {"outcome": "odd", "gates": []}, "bae-journal-damaged", "outcome: "),
        (
            "Recalled",
            {"node": "Judge", "field": "message", "origin": ["", 7, "x"]},
            "bae-journal-unreadable",
            "step 7",
        ),
        (
            "ChoiceMade",
            {"node": "Look", "chosen": "Tell", "seconds": 1, "usage": {}},
            "bae-journal-unreadable",
            "Look",
        ),
        (
            "LMUsed",
            {"asker": {"kind": "body", "node": "Ask"}, "usage": {"calls": "1"}},
            "bae-journal-damaged",
            "usage.calls: ",
        ),
    ],
)
def test_a_line_that_cannot_be_read_says_which_what_and_why(
    kind: str, data: Any, code: str, said: str
) -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    first = Line(0, "RunStarted", 1.0, "", 0, json.dumps({**START, "node": ASK}))
    with pytest.raises(JournalError) as raised:
        decode(graph, [first, Line(1, kind, 2.0, "", 1, text)])
    assert raised.value.code == code
    assert "line 1" in raised.value.message
    assert said in raised.value.message
    assert raised.value.fix


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_line_with_anything_else_in_it_is_read_or_refused_and_never_worse(
    data: st.DataObject,
) -> None:
    lines = list(_recorded_once())
    number = data.draw(st.integers(0, len(lines) - 1))
    said = json.loads(lines[number].data)
    at: Any = said
    keys: list[Any] = []
    while isinstance(at, dict) and at:
        keys.append(data.draw(st.sampled_from(sorted(at))))
        if not data.draw(st.booleans()):
            break
        at = at[keys[-1]]
    inner = said
    for key in keys[:-1]:
        inner = inner[key]
    if keys and data.draw(st.booleans()):
        inner[keys[-1]] = data.draw(json_values)
    elif keys:
        del inner[keys[-1]]
    try:
        text = json.dumps(said)
        text.encode()
    except UnicodeEncodeError:
        return
    lines[number] = lines[number]._replace(data=text)
    refused = _refused(lines)
    assert refused is None or (refused.code.startswith("bae-journal-") and refused.fix)


def _refused(lines: Sequence[Line]) -> JournalError | None:
    try:
        decode(graph, lines)
    except JournalError as error:
        return error
    return None


_ONCE: list[tuple[Line, ...]] = []


def _recorded_once() -> tuple[Line, ...]:
    if not _ONCE:
        _ONCE.append(asyncio.run(recorded(graph, Ask(message="hi"), script(), answer=yes))[1])
    return _ONCE[0]


def test_what_no_journal_can_hold_is_said_before_a_run() -> None:
    class Inside(Node):
        client: Client

        async def __call__(self) -> None: ...

    class Top(Node):
        inner: Annotated[Inside, Dep(Inside)]
        agreed: Annotated[Client, Gate("who?")]
        fine: int = 1

        async def __call__(self) -> None: ...

    found = unkeepable(Graph(start=Top))
    assert [(p.severity, p.code, p.place) for p in found] == [
        ("error", "bae-journal-field", "Top.agreed"),
        ("error", "bae-journal-field", "Inside.client"),
    ]
    assert "Client" in str(found[0])
    assert unkeepable(graph) == []


def test_what_is_made_anew_and_what_is_a_secret_is_noted_before_a_run() -> None:
    assert [(p.severity, p.code, p.place) for p in notes(graph)] == [
        ("note", "bae-journal-live", "Look.counts(client)"),
    ]
    assert [(p.code, p.place) for p in notes(login)] == [
        ("bae-journal-withheld", "Login.token"),
        ("bae-journal-withheld", "Login.note"),
        ("bae-journal-withheld", "Session.key"),
        ("bae-journal-withheld", "Session.hidden"),
    ]


async def test_an_answer_at_a_gate_is_kept_as_it_was_given() -> None:
    class Odd(Node):
        weight: Annotated[int, Gate("how heavy?")]

        @field_validator("weight", mode="before")
        @classmethod
        def parsed(cls, value: Any) -> Any:
            return int(value.removesuffix("kg"))

        async def __call__(self) -> None: ...

    async def heavy(gate: OpenGate) -> str:
        return "5kg"

    odd = Graph(start=Odd)
    result, lines = await recorded(odd, Odd(), answer=heavy)
    assert result.trace[0].weight == 5
    read = decode(odd, lines)
    assert_alike(written(result), read)


async def test_a_choice_that_was_filled_at_once_reads_back() -> None:
    class From(Node):
        n: int

        async def __call__(self) -> To | Elsewhere: ...

    class To(Node):
        text: str
        place: Annotated[str, Recall()] = "nowhere"

        async def __call__(self) -> None: ...

    class Elsewhere(Node):
        text: str

        async def __call__(self) -> None: ...

    small = Graph(start=From)
    result, lines = await recorded(small, From(n=1), ScriptedLM([To, {"text": "x"}]))
    read = decode(small, lines)
    assert_alike(written(result), read)
    assert any(isinstance(r, ChoiceMade) and r.chosen is To for r in read)
    assert any(isinstance(r, FillStarted) for r in read)
    assert any(isinstance(r, FillEnded) for r in read)
    assert not any(isinstance(r, Returned) for r in read)


async def test_an_answer_given_later_is_made_a_value_of_by_the_node_and_once() -> None:
    class Odd(Node):
        weight: Annotated[int, Gate("how heavy?")]
        days: Annotated[list[dt.date], Gate("when?")]

        @field_validator("weight", mode="before")
        @classmethod
        def parsed(cls, value: Any) -> Any:
            return int(value.removesuffix("kg"))

        async def __call__(self) -> None: ...

    odd = Graph(start=Odd)
    journal = MemoryJournal()
    await odd.arun(Odd(), journal=journal, run_id="r")
    await odd.answer("r", "weight", "5kg", journal=journal)
    result = await odd.answer("r", "days", (dt.date(2024, 1, 1),), journal=journal)
    assert result.trace[0].weight == 5
    assert result.trace[0].days == [dt.date(2024, 1, 1)]
    assert_alike(written(result), decode(odd, (await journal.read("r")).lines))


async def test_the_answer_to_a_secret_gate_is_not_stored() -> None:
    class Locked(Node):
        code: Annotated[SecretStr, Gate("the code?")]

        async def __call__(self) -> None: ...

    async def tell(gate: OpenGate) -> str:
        return "sesame"

    locked = Graph(start=Locked)
    journal = MemoryJournal()
    await locked.arun(Locked(), journal=journal, run_id="r")
    with pytest.raises(JournalError) as raised:
        await locked.answer("r", "code", "sesame", journal=journal)
    assert raised.value.code == "bae-journal-secret"
    result = await locked.resume("r", journal=journal, answer=tell)
    assert result.trace[0].code == SecretStr("sesame")
    stored = await journal.read("r")
    assert not any("sesame" in line.data for line in stored.lines)
    assert stored.answers == {}
