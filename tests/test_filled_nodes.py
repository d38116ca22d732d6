"""`Dep()` on a field whose type is a node class: the LM fills that node in a call of its own, at
the same time as other fields are resolved, and the run continues as with any other dependency."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest

from bae import (
    BudgetError,
    Dep,
    DepError,
    Gate,
    Graph,
    Map,
    Node,
    OpenGate,
    ProofError,
    Recall,
    RecallError,
)
from bae.cli import main
from bae.evals import Case, evaluate
from bae.journal import MemoryJournal, SQLiteJournal
from bae.lm import Budget, Budgeted
from bae.resolver import classify_fields, resolve_fields
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import cut_journal
from toy_backend import ToyBackend

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


async def get_city() -> str:
    CALLS.append("city")
    return "Lyon"


def shout(text: str) -> str:
    return text.upper()


class Ask(Node):
    message: str

    async def __call__(self) -> Reply: ...


class Background(Node):
    city: Annotated[str, Dep(get_city)]
    question: Annotated[str, Recall(Ask)]
    facts: list[str]
    loud: Annotated[list[str], Map(shout, over="facts")]

    async def __call__(self) -> Ask:
        raise AssertionError("its body is not run")


class Tone(Node):
    """A class for a field alone needs no body."""

    mood: str


class Reply(EndNode):
    background: Annotated[Background, Dep()]
    tone: Annotated[Tone, Dep()]
    text: str


graph = Graph(start=Ask, end=Reply)
START = Ask(message="Why is it cold?")
SCRIPT: dict[Any, Any] = {
    Background: {"facts": ["north", "night"]},
    Tone: {"mood": "kind"},
    Reply: {"text": "It is night."},
}
WHOLE = Reply(
    background=Background(
        city="Lyon",
        question="Why is it cold?",
        facts=["north", "night"],
        loud=["NORTH", "NIGHT"],
    ),
    tone=Tone(mood="kind"),
    text="It is night.",
)


def errors(graph: Graph[Any, Any]) -> dict[str, str]:
    return {p.code: f"{p.place}: {p.message} | {p.fix}" for p in graph.validate()}


# The value


async def test_a_filled_node_is_filled_after_its_sources_and_its_body_does_not_run():
    lm = ScriptedLM(SCRIPT)
    result = await graph.arun(START, lm)
    assert result.result == WHOLE
    assert [type(node) for node in result.trace] == [Ask, Reply]
    assert result.usage.calls == 3
    assert CALLS == ["city"]


async def test_a_prompt_shows_the_sources_of_the_node_and_the_previous_node():
    lm = ScriptedLM(SCRIPT)
    await graph.arun(START, lm)
    sent = {prompt.name: prompt.text for prompt in lm.prompts}
    assert '{"Ask":{"message":"Why is it cold?"}' in sent["Background"]
    assert '"city":"Lyon"' in sent["Background"]
    assert sent["Tone"].endswith('{"Ask":{"message":"Why is it cold?"}}')
    assert '"facts":["north","night"]' in sent["Reply"]
    previews = {prompt.name: prompt for prompt in graph.prompts(START)}
    assert set(previews) == {"Background", "Tone", "Reply"}
    assert previews["Tone"].text == sent["Tone"]


async def test_a_context_setting_applies_to_filled_nodes_too():
    class Last(EndNode):
        tone: Annotated[Tone, Dep()]

    class Middle(Node):
        word: str

        async def __call__(self) -> Last:
            return Last()

    class First(Node):
        said: str

        async def __call__(self) -> Middle:
            return Middle(word="b")

    lm = ScriptedLM(SCRIPT)
    await Graph(start=First, context="trace").arun(First(said="a"), lm)
    assert '"First":{"said":"a"}' in lm.prompts[0].text
    assert '"Middle":{"word":"b"}' in lm.prompts[0].text


def answer_prompt(prompt: Any) -> dict[str, Any]:
    return SCRIPT[prompt.question.target]


async def test_nodes_for_two_fields_are_filled_concurrently():
    waiting: set[str] = set()
    both = asyncio.Event()

    class Meeting(ToyBackend):
        async def answer(self, prompt: Any) -> Any:
            if prompt.name != "Reply":
                waiting.add(prompt.name)
                if len(waiting) == 2:
                    both.set()
                await both.wait()
            return await super().answer(prompt)

    result = await asyncio.wait_for(graph.arun(START, Meeting(answer_prompt)), 30)
    assert waiting == {"Background", "Tone"}
    assert isinstance(result.result.tone, Tone)


async def test_a_node_can_be_filled_on_a_start_node_in_a_map_and_in_a_subgraph():
    class Judged(EndNode):
        item: str
        tone: Annotated[Tone, Dep()]

    class Outer(EndNode):
        items: list[str]
        tone: Annotated[Tone, Dep()]
        judged: Annotated[list[Judged], Map(Judged, over="items")]

    lm = ScriptedLM({Tone: [{"mood": mood} for mood in "abc"]})
    result = await Graph(start=Outer).arun(Outer(items=["x", "y"]), lm)
    moods = {result.trace[0].tone.mood, *(node.tone.mood for node in result.trace[0].judged)}
    assert moods == {"a", "b", "c"}
    assert lm.prompts[0].text == "Tone"


async def test_a_filled_node_may_have_filled_nodes_of_its_own():
    class Inner(EndNode):
        tone: Annotated[Tone, Dep()]
        note: str

    class Outer(EndNode):
        inner: Annotated[Inner, Dep()]

    lm = ScriptedLM({Tone: {"mood": "low"}, Inner: {"note": "n"}})
    result = await Graph(start=Outer).arun(Outer(), lm)
    assert result.trace[0].inner == Inner(tone=Tone(mood="low"), note="n")


async def test_every_filled_field_has_its_own_call_and_an_explicit_value_is_kept():
    class Pair(EndNode):
        one: Annotated[Tone, Dep()]
        two: Annotated[Tone, Dep()]

    pair = Graph(start=Pair)
    lm = ScriptedLM({Tone: [{"mood": "a"}, {"mood": "b"}]})
    result = await pair.arun(Pair(), lm)
    assert {result.trace[0].one.mood, result.trace[0].two.mood} == {"a", "b"}
    lm = ScriptedLM({Tone: {"mood": "c"}})
    result = await pair.arun(Pair(one=Tone(mood="given")), lm)
    assert (result.trace[0].one.mood, result.trace[0].two.mood) == ("given", "c")
    assert classify_fields(Pair) == {"one": "dep", "two": "dep"}
    lm = ScriptedLM({Tone: [{"mood": "a"}, {"mood": "b"}]})
    assert set(await resolve_fields(Pair, lm=lm)) == {"one", "two"}


async def test_recall_does_not_find_a_filled_node():
    class Later(EndNode):
        tone: Annotated[Tone, Recall()]

    class Before(Node):
        tone: Annotated[Tone, Dep()]

        async def __call__(self) -> Later:
            return Later()

    message = errors(Graph(start=Before))["bae-recall-path"]
    assert "Before.tone is one, but comes from Dep, which Recall skips" in message

    class Maybe(EndNode):
        tone: Annotated[Tone | None, Recall()] = None

    class Start(Node):
        tone: Annotated[Tone, Dep()]

        async def __call__(self) -> Maybe:
            return Maybe()

    result = await Graph(start=Start).arun(Start(), ScriptedLM({Tone: {"mood": "a"}}))
    assert result.result == Maybe(tone=None)


async def test_dep_of_a_class_runs_it_as_a_graph_and_bare_dep_fills_it():
    class Word(EndNode):
        text: str = "as it is"

    class Both(EndNode):
        ran: Annotated[Word, Dep(Word)]
        filled: Annotated[Word, Dep()]

    async with MemoryJournal() as journal:
        both, lm = Graph(start=Both), ScriptedLM({Word: {"text": "by the LM"}})
        result = await both.arun(Both(), lm, journal=journal, run_id="one")
        assert (result.trace[0].ran.text, result.trace[0].filled.text) == ("as it is", "by the LM")
        assert (await both.resume("one", journal=journal)).trace == result.trace


# Failures


async def test_a_failed_fill_names_the_field_and_a_default_replaces_it():
    class Broken(ScriptedLM):
        async def answer(self, prompt: Any) -> Any:
            raise ConnectionError("no line")

    class Strict(EndNode):
        tone: Annotated[Tone, Dep()]

    class Lenient(EndNode):
        tone: Annotated[Tone | None, Dep()] = None

    with pytest.raises(DepError) as caught:
        await Graph(start=Strict).arun(Strict(), Broken({}))
    assert caught.value.code == "bae-dep-failed"
    assert "Strict.tone" in str(caught.value)
    result = await Graph(start=Lenient).arun(Lenient(), Broken({}))
    assert result.trace[0].tone is None


async def test_cancelling_a_run_cancels_its_fills_and_a_budget_counts_them():
    asked, cancelled = asyncio.Event(), list[str]()

    class Slow(ToyBackend):
        async def answer(self, prompt: Any) -> Any:
            asked.set()
            try:
                return await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(prompt.name)
                raise

    running = asyncio.create_task(graph.arun(START, Slow(answer_prompt)))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "Tone" in cancelled

    backend = ToyBackend(answer_prompt)
    with pytest.raises(BudgetError):
        await graph.arun(START, Budgeted(backend, Budget(calls=2)))
    assert {prompt.name for prompt in backend.prompts} == {"Background", "Tone"}


async def test_a_gate_of_a_filled_node_parks_the_run_until_the_answer():
    class Approved(EndNode):
        who: Annotated[str, Gate("Who is it for?")]
        text: str

    class Letter(EndNode):
        approved: Annotated[Approved, Dep()]

    letter = Graph(start=Letter)
    async with MemoryJournal() as journal:
        lm = ScriptedLM({Approved: {"text": "Dear Ann"}})
        parked = await letter.arun(Letter(), lm, journal=journal, run_id="one")
        assert [gate.address for gate in parked.waiting] == ["0:Letter.approved/0:Approved.who"]
        assert lm.prompts == []
        result = await letter.answer("one", "Approved.who", "Ann", lm, journal=journal)
        assert result.trace[0].approved == Approved(who="Ann", text="Dear Ann")

    async def answer(gate: OpenGate) -> str:
        return "Bo"

    lm = ScriptedLM({Approved: {"text": "Dear Bo"}})
    result = await letter.arun(Letter(), lm, answer=answer)
    assert result.trace[0].approved.who == "Bo"


# The journal


async def test_a_run_with_filled_nodes_cut_after_any_line_repeats_no_question():
    async with MemoryJournal() as journal:
        first = await graph.arun(START, ScriptedLM(SCRIPT), journal=journal, run_id="one")
        stored = await journal.read("one")
        answered = [line for line in stored.lines if line.kind == "FillEnded"]
        for count in range(1, len(stored.lines)):
            left = await cut_journal(journal, count)
            lm = ScriptedLM(SCRIPT)
            again = await graph.resume("one", lm, journal=left)
            assert again.trace == first.trace
            known = [line for line in stored.lines[:count] if line.kind == "FillEnded"]
            assert len(lm.prompts) == len(answered) - len(known)
            assert (await graph.replay("one", journal=left)).trace == first.trace


async def test_a_journal_with_filled_nodes_has_provenance_and_times_and_can_be_exported(
    tmp_path: Any,
):
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        first = await graph.arun(START, ScriptedLM(SCRIPT), journal=journal, run_id="one")
        why = await journal.why("one", "Reply.background")
        assert why.source == "dep"
        inside = await journal.why("one", "1:Reply.background/0:Background.facts")
        assert (inside.source, inside.value) == ("lm", ["north", "night"])
        city = await journal.why("one", "1:Reply.background/0:Background.city")
        assert (city.source, city.by) == ("dep", "get_city")
        await journal.export(tmp_path / "runs.jsonl")
    async with MemoryJournal() as other:
        await other.load(tmp_path / "runs.jsonl")
        assert (await graph.replay("one", journal=other)).trace == first.trace


def test_the_commands_show_a_run_with_filled_nodes_and_check_its_graph(tmp_path: Any, capsys: Any):
    path = tmp_path / "runs.db"

    async def work() -> None:
        async with SQLiteJournal(path) as journal:
            await graph.arun(START, ScriptedLM(SCRIPT), journal=journal, run_id="one")

    asyncio.run(work())
    assert main(["runs", "show", "one", "--full", "--journal", str(path)]) == 0
    assert "Background" in capsys.readouterr().out
    assert main(["runs", "show", "one", "--json", "--journal", str(path)]) == 0
    ahead = json.loads(capsys.readouterr().out)["work"]
    kinds = {each["place"]: each["kind"] for each in ahead if not ahead.extend(each["inside"])}
    assert kinds["1:Reply.background/0:Background.city"] == "dep"
    assert "body" not in kinds.values()
    assert main(["check", f"{__file__}:graph"]) == 0


async def test_redacting_a_field_of_a_filled_node_leaves_a_readable_run():
    async with MemoryJournal() as journal:
        await graph.arun(START, ScriptedLM(SCRIPT), journal=journal, run_id="one")
        await journal.redact("one", "Background.facts")
        assert "north" not in "".join(line.data for line in (await journal.read("one")).lines)


async def test_cases_may_expect_a_filled_node():
    lm = ScriptedLM(SCRIPT)
    case = Case(START, "cold", nodes={"Tone": {"mood": "kind"}})
    report = await evaluate(graph, [case], {"scripted": lm})
    score = report.contenders[0].total.score
    assert score is not None
    assert score.mean == 1.0


# The proof


def test_the_error_for_a_node_class_run_as_a_graph_suggests_the_bare_dep():
    class Plain(EndNode):
        tone: Annotated[Background, Dep(Background)]

    messages = errors(Graph(start=Plain))
    assert (
        "Annotated[Background, Dep()] is a Background that the LM fills"
        in (messages["bae-dep-unfilled"])
    )


@pytest.mark.parametrize("annotation", [str, Tone | Background, list[Tone], Node])
def test_a_filled_field_whose_type_is_not_a_single_node_class_is_refused(annotation: Any):
    class Wrong(EndNode):
        value: Annotated[annotation, Dep()]  # pyright: ignore[reportInvalidTypeForm]

    assert errors(Graph(start=Wrong))["bae-dep-nothing"].startswith("Wrong.value: Dep() names")


def test_a_function_parameter_cannot_be_a_filled_node():
    def greet(tone: Annotated[Tone, Dep()]) -> str:
        return tone.mood

    class Wrong(EndNode):
        text: Annotated[str, Dep(greet)]

    assert "bind parameters to it" in errors(Graph(start=Wrong))["bae-dep-nothing"]


class Itself(Node):
    again: Annotated[Itself, Dep()]
    text: str


class One(Node):
    two: Annotated[Two, Dep()]
    text: str


class Two(Node):
    one: Annotated[One, Dep()]
    text: str


@pytest.mark.parametrize("cls", [Itself, One])
def test_a_node_that_is_filled_from_itself_is_refused(cls: type[Node]):
    class Start(EndNode):
        node: Annotated[cls, Dep()]  # pyright: ignore[reportInvalidTypeForm]

    with pytest.raises(ProofError) as caught:
        Graph(start=Start).run(Start(), ScriptedLM({}))
    assert [problem.code for problem in caught.value.problems] == ["bae-dep-cycle"]


async def test_a_field_may_be_filled_with_a_node_of_the_start_class():
    class Echo(EndNode):
        first: Annotated[Ask, Dep()]

    class Begin(Node):
        async def __call__(self) -> Echo:
            return Echo()

    result = await Graph(start=Begin).arun(Begin(), ScriptedLM({Ask: {"message": "m"}}))
    assert result.result == Echo(first=Ask(message="m"))


def test_bound_parameters_app_scope_and_missing_values_of_a_filled_node_are_refused():
    class Bound(EndNode):
        text: str
        tone: Annotated[Tone, Dep(mood="text")]

    class Shared(EndNode):
        tone: Annotated[Tone, Dep(scope="app")]

    class Recalling(EndNode):
        word: Annotated[int, Recall()]
        text: str

    class Lost(EndNode):
        node: Annotated[Recalling, Dep()]

    assert "bae-dep-binding" in errors(Graph(start=Bound))
    assert "bae-dep-scope" in errors(Graph(start=Shared))
    assert "Lost -> Recalling" in errors(Graph(start=Lost))["bae-recall-path"]
    with pytest.raises(RecallError):
        asyncio.run(resolve_fields(Lost, lm=ScriptedLM({})))


def test_a_filled_node_needs_an_lm_and_the_diagram_marks_its_llm_fields():
    class Only(EndNode):
        tone: Annotated[Tone, Dep()]

    only = Graph(start=Only)
    assert only.needs_lm == "Only.tone needs one: the LM fills Tone"
    assert "mood: str · LM" in only.to_mermaid(fields=True)
    assert only.validate(journal=True) == []


def test_a_filled_node_that_does_not_see_the_callers_input_is_a_warning():
    class Seeing(Node):
        message: Annotated[str, Recall(Ask)]
        mood: str

    class End(EndNode):
        blind: Annotated[Tone, Dep()]
        seeing: Annotated[Seeing, Dep()]

    class Middle(Node):
        word: str

        async def __call__(self) -> End:
            return End()

    class First(EndNode):
        message: str
        tone: Annotated[Tone, Dep()]

    class Second(Ask):
        async def __call__(self) -> Middle: ...

    (problem,) = Graph(start=First).validate()
    assert (problem.code, problem.place) == ("bae-context-lost", "First.tone")
    assert problem.fix == "put tone on a node after First"
    (problem,) = Graph(start=Second).validate()
    assert (problem.code, problem.place) == ("bae-context-lost", "Tone")
    assert "on the path Second -> Middle -> Tone" in problem.message
