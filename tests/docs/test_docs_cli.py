"""The page on the command line names every command that there is, and no other; command lines
in the docs, the examples and the README could be typed as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT, blocks, commands, relative_path

pytest.importorskip("typer")
pytest.importorskip("rich")
pytestmark = pytest.mark.once

PAGE = ROOT / "docs" / "cli.md"
PROSE = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
EVERYWHERE = {"--help", "-h", "--debug"}
AT_THE_TOP = {"--install-completion", "--show-completion", "--version"}


def every_command(group: Any, name: str = "bae") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    from bae.cli.app import load_all_commands

    return dict(every_command(load_all_commands()))


def options(command: Any) -> set[str]:
    given = [param for param in command.params if param.param_type_name == "option"]
    return {opt for option in given for opt in (*option.opts, *option.secondary_opts)}


def sections(page: Path) -> dict[str, str]:
    """The parts of the page about one command each, by its name."""
    parts = re.split(r"^#{2,3} (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_commands_page_has_a_row_for_every_command(known: dict[str, Any]):
    """The page on the team has the commands of a team, and each part covers one command or a
    group."""
    named = set(re.findall(r"`(bae [a-z]+(?: [a-z]+)?)`", PAGE.read_text("utf-8")))
    team = {name for name in known if name.startswith("bae team ")}
    assert named - team == set(known) - team
    guide = (ROOT / "docs" / "team.md").read_text("utf-8")
    assert [name for name in team if name.removesuffix(" list") not in guide] == []
    groups = {name.rpartition(" ")[0] for name in known}
    assert {name for name in sections(PAGE) if name.startswith("bae ")} <= set(known) | groups


def test_the_commands_page_names_only_existing_options(known: dict[str, Any]):
    """The generated reference has them all; the site's test sees to that."""
    there = {opt for command in known.values() for opt in options(command)}
    told = re.findall(r"(?<![-\w])--[a-z][-\w]*", PAGE.read_text("utf-8"))
    assert set(told) <= there | EVERYWHERE | AT_THE_TOP


def test_the_commands_page_names_the_global_options():
    from bae.cli.app import load_all_commands

    for option in options(load_all_commands()) - {"--help", "-h"}:
        assert option in PAGE.read_text("utf-8"), option


def test_the_commands_page_names_every_exit_code():
    from bae.cli import exits

    codes = {value for name, value in vars(exits).items() if name.isupper() and type(value) is int}
    told = set(map(int, re.findall(r"^\| (\d+) \|", sections(PAGE)["Exit codes"], re.MULTILINE)))
    assert codes <= told


def find_commands(page: Path) -> Iterator[str]:
    """The command lines of a page, from consoles, in backquotes and after a dollar sign."""
    text = page.read_text("utf-8")
    if page.suffix == ".py":
        yield from re.findall(r"^ +(bae [^\n]+)$", text, re.MULTILINE)
    else:
        for block in blocks(page):
            if block.language == "console":
                yield from (command.line for command in commands(block.text))
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        yield from re.findall(r"`(bae [^`]+)`", prose)


@pytest.mark.parametrize("page", PROSE, ids=relative_path)
def test_every_command_line_in_prose_can_be_parsed(page: Path, known: dict[str, Any]):
    from bae.cli.app import load_all_commands

    whole = load_all_commands()
    for line in find_commands(page):
        if not line.startswith("bae "):
            continue
        words = shlex.split(line.partition(" #")[0])[1:]
        command, name = whole, "bae"
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            if words[0] in ("…", "list|show") or re.fullmatch(r"[A-Z…|]+", words[0]):
                break
            assert words[0] in command.commands, f"{relative_path(page)}: {line}"
            command, name = command.commands[words[0]], f"{name} {words[0]}"
            words = words[1:]
        allowed = EVERYWHERE | (AT_THE_TOP if command is whole else options(command))
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in allowed, f"{relative_path(page)}: {line}"
