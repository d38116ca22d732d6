"""What `evaluate` is given, looked at before the first run: mistakes are to cost nothing. What is
wrong with cases says `fitting.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from bae.graph import Graph
from bae.language_model import is_lm
from bae.node import Node

if TYPE_CHECKING:
    from bae.evals.cases import Case
    from bae.evals.fitting import Fitting


def check_given(graph: object, cases: object, lms: object) -> None:
    """Refuse a graph that is none, cases that cannot be gone through, and LMs without names."""
    if not isinstance(graph, Graph):
        hint = " of it: Graph(start=…)" if isinstance(graph, type) else ""
        raise TypeError(f"evaluate({_said(graph)}, …): give a Graph{hint}")
    if isinstance(cases, str | bytes | Mapping) or not isinstance(cases, Iterable):
        raise TypeError(
            f"evaluate(graph, {_said(cast(object, cases))}, …): give a list of Cases, or load them "
            "with load_cases(file, graph)"
        )
    if not isinstance(lms, Mapping):
        raise TypeError(
            f"evaluate(lms={_said(lms)}): give the LMs by the names that tables call them, as "
            '{"local": "local"}'
        )
    if not lms:
        raise ValueError('evaluate(lms={}): give one LM or more by name, as {"local": "local"}')
    for name, lm in cast(Mapping[object, object], lms).items():
        if not isinstance(name, str):
            raise TypeError(f"evaluate(lms={{{name!r}: …}}): the name of an LM is a text")
        usable = not isinstance(lm, type) and (callable(lm) or is_lm(lm))
        if lm is not None and not isinstance(lm, str) and not usable:
            raise TypeError(
                f"evaluate(lms={{{name!r}: {_said(lm)}}}): give an LM, the name of one, a "
                "function that makes one for each run, or None for that of runs without one"
            )


def check_metrics(
    fitting: Fitting, cases: Iterable[Case], metric: object, by_node: object
) -> dict[type[Node], Any]:
    """Refuse metrics that cannot be called so, and judges whose LM is not there. Answers the
    metrics of nodes."""
    if metric is not None:
        _check_metric(metric)
    if by_node is None:
        by_node = {}
    if not isinstance(by_node, Mapping):
        raise TypeError(
            f"evaluate(node_metrics={_said(by_node)}): give metrics by the class of the node, as "
            "{Reply: metric}"
        )
    found = cast(Mapping[Any, Any], by_node)
    for cls, each in found.items():
        if cls not in fitting.names:
            known = ", ".join(sorted(fitting.names.values()))
            raise ValueError(
                f"node_metrics has one for {cls!r}, which is no node of {fitting.graph.name}: its "
                f"nodes are {known}"
            )
        if not _takes_two(each):
            raise TypeError(
                f"evaluate(node_metrics={{{cls.__name__}: {_said(each)}}}): give a function of the "
                "expected node and the given one"
            )
    own = () if metric is not None else (case.metric for case in cases)
    for each in (*found.values(), *own):
        _check_ready(each)
    return dict(found)


def _check_metric(metric: object) -> None:
    from bae.optimizer.judging import Judge
    from bae.optimizer.metrics import fields_metric

    if isinstance(metric, Judge) or metric is fields_metric:
        name = "Judge(…)" if isinstance(metric, Judge) else "fields_metric"
        raise TypeError(
            f"evaluate(metric={name}): it compares two nodes, and a metric is given a case and the "
            f"result of its run: say node_metrics={{Reply: {name}}} for the class it is to score"
        )
    if not _takes_two(metric):
        raise TypeError(
            f"evaluate(metric={_said(metric)}): give a function of a case and the result of its "
            "run, as def exact(case, result)"
        )


def _takes_two(metric: object) -> bool:
    if not callable(metric) or isinstance(metric, type):
        return False
    try:
        inspect.signature(metric).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # nobody knows what it takes
        pass
    return True


def _check_ready(metric: object) -> None:
    from bae.optimizer.judging import Judge

    if isinstance(metric, Judge):
        metric.ready()


def _said(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:80]}…"
