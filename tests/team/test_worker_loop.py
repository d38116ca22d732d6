"""What a worker with tools promises: it looks, edits, tries and checks in one conversation, and bae
alone judges and merges what it submits."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bae import BaeLMError
from bae.cli.team_board import watch
from bae.team import ActivityUpdate, BackendWorkerAgent, Store, Task, Workbench
from bae.team.models import PlannedTask
from bae.team.task_log import read_task_log
from bae.team.worker import preview_brief
from bae.team.worker_graph import WorkerLoop
from bae.testing import Call, ScriptedLM
from bae.testing.scripted import Asked
from git_repositories import commit_files, git
from team_parts import (
    FAILING,
    NODE,
    PYTEST,
    PYTHON,
    SUB,
    SUB_TASK,
    SUM,
    SUM_TEST,
    WORSE,
    WRONG,
    a_bench,
    edits,
    needs_node,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
RIGHT = Call("edit", text=edits({"calc.sh": SUB}))
WRONG_EDIT = Call("edit", text=edits({"calc.sh": WRONG}))
CHECK = Call("check", tests=["sub.test.sh"])
DONE = "I added sub, and checked it with its test."


class Board(io.StringIO):
    """The output without a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.has_submission = asyncio.Event()

    def write(self, text: str, /) -> int:
        if "submits: " in text:
            self.has_submission.set()
        return super().write(text)


def a_script(*rounds: Any) -> ScriptedLM:
    return ScriptedLM({WorkerLoop: list(rounds)})


async def work(bench: Workbench, task: Task, lm: ScriptedLM) -> Any:
    worker = BackendWorkerAgent(project_id=task.project_id, bench=bench, lm=lm)
    return await worker.execute_task(task)


def calls_of(lm: ScriptedLM) -> list[Any]:
    return list(lm.asked[-1].calls)


async def test_a_worker_looks_tries_checks_and_corrects_itself_before_it_submits(
    tmp_path: Path,
) -> None:
    lm = a_script(
        [Call("find", pattern="add"), Call("outline")],
        Call("look", path="calc.sh"),
        Call("run", command="sh -c '. ./calc.sh; add 2 3'"),
        WRONG_EDIT,
        CHECK,
        RIGHT,
        CHECK,
        DONE,
    )
    board = Board()
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        watching = watch(bench.store, task.project_id, Console(file=board, width=200))
        watching = asyncio.create_task(watching)  # with a journal of its own, as other processes do
        result = await work(bench, task, lm)
        log = await read_task_log(bench.store, bench.journal, task)
        events = await bench.store.events(task.project_id)
        async with asyncio.timeout(20):
            await board.has_submission.wait()
        watching.cancel()
        await asyncio.wait([watching])
    assert (result.status, result.attempts) == ("completed", 1)
    root = Path(bench.project.root)
    assert git(root, "show", f"{result.commit}:calc.sh") == SUB.strip()
    results = {(call.name, n): call.result for n, call in enumerate(calls_of(lm))}
    assert "calc.sh" in results["find", 0]
    assert "1|add() {" in results["look", 2]
    assert "5" in results["run", 3]
    assert "sub is 8" in results["check", 5]
    assert "1 passed" in results["check", 7]
    shown = [entry.text for entry in log.entries if entry.kind == "tool"]
    names = ["find", "outline", "look", "run", "check", "check"]  # edits are the commits
    assert [text.partition("(")[0] for text in shown] == names
    assert [entry.text for entry in log.entries if entry.kind == "submission"] == [DONE]
    logged = [entry.text for entry in log.entries if entry.kind == "activity"]
    assert "runs the tests" in logged
    updates = [event.event.text for event in events if isinstance(event.event, ActivityUpdate)]
    assert {*updates} == {
        "works on Subtract",
        "runs the tests",
        "merges",
    }  # what the LLM did is in its run alone
    steps = [line.partition("sub  ")[2] for line in board.getvalue().splitlines()]
    names = ("searches", "outlines", "looks", "runs sh", "edits", "checks", "submits")
    assert [step for step in steps if step.startswith(names)] == [
        "searches for add",
        "outlines the repository",
        "looks at calc.sh",
        "runs sh -c '. ./calc.sh; add 2 3'",
        "edits files",
        "checks sub.test.sh",
        "edits files",
        "checks sub.test.sh",
        f"submits: {DONE}",
    ]


