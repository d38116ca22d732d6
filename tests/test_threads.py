"""`Thread`: a node sees the earlier turns of its thread, and an LM reads them as messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from bae import (
    LM,
    BaeError,
    Dep,
    Graph,
    JournalError,
    Messages,
    Node,
    NodeConfig,
    Recall,
    Thread,
    ToolCall,
    Tools,
    Turn,
)
from bae.journal import MemoryJournal, TurnsShown, TurnStarted
from bae.lm import Cached, Prompt
from bae.testing import Call, ScriptedLM
from end_node import EndNode
from toy_backend import ToyBackend


class Say(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    history: Annotated[Messages, Thread(last=4)]
    text: str


graph = Graph(start=Say, end=Reply)


def make_scripted_lm(*replies: str) -> ScriptedLM:
    return ScriptedLM({Reply: [{"text": reply} for reply in replies]})


async def talk(journal: MemoryJournal, *texts: str, thread: str = "ana", of: Any = graph) -> Any:
    """Say the texts one after the other; the last prompt."""
    prompt: Prompt | None = None
    for text in texts:
        lm = make_scripted_lm(f"re: {text}")
        await of.arun(of.start(text=text), lm, thread=thread, journal=journal)
        prompt = lm.prompts[-1]
    assert prompt is not None
    return prompt


def turns_of(prompt: Prompt) -> list[tuple[str, str]]:
    return [
        (message.role, message.text) for message in prompt.conversation if message.kind == "turn"
    ]


def pairs(history: Sequence[Turn]) -> list[tuple[str, str]]:
    return [(turn.user, turn.reply) for turn in history]


# What an LM reads


async def test_earlier_turns_are_messages_before_the_prompt():
    async with MemoryJournal() as journal:
        prompt = await talk(journal, "I am Ana.", "And who am I?")
        assert turns_of(prompt) == [("user", "I am Ana."), ("assistant", "re: I am Ana.")]
        assert prompt.text == 'Reply\n\n{"Say":{"text":"And who am I?"}}'
        assert [message.role for message in prompt.conversation] == ["user", "assistant", "user"]


async def test_the_head_of_the_prompt_is_the_same_from_turn_to_turn():
    async with MemoryJournal() as journal:
        prompts = [await talk(journal, f"{n}") for n in range(4)]
        for before, after in pairwise(prompts):
            assert after.system == before.system
            head = before.conversation[:-1]
            assert after.conversation[: len(head)] == head


async def test_the_prompt_mentions_the_oldest_turns_that_were_left_out():
    async with MemoryJournal() as journal:
        prompt = await talk(journal, *map(str, range(7)))
        assert turns_of(prompt)[0] == ("user", "(2 earlier turns are left out)\n\n2")
        assert len(turns_of(prompt)) == 8


async def test_a_prompt_mentions_that_every_turn_is_too_long_to_be_shown():
    class Answer(EndNode):
        history: Annotated[Messages, Thread(limit=100)]
        text: str

    class Ask(Node):
        text: str

        async def __call__(self) -> Answer: ...

    of = Graph(start=Ask, end=Answer)
    async with MemoryJournal() as journal:
        for text in ("x" * 200, "And now?"):
            lm = ScriptedLM({Answer: {"text": "fine"}})
            result = await of.arun(Ask(text=text), lm, thread="t", journal=journal)
    assert len(result.result.history) == 0
    assert turns_of(lm.prompts[-1]) == [
        ("user", "(1 earlier turn is left out)"),
        ("assistant", "(no text)"),
    ]


async def count_shown_turns(marker: Thread, texts: Sequence[str]) -> list[tuple[int, int]]:
    """How many turns each turn of a thread shows, and how many it leaves out."""

    class Answer(EndNode):
        history: Annotated[Messages, marker]
        text: str

    class Ask(Node):
        text: str

        async def __call__(self) -> Answer: ...

    of, counts = Graph(start=Ask, end=Answer), list[tuple[int, int]]()
    async with MemoryJournal() as journal:
        for text in texts:
            lm = ScriptedLM({Answer: {"text": ""}})
            result = await of.arun(Ask(text=text), lm, thread="t", journal=journal)
            history = result.result.history
            assert sum(turn.size for turn in history) <= marker.limit
            counts.append((len(history), history.omitted))
    return counts


async def test_the_newest_turns_are_shown_after_a_turn_that_is_too_long():
    texts = ["x" * 10] * 5 + ["y" * 500] + ["z" * 10] * 12
    counts = await count_shown_turns(Thread(last=20, limit=200), texts)
    assert counts[6:10] == [(0, 6), (1, 6), (2, 6), (3, 6)]
    assert {shown for shown, _ in counts[10:14]} == {3}
    assert counts[14:] == [(4, 10), (5, 10), (6, 10), (7, 10)]


async def test_choices_and_fills_after_a_node_with_a_thread_show_its_turns():
    class Open(Node):
        text: str
        history: Annotated[Messages, Thread()]

        async def __call__(self) -> Yes | No: ...

    class Yes(EndNode):
        text: str

    class No(EndNode):
        text: str

    of = Graph(start=Open)
    async with MemoryJournal() as journal:
        for text in ("one", "two"):
            backend = ToyBackend({"choice": "Yes"}, {"text": f"re: {text}"}, one_call=False)
            await of.arun(Open(text=text), backend, thread="t", journal=journal)
    choice, fill = backend.prompts
    assert turns_of(choice) == turns_of(fill) == [("user", "one"), ("assistant", "re: one")]
    assert "history" not in choice.text + fill.text


async def test_a_filled_choice_shows_the_turns_and_stores_them():
    class Open(Node):
        text: str

        async def __call__(self) -> Reply | Stop: ...

    class Stop(EndNode): ...

    of = Graph(start=Open)
    async with MemoryJournal() as journal:
        for text in ("one", "two"):
            answer = {"answer": {"choice": "Reply", "fields": {"text": f"re: {text}"}}}
            backend = ToyBackend(answer)
            result = await of.arun(Open(text=text), backend, thread="t", journal=journal)
        (prompt,) = backend.prompts
        assert turns_of(prompt) == [("user", "one"), ("assistant", "re: one")]
        assert pairs(result.trace[-1].history) == [("one", "re: one")]
        again = await of.replay(result.run_id, journal=journal)
        assert again.trace == result.trace


async def test_a_flat_prompt_separates_the_turns_from_the_question():
    async with MemoryJournal() as journal:
        prompt = await talk(journal, "one", "two")
        assert prompt.flat() == (
            "Earlier, the user said:\none\n\nand you replied:\nre: one\n\n"
            'Now you are asked:\nReply\n\n{"Say":{"text":"two"}}'
        )


async def test_the_correction_of_a_wrong_answer_follows_the_turns():
    async with MemoryJournal() as journal:
        await talk(journal, "one")
        backend = ToyBackend({"text": 5}, {"text": "two"})
        await graph.arun(Say(text="two"), backend, thread="ana", journal=journal)
    kinds = [message.kind for message in backend.prompts[1].conversation]
    assert kinds == ["turn", "turn", "question", "correction", "correction"]
    assert len(backend.prompts[1].corrections) == 1
    assert backend.prompts[0].is_first


async def test_a_cache_distinguishes_equal_questions_after_different_turns():
    backend = ToyBackend(lambda prompt: {"text": f"{len(prompt.conversation)} messages"})
    cached = Cached(backend)
    texts: list[str] = []
    async with MemoryJournal() as journal:
        for thread in ("a", "a", "b", "a"):
            result = await graph.arun(Say(text="hi"), cached, thread=thread, journal=journal)
            texts.append(result.trace[-1].text)
    assert texts == ["1 messages", "3 messages", "1 messages", "5 messages"]
    assert backend.calls == 3


async def test_tool_results_of_earlier_turns_are_shown_if_the_thread_asks_for_calls():
    def stock(item: str) -> int:
        return 7

    def make(calls: bool) -> Graph[Any, Any]:
        class Ask(Node):
            text: str

            async def __call__(self) -> Told: ...

        class Told(EndNode):
            history: Annotated[Messages, Thread(calls=calls)]
            calls_made: Annotated[list[ToolCall], Tools(stock)]
            text: str

        return Graph(start=Ask)

    for shows in (True, False):
        of = make(shows)
        async with MemoryJournal() as journal:
            for text in ("how many lamps?", "and now?"):
                lm = ScriptedLM([Call("stock", item="lamp"), {"text": "seven"}])
                result = await of.arun(of.start(text=text), lm, thread="t", journal=journal)
            shown = result.trace[-1].history[0]
            user = shown.messages()[0].text
            assert user.startswith("how many lamps?")
            assert ('[stock {"item": "lamp"}: 7]' in user) is shows


# Texts


class Order(BaseModel):
    item: str
    count: int


async def test_the_text_of_a_node_is_its_field_its_only_text_or_its_json():
    class Form(Node):
        order: Order
        note: str
        code: str = Field("1234", repr=False)

        async def __call__(self) -> Answer2: ...

    class Answer2(EndNode):
        history: Annotated[Messages, Thread()]
        order: Order

    class Named(Form):
        node_config = NodeConfig(text="note")

        async def __call__(self) -> Answer2: ...

    order = {"item": "lamp", "count": 2}
    for cls, user in (
        (Form, '{"order": {"item": "lamp", "count": 2}, "note": "soon", "code": "[withheld]"}'),
        (Named, "soon"),
    ):
        of = Graph(start=cls)
        async with MemoryJournal() as journal:
            for _ in range(2):
                lm = ScriptedLM({Answer2: {"order": order}})
                start = cls(order=Order(**order), note="soon")
                result = await of.arun(start, lm, thread="t", journal=journal)
        (turn,) = result.trace[-1].history
        assert turn.user == user
        assert turn.reply == '{"order": {"item": "lamp", "count": 2}}'


async def test_a_secret_of_an_earlier_turn_is_not_shown_even_from_the_journal():
    class Login(Node):
        name: str
        token: str = Field(repr=False)

        async def __call__(self) -> Reply: ...

    of = Graph(start=Login)
    async with MemoryJournal(secrets=True) as journal:
        for _ in range(2):
            lm = make_scripted_lm("hello")
            start = Login(name="ana", token="s3cret")
            await of.arun(start, lm, thread="t", journal=journal)
    assert "s3cret" not in str(lm.prompts[-1])


async def test_turns_of_a_changed_graph_are_shown_as_text():
    class Chat(Node):
        question: str

        async def __call__(self) -> Reply: ...

    async with MemoryJournal() as journal:
        await talk(journal, "one")
        lm = make_scripted_lm("two")
        await Graph(start=Chat).arun(Chat(question="two"), lm, thread="ana", journal=journal)
        assert turns_of(lm.prompts[-1]) == [("user", "one"), ("assistant", "re: one")]


async def test_a_turn_with_a_renamed_text_field_is_shown_unchanged():
    class Say(Node):
        node_config = NodeConfig(text="message")
        message: str
        language: str = "en"

        async def __call__(self) -> Reply: ...

    async with MemoryJournal() as journal:
        await talk(journal, "one")
        lm = make_scripted_lm("two")
        await Graph(start=Say).arun(Say(message="two"), lm, thread="ana", journal=journal)
        assert turns_of(lm.prompts[-1]) == [("user", "one"), ("assistant", "re: one")]


# Values


async def test_a_body_can_read_the_turns():
    class Count(Node):
        text: str
        history: Annotated[Messages, Thread(last=None)]

        async def __call__(self) -> Counted:
            return Counted(text=f"{len(self.history)}: {[turn.user for turn in self.history]}")

    class Counted(EndNode):
        text: str

    of = Graph(start=Count)
    async with MemoryJournal() as journal:
        for text in "abc":
            result = await of.arun(Count(text=text), thread="t", journal=journal)
        assert result.trace[-1].text == "2: ['a', 'b']"
        history = result.trace[0].history
        assert (history.thread, history.omitted) == ("t", 0)
        assert [turn.run_id for turn in history] == [
            run.run_id for run in (await journal.runs(thread="t"))[:0:-1]
        ]


@pytest.mark.parametrize("has_journal", [True, False])
async def test_a_run_without_a_thread_has_no_turns_and_no_error(has_journal: bool):
    journal = MemoryJournal() if has_journal else None
    result = await graph.arun(Say(text="hi"), make_scripted_lm("hello"), journal=journal)
    assert result.trace[-1].history == Messages()


async def test_a_test_can_pass_its_own_turns():
    class Open(Node):
        text: str
        history: Annotated[Messages, Thread()] = Messages()

        async def __call__(self) -> Short: ...

    class Short(EndNode):
        text: str

    lm = ScriptedLM({Short: {"text": "you are Ana"}})
    history = Messages([("I am Ana.", "Hello Ana!")])
    result = await Graph(start=Open).arun(Open(text="Who am I?", history=history), lm)
    assert turns_of(lm.prompts[0]) == [("user", "I am Ana."), ("assistant", "Hello Ana!")]
    assert result.trace[0].history is history


async def test_a_dependency_can_take_the_turns_and_is_called_once_for_equal_turns():
    called: list[int] = []

    async def summarize(history: Messages) -> str:
        called.append(len(history))
        return f"{len(history)} turns"

    class Sum(Node):
        history: Annotated[Messages, Thread()]
        summary: Annotated[str, Dep(summarize, history="history")]
        again: Annotated[str, Dep(summarize, history="history")]
        text: str

        async def __call__(self) -> None: ...

    class Open(Node):
        text: str

        async def __call__(self) -> Sum: ...

    of = Graph(start=Open)
    async with MemoryJournal() as journal:
        for _ in range(2):
            lm = ScriptedLM({Sum: {"text": "ok"}})
            result = await of.arun(Open(text="hi"), lm, thread="t", journal=journal)
        assert called == [0, 1]
        assert result.trace[-1].summary == "1 turns"
        assert (await of.replay(result.run_id, journal=journal)).trace == result.trace


async def test_a_subgraph_sees_the_turns_of_the_run():
    class Find(Node):
        history: Annotated[Messages, Thread()]

        async def __call__(self) -> Found:
            return Found(text=f"{len(self.history)} turns")

    class Found(EndNode):
        text: str

    class Open(Node):
        text: str
        found: Annotated[Found, Dep(Graph(start=Find, end=Found))]

        async def __call__(self) -> None: ...

    of = Graph(start=Open)
    async with MemoryJournal() as journal:
        for _ in range(3):
            result = await of.arun(Open(text="hi"), thread="t", journal=journal)
    assert result.trace[0].found.text == "2 turns"


async def test_a_thread_on_a_class_outside_the_graph_is_refused_in_a_conversation():
    class Open(Node):
        text: str

        async def __call__(self, lm: LM) -> None:
            await lm.make(self, Reply)

    of = Graph(start=Open)
    await of.arun(Open(text="hi"), make_scripted_lm("hello"))
    async with MemoryJournal() as journal:
        with pytest.raises(JournalError) as refused:
            await of.arun(Open(text="hi"), make_scripted_lm("hello"), thread="t", journal=journal)
    assert refused.value.code == "bae-thread-outside"


async def test_a_recall_does_not_find_the_turns_of_a_thread():
    class Open(Node):
        text: str
        history: Annotated[Messages, Thread()]

        async def __call__(self) -> Later: ...

    class Later(EndNode):
        history: Annotated[Messages, Recall()]

    (problem,) = Graph(start=Open).validate()
    assert problem.code == "bae-recall-path"


# What is refused


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", True])
def test_a_thread_takes_a_number_of_turns(wrong: Any):
    with pytest.raises(ValueError, match="Thread"):
        Thread(wrong)
    with pytest.raises(ValueError, match="Thread"):
        Thread(limit=wrong)


def test_a_thread_field_of_another_type_is_a_problem_with_a_fix():
    class Open(Node):
        history: Annotated[list[str], Thread()]

        async def __call__(self) -> None: ...

    (problem,) = Graph(start=Open).validate()
    assert (problem.code, problem.place) == ("bae-thread-type", "Open.history")
    assert "Annotated[Messages, Thread()]" in problem.fix


def test_two_threads_on_a_node_or_an_unknown_text_field_are_problems():
    class Open(Node):
        one: Annotated[Messages, Thread()]
        two: Annotated[Messages, Thread(last=2)]
        node_config = NodeConfig(text="none")

        async def __call__(self) -> None: ...

    codes = {problem.code for problem in Graph(start=Open).validate()}
    assert codes == {"bae-thread-twice", "bae-text-unknown"}


def test_a_messages_field_without_a_thread_is_a_problem():
    class Open(Node):
        async def __call__(self) -> Made: ...

    class Made(EndNode):
        history: Messages

    (problem,) = Graph(start=Open).validate()
    assert problem.code == "bae-thread-missing"
    assert "Thread()" in problem.fix


async def test_the_arguments_of_a_turn_are_checked_before_the_run():
    async with MemoryJournal() as journal:
        for wrong in (
            {"thread": "t"},
            {"thread": "t", "journal": journal, "busy": "never"},
            {"thread": "t", "journal": journal, "interrupted": "maybe"},
            {"thread": "t", "journal": journal, "busy_timeout": -1},
        ):
            with pytest.raises(ValueError):
                await graph.arun(Say(text="hi"), make_scripted_lm(), **wrong)
        for name in ("", " ", "a\nb", 5, "a" * 501):
            with pytest.raises(BaeError) as refused:
                await graph.arun(Say(text="hi"), make_scripted_lm(), thread=name, journal=journal)  # pyright: ignore[reportArgumentType]
            assert refused.value.code == "bae-thread-name"
        for metadata in ({"a": object()}, {1: "a"}, {"n": float("nan")}, {"a": "\ud800"}):
            with pytest.raises(TypeError, match="metadata"):
                await graph.arun(
                    Say(text="hi"), make_scripted_lm(), journal=journal, metadata=metadata
                )  # pyright: ignore[reportArgumentType]
        assert await journal.runs() == []


@pytest.mark.parametrize("wrong", ["text", [("a",)], [("a", 1)], ["ab"]])
def test_messages_accept_only_pairs_of_texts(wrong: Any):
    with pytest.raises(TypeError, match="Messages"):
        Messages(wrong)


# Records and prompts


async def test_a_journal_stores_the_run_ids_of_turns_without_their_texts():
    async with MemoryJournal() as journal:
        await talk(journal, "one", "two", "three")
        newest, *others = await journal.runs(thread="ana")
        lines = (await journal.read(newest.run_id)).lines
        assert not any("one" in line.data for line in lines)
        kinds = {line.kind: line.data for line in lines}
        assert others[0].run_id in kinds["TurnStarted"]
        assert others[1].run_id in kinds["TurnsShown"]
        why = await journal.why(newest.run_id, "Reply.history")
        assert (why.source, why.kept, why.value) == ("thread", "turns", None)
        assert "2 earlier turns" in str(why)


async def test_the_records_of_a_run_have_the_turns():
    async with MemoryJournal() as journal:
        await talk(journal, "one")
        async with graph.stream(
            Say(text="two"), make_scripted_lm("re: two"), thread="ana", journal=journal
        ) as records:
            seen = [record async for record in records]
        (shown,) = [record for record in seen if isinstance(record, TurnsShown)]
        (started,) = [record for record in seen if isinstance(record, TurnStarted)]
        assert pairs(shown.value) == [("one", "re: one")]
        assert (started.number, shown.count, shown.first) == (1, 1, started.previous)


def test_graph_prompts_show_a_sample_turn():
    (prompt,) = graph.prompts()
    assert turns_of(prompt) == [
        ("user", "sample of an earlier message"),
        ("assistant", "sample of its reply"),
    ]


# The window


@given(
    st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=30),
    st.integers(0, 20),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 80),
)
def test_the_window_has_the_newest_turns_uncut_within_both_limits(
    texts: list[tuple[str, str]], omitted: int, last: int | None, limit: int
):
    known = Messages(texts, "t", omitted)
    shown = known.newest(last, limit)
    assert shown.turns == known.turns[len(known) - len(shown) :]
    assert len(shown) + shown.omitted == len(known) + omitted
    assert last is None or len(shown) <= last
    assert sum(turn.size for turn in shown) <= limit


@given(st.integers(1, 12), st.integers(0, 40), st.lists(st.integers(0, 30), max_size=40))
def test_the_window_moves_in_steps_and_only_forward(last: int, limit: int, sizes: list[int]):
    turns = [Turn("x" * size, "", run_id=str(n)) for n, size in enumerate(sizes)]
    starts = [Messages(turns[:n]).newest(last, limit + 1).omitted for n in range(len(turns) + 1)]
    assert starts == sorted(starts)
    step = max(1, last // 4)
    for count, start in enumerate(starts):
        assert start % step == 0 or count - start <= (step + 1) // 2


def test_a_node_is_printed_without_its_conversation():
    history = Messages([("My PIN is 1234.", "Fine."), ("b", "c")], "ana", 3)
    assert repr(history) == "<Messages: 2 turns of 'ana', 3 omitted>"
    assert repr(Messages([("a", "b")])) == "<Messages: 1 turn>"
    assert "1234" not in repr(Reply(history=history, text="hi"))


async def test_equal_turns_make_equal_messages():
    one = Messages([("a", "b")], "t")
    assert one == Messages([Turn("a", "b")], "t")
    assert one != Messages([("a", "b")], "other")
    assert one[0] == Turn("a", "b")
    assert one[0:1] == (Turn("a", "b"),)
    assert (*one,) == one.turns
    assert Turn("a", "b") in one
    with pytest.raises(AttributeError):
        one.thread = "x"  # pyright: ignore[reportAttributeAccessIssue]
    assert replace(one[0], reply="c").reply == "c"
