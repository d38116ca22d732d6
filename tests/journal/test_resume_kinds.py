"""All kinds of nodes, fields, gates and budgets in runs that are stopped and resumed: each is
restored unchanged, and nothing is validated, asked or charged twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    computed_field,
    field_validator,
    model_validator,
)

from bae import (
    LM,
    BudgetError,
    Dep,
    DepError,
    Gate,
    Graph,
    GraphResult,
    JournalError,
    Map,
    Node,
    NodeError,
    ProofError,
    Recall,
)
from bae.journal import Journal, MemoryJournal
from bae.lm import Budget, Budgeted
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import WORLD, Client, Trouble, cut_journal
from toy_backend import ToyBackend


async def get_number() -> int:
    WORLD.do("number")
    return 7


async def record_stopped_run(
    graph: Graph[Any, Any], start: Node, lm: Any = None, **options: Any
) -> MemoryJournal:
    """A journal with a run of the graph that was stopped where the world fails; it is mended."""
    journal = MemoryJournal()
    with pytest.raises((NodeError, DepError)):
        await graph.arun(start, lm, journal=journal, run_id="one", **options)
    WORLD.mend()
    return journal


async def after_every_line(
    graph: Graph[Any, Any], journal: Journal, lm: Any = None, **options: Any
) -> GraphResult[Any]:
    """Resume a run as it was after each of its lines, and replay it; they all come to the same."""
    stored = await journal.read("one")
    result = await graph.resume("one", journal=journal, **options)
    for lines in range(1, len(stored.lines)):
        left = await cut_journal(journal, lines)
        again = await graph.resume("one", lm() if lm else None, journal=left, **options)
        assert again.trace == result.trace
        assert [n.model_fields_set for n in again.trace] == [
            n.model_fields_set for n in result.trace
        ]
        replayed = await graph.replay("one", journal=left)
        assert replayed.trace == result.trace
    return result


# Nodes


class Text(Node):
    """What a validator does, it does once."""

    model_config = ConfigDict(frozen=True, populate_by_name=False)
    text: Annotated[str, AfterValidator(lambda text: f"{text}!")] = Field(alias="theText")
    numbers: list[int] = Field(default_factory=lambda: [WORLD.done["made"]])
    number: Annotated[int, Dep(get_number), AfterValidator(lambda number: number * 2)]

    @field_validator("numbers")
    @classmethod
    def longer(cls, numbers: list[int]) -> list[int]:
        return [*numbers, len(numbers)]

    @model_validator(mode="before")
    @classmethod
    def count_before(cls, data: Any) -> Any:
        WORLD.do("before")
        return data

    @model_validator(mode="after")
    def count_after(self) -> Text:
        WORLD.do("after")
        return self

    @computed_field
    @property
    def twice(self) -> str:
        return self.text * 2

    async def __call__(self) -> Shouted:
        WORLD.do("text")
        return Shouted(theText=self.text, numbers=[1])


class Shouted(Text):
    async def __call__(self) -> None:
        WORLD.do("shouted")


async def test_nodes_with_validators_and_aliases_resume_unchanged():
    graph = Graph(start=Text)
    journal = MemoryJournal()
    result = await graph.arun(Text(theText="a"), journal=journal, run_id="one")
    first, second = result.trace
    assert (first.text, first.number, first.numbers) == ("a!", 14, [0])
    assert (second.text, second.number, second.numbers) == ("a!!", 14, [1, 1])
    assert (await after_every_line(graph, journal)).trace == result.trace


async def test_a_fork_keeps_unchanged_values():
    graph = Graph(start=Text)
    journal = MemoryJournal()
    result = await graph.arun(Text(theText="a"), journal=journal, run_id="one")
    forked = await graph.fork("one", at=1, journal=journal, numbers=[5])
    again = await graph.resume(forked, journal=journal)
    assert again.trace[0] == result.trace[0]
    assert (again.trace[1].text, again.trace[1].numbers) == ("a!!", [5, 1])
    assert again.trace[1].number == 14
    replayed = await graph.replay(forked, journal=journal)
    assert replayed.trace == again.trace


class Loose(Node):
    model_config = ConfigDict(extra="allow")
    number: Annotated[int, Dep(get_number)]

    async def __call__(self) -> Loose | None:
        WORLD.do("loose")
        extra: Any = self
        return Loose(more=extra.more + 1) if extra.more < 3 else None


T = TypeVar("T")


class Inside(Node):
    number: Annotated[int, Dep(get_number)]

    async def __call__(self) -> None:
        WORLD.do("inside")


class Box(Node, Generic[T]):
    held: T
    inside: Annotated[Inside, Dep(Graph(start=Inside), cache=False)]

    async def __call__(self) -> None:
        WORLD.do("box")


Odd = Box[Literal["a.b", "0:C.d[1](e)"]]


class Pack(Node):
    words: list[Literal["a.b", "0:C.d[1](e)"]]
    boxes: Annotated[list[Odd], Map(Odd, over="words")]

    async def __call__(self) -> Box[list[int]]:
        return Box[list[int]](held=[len(self.boxes)])


async def test_a_class_with_a_slash_in_its_name_is_refused_before_a_run():
    graph = Graph(start=Box[Literal["a/b"]])
    with pytest.raises(ProofError, match="there is a /"):
        await graph.arun(graph.start(held="a/b"), journal=MemoryJournal())
    assert not WORLD.done


async def get_nothing() -> None:
    WORLD.do("nothing")


async def pick(item: int) -> int:
    WORLD.do("pick")
    return item


class Nothing(Node):
    nothing: Annotated[None, Dep(get_nothing)]
    words: list[int]
    items: Annotated[list[int], Map(pick, over="words")]

    async def __call__(self) -> Nothing | None: ...


LOOSE = [Loose(more=number, number=7) for number in (1, 2, 3)]
WORDS: Any = ["a.b", "0:C.d[1](e)"]
PACKED = Box[list[int]](held=[2], inside=Inside(number=7))
NOTHING = Nothing(nothing=None, words=[], items=[])


@pytest.mark.parametrize(
    ("start", "last", "script"),
    [
        pytest.param(Loose(more=1), LOOSE, [], id="undeclared fields"),
        pytest.param(Pack(words=WORDS), [PACKED], [], id="generics of any name"),
        pytest.param(Nothing(words=[]), [NOTHING], [None], id="None, no items, a choice to end"),
    ],
)
async def test_nodes_of_every_kind_resume_unchanged(
    start: Node, last: list[Node], script: list[Any]
):
    graph, journal = Graph(start=type(start)), MemoryJournal()
    result = await graph.arun(start, ScriptedLM(script), journal=journal, run_id="one")
    assert result.trace[-len(last) :] == last
    again = await after_every_line(graph, journal, lambda: ScriptedLM(script))
    assert again.trace == result.trace


async def test_a_value_of_the_caller_overrides_the_source_of_a_field():
    class Given(Node):
        number: Annotated[int, Dep(get_number)]

        async def __call__(self) -> Last:
            WORLD.do("given")
            return Last(number=self.number)

    class Last(EndNode):
        number: Annotated[int, Dep(get_number)]

    graph = Graph(start=Given)
    WORLD.failing.add("given")
    journal = await record_stopped_run(graph, Given(number=3))
    result = await graph.resume("one", journal=journal)
    assert result.trace == [Given(number=3), Last(number=3)]
    assert WORLD.done == {"given": 1}
    assert (await graph.replay("one", journal=journal)).trace == result.trace


async def test_a_body_may_return_its_own_node_or_an_earlier_node():
    class Turn(Node):
        number: int
        got: Annotated[int, Dep(get_number)]

        async def __call__(self) -> Turn | Other | None:
            WORLD.do(f"turn {WORLD.done['turns']}")
            WORLD.done["turns"] += 1
            match WORLD.done["turns"]:
                case 1:
                    return self
                case 2:
                    return Other(before=self)
                case _:
                    return None

    class Other(Node):
        before: Turn

        async def __call__(self) -> Turn:
            WORLD.do("other")
            return self.before

    graph = Graph(start=Turn)
    WORLD.failing.add("other")
    journal = await record_stopped_run(graph, Turn(number=1))
    result = await graph.resume("one", journal=journal)
    names = [type(node).__name__ for node in result.trace]
    assert names == ["Turn", "Turn", "Other", "Turn"]
    assert result.trace[0] == result.trace[1] == result.trace[3]
    assert WORLD.done["number"] == 1


async def test_a_node_is_stored_as_it_was_when_its_body_was_called():
    """A body that changes its own node changes it in memory, and not in the journal: after an
    interruption the change is lost. So bodies should return nodes, and not change them."""

    class Counted(Node):
        number: int

        async def __call__(self) -> After:
            self.number += 5
            return After()

    class After(Node):
        number: Annotated[int, Recall(Counted)]

        async def __call__(self) -> None:
            WORLD.do("after")

    graph = Graph(start=Counted)
    journal = MemoryJournal()
    WORLD.failing.add("after")
    with pytest.raises(NodeError) as caught:
        await graph.arun(Counted(number=1), journal=journal, run_id="one")
    assert caught.value.trace[0] == Counted(number=6)
    WORLD.mend()
    result = await graph.resume("one", journal=journal)
    assert result.trace[0] == Counted(number=1)


# Defaults that stood


async def get_soft() -> int:
    WORLD.do("soft")
    return 1


async def use_soft(soft: Annotated[int, Dep(get_soft)]) -> int:
    WORLD.do("use")
    return soft


class Begin(Node):
    text: str

    async def __call__(self) -> Filled: ...


class Filled(Node):
    soft: Annotated[int, Dep(use_soft)] = -1
    text: str

    async def __call__(self) -> None:
        WORLD.do("filled")


async def test_a_default_in_a_prompt_stays_although_its_source_recovers():
    graph = Graph(start=Begin)
    WORLD.failing |= {"soft", "filled"}
    journal = await record_stopped_run(graph, Begin(text="x"), ScriptedLM([{"text": "y"}]))
    lines = (await journal.read("one")).lines
    filled = next(line.n for line in lines if line.kind == "FillEnded")
    for kept in (filled + 1, len(lines)):
        left = await cut_journal(journal, kept)
        result = await graph.resume("one", ScriptedLM(), journal=left)
        assert result.result == Filled(soft=-1, text="y")
    assert WORLD.done["soft"] == 0
    left = await cut_journal(journal, filled)  # and before that, it is asked for again
    result = await graph.resume("one", ScriptedLM([{"text": "y"}]), journal=left)
    assert result.result == Filled(soft=1, text="y")


def open_client() -> Iterator[Client]:
    WORLD.do("open")
    yield Client()
    WORLD.do("close")


async def test_a_used_default_stays_if_another_field_is_computed_again():
    class Both(Node):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        client: Annotated[Client, Dep(open_client)]
        soft: Annotated[int, Dep(get_soft)] = 0

        async def __call__(self) -> Last:
            WORLD.do("both")
            return Last(number=self.soft)

    class Last(Node):
        number: int

        async def __call__(self) -> None:
            WORLD.do("last")

    graph = Graph(start=Both)
    WORLD.failing |= {"soft", "last"}
    journal = await record_stopped_run(graph, Both())
    result = await graph.resume("one", journal=journal)
    assert result.trace[0].soft == 0
    assert dict(WORLD.done) == {"open": 2, "close": 2, "both": 1, "last": 1}


async def test_a_replay_repeats_a_temporary_failure_of_a_source():
    class One(Node):
        soft: Annotated[int, Dep(get_soft)] = 0

        async def __call__(self) -> Two:
            return Two(number=self.soft)

    class Two(Node):
        number: int
        soft: Annotated[int, Dep(get_soft)] = 0

        async def __call__(self) -> Three:
            WORLD.do("two")
            return Three(number=self.soft)

    class Three(EndNode):
        number: int
        soft: Annotated[int, Dep(get_soft)] = 0

    graph = Graph(start=One)
    WORLD.failing |= {"soft", "two"}
    journal = await record_stopped_run(graph, One())
    result = await graph.resume("one", journal=journal)
    assert [node.soft for node in result.trace] == [0, 0, 1]
    assert (await graph.replay("one", journal=journal)).trace == result.trace
    assert (await graph.resume("one", journal=journal)).trace == result.trace


# What is shared by the whole run


async def test_inputs_of_a_shared_dependency_are_computed_once_for_all_callers():
    begun, go_on, asks_now = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def get_input() -> int:
        WORLD.do("input")
        return 1

    async def shared(given: Annotated[int, Dep(get_input, cache=False)], lm: LM) -> int:
        answer = await lm.make(Noted(number=given), Noted)
        begun.set()
        await go_on.wait()
        WORLD.do("shared")
        return answer.number

    async def slow() -> int:
        await begun.wait()
        return 1

    class Noted(EndNode):
        number: int

    class Item(Node):
        number: int

        async def __call__(self) -> Slow | Uses:
            return Slow() if self.number == 0 else Uses()

    class Slow(Node):
        slow: Annotated[int, Dep(slow)]

        async def __call__(self) -> Uses:
            WORLD.do("slow")
            asks_now.set()
            return Uses()

    class Uses(EndNode):
        shared: Annotated[int, Dep(shared)]

    class All(EndNode):
        numbers: list[int]
        items: Annotated[list[Uses], Map(Graph(start=Item), over="numbers")]

    graph = Graph(start=All)
    journal = MemoryJournal()
    lm = ScriptedLM([{"number": 5}])
    task = asyncio.create_task(graph.arun(All(numbers=[0, 1]), lm, journal=journal, run_id="one"))
    await asks_now.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    result = await graph.resume("one", ScriptedLM(), journal=journal)
    assert [item.shared for item in result.trace[0].items] == [5, 5]
    assert dict(WORLD.done) == {"input": 1, "slow": 1, "shared": 1}


async def test_a_shared_graph_continues_while_a_node_that_asked_for_it_is_retried():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> int:
        begun.set()
        await go_on.wait()
        WORLD.do("wait")
        return 5

    class SharedStart(Node):
        async def __call__(self) -> SharedMiddle:
            WORLD.do("start")
            return SharedMiddle(number=2)

    class SharedMiddle(Node):
        number: int
        waited: Annotated[int, Dep(wait)]

        async def __call__(self) -> SharedEnd:
            WORLD.do("middle")
            return SharedEnd(number=self.waited)

    class SharedEnd(EndNode):
        number: int

    async def stumble(number: int) -> int:
        await begun.wait()
        if number == 0:
            if "stumble" not in WORLD.done:
                WORLD.do("stumble")
                raise Trouble("once")
            go_on.set()
        return number

    class Item(EndNode):
        numbers: list[int]
        stumbled: Annotated[list[int], Map(stumble, over="numbers")]
        shared: Annotated[SharedEnd, Dep(Graph(start=SharedStart))]

    class All(Node):
        numbers: list[list[int]]
        items: Annotated[list[Item], Map(Graph(start=Item), over="numbers", retries=1)]

        async def __call__(self) -> None:
            WORLD.do("all")

    graph = Graph(start=All)
    WORLD.failing.add("all")
    journal = await record_stopped_run(graph, All(numbers=[[0], [1]]))
    result = await graph.resume("one", journal=journal)
    assert [item.shared.number for item in result.trace[0].items] == [5, 5]
    assert dict(WORLD.done) == dict.fromkeys(["start", "wait", "middle", "stumble", "all"], 1)
    lines = (await journal.read("one")).lines
    middle = next(line.n for line in lines if line.kind == "Returned")
    for kept in range(1, len(lines)):
        WORLD.__init__()
        WORLD.done["stumble"] = 1
        left = await cut_journal(journal, kept)
        assert (await graph.resume("one", journal=left)).trace == result.trace
        assert WORLD.done["start"] == (kept <= middle), kept


# Gates


class Doubled(Node):
    number: Annotated[int, Gate("How many?"), AfterValidator(lambda number: number * 2)]
    days: Annotated[list[date], Gate("When?")]
    text: Annotated[str, Gate("Which?"), BeforeValidator(lambda text: f"<{text}>")]

    async def __call__(self) -> None:
        WORLD.do("doubled")


async def test_an_answer_is_validated_once():
    graph = Graph(start=Doubled)
    journal = MemoryJournal()
    await graph.arun(Doubled(), journal=journal, run_id="one")
    await graph.answer("one", "number", 4, journal=journal)
    result = await graph.answer("one", "days", (date(2024, 1, 1),), journal=journal)
    assert [gate.field_name for gate in result.waiting] == ["text"]
    result = await graph.answer("one", "text", "a", journal=journal)
    days = [date(2024, 1, 1)]
    assert result.result == Doubled.model_construct(number=8, days=days, text="<a>")
    assert (await graph.resume("one", journal=journal)).trace == result.trace
    assert (await graph.replay("one", journal=journal)).trace == result.trace


class Deep(Node):
    number: Annotated[int, Dep(get_number)]
    ok: Annotated[bool, Gate("Deep down?")]

    async def __call__(self) -> None:
        WORLD.do("deep")


async def middle(deep: Annotated[Deep, Dep(Graph(start=Deep))]) -> str:
    WORLD.do("middle")
    return f"middle {deep.ok}"


async def outer(text: Annotated[str, Dep(middle)]) -> str:
    WORLD.do("outer")
    return f"outer {text}"


class Top(Node):
    text: Annotated[str, Dep(outer)]
    number: Annotated[int, Dep(get_number)]

    async def __call__(self) -> None:
        WORLD.do("top")


async def test_a_gate_in_a_subgraph_of_nested_dependencies_parks_the_run():
    graph = Graph(start=Top)
    journal = MemoryJournal()
    result = await graph.arun(Top(), journal=journal, run_id="one")
    (gate,) = result.waiting
    assert gate.address == "0:Top.text(text)(deep)/0:Deep.ok"
    result = await graph.answer("one", "Deep.ok", True, journal=journal)
    assert result.result == Top(text="outer middle True", number=7)
    assert dict(WORLD.done) == dict.fromkeys(["number", "deep", "middle", "outer", "top"], 1)
    assert (await graph.replay("one", journal=journal)).trace == result.trace


# LMs and budgets


class Topic(Node):
    name: str

    async def __call__(self) -> Joke: ...


class Joke(Node):
    text: str

    @field_validator("text")
    @classmethod
    def is_short(cls, text: str) -> str:
        if len(text) > 5:
            raise ValueError("shorter, please")
        return text

    async def __call__(self) -> Laugh: ...


class Laugh(Node):
    loud: bool
    number: Annotated[int, Dep(get_number)]

    async def __call__(self) -> None:
        WORLD.do("laugh")


jokes = Graph(start=Topic)


async def test_answers_of_an_interrupted_question_are_charged_on_resume():
    lm = ToyBackend({"text": "far too long"}, KeyboardInterrupt(), attempts=2)
    journal = MemoryJournal()
    with pytest.raises(KeyboardInterrupt):
        await jokes.arun(Topic(name="x"), lm, journal=journal, run_id="one")
    judged = [n.n for n in (await journal.read("one")).lines if n.kind == "AnswerJudged"]
    left = await cut_journal(journal, judged[0] + 1)
    rest = [{"text": "ha"}, {"loud": True}]
    with Budget(calls=3) as budget:
        result = await jokes.resume("one", ToyBackend(*rest), journal=left)
    assert budget.usage.calls == 3
    assert result.usage.calls == 3
    left = await cut_journal(journal, judged[0] + 1)
    with Budget(calls=2), pytest.raises(BudgetError):
        await jokes.resume("one", ToyBackend(*rest), journal=left)


@pytest.mark.postgres
async def test_answers_are_counted_once_however_often_a_run_was_cut_off():
    class Whole(EndNode):
        text: str

    class Puts(Node):
        count: int

        async def __call__(self, lm: LM) -> Whole:
            texts = [(await lm.make(self, Whole)).text for _ in range(self.count)]
            return Whole(text="".join(texts))

    graph, journal, lm = (
        Graph(start=Puts),
        MemoryJournal(),
        ToyBackend(*[{"text": "a"}] * 3),
    )
    await graph.arun(Puts(count=3), lm, journal=journal, run_id="one")
    for cut in (1, 3, 2):
        lines = (await journal.read("one")).lines
        answered = [line.n for line in lines if line.kind == "LMAnswered"]
        journal = await cut_journal(journal, answered[cut - 1] + 1)
        lm = ToyBackend(*[{"text": "a"}] * (3 - cut))
        result = await graph.resume("one", lm, journal=journal)
        assert (lm.calls, result.usage.calls) == (3 - cut, 3)
        assert (await graph.resume("one", lm, journal=journal)).usage == result.usage


async def test_nested_budgets_and_budgeted_lms_are_each_charged_once():
    WORLD.failing.add("laugh")
    journal = await record_stopped_run(
        jokes, Topic(name="x"), ToyBackend({"text": "ha"}, {"loud": True})
    )
    with Budget(calls=10) as outer_budget, Budget(calls=10) as inner_budget:
        lm = Budgeted(ToyBackend(), Budget(calls=10))
        WORLD.failing.add("laugh")
        with pytest.raises(NodeError):
            await jokes.resume("one", lm, journal=journal)
        WORLD.mend()
        await jokes.resume("one", lm, journal=journal)
    for budget in (outer_budget, inner_budget, lm.budget):
        assert budget.usage.calls == 2
    assert (await jokes.resume("one", journal=journal)).usage.calls == 2


async def test_a_budget_of_seconds_includes_the_time_before_a_resume():
    WORLD.failing.add("laugh")
    journal = await record_stopped_run(
        jokes, Topic(name="x"), ToyBackend({"text": "ha"}, {"loud": True})
    )
    stored = await journal.read("one")
    # As if the LM had taken an hour to fill the first node.
    filled = next(line.n for line in stored.lines if line.kind == "FillEnded")
    lines = [
        line._replace(at=line.at + (3600 if line.n >= filled else 0)) for line in stored.lines
    ][: filled + 1]
    later = MemoryJournal()
    info = replace(stored.info, status="running", error="", owner=None, lease_until=None)
    await later.put(replace(stored, info=info, lines=tuple(lines)))
    with Budget(seconds=1800), pytest.raises(BudgetError):
        await jokes.resume("one", ToyBackend({"loud": True}), journal=later)
    with Budget(seconds=7200) as budget:
        await jokes.resume("one", ToyBackend({"loud": True}), journal=later)
    assert 3600 <= budget.elapsed < 3700


async def test_an_lm_call_of_a_prefetched_dependency_is_counted_once():
    async def ask(lm: LM) -> int:
        return len((await lm.make(Topic(name="y"), Joke)).text)

    class First(Node):
        name: str

        async def __call__(self) -> Second: ...

    class Second(Node):
        text: str

        async def __call__(self) -> Third: ...

    class Third(Node):
        asked: Annotated[int, Dep(ask)]
        loud: bool

        async def __call__(self) -> None:
            WORLD.do("third")

    def answers(prompt: Any) -> Any:
        wanted = prompt.question.target
        return {"text": "ha"} if wanted in (Second, Joke) else {"loud": True}

    graph = Graph(start=First)
    WORLD.failing.add("third")
    lm = ToyBackend(answers)
    journal = await record_stopped_run(graph, First(name="x"), lm)
    assert lm.calls == 3
    lines = (await journal.read("one")).lines
    judged = {
        line.step
        for line in lines
        if line.kind == "AnswerJudged" and '"field":"asked"' in line.data
    }
    assert judged == {2}  # where it was asked for, however early
    with Budget(calls=9) as budget:
        result = await graph.resume("one", lm, journal=journal)
    assert budget.usage.calls == result.usage.calls == 3


# Replays of runs that did not end


async def test_a_replay_of_an_interrupted_run_reports_where_the_recording_ends():
    journal = MemoryJournal()
    lm = ToyBackend({"text": "ha"}, {"loud": True})
    await jokes.arun(Topic(name="x"), lm, journal=journal, run_id="one")
    lines = (await journal.read("one")).lines
    filled = [line.n for line in lines if line.kind == "FillEnded"]
    left = await cut_journal(journal, filled[-1])
    with pytest.raises(JournalError) as caught:
        await jokes.replay("one", journal=left)
    assert caught.value.code in ("bae-replay-ended", "bae-replay-live")
    assert caught.value.fix


# Tried again


async def test_a_retried_subgraph_never_mixes_values_of_two_attempts():
    class Start(Node):
        word: str

        async def __call__(self) -> Draft:
            WORLD.do(f"start {self.word}")
            return Draft(number=WORLD.done[f"start {self.word}"])

    class Draft(Node):
        number: int
        got: Annotated[int, Dep(get_number, cache=False)]

        async def __call__(self) -> Written: ...

    class Written(Node):
        number: Annotated[int, Recall(Draft)]
        text: str

        async def __call__(self) -> End:
            if self.number == 1 and self.text.startswith("b"):
                raise Trouble("the first time")
            return End(number=self.number, text=self.text)

    class End(EndNode):
        number: int
        text: str

    class All(EndNode):
        words: list[str]
        ends: Annotated[list[End], Map(Graph(start=Start), over="words", retries=1)]

    graph = Graph(start=All)

    def lm() -> ScriptedLM:
        words = iter("abcdefgh" * 9)
        return ScriptedLM({Written: [{"text": f"{next(words)} {n}"} for n in range(60)]})

    journal = MemoryJournal()
    await graph.arun(All(words=["x", "y", "z"]), lm(), journal=journal, run_id="one")
    lines = (await journal.read("one")).lines
    assert sum(line.kind == "RunStarted" for line in lines) == 1 + 3 + 1
    for kept in range(1, len(lines), 2):
        left = await cut_journal(journal, kept)
        result = await graph.resume("one", lm(), journal=left)
        nested = result.journal.nested()
        for index, end in enumerate(result.trace[0].ends):
            trace = nested[f"0:All.ends[{index}]"]
            drafts = [node for node in trace if isinstance(node, Draft)]
            written = [node for node in trace if isinstance(node, Written)]
            assert end == End(number=drafts[-1].number, text=written[-1].text)
            assert written[-1].number == drafts[-1].number


@pytest.mark.postgres
async def test_an_open_gate_of_a_failed_run_can_be_answered():
    class Beside(EndNode):
        ok: Annotated[bool, Gate("well?")]
        number: Annotated[int, Dep(get_number)]

    graph = Graph(start=Beside)
    WORLD.failing.add("number")
    journal = await record_stopped_run(graph, Beside())
    assert (await journal.read("one")).info.status == "failed"
    result = await graph.answer("one", "ok", True, journal=journal)
    assert result.result == Beside(ok=True, number=7)


async def test_an_uncached_dependency_ignores_values_that_the_run_has_cached():
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> int:
        reached.set()
        await go_on.wait()
        return 1

    class First(Node):
        number: Annotated[int, Dep(get_number)]
        ok: Annotated[bool, Gate("well?")]
        waited: Annotated[int, Dep(wait)]

        async def __call__(self) -> Second:
            return Second()

    class Second(EndNode):
        number: Annotated[int, Dep(get_number, cache=False)]

    graph = Graph(start=First)
    journal = MemoryJournal()
    cache: dict[Any, Any] = {}
    begun = graph.arun(First(), journal=journal, run_id="one", dep_cache=cache)
    task = asyncio.create_task(begun)
    await reached.wait()
    await graph.answer("one", "ok", True, journal=journal, go_on=False)
    go_on.set()
    assert (await task).trace[-1] == Second(number=7)
    assert cache[get_number] == 7
    assert WORLD.done["number"] == 2
