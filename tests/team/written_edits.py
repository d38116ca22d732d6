"""Edits as an LLM would write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bae.team.edit_format import Deletion, Edit, WholeFile
from bae.team.unified_diffs import Hunk


def render_answer(edits: Iterable[Edit]) -> str:
    """The answer that `parse_answer` reads as these edits."""
    parts: list[str] = []
    for edit in edits:
        if isinstance(edit, Deletion):
            parts.append(f"<<<<<<< DELETE {edit.path}\n")
            continue
        if isinstance(edit, Hunk):
            parts.append(render_hunk(edit))
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


def render_hunk(hunk: Hunk) -> str:
    """A diff of one hunk, without lines of context."""
    old, new = len(hunk.search), len(hunk.replace)
    at = hunk.at + 1 if new else hunk.at
    body = [f"-{line}" for line in hunk.search]
    body += ["\\ No newline at end of file"] if hunk.ends and body else []
    body += [f"+{line}" for line in hunk.replace]
    body += ["\\ No newline at end of file"] if hunk.ends is False and hunk.replace else []
    head = [f"--- a/{hunk.path}", f"+++ b/{hunk.path}", f"@@ -{at},{old} +{at},{new} @@"]
    return "\n".join((*head, *body)) + "\n"


def render_fenced(file: WholeFile) -> str:
    """A fenced file below its path."""
    runs = [len(run[0]) for line in file.lines if (run := re.match("`{3,}", line))]
    fence = "`" * (max(runs, default=2) + 1)
    return "\n".join((f"`{file.path}`", fence, *file.lines, fence)) + "\n"


def whole_file(path: str, text: str) -> WholeFile:
    """The edit that writes a text to a file."""
    lines = text.removesuffix("\n").split("\n") if text else ()
    return WholeFile(path, tuple(lines))
