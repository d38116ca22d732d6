"""`Graph`: the node classes that can be reached from a start, found from their type hints, proved
once and run as often as wanted. `runner.py` does the running, `proof.py` the proving."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from bae.calls import CallPlan, every_call
from bae.exceptions import BaeError, HintError, ProofError
from bae.node import Node
from bae.plan import NodePlan, plan_of

if TYPE_CHECKING:
    from bae.lm import LM
    from bae.problem import Problem
    from bae.result import GraphResult
    from bae.run import Answer
    from bae.stream import RunStream

S = TypeVar("S", bound=Node, contravariant=True)
T = TypeVar("T", bound=Node, covariant=True)
X = TypeVar("X", bound=Node)
A = TypeVar("A", bound=Node)
B = TypeVar("B", bound=Node)
C = TypeVar("C", bound=Node)
D = TypeVar("D", bound=Node)
E = TypeVar("E", bound=Node)
F = TypeVar("F", bound=Node)


class Graph(Generic[S, T]):
    """A graph that starts at one node class and goes wherever the return types lead.

    Give `end` to type the result: `Graph(start=Ask, end=Answer)` makes `graph.run(…).result` an
    `Answer` for your editor. Several are given as a tuple, `end=(Answer, Refusal)`, and make a
    union. `end` must name every node class the graph can end at. The type is
    `Graph[Ask, Answer]`: a run takes its start and gives its end. `name` is for pictures and
    journals; without one it is the start's.
    """

    @overload
    def __init__(
        self: Graph[X, Node], start: type[X], end: None = None, *, name: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A], start: type[X], end: type[A], *, name: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A],
        start: type[X],
        end: tuple[type[A]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B],
        start: type[X],
        end: tuple[type[A], type[B]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B | C],
        start: type[X],
        end: tuple[type[A], type[B], type[C]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B | C | D],
        start: type[X],
        end: tuple[type[A], type[B], type[C], type[D]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B | C | D | E],
        start: type[X],
        end: tuple[type[A], type[B], type[C], type[D], type[E]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A | B | C | D | E | F],
        start: type[X],
        end: tuple[type[A], type[B], type[C], type[D], type[E], type[F]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[X, A],
        start: type[X],
        end: tuple[type[A], ...],
        *,
        name: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        start: type[Node],
        end: type[Node] | tuple[type[Node], ...] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        ends = () if end is None else end if isinstance(end, tuple) else (end,)
        for given in (start, *ends):
            if not (isinstance(given, type) and issubclass(given, Node)):  # pyright: ignore[reportUnnecessaryIsInstance]
                hint = "; give several ends as a tuple" if type(given) is list else ""
                raise TypeError(f"Graph takes Node classes, not {given!r}{hint}")
        self.start = start
        self.end = ends
        self.name = name or start.__name__
        self._shape: _Shape | None = None
        self._problems: list[Problem] | None = None
        self._proved = False

    @property
    def plans(self) -> dict[type[Node], NodePlan]:
        """The plan of every node class, the start first, in the order they are reached."""
        return self._known().plans

    @property
    def has_sources(self) -> bool:
        """Whether any field of any node has a source."""
        return self._known().has_sources

    @property
    def needs_lm(self) -> str:
        """Why a run needs an LM passed to it; empty when it does not."""
        shape = self._known()
        if shape.needs_lm is None:
            shape.needs_lm = _needs_lm(self, ())
        return shape.needs_lm

    @property
    def recalls(self) -> bool:
        """Whether some node, here or in a graph inside, recalls a value: it may then come from a
        run around this graph."""
        shape = self._known()
        if shape.recalls is None:
            shape.recalls = _recalls(self, ())
        return shape.recalls

    @property
    def nodes(self) -> tuple[type[Node], ...]:
        """Every node class that can be reached, the start first."""
        return tuple(self.plans)

    @property
    def edges(self) -> dict[type[Node], tuple[type[Node], ...]]:
        """Where each node class leads, as its return type declares."""
        return {cls: plan.successors for cls, plan in self.plans.items()}

    @property
    def terminal_nodes(self) -> tuple[type[Node], ...]:
        """The node classes a run may end at."""
        return tuple(cls for cls, plan in self.plans.items() if plan.may_end)

    def validate(self) -> list[Problem]:
        """Everything that is known to go wrong before it does, errors first; empty when nothing.

        Print the list, or look at `.severity`, `.code`, `.place`, `.message` and `.fix` of each. A
        run refuses to start while there are errors.
        """
        if self._problems is not None:
            return list(self._problems)
        from bae.proof import prove

        problems = prove(self)
        if not any(problem.code == HintError.default_code for problem in problems):
            self._problems = problems
        return list(problems)

    def prove(self) -> None:
        """Raise `ProofError` with all errors that `validate` finds; warnings pass."""
        if self._proved:
            return
        errors = [problem for problem in self.validate() if problem.severity == "error"]
        if errors:
            listed = "\n".join(str(problem) for problem in errors)
            count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
            raise ProofError(
                f"the graph {self.name} cannot run, {count}:\n{listed}",
                problems=errors,
                fix="graph.validate() lists all problems, warnings too",
            )
        self._proved = self._problems is not None

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart, with exactly the edges of the types."""
        from bae.mermaid import draw

        return draw(self)

    def run(
        self,
        start: S,
        lm: LM | str | None = None,
        max_iters: int = 10,
        *,
        prefetch: bool = True,
        answer: Answer | None = None,
        dep_cache: dict[Any, Any] | None = None,
    ) -> GraphResult[T]:
        """`arun` for sync callers. Inside a running event loop use `await graph.arun(…)`."""
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # and not run in here, or every error of a run would show this one above it
        else:
            raise BaeError(
                "graph.run() was called inside a running event loop, which it would block",
                code="bae-run-in-loop",
                fix="write `await graph.arun(…)` there",
            )
        return asyncio.run(
            self.arun(start, lm, max_iters, prefetch=prefetch, answer=answer, dep_cache=dep_cache)
        )

    def arun(
        self,
        start: S,
        lm: LM | str | None = None,
        max_iters: int = 10,
        *,
        prefetch: bool = True,
        answer: Answer | None = None,
        dep_cache: dict[Any, Any] | None = None,
    ) -> Coroutine[Any, Any, GraphResult[T]]:
        """Run the graph from `start` to its end.

        - `lm` chooses and fills where nodes have an empty body: an LM, or the name of one such as
          "local" or "claude-cli:sonnet". Without one it is what the variable BAE_LM names, or else
          what this machine offers.
        - `max_iters` bounds how many nodes may run; 0 is no bound.
        - `prefetch` starts the dependencies of a node that is sure to come while the LM is still
          filling the one before it.
        - `answer` is an async callable that answers gates; without it a run that meets one stops,
          and the result's `.waiting` says what for.
        - `dep_cache` holds values by dependency function. Those given are used instead of calling
          the function, which is how tests replace one; those made are added.

        Raises a `BaeError` that carries the trace. Cancelling it cancels everything under it, and
        nothing is left when it returns.
        """
        from bae.run import Run
        from bae.runner import run_graph

        run = Run(lm, max_iters, prefetch, answer, dep_cache)
        return run_graph(self, start, run)

    def stream(
        self,
        start: S,
        lm: LM | str | None = None,
        max_iters: int = 10,
        *,
        prefetch: bool = True,
        answer: Answer | None = None,
        dep_cache: dict[Any, Any] | None = None,
    ) -> RunStream[T]:
        """Run the graph and hand out its records as they are written:

        ```python
        async with graph.stream(start, lm) as records:
            async for record in records:
                print(record)
            print(records.result.result)
        ```

        The parameters are those of `arun`, and so is what the loop raises. Leaving the block, or
        breaking out of a plain `async for`, cancels the run.
        """
        from bae.stream import RunStream

        return RunStream(
            self,
            start,
            lm=lm,
            max_iters=max_iters,
            prefetch=prefetch,
            answer=answer,
            dep_cache=dep_cache,
        )

    def _known(self) -> _Shape:
        if self._shape is not None:
            return self._shape
        plans: dict[type[Node], NodePlan] = {}
        ahead = [self.start]
        for cls in ahead:
            if cls not in plans:
                plans[cls] = plan_of(cls)
                ahead.extend(plans[cls].successors)
        shape = _Shape(plans, any(plan.sourced for plan in plans.values()))
        # Names that could not be resolved may be defined by the next time somebody asks.
        if not any(plan.provisional for plan in plans.values()):
            self._shape = shape
        return shape

    def __repr__(self) -> str:
        return f"<Graph {self.name}, {len(self.plans)} nodes>"


