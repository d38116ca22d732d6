"""What `Dep` promises: anything callable, its inputs first, once a run, all that can overlap does,
and an error that says whose value it was."""

import asyncio
import contextvars
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from bae import LM, Dep, DepError, Graph, Map, Node
from bae.journal import RunEnded, SourceEnded, SourceStarted
from bae.resolver import resolve_dep, resolve_fields
from bae.testing import ScriptedLM
from bounded import BOUND, error_from, run, some_turns, value_from
from end_node import EndNode, leading_to
from naming import describe_value


def seven() -> int:
    return 7


async def eight() -> int:
    return 8


# What can be called


def record_calls(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return ("noted", fn(*args, **kwargs))

    return wrapper


def add(a: int, b: Annotated[int, Dep(seven)]) -> int:
    return a + b


def join(a: Annotated[int, Dep(seven)], /, *, b: Annotated[int, Dep(eight)]) -> str:
    return f"{a}{b}"


def scale(a: Annotated[int, Dep(seven)], factor: int = 3, *rest: int, **more: int) -> int:
    return a * factor + len(rest) + len(more)


@record_calls
def decorated(a: Annotated[int, Dep(seven)]) -> Any:
    return a + 1


@functools.lru_cache
def cached(a: Annotated[int, Dep(seven)]) -> int:
    return a + 1


@dataclasses.dataclass
class Settings:
    port: Annotated[int, Dep(seven)]
    host: str = "localhost"


class Fetch:
    def __call__(self) -> str:
        return "fetched"

    async def later(self, base: Annotated[int, Dep(seven)]) -> int:
        return base + 1

    @staticmethod
    def static() -> int:
        return 1

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (seven, 7),
        (eight, 8),
        (lambda: "value", "value"),
        (lambda: eight(), 8),
        (Fetch(), "fetched"),
        (Fetch().later, 8),
        (Fetch.static, 1),
        (Fetch.of_class, "Fetch"),
        (functools.partial(add, 1, b=2), 3),
        (functools.partial(add, 1), 8),
        (Settings, Settings(7)),
        (decorated, ("noted", 8)),
        (cached, 8),
        (join, "78"),
        (scale, 21),
    ],
    ids=describe_value,
)
async def test_every_kind_of_callable_is_called_with_its_inputs(fn: Any, value: Any):
    assert await value_from(fn) == value


@dataclasses.dataclass
class Unhashable:
    """Compares by value, so it has no hash."""

    calls: list[str]

    def __call__(self) -> int:
        self.calls.append("call")
        return len(self.calls)

    def method(self) -> int:
        self.calls.append("method")
        return len(self.calls)


async def test_every_method_of_an_unhashable_object_is_called_once():
    thing = Unhashable([])
    other = Unhashable([])

    class Holder(EndNode):
        a: Annotated[int, Dep(thing)]
        b: Annotated[int, Dep(thing)]
        c: Annotated[int, Dep(thing.method)]
        d: Annotated[int, Dep(thing.method)]
        e: Annotated[int, Dep(other)]

    await run(Holder())
    assert sorted(thing.calls) == ["call", "method"]
    assert other.calls == ["call"]


async def test_a_dependency_bound_by_a_partial_is_not_called():
    calls: list[str] = []

    def location() -> str:
        calls.append("location")
        return "somewhere"

    def weather(place: Annotated[str, Dep(location)]) -> str:
        return f"rain in {place}"

    fixed = functools.partial(functools.partial(weather), place="Oslo")
    assert await value_from(fixed) == "rain in Oslo"
    assert calls == []


async def test_a_parameter_annotated_lm_gets_the_lm_of_the_run():
    lm = ScriptedLM()

    async def below(model: LM) -> Any:
        return model

    def above(x: Annotated[Any, Dep(below)], writer: LM | None) -> Any:
        return (x, writer)

    assert [each.asked is lm.asked for each in await value_from(above, lm)] == [True, True]


