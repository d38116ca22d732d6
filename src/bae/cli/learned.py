"""`--optimized DIR`: LMs with the learned prompts of a directory, for runs and evaluations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bae.cli.exits import Misuse, refusal
from bae.cli.lm import check_lm, make_lm
from bae.cli.printing import note
from bae.lm import WithPrompts
from bae.lm.registry import find_default_name

if TYPE_CHECKING:
    from bae.evals.case_runs import Contending
    from bae.exceptions import ArtifactError
    from bae.graph import Graph
    from bae.lm import LM
    from bae.node import Node
    from bae.optimizer.artifacts import Artifact

Artifacts = dict["type[Node]", "Artifact"]
"""Learned prompts by the class of the node."""


def artifacts_in(graph: Graph[Any, Any], directory: str) -> Artifacts:
    """The artifacts of a directory for the nodes of a graph. Raises if there are none, or if some
    no longer fit their nodes."""
    from bae.optimizer.artifacts import load_artifacts, misfits_error

    misfits: dict[type[Node], ArtifactError] = {}
    artifacts = load_artifacts(graph, directory, misfits=misfits)
    if misfits:
        raise misfits_error(directory, tuple(misfits.values()))
    if not artifacts:
        raise refusal(
            f"{directory} has no artifact for a node of the graph {graph.name}",
            fix="name the directory that `bae optimize -o DIR` has written for this graph",
        )
    return artifacts


def with_prompts(lm: LM, artifacts: Artifacts) -> LM:
    """An LM with learned prompts."""
    return WithPrompts(lm, {cls: artifact.prompts() for cls, artifact in artifacts.items()})


def lm_with_learned(
    graph: Graph[Any, Any], lm: LM | str | None, directory: str | None, *, quiet: bool = False
) -> LM | str | None:
    """The LM of a run. If a directory is named, it uses the learned prompts there, and a note lists
    them."""
    if directory is None:
        return lm
    artifacts = artifacts_in(graph, directory)
    if not quiet:
        parts = [f"{cls.__name__} ({_parts(each)})" for cls, each in artifacts.items()]
        note(f"learned prompts from {directory_label(directory)}: {', '.join(parts)}")
    if lm is None or isinstance(lm, str):
        lm = make_lm(graph, lm, quiet=quiet)
    return with_prompts(lm, artifacts)


def check_optimized(graph: Graph[Any, Any], directory: str | None) -> None:
    """Refuse an unusable directory before the user types or pays for anything."""
    if directory is not None:
        artifacts_in(graph, directory)


def contenders(
    graph: Graph[Any, Any], lms: Sequence[str], directories: Sequence[str], *, quiet: bool = False
) -> dict[str, Contending]:
    """The LMs of an evaluation by their labels in tables: `local`, and `local + learned/`. Without
    names, the default LM. A scripted LM starts from its beginning for each run."""
    _refuse_twice("--lm", lms, str.strip)
    _refuse_twice("--optimized", directories, os.path.realpath)
    for each in lms or [None]:
        check_lm(graph, each, begins=True)
    learned = {
        directory_label(directory): artifacts_in(graph, directory) for directory in directories
    }
    lms_by_label: dict[str, Contending] = {}
    for named in lms or [None]:
        name = named or (find_default_name().name if graph.needs_lm else "no LM")
        again = name.strip().startswith("scripted:")
        made = make_lm(graph, named, quiet=quiet or again)
        lms_by_label[name] = name if again else made
        for directory, artifacts in learned.items():
            fresh = partial(_with_learned, graph, named, artifacts)
            lms_by_label[f"{name} + {directory}"] = (
                fresh if again else with_prompts(made, artifacts)
            )
    return lms_by_label


def directory_label(directory: str) -> str:
    """A directory as tables show it: with a final slash."""
    return directory.rstrip("/" + os.sep) + "/" if directory.strip("/" + os.sep) else directory


def _parts(artifact: Artifact) -> str:
    return ", ".join(part for part in ("fill", "choice") if getattr(artifact, part)) or "nothing"


def _with_learned(graph: Graph[Any, Any], named: str | None, artifacts: Artifacts) -> LM:
    return with_prompts(make_lm(graph, named, quiet=True), artifacts)


def _refuse_twice(option: str, given: Sequence[str], meant: Callable[[str], str]) -> None:
    """Refuse a value that is given twice, under whatever names."""
    names: dict[str, str] = {}
    for each in given:
        same = names.get(meant(each))
        if same is not None:
            also = "" if same == each else f", once as {same}"
            raise Misuse(
                f"{option} {each} is there twice{also}",
                code="bae-command-refused",
                fix="name each once",
            )
        names[meant(each)] = each
