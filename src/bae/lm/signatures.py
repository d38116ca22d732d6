"""Node classes as DSPy signatures. Fields with a source become inputs. Fields that a model fills
become outputs."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

from pydantic import InstanceOf, TypeAdapter, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, PydanticUndefined, to_jsonable_python

from bae.lm.extras import load_dspy
from bae.markers import Marker
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.values import in_order, list_fields_to_fill
from bae.secrets import MASK

SOURCE = "source"
"""The name of the input with the previous node of the run."""


def node_to_signature(node_cls: type[Node], is_start: bool = False) -> Any:
    """Make the `dspy.Signature` of a node class.

    Fields with a source (`Dep`, `Recall`, `Map`, `Gate`) become inputs. Plain fields become
    outputs. On the start node, plain fields become inputs too, because the caller passes their
    values. A field for tool calls is left out. The signature has the types, constraints, defaults
    and descriptions of the node's fields.

    The instruction comes from the `NodeConfig`. The default instruction is the class name, because
    docstrings are for people. If dspy reserves the name of a field (`instructions`, `config`, `lm`,
    …), the signature's field has an underscore at the end. The model sees the node's name.
    """
    plan = plan_of(node_cls, strict=True)
    fields = plan.fields
    dspy_fields: dict[str, tuple[Any, FieldInfo]] = {}
    for name, plan_field in fields.items():
        if plan_field.fills == "calls":  # tool calls are not part of the answer
            continue
        field = _dspy_field(plan_field.info, is_start or plan_field.fills == "source")
        if not plan_field.info.repr and name not in plan.revealed:
            _extra(field)[_HIDDEN] = True
        if _is_reserved(name):
            _extra(field)[_NAME] = name
            name = _free_name(name, fields)
        dspy_fields[name] = _dspy_type(plan_field.info), field
    return _signature(dspy_fields, plan.instruction, node_cls.__name__)


def has_instruction(signature: Any, instruction: str) -> bool:
    """Return whether a signature has this instruction. White space may differ, because dspy may
    change the indentation."""
    return signature.instructions.split() == instruction.split()


def with_source(signature: Any) -> Any:
    """Return a signature with one more input, for the previous node of the run. The input comes
    first and maps the node's class name to its fields. Its name is `source`, or `source_` if the
    signature has a field `source`."""
    name = _free_name(SOURCE, signature.fields) if SOURCE in signature.fields else SOURCE
    field = _mark_known(load_dspy("with_source").InputField(desc="the step before this one"))
    return _signature({name: (dict[str, Any], field), **signature.fields}, signature.instructions)


@lru_cache(maxsize=1024)
def choice_signature(names: tuple[str, ...]) -> Any:
    """Make the signature of a choice among `names`. Without names, any answer is valid."""
    dspy = load_dspy("choice_signature")
    known = _mark_known(dspy.InputField(desc="what is known"))
    choice = dspy.OutputField(desc="what comes next")
    kind: Any = Literal[names] if names else Any
    fields = {"known": (dict[str, Any], known), "choice": (kind, choice)}
    return _signature(fields, "Choice", "Choice")


# Optimizers make a new signature for every change. Without a bound, the cache would keep them all.
@lru_cache(maxsize=1024)
def answer_class(signature: Any) -> type[Node]:
    """Make a node class whose fields are the outputs of a signature. The fields have the names that
    a model sees."""
    fields: dict[str, Any] = {}
    for name, info in signature.output_fields.items():
        is_reasoning = info.annotation is load_dspy("answer_class").Reasoning
        kind: Any = str if is_reasoning else info.annotation
        arguments: dict[str, Any] = {
            "default": info.default,
            "default_factory": info.default_factory,
            "examples": info.examples,
            "discriminator": info.discriminator,
        }
        extra = _extra(info)
        if extra["desc"] != f"${{{name}}}":  # dspy's default description
            arguments["description"] = extra["desc"]
        arguments["json_schema_extra"] = {k: v for k, v in extra.items() if k not in _OWN} or None
        typed = Annotated[(kind, *info.metadata)] if info.metadata else kind
        fields[model_name(name, info)] = typed, FieldInfo(**arguments)
    title = "Answer" if signature.__name__ == "StringSignature" else signature.__name__
    return create_model(title, __base__=Node, __module__=__name__, **fields)


def dump_inputs(signature: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `values` that are inputs of a signature, as the JSON of a prompt. Leave out a
    value that JSON cannot express."""
    known: dict[str, Any] = {}
    context: dict[str, Any] = {}
    for name, field in signature.input_fields.items():
        if name not in values:
            continue
        try:
            value = in_order(to_jsonable_python(values[name], by_alias=False), values[name], False)
        except PydanticSerializationError:
            continue
        if _extra(field).get(_HIDDEN):
            value = MASK
        if is_known(field) and isinstance(value, dict):
            known |= cast(dict[str, Any], value)
        else:
            context[model_name(name, field)] = value
    return {**known, "context": context} if context else known


