"""`bae runs replay` repeats a recorded run without an LLM, and `bae runs test` writes a test that
does the same. `replay` asks for secrets that the journal does not store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.text import Text

from bae.cli.exits import Misuse, refusal
from bae.cli.journals import stored_run, use
from bae.cli.loading import Loaded, load
from bae.cli.options import (
    AsJSON,
    Force,
    JournalFile,
    NewestRun,
    NoAsk,
    OfModule,
    SecretsOption,
    option,
)
from bae.cli.outcome import CommandLine
from bae.cli.printing import as_data, note, out, print_json
from bae.cli.questions import ask_field, can_ask
from bae.cli.start import read_text, split_sets
from bae.cli.wording import in_one_line
from bae.exceptions import BaeError, JournalError
from bae.graph import Graph
from bae.journal.decoder import decode_run
from bae.journal.earlier_turns import runs_shown
from bae.journal.gates import describe_status
from bae.journal.replay import repeat
from bae.journal.written_test import GraphName, write_test
from bae.private_files import private

if TYPE_CHECKING:
    from bae.journal.stored_runs import StoredRun
    from bae.node import Node


def replay(
    run: NewestRun = None,
    module: OfModule = None,
    journal: JournalFile = None,
    sets: SecretsOption = None,
    as_json: AsJSON = False,
    no_ask: NoAsk = False,
) -> None:
    """Run a recorded run again with the recorded values.

    No LLM is asked, no dependency is called and no gate waits; your bodies run. If the run takes
    another path or sends another prompt, the difference is shown and the exit code is 1.
    """
    graph = load(module, "-m").graph
    stored = stored_run(journal, run)
    given = read_secrets(graph, stored, sets or (), ask=not no_ask)
    done = asyncio.run(repeat(graph, stored, given, _earlier_runs(journal, stored)))
    if as_json:
        print_json(as_data(done))
        return
    line = Text("went the same way", style="green").append(f": {' -> '.join(done.trace)}", "none")
    if done.outcome == "failed":
        line.append(f", and failed as it did then: {in_one_line(done.error)}")
    elif done.outcome == "waiting":
        line.append(f", and waits for {', '.join(done.waiting)}")
    out().print(line, soft_wrap=True)


def make_test(
    run: NewestRun = None,
    module: OfModule = None,
    output: Annotated[str, option("--output -o tests/test_X.py", "The test file to write.")] = ...,  # pyright: ignore[reportArgumentType]  it is required
    force: Force = False,
    journal: JournalFile = None,
) -> None:
    """Write a pytest file that replays a run.

    The recording is written beside the test, as .jsonl. The test fails with a diff when a node, a
    choice or a prompt has changed. It needs no LLM and no network.
    """
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
    name = _graph_name(loaded, target)
    stored = stored_run(journal, run)
    if stored.info.status not in ("ended", "waiting"):
        raise refusal(
            f"a test is made of a run that has ended, not of {stored.info.run_id}: "
            f"{describe_status(stored.info)}",
            fix=f"resume it: {CommandLine(module, journal).resume(stored.info.run_id)}",
        )
    try:
        earlier = _earlier_runs(journal, stored)
        written = asyncio.run(write_test(loaded.graph, stored, name, earlier))
    except JournalError as error:
        if error.code == "bae-journal-secret":
            error.fix = (
                "choose a run whose values are all stored: without them the test cannot pass"
            )
        raise
    _write({cassette: written.recording, target: written.source.encode()})
    note(f"{target}: replays the run and checks its path and its end")
    note(f"{cassette}: the recording, which belongs beside it")
    note(f"run it with: python -m pytest {target}")


def _earlier_runs(journal: str | None, stored: StoredRun) -> list[StoredRun]:
    """The runs of earlier turns that a run showed to the LLM."""
    return use(journal, lambda runs: runs_shown(runs, stored))


def _graph_name(loaded: Loaded, target: Path) -> GraphName:
    """The name by which the test loads the graph. A file is found relative to the test."""
    module = sys.modules[loaded.module]
    loaded_again: object = attrgetter(loaded.attribute)(module)
    kind: Literal["graph", "node", "function"] = (
        "node" if isinstance(loaded_again, type) else "function"
    )
    if isinstance(loaded_again, Graph):
        kind = "graph"
    reference = loaded.reference
    if not (reference.partition(":")[0].endswith(".py") or "/" in reference or "\\" in reference):
        return GraphName(loaded.module, loaded.attribute, kind)
    file = Path(str(module.__file__)).resolve()
    top = file.parents[loaded.module.count(".") + (file.name == "__init__.py")]
    if file.stem not in ("__init__", loaded.module.rpartition(".")[2]):
        raise refusal(
            f"{reference} has the name of another module, so that no test can import it",
            fix="rename the file",
        )
    folder = Path(os.path.relpath(top, target.resolve().parent)).as_posix()
    return GraphName(loaded.module, loaded.attribute, kind, folder)


# --- files --------------------------------------------------------------------------------------


def refuse_existing(*paths: str | Path, force: bool) -> None:
    """Refuse to overwrite files without --force."""
    there = [str(path) for path in map(Path, paths) if path.exists()]
    if there and not force:
        raise refusal(
            f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already",
            fix="give another name, or --force to write over it",
        )


def _write(files: Mapping[Path, bytes]) -> None:
    """Write files that only their owner can read, and create their folders. If a file cannot be
    written, the files written before it are deleted."""
    written: list[Path] = []
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb", opener=private) as file:
                written.append(path)
                file.write(data)
    except OSError as error:
        for each in written:
            each.unlink(missing_ok=True)
        raise refusal(
            f"{error.filename or written[-1]} could not be written: {error.strerror}", cause=error
        ) from error


# --- secrets ------------------------------------------------------------------------------------


def read_secrets(
    graph: Graph[Any, Any], stored: StoredRun, sets: Sequence[str], *, ask: bool
) -> dict[str, Any]:
    """The values for `given` of `Graph.resume` and `Graph.replay`. They are the values of --set,
    and the values that the user types when asked for a missing secret."""
    given: dict[str, Any] = {}
    for (cls, field), text in split_sets(sets, partial(field_at, graph)):
        given[f"{cls.__name__}.{field}"] = read_text(cls, field, text).value
    while missing := asyncio.run(_find_missing(graph, stored, given)):
        if not (ask and can_ask()):
            raise JournalError(
                f"the run needs {', '.join(missing)}, which the journal does not have: it is a "
                "secret, or was redacted",
                run_id=stored.info.run_id,
                places=missing,
                code="bae-journal-secret",
                fix=f"give it again with {' '.join(f'--set {place}=…' for place in missing)}",
            )
        for place in missing:
            typed = None
            while typed is None:
                typed = ask_field(*field_at(graph, place))
            given[place] = typed.value
    return given


def field_at(graph: Graph[Any, Any], place: str) -> tuple[type[Node], str]:
    """The class and the field of a name such as `Login.token`."""
    name, _, field = place.partition(".")
    for each in graph.graphs:
        for cls in each.nodes:
            if cls.__name__ == name and field in cls.__pydantic_fields__:
                return cls, field
    raise refusal(
        f"{graph.name} has no field {place}", fix="name it by its node, as --set Login.token=…"
    )


async def _find_missing(
    graph: Graph[Any, Any], stored: StoredRun, given: dict[str, Any]
) -> list[str]:
    """The fields that must be given, such as `Login.token`."""
    try:
        await decode_run(graph, stored.lines, files=stored.files, given=given)
    except BaeError as error:
        # Other problems are reported by the run itself.
        return list(error.places) if isinstance(error, JournalError) else []
    return []
