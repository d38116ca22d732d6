"""A program that searches lines for a regular expression. It reads its arguments from stdin. bae
runs the program as a process, because a process with an endless search can be killed. To start
fast, the program imports no other module of bae."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Final

LONGEST_LINE: Final = 1000
"""Characters of a line that the search reads. The rest of the line is ignored."""
MOST_HITS: Final = 20_000
"""Matching lines after which the search stops."""


def search_lines(pattern: str, flags: int, texts: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the numbers of the lines that match `pattern`, by file. The first line is number 1."""
    search = re.compile(pattern, flags).search
    matches: dict[str, list[int]] = {}
    room = MOST_HITS
    for name, text in texts.items():
        numbers = [
            number
            for number, line in enumerate(text.split("\n"), 1)
            if search(line, 0, LONGEST_LINE)
        ]
        if numbers:
            matches[name] = numbers[:room]
            room -= len(matches[name])
        if not room:
            break
    return matches


if __name__ == "__main__":
    json.dump(search_lines(**json.load(sys.stdin)), sys.stdout)
