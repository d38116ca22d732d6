"""A run as the JSON that `bae runs show --json` prints, and one that is not as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from bae.exceptions import ReplayError
    from bae.journal.telling.timeline import Timeline, Work
    from bae.journal.telling.told import ToldRun


def run_as_data(told: ToldRun, timeline: Timeline) -> dict[str, Any]:
    """The story and the timeline of a run in one object."""
    said = asdict(told)
    said["ended_at"] = told.ended_at or None
    return with_times(
        {
            **said,
            "lives": [asdict(life) for life in timeline.lives],
            "seconds": timeline.seconds,
            "work": [_work(each) for each in timeline.work],
        }
    )


def with_times(data: Any) -> Any:
    """The same with times as ISO 8601 writes them, which are seconds since 1970 in a journal.
    Values of runs are left as they are, whatever is in them."""
    if isinstance(data, Mapping):
        said = cast("Mapping[str, Any]", data)
        return {
            key: each if key in _VALUES else _time(each) if key in _TIMES else with_times(each)
            for key, each in said.items()
        }
    if isinstance(data, list | tuple):
        return [with_times(each) for each in cast("Sequence[Any]", data)]
    return data


_VALUES: Final = frozenset({"value", "asked", "answer"})
_TIMES: Final = frozenset(
    {"at", "deadline", "end", "lease_until", "marks", "start", "started", "updated"}
)


def _time(each: Any) -> Any:
    from bae.journal.telling.lengths import iso

    if isinstance(each, list):
        return [_time(one) for one in cast("list[Any]", each)]
    is_number = isinstance(each, int | float) and not isinstance(each, bool)
    return iso(each) if is_number else with_times(each)


def diverged_as_data(error: ReplayError) -> dict[str, Any]:
    """A replay that goes another way, with the keys of one that does not and the difference."""
    return {
        "run_id": error.run_id,
        "outcome": "diverged",
        "trace": [type(node).__name__ for node in error.trace],
        "waiting": [],
        "error": f"[{error.code}] {error.message}",
        "path": error.path,
        "diff": error.diff,
        "fix": error.fix,
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
