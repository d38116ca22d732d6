"""A replay repeats the recorded run without calls to the outside; where the run deviates, the error
shows the difference."""

from __future__ import annotations

import io
import json
from typing import Annotated, Any

import pytest

from bae import (
    LM,
    BaeError,
    BudgetError,
    Dep,
    FillError,
    Gate,
    Graph,
    LimitError,
    Map,
    Node,
    NodeError,
    Recall,
    ReplayError,
    RouteError,
)
from bae.journal import Journal, MemoryJournal
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import WORLD, Client, get_place, make_client
from toy_backend import ToyBackend, route

SWITCH: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def as_it_was() -> None:
    SWITCH.clear()


async def look_up(word: str) -> str:
    WORLD.do("look up")
    return word.upper()


class Inner(Node):
    word: str

    async def __call__(self) -> Done:
        return Done(text=self.word + SWITCH.get("inner", ""))


class Done(EndNode):
    text: str


class Ask(Node):
    words: list[str]
    place: Annotated[str, Dep(get_place)]
    found: Annotated[list[str], Map(look_up, over="words")]
    inside: Annotated[list[Done], Map(Inner, over="words")]
    ok: Annotated[bool, Gate("ok?")]

    async def __call__(self) -> Mood | Stop: ...


class Stop(EndNode):
    why: str


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


async def record_run(journal: Journal) -> None:
    async def answer(gate: Any) -> bool:
        return True

    lm = ScriptedLM([Mood, {"mood": "glad"}, {"text": "ha"}])
    await graph.arun(Ask(words=["a", "b"]), lm, journal=journal, run_id="one", answer=answer)
    WORLD.done.clear()


async def test_a_replay_calls_nothing_and_has_the_same_result(journal: Journal):
    await record_run(journal)
    before = await journal.read("one")
    result = await graph.replay("one", journal=journal)
    assert await journal.read("one") == before
    assert result.result == Joke(text="ha")
    assert [type(node).__name__ for node in result.trace] == ["Ask", "Mood", "Joke"]
    assert result.trace[0].found == ["A", "B"]
    assert WORLD.done == {}


@pytest.mark.parametrize(
    ("where", "diff"),
    [
        ("joke", ['-    "text": "ha"', '+    "text": "ha!"']),
        ("inner", ['-    "text": "a"', '+    "text": "a!"']),  # of a graph inside
    ],
)
async def test_a_replay_reports_another_result_of_a_body_with_a_diff(
    journal: Journal, where: str, diff: list[str]
):
    await record_run(journal)
    SWITCH[where] = "!"
    with pytest.raises(ReplayError) as caught:
        await graph.replay("one", journal=journal)
    assert caught.value.code == "bae-replay-diverged"
    assert {*diff} <= {*caught.value.diff.splitlines()}
    for line in caught.value.diff.splitlines():
        assert line in str(caught.value)


async def test_a_replay_reports_a_run_that_ends_earlier(journal: Journal):
    await record_run(journal)
    SWITCH["ends"] = True
    with pytest.raises(ReplayError, match="continued to Joke, and now ends there"):
        await graph.replay("one", journal=journal)


async def test_a_replay_of_a_failed_run_fails_the_same_way(journal: Journal):
    SWITCH["fails"] = True
    with pytest.raises(NodeError):
        await record_run(journal)
    with pytest.raises(NodeError, match=r"Joke\.__call__ raised ValueError"):
        await graph.replay("one", journal=journal)


async def test_a_replay_reports_a_changed_prompt_with_a_diff(journal: Journal):
    class Topic(Node):
        name: str

        async def __call__(self) -> Essay: ...

    class Essay(EndNode):
        text: str

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


@pytest.mark.parametrize("where", ["run", "body", "graph inside"])
async def test_a_replay_reports_a_changed_system_text_with_a_diff(journal: Journal, where: str):
    class Topic(Node):
        name: str

        async def __call__(self) -> Essay: ...

    class Asked(Node):
        name: str

        async def __call__(self, lm: LM) -> Essay:
            return await lm.make(self, Essay)

    class Essay(EndNode):
        text: str

    def essays(system: str) -> tuple[Graph[Any, Any], Node]:
        if where != "graph inside":
            start = Topic if where == "run" else Asked
            return Graph(start=start, system=system), start(name="x")

        class Book(EndNode):
            names: list[str]
            essays: Annotated[
                list[Essay], Map(Graph(start=Topic, end=Essay, system=system), over="names")
            ]

        return Graph(start=Book), Book(names=["x"])

    graph, start = essays("Be brief.")
    await graph.arun(start, ToyBackend({"text": "t"}), journal=journal, run_id="two")
    assert (await graph.replay("two", journal=journal)).result is not None

    with pytest.raises(ReplayError) as caught:
        await essays("Be kind.")[0].replay("two", journal=journal)
    assert "-Be brief." in caught.value.diff
    assert "+Be kind." in caught.value.diff


class Calls(EndNode):
    client: Annotated[Client, Dep(make_client)]


async def test_a_live_value_needs_a_replacement_in_a_replay(journal: Journal):
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


class Thought(Node):
    about: str

    async def __call__(self) -> Feeling: ...


class Feeling(Node):
    mood: str

    async def __call__(self) -> Said:
        return Said(text=f"{self.mood}{SWITCH.get('said', '')}")


class Said(EndNode):
    text: str


thoughts = Graph(start=Thought)


