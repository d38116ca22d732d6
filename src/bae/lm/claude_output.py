"""What the Claude program printed, read: the answer in it, or the error that it is. The program
prints a list of messages, the last of which is its result; `claude_cli.py` runs it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic_core import from_json

from bae.exceptions import BaeLMError, BaeParseError
from bae.lm.backend import Answer
from bae.lm.http import status_error
from bae.lm.subprocesses import Ended
from bae.usage import Usage

Message = dict[str, Any]

TOOL = "StructuredOutput"
"""The tool by which the program has the model answer to the schema."""


def answer_in(ended: Ended, who: str, model: str) -> Answer:
    """The answer that the program printed; `who` is the backend, and `model` what it asked for.

    An answer that does not fit the schema is one too. The program reports it as an error, because
    it is not let ask again.
    """
    said = _Said(_messages(ended, who), ended, who)
    result = said.result
    failed = result.get("is_error") is not False
    if ended.status and not failed:
        raise exited(ended, who)
    usage = _usage(result, model)
    texts, given = said.by_model()
    if not failed and "structured_output" in result:
        given.append(result["structured_output"])
    if result.get("stop_reason") == "refusal":
        return Answer("\n".join(texts) or said.told, usage, "refused")
    cut_off = result.get("stop_reason") == "max_tokens"
    if cut_off or (failed and said.kind == "max_output_tokens"):
        if given:
            return _given(given[-1], usage, "cut-off")
        return Answer("".join(texts), usage, "cut-off")
    # Its own limit of one request, and its own check against the schema, end it in an error.
    if failed and result.get("subtype") not in _ITS_OWN:
        error = said.error()
        if usage.cost:
            error.usage = usage
        raise error
    if given:
        return _given(given[-1], usage)
    if TOOL in said.tools:
        return Answer("\n".join(texts), usage)
    raise said.without_answer(usage)


def exited(ended: Ended, who: str) -> BaeLMError:
    """The error of a program that ended with no result of its own."""
    how = f"exited with status {ended.status}"
    if ended.status < 0:
        how = f"was ended by signal {-ended.status}"
    said = "" if not ended.out.strip() else f", and printed {_quoted(ended.out)}"
    return BaeLMError(
        f"{who}: the program {how}{said}{stderr_of(ended.err)}",
        code="bae-lm-program-failed",
        # A signal comes from outside, as when memory is short.
        retryable=ended.status < 0,
        fix="see what it says; its version must be 2.1 or later (claude --version)",
    )


def stderr_of(printed: bytes) -> str:
    """The end of what a program printed on stderr, as the end of a message."""
    text = printed.decode(errors="replace").strip()
    return f"; stderr ends: {text[-_SHOWN:]}" if text else ""


@dataclass(frozen=True, slots=True)
class _Said:
    """The messages of the program."""

    messages: list[Message]
    ended: Ended
    who: str

    @property
    def result(self) -> Message:
        """The last message, which says how it went."""
        return self.messages[-1]

    @property
    def told(self) -> str:
        """What the program itself says of how it went."""
        found = self.result.get("result")
        if isinstance(found, str) and found:
            return found
        return "; ".join(map(str, _items(self.result.get("errors")))) or "no reason is given"

    @property
    def tools(self) -> list[Any]:
        """The tools that the model was offered."""
        for message in self.messages:
            if "tools" in message:
                return _items(message["tools"])
        return []

    @property
    def kind(self) -> str | None:
        """The kind of failure, in the program's words."""
        found = (m.get("error") for m in reversed(self.messages))
        return next((kind for kind in found if isinstance(kind, str)), None)

    def by_model(self) -> tuple[list[str], list[Any]]:
        """What the model said, and what it gave as its structured answer."""
        texts: list[str] = []
        given: list[Any] = []
        for found in self.messages:
            message = _mapping(found.get("message"))
            # Where the model failed, the program puts its own words into the model's mouth.
            if found.get("type") != "assistant" or message.get("model") == "<synthetic>":
                continue
            for block in map(_mapping, _items(message.get("content"))):
                if block.get("type") == "text":
                    texts.append(str(block.get("text", "")))
                elif block.get("type") == "tool_use" and block.get("name") == TOOL:
                    given.append(block.get("input"))
        return texts, given

    def error(self) -> BaeLMError:
        """The error of a request that failed."""
        told = self.told if len(self.told) <= _SHOWN else f"{self.told[:_SHOWN]}…"
        besides = stderr_of(self.ended.err)
        said = f"{told}{besides}"
        status = self.result.get("api_error_status")
        if not isinstance(status, int) or not 400 <= status <= 599:
            status = _STATUS.get(self.kind or "")
        if status is not None:
            return status_error(self.who, status, told, besides=besides)
        if self.kind in ("authentication_failed", "oauth_org_not_allowed", "billing_error"):
            return BaeLMError(
                f"{self.who} may not ask: {said}",
                code="bae-lm-unauthorised",
                fix="run claude once and log in, or set ANTHROPIC_API_KEY",
            )
        if self.kind in ("server_error", "unknown"):
            return BaeLMError(
                f"{self.who} did not get through to the model: {said}",
                code="bae-lm-unreachable",
                retryable=True,
                fix="check the network; bae.lm.Retry(…) asks again by itself",
            )
        return BaeLMError(
            f"{self.who}: the program reports an error: {said}",
            code="bae-lm-program-failed",
            fix="see what it says",
        )

    def without_answer(self, usage: Usage) -> BaeLMError:
        """The error of a result that has no structured answer, and no model that withheld it."""
        return BaeLMError(
            f"{self.who}: the program did not hold the model to the schema, and there is no "
            f"structured answer; it says {self.told!r}{stderr_of(self.ended.err)}",
            code="bae-lm-schema-ignored",
            usage=usage,
            fix="the program must be of version 2.1 or later (claude --version); it drops, without "
            "a word, a schema that it does not understand: look for what is unusual in that of "
            "the node",
        )


