"""How `--help` looks: flags and arguments have no type beside them, commands stand in the order of
the work, and the lines below a command's help are examples to copy. `app.py` gives every command
these classes, which also see to it that --json is alone on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from bae.cli.json_output import only_json

ORDER: Final = (
    *("new", "run", "check", "prompts", "graph", "runs", "eval", "optimize", "lm", "version"),
)
"""The commands as --help lists them: those that one needs first, first."""


def examples(*lines: str) -> str:
    """The epilog of a command: command lines to copy, and sentences that begin with a capital."""
    said = (f"\n{line}" if line[0].isupper() else f"- `{line}`" for line in lines)
    return "\n\n".join(["Examples:", *said])


class PlainCommand(TyperCommand):
    """A command whose help shows no types beside flags and arguments."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _leave_the_background()
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as help and the parser take them."""
        return _without_types(super().get_params(ctx), ctx)

    def invoke(self, ctx: Any) -> Any:
        """Carry it out; with --json there is JSON on stdout, and nothing else."""
        try:
            with only_json(bool(ctx.params.get("as_json")), ctx.info_name):
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            # Typer ends the program then without a word.
            where = "".join(f" {each}" for each in getattr(interrupt, "__notes__", ()))
            with suppress(OSError):
                print(f"interrupted{where}", file=sys.stderr)
            raise


class PlainGroup(TyperGroup):
    """A group of commands; those of `bae` itself stand in the order of the work."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _leave_the_background()
        super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as help and the parser take them."""
        return _without_types(super().get_params(ctx), ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands."""
        names = list(super().list_commands(ctx))
        if ctx.parent is not None:
            return names
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def make_plain(app: typer.Typer) -> None:
    """Give an app, its commands and its groups these classes, where they have none of their own."""
    app.info.cls = PlainGroup
    for command in app.registered_commands:
        if command.cls is None or command.cls is TyperCommand:
            command.cls = PlainCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.cls = PlainGroup
            make_plain(group.typer_instance)


def _without_types(parameters: Iterable[Any], ctx: Any) -> list[Any]:
    found = list(parameters)
    for each in found:
        if each.param_type_name == "argument":
            each.display_type_rich = _nothing
        elif each.metavar is None:
            # A choice is left as it is: it says what there is to choose from.
            shown = "" if each.is_flag else each.display_type_rich(ctx)
            each.metavar = _NAMES.get(shown.strip("<>"), shown)
    return found


_NAMES: Final = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X"}


def _leave_the_background() -> None:
    """Rich prints code on black, which is a hole in a light terminal; Typer leaves no way to tell
    it otherwise than by Rich's own defaults."""
    from rich.default_styles import DEFAULT_STYLES
    from rich.style import Style

    DEFAULT_STYLES["markdown.code"] = Style(color="cyan", bold=True)


def _nothing(ctx: Any) -> str:
    """Beside an argument: its name and its help say what it is."""
    return ""
