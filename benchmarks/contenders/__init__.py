"""The contenders: one module each, named here, loaded on demand, described by a `Contender`.

A module holds the set-up of its library for every case and a `CONTENDER` that lists it. A case a
library cannot express is left `None`, with the reason under `notes`, which the report prints.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.work import Outcome

Run = Callable[[], Awaitable[Outcome]]
MapRun = Callable[[], Awaitable[list[int]]]
DataflowRun = Callable[[], Awaitable[tuple[int, int]]]
CrowdRun = Callable[[int], Awaitable[Outcome]]


@dataclass(frozen=True)
class Definition:
    """Node types that were just made, ready to be built into a graph once."""

    build: Callable[[], int]
    """Builds the graph and counts its nodes."""
    validate: Callable[[], None] | None = None
    """Checks the graph that was built, for those that check apart from building."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """The work as one library does it. Each factory sets up; the function it returns is timed."""

    name: str
    package: str | None
    chain: Callable[[], Run]
    choices: Callable[[], Run]
    crowd: Callable[[], CrowdRun]
    map_items: Callable[[list[int]], MapRun] | None = None
    dataflow: Callable[[], DataflowRun] | None = None
    define: Callable[[], Definition] | None = None
    import_statement: str | None = None
    notes: dict[str, str] = field(default_factory=dict)
    """Case -> what a reader should know about this contender there."""

    @property
    def version(self) -> str:
        """The installed version, or an empty string for the floor."""
        return importlib.metadata.version(self.package) if self.package else ""


FLOOR = "floor"
BAE = "bae"
MODULES = {
    FLOOR: "floor",
    BAE: "bae_graphs",
    "burr": "burr_apps",
    "pydantic-graph": "pydantic_graphs",
    "langgraph": "langgraph_graphs",
    "llamaindex": "llamaindex_workflows",
}


def load(key: str) -> Contender:
    """Import one contender; ImportError when its library is not installed."""
    contender: Contender = importlib.import_module(f"{__name__}.{MODULES[key]}").CONTENDER
    return contender
