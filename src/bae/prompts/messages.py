"""The prompt for one question to a model: the system text, messages of typed parts, and the schema
of the answer."""

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
    """The content of a question, in types: for backends that write their own prompts.

    With `types`, the model chooses one of them, and may fill it in the same answer if it is among
    `fillable`. Without `types`, it fills the `fields` of `target`; after a wrong answer these are
    only the wrong fields. `method` is set if an LM that builds nodes itself should do so with its
    own method of that name. `previous` is the previous node, and `scene` what else the question
    shows. `turns` are the earlier turns of the thread that it shows; None if no node has any.
    """

    types: tuple[type[Node] | type[None], ...] = ()
    fillable: tuple[type[Node], ...] = ()
    target: type[Node] | None = None
    fields: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Mapping[str, Any] | None = None
    instruction: str = ""
    previous: Node | None = None
    method: Literal["", "make", "decide"] = ""
    scene: Scene = field(default=PLAIN_SCENE, repr=False)
    turns: Messages | None = field(default=None, repr=False)

    @property
    def source(self) -> Node | None:
        """The previous node, under its name in `LM.fill`."""
        return self.previous

    def asks_for(self, node: type[Node]) -> bool:
        """Whether the answer fills a node of this class, or may choose it."""
        return node is self.target or node in self.types


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text in a message."""

    kind: ClassVar[Literal["text"]] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class FilePart:
    """An image or a document in a message, or the address of one. The text of the message has its
    `label`, as `image 1`, where the file belongs."""

    kind: ClassVar[Literal["file"]] = "file"
    file: Attached
    label: str

    @property
    def text(self) -> str:
        """The file as a text, as `[image 1: photo.png, image/png, 20 KB]`."""
        return f"[{self.label}: {self.file.about}]"


@dataclass(frozen=True, slots=True)
class CallPart:
    """A tool call that the model asks for. `arguments` is the JSON object that the model wrote, or
    its text if the model wrote no object. `id` is bae's own, unique in a conversation."""

    kind: ClassVar[Literal["call"]] = "call"
    id: str
    name: str
    arguments: Mapping[str, Any] | str

    @property
    def text(self) -> str:
        """The call as JSON, for models without native calls."""
        given = self.arguments
        return f"{self.name} {given if isinstance(given, str) else _compact(given)}"


@dataclass(frozen=True, slots=True)
class ResultPart:
    """The outcome of a tool call for the model: the result as text, or an error. `files` are those
    whose labels are in the text."""

    kind: ClassVar[Literal["result"]] = "result"
    id: str
    name: str
    result: str
    is_error: bool = False
    files: tuple[FilePart, ...] = ()

    @property
    def text(self) -> str:
        """The result, with the name of the tool, for models without native calls."""
        return f"{'Error of' if self.is_error else 'Result of'} {self.name}:\n{self.result}"


