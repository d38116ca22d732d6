"""What a worker promises about a task: it becomes merged, tested code, or a question."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bae import BaeLMError
from bae.lm import Retry
from bae.team import BackendWorkerAgent, FrontendWorkerAgent, PlannedTask, Task, TaskStatus
from bae.team.edit_format import EditFormat, Replacement
from bae.team.models import TaskResult, as_planned
from bae.team.workbench import Workbench
from bae.team.worker_graph import WorkerAnswer, is_same_failure
from bae.testing import ScriptedLM
from git_repositories import commit_files, git, list_leftovers, make_repository, write
from team_parts import (
    CALC,
    FAILING,
    JAVASCRIPT,
    NODE,
    SHELL,
    SUB,
    SUB_TASK,
    SUM,
    SUM_TEST,
    TEST_SUB,
    WORSE,
    WRONG,
    Messages,
    a_bench,
    edits,
    needs_node,
)
from written_edits import render_answer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
RIGHT = edits({"calc.sh": SUB})


async def work(bench: Workbench, task: Task, *answers: str | BaseException) -> TaskResult:
    """What becomes of a task with these answers of the LLM, all of which are asked for."""
    lm = ScriptedLM({WorkerAnswer: list(answers)})
    worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
    result = await worker.execute_task(task)
    lm.assert_complete()
    assert list_leftovers(Path(bench.project.root)) == []
    assert (await bench.store.task(task.id)).status is TaskStatus.PENDING
    return result


async def test_a_task_becomes_one_merged_and_tested_commit(tmp_path: Path) -> None:
    heard, seen = Messages(ConnectionError("nobody listens")), list[int]()
    options: dict[str, Any] = {"ws_manager": heard, "on_progress": seen.append}
    async with a_bench(tmp_path, **options) as (bench, [task]):
        result = await work(bench, task, edits({"calc.sh": SUB, "sub.test.sh": TEST_SUB}))
        assert (result.status, result.error, result.question) == ("completed", None, None)
        assert result.files == ("calc.sh", "sub.test.sh")
        assert result.commit == await bench.integration.head()
        assert result.report is not None
        assert len(result.report.of("passed")) == 2
        assert result.usage.calls == 1
        [attempt] = await bench.store.attempts(task.id)
        assert (attempt.outcome, attempt.files) == ("passed", result.files)
        assert len(await bench.store.merge_reports(task.id)) == 1
        stored = [event.to_message() for event in await bench.store.events(bench.project.id, 1)]
    root = Path(bench.project.root)
    assert git(root, "log", "--format=%s", "bae/team") == "Subtract\nfirst"
    assert heard.messages == stored
    kinds = {message["type"] for message in stored}
    assert kinds == {"activity_update", "commit_created", "test_result"}
    assert set(seen) == {task.id}
    assert len(seen) > 10


@needs_node
async def test_javascript_is_tested_by_node(tmp_path: Path) -> None:
    code = SUM + "exports.sub = (a, b) => a - b;\n"
    test = SUM_TEST.replace("adds", "subtracts").replace("add(1, 1), 2", "sub(3, 1), 2")
    answer = edits({"sum.js": code, "sub.test.js": test})
    wanted = PlannedTask(key="sub", title="Subtract", kind="frontend", files=("sum.js",))
    async with a_bench(tmp_path, wanted, files=JAVASCRIPT, command=NODE) as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [answer.replace("a - b", "b - a"), answer]})
        worker = FrontendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        result = await worker.execute_task(task)
        assert (result.status, result.attempts) == ("completed", 2)
        assert "frontend engineer" in lm.prompts[0].text


async def test_wrong_work_is_corrected_with_the_actual_failure(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        lm = ScriptedLM(
            {WorkerAnswer: [edits({"calc.sh": WRONG}), edits({"calc.sh": WORSE}), RIGHT]}
        )
        worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        result = await worker.execute_task(task)
        assert (result.status, result.attempts) == ("completed", 3)
        outcomes = [attempt.outcome for attempt in await bench.store.attempts(task.id)]
        assert outcomes == ["failed", "failed", "passed"]
        events = [event.event for event in await bench.store.events(bench.project.id)]
    corrections = [event for event in events if event.type == "correction_attempt"]
    assert [event.attempt for event in corrections] == [1, 2]
    second = lm.prompts[1].text
    assert "sub is 8" in second  # what the tests printed
    assert "+sub() { echo $(($1 + $2)); }" in second  # what was changed so far
    assert "sub is 15" in lm.prompts[2].text


async def test_a_repeated_failure_ends_in_a_question(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        same = edits({"calc.sh": WRONG + "# once more\n"})
        result = await work(bench, task, edits({"calc.sh": WRONG}), same)
        assert (result.status, result.attempts, result.commit) == ("blocked", 2, None)
        assert result.question is not None
        assert "2 attempts at 'Subtract' failed, the last two in the same way" in result.question
        assert "sub is 8" in result.question
        assert await bench.integration.head() == git(Path(bench.project.root), "rev-parse", "HEAD")
        # Nothing is lost, and the next run continues from there, with what a person says.
        await bench.store.add_note(task.id, "Look at the sign.")
        blocker = await bench.store.add_blocker(task.id, result.question)
        await bench.store.answer_blocker(blocker.id, "It is a - b.")
        lm = ScriptedLM({WorkerAnswer: [RIGHT]})
        worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        result = await worker.execute_task(await bench.store.task(task.id))
        assert (result.status, result.attempts) == ("completed", 3)
        asked = lm.prompts[0].text
        assert "Look at the sign." in asked
        assert "It is a - b." in asked
        assert "once more" in asked


async def test_an_answer_that_repeats_word_for_word_ends_the_attempts_at_once(
    tmp_path: Path,
) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        wrong = edits({"calc.sh": WRONG})
        result = await work(bench, task, wrong, f"\n{wrong}\n\n")
        assert (result.status, result.attempts, result.usage.calls) == ("blocked", 2, 2)
        assert result.question is not None
        assert "word for word" in result.question
        assert "sub is 8" in result.question
        # What a person says begins new attempts, which may repeat what earlier runs wrote.
        await bench.store.add_note(task.id, "Look at the sign.")
        result = await work(bench, await bench.store.task(task.id), RIGHT)
        assert (result.status, result.attempts) == ("completed", 3)


async def test_a_worker_makes_at_most_three_corrections(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        wrong = [f"{CALC}sub() {{ echo {n}; }}\n" for n in (10, 20, 30, 40)]
        result = await work(bench, task, *(edits({"calc.sh": text}) for text in wrong))
        assert (result.status, result.attempts) == ("blocked", 4)
        assert result.question is not None
        assert "4 attempts" in result.question


async def test_an_edit_of_missing_lines_is_requested_again_and_then_as_a_complete_file(
    tmp_path: Path,
) -> None:
    missed = render_answer([Replacement("calc.sh", ("add() { echo $1; }",), (CALC.strip(),))])
    async with a_bench(tmp_path) as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [missed, f"Once more:\n{missed}", RIGHT]})
        worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        result = await worker.execute_task(task)
        assert (result.status, result.attempts) == ("completed", 1)
    first, second, third = (prompt.text for prompt in lm.prompts)
    assert "not in calc.sh" not in first
    assert "The nearest lines that it has, from line 1 to 1, are:\nadd() {" in second
    assert "add() { echo $1; }" in second  # its own answer
    assert "completely this time" not in second
    assert "Write these files completely this time: calc.sh." in third


async def test_an_answer_that_can_never_be_applied_ends_in_a_question(tmp_path: Path) -> None:
    outside = edits({"../outside.sh": "x=1\n"})
    async with a_bench(tmp_path) as (bench, [task]):
        result = await work(bench, task, *(f"{n}\n{outside}" for n in range(6)))
        assert result.status == "blocked"
        assert [attempt.outcome for attempt in await bench.store.attempts(task.id)] == [
            "refused"
        ] * 2
        await bench.store.add_note(task.id, "Write it inside.")
        result = await work(bench, await bench.store.task(task.id), outside, outside)
        assert (result.status, result.attempts) == ("blocked", 3)
    assert not (tmp_path / "outside.sh").exists()


class Meanwhile(ScriptedLM):
    """Does something before its first answer: the work of another."""

    def __init__(self, first: Callable[[], Awaitable[object]], *answers: str) -> None:
        super().__init__({WorkerAnswer: list(answers)})
        self._first = [first]

    async def fill(self, *args: Any, **options: Any) -> Any:
        while self._first:
            await self._first.pop()()
        return await super().fill(*args, **options)


TWO = [as_planned(SUB_TASK, key=key, title=f"Write {key}") for key in ("one", "two")]


async def test_a_note_during_an_attempt_is_shown_to_the_next_attempt(
    tmp_path: Path,
) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        add_note = partial(bench.store.add_note, task.id, "Look at the sign.")
        lm = Meanwhile(add_note, edits({"calc.sh": WRONG}), RIGHT)
        worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        assert (await worker.execute_task(task)).status == "completed"
    first, second = (prompt.text for prompt in lm.prompts)
    assert "Look at the sign." not in first
    assert "Look at the sign." in second


async def test_edits_are_requested_in_the_format_set_for_the_model(tmp_path: Path) -> None:
    forms: dict[str, EditFormat] = {"small-*": "whole"}
    async with a_bench(tmp_path, edit_format=forms) as (bench, _):
        small, large = ScriptedLM([]), ScriptedLM([])
        small.model, large.model = "small-7b", "large"

        assert bench.edit_format_for(small) == "whole"
        assert bench.edit_format_for(Retry(small)) == "whole"
        assert bench.edit_format_for(large) == "auto"


async def test_work_that_conflicts_with_merged_work_is_corrected(tmp_path: Path) -> None:
    texts = [f"{CALC}{name}() {{ echo {name}; }}\n" for name in ("one", "two")]
    both = CALC + "one() { echo one; }\ntwo() { echo two; }\n"
    async with a_bench(tmp_path, *TWO) as (bench, [one, two]):
        first = partial(work_on, bench, one, edits({"calc.sh": texts[0]}))
        lm = Meanwhile(first, edits({"calc.sh": texts[1]}), edits({"calc.sh": both}))
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
        result = await worker.execute_task(two)
        assert (result.status, result.attempts) == ("completed", 2)
        outcomes = [attempt.outcome for attempt in await bench.store.attempts(two.id)]
        assert outcomes == ["conflict", "passed"]
        root = Path(bench.project.root)
        assert git(root, "show", "bae/team:calc.sh") == both.rstrip()
        assert git(root, "log", "--format=%s", "bae/team") == "Write two\nWrite one\nfirst"
    asked = lm.prompts[1].text
    assert "CONFLICT (content)" in asked
    assert "<<<<<<< refs/heads/bae/team" in asked


async def test_tests_that_fail_only_after_the_merge_go_back_to_the_llm(tmp_path: Path) -> None:
    files = {**SHELL, "names.sh": "names=a\n"}
    test = '. ./names.sh\nset $names\n[ $# = 1 ] || { echo "names: $#"; exit 1; }\n'
    async with a_bench(tmp_path, *TWO, files=files) as (bench, [one, two]):
        tests = one.model_copy(update={"kind": "test"})
        first = partial(work_on, bench, tests, edits({"names.test.sh": test}))
        texts = ("names='a b'\n", "names=b\n")
        lm = Meanwhile(first, *(edits({"names.sh": text}) for text in texts))
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
        result = await worker.execute_task(two)
        assert (result.status, result.attempts) == ("completed", 2)
        outcomes = [attempt.outcome for attempt in await bench.store.attempts(two.id)]
        assert outcomes == ["failed", "passed"]
    assert "after the work was merged with what others have done" in lm.prompts[1].text
    assert "names: 2" in lm.prompts[1].text


async def work_on(bench: Workbench, task: Task, *answers: str) -> None:
    lm = ScriptedLM({WorkerAnswer: list(answers)})
    worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
    assert (await worker.execute_task(task)).status == "completed"


async def test_cheating_is_refused_and_reported_to_the_llm(tmp_path: Path) -> None:
    cheat = edits({"sub.test.sh": "true\n"})
    async with a_bench(tmp_path, files=FAILING, corrections=1) as (bench, [task]):
        honest = edits({"sub.test.sh": TEST_SUB, "calc.sh": SUB})
        result = await work(bench, task, cheat, honest)
        assert (result.status, result.attempts) == ("completed", 2)
        [first, _] = await bench.store.attempts(task.id)
        assert first.outcome == "failed"  # the test of the base was restored, and judged it
        assert "sub.test.sh" in first.failure  # which the second attempt is shown
        root = Path(bench.project.root)
        assert git(root, "show", "bae/team:sub.test.sh") == TEST_SUB.rstrip()


async def test_the_llm_may_ask_a_person(tmp_path: Path) -> None:
    async with a_bench(tmp_path) as (bench, [task]):
        result = await work(bench, task, "QUESTION: Integers only, or decimals too?")
        assert (result.status, result.attempts) == ("blocked", 0)
        assert result.question == "Integers only, or decimals too?"


async def test_a_failed_lm_fails_the_task_and_a_retry_continues(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        down = BaeLMError("the provider is down")
        result = await work(bench, task, edits({"calc.sh": WRONG}), down)
        assert (result.status, result.attempts) == ("failed", 1)
        assert result.error is not None
        assert "the provider is down" in result.error
        result = await work(bench, task, RIGHT)
        assert (result.status, result.attempts) == ("completed", 2)


async def test_a_task_that_should_stop_ends_after_its_attempt(tmp_path: Path) -> None:
    async with a_bench(tmp_path, files=FAILING, should_stop=lambda _: True) as (bench, [task]):
        result = await work(bench, task, edits({"calc.sh": WRONG}))
        assert (result.status, result.error) == ("failed", "stopped after attempt 1")


async def test_the_lm_of_a_task_can_be_limited(tmp_path: Path) -> None:
    lm = ScriptedLM({WorkerAnswer: [RIGHT]})
    limited: list[Any] = []

    def limit(task: Task, given: Any) -> Any:
        limited.append((task.key, given))
        return lm

    own = ScriptedLM()
    async with a_bench(tmp_path, limit_lm=limit) as (bench, [task]):
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=own)
        assert (await worker.execute_task(task)).status == "completed"
    assert limited == [("sub", own)]


async def test_files_left_by_tests_in_a_worktree_are_not_part_of_the_work(tmp_path: Path) -> None:
    files = {**FAILING, "dirt.test.sh": "echo x > dirt.txt\n"}
    async with a_bench(tmp_path, files=files) as (bench, [task]):
        result = await work(bench, task, edits({"calc.sh": WRONG}), RIGHT)
        assert (result.status, result.files) == ("completed", ("calc.sh",))
        assert "dirt.txt" not in git(Path(bench.project.root), "ls-tree", "--name-only", "bae/team")


def add_submodule_of(root: Path, path: str, other: Path) -> None:
    """Have a repository as a submodule of another, with its own submodules."""
    allow = ("-c", "protocol.file.allow=always")
    git(root, *allow, "submodule", "--quiet", "add", "--name", f"the {path}", str(other), path)
    git(root, *allow, "submodule", "--quiet", "update", "--init", "--recursive")
    git(root, "commit", "--quiet", "--all", "-m", f"add {path}")


async def test_submodules_are_in_the_worktrees_without_a_network(tmp_path: Path) -> None:
    needs = '[ "$(cat libs/one/one.txt libs/one/two/two.txt | tr -d "\\n")" = 12 ]\n'
    async with a_bench(tmp_path, files={**SHELL, "needs.test.sh": needs}) as (bench, [task]):
        root = Path(bench.project.root)
        inner = make_repository(tmp_path / "one", {"one.txt": "1\n"})
        two = make_repository(tmp_path / "two", {"two.txt": "2\n"})
        add_submodule_of(inner, "two", two)
        add_submodule_of(root, "libs/one", inner)
        await bench.integration.catch_up()
        shutil.rmtree(two)
        shutil.rmtree(inner)  # as where there is no network
        inside = edits({"libs/one/one.txt": "3\n"})
        lm = ScriptedLM({WorkerAnswer: [inside, edits({"calc.sh": SUB, "sub.test.sh": TEST_SUB})]})
        worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
        result = await worker.execute_task(task)
        assert (result.status, result.error) == ("completed", None)
        assert result.files == ("calc.sh", "sub.test.sh")
        assert list_leftovers(root) == []
    assert "libs/one/one.txt is in the submodule libs/one" in lm.prompts[1].text


async def test_a_missing_submodule_is_named(tmp_path: Path) -> None:
    heard = Messages()
    async with a_bench(tmp_path, ws_manager=heard) as (bench, [task]):
        root = Path(bench.project.root)
        other = make_repository(tmp_path / "one", {"one.txt": "1\n"})
        add_submodule_of(root, "one", other)
        await bench.integration.catch_up()
        commit = commit_files(other, {"one.txt": "2\n"})
        git(root, "update-index", "--cacheinfo", f"160000,{commit},one")
        git(root, "commit", "--quiet", "-m", "newer one")
        await bench.integration.catch_up()
        result = await work(bench, task)
        assert result.error is not None
        assert "the submodule one has no commit" in result.error
        assert "git submodule update --init" in result.error
        shutil.rmtree(root / ".git/modules")
        async with BackendWorkerAgent(project_id=bench.project.id, bench=bench) as worker:
            assert (await worker.workspace(task)).left_out == ("one",)
    assert "not in the worktree: one" in [message.get("text") for message in heard.messages]


async def test_a_task_completes_despite_file_names_that_are_not_utf_8(tmp_path: Path) -> None:
    dirt = 'echo x > "$(printf "d\\351.test.sh")"\n'
    files = {**SHELL, "dirt.test.sh": dirt, ".worktreeinclude": "*.odd\n", ".gitignore": "*.odd\n"}
    heard = Messages()
    async with a_bench(tmp_path, files=files, ws_manager=heard) as (bench, [task]):
        names = map(os.fsdecode, (b"caf\xe9.sh", b"\xe9.odd", b"\xe9-secret.odd"))
        write(Path(bench.project.root), dict.fromkeys(names, "x\n"))
        git(Path(bench.project.root), "add", "--all")
        git(Path(bench.project.root), "commit", "--quiet", "-m", "odd names")
        await bench.integration.catch_up()
        result = await work(bench, task, edits({"calc.sh": SUB, "sub.test.sh": TEST_SUB}))
        assert (result.status, result.error) == ("completed", None)
    texts = [message["text"] for message in heard.messages if message["type"] == "activity_update"]
    assert any("\ufffd-secret.odd" in text for text in texts)


async def test_files_left_out_of_a_worktree_are_reported(tmp_path: Path) -> None:
    heard = Messages(ConnectionError("nobody listens"))
    files = {**SHELL, ".worktreeinclude": ".env\n", ".gitignore": ".env\n"}
    async with a_bench(tmp_path, files=files, ws_manager=heard) as (bench, [task]):
        write(Path(bench.project.root), {".env": "KEY=1\n"})
        async with BackendWorkerAgent(project_id=bench.project.id, bench=bench) as worker:
            workspace = await worker.workspace(task)
            assert not (workspace.path / ".env").exists()
    assert "not in the worktree: .env" in [message["text"] for message in heard.messages]


def test_failures_are_equal_despite_different_times_and_addresses() -> None:
    one = "E  <f at 0x7f00>\ntests/a.py:3: AssertionError\n1 failed in 0.03s"
    assert is_same_failure(one, "E  <f at 0x8a>\ntests/a.py:7: AssertionError\n1 failed in 1.2 s")
    assert not is_same_failure("assert 1 == 2", "assert 3 == 2")
    assert not is_same_failure("", "")


async def test_code_that_could_influence_its_tests_is_merged_after_a_yes(
    tmp_path: Path,
) -> None:
    code = "import sys\nif len(sys.argv) > 99:\n    sys.exit(0)\n"
    ends = edits({"cli.py": code, "calc.sh": SUB})
    async with a_bench(tmp_path) as (bench, [task]):
        result = await work(bench, task, ends)
        assert result.status == "blocked"
        assert "cli.py ends the process while it is imported" in (result.question or "")
        for answer, status in (("no, remove it", "blocked"), ("Yes.", "completed")):
            said, digest = result.question or "", result.digest
            asked = await bench.store.add_blocker(task.id, said, digest=digest)
            await bench.store.answer_blocker(asked.id, answer)
            # A no is something to correct; after a yes the LLM is not asked again.
            answers = [edits({"cli.py": f"{code}# same\n"})] if status == "blocked" else []
            result = await work(bench, task, *answers)
            assert result.status == status
        root = Path(bench.project.root)
        assert "sys.exit" in git(root, "show", "bae/team:cli.py")


async def test_work_without_tests_is_merged_only_after_a_person_approved_it(tmp_path: Path) -> None:
    planned = PlannedTask(key="guide", title="Write a guide", proof="none")
    async with a_bench(tmp_path, planned) as (bench, [task]):
        assert not task.approved
        await bench.store.approve_tasks([task.id])
        result = await work(bench, task)
        assert result.status == "blocked"
        assert "approve guide --without-tests" in (result.question or "")
        assert await bench.store.approve_tasks([task.id], without_tests=True) == 1
        code = edits({"calc.sh": SUB})
        task = await bench.store.task(task.id)
        result = await work(bench, task, code, edits({"calc.sh": CALC, "guide.md": "# Guide\n"}))
        assert (result.status, result.tested) == ("merged", False)
        assert result.to_dict()["tested"] is False
