"""Any model DSPy supports, asked through a `dspy.Predict` of the node's signature."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python

from bae.exceptions import BaeLMError
from bae.lm.backend import UNPARSED, Answer, Backend, Prompt
from bae.lm.extras import load_dspy
from bae.lm.http import (
    PerLoop,
    connection_error,
    malformed_error,
    status_error,
    timeout_error,
    without_secrets,
)
from bae.lm.prices import cost_of
from bae.lm.prompts import names_of
from bae.lm.schemas import once
from bae.lm.signatures import choice_signature, narrowed, node_to_signature, with_source
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.lm.dspy_adapter import QuestionAdapter


class DSPyBackend(Backend):
    """A model asked through DSPy: a `dspy.LM`, or the name of one (`"openai/gpt-5-mini"`), or None
    for that of `dspy.settings`.

    - `max_retries`: how many more times a wrong answer is asked for again, and how many more times
      a request that failed is sent. `attempts` and `retries` say one of them otherwise. An LM that
      is given and sends failed requests again by itself (`num_retries`) is left to it, and bae
      does not on top of that.
    - `timeout`: seconds for a whole call.
    - `options`: for a model by name, what `dspy.LM` takes besides, such as `api_base`, `api_key`,
      `temperature` and `max_tokens`. dspy's cache and retries are off, unless `cache=` and
      `num_retries=` are among them, and it keeps no history of the calls. An LM that is given
      keeps its own settings.

    DSPy opens at most 100 connections for an LM and event loop; more calls than that wait.
    """

    answers_unions = False

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
        if not timeout > 0:
            raise ValueError(
                f"{type(self).__name__}(timeout={timeout!r}): give a number of seconds"
            )
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
            raise TypeError(
                f"{type(self).__name__}(lm={lm!r}): give a dspy.LM, the name of a model, or None"
            )
        used = dspy.settings.lm if lm is None else lm
        if retries is None:
            retries = 0 if _sends_again(dspy, used) else max_retries
        super().__init__(
            attempts=max_retries if attempts is None else attempts, retries=retries, one_call=False
        )
        self.model = used.model if used is not None else ""
        self.timeout = timeout
        self._lm: Any = lm
        self._made = made
        self._prepared: set[int] = set()
        self._loops = PerLoop[None](lambda: None, partial(_leave, lm if made else None))

    @property
    def lm(self) -> Any:
        """The LM that is asked: the one that was given or made, or that of `dspy.settings`."""
        found = self._found_lm()
        if found is None:
            raise BaeLMError(
                f"{type(self).__name__} has no LM, and dspy has none either",
                code="bae-lm-missing",
                sent=False,
                fix=f"give {type(self).__name__}(lm=…) one, or call dspy.configure(lm=…)",
            )
        return found

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the LM is set to, but for its keys and other secrets."""
        from bae.lm.dspy_request import options_of

        lm = self._found_lm()
        if lm is None:
            return {}
        where = {name: lm.kwargs.get(name) for name in ("api_base", "base_url")}
        shown = without_secrets({**where, **options_of(lm.kwargs)})
        return to_jsonable_python({"model_type": lm.model_type, **shown}, fallback=str)

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs at least, by the list of prices."""
        lm = self._found_lm()
        return None if lm is None else cost_of(lm.model, usage)

    async def aclose(self) -> None:
        """Close the connections of the running loop.

        An LM that was given may have other users, and is yours to close. So may the connections
        of LiteLLM, through which dspy asks some providers: they are closed when the loop ends.
        """
        if self._made:
            await self._lm.aclose()

    async def answer(self, prompt: Prompt) -> Answer:
        """Send one request, through the predictor for what is asked."""
        from bae.lm.dspy_adapter import QuestionAdapter

        dspy = load_dspy(type(self).__name__)
        lm = self._lm_for(prompt)
        who = f"{type(self).__name__}({lm.model!r})"
        question = QuestionAdapter(prompt)
        used: dict[str, dict[str, Any]] = {}
        value: Any = UNPARSED
        await _LITELLM.get()
        await self._loops.get()
        try:
            async with asyncio.timeout(self.timeout):
                await self._prepare(lm)
                with self._asking(dspy, lm, question), dspy.track_usage() as tracker:
                    # The layer above reads the answer, and keeps what is valid of it.
                    with suppress(dspy.AdapterParseError):
                        value = await self._predict(prompt, question)
                    used = tracker.get_total_tokens()
        except TimeoutError as error:
            raise timeout_error(who, self.timeout, error) from error
        except BaeLMError:
            raise
        except Exception as error:
            raise _error_for(who, error) from error
        text, stop = _said(question.responses[-1]) if question.responses else ("", "end")
        return Answer(text, _usage(question.responses, used), stop, value)

    def _found_lm(self) -> Any:
        return load_dspy(type(self).__name__).settings.lm if self._lm is None else self._lm

    def _lm_for(self, prompt: Prompt) -> Any:
        return self.lm

    async def _predict(self, prompt: Prompt, question: QuestionAdapter) -> Any:
        """Ask through a predictor. What is answered is in the responses that `question` keeps, as
        the model said it; return the JSON value where that is not it."""
        dspy = load_dspy(type(self).__name__)
        target = prompt.question.target
        if target is None:
            choice = choice_signature(tuple(names_of(prompt.question.types)))
            await dspy.Predict(choice).acall(known=question.said)
            return UNPARSED
        signature = once(target, "dspy", lambda: with_source(node_to_signature(target)))
        inputs = question.inputs(signature)
        given = frozenset({*inputs, *signature.output_fields})
        await dspy.Predict(question.asked(narrowed(signature, given))).acall(**inputs)
        return UNPARSED

    def _asking(
        self, dspy: Any, lm: Any, question: QuestionAdapter
    ) -> AbstractContextManager[None]:
        # Values that JSON cannot say are not shown, so that their type does not matter.
        settings = {"lm": lm, "adapter": question, "warn_on_type_mismatch": False}
        if not dspy.settings.caller_modules:
            # Outside a program of dspy its trace is not read, but would keep the inputs of the last
            # ten thousand calls; and an LM that was made here is not known elsewhere.
            settings["trace"] = None
            settings["disable_history"] = self._made or dspy.settings.disable_history
        return dspy.context(**settings)

    async def _prepare(self, lm: Any) -> None:
        """Have LiteLLM imported, where it is needed, and prices read: off the loop, since the one
        takes seconds and the other a tenth of one."""
        if id(lm) not in self._prepared:
            await asyncio.to_thread(_look_up, lm)
            self._prepared.add(id(lm))


async def _leave(lm: Any, _: None) -> None:
    """Close what an LM that was made here holds open in the running loop."""
    if lm is not None:
        await lm.aclose()


def _said(response: Any) -> tuple[str, Literal["end", "cut-off", "refused"]]:
    from bae.lm.dspy_request import refusal_of, text_of

    refusal = refusal_of(response)
    if refusal or response.finish_reason == "content_filter":
        return refusal or text_of(response), "refused"
    return text_of(response), "cut-off" if response.finish_reason == "length" else "end"


def _usage(responses: list[Any], used: Mapping[str, Mapping[str, Any]]) -> Usage:
    models = tuple(dict.fromkeys(response.model for response in responses))
    if not used:
        # dspy counts nothing for an answer from its cache; that is as it was, counts and all.
        cached = any(response.usage.input_tokens is not None for response in responses)
        return Usage(calls=0 if cached else 1, cost=0.0 if cached else None, models=models)
    total = Usage(models=models)
    for model, counts in used.items():
        details: Mapping[str, Any] = counts.get("prompt_tokens_details") or {}
        usage = Usage(
            input_tokens=counts.get("prompt_tokens") or 0,
            output_tokens=counts.get("completion_tokens") or 0,
            cached_tokens=details.get("cached_tokens") or 0,
        )
        written = details.get("cache_creation_tokens") or 0
        total += replace(usage, cost=cost_of(model, usage, cache_write_tokens=written))
    return replace(total, calls=len(responses))


def _look_up(lm: Any) -> None:
    from bae.lm.dspy_request import can_be_carried, options_of

    cost_of(lm.model, Usage())
    if not can_be_carried(options_of(lm.kwargs)):
        with suppress(ImportError):
            import_module("litellm")
    with suppress(Exception):  # the request itself shows what is wrong
        lm.supports_response_schema  # noqa: B018  dspy asks LiteLLM, where it is to ask through it


def _sends_again(dspy: Any, lm: Any) -> bool:
    return isinstance(lm, dspy.LM) and lm.num_retries > 0


async def _close_litellm(_: None) -> None:
    """Close the connections that LiteLLM, where it was used, holds in the running loop.

    It keeps its clients for the whole process, by the loop they belong to, and has no way of its
    own to close those of one loop.
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
        with suppress(Exception):  # it is no concern of a run that has ended
            closing = close() if close is not None else None
            if isawaitable(closing):
                await closing


