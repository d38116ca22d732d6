"""The prompts that a graph can send, without sending them. Nodes are samples, or given, and the
prompts are made from them as in a run. `Graph.prompts` and `bae prompts` show them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from bae.calls import every_call
from bae.core_schemas import field_schema
from bae.draft import from_answer, hold, validate_values, with_resolved
from bae.exceptions import ScriptError
from bae.failures import not_an_lm
from bae.given_lm import looked_up
from bae.graph_plan import plan_of_graph
from bae.language_model import RoutingLM, is_lm
from bae.node import Node
from bae.place import Place
from bae.plan import FieldPlan, NodePlan, plan_of
from bae.prompts.questions import choice_of, fill_prompt
from bae.prompts.samples import sample
from bae.prompts.schemas import fill_schema, has_schema
from bae.prompts.tools import ToolPrompts
from bae.prompts.values import asked_fields
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
"""How many samples are tried if a user's validators refuse one."""


def prompts_of(
    graph: Graph[Any, Any], nodes: Sequence[Node], lm: LM | str | None = None
) -> list[Prompt]:
    """See `Graph.prompts`."""
    graph.prove()
    known = {cls for each in graph.graphs for cls in each.nodes}
    for node in nodes:
        if type(node) not in known:
            raise TypeError(
                f"graph.prompts({node!r:.200}): give nodes of the graph {graph.name}, which has "
                f"{', '.join(sorted(cls.__name__ for cls in known))}"
            )
    walk = _Walk({type(node): node for node in nodes}, lm, plan_of_graph(graph).hidden)
    walk.follow(graph, None)
    return walk.found


class _Unasked(RoutingLM):
    """An LM for which prompts are made, and which is never asked."""

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
        """A choice in which all of `fillable` come filled, as far as they can."""
        at_once = fillable if self._one_call else ()
        return choice_of(tuple(types), tuple(at_once), tuple(resolved or ()))

    def pinned(self, lm: LM) -> LM:
        """The LM itself."""
        return lm


_FOUR_METHODS: Final = _Unasked(one_call=False)


def _routing(lm: LM) -> RoutingLM:
    """The `RoutingLM` of an LM. An LM with only the four methods chooses, then fills."""
    return lm if isinstance(lm, RoutingLM) else _FOUR_METHODS


class _Walk:
    """Walks from the start of a graph to every node class once, by a shortest path, and collects
    the questions to an LM at each node."""

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
            raise not_an_lm(lm)
        self._lm: LM = _Unasked() if lm is None else lm
        self._by_name: dict[str, LM] = {}
        self._seen: set[tuple[type[Node], str]] = set()

    def follow(self, graph: Graph[Any, Any], outer: Run | None) -> None:
        """Collect the questions of a graph, and then those of the graphs inside it."""
        if (graph.start, graph.name) in self._seen:
            return
        self._seen.add((graph.start, graph.name))
        plans = plan_of_graph(graph).plans
        for plan in plans.values():
            if isinstance(plan.lm, str):  # resolving it may need a key, or a program
                self._by_name.setdefault(plan.lm, _Unasked())
        inside: list[tuple[NodePlan, Run]] = []
        around = Run() if outer is None else outer
        around.turns = _SAMPLE_TURNS

        def run_with(trace: list[Node]) -> Run:
            own = Run(RunOptions(self._lm, 0), trace=trace, outer=outer)
            own.outermost.notes.named.update(self._by_name)
            own.scene = replace(plan_of_graph(graph).scene or around.scene, hidden=self._hidden)
            own.shows = graph.context or around.shows
            own.shows_limit = graph.context_limit or around.shows_limit
            own.step, own.turns = len(trace), _SAMPLE_TURNS
            return own

        start = plans[graph.start]
        before = run_with([])
        inside.append((start, before))
        if plan_of_graph(graph).is_filled:
            self.found += self._asked_to_fill([graph.start], before, next(before.seen(), None))
        runs = {
            graph.start: run_with(
                [self._node(start, self._resolved_values(start, start.context, before))]
            )
        }
        ahead = [graph.start]
        for cls in ahead:
            run = runs[cls]
            self.found += self._asked_after(plans, plans[cls], run)
            for target in plans[cls].successors:
                if target in runs:
                    continue
                plan = plans[target]
                inside.append((plan, run))
                node = self._node(plan, self._resolved_values(plan, plan.context, run))
                runs[target] = run_with([*run.trace, node])
                ahead.append(target)
        for plan, run in inside:
            for field in plan.called:
                for call in every_call(field.call):
                    if call.graph is not None:
                        self.follow(call.graph, run)

    def _asked_after(
        self, plans: Mapping[type[Node], NodePlan], plan: NodePlan, run: Run
    ) -> Iterator[Prompt]:
        """The questions between a node and the next node."""
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
            choice = _routing(lm).offer(previous, plan.offered, fillable, resolved)
            filled = choice.fillable
            origins = {cls: run.origins(records) for cls, (_, records) in recalled.items()}
            scene = run.scene_for(plan, previous).recalling(origins)
            prompt = choice.prompt(previous, None, resolved, scene)
            yield _routing(lm).with_learned(prompt)
        targets = [target for target in targets if target not in filled]
        yield from self._asked_to_fill(targets, run, previous, lm if plan.written else None)

    def _asked_to_fill(
        self,
        targets: Sequence[type[Node]],
        run: Run,
        previous: Node | None,
        lm: LM | None = None,
    ) -> Iterator[Prompt]:
        """The questions to fill nodes; `lm` is the LM of a body that has them filled."""
        for target in targets:
            own, asked = plan_of(target), asked_fields(target)
            if not asked and own.tools is None:
                continue
            filling = _routing(cast("LM", run.lm_for(own)) if lm is None else lm)
            fields = own.context if lm is None else looked_up(own, {})
            records: list[Found] = []
            resolved = self._resolved_values(own, fields, run, records)
            scene = run.scene_for(own, previous).recalling({target: run.origins(records)})
            prompt = fill_prompt(target, asked, resolved, own.instruction, previous, scene)
            if own.tools is not None:
                specs, is_native = own.tools.tool_specs, filling.calls_tools
                prompt = ToolPrompts(prompt, specs, is_native=is_native).first
            yield filling.with_learned(prompt)

    def _resolved_values(
        self,
        plan: NodePlan,
        fields: Sequence[FieldPlan],
        run: Run,
        records: list[Found] | None = None,
    ) -> dict[str, Any]:
        """Values for fields that are resolved before a node is filled: from a given node, recalled,
        with `records`, otherwise samples."""
        given = self._given.get(plan.node)
        held: Mapping[str, Any] = {} if given is None else given.__dict__
        values: dict[str, Any] = {}
        for field in fields:
            place = Place(run.path, run.step, plan.name, field.name)
            value = field.find(run, plan.node, place) if field.is_immediate else None
            if value is not None and records is not None:
                records.append(value[1])
            if field.name in held:
                values[field.name] = held[field.name]
            elif value is not None:
                values[field.name] = value[0]
            elif not field.is_immediate or field.required:
                values |= _sample_field(plan.node, field)
        return values

    def _node(self, plan: NodePlan, resolved: Mapping[str, Any]) -> Node:
        """A node with all values that can be known."""
        cls, given = plan.node, self._given.get(plan.node)
        if given is None and not plan.fields:
            return cls()
        held: Mapping[str, Any] = {} if given is None else given.__dict__
        late: dict[str, Any] = {}
        for field in plan.after:
            late |= (
                {field.name: held[field.name]} if field.name in held else _sample_field(cls, field)
            )
        known = {**resolved, **late}
        if given is not None:
            return with_resolved(given, known) if known else given
        for seed in range(_SEEDS):
            values: dict[str, Any] = {}
            for field in plan.plain:
                values |= _sample_json(cls, field, seed)
            with suppress(Exception):  # of validators, which may raise anything
                return with_resolved(from_answer(cls, values, frozenset(values)), known)
        # No sample passes its validators, or it has a constructor of its own.
        for field in plan.plain:
            known |= _sample_field(cls, field)
        shell = cls.__new__(cls)
        hold(shell, {n: known[n] for n in plan.fields if n in known}, None, set(known))
        return shell


