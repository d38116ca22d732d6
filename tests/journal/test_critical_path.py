"""The critical path: found from declared inputs, through graphs inside and without the time that
people take."""

import asyncio
from itertools import pairwise
from typing import Annotated, Any

import pytest

from bae import Dep, Gate, Graph, Map, Node
from bae.journal import MemoryJournal, critical_path
from bae.testing import ScriptedLM

half_is_done = asyncio.Event()


async def fast() -> int:
    return 1


async def slow() -> str:
    await half_is_done.wait()
    await asyncio.sleep(0.05)  # far longer than the slack that the test asks for
    return "slow"


async def after_fast(n: Annotated[int, Dep(fast)]) -> float:
    half_is_done.set()
    return n / 2


class Ask(Node):
    question: str

    async def __call__(self) -> "Reply": ...


class Reply(Node):
    half: Annotated[float, Dep(after_fast)]
    context: Annotated[str, Dep(slow)]
    text: str

    async def __call__(self) -> None: ...


asking = Graph(start=Ask, end=Reply)


@pytest.fixture(autouse=True)
def again():
    global half_is_done
    half_is_done = asyncio.Event()


async def path_of(graph: Graph[Any, Any], start: Node, lm: Any = None) -> Any:
    journal = MemoryJournal()
    result = await graph.arun(start, lm, journal=journal, run_id="run")
    while result.waiting:
        result = await graph.answer("run", result.waiting[0].address, True, journal=journal)
    return critical_path(await journal.read("run"))


async def test_the_critical_path_has_the_work_that_delayed_the_run():
    path = await path_of(asking, Ask(question="?"), ScriptedLM([{"text": "!"}]))
    named = [(part.kind, part.place) for part in path.parts]
    assert ("dep", "1:Reply.context") in named
    assert named[-1] == ("fill", "1:Reply")
    assert ("dep", "1:Reply.half") not in named
    assert ("dep", "1:Reply.half(n)") not in named
    assert path.is_exact
    slack = path.slack
    assert slack["dep", "1:Reply.half"] >= 0.009
    assert slack["dep", "1:Reply.half(n)"] >= 0.009
    assert slack["fill", "1:Reply"] == 0
    assert path.seconds >= 0.009
    assert path.longest[0].place == "1:Reply.context"


class Part(Node):
    n: int

    async def __call__(self) -> "Doubled":
        await asyncio.sleep(0.005 * self.n)
        return Doubled(n=self.n * 2)


class Doubled(Node):
    n: int

    async def __call__(self) -> None: ...


class Sums(Node):
    parts: list[int]
    doubled: Annotated[list[Doubled], Map(Graph(start=Part, end=Doubled), over="parts")]

    async def __call__(self) -> None: ...


async def test_the_last_finished_item_of_a_map_is_on_the_critical_path():
    path = await path_of(Graph(start=Sums, end=Sums), Sums(parts=[1, 5, 2]))
    named = [(part.kind, part.place) for part in path.parts]
    assert ("body", "0:Sums.doubled[1]/0:Part") in named
    assert not any("doubled[0]" in place or "doubled[2]" in place for _, place in named)


class Asks(Node):
    sure: Annotated[bool, Gate("Sure?")] = None  # type: ignore[assignment]
    context: Annotated[str, Dep(slow)]

    async def __call__(self) -> Doubled:
        return Doubled(n=1)


async def test_waiting_for_a_person_does_not_add_to_the_critical_path():
    half_is_done.set()
    path = await path_of(Graph(start=Asks, end=Doubled), Asks())
    assert path.parts[-1].kind == "body"
    assert all(part.kind == "gate" for part in path.parts if part.waits)
    assert path.seconds == sum(part.seconds for part in path.parts if not part.waits)


async def test_parts_of_the_critical_path_follow_each_other():
    path = await path_of(asking, Ask(question="?"), ScriptedLM([{"text": "!"}]))
    spans = [span for part in path.parts for span in part.spans]
    assert all(a.end <= b.start + 0.003 for a, b in pairwise(spans))
    assert all(seconds >= 0 for seconds in path.slack.values())
