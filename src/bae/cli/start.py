"""Build the start node of a run from -i, --set, and questions at the terminal."""

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
from bae.cli.wording import cut_text, in_one_line
from bae.draft import from_answer, validate_values
from bae.exceptions import BaeError
from bae.files import File
from bae.given_files import read_stdin
from bae.node import Node
from bae.plan import plan_of

T = TypeVar("T")
_LONGEST: Final = 60
"""Maximum characters of a value in an error message."""


def start_node(
    cls: type[Node], input_text: str | None, sets: Sequence[str], *, ask: bool, command: str
) -> Node:
    """Build the start node from the fields that `start_fields` returns."""
    return build_node(cls, start_fields(cls, input_text, sets, ask=ask, command=command))


def start_fields(
    cls: type[Node],
    input_text: str | None,
    sets: Sequence[str],
    *,
    ask: bool,
    command: str,
    later: Collection[str] = (),
) -> dict[str, Any]:
    """Return the fields of a start node, as JSON values.

    With `ask`, bae asks at the terminal for required fields that are missing. Without `ask` or a
    terminal, a missing field raises an error. If a field is missing and neither -i nor --set was
    used, bae also asks for fields with a default.

    `later` names fields that the caller adds afterwards. If there are any, bae asks only for other
    required fields. Errors show an example that begins with `command`.
    """
    fields = _read_input(cls, input_text) if input_text is not None else {}
    targets = split_sets(sets, partial(_split_place, cls))
    for (name, *inner), text in sorted(
        targets, key=lambda target: len(target[0])
    ):  # set an object before the fields inside it
        if inner:
            keys, annotation = _find_inner_keys(cls, name, inner)
            fields[name] = _replace_part(
                fields.get(name), keys, _parse_json_or_text(text, annotation)
            )
        elif name in cls.__pydantic_fields__:
            fields[name] = read_text(cls, name, text).data
        else:
            fields[name] = _parse_json_or_text(text, Any)
    plain = [field for field in plan_of(cls, strict=True).plain if field.name not in fields]
    missing = [field.name for field in plain if field.required and field.name not in later]
    if missing and not (ask and can_ask()):
        raise _missing_fields_error(cls, missing, command)
    if missing:
        asks_all = input_text is None and not sets and not later
        fields |= _ask_fields(cls, [field.name for field in plain] if asks_all else missing)
    return fields


def read_sets(cls: type[Node], sets: Sequence[str]) -> dict[str, Any]:
    """Return the fields that --set names, as validated values."""
    targets = split_sets(sets, partial(_find_field, cls))
    return {name: read_text(cls, name, text).value for name, text in targets}


def read_text(cls: type[Node], name: str, text: str) -> Typed:
    """Parse a text as the value of a field. The error names the field, and shows the text unless
    the field is secret."""
    try:
        return read(cls, name, text)
    except UnfitText as misfit:
        hidden = is_secret(cls, name)
        fix = f"give {describe_type(cls.__pydantic_fields__[name].annotation)}"
        fix += "" if hidden else f"; for example {set_example(cls, name)}"
        raise _misfit_error(
            cls, [_describe_misfit(name, text, why=str(misfit), hidden=hidden)], fix
        ) from None


def split_sets(sets: Sequence[str], find: Callable[[str], T]) -> list[tuple[T, str]]:
    """Split each `--set FIELD=VALUE` into a target and the text VALUE. `find` returns the target
    for a FIELD. Raise Misuse if two settings have the same target."""
    targets: list[tuple[T, str]] = []
    for setting in sets:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise Misuse(
                f"--set {shlex.quote(setting)} has no FIELD=VALUE",
                code="bae-start-fields",
                fix="write it as --set message=hello, or with spaces as --set 'message=good "
                "morning'",
            )
        place = find(name.strip())
        if any(place == target for target, _ in targets):
            raise Misuse(
                f"--set gives {name.strip()} twice",
                code="bae-start-fields",
                fix="give each field once",
            )
        targets.append((place, text))
    return targets


# --- -i -----------------------------------------------------------------------------------------


