"""What is known of a regular expression without trying it: whether a grammar can hold a model to
it, and how long the texts are that fit it. `bounds.py` asks."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final


def can_be_held(pattern: str) -> bool:
    """Whether grammar engines follow all that is in a pattern."""
    return _BEYOND.search(pattern) is None


def is_finite(pattern: str) -> bool:
    """Whether texts that fit a pattern cannot go on for ever."""
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "a", re.sub(r"\\.", "a", pattern))
    whole = bare.startswith("^") and bare.endswith("$")
    return whole and re.search(r"[*+]|\{\d*,\}", bare) is None


def shortest_match(pattern: str) -> int:
    """The characters of the shortest text that fits a pattern; 0 where Python cannot read it."""
    parser: Any = import_module("re._parser")
    try:
        shortest, _ = parser.parse(pattern).getwidth()
    except (re.error, OverflowError, RecursionError):
        return 0
    return shortest


_BEYOND: Final = re.compile(
    r"\(\?(=|!|<=|<!|>|\(|P=|P>|R|&)"  # looking around, atomic groups, conditions, references
    r"|\\[bBAZzGK1-9]|\\k"  # edges of words and texts, references back
    r"|[*+?}]\+"  # possessive repeats
)
