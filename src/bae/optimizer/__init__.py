"""Optimize the prompts of node classes. Examples come from journals, DSPy's optimizers learn from
them, and the learned prompts are files that work with any backend."""

from bae.evals.judge import Judge
from bae.evals.metrics import NodeMetric, Score, fields_metric, node_transition_metric
from bae.optimizer.comparison import Comparison, compare
from bae.optimizer.examples import examples_from, trace_to_examples
from bae.optimizer.improvement import Improvement, PartResult
from bae.optimizer.metrics import Metric
from bae.optimizer.optimization import Progress, aoptimize_node, optimize_node
from bae.optimizer.optimizers import OPTIONS
from bae.optimizer.predictors import NodePredictor, load_optimized, save_optimized
from bae.optimizer.splits import Split, split_apart
from bae.rooms import export_lazily

__all__ = [
    "OPTIONS",
    "Comparison",
    "Improvement",
    "Judge",
    "Metric",
    "NodeMetric",
    "NodePredictor",
    "PartResult",
    "Progress",
    "Score",
    "Split",
    "aoptimize_node",
    "compare",
    "examples_from",
    "fields_metric",
    "load_optimized",
    "node_transition_metric",
    "optimize_node",
    "save_optimized",
    "split_apart",
    "trace_to_examples",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {},
    former={
        "artifact_of": ("optimizer.predictors", "call save_optimized"),
        "choice_examples": ("optimizer.examples", "call examples_from"),
        "example_of": ("optimizer.examples", "call examples_from"),
        "fill_examples": ("optimizer.examples", "call examples_from"),
        "fresh_predictor": ("optimizer.predictors", "call optimize_node"),
        "metrics_for": ("optimizer.metrics", "give `metric=` a function"),
        "predictor_of": ("optimizer.predictors", "call load_optimized"),
        "schema_of": ("optimizer.node_schemas", "call optimize_node"),
        "transitions_from": ("optimizer.transitions", "call examples_from"),
        "Transition": ("optimizer.transitions", "call examples_from"),
        "NodeSchema": ("optimizer.node_schemas", "call optimize_node"),
        "load_artifacts": ("optimizer.artifacts", "call load_optimized"),
        "save_artifacts": ("optimizer.artifacts", "call save_optimized"),
        "Made": ("optimizer.artifacts", "read the file that save_optimized writes"),
        "CallLog": ("optimizer.calls", "give `calls=` the path of its file"),
        "CallStatistics": ("optimizer.calls", "`bae optimize` prints the calls"),
        "OPTIMIZERS": ("optimizer.optimizers", "`bae optimize --help` lists the optimizers"),
        "Artifact": ("optimizer.artifacts", "call load_optimized"),
        "split": ("optimizer.splits", "call split_apart, which returns three lists"),
        "every_node": ("evals.case_types", "optimize_node and compare find subgraphs"),
    },
)