async def test_a_fork_is_replayed_with_its_changes(journal: Journal):
    lm = ScriptedLM([{"mood": "glum"}])
    await thoughts.arun(Thought(about="x"), lm, journal=journal, run_id="one")
    fork = await thoughts.fork("one", at=1, mood="glad", journal=journal)
    again = await thoughts.fork(fork, at=1, mood="calm", journal=journal)
    for run_id, mood in ((fork, "glad"), (again, "calm")):
        await thoughts.resume(run_id, journal=journal)
        assert (await thoughts.replay(run_id, journal=journal)).result == Said(text=mood)
    start = await thoughts.fork("one", at=0, about="y", journal=journal, new_id="start")
    assert start == "start"
    await thoughts.resume(start, ScriptedLM([{"mood": "sad"}]), journal=journal)
    replayed = await thoughts.replay(start, journal=journal)
    assert replayed.trace == [Thought(about="y"), Feeling(mood="sad"), Said(text="sad")]
    SWITCH["said"] = "!"
    with pytest.raises(ReplayError, match="step 2: Said differs from the recorded node"):
        await thoughts.replay(fork, journal=journal)


async def failure_of(running: Any) -> BaeError:
    with pytest.raises(BaeError) as caught:
        await running
    return caught.value


async def test_a_replay_of_a_failed_lm_call_fails_the_same_way(journal: Journal):
    lm = ScriptedLM([{"mod": 1}] * 9)
    first = await failure_of(thoughts.arun(Thought(about="x"), lm, journal=journal, run_id="one"))
    again = await failure_of(thoughts.replay("one", journal=journal))
    assert isinstance(first, FillError)
    assert (type(again), again.code, again.message) == (FillError, first.code, first.message)
    assert again.trace == first.trace


class Lost(Node):
    async def __call__(self) -> Left | Right: ...


class Left(Node):
    async def __call__(self) -> None: ...


class Right(Node):
    async def __call__(self) -> None: ...


class Astray:
    """An LM that goes where it may not, and can pay for no fill."""

    async def choose_type(self, offered: Any, context: Any) -> Any:
        return Thought

    async def fill(self, target: Any, *_: Any, **__: Any) -> Any:
        raise BudgetError("nothing is left", limit="cost")

    async def make(self, *_: Any) -> Any:
        raise AssertionError

    async def decide(self, *_: Any) -> Any:
        raise AssertionError


async def test_a_replay_raises_route_and_budget_errors_again(journal: Journal):
    lost = Graph(start=Lost)
    first = await failure_of(lost.arun(Lost(), Astray(), journal=journal, run_id="lost"))
    again = await failure_of(lost.replay("lost", journal=journal))
    assert isinstance(again, RouteError) == isinstance(first, RouteError)
    assert (type(again), again.code, again.message) == (type(first), first.code, first.message)
    await failure_of(thoughts.arun(Thought(about="x"), Astray(), journal=journal, run_id="poor"))
    again = await failure_of(thoughts.replay("poor", journal=journal))
    assert (type(again), again.code, again.message) == (
        BudgetError,
        "bae-budget-spent",
        "nothing is left",
    )


class Loop(Node):
    n: int = 0
    place: Annotated[str, Dep(get_place, cache=False)]

    async def __call__(self) -> Loop | None:
        return Loop(n=self.n + 1) if self.n < 5 else None


loop = Graph(start=Loop)


async def test_a_replay_reaches_the_node_limit_again_unless_it_was_raised(journal: Journal):
    first = await failure_of(loop.arun(Loop(n=0), journal=journal, run_id="one", max_iters=3))
    again = await failure_of(loop.replay("one", journal=journal))
    assert isinstance(again, LimitError)
    assert (again.message, again.bound) == (first.message, 3)
    await loop.resume("one", journal=journal, max_iters=9)
    assert len((await loop.replay("one", journal=journal)).trace) == 6


class Quiz(Node):
    ok: Annotated[bool, Gate("ok?")]

    async def __call__(self) -> Done:
        return Done(text=str(self.ok))


def length_of(done: Annotated[Done, Dep(Quiz)]) -> int:
    return len(done.text)


class Quizzed(EndNode):
    length: Annotated[int, Dep(length_of)]
    done: Annotated[Done, Dep(Quiz)]


async def test_a_subgraph_first_run_for_a_parameter_is_replayed(journal: Journal):
    quizzed = Graph(start=Quizzed)
    run = await quizzed.arun(Quizzed(), journal=journal, run_id="one")
    await quizzed.answer("one", run.waiting[0].address, True, journal=journal)
    result = await quizzed.replay("one", journal=journal)
    assert result.result.done == Done(text="True")


class Late(Node):
    message: str

    async def __call__(self) -> Told | Unheard: ...


class Told(Node):
    message: Annotated[str, Recall(Late)]
    text: str

    async def __call__(self) -> Closed: ...


class Unheard(EndNode):
    reason: str


class Closed(EndNode):
    told: Annotated[str, Recall(Told)]
    note: str


async def test_runs_of_an_older_bae_with_repeated_recalled_values_are_replayed():
    graph, file = Graph(start=Late), io.BytesIO()
    async with MemoryJournal() as journal:
        lm = ToyBackend(route("Told", text="so"), {"note": "n"})
        run = await graph.arun(Late(message="m"), lm, journal=journal, run_id="old")
        await graph.replay("old", journal=journal)
        await journal.export(file)
    older = {
        '{"Late":{"message":"m"}}': '{"Late":{"message":"m"},"context":{"Told":{"message":"m"}}}',
        '{"Told":{"message":"m","text":"so"}}': (
            '{"Told":{"message":"m","text":"so"},"context":{"told":"so"}}'
        ),
    }
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    for data in (line["data"] for line in lines if line.get("kind") == "AnswerJudged"):
        del data["filled"]
        (now,) = [text for text in older if data["asked"].endswith(text)]
        data["asked"] = data["asked"].replace(now, older[now])
    async with MemoryJournal() as journal:
        await journal.load(
            io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        )
        assert (await graph.replay("old", journal=journal)).trace == run.trace
