"""`TemporalEngine`: Temporal hands runs to workers. Temporal gets only the ids of runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

from bae.engine.engine import Engine
from bae.engine.ready_runs import ReadyRuns
from bae.exceptions import describe
from bae.lm.extras import need

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.worker import Worker as TemporalWorker

    from bae.engine.worker import Worker, WorkOutcome

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 15.0

_log = logging.getLogger("bae")


class TemporalEngine(Engine):
    """Uses Temporal to hand runs to workers: `TemporalEngine("127.0.0.1:7233")`. It needs the extra
    `temporal`.

    Each run is a workflow with one activity, which begins or resumes the run and sends heartbeats.
    The id of the workflow is `bae:` and the id of the run. Temporal gets the id of the run and the
    name of the graph, but no value of a node.

    - `address` and `namespace` say where Temporal is. The defaults are from Temporal's own
      environment variables and configuration file (`TEMPORAL_ADDRESS`, `TEMPORAL_API_KEY`, …),
      which also have the keys and certificates.
    - `task_queue` is the queue of the workers. All workers of a queue must have the same graphs,
      because each worker may retry a run that another worker could not carry out.
    - `heartbeat`: if a worker sends no heartbeat for this many seconds, Temporal considers the
      worker dead. Use the same number as for the lease of the journal.
    - `sweep`: after every pause of this many seconds, a worker gives Temporal the ready runs of the
      journal, such as runs whose submission was interrupted, or whose gates were answered without
      an engine.
    - `timeout` is the number of seconds to wait for Temporal's answer.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        task_queue: str = "bae",
        heartbeat: float = 30.0,
        sweep: float = 30.0,
        timeout: float = 10.0,
    ) -> None:
        need("temporalio", extra="temporal", by="TemporalEngine")
        if not (heartbeat > 0 and sweep > 0 and timeout > 0):
            raise ValueError(
                f"TemporalEngine(heartbeat={heartbeat!r}, sweep={sweep!r}, timeout={timeout!r}): "
                "give seconds, more than 0"
            )
        self.address, self.namespace, self.task_queue = address, namespace, task_queue
        self.heartbeat, self.sweep, self.timeout = heartbeat, sweep, timeout
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"TemporalEngine({self.address!r}, task_queue={self.task_queue!r})"

    async def dispatch(self, run_id: str, graph: str, *, delay: float = 0.0) -> None:
        """Start the workflow of a run, or wake it."""
        from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

        client = await self._shared_client()
        await client.start_workflow(
            "bae.run",
            args=[run_id, graph, self.heartbeat],
            id=workflow_id(run_id),
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            start_signal="wake",
            start_delay=timedelta(seconds=delay) if delay else None,
            rpc_timeout=timedelta(seconds=self.timeout),
        )

    async def serve(self, worker: Worker) -> None:
        """Carry out the runs that Temporal hands out, until the worker stops."""
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(worker.stopping.wait())
            client = await self._connect_until(stopping)
            if client is None:
                return
            sweeping = group.create_task(self._sweep(worker))
            async with _run_worker(self._make_worker(client, worker)):
                await stopping
            sweeping.cancel()

    async def status(self) -> dict[str, Any]:
        """Return the address of Temporal, and the number of open workflows."""
        client = await self._shared_client()
        query = f'WorkflowType = "bae.run" AND TaskQueue = "{self.task_queue}"'
        workflows = await client.count_workflows(f'{query} AND ExecutionStatus = "Running"')
        return {
            "name": "temporal",
            "address": client.service_client.config.target_host,
            "namespace": client.namespace,
            "task_queue": self.task_queue,
            "open_workflows": workflows.count,
        }

    # The connection.

    async def _shared_client(self) -> Client:
        async with self._connecting:
            if self._client is None:
                async with asyncio.timeout(self.timeout):
                    self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        from temporalio.client import Client
        from temporalio.envconfig import ClientConfig

        options: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
        if self.address is not None:
            options["target_host"] = self.address
        options.setdefault("target_host", "127.0.0.1:7233")
        if self.namespace is not None:
            options["namespace"] = self.namespace
        return await Client.connect(**options)

    async def _connect_until(self, stopping: asyncio.Task[Any]) -> Client | None:
        """Wait until Temporal answers, and return the client. If the worker stops first, return
        None."""
        pause = _FIRST_PAUSE
        while not stopping.done():
            try:
                return await self._connect()
            except Exception as error:  # any error: Temporal may answer later
                _log.warning("Temporal does not answer, and is asked again: %s", describe(error))
            await asyncio.wait((stopping,), timeout=pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    # The worker of Temporal in this process.

    def _make_worker(self, client: Client, worker: Worker) -> TemporalWorker:
        from temporalio import activity
        from temporalio.worker import UnsandboxedWorkflowRunner
        from temporalio.worker import Worker as TemporalWorker

        from bae.engine.temporal_workflow import RunWorkflow

        @activity.defn(name="bae.carry_out")
        async def carry_out(run_id: str, graph: str) -> dict[str, Any]:
            async with _heartbeats(self.heartbeat / 4):
                outcome = await worker.carry_out(run_id, graph)
            return _report_outcome(outcome)

        return TemporalWorker(
            client,
            task_queue=self.task_queue,
            workflows=[RunWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            activities=[carry_out],
            max_concurrent_activities=worker.concurrency,
            graceful_shutdown_timeout=timedelta(seconds=60),
        )

    async def _sweep(self, worker: Worker) -> None:
        """Every `sweep` seconds, give Temporal the ready runs of the journal."""
        ready = ReadyRuns(worker.journal, [*worker.graphs])
        dispatched: dict[str, float] = {}
        while True:
            await asyncio.sleep(self.sweep)
            now = monotonic()
            dispatched = {
                run_id: at for run_id, at in dispatched.items() if now - at < 10 * self.sweep
            }
            try:
                for info in await ready.find(1000, dispatched):
                    if info.status != "waiting" and info.updated > time() - self.sweep:
                        continue  # its dispatch may be in progress
                    await self.dispatch(info.run_id, info.graph)
                    dispatched[info.run_id] = now
            except Exception as error:  # the journal or Temporal is away: try again later
                _log.warning("runs are not handed to Temporal: %s", describe(error))


def workflow_id(run_id: str) -> str:
    """Return the id of the workflow of a run."""
    return f"bae:{run_id}"


def _report_outcome(outcome: WorkOutcome) -> dict[str, Any]:
    """Return the outcome of an attempt for the workflow. If another attempt is needed, raise an
    error, which makes Temporal retry in any worker."""
    from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

    if outcome.kind in ("over", "waiting"):
        return {"kind": outcome.kind, "after": outcome.after}
    after = {"handed over": 0.0, "unfit": None, "again": outcome.after}[outcome.kind]
    # Without the message and the cause of the error: Temporal would store them.
    name = "" if outcome.error is None else type(outcome.error).__name__
    category = ApplicationErrorCategory.UNSPECIFIED
    if outcome.kind != "unfit":  # an expected error: Temporal logs other errors with a traceback
        category = ApplicationErrorCategory.BENIGN
    raise ApplicationError(
        f"{outcome.kind} {getattr(outcome.error, 'code', name)}".strip(),
        type=outcome.kind,
        category=category,
        next_retry_delay=None if after is None else timedelta(seconds=max(after, 0.05)),
    )


@asynccontextmanager
async def _heartbeats(every: float) -> AsyncGenerator[None]:
    from temporalio import activity

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(every)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


@asynccontextmanager
async def _run_worker(worker: TemporalWorker) -> AsyncGenerator[None]:
    """Run a worker of Temporal inside the block. At the end of the block, it takes no more tasks
    and finishes its tasks in progress."""
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        try:
            yield
        finally:
            await worker.shutdown()
