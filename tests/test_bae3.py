"""Programs as they were written for bae 3.0: their names, keywords, comparisons and command lines
work here, and DSPy's own configuration is honored."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

import bae
from bae import (
    BaeError,
    BaeParseError,
    Dep,
    FillError,
    Graph,
    GraphResult,
    Node,
    NodeConfig,
    NodeError,
    Recall,
    RouteError,
)
from bae.lm import Backend
from bae.lm.requests import Answer, Prompt
from bae.resolver import (
    build_dep_dag,
    classify_fields,
    recall_from_trace,
    resolve_fields,
    validate_node_deps,
)
from bae.testing import Provider, ScriptedLM
from bounded import error_from
from end_node import EndNode


def get_location() -> str:
    return "Lyon"


def get_weather(place: Annotated[str, Dep(get_location)]) -> float:
    return 21.5


class Ask(Node):
    question: str

    async def __call__(self) -> Look | Reply: ...


class Look(Node):
    degrees: Annotated[float, Dep(get_weather)]
    thought: str

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    question: Annotated[str, Recall()]
    text: str


class Count(Node):
    async def __call__(self) -> Count | None:
        return Count()


graph = Graph(start=Ask)


def a_run() -> GraphResult[Any]:
    return graph.run(start_node=Ask(question="Cold?"), lm=ScriptedLM([Reply, {"text": "No."}]))


# --- graphs and results -----------------------------------------------------------------------


def test_node_classes_compare_and_combine_with_sets():
    assert graph.nodes == {Ask, Look, Reply}
    assert {Ask, Look, Reply} == graph.nodes
    assert graph.nodes != {Ask, Look}
    assert graph.edges == {Ask: {Look, Reply}, Look: {Reply}, Reply: set()}
    assert graph.terminal_nodes == {Reply}
    assert Ask.successors() == {Reply, Look}
    assert Ask.successors() == frozenset((Reply, Look))
    assert graph.nodes - graph.terminal_nodes == {Ask, Look}
    assert {Count} | graph.terminal_nodes == {Count, Reply}
    assert graph.terminal_nodes & {Ask} == set()
    assert graph.terminal_nodes < graph.nodes
    assert graph.terminal_nodes.issubset(graph.nodes)  # type: ignore[attr-defined]
    left = {Ask, Count}
    left -= graph.nodes
    left.add(Look)
    assert left == {Count, Look}


def test_node_classes_stay_in_their_order():
    assert graph.nodes == (Ask, Look, Reply)
    assert graph.nodes != (Reply, Look, Ask)
    assert (graph.nodes[0], graph.nodes[1:]) == (Ask, (Look, Reply))
    assert hash(graph.nodes) == hash(frozenset(graph.nodes))
    assert Graph(start=Ask, end=(Look, Reply)).end == (Look, Reply)


def test_problems_are_strings():
    class Lost(EndNode):
        word: Annotated[int, Recall()]

    problems = Graph(start=Lost).validate()
    assert any("Recall" in each for each in problems)
    assert "Lost.word" in "\n".join(problems)
    assert problems[0].startswith(problems[0].severity)
    assert all("Lost" in each for each in validate_node_deps(node_cls=Lost, is_start=True))


def test_a_result_can_be_built_and_is_none_without_a_trace():
    reply = Reply(question="Cold?", text="No.")
    made = GraphResult[Reply](node=None, trace=[reply])
    assert (made.node, made.result, made.run_id, len(made.journal)) == (None, reply, "", 0)
    assert made.usage.calls == 0
    assert GraphResult[Reply](node=reply, trace=[]).result is None


# --- node configuration -----------------------------------------------------------------------


def test_a_node_config_is_a_mapping_of_what_is_set_and_a_dict_is_accepted():
    lm = ScriptedLM([])

    class Pinned(EndNode):
        node_config: ClassVar[NodeConfig] = {"lm": lm}  # type: ignore[assignment]

    assert isinstance(Pinned.node_config, NodeConfig)
    assert Pinned.node_config["lm"] is lm is Pinned.node_config.lm
    assert dict(NodeConfig(lm="local")) == {"lm": "local"} == NodeConfig(lm="local")
    assert "lm" not in Ask.node_config
    assert Ask.node_config.get("lm", "another") == "another"
    with pytest.raises(KeyError):
        Ask.node_config["lm"]
    with pytest.raises(NodeError, match="NodeConfig"):

        class Misspelled(EndNode):
            node_config: ClassVar[NodeConfig] = {"llm": lm}  # type: ignore[assignment]


# --- resolving --------------------------------------------------------------------------------


async def test_the_functions_of_the_resolver_take_the_keywords_of_3_0():
    assert classify_fields(node_cls=Reply) == {"question": "recall", "text": "plain"}
    assert recall_from_trace([Ask(question="Cold?")], target_type=str) == "Cold?"
    assert await resolve_fields(node_cls=Look, trace=[], dep_cache={}) == {"degrees": 21.5}


def test_the_dependencies_of_a_node_are_a_topological_sorter():
    assert [*build_dep_dag(node_cls=Look).static_order()] == [get_location, get_weather]
    dag = build_dep_dag(Look)
    assert dag == {get_weather: (get_location,), get_location: ()}
    dag.prepare()
    order: list[Any] = []
    while dag.is_active():
        ready = dag.get_ready()
        order.append(ready)
        dag.done(*ready)
    assert order == [(get_location,), (get_weather,)]
    assert not dag
    assert not build_dep_dag(Ask)


# --- errors -----------------------------------------------------------------------------------


def test_an_error_takes_its_cause_by_position():
    cause = ValueError("underneath")
    error = BaeError("it failed", cause)
    assert (error.message, error.cause, error.__cause__) == ("it failed", cause, cause)


class Babbling(Backend):
    """Answers with no JSON."""

    async def answer(self, prompt: Prompt) -> Answer:
        return Answer("well, you see")


async def test_an_answer_that_is_no_json_is_a_parse_error_too():
    lm = Babbling(attempts=0)
    error = await error_from(BaeParseError, lm.fill(Reply, {"question": "Cold?"}, "Reply"))
    assert isinstance(error, FillError)
    error = await error_from(BaeParseError, lm.choose_type([Look, Reply], {}))
    assert isinstance(error, RouteError)


# --- LMs --------------------------------------------------------------------------------------


class Own:
    """An LM as a program of 3.0 has written it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def make(self, node: Node, target: Any) -> Any:
        return target(text="made")

    async def decide(self, node: Node) -> Node | None:
        return Reply(text="decided")

    async def choose_type(self, types: Any, context: Any) -> Any:
        self.seen.append(types)
        return types[types.index(Reply)]

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        return target(**resolved, text="filled")


