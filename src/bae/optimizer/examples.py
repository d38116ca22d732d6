"""Make DSPy examples from the transitions of runs, and training examples for each part of a node:
its fill, and the choice of the next node. Examples contain only JSON, as an LLM sees it, without
secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import SchemaSerializer, from_json

from bae.core_schemas import field_schema, model_config_of
from bae.draft import validate_values
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
from bae.prompts.values import (
    context_of,
    in_order,
    list_fields_to_fill,
    once,
    show_node,
    text_of_json,
)
from bae.result import GraphResult
from bae.secrets import Secrets
from bae.threads import in_thread

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal


BAE: Final = "bae"
"""The key of an example under which bae stores metadata, such as the example's run."""
RESERVED: Final = frozenset(
    {"node_type", "next_node_type", "next_node", "run_id", "root", "corrected", BAE}
)
"""The keys of an example that are not fields of a node. If a field has such a name, its key ends
with an underscore."""
WITHOUT: Final = "without"
"""The key under `BAE` for the parts (`fill`, `choice`) that the example must not be used for."""


def trace_to_examples(trace: Sequence[Node] | GraphResult[Any]) -> list[Any]:
    """Make a `dspy.Example` for each transition of a trace or a result.

    The inputs of an example are the fields of the current node, as JSON, and `node_type`. These are
    its other keys:

    - `next_node_type`: the class of the next node, or "None" if the run ended although the LLM
      could have continued.
    - `next_node`: the `fields` of the next node, and the `context` of its fill.
    - `run_id`: the run.
    - `root`: the original run before any forks.
    - `corrected`: the fields that a person corrected.

    Steps of written bodies become examples too, but training does not use them: see `fill_examples`
    and `choice_examples`. Secrets are left out.
    """
    transitions = transitions_of(trace)
    classes = [type(transition.node) for transition in transitions]
    secrets = Secrets([*classes, *(type(step.next_node) for step in transitions if step.next_node)])
    return [example_of(transition, secrets) for transition in transitions]


async def examples_from(
    journal: Journal,
    graph: Graph[Any, Any],
    *,
    limit: int | None = None,
    was: str | Iterable[str] = (),
    evals: bool = False,
    without: Iterable[str] = (),
) -> list[Any]:
    """Read the steps of a graph's runs as a list of `dspy.Example` to learn from:

    ```python
    examples = await examples_from(journal, graph)
    ```

    The examples are the steps that an LM took in ended runs and in their inner graphs. The newest
    run is first, and there are at most `limit` examples. Runs are found by the name of the graph.
    If the name has changed, pass the old name as `was`.

    If a person corrected a field by forking a run, the corrected answer replaces the LM's answer,
    even if the fork has not ended. It also replaces the answers to the same question in other runs.
    Questions are the same if the node, the class to fill and the context are equal. The newest
    correction wins.

    Steps with redacted or secret values are left out. Runs that today's classes cannot read are
    left out with a warning.

    Runs of evaluations are left out, because a prompt cannot be tested with cases that it has
    learned. Corrections in these runs are used. Pass `evals=True` to use all their steps. `without`
    has ids of runs to leave out, with their corrections.
    """
    from bae.optimizer.splits import with_corrections

    transitions = await transitions_from(
        journal, graph, limit=limit, was=was, evals=evals, without=without
    )
    secrets = Secrets(every_node(graph))

    def convert() -> list[Any]:
        examples: list[Any] = []
        for transition in transitions:
            # A serializer or a computed field may need a value that no journal stores.
            with suppress(BaeLMError):
                examples.append(example_of(transition, secrets))
        if len(examples) < len(transitions):
            log.warning(
                "steps in runs of %s were left out: %d because their fields cannot be written as "
                "JSON without values that no journal stores",
                *(graph.name, len(transitions) - len(examples)),
            )
        return with_corrections(examples)

    # Always in a thread, because importing DSPy takes seconds.
    return await in_thread(convert)


