"""What to do about an error, in words of the command line: the errors of bae speak to programs, of
`max_iters=20` where somebody at a terminal types `--max-iters 20`."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bae.exceptions import BaeError, BudgetError, GateError, LimitError, ProofError

if TYPE_CHECKING:
    from bae.cli.running.commands_to_copy import CommandLine
    from bae.graph import Graph


def advise(
    error: BaeError, run_id: str, said: CommandLine, *, kept: bool, answered: bool = False
) -> None:
    """Have an error say what to type. `kept` is whether the journal has the run, and `answered`
    whether it has the answer that the command at hand gave."""
    resume = said.resume(run_id)
    match error:
        case ProofError():
            error.fix = "mend it, or keep no journal of the run: --no-journal"
            return
        case BudgetError():
            amount = error.bound * 2 or 1
            more = f"--budget {error.limit}={amount:g}"
            again = said.resume(run_id, "--budget", f"{error.limit}={amount:g}")
            error.fix = f"{again}" if kept else f"allow it more with {more}"
            if error.code == "bae-budget-cost-unknown":
                error.fix = "limit calls or tokens instead, or install the price list with "
                error.fix += "pip install 'bae-graphs[prices]'"
            return
        case LimitError() if error.limit == "max_iters":
            more = f"{error.bound * 2:g}"
            again = said.resume(run_id, "--max-iters", more) if kept else f"--max-iters {more}"
            way_out = "; or give the loop a way out" if "a way out" in (error.fix or "") else ""
            error.fix = f"{again}  (0 is no bound){way_out}"
            return
        case _:
            pass
    if error.fix:  # nobody at a terminal has a .trace to look at
        error.fix = re.sub(r"; the nodes [a-z ]+ are in \.trace$", "", error.fix)
    if error.code == "bae-lm-missing":
        error.fix = lm_named(error, "with --lm, as --lm local")
    elif error.code == "bae-run-exists":
        error.fix = f"give another --run-id, or go on with that one: {resume}"
    elif error.code == "bae-journal-secret":
        error.fix = f"go on with the run at a terminal, which asks for it: {resume}"
    elif error.code == "bae-run-owned":
        error.fix = "leave it to the process that has it, or end that one and try again"
    elif error.code == "bae-run-graph":
        other = replace(said, module="MODULE").resume(run_id)
        error.fix = f"name the module of the graph that it was begun with: {other}"
    elif isinstance(error, GateError):
        advise_gate(error, run_id, said)
    elif kept:
        stored = "the answer is stored, and " if answered else ""
        error.add_note(f"{stored}what is done is kept; once it is mended, resume with: {resume}")


def advise_gate(error: GateError, run_id: str, said: CommandLine, *, over: bool = False) -> None:
    """Have an error about a gate say what to type. `over` is whether the run has ended."""
    if over:
        error.fix = f"the run is over; see how it came out: {said.show(run_id)}"
    elif error.code == "bae-gate-answered":
        error.fix = f"go on with the run: {said.resume(run_id)}"
    elif error.code == "bae-gate-timeout" and error.fix:
        error.fix += f": {said.resume(run_id)}"


def in_words_of_options(message: str) -> str:
    """What a program is told to write, as somebody at a terminal types it."""
    return re.sub(r'\blm="([^"]+)"', r"--lm \1", message)


def lm_named(error: BaeError, how: str) -> str:
    """What to do where there is no LM: name one, in the way of a command. What this machine lacks
    for each stays below it."""
    _, line_end, lacking = (error.fix or "").partition("\n")
    if not lacking:
        return error.fix or ""
    return f"name one {how}, or set BAE_LM; `bae lm list` says more{line_end}{lacking}"


def prove(graph: Graph[Any, Any], module: str | None) -> None:
    """Refuse a graph that cannot run, with the command that says all there is to say about it."""
    try:
        graph.prove()
    except ProofError as error:
        error.fix = f"mend it; `{shlex.join(['bae', 'check', *([module] if module else [])])}` "
        error.fix += "lists all problems, warnings too"
        raise
