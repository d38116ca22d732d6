"""`bae worker`: carries out the runs of a journal until a signal stops the worker."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from bae.cli import exits
from bae.cli.engine import (
    EngineName,
    Namespace,
    TaskQueue,
    TemporalAddress,
    engine_of,
    load_worker_graphs,
)
from bae.cli.exits import refusal
from bae.cli.journals import file_to_write, open_to_write
from bae.cli.lm import make_lm
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    Modules,
    SecretsOption,
    above_zero,
    examples,
    option,
)
from bae.cli.printing import note, print_json
from bae.cli.signals import Signals

EPILOG: Final = examples(
    "bae worker app.py --lm local",
    "bae worker app.py shop.refunds:graph --journal runs.db --concurrency 20",
    "BAE_JOURNAL=postgresql://db.example.com/bae bae worker app.py --engine temporal",
    "A MODULE may name a `bae.engine.WorkerGraph`, which brings an LM and secrets of its own.",
)


def worker(
    module: Modules = None,
    journal: JournalFile = None,
    lm: LMName = None,
    sets: SecretsOption = None,
    concurrency: Annotated[
        int, option("--concurrency N", "How many runs are in progress at once.", min=1)
    ] = 10,
    retries: Annotated[
        int,
        option("--retries N", "How often a run is tried again after a temporary error.", min=0),
    ] = 5,
    deaths: Annotated[
        int,
        option(
            "--deaths N",
            "A run fails when this many processes have died at one of its steps.",
            min=1,
        ),
    ] = 5,
    poll: Annotated[
        float,
        option(
            "--poll SECONDS",
            "Seconds between two searches of the journal for runs.",
            callback=above_zero,
        ),
    ] = 1.0,
    engine: EngineName = None,
    address: TemporalAddress = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = None,
    as_json: AsJSON = False,
) -> None:
    """Carry out the runs of a journal: queued runs, interrupted runs, and parked runs whose gates
    have answers.

    Start any number of workers, on any number of machines. SIGTERM or Ctrl-C stops a worker. It
    then takes no more runs and hands over its runs, which another worker continues at once. A
    second signal ends the worker immediately. Then other workers continue its runs when its lease
    is over.
    """
    from bae.engine import Worker

    names: list[str | None] = [*(module or ())]
    graphs = load_worker_graphs(names or [None], sets or ())
    for index, worker_graph in enumerate(graphs):
        if worker_graph.lm is None:  # all runs of a graph share one LM
            model = make_lm(worker_graph.graph, lm, quiet=as_json)
            graphs[index] = replace(worker_graph, lm=model)
    dispatcher = engine_of(engine, address, namespace, task_queue, poll)
    file = file_to_write(journal)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)

    async def work(signals: Signals) -> None:
        async with open_to_write(file) as run_journal:
            active_worker = Worker(
                *graphs,
                journal=run_journal,
                engine=dispatcher,
                concurrency=concurrency,
                retries=retries,
                most_deaths=deaths,
            )
            signals.calls(active_worker.stop)
            served = ", ".join(active_worker.graphs)
            if as_json:
                facts: dict[str, Any] = {
                    "graphs": [*active_worker.graphs],
                    "journal": describe_journal(run_journal),
                }
                print_json({**facts, "concurrency": concurrency})
            else:
                note(
                    f"carrying out runs of {served} from {describe_journal(run_journal)}; "
                    "Ctrl-C stops the worker"
                )
            try:
                await active_worker.run()
            finally:
                await dispatcher.close()
        if not as_json:
            note("the worker has stopped, and its runs are handed over")

    with Signals(str) as signals:
        try:
            asyncio.run(work(signals))
        except ExceptionGroup as group:
            raise refusal(f"the worker has stopped: {group.exceptions[0]}", cause=group) from group
    if signals.code == exits.INTERRUPTED:
        raise typer.Exit(exits.DONE)


def describe_journal(journal: Any) -> str:
    """Return the path or the address of a journal, without a password."""
    return str(getattr(journal, "url", None) or getattr(journal, "path", journal))
