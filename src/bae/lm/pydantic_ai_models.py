"""PydanticAI models made from the parts of an LM's name: provider, model, address and options.
Errors say which package, key or option is missing or wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_type_hints
from urllib.parse import urlsplit

from bae.exceptions import BaeLMError
from bae.lm.extras import install_line
from bae.lm.http import remove_passwords
from bae.lm.kinds import LMKind, missing_packages, unset_variables
from bae.lm.options import read_value, unknown_option, unwritable_option
from bae.lm.registry import find_kind

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider


def make_model(name: str, base_url: str | None = None, api_key: str | None = None) -> Model:
    """Make a model from its name, such as `openai:gpt-5-mini`.

    With a `base_url`, `openai:` and `openai-chat:` mean a server with OpenAI's chat completions. If
    something is missing, such as a package or a key, `BaeLMError` says what is missing.
    """
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    provider, _, model = name.partition(":")
    kind = find_kind(provider)
    has_address = bool(base_url)
    try:
        if base_url and provider in ("openai", "openai-chat"):
            return _compatible_model(model, base_url, api_key)
        base_url = base_url or (kind.asked_at if kind and kind.default_address else None)
        if not (base_url or api_key):
            return infer_model(name)
        return infer_model(name, partial(_make_provider, base_url=base_url, api_key=api_key))
    except ImportError as error:
        raise _package_missing(name, kind, error) from error
    except Exception as error:
        unset = unset_variables(kind, has_address=has_address) if kind else []
        # A provider's client raises its own kind of error for a variable that is set but empty.
        if not (unset or isinstance(error, UserError)):
            raise
        if not _is_known(provider):
            raise BaeLMError(
                f"{_who(name)}: PydanticAI knows no model of this name",
                code="bae-lm-not-found",
                cause=error,
                fix='give "provider:model", as "openai:gpt-5-mini"',
            ) from error
        verb = "is" if len(unset) == 1 else "are"
        lacks = f"{_join_names(unset)} {verb} not set" if unset else str(error)
        raise BaeLMError(
            f"{_who(name)} cannot be asked: {lacks}",
            code="bae-lm-unauthorized",
            sent=False,
            cause=error,
            fix=_describe_fix(kind, unset),
        ) from error


def read_settings(
    model: Model, options: Mapping[str, str], shown: str, known: Sequence[str]
) -> dict[str, Any]:
    """Read the settings of a model from the options in an LM's name.

    An option has the name of a setting. The option `effort` means the provider's own setting for
    effort or thinking. Error messages use `shown` for the LM's name, and list `known`, the options
    that are not settings.
    """
    types = _settings_types(model)
    effort = next((type_ for type_ in types if type_.endswith("_effort")), "thinking")
    settings: dict[str, Any] = {}
    for option, text in options.items():
        setting = effort if option == "effort" else option
        if setting not in types:
            raise unknown_option(shown, option, [*known, "effort", *types])
        try:
            hint = _type_of(types, setting)
        except NameError as error:  # the annotation has a name that only type checkers import
            raise unwritable_option(shown, option, error) from error
        value = read_value(shown, option, hint, text)
        if setting == "thinking" and value and not model.profile.get("supports_thinking"):
            raise BaeLMError(
                f"{shown}: according to its profile, the model has no setting for thinking, and "
                f"PydanticAI would ignore {option}",
                code="bae-lm-option",
                sent=False,
                fix=f"leave out {option}",
            )
        if setting in settings:
            raise BaeLMError(
                f"{shown} has both effort and {setting}, which are the same setting",
                code="bae-lm-option",
                sent=False,
                fix="write one of them",
            )
        settings[setting] = value
    return settings


def _settings_types(model: Model) -> dict[str, Any]:
    """Return the settings of a model's class, with their annotations. PydanticAI defines the class
    of the settings in the module of the model's class or of a base class."""
    for cls in type(model).__mro__:
        module = vars(sys.modules[cls.__module__])
        settings_class = module.get(f"{cls.__name__}Settings")
        classes = (
            [settings_class]
            if settings_class is not None
            else [*_settings_classes(module, cls.__module__)]
        )
        if len(classes) == 1:
            hints = classes[0].__annotations__
            return {name: hints[name] for name in hints if name not in _NOT_IN_NAMES}
    raise AssertionError  # the base class of all models has settings


