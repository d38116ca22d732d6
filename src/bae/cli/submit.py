"""`bae submit`: stores a run that a worker carries out."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated, Final

import typer

from bae.cli.engine import EngineName, Namespace, TaskQueue, TemporalAddress, engine_of
from bae.cli.journals import file_to_write, open_to_write
from bae.cli.loading import load_proved
from bae.cli.options import (
    AsJSON,
    InputOption,
    JournalFile,
    MaxIters,
    Metadata,
    Module,
    NewId,
    NoAsk,
    Sets,
    examples,
    metadata_of,
    option,
    parse_duration,
)
from bae.cli.printing import note, out, print_json
from bae.cli.start import start_node

EPILOG: Final = examples(
    "bae submit app.py --set 'message=just got up'",
    "bae submit app.py -i @order.json --run-id order-4711 --delay 30m",
    "bae submit app.py --set n=5 --journal runs.db --engine temporal",
)


def submit(
    module: Module = None,
    given: InputOption = None,
    sets: Sets = None,
    journal: JournalFile = None,
    run_id: NewId = None,
    delay: Annotated[
        str | None,
        option("--delay TIME", "The least time until the run begins: 90s, 30m, 12h, 2d."),
    ] = None,
    max_iters: MaxIters = 10,
    thread: Annotated[
        str | None,
        option("--thread ID", "The conversation in the journal that this run continues."),
    ] = None,
    metadata: Metadata = None,
    engine: EngineName = None,
    address: TemporalAddress = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = None,
    as_json: AsJSON = False,
    no_ask: NoAsk = False,
) -> None:
    """Store a run for a worker to carry out, and print its id.

    The run does not begin here: `bae worker` carries it out, in any process with the same journal.
    The fields of the start node come from `-i` and `--set`.
    """
    about = metadata_of(metadata)
    seconds = 0.0 if delay is None else parse_duration(delay)
    graph = load_proved(module)
    example = shlex.join(["bae", "submit", *([module] if module else [])])
    start = start_node(graph.start, given, sets or (), ask=not no_ask, command=example)
    dispatcher = engine_of(engine, address, namespace, task_queue)
    file = file_to_write(journal)

    async def store() -> str:
        async with open_to_write(file) as run_journal:
            try:
                return await graph.submit(
                    start,
                    journal=run_journal,
                    run_id=run_id,
                    engine=dispatcher,
                    delay=seconds,
                    max_iters=max_iters,
                    thread=thread,
                    metadata=about or None,
                )
            finally:
                await dispatcher.close()

    try:
        name = asyncio.run(store())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        print_json({"run_id": name, "graph": graph.name, "status": "queued"})
        return
    out().print(name, highlight=False, markup=False, soft_wrap=True)
    note("the run is queued; `bae worker` carries it out")