def _sample_field(cls: type[Node], field: FieldPlan) -> dict[str, Any]:
    """A value for one field, by its name; nothing where JSON cannot express its type."""
    values: dict[str, Any] = {}
    for seed in range(_SEEDS):
        values = _sample_json(cls, field, seed)
        with suppress(Exception):  # of validators, which may raise anything
            return validate_values(cls, values, frozenset(values))
    return values


def _sample_json(cls: type[Node], field: FieldPlan, seed: int) -> dict[str, Any]:
    """The sample as JSON, which a user's validators may refuse."""
    if not has_schema(field_schema(cls, field.name), "validation"):
        return {}
    schema = fill_schema(cls, (field.name,))
    for made in (schema, _without_minimums(schema)):
        for title, part in (cls.__name__, made), *made.get("$defs", {}).items():
            if "properties" in part:
                own, rules = part.get("title", title), part["properties"]
                part["properties"] = {n: _name_text(own, n, r) for n, r in rules.items()}
        with suppress(ScriptError):  # no text was found for a pattern, or the value is huge
            return sample(made, seed)
    return {}


def _without_minimums(schema: Any) -> Any:
    """A schema that short values fit too: a prompt shows only the beginning of a huge value."""
    if isinstance(schema, list):
        return [_without_minimums(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    rules = cast("dict[str, Any]", schema).items()
    return {n: _without_minimums(r) for n, r in rules if n not in _MINIMUMS or isinstance(r, dict)}


_MINIMUMS: Final = ("minLength", "minItems", "minProperties")


def _name_text(owner: str, name: str, rule: Any) -> Any:
    """The schema of a field. If any text fits, the sample names the field, so that the text can be
    recognized where it is shown again."""
    text = f"sample {owner}.{name}"
    bounded = rule.get("minLength", 0) <= len(text) <= rule.get("maxLength", len(text))
    if rule.get("type") != "string" or not bounded or _FORMED & rule.keys():
        return rule
    return {"const": text}


_FORMED: Final = {"const", "enum", "format", "pattern", "contentMediaType"}


def _read_body(plan: NodePlan) -> tuple[list[type[Node]], bool]:
    """The classes that a written body may have an LM make, and whether it may have it decide, as
    far as its code shows. Questions in its own words are not known before it runs."""
    body = inspect.unwrap(cast(Any, plan.node).__call__)
    names: Sequence[str] = getattr(getattr(body, "__code__", None), "co_names", ())
    asks = {name for name in names if name in ("make", "decide", "choose_type", "fill")}
    classes: list[type[Node]] = []
    with suppress(TypeError, ValueError):  # no Python function, or a name that has no value yet
        variables = inspect.getclosurevars(body)
        there = [*variables.nonlocals.values(), *variables.globals.values()]
        classes = [c for c in there if isinstance(c, type) and issubclass(c, Node)]
    makes = (classes or list(plan.successors)) if "make" in asks or not asks else []
    decides = len(plan.offered) > 1 and ("decide" in asks or not asks)
    if "decide" in asks:
        makes = list(dict.fromkeys([*makes, *plan.successors]))
    return makes, decides
