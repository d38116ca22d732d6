"""The scheduler of a run's dataflow: a value is computed as soon as its own inputs are known, once
for all that ask for the same dependency, and is cancelled when none of them needs it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Literal, cast

from bae.arguments import Arguments
from bae.calls import (
    OPENING,
    CallPlan,
    Input,
    is_by_value,
    recalled_behind,
    recalls_of,
    siblings_of,
)
from bae.draft import validated
from bae.exceptions import BaeError, DepError, JournalError, RecallError, add_note, describe
from bae.failures import close_failed
from bae.invoke import invoke
from bae.place import Place
from bae.recall import recall
from bae.recorder import NOTHING
from bae.records import Asker, LMUsed, SourceEnded, SourceStarted
from bae.run import Run, Waiting
from bae.tasks import Closer, cancellations, gone
from bae.usage import Usage, meter_in_force

if TYPE_CHECKING:
    from contextvars import Context

    from bae.app_scope import Opening
    from bae.language_model import LM
    from bae.node import Node
    from bae.plan import FieldPlan

Compute = Callable[["PendingValue"], Coroutine[Any, Any, Any]]


@dataclass(slots=True, eq=False, repr=False)
class PendingValue:
    """One value that is being computed, or is known: of the field of a node, or of a parameter of
    the function behind the field. `name` is that of the function, graph or question."""

    run: Run
    node_type: type[Node]
    place: Place
    name: str = ""
    source: Literal["dep", "map", "gate"] = "dep"
    compute: Compute | None = None
    inputs: Sequence[tuple[str, PendingValue]] = ()
    call: CallPlan | None = None
    key: Hashable = None
    is_of_app: bool = False
    """Whether the value belongs to the app, and outlives the run."""
    done: bool = False
    value: Any = None
    is_validated: bool = False
    """Whether the value was there before, and has been through the node's validation."""
    error: BaseException | None = None
    failed_input: tuple[str, PendingValue] | None = None
    """The input whose failure this one's is."""
    failed_item: int | None = None
    """The item of a map that failed."""
    task: asyncio.Task[None] | None = None
    users: int = 1
    """How many still want the value."""
    missing: int = 0
    """How many inputs are not known yet."""
    dependents: list[PendingValue] = field(default_factory=list["PendingValue"])
    waiters: dict[_Waiter, None] = field(default_factory=dict["_Waiter", None])
    """In order, and each can leave at once, however many wait."""
    cancelled: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    """Tasks cancelled because of this failure; those who wait for the value await them."""
    awaited: dict[_Waiter, Sequence[PendingValue]] = field(
        default_factory=dict["_Waiter", "Sequence[PendingValue]"]
    )
    """What the work on this value waits for, besides its inputs."""

    @property
    def asker(self) -> Asker:
        """Who asks the LM where the function behind this value does."""
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
        """Whether this value cannot be there before another is."""
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
        """The way from `start`, the field that asked, to the function that failed."""
        parts = [start]
        pending: PendingValue = self
        while pending.failed_input is not None:
            parameter, below = pending.failed_input
            parts.append(f"{pending.name}({parameter})")
            pending = below
        item = pending.failed_item
        parts.append(f"{pending.name}()" if item is None else f"{pending.name}[{item}]")
        return " <- ".join(parts)


@dataclass(slots=True, eq=False, repr=False)
class LookUp(PendingValue):
    """The value of a dependency whose arguments come from the run."""

    wanted: Input | None = None
    own: dict[str, Any] = field(default_factory=dict[str, Any])
    """The arguments that come from the trace."""
    below: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """Those of the calls below."""
    asked: Arguments | None = None
    """All of them, once the fields of the node that it waits for are there."""
    first: PendingValue | None = None
    """Another that was asked for with equal arguments, and whose value this is."""

    def arguments(self) -> dict[str, Any]:
        """The values of the inputs, and those that come from the run."""
        inputs = {parameter: below.value for parameter, below in self.inputs}
        return inputs if self.asked is None else {**inputs, **self.asked.own}


