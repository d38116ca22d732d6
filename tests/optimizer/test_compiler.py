"""Graphs compiled for DSPy: a signature and a predictor for every node, which can be optimized,
saved, loaded and run, and LLMs that ask with learned prompts."""

from __future__ import annotations

import json
import logging
import os
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, field_validator

from bae import ArtifactError, BaeLMError, Dep, Graph, Map, Node, ProofError
from bae.lm import LearnedPrompt, OptimizedLM, PromptExample, WithPrompts
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.registry import cached_lm
from bae.lm.signatures import node_to_signature
from bae.optimizer import load_optimized, save_optimized, trace_to_examples
from bae.optimizer.artifacts import Artifact, Made, load_artifacts
from bae.optimizer.node_schemas import schema_of
from bae.optimizer.predictors import artifact_of, fresh_predictor, predictor_of
from bae.testing import Provider, ScriptedLM
from toy_backend import ToyBackend
from wrong_by_design import CODES, Coded, Parcel, goes_by, right_examples

dspy = pytest.importorskip("dspy")

from bae.compiler import CompiledGraph, compile_graph, create_optimized_lm  # noqa: E402
from bae.optimizer.predictors import NodePredictor  # noqa: E402

pytestmark = pytest.mark.once


class Weather(BaseModel):
    sky: str


class Tone(Enum):
    warm = "warm"
    dry = "dry"


def get_weather() -> Weather:
    return Weather(sky="clear")


class Waking(Node):
    message: str

    async def __call__(self) -> Outfit | AskBack | None: ...


class Outfit(Node):
    config: Annotated[Weather, Dep(get_weather)]
    top: str = Field(description="a specific garment", min_length=2)
    tone: Tone
    lm: date | None = None
    source: Decimal = Decimal(0)

    @field_validator("top")
    @classmethod
    def is_no_hat(cls, top: str) -> str:
        if "hat" in top:
            raise ValueError("a hat is no top")
        return top

    async def __call__(self) -> None: ...


class AskBack(Node):
    question: str

    async def __call__(self) -> Waking | None:
        return Waking(message="again") if self.question else None


GRAPH = Graph(start=Waking, end=(Waking, Outfit, AskBack))
UP = Waking(message="just got up")
SHIRT: dict[str, Any] = {
    "top": "a blue shirt",
    "tone": "warm",
    "lm": "2030-01-02",
    "source": "12.50",
}
KNOWN: dict[str, Any] = {
    "Waking": {"message": "früh auf"},
    "context": {"config": {"sky": "snow"}},
}


def make_outfit_artifact() -> Artifact:
    """What an optimizer learns: another instruction, and an example."""
    example = PromptExample(known=KNOWN, answer=SHIRT)
    return Artifact(
        node="Outfit",
        schema=schema_of(Outfit),
        fill=LearnedPrompt(instruction="Dress for the day", examples=[example]),
        made=Made(optimizer="bootstrap", seed=1),
    )


def answer(prompt: Prompt) -> dict[str, Any]:
    return {"choice": "Outfit"} if prompt.question.types else SHIRT


# Predictors


def test_a_fresh_predictor_asks_like_any_backend():
    outfit, waking, ask_back = (fresh_predictor(cls) for cls in (Outfit, Waking, AskBack))

    assert list(outfit.fill.signature.input_fields) == ["source_", "config_"]
    assert list(outfit.fill.signature.output_fields) == ["top", "tone", "lm_", "source"]
    assert outfit.fill.signature.instructions == "Outfit"
    assert outfit.choice is None
    assert list(waking.choice.signature.fields) == ["known", "choice"]
    assert waking.choice.signature.instructions == (
        'Choose what comes next. "None" is to stop here.'
    )
    assert ask_back.choice is None  # its own code chooses
    assert all(predictor.is_fresh for predictor in (outfit, waking, ask_back))
    assert outfit.made is None
    assert repr(waking) == "NodePredictor(Waking, fresh)"


