"""The prompts that a graph can send, made without sending them. The nodes in the prompts are
samples or nodes of the caller. `Graph.prompts` and `bae prompts` show these prompts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from bae.calls import every_call
from bae.core_schemas import field_schema
from bae.draft import from_answer, hold, set_resolved_values, validate_values
from bae.exceptions import ScriptError
from bae.failures import not_an_lm_error
from bae.given_lm import list_fields_to_resolve
from bae.graph_plan import plan_of_graph
from bae.language_model import RoutingLM, is_lm
from bae.node import Node
from bae.place import Place
from bae.plan import FieldPlan, NodePlan, plan_of
from bae.prompts.questions import choice_of, fill_prompt
from bae.prompts.samples import sample
from bae.prompts.schemas import fill_schema, has_schema
from bae.prompts.tools import ToolPrompts
from bae.prompts.values import list_fields_to_fill
from bae.run import Run, RunOptions
from bae.runner import options_ahead
from bae.turns import Messages

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.language_model import LM
    from bae.prompts.messages import Prompt
    from bae.prompts.questions import Choice
    from bae.records import Found
    from bae.secrets import Copies

_SAMPLE_TURNS: Final = Messages([("sample of an earlier message", "sample of its reply")])
_SEEDS: Final = 8
"""The number of samples to try, since a user's validators may reject a sample."""


def prompts_of(
    graph: Graph[Any, Any], nodes: Sequence[Node], lm: LM | str | None = None
) -> list[Prompt]:
    """Return the prompts of a graph: see `Graph.prompts`."""
    graph.prove()
    node_types = {cls for subgraph in graph.graphs for cls in subgraph.nodes}
    for node in nodes:
        if type(node) not in node_types:
            raise TypeError(
                f"graph.prompts({node!r:.200}): give nodes of the graph {graph.name}, which has "
                f"{', '.join(sorted(cls.__name__ for cls in node_types))}"
            )
    walk = _Walk({type(node): node for node in nodes}, lm, plan_of_graph(graph).hidden)
    walk.follow(graph, None)
    return walk.found


class _PreviewLM(RoutingLM):
    """An LM for previews, which bae never asks."""

    make = decide = choose_type = fill = route = restore = cast(Any, None)

    def __init__(self, *, one_call: bool = True) -> None:
        self._one_call = one_call

    def offer(
        self,
        node: Node | None,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
        resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
    ) -> Choice:
        """Return a choice. An LM with one call fills all options in `fillable` that JSON can
        express."""
        at_once = fillable if self._one_call else ()
        return choice_of(tuple(types), tuple(at_once), tuple(resolved or ()))

    def pinned(self, lm: LM) -> LM:
        """Return the LM itself."""
        return lm


_FOUR_METHODS: Final = _PreviewLM(one_call=False)


def _routing_lm(lm: LM) -> RoutingLM:
    """Return the LM if it is a `RoutingLM`. For an LM with only the four methods of `LM`, return a
    stand-in that chooses first and then fills."""
    return lm if isinstance(lm, RoutingLM) else _FOUR_METHODS


