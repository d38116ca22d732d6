"""Look-ups by value in runs that are stored: resumed and replayed by their arguments, and shown
with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from bae import Dep, DepError, Graph, Map, Node, NodeError, Recall, ReplayError
from bae.journal import MemoryJournal, RunResumed
from bae.journal.why import why
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import WORLD, Client, cut_journal


def connect() -> Iterator[Client]:
    WORLD.do("connect")
    yield Client()


class Topic(BaseModel):
    words: list[str]


async def search(query: str, client: Annotated[Client, Dep(connect)]) -> list[str]:
    WORLD.do(f"search {query}")
    return [f"{query} {n}" for n in range(2)]


async def find(topic: Annotated[Topic, Recall()], tag: str = "") -> str:
    WORLD.do(f"find {','.join(topic.words)}{tag}")
    return " ".join(topic.words)


async def shorten(text: Annotated[str, Dep(find)]) -> str:
    WORLD.do(f"shorten {text}")
    return text[:1]


class Ask(Node):
    topic: Topic
    query: str
    hits: Annotated[list[str], Dep(search, query="query")] = Field(init=False)

    async def __call__(self) -> Read: ...


class Read(Node):
    text: Annotated[str, Dep(find)]
    short: Annotated[str, Dep(shorten)]
    query: str
    hits: Annotated[list[str], Dep(search, query="query")]
    longer: Annotated[list[str], Map(str.upper, over="hits")]

    async def __call__(self) -> Tell:
        WORLD.do("body")
        return Tell(query=self.query)


class Tell(Node):
    query: str
    hits: Annotated[list[str], Dep(search, query="query")] = Field(init=False)
    first: Annotated[list[str], Dep(search, query=Recall(Ask))] = Field(init=False)
    short: Annotated[str, Dep(shorten)] = Field(init=False)

    async def __call__(self) -> None:
        WORLD.do("told")


GRAPH = Graph(start=Ask)
START = Ask(topic=Topic(words=["a", "b"]), query="old")
EFFECTS = {"search old": 1, "search new": 1, "find a,b": 1, "shorten a b": 1}


def lm() -> ScriptedLM:
    return ScriptedLM({Read: {"query": "new"}})


async def record_run() -> tuple[MemoryJournal, list[Node]]:
    journal = MemoryJournal()
    result = await GRAPH.arun(START, lm(), journal=journal, run_id="one")
    return journal, result.trace


def count_look_ups() -> dict[str, int]:
    return {n: c for n, c in WORLD.done.items() if n not in ("connect", "body", "told")}


async def test_a_run_stopped_anywhere_repeats_no_stored_look_up():
    journal, trace = await record_run()
    assert count_look_ups() == EFFECTS
    lines = (await journal.read("one")).lines
    for count in range(1, len(lines)):
        stored = {
            line.data.split('"by":"')[1].split('"')[0]: 1
            for line in lines[:count]
            if line.kind == "SourceEnded" and '"value"' in line.data
        }
        left = await cut_journal(journal, count)
        WORLD.__init__()
        result = await GRAPH.resume("one", lm(), journal=left)
        assert result.trace == trace, count
        done = count_look_ups()
        assert all(times == 1 for times in done.values()), (count, done)
        for name in ("find", "shorten"):
            assert not (name in stored and any(effect.startswith(name) for effect in done)), count
        again = await left.read("one")
        WORLD.__init__()
        assert (await GRAPH.replay("one", journal=left)).trace == trace, count
        assert count_look_ups() == {}, count
        assert str(why(again, "Tell.short")).splitlines()[0] == '2:Tell.short = "a"'


async def test_a_resumed_run_does_not_open_the_resources_of_a_stored_look_up():
    WORLD.failing.add("told")
    journal = MemoryJournal()
    with pytest.raises(NodeError):
        await GRAPH.arun(START, lm(), journal=journal, run_id="one")
    WORLD.__init__()
    await GRAPH.resume("one", lm(), journal=journal)
    assert WORLD.done == {"told": 1}


async def test_why_shows_the_arguments_of_a_call_and_their_sources():
    journal, _ = await record_run()
    stored = await journal.read("one")

    provenance = why(stored, "Read.hits")
    assert provenance.inputs["query"].value == "new"
    assert provenance.inputs["query"].source == "lm"
    shared = why(stored, "Tell.first")
    assert shared.note == "called once for equal arguments, first for 0:Ask.hits"
    assert (shared.value, shared.inputs["query"].source) == (["old 0", "old 1"], "recall")
    assert shared.inputs["query"].by == "0:Ask.query"
    below = why(stored, "Read.short").inputs["text"]
    assert below.inputs["topic"].value == {"words": ["a", "b"]}
    assert why(stored, "Read.short(text)(topic)").source == "recall"


async def test_a_shared_value_is_stored_once():
    journal, _ = await record_run()
    lines = [line.data for line in (await journal.read("one")).lines if line.kind == "SourceEnded"]

    assert sum('"value":["old 0","old 1"]' in data for data in lines) == 1
    assert sum('"called_at":"0:Ask.hits"' in data for data in lines) == 1


async def test_a_replay_reports_a_call_with_other_arguments():
    words = ["one"]

    async def look(word: str) -> str:
        return word.upper()

    class Start(Node):
        async def __call__(self) -> End:
            return End(word=words[0])

    class End(EndNode):
        word: str
        found: Annotated[str, Dep(look, word="word")] = Field(init=False)

    graph, journal = Graph(start=Start), MemoryJournal()
    await graph.arun(Start(), journal=journal, run_id="one")
    words[0] = "two"
    with pytest.raises(ReplayError, match=r"End\.found: the arguments of look differ"):
        await graph.replay("one", journal=journal)


async def test_a_reopened_live_argument_does_not_repeat_a_look_up():
    made: list[str] = []

    def open_line() -> Client:
        WORLD.do("open")
        return Client()

    def get_secret() -> SecretStr:
        WORLD.do("secret")
        return SecretStr("x")

    async def ask(line: Any, secret: SecretStr, word: str) -> str:
        made.append(word)
        WORLD.do(f"ask {word}")
        return word

    class Start(Node):
        word: str
        line: Annotated[Client, Dep(open_line)] = Field(init=False)
        secret: Annotated[SecretStr, Dep(get_secret)] = Field(init=False)
        said: Annotated[str, Dep(ask, line="line", secret="secret", word="word")] = Field(
            init=False
        )

        async def __call__(self) -> None:
            WORLD.do("end")

    graph, journal = Graph(start=Start), MemoryJournal()
    WORLD.failing.add("end")
    with pytest.raises(NodeError):
        await graph.arun(Start(word="a"), journal=journal, run_id="one")
    WORLD.mend()
    await graph.resume("one", journal=journal)
    assert made == ["a"]
    assert WORLD.done["open"] == 2
    data = "".join(line.data for line in (await journal.read("one")).lines)
    assert '"x"' not in data


async def test_a_subgraph_with_bound_fields_resumes_where_it_stopped():
    class Look(Node):
        word: str

        async def __call__(self) -> Found:
            WORLD.do(f"look {self.word}")
            return Found(said=self.word)

    class Found(Node):
        said: str

        async def __call__(self) -> None:
            WORLD.do("found")

    class Start(EndNode):
        word: str
        one: Annotated[Found, Dep(Look, word="word")] = Field(init=False)
        two: Annotated[Found, Dep(Look, word="word")] = Field(init=False)
        each: Annotated[list[Found], Map(Two, over="words", word="word")] = Field(init=False)
        words: list[str] = Field(default=["x", "y"])

    class Two(Node):
        item: str
        word: str

        async def __call__(self) -> Found:
            return Found(said=self.item + self.word)

    graph, journal = Graph(start=Start), MemoryJournal()
    WORLD.failing.add("found")
    with pytest.raises(DepError):
        await graph.arun(Start(word="w"), journal=journal, run_id="one")
    WORLD.mend()
    result = await graph.resume("one", journal=journal)
    assert WORLD.done["look w"] == 1
    assert [node.said for node in result.result.each] == ["xw", "yw"]
    again = await graph.replay("one", journal=journal)
    assert again.trace == result.trace
    stored = await journal.read("one")
    assert why(stored, "Start.one").inputs["word"].value == "w"
    assert why(stored, "0:Start.one/0:Look.word").value == "w"


async def test_a_default_after_a_failed_look_up_is_stored_and_replayed():
    async def broken(word: str) -> str:
        WORLD.do("broken")
        return word

    class Start(Node):
        word: str
        one: Annotated[str, Dep(broken, word="word")] = "none"
        two: Annotated[str, Dep(broken, word="word")] = "none"
        felt: Annotated[str, Dep(find)] = "nothing"

        async def __call__(self) -> Next:
            return Next(word=self.word)

    class Next(Node):
        word: str
        one: Annotated[str, Dep(broken, word="word")] = "none"

        async def __call__(self) -> None:
            WORLD.do("end")

    graph, journal = Graph(start=Start), MemoryJournal()
    WORLD.failing |= {"broken", "end"}
    with pytest.raises(NodeError):
        await graph.arun(Start(word="w"), journal=journal, run_id="one")
    WORLD.mend()
    result = await graph.resume("one", journal=journal)
    node = result.trace[0]
    assert (node.one, node.two, node.felt) == ("none", "none", "nothing")
    assert (await graph.replay("one", journal=journal)).trace == result.trace


async def test_a_fork_looks_up_by_the_changed_value_and_shares_equal_values():
    journal, _ = await record_run()
    WORLD.__init__()
    new = await GRAPH.fork("one", at=1, journal=journal, query="other")
    result = await GRAPH.resume(new, lm(), journal=journal)
    assert result.result.hits == ["other 0", "other 1"]
    assert count_look_ups() == {"search other": 1}


async def test_redacting_a_field_redacts_its_shared_values():
    journal, _ = await record_run()
    await journal.redact("one", "Tell.first")
    data = "".join(line.data for line in (await journal.read("one")).lines)
    assert "old 0" not in data

    def graph_of(marker: Dep) -> Graph[Any, Any]:
        async def call(self: Node) -> None: ...

        annotations = {"a": str, "b": str, "hits": Annotated[list[str], marker]}
        body = {"__annotations__": annotations, "__call__": call, "__module__": __name__}
        return Graph(start=type(Node)("Page", (Node,), {**body, "hits": Field(init=False)}))

    one, two = graph_of(Dep(search, query="a")), graph_of(Dep(search, query="b"))
    kept = MemoryJournal()
    WORLD.failing.add("search x")
    with pytest.raises(DepError):
        await one.arun(one.start(a="x", b="y"), journal=kept, run_id="one")
    WORLD.mend()
    result = await two.resume("one", journal=kept)
    (resumed,) = result.journal.of(RunResumed)
    assert "had the argument query from the field a and has the argument" in resumed.changes[0]
    assert result.result.hits == ["y 0", "y 1"]
