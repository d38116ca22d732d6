"""Resolves the fields of a node that have a source: during a run, or without a run for tests and
tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, cast

from bae.calls import CallPlan, Input, every_call, plan_call
from bae.draft import validate_values
from bae.exceptions import (
    BaeError,
    BudgetError,
    CallTimeout,
    DepError,
    GateError,
    JournalError,
    Problem,
    RecallError,
    describe,
)
from bae.hints import HintError
from bae.markers import Dep
from bae.node import Node
from bae.node_proof import check_node, problems_of, unfilled_problems
from bae.place import Place
from bae.plan import FieldPlan, NodePlan, plan_of
from bae.run import GateAnswerer, Run, RunOptions, Waiting
from bae.scheduling import PendingValue, make_finished_value
from bae.sharing import Dataflow
from bae.sources.recall import recall_from_trace
from bae.tasks import Closer

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.records import Found

__all__ = [
    "build_dep_dag",
    "classify_fields",
    "recall_from_trace",
    "resolve_dep",
    "resolve_fields",
    "validate_node_deps",
]


def classify_fields(node_cls: type[Node]) -> dict[str, str]:
    """Return the kind of each field of a node class, such as "dep", "recall", "map", "gate" or
    "plain"."""
    return {name: field.kind for name, field in plan_of(node_cls, strict=True).fields.items()}


class DepDag(dict[Any, tuple[Any, ...]], TopologicalSorter[Any]):
    """The dependency functions of a node class, each with the functions that it waits for. A
    `DepDag` is a dict and also a `TopologicalSorter`.

    As a condition, it is true if there are functions. After `prepare()`, it is true while functions
    remain to be done.
    """

    def __init__(self, dag: Mapping[Any, tuple[Any, ...]]) -> None:
        super().__init__(dag)
        TopologicalSorter[Any].__init__(self, dag)

    def __bool__(self) -> bool:
        try:
            return self.is_active()
        except ValueError:  # not prepared
            return len(self) > 0


def build_dep_dag(node_cls: type[Node]) -> DepDag:
    """Return the dependency functions of a node class, each with the functions that it waits for.

    Use the result as a dict, or as a `graphlib.TopologicalSorter` with `static_order()`, or with
    `prepare()`, `get_ready()` and `done()`. A callable without a hash is represented by its cache
    key. If functions wait for each other in a cycle, a `DepError` is raised.
    """
    dag: dict[Any, tuple[Any, ...]] = {}
    for field in plan_of(node_cls, strict=True).fields.values():
        if field.call is not None:
            problems = (p for call in every_call(field.call) for p in call.problems)
            cycle = next((p for p in problems if p.code == "bae-dep-cycle"), None)
            if cycle is not None:
                raise DepError(
                    f"{node_cls.__name__}.{field.name}: {cycle.message}",
                    node_type=node_cls,
                    field_name=field.name,
                    code=cycle.code,
                    fix=cycle.fix,
                )
            for call in every_call(field.call):
                dag.setdefault(call.key, tuple(below.call.key for _, below in call.inputs))
    return DepDag(dag)


def validate_node_deps(node_cls: type[Node], is_start: bool = False) -> list[str]:
    """Return the problems with the sources of a node class, one text for each problem.

    `Graph.validate()` checks a complete graph, including the paths to each field.
    """
    name = node_cls.__name__
    return [
        str(problem)
        for problem in check_node(plan_of(node_cls), is_start=is_start)
        if problem.place != f"{name}.__call__"
        and (problem.place != name or problem.code == HintError.code)
    ]


async def resolve_dep(
    fn: Callable[..., Any],
    cache: dict[Any, Any] | None = None,
    *,
    lm: LM | None = None,
    stack: AsyncExitStack | None = None,
) -> Any:
    """Call a dependency function, after its own dependencies, and return its value.

    `cache` contains values by function. bae uses a value in it instead of calling the function, and
    adds the values of the functions that it calls. An error of a function is raised unchanged.
    Generators and context managers are closed with `stack`. Without `stack`, they raise an error,
    since nothing would close them.
    """
    call = plan_call(fn)
    _refuse_unrunnable(call, unfilled_problems(call))
    place = Place("", 0, Node.__name__, call.name)
    flow = _StackedFlow(cache, stack)
    pending = flow.dependency(Input(call, Dep(fn)), Run(RunOptions(lm), flow=flow), Node, place)
    failed = await flow.gather([pending])
    if failed is not None:
        raise cast(BaseException, failed.error)
    return pending.value


async def resolve_fields(
    node_cls: type[Node],
    trace: Sequence[Node] = (),
    dep_cache: dict[Any, Any] | None = None,
    *,
    lm: LM | None = None,
    answer: GateAnswerer | None = None,
    stack: AsyncExitStack | None = None,
) -> dict[str, Any]:
    """Return the values of the fields of `node_cls` that have a source, in the order of the fields.

    The result leaves out maps over a plain field, and dependencies bound to a plain field. Recalled
    values come from `trace`, and answers at gates from `answer`. `dep_cache`, `lm` and `stack` work
    as `cache`, `lm` and `stack` of `resolve_dep`. If a function raises an error, the other
    functions are cancelled. Once all have ended, the error is raised unchanged.
    """
    plan = plan_of(node_cls, strict=True)
    for field in plan.context:
        if field.call is not None:
            _refuse_unrunnable(field.call, field.argument_problems(plan))
    flow = _StackedFlow(dep_cache, stack)
    run = Run(RunOptions(lm, answer=answer), flow=flow, trace=list(trace))
    try:
        return await resolve(run, plan, plan.context, {})
    except DepError as error:
        if error.cause is None or error.code not in ("bae-dep-failed", "bae-dep-timeout"):
            raise
        original = error.cause
    except Waiting as waiting:
        raise GateError(str(waiting), gates=waiting.gates, fix="pass answer=…") from None
    raise original  # outside the handler, so that Python does not change its context


def _refuse_unrunnable(call: CallPlan, more: Iterable[Problem]) -> None:
    """Raise an error if a call is impossible. Wrong types are not checked here: the values are
    validated later."""
    graph_problems = [
        p for inner in every_call(call) if inner.graph for p in inner.graph.validate()
    ]
    endless = [
        problem_
        for problem_ in graph_problems
        if problem_.code in ("bae-dep-cycle", "bae-dep-depth")
    ]
    for problem in [*endless, *problems_of(call), *more]:
        found_later = problem.code in ("bae-dep-unannotated", "bae-dep-type")
        if problem.severity == "error" and not found_later:
            raise DepError(problem.message, code=problem.code, fix=problem.fix)


async def resolve(
    run: Run,
    plan: NodePlan,
    fields: Sequence[FieldPlan],
    given: Mapping[str, Any],
    records: list[Found] | None = None,
) -> dict[str, Any]:
    """Return the values of `fields`, in their order. A field with a default is left out if its
    source failed.

    `given` are the values of the node so far. The records of recalled values and of earlier turns
    are added to `records`.
    """
    values: dict[str, Any] = {}
    for field in fields:
        if field.is_immediate:
            place = Place(run.path, run.step, plan.name, field.name)
            for value in field.take(run, plan.node, place, records=records):
                values[field.name] = value
    if len(values) < len(fields):
        values |= await Resolution(run, plan, {**given, **values}).values_of(
            [field for field in fields if not field.is_immediate]
        )
    return {field.name: values[field.name] for field in fields if field.name in values}


def find_ahead(run: Run, plan: NodePlan) -> tuple[dict[str, Any], list[Found]] | None:
    """Return the values that a node needs before an LM fills it, with their records, if bae finds
    all of them without a call.

    Return None if a source must be called, if a required value is missing, or if a value is
    invalid. The fill itself reports these problems later. This function does not write the records.
    """
    values: dict[str, Any] = {}
    records: list[Found] = []
    for field in plan.context:
        place = Place(run.path, run.step, plan.name, field.name)
        match = field.find(run, plan.node, place) if field.is_immediate else None
        if match is not None:
            values[field.name] = match[0]
            records.append(match[1])
        elif not field.is_immediate or field.required:
            return None
    try:
        validate_values(plan.node, values)
    except Exception:  # validators may raise anything
        return None
    return values, records


def start_early(run: Run, plan: NodePlan) -> None:
    """Start the dependencies of the node that will come next."""
    resolution = Resolution(run, plan, {})
    started = resolution.flow.start_ahead(run)
    for field in plan.context:
        # A dependency that is not shared would be called a second time for the node.
        if field.starts_early and field.is_shared and not field.depends_on_run:
            place = Place(run.path, run.step + 1, plan.name, field.name)
            started.append(field.start(resolution, place))


class _StackedFlow(Dataflow):
    """A dataflow outside a run. The caller's stack closes generators and context managers."""

    def __init__(self, cache: dict[Any, Any] | None, stack: AsyncExitStack | None) -> None:
        super().__init__(cache)
        self._stack = stack

    def on_close(self, name: str, closer: Closer) -> None:
        if self._stack is not None:

            async def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
                await closer(error)

            self._stack.push_async_exit(leave)
            return
        super().on_close(name, closer)

    async def gather(
        self, values: Sequence[PendingValue], optional: Set[PendingValue] = frozenset()
    ) -> PendingValue | None:
        try:
            failed = await super().gather(values, optional)
        except BaseException as error:
            await self.close(error)
            raise
        if self.closers:
            raised = await self.close(None if failed is None else failed.error)
            if failed is None:
                raise BaeError(
                    "a generator or context manager was opened outside a run, where nothing would "
                    "close it later; it has been closed",
                    code="bae-dep-unowned",
                    cause=raised,
                    fix="pass stack=AsyncExitStack(), or run the graph",
                )
        return failed


