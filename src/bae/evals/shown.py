"""What goes into reports of a case and of what its run came to: nodes and fields as JSON, without
the secrets that a journal withholds too. `evaluating.py` and `case_runs.py` ask; `writing.py` and
`page.py` write it down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from bae.evals.answering import gates_of
from bae.journal.node_codec import node_codec
from bae.node import Node
from bae.secrets import secret_fields

if TYPE_CHECKING:
    from bae.evals.cases import Case
    from bae.evals.fitting import Fitting


def case_as_json(fitting: Fitting, case: Case) -> dict[str, Any]:
    """What a case begins with, and what it expects: `input`, `expected`, `expected_type`, `nodes`
    and `answers`, each where there is one."""
    inputs = case.inputs
    start = fitting.graph.start
    if isinstance(inputs, Node):
        found: dict[str, Any] = {"input": node_as_json(fitting, inputs)["fields"]}
    else:
        found = {"input": _open(inputs, [start], fitting)}
    if case.expected is not None:
        end = fitting.expected_end(case)
        ends = fitting.graph.terminal_nodes if end is None else (end,)
        found["expected"] = _open(case.expected, ends, fitting)
    if case.expected_type:
        found["expected_type"] = case.expected_type
    if case.nodes:
        found["nodes"] = {
            name: _open(fields, [cls], fitting) if (cls := fitting.named(name)) else {}
            for name, fields in case.nodes.items()
        }
    if case.answers:
        gates = gates_of(fitting)
        found["answers"] = {
            place: as_json(value)
            for place, value in case.answers.items()
            if place in gates and gates[place][1] not in secret_fields(gates[place][0])
        }
    return found


def node_as_json(fitting: Fitting, node: Node) -> dict[str, Any]:
    """A node as `{"type": …, "fields": {…}}`; `withheld` names the fields that are left out as
    secrets, where there are any."""
    cls = type(node)
    kept = node_codec(cls)
    try:
        said: dict[str, Any] = json.loads(kept.dump(node))
        fields, withheld = said["fields"], said.get("withheld", ())
    except Exception:  # a value that no journal can keep is told as well as it can be
        held = {n: v for n, v in node.__dict__.items() if n not in kept.live}
        withheld = [name for name in held if name in kept.secret]
        fields = {n: as_json(v) for n, v in held.items() if n not in withheld}
    found: dict[str, Any] = {"type": fitting.names.get(cls, cls.__name__), "fields": fields}
    return {**found, "withheld": [*withheld]} if withheld else found


def as_json(value: Any) -> Any:
    """A value as JSON; what has no form in it as its text."""
    try:
        return to_jsonable_python(
            value, fallback=str, bytes_mode="base64", inf_nan_mode="strings", by_alias=False
        )
    except Exception:  # one that goes in circles, a serializer that raises, text that is none
        return _piecewise(value, 20)


def _piecewise(value: object, deepest: int) -> Any:
    """The same for each part by itself, so that one of them does not spoil the others."""
    whole: Any = value
    kind = type(value)
    try:
        if deepest and issubclass(kind, Mapping):
            return {str(key): _piecewise(each, deepest - 1) for key, each in whole.items()}
        if deepest and issubclass(kind, list | tuple):
            return [_piecewise(each, deepest - 1) for each in whole]
        plain = value is None or issubclass(kind, bool | int | float | str)
        return whole if plain else str(whole)
    except Exception:
        return f"a {type(value).__name__}"


def _open(
    given: Mapping[str, Any], classes: Iterable[type[Node]], fitting: Fitting
) -> dict[str, Any]:
    """Fields as JSON, but for those that are a secret of one of the classes."""
    hidden = [name for cls in classes for name in _secret(cls, given, fitting)]
    return {name: as_json(value) for name, value in given.items() if name not in hidden}


def _secret(cls: type[Node], given: Mapping[str, Any], fitting: Fitting) -> list[str]:
    secret = secret_fields(cls)
    return [name for name in given if any(n in secret for n in fitting.by_field(cls, {name: 0}))]
