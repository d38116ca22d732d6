"""What Dep and Recall resolved wins over what an LM puts into those fields, whatever LM it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pytest
from pydantic import Field, model_validator

from bae import Dep, Graph, Map, Node, Recall
from bae.journal import MemoryJournal
from bae.lm import Answer, Backend, Budget, Prompt, Retry
from end_node import EndNode
from toy_backend import FourMethods


class Begin(Node):
    topic: str

    async def __call__(self) -> Report: ...


def look_up() -> str:
    return "looked up"


def measure(text: str) -> int:
    return len(text)


class Report(Node):
    found: Annotated[str, Dep(look_up)]
    lines: list[str]
    lengths: Annotated[list[int], Map(measure, over="lines")]
    numbers: list[int] = Field(default_factory=list[int])

    async def __call__(self) -> Close: ...


class Close(EndNode):
    lines: Annotated[list[str], Recall()]
    word: str


class Inventing(FourMethods):
    """An LM that makes up all fields, those with a source too."""

    def __init__(self, invented: Mapping[type[Node], Mapping[str, Any]]) -> None:
        self.invented = invented

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        return target(**self.invented[target])


INVENTED: Mapping[type[Node], Mapping[str, Any]] = {
    Report: {"found": "invented", "lines": ["a", "bc"], "lengths": [7, 7]},
    Close: {"lines": ["invented"], "word": "end"},
}
GRAPH = Graph(start=Begin, end=Close)


def check(trace: Sequence[Node]) -> None:
    _, report, close = trace
    assert isinstance(report, Report)
    assert isinstance(close, Close)
    assert report.found == "looked up"
    assert report.lines == ["a", "bc"]
    assert report.lengths == [1, 2]
    assert close.lines == ["a", "bc"]
    assert close.word == "end"


async def test_an_lm_that_is_no_backend_cannot_overwrite_resolved_values():
    result = await GRAPH.arun(Begin(topic="t"), lm=Inventing(INVENTED))
    check(result.trace)


async def test_inside_policies_and_budgets_it_cannot_either():
    result = await GRAPH.arun(Begin(topic="t"), lm=Retry(Inventing(INVENTED)))
    check(result.trace)
    with Budget(calls=10):
        result = await GRAPH.arun(Begin(topic="t"), lm=Inventing(INVENTED))
    check(result.trace)


async def test_a_backend_with_a_fill_of_its_own_cannot_either():
    class Overriding(Inventing, Backend):
        async def answer(self, prompt: Prompt) -> Answer:
            raise AssertionError

    result = await GRAPH.arun(Begin(topic="t"), lm=Overriding(INVENTED))
    check(result.trace)


async def test_the_journal_and_the_node_agree():
    journal = MemoryJournal()
    lm = Inventing({Report: INVENTED[Report], Close: {"lines": ["invented"], "word": 7}})
    with pytest.raises(Exception, match="word"):
        await GRAPH.arun(Begin(topic="t"), lm=lm, journal=journal, run_id="r")
    result = await GRAPH.resume("r", lm=Inventing(INVENTED), journal=journal)
    check(result.trace)


async def test_a_node_that_agrees_with_what_was_resolved_is_left_alone():
    built: list[Node] = []

    class Careful(Inventing):
        async def fill(
            self,
            target: type[Any],
            resolved: Mapping[str, Any],
            instruction: str,
            source: Node | None = None,
        ) -> Any:
            node = target(**{**self.invented[target], **resolved})
            built.append(node)
            return node

    result = await GRAPH.arun(Begin(topic="t"), lm=Careful({**INVENTED, Report: {"lines": ["a"]}}))
    assert result.trace[-1] is built[-1]


async def test_the_node_is_validated_as_a_whole_with_the_resolved_value():
    class First(Node):
        async def __call__(self) -> Pair: ...

    class Pair(EndNode):
        low: Annotated[int, Dep(lambda: 5)]
        high: int

        @model_validator(mode="after")
        def in_order(self) -> Pair:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    graph = Graph(start=First, end=Pair)
    lm = Inventing({Pair: {"low": 1, "high": 3}})
    with pytest.raises(Exception, match="low is above high"):
        await graph.arun(First(), lm=lm)
    result = await graph.arun(First(), lm=Inventing({Pair: {"low": 1, "high": 8}}))
    assert (result.trace[-1].low, result.trace[-1].high) == (5, 8)  # pyright: ignore[reportAttributeAccessIssue]