class _Walk:
    """A walk from the start of a graph to every node class once, by a shortest path. At each node,
    it collects the questions to an LM."""

    def __init__(
        self,
        given: Mapping[type[Node], Node],
        lm: LM | str | None,
        hidden: Copies | None,
    ) -> None:
        self.found: list[Prompt] = []
        self._hidden = hidden
        self._given = given
        if isinstance(lm, str):
            from bae.rooms import cached_lm

            lm = cached_lm(lm)
        if lm is not None and (isinstance(lm, type) or not is_lm(lm)):
            raise not_an_lm_error(lm)
        self._lm: LM = _PreviewLM() if lm is None else lm
        self._by_name: dict[str, LM] = {}
        self._seen: set[tuple[type[Node], str]] = set()

    def follow(self, graph: Graph[Any, Any], outer: Run | None) -> None:
        """Collect the questions of a graph, then the questions of the graphs inside it."""
        if (graph.start, graph.name) in self._seen:
            return
        self._seen.add((graph.start, graph.name))
        plans = plan_of_graph(graph).plans
        for plan in plans.values():
            if isinstance(plan.lm, str):  # loading a named LM may need a key or a program
                self._by_name.setdefault(plan.lm, _PreviewLM())
        inside: list[tuple[NodePlan, Run]] = []
        around = Run() if outer is None else outer
        around.turns = _SAMPLE_TURNS

        def run_with(trace: list[Node]) -> Run:
            preview_run = Run(RunOptions(self._lm, 0), trace=trace, outer=outer)
            preview_run.outermost.notes.lms.update(self._by_name)
            preview_run.scene = replace(
                plan_of_graph(graph).scene or around.scene, hidden=self._hidden
            )
            preview_run.shows = graph.context or around.shows
            preview_run.shows_limit = graph.context_limit or around.shows_limit
            preview_run.step, preview_run.turns = len(trace), _SAMPLE_TURNS
            return preview_run

        start = plans[graph.start]
        before = run_with([])
        inside.append((start, before))
        if plan_of_graph(graph).is_filled:
            self.found += self._fill_prompts(
                [graph.start], before, next(before.walk_earlier_nodes(), None)
            )
        runs = {
            graph.start: run_with(
                [self._make_node(start, self._resolve_values(start, start.context, before))]
            )
        }
        classes = [graph.start]
        for cls in classes:
            run = runs[cls]
            self.found += self._prompts_after(plans, plans[cls], run)
            for target in plans[cls].successors:
                if target in runs:
                    continue
                plan = plans[target]
                inside.append((plan, run))
                node = self._make_node(plan, self._resolve_values(plan, plan.context, run))
                runs[target] = run_with([*run.trace, node])
                classes.append(target)
        for plan, run in inside:
            for field in plan.called:
                for call in every_call(field.call):
                    if call.graph is not None:
                        self.follow(call.graph, run)

    def _prompts_after(
        self, plans: Mapping[type[Node], NodePlan], plan: NodePlan, run: Run
    ) -> Iterator[Prompt]:
        """Yield the prompts between a node and the next node."""
        if plan.written and plan.lm_parameter is None:
            return
        lm, previous = cast("LM", run.lm_for(plan)), run.trace[-1]
        targets, decides = [*plan.successors], len(plan.offered) > 1
        if plan.written:
            targets, decides = _read_body(plan)
        filled: tuple[type[Node], ...] = ()
        if decides:
            fillable, recalled = options_ahead(run, plans, plan, None if plan.written else lm)
            resolved = {cls: values for cls, (values, _) in recalled.items()}
            choice = _routing_lm(lm).offer(previous, plan.offered, fillable, resolved)
            filled = choice.fillable
            origins = {cls: run.origins(records) for cls, (_, records) in recalled.items()}
            scene = run.scene_for(plan, previous).recalling(origins)
            prompt = choice.prompt(previous, None, resolved, scene)
            yield _routing_lm(lm).with_learned(prompt)
        targets = [target for target in targets if target not in filled]
        yield from self._fill_prompts(targets, run, previous, lm if plan.written else None)

    def _fill_prompts(
        self,
        targets: Sequence[type[Node]],
        run: Run,
        previous: Node | None,
        lm: LM | None = None,
    ) -> Iterator[Prompt]:
        """Yield the prompts to fill nodes. `lm` is the LM of a body that has the nodes filled."""
        for target in targets:
            plan, fields_to_fill = plan_of(target), list_fields_to_fill(target)
            if not fields_to_fill and plan.tools is None:
                continue
            filling = _routing_lm(cast("LM", run.lm_for(plan)) if lm is None else lm)
            fields = plan.context if lm is None else list_fields_to_resolve(plan, {})
            records: list[Found] = []
            resolved = self._resolve_values(plan, fields, run, records)
            scene = run.scene_for(plan, previous).recalling({target: run.origins(records)})
            prompt = fill_prompt(
                target, fields_to_fill, resolved, plan.instruction, previous, scene
            )
            if plan.tools is not None:
                specs, is_native = plan.tools.tool_specs, filling.calls_tools
                prompt = ToolPrompts(prompt, specs, is_native=is_native).first
            yield filling.with_learned(prompt)

    def _resolve_values(
        self,
        plan: NodePlan,
        fields: Sequence[FieldPlan],
        run: Run,
        records: list[Found] | None = None,
    ) -> dict[str, Any]:
        """Return values for the fields that are resolved before the fill. Use the value in the
        caller's node if there is one, else a recalled value, else a sample. Add the records of
        recalled values to `records`."""
        given = self._given.get(plan.node)
        given_values: Mapping[str, Any] = {} if given is None else given.__dict__
        values: dict[str, Any] = {}
        for field in fields:
            place = Place(run.path, run.step, plan.name, field.name)
            value = field.find(run, plan.node, place) if field.is_immediate else None
            if value is not None and records is not None:
                records.append(value[1])
            if field.name in given_values:
                values[field.name] = given_values[field.name]
            elif value is not None:
                values[field.name] = value[0]
            elif not field.is_immediate or field.required:
                values |= _sample_field(plan.node, field)
        return values

    def _make_node(self, plan: NodePlan, resolved: Mapping[str, Any]) -> Node:
        """Return a node that is as complete as possible."""
        cls, given = plan.node, self._given.get(plan.node)
        if given is None and not plan.fields:
            return cls()
        given_values: Mapping[str, Any] = {} if given is None else given.__dict__
        late_values: dict[str, Any] = {}
        for field in plan.after:
            late_values |= (
                {field.name: given_values[field.name]}
                if field.name in given_values
                else _sample_field(cls, field)
            )
        known = {**resolved, **late_values}
        if given is not None:
            return set_resolved_values(given, known) if known else given
        for seed in range(_SEEDS):
            values: dict[str, Any] = {}
            for field in plan.plain:
                values |= _sample_json(cls, field, seed)
            with suppress(Exception):  # validators may raise anything
                return set_resolved_values(from_answer(cls, values, frozenset(values)), known)
        # No sample passes the validators, or the class has a constructor of its own.
        for field in plan.plain:
            known |= _sample_field(cls, field)
        shell = cls.__new__(cls)
        hold(shell, {n: known[n] for n in plan.fields if n in known}, None, set(known))
        return shell


