"""One call to a loaded model, in the thread of a slot: the pieces of its answer as they come, until
it ends, is stopped, or takes too long. `local_model.py` has the slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from bae.exceptions import BaeLMError
from bae.lm.http import connection_error, status_error, timeout_error
from bae.lm.local_engine import grammar_of


@dataclass(frozen=True, slots=True)
class Heard:
    """What a model answered, whether it came to the end of it, and the tokens in and out."""

    text: str
    whole: bool
    input_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(eq=False, slots=True)
class Call:
    """What is asked: a request, and schemas to hold the answer to, of which the first is taken that
    the engine can hold it to. Set `stopped` from any thread to have it end at the next token."""

    who: str
    request: Mapping[str, Any]
    schemas: Sequence[Mapping[str, Any]]
    context: int
    shortest: int
    timeout: float
    hear: Callable[[str], None]
    examples: int = 0
    stopped: bool = False
    future: Future[Heard] = field(default_factory=Future[Heard])

    def run(self, server: Any, known: set[str], broken: Callable[[str], str] = str) -> Heard:
        """Have the answer from the model. `known` are grammars that the engine is known to take,
        and `broken` is what takes the meaning out of control tokens in a message."""
        until = monotonic() + self.timeout
        messages = [{**each, "content": broken(each["content"])} for each in self._messages]
        self.request = {**self.request, "messages": messages}
        grammar, tried = self._grammar(server, known, until)
        answer = self._listen(server, {**self.request, "grammar": grammar}, until, self.hear)
        first = tried or answer
        return Heard(
            answer.text,
            answer.end != "length",
            answer.prompt_tokens,
            first.cached_tokens,
            answer.output_tokens + (tried.output_tokens if tried else 0),
        )

    @property
    def _messages(self) -> list[dict[str, str]]:
        return self.request["messages"]

    def _grammar(self, server: Any, known: set[str], until: float) -> tuple[str, _Listening | None]:
        """The first grammar that the engine takes. One that it cannot take is dropped by it without
        a word, so a new one is tried: for one token, which has to open an object although the
        model is told to avoid that."""
        tried: _Listening | None = None
        refused: Exception | None = None
        for schema in self.schemas:
            try:
                grammar = grammar_of(schema)
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                refused = error
                continue
            if grammar in known:
                return grammar, tried
            request = {**self.request, "grammar": grammar, "max_tokens": 1, "logit_bias": _AVOIDED}
            heard = self._listen(server, request, until, None)
            tried = tried or heard
            if self.stopped:
                return grammar, tried
            if heard.text.startswith("{"):
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                known.add(grammar)
                return grammar, tried
        raise BaeLMError(
            f"{self.who} cannot be held to the schema: the grammar made from it was not taken",
            code="bae-lm-schema-refused",
            cause=refused,
            fix="make the node smaller, or its patterns simpler, and its numbers no longer than 18 "
            "digits",
        )

    def _listen(
        self,
        server: Any,
        request: Mapping[str, Any],
        until: float,
        hear: Callable[[str], None] | None,
    ) -> _Listening:
        heard = _Listening(self, until, hear)
        if self.stopped:
            return heard
        try:
            server.handle_chat_completions({**request, **_STREAMED}, heard)
        except Exception as error:
            raise status_error(self.who, 400, str(error), cause=error) from error
        if heard.error is not None:
            raise heard.error
        if heard.end is None and not self.stopped:
            if monotonic() > until:
                raise timeout_error(self.who, self.timeout, None)
            raise connection_error(self.who, RuntimeError("the answer broke off"))
        return heard


class _Listening:
    """Takes the pieces of an answer; what it returns says whether that is enough."""

    def __init__(self, call: Call, until: float, hear: Callable[[str], None] | None) -> None:
        self.call = call
        self.until = until
        self.hear = hear
        self.text = ""
        self.end: str | None = None
        self.error: BaseException | None = None
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0

    def __call__(self, chunk: dict[str, Any]) -> bool:
        try:
            self._take(chunk)
        except BaseException as error:  # it would be lost in the engine
            self.error = error
        return self.error is not None or self.call.stopped or monotonic() > self.until

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise self._failure(chunk["error"])
        if "prompt_progress" in chunk:
            tokens = chunk["prompt_progress"]["total"]
            if tokens + self.call.shortest > self.call.context:
                raise self._too_long(tokens, self.call.context)
        for choice in chunk.get("choices", ()):
            piece = choice.get("delta", {}).get("content")
            if piece:
                self.text += piece
                if self.hear is not None:
                    self.hear(piece)
            self.end = choice.get("finish_reason") or self.end
        usage = chunk.get("usage")
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            self.output_tokens = usage["completion_tokens"]

    def _failure(self, told: dict[str, Any]) -> BaeLMError:
        if told.get("type") == "exceed_context_size_error":
            return self._too_long(told["n_prompt_tokens"], told["n_ctx"])
        return status_error(self.call.who, int(told.get("code", 500)), str(told.get("message")))

    def _too_long(self, tokens: int, context: int) -> BaeLMError:
        least, shown = self.call.shortest, self.call.examples
        beginning = f"with its {shown} example{'s' * (shown > 1)} " if shown else ""
        return BaeLMError(
            f"{self.call.who}: the prompt {beginning}has {tokens} tokens and the shortest answer "
            f"about {least}, which is more than the {context} of the context",
            code="bae-lm-context-exceeded",
            fix=f"{'show fewer or shorter examples, ' if shown else ''}let the node see less, ask "
            "for less, or give more room with LocalBackend(context=…), as far as the model was "
            "trained for",
        )


_STREAMED: Final = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_progress": True,
}
_AVOIDED: Final = [[text, -50] for text in ("{", '{"', "{\n", "{}", "{ ")]
_MOST_KNOWN: Final = 1000
