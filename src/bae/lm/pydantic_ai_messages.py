"""Conversion between bae's conversations and PydanticAI's messages, with tool calls and results,
and the answer in a response."""

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

_TYPES_OF_URLS = {"image": "image/png", "document": "application/pdf"}
"""The media type to assume for a URL without a known suffix. PydanticAI requires a type."""
_NOT_TAKEN = "This answer was not taken. Read what follows."


def conversation(prompt: Prompt, echoed: str, answer_tool: str) -> list[ModelMessage]:
    """The conversation in the format of PydanticAI. Messages with the echo `echoed` are sent back
    unchanged."""
    messages: list[ModelMessage] = []
    ids: dict[str, str] = {}
    untaken: list[str] = []
    for message in prompt.conversation:
        if message.role == "assistant":
            response, untaken = _model_response(message, echoed, ids)
            messages.append(response)
        else:
            messages.append(_model_request(message, prompt.system, ids, untaken, answer_tool))
            untaken = []
    return messages


def has_unsigned_calls(messages: Sequence[ModelMessage]) -> bool:
    """Whether a message of the model has tool calls without thinking before them. Claude refuses
    that while thinking is enabled."""
    from pydantic_ai.messages import ModelResponse

    responses = [message.parts for message in messages if isinstance(message, ModelResponse)]
    kinds = [[part.part_kind for part in parts] for parts in responses]
    return any("tool-call" in kind and kind[0] != "thinking" for kind in kinds)


def tool_definitions(prompt: Prompt) -> list[ToolDefinition]:
    """The tools that bae runs. They are not strict: bae validates the arguments anyway, and
    providers limit the number of strict schemas in a request."""
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
    """A message of the model, and the ids of its calls of the answer tool. Adds the provider's ids
    of its other calls to `ids`."""
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.messages import TextPart as ModelText

    calls = [part for part in message.parts if isinstance(part, CallPart)]
    given: Any = message.echo
    echo = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
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
            given = part.arguments
            args = {"invalid_json": given} if isinstance(given, str) else dict(given)
            parts.append(ToolCallPart(part.name, args, part.id))
        elif part.text.strip():
            parts.append(ModelText(part.text))
    return ModelResponse(parts), []