@pytest.mark.parametrize("inside", [False, True])
def test_an_lm_of_ones_own_chooses_from_a_list(inside: bool):
    from bae.lm import Retry

    own = Own()
    result = graph.run(Ask(question="Cold?"), lm=Retry(own) if inside else own)
    assert (result.result.text, own.seen) == ("filled", [[Look, Reply]])  # type: ignore[attr-defined]
    assert type(own.seen[0]) is list


def test_a_pydantic_ai_backend_has_a_model_that_is_made_on_first_use(
    monkeypatch: pytest.MonkeyPatch,
):
    pytest.importorskip("pydantic_ai")
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lm = bae.PydanticAIBackend()
    assert lm.model == "openai:gpt-5-mini"
    with pytest.raises(BaeError, match="OPENAI_API_KEY"):
        asyncio.run(lm.fill(Reply, {"question": "Cold?"}, "Reply"))
    with Provider.in_thread() as provider:
        provider.always({"text": "No."})
        monkeypatch.setenv("OPENAI_API_KEY", "a key")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        made = asyncio.run(lm.fill(Reply, {"question": "Cold?"}, "Reply"))
    assert made.text == "No."


# --- DSPy -------------------------------------------------------------------------------------

NAMES = """
import sys
import bae
from bae import ClaudeCLIBackend, DSPyBackend, OptimizedLM, PydanticAIBackend, classify_fields
from bae import compile_graph, create_optimized_lm, load_optimized, node_to_signature
from bae import node_transition_metric, optimize_node, resolve_fields, save_optimized
from bae import trace_to_examples
import bae.compiler, bae.dspy_backend, bae.lm, bae.optimized_lm
assert bae.compiler.node_to_signature is node_to_signature
assert bae.dspy_backend.DSPyBackend is DSPyBackend is bae.lm.DSPyBackend
assert bae.optimized_lm.OptimizedLM is OptimizedLM
print(*sorted({"dspy", "pydantic_ai", "litellm", "openai"} & sys.modules.keys()))
"""


