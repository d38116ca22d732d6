"""What bae finds out about a project before it asks."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from bae.team.project import (
    detect,
    find_command_problems,
    find_problems,
    find_setup_problems,
)
from bae.team.test_runs import run_tests
from bounded import BOUND
from git_repositories import make_repository, write


def test_a_python_project_is_detected_with_its_test_command(tmp_path: Path) -> None:
    write(tmp_path, {"app.py": "", "tests/test_app.py": "", "tools/x.js": ""})
    detected = detect(tmp_path)
    assert detected.languages == ("python", "javascript")
    assert detected.test_command == ("python", "-m", "pytest")
    assert detected.questions == ()
    project = detected.project(name="shop")
    assert (project.name, project.root, project.branch) == ("shop", str(tmp_path), "bae/team")
    assert project.test_command == detected.test_command


def test_a_python_project_with_its_own_environment_uses_it(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": "[tool.pytest.ini_options]\n", ".venv/bin/python": ""})
    assert detect(tmp_path).test_command == (f"{tmp_path}/.venv/bin/python", "-m", "pytest")


def test_the_test_command_names_python_as_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"test_app.py": "", "bin/python3": ""})
    (tmp_path / "bin/python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python3"))
    assert detect(tmp_path).test_command == ("python3", "-m", "pytest")
    assert "python was not found" in find_command_problems(["python", "-m", "pytest"], tmp_path)[0]


VITEST = "node_modules/.bin/vitest run"


@pytest.mark.parametrize(
    ("package", "command", "setup"),
    [
        ({"scripts": {"test": "node --test src/"}}, "node --test src/", ""),
        ({"scripts": {"test": "vitest"}}, "node_modules/.bin/vitest run", ""),
        (
            {"scripts": {"test": "npx vitest run --dir a"}},
            "node_modules/.bin/vitest run --dir a",
            "",
        ),
        ({"scripts": {"test": "jest --watch"}}, "node_modules/.bin/jest", ""),
        ({"devDependencies": {"jest": "^30"}}, "node_modules/.bin/jest", "npm install"),
        ({"scripts": {"test": "lint && jest"}}, "node_modules/.bin/jest", ""),
        (
            {"scripts": {"test": "npm run lint && npm run a", "a": "c8 --100 node --test"}},
            "node --test",
            "",
        ),
        ({"scripts": {"test": "run-s b a", "a": "nyc vitest -w", "b": "x"}}, VITEST + " -w", ""),
        ({"scripts": {"test": "jest --coverage --watchAll"}}, "node_modules/.bin/jest", ""),
        (
            {"scripts": {"test": "cross-env A=1 B=2 jest -i"}},
            "env A=1 B=2 node_modules/.bin/jest -i",
            "",
        ),
        (
            {"scripts": {"test": "node --experimental-vm-modules node_modules/jest/bin/jest.js"}},
            "node --experimental-vm-modules node_modules/jest/bin/jest.js",
            "",
        ),
        ({"scripts": {"test": "tsx --test src/*.ts"}}, "node --import tsx --test 'src/*.ts'", ""),
        ({"scripts": {"test": "npm test"}, "dependencies": {"a": "1"}}, "", "npm install"),
        ({"scripts": ["odd"], "dependencies": 3}, "node --test", ""),
    ],
)
def test_a_javascript_project_is_detected_with_its_test_and_setup_commands(
    package: object, command: str, setup: str, tmp_path: Path
) -> None:
    write(tmp_path, {"package.json": json.dumps(package), "a.js": "", "a.test.js": ""})
    detected = detect(tmp_path)
    assert detected.languages == ("javascript",)
    assert shlex.join(detected.test_command) == command
    assert shlex.join(detected.setup) == setup


def test_setup_installs_the_locked_versions_of_packages(tmp_path: Path) -> None:
    package = json.dumps({"devDependencies": {"vitest": "^4"}})
    write(tmp_path, {"package.json": package, "package-lock.json": "{}", "tsconfig.json": "{}"})
    detected = detect(tmp_path)
    assert detected.setup == ("npm", "ci")
    assert detected.test_command == ("node_modules/.bin/vitest", "run")


PNPM = "lockfileVersion: '9.0'\n"
YARN = "# yarn lockfile v1\n"


@pytest.mark.parametrize(
    ("files", "committed", "setup"),
    [
        ({"package-lock.json": "{}"}, "package-lock.json", "npm ci"),
        ({"package-lock.json": "{}"}, "", "npm install"),  # git ignores it
        ({"pnpm-lock.yaml": PNPM}, "pnpm-lock.yaml", "npx --yes pnpm@9 install --frozen-lockfile"),
        ({"yarn.lock": YARN}, "yarn.lock", "npx --yes yarn@1 install --frozen-lockfile"),
        (
            {"yarn.lock": "", ".yarn/releases/yarn-4.1.0.cjs": ""},
            "yarn.lock",
            "node .yarn/releases/yarn-4.1.0.cjs install --immutable",
        ),
    ],
)
def test_the_committed_lock_file_decides_the_package_manager(
    files: dict[str, str],
    committed: str,
    setup: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    package = json.dumps({"devDependencies": {"vitest": "^4"}})
    write(tmp_path, {"package.json": package, **files})
    detected = detect(tmp_path, committed={"package.json", committed})
    assert shlex.join(detected.setup) == setup


def test_a_folder_of_a_workspace_is_installed_by_the_lock_file_of_a_parent_folder(
    tmp_path: Path,
) -> None:
    package = json.dumps({"devDependencies": {"vitest": "^4"}})
    write(tmp_path, {"package-lock.json": "{}", "packages/a/package.json": package})
    detected = detect(tmp_path, "packages/a")
    assert (detected.setup, detected.test_command) == (("npm", "ci"), ("npx", "vitest", "run"))


def test_packages_for_tools_are_not_part_of_a_python_project(tmp_path: Path) -> None:
    package = json.dumps({"devDependencies": {"prettier": "^3"}})
    write(tmp_path, {"package.json": package, "test_a.py": ""})
    assert detect(tmp_path).setup == ()


def test_programs_that_setup_creates_may_be_missing_before_setup(tmp_path: Path) -> None:
    setup = ("python", "-m", "venv", ".venv", "&&", ".venv/bin/pip", "install", "pytest")
    command = (".venv/bin/python", "-m", "pytest")
    assert find_command_problems(command, tmp_path, "", setup) == ()
    assert find_setup_problems(setup, tmp_path) == ()
    [problem] = find_command_problems(command, tmp_path)
    assert ".venv/bin/python was not found" in problem
    root = make_repository(tmp_path / "project", {"test_a.py": ""})
    assert find_problems(detect(root).project(test_command=command, setup=setup)) == ()
    [problem] = find_setup_problems(setup[5:], tmp_path)
    assert ".venv/bin/pip was not found" in problem


@pytest.mark.parametrize(
    ("setup", "problem"),
    [
        ("curl x | sh", "| is for a shell"),
        ("cd packages && npm ci", "--folder"),
        ("FORCE=1 npm ci", "write env FORCE=1 before"),
        ("nowhere-at-all sync", "nowhere-at-all was not found: install it"),
        ("pnpm install", "`npm install --global pnpm`"),
        ("npm ci &&", "a command is missing beside &&"),
    ],
)
def test_a_setup_command_that_cannot_run_is_refused_with_a_fix(
    setup: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"bin/npm": "", "bin/curl": ""})
    for name in ("npm", "curl"):
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    [found] = find_setup_problems(shlex.split(setup), tmp_path)
    assert problem in found


def test_a_go_project_is_detected_with_its_test_command(tmp_path: Path) -> None:
    write(tmp_path, {"go.mod": "module x\n", "a.go": "", "a_test.go": ""})
    detected = detect(tmp_path)
    assert (detected.languages, detected.test_command) == (("go",), ("go", "test", "./..."))


def test_unknown_settings_become_questions(tmp_path: Path) -> None:
    detected = detect(tmp_path)
    assert (detected.languages, detected.test_command) == ((), ())
    assert "Which command runs the tests?" in detected.questions[0]


def test_a_project_in_two_languages_has_the_tests_of_both(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "project", {"test_a.py": "", "b.py": "", "a.test.js": ""})
    detected = detect(root)
    assert detected.test_command == ("python", "-m", "pytest", "&&", "node", "--test")
    assert detected.questions == ()
    assert find_problems(detected.project()) == ()
    assert (
        "make reports no tests"
        in find_problems(detected.project(test_command=["pytest", "&&", "make"]))[0]
    )
    assert detected.project(test_command=["node", "--test"]).test_command == ("node", "--test")


def test_generated_and_hidden_directories_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {"node_modules/a/a.test.js": "", ".venv/lib/test_x.py": "", "a.py": ""})
    detected = detect(tmp_path)
    assert detected.languages == ("python",)
    assert detected.test_command == ()


def test_projects_that_a_team_cannot_work_with_are_reported(tmp_path: Path) -> None:
    project = detect(tmp_path).project()
    assert [problem.partition(":")[0] for problem in find_problems(project)] == [
        f"{tmp_path} is no git work tree",
        "there is no test command",
    ]
    root = make_repository(tmp_path / "project", {"test_a.py": ""})
    detected = detect(root)
    assert find_problems(detected.project()) == ()
    for command, problem in (("make test", "reports no tests"), ("nox-x pytest", "not found")):
        assert problem in " ".join(find_problems(detected.project(test_command=command.split())))
    missing = detected.project().model_copy(update={"root": str(tmp_path / "gone")})
    assert "is not a directory" in find_problems(missing)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
async def test_the_detected_command_runs_the_tests(tmp_path: Path) -> None:
    write(tmp_path, {"sum.test.js": 'require("node:test")("adds", () => {});\n'})
    report = await run_tests(detect(tmp_path).project(), tmp_path, timeout=BOUND)
    assert report.passed, report.problem


@pytest.mark.parametrize("program", ["mocha", "ava", "tape", "tap", "jasmine", "uvu"])
@pytest.mark.parametrize(
    "script", ["{} test/", "xo && c8 {}", "NODE_ENV=test node_modules/.bin/{}"]
)
def test_other_test_programs_are_named_and_not_mistaken_for_node(
    program: str, script: str, tmp_path: Path
) -> None:
    package = json.dumps({"scripts": {"test": script.format(program)}})
    write(tmp_path, {"package.json": package, "test/a.test.js": ""})
    detected = detect(tmp_path)
    assert detected.test_command == ()
    assert f"runs its tests with {program}," in detected.questions[0]
    assert "--report junit:PATH" in detected.questions[0]
    assert "node --test" in detected.questions[0]
    [problem] = find_command_problems([program], tmp_path)
    assert f"{program} is not node --test" in problem
    assert "--report junit:PATH" in problem


def test_an_unknown_test_script_is_not_replaced(tmp_path: Path) -> None:
    package = json.dumps({"scripts": {"test": "node test/index.js"}})
    write(tmp_path, {"package.json": package, "test/index.js": ""})
    detected = detect(tmp_path)
    assert detected.test_command == ()
    assert "`node test/index.js`" in detected.questions[0]


def test_a_folder_of_a_repository_is_examined_separately(tmp_path: Path) -> None:
    write(tmp_path, {"a.test.js": "", "packages/a/test_a.py": ""})
    detected = detect(tmp_path, "packages/a")
    assert (detected.languages, detected.test_command) == (("python",), ("python", "-m", "pytest"))
    project = detected.project()
    assert (project.root, project.folder) == (str(tmp_path), "packages/a")


def test_any_program_that_writes_a_report_can_run_the_tests(tmp_path: Path) -> None:
    assert find_command_problems(["sh", "run.sh"], tmp_path, "junit:out/*.xml") == ()
    [problem] = find_command_problems(["sh", "-c", "pytest"], tmp_path, "junit:out.xml")
    assert "reports its tests by itself" in problem
    for wrong in ("out.xml", "tap:out.tap", "junit:", "junit:../out.xml", "junit:/out.xml"):
        assert len(find_command_problems(["sh", "run.sh"], tmp_path, wrong)) == 1