class Resolution:
    """Computes the values of the fields of one node. `known` are the values that exist already."""

    def __init__(self, run: Run, plan: NodePlan, known: Mapping[str, Any]) -> None:
        self.run, self.plan, self.known = run, plan, known
        self.flow = cast(Dataflow, run.flow)
        self._pending: dict[str, PendingValue] = {}

    async def values_of(self, fields: Sequence[FieldPlan]) -> dict[str, Any]:
        """Compute and return the values of `fields`, and of the fields that they need. A field
        whose source failed is left out if it has a default."""
        for field in fields:
            if field.name not in self._pending:
                self._start_field(field)
        pending, values = self._pending, list(self._pending.values())
        optional = {*values}
        for field in fields:
            if field.required:
                optional.discard(pending[field.name])
        failed = await self.flow.gather(values, optional)
        if failed is not None:
            names = [*(field.name for field in fields if field.required), *pending]
            raise failure_of(self.plan, next(n for n in names if pending[n] is failed), failed)
        resolved: dict[str, Any] = {}
        for name, value in pending.items():
            if value.error is None:
                resolved[name] = value.value
            else:
                _warn_of_default(self.plan, name, value)
        return resolved

    def _start_field(self, field: FieldPlan) -> PendingValue:
        place = Place(self.run.path, self.run.step, self.plan.name, field.name)
        value = self._pending[field.name] = field.start(self, place)
        return value

    def siblings(self, names: Iterable[tuple[str, str]]) -> list[tuple[str, PendingValue]]:
        """Start the fields that a `Dep` or `Map` field needs, and return their pending values.
        `names` pairs each bound parameter of the function with the name of its field. The parameter
        is empty for the field that a `Map` iterates over."""
        values: list[tuple[str, PendingValue]] = []
        for parameter, name in names:
            value = self._pending.get(name) or self._start_sibling(name)
            if not value.done:
                value.users += 1
            values.append((parameter, value))
        return values

    def _start_sibling(self, name: str) -> PendingValue:
        """Return the value of a field that another field needs, and start its source if needed."""
        field, values = self.plan.fields[name], self.known
        if name not in values and not field.is_immediate:
            return self._start_field(field)
        if name in values:
            value = values[name]
        else:  # the trace has no value, so the default is used
            value = field.info.get_default(call_default_factory=True, validated_data=dict(values))
        place = Place(self.run.path, self.run.step, self.plan.name, name)
        is_validated = name in values and not field.is_immediate
        return make_finished_value(self.run, self.plan.node, place, value, is_validated)


