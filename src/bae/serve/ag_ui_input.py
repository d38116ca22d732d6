"""The request of an AG-UI client. The user's last message becomes the start of a run. Answers to
interrupts become answers to gates."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from bae.approvals import Approval
from bae.file_proof import holds_file
from bae.files import Document, DocumentUrl, File, FileUrl, Image, ImageUrl
from bae.journal.shape import Json
from bae.plan import plan_of
from bae.serve.problems import InputFault, Refused, input_refusal, wrong_input
from bae.serve.starts import Starts, answer_schema
from bae.serve.views import GateView

if TYPE_CHECKING:
    from bae.node import Node

Id = Annotated[str, Field(min_length=1, max_length=200)]


class _RequestPart(BaseModel):
    """A part of a request. bae ignores parts that only newer clients send."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")


class PartSource(_RequestPart):
    """The bytes of an image or a document, or the address of the bytes."""

    type: Literal["data", "url", "file"]
    value: str


class ContentPart(_RequestPart):
    """A part of a message: a text or a file."""

    type: Annotated[str, Field(max_length=50)]
    text: str = ""
    source: PartSource | None = None


class AnyMessage(BaseModel):
    """A message of the client. bae reads the content of the last message only."""

    model_config = ConfigDict(extra="allow")

    id: Id
    role: Annotated[str, Field(max_length=50)]
    content: Any = None


class ResumeEntry(_RequestPart):
    """An answer to the interrupt with the id `interrupt_id`."""

    interrupt_id: Annotated[str, Field(min_length=1, max_length=2_000)]
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AgentRequest(_RequestPart):
    """The input of an AG-UI 1.0 run. `forwardedProps` and `state` have fields of the start node,
    besides the field for the message. bae does not use `tools` and `context`."""

    thread_id: Id
    run_id: Id
    protocol_version: str | None = None
    messages: Annotated[list[AnyMessage], Field(max_length=10_000)]
    tools: list[Any] | None = None
    context: list[Any] | None = None
    state: Any = None
    forwarded_props: Any = None
    resume: Annotated[list[ResumeEntry], Field(max_length=100)] | None = None

    @property
    def state_fields(self) -> Json:
        """The fields of `state`, or no fields if `state` is no object."""
        state: object = self.state
        return cast("Json", state) if isinstance(state, dict) else {}

    @property
    def forwarded_fields(self) -> Json:
        """The fields of `forwardedProps`, or no fields if `forwardedProps` is no object."""
        props: object = self.forwarded_props
        return cast("Json", props) if isinstance(props, dict) else {}

    @property
    def new_message(self) -> AnyMessage | None:
        """The user's message that begins a turn. None if the last message is not from the user."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == "user" else None


def message_field(start: type[Node]) -> str:
    """Return the name of the start node's field for the user's message. Raises `Refused` if there
    is no such field."""
    name = plan_of(start).text
    if name and any(field.name == name for field in plan_of(start).plain):
        return name
    raise Refused(
        422,
        "bae-ag-ui-start",
        f"{start.__name__}, where the graph starts, has no field that takes the message of a user",
        'give it one field of type str, or name one: node_config = NodeConfig(text="…")',
        place=start.__name__,
    )


def file_fields(start: type[Node]) -> list[str]:
    """Return the names of the start node's fields for images or documents."""
    return [field.name for field in plan_of(start).plain if holds_file(start, field.name)]


def start_fields(
    starts: Starts, request: AgentRequest, message: AnyMessage
) -> tuple[Json, list[str]]:
    """Return the fields of the start node, and a reason for each unused part of the message.

    The text and the files come from the message. The other fields come from `forwardedProps` and
    `state`. If both have a field, `forwardedProps` wins. Names that are no field of the start
    node are ignored, because they belong to the page. Raises `Refused` if every part of the message
    is unused.
    """
    start = starts.graph.start
    text_field, at = message_field(start), len(request.messages) - 1
    parts = _parts_of(message.content, ["body", "messages", at, "content"])
    other_names = {name for name in starts.schema.get("properties", {}) if name != text_field}
    fields: Json = {}
    for source_fields in (request.state_fields, request.forwarded_fields):
        fields |= {name: value for name, value in source_fields.items() if name in other_names}
    unused: list[Refused] = []
    for number, part in enumerate(parts):
        if part.type != "text":
            place = ["body", "messages", at, "content", number]
            file = _read_file(part, place)
            problem = file if isinstance(file, Refused) else _place_file(start, fields, file, place)
            if problem is not None:
                unused.append(problem)
    fields[text_field] = "\n".join(part.text for part in parts if part.type == "text")
    if unused and len(unused) == len(parts):
        raise unused[0]
    return fields, [f"{problem.body.detail}; {problem.body.fix}" for problem in unused]


_PARTS: Final = TypeAdapter(Annotated[list[ContentPart], Field(max_length=100)])


