"""`bae runs replay` repeats a recorded run without an LLM. `bae runs test` writes a test that
replays the run. For secrets, which the journal does not store, `replay` asks the user."""

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
from bae.journal.earlier_turns import read_earlier_runs
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

    No LLM is asked, no dependency is called and no gate waits. Only your bodies run. If the run
    takes another path or sends another prompt, the difference is shown, and the exit code is 1.
    """
    graph = load(module, "-m").graph
    stored = stored_run(journal, run)
    secrets = read_secrets(graph, stored, sets or (), ask=not no_ask)
    result = asyncio.run(repeat(graph, stored, secrets, _read_earlier_runs(journal, stored)))
    if as_json:
        print_json(as_data(result))
        return
    line = Text("went the same way", style="green").append(f": {' -> '.join(result.trace)}", "none")
    if result.outcome == "failed":
        line.append(f", and failed as it did then: {in_one_line(result.error)}")
    elif result.outcome == "waiting":
        line.append(f", and waits for {', '.join(result.waiting)}")
    out().print(line, soft_wrap=True)


def make_test(
    run: NewestRun = None,
    module: OfModule = None,
    output: Annotated[str, option("--output -o tests/test_X.py", "The test file to write.")] = ...,  # pyright: ignore[reportArgumentType]  it is required
    force: Force = False,
    journal: JournalFile = None,
) -> None:
    """Write a pytest file that replays a run.

    The test needs no LLM and no network. If a node, a choice or a prompt has changed, the test
    fails with a diff. The recording of the run is written beside the test, as .jsonl.
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
    name = _find_graph_name(loaded, target)
    stored = stored_run(journal, run)
    if stored.info.status not in ("ended", "waiting"):
        raise refusal(
            f"a test is made of a run that has ended, not of {stored.info.run_id}: "
            f"{describe_status(stored.info)}",
            fix=f"resume it: {CommandLine(module, journal).resume(stored.info.run_id)}",
        )
    try:
        earlier = _read_earlier_runs(journal, stored)
        test = asyncio.run(write_test(loaded.graph, stored, name, earlier))
    except JournalError as error:
        if error.code == "bae-journal-secret":
            error.fix = (
                "choose a run whose values are all stored: without them the test cannot pass"
            )
        raise
    _write_files({cassette: test.recording, target: test.source.encode()})
    note(f"{target}: replays the run and checks its path and its end")
    note(f"{cassette}: the recording; keep it beside the test")
    note(f"run it with: python -m pytest {target}")


def _read_earlier_runs(journal: str | None, stored: StoredRun) -> list[StoredRun]:
    """Return the earlier runs of the conversation that a run showed to the LLM."""
    return use(journal, lambda runs: read_earlier_runs(runs, stored))


def _find_graph_name(loaded: Loaded, target: Path) -> GraphName:
    """Return the name by which the test loads the graph. If the user named the graph by a file, the
    name includes the folder to import from, relative to the test."""
    module = sys.modules[loaded.module]
    loaded_value: object = attrgetter(loaded.attribute)(module)
    kind: Literal["graph", "node", "function"] = (
        "node" if isinstance(loaded_value, type) else "function"
    )
    if isinstance(loaded_value, Graph):
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
    """Raise an error if one of the files exists, unless `force` is true."""
    existing = [str(path) for path in map(Path, paths) if path.exists()]
    if existing and not force:
        raise refusal(
            f"{' and '.join(existing)} {'is' if len(existing) == 1 else 'are'} there already",
            fix="give another name, or --force to write over it",
        )


def _write_files(files: Mapping[Path, bytes]) -> None:
    """Write files that only their owner can read, and create their folders. If a file cannot be
    written, delete the files that were written before."""
    written: list[Path] = []
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb", opener=private) as file:
                written.append(path)
                file.write(data)
    except OSError as error:
        for written_path in written:
            written_path.unlink(missing_ok=True)
        raise refusal(
            f"{error.filename or written[-1]} could not be written: {error.strerror}", cause=error
        ) from error


# --- secrets ------------------------------------------------------------------------------------


def read_secrets(
    graph: Graph[Any, Any], stored: StoredRun, sets: Sequence[str], *, ask: bool
) -> dict[str, Any]:
    """Return the values for `given` of `Graph.resume` and `Graph.replay`. The values come from
    `sets`, the arguments of --set. If a secret is missing and `ask` is true, the user types its
    value at the terminal. Otherwise a missing secret raises JournalError."""
    secrets: dict[str, Any] = {}
    for (cls, field), text in split_sets(sets, partial(field_at, graph)):
        secrets[f"{cls.__name__}.{field}"] = read_text(cls, field, text).value
    while missing := asyncio.run(_find_missing(graph, stored, secrets)):
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
            secrets[place] = typed.value
    return secrets


def field_at(graph: Graph[Any, Any], place: str) -> tuple[type[Node], str]:
    """Return the class and the field that a place such as `Login.token` names."""
    name, _, field = place.partition(".")
    for member in graph.graphs:
        for cls in member.nodes:
            if cls.__name__ == name and field in cls.__pydantic_fields__:
                return cls, field
    raise refusal(
        f"{graph.name} has no field {place}", fix="name it by its node, as --set Login.token=…"
    )


async def _find_missing(
    graph: Graph[Any, Any], stored: StoredRun, secrets: dict[str, Any]
) -> list[str]:
    """Return the places of the values that the journal does not have, such as `Login.token`."""
    try:
        await decode_run(graph, stored.lines, files=stored.files, given=secrets)
    except BaeError as error:
        # The run itself reports other problems.
        return list(error.places) if isinstance(error, JournalError) else []
    return []
