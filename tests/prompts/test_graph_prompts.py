"""Prompts without a model: `graph.prompts()`, the prompts of a run on a `ScriptedLM`, and
`assert_prompt`."""

from __future__ import annotations

from time import process_time
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator

from bae import LM, Dep, Gate, Graph, Map, Node, NodeConfig, ProofError, Recall
from bae.lm import LearnedPrompt, NodePrompts, Prompt, WithPrompts
from bae.testing import ScriptedLM, assert_prompt
from end_node import EndNode
from toy_backend import ToyBackend


async def open_the_shop() -> Shop:
    raise AssertionError("a function was called")


class Shop(BaseModel):
    name: str


class Letter(Node):
    text: str

    async def __call__(self) -> Answered | HandedOver: ...


class Answered(Node):
    letter: Annotated[str, Recall(Letter)]
    shop: Annotated[Shop, Dep(open_the_shop)]
    reply: str = Field(description="two polite sentences")

    async def __call__(self, lm: LM) -> Filed:
        raise AssertionError("a body was run")


class HandedOver(Node):
    to: str

    async def __call__(self) -> Filed: ...


class Filed(EndNode):
    topic: str


GRAPH = Graph(start=Letter)


def headings(prompts: list[Prompt]) -> list[str]:
    asked = [(prompt.question.source, prompt.question.target) for prompt in prompts]
    return [
        f"{type(source).__name__} -> {target.__name__ if target else 'a choice'}"
        for source, target in asked
    ]


def test_listing_prompts_uses_samples_and_calls_no_code():
    prompts = GRAPH.prompts()
    assert headings(prompts) == [
        "Letter -> a choice",
        "Letter -> Answered",
        "Answered -> Filed",
        "HandedOver -> Filed",
    ]
    assert prompts[1].text == (
        'Answered\n\n{"Letter":{"text":"sample Letter.text"},"context":'
        '{"shop":{"name":"sample Shop.name"}}}'
    )
    assert prompts[1].schema["properties"]["reply"]["description"] == "two polite sentences"


def test_passed_nodes_replace_samples():
    given = Letter(text="It broke."), Answered(shop=Shop(name="Lamps"), reply="Sorry!")
    prompts = GRAPH.prompts(*given)
    shown = '{"Letter":{"text":"It broke."},"context":{"shop":{"name":"Lamps"}}}'
    assert shown in prompts[1].text
    assert '"reply":"Sorry!"' in prompts[2].text


def test_listing_prompts_of_an_invalid_graph_is_refused():
    class Lost(EndNode):
        mood: Annotated[int, Recall()]

    class Begin(Node):
        async def __call__(self) -> Lost: ...

    with pytest.raises(TypeError, match="give nodes of the graph Letter, which has Answered,"):
        GRAPH.prompts(Begin())
    with pytest.raises(ProofError, match=r"Lost\.mood"):
        Graph(start=Begin).prompts()


async def test_listed_prompts_equal_the_prompts_of_a_run():
    class Found(EndNode):
        number: int = Field(gt=0)

    class Search(Node):
        query: str = "all"

        async def __call__(self) -> Found: ...

    async def look_up(word: str) -> str:
        return word.upper()

    class Start(Node):
        words: list[str]
        upper: Annotated[list[str], Map(look_up, over="words")]
        found: Annotated[Found, Dep(Graph(Search, system="Search."))] = Found(number=1)

        async def __call__(self) -> Middle | None: ...

    class Middle(Node):
        node_config = NodeConfig(instruction="Make the middle.")
        words: Annotated[list[str], Recall()]
        fine: Annotated[bool, Gate("fine?")]
        score: float = 1.5

        async def __call__(self, lm: LM) -> Last:
            return await lm.make(self, Last)

    class Last(EndNode):
        text: str

    async def answer(gate: Any) -> bool:
        return True

    graph = Graph(start=Start, system="Be brief.")
    lm = ScriptedLM([Middle, {"score": 2}, {"text": "the end"}])
    run = await graph.arun(Start(words=["a"], found=Found(number=7)), lm, answer=answer)
    shown = graph.prompts(*run.trace)

    assert [str(prompt) for prompt in shown[:3]] == [str(prompt) for prompt in lm.prompts]
    assert headings(shown) == [
        "Start -> a choice",
        "Start -> Middle",
        "Middle -> Last",
        "Search -> Found",
    ]
    assert [prompt.system for prompt in shown] == ["Be brief."] * 3 + ["Search."]


def test_a_body_is_listed_with_the_questions_its_code_may_ask():
    class Note(EndNode):
        text: str

    class Done(EndNode):
        text: str

    class Decides(Node):
        async def __call__(self, lm: LM) -> Done | None:
            return await lm.decide(self)

    class Makes(Node):
        async def __call__(self, lm: LM) -> Done | None:
            note = await lm.make(self, Note)
            return Done(text=note.text)

    class InItsOwnWords(Node):
        async def __call__(self, lm: LM) -> Done:
            return await lm.fill(Done, {}, "Say bye.")

    class Silent(Node):
        async def __call__(self) -> Done:
            return Done(text="")

    assert headings(Graph(start=Decides).prompts()) == ["Decides -> a choice"]
    assert {*headings(Graph(start=Makes).prompts())} == {"Makes -> Note", "Makes -> Done"}
    assert Graph(start=InItsOwnWords).prompts() == []
    assert Graph(start=Silent).prompts() == []


