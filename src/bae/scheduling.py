"""The scheduler of a run's dataflow. It computes each value as soon as its inputs are known. When
nothing needs the value any more, it cancels the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from bae.exceptions import BaeError, DepError, JournalError, add_note, describe
from bae.failures import close_error
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
    """The value of a field, or of a `Dep` parameter, while it is computed and afterwards."""

    run: Run
    node_type: type[Node]
    place: Place
    name: str = ""
    """The name of the function or graph, or the question of a gate."""
    source: str = "dep"
    compute: Compute | None = None
    inputs: Sequence[tuple[str, PendingValue]] = ()
    """The values that are needed first, by parameter."""
    call: CallPlan | None = None
    asked: Arguments | None = None
    """The arguments that come from the run, once they are known."""
    settle: Callable[[Any], bool] | None = None
    """The scheduler calls it when all inputs are known. It returns False if this value need not be
    computed: it is done, or shares the value of an equal call."""
    done: bool = False
    value: Any = None
    is_validated: bool = False
    """Whether the value comes from a node that has validated it."""
    error: BaseException | None = None
    failed_input: tuple[str, PendingValue] | None = None
    """The input whose failure made this value fail."""
    failed_item: int | None = None
    """The item of a map that failed."""
    task: asyncio.Task[None] | None = None
    users: int = 1
    """How many fields and calls still need the value."""
    missing: int = 0
    """How many inputs are not done yet."""
    dependents: list[PendingValue] = field(default_factory=list["PendingValue"])
    """The values that have this value as an input."""
    waiters: dict[_Waiter, None] = field(default_factory=dict["_Waiter", None])
    """The waiters in order. It is a dict, so that a waiter is removed in constant time."""
    cancelled: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """The tasks that were cancelled because this value failed. Waiters for the value await these
    tasks."""
    awaited: dict[_Waiter, Sequence[PendingValue]] = field(
        default_factory=dict["_Waiter", "Sequence[PendingValue]"]
    )
    """The values that the work on this value waits for, besides its inputs."""

    @property
    def asker(self) -> Asker:
        """The asker of the questions that this value's function asks an LLM."""
        return Asker("source", self.node_type, self.place.field, self.place.parameter)

    def arguments(self) -> dict[str, Any]:
        """Return the values of the inputs, by parameter."""
        return {parameter: below.value for parameter, below in self.inputs}

    def make_end_record(
        self,
        value: Any,
        error: BaseException | None = None,
        seconds: float = 0.0,
        called_at: str = "",
    ) -> SourceEnded:
        """Return the record that the work on this value has ended."""
        place, outcome = self.place, (seconds, value, error)
        position = time(), place.path, place.step, self.node_type, place.field
        details = self.source, self.name, *outcome, place.parameter, called_at
        return SourceEnded(*position, *details)

    def waits_for(self, other: PendingValue) -> bool:
        """Return whether the work on this value waits for `other`, directly or through values in
        between."""
        ahead: list[PendingValue] = [self]
        visited: set[PendingValue] = {self}
        for pending in ahead:
            if pending is other:
                return True
            below = [value for _, value in pending.inputs]
            for values in pending.awaited.values():
                below.extend(values)
            for value in below:
                if not value.done and value not in visited:
                    visited.add(value)
                    ahead.append(value)
        return False

    def failure_path(self, start: str) -> str:
        """Return the path from a field to the function that failed, as
        `start <- function(parameter) <- failed()`. `start` names the field."""
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
    """Waits until several values are done, or a required value has failed."""

    __slots__ = ("failed", "future", "optional", "pending")

    def __init__(self, values: Iterable[PendingValue], optional: Set[PendingValue]) -> None:
        self.optional = optional
        self.pending = 0
        self.failed: PendingValue | None = None
        self.future: asyncio.Future[None] | None = None
        for value in values:
            if value.done:
                self._check(value)
            elif self not in value.waiters:  # two fields may share a value
                self.pending += 1
                value.waiters[self] = None

    def take(self, value: PendingValue) -> None:
        """Note that a value is done."""
        self.pending -= 1
        self._check(value)
        is_over = self.pending == 0 or self.failed is not None
        if is_over and self.future is not None and not self.future.done():
            self.future.set_result(None)

    def _check(self, value: PendingValue) -> None:
        if value.error is None or isinstance(value.error, Waiting) or self.failed is not None:
            return
        if value not in self.optional or not _has_default(value.error):
            self.failed = value


