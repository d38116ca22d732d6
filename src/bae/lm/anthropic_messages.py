"""Converts a conversation, with its tools, tool calls and results, into the format of Claude's
API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from bae.files import Document, File, FileUrl
from bae.prompts.messages import CallPart, FilePart, Message, Prompt, ResultPart, TextPart

if TYPE_CHECKING:
    from bae.files import Attached
    from bae.prompts.messages import ToolSpec

ContentBlock = dict[str, Any]

NATIVE_TOOLS: Final[Mapping[str, str]] = {
    "web_search": "web_search_20250305",
    "web_fetch": "web_fetch_20250910",
    "code_execution": "code_execution_20250825",
}
"""The tools that Anthropic runs, with the versioned type of each in the API. Every model that has
the tool accepts this version. For a newer version write
`Native("web_search", type="web_search_20260318")`."""

CACHED: Final[ContentBlock] = {"type": "ephemeral"}
CACHE_LOOKBACK: Final = 18
"""How many blocks back the API finds a cached prefix: the documented 20, less a margin."""
_NOT_ACCEPTED: Final = "This answer was not taken. Read what follows."


def tool_params(specs: Sequence[ToolSpec]) -> list[ContentBlock]:
    """Convert tools into the format of the API. The tools are not strict, because the API limits
    the strict schemas of all tools of a request together. bae validates the arguments anyway."""
    params: list[ContentBlock] = []
    for spec in specs:
        if spec.native is not None:
            kind = NATIVE_TOOLS.get(spec.name, spec.name)
            params.append({"type": kind, "name": spec.name, **spec.native})
            continue
        about = {"description": spec.description} if spec.description else {}
        params.append({"name": spec.name, **about, "input_schema": dict(spec.schema)})
    return params


def message_params(prompt: Prompt, model: str, *, cache: bool) -> list[ContentBlock]:
    """Convert the conversation into the format of the API. Messages that this model wrote are sent
    back unchanged. With `cache`, the messages to cache are marked."""
    messages: list[ContentBlock] = []
    ids: dict[str, str] = {}
    untaken: list[str] = []
    for message in prompt.conversation:
        if message.role == "assistant":
            content, untaken = _assistant_content(message, model, ids)
        else:
            content, untaken = _user_content(message, ids, untaken), []
        messages.append({"role": message.role, "content": content})
    if cache:
        _mark_cached(prompt, messages)
    return messages


def has_unsigned_calls(messages: Sequence[ContentBlock]) -> bool:
    """Whether a message of the model has tool calls without thinking before them. The API refuses
    such a message while thinking is enabled."""
    for message in messages:
        content: str | list[ContentBlock] = message["content"]
        if message["role"] == "assistant" and not isinstance(content, str):
            kinds = [str(block["type"]) for block in content]
            if "tool_use" in kinds and not kinds[0].endswith("thinking"):
                return True
    return False


def container_in(prompt: Prompt) -> str | None:
    """Return the id of the container in which the provider has run code in this conversation. In
    the same container, the code finds its files again. None if there is no container, or if it has
    expired."""
    for message in reversed(prompt.conversation):
        echo: Any = message.echo
        container: Any = (
            cast("ContentBlock", echo).get("container") if isinstance(echo, dict) else None
        )
        if container:
            is_open = datetime.fromisoformat(container["expires_at"]) > datetime.now(UTC)
            return str(container["id"]) if is_open else None
    return None


def _assistant_content(
    message: Message, model: str, ids: dict[str, str]
) -> tuple[str | list[ContentBlock], list[str]]:
    """Convert a message of the model. Returns the content, and the ids of the calls of the answer
    tool, which the model calls to give its answer as JSON. For each other call, `ids` gets the
    provider's id under bae's id."""
    calls = [part for part in message.parts if isinstance(part, CallPart)]
    echo = message.echo
    if isinstance(echo, dict):
        stored = cast("dict[str, Any]", echo)
        content: list[ContentBlock] = stored.get("content", [])
        answers: list[str] = stored.get("answers", [])
        call_ids = [str(block["id"]) for block in content if block["type"] == "tool_use"]
        call_ids = [id for id in call_ids if id not in answers]
        if stored.get("model") == model and len(call_ids) == len(calls):
            ids.update(zip((call.id for call in calls), call_ids, strict=True))
            return content, answers
    if not calls:
        return message.text, []
    blocks: list[ContentBlock] = []
    for part in message.parts:
        if isinstance(part, CallPart):
            arguments = as_input(part.arguments)
            blocks.append(
                {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
            )
        elif part.text.strip():
            blocks.append({"type": "text", "text": part.text})
    return blocks, []


def _user_content(
    message: Message, ids: Mapping[str, str], untaken: Sequence[str]
) -> str | list[ContentBlock]:
    """Convert a message that is sent to the model. Results come first, then files, then text.
    `untaken` are the ids of the answer tool's calls that bae did not accept."""
    if untaken or any(part.kind in ("result", "file") for part in message.parts):
        return _blocks(message, ids, untaken)
    return message.text


