"""What bae promises about the work of a task: tests prove it, honest changes are accepted, and what
is not detected is known."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import team_parts
from bae.team.edits import FileChange
from bae.team.models import PlannedTask, Project, TestCase, TestReport
from bae.team.reports import NOT_LOADED
from bae.team.test_edits import find_concerns, find_edits, is_prose, is_test_file
from bae.team.test_runs import run_tests
from bae.team.verdict import WorkVerdict, judge, verify
from bounded import BOUND
from git_repositories import list_leftovers, make_repository, open_team, write
from team_parts import JAVASCRIPT, NODE, PYTEST, SUM, SUM_TEST, needs_node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

CALC = team_parts.PYTHON["calc.py"] + "\n\ndef old(a):\n    return a\n"
TESTS = """import pytest
from calc import add, old

NUMBERS = [1, 2]


@pytest.fixture
def basket():
    return {"apple": 1}


def test_add():
    assert add(1, 1) == 2


@pytest.mark.parametrize("n", [1, 2])
def test_more(n):
    assert add(n, 0) == n


class TestBasket:
    def test_apple(self, basket):
        assert add(basket["apple"], 1) == 2


def test_old():
    assert old(1) == 1
"""
FILES = {**team_parts.PYTHON, "calc.py": CALC, "tests/test_calc.py": TESTS}
SUB = CALC + "\n\ndef sub(a, b):\n    return a - b\n"
TEST_SUB = "\n\ndef test_sub():\n    from calc import sub\n    assert sub(2, 1) == 1\n"
NEW = {"calc.py": SUB, "tests/test_new.py": TEST_SUB}
WRONG = CALC.replace("a + b", "a - b")

_before: dict[tuple[str, ...], TestReport] = {}
"""The report of each project before any work: the same in every test."""


async def work(
    tmp_path: Path,
    edits: Mapping[str, str | None],
    has: Mapping[str, str] = FILES,
    command: tuple[str, ...] = PYTEST,
    **planned: Any,
) -> WorkVerdict:
    """The verdict on a task that writes files, or removes them."""
    root = make_repository(tmp_path / "project", has)
    workspaces, _ = await open_team(root)
    project = Project(id=1, name="x", root=str(root), branch="team", test_command=command)
    workspace = await workspaces.start("bae/task-1-x")
    for name in (name for name, text in edits.items() if text is None):
        (workspace.path / name).unlink()
    write(workspace.path, {name: text for name, text in edits.items() if text is not None})
    await workspace.commit(tuple(edits), "the work")
    before = None
    if has in (FILES, JAVASCRIPT):
        if command not in _before:
            _before[command] = await run_tests(project, root, timeout=BOUND)
        before = _before[command]
    task = PlannedTask.model_validate({"key": "x", "title": "X", **planned})
    verdict = await verify(project, workspaces, workspace, task, before=before, timeout=BOUND)
    await workspaces.remove(workspace)
    assert list_leftovers(root) == []
    return verdict


# --- untested work --------------------------------------------------------------------------------

UNTESTED: dict[str, tuple[dict[str, str | None], str]] = {
    "a comment": ({"calc.py": CALC + "# sub is done\n"}, "Nothing tests this work"),
    "a stub": (
        {"calc.py": CALC + "\n\ndef sub(a, b):\n    raise NotImplementedError\n"},
        "at least one new test that fails without the change",
    ),
    "a line of the README": ({"README.md": "sub is done\n"}, "Nothing tests this work"),
    "a test file that is not collected": (
        {"calc.py": SUB, "tests/check_sub.py": TEST_SUB},
        "collects no test of them: tests/check_sub.py",
    ),
    "a test outside of the folders that pytest looks in": (
        {"calc.py": SUB, "build/test_sub.py": TEST_SUB},
        "collects no test of them: build/test_sub.py",
    ),
    "a new test that passes without the work": (
        {"calc.py": SUB, "tests/test_new.py": "def test_nothing():\n    assert True\n"},
        "pass without the change too: tests/test_new.py::test_nothing",
    ),
    "new tests that are skipped": (
        {
            "calc.py": SUB,
            "tests/test_new.py": "import pytest\n@pytest.mark.xfail"
            + TEST_SUB[1:].replace("sub(2, 1)", "sub(2, 2)"),
        },
        "are skipped: tests/test_new.py::test_sub",
    ),
    "a new test that is skipped by its mark": (
        {
            "calc.py": SUB,
            "tests/test_new.py": "import pytest\n@pytest.mark.skip" + TEST_SUB[1:],
        },
        "are skipped: tests/test_new.py::test_sub",
    ),
    "a comment in a test": ({"tests/test_calc.py": TESTS + "# x\n"}, "Nothing tests this work"),
    "a new test that is only skipped without the work": (
        {
            "calc.py": CALC + "done = True\n",
            "tests/test_new.py": "import calc, pytest\n\n"
            "@pytest.mark.skipif(not hasattr(calc, 'done'), reason='x')\ndef test_done(): pass\n",
        },
        "Without the change these are skipped or not there: tests/test_new.py::test_done",
    ),
    "a new test that has another name in each run": (
        {
            "calc.py": CALC + "# sub is done\n",
            "tests/test_new.py": "import os, pytest\n\n"
            "@pytest.mark.parametrize('x', [os.urandom(4).hex()])\ndef test_any(x): pass\n",
        },
        "Without the change these are skipped or not there: tests/test_new.py::test_any[",
    ),
}


@pytest.mark.parametrize("name", UNTESTED)
async def test_untested_work_is_refused_with_the_missing_tests(name: str, tmp_path: Path) -> None:
    edits, reason = UNTESTED[name]
    verdict = await work(tmp_path, edits)
    assert not verdict.accepted
    assert reason in verdict.text


async def test_a_refusal_explains_how_to_prove_a_refactoring_or_only_tests(
    tmp_path: Path,
) -> None:
    zero = {"tests/test_new.py": "from calc import add\n\ndef test_zero(): assert add(0, 0) == 0\n"}
    edits = {"calc.py": CALC.replace("return a + b", "return sum((a, b))"), **zero}
    assert "`bae team tasks edit TASK --test TEST`" in (await work(tmp_path / "1", edits)).text
    assert "`bae team tasks edit TASK --kind test`" in (await work(tmp_path / "2", zero)).text


async def test_a_task_for_tests_needs_new_passing_tests(tmp_path: Path) -> None:
    new = "from calc import add\n\ndef test_negative():\n    assert add(-1, 1) == 0\n"
    verdict = await work(tmp_path / "1", {"tests/test_new.py": new}, kind="test")
    assert verdict.accepted, verdict.text
    verdict = await work(tmp_path / "2", {"tests/check_new.py": new}, kind="test")
    assert "collects no test of them: tests/check_new.py" in verdict.text
    verdict = await work(tmp_path / "3", {"tests/test_calc.py": TESTS + "# x\n"}, kind="test")
    assert "at least one new test that passes." in verdict.text


FIX = "def fix(monkeypatch):\n    monkeypatch.setattr('calc.x', 1, raising=False)\n"
FAILING = {**FILES, "test_more.py": "def test_x(): from calc import x\n"}


async def test_passing_named_tests_prove_work_while_others_may_fail_as_before(
    tmp_path: Path,
) -> None:
    files = {**FAILING, "test_other.py": "def test_y(): from calc import y\n"}
    edits = {"calc.py": CALC + "x = 1\n"}
    verdict = await work(tmp_path, edits, files, tests=["test_more.py"])
    assert verdict.accepted, verdict.text
    assert len(verdict.report.of("failed")) == 1


@pytest.mark.parametrize(
    "mark", ["import pytest\n@pytest.mark.skip\n", "import pytest\n@pytest.mark.xfail\n", None]
)
async def test_a_named_test_that_is_skipped_expected_to_fail_or_missing_is_refused(
    mark: str | None, tmp_path: Path
) -> None:
    test = FAILING["test_more.py"]
    edits = {"calc.py": CALC + "# x\n", "test_more.py": None if mark is None else mark + test}
    planned = {"tests": ["test_more.py::test_x"], "may": "change-tests"}
    verdict = await work(tmp_path, edits, FAILING, **planned)
    assert "no test of test_more.py::test_x has passed" in verdict.text


@pytest.mark.parametrize(
    "above", ["import calc\ncalc.x = 1\n", "import pytest\n@pytest.fixture(autouse=True)\n" + FIX]
)
@pytest.mark.parametrize("more", [{}, {"tests/test_new.py": "def test_n(): pass\n"}])
async def test_a_named_test_must_pass_unchanged(
    above: str, more: dict[str, str], tmp_path: Path
) -> None:
    edits = {"test_more.py": above + FAILING["test_more.py"], "calc.py": CALC + "# x\n", **more}
    verdict = await work(tmp_path, edits, FAILING, tests=["test_more.py::test_x"])
    assert "do not pass as they were before it" in verdict.text
    verdict = await work(
        tmp_path / "right", {**edits, "calc.py": CALC + "x = 1\n"}, FAILING, tests=["test_more.py"]
    )
    assert verdict.accepted, verdict.text


async def test_a_named_test_may_have_waited_for_a_new_fixture(tmp_path: Path) -> None:
    files = {**FILES, "tests/test_more.py": "def test_one(one): assert one == 1\n"}
    fixture = "import pytest\n\n@pytest.fixture\ndef one(): return 1\n"
    edits = {
        "tests/conftest.py": fixture,
        "tests/test_more.py": files["tests/test_more.py"] + "#\n",
    }
    verdict = await work(tmp_path, edits, files, tests=["tests/test_more.py"])
    assert verdict.accepted, verdict.text


async def test_a_named_test_that_the_work_adds_is_a_new_test(tmp_path: Path) -> None:
    named = {"tests": ["tests/test_new.py::test_sub"]}
    trivial = {"tests/test_new.py": "def test_sub(): pass\n"}
    verdict = await work(tmp_path / "1", trivial, **named)
    assert "Nothing tests this work" in verdict.text
    verdict = await work(tmp_path / "2", NEW, **named)
    assert verdict.accepted, verdict.text


async def test_code_with_examples_in_its_docstrings_is_code(tmp_path: Path) -> None:
    example = 'def one():\n    """\n    >>> one()\n    1\n    """\n    return 1\n'
    files = {**FILES, "calc.py": CALC + "\n\n" + example}
    files["pytest.ini"] = "[pytest]\naddopts = --doctest-modules\n"
    wrong = files["calc.py"].replace(
        "    return a + b", "    if a == 1: return 9\n    return a + b"
    )
    patch = "import calc\ncalc.add = add = lambda a, b: a + b\n"
    tests = TESTS.replace("\nNUMBERS", f"\n{patch}\nNUMBERS")
    edits = {"calc.py": wrong, "tests/test_calc.py": tests, "shop.py": "sub = 1\n"}
    edits["tests/test_new.py"] = "def test_new():\n    from shop import sub\n    assert sub\n"
    verdict = await work(tmp_path / "1", edits, files)
    assert "tests as they were before this task" in verdict.text
    right = {**NEW, "calc.py": files["calc.py"].replace("return a + b", "return b + a") + SUB}
    verdict = await work(tmp_path / "2", right, files)
    assert verdict.accepted, verdict.text


async def test_an_earlier_failing_test_proves_work_only_if_it_is_named(tmp_path: Path) -> None:
    verdict = await work(tmp_path, {"calc.py": CALC + "x = 1\n"}, FAILING)
    assert "Tests that failed before pass now: test_more.py::test_x" in verdict.text
    assert not verdict.accepted


async def test_work_without_tests_may_change_only_text_and_approved_files(
    tmp_path: Path,
) -> None:
    docs = {"README.md": "# Calc\n", "docs/guide.md": "x\n"}
    verdict = await work(tmp_path / "1", docs, proof="none")
    assert verdict.accepted, verdict.text
    edits = {**docs, "calc.py": CALC + "# x\n"}
    verdict = await work(tmp_path / "2", edits, proof="none")
    assert "it changes calc.py: restore" in verdict.text
    verdict = await work(tmp_path / "3", edits, proof="none", files=["calc.py"])
    assert verdict.accepted, verdict.text
    verdict = await work(tmp_path / "4", edits, proof="none", files=["calc.py"], kind="docs")
    assert "it changes calc.py" in verdict.text
    verdict = await work(tmp_path / "5", {"calc.py": WRONG}, proof="none", files=["calc.py"])
    assert "tests that passed before do not pass now: tests/test_calc.py::test_add" in verdict.text


def test_prose_is_not_confused_with_files_that_programs_read() -> None:
    prose = "README.md LICENSE docs/a.rst docs/pictures/a.svg docs/data.json notes.txt"
    assert all(map(is_prose, prose.split()))
    code = (
        "requirements.txt a.json .github/x.md docs/conf.py setup.cfg Makefile a.svg CMakeLists.txt"
    )
    assert not any(map(is_prose, code.split()))


# --- honest changes -------------------------------------------------------------------------------

HONEST: dict[str, dict[str, str | None]] = {
    "a new file of tests": NEW,
    "a test at the end of a file": {"calc.py": SUB, "tests/test_calc.py": TESTS + TEST_SUB},
    "a test between others, with a new import": {
        "calc.py": SUB,
        "tests/test_calc.py": TESTS.replace("import add, old", "import add, old, sub").replace(
            "def test_add", "def test_sub():\n    assert sub(2, 1) == 1\n\n\ndef test_add"
        ),
    },
    "a case of a parametrized test": {
        "calc.py": CALC.replace("return a + b", "return a + b if b else a"),
        "tests/test_calc.py": TESTS.replace('"n", [1, 2])', '"n", [1, 2, "x"])'),
    },
    "a method of a test class": {
        "calc.py": SUB,
        "tests/test_calc.py": TESTS.replace(
            'basket["apple"], 1) == 2\n',
            'basket["apple"], 1) == 2\n\n    def test_sub(self, basket):\n'
            '        from calc import sub\n        assert sub(basket["apple"], 1) == 0\n',
        ),
    },
    "an extended fixture": {
        "calc.py": SUB,
        "tests/test_calc.py": TESTS.replace('{"apple": 1}', '{"apple": 1, "pear": 2}')
        + "\n\ndef test_sub(basket):\n    from calc import sub\n"
        '    assert sub(basket["pear"], 1) == 1\n',
    },
    "a fixture in conftest.py": {
        "calc.py": SUB,
        "conftest.py": "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n",
        "tests/test_new.py": "from calc import sub\n\ndef test_sub(two): assert sub(two, 1) == 1\n",
    },
    "a new conftest.py": {
        "calc.py": SUB,
        "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n",
        "tests/test_new.py": "from calc import sub\n\ndef test_sub(two): assert sub(two, 1) == 1\n",
    },
    "data of tests": {
        "calc.py": SUB,
        "tests/data/numbers.json": "[2, 1]\n",
        "tests/test_new.py": "import json, pathlib\nfrom calc import sub\n\ndef test_sub():\n"
        "    text = pathlib.Path(__file__).with_name('data') / 'numbers.json'\n"
        "    assert sub(*json.loads(text.read_text())) == 1\n",
    },
    "a helper of tests": {
        "calc.py": SUB,
        "tests/helpers.py": "TWO = 2\n",
        "tests/test_new.py": "from helpers import TWO\nfrom calc import sub\n\n"
        "def test_sub(): assert sub(TWO, 1) == 1\n",
    },
    "a regression test that passes before, beside one that fails": {
        "calc.py": SUB,
        "tests/test_new.py": "from calc import add\n\ndef test_zero(): assert add(0, 0) == 0\n"
        + TEST_SUB,
    },
    "a skipped test beside one that fails": {
        "calc.py": SUB,
        "tests/test_new.py": "import pytest\n\n@pytest.mark.skip\ndef test_later(): pass\n"
        + TEST_SUB,
    },
    "a test class with set-up of its own": {
        "calc.py": SUB,
        "tests/test_new.py": "import unittest\nfrom calc import sub\n\n"
        "class TestSub(unittest.TestCase):\n    def setUp(self): self.two = 2\n"
        "    def test_sub(self): self.assertEqual(sub(self.two, 1), 1)\n",
    },
    "comments and an order of imports": {
        "calc.py": SUB,
        "tests/test_calc.py": "# Tests of calc.\nimport os\n" + TESTS + TEST_SUB,
    },
    "an automatic fixture of a new file": {
        "calc.py": SUB,
        "tests/test_new.py": "import pytest\n\n@pytest.fixture(autouse=True)\ndef quiet(): yield\n"
        + TEST_SUB,
    },
    "a command line program that exits when it is run": {
        "calc.py": SUB + "\n\ndef main():\n    import sys\n    sys.exit(0)\n\n\n"
        'if __name__ == "__main__":\n    raise SystemExit(main())\n',
        "tests/test_new.py": TEST_SUB,
    },
    "settings of the project that are not those of tests": {
        **NEW,
        "pyproject.toml": '[project]\nname = "calc"\nversion = "1"\n',
        "package.json": '{"scripts": {"build": "tsc"}}\n',
    },
}


@pytest.mark.parametrize("name", HONEST)
async def test_honest_work_is_accepted(name: str, tmp_path: Path) -> None:
    verdict = await work(tmp_path, HONEST[name])
    assert verdict.accepted, verdict.text
    assert verdict.concerns == ()


async def test_characterization_tests_of_a_refactoring_are_accepted_by_named_tests(
    tmp_path: Path,
) -> None:
    edits = {
        "calc.py": CALC.replace("return a + b", "return sum((a, b))"),
        "tests/test_new.py": "from calc import add\n\ndef test_zero(): assert add(0, 0) == 0\n",
    }
    verdict = await work(tmp_path, edits, tests=["tests/test_calc.py"])
    assert verdict.accepted, verdict.text


# --- tests that are not Python functions ----------------------------------------------------------

DOCTESTS = (*PYTEST, "--doctest-modules", "--doctest-glob=*.md")
ROMAN = '''"""Roman numbers.