@dataclass(slots=True)
class _Shape:
    """What is worked out once about a graph."""

    plans: dict[type[Node], NodePlan]
    has_sources: bool
    needs_lm: str | None = None
    recalls: bool | None = None


# Graphs that lead to each other as dependencies cannot run, which the proof says; the questions
# below must come to an end all the same, so they remember the start classes they have passed.


def _needs_lm(graph: Graph[Any, Any], inside: tuple[type[Node], ...]) -> str:
    for cls, plan in graph.plans.items():
        why = _node_needs_lm(graph, plan)
        if why:
            return why
        for field in plan.sourced:
            why = _call_needs_lm(field.call, (*inside, graph.start))
            if why:
                return f"{cls.__name__}.{field.name} needs one: {why}"
    return ""


def _node_needs_lm(graph: Graph[Any, Any], plan: NodePlan) -> str:
    if plan.written:
        asks = plan.needs_lm and plan.lm is None
        return f"{plan.name}.__call__ asks for one" if asks else ""
    if len(plan.offered) > 1 and plan.lm is None:
        return f"{plan.name} has an empty body: the LM chooses where it goes on"
    for target in plan.successors:
        if graph.plans[target].lm is None and graph.plans[target].plain:
            return f"{plan.name} has an empty body: the LM goes on from it to {target.__name__}"
    return ""


def _call_needs_lm(call: CallPlan | None, inside: tuple[type[Node], ...]) -> str:
    for each in every_call(call):
        if each.needs_lm:
            return f"{each.name} asks for it"
        if each.graph is not None and each.graph.start not in inside:
            why = _needs_lm(each.graph, inside)
            if why:
                return why
    return ""


def _recalls(graph: Graph[Any, Any], inside: tuple[type[Node], ...]) -> bool:
    return any(
        field.kind == "recall" or _call_recalls(field.call, (*inside, graph.start))
        for plan in graph.plans.values()
        for field in plan.sourced
    )


def _call_recalls(call: CallPlan | None, inside: tuple[type[Node], ...]) -> bool:
    graphs = (each.graph for each in every_call(call))
    return any(g is not None and g.start not in inside and _recalls(g, inside) for g in graphs)
