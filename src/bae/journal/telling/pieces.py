"""A `Work` while it is found out about: who was at it in which life of the run, and what is inside
it. `at_work.py` finds it out; `worked` says what it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bae.journal.store import Line
from bae.journal.telling.timeline import Span, Work, WorkKind, WorkOutcome
from bae.place import ANY_STEP, Place
from bae.usage import Usage

Spot = tuple[str, int]
"""A path and a step."""
Key = tuple[str, int, str]
"""A path, a step and what is done there: one of these three, or a field with its route."""

CHOICE: Final = "<choice>"
FILL: Final = "<fill>"
BODY: Final = "<body>"


@dataclass(slots=True)
class Piece:
    """One piece of work. The spans have the number of their life first."""

    kind: WorkKind
    place: str
    name: str = ""
    spans: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    outcome: WorkOutcome = "running"
    error: str = ""
    note: str = ""
    marks: list[float] = field(default_factory=list[float])
    usage: Usage = Usage()  # noqa: RUF009  it cannot be changed
    inside: list[Piece] = field(default_factory=list["Piece"])
    whole: bool = False
    waits_until: float | None = None
    """For a question that is open: the time at which it is looked at."""

    def touch(self, life: int, at: float) -> None:
        """Be at work in a life, at a time."""
        for index, (each, start, end) in enumerate(self.spans):
            if each == life:
                self.spans[index] = life, min(start, at), max(end, at)
                return
        self.spans.append((life, at, at))


class Pieces:
    """The pieces of a run by place, and which of them are open. `life` is the number of the one
    that the run is in."""

    def __init__(self) -> None:
        self.life = 0
        self.at: dict[Key, Piece] = {}
        self.nodes: dict[Spot, Piece] = {}
        self.items: dict[str, Piece] = {}
        """Those of maps for which graphs ran, by path."""
        self.open: dict[str, dict[Key, float]] = {}
        """When work began that has not ended, by path."""

    def begin(self, kind: WorkKind, line: Line, what: str, name: str) -> None:
        """Work begins with a line."""
        key = line.path, line.step, what
        piece = self.piece(kind, *key)
        began = self.open.setdefault(line.path, {}).pop(key, None)
        if began is not None:  # a graph that is tried again has let go of it
            self.close(key, began, line.at, "cancelled")
        piece.name, piece.error = name, ""
        self.open[line.path][key] = line.at

    def end(self, kind: WorkKind, line: Line, what: str) -> Piece:
        """Work is done with a line."""
        key = line.path, line.step, what
        start = self.open.get(line.path, {}).pop(key, line.at)
        self.piece(kind, *key)
        self.close(key, start, line.at, "done")
        return self.at[key]

    def close(self, key: Key, start: float, end: float, outcome: WorkOutcome) -> None:
        """Nobody is at work any more."""
        piece = self.at[key]
        piece.spans.append((self.life, min(start, end), end))
        piece.outcome = outcome

    def drop(self, key: Key) -> None:
        """Forget of work that was none."""
        dropped = self.at.pop(key)
        node = self.node(*key[:2])
        node.inside = [piece for piece in node.inside if piece is not dropped]

    def piece(self, kind: WorkKind, path: str, step: int, what: str) -> Piece:
        """What is done at a step, in its node; it is made where there is none yet."""
        key = path, step, what
        if key not in self.at:
            node = self.node(path, step)
            self.at[key] = made = Piece(kind, f"{address(path, step, node.name)}.{what}")
            node.inside.append(made)
        return self.at[key]

    def node(self, path: str, step: int) -> Piece:
        """The node at a step; it is made where there is none yet."""
        if (path, step) not in self.nodes:
            self.nodes[path, step] = Piece("node", "")
        return self.nodes[path, step]

    def enter(self, path: str, at: float) -> None:
        """A graph begins: for an item of a map, that is work of its own."""
        place = Place.parse(path)
        if place is not None and place.item is not None and path not in self.items:
            around = self._around(path)
            if around is not None:
                item = self.items[path] = Piece("item", path, f"[{place.item}]")
                around.inside.append(item)
        if path in self.items:
            self.items[path].touch(self.life, at)

    def wait_until(self, now: float) -> None:
        """People are still waited for who have not answered."""
        for piece in self.at.values():
            if piece.kind == "gate" and piece.outcome == "waiting" and piece.spans:
                piece.waits_until = now

    def settled(self, ends: Mapping[str, tuple[WorkOutcome, str]]) -> list[Piece]:
        """The nodes of the run itself, everything else put in its place. `ends` says how each
        graph came out."""
        top: list[Piece] = []
        for path, step in sorted(self.nodes, key=lambda spot: spot[1]):
            node = self.nodes[path, step]
            before = self.nodes.get((path, step - 1))
            if not node.name:
                # A choice that came to no node: it belongs to the one that the run stands at.
                if before is not None:
                    before.inside.extend(node.inside)
                    _place_in(before, node.inside)
                continue
            node.place = address(path, step, node.name)
            _place_in(node, node.inside)
            bodies = [piece for piece in node.inside if piece.kind == "body"]
            if node.whole:
                node.outcome = bodies[-1].outcome if bodies else "done"
            else:
                node.outcome, node.error = ends.get(path, ("interrupted", ""))
            around = self.items.get(path) or self._around(path)
            (top if around is None else around.inside).append(node)
        return top

    def _around(self, path: str) -> Piece | None:
        """The source that the graph at a path runs for; None for the run itself."""
        last = Place.parse(path)
        if last is None or last.step == ANY_STEP:
            return None
        kind: WorkKind = "dep" if last.item is None else "map"
        piece = self.piece(kind, last.path, last.step, f"{last.field}{last.parameter}")
        piece.name = piece.name or last.field
        return piece


def worked(pieces: Sequence[Piece]) -> tuple[Work, ...]:
    """What pieces come to, in the order they began; at the same time, as the lines have them."""
    made = [_work(piece) for piece in pieces]
    return tuple(sorted((each for each in made if each is not None), key=lambda each: each.start))


def _work(piece: Piece) -> Work | None:
    """What is known of a piece in the end; None where nobody has been at it."""
    inside = worked(piece.inside)
    spans = _spans(piece)
    if not spans:
        return None
    return Work(
        piece.kind,
        piece.place,
        piece.name,
        spans,
        piece.outcome,
        piece.error,
        piece.note,
        tuple(piece.marks),
        piece.usage,
        inside,
    )


def _spans(piece: Piece) -> tuple[Span, ...]:
    """When somebody was at it: at least whenever somebody was at what is inside it."""
    if piece.inside:
        hull: dict[int, tuple[float, float]] = {}
        for each in [piece, *piece.inside]:
            for life, start, end in each.spans:
                known = hull.get(life, (start, end))
                hull[life] = min(known[0], start), max(known[1], end)
        piece.spans = [(life, *hull[life]) for life in sorted(hull)]
    if piece.kind == "gate" and piece.spans:
        # Whether a process is there or not: the person is waited for all the time.
        end = piece.spans[-1][2]
        return (Span(piece.spans[0][1], end if piece.waits_until is None else piece.waits_until),)
    return tuple(Span(start, end) for _, start, end in piece.spans)


def _place_in(node: Piece, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if piece.kind in ("choice", "fill", "body"):
            piece.place = node.place


def address(path: str, step: int, node: str) -> str:
    """How the place of a node is written, in full."""
    return f"{path}/{step}:{node}" if path else f"{step}:{node}"
