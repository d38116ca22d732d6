"""What can be known of a project before it is asked about: its languages and its test command."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from bae.given_files import read_text
from bae.team.models import Project
from bae.team.test_runs import (
    AND,
    KNOWN_PROGRAMS,
    find_test_program,
    read_report_option,
    split_commands,
)


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found in a directory. `test_command` is empty where it is not known, and
    `questions` are for the person who sets the project up."""

    root: Path
    languages: tuple[str, ...] = ()
    test_command: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    folder: str = ""

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
        """The project, with what a person has said in place of what was found."""
        return Project(
            id=id,
            name=name or self.root.name,
            root=str(self.root),
            branch=branch,
            test_command=tuple(test_command or self.test_command),
            setup=self.setup if setup is None else tuple(setup),
            languages=self.languages,
            requirements=requirements,
            report=report,
            folder=self.folder,
        )


def detect(root: str | os.PathLike[str], folder: str = "") -> Detected:
    """Look at a repository, or at a folder of it: its files, pyproject.toml, package.json and
    go.mod. It reads files and runs nothing; call it in a thread."""
    top = Path(root).resolve()
    place = top / folder
    files = _files(place)
    languages = _languages(files)
    candidates = [each for each in (_python(place, files), _node(place, files), _go(place)) if each]
    # The language with more files first.
    candidates.sort(key=lambda each: languages.index(each[0]) if each[0] in languages else 99)
    questions: list[str] = []
    other = _find_unknown_script(place)
    if other:
        questions.append(
            f"package.json runs its tests with {other}, whose results bae cannot read by itself. "
            "Which command runs the tests and writes a JUnit file? Name the file with --report "
            f"junit:PATH. Without that option: {KNOWN_PROGRAMS}."
        )
    elif not candidates:
        questions.append(
            f"Which command runs the tests? {KNOWN_PROGRAMS} are understood, and any other program "
            "that writes a JUnit file, with --report junit:PATH."
        )
    command: tuple[str, ...] = ()
    for _, each, _ in candidates:
        command += (AND, *each) if command else each
    setup = next((each for _, _, each in candidates if each), ())
    return Detected(top, languages, command, setup, tuple(questions), folder)


def find_problems(project: Project) -> tuple[str, ...]:
    """Why a team cannot work on a project, each with what to do; to be reported before anything is
    spent."""
    problems: list[str] = []
    root = Path(project.root)
    if not root.is_dir():
        return (f"{root} is not a directory",)
    if not (root / ".git").exists():
        problems.append(f"{root} is no git work tree: run git init there, and commit")
    place = root / project.folder
    return (*problems, *find_command_problems(project.test_command, place, project.report))


def find_command_problems(
    test_command: Sequence[str], root: Path, report: str = ""
) -> tuple[str, ...]:
    """Why a test command cannot be used in a directory, which need not exist yet. `report` is what
    a program writes that bae does not know."""
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
            other = _find_other_program(command)
            what = f"{other} is not node --test, and bae" if other else "bae"
            problems.append(
                f"{shlex.join(command)} reports no tests: {what} cannot read its results; name "
                f"{KNOWN_PROGRAMS} itself, not a script that runs it, or have the program write a "
                f"JUnit file and name that with --report junit:PATH{_REPORTERS.get(other, '')}"
            )
        elif not _is_found(command[0], root):
            problems.append(f"{command[0]} was not found: install it, or name another test command")
    return tuple(problems)


def as_table(value: Any) -> dict[str, Any]:
    """A table of a JSON or TOML file, empty where it is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """The table in a JSON file, empty where it is something else, or there is none."""
    return _read_table(path, json.loads)


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


def _files(root: Path) -> list[str]:
    """Files of the project by their paths, without hidden and generated directories."""
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if each[0] != "." and each not in _SKIPPED)
        found += (os.path.relpath(os.path.join(folder, name), root) for name in sorted(names))
        if len(found) >= _MOST_FILES:
            break
    return found


def _languages(files: Sequence[str]) -> tuple[str, ...]:
    counts = Counter(_SUFFIXES.get(os.path.splitext(name)[1]) for name in files)
    return tuple(language for language, _ in counts.most_common() if language)


Candidate = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A language, its test command and its setup command."""


