"""`Endpoint`, a row of the table of endpoints. With this table, the API dispatches, checks and
documents requests."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from bae.serve.access import User, Verb
from bae.serve.problems import Refused, input_refusal, wrong_input

if TYPE_CHECKING:
    from starlette.types import Scope

    from bae.serve.api import API

LONGEST_BODY: Final = 1 << 20
"""The maximum size of a request in bytes, unless the endpoint allows more."""
NUL: Final = "\0"
_WRITES: Final = ("POST", "PUT", "PATCH")
_FORM_TYPES: Final = (
    "",
    "text/plain",
    "multipart/form-data",
    "application/x-www-form-urlencoded",
)


CutAt = Annotated[int, Field(ge=0, le=1 << 24)]
"""The number of characters after which a value is cut; 0 means never."""


ListCut = Annotated[int, Field(ge=1, le=65_536)]
"""The number of characters after which a value in a list is cut."""


class Form(BaseModel):
    """The base class of queries and bodies. bae refuses a request with a parameter or a key that
    the class does not have."""

    model_config = ConfigDict(extra="forbid")


class NoQuery(Form):
    """No parameters."""


class NoBody(Form):
    """An empty object, or no body."""


@dataclass(slots=True)
class ApiCall:
    """A request to an endpoint."""

    api: API
    user: User
    request: Request
    path: Mapping[str, str]
    """The variables of the path."""
    query: Any
    """The query, as an instance of the endpoint's `query` class."""
    body: Any = None
    """The body, as an instance of the endpoint's `body` class."""


Number = Annotated[int, Field(ge=0, le=1 << 31)]
"""The number of an item, from 0."""


Handle = Callable[[ApiCall], Awaitable[BaseModel | Response | tuple[int, BaseModel]]]
"""A function that answers a request. The answer is a model, a status and a model, or a complete
response."""


@dataclass(frozen=True)
class Endpoint:
    """A row of the table of endpoints."""

    method: str
    path: str
    """The path, with its variables in braces."""
    verb: Verb | None
    """What the user must be allowed to do. With None, the request needs no user."""
    about: str
    """The description of the endpoint in the OpenAPI document."""
    handler: Handle
    answers: Mapping[int, type[BaseModel] | str]
    """For each status, the model or the content type of the response."""
    query: type[Form] = NoQuery
    body: type[BaseModel] | None = None
    refusals: tuple[int, ...] = ()
    """Statuses of refusals, besides the statuses that the other attributes imply."""
    media: tuple[str, ...] = ()
    """Other content types that a client may accept instead of JSON."""
    or_verbs: tuple[Verb, ...] = ()
    """Other verbs. A user who may do one of them may call the endpoint too."""
    takes_bytes: bool = False
    """Whether the body has the bytes of a file. The handler reads these bytes."""
    longest: int = LONGEST_BODY
    """The maximum size of a request in bytes."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A pattern for the percent-encoded path. A run id in this path may contain a
        percent-encoded slash."""
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))

    @property
    def name(self) -> str:
        """The id of the operation in the OpenAPI document."""
        return self.handler.__name__

    @property
    def all_refusals(self) -> list[int]:
        """The statuses of all refusals."""
        statuses = {422, *self.refusals}
        statuses |= {401, 403, 404, 409} if self.verb is not None else set()
        has_body = self.body is not None or self.takes_bytes
        statuses |= {400, 413, 415, 429, 503} if has_body else set()
        return sorted(statuses)


def get_row(
    path: str,
    about: str,
    handler: Handle,
    answer: type[BaseModel] | str,
    query: type[Form] = NoQuery,
    *,
    media: tuple[str, ...] = (),
) -> Endpoint:
    """Return the row of an endpoint that reads."""
    return Endpoint("GET", path, "read", about, handler, {200: answer}, query, media=media)


def raw_path(scope: Scope) -> str:
    """Return the percent-encoded path of a request, below the path where the API is mounted."""
    path: str = scope["path"]
    raw: bytes | None = scope.get("raw_path")
    encoded_path = quote(path) if raw is None else raw.partition(b"?")[0].decode("latin-1")
    root: str = scope.get("root_path", "").rstrip("/")
    # A proxy may have removed the first part of the root path: the path of the application.
    for mount in (root, root.removeprefix(scope.get("app_root_path", "").rstrip("/"))):
        if mount and (path == mount or path.startswith(f"{mount}/")):
            return "/" + "/".join(encoded_path.split("/")[mount.count("/") + 1 :])
    return encoded_path or "/"


