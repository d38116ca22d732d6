"""An evaluation as a Markdown page, and short formats for its numbers. Rounding never makes a
number look better than it is."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bae.evals.intervals import Interval
    from bae.evals.report import CaseResult, Contender, Difference, Evaluation, Row
    from bae.usage import Usage

MOST: Final = 50
"""The most failing cases that a page lists for a contender."""
_LONGEST: Final = 300

_COLUMNS: Final = ("cases", "scored", "score", "valid", "calls", "tokens", "cost", "p50", "p95")


def to_markdown(evaluation: Evaluation) -> str:
    """Return the evaluation as a Markdown page."""
    contenders = evaluation.contenders
    cases = len(contenders[0].cases) if contenders else 0
    parts = [f"# {_text(evaluation.graph)}: {_count_of(cases, 'case')}\n"]
    if evaluation.stopped:
        parts.append(
            f"Not all cases were run: {_text(evaluation.stopped)}. Of unfinished cases, only the"
            " usage is counted below.\n"
        )
    parts.append(_rows({contender.name: contender.total for contender in contenders}))
    parts += [
        f"{_text(contender.name)}: {note}.\n"
        for contender in contenders
        if (note := _note(contender))
    ]
    if evaluation.differences:
        parts.append("## Differences\n")
        rows = [_difference(difference) for difference in evaluation.differences]
        parts.append(_table(("", "score", "beyond chance"), ("---", "---:", "---"), rows))
    for index, row in enumerate(contenders[0].nodes if contenders else ()):
        parts.append(f"## {_text(row.node)}\n")
        parts.append(_rows({contender.name: contender.nodes[index] for contender in contenders}))
    for contender in contenders:
        parts += _failing(contender, evaluation.journal)
    return "\n".join(parts)


def _rows(by_name: Mapping[str, Row]) -> str:
    rows = [[_text(name), *_cells(row)] for name, row in by_name.items()]
    columns = _COLUMNS
    if any(row.rounds for row in by_name.values()):
        columns = *columns, "tools"
        rows = [[*c, format_tools(r)] for c, r in zip(rows, by_name.values(), strict=True)]
    return _table(("", *columns), ("---", *("---:",) * len(columns)), rows)


def _cells(row: Row) -> list[str]:
    """Return the cells of a row in a table."""
    has_answers = bool(row.calls or row.judged)
    timed = has_answers if row.node else bool(row.cases)
    return [
        f"{row.cases}",
        f"{row.score.n if row.score else 0}",
        format_interval(row.score),
        format_share(row.validity),
        f"{row.calls}",
        f"{row.tokens}",
        format_cost(row.cost) if has_answers or not row.node else "-",
        format_seconds(row.seconds_p50) if timed else "-",
        format_seconds(row.seconds_p95) if timed else "-",
    ]


def _note(contender: Contender) -> str:
    notes: list[str] = []
    if failed := contender.failed:
        notes.append(f"{_count_of(len(failed), 'case')} failed, which scores 0")
    if unscored := contender.unscored:
        notes.append(
            f"{_count_of(len(unscored), 'case')} could not be scored, so the means are over the "
            "other cases"
        )
    if not_run := contender.not_run:
        notes.append(f"{_count_of(len(not_run), 'case')} not run, and not scored")
    if contender.judging.calls:
        notes.append(f"{format_judging(contender.judging)}, not counted above")
    return "; ".join(notes)


def _difference(difference: Difference) -> list[str]:
    name = f"{_text(difference.contender)} against {_text(difference.against)}"
    if difference.interval is None:
        return [name, "-", "no case was scored with both"]
    verdict = "yes" if difference.certain else "no: the interval includes 0"
    return [name, format_difference(difference.interval), verdict]


def _failing(contender: Contender, journal: str) -> Iterator[str]:
    """Yield the section of failed, unscored and imperfect cases, in this order. Of the imperfect
    cases, the lowest score is first."""
    listed = [*contender.failed, *contender.unscored, *contender.imperfect]
    if not listed:
        return
    yield f"## Cases of {_text(contender.name)} that failed or scored less than 1\n"
    head = ("case", "score", "why", "expected", "came", "its run")
    rows = [[*_failing_cells(result, journal)] for result in listed[:MOST]]
    yield _table(head, ("---",) * len(head), rows)
    if len(listed) > MOST:
        yield f"And {_count_of(len(listed) - MOST, 'more case')}: to_json has all of them.\n"


def _failing_cells(result: CaseResult, journal: str) -> Iterator[str]:
    scored = result.score is not None and not result.failed
    yield _text(result.case.name)
    yield format_score(result.score or 0.0) if scored else result.outcome
    yield _text(result.error or result.why)
    expectations = result.asked
    expected = [_node(expectations.get("expected_type"), expectations.get("expected"))]
    expected += [_node(name, fields) for name, fields in expectations.get("nodes", {}).items()]
    yield _text("; ".join(filter(None, expected)) or "-")
    yield _text(_node(result.end["type"], result.end["fields"]) if result.end else "-")
    if journal and result.run_id:
        command = f"bae runs show {result.run_id} --journal {shlex.quote(journal)}"
        yield f"`{command}`".replace("|", "\\|")
    else:
        yield _text(result.run_id)


def _node(name: str | None, fields: Any) -> str:
    text = "" if fields is None else json.dumps(fields, ensure_ascii=False)
    return " ".join(filter(None, (name, text)))


def _table(head: Sequence[str], rule: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rows))


def _text(text: str) -> str:
    """Escape a text for Markdown, on one line. Lone surrogates are escaped too, because an LLM may
    write them, but a file cannot store them."""
    text = text[: 4 * _LONGEST].encode("utf-8", "backslashreplace").decode()
    line = " ".join(_UNSEEN.sub(" ", text).split())
    short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return re.sub(r"([\\`*_{}\[\]<>#|~!&$])", r"\\\1", short)


_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def _count_of(count: int, unit: str) -> str:
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


# --- numbers ----------------------------------------------------------------------------------


def format_score(value: float) -> str:
    """Format a score: `0.82`. A score below 1 is never shown as 1, and a score above 0 is never
    shown as 0."""
    for digits in (2, 3, 4):
        text = f"{value:.{digits}f}"
        if (value >= 1 or float(text) < 1) and (value <= 0 or float(text) > 0):
            return text
    return "0.9999" if value > 0.5 else "0.0001"


def format_interval(score: Interval | None) -> str:
    """Format a score with its interval: `0.82 [0.70, 0.90]`."""
    if score is None:
        return "-"
    return f"{format_score(score.mean)} [{score.low:.2f}, {score.high:.2f}]"


def format_difference(gain: Interval | None) -> str:
    """Format a difference with its interval: `+0.19 [+0.05, +0.33]`."""
    if gain is None:
        return "-"
    return f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"


def format_share(part: float | None) -> str:
    """Format a share: `97 %`. A share below 1 is never shown as 100 %."""
    if part is None:
        return "-"
    percent = round(100 * part)
    return f"{min(percent, 99) if part < 1 else percent} %"


def format_count(number: int) -> str:
    """Format a number of tokens: `812`, `12.4k`, `1.3M`."""
    for size, sign in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{sign}"
    return str(number)


def format_cost(cost: float | None) -> str:
    """Format a cost: `$0.0042`, or `?` if it is unknown."""
    if cost is None:
        return "?"
    if not cost:
        return "$0"
    if cost >= 0.99995:
        return f"${cost:,.2f}"
    return f"${cost:.4f}" if cost >= 0.0001 else f"${cost:.1e}"


def format_tools(row: Row) -> str:
    """Format the tool calls of a row: `12 in 5 rounds, 2 errors`."""
    if not row.rounds:
        return "-"
    errors = f", {_count_of(row.tool_errors, 'error')}" if row.tool_errors else ""
    return f"{row.tool_calls} in {_count_of(row.rounds, 'round')}{errors}"


def format_judging(used: Usage) -> str:
    """Format the usage of judges: `judged with 6 LM calls · 1,234 tokens · $0.02`."""
    calls, tokens = _count_of(used.calls, "LM call"), _count_of(used.tokens, "token")
    cost = "cost unknown" if used.cost is None else format_cost(used.cost)
    return f"judged with {calls} · {tokens} · {cost}"


def format_seconds(amount: float) -> str:
    """Format a time: `0.41s`, `12s`."""
    return f"{amount:.2f}s" if amount < 9.995 else f"{amount:.0f}s"
