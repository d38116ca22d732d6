"""The result of a case and its output: one table of text that is also Markdown, and verdicts.

`publish` puts the tables between two marker lines of a document and leaves the rest of it alone.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.sampling import Samples, Settings

BEGIN = "<!-- figures: begin, written by python -m benchmarks --write -->"
END = "<!-- figures: end -->"
DASH = "–"


@dataclass(frozen=True)
class Verdict:
    """One target and whether it was met; `met` is None when it could not be measured."""

    case: str
    target: str
    measured: str
    met: bool | None

    def line(self) -> str:
        word = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"{word:12} {self.case:3} {self.target}: {self.measured}"


@dataclass
class Result:
    """Everything one case has to say."""

    case: str
    title: str
    header: list[str]
    rows: list[list[str]]
    verdicts: list[Verdict]
    notes: list[str] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        parts = [f"### {self.title}", "", *_table(self.header, self.rows)]
        if self.notes:
            parts += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(parts)


def _table(header: list[str], rows: list[list[str]], *, prose: bool = False) -> list[str]:
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]

    def line(cells: Iterable[str]) -> str:
        # Names read from the left, figures line up on the right.
        first, *figures = [
            cell.ljust(width) if prose or not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join([first, *figures]) + " |"

    rule = "|".join(
        "-" * (width + 1) + ("-" if prose or not at else ":") for at, width in enumerate(widths)
    )
    return [line(header), f"|{rule}|", *(line(row) for row in rows)]


def figure(value: float) -> str:
    """Format a number with three significant digits, and commas between thousands."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(samples: Samples, scale: float) -> str:
    """Return the lowest and the highest sample, in the unit of the table."""
    return f"{figure(min(samples) * scale)}–{figure(max(samples) * scale)}"


def notes_of(contenders: Iterable[Contender], case: str) -> list[str]:
    """Return the notes of the contenders on this case."""
    return [f"{one.name}: {one.notes[case]}." for one in contenders if case in one.notes]


def fewer_samples(
    samples: Mapping[str, Samples], names: Mapping[str, str], where: str = ""
) -> list[str]:
    """Return a note on each contender that sat out rounds, because a median of two samples means
    less than a median of fifteen."""
    most = max(len(mine) for mine in samples.values())
    return [
        f"{names[key]}{where}: {len(mine)} of {most} samples."
        for key, mine in samples.items()
        if len(mine) < most
    ]


def provenance(contenders: Iterable[Contender], settings: Settings) -> str:
    """Describe the machine, the contenders and the settings of the measurement."""
    versions = ", ".join(f"{one.name} {one.version}" for one in contenders if one.package)
    return (
        f"Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, up to {settings.rounds} interleaved rounds. "
        f"Contenders: {versions}."
    )


def as_json(results: list[Result], where: str) -> dict[str, Any]:
    """Return the results as data, with every sample."""
    return {"measured": where, "cases": [asdict(result) for result in results]}


def publish(
    document: Path, where: str, results: list[Result], begin: str = BEGIN, end: str = END
) -> None:
    """Replace the text between the markers of `document`."""
    text = document.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{document} needs the two marker lines once each:\n{begin}\n{end}")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    targets = [
        [verdict.case, verdict.target, verdict.measured, _word(verdict.met)]
        for result in results
        for verdict in result.verdicts
    ]
    body = [
        where,
        "\n".join(
            ["### Targets", "", *_table(["case", "target", "measured", ""], targets, prose=True)]
        ),
        *(result.markdown() for result in results),
    ]
    document.write_text(
        before + begin + "\n\n" + "\n\n".join(body) + "\n\n" + end + after, encoding="utf-8"
    )


def _word(met: bool | None) -> str:
    return {True: "met", False: "missed", None: "not measured"}[met]
