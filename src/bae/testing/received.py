"""A request as `Provider` remembers it, read from the body by one of the wires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bae.exceptions import describe
from bae.testing.tokens import tokens_in
from bae.testing.wire import Body, Channel, Wire


@dataclass(frozen=True, slots=True)
class Received:
    """One request for an answer. Look at it to see what a client sent."""

    path: str
    """Where it was sent, without the query."""
    headers: Mapping[str, str] = field(repr=False)
    """Its headers, by names in lower case."""
    body: Mapping[str, Any] = field(repr=False)
    """All of it, as the client's JSON says it."""
    api: Literal["openai", "anthropic"]
    stream: bool
    schema: Mapping[str, Any] | None = field(repr=False)
    """The JSON schema of the answer, wherever the API has the client put it; None without one."""
    tool: str | None
    """The tool by which the answer is given, where it is."""
    text: str
    """All the text of the prompt, the system part first."""
    tokens: int
    """How many tokens the prompt is counted as, with the descriptions of tools."""

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return str(self.body["model"])


def read(wire: Wire, path: str, headers: Mapping[str, str], body: Body) -> Received:
    """Read a request; raise ValueError, which says what is wrong with it, when that fails."""
    missing = wire.missing(body)
    if missing is not None:
        raise ValueError(f"{missing}: this parameter is required")
    try:
        channel: Channel = wire.channel(body)
        pieces = list(wire.pieces(body))
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the request has not the shape it must: {describe(error)}") from error
    return Received(
        path=path,
        headers=headers,
        body=body,
        api=wire.api,
        stream=bool(body.get("stream")),
        schema=channel.schema,
        tool=channel.tool,
        text="\n".join(piece.text for piece in pieces if piece.spoken),
        tokens=tokens_in("".join(piece.text for piece in pieces)),
    )
