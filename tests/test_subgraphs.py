"""What a graph as a dependency promises: a run inside the run, with the same LLM, limits, answers
and dependencies. Its nodes are nested in the trace, and its errors name their path."""

import asyncio
from typing import Annotated, Any

from bae import Dep, DepError, Graph, LimitError, Node, ProofError, Recall
from bae.journal import RunEnded, RunStarted, SourceEnded, SourceStarted, StepStarted
from bae.resolver import resolve_dep, resolve_fields
from bae.testing import ScriptedLM
from bounded import error_from, run, some_turns, value_from
from end_node import EndNode, leading_to


def names(nodes: list[Any]) -> list[str]:
    return [type(node).__name__ for node in nodes]


class Answer(EndNode):
    text: str


class Ask(Node):
    async def __call__(self) -> Answer:
        return Answer(text="inner")


# The value


async def test_dep_of_a_node_class_runs_the_graph_that_starts_there():
    def shout(answer: Annotated[Answer, Dep(Ask)]) -> str:
        return answer.text.upper()

    assert (await value_from(Ask)).text == "inner"
    assert await value_from(shout) == "INNER"


async def test_the_llm_chooses_and_fills_in_a_subgraph():
    class Draft(EndNode):
        text: str

    class Outer(EndNode):
        thought: Annotated[Draft | Answer, Dep(leading_to(Draft, Answer))]

    lm = ScriptedLM([Answer, {"text": "hm"}])
    assert (await run(Outer(), lm)).result.thought == Answer(text="hm")
    lm.assert_complete()


async def test_problems_of_a_subgraph_stop_the_run_before_its_start():
    calls: list[str] = []

    def called() -> str:
        calls.append("called")
        return "x"

    class Inner(EndNode):
        missing: Annotated[int, Recall()]

    class Outer(EndNode):
        first: Annotated[str, Dep(called)]
        inner: Annotated[Inner, Dep(Inner)]

    error = await error_from(ProofError, run(Outer()))
    assert any(problem.place == "Inner.missing" for problem in error.problems)
    assert calls == []


# Nesting


class Innermost(EndNode): ...


class Middle(Node):
    below: Annotated[Innermost, Dep(Innermost)]

    async def __call__(self) -> "MiddleEnd":
        return MiddleEnd()


class MiddleEnd(EndNode): ...


class Top(EndNode):
    middle: Annotated[MiddleEnd, Dep(Middle)]


class First(Node):
    async def __call__(self) -> Top:
        return Top()


async def test_subgraphs_and_their_records_are_nested_by_place():
    result = await run(First())
    assert {path: names(nodes) for path, nodes in result.nested.items()} == {
        "1:Top.middle": ["Middle", "MiddleEnd"],
        "1:Top.middle/0:Middle.below": ["Innermost"],
    }
    assert names(result.trace) == ["First", "Top"]
    journal = result.journal
    started = [(r.path, r.graph) for r in journal.of(RunStarted)]
    assert started == [
        ("", "First"),
        ("1:Top.middle", "Middle"),
        ("1:Top.middle/0:Middle.below", "Innermost"),
    ]
    assert len({r.run_id for r in journal.of(RunStarted)}) == 1
    assert [r.path for r in journal.of(RunEnded)] == [path for path, _ in started[::-1]]
    steps = [(r.path, r.step, type(r.node).__name__) for r in journal.of(StepStarted)]
    assert steps == [
        ("", 0, "First"),
        ("1:Top.middle/0:Middle.below", 0, "Innermost"),
        ("1:Top.middle", 0, "Middle"),
        ("1:Top.middle", 1, "MiddleEnd"),
        ("", 1, "Top"),
    ]
    sources = [(r.path, r.step, r.by) for r in journal.of(SourceStarted)]
    assert sources == [("", 1, "Middle"), ("1:Top.middle", 0, "Innermost")]
    assert [type(r.value) for r in journal.of(SourceEnded)] == [Innermost, MiddleEnd]


# One run


async def test_a_subgraph_runs_once_for_all_fields_that_need_it():
    calls: list[str] = []

    class Counted(Node):
        async def __call__(self) -> None:
            calls.append("counted")

    graph = Graph(start=Counted)

    def uses(x: Annotated[Counted, Dep(Counted)]) -> int:
        return 1

    class Outer(EndNode):
        a: Annotated[Counted, Dep(Counted)]
        b: Annotated[Counted, Dep(Counted)]
        c: Annotated[int, Dep(uses)]
        d: Annotated[Counted, Dep(graph)]

    result = await run(Outer())
    assert result.result.a is result.result.b
    assert len(calls) == 2  # the class, and the graph that is another object


async def test_a_subgraph_in_dep_cache_is_not_run():
    class Outer(EndNode):
        answer: Annotated[Answer, Dep(Ask)]

    ready = Answer(text="ready")
    result = await run(Outer(), dep_cache={Ask: ready})
    assert result.result.answer is ready
    assert result.nested == {}


async def test_nodes_of_a_subgraph_are_not_in_the_outer_trace():
    class Said(EndNode):
        text: str = "inside"

    class Last(EndNode):
        text: Annotated[str, Recall()]

    class Start(Node):
        text: str
        said: Annotated[Said, Dep(Said)]

        async def __call__(self) -> Last:
            return Last()

    assert (await run(Start(text="outside"))).result.text == "outside"