# The order of things


async def test_two_sync_dependencies_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=BOUND)

    def left() -> int:
        return meet.wait()

    def right() -> int:
        return meet.wait()

    class Both(EndNode):
        a: Annotated[int, Dep(left)]
        b: Annotated[int, Dep(right)]

    result = (await run(Both())).result
    assert {result.a, result.b} == {0, 1}


async def test_a_deep_chain_continues_while_an_unrelated_sibling_waits():
    bottom_of_chain = asyncio.Event()

    async def slow() -> str:
        await bottom_of_chain.wait()  # a barrier per level would never let the chain get there
        return "slow"

    async def one() -> int:
        return 1

    async def two(x: Annotated[int, Dep(one)]) -> int:
        return x + 1

    async def three(x: Annotated[int, Dep(two)]) -> int:
        return x + 1

    async def four(x: Annotated[int, Dep(three)]) -> int:
        bottom_of_chain.set()
        return x + 1

    class Uneven(EndNode):
        waiting: Annotated[str, Dep(slow)]
        chain: Annotated[int, Dep(four)]

    result = (await run(Uneven())).result
    assert (result.waiting, result.chain) == ("slow", 4)


# Once a run


def make_counter(name: str = "counted") -> tuple[Callable[[], int], list[str]]:
    calls: list[str] = []

    def fn() -> int:
        calls.append(name)
        return len(calls)

    return fn, calls


async def test_concurrent_requests_share_one_call():
    calls: list[str] = []
    asked_by_both = asyncio.Event()

    async def base() -> int:
        calls.append("base")
        await asked_by_both.wait()
        return 5

    def one(x: Annotated[int, Dep(base)]) -> int:
        return x

    async def asks_last(x: Annotated[int, Dep(eight)]) -> int:
        return x

    class Inner(EndNode):
        x: Annotated[int, Dep(base)]

    class Pick(EndNode):
        item: int
        x: Annotated[int, Dep(base)]

    class Outer(EndNode):
        items: list[int]
        a: Annotated[int, Dep(base)]
        b: Annotated[int, Dep(one)]
        c: Annotated[Inner, Dep(Inner)]
        picks: Annotated[list[Pick], Map(Pick, over="items")]
        d: Annotated[int, Dep(asks_last)]

    async def let_go_when_all_have_asked() -> None:
        async for record in (stream := Graph(start=Outer).stream(Outer(items=[1, 2, 3]))):
            if isinstance(record, SourceEnded) and record.by == "asks_last":
                asked_by_both.set()
        result = stream.result.result
        assert [result.a, result.b, result.c.x, *(p.x for p in result.picks)] == [5] * 6

    async with asyncio.timeout(BOUND):
        await let_go_when_all_have_asked()
    assert calls == ["base"]


async def test_cache_false_calls_the_function_for_every_field():
    fresh, calls = make_counter()

    class Holder(EndNode):
        a: Annotated[int, Dep(fresh, cache=False)]
        b: Annotated[int, Dep(fresh, cache=False)]
        c: Annotated[int, Dep(fresh)]
        d: Annotated[int, Dep(fresh)]

    result = (await run(Holder())).result
    assert len(calls) == 3
    assert result.c == result.d
    assert len({result.a, result.b, result.c}) == 3


async def test_a_value_in_dep_cache_replaces_the_function_and_its_dependencies():
    below, calls = make_counter()

    def above(x: Annotated[int, Dep(below)]) -> int:
        calls.append("above")
        return x

    class Holder(EndNode):
        a: Annotated[int, Dep(above)]
        b: Annotated[int, Dep(above, cache=False)]

    result = (await run(Holder(), dep_cache={above: 42})).result
    assert (result.a, result.b) == (42, 42)
    assert await resolve_dep(above, {above: None}) is None  # a value like any other
    assert calls == []


