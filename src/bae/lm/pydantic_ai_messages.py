"""Conversion between bae's conversations and PydanticAI's messages. `conversation` makes the
messages of a request, and `answer_in` reads the answer from a response."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from bae.exceptions import BaeLMError
from bae.files import File, FileUrl
from bae.lm.http import remove_passwords
from bae.lm.prices import cost_of
from bae.lm.requests import Answer, as_echo, can_be_stored
from bae.prompts.messages import CallPart, FilePart, Message, Prompt, ResultPart, TextPart
from bae.usage import Usage, read_amount, read_count, read_name

if TYPE_CHECKING:
    from pydantic_ai.messages import BaseToolCallPart, ModelMessage, ModelRequest, ModelResponse
    from pydantic_ai.tools import ToolDefinition

    from bae.files import Attached

_DEFAULT_TYPES = {"image": "image/png", "document": "application/pdf"}
"""The media types of URLs without a known suffix, by kind of file. PydanticAI requires a type."""
_NOT_ACCEPTED = "This answer was not taken. Read what follows."


def conversation(prompt: Prompt, echoed: str, answer_tool: str) -> list[ModelMessage]:
    """Return the conversation in PydanticAI's format. If a message has an echo under the name
    `echoed`, the echo is sent back unchanged."""
    messages: list[ModelMessage] = []
    ids: dict[str, str] = {}
    unaccepted: list[str] = []
    for message in prompt.conversation:
        if message.role == "assistant":
            response, unaccepted = _model_response(message, echoed, ids)
            messages.append(response)
        else:
            messages.append(_model_request(message, prompt.system, ids, unaccepted, answer_tool))
            unaccepted = []
    return messages


def has_unsigned_calls(messages: Sequence[ModelMessage]) -> bool:
    """Return whether a message of the model has tool calls but does not start with thinking. While
    thinking is enabled, Claude refuses such messages."""
    from pydantic_ai.messages import ModelResponse

    responses = [message.parts for message in messages if isinstance(message, ModelResponse)]
    kinds = [[part.part_kind for part in parts] for parts in responses]
    return any("tool-call" in kind and kind[0] != "thinking" for kind in kinds)


def tool_definitions(prompt: Prompt) -> list[ToolDefinition]:
    """Return the tools that bae runs, in PydanticAI's format. Their schemas are not strict: bae
    validates the arguments anyway, and providers limit the strict schemas of a request."""
    from pydantic_ai.tools import ToolDefinition

    return [
        ToolDefinition(
            name=tool.name,
            parameters_json_schema=dict(tool.schema),
            description=tool.description or None,
            strict=False,
        )
        for tool in prompt.tools
        if tool.native is None
    ]


def _model_response(
    message: Message, echoed: str, ids: dict[str, str]
) -> tuple[ModelResponse, list[str]]:
    """Return a message of the model in PydanticAI's format, and the ids of its calls to the answer
    tool. If the message's echo is sent, add the provider's ids of its other calls to `ids`."""
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.messages import TextPart as ModelText

    calls = [part for part in message.parts if isinstance(part, CallPart)]
    stored: Any = message.echo
    echo = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
    response = _load_echo(echo) if echo.get("model") == echoed else None
    if response is not None:
        answers: list[str] = echo.get("answers", [])
        call_ids = [p.tool_call_id for p in response.parts if isinstance(p, ToolCallPart)]
        call_ids = [id for id in call_ids if id not in answers]
        if len(call_ids) == len(calls):
            ids.update(zip((call.id for call in calls), call_ids, strict=True))
            return response, answers
    if not calls:
        return ModelResponse([ModelText(message.text)]), []
    parts: list[Any] = []
    for part in message.parts:
        if isinstance(part, CallPart):
            stored = part.arguments
            args = {"invalid_json": stored} if isinstance(stored, str) else dict(stored)
            parts.append(ToolCallPart(part.name, args, part.id))
        elif part.text.strip():
            parts.append(ModelText(part.text))
    return ModelResponse(parts), []


def _load_echo(echo: dict[str, Any]) -> ModelResponse | None:
    """Return the message of an echo. None if another version of PydanticAI wrote the echo in
    another format. The caller then sends the message's text and calls."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    try:
        (loaded,) = ModelMessagesTypeAdapter.validate_python([echo.get("message")])
    except ValidationError:
        return None
    return loaded if isinstance(loaded, ModelResponse) else None


