"""The critical path of a stored run: the work that decided how long the run took.

The path is computed from the declared inputs of the classes. All other work has slack.
"""

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
"""How many levels of subgraphs are followed."""
_AT_ONCE: Final = 0.002
"""Seconds by which a piece may seem to begin before its input ended. The clock is read once for the
end and again for the begin."""


@dataclass(frozen=True, slots=True)
class CriticalPart:
    """A piece of work on the critical path."""

    kind: str
    """The kind of the piece's entry in the timeline."""
    place: str
    """The place of the piece's entry in the timeline."""
    name: str
    """A name for people, such as a function or a node class."""
    spans: tuple[Span, ...]
    """The times when the run waited for this piece, after the pieces that it needs had ended."""
    waits: bool = False
    """Whether the piece is a question to a person."""

    @property
    def seconds(self) -> float:
        """How long the run waited for this piece."""
        return sum(span.seconds for span in self.spans)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The critical path of a run."""

    parts: tuple[CriticalPart, ...]
    """The pieces of work on the path, in order. A subgraph is replaced by its own pieces."""
    slack: dict[tuple[str, str], float]
    """How many seconds longer each piece could have taken without delaying the run. The key is the
    kind and place of the piece's entry in the timeline."""
    is_exact: bool
    """Whether the inputs of all pieces are known. If not, each piece is assumed to need the piece
    that ended last before it. Runs of old versions did not store the inputs."""

    @property
    def seconds(self) -> float:
        """How long the run waited for work on the path. Waiting for people is not included."""
        return sum(part.seconds for part in self.parts if not part.waits)

    @property
    def longest(self) -> list[CriticalPart]:
        """The parts by duration, longest first. Questions to people are left out."""
        work_parts = [part for part in self.parts if not part.waits]
        return sorted(work_parts, key=lambda part: -part.seconds)


def critical_path(stored: StoredRun, *, now: float | None = None) -> CriticalPath:
    """Find the critical path of a run. Work in progress lasts until `now`, by default the current
    time. Raises `bae-journal-damaged` for a damaged line."""
    history, at = read_history(stored), time() if now is None else now
    if history.alive:
        status = stored.info.standing(at)
        history.stop(max(at, history.last) if status == "running" else None)
    finder = _Finder(history)
    parts = finder.follow(history.run) if "" in history.graphs else []
    return CriticalPath(tuple(parts), finder.slack, bool(history.shape.graphs))


@dataclass(slots=True, eq=False)
class _Piece:
    """A piece of work, and the pieces that it needs."""

    kind: str
    place: str
    name: str
    spans: tuple[Span, ...]
    work: Work
    waits: bool = False
    needs: list[_Piece] = field(default_factory=list["_Piece"])
    latest: float = 0.0
    """The latest time at which the piece could have ended without delaying the run."""

    @property
    def start(self) -> float:
        return self.spans[0].start

    @property
    def end(self) -> float:
        return self.spans[-1].end


