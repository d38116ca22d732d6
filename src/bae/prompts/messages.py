"""One question to a model as it is sent: the system text, the messages, and the schema of the
answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, cast

if TYPE_CHECKING:
    from bae.node import Node


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is asked, in types: for backends that write their own prompts.

    With `types`, one of them is to be chosen, and filled in the same answer where it is among
    `fillable`. Without, the `fields` of `target` are to be filled; after a wrong answer these are
    only the wrong ones. `method` is set where an LM that builds nodes itself is to do so by its
    own method of that name.
    """

    types: tuple[type[Node] | type[None], ...] = ()
    fillable: tuple[type[Node], ...] = ()
    target: type[Node] | None = None
    fields: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Mapping[str, Any] | None = None
    instruction: str = ""
    source: Node | None = None
    method: Literal["", "make", "decide"] = ""

    def asks_for(self, node: type[Node]) -> bool:
        """Whether a node of this class is to be made, or may be chosen."""
        return node is self.target or node in self.types


@dataclass(frozen=True, slots=True)
class Turn:
    """A wrong answer, and the correction that the model is sent."""

    answer: str
    correction: str


@dataclass(frozen=True, slots=True)
class FewShot:
    """An example that the model is shown before the question: another question, and its answer."""

    asked: str
    answer: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. Equal input gives an equal prompt.

    `system` is the same for every question. `text` is the instruction and, as JSON, what is
    known. `schema` is the JSON schema of the answer, always an object; send it by the provider's
    channel for structured output. It is None where the answer is plain text: send the texts alone,
    and return an `Answer` with the text. `name` is a name for the schema that every provider
    accepts.
    `turns` are the wrong answers so far. `examples` are few-shot examples; `messages` and `flat`
    include them.
    """

    system: str
    text: str
    schema: Mapping[str, Any] | None
    name: str
    question: Question = field(compare=False)
    turns: tuple[Turn, ...] = ()
    examples: tuple[FewShot, ...] = ()

    def messages(self) -> list[dict[str, str]]:
        """The conversation without the system part: user and assistant for each example, user for
        the question, then assistant and user for each turn."""
        messages: list[dict[str, str]] = []
        for example in self.examples:
            messages.append({"role": "user", "content": example.asked})
            messages.append({"role": "assistant", "content": example.answer})
        messages.append({"role": "user", "content": self.text})
        for turn in self.turns:
            # Providers refuse an empty message.
            messages.append({"role": "assistant", "content": turn.answer or "(no answer)"})
            messages.append({"role": "user", "content": turn.correction})
        return messages

    def parts(self) -> list[tuple[str, str]]:
        """All that is sent, to be read: the system text, the messages by their role, and the
        schema, where there is one."""
        parts = [("system", self.system), *((m["role"], m["content"]) for m in self.messages())]
        return parts if self.schema is None else [*parts, ("schema", in_rows(self.schema))]

    def __str__(self) -> str:
        return "\n\n".join(f"{role}:\n{text}" for role, text in self.parts())

    def flat(self) -> str:
        """The conversation as one text, for models that take no turns."""
        if not self.turns and not self.examples:
            return self.text
        parts = [
            f"For example, when asked:\n{each.asked}\n\nthe answer is:\n{each.answer}"
            for each in self.examples
        ]
        parts.append(f"Now you are asked:\n{self.text}" if parts else self.text)
        for turn in self.turns:
            parts.append(f"Your answer was:\n{turn.answer or '(no answer)'}")
            parts.append(turn.correction)
        return "\n\n".join(parts)


def in_rows(value: Any, indent: int = 0, column: int = 0) -> str:
    """JSON in lines that are as full as they can be, to be read in 80 columns. It begins at this
    column, and its further lines are indented."""
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