def _read_input(cls: type[Node], input_text: str) -> dict[str, Any]:
    """Return the fields that -i gives, as JSON values. If the start node needs only one field, -i
    may be the field's value alone, as JSON or text."""
    text, where = _read_input_text(input_text)
    plain = plan_of(cls, strict=True).plain
    to_give = [field.name for field in plain if field.required] or [field.name for field in plain]
    only = to_give[0] if len(to_give) == 1 else None
    fix = f"give a JSON object with the fields of {cls.__name__}: {', '.join(to_give)}"
    try:
        data: Any = loads(text)
    except ValueError as error:
        if only is None or text.lstrip().startswith(("{", "[")):
            raise _misfit_error(None, [f"what -i gives{where} is not JSON: {error}"], fix) from None
        return {only: text.removesuffix("\n")}
    if isinstance(data, dict):
        values = cast(dict[str, Any], data)
        if only is not None and values and not values.keys() & _field_names(cls).keys():
            with suppress(UnfitText):  # the only field is an object itself
                return {only: read_json(cls, only, values).data}
        return {_find_field(cls, name): value for name, value in values.items()}
    if only is None:
        raise _misfit_error(None, [f"what -i gives{where} is no JSON object"], fix)
    try:
        return {only: read_json(cls, only, data).data}
    except UnfitText:  # 5 is valid JSON, and also a text for a text field
        return {only: read_text(cls, only, text.strip()).data}


def _read_input_text(input_text: str) -> tuple[str, str]:
    """Return the text that -i names, and its origin for error messages, such as ` on stdin`."""
    try:
        if input_text == "-":
            return read_stdin(), " on stdin"
        if input_text.startswith("@"):
            return given_files.read_text(input_text[1:], "utf-8-sig"), f" in {input_text[1:]}"
    except (OSError, UnicodeDecodeError) as error:
        raise _misfit_error(
            None,
            [f"what -i names cannot be read: {input_text}"],
            "name a file of JSON after the @, as -i @start.json; -i - reads stdin",
            cause=error,
        ) from error
    return input_text, ""


# --- --set --------------------------------------------------------------------------------------


