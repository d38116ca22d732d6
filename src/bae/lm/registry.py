"""LMs by name, such as "local", "claude-cli:sonnet" or "anthropic". `resolve` makes an LM from its
name, `list_lm_kinds` lists the kinds and what each still needs on this machine, and
`find_default_lm` finds the LM for runs without an `lm`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from bae.exceptions import BaeLMError
from bae.given_files import open_file
from bae.lm.kinds import OWN_KINDS, LMKind, MissingPackage, find_missing
from bae.lm.names import LMNameParts, parse_lm_name, shown_name
from bae.lm.options import make_with_options, read_arguments
from bae.lm.policies.policy import Policy, as_backend
from bae.lm.providers import PROVIDERS, find_newer_provider

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.usage import Usage

VARIABLE = "BAE_LM"
"""The environment variable with the name of the LM for runs without `lm=`. "none" means no LM."""

_log = logging.getLogger("bae.lm")


def resolve(name: str) -> LM:
    """Make an LM from its name.

    - `local`, or `local:model.gguf`: a model inside this process, no key and no network
    - `claude-cli` or `claude-cli:sonnet`: the Claude command line program
    - `anthropic` or `anthropic:MODEL`: Anthropic's API
    - `openai:MODEL`: OpenAI's API, through PydanticAI
    - `openai:MODEL@http://127.0.0.1:8000/v1`: a server with OpenAI's chat completions
    - `ollama:MODEL`, `google:MODEL`, `bedrock:MODEL`, …: any provider of PydanticAI, also with
      `pydantic-ai:` before it
    - `dspy:PROVIDER/MODEL`: any model DSPy knows; `dspy`: the LM of `dspy.configure`
    - `scripted:FILE.json`: answers from a file, for tests
    - `python:FILE.py:NAME` or `python:MODULE:NAME`: an LM of yours, or a function that makes one

    Options follow a `?`: `anthropic?effort=low&max_tokens=800`. They are arguments of the backend,
    or settings of the provider's model.

    Each call makes a new LM. A name passed as `lm=` makes its LM once and uses it again.
    """
    parsed, kind = _parse(name)
    make = _maker(kind)
    model = parsed.model
    if kind.name == "openai" or kind.through:
        model = f"{parsed.kind}:{model}"
    given = (model,) if model else ()
    if not parsed.address and not parsed.options:
        return make(*given)
    return make_with_options(make, given, parsed, shown_name(name))


def check_lm_name(name: str) -> None:
    """Raise `BaeLMError` if no LM has this name. The code is `bae-lm-unknown-name`, or
    `bae-lm-option` for a wrong option. No LM is made, and no package is imported."""
    _parse(name)


def name_error(name: str) -> BaeLMError | None:
    """The error for a name that no LM has, or None. No LM is made."""
    try:
        _parse(name)
    except BaeLMError as error:
        return error
    return None


def no_lm_takes(name: str, files: str) -> bool:
    """Whether the class of the named LM rules out files of this kind. False if that depends on the
    model. No LM is made."""
    try:
        maker = _maker(_parse(name)[1])
    except BaeLMError:
        return False
    taken = getattr(maker, "takes_files", None)
    return isinstance(taken, frozenset) and files not in taken


def _parse(name: str) -> tuple[LMNameParts, LMKind]:
    """Parse a name into its parts and its kind. Raises `BaeLMError` if no LM has that name."""
    if not isinstance(cast(object, name), str):
        raise BaeLMError(
            f"the name of an LM is a text, and not {name!r}",
            code="bae-lm-unknown-name",
            fix=f"give one of these names: {_forms()}",
        )
    own = KINDS.get(name.strip().partition(":")[0])
    parsed = parse_lm_name(name, is_file=own is not None and own.is_file)
    kind = find_kind(parsed.kind)
    if kind is None:
        names = (*KINDS, *_SYNONYMS)
        near = _name_for_model(name.strip()) or get_close_matches(
            parsed.kind.lower(), names, 1, 0.7
        )
        near = [_SYNONYMS.get(each, each) for each in near]
        guess = (
            f"did you mean {shown_name(near[0])}? The names are"
            if near
            else "give one of these names"
        )
        raise BaeLMError(
            f"there is no LM named {shown_name(name)}",
            code="bae-lm-unknown-name",
            fix=f"{guess}: {_forms()}",
        )
    if kind.needs_rest and not parsed.model:
        raise BaeLMError(
            f"{shown_name(name)} is not the whole name",
            code="bae-lm-unknown-name",
            fix=f"write {kind.forms}",
        )
    if parsed.address and not kind.address:
        raise BaeLMError(
            f"{shown_name(name)} has an address, and {kind.name} takes none in its name",
            code="bae-lm-unknown-name",
            fix=f"write {kind.forms}; a server with OpenAI's API is openai:MODEL@http://…",
        )
    if kind.address == "required" and not parsed.address:
        raise BaeLMError(
            f"{shown_name(name)} does not say where {kind.name} is",
            code="bae-lm-unknown-name",
            fix=f"write {kind.example}",
        )
    if parsed.options and "pydantic_ai" not in kind.packages:
        # Settings of PydanticAI's models are checked when one is made: that takes its imports.
        read_arguments(_maker(kind), parsed, shown_name(name))
    return parsed, kind


def _maker(kind: LMKind) -> Any:
    module, _, maker = kind.maker.partition(":")
    return getattr(import_module(module), maker)


def _forms() -> str:
    """The forms of names for error messages: bae's own kinds and PydanticAI's providers."""
    own = ", ".join(kind.forms for kind in OWN_KINDS)
    return f"{own}; and, each as PROVIDER:MODEL, {', '.join(each.name for each in PROVIDERS)}"


_SYNONYMS: Final = {
    "gemini": "google",
    "google-gla": "google",
    "google-vertex": "google-cloud",
    "vertex": "google-cloud",
    "lmstudio": "openai:MODEL@http://127.0.0.1:1234/v1",
    "llamacpp": "openai:MODEL@http://127.0.0.1:8080/v1",
}
"""Other common names of providers, each with the name to write."""


def cached_lm(name: str) -> LM:
    """The LM of a name, cached. A script is made again each time, since its answers are used up. So
    are the user's own LM, which may be a script, and the LM of `dspy.configure`, which may have
    changed."""
    name = name.strip()
    again = name == "dspy" or name.startswith(("scripted:", "python:"))
    return resolve(name) if again else _made(name)


_made = cache(resolve)


KINDS: Final[Mapping[str, LMKind]] = {kind.name: kind for kind in (*OWN_KINDS, *PROVIDERS)}
"""Every kind of LM that has a name, bae's own first."""


