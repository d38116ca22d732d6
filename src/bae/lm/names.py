"""Parses the names of LMs. For example, `openai:qwen3@http://127.0.0.1:8000/v1?max_tokens=800` has
a kind, a model, an address and options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from bae.exceptions import BaeLMError
from bae.lm.http import MASK, is_secret_name, remove_passwords

API_KEY_ENV: Final = "api_key_env"
"""The option that names the environment variable with the key. A name must not contain the key
itself, because names are shown and stored."""
_ADDRESS: Final = re.compile(r"@(?=https?://)", re.IGNORECASE)
"""Matches the `@` before an address. The name of a model may contain an `@` too, such as
`claude-opus-4-5@20251101` on Google's cloud."""
_HALF_ADDRESS: Final = re.compile(
    r".@([a-z+]*:?//|localhost\b|[\w.-]+:[0-9]{1,5}(/|$)|([\w-]+\.)+[a-z]{2,}/)", re.IGNORECASE
)
"""Matches an address without `http://`, or with another scheme, inside the name of a model."""
_ENDPOINTS: Final = ("/chat/completions", "/responses", "/messages")
"""The endpoints of an API. An address must not end with an endpoint."""
_OPTION: Final = re.compile(r"[a-z][a-z0-9_]*")
_KEY_IN_JSON: Final = re.compile(r'"([^"\\]*)"\s*:')


@dataclass(frozen=True, slots=True)
class LMNameParts:
    """The parts of an LM's name."""

    kind: str
    model: str = ""
    """A model, a file or a module."""
    address: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])


def parse_lm_name(name: str, *, is_file: bool = False) -> LMNameParts:
    """Split a name into its parts. Raises `BaeLMError` if the name is malformed.

    Options follow the last `?`. An address follows the last `@` before `http://` or `https://`. A
    name with a file or module (`is_file`) has no address and no options.
    """
    kind, _, rest = name.strip().partition(":")
    if is_file:
        return LMNameParts(kind, rest)
    text, mark, query = name.strip().rpartition("?")
    if not mark:
        text, query = query, ""
    kind, _, rest = text.partition(":")
    parts = _ADDRESS.split(rest)
    address = parts.pop() if len(parts) > 1 else ""
    model = rest[: len(rest) - len(address) - 1] if address else rest
    if address:
        _check_address(name, address)
    if address and any(map(str.isspace, model + address)):
        raise BaeLMError(
            f"{mask_lm_name(name)} has a space in it",
            code="bae-lm-unknown-name",
            sent=False,
            fix=f"write {kind}:MODEL@http://127.0.0.1:8000/v1",
        )
    if _HALF_ADDRESS.search(model):
        raise BaeLMError(
            f"{mask_lm_name(name)} has an address that does not begin with http:// or https://",
            code="bae-lm-unknown-name",
            sent=False,
            fix=f"write {kind}:MODEL@http://127.0.0.1:8000/v1",
        )
    return LMNameParts(kind, model, address, _read_options(name, query, address) if mark else {})


def mask_lm_name(name: str) -> str:
    """Return a name for error messages, with secret options masked, and without the user and
    password of its address."""
    text, mark, query = name.rpartition("?")
    if not mark:
        return repr(remove_passwords(name))
    options: list[str] = []
    for pair in query.split("&"):
        option, mark, value = pair.partition("=")
        options.append(f"{option}{mark}{mask_option(option, value)}")
    return repr(f"{remove_passwords(text)}?{'&'.join(options)}")


def mask_option(option: str, value: str) -> str:
    """Return the value of an option for error messages. If the name of the option, or a key in its
    JSON value, suggests a secret, the value is masked."""
    is_secret = option != API_KEY_ENV and is_secret_name(option, value or None)
    is_secret = is_secret and "TOKENS" not in option.upper()
    names = _KEY_IN_JSON.findall(unquote(value))
    return MASK if is_secret or any(map(is_secret_name, names)) else remove_passwords(value)


def _read_options(name: str, text: str, address: str) -> dict[str, str]:
    options: dict[str, str] = {}
    address_hint = "; an address cannot contain a ?" if address else ""
    for pair in text.split("&"):
        option, mark, value = pair.partition("=")
        if not mark or not _OPTION.fullmatch(option) or not value:
            raise BaeLMError(
                f"{mask_lm_name(name)} has {option + mark + mask_option(option, value)!r} among "
                "its options, which is not NAME=VALUE",
                code="bae-lm-option",
                sent=False,
                fix="write options as ?max_tokens=800&effort=low; in a value, write %26 for & and "
                f"%3F for ?{address_hint}",
            )
        if option in options:
            raise BaeLMError(
                f"{mask_lm_name(name)} has the option {option} twice",
                code="bae-lm-option",
                sent=False,
                fix="write it once",
            )
        options[option] = unquote(value)
    return options


def _check_address(name: str, address: str) -> None:
    try:
        parts = urlsplit(address)
        is_complete = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # such as a port that is no number
        is_complete = False
        parts = None
    if not is_complete:
        raise BaeLMError(
            f"{mask_lm_name(name)} has an address that is no URL: {remove_passwords(address)!r}",
            code="bae-lm-unknown-name",
            sent=False,
            fix="write the address as http://127.0.0.1:8000/v1",
        )
    path = "" if parts is None else parts.path.rstrip("/")
    excess = next(filter(path.endswith, _ENDPOINTS), "")
    if parts is not None and parts.query:
        excess = f"?{parts.query}"
    if excess:
        raise BaeLMError(
            f"{mask_lm_name(name)} has an address with more than the base URL of an API: {excess}",
            code="bae-lm-unknown-name",
            sent=False,
            fix="leave that out, as in http://127.0.0.1:8000/v1",
        )
    if parts is not None and (parts.username or parts.password or parts.fragment):
        raise BaeLMError(
            f"{mask_lm_name(name)} has a user, a password or a fragment in its address",
            code="bae-lm-unknown-name",
            sent=False,
            fix="names are shown and stored: put the key into an environment variable, and name the"
            " variable with ?api_key_env=VARIABLE",
        )
