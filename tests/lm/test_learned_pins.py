"""NodePrompts and nodes with a pinned LLM: their learned prompts reach that LLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest

from bae import Dep, Graph, Node, NodeConfig
from bae.lm import (
    Budget,
    Cached,
    LearnedPrompt,
    MemoryCache,
    NodePrompts,
    PromptExample,
    Retry,
    WithPrompts,
)
from bae.testing import ScriptedLM
from end_node import EndNode
from toy_backend import ToyBackend, route

pinned = ToyBackend(lambda prompt: {"colour": "red"})
script = ScriptedLM({"Note": lambda asked: {"said": "by a script"}})


class Start(Node):
    async def __call__(self) -> Hat: ...


class Hat(Node):
    node_config = NodeConfig(lm=pinned)
    colour: str

    async def __call__(self) -> Note: ...


class Note(EndNode):
    node_config = NodeConfig(lm=script)
    said: str


async def get_room() -> str:
    return "attic"


class Begin(Node):
    async def __call__(self) -> Wardrobe: ...


class Wardrobe(EndNode):
    note: Annotated[Note, Dep(Graph(start=Start))]
    room: Annotated[str, Dep(get_room)]
    size: int


LESSONS = {
    Hat: NodePrompts(
        fill=LearnedPrompt("A hat.", (PromptExample({"Start": {}}, {"colour": "grey"}),))
    ),
    Note: NodePrompts(fill=LearnedPrompt("A note.")),
}
HAT_SAID = ['A hat.\n\n{"Start":{}}', '{"colour": "grey"}', 'A hat.\n\n{"Start":{}}']


async def test_a_pinned_lm_is_asked_with_the_learned_prompts():
    pinned.prompts.clear()
    taught = WithPrompts(ToyBackend(), LESSONS)

    await Graph(start=Start).arun(Start(), taught)

    assert pinned.said == [HAT_SAID]
    assert taught.get_stats() == {"optimized": 1, "naive": 0}


async def test_learned_prompts_apply_in_inner_graphs_and_under_other_policies_and_budgets():
    pinned.prompts.clear()
    model = ToyBackend({"size": 3})
    taught = WithPrompts(model, LESSONS)
    lm = Cached(Retry(taught), MemoryCache())

    with Budget(calls=10) as budget:
        for _ in range(2):
            await Graph(start=Begin).arun(Begin(), lm)

    assert pinned.said == [HAT_SAID] * 2  # and what is around the run's LM is not around it
    assert len(model.prompts) == 1
    assert taught.get_stats() == {"optimized": 2, "naive": 1}
    assert budget.usage.calls == 2 + 1 + 2  # two by the script


def test_wrapping_a_pinned_lm_returns_the_same_object_each_time():
    model, other = ToyBackend(), ToyBackend()
    taught = WithPrompts(model, LESSONS)

    assert taught.pinned(other) is taught.pinned(other)
    assert taught.pinned(model) is taught
    assert taught.pinned(script) is script
    assert Retry(model).pinned(other) is other
    assert WithPrompts(taught, {}).pinned(model).settings == WithPrompts(taught, {}).settings


@pytest.mark.once
async def test_a_graph_with_only_pinned_lms_is_optimized_without_another_lm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("dspy")
    from bae.compiler import compile_graph, create_optimized_lm

    monkeypatch.setenv("BAE_LM", "none")
    pinned.prompts.clear()
    compiled = compile_graph(Graph(start=Start))
    compiled.predictors[Hat].fill.demos = [{"source": {"Start": {}}, "colour": "grey"}]
    await compiled.arun(Start())
    compiled.save(tmp_path)
    lm = create_optimized_lm(compiled.graph, tmp_path)
    await compiled.graph.arun(Start(), lm)

    assert [len(messages) for messages in pinned.said] == [3, 3]
    assert isinstance(lm, WithPrompts)
    assert lm.get_stats() == {"optimized": 1, "naive": 0}


both = ToyBackend(lambda prompt: route("Left", steps=3))


class Crossing(Node):
    node_config = NodeConfig(lm=both)

    async def __call__(self) -> Left | Right: ...


class Left(EndNode):
    node_config = NodeConfig(lm=both)
    steps: int


class Right(EndNode):
    node_config = NodeConfig(lm=both)
    steps: int


async def test_nodes_with_the_same_pinned_lm_are_chosen_and_filled_in_one_call():
    both.prompts.clear()
    plain = await Graph(start=Crossing).arun(Crossing())
    (before,) = both.prompts

    result = await Graph(start=Crossing).arun(Crossing(), WithPrompts(ToyBackend(), LESSONS))

    assert both.prompts == [before] * 2
    assert result.trace == plain.trace
