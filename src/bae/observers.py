"""Those who look on while runs go on: `observe` for all runs of the process, `observing` for those
started in a block. Each is told of every record as it is written. A run that nobody observes pays
nothing for it; `run.py` asks once, when it is made. `bae.otel` is such an observer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING

from bae.records import Record, RunResumed, RunStarted, StepStarted

if TYPE_CHECKING:
    from bae.node import Node

__all__ = ["ObservedRun", "Observer", "observe", "observing"]


class ObservedRun:
    """The run that a record belongs to: one object for all records of a run, which tells runs apart
    even where two have one id, as a run and its replay do. Keep what you know of a run in a
    `WeakKeyDictionary` by this, and it is gone with the run."""

    __slots__ = ("__weakref__", "graph", "past", "run_id")

    def __init__(self, run_id: str, past: tuple[Record, ...] = ()) -> None:
        self.run_id = run_id
        self.past = past
        """Of a run that is resumed, what was recorded of it before: nobody is told of it again."""
        begun = next((record for record in past if isinstance(record, RunStarted)), None)
        self.graph = "" if begun is None else begun.graph
        """The name of the graph, known from the first record on."""

    def __repr__(self) -> str:
        return f"<ObservedRun {self.run_id}>"


Observer = Callable[[ObservedRun, Record], object]
"""What is called with every record of a run, and with the run. It is called where the record is
written, mostly on the event loop and sometimes in a worker thread, and everything waits until it
returns: so be quick, and hand slow work to a queue. One that raises, or takes too long once, is not
called again in that run, which goes on; the log of `bae` says so."""


def observe(observer: Observer, *, patience: float = 1.0) -> Callable[[], None]:
    """Have `observer` told of all runs of this process that begin from here on.

    One that takes more than `patience` seconds for a record is told no more of that run. Call what
    is returned to end it all; runs that are under way then are told of until they end.
    """
    _refuse_async(observer)
    registration = Watching(observer, patience)
    _everywhere.append(registration)

    def remove() -> None:
        _everywhere[:] = [each for each in _everywhere if each is not registration]

    return remove


@contextmanager
def observing(observer: Observer, *, patience: float = 1.0) -> Generator[None]:
    """Have `observer` told of the runs that begin inside the block, to their ends, in tasks and
    threads started in it too. One that takes more than `patience` seconds for a record is told no
    more of that run."""
    _refuse_async(observer)
    token = _here.set((*_here.get(), Watching(observer, patience)))
    try:
        yield
    finally:
        _here.reset(token)


# What `run.py` and `stream.py` use.


class Watching:
    """An observer, and how many seconds it may take for a record."""

    __slots__ = ("observer", "patience")

    def __init__(self, observer: Observer, patience: float) -> None:
        self.observer = observer
        self.patience = patience


class LoudLog(list[Record | float]):
    """A log that says when something is written."""

    __slots__ = ("hear",)

    def __init__(self, hear: Callable[[], object]) -> None:
        super().__init__()
        self.hear = hear

    def append(self, entry: Record | float) -> None:
        super().append(entry)
        self.hear()

    def extend(self, entries: Iterable[Record | float]) -> None:
        super().extend(entries)
        self.hear()


def in_force() -> Sequence[Watching]:
    """Who is to be told of a run that begins here."""
    here = _here.get()
    if not _everywhere:
        return here
    found = [*_everywhere, *here]
    # One that is there twice is told once.
    told = [each.observer for each in found]
    return [each for index, each in enumerate(found) if each.observer not in told[:index]]


def observed(
    log: list[Record | float], trace: list[Node], run_id: str, observers: Sequence[Watching]
) -> list[Record | float]:
    """A log in the place of `log` that tells observers of what is written from here on."""
    past = tuple(entry for entry in log if isinstance(entry, Record))
    return _ObservedLog(log, trace, ObservedRun(run_id, past), observers)


class _ObservedLog(list[Record | float]):
    __slots__ = ("_began", "_hear", "_observers", "_run", "_trace")

    def __init__(
        self,
        log: list[Record | float],
        trace: list[Node],
        run: ObservedRun,
        observers: Sequence[Watching],
    ) -> None:
        super().__init__(log)
        self._hear = log.hear if isinstance(log, LoudLog) else None
        self._trace = trace
        self._run = run
        self._observers = tuple(observers)
        self._began = False

    def append(self, entry: Record | float) -> None:
        if not isinstance(entry, Record):  # the time of a step: see `bae.run_log.Log`
            entry = StepStarted(entry, "", len(self._trace) - 1, self._trace[-1])
        super().append(entry)
        if not self._began:
            # Dependencies can be resolved by hand, with a log that is no run's.
            self._began = isinstance(entry, RunStarted | RunResumed)
            if isinstance(entry, RunStarted):
                self._run.graph = entry.graph
        if self._began:
            self._tell(entry)
        if self._hear is not None:
            self._hear()

    def extend(self, entries: Iterable[Record | float]) -> None:
        for entry in entries:
            self.append(entry)

    def _tell(self, record: Record) -> None:
        for watching in self._observers:
            began = perf_counter()
            try:
                watching.observer(self._run, record)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # its own CancelledError too: nobody has cancelled the run
                self._drop(watching, record, "raised")
            else:
                taken = perf_counter() - began
                if taken > watching.patience:
                    self._drop(watching, record, f"took {taken:.1f} s")

    def _drop(self, watching: Watching, record: Record, did: str) -> None:
        import logging

        self._observers = tuple(each for each in self._observers if each is not watching)
        logging.getLogger("bae").warning(
            "the observer %r %s at a %s and is told no more of the run %s, which goes on",
            watching.observer,
            did,
            type(record).__name__,
            self._run.run_id,
            exc_info=did == "raised",
        )


def _refuse_async(observer: Observer) -> None:
    from inspect import iscoroutinefunction

    if not callable(observer):
        raise TypeError(f"{observer!r} is no observer: give a function of a run and a record")
    call: object = getattr(observer, "__call__", None)  # noqa: B004  looked at, not tested for
    if iscoroutinefunction(observer) or iscoroutinefunction(call):
        raise TypeError(
            f"{observer!r} is async, and nobody would await it: give a plain function, which can "
            "put records into a queue with put_nowait; graph.stream(…) hands them out async"
        )


_everywhere: list[Watching] = []
_here: ContextVar[tuple[Watching, ...]] = ContextVar("bae_observers", default=())