Part = TextPart | CallPart | ResultPart | FilePart
"""The parts of a message, told apart by `kind`."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call: its name, its description, and the JSON schema of its
    arguments, an object. `native` has the options of a tool that the provider itself runs, such as
    a web search; it is None for every other tool."""

    name: str
    description: str
    schema: Mapping[str, Any]
    native: Mapping[str, Any] | None = None

    @property
    def as_json(self) -> dict[str, Any]:
        """The same as JSON."""
        told = {"name": self.name, "description": self.description, "schema": dict(self.schema)}
        return told if self.native is None else {**told, "native": dict(self.native)}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `kind` is its purpose:

    - "example": a question or its answer, shown before the question.
    - "turn": a message of the user, or the reply, in an earlier turn of the thread. Turns come
      after the examples.
    - "question": the question itself.
    - "correction": a wrong answer of the model, or what is wrong with it.
    - "round": tool calls of the model, or their results and other messages to the model.

    `echo` is JSON that the backend which made the message wants back verbatim, such as signed
    thinking. Another backend, or another model, ignores it: see `Answer.echo`."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]
    kind: Literal["example", "turn", "question", "correction", "round"] = "question"
    echo: Any = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The texts of the message, with labels in place of files."""
        if len(self.parts) == 1:
            return self.parts[0].text
        return "\n\n".join(part.text for part in self.parts if part.kind != "file")

    @property
    def files(self) -> tuple[FilePart, ...]:
        """The files of the message, including those in results of tools."""
        files: list[FilePart] = []
        for part in self.parts:
            if isinstance(part, FilePart):
                files.append(part)
            elif isinstance(part, ResultPart):
                files += part.files
        return tuple(files)


@dataclass(frozen=True, slots=True)
class FewShot:
    """An example that the model sees before the question: another question, and its answer."""

    asked: str
    answer: str

    def messages(self) -> tuple[Message, Message]:
        """The example as two messages."""
        return _exchange("user", "example", self.asked, self.answer)


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong answer, and its correction for the model."""

    answer: str
    correction: str

    def messages(self) -> tuple[Message, Message]:
        """The answer and its correction, as they are sent."""
        answer = said_or(self.answer, "(no answer)")
        return _exchange("assistant", "correction", answer, self.correction)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. Equal input gives an equal prompt.

    `system` is the same for every question. `conversation` has the messages after it: few-shot
    examples, the earlier turns of the thread, the question, and then the wrong answers so far with
    their corrections. The last message is the user's. `schema` is the JSON schema of the answer,
    always an object: send it by the provider's channel for structured output. It is None if the
    answer is plain text: send only the messages, and return an `Answer` with the text. `name` is a
    name for the schema that every provider accepts.

    `tools` are the tools that the model may call, for a backend with `calls_tools`: return the
    calls in `Answer.calls`, and the whole message in `Answer.echo` if the provider wants it back.
    Without `may_call`, declare the tools all the same, and have the model answer without a call.
    """

    system: str
    conversation: tuple[Message, ...]
    schema: Mapping[str, Any] | None
    name: str
    question: Question = field(compare=False)
    tools: tuple[ToolSpec, ...] = ()
    may_call: bool = True

    @property
    def text(self) -> str:
        """The text of the question: the instruction and, as JSON, the known values."""
        return next((each.text for each in self.conversation if each.kind == "question"), "")

    @property
    def examples(self) -> tuple[FewShot, ...]:
        """The few-shot examples."""
        texts = [each.text for each in self.conversation if each.kind == "example"]
        return tuple(map(FewShot, texts[::2], texts[1::2]))

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """The wrong answers so far, each with its correction."""
        texts = [each.text for each in self.conversation if each.kind == "correction"]
        return tuple(map(Correction, texts[::2], texts[1::2]))

    @property
    def is_first(self) -> bool:
        """Whether there is no answer yet: no wrong answer, and no round with tool calls."""
        return not any(each.kind in ("correction", "round") for each in self.conversation)

    @property
    def files(self) -> tuple[FilePart, ...]:
        """The files of all messages."""
        return tuple(part for message in self.conversation for part in message.files)

    def without_turns(self) -> Prompt:
        """The prompt without the earlier turns of the thread, for records: a chat is stored once,
        not again with each turn."""
        if self.question.turns is None:
            return self
        kept = tuple(each for each in self.conversation if each.kind != "turn")
        return replace(self, conversation=kept)

    def messages(self) -> list[dict[str, str]]:
        """The texts of the conversation as chat completions, a form that many servers take. Files
        are in `prompt.files`, and in the parts of each message."""
        return [{"role": each.role, "content": each.text} for each in self.conversation]

    def with_question(self, text: str, examples: Iterable[FewShot] = ()) -> Prompt:
        """The prompt with another text of the question, and with few-shot examples before it."""
        shown = [message for example in examples for message in example.messages()]
        asked = (
            replace(each, parts=(*each.files, TextPart(text))) if each.kind == "question" else each
            for each in self.conversation
        )
        return replace(self, conversation=(*shown, *asked))

    def sections(self) -> list[tuple[str, str]]:
        """All that is sent, in readable form: the system text, the messages by their role, and the
        schema, if there is one."""
        texts = [("system", self.system)]
        for message in self.conversation:
            texts += ((part.label, _file_row(part.file)) for part in message.files)
            texts.append((message.role, message.text))
        texts += [("tool", text_of_tool(tool)) for tool in self.tools]
        return texts if self.schema is None else [*texts, ("schema", in_rows(self.schema))]

    def __str__(self) -> str:
        return "\n\n".join(f"{role}:\n{text}" for role, text in self.sections())

    def flat(self) -> str:
        """The conversation as one text, for models that take no messages."""
        first = self.conversation[0]
        if len(self.conversation) == 1:
            return first.text
        introductions = {**_INTRODUCTIONS}
        if first.kind != "question":
            introductions["question", "user"] = "Now you are asked:\n"
        return "\n\n".join(
            f"{introductions.get((each.kind, each.role), '')}{each.text}"
            for each in self.conversation
        )


def said_or(text: str, note: str) -> str:
    """A text, or a note in place of a blank text, which providers refuse."""
    return text if text.strip() else note


def text_of_tool(tool: ToolSpec) -> str:
    """A tool in readable form: its name, its description, and the schema of its arguments."""
    about = f"\n{tool.description}" if tool.description else ""
    return f"{tool.name}{about}\n{in_rows(tool.schema if tool.native is None else tool.native)}"


def _file_row(file: Attached) -> str:
    """A file in readable form: its description and its hash. An address may have a key in it."""
    return f"{file.about}, {file.key}" if file.key.startswith("sha256:") else file.about


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def ask_in_text(
    text: str,
    corrections: Iterable[Correction] = (),
    files: Iterable[FilePart] = (),
    turns: Messages | None = None,
) -> tuple[Message, ...]:
    """A conversation with one question, after earlier turns, with the wrong answers so far. Files
    come before the text."""
    asked = Message("user", (*files, TextPart(text)))
    before = () if turns is None else turns.messages()
    if not corrections and not before:
        return (asked,)
    return (
        *before,
        asked,
        *(message for correction in corrections for message in correction.messages()),
    )


def _exchange(
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
"""The text before a message when all are one text, by its kind and role."""


def in_rows(value: Any, indent: int = 0, column: int = 0) -> str:
    """JSON in lines that are as full as they can be, for 80 columns. It begins at this column, and
    its further lines are indented."""
    flat = json.dumps(value, ensure_ascii=False)
    if column + len(flat) <= _WIDTH or not value or not isinstance(value, dict | list):
        return flat
    items: list[tuple[str, Any]] = (
        [(f"{json.dumps(key)}: ", each) for key, each in cast(dict[str, Any], value).items()]
        if isinstance(value, dict)
        else [("", each) for each in cast(list[Any], value)]
    )
    rows: list[str] = []
    begins = column + 1
    for label, each in items:
        part = label + json.dumps(each, ensure_ascii=False)
        if rows and "\n" not in rows[-1] and begins + len(rows[-1] + part) < _WIDTH:
            rows[-1] += f", {part}"
            continue
        begins = indent + 2 if rows else begins
        rows.append(label + in_rows(each, indent + 2, begins + len(label)))
    return flat[0] + f",\n{' ' * (indent + 2)}".join(rows) + flat[-1]


_WIDTH: Final = 74
