"""Output of `bae optimize`, as text or JSON. It has a table of scores before and after, the verdict
on each learned prompt, and notes on usage and stored answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from rich.text import Text
from typer import Exit

from bae.cli import exits
from bae.cli.eval_output import difference_style
from bae.cli.printing import (
    Column,
    err,
    error_data,
    note,
    out,
    print_hanging,
    print_json,
    print_table,
)
from bae.cli.wording import cost, count, in_one_line
from bae.evals.page import (
    format_count,
    format_difference,
    format_interval,
    format_score,
)
from bae.exceptions import BaeError
from bae.optimizer.improvement import CALLS, PartResult, PromptVerdict

if TYPE_CHECKING:
    from rich.console import Console

    from bae.cli.signals import EndedWork
    from bae.optimizer.comparison import Comparison
    from bae.optimizer.improvement import Improvement

_COLUMNS: Final = (
    Column("", right=False),
    Column("BEFORE", rank=2),
    Column("[95 %]", right=False, rank=4),
    Column("AFTER", rank=1),
    Column("[95 %]", right=False, rank=4),
    Column("DIFFERENCE", right=False),
    Column("HELD OUT", rank=5),
    Column("CALLS", rank=6),
    Column("TOKENS", rank=7),
)
"""The columns of the table. DIFFERENCE decides the verdict, so it also stays on a narrow
terminal."""
_STYLES: Final = {
    PromptVerdict.BETTER: "green",
    PromptVerdict.UNCHANGED: "green",
    PromptVerdict.MAYBE_BETTER: "yellow",
    PromptVerdict.NOT_BETTER: "red",
}


def print_result(
    improvement: Improvement, file: str, ended: EndedWork[None], *, as_json: bool, quiet: bool
) -> None:
    """Print the result of an optimization. If it failed, raise its error. If it was interrupted, or
    found nothing better, raise `typer.Exit`."""
    if as_json:
        print_json(_as_data(improvement, file, ended.error))
    elif improvement.parts:
        if not quiet and err().is_terminal:
            err().print()  # between the progress and the result
        _print_parts(out(), improvement)
    _print_notes(improvement, interrupted=bool(ended.code), quiet=quiet)
    if ended.error is not None:
        if isinstance(ended.error, BaeError) and ended.error.fix:
            ended.error.fix = ended.error.fix.replace("evals=True", "--with-evals")
        if improvement.kept:
            ended.error.add_note(how_to_resume(improvement))
        raise ended.error
    if ended.code or not improvement.useful:
        raise Exit(ended.code or exits.FAILED)


def _print_parts(console: Console, improvement: Improvement) -> None:
    """Print the table of scores, the verdict on each learned prompt, and the written files."""
    rows = [
        _make_row(part, part.comparison)
        for part in improvement.parts
        if part.comparison is not None
    ]
    if rows:
        print_table(console, _COLUMNS, rows)
        console.print()
    for part in improvement.parts:
        line = Text(f"{part.node} {part.part}: ")
        line.append(part.verdict, _STYLES.get(part.verdict, "dim"))
        print_hanging(
            console, line.append("; ".join(["", *_explain_verdict(part, improvement)])), 2
        )
    for file in improvement.files:
        console.print(Text(f"written: {in_one_line(str(file))}", "bold"), soft_wrap=True)


def _print_notes(improvement: Improvement, *, interrupted: bool, quiet: bool) -> None:
    """Print the usage, the reason for an early end, and the stored answers."""
    if not quiet:
        if improvement.train_count or improvement.held_out_count:
            note(" · ".join(_describe_usage(improvement)))
        if improvement.done and improvement.kept:
            flag = "without --certain" if improvement.certain else "with --force"
            note(
                f"{_describe_kept(improvement)}: {flag} the same command writes the rest, and asks "
                "nothing again"
            )
    if improvement.out_of_budget:
        note(f"{improvement.out_of_budget}; {how_to_resume(improvement)}, with more --budget")
    elif interrupted:
        note(f"interrupted; {how_to_resume(improvement)}")
    for misfit in improvement.misfits:
        if misfit.stays:
            note(
                f"{misfit.file} still does not fit: delete it, or --optimized "
                f"{misfit.file.parent} is refused"
            )


def how_to_resume(improvement: Improvement) -> str:
    """Describe how the user resumes an optimization that ended early."""
    if improvement.kept:
        return f"{_describe_kept(improvement)}: the same command resumes"
    return "no answer is kept: the same command starts again"


def _as_data(improvement: Improvement, file: str, error: BaseException | None) -> dict[str, Any]:
    """Return the result of an optimization as JSON."""
    calls = improvement.calls
    return {
        "graph": improvement.graph.name,
        "journal": file,
        "directory": str(improvement.directory),
        "optimizer": improvement.optimizer,
        "options": dict(improvement.options),
        "seed": improvement.seed,
        "done": improvement.done,
        "examples": {
            "all": improvement.train_count + improvement.held_out_count,
            "train": improvement.train_count,
            "held_out": improvement.held_out_count,
            "repeated": improvement.repeated,
            "from_evals": improvement.from_evals,
            "without": improvement.left_out,
        },
        "parts": TypeAdapter(list[PartResult]).dump_python(improvement.parts, mode="json"),
        "written": [str(path) for path in improvement.files],
        "misfits": [
            {"file": str(misfit.file), "why": misfit.why}
            for misfit in improvement.misfits
            if misfit.stays
        ],
        "calls": {
            "made": calls.calls,
            "earlier": calls.earlier.calls,
            "repeated": calls.repeated,
            "kept": improvement.kept,
        },
        "spent": asdict(improvement.budget.usage),
        "spent_earlier": asdict(calls.earlier),
        "out_of_budget": improvement.out_of_budget or None,
        "error": error_data(error),
    }


def _make_row(part: PartResult, compared: Comparison) -> list[Text]:
    before, after = compared.before, compared.after
    return [
        Text(f"{part.node} {part.part}"),
        Text(format_score(before.mean)),
        Text(f"[{before.low:.2f}, {before.high:.2f}]"),
        Text(format_score(after.mean)),
        Text(f"[{after.low:.2f}, {after.high:.2f}]"),
        Text(format_difference(compared.difference), difference_style(compared.difference)),
        Text(str(compared.n)),
        _describe_growth(compared.calls_before, compared.calls_after),
        _describe_growth(compared.tokens_before, compared.tokens_after),
    ]


def _describe_growth(before: int, after: int) -> Text:
    """Return a number before and after the optimization. If they are equal, return the number
    once."""
    if before == after:
        return Text(format_count(after))
    return Text(
        f"{format_count(before)} to {format_count(after)}", "yellow" if after > before else ""
    )


def _explain_verdict(part: PartResult, improvement: Improvement) -> Iterator[str]:
    """Yield the reasons for a verdict, and what the user can do."""
    match part.verdict:
        case PromptVerdict.TOO_FEW_EXAMPLES:
            yield (
                f"{count(part.train, 'example')} of {count(part.questions, 'question')} to learn "
                f"from, and {count(improvement.minimum, 'question')} are needed"
            )
        case PromptVerdict.NOTHING_HELD_OUT:
            yield (
                f"nothing to compare on: {count(part.train, 'example')} to learn from, and no "
                "example with another question"
            )
        case PromptVerdict.NO_BETTER_THAN_EXISTING:
            yield f"the prompt in {improvement.directory} scores {format_interval(part.existing)}"
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
    if part.verdict == PromptVerdict.MAYBE_BETTER:
        yield "not written, as --certain asks"
    elif part.verdict in (PromptVerdict.NOT_BETTER, PromptVerdict.NOTHING_HELD_OUT):
        yield "not written: --force does it all the same"


def _describe_usage(improvement: Improvement) -> Iterator[str]:
    steps = count(improvement.train_count + improvement.held_out_count, "step")
    yield f"{steps}, {improvement.held_out_count:,} of them held out"
    if improvement.repeated:
        yield f"{improvement.repeated:,} not held out because they repeat a question"
    if improvement.from_evals:
        yield f"{improvement.from_evals:,} from `bae eval` left out"
    if improvement.left_out:
        yield f"{improvement.left_out:,} left out with their runs"
    answers, used = improvement.calls, improvement.budget.usage
    earlier = answers.earlier.calls
    calls = count(answers.calls, "LM call")
    yield f"{calls} now, {answers.calls + earlier:,} in all" if earlier else calls
    if answers.repeated:
        yield f"{answers.repeated:,} asked again at no cost"
    in_all = " in all" if earlier else ""
    if used.tokens:
        yield f"{count(used.tokens, 'token')}{in_all}"
    if price := cost(used):
        yield price if used.cost is None else f"{price}{in_all}"


def _describe_kept(improvement: Improvement) -> str:
    are = "is" if improvement.kept == 1 else "are"
    return f"{count(improvement.kept, 'call')} {are} kept in {Path(improvement.directory) / CALLS}"
