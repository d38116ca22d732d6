"""What a run raises. Every error is a `BaeError` with a stable code, the trace so far, the cause,
and a message that ends in something to do; `docs/errors.md` explains each code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic_core import ValidationError

    from bae.markers import OpenGate
    from bae.node import Node
    from bae.problem import Problem
    from bae.recorder import RunJournal
    from bae.rooms import Budget
    from bae.usage import Attempt, Usage


class BaeError(Exception):
    """The root of every error bae raises: catch it to catch them all.

    Read `.code` to tell errors apart in code (it never changes), `.trace` for the nodes that were
    done when the run failed, `.journal` for everything that was recorded until then, and `.cause`
    for the exception underneath, which is also the `__cause__`.
    """

    default_code: ClassVar[str] = "bae-error"

    def __init__(
        self,
        message: str,
        *,
        cause: BaseException | None = None,
        code: str | None = None,
        path: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.code = code or self.default_code
        self.path = path
        self.fix = fix
        self.trace: list[Node] = []
        self.journal: RunJournal | None = None
        self.run_id: str | None = None
        if cause is not None:
            self.__cause__ = cause

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        super().__setstate__(state)
        self.__cause__ = self.cause  # pickle keeps attributes, and this one is not among them

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}"]
        if self.path:
            lines.append(f"  path:  {self.path}")
        if self.cause is not None:
            lines.append(f"  cause: {describe(self.cause)}")
        if self.fix:
            lines.append(f"  try:   {self.fix}")
        return "\n".join(lines)


class HintError(BaeError):
    """A name in a type hint could not be resolved, or a hint is not one bae can follow."""

    default_code = "bae-hint-unresolved"


class ProofError(BaeError):
    """The graph has problems that are sure to go wrong; nothing was called.

    Read `.problems` for all of them, or call `graph.validate()` to get them without running.
    """

    default_code = "bae-proof-failed"

    def __init__(
        self,
        message: str,
        *,
        problems: Sequence[Problem] = (),
        cause: BaseException | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, fix=fix)
        self.problems = tuple(problems)


class NodeError(BaeError):
    """A node's own code raised, or a node was built from values its model refuses."""

    default_code = "bae-node-failed"

    def __init__(
        self,
        message: str,
        *,
        node_type: type[Node] | None = None,
        cause: BaseException | None = None,
        code: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, code=code, fix=fix)
        self.node_type = node_type


class RouteError(NodeError):
    """A node, or the LM for it, went on to something its return type does not declare, or the LM
    made no choice; then `.tried` has its answers."""

    default_code = "bae-route-undeclared"

    def __init__(
        self,
        message: str,
        *,
        node_type: type[Node] | None = None,
        tried: Sequence[Attempt] = (),
        cause: BaseException | None = None,
        code: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, node_type=node_type, cause=cause, code=code, fix=fix)
        self.tried = tuple(tried)


class _FieldError(BaeError):
    def __init__(
        self,
        message: str,
        *,
        node_type: type[Node] | None = None,
        field_name: str = "",
        cause: BaseException | None = None,
        code: str | None = None,
        path: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, code=code, path=path, fix=fix)
        self.node_type = node_type
        self.field_name = field_name


class DepError(_FieldError):
    """A dependency of a field failed; `.node_type` and `.field_name` say whose."""

    default_code = "bae-dep-failed"


class CallTimeout(TimeoutError):
    """A dependency took longer than its bound; raised in its place."""


class RecallError(_FieldError):
    """A `Recall()` field found nothing of its type in the trace."""

    default_code = "bae-recall-missing"


