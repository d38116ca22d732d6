"""What `bae eval` prints and writes: the table of scores, the cases that went wrong, each with a
command to look into it, the files, and why the command fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

from bae.cli.exits import Misuse, refused
from bae.cli.tables import Column, print_table
from bae.cli.texts import cut, in_one_line
from bae.evals.page import changed, dollars, judged, many, score, scored, seconds, share
from bae.private_files import write_private

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bae.cli.outcome import CommandLine
    from bae.evals.intervals import Interval
    from bae.evals.report import CaseResult, Contender, Evaluation, Row

MOST: Final = 5
"""Cases that are listed of a contender."""
LONGEST: Final = 200
"""Characters of why a case went wrong."""
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
"""SCORED is how many cases the score is of, TIME the median, and CASES how many were run, or
reached the node."""


def print_evaluation(console: Console, evaluation: Evaluation, said: CommandLine) -> None:
    """Print an evaluation; `said` is for the commands that show runs of it."""
    from rich.text import Text

    from bae.cli.printing import print_hanging

    print_table(console, _COLUMNS, [*_rows(evaluation)])
    several = len(evaluation.contenders) > 1
    for contender in evaluation.contenders:
        if contender.judging.calls:
            whose = f"{in_one_line(contender.name)}: " if several else ""
            print_hanging(console, Text(f"{whose}{judged(contender.judging)}"), 2)
    for each in evaluation.differences:
        line = Text(f"{in_one_line(each.contender)} against {in_one_line(each.against)}: ")
        line.append(changed(each.interval), difference_style(each.interval))
        print_hanging(console, line, 2)
    for contender in evaluation.contenders:
        _print_wrong(console, contender, said, named=several)


def difference_style(found: Interval | None) -> str:
    """The color of a difference: none if it may be chance."""
    if found is None or not found.excludes_zero:
        return ""
    return "green" if found.mean > 0 else "red"


def _rows(evaluation: Evaluation) -> Iterator[list[Text]]:
    """The total first, then the nodes; where there are several contenders each has a row below."""
    from rich.text import Text

    every = evaluation.contenders
    if len(every) == 1:
        for row in (every[0].total, *every[0].nodes):
            yield _cells(Text(row.node or "total", "" if row.node else "bold"), row)
        return
    names = dict.fromkeys(row.node for contender in every for row in contender.nodes)
    for name in ("", *names):
        yield [Text(name or "total", "bold")]
        for contender in every:
            rows = (contender.total, *contender.nodes)
            row = next((each for each in rows if each.node == name), None)
            label = Text(f"  {in_one_line(contender.name)}")
            yield [label] if row is None else _cells(label, row)


def _cells(label: Text, row: Row) -> list[Text]:
    from rich.text import Text

    asked = bool(row.calls)
    timed = asked or (not row.node and row.cases > 0)
    return [
        label,
        Text(scored(row.score)),
        Text("-" if row.score is None else f"{row.score.n:,}"),
        Text(share(row.validity)),
        Text(f"{row.calls:,}"),
        Text(many(row.tokens) if asked else "-"),
        Text(dollars(row.cost) if asked else "-"),
        Text(seconds(row.seconds_p50) if timed else "-"),
        Text(seconds(row.seconds_p95) if timed else "-"),
        Text(f"{row.cases:,}"),
    ]


def _print_wrong(console: Console, contender: Contender, said: CommandLine, *, named: bool) -> None:
    """The cases of a contender that failed, and then those that scored least."""
    from rich.text import Text

    from bae.cli.printing import print_hanging
    from bae.cli.wording import count

    scores = ((each.score, each) for each in contender.cases if not each.failed)
    lower = sorted(
        ((score, each) for score, each in scores if score is not None and score < 1),
        key=lambda found: found[0],
    )
    kinds = {
        "failed": contender.failed,
        "could not be scored": contender.unscored,
        "scored less than 1": [each for _, each in lower],
    }
    counts = [f"{len(found):,} {what}" for what, found in kinds.items() if found]
    counts += [f"{len(contender.not_run):,} not run"] if contender.not_run else []
    if not counts:
        return
    whose = f"{in_one_line(contender.name)}: " if named else ""
    title = f"{whose}of {count(len(contender.cases), 'case')}, {', '.join(counts)}"
    console.print()
    print_hanging(console, Text(title, "bold"), 2)
    listed = [each for found in kinds.values() for each in found]
    for each in listed[:MOST]:
        print_hanging(console, _case(each, said), 4)
    if len(listed) > MOST:
        more = f"  and {len(listed) - MOST:,} more, which the files have"
        console.print(Text(more, "dim"), soft_wrap=True)


def _case(result: CaseResult, said: CommandLine) -> Text:
    from rich.text import Text

    line = Text("  ")
    verdict = result.outcome if result.score is None or result.failed else score(result.score)
    line.append(verdict, "yellow" if result.outcome == "ended" else "red")
    line.append(f"  {in_one_line(result.case.name)}", "bold")
    why = in_one_line(cut(result.error or result.why, LONGEST))
    if why:
        line.append(f": {why}")
    if said.journal is not None and result.run_id:
        line.append(f"\n    {said.show(result.run_id)}", "cyan")
    return line


# --- files ------------------------------------------------------------------------------------

KINDS: Final = (".md", ".json", ".csv")
"""How the names of files end that an evaluation can be written to."""


def check_files(named: Sequence[str]) -> None:
    """Refuse files that cannot be written, before anything runs. Nothing is left behind."""
    for each in named:
        if Path(each).suffix.lower() not in KINDS:
            raise Misuse(
                f"-o {each}: the end of the name says what is written, and this is none of "
                f"{', '.join(KINDS)}",
                code="bae-command-refused",
                fix=f"give a name that ends in one of them, as -o {Path(each).stem or 'report'}.md",
            )
    for each in named:
        path = Path(each)
        if path.is_dir():
            raise refused(f"-o {each} is a directory", fix=f"name a file, as -o {each}/report.md")
        if path.exists() and not os.access(path, os.W_OK):
            raise refused(f"-o {each} cannot be written over", fix="name another file")
        try:
            _try(path.parent)
        except OSError as error:
            raise refused(
                f"-o {each} cannot be written: {error.strerror}",
                cause=error,
                fix="name a file in a directory that can be written to",
            ) from error


def default_folder() -> Path | None:
    """Where an evaluation goes without `-o`. None if that cannot be written, which a note says."""
    from bae.cli.journals import default, file_to_write
    from bae.cli.printing import note

    folder = default().parent / "evals"
    try:
        file_to_write(None)  # the directory, which git leaves alone
        _try(folder)
    except OSError as error:
        note(
            f"the evaluation is printed and not written, since {folder} cannot be: "
            f"{error.strerror}; -o FILE names another place"
        )
        return None
    return folder


def files_in(folder: Path | None, stamp: str) -> list[str]:
    """The names of an evaluation in a folder, which no other one there has."""
    if folder is None:
        return []
    name, number = stamp, 1
    while (folder / f"{name}.json").exists():  # another one, in the same second
        number += 1
        name = f"{stamp}-{number}"
    return [str(folder / f"{name}.md"), str(folder / f"{name}.json")]


def write_evaluation(evaluation: Evaluation, named: Sequence[str]) -> None:
    """Write an evaluation to files: each is whole, or as it was before."""
    for each in named:
        path = Path(os.path.realpath(each))  # what a link leads to, and not the link
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half of a character, which a text may have, has a form in JSON, and stays readable.
            write_private(path, _said(evaluation, path).encode(errors="backslashreplace"))
        except OSError as error:
            raise refused(
                f"{each} could not be written: {error.strerror}",
                cause=error,
                fix="what was found is printed; -o FILE names another place next time",
            ) from error


def _try(folder: Path) -> None:
    """Write something into a folder, and remove it again with the folders made for it: permissions
    say nothing about full disks and read-only file systems."""
    made: list[Path] = []
    try:
        for each in reversed([folder, *folder.parents]):
            if not each.is_dir():
                each.mkdir()
                made.append(each)
        with TemporaryFile(dir=folder) as file:
            file.write(b"\n")
    finally:
        with suppress(OSError):
            for each in reversed(made):
                each.rmdir()


def _said(evaluation: Evaluation, path: Path) -> str:
    kind = path.suffix.lower()
    if kind == ".md":
        said = evaluation.to_markdown()
    elif kind == ".csv":
        return evaluation.to_csv()  # which has line ends of its own
    else:
        said = json.dumps(_plain(evaluation.to_json()), indent=2, ensure_ascii=False)
    return said.rstrip("\n") + "\n"


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")


# --- why it fails -----------------------------------------------------------------------------


def reasons_to_fail(evaluation: Evaluation, fail_under: float | None) -> Iterator[str]:
    """Why an evaluation fails, a sentence for each reason; none where it does not."""
    from bae.cli.wording import count

    every = evaluation.contenders
    if all(result.failed for each in every for result in each.cases):
        yield "every case failed"
    if evaluation.stopped:
        yield f"not every case was run: {evaluation.stopped}"
    unscored = [result for each in every for result in each.unscored]
    if unscored:
        said = f"{count(len(unscored), 'case')} could not be scored"
        why = in_one_line(unscored[0].error).removeprefix("it could not be scored: ")
        yield f"{said}, so the scores are of the others alone: {why}"
    elif evaluation.metric_errors:
        yield f"a metric failed {count(evaluation.metric_errors, 'time')}: {_first_error(every)}"
    if fail_under is not None:
        for each in every:
            yield from _too_low(each, fail_under)


def _first_error(contenders: list[Contender]) -> str:
    results = (result for each in contenders for result in each.cases)
    return in_one_line(next(result.metric_error for result in results if result.metric_error))


def _too_low(contender: Contender, fail_under: float) -> Iterator[str]:
    score = contender.total.score
    name = in_one_line(contender.name)
    if score is None:
        yield f"{name} has no score, and --fail-under {fail_under:g} wants one"
    elif score.mean < fail_under:
        said = next(
            text
            for text in (*(f"{score.mean:.{digits}g}" for digits in (4, 8, 12)), repr(score.mean))
            if float(text) < fail_under
        )
        yield f"{name} scores {said}, which is less than --fail-under {fail_under:g}"
