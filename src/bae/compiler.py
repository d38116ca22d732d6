"""The names that bae 3.0 had for `bae.optimizer`. `compile_graph` gives every node of a graph a
DSPy signature and a predictor. `create_optimized_lm` gives an LM the learned prompts of a
directory."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast

from bae.evals.case_types import every_node
from bae.graph import Graph, run_sync
from bae.lm.policies.learned import WithPrompts
from bae.lm.signatures import node_to_signature as node_to_signature  # bae 3.0 had it here
from bae.node import Node
from bae.optimizer.artifacts import load_artifacts
from bae.optimizer.calls import log_of
from bae.optimizer.node_schemas import PARTS, NodePart
from bae.optimizer.optimization import aoptimize_node
from bae.optimizer.predictors import (
    NodePredictor,
    artifact_of,
    fresh_predictor,
    has_learned,
    load_optimized,
    predictor_of,
    save_optimized,
)

if TYPE_CHECKING:
    from bae.evals.judge import Judge
    from bae.lm import LM, Backend
    from bae.optimizer.calls import CallLog
    from bae.optimizer.metrics import Metric
    from bae.result import GraphResult
    from bae.run import RunParameters

__all__ = ["CompiledGraph", "compile_graph", "create_optimized_lm"]

S = TypeVar("S", bound=Node)
T = TypeVar("T", bound=Node)
X = TypeVar("X", bound=Node)
Y = TypeVar("Y", bound=Node)


def compile_graph(graph: Graph[S, T]) -> CompiledGraph[S, T]:
    """Compile a graph, and the graphs inside it, for DSPy. Raises `ProofError` if the graph has
    errors."""
    return CompiledGraph(_check_graph(graph, "compile_graph"))


class CompiledGraph(Generic[S, T]):
    """A graph with a DSPy signature and a predictor for every node class. `compile_graph` makes it.

    - `graph`: the graph itself.
    - `signatures`: the `dspy.Signature` of every node class, made by `node_to_signature`. The plain
      fields of a start class are inputs, because the caller gives them.
    - `choices`: the `dspy.Signature` of the choice, for each class after which the LLM chooses the
      next node.
    - `predictors`: the `NodePredictor` of every node class. A predictor is fresh until it has
      learned something.
    - `optimized`: the predictors that `optimize` or `load` has set. A predictor here that learned
      nothing is still fresh.

    `run` and `arun` run the graph with the learned prompts. `optimize` learns prompts from examples
    of earlier runs. `save` writes the learned prompts to files, and `load` reads them.
    """

    def __init__(
        self,
        graph: Graph[S, T],
        signatures: None = None,
        *,
        optimized: Mapping[type[Node], NodePredictor] | None = None,
    ) -> None:
        if cast(object, signatures) is not None:
            raise TypeError(
                "CompiledGraph(graph, signatures): it makes the signatures itself; call "
                "compile_graph(graph)"
            )
        self.graph = graph
        starts = {inner.start for inner in graph.graphs}
        self._fresh = fresh = {cls: fresh_predictor(cls) for cls in every_node(graph)}
        self.signatures: dict[type[Node], Any] = {
            cls: node_to_signature(cls, is_start=cls in starts) for cls in fresh
        }
        self.choices: dict[type[Node], Any] = {
            cls: predictor.choice.signature
            for cls, predictor in fresh.items()
            if predictor.choice is not None
        }
        self.optimized = dict(optimized or {})

    @property
    def predictors(self) -> ChainMap[type[Node], NodePredictor]:
        """The predictor of every node class: from `optimized`, or a fresh predictor if
        `optimized` has none. Setting a predictor here sets it in `optimized`."""
        return ChainMap(self.optimized, self._fresh)

    def run(
        self,
        start_node: S,
        lm: LM | str | Any = None,
        max_iters: int = 10,
        **options: Unpack[RunParameters],
    ) -> GraphResult[T]:
        """Run the graph as `arun` does, for sync callers.

        Inside a running event loop, use `await compiled.arun(…)`.
        """
        return run_sync(
            lambda: self.arun(start_node, lm, max_iters, **options),
            "compiled.run()",
            "await compiled.arun(…)",
        )

    async def arun(
        self,
        start_node: S,
        lm: LM | str | Any = None,
        max_iters: int = 10,
        **options: Unpack[RunParameters],
    ) -> GraphResult[T]:
        """Run the graph from `start_node` to its end, with the learned prompts.

        `lm` is an LM, the name of an LM, or a `dspy.LM`. A node with a pinned LM asks the pinned
        LM, also with the learned prompts. If `lm` is a `dspy.LM`, all predictors ask it, even
        predictors with an LM of their own. The other parameters are those of `graph.arun`.
        """
        return await self.graph.arun(start_node, self._with_learned(lm), max_iters, **options)

    def optimize(
        self, trainset: Iterable[Any], metric: Metric | Judge | None = None, **options: Any
    ) -> Self:
        """Optimize the predictors as `aoptimize` does, for sync callers.

        Inside a running event loop, use `await compiled.aoptimize(…)`.
        """
        return run_sync(
            lambda: self.aoptimize(trainset, metric, **options),
            "compiled.optimize()",
            "await compiled.aoptimize(…)",
        )

    async def aoptimize(
        self,
        trainset: Iterable[Any],
        metric: Metric | Judge | None = None,
        *,
        lm: LM | str | Any = None,
        teacher: LM | str | Any = None,
        calls: CallLog | str | Path | None = None,
        nodes: Iterable[type[Node] | str] | None = None,
        **options: Any,
    ) -> Self:
        """Optimize the predictors, one node class after the other, and return this graph.

        `trainset` has examples from `trace_to_examples` or `examples_from`. `nodes` names the
        classes to optimize, by default all classes. The other parameters are those of
        `optimize_node`. All classes share the budget and the log of calls. If a class learns
        nothing new, it keeps its earlier prompts. The prompts of a class are set as soon as the
        class is finished, even if a later class fails.
        """
        chosen = self._classes_named("nodes", nodes)
        metrics: Any = metric
        if isinstance(metrics, Mapping):  # raise if a metric is for a class outside the graph
            self._classes_named("metric", cast("Mapping[Any, Any]", metrics))
        examples = list(trainset)
        options |= {"lm": _by_name(lm), "teacher": _by_name(teacher), "graph": self.graph}
        async with log_of(calls, None) as log:
            for cls in chosen:
                predictor = self.predictors[cls]
                if predictor.fill is not None or predictor.choice is not None:
                    learned = await aoptimize_node(cls, examples, metric, calls=log, **options)
                    predictor = _keep_earlier_prompts(predictor, learned)
                self.optimized[cls] = predictor
        return self

    def save(self, path: str | Path) -> list[Path]:
        """Write the learned prompts into a directory, and return the files. There is one JSON file
        for each node class that has learned something."""
        return save_optimized(self.predictors, path, among=self.graph)

    @classmethod
    def load(cls, graph: Graph[X, Y], path: str | Path) -> CompiledGraph[X, Y]:
        """Compile a graph with saved prompts.

        A class without a file has a fresh predictor. If no class has a file, bae logs a warning. If
        classes have changed since their files were written, an `ArtifactError`
        (`bae-artifact-changed`) names all these classes.
        """
        predictors = load_optimized(_check_graph(graph, "CompiledGraph.load"), path)
        return CompiledGraph(graph, optimized=predictors)

    def __repr__(self) -> str:
        learned = [cls.__name__ for cls in self._predictors_that_learned()]
        state = f"learned: {', '.join(learned)}" if learned else "nothing learned"
        return f"<CompiledGraph {self.graph.name}, {len(self.predictors)} nodes, {state}>"

    def _predictors_that_learned(self) -> dict[type[Node], NodePredictor]:
        """Return the predictors that have learned something."""
        return {
            cls: predictor for cls, predictor in self.predictors.items() if not predictor.is_fresh
        }

    def _with_learned(self, lm: Any) -> Any:
        """Return the LM of a run with the learned prompts."""
        learned = self._predictors_that_learned()
        if _is_dspy(lm):
            return _optimized_lm(learned, lm)
        if not learned:
            return lm
        prompts = {cls: artifact_of(predictor).prompts() for cls, predictor in learned.items()}
        return WithPrompts(_lm_of(lm, self.graph), prompts)

    def _classes_named(self, by: str, nodes: Iterable[Any] | None) -> list[type[Node]]:
        """Return the classes that an argument names. `by` is the name of the parameter, for the
        error."""
        if nodes is None:
            return list(self.predictors)
        listed: list[Any] = [nodes] if isinstance(nodes, str | type) else [*nodes]
        names = [cls.__name__ for cls in self.predictors]
        for node in listed:
            if node not in self.predictors and node not in names:
                raise ValueError(
                    f"optimize({by}=…): the graph {self.graph.name} has no node {node!r}; it has "
                    f"{', '.join(names)}"
                )
        return [cls for cls in self.predictors if cls in listed or cls.__name__ in listed]


def create_optimized_lm(
    graph: Graph[Any, Any], compiled_path: str | Path, lm: LM | str | Any = None
) -> Backend:
    """Make an LM that uses the saved prompts for the nodes of a graph. Pass it as `lm=` to
    `graph.run`.

    `lm` is an LM, the name of an LM, or a `dspy.LM`. By default, it is the LM that a run would use.
    If `lm` is a `dspy.LM`, passed here or set by `dspy.configure`, the result is an `OptimizedLM`.
    Its `get_stats()` counts the questions that used a learned prompt. For errors and warnings about
    the files, see `bae.optimizer.load_artifacts`.
    """
    from bae.lm.registry import configured_lm

    lm = configured_lm() if lm is None else lm
    if _is_dspy(lm):
        return _optimized_lm(load_optimized(graph, compiled_path), lm)
    artifacts = load_artifacts(graph, compiled_path)
    prompts = {cls: artifact.prompts() for cls, artifact in artifacts.items()}
    return WithPrompts(_lm_of(lm, graph), prompts)


def _check_graph(graph: Graph[S, T], by: str) -> Graph[S, T]:
    """Check that the argument is a graph that can run, and return it."""
    if not isinstance(cast(object, graph), Graph):
        raise TypeError(f"{by} takes a Graph, and not {graph!r}: give it Graph(start=…)")
    graph.prove()
    return graph


def _is_dspy(lm: object) -> bool:
    # A caller who passes an LM of dspy has imported dspy.
    dspy: Any = sys.modules.get("dspy")
    return dspy is not None and isinstance(lm, dspy.BaseLM)


def _optimized_lm(predictors: Mapping[type[Node], NodePredictor], lm: Any) -> Backend:
    from bae.lm.optimized import OptimizedLM

    return OptimizedLM(
        {cls: predictor for cls, predictor in predictors.items() if not predictor.is_fresh}, lm
    )


def _lm_of(lm: Any, graph: Graph[Any, Any]) -> LM:
    """Return the LM for the argument `lm`. If the argument is None, return the default LM. Look the
    default up only if the graph asks an LM that is not pinned to a node."""
    from bae.lm.registry import LazyLM, find_default_lm

    if lm is not None:
        return cast("LM", _by_name(lm))
    if graph.needs_lm:
        return find_default_lm(graph.needs_lm)
    return LazyLM(f"the LM of {graph.name} was asked")


def _by_name(lm: Any) -> Any:
    """Return the LM that a name stands for. Return any other value unchanged."""
    from bae.lm.registry import cached_lm

    return cached_lm(lm) if isinstance(lm, str) else lm


def _keep_earlier_prompts(before: NodePredictor, learned: NodePredictor) -> NodePredictor:
    """Return a predictor with the new prompts. A part that learned nothing new keeps its earlier
    prompts."""
    parts: list[NodePart] = [
        p for p in PARTS if has_learned(before, p) and not has_learned(learned, p)
    ]
    if not parts or learned.is_fresh:
        return before if parts else learned
    return predictor_of(learned.node, artifact_of(learned).keeping(artifact_of(before), parts))
