"""The result of a run as people read it: the class of its last node as a title, the fields below.
At a terminal they are set out in columns and wrapped; elsewhere a line stays a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from bae.cli.start.questions import is_secret
from bae.cli.texts import WITHHELD, in_lines, in_one_line
from bae.secrets import without_hidden_parts

if TYPE_CHECKING:
    from rich.console import Console

    from bae.node import Node


def show(node: Node, console: Console) -> None:
    """Print a node."""
    from rich.text import Text

    fields = fields_of(node)
    if not console.is_terminal:
        lines = [type(node).__name__, *_plain(fields, "  ")]
        console.print(Text("\n".join(lines)), soft_wrap=True)
        return
    console.print(Text(type(node).__name__, style="bold green"))
    if fields:
        console.print(_table(fields, "  "))


def fields_of(node: Node) -> dict[str, Any]:
    """The fields of a node as JSON has them, secrets withheld: those that the types tell of, and
    fields with `repr=False` of whatever else is in a value."""
    cls = type(node)
    hidden = {name for name in cls.__pydantic_fields__ if is_secret(cls, name)}
    held = {**node.__dict__, **(node.__pydantic_extra__ or {})}
    cleaned = {n: without_hidden_parts(v, WITHHELD) for n, v in held.items() if n not in hidden}
    within = {name for name, value in cleaned.items() if value is not held[name]}
    try:
        shown: dict[str, Any] = node.model_dump(
            mode="json", exclude=hidden | within, fallback=repr, warnings=False
        )
    except Exception:  # a serializer of somebody's own: the values as they are will do
        shown = {n: each for n, each in held.items() if n not in hidden | within}
    made: dict[str, Any] = {}
    for name in dict.fromkeys((*cls.__pydantic_fields__, *held, *shown)):
        if name in hidden:
            made[name] = WITHHELD
        elif name in within:
            made[name] = _jsonable(cleaned[name])
        elif name in shown:
            made[name] = _jsonable(shown[name])
    return made


def _jsonable(value: Any) -> Any:
    """A value as JSON has it; one that it cannot have, as it writes itself."""
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
    except Exception:  # a serializer of the user's, which may raise anything
        return repr(value)


def _plain(fields: Mapping[str, Any], before: str) -> Iterator[str]:
    for name, value in fields.items():
        yield from _entry(f"{before}{in_one_line(name)}:", value, before + "  ")


def _entry(start: str, value: Any, below: str) -> Iterator[str]:
    """The lines of one value, the first one after what it is called."""
    match value:
        case dict() if value:
            yield start
            yield from _plain(cast(dict[str, Any], value), below)
        case list() if value:
            yield start
            for each in cast(list[Any], value):
                yield from _item(each, below)
        case _:
            lines = f"{start} {in_lines(said(value), len(below))}".split("\n")
            yield from (line.rstrip() for line in lines)


def _item(value: Any, before: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        first = True
        for line in _plain(cast(dict[str, Any], value), before + "  "):
            yield f"{before}- {line[len(before) + 2 :]}" if first else line
            first = False
    else:
        yield from _entry(f"{before}-", value, before + "  ")


def _table(fields: Mapping[str, Any], before: str = "") -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column(overflow="fold", ratio=1)
    for name, value in fields.items():
        table.add_row(Text(f"{before}{in_one_line(name)}", style="bold"), _cell(value))
    return table


def _cell(value: Any) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    match value:
        case dict() if value:
            return _table(cast(dict[str, Any], value))
        case list() if value:
            listed = Table.grid(padding=(0, 1))
            listed.add_column(width=1)
            listed.add_column(overflow="fold", ratio=1)
            for each in cast(list[Any], value):
                listed.add_row(Text("-", style="dim"), _cell(each))
            return Group(listed)
        case _:
            quiet = value is None or value == WITHHELD
            return Text(in_lines(said(value)), style="dim" if quiet else "")


def said(value: Any) -> str:
    """A value without parts, as it is read."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Sequence | Mapping):
        return "none"  # an empty list or object
    return str(value)