def test_artifacts_survive_a_round_trip_through_predictors_and_files(tmp_path: Path):
    decide = LearnedPrompt(
        "Choose well.", (PromptExample({"Waking": {"message": "up"}}, {"choice": "None"}),)
    )
    outfit, waking = (
        make_outfit_artifact(),
        Artifact(node="Waking", schema=schema_of(Waking), choice=decide),
    )
    learned = {Outfit: predictor_of(Outfit, outfit), Waking: predictor_of(Waking, waking)}
    assert [artifact_of(predictor) for predictor in learned.values()] == [outfit, waking]

    save_optimized(learned, tmp_path)
    artifacts = load_artifacts(GRAPH, tmp_path)
    outfit.sources = {"Waking": {"message": "string"}}  # which only the graph knows
    assert artifacts == {Outfit: outfit, Waking: waking}
    loaded = load_optimized(GRAPH, tmp_path)
    assert artifact_of(loaded[Outfit]) == outfit
    assert [*map(dict, loaded[Outfit].fill.demos)] == [*map(dict, learned[Outfit].fill.demos)]


# Saving and loading


def test_only_improved_parts_are_saved(tmp_path: Path):
    learned = {
        Outfit: predictor_of(Outfit, make_outfit_artifact()),
        Waking: fresh_predictor(Waking),
    }
    assert [file.name for file in save_optimized(learned, tmp_path)] == ["Outfit.json"]

    before = (tmp_path / "Outfit.json").read_bytes()
    assert save_optimized({Outfit: fresh_predictor(Outfit)}, tmp_path) == []
    assert (tmp_path / "Outfit.json").read_bytes() == before


def test_a_missing_file_gives_a_fresh_predictor(tmp_path: Path):
    save_optimized({Outfit: predictor_of(Outfit, make_outfit_artifact())}, tmp_path)
    loaded = load_optimized(GRAPH, tmp_path)

    assert list(loaded) == [Waking, Outfit, AskBack]
    assert [predictor.is_fresh for predictor in loaded.values()] == [True, False, True]
    assert loaded[Outfit].made == Made(optimizer="bootstrap", seed=1)


def test_a_plain_dspy_predictor_is_saved_with_json_values(tmp_path: Path):
    predictor = dspy.Predict(node_to_signature(Outfit).with_instructions("Dress well"))
    typed = {"top": "a parka", "tone": Tone.dry, "lm_": date(2030, 1, 2), "source": Decimal("1.5")}
    predictor.demos = [
        dspy.Example(config_=Weather(sky="snow"), augmented=True, **typed),
        {"config_": {"sky": "rain"}, **SHIRT, "lm_": None},
    ]
    save_optimized({Outfit: predictor}, tmp_path)

    fill = load_artifacts(GRAPH, tmp_path)[Outfit].fill
    assert fill is not None
    assert fill.instruction == "Dress well"
    assert fill.examples[0].known == {"context": {"config": {"sky": "snow"}}}
    assert fill.examples[0].answer == {
        "top": "a parka",
        "tone": "dry",
        "lm": "2030-01-02",
        "source": "1.5",
    }
    assert fill.examples[1].answer["lm"] is None


def test_a_chain_of_thought_predictor_is_saved_without_its_reasoning(tmp_path: Path):
    module = dspy.ChainOfThought(node_to_signature(Outfit))
    (inner,) = module.predictors()
    inner.demos = [{"reasoning": "cold", "top": "a parka", "tone": "dry"}]
    (file,) = save_optimized({Outfit: module}, tmp_path)

    assert "reasoning" not in file.read_text("utf-8")
    assert len(load_optimized(GRAPH, tmp_path)[Outfit].fill.demos) == 1


