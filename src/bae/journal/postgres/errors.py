"""What goes wrong with a journal in Postgres, as errors that say what to do."""

from __future__ import annotations

from typing import Any, Final

from bae.exceptions import JournalError, describe
from bae.journal.run_checks import thread_busy
from bae.journal.sqlite.schema import failure

_HERE: Final = {
    "bae-journal-away": (
        "{name} did not answer for {seconds:g} s",
        "see the cause; once the database is back, resume the run: what was acknowledged is stored",
    ),
    "bae-journal-schema": (
        "{name} has {what}",
        "run `bae db upgrade` with its address; it changes nothing else in the database",
    ),
    "bae-journal-extra-missing": (
        "{name} needs the package asyncpg, which is not installed",
        "pip install '.[postgres]' in a clone of bae",
    ),
    "bae-journal-lost-lines": (
        "{name} has fewer lines of run {run_id!r} than it had acknowledged: the database was "
        "replaced by a copy that is older",
        "resume the run: it continues from the lines that are there",
    ),
}


def error_of(
    code: str,
    name: str,
    run_id: str | None = None,
    cause: BaseException | None = None,
    **words: Any,
) -> JournalError:
    """The error of a code, about the journal of that name."""
    if code not in _HERE:
        return failure(code, name, run_id, cause=cause, **words)
    message, fix = _HERE[code]
    text = message.format(name=name, run_id=run_id, **words)
    return JournalError(text, code=code, run_id=run_id, cause=cause, fix=fix)


def refusal(result: dict[str, Any], name: str, run_id: str) -> JournalError:
    """The error of what the functions of the database have refused."""
    code = result["code"]
    if code == "bae-thread-busy":
        return thread_busy(result["thread"], result["busy"])
    return error_of(
        code, name, run_id, owner=result.get("owner", ""), left=max(result.get("left") or 0.0, 0.0)
    )


def failed(name: str, run_id: str | None, cause: BaseException) -> JournalError:
    """The error of something that the database said, which trying again would not change."""
    if isinstance(cause, JournalError):
        return cause
    return JournalError(
        f"{name} could not be read or written: {describe(cause)}",
        code="bae-journal-failed",
        run_id=run_id,
        cause=cause,
        fix="see the cause; once it is fixed, resume the run",
    )
