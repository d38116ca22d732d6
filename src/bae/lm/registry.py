"""LMs by name, such as "local", "claude-cli:sonnet" or "anthropic". `resolve` makes an LM from its
name. `list_lm_kinds` lists the kinds of LMs with their missing requirements. `find_default_lm`
finds the LM for runs without `lm=`."""

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
from bae.lm.names import LMNameParts, mask_lm_name, parse_lm_name
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

    - `local` or `local:model.gguf`: a model inside this process, without key and network
    - `claude-cli` or `claude-cli:sonnet`: the Claude command line program
    - `anthropic` or `anthropic:MODEL`: Anthropic's API
    - `openai:MODEL`: OpenAI's API, through PydanticAI
    - `openai:MODEL@http://127.0.0.1:8000/v1`: a server with OpenAI's chat completions
    - `ollama:MODEL`, `google:MODEL`, `bedrock:MODEL`, …: any provider of PydanticAI, also with
      `pydantic-ai:` before it
    - `dspy:PROVIDER/MODEL`: any model that DSPy knows
    - `dspy`: the LM of `dspy.configure`
    - `scripted:FILE.json`: answers from a file, for tests
    - `python:FILE.py:NAME` or `python:MODULE:NAME`: your own LM, or a function that makes an LM

    Options follow a `?`: `anthropic?effort=low&max_tokens=800`. An option is an argument of the
    backend, or a setting of the provider's model.

    Each call makes a new LM. For a name passed as `lm=`, bae makes the LM once and reuses it.
    """
    parsed, kind = _parse(name)
    make = _maker(kind)
    model = parsed.model
    if kind.name == "openai" or kind.through:
        model = f"{parsed.kind}:{model}"
    arguments = (model,) if model else ()
    if not parsed.address and not parsed.options:
        return make(*arguments)
    return make_with_options(make, arguments, parsed, mask_lm_name(name))


def check_lm_name(name: str) -> None:
    """Raise `BaeLMError` if no LM has this name. The code is `bae-lm-unknown-name`, or
    `bae-lm-option` for a wrong option. No LM is made, and no provider's package is imported."""
    _parse(name)


def name_error(name: str) -> BaeLMError | None:
    """Return the error if no LM has this name, or None. No LM is made."""
    try:
        _parse(name)
    except BaeLMError as error:
        return error
    return None


def no_lm_takes(name: str, files: str) -> bool:
    """Return whether no model behind this name takes files of the kind `files`. If that depends on
    the model, return False. No LM is made."""
    try:
        maker = _maker(_parse(name)[1])
    except BaeLMError:
        return False
    kinds = getattr(maker, "takes_files", None)
    return isinstance(kinds, frozenset) and files not in kinds


def _parse(name: str) -> tuple[LMNameParts, LMKind]:
    """Parse a name into its parts and its kind. Raise `BaeLMError` if no LM has the name."""
    if not isinstance(cast(object, name), str):
        raise BaeLMError(
            f"the name of an LM is a text, and not {name!r}",
            code="bae-lm-unknown-name",
            fix=f"give one of these names: {_forms()}",
        )
    own_kind = KINDS.get(name.strip().partition(":")[0])
    parsed = parse_lm_name(name, is_file=own_kind is not None and own_kind.is_file)
    kind = find_kind(parsed.kind)
    if kind is None:
        names = (*KINDS, *_SYNONYMS)
        suggestions = _name_for_model(name.strip()) or get_close_matches(
            parsed.kind.lower(), names, 1, 0.7
        )
        suggestions = [_SYNONYMS.get(suggestion, suggestion) for suggestion in suggestions]
        guess = (
            f"did you mean {mask_lm_name(suggestions[0])}? The names are"
            if suggestions
            else "give one of these names"
        )
        raise BaeLMError(
            f"there is no LM named {mask_lm_name(name)}",
            code="bae-lm-unknown-name",
            fix=f"{guess}: {_forms()}",
        )
    if kind.needs_rest and not parsed.model:
        raise BaeLMError(
            f"{mask_lm_name(name)} is not a complete name",
            code="bae-lm-unknown-name",
            fix=f"write {kind.forms}",
        )
    if parsed.address and not kind.address:
        raise BaeLMError(
            f"{mask_lm_name(name)} has an address, and {kind.name} takes none in its name",
            code="bae-lm-unknown-name",
            fix=f"write {kind.forms}; a server with OpenAI's API is openai:MODEL@http://…",
        )
    if kind.address == "required" and not parsed.address:
        raise BaeLMError(
            f"{mask_lm_name(name)} does not say where {kind.name} is",
            code="bae-lm-unknown-name",
            fix=f"write {kind.example}",
        )
    if parsed.options and "pydantic_ai" not in kind.packages:
        # The options of PydanticAI's models are checked when bae makes the model, because the check
        # needs PydanticAI.
        read_arguments(_maker(kind), parsed, mask_lm_name(name))
    return parsed, kind