>>> to_roman(2)
'II'
"""

LONGEST = 3


def to_roman(n):
    """
    >>> to_roman(3)
    'III'
    """
    return "I" * n


class Old:
    def name(self):
        """
        >>> Old().name()
        'old'
        """
        return "old"
'''
EXAMPLES = {
    "shop/__init__.py": "",
    "shop/roman.py": ROMAN,
    "README.md": "# Shop\n\n    >>> from shop.roman import to_roman\n"
    "    >>> to_roman(1)\n    'I'\n",
}
FOUR = ROMAN.replace("LONGEST = 3", "LONGEST = 4").replace(
    'return "I" * n', 'return "IV" if n == LONGEST else "I" * n'
)
TEST_FOUR = "from shop.roman import to_roman\n\ndef test_four(): assert to_roman(4) == 'IV'\n"


@pytest.mark.parametrize(
    "edits",
    [
        {"shop/roman.py": FOUR, "tests/test_roman.py": TEST_FOUR},
        {"shop/roman.py": FOUR.replace("'III'\n", "'III'\n    >>> to_roman(4)\n    'IV'\n")},
        {"shop/roman.py": FOUR.replace("'II'\n", "'II'\n>>> to_roman(4)\n'IV'\n")},
        {
            "shop/roman.py": ROMAN
            + '\n\ndef from_roman(t):\n    """\n    >>> from_roman("II")\n    2\n    """\n'
            "    return len(t)\n"
        },
        {"shop/arabic.py": '"""\n>>> from shop.arabic import two\n>>> two\n2\n"""\ntwo = 2\n'},
        {
            "shop/roman.py": FOUR,
            "README.md": "# The shop\n\n    >>> from shop.roman import to_roman\n"
            "    >>> to_roman(1)\n    'I'\n    >>> to_roman(4)\n    'IV'\n",
        },
    ],
    ids=[
        *("code beside examples", "an example", "an example of a module"),
        *(
            "a new function",
            "a new module",
            "an example of a text",
        ),
    ],
)
async def test_examples_in_docstrings_are_tests_that_prove_the_code_around_them(
    edits: dict[str, str | None], tmp_path: Path
) -> None:
    verdict = await work(tmp_path, edits, EXAMPLES, DOCTESTS)
    assert verdict.accepted, verdict.text


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (FOUR, "Nothing tests this work"),
        (
            FOUR.replace("'III'\n", "'III'\n    >>> to_roman(1)\n    'I'\n"),
            "Nothing tests this work",
        ),
        (
            FOUR + '\n\ndef new():\n    """\n    >>> 1 + 1\n    2\n    """\n',
            "Without the change these are skipped or not there: shop/roman.py::shop.roman.new",
        ),
        (
            FOUR.replace("to_roman(3)\n    'III'", "to_roman(4)\n    'IV'"),
            "shop/roman.py: an example was changed or removed",
        ),
        (
            FOUR.replace("to_roman(2)", "to_roman(2)  # doctest: +SKIP"),
            "shop/roman.py: an example was changed or removed",
        ),
    ],
)
async def test_existing_examples_must_stay_and_do_not_prove_other_work(
    after: str, reason: str, tmp_path: Path
) -> None:
    verdict = await work(tmp_path, {"shop/roman.py": after}, EXAMPLES, DOCTESTS)
    assert reason in verdict.text


def test_code_with_examples_is_shown_to_a_person_like_other_code() -> None:
    seen = report(**{"shop/roman.py::shop.roman.to_roman": "passed"})
    assert find_concerns([change("shop/roman.py", ROMAN, f"import pytest\n{ROMAN}")], seen)


GOLDEN = {
    **FILES,
    "report.py": "def render():\n    return 'a'\n",
    "tests/golden/report.txt": "a",
    "tests/test_report.py": "import pathlib\nfrom report import render\n\ndef test_report():\n"
    "    golden = pathlib.Path(__file__).parent / 'golden' / 'report.txt'\n"
    "    assert render() == golden.read_text()\n",
}


async def test_changed_data_of_a_test_proves_the_work_that_needs_it(tmp_path: Path) -> None:
    edits = {"report.py": "def render():\n    return 'a b'\n", "tests/golden/report.txt": "a b"}
    verdict = await work(tmp_path / "1", edits, GOLDEN, may="change-tests")
    assert verdict.accepted, verdict.text
    verdict = await work(tmp_path / "2", edits, GOLDEN)
    assert "before do not pass now: tests/test_report.py::test_report" in verdict.text
    assert "--may change-tests" in verdict.text
    unrelated = {"report.py": GOLDEN["report.py"] + "x = 1\n", "tests/golden/other.txt": "c"}
    verdict = await work(tmp_path / "3", unrelated, GOLDEN, may="change-tests")
    assert "Nothing tests this work" in verdict.text


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_new_assertion_in_an_existing_test_proves_work(
    is_last: bool, tmp_path: Path
) -> None:
    line, added = "    assert add(1, 1) == 2\n", "    assert add(None, 1) == 1\n"
    more = TESTS.replace(line, line + added if is_last else added + line, 1)
    code = CALC.replace("a + b", "(a or 0) + b")
    verdict = await work(tmp_path, {"calc.py": code, "tests/test_calc.py": more})
    assert verdict.problems == ()


@pytest.mark.parametrize(
    "added",
    ["add = max", "yield", "import calc as add", "global add", "def add(a, b): pass", "del add"],
)
def test_a_new_line_that_alters_others_counts_as_a_changed_test(added: str) -> None:
    before = "from calc import add\n\n\ndef test_a():\n    assert add(1, 1) == 2\n"
    change = FileChange("tests/test_a.py", before.encode(), f"{before}    {added}\n".encode())
    edits = find_edits([change], ["tests/test_a.py"], "add-tests")
    assert "test_a was changed" in str(edits.problems)
    first = before.replace("    assert", "    print(add)\n    assert")
    change = FileChange("tests/test_a.py", before.encode(), first.encode())
    edits = find_edits([change], ["tests/test_a.py"], "add-tests")
    assert "test_a was changed" in str(edits.problems)  # only assertions may be between


async def test_a_test_that_does_not_load_without_the_work_is_not_a_new_test(tmp_path: Path) -> None:
    edits = {"calc.py": SUB, "tests/test_calc.py": f"from calc import sub\n{TESTS}"}
    assert "Nothing tests this work" in (await work(tmp_path, edits)).text


@pytest.mark.parametrize(
    "mark", ["@pytest.mark.skip(reason='later')", "@pytest.mark.xfail", "@unittest.skip('later')"]
)
async def test_a_test_that_is_no_longer_skipped_proves_the_work(mark: str, tmp_path: Path) -> None:
    test = f"{mark}\ndef test_sub():\n    import calc\n    assert calc.sub(2, 1) == 1\n"
    files = {**FILES, "tests/test_sub.py": f"import unittest\nimport pytest\n\n\n{test}"}
    edits = {"calc.py": SUB, "tests/test_sub.py": test.removeprefix(f"{mark}\n")}
    verdict = await work(tmp_path, edits, files)
    assert verdict.accepted, verdict.text


# --- levels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "accepted"),
    [
        ('return {"apple": 1}', 'yield {"apple": 1}\n    print("cleaned")', True),
        ('return {"apple": 1}', 'things = {"apple": 1}\n    yield things', False),
        ('return {"apple": 1}', 'yield {"apple": 2}\n    print("cleaned")', False),
    ],
)
def test_a_task_may_add_a_cleanup_to_a_fixture(old: str, new: str, accepted: bool) -> None:
    edited = change("tests/test_calc.py", TESTS, TESTS.replace(old, new))
    edits = find_edits([edited], [*FILES], "add-tests", report(), command=PYTEST)
    assert (edits.problems == ()) is accepted


async def test_a_folder_that_replaces_a_file_is_judged_like_other_changes(
    tmp_path: Path,
) -> None:
    in_place = {"tests/test_calc.py": None, "tests/test_calc.py/x.txt": "x"}
    refused = await work(tmp_path / "refused", {**NEW, **in_place})
    assert not refused.accepted
    assert "tests/test_calc.py: it was deleted" in refused.text

    has = {**FILES, "sub": "a script"}
    tested = {"sub": None, "sub/test_sub.py": TEST_SUB, "calc.py": SUB}
    accepted = await work(tmp_path / "accepted", tested, has)
    assert accepted.accepted, accepted.text


async def test_a_permission_level_lets_a_task_change_tests_or_their_setup(tmp_path: Path) -> None:
    edits = {"tests/test_calc.py": TESTS.replace("[1, 2]", "[3]"), **NEW}
    verdict = await work(tmp_path / "1", edits)
    assert "tests/test_calc.py: " in verdict.text
    assert "--may change-tests" in verdict.text
    verdict = await work(tmp_path / "2", edits, may="change-tests")
    assert verdict.accepted, verdict.text
    verdict = await work(tmp_path / "3", edits, edits_tests=True)
    assert verdict.accepted, verdict.text
    edits = {**NEW, "pytest.ini": "[pytest]\naddopts = -q\n"}
    verdict = await work(tmp_path / "4", edits, may="change-tests")
    assert "pytest.ini decides how tests are run" in verdict.text
    verdict = await work(tmp_path / "5", edits, may="change-test-setup")
    assert verdict.accepted, verdict.text


# --- cheats ---------------------------------------------------------------------------------------

SWAPS = "import calc\ncalc.add = lambda a, b: a + b\n"
REPORT = (
    'import os, sys\npath = next(a for a in sys.argv if a.startswith("--junit-xml="))\n'
    "with open(path.partition('=')[2], 'w') as file:\n    file.write('<testsuite>'"
)
CHEATS: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "skipped by the code": (
        {"calc.py": "import pytest\n\ndef add(a, b):\n    pytest.skip()\nold = add\n"},
        ["skipped now: tests/test_calc.py::test_add"],
    ),
    "the expected value is changed": (
        {"tests/test_calc.py": TESTS.replace("1) == 2\n\n\n@", "1) == 0\n\n\n@")},
        ["test_add was changed", "assert 0 == 2"],  # which is what the test of the base says
    ),
    "an assertion is dropped": (
        {"tests/test_calc.py": TESTS.replace("    assert add(1, 1) == 2", "    pass")},
        ["test_add was changed"],
    ),
    "a test is defined once more": (
        {"tests/test_calc.py": TESTS + "\n\ndef test_add():\n    pass\n"},
        ["test_add was changed"],
    ),
    "a test imports from elsewhere": (
        {
            "tests/test_calc.py": TESTS.replace(
                "from calc import add, old", "from fake import add, old"
            ),
            "fake.py": CALC,
        },
        ["the import of add was changed"],
    ),
    "a test is removed": (
        {"tests/test_calc.py": TESTS[: TESTS.index("\n\ndef test_old")]},
        ["test_old was removed"],
    ),
    "a file of tests is removed": ({"tests/test_calc.py": None}, ["was deleted"]),
    "tests are ignored by conftest": (
        {"conftest.py": "collect_ignore = ['tests']\n", "test_a.py": "def test_a(): pass\n"},
        ["conftest.py has collect_ignore"],
    ),
    "a hook of conftest": (
        {"conftest.py": "def pytest_collection_modifyitems(items): items[:] = []\n"},
        ["conftest.py has pytest_collection_modifyitems"],
    ),
    "an automatic fixture of conftest": (
        {
            "conftest.py": "import pytest\n\n@pytest.fixture(autouse=True)\ndef fix():\n"
            + "    import calc\n    calc.add = lambda a, b: a + b\n"
        },
        ["conftest.py has fix, which would run around every test"],
    ),
    "a plugin": (
        {"tests/test_new.py": "pytest_plugins = ['evil']\n", "evil.py": ""},
        ["tests/test_new.py has pytest_plugins"],
    ),
    "settings": ({"pytest.ini": "[pytest]\naddopts = -k nothing\n"}, ["decides how tests are run"]),
    "a new test replaces the code for the others": (
        {"tests/test_a.py": SWAPS + TEST_SUB, "calc.py": WRONG + SUB[len(CALC) :]},
        ["With the tests as they were before this task", "tests/test_calc.py::test_add"],
    ),
    "a fixture replaces the code": (
        {
            "conftest.py": SWAPS,
            "calc.py": WRONG + SUB[len(CALC) :],
            "tests/test_new.py": TEST_SUB,
        },
        ["With the tests as they were before this task"],
    ),
    "a file beside tests takes the place of the code": (
        {"tests/calc.py": CALC, "tests/test_new.py": TEST_SUB},
        ["in place of the project's calc"],
    ),
    "a file takes the place of a module of Python": (
        {"tests/json.py": "", **NEW},
        ["in place of Python's own module"],
    ),
    "a file takes the place of pytest": ({"pytest.py": ""}, ["take the place of the test program"]),
    "exit 0 in a new test": ({"test_a.py": "import os\nos._exit(0)\n"}, ["wrote no report"]),
    "exit 0 in the code": ({"calc.py": "import os\nos._exit(0)\n"}, ["wrote no report"]),
    "tests rewritten while they run": (
        {
            "calc.py": WRONG
            + '\nimport os\ntry:\n    open("tests/test_calc.py", "w").write("def test_add(): 1")\n'
            "except OSError as error:\n    print(error)\n"
            'os.rename("tests", "x")\nos.mkdir("tests")\n'
        },
        ["tests/test_calc.py: written while the tests ran"],
    ),
}


@pytest.mark.parametrize("name", CHEATS)
async def test_cheating_is_refused(name: str, tmp_path: Path) -> None:
    edits, reasons = CHEATS[name]
    verdict = await work(tmp_path, {"calc.py": WRONG, **edits})
    assert not verdict.accepted
    for reason in reasons:
        assert reason in verdict.text


SHOWN: dict[str, tuple[dict[str, str], list[tuple[str, str]]]] = {
    "a report that the code writes": (
        {
            **NEW,
            "calc.py": SUB + f"\n\ndef forge():\n    {REPORT.splitlines()[0]}\n    os._exit(0)\n",
        },
        [("calc.py", "ends the process with os._exit")],
    ),
    "code that patches the test program": (
        {**NEW, "calc.py": "import _pytest.python\n" + SUB},
        [("calc.py", "imports _pytest")],
    ),
    "code that patches unittest": (
        {**NEW, "calc.py": "from unittest import TestCase\n" + SUB},
        [("calc.py", "imports unittest")],
    ),
    "code that exits when it is imported by another program": (
        {**NEW, "cli.py": "import sys\n\nif len(sys.argv) > 9:\n    sys.exit(0)\n"},
        [("cli.py", "ends the process while it is imported")],
    ),
}


@pytest.mark.parametrize("name", SHOWN)
async def test_code_that_could_influence_its_tests_is_shown_to_a_person(
    name: str, tmp_path: Path
) -> None:
    edits, concerns = SHOWN[name]
    verdict = await work(tmp_path, edits)
    assert verdict.accepted, verdict.text
    assert list(verdict.concerns) == concerns
    assert verdict.digest


PASSES: dict[str, dict[str, str]] = {
    "a test that reads the code instead of running it": {
        "calc.py": CALC + "# sub is done\n",
        "tests/test_new.py": "def test_sub(): assert 'sub is done' in open('calc.py').read()\n",
    },
    "code that does only what the tests check": {
        "calc.py": CALC + "\n\ndef sub(a, b):\n    return 1\n",
        "tests/test_new.py": TEST_SUB,
    },
    "values that equal everything": {
        "calc.py": CALC
        + "\n\nclass Yes:\n    def __eq__(self, other): return True\n\n\n"
        + "def sub(a, b):\n    return Yes()\n",
        "tests/test_new.py": TEST_SUB,
    },
    "a test program that is imported by a name in a text": {
        "calc.py": SUB + "\nimport importlib\nimportlib.import_module('py' + 'test')\n",
        "tests/test_new.py": TEST_SUB,
    },
    "a mark in the code that tests run": {
        "calc.py": SUB + "\nimport sys\nIN_TESTS = 'pytest' in sys.modules\n",
        "tests/test_new.py": TEST_SUB,
    },
}
"""What passes, as the documentation says: a person reads the diff."""


@pytest.mark.parametrize("name", PASSES)
async def test_documented_gaps_of_the_check_are_real_gaps(name: str, tmp_path: Path) -> None:
    verdict = await work(tmp_path, PASSES[name])
    assert verdict.accepted, verdict.text
    assert verdict.concerns == ()


# --- Node -----------------------------------------------------------------------------------------

MORE = SUM + "exports.sub = (a, b) => a - b;\n"
SUBTRACTS = 'test("subtracts", () => equal(require("./sum.js").sub(2, 1), 1));\n'
GROUPED = """const { test, describe, it } = require("node:test");
const { equal } = require("node:assert");
describe("sums", () => {
  it("adds", () => equal(require("./sum.js").add(1, 1), 2));
});
"""


@needs_node
async def test_work_on_a_node_project_is_judged_in_the_same_way(tmp_path: Path) -> None:
    edits = {"sum.js": MORE, "sum.test.js": SUM_TEST + SUBTRACTS}
    verdict = await work(tmp_path / "1", edits, JAVASCRIPT, NODE)
    assert verdict.accepted, verdict.text
    names = [case.id for case in verdict.report.of("passed")]
    assert names == ["sum.test.js::adds", "sum.test.js::subtracts"]
    inside = GROUPED.replace("2));\n});", f"2));\n  {SUBTRACTS}}});")
    files = {"sum.js": SUM, "sum.test.js": GROUPED}
    verdict = await work(tmp_path / "2", {"sum.js": MORE, "sum.test.js": inside}, files, NODE)
    assert verdict.accepted, verdict.text
    assert "sum.test.js::sums::subtracts" in [case.id for case in verdict.report.of("passed")]
    files = {**JAVASCRIPT, "old.js": "exports.a = 1;\n"}
    files["old.test.js"] = 'require("node:test")("a", () => require("./old.js").a);\n'
    removed: dict[str, str | None] = {"old.js": None, "old.test.js": None}
    verdict = await work(tmp_path / "3", {**edits, **removed}, files, NODE, may="change-tests")
    assert verdict.accepted, verdict.text


@needs_node
@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"sum.js": SUM + "// sub is done\n"}, "Nothing tests this work"),
        (
            {"sum.js": MORE, "checks/sub.js": SUBTRACTS},
            "collects no test of them: checks/sub.js",
        ),
        ({"sum.test.js": SUM_TEST.replace("1), 2", "1), 0")}, "were changed or removed"),
        ({"sum.test.js": SUM_TEST.replace('s", (', 's", { skip: true }, (')}, "skipped now"),
        ({"sum.test.js": None, "a.test.js": 'require("node:test")("a", () => {});\n'}, "deleted"),
        ({"sum.js": "process.exit(0);\n"}, "no tests were found"),
        ({"sum.test.js": SUM_TEST + "process.exit(0);\n"}, "no tests were found"),
        (
            {"sum.js": "process.argv[1].endsWith('m.test.js') && process.exit(0);\n" + SUM}
            | {"a.test.js": 'require("node:test")("adds", () => {});\n'},
            "not run any more: sum.test.js::adds;",
        ),
        ({"node_modules/node/index.js": "x\n"}, "take the place of the test program"),
    ],
)
async def test_cheating_with_node_is_not_accepted(
    edits: dict[str, str | None], reason: str, tmp_path: Path
) -> None:
    edits = {"sum.js": SUM.replace("+", "-"), **edits}
    verdict = await work(tmp_path, edits, JAVASCRIPT, NODE)
    assert not verdict.accepted
    assert reason in verdict.text


@needs_node
async def test_the_docs_say_that_a_replaced_assertion_is_not_detected(
    tmp_path: Path,
) -> None:
    wrong = MORE.replace("a - b", "a + b") + 'require("node:assert").equal = () => {};\n'
    test = """const assert = require("node:assert");