def failure_of(plan: NodePlan, name: str, failed: PendingValue) -> BaeError:
    """Return the error to raise for a field whose value could not be computed."""
    error = cast(BaseException, failed.error)
    if isinstance(error, GateError | HintError | JournalError | RecallError):
        return error
    path = failed.failure_path(f"{plan.name}.{name}")
    if isinstance(error, BudgetError):
        # The caller set the limit: the dependency that reached it has not failed.
        error.path = f"{path}: {error.path}" if error.path else path
        return error
    below = failed
    while below.failed_input is not None:
        below = below.failed_input[1]
    item = "" if below.failed_item is None else f"[{below.failed_item}]"
    place = f"{plan.name}.{name}{item}"
    code = DepError.code
    if isinstance(error, CallTimeout):
        code, message = "bae-dep-timeout", str(error)
        marker = f"{below.source.title()}({below.name}, timeout=…)"
        fix = f"raise the bound: {marker}, or give the field a default"
    elif isinstance(error, BaeError) and below.call is not None and below.call.graph is not None:
        # The error of the inner graph has a better fix.
        message, fix = f"in the graph {below.name}, {error.message}", error.fix
        path = f"{path}: {error.path}" if error.path else path
    else:
        message = f"{below.name} raised {type(error).__name__}"
        fix = f"fix {below.name}, retry it with retries=…, or give the field a default"
    return DepError(
        f"{place}: {message}",
        node_type=plan.node,
        field_name=name,
        code=code,
        path=path,
        cause=error,
        fix=fix,
    )


def _warn_of_default(plan: NodePlan, name: str, failed: PendingValue) -> None:
    import logging

    error = cast(BaseException, failed.error)
    logging.getLogger("bae").warning(
        "%s.%s: its default is used, since %s failed: %s",
        plan.name,
        name,
        failed.name,
        describe(error),
    )
