"""The prompt for one question to a model: the system text, the messages, and the schema of the
answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from bae.language_model import PLAIN_SCENE, Scene

if TYPE_CHECKING:
    from bae.files import Attached
    from bae.node import Node
    from bae.turns import Messages


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What a question asks, as types, for backends that write prompts of their own.

    A question with `types` is a choice: the model chooses one of the types. A question without
    `types` has the model fill the `fields` of `target`.
    """

    types: tuple[type[Node] | type[None], ...] = ()
    """The options of a choice."""
    fillable: tuple[type[Node], ...] = ()
    """The options that the model may also fill, in the same answer as the choice."""
    target: type[Node] | None = None
    """The node class to fill; None for a choice."""
    fields: tuple[str, ...] = ()
    """The fields to fill. After a wrong answer, these are only the wrong fields."""
    resolved: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The values of the target's fields with a source, by name."""
    context: Mapping[str, Any] | None = None
    """The values that a body passed to `lm.choose_type`; None for any other question."""
    instruction: str = ""
    """The instruction to fill `target`."""
    previous: Node | None = None
    """The previous node."""
    method: Literal["", "make", "decide"] = ""
    """`make` or `decide` if an LM that builds nodes itself has to answer with its own method of
    this name; otherwise empty."""
    scene: Scene = field(default=PLAIN_SCENE, repr=False)
    """The rest of what the question shows."""
    turns: Messages | None = field(default=None, repr=False)
    """The earlier turns of the thread that the question shows; None if no node has turns."""

    @property
    def source(self) -> Node | None:
        """The previous node, by the name of the parameter in `LM.fill`."""
        return self.previous

    def asks_for(self, node: type[Node]) -> bool:
        """Return whether the answer fills a node of this class, or may choose the class."""
        return node is self.target or node in self.types


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text in a message."""

    kind: ClassVar[Literal["text"]] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class FilePart:
    """An image or a document in a message: the file itself, or its address. In the text of the
    message, the `label` marks the place of the file, as `image 1`."""

    kind: ClassVar[Literal["file"]] = "file"
    file: Attached
    label: str

    @property
    def text(self) -> str:
        """The file as text, as `[image 1: photo.png, image/png, 20 KB]`."""
        return f"[{self.label}: {self.file.about}]"


@dataclass(frozen=True, slots=True)
class CallPart:
    """A tool call that the model asks for."""

    kind: ClassVar[Literal["call"]] = "call"
    id: str
    """bae's own id of the call, unique in a conversation."""
    name: str
    arguments: Mapping[str, Any] | str
    """The JSON object that the model wrote. If the model did not write an object, its text."""

    @property
    def text(self) -> str:
        """The call as text, for models without native calls."""
        arguments = self.arguments
        return (
            f"{self.name} {arguments if isinstance(arguments, str) else _compact_json(arguments)}"
        )


@dataclass(frozen=True, slots=True)
class ResultPart:
    """The result of a tool call, as the model reads it."""

    kind: ClassVar[Literal["result"]] = "result"
    id: str
    name: str
    result: str
    """The text of the result, or of the error."""
    is_error: bool = False
    files: tuple[FilePart, ...] = ()
    """The files whose labels are in the text."""

    @property
    def text(self) -> str:
        """The result with the name of the tool, for models without native calls."""
        return f"{'Error of' if self.is_error else 'Result of'} {self.name}:\n{self.result}"


Part = TextPart | CallPart | ResultPart | FilePart
"""A part of a message. `kind` distinguishes the classes."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call, as the model reads it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """The JSON schema of the arguments, which are an object."""
    native: Mapping[str, Any] | None = None
    """The options of a tool that the provider itself runs, such as a web search; None for every
    other tool."""

    @property
    def as_json(self) -> dict[str, Any]:
        """The tool as JSON."""
        spec = {"name": self.name, "description": self.description, "schema": dict(self.schema)}
        return spec if self.native is None else {**spec, "native": dict(self.native)}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `kind` is its purpose:

    - "example": a question or its answer, as an example before the question.
    - "turn": a message of the user, or the reply, in an earlier turn of the thread. Turns come
      after the examples.
    - "question": the question itself.
    - "correction": a wrong answer of the model, or the correction.
    - "round": tool calls of the model, or their results and other messages to the model.
    """

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]
    kind: Literal["example", "turn", "question", "correction", "round"] = "question"
    echo: Any = field(default=None, compare=False, repr=False)
    """JSON that the backend which made the message needs back unchanged, such as signed thinking.
    Another backend or another model ignores the echo. See `Answer.echo`."""

    @property
    def text(self) -> str:
        """The text of the message, with labels in place of files."""
        if len(self.parts) == 1:
            return self.parts[0].text
        return "\n\n".join(part.text for part in self.parts if part.kind != "file")

    @property
    def files(self) -> tuple[FilePart, ...]:
        """The files of the message and of the tool results in the message."""
        files: list[FilePart] = []
        for part in self.parts:
            if isinstance(part, FilePart):
                files.append(part)
            elif isinstance(part, ResultPart):
                files += part.files
        return tuple(files)