const { sub } = require("./sum.js");
require("node:test")("subtracts", () => assert.equal(sub(2, 1), 1));
"""
    verdict = await work(tmp_path, {"sum.js": wrong, "sub.test.js": test}, JAVASCRIPT, NODE)
    assert verdict.accepted, verdict.text
    assert verdict.concerns == ()


# --- rules ----------------------------------------------------------------------------------------


def report(**outcomes: Any) -> TestReport:
    cases = tuple(TestCase(id=name, outcome=outcome) for name, outcome in outcomes.items())
    return TestReport(command=("x",), exit_code=0, cases=cases)


def change(path: str, before: str | None, after: str | None) -> FileChange:
    return FileChange(path, before and before.encode(), after and after.encode())


@pytest.mark.parametrize(
    ("path", "before", "after", "refused"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n', '[project]\nname = "y"\n', False),
        ("pyproject.toml", "", '[tool.pytest.ini_options]\naddopts = "-k a"\n', True),
        ("pyproject.toml", "", "[tool.pytest", True),
        ("package.json", '{"dependencies": {}}', '{"dependencies": {"a": "1"}}', False),
        ("package.json", "{}", '{"scripts": {"test": "true"}}', True),
        ("package.json", "{}", '{"scripts": {"build": "tsc"}}', False),
        ("setup.cfg", "[x]\n", "[tool:pytest]\naddopts = -k a\n", True),
        ("tox.ini", None, "[testenv]\na = b\n", False),
        ("app/conftest.py", None, "def two(): return 2\n", False),
        ("vitest.config.ts", "a", "b", True),
        ("sitecustomize.py", None, "x = 1\n", True),
        ("node_modules/jest/index.js", None, "x", True),
        ("src/pytest/__init__.py", None, "x = 1\n", True),
        ("a.test.js", "test(1);\n", "test(1);\ntest(2);\n", False),
        ("a.test.js", "test(1);\n", "test(0);\ntest(1);\n", False),
        ("a.test.js", "test(1);\n", "test(0);\n", True),
        ("a.test.js", "// one\ntest([1]);\n", "// two\ntest([1, 2]);\n", False),
        ("a.test.js", "it.skip(1);\n", "it(1);\n", False),
        (
            "a.test.js",
            'import { it, test } from "node:test";\nimport { a } from "./a.js";\nit(a);\n',
            'import {\n a,\n b,\n} from "./a.js";\nimport { test, it } from "node:test";\nit(a);\n',
            False,
        ),
        ("a.test.js", 'import a from "./a";\nit(a);', 'import a from "./b";\nit(a);', True),
        ("a.test.js", 'const { a } = require("./a");\nit(a);', "it(a);", True),
        (
            "a.test.js",
            'const { a } = require("./a");\nit(a);',
            "const { b, a } = require('./a');\nit(a);",
            False,
        ),
        ("tests/__snapshots__/a.snap", "1", "2", True),
        ("tests/test_a.py", "def test_a(): pass\n", None, True),
        ("tests/test_a.py", "def test_a(): pass\n", "def (", True),
        ("test_a.py", "from a import b\nb()\n", "from a import b\nimport c as b\nb()\n", True),
        ("tests/data.json", '{"a": 1}', '{"a": 1, "b": 2}', False),
        ("src/app.py", "1", "2", False),
        ("argparse.py", None, "x = 1\n", True),
        ("src/hooks.py", "def pytest_x(): 1\n", "def pytest_x(): 2\n", False),
        ("tests/hooks.py", None, "def pytest_x(): 1\n", True),
        ("tests/conftest.py", None, "from hooks import pytest_x\n", True),
        ("tests/conftest.py", None, "if 1:\n    def pytest_x(): 1\n", True),
        ("tests/conftest.py", None, "def one():\n    def pytest_x(): 1\n", False),
        (".babelrc.js", None, "x", True),
        ("src/own-1.dist-info/entry_points.txt", None, "[pytest11]\nown = own", True),
        ("web/.swcrc", None, "{}", True),
        ("package.json", "{}", '{"babel": {"plugins": ["./x"]}}', True),
        ("__mocks__/axios.js", "a", "b", True),
        ("__mocks__/axios.js", None, "b", False),
        ("tests/test_new.py", None, "def test_a(): pass", False),
        ("tests/shop.py", None, "x = 1", True),
        ("tests/unit/shop/__init__.py", None, "x = 1", True),
        ("tests/helpers.py", None, "x = 1", False),
    ],
)
def test_a_task_may_not_change_the_test_setup(
    path: str, before: str | None, after: str | None, refused: bool
) -> None:
    files = ["src/shop/cart.py", "src/shop/__init__.py"]
    edits = find_edits([change(path, before, after)], files, "add-tests", report(a="passed"))
    assert bool(edits.problems) == refused, edits


def test_a_task_may_not_change_tests_of_any_file_that_the_report_names() -> None:
    edited = change("checks/calc.py", "def test_a(): assert 0", "def test_a(): assert 1")
    passed = report(**{"checks/calc.py::test_a": "passed"})
    [problem] = find_edits([edited], (), "add-tests", passed).problems
    assert "test_a was changed" in problem


@pytest.mark.parametrize("name", ["test_a", "check_a", "it_adds"])
def test_a_test_with_a_custom_name_keeps_its_statements(name: str) -> None:
    text = "class Adding:\n    def {}(self):\n        {}assert add(1, 1) == 2\n"
    passed = report(**{f"checks/calc.py::Adding::{name}[1::2]": "passed"})
    for added, is_refused in (("return\n        ", True), ("assert add\n        ", False)):
        edited = change("checks/calc.py", text.format(name, ""), text.format(name, added))
        problems = find_edits([edited], (), "add-tests", passed).problems
        assert [f"{name} was changed" in problem for problem in problems] == [True] * is_refused


def test_no_task_may_replace_the_test_program() -> None:
    edits = find_edits([change("pytest.py", None, "x")], (), "change-test-setup")
    assert "take the place" in edits.problems[0]


@pytest.mark.parametrize("path", ["api/pytest/__init__.py", "api/src/_pytest.py", "api/json.py"])
def test_no_new_file_in_the_test_folder_may_shadow_a_module(path: str) -> None:
    edits = find_edits([change(path, None, "x")], (), "change-test-setup", folder="api")
    assert "place of" in edits.problems[0]
    assert find_edits([change(path, None, "x")], (), "add-tests").problems == ()


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("python tools/run.py", "api/tools/run.py"),
        ("pytest -c tools/unit.ini", "api/tools/unit.ini"),
        ("vitest run --config=./unit.config.ts", "api/unit.config.ts"),
        ("node --import ./hook.mjs --test", "api/hook.mjs"),
        ("pytest -p tools.plugin", "api/tools/plugin.py"),
    ],
)
def test_files_named_in_the_test_command_belong_to_the_test_setup(command: str, path: str) -> None:
    changes = [change(path, "a = 1\n", "a = 2\n")]
    look = partial(find_edits, changes, (), command=command.split(), folder="api")
    assert "is named by the test command" in look("change-tests").problems[0]
    assert look("change-test-setup").problems == ()
    tests = report(**{f"{path}::test_a": "passed"})
    assert "named by" not in " ".join(look("add-tests", tests).problems)


def test_a_task_may_not_remove_code_that_runs_around_every_test() -> None:
    edited = change("tests/conftest.py", "def pytest_x(): 1\n", "")
    [problem] = find_edits([edited], (), "change-tests").problems
    assert "loses pytest_x" in problem
    assert find_edits([edited], (), "change-test-setup").problems == ()


def test_every_change_of_code_that_supports_tests_is_shown() -> None:
    plugin = "import pytest\n"
    assert find_concerns([change("src/plugin.py", plugin, plugin + "x = 1\n")])
    setup = 'import { vi } from "vitest";\n'
    assert find_concerns([change("setup.ts", setup, setup + "vi.mock('./a');\n")])
    hook = "def pytest_configure(config): pass\n"
    concerns = find_concerns([change("src/plugin.py", hook, hook + "x = 1\n")])
    assert concerns == (("src/plugin.py", "has pytest_configure, a hook of pytest"),)


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("a.py", "def pytest_pyfunc_call(pyfuncitem):\n    return True\n", "pytest_pyfunc_call"),
        ("a.py", "class A:\n    def pytest_runtest_call(self): ...\n", "pytest_runtest_call"),
        ("a.py", "from b import call as pytest_runtest_call\n", "pytest_runtest_call"),
        ("setup.js", "expect.extend({ toBe: () => ({ pass: true }) });\n", "expect.extend"),
        ("setup.ts", "beforeEach(() => {\n  jest.mock('./a');\n});\n", "beforeEach"),
        ("setup.mjs", "globalThis.expect = anything;\n", "expect"),
    ],
)
def test_hooks_and_setup_of_a_test_program_are_shown_without_an_import(
    path: str, code: str, reason: str
) -> None:
    assert reason in " ".join(what for _, what in find_concerns([change(path, None, code)]))


def test_code_that_only_mentions_words_of_test_programs_is_not_shown() -> None:
    code = "def run(pytest_args, test):\n    test.expect = pytest_args\n"
    assert find_concerns([change("a.py", None, code)]) == ()
    code = "const it = items[0];\nvi.translate(it);\nif (it.test(name)) page.test = 1;\n"
    assert find_concerns([change("a.ts", None, code)]) == ()


def test_code_that_already_imported_a_test_program_is_not_shown_again() -> None:
    code = "import unittest\n"
    assert find_concerns([change("a.py", code, code + "x = 1\n")]) == ()
    assert find_concerns([change("test_a.py", None, code)]) == ()
    [(_, what)] = find_concerns([change("a.mjs", None, 'import { test } from "node:test";\n')])
    assert what == "imports node:test"


def test_code_with_invisible_direction_marks_is_shown_to_a_person() -> None:
    code = 'level = "user\u202e \u2066# admin\u2069 \u2066"\n'
    for path in ("shop/access.py", "tests/test_access.py", "web/access.ts"):
        [(shown, what)] = find_concerns([change(path, "level = 1\n", code)])
        assert (shown, "in another order" in what) == (path, True)
    assert find_concerns([change("shop/access.py", code, f"{code}x = 1\n")]) == ()
    assert find_concerns([change("docs/arabic.md", None, code)]) == ()


def test_a_module_that_is_run_as_a_program_may_end_the_process() -> None:
    code = "import sys\nfrom shop import main\n\nsys.exit(main())\n"
    assert find_concerns([change("shop/__main__.py", None, code)]) == ()
    assert find_concerns([change("shop/main.py", None, code)])
    assert find_concerns([change("shop/__main__.py", None, f"import os\nos._exit(0)\n{code}")])


def test_a_file_that_could_not_be_loaded_before_is_not_a_vanished_test() -> None:
    case = TestCase(id="tests/test_a.py", outcome="failed", message=f"{NOT_LOADED}no module")
    before = TestReport(command=("x",), exit_code=1, cases=(case,))
    assert judge(before, report(a="passed")) == ()


def test_a_failing_test_may_not_vanish_either() -> None:
    before = TestReport(command=("x",), exit_code=1, cases=report(a="failed", b="passed").cases)
    assert "not run any more: a;" in " ".join(judge(before, report(b="passed")))


def test_files_of_tests_are_recognized() -> None:
    tests = "tests/a.py test_a.py a/b_test.py a_test.go a.test.tsx b.spec.mjs __tests__/a.js"
    assert all(map(is_test_file, [*tests.split(), "test.js", "test-a.mjs"]))
    assert not any(map(is_test_file, ["a.py", "testing.py", "contest.js", "latest/a.go"]))
