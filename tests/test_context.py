"""Which nodes a question shows: `context` and `context_limit` of graphs and node classes."""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field

from bae import LM, Dep, Graph, Node, NodeConfig, Recall, ReplayError
from bae.journal import AnswerJudged, MemoryJournal, check
from bae.language_model import scene_around
from bae.plan import plan_of
from bae.prompts.questions import EARLIER, SYSTEM
from end_node import EndNode, leading_to
from toy_backend import FourMethods, ToyBackend, route


def known(prompt: Any) -> dict[str, Any]:
    """The JSON of a prompt."""
    return json.loads(prompt.text.partition("\n\n")[2])


class Hold(EndNode):
    until: str


class Reply(EndNode):
    text: str


Refund = leading_to(Reply, Hold, name="Refund", euros=int)
Ticket = leading_to(Refund, name="Ticket", message=str)


TICKET = {"Ticket": {"message": "it came late"}}
START = Ticket(message="it came late")


def shop() -> ToyBackend:
    return ToyBackend({"euros": 20}, route("Reply", text="sorry"))


@pytest.mark.parametrize("context", ["start", "trace", Ticket, (Hold, Ticket), Node])
async def test_a_prompt_shows_the_nodes_that_the_context_setting_names(context: Any):
    graph, lm = Graph(start=Ticket, context=context), shop()
    await graph.arun(START, lm)

    assert known(lm.prompts[0]) == TICKET  # the previous node is there once
    assert known(lm.prompts[1]) == {"before": [TICKET], "Refund": {"euros": 20}}
    assert [prompt.system for prompt in lm.prompts] == [SYSTEM, f"{SYSTEM} {EARLIER}"]
    assert graph.validate() == []


async def test_the_prompts_of_a_graph_are_the_prompts_that_a_run_sends():
    graph, lm = Graph(start=Ticket, context="start"), shop()
    await graph.arun(START, lm)

    assert [prompt.text for prompt in graph.prompts(START, Refund(euros=20))] == [
        prompt.text for prompt in lm.prompts
    ]


@pytest.mark.parametrize("context", [None, "previous", Hold])
async def test_a_context_setting_without_matching_nodes_adds_nothing(context: Any):
    graph, lm = Graph(start=Ticket, context=context), shop()
    await graph.arun(START, lm)

    assert known(lm.prompts[1]) == {"Refund": {"euros": 20}}
    assert lm.prompts[1].system == SYSTEM
    assert [problem.code for problem in graph.validate()] == ["bae-context-lost"]


async def test_a_class_with_its_own_context_setting_is_filled_separately():
    class Ask(Node):
        text: str

        async def __call__(self) -> Plan: ...

    class Plan(Node):
        node_config: ClassVar[NodeConfig] = NodeConfig(context="start")
        steps: str

        async def __call__(self) -> Careful | Quick: ...

    class Careful(EndNode):
        node_config: ClassVar[NodeConfig] = NodeConfig(context="trace", description="with care")
        text: str

    class Quick(Careful):
        node_config: ClassVar[NodeConfig] = NodeConfig(context="previous")

    ask = {"Ask": {"text": "why?"}}
    chosen = {"choice": "Careful"}
    lm = ToyBackend({"steps": "1"}, chosen, {"text": "so"})
    await Graph(start=Ask).arun(Ask(text="why?"), lm)

    assert known(lm.prompts[1]) == {"before": [ask], "Plan": {"steps": "1"}}
    assert known(lm.prompts[2]) == {"before": [ask], "Plan": {"steps": "1"}}
    assert NodeConfig(context="trace") == {"context": "trace"}

    class Inherits(Careful):
        pass

    assert plan_of(Inherits).shows == "trace"


class Draft(Node):
    text: str

    async def __call__(self) -> Draft | None: ...