def _maker(kind: LMKind) -> Any:
    module, _, maker = kind.maker.partition(":")
    return getattr(import_module(module), maker)


def _forms() -> str:
    """Return all forms of names for error messages: bae's own kinds and PydanticAI's providers."""
    own_forms = ", ".join(kind.forms for kind in OWN_KINDS)
    return f"{own_forms}; and, each as PROVIDER:MODEL, {', '.join(kind.name for kind in PROVIDERS)}"


_SYNONYMS: Final = {
    "gemini": "google",
    "google-gla": "google",
    "google-vertex": "google-cloud",
    "vertex": "google-cloud",
    "lmstudio": "openai:MODEL@http://127.0.0.1:1234/v1",
    "llamacpp": "openai:MODEL@http://127.0.0.1:8080/v1",
}
"""Other common names of providers, with the name that bae knows."""


def cached_lm(name: str) -> LM:
    """Return the LM with this name. The first call makes the LM, and later calls reuse it.

    Three kinds of LMs are made again on each call:

    - `scripted:…`, because the answers of the earlier LM may be used up
    - `python:…`, because the user's own LM may be a script too
    - `dspy`, because `dspy.configure` may have set another LM
    """
    name = name.strip()
    is_fresh = name == "dspy" or name.startswith(("scripted:", "python:"))
    return resolve(name) if is_fresh else _resolve_once(name)


_resolve_once = cache(resolve)


KINDS: Final[Mapping[str, LMKind]] = {kind.name: kind for kind in (*OWN_KINDS, *PROVIDERS)}
"""Every kind of LM that has a name. bae's own kinds come first."""


def find_kind(name: str) -> LMKind | None:
    """Return the kind with this name, or None. The name may also be "gateway/PROVIDER", for
    PydanticAI's gateway, or a provider that only a newer PydanticAI knows."""
    gateway, slash, provider = name.partition("/")
    if slash and gateway == "gateway":
        provider_kind = find_kind(provider)
        if provider_kind is None:
            return None
        packages = ("pydantic_ai", *provider_kind.packages)
        extra = provider_kind.extra_of_provider or KINDS[gateway].extra_of_provider
        return replace(
            KINDS[gateway], packages=tuple(dict.fromkeys(packages)), extra_of_provider=extra
        )
    return KINDS.get(name) or find_newer_provider(name)


def advice_for(package: str) -> str:
    """Return what to pass as an LM instead of an object from `package`. Empty if no backend uses
    the package."""
    return next((kind.objects[package] for kind in KINDS.values() if package in kind.objects), "")


def _name_for_model(name: str) -> list[str]:
    """Suggest a complete name for a bare model name, because people often try that first."""
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
    """List every kind of LM that has a name, with the requirements that this machine lacks. Import
    no package and call no LM."""
    return [replace(kind, missing=find_missing(kind)) for kind in KINDS.values()]


def candidates() -> list[LMKind]:
    """Return the kinds that `find_default_lm` considers, in its order."""
    kinds = {kind.name: replace(kind, missing=find_missing(kind)) for kind in OWN_KINDS}
    return [kinds[name] for name in ("anthropic", "openai", "claude-cli", "local")]


@dataclass(frozen=True, slots=True)
class DefaultName:
    """The name of the LM for runs without `lm=`."""

    name: str
    """The name. Empty if there is no LM for such runs."""
    why: str
    """The reason for this name, or why there is no LM."""