_LITELLM = PerLoop[None](lambda: None, _close_litellm)
"""What LiteLLM holds open in a loop. All of a loop's backends share it, so it is closed when the
loop ends, and not when one of them does: `get` it before LiteLLM may be used."""


def _error_for(who: str, error: Exception) -> BaeLMError:
    """The error to raise in place of one that DSPy raised. DSPy has one family of errors, whichever
    of its engines the request went through."""
    dspy = load_dspy(who)
    status: int | None = getattr(error, "status", None)
    match error:
        case dspy.LMNotConfiguredError():
            return BaeLMError(
                f"{who} has no key to ask with, or misses another setting",
                code="bae-lm-unauthorized",
                sent=False,
                cause=error,
                fix="set the environment variable for the key, or give dspy.LM(…, api_key=…)",
            )
        case dspy.LMBillingError():
            refused = _answered(who, error, 402)
            refused.retryable = False  # some report it with the status of a rate limit
            return refused
        case dspy.LMTimeoutError() if status is None:
            return timeout_error(who, None, error)
        case dspy.LMServerError() if _is_made_up(error):
            if any(isinstance(cause, ValueError) for cause in _causes(error)):
                return malformed_error(who, error)
            return connection_error(who, error)
        case dspy.LMUnsupportedFeatureError():
            return BaeLMError(
                f"{who} cannot be asked as it is set: {error.message.partition(_ADVICE)[0]}",
                code="bae-lm-request-refused",
                sent=False,
                cause=error,
                fix="leave out the setting that it names, or give the LM another engine",
            )
        case ImportError():
            return BaeLMError(
                f"{who} needs a package that is not installed: {error}",
                code="bae-lm-extra-missing",
                sent=False,
                cause=error,
                fix=f"pip install {error.name or 'litellm'}",
            )
        case _:
            pass
    for kind, usual in (
        (dspy.LMRateLimitError, 429),
        (dspy.LMTimeoutError, 504),
        (dspy.LMServerError, 500),
        (dspy.LMAuthError, 401),
        (dspy.LMUnsupportedModelError, 404),
        (dspy.LMInvalidRequestError, 400),
    ):
        if isinstance(error, kind):
            return _answered(who, error, usual)
    if isinstance(error, dspy.LMTransportError):
        return connection_error(who, error)
    if isinstance(error, dspy.LMProviderError):
        if status is None or status < 400:
            return malformed_error(who, error)
        return _answered(who, error, status)
    if isinstance(error.__cause__, TimeoutError):
        return timeout_error(who, None, error)
    if isinstance(error.__cause__, ConnectionError):
        return connection_error(who, error)
    return BaeLMError(
        f"{who} could not ask the model",
        cause=error,
        fix="see the cause; it is raised by dspy, or by the LM that was given",
    )


def _answered(who: str, error: Any, status: int) -> BaeLMError:
    headers = _headers(error)
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    said = error.message.partition(_ADVICE)[0]
    return status_error(who, error.status or status, said, headers=headers, cause=error)


def _is_made_up(error: Exception) -> bool:
    """Whether the status is LiteLLM's, which has one where there was no answer too."""
    asked = any(type(cause).__module__.startswith("litellm.") for cause in _causes(error))
    return asked and not _headers(error)


def _headers(error: Exception) -> dict[str, str]:
    """Those of the answer, which an error of LiteLLM has, somewhere underneath."""
    for cause in _causes(error):
        found: Any = getattr(cause, "litellm_response_headers", None)
        if found is not None:
            return {str(name).lower(): str(value) for name, value in dict(found).items()}
    return {}


def _causes(error: Exception) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


_ADVICE = "\n\n"
"""What follows in a message of DSPy's is advice, and not on bae."""
