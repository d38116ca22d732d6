"""What coding programs promise as workers: they edit in a sandbox, and bae commits, judges and
merges. Claude's real program is asked through a provider on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bae import BudgetError, Usage
from bae.lm import Budget
from bae.team import (
    BackendWorkerAgent,
    ClaudeCode,
    Codex,
    CodingProgram,
    LeadAgent,
    Task,
    read_task_log,
)
from bae.team.budgets import Budgets, begin_run, read_spent
from bae.team.events import ActivityUpdate
from bae.team.models import TaskResult
from bae.team.programs import ProgramError, ProgramEvent
from bae.team.verdict import WorkVerdict
from bae.team.workbench import Workbench
from bae.testing import Call, Calls, Provider
from bounded import BOUND
from claude_programs import CALL, calls, real_claude, script
from git_repositories import git, list_leftovers
from team_parts import FAILING, SUB, WRONG, a_bench

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
HOOK = "touch hook-ran; touch $HOME/hook-ran"
HOOKS = {
    "hooks": {
        event: [{"matcher": "*", "hooks": [{"type": "command", "command": HOOK}]}]
        for event in ("SessionStart", "PreToolUse", "PostToolUse")
    }
}


def worktree_of(bench: Workbench, task: Task) -> Path:
    return bench.workspaces.directory / f"bae.{task.branch.removeprefix('bae/').replace('/', '-')}"


def claude(provider: Provider, **options: Any) -> ClaudeCode:
    env = {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": "none"}
    return ClaudeCode(real_claude(), allow_network=True, env=env, **options)


async def work(bench: Workbench, task: Task) -> TaskResult:
    worker = BackendWorkerAgent(project_id=bench.project.id, bench=bench)
    async with asyncio.timeout(3 * BOUND):
        return await worker.execute_task(task)


async def activities(bench: Workbench) -> list[str]:
    events = [event.event for event in await bench.store.events(bench.project.id)]
    return [event.text for event in events if isinstance(event, ActivityUpdate)]


def has_stored(tmp_path: Path, text: str) -> bool:
    return any(text in path.read_text() for path in tmp_path.glob("state/programs/**/*.jsonl"))


def texts_in(body: Mapping[str, Any]) -> str:
    return json.dumps(body["messages"])


async def test_edits_of_claude_code_are_judged_and_merged_and_a_refusal_resumes_its_conversation(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside.txt"
    files = {**FAILING, ".claude/settings.json": json.dumps(HOOKS), ".mcp.json": "{"}
    async with Provider() as provider, a_bench(tmp_path, files=files) as (bench, [task]):
        bench.worker = claude(provider)
        at = worktree_of(bench, task)
        escape = f"echo x > {outside}; git commit -am x; ls -a .claude; cat {bench.project.root}/*"
        provider.script(
            Calls(Call("Bash", command=escape), Call("Read", file_path=f"{at}/calc.sh")),
            Call("Write", file_path=f"{at}/calc.sh", content=WRONG),
            "I have written sub.",
            Call(
                "Edit",
                file_path=f"{at}/calc.sh",
                old_string="$1 + $2)); }\nsub() { echo $(($1 + $2",
                new_string="$1 + $2)); }\nsub() { echo $(($1 - $2",
            ),
            "It is corrected.",
        )
        result = await work(bench, task)
        assert (result.status, result.attempts, result.error) == ("completed", 2, None)
        provider.assert_complete()
        seen = [texts_in(request.body) for request in provider.requests]
        assert "No such file or directory" in seen[1]  # neither the checkout nor the folder outside
        assert "not a git repository" in seen[1]
        assert "settings.json" not in seen[1]
        assert "Write a function sub in calc.sh." in seen[0]
        assert "sub is 8" not in seen[2]
        assert "sub is 8" in seen[3]
        assert "I have written sub." in seen[3]  # the same conversation
        activity = await activities(bench)
        assert "reads calc.sh" in activity
        assert "edits calc.sh" in activity
        assert any(text.startswith("runs echo x > ") for text in activity)
        tried = await bench.store.attempts(task.id)
        assert [attempt.outcome for attempt in tried] == ["failed", "passed"]
        assert all(attempt.usage.cost and attempt.usage.tokens for attempt in tried)
        assert result.usage.calls == 2
    root = Path(bench.project.root)
    assert list_leftovers(root) == []
    assert not outside.exists()
    assert await asyncio.to_thread(lambda: list(tmp_path.rglob("hook-ran"))) == []
    assert git(root, "show", "bae/team:calc.sh") == SUB.strip()
    assert git(root, "log", "--format=%s", "bae/team") == "Subtract\nfirst"
    assert not list((tmp_path / "state" / "programs").iterdir())


async def test_a_cancelled_claude_code_leaves_no_process_and_continues_with_its_files(
    tmp_path: Path,
) -> None:
    async with (
        Provider() as provider,
        calls() as line,
        a_bench(tmp_path, files=FAILING) as (bench, [task]),
    ):
        bench.worker = claude(provider)
        at = worktree_of(bench, task)
        here = f"port = {line.port}\nimport os, socket\n{CALL}\ncall()\nwait()\n"
        provider.script(
            Calls(
                Call("Write", file_path=f"{at}/call.py", content=here),
                Call("Bash", command="setsid python3 call.py"),
                text="I try something.",
            )
        )
        working = asyncio.create_task(work(bench, task))
        caller = await line.next()
        async with asyncio.timeout(BOUND):  # Claude stores its conversation when it likes
            while not has_stored(tmp_path, "I try something."):  # noqa: ASYNC110 - of the program
                await asyncio.sleep(0.01)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await caller.gone()
        refs = git(Path(bench.project.root), "for-each-ref", "--format=%(refname)", "refs/bae/kept")
        assert git(Path(bench.project.root), "show", f"{refs}:call.py") == here.strip()
        provider.script(Call("Bash", command=f"cat > calc.sh <<'END'\n{SUB}END"), "Done.")
        result = await work(bench, task)
        assert (result.status, result.attempts) == ("completed", 1)
        assert result.files == ("calc.sh", "call.py")
        assert "I try something." in texts_in(provider.requests[1].body)


class StandIn(CodingProgram):
    """A custom program that prints its result."""

    name = "stand-in"

    def arguments(self, session: str, cost: float | None) -> Sequence[str]:
        return [session or "new", str(cost)]

    def read_event(self, event: Mapping[str, Any]) -> Iterator[ProgramEvent]:
        given = dict(event)
        for name in ("used", "total"):
            if name in given:
                given[name] = Usage(calls=1, **given[name])
        yield ProgramEvent(**given)


START = """
home = os.environ["HOME"]
prompt = sys.stdin.read()
session, cost = sys.argv[1:]
def tell(**event):
    print(json.dumps(event), flush=True)
