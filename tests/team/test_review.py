"""What the review of a task's work promises: a second LLM reads the change, once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bae import BaeLMError
from bae.cli import main
from bae.lm import Budget
from bae.team import BackendWorkerAgent, FindingKind, LeadAgent, Task
from bae.team.budgets import read_spent
from bae.team.delivery import find_delivery
from bae.team.models import TaskResult
from bae.team.review import WorkReview, bound_diff
from bae.team.task_log import read_task_log
from bae.team.workbench import Workbench
from bae.team.worker_graph import WorkerAnswer, WorkerLoop
from bae.testing import Call, ScriptedLM
from git_repositories import git, make_repository
from team_parts import CALC, RUN_SHELL, SHELL, SUB, a_bench, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
NOTED: dict[str, Any] = {
    "kind": "missing-case",
    "file": "calc.sh",
    "line": 2,
    "text": "Negative results are not tested.",
    "blocking": False,
}
HARD_CODED = {
    **NOTED,
    "kind": "hard-coded-answer",
    "code": "echo 2",
    "text": "It prints the expected value.",
    "blocking": True,
}
GOOD: dict[str, Any] = {"findings": [], "summary": "It does what the task asks for."}
ADVICE = {"findings": [NOTED], "summary": "It is right, and little tested."}
BAD = {"findings": [NOTED, HARD_CODED], "summary": "It fits the test alone."}
RIGHT = edits({"calc.sh": SUB})


def a_guess(number: int) -> str:
    """An answer that only fits the test."""
    return edits({"calc.sh": CALC + f"sub() {{ echo 2; }} # {number}\n"})


async def work(bench: Workbench, task: Task, lm: ScriptedLM) -> TaskResult:
    worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench, lm=lm)
    return await worker.execute_task(task)


async def test_findings_are_shown_to_people_as_advice(tmp_path: Path) -> None:
    async with a_bench(tmp_path, review="advise") as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [RIGHT], WorkReview: [BAD]})
        assert (await LeadAgent(bench, lm).run()).done
        [review] = (await bench.store.reviews(task.project_id))[task.id]
        assert [finding.kind for finding in review.findings] == [
            "missing-case",
            "hard-coded-answer",
        ]
        assert [finding.kind for finding in review.blocking] == [FindingKind.HARD_CODED_ANSWER]
        log = await read_task_log(bench.store, bench.journal, task)
        [entry] = [entry for entry in log.entries if entry.kind == "review"]
        assert entry.text == "2 findings, 1 blocking; It fits the test alone."
        assert "hard-coded-answer in calc.sh:2: It prints the expected value. (echo 2)" in (
            entry.detail
        )
        delivery = await find_delivery(bench.project, bench.repository, bench.store)
        assert "- review, missing-case in calc.sh:2: Negative results are not" in delivery.message


async def test_the_reviewer_sees_the_task_and_the_change_and_not_the_conversation(
    tmp_path: Path,
) -> None:
    async with a_bench(tmp_path, review="advise") as (bench, [task]):
        wrong = edits({"calc.sh": CALC.replace("+", "- ")})
        lm = ScriptedLM({WorkerAnswer: [wrong, RIGHT], WorkReview: [GOOD]})
        await work(bench, task, lm)
    prompt = str(lm.prompts[-1])
    assert "Write a function sub in calc.sh." in prompt
    assert "sub(5, 3) is 2" in prompt  # a criterion
    assert "+sub() { echo $(($1 - $2)); }" in prompt
    assert "do not change, skip or remove tests that exist" in prompt  # rules of the verdict
    assert "All tests pass" in prompt
    assert "scope-creep" in prompt
    assert "backend engineer" not in prompt  # the role of the worker
    assert "SEARCH" not in prompt  # how the worker answers
    assert "Earlier attempts" not in prompt


async def test_the_reviewer_reads_the_repository_with_tools(tmp_path: Path) -> None:
    async with a_bench(tmp_path, review="advise") as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [RIGHT], WorkReview: [Call("look", path="calc.sh"), GOOD]})
        await work(bench, task, lm)
        log = await read_task_log(bench.store, bench.journal, task)
    [called] = [entry for entry in log.entries if entry.kind == "tool"]
    assert "2|sub()" in called.detail
    lm.assert_complete()


async def test_a_required_review_refuses_work_until_nothing_blocks(tmp_path: Path) -> None:
    async with a_bench(tmp_path, review="require") as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [a_guess(1), RIGHT], WorkReview: [BAD, ADVICE]})
        result = await work(bench, task, lm)
        assert (result.status, result.attempts) == ("completed", 2)
        outcomes = [attempt.outcome for attempt in await bench.store.attempts(task.id)]
        assert outcomes == ["refused", "passed"]
    [_, _, again, _] = map(str, lm.prompts)
    assert "a reviewer refuses the work: It fits the test alone." in again
    assert "hard-coded-answer in calc.sh:2" in again
    lm.assert_complete()


async def test_a_refusal_is_a_message_in_the_conversation_of_the_worker(tmp_path: Path) -> None:
    async with a_bench(tmp_path, review="require") as (bench, [task]):
        turns = [Call("edit", text=a_guess(1)), "Done.", Call("edit", text=RIGHT), "Corrected."]
        lm = ScriptedLM({WorkerLoop: turns, WorkReview: [BAD, GOOD]})
        result = await work(bench, task, lm)
        assert (result.status, result.attempts) == ("completed", 2)
        lm.assert_complete()
    [again] = [question for question in lm.asked if question.target is WorkerLoop][2:3]
    assert "hard-coded-answer in calc.sh:2" in str(again.prompt)


async def test_a_person_decides_after_two_refusals(tmp_path: Path) -> None:
    async with a_bench(tmp_path, review="require") as (bench, [task]):
        guesses = [a_guess(number) for number in range(3)]
        reviews = [BAD | {"summary": f"Guess {number}."} for number in range(3)]
        lm = ScriptedLM({WorkerAnswer: guesses, WorkReview: reviews})
        result = await work(bench, task, lm)
        assert (result.status, result.commit) == ("blocked", None)
        assert result.question is not None
        assert "the reviewer refuses it again" in result.question
        assert "hard-coded-answer in calc.sh:2" in result.question
        asked = await bench.store.add_blocker(task.id, result.question, digest=result.digest)
        await bench.store.answer_blocker(asked.id, "yes")
        unasked = ScriptedLM({WorkerAnswer: []})
        result = await work(bench, task, unasked)
        assert (result.status, unasked.asked) == ("completed", [])
    assert "sub() { echo 2; } # 2" in git(Path(bench.project.root), "show", "bae/team:calc.sh")


async def test_a_review_is_paid_once_even_if_the_run_ends_before_the_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_bench(tmp_path, review="require") as (bench, [task]):

        async def fail(*args: object, **kwargs: object) -> None:
            raise OSError("the machine is switched off")

        with monkeypatch.context() as patched:
            patched.setattr(bench.integration, "integrate", fail)
            lm = ScriptedLM({WorkerAnswer: [RIGHT], WorkReview: [ADVICE]})
            assert (await work(bench, task, lm)).status == "failed"
        later = ScriptedLM({WorkerAnswer: [], WorkReview: []})
        result = await work(bench, task, later)
        assert (result.status, later.asked) == ("completed", [])
        assert len((await bench.store.reviews(task.project_id))[task.id]) == 1


async def test_a_review_missing_from_the_store_is_read_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_bench(tmp_path, review="advise") as (bench, [task]):

        async def fail(event: object) -> None:
            if type(event).__name__ == "WorkReviewed":
                raise OSError("the machine is switched off")

        with monkeypatch.context() as patched:
            patched.setattr(bench, "emit", fail)
            lm = ScriptedLM({WorkerAnswer: [RIGHT], WorkReview: [ADVICE]})
            assert (await work(bench, task, lm)).status == "failed"
        bench.reviewer = ScriptedLM({WorkReview: []})
        result = await work(bench, task, ScriptedLM({WorkerAnswer: []}))
        assert (result.status, bench.reviewer.asked) == ("completed", [])
        [review] = (await bench.store.reviews(task.project_id))[task.id]
        assert review.summary == ADVICE["summary"]


@pytest.mark.parametrize(
    "answers",
    [[BaeLMError("the model is gone")], [{"summary": 1}] * 3, [RuntimeError("a bug")]],
    ids=["no answer", "a wrong answer", "a bug"],
)
async def test_a_failed_reviewer_loses_no_work(tmp_path: Path, answers: list[Any]) -> None:
    async with a_bench(tmp_path, review="advise") as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [RIGHT], WorkReview: answers})
        assert (await work(bench, task, lm)).status == "completed"
        [review] = (await bench.store.reviews(task.project_id))[task.id]
        assert review.error
        assert review.headline.startswith("review failed: ")


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        (BaeLMError("the model is gone"), "the model is gone"),
        (RuntimeError("a bug"), "RuntimeError: a bug"),
    ],
    ids=["an LM that is gone", "a bug"],
)
async def test_a_failed_required_review_asks_a_person(
    tmp_path: Path, gone: Exception, why: str
) -> None:
    async with a_bench(tmp_path, review="require") as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [RIGHT], WorkReview: [gone, GOOD]})
        result = await work(bench, task, lm)
        assert result.status == "blocked"
        assert result.question is not None
        assert f"cannot be reviewed: {why}." in result.question
        asked = await bench.store.add_blocker(task.id, result.question, digest=result.digest)
        await bench.store.answer_blocker(asked.id, "it works again")
        assert (await work(bench, task, lm)).status == "completed"
        lm.assert_complete()


async def test_a_named_reviewer_model_reviews_the_work(tmp_path: Path) -> None:
    reviewer = ScriptedLM({WorkReview: [GOOD]})
    async with a_bench(tmp_path, review="advise", reviewer=reviewer) as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [RIGHT]})
        assert (await work(bench, task, lm)).status == "completed"
    assert (len(lm.asked), len(reviewer.asked)) == (1, 1)


@pytest.mark.parametrize("mode", ["off", "advise"])
async def test_work_is_merged_without_a_review_if_no_model_can_review(
    tmp_path: Path, mode: str
) -> None:
    async with a_bench(tmp_path, review=mode) as (bench, [task]):
        script = {WorkReview: [GOOD]} if mode == "off" else {}
        lm = ScriptedLM({WorkerAnswer: [RIGHT], **script})
        assert (await work(bench, task, lm)).status == "completed"
        assert await bench.store.reviews(task.project_id) == {}


async def test_a_review_is_charged_to_the_budget_of_its_task(tmp_path: Path) -> None:
    async with a_bench(tmp_path, review="advise") as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [RIGHT], WorkReview: [GOOD]})
        summary = await LeadAgent(bench, lm, task_budget=Budget(calls=2)).run()
        assert summary.done
        assert (await read_spent(bench.store, task_id=task.id)).calls == 2


@pytest.mark.parametrize("mode", ["oneshot", "loop"])
async def test_advice_that_exceeds_the_budget_is_left_out(tmp_path: Path, mode: str) -> None:
    async with a_bench(tmp_path, review="advise") as (bench, [task]):
        edit = Call("edit", text=RIGHT)
        script: dict[Any, Any] = {WorkerAnswer: [RIGHT], WorkReview: [GOOD]}
        lm = ScriptedLM(script | ({WorkerLoop: [edit, "Done."]} if mode == "loop" else {}))
        calls = 2 if mode == "loop" else 1  # what the work itself takes
        summary = await LeadAgent(bench, lm, task_budget=Budget(calls=calls)).run()
        assert summary.done
        [review] = (await bench.store.reviews(task.project_id))[task.id]
        assert f"budget of {calls} calls" in review.error


def test_a_long_file_in_a_change_leaves_room_for_other_files() -> None:
    def change(name: str, length: int) -> str:
        return f"diff --git a/{name} b/{name}\n" + "+x\n" * (length // 3)

    sizes = {"long.py": 100_000, "test_long.py": 50_000, "short.py": 90}
    shown = bound_diff("".join(change(*size) for size in sizes.items()), 8_000)
    assert len(shown) <= 8_000
    parts = shown.split("diff --git ")[1:]
    assert [part.split()[0] for part in parts] == ["a/long.py", "a/test_long.py", "a/short.py"]
    assert max(map(len, parts)) <= 2_000
    assert "left out" in parts[0]
    assert "left out" not in parts[2]
    many = bound_diff("".join(change(f"{number}.py", 900) for number in range(100)), 20_000)
    assert many.count("diff --git ") == 100
    assert len(many) <= 20_000 + 100 * 30


LM_FILE = """
from bae.testing import ScriptedLM