async def test_a_long_trace_is_cut_to_its_newest_nodes_and_the_cut_is_reported(
    caplog: pytest.LogCaptureFixture,
):
    graph = Graph(start=Draft, context="trace", context_limit=52)
    lm = ToyBackend(*(route("Draft", text=str(n)) for n in range(1, 5)), route("None"))
    with caplog.at_level(logging.WARNING, "bae"):
        await graph.arun(Draft(text="0"), lm)

    def draft(n: int) -> dict[str, Any]:
        return {"Draft": {"text": str(n)}}

    assert len(json.dumps(draft(0), separators=(",", ":"))) == 22
    assert [known(prompt).get("before") for prompt in lm.prompts] == [
        None,
        [draft(0)],
        [draft(0), draft(1)],
        ["(1 earlier step is left out)", draft(1), draft(2)],
        ["(2 earlier steps are left out)", draft(2), draft(3)],
    ]
    assert [r.message for r in caplog.records if r.name.startswith("bae")] == [
        "Draft: 1 of the earlier nodes that its questions show are left out from here on: together "
        "they have more than context_limit=52 characters"
    ]


async def test_a_node_that_is_longer_than_the_limit_is_left_out_completely():
    lm = shop()
    await Graph(start=Ticket, context="start", context_limit=10).arun(START, lm)

    assert known(lm.prompts[1])["before"] == ["(1 earlier step is left out)"]


async def test_prompts_of_bodies_and_functions_show_the_same_context():
    class Ask(Node):
        text: str

        async def __call__(self) -> Look: ...

    class Note(EndNode):
        word: str

    async def note(lm: LM) -> Note:
        return await lm.make(Note(word="x"), Note)

    class Look(Node):
        note: Annotated[Note, Dep(note)]

        async def __call__(self, lm: LM) -> Told | Other:
            chosen = await lm.choose_type([Told, Other], {"of": "both"})
            assert chosen is Told
            assert await lm.decide(self) == Told(text="one")
            return await lm.make(self, Told)

    class Told(EndNode):
        text: str

    class Other(EndNode):
        node_config: ClassVar[NodeConfig] = NodeConfig(context="previous")
        text: str

    ask = {"Ask": {"text": "why?"}}
    look = {"Look": {"note": {"word": "w"}}}
    lm = ToyBackend({"word": "w"}, {"choice": "Told"}, route("Told", text="one"), {"text": "two"})
    await Graph(start=Ask, context="trace").arun(Ask(text="why?"), lm)

    assert [known(prompt) for prompt in lm.prompts] == [
        {"before": [ask], "Note": {"word": "x"}},
        {"before": [ask], "context": {"of": "both"}},
        {"before": [ask], **look},
        {"before": [ask], **look},
    ]


async def test_a_subgraph_shows_its_own_trace_and_classes_of_the_outer_run():
    class Second(EndNode):
        topic: str

    class Asked(EndNode):
        text: str

    class Inner(leading_to(Second)):  # type: ignore[misc]
        topic: str = "weather"

    async def run(inner: Any, **settings: Any) -> dict[str, Any]:
        class Ask(Asked):
            async def __call__(self) -> Told: ...

        class Told(EndNode):
            found: Annotated[Second, Dep(inner)]

        lm = ToyBackend({"topic": "rain"})
        await Graph(start=Ask, **settings).arun(Ask(text="why?"), lm)
        return known(lm.prompts[0])

    weather = {"Inner": {"topic": "weather"}}
    assert await run(Graph(start=Inner), context="trace") == weather
    around = {"before": [{"Ask": {"text": "why?"}}], **weather}
    assert await run(Graph(start=Inner), context=Asked) == around
    assert await run(Graph(start=Inner, context=Asked), context="trace") == around
    assert await run(Graph(start=Inner, context="previous"), context=Asked) == weather


