"""The errors that a run raises and the problems that a proof finds. Every error is a `BaeError`
with a stable code, the trace so far, the cause, and a message that ends in something to do.
`docs/errors.md` explains each code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, dataclass_transform

from bae.unicode import LONGEST_TEXT, readable
from bae.usage import Usage

if TYPE_CHECKING:
    from pydantic_core import ValidationError

    from bae.markers import OpenGate
    from bae.node import Node
    from bae.result import RunJournal
    from bae.rooms import Budget
    from bae.tools import ToolCall
    from bae.usage import Attempt


@dataclass(frozen=True, slots=True, eq=False)
class Problem(str):
    """One problem that `Graph.validate()` finds: a text to print, with its parts by name.

    `code` never changes and is explained in `docs/errors.md`. `place` is the node, field or edge.
    `fix` says what to write instead. An error keeps a run from starting, and a warning does not. A
    note says how a journal treats a value.
    """

    severity: Literal["error", "warning", "note"]
    code: str
    place: str
    message: str
    fix: str = ""

    def __new__(cls, severity: str, code: str, place: str, message: str, fix: str = "") -> Self:
        """Make the text that is printed from the parts."""
        first = f"{severity:<7} {place:<16} {message}"
        return str.__new__(cls, f"{first}\n        fix: {fix}" if fix else first)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def at(self, place: str) -> Problem:
        """The same problem at another place."""
        return replace(self, place=place)


def an_error(code: str, message: str, fix: str = "", place: str = "") -> Problem:
    """A problem that keeps a run from starting."""
    return Problem("error", code, place, message, fix)


def a_warning(code: str, message: str, fix: str = "", place: str = "") -> Problem:
    """A problem that a run may meet."""
    return Problem("warning", code, place, message, fix)


def _positional(*, default: Any = None, kw_only: Literal[False] = False) -> Any:
    """The default, None, of an attribute that may be passed by position."""


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(_positional,))
class _Raised(Exception):
    """Takes a message and a cause, and by name the attributes that a subclass annotates. Sequences
    are stored as tuples, a text as it is."""

    def __new__(cls, *args: Any, **attributes: Any) -> Self:
        self = super().__new__(cls, *args)
        # For a subclass of a user that does not call `__init__`.
        message = readable(f"{args[0]}", 0) if args else ""
        self.__dict__.update(message=message, trace=[], journal=None)
        return self

    def __init__(self, message: str, cause: BaseException | None = None, **attributes: Any) -> None:
        message = readable(f"{message}", 0)  # it may quote text of others
        super().__init__(message)
        self.message = message
        self.trace: list[Node] = []
        self.journal: RunJournal | None = None
        given: dict[str, Any] = {"cause": cause, **attributes}
        for name, value in given.items():
            default = getattr(type(self), name)
            is_several = isinstance(default, tuple) and not isinstance(value, str)
            setattr(self, name, tuple(value) if is_several else value)
        self.__cause__ = cause

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        super().__setstate__(state)
        self.__cause__ = self.__dict__.get("cause")  # pickle does not keep `__cause__`


class BaeError(_Raised):
    """The root of every error that bae raises: catch it to catch them all.

    Read `.code` to tell errors apart in code (it never changes). `.trace` has the nodes that were
    complete when the run failed, and `.journal` everything that was recorded until then. `.cause`
    is the exception underneath, which is also the `__cause__`.
    """

    message: str = _positional()
    cause: BaseException | None = _positional(default=None)
    code: str = "bae-error"
    path: str | None = None
    fix: str | None = None
    trace_note: str = ""
    """What `.trace` holds; printed after the fix."""
    run_id: str | None = None

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}"]
        if self.path:
            lines.append(f"  path:  {self.path}")
        if self.cause is not None:
            lines.append(f"  cause: {describe(self.cause)}")
        if self.fix:
            note = f"; {self.trace_note}" if self.trace_note else ""
            lines.append(f"  try:   {self.fix}{note}")
        return "\n".join(lines)


class HintError(BaeError):
    """A name in a type hint could not be resolved, or bae cannot follow the hint."""

    code: str = "bae-hint-unresolved"


class ProofError(BaeError):
    """The graph has errors that are sure to make a run fail; nothing was called.

    Read `.problems` for all of them, or call `graph.validate()` to get them without running.
    """

    code: str = "bae-proof-failed"
    problems: tuple[Problem, ...] = ()


class LoopError(BaeError, RuntimeError):
    """`graph.run`, or another function for sync callers, was called inside a running event loop."""

    code: str = "bae-run-in-loop"


class NodeError(BaeError):
    """A node's own code raised, or a node was built from values its model refuses."""

    code: str = "bae-node-failed"
    node_type: type[Node] | None = None


