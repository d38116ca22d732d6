"""The texts that LMs are writing now, for readers in the process of the run. These texts are not
stored and have no numbers. The final text is in a record of the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from bae.history import History
from bae.observers import ObservedRun
from bae.records import Record

GATHER: Final = 0.05
"""Seconds for which text gathers before it is yielded."""
_STEPS: Final = 20
"""How many steps of each graph are kept. Only the newest steps have text in progress."""


class TextPiece(NamedTuple):
    """A change of the text at a place."""

    place: str
    start: int
    """How many characters of the earlier text remain. It is 0 if other text replaces the earlier
    text."""
    delta: str
    """The new text after these characters. If `start` is 0 and `delta` is empty, the text was
    voided, or a record has the text now."""


class LiveTexts:
    """Observes runs, and yields the texts that their LMs are writing:

        texts = LiveTexts()
        with observing(texts.observe):
            ...  # start runs
        async for pieces in texts.follow(run_id): ...

    A slow reader gets fewer and longer pieces, and costs no more than a fast reader.
    """

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[ObservedRun, History] = WeakKeyDictionary()
        self._current: dict[str, History] = {}
        self._readers: dict[str, set[_Bell]] = {}
        self._written: set[str] = set()
        """The ids of the runs in progress for which an LM has written text."""
        self._lock = Lock()

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Add a record of a run. Register this method with `bae.observers.observing`."""
        with self._lock:
            history = self._runs.get(run)
            if history is None:
                history = self._runs[run] = History(run.past, keep=_STEPS)
                self._current[run.run_id] = history
            history.add(record)
            if not history.alive:
                self._current.pop(run.run_id, None)
            if not record.stored:  # records of text are not stored
                self._written.add(run.run_id)
            if run.run_id in self._written:
                for bell in self._readers.get(run.run_id, ()):
                    bell.ring()
            if not history.alive:
                self._written.discard(run.run_id)

    def is_live(self, run_id: str) -> bool:
        """Return whether a run is in progress in this process. Other processes do not have the
        run's texts."""
        return run_id in self._current

    async def follow(
        self, run_id: str, *, thoughts: bool = False
    ) -> AsyncGenerator[list[TextPiece], None]:
        """Yield the texts of a run so far, and then each change. The iteration does not end by
        itself. With `thoughts`, it also yields the model's thinking. The place of the thinking
        names the node, without a field."""
        bell = _Bell()
        sent: dict[str, str] = {}
        with self._lock:
            self._readers[run_id] = {*self._readers.get(run_id, ()), bell}
        try:
            while True:
                bell.event.clear()
                texts = self._texts(run_id, thoughts)
                pieces = [_piece(place, sent.get(place, ""), text) for place, text in texts.items()]
                pieces += [TextPiece(place, 0, "") for place in sent if place not in texts]
                changed = [p for p in pieces if sent.get(p.place) != texts.get(p.place)]
                sent = texts
                if changed:
                    yield changed
                await asyncio.sleep(GATHER)
                await bell.event.wait()
        finally:
            with self._lock:
                self._readers[run_id].discard(bell)
                if not self._readers[run_id]:
                    del self._readers[run_id]

    def _texts(self, run_id: str, thoughts: bool) -> dict[str, str]:
        with self._lock:
            history = self._current.get(run_id)
            steps = [] if history is None else [*history.steps()]
            texts: dict[str, str] = {}
            for step in steps:
                for question in step.questions:
                    if question.is_open:  # a model thinks before it writes
                        if thoughts and question.thoughts and question.asked_by is step:
                            texts[str(step.place)] = question.thoughts
                        texts |= {str(place): text for place, text in question.texts.items()}
            return texts


class _Bell:
    """Wakes a reader from any thread."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        if not self.event.is_set():
            with suppress(RuntimeError):  # the loop is closed, so nobody reads
                self._loop.call_soon_threadsafe(self.event.set)


def _piece(place: str, old: str, new: str) -> TextPiece:
    if new.startswith(old):
        return TextPiece(place, len(old), new[len(old) :])
    return TextPiece(place, 0, new)