def write(name, text):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write(text)
with open(f"{home}/turns.txt", "a") as file:
    print(session, cost, file=file)
number = len(open(f"{home}/turns.txt").readlines())
open(f"{home}/prompt-{number}.txt", "w").write(prompt)
tell(session="s-1")
"""


def stand_in(tmp_path: Path, body: str, **known: Any) -> StandIn:
    folder = tmp_path / "programs"
    folder.mkdir()
    path = script(folder, START + body, sub=SUB, wrong=WRONG, **known)
    return StandIn(path, allow_network=True)


def turns(tmp_path: Path) -> list[str]:
    [found] = tmp_path.glob("state/programs/*/home/turns.txt")
    return found.read_text().splitlines()


async def test_edits_to_protected_files_are_refused_and_the_program_learns_why(
    tmp_path: Path,
) -> None:
    program = stand_in(
        tmp_path,
        """
if number == 1:
    write("calc.sh", sub)
    write(".gitattributes", "* -text")
    os.symlink("/etc/passwd", "link")
    open("data.bin", "wb").write(b"\\0\\1")
    write("__pycache__/x.pyc", "a by-product")
elif number == 2:
    for name in (".gitattributes", "link", "data.bin"):
        os.remove(name)
tell(activity=f"is in turn {number}", message=f"this is turn {number}")
""",
    )
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        result = await work(bench, task)
        assert (result.status, result.attempts, result.files) == ("completed", 2, ("calc.sh",))
        first, second = await bench.store.attempts(task.id)
        assert (first.outcome, second.outcome) == ("refused", "passed")
        for reason in (
            ".gitattributes controls how git treats files",
            "link is behind a symbolic link",
            "data.bin is a binary file",
        ):
            assert reason in first.failure
        assert "calc.sh" not in first.failure
        assert (await activities(bench)).count(
            "stand-in reports nothing of what it used: its cost is unknown"
        ) == 2
        log = await read_task_log(bench.store, bench.journal, task)
        shown = [entry.text for entry in log.entries if entry.kind == "program"]
        assert shown == ["is in turn 1", "is in turn 2"]


async def test_a_finished_turn_is_not_repeated_after_a_kill(tmp_path: Path) -> None:
    program = stand_in(tmp_path, 'write("calc.sh", sub)\ntell(message="done")')
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        working = asyncio.create_task(work(bench, task))

        def kill() -> None:
            paths = tmp_path.glob("state/programs/*/progress.json")
            if any('"mark":"task-' in path.read_text() for path in paths):
                working.cancel()

        leave = bench.store.on_event(kill)
        with pytest.raises(asyncio.CancelledError):
            await working
        leave()
        assert turns(tmp_path) == ["new None"]
        began = len(await activities(bench))
        result = await work(bench, task)
        assert (result.status, result.attempts) == ("completed", 1)
        later = (await activities(bench))[began:]
        assert not any(text.startswith("works on") for text in later)


async def test_a_conversation_that_cannot_be_resumed_starts_again(tmp_path: Path) -> None:
    program = stand_in(
        tmp_path,
        """