def _replace_part(parent: Any, inner: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of an object in which the value at the path `inner` is replaced."""
    changed = dict(cast(Mapping[str, Any], parent)) if isinstance(parent, Mapping) else {}
    first, *rest = inner
    changed[first] = _replace_part(changed.get(first), rest, value) if rest else value
    return changed


def _parse_json_or_text(text: str, annotation: Any) -> Any:
    if text.startswith("@") and _is_file(annotation):
        try:
            return next(with_read_files([text], annotation))
        except UnfitText as misfit:
            raise _misfit_error(None, [str(misfit)], "name an existing file after the @") from None
    try:
        TypeAdapter[Any](annotation).validate_json(text)
        return loads(text)
    except Exception:  # not JSON, or not valid: the validation of the complete field explains why
        return text


def _is_file(annotation: Any) -> bool:
    members = union_members(annotation)
    return any(isinstance(member, type) and issubclass(member, File) for member in members)


def _split_place(cls: type[Node], place: str) -> list[str]:
    """Split a place such as `a.b` into the name of the field, and the names inside the field."""
    # A dot may be part of an alias.
    name, *inner = [place] if place in _field_names(cls) else place.split(".")
    return [_find_field(cls, name), *inner]


def _find_field(cls: type[Node], name: str) -> str:
    """Return the name of the field that has this name or alias."""
    names = _field_names(cls)
    if name in names:
        return names[name]
    if cls.model_config.get("extra") == "allow":
        return name
    raise _unknown_field_error(cls.__name__, name, list(cls.__pydantic_fields__))


def _find_inner_keys(cls: type[Node], name: str, inner: Sequence[str]) -> tuple[list[str], Any]:
    """Return the JSON keys of nested fields, and the type of the innermost field."""
    annotation: Any = cls.__pydantic_fields__[name].annotation
    keys: list[str] = []
    for part in inner:
        members = [member for member in union_members(annotation) if isinstance(member, type)]
        models = [member for member in members if issubclass(member, BaseModel)]
        model = next((model for model in models if part in _field_names(model)), None)
        if model is None and models:
            inner_names = [field for model in models for field in model.__pydantic_fields__]
            raise _unknown_field_error(models[0].__name__, part, inner_names)
        if model is None:
            annotation = Any
        else:
            field = _field_names(model)[part]
            annotation = model.__pydantic_fields__[field].annotation
            config = model.model_config
            if not (config.get("populate_by_name") or config.get("validate_by_name")):
                # JSON uses aliases: take the first entry, which is an alias if there is one.
                part = next(alias for alias, name in _field_names(model).items() if name == field)
        keys.append(part)
    return keys, annotation


def _field_names(cls: type[BaseModel]) -> dict[str, str]:
    """Map each alias and each name to the name of its field. Aliases come first."""
    names: dict[str, str] = {}
    for name, info in cls.__pydantic_fields__.items():
        choices: list[Any] = getattr(info.validation_alias, "choices", [])
        for alias in (info.validation_alias, *choices, info.alias):
            if isinstance(alias, str):
                names.setdefault(alias, name)
    return names | {name: name for name in cls.__pydantic_fields__}


# --- the node -----------------------------------------------------------------------------------


def _ask_fields(cls: type[Node], names: Sequence[str]) -> dict[str, Any]:
    """Ask for the fields at the terminal, and return the answers."""
    answers: dict[str, Any] = {}
    name = ""
    try:
        for name in names:
            typed = ask_field(cls, name)
            if typed is not None:
                answers[name] = typed.data
    except EOFError:
        err().print()
        message = f"{cls.__name__}.{name} was not given"
        raise _misfit_error(None, [message], "answer it, or give it with --set") from None
    return answers


def build_node(cls: type[Node], fields: dict[str, Any]) -> Node:
    """Build a node from JSON fields. If the class has its own constructor, call it."""
    names = frozenset(fields)
    try:
        if cls.__init__ is Node.__init__:
            return from_answer(cls, fields, names)
        return cls(**validate_values(cls, fields, names))
    except ValidationError as error:
        problems: list[str] = []
        for fault in error.errors(include_url=False):
            place = [str(part) for part in fault["loc"]]
            # Without a place, the value is the complete node: do not show it.
            value = (fault.get("input"),) if place else ()
            hidden = any(n in cls.__pydantic_fields__ and is_secret(cls, n) for n in place[:1])
            problems.append(
                _describe_misfit(".".join(place), *value, why=fault["msg"], hidden=hidden)
            )
        raise _misfit_error(cls, problems) from None


# --- errors -------------------------------------------------------------------------------------


def _misfit_error(
    cls: type[Node] | None,
    problems: list[str],
    fix: str = "give values that are valid for the fields: JSON, or plain text",
    cause: BaseException | None = None,
) -> BaeError:
    message = "\n  ".join(problems)
    if cls is not None:
        message = f"{cls.__name__} cannot be built from these values\n  {message}"
    return BaeError(message, code="bae-start-fields", fix=fix, cause=cause)


def _describe_misfit(place: str, *value: Any, why: str, hidden: bool) -> str:
    """Describe in one line why a value does not fit. Without a value, give only the reason."""
    if not value:
        return f"{place}: {why}" if place else why
    text = json.dumps(value[0], ensure_ascii=False, default=repr)
    text = "the value" if hidden else cut_text(in_one_line(text), _LONGEST)
    return f"{place}: {text} does not fit: {why}"


def _unknown_field_error(owner: str, name: str, field_names: list[str]) -> BaeError:
    matches = get_close_matches(name, field_names, n=1, cutoff=0.5)
    suggestion = f"did you mean {matches[0]}? " if matches else ""
    fields_text = (
        f"{'Its fields are' if matches else 'give one of its fields:'} {', '.join(field_names)}"
    )
    fields_text = fields_text if field_names else "leave it out: it has no fields"
    return _misfit_error(None, [f"{owner} has no field {name}"], f"{suggestion}{fields_text}")


def _missing_fields_error(cls: type[Node], missing: list[str], command: str) -> BaeError:
    """Return the error about missing fields. Its fix is a complete command line with examples."""
    listed: list[str] = []
    for name in missing:
        info = cls.__pydantic_fields__[name]
        about = f" ({info.description})" if info.description else ""
        listed.append(f"{name}: {describe_type(info.annotation)}{about}")
    secrets = [name for name in missing if is_secret(cls, name)]
    fix = " ".join([command, *(set_example(cls, name) for name in missing if name not in secrets)])
    if secrets:
        fix += f" -i @FILE  (a file of JSON with {', '.join(secrets)}: the shell keeps typed text)"
    message = f"{cls.__name__} needs {', '.join(missing)}, and there is no terminal to ask at"
    return _misfit_error(None, [message, *listed], fix)
