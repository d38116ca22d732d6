"""The critical path of a stored run: the pieces of work that decided how long the run took. It is
found from the declared inputs of the classes, with the slack of each other piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import time
from types import NoneType
from typing import Final

from bae.journal.decoder import StoredHistory, read_history
from bae.journal.stored_runs import StoredRun
from bae.place import Place
from bae.work import GraphRun, LMQuestion, Source, Span, Step, Work

_DEEPEST: Final = 50
"""How far graphs inside are followed."""
_AT_ONCE: Final = 0.002
"""By how many seconds a piece may begin before its input ended: clocks are read one after the
other."""


@dataclass(frozen=True, slots=True)
class CriticalPart:
    """A piece of work on the critical path. `kind` and `place` name its entry in the timeline.
    `spans` are the times when the run waited for nothing else."""

    kind: str
    place: str
    name: str
    spans: tuple[Span, ...]
    waits: bool = False
    """Whether it is a question to a person."""

    @property
    def seconds(self) -> float:
        """How long the run waited for it."""
        return sum(span.seconds for span in self.spans)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The critical path of a run.

    - `parts`: the pieces of work on the path, in order. A graph inside is replaced by its own
      pieces.
    - `slack`: by kind and place of an entry of the timeline, how many seconds longer the piece
      could have taken without delaying the run.
    - `is_exact`: whether the inputs of all pieces are known. They are not for a run of an old
      version; each piece is then assumed to need the piece that ended last before it.
    """

    parts: tuple[CriticalPart, ...]
    slack: dict[tuple[str, str], float]
    is_exact: bool

    @property
    def seconds(self) -> float:
        """How long the run waited for work on the path, without waiting for people."""
        return sum(part.seconds for part in self.parts if not part.waits)

    @property
    def longest(self) -> list[CriticalPart]:
        """The parts that took longest, without waiting for people."""
        own = [part for part in self.parts if not part.waits]
        return sorted(own, key=lambda part: -part.seconds)


def critical_path(stored: StoredRun, *, now: float | None = None) -> CriticalPath:
    """Find the critical path of a run. `now` is the current time: work of a run in progress lasts
    until then. Raises `bae-journal-damaged` for a damaged line."""
    history, at = read_history(stored), time() if now is None else now
    if history.alive:
        status = stored.info.standing(at)
        history.stop(max(at, history.last) if status == "running" else None)
    finder = _Finder(history)
    parts = finder.follow(history.run) if "" in history.graphs else []
    return CriticalPath(tuple(parts), finder.slack, bool(history.shape.graphs))


