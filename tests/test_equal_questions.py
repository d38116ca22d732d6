"""Equal questions that a body or a function asks an LM, at the same time or one after the other:
each has an answer of its own, after a resume and in a replay too."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from bae import LM, Dep, Graph, Map, Node
from bae.journal import LMAnswered, MemoryJournal
from end_node import EndNode
from journal_graphs import Trouble, cut_journal
from toy_backend import FourMethods


class Idea(EndNode):
    text: str


class Outcome(EndNode):
    text: str


class Counting(FourMethods):
    """An LM that fills with the number of the question, and answers them in a given order."""

    def __init__(self, order: str = "", failing: str = "") -> None:
        self.calls = 0
        self._order = order
        self._failing = failing
        self._answered = asyncio.Condition()
        self._done: list[str] = []

    async def fill(
        self, target: type[Any], resolved: Mapping[str, Any], instruction: str, source: Any = None
    ) -> Any:
        plain = [name for name, field in target.model_fields.items() if not field.metadata]
        if not plain:
            return target(**resolved)
        number = str(self.calls)
        self.calls += 1
        if number in self._failing:
            raise Trouble(number)
        if number in self._order:
            before = self._order[: self._order.index(number)]
            async with self._answered:
                await self._answered.wait_for(lambda: set(before) <= set(self._done))
        node = target(text=number, **resolved)
        async with self._answered:
            self._done.append(number)
            self._answered.notify_all()
        return node


class Brainstorm(Node):
    """Asks the same thing several times at once."""

    async def __call__(self, lm: LM) -> Outcome:
        ideas = await asyncio.gather(*(lm.make(self, Idea) for _ in range(3)))
        return Outcome(text=" ".join(idea.text for idea in ideas))


BRAINSTORM = Graph(start=Brainstorm, end=Outcome)


@pytest.mark.parametrize("order", ["012", "210", "102", "201"])
async def test_a_replay_gives_equal_questions_their_own_answers_in_any_order(order):
    journal = MemoryJournal()
    result = await BRAINSTORM.arun(Brainstorm(), Counting(order), journal=journal, run_id="one")

    assert result.result.text == "0 1 2"
    assert (await BRAINSTORM.replay("one", journal=journal)).trace == result.trace


@pytest.mark.parametrize("order", ["210", "102", "201"])
@pytest.mark.parametrize("answered", [1, 2])
async def test_a_resumed_body_repeats_only_unanswered_questions(order, answered):
    journal = MemoryJournal()
    await BRAINSTORM.arun(Brainstorm(), Counting(order), journal=journal, run_id="one")
    lines = (await journal.read("one")).lines
    numbers = [line.n for line in lines if line.kind == "LMAnswered"]
    left = await cut_journal(journal, numbers[answered - 1] + 1)
    lm = Counting()
    lm.calls = 7
    result = await BRAINSTORM.resume("one", lm, journal=left)

    again = iter(range(7, 10))
    answered_keys = order[:answered]
    expected = [n if n in answered_keys else str(next(again)) for n in "012"]
    assert result.result.text == " ".join(expected)
    assert lm.calls == 7 + 3 - answered
    assert (await BRAINSTORM.replay("one", journal=left)).trace == result.trace


async def test_a_question_repeated_after_a_failure_is_the_same_question():
    class Stubborn(Node):
        async def __call__(self, lm: LM) -> Outcome:
            made: list[str] = []
            while len(made) < 2:
                try:
                    made.append((await lm.make(self, Idea)).text)
                except Trouble:
                    made.append("-")
                    made.append((await lm.make(self, Idea)).text)
            return Outcome(text=" ".join(made))

    graph, journal, lm = Graph(start=Stubborn), MemoryJournal(), Counting(failing="0")
    result = await graph.arun(Stubborn(), lm, journal=journal, run_id="one")
    assert result.result.text == "- 1"
    lines = (await journal.read("one")).lines
    answered = next(line.n for line in lines if line.kind == "LMAnswered")

    again = Counting()
    again.calls = 7
    resumed = await graph.resume("one", again, journal=await cut_journal(journal, answered + 1))

    assert resumed.result.text == "1 7"  # the paid answer is used, though it now comes first


async def ask(item: str, lm: LM) -> str:
    return (await lm.make(Brainstorm(), Idea)).text


async def get_items() -> list[str]:
    return ["a", "b", "c"]


class Listed(EndNode):
    items: Annotated[list[str], Dep(get_items)]
    answers: Annotated[list[str], Map(ask, over="items")]


class Lists(Node):
    async def __call__(self) -> Listed: ...


LISTS = Graph(start=Lists, end=Listed)


async def test_items_of_a_map_with_equal_questions_keep_their_own_answers_after_a_resume():
    journal = MemoryJournal()
    result = await LISTS.arun(Lists(), Counting("120"), journal=journal, run_id="one")
    assert result.result.answers == ["0", "1", "2"]
    assert [(record.asker.item, record.number) for record in result.journal.of(LMAnswered)] == [
        (1, 0), (2, 0), (0, 0)
    ]  # fmt: skip
    assert (await LISTS.replay("one", journal=journal)).trace == result.trace

    for cut in range(3, len((await journal.read("one")).lines)):
        lm = Counting()
        lm.calls = 7
        left = await cut_journal(journal, cut)
        answered = [line for line in (await left.read("one")).lines if line.kind == "LMAnswered"]
        resumed = await LISTS.resume("one", lm, journal=left)
        assert len(set(resumed.result.answers)) == 3, cut
        assert lm.calls == 7 + 3 - len(answered)


async def test_two_lm_parameters_of_a_function_share_the_numbering_of_questions():
    async def ask_both(first: LM, second: LM) -> str:
        made = await asyncio.gather(first.make(Brainstorm(), Idea), second.make(Brainstorm(), Idea))
        return " ".join(idea.text for idea in made)

    class Both(EndNode):
        text: Annotated[str, Dep(ask_both)]

    class Start(Node):
        async def __call__(self) -> Both: ...

    graph, journal = Graph(start=Start, end=Both), MemoryJournal()
    result = await graph.arun(Start(), Counting("10"), journal=journal, run_id="one")
    numbers = [record.number for record in result.journal.of(LMAnswered)]

    assert (result.result.text, numbers) == ("0 1", [1, 0])


async def count_up() -> int:
    COUNTED.append(1)
    return len(COUNTED)


COUNTED: list[int] = []


async def test_nodes_filled_concurrently_keep_their_own_recorded_values_after_a_resume():
    COUNTED.clear()

    class Numbered(EndNode):
        number: Annotated[int, Dep(count_up, cache=False)]
        text: str

    class Several(Node):
        async def __call__(self, lm: LM) -> Numbered | Outcome:
            made = await asyncio.gather(*(lm.make(self, Numbered) for _ in range(3)))
            return Outcome(text=" ".join(str(node.number) for node in made))

    graph, journal = Graph(start=Several), MemoryJournal()
    with pytest.raises(Exception, match="0"):
        await graph.arun(Several(), Counting(failing="012"), journal=journal, run_id="one")
    result = await graph.resume("one", Counting(), journal=journal)

    assert len(set(result.result.text.split())) == 3
