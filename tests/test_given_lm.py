"""The LLM that a written body or a dependency function gets: it first resolves the fields of the
node to make, as a run does, and no work is repeated or recorded twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Annotated, Any

import pytest

from bae import LM, Dep, DepError, Gate, Graph, Map, Node, OpenGate, Recall, RecallError
from bae.journal import MemoryJournal, Recalled
from bae.resolver import resolve_dep
from bae.testing import ScriptedLM
from bounded import run
from end_node import EndNode, leading_to
from journal_graphs import Trouble, World
from toy_backend import FourMethods, ToyBackend, choose, route

WORLD = World()


@pytest.fixture(autouse=True)
def world() -> World:
    WORLD.__init__()
    return WORLD


async def find_policy() -> str:
    WORLD.do("policy")
    return "thirty days"


class Client:
    """What no journal can hold."""


async def connect() -> Client:
    WORLD.do("connect")
    return Client()


class OneWord(FourMethods):
    """An LM that fills every field with one word."""

    def __init__(self, word: str = "fine") -> None:
        self.word = word
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def choose_type(self, types: Sequence[Any], context: Mapping[str, Any]) -> Any:
        self.asked.append(("choose", dict(context)))
        return types[0]

    async def fill(
        self, target: type[Any], resolved: Mapping[str, Any], instruction: str, source: Any = None
    ) -> Any:
        WORLD.do(f"fill {target.__name__}")
        self.asked.append((instruction, dict(resolved)))
        plain = [n for n, f in target.model_fields.items() if not f.metadata]
        return target(**dict.fromkeys(plain, self.word), **resolved)


class Ticket(Node):
    message: str

    async def __call__(self, lm: LM) -> Reply:
        return await lm.make(self, Reply)


class Reply(EndNode):
    message: Annotated[str, Recall(Ticket)]
    policy: Annotated[str, Dep(find_policy)]
    text: str


SHOP = Graph(start=Ticket, end=Reply)
LATE = Ticket(message="it came late")
KNOWN = {"message": "it came late", "policy": "thirty days"}


async def test_make_sends_the_looked_up_fields_of_its_target():
    lm = ToyBackend({"text": "sorry"})

    result = await SHOP.arun(LATE, lm)

    assert result.result == Reply(**KNOWN, text="sorry")
    assert '{"Ticket":{"message":"it came late"},"context":{"policy":' in lm.prompts[0].text
    assert WORLD.done == {"policy": 1}


@pytest.mark.parametrize("how", ["backend", "four methods"])
async def test_decide_looks_up_only_the_fields_of_the_chosen_node(how: str):
    class Question(Node):
        text: str

        async def __call__(self, lm: LM) -> Answer | Refusal | None:
            return await lm.decide(self)

    class Answer(EndNode):
        asked: Annotated[str, Recall(Question)]
        policy: Annotated[str, Dep(find_policy)]
        text: str

    class Refusal(EndNode):
        client: Annotated[Client, Dep(connect)]
        text: str

    backend, other = ToyBackend(choose("Answer"), {"text": "fine"}), OneWord()
    lm: Any = backend if how == "backend" else other
    result = await run(Question(text="why?"), lm)

    context = {"asked": "why?", "policy": "thirty days"}
    assert result.result == Answer(**context, text="fine")
    assert "connect" not in WORLD.done
    if how == "four methods":
        assert other.asked == [("choose", {"text": "why?"}), ("Answer", context)]
    else:
        shown = '{"Question":{"text":"why?"},"context":{"policy":"thirty days"}}'
        assert shown in backend.prompts[1].text


async def test_decide_needs_a_single_call_if_options_have_only_recalls():
    class Question(Node):
        text: str

        async def __call__(self, lm: LM) -> Answer | None:
            return await lm.decide(self)

    class Answer(EndNode):
        asked: Annotated[str, Recall(Question)]
        text: str

    lm, journal = ToyBackend(route("Answer", text="so")), MemoryJournal()
    graph = Graph(start=Question)
    result = await graph.arun(Question(text="why?"), lm, journal=journal, run_id="one")

    assert (lm.calls, result.result) == (1, Answer(asked="why?", text="so"))
    assert lm.prompts[0].text.endswith('\n\n{"Question":{"text":"why?"}}')
    assert [record.field for record in result.journal.of(Recalled)] == ["asked"]
    assert (await graph.replay("one", journal=journal)).trace == result.trace


async def test_decide_may_end_the_run():
    class Question(Node):
        async def __call__(self, lm: LM) -> Reply | None:
            return await lm.decide(self)

    class Ends(OneWord):
        async def choose_type(self, types: Sequence[Any], context: Mapping[str, Any]) -> Any:
            return NoneType

    class Reply(EndNode):
        policy: Annotated[str, Dep(find_policy)]

    result = await run(Question(), Ends())

    assert [type(node) for node in result.trace] == [Question]
    assert not WORLD.done


async def test_a_value_passed_to_fill_is_not_looked_up():
    class Asks(Node):
        message: str

        async def __call__(self, lm: LM) -> Told:
            return await lm.fill(Told, {"policy": "none"}, "Be brief.", self)

    class Told(EndNode):
        message: Annotated[str, Recall(Asks)]
        policy: Annotated[str, Dep(find_policy)]
        text: str

    lm = OneWord()
    result = await run(Asks(message="x"), lm)

    assert lm.asked == [("Be brief.", {"policy": "none", "message": "x"})]
    assert result.result == Told(policy="none", message="x", text="fine")
    assert "policy" not in WORLD.done


async def test_a_map_over_a_looked_up_field_runs_before_the_fill_and_is_context():
    async def shout(word: str) -> str:
        WORLD.do(f"shout {word}")
        return word.upper()

    async def get_words() -> list[str]:
        return ["a", "b"]

    class Asks(Node):
        async def __call__(self, lm: LM) -> Shouted:
            return await lm.make(self, Shouted)

    class Shouted(EndNode):
        words: Annotated[list[str], Dep(get_words)]
        loud: Annotated[list[str], Map(shout, over="words")]
        text: list[str]
        louder: Annotated[list[str], Map(shout, over="text")]

    lm = ScriptedLM([{"text": ["c"]}])
    result = await run(Asks(), lm)

    assert lm.asked[0].resolved == {"words": ["a", "b"], "loud": ["A", "B"]}
    assert (result.result.loud, result.result.louder) == (["A", "B"], ["C"])
    assert set(WORLD.done.values()) == {1}


async def test_nodes_made_by_a_dependency_function_have_their_fields_looked_up():
    class Note(EndNode):
        message: Annotated[str, Recall(Asks)]
        policy: Annotated[str, Dep(find_policy)]
        text: str

    async def write_note(lm: LM) -> Note:
        return await lm.make(Asks(message="unseen"), Note)

    class Asks(Node):
        message: str

        async def __call__(self) -> Told: ...

    class Told(EndNode):
        note: Annotated[Note, Dep(write_note)]
        policy: Annotated[str, Dep(find_policy)]

    result = await run(Asks(message="x"), OneWord())

    assert result.result.note == Note(message="x", policy="thirty days", text="fine")
    assert WORLD.done["policy"] == 1
    with pytest.raises(RecallError, match="no str in the trace"):
        await resolve_dep(write_note, lm=OneWord())


async def test_a_gate_of_a_node_made_in_a_body_does_not_repeat_the_body():
    class Asks(Node):
        async def __call__(self, lm: LM) -> Paid:
            WORLD.do("body")
            return await lm.make(self, Paid)

    class Paid(EndNode):
        policy: Annotated[str, Dep(find_policy)]
        approved: Annotated[bool, Gate("pay?")]
        text: str

    graph, journal, lm = Graph(start=Asks, end=Paid), MemoryJournal(), OneWord()
    parked = await graph.arun(Asks(), lm, journal=journal, run_id="one")
    assert [gate.place for gate in parked.waiting] == ["Paid.approved"]
    result = await graph.answer("one", "approved", True, lm, journal=journal)

    assert lm.asked == [("Paid", {"policy": "thirty days"})]
    assert result.result == Paid(policy="thirty days", approved=True, text="fine")
    assert WORLD.done == {"body": 1, "policy": 1, "fill Paid": 1}


async def test_a_subgraph_with_a_gate_in_a_made_node_does_not_repeat_the_body():
    class Inner(EndNode):
        approved: Annotated[bool, Gate("pay?")]

    class Asks(Node):
        async def __call__(self, lm: LM) -> Paid:
            WORLD.do("body")
            return await lm.make(self, Paid)

    class Paid(EndNode):
        inner: Annotated[Inner, Dep(Inner)]
        text: str

    async def yes(gate: OpenGate) -> bool:
        return True

    result = await Graph(start=Asks, end=Paid).arun(Asks(), OneWord(), answer=yes)

    assert result.result.inner.approved
    assert WORLD.done["body"] == 1


async def test_a_field_of_a_made_node_has_its_default_if_its_source_fails():
    class Asks(Node):
        async def __call__(self, lm: LM) -> Told:
            node = await lm.make(self, Told)
            assert node.policy == "unknown"
            return node

    async def fail() -> str:
        WORLD.done["fail"] += 1
        raise Trouble("down")

    class Told(EndNode):
        policy: Annotated[str, Dep(fail, cache=False)] = "unknown"
        text: str

    lm = OneWord()
    result = await run(Asks(), lm)

    assert lm.asked == [("Told", {})]
    assert result.result == Told(policy="unknown", text="fine")
    assert WORLD.done["fail"] == 1


async def test_a_failed_required_source_ends_the_run_before_the_llm_call():
    WORLD.failing.add("policy")

    with pytest.raises(DepError, match=r"Reply.policy: find_policy raised Trouble") as failed:
        await SHOP.arun(LATE, OneWord())

    assert failed.value.trace == [LATE]
    assert not WORLD.done


async def test_a_function_that_waits_for_itself_is_an_error():
    async def write(lm: LM) -> str:
        return (await lm.make(LATE, Loop)).text

    class Loop(EndNode):
        written: Annotated[str, Dep(write)]
        text: str

    with pytest.raises(DepError) as failed:
        async with asyncio.timeout(10):
            await run(leading_to(Loop)(), OneWord())

    assert isinstance(failed.value.cause, DepError)
    assert failed.value.cause.code == "bae-dep-cycle"
    assert "cannot be made before write has returned" in str(failed.value.cause)


async def test_a_function_that_takes_the_lm_is_not_prefetched():
    async def write(lm: LM) -> str:
        return (await lm.make(LATE, Seen)).number

    class Seen(EndNode):
        number: Annotated[str, Recall(Second)]

    class Third(EndNode):
        written: Annotated[str, Dep(write)]

    class Second(Node):
        number: str

        async def __call__(self) -> Third: ...

    assert (await run(leading_to(Second)(), OneWord("two"))).result == Third(written="two")


# With a journal


async def record_failed_run(
    graph: Graph[Any, Any], start: Node, lm: Any, what: str
) -> MemoryJournal:
    """The journal of a run that has failed at a function which works now."""
    journal = MemoryJournal()
    WORLD.failing.add(what)
    with pytest.raises(Exception, match=what):
        await graph.arun(start, lm, journal=journal, run_id="one")
    WORLD.mend()
    return journal


async def test_a_run_that_failed_at_the_llm_resumes_without_repeating_look_ups():
    journal = await record_failed_run(SHOP, LATE, OneWord(), "fill Reply")
    lm = OneWord()
    result = await SHOP.resume("one", lm, journal=journal)

    assert lm.asked == [("Reply", KNOWN)]
    assert result.result == Reply(**KNOWN, text="fine")
    assert WORLD.done == {"policy": 1, "fill Reply": 1}


class Order(Node):
    """Its body has two nodes made that name their fields alike, and then does something else."""

    message: str

    async def __call__(self, lm: LM) -> Order2 | Sent:
        first = await lm.make(self, Order2)
        second = await lm.make(self, Sent)
        WORLD.do("send")
        assert isinstance(second.client, Client)
        return second.model_copy(update={"text": f"{first.text} {second.text}"})


async def count() -> int:
    WORLD.do("count")
    return WORLD.done["count"]


class Order2(EndNode):
    number: Annotated[int, Dep(count, cache=False)]
    text: str


class Sent(EndNode):
    number: Annotated[int, Dep(count, cache=False)]
    client: Annotated[Client, Dep(connect)]
    message: Annotated[str, Recall(Order)]
    text: str


ORDERS = Graph(start=Order)


@pytest.mark.parametrize("what", ["send", "fill Sent"])
async def test_a_resumed_body_gets_stored_nodes_back_and_unstorable_values_made_again(what: str):
    start = Order(message="hi")
    journal = await record_failed_run(ORDERS, start, OneWord(), what)
    result = await ORDERS.resume("one", OneWord(), journal=journal)

    assert (result.result.number, result.result.message) == (2, "hi")
    assert isinstance(result.result.client, Client)
    assert WORLD.done == {
        "count": 2, "connect": 2, "fill Order2": 1, "fill Sent": 1, "send": 1
    }  # fmt: skip


async def test_a_replay_calls_no_llm_and_a_fork_continues_from_recorded_nodes():
    journal = MemoryJournal()
    whole = await SHOP.arun(LATE, OneWord(), journal=journal, run_id="one")
    again = await SHOP.replay("one", journal=journal)
    fork = await SHOP.fork("one", at=1, journal=journal, text="other")
    forked = await SHOP.resume(fork, OneWord(), journal=journal)

    assert again.trace == whole.trace
    assert forked.result == Reply(**KNOWN, text="other")
    assert WORLD.done == {"policy": 1, "fill Reply": 1}
    why = await journal.why("one", "Reply.message")
    assert (why.source, why.value) == ("recall", "it came late")


async def test_nodes_that_a_body_made_get_their_own_values_of_an_uncached_dep():
    class Many(Node):
        async def __call__(self, lm: LM) -> Order2:
            made = [await lm.make(self, Order2) for _ in range(3)]
            WORLD.do("body")
            return made[0].model_copy(update={"text": str([node.number for node in made])})

    graph = Graph(start=Many)
    journal = await record_failed_run(graph, Many(), OneWord(), "body")
    result = await graph.resume("one", OneWord(), journal=journal)
    assert result.result.text == "[1, 2, 3]"
    assert WORLD.done["count"] == 3

    WORLD.__init__()

    class Slow(OneWord):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            if WORLD.done["fill Order2"] == 2:
                WORLD.do("third")
            return await super().fill(*args, **kwargs)

    journal = await record_failed_run(graph, Many(), Slow(), "third")
    result = await graph.resume("one", OneWord(), journal=journal)
    assert result.result.text == "[1, 2, 3]"
    assert WORLD.done["count"] == 3


async def test_a_made_node_outside_the_graph_has_its_fields_looked_up():
    class Outside(EndNode):
        message: Annotated[str, Recall(Asks)]
        policy: Annotated[str, Dep(find_policy)]
        text: str

    class Asks(Node):
        message: str

        async def __call__(self, lm: LM) -> Told:
            made = await lm.make(self, Outside)
            WORLD.do("body")
            return Told(text=f"{made.message}: {made.policy}, {made.text}")

    class Told(Node):
        policy: Annotated[str, Dep(find_policy)]
        text: str

        async def __call__(self) -> Last: ...

    class Last(EndNode):
        text: str

    graph = Graph(start=Asks)
    start = Asks(message="hi")
    journal = await record_failed_run(graph, start, OneWord(), "body")
    WORLD.failing.add("fill Last")
    with pytest.raises(Exception, match="fill Last"):
        await graph.resume("one", OneWord(), journal=journal)
    WORLD.mend()
    result = await graph.resume("one", OneWord(), journal=journal)

    node = result.trace[1]
    assert node == Told(policy="thirty days", text="hi: thirty days, fine")
    assert WORLD.done == {"policy": 1, "fill Outside": 1, "fill Last": 1, "body": 1}
    assert (await graph.replay("one", journal=journal)).trace == result.trace
