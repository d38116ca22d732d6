"""What the LM calls of a run used, counted from its records. A question that has its last answer
says what all of its answers used; of one that was cut off there are only the answers that came
before, and they were paid for too. `run_log.py` and `recording.py` count with it."""

from __future__ import annotations

from bae.records import AnswerJudged, Asker, Record, RunResumed
from bae.usage import Usage


class Paid:
    """Adds up what records say was used, each answer once."""

    __slots__ = ("_judged", "_sum")

    def __init__(self) -> None:
        self._sum = Usage()
        self._judged: dict[tuple[str, int, Asker], Usage] = {}
        """Answers to questions that have not had their last one, by path, step and who asks."""

    def take(self, record: Record) -> None:
        """Count a record; give them in order."""
        if isinstance(record, AnswerJudged):
            asking = record.path, record.step, record.asker
            self._judged[asking] = self._judged.get(asking, Usage()) + record.attempt.usage
            return
        if isinstance(record, RunResumed):  # what was asked then has been cut off
            self._sum = self.total()
            self._judged.clear()
        usage = getattr(record, "usage", None)
        if isinstance(usage, Usage):
            self._sum += usage
            by = getattr(record, "asker", None)
            spot = record.path, record.step
            for asking in [key for key in self._judged if key[:2] == spot]:
                if by in (None, asking[2]):
                    del self._judged[asking]

    def total(self) -> Usage:
        """What was used until now."""
        return self._sum + Usage.total(self._judged.values())
