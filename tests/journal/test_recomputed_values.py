"""A resumed run and values that it cannot read back or never had: items computed again, defaults
from a factory, graphs that another node asked for first, new fields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from pydantic import Field

from bae import BaeError, Dep, DepError, Gate, Graph, Map, Node, NodeError, Recall
from bae.journal import Journal
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import WORLD, Client, cut_journal, make_client

JOBS: list[str] = []


@pytest.fixture(autouse=True)
def jobs() -> None:
    JOBS[:] = ["a", "b"]


async def open_jobs() -> AsyncIterator[list[str]]:
    yield list(JOBS)


class Job(Node):
    name: str

    async def __call__(self) -> Made:
        WORLD.do(f"make {self.name}")
        return Made(name=self.name)


class Made(Node):
    name: str

    async def __call__(self) -> None:
        WORLD.do(f"check {self.name}")


class Shift(Node):
    jobs: Annotated[list[str], Dep(open_jobs)]
    made: Annotated[list[Made], Map(Job, over="jobs", limit=1)]

    async def __call__(self) -> None:
        WORLD.do("shift")


shift = Graph(start=Shift)


async def test_a_changed_map_item_runs_its_graph_again(journal: Journal):
    WORLD.failing = {"check b"}
    with pytest.raises(DepError):
        await shift.arun(Shift(), journal=journal, run_id="one")
    WORLD.mend()
    JOBS[:] = ["a", "x"]
    result = await shift.resume("one", journal=journal)
    assert [made.name for made in result.trace[0].made] == ["a", "x"]
    assert WORLD.done == {"make a": 1, "check a": 1, "make b": 1, "make x": 1, "check x": 1} | {
        "shift": 1
    }


async def test_a_shorter_list_of_items_leaves_no_old_items_behind(journal: Journal):
    WORLD.failing = {"check b"}
    with pytest.raises(DepError):
        await shift.arun(Shift(), journal=journal, run_id="one")
    WORLD.failing = {"shift"}
    JOBS[:] = ["x"]
    with pytest.raises(NodeError):
        await shift.resume("one", journal=journal)
    WORLD.mend()
    result = await shift.resume("one", journal=journal)
    assert [made.name for made in result.trace[0].made] == ["x"]


def read_names(client: Annotated[Client, Dep(make_client)]) -> list[str]:
    WORLD.do("names")
    return ["a", "b"]


def do_one(name: str) -> str:
    WORLD.do(f"do {name}")
    return name


class Named(EndNode):
    names: Annotated[list[str], Dep(read_names)]
    each: Annotated[list[str], Map(do_one, over="names", limit=1)]


async def test_stored_map_items_are_reused_although_their_list_is_not_stored(
    journal: Journal,
):
    named = Graph(start=Named)
    WORLD.failing = {"do b"}
    with pytest.raises(DepError):
        await named.arun(Named(), journal=journal, run_id="one")
    WORLD.mend()
    await named.resume("one", journal=journal)
    assert WORLD.done["do a"] == WORLD.done["names"] == 1


def get_words() -> set[str]:
    return {"alpha", "beta", "gamma", "delta", "eps"}


class Words(EndNode):
    words: Annotated[set[str], Dep(get_words)]
    each: Annotated[list[str], Map(do_one, over="words", limit=1)]


async def test_the_items_of_a_set_have_the_same_numbers_in_every_process(journal: Journal):
    words = Graph(start=Words)
    WORLD.failing = {"do eps"}
    with pytest.raises(DepError):
        await words.arun(Words(), journal=journal, run_id="one")
    # Not by their hashes, which are others in each process.
    assert list(WORLD.done) == ["do alpha", "do beta", "do delta"]
    WORLD.mend()
    result = await words.resume("one", journal=journal)
    assert result.result.each == ["alpha", "beta", "delta", "eps", "gamma"]
    assert set(WORLD.done.values()) == {1}


class Topic(Node):
    name: str

    async def __call__(self) -> Essay: ...


class Essay(EndNode):
    client: Annotated[Client | None, Dep(make_client)] = None
    text: str


async def test_a_source_that_succeeds_on_resume_does_not_keep_its_old_failure(journal: Journal):
    essays = Graph(start=Topic)
    WORLD.failing = {"client"}
    with pytest.raises(BaeError):
        await essays.arun(Topic(name="x"), ScriptedLM([]), journal=journal, run_id="one")
    WORLD.mend()
    await essays.resume("one", ScriptedLM([{"text": "t"}]), journal=journal)
    # The same run, had it been killed right after the fill.
    lines = (await journal.read("one")).lines
    filled = max(line.n for line in lines if line.kind == "FillEnded")
    result = await essays.resume("one", journal=await cut_journal(journal, filled + 1))
    assert isinstance(result.trace[-1].client, Client)


KEYS = iter(range(1000))


def never() -> str:
    WORLD.do("never")
    raise OSError("down")


class Payment(Node):
    key: Annotated[str, Dep(never)] = Field(default_factory=lambda: f"key {next(KEYS)}")
    found: Annotated[list[int], Recall()] = Field(default_factory=lambda: [next(KEYS)])

    async def __call__(self) -> Paid:
        WORLD.do(f"pay with {self.key} {self.found}")
        WORLD.do("pay")
        return Paid(key=self.key)


class Paid(EndNode):
    key: str


payments = Graph(start=Payment)


async def test_a_default_of_a_factory_is_stored_and_can_be_redacted(
    journal: Journal,
):
    WORLD.failing = {"pay"}
    with pytest.raises(NodeError):
        await payments.arun(Payment(), journal=journal, run_id="one")
    WORLD.mend()
    result = await payments.resume("one", journal=journal)
    [paid] = [what for what in WORLD.done if what.startswith("pay with")]
    assert WORLD.done[paid] == 2
    assert "its default is used" in str(await journal.why("one", "Payment.key"))
    assert (await payments.replay("one", journal=journal)).trace == result.trace
    key = result.trace[0].key
    await journal.redact("one", "Payment.key", "Paid.key")
    assert not [line for line in (await journal.read("one")).lines if key in line.data]


class Ask(Node):
    ok: Annotated[bool, Gate("ok?")]

    async def __call__(self) -> Answered:
        WORLD.do("ask")
        return Answered(ok=self.ok)


class Answered(EndNode):
    ok: bool
    client: Annotated[Client, Dep(make_client)]


def decide(answered: Annotated[Answered, Dep(Ask)]) -> bool:
    return answered.ok


class Decision(Node):
    decided: Annotated[bool, Dep(decide)]
    answered: Annotated[Answered, Dep(Ask)]

    async def __call__(self) -> None:
        WORLD.do("decision")


async def test_a_shared_subgraph_resumes_where_it_stopped(
    journal: Journal,
):
    decisions = Graph(start=Decision)
    run = await decisions.arun(Decision(), journal=journal, run_id="one")
    [gate] = run.waiting
    WORLD.failing = {"decision"}
    with pytest.raises(NodeError):
        await decisions.answer("one", gate.address, True, journal=journal)
    WORLD.mend()
    result = await decisions.resume("one", journal=journal)
    assert not result.waiting
    assert result.trace[0].answered.ok
    assert WORLD.done["ask"] == 1


async def effect() -> int:
    WORLD.do("effect")
    return 1


def before_and_after() -> tuple[Graph[Any, Any], Graph[Any, Any], type[Node]]:
    def before() -> tuple[Graph[Any, Any], type[Node]]:
        class First(Node):
            client: Annotated[Client, Dep(make_client)]

            async def __call__(self) -> Second:
                return Second(x=1)

        class Second(Node):
            x: int

            async def __call__(self) -> None:
                WORLD.do("second")

        return Graph(start=First), First

    def after() -> Graph[Any, Any]:
        class First(Node):
            client: Annotated[Client, Dep(make_client)]
            more: Annotated[int, Dep(effect)]
            ok: Annotated[bool, Gate("fine?")]

            async def __call__(self) -> Second:
                return Second(x=1)

        class Second(Node):
            x: int
            more: Annotated[int, Dep(effect)]

            async def __call__(self) -> None:
                WORLD.do(f"second with {self.more}")

        return Graph(start=First)

    graph, first = before()
    return graph, after(), first


async def test_new_fields_are_not_resolved_for_finished_nodes(journal: Journal):
    before, after, first = before_and_after()
    WORLD.failing = {"second"}
    with pytest.raises(NodeError):
        await before.arun(first(), journal=journal, run_id="one")
    WORLD.mend()
    result = await after.resume("one", journal=journal)
    assert not result.waiting
    left = result.trace[0]
    assert isinstance(left.client, Client)  # no journal holds it: it is made anew
    assert "ok" not in left.__dict__
    # The node where the run stands gets what it has not had.
    assert WORLD.done == {"client": 2, "effect": 1, "second with 1": 1}
