"""The dataflow against random dependency graphs, delays, failures and cancellations: every function
runs at most once and never before its inputs, nothing outlives the run, opened resources are closed
in reverse, and the result equals a sequential evaluation."""

import asyncio
import contextlib
import inspect
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import create_model

from bae import Dep, DepError, Graph, Map, Node
from bae.journal import ItemEnded, RunJournal, SourceEnded
from bae.testing import ScriptedLM
from bounded import BOUND
from end_node import EndNode, leading_to

ON_LOOP = ("async", "inline", "async_generator", "inline_generator", "async_context")
THREADED = ("thread", "thread_generator")
OPENS = ("async_generator", "inline_generator", "async_context", "thread_generator")

many = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Injected(Exception):
    """A failure that an example asked for; its argument is the number of the function."""


# The examples


@dataclass
class Function:
    """One function of an example, by number: its inputs and its behavior."""

    number: int
    inputs: list[int]
    kind: str
    delay: int
    clean_up: int
    fails: bool
    close_fails: bool
    positional: int
    """How many of its parameters are positional-only."""


@dataclass
class Step:
    """One node: its fields as (function, has a default), and how long the LM takes to fill it."""

    fields: list[tuple[int, bool]]
    filling: int


@dataclass
class Example:
    functions: list[Function]
    steps: list[Step]
    cancels: list[int]
    """After how many turns of the loop the run is cancelled, each counted from the one before."""
    prefetch: bool
    eager: bool

    def needed_by(self, number: int) -> set[int]:
        """A function and everything below it."""
        below = {number}
        for input_ in self.functions[number].inputs:
            below |= self.needed_by(input_)
        return below

    def value(self, number: int) -> Any:
        """The result of a function, computed sequentially."""
        return (number, *(self.value(input_) for input_ in self.functions[number].inputs))

    def failing(self, number: int) -> set[int]:
        return {needed for needed in self.needed_by(number) if self.functions[needed].fails}

    def cut_short(self) -> set[int]:
        """The functions whose call may be cancelled though the run continues: a failure beside them
        leaves a field its default. Such a call never finished, so a later step may repeat it."""
        return {
            needed
            for step in self.steps
            for number, defaulted in step.fields
            if defaulted and self.failing(number)
            for needed in self.needed_by(number)
        }


turns = st.integers(0, 6)


@st.composite
def functions(draw: st.DrawFn) -> list[Function]:
    made: list[Function] = []
    for number in range(draw(st.integers(1, 8))):
        inputs = (
            draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        )
        kind = draw(st.sampled_from(ON_LOOP + THREADED))
        made.append(
            Function(
                number,
                inputs,
                kind,
                delay=draw(turns),
                clean_up=draw(st.integers(0, 3)),
                fails=draw(st.integers(0, 9)) == 0,
                close_fails=kind in OPENS and draw(st.integers(0, 9)) == 0,
                positional=draw(st.integers(0, len(inputs))),
            )
        )
    return made