class _Waiter:
    """Waits for several values: until all are done, or one has failed."""

    __slots__ = ("failed", "future", "optional", "pending")

    def __init__(self, values: Iterable[PendingValue], optional: frozenset[PendingValue]) -> None:
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
        """Be told that a value is done."""
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
    """Whether a default stands in for what failed so. It does not for what a journal cannot store,
    which is no failure of the source, and for what no `except Exception` would catch."""
    while isinstance(error, BaeError) and error.cause is not None:
        if isinstance(error, JournalError):
            return False
        error = error.cause
    own = isinstance(error, Exception | asyncio.CancelledError)
    return own and not isinstance(error, JournalError)


class Dataflow:
    """All values of a run that are being computed, those of graphs inside it included, and what
    was opened for them. `context` is what its functions are called in, and not that of who asks."""

    opening: Opening | None = None
    """The `graph.open()` that the run is inside of."""

    def __init__(self, cache: dict[Any, Any] | None = None, context: Context | None = None) -> None:
        self.cache: dict[Any, Any] = {} if cache is None else cache
        self._context = context
        self._pending: dict[Hashable, PendingValue] = {}
        self.closers: list[tuple[str, Closer]] = []
        self._opened: list[Hashable] = []
        self._given = frozenset(self.cache)
        self._recorded_given: set[Hashable] = set()
        self._called_at: dict[Arguments, str] = {}
        """The places that functions were called for, by their arguments."""
        self._unstored: set[Hashable] = set()
        """What was made where nothing is stored: recorded for the first who asks elsewhere."""

    def dependency(
        self, wanted: Input, run: Run, node_type: type[Node], place: Place
    ) -> PendingValue:
        """The value of a dependency: one that is there already, or a new one.

        The caller counts as a user of it until it calls `release`, or the value is done.
        """
        if is_by_value(wanted):
            return self.look_up(wanted, run, node_type, place)
        call, marker = wanted.call, wanted.marker
        # A value that the caller gave replaces the function however it is asked for.
        key = call.key if marker.cache or call.key in self._given else None
        if key is not None:
            if key in self.cache:
                if key in self._given or key in self._unstored:
                    self._record_given(key, wanted, run, node_type, place)
                return known_value(run, node_type, place, self.cache[key])
            pending = self._pending.get(key)
            if pending is not None:
                pending.users += 1
                return pending
        elif run.recorder.looks_back:
            known = run.recorder.recorded_value(place, node_type, early=True)
            if known is not NOTHING:
                return known_value(run, node_type, place, known)
        opening = self.opening if marker.scope == "app" else None
        inputs = self._inputs_of(call, run, node_type, place) if opening is None else []
        compute = self._caller(wanted, key, opening)
        what = call.name, "dep", compute, inputs, call, key, opening is not None
        return self.add(PendingValue(run, node_type, place, *what))

    def _caller(
        self, wanted: Input, key: Hashable = None, opening: Opening | None = None
    ) -> Compute:
        """What calls a dependency once its inputs are known."""
        call, marker = wanted.call, wanted.marker

        async def compute(pending: PendingValue) -> Any:
            if opening is not None:
                return await opening.value(wanted, pending)
            arguments = pending.arguments()
            if call.graph is not None:
                from bae.runner import run_inside

                path = str(pending.place)
                if key is not None:
                    path = pending.run.recorder.graph_paths.get(key, path)
                return await run_inside(call, marker, path, pending.run, (), arguments)
            if call.lm_parameters:
                arguments |= dict.fromkeys(call.lm_parameters, lm_of(pending))
            return await invoke(call, marker, arguments, self, pending.run)

        return compute

    def look_up(
        self,
        wanted: Input,
        run: Run,
        node_type: type[Node],
        place: Place,
        bound: Sequence[tuple[str, PendingValue]] = (),
    ) -> PendingValue:
        """The value of a dependency whose arguments come from the run: that of a call with equal
        ones, or a new one. `bound` are the arguments that come from fields of the node."""
        call = wanted.call
        value = LookUp(run, node_type, place, call.name, inputs=bound, call=call)
        value.compute, value.wanted = self._caller(wanted), wanted
        if not self._prepare(value, wanted):
            return value
        value.inputs = [*bound, *self._inputs_of(call, run, node_type, place)]
        return self.add(value)

    def _inputs_of(
        self, call: CallPlan, run: Run, node_type: type[Node], place: Place
    ) -> list[tuple[str, PendingValue]]:
        """The values of the dependencies that a call takes as parameters."""
        return [
            (name, self.dependency(below, run, node_type, place.below(name)))
            for name, below in call.inputs
        ]

    def add_map(self, pending: PendingValue, field: FieldPlan) -> PendingValue:
        """Take in a map that has among its inputs only what comes from fields of the node."""
        place, run, node_type = pending.place, pending.run, pending.node_type
        inputs = [*pending.inputs]
        try:
            for name, found in recalls_of(field):
                below_it = place.below(name)
                for value in recall(run, node_type, found, below_it):
                    inputs.append((name, known_value(run, node_type, below_it, value)))
        except RecallError as error:
            return self._fail(pending, error)
        inputs += self._inputs_of(cast(CallPlan, pending.call), run, node_type, place)
        pending.inputs = inputs
        return self.add(pending)

    def _prepare(self, value: LookUp, wanted: Input) -> bool:
        """Whether a value is yet to be computed, for all that is known of its arguments."""
        key, place, node_type = wanted.call.key, value.place, value.node_type
        if key in self._given:
            self._record_given(key, wanted, value.run, node_type, place)
            self._end(value, self.cache[key])
            self._release_inputs(value)
            return False
        try:
            self._recall(wanted, value)
        except RecallError as error:
            self._fail(value, error)
            return False
        for name, each in value.inputs:
            if each.error is not None:
                self._end(value, error=each.error, failed_input=(name, each))
                return False
        if not all(each.done for _, each in value.inputs):
            return True
        if not self._settle(value):
            return False
        if value.run.recorder.looks_back:
            known = value.run.recorder.recorded_value(place, node_type, True, value.asked)
            if known is not NOTHING:
                self._end(value, known)
                return False
        return True

    def _recall(self, wanted: Input, value: LookUp) -> None:
        """Find the arguments that come from the trace. Those of the calls below are recorded by
        themselves."""
        place = value.place
        for way, key, found in recalled_behind(wanted):
            where, own = place._replace(parameter=place.parameter + way), way.count("(") == 1
            for each in recall(value.run, value.node_type, found, where, own):
                if own:
                    value.own[found.name] = each
                else:
                    value.below[key] = each

    def _settle(self, value: LookUp) -> bool:
        """All arguments from the run are there: whether the function is to be called with them for
        this value, and not for another."""
        wanted = cast(Input, value.wanted)
        try:
            given = sibling_values(value, dict(siblings_of(wanted)))
        except Exception as error:  # of a validator: the field's own value fails with it too
            self._fail(value, error)
            return False
        value.asked = asked = Arguments(wanted.call.key, {**value.own, **given}, value.below)
        if not wanted.marker.cache:
            return True
        if asked in self.cache:
            if asked in self._given or asked in self._unstored:
                self._record_given(asked, wanted, value.run, value.node_type, value.place)
                self._end(value, self.cache[asked])
            else:
                self._share(value, asked, self.cache[asked])
            return False
        first = self._pending.get(asked)
        if first is None:
            value.key, self._pending[asked] = asked, value
            self._called_at[asked] = str(value.place)
            return True
        value.first = first
        if first.done:
            self._share(value, asked, first.value, first.error, first.failed_input)
        else:
            first.users += 1
            first.dependents.append(value)
            value.inputs, value.missing = [*value.inputs, ("", first)], 1
        return False

    def _share(
        self,
        value: LookUp,
        asked: Arguments,
        result: Any = None,
        error: BaseException | None = None,
        failed_input: tuple[str, PendingValue] | None = None,
    ) -> None:
        """End a value with what the function has returned, or raised, for another."""
        called_at = self._called_at.get(asked, "")
        if called_at != str(value.place) and not isinstance(error, asyncio.CancelledError):
            value.run.recorder.write(value.ended(result, error, called_at=called_at))
        self._end(value, result, error, failed_input)

    def _fail(self, pending: PendingValue, error: Exception) -> PendingValue:
        """End a value whose arguments are not there."""
        pending.run.recorder.write(pending.ended(None, error))
        self._end(pending, error=error)
        return pending

    def add(self, pending: PendingValue) -> PendingValue:
        """Take a value in: its work starts now, or when the last of its inputs is known."""
        if pending.key is not None:
            self._pending[pending.key] = pending
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
        self, values: Sequence[PendingValue], optional: frozenset[PendingValue] = frozenset()
    ) -> PendingValue | None:
        """Wait until all values are done, and return None, or until one fails, and return that one
        once the others are cancelled and gone. Failures of `optional` ones do not count. Gates that
        have no answer delay nothing: they are raised together, as `Waiting`, when everything else
        is done.
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
                await gone(left)
        if waiter.failed is not None:
            return waiter.failed
        gates = [gate for v in values if isinstance(v.error, Waiting) for gate in v.error.gates]
        if gates:
            raise Waiting([*{id(gate): gate for gate in gates}.values()])
        return None

    def release(self, pending: PendingValue) -> list[asyncio.Task[None]]:
        """Stop being a user of a value; returns the tasks that were cancelled because it has no
        user left. Await these with `gone`."""
        pending.users -= 1
        if pending.users > 0 or pending.done:
            return []
        pending.done = True
        pending.error = asyncio.CancelledError()
        if pending.key is not None:
            self._pending.pop(pending.key, None)
        if pending.task is not None:
            pending.task.cancel()
            return [pending.task]
        return self._release_inputs(pending)

    def take_known(
        self,
        values: Mapping[Hashable, Any],
        called_at: Mapping[Arguments, str],
        outside: Iterable[Hashable],
    ) -> None:
        """Take in recorded values of dependencies: they count, whatever the caller gives now.
        `called_at` has the places of those that are called once for equal arguments, and `outside`
        are those that were called for classes outside the graph."""
        self.cache.update(values)
        self._unstored.update(outside)
        self._given = self._given.difference(values)
        self._called_at.update(called_at)

    def forget_failures(self) -> None:
        """Have dependencies that failed called again when they are asked for next."""
        for key in [key for key, pending in self._pending.items() if pending.done]:
            del self._pending[key]

    def on_close(self, name: str, closer: Closer) -> None:
        """Have `closer` called when the run is over; `name` says who opened what it closes."""
        self.closers.append((name, closer))

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close what was opened, the newest first. All are closed, whatever any of them raises;
        returns the first thing raised. A cancellation in the meantime is raised at the end, even
        where what was being closed made something else of it."""
        raised: BaseException | None = None
        asked = cancellations()
        for key in self._opened:  # what is closed is of no use to the caller who gave the cache
            self.cache.pop(key, None)
        while self.closers:
            name, closer = self.closers.pop()
            try:
                await closer(error)
            except BaseException as caught:
                if caught is error:  # a context manager that lets it through raises it again
                    continue
                add_note(caught, f"while closing what {name} opened")
                raised = raised or caught
        if cancellations() > asked:
            raise asyncio.CancelledError from raised
        return raised

    async def close_after(self, failure: BaseException | None) -> BaseException | None:
        """Close what was opened, and answer what a run that ended like this fails with then."""
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

    def _record_given(
        self, key: Hashable, wanted: Input, run: Run, node_type: type[Node], place: Place
    ) -> None:
        recorder = run.recorder
        if not (recorder.stores or (recorder.stores_calls and key in self._given)):
            return
        if wanted.marker.cache:
            recorded = key, recorder.stores
            if recorded in self._recorded_given:
                return
            self._recorded_given.add(recorded)
        given = PendingValue(run, node_type, place, wanted.call.name)
        recorder.write_value(given.ended(self.cache[key]))

    def _start(self, pending: PendingValue) -> None:
        if type(pending) is LookUp and pending.asked is None and not self._settle(pending):
            return
        # Not by the loop's task factory, which may be an eager one: a value that is done before
        # all who ask for it are there would be dropped, and computed again for the next.
        loop = asyncio.get_running_loop()
        context = None if self._context is None else self._context.copy()
        pending.task = asyncio.Task(self._compute(pending), loop=loop, context=context)
        # A task that is cancelled before it first runs never ends its value itself.
        pending.task.add_done_callback(lambda task: self._task_ended(pending, task))

    async def _compute(self, pending: PendingValue) -> None:
        place, run, recorder = pending.place, pending.run, pending.run.recorder
        started = perf_counter()
        asked = pending.asked if isinstance(pending, LookUp) else None
        if recorder.looks_back:
            known = recorder.recorded_value(place, pending.node_type, False, asked)
            if known is not NOTHING:
                self._end(pending, known)
                return
        if recorder.is_in_doubt:
            await recorder.confirm()
        what = pending.node_type, place.field, pending.source, pending.name
        recorder.write(SourceStarted(time(), place.path, place.step, *what, place.parameter))
        value: Any = None
        failure: BaseException | None = None
        asker = pending.asker
        _computed.set(pending)  # for good: the task has a context of its own
        used: list[Usage] = []
        token = meter_in_force.set((used.append, partial(run.watch, asker, step=place.step)))
        try:
            assert pending.compute is not None
            value = await pending.compute(pending)
        except asyncio.CancelledError as error:
            if cancellations():
                raise
            failure = error  # raised by the function itself: a failure like any other
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):  # for the loop itself
                raise
            failure = error
        finally:
            meter_in_force.reset(token)
            if used:
                usage = Usage.total(used)
                recorder.write(LMUsed(time(), place.path, place.step, asker, usage))
        ended = pending.ended(value, failure, perf_counter() - started)
        if failure is None:
            await recorder.store_value(ended, asked)
        else:
            recorder.write(ended)
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
        elif pending.key is not None and not pending.is_of_app:
            self.cache[pending.key] = value
            if not pending.run.recorder.stores:
                self._unstored.add(pending.key)
            if pending.call is not None and pending.call.kind in OPENING:
                self._opened.append(pending.key)
            del self._pending[pending.key]
        for waiter in pending.waiters:  # before the dependents: who asked for this one is first
            waiter.take(pending)
        for dependent in pending.dependents:
            if type(dependent) is LookUp and dependent.first is pending:
                asked = cast(Arguments, dependent.asked)
                self._share(dependent, asked, value, error, failed_input)
                continue
            if error is not None:
                name = next(name for name, below in dependent.inputs if below is pending)
                self._end(dependent, error=error, failed_input=(name, pending))
                continue
            dependent.missing -= 1
            if dependent.missing == 0 and not dependent.done:
                self._start(dependent)

    def _release_inputs(self, pending: PendingValue) -> list[asyncio.Task[None]]:
        cancelled: list[asyncio.Task[None]] = []
        for _, below in pending.inputs:
            if not below.done:
                cancelled.extend(self.release(below))
        return cancelled


_computed: ContextVar[PendingValue | None] = ContextVar("bae_computed", default=None)
"""The value that is being made here."""


def _refuse_cycle(by: PendingValue, values: Sequence[PendingValue]) -> None:
    """Raise an error where the work on a value is about to wait for that value."""
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


def lm_of(pending: PendingValue, item: int | None = None) -> LM | None:
    """The LM for a dependency that asks for one, or for one item of a map."""
    from bae.given_lm import given_lm

    run, asker = pending.run, pending.asker._replace(item=item)
    return given_lm(run, pending.place.step, asker, lambda: run.lm)


def sibling_values(pending: PendingValue, names: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a call that are values of fields, by parameter, as the fields hold them."""
    found: dict[str, Any] = {}
    for parameter, below in pending.inputs:
        name = names.get(parameter)
        if name is not None:
            held = {name: below.value}
            whole = held if below.is_validated else validated(pending.node_type, held)
            found[parameter] = whole[name]
    return found


def known_value(
    run: Run, node_type: type[Node], place: Place, value: Any, is_validated: bool = False
) -> PendingValue:
    """A value that is there already; `is_validated` if the node has validated it."""
    return PendingValue(run, node_type, place, done=True, value=value, is_validated=is_validated)