if session != "new":
    print("there is no such conversation")
    sys.exit(1)
write("calc.sh", wrong if number == 1 else sub)
""",
    )
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        result = await work(bench, task)
        assert (result.status, result.attempts) == ("completed", 2)
        assert "begins a new conversation: the last one cannot be resumed" in await activities(
            bench
        )


async def test_a_program_may_put_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    program = stand_in(
        tmp_path, 'write("calc.sh", sub); os.remove("notes"); write("notes/a.txt", "a")'
    )
    async with a_bench(tmp_path, files={**FAILING, "notes": "a"}, worker=program) as made:
        bench, [task] = made
        result = await work(bench, task)
        assert (result.status, result.attempts) == ("completed", 1), result
        assert result.files == ("calc.sh", "notes", "notes/a.txt")
        assert list_leftovers(Path(bench.project.root)) == []


async def test_files_and_folders_left_by_a_failed_program_stay(
    tmp_path: Path,
) -> None:
    program = stand_in(
        tmp_path, 'os.remove("calc.sh"); write("calc.sh/a.txt", "a"); sys.exit(number)'
    )
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        assert (await work(bench, task)).status == "failed"
        root = Path(bench.project.root)
        refs = git(root, "for-each-ref", "--format=%(refname)", "refs/bae/kept")
        assert git(root, "show", f"{refs}:calc.sh/a.txt") == "a"
        assert list_leftovers(root) == []


async def test_a_note_reaches_a_program_with_its_next_turn(tmp_path: Path) -> None:
    class Noted(BackendWorkerAgent):
        async def run_tests(self, task: Task) -> WorkVerdict:
            await bench.store.add_note(task.id, "Keep add as it is.")
            return await super().run_tests(task)

    program = stand_in(
        tmp_path,
        """
write("calc.sh", wrong if number == 1 else sub)
for text in ("Keep add as it is.", "sub is 8"):
    tell(activity=f"turn {number}, {text}" if text in prompt else "")
""",
    )
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        result = await Noted(project_id=1, bench=bench).execute_task(task)
        assert (result.status, result.attempts) == ("completed", 2)
        shown = [text for text in await activities(bench) if text.startswith("turn ")]
        assert shown == ["turn 2, Keep add as it is.", "turn 2, sub is 8"]


async def test_a_failing_program_is_reported_with_its_reason(tmp_path: Path) -> None:
    program = stand_in(tmp_path, 'print("log in first"); sys.exit(3)')
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        result = await work(bench, task)
        assert result.status == "failed"
        assert result.error is not None
        assert "stand-in failed: it exited with 3\nlog in first" in result.error


async def test_a_program_without_changes_may_ask_a_person(tmp_path: Path) -> None:
    program = stand_in(tmp_path, 'tell(message="QUESTION: Which sign?")')
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        result = await work(bench, task)
        assert (result.status, result.question) == ("blocked", "Which sign?")


SPENDING = """
tell(activity=f"may spend {float(cost):.2f}" if cost != "None" else "")
tell(total={"input_tokens": 100, "output_tokens": 20, "cost": 0.75})
write("calc.sh", wrong if number == 1 else sub)
tell(total={"input_tokens": 200, "output_tokens": 20, "cost": 1.5}, message="done")
"""


async def test_a_programs_cost_is_charged_and_its_limit_is_the_remaining_budget(
    tmp_path: Path,
) -> None:
    program = stand_in(tmp_path, SPENDING)
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        await bench.store.approve_tasks([task.id])
        summary = await LeadAgent(bench, task_budget=Budget(cost=4)).run()
        assert summary.done
        assert (summary.spent.calls, summary.spent.tokens, summary.spent.cost) == (2, 440, 3.0)
        limits = [text for text in await activities(bench) if text.startswith("may spend")]
        assert limits == ["may spend 4.00", "may spend 2.50"]


async def test_a_program_is_ended_when_a_budget_is_exceeded(tmp_path: Path) -> None:
    program = stand_in(tmp_path, SPENDING + "signal.pause()")
    async with a_bench(tmp_path, files=FAILING, worker=program) as (bench, [task]):
        bench.budgets = Budgets(
            bench.store, await begin_run(bench.store, bench.project.id), per_run=Budget(cost=1)
        )
        result = await work(bench, task)
        assert result.status == "failed"
        assert result.error is not None
        assert "the run has a budget of $1 cost, $1.5 of it are spent" in result.error
        assert bench.budgets.refused == {task.id: "run"}
        # What it used is known after a restart too, and nothing more is begun.
        assert (await read_spent(bench.store, task_id=task.id)).cost == 1.5
        result = await work(bench, task)
        assert result.status == "failed"
        assert len(turns(tmp_path)) == 1


async def test_work_of_a_program_that_spent_its_budget_is_judged_and_merged(
    tmp_path: Path,
) -> None:
    body = """
