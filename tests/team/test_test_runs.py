"""What bae promises about running a project's tests, with real pytest and Node."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import tempfile
import textwrap
import venv
from pathlib import Path
from typing import Any

import pytest

from bae.team import sandbox
from bae.team.models import Project, TestReport
from bae.team.project import find_command_problems
from bae.team.reports import NOT_LOADED
from bae.team.test_runs import find_test_program, run_tests
from bounded import BOUND
from team_parts import NODE, PYTEST, needs_node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")


def write(root: Path, **files: str) -> Path:
    """Write files; `__` in a name is a dot, and `___` a slash."""
    for name, text in files.items():
        path = root / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return root


async def run_in(
    root: Path,
    command: tuple[str, ...] = PYTEST,
    *,
    report: str = "",
    folder: str = "",
    **limits: Any,
) -> TestReport:
    project = Project(
        id=1,
        name="x",
        root=str(root),
        branch="team",
        test_command=command,
        report=report,
        folder=folder,
    )
    return await run_tests(project, root, **{"timeout": BOUND, **limits})


def outcomes(report: TestReport) -> dict[str, str]:
    return {case.id: case.outcome for case in report.cases}


async def test_every_test_of_pytest_is_reported_by_its_node_id(tmp_path: Path) -> None:
    text = """
    import pytest
    def test_adds(): assert 1 + 1 == 2
    class TestGroup:
        @pytest.mark.parametrize("n", [1, 2])
        def test_n(self, n): assert n == 1
    @pytest.mark.skip(reason="later")
    def test_skipped(): pass
    @pytest.fixture
    def broken(): raise RuntimeError("no fixture")
    def test_fixture(broken): pass
    """
    write(tmp_path, tests___test_a__py=text, tests___test_b__py="import nothing_of_this_name\n")
    report = await run_in(tmp_path)
    assert outcomes(report) == {
        "tests/test_a.py::test_adds": "passed",
        "tests/test_a.py::TestGroup::test_n[1]": "passed",
        "tests/test_a.py::TestGroup::test_n[2]": "failed",
        "tests/test_a.py::test_skipped": "skipped",
        "tests/test_a.py::test_fixture": "failed",
        "tests/test_b.py": "failed",
    }
    assert (report.exit_code, report.passed, report.problem) == (1, False, "")
    messages = {case.id: case.message for case in report.cases}
    assert "assert 2 == 1" in messages["tests/test_a.py::TestGroup::test_n[2]"]
    assert "no fixture" in messages["tests/test_a.py::test_fixture"]
    assert messages["tests/test_b.py"].startswith(NOT_LOADED)
    assert "nothing_of_this_name" in messages["tests/test_b.py"]
    assert "1 failed, 2 passed, 1 skipped, 2 errors" in report.output
    assert report.protection
    assert os.listdir(tmp_path) == ["tests"]


async def test_tests_in_several_processes_of_pytest_are_reported_too(tmp_path: Path) -> None:
    write(tmp_path, test_a__py="def test_a(): pass\ndef test_b(): assert 0\n")
    report = await run_in(tmp_path, (*PYTEST, "-p", "xdist.plugin", "-n", "2"))
    assert outcomes(report) == {"test_a.py::test_a": "passed", "test_a.py::test_b": "failed"}
    assert (report.exit_code, report.problem) == (1, "")


@needs_node
@pytest.mark.parametrize(
    "options",
    ["--test-reporter=spec", "--test-reporter tap --test-reporter-destination out.tap"],
)
async def test_custom_variables_and_reporters_of_a_node_command_still_work(
    options: str, tmp_path: Path
) -> None:
    one = 'const test = require("node:test");\n'
    one += 'test("mode", () => { if (process.env.MODE !== "unit") throw Error("no mode"); });\n'
    write(tmp_path, a__test__js=one)
    command = ("env", "MODE=unit", *NODE, *options.split())
    report = await run_in(tmp_path, command)
    assert outcomes(report) == {"a.test.js::mode": "passed"}
    assert report.command == command
    assert find_command_problems(command, tmp_path) == ()


async def test_all_tests_run_even_if_the_project_stops_at_the_first_failure(tmp_path: Path) -> None:
    one = "def test_a():\n    assert 0\n\n\ndef test_b():\n    pass\n"
    write(tmp_path, test_one__py=one, pytest__ini="[pytest]\naddopts = -x\n")
    report = await run_in(tmp_path)
    assert outcomes(report) == {"test_one.py::test_a": "failed", "test_one.py::test_b": "passed"}


@needs_node
async def test_every_test_of_node_is_reported_with_its_groups(tmp_path: Path) -> None:
    one = """
    const { test, describe, it, before } = require("node:test");
    const assert = require("node:assert");
    test("adds", () => assert.equal(1 + 1, 2));
    describe("group # one", () => {
      it("fails", () => assert.equal(1, 2));
      it("skips", { skip: "later" }, () => {});
      describe("inner", () => { it("deep", () => {}); });
    });
    test("outer", async (t) => { await t.test("nested", () => {}); });
    describe("empty", () => {});
    describe("hook", () => { before(() => { throw Error("no server"); }); it("it", () => {}); });
    """
    write(
        tmp_path,
        test___a__test__js=one,
        test___b__test__js='const test = require("node:test");\n' + 'test("adds", () => {});\n' * 2,
        test___c__test__js="throw new Error('load');\n",
        test___d__test__js='console.log("ok 1 - printed");\n',
    )
    report = await run_in(tmp_path, NODE)
    assert outcomes(report) == {
        "test/a.test.js::adds": "passed",
        "test/a.test.js::group # one::fails": "failed",
        "test/a.test.js::group # one::skips": "skipped",
        "test/a.test.js::group # one::inner::deep": "passed",
        "test/a.test.js::outer::nested": "passed",
        "test/a.test.js::hook::it": "failed",
        "test/a.test.js::hook": "failed",
        "test/b.test.js::adds": "passed",
        "test/b.test.js::adds (2)": "passed",
        "test/c.test.js": "failed",
    }
    assert (report.exit_code, report.passed) == (1, False)
    messages = [case.message for case in report.of("failed")]
    assert "1 == 2" in messages[0]
    assert "no server" in messages[2]
    assert messages[3].startswith(NOT_LOADED)
    assert "Error: load" in messages[3]


@needs_node
async def test_the_reports_of_several_commands_are_merged(tmp_path: Path) -> None:
    both = (*PYTEST, "&&", *NODE)
    write(tmp_path, test_a__py="def test_a(): pass\n")
    report = await run_in(tmp_path, both)
    assert report.passed, report
    write(tmp_path, a__test__js='require("node:test").test("adds", () => {});\n')
    report = await run_in(tmp_path, both)
    assert outcomes(report) == {"test_a.py::test_a": "passed", "a.test.js::adds": "passed"}
    assert (report.passed, report.exit_code, report.command) == (True, 0, both)
    write(tmp_path, test_a__py="def test_a(): assert 0\n")
    report = await run_in(tmp_path, both)
    assert outcomes(report) == {"test_a.py::test_a": "failed", "a.test.js::adds": "passed"}
    assert (report.passed, report.exit_code) == (False, 1)
    report = await run_in(tmp_path, (*NODE, "&&", "make"))
    assert not report.passed
    assert report.problem.startswith("make: make is no test command")


@pytest.mark.parametrize("command", [PYTEST, pytest.param(NODE, marks=needs_node)])
async def test_a_run_without_tests_is_not_a_success(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path, test_a__py="x = 1\n", a__test__js="console.log('ok 1 - printed')\n")
    report = await run_in(tmp_path, command)
    assert not report.passed
    assert "no tests were found" in report.problem


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("import os\ndef test_a(): pass\ndef test_b(): os._exit(0)\n", "wrote no report"),
        # Which pytest reports as a failure.
        ("import sys\ndef test_a(): pass\ndef test_b(): sys.exit(0)\n", ""),
    ],
    ids=["os._exit", "sys.exit"],
)
async def test_a_program_that_exits_with_0_before_all_tests_is_not_a_success(
    tmp_path: Path, test: str, problem: str
) -> None:
    report = await run_in(write(tmp_path, test_a__py=test))
    assert not report.passed
    assert problem in report.problem


@needs_node
async def test_a_node_test_that_exits_with_0_early_does_not_pass(tmp_path: Path) -> None:
    text = 'const { test } = require("node:test"); test("one", () => {}); process.exit(0);\n'
    write(tmp_path, a__test__js=text)
    report = await run_in(tmp_path, NODE)
    assert not report.passed


async def test_an_exit_code_that_contradicts_the_report_is_not_a_success(tmp_path: Path) -> None:
    hook = "def pytest_sessionfinish(session): session.exitstatus = 0\n"
    write(tmp_path, test_a__py="def test_a(): assert 0\n", conftest__py=hook)
    report = await run_in(tmp_path)
    assert not report.passed
    write(tmp_path, test_a__py="def test_a(): pass\n", conftest__py=hook.replace("= 0", "= 3"))
    report = await run_in(tmp_path)
    assert not report.passed
    assert "3 although no test failed" in report.problem


async def test_a_test_run_cannot_change_fixed_files(tmp_path: Path) -> None:
    text = """
    import os
    def test_a():
        try:
            open("conftest.py", "w").write("x = 1")
        except OSError as error:
            print("not written:", error)
    """
    write(tmp_path, test_a__py=text, conftest__py="")
    project = Project(id=1, name="x", root=str(tmp_path), branch="team", test_command=PYTEST)
    report = await run_tests(project, tmp_path, fixed=["conftest.py"], timeout=BOUND)
    if sandbox.can_mount(report.protection):
        assert report.passed, report
        assert (tmp_path / "conftest.py").read_text() == ""
    else:
        assert "conftest.py: written while the tests ran" in report.problem
    report = await run_tests(
        project, tmp_path, fixed=["conftest.py"], timeout=BOUND, kind=sandbox.Protection.LIMITS
    )
    assert not report.passed
    assert "conftest.py: written while the tests ran" in report.problem


@pytest.mark.parametrize("option", ["PYTHONPATH=lib", "-I"])
async def test_the_pythonpath_and_isolation_of_the_command_stay(
    option: str, tmp_path: Path
) -> None:
    write(tmp_path, lib___lib_a__py="", test_a__py="def test_a(): import lib_a\n")
    at = PYTEST.index("python") + option.startswith("-")
    report = await run_in(tmp_path, (*PYTEST[:at], option, *PYTEST[at:]))
    assert report.passed == (option != "-I"), report
    assert outcomes(report).keys() == {"test_a.py::test_a"}


@pytest.mark.parametrize("link", ["shop.pth", "__editable___shop_finder.py"])
async def test_tests_use_the_worktrees_code_even_if_the_checkout_is_installed(
    link: str, tmp_path: Path
) -> None:
    root, worktree = tmp_path / "root", tmp_path / "worktree"
    test = "from shop import price\ndef test_a(): assert price == 2\n"
    for place, price in ((root, 1), (worktree, 2)):
        write(place, src___shop__py=f"price = {price}\n", test_a__py=test)
    venv.create(root / ".venv", symlinks=True)
    [packages] = (root / ".venv").glob("lib/python*/site-packages")
    (packages / "pytest.pth").write_text(sysconfig.get_path("purelib"))
    text = f"{root}/src\n" if link == "shop.pth" else f"MAPPING = {{'shop': '{root}/src/shop'}}\n"
    (packages / link).write_text(text)
    python = str(root / ".venv/bin/python")
    command = tuple(python if word == "python" else word for word in PYTEST)
    project = Project(id=1, name="x", root=str(root), branch="team", test_command=command)
    report = await run_tests(project, worktree, timeout=BOUND)
    assert report.passed, report


@pytest.mark.parametrize("link", ["shop.pth", "__editable___shop_finder.py"])
async def test_tests_cannot_read_the_installed_checkout(link: str, tmp_path: Path) -> None:
    if await sandbox.protection() == sandbox.Protection.LIMITS:
        pytest.skip("there is no sandbox here")
    root, worktree = tmp_path / "root", tmp_path / "worktree"
    write(root, shop__py="price = 1\n")
    (root / ".env").write_text("KEY=secret\n")
    test = "from shop import price\ndef test_a(): assert price == 2\n"
    test += f"def test_b():\n    open({str(root / '.env')!r})\n"
    write(worktree, shop__py="price = 2\n", test_a__py=test)
    venv.create(root / ".venv", symlinks=True)
    [packages] = (root / ".venv").glob("lib/python*/site-packages")
    (packages / "pytest.pth").write_text(sysconfig.get_path("purelib"))
    text = f"{root}\n" if link == "shop.pth" else f"MAPPING = {{'shop': '{root}/shop'}}\n"
    (packages / link).write_text(text)
    python = str(root / ".venv/bin/python")
    command = tuple(python if word == "python" else word for word in PYTEST)
    project = Project(id=1, name="x", root=str(root), branch="team", test_command=command)
    report = await run_tests(project, worktree, timeout=BOUND)
    assert outcomes(report) == {"test_a.py::test_a": "passed", "test_a.py::test_b": "failed"}


async def test_a_link_or_a_pipe_is_not_read_as_a_report(tmp_path: Path) -> None:
    for replacing in ("os.symlink('/etc/hostname', path)", "os.mkfifo(path)"):
        hook = f"""
        import atexit, os, sys
        path = next(a for a in sys.argv if a.startswith("--junit-xml=")).partition("=")[2]
        atexit.register(lambda: (os.unlink(path), {replacing}))
        """
        write(tmp_path, test_a__py="def test_a(): pass\n", conftest__py=hook)
        report = await run_in(tmp_path)
        assert not report.passed
        assert "report" in report.problem


async def test_an_endless_test_and_endless_output_are_ended_and_reported(tmp_path: Path) -> None:
    endless = "import signal, time\nsignal.alarm(60)\ndef test_a():\n    time.sleep(60)\n"
    write(tmp_path, test_a__py=endless)
    report = await run_in(tmp_path, timeout=2)
    assert (report.exit_code, report.passed) == (None, False)
    assert "did not end in time" in report.problem
    text = "import signal\ndef test_a():\n    signal.alarm(60)\n    while True: print('y' * 1000)\n"
    write(tmp_path, test_a__py=text)
    report = await run_in(tmp_path, (*PYTEST, "-s"), output=100_000)
    assert (report.exit_code, report.passed) == (None, False)
    assert "printed too much" in report.problem
    assert len(report.output) < 50_000


async def test_a_cancelled_test_run_leaves_no_processes_or_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, temporary = tmp_path / "project", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    text = """
    import os, subprocess, sys, time
    def test_a():
        left = [sys.executable, "-c", "import time; time.sleep(60)"]
        subprocess.Popen(left, start_new_session=True, close_fds=False, pass_fds=[
            pipe := os.open("alive", os.O_WRONLY)
        ])
        os.write(pipe, b"x")
        time.sleep(60)
    """
    write(project, test_a__py=text)
    os.mkfifo(project / "alive")
    pipe = os.open(project / "alive", os.O_RDONLY | os.O_NONBLOCK)
    ready = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe, ready.set)
    running = asyncio.create_task(run_in(project, (*PYTEST, "-s")))
    async with asyncio.timeout(BOUND):
        await ready.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    asyncio.get_running_loop().remove_reader(pipe)
    # The pipe is closed: no process has its other end.
    assert os.read(pipe, 10) == b"x"
    assert os.read(pipe, 10) == b""
    os.close(pipe)
    assert os.listdir(temporary) == []


async def test_tests_cannot_see_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    text = """
    import os
    def test_a():
        assert "ANTHROPIC_API_KEY" not in os.environ
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                assert b"sk-secret" not in open(f"/proc/{pid}/environ", "rb").read()
            except OSError:
                pass
    """
    report = await run_in(write(tmp_path, test_a__py=text))
    assert report.passed or "bubblewrap" not in report.protection, report


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m pytest -q", "pytest"),
        ("/x/.venv/bin/python3 -m pytest", "pytest"),
        ("uv run pytest tests", "pytest"),
        ("py.test", "pytest"),
        ("node --test src/", "node"),
        ("node_modules/.bin/vitest run", "vitest"),
        ("npx jest", "jest"),
        ("node node_modules/jest/bin/jest.js", "jest"),
        ("go test ./...", "go"),
        ("npm test", None),
        ("make test", None),
        ("node run.js", None),
    ],
)
def test_test_programs_are_recognized(command: str, name: str | None) -> None:
    program = find_test_program(command.split())
    assert (program.name if program else None) == name


async def test_a_command_that_reports_no_tests_is_not_run(tmp_path: Path) -> None:
    report = await run_in(tmp_path, ("touch", "made"))
    assert not report.passed
    assert "no test command whose report" in report.problem
    assert os.listdir(tmp_path) == []


async def test_a_test_program_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    report = await run_in(tmp_path, ("node_modules/.bin/vitest", "run"))
    assert "did not start" in report.problem
    assert "cannot start" in report.output


JUNIT = """
mkdir -p out
echo '<testsuite><testcase name="a" file="a.t"/></testsuite>' > out/a.xml
failed='<testcase name="b" file="b.t"><failure>no</failure></testcase>'
echo "<testsuite>$failed</testsuite>" > out/b.xml
exit 1
"""


async def test_any_program_can_report_by_junit_files(tmp_path: Path) -> None:
    write(tmp_path, run__sh=JUNIT)
    report = await run_in(tmp_path, ("sh", "run.sh"), report="junit:out/*.xml")
    assert outcomes(report) == {"a.t::a": "passed", "b.t::b": "failed"}
    assert (report.exit_code, report.problem) == (1, "")
    assert os.listdir(tmp_path / "out") == []  # so that nothing is taken for work


async def test_a_junit_file_from_before_the_run_is_ignored(tmp_path: Path) -> None:
    old = '<testsuite><testcase name="a"/></testsuite>'
    write(tmp_path, run__sh="exit 0\n", out___a__xml=old)
    report = await run_in(tmp_path, ("sh", "run.sh"), report="junit:out/a.xml")
    assert not report.passed
    assert "it wrote no JUnit file at out/a.xml" in report.problem


async def test_junit_files_behind_links_are_neither_read_nor_removed(tmp_path: Path) -> None:
    write(tmp_path, elsewhere___a__xml='<testsuite><testcase name="a"/></testsuite>')
    write(tmp_path / "project", run__sh="exit 0\n")
    (tmp_path / "project/out").symlink_to(tmp_path / "elsewhere")
    report = await run_in(tmp_path / "project", ("sh", "run.sh"), report="junit:out/*.xml")
    assert "it wrote no JUnit file" in report.problem
    assert (tmp_path / "elsewhere/a.xml").exists()


async def test_tests_run_in_the_folder_of_the_project_and_are_named_from_the_root(
    tmp_path: Path,
) -> None:
    test = """
    from pathlib import Path
    def test_here(): assert Path("here.txt").exists() and Path("../b/b.txt").exists()
    """
    write(tmp_path, packages___a___test_a__py=test, packages___a___here__txt="")
    write(tmp_path, packages___b___b__txt="", packages___b___test_b__py="def test_b(): assert 0\n")
    report = await run_in(tmp_path, folder="packages/a")
    assert outcomes(report) == {"packages/a/test_a.py::test_here": "passed"}
    # Where settings at the root have pytest name files from there, they stay as they are.
    write(tmp_path, pytest__ini="[pytest]\n")
    report = await run_in(tmp_path, folder="packages/a")
    assert outcomes(report) == {"packages/a/test_a.py::test_here": "passed"}


@needs_node
async def test_node_tests_run_in_the_folder_and_are_named_from_the_root(tmp_path: Path) -> None:
    test = "require('node:test')('adds', () => {});\n"
    write(tmp_path, packages___a___a__test__js=test, b__test__js="throw 1;\n")
    report = await run_in(tmp_path, NODE, folder="packages/a")
    assert outcomes(report) == {"packages/a/a.test.js::adds": "passed"}


async def test_the_output_of_tests_has_no_escape_codes(tmp_path: Path) -> None:
    test = """
    def test_fails():
        print("\\x1b[32mgreen\\x1b[0m")
        assert [1, 2] == [1, 3], "\\x1b[31mred"
    """
    write(tmp_path, test_a__py=test, pytest__ini="[pytest]\naddopts = --color=yes\n")
    report = await run_in(tmp_path)
    [case] = report.cases
    assert "red" in case.message
    for text in (case.message, report.output):
        assert "\x1b" not in text
        assert "x1B" not in text
        assert "[31m" not in text.replace("x1b[31mred", "")  # which is the source