def _python(root: Path, files: Sequence[str]) -> Candidate | None:
    names = {os.path.basename(name) for name in files}
    tools = as_table(_read_table(root / "pyproject.toml", tomllib.loads).get("tool"))
    named = names & {"pytest.ini", "conftest.py"} or "pytest" in tools
    tests = any(
        name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))
        for name in names
    )
    if not named and not tests:
        return None
    for folder in (".venv", "venv"):  # has what the project needs; worktrees do not
        python = root / folder / "bin" / "python"
        if python.exists():
            return "python", (str(python), "-m", "pytest"), ()
    name = "python" if _is_found("python", root) else "python3"  # as where Debian installs it
    return "python", (name, "-m", "pytest"), ()


def _node(root: Path, files: Sequence[str]) -> Candidate | None:
    needed, script = _read_package(root)
    language = "typescript" if (root / "tsconfig.json").exists() else "javascript"
    words = _find_known_script(script)
    command: tuple[str, ...] | None = None
    if words:
        command = tuple(words)
    elif _find_unknown_script(root):
        return None
    elif "vitest" in needed:
        command = ("vitest",)
    elif "jest" in needed:
        command = ("jest",)
    elif any(_is_node_test(name) for name in files):
        command = ("node", "--test")
    if command is None:
        return None
    if command[0] in ("npx", "vitest", "jest"):
        words = [each for each in command if each not in ("npx", "run", "watch", "--watch")]
        tail = ("run", *words[1:]) if words[0] == "vitest" else words[1:]
        command = (f"node_modules/.bin/{words[0]}", *tail)
    setup = ()
    if needed:
        setup = ("npm", "ci" if (root / "package-lock.json").exists() else "install")
    return language, command, setup


def _read_package(root: Path) -> tuple[set[str], str]:
    """The packages that package.json names, and its test script."""
    package = _read_table(root / "package.json", json.loads)
    needed = {*as_table(package.get("dependencies")), *as_table(package.get("devDependencies"))}
    script = str(as_table(package.get("scripts")).get("test", "")).strip()
    return needed, "" if "no test specified" in script else script  # which npm writes


def _find_known_script(script: str) -> list[str]:
    """The command of a test script, or of a part between `&&`, that runs a known program."""
    for part in script.split(AND):
        words = _words(part)
        program = find_test_program(words)
        if program is not None and program.name in ("node", "vitest", "jest"):
            return words
    return []


def _find_unknown_script(root: Path) -> str:
    """What a project in JavaScript runs its tests with, where bae does not know it."""
    needed, script = _read_package(root)
    if _find_known_script(script):
        return ""
    words = re.split(r"[\s;&|]+", script)
    if other := _find_other_program(words):
        return other
    if script:
        known = "--test" in words or any(find_test_program([word]) for word in words)
        return "" if known else f"`{script}`"
    named = sorted(needed & set(_OTHER_PROGRAMS))
    return "" if needed & {"vitest", "jest"} else ", ".join(named[:1])


def _find_other_program(words: Sequence[str]) -> str:
    """The test program among words that is none of the known ones."""
    names = (os.path.basename(word).split(".")[0] for word in words)
    return next((name for name in names if name in _OTHER_PROGRAMS), "")


_OTHER_PROGRAMS: Final = (
    *("mocha", "ava", "tape", "tap", "jasmine", "uvu", "karma", "cypress", "playwright"),
    *("qunit", "lab", "zora", "taiko"),
)
_REPORTERS: Final = {
    "mocha": ", as with `mocha --reporter mocha-junit-reporter` and --report junit:test-results.xml"
}


def _go(root: Path) -> Candidate | None:
    return ("go", ("go", "test", "./..."), ()) if (root / "go.mod").exists() else None


def _is_node_test(name: str) -> bool:
    """Whether `node --test` takes a file for a test."""
    stem, suffix = os.path.splitext(os.path.basename(name))
    if suffix not in (".js", ".mjs", ".cjs"):
        return False
    marked = stem.startswith("test-") or stem.endswith((".test", "-test", "_test"))
    return marked or stem == "test" or "test" in Path(name).parts[:-1]


def _words(script: str) -> list[str]:
    """The words of a script that is one plain command; none of any other."""
    if any(each in script for each in "&|;<>$`"):
        return []
    try:
        words = shlex.split(script)
    except ValueError:
        return []
    return words if words and "=" not in words[0] else []


def _read_table(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        return as_table(parse(read_text(path)))
    except (OSError, ValueError):
        return {}


def _is_found(program: str, root: Path) -> bool:
    if program.startswith("node_modules/"):
        return True  # the setup command installs it
    if os.sep in program:
        return (root / program).exists()
    places = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    return shutil.which(program, path=places) is not None
