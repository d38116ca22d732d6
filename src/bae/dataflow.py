"""The scheduler: values as flights. A flight takes off the moment its own inputs have landed, never
because a level or a sibling is done; those who ask for the same dependency share one flight; one
that nobody waits for any more is cancelled and awaited. `resolver.py` says what to fly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Literal

from bae.calls import CallPlan, Input
from bae.exceptions import JournalError
from bae.invoke import invoke
from bae.records import Asker, LMUsed, SourceEnded, SourceStarted
from bae.run import NOTHING, Run, Waiting
from bae.tasks import Closer, cancellations, gone
from bae.usage import Usage, collected

if TYPE_CHECKING:
    from bae.lm import LM
    from bae.node import Node

Work = Callable[["Flight"], Coroutine[Any, Any, Any]]


class Place:
    """Whose value it is: the field of a node, in a run, at a step; `route` leads on to a parameter
    of the function behind the field, as `(place)`, or of one further down."""

    __slots__ = ("field", "node_type", "route", "run", "step")

    def __init__(self, run: Run, node_type: type[Node], field: str) -> None:
        self.run = run
        self.node_type = node_type
        self.field = field
        self.step = run.step
        self.route = ""

    def below(self, parameter: str) -> Place:
        """The place of a parameter of the function whose value this is the place of."""
        place = Place(self.run, self.node_type, self.field)
        place.step = self.step
        place.route = f"{self.route}({parameter})"
        return place

    @property
    def path(self) -> str:
        """The place as records and nested runs name it."""
        before = f"{self.run.path}/" if self.run.path else ""
        return f"{before}{self.step}:{self.node_type.__name__}.{self.field}{self.route}"


class Flight:
    """One value under way."""

    __slots__ = (
        "asks",
        "by",
        "call",
        "dependents",
        "done",
        "error",
        "given",
        "inputs",
        "interest",
        "item",
        "key",
        "orphans",
        "place",
        "source",
        "task",
        "value",
        "via",
        "waiting",
        "work",
    )

    def __init__(
        self,
        place: Place,
        by: str,
        source: Literal["dep", "map", "gate"],
        work: Work | None,
        inputs: Sequence[tuple[str, Flight]] = (),
        call: CallPlan | None = None,
        key: Hashable = None,
    ) -> None:
        self.place = place
        self.by = by
        self.source: Literal["dep", "map", "gate"] = source
        self.work = work
        self.inputs = inputs
        self.call = call
        self.key = key
        self.interest = 1
        self.waiting = 0
        self.done = False
        self.given = False
        """Whether the value was there before, and has been through the node's validation."""
        self.value: Any = None
        self.error: BaseException | None = None
        self.via: tuple[str, Flight] | None = None
        """The input whose failure this flight's is."""
        self.item: int | None = None
        """The item of a map that failed."""
        self.task: asyncio.Task[None] | None = None
        self.dependents: list[Flight] = []
        self.asks: list[_Ask] = []
        self.orphans: list[asyncio.Task[None]] = []
        """Tasks cancelled because of this failure; whoever hears of it waits for them."""

    def arguments(self) -> dict[str, Any]:
        return {name: flight.value for name, flight in self.inputs}

    def route(self, start: str) -> str:
        """The way from `start`, the field that asked, to the function that failed."""
        parts = [start]
        flight: Flight = self
        while flight.via is not None:
            parameter, below = flight.via
            parts.append(f"{flight.by}({parameter})")
            flight = below
        parts.append(f"{flight.by}()" if flight.item is None else f"{flight.by}[{flight.item}]")
        return " <- ".join(parts)


class _Ask:
    """Somebody waiting for several flights: heard out when all are done, or one has failed."""

    __slots__ = ("failed", "future", "pending", "tolerant")

    def __init__(self, flights: Iterable[Flight], tolerant: frozenset[Flight]) -> None:
        self.tolerant = tolerant
        self.pending = 0
        self.failed: Flight | None = None
        self.future: asyncio.Future[None] | None = None
        for flight in flights:
            if flight.done:
                self._note(flight)
            else:
                self.pending += 1
                flight.asks.append(self)

    def hear(self, flight: Flight) -> None:
        self.pending -= 1
        self._note(flight)
        over = self.pending == 0 or self.failed is not None
        if over and self.future is not None and not self.future.done():
            self.future.set_result(None)

    def _note(self, flight: Flight) -> None:
        hard = flight.error is not None and not isinstance(flight.error, Waiting)
        # What a journal cannot take is no failure of the source: its default does not stand.
        counts = flight not in self.tolerant or isinstance(flight.error, JournalError)
        if hard and counts and self.failed is None:
            self.failed = flight


