"""bae: typed graphs of language-model steps, planned from type hints and run as dataflow."""

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.approvals import Approval, Interruption
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
        RunCancelled,
        RunFailed,
        ToolCallError,
        ToolServerError,
    )
    from bae.files import Document, DocumentUrl, Image, ImageUrl
    from bae.graph import Graph
    from bae.lm import LM, Usage
    from bae.lm import ClaudeCLIBackend as ClaudeCLIBackend
    from bae.lm import DSPyBackend as DSPyBackend
    from bae.lm import OptimizedLM as OptimizedLM
    from bae.lm import PydanticAIBackend as PydanticAIBackend
    from bae.lm import node_to_signature as node_to_signature
    from bae.markers import Dep, Gate, Map, OpenGate, Recall, Text, Thread, Tools
    from bae.mcp.servers import MCP
    from bae.node import Node, NodeConfig
    from bae.optimizer import load_optimized as load_optimized
    from bae.optimizer import node_transition_metric as node_transition_metric
    from bae.optimizer import optimize_node as optimize_node
    from bae.optimizer import save_optimized as save_optimized
    from bae.optimizer import trace_to_examples as trace_to_examples
    from bae.resolver import classify_fields as classify_fields
    from bae.resolver import resolve_fields as resolve_fields
    from bae.result import GraphResult
    from bae.run import GateAnswerer
    from bae.threads import set_thread_limit
    from bae.tools import (
        Ask,
        Native,
        Tool,
        ToolCall,
        ToolError,
        ToolProgress,
        idempotency_key,
        report,
    )
    from bae.turns import Messages, Turn
    from bae.writer import fencing_token

__version__ = "0.1.0"

__all__ = [
    "LM",
    "MCP",
    "Approval",
    "ArtifactError",
    "Ask",
    "BaeError",
    "BaeLMError",
    "BaeParseError",
    "BudgetError",
    "Dep",
    "DepError",
    "Document",
    "DocumentUrl",
    "FillError",
    "Gate",
    "GateAnswerer",
    "GateError",
    "Graph",
    "GraphResult",
    "HintError",
    "Image",
    "ImageUrl",
    "Interruption",
    "JournalError",
    "LimitError",
    "Map",
    "Messages",
    "Native",
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
    "RunCancelled",
    "RunFailed",
    "Text",
    "Thread",
    "Tool",
    "ToolCall",
    "ToolCallError",
    "ToolError",
    "ToolProgress",
    "ToolServerError",
    "Tools",
    "Turn",
    "Usage",
    "__version__",
    "fencing_token",
    "idempotency_key",
    "report",
    "set_thread_limit",
]

# A name is imported when it is first used, so that `import bae` is fast and does not load pydantic.
# The names that are not in `__all__` were here in bae 3.0. A star import leaves them out, because
# their modules take longer to load.
__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "exceptions": (
            "ArtifactError BaeError BaeLMError BaeParseError BudgetError DepError FillError "
            "GateError HintError JournalError LimitError NodeError Problem ProofError RecallError "
            "ReplayError RouteError RunCancelled RunFailed ToolCallError ToolServerError"
        ),
        "files": "Document DocumentUrl Image ImageUrl",
        "graph": "Graph",
        "markers": "Dep Gate Map OpenGate Recall Text Thread Tools",
        "mcp.servers": "MCP",
        "node": "Node NodeConfig",
        "result": "GraphResult",
        "run": "GateAnswerer",
        "threads": "set_thread_limit",
        "approvals": "Approval Interruption",
        "turns": "Messages Turn",
        "writer": "fencing_token",
        "tools": "Ask Native Tool ToolCall ToolError ToolProgress idempotency_key report",
        "compiler": "compile_graph create_optimized_lm",
        "lm": (
            "LM Usage ClaudeCLIBackend DSPyBackend OptimizedLM PydanticAIBackend node_to_signature"
        ),
        "optimizer": (
            "load_optimized node_transition_metric optimize_node save_optimized trace_to_examples"
        ),
        "resolver": "classify_fields resolve_fields",
    },
)