def find_kind(name: str) -> LMKind | None:
    """The kind with this name, or None. PydanticAI's gateway has a name for each provider behind
    it, and a newer PydanticAI may know more providers than `KINDS`."""
    gateway, mark, provider = name.partition("/")
    if mark and gateway == "gateway":
        behind = find_kind(provider)
        if behind is None:
            return None
        packages = ("pydantic_ai", *behind.packages)
        extra = behind.extra_of_provider or KINDS[gateway].extra_of_provider
        return replace(
            KINDS[gateway], packages=tuple(dict.fromkeys(packages)), extra_of_provider=extra
        )
    return KINDS.get(name) or find_newer_provider(name)


def advice_for(package: str) -> str:
    """What to pass instead of an object from a package. Empty if no backend uses the package."""
    return next((kind.objects[package] for kind in KINDS.values() if package in kind.objects), "")


def _name_for_model(name: str) -> list[str]:
    """Suggest the full name for a bare model name, which people often try first."""
    kind, _, address = name.partition("@http")
    if address and kind in KINDS:
        return [f"{kind}:MODEL@http{address}"]
    if "/" in name and ":" not in name:
        return [f"dspy:{name}"]
    for start, kind in (("gpt", "openai"), ("o3", "openai"), ("o4", "openai")):
        if name.startswith(start):
            return [f"{kind}:{name}"]
    if name.startswith("claude-") and name != "claude-cli":
        return [f"anthropic:{name}"]
    return [f"google:{name}"] if name.startswith("gemini-") else []


def list_lm_kinds() -> list[LMKind]:
    """List every kind of LM that has a name, with what it still needs on this machine. Imports no
    package and calls no LM."""
    return [replace(kind, missing=find_missing(kind)) for kind in KINDS.values()]


def candidates() -> list[LMKind]:
    """The kinds that `find_default_lm` considers, in its order."""
    kinds = {kind.name: replace(kind, missing=find_missing(kind)) for kind in OWN_KINDS}
    return [kinds[name] for name in ("anthropic", "openai", "claude-cli", "local")]


@dataclass(frozen=True, slots=True)
class DefaultName:
    """The name of the LM for runs without `lm=`, and why it is chosen. An empty name means that
    there is no such LM."""

    name: str
    why: str


def configured_lm() -> Any:
    """The `dspy.LM` set by `dspy.configure`, if runs without `lm=` use it; otherwise None. Does not
    import dspy: a program that called `dspy.configure` has imported it."""
    dspy = sys.modules.get("dspy")
    if dspy is None or os.environ.get(VARIABLE, "").strip() not in ("", "dspy"):
        return None
    return getattr(getattr(dspy, "settings", None), "lm", None)


