"""What an optimisation is given to learn from, whatever it comes as: examples, or the traces and
results that examples are made of. `optimizing.py` begins with this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from bae.node import Node
from bae.optimizer.examples import trace_to_examples
from bae.result import GraphResult


def examples_in(trainset: Iterable[Any]) -> list[Any]:
    """The examples to learn from. Traces and results among them are made examples of."""
    found: list[Any] = []
    for each in trainset:
        if isinstance(each, GraphResult) or _is_trace(each):
            found += trace_to_examples(cast(Any, each))
        elif hasattr(each, "items") and "next_node_type" in each:
            found.append(each)
        else:
            raise TypeError(_no_example(each))
    return found


def _is_trace(given: Any) -> bool:
    if not isinstance(given, list | tuple):
        return False
    return all(isinstance(each, Node) for each in cast(Sequence[Any], given))


def _no_example(given: Any) -> str:
    if isinstance(given, Node):
        said = f"the trainset has a node, {type(given).__name__}, in the place of an example"
    elif hasattr(given, "items"):
        said = "an example of the trainset has no next_node_type"
    else:
        said = f"the trainset has {given!r:.80} in the place of an example"
    return (
        f"{said}: give what examples_from(journal, graph) or trace_to_examples(trace) returns, or "
        "a list of traces or of results"
    )