async def test_the_printed_brief_is_the_first_question_to_the_llm(tmp_path: Path) -> None:
    lm = a_script(RIGHT, DONE)
    async with a_bench(tmp_path, SUB_TASK, files=FAILING) as (bench, [task]):
        await bench.check_base("HEAD")  # as `bae team init` does
        brief = await preview_brief(bench.store, bench.repository, task)
        await work(bench, task, lm)
    assert "# Tests that failed before\nFailed before this task too" in brief
    assert brief in lm.asked[0].prompt.text


async def test_the_printed_brief_of_a_task_shows_the_stubs_of_its_feature(tmp_path: Path) -> None:
    planned = PlannedTask(key="tax", title="Add tax", feature="shop", criteria=("it adds tax",))
    async with a_bench(tmp_path, planned) as (bench, [task]):
        root = Path(bench.project.root)
        git(root, "switch", "-q", "-c", task.feature_branch)
        commit_files(root, {"tax.sh": "tax() { echo 'not done'; exit 1; }\n"})
        git(root, "switch", "-q", "-")
        assert "tax() {" in await preview_brief(bench.store, bench.repository, task)


async def test_a_refused_submission_returns_into_the_same_conversation(tmp_path: Path) -> None:
    read: list[str] = []

    def answer(asked: Asked) -> Any:
        reply = {0: WRONG_EDIT, 1: DONE, 2: RIGHT, 3: DONE}[len(read)]
        read.append("\n".join(message.text for message in asked.prompt.conversation))
        return reply

    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        result = await work(bench, task, ScriptedLM({WorkerLoop: answer}))
        attempts = await bench.store.attempts(task.id)
    assert result.status == "completed"
    assert [attempt.outcome for attempt in attempts] == ["failed", "passed"]
    assert [attempt.usage.calls for attempt in attempts] == [2, 2]
    assert "sub is 8" in read[2]
    assert "You can submit 3 more times" in read[2]
    assert read[2].startswith(read[0])  # one conversation, which grows