async def test_dep_cache_holds_plain_values_by_function_after_a_run():
    async def ten(x: Annotated[int, Dep(seven)]) -> int:
        return x + 3

    cache: dict[Any, Any] = {}
    assert await resolve_dep(ten, cache) == 10
    assert cache == {seven: 7, ten: 10}

    class Holder(EndNode):
        a: Annotated[int, Dep(eight)]

    assert await resolve_fields(Holder, (), cache) == {"a": 8}
    assert cache == {seven: 7, ten: 10, eight: 8}

    of_run: dict[Any, Any] = {}
    await run(Holder(), dep_cache=of_run)
    assert of_run == {eight: 8}


# Threads and the loop


async def test_context_variables_are_carried_into_threads_and_inline_needs_no_thread():
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    def who() -> tuple[str, bool]:
        return user.get(), threading.get_ident() == here

    user.set("ada")
    here = threading.get_ident()
    assert await value_from(who) == ("ada", False)
    assert await value_from(who, inline=True) == ("ada", True)


async def test_stop_iteration_from_a_sync_function_is_an_error_and_not_an_endless_wait():
    def first_of_none() -> int:
        return next(iter(()))

    error = await error_from(DepError, value_from(first_of_none))
    assert isinstance(error.cause, RuntimeError)
    assert "StopIteration" in str(error.cause)


# Bounds


async def test_a_call_over_its_timeout_is_cancelled_and_has_its_own_code():
    cancelled: list[str] = []

    async def slow() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise
        return 1

    error = await error_from(DepError, value_from(slow, timeout=0.01))
    assert error.code == "bae-dep-timeout"
    assert isinstance(error.cause, TimeoutError)
    assert cancelled == ["slow"]
    assert str(error).splitlines()[0] == (
        "[bae-dep-timeout] Holder.value: slow took longer than its bound of 0.01 s"
    )
    assert "timeout=" in str(error.fix)


async def test_the_timeout_bounds_a_call_and_not_the_wait_for_its_inputs():
    landed = asyncio.Event()

    async def input_that_takes_long() -> int:
        await landed.wait()
        return 1

    async def quick(x: Annotated[int, Dep(input_that_takes_long)]) -> int:
        return x

    loop = asyncio.get_running_loop()
    loop.call_later(0.05, landed.set)
    assert await value_from(quick, timeout=0.01) == 1


async def test_a_timeout_error_raised_by_the_function_is_an_ordinary_failure():
    mine = TimeoutError("no answer from the service")

    async def service() -> int:
        raise mine

    error = await error_from(DepError, value_from(service, timeout=10))
    assert error.code == "bae-dep-failed"
    assert error.cause is mine


async def test_the_last_failure_is_the_cause_after_all_retries():
    calls: list[int] = []

    def broken() -> int:
        calls.append(len(calls))
        raise ConnectionError(f"failure {len(calls)}")

    error = await error_from(DepError, value_from(broken, retries=1))
    assert len(calls) == 2
    assert str(error.cause) == "failure 2"


# Defaults, given values and wrong values


def bad() -> int:
    raise ValueError("bad")


async def test_a_field_with_a_default_uses_it_if_its_dependency_fails(
    caplog: pytest.LogCaptureFixture,
):
    class Holder(EndNode):
        a: Annotated[int, Dep(bad)] = 3
        b: Annotated[int, Dep(seven)]

    result = await run(Holder())
    assert (result.result.a, result.result.b) == (3, 7)
    ended = {record.field: record.error for record in result.journal.of(SourceEnded)}
    assert isinstance(ended["a"], ValueError)
    (record,) = [record for record in caplog.records if record.name == "bae"]
    assert "Holder.a" in record.message
    assert "ValueError: bad" in record.message


