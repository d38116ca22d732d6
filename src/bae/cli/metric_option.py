"""`--metric MODULE:NAME` and `--evaluator`: what scores answers, found in a module, and checked
before anything is paid for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from bae.cli.exits import Misuse, refused
from bae.exceptions import BaeError

if TYPE_CHECKING:
    from types import ModuleType

    from bae.graph import Graph
    from bae.node import Node


def object_named(said: str, option: str, fits: Callable[[Any], bool]) -> Any:
    """What stands under a name in a module or a file, as `scoring.py:exact`. `option` is what it
    was given with; where there is no such name, those are offered that stand for what `fits`."""
    from bae.cli.loading import load_module

    if not said.rpartition(":")[2].replace(".", "").isidentifier() or ":" not in said:
        raise Misuse(
            f"{option} {said} names nothing in a module",
            code="bae-command-refused",
            fix=f"write a file or a module, a colon and a name: {option} scoring.py:exact",
        )
    try:
        module, where, name = load_module(said)
    except BaeError as error:
        error.message = f"{option} {said}: {error.message}"
        raise
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise refused(
                f"{option} {said}: {where} has no {name}", fix=_offered(module, where, fits)
            )
        found = getattr(found, part)
    return found


def case_metric(said: str | None, graph: Graph[Any, Any]) -> tuple[Any, Mapping[Any, Any]]:
    """The metrics of `bae eval`: a function of a case and the result of its run, or None, and
    functions of an expected and a given node by their class. One of them is what `said` names."""
    if said is None:
        return None, {}
    found = object_named(said, "--metric", _accepted(lambda each: _of_cases(said, each, graph)))
    return _of_cases(said, found, graph)


def _of_cases(said: str, found: Any, graph: Graph[Any, Any]) -> tuple[Any, Mapping[Any, Any]]:
    from bae.optimizer import Judge, fields_metric

    if isinstance(found, Mapping):
        return None, _by_class(said, cast("Mapping[Any, Any]", found), graph)
    if isinstance(found, Judge) or found is fields_metric:
        name = said.rpartition(":")[2]
        raise refused(
            f"--metric {said} compares two nodes, and is given a case and the result of its run",
            fix=f"map the class that it is to score to it, METRICS = {{Reply: {name}}}, and name "
            "that",
        )
    _check_called(
        said,
        found,
        "write a function of a case and the result of its run, def exact(case, result)",
        2,
    )
    return found, {}


def training_metric(said: str | None, graph: Graph[Any, Any]) -> Any:
    """The metric of `bae optimize`: a function of an example and a prediction, as DSPy has them,
    or functions of an expected and a given node by their class. None where none is named."""
    if said is None:
        return None
    found = object_named(said, "--metric", _accepted(lambda each: _of_examples(said, each, graph)))
    return _of_examples(said, found, graph)


def _of_examples(said: str, found: Any, graph: Graph[Any, Any]) -> Any:
    from bae.optimizer import Judge

    if isinstance(found, Mapping):
        return _by_class(said, cast("Mapping[Any, Any]", found), graph)
    _check_called(
        said,
        found,
        "write a function of an example and a prediction, def exact(example, prediction, "
        "trace=None)",
        _MOST,
        # One of two might be meant for two nodes: see `bae.optimizer.metrics_for`.
        least=2 if isinstance(found, Judge) else 3,
    )
    return found


def evaluator_classes(named: Sequence[str], data: str, own_metric: bool) -> list[type[Any]]:
    """The classes of `--evaluator`, for the dataset in a file that names them."""
    from pathlib import Path

    from bae.evals.cases import DATASETS

    if own_metric or Path(data).suffix.lower() not in DATASETS:
        why = "--metric scores the cases" if own_metric else f"{data} is none"
        raise refused(
            f"--evaluator is for a dataset of pydantic-evals, and {why}", fix="leave one out"
        )
    found: list[type[Any]] = []
    for said in named:
        cls = object_named(said, "--evaluator", _evaluates)
        if not isinstance(cls, type):
            raise refused(
                f"--evaluator {said} is {_kind(cls)}, and no class",
                fix="name a class of evaluators, which the dataset names too",
            )
        found.append(cast("type[Any]", cls))
    return found


def _by_class(
    said: str, found: Mapping[Any, Any], graph: Graph[Any, Any]
) -> Mapping[type[Node], Any]:
    from bae.evals.case_types import every_node
    from bae.node import Node

    nodes = every_node(graph)
    for cls, function in found.items():
        if not (isinstance(cls, type) and issubclass(cls, Node)) or not callable(function):
            raise refused(
                f"--metric {said} maps {cls!r} to {_kind(function)}",
                fix="map node classes to functions of two nodes: {Reply: score_reply}",
            )
        if cls not in nodes:
            raise refused(
                f"--metric {said} scores {cls.__module__}.{cls.__qualname__}, which is no node of "
                f"the graph {graph.name}",
                fix=_of_graph(cls, nodes),
            )
        if not _takes(function, 2):
            raise refused(
                f"--metric {said} maps {cls.__name__} to {_kind(function)} that cannot be called "
                "with two nodes",
                fix="write a function of the expected node and the given one, "
                "def score_reply(expected, given)",
            )
    return found


def _of_graph(cls: type[Node], nodes: tuple[type[Node], ...]) -> str:
    """What to do about a class that the graph does not have. It may be one of the graph's own that
    was imported a second time, under another name: those are two classes to Python."""
    file = _file_of(cls)
    for node in nodes:
        if file is not None and node.__qualname__ == cls.__qualname__ and _file_of(node) == file:
            return (
                f"{file} is imported twice, as {node.__module__} for the graph and as "
                f"{cls.__module__} for the metric, which makes two classes of one: write `from "
                f"{node.__module__} import {cls.__qualname__.partition('.')[0]}` there"
            )
    return f"map classes of the graph: {', '.join(sorted(node.__name__ for node in nodes))}"


def _file_of(cls: type[Node]) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except (TypeError, OSError):  # of a module that is not there any more, or has no file
        return None


_MOST = 5
"""Arguments that a metric of DSPy is given, as GEPA does: the last three may be left out."""


def _check_called(said: str, found: object, fix: str, most: int, least: int = 2) -> None:
    fix = f"{fix}, or a mapping of node classes to functions of two nodes"
    if not callable(found) or isinstance(found, type):
        raise refused(f"--metric {said} is {_kind(found)}, which scores nothing", fix=fix)
    if not any(_takes(found, number) for number in range(least, most + 1)):
        wanted = {2: "two", 3: "three"}[least]
        raise refused(
            f"--metric {said} cannot be called with {wanted} arguments: it is "
            f"{getattr(found, '__name__', _kind(found))}{inspect.signature(found)}",
            fix=fix,
        )


def _takes(function: Any, number: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * number)
    except TypeError:
        return False
    except ValueError:  # nobody knows what it takes
        return True
    return True


def _kind(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    name = type(found).__name__
    return "None" if found is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _offered(module: ModuleType, where: str, fits: Callable[[Any], bool]) -> str:
    values = {name: each for name, each in vars(module).items() if not name.startswith("_")}
    mapped = [
        function
        for each in values.values()
        if isinstance(each, Mapping)
        for function in cast("Mapping[Any, Any]", each).values()
    ]
    names = [
        name
        for name, value in values.items()
        if fits(value)
        and not any(value is each for each in mapped)  # of two nodes, as its mapping says
        and (isinstance(value, Mapping) or getattr(value, "__module__", None) == module.__name__)
    ]
    if not names:
        return f"write it into {where}"
    return f"name one of these: {', '.join(f'{where}:{name}' for name in names[:8])}"


def _accepted(check: Callable[[Any], object]) -> Callable[[Any], bool]:
    """Whether something would be taken for a metric, by what refuses all others."""

    def fits(value: Any) -> bool:
        if (isinstance(value, Mapping) and not value) or _is_of_nodes(value):
            return False
        try:
            check(value)
        except BaeError:
            return False
        return True

    return fits


def _is_of_nodes(value: Any) -> bool:
    """Whether a function says by its types that it is one of two nodes."""
    from bae.node import Node

    if not inspect.isfunction(value):
        return False
    try:
        hints = get_type_hints(value)
    except Exception:  # of names that are not there
        return False
    first = next(iter(inspect.signature(value).parameters), "")
    return inspect.isclass(hints.get(first)) and issubclass(hints[first], Node)


def _evaluates(value: Any) -> bool:
    return isinstance(value, type) and hasattr(cast("type[Any]", value), "evaluate")
