"""Workers in a loop whose LLM misbehaves: the work is contained, a person is asked, and the team is
neither stopped nor left with something that stops its next run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bae.lm import Answer, Backend, Budget, Prompt
from bae.prompts.messages import CallPart
from bae.team import BackendWorkerAgent
from bae.team.acceptance import find_acceptance_problems
from bae.team.budgets import Budgets, begin_run, read_spent
from bae.team.edit_format import EditError, parse_answer
from bae.team.edits import FileChange
from bae.team.files import delete_folder
from bae.team.models import TestReport
from bae.team.reading import CodeTree, find
from bae.team.repository import CodeReader
from bae.team.test_edits import find_concerns, find_edits
from bae.team.trials import run_command
from bae.testing import Call, ScriptedLM
from bae.usage import Usage
from bounded import BOUND
from git_repositories import list_leftovers
from team_parts import FAILING, SUB, a_bench, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
DEEP = "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')\n"


class Calling(Backend):
    """A model with tool calls that answers from a script."""

    calls_tools = True
    model = "scripted"

    def __init__(self, rounds: Sequence[Sequence[tuple[str, dict[str, Any]]] | str]) -> None:
        super().__init__()
        self.rounds = list(rounds)
        self.asked = 0

    async def answer(self, prompt: Prompt) -> Answer:
        said = self.rounds[min(self.asked, len(self.rounds) - 1)]
        self.asked += 1
        if isinstance(said, str):
            return Answer(said, Usage(1))
        calls = tuple(CallPart(f"{self.asked}-{n}", *call) for n, call in enumerate(said))
        return Answer("", Usage(1), calls=calls)


LONG = "".join(f"line {number} of a long file\n" for number in range(2_500))


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        ([[(f"tool{n}", {})] for n in range(9)], "there is no tool"),
        ([[("edit", {"text": edits({f"{n}.txt": LONG})})] for n in range(9)], "tokens"),
    ],
    ids=["unknown tools", "long edits"],
)
async def test_a_conversation_that_cannot_continue_asks_a_person(
    tmp_path: Path, rounds: list[list[tuple[str, dict[str, Any]]]], why: str
) -> None:
    right: list[Any] = [[("edit", {"text": edits({"calc.sh": SUB})})], "sub is there"]
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        lms = [Calling(rounds), Calling(right)]
        workers = [BackendWorkerAgent(project_id=1, bench=bench, lm=lm) for lm in lms]
        asked = await workers[0].execute_task(task)
        assert asked.status == "blocked", asked
        assert asked.question is not None
        assert why in asked.question
        blocker = await bench.store.add_blocker(task.id, asked.question)
        await bench.store.answer_blocker(blocker.id, "Shorter.")
        assert (await workers[1].execute_task(task)).status == "completed"


async def test_results_of_many_calls_in_one_round_fit_into_the_conversation(tmp_path: Path) -> None:
    wide = ("x" * 90 + "\n") * 300
    rounds: list[Any] = [
        [("look", {"path": f"{n}.txt"}) for n in range(40)],
        [("edit", {"text": edits({"calc.sh": SUB})})],
        "sub is there",
    ]
    files = {**FAILING, **{f"{n}.txt": f"{n}\n{wide}" for n in range(40)}}
    async with a_bench(tmp_path, files=files) as (bench, [task]):
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=Calling(rounds))
        assert (await worker.execute_task(task)).status == "completed"


@pytest.mark.parametrize(
    "command",
    [
        f'python3 -c "{DEEP}"',
        "rm -f .gitignore; mkfifo .gitignore .gitattributes sub; rm calc.sh; mkfifo calc.sh",
        "mkdir -p a/b; touch a/b/c; chmod 000 a/b a",
    ],
    ids=["deep folders", "pipes", "modes"],
)
async def test_no_command_can_create_an_undeletable_folder(tmp_path: Path, command: str) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        bench.repository.timeout = 10
        workspace = await bench.workspaces.start(task.branch)
        text = await run_command(bench, task, workspace, command, timeout=BOUND)
        assert text.startswith("exit code 0")
        await bench.workspaces.remove(workspace)
    assert list_leftovers(tmp_path / "project") == []


def test_a_folder_of_any_depth_and_with_any_modes_is_deleted(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    at = tmp_path / "top"
    at.mkdir()
    inner = [os.open(at, os.O_RDONLY)]
    for _ in range(1_100):
        os.mkdir("d", dir_fd=inner[-1])
        os.symlink(kept, "link", dir_fd=inner[-1])
        inner.append(os.open("d", os.O_RDONLY, dir_fd=inner[-1]))
        os.close(inner.pop(0))
    os.close(inner.pop())
    (at / "d").chmod(0)
    delete_folder(at)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


@pytest.mark.parametrize(
    "text",
    ["*" * 100_000, "a.py" + "*" * 100_000 + "!", "`" * 100_000 + "x"],
    ids=["a line of stars", "a path with stars", "backticks"],
)
def test_a_hostile_line_above_a_fence_is_parsed_quickly(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(EditError):
        parse_answer(f"{text}\n```\nx\n```\n")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "added",
    ["\n" * 100_000, "import a\n" * 20_000, "/* " * 60_000, "// a /*\n" * 20_000],
    ids=["blank lines", "imports", "comments that do not end", "comments in comments"],
)
def test_a_changed_javascript_test_is_compared_quickly(added: str) -> None:
    test = b'test("a", () => {});\n'
    change = FileChange("tests/a.test.js", test, test + added.encode())
    began = time.monotonic()
    assert not find_edits([change], ["tests/a.test.js"], "add-tests").problems
    assert time.monotonic() - began < 5


def test_nested_comment_markers_cannot_hide_a_changed_test() -> None:
    old = b"// a /*\nequal(1, 1);\n// */\nequal(2, 2); /* b */ equal(3, 3);\n"
    for number in (b"1", b"2", b"3"):
        new = old.replace(b"equal(%b, %b)" % (number, number), b"equal(0, 0)")
        change = FileChange("tests/a.test.js", old, new)
        assert find_edits([change], ["tests/a.test.js"], "add-tests").problems


async def test_a_slow_search_pattern_cannot_stop_the_team(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files={**FAILING, "a.txt": "a" * 200 + "\n"}) as (bench, _):
        tree = CodeTree(CodeReader(bench.repository))
        began = time.monotonic()
        with pytest.raises(Exception, match="took over"):
            await find("(a|aa)" * 40 + "b", tree=tree)
        assert time.monotonic() - began < 15


async def test_a_search_pattern_with_a_python_warning_works(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files={**FAILING, "a.txt": "x [a]\n"}) as (bench, _):
        assert "a.txt:1" in await find("[[a]", tree=CodeTree(CodeReader(bench.repository)))


@pytest.mark.parametrize(
    "deep",
    ["x = " + "+".join("1" * 1_500), "x = " + "-" * 20_000 + "1", "x = a" + ".b" * 1_500],
    ids=["a long sum", "a stack of signs", "a chain of attributes"],
)
def test_deeply_nested_code_is_refused_or_shown_to_a_person(deep: str) -> None:
    content = f"{deep}\n".encode()
    report = TestReport(command=("pytest",), exit_code=0)
    tests = [FileChange("tests/test_a.py", b"def test_a(): pass\n", content)]
    assert find_edits(tests, ["tests/test_a.py"], "add-tests").problems
    code = [FileChange("a.py", b"x = 1\n", content)]
    assert find_acceptance_problems(report, report, code)
    if "-" not in deep:  # Python itself cannot read the others
        assert not find_edits(code, ["a.py"], "add-tests").problems
        assert find_concerns(code) == (("a.py", "is nested too deeply to be read"),)


async def test_a_conversation_continues_after_its_budget_is_raised(
    tmp_path: Path,
) -> None:
    rounds: list[Any] = [
        [("find", {"pattern": "add"})],
        [("edit", {"text": edits({"calc.sh": SUB})}), ("look", {"path": "calc.sh"})],
        [("check", {})],
        "sub is there",
    ]
    lm = Calling(rounds)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        budgets = Budgets(bench.store, await begin_run(bench.store, 1), per_task=Budget(calls=2))
        bench.limit_lm = budgets.limit
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
        failed = await worker.execute_task(task)
        assert failed.status == "failed"
        assert "a budget of 2 calls" in (failed.error or "")
        assert lm.asked == 2
        budgets.per_task = Budget(calls=4)
        assert (await worker.execute_task(task)).status == "completed"
    assert lm.asked == 4


async def test_each_round_is_reserved_in_the_budget_of_its_task(
    tmp_path: Path,
) -> None:
    looks = [Call("look", path="calc.sh", lines=str(n + 1)) for n in range(5)]
    lm = ScriptedLM({"WorkerLoop": looks})
    spent: list[int] = []
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        budgets = Budgets(bench.store, await begin_run(bench.store, 1), per_task=Budget(calls=3))
        bench.limit_lm = budgets.limit
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
        failed = await worker.execute_task(task)
        spent.append((await read_spent(bench.store, task_id=task.id)).calls)
        budgets.per_task = Budget(calls=4)
        again = await worker.execute_task(task)
        spent.append((await read_spent(bench.store, task_id=task.id)).calls)
    assert (failed.status, again.status) == ("failed", "failed")
    assert "a budget of 3 calls" in (failed.error or "")
    assert spent == [3, 4]
    assert len(lm.asked) == 4
    assert budgets.refused == {task.id: "task"}
