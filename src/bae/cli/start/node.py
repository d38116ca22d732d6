"""The node that a run begins with, from what the command line says: -i, --set, and questions for
what is missing where somebody is there to answer. `run.py` hands it to the graph;
`places.py` knows which field is meant, `errors.py` has the words for what does not fit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bae.cli.running.terminal_input import can_ask
from bae.cli.start.errors import (
    fault,
    field_missing,
    kind_of,
    object_like,
    set_instead,
    unfit,
)
from bae.cli.start.literals import Twice, exactly, loads
from bae.cli.start.places import field_of, inside, names_of, parts_of, place_of, refuse_twice
from bae.cli.start.questions import ask_field, is_secret
from bae.cli.start.typed import Misfit, Typed, read, reads_json
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.node import Node


def start_node(
    cls: type[Node], given: str | None, sets: Sequence[str], *, ask: bool, said: str
) -> Node:
    """The node of the class `cls` to begin with. `said` is the command line so far, for examples.

    What -i and --set leave open is asked for with `ask`, where there is a terminal: all fields
    where nothing was given, or else those that have no default.
    """
    fields = _read_input(cls, given) if given is not None else {}
    before = dict(fields)
    refuse_twice([place_of(cls, parts_of(each)[0]) for each in sets])
    for each in sets:
        _set(cls, fields, each)
    wrong = _misfits(cls, {n: v for n, v in before.items() if fields[n] is v})
    if wrong:
        raise unfit(cls, wrong)
    plain = [field for field in plan_of(cls, strict=True).plain if field.name not in fields]
    missing = [field.name for field in plain if field.required]
    if missing and ask and can_ask():
        nothing = given is None and not sets
        fields |= _asked(cls, [each.name for each in plain] if nothing else missing)
    elif missing:
        raise field_missing(cls, missing, said)
    return _built(cls, fields)


def read_sets(cls: type[Node], sets: Sequence[str]) -> dict[str, Any]:
    """The fields that each FIELD=VALUE names, and the values as the fields make them."""
    given = [(field_of(cls, place), text) for place, text in map(parts_of, sets)]
    refuse_twice([[name] for name, _ in given])
    return {name: read_text(cls, name, text).value for name, text in given}


def read_text(cls: type[Node], name: str, text: str) -> Typed:
    """What a text says for a field; an error that names both where it does not fit."""
    try:
        return read(cls, name, text)
    except Misfit as misfit:
        secret = is_secret(cls, name)
        wrong = fault(name, text, why=str(misfit), hidden=secret)
        raise unfit(cls, [wrong], set_instead(cls, name, text)) from None


def _read_input(cls: type[Node], given: str) -> dict[str, Any]:
    """The fields that -i gives. Where the start node has one field to give, its value alone will
    do, as text too."""
    text, where = _text_of(given)
    only = _only_field(cls)
    try:
        said: Any = loads(text)
    except Twice as twice:
        what = f"what -i gives{where} says something twice: {twice}"
        raise unfit(None, [what], "give each name once") from None
    except ValueError as error:
        if only is None or text.lstrip().startswith(("{", "[")):
            what = f"what -i gives{where} is not JSON: {error}"
            raise unfit(None, [what], object_like(cls)) from None
        return {only: text.removesuffix("\n")}
    if isinstance(said, dict):
        named = cast(dict[str, Any], said)
        if only is not None and named and not named.keys() & names_of(cls).keys():
            with suppress(Misfit):  # the one field is an object itself
                return {only: reads_json(cls, only, named).said}
        return _by_field(cls, named)
    if only is None:
        what = f"what -i gives{where} is {kind_of(said)}, and {cls.__name__} takes an object"
        raise unfit(None, [what], object_like(cls))
    try:
        return {only: reads_json(cls, only, said).said}
    except Misfit:  # 5 is JSON, and a text for a field that takes text
        return {only: read_text(cls, only, text.strip()).said}


def _by_field(cls: type[Node], said: Mapping[str, Any]) -> dict[str, Any]:
    """What an object gives, by the names of the fields."""
    found: dict[str, Any] = {}
    for name, each in said.items():
        field = field_of(cls, name)
        if field in found:
            what = f"what -i gives has {cls.__name__}.{field} twice, once as {name}"
            raise unfit(None, [what], f"give it once, as {field}")
        found[field] = each
    return found


def _text_of(given: str) -> tuple[str, str]:
    """The text that -i names, and where it is from."""
    try:
        if given == "-":
            return sys.stdin.read(), " on stdin"
        if given.startswith("@"):
            return Path(given[1:]).read_text(encoding="utf-8-sig"), f" in {given[1:]}"
    except (OSError, UnicodeDecodeError) as error:
        raise unfit(
            None,
            [f"what -i names cannot be read: {given}"],
            "name a file of JSON after the @, as -i @start.json; -i - reads stdin",
            cause=error,
        ) from error
    return given, ""


def _set(cls: type[Node], fields: dict[str, Any], said: str) -> None:
    """Put what one --set says among the fields; `a.b` is the field `b` of what is in `a`."""
    place, text = parts_of(said)
    name, *inner = place_of(cls, place)
    if inner:
        keys, annotation = inside(cls, name, inner)
        fields[name] = _with(fields.get(name), keys, _json_or_text(text, annotation))
    elif name in cls.__pydantic_fields__:
        fields[name] = read_text(cls, name, text).said
    else:
        fields[name] = _json_or_text(text, Any)


def _with(around: Any, inner: Sequence[str], value: Any) -> dict[str, Any]:
    """An object with another value at a place inside it."""
    changed = dict(cast(Mapping[str, Any], around)) if isinstance(around, Mapping) else {}
    first, *rest = inner
    changed[first] = _with(changed.get(first), rest, value) if rest else value
    return changed


def _json_or_text(text: str, annotation: Any) -> Any:
    from pydantic import TypeAdapter

    try:
        said: Any = loads(text)
        TypeAdapter[Any](annotation).validate_json(text)
    except Exception:  # no JSON, or none that is valid here; the whole field says what is wrong
        return text
    return said


def _asked(cls: type[Node], names: Iterable[str]) -> dict[str, Any]:
    """What is answered when fields are asked for."""
    from bae.cli.printing import err

    found: dict[str, Any] = {}
    name = ""
    try:
        for name in names:
            typed = ask_field(cls, name)
            if typed is not None:
                found[name] = typed.said
    except EOFError:
        err().print()
        raise unfit(
            None, [f"{cls.__name__}.{name} was not given"], "answer it, or give it with --set"
        ) from None
    except KeyboardInterrupt:
        err().print()
        raise
    return found


def _built(cls: type[Node], fields: dict[str, Any]) -> Node:
    """The node of fields that are JSON. A class with a constructor of its own gets it called."""
    from pydantic import ValidationError

    from bae.draft import from_answer, validated
    from bae.node import Node

    names = frozenset(fields)
    try:
        if cls.__init__ is Node.__init__:
            return exactly(fields, lambda said: from_answer(cls, said, names))[1]
        return cls(**exactly(fields, lambda said: validated(cls, said, names))[1])
    except ValidationError as error:
        wrong: list[str] = []
        for each in error.errors(include_url=False):
            place = [str(part) for part in each["loc"]]
            # The whole node is no value to show.
            shown = (each.get("input"),) if place else ()
            hidden = any(n in cls.__pydantic_fields__ and is_secret(cls, n) for n in place[:1])
            wrong.append(fault(".".join(place), *shown, why=each["msg"], hidden=hidden))
        raise unfit(cls, wrong) from None


def _misfits(cls: type[Node], fields: Mapping[str, Any]) -> list[str]:
    """What is wrong with fields that -i gives, all of it."""
    wrong: list[str] = []
    for name, value in fields.items():
        if name not in cls.__pydantic_fields__:
            continue
        try:
            reads_json(cls, name, value)
        except Misfit as misfit:
            wrong.append(fault(name, value, why=str(misfit), hidden=is_secret(cls, name)))
    return wrong


def _only_field(cls: type[Node]) -> str | None:
    """The one field that there is to give, where there is only one."""
    plain = plan_of(cls, strict=True).plain
    required = [field for field in plain if field.required]
    chosen = required if len(required) == 1 else plain
    return chosen[0].name if len(chosen) == 1 else None