def _has_default(error: BaseException) -> bool:
    """Return whether a field with a default gets the default after this failure. It does not if a
    journal could not store a value, or after an exception such as `KeyboardInterrupt`."""
    while isinstance(error, BaeError) and error.cause is not None:
        if isinstance(error, JournalError):
            return False
        error = error.cause
    is_ordinary = isinstance(error, Exception | asyncio.CancelledError)
    return is_ordinary and not isinstance(error, JournalError)


class Scheduler:
    """Computes the values of a run and of the graphs inside it, and closes the resources that were
    opened for them. With `context`, each call gets a copy of that context instead of the context of
    the code that needs the value."""

    def __init__(self, context: Context | None = None) -> None:
        self._context = context
        self.closers: list[tuple[str, Closer]] = []
        self.ahead: dict[Run, list[PendingValue]] = {}
        """The values that were started early for a run's next node, by run."""

    def add(self, pending: PendingValue) -> PendingValue:
        """Add a value. Its work starts when the last of its inputs is done, or now if all are
        done."""
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
        """Wait until all values are done, and return None. If a value fails, cancel the other
        values, wait until their work has ended, and return the failed value.

        A failure of an `optional` value does not count, because its field has a default. See
        `_has_default` for exceptions. If gates have no answer, the other values are computed first,
        and then one `Waiting` is raised for all gates.
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
            cancelled: list[asyncio.Task[None]] = []
            if by is not None:
                by.awaited.pop(waiter, None)
            for value in values:
                cancelled.extend(value.cancelled)
                if not value.done:
                    value.waiters.pop(waiter, None)
                    cancelled.extend(self.release(value))
            if cancelled:
                await wait_until_ended(cancelled)
        if waiter.failed is not None:
            return waiter.failed
        gates = [gate for v in values if isinstance(v.error, Waiting) for gate in v.error.gates]
        if gates:
            raise Waiting([*{id(gate): gate for gate in gates}.values()])
        return None

    def release(self, pending: PendingValue) -> list[asyncio.Task[None]]:
        """Give up one use of a value. If no use is left, cancel the work on it, and return the
        cancelled tasks. Await them with `wait_until_ended`."""
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
        """Return the list that collects the values started early for a run's next node."""
        return self.ahead.setdefault(run, [])

    async def release_early_values(self, run: Run) -> None:
        """Release the values that were started early for a run's next node."""
        ahead = self.ahead.pop(run)
        await wait_until_ended(
            [task for value in ahead for task in [*value.cancelled, *self.release(value)]]
        )

    def on_close(self, name: str, closer: Closer) -> None:
        """Have `closer` called when the run is over. `name` is the name of the function that opened
        the resource."""
        self.closers.append((name, closer))

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close all opened resources, the newest first, even if some closers raise. Return the
        first error that a closer raised.

        `error` is the failure of the run, which context managers get. If this task is cancelled
        meanwhile, the cancellation is raised at the end, even if a closer caught it and raised
        another error."""
        raised: BaseException | None = None
        cancellations_before = cancellations()
        while self.closers:
            name, closer = self.closers.pop()
            try:
                await closer(error)
            except BaseException as caught:
                # A context manager raises the error of the run again, unless it handles the error.
                if caught is error:
                    continue
                add_note(caught, f"while closing what {name} opened")
                raised = raised or caught
        if cancellations() > cancellations_before:
            raise asyncio.CancelledError from raised
        return raised

    async def close_after(self, failure: BaseException | None) -> BaseException | None:
        """Close all opened resources, and return the error that the run ends with: its `failure`,
        or an error of a closer if the run has not failed."""
        try:
            raised = await self.close(None if isinstance(failure, Waiting) else failure)
        except asyncio.CancelledError as cancelled:
            return cancelled
        if raised is None:
            return failure
        if failure is not None and not isinstance(failure, Waiting):
            add_note(failure, f"and then this was raised: {describe(raised)}")
            return failure
        is_ordinary = isinstance(raised, Exception | asyncio.CancelledError)
        return close_error(raised) if is_ordinary else raised

    def _start(self, pending: PendingValue) -> None:
        if pending.settle is not None and not pending.settle(pending):
            return
        # The loop's task factory may be eager, so it is not used. An eager task could end before
        # all users have asked for the value. It would be dropped, and computed again.
        loop = asyncio.get_running_loop()
        context = None if self._context is None else self._context.copy()
        pending.task = asyncio.Task(self._compute(pending), loop=loop, context=context)
        # A task that is cancelled before its first step runs no code, so it cannot end its value.
        pending.task.add_done_callback(lambda task: self._task_ended(pending, task))

    async def _compute(self, pending: PendingValue) -> None:
        place, run, writer = pending.place, pending.run, pending.run.writer
        started, asker = perf_counter(), pending.asker
        recorded = run.past.value(place, pending.node_type, False, pending.asked)
        if recorded is not NOTHING:
            self._end(pending, recorded)
            return
        await writer.confirm()
        details = pending.node_type, place.field, pending.source, pending.name
        writer.write(SourceStarted(time(), place.path, place.step, *details, place.parameter))
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
            failure = error  # nobody cancelled the task: the function itself raised the error
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):  # these end the event loop
                raise
            failure = error
        finally:
            meter_in_force.reset(token)
            if used:
                usage = Usage.total(used)
                writer.write(LMUsed(time(), place.path, place.step, asker, usage))
        ended = pending.make_end_record(value, failure, perf_counter() - started)
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
        # Waiters come before dependents: the field that needs this value fails before fields whose
        # dependencies only use the value.
        for waiter in pending.waiters:
            waiter.take(pending)
        if error is None:
            self._keep(pending)
        for dependent in pending.dependents:
            self._take_input(dependent, pending)

    def _take_input(self, pending: PendingValue, below: PendingValue) -> None:
        """Note that `below`, an input of a value, is done."""
        if below.error is not None:
            name = next(name for name, value in pending.inputs if value is below)
            self._end(pending, error=below.error, failed_input=(name, below))
            return
        pending.missing -= 1
        if pending.missing == 0 and not pending.done:
            self._start(pending)

    def _keep(self, pending: PendingValue) -> None:
        """Keep a computed value for later users. A subclass that shares values implements it."""

    def _drop(self, pending: PendingValue) -> None:
        """Forget a value whose work was cancelled. A subclass that shares values implements it."""

    def _release_inputs(self, pending: PendingValue) -> list[asyncio.Task[None]]:
        cancelled: list[asyncio.Task[None]] = []
        for _, below in pending.inputs:
            if not below.done:
                cancelled.extend(self.release(below))
        return cancelled


_computed: ContextVar[PendingValue | None] = ContextVar("bae_computed", default=None)
"""The value that the current task computes."""


def _refuse_cycle(by: PendingValue, values: Sequence[PendingValue]) -> None:
    """Raise an error if the work on `by` is about to wait for values that need `by` first."""
    for value in values:
        if not value.done and value.waits_for(by):
            raise DepError(
                f"{value.place.node}.{value.place.field}: {by.name} has an LM make a node that "
                f"cannot be made before {by.name} has returned",
                code="bae-dep-cycle",
                node_type=value.node_type,
                field_name=value.place.field,
                fix=f"have {by.name} make a node without this field, or give the field in "
                "`resolved`",
            )


def make_finished_value(
    run: Run, node_type: type[Node], place: Place, value: Any, is_validated: bool = False
) -> PendingValue:
    """Return a finished `PendingValue` for a value that exists. Pass `is_validated` if the value
    comes from a node that has validated it."""
    return PendingValue(run, node_type, place, done=True, value=value, is_validated=is_validated)
