"""Names of LLMs with an address and options: the request with its settings, and the error for a
wrong name or option, before anything is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bae
from bae import BaeLMError, Graph, NodeConfig, ToolCall, Tools
from bae.journal import MemoryJournal
from bae.lm import AnthropicBackend, PydanticAIBackend, registry, resolve
from bae.lm.kinds import OWN_KINDS, distribution, find_missing
from bae.lm.names import parse_lm_name
from bae.lm.providers import PROVIDERS
from bae.testing import Call, Provider
from bounded import run
from end_node import EndNode
from http_backends import SHIRT, Outfit

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for kind in (*OWN_KINDS, *PROVIDERS):
        for name in (*sum(kind.variables, ()), kind.address_variable, "OPENAI_BASE_URL"):
            monkeypatch.delenv(name or "NONE", raising=False)
    registry._resolve_once.cache_clear()
    yield
    registry._resolve_once.cache_clear()


class Ask(bae.Node):
    async def __call__(self) -> Outfit: ...


def look(item: str) -> str:
    """Look at an item."""
    return f"a {item}"


class Item(bae.Node):
    async def __call__(self) -> Seen: ...


class Seen(EndNode):
    calls: Annotated[list[ToolCall], Tools(look)]
    text: str


async def request_by_name(provider: Provider, name: str) -> Any:
    """The request that a provider gets from a run with a named LLM."""
    provider.always(SHIRT)
    outfit = (await run(Ask(), name)).trace[-1]
    assert outfit == Outfit(**SHIRT)
    return provider.requests[-1]


# The parts of a name


@given(
    model=st.from_regex(r"[a-z0-9]([a-z0-9./:_-]*[a-z0-9])?(@[a-z0-9]+)?", fullmatch=True),
    address=st.sampled_from(
        ["", "http://127.0.0.1:8000/v1", "https://models.example/v1", "HTTP://[::1]:8000/v1"]
    ),
    options=st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
        st.from_regex(r"[a-z0-9=.,:/@-]{1,8}", fullmatch=True),
        max_size=3,
    ),
)
def test_a_model_an_address_and_options_are_distinguished(
    model: str, address: str, options: dict[str, str]
):
    name = f"openai:{model}"
    name += f"@{address}" if address else ""
    name += "?" + "&".join(f"{k}={v}" for k, v in options.items()) if options else ""

    parsed = parse_lm_name(name)
    assert (parsed.kind, parsed.model, parsed.address) == ("openai", model, address)
    assert parsed.options == options


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("openai:q?", "bae-lm-option", "not NAME=VALUE"),
        ("openai:q?max_tokens", "bae-lm-option", "'max_tokens'"),
        ("openai:q?max_tokens=", "bae-lm-option", "not NAME=VALUE"),
        ("openai:q?seed=1&seed=2", "bae-lm-option", "seed twice"),
        ("openai:q@http://", "bae-lm-unknown-name", "no URL"),
        ("openai:q@http://h:port/v1", "bae-lm-unknown-name", "no URL"),
        ("openai:q@http://h/v1?a=1?seed=1", "bae-lm-unknown-name", "?a=1"),
        ("openai:q@http://h/v1?api-version=1", "bae-lm-option", "not NAME=VALUE"),
        ("openai:q@http://h/v1/chat/completions/", "bae-lm-unknown-name", "/chat/completions"),
        ("openai:q @http://h/v1", "bae-lm-unknown-name", "a space"),
        ("openai:q@http://a b/v1", "bae-lm-unknown-name", "a space"),
        ("deepseek:q@http://127.0.0.1:1", "bae-lm-unknown-name", "takes none"),
        ("claude-cli:q@http://127.0.0.1:1", "bae-lm-unknown-name", "takes none"),
        ("litellm:q", "bae-lm-unknown-name", "does not say where"),
    ],
)
def test_a_malformed_name_is_refused(name: str, code: str, said: str):
    with pytest.raises(BaeLMError) as caught:
        resolve(name)
    assert caught.value.code == code
    assert said in caught.value.message
    assert caught.value.fix
    assert not caught.value.sent or code == "bae-lm-unknown-name"


@pytest.mark.parametrize("name", ["openai:q@{}", "openai@{}", "quux:q@{}", "a/{}"])
def test_a_password_in_an_address_is_refused_and_not_repeated(name: str):
    with pytest.raises(BaeLMError) as caught:
        resolve(name.format("http://ana:hunter2hunter2@h/v1"))
    assert "hunter2" not in str(caught.value)
    assert name[:7] != "openai:" or "api_key_env" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "openai:q@http://127.0.0.1:1/v1?api_key=sk-hunter2hunter2",
        "openai:q@http://127.0.0.1:1/v1?API_KEY=sk-hunter2hunter2",
        "anthropic?api-key=sk-hunter2hunter2",
        "anthropic?base_url=http://ana:hunter2hunter2@h",
        "openai:q@http://h/v1?base_url=http://ana:hunter2hunter2@h&seed=1",
        'anthropic?extra={"api_key":"sk-hunter2hunter2"}',
        'openai:q@http://127.0.0.1:1/v1?extra_body={"token":"sk-hunter2hunter2"',
    ],
)
def test_a_key_in_the_options_is_refused_and_not_repeated(name: str):
    with pytest.raises(BaeLMError) as caught:
        resolve(name)
    assert caught.value.code == "bae-lm-option"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "openai:q@127.0.0.1:8000/v1",
        "openai:q@localhost:8000",
        "openai:qwen/q:8b@models.example/v1",
        "openai:q@ftp://127.0.0.1/v1",
        "openai:q@//127.0.0.1:8000/v1",
        "anthropic:m@127.0.0.1:8000?max_tokens=5",
    ],
)
def test_an_address_without_http_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-any")
    with pytest.raises(BaeLMError) as caught:
        resolve(name)
    assert caught.value.code == "bae-lm-unknown-name"
    assert "http://" in str(caught.value)


@pytest.mark.parametrize(
    "model", ["claude-opus-4-5@20251101", "@cf/meta/llama-3.1-8b", "accounts/x/models/y@latest"]
)
def test_a_model_name_may_contain_an_at_sign(model: str):
    assert parse_lm_name(f"openai:{model}").model == model


async def test_an_unreachable_server_is_named_without_its_password():
    lm = PydanticAIBackend("openai:q", base_url="http://ana:hunter2@127.0.0.1:1/v1", retries=0)
    with pytest.raises(BaeLMError) as caught:
        await run(Ask(), lm)
    assert caught.value.code == "bae-lm-unreachable"
    assert "http://127.0.0.1:1/v1" in caught.value.message
    assert "hunter2" not in str(caught.value)


async def test_an_unreachable_provider_is_named_by_its_default_address(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://127.0.0.1:1/v1")
    with pytest.raises(BaeLMError, match=r"The address is http://127\.0\.0\.1:1/v1"):
        await run(Ask(), PydanticAIBackend("ollama:q", retries=0))


async def test_a_journal_does_not_store_a_password_in_an_address(provider: Provider):
    url = provider.url.replace("http://", "http://ana:hunter2@")
    lm = PydanticAIBackend("openai:q", base_url=f"{url}/v1")
    provider.script([Call("look", item="lamp")], {"text": "white"})
    async with MemoryJournal() as journal:
        await Graph(start=Item, end=Seen).arun(Item(), lm, journal=journal, run_id="one")
        lines = (await journal.read("one")).lines
    assert any(line.kind == "RoundMade" for line in lines)
    assert "hunter2" not in "".join(line.data for line in lines)


# What is asked


async def test_a_server_at_an_address_needs_no_key(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-itself")
    request = await request_by_name(provider, f"openai:qwen/qwen3:8b@{provider.url}/v1")

    assert request.path == "/v1/chat/completions"
    assert request.model == "qwen/qwen3:8b"
    assert "sk-of-openai" not in str(request.headers)
    # The model is held to the schema, and sees it: a server that masks tokens shows it nothing.
    assert request.body["response_format"]["type"] == "json_schema"
    assert "a specific garment" in str(request.body["messages"])


async def test_the_key_of_a_server_is_named_by_its_variable(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MY_SERVERS_KEY", "key-of-my-server")
    name = f"openai:qwen3@{provider.url}/v1?api_key_env=MY_SERVERS_KEY"

    request = await request_by_name(provider, name)
    assert request.headers["authorization"] == "Bearer key-of-my-server"
    assert "key-of-my-server" not in str(registry.cached_lm(name).settings)  # type: ignore[attr-defined]


async def test_ollama_has_a_default_address_and_an_address_from_its_variable(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    assert resolve("ollama:qwen3").settings["base_url"] == "http://127.0.0.1:11434/v1/"  # type: ignore[attr-defined]
    monkeypatch.setenv("OLLAMA_BASE_URL", f"{provider.url}/v1")

    request = await request_by_name(provider, "ollama:qwen3:8b")
    assert (request.path, request.model) == ("/v1/chat/completions", "qwen3:8b")


@pytest.mark.parametrize(
    ("name", "variable", "path"),
    [
        ("vllm:Qwen/Qwen3-8B@{url}/v1", "", "/v1/chat/completions"),
        ("litellm:openai/gpt-5@{url}/v1", "", "/v1/chat/completions"),
        ("openai-chat:q@{url}/v1", "", "/v1/chat/completions"),
        ("openai-responses:q@{url}/v1", "", "/v1/responses"),
        ("pydantic-ai:ollama:q@{url}/v1", "", "/v1/chat/completions"),
        ("moonshotai:kimi-k2@{url}/v1", "MOONSHOTAI_API_KEY", "/v1/chat/completions"),
        ("zai:glm-4.6@{url}/v1", "ZAI_API_KEY", "/v1/chat/completions"),
        ("anthropic:claude-sonnet-4-6@{url}", "ANTHROPIC_API_KEY", "/v1/messages"),
    ],
)
async def test_a_provider_is_asked_at_the_address_in_its_name(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, name: str, variable: str, path: str
):
    if path == "/v1/messages":
        pytest.importorskip("anthropic")
    if variable:
        monkeypatch.setenv(variable, "a-key-of-the-provider")
    request = await request_by_name(provider, name.format(url=provider.url))

    assert request.path == path
    sent = str(request.headers)
    assert ("a-key-of-the-provider" in sent) is bool(variable)


# Options


async def test_options_are_settings_of_the_providers_model(provider: Provider):
    name = f"openai:q@{provider.url}/v1?effort=low&max_tokens=800&temperature=0.5&seed=3"
    request = await request_by_name(provider, name + '&stop_sequences=["END"]')

    body = request.body
    assert body["reasoning_effort"] == "low"
    assert body["max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"] == 800
    assert (body["temperature"], body["seed"], body["stop"]) == (0.5, 3, ["END"])


async def test_options_of_claude_are_arguments_of_its_backend(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("anthropic")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    name = f"anthropic:claude-sonnet-4-6@{provider.url}?effort=low&max_tokens=800&stream=false"
    request = await request_by_name(provider, name)

    assert request.body["output_config"]["effort"] == "low"
    assert request.body["max_tokens"] == 800
    assert not request.body.get("stream")
    # What was cached before, without the option, is found still.
    plain: Any = AnthropicBackend(api_key="a key")
    assert plain.settings["extra"] == {}


def test_options_of_a_backend_are_its_arguments():
    lm: Any = resolve("claude-cli:opus?timeout=30&attempts=0&effort=low")
    assert (lm.model, lm.timeout, lm.attempts) == ("opus", 30.0, 0)
    assert lm.settings == {"CLAUDE_CODE_EFFORT_LEVEL": "low"}
    lm = resolve("ollama:qwen3?output=tool&one_call=false&timeout=5")
    assert (lm.output, lm.one_call, lm.timeout, lm.model_settings) == ("tool", False, 5.0, {})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ollama:q?max_tokns=8", "max_tokens"),
        ("ollama:q?efort=low", "effort"),
        ("ollama:q?extra_headers={}", "extra_body"),
        ("claude-cli?timout=8", "timeout"),
        ("anthropic?max_token=8", "max_tokens"),
        ("local?thread=2", "threads"),
        ("dspy:openai/x?temprature=1", "temperature"),
        ("ollama:q?zzzz=8", None),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_and_all_that_there_are(
    name: str, nearest: str | None
):
    with pytest.raises(BaeLMError) as caught:
        resolve(name)
    error = caught.value
    assert (error.code, error.sent) == ("bae-lm-option", False)
    assert error.fix is not None
    assert error.fix.startswith(f"did you mean {nearest}? " if nearest else "The options are ")
    assert " timeout" in error.fix


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ollama:q?max_tokens=0", "1 or more"),
        ("ollama:q?max_tokens=many", "integer"),
        ("ollama:q?max_tokens=8.5", "integer"),
        ("ollama:q?temperature=-1", "0 or more"),
        ("ollama:q?temperature=nan", "finite"),
        ("ollama:q?top_p=2", "1 or less"),
        ("ollama:q?effort=lots", "'low'"),
        ("ollama:q?logit_bias=x", "JSON"),
        ("ollama:q?output=xml", "'native'"),
        ("ollama:q?timeout=0", "above 0"),
        ("ollama:q?effort=low&openai_reasoning_effort=high", "the same"),
        ("anthropic?max_tokens=0", "1 or more"),
        ("anthropic?effort=lots", "'low'"),
        ("claude-cli?attempts=-1", "0 or more"),
        ("local?threads=two", "integer"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_sent(name: str, said: str):
    with pytest.raises(BaeLMError) as caught:
        resolve(name)
    assert (caught.value.code, caught.value.sent) == ("bae-lm-option", False)
    assert said in str(caught.value)


def test_an_effort_that_would_be_left_out_is_refused():
    from bae.lm.pydantic_ai_models import read_settings

    from pydantic_ai.models.test import TestModel  # isort: skip - an extra

    with pytest.raises(BaeLMError, match="would ignore effort") as caught:
        read_settings(TestModel(), {"effort": "low"}, "'x?effort=low'", [])
    assert caught.value.code == "bae-lm-option"


def test_a_setting_with_an_unresolvable_type_does_not_affect_other_settings():
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.settings import ModelSettings

    from bae.lm.pydantic_ai_models import read_settings

    class SlyModel(TestModel):
        """A model whose settings have such a type, as those of Bedrock."""

    class SlyModelSettings(ModelSettings, total=False):
        sly_guard: "OnlyCheckersKnow"  # type: ignore[name-defined]  # noqa: F821
        sly_effort: "int"

    module = ModuleType("sly")
    SlyModel.__module__ = SlyModelSettings.__module__ = module.__name__
    module.SlyModelSettings = SlyModelSettings  # type: ignore[attr-defined]
    sys.modules["sly"] = module
    try:
        options = {"sly_effort": "7", "max_tokens": "800"}
        assert read_settings(SlyModel(), options, "'sly'", []) == {
            "sly_effort": 7,
            "max_tokens": 800,
        }
        with pytest.raises(BaeLMError, match="cannot be written in a name") as caught:
            read_settings(SlyModel(), {"sly_guard": "x"}, "'sly'", [])
        assert caught.value.code == "bae-lm-option"
        with pytest.raises(BaeLMError, match="slyguard") as caught:
            read_settings(SlyModel(), {"slyguard": "x"}, "'sly'", [])
        assert "did you mean sly_guard?" in str(caught.value)
    finally:
        del sys.modules["sly"]


async def test_a_pinned_name_with_a_wrong_option_is_proved_wrong_before_a_run():
    class Pinned(EndNode):
        node_config = NodeConfig(lm="claude-cli?timout=8")
        text: str

    class Begin(bae.Node):
        async def __call__(self) -> Pinned: ...

    (problem,) = Graph(start=Begin).validate()
    assert (problem.code, problem.place) == ("bae-lm-type", "Pinned")
    assert "timeout" in (problem.fix or "")


# What is missing


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("google:gemini-3-pro", "google-genai", "google"),
        ("google-cloud:gemini-3-pro", "google-genai", "google"),
        ("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0", "boto3", "bedrock"),
        ("groq:llama", "groq", "groq"),
        ("mistral:mistral-large", "mistralai", "mistral"),
        ("cohere:command", "cohere", "cohere"),
        ("xai:grok", "xai-sdk", "xai"),
        ("gateway/groq:llama", "groq", "groq"),
        ("pydantic-ai:groq:llama", "groq", "groq"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
):
    module = {"google-genai": "google.genai", "xai-sdk": "xai_sdk"}.get(package, package)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BaeLMError) as caught:
        resolve(name)
    assert caught.value.code == "bae-lm-extra-missing"
    assert f"the package {package} is not installed" in caught.value.message
    assert caught.value.fix == f"pip install 'pydantic-ai-slim[{extra}]'"


@pytest.mark.parametrize("name", ["ollama:q", "azure:q", "openrouter:a/b", "vllm:q"])
def test_providers_that_speak_openais_api_need_its_package(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    kind = registry.KINDS[name.partition(":")[0]]
    monkeypatch.setitem(sys.modules, "openai", None)
    missing = [requirement.what for requirement in find_missing(kind)]
    assert "the package openai is not installed" in missing


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("openai:gpt-x", "OPENAI_API_KEY"),
        ("azure:gpt-x", "AZURE_OPENAI_ENDPOINT and AZURE_OPENAI_API_KEY"),
        ("openrouter:a/b", "OPENROUTER_API_KEY"),
        ("vllm:q", "VLLM_BASE_URL"),
        ("alibaba:q", "ALIBABA_API_KEY or DASHSCOPE_API_KEY"),
        ("gateway/openai:q", "PYDANTIC_AI_GATEWAY_API_KEY or PAIG_API_KEY"),
    ],
)
def test_a_missing_key_is_reported_with_its_variables(name: str, variables: str):
    with pytest.raises(BaeLMError) as caught:
        resolve(name)
    assert caught.value.code == "bae-lm-unauthorized"
    assert (caught.value.fix or "").startswith(f"set the environment variable {variables}")


@pytest.mark.parametrize("name", ["openai:gpt-x", "openai-chat:gpt-x", "openrouter:a/b"])
def test_an_empty_key_is_a_missing_key(name: str, monkeypatch: pytest.MonkeyPatch):
    for variable in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.setenv(variable, "")
    with pytest.raises(BaeLMError, match="_API_KEY is not set") as caught:
        resolve(name)
    assert caught.value.code == "bae-lm-unauthorized"


async def test_a_missing_key_of_a_server_sends_nothing(provider: Provider):
    with pytest.raises(BaeLMError, match="NO_SUCH_KEY, which is not set") as caught:
        await run(Ask(), f"openai:q@{provider.url}/v1?api_key_env=NO_SUCH_KEY")
    assert (caught.value.code, caught.value.sent) == ("bae-lm-unauthorized", False)
    assert provider.received == 0


# The table of providers


def test_every_text_provider_of_pydantic_ai_has_a_name():
    import pydantic_ai.providers

    (folder,) = pydantic_ai.providers.__path__
    files = {path.stem.replace("_", "-") for path in Path(folder).glob("[a-z]*.py")}
    known = {kind.name for kind in (*PROVIDERS, *OWN_KINDS)}
    assert files - known == NOT_LISTED


NOT_LISTED = {
    *("elevenlabs", "sentence-transformers", "voyageai"),  # they write no text
    *("openai-decisions", "system-one", "typesafe"),  # they make decisions, and write no text
    *("openai-chatgpt", "openai-compatible"),  # they are made in Python only
    "github",  # it was retired
}


def test_every_extra_named_in_an_error_installs_the_package():
    requires = metadata("pydantic-ai-slim").get_all("Requires-Dist") or []
    for kind in PROVIDERS:
        package = distribution(kind.packages[1])
        assert any(
            require.startswith(package) and f"extra == '{kind.extra_of_provider}'" in require
            for require in requires
        ), kind.name


def test_a_provider_added_by_a_newer_pydantic_ai_is_accepted_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    import pydantic_ai

    package = tmp_path / "pydantic_ai"
    (package / "providers").mkdir(parents=True)
    (package / "providers" / "brand_new.py").touch()
    spec: Any = pydantic_ai.__spec__
    monkeypatch.setattr(spec, "submodule_search_locations", [str(package)])

    assert registry.name_error("brand-new:model") is None
    assert registry.name_error("brand-newer:model") is not None


def test_names_are_checked_without_importing_a_package():
    program = """
import sys
from bae.lm import check_lm_name
from bae.lm.registry import list_lm_kinds
before = set(sys.modules)
for name in ("ollama:q?max_tokens=8", "google:gemini-3-pro", "openai:q@http://h/v1?effort=low"):
    check_lm_name(name)
assert len(list_lm_kinds()) > 30
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"pydantic_ai", "openai", "anthropic", "dspy", "boto3"}))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(bae.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_custom_server_has_no_price():
    lm = resolve("openai:gpt-4o@http://127.0.0.1:8000/v1")
    assert isinstance(lm, PydanticAIBackend)
    assert lm.least_cost(bae.Usage(1, 1000, 1000)) is None
