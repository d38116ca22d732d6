"""The errors of failed runs. The journal has the class and the message of an error. The process
that ran the run also has the path, the cause and the fix."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from bae.exceptions import BaeError, describe
from bae.journal.decoder import read_history
from bae.journal.report import timeline
from bae.journal.stored_runs import StoredRun
from bae.records import RecordedError

_MOST: Final = 200
"""The maximum number of stored failures. A new failure replaces the oldest failure."""


class FailureView(BaseModel):
    """The error of a failed run.

    - `place`: the node or field that failed.
    - `error`: the cause.
    - `path`: the chain of fields and function calls that led to the error.
    - `fix`: what to do.

    Only the server that ran the run has `path` and `fix`, until the server stops.
    """

    type: str
    code: str | None
    message: str
    place: str = ""
    error: str = ""
    path: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class FailureNotes:
    """The parts of an error that the journal does not have."""

    message: str
    path: str | None
    cause: str
    fix: str | None


class Failures:
    """The errors of this process's runs."""

    def __init__(self) -> None:
        self._by_run: OrderedDict[str, FailureNotes] = OrderedDict()

    def add(self, run_id: str, error: BaseException) -> None:
        """Store the parts of an error that the journal does not have."""
        self._by_run.pop(run_id, None)
        if not isinstance(error, BaeError):
            return
        cause = "" if error.cause is None else describe(error.cause)
        self._by_run[run_id] = FailureNotes(error.message, error.path, cause, error.fix)
        if len(self._by_run) > _MOST:
            self._by_run.popitem(last=False)

    def of(self, run_id: str) -> FailureNotes | None:
        """Return the stored parts of a run's error, or None."""
        return self._by_run.get(run_id)


def failure_of(stored: StoredRun, notes: FailureNotes | None) -> FailureView | None:
    """Return the error of a failed run. Return None if the run has not failed."""
    raised = read_history(stored).run.end_error
    if stored.info.status != "failed" or raised is None:
        return None
    failed_work = [entry for entry in timeline(stored).every() if entry.outcome == "failed"]
    # The last entry is the innermost work, because a timeline lists inner work after outer work.
    last = failed_work[-1] if failed_work else None
    is_recorded = isinstance(raised, RecordedError)
    view = FailureView(
        type=raised.type_name if is_recorded else type(raised).__name__,
        code=raised.code if is_recorded else None,
        message=raised.message if is_recorded else str(raised),
        place="" if last is None else last.place,
        error="" if last is None else last.error,
    )
    if notes is not None and notes.message.partition("\n")[0] == view.message:
        view.message, view.path, view.fix = notes.message, notes.path, notes.fix
        view.error = notes.cause or view.error
    if view.error == f"{view.type}: {view.message}":
        view.error = ""  # the cause would repeat the message
    return view
