"""Going on with a run of a journal, with what the command line names for that. `resuming.py` has
the commands, `running/carrying.py` carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.cli.running.carrying import RunOptions
    from bae.cli.running.commands_to_copy import CommandLine
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.lm import LM


def go_on(
    graph: Graph[Any, Any],
    stored: StoredRun,
    said: CommandLine,
    sets: Sequence[str],
    max_iters: int | None,
    options: RunOptions,
) -> None:
    """Carry on with a run of the journal."""
    from dataclasses import replace

    from bae.cli.running.carrying import carry_out
    from bae.cli.runs.withheld import withheld

    info = stored.info
    over = info.status == "ended"  # what it needs is there, then
    given = {} if over and not sets else withheld(graph, stored, sets, ask=options.ask)
    model = model_for(graph, stored, said, quiet=options.quiet)
    carry_out(
        graph,
        info.run_id,
        lambda kept, answerer: graph.resume(
            info.run_id, model, max_iters, journal=kept_in(kept), answer=answerer, given=given
        ),
        said,
        replace(options, ended_before=over),
    )


def model_for(
    graph: Graph[Any, Any], stored: StoredRun, said: CommandLine, *, quiet: bool
) -> LM | str | None:
    """The LM for a run that goes on, taught where that is asked for."""
    from bae.cli.improving.taught import lm_taught_by
    from bae.cli.running.which_lm import lm_for

    return lm_taught_by(graph, lm_for(graph, stored, said.lm), said.optimized, quiet=quiet)


def said_as(
    module: str | None, journal: str | None, lm: str | None, optimized: str | None
) -> CommandLine:
    """What the command line named, for commands that are printed to be copied."""
    from bae.cli.journals import file_to_read
    from bae.cli.running.commands_to_copy import CommandLine

    return CommandLine(module, file_to_read(journal), lm, optimized)


def kept_in(journal: Any) -> Any:
    """The journal, which a run that goes on has."""
    assert journal is not None, "a run that goes on has a journal"
    return journal
