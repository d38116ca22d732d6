"""Finds the likely cause if the tests of a base cannot run, with a command that fixes it. The base
is the commit that work starts from."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bae.team import node_setup, python_setup
from bae.team.environment import PROGRAM, Cause, find_cause
from bae.team.files import INCLUDE
from bae.team.models import Project, TestReport
from bae.team.reports import NOT_LOADED, list_names
from bae.team.test_order import is_selected
from bae.team.test_runs import AND, find_test_program, split_commands, write_command
from bae.team.verdict import is_test_file


def _make_cause(text: str, fix: str) -> Cause:
    return Cause("base", text, fix)


def find_problem(
    report: TestReport, project: Project, tracked: Sequence[str], tests: Sequence[str]
) -> Cause | None:
    """Return the problem that keeps the tests of a base from running, or None if tasks can be
    judged. `tracked` are the files of the base. `tests` are the tests that tasks must make pass, so
    these tests may fail to load. Call this function in a thread: it reads files of the checkout."""
    if report.ended_by in _LIMIT_CAUSES:
        return _LIMIT_CAUSES[report.ended_by]
    failed = report.of("failed")
    not_loaded = [case for case in failed if case.message.startswith(NOT_LOADED)]
    if (cause := find_cause(report)) is not None:
        return _add_install_command(cause, project, tracked) if cause is PROGRAM else cause
    loaded = [case for case in report.cases if case not in not_loaded]
    nothing_ran = bool(not_loaded) and not report.of("passed")
    if loaded and not nothing_ran:
        if report.exit_code != 0 and not failed:
            return _make_cause(
                f"the test command ends with {report.exit_code} although no test fails, as for a "
                "coverage that is too low",
                "leave this condition out of the test command: bae team init --test COMMAND",
            )
        return None
    if not_loaded and all(is_selected(case, tests) for case in not_loaded):
        return None  # tasks write the missing modules
    texts = [case.message for case in report.cases] or [report.output]
    missing = _find_missing_module("\n".join(texts), project, tracked)
    if missing is not None:
        return missing
    if loaded:
        return None  # tasks may fix the failed tests and the files that cannot be loaded
    if not_loaded:
        return _make_cause(
            f"no test file can be loaded: {list_names([case.id for case in not_loaded])}",
            "see why in a fresh clone, or name another command: bae team init --test COMMAND",
        )
    has_tests = any(is_test_file(name) and not _is_helper(name) for name in tracked)
    if report.exit_code in _NO_TESTS_CODES and not has_tests:
        return None  # a new project: its first task writes tests
    if cause := _find_known_message(report.output, project, tracked):
        return cause
    if project.report and not report.reported and report.exit_code is not None:
        return _make_cause(
            f"{report.problem}, in the folder that the test command runs in",
            "run the test command there yourself and look for the file: bae team init --test "
            "COMMAND --report junit:PATH",
        )
    if report.reported or _NO_TESTS_MESSAGE.search(report.output):
        return _explain_no_tests(project)
    message = f"the test program ended with {report.exit_code} without a report that can be read"
    return _make_cause(
        report.problem if report.exit_code is None and report.problem else message,
        "run the command in a fresh clone, and correct it: bae team init --test COMMAND",
    )


_LIMIT_CAUSES: Final = {
    "timeout": _make_cause(
        "they did not end in time",
        "have the test command run fewer or faster tests, as pytest -m 'not slow'",
    ),
    "memory": _make_cause(
        "they used more memory than the sandbox allows",
        "have the test command run fewer tests at a time",
    ),
    "processes": _make_cause(
        "they had more processes than the sandbox allows",
        "have the test command start fewer, as pytest -n 2",
    ),
    "output": _make_cause(
        "they printed too much", "have the test command print less, as pytest -q"
    ),
}
_NO_TESTS_CODES: Final = (0, 1, 5)
"""Exit codes of test programs that found no tests."""
_NO_TESTS_MESSAGE: Final = re.compile(r"^No tests? (?:files )?found", re.MULTILINE)
"""Jest and Vitest print this message instead of a report."""


def _find_known_message(output: str, project: Project, tracked: Sequence[str]) -> Cause | None:
    """Return the cause behind a known message of a test program, or None."""
    if match := re.search(r"unrecognized arguments: (.+)", output):
        options = [word.partition("=")[0] for word in match[1].split() if word[:1] == "-"]
        plugins = [name for option, name in _PLUGINS.items() if option in options]
        return _make_cause(
            "pytest does not know an option of the project's settings, since a plugin is not "
            "installed",
            _describe_install(plugins, project, tracked)
            if plugins
            else "install what the project's tests need into the environment of the test command, "
            "as pip install -e '.[test]', or name another: bae team init --test "
            "'.venv/bin/python -m pytest'",
        )
    if re.search(r"(?:INTERNALERROR>|^E?)\s*[\w.]*Warning: ", output, re.MULTILINE):
        return _make_cause(
            "a warning, such as one of a plugin, is an error in the project's settings",
            "run the tests in an environment of the project's own: bae team init --test "
            "'.venv/bin/python -m pytest'; or leave the plugin out with -p no:NAME",
        )
    return None


_PLUGINS: Final = {
    "--cov": "pytest-cov",
    "-n": "pytest-xdist",
    "--numprocesses": "pytest-xdist",
    "--dist": "pytest-xdist",
    "--timeout": "pytest-timeout",
    "--asyncio-mode": "pytest-asyncio",
    "--benchmark-skip": "pytest-benchmark",
    "--benchmark-disable": "pytest-benchmark",
    "--mypy": "pytest-mypy",
    "--reruns": "pytest-rerunfailures",
    "--snapshot-update": "syrupy",
    "--strict-asyncio": "pytest-asyncio",
    "--random-order": "pytest-random-order",
}


# --- missing modules ------------------------------------------------------------------------------


_MISSING: Final = re.compile(
    r"ModuleNotFoundError: No module named '([\w.]+)'"
    r"|PackageNotFoundError: (?:No package metadata was found for )?([\w.-]+)"
    r"|Cannot find (?:module|package) '([^']+)'"
    r"|Failed to resolve import \"([^\"]+)\""
)


def _find_missing_module(text: str, project: Project, tracked: Sequence[str]) -> Cause | None:
    """Return the cause for a module that cannot be imported, or None if `text` names no module.
    The module may be the project itself, one of the project's generated files, or a dependency."""
    modules = list(
        dict.fromkeys(name for groups in _MISSING.findall(text) for name in groups if name)
    )
    for name in modules:
        folder = _find_own_folder(name, tracked)
        if folder is None:
            continue
        path = f"{folder}/{'/'.join(name.split('.')[1:])}.py"
        if name.count(".") and path not in tracked and folder in _list_folders(tracked):
            return _explain_missing_file(path, project, tracked)
        return _make_cause(
            f"{name}, a package of this project, is not installed where its tests run",
            _describe_own_install(project, tracked, os.path.dirname(folder)),
        )
    if modules:
        return _make_cause(
            f"{list_names(modules)} cannot be imported: a dependency is not installed",
            _describe_install([_find_distribution(name) for name in modules], project, tracked),
        )
    return None