@dataclass(slots=True, eq=False)
class _Piece:
    """A piece of work that others may need, and the pieces that it needs."""

    kind: str
    place: str
    name: str
    spans: tuple[Span, ...]
    work: Work
    waits: bool = False
    needs: list[_Piece] = field(default_factory=list["_Piece"])
    latest: float = 0.0
    """When it must have ended at the latest."""

    @property
    def start(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        return self.spans[-1].end


class _Finder:
    """Finds the path through the graphs of one run."""

    def __init__(self, history: StoredHistory) -> None:
        self._history = history
        self._shape = history.shape
        self.slack: dict[tuple[str, str], float] = {}
        self._depth = 0

    def follow(self, graph: GraphRun, until: float | None = None) -> list[CriticalPart]:
        """The path through a graph. It must have ended by `until`, by default its own end."""
        pieces = self._pieces(graph)
        if not pieces:
            return []
        last = max(pieces, key=lambda piece: piece.end)
        self._note_slack(pieces, last.end if until is None else until)
        path: list[CriticalPart] = []
        piece: _Piece | None = last
        seen: set[_Piece] = set()
        while piece is not None and piece not in seen:
            seen.add(piece)
            before = max(piece.needs, key=lambda each: each.end, default=None)
            since = piece.start if before is None else max(piece.start, before.end)
            spans = tuple(
                Span(max(span.start, since), span.end) for span in piece.spans if span.end > since
            )
            path[:0] = self._part(piece, spans)
            piece = before
        return path

    def _part(self, piece: _Piece, spans: tuple[Span, ...]) -> list[CriticalPart]:
        """A piece on the path, with the path through the graph that ran for it."""
        inner = self._inner(piece)
        parts: list[CriticalPart] = []
        if inner is not None and self._depth < _DEEPEST:
            self._depth += 1
            parts = self.follow(inner, piece.latest)
            self._depth -= 1
        whole = CriticalPart(piece.kind, piece.place, piece.name, spans, piece.waits)
        return parts or [whole]

    def _inner(self, piece: _Piece) -> GraphRun | None:
        """The graph that ran for a piece; of several, the graph that ended last."""
        if not isinstance(piece.work, Source):
            return None
        graphs = [graph for graph in piece.work.graphs if graph.steps]
        return max(graphs, key=lambda each: each.ended or 0.0, default=None)

    def _note_slack(self, pieces: list[_Piece], until: float) -> None:
        """Note how much longer each piece could have taken, from the last piece back."""
        for piece in pieces:
            piece.latest = max(until, piece.end)
        for piece in sorted(pieces, key=lambda each: -each.start):
            begun = piece.latest - (piece.end - piece.start)
            for need in piece.needs:
                need.latest = max(need.end, min(need.latest, begun))
        for piece in pieces:
            self.slack[piece.kind, piece.place] = piece.latest - piece.end

    # Pieces and their inputs.

    def _pieces(self, graph: GraphRun) -> list[_Piece]:
        """All pieces of a graph, with the inputs of each."""
        pieces: list[_Piece] = []
        exits: list[_Piece] = []
        """The work that came before the node: its choice, or the body before it."""
        for step in graph.trace:
            entry, exits = exits, []
            sources = self._sources(step)
            fill = self._question("fill", step, step.fill)
            by_fill = [fill] if fill is not None else []
            for key, piece in sources.items():
                piece.needs = [*self._needs(step, key, piece, sources, by_fill), *entry]
            context = [
                each
                for key, each in sources.items()
                if not key[1] and not self._follows_fill(step, key, set())
            ]
            for each in by_fill:
                each.needs = [*context, *entry]
            whole = [*(p for k, p in sources.items() if not k[1]), *by_fill] or entry
            body = self._body(step)
            choice = self._choice(step)
            for each in (body, choice):
                if each is not None:
                    each.needs = [*whole, *entry]
                    exits.append(each)
            own = [*sources.values(), *by_fill, *exits]
            exits = exits or whole
            pieces += own
        for piece in pieces:
            if not self._shape.graphs:
                piece.needs = _before(piece, pieces)
            # A dependency of a node that was sure to come started before the node was reached.
            piece.needs = [*_done_before(piece.needs, piece.start)]
        return pieces

    def _sources(self, step: Step) -> dict[tuple[str, str], _Piece]:
        pieces: dict[tuple[str, str], _Piece] = {}
        for key, source in step.sources.items():
            spans = _spans(source)
            if source.origin is None and spans:
                name = source.by or source.place.field
                place, waits = str(source.place), source.gate is not None
                pieces[key] = _Piece(source.kind, place, name, spans, source, waits)
        return pieces

    def _needs(
        self,
        step: Step,
        key: tuple[str, str],
        piece: _Piece,
        sources: dict[tuple[str, str], _Piece],
        by_fill: list[_Piece],
    ) -> list[_Piece]:
        """The pieces from which the value of a field, or of a parameter behind it, was computed."""
        pieces: list[_Piece] = []
        for place in self._arguments(step, key):
            need = sources.get((place.field, place.parameter)) or self._shared_piece(place)
            if need is not None and need is not piece:
                pieces.append(need)
            elif place.field != key[0] and (place.field, "") not in step.sources:
                pieces += by_fill  # the LM fills the sibling field
        return pieces

    def _arguments(self, step: Step, key: tuple[str, str]) -> Iterator[Place]:
        place = step.place._replace(field=key[0], parameter=key[1])
        yield from self._shape.arguments(place).values()
        about = self._shape.field_at(place)
        if about is not None and about.get("over") and not key[1]:
            yield place._replace(field=about["over"])

    def _follows_fill(self, step: Step, key: tuple[str, str], seen: set[tuple[str, str]]) -> bool:
        """Whether a field is computed from a field that the LM fills."""
        if step.fill is None or key in seen:
            return False
        seen.add(key)
        for place in self._arguments(step, key):
            other = place.field, place.parameter
            is_plain = place.field != key[0] and (place.field, "") not in step.sources
            if is_plain or self._follows_fill(step, other, seen):
                return True
        return False

    def _shared_piece(self, place: Place) -> _Piece | None:
        """The call for another field whose value a place has."""
        source = self._history.shared.get(self._history.shared_key(place))
        spans = () if source is None else _spans(source)
        if source is None or not spans:
            return None
        return _Piece(source.kind, str(source.place), source.by, spans, source)

    def _question(self, kind: str, step: Step, asked: LMQuestion | None) -> _Piece | None:
        if asked is None or step.filled_by is not asked or not _spans(asked):
            return None
        return _Piece(kind, str(step.place), step.name, _spans(asked), asked)

    def _choice(self, step: Step) -> _Piece | None:
        asked = step.choice
        if asked is None or not _spans(asked):
            return None
        after = step.graph.steps.get(step.number + 1)
        leads = asked.chosen not in (None, NoneType) and after is not None
        chosen = "the end" if asked.chosen in (None, NoneType) else asked.chosen.__name__
        place = after.place if leads and after is not None else step.place
        return _Piece("choice", str(place), chosen, _spans(asked), asked)

    def _body(self, step: Step) -> _Piece | None:
        if step.called is None or not _spans(step.called):
            return None
        name = f"{step.name}.__call__"
        return _Piece("body", str(step.place), name, _spans(step.called), step.called)


def _spans(work: Work) -> tuple[Span, ...]:
    return tuple(work.spans)


def _before(piece: _Piece, pieces: Iterable[_Piece]) -> list[_Piece]:
    """The piece that ended last before another began, for pieces without known inputs."""
    done = [each for each in pieces if each is not piece and each.end <= piece.start + _AT_ONCE]
    return [max(done, key=lambda each: each.end)] if done else []


def _done_before(needs: Iterable[_Piece], start: float) -> Iterator[_Piece]:
    """The pieces that had ended when another began. A piece that had not was not awaited, but its
    own inputs may have been."""
    seen: set[_Piece] = set()
    ahead = [*needs]
    while ahead:
        each = ahead.pop()
        if each in seen:
            continue
        seen.add(each)
        if each.end <= start + _AT_ONCE:
            yield each
        else:
            ahead += each.needs
