"""Files in prompts: labels in the text, and the files beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

from bae.files import Attached, File, collect_files, is_reference, placeholder_of
from bae.prompts.messages import FilePart

BEFORE: Final = "before"
"""The key of earlier steps in a question."""


def with_labels(find: Callable[[], Any]) -> tuple[Any, tuple[FilePart, ...]]:
    """The JSON for a model, with labels in place of the files that `find` finds; and the files."""
    with collect_files() as seen:
        known = find()
    return labeled(known, seen) if seen else (known, ())


def labeled(
    known: Any,
    seen: Mapping[str, Attached] | Callable[[str], Attached | None],
    of: str = "",
    taken: Collection[str] | None = None,
) -> tuple[Any, tuple[FilePart, ...]]:
    """JSON with labels in place of files, and the files in the order of their labels. Files of
    earlier steps and files of unsupported kinds become placeholders, and are not sent. `of`
    distinguishes the labels from labels of other texts."""
    labels = _Labels(seen if callable(seen) else seen.get, of, taken)
    return labels.replace(known, is_top=True), tuple(labels.parts.values())


class _Labels:
    def __init__(
        self, find: Callable[[str], Attached | None], of: str, taken: Collection[str] | None
    ) -> None:
        self.parts: dict[tuple[str, str], FilePart] = {}
        self._find, self._of, self._taken = find, of, taken
        self._is_old = False

    def replace(self, value: Any, *, is_top: bool = False) -> Any:
        """A value with labels."""
        if isinstance(value, str):
            # Addresses are texts. A text that equals an address shows the model nothing new.
            label = self._find(value) if value.startswith("http") else None
            return value if label is None else self._label(label)
        if isinstance(value, list):
            return [self.replace(each) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        if is_reference(value):
            label = self._find(value["hash"])
            return value if label is None else self._label(label, value)
        items = cast("dict[str, Any]", value)
        made: dict[str, Any] = {}
        for name, each in items.items():
            self._is_old |= is_top and name == BEFORE
            made[name] = self.replace(each)
            if is_top:
                self._is_old = False
        return made

    def _label(self, file: Attached, reference: Mapping[str, Any] | None = None) -> str:
        if self._is_old or (self._taken is not None and file.kind not in self._taken):
            return file.placeholder if reference is None else placeholder_of(reference)
        part = self.parts.get((file.kind, file.key))
        if part is None:
            if isinstance(file, File) and reference is not None:
                name = str(reference.get("name", ""))
                if name != file.name:  # equal bytes under another name
                    file = file.from_bytes(file.data, name)
            number = 1 + sum(kind == file.kind for kind, _ in self.parts)
            label = f"{file.kind} {self._of}{'.' if self._of else ''}{number}"
            part = self.parts[file.kind, file.key] = FilePart(file, label)
        return part.text