def test_the_names_of_3_0_are_in_bae_and_import_no_other_package():
    path = str(Path(bae.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", NAMES],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.fixture
def provider() -> Iterator[Any]:
    with Provider.in_thread() as made:
        yield made


@pytest.fixture
def configured(provider: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """dspy, configured as a program of 3.0 did it, on a machine that has keys for other models."""
    dspy = pytest.importorskip("dspy")
    monkeypatch.delenv("BAE_LM", raising=False)
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(key, "the key of another model")
    before = dspy.settings.lm
    base = f"{provider.url}/v1"
    dspy.configure(lm=dspy.LM("openai/gpt-4o-mini", api_base=base, api_key="mine", cache=False))
    yield dspy
    dspy.configure(lm=before)


def keys(provider: Any) -> set[str]:
    return {each.headers["authorization"] for each in provider.requests}


def test_the_lm_of_dspy_is_asked_before_those_that_the_environment_has_keys_for(
    configured: Any, provider: Any
):
    provider.script({"choice": "Reply"}, {"text": "No."})
    result = graph.run(Ask(question="Cold?"))
    assert result.trace[-1] == Reply(question="Cold?", text="No.")
    assert keys(provider) == {"Bearer mine"}

    provider.script({"choice": "Reply"}, {"text": "No."})
    assert graph.run(Ask(question="Cold?"), lm="dspy").result.text == "No."  # type: ignore[attr-defined]

    provider.script({"choice": "Reply"}, {"text": "Yes."})
    compiled = bae.compile_graph(graph)
    assert compiled.run(start_node=Ask(question="Warm?")).result.text == "Yes."  # type: ignore[attr-defined]
    assert compiled.optimized == {}
    provider.assert_complete()


def test_the_variable_and_an_lm_that_is_given_come_before_that_of_dspy(
    configured: Any, provider: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert a_run().trace[-1] == Reply(question="Cold?", text="No.")
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["Reply", {"text": "From a file."}]), encoding="utf-8")
    monkeypatch.setenv("BAE_LM", f"scripted:{script}")
    assert graph.run(Ask(question="Cold?")).result.text == "From a file."  # type: ignore[attr-defined]
    assert not isinstance(bae.create_optimized_lm(graph, tmp_path), bae.OptimizedLM)
    assert provider.requests == []


def test_a_graph_is_compiled_optimized_saved_and_asked_with_what_was_learned(
    configured: Any, provider: Any, tmp_path: Path
):
    from bae import DSPyBackend, OptimizedLM

    signature = bae.node_to_signature(node_cls=Reply)
    assert [*signature.input_fields] == ["question"]
    examples: list[Any] = []
    for number in range(10):
        lm = ScriptedLM([Reply, {"text": f"No, {number}."}])
        examples += bae.trace_to_examples(graph.run(Ask(question=f"Cold? {number}"), lm=lm).trace)
    provider.always(lambda received: {"text": f"No, {str(received.body).split('Cold? ')[-1][0]}."})
    learned = bae.optimize_node(node_cls=Reply, trainset=examples)
    saved = bae.save_optimized({Reply: learned}, path=tmp_path)
    assert [file.name for file in saved] == ["Reply.json"]
    again = bae.load_optimized(node_classes=[Ask, Reply], path=tmp_path)
    assert (again[Ask].is_fresh, again[Reply].is_fresh) == (True, False)

    lm = bae.create_optimized_lm(graph, compiled_path=tmp_path)
    assert isinstance(lm, OptimizedLM)
    assert isinstance(lm, DSPyBackend)
    assert [*lm.optimized] == [Reply]
    provider.script({"choice": "Reply"}, {"text": "No, never."})
    assert graph.run(Ask(question="Cold?"), lm=lm).result.text == "No, never."  # type: ignore[attr-defined]
    assert lm.stats == lm.get_stats() == {"optimized": 1, "naive": 0}
    compiled = type(bae.compile_graph(graph)).load(graph, path=tmp_path)
    assert [*compiled.optimized] == [Reply]
    provider.script({"choice": "Reply"}, {"text": "No, not now."})
    assert compiled.run(Ask(question="Cold?")).result.text == "No, not now."  # type: ignore[attr-defined]
    shown = [len(each.body["messages"]) for each in provider.requests[-4:]]
    assert shown[1] == shown[3] > shown[0] == shown[2]  # both fills had the learned examples
    assert keys(provider) == {"Bearer mine"}


def test_an_optimized_lm_needs_nothing(configured: Any):
    lm = bae.OptimizedLM()
    assert (lm.optimized, lm.stats) == ({}, {"optimized": 0, "naive": 0})
    assert (lm.max_retries, bae.DSPyBackend(max_retries=3).max_retries) == (1, 3)


# --- the command line -------------------------------------------------------------------------


def test_the_short_options_of_3_0_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("typer")
    from bae.cli import main

    program = """
from bae import Graph, Node

class Ask(Node):
    question: str
    async def __call__(self) -> "Reply": ...

class Reply(Node):
    text: str
    async def __call__(self) -> None: ...

graph = Graph(start=Ask)
"""
    (tmp_path / "app3.py").write_text(program, encoding="utf-8")
    (tmp_path / "script.json").write_text('[{"text": "No."}]', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given = ["-i", '{"question": "Cold?"}', "--json", "--quiet", "--no-journal"]
    assert main(["run", "app3.py", "-b", "scripted:script.json", *given]) == 0
    assert '"No."' in capsys.readouterr().out
    assert main(["graph", "show", "app3.py", "-n"]) == 0
    assert "question" not in capsys.readouterr().out
    assert main(["graph", "export", "app3.py", "-f", "mmd"]) == 0
    assert "flowchart" in (tmp_path / "graph.mmd").read_text(encoding="utf-8")
    assert main(["graph", "export", "app3.py", "-f", "svg", "-o", "picture"]) == 0
    assert "<svg" in (tmp_path / "picture").read_text(encoding="utf-8")
    assert main(["graph", "export", "app3.py", "-f", "jpg"]) == 1
    assert ".svg or .mmd" in capsys.readouterr().err
