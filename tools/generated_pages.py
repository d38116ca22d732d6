"""Pages of the docs site that are made from the code: a mkdocs hook. It writes the help of `bae`
and of each command where a page has the line `<!-- every command -->`, the kinds of stored lines
where it has `<!-- every kind of line -->`, and what mkdocstrings needs to describe each public name
of a module where it has `<!-- every name of MODULE -->`, beginning with NAMES in
`<!-- every name of MODULE: NAMES -->`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from textwrap import dedent
from typing import Any, get_args

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

COMMANDS = "<!-- every command -->"
KINDS = "<!-- every kind of line -->"
NAMES = re.compile(r"<!-- every name of (bae[.\w]*)(?:: ([\w ]+))? -->")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put commands, kinds and names where they belong."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, every_command())
    if KINDS in markdown:
        markdown = markdown.replace(KINDS, every_kind())
    return NAMES.sub(lambda mark: every_name(mark[1], (mark[2] or "").split()), markdown)


def every_kind() -> str:
    """Return a table of the kinds of lines that a journal stores, each with the fields of its
    data."""
    from bae.journal.lines import DATA

    rows = (
        f"| `{kind}` | {', '.join(_data(name, what) for name, what in fields.items())} |"
        for kind, fields in DATA.items()
    )
    return "\n".join(["| kind | `data` |", "| --- | --- |", *rows])


def _data(name: str, what: Any) -> str:
    """Describe a field of a line, with its possible texts. An optional field is in brackets."""
    omitted = isinstance(what, tuple)
    kind = what[0] if omitted else what
    parts = {"StoredNode": "nodes", "AskerData": "askers", "ErrorData": "errors", "Usage": "usage"}
    part = parts.get(getattr(kind, "__name__", ""))
    words = [arg for arg in get_args(kind) if isinstance(arg, str)]
    title = f"[`{name}`](#{part})" if part else f"`{name}`"
    title += f" ({', '.join(words)})" if words else ""
    return f"[{title}]" if omitted else title


def every_name(module: str, first: Sequence[str] = ()) -> str:
    """Return directives for mkdocstrings for the names that a module exports, by their kind:
    `first`, then the others."""
    exported = import_module(module)
    kinds: dict[str, list[str]] = {"Classes": [], "Errors": [], "Functions": []}
    for name in [*first, *(name for name in exported.__all__ if name not in first)]:
        if name != "__version__":
            kinds[_kind(getattr(exported, name))].append(f"::: {module}.{name}")
    parts = ([f"## {kind}", *names] for kind, names in kinds.items() if names)
    return "\n\n".join(line for part in parts for line in part)


def _kind(value: object) -> str:
    if not isinstance(value, type):
        return "Functions"
    return "Errors" if issubclass(value, BaseException) else "Classes"


def every_command() -> str:
    """Return the help of each command as Markdown."""
    from bae.cli.app import load_all_commands

    command = load_all_commands()
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
        subcommand = command.get_command(context, name)
        if not subcommand.hidden:
            inner = subcommand.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _describe(subcommand, inner)


def _row(param: Any, context: Any) -> Iterator[str]:
    """Return the table row for an option or an argument, or nothing if it is hidden."""
    if param.hidden:
        return
    if param.param_type_name == "argument":
        name, text = param.metavar or param.name.upper(), param.help or ""
    else:
        name, text = param.get_help_record(context) or ("", "")
    if name and param.name != "help":
        yield f"| `{' '.join(name.split())}` | {_line(text)} |"


def _line(text: str) -> str:
    """Return a text for a table cell: on one line, with each bar outside of code escaped."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if at % 2 else part.replace("|", "\\|") for at, part in enumerate(parts))


def _show_examples(epilog: str) -> str:
    """Return an epilog as Markdown, with its command lines in a block of code."""
    marked, _, notes = epilog.partition("\n\n")
    if not marked.startswith("Examples:\n"):
        return epilog
    lines = dedent(marked.removeprefix("Examples:\n"))
    return f"```text\n{lines}\n```\n\n{notes}"


def _prose(text: str | None) -> str:
    """Return a help text without the marks for paragraphs that are not wrapped."""
    return (text or "").replace("\b", "").strip()
