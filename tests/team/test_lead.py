"""What the lead of a team promises, with real workers, git and sandboxes, and a scripted LLM."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from bae.exceptions import BaeError
from bae.lm import Budget
from bae.team import worker
from bae.team.lead import LeadAgent, TeamSummary
from bae.team.models import PlannedTask, Task, TaskResult, TaskStatus, TeamError
from bae.team.team_run import add_request, open_requests
from bae.team.workbench import Workbench
from bounded import BOUND
from git_repositories import commit_files, git, list_leftovers
from policy_parts import settle
from team_lead_process import TeamLM, never, right
from team_parts import Messages, a_bench, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
PENDING, READY, IN_PROGRESS = TaskStatus.PENDING, TaskStatus.READY, TaskStatus.IN_PROGRESS
BLOCKED, FAILED, COMPLETED = TaskStatus.BLOCKED, TaskStatus.FAILED, TaskStatus.COMPLETED
CANCELLED, SKIPPED = TaskStatus.CANCELLED, TaskStatus.SKIPPED


def break_code(count: int) -> str:
    """The answer of an LLM that breaks what there was, each time in another way."""
    return edits({"calc.sh": f"add() {{ echo {count}00; }}\n"})


def a_task(key: str, *depends_on: str, **more: Any) -> PlannedTask:
    return PlannedTask(key=key, title=f"Write {key}", depends_on=depends_on, **more)


def status_of(summary: TeamSummary) -> dict[str, TaskStatus]:
    assert sum(summary.counts.values()) == len(summary.tasks)
    for status, count in summary.counts.items():
        assert count == sum(task.status is status for task in summary.tasks)
    print(summary)  # shown where a test fails
    return {task.key: task.status for task in summary.tasks}


async def changes(bench: Workbench) -> list[tuple[str, str]]:
    """Every change of status, in order."""
    keys = {task.id: task.key for task in await bench.store.tasks(bench.project.id)}
    events = [event.event for event in await bench.store.events(bench.project.id)]
    return [(keys[e.task_id], e.status) for e in events if e.type == "task_status_changed"]


def history(bench: Workbench) -> list[str]:
    return git(Path(bench.project.root), "log", "--format=%s", "bae/team").splitlines()[::-1]


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(4 * BOUND):
        while not await ready():  # noqa: ASYNC110 - of another process, or of the lead
            await asyncio.sleep(0.01)


async def test_a_diamond_runs_concurrently_and_is_merged_with_one_commit_a_task(tmp_path: Path):
    both = asyncio.Barrier(2)

    async def together(key: str) -> str:
        async with both:
            return right(key)

    lm = TeamLM(left=lambda _: together("left"), right=lambda _: together("right"))
    tasks = [a_task("top"), a_task("left", "top"), a_task("right", "top")]
    tasks.append(a_task("end", "left", "right"))
    told = Messages()
    async with a_bench(tmp_path, *tasks, ws_manager=told) as (bench, _):
        summary = await LeadAgent(bench, lm).run()

        assert summary.ended == "done"
        assert summary.done
        assert set(status_of(summary).values()) == {COMPLETED}
        assert sorted(history(bench)) == sorted(
            ["first", "Write top", "Write left", "Write right", "Write end"]
        )
        assert history(bench)[:2] == ["first", "Write top"]
        assert history(bench)[-1] == "Write end"
        order = await changes(bench)
        assert order.index(("left", READY)) > order.index(("top", COMPLETED))
        assert order.index(("end", READY)) > order.index(("right", COMPLETED))
        assert await bench.store.agents(1) != []
        assert {agent.status for agent in await bench.store.agents(1)} == {"retired"}
        stored = await bench.store.events(bench.project.id, 1)  # the first is the plan
        events = [event.event for event in stored]
        assert len({e.agent_id for e in events if e.type == "agent_created"}) == 2  # used again
        sent = sorted(map(str, told.messages))
        assert sent == sorted(
            str(stored_event.to_message()) for stored_event in stored
        )  # each one once
        last = [e for e in events if e.type == "progress_update"][-1]
        assert last.counts == {str(status): n for status, n in summary.counts.items()}
    root = Path(bench.project.root)
    assert list_leftovers(root) == []
    assert summary.checkout is None
    assert summary.head == git(root, "rev-parse", "bae/team") != git(root, "rev-parse", "HEAD")
    assert (summary.spent.calls, summary.spent.tokens) == (4, 800)


async def test_a_failed_prerequisite_blocks_dependents_until_it_is_retried_and_merged(
    tmp_path: Path,
):
    failure = RuntimeError("the provider is gone")
    lm = TeamLM(base=lambda n: failure if n <= 2 else right("base"))
    async with a_bench(tmp_path, a_task("base"), a_task("on-it", "base")) as (bench, [base, on]):
        summary = await LeadAgent(bench, lm, retries=1).run()

        assert status_of(summary) == {"base": FAILED, "on-it": BLOCKED}
        assert lm.asked == ["base", "base"]  # the only task is retried like any other
        stored = await bench.store.task(on.id)
        assert stored.reason == "its prerequisite 'base' failed"
        assert "the provider is gone" in (await bench.store.task(base.id)).reason

        await add_request(bench.store, bench.project.id, "retry", base.id)
        summary = await LeadAgent(bench, lm).run()
        assert status_of(summary) == {"base": COMPLETED, "on-it": COMPLETED}


async def test_a_waiting_run_continues_a_task_after_its_answer(tmp_path: Path):
    lm = TeamLM(ask=lambda n: "QUESTION: Which number?" if n == 1 else right("ask"))
    async with a_bench(tmp_path, a_task("ask"), a_task("after", "ask")) as (bench, _):
        run = asyncio.create_task(LeadAgent(bench, lm, wait=True, poll=0.02).run())

        async def is_blocked() -> bool:
            return [task.status for task in await bench.store.tasks(1)] == [BLOCKED, BLOCKED]

        await until(is_blocked)
        [blocker] = await bench.store.blockers(1, open_only=True)
        assert blocker.question == "Which number?"
        await bench.store.answer_blocker(blocker.id, "One.")
        summary = await run
    assert status_of(summary) == {"ask": COMPLETED, "after": COMPLETED}


async def test_a_run_without_waiting_ends_at_open_questions(tmp_path: Path):
    lm = TeamLM(ask=lambda n: "QUESTION: Which number?" if n == 1 else right("ask"))
    lm.answers["other"] = right("other")
    async with a_bench(tmp_path, a_task("ask"), a_task("other")) as (bench, _):
        summary = await LeadAgent(bench, lm).run()
        assert summary.ended == "waiting"
        assert status_of(summary) == {"ask": BLOCKED, "other": COMPLETED}
        [blocker] = await bench.store.blockers(1)
        await bench.store.answer_blocker(blocker.id, "One.")
        assert (await LeadAgent(bench, lm).run()).done


async def test_a_cancelled_run_ends_every_worker(tmp_path: Path):
    lm = TeamLM(a=never, b=never)
    async with a_bench(tmp_path, a_task("a"), a_task("b"), a_task("c", "a")) as (bench, _):
        run = asyncio.create_task(LeadAgent(bench, lm).run())

        async def both_asked() -> bool:
            return len(lm.asked) == 2

        await until(both_asked)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        tasks = await bench.store.tasks(1)
        assert [task.status for task in tasks] == [READY, READY, PENDING]
        assert tasks[0].reason == "the run was cancelled"
        assert {agent.status for agent in await bench.store.agents(1)} == {"retired"}
        assert list_leftovers(Path(bench.project.root)) == []
        number = await bench.store.last_event(1)
        await settle()
        assert await bench.store.last_event(1) == number
        assert asyncio.all_tasks() == {asyncio.current_task()}

        lm.answers.clear()
        summary = await LeadAgent(bench, lm).run()
        assert set(status_of(summary).values()) == {COMPLETED}


async def test_a_run_ends_at_its_timeout(tmp_path: Path):
    async with a_bench(tmp_path, a_task("a")) as (bench, _):
        summary = await LeadAgent(bench, TeamLM(a=never), timeout=1.0).run()
        assert summary.ended == "timeout"
        [task] = summary.tasks
        assert (task.status, task.reason) == (READY, "the run was timed out")
    assert list_leftovers(Path(bench.project.root)) == []


async def test_a_task_without_progress_fails_and_can_be_retried(tmp_path: Path):
    async with a_bench(tmp_path, a_task("a")) as (bench, _):
        summary = await LeadAgent(
            bench, TeamLM(a=lambda n: never() if n == 1 else right("a")), task_timeout=3.0
        ).run()
        assert status_of(summary) == {"a": COMPLETED}
        assert ("a", FAILED) in await changes(bench)
        failed = [e.event for e in await bench.store.events(1) if "failed" in str(e.event)]
        assert any("no progress for 3 s" in str(event) for event in failed)


async def test_a_run_stopped_by_its_budget_continues_with_a_larger_budget(tmp_path: Path):
    lm = TeamLM()
    tasks = [a_task("a"), a_task("b", "a"), a_task("c", "b")]
    async with a_bench(tmp_path, *tasks) as (bench, _):
        summary = await LeadAgent(bench, lm, budget=Budget(calls=2)).run()
        assert summary.ended == "budget"
        assert status_of(summary) == {"a": COMPLETED, "b": COMPLETED, "c": READY}
        assert summary.tasks[2].reason == "the budget of the run is spent"
        assert (await LeadAgent(bench, lm, budget=Budget(calls=2)).run()).ended == "budget"

        summary = await LeadAgent(bench, lm, budget=Budget(calls=3)).run()
        assert (summary.ended, summary.spent.calls) == ("done", 3)
        assert summary.spent.cost == pytest.approx(0.3)


async def test_the_budget_of_a_task_fails_only_that_task(tmp_path: Path):
    lm = TeamLM(a=break_code)
    async with a_bench(tmp_path, a_task("a"), a_task("b")) as (bench, _):
        summary = await LeadAgent(bench, lm, task_budget=Budget(cost=0.15)).run()
        assert status_of(summary) == {"a": FAILED, "b": COMPLETED}
        assert "task 'a' has a budget of $0.15" in summary.tasks[0].reason
        assert lm.asked.count("a") == 1


async def test_a_person_can_pause_resume_and_stop_a_run(tmp_path: Path):
    held: dict[str, asyncio.Event] = {"a": asyncio.Event(), "b": asyncio.Event()}

    def wait(key: str) -> Callable[[int], Awaitable[str]]:
        async def answer(_: int) -> str:
            await held[key].wait()
            return right(key)

        return answer

    lm = TeamLM(a=wait("a"), b=wait("b"))
    async with a_bench(tmp_path, a_task("a"), a_task("b", "a"), a_task("c", "b")) as (bench, _):
        run = asyncio.create_task(LeadAgent(bench, lm, wait=True, poll=0.02).run())
        await lm.is_asked.wait()
        await add_request(bench.store, 1, "pause")
        held["a"].set()

        async def is_ready() -> bool:
            return (await bench.store.tasks(1))[1].status is READY

        await until(is_ready)
        assert lm.asked == ["a"]
        await add_request(bench.store, 1, "resume")

        async def b_is_asked() -> bool:
            return lm.asked == ["a", "b"]

        await until(b_is_asked)
        await add_request(bench.store, 1, "stop")
        held["b"].set()
        summary = await run
        assert summary.ended == "stopped"
        assert status_of(summary) == {"a": COMPLETED, "b": COMPLETED, "c": READY}


async def test_a_person_can_kill_and_skip_single_tasks(tmp_path: Path):
    lm = TeamLM(a=never, b=never)
    tasks = [a_task("a"), a_task("b"), a_task("on-a", "a"), a_task("on-b", "b")]
    async with a_bench(tmp_path, *tasks) as (bench, [a, b, *_]):
        run = asyncio.create_task(LeadAgent(bench, lm, poll=0.02).run())

        async def both_asked() -> bool:
            return len(lm.asked) == 2

        await until(both_asked)
        await add_request(bench.store, 1, "kill", a.id)
        await add_request(bench.store, 1, "skip", b.id)
        summary = await run
        assert status_of(summary) == {
            "a": CANCELLED,
            "b": SKIPPED,
            "on-a": BLOCKED,
            "on-b": COMPLETED,
        }
        assert summary.tasks[0].reason == "killed by a person"
        assert summary.tasks[2].reason == "its prerequisite 'a' was cancelled"
        assert summary.ended == "done"
    assert list_leftovers(Path(bench.project.root)) == []


async def test_stopping_a_task_finishes_its_current_attempt(tmp_path: Path):
    go_on = asyncio.Event()

    async def answer(count: int) -> str:
        await go_on.wait()
        return break_code(count)

    lm = TeamLM(a=answer)
    async with a_bench(tmp_path, a_task("a")) as (bench, [a]):
        run = asyncio.create_task(LeadAgent(bench, lm, poll=0.02).run())
        await lm.is_asked.wait()
        await add_request(bench.store, 1, "stop", a.id)

        async def is_taken() -> bool:
            return bench.should_stop(a.id)

        await until(is_taken)
        go_on.set()
        summary = await run
        assert status_of(summary) == {"a": CANCELLED}
        assert lm.asked == ["a"]
        assert len(await bench.store.attempts(a.id)) == 1
        assert await open_requests(bench.store, 1) == []


async def test_a_second_lead_on_the_same_project_is_refused(tmp_path: Path):
    lm = TeamLM(a=never)
    async with a_bench(tmp_path, a_task("a")) as (bench, _):
        run = asyncio.create_task(LeadAgent(bench, lm, poll=0.02).run())
        await lm.is_asked.wait()
        with pytest.raises(TeamError, match="another lead is working") as caught:
            await LeadAgent(bench, lm).run()
        assert caught.value.code == "bae-team-busy"
        await add_request(bench.store, 1, "kill")
        assert (await run).ended == "killed"


async def test_a_task_without_a_worker_is_refused_before_any_call(tmp_path: Path):
    lm = TeamLM()
    async with a_bench(tmp_path, a_task("a"), a_task("b", kind="poet")) as (bench, _):
        with pytest.raises(TeamError, match="no worker for tasks of the kind 'poet'"):
            await LeadAgent(bench, lm).run()
    assert lm.asked == []


async def test_a_run_without_an_lm_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BAE_LM", "no-such-model")
    async with a_bench(tmp_path, a_task("a")) as (bench, _):
        with pytest.raises(BaeError, match="BAE_LM is set, but"):
            await LeadAgent(bench).run()
        assert await bench.store.events(1, 1) == []  # nothing but the plan


async def test_a_worker_cannot_complete_its_task_by_a_false_result(tmp_path: Path):
    class Liar(worker.WorkerAgent):
        kind = "liar"

        async def execute_task(self, task: Task) -> Any:
            return TaskResult(status="completed", task_id=task.id, commit="0" * 40)

    class Broken(Liar):
        kind = "broken"

        async def execute_task(self, task: Task) -> Any:
            raise ValueError("half a worker")

    kinds = dict(worker._KINDS)
    try:
        for cls in (Liar, Broken):
            worker.register_worker(cls.kind, cls)
        tasks = [a_task("a", kind="liar"), a_task("b", kind="broken")]
        async with a_bench(tmp_path, *tasks) as (bench, _):
            summary = await LeadAgent(bench, TeamLM()).run()
    finally:
        worker._KINDS.clear()
        worker._KINDS.update(kinds)
    assert status_of(summary) == {"a": FAILED, "b": FAILED}
    assert summary.tasks[0].reason == "it was reported as completed, and is not merged"
    assert summary.tasks[1].reason == "ValueError: half a worker"


async def test_a_users_commit_during_a_run_is_merged_by_the_next_run(tmp_path: Path):
    tasks = a_task("a"), a_task("b", "a")
    async with a_bench(tmp_path, *tasks, update_checkout=True) as (bench, _):
        root = Path(bench.project.root)
        commit_files(root, {"mine.txt": "mine\n"}, "by the user")
        summary = await LeadAgent(bench, TeamLM()).run()
        assert summary.done
    assert (root / "mine.txt").exists()
    assert (root / "b.sh").exists()
    assert git(root, "rev-parse", "HEAD") == summary.head


async def test_tasks_can_be_edited_while_other_tasks_run(tmp_path: Path):
    go_on = asyncio.Event()

    async def answer(_: int) -> str:
        await go_on.wait()
        return right("a")

    lm = TeamLM(a=answer)
    async with a_bench(tmp_path, a_task("a"), a_task("b", "a"), a_task("c", "a")) as (bench, tasks):
        run = asyncio.create_task(LeadAgent(bench, lm, poll=0.02).run())
        await lm.is_asked.wait()
        await bench.store.drop_task(tasks[1].id)
        await bench.store.edit_task(tasks[2].id, a_task("c2", "a"))
        await bench.store.add_tasks(1, [a_task("d")])
        go_on.set()
        assert status_of(await run) == dict.fromkeys(["a", "c2", "d"], COMPLETED)


# Other processes

PROCESS = Path(__file__).with_name("team_lead_process.py")


@asynccontextmanager
async def a_process(bench: Workbench, *waiting: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that runs the team; it is killed in the end."""
    command = (sys.executable, str(PROCESS), str(bench.store.path), *waiting)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    """The first line that a process prints with a text in it."""
    assert process.stdout is not None
    async with asyncio.timeout(4 * BOUND):
        async for line in process.stdout:
            if text in line.decode():
                return line.decode()
    raise AssertionError(f"the process ended before {text}")


