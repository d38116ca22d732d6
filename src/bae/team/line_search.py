"""A search of lines by a regular expression. It runs as a program that reads its arguments from
stdin, so that an endless search can be killed. To start fast, it imports no other module of bae."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Final

LONGEST_LINE: Final = 1000
"""How many characters of a line are searched."""
MOST_HITS: Final = 20_000


def search_lines(pattern: str, flags: int, texts: Mapping[str, str]) -> dict[str, list[int]]:
    """The numbers of the lines that a pattern matches, counted from 1, by file."""
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
