"""How a project in Python is set up for its tests, by what its maintainers wrote."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bae.team.project import detect
from bae.team.test_runs import write_command
from git_repositories import write

BUILD = '[build-system]\nrequires = ["hatchling"]\n[project]\nname = "shop"\n'
SRC = {"src/shop/__init__.py": "", "tests/test_shop.py": ""}
PIP = "python -m venv .venv && .venv/bin/pip install "
TOX = """[testenv]
package = editable
extras =
    tests
deps =
    -r {toxinidir}/requirements/tests.txt
    babel
    py{311,312}: only-there
    {env:OTHER}
commands_pre =
    {[testenv:made]commands}
commands = pytest {posargs}

[testenv:made]
commands =
    pybabel --quiet \\
      compile
    {envpython} -m shop.make
    other {envtmpdir}
"""


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Python, where nothing but pytest is installed."""
    prefix = tmp_path / "python"
    write(prefix, {"bin/python": "", "lib/python3.11/site-packages/pytest-9.0.dist-info/x": ""})
    (prefix / "bin/python").chmod(0o755)
    monkeypatch.setenv("PATH", str(prefix / "bin"))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    return prefix


def find(root: Path, files: Mapping[str, str], committed: set[str] | None = None) -> str:
    write(root / "project", files)
    detected = detect(root / "project", "", committed)
    if detected.setup:
        assert detected.test_command == (".venv/bin/python", "-m", "pytest")
        assert detected.project().setup == detected.setup
        # Another test command may not need what setup makes.
        assert detected.project(test_command=["python", "-m", "pytest"]).setup == ()
    return write_command(detected.setup) if detected.setup else ""


PROJECTS = {
    "build alone": ({"pyproject.toml": BUILD}, PIP + "-e . pytest"),
    "setup.py": ({"setup.py": ""}, PIP + "-e . pytest"),
    "group": (
        {"pyproject.toml": BUILD + '[dependency-groups]\ntests = ["pytest>8", "freezegun"]\n'},
        "python -m venv --upgrade-deps .venv && .venv/bin/pip install -e . --group tests",
    ),
    "included group": (
        {
            "pyproject.toml": BUILD + "[dependency-groups]\n"
            'all = ["x"]\ncommon = ["pytest"]\ndev = [{include-group = "common"}]\n'
        },
        "python -m venv --upgrade-deps .venv && .venv/bin/pip install -e . --group dev",
    ),
    "extra": (
        {"pyproject.toml": BUILD + 'optional-dependencies.test = ["pytest", "responses"]\n'},
        PIP + "-e '.[test]'",
    ),
    "setup.cfg": (
        {"setup.py": "", "setup.cfg": "[options.extras_require]\ndev =\n  pytest\n  mock\n"},
        PIP + "-e '.[dev]'",
    ),
    "tox": (
        {
            "pyproject.toml": BUILD + 'optional-dependencies.tests = ["pytest"]\n',
            "tox.ini": TOX,
            "requirements/tests.txt": "-r base.txt\n",
            "requirements/base.txt": "attrs==23\n",
        },
        PIP + "-e '.[tests]' -r requirements/tests.txt babel && .venv/bin/pybabel --quiet compile"
        " && .venv/bin/python -m shop.make",
    ),
    "requirements": (
        {"setup.py": "", "requirements-dev.txt": "pytest\n", "requirements-docs.txt": "sphinx\n"},
        PIP + "-e . -r requirements-dev.txt",
    ),
    "application": (
        {"requirements.txt": "flask==3\n", "requirements/test.txt": "pytest\nfreezegun\n"},
        PIP + "-r requirements.txt -r requirements/test.txt",
    ),
    "virtual": (
        {"pyproject.toml": '[project]\nname = "shop"\ndependencies = ["httpx>=0.2"]\n'},
        PIP + "'httpx>=0.2' pytest",
    ),
    "poetry": (
        {
            "pyproject.toml": BUILD + "[tool.poetry.group.dev.dependencies]\n"
            'pytest = "^8.1"\nmock = "*"\nrich = {version = "~1.2", extras = ["x"]}\nold = "^0.3"\n'
            '[tool.poetry.group.docs.dependencies]\nsphinx = "^7"\n'
        },
        PIP + "-e . 'pytest>=8.1,<9' mock 'rich[x]>=1.2,<1.3' 'old>=0.3,<0.4'",
    ),
    "pdm": (
        {"pyproject.toml": BUILD + '[tool.pdm.dev-dependencies]\ntest = ["pytest", "faker"]\n'},
        PIP + "-e . pytest faker",
    ),
    "hatch": (
        {
            "pyproject.toml": BUILD
            + '[tool.hatch.envs.hatch-test]\nextra-dependencies = ["trustme"]\n'
        },
        PIP + "-e . trustme pytest",
    ),
}


