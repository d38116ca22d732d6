"""The bars that `bae runs show` draws of a timeline."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("typer")
pytest.importorskip("rich")

from rich.console import Console

from bae.cli.timeline import bars_of, rows_of
from bae.journal.report import Span, Timeline, TimelineEntry

pytestmark = pytest.mark.once


def draw_timeline(
    found: Timeline, width: int = 80, encoding: str = "utf-8", full: bool = False
) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, color_system=None)
    return "\n".join(line.plain for line in bars_of(found, console, full=full))


def make_timeline(
    *lives: tuple[float, float], work: Iterator[TimelineEntry] | tuple[TimelineEntry, ...] = ()
) -> Timeline:
    return Timeline("x", "G", "ended", tuple(Span(*life) for life in lives), tuple(work))


def dep(name: str, *spans: tuple[float, float], outcome: Any = "done") -> TimelineEntry:
    return TimelineEntry(
        "dep", f"0:Day.{name}", f"get_{name}", tuple(Span(*s) for s in spans), outcome
    )


def node(*inside: TimelineEntry) -> TimelineEntry:
    spans = (Span(min(w.start for w in inside), max(w.end for w in inside)),)
    return TimelineEntry("node", "0:Day", "Day", spans, "done", inside=inside)


def test_bars_are_placed_at_the_time_of_the_work_with_start_and_duration():
    work = (node(dep("a", (0, 5)), dep("b", (0, 10)), dep("c", (5, 10), outcome="failed")),)
    axis, *rows = draw_timeline(make_timeline((0, 10), work=work), 80).splitlines()
    assert axis.split() == ["0", "s", "10", "s", "from", "took"]
    assert [re.split(r"[━─]+ *", row)[1] for row in rows] == [
        "0 s  10 s",
        "0 s   5 s",
        "0 s  10 s",
        "5 s   5 s  failed",
    ]
    bars = [re.search(r"[━─]+", row) for row in rows]
    starts = [bar.start() for bar in bars if bar]
    ends = [bar.end() for bar in bars if bar]
    assert starts[0] == starts[1] == starts[2]
    assert ends[0] == ends[2] == ends[3]
    assert ends[1] - starts[3] in (0, 1)


def test_the_time_between_a_crash_and_the_resume_is_narrow_and_marked():
    work = (node(dep("a", (0, 10)), dep("b", (100_000, 100_010))),)
    text = draw_timeline(make_timeline((0, 10), (100_000, 100_010), work=work))
    _, day, a, b, legend = text.splitlines()
    assert all("╱" in row for row in (day, a, b))
    assert a.index("━") < a.index("╱") < b.index("━")
    assert abs(a.count("━") - b.count("━")) <= 1
    assert "╱ no process worked on the run: 27.8 h" in legend
    assert "waited" not in legend


def test_work_after_a_gap_has_its_true_start_on_the_axis():
    gate = TimelineEntry("gate", "0:Day.g", "?", (Span(8, 100_001),), "done", waits=True)
    work = (node(dep("a", (0, 10)), gate, dep("b", (100_001, 100_010))),)
    axis, day, a, g, b, _, legend = draw_timeline(
        make_timeline((0, 10), (100_000, 100_010), work=work)
    ).splitlines()
    assert "20 s" in axis
    assert re.search(r" 11 s +9 s$", b)
    assert re.search(r" 8 s +27.8 h$", g)
    assert "┅" in g
    assert all("╱" in row and "┅" not in row for row in (day, a, b))
    assert "┅ a person was waited for" in legend
    ascii = draw_timeline(make_timeline((0, 10), (100_000, 100_010), work=work), encoding="ascii")
    assert ascii.isascii()
    assert re.search(r"g <- a person .*=\.", ascii)
    assert re.search(r"a <- get_a +=+ */", ascii)


def test_many_gaps_are_summarized_by_count_and_sum():
    lives = [(20.0 * i, 20.0 * i + 10) for i in range(6)]
    text = draw_timeline(make_timeline(*lives, work=(node(dep("a", (0, 10))),)))
    assert "no process worked on the run: 5 times, 50 s in all" in text


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4)), min_size=1, max_size=60),
    st.integers(1, 300),
    st.data(),
)
def test_no_row_is_wider_than_the_terminal_for_any_periods_of_work(lives, width, data):
    spans: list[Span] = []
    at = 0.0
    for gap, lasted in lives:
        spans.append(Span(at + gap, at + gap + lasted))
        at = spans[-1].end
    times = st.floats(spans[0].start, spans[-1].end)
    chosen = [sorted(data.draw(st.tuples(times, times))) for _ in range(3)]
    work = (node(*(dep(f"d{i}", (start, end)) for i, (start, end) in enumerate(chosen))),)
    run_timeline = Timeline("x", "G", "ended", tuple(spans), work)
    rows = draw_timeline(run_timeline, width).splitlines()
    for row in rows[1:5]:
        assert len(row) <= max(width, 44)
        assert re.search(r"[━─╱]", row)


def test_long_runs_are_drawn_with_their_first_and_last_nodes():
    entries = [
        TimelineEntry("node", f"{i}:Day", "Day", (Span(i, i + 1),), "done") for i in range(2000)
    ]
    run_timeline = make_timeline((0, 2000), work=tuple(entries))
    rows = rows_of(run_timeline)
    assert len(rows) == 41
    assert [label for label, _ in rows[19:22]] == ["19 Day", "… 1960 more", "1980 Day"]
    assert len(rows_of(run_timeline, full=True)) == 2000


def test_an_open_question_is_drawn_until_now():
    gate = TimelineEntry("gate", "0:Ask.sure", "Sure?", (Span(0, 259_201),), "waiting", waits=True)
    _, ask, asked, *legend = draw_timeline(make_timeline((0, 1), work=(node(gate),))).splitlines()
    assert "╱" in ask
    assert "┅" in asked
    assert asked.endswith("3 d  waiting")
    legend_lines = [line.strip() for line in legend]
    assert legend_lines == ["╱ no process worked on the run: 3 d", "┅ a person was waited for"]


def test_omitted_work_is_reported_as_failed_if_any_of_it_failed():
    entries = [
        TimelineEntry("item", f"[{i}]", "Day", (Span(i, i + 1),), "failed") for i in range(9)
    ]
    rows = rows_of(make_timeline((0, 9), work=tuple(entries)))
    assert [(label, work.outcome) for label, work in rows][-1] == ("… 3 more", "failed")


def test_long_maps_are_drawn_as_a_few_rows_and_a_count():
    items = tuple(
        TimelineEntry("item", f"0:Day.short[{i}]", f"[{i}]", (Span(i, i + 1),), "done")
        for i in range(50)
    )
    mapped = TimelineEntry("map", "0:Day.short", "Piece", (Span(0, 50),), "done", inside=items)
    run_timeline = make_timeline((0, 50), work=(node(mapped),))
    text = draw_timeline(run_timeline)
    assert "short <- Piece x 50" in text
    assert "… 47 more" in text
    assert len(text.splitlines()) < 10
    assert len(draw_timeline(run_timeline, full=True).splitlines()) > 50
