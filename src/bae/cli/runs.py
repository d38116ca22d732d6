"""`bae runs`: list, show, explain, export and delete the runs of a journal."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import time
from typing import Annotated, Any, Final, Literal, cast, get_args

import typer
from rich.text import Text

from bae.cli.approvals import approvals, cancel, tell
from bae.cli.exits import refusal
from bae.cli.journals import (
    can_be_written,
    file_to_read,
    file_to_write,
    find_run_id,
    stored_run,
    use,
)
from bae.cli.loading import is_configured
from bae.cli.options import (
    AsJSON,
    Force,
    JournalFile,
    NewestRun,
    OneRun,
    Yes,
    argument,
    examples,
    flag,
    metadata_of,
    option,
    parse_duration,
    run_ids,
)
from bae.cli.outcome import CommandLine, parked_data, short_name
from bae.cli.printing import as_data, note, out, print_hanging, print_json
from bae.cli.replay import make_test, refuse_existing, replay
from bae.cli.resume import answer, fork, resume
from bae.cli.story import heading_lines, node_lines, outcome_lines, print_runs
from bae.cli.timeline import bars_of, path_lines
from bae.cli.wording import count, in_one_line
from bae.exceptions import JournalError
from bae.journal.critical_paths import critical_path
from bae.journal.gates import open_gates
from bae.journal.provenance import Provenance
from bae.journal.redaction import Redaction
from bae.journal.report import list_files, report_run, timeline
from bae.journal.store import Journal
from bae.journal.stored_runs import Listed, RunInfo
from bae.journal.stored_runs import RunStatus as Stored

group = typer.Typer(
    no_args_is_help=True,
    help="Inspect the runs of a journal, and continue them.",
    epilog=examples(
        "bae runs list --status waiting",
        "bae runs show  # the newest one",
        "bae runs why last Outfit.mood",
        "bae runs resume 3f2a -m app.py",
    ),
)

OfStatus = Annotated[
    Listed | None,
    typer.Option("--status", "-s", help="Only runs with this status."),
]
OfGraph = Annotated[str | None, option("--graph -g NAME", "Only runs of this graph.")]
OfThread = Annotated[str | None, option("--thread ID", "Only runs of this conversation.")]


# --- list, show, why ----------------------------------------------------------------------------


@group.command(
    "list",
    epilog=examples(
        "bae runs list --status failed --limit 5",
        "bae runs list --thread ana-42",
        "bae runs list --metadata user_id=u1",
    ),
)
def list_runs(
    status: OfStatus = None,
    graph: OfGraph = None,
    thread: OfThread = None,
    metadata: Annotated[
        list[str] | None,
        option(
            "--metadata KEY=VALUE",
            "Only runs with this metadata. The value is JSON if that is valid, otherwise text. "
            "Repeatable.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="The maximum number of runs.")
    ] = 50,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """List runs, the newest first.

    A run is queued, running, waiting (for a person), ended, failed, cancelled or interrupted. An
    interrupted run was running when its process ended: `bae runs resume` continues it.
    """

    filters = _parse_metadata(metadata)

    async def read_list(runs: Journal) -> tuple[list[RunInfo], list[list[dict[str, Any]]]]:
        newest: list[RunInfo] = []
        async for info in _select_runs(runs, status, graph, thread, filters):
            newest.append(info)
            if len(newest) > limit:
                break
        return newest, [await _waiting_data(runs, info) for info in newest] if as_json else []

    infos, waiting = use(journal, read_list)
    if as_json:
        facts = [{"status": info.standing(), "seconds": info.lasted()} for info in infos[:limit]]
        listed = zip(infos, facts, waiting, strict=False)
        print_json([as_data(info) | more | {"waiting": gates} for info, more, gates in listed])
        return
    if not infos:
        note("no runs")
        return
    print_runs(infos[:limit])
    if len(infos) > limit:
        note(f"the newest {limit}: --limit shows more")


async def _waiting_data(runs: Journal, info: RunInfo) -> list[dict[str, Any]]:
    """Return the open questions of a run, as JSON. The run's lines are read only if a question is
    about a tool call. If the lines are damaged, the tool calls are left out: `bae runs show`
    reports the damage."""
    if all(short_name(gate) == gate.place for gate in info.waiting):
        return parked_data(info.waiting, ())
    try:
        return parked_data(info.waiting, open_gates(await runs.read(info.run_id)))
    except JournalError as error:
        if error.code != "bae-journal-damaged":
            raise
        return parked_data(info.waiting, ())


def _parse_metadata(texts: list[str] | None) -> dict[str, Any]:
    """Parse the values of the filter `--metadata`."""
    filters = metadata_of(texts)
    for name, value in filters.items():
        if isinstance(value, list | dict):
            message = "a list or an object finds no run: give a text, a number, true, false or null"
            raise typer.BadParameter(f"{name}: {message}", param_hint="'--metadata'")
    return filters


async def _select_runs(
    journal: Journal,
    status: Listed | None,
    graph: str | None,
    thread: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> AsyncIterator[RunInfo]:
    """Yield the runs with a status, the newest first. The journal lists an interrupted run as
    running too. Here, such a run has only the status interrupted."""
    infos = journal.every_run(status=status, graph=graph, thread=thread, metadata=metadata)
    async for info in infos:
        if status in (None, info.standing()):
            yield info


@group.command("show", epilog=examples("bae runs show", "bae runs show 3f2a --full"))
def show(
    run: NewestRun = None,
    full: Annotated[bool, flag("--full", "Show everything: prompts, answers, every item.")] = False,
    with_timeline: Annotated[bool, flag("--timeline/--no-timeline", "Show what ran when.")] = True,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Show what happened in a run.

    The output has the nodes in order, the source of each field, nested graphs, LLM calls and their
    cost, the outcome, and a timeline. In the timeline, bars above one another are simultaneous
    work.
    """
    stored = stored_run(journal, run)
    report = report_run(stored)
    if as_json:
        data = as_data(report)
        info, timeline_data = data.pop("info"), data.pop("timeline")
        info["waiting"] = parked_data(report.info.waiting, open_gates(stored))
        print_json({**info, **timeline_data, **data, "ended_at": report.ended_at or None})
        return
    console = out()
    for line in heading_lines(report):
        print_hanging(console, line, 4)
    if with_timeline:
        console.print()
        for line in bars_of(report.timeline, console, full=full):
            console.print(line, soft_wrap=True)
    for line in node_lines(report, full=full, width=console.width if console.is_terminal else None):
        print_hanging(console, line, 9)
    console.print()
    for line in outcome_lines(report):
        print_hanging(console, line, 2)
    file, status, info = file_to_read(journal), report.timeline.status, report.info
    if not can_be_written(file) or status in ("ended", "running"):
        return
    command_line = CommandLine(None if is_configured() else "MODULE", file)
    if status == "waiting" and not any(gate.answered for gate in info.waiting):
        gate = info.waiting[0].address if len(info.waiting) > 1 else None
        command = f"answer with: {command_line.answer_with(info.run_id, gate, 'VALUE')}"
    else:
        command = f"resume with: {command_line.resume(info.run_id)}"
    print_hanging(console, Text(in_one_line(command), style="dim"), 2)


