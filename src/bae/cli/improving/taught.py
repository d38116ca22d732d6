"""`--optimized DIR`: an LM that is taught by the artefacts in a directory. `run.py` and
`runs/resuming.py` run with it, `contenders.py` compares it with others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bae.cli.exits import refused

if TYPE_CHECKING:
    from bae.exceptions import ArtefactError
    from bae.graph import Graph
    from bae.lm import LM
    from bae.node import Node
    from bae.optimizer.artifacts import Artefact

Artefacts = dict["type[Node]", "Artefact"]
"""What was learnt, by the class of the node."""


def artefacts_in(graph: Graph[Any, Any], directory: str) -> Artefacts:
    """The artefacts of a directory for the nodes of a graph. Raises where there is none, or where
    some no longer fit their nodes, which it names."""
    from bae.optimizer.artifacts import all_misfits, artefacts_there

    misfits: dict[type[Node], ArtefactError] = {}
    found = artefacts_there(graph, directory, misfits)
    if misfits:
        raise all_misfits(directory, tuple(misfits.values()))
    if not found:
        raise refused(
            f"{directory} has no artefact for a node of the graph {graph.name}",
            fix="name the directory that `bae optimize -o DIR` has written for this graph",
        )
    return found


def taught(lm: LM, artefacts: Artefacts) -> LM:
    """An LM that asks with what was learnt."""
    from bae.lm import WithPrompts

    return WithPrompts(lm, {cls: artefact.prompts() for cls, artefact in artefacts.items()})


def lm_taught_by(
    graph: Graph[Any, Any], lm: LM | str | None, directory: str | None, *, quiet: bool = False
) -> LM | str | None:
    """The LM of a run, taught where a directory is named, which a note says then."""
    if directory is None:
        return lm
    from bae.cli.models import made_lm
    from bae.cli.printing import note

    artefacts = artefacts_in(graph, directory)
    if not quiet:
        note(f"taught by {shown(directory)}: {parts(artefacts)}")
    if lm is None and not graph.needs_lm:
        # All that is asked for has an LM pinned to it, which is taught through the run's.
        from bae.lm.registry import LazyLM

        lm = LazyLM(f"the LM of {graph.name} was asked")
    elif lm is None or isinstance(lm, str):
        lm = made_lm(graph, lm, quiet=quiet)
    return taught(lm, artefacts)


def check_optimized(graph: Graph[Any, Any], directory: str | None) -> None:
    """Refuse a directory that nobody can be taught by, before somebody types for nothing."""
    if directory is not None:
        artefacts_in(graph, directory)


def parts(artefacts: Artefacts) -> str:
    """What was learnt of which nodes, in a few words: `Outfit (fill), Mood (fill, choice)`."""
    return ", ".join(f"{cls.__name__} ({_parts(artefact)})" for cls, artefact in artefacts.items())


def shown(directory: str) -> str:
    """A directory as it is named in tables: with a slash at its end."""
    return directory.rstrip("/" + os.sep) + "/" if directory.strip("/" + os.sep) else directory


def _parts(artefact: Artefact) -> str:
    learnt: Iterable[tuple[str, Any]] = (("fill", artefact.fill), ("choice", artefact.choice))
    return ", ".join(name for name, part in learnt if part is not None) or "nothing"
