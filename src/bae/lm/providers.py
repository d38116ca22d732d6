"""PydanticAI's providers under PydanticAI's names, each with its package and environment variables.
Importing this module imports no provider's package."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bae.lm.kinds import LMKind


def _make_kind(
    name: str,
    about: str,
    model: str,
    *variables: str,
    module: str = "openai",
    extra: str = "openai",
    **more: Any,
) -> LMKind:
    """Make the kind of a provider.

    `variables` are the environment variables that the provider needs. In "A|B", one of the two
    variables is enough. `extra` is the extra of pydantic-ai-slim that installs `module`.
    """
    return LMKind(
        name,
        f"{name}:MODEL",
        about,
        f"{name}:{model}",
        "bae.lm.pydantic_ai_backend:PydanticAIBackend",
        tuple(tuple(names.split("|")) for names in variables),
        packages=("pydantic_ai", module),
        extra="pydantic-ai",
        extra_of_provider=extra,
        calls_tools=True,
        through="pydantic-ai",
        **more,
    )


_AZURE = ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY")
_ADDRESS_OPTIONAL: Final[dict[str, Any]] = {"address": "optional"}

PROVIDERS: Final = (
    _make_kind(
        *("ollama", "models on a server of Ollama", "qwen3"),
        address_variable="OLLAMA_BASE_URL",
        default_address="http://127.0.0.1:11434/v1",
        open="its server, with the model pulled",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("vllm", "models on a server of vLLM", "Qwen/Qwen3-8B", "VLLM_BASE_URL"),
        address_variable="VLLM_BASE_URL",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("litellm", "models behind a proxy of LiteLLM", "openai/gpt-5@http://127.0.0.1:4000"),
        address="required",
        open="the address of the proxy in the name",
    ),
    _make_kind(
        "openai-chat",
        "OpenAI's chat completions",
        "gpt-5-mini",
        "OPENAI_API_KEY",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        "openai-responses",
        "OpenAI's Responses API",
        "gpt-5-mini",
        "OPENAI_API_KEY",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind("openai-codex", "OpenAI's Codex", "gpt-5-codex", open="a login: run `codex login`"),
    _make_kind(
        *("azure", "OpenAI's models on Azure, chat completions", "gpt-5-mini", *_AZURE),
        open="OPENAI_API_VERSION, unless the endpoint ends in /openai/v1",
    ),
    _make_kind("azure-responses", "OpenAI's models on Azure, Responses API", "gpt-5-mini", *_AZURE),
    _make_kind(
        *("google", "Gemini, by Google's API", "gemini-3-pro", "GOOGLE_API_KEY|GEMINI_API_KEY"),
        module="google.genai",
        extra="google",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("google-cloud", "Gemini and others on Google's cloud", "gemini-3-pro"),
        module="google.genai",
        extra="google",
        open="credentials of Google's cloud",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("bedrock", "models on Amazon Bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        module="boto3",
        extra="bedrock",
        open="a region (AWS_DEFAULT_REGION) and credentials of AWS",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("bedrock-mantle", "OpenAI's models on Amazon Bedrock", "openai.gpt-oss-120b"),
        "AWS_DEFAULT_REGION|AWS_REGION",
        module="botocore",
        extra="bedrock-mantle",
        open="credentials of AWS",
    ),
    _make_kind("openrouter", "models of many providers", "qwen/qwen3:free", "OPENROUTER_API_KEY"),
    _make_kind(
        *("mistral", "Mistral", "mistral-large-latest", "MISTRAL_API_KEY"),
        module="mistralai",
        extra="mistral",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("groq", "Groq", "llama-3.3-70b-versatile", "GROQ_API_KEY"),
        module="groq",
        extra="groq",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("cohere", "Cohere", "command-a-03-2025", "CO_API_KEY"), module="cohere", extra="cohere"
    ),
    _make_kind("xai", "xAI", "grok-4", "XAI_API_KEY", module="xai_sdk", extra="xai"),
    _make_kind(
        *("huggingface", "Hugging Face's inference providers", "Qwen/Qwen3-8B", "HF_TOKEN"),
        module="huggingface_hub",
        extra="huggingface",
        open="huggingface-hub below 2, while the package dspy brings a later one",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind(
        *("alibaba", "Alibaba Cloud", "qwen3-max", "ALIBABA_API_KEY|DASHSCOPE_API_KEY"),
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind("cerebras", "Cerebras", "gpt-oss-120b", "CEREBRAS_API_KEY"),
    _make_kind("crusoe", "Crusoe", "openai/gpt-oss-120b", "CRUSOE_API_KEY"),
    _make_kind("deepseek", "DeepSeek", "deepseek-chat", "DEEPSEEK_API_KEY"),
    _make_kind(
        *("fireworks", "Fireworks", "accounts/fireworks/models/qwen3-8b", "FIREWORKS_API_KEY"),
    ),
    _make_kind(
        *("github-copilot", "GitHub Copilot", "gpt-5-mini"),
        "GITHUB_COPILOT_API_KEY|GITHUB_COPILOT_API_TOKEN|COPILOT_GITHUB_TOKEN",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind("heroku", "Heroku", "claude-sonnet-4", "HEROKU_INFERENCE_KEY", **_ADDRESS_OPTIONAL),
    _make_kind("meta", "Meta", "muse", "META_API_KEY"),
    _make_kind("moonshotai", "Moonshot AI", "kimi-k2", "MOONSHOTAI_API_KEY", **_ADDRESS_OPTIONAL),
    _make_kind("nebius", "Nebius", "Qwen/Qwen3-8B", "NEBIUS_API_KEY"),
    _make_kind("ovhcloud", "OVHcloud", "gpt-oss-120b", "OVHCLOUD_API_KEY"),
    _make_kind("sambanova", "SambaNova", "gpt-oss-120b", "SAMBANOVA_API_KEY", **_ADDRESS_OPTIONAL),
    _make_kind(
        *("snowflake", "Snowflake Cortex", "claude-sonnet-4-5"),
        *("SNOWFLAKE_ACCOUNT", "SNOWFLAKE_TOKEN"),
        address_variable="SNOWFLAKE_ACCOUNT",
        **_ADDRESS_OPTIONAL,
    ),
    _make_kind("together", "Together AI", "Qwen/Qwen3-8B", "TOGETHER_API_KEY"),
    _make_kind(
        *("vercel", "Vercel's gateway", "openai/gpt-5-mini"),
        "VERCEL_AI_GATEWAY_API_KEY|VERCEL_OIDC_TOKEN",
    ),
    _make_kind("zai", "Z.AI", "glm-4.6", "ZAI_API_KEY", **_ADDRESS_OPTIONAL),
    replace(
        _make_kind("gateway", "Pydantic's gateway", "", "PYDANTIC_AI_GATEWAY_API_KEY|PAIG_API_KEY"),
        forms="gateway/PROVIDER:MODEL",
        example="gateway/openai:gpt-5-mini",
    ),
)
"""PydanticAI's providers whose models write text."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def find_newer_provider(name: str) -> LMKind | None:
    """Find a provider that only the installed PydanticAI knows, because it is newer than
    `PROVIDERS`. Return None if there is no such provider. PydanticAI is not imported."""
    if not _NAME.fullmatch(name):
        return None
    try:
        spec = find_spec("pydantic_ai")
    except ValueError:  # the module in sys.modules has no spec
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    file = f"{name.replace('-', '_')}.py"
    if not any(Path(folder, "providers", file).is_file() for folder in folders or ()):
        return None
    kind = _make_kind(name, f"{name}, through PydanticAI", "MODEL")
    return replace(
        kind, packages=("pydantic_ai",), open="what PydanticAI needs", **_ADDRESS_OPTIONAL
    )
