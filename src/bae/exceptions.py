"""The errors that a run raises, and the problems that a proof finds. Every error is a `BaeError`
with a stable code, the trace so far and the cause. Its message ends with what to do.
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
    """A problem that `Graph.validate()` finds. It is a text to print, and its parts are
    attributes."""

    severity: Literal["error", "warning", "note"]
    """An "error" keeps a run from starting, and a "warning" does not. A "note" says how a journal
    treats a value."""
    code: str
    """A code for this kind of problem, which never changes. `docs/errors.md` explains it."""
    place: str
    """The node, field or edge with the problem."""
    message: str
    fix: str = ""
    """What to write instead."""

    def __new__(cls, severity: str, code: str, place: str, message: str, fix: str = "") -> Self:
        """Make the text to print from the parts."""
        first = f"{severity:<7} {place:<16} {message}"
        return str.__new__(cls, f"{first}\n        fix: {fix}" if fix else first)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def at(self, place: str) -> Problem:
        """Return the same problem at another place."""
        return replace(self, place=place)


def an_error(code: str, message: str, fix: str = "", place: str = "") -> Problem:
    """Make a problem that keeps a run from starting."""
    return Problem("error", code, place, message, fix)


def a_warning(code: str, message: str, fix: str = "", place: str = "") -> Problem:
    """Make a problem that does not keep a run from starting."""
    return Problem("warning", code, place, message, fix)


def _positional(*, default: Any = None, kw_only: Literal[False] = False) -> Any:
    """Mark an attribute that may be passed by position, for type checkers. Return None, which is
    then the attribute's default."""


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(_positional,))
class _Raised(Exception):
    """Has the constructor of all errors. It takes a message, a cause, and by name the attributes
    that a subclass annotates. It stores a sequence as a tuple, but a text as a text."""

    def __new__(cls, *args: Any, **attributes: Any) -> Self:
        self = super().__new__(cls, *args)
        # A user's subclass may have an `__init__` that does not call this class's `__init__`.
        message = readable(f"{args[0]}", 0) if args else ""
        self.__dict__.update(message=message, trace=[], journal=None)
        return self

    def __init__(self, message: str, cause: BaseException | None = None, **attributes: Any) -> None:
        message = readable(f"{message}", 0)  # it may quote invalid text of another program
        super().__init__(message)
        self.message = message
        self.trace: list[Node] = []
        self.journal: RunJournal | None = None
        values: dict[str, Any] = {"cause": cause, **attributes}
        for name, value in values.items():
            default = getattr(type(self), name)
            is_several = isinstance(default, tuple) and not isinstance(value, str)
            setattr(self, name, tuple(value) if is_several else value)
        self.__cause__ = cause

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        super().__setstate__(state)
        self.__cause__ = self.__dict__.get("cause")  # pickle does not keep `__cause__`


class BaeError(_Raised):
    """The base class of all errors that bae raises.

    `.trace` has the nodes that were complete when the run failed. `.journal` has everything that
    was recorded until then.
    """

    message: str = _positional()
    cause: BaseException | None = _positional(default=None)
    """The exception that caused the error. It is also the `__cause__`."""
    code: str = "bae-error"
    """A code for this kind of error, which never changes. Use it to tell errors apart in code."""
    path: str | None = None
    """Where the error happened: for a failed dependency, the path from the field to the
    function."""
    fix: str | None = None
    """What to do about the error."""
    trace_note: str = ""
    """A remark about the contents of `.trace`. It is printed after the fix."""
    run_id: str | None = None
    """The id of the run, if the run has one."""

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
    """The graph has errors, so the run did not start. No function and no LM was called.

    `graph.validate()` returns the same errors, and warnings, without a run.
    """

    code: str = "bae-proof-failed"
    problems: tuple[Problem, ...] = ()
    """All errors of the graph."""


class LoopError(BaeError, RuntimeError):
    """`graph.run`, or another function for sync callers, was called inside a running event loop."""

    code: str = "bae-run-in-loop"


class NodeError(BaeError):
    """A node's own code raised an exception, or the values for a node are not valid."""

    code: str = "bae-node-failed"
    node_type: type[Node] | None = None


class RouteError(NodeError):
    """There is no valid next node. A body, or the LLM that chooses the next node, returned
    something that the node's return type does not declare. Or the LLM made no choice."""

    code: str = "bae-route-undeclared"
    tried: Sequence[Attempt] = ()
    """The LLM's answers, if the LLM made no choice."""


class FieldError(BaeError):
    """The base class of errors about a field: the field `field_name` of the class `node_type`."""

    node_type: type[Node] | None = None
    field_name: str = ""


class DepError(FieldError):
    """A dependency of a field failed. `.node_type` and `.field_name` name the field."""

    code: str = "bae-dep-failed"


class CallTimeout(TimeoutError):
    """A dependency took longer than its `timeout`."""


class RecallError(FieldError):
    """A `Recall()` field found no value of its type in the trace."""

    code: str = "bae-recall-missing"


class GateError(FieldError):
    """A gate has no usable answer: there is no answer, or the answer does not fit the field."""

    code: str = "bae-gate-unanswered"
    gates: Sequence[OpenGate] = ()
    """The gates, with their questions."""


class ToolCallError(FieldError):
    """A tool of a field failed, or the conversation with tools ended without an answer."""

    code: str = "bae-tool-failed"
    calls: Sequence[ToolCall] = ()
    """The calls so far, with their results."""
    call_id: str = ""
    """The id of the failed call."""


class ToolServerError(BaeError):
    """An MCP server could not be opened, has ended, or offers tools that cannot be used."""

    code: str = "bae-mcp-failed"
    server: str = ""
    """The name of the server."""


