"""What comes back from Claude: a message, whole or in the pieces of a stream, or an error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from bae.exceptions import BaeLMError
from bae.lm.backend import UNPARSED, Answer
from bae.lm.http import connection_error, malformed_error, status_error, timeout_error
from bae.lm.prices import cost_of
from bae.usage import Usage, tell


@dataclass(slots=True)
class Reply:
    """A message of Claude as it comes in: its text, the input of its tool, and why it ended."""

    model: str = ""
    text: list[str] = field(default_factory=list[str])
    tool_input: list[str] | None = None
    value: Any = UNPARSED
    reason: str | None = None
    explained: str = ""
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def begin_block(self, block: Any) -> None:
        """Take a new block of the message, which may have text already."""
        if block.type == "text":
            self._add_text(block.text)
        elif block.type == "tool_use" and self.tool_input is None:
            self.tool_input = []

    def add(self, delta: Any) -> None:
        """Take more of a block. Thinking is left out."""
        if delta.type == "text_delta":
            self._add_text(delta.text)
        elif delta.type == "input_json_delta" and self.tool_input is not None:
            self.tool_input.append(delta.partial_json)
            tell(delta.partial_json)

    def stop(self, said: Any) -> None:
        """Take why the message ended."""
        self.reason = said.stop_reason
        details = getattr(said, "stop_details", None)
        self.explained = (details.explanation if details is not None else None) or ""

    def count(self, usage: Any) -> None:
        """Take the token counts so far; those at the end of a stream are of the whole."""
        for name in _COUNTED:
            found = getattr(usage, name, None)
            if found is not None:
                self.counts[name] = found

    def used(self, asked: str) -> Usage | None:
        """What a message that broke off has used, as far as is known; None where nothing is."""
        return replace(self._usage(self.model or asked), cost=None) if self.counts else None

    def answer(self, asked: str) -> Answer:
        """The answer of a message that has ended; `asked` is the model that was asked."""
        usage = self._usage(self.model or asked)
        text = "".join(self.text if self.tool_input is None else self.tool_input)
        match self.reason:
            case "max_tokens" | "model_context_window_exceeded":
                return Answer(text, usage, "cut-off", self.value)
            case "refusal":
                return Answer(text or self.explained, usage, "refused")
            case _:
                # A tool that is given nothing at all is streamed as no text.
                nothing = self.tool_input is not None and not text and self.value is UNPARSED
                return Answer(text, usage, "end", {} if nothing else self.value)

    def _add_text(self, piece: str) -> None:
        if piece:
            self.text.append(piece)
            tell(piece)

    def _usage(self, model: str) -> Usage:
        read = self.counts.get("cache_read_input_tokens", 0)
        written = self.counts.get("cache_creation_input_tokens", 0)
        usage = Usage(
            calls=1,
            input_tokens=self.counts.get("input_tokens", 0) + read + written,
            output_tokens=self.counts.get("output_tokens", 0),
            cached_tokens=read,
            models=(model,),
        )
        return replace(usage, cost=cost_of(model, usage, "anthropic", cache_write_tokens=written))


def error_for(who: str, error: Exception, *, idle: float) -> Exception:
    """The error to raise in place of one the SDK raised; one that is no failure of the call, such
    as a wrong argument, stays as it is. `idle` is the bound on the time between two pieces."""
    import anthropic
    import httpx2

    match error:
        case anthropic.APIStatusError():
            status = error.status_code
            if status < 400:  # reported inside a stream that began well
                status = _STATUSES.get(error.type or "", 500)
            said = error.api_message or error.message
            return status_error(
                who, status, said, headers=dict(error.response.headers), cause=error
            )
        case anthropic.APITimeoutError() | httpx2.TimeoutException():
            return timeout_error(who, idle, error)
        case anthropic.APIConnectionError() | httpx2.TransportError() | httpx2.StreamError():
            return connection_error(who, error)
        case anthropic.APIResponseValidationError() | httpx2.DecodingError():
            return malformed_error(who, error)
        case TimeoutError():  # of a socket, while no bound of ours is reached
            return timeout_error(who, None, error)
        case ConnectionError():
            return connection_error(who, error)
        case ValueError() | AttributeError():  # no JSON, or JSON without the promised content
            return malformed_error(who, error)
        case anthropic.CredentialsError():
            return BaeLMError(
                f"{who} has no credentials that work",
                code="bae-lm-unauthorized",
                sent=False,
                cause=error,
                fix="set the environment variable ANTHROPIC_API_KEY, or fix the profile it uses",
            )
        case _:
            return error


_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}

_COUNTED = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