def find_default_name() -> DefaultName:
    """Find the name of the LM for runs without `lm=`, without making the LM."""
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
    kinds = candidates()
    order = ", ".join(kind.example for kind in kinds)
    for kind in kinds:
        if not kind.missing:
            return DefaultName(kind.example, f"the first that is ready of {order}")
    return DefaultName("", f"none is ready of {order}")


def find_default_lm(why: str) -> LM:
    """Find the LM for runs without `lm=`: the LM that `BAE_LM` names, then the LM set by
    `dspy.configure`, then the first of Anthropic, OpenAI, the Claude CLI and the local model that
    is ready. The error for a missing LM quotes `why`, which says what needs it."""
    named = os.environ.get(VARIABLE, "").strip()
    error = name_error(named) if named and named != "none" else None
    if error is not None:
        error.message = f"the variable {VARIABLE} is set, but {error.message}"
        raise error
    name, kinds = find_default_name().name, candidates()
    if not named:
        for kind in kinds if name != "dspy" else ():
            if kind.example == name:
                break
            packages = [isinstance(each, MissingPackage) for each in kind.missing]
            if packages and all(packages) and kind.name != "local":
                # The key suggests that the user meant this LM, so warn before using another.
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
    for kind in kinds:
        fix += f"\n  - {kind.example}: {kind.lacks or f'ready, but {VARIABLE}=none'}"
    raise BaeLMError(f"there is no LM, and {why}", code="bae-lm-missing", fix=fix)


_CODING_LMS: Final = ("anthropic", "openai", "claude-cli")
"""The kinds of LMs that bae may choose for a team."""


def refuse_local(name: str) -> None:
    """Raise BaeLMError if the LM chosen without a name is the model inside bae, which cannot write
    code."""
    if name.partition(":")[0] != "local":
        return
    lines = ["name one with --lm, or lm=…; `bae lm list` says more"]
    for kind in list_lm_kinds():
        if kind.missing and kind.name in _CODING_LMS:
            needed = "; ".join(requirement.get for requirement in kind.missing)
            lines.append(f"  - {kind.example}: {needed}")
    raise BaeLMError(
        "there is no LM for a team: only the local model is here, which is too small to write code",
        code="bae-lm-missing",
        fix="\n".join((*lines, "  - to try the local model all the same: --lm local")),
    )


def find_coding_lm(why: str) -> LM:
    """Find the LM for a team without `lm=`, as `find_default_lm` does. Raises BaeLMError if that is
    the model inside bae."""
    refuse_local(find_default_name().name)
    return find_default_lm(why)


class LazyLM(Policy):
    """The LM of `find_default_lm`, found on first use, since the rest of a resumed run may need no
    LM. `why` says what needs an LM."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._found: Backend | None = None

    def find(self) -> LM:
        """Find the LM. Raises `BaeLMError` if this machine has none."""
        return find_default_lm(self._why)

    @property
    def inner(self) -> Backend:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The LM as a backend. Raises `BaeLMError` if this machine has none."""
        if self._found is None:
            self._found = as_backend(self.find())
        return self._found

    def pinned(self, lm: LM) -> LM:
        """The LM itself: no LM with a name has learned prompts."""
        return lm

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Nothing: no LM with a name has a budget around it."""

    def budgets(self) -> list[Budget]:
        """No budgets, as above. The LM is not looked for."""
        return []

    async def aclose(self) -> None:
        """Close the LM if it was used."""
        if self._found is not None:
            await self._found.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self._found is None else repr(self._found)})"


# --- LMs of the user's own --------------------------------------------------------------------


def imported_lm(where: str) -> LM:
    """Load the LM of `FILE.py:NAME` or `MODULE:NAME`. Modules in the current directory work too."""
    place, _, name = where.rpartition(":")
    if not place or not name.isidentifier():
        raise _no_lm_there(f"{where!r} names no LM in a file or module")
    try:
        value: Any = getattr(load_module(place), name)
        lm = value if _may_be_lm(value) or not callable(value) else value()
    except BaeLMError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise _no_lm_there(f"the LM {name} of {place} cannot be made", error) from error
    if not _may_be_lm(lm):
        raise _no_lm_there(f"{name} of {place} is no LM, and makes none: it is {type(lm).__name__}")
    return lm


def load_module(place: str) -> ModuleType:
    """Load a module by its file or by its name. Modules in the current directory work too."""
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
    # Classes look up the names in their annotations in sys.modules.
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