async def test_a_continued_killed_run_ends_like_an_undisturbed_run(tmp_path: Path):
    tasks = [a_task("a"), a_task("b"), a_task("c", "a", "b")]
    async with a_bench(tmp_path, *tasks) as (bench, _):
        async with a_process(bench) as process:
            await read_until(process, "merges")
        before = {task.key: task.commit for task in await bench.store.tasks(1)}
        async with a_process(bench) as process:
            ended = await read_until(process, '"ended"')

        assert json.loads(ended) == {"ended": "done", "calls": 3}  # none is paid for twice
        after = {task.key: task for task in await bench.store.tasks(1)}
        assert {task.status for task in after.values()} == {COMPLETED}
        assert all(after[key].commit == commit for key, commit in before.items() if commit)
        assert sorted(history(bench)) == ["Write a", "Write b", "Write c", "first"]
        agents = await bench.store.agents(1)
        assert {agent.status for agent in agents} == {"retired"}
    assert list_leftovers(Path(bench.project.root)) == []


async def test_other_processes_can_send_requests_and_answers(tmp_path: Path):
    async with a_bench(tmp_path, a_task("a"), a_task("b", "a")) as (bench, [a, _]):
        async with a_process(bench, "a") as process:
            await read_until(process, "task_assigned")
            with pytest.raises(TeamError, match="another lead is working"):
                await LeadAgent(bench, TeamLM()).run()
            await add_request(bench.store, 1, "skip", a.id)
            ended = await read_until(process, '"ended"')
        assert json.loads(ended)["ended"] == "done"
        assert [task.status for task in await bench.store.tasks(1)] == [SKIPPED, COMPLETED]


