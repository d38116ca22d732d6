"""The command `bae engine status`, and the options of all commands that use an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.journals import use
from bae.cli.loading import load_module, load_proved
from bae.cli.options import AsJSON, JournalFile, examples, option
from bae.cli.printing import out, print_json
from bae.cli.replay import field_at
from bae.cli.start import read_text, split_sets

if TYPE_CHECKING:
    from bae.engine import Engine, QueueStatus, WorkerGraph
    from bae.journal.store import Journal

group = typer.Typer(
    help="Show the runs that wait for the workers of a journal.", no_args_is_help=True
)

EngineName = Annotated[
    str | None,
    option(
        "--engine NAME",
        "The service that hands runs to workers: `temporal`. Default: workers search the journal.",
        envvar="BAE_ENGINE",
    ),
]
TemporalAddress = Annotated[
    str | None,
    option(
        "--address HOST:PORT",
        "The address of Temporal. Default: TEMPORAL_ADDRESS, or the profile of Temporal's own "
        "configuration file.",
    ),
]
Namespace = Annotated[
    str | None,
    option("--namespace NAME", "The namespace in Temporal. Default: TEMPORAL_NAMESPACE."),
]
TaskQueue = Annotated[
    str | None,
    option("--task-queue NAME", "The task queue in Temporal. Default: bae.", envvar="BAE_QUEUE"),
]
_ENGINES: Final = ("journal", "temporal")


def engine_of(
    name: str | None,
    address: str | None,
    namespace: str | None,
    task_queue: str | None,
    poll: float = 1.0,
) -> Engine:
    """Make the engine that the options name. Raises `typer.BadParameter` for wrong options."""
    from bae.engine import JournalEngine, TemporalEngine

    if name not in (None, *_ENGINES):
        raise typer.BadParameter(
            f"{name!r} is not an engine: give {' or '.join(_ENGINES)}", param_hint="'--engine'"
        )
    if name == "temporal":
        return TemporalEngine(address, namespace=namespace, task_queue=task_queue or "bae")
    temporal_options = {"--address": address, "--namespace": namespace, "--task-queue": task_queue}
    for option_name, value in temporal_options.items():
        if value is not None and name is None and option_name != "--task-queue":
            raise typer.BadParameter(
                "this option needs Temporal: add --engine temporal", param_hint=f"'{option_name}'"
            )
    return JournalEngine(poll=poll)


def load_worker_graphs(names: Sequence[str | None], sets: Sequence[str]) -> list[WorkerGraph]:
    """Load the graphs that the references `names` name. A reference may also name a `WorkerGraph`
    object in the user's code, which is returned unchanged. Other graphs get their secrets from
    `sets`, the values of --set. Raises if a setting fits no graph."""
    from bae.engine import WorkerGraph

    graphs: list[WorkerGraph] = []
    unused = list(sets)
    for reference in names:
        if reference is not None and ":" in reference:
            module, _, name = load_module(reference)
            declared = getattr(module, name, None)
            if isinstance(declared, WorkerGraph):
                graphs.append(declared)
                continue
        graph = load_proved(reference)
        classes = {cls.__name__ for inner in graph.graphs for cls in inner.nodes}
        own_sets = [set_ for set_ in sets if set_.partition(".")[0].strip() in classes]
        unused = [set_ for set_ in unused if set_ not in own_sets]
        secrets: dict[str, Any] = {}
        for (cls, field), text in split_sets(own_sets, partial(field_at, graph)):
            secrets[f"{cls.__name__}.{field}"] = read_text(cls, field, text).value
        graphs.append(WorkerGraph(graph, None, secrets))
    if unused:
        split_sets(unused, partial(field_at, graphs[-1].graph))  # raises for an unknown field
    return graphs


@group.command("status", epilog=examples("bae engine status", "bae engine status --json"))
def status(
    journal: JournalFile = None,
    engine: EngineName = None,
    address: TemporalAddress = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = None,
    as_json: AsJSON = False,
) -> None:
    """Print how many runs are queued, in progress, interrupted and parked.

    Also print how long the oldest run has waited, and which processes work on runs.
    """
    from bae.engine import queue_status

    dispatcher = engine_of(engine, address, namespace, task_queue)

    async def read_status(opened: Journal) -> tuple[QueueStatus, dict[str, Any]]:
        queue = await queue_status(opened)
        try:
            return queue, await dispatcher.status()
        finally:
            await dispatcher.close()

    queue, reported = use(journal, read_status)
    if as_json:
        counts_by_status = {field.name: dict(getattr(queue, field.name)) for field in fields(queue)}
        print_json({**counts_by_status, "engine": reported})
        return
    for standing in ("queued", "delayed", "running", "interrupted", "waiting"):
        counts: dict[str, int] = getattr(queue, standing)
        line = f"{standing:<12}{sum(counts.values()):>7}"
        if standing in queue.oldest:
            line += f"   oldest {duration(queue.oldest[standing])}"
        if standing == "waiting" and queue.ready:
            line += f"   {sum(queue.ready.values())} can continue"
        graphs = ", ".join(f"{graph} {count}" for graph, count in sorted(counts.items()))
        out().print(line + (f"   {graphs}" if graphs else ""), highlight=False, soft_wrap=True)
    for owner, count in sorted(queue.owners.items()):
        out().print(f"  {owner}: {count}", highlight=False, markup=False, soft_wrap=True)
    for name, value in reported.items():
        out().print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Format a duration for people: 40 s, 12 min, 3 h, 2 d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
