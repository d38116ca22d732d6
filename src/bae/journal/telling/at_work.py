"""The lines of a run, gone through in order to see who was at work when: `timeline.py` says what
comes out. A run that is parked, fails or is interrupted and goes on later has several lives; what
is still open when one of them ends is closed with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from bae.journal.shape import Json, ShapeView
from bae.journal.store import Line, Listed, StoredRun
from bae.journal.telling.pieces import BODY, CHOICE, FILL, Key, Piece, Pieces, address, worked
from bae.journal.telling.spent import usage_of
from bae.journal.telling.steady import steadied
from bae.journal.telling.story import asker_said, damaged, error_said, read_lines
from bae.journal.telling.timeline import Span, Timeline, WorkKind, WorkOutcome
from bae.usage import Usage

_STRONG: Final = ("RunStarted", "Returned", "StepStarted", "RunForked", "FillEnded")
"""The lines that say for sure of which class the node at a step is."""
_MOVES: Final = (*_STRONG, "SourceEnded", "Recalled", "ChoiceMade")
"""The lines after which a body may be called, in a run that goes on."""


@dataclass(slots=True)
class _Body:
    """A written body that is called, or will be when its run goes on: then it has no start yet."""

    piece: Piece
    start: float | None


class AtWork:
    """One run while it is gone through."""

    def __init__(self, stored: StoredRun, now: float) -> None:
        self._info = stored.info
        self._shape = ShapeView(stored.shape)
        self._status: Listed = stored.info.standing(now)
        self._pieces = Pieces()
        self._adrift: dict[Key, float] = {}
        """The same of what nobody seems to wait for any more."""
        self._bodies: dict[str, _Body] = {}
        self._since: dict[str, float] = {}
        """When the last thing happened in each graph that is under way in this life."""
        self._ends: dict[str, tuple[WorkOutcome, str]] = {}
        """How each graph came out."""
        self._over: set[str] = set()
        """The graphs that came to an end in this life."""
        self._lives: list[tuple[float, float]] = []
        self._living = False
        last = 0.0
        for line, data in steadied(read_lines(stored)):
            try:
                self._take(line, data)
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                raise damaged(stored.info.run_id, line, error) from error
            last = line.at
        # The clock of whoever looks at it is the one that wrote the last line, as it was then.
        now = max(last, now + (last - stored.lines[-1].at)) if stored.lines else now
        if self._living:
            under_way = self._status == "running"
            self._end_life("running" if under_way else "interrupted", now if under_way else None)
        if self._status == "waiting":
            self._pieces.wait_until(now)

    def timeline(self) -> Timeline:
        """What was found."""
        top = self._pieces.settled(self._ends)
        lives = [Span(*life) for life in self._lives]
        lives = lives or [Span(self._info.started, self._info.started)]
        which = self._info.run_id, self._info.graph
        return Timeline(*which, self._status, tuple(lives), worked(top))

    # The lines, one after another.

    def _take(self, line: Line, data: Json) -> None:
        if line.kind == "RunForked":
            self._forked(line, data)
            return
        if (line.kind in ("RunStarted", "RunResumed") and not line.path) or not self._living:
            self._begin_life(line.at)
        self._lives[-1] = self._lives[-1][0], line.at
        if line.kind == "RunEnded":
            self._ended(line, data)
            return
        if line.kind == "RunResumed":
            return
        self._name(line, data)
        match line.kind:
            case "RunStarted":
                self._bodies.pop(line.path, None)
                self._ends.pop(line.path, None)
                self._pieces.enter(line.path, line.at)
            case "StepStarted":
                self._stepped(line)
            case "Returned":
                self._body_done(line)
            case "SourceStarted":
                self._begin_source(line, data)
            case "SourceEnded":
                self._end_source(line, data)
            case "ItemEnded":
                self._item(line, data)
            case "ChoiceStarted":
                offered = " | ".join(name or "the end" for name in data["offered"])
                self._pieces.begin("choice", line, CHOICE, offered)
            case "ChoiceMade":
                made = self._pieces.end("choice", line, CHOICE)
                made.name = data["chosen"] or "the end"
                made.usage += usage_of(data)
            case "FillStarted":
                self._pieces.begin("fill", line, FILL, data["target"])
            case "FillEnded":
                self._filled(line, data)
            case "LMUsed":
                self._used(line, data)
            case _:
                pass
        if line.kind in _MOVES or line.path not in self._since:
            self._since[line.path] = max(self._since.get(line.path, line.at), line.at)

    def _name(self, line: Line, data: Json) -> None:
        """Note of which class the node is that a line is about, and that it is worked on."""
        said: Any = data.get("node", data.get("target"))
        if line.kind in ("ChoiceStarted", "ChoiceMade"):
            said = data.get("chosen")  # `node` is the one before
        strong = line.kind in _STRONG
        if isinstance(said, dict):
            said = cast(Json, said).get("type")
        piece = self._pieces.node(line.path, line.step)
        if isinstance(said, str) and said and (strong or not piece.name):
            piece.name = said
        if line.kind in ("RunStarted", "StepStarted", "Returned", "ChoiceStarted", "FillStarted"):
            piece.touch(self._pieces.life, line.at)

    def _stepped(self, line: Line) -> None:
        """A node is whole, and its body is called."""
        self._body_done(line)
        node = self._pieces.node(line.path, line.step)
        node.whole = True
        for key in [k for k in self._pieces.open.get(line.path, ()) if k[1] == line.step]:
            # Nobody needs it for this node any more; somebody elsewhere may.
            self._adrift[key] = self._pieces.open[line.path].pop(key)
            self._pieces.close(key, self._adrift[key], line.at, "cancelled")
        self._call_body(line.path, line.step, line.at)

    def _call_body(self, path: str, step: int, start: float | None) -> None:
        node = self._pieces.node(path, step)
        known = self._shape.class_at(path, node.name)
        if known is None or not known.get("written"):
            return
        piece = self._pieces.piece("body", path, step, BODY)
        piece.name, piece.outcome = node.name, "running"
        self._bodies[path] = _Body(piece, start)

    def _body_done(self, line: Line, outcome: WorkOutcome = "done", error: str = "") -> None:
        body = self._bodies.pop(line.path, None)
        if body is not None:
            start = self._since.get(line.path, line.at) if body.start is None else body.start
            body.piece.spans.append((self._pieces.life, min(start, line.at), line.at))
            body.piece.outcome, body.piece.error = outcome, error

    def _begin_source(self, line: Line, data: Json) -> None:
        name = f"{data['field']}{data.get('route', '')}"
        self._pieces.begin(cast(WorkKind, data["source"]), line, name, data["by"])
        key = line.path, line.step, name
        self._since[self._pieces.at[key].place] = line.at

    def _end_source(self, line: Line, data: Json) -> None:
        key = line.path, line.step, f"{data['field']}{data.get('route', '')}"
        if key in self._adrift:
            piece = self._pieces.at[key]
            piece.spans.pop()
            self._pieces.open.setdefault(line.path, {})[key] = self._adrift.pop(key)
        if key not in self._pieces.open.get(line.path, ()):
            return  # it was given, and nobody was at work
        error: Json | None = data.get("error")
        piece = self._pieces.end(cast(WorkKind, data["source"]), line, key[2])
        if error is not None:
            waits = error.get("type") == "Waiting"
            piece.outcome = "waiting" if waits else "failed"
            piece.error = "" if waits else error_said(error)

    def _item(self, line: Line, data: Json) -> None:
        key = line.path, line.step, data["field"]
        piece = self._pieces.at.get(key)
        path = f"{address(line.path, line.step, data['node'])}.{data['field']}[{data['index']}]"
        if path in self._pieces.items:
            self._pieces.items[path].touch(self._pieces.life, line.at)
            self._pieces.items[path].outcome = "done"
        elif piece is not None:
            piece.marks.append(line.at)

    def _filled(self, line: Line, data: Json) -> None:
        filled = self._pieces.end("fill", line, FILL)
        filled.usage += usage_of(data)
        choice = self._pieces.at.get((line.path, line.step, CHOICE))
        _, start, end = filled.spans[-1]
        seconds = float(data["seconds"])
        if choice is not None and start == end == choice.spans[-1][2] and seconds > 0.0:
            choice.usage += filled.usage
            choice.note = "and filled in the same call"
            self._pieces.drop((line.path, line.step, FILL))
        elif seconds == 0.0 and filled.usage == Usage():
            self._pieces.drop((line.path, line.step, FILL))  # there was nothing to ask for

    def _used(self, line: Line, data: Json) -> None:
        """What was used by a body or a dependency, or by a call that failed."""
        by = asker_said(data)
        body = self._bodies.get(line.path)
        if body is not None and by == f"{body.piece.name}.__call__":
            body.piece.usage += usage_of(data)
            return
        for key in self._pieces.open.get(line.path, ()):
            piece = self._pieces.at[key]
            mine = key[2] in (CHOICE, FILL) if " " in by else by.endswith(f".{key[2]}")
            if key[1] == line.step and mine:
                piece.usage += usage_of(data)
                return

    def _ended(self, line: Line, data: Json) -> None:
        """The run, or a graph inside it, is over for now."""
        outcome = cast(WorkOutcome, "done" if data["outcome"] == "ended" else data["outcome"])
        error = error_said(data["error"]) if outcome == "failed" and "error" in data else ""
        self._ends[line.path] = outcome, error
        self._over.add(line.path)
        body = self._bodies.get(line.path)
        self._body_done(line, outcome, error)
        if body is not None and outcome != "done":  # it is called again when the run goes on
            self._bodies[line.path] = _Body(body.piece, None)
        for key, start in self._pieces.open.pop(line.path, {}).items():
            # What the run itself was at is what failed; the rest it has let go of.
            failed = outcome == "failed" and key[2] in (CHOICE, FILL)
            self._pieces.close(key, start, line.at, "failed" if failed else "cancelled")
            self._pieces.at[key].error = error if failed else ""
        if line.path in self._pieces.items:
            item = self._pieces.items[line.path]
            item.touch(self._pieces.life, line.at)
            item.outcome, item.error = outcome, error
        if not line.path:
            self._end_life("cancelled", None)

    def _forked(self, line: Line, data: Json) -> None:
        """What was before is the other run's, which this one goes on from."""
        if self._living:
            at = self._lives[-1][1]
            self._body_done(line._replace(at=at))
            self._end_life("cancelled", None)
        node = self._pieces.node(line.path, line.step)
        node.name, node.whole = data["node"]["type"], True
        self._bodies.clear()
        self._call_body(line.path, line.step, None)

    # Lives.

    def _begin_life(self, at: float) -> None:
        if self._living:
            self._end_life("interrupted", None)
        self._living = True
        self._lives.append((at, at))
        self._pieces.life += 1
        self._since, self._over = {"": at}, set()

    def _end_life(self, outcome: WorkOutcome, at: float | None) -> None:
        start, end = self._lives[-1]
        if at is not None:
            end = max(at, end)
        self._lives[-1] = start, end
        for path, body in self._bodies.items():
            if path in self._over or (body.start is None and path not in self._since):
                continue
            begun = self._since[path] if body.start is None else body.start
            body.piece.spans.append((self._pieces.life, min(begun, end), end))
            body.piece.outcome, body.start = outcome, None
        for each in self._pieces.open.values():
            for key, begun in each.items():
                self._pieces.close(key, begun, end, outcome)
        for path in self._since.keys() - self._over:
            self._ends[path] = outcome, ""
        self._pieces.open, self._adrift, self._since, self._living = {}, {}, {}, False