class LimitError(BaeError):
    """A limit was reached."""

    code: str = "bae-limit-reached"
    limit: str = ""
    """The name of the limit."""
    bound: float = 0
    """The value of the limit."""
    used: float = 0
    """How much was used when the limit was reached."""
    looped: bool = False
    """Whether the run came to a node class twice."""


class BudgetError(LimitError):
    """A budget is spent, so bae did not send a request. Or the time of the budget is over.

    `.limit` is "calls", "tokens", "cost" or "seconds".
    """

    code: str = "bae-budget-spent"
    scope: str = ""
    """The name of the budget."""
    usage: Usage = Usage()
    """What was spent."""
    budget: Budget | None = None
    """The budget. Compare it with your own budget before you handle the error: the error may come
    from a budget in other code."""


class BaeLMError(BaeError):
    """An LM could not be asked, or there is no LM."""

    code: str = "bae-lm-failed"
    retryable: bool = False
    """Whether asking again may help."""
    retry_after: float | None = None
    """How many seconds the provider asks to wait before the next request."""
    status: int | None = None
    """The HTTP status of the response, if there was a response."""
    sent: bool = True
    """Whether a request was sent. A request that was not sent does not count as a call."""
    usage: Usage | None = None
    """What the failed request used, if the backend knows it."""
    failures: Sequence[BaseException] = ()
    """The errors of all LMs of a `Fallback`."""


class BaeParseError(BaeLMError):
    """The LLM, or the program that runs it, answered with text that is not JSON."""

    code: str = "bae-lm-unparsable"


class ScriptError(BaeLMError):
    """A scripted LM was asked a question that its script does not answer."""

    code: str = "bae-script-exhausted"


class FillError(BaeError):
    """The LLM's answers for a node were still invalid after the last attempt.

    `.code` distinguishes a refusal, an empty answer, a cut-off answer and wrong values.
    """

    code: str = "bae-fill-invalid"
    node_type: type[Node] | None = None
    validation_errors: Sequence[Any] = ()
    """The validation errors of the last answer."""
    attempts: int = 0
    """The number of answers."""
    tried: Sequence[Attempt] = ()
    """The answers, with the errors of each answer."""


class UnparsableFillError(FillError, BaeParseError):
    """A `FillError` whose last answer was not JSON."""

    code: str = "bae-fill-unparsable"


class UnparsableRouteError(RouteError, BaeParseError):
    """A `RouteError` whose last answer was not JSON."""

    code: str = "bae-choice-unparsable"


class JournalError(BaeError):
    """A journal could not be read or written, does not have the requested data, or refuses a
    request.

    No acknowledged record is lost. `.run_id` names the run, if there is one. When the cause is
    fixed, `graph.resume` continues the run.
    """

    code: str = "bae-journal-failed"
    places: Sequence[str] = ()
    """The fields that must be given again, such as `Login.token`, because the journal does not
    store them."""
    busy_run: str = ""
    """The id of the run that is in progress in the thread, if the thread is busy."""


class RunCancelled(BaeError):
    """The run was cancelled by `journal.cancel(run_id)`, perhaps in another process. If the run's
    own task is cancelled, the run raises `asyncio.CancelledError` instead."""

    code: str = "bae-run-cancelled"


class RunFailed(BaeError):
    """A run failed earlier, or in another process. `graph.result` raises this error.

    `.code` is the code of the run's error, if that error has a code. `.cause` is the error as the
    journal stores it.
    """

    code: str = "bae-run-failed"


class ReplayError(JournalError):
    """A replayed run differs from the recording."""

    code: str = "bae-replay-diverged"
    diff: str = ""
    """The text of the difference."""

    def __str__(self) -> str:
        first, *more = super().__str__().splitlines()
        return "\n".join([first, *(f"  {line}" for line in self.diff.splitlines()), *more])


class ArtifactError(BaeError):
    """The learned prompts of a node class cannot be used: the file cannot be read, or the class has
    changed since the file was written."""

    code: str = "bae-artifact-invalid"
    file: str = ""
    """The file or directory."""
    node_type: type[Node] | None = None
    """The node class. None if the error is about several classes."""
    changes: Sequence[str] = ()
    """A text for each field or successor that has changed. If the error is about several classes,
    each text begins with its class."""


def text_of(error: BaseException) -> str:
    """Return the text of any exception, as valid Unicode of limited length. If the exception's
    `__str__` fails, return a text that says so."""
    try:
        return readable(str(error))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # `__str__` is foreign code, which may do anything
        return f"(it has no text: {type(raised).__name__} in its __str__)"


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception. Do nothing if its class does not allow notes, as a frozen
    dataclass does not."""
    with suppress(Exception):
        error.add_note(note)


def describe(error: BaseException) -> str:
    """Describe any exception in one line: its type, and its message if it has one."""
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
    """Return pydantic's errors as texts of the form `field: message`. If the texts are too long
    together, the last text says how many more errors there are."""
    try:
        listed = error.errors(include_url=False, include_input=False, include_context=False)
    except Exception as raised:  # a message may contain foreign objects
        return [f"pydantic's errors cannot be read: {type(raised).__name__}"]
    messages: list[str] = []
    room = LONGEST_TEXT
    for number, detail in enumerate(listed):
        place = ".".join(str(part) for part in detail["loc"])
        line = readable(f"{place}: {detail['msg']}" if place else detail["msg"])
        room -= len(line)
        if number and room < 0:
            return [*messages, f"and {len(listed) - number:,} more"]
        messages.append(line)
    return messages
