"""A replayed run does again what was recorded, with nothing called outside; where it would not, it
says what differs."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from bae import LM, BaeError, Dep, Gate, Graph, Map, Node, NodeError, Recall, ReplayError
from bae.journal import Journal, MemoryJournal
from bae.testing import ScriptedLM
from kept_runs import World
from toy_backend import ToyBackend

WORLD = World()
SWITCH: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def world() -> World:
    WORLD.__init__()
    SWITCH.clear()
    return WORLD


@pytest.fixture
def journal() -> Journal:
    return MemoryJournal()


async def get_place() -> str:
    WORLD.do("place")
    return "Bern"


async def look_up(word: str) -> str:
    WORLD.do("look up")
    return word.upper()


class Inner(Node):
    word: str

    async def __call__(self) -> Done:
        return Done(text=self.word + SWITCH.get("inner", ""))


class Done(Node):
    text: str

    async def __call__(self) -> None: ...


class Ask(Node):
    words: list[str]
    place: Annotated[str, Dep(get_place)]
    found: Annotated[list[str], Map(look_up, over="words")]
    inside: Annotated[list[Done], Map(Inner, over="words")]
    ok: Annotated[bool, Gate("ok?")]

    async def __call__(self) -> Mood | Stop: ...


class Stop(Node):
    why: str

    async def __call__(self) -> None: ...


class Mood(Node):
    mood: str
    words: Annotated[list[str], Recall()]

    async def __call__(self, lm: LM) -> Joke | None:
        made = await lm.make(self, Joke)
        if SWITCH.get("ends"):
            return None
        return Joke(text=made.text + SWITCH.get("joke", ""))


class Joke(Node):
    text: str

    async def __call__(self) -> None:
        if SWITCH.get("fails"):
            raise ValueError("no")


graph = Graph(start=Ask)


async def recorded(journal: Journal) -> None:
    async def answer(gate: Any) -> bool:
        return True

    lm = ScriptedLM([Mood, {"mood": "glad"}, {"text": "ha"}])
    await graph.arun(Ask(words=["a", "b"]), lm, journal=journal, run_id="one", answer=answer)
    WORLD.done.clear()


async def test_a_replay_calls_nothing_and_comes_to_the_same(journal: Journal):
    await recorded(journal)
    result = await graph.replay("one", journal=journal)
    assert result.result == Joke(text="ha")
    assert [type(node).__name__ for node in result.trace] == ["Ask", "Mood", "Joke"]
    assert result.trace[0].found == ["A", "B"]
    assert WORLD.done == {}


async def test_the_journal_stays_as_it_was(journal: Journal):
    await recorded(journal)
    before = await journal.read("one")
    await graph.replay("one", journal=journal)
    assert await journal.read("one") == before


async def test_a_body_that_returns_something_else_is_told_with_a_diff(journal: Journal):
    await recorded(journal)
    SWITCH["joke"] = " ha"
    with pytest.raises(ReplayError) as caught:
        await graph.replay("one", journal=journal)
    assert caught.value.code == "bae-replay-diverged"
    assert '-    "text": "ha"' in caught.value.diff
    assert '+    "text": "ha ha"' in caught.value.diff
    for line in caught.value.diff.splitlines():
        assert line in str(caught.value)


async def test_a_body_of_a_graph_inside_is_compared_too(journal: Journal):
    await recorded(journal)
    SWITCH["inner"] = "!"
    with pytest.raises(BaeError) as caught:
        await graph.replay("one", journal=journal)
    assert isinstance(caught.value, ReplayError)
    assert '"text": "a!"' in caught.value.diff


async def test_a_run_that_now_ends_earlier_is_told(journal: Journal):
    await recorded(journal)
    SWITCH["ends"] = True
    with pytest.raises(ReplayError, match="went on to Joke, and now ends there"):
        await graph.replay("one", journal=journal)


async def test_a_failed_run_fails_again_the_same_way(journal: Journal):
    SWITCH["fails"] = True
    with pytest.raises(NodeError):
        await recorded(journal)
    with pytest.raises(NodeError, match=r"Joke\.__call__ raised ValueError"):
        await graph.replay("one", journal=journal)


async def test_a_changed_prompt_is_told_with_a_diff(journal: Journal):
    class Topic(Node):
        name: str

        async def __call__(self) -> Essay: ...

    class Essay(Node):
        text: str

        async def __call__(self) -> None: ...

    essays = Graph(start=Topic)
    await essays.arun(Topic(name="x"), ToyBackend({"text": "t"}), journal=journal, run_id="two")
    assert (await essays.replay("two", journal=journal)).result == Essay(text="t")

    def changed() -> Graph[Any, Any]:
        class Topic(Node):
            name: str
            tone: str = "dry"

            async def __call__(self) -> Essay: ...

        return Graph(start=Topic)

    with pytest.raises(ReplayError) as caught:
        await changed().replay("two", journal=journal)
    assert "tone" in caught.value.diff


class Client:
    """Something no journal holds."""


def make_client() -> Client:
    WORLD.do("client")
    return Client()


class Calls(Node):
    client: Annotated[Client, Dep(make_client)]

    async def __call__(self) -> None: ...


async def test_what_no_journal_holds_needs_a_stand_in(journal: Journal):
    calls = Graph(start=Calls)
    await calls.arun(Calls(), journal=journal, run_id="one")
    WORLD.done.clear()
    with pytest.raises(ReplayError) as caught:
        await calls.replay("one", journal=journal)
    assert caught.value.code == "bae-replay-live"
    assert "dep_cache={make_client: …}" in str(caught.value)
    fake = Client()
    result = await calls.replay("one", journal=journal, dep_cache={make_client: fake})
    assert result.result.client is fake
    assert WORLD.done == {}


async def test_what_no_journal_holds_is_made_anew_on_resume(journal: Journal):
    class Fetch(Node):
        client: Annotated[Client, Dep(make_client)]

        async def __call__(self) -> Fetched:
            WORLD.do("fetch")
            return Fetched(text="t")

    class Fetched(Node):
        text: str
        client: Annotated[Client, Dep(make_client)]

        async def __call__(self) -> None:
            WORLD.do("fetched")

    fetch = Graph(start=Fetch)
    WORLD.failing.add("fetched")
    with pytest.raises(NodeError):
        await fetch.arun(Fetch(), journal=journal, run_id="one")
    WORLD.mend()
    result = await fetch.resume("one", journal=journal)
    assert isinstance(result.result, Fetched)
    assert result.trace[0].client is result.trace[1].client
    assert WORLD.done == {"client": 2, "fetch": 1, "fetched": 1}
