"""Programs as they were written for bae 3.0: their names, keywords, comparisons and command lines
work here, and DSPy's own configuration is honored."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Annotated, Any, ClassVar
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

import bae
from bae import (
    LM,
    BaeError,
    BaeLMError,
    BaeParseError,
    Dep,
    DepError,
    FillError,
    Gate,
    Graph,
    GraphResult,
    Map,
    Node,
    NodeConfig,
    NodeError,
    OpenGate,
    Recall,
    RouteError,
    Text,
    Usage,
)
from bae.lm import (
    Answer,
    Backend,
    ClaudeCLIBackend,
    Correction,
    FewShot,
    LearnedPrompt,
    Message,
    NodePrompts,
    Policy,
    Prompt,
    Question,
    Retry,
    TextPart,
)
from bae.resolver import (
    build_dep_dag,
    classify_fields,
    recall_from_trace,
    resolve_fields,
    validate_node_deps,
)
from bae.testing import ScriptedLM, ThreadedProvider
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


def test_node_classes_keep_their_order():
    assert graph.nodes == (Ask, Look, Reply)
    assert graph.nodes != (Reply, Look, Ask)
    assert (graph.nodes[0], graph.nodes[1:]) == (Ask, (Look, Reply))
    assert hash(graph.nodes) == hash(frozenset(graph.nodes))
    assert Graph(start=Ask, end=(Look, Reply)).end == (Look, Reply)


def test_problems_are_strings():
    class Lost(EndNode):
        word: Annotated[int, Recall()]

    problems = Graph(start=Lost).validate()
    assert any("Recall" in problem for problem in problems)
    assert "Lost.word" in "\n".join(problems)
    assert problems[0].startswith(problems[0].severity)
    assert all("Lost" in dep for dep in validate_node_deps(node_cls=Lost, is_start=True))


def test_a_result_can_be_built_and_is_none_without_a_trace():
    reply = Reply(question="Cold?", text="No.")
    made = GraphResult[Reply](node=None, trace=[reply])
    assert (made.node, made.result, made.run_id, len(made.journal)) == (None, reply, "", 0)
    assert made.usage.calls == 0
    assert GraphResult[Reply](node=reply, trace=[]).result is None
    assert GraphResult[Reply](None, [reply]).trace == [reply]  # in the order of 3.0
    match made:
        case GraphResult(None, [Reply(text=text)]):
            assert text == "No."
        case _:
            raise AssertionError


def test_results_are_equal_if_their_node_and_trace_are():
    reply, other = Reply(question="Cold?", text="No."), Reply(question="Cold?", text="Yes.")
    made = GraphResult[Reply](node=None, trace=[reply])
    assert made == GraphResult[Reply](node=None, trace=[reply.model_copy()])
    assert made != GraphResult[Reply](node=None, trace=[other])
    assert made != GraphResult[Reply](node=reply, trace=[reply])
    assert made != [reply]
    assert a_run() == a_run()
    assert a_run().run_id != a_run().run_id
    with pytest.raises(TypeError, match="unhashable"):  # its nodes have no hash either
        hash(made)


# --- markers ----------------------------------------------------------------------------------


FROZEN = [
    Dep(get_weather),
    Map(get_weather, over="days"),
    Recall(),
    Gate("Cold?"),
    Text(),
    NodeConfig(),
    Usage(),
    OpenGate("Cold?", Reply, "text", str),
    Answer("{}"),
    Prompt("", (Message("user", (TextPart(""),)),), {}, "", Question()),
    Question(),
    Correction("", ""),
    FewShot("", ""),
    LearnedPrompt(),
    NodePrompts(),
]


@pytest.mark.parametrize("value", FROZEN, ids=lambda value: type(value).__name__)
def test_markers_and_other_values_cannot_be_changed(value: Any):
    before = repr(value)
    name = type(value).__match_args__[0]
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, None)
    with pytest.raises(FrozenInstanceError):
        delattr(value, name)
    assert repr(value) == before


class Summary(EndNode):
    place: Annotated[str, Dep(get_location)]
    text: str


class Summarize(Node):
    async def __call__(self) -> Summary: ...


async def make_summary(lm: LM) -> Summary:
    return await lm.fill(Summary, {}, "Summary")


@pytest.mark.parametrize(
    "source", [None, make_summary, Graph(start=Summarize)], ids=["nothing", "function", "graph"]
)
def test_a_field_can_get_a_node_from_the_lm_a_function_or_a_graph(source: Any):
    class Report(EndNode):
        summary: Annotated[Summary, Dep(source)]

    class Order(Node):
        async def __call__(self) -> Report: ...

    made = Graph(start=Order).run(Order(), lm=ScriptedLM([{"text": "Short."}]))
    assert made.result == Report(summary=Summary(place="Lyon", text="Short."))


# --- node configuration -----------------------------------------------------------------------


def test_a_node_config_is_a_mapping_of_set_options_and_a_dict_is_accepted():
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


class Given(Node):
    degrees: Annotated[float, Dep(get_weather)]

    async def __call__(self) -> Later:
        return Later(degrees=self.degrees + 1)


class Later(EndNode):
    degrees: Annotated[float, Dep(get_weather)]
    place: Annotated[str, Dep(get_location)]


def test_an_explicit_value_for_a_field_with_a_source_is_stored_and_logged(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG, "bae")
    result = Graph(start=Given).run(Given(degrees=3.0))
    assert result.result == Later(degrees=4.0, place="Lyon")
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert logged == [
        "Given.degrees: it has a value already, so its source is not asked",
        "Later.degrees: it has a value already, so its source is not asked",
    ]
    caplog.clear()
    Graph(start=Given).run(Given())
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert logged == ["Later.degrees: it has a value already, so its source is not asked"]
    caplog.clear()
    a_run()  # what the LM fills has its looked-up values, and nobody gave them
    assert caplog.records == []


# --- errors -----------------------------------------------------------------------------------


def test_an_error_takes_its_cause_by_position():
    cause = ValueError("underneath")
    error = BaeError("it failed", cause)
    assert (error.message, error.cause, error.__cause__) == ("it failed", cause, cause)


class Bare(EndNode):
    text: str


class Passes(Node):
    async def __call__(self) -> Bare | None:
        pass


class Documented(Node):
    async def __call__(self) -> Bare | None:
        """The LM continues."""


class Returns(Node):
    async def __call__(self) -> Bare | None:
        return None


class Raises(Node):
    async def __call__(self) -> Bare:
        raise KeyError("in the body")


def broken() -> float:
    raise KeyError("in the dependency")


class Depends(EndNode):
    degrees: Annotated[float, Dep(broken)]


class Asks(Node):
    async def __call__(self) -> Bare: ...


def test_a_body_of_pass_lets_the_lm_choose_and_return_none_ends_the_run():
    lm = ScriptedLM([Bare, {"text": "No."}])
    assert Graph(start=Passes).run(Passes(), lm=lm).trace == [Passes(), Bare(text="No.")]
    lm = ScriptedLM([None])
    assert Graph(start=Documented).run(Documented(), lm=lm).trace == [Documented()]
    lm.assert_complete()
    assert Graph(start=Returns).run(Returns()).trace == [Returns()]


@pytest.mark.parametrize(
    ("start", "raised"), [(Raises, NodeError), (Depends, DepError), (Asks, BaeLMError)]
)
def test_an_exception_of_user_code_is_the_cause_of_an_error_of_bae(
    start: type[Node], raised: type[BaeError]
):
    lm = ScriptedLM([KeyError("in the LM")])
    with pytest.raises(raised) as caught:
        Graph(start=start).run(start(), lm=lm)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.cause is caught.value.__cause__


class Babbling(Backend):
    """Answers with no JSON."""

    async def answer(self, prompt: Prompt) -> Answer:
        return Answer("well, you see")


async def test_an_answer_that_is_not_json_is_a_parse_error_too():
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
def test_a_custom_lm_chooses_from_a_list(inside: bool):
    own = Own()
    result = graph.run(Ask(question="Cold?"), lm=Retry(own) if inside else own)
    assert (result.result.text, own.seen) == ("filled", [[Look, Reply]])  # type: ignore[attr-defined]
    assert type(own.seen[0]) is list


def test_a_custom_lm_fills_looked_up_nodes_and_may_choose_the_end():
    own = Own()
    assert Graph(start=Makes).run(Makes(), lm=own).result == Reply(question="Cold?", text="filled")
    made = Graph(start=MakesBare).run(MakesBare(), lm=own).result
    assert made == Bare(text="made")

    class Ends(Own):
        async def choose_type(self, types: Any, context: Any) -> Any:
            assert types == [Bare, type(None)]
            return types[-1]

    assert Graph(start=Passes).run(Passes(), lm=Ends()).trace == [Passes()]


class Sync:
    """An LM whose methods are not async."""

    def make(self, node: Node, target: Any) -> Any:
        return target(text="made")

    def decide(self, node: Node) -> Node | None:
        return Reply(text="decided")

    def choose_type(self, types: Any, context: Any) -> Any:
        return types[0]

    def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        return target(**resolved, text="filled")


class Makes(Node):
    question: str = "Cold?"

    async def __call__(self, lm: LM) -> Reply:
        return await lm.make(self, Reply)


class Decides(Node):
    async def __call__(self, lm: LM) -> Makes | Count:
        decided = await lm.decide(self)
        assert isinstance(decided, Makes | Count)
        return decided


class Fills(Node):
    question: str = "Cold?"

    async def __call__(self) -> Reply: ...


class MakesBare(Node):
    async def __call__(self, lm: LM) -> Bare:
        return await lm.make(self, Bare)


SYNC = [
    (Ask(question="Cold?"), "choose_type"),
    (Fills(), "fill"),
    (Makes(), "fill"),  # the question is looked up first
    (MakesBare(), "make"),
    (Decides(), "decide"),
]


@pytest.mark.parametrize("around", [lambda lm: lm, Retry], ids=["alone", "in a policy"])
@pytest.mark.parametrize(("start", "method"), SYNC, ids=[type(each).__name__ for each, _ in SYNC])
def test_a_sync_lm_is_refused_with_the_method_to_make_async(
    start: Node, method: str, around: Callable[[Any], Any]
):
    with pytest.raises(BaeLMError) as caught:
        Graph(start=type(start)).run(start, lm=around(Sync()))
    assert caught.value.code == "bae-lm-sync"
    assert f"Sync.{method} is not async" in caught.value.message
    assert caught.value.fix == f"make it async def: `async def {method}(self, …)` in Sync"


@pytest.mark.parametrize("mock", [Mock, MagicMock])
def test_a_sync_mock_is_refused_in_favor_of_async_mock(mock: type[Mock]):
    with pytest.raises(BaeLMError, match=rf"{mock.__name__}\.fill is not async") as caught:
        Graph(start=Fills).run(Fills(), lm=mock())
    assert "AsyncMock" in (caught.value.fix or "")
    lm = AsyncMock()
    lm.fill.return_value = Reply(text="filled")
    assert Graph(start=Fills).run(Fills(), lm=lm).result == Reply(question="Cold?", text="filled")
    mixed = mock()
    mixed.fill = AsyncMock(return_value=Reply(text="filled"))
    Graph(start=Fills).run(Fills(), lm=mixed)


def test_a_sync_backend_or_policy_is_refused_with_the_method_to_make_async():
    class Answers(Backend):
        def answer(self, prompt: Prompt) -> Answer:  # type: ignore[override]
            return Answer('{"text": "No."}')

    class Requests(Babbling):
        def request(self, prompt: Prompt) -> Answer:  # type: ignore[override]
            return Answer('{"text": "No."}')

    class Passing(Policy):
        def answer(self, prompt: Prompt) -> Answer:  # type: ignore[override]
            return Answer('{"text": "No."}')

    given = [Answers(), Requests(), Passing(Babbling()), Retry(Requests()), Retry(Answers())]
    places = ["Answers.answer", "Requests.request", "Passing.answer"]
    places += ["Requests.request", "Answers.answer"]
    for lm, place in zip(given, places, strict=True):
        with pytest.raises(BaeLMError, match=rf"{place} is not async") as caught:
            Graph(start=Fills).run(Fills(), lm=lm)
        assert "make it async def" in (caught.value.fix or "")


def test_backends_take_the_positional_arguments_of_3_0_or_explain_the_keyword():
    lm = ClaudeCLIBackend("m", 20)
    assert (lm.model, lm.timeout) == ("m", 20)
    pytest.importorskip("dspy")
    for make in (lambda: bae.DSPyBackend(3), lambda: bae.OptimizedLM({}, 3)):
        with pytest.raises(TypeError, match="write max_retries=3"):
            make()


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("bae.lm", "validate_plain_fields", r"target\(\*\*resolved, \*\*answer\)"),
        ("bae.dspy_backend", "API_RETRY_EXCEPTIONS", "BaeLMError"),
    ],
)
def test_a_removed_name_of_3_0_explains_what_to_write(module: str, name: str, instead: str):
    if module == "bae.dspy_backend":
        pytest.importorskip("dspy")
    for line in (f"from {module} import {name}", f"import {module}\n{module}.{name}"):
        with pytest.raises(ImportError, match=rf"{name} of bae 3\.0 is gone: .*{instead}"):
            exec(line, {})
    with pytest.raises(ImportError, match="cannot import name"):
        exec(f"from {module} import {name}s", {})


def test_a_pydantic_ai_backend_creates_its_model_on_first_use(
    monkeypatch: pytest.MonkeyPatch,
):
    pytest.importorskip("pydantic_ai")
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lm = bae.PydanticAIBackend()
    assert lm.model == "openai:gpt-5-mini"
    with pytest.raises(BaeError, match="OPENAI_API_KEY"):
        asyncio.run(lm.fill(Reply, {"question": "Cold?"}, "Reply"))
    with ThreadedProvider() as provider:
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


async def test_a_compiled_graph_in_an_event_loop_is_refused_in_favor_of_arun():
    pytest.importorskip("dspy")
    with pytest.raises(BaeError, match=r"await compiled\.arun"):
        bae.compile_graph(graph).run(Ask(question="Cold?"))


@pytest.fixture
def provider() -> Iterator[Any]:
    with ThreadedProvider() as made:
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
    return {request.headers["authorization"] for request in provider.requests}


def test_the_lm_of_dspy_takes_precedence_over_keys_in_the_environment(
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


def test_the_variable_and_the_argument_lm_take_precedence_over_the_lm_of_dspy(
    configured: Any, provider: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert a_run().trace[-1] == Reply(question="Cold?", text="No.")
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["Reply", {"text": "From a file."}]), encoding="utf-8")
    monkeypatch.setenv("BAE_LM", f"scripted:{script}")
    assert graph.run(Ask(question="Cold?")).result.text == "From a file."  # type: ignore[attr-defined]
    assert not isinstance(bae.create_optimized_lm(graph, tmp_path), bae.OptimizedLM)
    assert provider.requests == []


def test_a_graph_is_compiled_optimized_saved_and_run_with_learned_prompts(
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
    assert {cls: predictor.is_fresh for cls, predictor in compiled.optimized.items()} == {
        Ask: True,
        Look: True,
        Reply: False,
    }
    provider.script({"choice": "Reply"}, {"text": "No, not now."})
    assert compiled.run(Ask(question="Cold?")).result.text == "No, not now."  # type: ignore[attr-defined]
    shown = [len(request.body["messages"]) for request in provider.requests[-4:]]
    assert shown[1] == shown[3] > shown[0] == shown[2]  # both fills had the learned examples
    assert keys(provider) == {"Bearer mine"}


def test_a_compiled_graph_includes_predictors_that_learned_nothing(configured: Any):
    compiled = bae.compile_graph(graph)
    assert compiled.optimized == {}
    same = compiled.optimize([])  # too few examples to learn anything
    assert same.optimized.keys() == {Ask, Look, Reply}
    assert all(predictor.is_fresh for predictor in same.optimized.values())
    compiled.optimized[Reply] = learned = bae.optimize_node(Reply, [])
    assert compiled.predictors[Reply] is learned


def test_a_compiled_graph_cannot_be_built_from_signatures():
    pytest.importorskip("dspy")
    compiled = bae.compile_graph(graph)
    for given in ({}, compiled.signatures):
        with pytest.raises(TypeError, match=r"compile_graph\(graph\)"):
            type(compiled)(graph, given)  # type: ignore[arg-type]


def test_an_optimized_lm_needs_no_arguments(configured: Any):
    lm = bae.OptimizedLM()
    assert (lm.optimized, lm.stats) == ({}, {"optimized": 0, "naive": 0})
    assert (lm.max_retries, bae.DSPyBackend(max_retries=3).max_retries) == (1, 3)


# --- the command line -------------------------------------------------------------------------


def test_the_short_options_of_3_0_are_accepted(
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
    for option in (["-b"], ["--backend"], ["--lm"]):
        assert main(["run", "app3.py", *option, "scripted:script.json", *given]) == 0
        assert '"No."' in capsys.readouterr().out
    assert main(["run", "app3.py", "--backend=scripted:script.json", *given]) == 0
    assert '"No."' in capsys.readouterr().out
    assert main(["run", "--help"]) == 0
    assert "--backend" not in capsys.readouterr().out
    assert main(["graph", "show", "app3.py", "-n"]) == 0
    assert "question" not in capsys.readouterr().out
    assert main(["graph", "export", "app3.py", "-f", "mmd"]) == 0
    assert "flowchart" in (tmp_path / "graph.mmd").read_text(encoding="utf-8")
    assert main(["graph", "export", "app3.py", "-f", "svg", "-o", "picture"]) == 0
    assert "<svg" in (tmp_path / "picture").read_text(encoding="utf-8")
    assert main(["graph", "export", "app3.py", "-f", "jpg"]) == 1
    assert ".svg or .mmd" in capsys.readouterr().err
