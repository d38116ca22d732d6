"""bae: typed graphs of language-model steps, planned from type hints and run as dataflow."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.exceptions import (
        ArtefactError,
        BaeError,
        BaeLMError,
        BaeParseError,
        BudgetError,
        DepError,
        FillError,
        GateError,
        HintError,
        JournalError,
        LimitError,
        NodeError,
        Problem,
        ProofError,
        RecallError,
        ReplayError,
        RouteError,
    )
    from bae.graph import Graph
    from bae.lm import LM, Usage
    from bae.markers import Dep, Gate, Map, OpenGate, Recall
    from bae.node import Node, NodeConfig
    from bae.result import GraphResult

__version__ = "0.1.0"

__all__ = [
    "LM",
    "ArtefactError",
    "BaeError",
    "BaeLMError",
    "BaeParseError",
    "BudgetError",
    "Dep",
    "DepError",
    "FillError",
    "Gate",
    "GateError",
    "Graph",
    "GraphResult",
    "HintError",
    "JournalError",
    "LimitError",
    "Map",
    "Node",
    "NodeConfig",
    "NodeError",
    "OpenGate",
    "Problem",
    "ProofError",
    "Recall",
    "RecallError",
    "ReplayError",
    "RouteError",
    "Usage",
    "__version__",
]

# Pydantic loads its model machinery when the first model is defined, and so does bae: a name is
# imported from its module when it is first asked for.
_MODULES = {
    "Graph": "graph",
    "GraphResult": "result",
    "LM": "lm",
    "Usage": "lm",
    "Dep": "markers",
    "Gate": "markers",
    "Map": "markers",
    "OpenGate": "markers",
    "Recall": "markers",
    "Node": "node",
    "NodeConfig": "node",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bae' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"bae.{_MODULES.get(name, 'exceptions')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
