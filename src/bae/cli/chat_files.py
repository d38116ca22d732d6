"""Images and documents that go with a message of `bae chat`."""

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
    """The plain fields of a node that take files."""
    return [field.name for field in plan_of(start).plain if holds_file(start, field.name)]


def place_file(
    start: type[Node], names: Sequence[str], before: Mapping[str, Any], said: str
) -> tuple[str, Any, File]:
    """The field of a start node, among `names`, that takes the file at a path; its value with the
    files that are there `before`; and the file."""
    try:
        file = read_file_at(_path_of(said))
    except UnfitText as misfit:
        fix = "name a file with an image or a document, as /image photo.png"
        raise refusal(f"nothing can be sent: {misfit}", fix=fix) from misfit
    given = {"data": file.data_url, "name": file.name}
    for name in names:
        held: Any = before.get(name)
        listed = cast("list[Any]", held) if isinstance(held, list) else []
        for value in (given, [*listed, given]):
            with suppress(UnfitText):
                read_json(start, name, value)
                return name, value, file
    fix = f"its fields for files are {', '.join(names)}"
    raise refusal(
        f"{file.placeholder} fits no field of {start.__name__}",
        fix=fix if names else "add a field to it, as photo: Image | None = None",
    )


def _path_of(said: str) -> str:
    """A path as it is typed, or dropped on a terminal: with quotes or backslashes."""
    path = os.path.expanduser(said)
    if not Path(path).exists():
        with suppress(ValueError):
            words = shlex.split(said)
            path = os.path.expanduser(words[0]) if len(words) == 1 else path
    return path
