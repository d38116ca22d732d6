"""What `Provider` serves where, and what it says about everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bae.testing.wire import Wire
from bae.testing.wire_anthropic import Messages
from bae.testing.wire_openai import CREATED, ChatCompletions
from bae.testing.wire_responses import Responses

if TYPE_CHECKING:
    from bae.testing.serving import Exchange

WIRES: dict[str, Wire] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}
COUNT_TOKENS = "/v1/messages/count_tokens"
_MODELS = ("test-model",)


def wire_for(path: str, headers: Mapping[str, str]) -> Wire:
    """The API that a request is for, or whose errors it would understand."""
    anthropic = path.startswith("/v1/messages") or "anthropic-version" in headers
    return WIRES.get(path) or WIRES["/v1/messages" if anthropic else "/v1/chat/completions"]


async def refuse(
    exchange: Exchange,
    wire: Wire,
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Answer with an error."""
    await exchange.whole(
        status, json.dumps(wire.error(status, message)).encode(), headers=headers or {}
    )


async def get(exchange: Exchange, wire: Wire) -> None:
    """Answer what is asked besides answers of a model: that it is there, and its models."""
    path = exchange.request.path
    if path == "/":
        await exchange.whole(200, b"", "text/plain")
    elif path in WIRES:
        await refuse(exchange, wire, 405, f"{exchange.request.method} {path}: use POST")
    elif path == "/v1/models" or path.startswith("/v1/models/"):
        one = path.removeprefix("/v1/models").strip("/")
        listed = [_model(name, wire) for name in ((one,) if one else _MODELS)]
        found: Mapping[str, Any] = {"object": "list", "data": listed}
        if wire.api == "anthropic":
            ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]}
            found = {"data": listed, "has_more": False, **ends}
        await exchange.whole(200, json.dumps(listed[0] if one else found).encode())
    else:
        await refuse(exchange, wire, 404, not_found(exchange.request.method, path))


def _model(name: str, wire: Wire) -> dict[str, Any]:
    if wire.api == "anthropic":
        created = "2023-11-14T22:13:20Z"
        return {"type": "model", "id": name, "display_name": name, "created_at": created}
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "bae"}


def not_found(method: str, path: str) -> str:
    """What to say about a path that is not there."""
    return (
        f"{method} {path}: there is nothing here; {', '.join(WIRES)} are. The base URL for "
        "OpenAI's clients ends in /v1, the one for Anthropic's does not"
    )