def _sample_field(cls: type[Node], field: FieldPlan) -> dict[str, Any]:
    """Return a sample for one field, by name, or nothing if JSON cannot express its type."""
    values: dict[str, Any] = {}
    for seed in range(_SEEDS):
        values = _sample_json(cls, field, seed)
        with suppress(Exception):  # validators may raise anything
            return validate_values(cls, values, frozenset(values))
    return values


def _sample_json(cls: type[Node], field: FieldPlan, seed: int) -> dict[str, Any]:
    """Return a sample for one field as JSON, by name. A user's validators may reject the sample."""
    if not has_schema(field_schema(cls, field.name), "validation"):
        return {}
    schema = fill_schema(cls, (field.name,))
    for variant in (schema, _without_minimums(schema)):
        for title, part in (cls.__name__, variant), *variant.get("$defs", {}).items():
            if "properties" in part:
                owner, rules = part.get("title", title), part["properties"]
                part["properties"] = {n: _name_text(owner, n, r) for n, r in rules.items()}
        with suppress(ScriptError):  # no text fits a pattern, or the sample is too large
            return sample(variant, seed)
    return {}


def _without_minimums(schema: Any) -> Any:
    """Return the schema without minimum lengths, for a value that is too large to sample. A short
    value is enough for a preview."""
    if isinstance(schema, list):
        return [_without_minimums(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    rules = cast("dict[str, Any]", schema).items()
    return {n: _without_minimums(r) for n, r in rules if n not in _MINIMUMS or isinstance(r, dict)}


_MINIMUMS: Final = ("minLength", "minItems", "minProperties")


def _name_text(owner: str, name: str, rule: Any) -> Any:
    """Return the schema of a field. If any text fits, allow only a sample with the name of the
    field. A reader then recognizes the sample in later prompts."""
    text = f"sample {owner}.{name}"
    bounded = rule.get("minLength", 0) <= len(text) <= rule.get("maxLength", len(text))
    if rule.get("type") != "string" or not bounded or _TEXT_RULES & rule.keys():
        return rule
    return {"const": text}


_TEXT_RULES: Final = {"const", "enum", "format", "pattern", "contentMediaType"}
"""Keywords that restrict which texts fit."""


def _read_body(plan: NodePlan) -> tuple[list[type[Node]], bool]:
    """Return the classes that a written body may have an LM make, and whether the body may have the
    LM decide. Both are read from the code of the body. Questions that the body words itself are not
    known before it runs."""
    body = inspect.unwrap(cast(Any, plan.node).__call__)
    names: Sequence[str] = getattr(getattr(body, "__code__", None), "co_names", ())
    asks = {name for name in names if name in ("make", "decide", "choose_type", "fill")}
    classes: list[type[Node]] = []
    with suppress(TypeError, ValueError):  # not a Python function, or a name without a value
        variables = inspect.getclosurevars(body)
        referenced = [*variables.nonlocals.values(), *variables.globals.values()]
        classes = [c for c in referenced if isinstance(c, type) and issubclass(c, Node)]
    makes = (classes or list(plan.successors)) if "make" in asks or not asks else []
    decides = len(plan.offered) > 1 and ("decide" in asks or not asks)
    if "decide" in asks:
        makes = list(dict.fromkeys([*makes, *plan.successors]))
    return makes, decides
