"""`bae runs replay` and `bae runs test`: a run once more, with all that was recorded and nobody
asked, now or in a test that stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bae.cli.options import AsJSON, JournalFile, NewestRun, NoAsk, OfModule, Secrets
from bae.cli.runs.moving import Force

if TYPE_CHECKING:
    from pathlib import Path

    from bae.cli.loading import Loaded
    from bae.journal.store import StoredRun
    from bae.testing.written_tests import GraphName, WrittenTest


def replay(
    run: NewestRun = None,
    module: OfModule = None,
    journal: JournalFile = None,
    sets: Secrets = None,
    as_json: AsJSON = False,
    no_ask: NoAsk = False,
) -> None:
    """Run a recorded run again, with every value that was recorded.

    No LM is asked, no dependency is called and nobody stands at a gate; your bodies are called.
    Where the run goes another way today, or asks an LM something else, the difference is shown
    and the exit code is 1.
    """
    import asyncio

    from rich.text import Text

    from bae.cli.loading import load
    from bae.cli.printing import out, print_json
    from bae.cli.runs.as_data import diverged_as_data, repeated_as_data
    from bae.cli.runs.withheld import withheld
    from bae.cli.texts import in_one_line
    from bae.exceptions import ReplayError
    from bae.journal.replay import repeat

    graph = load(module, "-m").graph

    stored = asyncio.run(_stored(journal, run))
    given = withheld(graph, stored, sets or (), ask=not no_ask)
    try:
        done = asyncio.run(repeat(graph, stored, given))
    except ReplayError as error:
        if as_json:
            print_json(diverged_as_data(error))
        raise
    if as_json:
        print_json(repeated_as_data(done))
        return
    said = Text("went the same way", style="green").append(f": {' -> '.join(done.trace)}", "none")
    if done.outcome == "failed":
        said.append(f", and failed as it did then: {in_one_line(done.error)}")
    elif done.outcome == "waiting":
        said.append(f", and waits for {', '.join(done.waiting)}")
    out().print(said, soft_wrap=True)


def make_test(
    run: NewestRun = None,
    module: OfModule = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="tests/test_X.py", show_default=False, help="Where to."
        ),
    ] = ...,  # pyright: ignore[reportArgumentType]  it is required
    force: Force = False,
    journal: JournalFile = None,
) -> None:
    """Make a pytest file of a run.

    The run is replayed, and its recording written beside the test, with the ending .jsonl. The
    test fails, with a diff, when a node, a choice or a prompt is no longer what it was. It needs
    no LM and no network.
    """
    import asyncio
    from pathlib import Path

    from bae.cli.loading import load
    from bae.cli.printing import note
    from bae.cli.refusals import Misuse, refused
    from bae.cli.running.commands_to_copy import CommandLine
    from bae.cli.runs.writing import refuse_existing, write_all
    from bae.exceptions import JournalError
    from bae.journal.gates import describe_status
    from bae.testing.written_tests import write_test

    target = Path(output)
    cassette = target.with_suffix(".jsonl")
    if target.suffix != ".py":
        raise Misuse(
            f"{output} is no Python file",
            code="bae-command-refused",
            fix="write -o tests/test_….py",
        )
    refuse_existing(target, cassette, force=force)
    loaded = load(module, "-m")
    name = _name(loaded, target)

    async def made() -> WrittenTest:
        stored = await _stored(journal, run)
        if stored.info.status not in ("ended", "waiting"):
            raise refused(
                f"a test is made of a run that has ended, not of {stored.info.run_id}: "
                f"{describe_status(stored.info)}",
                fix=f"go on with it: {CommandLine(module, journal).resume(stored.info.run_id)}",
            )
        try:
            return await write_test(loaded.graph, stored, name)
        except JournalError as error:
            if error.code == "bae-journal-secret":
                error.fix = "make the test of a run that has them: one that fails without what "
                error.fix += "nobody keeps is no test"
            raise

    written = asyncio.run(made())
    write_all({cassette: written.recording, target: written.source.encode()})
    note(f"{target}: replays the run and says where it went and ended")
    note(f"{cassette}: the recording, which belongs beside it")
    note(f"run it with: python -m pytest {target}")


async def _stored(file: str | None, run: str | None) -> StoredRun:
    from bae.cli.runs.meant import run_meant, to_read

    async with to_read(file) as runs:
        return await runs.read(await run_meant(runs, run))


def _name(loaded: Loaded, target: Path) -> GraphName:
    """How the test finds the graph. A file is found from where the test is, wherever it is run."""
    import os
    import sys
    from pathlib import Path

    from bae.cli.refusals import refused
    from bae.graph import Graph
    from bae.testing.written_tests import GraphName

    module = sys.modules[loaded.module]
    found: object = module
    for part in loaded.attribute.split("."):
        found = getattr(found, part)
    kind: Literal["graph", "node", "function"] = "function"
    if isinstance(found, Graph):
        kind = "graph"
    elif isinstance(found, type):
        kind = "node"
    if not _is_file(loaded.said):
        return GraphName(loaded.module, loaded.attribute, kind)
    file = Path(str(module.__file__)).resolve()
    top = file.parents[loaded.module.count(".") + (file.name == "__init__.py")]
    if file.stem not in ("__init__", loaded.module.rpartition(".")[2]):
        raise refused(
            f"{loaded.said} has the name of another module, so that no test can import it",
            fix="rename the file",
        )
    return GraphName(
        loaded.module,
        loaded.attribute,
        kind,
        Path(os.path.relpath(top, target.resolve().parent)).as_posix(),
    )


def _is_file(said: str) -> bool:
    """Whether a graph was named by a file, and not by a module."""
    return said.partition(":")[0].endswith(".py") or "/" in said or "\\" in said
