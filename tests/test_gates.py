"""What `Gate` promises: a run without an answerer stops with everything it waits for, said at once
and typed; with one, the answer is a value of the node like any other."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from bae import Dep, DepError, Gate, GateError, Map, Node, OpenGate, Recall
from bae.journal import GateOpened, RunEnded, SourceEnded
from bae.resolver import resolve_fields
from bae.testing import ScriptedLM
from bounded import error_from, run
from end_node import EndNode, leading_to


class Send(EndNode):
    to: Annotated[str, Gate("to whom?")]
    approved: Annotated[bool, Gate("really send it?")]


class Write(Node):
    text: str

    async def __call__(self) -> Send:
        return Send()


# Nobody to answer


async def test_a_run_without_an_answerer_stops_and_lists_all_open_gates():
    result = await run(Write(text="hi"))
    assert [(gate.place, gate.question, gate.type) for gate in result.waiting] == [
        ("Send.to", "to whom?", str),
        ("Send.approved", "really send it?", bool),
    ]
    assert all(isinstance(gate, OpenGate) and gate.node_type is Send for gate in result.waiting)
    assert [type(node) for node in result.trace] == [Write]
    assert isinstance(result.node, Send)
    assert [record.gate for record in result.journal.of(GateOpened)] == [*result.waiting]
    (ended,) = result.journal.of(RunEnded)
    assert (ended.outcome, ended.gates) == ("waiting", result.waiting)


async def test_dependencies_beside_an_open_gate_still_finish():
    calls: list[str] = []
    release = asyncio.Event()

    async def slow() -> str:
        await release.wait()
        calls.append("slow")
        return "slow"

    async def releases() -> str:
        # Comes after the gate has been opened, since gates wait for nothing.
        release.set()
        return "released"

    class Holder(EndNode):
        ok: Annotated[bool, Gate("go on?")]
        a: Annotated[str, Dep(slow)]
        b: Annotated[str, Dep(releases)]

    result = await run(Holder())
    assert [gate.field_name for gate in result.waiting] == ["ok"]
    assert calls == ["slow"]
    values = {r.field: r.value for r in result.journal.of(SourceEnded) if r.source == "dep"}
    assert values == {"a": "slow", "b": "released"}


async def test_a_failure_beside_an_open_gate_is_the_failure_of_the_run():
    def bad() -> int:
        raise ValueError("bad")

    class Holder(EndNode):
        ok: Annotated[bool, Gate("go on?")]
        a: Annotated[int, Dep(bad)]

    error = await error_from(DepError, run(Holder()))
    assert error.field_name == "a"


async def test_gates_in_subgraphs_are_opened_together():
    class Inner(EndNode):
        sure: Annotated[bool, Gate("sure?")]

    class Innermost(EndNode):
        really: Annotated[bool, Gate("really?")]

    class Middle(EndNode):
        below: Annotated[Innermost, Dep(Innermost)]

    class Outer(EndNode):
        ok: Annotated[bool, Gate("ok?")]
        inner: Annotated[Inner, Dep(Inner)]
        middle: Annotated[Middle, Dep(Middle)]

    result = await run(Outer())
    assert {(gate.question, gate.path) for gate in result.waiting} == {
        ("ok?", ""),
        ("sure?", "0:Outer.inner"),
        ("really?", "0:Outer.middle/0:Middle.below"),
    }
    assert isinstance(result.node, Outer)


async def test_gates_in_items_of_a_map_are_opened_together_and_other_items_finish():
    class Each(Node):
        item: int

        async def __call__(self) -> "Ask | Done":
            return Ask(about=self.item) if self.item % 2 else Done()

    class Ask(EndNode):
        about: int
        ok: Annotated[bool, Gate("ok?")]

    class Done(EndNode): ...

    class Outer(EndNode):
        items: list[int]
        each: Annotated[list[Ask | Done], Map(Each, over="items", limit=2)]

    result = await run(Outer(items=[0, 1, 2, 3, 4]))
    assert [(gate.path, gate.context) for gate in result.waiting] == [
        ("0:Outer.each[1]", {"about": 1}),
        ("0:Outer.each[3]", {"about": 3}),
    ]
    assert {path for path, nodes in result.nested.items() if isinstance(nodes[-1], Done)} == {
        "0:Outer.each[0]",
        "0:Outer.each[2]",
        "0:Outer.each[4]",
    }


class Sure(EndNode):
    sure: Annotated[bool, Gate("sure?")]


async def test_a_gate_of_a_shared_graph_is_asked_once():
    def uses(inner: Annotated[Sure, Dep(Sure)]) -> bool:
        return inner.sure

    class Outer(EndNode):
        a: Annotated[Sure, Dep(Sure)]
        b: Annotated[Sure, Dep(Sure)]
        c: Annotated[bool, Dep(uses)]

    result = await run(Outer())
    assert [gate.question for gate in result.waiting] == ["sure?"]


async def test_a_graph_that_waits_at_a_gate_is_not_retried():
    class Outer(EndNode):
        inner: Annotated[Sure | None, Dep(Sure, retries=2)] = None

    result = await run(Outer())
    assert [gate.question for gate in result.waiting] == ["sure?"]
    assert len(result.journal.of(GateOpened)) == 1


async def test_a_map_over_a_gate_runs_after_the_answer():
    async def double(item: int) -> int:
        return item * 2

    class Holder(EndNode):
        items: Annotated[list[int], Gate("which?")]
        mapped: Annotated[list[int], Map(double, over="items")]

    result = await run(Holder())
    assert [gate.question for gate in result.waiting] == ["which?"]

    async def answer(gate: OpenGate) -> list[int]:
        return [1, 2]

    assert (await run(Holder(), answer=answer)).result.mapped == [2, 4]


async def test_a_gate_before_a_fill_stops_the_run_before_the_llm_call():
    class Filled(EndNode):
        ok: Annotated[bool, Gate("go on?")]
        text: str

    lm, start = ScriptedLM(), leading_to(Filled)
    result = await run(start(), lm)
    assert [gate.place for gate in result.waiting] == ["Filled.ok"]
    assert isinstance(result.node, start)  # the one it goes on from; the other is not there yet
    assert lm.asked == []


# Somebody to answer


async def test_the_answerer_gets_the_question_the_type_and_the_known_fields():
    given: list[OpenGate] = []

    async def answer(gate: OpenGate) -> bool:
        given.append(gate)
        return True

    class Publish(EndNode):
        text: str
        topic: Annotated[str, Recall(Write)]
        ok: Annotated[bool, Gate("publish this?")]

    class Begin(Write):
        async def __call__(self) -> Publish:
            return Publish(text="final")

    result = await run(Begin(text="draft"), answer=answer)
    assert result.result.ok is True
    (gate,) = given
    assert gate.question == "publish this?"
    assert gate.type is bool
    assert (gate.node_type, gate.field_name, gate.place) == (Publish, "ok", "Publish.ok")
    assert gate.context == {"text": "final", "topic": "draft"}
    assert gate.problem is None


async def test_gates_of_a_node_are_asked_concurrently_and_answers_are_journaled():
    both, asked = asyncio.Barrier(2), dict[OpenGate, bool]()

    async def answer(gate: OpenGate) -> Any:
        asked[gate] = True  # it can be a key, whatever it holds
        await both.wait()
        return "ada" if gate.type is str else True

    result = await run(Write(text="hi"), answer=answer)
    assert (result.result.to, result.result.approved) == ("ada", True)
    assert len(asked) == 2
    answers = {r.field: r.value for r in result.journal.of(SourceEnded) if r.source == "gate"}
    assert answers == {"to": "ada", "approved": True}


async def test_an_invalid_answer_is_asked_again_with_the_reason():
    problems: list[str | None] = []

    async def answer(gate: OpenGate) -> Any:
        problems.append(gate.problem)
        return 7 if len(problems) == 3 else "many"

    class Holder(EndNode):
        count: Annotated[int, Gate("how many?"), Field(le=9)]

    assert (await run(Holder(), answer=answer)).result.count == 7
    assert problems[0] is None
    assert problems[1] is not None
    assert "integer" in problems[1]


async def test_repeated_invalid_answers_end_in_a_gate_error_with_the_reason():
    asked: list[OpenGate] = []

    async def answer(gate: OpenGate) -> Any:
        asked.append(gate)
        return "many"

    class Holder(EndNode):
        count: Annotated[int, Gate("how many?")]

    error = await error_from(GateError, run(Holder(), answer=answer))
    assert len(asked) == 3
    assert error.code == "bae-gate-invalid"
    assert (error.node_type, error.field_name) == (Holder, "count")
    assert "Holder.count" in error.message
    assert "integer" in error.message
    assert [gate.question for gate in error.gates] == ["how many?"]
    assert error.trace == []
    assert error.run_id


async def test_an_answerer_that_raises_is_a_gate_error_with_its_cause():
    raised = KeyError("nobody home")

    async def answer(gate: OpenGate) -> Any:
        raise raised

    error = await error_from(GateError, run(Write(text="hi"), answer=answer))
    assert error.cause is raised
    assert error.field_name in ("to", "approved")
    assert "answer" in str(error.fix)
    assert [type(node) for node in error.trace] == [Write]


async def test_an_answerer_can_leave_a_single_gate_open():
    async def answer(gate: OpenGate) -> Any:
        if gate.place == "Send.approved":
            gate.leave_open()
        return "you"

    result = await run(Write(text="hi"), answer=answer)
    assert [gate.place for gate in result.waiting] == ["Send.approved"]
    assert [type(node) for node in result.trace] == [Write]
    answered = [r.field for r in result.journal.of(SourceEnded) if r.error is None]
    assert answered == ["to"]


async def test_a_failed_gate_in_a_subgraph_is_a_gate_error():
    async def answer(gate: OpenGate) -> Any:
        return "no bool at all"

    class Outer(EndNode):
        inner: Annotated[Sure, Dep(Sure)]

    error = await error_from(GateError, run(Outer(), answer=answer))
    assert (error.node_type, error.field_name) == (Sure, "sure")


async def test_a_gate_with_a_default_uses_it_after_the_last_invalid_answer():
    asked: list[OpenGate] = []

    async def answer(gate: OpenGate) -> Any:
        asked.append(gate)
        return "many"

    class Filled(EndNode):
        count: Annotated[int, Gate("how many?")] = 1
        text: str

    result = await run(leading_to(Filled)(), ScriptedLM([{"text": "hi"}]), answer=answer)
    assert result.result.count == 1
    assert len(asked) == 3


async def test_the_llm_sees_the_answer_of_a_gate_when_it_fills_the_other_fields():
    class Filled(EndNode):
        tone: Annotated[str, Gate("which tone?")]
        text: str

    async def answer(gate: OpenGate) -> str:
        return "friendly"

    lm = ScriptedLM([{"text": "hi"}])
    result = await run(leading_to(Filled)(), lm, answer=answer)
    assert lm.asked[0].resolved == {"tone": "friendly"}
    assert result.result.tone == "friendly"


async def test_answers_reach_gates_in_subgraphs_and_maps():
    class Each(EndNode):
        item: int
        ok: Annotated[bool, Gate("ok?")]

    class Outer(EndNode):
        items: list[int]
        each: Annotated[list[Each], Map(Each, over="items")]

    async def answer(gate: OpenGate) -> bool:
        return gate.context["item"] == 2

    result = await run(Outer(items=[1, 2]), answer=answer)
    assert [each.ok for each in result.result.each] == [False, True]


# Outside a run


async def test_resolve_fields_asks_the_answerer_or_raises_with_the_gates():
    async def answer(gate: OpenGate) -> Any:
        return "ada" if gate.type is str else True

    assert await resolve_fields(Send, answer=answer) == {"to": "ada", "approved": True}
    error = await error_from(GateError, resolve_fields(Send))
    assert [gate.field_name for gate in error.gates] == ["to", "approved"]
