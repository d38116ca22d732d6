"""What a worker promises about its runs: alone or in a team, in steps, cancelled or killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bae import BaeLMError, Graph, Node, NodeError
from bae.team import (
    BackendWorkerAgent,
    EditError,
    FrontendWorkerAgent,
    Store,
    Task,
    TaskStatus,
    TeamError,
    TestWorkerAgent,
    WorkerAgent,
    register_worker,
    worker_kinds,
)
from bae.team.files import make_folder, remove_abandoned
from bae.team.git import Repository
from bae.team.models import as_planned
from bae.team.task_context import Context
from bae.team.team_run import lead_lock
from bae.team.verdict import WorkVerdict
from bae.team.worker import worker_class
from bae.team.worker_graph import WorkerAnswer, WorkRequest
from bae.team.worker_runs import name_run
from bae.testing import Call, Provider, ScriptedLM
from bae.testing.scripted import Asked
from bounded import BOUND
from git_repositories import descendants, git, list_leftovers
from team_parts import FAILING, RUN_SHELL, SUB, SUB_TASK, WRONG, a_bench, a_project, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
RIGHT = edits({"calc.sh": SUB})


# --- alone ----------------------------------------------------------------------------------------


async def test_a_single_worker_takes_and_returns_plain_dicts(tmp_path: Path) -> None:
    async with a_project(tmp_path) as (store, project, [task]):
        path = store.path
    worker = BackendWorkerAgent(
        project_id=project.id, db=path, root=project.root, lm=ScriptedLM({WorkerAnswer: [RIGHT]})
    )
    with pytest.raises(TeamError, match="needs the id of a stored task"):
        await worker.execute_task({"title": "Subtract numbers"})
    wanted = {"id": task.id, "title": "Subtract numbers", "assigned_to": "me"}
    result = await worker.execute_task(wanted)
    assert (result["status"], result["task_id"], result["files"]) == ("completed", 1, ["calc.sh"])
    root = Path(project.root)
    assert git(root, "log", "-1", "--format=%s", result["commit"]) == "Subtract numbers"
    assert list_leftovers(root) == []
    async with await Store.open(path) as store:
        stored = await store.task(task.id)
    assert (stored.status, stored.commit) == (TaskStatus.COMPLETED, result["commit"])
    assert (worker.completed, worker.failed) == (1, 0)


async def test_a_single_worker_stores_its_question_and_its_returned_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    down = BaeLMError("the provider is down")
    lm = ScriptedLM({WorkerAnswer: ["QUESTION: Decimals too?", down, RIGHT]})
    async with a_project(tmp_path) as (store, project, [task]):
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=lm)
        asked = await worker.execute_task(task)
        assert asked.status == "blocked"
        stored = await store.task(task.id)
        assert (stored.status, stored.reason) == (TaskStatus.BLOCKED, "Decimals too?")
        [blocker] = await store.blockers(project.id, open_only=True)
        assert blocker.question == "Decimals too?"
        await store.answer_blocker(blocker.id, "No.")

        assert (await worker.execute_task(task)).status == "failed"
        stored = await store.task(task.id)
        assert stored.status is TaskStatus.FAILED
        assert "the provider is down" in stored.reason
        assert [(record.levelname, record.name) for record in caplog.records] == [
            ("ERROR", "bae.team.worker_runs")
        ]
        assert (await worker.execute_task(task)).status == "completed"
        assert (await store.task(task.id)).status is TaskStatus.COMPLETED
        assert (worker.completed, worker.failed) == (1, 1)


async def test_cancelled_work_of_a_single_worker_can_be_taken_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_project(tmp_path) as (store, project, [task]):
        lm = Waiting()
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=lm)
        with caplog.at_level("INFO", "bae.team"):
            job = asyncio.create_task(worker.execute_task(task))
            await lm.is_asked.wait()
            assert (await store.task(task.id)).status is TaskStatus.IN_PROGRESS
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
        assert (await store.task(task.id)).status is TaskStatus.READY
        assert (worker.completed, worker.failed) == (0, 0)
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert "the work on task sub was cancelled" in caplog.text


async def test_a_single_worker_leaves_the_tasks_of_a_running_team_to_its_lead(
    tmp_path: Path,
) -> None:
    async with a_project(tmp_path) as (store, project, [task]):
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=ScriptedLM())
        repository = await Repository.open(Path(project.root))
        async with lead_lock(repository).hold(exclusive=True, timeout=BOUND):
            with pytest.raises(TeamError, match="a team is working on"):
                await worker.execute_task(task)
        assert (await store.task(task.id)).status is TaskStatus.PENDING


async def test_the_steps_of_a_worker_can_be_used_one_by_one(tmp_path: Path) -> None:
    lm = ScriptedLM({WorkerAnswer: [edits({"calc.sh": WRONG}), RIGHT]})
    async with a_project(tmp_path, files=FAILING) as (store, project, [task]):
        async with BackendWorkerAgent(project_id=project.id, db=store, lm=lm) as worker:
            context = await worker.build_context(task)
            assert "calc.sh" in context.files
            answer = await worker.generate_code(task, context)
            assert await worker.apply_file_changes(task, answer) == ("calc.sh",)
            with pytest.raises(EditError, match="change nothing"):
                await worker.apply_file_changes(task, answer)
            verdict = await worker.run_tests(task)
            assert "sub is 8" in verdict.text
            result = await worker.self_correct(task, verdict.text)
            assert (result.status, result.error) == ("completed", None)
        assert list_leftovers(Path(project.root)) == []
        assert git(Path(project.root), "log", "--format=%s", "bae/team") == "Subtract\nfirst"


async def test_a_worker_calls_anthropic_through_its_own_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("anthropic")
    async with Provider() as provider, a_project(tmp_path) as (store, project, [task]):
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        review = {"findings": [], "summary": "It is right."}
        provider.script(Call("edit", text=RIGHT), "I added sub.", review)
        worker = BackendWorkerAgent(project_id=project.id, db=store, api_key="sk-any")
        result = await worker.execute_task(task)
        assert (result.status, result.error) == ("completed", None)
        assert result.usage.output_tokens > 0
        asked, submitted, reviewed = provider.requests
        assert "Write a function sub in calc.sh." in str(asked.body)
        assert "changed: calc.sh" in str(submitted.body)
        assert "+sub() { echo" in str(reviewed.body)
        [stored] = (await store.reviews(project.id))[task.id]
        assert stored.headline == "no findings; It is right."


async def test_a_single_worker_executes_one_task_at_a_time(tmp_path: Path) -> None:
    tasks = [as_planned(SUB_TASK, key=key, title=f"Write {key}") for key in ("one", "two")]
    async with a_project(tmp_path, *tasks) as (store, project, added):

        def answer(asked: Asked) -> str:
            assert isinstance(asked.source, WorkRequest)
            return edits({f"{asked.source.task}.sh": "x=1\n"})

        lm = ScriptedLM({WorkerAnswer: answer})
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=lm)
        results = await asyncio.gather(*map(worker.execute_task, added))
        assert [result.status for result in results] == ["completed", "completed"]


async def test_a_script_with_the_former_name_of_a_node_still_works_with_a_warning(
    tmp_path: Path,
) -> None:
    async with a_bench(tmp_path) as (bench, [task]):
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=ScriptedLM({"Answer": [RIGHT]}))
        with pytest.warns(FutureWarning, match="the node Answer is called WorkerAnswer now"):
            assert (await worker.execute_task(task)).status == "completed"


async def test_workers_at_a_bench_that_name_the_same_lm_share_it(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    answers = [edits({name: "x=1\n"}) for name in ("one.sh", "two.sh")]
    script.write_text(json.dumps({"fills": {"WorkerAnswer": answers}}))
    tasks = [as_planned(SUB_TASK, key=key, title=f"Write {key}") for key in ("one", "two")]
    async with a_bench(tmp_path, *tasks) as (bench, added):
        for task in added:
            worker = BackendWorkerAgent(project_id=1, bench=bench, lm=f"scripted:{script}")
            assert (await worker.execute_task(task)).status == "completed"


async def test_a_worker_needs_a_store_or_a_bench() -> None:
    with pytest.raises(BaeLMError, match="no LM named 'nobody'"):
        BackendWorkerAgent(project_id=1, db="x", lm="nobody")
    with pytest.raises(TypeError, match="db="):
        BackendWorkerAgent(project_id=1)
    with pytest.raises(ValueError, match="Anthropic"):
        BackendWorkerAgent(project_id=1, db="x", lm="openai:gpt-5-mini", api_key="k")


def test_workers_can_be_registered_by_kind() -> None:
    assert worker_class("backend") is BackendWorkerAgent
    assert worker_class("frontend") is FrontendWorkerAgent
    assert worker_class("test") is TestWorkerAgent

    class Writer(WorkerAgent):
        kind = "poetry"

    with pytest.raises(TeamError, match="kind 'poetry'") as raised:
        worker_class("poetry")
    assert raised.value.fix is not None
    assert raised.value.fix.startswith("use one of backend, frontend, test")
    assert raised.value.fix.endswith("or register_worker('poetry', …)")
    register_worker("poetry", Writer)
    assert worker_class("poetry") is Writer
    assert worker_kinds()[-1] == "poetry"


async def test_a_worker_can_override_every_step(tmp_path: Path) -> None:
    done: list[str] = []

    class Own(WorkerAgent):
        async def build_context(self, task: Task) -> Context:
            done.append("context")
            return await super().build_context(task)

        async def generate_code(self, *args: Any, **options: Any) -> str:
            done.append("code")
            return RIGHT

        async def apply_file_changes(self, *args: Any, **options: Any) -> tuple[str, ...]:
            done.append("edits")
            return await super().apply_file_changes(*args, **options)

        async def run_tests(self, task: Task) -> WorkVerdict:
            done.append("tests")
            return await super().run_tests(task)

    async with a_bench(tmp_path) as (bench, [task]):
        worker = Own(project_id=1, bench=bench, lm=ScriptedLM())
        assert (await worker.execute_task(task)).status == "completed"
    assert done == ["context", "code", "edits", "tests"]


# --- cancelled and killed -------------------------------------------------------------------------


class Waiting(ScriptedLM):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def fill(self, *args: Any, **options: Any) -> Any:
        self.is_asked.set()
        await asyncio.Event().wait()


SLOW_TEST = "[ -e slow ] || exit 0\nsleep 600\n"


async def test_a_cancelled_task_keeps_its_work_and_leaves_nothing_running(tmp_path: Path) -> None:
    slow = {**FAILING, "slow.test.sh": SLOW_TEST}
    async with a_bench(tmp_path, files=slow) as (bench, [task]):
        lm = ScriptedLM({WorkerAnswer: [edits({"calc.sh": SUB, "slow": "x\n"})]})
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
        running = asyncio.create_task(worker.execute_task(task))
        async with asyncio.timeout(BOUND):
            while "sleep 600 " not in commands():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert commands() == []
        root = Path(bench.project.root)
        assert list_leftovers(root) == []
        assert git(root, "show", f"{task.branch}:calc.sh") == SUB.rstrip()
        assert len(await bench.store.events(1)) == await bench.store.last_event(1)


def commands() -> list[str]:
    """The processes that this one has started."""
    found: list[str] = []
    for pid in descendants(os.getpid()):
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [each for each in found if each]


async def test_a_task_cancelled_while_the_llm_writes_continues_later(tmp_path: Path) -> None:
    async with a_bench(tmp_path) as (bench, [task]):
        lm = Waiting()
        worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
        running = asyncio.create_task(worker.execute_task(task))
        await lm.is_asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        worker = BackendWorkerAgent(
            project_id=1, bench=bench, lm=ScriptedLM({WorkerAnswer: [RIGHT]})
        )
        result = await worker.execute_task(task)
        assert (result.status, result.attempts) == ("completed", 1)
        [info] = await bench.journal.runs()
        assert (info.run_id, info.status) == (name_run(task, 1), "ended")


async def test_a_killed_task_continues_and_no_answer_is_paid_for_twice(tmp_path: Path) -> None:
    async with a_project(tmp_path, files=FAILING) as (store, project, [task]):
        path = store.path
    program = Path(__file__).with_name("killed_worker.py")
    said: list[str] = []
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for event in (3, 4, 6, 99):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, str(program), str(path), str(project.id), str(task.id), str(event)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            timeout=BOUND,
        )
        said += done.stdout.splitlines()
        if done.returncode == 0:
            break
        assert done.returncode == -9
    assert said == ["asked 1", "asked 2", "completed after 2"]
    root = Path(project.root)
    assert git(root, "log", "--format=%s", "bae/team") == "Subtract\nfirst"
    async with await Store.open(path) as store:
        outcomes = [attempt.outcome for attempt in await store.attempts(task.id)]
    assert outcomes == ["failed", "passed"]
    assert list_leftovers(root) == []


async def test_a_question_that_never_reached_the_team_is_asked_without_another_llm_call(
    tmp_path: Path,
) -> None:
    async with a_bench(tmp_path) as (bench, [task]):
        for lm in (ScriptedLM({WorkerAnswer: ["QUESTION: Which way?"]}), ScriptedLM()):
            worker = BackendWorkerAgent(project_id=1, bench=bench, lm=lm)
            assert (await worker.execute_task(task)).question == "Which way?"
        await bench.store.add_blocker(task.id, "Which way?")
        worker = BackendWorkerAgent(
            project_id=1, bench=bench, lm=ScriptedLM({WorkerAnswer: [RIGHT]})
        )
        assert (await worker.execute_task(task)).status == "completed"


async def test_work_is_tested_again_once_its_missing_test_program_exists(
    tmp_path: Path,
) -> None:
    async with a_project(tmp_path, command=("sh", "missing/jest.sh")) as (store, project, [task]):
        lm = ScriptedLM({WorkerAnswer: [RIGHT] * 8})
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=lm)
        assert (await worker.execute_task(task)).status == "blocked"
        asked = len(lm.prompts)
        await store.save_project(project.model_copy(update={"test_command": RUN_SHELL}))
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=lm)
        result = await worker.execute_task(task)
        assert (result.status, len(lm.prompts) - asked) == ("completed", 1)


async def test_a_run_of_another_version_of_bae_starts_again(tmp_path: Path) -> None:
    class Assignment(Node):
        chapter: int

        async def __call__(self) -> None:
            raise OSError("the power is off")

    async with a_bench(tmp_path) as (bench, [task]):
        older, run = Graph(start=Assignment), name_run(task, 1)
        with pytest.raises(NodeError):
            await older.arun(Assignment(chapter=1), journal=bench.journal, run_id=run)
        worker = BackendWorkerAgent(
            project_id=1, bench=bench, lm=ScriptedLM({WorkerAnswer: [RIGHT]})
        )
        result = await worker.execute_task(task)
        assert (result.status, result.error) == ("completed", None)


def test_temporary_folders_of_killed_processes_are_removed() -> None:
    folder = make_folder()
    source = (
        "import os; from bae.team.files import make_folder; t = make_folder(); "
        "print(t.name, flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, check=False
    )
    left = Path(ran.stdout.strip())
    assert left.is_dir()
    remove_abandoned()
    assert not left.exists()
    assert Path(folder.name).is_dir()
    folder.cleanup()
    assert not Path(folder.name).exists()


async def test_an_edited_task_is_not_continued_with_its_old_work(tmp_path: Path) -> None:
    async with a_project(tmp_path) as (store, project, [task]):
        lm = ScriptedLM({WorkerAnswer: [RuntimeError("down"), RIGHT]})
        worker = BackendWorkerAgent(project_id=project.id, db=store, lm=lm)
        assert (await worker.execute_task(task)).status == "failed"
        await store.add_note(task.id, "Mind the sign.")
        planned = SUB_TASK.model_copy(update={"description": "Write sub for floats."})
        edited = await store.edit_task(task.id, planned)
        result = await worker.execute_task(edited)
        assert result.status == "completed"
        assert "Write sub for floats." in lm.prompts[-1].text
        assert "Mind the sign." in lm.prompts[-1].text
