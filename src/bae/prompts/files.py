"""Files in prompts. The files are parts of a message, and labels in its text refer to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

from bae.files import Attached, File, collect_files, is_reference, placeholder_of
from bae.prompts.messages import FilePart

BEFORE: Final = "before"
"""The key of earlier steps in the known values of a question."""


def with_labels(find: Callable[[], Any]) -> tuple[Any, tuple[FilePart, ...]]:
    """Call `find` for the JSON of a question. Return the JSON with labels in place of files, and
    the labeled files."""
    with collect_files() as found_files:
        known = find()
    return labeled(known, found_files) if found_files else (known, ())


def labeled(
    known: Any,
    seen: Mapping[str, Attached] | Callable[[str], Attached | None],
    of: str = "",
    taken: Collection[str] | None = None,
) -> tuple[Any, tuple[FilePart, ...]]:
    """Return JSON with labels in place of files, and the files in the order of their labels.

    `seen` has each file by its hash or address. `of` is a part of each label, to distinguish the
    labels of several texts. Files of earlier steps, and files whose kind is not in `taken`, become
    placeholders and are not sent. If `taken` is None, all kinds are sent.
    """
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
        """Return the value with labels in place of files."""
        if isinstance(value, str):
            # A file's address is a text. Any text that equals the address becomes the label too.
            label = self._find(value) if value.startswith("http") else None
            return value if label is None else self._add_label(label)
        if isinstance(value, list):
            return [self.replace(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        if is_reference(value):
            label = self._find(value["hash"])
            return value if label is None else self._add_label(label, value)
        items = cast("dict[str, Any]", value)
        replaced: dict[str, Any] = {}
        for name, entry in items.items():
            self._is_old |= is_top and name == BEFORE
            replaced[name] = self.replace(entry)
            if is_top:
                self._is_old = False
        return replaced

    def _add_label(self, file: Attached, reference: Mapping[str, Any] | None = None) -> str:
        if self._is_old or (self._taken is not None and file.kind not in self._taken):
            return file.placeholder if reference is None else placeholder_of(reference)
        part = self.parts.get((file.kind, file.key))
        if part is None:
            if isinstance(file, File) and reference is not None:
                name = str(reference.get("name", ""))
                if name != file.name:  # the same bytes with another name
                    file = file.from_bytes(file.data, name)
            number = 1 + sum(kind == file.kind for kind, _ in self.parts)
            label = f"{file.kind} {self._of}{'.' if self._of else ''}{number}"
            part = self.parts[file.kind, file.key] = FilePart(file, label)
        return part.text
