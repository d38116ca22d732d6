"""The errors of a journal in Postgres."""

from __future__ import annotations

from typing import Any, Final

from bae.exceptions import JournalError, describe
from bae.journal.run_checks import thread_busy
from bae.journal.sqlite.schema import failure
from bae.postgres.desk import Over

_MESSAGES: Final = {
    "bae-journal-away": (
        "{name} did not answer for {seconds:g} s",
        "see the cause; when the database is back, resume the run: acknowledged steps are stored",
    ),
    "bae-journal-schema": (
        "{name} has {what}",
        "{fix}",
    ),
    "bae-journal-extra-missing": (
        "{name} needs the package asyncpg, which is not installed",
        "pip install '.[postgres]' in a clone of bae",
    ),
    "bae-journal-lost-lines": (
        "{name} has fewer lines of run {run_id!r} than it had acknowledged: the database was "
        "replaced by an older copy",
        "resume the run: it continues from the stored lines",
    ),
}


def error_of(
    code: str,
    name: str,
    run_id: str | None = None,
    cause: BaseException | None = None,
    **words: Any,
) -> JournalError:
    """Return the error with this code, about the journal `name`. `words` are the values for the
    placeholders in its message."""
    if code not in _MESSAGES:
        return failure(code, name, run_id, cause=cause, **words)
    message, fix = _MESSAGES[code]
    words |= {"name": name, "run_id": run_id}
    return JournalError(
        message.format(**words), code=code, run_id=run_id, cause=cause, fix=fix.format(**words)
    )


def over_error(why: Over, name: str, run_id: str | None = None) -> JournalError:
    """Return the error of a journal whose thread has stopped."""
    code = "bae-journal-forked" if why == "forked" else "bae-journal-closed"
    return error_of(code, name, run_id)


def wrong_schema(name: str, version: int, newest: int) -> JournalError:
    """Return the error for tables that this bae cannot use. Version 0 means that there are no
    tables."""
    fact = "no tables of bae" if not version else f"tables of version {version}"
    fix = f"run `bae db upgrade -j {name}`; it changes nothing else in the database"
    if version > newest:
        fact += f", and this bae knows versions up to {newest}"
        fix = "update bae on this machine: a newer bae has upgraded the tables"
    elif version:
        fact += f", and this bae needs version {newest}"
        fix += ", and afterwards processes with an older bae are refused"
    return error_of("bae-journal-schema", name, what=fact, fix=fix)


def refusal(result: dict[str, Any], name: str, run_id: str) -> JournalError:
    """Return the error for a job that the database refused. `result` is the answer of the function
    that refused it."""
    code = result["code"]
    if code == "bae-thread-busy":
        return thread_busy(result["thread"], result["busy"])
    return error_of(
        code, name, run_id, owner=result.get("owner", ""), left=max(result.get("left") or 0.0, 0.0)
    )


def permanent_error(
    name: str,
    run_id: str | None,
    cause: BaseException,
    fix: str = "see the cause; once it is fixed, resume the run",
) -> JournalError:
    """Return the error for a failure that would be the same at the next attempt. If the cause is a
    JournalError already, return the cause."""
    if isinstance(cause, JournalError):
        return cause
    return JournalError(
        f"{name} could not be read or written: {describe(cause)}",
        code="bae-journal-failed",
        run_id=run_id,
        cause=cause,
        fix=fix,
    )