def test_an_example_rejected_by_its_class_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
):
    predictor = predictor_of(Outfit, make_outfit_artifact())
    predictor.fill.demos += [
        {"top": "a hat", "tone": "dry"},
        {"top": "a vest"},
        {"top": b"\xff\xff", "tone": "dry"},
        {"top": float("nan"), "tone": "dry"},
    ]
    with caplog.at_level(logging.WARNING, "bae.optimizer"):
        artifact = artifact_of(predictor)

    assert artifact == make_outfit_artifact()
    assert len(caplog.records) == 4
    assert (
        "Outfit: example 1 of its fill is left out, since the class does not take it: "
        "answer.top: Value error, a hat is no top"
    ) in caplog.text


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({Outfit: 3}, TypeError, "give a NodePredictor"),
        ({int: 3}, TypeError, "node classes"),
        ({Outfit: dspy.Predict("question -> answer")}, ValueError, "has no output top, tone"),
        ({Outfit: fresh_predictor(Waking)}, TypeError, "it has a predictor for Waking"),
    ],
    ids=range(4),
)
def test_saving_invalid_predictors_is_refused(
    tmp_path: Path, given: Any, error: type[Exception], said: str
):
    with pytest.raises(error, match=said):
        save_optimized(given, tmp_path)


# Compiling


class Fitting(Node):
    top: str

    async def __call__(self) -> Fitted | Fitting: ...


class Fitted(Node):
    size: int

    async def __call__(self) -> None: ...


class Tailor(Node):
    tops: list[str]
    each: Annotated[list[Fitted], Map(Fitting, over="tops")]

    async def __call__(self) -> Tailor | AskBack: ...


def test_a_compiled_graph_has_a_signature_for_every_node_and_choice():
    compiled = compile_graph(GRAPH)

    assert compiled.graph is GRAPH
    assert list(compiled.signatures) == [Waking, Outfit, AskBack]
    assert list(compiled.signatures[Waking].input_fields) == ["message"]
    assert list(compiled.signatures[Waking].output_fields) == []
    assert list(compiled.signatures[Outfit].output_fields) == ["top", "tone", "lm_", "source"]
    assert compiled.signatures[AskBack].instructions == "AskBack"
    assert list(compiled.choices) == [Waking]
    assert all(isinstance(predictor, NodePredictor) for predictor in compiled.predictors.values())
    assert repr(compiled) == "<CompiledGraph Waking, 3 nodes, nothing learned>"


def test_nodes_of_inner_graphs_are_compiled_too():
    compiled = compile_graph(Graph(start=Tailor))

    assert list(compiled.predictors) == [Tailor, AskBack, Waking, Outfit, Fitting, Fitted]
    assert list(compiled.signatures[Fitting].input_fields) == ["top"]  # a start is given its fields
    assert list(compiled.predictors[Fitting].fill.signature.output_fields) == ["top"]
    assert compiled.choices.keys() == {Tailor, Waking, Fitting}
    assert "Fitting" in str(compiled.choices[Fitting].output_fields["choice"].annotation)


def test_an_invalid_graph_is_not_compiled():
    class Broken(Node):
        async def __call__(self) -> int: ...  # pyright: ignore

    with pytest.raises(ProofError):
        compile_graph(Graph(start=Broken))


async def test_a_run_of_a_compiled_graph_uses_learned_prompts():
    compiled = compile_graph(GRAPH)
    compiled.predictors[Outfit] = predictor_of(Outfit, make_outfit_artifact())
    model = ToyBackend(answer, one_call=False)
    result = await compiled.arun(UP, model)

    assert isinstance(result.result, Outfit)
    choice, fill = model.prompts
    assert choice.text.startswith("Choose what comes next.")
    assert choice.examples == ()
    assert fill.text.startswith("Dress for the day\n\n")
    assert [json.loads(shown.answer) for shown in fill.examples] == [SHIRT]
    assert repr(compiled) == "<CompiledGraph Waking, 3 nodes, learned: Outfit>"


