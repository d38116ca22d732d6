"""Options in the name of an LM, such as `?effort=low&max_tokens=800`. An option is an argument of
the backend, or a setting of the provider's model. bae checks options before it sends a request."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, cast, get_args, get_origin

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from bae.exceptions import BaeLMError
from bae.lm.names import API_KEY_ENV, LMNameParts, mask_option

if TYPE_CHECKING:
    from bae.language_model import LM

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How much Claude thinks and writes."""

_NOT_NAMED: Final = frozenset({"api_key", "base_url"})
_CONFIG: Final = ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True)


def make_with_options(
    make: Callable[..., LM], given: tuple[str, ...], name: LMNameParts, shown: str
) -> LM:
    """Make the LM of a name with an address or options. `given` are the positional arguments of
    `make`. `shown` is the name in errors."""
    arguments, settings = read_arguments(make, name, shown)
    if API_KEY_ENV in arguments:
        arguments["api_key"] = _read_key(shown, arguments.pop(API_KEY_ENV))
    if name.address:
        arguments["base_url"] = name.address
    try:
        lm = make(*given, **arguments)
    except (TypeError, ValueError) as error:  # the backend checks its arguments itself
        raise BaeLMError(
            f"{shown} cannot be made: {error}",
            code="bae-lm-option",
            sent=False,
            cause=error,
            fix="correct the options after the ? in the name",
        ) from error
    if settings:
        cast(Any, lm).set_options(settings, shown, _known_options(make))
    return lm


def read_arguments(
    make: Callable[..., LM], name: LMNameParts, shown: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Split the options of a name into arguments of the backend and settings of its model.

    Raises `BaeLMError` if the value of an argument is wrong, or if the backend has no such argument
    and takes no settings. The values of settings are not checked here.
    """
    types = option_types(make)
    arguments: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for option, text in name.options.items():
        if option == API_KEY_ENV and _takes_key(make):
            arguments[option] = text
        elif option in types:
            arguments[option] = read_value(shown, option, types[option], text)
        elif hasattr(make, "set_options"):
            settings[option] = text
        else:
            raise unknown_option(shown, option, _known_options(make))
    return arguments, settings


def _takes_key(make: Callable[..., Any]) -> bool:
    return "api_key" in inspect.signature(make).parameters


def _known_options(make: Callable[..., Any]) -> list[str]:
    return [*option_types(make), *([API_KEY_ENV] if _takes_key(make) else ())]


def option_types(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a backend's arguments that a name can contain: texts, numbers, switches
    and choices. The backend's `named_options` are included."""
    module_names = vars(sys.modules[make.__module__])
    types: dict[str, Any] = {}
    for parameter in [*inspect.signature(make).parameters.values()][1:]:
        if parameter.name in _NOT_NAMED:
            continue
        annotation = parameter.annotation
        try:
            hint = (
                eval(annotation, dict(module_names)) if isinstance(annotation, str) else annotation
            )
        except NameError:  # the type is imported for type checkers only
            continue
        if _is_plain(hint):
            types[parameter.name] = hint
    return types | dict(getattr(make, "named_options", {}))


def read_value(shown: str, option: str, hint: Any, text: str) -> Any:
    """Parse the value of an option. Raises `BaeLMError` if the text does not fit the type or the
    bounds."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=_CONFIG)
    except PydanticUserError:
        try:
            adapter = TypeAdapter(hint)  # the type has its own configuration
        except PydanticUserError as error:
            raise unwritable_option(shown, option, error) from error
    try:
        value = adapter.validate_strings(text) if _is_plain(hint) else adapter.validate_json(text)
    except ValidationError as error:
        raise _wrong_value(shown, option, text, error.errors()[0]["msg"], hint) from error
    least, most = _BOUNDS.get(option, (None, None))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if least is not None and value < least:
            raise _wrong_value(shown, option, text, f"it must be {least:g} or more", hint)
        if most is not None and value > most:
            raise _wrong_value(shown, option, text, f"it must be {most:g} or less", hint)
    return value


def unknown_option(shown: str, option: str, known: Collection[str]) -> BaeLMError:
    """Return the error for an unknown option. It suggests the most similar known option."""
    near = get_close_matches(option, known, 1, 0.6)
    guess = f"did you mean {near[0]}? " if near else ""
    return BaeLMError(
        f"{shown} has an option that this LM does not have: {option}",
        code="bae-lm-option",
        sent=False,
        fix=f"{guess}The options are {', '.join(sorted(known))}",
    )


def unwritable_option(shown: str, option: str, cause: Exception) -> BaeLMError:
    """Return the error for an option whose values cannot be written as text."""
    return BaeLMError(
        f"{shown}: the option {option} cannot be written in a name",
        code="bae-lm-option",
        sent=False,
        cause=cause,
        fix="give it to the backend in Python",
    )


def _wrong_value(shown: str, option: str, text: str, reason: str, hint: Any) -> BaeLMError:
    choices = [repr(choice) for choice in _choices(hint) if choice is not None]
    fix = f"give one of {', '.join(choices)}" if choices else "correct the value"
    return BaeLMError(
        f"{shown}: the option {option} cannot be {mask_option(option, text)!r}: {reason}",
        code="bae-lm-option",
        sent=False,
        fix=fix,
    )


def _read_key(shown: str, variable: str) -> str:
    key = os.environ.get(variable, "")
    if not key:
        raise BaeLMError(
            f"{shown} takes its key from the environment variable {variable}, which is not set",
            code="bae-lm-unauthorized",
            sent=False,
            fix=f"export {variable}=…",
        )
    return key


def _is_plain(hint: Any) -> bool:
    """Whether values of a type can be written as plain text instead of JSON."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_plain, get_args(hint)))
    return hint in (int, float, bool, str, NoneType) or get_origin(hint) is Literal


def _choices(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    if get_origin(hint) in (Union, UnionType):
        return [choice for part in get_args(hint) for choice in _choices(part)]
    return []


_BOUNDS: Final[Mapping[str, tuple[float | None, float | None]]] = {
    "max_tokens": (1, None),
    "temperature": (0, None),
    "top_p": (0, 1),
    "top_k": (1, None),
    "seed": (0, None),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
"""The lowest and highest values that any provider accepts. A provider with tighter bounds reports
an error itself."""