def _model_request(
    message: Message,
    system: str,
    ids: Mapping[str, str],
    unaccepted: Sequence[str],
    answer_tool: str,
) -> ModelRequest:
    """Return a message to the model in PydanticAI's format. Results come before text. `unaccepted`
    are the ids of calls to the answer tool whose answers were invalid."""
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    parts: list[Any] = [
        ToolReturnPart(answer_tool, _NOT_ACCEPTED, id, outcome="failed") for id in unaccepted
    ]
    for part in message.parts:
        if isinstance(part, ResultPart):
            outcome = "failed" if part.is_error else "success"
            id = ids.get(part.id, part.id)
            result = [part.result, *_contents(part.files)] if part.files else part.result
            parts.append(ToolReturnPart(part.name, result, id, outcome=outcome))
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    files = [part for part in message.parts if isinstance(part, FilePart)]
    if files:
        parts.append(UserPromptPart([*_contents(files), "\n\n".join(texts)]))
    elif not parts:
        parts = [UserPromptPart(message.text)]
    elif any(text.strip() for text in texts):
        parts.append(UserPromptPart("\n\n".join(texts)))
    return ModelRequest(parts, instructions=system or None)


def _contents(parts: Sequence[FilePart]) -> list[Any]:
    """Return files in PydanticAI's format. If there are several files, a label comes before each
    file."""
    contents: list[Any] = []
    for part in parts:
        if len(parts) > 1:
            contents.append(f"{part.label}:")
        contents.append(_content(part.file))
    return contents


def _content(file: Attached) -> Any:
    from pydantic_ai.messages import BinaryContent
    from pydantic_ai.messages import DocumentUrl as PydanticAIDocumentUrl
    from pydantic_ai.messages import ImageUrl as PydanticAIImageUrl

    if isinstance(file, FileUrl):
        kind = PydanticAIImageUrl if file.kind == "image" else PydanticAIDocumentUrl
        content = kind(url=file.url)
        try:
            _ = content.media_type
        except ValueError:  # the URL has no suffix of a known type
            content = kind(url=file.url, media_type=_DEFAULT_TYPES[file.kind])
        content.force_download = cast(Any, _FetchRefusal(file))
        return content
    if not isinstance(file, File):
        raise TypeError(f"{file!r} is no file")
    return BinaryContent(file.data, media_type=file.media_type, identifier=file.hash[7:15])


class _FetchRefusal:
    """A value for `force_download` that keeps PydanticAI from fetching a URL in this process.

    If a model's API accepts no URLs, PydanticAI would fetch the URL. Before that, PydanticAI
    compares `force_download` with another value, and the comparison raises an error here.
    """

    def __init__(self, file: FileUrl) -> None:
        self._file = file

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        file = self._file
        class_name = "Image" if file.kind == "image" else "Document"
        raise BaeLMError(
            f"{file.placeholder}: this model's API accepts no URL of such a file, and bae does not"
            " fetch files",
            code="bae-lm-files",
            sent=False,
            fix=f"fetch it with your own code, and give {class_name}.from_bytes(data)",
        )

    __hash__ = object.__hash__


# --- Responses --------------------------------------------------------------------------------