def _messages(ended: Ended, who: str) -> list[Message]:
    """What was printed, up to the result; without --verbose that is all there is."""
    try:
        found: Any = from_json(ended.out)
    except ValueError as error:
        if ended.status:
            raise exited(ended, who) from error
        begun = ended.out.lstrip()[:1] in (b"{", b"[")
        raise BaeParseError(
            f"{who}: what the program printed is not JSON{', or was cut off' if begun else ''}: "
            f"{_quoted(ended.out)}{stderr_of(ended.err)}",
            cause=error,
            retryable=begun,
            fix="try the program by hand: claude -p hello --output-format json",
        ) from error
    messages = [_mapping(each) for each in _items(found) or [found]]
    last = max((n for n, m in enumerate(messages) if m.get("type") == "result"), default=None)
    if last is None:
        if ended.status:
            raise exited(ended, who)
        raise BaeLMError(
            f"{who}: the program printed no result, but {_quoted(ended.out)}{stderr_of(ended.err)}",
            code="bae-lm-program-failed",
            fix="its version must be 2.1 or later (claude --version)",
        )
    return messages[: last + 1]


def _given(value: Any, usage: Usage, stop: Literal["end", "cut-off"] = "end") -> Answer:
    """A structured answer. What was not JSON the program hands on as a text."""
    raw = _mapping(_mapping(value).get("__unparsedToolInput")).get("raw")
    if isinstance(raw, str):
        return Answer(raw, usage, stop)
    return Answer(json.dumps(value, ensure_ascii=False), usage, stop, value)


def _usage(result: Message, model: str) -> Usage:
    models = _mapping(result.get("modelUsage"))
    # By model, because the sum beside it leaves out a request that was not streamed.
    fresh, written, read, out = (
        sum(_count(_mapping(counts).get(by_model)) for counts in models.values())
        or _count(_mapping(result.get("usage")).get(in_all))
        for by_model, in_all in _COUNTED
    )
    cost: Any = result.get("total_cost_usd")
    return Usage(
        calls=1,
        input_tokens=fresh + written + read,
        output_tokens=out,
        cached_tokens=read,
        cost=float(cost) if type(cost) in (int, float) else None,
        models=tuple(models) or (model,),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _mapping(value: Any) -> Message:
    return cast(Message, value) if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _quoted(printed: bytes) -> str:
    text = printed.decode(errors="replace").strip()
    if not text:
        return "nothing"
    return repr(text) if len(text) <= 600 else f"{text[:300]!r} … {text[-300:]!r}"


_SHOWN = 500
"""Characters of what the program says of an error, and of what it printed on stderr."""

_COUNTED = (
    ("inputTokens", "input_tokens"),
    ("cacheCreationInputTokens", "cache_creation_input_tokens"),
    ("cacheReadInputTokens", "cache_read_input_tokens"),
    ("outputTokens", "output_tokens"),
)
_ITS_OWN = ("error_max_turns", "error_max_structured_output_retries")
_STATUS = {"rate_limit": 429, "model_not_found": 404, "invalid_request": 400}
"""What the program's kinds of failure are to HTTP, where it does not tell the status."""
