"""Programs that once went wrong, each by its promise."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    Json,
    ValidationInfo,
    field_validator,
)

from bae import LM, Dep, DepError, Gate, Graph, Map, Node, NodeError, Recall, Usage
from bae.lm import report_usage
from bae.resolver import resolve_dep
from bae.testing import ScriptedLM
from bounded import error_from, run
from end_node import EndNode, leading_to


def aware() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


def text() -> str:
    return "1,2"


def json_text() -> str:
    return "[1, 2]"


def number() -> int:
    return 1000


def split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


@pytest.mark.skipif(sys.version_info < (3, 14), reason="plain forward references came with 3.14")
async def test_a_dependency_defined_below_its_node_is_found_in_plain_annotations():
    source = """
from typing import Annotated
from bae import Dep, Map, Node

class Start(Node):
    items: list[int]
    one: Annotated[int, Dep(later)]
    doubled: Annotated[list[int], Map(double, over="items")]
    inside: Annotated[Inner, Dep(Inner)]

    async def __call__(self) -> None: ...

def later() -> int:
    return 1

def double(item: int) -> int:
    return 2 * item

class Inner(Node):
    async def __call__(self) -> None: ...
"""
    module: dict[str, Any] = {"__name__": "later_module"}
    exec(compile(source, "later_module", "exec", dont_inherit=True), module)
    graph = Graph(start=module["Start"])
    assert graph.validate() == []
    (node,) = (await graph.arun(module["Start"](items=[1, 2]))).trace
    assert (node.one, node.doubled) == (1, [2, 4])  # type: ignore[attr-defined]


async def test_fields_with_a_converting_validator_accept_other_types():
    class Start(EndNode):
        when: Annotated[AwareDatetime, Dep(aware)]
        size: Annotated[ByteSize, Dep(number)]
        parsed: Annotated[Json[list[int]], Dep(json_text)]
        parts: Annotated[list[str], BeforeValidator(split), Dep(text)]
        more: Annotated[list[str], Dep(text)]

        @field_validator("more", mode="before")
        @classmethod
        def _more(cls, value: Any) -> Any:
            return split(value)

    graph = Graph(start=Start, end=Start)
    assert graph.validate() == []
    result = (await graph.arun(Start())).result
    assert (result.parsed, result.parts, result.more) == ([1, 2], ["1", "2"], ["1", "2"])


async def test_retrying_a_graph_calls_its_failed_dependencies_again():
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("not yet")
        return len(calls)

    class Inner(EndNode):
        number: Annotated[int, Dep(flaky)]

    class Start(EndNode):
        inner: Annotated[Inner, Dep(Inner, retries=2)]

    assert (await run(Start())).result.inner.number == 3


@pytest.mark.parametrize("name", ["fn", "self", "call", "args", "kwargs", "then"])
async def test_a_dependency_may_name_its_parameters_freely(name: str):
    made: dict[str, Any] = {"Annotated": Annotated, "Dep": Dep, "number": number}
    exec(f"def use({name}: Annotated[int, Dep(number)]) -> int:\n    return {name} + 1", made)

    class Start(EndNode):
        value: Annotated[int, Dep(made["use"])]

    assert (await Graph(start=Start, end=Start).arun(Start())).result.value == 1001


async def test_a_validator_sees_the_context_of_a_node_that_also_maps_over_the_answer():
    def options() -> list[str]:
        return ["a", "b"]

    def upper(item: str) -> str:
        return item.upper()

    class Pick(EndNode):
        options: Annotated[list[str], Dep(options)]
        chosen: list[str]
        upper: Annotated[list[str], Map(upper, over="chosen")]

        @field_validator("chosen")
        @classmethod
        def _known(cls, chosen: list[str], info: ValidationInfo) -> list[str]:
            if not set(chosen) <= set(info.data["options"]):
                raise ValueError("not among the options")
            return chosen

    lm = ScriptedLM([{"chosen": ["c"]}, {"chosen": ["b"]}])
    assert (await run(leading_to(Pick)(), lm)).result.upper == ["B"]
    lm.assert_complete()


async def test_sync_functions_that_run_graphs_with_sync_dependencies_do_not_wait_for_each_other():
    class Inner(EndNode):
        number: Annotated[int, Dep(number)]

    graph = Graph(start=Inner, end=Inner)

    def inside(item: int) -> int:
        return graph.run(Inner()).result.number + item

    class Start(EndNode):
        items: list[int]
        out: Annotated[list[int], Map(inside, over="items", limit=80)]

    async with asyncio.timeout(60):
        assert (await run(Start(items=list(range(80))))).result.out == [
            1000 + item for item in range(80)
        ]


async def test_an_lm_fills_fields_that_have_aliases():
    class Filled(EndNode):
        model_config = ConfigDict(extra="forbid")

        size: Annotated[int, Dep(number)] = Field(alias="Size")
        text: str = Field(alias="Text")

    filled = (await run(leading_to(Filled)(), ScriptedLM([{"text": "x"}]))).result
    assert (filled.size, filled.text) == (1000, "x")


async def test_an_answer_of_a_gate_is_validated_once():
    class Start(EndNode):
        number: Annotated[int, AfterValidator(lambda value: value * 2), Gate("how many?")]

    async def answer(gate: Any) -> int:
        return 5

    assert (await run(Start(), answer=answer)).result.number == 10


async def test_a_map_gets_the_validated_items_of_its_field():
    def items() -> list[int]:
        return [1, 2, 2]

    def double(item: int) -> int:
        return 2 * item

    class Start(EndNode):
        items: Annotated[list[int], AfterValidator(lambda v: sorted(set(v))), Dep(items)]
        out: Annotated[list[int], Map(double, over="items")]

    result = (await run(Start())).result
    assert (result.items, result.out) == ([1, 2], [2, 4])


async def test_an_optional_lm_parameter_needs_no_lm():
    def length(lm: LM | None = None) -> int:
        return 0 if lm is None else 1

    class Start(Node):
        number: Annotated[int, Dep(length)]

        async def __call__(self, lm: LM | None = None) -> None:
            assert lm is None

    assert (await Graph(start=Start, end=Start).arun(Start())).result.number == 0


async def test_an_async_generator_is_closed_in_the_task_and_context_that_opened_it():
    variable: ContextVar[int] = ContextVar("variable", default=0)
    tasks: list[Any] = []

    async def opened() -> AsyncIterator[int]:
        token = variable.set(1)
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup():
            yield variable.get()
        variable.reset(token)
        tasks.append(asyncio.current_task())

    class Start(EndNode):
        number: Annotated[int, Dep(opened)]

    assert (await run(Start())).result.number == 1
    assert tasks[0] is tasks[1]


async def test_a_cycle_through_a_subgraph_is_reported_outside_a_run_too():
    async def top(inner: Annotated[Any, Dep(Circle)]) -> int:
        return 1

    class Circle(EndNode):
        number: Annotated[int, Dep(top)]

    async with asyncio.timeout(30):
        error = await error_from(DepError, resolve_dep(top))
    assert error.code == "bae-dep-cycle"


def test_hints_of_a_shared_function_are_resolved_for_every_class_that_uses_it():
    def scope(value: Any) -> list[Any]:
        class Thing:
            pass

        class Start(EndNode):
            thing: Annotated[Thing, Dep(load)]

        return Graph(start=Start).validate()

    assert scope(1) == []
    assert scope(2) == []


def load() -> Thing:  # type: ignore[name-defined] # noqa: F821
    raise AssertionError


def test_a_recall_proved_before_a_class_is_complete_is_proved_again():
    made: dict[str, Any] = {
        "__name__": "early",
        "Node": Node,
        "Annotated": Annotated,
        "Recall": Recall,
    }
    flags = "from __future__ import annotations\n"
    first = """