def example_of(transition: Transition, secrets: Secrets | None = None) -> Any:
    """Make the `dspy.Example` of a transition, with the keys that `trace_to_examples` describes.

    `secrets` knows the secret fields of all classes. By default, only secrets of the two nodes are
    left out.
    """
    node, following = transition.node, transition.next_node
    if secrets is None:
        secrets = Secrets(type(n) for n in (node, following) if n is not None)
    shown = _seen_fields(node, secrets.fields(type(node)))
    used_keys = set(RESERVED)
    fields = cast("dict[str, Any]", shown) if isinstance(shown, dict) else {}
    values: dict[str, Any] = {}
    for name, value in fields.items():
        key = name
        while key in used_keys or (key != name and key in fields):
            key += "_"
        used_keys.add(key)
        values[key] = value
    values["node_type"] = type(node).__name__
    example = load_dspy("example_of").Example(values)
    inputs = list(values)
    example["next_node_type"] = _name_of(transition)
    example["next_node"] = (
        None
        if following is None
        else _answer_with_context(following, secrets.fields(type(following)))
    )
    example["run_id"] = transition.run_id
    example["root"] = transition.root or transition.run_id
    example["corrected"] = list(transition.corrected)
    example[BAE] = {
        "source": {type(node).__name__: shown},
        "types": [_address(type(node)), _address(transition.next_type)],
        "by": "body" if plan_of(type(node)).written else "lm",
        "corrected_at": transition.corrected_at,
    }
    return example.with_inputs(*inputs)


def part_examples(cls: type[Node], part: NodePart, examples: Iterable[Any]) -> list[Any]:
    """Make the training examples for one part of a node class."""
    return (fill_examples if part == "fill" else choice_examples)(cls, examples)


def fill_examples(cls: type[Node], examples: Iterable[Any]) -> list[Any]:
    """Make the training examples for the fill of a node class from transitions to its nodes.

    An example has the inputs and outputs of `dspy.Predict(with_source(node_to_signature(cls)))`.
    Only nodes that the LLM filled are used. If the fill of the class cannot be learned, there are
    no examples: see `why_untrained`.
    """
    if not is_trained(cls):
        return []
    signature = with_source(node_to_signature(cls))
    required = {field.name for field in plan_of(cls).plain if field.required}
    demos: list[Any] = []
    for example in examples:
        answer = example.get("next_node")
        if not isinstance(answer, Mapping) or not _is_about(example, "fill", cls):
            continue
        parts = cast("Mapping[str, Any]", answer)
        fields: Mapping[str, Any] = parts.get("fields") or {}
        if required <= fields.keys():
            known_values = {**previous_of(example), "context": parts.get("context")}
            corrected = example.get("corrected") or ()
            demos.append(_with_origin(demo_of(signature, known_values, fields), example, corrected))
    return demos


def choice_examples(cls: type[Node], examples: Iterable[Any]) -> list[Any]:
    """Make the training examples for the choice of a node class from transitions that the LLM
    chose.

    An example has the node as `known` and the name of the chosen class as `choice`. If the LLM has
    nothing to choose, there are no examples.
    """
    plan = plan_of(cls, strict=True)
    if not chooses(cls):
        return []
    names, example = names_of(plan.offered), load_dspy("choice_examples").Example
    return [
        # A person can correct only fields, so the choice does not count as corrected.
        _with_origin(example(known=previous_of(step), choice=choice).with_inputs("known"), step, [])
        for step in examples
        if _is_about(step, "choice", cls) and (choice := step.get("next_node_type")) in names
    ]


def _with_origin(part_example: Any, example: Any, corrected: Sequence[str]) -> Any:
    run_id = str(example.get("run_id") or "")
    part_example[BAE] = {"run_id": run_id, "root": root_of(example), "corrected": [*corrected]}
    return part_example


def root_of(example: Any) -> str:
    """Return the original run of an example, before any forks, or an empty text. The example may
    come from `trace_to_examples`, `fill_examples` or `choice_examples`."""
    root = example.get("root")
    if isinstance(root, str) and root and "next_node_type" in example:
        return root
    return str(metadata_of(example).get("root") or "")


def previous_of(example: Any) -> Any:
    """Return the previous node of an example as a prompt shows it: the fields by the name of the
    class."""
    source = metadata_of(example).get("source")
    if source is not None:
        return source
    # In an example that was made by hand, every other key is a field.
    fields = {name: value for name, value in example.items() if name not in RESERVED}
    return {str(example.get("node_type")): fields}


