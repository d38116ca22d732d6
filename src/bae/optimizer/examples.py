"""DSPy examples from transitions, and from those the ones that a node's predictors are trained
with: JSON alone, as the model sees it, without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import SchemaSerializer, from_json

from bae.core_schemas import field_schema, model_config_of
from bae.draft import validated
from bae.evals.case_types import every_node
from bae.exceptions import BaeLMError
from bae.journal.node_codec import node_codec
from bae.lm.extras import load_dspy
from bae.lm.signatures import node_to_signature, with_source
from bae.node import Node
from bae.optimizer.node_schemas import NodePart, chooses, is_trained
from bae.optimizer.predictors import demo_of
from bae.optimizer.transitions import (
    Transition,
    log,
    transitions_from,
    transitions_of,
)
from bae.plan import plan_of
from bae.prompts.questions import names_of
from bae.prompts.values import asked_fields, context_of, in_order, once, seen_of, text_of_json
from bae.result import GraphResult
from bae.secrets import Secrets
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal


BAE: Final = "bae"
"""The key of an example for bae alone: where it comes from, and what no other key has."""
RESERVED: Final = frozenset(
    {"node_type", "next_node_type", "next_node", "run_id", "root", "corrected", BAE}
)
"""The keys of an example that are no fields of a node; a field of that name has an underscore
after it."""
WITHOUT: Final = "without"
"""Under `BAE`: the parts of a node that an example is not to count for."""


def trace_to_examples(trace: Sequence[Node] | GraphResult[Any]) -> list[Any]:
    """One `dspy.Example` for each transition of a trace, or of a result's.

    An example has the fields of the node that the run was at, as JSON, and `node_type`, which are
    its inputs; and `next_node_type`, `next_node` with the `fields` of the node that came and the
    `context` they were filled in, `run_id`, `root` and `corrected`. The end of a run is one to
    "None" if the LM could have continued. Steps of written bodies are examples too, though nothing
    is trained with them: see `fill_examples` and `choice_examples`. Secrets are left out.
    """
    found = transitions_of(trace)
    classes = [type(each.node) for each in found]
    secrets = Secrets([*classes, *(type(e.next_node) for e in found if e.next_node)])
    return [example_of(each, secrets) for each in found]


async def examples_from(
    journal: Journal,
    graph: Graph[Any, Any],
    *,
    limit: int | None = None,
    was: str | Iterable[str] = (),
    evals: bool = False,
    without: Iterable[str] = (),
) -> list[Any]:
    """The steps of the runs of a graph to learn from, as a list of `dspy.Example`:

    ```python
    examples = await examples_from(journal, graph)
    ```

    They are the steps that an LM took in runs that have ended, those of graphs inside them too,
    the newest run first, at most `limit`. If a person forked a run with another value for a field
    that the LM had filled, theirs is the answer, whether or not the fork has ended, and the LM's
    own is left out; of several such the newest counts. It is the answer to the same question in
    other runs, too: an equal node, the same class to fill, and the same context.

    Steps that are known only in part, because something was redacted or is a secret, are left out,
    and so are runs that today's classes cannot read, with a warning. Runs belong to a graph by its
    name: if that has changed, give the old one with `was`.

    Runs of evaluations, by `bae eval` and `bae.evals.evaluate`, are left out, since a case that was
    learned measures nothing; corrections in them count all the same. Give `evals=True` to learn
    from them too. `without` has the ids of runs to leave out, with the corrections in them.
    """
    from bae.optimizer.splits import with_corrections

    found = await transitions_from(
        journal, graph, limit=limit, was=was, evals=evals, without=without
    )
    secrets = Secrets(every_node(graph))

    def convert() -> list[Any]:
        examples: list[Any] = []
        for each in found:
            # A serializer, or a computed field, may need what is missing.
            with suppress(BaeLMError):
                examples.append(example_of(each, secrets))
        if len(examples) < len(found):
            log.warning(
                "steps in runs of %s were left out: %d because what an LM saw there cannot be "
                "shown without what no journal keeps",
                *(graph.name, len(found) - len(examples)),
            )
        return with_corrections(examples)

    # In a thread however few they are: importing DSPy alone takes seconds.
    return await in_thread(convert)


def example_of(transition: Transition, secrets: Secrets | None = None) -> Any:
    """The `dspy.Example` of a transition, as `trace_to_examples` has them.

    `secrets` knows the fields that are not to be shown; without, those of the two nodes are looked
    at.
    """
    node, following = transition.node, transition.next_node
    if secrets is None:
        secrets = Secrets(type(e) for e in (node, following) if e is not None)
    seen = _seen(node, secrets.fields(type(node)))
    taken = set(RESERVED)
    fields = cast("dict[str, Any]", seen) if isinstance(seen, dict) else {}
    values: dict[str, Any] = {}
    for name, value in fields.items():
        free = name
        while free in taken or (free != name and free in fields):
            free += "_"
        taken.add(free)
        values[free] = value
    values["node_type"] = type(node).__name__
    example = load_dspy("example_of").Example(values)
    inputs = list(values)
    example["next_node_type"] = _name_of(transition)
    example["next_node"] = (
        None if following is None else _made(following, secrets.fields(type(following)))
    )
    example["run_id"] = transition.run_id
    example["root"] = transition.root or transition.run_id
    example["corrected"] = list(transition.corrected)
    example[BAE] = {
        "source": {type(node).__name__: seen},
        "types": [_address(type(node)), _address(transition.next_type)],
        "by": "body" if plan_of(type(node)).written else "lm",
        "corrected_at": transition.corrected_at,
    }
    return example.with_inputs(*inputs)


def part_examples(cls: type[Node], part: NodePart, examples: Iterable[Any]) -> list[Any]:
    """The examples to train one part of a node class with."""
    return (fill_examples if part == "fill" else choice_examples)(cls, examples)


def fill_examples(cls: type[Node], examples: Iterable[Any]) -> list[Any]:
    """The examples to train the fill of a node class with: those that led to such a node and were
    filled by the LM, with the inputs and outputs of
    `dspy.Predict(with_source(node_to_signature(cls)))` by their names there. None for a class with
    `Tools`: the answer depends on results that the example does not show."""
    if not is_trained(cls):
        return []
    signature = with_source(node_to_signature(cls))
    required = {field.name for field in plan_of(cls).plain if field.required}
    found: list[Any] = []
    for example in examples:
        made = example.get("next_node")
        if not isinstance(made, Mapping) or not _is_about(example, "fill", cls):
            continue
        parts = cast("Mapping[str, Any]", made)
        fields: Mapping[str, Any] = parts.get("fields") or {}
        if required <= fields.keys():
            known = {**previous_of(example), "context": parts.get("context")}
            corrected = example.get("corrected") or ()
            found.append(_with_origin(demo_of(signature, known, fields), example, corrected))
    return found


def choice_examples(cls: type[Node], examples: Iterable[Any]) -> list[Any]:
    """The examples to train the choice of a node class with: those that went on from such a node
    as the LM chose, as `known` and `choice`. None where there is nothing for it to choose."""
    plan = plan_of(cls, strict=True)
    if not chooses(cls):
        return []
    names, example = names_of(plan.offered), load_dspy("choice_examples").Example
    return [
        # A correction of fields accepts the choice: nothing of that was corrected.
        _with_origin(example(known=previous_of(each), choice=choice).with_inputs("known"), each, [])
        for each in examples
        if _is_about(each, "choice", cls) and (choice := each.get("next_node_type")) in names
    ]


def _with_origin(made: Any, example: Any, corrected: Sequence[str]) -> Any:
    run_id = str(example.get("run_id") or "")
    made[BAE] = {"run_id": run_id, "root": root_of(example), "corrected": [*corrected]}
    return made


def root_of(example: Any) -> str:
    """The run that an example comes from in the first place; empty where it does not say. It may be
    one of `trace_to_examples`, of `fill_examples` or of `choice_examples`."""
    root = example.get("root")
    if isinstance(root, str) and root and "next_node_type" in example:
        return root
    return str(metadata_of(example).get("root") or "")


def previous_of(example: Any) -> Any:
    """The previous node of an example, by its class, as a prompt has it."""
    known = metadata_of(example).get("source")
    if known is not None:
        return known
    # It was made by hand: every other key is a field.
    fields = {n: v for n, v in example.items() if n not in RESERVED}
    return {str(example.get("node_type")): fields}


def _is_about(example: Any, part: NodePart, cls: type[Node]) -> bool:
    """Whether an example is one for a part of a class, and not to be left out of it."""
    about = metadata_of(example)
    if part in (about.get(WITHOUT) or ()) or (part == "fill" and about.get("by", "lm") != "lm"):
        return False
    at = 1 if part == "fill" else 0
    types = about.get("types")
    if types:
        return types[at] == _address(cls)
    return example.get(("node_type", "next_node_type")[at]) == cls.__name__


def metadata_of(example: Any) -> dict[str, Any]:
    """What an example says for bae alone; empty if it was made by hand."""
    found = example.get(BAE)
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _address(cls: type[Any]) -> str:
    return "None" if cls is NoneType else f"{cls.__module__}.{cls.__qualname__}"


def _name_of(transition: Transition) -> str:
    """The name by which the model knows what it has chosen."""
    for name, cls in names_of(plan_of(type(transition.node)).offered).items():
        if cls is transition.next_type:
            return name
    return "None" if transition.next_type is NoneType else transition.next_type.__name__


def _seen(node: Node, hidden: frozenset[str]) -> Any:
    """What a model sees of a node, without what is hidden, and without what may be made of that."""
    if not hidden:
        return seen_of(node)
    cls = type(node)
    if cls.__pydantic_decorators__.model_serializers:
        return {}
    return _shown_values(cls, {n: v for n, v in node.__dict__.items() if n not in hidden})


def _made(node: Node, hidden: frozenset[str]) -> dict[str, Any] | None:
    """What the LM is to answer for a node, and what is looked up for it before; None where that is
    hidden, or is nothing that the model could have said."""
    cls = type(node)
    asked = asked_fields(cls)
    if not hidden.isdisjoint(asked) or not all(name in node.__dict__ for name in asked):
        return None
    fields = _answer(node, asked)
    if fields is None:
        return None
    # A field with its default was not there when the model was asked.
    resolved = {
        field.name: node.__dict__[field.name]
        for field in plan_of(cls).context
        if field.name in node.__pydantic_fields_set__
        and field.name in node.__dict__
        and field.name not in hidden
    }
    return {"context": _shown_values(cls, resolved), "fields": fields}


def _shown_values(cls: type[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Some fields of a node, exactly as a model is shown them."""
    known = {name: value for name, value in values.items() if name in cls.__pydantic_fields__}
    if not known:
        return {}
    return json.loads(text_of_json(context_of(cls, known)))


