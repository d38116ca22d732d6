"""Learning from runs: examples out of journals, metrics, DSPy's optimisers by name, and artefacts,
which any backend can be taught by. `bae.compiler` does all of it for a graph at once."""

from bae.evals.case_types import every_node
from bae.evals.judge import Judge
from bae.evals.metrics import NodeMetric, Score, fields_metric, node_transition_metric
from bae.optimizer.artifacts import (
    Artefact,
    Learned,
    LearnedExample,
    Made,
    load_artefacts,
    save_artefacts,
)
from bae.optimizer.by_name import (
    OPTIMIZERS,
    OPTIONS,
)
from bae.optimizer.calls import (
    CallLog,
    CallStatistics,
)
from bae.optimizer.collecting import (
    examples_from,
    transitions_from,
)
from bae.optimizer.comparing import (
    Comparison,
    compare,
)
from bae.optimizer.examples import (
    choice_examples,
    example_of,
    fill_examples,
    trace_to_examples,
)
from bae.optimizer.metrics import (
    Metric,
    metrics_for,
)
from bae.optimizer.node_schemas import (
    NodeSchema,
    schema_of,
)
from bae.optimizer.optimizing import (
    aoptimize_node,
    optimize_node,
)
from bae.optimizer.predictors import (
    NodePredictor,
    artefact_of,
    fresh_predictor,
    load_optimized,
    predictor_of,
    save_optimized,
)
from bae.optimizer.progress import (
    Progress,
)
from bae.optimizer.splitting import (
    Split,
    split,
    split_apart,
)
from bae.optimizer.transitions import (
    Transition,
)

__all__ = [
    "OPTIMIZERS",
    "OPTIONS",
    "Artefact",
    "CallLog",
    "CallStatistics",
    "Comparison",
    "Judge",
    "Learned",
    "LearnedExample",
    "Made",
    "Metric",
    "NodeMetric",
    "NodePredictor",
    "NodeSchema",
    "Progress",
    "Score",
    "Split",
    "Transition",
    "aoptimize_node",
    "artefact_of",
    "choice_examples",
    "compare",
    "every_node",
    "example_of",
    "examples_from",
    "fields_metric",
    "fill_examples",
    "fresh_predictor",
    "load_artefacts",
    "load_optimized",
    "metrics_for",
    "node_transition_metric",
    "optimize_node",
    "predictor_of",
    "save_artefacts",
    "save_optimized",
    "schema_of",
    "split",
    "split_apart",
    "trace_to_examples",
    "transitions_from",
]
