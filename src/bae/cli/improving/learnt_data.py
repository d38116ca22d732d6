"""What `bae optimize` has learnt, for JSON. `learnt_table.py` prints the same for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bae.cli.improving.deciding import scores_of
from bae.cli.improving.wanted import Learnt, Wanted

if TYPE_CHECKING:
    from bae.cli.improving.deciding import PartOutcome
    from bae.cli.improving.kept_calls import KeptCalls


def as_data(
    wanted: Wanted, learnt: Learnt, kept: KeptCalls, error: BaseException | None
) -> dict[str, Any]:
    """What was learnt, and what ended it."""
    from bae.cli.printing import error_data

    asked = kept.statistics
    earlier = asked.earlier.calls
    return {
        "graph": wanted.graph.name,
        "journal": wanted.journal,
        "directory": str(wanted.directory),
        "optimizer": wanted.optimizer,
        "options": dict(wanted.options),
        "seed": wanted.seed,
        "done": learnt.done,
        "examples": {
            "all": learnt.examples,
            "train": learnt.train,
            "held_out": learnt.held_out,
            "repeated": learnt.repeated,
            "from_evals": learnt.from_evals,
            "without": learnt.without,
        },
        "parts": [_part(part) for part in learnt.parts],
        "written": [str(file) for file in learnt.files],
        "misfits": [
            {"file": str(each.file), "why": each.why} for each in learnt.misfits if each.stays
        ],
        "calls": {
            "made": asked.calls,
            "earlier": earlier,
            "repeated": asked.from_log + asked.joined - earlier,
            "kept": kept.number if kept.stays else 0,
        },
        "spent": asdict(wanted.budget.usage),
        "spent_earlier": asdict(asked.earlier),
        "out_of_budget": learnt.out_of_budget or None,
        "error": error_data(error),
    }


def _part(part: PartOutcome) -> dict[str, Any]:
    compared = part.comparison
    data = {
        "node": part.node,
        "part": part.part,
        "examples": part.examples,
        "corrected": part.corrected_train + part.corrected_held_out,
        "train": part.train,
        "corrected_train": part.corrected_train,
        "held_out": part.held_out,
        "corrected_held_out": part.corrected_held_out,
        "verdict": part.verdict,
        "written": part.written,
        "notes": part.notes,
        "there": None if part.there is None else asdict(part.there),
        "before": None,
        "after": None,
        "difference": None,
    }
    data |= {name: value for name, value in scores_of(part).items() if name != "n"}
    return data | {
        name: None if compared is None else getattr(compared, name)
        for name in (
            "validity_before",
            "validity_after",
            "calls_before",
            "calls_after",
            "tokens_before",
            "tokens_after",
        )
    }
