"""Mistakes that people make, each with the way out in its message."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from bae import (
    LM,
    BaeError,
    BaeLMError,
    Dep,
    Gate,
    GateError,
    Graph,
    LimitError,
    Map,
    Node,
    NodeError,
    Recall,
)
from bae.testing import ScriptedLM
from bounded import error_from
from end_node import EndNode


def get_number() -> int:
    return 1


class Ask(Node):
    text: str = ""

    async def __call__(self) -> Answer: ...


class Answer(EndNode):
    number: int


async def test_a_body_without_an_await_can_be_stopped():
    class Spin(Node):
        count: int

        async def __call__(self) -> Spin:
            return Spin(count=self.count + 1)

    async with asyncio.timeout(30):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Graph(start=Spin).arun(Spin(count=0), max_iters=0)


async def test_a_key_of_dep_cache_that_is_not_a_dependency_is_refused():
    with pytest.raises(BaeError, match="key 'get_number'") as caught:
        await Graph(start=Answer).arun(Answer(number=1), dep_cache={"get_number": 1})
    assert caught.value.code == "bae-dep-cache-key"


async def test_a_sync_answerer_is_refused_with_a_fix():
    class Start(EndNode):
        fine: Annotated[bool, Gate("fine?")]

    def answer(gate: Any) -> bool:
        return True

    with pytest.raises(GateError, match="async def answer"):
        await Graph(start=Start).arun(Start(), answer=answer)  # type: ignore[arg-type]


async def test_the_error_for_an_lm_with_wrong_methods_names_the_lm():
    class Short(ScriptedLM):
        async def fill(self, target: Any):  # type: ignore[override]
            return target(number=1)

    with pytest.raises(BaeLMError, match="Short raised TypeError while filling Answer"):
        await Graph(start=Ask).arun(Ask(), Short())


async def test_a_plain_field_that_a_body_omits_is_reported():
    class Start(Node):
        async def __call__(self, lm: LM) -> Answer:
            return Answer()  # type: ignore[call-arg]

    error = await error_from(NodeError, Graph(start=Start).arun(Start(), ScriptedLM()))
    assert "cause: ValidationError of Answer: number: Field required" in str(error)
    assert "return await lm.make(self, Answer)" in str(error)


@pytest.mark.parametrize(
    "options",
    [{"timeout": "5"}, {"timeout": 0}, {"retries": None}, {"retries": -1}],
    ids=str,
)
def test_options_of_a_source_are_checked_at_construction(options: Any):
    for marker in (lambda: Dep(get_number, **options), lambda: Map(get_number, "x", **options)):
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            marker()
    with pytest.raises(ValueError, match="limit"):
        Map(get_number, "x", limit=None)  # type: ignore[arg-type]


def test_recall_from_a_node_outside_the_graph_is_reported():
    class Start(Node):
        async def __call__(self) -> Later:
            return Later()

    class Later(EndNode):
        number: Annotated[int, Recall(Answer)]

    (problem,) = Graph(start=Start).validate()
    assert problem.message.endswith("; Answer cannot be reached in this graph")


def test_a_map_declared_as_its_item_is_reported_as_a_list():
    def double(item: int) -> int:
        return 2 * item

    class Start(EndNode):
        items: list[int]
        doubled: Annotated[int, Map(double, over="items")]

    (problem,) = Graph(start=Start).validate()
    assert problem.message == "is int, but Map makes a list of what double returns"
    assert problem.fix == "declare the field list[int]"


def test_a_redefined_class_is_distinguished_from_the_older_class():
    older = type("Answer", (Answer,), {"__module__": __name__})
    (first, *_) = Graph(start=Ask, end=older).validate()
    assert first.code == "bae-end-unreachable"
    assert "another class of that name" in first.message
    assert "they still refer to the older class" in first.fix


def test_a_graph_of_another_value_than_a_node_class_is_refused_with_a_fix():
    class Text(BaseModel):
        words: str = ""

    any_graph: Any = Graph
    with pytest.raises(TypeError, match=r"Text is a BaseModel; make it a Node: class Text\(Node\)"):
        any_graph(start=Text)
    with pytest.raises(TypeError, match=r"give the class, Ask; a run takes the node"):
        any_graph(start=Ask())
    with pytest.raises(TypeError, match="give several ends as a tuple"):
        any_graph(start=Ask, end=[Answer])


def test_a_dependency_that_was_called_is_refused_with_a_fix():
    markers: list[Any] = [Dep, lambda fn: Map(fn, over="x")]

    async def g1() -> str:
        return ""

    def g2() -> Iterator[str]:
        yield ""

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for marker, fn in itertools.product(markers, (g1, g2)):
            with pytest.raises(TypeError, match=rf"give the function itself: \w+\({fn.__name__}\)"):
                marker(fn())
        gc.collect()
    assert caught == []


class One(Node):
    async def __call__(self) -> Two:
        return Two()


class Two(Node):
    async def __call__(self) -> Three:
        return Three()


class Three(EndNode): ...


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (1, "exceeded 1 iterations: Two would be one more (One -> Two)"),
        (2, "exceeded 2 iterations: Three would be one more (One -> Two -> Three)"),
    ],
)
async def test_an_error_for_a_low_limit_mentions_a_loop_only_if_there_is_a_loop(
    bound: int, said: str
):
    error = await error_from(LimitError, Graph(start=One).arun(One(), max_iters=bound))
    assert error.message == said
    assert error.fix == (f"raise the bound with max_iters={2 * bound} or max_iters=0 for none")


async def test_a_value_that_is_not_a_journal_is_refused_with_a_fix():
    wrong: list[tuple[Any, str]] = [
        ("runs.db", r"SQLiteJournal\(.runs\.db.\)"),
        (3, "is no Journal"),
    ]
    for journal, message in wrong:
        with pytest.raises(TypeError, match=message):
            await Graph(start=Answer).arun(Answer(number=1), journal=journal)