def make():
    return ScriptedLM({"WorkerAnswer": ANSWERS})

def review():
    return ScriptedLM({"WorkReview": REVIEWS})
"""


@pytest.fixture
def bae(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The command in a project whose only task is to subtract."""
    script = LM_FILE.replace("ANSWERS", repr([a_guess(1), RIGHT]))
    (tmp_path / "lm.py").write_text(script.replace("REVIEWS", repr([BAD, ADVICE])))
    root = make_repository(tmp_path / "project", SHELL)
    git(root, "config", "user.name", "Ana")
    git(root, "config", "user.email", "ana@example.com")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(root)

    def run(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        got = main(["team", *arguments])
        output, problem = capfd.readouterr()
        assert got == code, f"{arguments}: {got}\n{output}{problem}"
        return output + (problem if code else "")

    run("init", "--no-check", "--test", " ".join(RUN_SHELL))
    run("tasks", "add", "Subtract", "--key", "sub", "--test", "calc.test.sh")
    return run


def test_the_command_line_can_require_a_review_and_shows_it(bae: Callable[..., str]) -> None:
    refused = bae("run", "--no-review", "--require-review", code=2)
    assert "--no-review turns off what --require-review asks for" in refused
    names = ("--lm", "python:../lm.py:make", "--reviewer", "python:../lm.py:review")
    bae("run", "--quiet", "--require-review", *names)
    finding = "missing-case in calc.sh:2: Negative results are not tested."
    shown = bae("tasks", "show", "sub")
    assert "2 findings, 1 blocking; It fits the test alone." in shown
    assert "- blocking: hard-coded-answer in calc.sh:2: It prints the expected value." in shown
    assert f"- {finding}" in shown
    assert "1 finding; It is right, and little tested." in bae("log", "sub")
    assert "1 finding in 1 task: bae team tasks show sub" in bae("status")
    [task] = json.loads(bae("status", "--json"))["tasks"]
    assert task["findings"] == 1
    assert f"- review, {finding}" in bae("patch")
    message = bae("merge")
    assert f"- review, {finding}" in message
    assert "hard-coded-answer" not in message  # of the work that was refused
