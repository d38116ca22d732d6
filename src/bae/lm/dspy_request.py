"""Sends one request to a `dspy.LM`, and translates its response or error. If the model supports no
structured output, the system message contains the schema as text."""

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
from bae.lm.provider_schemas import close_objects, for_claude, is_strict, unfit
from bae.prompts.messages import Prompt
from bae.prompts.values import text_of_json

if TYPE_CHECKING:
    from bae.files import Attached
    from bae.prompts.messages import Message

_dspy = load_dspy("DSPyBackend")


async def send(lm: Any, prompt: Prompt, config: Mapping[str, Any]) -> Any:
    """Send a prompt and return DSPy's response. `config` adds settings for this request."""
    try:
        return await _send_prompt(lm, prompt, config)
    except _dspy.LMUnsupportedFeatureError as error:
        failure = _no_documents_error(lm, prompt, error)
        if failure is None:
            raise
        raise failure from error


async def _send_prompt(lm: Any, prompt: Prompt, config: Mapping[str, Any]) -> Any:
    conversation = [_message(message) for message in prompt.conversation]
    if prompt.schema is None:
        return await _send(lm, prompt.system, conversation, config, {})
    try:
        return await _send(
            lm, prompt.system, conversation, config, _channel(lm.model, prompt.schema)
        )
    except _dspy.LMUnsupportedFeatureError:
        in_words = f"{prompt.system}\n\nThe schema: {text_of_json(prompt.schema)}"
        return await _send(lm, in_words, conversation, config, {})


def _no_documents_error(lm: Any, prompt: Prompt, error: Exception) -> BaeLMError | None:
    """Return the error for an API that takes no documents. None if the prompt has no document, or
    only documents in plain text."""
    documents = [part.file for part in prompt.files if isinstance(part.file, Document)]
    refused_document = next((file for file in documents if file.media_type != "text/plain"), None)
    if refused_document is None:
        return None
    return BaeLMError(
        f"DSPyBackend({lm.model!r}) takes no documents by this API: {refused_document.about}",
        code="bae-lm-files",
        sent=False,
        cause=error,
        fix='use an API that takes them, as DSPyBackend(…, model_type="responses") for a model of '
        "OpenAI's; or give the text of the document",
    )


def _message(message: Message) -> dict[str, Any]:
    """Convert a message into the format of chat completions, with its files before its text."""
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
    conversation: list[dict[str, Any]],
    config: Mapping[str, Any],
    channel: Mapping[str, Any],
) -> Any:
    messages = [{"role": "system", "content": system}, *conversation]
    settings = {**lm.kwargs, **config}
    control = {k: settings[k] for k in ("cache", "rollout_id") if settings.get(k) is not None}
    request = _request({**options_of(settings), "model": lm.model, "messages": messages, **channel})
    if request is None:
        return await _send_messages(lm, messages, {**config, **control, **channel})
    if settings.get("prompt_cache") is not None:
        request = replace(request, config=replace(request.config, cache=settings["prompt_cache"]))
    return await lm.acall(request, **control)


async def _send_messages(lm: Any, messages: list[dict[str, Any]], options: dict[str, Any]) -> Any:
    """Send messages without a request object. This supports settings that a request object cannot
    carry, such as cloud credentials and options of LiteLLM.

    Only the history of an LM has the full response, with the reason why the answer ended. So a copy
    of the LM sends the messages and records a history. The copy lacks attributes that the user's
    own LM class sets, so this function is the last resort.
    """
    copy = lm.copy()
    for name in ("n", "num_generations"):  # ask for one answer
        copy.kwargs.pop(name, None)
        options.pop(name, None)
    history: list[dict[str, Any]] = []
    copy.update_history = history.append
    adapters: Any = import_module("dspy.adapters.base")
    with adapters.adapter_message_call(copy, messages), _dspy.context(disable_history=False):
        await copy.acall(messages=messages, **options)
    if not _dspy.settings.disable_history:
        for entry in history:
            lm.update_history(entry)
    raw: Any = history[0]["response"]
    if isinstance(raw, _dspy.lm15.Response):
        return raw
    boundary: Any = import_module("dspy.clients.lm15_boundary")
    minimal_request = _request({"model": lm.model, "messages": messages})
    response: Any = boundary.response_value(raw, lm.model_type, minimal_request)
    if getattr(raw, "cache_hit", False):
        response = replace(response, usage=_dspy.lm15.Usage(input_tokens=0, output_tokens=0))
    return response


