"""What starting early promises: a dependency sure to be needed runs while the LM still writes, one
that may not be needed does not, and nobody can tell afterwards but by the clock."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest

from bae import BaeLMError, Dep, DepError, LimitError, Map, Node, Recall
from bae.journal import FillEnded, SourceEnded, SourceStarted
from bae.testing import ScriptedLM
from bounded import error_from, run, some_turns
from end_node import EndNode, leading_to


class PausedLM(ScriptedLM):
    """A scripted LM that writes a target only once an event is set, or has been seen not to come
    while everything that could run did."""

    def __init__(self, script: Any, wait: dict[str, Any], choices: Any = ()) -> None:
        super().__init__(script, choices=choices)
        self.wait = wait

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        pause = self.wait.get(target.__name__)
        if pause is not None:
            await pause()
        return await super().fill(target, resolved, instruction, source)


def drafting(wait: Any, **options: Any) -> PausedLM:
    """An LM that writes a draft once it has waited."""
    return PausedLM({"Draft": {"text": "hi"}}, {"Draft": wait}, **options)


class Fetch:
    """A dependency that says when it is called."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        self.called.set()
        return "fetched"


def page_from(fn: Any) -> type[Any]:
    """The last node of a run, with what a dependency fetches."""
    return leading_to(None, name="Last", page=Annotated[str, Dep(fn)])


def draft_before(*last: Any) -> Node:
    """The start of a run in which the LM fills a draft, and then goes on to one of these."""
    return leading_to(leading_to(*last, name="Draft", text=str))()


async def test_dependencies_of_the_only_successor_start_during_the_fill():
    fetch = Fetch()

    # Without an early start the LM would wait for a call that waits for the LM.
    lm = drafting(fetch.called.wait)
    result = await run(draft_before(page_from(fetch)), lm)
    assert result.result.page == "fetched"
    assert fetch.calls == 1
    order = [
        type(record).__name__
        for record in result.journal
        if isinstance(record, SourceStarted | FillEnded)
    ]
    assert order == ["SourceStarted", "FillEnded", "FillEnded"]


async def test_prefetch_false_turns_prefetching_off():
    fetch = Fetch()
    called_while_filling: list[bool] = []

    async def look() -> None:
        await some_turns()
        called_while_filling.append(fetch.called.is_set())

    for prefetch in (False, True):
        result = await run(draft_before(page_from(fetch)), drafting(look), prefetch=prefetch)
        assert result.result.page == "fetched"
    assert called_while_filling == [False, True]


async def test_no_dependency_is_prefetched_if_there_are_several_successors():
    fetch = Fetch()
    called_while_filling: list[bool] = []

    async def look() -> None:
        await some_turns()
        called_while_filling.append(fetch.called.is_set())

    class Right(page_from(fetch)): ...  # type: ignore[misc]

    lm = drafting(look, choices=[Right])
    assert isinstance((await run(draft_before(page_from(fetch), Right), lm)).result, Right)
    assert called_while_filling == [False]
    assert fetch.calls == 1


async def test_no_dependency_is_prefetched_for_a_node_beyond_the_bound():
    fetch = Fetch()

    with pytest.raises(LimitError):
        await run(draft_before(page_from(fetch)), drafting(some_turns), max_iters=2)
    assert fetch.calls == 0


class Flaky:
    def __init__(self) -> None:
        self.failed = asyncio.Event()
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        self.failed.set()
        raise ValueError("too early")


async def test_a_failed_prefetch_is_raised_when_its_node_is_reached():
    flaky = Flaky()
    last = page_from(flaky)
    error = await error_from(DepError, run(draft_before(last), drafting(flaky.failed.wait)))
    assert (error.node_type, error.field_name) == (last, "page")
    assert [type(node).__name__ for node in error.trace] == ["Start", "Draft"]
    assert flaky.calls == 1


async def test_a_failed_prefetch_does_not_matter_when_its_node_is_not_reached():
    flaky = Flaky()

    async def fail_after_it() -> None:
        await flaky.failed.wait()
        await some_turns()
        raise ConnectionError("no model")

    error = await error_from(
        BaeLMError, run(draft_before(page_from(flaky)), drafting(fail_after_it))
    )
    assert isinstance(error.cause, ConnectionError)
    assert not hasattr(error, "__notes__")


async def test_a_failed_prefetch_does_not_matter_when_the_body_passes_the_value():
    flaky = Flaky()

    class Last(EndNode):
        page: Annotated[str, Dep(flaky)]

    class Draft(Node):
        text: str

        async def __call__(self) -> Last:
            return Last(page="written by hand")

    lm = PausedLM({Draft: {"text": "hi"}}, {"Draft": flaky.failed.wait})
    assert (await run(leading_to(Draft)(), lm)).result.page == "written by hand"


