"""Checks that LLMs see what the caller gave. If an LLM fills or chooses a node and its prompt shows
none of the caller's values, the proof warns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import SecretBytes, SecretStr

from bae.assignable import type_name, union_members
from bae.exceptions import Problem, a_warning
from bae.graph_plan import plan_of_graph
from bae.plan import FieldPlan, NodePlan, plan_of
from bae.sources.recall import RecallField

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.language_model import Shown
    from bae.node import Node


def lost_context(graph: Graph[Any, Any], contexts: Sequence[Shown | None]) -> Iterator[Problem]:
    """Yield a warning for every node class that an LLM fills, or whose successor an LLM chooses, if
    on some path the LLM sees none of the caller's values. `contexts` are the values of the setting
    `context` that the graph runs with. There are several if graphs with different settings contain
    this graph."""
    start = plan_of_graph(graph).plans[graph.start]
    shown = [f for f in plan_of_graph(graph).start_fields if f.required and _is_shown(start, f)]
    if not shown:
        return
    walk = _Walk(graph, contexts)
    for field, filled in _filled_for(start):
        what = f"the LM fills {filled.name} without seeing what the caller gave {start.name}: "
        what += "no node comes before it"
        fix = f"put {field.name} on a node after {start.name}"
        yield a_warning("bae-context-lost", what, fix, f"{start.name}.{field.name}")
    warned: set[type[Node]] = set()
    for visit, path in walk.visits():
        if visit.node in warned:
            continue  # the fix for this node also fixes the questions after it
        for target, chooses in walk.unseen(visit):
            if target not in warned:
                warned.add(target)
                names = path if chooses else [*path, target.__name__]
                # The start cannot recall: no node comes before its first visit. If a loop leads
                # back to the start, the node before it can recall.
                place = visit.node if target is graph.start else target
                yield _warning(graph, target, shown[0], names, chooses, place)
        for target in walk.unseen_for_fields(visit):
            if target not in warned:
                warned.add(target)
                yield _warning(graph, target, shown[0], [*path, target.__name__], False, target)


def _filled_for(plan: NodePlan) -> Iterator[tuple[FieldPlan, NodePlan]]:
    """Yield the fields of a node whose value is a node that an LLM fills, with the plan of the
    filled node."""
    for field in plan.sourced:
        graph = None if field.call is None else field.call.graph
        if graph is None or not plan_of_graph(graph).is_filled:
            continue
        start = plan_of_graph(graph).plans[graph.start]
        if start.plain:
            yield field, start


class _Visit(NamedTuple):
    """A visit of a node on a path through the graph."""

    node: type[Node]
    shows: bool
    """Whether the node's fields hold values of the caller."""


