"""What is left of settings when they are shown: not the keys, tokens, passwords and addresses with
passwords in them. Backends show their `settings` through this, because they end up in caches and
journals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are secrets by their names, however deep they are, and
    without the user and password of a URL."""
    return {
        name: _shown(value)
        for name, value in settings.items()
        if not (is_secret(name, value) and (_is_plain(value) or _says(name, _WHOLLY)))
    }


def is_secret(name: str, value: object = None) -> bool:
    """Whether a setting, environment variable or header is a secret, going by its name. A number of
    tokens is none."""
    said = name.upper()
    if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
        said = said.replace("TOKENS", "")
    return _says(said, _WHOLLY) or _says(said, _IN_PARTS)


def without_password(text: str) -> str:
    """A text with no user, password or key left in the URLs in it."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(
        lambda found: f"{found[1]}=" if is_secret(found[1]) else found[0], _USER.sub("", text)
    )


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, Mapping):
        return without_secrets(cast(Mapping[str, Any], value))
    if isinstance(value, list | tuple):
        return [_shown(each) for each in cast(list[Any], value)]
    return value


def _is_plain(value: object) -> bool:
    return not isinstance(value, Mapping)


def _says(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name.upper() for part in parts)


_WHOLLY: Final = ("AUTH", "BEARER", "COOKIE", "CREDENTIAL", "JWT", "PASS", "PROXY", "SECRET")
_IN_PARTS: Final = ("HEADER", "KEY", "TOKEN")
"""What can also be the name of something with parts, as of all headers, or of a field in a schema;
then each part is judged by its own name."""

_USER: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_PARAMETER: Final = re.compile(r"(?<=[?&;])([^=&;#\s]+)=[^&;#\s]*")
