"""Questions that an LM would not take: one that is too long, or was refused, says nothing against
the next, but an LM that refuses everything has failed. `asking_lm.py` goes by this while
it optimises, `settling.py` while it compares, and `judging.py` in both."""

from __future__ import annotations

import re
from typing import Final

from bae.exceptions import BaeLMError

MOST_REFUSED: Final = 5
"""How many requests a provider may refuse in a row, and not because they are too long, until that
is taken for a failure of the LM and not for something in the questions."""


class Refusals:
    """What the LMs of one optimisation would not take."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def is_about_the_question(self, error: BaeLMError) -> bool:
        """Whether the LM would not take this question, and may well take another."""
        if error.code == "bae-lm-context-exceeded":
            return True
        if error.code != "bae-lm-request-refused":
            return False
        if error.status == 413 or _TOO_LONG.search(error.message):
            return True
        self._in_a_row += 1
        return self._in_a_row < MOST_REFUSED

    def taken(self) -> None:
        """Note that a question was taken."""
        self._in_a_row = 0


_TOO_LONG: Final = re.compile(
    r"too (long|large|many (input )?tokens)|context.(length|window|size)|maximum.(context|tokens)"
    r"|exceeds? .{0,40}(tokens|length|limit)",
    re.IGNORECASE,
)
"""How providers say that a prompt is too long: there is no status of its own for it."""
