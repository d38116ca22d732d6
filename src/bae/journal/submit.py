"""Stores a run for a worker in another process, and waits for the end of a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from os import urandom
from time import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bae.exceptions import BaeError, JournalError, RunCancelled, RunFailed, describe
from bae.failures import wrong_start_error
from bae.files import File, collect_files
from bae.journal.lines import line_of
from bae.journal.node_codec import node_codec
from bae.journal.run_checks import check_names, check_thread
from bae.journal.run_writer import form_of
from bae.journal.storability import prove_storable
from bae.journal.store import Journal, keeps_files, without_files
from bae.journal.stored_runs import RunInfo, StoredRun
from bae.node import Node
from bae.observers import carrying
from bae.records import RecordedError, RunEnded, RunStarted
from bae.result import GraphResult

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.rooms import Engine

T = TypeVar("T", bound=Node)

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
"""The longest pause in seconds between two checks whether a run in another process has ended."""

_log = logging.getLogger("bae")


async def submit(
    graph: Graph[Any, Any],
    start: Node,
    journal: Journal,
    *,
    run_id: str | None = None,
    engine: Engine | None = None,
    delay: float = 0.0,
    max_iters: int = 10,
    thread: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Store a run as "queued", pass its id to the engine, and return the id."""
    run_id = urandom(12).hex() if run_id is None else run_id
    with carrying("submit", run_id, graph.name) as headers:
        about = {**headers, **(metadata or {})}
        stored = queued_run(graph, start, journal, run_id, delay, max_iters, thread, about)
        await journal.create(stored, claim=False)
        journal.ring(run_id)
        if engine is not None:
            await dispatch(engine, run_id, graph.name, delay)
    return run_id


async def dispatch(engine: Engine, run_id: str, graph: str, delay: float = 0.0) -> None:
    """Pass the id of a stored run to an engine. If the engine fails, only log a warning, since a
    worker finds the run in the journal later."""
    try:
        with carrying("dispatch", run_id, graph):
            await engine.dispatch(run_id, graph, delay=delay)
    except Exception as error:  # a user's engine may raise anything
        _log.warning(
            "the run %s is stored and could not be given to the engine, a worker will find it in "
            "the journal: %s",
            run_id,
            describe(error),
        )


def queued_run(
    graph: Graph[Any, Any],
    start: Node,
    journal: Journal,
    run_id: str,
    delay: float,
    max_iters: int,
    thread: str | None,
    metadata: Mapping[str, Any],
) -> StoredRun:
    """Return a queued run in stored form. Raise the errors that starting the run would raise."""
    if type(start) is not graph.start:
        raise wrong_start_error(graph, start)
    graph.prove()
    check_names(run_id, graph.name)
    if thread is not None:
        check_thread(thread)
    if type(max_iters) is not int or max_iters < 0:
        raise ValueError(f"max_iters={max_iters}: give a number of nodes, or 0 for no bound")
    if not delay >= 0:
        raise ValueError(f"delay={delay!r}: give seconds, 0 or more")
    prove_storable(graph)
    _refuse_secrets(start, journal, run_id)
    encoder, shape = form_of(graph, journal)
    now = time()
    with collect_files() as collected_files:
        started = RunStarted(now, "", 0, run_id, graph.name, start, max_iters)
        line = line_of(0, started, encoder.encode(started))
    files = {
        collected_file.hash: collected_file.data
        for collected_file in collected_files.values()
        if isinstance(collected_file, File)
    }
    if files and not keeps_files(journal):
        raise without_files(journal)
    info = RunInfo(
        run_id,
        graph.name,
        "queued",
        now + delay,
        now,
        shape.hash,
        thread=thread,
        metadata=dict(metadata),
    )
    return StoredRun(info, shape.json, (line,), {}, files)


def _refuse_secrets(start: Node, journal: Journal, run_id: str) -> None:
    """Raise an error if the start node has secrets that the journal does not store. A worker in
    another process would read the start node without them."""
    if journal.secrets:
        return
    name = type(start).__name__
    secrets = sorted(node_codec(type(start)).secret & start.__dict__.keys())
    if secrets:
        places = [f"{name}.{field}" for field in secrets]
        raise JournalError(
            f"{', '.join(places)} of the start node is a secret, which the journal does not "
            "store: the worker that carries out the run would not have it",
            run_id=run_id,
            places=places,
            code="bae-submit-secret",
            fix="have the run read it where it is needed, with a Dep; or use a journal with "
            "secrets=True, which stores it in clear",
        )


async def wait_for_result(
    graph: Graph[Any, T], run_id: str, journal: Journal, timeout: float | None
) -> GraphResult[T]:
    """Wait until a run has ended, in any process, and return its result. If the run failed or was
    cancelled, raise the error. After `timeout` seconds, raise `bae-result-timeout`."""
    from bae.journal.resume import result_of

    loop = asyncio.get_running_loop()
    written = asyncio.Event()

    def hear(changed: str) -> None:
        if changed == run_id:
            loop.call_soon_threadsafe(written.set)

    until = None if timeout is None else loop.time() + timeout
    pause, info = _FIRST_PAUSE, await journal.info(run_id)
    stop = journal.listen(hear)
    try:
        while info.status not in ("ended", "failed", "cancelled"):
            wait = pause if until is None else min(pause, until - loop.time())
            if wait <= 0:
                raise _timeout_error(info, timeout or 0.0)
            try:
                async with asyncio.timeout(wait):
                    await written.wait()
            except TimeoutError:
                pause = min(pause * 1.5, _LONGEST_PAUSE)
            written.clear()
            info = await journal.info(run_id)
    finally:
        stop()
    stored = await journal.read(run_id)
    result = await result_of(graph, stored, None, journal)
    if info.status == "ended":
        return result
    error = _error_of(info, result)
    error.trace, error.journal, error.run_id = result.trace, result.journal, run_id
    raise error


def _error_of(info: RunInfo, result: GraphResult[Any]) -> BaeError:
    """Return the error of a failed or cancelled run, from its records."""
    run_id = info.run_id
    fix = f"graph.resume({run_id!r}, …) continues it"
    if info.status == "cancelled":
        return RunCancelled(f"the run {run_id} was cancelled", run_id=run_id, fix=fix)
    ends = result.journal.of(RunEnded)
    cause = ends[-1].error if ends else None
    code = cause.code if isinstance(cause, RecordedError) else None
    return RunFailed(
        f"the run {run_id} failed: {info.error or 'its error is not stored'}",
        cause,
        code=code or RunFailed.code,
        run_id=run_id,
        fix=fix,
    )


def _timeout_error(info: RunInfo, timeout: float) -> JournalError:
    gates = ", ".join(gate.place for gate in info.waiting if not gate.answered)
    standing = info.standing()
    why = f"it is {standing}" if info.owner is None else f"it is {standing}, with {info.owner}"
    fix = "wait longer"
    if gates:
        why, fix = f"it waits for an answer to {gates}", "answer it, then wait again"
    elif standing in ("queued", "interrupted"):
        fix = "start a worker that has the graph: `bae worker MODULE`"
    return JournalError(
        f"the run {info.run_id} has not ended within {timeout:g} s: {why}",
        run_id=info.run_id,
        code="bae-result-timeout",
        fix=fix,
    )