def _explain_missing_file(path: str, project: Project, tracked: Sequence[str]) -> Cause:
    """Return the cause for a file of the project that git does not have. The fix depends on
    whether the checkout has the file."""
    if Path(project.root, path).exists():
        return _make_cause(
            f"{path} is missing: git does not have it",
            f"list it in {INCLUDE}: `echo {shlex.quote(path)} >> {INCLUDE}`",
        )
    proposal = _propose_setup(project, tracked)
    setup = proposal or "bae team init --setup COMMAND"
    return _make_cause(
        f"{path} is missing: it is generated by the project's build",
        f"make it, and list it in {INCLUDE}; or have setup make it: {setup}",
    )


def _find_own_folder(name: str, tracked: Sequence[str]) -> str | None:
    """Return where the project has the top package of a dotted name, such as `src/shop` for
    `shop.cart`. None if the package is not the project's own."""
    top = name.partition(".")[0].replace("-", "_")
    for folder in ("", "src/", "lib/", "python/"):
        for path in tracked:
            if path.startswith(f"{folder}{top}/") or path == f"{folder}{top}.py":
                return folder + top
    return None


def _list_folders(tracked: Sequence[str]) -> set[str]:
    return {os.path.dirname(path) for path in tracked}


def _is_helper(name: str) -> bool:
    return os.path.basename(name) in ("__init__.py", "conftest.py") or not _CODE.search(name)


_CODE: Final = re.compile(r"\.(py|go|[cm]?[jt]sx?|sh)$")


def _explain_no_tests(project: Project) -> Cause:
    project_folder = Path(project.root, project.folder)
    program = node_setup.find_other(project_folder)
    if not program:
        needed = node_setup.read_package(project_folder).needed
        program = next((name for name in node_setup.OTHER_PROGRAMS if name in needed), "")
    if program:
        return _make_cause(
            f"the test command found no tests, because the project's tests are for {program}",
            "name a command that runs them and writes a report: bae team init --test COMMAND "
            f"--report junit:PATH{node_setup.describe_reporter(program)}",
        )
    return _make_cause(
        "the test command found no tests, although the project has test files",
        "name the command that runs them, with their folder: bae team init --test COMMAND",
    )


