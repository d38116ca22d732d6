"""The metrics that need no words from the user: whether a choice goes on to the same node, and how
like the expected fields the given ones are. `part_metrics.py` takes them where none was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, cast

from bae.node import Node
from bae.optimizer.likeness import likeness
from bae.optimizer.scores import Score


def node_transition_metric(example: Any, prediction: Any, trace: Any = None) -> float | bool:
    """Whether a prediction goes on to the node that the example went on to.

    Give it what DSPy gives a metric: an example and a prediction with `next_node_type` or `choice`.
    A name, a node, a node class and None, for the end of a run, serve as well. A prediction whose
    `choice` is None, which is what DSPy makes of an answer that it could not read, says nothing and
    is wrong; to stop, it says "None". It is 1.0 or 0.0 when evaluating, and a bool when
    demonstrations are bootstrapped, which is when DSPy gives it a `trace`.
    """
    expected, given = _goes_on_to(example), _goes_on_to(prediction, read=True)
    if expected is None:
        raise ValueError(
            "node_transition_metric: the example says neither next_node_type nor choice; give it "
            "examples as trace_to_examples makes them"
        )
    same = given is not None and expected == given
    return float(same) if trace is None else same


def fields_metric(
    expected: Node | Mapping[str, Any],
    given: Node | Mapping[str, Any],
    fields: Sequence[str] | None = None,
) -> Score:
    """How like the expected fields the given ones are: the mean over the fields, each from 0 to 1.

    Of a node, the fields that an LM fills are compared, of a mapping those that it has, of an
    example of DSPy those that are not its inputs; or name the `fields`. Text counts by the words in
    common, and a list by the items that are alike in one order; `bae.optimizer.likeness` says how
    the rest does. Values of a mapping are read as the class of the node takes them, where one of
    the two is a node. The score says which fields differ.
    """
    expected, given = _holder(expected, "expected"), _holder(given, "given")
    if isinstance(expected, Node) and isinstance(given, Node) and type(expected) is not type(given):
        return Score(0.0, f"a {type(given).__name__}, where {_a(type(expected))} was expected")
    cls = next((type(each) for each in (expected, given) if isinstance(each, Node)), None)
    names = _compared(expected, given, cls, fields)
    secret = secret_fields(cls)
    found: list[float] = []
    different: list[str] = []
    for name in names:
        wanted, got = _field(expected, name, cls), _field(given, name, cls)
        known = cls.__pydantic_fields__.get(name) if cls is not None else None
        found.append(likeness(wanted, got, Any if known is None else known.annotation))
        if found[-1] < 1:
            said = "" if name in secret else f": {_said(got)}, where {_said(wanted)} was expected"
            different.append(f"{name}{said or ' differs'}")
    if not found:
        return Score(1.0)
    return Score(sum(found) / len(found), "; ".join(different[:_MOST]))


def secret_fields(cls: type[Node] | None) -> frozenset[str]:
    """The fields whose values nobody but the graph itself may see: no reason quotes them."""
    if cls is None:
        return frozenset()
    from bae import secrets

    return frozenset(secrets.secret_fields(cls))


_MOST = 12
_LONGEST = 120


def _goes_on_to(said: Any, read: bool = False) -> str | None:
    """The name of the node that is gone on to; None where nothing is said of it. What was `read` by
    DSPy is None by name where it could not be read."""
    if said is None or said is NoneType:
        return "None"
    if isinstance(said, str):
        return said.strip()
    if isinstance(said, type):
        return said.__name__
    if isinstance(said, Node):
        return type(said).__name__
    for name in ("next_node_type", "choice"):
        try:
            held = name in said
            value = said[name] if held else None
        except TypeError:  # it holds nothing by name
            held, value = hasattr(said, name), getattr(said, name, None)
        if held and not (read and value is None):
            return _goes_on_to(value)
    return None


def _holder(fields: Any, name: str) -> Node | Mapping[str, Any]:
    """What has the fields: a node, a mapping, or what an example or a prediction of DSPy has."""
    if isinstance(fields, Node | Mapping):
        return cast("Node | Mapping[str, Any]", fields)
    if not hasattr(fields, "toDict"):
        raise TypeError(f"fields_metric({name}={_said(fields)}): give a node or a mapping")
    try:
        asked = fields.labels()
    except (ValueError, AttributeError):  # nobody has said which are inputs: a prediction
        asked = fields
    return {each: value for each, value in asked.items() if each != "bae"}


def _compared(
    expected: Node | Mapping[str, Any],
    given: Node | Mapping[str, Any],
    cls: type[Node] | None,
    fields: Sequence[str] | None,
) -> Sequence[str]:
    if fields is not None:
        if isinstance(fields, str):
            raise TypeError(f"fields={fields!r}: give a list of names")
        held = [*cls.__pydantic_fields__] if cls is not None else _names(expected, given)
        unknown = [name for name in fields if name not in held]
        if unknown:
            whose = cls.__name__ if cls is not None else "what is compared"
            raise ValueError(
                f"fields={list(fields)!r}: {whose} has no field {unknown[0]!r}; it has "
                f"{', '.join(held)}"
            )
        return fields
    if isinstance(expected, Node):
        from bae.lm.prompts import asked_fields

        return asked_fields(type(expected))
    return list(expected)


def _names(*holders: Node | Mapping[str, Any]) -> list[str]:
    found = [name for holder in holders if isinstance(holder, Mapping) for name in holder]
    return list(dict.fromkeys(found))


def _field(holder: Node | Mapping[str, Any], name: str, cls: type[Node] | None) -> Any:
    if isinstance(holder, Node):
        return getattr(holder, name, None)
    value = holder.get(name)
    if cls is None or name not in cls.__pydantic_fields__:
        return value
    if name not in holder:
        return _default(cls, name)
    from bae.draft import validated

    reads = frozenset({name}) if _is_json(value) else None
    try:
        return validated(cls, {name: value}, reads)[name]
    except Exception:  # what does not fit is like nothing that does
        return value


def _default(cls: type[Node], name: str) -> Any:
    """What a node has where nothing is given for a field."""
    info = cls.__pydantic_fields__[name]
    if info.is_required() or info.default_factory_takes_validated_data:
        return None
    return info.get_default(call_default_factory=True)


def _is_json(value: object) -> bool:
    """Whether a value is as JSON says it, and not a Python object that stands for itself."""
    if isinstance(value, dict):
        return all(_is_json(each) for each in cast(dict[Any, Any], value).values())
    if isinstance(value, list):
        return all(_is_json(each) for each in cast(list[Any], value))
    return value is None or type(value) in (str, int, float, bool)


def _said(value: object) -> str:
    try:
        said = repr(value)
    except Exception:  # the repr of somebody's object
        said = f"a {type(value).__name__}"
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def _a(cls: type[Node]) -> str:
    return f"{'an' if cls.__name__[:1] in 'AEIO' else 'a'} {cls.__name__}"