@dataclass(frozen=True, slots=True)
class FewShot:
    """A few-shot example: another question and its answer, which the model sees before the
    question."""

    asked: str
    answer: str

    def messages(self) -> tuple[Message, Message]:
        """Return the example as two messages."""
        return _make_exchange("user", "example", self.asked, self.answer)


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong answer of the model, and the correction that the model reads."""

    answer: str
    correction: str

    def messages(self) -> tuple[Message, Message]:
        """Return the answer and the correction as two messages."""
        answer = replace_blank(self.answer, "(no answer)")
        return _make_exchange("assistant", "correction", answer, self.correction)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. Equal input gives an equal prompt.

    Send `system`, the `conversation` and the `schema`. If there are `tools`, the model may call
    them before it answers.
    """

    system: str
    """The system text."""
    conversation: tuple[Message, ...]
    """The messages after the system text. First come the few-shot examples, then the earlier turns
    of the thread, then the question. Wrong answers so far follow, each with its correction, or the
    rounds with tools. The last message is the user's."""
    schema: Mapping[str, Any] | None
    """The JSON schema of the answer, always an object. Send the schema in the provider's parameter
    for structured output. It is None for an answer in plain text: then send only the messages, and
    return an `Answer` with the text."""
    name: str
    """The name of the schema, with only characters that every provider accepts."""
    question: Question = field(compare=False)
    """What the prompt asks, as types."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that the model may call, for a backend with `calls_tools`. Return the calls in
    `Answer.calls`. If the provider needs the complete message back, return the message in
    `Answer.echo`."""
    may_call: bool = True
    """Whether the model may call a tool now. If not, still declare the tools, and have the model
    answer without a call."""

    @property
    def text(self) -> str:
        """The text of the question: the instruction, and the known values as JSON."""
        return next(
            (message.text for message in self.conversation if message.kind == "question"), ""
        )

    @property
    def examples(self) -> tuple[FewShot, ...]:
        """The few-shot examples."""
        texts = [message.text for message in self.conversation if message.kind == "example"]
        return tuple(map(FewShot, texts[::2], texts[1::2]))

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The wrong answers so far, each with its correction."""
        texts = [message.text for message in self.conversation if message.kind == "correction"]
        return tuple(map(Correction, texts[::2], texts[1::2]))

    @property
    def is_first(self) -> bool:
        """Whether this is the first request of the question, with no wrong answer and no round with
        tool calls so far."""
        return not any(message.kind in ("correction", "round") for message in self.conversation)

    @property
    def files(self) -> tuple[FilePart, ...]:
        """The files of all messages."""
        return tuple(part for message in self.conversation for part in message.files)

    def without_turns(self) -> Prompt:
        """Return the prompt without the earlier turns of the thread. Records use this form, so that
        a journal stores each message of a chat once."""
        if self.question.turns is None:
            return self
        conversation = tuple(message for message in self.conversation if message.kind != "turn")
        return replace(self, conversation=conversation)

    def messages(self) -> list[dict[str, str]]:
        """Return the texts of the conversation in the format of chat completions, which many
        servers accept. The files are in `prompt.files` and in the parts of each message."""
        return [{"role": message.role, "content": message.text} for message in self.conversation]

    def with_question(self, text: str, examples: Iterable[FewShot] = ()) -> Prompt:
        """Return the prompt with another text of the question, and with few-shot examples before
        the question."""
        example_messages = [message for example in examples for message in example.messages()]
        conversation = (
            replace(earlier, parts=(*earlier.files, TextPart(text)))
            if earlier.kind == "question"
            else earlier
            for earlier in self.conversation
        )
        return replace(self, conversation=(*example_messages, *conversation))

    def sections(self) -> list[tuple[str, str]]:
        """Return everything that is sent, in readable form, each text with a title: the system
        text, the files, the messages, the tools and the schema."""
        texts = [("system", self.system)]
        for message in self.conversation:
            texts += ((part.label, _describe_file(part.file)) for part in message.files)
            texts.append((message.role, message.text))
        texts += [("tool", text_of_tool(tool)) for tool in self.tools]
        return texts if self.schema is None else [*texts, ("schema", in_rows(self.schema))]

    def __str__(self) -> str:
        return "\n\n".join(f"{role}:\n{text}" for role, text in self.sections())

    def flat(self) -> str:
        """Return the conversation as one text, for models that accept no messages."""
        first = self.conversation[0]
        if len(self.conversation) == 1:
            return first.text
        introductions = {**_INTRODUCTIONS}
        if first.kind != "question":
            introductions["question", "user"] = "Now you are asked:\n"
        return "\n\n".join(
            f"{introductions.get((message.kind, message.role), '')}{message.text}"
            for message in self.conversation
        )


def replace_blank(text: str, note: str) -> str:
    """Return the text. If the text is blank, return the note, because providers refuse blank
    texts."""
    return text if text.strip() else note


def text_of_tool(tool: ToolSpec) -> str:
    """Return a tool in readable form: its name, its description, and its options or the schema of
    its arguments."""
    about = f"\n{tool.description}" if tool.description else ""
    return f"{tool.name}{about}\n{in_rows(tool.schema if tool.native is None else tool.native)}"


def _describe_file(file: Attached) -> str:
    """Return a file in readable form: its description, and its hash if it has one. The address is
    left out, because it may contain a key."""
    return f"{file.about}, {file.key}" if file.key.startswith("sha256:") else file.about


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def ask_in_text(
    text: str,
    corrections: Iterable[Correction] = (),
    files: Iterable[FilePart] = (),
    turns: Messages | None = None,
) -> tuple[Message, ...]:
    """Return a conversation with one question. The earlier turns come before the question, and the
    wrong answers so far after the question. Files come before the text."""
    question = Message("user", (*files, TextPart(text)))
    before = () if turns is None else turns.messages()
    if not corrections and not before:
        return (question,)
    return (
        *before,
        question,
        *(message for correction in corrections for message in correction.messages()),
    )


def _make_exchange(
    first: Literal["user", "assistant"],
    kind: Literal["example", "correction"],
    opening: str,
    reply: str,
) -> tuple[Message, Message]:
    second = "assistant" if first == "user" else "user"
    return Message(first, (TextPart(opening),), kind), Message(second, (TextPart(reply),), kind)


_INTRODUCTIONS: Final = {
    ("example", "user"): "For example, when asked:\n",
    ("example", "assistant"): "the answer is:\n",
    ("turn", "user"): "Earlier, the user said:\n",
    ("turn", "assistant"): "and you replied:\n",
    ("correction", "assistant"): "Your answer was:\n",
}
"""The text before each message in `Prompt.flat`, by the kind and role of the message."""


def in_rows(value: Any, indent: int = 0, column: int = 0) -> str:
    """Return JSON in lines that fit a terminal of 80 columns, each as full as possible. `column` is
    where the first line begins, and `indent` the indentation of the other lines."""
    flat = json.dumps(value, ensure_ascii=False)
    if column + len(flat) <= _WIDTH or not value or not isinstance(value, dict | list):
        return flat
    items: list[tuple[str, Any]] = (
        [(f"{json.dumps(key)}: ", item) for key, item in cast(dict[str, Any], value).items()]
        if isinstance(value, dict)
        else [("", entry) for entry in cast(list[Any], value)]
    )
    rows: list[str] = []
    begins = column + 1
    for label, item in items:
        part = label + json.dumps(item, ensure_ascii=False)
        if rows and "\n" not in rows[-1] and begins + len(rows[-1] + part) < _WIDTH:
            rows[-1] += f", {part}"
            continue
        begins = indent + 2 if rows else begins
        rows.append(label + in_rows(item, indent + 2, begins + len(label)))
    return flat[0] + f",\n{' ' * (indent + 2)}".join(rows) + flat[-1]


_WIDTH: Final = 74
