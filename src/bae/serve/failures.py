"""The errors of failed runs. The journal has the class and the message of an error. The process of
the run also knows the path, the cause and the fix."""

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
"""How many failures are kept; the oldest are dropped."""


class FailureView(BaseModel):
    """Why a run failed. `place` is the node or field that failed, and `error` the cause. `path` is
    the chain of fields and function calls that led to the error, and `fix` says what to do. Both
    are known until the server that ran the run stops."""

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
    """The failures of the runs of this process."""

    def __init__(self) -> None:
        self._by_run: OrderedDict[str, FailureNotes] = OrderedDict()

    def add(self, run_id: str, error: BaseException) -> None:
        """Keep the parts of an error that the journal does not have."""
        self._by_run.pop(run_id, None)
        if not isinstance(error, BaeError):
            return
        cause = "" if error.cause is None else describe(error.cause)
        self._by_run[run_id] = FailureNotes(error.message, error.path, cause, error.fix)
        if len(self._by_run) > _MOST:
            self._by_run.popitem(last=False)

    def of(self, run_id: str) -> FailureNotes | None:
        """The stored parts of the error of a run, or None."""
        return self._by_run.get(run_id)


def failure_of(stored: StoredRun, notes: FailureNotes | None) -> FailureView | None:
    """Why a run has failed; None if it has not."""
    raised = read_history(stored).run.end_error
    if stored.info.status != "failed" or raised is None:
        return None
    failed_work = [each for each in timeline(stored).every() if each.outcome == "failed"]
    # The last failed work is the innermost: work inside is listed after the work around it.
    last = failed_work[-1] if failed_work else None
    is_ours = isinstance(raised, RecordedError)
    view = FailureView(
        type=raised.type_name if is_ours else type(raised).__name__,
        code=raised.code if is_ours else None,
        message=raised.message if is_ours else str(raised),
        place="" if last is None else last.place,
        error="" if last is None else last.error,
    )
    if notes is not None and notes.message.partition("\n")[0] == view.message:
        view.message, view.path, view.fix = notes.message, notes.path, notes.fix
        view.error = notes.cause or view.error
    if view.error == f"{view.type}: {view.message}":
        view.error = ""  # it repeats the message
    return view
