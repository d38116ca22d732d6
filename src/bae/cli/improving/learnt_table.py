"""What `bae optimize` has learnt, as it is printed: a table of before and after on the held-out
examples, and for each part of a node what became of it. `learnt_data.py` has the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bae.cli.improving.amounts import changed, difference_style, many, score, scored, share
from bae.cli.improving.tables import GAP, Column, print_table
from bae.cli.improving.wanted import Learnt, Wanted
from bae.cli.live.wording import count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from bae.cli.improving.deciding import PartOutcome

_COLUMNS: Final = (
    Column("", right=False),
    Column("BEFORE [95 %]", right=False),
    Column("AFTER [95 %]", right=False),
    Column("DIFFERENCE", right=False),
    Column("HELD OUT", rank=1),
    Column("CALLS", rank=2),
    Column("LEARNT FROM", rank=3),
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
"""Where there is no room for all the intervals: the one that decides stays."""
_STYLES: Final = {
    "better": "green",
    "there already": "green",
    "better, not beyond chance": "yellow",
    "not better": "red",
}


def print_learnt(console: Console, wanted: Wanted, learnt: Learnt) -> None:
    """Print what was learnt."""
    from rich.text import Text

    from bae.cli.printing import print_hanging

    compared = [part for part in learnt.parts if part.comparison is not None]
    if compared:
        rows = [_row(part) for part in compared]
        least = [max(row[at].cell_len for row in rows) + GAP for at in range(4)]
        if console.is_terminal and sum(least) - GAP > console.width:
            print_table(console, _NARROW, [_narrow_row(part) for part in compared])
        else:
            print_table(console, _COLUMNS, rows)
        console.print()
    for part in learnt.parts:
        line = Text(f"{part.node} {part.part}: ")
        line.append(part.verdict, _STYLES.get(part.verdict, "dim"))
        print_hanging(console, line.append("; ".join(["", *_about(part, wanted)])), 2)
    for file in learnt.files:
        console.print(Text(f"written: {file}", "bold"), soft_wrap=True)


def _row(part: PartOutcome) -> list[Text]:
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


def _narrow_row(part: PartOutcome) -> list[Text]:
    from rich.text import Text

    row, compared = _row(part), part.comparison
    assert compared is not None
    means = (Text(score(each.mean)) for each in (compared.before, compared.after))
    return [row[0], *means, row[3]]


def _grown(before: int, after: int) -> Text:
    """A number before and after, where they differ."""
    from rich.text import Text

    if before == after:
        return Text(many(after))
    return Text(f"{many(before)} to {many(after)}", "yellow" if after > before else "")


def _about(part: PartOutcome, wanted: Wanted) -> Iterator[str]:
    """What else is to be said of a part."""
    match part.verdict:
        case "too few examples":
            if part.questions < part.train:
                yield (
                    f"{count(part.train, 'example')} of {count(part.questions, 'question')} to "
                    f"learn from, and {count(wanted.minimum, 'question')} are needed"
                )
            else:
                yield f"{part.train} to learn from, and {wanted.minimum} are needed"
        case "nothing held out":
            yield (
                f"nothing to compare on: {count(part.train, 'example')} to learn from, and none "
                "that asks anything else"
            )
        case "no better than what is there":
            yield f"what {wanted.directory} has scores {scored(part.there)}"
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