async def test_a_stopping_task_of_a_killed_run_is_not_resumed(tmp_path: Path):
    async with a_bench(tmp_path, a_task("a"), a_task("b")) as (bench, [a, _]):
        async with a_process(bench, "a") as process:
            await read_until(process, "task_assigned")
            await add_request(bench.store, 1, "stop", a.id)
            last = await add_request(bench.store, 1, "resume")

            async def are_taken() -> bool:
                return last not in await open_requests(bench.store, 1)

            await until(are_taken)
        summary = await LeadAgent(bench, TeamLM()).run()
        assert status_of(summary) == {"a": CANCELLED, "b": COMPLETED}
        assert await open_requests(bench.store, 1) == []


async def test_an_unread_request_to_stop_does_not_stop_the_next_run(tmp_path: Path):
    async with a_bench(tmp_path, a_task("a"), a_task("b")) as (bench, [_, b]):
        await add_request(bench.store, 1, "stop")
        await add_request(bench.store, 1, "stop", b.id)
        summary = await LeadAgent(bench, TeamLM()).run()
        assert status_of(summary) == {"a": COMPLETED, "b": CANCELLED}
        assert await open_requests(bench.store, 1) == []


async def test_a_paused_task_waits_and_a_resumed_task_continues(tmp_path: Path):
    async with a_bench(tmp_path, a_task("a"), a_task("b", "a")) as (bench, [a, _]):
        await add_request(bench.store, 1, "pause", a.id)
        summary = await LeadAgent(bench, TeamLM()).run()
        assert (summary.ended, status_of(summary)) == ("waiting", {"a": BLOCKED, "b": BLOCKED})
        assert summary.tasks[0].reason == "paused by a person"
        await add_request(bench.store, 1, "resume")
        assert (await LeadAgent(bench, TeamLM()).run()).done
