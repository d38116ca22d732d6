"""Images and documents that `bae chat` sends with a message."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bae.cli.exits import refusal
from bae.cli.values import UnfitText, read_file_at, read_json
from bae.file_proof import holds_file
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.files import File
    from bae.node import Node


def file_fields(start: type[Node]) -> list[str]:
    """List the start node's fields without a source that take files."""
    return [field.name for field in plan_of(start).plain if holds_file(start, field.name)]


def place_file(
    start: type[Node], names: Sequence[str], before: Mapping[str, Any], typed_path: str
) -> tuple[str, Any, File]:
    """Read a file, and add the file to the first field in `names` that accepts it.

    `before` has the files that the user attached earlier, by field. Returns the name of the field,
    the field's new value, and the file. Raises if no field accepts the file.
    """
    try:
        file = read_file_at(_parse_path(typed_path))
    except UnfitText as misfit:
        fix = "name a file with an image or a document, as /image photo.png"
        raise refusal(f"nothing can be sent: {misfit}", fix=fix) from misfit
    new_value = {"data": file.data_url, "name": file.name}
    for name in names:
        old_value: Any = before.get(name)
        old_files = cast("list[Any]", old_value) if isinstance(old_value, list) else []
        for value in (new_value, [*old_files, new_value]):
            with suppress(UnfitText):
                read_json(start, name, value)
                return name, value, file
    fix = f"its fields for files are {', '.join(names)}"
    raise refusal(
        f"{file.placeholder} fits no field of {start.__name__}",
        fix=fix if names else "add a field to it, as photo: Image | None = None",
    )


def _parse_path(typed_path: str) -> str:
    """Return the path that a user typed, or dropped on the terminal, without the quotes
    and backslashes of a shell."""
    path = os.path.expanduser(typed_path)
    if not Path(path).exists():
        with suppress(ValueError):
            words = shlex.split(typed_path)
            path = os.path.expanduser(words[0]) if len(words) == 1 else path
    return path