class Dataflow:
    """All flights of a run, the graphs inside it included, and what they opened."""

    def __init__(self, cache: dict[Any, Any] | None = None) -> None:
        self.cache: dict[Any, Any] = {} if cache is None else cache
        self._flights: dict[Hashable, Flight] = {}
        self._closers: list[tuple[str, Closer]] = []
        self._opened: list[Hashable] = []
        self._given = frozenset(self.cache)
        self._told: set[Hashable] = set()

    def dep(self, wanted: Input, place: Place) -> Flight:
        """The flight of a dependency: one that is there already, or a new one.

        The caller counts as interested in it until it calls `release`, or the flight is done.
        """
        call, marker = wanted.call, wanted.marker
        # What the caller gave stands in for the function however it is asked for.
        key = call.key if marker.cache or call.key in self._given else None
        if key is not None:
            if key in self.cache:
                if place.run.keeper is not None and key in self._given:
                    self._tell_given(place, wanted, self.cache[key])
                return landed(place, self.cache[key])
            flight = self._flights.get(key)
            if flight is not None:
                flight.interest += 1
                return flight
        elif place.run.keeper is not None:
            known = place.run.keeper.done(place)
            if known is not NOTHING:
                return landed(place, known)
        inputs = [(name, self.dep(below, place.below(name))) for name, below in call.inputs]

        async def work(flight: Flight) -> Any:
            if call.graph is not None:
                from bae.runner import run_inside

                run, path = flight.place.run, flight.place.path
                if key is not None and run.keeper is not None:
                    path = run.keeper.graph_path(key, path)
                return await run_inside(call, marker, path, run)
            arguments = flight.arguments()
            for name in call.lm_parameters:
                arguments[name] = lm_of(flight)
            return await invoke(call, marker, arguments, self)

        return self.enter(Flight(place, call.name, "dep", work, inputs, call, key))

    def enter(self, flight: Flight) -> Flight:
        """Take a flight in: it takes off now, or when the last of its inputs lands."""
        if flight.key is not None:
            self._flights[flight.key] = flight
        for name, below in flight.inputs:
            if not below.done:
                flight.waiting += 1
                below.dependents.append(flight)
            elif below.error is not None:
                self._end(flight, error=below.error, via=(name, below))
                return flight
        if not flight.waiting:
            self._take_off(flight)
        return flight

    async def gather(
        self, flights: Sequence[Flight], tolerant: frozenset[Flight] = frozenset()
    ) -> Flight | None:
        """Wait until all flights are done, and answer None, or until one fails, and answer that
        one once the others are cancelled and gone. The failures of `tolerant` ones do not count.
        Gates that nobody answers hold nothing up: they are raised together, as `Waiting`, when
        everything else is done.
        """
        ask = _Ask(flights, tolerant)
        try:
            if ask.pending and ask.failed is None:
                ask.future = asyncio.get_running_loop().create_future()
                await ask.future
        finally:
            left: list[asyncio.Task[None]] = []
            for flight in flights:
                left.extend(flight.orphans)
                if not flight.done:
                    flight.asks.remove(ask)
                    left.extend(self.release(flight))
            await gone(left)
        if ask.failed is not None:
            return ask.failed
        gates = [gate for f in flights if isinstance(f.error, Waiting) for gate in f.error.gates]
        if gates:
            raise Waiting([*{id(gate): gate for gate in gates}.values()])
        return None

    def release(self, flight: Flight) -> list[asyncio.Task[None]]:
        """Lose interest in a flight; answers the tasks that were cancelled because nobody is left
        who wants them. Await these with `gone`."""
        flight.interest -= 1
        if flight.interest > 0 or flight.done:
            return []
        flight.done = True
        flight.error = asyncio.CancelledError()
        if flight.key is not None:
            self._flights.pop(flight.key, None)
        if flight.task is not None:
            flight.task.cancel()
            return [flight.task]
        return self._release_inputs(flight)

    def known(self, values: Mapping[Hashable, Any]) -> None:
        """Take in what dependencies came to before: it stands, whatever the caller gives now."""
        self.cache.update(values)
        self._given = self._given.difference(values)

    def forget_failures(self) -> None:
        """Have dependencies that failed called again by the next who asks."""
        for key in [key for key, flight in self._flights.items() if flight.done]:
            del self._flights[key]

    def on_close(self, name: str, closer: Closer) -> None:
        """Have `closer` called when the run is over; `name` says who opened what it closes."""
        self._closers.append((name, closer))

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close what was opened, the newest first. All are closed, whatever any of them raises;
        answers the first thing raised. A cancellation that came meanwhile is raised at the end,
        even where what was being closed made something else of it."""
        raised: BaseException | None = None
        asked = cancellations()
        for key in self._opened:  # what is closed is of no use to whoever gave the cache
            self.cache.pop(key, None)
        while self._closers:
            name, closer = self._closers.pop()
            try:
                await closer(error)
            except (Exception, asyncio.CancelledError) as caught:
                if caught is error:  # a context manager that lets it through raises it again
                    continue
                caught.add_note(f"while closing what {name} opened")
                raised = raised or caught
        if cancellations() > asked:
            raise asyncio.CancelledError from raised
        return raised

    def _tell_given(self, place: Place, wanted: Input, value: Any) -> None:
        call = wanted.call
        if not wanted.marker.cache or call.key not in self._told:
            if wanted.marker.cache:
                self._told.add(call.key)
            run, spot = place.run, (time(), place.run.path, place.step)
            what = place.node_type, place.field
            run.emit(SourceEnded(*spot, *what, "dep", call.name, 0.0, value, None, place.route))

    def _take_off(self, flight: Flight) -> None:
        # Not by the loop's task factory, which may be an eager one: a flight that ends before
        # those who ask for it are all there would be let go of, and flown again for the next.
        flight.task = asyncio.Task(self._fly(flight), loop=asyncio.get_running_loop())
        # A task that is cancelled before it first runs never gets to end its flight itself.
        flight.task.add_done_callback(lambda task: self._landed(flight, task))

    async def _fly(self, flight: Flight) -> None:
        place, run = flight.place, flight.place.run
        started = perf_counter()
        where = (place.node_type, place.field, flight.source, flight.by)
        if run.keeper is not None:
            known = run.keeper.source(place)
            if known is not NOTHING:
                self._end(flight, known)
                return
        run.emit(SourceStarted(time(), run.path, place.step, *where, place.route))
        value: Any = None
        failure: BaseException | None = None
        try:
            assert flight.work is not None
            asker = Asker("source", place.node_type, place.field, place.route)
            with collected(partial(run.watch, asker, step=place.step)) as used:
                try:
                    value = await flight.work(flight)
                finally:
                    if used:
                        usage = Usage.total(used)
                        run.emit(LMUsed(time(), run.path, place.step, asker, usage))
        except asyncio.CancelledError as error:
            if cancellations():
                raise
            failure = error  # raised by the function itself: a failure like any other
        except Exception as error:
            failure = error
        seconds = perf_counter() - started
        ended = SourceEnded(
            time(), run.path, place.step, *where, seconds, value, failure, place.route
        )
        if failure is None:
            await run.keep(ended)
        else:
            run.emit(ended)
        self._end(flight, value, failure)

    def _landed(self, flight: Flight, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._end(flight, error=asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._end(flight, error=error)

    def _end(
        self,
        flight: Flight,
        value: Any = None,
        error: BaseException | None = None,
        via: tuple[str, Flight] | None = None,
    ) -> None:
        if flight.done:
            return
        flight.done, flight.value, flight.error, flight.via = True, value, error, via
        if error is not None:
            flight.orphans.extend(self._release_inputs(flight))
            if via is not None:
                flight.orphans.extend(via[1].orphans)
        elif flight.key is not None:
            self.cache[flight.key] = value
            if flight.call is not None and flight.call.opens:
                self._opened.append(flight.key)
            del self._flights[flight.key]
        for ask in flight.asks:  # before the dependents: who asked for this one hears of it first
            ask.hear(flight)
        for dependent in flight.dependents:
            if error is not None:
                name = next(name for name, below in dependent.inputs if below is flight)
                self._end(dependent, error=error, via=(name, flight))
                continue
            dependent.waiting -= 1
            if dependent.waiting == 0 and not dependent.done:
                self._take_off(dependent)

    def _release_inputs(self, flight: Flight) -> list[asyncio.Task[None]]:
        cancelled: list[asyncio.Task[None]] = []
        for _, below in flight.inputs:
            if not below.done:
                cancelled.extend(self.release(below))
        return cancelled


def lm_of(flight: Flight) -> LM | None:
    """The LM that a dependency which asks for one gets."""
    run = flight.place.run
    if run.keeper is None:
        return run.lm
    place = flight.place
    asker = Asker("source", place.node_type, place.field, place.route)
    return run.keeper.lm(run, place.step, asker, lambda: run.lm, flight.key)


def landed(place: Place, value: Any, given: bool = False) -> Flight:
    """A flight whose value is there already; `given` where the node has validated it."""
    flight = Flight(place, "", "dep", None)
    flight.done = True
    flight.given = given
    flight.value = value
    return flight
