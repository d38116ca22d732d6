"""What a picture of a graph shows: boxes with their fields by source, arrows by who chooses, and
the graphs inside. `reading.py` makes it of a graph; `svg.py`, `terminal.py`, `mermaid.py` and the
others draw it, and a program may read it as well."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

FieldSource = Literal["given", "recall", "dep", "gate", "map", "code", "lm"]
SOURCES: Final[tuple[FieldSource, ...]] = ("given", "recall", "dep", "gate", "map", "code", "lm")
"""In the order that boxes show them: what the LM fills comes last, as it does in a run."""
SAID: Final[dict[FieldSource, str]] = {
    "given": "given by who starts the run",
    "recall": "recalled from a node before",
    "dep": "what a function or a graph returns",
    "gate": "what a person answers",
    "map": "what a function or a graph returns for each item",
    "code": "given by the code of the node before",
    "lm": "filled by the LM",
}
ArrowKind = Literal["certain", "lm", "code"]
Ending = Literal["never", "may", "always"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A field as it is shown. `origin` says in words where its value comes from, where the source
    alone does not."""

    name: str
    type: str
    source: FieldSource
    origin: str = ""
    description: str = ""
    required: bool = True
    graphs: tuple[str, ...] = ()
    """The ids of the pictures of graphs that run for it."""

    @property
    def said(self) -> str:
        """Where its value comes from, as a whole phrase: "filled by the LM, or set by Review"."""
        if not self.origin:
            return SAID[self.source]
        if self.source == "recall":
            return f"recalled {self.origin}"
        between = ", " if self.source in ("given", "lm") else ": "
        return f"{SAID[self.source]}{between}{self.origin}"


@dataclass(frozen=True, slots=True)
class Box:
    """A node class. `ending` says whether a run may end at it, or always does; `chooser` how it is
    decided where it goes on."""

    id: str
    name: str
    start: bool
    ending: Ending
    chooser: ArrowKind
    written: bool
    fields: tuple[Shown, ...]
    module: str
    place: str
    """Where the class is written, as `app.py:12`; empty where nobody can tell."""
    doc: str
    lm: str
    """The LM that is pinned to the class."""
    apart: str
    """What tells the class from others of its name; empty where it is the only one."""

    @property
    def inner(self) -> bool:
        """Whether graphs run inside it."""
        return any(field.graphs for field in self.fields)


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge, between the ids of two boxes."""

    tail: str
    head: str
    kind: ArrowKind


@dataclass(frozen=True)
class Picture:
    """A graph. `inner` has the pictures of all graphs inside it, however deep, each once; `used_by`
    names the fields that an inner one runs for."""

    id: str
    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    used_by: tuple[str, ...] = ()
    inner: tuple[Picture, ...] = ()

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """The arrows by the places of their boxes."""
        at = {box.id: place for place, box in enumerate(self.boxes)}
        return [(at[arrow.tail], at[arrow.head]) for arrow in self.arrows]

    @cached_property
    def loops_back(self) -> frozenset[Arrow]:
        """The arrows to a box that comes earlier, or is the same, and leads to this one again."""
        onward: dict[int, list[int]] = {}
        for tail, head in self.edges:
            onward.setdefault(tail, []).append(head)

        def leads(start: int, goal: int) -> bool:
            seen, waiting = {start}, [start]
            while waiting:
                here = waiting.pop()
                if here == goal:
                    return True
                more = [each for each in onward.get(here, ()) if each not in seen]
                seen.update(more)
                waiting += more
            return False

        return frozenset(
            arrow
            for arrow, (tail, head) in zip(self.arrows, self.edges, strict=True)
            if head <= tail and leads(head, tail)
        )

    @property
    def all(self) -> tuple[Picture, ...]:
        """This picture and the inner ones."""
        return (self, *self.inner)