async def test_a_failed_dependency_of_a_filled_node_is_called_only_once():
    calls: list[str] = []

    def fails() -> str:
        calls.append("dep")
        raise ValueError

    def fails_on(item: int) -> int:
        calls.append("map")
        raise ValueError

    def numbers() -> list[int]:
        return [1]

    class Filled(EndNode):
        items: Annotated[list[int], Dep(numbers)]
        a: Annotated[str, Dep(fails, cache=False)] = "default a"
        b: Annotated[list[int], Map(fails_on, over="items")] = [0]
        text: str

    lm = ScriptedLM([{"text": "hi"}])
    result = (await run(leading_to(Filled)(), lm)).result
    assert (result.a, result.b, result.text) == ("default a", [0], "hi")
    assert sorted(calls) == ["dep", "map"]
    assert lm.asked[0].resolved == {"items": [1]}


async def test_a_value_of_the_wrong_type_is_a_dep_error_with_the_field():
    def lies() -> int:
        return "not a number"  # type: ignore[return-value]

    class Holder(EndNode):
        amount: Annotated[int, Dep(lies)]

    class Filled(Holder):
        text: str

    for start, lm, name in [
        (Holder(), None, "Holder"),
        (leading_to(Filled)(), ScriptedLM([{"text": "unasked"}]), "Filled"),
    ]:
        error = await error_from(DepError, run(start, lm))
        assert error.code == "bae-dep-invalid"
        assert error.node_type is not None
        assert (error.node_type.__name__, error.field_name) == (name, "amount")
        assert f"{name}.amount" in error.message
        assert "lies" in error.message
        if lm is not None:
            assert lm.asked == []  # the LM is not asked with a wrong context


# Failures


async def test_a_failed_dep_cancels_its_siblings_before_the_error_is_raised():
    sibling_runs = asyncio.Event()
    seen: list[str] = []

    async def sibling() -> int:
        sibling_runs.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await some_turns()  # a clean-up that takes its time
            seen.append("sibling is gone")
            raise
        return 1

    async def above(x: Annotated[int, Dep(sibling)]) -> int:
        seen.append("called without its input")
        return x

    async def fails() -> int:
        await sibling_runs.wait()
        raise ValueError("first")

    class Holder(EndNode):
        a: Annotated[int, Dep(above)]
        b: Annotated[int, Dep(fails)]

    with pytest.raises(DepError):
        await run(Holder())
    assert seen == ["sibling is gone"]

    async def both(a: Annotated[int, Dep(above)], b: Annotated[int, Dep(fails)]) -> int:
        return a + b

    async def further_up(x: Annotated[int, Dep(both)]) -> int:
        return x

    for resolving in (resolve_fields(Holder), resolve_dep(further_up)):
        seen.clear()
        sibling_runs.clear()
        with pytest.raises(ValueError, match="first"):
            await resolving
        assert seen == ["sibling is gone"]


async def test_the_first_failure_wins_over_a_sibling_that_fails_while_it_is_cancelled():
    running = asyncio.Event()

    async def stubborn() -> int:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("second")

    async def fails() -> int:
        await running.wait()
        raise ValueError("first")

    class Holder(EndNode):
        a: Annotated[int, Dep(stubborn)]
        b: Annotated[int, Dep(fails)]

    error = await error_from(DepError, run(Holder()))
    assert str(error.cause) == "first"


async def test_resolve_dep_and_resolve_fields_raise_the_original_exception():
    raised = ValueError("mine")
    reason = KeyError("why")

    def fails() -> int:
        raise raised from reason

    def above(x: Annotated[int, Dep(fails)]) -> int:
        return x

    class Holder(EndNode):
        a: Annotated[int, Dep(above)]

    for resolving in (resolve_dep(above), resolve_fields(Holder)):
        error = await error_from(ValueError, resolving)
        assert error is raised
        assert raised.__cause__ is reason  # what the function chained is still chained