def _type_of(types: Mapping[str, Any], setting: str) -> Any:
    """Return the type of a setting. Raise NameError if the type is not available at run time, as
    for some settings of AWS."""
    holder = type("Setting", (), {"__annotations__": {setting: types[setting]}})
    return get_type_hints(holder)[setting]


def _settings_classes(names: Mapping[str, Any], module: str) -> Iterator[Any]:
    """Yield the classes of settings that a module defines. `names` is the module's namespace."""
    for name, value in names.items():
        if name.endswith("ModelSettings") and getattr(value, "__module__", "") == module:
            yield value


def _compatible_model(model: str, base_url: str, api_key: str | None) -> Model:
    """Make a model on a server with OpenAI's API. It uses chat completions, because most such
    servers have no Responses API. The provider's name is the address, so that bae never sends an
    echo from one server to another server."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    provider = OpenAICompatibleProvider(
        urlsplit(remove_passwords(base_url)).netloc,
        base_url=base_url,
        api_key=api_key,
        # Such servers only mask tokens that break the schema, and do not show the schema to the
        # model. So the schema goes into the instructions too.
        profile=OpenAIModelProfile(
            supports_json_schema_output=True,
            native_output_requires_schema_in_instructions=True,
        ),
    )
    return OpenAIChatModel(model, provider=provider)


def _make_provider(name: str, *, base_url: str | None, api_key: str | None) -> Provider[Any]:
    """Make a provider with the caller's address or key."""
    from pydantic_ai.providers import infer_provider_class

    arguments = {"api_base" if name == "litellm" else "base_url": base_url, "api_key": api_key}
    cls: Any = infer_provider_class(name)
    try:
        return cls(**{key: value for key, value in arguments.items() if value})
    except TypeError as error:
        raise BaeLMError(
            f"PydanticAI's provider {name} has no argument for this address or key",
            code="bae-lm-unknown-name",
            sent=False,
            cause=error,
            fix=f"write {name}:MODEL; a server with OpenAI's API is openai:MODEL@http://…",
        ) from error


def _package_missing(name: str, kind: LMKind | None, error: ImportError) -> BaeLMError:
    missing = missing_packages(kind) if kind else []
    if missing:
        reason = " and ".join(requirement.what for requirement in missing)
        fix = "; ".join(requirement.get for requirement in missing)
    else:  # a package is too old, or belongs to a provider that is not in `PROVIDERS`
        reason, fix = str(error), install_line("pydantic-ai")
    return BaeLMError(
        f"{_who(name)} cannot be made: {reason}",
        code="bae-lm-extra-missing",
        sent=False,
        cause=error,
        fix=fix,
    )


def _describe_fix(kind: LMKind | None, unset: Sequence[tuple[str, ...]]) -> str:
    if not unset:
        return f"it needs {kind.open}" if kind and kind.open else "see what PydanticAI says"
    fix = f"set the environment variable {_join_names(unset)}"
    if kind and kind.address and any(kind.address_variable in names for names in unset):
        fix += f", or write {kind.name}:MODEL@http://…"
    return fix


def _join_names(unset: Sequence[tuple[str, ...]]) -> str:
    return " and ".join(" or ".join(names) for names in unset)


def _is_known(provider: str) -> bool:
    from pydantic_ai.providers import infer_provider_class

    try:
        infer_provider_class(provider)
    except ValueError:
        return False
    except ImportError:
        pass
    return True


def _who(name: str) -> str:
    return f"PydanticAIBackend({name!r})"


_NOT_IN_NAMES: Final = frozenset(
    {"timeout", "request_timeout", "max_retries", "tool_choice", "extra_headers"}
)
"""Settings that an LM's name must not have, because bae sets them itself or they may contain
keys."""
