"""What Dep and Recall resolved wins over what an LM puts into those fields, whatever LM it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pytest
from pydantic import Field, model_validator

from bae import Dep, Graph, Map, Node, Recall
from bae.journal import MemoryJournal
from bae.lm import Answer, Backend, Budget, Prompt, Retry
from bounded import run
from end_node import EndNode, leading_to
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


class Overriding(Inventing, Backend):
    """A backend with a `fill` of its own."""

    async def answer(self, prompt: Prompt) -> Answer:
        raise AssertionError


@pytest.mark.parametrize(
    "lm",
    [Inventing(INVENTED), Retry(Inventing(INVENTED)), Overriding(INVENTED)],
    ids=["own", "policy", "backend"],
)
async def test_no_lm_can_overwrite_resolved_values(lm: Any):
    check((await run(Begin(topic="t"), lm)).trace)
    with Budget(calls=10):
        check((await run(Begin(topic="t"), lm)).trace)


async def test_the_journal_and_the_node_agree_after_the_llm_invented_a_value():
    journal = MemoryJournal()
    lm = Inventing({Report: INVENTED[Report], Close: {"lines": ["invented"], "word": 7}})
    with pytest.raises(Exception, match="word"):
        await GRAPH.arun(Begin(topic="t"), lm=lm, journal=journal, run_id="r")
    result = await GRAPH.resume("r", lm=Inventing(INVENTED), journal=journal)
    check(result.trace)


async def test_a_filled_node_with_the_resolved_values_is_not_copied():
    built: list[Node] = []

    class Careful(Inventing):
        async def fill(self, target: Any, resolved: Any, *more: Any, **named: Any) -> Any:
            built.append(target(**{**self.invented[target], **resolved}))
            return built[-1]

    result = await GRAPH.arun(Begin(topic="t"), lm=Careful({**INVENTED, Report: {"lines": ["a"]}}))
    assert result.trace[-1] is built[-1]


async def test_the_whole_node_is_validated_with_the_resolved_value():
    class Pair(EndNode):
        low: Annotated[int, Dep(lambda: 5)]
        high: int

        @model_validator(mode="after")
        def in_order(self) -> Pair:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    start = leading_to(Pair)()
    with pytest.raises(Exception, match="low is above high"):
        await run(start, Inventing({Pair: {"low": 1, "high": 3}}))
    pair = (await run(start, Inventing({Pair: {"low": 1, "high": 8}}))).result
    assert (pair.low, pair.high) == (5, 8)