async def test_refused_work_is_not_judged_again_before_a_change(
    tmp_path: Path,
) -> None:
    lm = a_script(WRONG_EDIT, DONE, DONE, RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        result = await work(bench, task, lm)
        attempts = await bench.store.attempts(task.id)
    assert result.status == "completed"
    assert [attempt.outcome for attempt in attempts] == ["failed", "passed"]


async def test_work_cannot_be_submitted_before_a_file_is_changed(tmp_path: Path) -> None:
    lm = a_script(DONE, RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        assert (await work(bench, task, lm)).status == "completed"
        assert len(await bench.store.attempts(task.id)) == 1


async def test_a_person_is_asked_after_the_last_submission(tmp_path: Path) -> None:
    worse = Call("edit", text=edits({"calc.sh": WORSE}))
    lm = a_script(WRONG_EDIT, DONE, worse, DONE)
    async with a_bench(tmp_path, files=FAILING, corrections=1) as (bench, [task]):
        result = await work(bench, task, lm)
    assert result.status == "blocked"
    assert result.question.startswith("2 attempts at 'Subtract' failed")
    lm.assert_complete()


async def test_only_edits_change_files(tmp_path: Path) -> None:
    spoil = Call("run", command="echo broken > calc.sh; rm sub.test.sh; cat calc.sh")
    lm = a_script(spoil, Call("look", path="calc.sh"), RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        result = await work(bench, task, lm)
    assert result.status == "completed"
    assert result.files == ("calc.sh",)
    ran, seen = (call.result for call in calls_of(lm)[:2])
    assert "broken" in ran
    assert "calc.sh" in ran  # named as changed, and not kept
    assert "broken" not in seen


async def test_a_command_has_no_network_and_a_bounded_output(tmp_path: Path) -> None:
    loud = Call("run", command="yes | head -c 1000000; cat /proc/net/route")
    lm = a_script(loud, RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        assert (await work(bench, task, lm)).status == "completed"
    assert len(calls_of(lm)[0].result) < 20_000


async def test_a_refused_edit_changes_nothing_and_explains_why(tmp_path: Path) -> None:
    text = "calc.sh\n<<<<<<< SEARCH\nadd() { echo 5; }\n=======\nadd() { echo 6; }\n>>>>>>> REPLACE"
    lm = a_script(Call("edit", text=text), RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        assert (await work(bench, task, lm)).status == "completed"
    refused = calls_of(lm)[0]
    assert refused.error.startswith("Nothing was changed:\n- the SEARCH lines")
    assert "add() { echo $(($1 + $2)); }" in refused.error  # the nearest line


async def test_an_edit_that_breaks_the_syntax_of_a_file_is_refused(tmp_path: Path) -> None:
    task = PlannedTask(key="sub", title="Subtract", tests=("tests/test_sub.py",))
    broken = Call("edit", text=edits({"calc.py": "def add(a, b):\n    return a +\n"}))
    right = {
        "calc.py": PYTHON["calc.py"] + "\n\ndef sub(a, b):\n    return a - b\n",
        "tests/test_sub.py": "from calc import sub\n\ndef test_sub():\n    assert sub(3, 1) == 2\n",
    }
    lm = a_script(broken, Call("edit", text=edits(right)), DONE)
    async with a_bench(tmp_path, task, files=PYTHON, command=PYTEST) as (bench, [planned]):
        result = await work(bench, planned, lm)
    assert result.status == "completed", result
    assert "calc.py" in calls_of(lm)[0].error


@needs_node
async def test_a_worker_checks_and_submits_a_node_project(tmp_path: Path) -> None:
    task = PlannedTask(key="sub", title="Subtract")
    test = SUM_TEST.replace("adds", "subtracts").replace("add(1, 1), 2", "sub(5, 3), 2")
    files = {"sum.js": SUM + "exports.sub = (a, b) => a - b;\n", "sub.test.js": test}
    lm = a_script(
        Call("edit", text=edits({"sub.test.js": test})),
        Call("check", tests=["sub.test.js"]),
        Call("edit", text=edits(files)),
        Call("check"),
        DONE,
    )
    about: dict[str, Any] = {"files": {"sum.js": SUM, "sum.test.js": SUM_TEST}, "command": NODE}
    async with a_bench(tmp_path, task, **about) as (bench, [planned]):
        result = await work(bench, planned, lm)
    assert result.status == "completed", result
    _, failed, _, passed = (call.result for call in calls_of(lm))
    assert "subtracts" in failed
    assert "2 passed" in passed


# --- people ---------------------------------------------------------------------------------------


async def test_a_question_waits_for_its_answer_and_the_conversation_continues(
    tmp_path: Path,
) -> None:
    lm = a_script(Call("look", path="calc.sh"), Call("ask", question="Decimals too?"), RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        asked = await work(bench, task, lm)
        assert (asked.status, asked.question) == ("blocked", "Decimals too?")
        blocker = await bench.store.add_blocker(task.id, asked.question)
        again = await work(bench, task, lm)
        assert again.status == "blocked"  # nobody has answered
        await bench.store.answer_blocker(blocker.id, "No, integers.")
        result = await work(bench, task, lm)
    assert result.status == "completed"
    lm.assert_complete()
    assert [call.name for call in calls_of(lm)] == ["look", "ask", "edit"]
    assert calls_of(lm)[1].result == "No, integers."


async def test_a_note_reaches_a_conversation_before_its_next_round(tmp_path: Path) -> None:
    seen: list[str] = []
    stores: list[tuple[Store, Task]] = []

    class Noting(ScriptedLM):
        async def fill(self, *args: Any, **options: Any) -> Any:
            [(store, task)] = stores
            await store.add_note(task.id, "Use the shell only.")
            return await super().fill(*args, **options)

    def answer(asked: Asked) -> Any:
        seen.append("\n".join(message.text for message in asked.prompt.conversation))
        return [Call("look", path="calc.sh"), RIGHT, DONE][len(seen) - 1]

    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        stores.append((bench.store, task))
        assert (await work(bench, task, Noting({WorkerLoop: answer}))).status == "completed"
    assert seen[1].count("A person says: Use the shell only.") == 1
    assert seen[2].count("Use the shell only.") == 1


async def test_a_note_is_shown_although_its_words_are_in_the_task(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(asked: Asked) -> Any:
        seen.append("\n".join(message.text for message in asked.prompt.conversation))
        return [Call("look", path="calc.sh"), RIGHT, DONE][len(seen) - 1]

    class Noting(ScriptedLM):
        async def fill(self, *args: Any, **options: Any) -> Any:
            await bench.store.add_note(task.id, "Write a function")
            return await super().fill(*args, **options)

    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        assert (await work(bench, task, Noting({WorkerLoop: answer}))).status == "completed"
    assert "Write a function sub" in seen[0]
    assert [prompt.count("A person says: Write a function") for prompt in seen[1:]] == [1, 1]


async def test_work_is_stopped_between_two_rounds_and_stored(tmp_path: Path) -> None:
    stops: list[bool] = []
    lm = a_script(RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        bench.should_stop = lambda _: bool(stops) or stops.append(True) or False
        result = await work(bench, task, lm)
        assert (result.status, result.error) == ("failed", "stopped after attempt 1")
        bench.should_stop = lambda _: False
        again = await work(bench, task, a_script(DONE))
    assert again.status == "completed"  # with the edit that was committed


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        ([Call("look", path="calc.sh")] * 3, "the same call 3 times"),
        ([Call("find", pattern=f"word{n}") for n in range(8)], "changed nothing in 8 rounds"),
        ([WRONG_EDIT, DONE, DONE, DONE], f"submitted the same work 3 times: {DONE!r}"),
        (["Which base?"] * 3, "submitted no change 3 times: 'Which base?'"),
    ],
    ids=["equal calls", "idle", "equal submissions", "no work"],
)
async def test_a_conversation_without_progress_asks_a_person(
    tmp_path: Path, rounds: list[Any], why: str
) -> None:
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        result = await work(bench, task, a_script(*rounds))
    assert result.status == "blocked"
    assert why in result.question


async def test_the_last_rounds_request_a_submission_before_a_person_is_asked(
    tmp_path: Path,
) -> None:
    seen: list[str] = []

    def answer(asked: Asked) -> Any:
        seen.append("\n".join(message.text for message in asked.prompt.conversation))
        return Call("find", pattern=f"word{len(seen)}")

    async with a_bench(tmp_path, files=FAILING, rounds=4) as (bench, [task]):
        result = await work(bench, task, ScriptedLM({WorkerLoop: answer}))
    assert "not done after 4 rounds" in result.question
    assert ["rounds are left" in prompt or "the last round" in prompt for prompt in seen] == [
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("limit", ["idle", "rounds"])
async def test_a_worker_can_still_use_an_answer_to_a_question_of_its_last_round(
    tmp_path: Path, limit: str
) -> None:
    looks = [Call("find", pattern=f"word{n}") for n in range(3)]
    lm = a_script(*looks, Call("ask", question="Decimals too?"), RIGHT, DONE)
    async with a_bench(tmp_path, files=FAILING, rounds=4 if limit == "rounds" else 40) as (
        bench,
        [task],
    ):
        bench.idle_rounds = 4 if limit == "idle" else 8
        asked = await work(bench, task, lm)
        blocker = await bench.store.add_blocker(task.id, asked.question)
        await bench.store.answer_blocker(blocker.id, "No, integers.")
        assert (await work(bench, task, lm)).status == "completed"
    lm.assert_complete()


async def test_bad_arguments_of_a_call_do_not_fail_a_task(tmp_path: Path) -> None:
    lm = a_script(
        Call("find", pattern="a{99999999999999}"),
        Call("check", tests=["x" * 300, "a\0b"]),
        Call("check", tests=["::test_add"]),
        Call("edit", text=edits({"git~1/x": "git does not keep this"})),
        Call("edit", text=f"--- a/calc.sh\n+++ b/calc.sh\n@@ -1 +{'9' * 5000} @@\n-a\n+b\n"),
        RIGHT,
        DONE,
    )
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        result = await work(bench, task, lm)
    assert result.status == "completed", result
    find, check, no_file, edit, diff, _ = calls_of(lm)
    assert "not a regular expression" in find.error
    assert check.error is not None
    assert "begin with its file" in no_file.error
    assert "belongs to git itself" in edit.error
    assert "Nothing was changed" in diff.error


async def test_the_question_at_a_limit_has_the_last_failure(tmp_path: Path) -> None:
    lm = a_script(WRONG_EDIT, DONE)
    async with a_bench(tmp_path, files=FAILING, rounds=2) as (bench, [task]):
        result = await work(bench, task, lm)
    first, _, rest = result.question.partition("\n\n")
    assert "was not done after 2 rounds" in first
    assert "It was refused: no test of sub.test.sh has passed" in first
    assert "sub is 8" in rest


# --- runs -----------------------------------------------------------------------------------------


async def test_an_interrupted_conversation_continues_without_repeating_a_call(
    tmp_path: Path,
) -> None:
    down = BaeLMError("the provider is down")
    lm = a_script(Call("look", path="calc.sh"), RIGHT, down, DONE)
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        assert (await work(bench, task, lm)).status == "failed"
        assert (await work(bench, task, lm)).status == "completed"
    lm.assert_complete()
    assert [call.name for call in calls_of(lm)] == ["look", "edit"]


async def test_a_worker_in_another_mode_starts_a_new_run_with_the_existing_work(
    tmp_path: Path,
) -> None:
    lm = a_script(WRONG_EDIT, BaeLMError("the provider is down"))
    other = ScriptedLM({"WorkerAnswer": [edits({"calc.sh": SUB})]})
    async with a_bench(tmp_path, files=FAILING) as (bench, [task]):
        assert (await work(bench, task, lm)).status == "failed"
        assert (await work(bench, task, other)).status == "completed"
    assert "echo $(($1 + $2)); }\n+sub()" in other.asked[0].prompt.text


async def test_the_mode_follows_the_lm_unless_it_is_set(tmp_path: Path) -> None:
    def worker(bench: Workbench, task: Task, lm: Any) -> BackendWorkerAgent:
        return BackendWorkerAgent(project_id=task.project_id, bench=bench, lm=lm)

    from bae.lm import AnthropicBackend

    async with a_bench(tmp_path) as (bench, [task]):
        native = AnthropicBackend("claude-sonnet-5", api_key="none")
        assert await worker(bench, task, native).find_mode() == "loop"
        assert await worker(bench, task, a_script(DONE)).find_mode() == "loop"
        assert await worker(bench, task, ScriptedLM({"WorkerAnswer": ["x"]})).find_mode() == (
            "oneshot"
        )
        bench.worker = "oneshot"
        assert await worker(bench, task, native).find_mode() == "oneshot"