def answered_outputs(signature: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `values` that are outputs of a signature, as JSON with the names that a model
    sees."""
    return {
        model_name(name, field): to_jsonable_python(values[name], by_alias=False)
        for name, field in signature.output_fields.items()
        if name in values
    }


def check_outputs(cls: type[Node], signature: Any) -> None:
    """Raise ValueError if a signature lacks a field that a model fills."""
    outputs = {model_name(name, field) for name, field in signature.output_fields.items()}
    missing = [name for name in list_fields_to_fill(cls) if name not in outputs]
    if missing:
        raise ValueError(
            f"the predictor for {cls.__name__} has no output {', '.join(missing)}: make it from "
            f"node_to_signature({cls.__name__}); if the class has changed since, optimize it again"
        )


def model_name(name: str, field: FieldInfo) -> str:
    """Return the name that a model sees for a field of a signature, which is the name of the node's
    field."""
    return _extra(field).get(_NAME, name)


def is_known(field: FieldInfo) -> bool:
    """Return whether an input is a mapping of named values. A prompt shows such values next to the
    context, not inside it."""
    return bool(_extra(field).get(_KNOWN))


_NAME = "bae_name"
_KNOWN = "bae_known"
_HIDDEN = "bae_hidden"

_OWN = frozenset(
    {
        "__dspy_field_type",
        "constraints",
        "desc",
        "format",
        "parser",
        "prefix",
        "IS_TYPE_UNDEFINED",
        _HIDDEN,
        _KNOWN,
        _NAME,
    }
)
"""The keys that dspy and bae set in a field's `json_schema_extra`."""


def _signature(fields: Mapping[str, Any], instruction: str, name: str = "StringSignature") -> Any:
    return load_dspy("node_to_signature").Signature(dict(fields), instruction, name)


def _dspy_type(info: FieldInfo) -> Any:
    """Return the type of a field with its constraints and validators, but without its source."""
    annotation: Any = info.annotation
    while not isinstance(annotation, _ACCEPTED_TYPES):
        # dspy accepts no type alias and no NewType, so resolve them.
        for attribute in ("__value__", "__supertype__", "__bound__"):
            if getattr(annotation, attribute, None) is not None:
                annotation = getattr(annotation, attribute)
                break
        else:
            annotation = Any
    metadata = [item for item in info.metadata if not isinstance(item, Marker)]
    typed: Any = Annotated[(annotation, *metadata)] if metadata else annotation
    try:
        TypeAdapter(typed)
    except PydanticSchemaGenerationError:  # pydantic cannot validate it, such as a client
        return _instance_type(annotation) if isinstance(annotation, type) else Any
    return typed


def _instance_type(cls: Any) -> Any:
    return InstanceOf[cls]


def _dspy_field(info: FieldInfo, is_input: bool) -> FieldInfo:
    dspy = load_dspy("node_to_signature")
    arguments: dict[str, Any] = {}
    if info.description:
        arguments["desc"] = arguments["description"] = info.description
    if info.examples:
        arguments["examples"] = info.examples
    if info.discriminator:
        arguments["discriminator"] = info.discriminator
    if info.default_factory is not None and not info.default_factory_takes_validated_data:
        arguments["default_factory"] = info.default_factory
    elif info.default_factory is None and info.default is not PydanticUndefined:
        arguments["default"] = info.default
    field: FieldInfo = dspy.InputField(**arguments) if is_input else dspy.OutputField(**arguments)
    if info.json_schema_extra and not callable(info.json_schema_extra):
        field.json_schema_extra = {**_extra(info), **_extra(field)}
    return field


def _mark_known(field: FieldInfo) -> FieldInfo:
    _extra(field)[_KNOWN] = True
    return field


def _extra(field: FieldInfo) -> dict[str, Any]:
    return cast(dict[str, Any], field.json_schema_extra)


def _is_reserved(name: str) -> bool:
    return name in _RESERVED or hasattr(load_dspy("node_to_signature").Signature, name)


def _free_name(name: str, others: Collection[str]) -> str:
    name += "_"
    while name in others:
        name += "_"
    return name


_RESERVED = frozenset(
    {"_trace", "bae", "config", "demos", "lm", "new_signature", "prediction", "signature"}
)
"""Names that fields of a signature must not have: the arguments of a predictor's call, and `bae`,
which stores the origin of an example."""

_ACCEPTED_TYPES: Any = (
    type,
    types.GenericAlias,
    types.UnionType,
    type(typing.List[int]),  # noqa: UP006  the class of the old aliases
    typing._SpecialForm,  # pyright: ignore[reportPrivateUsage]  it has no public name
)
