"""What to do about an error, in words of the command line: the errors of bae speak to programs, of
`max_iters=20` where somebody at a terminal types `--max-iters 20`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from bae.exceptions import BaeError, BudgetError, GateError, LimitError, ProofError

if TYPE_CHECKING:
    from bae.cli.commands_to_copy import Said
    from bae.graph import Graph


def advise(error: BaeError, run_id: str, said: Said, *, kept: bool) -> None:
    """Have an error say what to type. `kept` is whether the journal has the run."""
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
            error.fix = f"{again}  (0 is no bound); or give the loop a way out"
            return
        case _:
            pass
    if error.code == "bae-lm-missing" and error.fix:
        error.fix = f"name one with --lm, as --lm local; or {error.fix}"
    elif error.code == "bae-run-exists":
        error.fix = f"give another --run-id, or go on with that one: {resume}"
    elif error.code == "bae-journal-secret":
        error.fix = f"go on with the run at a terminal, which asks for it: {resume}"
    elif error.code == "bae-run-owned":
        error.fix = "leave it to the process that has it, or end that one and try again"
    elif kept and not isinstance(error, GateError):
        error.add_note(f"what is done is kept; once it is mended, resume with: {resume}")


def prove(graph: Graph[Any, Any], module: str | None) -> None:
    """Refuse a graph that cannot run, with the command that says all there is to say about it."""
    try:
        graph.prove()
    except ProofError as error:
        error.fix = f"mend it; `{shlex.join(['bae', 'check', *([module] if module else [])])}` "
        error.fix += "lists all problems, warnings too"
        raise