def _parts_of(content: Any, place: list[str | int]) -> list[ContentPart]:
    """Return the parts of a message's content."""
    if isinstance(content, str):
        return [ContentPart(type="text", text=content)]
    if not isinstance(content, list):
        raise wrong_input(place, "it is neither a text nor a list of parts", "send a text")
    try:
        return _PARTS.validate_python(content)
    except ValidationError as error:
        raise input_refusal(error, *place) from error


def read_start(starts: Starts, request: AgentRequest, fields: Json) -> Node:
    """Return the start node with these fields. If a field is wrong, raises `Refused` with the place
    of the field in the request."""
    try:
        return starts.node(fields)
    except Refused as refused:
        text_field, at = message_field(starts.graph.start), len(request.messages) - 1
        content: list[str | int] = ["body", "messages", at, "content"]
        faults: list[InputFault] = []
        for fault in refused.body.errors:
            name, *rest = fault.loc[2:] or [""]
            is_state = name in request.state_fields and name not in request.forwarded_fields
            source: list[str | int] = ["body", "state" if is_state else "forwardedProps"]
            loc = [*content, *rest] if name == text_field else [*source, name, *rest]
            faults.append(InputFault(loc=loc, msg=fault.msg))
        first = faults[0]
        where = ".".join(str(part) for part in first.loc)
        names = ", ".join(n for n in starts.schema.get("properties", {}) if n != text_field)
        raise Refused(
            422,
            "bae-serve-input",
            f"{where}: {first.msg}",
            "give it with the run, as agent.runAgent({ forwardedProps: { … } }); the fields of "
            f"{starts.graph.start.__name__} are {names}"
            if first.loc[1] != "messages"
            else "change the message",
            place=where,
            errors=faults,
        ) from refused


_FILES: Final[Mapping[str, tuple[type[File], type[FileUrl]]]] = {
    "image": (Image, ImageUrl),
    "document": (Document, DocumentUrl),
}


def _read_file(part: ContentPart, place: list[str | int]) -> File | FileUrl | Refused:
    """Return the file of a part, from the bytes or the address in the part. Return a refusal if no
    graph takes such a part. Raises `Refused` for invalid bytes. No address is fetched."""
    classes, source = _FILES.get(part.type), part.source
    if classes is None:
        return wrong_input(place, f"no graph takes {part.type}", "send text, images or documents")
    fix = 'send them: { type: "data", value: base64, mimeType: "…" }'
    if source is None:
        raise wrong_input(place, f"the {part.type} has no bytes", fix)
    if source.type == "file":
        return wrong_input(place, f"the bytes of the {part.type} are at a provider", fix)
    try:
        if source.type == "url" and source.value[:5].lower() != "data:":
            return classes[1](source.value)
        is_url = source.value[:5].lower() == "data:"
        return classes[0].from_data_url(source.value if is_url else f"data:;base64,{source.value}")
    except ValueError as error:
        fix = f"send the bytes of the {part.type} in base64"
        raise wrong_input(place, str(error), fix) from None


def _place_file(
    start: type[Node], fields: Json, file: File | FileUrl, place: list[str | int]
) -> Refused | None:
    """Put a file into the first field that takes the file. A field with a value takes a file only
    if the field is a list. If no field takes the file, return the refusal."""
    names = file_fields(start)
    for name in names:
        adapter: TypeAdapter[Any] = TypeAdapter(plan_of(start).fields[name].annotation)
        value_before: Any = fields.get(name)
        files_before = cast("list[Any]", value_before) if isinstance(value_before, list) else []
        for value in ([*files_before, file], *(() if name in fields else (file,))):
            with suppress(ValidationError):
                adapter.validate_python(value)
                fields[name] = value
                return None
    return wrong_input(
        place,
        f"no field of {start.__name__} takes {file.placeholder}",
        f"its fields for files are {', '.join(names)}; send the bytes, and no address"
        if names
        else "the graph takes text alone",
    )


# --- interrupts --------------------------------------------------------------------------------

_ANY_APPROVAL: Final = (answer_schema(Approval), answer_schema(Any))
CANCELLED: Final = "The user cancelled the question."
"""The reason that the model reads if a person cancels the question about a tool call."""
RESPONSE: Final[Json] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {
            "type": "object",
            "description": "All arguments of the call, in place of the model's.",
        },
        "reason": {"type": "string", "description": "Why not. The model reads it."},
        "scope": {
            "enum": ["call", "run", "thread"],
            "description": "Whether the approval holds for this call, or for all calls of the tool "
            "in this run or thread.",
        },
    },
    "required": ["approved"],
    "additionalProperties": False,
}
"""The JSON schema of an answer about a tool call."""
_NAMES: Final = {"approved": "approve", "editedArgs": "arguments"}


def is_approval(gate: GateView) -> bool:
    """Return whether a gate asks if the model may call a tool."""
    return gate.tool is not None and gate.answer_schema in _ANY_APPROVAL


def answer_of(gate: GateView, payload: Any) -> Any:
    """Return the answer to a gate, from the payload of an AG-UI client."""
    if is_approval(gate) and isinstance(payload, dict):
        parts = cast("Json", payload).items()
        return {_NAMES.get(name, name): value for name, value in parts}
    return payload