def _load_echo(echo: dict[str, Any]) -> ModelResponse | None:
    """The message of an echo. None if another version of PydanticAI wrote it in another format;
    then the message is sent from its text and its calls."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse

    try:
        (loaded,) = ModelMessagesTypeAdapter.validate_python([echo.get("message")])
    except ValidationError:
        return None
    return loaded if isinstance(loaded, ModelResponse) else None


def _model_request(
    message: Message, system: str, ids: Mapping[str, str], untaken: Sequence[str], answer_tool: str
) -> ModelRequest:
    """A message to the model: results first, then text."""
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    parts: list[Any] = [
        ToolReturnPart(answer_tool, _NOT_TAKEN, id, outcome="failed") for id in untaken
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
    """Files in the format of PydanticAI. If there are several, each follows its label."""
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
        made = kind(url=file.url)
        try:
            _ = made.media_type
        except ValueError:  # the URL has no suffix of a known type
            made = kind(url=file.url, media_type=_TYPES_OF_URLS[file.kind])
        made.force_download = cast(Any, _NeverHere(file))
        return made
    if not isinstance(file, File):
        raise TypeError(f"{file!r} is no file")
    return BinaryContent(file.data, media_type=file.media_type, identifier=file.hash[7:15])


class _NeverHere:
    """A value for `force_download` that forbids PydanticAI to fetch a URL in this process, which it
    would do for models whose API accepts no URLs. PydanticAI compares the value first, which raises
    the error here."""

    def __init__(self, file: FileUrl) -> None:
        self._file = file

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        file = self._file
        own = "Image" if file.kind == "image" else "Document"
        raise BaeLMError(
            f"{file.placeholder}: the API of this model takes no address of such a file, and bae"
            " fetches none",
            code="bae-lm-files",
            sent=False,
            fix=f"fetch it with your own code, and give {own}.from_bytes(data)",
        )

    __hash__ = object.__hash__


# --- what comes back --------------------------------------------------------------------------


def answer_in(
    response: ModelResponse, who: str, answer_tool: str, echoed: str | None, *, has_tools: bool
) -> Answer:
    """The answer in a response. If the request `has_tools`, the answer includes the calls of tools
    that bae runs. With `echoed`, it includes an echo of the message under that name."""
    from pydantic_ai.messages import TextPart as ModelText
    from pydantic_ai.messages import ToolCallPart

    text = "".join(part.content for part in response.parts if isinstance(part, ModelText))
    called = [part for part in response.parts if isinstance(part, ToolCallPart)]
    answers = [part for part in called if part.tool_name == answer_tool or not has_tools]
    given = _as_text(answers[0].args) if answers else text
    usage = usage_of(response)
    match response.finish_reason:
        case "length":
            return Answer(given, usage, "cut-off")
        case "content_filter":
            details = response.provider_details or {}
            return Answer(given or str(details.get("refusal") or ""), usage, "refused")
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
        return Answer(given, usage)
    calls = tuple(
        CallPart(part.tool_call_id, part.tool_name, _arguments(part))
        for part in called
        if part not in answers
    )
    ran = _ran(response)
    if calls:
        given = text
    elif ran and not answers:
        given = _last_text(response)
    echo = None
    are_objects = not any(isinstance(call.arguments, str) for call in calls)
    if echoed is not None and are_objects and (called or text.strip()):
        echo = _echo(response, echoed, [part.tool_call_id for part in answers])
    return Answer(given, usage, calls=calls, ran=ran, echo=echo)


def _as_text(given: Any) -> str:
    """The arguments as JSON text, in the words of the model if they are known."""
    return given if isinstance(given, str) and given else json.dumps(given or {})


def _arguments(part: BaseToolCallPart[Any]) -> dict[str, Any] | str:
    """The arguments of a call, or their text if that is no JSON object."""
    given: Any = part.args or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return str(part.args)
    is_sent_back = isinstance(given, dict) and can_be_stored(given)
    return cast("dict[str, Any]", given) if is_sent_back else str(part.args)


def _last_text(response: ModelResponse) -> str:
    """The text after the last tool that the provider has run."""
    from pydantic_ai.messages import NativeToolReturnPart
    from pydantic_ai.messages import TextPart as ModelText

    texts: list[str] = []
    for part in response.parts:
        if isinstance(part, ModelText):
            texts.append(part.content)
        elif isinstance(part, NativeToolReturnPart):
            texts.clear()
    return "".join(texts)


def _ran(response: ModelResponse) -> tuple[tuple[CallPart, ResultPart], ...]:
    """The calls that the provider has run, with their results."""
    from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart

    results = {
        part.tool_call_id: part for part in response.parts if isinstance(part, NativeToolReturnPart)
    }
    made: list[tuple[CallPart, ResultPart]] = []
    for part in response.parts:
        if isinstance(part, NativeToolCallPart) and part.tool_call_id in results:
            id, name, end = part.tool_call_id, part.tool_name, results[part.tool_call_id]
            result = ResultPart(id, name, end.model_response_str(), end.outcome != "success")
            made.append((CallPart(id, name, _arguments(part)), result))
    return tuple(made)


def _echo(response: ModelResponse, echoed: str, answers: list[str]) -> Any:
    """The message as JSON to store. It leaves out files, which PydanticAI reads back as other
    objects, and a password in the address of the provider."""
    from pydantic_ai.messages import FilePart, ModelMessagesTypeAdapter
    from pydantic_ai.usage import RequestUsage

    parts = [part for part in response.parts if not isinstance(part, FilePart)]
    asked_at = remove_passwords(response.provider_url or "") or None
    plain = replace(response, parts=parts, usage=RequestUsage(), provider_url=asked_at)
    (message,) = ModelMessagesTypeAdapter.dump_python([plain], mode="json")
    echo = {"model": echoed, "message": message}
    return as_echo({**echo, "answers": answers} if answers else echo)


def usage_of(response: ModelResponse) -> Usage:
    """The usage of a request, with its cost if it is known."""
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
