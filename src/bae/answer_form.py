"""`AnswerForm` finds the fields of nodes in the text of an LLM's answer. `ArrivingAnswer` finds
them while the answer arrives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import from_json

from bae.json_strings import JSONPath, JSONStrings
from bae.plan import plan_of
from bae.unicode import join_surrogates

if TYPE_CHECKING:
    from bae.node import Node


class FieldPart(NamedTuple):
    """A string inside the value of a field."""

    node: type[Node]
    field: str
    within: JSONPath
    """The path from the field's value to the string."""
    text: str
    """The text of the string, or the piece of the text that has just arrived."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Says which classes an answer may fill, and where the answer has their fields."""

    targets: Mapping[str, tuple[type[Node], tuple[str, ...]]] = field(
        default_factory=dict[str, Any]
    )
    """The classes that the answer may fill, with the requested fields of each class. The keys are
    tags. If the answer has no tag, there is one class with the key ""."""
    base: JSONPath = ()
    """The path to the object with the fields."""
    tag: JSONPath = ()
    """The path to the tag: the string in the answer that tells which class the answer fills."""
    is_text: bool = False
    """Whether the answer is plain text, the value of one field."""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fields that have another key in the answer, by this key."""

    @classmethod
    def of(cls, target: type[Node], fields: tuple[str, ...] | None = None) -> AnswerForm:
        """Make the form of an answer that fills `fields` of a node; by default, all fields that an
        LLM is asked for."""
        from bae.prompts.values import list_fields_to_fill

        names = list_fields_to_fill(target) if fields is None else fields
        is_text = any(field.fills == "text" for field in plan_of(target).plain)
        return cls({"": (target, names)}, is_text=is_text)

    @property
    def target(self) -> type[Node] | None:
        """The class that the answer fills; None if there is no class, or if only the answer tells
        which class."""
        return None if self.tag and len(self.targets) != 1 else next(self._classes, None)

    @property
    def _classes(self) -> Iterator[type[Node]]:
        return (node for node, _ in self.targets.values())

    def asks_for(self, node: str, name: str) -> bool:
        """Return whether the answer may have the field `name` of the class named `node`."""
        return any(cls.__name__ == node and name in names for cls, names in self.targets.values())

    def parts_of(self, text: str) -> list[FieldPart]:
        """Return the strings of the fields in a complete answer. If the answer should be JSON, but
        is not, the list is empty."""
        if self.is_text:
            return [*self._text_part(text)]
        try:
            value: Any = from_json(text if text.isascii() else join_surrogates(text))
        except ValueError:
            return []
        tagged = _at(value, self.tag) if self.tag else ""
        return [
            part
            for path, string in _strings_in(_at(value, self.base))
            if (part := self.part(tagged, path, string)) is not None
        ]

    def part(self, tagged: Any, path: JSONPath, text: str) -> FieldPart | None:
        """Return the string at `path`, counted from `base`, as a part of a field. `tagged` is the
        tag of the class. Return None if the answer may not have this field."""
        if not path or tagged not in self.targets:
            return None
        node, names = self.targets[tagged]
        name = str(path[0])
        name = self.renamed.get(name, name)
        return FieldPart(node, name, path[1:], text) if name in names else None

    def _text_part(self, text: str) -> Iterator[FieldPart]:
        for node, names in self.targets.values():
            for name in names[:1]:
                yield FieldPart(node, name, (), text)


class ArrivingAnswer:
    """Reads an answer that arrives in pieces."""

    __slots__ = ("_early", "_form", "_strings", "_tagged")

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._strings = JSONStrings()
        self._tagged = ""
        self._early: list[tuple[JSONPath, str]] = []
        """The strings that arrived before the tag of the class."""

    @property
    def broken(self) -> bool:
        """Whether the text so far cannot be JSON. All later pieces are then ignored."""
        return self._strings.broken

    def feed(self, text: str) -> list[FieldPart]:
        """Read the next piece of the answer. Return the text that the piece adds to each string, in
        order."""
        form = self._form
        if form.is_text:
            return form.parts_of(text)
        if not form.targets:
            return []
        base, tag = form.base, form.tag
        pieces = self._strings.feed(text)
        inside: list[tuple[JSONPath, str]] = []
        for path, piece in pieces:
            if tag and path == tag:
                self._tagged += piece
            elif path[: len(base)] == base:
                inside.append((path[len(base) :], piece))
        if tag and (not self._tagged or self._strings.path == tag):
            self._early += inside
            return []
        inside, self._early = [*self._early, *inside], []
        parts = (form.part(self._tagged, path, piece) for path, piece in inside)
        return [part for part in parts if part is not None]


def _at(value: Any, path: JSONPath) -> Any:
    for key in path:
        value = cast("dict[Any, Any]", value).get(key) if isinstance(value, dict) else None
    return value


def _strings_in(value: Any, path: JSONPath = ()) -> Iterator[tuple[JSONPath, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for key, member in cast("dict[str, Any]", value).items():
                yield from _strings_in(member, (*path, key))
        case list():
            for index, item in enumerate(cast("list[Any]", value)):
                yield from _strings_in(item, (*path, index))
        case _:
            pass
