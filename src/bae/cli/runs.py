"""`bae runs`: list, show, explain, export and delete the runs of a journal. Commands that continue
a run are in `resume.py`, replays in `replay.py`."""

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
from bae.cli.journals import can_be_written, file_to_read, file_to_write, run_meant, stored_run, use
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

    A run is queued, running, waiting (for a person), ended, failed or cancelled. One that is
    interrupted was running when its process went away: `bae runs resume` continues it.
    """

    wanted = _parse_metadata(metadata)

    async def read_list(runs: Journal) -> tuple[list[RunInfo], list[list[dict[str, Any]]]]:
        newest: list[RunInfo] = []
        async for info in _runs_that_are(runs, status, graph, thread, wanted):
            newest.append(info)
            if len(newest) > limit:
                break
        return newest, [await _waiting_data(runs, each) for each in newest] if as_json else []

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
    """The open questions of a run, as JSON. Only the arguments of tool calls need the run's lines;
    if those are damaged, the calls are left out, and `bae runs show` reports the damage."""
    if all(short_name(gate) == gate.place for gate in info.waiting):
        return parked_data(info.waiting, ())
    try:
        return parked_data(info.waiting, open_gates(await runs.read(info.run_id)))
    except JournalError as error:
        if error.code != "bae-journal-damaged":
            raise
        return parked_data(info.waiting, ())


def _parse_metadata(given: list[str] | None) -> dict[str, Any]:
    """Parse the filter `--metadata`."""
    wanted = metadata_of(given)
    for name, value in wanted.items():
        if isinstance(value, list | dict):
            what = "a list or an object finds no run: give a text, a number, true, false or null"
            raise typer.BadParameter(f"{name}: {what}", param_hint="'--metadata'")
    return wanted


async def _runs_that_are(
    journal: Journal,
    status: Listed | None,
    graph: str | None,
    thread: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> AsyncIterator[RunInfo]:
    """The runs with a status, the newest first. An interrupted run counts as interrupted and not as
    running, though the journal lists it as both."""
    wanted = journal.every_run(status=status, graph=graph, thread=thread, metadata=metadata)
    async for info in wanted:
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

    Its nodes in order, the source of each field, nested graphs, LLM calls and their cost, the
    outcome, and a timeline: bars above one another are work that was done at the same time.
    """
    stored = stored_run(journal, run)
    told = report_run(stored)
    if as_json:
        report = as_data(told)
        info, ran = report.pop("info"), report.pop("timeline")
        info["waiting"] = parked_data(told.info.waiting, open_gates(stored))
        print_json({**info, **ran, **report, "ended_at": told.ended_at or None})
        return
    console = out()
    for line in heading_lines(told):
        print_hanging(console, line, 4)
    if with_timeline:
        console.print()
        for line in bars_of(told.timeline, console, full=full):
            console.print(line, soft_wrap=True)
    for line in node_lines(told, full=full, width=console.width if console.is_terminal else None):
        print_hanging(console, line, 9)
    console.print()
    for line in outcome_lines(told):
        print_hanging(console, line, 2)
    file, status, info = file_to_read(journal), told.timeline.status, told.info
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
    """Show what ran when in a run, and what decided how long it took.

    The critical path is found from the inputs that the fields declare: making any other piece of
    work faster would not have made the run faster. Waiting for people is left out.
    """
    stored = stored_run(journal, run)
    now = time()
    ran, path = timeline(stored, now=now), critical_path(stored, now=now)
    if as_json:
        slack = [{"kind": k, "place": p, "seconds": s} for (k, p), s in path.slack.items()]
        data = {**as_data(path), "slack": slack, "seconds": path.seconds}
        print_json({**as_data(ran), "seconds": ran.seconds, "critical_path": data})
        return
    console = out()
    for line in bars_of(ran, console, full=full):
        console.print(line, soft_wrap=True)
    for line in path_lines(path, ran):
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
        return await runs.why(await run_meant(runs, run), place, step=step)

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
        raise typer.BadParameter("with - the runs themselves are printed", param_hint="--json")
    if to != "-":
        refuse_existing(to, force=force)

    async def write_runs(runs: Journal) -> int:
        chosen = [await run_meant(runs, each) for each in run or ()] or None
        if chosen is None and status == "running":
            chosen = [info.run_id async for info in _runs_that_are(runs, status, graph, thread)]
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

    The journal is created if needed. The whole file is checked before anything is loaded. An
    unfinished run is cancelled here, so that it is not continued by accident; `bae runs resume`
    continues it.
    """
    if source != "-" and not Path(source).exists():
        raise refusal(f"there is no file {source}", fix="give what `bae runs export` has written")

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
        argument("FILE", "An image or a document of the run: its name, or its hash or beginning."),
    ],
    to: Annotated[str, option("--output -o PATH", "The file to write; `-` for stdout.")],
    force: Force = False,
    journal: JournalFile = None,
) -> None:
    """Save an image or a document of a run.

    `bae runs show` lists the files of a run.
    """
    stored = stored_run(journal, run)
    listed = list_files(stored)
    beginning = file if file.startswith("sha256:") else f"sha256:{file}"
    matches = [each for each in listed if each.hash.startswith(beginning)]
    matches = matches or [each for each in listed if each.name == file]
    if len(matches) != 1:
        what = "several files" if matches else "no file"
        names = ", ".join(in_one_line(match_.about) for match_ in matches or listed)
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

_GONE: Final = "interrupted"


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

    Runs that wait or are in progress stay, unless --status names them; so does a run that another
    one was forked from. The runs of a conversation stay as long as one of them does. At a terminal
    it asks first.
    """
    chosen = set(cast("Sequence[Listed]", status or ("ended", "failed", "cancelled")))
    if "running" in chosen:
        note("runs that are in progress stay; --status interrupted has those whose process is gone")

    async def old(runs: Journal, *, delete: bool = False) -> list[str]:
        than = time() - older_than
        statuses = sorted({"running" if each == _GONE else each for each in chosen - {"running"}})
        ids = await runs.older(than, cast("list[Stored]", statuses))
        if _GONE in chosen:  # do not delete runs that a process works on
            running = {info.run_id async for info in runs.every_run(status="running")}
            gone = {info.run_id async for info in runs.every_run(status=_GONE)}
            ids = [each for each in ids if each not in running - gone]
        if delete:
            await runs.delete(ids)
            left = set(await old(runs))  # runs with forks that stay
            ids = [each for each in ids if each not in left]
        return ids

    ids: list[str] = []
    if dry_run or not (yes or as_json):
        ids = use(journal, old, write=True)
        if not dry_run and ids:
            _confirm(f"Delete {count(len(ids), 'run')}? It cannot be undone.")
    if not dry_run:
        ids = use(journal, partial(old, delete=True), write=True)
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

    They are removed from the run and from runs that share its lines, with the prompts and answers
    that had them. This cannot be undone; at a terminal it asks first. Resuming the run asks for
    them.
    """
    run_id = stored_run(journal, run, write=True).info.run_id

    async def redact_run(runs: Journal) -> Redaction:
        return await runs.redact(run_id, *places)

    if not (yes or as_json):
        values = ", ".join(map(in_one_line, places))
        _confirm(f"Take {values} out of the run {in_one_line(run_id)}? It cannot be undone.")
    done = use(journal, redact_run, write=True)
    if as_json:
        print_json(done)
        return
    out().print(Text(in_one_line(str(done))), soft_wrap=True)


def _confirm(question: str) -> None:
    """Ask for confirmation at a terminal. Without it, end the command."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


def _print_ids(ids: Sequence[str]) -> None:
    for run_id in ids:
        out().print(in_one_line(run_id), markup=False, soft_wrap=True)
