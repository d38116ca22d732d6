"""What `Map` promises: one call for each item of a sibling field, so many at once and no more,
results in the order of the items, and the item that failed named."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import pytest

from bae import LM, Dep, DepError, Graph, Map, Node, Recall
from bae.journal import ItemEnded, SourceEnded, SourceStarted
from bae.resolver import resolve_fields
from bae.testing import ScriptedLM
from bounded import BOUND, error_from, run, some_turns
from end_node import EndNode, leading_to
from growth import Scans


async def map_over(fn: Any, items: list[Any], **options: Any) -> list[Any]:
    """The value of a field of `Holder` after a run that maps over its items."""

    class Holder(EndNode):
        items: list[Any]
        mapped: Annotated[list[Any], Map(fn, over="items", **options)]

    return (await run(Holder(items=items))).result.mapped


async def double(item: int) -> int:
    return item * 2


def triple(item: int) -> int:
    return item * 3


def numbers() -> list[int]:
    return [1, 2, 3]


# Order and bounds


async def test_a_finished_item_of_a_map_does_not_scan_all_unfinished_items():
    async def one(item: int) -> int:
        for _ in range(item):  # each ends in a turn of its own
            await asyncio.sleep(0)
        return item

    with Scans() as scans:
        assert await map_over(one, [*range(200)], limit=200) == [*range(200)]
    assert scans.looks < 10 * 200


@pytest.mark.parametrize(("count", "limit"), [(20, 1), (20, 3), (1_000, 64)])
async def test_a_map_works_on_exactly_as_many_items_at_once_as_the_limit_allows(
    count: int, limit: int
):
    working, most = 0, 0
    full = asyncio.Event()

    async def one(item: int) -> int:
        nonlocal working, most
        working += 1
        most = max(most, working)
        if working == limit:
            full.set()
        await full.wait()  # the first are let go only when there are as many as may be
        await some_turns()
        working -= 1
        return item

    options = {} if limit == 64 else {"limit": limit}  # which is the default
    assert await map_over(one, [*range(count)], **options) == [*range(count)]
    assert most == limit


async def test_a_slow_item_of_a_map_delays_only_itself():
    others = asyncio.Event()
    done: list[int] = []

    async def one(item: int) -> int:
        if item == 0:
            await others.wait()
        done.append(item)
        if len(done) == 9:
            others.set()
        return item

    await map_over(one, [*range(10)], limit=2)
    assert done == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


# What can be mapped over


async def test_a_map_can_use_a_dependency_declared_after_it():
    class Holder(EndNode):
        mapped: Annotated[list[int], Map(double, over="items")]
        items: Annotated[list[int], Dep(numbers)]

    assert (await run(Holder())).result.mapped == [2, 4, 6]
    assert [*await resolve_fields(Holder)] == ["mapped", "items"]


async def test_a_map_over_a_field_that_the_llm_fills_runs_after_the_fill():
    class Filled(EndNode):
        items: list[int]
        mapped: Annotated[list[int], Map(double, over="items")]

    lm = ScriptedLM([{"items": [4, 5]}])
    assert (await run(leading_to(Filled)(), lm)).result.mapped == [8, 10]
    assert lm.asked[0].resolved == {}


async def test_a_map_over_a_dependency_is_context_for_the_llm():
    class Filled(EndNode):
        items: Annotated[list[int], Dep(numbers)]
        mapped: Annotated[list[int], Map(double, over="items")]
        text: str

    lm = ScriptedLM([{"text": "hi"}])
    await run(leading_to(Filled)(), lm)
    assert lm.asked[0].resolved == {"items": [1, 2, 3], "mapped": [2, 4, 6]}


async def test_a_map_over_a_recall_that_finds_nothing_uses_its_default():
    class Last(EndNode):
        items: Annotated[list[int], Recall()] = [5]
        mapped: Annotated[list[int], Map(double, over="items")]

    class Start(Node):
        async def __call__(self) -> Last:
            return Last()

    assert (await run(Start())).result.mapped == [10]


async def test_two_maps_over_one_field_share_it_and_a_map_can_use_another_map():
    calls: list[str] = []

    def two() -> list[int]:
        calls.append("two")
        return [1, 2]

    class Holder(EndNode):
        items: Annotated[list[int], Dep(two, cache=False)]
        doubled: Annotated[list[int], Map(double, over="items")]
        tripled: Annotated[list[int], Map(triple, over="items")]
        both: Annotated[list[int], Map(triple, over="doubled")]

    result = (await run(Holder())).result
    assert (result.doubled, result.tripled, result.both) == ([2, 4], [3, 6], [6, 12])
    assert calls == ["two"]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (tuple[int, ...], (1, 2)),
        (set[int], {1, 2}),
        (frozenset[int], frozenset({1, 2})),
        (Sequence[int], [1, 2]),
    ],
)
async def test_a_map_accepts_tuples_sets_and_sequences(kind: Any, given: Any):
    class Holder(EndNode):
        items: kind
        mapped: Annotated[list[int], Map(double, over="items")]

    assert sorted((await run(Holder(items=given))).result.mapped) == [2, 4]


# What can be mapped


async def test_dependencies_of_a_mapped_function_are_resolved_once_for_all_items():
    calls: list[str] = []

    async def base() -> int:
        calls.append("base")
        return 100

    def add(below: Annotated[int, Dep(base)], /, item: int, *, step: int = 1) -> int:
        return below + item * step

    assert await map_over(add, [1, 2, 3]) == [101, 102, 103]
    assert calls == ["base"]


async def test_a_mapped_function_can_take_the_lm_and_its_usage_is_counted():
    class Text(EndNode):
        text: str

    async def summarize(item: str, writer: LM) -> str:
        return (await writer.make(Text(text=item), Text)).text

    class Holder(EndNode):
        items: list[str]
        mapped: Annotated[list[str], Map(summarize, over="items", limit=1)]

    lm = ScriptedLM([{"text": "a"}, {"text": "b"}])
    result = await run(Holder(items=["long a", "long b"]), lm)
    assert result.result.mapped == ["a", "b"]
    assert result.usage.calls == 2


async def test_sync_functions_work_on_items_in_threads_at_the_same_time():
    meet = threading.Barrier(4, timeout=BOUND)

    def one(item: int) -> int:
        meet.wait()
        assert threading.current_thread() is not threading.main_thread()
        return item

    assert await map_over(one, [1, 2, 3, 4]) == [1, 2, 3, 4]


async def test_a_method_and_a_lambda_can_be_mapped():
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        async def apply(self, item: int) -> int:
            return item * self.factor

    class Holder(EndNode):
        items: list[int]
        scaled: Annotated[list[int], Map(Scale(5).apply, over="items")]
        shifted: Annotated[list[int], Map(lambda item: item + 1, over="items")]

    result = (await run(Holder(items=[1, 2]))).result
    assert (result.scaled, result.shifted) == ([5, 10], [2, 3])


class Summary(EndNode):
    text: str


class Page(Node):
    url: str

    async def __call__(self) -> Summary:
        return Summary(text=f"about {self.url}")


async def test_a_mapped_graph_takes_the_item_as_its_start_node():
    def two_pages() -> list[Page]:
        return [Page(url="a"), Page(url="b")]

    class Holder(EndNode):
        pages: Annotated[list[Page], Dep(two_pages)]
        summaries: Annotated[list[Summary], Map(Graph(start=Page, end=Summary), over="pages")]

    result = await run(Holder())
    assert [summary.text for summary in result.result.summaries] == ["about a", "about b"]


async def test_a_mapped_node_class_takes_the_item_as_its_only_plain_field():
    class Holder(EndNode):
        urls: list[str]
        summaries: Annotated[list[Summary], Map(Page, over="urls")]

    class Start(Node):
        async def __call__(self) -> Holder:
            return Holder(urls=["a", "b"])

    result = await run(Start())
    assert [summary.text for summary in result.result.summaries] == ["about a", "about b"]
    assert {
        path: [type(node).__name__ for node in nodes] for path, nodes in result.nested.items()
    } == {
        "1:Holder.summaries[0]": ["Page", "Summary"],
        "1:Holder.summaries[1]": ["Page", "Summary"],
    }
    assert [type(node) for node in result.trace] == [Start, Holder]
    assert result.nested["1:Holder.summaries[1]"][-1] is result.result.summaries[1]


async def test_timeouts_and_retries_of_a_map_apply_to_each_item():
    tries: dict[int, int] = {}

    async def shaky(item: int) -> int:
        tries[item] = tries.get(item, 0) + 1
        if item == 1 and tries[item] == 1:
            raise ConnectionError
        if item == 2 and tries[item] == 1:
            await asyncio.Event().wait()
        return item

    assert await map_over(shaky, [0, 1, 2], timeout=0.05, retries=1) == [0, 1, 2]
    assert tries == {0: 1, 1: 2, 2: 2}


# Failures


async def test_the_first_failed_item_of_a_map_cancels_the_others_and_is_named():
    cancelled: list[int] = []
    running = asyncio.Semaphore(0)

    async def one(item: int) -> int:
        if item == 2:
            for _ in range(2):
                await running.acquire()
            raise ValueError("not this one")
        running.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await some_turns()
            cancelled.append(item)
            raise
        return item

    class Holder(EndNode):
        items: list[int]
        mapped: Annotated[list[int], Map(one, over="items", limit=3)]

    error = await error_from(DepError, run(Holder(items=[*range(10)])))
    assert sorted(cancelled) == [0, 1]  # and the seven that were not begun never are
    assert (error.node_type, error.field_name) == (Holder, "mapped")
    assert str(error).splitlines() == [
        "[bae-dep-failed] Holder.mapped[2]: one raised ValueError",
        "  path:  Holder.mapped <- one[2]",
        "  cause: ValueError: not this one",
        "  try:   fix one, retry it with retries=…, or give the field a default",
    ]
    assert error.journal.of(ItemEnded) == []


async def test_an_item_over_its_timeout_is_named_with_a_fix_for_the_map():
    async def slow(item: int) -> int:
        if item == 1:
            await asyncio.Event().wait()
        return item

    error = await error_from(DepError, map_over(slow, [0, 1], timeout=0.01))
    assert error.code == "bae-dep-timeout"
    assert error.message.startswith("Holder.mapped[1]: slow took longer")
    assert "Map(slow" in str(error.fix)


async def test_a_failed_dependency_of_the_mapped_function_fails_the_field_and_no_item():
    calls: list[int] = []

    def bad() -> int:
        raise ValueError

    def add(item: int, base: Annotated[int, Dep(bad)]) -> int:
        calls.append(item)
        return item

    error = await error_from(DepError, map_over(add, [1]))
    assert error.message == "Holder.mapped: bad raised ValueError"
    assert error.path == "Holder.mapped <- add(base) <- bad()"
    assert calls == []


async def test_a_failure_of_the_mapped_field_names_that_field():
    def bad() -> list[int]:
        raise ValueError

    class Holder(EndNode):
        items: Annotated[list[int], Dep(bad)]
        mapped: Annotated[list[int], Map(double, over="items")]

    error = await error_from(DepError, run(Holder()))
    assert error.message == "Holder.items: bad raised ValueError"


async def test_an_item_that_the_start_node_refuses_is_named():
    def anything() -> list[Any]:
        return [1, "not a number"]

    class Each(EndNode):
        item: int

    class Holder(EndNode):
        items: Annotated[list[Any], Dep(anything)]
        each: Annotated[list[Each], Map(Each, over="items")]

    error = await error_from(DepError, run(Holder()))
    assert "Holder.each[1]" in error.message


async def test_an_error_for_a_wrong_result_of_a_map_names_the_field():
    def lies(item: int) -> int:
        return "text"  # type: ignore[return-value]

    class Holder(EndNode):
        items: list[int]
        mapped: Annotated[list[int], Map(lies, over="items")]

    error = await error_from(DepError, run(Holder(items=[1])))
    assert error.field_name == "mapped"
    assert "lies" in error.message


async def test_the_journal_has_every_item_as_soon_as_it_is_done():
    class Holder(EndNode):
        items: list[int]
        mapped: Annotated[list[int], Map(double, over="items", limit=1)]

    journal = (await run(Holder(items=[5, 6]))).journal
    kinds = SourceStarted | ItemEnded | SourceEnded
    started, *items, ended = [record for record in journal if isinstance(record, kinds)]
    assert (type(started), type(ended)) == (SourceStarted, SourceEnded)
    assert [(record.index, record.value) for record in items] == [(0, 10), (1, 12)]
    assert ended.value == [10, 12]
