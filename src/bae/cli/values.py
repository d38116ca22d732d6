"""Parse field values from text, and print nodes. A text is read as JSON if the result is valid for
the field, otherwise as plain text. `--set`, gates and questions share this rule."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bae.approvals import Approval, Interruption
from bae.assignable import type_name, union_members
from bae.cli.wording import WITHHELD, call_text, cut_text, in_lines, in_one_line, result_text
from bae.draft import validate_values
from bae.exceptions import describe
from bae.file_proof import holds_file
from bae.files import MAX_BYTES, File, file_of, with_paths_read, with_placeholders
from bae.given_files import read_file
from bae.markers import OpenGate
from bae.node import Node
from bae.secrets import Copies, hidden_fields, secret_fields, veil_of, without_hidden_parts
from bae.tools import ToolCall

_TEXT: Final = "…"
_YES_OR_NO: Final = {"y": True, "yes": True, "n": False, "no": False}


class UnfitText(Exception):
    """The text is not a valid value of the field. The message says why."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A text that was parsed for a field."""

    data: Any
    """The JSON value."""
    value: Any
    """The validated value of the field."""

    def to_input(self, cls: type[Node], name: str) -> Any:
        """Return the value for code that validates the value again. This is the JSON value if the
        field accepts it as a Python value too, otherwise the validated value."""
        try:
            validate_values(cls, {name: self.data})
        except Exception:  # validators may raise anything
            return self.value
        return self.data


def read(cls: type[Node], name: str, text: str) -> Typed:
    """Parse a text as the value of a field. Raise `UnfitText` if the text is not valid."""
    problem = UnfitText("it is no value of the field")
    annotation = cls.__pydantic_fields__[name].annotation
    readings = _read_possible_values(text, annotation)
    if "@" in text and holds_file(cls, name):
        readings = with_read_files(readings, annotation)
    for reading in readings:
        try:
            return read_json(cls, name, reading)
        except UnfitText as misfit:
            problem = misfit
    raise problem


def read_json(cls: type[Node], name: str, data: Any) -> Typed:
    """Validate a JSON value for a field. Raise `UnfitText` if the value is not valid."""
    try:
        return Typed(data, validate_values(cls, {name: data}, json_fields=frozenset({name}))[name])
    except Exception as error:  # validators may raise anything
        raise UnfitText(_describe_error(error, name)) from error


