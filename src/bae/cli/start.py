"""The node that a run begins with, from what the command line says: -i, --set, and questions for
what is missing where there is a terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from bae import given_files
from bae.assignable import union_members
from bae.cli.exits import Misuse
from bae.cli.printing import err
from bae.cli.questions import ask_field, can_ask
from bae.cli.values import (
    Typed,
    UnfitText,
    describe_type,
    is_secret,
    loads,
    read,
    read_json,
    set_example,
    with_read_files,
)
from bae.cli.wording import cut, in_one_line
from bae.draft import from_answer, validated
from bae.exceptions import BaeError
from bae.files import File
from bae.given_files import read_stdin
from bae.node import Node
from bae.plan import plan_of

T = TypeVar("T")
_LONGEST: Final = 60
"""Characters of a value that an error shows."""


def start_node(
    cls: type[Node], given: str | None, sets: Sequence[str], *, ask: bool, said: str
) -> Node:
    """The node of the class `cls` to begin with, of what `start_fields` answers."""
    return build_node(cls, start_fields(cls, given, sets, ask=ask, said=said))


def start_fields(
    cls: type[Node],
    given: str | None,
    sets: Sequence[str],
    *,
    ask: bool,
    said: str,
    later: Collection[str] = (),
) -> dict[str, Any]:
    """The fields of a start node as JSON has them. `said` is the command line so far, for examples.

    What -i and --set leave open is asked for with `ask`, where there is a terminal: all fields
    where nothing was given, or else those that have no default. The fields `later` are given by
    the caller, and no field with a default is asked for beside them.
    """
    fields = _read_input(cls, given) if given is not None else {}
    placed = split_sets(sets, partial(_place_of, cls))
    for (name, *inner), text in sorted(placed, key=lambda each: len(each[0])):  # objects first
        if inner:
            keys, annotation = _inner_keys(cls, name, inner)
            fields[name] = _with_part(fields.get(name), keys, _json_or_text(text, annotation))
        elif name in cls.__pydantic_fields__:
            fields[name] = read_text(cls, name, text).said
        else:
            fields[name] = _json_or_text(text, Any)
    plain = [field for field in plan_of(cls, strict=True).plain if field.name not in fields]
    missing = [field.name for field in plain if field.required and field.name not in later]
    if missing and not (ask and can_ask()):
        raise _missing(cls, missing, said)
    if missing:
        nothing = given is None and not sets and not later
        fields |= _ask_fields(cls, [each.name for each in plain] if nothing else missing)
    return fields


def read_sets(cls: type[Node], sets: Sequence[str]) -> dict[str, Any]:
    """The fields that each FIELD=VALUE names, and the values as the fields make them."""
    given = split_sets(sets, partial(_field_of, cls))
    return {name: read_text(cls, name, text).value for name, text in given}


def read_text(cls: type[Node], name: str, text: str) -> Typed:
    """What a text says for a field; an error that names both where it does not fit."""
    try:
        return read(cls, name, text)
    except UnfitText as misfit:
        hidden = is_secret(cls, name)
        fix = f"give {describe_type(cls.__pydantic_fields__[name].annotation)}"
        fix += "" if hidden else f"; for example {set_example(cls, name)}"
        raise _unfit(cls, [_fault(name, text, why=str(misfit), hidden=hidden)], fix) from None


def split_sets(sets: Sequence[str], find: Callable[[str], T]) -> list[tuple[T, str]]:
    """What each `--set FIELD=VALUE` names, as `find` has it, and the VALUE. None may be there
    twice."""
    found: list[tuple[T, str]] = []
    for said in sets:
        name, equals, text = said.partition("=")
        if not equals or not name.strip():
            raise Misuse(
                f"--set {shlex.quote(said)} has no FIELD=VALUE",
                code="bae-start-fields",
                fix="write it as --set message=hello, or with spaces as --set 'message=good "
                "morning'",
            )
        place = find(name.strip())
        if any(place == each for each, _ in found):
            raise Misuse(
                f"--set gives {name.strip()} twice",
                code="bae-start-fields",
                fix="give each field once",
            )
        found.append((place, text))
    return found


# --- -i -----------------------------------------------------------------------------------------


def _read_input(cls: type[Node], given: str) -> dict[str, Any]:
    """The fields that -i gives. Where the start node has one field to give, its value alone will
    do, as text too."""
    text, where = _text_of(given)
    plain = plan_of(cls, strict=True).plain
    to_give = [field.name for field in plain if field.required] or [each.name for each in plain]
    only = to_give[0] if len(to_give) == 1 else None
    fix = f"give a JSON object with the fields of {cls.__name__}: {', '.join(to_give)}"
    try:
        said: Any = loads(text)
    except ValueError as error:
        if only is None or text.lstrip().startswith(("{", "[")):
            raise _unfit(None, [f"what -i gives{where} is not JSON: {error}"], fix) from None
        return {only: text.removesuffix("\n")}
    if isinstance(said, dict):
        named = cast(dict[str, Any], said)
        if only is not None and named and not named.keys() & _names_of(cls).keys():
            with suppress(UnfitText):  # the one field is an object itself
                return {only: read_json(cls, only, named).said}
        return {_field_of(cls, name): each for name, each in named.items()}
    if only is None:
        raise _unfit(None, [f"what -i gives{where} is no JSON object"], fix)
    try:
        return {only: read_json(cls, only, said).said}
    except UnfitText:  # 5 is JSON, and a text for a field that takes text
        return {only: read_text(cls, only, text.strip()).said}


def _text_of(given: str) -> tuple[str, str]:
    """The text that -i names, and where it is from."""
    try:
        if given == "-":
            return read_stdin(), " on stdin"
        if given.startswith("@"):
            return given_files.read_text(given[1:], "utf-8-sig"), f" in {given[1:]}"
    except (OSError, UnicodeDecodeError) as error:
        raise _unfit(
            None,
            [f"what -i names cannot be read: {given}"],
            "name a file of JSON after the @, as -i @start.json; -i - reads stdin",
            cause=error,
        ) from error
    return given, ""


# --- --set --------------------------------------------------------------------------------------


def _with_part(around: Any, inner: Sequence[str], value: Any) -> dict[str, Any]:
    """An object with another value at a place inside it."""
    changed = dict(cast(Mapping[str, Any], around)) if isinstance(around, Mapping) else {}
    first, *rest = inner
    changed[first] = _with_part(changed.get(first), rest, value) if rest else value
    return changed


def _json_or_text(text: str, annotation: Any) -> Any:
    if text.startswith("@") and _is_file(annotation):
        try:
            return next(with_read_files([text], annotation))
        except UnfitText as misfit:
            raise _unfit(None, [str(misfit)], "name a file that there is after the @") from None
    try:
        TypeAdapter[Any](annotation).validate_json(text)
        return loads(text)
    except Exception:  # no JSON, or none that is valid here; the whole field says what is wrong
        return text


def _is_file(annotation: Any) -> bool:
    members = union_members(annotation)
    return any(isinstance(each, type) and issubclass(each, File) for each in members)


def _place_of(cls: type[Node], said: str) -> list[str]:
    """The field that `a.b` is in, and the names inside it."""
    # An alias may have a dot in it.
    name, *inner = [said] if said in _names_of(cls) else said.split(".")
    return [_field_of(cls, name), *inner]


def _field_of(cls: type[Node], said: str) -> str:
    """The name of a field that is meant, by its name or an alias of it."""
    names = _names_of(cls)
    if said in names:
        return names[said]
    if cls.model_config.get("extra") == "allow":
        return said
    raise _unknown_field(cls.__name__, said, list(cls.__pydantic_fields__))


def _inner_keys(cls: type[Node], name: str, inner: Sequence[str]) -> tuple[list[str], Any]:
    """What JSON calls the fields of models inside a field of a node, and the type of the last."""
    annotation: Any = cls.__pydantic_fields__[name].annotation
    keys: list[str] = []
    for part in inner:
        members = [each for each in union_members(annotation) if isinstance(each, type)]
        models = [each for each in members if issubclass(each, BaseModel)]
        model = next((each for each in models if part in _names_of(each)), None)
        if model is None and models:
            known = [field for each in models for field in each.__pydantic_fields__]
            raise _unknown_field(models[0].__name__, part, known)
        if model is None:
            annotation = Any
        else:
            field = _names_of(model)[part]
            annotation = model.__pydantic_fields__[field].annotation
            config = model.model_config
            if not (config.get("populate_by_name") or config.get("validate_by_name")):
                # Aliases come first, and are what JSON calls it.
                part = next(alias for alias, name in _names_of(model).items() if name == field)
        keys.append(part)
    return keys, annotation


def _names_of(cls: type[BaseModel]) -> dict[str, str]:
    """What fields may be called, aliases first, and their names."""
    found: dict[str, str] = {}
    for name, info in cls.__pydantic_fields__.items():
        several: list[Any] = getattr(info.validation_alias, "choices", [])
        for alias in (info.validation_alias, *several, info.alias):
            if isinstance(alias, str):
                found.setdefault(alias, name)
    return found | {name: name for name in cls.__pydantic_fields__}


# --- the node -----------------------------------------------------------------------------------


def _ask_fields(cls: type[Node], names: Sequence[str]) -> dict[str, Any]:
    """What is answered when fields are asked for."""
    found: dict[str, Any] = {}
    name = ""
    try:
        for name in names:
            typed = ask_field(cls, name)
            if typed is not None:
                found[name] = typed.said
    except EOFError:
        err().print()
        what = f"{cls.__name__}.{name} was not given"
        raise _unfit(None, [what], "answer it, or give it with --set") from None
    return found


def build_node(cls: type[Node], fields: dict[str, Any]) -> Node:
    """The node of fields that are JSON. A class with a constructor of its own gets it called."""
    names = frozenset(fields)
    try:
        if cls.__init__ is Node.__init__:
            return from_answer(cls, fields, names)
        return cls(**validated(cls, fields, names))
    except ValidationError as error:
        wrong: list[str] = []
        for each in error.errors(include_url=False):
            place = [str(part) for part in each["loc"]]
            # The whole node is no value to show.
            shown = (each.get("input"),) if place else ()
            hidden = any(n in cls.__pydantic_fields__ and is_secret(cls, n) for n in place[:1])
            wrong.append(_fault(".".join(place), *shown, why=each["msg"], hidden=hidden))
        raise _unfit(cls, wrong) from None


# --- errors -------------------------------------------------------------------------------------


def _unfit(
    cls: type[Node] | None,
    wrong: list[str],
    fix: str = "give values that the fields take: JSON, or text where that does not fit",
    cause: BaseException | None = None,
) -> BaeError:
    said = "\n  ".join(wrong)
    if cls is not None:
        said = f"{cls.__name__} cannot be made of what was given\n  {said}"
    return BaeError(said, code="bae-start-fields", fix=fix, cause=cause)


def _fault(place: str, *value: Any, why: str, hidden: bool) -> str:
    """A line about one value that does not fit."""
    if not value:
        return f"{place}: {why}" if place else why
    shown = json.dumps(value[0], ensure_ascii=False, default=repr)
    shown = "the value" if hidden else cut(in_one_line(shown), _LONGEST)
    return f"{place}: {shown} does not fit: {why}"


def _unknown_field(owner: str, said: str, known: list[str]) -> BaeError:
    near = get_close_matches(said, known, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    has = f"{'Its fields are' if near else 'give one of its fields:'} {', '.join(known)}"
    has = has if known else "leave it out: it has no fields"
    return _unfit(None, [f"{owner} has no field {said}"], f"{meant}{has}")


def _missing(cls: type[Node], missing: list[str], said: str) -> BaeError:
    """The error about fields that were not given, with the command line that does."""
    listed: list[str] = []
    for name in missing:
        info = cls.__pydantic_fields__[name]
        about = f" ({info.description})" if info.description else ""
        listed.append(f"{name}: {describe_type(info.annotation)}{about}")
    secret = [name for name in missing if is_secret(cls, name)]
    fix = " ".join([said, *(set_example(cls, name) for name in missing if name not in secret)])
    if secret:
        fix += (
            f" -i @FILE  (a file of JSON with {', '.join(secret)}: the shell keeps what is typed)"
        )
    what = f"{cls.__name__} needs {', '.join(missing)}, and there is no terminal to ask at"
    return _unfit(None, [what, *listed], fix)
