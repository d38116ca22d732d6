"""A run as the JSON that `bae runs show --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.journal.telling.timeline import Timeline, Work
    from bae.journal.telling.told import ToldRun


def run_as_data(told: ToldRun, timeline: Timeline) -> dict[str, Any]:
    """The story and the timeline of a run in one object."""
    said = asdict(told)
    said["ended_at"] = told.ended_at or None
    return {
        **said,
        "lives": [asdict(life) for life in timeline.lives],
        "seconds": timeline.seconds,
        "work": [_work(each) for each in timeline.work],
    }


def _work(work: Work) -> dict[str, Any]:
    return {
        "kind": work.kind,
        "place": work.place,
        "name": work.name,
        "start": work.start,
        "end": work.end,
        "seconds": work.seconds,
        "spans": [asdict(span) for span in work.spans],
        "outcome": work.outcome,
        "error": work.error,
        "note": work.note,
        "marks": list(work.marks),
        "usage": asdict(work.usage),
        "inside": [_work(each) for each in work.inside],
    }
