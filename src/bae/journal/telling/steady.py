"""The times of a run's lines as a clock tells them that is never set. That of a computer is: then
a line may be older than the one before, or a year younger. How long sources and LM calls took was
measured by another clock, which is in their last lines and says what is wrong with the first.
`at_work.py` reads the lines with these times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bae.journal.shape import Json
from bae.journal.telling.story import Entry

_SLACK: Final = 0.05
"""Seconds that the two clocks may differ by, and the part of what was measured: they are looked at
one after another, and that of a computer is put right a little all the time."""
_SLACK_PART: Final = 0.01
_BEGINS: Final = ("SourceStarted", "ChoiceStarted", "FillStarted")
_ENDS: Final = {
    "SourceEnded": "SourceStarted",
    "ChoiceMade": "ChoiceStarted",
    "FillEnded": "FillStarted",
}


def steadied(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same lines with times of which none is before that of a line before it, as far apart as
    it was measured where it was."""
    every = list(entries)
    steady, measured = _Steady(), _Measured()
    for index, entry in enumerate(every):
        steady.add(entry.line.at)
        found = measured.by(index, entry)
        if found is not None:
            steady.hold(*found)
    for entry, at in zip(every, steady.times, strict=True):
        yield entry if at == entry.line.at else Entry(entry.line._replace(at=at), entry.data)


class _Steady:
    """The times of the lines so far, put right."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._offset = 0.0
        self._back: set[int] = set()
        """Where the clock went back: how long it really was from the line before, nobody knows."""
        self._held: list[tuple[int, int]] = []
        """Between which lines the time is right by now."""

    def add(self, told: float) -> None:
        """One more line; where it is before the last, it is at the same time."""
        at = told + self._offset
        if self.times and at < self.times[-1]:
            self._back.add(len(self.times))
            at = self.times[-1]
            self._offset = at - told
        self.times.append(at)

    def hold(self, first: int, last: int, seconds: float) -> None:
        """Have the line `last`, the newest, be so many seconds after the line `first`, as near as
        can be."""
        before = self.times[last]
        wrong = before - self.times[first] - seconds
        if abs(wrong) > _SLACK + _SLACK_PART * seconds:
            free = self._free(first, last)
            if wrong < 0 and free:
                # The clock was set back: where it is seen to have gone back, or before this line.
                self._move({next((each for each in free if each in self._back), free[-1]): -wrong})
            elif wrong > 0:
                cuts = self._cuts(free, wrong)
                left = wrong + sum(cuts.values())
                self._move(cuts | self._cuts(set(range(first + 1, last + 1)) - cuts.keys(), left))
            self._offset += self.times[last] - before
        self._held.append((first, last))

    def _free(self, first: int, last: int) -> list[int]:
        """The lines in between whose distance from the one before is not known to be right."""
        free: list[int] = []
        top = last
        for start, end in reversed(self._held):
            if top <= first or end <= first:
                break
            free += range(top, end, -1)
            top = min(top, start)
        free += range(top, first, -1)
        return free[::-1]

    def _cuts(self, lines: Iterable[int], seconds: float) -> dict[int, float]:
        """What to take away before which lines, where the clock was set forward: most likely that
        is where a line is furthest from the one before."""
        cuts: dict[int, float] = {}
        if seconds > 0:
            for index in sorted(lines, key=self._since_last, reverse=True):
                cuts[index] = -min(seconds, self._since_last(index))
                seconds += cuts[index]
                if seconds <= 0:
                    break
        return cuts

    def _since_last(self, index: int) -> float:
        return self.times[index] - self.times[index - 1]

    def _move(self, by: Mapping[int, float]) -> None:
        """Have lines and all that follow be so much later, or earlier but not before the line
        before."""
        moved = 0.0
        for index in range(min(by), len(self.times)):
            moved += by.get(index, 0.0)
            self.times[index] = max(self.times[index] + moved, self.times[index - 1])


class _Measured:
    """What was begun and is to end with a line that says how long it took."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str, int, str], int] = {}

    def by(self, index: int, entry: Entry) -> tuple[int, int, float] | None:
        """With which line it began, what ends with this one, and how many seconds it took."""
        line, data = entry
        where = line.path, line.step, _field(data)
        if line.kind in ("RunStarted", "RunResumed") and not line.path:
            self._begun.clear()
        if line.kind in _BEGINS:
            self._begun[line.kind, *where] = index
        if line.kind not in _ENDS:
            return None
        seconds = data.get("seconds")
        if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            return None  # a call that chooses and fills at once is measured with the fill
        first = self._begun.pop((_ENDS[line.kind], *where), None)
        if line.kind == "FillEnded":
            first = self._begun.pop(("ChoiceStarted", *where), first)
        return None if first is None else (first, index, float(seconds))


def _field(data: Json) -> str:
    return f"{data['field']}{data.get('route', '')}" if "field" in data else ""
