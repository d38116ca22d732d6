"""The text of fields as a follower sees it: the ten lines that a display needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bae.journal import FieldText, Record, TextVoided, Thinking
from bae.observers import ObservedRun
from bae.place import Place


class Seen:
    """An observer: the text of each place, as it is now, and the records of text."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.now: dict[str, str] = {}
        self.places: dict[str, Place] = {}
        self.deltas: list[tuple[str, str]] = []
        self.records: list[Record] = []
        self._news = asyncio.Event()
        for record in records:
            self.add(record)

    def __call__(self, run: ObservedRun, record: Record) -> None:
        self.add(record)

    def add(self, record: Record) -> None:
        self.records.append(record)
        match record:
            case FieldText(place=place, delta=delta) | Thinking(place=place, delta=delta):
                assert delta
                self.places[str(place)] = place
                self.now[str(place)] = self.now.get(str(place), "") + delta
                self.deltas.append((str(place), delta))
            case TextVoided(places=places):
                for place in places:
                    del self.now[str(place)]  # it has text
            case _:
                pass
        self._news.set()

    async def wait(self, done: Callable[[Seen], object]) -> None:
        """Wait until that holds."""
        async with asyncio.timeout(20):
            while not done(self):
                self._news.clear()
                await self._news.wait()

    @property
    def kinds(self) -> list[str]:
        """The kinds of the records about text, in order."""
        kinds = ("AnswerBegan", "FieldText", "Thinking", "TextVoided")
        more = (*kinds, "AnswerJudged", "AnswerRestarted")
        names = [type(record).__name__ for record in self.records]
        return [name for name in names if name in more]