def test_fields_without_a_valid_sample_are_shown_anyway():
    class Client:
        pass

    class Start(Node, arbitrary_types_allowed=True):
        even: int
        never: str
        client: Client
        code: str = Field(pattern=r"\bx\B{9}$")

        @field_validator("even")
        @classmethod
        def is_even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("odd")
            return value

        @field_validator("never")
        @classmethod
        def is_refused(cls, value: str) -> str:
            raise RuntimeError("no text is good enough")

        async def __call__(self) -> End: ...

    class End(EndNode):
        text: str

    (prompt,) = Graph(start=Start).prompts()
    assert '"never":"sample Start.never"' in prompt.text


def test_listing_prompts_does_not_create_a_pinned_lm():
    class Other(EndNode):
        node_config = NodeConfig(lm="anthropic:claude-of-no-account")
        text: str

    class Start(Node):
        async def __call__(self) -> Other | None: ...

    choice, fill = Graph(start=Start).prompts()
    assert choice.question.fillable == ()
    assert fill.question.target is Other
    learned = {HandedOver: NodePrompts(fill=LearnedPrompt("Name the right person."))}
    prompts = GRAPH.prompts(lm=WithPrompts(ToyBackend(), learned))
    (handed,) = [p for p in prompts if p.question.target is HandedOver]
    assert handed.text.startswith("Name the right person.\n")


# --- assert_prompt ------------------------------------------------------------------------------


def test_assert_prompt_finds_a_text_in_the_prompts_for_a_node():
    letter = 'It "broke".\nTwice.'
    assert_prompt(GRAPH.prompts(Letter(text=letter)), Answered, letter, "You carry out")
    with pytest.raises(AssertionError) as caught:
        assert_prompt(GRAPH.prompts(Letter(text=letter)), Filed, letter)
    first, _, prompt = str(caught.value).partition("\n\n")
    assert first == f"{letter!r} is not in this prompt:"
    assert prompt.startswith("system:\nYou carry out")
    assert "\n\nuser:\nFiled\n\n" in prompt
    assert "\n\nschema:\n{" in prompt
    with pytest.raises(AssertionError, match="no prompt asks for Letter, or offers it"):
        assert_prompt(GRAPH.prompts(), Letter, "text")


async def test_a_scripted_lm_records_the_prompts_of_a_run():
    async def shop() -> Shop:
        return Shop(name="Lamps")

    lm = ScriptedLM([Answered, {"reply": 5}, {"reply": "Sorry!"}, {"topic": "lamps"}])
    with pytest.raises(Exception, match="a body was run"):
        await GRAPH.arun(Letter(text="It broke."), lm, dep_cache={open_the_shop: await shop()})
    assert len(lm.asked) == 3
    assert headings(lm.prompts) == ["Letter -> a choice", "Letter -> Answered"]
    assert_prompt(lm.prompts, Answered, "It broke.")


async def test_a_scripted_lm_can_override_choose_type():
    class Cautious(ScriptedLM):
        async def choose_type(self, types: Any, context: Any) -> Any:
            return HandedOver

    lm = Cautious([{"to": "Ann"}, {"topic": "lamps"}])
    assert type((await GRAPH.arun(Letter(text="It broke."), lm)).trace[1]) is HandedOver


async def test_earlier_nodes_are_shown_if_the_graph_or_a_class_requests_them():
    class Last(EndNode):
        node_config = NodeConfig(context="previous")
        text: str

    class Middle(Node):
        number: int

        async def __call__(self) -> Last: ...

    class Second(Node):
        number: int

        async def __call__(self) -> Middle | Last: ...

    class First(Node):
        text: str

        async def __call__(self) -> Second: ...

    graph = Graph(start=First, context="start")
    lm = ScriptedLM([{"number": 2}, Middle, {"number": 3}, {"text": "the end"}])
    run = await graph.arun(First(text="Go!"), lm)
    shown = graph.prompts(*run.trace)

    assert [str(prompt) for prompt in shown if prompt.question.target is not Last] == [
        str(prompt) for prompt in lm.prompts if prompt.question.target not in (Last, Middle)
    ]
    assert headings(shown) == [
        "First -> Second",
        "Second -> a choice",
        "Second -> Last",
        "Middle -> Last",
    ]
    assert shown[1].question.fillable == (Middle,)
    assert '{"before":[{"First":{"text":"Go!"}}],"Second":{"number":2}}' in shown[1].text
    assert "before" not in shown[2].text


class Haystack(Node):
    text: str = Field(min_length=10**8)
    lines: list[str] = Field(min_length=10**8)
    grid: Annotated[list[Annotated[list[int], Field(min_length=1000)]], Field(min_length=1000)]
    by_name: dict[str, int] = Field(min_length=10**8)
    code: str = Field(pattern="^a{100000}$")

    async def __call__(self) -> Needle: ...


class Needle(Node):
    where: str = Field(min_length=10**8)

    async def __call__(self) -> None: ...


def test_prompts_for_huge_samples_show_short_values_quickly():
    started = process_time()
    (prompt,) = Graph(start=Haystack).prompts()
    assert process_time() - started < 10
    assert "sample Haystack.text" in prompt.text
    assert '"lines"' in prompt.text
    assert '"grid"' in prompt.text
    assert len(prompt.text) < 10_000