def find_endpoint(
    table: tuple[Endpoint, ...], method: str, path: str
) -> tuple[Endpoint, dict[str, str]]:
    """Return the row for a request, and the variables of the path. Raises `Refused` if there is no
    row."""
    allowed: list[str] = []
    for endpoint in table:
        match = endpoint.pattern.fullmatch(path)
        if match is None:
            continue
        names = {name: unquote(part) for name, part in match.groupdict().items()}
        if any(NUL in part for part in names.values()):
            continue  # no name has a NUL, and some stores cannot search for it
        if endpoint.method == method or (method == "HEAD" and endpoint.method == "GET"):
            return endpoint, names
        allowed.append(endpoint.method)
    if allowed:
        raise Refused(
            405,
            "bae-serve-method",
            f"{path[:200]} has no {method[:20]}",
            f"use {', '.join(allowed)}",
            headers={"allow": ", ".join(allowed)},
        )
    raise Refused(
        404,
        "bae-serve-path",
        f"there is nothing at {path[:200]}",
        "GET openapi.json, at the root of this API, lists the endpoints",
    )


def check_media(endpoint: Endpoint, request: Request) -> None:
    """Raise `Refused` if the endpoint does not take a body of this type. The types of HTML forms
    are always refused, because a page of another site can send a form without a preflight
    request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_allowed = kind not in _FORM_TYPES if endpoint.takes_bytes else kind == "application/json"
    if endpoint.method in _WRITES and not is_allowed:
        raise Refused(
            415,
            "bae-serve-media",
            f"the content type is {kind[:60]!r}",
            "send JSON with the header content-type: application/json, or the bytes of a file with "
            "application/octet-stream",
        )


def read_query(form: type[Form], request: Request) -> Form:
    """Return the parameters of a request. Raises `Refused` for invalid parameters."""
    values: dict[str, Any] = {}
    meta: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if NUL in name or NUL in value:
            raise wrong_input(["query", name], "it has a NUL character", "leave it out")
        if name.startswith("meta.") and "meta" in form.model_fields:
            meta[name.removeprefix("meta.")] = value
        elif name in values:
            raise wrong_input(["query", name], "it is given twice", "give it once")
        else:
            values[name] = value
    if meta:
        values["meta"] = meta
    try:
        return form.model_validate(values)
    except ValidationError as error:
        raise input_refusal(error, "query") from error


async def read_bytes(request: Request, most: int, fix: str) -> bytes:
    """Return the body of a request. Raises `Refused` as soon as the body is larger than `most`
    bytes."""
    length = request.headers.get("content-length", "")
    size, parts = 0, list[bytes]()
    if not (length.isascii() and length.isdecimal() and len(length) < 16 and int(length) > most):
        async for part in request.stream():
            size += len(part)
            if size > most:
                break
            parts.append(part)
        else:
            return b"".join(parts)
    raise Refused(413, "bae-serve-large", f"the body has more than {most:,} bytes", fix)


async def read_body(request: Request, longest: int = LONGEST_BODY) -> Any:
    """Return the body of a request as JSON. An empty body counts as an empty object."""
    data = await read_bytes(request, longest, "send less, and send files with POST /files")
    if not data:
        return {}
    try:
        body = from_json(data, allow_inf_nan=False)
        json.dumps(body, allow_nan=False)  # raises for 1e999, which was read as infinity
    except ValueError as error:
        raise Refused(
            400,
            "bae-serve-json",
            f"the body is not JSON: {error}",
            "send JSON in UTF-8, with finite numbers",
        ) from error
    return body


def check_body(form: type[BaseModel], body: Any) -> BaseModel:
    """Return the body of a request as the endpoint's class. Raises `Refused` for an invalid
    body."""
    try:
        return form.model_validate(body)
    except ValidationError as error:
        raise input_refusal(error, "body") from error