class _Walk:
    """Follows the paths of a graph, to find questions that do not show the caller's values."""

    def __init__(self, graph: Graph[Any, Any], contexts: Sequence[Shown | None]) -> None:
        self._start, self._plans, self._contexts = graph.start, plan_of_graph(graph).plans, contexts
        plans = self._plans.values()
        self._filled = {cls for p in plans if not p.written for cls in p.successors}
        self._carriers = set(self._plans)
        """The classes whose nodes hold the caller's values on every path. The search begins with
        all classes. It removes classes until nothing changes, because a class may hold the values
        only by recalling them from another class."""
        self._recalls: dict[type[Node], bool] = {}
        while True:
            self._recalls = {c: self._recalls_given(plan, c) for c, plan in self._plans.items()}
            without = {visit.node for visit, _ in self.visits() if not visit.shows}
            if without.isdisjoint(self._carriers):
                return
            self._carriers -= without

    def visits(self) -> list[tuple[_Visit, list[str]]]:
        """Return all possible visits without duplicates, with the shortest path to each visit."""
        paths = {_Visit(self._start, True): [self._start.__name__]}
        ahead = list(paths)
        for visit in ahead:
            for following in self._following(visit):
                if following not in paths:
                    paths[following] = [*paths[visit], following.node.__name__]
                    ahead.append(following)
        return list(paths.items())

    def unseen(self, visit: _Visit) -> Iterator[tuple[type[Node], bool]]:
        """Yield the classes that an LLM fills after this node without seeing the caller's values,
        each with False. If the LLM also chooses the successor without seeing these values, yield
        only the class of this node, with True."""
        plans = self._plans
        plan = plans[visit.node]
        if visit.shows or (plan.written and not plan.needs_lm):
            return
        lost = [cls for cls in plan.successors if not self._recalls[cls]]
        is_choice = not plan.written and len(plan.offered) > 1
        if is_choice and not self._shows_start(plan):
            # The options may recall the values, but some models choose before they see an option.
            yield visit.node, True
            return  # the fix of the choice also fixes the fill after it
        for cls in lost:
            if plans[cls].plain and not self._shows_start(plans[cls]):
                yield cls, False

    def unseen_for_fields(self, visit: _Visit) -> Iterator[type[Node]]:
        """Yield the classes that an LLM fills for fields of the next nodes without seeing the
        caller's values."""
        plans = self._plans
        for plan in () if visit.shows else (plans[cls] for cls in plans[visit.node].successors):
            for _, filled in _filled_for(plan):
                if not self._shows_start(filled) and not self._recalls_given(filled, plan.node):
                    yield filled.node

    def _shows_start(self, plan: NodePlan) -> bool:
        """Return whether the setting `context` makes questions about a class show the caller's
        values. Also return True if the class itself sets "previous". That is the default, so its
        author has decided not to show more."""
        if plan.shows == "previous":
            return True
        contexts = self._contexts if plan.shows is None else [plan.shows]
        return all(
            context in ("start", "trace")
            if context is None or isinstance(context, str)
            else self._passes_given(context, plan.node)
            for context in contexts
        )

    def _passes_given(self, context: type[Node] | tuple[type[Node], ...], goal: type[Node]) -> bool:
        """Return whether every path to `goal` has a node that `context` shows and that holds the
        caller's values."""
        from bae.proof import path_avoiding

        start = self._start
        edges = {cls: plan.successors for cls, plan in self._plans.items()}
        shown = {cls for cls in self._carriers if issubclass(cls, context)}
        return start in shown or path_avoiding(edges, start, goal, shown.__contains__) is None

    def _following(self, visit: _Visit) -> Iterator[_Visit]:
        """Yield the visits that may follow. A written body can pass the caller's values on to the
        next node. The LLM's answers do not count as values of the caller."""
        plan = self._plans[visit.node]
        for cls in plan.successors:
            passed_on = plan.written and visit.shows and bool(self._plans[cls].plain)
            yield _Visit(cls, cls is self._start or passed_on or self._recalls[cls])

    def _recalls_given(self, plan: NodePlan, cls: type[Node]) -> bool:
        """Return whether a field that prompts show recalls a value of the caller on every path to
        `cls`."""
        shown = [field for field in plan.context if _is_shown(plan, field)]
        recalls = [recall for f in shown for path, _, recall in f.recalls() if not path]
        return any(self._finds_given(field, cls) for field in recalls)

    def _finds_given(self, field: RecallField, cls: type[Node]) -> bool:
        holders = {c: h[0][0] for c in self._plans if (h := field.holders_in(c))}
        nearby = {c: name for c, name in holders.items() if self._leads_to(c, cls)}
        return bool(nearby) and all(
            c is self._start or (c in self._carriers and (not name or c not in self._filled))
            for c, name in nearby.items()
        )

    def _leads_to(self, start: type[Node], goal: type[Node]) -> bool:
        """Return whether a run can get from one node to another without visiting the graph's start
        in between."""
        visited: set[type[Node]] = {self._start}
        ahead = [start]
        for cls in ahead:
            for following in self._plans[cls].successors:
                if following is goal:
                    return True
                if following not in visited:
                    visited.add(following)
                    ahead.append(following)
        return False


def _is_shown(plan: NodePlan, field: FieldPlan) -> bool:
    """Return whether a prompt that shows a node has the value of the field."""
    is_revealed = field.name in plan.revealed
    if field.info.exclude or not (field.info.repr or is_revealed):
        return False
    if field.annotation in (str, int, float, bool):
        return True
    members = {member for member in union_members(field.annotation) if member is not NoneType}
    if members <= {SecretStr, SecretBytes} and not is_revealed:
        return False
    from bae.prompts.values import find_visible_fields

    return field.name in find_visible_fields(plan.node)


def _warning(
    graph: Graph[Any, Any],
    target: type[Node],
    field: FieldPlan,
    names: list[str],
    chooses: bool,
    place: type[Node],
) -> Problem:
    start = graph.start.__name__
    exists = field.name in plan_of(place).fields
    name = f"{start[0].lower()}{start[1:]}_{field.name}" if exists else field.name
    recall = f"{name}: Annotated[{type_name(field.annotation)}, Recall({start})]"
    question = f"chooses what follows {target.__name__}" if chooses else f"fills {target.__name__}"
    return a_warning(
        "bae-context-lost",
        f"the LM {question} without seeing what the caller gave {start}, on the path "
        f"{' -> '.join(names)}",
        f"add `{recall}` to {place.__name__}",
        target.__name__,
    )
