"""Learning from runs: examples out of journals, metrics, DSPy's optimisers by name, and artefacts,
which any backend can be taught by. `bae.compiler` does all of it for a graph at once."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.optimizer.artefacts import (
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
    from bae.optimizer.judging import (
        Judge,
    )
    from bae.optimizer.metrics import (
        Metric,
        NodeMetric,
        Score,
        fields_metric,
        metrics_for,
        node_transition_metric,
    )
    from bae.optimizer.node_schema import (
        NodeSchema,
        schema_of,
    )
    from bae.optimizer.nodes import (
        every_node,
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

# Modules are imported when a name of theirs is first asked for: dspy comes with some of them.
_MODULES = {
    "Artefact": "artefacts",
    "CallLog": "calls",
    "CallStatistics": "calls",
    "Comparison": "comparing",
    "Judge": "judging",
    "Learned": "artefacts",
    "LearnedExample": "artefacts",
    "Made": "artefacts",
    "Metric": "metrics",
    "NodeMetric": "metrics",
    "NodePredictor": "predictors",
    "NodeSchema": "node_schema",
    "OPTIMIZERS": "by_name",
    "OPTIONS": "by_name",
    "Progress": "progress",
    "Score": "metrics",
    "Split": "splitting",
    "Transition": "transitions",
    "aoptimize_node": "optimizing",
    "artefact_of": "predictors",
    "choice_examples": "examples",
    "compare": "comparing",
    "every_node": "nodes",
    "example_of": "examples",
    "examples_from": "collecting",
    "fields_metric": "metrics",
    "fill_examples": "examples",
    "fresh_predictor": "predictors",
    "load_artefacts": "artefacts",
    "load_optimized": "predictors",
    "metrics_for": "metrics",
    "node_transition_metric": "metrics",
    "optimize_node": "optimizing",
    "predictor_of": "predictors",
    "save_artefacts": "artefacts",
    "save_optimized": "predictors",
    "schema_of": "node_schema",
    "split": "splitting",
    "split_apart": "splitting",
    "trace_to_examples": "examples",
    "transitions_from": "collecting",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bae.optimizer' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"bae.optimizer.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
