"""Conversion of a server's tools and results for models: names and schemas that providers accept,
and texts of a bounded length. All input is untrusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, cast

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
)
from mcp_types import Tool as ServerTool

from bae.exceptions import ToolServerError
from bae.files import Image
from bae.mcp.servers import Http, ServerOptions, Stdio
from bae.prompts.schemas import Schema, write_out
from bae.tools import LONGEST_NAME, TOOL_NAME, ToolError
from bae.unicode import readable, whole_json

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

_PAGES: Final = 50
"""How many pages of the list of tools are read at most."""
_LISTED: Final = 1_000
"""The most tools a server may list, including tools that `only` leaves out."""
_DESCRIPTION: Final = 4_000
"""The longest description of a tool, in characters."""
_PARAMETER: Final = 1_000
"""The longest description inside a schema, in characters."""
_SCHEMAS: Final = 2_000
"""How many subschemas a tool's schema may have. A tenth of this number may be definitions."""
_SCHEMA_SIZE: Final = 100_000
"""The largest schema of a tool, in characters."""
_NOTHING: Final = "done: the tool returned nothing"


class OfferedTool:
    """A tool of a server, as a model sees it. `own` is the server's name for it."""

    def __init__(self, own: str, name: str, description: str, schema: Schema) -> None:
        self.own, self.name, self.description, self.schema = own, name, description, schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfferedTool) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


async def list_tools(
    session: ClientSession, endpoint: Stdio | Http, options: ServerOptions
) -> dict[str, OfferedTool]:
    """List the tools of a server that are offered to models, by the names that models see."""
    listed: dict[str, ServerTool] = {}
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            if tool.name in listed:
                raise _unusable(
                    endpoint,
                    f"lists two tools named {_shorten(tool.name)}",
                    "report it to its makers",
                )
            listed[tool.name] = tool
        if len(listed) > _LISTED:
            raise _unusable(endpoint, f"lists more than {_LISTED:,} tools", "use another server")
        cursor = page.next_cursor
        if not cursor:
            break
    else:
        raise _unusable(
            endpoint, f"lists its tools on more than {_PAGES} pages", "report it to its makers"
        )
    return _offer(listed, endpoint, options)


def _offer(
    listed: Mapping[str, ServerTool], endpoint: Stdio | Http, options: ServerOptions
) -> dict[str, OfferedTool]:
    wanted = list(listed) if options.only is None else list(options.only)
    unknown = [name for name in wanted if name not in listed]
    if not options.is_only_strict:
        wanted = [name for name in wanted if name in listed]
    elif unknown:
        known = ", ".join(map(_shorten, listed)) or "none"
        raise _unusable(endpoint, f"has no tool {', '.join(unknown)}", f"it has: {known[:2_000]}")
    if len(wanted) > options.max_tools:
        raise _unusable(
            endpoint,
            f"offers {len(wanted):,} tools, and the limit is {options.max_tools:,}",
            "choose the tools that the model needs with only=[…], or raise max_tools",
        )
    prefix = endpoint.prefix if options.prefix is None else options.prefix
    offered: dict[str, OfferedTool] = {}
    for own in wanted:
        tool, name = listed[own], name_for_model(f"{prefix}{own}")
        if name in offered:
            raise _unusable(
                endpoint,
                f"has the tools {_shorten(own)} and {_shorten(offered[name].own)}, which are both "
                f"{name} for a model",
                "leave one out with only=[…]",
            )
        try:
            schema = clean_schema(tool.input_schema)
        except Exception as error:  # an untrusted schema may raise anything
            raise _unusable(
                endpoint,
                f"has the tool {_shorten(own)} with a schema that cannot be used",
                "leave it out with only=[…], and report it to its makers",
                cause=error,
            ) from error
        about = readable(tool.description or tool.title or "", _DESCRIPTION)
        offered[name] = OfferedTool(own, name, about, schema)
    return offered


def name_for_model(name: str) -> str:
    """A name that every provider accepts. A changed name ends in a hash of the original."""
    if TOOL_NAME.fullmatch(name):
        return name
    mark = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: LONGEST_NAME - len(mark) - 1]
    return f"{plain}_{mark}"


def clean_schema(given: Mapping[str, Any]) -> Schema:
    """Convert the schema of a tool's arguments for providers: definitions are inlined, titles and
    `$schema` are removed. Raises if the schema is not for an object."""
    _check_size(given)
    schema: Schema = whole_json({k: v for k, v in given.items() if k not in ("$schema", "$id")})
    if "definitions" in schema:
        moved = json.dumps(schema.pop("definitions")).replace("#/definitions/", "#/$defs/")
        text = json.dumps(schema).replace("#/definitions/", "#/$defs/")
        schema = {**json.loads(text), "$defs": json.loads(moved) | schema.get("$defs", {})}
    if len(schema.get("$defs", ())) > _SCHEMAS // 10:
        raise ValueError(f"it has more than {_SCHEMAS // 10} definitions")
    if schema.setdefault("type", "object") != "object":
        raise ValueError(f"its type is {schema['type']!r}, and not object")
    if not isinstance(schema.setdefault("properties", {}), dict):
        raise ValueError("its properties are no object")
    written = write_out(schema, _SCHEMAS)
    for part in _objects(written):
        about = part.get("description")
        if isinstance(about, str) and len(about) > _PARAMETER:
            part["description"] = readable(about, _PARAMETER)
        reference = part.get("$ref")
        if isinstance(reference, str) and not _is_defined(reference, written):
            raise ValueError(f"it refers to {reference[:200]!r}, which it does not have")
    _check_size(written)
    return written


