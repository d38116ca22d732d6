"""Detection of a project's languages, test command and setup command."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bae.team import node_setup, python_setup
from bae.team.manifests import find_table, read_toml
from bae.team.models import Project
from bae.team.sandbox import find_program
from bae.team.test_runs import (
    AND,
    KNOWN_PROGRAMS,
    find_test_program,
    read_report_option,
    split_commands,
)


@dataclass(frozen=True, slots=True)
class Detected:
    """The detected settings of a directory."""

    root: Path
    languages: tuple[str, ...] = ()
    test_command: tuple[str, ...] = ()
    """The test command. Empty if it is unknown."""
    setup: tuple[str, ...] = ()
    """The setup command for the detected test command, and for a test command that names
    `.venv`."""
    questions: tuple[str, ...] = ()
    """Questions to the person who sets up the project."""
    folder: str = ""
    setup_of_others: tuple[str, ...] = ()
    """The setup command for a test command that does not name `.venv`."""

    def project(
        self,
        *,
        id: int = 1,
        name: str | None = None,
        branch: str = "bae/team",
        test_command: Sequence[str] = (),
        setup: Sequence[str] | None = None,
        requirements: str = "",
        report: str = "",
    ) -> Project:
        """Return the project. A person's settings, as arguments, replace detected settings."""
        venv_prefix = f"{python_setup.VENV}/"
        uses_venv = not test_command or any(word.startswith(venv_prefix) for word in test_command)
        setup_parts = self.setup if uses_venv else self.setup_of_others
        return Project(
            id=id,
            name=name or self.root.name,
            root=str(self.root),
            branch=branch,
            test_command=tuple(test_command or self.test_command),
            setup=setup_parts if setup is None else tuple(setup),
            languages=self.languages,
            requirements=requirements,
            report=report,
            folder=self.folder,
        )


def detect(
    root: str | os.PathLike[str], folder: str = "", committed: Collection[str] | None = None
) -> Detected:
    """Detect the settings of a repository, or of its folder `folder`, from files and manifests.

    `committed` are the paths of all committed files. Lock files that are not committed are ignored,
    unless `committed` is None. The function reads files and runs no commands, so call it in a
    thread.
    """
    top = Path(root).resolve()
    place = top / folder
    files = _list_files(place)
    committed_inside = committed
    if committed is not None and folder:
        committed_inside = {name.removeprefix(f"{folder}/") for name in committed}
    languages = _rank_languages(files)
    results = (
        _find_python(place, files, committed_inside),
        _find_node(place, top, files, committed),
        _find_go(place),
    )
    candidates = [candidate for candidate in results if candidate]
    # The language with the most files comes first.
    candidates.sort(
        key=lambda candidate: (
            languages.index(candidate.language) if candidate.language in languages else 99
        )
    )
    testable = [candidate for candidate in candidates if candidate.test_command]
    questions: list[str] = []
    other_program = node_setup.find_other(place)
    if other_program:
        questions.append(
            f"package.json runs its tests with {other_program}, whose results bae cannot read by "
            "itself. Which command runs the tests and writes a JUnit file? Name the file with "
            f"--report junit:PATH{node_setup.describe_reporter(other_program)}. "
            f"Without that option: {KNOWN_PROGRAMS}."
        )
    elif not testable:
        questions.append(
            f"Which command runs the tests? {KNOWN_PROGRAMS} are understood, and any other program "
            "that writes a JUnit file, with --report junit:PATH."
        )
    return Detected(
        top,
        languages,
        _join_commands(candidate.test_command for candidate in testable),
        _join_commands(candidate.setup for candidate in candidates),
        tuple(questions),
        folder,
        _join_commands(candidate.setup for candidate in candidates if not candidate.makes),
    )


