"""Refusals of requests as problem details (RFC 9457). A refusal has the fault, its place, and the
fix."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from bae.exceptions import BaeError, GateError, JournalError, describe

_log = logging.getLogger("bae")
LONGEST: Final = 20
"""The maximum number of faults that a refusal lists."""


class InputFault(BaseModel):
    """A fault of a request. `loc` is the place of the fault, and `msg` describes the fault."""

    loc: list[str | int]
    msg: str


class ProblemDetails(BaseModel):
    """Why a request was refused.

    - `type`: the code of the error. `docs/errors.md` explains the codes.
    - `detail`: what is wrong.
    - `place`: the field of the request or of a run that is wrong.
    - `fix`: what to do.
    - `errors`: all faults of the request.
    - `answer`, `answered_by`: the earlier answer to a question, and the person who answered.
    """

    type: str
    title: str
    status: int
    detail: str
    place: str | None = None
    fix: str | None = None
    run_id: str | None = None
    errors: list[InputFault] = Field(default_factory=list[InputFault])
    answered_by: str | None = None
    answer: Any = None
    """The earlier answer to a question."""


class Refused(Exception):
    """Raised to refuse a request. The API sends the `body`."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        fix: str = "",
        *,
        place: str = "",
        run_id: str = "",
        errors: Sequence[InputFault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.headers = dict(headers or {})
        self.body = ProblemDetails(
            type=code,
            title=_TITLES.get(status, "Refused"),
            status=status,
            detail=detail,
            place=place or None,
            fix=fix or None,
            run_id=run_id or None,
            errors=list(errors),
        )

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return self.body.status

    def response(self) -> Response:
        """Return the response that the API sends."""
        text = self.body.model_dump_json(exclude_none=True)
        return Response(text, self.status, self.headers, media_type="application/problem+json")


_TITLES: Final = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    422: "Invalid input",
    429: "Too many requests",
    500: "Server error",
    502: "The model failed",
    503: "Not available",
}
_STATUS: Final = {
    "bae-approval-unknown": 404,
    "bae-run-unknown": 404,
    "bae-gate-unknown": 404,
    "bae-why-unknown": 404,
    "bae-run-name": 422,
    "bae-thread-name": 422,
    "bae-fork-step": 422,
    "bae-fork-field": 422,
    "bae-gate-invalid": 422,
    "bae-journal-secret": 422,
    "bae-journal-given": 422,
    "bae-journal-away": 503,
    "bae-journal-closed": 503,
    "bae-journal-damaged": 500,
    "bae-journal-extra-missing": 500,
    "bae-journal-failed": 500,
    "bae-journal-foreign": 500,
    "bae-journal-forked": 500,
    "bae-journal-full": 503,
    "bae-journal-gone": 500,
    "bae-journal-locked": 503,
    "bae-journal-lost-lines": 503,
    "bae-journal-readonly": 500,
    "bae-journal-schema": 500,
    "bae-journal-version": 500,
}
"""The HTTP status for an error, by its code. An error of a run or a gate that is not in this table
is a conflict: 409."""
_FIXES: Final = {
    "bae-gate-answered": "GET /runs/R/gates?past=true shows the answer",
    "bae-gate-cancelled": "POST /runs/R/resume continues the run, which then asks again",
    "bae-run-ended": "fork the run to repeat a part of it: POST /runs/R/forks",
    "bae-thread-busy": "wait for the end of that run, answer its question, or cancel it with "
    '"busy": "cancel"',
    "bae-why-pending": "look again when the run has continued",
}
"""Fixes for clients of the API. The fixes of these errors in Python are Python calls."""


