"""Optimization: examples from journals, metrics, DSPy's optimizers by name, and learned prompts as
files, which any backend can be asked with."""

from bae.evals.case_types import every_node
from bae.evals.judge import Judge
from bae.evals.metrics import NodeMetric, Score, fields_metric, node_transition_metric
from bae.optimizer.artifacts import (
    Artifact,
    Made,
    load_artifacts,
    save_artifacts,
)
from bae.optimizer.calls import CallLog, CallStatistics
from bae.optimizer.comparison import Comparison, compare
from bae.optimizer.examples import (
    choice_examples,
    example_of,
    examples_from,
    fill_examples,
    trace_to_examples,
)
from bae.optimizer.improvement import Improvement, PartResult
from bae.optimizer.metrics import Metric, metrics_for
from bae.optimizer.node_schemas import NodeSchema, schema_of
from bae.optimizer.optimization import Progress, aoptimize_node, optimize_node
from bae.optimizer.optimizers import OPTIMIZERS, OPTIONS
from bae.optimizer.predictors import (
    NodePredictor,
    artifact_of,
    fresh_predictor,
    load_optimized,
    predictor_of,
    save_optimized,
)
from bae.optimizer.splits import Split, split, split_apart
from bae.optimizer.transitions import Transition, transitions_from

__all__ = [
    "OPTIMIZERS",
    "OPTIONS",
    "Artifact",
    "CallLog",
    "CallStatistics",
    "Comparison",
    "Improvement",
    "Judge",
    "Made",
    "Metric",
    "NodeMetric",
    "NodePredictor",
    "NodeSchema",
    "PartResult",
    "Progress",
    "Score",
    "Split",
    "Transition",
    "aoptimize_node",
    "artifact_of",
    "choice_examples",
    "compare",
    "every_node",
    "example_of",
    "examples_from",
    "fields_metric",
    "fill_examples",
    "fresh_predictor",
    "load_artifacts",
    "load_optimized",
    "metrics_for",
    "node_transition_metric",
    "optimize_node",
    "predictor_of",
    "save_artifacts",
    "save_optimized",
    "schema_of",
    "split",
    "split_apart",
    "trace_to_examples",
    "transitions_from",
]