async def test_an_error_of_a_failed_dependency_has_its_path_cause_and_trace():
    raised = ValueError("no such place")

    def get_location() -> str:
        raise raised

    async def get_weather(place: Annotated[str, Dep(get_location)]) -> str:
        return place

    class AnticipateDay(EndNode):
        weather: Annotated[str, Dep(get_weather)]

    class WakeUp(Node):
        async def __call__(self) -> AnticipateDay:
            return AnticipateDay()

    error = await error_from(DepError, run(WakeUp()))
    assert error.cause is raised
    assert error.__cause__ is raised
    assert error.node_type is AnticipateDay
    assert error.field_name == "weather"
    assert error.code == "bae-dep-failed"
    assert error.path == "AnticipateDay.weather <- get_weather(place) <- get_location()"
    assert [type(node) for node in error.trace] == [WakeUp]
    assert error.run_id
    assert [r.outcome for r in error.journal.of(RunEnded)] == ["failed"]
    assert [(r.by, r.error) for r in error.journal.of(SourceEnded)] == [("get_location", raised)]
    assert str(error).splitlines() == [
        "[bae-dep-failed] AnticipateDay.weather: get_location raised ValueError",
        "  path:  AnticipateDay.weather <- get_weather(place) <- get_location()",
        "  cause: ValueError: no such place",
        "  try:   fix get_location, retry it with retries=…, or give the field a default",
    ]


async def test_the_path_of_a_repeated_failure_starts_at_the_later_field():
    class Second(EndNode):
        y: Annotated[int, Dep(bad)]

    class First(Node):
        x: Annotated[int, Dep(bad)] = 0

        async def __call__(self) -> Second:
            return Second()

    error = await error_from(DepError, run(First()))
    assert error.path == "Second.y <- bad()"
    assert error.message.startswith("Second.y: ")


async def test_a_failed_function_is_not_called_again_in_the_same_run():
    calls: list[int] = []

    def fails() -> int:
        calls.append(1)
        raise ValueError

    def above(x: Annotated[int, Dep(fails)]) -> int:
        return x

    class Second(EndNode):
        y: Annotated[int, Dep(fails)] = 2
        z: Annotated[int, Dep(above)] = 3

    class First(Node):
        x: Annotated[int, Dep(fails)] = 1

        async def __call__(self) -> Second:
            return Second()

    result = await run(First())
    assert (result.trace[0].x, result.trace[1].y, result.trace[1].z) == (1, 2, 3)
    assert calls == [1]


async def test_a_dependency_that_raises_cancelled_error_has_failed():
    async def give_up() -> int:
        raise asyncio.CancelledError("by myself")

    error = await error_from(DepError, value_from(give_up))
    cause = error.cause
    assert isinstance(cause, asyncio.CancelledError)
    assert cause.args == ("by myself",)
    assert [record.error for record in error.journal.of(SourceEnded)] == [cause]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_every_call_is_in_the_journal_with_its_value_and_time():
    async def ten(x: Annotated[int, Dep(seven)]) -> int:
        return x + 3

    class Holder(EndNode):
        a: Annotated[int, Dep(ten)]

    journal = (await run(Holder())).journal
    started = [(r.by, r.field, r.source) for r in journal.of(SourceStarted)]
    assert started == [("seven", "a", "dep"), ("ten", "a", "dep")]
    ended = journal.of(SourceEnded)
    assert [(r.by, r.value) for r in ended] == [("seven", 7), ("ten", 10)]
    assert all(r.seconds >= 0 and r.error is None for r in ended)


async def test_a_custom_marker_works_like_the_marker_it_extends():
    class Weather(Dep):
        """A name of the user's for a dependency."""

    async def find_city() -> str:
        return "Lisbon"

    async def find_weather(city: Annotated[str, Weather(find_city)]) -> str:
        return f"sun in {city}"

    class Day(Node):
        weather: Annotated[str, Weather(find_weather)]

        async def __call__(self) -> None: ...

    assert (await Graph(start=Day).arun(Day())).result == Day(weather="sun in Lisbon")