class GateError(_FieldError):
    """A gate has no usable answer: none was given, or the one that was given does not fit.

    Read `.gates` for the questions that are open.
    """

    default_code = "bae-gate-unanswered"

    def __init__(
        self,
        message: str,
        *,
        gates: Sequence[OpenGate] = (),
        node_type: type[Node] | None = None,
        field_name: str = "",
        cause: BaseException | None = None,
        code: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(
            message, node_type=node_type, field_name=field_name, cause=cause, code=code, fix=fix
        )
        self.gates = tuple(gates)


class LimitError(BaeError):
    """A bound was reached: `.limit` names it, `.bound` is its value, `.used` how far it got."""

    default_code = "bae-limit-reached"

    def __init__(
        self,
        message: str,
        *,
        limit: str = "",
        bound: float = 0,
        used: float = 0,
        cause: BaseException | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, fix=fix)
        self.limit = limit
        self.bound = bound
        self.used = used


class BudgetError(LimitError):
    """A budget has nothing left for a request, so it was not sent; or its time is over.

    `.limit` is "calls", "tokens", "cost" or "seconds", `.usage` what was spent, `.scope` the name
    of the budget and `.budget` the budget itself: compare it with yours before you handle the
    error of other code.
    """

    default_code = "bae-budget-spent"

    def __init__(
        self,
        message: str,
        *,
        limit: str = "",
        bound: float = 0,
        used: float = 0,
        scope: str = "",
        usage: Usage | None = None,
        budget: Budget | None = None,
        cause: BaseException | None = None,
        code: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, limit=limit, bound=bound, used=used, cause=cause, fix=fix)
        self.code = code or self.default_code
        self.scope = scope
        if usage is None:
            from bae.usage import Usage

            usage = Usage()
        self.usage = usage
        self.budget = budget


class BaeLMError(BaeError):
    """The LM could not be asked, or there is none.

    Read `.retryable` for whether asking again may help, `.retry_after` for the seconds the
    provider asks to wait before that, and `.status` for the HTTP status, where there was one.
    `.sent` is False where nothing was sent, and so no call is counted; `.usage` is what a request
    that failed used, where its backend knows.
    """

    default_code = "bae-lm-failed"

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        sent: bool = True,
        usage: Usage | None = None,
        cause: BaseException | None = None,
        code: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, code=code, fix=fix)
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.sent = sent
        self.usage = usage


class BaeParseError(BaeLMError):
    """The LM, or the program that speaks for it, answered with something that is not JSON."""

    default_code = "bae-lm-unparsable"


class FillError(BaeError):
    """The LM's answers for a node stayed invalid after every attempt.

    Read `.validation_errors` for what was wrong with the last one, `.attempts` for how many there
    were and `.tried` for each of them. `.code` tells a refusal, an empty answer and one that was
    cut off from wrong values.
    """

    default_code = "bae-fill-invalid"

    def __init__(
        self,
        message: str,
        *,
        node_type: type[Node] | None = None,
        validation_errors: Sequence[Any] = (),
        attempts: int = 0,
        tried: Sequence[Attempt] = (),
        cause: BaseException | None = None,
        code: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, code=code, fix=fix)
        self.node_type = node_type
        self.validation_errors = list(validation_errors)
        self.attempts = attempts
        self.tried = tuple(tried)


class JournalError(BaeError):
    """A journal could not be read or written, or has not, or may not have, what was asked for.

    Nothing that was acknowledged is lost: `.run_id` names the run, where there is one, and
    `graph.resume` continues it once the cause is fixed. `.places` are the fields that must be
    given again, as `Login.token`, where it is that.
    """

    default_code = "bae-journal-failed"

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        places: Sequence[str] = (),
        cause: BaseException | None = None,
        code: str | None = None,
        path: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, code=code, path=path, fix=fix)
        self.run_id = run_id
        self.places = tuple(places)


class ReplayError(JournalError):
    """A replayed run does, or asks for, something else than was recorded; `.diff` says what."""

    default_code = "bae-replay-diverged"

    def __init__(
        self,
        message: str,
        *,
        diff: str = "",
        run_id: str | None = None,
        cause: BaseException | None = None,
        code: str | None = None,
        path: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, run_id=run_id, cause=cause, code=code, path=path, fix=fix)
        self.diff = diff

    def __str__(self) -> str:
        first, *more = super().__str__().splitlines()
        return "\n".join([first, *(f"  {line}" for line in self.diff.splitlines()), *more])


class ArtefactError(BaeError):
    """What was learnt for a node class cannot be used: its file cannot be read, or was made for a
    class that is another by now.

    `.file` is the file or directory, `.node_type` the class, and `.changes` says what is other than
    it was, one text for each field or successor. Where several files of a directory do not fit it
    is about all of them: `.node_type` is None then, and each of `.changes` begins with its class.
    """

    default_code = "bae-artefact-invalid"

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        node_type: type[Node] | None = None,
        changes: Sequence[str] = (),
        cause: BaseException | None = None,
        code: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, cause=cause, code=code, fix=fix)
        self.file = file
        self.node_type = node_type
        self.changes = tuple(changes)


def describe(error: BaseException) -> str:
    """One line for an exception: its type, and its message where it has one."""
    from pydantic_core import ValidationError

    name = type(error).__name__
    if isinstance(error, ValidationError):
        return f"{name} of {error.title}: {'; '.join(faults(error))}"
    lines = str(error).strip().splitlines()
    if not lines:
        return name
    more = f" {lines[-1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else ""
    return f"{name}: {lines[0]}{more}"


def faults(error: ValidationError) -> list[str]:
    """What pydantic found wrong, one `field: message` for each."""
    found: list[str] = []
    for each in error.errors(include_url=False):
        place = ".".join(str(part) for part in each["loc"])
        found.append(f"{place}: {each['msg']}" if place else each["msg"])
    return found