@pytest.mark.parametrize(("files", "setup"), PROJECTS.values(), ids=PROJECTS)
def test_a_project_that_is_not_installed_gets_a_setup_command(
    files: Mapping[str, str], setup: str, tmp_path: Path
) -> None:
    assert find(tmp_path, {**SRC, **files}) == setup


LOCKED = {
    "uv": (
        "uv.lock",
        {
            '[dependency-groups]\ndev = ["pytest"]\n': "uv sync",
            '[dependency-groups]\ntests = ["pytest"]\ndev = ["ruff"]\n': "uv sync --group tests",
            'optional-dependencies.test = ["pytest"]\n': "uv sync --extra test",
            "": "uv sync && uv pip install pytest",
        },
    ),
    "poetry": (
        "poetry.lock",
        {
            "[tool.poetry.group.dev.dependencies]\npytest = '*'\n": "poetry install",
            "[tool.poetry.group.test]\noptional = true\ndependencies.pytest = '*'\n": (
                "poetry install --with test"
            ),
        },
    ),
    "pdm": ("pdm.lock", {"": "pdm install --frozen-lockfile"}),
}


@pytest.mark.parametrize(
    ("program", "lock", "projects"), [(n, *each) for n, each in LOCKED.items()]
)
def test_a_committed_lock_file_decides_the_installing_program(
    program: str, lock: str, projects: Mapping[str, str], tools: Path, tmp_path: Path
) -> None:
    for number, (text, setup) in enumerate(projects.items()):
        files = {**SRC, "pyproject.toml": BUILD + text, lock: ""}
        root = tmp_path / str(number)
        assert find(root, files, {lock}).startswith("python -m venv")  # the program is not there
        write(tools, {f"bin/{program}": ""})
        (tools / "bin" / program).chmod(0o755)
        assert find(root, files, {lock}) == setup
        assert find(root, files, set()).startswith("python -m venv")  # git ignores the lock
        (tools / "bin" / program).unlink()


def test_a_project_with_all_its_packages_installed_needs_no_setup(
    tools: Path, tmp_path: Path
) -> None:
    tests = BUILD + 'dependencies = ["httpx"]\n[dependency-groups]\ndev = ["pytest", "Mock"]\n'
    packages = tools / "lib/python3.11/site-packages"
    flat = {"shop/__init__.py": "", "tests/test_shop.py": "", "pyproject.toml": tests}
    assert find(tmp_path / "flat", flat)
    write(packages, {"httpx-1.0.dist-info/x": "", "mock-5.0.dist-info/x": ""})
    assert find(tmp_path / "flat", flat) == ""
    src = {**SRC, "pyproject.toml": tests}
    assert find(tmp_path / "src", src)  # its code is not found without being installed
    root = tmp_path / "src" / "project"
    write(packages, {"shop.pth": f"{root}/src\n"})
    assert find(tmp_path / "src", src) == ""
    assert find(tmp_path / "plain", {"shop.py": "", "test_shop.py": ""}) == ""


def test_an_existing_environment_of_the_checkout_is_used(tmp_path: Path) -> None:
    files = {**SRC, "pyproject.toml": BUILD, ".venv/bin/python": ""}
    assert find(tmp_path, files) == ""
    detected = detect(tmp_path / "project")
    assert detected.test_command == (f"{tmp_path}/project/.venv/bin/python", "-m", "pytest")
