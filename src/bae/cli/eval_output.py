"""Output of `bae eval`: the table of scores, the failed cases with commands that show their runs,
the report files, and the reasons for exit code 1."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from rich.text import Text

from bae.cli.exits import Misuse, refusal
from bae.cli.journals import make_state_folder, state_folder
from bae.cli.printing import Column, note, print_hanging, print_table
from bae.cli.wording import count, cut_text, in_one_line
from bae.evals.page import (
    format_cost,
    format_count,
    format_difference,
    format_interval,
    format_judging,
    format_score,
    format_seconds,
    format_share,
    format_tools,
)
from bae.private_files import write_private

if TYPE_CHECKING:
    from rich.console import Console

    from bae.cli.outcome import CommandLine
    from bae.evals.intervals import Interval
    from bae.evals.report import CaseResult, Contender, Evaluation, Row

MOST: Final = 5
"""Maximum listed cases of a contender."""
LONGEST: Final = 200
"""Maximum characters of the reason why a case failed or scored low."""
_COLUMNS: Final = (
    Column("", right=False),
    Column("SCORE [95 %]", right=False),
    Column("SCORED", rank=3),
    Column("VALID", rank=1),
    Column("CALLS", rank=2),
    Column("TOKENS", rank=4),
    Column("COST", rank=3),
    Column("TIME", rank=2),
    Column("P95", rank=5),
    Column("CASES", rank=6),
)
"""SCORED is the number of scored cases. TIME is the median duration. CASES is the number of cases
that ran. In the row of a node, CASES is the number of cases that reached the node."""


def print_evaluation(console: Console, evaluation: Evaluation, command: CommandLine) -> None:
    """Print an evaluation. `command` makes the commands that show the runs of cases."""
    has_tools = any(contender.total.rounds for contender in evaluation.contenders)
    columns = [*_COLUMNS, Column("TOOL CALLS", right=False, rank=4)] if has_tools else _COLUMNS
    print_table(console, columns, [*_make_rows(evaluation, has_tools)])
    several = len(evaluation.contenders) > 1
    for contender in evaluation.contenders:
        if contender.judging.calls:
            whose = f"{in_one_line(contender.name)}: " if several else ""
            print_hanging(console, Text(f"{whose}{format_judging(contender.judging)}"), 2)
    for difference in evaluation.differences:
        line = Text(
            f"{in_one_line(difference.contender)} against {in_one_line(difference.against)}: "
        )
        line.append(format_difference(difference.interval), difference_style(difference.interval))
        print_hanging(console, line, 2)
    for contender in evaluation.contenders:
        _print_problem_cases(console, contender, command, named=several)


def difference_style(difference: Interval | None) -> str:
    """Return the color of a difference, or an empty text if the difference may be chance."""
    if difference is None or not difference.excludes_zero:
        return ""
    return "green" if difference.mean > 0 else "red"


def _make_rows(evaluation: Evaluation, has_tools: bool) -> Iterator[list[Text]]:
    """Make the rows of the table: first the total, then the nodes. If there are several contenders,
    the total and each node have a row for each contender."""
    contenders = evaluation.contenders
    if len(contenders) == 1:
        for row in (contenders[0].total, *contenders[0].nodes):
            yield _make_cells(Text(row.node or "total", "" if row.node else "bold"), row, has_tools)
        return
    names = dict.fromkeys(row.node for contender in contenders for row in contender.nodes)
    for name in ("", *names):
        yield [Text(name or "total", "bold")]
        for contender in contenders:
            rows = (contender.total, *contender.nodes)
            row = next((row for row in rows if row.node == name), None)
            label = Text(f"  {in_one_line(contender.name)}")
            yield [label] if row is None else _make_cells(label, row, has_tools)


def _make_cells(label: Text, row: Row, has_tools: bool) -> list[Text]:
    has_calls = bool(row.calls)
    has_times = has_calls or (not row.node and row.cases > 0)
    return [
        label,
        Text(format_interval(row.score)),
        Text("-" if row.score is None else f"{row.score.n:,}"),
        Text(format_share(row.validity)),
        Text(f"{row.calls:,}"),
        Text(format_count(row.tokens) if has_calls else "-"),
        Text(format_cost(row.cost) if has_calls else "-"),
        Text(format_seconds(row.seconds_p50) if has_times else "-"),
        Text(format_seconds(row.seconds_p95) if has_times else "-"),
        Text(f"{row.cases:,}"),
        *([Text(format_tools(row))] if has_tools else []),
    ]


def _print_problem_cases(
    console: Console, contender: Contender, command: CommandLine, *, named: bool
) -> None:
    """Print the cases of a contender that failed, could not be scored, or scored less than 1."""
    kinds = {
        "failed": contender.failed,
        "could not be scored": contender.unscored,
        "scored less than 1": contender.imperfect,
    }
    counts = [
        f"{len(results):,} {description}" for description, results in kinds.items() if results
    ]
    counts += [f"{len(contender.not_run):,} not run"] if contender.not_run else []
    if not counts:
        return
    whose = f"{in_one_line(contender.name)}: " if named else ""
    title = f"{whose}of {count(len(contender.cases), 'case')}, {', '.join(counts)}"
    console.print()
    print_hanging(console, Text(title, "bold"), 2)
    listed = [result for results in kinds.values() for result in results]
    for case_result in listed[:MOST]:
        print_hanging(console, _case_line(case_result, command), 4)
    if len(listed) > MOST:
        more = f"  and {len(listed) - MOST:,} more, which the files have"
        console.print(Text(more, "dim"), soft_wrap=True)


def _case_line(result: CaseResult, command: CommandLine) -> Text:
    line = Text("  ")
    verdict = (
        result.outcome if result.score is None or result.failed else format_score(result.score)
    )
    line.append(verdict, "yellow" if result.outcome == "ended" else "red")
    line.append(f"  {in_one_line(result.case.name)}", "bold")
    why = in_one_line(cut_text(result.error or result.why, LONGEST))
    if why:
        line.append(f": {why}")
    if command.journal is not None and result.run_id:
        line.append(f"\n    {command.show(result.run_id)}", "cyan")
    return line


# --- files ------------------------------------------------------------------------------------

KINDS: Final = (".md", ".json", ".csv")
"""The file name endings of the report formats."""


def check_files(named: Sequence[str]) -> None:
    """Refuse report files with an unknown ending, and files that cannot be written. `bae eval`
    calls this function before it runs cases."""
    for name in named:
        path = Path(name)
        if path.suffix.lower() not in KINDS:
            raise Misuse(
                f"-o {name}: the ending of the name is the format, and must be one of "
                f"{', '.join(KINDS)}",
                code="bae-command-refused",
                fix=f"give a name that ends in one of them, as -o {path.stem or 'report'}.md",
            )
        try:
            if path.exists():
                # If the file is a named pipe without a reader, fail instead of waiting.
                os.close(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)))
            _check_folder(path.parent)
        except OSError as error:
            raise refusal(
                f"-o {name} cannot be written: {error.strerror}",
                cause=error,
                fix="name a file in a directory that can be written to",
            ) from error


def report_files() -> list[str]:
    """Choose the report files for a command without `-o`. If they cannot be written, print a note
    and return no files."""
    folder = state_folder() / "evals"
    try:
        make_state_folder()
        _check_folder(folder)
    except OSError as error:
        note(
            f"no report is written, because {folder} cannot be written: "
            f"{error.strerror}; -o FILE names another place"
        )
        return []
    name = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return [str(folder / f"{name}{kind}") for kind in (".md", ".json")]


def write_evaluation(evaluation: Evaluation, named: Sequence[str]) -> None:
    """Write an evaluation to files. If a file cannot be written, it keeps its earlier content."""
    for name in named:
        match Path(name).suffix.lower():
            case ".json":
                text = json.dumps(evaluation.to_json(), indent=2, ensure_ascii=False) + "\n"
            case ".csv":
                text = evaluation.to_csv()
            case _:
                text = evaluation.to_markdown()
        try:
            target = Path(os.path.realpath(name))  # keep a symbolic link, and write to its target
            write_private(target, text.encode(errors="backslashreplace"))
        except OSError as error:
            raise refusal(
                f"{name} could not be written: {error.strerror}",
                cause=error,
                fix="the evaluation is printed; -o FILE names another place next time",
            ) from error


def _check_folder(folder: Path) -> None:
    """Make a folder, and write a file there. Raises OSError, also if the disk is full."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder) as file:
        file.write(b"\n")


