"""Modules made from source text, for the case that needs two hundred new node types per sample.

Frameworks remember what they worked out about a class, so a second build of the same classes would
measure a cache. A registered module is needed because type hints are looked up in it by name.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, ModuleType

from benchmarks.work import FANOUT, GRAPH_SIZE

_serial = itertools.count()


@cache
def _compile_source(source: str) -> CodeType:
    # A user's module is compiled once too, so parsing is no part of what defining costs.
    return compile(source, "<generated>", "exec")


def fresh_module(source: str) -> ModuleType:
    """Execute `source` as a new module that `get_type_hints` can find."""
    module = ModuleType(f"benchmarks_generated_{next(_serial)}")
    sys.modules[module.__name__] = module
    exec(_compile_source(source), module.__dict__)
    return module


def forget(module: ModuleType) -> None:
    """Drop the module again, so that samples do not pile up."""
    sys.modules.pop(module.__name__, None)


def successors(index: int) -> list[int]:
    """Return the nodes that may follow node `index`. The last node has none."""
    return [later for later in range(index + 1, index + 1 + FANOUT) if later < GRAPH_SIZE]


def node_source(head: str, one: Callable[[int, list[int]], str]) -> str:
    """`head`, then the source of every node type, written by `one(index, successors)`."""
    parts = [one(index, successors(index)) for index in range(GRAPH_SIZE)]
    return "\n".join(["from __future__ import annotations", head, *parts])
