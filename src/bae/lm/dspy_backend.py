"""The backend for models that DSPy supports, asked through a `dspy.LM`."""

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
    """A model that bae asks through DSPy.

    - `lm`: a `dspy.LM`, the name of a model such as `"openai/gpt-5-mini"`, or None for the LM of
      `dspy.settings`. A `dspy.LM` keeps its own settings.
    - `max_retries`: how often an invalid answer is asked for again, and how often a failed request
      is sent again. If you pass a `dspy.LM` with `num_retries`, dspy sends failed requests again,
      and bae does not.
    - `attempts`: how often an invalid answer is asked for again, instead of `max_retries`.
    - `retries`: how often bae sends a failed request again, instead of `max_retries`.
    - `timeout`: seconds for the whole call.
    - `options`: further arguments of `dspy.LM` if `lm` is a name, such as `api_base`, `api_key`,
      `temperature` and `max_tokens`. dspy's cache and retries are off unless you pass `cache=` and
      `num_retries=`. dspy records no history of the calls.

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
    """The options of `dspy.LM` that the name of an LM may have."""

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
        owns_lm = isinstance(lm, str)
        if owns_lm:
            arguments = {"cache": False, "num_retries": 0, "timeout": timeout, **options}
            lm = dspy.LM(lm, **arguments)
        elif options:
            raise TypeError(
                f"{type(self).__name__} takes {', '.join(options)} only with the name of a model: "
                "set them on the LM that you pass"
            )
        if lm is not None and not isinstance(lm, dspy.BaseLM):
            # In bae 3.0 the first argument was max_retries.
            hint = f"; for retries write max_retries={lm}" if isinstance(lm, int) else ""
            raise TypeError(
                f"{type(self).__name__}(lm={lm!r}): give a dspy.LM, the name of a model, or None"
                f"{hint}"
            )
        lm_in_use = dspy.settings.lm if lm is None else lm
        if retries is None:
            dspy_retries = isinstance(lm_in_use, dspy.LM) and lm_in_use.num_retries > 0
            retries = 0 if dspy_retries else max_retries
        super().__init__(
            attempts=max_retries if attempts is None else attempts, retries=retries, one_call=False
        )
        self.model = lm_in_use.model if lm_in_use is not None else ""
        self.timeout = timeout
        self.max_retries = max_retries
        self._lm: Any = lm
        self._owns_lm = owns_lm
        self._prepared: set[int] = set()
        self._loops = PerLoop[None](lambda: None, partial(_close_lm, lm if owns_lm else None))

    takes_files = frozenset({"image", "document"})

    @property
    def file_limits(self) -> FileLimits:  # pyright: ignore[reportIncompatibleVariableOverride] - read only
        """The limits of the provider, which is the first part of the model's name."""
        return limits_of(self.model.partition("/")[0])

    @property
    def lm(self) -> Any:
        """The `dspy.LM` to ask: the LM that was passed, or the LM of `dspy.settings`. If there is
        neither, raises `BaeLMError`."""
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
        addresses = {name: lm.kwargs.get(name) for name in ("api_base", "base_url")}
        visible = without_secrets({**addresses, **options_of(lm.kwargs)})
        return to_jsonable_python({"model_type": lm.model_type, **visible}, fallback=str)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The API key and other secrets, from the settings of the LM and from the environment."""
        lm = self._current_lm()
        if lm is None:
            return ()
        key_variable = f"{lm.model.partition('/')[0].upper()}_API_KEY"
        key = {key_variable: os.environ.get(key_variable)}
        return tuple(secrets_in({**key, **lm.kwargs}))

    def least_cost(self, usage: Usage) -> float | None:
        """Return the lowest cost of a request with this usage by the price list, or None if
        unknown."""
        lm = self._current_lm()
        return None if lm is None else cost_of(lm.model, usage)

    async def aclose(self) -> None:
        """Close the connections of the running event loop.

        If you passed a `dspy.LM`, close it yourself, because it may have other users. dspy asks
        some providers through LiteLLM. LiteLLM's connections are closed when the loop ends.
        """
        if self._owns_lm:
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
        # No other code can read the history of an LM that this backend made, so do not record it.
        quiet = self._owns_lm or dspy.settings.disable_history
        try:
            async with asyncio.timeout(self.timeout):
                if id(lm) not in self._prepared:
                    await asyncio.to_thread(_prepare, lm)
                    self._prepared.add(id(lm))
                with dspy.context(disable_history=quiet), dspy.track_usage() as tracker:
                    response = await send(lm, prompt, config)
                    token_counts = tracker.get_total_tokens()
        except TimeoutError as error:
            raise timeout_error(who, self.timeout, error) from error
        except Exception as error:
            mask_error(error, self.secrets)
            raise error_for(who, error) from error
        text, stop = read_response(response)
        usage = _usage(response, token_counts, cache=bool(getattr(lm, "cache", False)))
        return Answer(text, usage, stop, sent=usage.calls > 0)

    def _current_lm(self) -> Any:
        return load_dspy(type(self).__name__).settings.lm if self._lm is None else self._lm


async def _close_lm(lm: Any, _: None) -> None:
    """Close the running loop's connections of an LM that the backend made."""
    if lm is not None:
        await lm.aclose()


def _usage(response: Any, token_counts: Mapping[str, Mapping[str, Any]], *, cache: bool) -> Usage:
    models = (read_name(response.model),)
    if not token_counts:
        # dspy tracks no usage for an answer from its cache. A response from the cache has the
        # counts of the original request.
        cached = cache and response.usage.input_tokens is not None
        return Usage(calls=0 if cached else 1, cost=0.0 if cached else None, models=models)
    total = Usage(calls=1, models=models)
    for model, counts in token_counts.items():
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
    """Read prices and, if needed, import LiteLLM. Call this function in a thread, because prices
    take a tenth of a second and the import takes seconds."""
    from bae.lm.dspy_request import needs_litellm

    cost_of(lm.model, Usage())
    if needs_litellm(lm):
        with suppress(ImportError):
            import_module("litellm")
    with suppress(Exception):  # the request itself reports errors
        lm.supports_response_schema  # noqa: B018  may import LiteLLM


async def _close_litellm(_: None) -> None:
    """Close LiteLLM's connections in the running loop.

    LiteLLM stores the clients of all event loops together, and has no function to close the clients
    of one loop.
    """
    if "litellm.caching.llm_caching_handler" not in sys.modules:
        return
    cache: Any = getattr(sys.modules["litellm"], "in_memory_llm_clients_cache", None)
    clients: dict[str, Any] = getattr(cache, "cache_dict", {})
    loop_suffix = f"-{id(asyncio.get_running_loop())}"
    for key in [key for key in clients if key.endswith(loop_suffix)]:
        client = clients[key]
        cache.delete_cache(key)
        close = getattr(client, "close", None) or getattr(client, "aclose", None)
        with suppress(Exception):  # must not fail a run that has ended
            closing = close() if close is not None else None
            if isawaitable(closing):
                await closing


_LITELLM = PerLoop[None](lambda: None, _close_litellm)
"""LiteLLM's connections in each event loop. All backends of a loop share the connections, so they
are closed only when the loop ends. Call `get` before LiteLLM may open a connection."""