class RouteError(NodeError):
    """A node, or the LM that chose for it, returned something that its return type does not
    declare. Or the LM made no choice; `.tried` then has its answers."""

    code: str = "bae-route-undeclared"
    tried: Sequence[Attempt] = ()


class FieldError(BaeError):
    node_type: type[Node] | None = None
    field_name: str = ""


class DepError(FieldError):
    """A dependency of a field failed; `.node_type` and `.field_name` name the field."""

    code: str = "bae-dep-failed"


class CallTimeout(TimeoutError):
    """A dependency took longer than its bound."""


class RecallError(FieldError):
    """A `Recall()` field found no value of its type in the trace."""

    code: str = "bae-recall-missing"


class GateError(FieldError):
    """A gate has no usable answer: there is no answer, or the answer does not fit the field.

    Read `.gates` for the open questions.
    """

    code: str = "bae-gate-unanswered"
    gates: Sequence[OpenGate] = ()


class ToolCallError(FieldError):
    """A tool of a field failed, or its conversation reached no answer. `.calls` are the calls so
    far, with their results, and `.call_id` is the id of the failed call."""

    code: str = "bae-tool-failed"
    calls: Sequence[ToolCall] = ()
    call_id: str = ""


class ToolServerError(BaeError):
    """A server of tools could not be opened, has ended, or offers tools that cannot be used.
    `.server` is its name."""

    code: str = "bae-mcp-failed"
    server: str = ""


class LimitError(BaeError):
    """A bound was reached: `.limit` names it, `.bound` is its value, and `.used` how far it got.
    `.looped` is True if the run met a node class twice."""

    code: str = "bae-limit-reached"
    limit: str = ""
    bound: float = 0
    used: float = 0
    looped: bool = False


class BudgetError(LimitError):
    """A budget is spent, so a request was not sent; or the time of the budget is over.

    `.limit` is "calls", "tokens", "cost" or "seconds", and `.usage` what was spent. `.scope` is the
    name of the budget, and `.budget` the budget itself: compare it with your own budget before you
    handle an error that may come from other code.
    """

    code: str = "bae-budget-spent"
    scope: str = ""
    usage: Usage = Usage()
    budget: Budget | None = None


class BaeLMError(BaeError):
    """The LM could not be asked, or there is no LM.

    `.retryable` says whether asking again may help, and `.retry_after` how many seconds the
    provider asks to wait before that. `.status` is the HTTP status, if there was one. `.sent` is
    False if no request was sent; then no call is counted. `.usage` is what the failed request used,
    if the backend knows it. `.failures` are the errors of all LMs of a `Fallback`.
    """

    code: str = "bae-lm-failed"
    retryable: bool = False
    retry_after: float | None = None
    status: int | None = None
    sent: bool = True
    usage: Usage | None = None
    failures: Sequence[BaseException] = ()


class BaeParseError(BaeLMError):
    """The LM, or the program that runs it, answered with something that is not JSON."""

    code: str = "bae-lm-unparsable"


class ScriptError(BaeLMError):
    """A scripted LM was asked a question that its script has no answer for."""

    code: str = "bae-script-exhausted"