def _answer(node: Node, asked: tuple[str, ...]) -> dict[str, Any] | None:
    """The fields of a node in a form that the class accepts from a model; None if one has none."""
    answer: dict[str, Any] = {}
    for name in asked:
        forms = list(_json_forms(type(node), name, node.__dict__[name]))
        if not forms:
            return None
        answer[name] = next((form for form, is_same in forms if is_same), forms[0][0])
    return answer


def _json_forms(cls: type[Node], name: str, value: Any) -> Iterator[tuple[Any, bool]]:
    """The JSON forms of a value of a field that the class accepts: as the field serializes it, and
    as a journal does, without serializers of the class; each with whether it reads back the
    same."""

    def serializer() -> SchemaSerializer:
        return SchemaSerializer(field_schema(cls, name), cast(Any, model_config_of(cls)))

    writers: list[Callable[[], Any]] = [
        lambda: once(cls, (SchemaSerializer, name), serializer).to_python(
            value, mode="json", by_alias=False, warnings=False
        ),
        lambda: from_json(node_codec(cls).dump_field(name, value)[0]),
    ]
    for write in writers:
        try:
            form = write()
            same = validated(cls, {name: form}, frozenset({name}))[name] == value
            yield in_order(form, value), same
        except Exception:  # serializers and validators are code of the node's own
            continue


def examples_in(trainset: Any) -> list[Any]:
    """The examples to learn from. Traces and results among them are made examples of."""
    found: list[Any] = []
    single = (GraphResult, str, bytes, Mapping, Node)
    is_list = isinstance(trainset, Iterable) and not isinstance(trainset, single)
    each: Any
    for each in cast("Iterable[Any]", trainset if is_list else [trainset]):
        if isinstance(each, GraphResult) or _is_trace(each):
            found += trace_to_examples(cast(Any, each))
        elif is_list and hasattr(each, "items") and "next_node_type" in each:
            found.append(each)
        else:
            raise TypeError(
                f"the trainset has {each!r:.80} in the place of an example: give what "
                "examples_from(journal, graph) or trace_to_examples(trace) returns, or a list of "
                "traces or of results"
            )
    return found


def _is_trace(given: Any) -> bool:
    if not isinstance(given, list | tuple):
        return False
    return all(isinstance(each, Node) for each in cast(Sequence[Any], given))
