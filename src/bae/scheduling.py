"""The scheduler of a run's dataflow. It computes a value as soon as the inputs of the value are
known, and cancels the work when nothing needs the value any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from bae.exceptions import BaeError, DepError, JournalError, add_note, describe
from bae.failures import close_failed
from bae.place import Place
from bae.records import NOTHING, Asker, LMUsed, SourceEnded, SourceStarted
from bae.run import Run, Waiting
from bae.tasks import Closer, cancellations, wait_until_ended
from bae.usage import Usage, meter_in_force

if TYPE_CHECKING:
    from contextvars import Context

    from bae.arguments import Arguments
    from bae.calls import CallPlan
    from bae.node import Node

Compute = Callable[["PendingValue"], Coroutine[Any, Any, Any]]


@dataclass(slots=True, eq=False, repr=False)
class PendingValue:
    """One value that is being computed, or is known: of a field of a node, or of a parameter of the
    function behind the field. `name` is that of the function, graph or question."""

    run: Run
    node_type: type[Node]
    place: Place
    name: str = ""
    source: str = "dep"
    compute: Compute | None = None
    inputs: Sequence[tuple[str, PendingValue]] = ()
    call: CallPlan | None = None
    asked: Arguments | None = None
    """The arguments of the function that come from the run, once they are known."""
    settle: Callable[[Any], bool] | None = None
    """Called when all inputs are known. Returns whether this value itself is to be computed."""
    done: bool = False
    value: Any = None
    is_validated: bool = False
    """Whether the node has validated the value, because it was known before."""
    error: BaseException | None = None
    failed_input: tuple[str, PendingValue] | None = None
    """The input whose failure made this value fail."""
    failed_item: int | None = None
    """The item of a map that failed."""
    task: asyncio.Task[None] | None = None
    users: int = 1
    """How many users still want the value."""
    missing: int = 0
    """How many inputs are not known yet."""
    dependents: list[PendingValue] = field(default_factory=list["PendingValue"])
    waiters: dict[_Waiter, None] = field(default_factory=dict["_Waiter", None])
    """In order; each waiter can leave in constant time."""
    cancelled: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """Tasks that were cancelled because of this failure. Waiters for the value await them."""
    awaited: dict[_Waiter, Sequence[PendingValue]] = field(
        default_factory=dict["_Waiter", "Sequence[PendingValue]"]
    )
    """The values that the work on this value waits for, besides its inputs."""

    @property
    def asker(self) -> Asker:
        """The asker in questions of the function behind this value to an LM."""
        return Asker("source", self.node_type, self.place.field, self.place.parameter)

    def arguments(self) -> dict[str, Any]:
        """The values of the inputs, by parameter."""
        return {parameter: below.value for parameter, below in self.inputs}

    def ended(
        self,
        value: Any,
        error: BaseException | None = None,
        seconds: float = 0.0,
        called_at: str = "",
    ) -> SourceEnded:
        """The record of how the work on this value ended."""
        place, outcome = self.place, (seconds, value, error)
        where = time(), place.path, place.step, self.node_type, place.field
        what = self.source, self.name, *outcome, place.parameter, called_at
        return SourceEnded(*where, *what)

    def waits_for(self, other: PendingValue) -> bool:
        """Whether this value needs another value first."""
        ahead: list[PendingValue] = [self]
        seen: set[PendingValue] = {self}
        for pending in ahead:
            if pending is other:
                return True
            below = [each for _, each in pending.inputs]
            for values in pending.awaited.values():
                below.extend(values)
            for each in below:
                if not each.done and each not in seen:
                    seen.add(each)
                    ahead.append(each)
        return False

    def failure_path(self, start: str) -> str:
        """The path from `start`, the field that asked, to the function that failed."""
        parts = [start]
        pending: PendingValue = self
        while pending.failed_input is not None:
            parameter, below = pending.failed_input
            parts.append(f"{pending.name}({parameter})")
            pending = below
        item = pending.failed_item
        parts.append(f"{pending.name}()" if item is None else f"{pending.name}[{item}]")
        return " <- ".join(parts)


class _Waiter:
    """Waits for several values: until all are done, or one has failed."""

    __slots__ = ("failed", "future", "optional", "pending")

    def __init__(self, values: Iterable[PendingValue], optional: Set[PendingValue]) -> None:
        self.optional = optional
        self.pending = 0
        self.failed: PendingValue | None = None
        self.future: asyncio.Future[None] | None = None
        for value in values:
            if value.done:
                self._check(value)
            elif self not in value.waiters:  # two fields may have one value
                self.pending += 1
                value.waiters[self] = None

    def take(self, value: PendingValue) -> None:
        """Note that a value is done."""
        self.pending -= 1
        self._check(value)
        over = self.pending == 0 or self.failed is not None
        if over and self.future is not None and not self.future.done():
            self.future.set_result(None)

    def _check(self, value: PendingValue) -> None:
        if value.error is None or isinstance(value.error, Waiting) or self.failed is not None:
            return
        if value not in self.optional or not _has_default(value.error):
            self.failed = value


def _has_default(error: BaseException) -> bool:
    """Whether a default replaces a value with this failure. It does not replace a value that a
    journal cannot store, and not after an error that `except Exception` would not catch."""
    while isinstance(error, BaeError) and error.cause is not None:
        if isinstance(error, JournalError):
            return False
        error = error.cause
    own = isinstance(error, Exception | asyncio.CancelledError)
    return own and not isinstance(error, JournalError)


class Scheduler:
    """The values of a run that are being computed, including those of graphs inside it, and the
    resources that were opened for them. `context` is the context of the calls, unless it is the
    asker's."""

    def __init__(self, context: Context | None = None) -> None:
        self._context = context
        self.closers: list[tuple[str, Closer]] = []
        self.ahead: dict[Run, list[PendingValue]] = {}
        """The values that were started early, by the run whose next node needs them."""

    def add(self, pending: PendingValue) -> PendingValue:
        """Add a value: its work starts now, or when the last of its inputs is known."""
        for parameter, below in pending.inputs:
            if not below.done:
                pending.missing += 1
                below.dependents.append(pending)
            elif below.error is not None:
                self._end(pending, error=below.error, failed_input=(parameter, below))
                return pending
        if not pending.missing:
            self._start(pending)
        return pending

    async def gather(
        self, values: Sequence[PendingValue], optional: Set[PendingValue] = frozenset()
    ) -> PendingValue | None:
        """Wait until all values are done, and return None. When a value fails, cancel the others,
        wait until they have ended, and return the failed value. Failures of `optional` values do
        not count. Gates without an answer delay nothing: they are raised together, as `Waiting`,
        when everything else is done.
        """
        waiter = _Waiter(values, optional)
        by = _computed.get()
        try:
            if by is not None:
                _refuse_cycle(by, values)
                by.awaited[waiter] = values
            if waiter.pending and waiter.failed is None:
                waiter.future = asyncio.get_running_loop().create_future()
                await waiter.future
        finally:
            left: list[asyncio.Task[None]] = []
            if by is not None:
                by.awaited.pop(waiter, None)
            for value in values:
                left.extend(value.cancelled)
                if not value.done:
                    value.waiters.pop(waiter, None)
                    left.extend(self.release(value))
            if left:
                await wait_until_ended(left)
        if waiter.failed is not None:
            return waiter.failed
        gates = [gate for v in values if isinstance(v.error, Waiting) for gate in v.error.gates]
        if gates:
            raise Waiting([*{id(gate): gate for gate in gates}.values()])
        return None

    def release(self, pending: PendingValue) -> list[asyncio.Task[None]]:
        """Stop being a user of a value. Returns the tasks that were cancelled because the value has
        no user left. Await them with `wait_until_ended`."""
        pending.users -= 1
        if pending.users > 0 or pending.done:
            return []
        pending.done = True
        pending.error = asyncio.CancelledError()
        self._drop(pending)
        if pending.task is not None:
            pending.task.cancel()
            return [pending.task]
        return self._release_inputs(pending)

    def start_ahead(self, run: Run) -> list[PendingValue]:
        """A list for the values that are started early, for the next node of a run."""
        return self.ahead.setdefault(run, [])

    async def let_go_ahead(self, run: Run) -> None:
        """Stop being a user of the values that were started early for a run."""
        ahead = self.ahead.pop(run)
        await wait_until_ended(
            [task for one in ahead for task in [*one.cancelled, *self.release(one)]]
        )

    def on_close(self, name: str, closer: Closer) -> None:
        """Call `closer` when the run is over. `name` is the function that opened the resource."""
        self.closers.append((name, closer))

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close what was opened, the newest first. All are closed, even if some raise. Returns the
        first error. A cancellation in the meantime is raised at the end, even if the code that was
        being closed replaced it by another error."""
        raised: BaseException | None = None
        asked = cancellations()
        while self.closers:
            name, closer = self.closers.pop()
            try:
                await closer(error)
            except BaseException as caught:
                if caught is error:  # a context manager that does not handle it raises it again
                    continue
                add_note(caught, f"while closing what {name} opened")
                raised = raised or caught
        if cancellations() > asked:
            raise asyncio.CancelledError from raised
        return raised

    async def close_after(self, failure: BaseException | None) -> BaseException | None:
        """Close what was opened, and return the error that a run with this failure ends with."""
        try:
            raised = await self.close(None if isinstance(failure, Waiting) else failure)
        except asyncio.CancelledError as cancelled:
            return cancelled
        if raised is None:
            return failure
        if failure is not None and not isinstance(failure, Waiting):
            add_note(failure, f"and then this was raised: {describe(raised)}")
            return failure
        own = isinstance(raised, Exception | asyncio.CancelledError)
        return close_failed(raised) if own else raised

    def _start(self, pending: PendingValue) -> None:
        if pending.settle is not None and not pending.settle(pending):
            return
        # Without the loop's task factory, which may be eager: a value that is done before all its
        # users have asked would be dropped, and computed again for the next user.
        loop = asyncio.get_running_loop()
        context = None if self._context is None else self._context.copy()
        pending.task = asyncio.Task(self._compute(pending), loop=loop, context=context)
        # A task that is cancelled before it first runs never ends its value itself.
        pending.task.add_done_callback(lambda task: self._task_ended(pending, task))

    async def _compute(self, pending: PendingValue) -> None:
        place, run, writer = pending.place, pending.run, pending.run.writer
        started, asker = perf_counter(), pending.asker
        known = run.past.value(place, pending.node_type, False, pending.asked)
        if known is not NOTHING:
            self._end(pending, known)
            return
        await writer.confirm()
        what = pending.node_type, place.field, pending.source, pending.name
        writer.write(SourceStarted(time(), place.path, place.step, *what, place.parameter))
        value: Any = None
        failure: BaseException | None = None
        _computed.set(pending)  # never reset: the task has a context of its own
        used: list[Usage] = []
        token = meter_in_force.set((used.append, partial(run.watch, asker, step=place.step)))
        try:
            assert pending.compute is not None
            value = await pending.compute(pending)
        except asyncio.CancelledError as error:
            if cancellations():
                raise
            failure = error  # the function raised it by itself: an ordinary failure
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):  # for the loop itself
                raise
            failure = error
        finally:
            meter_in_force.reset(token)
            if used:
                usage = Usage.total(used)
                writer.write(LMUsed(time(), place.path, place.step, asker, usage))
        ended = pending.ended(value, failure, perf_counter() - started)
        if failure is None:
            await writer.store_value(ended, pending.asked)
        else:
            writer.write(ended)
        self._end(pending, value, failure, pending.failed_input)

    def _task_ended(self, pending: PendingValue, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._end(pending, error=asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._end(pending, error=error)

    def _end(
        self,
        pending: PendingValue,
        value: Any = None,
        error: BaseException | None = None,
        failed_input: tuple[str, PendingValue] | None = None,
    ) -> None:
        if pending.done:
            return
        pending.done, pending.value, pending.error = True, value, error
        pending.failed_input = failed_input
        if error is not None:
            pending.cancelled.extend(self._release_inputs(pending))
            if failed_input is not None:
                pending.cancelled.extend(failed_input[1].cancelled)
        for waiter in pending.waiters:  # before the dependents: the asker of this value is first
            waiter.take(pending)
        if error is None:
            self._keep(pending)
        for dependent in pending.dependents:
            self._take_input(dependent, pending)

    def _take_input(self, pending: PendingValue, below: PendingValue) -> None:
        """An input of a value is done."""
        if below.error is not None:
            name = next(name for name, each in pending.inputs if each is below)
            self._end(pending, error=below.error, failed_input=(name, below))
            return
        pending.missing -= 1
        if pending.missing == 0 and not pending.done:
            self._start(pending)

    def _keep(self, pending: PendingValue) -> None:
        """Called when a value was computed."""

    def _drop(self, pending: PendingValue) -> None:
        """Called when a value is not computed after all."""

    def _release_inputs(self, pending: PendingValue) -> list[asyncio.Task[None]]:
        cancelled: list[asyncio.Task[None]] = []
        for _, below in pending.inputs:
            if not below.done:
                cancelled.extend(self.release(below))
        return cancelled


_computed: ContextVar[PendingValue | None] = ContextVar("bae_computed", default=None)
"""The value that is being computed here."""


def _refuse_cycle(by: PendingValue, values: Sequence[PendingValue]) -> None:
    """Raise an error if the work on a value is about to wait for that same value."""
    for value in values:
        if not value.done and value.waits_for(by):
            raise DepError(
                f"{value.place.node}.{value.place.field}: {by.name} has an LM make a node that "
                f"cannot be made before {by.name} has returned",
                code="bae-dep-cycle",
                node_type=value.node_type,
                field_name=value.place.field,
                fix=f"leave that field out of what {by.name} has made, or give it in `resolved`",
            )


def known_value(
    run: Run, node_type: type[Node], place: Place, value: Any, is_validated: bool = False
) -> PendingValue:
    """A value that is known already; `is_validated` if the node has validated it."""
    return PendingValue(run, node_type, place, done=True, value=value, is_validated=is_validated)
