"""The history of a run, computed from its records alone."""

from asyncio import Event
from typing import Annotated

import tool_runs
from bae import LM, BaeError, Dep, Gate, Graph, Map, Node, Recall, Tool, ToolCall, Tools
from bae.history import History
from bae.place import Place
from bae.records import (
    NOTHING,
    AnswerBegan,
    AnswerJudged,
    Asker,
    FieldText,
    LMUsed,
    RunEnded,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
)
from bae.testing import Call, ScriptedLM
from bae.usage import Attempt, Usage
from bae.work import GraphRun, LMQuestion, Source, Span, Step, ToolRun, Work
from bounded import error_from
from end_node import EndNode


def get_word() -> str:
    return "word"


async def get_length(word: Annotated[str, Dep(get_word)]) -> int:
    return len(word)


class Inner(Node):
    number: int

    async def __call__(self) -> "Doubled":
        return Doubled(number=self.number * 2)


class Doubled(EndNode):
    number: int


class Ask(Node):
    numbers: list[int]
    length: Annotated[int, Dep(get_length)]
    doubled: Annotated[list[Doubled], Map(Graph(start=Inner), over="numbers")]

    async def __call__(self) -> "Answer | None": ...


class Answer(Node):
    text: str
    numbers: Annotated[list[int], Recall()]

    async def __call__(self, lm: LM) -> "Done":
        return Done()


class Done(EndNode):
    fine: Annotated[bool, Gate("fine?")]


GRAPH = Graph(start=Ask)


async def say_yes(gate: object) -> bool:
    return True


async def run_graph():
    lm = ScriptedLM([Answer, {"text": "a"}])
    return await GRAPH.arun(Ask(numbers=[1, 2]), lm, answer=say_yes)


async def test_a_history_finds_every_value_by_its_place():
    result = await run_graph()
    history = History(result.journal)

    for text, value in (
        ("0:Ask.length", 4),
        ("0:Ask.length(word)", "word"),
        ("0:Ask.doubled", [Doubled(number=2), Doubled(number=4)]),
        ("1:Answer.numbers", [1, 2]),
        ("2:Done.fine", True),
    ):
        place = Place.parse(text)
        assert place is not None
        assert str(place) == text
        source = history.source(place)
        assert source is not None
        assert (source.value, source.state, str(source.place)) == (value, "done", text)
    assert history.source(Place("", 1, "Ask", "length")) is None
    assert [step.node for step in history.run.trace] == result.trace
    assert history.run.outcome == "ended"
    # What followed a node is known, and the end is not taken for nothing.
    assert history.following("", 1) == result.trace[1]
    assert history.following("", 3) is None
    assert history.following("", 4) is history.following("9:Nowhere.x", 0) is NOTHING


async def test_a_history_shows_subgraphs_under_their_source_and_leaves_no_work_open():
    result = await run_graph()
    history = History(result.journal)

    assert list(history.graphs) == ["", "0:Ask.doubled[0]", "0:Ask.doubled[1]"]
    inner = history.graphs["0:Ask.doubled[1]"]
    assert inner.source is history.source(Place("", 0, "Ask", "doubled"))
    assert [step.node for step in inner.trace] == [Inner(number=2), Doubled(number=4)]
    assert history.complete_steps == 7
    assert history.usage == result.usage
    assert not any(graph.is_open for graph in history.graphs.values())
    assert all(step.state == "done" and not step.is_open for step in history.steps())


async def test_all_started_work_ends_and_parts_end_before_their_parent():
    result = await run_graph()
    opened: list[object] = []

    def watch(change: str, work: object) -> None:
        if change == "started":
            opened.append(work)
        elif change == "ended" and work in opened:
            opened.remove(work)
            if isinstance(work, GraphRun):
                assert not any(isinstance(w, Step) and w.graph is work for w in opened)
            if isinstance(work, Step):
                assert not any(isinstance(w, Source) and w.step is work for w in opened)

    History(result.journal, on_change=watch)
    assert opened == []


