"""Edits as an LLM would write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bae.team.edit_format import Deletion, Edit, WholeFile


def render_answer(edits: Iterable[Edit]) -> str:
    """The answer that `parse_answer` reads as these edits."""
    parts: list[str] = []
    for edit in edits:
        if isinstance(edit, Deletion):
            parts.append(f"<<<<<<< DELETE {edit.path}\n")
            continue
        lines = edit.lines if isinstance(edit, WholeFile) else (*edit.search, *edit.replace)
        runs = [len(run[0]) for line in lines if (run := re.match("<{7,}|={7,}|>{7,}", line))]
        size = max(runs, default=6) + 1
        if isinstance(edit, WholeFile):
            body = [f"{'<' * size} FILE {edit.path}", *edit.lines, f"{'>' * size} FILE"]
        else:
            body = [f"{'<' * size} SEARCH {edit.path}", *edit.search, "=" * size]
            body += [*edit.replace, f"{'>' * size} REPLACE"]
        parts.append("\n".join(body) + "\n")
    return "\n".join(parts)


def whole_file(path: str, text: str) -> WholeFile:
    """The edit that writes a text to a file."""
    lines = text.removesuffix("\n").split("\n") if text else ()
    return WholeFile(path, tuple(lines))
