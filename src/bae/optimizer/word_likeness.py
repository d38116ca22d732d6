"""The words of a text, in any script, and how alike two texts are by them. `likeness.py` asks it
where two values are texts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Final


def text_likeness(expected: str, given: str) -> float:
    """The share of words that two texts have in common: F1. It is 1 for the same words in the same
    order alone; where only the order differs, that counts as one wrong word. Of texts without any
    word, whether they are the same."""
    if expected == given:
        return 1.0
    ours, theirs = words(expected), words(given)
    if not ours and not theirs:
        return float(_plain(expected) == _plain(given))
    if ours == theirs:
        return 1.0
    bag, other = Counter(ours), Counter(theirs)
    if bag == other:
        return 1 - 1 / len(ours)
    return 2 * (bag & other).total() / (len(ours) + len(theirs))


def words(text: str) -> list[str]:
    """The words of a text, in small letters and without punctuation.

    A number keeps its sign and its point, and loses the commas between thousands; numbers that are
    joined, as in dates, times and fractions, are one word. Symbols count, %, and # beside a word,
    among them; so do the characters of scripts without spaces.
    """
    plain = _plain(text).translate(_SPELLING)
    if "," in plain:
        plain = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), plain)
    return _WORD.findall(plain)


def word_key(text: str) -> object:
    """What two texts have in common that are wholly alike."""
    return tuple(words(text)) or _plain(text)


_ALONE: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Scripts without spaces, in which every character is a word."""

_SYMBOL: Final = "\x01"
"""What a symbol is marked with; a text has none, since it is no letter, mark or symbol itself."""

_NO_LETTER: Final = rf"\s.,:/#\-{_SYMBOL}"
_LETTER: Final = rf"[^{_NO_LETTER}{_ALONE}]"

_WORD: Final = re.compile(
    rf"[a-z]+(?=[{_NO_LETTER}]|\Z)"  # most words are no more than this, and found faster so
    rf"|(?:(?<!\w)-(?=\d))?(?=\w){_LETTER}+(?:(?<=\d)[.,:/-](?=\d){_LETTER}+)*"
    rf"|[{_ALONE}][^\w{_NO_LETTER}]*"
    rf"|(?<={_SYMBOL})."
    r"|(?<=\w)\#|\#(?=\w)"
)

_THOUSANDS: Final = re.compile(r"\b(?<![.,])\d{1,3}(?:,\d{3})+(?!,?\d)")


class _Spelling(dict[int, str]):
    """What each character is to become before words are looked for; found out when it is met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)
        if char in _SAME:
            becomes = _SAME[char]
        elif char in _KEPT or kind[0] in "LNM":  # an accent is part of the letter before it
            becomes = char
        elif kind[0] == "S" or char in "%‰":
            becomes = f" {_SYMBOL}{char} "
        elif kind == "Cf":  # it only says how to draw the others
            becomes = ""
        else:
            becomes = " "
        self[code] = becomes
        return becomes


_KEPT: Final = ".,:/#-_"
_SAME: Final = {
    **dict.fromkeys("−‐‑‒–", "-"),
    "⁄": "/",
    **dict.fromkeys("'’", ""),
    **dict.fromkeys(map(chr, range(0xFE00, 0xFE10)), ""),  # in which of its shapes to draw one
}
_SPELLING: Final = _Spelling()


def _plain(text: str) -> str:
    # Compatible forms, such as wide letters and joined ones, before and after the case is folded.
    once = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", once).strip()