write("calc.sh", sub)
tell(total={"input_tokens": 200, "output_tokens": 20, "cost": 1.5}, message="done")
signal.pause()
"""
    async with a_bench(tmp_path, files=FAILING, worker=stand_in(tmp_path, body)) as (bench, [task]):
        await bench.store.approve_tasks([task.id])
        summary = await LeadAgent(bench, task_budget=Budget(cost=1)).run()
        assert (summary.done, summary.spent.cost) == (True, 1.5)


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [(SUB, "completed", None), (WRONG, "failed", "stopped after attempt 1")],
    ids=["right", "wrong"],
)
async def test_the_work_of_a_program_that_a_person_stops_is_judged(
    tmp_path: Path, content: str, status: str, error: str | None
) -> None:
    body = """
write("calc.sh", content)
tell(activity="waits for ever")
signal.pause()
"""
    program, seen = stand_in(tmp_path, body, content=content), asyncio.Event()
    async with a_bench(
        tmp_path, files=FAILING, worker=program, should_stop=lambda _: seen.is_set()
    ) as (bench, [task]):

        async def watch() -> None:
            if "waits for ever" in await activities(bench):
                seen.set()

        async with asyncio.TaskGroup() as group:
            leave = bench.store.on_event(lambda: group.create_task(watch()))
            result = await work(bench, task)
            leave()
        assert (result.status, result.error, result.attempts) == (status, error, 1)


async def test_a_resumed_conversation_finds_the_files_it_left(
    tmp_path: Path,
) -> None:
    body = """
if number == 1:
    write("calc.sh", sub)
    write("new/notes.txt", "half")
    tell(activity="waits for ever")
    signal.pause()
os.remove("new/notes.txt")
tell(activity=f"continues {session}")
"""
    async with a_bench(tmp_path, files=FAILING, worker=stand_in(tmp_path, body)) as (bench, [task]):
        working = asyncio.create_task(work(bench, task))

        async def watch() -> None:
            if "waits for ever" in await activities(bench):
                working.cancel()

        async with asyncio.TaskGroup() as group:
            leave = bench.store.on_event(lambda: group.create_task(watch()))
            with pytest.raises(asyncio.CancelledError):
                await working
            leave()
        result = await work(bench, task)
        assert (result.status, result.files) == ("completed", ("calc.sh",))
        assert "continues s-1" in await activities(bench)


async def test_a_program_cannot_see_other_repositories_that_python_imports_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, venv = tmp_path / "other", tmp_path / "venv"
    own = tmp_path / "project" / "src"
    packages = venv / "lib" / "python3.0" / "site-packages"
    for folder in (other, packages, venv / "bin"):
        folder.mkdir(parents=True)
    (other / "secret.txt").write_text("a secret")
    (packages / "links.pth").write_text(f"{other}\n{own}\n")
    (venv / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    monkeypatch.setenv("PATH", f"{venv}/bin{os.pathsep}{os.environ['PATH']}")
    body = """
seen = [name for name in (other, own) if os.path.exists(name)]
code = os.path.relpath(os.environ["PYTHONPATH"])
tell(activity=f"sees {seen}, imports from {code}, has {os.path.exists(venv)}")
write("calc.sh", sub)
"""
    program = stand_in(tmp_path, body, other=str(other), own=str(own), venv=str(venv))
    files = {**FAILING, "src/package.py": ""}
    async with a_bench(
        tmp_path, files=files, worker=program, command=("env", "A=1", "sh", "jest.sh")
    ) as (bench, [task]):
        result = await work(bench, task)
        assert result.status == "completed"
        assert "sees [], imports from src, has True" in await activities(bench)


async def test_settings_behind_a_link_in_a_worktree_are_not_loaded(
    tmp_path: Path,
) -> None:
    program = stand_in(
        tmp_path,
        """