class Watching(FourMethods):
    """It sees what there is to show where it makes its own prompts."""

    def __init__(self) -> None:
        self.seen: list[tuple[Node, ...]] = []

    async def choose_type(self, types: Any, context: Any) -> Any:
        self.seen.append(scene_around.get().shown)
        return types[0]

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        self.seen.append(scene_around.get().shown)
        return Refund(euros=1) if target is Refund else target(text="fine")


async def test_an_lm_that_is_not_a_backend_finds_the_nodes_in_the_scene():
    lm = Watching()
    await Graph(start=Ticket, context="start").arun(START, lm)

    assert lm.seen == [(), (START,), (START,)]
    assert scene_around.get().shown == ()


async def test_a_run_resumes_and_replays_with_its_context_setting():
    journal, lm = MemoryJournal(), shop()
    graph = Graph(start=Ticket, context="start")
    result = await graph.arun(START, lm, journal=journal, run_id="one")

    assert (await graph.replay("one", journal=journal)).trace == result.trace
    other = Graph(start=Ticket)
    with pytest.raises(ReplayError, match="the question to the LM has changed") as differs:
        await other.replay("one", journal=journal)
    assert '-{"before":[{"Ticket"' in differs.value.diff

    class Stops(ToyBackend):
        async def answer(self, prompt: Any) -> Any:
            if len(self.prompts) == 1:
                raise RuntimeError("stopped")
            return await super().answer(prompt)

    with pytest.raises(Exception, match="stopped"):
        await graph.arun(START, Stops({"euros": 20}), journal=journal, run_id="two")
    rest = ToyBackend(route("Reply", text="sorry"))
    await graph.resume("two", rest, journal=journal)
    assert rest.prompts[0].text == lm.prompts[1].text
    assert await check(other, journal) == []


async def test_secrets_in_a_question_are_not_stored():
    class Login(leading_to(leading_to(Reply))):  # type: ignore[misc]
        node_config = NodeConfig(show=("token",))
        token: str = Field(repr=False)

    async def asked(context: Any) -> str:
        journal = MemoryJournal()
        graph = Graph(start=Login, context=context)
        lm = ToyBackend({"text": "hi"})
        await graph.arun(Login(token="hush"), lm, journal=journal, run_id="one")
        assert ("hush" in lm.prompts[0].text) is (context == "start")
        lines = (await journal.read("one")).lines
        return next(line.data for line in lines if line.kind == AnswerJudged.__name__)

    assert '"asked"' in await asked("previous")
    assert '"asked"' not in await asked("start")


@pytest.mark.parametrize("wrong", ["all", "", 3, int, (), (Ticket, int), [Ticket]])
def test_a_wrong_context_setting_is_refused(wrong: Any):
    for owner in (lambda: Graph(start=Ticket, context=wrong), lambda: NodeConfig(context=wrong)):
        with pytest.raises(TypeError, match='give "previous", "start", "trace", a node class'):
            owner()


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "3"])
def test_a_wrong_context_limit_is_refused(wrong: Any):
    with pytest.raises(ValueError, match="give a number of characters"):
        Graph(start=Ticket, context_limit=wrong)
    with pytest.raises(ValueError, match="give a number of characters"):
        NodeConfig(context_limit=wrong)


async def test_a_value_recalled_from_a_shown_node_appears_once():
    class Answered(EndNode):
        message: Annotated[str, Recall()]
        text: str

    middle = leading_to(Answered, name="Middle", n=int)
    graph = Graph(start=leading_to(middle, message=str), context="start")
    lm = ToyBackend({"n": 1}, {"text": "so"})
    await graph.arun(graph.start(message="x"), lm)

    assert known(lm.prompts[1]) == {
        "before": [{"Start": {"message": "x"}}],
        "Middle": {"n": 1},
    }
    without = Graph(start=graph.start)
    lm = ToyBackend({"n": 1}, {"text": "so"})
    await without.arun(graph.start(message="x"), lm)
    assert known(lm.prompts[1]) == {"Middle": {"n": 1}, "context": {"message": "x"}}