def _check_size(schema: Mapping[str, Any]) -> None:
    size = len(json.dumps(schema))
    if size > _SCHEMA_SIZE:
        raise ValueError(f"it has {size:,} characters, and the limit is {_SCHEMA_SIZE:,}")


def _is_defined(reference: str, schema: Schema) -> bool:
    start, _, name = reference.rpartition("/")
    return reference == "#" or (start == "#/$defs" and name in schema.get("$defs", {}))


def _objects(value: Any) -> Iterator[Schema]:
    """Every object in a value of JSON."""
    if isinstance(value, dict):
        yield cast(Schema, value)
        for each in cast(Schema, value).values():
            yield from _objects(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _objects(each)


# --- results -------------------------------------------------------------------------------------


def read_result(result: CallToolResult, tool: str) -> Any:
    """The part of a result that a model reads. This is the text, if there is text that is not just
    the JSON of the structured content; otherwise the structured content. With images, it is a list
    of the texts and the images. Audio and resources become a line that describes them; so do images
    that models do not accept. Raises `ToolError` for an error of the tool."""
    texts, notes, images = _parts(result.content)
    if result.is_error:
        raise ToolError(
            "\n".join((*texts, *notes)).strip() or f"{tool} failed, and did not say why"
        )
    if images:
        texts = [text for text in texts if text.strip()]
        parts = [*texts, *notes, *images]
        return parts if len(parts) > 1 else parts[0]
    structured = result.structured_content
    is_text = "".join(texts).strip() and (notes or not _is_json_of(texts, structured))
    if not is_text and structured is not None:
        try:
            value = whole_json(structured)
            written = json.dumps(value, allow_nan=False, ensure_ascii=False)
        except ValueError as error:
            raise ToolError(f"{tool} returned data that is no JSON: {error}") from error
        return "\n".join((written, *notes)) if notes else value
    return "\n".join((*texts, *notes)) or _NOTHING


def _is_json_of(texts: Sequence[str], structured: Any) -> bool:
    """Whether the texts are the JSON of the structured content. MCP wraps a list in an object; its
    items may then have one text each."""
    if not isinstance(structured, dict):
        return False
    values = list(cast(Schema, structured).values())
    items: Any = values[0] if len(values) == 1 else None
    try:
        values = [json.loads(text, parse_constant=_refuse_constant) for text in texts]
        return values in ([structured], items)
    except (ValueError, RecursionError):
        return False


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _parts(content: Sequence[Any]) -> tuple[list[str], list[str], list[Image]]:
    """The texts, the notes on other parts, and the images of a result."""
    texts: list[str] = []
    notes: list[str] = []
    images: list[Image] = []
    for part in content:
        if isinstance(part, ImageContent) and (image := _image(part.data)) is not None:
            images.append(image)
            continue
        match part:
            case TextContent():
                texts.append(readable(part.text, 0))
            case ImageContent() | AudioContent():
                size = len(part.data) * 3 // 4
                notes.append(f"[{part.type} {_shorten(part.mime_type)}, {size:,} bytes, not shown]")
            case ResourceLink():
                notes.append(f"[link to a resource: {_shorten(str(part.uri))}]")
            case EmbeddedResource():
                inside = part.resource
                data: str = getattr(inside, "text", "") or getattr(inside, "blob", "")
                kind = inside.mime_type or "of no type"
                shown = f"{_shorten(str(inside.uri))} {_shorten(kind)}, {len(data):,} characters"
                notes.append(f"[resource {shown}, not shown]")
            case _:
                notes.append("[something that bae does not know]")
    return texts, notes, images


def _image(data: str) -> Image | None:
    """The image of a part, or None if models do not accept it."""
    try:
        return Image.from_data_url(f"data:;base64,{data}")
    except ValueError:
        return None


def _shorten(text: str) -> str:
    """An untrusted text, shortened, on one line."""
    return " ".join(readable(text, 200).split())


def _unusable(
    endpoint: Stdio | Http, what: str, fix: str, cause: BaseException | None = None
) -> ToolServerError:
    return ToolServerError(
        f"the MCP server {endpoint.name} {what}",
        code="bae-mcp-tools",
        server=endpoint.name,
        cause=cause,
        fix=fix,
    )