def test_a_compiled_graph_without_learned_prompts_runs_like_its_graph():
    compiled, model = compile_graph(GRAPH), ToyBackend(answer, one_call=False)
    told = compiled.run(UP, model, max_iters=2)
    plain = ToyBackend(answer, one_call=False)
    GRAPH.run(UP, plain)

    assert told.result == Outfit.model_validate({**SHIRT, "config": Weather(sky="clear")})
    assert [prompt.text for prompt in model.prompts] == [prompt.text for prompt in plain.prompts]


async def test_a_compiled_run_without_its_lm_is_refused():
    compiled = compile_graph(GRAPH)
    compiled.predictors[Outfit] = predictor_of(Outfit, make_outfit_artifact())
    with pytest.raises(BaeLMError) as caught:
        await compiled.arun(UP)
    assert caught.value.code == "bae-lm-missing"

    class Alone(Node):
        text: str

        async def __call__(self) -> None: ...

    alone = compile_graph(Graph(start=Alone))
    told = alone.predictors[Alone].fill
    told.signature = told.signature.with_instructions("Say more")
    assert (await alone.arun(Alone(text="x"))).result == Alone(text="x")


def test_saved_prompts_are_loaded_with_the_graph(tmp_path: Path):
    compiled = compile_graph(GRAPH)
    compiled.predictors[Outfit] = predictor_of(Outfit, make_outfit_artifact())
    assert [file.name for file in compiled.save(tmp_path)] == ["Outfit.json"]

    loaded = CompiledGraph.load(GRAPH, tmp_path)
    model = ToyBackend(answer, one_call=False)
    loaded.run(UP, model)
    assert model.prompts[1].text.startswith("Dress for the day\n\n")
    assert artifact_of(loaded.predictors[Outfit]).fill == make_outfit_artifact().fill
    assert (
        loaded.save(tmp_path / "again")[0].read_bytes() == (tmp_path / "Outfit.json").read_bytes()
    )


def test_a_file_of_a_changed_class_is_refused_by_name(tmp_path: Path):
    save_optimized({Outfit: predictor_of(Outfit, make_outfit_artifact())}, tmp_path)
    data = json.loads((tmp_path / "Outfit.json").read_text("utf-8"))
    data["schema"] = schema_of(AskBack).model_dump()
    (tmp_path / "Outfit.json").write_text(json.dumps(data))

    for load in (CompiledGraph.load, load_optimized, create_optimized_lm):
        with pytest.raises(ArtifactError, match=r"Outfit\.json was made for another Outfit"):
            load(GRAPH, tmp_path)


def test_a_directory_without_prompts_for_the_graph_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def optimized_lm(graph: Any, directory: Path) -> Any:
        return create_optimized_lm(graph, directory, ToyBackend(answer, one_call=False))

    for load in (CompiledGraph.load, load_optimized, load_artifacts, optimized_lm):
        caplog.clear()
        load(GRAPH, tmp_path)
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("bae.optimizer", "WARNING")
        said = f"{tmp_path} has no artifact for any of the node classes Waking, Outfit, AskBack"
        assert record.message.startswith(said)


# LMs


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    save_optimized({Outfit: predictor_of(Outfit, make_outfit_artifact())}, tmp_path / "learned")
    return tmp_path / "learned"


async def test_an_optimized_lm_asks_any_backend_with_saved_prompts(learned: Path):
    model = ToyBackend(answer, one_call=False)
    lm = create_optimized_lm(GRAPH, learned, model)
    result = await GRAPH.arun(UP, lm)

    assert isinstance(lm, WithPrompts)
    assert isinstance(result.result, Outfit)
    assert model.prompts[1].text.startswith("Dress for the day\n\n")
    assert lm.get_stats() == {"optimized": 1, "naive": 1}