async def test_a_history_reports_every_change_in_order_with_its_parent():
    result = await run_graph()
    changes: list[str] = []

    def watch(change: str, work: Work) -> None:
        if isinstance(work, Source) and work.place.node == "Done":
            changes.append(f"{change} {work.place}")
        elif isinstance(work, LMQuestion) and work.asker.node is Answer:
            changes.append(f"{change} {work.asker}")
        elif isinstance(work, Step) and change == "complete" and work.graph is history.run:
            changes.append(f"whole {work.place}")
        assert (work.inside is None) == (work is history.run)

    history = History()
    history.on_change = watch
    for record in result.journal:
        history.add(record)
    assert changes == [
        "whole 0:Ask",
        "started filling Answer",
        "answered filling Answer",
        "ended filling Answer",
        "whole 1:Answer",
        "started 2:Done.fine",
        "waiting 2:Done.fine",
        "ended 2:Done.fine",
        "whole 2:Done",
    ]


def test_an_interrupted_subgraph_starts_again_with_its_source():
    inner = "0:Ask.length"
    history = History(
        [
            RunStarted(10.0, "", 0, "r", "Ask", Ask(numbers=[])),
            SourceStarted(11.0, "", 0, Ask, "length", "dep", "get_length"),
            RunStarted(12.0, inner, 0, "r", "Inner", Inner(number=1)),
            StepStarted(13.0, inner, 0, Inner(number=1)),
        ]
    )
    ended: list[tuple[object, float | None, str]] = []
    history.on_change = lambda change, work: (
        ended.append((work, work.ended, work.state)) if change == "ended" else None
    )
    history.add(RunResumed(50.0, "", 0, "other"))
    assert len(ended) == 6  # a body, its step, its graph, what that is for, and the run
    assert {(at, state) for _, at, state in ended} == {(13.0, "interrupted")}

    history.add(SourceStarted(51.0, "", 0, Ask, "length", "dep", "get_length"))
    history.add(StepStarted(52.0, inner, 1, Doubled(number=2)))
    graph = history.graphs[inner]
    assert (graph.since, graph.steps[0].spans[-1]) == (51.0, Span(51.0, 52.0))


def test_every_question_of_a_body_has_its_own_answers_and_usage():
    asker, text = Asker("body", Answer), Place("0:Answer", 0, "Answer", "text")
    history = History(
        [
            RunStarted(1.0, "", 0, "r", "Answer", Answer(text="", numbers=[])),
            StepStarted(2.0, "", 0, Answer(text="", numbers=[])),
            AnswerJudged(3.0, "", 1, asker, Attempt(1, "no", "invalid", ("wrong",), Usage(1, 5))),
            AnswerJudged(4.0, "", 1, asker, Attempt(2, "yes", "valid", (), Usage(1, 6))),
            LMUsed(5.0, "", 1, asker, Usage(2, 11)),
            AnswerBegan(6.0, "", 1, asker, 1),
            FieldText(6.1, "", 1, asker, text, "so", 1),
            FieldText(7.0, "", 1, asker, text, " far", 1),
        ]
    )
    first, second = history.run.steps[0].asked
    assert (len(first.answers), first.usage, first.state) == (2, Usage(2, 11), "done")
    assert (second.text, second.text_since, second.state) == ("so far", 6.0, "running")
    assert history.run.steps[0].asked[-1] is second


def test_a_custom_error_named_waiting_is_a_failure():
    class Waiting(Exception):
        """Named like the exception of a run that waits for a person."""

    history = History([RunStarted(1.0, "", 0, "r", "Ask", Ask(numbers=[]))])
    ended = SourceEnded(2.0, "", 0, Ask, "length", "dep", "get_length", 0.5, None, Waiting())
    history.add(ended)
    assert history.run.steps[0].sources["length", ""].state == "failed"


async def test_a_failure_belongs_to_its_source_and_its_step():
    def fail() -> int:
        raise ValueError("no")

    class Fails(EndNode):
        number: Annotated[int, Dep(fail)]

    error = await error_from(BaeError, Graph(start=Fails).arun(Fails()))
    assert error.journal is not None
    history = History(error.journal)
    source = history.source(Place("", 0, "Fails", "number"))
    assert source is not None
    assert (source.state, str(source.error)) == ("failed", "no")
    assert history.run.steps[0].state == history.run.state == "failed"


