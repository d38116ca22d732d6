"""A run with tools that is cut after any line of its journal is resumed: with the same result, the
same conversation, no finished call a second time, and no round that was answered asked again."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from bae import (
    LM,
    Dep,
    Graph,
    Map,
    Node,
    Recall,
    Text,
    Tool,
    ToolCall,
    ToolError,
    ToolProgress,
    Tools,
)
from bae.exceptions import BaeLMError, FillError
from bae.journal import Journal, MemoryJournal
from bae.journal.decoder import read_history
from bae.lm import Answer, Backend, Prompt, Usage
from bae.lm.backend import CallPart
from bae.testing import Call, ScriptedLM
from end_node import EndNode
from journal_graphs import cut_journal

pytestmark = pytest.mark.once

DONE: Counter[str] = Counter()
"""What tools and dependencies have done, in this process."""


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


# The tools


async def get_shop() -> str:
    DONE["get_shop"] += 1
    return "Bern"


def read_list(shop: Annotated[str, Dep(get_shop)]) -> list[str]:
    DONE["read_list"] += 1
    return [shop, "list"]


async def search(word: str, shop: Annotated[str, Dep(get_shop)]) -> list[str]:
    """Search the catalog."""
    await asyncio.sleep(0)
    DONE[f"search {word}"] += 1
    return [f"{word} in {shop}"]


def weigh(word: str, listed: Annotated[list[str], Dep(read_list)]) -> int:
    """Weigh something."""
    DONE[f"weigh {word}"] += 1
    if word == "air":
        raise ToolError("nothing to weigh")
    return len(word) + len(listed)


def count(word: str) -> int:
    """Count something, as often as you like."""
    DONE[f"count {word}"] += 1
    return len(word)


def read_page(word: str) -> str:
    """Read a page."""
    DONE[f"read_page {word}"] += 1
    return f"{word} {'long ' * 100}"


def again(fn: Any, **options: Any) -> Tool:
    """A tool that is called again where it is unknown whether it ran."""
    return Tool(fn, unfinished="repeat", **options)


BASIC = (again(search), again(weigh), again(count, repeat="reuse"))
ROUNDS = [
    [("search", {"word": "lamp"}), ("weigh", {"word": "air"}), ("count", {"word": "tea"})],
    [("search", {"word": "bulb"}), ("count", {"word": "tea"}), ("sell", {"word": "bulb"})],
    [("weigh", {"wrong": "bulb"})],
    [("search", {"word": "bulb 2"}), ("weigh", {"word": "bulb"})],
]


# A model


class Model(Backend):
    """Answers by the requested round, and remembers its questions. `rounds` has the calls by
    target, and `answers` the last answers."""

    model = "toy"
    first_wait = 0.0

    def __init__(self, rounds: dict[str, Any], answers: dict[str, Any], native: bool = True):
        super().__init__()
        self.rounds, self.answers, self.calls_tools = rounds, answers, native
        self.asked: list[tuple[str, int, str]] = []

    async def answer(self, prompt: Prompt) -> Answer:
        if prompt.question.types:
            self.asked.append(("choice", 0, str(prompt)))
            chosen = {"choice": "Made"}
            wrapped = "answer" in prompt.schema["properties"]  # type: ignore[index]
            said = json.dumps({"answer": chosen} if wrapped else chosen)
            return Answer(said, Usage(calls=1, input_tokens=100, output_tokens=10))
        name = prompt.question.target.__name__  # type: ignore[union-attr]
        number = sum(message.role == "assistant" for message in prompt.conversation)
        self.asked.append((name, number, str(prompt)))
        usage = Usage(calls=1, input_tokens=100, output_tokens=10)
        rounds = self.rounds.get(name, [])
        if number < len(rounds):
            calls = rounds[number]
            if isinstance(calls, str):
                return Answer(calls, usage)
            if not self.calls_tools:
                tool, arguments = calls[0]
                said = json.dumps({"next_step": {"action": tool, **arguments}})
                return Answer(said, usage)
            parts = tuple(CallPart(f"x{n}", *call) for n, call in enumerate(calls))
            return Answer(f"round {number}", usage, calls=parts, echo={"signed": number})
        given = self.answers[name]
        if prompt.tools or "next_step" not in json.dumps(prompt.schema):
            return Answer(given if isinstance(given, str) else json.dumps(given), usage)
        values = {"text": given} if isinstance(given, str) else given
        return Answer(json.dumps({"next_step": {"action": "answer", **values}}), usage)


# The ways in which a node with tools is filled


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    question: Annotated[str, Recall(Question)]
    calls: Annotated[list[ToolCall], Tools(*BASIC, limit=9)]
    text: str


def empty_body() -> Any:
    return Graph(start=Question, end=Reply), Question(text="q")


def refuse_first(told: Told, shop: Annotated[str, Dep(get_shop)]) -> None:
    DONE[f"accept {told.text}"] += 1
    if told.text == "first":
        raise ToolError(f"not in {shop}")


class Told(EndNode):
    calls: Annotated[list[ToolCall], Tools(*BASIC, accept=refuse_first, limit=9)]
    text: Annotated[str, Text()]


class AskText(Node):
    text: str

    async def __call__(self) -> Told: ...


def text_with_accept() -> Any:
    return Graph(start=AskText), AskText(text="q")


class OnlyCalls(EndNode):
    calls: Annotated[list[ToolCall], Tools(*BASIC, limit=9)]


class AskCalls(Node):
    text: str

    async def __call__(self) -> OnlyCalls: ...


def no_other_field() -> Any:
    return Graph(start=AskCalls), AskCalls(text="q")


class InBody(Node):
    """Its body has one node filled twice, and then the next node of the graph."""

    text: str

    async def __call__(self, lm: LM) -> Made:
        first = await lm.make(self, Sketch)
        second = await lm.make(self, Sketch)
        DONE["body"] += 1
        made = await lm.make(self, Made)
        return made.model_copy(update={"text": f"{first.text} {second.text} {made.text}"})


class Sketch(EndNode):
    """No class of the graph."""

    shop: Annotated[str, Dep(get_shop)]
    calls: Annotated[list[ToolCall], Tools(*BASIC, limit=9)]
    text: str


class Made(EndNode):
    calls: Annotated[list[ToolCall], Tools(again(search), again(count))]
    text: str


def in_a_body() -> Any:
    return Graph(start=InBody), InBody(text="q")


async def ask_sketch(lm: LM) -> str:
    DONE["ask_sketch"] += 1
    return (await lm.fill(Sketch, {}, "Sketch it.")).text


class WithFunction(EndNode):
    sketch: Annotated[str, Dep(ask_sketch)]
    text: str


class AskFunction(Node):
    text: str

    async def __call__(self) -> WithFunction: ...


def in_a_function() -> Any:
    return Graph(start=AskFunction), AskFunction(text="q")


class Draft(Node):
    calls: Annotated[list[ToolCall], Tools(*BASIC, limit=9)]
    text: str


class WithDraft(EndNode):
    draft: Annotated[Draft, Dep()]
    text: str


class AskDraft(Node):
    text: str

    async def __call__(self) -> WithDraft: ...


def on_a_node_class() -> Any:
    return Graph(start=AskDraft), AskDraft(text="q")


class Item(Node):
    item: str

    async def __call__(self) -> Judged: ...


class Judged(EndNode):
    item: Annotated[str, Recall(Item)]
    calls: Annotated[list[ToolCall], Tools(again(search), again(count))]
    text: str


class Mapped(EndNode):
    items: list[str]
    judged: Annotated[list[Judged], Map(Graph(start=Item, end=Judged), over="items", limit=1)]


def in_a_map() -> Any:
    return Graph(start=Mapped), Mapped(items=["a", "b"])


async def look_up(topic: str) -> str:
    DONE[f"look_up {topic}"] += 1
    return topic.upper()


class Topic(Node):
    topic: str
    found: Annotated[str, Dep(look_up, topic="topic")]

    async def __call__(self) -> Brief: ...


class Brief(Node):
    calls: Annotated[list[ToolCall], Tools(again(search), again(count))]
    text: str

    async def __call__(self) -> Briefed:
        DONE["brief"] += 1
        return Briefed(text=self.text)


class Briefed(EndNode):
    text: str
    shop: Annotated[str, Dep(get_shop)]


RESEARCH = Graph(start=Topic, end=Briefed)


class WithGraph(EndNode):
    calls: Annotated[list[ToolCall], Tools(again(RESEARCH, name="research"), again(search))]
    text: str


class AskGraph(Node):
    text: str

    async def __call__(self) -> WithGraph: ...


def graph_as_a_tool() -> Any:
    return Graph(start=AskGraph), AskGraph(text="q")


class GraphInBody(Node):
    text: str

    async def __call__(self, lm: LM) -> Briefed:
        return Briefed(text=(await lm.make(self, WithGraph)).text)


def graph_as_a_tool_in_a_body() -> Any:
    return Graph(start=GraphInBody), GraphInBody(text="q")


def pick(shop: Annotated[str, Dep(get_shop)], text: Annotated[str, Recall(AskPick)]) -> list[Tool]:
    def price(word: str, shop: Annotated[str, Dep(get_shop)]) -> str:
        DONE[f"price {word}"] += 1
        return f"{word} in {shop}"

    return [again(price, name=f"price_in_{shop}"), again(count)]


class AskPick(Node):
    text: str

    async def __call__(self) -> Picked: ...


class Picked(EndNode):
    calls: Annotated[list[ToolCall], Tools(pick, again(search))]
    text: str


def picked_tools() -> Any:
    return Graph(start=AskPick), AskPick(text="q")


async def ask_expert(word: str, lm: LM) -> str:
    """Ask an expert."""
    DONE[f"ask_expert {word}"] += 1
    note = await lm.make(Question(text=word), Note)
    DONE[f"expert answered {word}"] += 1
    return note.text


class Note(EndNode):
    text: str


class WithExpert(EndNode):
    calls: Annotated[list[ToolCall], Tools(again(ask_expert), again(search))]
    text: str


class AskWithExpert(Node):
    text: str

    async def __call__(self) -> WithExpert: ...


def tool_that_asks_an_lm() -> Any:
    return Graph(start=AskWithExpert), AskWithExpert(text="q")


class ExpertInBody(Node):
    text: str

    async def __call__(self, lm: LM) -> Note:
        return Note(text=(await lm.make(self, WithExpert)).text)


def tool_that_asks_an_lm_in_a_body() -> Any:
    return Graph(start=ExpertInBody), ExpertInBody(text="q")


class ShortContext(EndNode):
    calls: Annotated[list[ToolCall], Tools(again(read_page), context=420)]
    text: str


class AskShort(Node):
    text: str

    async def __call__(self) -> ShortContext: ...


def with_results_cut() -> Any:
    return Graph(start=AskShort), AskShort(text="q")


class Limited(EndNode):
    calls: Annotated[list[ToolCall], Tools(again(search), limit=2, on_limit="answer")]
    text: str


class AskLimited(Node):
    text: str

    async def __call__(self) -> Limited: ...


def with_the_limit_reached() -> Any:
    return Graph(start=AskLimited), AskLimited(text="q")


class Chooses(Node):
    text: str

    async def __call__(self) -> Made | Note: ...


def after_a_choice() -> Any:
    return Graph(start=Chooses), Chooses(text="q")


class Decides(Node):
    text: str

    async def __call__(self, lm: LM) -> Made | Note | None:
        DONE["decides"] += 1
        return await lm.decide(self)


def decided_in_a_body() -> Any:
    return Graph(start=Decides), Decides(text="q")


def steer(progress: ToolProgress, shop: Annotated[str, Dep(get_shop)]) -> str | None:
    DONE[f"steer {progress.rounds}"] += 1
    texts = len(progress.messages)
    return f"{progress.rounds} in {shop}, {texts}" if progress.rounds in (0, 2, 4) else None


class Steered(EndNode):
    calls: Annotated[list[ToolCall], Tools(*BASIC, before_round=steer, limit=9)]
    text: str


class AskSteered(Node):
    text: str

    async def __call__(self) -> Steered: ...


def steered_run() -> Any:
    return Graph(start=AskSteered), AskSteered(text="q")


class SteersInBody(Node):
    text: str

    async def __call__(self, lm: LM) -> Steered:
        return await lm.make(self, Steered)


def run_steered_in_body() -> Any:
    return Graph(start=SteersInBody), SteersInBody(text="q")


SOME = [
    [("search", {"word": "x"}), ("count", {"word": "x"})],
    [("search", {"word": "y"})],
]
FILLED = ["Reply", "Sketch", "Made", "Draft", "Judged", "Brief", "WithFunction", "WithDraft"]
FILLED += ["Picked", "Note", "WithGraph", "WithExpert", "ShortContext", "Limited", "Steered"]
MODEL: tuple[dict[str, Any], dict[str, Any]] = (
    {
        "Reply": [*ROUNDS, '{"text": 7}'],
        "Told": [*ROUNDS, "first"],
        "OnlyCalls": ROUNDS,
        "Steered": [*ROUNDS, '{"text": 7}'],
        "Sketch": ROUNDS[:2],
        "Made": SOME,
        "Draft": ROUNDS,
        "Judged": SOME,
        "WithGraph": [
            [("research", {"topic": "t1"}), ("search", {"word": "z"})],
            [("research", {"topic": "t2"}), ("research", {"wrong": 1})],
        ],
        "Brief": SOME,
        "Picked": [
            [("price_in_Bern", {"word": "p"}), ("search", {"word": "x"})],
            [("count", {"word": "x"})],
        ],
        "ShortContext": [[("read_page", {"word": str(n)})] for n in range(4)],
        "Limited": [[("search", {"word": str(n)})] for n in range(3)],
        "WithExpert": [[("ask_expert", {"word": "e1"}), ("search", {"word": "x"})]],
    },
    {
        **{name: {"text": "end"} for name in FILLED},
        "Told": "second",
        "OnlyCalls": "done",
    },
)
WAYS: list[Callable[[], Any]] = [
    empty_body,
    text_with_accept,
    no_other_field,
    in_a_body,
    in_a_function,
    on_a_node_class,
    in_a_map,
    graph_as_a_tool,
    graph_as_a_tool_in_a_body,
    picked_tools,
    tool_that_asks_an_lm,
    tool_that_asks_an_lm_in_a_body,
    with_results_cut,
    with_the_limit_reached,
    after_a_choice,
    decided_in_a_body,
    steered_run,
    run_steered_in_body,
]


def by_name(way: Callable[[], Any]) -> str:
    return way.__name__


def of_conversation(data: dict[str, Any], line: Any) -> tuple[Any, ...]:
    return line.path, line.step, json.dumps(data["asker"], sort_keys=True), data.get("question")


def without_times(trace: Any) -> list[Any]:
    found = [json.loads(node.model_dump_json()) for node in trace]

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items() if key != "seconds"}
        return [*map(clean, value)] if isinstance(value, list) else value

    return clean(found)


async def check_cuts(way: Callable[[], Any], native: bool, every: bool = False) -> None:
    """Cut a run after any line; unless after `every` line, after a third of the lines of long
    runs."""
    graph, start = way()
    assert [p for p in graph.validate(journal=True) if p.severity == "error"] == []
    async with MemoryJournal() as journal:
        first = Model(*MODEL, native)
        result = await graph.arun(start, first, journal=journal, run_id="one", max_iters=20)
        expected, whole = without_times(result.trace), dict(DONE)
        many = len((await journal.read("one")).lines)
        for lines in range(1, many, 1 if every or many < 40 else 3):
            await check_cut(graph, journal, lines, native, first, expected, whole)


async def check_cut(
    graph: Any,
    journal: Journal,
    lines: int,
    native: bool,
    first: Model,
    expected: Any,
    whole: dict[str, int],
) -> None:
    cut = await cut_journal(journal, lines)
    stored, known = (await cut.read("one")).lines, read_history(await cut.read("one")).usage
    last = f"cut after {lines} lines, the last a {stored[-1].kind}"
    DONE.clear()
    model = Model(*MODEL, native)
    again = await graph.resume("one", model, journal=cut)
    assert without_times(again.trace) == expected, last
    # Each question is the same as before, and none that has an answer is asked again.
    assert set(model.asked) <= set(first.asked), last
    rounds = [line for line in stored if line.kind == "RoundMade"]
    assert len(model.asked) <= len(first.asked) - len(rounds), last
    # No call that has ended is made again.
    finished: Counter[str] = Counter()
    for line in stored:
        data = json.loads(line.data)
        if line.kind == "RoundReplied" and data["kind"] in ("refused", "accepted"):
            finished[f"accept {'first' if data['kind'] == 'refused' else 'second'}"] += 1
        if line.kind == "RoundReplied" and data["kind"] == "steered":
            finished[f"steer {data['number']}"] += 1
        if line.kind == "ToolEnded" and "reused" not in data:
            finished[f"{data['name']} {data['arguments'].get('word')}"] += 1
    for key, times in finished.items():
        if key not in whole:
            continue
        assert DONE[key] <= whole[key] - times, (last, key)
    # Each request counts once; one whose answer was not stored has to be made again.
    assert again.usage.calls == known.calls + len(model.asked), last
    assert again.usage.input_tokens == 100 * again.usage.calls, last
    if lines % 4:
        return
    file = io.BytesIO()
    await cut.export(file)
    file.seek(0)
    assert await MemoryJournal().load(file) == ["one"], last
    replayed = await graph.replay("one", journal=cut)
    assert without_times(replayed.trace) == expected, last


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS, ids=by_name)
async def test_a_run_cut_after_any_line_repeats_no_tool_call_and_no_round(way: Any, every: bool):
    await check_cuts(way, True, every)


@pytest.mark.parametrize("way", [empty_body, in_a_body, steered_run], ids=by_name)
async def test_a_run_with_a_schema_constrained_model_is_resumed(way: Any):
    await check_cuts(way, native=False)


EMPTY: tuple[Any, ...] = (0, 0.0, False, "", [], {}, None)


def empty_result(number: int) -> Any:
    """A result that Python takes for false."""
    return EMPTY[number]


class EmptyReply(EndNode):
    calls: Annotated[list[ToolCall], Tools(empty_result)]
    text: str


class AskEmpty(Node):
    async def __call__(self) -> EmptyReply: ...


async def test_zero_false_and_empty_results_are_stored_unchanged():
    graph, journal = Graph(start=AskEmpty, end=EmptyReply), MemoryJournal()
    calls = [Call("empty_result", number=n) for n in range(len(EMPTY))]
    cut_off = ScriptedLM([calls, RuntimeError("the provider is gone")])
    with pytest.raises(BaeLMError):
        await graph.arun(AskEmpty(), lm=cut_off, journal=journal, run_id="empty")
    resumed = await graph.resume("empty", lm=ScriptedLM([{"text": "."}]), journal=journal)
    results = [call.result for call in resumed.result.calls]
    assert [(type(result), result) for result in results] == [
        (type(expected), expected) for expected in EMPTY
    ]


class Refuses(Backend):
    """Refuses to answer, each time in the same words."""

    calls_tools = True
    asked = 0

    async def answer(self, prompt: Prompt) -> Answer:
        self.asked += 1
        return Answer("I would rather not.", Usage(calls=1), "refused")


class Letter(EndNode):
    calls: Annotated[list[ToolCall], Tools(*BASIC)]
    text: Annotated[str, Text()]


class AskLetter(Node):
    async def __call__(self) -> Letter: ...


async def test_a_stored_refusal_is_not_taken_for_an_answer_after_a_kill():
    graph, journal = Graph(start=AskLetter, end=Letter), MemoryJournal()
    with pytest.raises(FillError):
        await graph.arun(AskLetter(), lm=Refuses(), journal=journal, run_id="one")
    kinds = [line.kind for line in (await journal.read("one")).lines]
    left, again = await cut_journal(journal, kinds.index("RoundMade") + 1), Refuses()
    with pytest.raises(FillError):
        await graph.resume("one", lm=again, journal=left)
    assert again.asked == 0
