"""The commands `bae runs tell`, `bae runs approvals` and `bae runs cancel`. The run may be in
another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from bae.cli.exits import refusal
from bae.cli.journals import find_run_id, use
from bae.cli.options import AsJSON, JournalFile, OneRun, Quiet, argument, option, parse_duration
from bae.cli.printing import note, out, print_hanging, print_json
from bae.cli.wording import in_one_line
from bae.journal.gates import describe_status
from bae.journal.inbox import tell_run

if TYPE_CHECKING:
    from bae.journal import Grant, Journal, RunInfo


def tell(
    run: OneRun,
    text: Annotated[str, argument("TEXT", "What the LLM reads before its next round.")],
    journal: JournalFile = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Tell the LLM of a run something.

    The LLM reads the text as a message before its next round of tool calls. If the run waits, has
    failed or was interrupted, the LLM reads the message after the run is resumed. The message is
    refused if the run has ended, or has no conversation with tools ahead.
    """

    async def send_message(runs: Journal) -> tuple[str, int]:
        run_id = await find_run_id(runs, run)
        return run_id, await tell_run(run_id, text, runs)

    run_id, number = use(journal, send_message, write=True)
    if as_json:
        print_json({"run_id": run_id, "message": number})
    elif not quiet:
        note(f"the run {run_id} reads it before its next round")


def approvals(
    run: OneRun,
    revoke: Annotated[
        str | None,
        option("--revoke TOOL", "Take back the yes for a tool, so that its next call asks again."),
    ] = None,
    journal: JournalFile = None,
    as_json: AsJSON = False,
) -> None:
    """List the yeses that hold for all calls of a tool in a run, or revoke one.

    To the question whether a tool may be called, the answer `run` allows all calls in the run. The
    answer `thread` also allows all calls in other turns of the thread.
    """

    async def read_grants(runs: Journal) -> tuple[str, list[Grant]]:
        run_id = await find_run_id(runs, run)
        if revoke is not None:
            await runs.revoke(run_id, revoke)
        return run_id, await runs.approvals(run_id)

    run_id, grants = use(journal, read_grants, write=revoke is not None)
    if as_json:
        print_json({"run_id": run_id, "approvals": [grant._asdict() for grant in grants]})
        return
    for grant in grants:
        print_hanging(out(), grant_line(grant, run_id), 2)
    if not grants:
        note(f"no tool has a yes for the whole run {run_id}")
    elif revoke is not None:
        valid = sum(not grant.revoked for grant in grants)
        note(f"{in_one_line(revoke)} is revoked; {valid} of {len(grants)} still hold")


def grant_line(grant: Grant, run_id: str) -> Text:
    """Describe an approval in one line. If the approval is of another run, the line names that
    run."""
    line = Text(in_one_line(grant.place)).append(f"  {in_one_line(grant.address)}", style="dim")
    if grant.run_id != run_id:
        line.append(f" of run {in_one_line(grant.run_id)}", style="dim")
    if grant.holds_in_thread:
        line.append("  for the thread")
    if grant.revoked:
        line.append("  revoked", style="yellow")
    return line


def cancel(
    run: OneRun,
    wait: Annotated[
        float | None,
        option(
            "--wait 60s",
            "How long to wait for the run to stop. Default: 10 s.",
            parser=parse_duration,
        ),
    ] = None,
    journal: JournalFile = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Cancel a run, in whichever process it is.

    The process that owns a run in progress stops the run within about a second. A run that waits or
    was interrupted is cancelled at once. `bae runs resume` continues a cancelled run.
    """

    async def cancel_run(runs: Journal) -> RunInfo:
        return await runs.cancel(
            await find_run_id(runs, run), timeout=10.0 if wait is None else wait
        )

    info = use(journal, cancel_run, write=True)
    if as_json:
        print_json({"run_id": info.run_id, "status": info.standing()})
    elif info.status != "cancelled":
        raise refusal(
            f"the run {info.run_id} was over before: {describe_status(info)}",
            fix="there is nothing to cancel",
        )
    elif not quiet:
        note(f"the run {info.run_id} is cancelled")
