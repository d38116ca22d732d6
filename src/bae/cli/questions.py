"""How a value is asked for at a terminal: what the field is called, what it is for, what may be
typed, and what was wrong with what was. `start.py` asks for the fields of the start node with it,
`gates.py` words its questions with it."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bae.cli.printing import err
from bae.cli.typed import Misfit, Typed, is_yes_or_no, read, spelled, wanted

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from bae.node import Node


def ask_field(cls: type[Node], name: str) -> Typed | None:
    """Ask for a field of a node, until what is typed fits; None where its default is taken. Ctrl-D
    is an EOFError and Ctrl-C a KeyboardInterrupt."""
    from rich.text import Text

    info = cls.__pydantic_fields__[name]
    console = err()
    console.print(heading(name, info, secret=is_secret(cls, name)), soft_wrap=True)
    if info.description:
        console.print(Text(f"  {printable(info.description)}", style="dim"), soft_wrap=True)
    while True:
        text = _line(prompt_of(info.annotation), hidden=is_secret(cls, name))
        if not text and not info.is_required():
            return None
        try:
            return read(cls, name, text)
        except Misfit as misfit:
            console.print(refusal(misfit), soft_wrap=True)


def heading(name: str, info: FieldInfo, *, secret: bool = False) -> Any:
    """A line that names a field and says what may be typed."""
    from rich.text import Text

    said = Text(name, style="bold").append(f"  {wanted(info.annotation)}", style="cyan")
    if secret:
        said.append("  not shown while you type", style="dim")
    elif not info.is_required():
        said.append(f"  Enter for {default_of(info)}", style="dim")
    return said


def prompt_of(annotation: Any) -> str:
    """What stands before the place to type at."""
    return "[y/n] > " if is_yes_or_no(annotation) else "> "


def refusal(misfit: Misfit) -> Any:
    """A line that says what is wrong with what was typed."""
    from rich.text import Text

    return Text("  that does not fit: ", style="red").append(printable(str(misfit)))


def default_of(info: FieldInfo) -> str:
    """The default of a field in a few characters."""
    from enum import Enum

    from bae.cli.live.values import cut, text_of

    if info.default_factory is not None:
        return "what the program makes"
    value: Any = info.get_default()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | Enum):
        return cut(printable(spelled(value)), 40) or "no text"
    return text_of(value, 40)


def is_secret(cls: type[Node], name: str) -> bool:
    """Whether what is typed for a field is not to be shown."""
    from bae.journal.coding.nodes import kept_node

    return name in kept_node(cls).secret


def printable(text: str) -> str:
    """A text without what a terminal would obey; its lines stay lines."""
    from bae.cli.live.values import printable

    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def _line(prompt: str, *, hidden: bool) -> str:
    """A line that is typed, while nothing else goes on."""
    if hidden:
        from getpass import getpass

        return getpass(prompt, stream=sys.stderr)
    with suppress(ImportError):
        import_module("readline")  # arrow keys, for what `input` reads
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)  # `input` would write it into the result
    sys.stderr.flush()
    return input()