def refusal_of(error: BaseException, *before: str | int) -> Refused | None:
    """Return the refusal for an error, or None for an unexpected error. `before` is the place of
    the wrong value in the request."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ValidationError):
        return input_refusal(error)
    if not isinstance(error, BaeError):
        return None
    if error.code == "bae-run-unknown" and isinstance(error, JournalError):
        return unknown_run(error.run_id or "")
    status = _STATUS.get(error.code)
    if status is None:
        status = 409 if isinstance(error, JournalError | GateError) else 500
    headers = {"retry-after": "5"} if status == 503 else None
    run_id = error.run_id if isinstance(error, JournalError) else None
    cause = error.cause if isinstance(error.cause, ValidationError) else None
    errors = [] if cause is None else faults_of(cause, *(before or ("value",)))
    if before and status == 422 and not errors:
        errors = [InputFault(loc=[*before], msg=error.message)]
    # The message of such an error names the file or the database of the journal. The client must
    # not learn these names, so only the log has the message.
    is_inner = status >= 500 and isinstance(error, JournalError)
    fix = _FIXES.get(error.code) or error.fix or ""
    if isinstance(error, JournalError) and error.places:
        secret_places = ", ".join(f'"{place}": …' for place in error.places)
        fix = f'give the values again: POST /runs/R/resume with {{"given": {{{secret_places}}}}}'
    return Refused(
        status,
        error.code,
        "the runs cannot be read or written: see the log of the server"
        if is_inner
        else error.message,
        "" if is_inner else fix,
        run_id=run_id or "",
        place=".".join(str(part) for part in errors[0].loc) if errors and before else "",
        errors=errors,
        headers=headers,
    )


def not_resumed_refusal(error: BaeError, stored: str, run_id: str) -> Refused | None:
    """Return the refusal of a request whose run could not be resumed. `stored` says what the
    journal has stored, such as "the answer is stored". Return None for an error of the server."""
    refused = refusal_of(error)
    if refused is None or refused.status >= 500:
        return None
    return Refused(
        409,
        refused.body.type,
        f"{stored}, but the run does not continue: {refused.body.detail}",
        refused.body.fix or "",
        run_id=run_id,
    )


def make_refusal(error: BaseException, what: str) -> Refused:
    """Return the refusal for any error. For an error of the server, write to the log that `what`
    failed."""
    refused = refusal_of(error)
    if refused is None or refused.status >= 500:
        _log.error("%s failed: %s", what, describe(error), exc_info=error)
    return refused or Refused(500, "bae-serve-failed", "the request failed: see the log")


def unknown_run(run_id: str) -> Refused:
    """Return the refusal for a run that does not exist. A run that the user may not see gets the
    same refusal, so the user cannot find out that the run exists."""
    return Refused(
        404,
        "bae-run-unknown",
        f"there is no run {run_id[:200]!r}",
        "list the runs: it may be in another journal, or was deleted",
    )


def input_refusal(error: ValidationError, *before: str | int) -> Refused:
    """Return the refusal of invalid input. `before` is the place of the input in the request."""
    errors = faults_of(error, *before)
    first = errors[0]
    where = ".".join(str(part) for part in first.loc)
    return Refused(
        422,
        "bae-serve-input",
        f"{where}: {first.msg}" if where else first.msg,
        "GET /openapi.json has the schema of this endpoint",
        place=where,
        errors=errors,
    )


def wrong_input(loc: Sequence[str | int], msg: str, fix: str) -> Refused:
    """Return the refusal of one wrong part of a request. `loc` is the place of the part."""
    place = ".".join(map(str, loc))
    fault = InputFault(loc=[*loc], msg=msg)
    return Refused(422, "bae-serve-input", f"{place}: {msg}", fix, place=place, errors=[fault])


def faults_of(error: ValidationError, *before: str | int) -> list[InputFault]:
    """Return the faults that pydantic found. The values are left out, because they may be
    secrets."""
    details: list[dict[str, Any]]
    try:
        details = [*error.errors(include_url=False, include_input=False, include_context=False)]  # type: ignore[list-item]
    except Exception:  # a message may come from the user's code, which may raise
        return [InputFault(loc=list(before), msg="it does not fit")]
    return [
        InputFault(loc=[*before, *detail["loc"]], msg=str(detail["msg"]))
        for detail in details[:LONGEST]
    ]