def _blocks(message: Message, ids: Mapping[str, str], untaken: Sequence[str]) -> list[ContentBlock]:
    results: list[ContentBlock] = [
        {"type": "tool_result", "tool_use_id": id, "content": _NOT_ACCEPTED, "is_error": True}
        for id in untaken
    ]
    files: list[FilePart] = []
    texts: list[ContentBlock] = []
    for part in message.parts:
        if isinstance(part, ResultPart):
            content: str | list[ContentBlock] = part.result
            if part.files:
                content = [{"type": "text", "text": part.result}, *file_blocks(part.files)]
            result = {
                "type": "tool_result",
                "tool_use_id": ids.get(part.id, part.id),
                "content": content,
            }
            results.append({**result, "is_error": True} if part.is_error else result)
        elif isinstance(part, FilePart):
            files.append(part)
        elif isinstance(part, TextPart) and part.text.strip():
            texts.append({"type": "text", "text": part.text})
    return [*results, *file_blocks(files), *texts]


def file_blocks(parts: Sequence[FilePart]) -> list[ContentBlock]:
    """Convert files into the format of the API. If there are several files, a label precedes
    each."""
    blocks: list[ContentBlock] = []
    for part in parts:
        if len(parts) > 1:
            blocks.append({"type": "text", "text": f"{part.label}:"})
        blocks.append(_file_block(part.file))
    return blocks


def _file_block(file: Attached) -> ContentBlock:
    if isinstance(file, FileUrl):
        return {"type": file.kind, "source": {"type": "url", "url": file.url}}
    if not isinstance(file, File):
        raise TypeError(f"{file!r} is no file")
    title = {"title": file.name} if file.name and isinstance(file, Document) else {}
    if isinstance(file, Document) and file.media_type == "text/plain":
        source = {"type": "text", "media_type": "text/plain", "data": file.text}
    else:
        source = {"type": "base64", "media_type": file.media_type, "data": file.base64}
    return {"type": file.kind, "source": source, **title}


def as_input(arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return the arguments of a call as an object, because the API accepts only objects."""
    return {"invalid_json": arguments} if isinstance(arguments, str) else dict(arguments)


def _mark_cached(prompt: Prompt, messages: list[ContentBlock]) -> None:
    """Mark which messages the API caches, besides the system text.

    The last example or earlier turn is marked. With tools, the API itself marks the end of each
    request's conversation. After a round of many calls, the end of the previous request is too far
    back for the API to find, so the message before the round is marked too.
    """
    earlier = sum(message.kind in ("example", "turn") for message in prompt.conversation)
    if earlier:
        _mark(messages[earlier - 1])  # later prompts begin with the same messages
    added = 0
    for index in range(len(messages) - 1, -1, -1):
        if prompt.tools and messages[index]["role"] == "user" and added:
            if added > CACHE_LOOKBACK:
                _mark(messages[index])
            return
        content: str | list[ContentBlock] = messages[index]["content"]
        added += 1 if isinstance(content, str) else len(content)


def _mark(message: ContentBlock) -> None:
    content: str | list[ContentBlock] = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    message["content"] = [*blocks[:-1], {**blocks[-1], "cache_control": CACHED}]
