"""bae: typed graphs of language-model steps, planned from type hints and run as dataflow."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.compiler import compile_graph as compile_graph
    from bae.compiler import create_optimized_lm as create_optimized_lm
    from bae.exceptions import (
        ArtifactError,
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
    from bae.lm import ClaudeCLIBackend as ClaudeCLIBackend
    from bae.lm import DSPyBackend as DSPyBackend
    from bae.lm import OptimizedLM as OptimizedLM
    from bae.lm import PydanticAIBackend as PydanticAIBackend
    from bae.lm import node_to_signature as node_to_signature
    from bae.markers import Dep, Gate, Map, OpenGate, Recall, Text
    from bae.node import Node, NodeConfig
    from bae.optimizer import load_optimized as load_optimized
    from bae.optimizer import node_transition_metric as node_transition_metric
    from bae.optimizer import optimize_node as optimize_node
    from bae.optimizer import save_optimized as save_optimized
    from bae.optimizer import trace_to_examples as trace_to_examples
    from bae.resolver import classify_fields as classify_fields
    from bae.resolver import resolve_fields as resolve_fields
    from bae.result import GraphResult

__version__ = "0.1.0"

__all__ = [
    "LM",
    "ArtifactError",
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
    "Text",
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
    "Text": "markers",
    "Node": "node",
    "NodeConfig": "node",
}
# The names that bae 3.0 had here as well. A star import leaves them out, since they load more.
_MODULES_OF_3 = {
    "ClaudeCLIBackend": "lm",
    "DSPyBackend": "lm",
    "OptimizedLM": "lm",
    "PydanticAIBackend": "lm",
    "classify_fields": "resolver",
    "compile_graph": "compiler",
    "create_optimized_lm": "compiler",
    "load_optimized": "optimizer",
    "node_to_signature": "lm",
    "node_transition_metric": "optimizer",
    "optimize_node": "optimizer",
    "resolve_fields": "resolver",
    "save_optimized": "optimizer",
    "trace_to_examples": "optimizer",
}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _MODULES_OF_3:
        raise AttributeError(f"module 'bae' has no attribute {name!r}")
    from importlib import import_module

    module = _MODULES.get(name) or _MODULES_OF_3.get(name, "exceptions")
    value = getattr(import_module(f"bae.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_MODULES_OF_3]
