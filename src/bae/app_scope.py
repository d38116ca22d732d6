"""The values of `Dep(fn, scope="app")`. A value is opened when a run first asks for it. All graphs
that are open on the same event loop share the value. It is closed with the last of these graphs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from bae.run import Run
from bae.scheduling import PendingValue
from bae.sharing import Dataflow
from bae.tasks import wait_despite_cancel

if TYPE_CHECKING:
    from bae.calls import Input
    from bae.graph import Graph


@asynccontextmanager
async def open_app(graph: Graph[Any, Any]) -> AsyncGenerator[None]:
    """Implement `graph.open()`."""
    graph.prove()
    loop = asyncio.get_running_loop()
    app = apps.setdefault(loop, _App())
    opening = Opening(graph, app.flow)
    app.openings.append(opening)
    app.users += 1
    failure: BaseException | None = None
    try:
        yield
    except BaseException as caught:
        failure = caught
    app.openings.remove(opening)  # runs that begin from now on are outside the block
    failure = await opening.let_runs_end(failure)
    app.users -= 1
    if app.users == 0:
        del apps[loop]
        failure = await app.flow.close_after(failure)
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # its traceback refers to this frame: this cycle would keep both alive


def opening_of(graph: Graph[Any, Any], run: Run) -> Opening | None:
    """Return the newest open block of the graph on this event loop, and add the run to the block.
    Return None if there is no block. The caller must call `leave` when the run is over."""
    app = apps.get(asyncio.get_running_loop())
    for opening in reversed(app.openings if app is not None else ()):
        if opening.graph is graph:
            opening.enter(run)
            return opening
    return None


class Opening:
    """One `graph.open()` block, with its runs in progress."""

    def __init__(self, graph: Graph[Any, Any], flow: Dataflow) -> None:
        self.graph = graph
        self._flow = flow
        self._runs: dict[Run, tuple[asyncio.Future[None], asyncio.Task[Any] | None]] = {}

    def enter(self, run: Run) -> None:
        """Add a run that begins."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runs[run] = over, asyncio.current_task()

    def leave(self, run: Run) -> None:
        """Remove a run that is over."""
        self._runs.pop(run)[0].set_result(None)

    async def value(self, dep_input: Input, asked: PendingValue) -> Any:
        """Return an app-scoped value. If no run has asked for this value yet, open it. A failure is
        not stored, so the next run tries again."""
        flow, run = self._flow, Run(outer=asked.run, run_id=asked.run.run_id)
        pending = flow.dependency(dep_input, run, asked.node_type, asked.place)
        failed = await flow.gather([pending])
        if failed is None:
            return pending.value
        flow.forget_failures()
        asked.failed_input = failed.failed_input
        raise cast(BaseException, failed.error)

    async def let_runs_end(self, failure: BaseException | None) -> BaseException | None:
        """Wait for the runs in progress. If the block has failed, cancel these runs first. Return
        the failure, or the cancellation if the wait was cancelled. Do not wait for a run in the
        current task, because the run would wait for itself."""
        current = asyncio.current_task()
        runs = [(over, task) for over, task in self._runs.values() if task is not current]
        if runs and failure is None:
            try:
                await asyncio.wait([over for over, _ in runs])
            except asyncio.CancelledError as cancelled:
                failure = cancelled
        for over, task in runs:
            if task is not None and not over.done():
                task.cancel()
        return await wait_despite_cancel(over for over, _ in runs) or failure


class _App:
    """The `graph.open()` blocks and the app-scoped values of one event loop."""

    def __init__(self) -> None:
        # A value outlives the run that opens it, so it is opened outside that run's context.
        self.flow = Dataflow(context=copy_context())
        self.openings: list[Opening] = []
        self.users = 0
        """How many blocks are open or still wait for their runs to end."""


apps: dict[asyncio.AbstractEventLoop, _App] = {}
"""The open blocks and values of each event loop."""
