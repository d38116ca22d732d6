"""A user's own words in a prompt: the system text of a graph, the instruction and the description
of a node class."""

from __future__ import annotations

import json
from typing import Annotated, Generic, TypeVar

import pytest
from pydantic import Field

from bae import LM, Dep, Graph, Node, NodeConfig, Recall
from bae.lm import LearnedPrompt, NodePrompts, Retry, WithPrompts
from bae.lm.extras import is_there
from bae.optimizer.predictors import fresh_predictor
from bae.prompts.questions import SYSTEM
from bae.testing import Provider, ScriptedLM
from end_node import EndNode
from http_backends import WIRES
from toy_backend import ToyBackend, choose, route

MAIL = "You sort the mail of a bakery."


class Verdict(EndNode):
    text: str


class Letter(Node):
    text: str

    async def __call__(self) -> Verdict: ...


def systems(lm: ToyBackend) -> list[str]:
    return [prompt.system for prompt in lm.prompts]


async def test_the_system_text_of_a_graph_replaces_bae_s_own():
    lm = ToyBackend(lambda prompt: {"text": "fine"})
    await Graph(start=Letter, system=MAIL).arun(Letter(text="Hi"), lm)
    await Graph(start=Letter).arun(Letter(text="Hi"), lm)
    assert systems(lm) == [MAIL, SYSTEM]


@pytest.mark.parametrize("system", ["", "  ", 3])
def test_an_invalid_system_text_is_refused(system):
    with pytest.raises(TypeError, match=r"Graph\(system="):
        Graph(start=Letter, system=system)


async def test_bodies_functions_and_inner_graphs_use_the_system_text_of_their_run():
    class Asked(Node):
        async def __call__(self, lm: LM) -> Verdict:
            return await lm.make(self, Verdict)

    inner = Graph(start=Asked)
    other = Graph(start=Asked, name="other", system="Be brief.")

    async def rated(lm: LM) -> str:
        return (await lm.fill(Verdict, {}, "Rate")).text

    async def apart(lm: LM) -> str:  # a run of its own
        return (await Graph(start=Asked).arun(Asked(), lm)).trace[-1].text  # pyright: ignore

    class Sorted(EndNode):
        own: Annotated[str, Dep(rated)]
        inside: Annotated[Node, Dep(inner)]
        another: Annotated[Node, Dep(other)]
        apart: Annotated[str, Dep(apart)]

    lm = ToyBackend(lambda prompt: {"text": "fine"})
    await Graph(start=Sorted, system=MAIL).arun(Sorted(), lm)
    assert sorted(systems(lm)) == sorted([MAIL, MAIL, "Be brief.", SYSTEM])


# Instructions


RATE = "Rate the text.\nBe fair."


class Rating(EndNode):
    node_config = NodeConfig(instruction=RATE)
    text: str


class Article(Node):
    text: str

    async def __call__(self) -> Rating: ...


class Asking(Node):
    async def __call__(self, lm: LM) -> Rating:
        return await lm.make(self, Rating)


class Deciding(Node):
    async def __call__(self, lm: LM) -> Rating | None:
        return await lm.decide(self)  # pyright: ignore


def first_lines(lm: ToyBackend) -> list[str]:
    return [prompt.text.partition("\n\n")[0] for prompt in lm.prompts]


@pytest.mark.parametrize("around", [lambda lm: lm, Retry], ids=["backend", "policy"])
async def test_the_instruction_of_a_class_is_used_in_every_fill(around):
    lm = ToyBackend(lambda prompt: {"text": "fine"})
    await Graph(start=Article).arun(Article(text="Hi"), around(lm))
    await Graph(start=Asking).arun(Asking(), around(lm))
    assert first_lines(lm) == [RATE, RATE]
    assert lm.prompts[0].schema["title"] == lm.prompts[0].name == "Rating"


async def test_a_custom_lm_receives_the_instruction():
    lm = ScriptedLM([{"text": "fine"}, {"text": "fine"}, "Rating", {"text": "fine"}])
    for start in (Article(text="Hi"), Asking(), Deciding()):
        await Graph(start=type(start)).arun(start, lm)
    fills = [asked for asked in lm.asked if asked.kind == "fill"]
    assert [asked.instruction for asked in fills] == [RATE] * 3


async def test_a_subclass_does_not_inherit_an_instruction():
    class Short(Rating):
        pass

    T = TypeVar("T")

    class Listed(Node, Generic[T]):
        node_config = NodeConfig(instruction="List them.")
        items: list[T]

        async def __call__(self) -> None: ...

    class Both(Node):
        async def __call__(self, lm: LM) -> None:
            await lm.make(self, Short)
            await lm.make(self, Listed[int])

    lm = ToyBackend({"text": "a"}, {"items": [1]})
    await Graph(start=Both).arun(Both(), lm)
    assert first_lines(lm) == ["Short", "List them."]