# --- reasons for exit code 1 ------------------------------------------------------------------


def reasons_to_fail(evaluation: Evaluation, fail_under: float | None) -> Iterator[str]:
    """Yield a sentence for each reason why `bae eval` exits with code 1."""
    contenders = evaluation.contenders
    if all(result.failed for contender in contenders for result in contender.cases):
        yield "every case failed"
    if evaluation.stopped:
        yield f"not every case was run: {evaluation.stopped}"
    unscored = [result for contender in contenders for result in contender.unscored]
    if unscored:
        many_unscored = f"{count(len(unscored), 'case')} could not be scored"
        why = in_one_line(unscored[0].scoring_error or unscored[0].error)
        yield f"{many_unscored}, so the scores cover only the other cases: {why}"
    elif evaluation.metric_errors:
        results = (result for contender in contenders for result in contender.cases)
        first = next(result.metric_error for result in results if result.metric_error)
        failed = count(evaluation.metric_errors, "time")
        yield f"a metric failed {failed}: {in_one_line(first)}"
    if fail_under is not None:
        for contender in contenders:
            yield from _explain_low_score(contender, fail_under)


def _explain_low_score(contender: Contender, fail_under: float) -> Iterator[str]:
    score = contender.total.score
    name = in_one_line(contender.name)
    if score is None:
        yield f"{name} has no score, but --fail-under {fail_under:g} needs a score"
    elif score.mean < fail_under:
        rounded = f"{score.mean:.4g}"
        mean = rounded if float(rounded) < fail_under else repr(score.mean)
        yield f"{name} scores {mean}, which is less than --fail-under {fail_under:g}"
