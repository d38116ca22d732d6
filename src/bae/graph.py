"""`Graph`: the node classes that can be reached from a start, found from their type hints, proved
once and run as often as wanted. `runner.py` does the running, `proof.py` the proving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from bae.exceptions import BaeError, ProofError
from bae.node import Node
from bae.plan import NodePlan, plan_of

if TYPE_CHECKING:
    from bae.calls import CallPlan
    from bae.lm import LM
    from bae.problem import Problem
    from bae.result import GraphResult
    from bae.run import Answer
    from bae.stream import RunStream

T = TypeVar("T", bound=Node, covariant=True)
A = TypeVar("A", bound=Node)
B = TypeVar("B", bound=Node)
C = TypeVar("C", bound=Node)
D = TypeVar("D", bound=Node)
E = TypeVar("E", bound=Node)
F = TypeVar("F", bound=Node)


class Graph(Generic[T]):
    """A graph that starts at one node class and goes wherever the return types lead.

    Give `end` to type the result: `Graph(start=Ask, end=Answer)` makes `graph.run(…).result` an
    `Answer` for your editor. Several are given as a tuple, `end=(Answer, Refusal)`, and make a
    union. `end` must name every node class the graph can end at. `name` is for pictures and
    journals; without one it is the start's.
    """

    @overload
    def __init__(
        self: Graph[Node], start: type[Node], end: None = None, *, name: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[A], start: type[Node], end: type[A], *, name: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[A],
        start: type[Node],
        end: tuple[type[A]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[A | B],
        start: type[Node],
        end: tuple[type[A], type[B]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[A | B | C],
        start: type[Node],
        end: tuple[type[A], type[B], type[C]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[A | B | C | D],
        start: type[Node],
        end: tuple[type[A], type[B], type[C], type[D]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[A | B | C | D | E],
        start: type[Node],
        end: tuple[type[A], type[B], type[C], type[D], type[E]],
        *,
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[A | B | C | D | E | F],
        start: type[Node],
        end: tuple[type[A], type[B], type[C], type[D], type[E], type[F]],
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
                raise TypeError(f"Graph takes Node classes, not {given!r}")
        self.start = start
        self.end = ends
        self.name = name or start.__name__
        self._plans: dict[type[Node], NodePlan] | None = None
        self._problems: list[Problem] | None = None
        self._needs_lm: str | None = None

    @property
    def plans(self) -> dict[type[Node], NodePlan]:
        """The plan of every node class, the start first, in the order they are reached."""
        if self._plans is not None:
            return self._plans
        found: dict[type[Node], NodePlan] = {}
        ahead = [self.start]
        for cls in ahead:
            if cls not in found:
                found[cls] = plan_of(cls)
                ahead.extend(found[cls].successors)
        # Names that could not be resolved may be defined by the next time somebody asks.
        if not any(plan.unresolved for plan in found.values()):
            self._plans = found
            self._needs_lm = _needs_lm(self, found, ())
            self.has_sources = any(plan.sourced for plan in found.values())
        return found

    has_sources: bool = False
    """Whether any field of any node has a source."""

    @property
    def needs_lm(self) -> str:
        """Why a run needs an LM passed to it; empty when it does not."""
        assert self.plans is not None
        return self._needs_lm or ""

    @property
    def recalls(self) -> bool:
        """Whether some node recalls a value, which may then come from a run around this graph."""
        return any(field.kind == "recall" for p in self.plans.values() for field in p.sourced)

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
        if self._plans is not None:
            self._problems = problems
        return list(problems)

    def prove(self) -> None:
        """Raise `ProofError` with all errors that `validate` finds; warnings pass."""
        if self._problems == []:
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

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart, with exactly the edges of the types."""
        from bae.mermaid import draw

        return draw(self)

    def run(
        self,
        start: Node,
        lm: LM | None = None,
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
            return asyncio.run(
                self.arun(
                    start, lm, max_iters, prefetch=prefetch, answer=answer, dep_cache=dep_cache
                )
            )
        raise BaeError(
            "graph.run() was called inside a running event loop, which it would block",
            code="bae-run-in-loop",
            fix="write `await graph.arun(…)` there",
        )

    async def arun(
        self,
        start: Node,
        lm: LM | None = None,
        max_iters: int = 10,
        *,
        prefetch: bool = True,
        answer: Answer | None = None,
        dep_cache: dict[Any, Any] | None = None,
    ) -> GraphResult[T]:
        """Run the graph from `start` to its end.

        - `lm` chooses and fills where nodes have an empty body.
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
        from bae.runner import run_graph

        return await run_graph(
            self,
            start,
            lm=lm,
            max_iters=max_iters,
            prefetch=prefetch,
            answer=answer,
            dep_cache=dep_cache,
        )

    def stream(
        self,
        start: Node,
        lm: LM | None = None,
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

    def __repr__(self) -> str:
        return f"<Graph {self.name}, {len(self.plans)} nodes>"


def _needs_lm(
    graph: Graph[Any], plans: Mapping[type[Node], NodePlan], inside: tuple[Graph[Any], ...]
) -> str:
    for cls, plan in plans.items():
        if plan.written:
            if plan.lm_parameter is not None and plan.lm is None:
                return f"{cls.__name__}.__call__ asks for one"
        else:
            if len(plan.offered) > 1 and plan.lm is None:
                return f"{cls.__name__} has an empty body: the LM chooses where it goes on"
            for target in plan.successors:
                if plans[target].lm is None:
                    return (
                        f"{cls.__name__} has an empty body: the LM goes on from it to "
                        f"{target.__name__}"
                    )
        for field in plan.sourced:
            why = _call_needs_lm(field.call, (*inside, graph)) if field.call is not None else ""
            if why:
                return f"{cls.__name__}.{field.name} needs one: {why}"
    return ""


def _call_needs_lm(call: CallPlan, inside: tuple[Graph[Any], ...]) -> str:
    if call.lm_parameters:
        return f"{call.name} asks for it"
    if call.graph is not None and not any(call.graph is g for g in inside):
        return _needs_lm(call.graph, call.graph.plans, inside)
    reasons = (_call_needs_lm(below.call, inside) for _, below in call.inputs)
    return next((reason for reason in reasons if reason), "")
