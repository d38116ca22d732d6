"""`--metric MODULE:NAME` and `--evaluator MODULE:CLASS`: what scores answers, loaded from a module
and checked before anything is paid for."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bae.cli.exits import Misuse, refused
from bae.exceptions import BaeError

if TYPE_CHECKING:
    from bae.graph import Graph


def case_metric(reference: str | None, graph: Graph[Any, Any]) -> tuple[Any, Mapping[Any, Any]]:
    """The metrics of `bae eval`: a function of a case and the result of its run, or None, and
    functions of an expected and a given node by their class."""
    from bae.evals.evaluation import check_metrics

    if reference is None:
        return None, {}
    found = _load_object(reference, "--metric")
    by_node: Mapping[Any, Any] = {}
    if isinstance(found, Mapping):
        found, by_node = None, cast("Mapping[Any, Any]", found)
    with _refusing(reference):
        check_metrics(graph, found, by_node)
    return found, by_node


def training_metric(reference: str | None, graph: Graph[Any, Any]) -> Any:
    """The metric of `bae optimize`: a function of an example and a prediction, as DSPy has them,
    or functions of an expected and a given node by their class. None if none is named."""
    from bae.evals.case_types import every_node
    from bae.evals.evaluation import check_node_metrics
    from bae.optimizer import metrics_for

    if reference is None:
        return None
    found = _load_object(reference, "--metric")
    with _refusing(reference):
        if found is None:
            raise TypeError("it is None")
        if isinstance(found, Mapping):
            found = cast("Mapping[Any, Any]", found)
            check_node_metrics(graph, found)
        for cls in every_node(graph):
            metrics_for(cls, "fill", found)
    return found


def evaluator_classes(named: Sequence[str], data: str, own_metric: bool) -> list[type[Any]]:
    """The classes of `--evaluator`, for the dataset in a file that names them."""
    from bae.evals.cases import DATASETS

    if own_metric or Path(data).suffix.lower() not in DATASETS:
        why = "--metric scores the cases" if own_metric else f"{data} is none"
        raise refused(
            f"--evaluator is for a dataset of pydantic-evals, and {why}", fix="leave one out"
        )
    found = {each: _load_object(each, "--evaluator") for each in named}
    for reference, cls in found.items():
        if not isinstance(cls, type):
            raise refused(
                f"--evaluator {reference} is no class",
                fix="name a class of evaluators, which the dataset names too",
            )
    return [*found.values()]


@contextmanager
def _refusing(reference: str) -> Generator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise refused(
            f"--metric {reference}: {error}",
            fix="name a function, or a mapping of node classes to functions of two nodes",
            cause=error,
        ) from error


def _load_object(reference: str, option: str) -> Any:
    """The object of a name in a module or a file, as `scoring.py:exact`."""
    from bae.cli.loading import load_module

    name = reference.rpartition(":")[2]
    if ":" not in reference or not name.isidentifier():
        raise Misuse(
            f"{option} {reference} names nothing in a module",
            code="bae-command-refused",
            fix=f"write a file or a module, a colon and a name: {option} scoring.py:exact",
        )
    try:
        module, where, name = load_module(reference)
    except BaeError as error:
        error.message = f"{option} {reference}: {error.message}"
        raise
    if hasattr(module, name):
        return getattr(module, name)
    own = [
        each
        for each, value in vars(module).items()
        if not each.startswith("_")
        and (isinstance(value, Mapping) or getattr(value, "__module__", None) == module.__name__)
    ]
    raise refused(
        f"{option} {reference}: {where} has no {name}",
        fix=f"it has {', '.join(own)}" if own else f"write it into {where}",
    )