async def test_triple_quoted_instructions_are_dedented():
    class Indented(EndNode):
        node_config = NodeConfig(
            instruction="""
            Rate the text.
              - Be fair.
            """
        )
        text: str

    class Asked(Node):
        async def __call__(self) -> Indented: ...

    lm = ToyBackend({"text": "fine"})
    await Graph(start=Asked, system=" Be\n  brief.").arun(Asked(), lm)
    assert first_lines(lm) == ["Rate the text.\n  - Be fair."]
    assert systems(lm) == ["Be\nbrief."]
    if is_there("dspy"):
        assert fresh_predictor(Indented).is_fresh


@pytest.mark.parametrize("name", ["instruction", "description"])
@pytest.mark.parametrize("text", ["", " \n", 3])
def test_invalid_instructions_are_refused(name, text):
    with pytest.raises(TypeError, match=rf"NodeConfig\({name}="):
        NodeConfig(**{name: text})


# Descriptions


class Reply(EndNode):
    node_config = NodeConfig(description="a short answer", instruction="Answer in\ntwo sentences.")
    question: Annotated[str, Recall(Letter)]
    text: str


async def clerk() -> str:
    return "Ada"


class HandOver(EndNode):
    node_config = NodeConfig(description="a person has to look at it")
    to: Annotated[str, Dep(clerk)]
    reason: str = Field(description="one sentence")


class Spam(Node):
    async def __call__(self) -> None: ...


class Sorting(Node):
    urgent: bool

    async def __call__(self) -> Reply | HandOver | Spam | None: ...


class Mail(Letter):
    async def __call__(self) -> Sorting: ...


FIELDS = '{"properties":{"%s":{%s"type":"string"}},"required":["%s"]}'


async def test_every_option_is_offered_with_its_description_and_its_fields():
    lm = ToyBackend({"urgent": True}, route("Reply", text="Yes."))
    result = await Graph(start=Mail).arun(Mail(text="When?"), lm)
    assert result.result.model_dump() == {"question": "When?", "text": "Yes."}
    reason = FIELDS % ("reason", '"description":"one sentence",', "reason")
    assert lm.prompts[1].text == (
        'Choose what comes next, and make it. "None" is to stop here.\n'
        "- Reply: a short answer\n"
        "  To make it: Answer in\n"
        "  two sentences.\n"
        "- HandOver: a person has to look at it\n"
        f"  Its fields: {reason}\n"
        "- Spam\n\n"
        '{"Sorting":{"urgent":true},"context":{"Reply":{"question":"When?"}}}'
    )
    (reply, *_) = lm.prompts[1].schema["properties"]["answer"]["anyOf"]
    assert list(reply["properties"]["fields"]["properties"]) == ["text"]


async def test_a_separate_choice_describes_the_fields_of_all_options():
    lm = ToyBackend({"urgent": True}, choose("Reply"), {"text": "Yes."}, one_call=False)
    await Graph(start=Mail).arun(Mail(text="When?"), lm)
    choice, fill = lm.prompts[1:]
    fields = FIELDS % ("text", "", "text")
    assert f"- Reply: a short answer\n  Its fields: {fields}" in choice.text
    assert choice.text.endswith('- Spam\n\n{"Sorting":{"urgent":true}}')
    assert fill.text.startswith("Answer in\ntwo sentences.\n\n{")


async def test_a_learned_choice_prompt_keeps_the_options():
    lm = ToyBackend({"urgent": True}, choose("Spam"))
    learned = WithPrompts(lm, {Sorting: NodePrompts(choice=LearnedPrompt("Sort it."))})
    await Graph(start=Mail).arun(Mail(text="When?"), learned)
    assert lm.prompts[1].text.startswith("Sort it.\n- Reply: a short answer\n  Its fields: ")
    assert learned.get_stats()["optimized"] == 1


@pytest.mark.once
@pytest.mark.parametrize("make", WIRES.values(), ids=list(WIRES))
async def test_every_backend_sends_custom_instructions(make):
    answers = [{"urgent": True}, route("Reply", text="Yes.")]
    async with Provider() as provider, make(provider) as backend:
        if not backend.answers_unions:
            answers[1:] = [{"choice": "Reply"}, {"text": "Yes."}]
        provider.script(*answers)
        await Graph(start=Mail, system=MAIL).arun(Mail(text="When?"), backend)
    sent = [json.dumps(request.body) for request in provider.requests]
    assert all(MAIL in text for text in sent)
    assert "a person has to look at it" in sent[1]
    assert "Answer in" in sent[-1]
    assert "When?" in sent[-1]
