"""Nodes that an LM fills after tool calls: learned prompts work with them, steps to them are
learned from as far as an example can show them, and nothing else is."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from bae import BaeError, Graph, Node, ToolCall, Tools
from bae.compiler import create_optimized_lm
from bae.journal import MemoryJournal
from bae.lm import Answer, CallPart, LearnedPrompt, NodePrompts, Prompt, WithPrompts
from bae.optimizer.artifacts import Artifact, load_artifacts, save_artifacts
from bae.optimizer.node_schemas import schema_of
from bae.testing import Call, ScriptedLM
from end_node import EndNode
from toy_backend import ToyBackend


async def search(query: str) -> list[str]:
    """Search the catalog."""
    return [f"{query} one"]


class Ticket(Node):
    text: str

    async def __call__(self) -> Reply | Spam: ...


class Reply(EndNode):
    calls: Annotated[list[ToolCall], Tools(search)]
    text: str


class Spam(EndNode):
    why: str


GRAPH = Graph(start=Ticket)
EXAMPLE = {"known": {"Ticket": {"text": "a lamp?"}}, "answer": {"text": "We have a lamp."}}
LEARNED = LearnedPrompt("Answer in one sentence.", (EXAMPLE,))  # type: ignore[arg-type]


def native(prompt: Prompt) -> Answer | dict[str, Any]:
    """A model with native tool calls."""
    if len(prompt.question.types) > 1:
        return {"choice": "Reply"}
    if not any(message.kind == "round" for message in prompt.conversation):
        return Answer("", calls=(CallPart("x1", "search", {"query": "kettle"}),))
    return {"text": "We have kettle one."}


def structured_answer(prompt: Prompt) -> dict[str, Any]:
    """The same, by structured output."""
    answer = native(prompt)
    if len(prompt.question.types) > 1:
        return answer  # type: ignore[return-value]
    if isinstance(answer, Answer):
        return {"next_step": {"action": "search", "query": "kettle"}}
    return {"next_step": {"action": "answer", **answer}}


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "structured"])
async def test_a_learned_prompt_is_in_every_round_of_a_conversation_with_tools(is_native: bool):
    toy = ToyBackend(native if is_native else structured_answer, one_call=False)
    toy.calls_tools = is_native
    lm = WithPrompts(toy, {Reply: NodePrompts(fill=LEARNED)})
    result = await GRAPH.arun(Ticket(text="a kettle?"), lm)

    assert [call.result for call in result.trace[-1].calls] == [["kettle one"]]
    choice, first, second = toy.prompts
    assert "one sentence" not in str(choice)
    for prompt in (first, second):
        assert prompt.text.startswith("Answer in one sentence.")
        [example] = prompt.examples
        assert "a lamp?" in example.asked
        assert "We have a lamp." in example.answer
        assert ("next_step" in example.answer) is not is_native
    # What providers cache: the second request begins with all of the first.
    assert second.conversation[: len(first.conversation)] == first.conversation
    assert lm.get_stats() == {"optimized": 1, "naive": 1}


async def test_a_handwritten_prompt_of_a_node_with_tools_can_be_saved(
    tmp_path,
):
    artifact = Artifact(node="Reply", schema=schema_of(Reply), fill=LEARNED)
    save_artifacts({Reply: artifact}, tmp_path, among=GRAPH)
    assert load_artifacts(GRAPH, tmp_path)[Reply].fill == LEARNED

    toy = ToyBackend(structured_answer, one_call=False)
    lm = create_optimized_lm(GRAPH, tmp_path, toy)
    await GRAPH.arun(Ticket(text="a kettle?"), lm)
    assert toy.prompts[1].text.startswith("Answer in one sentence.")


async def test_a_saved_prompt_for_different_tools_is_refused(tmp_path):
    artifact = Artifact(node="Reply", schema=schema_of(Reply), fill=LEARNED)
    save_artifacts({Reply: artifact}, tmp_path, among=GRAPH)

    async def look_up(word: str) -> str:
        return word

    class Other(EndNode):
        calls: Annotated[list[ToolCall], Tools(look_up)]
        text: str

    Other.__name__ = "Reply"
    with pytest.raises(BaeError) as refused:
        load_artifacts([Other], tmp_path)
    assert refused.value.code == "bae-artifact-changed"


async def record_runs(count: int = 12) -> MemoryJournal:
    journal = MemoryJournal()
    for number in range(count):
        lm = ScriptedLM(
            [Reply, Call("search", query=f"thing {number}"), {"text": f"thing {number} one"}]
            if number % 2
            else [Spam, {"why": f"no {number}"}]
        )
        await GRAPH.arun(Ticket(text=f"thing {number}?"), lm, journal=journal, run_id=f"r{number}")
    return journal


async def test_a_step_to_a_node_with_tools_is_an_example_only_of_the_choice():
    pytest.importorskip("dspy")
    from bae.optimizer import examples_from, trace_to_examples
    from bae.optimizer.examples import choice_examples, fill_examples

    journal = await record_runs(4)
    fork = await GRAPH.fork("r1", at=1, text="corrected", journal=journal)
    await GRAPH.resume(fork, ScriptedLM([]), journal=journal)
    examples = await examples_from(journal, GRAPH)
    assert sorted(example["next_node_type"] for example in examples) == [
        "Reply",
        "Reply",
        "Spam",
        "Spam",
    ]
    assert len(choice_examples(Ticket, examples)) == 4
    assert len(fill_examples(Spam, examples)) == 2
    assert fill_examples(Reply, examples) == []
    corrected = [example for example in examples if example["corrected"]]
    assert [example["next_node"]["fields"] for example in corrected] == [{"text": "corrected"}]
    result = await GRAPH.arun(
        Ticket(text="a?"), ScriptedLM([Reply, Call("search", query="a"), {"text": "b"}])
    )
    assert len(trace_to_examples(result)) == 1


@pytest.mark.once
async def test_optimizing_leaves_the_fill_of_a_node_with_tools_unchanged():
    pytest.importorskip("dspy")
    from bae.optimizer import Progress, aoptimize_node, examples_from

    notes: list[Progress] = []
    examples = await examples_from(await record_runs(), GRAPH)
    optimized = await aoptimize_node(Reply, examples, lm=ToyBackend(), progress=notes.append)
    assert optimized.is_fresh
    said = [note.note for note in notes if note.part == "fill"]
    assert any("its fill follows tool calls" in note for note in said)


@pytest.mark.once
async def test_a_graph_with_a_tool_node_is_improved_in_its_other_parts(tmp_path):
    pytest.importorskip("dspy")
    from bae.optimizer import Improvement, Progress

    def answer(prompt: Prompt) -> dict[str, Any]:
        if len(prompt.question.types) > 1:
            return {"choice": "Reply" if prompt.examples else "Spam"}
        assert prompt.question.target is not Reply  # no tool is called to learn something
        return {"why": "no"}

    notes: list[Progress] = []
    improvement = Improvement(
        GRAPH,
        await record_runs(24),
        tmp_path / "learned",
        lm=ToyBackend(answer, one_call=False),
        minimum=3,
        progress=notes.append,
    )
    improvement_result = await improvement.run()
    assert {(part.node, part.part) for part in improvement_result.parts} == {
        ("Ticket", "choice"),
        ("Spam", "fill"),
    }
    assert any(note.node == "Reply" and "tool calls" in note.note for note in notes)