class Start(Node):
    text: str
    async def __call__(self) -> Middle: ...
class Middle(Node):
    thing: Missing
    async def __call__(self) -> Last: ...
class Last(Node):
    thing: Annotated[Missing, Recall()]
    async def __call__(self) -> None: ...
"""
    exec(flags + first, made)
    codes = {p.code for p in Graph(start=made["Start"]).validate()}
    assert codes == {"bae-hint-unresolved"}
    exec("class Missing(Node):\n    async def __call__(self) -> None: ...", made)
    assert Graph(start=made["Start"]).validate() == []


async def test_a_failing_validator_of_a_dependency_is_reported_before_the_llm_call():
    def broken(value: int) -> int:
        raise KeyError("unheard of")

    class Filled(EndNode):
        size: Annotated[int, AfterValidator(broken), Dep(number)]
        text: str

    lm = ScriptedLM([{"text": "x"}])
    with pytest.raises(NodeError, match="Filled: a validator raised KeyError") as caught:
        await run(leading_to(Filled)(), lm)
    assert isinstance(caught.value.cause, KeyError)
    assert lm.asked == []


async def test_tokens_that_a_body_reports_without_a_call_are_counted():
    class Start(Node):
        async def __call__(self, lm: LM) -> None:
            report_usage(Usage(input_tokens=7))

    assert (await run(Start(), ScriptedLM())).usage == Usage(input_tokens=7)
