"""An evaluation as it is printed: a table of scores, what they cost and how long they took, in
total and for each node, the contenders below one another; the cases that went wrong, with a command
to look into each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bae.cli.improving.amounts import (
    changed,
    difference_style,
    dollars,
    many,
    score,
    scored,
    seconds,
    share,
)
from bae.cli.improving.tables import Column, print_table
from bae.cli.texts import cut, in_one_line
from bae.evals.page import judged

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bae.cli.outcome import CommandLine
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
"""What stands in a row. SCORED is how many cases the score is of, TIME the median, and CASES how
many were run, or met the node: some of those may expect nothing of it."""


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

    from bae.cli.live.wording import count
    from bae.cli.printing import print_hanging

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
