"""The setup command of a Python project. It installs the project and what its tests need into a
`.venv`, by the maintainers' settings for uv, Poetry, PDM, tox, Hatch or pip."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from bae.given_files import read_text
from bae.team.manifests import as_table, as_texts, find_table, read_ini, read_toml
from bae.team.sandbox import find_linked, find_program
from bae.team.test_runs import AND

VENV: Final = ".venv"
VENV_TEST: Final = (f"{VENV}/bin/python", "-m", "pytest")
"""The test command of a project whose setup makes a `.venv`."""


@dataclass
class _Needs:
    """What must be installed for the tests of a project."""

    words: list[str] = field(default_factory=list[str])
    """Arguments of `pip install`."""
    names: set[str] = field(default_factory=set[str])
    """The names of the distributions that these arguments install, as far as bae can read them."""
    groups: bool = False
    """Whether the arguments have dependency groups, which an older pip does not support."""
    after: list[list[str]] = field(default_factory=list[list[str]])
    """Commands to run after `pip install`."""
    is_known: bool = True
    """Whether the manifest lists the project's own dependencies."""

    def add(self, requirements: Sequence[str]) -> None:
        """Add requirements such as `pytest>=8`."""
        self.words += requirements
        self.names |= {_normalize_name(requirement) for requirement in requirements}


