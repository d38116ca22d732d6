"""The command `bae`: its help, its imports before any work, its error messages, exit codes, shell
completion, and the message where a package is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import typer

import bae
from bae import BaeError
from bae.cli import main
from bae.cli.app import load_all_commands

SOURCE = Path(bae.__file__).parent.parent


def every_command(
    command: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command in the tree, with the words that call it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, (*path, name))


COMMANDS = dict(every_command(load_all_commands()))


def python(program: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "80", **(env or {})},
        check=False,
    )


# --- help ---------------------------------------------------------------------------------------


def test_bae_has_exactly_the_documented_commands():
    assert list(COMMANDS[()].list_commands(_context())) == [
        *("new", "run", "chat", "check", "prompts", "graph", "runs", "eval", "optimize", "team"),
        *("studio", "mcp", "serve", "submit", "worker", "engine", "db", "lm", "version"),
    ]


def _context() -> Any:
    return COMMANDS[()].make_context("bae", [], resilient_parsing=True)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(("bae", *path)))
def test_the_help_of_every_command_is_complete_and_fits_into_80_columns(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    for option in ("--help", "-h"):
        assert main([*path, option]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        assert f"Usage: {' '.join(('bae', *path))}" in printed.out
        told = [line for line in printed.out.splitlines() if not line.startswith("    bae ")]
        assert max(map(len, told)) <= 80, "what is no command to copy"
        for kind in ("bool", "str", "int", "float"):
            assert f"<{kind}" not in printed.out, "a type, where the name of the value says more"
        assert "\x1b" not in printed.out
        assert "… │" not in printed.out, "a word that is too long for its column"


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(("bae", *path)))
def test_every_command_and_every_parameter_has_a_description(
    path: tuple[str, ...],
):
    command = COMMANDS[path]
    first = (command.help or "").strip().partition("\n\n")[0]
    assert first.endswith(".")
    assert first[0].isupper()
    for parameter in command.params:
        said = getattr(parameter, "help", None) or ""
        assert said.endswith((".", "!")), f"{path} {parameter.name}: {said!r}"


@pytest.mark.parametrize(
    "path",
    [path for path, command in COMMANDS.items() if path and not hasattr(command, "commands")],
    ids=" ".join,
)
def test_every_example_is_a_command_that_can_be_parsed(path: tuple[str, ...]):
    import shlex

    said = COMMANDS[path].epilog or ""
    lines = [line[2:] for line in said.splitlines() if line.startswith("  bae ")]
    assert lines or path == ("version",)
    for line in lines:
        words = shlex.split(line.partition(" | ")[0].partition(" > ")[0], comments=True)
        assert words[: len(path) + 1] == ["bae", *path], line
        COMMANDS[path].make_context("bae", words[len(path) + 1 :], resilient_parsing=True)


def test_a_command_group_without_arguments_prints_its_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "Usage: bae" in capsys.readouterr().err
    assert main(["runs"]) == 2
    assert "Usage: bae runs" in capsys.readouterr().err


def test_help_imports_no_slow_modules():
    program = """
import sys
before = set(sys.modules)
from bae.cli import main
assert main(["--help"]) == 0
print("\\n", *sorted(set(sys.modules) - before))
"""
    done = python(program)
    assert done.returncode == 0, done.stderr
    new = done.stdout.splitlines()[-1].split()
    assert "typer" in new
    packages = {name.partition(".")[0] for name in new}
    slow = {"asyncio", "pydantic", "pydantic_core", "sqlite3", "ssl", "http"}
    assert packages & slow == set()
    ours = [name for name in new if name.startswith("bae.") and not name.startswith("bae.cli")]
    assert len(ours) < 10


def test_the_help_of_a_team_command_imports_no_slow_modules():
    commands = [path for path in COMMANDS if path[:1] == ("team",)]
    assert ("team", "tasks", "list") in commands
    program = f"""
import sys
from bae.cli import main
for path in {[list(path) for path in commands]!r}:
    assert main([*path, "--help"]) == 0, path
