"""How a value is asked for at a terminal: what the field is called, what it is for, what may be
typed, and what was wrong with what was. `node.py` asks for the fields of the start node with it,
`running/gates.py` words its questions with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bae.cli.printing import err
from bae.cli.running.terminal_input import line_typed
from bae.cli.start.typed import Misfit, Typed, is_yes_or_no, read, spelled, wanted
from bae.cli.texts import cut, in_lines, in_one_line

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from bae.node import Node


def ask_field(cls: type[Node], name: str) -> Typed | None:
    """Ask for a field of a node, until what is typed fits; None where its default is taken. Ctrl-D
    is an EOFError, and Ctrl-C ends the command."""
    info = cls.__pydantic_fields__[name]
    introduce(cls, name)
    prompt = prompt_of(cls, name, with_default=True)
    while True:
        text = line_typed(prompt, hidden=is_secret(cls, name))
        if not text and not info.is_required():
            return None
        try:
            return read(cls, name, text)
        except Misfit as misfit:
            err().print(refusal(misfit), soft_wrap=True)


def ask_answer(cls: type[Node], name: str) -> Typed:
    """Ask for the answer to a gate in the same way. Enter alone is none, whatever the field takes:
    an answer stands, so that it is given on purpose."""
    introduce(cls, name)
    prompt = prompt_of(cls, name)
    while True:
        text = line_typed(prompt, hidden=is_secret(cls, name))
        try:
            if text.strip():
                return read(cls, name, text)
            err().print(nothing_typed(cls, name), soft_wrap=True)
        except Misfit as misfit:
            err().print(refusal(misfit), soft_wrap=True)


def nothing_typed(cls: type[Node], name: str) -> Any:
    """What to say to somebody who types nothing at a gate."""
    from rich.text import Text

    try:
        read(cls, name, "")
    except Misfit:
        return Text("  type an answer; Ctrl-D leaves the run waiting", style="dim")
    return Text('  type an answer, "" for an empty text; Ctrl-D leaves the run waiting', "dim")


def introduce(cls: type[Node], name: str) -> None:
    """Print what a field is for, where that is said, and what it takes where that is long."""
    from rich.text import Text

    info = cls.__pydantic_fields__[name]
    kind = _kind(info.annotation)
    said = Text(name, style="bold")
    if info.description:
        said.append(f" - {in_lines(info.description, 4)}", style="dim")
    if len(kind) > _SHORT:
        said.append(f"\n  {kind}", style="cyan")
    if said.plain != name:
        err().print(said, soft_wrap=True)


def prompt_of(cls: type[Node], name: str, *, with_default: bool = False) -> str:
    """What stands before the place to type at: the field, what it takes, and what Enter alone
    gives, as `size (small | large, Enter for small): `."""
    info = cls.__pydantic_fields__[name]
    kind = _kind(info.annotation)
    facts = [kind] if len(kind) <= _SHORT else []
    if is_secret(cls, name):
        facts = ["not shown"]
    elif with_default and not info.is_required():
        facts.append(f"Enter for {default_of(info)}")
    return f"{name} ({', '.join(facts)}): " if facts else f"{name}: "


_SHORT: Final = 40
"""Characters up to which what a field takes stands in its prompt."""


def _kind(annotation: Any) -> str:
    if is_yes_or_no(annotation):
        return "y/n"
    said = in_one_line(wanted(annotation))
    return "str" if said == "text" else said


def refusal(misfit: Misfit) -> Any:
    """A line that says what is wrong with what was typed."""
    from rich.text import Text

    return Text("  that does not fit: ", style="red").append(in_lines(str(misfit), 6))


def default_of(info: FieldInfo) -> str:
    """The default of a field in a few characters."""
    from enum import Enum

    from bae.cli.live.values import text_of

    if info.default_factory is not None:
        return "what the program makes"
    value: Any = info.get_default()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | Enum):
        return cut(in_one_line(spelled(value)), 40) or "no text"
    return text_of(value, 40)


def is_secret(cls: type[Node], name: str) -> bool:
    """Whether what is typed for a field is not to be shown."""
    from bae.secrets import secret_fields

    return name in secret_fields(cls)
