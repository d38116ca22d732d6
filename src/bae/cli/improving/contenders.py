"""Who is evaluated: each LM that is named, and each taught by every directory that is named.
`eval.py` asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from bae.cli.exits import Misuse
from bae.cli.models import check_lm, made_lm

if TYPE_CHECKING:
    from bae.cli.improving.taught import Artefacts
    from bae.evals.case_runs import Contending
    from bae.graph import Graph
    from bae.lm import LM


def contenders(
    graph: Graph[Any, Any], lms: Sequence[str], directories: Sequence[str], *, quiet: bool = False
) -> dict[str, Contending]:
    """The LMs by the names that tables call them: `local`, and `local + learnt/`. Without any, the
    one of runs that are given none. A script is one that each run begins anew. Raises where one
    cannot be had."""
    from bae.cli.improving.taught import artefacts_in, shown

    _once("--lm", lms, str.strip)
    _once("--optimized", directories, os.path.realpath)
    for each in lms:
        check_lm(graph, each)
    if not lms:
        check_lm(graph, None, begins=True)
    learnt = {shown(each): artefacts_in(graph, each) for each in directories}
    found: dict[str, Contending] = {}
    for named in lms or [None]:
        name = named if named is not None else _name_of_default(graph)
        anew = name.strip().startswith("scripted:")
        found[name] = name if anew else _lm(graph, named, quiet=quiet)
        for directory, artefacts in learnt.items():
            one = partial(_taught, graph, named, artefacts)
            found[f"{name} + {directory}"] = one if anew else one()
    return found


def _taught(graph: Graph[Any, Any], named: str | None, artefacts: Artefacts) -> LM:
    from bae.cli.improving.taught import taught

    return taught(_lm(graph, named, quiet=True), artefacts)


def _lm(graph: Graph[Any, Any], named: str | None, *, quiet: bool) -> LM:
    from bae.lm.registry import LazyLM

    if named is None and not graph.needs_lm:
        return LazyLM("a case asks for one")
    return made_lm(graph, named, quiet=quiet)


def _name_of_default(graph: Graph[Any, Any]) -> str:
    from bae.lm.registry import default_name

    return default_name().name if graph.needs_lm else "no LM"


def _once(option: str, given: Sequence[str], meant: Callable[[str], str]) -> None:
    """Refuse what is there twice, by whatever names."""
    names: dict[str, str] = {}
    for each in given:
        same = names.get(meant(each))
        if same is not None:
            also = "" if same == each else f", once as {same}"
            raise Misuse(
                f"{option} {each} is there twice{also}",
                code="bae-command-refused",
                fix="name each once: a table of the same twice says nothing",
            )
        names[meant(each)] = each
