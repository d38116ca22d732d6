"""Conversion of a server's tools and results for models. Names and schemas become acceptable to
providers, and texts get a bounded length. All input is untrusted."""

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
from bae.unicode import join_json_surrogates, readable

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

_PAGES: Final = 50
"""The most pages of a list of tools that bae reads."""
_LISTED: Final = 1_000
"""The most tools that a server may list, including tools that `only` leaves out."""
_DESCRIPTION: Final = 4_000
"""The longest description of a tool, in characters."""
_PARAMETER: Final = 1_000
"""The longest description inside a schema, in characters."""
_SCHEMAS: Final = 2_000
"""The most subschemas that a tool's schema may have. The limit for definitions is a tenth of this
number."""
_SCHEMA_SIZE: Final = 100_000
"""The largest schema of a tool, in characters."""
_NOTHING: Final = "done: the tool returned nothing"


class OfferedTool:
    """A tool of a server in the form that a model sees. `own` is the server's name for the tool."""

    def __init__(self, own: str, name: str, description: str, schema: Schema) -> None:
        self.own, self.name, self.description, self.schema = own, name, description, schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfferedTool) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


async def list_tools(
    session: ClientSession, endpoint: Stdio | Http, options: ServerOptions
) -> dict[str, OfferedTool]:
    """Return the tools of a server that models may call, by the names that models see."""
    listed: dict[str, ServerTool] = {}
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            if tool.name in listed:
                raise _server_error(
                    endpoint,
                    f"lists two tools named {_shorten(tool.name)}",
                    "report this to the makers of the server",
                )
            listed[tool.name] = tool
        if len(listed) > _LISTED:
            raise _server_error(
                endpoint, f"lists more than {_LISTED:,} tools", "use another server"
            )
        cursor = page.next_cursor
        if not cursor:
            break
    else:
        raise _server_error(
            endpoint,
            f"lists its tools on more than {_PAGES} pages",
            "report this to the makers of the server",
        )
    return _offer(listed, endpoint, options)


def _offer(
    listed: Mapping[str, ServerTool], endpoint: Stdio | Http, options: ServerOptions
) -> dict[str, OfferedTool]:
    """Select the tools that models may call, and convert their names and schemas."""
    names = list(listed) if options.only is None else list(options.only)
    missing_names = [name for name in names if name not in listed]
    if not options.is_only_strict:
        names = [name for name in names if name in listed]
    elif missing_names:
        listed_names = ", ".join(map(_shorten, listed)) or "none"
        raise _server_error(
            endpoint, f"has no tool {', '.join(missing_names)}", f"it has: {listed_names[:2_000]}"
        )
    if len(names) > options.max_tools:
        raise _server_error(
            endpoint,
            f"offers {len(names):,} tools, and the limit is {options.max_tools:,}",
            "choose the tools that the model needs with only=[…], or raise max_tools",
        )
    prefix = endpoint.prefix if options.prefix is None else options.prefix
    offered: dict[str, OfferedTool] = {}
    for own_name in names:
        tool, name = listed[own_name], name_for_model(f"{prefix}{own_name}")
        if name in offered:
            raise _server_error(
                endpoint,
                f"has the tools {_shorten(own_name)} and {_shorten(offered[name].own)}, which both "
                f"get the name {name} for models",
                "leave one out with only=[…]",
            )
        try:
            schema = clean_schema(tool.input_schema)
        except Exception as error:  # an untrusted schema may raise anything
            raise _server_error(
                endpoint,
                f"has the tool {_shorten(own_name)} with a schema that cannot be used",
                "leave it out with only=[…], and report this to the makers of the server",
                cause=error,
            ) from error
        description = readable(tool.description or tool.title or "", _DESCRIPTION)
        offered[name] = OfferedTool(own_name, name, description, schema)
    return offered


def name_for_model(name: str) -> str:
    """Return a name that every provider accepts. If the name must change, the new name ends in a
    hash of the old name."""
    if TOOL_NAME.fullmatch(name):
        return name
    mark = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: LONGEST_NAME - len(mark) - 1]
    return f"{plain}_{mark}"