class _Finder:
    """Finds the critical path through the graphs of one run."""

    def __init__(self, history: StoredHistory) -> None:
        self._history = history
        self._shape = history.shape
        self.slack: dict[tuple[str, str], float] = {}
        self._depth = 0

    def follow(self, graph: GraphRun, until: float | None = None) -> list[CriticalPart]:
        """Return the path through a graph. Slack is measured against `until`, by default the end of
        the last piece."""
        pieces = self._pieces(graph)
        if not pieces:
            return []
        last = max(pieces, key=lambda piece: piece.end)
        self._note_slack(pieces, last.end if until is None else until)
        path: list[CriticalPart] = []
        piece: _Piece | None = last
        visited: set[_Piece] = set()
        while piece is not None and piece not in visited:
            visited.add(piece)
            before = max(piece.needs, key=lambda need: need.end, default=None)
            since = piece.start if before is None else max(piece.start, before.end)
            spans = tuple(
                Span(max(span.start, since), span.end) for span in piece.spans if span.end > since
            )
            path[:0] = self._expand(piece, spans)
            piece = before
        return path

    def _expand(self, piece: _Piece, spans: tuple[Span, ...]) -> list[CriticalPart]:
        """Return the path through the subgraph that ran for a piece. If there is no subgraph, or
        subgraphs are nested too deeply, return the piece itself."""
        inner = self._find_subgraph(piece)
        parts: list[CriticalPart] = []
        if inner is not None and self._depth < _DEEPEST:
            self._depth += 1
            parts = self.follow(inner, piece.latest)
            self._depth -= 1
        part = CriticalPart(piece.kind, piece.place, piece.name, spans, piece.waits)
        return parts or [part]

    def _find_subgraph(self, piece: _Piece) -> GraphRun | None:
        """Return the subgraph that ran for a piece. If several ran, return the subgraph that ended
        last."""
        if not isinstance(piece.work, Source):
            return None
        graphs = [graph for graph in piece.work.graphs if graph.steps]
        return max(graphs, key=lambda graph: graph.ended or 0.0, default=None)

    def _note_slack(self, pieces: list[_Piece], until: float) -> None:
        """Compute the slack of each piece, from the last piece back to the first."""
        for piece in pieces:
            piece.latest = max(until, piece.end)
        for piece in sorted(pieces, key=lambda piece: -piece.start):
            latest_start = piece.latest - (piece.end - piece.start)
            for need in piece.needs:
                need.latest = max(need.end, min(need.latest, latest_start))
        for piece in pieces:
            self.slack[piece.kind, piece.place] = piece.latest - piece.end

    # Pieces and their inputs.

    def _pieces(self, graph: GraphRun) -> list[_Piece]:
        """Return all pieces of a graph, each with the pieces that it needs."""
        pieces: list[_Piece] = []
        exits: list[_Piece] = []
        """The work of the current node that the next node waits for: the body or the choice. If
        the node has neither, its sources and its fill."""
        for step in graph.trace:
            entry, exits = exits, []
            sources = self._sources(step)
            fill = self._question("fill", step, step.fill)
            by_fill = [fill] if fill is not None else []
            for key, piece in sources.items():
                piece.needs = [*self._needs(step, key, piece, sources, by_fill), *entry]
            context = [
                source
                for key, source in sources.items()
                if not key[1] and not self._follows_fill(step, key, set())
            ]
            for question in by_fill:
                question.needs = [*context, *entry]
            field_pieces = [*(p for k, p in sources.items() if not k[1]), *by_fill] or entry
            body = self._body(step)
            choice = self._choice(step)
            for exit_piece in (body, choice):
                if exit_piece is not None:
                    exit_piece.needs = [*field_pieces, *entry]
                    exits.append(exit_piece)
            step_pieces = [*sources.values(), *by_fill, *exits]
            exits = exits or field_pieces
            pieces += step_pieces
        for piece in pieces:
            if not self._shape.graphs:
                piece.needs = _find_previous(piece, pieces)
            # A prefetched dependency did not wait for the work that led to its node.
            piece.needs = [*_find_awaited(piece.needs, piece.start)]
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
        """Return the pieces from which a value was computed. `key` is the field of the value, and
        the parameter if the value is an argument of the field's function."""
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
        field_shape = self._shape.field_at(place)
        if field_shape is not None and field_shape.get("over") and not key[1]:
            yield place._replace(field=field_shape["over"])

    def _follows_fill(
        self, step: Step, key: tuple[str, str], visited: set[tuple[str, str]]
    ) -> bool:
        """Return whether a field is computed from a field that the LM fills."""
        if step.fill is None or key in visited:
            return False
        visited.add(key)
        for place in self._arguments(step, key):
            other = place.field, place.parameter
            is_plain = place.field != key[0] and (place.field, "") not in step.sources
            if is_plain or self._follows_fill(step, other, visited):
                return True
        return False

    def _shared_piece(self, place: Place) -> _Piece | None:
        """Return the shared call that gave a place its value, as a piece. None if the value is not
        shared."""
        source = self._history.shared.get(self._history.shared_key(place))
        spans = () if source is None else _spans(source)
        if source is None or not spans:
            return None
        return _Piece(source.kind, str(source.place), source.by, spans, source)

    def _question(self, kind: str, step: Step, question: LMQuestion | None) -> _Piece | None:
        if question is None or step.filled_by is not question or not _spans(question):
            return None
        return _Piece(kind, str(step.place), step.name, _spans(question), question)

    def _choice(self, step: Step) -> _Piece | None:
        question = step.choice
        if question is None or not _spans(question):
            return None
        after = step.graph.steps.get(step.number + 1)
        leads = question.chosen not in (None, NoneType) and after is not None
        chosen = "the end" if question.chosen in (None, NoneType) else question.chosen.__name__
        place = after.place if leads and after is not None else step.place
        return _Piece("choice", str(place), chosen, _spans(question), question)

    def _body(self, step: Step) -> _Piece | None:
        if step.called is None or not _spans(step.called):
            return None
        name = f"{step.name}.__call__"
        return _Piece("body", str(step.place), name, _spans(step.called), step.called)


def _spans(work: Work) -> tuple[Span, ...]:
    return tuple(work.spans)


def _find_previous(piece: _Piece, pieces: Iterable[_Piece]) -> list[_Piece]:
    """Return the piece that ended last before `piece` began, in a list. It replaces the inputs of
    `piece`, which are not known."""
    earlier = [p for p in pieces if p is not piece and p.end <= piece.start + _AT_ONCE]
    return [max(earlier, key=lambda piece: piece.end)] if earlier else []


def _find_awaited(needs: Iterable[_Piece], start: float) -> Iterator[_Piece]:
    """Yield the needed pieces that had ended by `start`. A piece that ended later was not awaited,
    so its own inputs take its place."""
    visited: set[_Piece] = set()
    ahead = [*needs]
    while ahead:
        need = ahead.pop()
        if need in visited:
            continue
        visited.add(need)
        if need.end <= start + _AT_ONCE:
            yield need
        else:
            ahead += need.needs