def _is_about(example: Any, part: NodePart, cls: type[Node]) -> bool:
    """Whether an example may be used for a part of a class."""
    metadata = metadata_of(example)
    if part in (metadata.get(WITHOUT) or ()) or (
        part == "fill" and metadata.get("by", "lm") != "lm"
    ):
        return False
    at = 1 if part == "fill" else 0
    types = metadata.get("types")
    if types:
        return types[at] == _address(cls)
    return example.get(("node_type", "next_node_type")[at]) == cls.__name__


def metadata_of(example: Any) -> dict[str, Any]:
    """Return bae's metadata of an example. Empty if the example was made by hand."""
    metadata = example.get(BAE)
    return cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}


def _address(cls: type[Any]) -> str:
    return "None" if cls is NoneType else f"{cls.__module__}.{cls.__qualname__}"


def _name_of(transition: Transition) -> str:
    """Return the name with which the LLM chooses the class of the next node."""
    for name, cls in names_of(plan_of(type(transition.node)).offered).items():
        if cls is transition.next_type:
            return name
    return "None" if transition.next_type is NoneType else transition.next_type.__name__


def _seen_fields(node: Node, hidden: frozenset[str]) -> Any:
    """Return the fields of a node that an LLM sees, without hidden fields. If a field is hidden,
    computed fields are left out too, because they may depend on the hidden field."""
    if not hidden:
        return show_node(node)
    cls = type(node)
    if cls.__pydantic_decorators__.model_serializers:
        return {}
    return _shown_values(
        cls, {name: value for name, value in node.__dict__.items() if name not in hidden}
    )


def _answer_with_context(node: Node, hidden: frozenset[str]) -> dict[str, Any] | None:
    """Return the LM's answer for a node, and the context of its fill. None if a field of the answer
    is hidden or missing, or has no JSON that the class accepts."""
    cls = type(node)
    asked = list_fields_to_fill(cls)
    if not hidden.isdisjoint(asked) or not all(name in node.__dict__ for name in asked):
        return None
    fields = _answer_as_json(node, asked)
    if fields is None:
        return None
    # A prompt does not show a field that has its default.
    resolved = {
        field.name: node.__dict__[field.name]
        for field in plan_of(cls).context
        if field.name in node.__pydantic_fields_set__
        and field.name in node.__dict__
        and field.name not in hidden
    }
    return {"context": _shown_values(cls, resolved), "fields": fields}


def _shown_values(cls: type[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a node's fields exactly as a prompt shows them."""
    declared = {name: value for name, value in values.items() if name in cls.__pydantic_fields__}
    if not declared:
        return {}
    return json.loads(text_of_json(context_of(cls, declared)))


def _answer_as_json(node: Node, asked: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the `asked` fields of a node as JSON that the class accepts as an answer. None if a
    field has no such JSON."""
    answer: dict[str, Any] = {}
    for name in asked:
        forms = list(_json_forms(type(node), name, node.__dict__[name]))
        if not forms:
            return None
        answer[name] = next((form for form, is_same in forms if is_same), forms[0][0])
    return answer


def _json_forms(cls: type[Node], name: str, value: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the JSON forms of a field's value that the class accepts: the form of the field's
    serializer, then the form of a journal. With each form, yield whether it reads back as an equal
    value."""

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
            is_same = validate_values(cls, {name: form}, frozenset({name}))[name] == value
            yield in_order(form, value), is_same
        except Exception:  # the node's own serializers and validators may raise anything
            continue


def examples_in(trainset: Any) -> list[Any]:
    """Return the examples of a training set. Convert traces and results to examples."""
    examples: list[Any] = []
    single = (GraphResult, str, bytes, Mapping, Node)
    is_list = isinstance(trainset, Iterable) and not isinstance(trainset, single)
    item: Any
    for item in cast("Iterable[Any]", trainset if is_list else [trainset]):
        if isinstance(item, GraphResult) or _is_trace(item):
            examples += trace_to_examples(cast(Any, item))
        elif is_list and hasattr(item, "items") and "next_node_type" in item:
            examples.append(item)
        else:
            raise TypeError(
                f"the trainset has {item!r:.80} in the place of an example: give what "
                "examples_from(journal, graph) or trace_to_examples(trace) returns, or a list of "
                "traces or of results"
            )
    return examples


def _is_trace(given: Any) -> bool:
    if not isinstance(given, list | tuple):
        return False
    return all(isinstance(item, Node) for item in cast(Sequence[Any], given))