@group.command("timeline", epilog=examples("bae runs timeline", "bae runs timeline 3f2a --full"))
def show_timeline(
    run: NewestRun = None,
    full: Annotated[bool, flag("--full", "Show every piece of work, every item.")] = False,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Show when the work of a run was done, and which work decided how long the run took.

    bae finds the critical path from the declared inputs of the fields. Only faster work on this
    path would have made the run faster. The time in which the run waited for people is left out.
    """
    stored = stored_run(journal, run)
    now = time()
    run_timeline, path = timeline(stored, now=now), critical_path(stored, now=now)
    if as_json:
        slack = [{"kind": k, "place": p, "seconds": s} for (k, p), s in path.slack.items()]
        data = {**as_data(path), "slack": slack, "seconds": path.seconds}
        print_json(
            {**as_data(run_timeline), "seconds": run_timeline.seconds, "critical_path": data}
        )
        return
    console = out()
    for line in bars_of(run_timeline, console, full=full):
        console.print(line, soft_wrap=True)
    for line in path_lines(path, run_timeline):
        print_hanging(console, line, 4)


@group.command("why", epilog=examples("bae runs why last Outfit.mood"))
def why(
    run: OneRun,
    place: Annotated[
        str,
        argument(
            "PLACE",
            "A field, as `Outfit.mood`, or in a nested graph, as "
            "`2:Report.summaries[3]/1:Summary.text`.",
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option("--step", help="The node, if the class occurs several times."),
    ] = None,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Show where a value came from."""

    async def read_provenance(runs: Journal) -> Provenance:
        return await runs.why(await find_run_id(runs, run), place, step=step)

    origin = use(journal, read_provenance)
    if as_json:
        print_json(as_data(origin))
        return
    for line in str(origin).splitlines():
        depth = len(line) - len(line.lstrip())
        print_hanging(out(), Text(in_one_line(line)), depth + 4)


# --- the commands of resume.py, approvals.py and replay.py --------------------------------------

group.command(
    epilog=examples("bae runs resume -m app.py", "bae runs resume 3f2a -m app.py --budget calls=40")
)(resume)
group.command(
    epilog=examples(
        "bae runs answer 3f2a Refund.approved yes -m app.py",
        "bae runs answer last yes -m app.py  # one gate is open",
        "bae runs answer last c3 'no: too much' -m app.py  # a tool call",
        "bae runs answer -m app.py  # asks you",
    )
)(answer)
group.command(epilog=examples("bae runs tell last 'Answer in French.'"))(tell)
group.command(
    epilog=examples("bae runs approvals last", "bae runs approvals last --revoke refund")
)(approvals)
group.command(epilog=examples("bae runs cancel 3f2a", "bae runs cancel last --wait 60s"))(cancel)
group.command(
    epilog=examples(
        "bae runs fork 3f2a --at 1 --set mood=eager -m app.py",
        "bae runs fork last --at 0 --run-id second-try --no-run -m app.py",
    )
)(fork)
group.command(epilog=examples("bae runs replay 3f2a -m app.py  # after you have changed it"))(
    replay
)
group.command("test", epilog=examples("bae runs test 3f2a -m app.py -o tests/test_outfit.py"))(
    make_test
)


# --- export, load -------------------------------------------------------------------------------


@group.command("export", epilog=examples("bae runs export out.jsonl 3f2a 77b0"))
def export(
    to: Annotated[str, argument("OUT.jsonl", "The file to write; `-` for stdout.")],
    run: Annotated[
        list[str] | None,
        argument("RUN", "Run ids or their beginnings. Default: all runs.", autocompletion=run_ids),
    ] = None,
    status: OfStatus = None,
    graph: OfGraph = None,
    thread: OfThread = None,
    force: Force = False,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Write runs to a JSON Lines file.

    Such a file can be kept, sent, loaded, shown and replayed.
    """
    if to == "-" and as_json:
        raise typer.BadParameter(
            "the output `-` has the runs, and nothing else", param_hint="--json"
        )
    if to != "-":
        refuse_existing(to, force=force)

    async def write_runs(runs: Journal) -> int:
        chosen = [await find_run_id(runs, run_name) for run_name in run or ()] or None
        if chosen is None and status == "running":
            chosen = [info.run_id async for info in _select_runs(runs, status, graph, thread)]
            chosen = chosen[::-1]
        target = sys.stdout.buffer if to == "-" else to
        return await runs.export(target, chosen, status=status, graph=graph, thread=thread)

    number = use(journal, write_runs)
    if as_json:
        print_json({"path": to, "count": number})
    elif to != "-":
        note(f"{to}: {count(number, 'run')}")


@group.command("load", epilog=examples("bae runs load out.jsonl -j other.db"))
def load_runs(
    source: Annotated[
        str, argument("IN.jsonl", "A file written by `bae runs export`; `-` for stdin.")
    ],
    existing: Annotated[
        Literal["refuse", "keep", "replace"],
        typer.Option("--existing", help="What to do with a run that exists already."),
    ] = "refuse",
    unfinished: Annotated[
        Literal["cancel", "keep"],
        typer.Option("--unfinished", help="What to do with an unfinished run."),
    ] = "cancel",
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Load runs from a JSON Lines file into a journal.

    The journal is created if needed. bae checks the complete file before it loads a run. An
    unfinished run is loaded as cancelled, so that no process continues it by accident. `bae runs
    resume` continues it.
    """
    if source != "-" and not Path(source).exists():
        raise refusal(
            f"there is no file {source}", fix="give a file that `bae runs export` has written"
        )

    async def load_file(runs: Journal) -> list[str]:
        start = sys.stdin.buffer if source == "-" else source
        return await runs.load(start, existing=existing, unfinished=unfinished)

    ids = use(journal, load_file, new=True)
    if as_json:
        print_json(ids)
        return
    note(f"{file_to_write(journal)}: {count(len(ids), 'run')} loaded")
    _print_ids(ids)


@group.command(
    "file",
    epilog=examples("bae runs file 3f2a photo.png -o photo.png", "bae runs file last b9c0 -o -"),
)
def save_file(
    run: OneRun,
    file: Annotated[
        str,
        argument(
            "FILE", "An image or a document of the run: its name, or the beginning of its hash."
        ),
    ],
    to: Annotated[str, option("--output -o PATH", "The file to write; `-` for stdout.")],
    force: Force = False,
    journal: JournalFile = None,
) -> None:
    """Save an image or a document of a run.

    `bae runs show` lists the files of a run.
    """
    stored = stored_run(journal, run)
    run_files = list_files(stored)
    beginning = file if file.startswith("sha256:") else f"sha256:{file}"
    matches = [stored_file for stored_file in run_files if stored_file.hash.startswith(beginning)]
    matches = matches or [stored_file for stored_file in run_files if stored_file.name == file]
    if len(matches) != 1:
        what = "several files" if matches else "no file"
        names = ", ".join(in_one_line(match_.about) for match_ in matches or run_files)
        raise refusal(
            f"the run {stored.info.run_id} has {what} of that name or hash: {file}",
            fix=f"name one by more of its hash; there are {names}" if names else "there are none",
        )
    data = stored.files[matches[0].hash]
    if to == "-":
        sys.stdout.buffer.write(data)
        return
    refuse_existing(to, force=force)
    Path(to).write_bytes(data)
    note(f"{to}: {matches[0].about}")


# --- prune, redact ------------------------------------------------------------------------------

_INTERRUPTED: Final = "interrupted"


def _parse_status(text: str) -> str:
    if text not in get_args(Listed):
        raise typer.BadParameter(f"{text!r} is none of {', '.join(get_args(Listed))}")
    return text


@group.command("prune", epilog=examples("bae runs prune --older-than 30d --dry-run"))
def prune(
    older_than: Annotated[
        float,
        option(
            "--older-than 30d",
            "Runs last written longer ago than this: 90s, 30m, 12h, 30d, 2w.",
            parser=parse_duration,
        ),
    ],
    status: Annotated[
        list[str] | None,
        option(
            "--status -s STATUS",
            f"Only runs with this status: {', '.join(get_args(Listed))}. Repeatable. Default: "
            "ended, failed, cancelled.",
            parser=_parse_status,
        ),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "List the runs, and delete nothing.")] = False,
    yes: Yes = False,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Delete old runs.

    Without --status, only ended, failed and cancelled runs are deleted. Runs in progress always
    stay. If a run stays, so do the run that it was forked from and all runs of its conversation. At
    a terminal, the command asks first.
    """
    chosen = set(cast("Sequence[Listed]", status or ("ended", "failed", "cancelled")))
    if "running" in chosen:
        note("runs in progress stay; --status interrupted selects runs whose process has ended")

    async def find_old(runs: Journal, *, delete: bool = False) -> list[str]:
        before = time() - older_than
        statuses = sorted(
            {
                "running" if chosen_status == _INTERRUPTED else chosen_status
                for chosen_status in chosen - {"running"}
            }
        )
        ids = await runs.older(before, cast("list[Stored]", statuses))
        if _INTERRUPTED in chosen:  # do not delete runs that a process works on
            running = {info.run_id async for info in runs.every_run(status="running")}
            interrupted = {info.run_id async for info in runs.every_run(status=_INTERRUPTED)}
            ids = [run_id for run_id in ids if run_id not in running - interrupted]
        if delete:
            await runs.delete(ids)
            remaining = set(await find_old(runs))  # runs with forks that stay
            ids = [run_id for run_id in ids if run_id not in remaining]
        return ids

    ids: list[str] = []
    if dry_run or not (yes or as_json):
        ids = use(journal, find_old, write=True)
        if not dry_run and ids:
            _confirm(f"Delete {count(len(ids), 'run')}? It cannot be undone.")
    if not dry_run:
        ids = use(journal, partial(find_old, delete=True), write=True)
    if as_json:
        print_json({"runs": ids, "deleted": 0 if dry_run else len(ids), "dry_run": dry_run})
        return
    if dry_run:
        _print_ids(ids)
    note(f"{count(len(ids), 'run')} {'would be ' if dry_run else ''}deleted")


@group.command("redact", epilog=examples("bae runs redact 3f2a Person.email"))
def redact(
    run: OneRun,
    places: Annotated[
        list[str],
        argument("PLACE...", "A field, as `Person.email`, or a class for all of its fields."),
    ],
    yes: Yes = False,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """Remove the values of fields from a run for good.

    bae removes the values from this run and from runs that share its lines. Prompts and answers
    with these values are removed too. This cannot be undone, so at a terminal the command asks
    first. When you resume the run, bae asks for the values.
    """
    run_id = stored_run(journal, run, write=True).info.run_id

    async def redact_run(runs: Journal) -> Redaction:
        return await runs.redact(run_id, *places)

    if not (yes or as_json):
        values = ", ".join(map(in_one_line, places))
        _confirm(f"Take {values} out of the run {in_one_line(run_id)}? It cannot be undone.")
    redaction = use(journal, redact_run, write=True)
    if as_json:
        print_json(redaction)
        return
    out().print(Text(in_one_line(str(redaction))), soft_wrap=True)


def _confirm(question: str) -> None:
    """At a terminal, ask for confirmation, and end the command if the user declines."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


def _print_ids(ids: Sequence[str]) -> None:
    for run_id in ids:
        out().print(in_one_line(run_id), markup=False, soft_wrap=True)
