"""Why a run failed, as far as it is known: the journal has the kind of the error and its message,
and the process in which the run failed has the rest."""

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
"""How many failures are kept, the newest."""


class FailureView(BaseModel):
    """Why a run failed. `place` is the field or node that failed, and `error` what was wrong with
    that, as its cause. `path` says which function was called for which, and `fix` what to do: both
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
    """What an error says beyond its message."""

    message: str
    path: str | None
    cause: str
    fix: str | None


class Failures:
    """What the runs of this process failed with."""

    def __init__(self) -> None:
        self._by_run: OrderedDict[str, FailureNotes] = OrderedDict()

    def add(self, run_id: str, error: BaseException) -> None:
        """Keep what an error says about the failure of a run."""
        self._by_run.pop(run_id, None)
        if not isinstance(error, BaeError):
            return
        cause = "" if error.cause is None else describe(error.cause)
        self._by_run[run_id] = FailureNotes(error.message, error.path, cause, error.fix)
        if len(self._by_run) > _MOST:
            self._by_run.popitem(last=False)

    def of(self, run_id: str) -> FailureNotes | None:
        """What is known of the failure of a run."""
        return self._by_run.get(run_id)


def failure_of(stored: StoredRun, told: FailureNotes | None) -> FailureView | None:
    """Why a run has failed; None if it has not."""
    raised = read_history(stored).run.end_error
    if stored.info.status != "failed" or raised is None:
        return None
    failed = [each for each in timeline(stored).every() if each.outcome == "failed"]
    last = failed[-1] if failed else None  # the deepest: work inside comes after its whole
    is_ours = isinstance(raised, RecordedError)
    view = FailureView(
        type=raised.type_name if is_ours else type(raised).__name__,
        code=raised.code if is_ours else None,
        message=raised.message if is_ours else str(raised),
        place="" if last is None else last.place,
        error="" if last is None else last.error,
    )
    if told is not None and told.message.partition("\n")[0] == view.message:
        view.message, view.path, view.fix = told.message, told.path, told.fix
        view.error = told.cause or view.error
    if view.error == f"{view.type}: {view.message}":
        view.error = ""  # which says nothing more
    return view
