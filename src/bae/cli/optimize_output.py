"""What `bae optimize` prints: a table of before and after on the held-out examples, the verdict on
each part of a node, the same as JSON, and notes on what was spent and kept."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bae.cli.eval_output import difference_style
from bae.cli.printing import error_data, note
from bae.cli.tables import GAP, Column, print_table
from bae.cli.wording import cost, count
from bae.evals.page import changed, many, score, scored, share
from bae.optimizer.improvement import CALLS, PARTS, scores_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bae.optimizer.improvement import Improvement, PartResult

AS_GOOD: Final = ("there already", "no better than what is there")
"""Verdicts that leave something as good in the directory."""
_COLUMNS: Final = (
    Column("", right=False),
    Column("BEFORE [95 %]", right=False),
    Column("AFTER [95 %]", right=False),
    Column("DIFFERENCE", right=False),
    Column("HELD OUT", rank=1),
    Column("CALLS", rank=2),
    Column("LEARNED FROM", rank=3),
    Column("CORRECTED", rank=4),
    Column("TOKENS", rank=5),
    Column("VALID BEFORE", rank=6),
    Column("VALID AFTER", rank=6),
)
_NARROW: Final = (
    Column("", right=False),
    Column("BEFORE", rank=2),
    Column("AFTER", rank=1),
    Column("DIFFERENCE", right=False),
)
"""Without room for all intervals, the one that decides stays."""
_STYLES: Final = {
    "better": "green",
    "there already": "green",
    "better, not beyond chance": "yellow",
    "not better": "red",
}


def print_improvement(console: Console, found: Improvement) -> None:
    """Print the table, and the verdict on each part."""
    from rich.text import Text

    from bae.cli.printing import print_hanging

    compared = [part for part in found.parts if part.comparison is not None]
    if compared:
        rows = [_row(part) for part in compared]
        least = [max(row[at].cell_len for row in rows) + GAP for at in range(4)]
        if console.is_terminal and sum(least) - GAP > console.width:
            print_table(console, _NARROW, [_narrow_row(part) for part in compared])
        else:
            print_table(console, _COLUMNS, rows)
        console.print()
    for part in found.parts:
        line = Text(f"{part.node} {part.part}: ")
        line.append(part.verdict, _STYLES.get(part.verdict, "dim"))
        print_hanging(console, line.append("; ".join(["", *_about(part, found)])), 2)
    for file in found.files:
        console.print(Text(f"written: {file}", "bold"), soft_wrap=True)


def print_notes(found: Improvement, *, interrupted: bool, quiet: bool) -> None:
    """Print what it learned from and spent, why it is not done, and what is kept."""
    if not quiet:
        if found.train_count or found.held_out_count:
            note(" · ".join(_spent(found)))
        if found.done and found.kept:
            how = "without --certain" if found.certain else "with --force"
            note(f"{_kept(found)}: {how} the same command writes the rest, and asks nothing again")
    if found.out_of_budget:
        note(f"{found.out_of_budget}; {resumes(found)}, with more --budget")
    elif interrupted:
        note(f"interrupted; {resumes(found)}")
    for each in found.misfits:
        if each.stays:
            note(
                f"{each.file} still does not fit: delete it, or --optimized {each.file.parent} is "
                "refused"
            )


def resumes(found: Improvement) -> str:
    """What to do if it ended early."""
    if found.kept:
        return f"{_kept(found)}: the same command resumes"
    return "no answer is kept: the same command starts again"


def as_data(found: Improvement, file: str, error: BaseException | None) -> dict[str, Any]:
    """The result, for JSON."""
    asked = found.calls
    earlier = asked.earlier.calls
    return {
        "graph": found.graph.name,
        "journal": file,
        "directory": str(found.directory),
        "optimizer": found.optimizer,
        "options": dict(found.options),
        "seed": found.seed,
        "done": found.done,
        "examples": {
            "all": found.train_count + found.held_out_count,
            "train": found.train_count,
            "held_out": found.held_out_count,
            "repeated": found.repeated,
            "from_evals": found.from_evals,
            "without": found.left_out,
        },
        "parts": [_part_data(part) for part in found.parts],
        "written": [str(each) for each in found.files],
        "misfits": [
            {"file": str(each.file), "why": each.why} for each in found.misfits if each.stays
        ],
        "calls": {
            "made": asked.calls,
            "earlier": earlier,
            "repeated": asked.from_log + asked.joined - earlier,
            "kept": found.kept,
        },
        "spent": asdict(found.budget.usage),
        "spent_earlier": asdict(asked.earlier),
        "out_of_budget": found.out_of_budget or None,
        "error": error_data(error),
    }


@contextmanager
def notes_once(quiet: bool) -> Generator[None]:
    """Keep notes about a part of a node, which progress has too, out of the log; if `quiet`, all
    notes."""
    log = logging.getLogger("bae.optimizer")

    def is_new(record: logging.LogRecord) -> bool:
        said = record.args
        about_part = isinstance(said, tuple) and len(said) == 3 and said[1] in PARTS
        return not about_part and not (quiet and record.levelno <= logging.WARNING)

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def _row(part: PartResult) -> list[Text]:
    from rich.text import Text

    compared = part.comparison
    assert compared is not None
    return [
        Text(f"{part.node} {part.part}"),
        Text(scored(compared.before)),
        Text(scored(compared.after)),
        Text(changed(compared.difference), difference_style(compared.difference)),
        Text(str(compared.n)),
        _grown(compared.calls_before, compared.calls_after),
        Text(str(part.train)),
        Text(str(part.corrected_train)),
        _grown(compared.tokens_before, compared.tokens_after),
        Text(share(compared.validity_before)),
        Text(share(compared.validity_after)),
    ]


def _narrow_row(part: PartResult) -> list[Text]:
    from rich.text import Text

    row, compared = _row(part), part.comparison
    assert compared is not None
    means = (Text(score(each.mean)) for each in (compared.before, compared.after))
    return [row[0], *means, row[3]]


def _grown(before: int, after: int) -> Text:
    """A number before and after, if they differ."""
    from rich.text import Text

    if before == after:
        return Text(many(after))
    return Text(f"{many(before)} to {many(after)}", "yellow" if after > before else "")


def _about(part: PartResult, found: Improvement) -> Iterator[str]:
    """The reasons for a verdict, and what to do about it."""
    match part.verdict:
        case "too few examples":
            if part.questions < part.train:
                yield (
                    f"{count(part.train, 'example')} of {count(part.questions, 'question')} to "
                    f"learn from, and {count(found.minimum, 'question')} are needed"
                )
            else:
                yield f"{part.train} to learn from, and {found.minimum} are needed"
        case "nothing held out":
            yield (
                f"nothing to compare on: {count(part.train, 'example')} to learn from, and none "
                "that asks anything else"
            )
        case "no better than what is there":
            yield f"what {found.directory} has scores {scored(part.there)}"
        case _:
            pass
    compared = part.comparison
    if compared and compared.better and compared.calls_after > compared.calls_before:
        yield (
            f"it takes {count(compared.calls_after, 'call')} where "
            f"{compared.calls_before:,} did before"
        )
    if part.written:
        return
    if part.verdict == "better, not beyond chance":
        yield "not written, as --certain asks"
    elif part.verdict in ("not better", "nothing held out"):
        yield "not written: --force does it all the same"


def _spent(found: Improvement) -> Iterator[str]:
    steps = count(found.train_count + found.held_out_count, "step")
    yield f"{steps}, {found.held_out_count:,} of them held out"
    if found.repeated:
        yield f"{found.repeated:,} not held out that ask what was asked before"
    if found.from_evals:
        yield f"{found.from_evals:,} from `bae eval` left out"
    if found.left_out:
        yield f"{found.left_out:,} left out with their runs"
    asked, used = found.calls, found.budget.usage
    earlier = asked.earlier.calls
    calls = count(asked.calls, "LM call")
    yield f"{calls} now, {asked.calls + earlier:,} in all" if earlier else calls
    if again := asked.from_log + asked.joined - earlier:
        yield f"{again:,} asked again at no cost"
    in_all = " in all" if earlier else ""
    if used.tokens:
        yield f"{count(used.tokens, 'token')}{in_all}"
    if price := cost(used):
        yield price if used.cost is None else f"{price}{in_all}"


def _kept(found: Improvement) -> str:
    are = "is" if found.kept == 1 else "are"
    return f"{count(found.kept, 'call')} {are} kept in {Path(found.directory) / CALLS}"


def _part_data(part: PartResult) -> dict[str, Any]:
    compared = part.comparison
    of_comparison = ("validity_before", "validity_after", "calls_before", "calls_after")
    of_comparison += ("tokens_before", "tokens_after")
    return {
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
        **dict.fromkeys(("before", "after", "difference")),
        **{name: value for name, value in scores_of(part).items() if name != "n"},
        **{name: getattr(compared, name, None) for name in of_comparison},
    }