async def test_max_iters_bounds_every_subgraph_too():
    class Loop(Node):
        count: int = 0

        async def __call__(self) -> "Loop | None":
            return Loop(count=self.count + 1)

    class Outer(EndNode):
        loop: Annotated[Loop, Dep(Loop)]

    error = await error_from(DepError, run(Outer(), max_iters=5))
    cause = error.cause
    assert isinstance(cause, LimitError)
    assert (cause.limit, cause.bound) == ("max_iters", 5)
    assert names(cause.trace) == ["Loop"] * 5


async def test_a_subgraph_over_its_timeout_is_a_timeout_of_the_field():
    class Slow(Node):
        async def __call__(self) -> None:
            await asyncio.Event().wait()

    error = await error_from(DepError, value_from(Slow, timeout=0.01))
    assert error.code == "bae-dep-timeout"
    assert "Slow took longer than its bound of 0.01 s" in str(error)


# Failures


async def test_an_error_in_a_subgraph_has_its_path_and_both_traces():
    raised = ValueError("broken pipe")

    def fetch() -> str:
        raise raised

    class Inner(Node):
        async def __call__(self) -> "Fetches":
            return Fetches()

    class Fetches(EndNode):
        page: Annotated[str, Dep(fetch)]

    class Outer(EndNode):
        inner: Annotated[Fetches, Dep(Inner)]

    class Start(Node):
        async def __call__(self) -> Outer:
            return Outer()

    error = await error_from(DepError, run(Start()))
    assert (error.node_type, error.field_name) == (Outer, "inner")
    assert error.path == "Outer.inner <- Inner(): Fetches.page <- fetch()"
    assert names(error.trace) == ["Start"]
    inside = error.cause
    assert isinstance(inside, DepError)
    assert (inside.node_type, inside.field_name) == (Fetches, "page")
    assert inside.path == "Fetches.page <- fetch()"
    assert inside.cause is raised
    assert names(inside.trace) == ["Inner"]
    assert "Fetches.page: fetch raised ValueError" in str(error)
    assert [(r.path, r.outcome) for r in error.journal.of(RunEnded)] == [
        ("1:Outer.inner", "failed"),
        ("", "failed"),
    ]


async def test_a_failed_sibling_cancels_a_whole_subgraph_before_the_error_is_raised():
    running = asyncio.Event()
    seen: list[str] = []

    async def waits() -> int:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await some_turns()
            seen.append("gone")
        return 1

    class Innermost(EndNode):
        value: Annotated[int, Dep(waits)]

    class Inner(EndNode):
        value: Annotated[Innermost, Dep(Innermost)]

    async def fails() -> int:
        await running.wait()
        raise ValueError

    class Outer(EndNode):
        inner: Annotated[Inner, Dep(Inner)]
        value: Annotated[int, Dep(fails)]

    error = await error_from(DepError, run(Outer()))
    assert error.field_name == "value"
    assert seen == ["gone"]
    outcomes = [(r.path, r.outcome) for r in error.journal.of(RunEnded)]
    assert outcomes == [
        ("0:Outer.inner/0:Inner.value", "cancelled"),
        ("0:Outer.inner", "cancelled"),
        ("", "failed"),
    ]


async def test_a_dependency_shared_with_a_cancelled_subgraph_continues_for_other_callers():
    shared_runs, inner_failed = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def shared() -> int:
        calls.append("shared")
        shared_runs.set()
        await inner_failed.wait()
        await some_turns()
        return 1

    async def fails() -> int:
        await shared_runs.wait()
        inner_failed.set()
        raise ValueError

    class Inner(EndNode):
        value: Annotated[int, Dep(shared)]
        bad: Annotated[int, Dep(fails)]

    class Outer(EndNode):
        inner: Annotated[Inner | None, Dep(Inner)] = None
        value: Annotated[int, Dep(shared)]

    result = (await run(Outer())).result
    assert (result.inner, result.value) == (None, 1)
    assert calls == ["shared"]


async def test_a_dependency_cancelled_with_a_subgraph_is_called_again_for_a_later_caller():
    calls: list[str] = []
    running = asyncio.Event()

    async def shared() -> int:
        calls.append("shared")
        running.set()
        if len(calls) == 1:
            await asyncio.Event().wait()
        return len(calls)

    async def fails() -> int:
        await running.wait()
        raise ValueError

    class Inner(EndNode):
        value: Annotated[int, Dep(shared)]
        bad: Annotated[int, Dep(fails)]

    class Last(EndNode):
        value: Annotated[int, Dep(shared)]

    class Outer(Node):
        inner: Annotated[Inner | None, Dep(Inner)] = None

        async def __call__(self) -> Last:
            return Last()

    assert (await run(Outer())).result.value == 2


# Outside a run


async def test_resolve_dep_and_resolve_fields_run_graphs_too():
    class Outer(EndNode):
        answer: Annotated[Answer, Dep(Ask)]

    assert (await resolve_dep(Ask)).text == "inner"
    assert (await resolve_dep(Graph(start=Ask))).text == "inner"
    assert (await resolve_fields(Outer))["answer"].text == "inner"
