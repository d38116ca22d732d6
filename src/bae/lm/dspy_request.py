"""One request to an LM of DSPy's, with the schema of the answer in the provider's channel for
structured output, or in words; what its response says, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from bae.exceptions import BaeLMError, text_of
from bae.files import Document, File, FileUrl, Image
from bae.lm import http
from bae.lm.extras import is_there, load_dspy
from bae.lm.http import connection_error, malformed_error
from bae.lm.provider_schemas import closed, for_claude, is_strict, unfit
from bae.prompts.messages import Prompt
from bae.prompts.values import text_of_json

if TYPE_CHECKING:
    from bae.files import Attached
    from bae.prompts.messages import Message

_dspy = load_dspy("DSPyBackend")


async def send(lm: Any, prompt: Prompt, config: Mapping[str, Any]) -> Any:
    """DSPy's response to a prompt. `config` is for this request alone, beside what the LM is set
    to. A model without a channel for schemas is told in words."""
    try:
        return await _send_prompt(lm, prompt, config)
    except _dspy.LMUnsupportedFeatureError as error:
        refused = _without_documents(lm, prompt, error)
        if refused is None:
            raise
        raise refused from error


async def _send_prompt(lm: Any, prompt: Prompt, config: Mapping[str, Any]) -> Any:
    asked = [_message(each) for each in prompt.conversation]
    if prompt.schema is None:
        return await _send(lm, prompt.system, asked, config, {})
    try:
        return await _send(lm, prompt.system, asked, config, _channel(lm.model, prompt.schema))
    except _dspy.LMUnsupportedFeatureError:
        in_words = f"{prompt.system}\n\nThe schema: {text_of_json(prompt.schema)}"
        return await _send(lm, in_words, asked, config, {})


def _without_documents(lm: Any, prompt: Prompt, error: Exception) -> BaeLMError | None:
    """The error of an API that takes no documents; None where the prompt has none."""
    sent = [part.file for part in prompt.files if isinstance(part.file, Document)]
    named = next((file for file in sent if file.media_type != "text/plain"), None)
    if named is None:
        return None
    return BaeLMError(
        f"DSPyBackend({lm.model!r}) takes no documents by this API: {named.about}",
        code="bae-lm-files",
        sent=False,
        cause=error,
        fix='use an API that takes them, as DSPyBackend(…, model_type="responses") for a model of '
        "OpenAI's; or give the text of the document",
    )


def _message(message: Message) -> dict[str, Any]:
    """A message in the form of chat completions, with its files before its text."""
    if not message.files:
        return {"role": message.role, "content": message.text}
    content: list[dict[str, Any]] = []
    for part in message.files:
        if len(message.files) > 1:
            content.append({"type": "text", "text": f"{part.label}:"})
        content.append(_file(part.file))
    return {"role": message.role, "content": [*content, {"type": "text", "text": message.text}]}


def _file(file: Attached) -> dict[str, Any]:
    if isinstance(file, FileUrl):
        if file.kind == "image":
            return {"type": "image_url", "image_url": {"url": file.url}}
        raise BaeLMError(
            f"{file.placeholder}: DSPy sends no address of a document",
            code="bae-lm-files",
            sent=False,
            fix="read it in a Dep, and give a Document",
        )
    if not isinstance(file, File):
        raise TypeError(f"{file!r} is no file")
    if isinstance(file, Image):
        return {"type": "image_url", "image_url": {"url": file.data_url}}
    if isinstance(file, Document) and file.media_type == "text/plain":
        return {"type": "text", "text": file.text}
    return {"type": "file", "file": {"file_data": file.data_url}}


async def _send(
    lm: Any,
    system: str,
    asked: list[dict[str, Any]],
    config: Mapping[str, Any],
    channel: Mapping[str, Any],
) -> Any:
    messages = [{"role": "system", "content": system}, *asked]
    given = {**lm.kwargs, **config}
    control = {k: given[k] for k in ("cache", "rollout_id") if given.get(k) is not None}
    request = _request({**options_of(given), "model": lm.model, "messages": messages, **channel})
    if request is None:
        return await _send_messages(lm, messages, {**config, **control, **channel})
    if given.get("prompt_cache") is not None:
        request = replace(request, config=replace(request.config, cache=given["prompt_cache"]))
    return await lm.acall(request, **control)


async def _send_messages(lm: Any, messages: list[dict[str, Any]], options: dict[str, Any]) -> Any:
    """Ask by messages, for settings that no request carries: credentials of a cloud, options of a
    server, whatever LiteLLM knows. What is answered besides the text, such as why it ended, is only
    in the history, so a copy of the LM keeps one. What an LM of the user's own notes on itself is
    lost with the copy, so this is for LMs that cannot be asked otherwise."""
    copy = lm.copy()
    for name in ("n", "num_generations"):  # one answer is asked for
        copy.kwargs.pop(name, None)
        options.pop(name, None)
    kept: list[dict[str, Any]] = []
    copy.update_history = kept.append
    adapters: Any = import_module("dspy.adapters.base")
    with adapters.adapter_message_call(copy, messages), _dspy.context(disable_history=False):
        await copy.acall(messages=messages, **options)
    if not _dspy.settings.disable_history:
        for entry in kept:
            lm.update_history(entry)
    raw: Any = kept[0]["response"]
    if isinstance(raw, _dspy.lm15.Response):
        return raw
    boundary: Any = import_module("dspy.clients.lm15_boundary")
    bare = _request({"model": lm.model, "messages": messages})
    response: Any = boundary.response_value(raw, lm.model_type, bare)
    if getattr(raw, "cache_hit", False):
        response = replace(response, usage=_dspy.lm15.Usage(input_tokens=0, output_tokens=0))
    return response


def _request(body: Mapping[str, Any]) -> Any:
    """A request of DSPy's own engine, or None where it cannot carry a setting."""
    try:
        return _dspy.lm15.request_from_openai_chat(dict(body))
    except _dspy.lm15.UnsupportedFeatureError:
        return None


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an LM's settings that are part of a request."""
    return {k: v for k, v in settings.items() if k not in _NOT_SENT and v is not None}


