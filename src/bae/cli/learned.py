"""The option `--optimized DIR`: LMs with the learned prompts in a directory, for runs and
evaluations."""

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
"""Learned prompts by node class."""


def artifacts_in(graph: Graph[Any, Any], directory: str) -> Artifacts:
    """Read the learned prompts in a directory for the nodes of a graph. Raises if there are none,
    or if a prompt no longer fits its node."""
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
    """Return an LM that uses learned prompts."""
    return WithPrompts(lm, {cls: artifact.prompts() for cls, artifact in artifacts.items()})


def lm_with_learned(
    graph: Graph[Any, Any], lm: LM | str | None, directory: str | None, *, quiet: bool = False
) -> LM | str | None:
    """Return the LM for a run. If there is a `directory`, the LM uses the learned prompts in the
    directory, and a note lists the prompts."""
    if directory is None:
        return lm
    artifacts = artifacts_in(graph, directory)
    if not quiet:
        parts = [f"{cls.__name__} ({_list_parts(artifact)})" for cls, artifact in artifacts.items()]
        note(f"learned prompts from {directory_label(directory)}: {', '.join(parts)}")
    if lm is None or isinstance(lm, str):
        lm = make_lm(graph, lm, quiet=quiet)
    return with_prompts(lm, artifacts)


def check_optimized(graph: Graph[Any, Any], directory: str | None) -> None:
    """Refuse a directory without usable prompts. Call it before the user types input or pays for an
    LM call."""
    if directory is not None:
        artifacts_in(graph, directory)


def contenders(
    graph: Graph[Any, Any], lms: Sequence[str], directories: Sequence[str], *, quiet: bool = False
) -> dict[str, Contending]:
    """Return the LMs of an evaluation by their labels in tables, such as `local + learned/`.

    There is an entry for each LM without learned prompts, and one for each LM with the prompts of
    each directory. If `lms` is empty, the default LM is the only LM. A scripted LM starts with its
    first answer in each run.
    """
    _refuse_duplicates("--lm", lms, str.strip)
    _refuse_duplicates("--optimized", directories, os.path.realpath)
    for lm_name in lms or [None]:
        check_lm(graph, lm_name, begins=True)
    learned = {
        directory_label(directory): artifacts_in(graph, directory) for directory in directories
    }
    lms_by_label: dict[str, Contending] = {}
    for spec in lms or [None]:
        name = spec or (find_default_name().name if graph.needs_lm else "no LM")
        is_scripted = name.strip().startswith("scripted:")
        lm = make_lm(graph, spec, quiet=quiet or is_scripted)
        lms_by_label[name] = name if is_scripted else lm
        for directory, artifacts in learned.items():
            make_fresh = partial(_make_lm_with, graph, spec, artifacts)
            lms_by_label[f"{name} + {directory}"] = (
                make_fresh if is_scripted else with_prompts(lm, artifacts)
            )
    return lms_by_label


def directory_label(directory: str) -> str:
    """Return a directory with a final slash, as tables show it."""
    return directory.rstrip("/" + os.sep) + "/" if directory.strip("/" + os.sep) else directory


def _list_parts(artifact: Artifact) -> str:
    return ", ".join(part for part in ("fill", "choice") if getattr(artifact, part)) or "nothing"


def _make_lm_with(graph: Graph[Any, Any], named: str | None, artifacts: Artifacts) -> LM:
    return with_prompts(make_lm(graph, named, quiet=True), artifacts)


def _refuse_duplicates(option: str, values: Sequence[str], normalize: Callable[[str], str]) -> None:
    """Refuse an option with two equal values. Two values are equal if `normalize` makes them
    equal."""
    names: dict[str, str] = {}
    for value in values:
        earlier = names.get(normalize(value))
        if earlier is not None:
            other_name = "" if earlier == value else f", once as {earlier}"
            raise Misuse(
                f"{option} {value} is there twice{other_name}",
                code="bae-command-refused",
                fix="name each once",
            )
        names[normalize(value)] = value