def loads(text: str) -> Any:
    """Parse JSON. Raise ValueError if the text is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def with_read_files(readings: Iterable[Any], annotation: Any) -> Iterator[Any]:
    """Yield the possible values with each `@PATH`, alone or in a list, replaced by the image or
    document at PATH. For a list field, a single `@PATH` becomes a list. Raise `UnfitText` if a file
    cannot be read."""
    origins = [get_origin(member) for member in union_members(annotation)]
    for reading in readings:
        replaced = with_paths_read(reading, read_file_at)
        is_one = isinstance(reading, str) and replaced is not reading
        yield [replaced] if is_one and list in origins else replaced


def read_file_at(path: str) -> File:
    """Read an image or document. Raise `UnfitText` if the file cannot be read."""
    try:
        return file_of(read_file(path, MAX_BYTES), Path(path).name)
    except OSError as error:
        raise UnfitText(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UnfitText(f"{path}: {error}") from error


def _read_possible_values(text: str, annotation: Any) -> Iterator[Any]:
    """Yield the possible values of a text, the most likely first. The letter case of choices is
    ignored."""
    word = text.strip().lower()
    if is_yes_or_no(annotation) and word in _YES_OR_NO:
        yield _YES_OR_NO[word]  # a strict field accepts no text
    with suppress(ValueError):
        yield loads(text)
    yield text
    yield from (choice for choice in choices_of(annotation) if choice.lower() == word)
    # Names of enum members come after values: a name may be the value of another member.
    for member in _enum_members(annotation):
        if member.name.lower() == word:
            yield to_jsonable_python(member.value)
    yield text.strip()


def _describe_error(error: Exception, name: str) -> str:
    if not isinstance(error, ValidationError):
        return describe(error)
    reasons: list[str] = []
    for fault in error.errors(include_url=False):
        place = [str(part) for part in fault["loc"]]
        if place[:1] == [name]:
            place = place[1:]
        reasons.append(f"{'.'.join(place)}: {fault['msg']}" if place else fault["msg"])
    return "; ".join(reasons)


# --- what a field accepts -----------------------------------------------------------------------


def is_secret(cls: type[Node], name: str) -> bool:
    """Return whether a field, and the texts that the user types for the field, must be hidden.
    During a run, this also applies to fields with copies of secrets."""
    veil = veil_of(cls)
    return name in secret_fields(cls) or (veil is not None and name in veil.masked)


def is_yes_or_no(annotation: Any) -> bool:
    """Return whether a type is `bool` or `bool | None`."""
    return {member for member in union_members(annotation) if member is not NoneType} == {bool}


def choices_of(annotation: Any) -> list[str]:
    """Return the texts of the choices of a Literal or an Enum. Empty for other types."""
    choices: list[str] = []
    for member in union_members(annotation):
        if get_origin(member) is Literal:
            choices.extend(spell_value(value) for value in get_args(member))
        elif isinstance(member, type) and issubclass(member, Enum):
            choices.extend(spell_value(enum_member) for enum_member in member)
        elif member is not NoneType:
            return []
    return list(dict.fromkeys(choices))


def _enum_members(annotation: Any) -> list[Enum]:
    """Return the members of all enums in a union."""
    members: list[Enum] = []
    for kind in union_members(annotation):
        if isinstance(kind, type) and issubclass(kind, Enum):
            members.extend(kind)
    return members


def describe_type(annotation: Any, *, in_thread: bool = False) -> str:
    """Describe the texts that a type accepts: `yes or no`, `red | blue`, `1 (LOW) | 2 (HIGH)`,
    `int`. With `in_thread`, an approval may also apply to the rest of the thread."""
    if is_yes_or_no(annotation):
        return "yes or no"
    if annotation is Approval:
        wider = "run | thread" if in_thread else "run"
        return f'yes | no: why | {wider} | {{"arguments": …}}'
    if annotation is Interruption:
        return "yes to repeat it | no | what happened"
    names = {spell_value(member): member.name for member in _enum_members(annotation)}
    choices = [
        choice
        if names.get(choice, choice).lower() == choice.lower()
        else f"{choice} ({names[choice]})"
        for choice in choices_of(annotation)
    ]
    if choices:
        return " | ".join(choices)
    kinds = [member for member in union_members(annotation) if member is not NoneType]
    files = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, File)]
    if files:
        return f"@FILE, {' or '.join(file.kind for file in files)}"
    if kinds == [str]:
        return "text"
    structured = (list, tuple, set, frozenset, dict, BaseModel)
    origins = [get_origin(kind) or kind for kind in kinds]
    if any(isinstance(origin, type) and issubclass(origin, structured) for origin in origins):
        return f"{type_name(annotation)}, as JSON"
    return type_name(annotation)


def answer_field(gate: OpenGate) -> tuple[type[Node], str]:
    """Return the class and the field that validate the answer to a gate. For a question about a
    tool call, make such a class."""
    if not gate.parameter:
        return gate.node_type, gate.field_name
    return create_model("Answer", __base__=_Answer, answer=(gate.type, ...)), "answer"


class _Answer(Node):
    async def __call__(self) -> None: ...


def spell_value(value: Any) -> str:
    """Return the text that a user types for a value of a Literal, or for a member of an Enum."""
    if isinstance(value, Enum):
        value = value.value
    return value if isinstance(value, str) else json.dumps(value, default=str)


def example_of(cls: type[Node], name: str) -> str | None:
    """Return an example value for a field. The example is valid, unless none can be found. Return
    None for a secret, because people copy examples into the shell, which stores them."""
    if is_secret(cls, name):
        return None
    annotation: Any = cls.__pydantic_fields__[name].annotation
    if holds_file(cls, name):
        return "@FILE"
    is_yes = is_yes_or_no(annotation) or any(
        annotation is kind for kind in (Approval, Interruption)
    )
    candidates = ["yes"] if is_yes else choices_of(annotation)[:1]
    if str in union_members(annotation):
        candidates.append(_TEXT)
    for candidate in (*candidates, _make_sample(cls, name)):
        with suppress(UnfitText):
            read(cls, name, candidate)
            return candidate
    return _TEXT


def set_example(cls: type[Node], name: str) -> str:
    """Return an example of `--set` for a field."""
    return f"--set {shlex.quote(f'{name}={example_of(cls, name) or _TEXT}')}"


def _make_sample(cls: type[Node], name: str) -> str:
    from bae.testing import sample

    try:
        schema = cls.model_json_schema(by_alias=False)
        sample_value: Any = sample({**schema["properties"][name], "$defs": schema.get("$defs", {})})
    except Exception:  # there is no JSON schema, or no sample for it
        return _TEXT
    text = (
        sample_value
        if isinstance(sample_value, str)
        else json.dumps(sample_value, ensure_ascii=False)
    )
    return text if len(text) <= _LONGEST_EXAMPLE else _TEXT


_LONGEST_EXAMPLE: Final = 400
_CALL: Final = 100
"""Maximum characters of a tool call and of its error."""


# --- printing a node ------------------------------------------------------------------------------


def print_node(node: Node, console: Console, copies: Copies | None = None) -> None:
    """Print a node: the name of its class, then its fields. A terminal gets wrapped columns. A file
    or a pipe gets a line for each value. `copies` has the fields that may hold copies of secrets:
    see `GraphPlan.hidden`."""
    fields = with_placeholders(_shorten_calls(node, fields_of(node, copies)))
    if not console.is_terminal:
        lines = [type(node).__name__, *_field_lines(fields, "  ")]
        console.print(Text("\n".join(lines)), soft_wrap=True)
        return
    console.print(Text(type(node).__name__, style="bold green"))
    if fields:
        console.print(_make_table(fields, "  "))


def fields_of(node: Node, copies: Copies | None = None) -> dict[str, Any]:
    """Return the fields of a node as JSON values, with `WITHHELD` in place of secrets. Secrets are
    the fields that are declared secret, the fields in `copies`, and nested fields with
    `repr=False`."""
    cls = type(node)
    hidden = {*secret_fields(cls), *hidden_fields(cls), *(copies or {}).get(cls, ())}
    all_values = {**node.__dict__, **(node.__pydantic_extra__ or {})}
    cleaned = {
        n: without_hidden_parts(v, WITHHELD) for n, v in all_values.items() if n not in hidden
    }
    cleaned_names = {name for name, value in cleaned.items() if value is not all_values[name]}
    try:
        dumped: dict[str, Any] = node.model_dump(
            mode="json", exclude=hidden | cleaned_names, fallback=repr, warnings=False
        )
    except Exception:  # a serializer in user code failed: use the Python values
        dumped = {
            n: field_value
            for n, field_value in all_values.items()
            if n not in hidden | cleaned_names
        }
    values = dumped | {n: cleaned[n] for n in cleaned_names} | dict.fromkeys(hidden, WITHHELD)
    order = dict.fromkeys((*cls.__pydantic_fields__, *all_values, *dumped))
    return {name: _to_json(values[name]) for name in order if name in values}


def _shorten_calls(node: BaseModel, fields: dict[str, Any]) -> dict[str, Any]:
    """Replace each tool call in the fields of a node, and of nested nodes, by one line."""
    for name, value in node.__dict__.items():
        calls, dumped = cast("list[Any]", value), fields.get(name)
        is_calls = isinstance(value, list) and all(isinstance(call, ToolCall) for call in calls)
        if is_calls and isinstance(dumped, list):
            fields[name] = [
                _describe_call(call_data) for call_data in cast("list[dict[str, Any]]", dumped)
            ]
        elif isinstance(value, Node) and isinstance(dumped, dict):
            _shorten_calls(value, cast("dict[str, Any]", dumped))
    return fields


def _describe_call(call: dict[str, Any]) -> str:
    error = call["error"]
    outcome = result_text(call["result"]) if error is None else f"error: {cut_text(error, _CALL)}"
    return f"{call_text(call['name'], call['arguments'], _CALL)} -> {outcome}"


def _to_json(value: Any) -> Any:
    """Return a value as JSON. If JSON has no form for the value, return its `repr`."""
    try:
        return to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    except Exception:  # a serializer in user code may raise anything
        return repr(value)


def _field_lines(fields: Mapping[str, Any], before: str) -> Iterator[str]:
    for name, value in fields.items():
        yield from _value_lines(f"{before}{in_one_line(name)}:", value, before + "  ")


def _value_lines(start: str, value: Any, below: str) -> Iterator[str]:
    """Yield the lines of a value. The first line begins with `start`."""
    if isinstance(value, dict) and value:
        yield start
        yield from _field_lines(cast("dict[str, Any]", value), below)
    elif isinstance(value, list) and value:
        yield start
        for item in cast("list[Any]", value):
            yield from _item_lines(item, below)
    else:
        lines = f"{start} {in_lines(_plain_text(value), len(below))}".split("\n")
        yield from (line.rstrip() for line in lines)


def _item_lines(value: Any, before: str) -> Iterator[str]:
    if not (isinstance(value, dict) and value):
        yield from _value_lines(f"{before}-", value, before + "  ")
        return
    for index, line in enumerate(_field_lines(cast("dict[str, Any]", value), before + "  ")):
        yield line if index else f"{before}- {line[len(before) + 2 :]}"


def _make_table(fields: Mapping[str, Any], before: str = "") -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column(overflow="fold", ratio=1)
    for name, value in fields.items():
        table.add_row(Text(f"{before}{in_one_line(name)}", style="bold"), _make_cell(value))
    return table


def _make_cell(value: Any) -> Any:
    if isinstance(value, dict) and value:
        return _make_table(cast("dict[str, Any]", value))
    if isinstance(value, list) and value:
        table = Table.grid(padding=(0, 1))
        table.add_column(width=1)
        table.add_column(overflow="fold", ratio=1)
        for item in cast("list[Any]", value):
            table.add_row(Text("-", style="dim"), _make_cell(item))
        return table
    quiet = value is None or value == WITHHELD
    return Text(in_lines(_plain_text(value)), style="dim" if quiet else "")


def _plain_text(value: Any) -> str:
    """Return the text of a value that is not a filled list or object."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Sequence | Mapping):
        return "none"  # an empty list or object
    return str(value)