async def test_a_waiting_run_has_an_open_gate_and_no_failure():
    result = await GRAPH.arun(Ask(numbers=[]), ScriptedLM([Answer, {"text": "a"}]))
    history = History(result.journal)

    assert list(history.gates) == ["2:Done.fine"]
    assert history.gates["2:Done.fine"].state == "waiting"
    assert history.run.outcome == "waiting"
    assert history.run.error is None


def test_work_that_was_open_when_a_process_stopped_is_shown_as_interrupted():
    start = Ask(numbers=[])
    history = History(
        [
            RunStarted(10.0, "", 0, "r", "Ask", start),
            SourceStarted(11.0, "", 0, Ask, "length", "dep", "get_length"),
        ]
    )
    assert history.source(Place("", 0, "Ask", "length")).state == "running"

    history.add(RunResumed(50.0, "", 0, "other"))
    history.add(SourceStarted(51.0, "", 0, Ask, "length", "dep", "get_length"))
    source = history.source(Place("", 0, "Ask", "length"))
    assert source.spans == [Span(11.0, 11.0)]
    assert source.is_open
    assert history.lives == [Span(10.0, 11.0), Span(50.0, 51.0)]
    assert history.seconds == 2.0
    history.add(RunEnded(59.0, "", 0, "cancelled"))
    assert history.seconds == 10.0


def test_a_history_of_a_long_run_uses_bounded_memory():
    history = History(keep=200)
    history.add(RunStarted(0.0, "", 0, "r", "Doubled", Doubled(number=0)))
    for number in range(1000):
        history.add(StepStarted(1.0, "", number, Doubled(number=number)))
    assert len(history.run.steps) <= 201
    assert len(history.run.steps) + history.run.dropped == 1000
    assert history.complete_steps == 1000


async def test_a_history_has_every_tool_call_with_its_round_result_and_nested_work():
    result = await tool_runs.run_to_end()
    history = History(result.journal)

    step = history.step("", 1)
    assert step is not None
    calls = [*step.tool_calls]
    assert [(str(call.place), call.round) for call in calls] == [
        ("1:Reply.calls(search)[1]", 1),
        ("1:Reply.calls(read_page)[2]", 1),
        ("1:Reply.calls(read_page)[3]", 2),
        ("1:Reply.calls(search)[4]", 2),
        ("1:Reply.calls(research)[5]", 2),
    ]
    assert [call.state for call in calls] == ["done"] * 5
    found, page, missing, wrong, inner = calls
    assert found.result == ["Kettle One", "Kettle Two"]
    assert (missing.tool_error, missing.was_called) == ("there is no such page", True)
    assert (wrong.was_called, wrong.spans) == (False, [])
    assert "query" in (wrong.tool_error or "")
    assert inner.graph is history.graphs["1:Reply.calls(research)[5]"]
    assert inner.graph.inside is inner
    assert inner.inside is step.fill
    assert [inner_step.node for inner_step in inner.graph.trace][-1] == tool_runs.Brief(
        topic="descaling", brief="Use vinegar."
    )
    # A call is inside the fill, and no field has a source that nobody named.
    assert {*step.sources} == {("question", ""), ("calls", "(search)(shop)")}
    assert page.report is None
    assert history.usage == result.usage
    assert result.usage.calls == 4
    assert history.complete_steps == 4


async def test_tool_calls_start_report_and_end_inside_their_question():
    result = await tool_runs.run_to_end()
    changes: list[str] = []

    def watch(change: str, work: Work) -> None:
        if isinstance(work, ToolRun):
            report = "" if work.report is None else f" {work.report.text}"
            changes.append(f"{change} {work.name}{report}")
            assert work.inside is not None
            assert work.inside.is_open
        elif change == "round":
            changes.append(change)

    History(result.journal, on_change=watch)
    one, two = changes[:7], changes[7:]
    assert one[0] == one[-1] == "round"
    mine = [change for change in one if "search" in change]
    assert mine == ["started search", "ended search"]
    mine = [change for change in one if "read_page" in change]
    assert mine == ["started read_page", "reported read_page reading", "ended read_page"]
    assert "ended search" in two  # which was never started
    assert "started search" not in two
    assert two[-1] == "round"


def get_rule() -> str:
    return "word"


def check_word(noted: "Noted", word: Annotated[str, Dep(get_rule)]) -> None:
    assert noted.text == word


async def note(text: str, length: Annotated[int, Dep(get_length)]) -> int:
    return length