@st.composite
def examples(draw: st.DrawFn, cancelled: bool = False) -> Example:
    made = draw(functions())
    numbers = st.integers(0, len(made) - 1)
    steps = [
        Step(
            draw(st.lists(st.tuples(numbers, st.booleans()), max_size=4)),
            draw(turns),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    cancels = draw(st.lists(st.integers(0, 40), min_size=1, max_size=3)) if cancelled else []
    eager = sys.version_info >= (3, 12) and draw(st.booleans())
    return Example(made, steps, cancels, draw(st.booleans()), eager)


# The functions of an example, and what they see


async def let_others_run(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@dataclass
class Seen:
    """What happened while an example ran."""

    called: list[int] = field(default_factory=list[int])
    running: set[int] = field(default_factory=set[int])
    landed: set[int] = field(default_factory=set[int])
    opened: list[int] = field(default_factory=list[int])
    closed: list[int] = field(default_factory=list[int])
    wrong: list[str] = field(default_factory=list[str])
    """Promises seen broken; a function cannot raise them, since it may be meant to fail."""


def build(example: Example, seen: Seen) -> list[Any]:
    """The dependencies of an example, by number."""
    built: list[Any] = []
    for function in example.functions:
        built.append(_build_one(example, function, built, seen))
    return built


def marker(example: Example, number: int, built: list[Any]) -> Dep:
    return Dep(built[number], inline="inline" in example.functions[number].kind)


def _build_one(example: Example, function: Function, built: list[Any], seen: Seen) -> Any:
    number = function.number

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = signature.bind(*args, **kwargs).arguments
        for input_ in function.inputs:
            if input_ not in seen.landed:
                seen.wrong.append(f"{number} began before its input {input_} had landed")
            if given.get(f"p{input_}") != example.value(input_):
                seen.wrong.append(f"{number} was given {given.get(f'p{input_}')!r} for {input_}")
        seen.called.append(number)
        seen.running.add(number)

    def end() -> Any:
        if function.fails:
            raise Injected(number)
        seen.landed.add(number)
        return example.value(number)

    def close() -> None:
        seen.closed.append(number)
        if function.close_fails:
            raise Injected(number)

    async def on_loop(*args: Any, **kwargs: Any) -> Any:
        begin(args, kwargs)
        try:
            try:
                await let_others_run(function.delay)
                return end()
            finally:
                await let_others_run(function.clean_up)  # which may be cancelled in its turn
        finally:
            seen.running.discard(number)

    def sync(*args: Any, **kwargs: Any) -> Any:
        begin(args, kwargs)
        try:
            for _ in range(function.delay):
                time.sleep(0)
            return end()
        finally:
            seen.running.discard(number)

    async def async_generator(*args: Any, **kwargs: Any) -> Any:
        value = await on_loop(*args, **kwargs)
        seen.opened.append(number)
        try:
            yield value
        finally:
            try:
                await let_others_run(function.clean_up)
            finally:
                close()

    def generator(*args: Any, **kwargs: Any) -> Any:
        value = sync(*args, **kwargs)
        seen.opened.append(number)
        try:
            yield value
        finally:
            close()

    made: dict[str, Callable[..., Any]] = {
        "async": on_loop,
        "inline": sync,
        "thread": sync,
        "async_generator": async_generator,
        "async_context": async_generator,
        "inline_generator": generator,
        "thread_generator": generator,
    }
    fn: Any = made[function.kind]
    parameters = [
        inspect.Parameter(
            f"p{each}",
            inspect.Parameter.POSITIONAL_ONLY
            if place < function.positional
            else inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[Any, marker(example, each, built)],
        )
        for place, each in enumerate(function.inputs)
    ]
    signature = inspect.Signature(parameters, return_annotation=Any)
    fn.__signature__ = signature
    fn.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": Any}
    fn.__name__ = fn.__qualname__ = f"f{number}"
    if function.kind == "async_context":
        return contextlib.asynccontextmanager(fn)
    return fn


# The graph of an example: nodes that the LM fills, one after the other


def build_graph(example: Example, built: list[Any]) -> type[Node]:
    following: Any = None
    for index in range(len(example.steps) - 1, -1, -1):
        fields: dict[str, Any] = {}
        for place, (number, defaulted) in enumerate(example.steps[index].fields):
            annotation = Annotated[Any, marker(example, number, built)]
            fields[f"v{place}"] = (annotation, "default" if defaulted else ...)
        base = leading_to(following)
        following = create_model(f"Step{index}", __base__=base, **fields, text=(str, ...))
    return leading_to(following)


class SlowLM(ScriptedLM):
    """Fills every node after its own number of turns of the loop."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.example = example
        self.filling = 0

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        self.filling += 1
        try:
            step = int(target.__name__.removeprefix("Step"))
            await let_others_run(self.example.steps[step].filling)
            return target(**resolved, text="")
        finally:
            self.filling -= 1


# Running it, and looking at the very moment it is over


@dataclass
class Outcome:
    result: Any = None
    error: BaseException | None = None
    cancelled: bool = False
    """Whether a cancellation got to the run before it was over."""
    tasks_left: int = 0
    running_left: set[int] = field(default_factory=set[int])
    filling_left: int = 0
    unheard: list[Any] = field(default_factory=list[Any])


async def observe(
    example: Example, running: Coroutine[Any, Any, Any], seen: Seen, lm: SlowLM | None = None
) -> Outcome:
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: outcome.unheard.append(context))
    around = asyncio.all_tasks()

    async def watched() -> None:
        this = asyncio.current_task()
        assert this is not None
        try:
            outcome.result = await running
        except BaseException as error:
            outcome.error = error
        outcome.tasks_left = len(asyncio.all_tasks() - around - {this})
        outcome.running_left = set(seen.running)
        if outcome.error or any(function.fails for function in example.functions):
            # A thread cannot be stopped: its call goes on, with nobody waiting for it.
            outcome.running_left -= {f.number for f in example.functions if f.kind == "thread"}
        outcome.filling_left = lm.filling if lm is not None else 0

    async with asyncio.timeout(BOUND):
        task = asyncio.create_task(watched())
        if example.eager and sys.version_info >= (3, 12):
            loop.set_task_factory(asyncio.eager_task_factory)
        await let_others_run(1)  # a task that is cancelled before it begins runs nothing at all
        for turn in example.cancels:
            await let_others_run(turn)
            outcome.cancelled |= task.cancel()
        await asyncio.wait([task])
    task.result()
    return outcome


def check_nothing_outlived_the_run(example: Example, seen: Seen, outcome: Outcome) -> None:
    assert seen.wrong == []
    assert outcome.tasks_left == 0
    assert outcome.running_left == set()
    assert outcome.filling_left == 0
    assert outcome.unheard == []
    twice = {number for number in seen.called if seen.called.count(number) > 1}
    assert twice <= example.cut_short()
    # Everything that was opened is closed, once, and before what it stands on.
    assert sorted(seen.closed) == sorted(seen.opened)
    for place, number in enumerate(seen.closed):
        assert not set(seen.closed[:place]) & (example.needed_by(number) - {number})
    on_loop = [n for n in seen.opened if example.functions[n].kind in ON_LOOP]
    assert [n for n in seen.closed if example.functions[n].kind in ON_LOOP] == on_loop[::-1]


def run_example(example: Example) -> tuple[Outcome, Seen]:
    seen = Seen()
    built = build(example, seen)
    start = build_graph(example, built)
    lm = SlowLM(example)

    async def main() -> Outcome:
        running = Graph(start=start).arun(start(), lm, prefetch=example.prefetch)
        return await observe(example, running, seen, lm)

    outcome = asyncio.run(main())
    check_nothing_outlived_the_run(example, seen, outcome)
    return outcome, seen


def check_values(example: Example, outcome: Outcome) -> None:
    assert outcome.error is None
    for step, node in zip(example.steps, outcome.result.trace[1:], strict=True):
        for place, (number, _) in enumerate(step.fields):
            expected = "default" if example.failing(number) else example.value(number)
            assert getattr(node, f"v{place}") == expected


def check_each_landed_once(journal: RunJournal) -> None:
    landed = [record.by for record in journal.of(SourceEnded) if record.error is None]
    assert len(landed) == len(set(landed))


@many
@given(examples())
def test_a_run_with_failures_has_the_sequential_result_or_fails_by_an_injected_failure(
    example: Example,
):
    outcome, seen = run_example(example)
    # The first step with a required field that stands on a failure is where the run must fail.
    for index, step in enumerate(example.steps):
        required = [number for number, defaulted in step.fields if not defaulted]
        causes = {cause for number in required for cause in example.failing(number)}
        if causes:
            event("a dependency failed")
            error = outcome.error
            assert isinstance(error, DepError)
            assert error.code == "bae-dep-failed"
            assert isinstance(error.cause, Injected)
            assert error.cause.args[0] in causes
            assert error.node_type is not None
            assert error.node_type.__name__ == f"Step{index}"
            check_each_landed_once(error.journal)
            named = int(error.field_name.removeprefix("v"))
            assert error.cause.args[0] in example.failing(step.fields[named][0])
            assert len(error.trace) == index + 1
            return
    closing_failed = {n for n in seen.opened if example.functions[n].close_fails}
    if closing_failed:
        event("closing failed")
        assert isinstance(outcome.error, DepError)
        assert outcome.error.code == "bae-dep-close"
        assert isinstance(outcome.error.cause, Injected)
        assert outcome.error.cause.args[0] in closing_failed
        return
    event("went well")
    check_values(example, outcome)
    check_each_landed_once(outcome.result.journal)
    asked = {
        n for step in example.steps for number, _ in step.fields for n in example.needed_by(number)
    }
    assert set(seen.called) <= asked
    if any(function.fails for function in example.functions):
        return
    assert set(seen.called) == asked
    # Those opened in threads are closed in the reverse of the order in which their values landed.
    landed = [int(r.by[1:]) for r in outcome.result.journal.of(SourceEnded)]
    threaded = [n for n in seen.closed if example.functions[n].kind in THREADED]
    assert threaded == [n for n in landed[::-1] if n in threaded]


@many
@given(examples(cancelled=True))
def test_a_run_cancelled_at_any_point_leaves_no_tasks_or_open_resources(example: Example):
    outcome, _ = run_example(example)
    event(f"cancelled: {outcome.cancelled}")
    if outcome.cancelled:
        assert isinstance(outcome.error, asyncio.CancelledError)
    else:
        assert not isinstance(outcome.error, asyncio.CancelledError)


# Maps


@dataclass
class Mapping:
    delays: list[int]
    fails: set[int]
    limit: int
    kind: str
    cancels: list[int]


@st.composite
def mappings(draw: st.DrawFn) -> Mapping:
    delays = draw(st.lists(turns, max_size=20))
    return Mapping(
        delays,
        draw(st.sets(st.integers(0, 19), max_size=2)) & set(range(len(delays))),
        draw(st.integers(1, 5)),
        draw(st.sampled_from(["async", "inline", "thread", "graph"])),
        draw(st.lists(st.integers(0, 20), max_size=2)),
    )


@many
@given(mappings())
def test_a_map_keeps_order_and_limit_or_names_the_failed_item(mapping: Mapping):
    called: list[int] = []
    running: set[int] = set()
    most = 0

    def begin(item: int) -> None:
        nonlocal most
        called.append(item)
        running.add(item)
        most = max(most, len(running))

    def end(item: int) -> int:
        running.discard(item)
        if item in mapping.fails:
            raise Injected(item)
        return item * 10

    async def on_loop(item: int) -> int:
        begin(item)
        try:
            await let_others_run(mapping.delays[item])
        except asyncio.CancelledError:
            running.discard(item)
            raise
        return end(item)

    def sync(item: int) -> int:
        begin(item)
        return end(item)

    class Each(Node):
        item: int
        result: int = 0

        async def __call__(self) -> None:
            self.result = await on_loop(self.item)

    fn: Any = {"async": on_loop, "graph": Each}.get(mapping.kind, sync)

    class Holder(EndNode):
        items: list[int]
        mapped: Annotated[
            list[Any],
            Map(fn, over="items", limit=mapping.limit, inline=mapping.kind == "inline"),
        ]

    example = Example([], [], mapping.cancels, prefetch=True, eager=False)
    seen = Seen()

    async def main() -> Outcome:
        start = Holder(items=[*range(len(mapping.delays))])
        return await observe(example, Graph(start=Holder).arun(start), seen)

    outcome = asyncio.run(main())
    assert (outcome.tasks_left, outcome.unheard) == (0, [])
    assert len(called) == len(set(called))
    if mapping.kind != "thread" or outcome.error is None:
        assert running == set()
        assert most <= mapping.limit
    if outcome.cancelled:
        assert isinstance(outcome.error, asyncio.CancelledError)
    elif mapping.fails:
        error = outcome.error
        assert isinstance(error, DepError)
        cause: Any = error.cause if mapping.kind != "graph" else error.cause.cause  # type: ignore[union-attr]
        assert isinstance(cause, Injected)
        assert f"Holder.mapped[{cause.args[0]}]" in error.message
    else:
        results = outcome.result.result.mapped
        if mapping.kind == "graph":
            results = [result.result for result in results]
        assert results == [item * 10 for item in range(len(mapping.delays))]
        assert sorted(called) == [*range(len(mapping.delays))]
        ended = outcome.result.journal.of(ItemEnded)
        assert sorted(record.index for record in ended) == sorted(called)
