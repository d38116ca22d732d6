"""The page of every command on the docs site: a mkdocs hook that writes the help of `bae`,
and of each command, where a page has the line `<!-- every command -->`."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

MARK = "<!-- every command -->"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the commands where they belong."""
    return markdown.replace(MARK, every_command()) if MARK in markdown else markdown


def every_command() -> str:
    """What there is to know about each command, as Markdown."""
    from bae.cli.app import whole_command

    command = whole_command()
    return "\n".join(_describe(command, command.make_context("bae", [], resilient_parsing=True)))


def _describe(command: Any, context: Any) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"## `{context.command_path}`\n"
    yield f"{_prose(command.help)}\n"
    yield f"```text\n{usage}\n```\n"
    rows = [row for param in command.get_params(context) for row in _row(param, context)]
    if rows:
        yield "| | |\n| --- | --- |"
        yield from rows
        yield ""
    if command.epilog:
        yield f"{_show_examples(_prose(command.epilog))}\n"
    for name in command.list_commands(context) if hasattr(command, "commands") else ():
        each = command.get_command(context, name)
        if not each.hidden:
            inner = each.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _describe(each, inner)


def _row(param: Any, context: Any) -> Iterator[str]:
    """A row of the table for an option or an argument, where it is shown."""
    if param.hidden:
        return
    if param.param_type_name == "argument":
        name, said = param.metavar or param.name.upper(), param.help or ""
    else:
        name, said = param.get_help_record(context) or ("", "")
    if name and param.name != "help":
        yield f"| `{' '.join(name.split())}` | {_line(said)} |"


def _line(text: str) -> str:
    """A text in a table: on one line, and a bar in it, outside of code, ends no cell."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if at % 2 else part.replace("|", "\\|") for at, part in enumerate(parts))


def _show_examples(epilog: str) -> str:
    """An epilog as Markdown: the command lines to copy are a block of code."""
    marked, _, notes = epilog.partition("\n\n")
    if not marked.startswith("Examples:\n"):
        return epilog
    lines = dedent(marked.removeprefix("Examples:\n"))
    return f"```text\n{lines}\n```\n\n{notes}"


def _prose(text: str | None) -> str:
    """A help text, whose paragraphs may be marked not to be wrapped."""
    return (text or "").replace("\b", "").strip()
