"""Whether what was taken out of a run is still somewhere in it: values become texts to look for, as
they stand in prompts, answers, messages and other values. `withholding.py` asks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

SHORTEST: Final = 4
"""Characters of the shortest text that is looked for: a shorter one is everywhere."""


class SameText:
    """What certain values look like inside texts and other values."""

    def __init__(self, values: Iterable[Any]) -> None:
        texts: set[str] = set()
        numbers: set[str] = set()
        for value in values:
            _gather(value, texts, numbers)
        self._texts = sorted(texts | {form for text in texts for form in _escaped(text)})
        said = "|".join(re.escape(number) for number in sorted(numbers))
        self._numbers = re.compile(rf"(?<![\w.])(?:{said})(?![\w.])") if numbers else None

    def is_in(self, value: Any) -> bool:
        """Whether a text, or any text or number in a value, has it."""
        if isinstance(value, str):
            return any(text in value for text in self._texts) or (
                self._numbers is not None and self._numbers.search(value) is not None
            )
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, Any]", value)
            return any(self.is_in(key) or self.is_in(each) for key, each in entries.items())
        if isinstance(value, list | tuple):
            return any(self.is_in(each) for each in cast("list[Any]", value))
        if _is_number(value):
            return self._numbers is not None and self._numbers.fullmatch(repr(value)) is not None
        return False


def _gather(value: Any, texts: set[str], numbers: set[str]) -> None:
    if isinstance(value, str):
        if len(value.strip()) >= SHORTEST:
            texts.add(value)
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, Any]", value).values():
            _gather(each, texts, numbers)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            _gather(each, texts, numbers)
    elif _is_number(value) and len(repr(value).strip("-")) >= SHORTEST:
        numbers.add(repr(value))


def _escaped(text: str) -> Iterable[str]:
    """The text as it stands inside JSON."""
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
