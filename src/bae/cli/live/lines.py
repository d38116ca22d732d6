"""The run as lines, one for each thing that happens, where there is no terminal or one that cannot
move its cursor: a log file, a pipe, an editor."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.text import Text

from bae.cli.live.display import Display
from bae.cli.live.drawing import fitted
from bae.cli.live.errors import is_waiting, said_of
from bae.cli.live.fields import held
from bae.cli.live.folding import RunPicture
from bae.cli.live.lm_records import name_of
from bae.cli.live.source_records import hides
from bae.cli.live.values import text_of
from bae.cli.live.wording import count, spent, took
from bae.cli.live.writing import LineWriter, write_line
from bae.cli.texts import WITHHELD, in_lines, in_one_line
from bae.plan import plan_of
from bae.records import (
    AnswerJudged,
    AnswerRestarted,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMUsed,
    Recalled,
    Record,
    RunEnded,
    RunResumed,
    SourceEnded,
    SourceStarted,
    StepStarted,
    TextArrived,
)
from bae.secrets import may_show

if TYPE_CHECKING:
    from rich.console import Console

    from bae.observers import ObservedRun
    from bae.usage import Usage

NAMES: Final = 16
"""How wide the column of names is."""
LONGEST: Final = 200
"""Cells after which a line is cut where it is not for a terminal."""
PROGRESS: Final = 1.0
"""Seconds between two lines about the items of a map."""
ITEMS: Final = 10
"""Items of a map whose graphs are written of: the first ones."""
Line = tuple[str, ...]
"""What a line is about, what there is to say, and then facts that are never cut off."""
_UNSAID: Final = (TextArrived, LMUsed)


class PlainLines(Display):
    """Writes a line for each thing that happens, with the seconds since the run began."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._told = 0.0
        self._failed = ""
        self._unread = 0
        self._writer: LineWriter | None = None

    def __enter__(self) -> Self:
        self._writer = LineWriter(self.console.file, self.signs.dots)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._unread += writer.close()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Write no lines in the block."""
        writer = self._writer
        if writer is not None:
            writer.hold()
        try:
            with super().paused():
                yield
        finally:
            if writer is not None:
                writer.release()

    def say(self, text: str) -> None:
        """Write a line about something beside the run."""
        self._put(self.signs.said(in_lines(text)))

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take in a record, and write of it."""
        with self.lock:
            picture = self.pictures.take(run, record)
            if type(record) in _UNSAID or (record.path and _is_far(record.path)):
                return
            line = self._line(picture, record)
            if line is None:
                return
            since = picture.resumed_at or picture.whole.began or record.at
            name, said, *after = line
            where = f"{_inside(record.path)}  " if record.path else ""
            said = f"{max(0.0, record.at - since):6.2f} s  {where}{name:<{NAMES}}  {said}"
            longest = self.console.width if self.console.is_terminal else LONGEST
            said = self.signs.said(in_one_line(said.rstrip()))
            # What is cut is the value, and never how long it took.
            facts = self.signs.said(in_one_line(_after(*after)))
            self._put(fitted(said, max(1, longest - len(facts)), self.signs.dots) + facts)

    def _put(self, line: str) -> None:
        writer = self._writer
        if writer is not None:
            writer.put(line)
            return
        with suppress(OSError):  # of what comes before it is entered, or after
            write_line(self.console.file, line)

    def summary(self, usage: Usage | None = None, seconds: float | None = None) -> Text:
        """The run in a line, after one that says how many were left out."""
        said = super().summary(usage, seconds)
        if not self._unread:
            return said
        left_out = f"{self.signs.dots} {count(self._unread, 'line')} left out\n"
        return Text(left_out, "dim").append_text(said)

    def _line(self, picture: RunPicture, record: Record) -> Line | None:
        """The name and the text of a line; None of what is not worth one."""
        match record:
            case RunResumed():
                return "resumed", f"{count(picture.nodes, 'node')} from before"
            case StepStarted(node=node):
                step = picture.step_at(record.path, record.step)
                values = () if step is None else held(step)
                said = " ".join(f"{name}={each.inline}" for name, each in values)
                if step is not None and step.filled:
                    return type(node).__name__, said, took(step.filled_in), *spent(step.usage)
                return type(node).__name__, said
            case SourceStarted() if record.source != "gate":
                each = " for each item," if record.source == "map" else ""
                return f"  {record.by}", f"called{each} for {_place(record)}"
            case SourceEnded():
                return self._ended(record)
            case ItemEnded():
                return self._progress(picture, record)
            case Recalled():
                value = WITHHELD if hides(record) else text_of(record.value)
                found = picture.step_at(record.origin.path, record.origin.step)
                name = "" if found is None else f" from {found.name}"
                return "  recalled", f"{record.field}={value}{name}"
            case GateOpened():
                return "  waits for", f"an answer to {record.gate.question!r}"
            case _:
                return self._asked(picture, record)

    def _asked(self, picture: RunPicture, record: Record) -> Line | None:
        match record:
            case ChoiceStarted():
                return "  LM", f"is choosing from {' | '.join(map(name_of, record.offered))}"
            case ChoiceMade():
                after = took(record.seconds), *spent(record.usage)
                return "  LM chose", name_of(record.chosen), *after
            case FillStarted():
                plain = [plan.name for plan in plan_of(record.target).plain]
                return ("  LM", f"is filling {', '.join(plain)}") if plain else None
            case FillEnded() if plan_of(type(record.node)).after:  # its maps are yet to come
                after = took(record.seconds), *spent(record.usage)
                return "  LM filled", type(record.node).__name__, *after
            case AnswerJudged() if record.attempt.verdict != "valid":
                attempt = record.attempt
                errors = "; ".join(attempt.errors) if may_show(picture.met, following=True) else ""
                after = f": {errors}" if errors else ""
                return "  LM", f"answer {attempt.number} was {attempt.verdict}{after}"
            case AnswerRestarted():
                wait = took(record.wait)
                said = f"is asked again{f' in {wait}' if wait else ''}"
                return "  LM", f"{said} after {said_of(record.error)}"
            case RunEnded() if record.outcome != "ended":
                failed = record.outcome == "failed" and record.error is not None
                error = said_of(record.error) if failed and record.error else ""
                # Where the line of a dependency has told it, how the command ends tells it again.
                return None if self._failed and self._failed in error else (record.outcome, error)
            case _:
                return None

    def _ended(self, record: SourceEnded) -> Line | None:
        by = "  answered" if record.source == "gate" else f"  {record.by}"
        if record.error is not None:
            if is_waiting(record.error):
                return None
            self._failed = said_of(record.error)
            return by, f"failed: {self._failed}"
        value = WITHHELD if hides(record) else text_of(record.value)
        return by, value, took(record.seconds)

    def _progress(self, picture: RunPicture, record: ItemEnded) -> Line | None:
        """How far a map is, now and then."""
        step = picture.step_at(record.path, record.step)
        source = None if step is None else step.sources.get((record.field, ""))
        if source is None or record.at - max(self._told, source.began) < PROGRESS:
            return None
        self._told = record.at
        of = "" if source.total is None else f" of {source.total:,}"
        return f"  {source.by}", f"{source.done:,}{of} items done"


def _place(record: SourceStarted) -> str:
    return f"{record.node_type.__name__}.{record.field}{record.parameter}"


def _after(*facts: str) -> str:
    said = ", ".join(filter(None, facts))
    return f"  ({said})" if said else ""


def _inside(path: str) -> str:
    """Where in the run a graph inside it runs: `summaries[3]`."""
    parts = [part.partition(":")[2].partition(".")[2] or part for part in path.split("/")]
    return "/".join(parts)


def _is_far(path: str) -> bool:
    """Whether a graph is that of an item which is not among the first."""
    if not path.endswith("]"):
        return "]/" in path and any(_is_far(part) for part in path.split("/"))
    number = path[path.rindex("[") + 1 : -1]
    return number.isdecimal() and int(number) >= ITEMS