async def test_an_optimized_lm_accepts_a_name_or_any_lm(learned: Path, tmp_path: Path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["Outfit", SHIRT]))
    for lm in (f"scripted:{script}", ScriptedLM([Outfit, SHIRT])):
        result = await GRAPH.arun(UP, create_optimized_lm(GRAPH, learned, lm))
        assert isinstance(result.result, Outfit)


def test_an_optimized_lm_without_an_inner_lm_uses_the_default_lm(
    learned: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(BaeLMError) as caught:
        create_optimized_lm(GRAPH, learned)
    assert caught.value.code == "bae-lm-missing"

    monkeypatch.setenv("BAE_LM", "claude-cli:sonnet")
    lm: Any = create_optimized_lm(GRAPH, learned)
    assert lm.inner is cached_lm("claude-cli:sonnet")
    assert create_optimized_lm(GRAPH, learned, "claude-cli:sonnet").inner is lm.inner  # pyright: ignore


async def test_a_dspy_lm_is_asked_through_the_predictors(learned: Path):
    async with Provider() as provider:
        provider.script({"choice": "Outfit"}, SHIRT, {"choice": "Outfit"}, SHIRT)
        base = f"{provider.url}/v1"
        model = dspy.LM("openai/gpt-4o-mini", api_base=base, api_key="a key", cache=False)
        lm = create_optimized_lm(GRAPH, learned, model)
        result = await GRAPH.arun(UP, lm)
        compiled = CompiledGraph.load(GRAPH, learned)
        again = await compiled.arun(UP, model)
        asked = [request.body["messages"] for request in provider.requests]
        await model.aclose()

    assert isinstance(lm, OptimizedLM)
    assert lm.get_stats() == {"optimized": 1, "naive": 0}
    assert result.result == again.result
    assert asked[:2] == asked[2:]
    assert [message["role"] for message in asked[1]] == ["system", "user", "assistant", "user"]
    assert asked[1][1]["content"].startswith("Dress for the day\n\n")
    assert json.loads(asked[1][2]["content"]) == SHIRT


# Optimizing


class Ask(Node):
    number: int

    async def __call__(self) -> Even | Odd: ...


class Even(Node):
    half: int

    async def __call__(self) -> None: ...


class Odd(Node):
    word: str

    async def __call__(self) -> None: ...


NUMBERS = Graph(start=Ask, end=(Even, Odd))


class Counting(Backend):
    """Knows about numbers, and how often it was asked."""

    model = "counting"
    free = True

    def __init__(self) -> None:
        super().__init__(one_call=False)
        self.asked = 0

    async def answer(self, prompt: Prompt) -> Answer:
        self.asked += 1
        number = json.loads(prompt.text.partition("\n\n")[2])["Ask"]["number"]
        if prompt.question.types:
            return Answer(value={"choice": "Odd" if number % 2 else "Even"})
        return Answer(value={"word": f"word {number}"} if number % 2 else {"half": number // 2})


async def traces(count: int) -> list[Any]:
    found: list[Any] = []
    for number in range(count):
        found += trace_to_examples(await NUMBERS.arun(Ask(number=number), Counting()))
    return found


async def test_a_metric_for_a_class_of_another_graph_is_refused():
    class Stranger(Node):
        async def __call__(self) -> None: ...

    model = Counting()
    with pytest.raises(ValueError, match=r"metric=….* has no node .*Stranger.*; it has Ask"):
        await compile_graph(NUMBERS).aoptimize(
            await traces(24), {Stranger: lambda expected, given: 1.0}, lm=model
        )
    assert model.asked == 0


async def test_optimizing_a_compiled_graph_changes_its_predictors(tmp_path: Path):
    compiled = compile_graph(NUMBERS)
    phases: list[tuple[str, str, str]] = []
    model = Counting()
    same = await compiled.aoptimize(
        await traces(24),
        lm=model,
        calls=tmp_path / "calls.sqlite",
        progress=lambda p: phases.append((p.node, p.part, p.phase)),
    )

    assert same is compiled
    assert [
        cls.__name__ for cls, predictor in compiled.predictors.items() if not predictor.is_fresh
    ] == [
        "Ask",
        "Even",
        "Odd",
    ]
    nodes = list(dict.fromkeys(node for node, _, _ in phases))
    assert nodes == ["Ask", "Even", "Odd"]  # one after the other
    assert ("Ask", "fill", "skipped") in phases  # nothing fills a start
    compiled.save(tmp_path / "learned")
    assert sorted(os.listdir(tmp_path / "learned")) == ["Ask.json", "Even.json", "Odd.json"]
    # Again with the same log of calls: nothing is asked twice, and the same is learned.
    other = Counting()
    again = compile_graph(NUMBERS)
    await again.aoptimize(await traces(24), lm=other, calls=tmp_path / "calls.sqlite")
    assert other.asked == 0
    assert {c: artifact_of(p) for c, p in again.predictors.items()} == {
        c: artifact_of(p) for c, p in compiled.predictors.items()
    }


async def test_nodes_left_out_of_an_optimization_keep_their_learned_prompts():
    compiled = compile_graph(NUMBERS)
    told = compiled.predictors[Ask].choice
    told.signature = told.signature.with_instructions("Choose by parity.")
    examples = await traces(24)
    await compiled.aoptimize(examples, lm=Counting(), nodes=["Odd"])

    assert not compiled.predictors[Odd].is_fresh
    assert compiled.predictors[Even].is_fresh
    assert compiled.predictors[Ask].choice.signature.instructions == "Choose by parity."
    with pytest.raises(ValueError, match="has no node 'Prime'; it has Ask, Even, Odd"):
        await compiled.aoptimize(examples, lm=Counting(), nodes=["Prime"])


class Clerk(Backend):
    """Codes and sends parcels by the book."""

    model = "clerk"
    free = True

    async def answer(self, prompt: Prompt) -> Answer:
        known = json.loads(prompt.text.partition("\n\n")[2])
        if prompt.question.types:
            return Answer(value={"choice": goes_by(known["Coded"]["code"]).__name__})
        return Answer(value={"code": CODES[known["Parcel"]["colour"]]})


async def test_an_unchanged_part_keeps_the_record_of_its_optimization(tmp_path: Path):
    parcels = Graph(start=Parcel)
    compiled = compile_graph(parcels)
    await compiled.aoptimize(right_examples(24), lm=Clerk(), nodes=[Coded], minimum=4)
    first = artifact_of(compiled.predictors[Coded])
    few = [example for example in right_examples(24) if example.node_type == "Coded"]
    few += [example for example in right_examples(3) if example.next_node_type == "Coded"]
    await compiled.aoptimize(few, lm=Clerk(), nodes=[Coded], minimum=4, seed=9)

    compiled.save(tmp_path)
    for artifact in (
        artifact_of(compiled.predictors[Coded]),
        artifact_of(CompiledGraph.load(parcels, tmp_path).predictors[Coded]),
    ):
        assert artifact.fill == first.fill
        made = artifact.made
        assert made is not None
        assert first.made is not None
        assert (made.seed, made.examples["fill"]) == (9, 3)
        assert made.kept == {"fill": first.made}

    # Kept once more, it is still that of the first time.
    await compiled.aoptimize(few, lm=Clerk(), nodes=[Coded], minimum=4, seed=10)
    made = compiled.predictors[Coded].made
    assert made is not None
    assert (made.seed, made.kept["fill"].seed) == (10, 0)


@pytest.mark.parametrize("wrong", ["x", None, Parcel, 3])
def test_compiling_an_object_that_is_not_a_graph_is_refused(wrong: Any, tmp_path: Path):
    with pytest.raises(TypeError, match="compile_graph takes a Graph, and not"):
        compile_graph(wrong)
    with pytest.raises(TypeError, match=r"CompiledGraph\.load takes a Graph, and not"):
        CompiledGraph.load(wrong, tmp_path)