def clean_schema(given: Mapping[str, Any]) -> Schema:
    """Return the schema of a tool's arguments in a form for providers. Definitions are inlined, and
    titles and `$schema` are removed. Raise an error if the schema is too large, refers to a missing
    definition, or does not describe an object."""
    _check_size(given)
    schema: Schema = join_json_surrogates(
        {k: v for k, v in given.items() if k not in ("$schema", "$id")}
    )
    if "definitions" in schema:
        definitions = json.dumps(schema.pop("definitions")).replace("#/definitions/", "#/$defs/")
        text = json.dumps(schema).replace("#/definitions/", "#/$defs/")
        schema = {**json.loads(text), "$defs": json.loads(definitions) | schema.get("$defs", {})}
    if len(schema.get("$defs", ())) > _SCHEMAS // 10:
        raise ValueError(f"it has more than {_SCHEMAS // 10} definitions")
    if schema.setdefault("type", "object") != "object":
        raise ValueError(f"its type is {schema['type']!r}, and not object")
    if not isinstance(schema.setdefault("properties", {}), dict):
        raise ValueError("its properties are no object")
    clean = write_out(schema, _SCHEMAS)
    for part in _iterate_objects(clean):
        description = part.get("description")
        if isinstance(description, str) and len(description) > _PARAMETER:
            part["description"] = readable(description, _PARAMETER)
        reference = part.get("$ref")
        if isinstance(reference, str) and not _is_defined(reference, clean):
            raise ValueError(f"it refers to {reference[:200]!r}, which it does not have")
    _check_size(clean)
    return clean


def _check_size(schema: Mapping[str, Any]) -> None:
    size = len(json.dumps(schema))
    if size > _SCHEMA_SIZE:
        raise ValueError(f"it has {size:,} characters, and the limit is {_SCHEMA_SIZE:,}")


def _is_defined(reference: str, schema: Schema) -> bool:
    start, _, name = reference.rpartition("/")
    return reference == "#" or (start == "#/$defs" and name in schema.get("$defs", {}))


def _iterate_objects(value: Any) -> Iterator[Schema]:
    """Yield every object inside a JSON value."""
    if isinstance(value, dict):
        yield cast(Schema, value)
        for item in cast(Schema, value).values():
            yield from _iterate_objects(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _iterate_objects(item)


# --- results -------------------------------------------------------------------------------------


def read_result(result: CallToolResult, tool: str) -> Any:
    """Return the part of a result that a model reads.

    The model reads the text. If there is no text, or the text is only the JSON of the structured
    content, the model reads the structured content. If there are images, the model reads a list of
    the texts and the images. For audio, for resources, and for images that models do not accept,
    the model reads a line that describes them.

    Raise `ToolError` if the tool reports an error.
    """
    texts, notes, images = _split_content(result.content)
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
            value = join_json_surrogates(structured)
            written = json.dumps(value, allow_nan=False, ensure_ascii=False)
        except ValueError as error:
            raise ToolError(f"{tool} returned data that is no JSON: {error}") from error
        return "\n".join((written, *notes)) if notes else value
    return "\n".join((*texts, *notes)) or _NOTHING


def _is_json_of(texts: Sequence[str], structured: Any) -> bool:
    """Return whether the texts are only the JSON of the structured content. MCP wraps a list in an
    object, and each item of the list may have a text of its own."""
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


def _split_content(content: Sequence[Any]) -> tuple[list[str], list[str], list[Image]]:
    """Return the texts of a result, notes about parts that models do not get, and the images."""
    texts: list[str] = []
    notes: list[str] = []
    images: list[Image] = []
    for part in content:
        if isinstance(part, ImageContent) and (image := _read_image(part.data)) is not None:
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
                resource = part.resource
                data: str = getattr(resource, "text", "") or getattr(resource, "blob", "")
                kind = resource.mime_type or "of no type"
                summary = (
                    f"{_shorten(str(resource.uri))} {_shorten(kind)}, {len(data):,} characters"
                )
                notes.append(f"[resource {summary}, not shown]")
            case _:
                notes.append("[something that bae does not know]")
    return texts, notes, images


def _read_image(data: str) -> Image | None:
    """Return the image in a part. Return None if models do not accept the image."""
    try:
        return Image.from_data_url(f"data:;base64,{data}")
    except ValueError:
        return None


def _shorten(text: str) -> str:
    """Return an untrusted text on one line, with at most 200 characters."""
    return " ".join(readable(text, 200).split())


def _server_error(
    endpoint: Stdio | Http, what: str, fix: str, cause: BaseException | None = None
) -> ToolServerError:
    return ToolServerError(
        f"the MCP server {endpoint.name} {what}",
        code="bae-mcp-tools",
        server=endpoint.name,
        cause=cause,
        fix=fix,
    )