def configured_lm() -> Any:
    """Return the `dspy.LM` of `dspy.configure` if runs without `lm=` may use it, or None. dspy is
    not imported, because a program that calls `dspy.configure` has imported it."""
    dspy = sys.modules.get("dspy")
    if dspy is None or os.environ.get(VARIABLE, "").strip() not in ("", "dspy"):
        return None
    return getattr(getattr(dspy, "settings", None), "lm", None)


def find_default_name() -> DefaultName:
    """Find the name of the LM for runs without `lm=`, without making the LM."""
    from_environment = os.environ.get(VARIABLE, "").strip()
    if from_environment == "none":
        return DefaultName("", f"{VARIABLE}=none forbids one")
    if from_environment:
        error = name_error(from_environment)
        if error is not None:
            return DefaultName("", f"{VARIABLE} is set, but {error.message}")
        return DefaultName(from_environment, f"{VARIABLE} names it")
    if configured_lm() is not None:
        return DefaultName("dspy", "dspy.configure(lm=…) has set it")
    kinds = candidates()
    order = ", ".join(kind.example for kind in kinds)
    for kind in kinds:
        if not kind.missing:
            return DefaultName(kind.example, f"the first that is ready of {order}")
    return DefaultName("", f"none is ready of {order}")


def find_default_lm(why: str) -> LM:
    """Find the LM for runs without `lm=`, in this order:

    1. the LM that the environment variable `BAE_LM` names
    2. the LM of `dspy.configure`
    3. the first of Anthropic, OpenAI, the Claude CLI and the local model that is ready

    If there is no LM, raise `BaeLMError`. Its message quotes `why`, which says what needs an LM.
    """
    from_environment = os.environ.get(VARIABLE, "").strip()
    error = (
        name_error(from_environment) if from_environment and from_environment != "none" else None
    )
    if error is not None:
        error.message = f"the variable {VARIABLE} is set, but {error.message}"
        raise error
    name, kinds = find_default_name().name, candidates()
    if not from_environment:
        for kind in kinds if name != "dspy" else ():
            if kind.example == name:
                break
            packages = [isinstance(item, MissingPackage) for item in kind.missing]
            if packages and all(packages) and kind.name != "local":
                # The user has a key for this LM and may expect it, so warn before using another.
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
    """Raise `BaeLMError` if `name` is the local model, which is too small to write code. `name` is
    the LM that bae chose itself."""
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
    """Find the LM for a team without `lm=`, as `find_default_lm` does. Raise `BaeLMError` if
    bae finds only the local model."""
    refuse_local(find_default_name().name)
    return find_default_lm(why)


class LazyLM(Policy):
    """The LM of `find_default_lm`. It is found on first use, because the rest of a resumed run may
    need no LM. `why` says what needs an LM."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._found: Backend | None = None

    def find(self) -> LM:
        """Find the LM. Raise `BaeLMError` if this machine has no LM."""
        return find_default_lm(self._why)

    @property
    def inner(self) -> Backend:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The LM as a backend. Raises `BaeLMError` if this machine has no LM."""
        if self._found is None:
            self._found = as_backend(self.find())
        return self._found

    def pinned(self, lm: LM) -> LM:
        """Return `lm`, because an LM with a name has no learned prompts."""
        return lm

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Do nothing, because an LM with a name has no budget around it."""

    def budgets(self) -> list[Budget]:
        """Return no budgets, because an LM with a name has no budget around it. This does not look
        for the LM."""
        return []

    async def aclose(self) -> None:
        """Close the LM if it was used."""
        if self._found is not None:
            await self._found.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self._found is None else repr(self._found)})"


# --- The user's own LMs -----------------------------------------------------------------------


def imported_lm(where: str) -> LM:
    """Load the LM at `FILE.py:NAME` or `MODULE:NAME`. `NAME` is an LM, or a function that makes an
    LM. Modules in the current directory work too."""
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
    """Load a module by its file (`….py`) or its name. Modules in the current directory work too."""
    if not place.endswith(".py"):
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return import_module(place)
    path = Path(place).resolve()
    with open_file(path):  # refuses a pipe, which Python would wait for
        pass
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Classes resolve the names in their annotations through sys.modules.
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