def _request(body: Mapping[str, Any]) -> Any:
    """Return a request for DSPy's own engine, or None if the engine does not support a setting."""
    try:
        return _dspy.lm15.request_from_openai_chat(dict(body))
    except _dspy.lm15.UnsupportedFeatureError:
        return None


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an LM that are part of a request."""
    return {k: v for k, v in settings.items() if k not in _NOT_SENT and v is not None}


def needs_litellm(lm: Any) -> bool:
    """Whether an LM has settings that DSPy's own engine does not support."""
    messages = [{"role": "user", "content": "any"}]
    try:
        return _request({**options_of(lm.kwargs), "model": "any", "messages": messages}) is None
    except (TypeError, ValueError):  # the request itself reports the error
        return False


def read_response(response: Any) -> tuple[str, Literal["end", "cut-off", "refused"]]:
    """Return the text of a response, without thoughts, and why the response ended."""
    texts: list[str] = []
    refusal: list[str] = []
    for part in response.message.parts:
        if part.type == "text":
            texts.append(part.text)
        elif part.type == "data":  # JSON that dspy has parsed
            texts.append(text_of_json(part.value))
        elif part.type == "tool_call":
            texts = [text_of_json(part.input)]
            break
        elif part.type == "refusal":
            refusal.append(part.text)
    match response.provider_data:
        # LiteLLM puts the refusal in a place that dspy does not read.
        case {"choices": [{"message": {"provider_specific_fields": {"refusal": str(text)}}}]}:
            refusal = refusal or [text]
        case _:
            pass
    if refusal or response.finish_reason == "content_filter":
        return "\n".join(refusal) or "".join(texts), "refused"
    return "".join(texts), "cut-off" if response.finish_reason == "length" else "end"


def _channel(model: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a request that enforces a schema, in OpenAI's format. If Claude's
    structured output does not support the schema, the part is a tool that Claude must call."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title", "Answer")))[:64]
    json_schema: dict[str, Any] = {"name": name}
    if not model.startswith("anthropic/"):
        json_schema["schema"] = close_objects(schema)
        if is_strict(json_schema["schema"]):
            json_schema["strict"] = True
    elif is_there("anthropic") and unfit(schema) is None:
        json_schema["schema"] = for_claude(schema)
    else:
        about = "Give your answer, the whole of it, to this function."
        function = {"name": name, "description": about, "parameters": dict(schema)}
        return {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": name}},
        }
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def error_for(who: str, error: Exception) -> BaeLMError:
    """Return the error to raise instead of an error from DSPy. DSPy raises the same classes for all
    its engines."""
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
        case _dspy.LMServerError() if _has_invented_status(error):
            if any(isinstance(cause, ValueError) for cause in _causes(error)):
                return malformed_error(who, error)
            return connection_error(who, error)
        case _:
            pass
    if isinstance(error, _dspy.LMError):
        dspy_error: Any = error
        dspy_error.message = str(dspy_error.message).partition(_ADVICE)[0]
        dspy_error.headers = _headers(error)
    # If the user's own LM class raised an error, it is the cause of DSPy's error.
    for candidate in (error, error.__cause__):
        failure = http.error_for(who, candidate, None) if isinstance(candidate, Exception) else None
        if isinstance(failure, BaeLMError):
            if isinstance(error, _dspy.LMBillingError):
                failure.retryable = False  # some providers send the status of a rate limit here
            return failure
    return BaeLMError(
        f"{who} could not ask the model",
        cause=error,
        fix="see the cause; it is raised by dspy, or by the LM that was given",
    )


def _not_sent(message: str, code: str, error: Exception, fix: str) -> BaeLMError:
    return BaeLMError(message, code=code, sent=False, cause=error, fix=fix)


def _has_invented_status(error: Exception) -> bool:
    """Whether LiteLLM invented the status of an error because there was no response."""
    from_litellm = any(type(cause).__module__.startswith("litellm.") for cause in _causes(error))
    return from_litellm and not _headers(error)


def _headers(error: Exception) -> dict[str, str]:
    """Return the headers of the response, from the LiteLLM error among the causes."""
    for cause in _causes(error):
        headers: Any = getattr(cause, "litellm_response_headers", None)
        if headers is not None:
            return {str(name).lower(): str(value) for name, value in dict(headers).items()}
    return {}


def _causes(error: Exception) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


_ADVICE = "\n\n"
"""The separator between a message of DSPy and its advice. The advice does not apply to bae."""

_NOT_SENT = frozenset(
    {
        *("api_base", "api_key", "api_version", "azure_ad_token_provider", "base_url", "cache"),
        *("custom_llm_provider", "extra_headers", "extra_query", "headers", "n", "num_generations"),
        *("organization", "project", "prompt_cache", "rollout_id", "timeout"),
    }
)
"""Settings that are for the connection or for dspy, and not part of a request."""