def _join_commands(commands: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Join the commands with `&&`."""
    joined: tuple[str, ...] = ()
    for command in filter(None, commands):
        joined += (AND, *command) if joined else command
    return joined


def find_problems(project: Project) -> tuple[str, ...]:
    """Return the reasons why a team cannot work on a project, each with a fix. Call this before the
    first LLM call."""
    problems: list[str] = []
    root = Path(project.root)
    if not root.is_dir():
        return (f"{root} is not a directory",)
    if not (root / ".git").exists():
        problems.append(f"{root} is no git work tree: run git init there, and commit")
    place = root / project.folder
    command, report, setup = project.test_command, project.report, project.setup
    problems += find_command_problems(command, place, report, setup)
    return (*problems, *find_setup_problems(setup, place))


def find_command_problems(
    test_command: Sequence[str], root: Path, report: str = "", setup: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the reasons why a test command cannot be used in the directory `root`, which need not
    exist yet.

    - `report`: the report option of a test program that bae does not support.
    - `setup`: the setup command. If there is one, it may install the test program.
    """
    if not test_command:
        return ("there is no test command: name one, as pytest or node --test",)
    problems: list[str] = []
    if report:
        try:
            read_report_option(report)
        except ValueError as error:
            problems.append(str(error))
        if all(map(find_test_program, split_commands(test_command))):
            problems.append(
                f"{shlex.join(test_command)} reports its tests by itself: leave --report out, or "
                "give it an empty text"
            )
    for command in split_commands(test_command):
        if find_test_program(command) is None and not report:
            names = (os.path.basename(word).split(".")[0] for word in command)
            other_program = next((name for name in names if name in node_setup.OTHER_PROGRAMS), "")
            reader = f"{other_program} is not node --test, and bae" if other_program else "bae"
            problems.append(
                f"{shlex.join(command)} reports no tests: {reader} cannot read its results; name "
                f"{KNOWN_PROGRAMS} itself, not a script that runs it, or have the program write a "
                "JUnit file and name that with --report junit:PATH"
                f"{node_setup.describe_reporter(other_program)}"
            )
        elif problem := _find_problem(command, root, bool(setup)):
            problems.append(f"{problem}, or name another test command")
    return tuple(problems)


def find_setup_problems(setup: Sequence[str], root: Path) -> tuple[str, ...]:
    """Return the reasons why a setup command cannot run in the directory `root`."""
    problems: list[str] = []
    for number, command in enumerate(split_commands(setup) if setup else ()):
        if not command:
            problems.append(f"a command is missing beside {AND} in {shlex.join(setup)}")
        elif operators := [word for word in command if word in _OF_SHELLS]:
            problems.append(
                f"{operators[0]} is for a shell, and the setup command runs without a shell: write "
                f"`sh -c {shlex.quote(shlex.join(command))}`"
            )
        elif command[0] in _BUILT_IN:
            problems.append(
                f"{command[0]} is built into shells: write sh -c '…', or name the folder that "
                "tests and setup run in with --folder"
            )
        elif problem := _find_problem(command, root, number > 0):
            problems.append(f"{problem}, or name another setup command")
    return tuple(problems)


def _find_problem(command: Sequence[str], root: Path, is_made: bool) -> str:
    """Return the reason why a command cannot start, or an empty text. With `is_made`, an earlier
    command may install programs in the directory `root`."""
    program = command[0]
    if "=" in program:
        return f"{program} is a variable, not a program: write env {program} before the command"
    if os.sep in program and (program.startswith("node_modules/") or is_made):
        return ""
    if find_program(program, root):
        return ""
    advice = _INSTALLERS.get(program, "install it")
    return f"{program} was not found: {advice}"


_OF_SHELLS: Final = ("|", "||", ";", "&", ">", ">>", "<", "2>&1")
_BUILT_IN: Final = ("cd", "source", ".", "export", "set", "eval")
_INSTALLERS: Final = {
    **{name: f"`pip install {name}`" for name in ("uv", "poetry", "pdm", "hatch", "tox")},
    **{name: f"`npm install --global {name}`" for name in ("pnpm", "yarn", "bun")},
}
_MOST_FILES: Final = 20_000
_SKIPPED: Final = {"node_modules", "venv", "vendor", "dist", "build", "target", "__pycache__"}
_SUFFIXES: Final = {
    ".py": "python",
    ".js": "javascript",
    ".jsx": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".ts": "typescript",
    ".tsx": "typescript",
    ".mts": "typescript",
    ".go": "go",
}


def _list_files(root: Path) -> list[str]:
    """List the paths of a project's files, without hidden and generated directories."""
    paths: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            folder_name
            for folder_name in folders
            if folder_name[0] != "." and folder_name not in _SKIPPED
        )
        paths += (os.path.relpath(os.path.join(folder, name), root) for name in sorted(names))
        if len(paths) >= _MOST_FILES:
            break
    return paths


def _rank_languages(files: Sequence[str]) -> tuple[str, ...]:
    counts = Counter(_SUFFIXES.get(os.path.splitext(name)[1]) for name in files)
    return tuple(language for language, _ in counts.most_common() if language)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The commands of one language that the project uses."""

    language: str
    test_command: tuple[str, ...] = ()
    """The test command. Empty if it is unknown."""
    setup: tuple[str, ...] = ()
    makes: str = ""
    """The folder in which setup installs the test program."""


def _find_python(
    root: Path, files: Sequence[str], committed: Collection[str] | None
) -> _Candidate | None:
    names = {os.path.basename(name) for name in files}
    settings_files = names & {"pytest.ini", "conftest.py"}
    has_tests = any(
        name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))
        for name in names
    )
    if not (
        settings_files
        or has_tests
        or "pytest" in find_table(read_toml(root / "pyproject.toml"), "tool")
    ):
        return None
    for folder in (".venv", "venv"):  # worktrees have no packages, so tests use this environment
        python = root / folder / "bin" / "python"
        if python.exists():
            return _Candidate("python", (str(python), "-m", "pytest"))
    if not python_setup.is_installed(root, files):
        setup = python_setup.find_setup(root, files, committed)
        return _Candidate("python", python_setup.VENV_TEST, setup, python_setup.VENV)
    name = "python" if find_program("python", root) else "python3"  # Debian has only python3
    return _Candidate("python", (name, "-m", "pytest"))


def _find_node(
    place: Path, top: Path, files: Sequence[str], committed: Collection[str] | None
) -> _Candidate | None:
    def is_committed(path: Path) -> bool:
        if committed is None:
            return path.exists()
        return path.relative_to(top).as_posix() in committed

    language = "typescript" if (place / "tsconfig.json").exists() else "javascript"
    setup = node_setup.find_setup(place, top, is_committed)
    is_inside = place != top and not (place / "node_modules").exists() and bool(setup)
    is_inside = is_inside and not any(is_committed(place / name) for name in node_setup.LOCKS)
    command = node_setup.find_test_command(place, is_inside=is_inside)
    other_program = node_setup.find_other(place)
    if not command and not other_program and any(_is_node_test(name) for name in files):
        command = ("node", "--test")
    return _Candidate(language, command, setup) if command or other_program else None


def _find_go(root: Path) -> _Candidate | None:
    is_go = (root / "go.mod").exists()
    return _Candidate("go", ("go", "test", "./...")) if is_go else None


def _is_node_test(name: str) -> bool:
    """Return whether `node --test` runs a file as a test."""
    stem, suffix = os.path.splitext(os.path.basename(name))
    if suffix not in (".js", ".mjs", ".cjs"):
        return False
    has_marker = stem.startswith("test-") or stem.endswith((".test", "-test", "_test"))
    return has_marker or stem == "test" or "test" in Path(name).parts[:-1]