def needs_litellm(lm: Any) -> bool:
    """Whether an LM has settings that DSPy's own engine cannot carry."""
    asked = [{"role": "user", "content": "any"}]
    try:
        return _request({**options_of(lm.kwargs), "model": "any", "messages": asked}) is None
    except (TypeError, ValueError):  # the question itself will show what is wrong
        return False


def read_response(response: Any) -> tuple[str, Literal["end", "cut-off", "refused"]]:
    """What a response says, without thoughts, and why it ended."""
    said: list[str] = []
    refusal: list[str] = []
    for part in response.message.parts:
        if part.type == "text":
            said.append(part.text)
        elif part.type == "data":  # JSON that was parsed on the way
            said.append(text_of_json(part.value))
        elif part.type == "tool_call":
            said = [text_of_json(part.input)]
            break
        elif part.type == "refusal":
            refusal.append(part.text)
    match response.provider_data:
        # LiteLLM puts it where dspy does not look.
        case {"choices": [{"message": {"provider_specific_fields": {"refusal": str(text)}}}]}:
            refusal = refusal or [text]
        case _:
            pass
    if refusal or response.finish_reason == "content_filter":
        return "\n".join(refusal) or "".join(said), "refused"
    return "".join(said), "cut-off" if response.finish_reason == "length" else "end"


def _channel(model: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request, in OpenAI's words, that holds the answer to a schema. A schema that
    Claude's structured output refuses goes by a tool, which Claude is made to use."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title", "Answer")))[:64]
    sent: dict[str, Any] = {"name": name}
    if not model.startswith("anthropic/"):
        sent["schema"] = closed(schema)
        if is_strict(sent["schema"]):
            sent["strict"] = True
    elif is_there("anthropic") and unfit(schema) is None:
        sent["schema"] = for_claude(schema)
    else:
        about = "Give your answer, the whole of it, to this function."
        function = {"name": name, "description": about, "parameters": dict(schema)}
        return {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": name}},
        }
    return {"response_format": {"type": "json_schema", "json_schema": sent}}


def error_for(who: str, error: Exception) -> BaeLMError:
    """The error to raise in place of one that DSPy raised. DSPy has one family of errors, whichever
    of its engines the request went through."""
    match error:
        case _dspy.LMNotConfiguredError():
            return _not_sent(
                f"{who} has no key to ask with, or misses another setting",
                "bae-lm-unauthorized",
                error,
                "set the environment variable for the key, or give dspy.LM(…, api_key=…)",
            )
        case _dspy.LMUnsupportedFeatureError():
            return _not_sent(
                f"{who} cannot be asked as it is set: {error.message.partition(_ADVICE)[0]}",
                "bae-lm-request-refused",
                error,
                "leave out the setting that it names, or give the LM another engine",
            )
        case ImportError():
            return _not_sent(
                f"{who} needs a package that is not installed: {text_of(error)}",
                "bae-lm-extra-missing",
                error,
                f"pip install {error.name or 'litellm'}",
            )
        case _dspy.LMServerError() if _is_made_up(error):
            if any(isinstance(cause, ValueError) for cause in _causes(error)):
                return malformed_error(who, error)
            return connection_error(who, error)
        case _:
            pass
    if isinstance(error, _dspy.LMError):
        raised: Any = error
        raised.message = str(raised.message).partition(_ADVICE)[0]
        raised.headers = _headers(error)
    # What an LM of the user's own has raised is the cause of an error of DSPy's.
    for each in (error, error.__cause__):
        found = http.error_for(who, each, None) if isinstance(each, Exception) else None
        if isinstance(found, BaeLMError):
            if isinstance(error, _dspy.LMBillingError):
                found.retryable = False  # some report it with the status of a rate limit
            return found
    return BaeLMError(
        f"{who} could not ask the model",
        cause=error,
        fix="see the cause; it is raised by dspy, or by the LM that was given",
    )


def _not_sent(message: str, code: str, error: Exception, fix: str) -> BaeLMError:
    return BaeLMError(message, code=code, sent=False, cause=error, fix=fix)


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

_NOT_SENT = frozenset(
    {
        *("api_base", "api_key", "api_version", "azure_ad_token_provider", "base_url", "cache"),
        *("custom_llm_provider", "extra_headers", "extra_query", "headers", "n", "num_generations"),
        *("organization", "project", "prompt_cache", "rollout_id", "timeout"),
    }
)
"""Settings of an LM that are for the connection, or for dspy, and no part of a request."""