class FillError(BaeError):
    """The LM's answers for a node stayed invalid after every attempt.

    `.validation_errors` has what was wrong with the last answer, `.attempts` how many answers there
    were, and `.tried` each of them. `.code` tells a refusal, an empty answer and a cut-off answer
    from wrong values.
    """

    code: str = "bae-fill-invalid"
    node_type: type[Node] | None = None
    validation_errors: Sequence[Any] = ()
    attempts: int = 0
    tried: Sequence[Attempt] = ()


class UnparsableFillError(FillError, BaeParseError):
    """A `FillError` whose last answer was not JSON."""

    code: str = "bae-fill-unparsable"


class UnparsableRouteError(RouteError, BaeParseError):
    """A `RouteError` whose last answer was not JSON."""

    code: str = "bae-choice-unparsable"


class JournalError(BaeError):
    """A journal could not be read or written, does not have what was asked for, or refuses it.

    Nothing that was acknowledged is lost: `.run_id` names the run, if there is one, and
    `graph.resume` continues it once the cause is fixed. `.places` are the fields that must be
    given again, as `Login.token`, if the journal needs them. `.busy_run` is the run that keeps its
    thread busy.
    """

    code: str = "bae-journal-failed"
    places: Sequence[str] = ()
    busy_run: str = ""


class RunCancelled(BaeError):
    """The run was cancelled by a request, `journal.cancel(run_id)`, perhaps of another process. A
    run whose own task is cancelled raises `asyncio.CancelledError` instead."""

    code: str = "bae-run-cancelled"


class RunFailed(BaeError):
    """A run has failed in another process, or earlier: `graph.result` raises it. `.code` is the
    code of the run's error, if it has one, and `.cause` the error as the journal has it."""

    code: str = "bae-run-failed"


class ReplayError(JournalError):
    """A replayed run differs from the recording; `.diff` shows how."""

    code: str = "bae-replay-diverged"
    diff: str = ""

    def __str__(self) -> str:
        first, *more = super().__str__().splitlines()
        return "\n".join([first, *(f"  {line}" for line in self.diff.splitlines()), *more])


class ArtifactError(BaeError):
    """The learned prompts of a node class cannot be used: the file cannot be read, or was made for
    a class that has changed since.

    `.file` is the file or directory, and `.node_type` the class. `.changes` has one text for each
    field or successor that has changed. If several files of a directory do not fit, the error is
    about all of them: `.node_type` is None, and each of `.changes` begins with its class.
    """

    code: str = "bae-artifact-invalid"
    file: str = ""
    node_type: type[Node] | None = None
    changes: Sequence[str] = ()


def text_of(error: BaseException) -> str:
    """The text of any exception: Unicode of a bounded length, also where its `__str__` fails."""
    try:
        return readable(str(error))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # `__str__` is foreign code, which may do anything
        return f"(it has no text: {type(raised).__name__} in its __str__)"


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, where its class allows that: a frozen dataclass does not."""
    with suppress(Exception):
        error.add_note(note)


def describe(error: BaseException) -> str:
    """One line for any exception: its type, and its message where it has one."""
    from pydantic_core import ValidationError

    name = type(error).__name__
    if isinstance(error, ValidationError):
        return f"{name} of {error.title}: {'; '.join(faults(error))}"
    lines = text_of(error).strip().splitlines()
    if not lines:
        return name
    more = f" {lines[-1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else ""
    return f"{name}: {lines[0]}{more}"


def faults(error: ValidationError) -> list[str]:
    """The errors of pydantic, as one `field: message` each, as many as there is room for."""
    try:
        listed = error.errors(include_url=False, include_input=False, include_context=False)
    except Exception as raised:  # a message may contain foreign objects
        return [f"pydantic's errors cannot be read: {type(raised).__name__}"]
    messages: list[str] = []
    room = LONGEST_TEXT
    for number, each in enumerate(listed):
        place = ".".join(str(part) for part in each["loc"])
        line = readable(f"{place}: {each['msg']}" if place else each["msg"])
        room -= len(line)
        if number and room < 0:
            return [*messages, f"and {len(listed) - number:,} more"]
        messages.append(line)
    return messages