slow = {{"asyncio", "pydantic", "rich.console", "sqlalchemy", "sqlite3", "ssl"}}
print("\\nslow:", *sorted(slow & sys.modules.keys()))
"""
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "slow:"


# --- version ------------------------------------------------------------------------------------


def test_the_version_command_also_prints_the_versions_of_the_packages(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bae {bae.__version__}\n"
    assert main(["version"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"bae {bae.__version__}, Python {sys.version.split()[0]}")
    assert "\n  pydantic 2." in printed
    assert main(["version", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["bae"], data["packages"]["pydantic"][:2]) == (bae.__version__, "2.")
    assert {"typer", "rich"} <= data["packages"].keys()
    assert data["packages"].keys().isdisjoint({"pytest", "ruff"})  # for its development alone


# --- errors and exit codes ----------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """`bae version` raises what is put into the list."""
    raised: list[BaseException] = []

    def fails(**given: Any) -> None:
        raise raised[0]

    monkeypatch.setattr(COMMANDS[("version",)], "callback", fails)
    return raised


def test_an_error_goes_to_stderr_with_a_fix_and_no_traceback(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
):
    error = BaeError("it broke", code="bae-error", fix="fix it", cause=OSError("no route"))
    error.path = "Ask.name <- get_name"
    error.add_note("while looking")
    failing.append(error)
    assert main(["version"]) == 1
    assert capsys.readouterr() == (
        "",
        "error it broke  [bae-error]\n"
        "  path:  Ask.name <- get_name\n"
        "  cause: OSError: no route\n"
        "  try:   fix it\n"
        "  while looking\n",
    )


def test_an_unexpected_error_is_printed_like_an_expected_error(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
):
    failing.append(ZeroDivisionError("by zero"))
    assert main(["version"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(
        "error ZeroDivisionError: by zero\n  try:   run it again with --debug"
    )


@pytest.mark.parametrize("words", [["--debug", "version"], ["version", "--debug"], ["version"]])
@pytest.mark.parametrize("error", [BaeError("it broke"), ValueError("no")], ids=["ours", "other"])
def test_debug_shows_the_traceback_at_any_position_and_through_the_variable(
    failing: list[BaseException],
    words: list[str],
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    failing.append(error)
    if "--debug" not in words:
        monkeypatch.setenv("BAE_DEBUG", "1")
    assert main(words) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Traceback (most recent call last):\n")
    assert printed.err.endswith(f"{error}\n")


def test_arguments_after_two_dashes_are_not_read_as_options(capsys: pytest.CaptureFixture[str]):
    assert main(["version", "--", "--debug"]) == 2
    assert "--debug" in capsys.readouterr().err


def test_control_characters_and_markup_in_an_error_are_printed_as_text(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
):
    failing.append(BaeError("\x1b[2Jgone\x07 \x9b1m [bold]list[int][/bold]", fix="a\nb\tc"))
    assert main(["version"]) == 1
    printed_errors = capsys.readouterr().err
    assert "\\x1b[2Jgone\\x07 \\x9b1m [bold]list[int][/bold]" in printed_errors
    assert "\x1b" not in printed_errors
    assert "  try:   a\n         b" in printed_errors


@pytest.mark.parametrize(
    ("raised", "code"),
    [(KeyboardInterrupt(), 130), (typer.Exit(3), 3), (typer.Exit(), 0)],
    ids=["ctrl-c", "3", "0"],
)
def test_each_kind_of_exception_has_its_exit_code(
    failing: list[BaseException],
    raised: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
):
    failing.append(raised)
    assert main(["version"]) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("code", [None, 0, 3, "why"])
def test_a_graph_that_calls_sys_exit_does_not_choose_the_exit_code_of_the_command(
    failing: list[BaseException], code: Any, capsys: pytest.CaptureFixture[str]
):
    failing.append(SystemExit(code))
    assert main(["version"]) == 1
    assert capsys.readouterr().err.startswith("error SystemExit")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "Did you mean 'check'?"),
        (["check", "--strickt"], "--strict"),
        (["new"], "NAME"),
        (["lm", "try", "--timeout", "soon"], "--timeout"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_invalid_command_line_exits_with_2_and_a_hint(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.once
def test_a_closed_pipe_gets_no_further_output():
    program = """
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
from bae.cli import main
sys.exit(main({words!r}))
"""
    done = python(program.format(words=["lm", "list"]))
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.once
def test_a_terminal_without_unicode_gets_characters_it_can_show():
    done = python(
        "from bae.cli import main; main(['lm', 'list'])", env={"PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "export ANTHROPIC_API_KEY=\\u2026" in done.stdout or "ready    anthropic" in done.stdout


# --- ways to call it ----------------------------------------------------------------------------


def test_the_package_can_be_called_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "bae", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"bae {bae.__version__}\n")


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_package_is_reported_with_its_install_command(package: str):
    program = f"""
import sys
sys.modules[{package!r}] = None
from bae.cli import main
sys.exit(main(["--help"]))
"""
    done = python(program)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the command line of bae needs typer and rich\n"
        "  try:   pip install '.[cli]' in a clone of bae\n"
    )


# --- completion ---------------------------------------------------------------------------------


def list_completions(
    words: str, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The completions of a shell for the last word of a command line."""
    monkeypatch.setenv("_BAE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert main([]) == 0
    printed = capsys.readouterr().out
    if shell == "zsh":
        printed = printed.replace("_arguments '*: :((", "").replace("))'", "").replace('"', "")
    return [line.partition("\t")[0].partition(":The")[0] for line in printed.split("\n") if line]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("app.py", "apples.txt", "nodes/first.py", "nodes/second.py", "x y.py", ".z.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    Path("nodes/__pycache__").mkdir()
    Path("empty").mkdir()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("bae check ", ["app.py", "empty/", "nodes/"]),
        ("bae check a", ["app.py"]),
        ("bae check no", ["nodes/first.py", "nodes/second.py"]),
        ("bae run nodes/s", ["nodes/second.py"]),
        ("bae run nowhere/", []),
        ("bae run em", []),
        ("bae run --lm cl", ["claude-cli"]),
        ("bae lm try sc", ["scripted\\\\:"]),
        ("bae check --st", ["--strict"]),
    ],
)
def test_shells_complete_files_lm_names_and_options(
    shell: str,
    words: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    found = list_completions(words, shell, monkeypatch, capsys)
    if shell == "zsh":
        found = [word.partition(":")[0] if "--" in word else word for word in found]
        assert found == (offered or ["_files"])
    else:
        assert found == [word.replace("\\\\", "") for word in offered]


@pytest.mark.once
@pytest.mark.usefixtures("files")
def test_bash_completes_with_the_installed_script(tmp_path: Path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    home = tmp_path / "home"
    home.mkdir()
    program = tmp_path / "bae"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bae "$@"\n')
    program.chmod(0o755)
    script = """
bae --install-completion bash || exit 1
. "$HOME/.bash_completions/bae.sh"
COMP_WORDS=(bae check n) COMP_CWORD=2
_bae_completion bae
echo "offered ${COMPREPLY[*]}"
"""
    done = subprocess.run(
        [bash, "--norc", "-c", script],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "HOME": str(home),
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "offered nodes/first.py nodes/second.py"
