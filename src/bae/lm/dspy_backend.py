"""Models that DSPy supports, asked through a `dspy.LM`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import isawaitable
from typing import Any, ClassVar

from pydantic_core import to_jsonable_python

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Backend, Prompt, check_positive
from bae.lm.extras import load_dspy
from bae.lm.file_limits import FileLimits, limits_of
from bae.lm.http import PerLoop, mask_error, secrets_in, timeout_error, without_secrets
from bae.lm.prices import cost_of
from bae.usage import Usage, read_count, read_name


class DSPyBackend(Backend):
    """A model asked through DSPy: a `dspy.LM`, the name of a model (`"openai/gpt-5-mini"`), or None
    for the LM of `dspy.settings`.

    - `max_retries`: how often an invalid answer is asked for again, and how often a failed request
      is sent again. `attempts` and `retries` set these numbers separately. If you pass a `dspy.LM`
      with `num_retries`, dspy sends failed requests again, and bae does not.
    - `timeout`: seconds for the whole call.
    - `options`: further arguments of `dspy.LM` for a model by name, such as `api_base`, `api_key`,
      `temperature` and `max_tokens`. dspy's cache and retries are off unless you pass `cache=` and
      `num_retries=`, and no history of the calls is kept. A `dspy.LM` that you pass keeps its own
      settings.

    DSPy opens at most 100 connections for each LM and event loop. Further calls wait.
    """

    answers_unions = False
    named_options: ClassVar[Mapping[str, Any]] = {
        "temperature": float,
        "max_tokens": int,
        "top_p": float,
        "seed": int,
        "reasoning_effort": str,
    }
    """The options of `dspy.LM` that can be written in a name."""

    def __init__(
        self,
        lm: Any = None,
        max_retries: int = 1,
        *,
        timeout: float = 600.0,
        attempts: int | None = None,
        retries: int | None = None,
        **options: Any,
    ) -> None:
        dspy = load_dspy(type(self).__name__)
        check_positive(self, timeout=timeout)
        made = isinstance(lm, str)
        if made:
            given = {"cache": False, "num_retries": 0, "timeout": timeout, **options}
            lm = dspy.LM(lm, **given)
        elif options:
            raise TypeError(
                f"{type(self).__name__} takes {', '.join(options)} with the name of a model alone: "
                "set them on the LM that you give"
            )
        if lm is not None and not isinstance(lm, dspy.BaseLM):
            # In bae 3.0 the first argument was max_retries.
            retried = f"; for retries write max_retries={lm}" if isinstance(lm, int) else ""
            raise TypeError(
                f"{type(self).__name__}(lm={lm!r}): give a dspy.LM, the name of a model, or None"
                f"{retried}"
            )
        used = dspy.settings.lm if lm is None else lm
        if retries is None:
            sends_again = isinstance(used, dspy.LM) and used.num_retries > 0
            retries = 0 if sends_again else max_retries
        super().__init__(
            attempts=max_retries if attempts is None else attempts, retries=retries, one_call=False
        )
        self.model = used.model if used is not None else ""
        self.timeout = timeout
        self.max_retries = max_retries
        self._lm: Any = lm
        self._made = made
        self._prepared: set[int] = set()
        self._loops = PerLoop[None](lambda: None, partial(_leave, lm if made else None))

    takes_files = frozenset({"image", "document"})

    @property
    def file_limits(self) -> FileLimits:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The limits of the provider, which is the first part of the model's name."""
        return limits_of(self.model.partition("/")[0])

    @property
    def lm(self) -> Any:
        """The `dspy.LM` to ask: the given LM, or the LM of `dspy.settings`."""
        lm = self._current_lm()
        if lm is None:
            raise BaeLMError(
                f"{type(self).__name__} has no LM, and dspy has none either",
                code="bae-lm-missing",
                sent=False,
                fix=f"give {type(self).__name__}(lm=…) one, or call dspy.configure(lm=…)",
            )
        return lm

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the LM, without keys and other secrets."""
        from bae.lm.dspy_request import options_of

        lm = self._current_lm()
        if lm is None:
            return {}
        where = {name: lm.kwargs.get(name) for name in ("api_base", "base_url")}
        shown = without_secrets({**where, **options_of(lm.kwargs)})
        return to_jsonable_python({"model_type": lm.model_type, **shown}, fallback=str)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key and other secrets in the settings of the LM or in the environment."""
        lm = self._current_lm()
        if lm is None:
            return ()
        of_provider = f"{lm.model.partition('/')[0].upper()}_API_KEY"
        key = {of_provider: os.environ.get(of_provider)}
        return tuple(secrets_in({**key, **lm.kwargs}))

    def least_cost(self, usage: Usage) -> float | None:
        """The lowest cost of a request with this usage, by the list of prices."""
        lm = self._current_lm()
        return None if lm is None else cost_of(lm.model, usage)

    async def aclose(self) -> None:
        """Close the connections in the running event loop.

        An LM that you passed may have other users, so you close it yourself. The connections of
        LiteLLM, through which dspy asks some providers, are closed when the loop ends.
        """
        if self._made:
            await self._lm.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request."""
        return await self._ask(prompt, self.lm, {})

    async def _ask(self, prompt: Prompt, lm: Any, config: Mapping[str, Any]) -> Answer:
        from bae.lm.dspy_request import error_for, read_response, send

        dspy = load_dspy(type(self).__name__)
        who = f"{type(self).__name__}({lm.model!r})"
        await _LITELLM.get()
        await self._loops.get()
        # No other code can read the history of an LM that was made here.
        quiet = self._made or dspy.settings.disable_history
        try:
            async with asyncio.timeout(self.timeout):
                if id(lm) not in self._prepared:
                    await asyncio.to_thread(_prepare, lm)
                    self._prepared.add(id(lm))
                with dspy.context(disable_history=quiet), dspy.track_usage() as tracker:
                    response = await send(lm, prompt, config)
                    used = tracker.get_total_tokens()
        except TimeoutError as error:
            raise timeout_error(who, self.timeout, error) from error
        except Exception as error:
            mask_error(error, self.secrets)
            raise error_for(who, error) from error
        text, stop = read_response(response)
        usage = _usage(response, used, cache=bool(getattr(lm, "cache", False)))
        return Answer(text, usage, stop, sent=usage.calls > 0)

    def _current_lm(self) -> Any:
        return load_dspy(type(self).__name__).settings.lm if self._lm is None else self._lm


async def _leave(lm: Any, _: None) -> None:
    """Close the connections in the running loop of an LM that was made here."""
    if lm is not None:
        await lm.aclose()


def _usage(response: Any, used: Mapping[str, Mapping[str, Any]], *, cache: bool) -> Usage:
    models = (read_name(response.model),)
    if not used:
        # dspy tracks no usage for an answer from its cache. A cached response has its old counts.
        cached = cache and response.usage.input_tokens is not None
        return Usage(calls=0 if cached else 1, cost=0.0 if cached else None, models=models)
    total = Usage(calls=1, models=models)
    for model, counts in used.items():
        details: Mapping[str, Any] = counts.get("prompt_tokens_details") or {}
        usage = Usage(
            input_tokens=read_count(counts.get("prompt_tokens")),
            output_tokens=read_count(counts.get("completion_tokens")),
            cached_tokens=read_count(details.get("cached_tokens")),
        )
        written = read_count(details.get("cache_creation_tokens"))
        total += replace(usage, cost=cost_of(model, usage, cache_write_tokens=written))
    return total


def _prepare(lm: Any) -> None:
    """Read prices and, if needed, import LiteLLM. Call this in a thread: reading prices takes a
    tenth of a second, and the import takes seconds."""
    from bae.lm.dspy_request import needs_litellm

    cost_of(lm.model, Usage())
    if needs_litellm(lm):
        with suppress(ImportError):
            import_module("litellm")
    with suppress(Exception):  # the request itself reports errors
        lm.supports_response_schema  # noqa: B018  may import LiteLLM


async def _close_litellm(_: None) -> None:
    """Close LiteLLM's connections in the running loop.

    LiteLLM keeps its clients for the whole process, by their event loop, and has no function to
    close the clients of one loop.
    """
    if "litellm.caching.llm_caching_handler" not in sys.modules:
        return
    cache: Any = getattr(sys.modules["litellm"], "in_memory_llm_clients_cache", None)
    clients: dict[str, Any] = getattr(cache, "cache_dict", {})
    mine = f"-{id(asyncio.get_running_loop())}"
    for key in [key for key in clients if key.endswith(mine)]:
        client = clients[key]
        cache.delete_cache(key)
        close = getattr(client, "close", None) or getattr(client, "aclose", None)
        with suppress(Exception):  # must not fail a run that has ended
            closing = close() if close is not None else None
            if isawaitable(closing):
                await closing


_LITELLM = PerLoop[None](lambda: None, _close_litellm)
"""LiteLLM's connections in an event loop. All backends of the loop share them, so they are closed
when the loop ends. Call `get` before LiteLLM may be used."""