# --- commands that install ------------------------------------------------------------------------


def _add_install_command(cause: Cause, project: Project, tracked: Sequence[str]) -> Cause:
    """Return the cause with a fix that installs the missing test program, if the program is
    known."""
    for command in split_commands(project.test_command):
        program = find_test_program(command)
        if program is None or program.name in ("go", "node"):
            continue
        if fix := _describe_install([program.name], project, tracked):
            return Cause(cause.kind, cause.text, fix)
    return cause


def _describe_install(names: Sequence[str], project: Project, tracked: Sequence[str]) -> str:
    """Return advice on how to install packages where the tests run, with a command to copy."""
    packages = shlex.join(names)
    programs = {
        program.name
        for command in split_commands(project.test_command)
        if (program := find_test_program(command))
    }
    if "pytest" not in programs:
        root, tracked_files = Path(project.root), frozenset(tracked)
        setup = node_setup.find_setup(
            root / project.folder,
            root,
            lambda path: path.relative_to(root).as_posix() in tracked_files,
        )
        if not project.setup and setup:
            return f"install it with setup: `bae team init --setup {_quote(setup)}`"
        command = (
            *project.setup,
            *((AND,) if project.setup else ()),
            "npm",
            "install",
            "--no-save",
        )
        return f"install it with setup: `bae team init --setup {_quote((*command, *names))}`"
    if pip := _find_pip(project):
        return f"install it where the tests run: `{pip} {packages}`"
    if not project.setup:
        if proposal := _propose_setup(project, tracked, names):
            return f"install it with setup: {proposal}"
        return (
            "install it into the environment that the test command names, or with setup: "
            "bae team init --setup COMMAND"
        )
    tool = ("uv", "pip") if project.setup[0] == "uv" else (f"{python_setup.VENV}/bin/pip",)
    setup = (*project.setup, AND, *tool, "install", *names)
    return f"install it with setup: `bae team init --setup {_quote(setup)}`"


def _describe_own_install(project: Project, tracked: Sequence[str], folder: str) -> str:
    """Return advice on how to make the tests import the project's own code, with a command to copy
    if one is known. `folder` is the folder that contains the project's package."""
    if pip := _find_pip(project):
        return f"install it where the tests run: `{pip} -e .`"
    words = project.test_command[project.test_command[0] == "env" :]
    path = write_command(("env", f"PYTHONPATH={folder}", *words))
    test_option = f"`bae team init --test {shlex.quote(path)}`"
    proposal = "" if project.setup else _propose_setup(project, tracked)
    if proposal:
        return f"install it with setup: {proposal}"
    if folder:
        return f"name the folder of its code: {test_option}; or install it, as pip install -e ."
    return "install it into the environment of the test command, as pip install -e ."


def _propose_setup(project: Project, tracked: Sequence[str], names: Sequence[str] = ()) -> str:
    """Return the `bae team init` command that gives a Python project an environment of its own.
    Empty if no setup is known."""
    project_folder = Path(project.root, project.folder)
    setup = python_setup.find_setup(project_folder, tracked, tracked, names)
    if not setup:
        return ""
    test = shlex.quote(write_command(python_setup.VENV_TEST))
    return f"`bae team init --setup {_quote(setup)} --test {test}`"


def _find_pip(project: Project) -> str:
    """Return the install command for the virtual environment that the test command names by an
    absolute path. Empty if the test command names no virtual environment."""
    for word in filter(os.path.isabs, project.test_command):
        folder = Path(word).parent
        if (folder.parent / "pyvenv.cfg").exists():
            if (folder / "pip").exists():
                return f"{shlex.quote(str(folder / 'pip'))} install"
            return f"uv pip install --python {shlex.quote(word)}"
    return ""


def _quote(command: Sequence[str]) -> str:
    return shlex.quote(write_command(command))


def _find_distribution(module: str) -> str:
    if module.startswith("@"):
        return "/".join(module.split("/")[:2])
    top = re.split(r"[./]", module)[0]
    return _DISTRIBUTIONS.get(top, top.replace("_", "-"))


_DISTRIBUTIONS: Final = {
    "yaml": "PyYAML",
    "PIL": "pillow",
    "dateutil": "python-dateutil",
    "bs4": "beautifulsoup4",
    "attr": "attrs",
    "dotenv": "python-dotenv",
    "jwt": "PyJWT",
    "sklearn": "scikit-learn",
    "OpenSSL": "pyOpenSSL",
    "cv2": "opencv-python",
    "pkg_resources": "setuptools",
}
"""The distribution that provides a module, where the two names differ."""