async def pick_tools() -> list[Tool]:
    return [Tool(note)]


class Noted(EndNode):
    calls: Annotated[list[ToolCall], Tools(pick_tools, accept=check_word)]
    text: str


class Noting(Node):
    async def __call__(self) -> Noted: ...


async def test_a_history_has_dependencies_of_picked_tools_and_of_accept():
    lm = ScriptedLM([Call("note", text="a"), {"text": "word"}])
    result = await Graph(start=Noting).arun(Noting(), lm)
    history = History(result.journal)
    [step] = [candidate for candidate in history.run.trace if candidate.number == 1]
    values = {source.place.parameter: source.value for source in step.sources.values()}
    assert values["(note)(length)"] == 4
    assert values["(accept=)(word)"] == "word"


async def test_an_llm_call_of_a_tool_is_inside_its_tool_call_and_counted_once():
    class Advice(EndNode):
        calls: Annotated[list[ToolCall], Tools(tool_runs.ask_expert)]
        text: str

    class Ask(Node):
        text: str

        async def __call__(self) -> Advice: ...

    lm = ScriptedLM(
        {
            "Advice": [Call("ask_expert", question="why?"), {"text": "so"}],
            "Note": [{"text": "because"}],
        }
    )
    result = await Graph(start=Ask, end=Advice).arun(Ask(text="why?"), lm)
    history = History(result.journal)
    step = history.step("", 1)
    assert step is not None
    [call] = step.tool_calls
    [asked] = call.asked
    assert [answer.attempt.answer for answer in asked.answers] == ['{"text":"because"}']
    assert (asked.usage.calls, step.fill and step.fill.usage.calls) == (1, 2)
    assert history.usage.calls == result.usage.calls == 3


async def test_tool_calls_of_a_body_belong_to_the_question_of_the_body():
    graph = Graph(start=tool_runs.AskedInBody, end=tool_runs.Answer)
    calls = [Call("search", query="kettle"), Call("research", topic="descaling")]
    lm = ScriptedLM({"Answer": [calls, {"text": "so"}], "Brief": [{"brief": "Use vinegar."}]})
    result = await graph.arun(tool_runs.AskedInBody(text="how large?"), lm)
    history = History(result.journal)
    step = history.step("", 0)
    assert step is not None
    assert [call.name for call in step.tool_calls][-1] == "research"
    *_, inner = step.tool_calls
    assert inner.graph is not None
    assert inner.graph.outcome == "ended"
    [question] = step.asked
    assert inner.inside is question


async def test_the_tool_call_that_fails_a_run_has_failed_and_the_others_are_cancelled():
    started = Event()

    async def wait_forever() -> str:
        started.set()
        await Event().wait()
        return ""

    async def fail() -> str:
        await started.wait()
        raise RuntimeError("out of paper")

    class Printed(EndNode):
        calls: Annotated[list[ToolCall], Tools(wait_forever, fail)]

    class Start(Node):
        async def __call__(self) -> Printed: ...

    lm = ScriptedLM({"Printed": [[Call("wait_forever"), Call("fail")]]})
    error = await error_from(BaeError, Graph(start=Start, end=Printed).arun(Start(), lm))
    assert error.journal is not None
    history = History(error.journal)
    step = history.step("", 1)
    assert step is not None
    states = {call.name: call.state for call in step.tool_calls}
    assert states == {"wait_forever": "cancelled", "fail": "failed"}
    assert not any(call.is_open for call in step.tool_calls)


async def test_a_queued_tool_call_has_not_started():
    async def take(n: int) -> int:
        return n

    class Taken(EndNode):
        calls: Annotated[list[ToolCall], Tools(take, at_once=1)]

    class Start(Node):
        async def __call__(self) -> Taken: ...

    lm = ScriptedLM({"Taken": [[Call("take", n=n) for n in range(3)], {}]})
    result = await Graph(start=Start, end=Taken).arun(Start(), lm)
    changes: list[str] = []

    def watch(change: str, work: Work) -> None:
        if isinstance(work, ToolRun):
            changes.append(f"{change} {work.id}")

    History(result.journal, on_change=watch)
    assert changes == [f"{change} c{n}" for n in (1, 2, 3) for change in ("started", "ended")]