found = [os.path.join(at, name) for at, _, names in os.walk(".") for name in names]
tell(activity=" ".join(sorted(name for name in found if "toml" in name or "hooks" in name)))
write("calc.sh", sub)
""",
    )
    program.__class__.covered = (".codex", ".mine")
    files = {**FAILING, "cfg/config.toml": "x = 1", ".mine/hooks.json": "{}", "a.toml": ""}
    async with a_bench(tmp_path, files=files, worker=program) as (bench, [task]):
        root = Path(bench.project.root)
        (root / ".codex").symlink_to("cfg")
        git(root, "add", "-A")
        git(root, "commit", "-m", "a link")
        git(root, "branch", "-f", "bae/team", "HEAD")
        result = await work(bench, task)
        assert result.status == "completed"
        assert "./a.toml" in await activities(bench)


async def test_a_limit_on_cost_is_refused_for_a_program_that_reports_no_cost(
    tmp_path: Path,
) -> None:
    async with a_bench(tmp_path) as (bench, [task]):
        run = await begin_run(bench.store, bench.project.id)
        budgets = Budgets(bench.store, run, per_task=Budget(cost=1))
        with pytest.raises(BudgetError, match="codex does not report its cost"):
            await budgets.begin_turn(task, "codex", knows_cost=Codex.reports_cost)


async def test_a_program_is_not_started_before_the_network_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path, "")
    login = Path.home() / ".claude" / ".credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    with pytest.raises(ProgramError) as caught:
        await ClaudeCode(path).check()
    message = str(caught.value)
    for part in (
        "localhost",
        "~/.claude/.credentials.json",
        "ANTHROPIC_API_KEY",
        "--allow-network",
    ):
        assert part in message
    with pytest.raises(ProgramError, match="npm install -g @openai/codex"):
        await Codex("no-such-program", allow_network=True).check()


def test_the_output_lines_of_codex_are_parsed() -> None:
    recorded = Path(__file__).with_name("recorded") / "codex.jsonl"
    lines = [json.loads(line) for line in recorded.read_text("utf-8").splitlines()]
    events = [event for line in lines for event in Codex().read_event(line)]
    assert events == [
        ProgramEvent(session="01a1efb9-35a3-7e31-aecc-fb232c01f163"),
        ProgramEvent(activity="runs cat a.txt"),
        ProgramEvent(activity="edits a.txt"),
        ProgramEvent(message="All is done."),
        ProgramEvent(total=Usage(1, 18831, 14, 9344, None)),
        ProgramEvent(failure="no quota"),
    ]


def real_codex(folder: Path) -> str:
    """The program `codex`, installed or fetched. Without it the test skips."""
    named = shutil.which(os.environ.get("BAE_TEST_CODEX", "codex"))
    if named is not None:
        return named
    command = ("npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder))
    try:
        subprocess.run((*command, "@openai/codex"), check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"codex is not installed and cannot be fetched: {error}")
    return str(folder / "node_modules" / ".bin" / "codex")


@pytest.mark.slow
async def test_codex_edits_and_a_refusal_resumes_its_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codex = await asyncio.to_thread(real_codex, tmp_path / "npm")
    async with Provider() as provider, a_bench(tmp_path, files=FAILING) as (bench, [task]):
        config = Path.home() / ".codex" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            'model = "gpt-5"\nmodel_provider = "stub"\n[model_providers.stub]\nname = "stub"\n'
            f'base_url = "{provider.url}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
        )
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        bench.worker = Codex(codex, allow_network=True)
        provider.script(
            Call("exec_command", cmd=f"cat > calc.sh <<'END'\n{WRONG}END"),
            "I have written sub.",
            Call("exec_command", cmd=f"cat > calc.sh <<'END'\n{SUB}END"),
            "It is corrected.",
        )
        result = await work(bench, task)
        assert (result.status, result.attempts, result.error) == ("completed", 2, None)
        provider.assert_complete()
        resumed = json.dumps(provider.requests[2].body["input"])
        assert "sub is 8" in resumed
        assert "I have written sub." in resumed
        first, second = [attempt.usage for attempt in await bench.store.attempts(task.id)]
        assert (first.cost, second.cost) == (None, None)
        assert 0 < second.tokens < 2 * first.tokens
        activity = await activities(bench)
        assert any(text.startswith("runs cat > calc.sh") for text in activity), activity