def answer_in(
    response: ModelResponse, who: str, answer_tool: str, echoed: str | None, *, has_tools: bool
) -> Answer:
    """Return the answer in a response. If the request `has_tools`, the answer includes the calls to
    tools that bae runs. If `echoed` is a name, the answer includes an echo under that name."""
    from pydantic_ai.messages import TextPart as ModelText
    from pydantic_ai.messages import ToolCallPart

    text = "".join(part.content for part in response.parts if isinstance(part, ModelText))
    call_parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
    answers = [part for part in call_parts if part.tool_name == answer_tool or not has_tools]
    answer = _as_text(answers[0].args) if answers else text
    usage = usage_of(response)
    match response.finish_reason:
        case "length":
            return Answer(answer, usage, "cut-off")
        case "content_filter":
            details = response.provider_details or {}
            return Answer(answer or str(details.get("refusal") or ""), usage, "refused")
        case "error":
            raise BaeLMError(
                f"{who} ended its answer with an error",
                code="bae-lm-unavailable",
                retryable=True,
                usage=usage,
                fix="ask again later; bae.lm.Retry(…) does so by itself",
            )
        case _:
            pass
    if not has_tools:
        return Answer(answer, usage)
    calls = tuple(
        CallPart(part.tool_call_id, part.tool_name, _arguments(part))
        for part in call_parts
        if part not in answers
    )
    ran = _find_provider_calls(response)
    if calls:
        answer = text
    elif ran and not answers:
        answer = _last_text(response)
    echo = None
    are_objects = not any(isinstance(call.arguments, str) for call in calls)
    if echoed is not None and are_objects and (call_parts or text.strip()):
        echo = _make_echo(response, echoed, [part.tool_call_id for part in answers])
    return Answer(answer, usage, calls=calls, ran=ran, echo=echo)


def _as_text(arguments: Any) -> str:
    """Return arguments as JSON text. If PydanticAI has the model's own text, return that text."""
    return arguments if isinstance(arguments, str) and arguments else json.dumps(arguments or {})


def _arguments(part: BaseToolCallPart[Any]) -> dict[str, Any] | str:
    """Return the arguments of a call. If they are no JSON object that can be stored, return their
    text."""
    arguments: Any = part.args or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return str(part.args)
    is_storable = isinstance(arguments, dict) and can_be_stored(arguments)
    return cast("dict[str, Any]", arguments) if is_storable else str(part.args)


def _last_text(response: ModelResponse) -> str:
    """Return the text after the last tool call that the provider has run."""
    from pydantic_ai.messages import NativeToolReturnPart
    from pydantic_ai.messages import TextPart as ModelText

    texts: list[str] = []
    for part in response.parts:
        if isinstance(part, ModelText):
            texts.append(part.content)
        elif isinstance(part, NativeToolReturnPart):
            texts.clear()
    return "".join(texts)


def _find_provider_calls(response: ModelResponse) -> tuple[tuple[CallPart, ResultPart], ...]:
    """Return the calls that the provider has run, each with its result."""
    from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart

    results = {
        part.tool_call_id: part for part in response.parts if isinstance(part, NativeToolReturnPart)
    }
    ran: list[tuple[CallPart, ResultPart]] = []
    for part in response.parts:
        if isinstance(part, NativeToolCallPart) and part.tool_call_id in results:
            id, name, end = part.tool_call_id, part.tool_name, results[part.tool_call_id]
            result = ResultPart(id, name, end.model_response_str(), end.outcome != "success")
            ran.append((CallPart(id, name, _arguments(part)), result))
    return tuple(ran)


def _make_echo(response: ModelResponse, echoed: str, answers: list[str]) -> Any:
    """Return the message as JSON to store. The JSON lacks files, because PydanticAI would read them
    back as other objects. It also lacks a password in the provider's address."""
    from pydantic_ai.messages import FilePart, ModelMessagesTypeAdapter
    from pydantic_ai.usage import RequestUsage

    parts = [part for part in response.parts if not isinstance(part, FilePart)]
    url = remove_passwords(response.provider_url or "") or None
    plain = replace(response, parts=parts, usage=RequestUsage(), provider_url=url)
    (message,) = ModelMessagesTypeAdapter.dump_python([plain], mode="json")
    echo = {"model": echoed, "message": message}
    return as_echo({**echo, "answers": answers} if answers else echo)


def usage_of(response: ModelResponse) -> Usage:
    """Return the usage of a request. The cost comes from the provider or from the price list, and
    is None if neither has a cost."""
    used = response.usage
    model = read_name(response.model_name)
    usage = Usage(
        calls=1,
        input_tokens=read_count(used.input_tokens),
        output_tokens=read_count(used.output_tokens),
        cached_tokens=read_count(used.cache_read_tokens),
        cost=read_amount(used.cost),
        models=(model,) if model else (),
    )
    if usage.cost is not None or used.unmeasured_requests:
        return usage
    written = read_count(used.cache_write_tokens)
    cost = cost_of(model, usage, response.provider_name, cache_write_tokens=written)
    return replace(usage, cost=cost)