async def test_an_unneeded_prefetch_leaves_no_task_running():
    log: list[str] = []
    running = asyncio.Event()

    async def opened() -> AsyncIterator[str]:
        log.append("open")
        yield "opened"
        log.append("close")

    async def waits(x: Annotated[str, Dep(opened)]) -> str:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")
        return x

    class Last(EndNode):
        page: Annotated[str, Dep(waits)]

    class Draft(Node):
        text: str

        async def __call__(self) -> Last:
            return Last(page="by hand")

    before = asyncio.all_tasks()
    await run(leading_to(Draft)(), PausedLM({Draft: {"text": "hi"}}, {"Draft": running.wait}))
    assert asyncio.all_tasks() == before
    assert log == ["open", "cancelled", "close"]


async def test_a_prefetch_continues_during_a_map_over_values_that_the_llm_filled():
    release, running = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def slow() -> str:
        calls.append("slow")
        running.set()
        await release.wait()
        return "slow"

    async def one(item: int) -> int:
        await some_turns()
        return item

    class Last(EndNode):
        page: Annotated[str, Dep(slow)]

    class Draft(Node):
        items: list[int]
        mapped: Annotated[list[int], Map(one, over="items")]

        async def __call__(self) -> Last:
            release.set()
            return Last()

    lm = PausedLM({Draft: {"items": [1, 2]}}, {"Draft": running.wait})
    assert (await run(leading_to(Draft)(), lm)).result.page == "slow"
    assert calls == ["slow"]


async def test_an_unneeded_prefetch_is_cancelled_before_the_next_starts():
    log: list[str] = []
    running, later = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("first is cancelled")
        return "first"

    async def second() -> str:
        log.append("second is called")
        later.set()
        return "second"

    class Last(EndNode):
        page: Annotated[str, Dep(second)]

    class More(Node):
        text: str

        async def __call__(self) -> Last: ...

    class ByHand(Node):
        page: Annotated[str, Dep(waits)]

        async def __call__(self) -> More: ...

    class Draft(Node):
        text: str

        async def __call__(self) -> ByHand:
            return ByHand(page="by hand")

    lm = PausedLM(
        {Draft: {"text": ""}, More: {"text": ""}},
        {"Draft": running.wait, "More": later.wait},
    )
    before = asyncio.all_tasks()
    assert (await run(leading_to(Draft)(), lm)).result.page == "second"
    assert asyncio.all_tasks() == before
    assert log == ["first is cancelled", "second is called"]


async def test_a_prefetched_dependency_without_cache_is_not_called_twice():
    calls: list[str] = []

    def fresh() -> int:
        calls.append("fresh")
        return len(calls)

    class Last(EndNode):
        value: Annotated[int, Dep(fresh, cache=False, inline=True)]

    result = await run(draft_before(Last), drafting(some_turns))
    assert result.result.value == 1
    assert calls == ["fresh"]


class Topic(EndNode):
    """A graph that recalls from the run around it."""

    text: Annotated[str, Recall()]


class Around(EndNode):
    """A graph that recalls nothing itself, but holds one that does."""

    topic: Annotated[Topic, Dep(Topic)]


def by_way_of_a_function(topic: Annotated[Topic, Dep(Topic)]) -> Topic:
    return topic


@pytest.mark.parametrize("source", [Topic, Around, by_way_of_a_function])
async def test_a_subgraph_that_recalls_from_the_trace_is_not_prefetched(source: Any):
    class Last(EndNode):
        found: Annotated[Any, Dep(source)]

    start = leading_to(leading_to(Last, name="Draft", text=str), text=str)
    lm = PausedLM({"Draft": {"text": "new"}}, {"Draft": some_turns})
    value = (await run(start(text="old"), lm)).result.found
    topic = value.topic if isinstance(value, Around) else value
    assert topic.text == "new"


async def test_a_subgraph_without_recalls_is_prefetched():
    fetch = Fetch()

    class Inner(EndNode):
        page: Annotated[str, Dep(fetch)]

    class Last(EndNode):
        inner: Annotated[Inner, Dep(Inner)]

    lm = drafting(fetch.called.wait)
    result = await run(draft_before(Last), lm)
    assert result.result.inner.page == "fetched"
    assert [*result.nested] == ["2:Last.inner"]
    assert {r.step for r in result.journal.of(SourceEnded) if r.path == ""} == {2}
