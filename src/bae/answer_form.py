"""`AnswerForm`: where the text of an answer has the fields of nodes. It reads a complete answer, or
pieces as they arrive."""

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
    """A string in a field: the path to it inside the value, and its text or a piece of the text."""

    node: type[Node]
    field: str
    within: JSONPath
    text: str


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer. `targets` are the classes that the answer may fill, each with its
    requested fields. Their keys are the names at `tag`, or "" for a single class. `base` is the
    path to the object with the fields.

    With `is_text` the answer is plain text, the value of one field. `renamed` has the keys that
    stand for fields.
    """

    targets: Mapping[str, tuple[type[Node], tuple[str, ...]]] = field(
        default_factory=dict[str, Any]
    )
    base: JSONPath = ()
    tag: JSONPath = ()
    is_text: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, target: type[Node], fields: tuple[str, ...] | None = None) -> AnswerForm:
        """The form of an answer that fills a node: `fields`, or all fields that an LM is asked."""
        from bae.prompts.values import asked_fields

        names = asked_fields(target) if fields is None else fields
        is_text = any(field.fills == "text" for field in plan_of(target).plain)
        return cls({"": (target, names)}, is_text=is_text)

    @property
    def target(self) -> type[Node] | None:
        """The class that is filled, if it is known before the answer."""
        return None if self.tag and len(self.targets) != 1 else next(self._classes, None)

    @property
    def _classes(self) -> Iterator[type[Node]]:
        return (node for node, _ in self.targets.values())

    def asks_for(self, node: str, name: str) -> bool:
        """Whether the answer may have a field of a class of that name."""
        return any(cls.__name__ == node and name in names for cls, names in self.targets.values())

    def parts_of(self, text: str) -> list[FieldPart]:
        """The strings in a complete answer; none if it cannot be read."""
        if self.is_text:
            return [*self._text_part(text)]
        try:
            value: Any = from_json(text if text.isascii() else join_surrogates(text))
        except ValueError:
            return []
        tagged = _at(value, self.tag) if self.tag else ""
        return [
            part
            for path, each in _strings_in(_at(value, self.base))
            if (part := self.part(tagged, path, each)) is not None
        ]

    def part(self, tagged: Any, path: JSONPath, text: str) -> FieldPart | None:
        """The string at a path from the base, in the class with this tag."""
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
    """An answer that arrives in pieces. It is `broken` if it cannot be an answer of its form."""

    __slots__ = ("_early", "_form", "_strings", "_tagged")

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._strings = JSONStrings()
        self._tagged = ""
        self._early: list[tuple[JSONPath, str]] = []
        """Strings that arrived before the class was known."""

    @property
    def broken(self) -> bool:
        """Whether the pieces are no longer used."""
        return self._strings.broken

    def feed(self, text: str) -> list[FieldPart]:
        """Take the next piece. Returns what it adds to each string, in order."""
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
            for key, each in cast("dict[str, Any]", value).items():
                yield from _strings_in(each, (*path, key))
        case list():
            for index, each in enumerate(cast("list[Any]", value)):
                yield from _strings_in(each, (*path, index))
        case _:
            pass