def find_setup(
    root: Path,
    files: Sequence[str],
    committed: Collection[str] | None = None,
    more: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the command that installs a project and what its tests need. Return an empty command
    if nothing has to be installed.

    - `files`: the project's files.
    - `committed`: the committed files. A lock file that is not committed is ignored.
    - `more`: additional requirements. Only a command with pip installs them.
    """
    pyproject = read_toml(root / "pyproject.toml")
    tools = as_table(pyproject.get("tool"))
    committed_files = files if committed is None else committed
    if "uv.lock" in committed_files and find_program("uv", root):
        return _use_uv(pyproject)
    if "poetry.lock" in committed_files and "poetry" in tools and find_program("poetry", root):
        return _use_poetry(tools)
    if "pdm.lock" in committed_files and find_program("pdm", root):
        return ("pdm", "install", "--frozen-lockfile")
    needs = _find_needs(root, pyproject, files)
    needs.add(more)
    own_words = _find_own_words(root, pyproject)
    if not own_words and not needs.words:
        return ()
    return _use_pip(root, needs, own_words)


def is_installed(root: Path, files: Sequence[str]) -> bool:
    """Return whether the program `python` has the project and everything that its tests need. In
    that case, no setup is needed."""
    pyproject = read_toml(root / "pyproject.toml")
    needs = _find_needs(root, pyproject, files)
    own_words = _find_own_words(root, pyproject)
    if not own_words and not needs.words:
        return True
    project = as_table(pyproject.get("project"))
    runtime = {
        _normalize_name(requirement) for requirement in as_texts(project.get("dependencies"))
    }
    if own_words == ["-e", "."]:
        needs.is_known &= bool(project) and "dependencies" not in as_texts(project.get("dynamic"))
    required = {*runtime, *needs.names, "pytest"}
    python = find_program("python", root) or ""
    prefix = Path(python).parent.parent
    installed = {
        _normalize_name(path.name) for path in prefix.glob("lib/python*/site-packages/*.dist-info")
    }
    if not required <= installed or needs.after:
        return False
    linked = [path for path in find_linked(str(prefix)) if path.is_relative_to(root)]
    return bool(linked) or (needs.is_known and not _has_src(files))


def _use_uv(pyproject: dict[str, Any]) -> tuple[str, ...]:
    command = ["uv", "sync"]
    groups = as_table(pyproject.get("dependency-groups"))
    default = find_table(pyproject, "tool", "uv").get("default-groups")
    usual = as_texts(default) if isinstance(default, list) else ["dev"]
    legacy = as_texts(find_table(pyproject, "tool", "uv").get("dev-dependencies"))
    names = {
        _normalize_name(requirement)
        for group in usual
        for requirement in _expand_group(groups, group)
    }
    if "pytest" in names | {_normalize_name(requirement) for requirement in legacy}:
        return tuple(command)
    if group := _find_test_group({name: _expand_group(groups, name) for name in groups}):
        return (*command, "--group", group)
    extras = find_table(pyproject, "project", "optional-dependencies")
    if extra := _find_test_group({name: as_texts(value) for name, value in extras.items()}):
        return (*command, "--extra", extra)
    return (*command, AND, "uv", "pip", "install", "pytest")


def _use_poetry(tools: dict[str, Any]) -> tuple[str, ...]:
    command = ["poetry", "install"]
    groups = find_table(tools, "poetry", "group")
    for name, group in groups.items():
        table = as_table(group)
        if table.get("optional") is True and "pytest" in as_table(table.get("dependencies")):
            command += ["--with", name]
    if extra := _find_test_group(
        {name: as_texts(value) for name, value in find_table(tools, "poetry", "extras").items()}
    ):
        command += ["--extras", extra]
    return tuple(command)


def _use_pip(root: Path, needs: _Needs, own_words: list[str]) -> tuple[str, ...]:
    python = "python" if find_program("python", root) else "python3"  # Debian has only python3
    with_extras = any(word.startswith(".[") for word in needs.words)
    words = [*(() if with_extras else own_words), *needs.words]
    if "pytest" not in needs.names:
        words.append("pytest")
    # An older pip has no dependency groups, so pip is upgraded.
    make_venv = [python, "-m", "venv", *(["--upgrade-deps"] if needs.groups else []), VENV]
    commands = [make_venv, [f"{VENV}/bin/pip", "install", *words], *needs.after]
    return tuple(word for command in commands for word in (*command, AND))[:-1]


def _find_own_words(root: Path, pyproject: dict[str, Any]) -> list[str]:
    """Return the arguments with which pip installs the project itself. If the project is not a
    package, return its dependencies."""
    if "build-system" in pyproject or (root / "setup.py").exists():
        return ["-e", "."]
    return as_texts(as_table(pyproject.get("project")).get("dependencies"))


def _find_needs(root: Path, pyproject: dict[str, Any], files: Sequence[str]) -> _Needs:
    """Return the needs of the tests. They are read from the first of these sources that has test
    requirements: tox, a group or an extra with pytest, Poetry, PDM, Hatch, a requirements file."""
    tools = as_table(pyproject.get("tool"))
    groups = as_table(pyproject.get("dependency-groups"))
    extras = _read_extras(root, pyproject)
    needs = _read_tox(root, groups, extras)
    if not needs.words:
        if group := _find_test_group({name: _expand_group(groups, name) for name in groups}):
            _add_group(needs, group, groups)
        elif extra := _find_test_group(extras):
            _add_extras(needs, [extra], extras)
        else:
            needs.add(_read_tools(tools))
    if not needs.words:
        for name in _list_requirements(files):
            names = _read_requirements(root / name)
            if "pytest" in names or not PurePosixPath(name).name.startswith("requirements.txt"):
                needs.words += ["-r", name]
                needs.names |= names
                break
    plain = root / "requirements.txt"
    if (
        not _find_own_words(root, pyproject)
        and plain.exists()
        and "requirements.txt" not in needs.words
    ):
        needs.words[:0] = ["-r", "requirements.txt"]
        needs.names |= _read_requirements(plain)
    return needs


def _add_group(needs: _Needs, name: str, groups: dict[str, Any]) -> None:
    needs.words += ["--group", name]
    needs.names |= {_normalize_name(requirement) for requirement in _expand_group(groups, name)}
    needs.groups = True


def _add_extras(needs: _Needs, names: Sequence[str], extras: dict[str, list[str]]) -> None:
    needs.words += ["-e", f".[{','.join(names)}]"]
    needs.names |= {
        _normalize_name(requirement) for name in names for requirement in extras.get(name, ())
    }


def _read_extras(root: Path, pyproject: dict[str, Any]) -> dict[str, list[str]]:
    tables = find_table(pyproject, "project", "optional-dependencies")
    extras = {name: as_texts(value) for name, value in tables.items()}
    parser, section = read_ini(root / "setup.cfg"), "options.extras_require"
    if parser.has_section(section):
        extras |= {name: _split_lines(value) for name, value in parser.items(section)}
    return extras


def _read_tools(tools: dict[str, Any]) -> list[str]:
    """Return the test requirements in the tables of Poetry, PDM or Hatch."""
    poetry = as_table(tools.get("poetry"))
    tables = {name: as_table(value) for name, value in as_table(poetry.get("group")).items()}
    groups = {
        name: _convert_poetry(as_table(table.get("dependencies"))) for name, table in tables.items()
    }
    groups["dev-dependencies"] = _convert_poetry(as_table(poetry.get("dev-dependencies")))
    if "pytest" in {
        _normalize_name(requirement) for value in groups.values() for requirement in value
    }:
        # Groups are split by purpose, and the tests may need several.
        left_out = ("docs", "doc", "lint", "linting", "typing", "release")
        return [
            requirement
            for name, value in groups.items()
            if name not in left_out
            for requirement in value
        ]
    pdm = find_table(tools, "pdm", "dev-dependencies")
    if group := _find_test_group({name: as_texts(value) for name, value in pdm.items()}):
        return as_texts(pdm[group])
    for name in ("hatch-test", "test", "tests", "default", "dev"):
        env = find_table(tools, "hatch", "envs", name)
        requirements = [
            *as_texts(env.get("dependencies")),
            *as_texts(env.get("extra-dependencies")),
        ]
        if requirements and all("{" not in requirement for requirement in requirements):
            return requirements
    return []


def _convert_poetry(table: dict[str, Any]) -> list[str]:
    """Convert Poetry's requirements to the syntax of pip."""
    packages: list[str] = []
    for name, value in table.items():
        version = value if isinstance(value, str) else as_table(value).get("version", "*")
        extras = as_texts(as_table(value).get("extras"))
        text = f"{name}[{','.join(extras)}]" if extras else name
        packages.append(text + _convert_version(str(version)))
    return packages


def _convert_version(version: str) -> str:
    """Convert Poetry's `^1.2` or `~1.2` to the syntax of pip."""
    parts = re.fullmatch(r"([\^~]|~=|==|>=)?\s*(\d+(?:\.\d+)*)", version.strip())
    if parts is None:
        return "" if version.strip() in ("*", "") else version.replace(" ", "")
    sign, number = parts[1] or "==", parts[2]
    if sign not in ("^", "~"):
        return f"{sign}{number}"
    numbers = [int(digits) for digits in number.split(".")]
    at = min(1, len(numbers) - 1)
    if sign == "^":
        at = next((index for index, value in enumerate(numbers) if value), len(numbers) - 1)
    end = ".".join(map(str, (*numbers[:at], numbers[at] + 1)))
    return f">={number},<{end}"


def _read_tox(root: Path, groups: dict[str, Any], extras: dict[str, list[str]]) -> _Needs:
    """Return the packages that tox installs for tests, and the commands that tox runs before the
    tests."""
    needs, parser = _Needs(), read_ini(root / "tox.ini")
    if not parser.has_section("testenv"):
        return needs
    section = dict(parser.items("testenv"))
    if extra_names := _split_lines(section.get("extras", "").replace(",", "\n")):
        _add_extras(needs, extra_names, extras)
    for name in _split_lines(section.get("dependency_groups", "").replace(",", "\n")):
        if name in groups:
            _add_group(needs, name, groups)
    for line in _split_lines(section.get("deps", "")):
        line = re.sub(r"\{(toxinidir|tox_root)\}/?", "", line)
        if "{" in line or re.match(r"[\w!,.-]+:\s", line):  # a line for some environments only
            continue
        if line.startswith("-r"):
            name = line[2:].strip()
            needs.words += ["-r", name]
            needs.names |= _read_requirements(root / name)
        elif not line.startswith("-"):
            needs.add([line])
    text = section.get("commands_pre", "")
    for reference in re.findall(r"\{\[([^\]]+)\](\w+)\}", text):
        if parser.has_option(*reference):
            text = text.replace(f"{{[{reference[0]}]{reference[1]}}}", parser.get(*reference))
    for line in _split_lines(text.replace("\\\n", " ")):
        line = line.replace("{envpython}", "python").lstrip("- ")
        if "{" not in line and line:
            program, *rest = shlex.split(line)
            needs.after.append([f"{VENV}/bin/{program}", *rest])
    return needs


def _find_test_group(groups: dict[str, list[str]]) -> str:
    """Return the name of a group with pytest. A usual name such as `test` comes first. Return an
    empty text if no group has pytest."""
    names = [name for name, value in groups.items() if "pytest" in map(_normalize_name, value)]
    usual = [name for name in _USUAL if name in names]
    return next(iter((*usual, *names)), "")


def _expand_group(
    groups: dict[str, Any], name: str, visited: frozenset[str] = frozenset()
) -> list[str]:
    """Return the requirements of a group, including the groups that it includes."""
    packages: list[str] = []
    value = groups.get(name)
    if not isinstance(value, list) or name in visited:
        return packages
    packages += as_texts(value)
    for item in value:  # pyright: ignore[reportUnknownVariableType]
        inner = as_table(item).get("include-group")
        if isinstance(inner, str):
            packages += _expand_group(groups, inner, visited | {name})
    return packages


def _list_requirements(files: Sequence[str]) -> list[str]:
    """List the requirements files for tests: names with `test` first, then names with `dev`."""
    names = [name for name in files if _REQUIREMENTS.fullmatch(name)]
    return sorted(names, key=lambda name: ("test" not in name, "dev" not in name, name))


def _read_requirements(path: Path, depth: int = 0) -> set[str]:
    """Return the names of the distributions in a requirements file, including the files that it
    includes."""
    requirements: set[str] = set()
    try:
        lines = _split_lines(read_text(path))
    except (OSError, ValueError):
        return requirements
    for line in lines:
        if inclusion := re.match(r"(?:-r|--requirement)[ =]*(\S+)", line):
            requirements |= (
                _read_requirements(path.parent / inclusion[1], depth + 1) if depth < 5 else set()
            )
        elif not line.startswith(("-", "#")):
            requirements.add(_normalize_name(line))
    return requirements


def _split_lines(text: str) -> list[str]:
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _has_src(files: Sequence[str]) -> bool:
    return any(name.startswith(f"src{os.sep}") and name.endswith(".py") for name in files)


def _normalize_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*?(?=$|[^\w.-]|-\d)", requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


_USUAL: Final = ("test", "tests", "testing", "dev", "develop", "development")
_REQUIREMENTS: Final = re.compile(
    r"((requirements|reqs|tests?)/)?"
    r"((requirements|reqs)([-_.](tests?|testing|dev))?|(tests?|testing|dev)([-_]requirements)?)\.txt"
)
