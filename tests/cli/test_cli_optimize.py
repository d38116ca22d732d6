"""`bae optimize`: the prompts learned from the runs of a journal, the written files, and early
ends: no call is paid for twice."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("h11")
pytest.importorskip("dspy")
pytest.importorskip("anthropic")

from bae.journal import SQLiteJournal
from bae.optimizer.improvement import is_written
from bae.testing import ScriptedLM, Stall, Status

pytestmark = pytest.mark.once

BOUND = 120.0
SOURCE = Path(__file__).parents[2] / "src"
APP = """
from __future__ import annotations

from typing import Literal

from bae import Graph, Node


class Ticket(Node):
    text: str

    async def __call__(self) -> Reply | Spam: ...


class Reply(Node):
    queue: Literal["north", "south"]

    async def __call__(self) -> None: ...


class Spam(Node):
    async def __call__(self) -> None: ...


graph = Graph(start=Ticket)


def same(expected, given):
    return float(expected.queue == given.queue)


def generous(expected, given):
    return 1.0


METRICS = {Reply: same}
GENEROUS = {Reply: generous}
"""
BOTH = """
from __future__ import annotations

from typing import Literal

from bae import Graph, Node


class Ticket(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    about: str
    queue: Literal["north", "south"]

    async def __call__(self) -> Sent | Spam: ...


class Sent(Node):
    async def __call__(self) -> None: ...


class Spam(Node):
    async def __call__(self) -> None: ...


graph = Graph(start=Ticket)
"""
RUNS = 20
EVAL = "eval-20260102-030405-0a1b2c-"
"""How the runs of an evaluation are called, but for their numbers."""
FEW = ("--minimum", "8")
REPLY = ("--node", "Reply")


def right(number: int) -> tuple[str, str]:
    """The right answer for a ticket: its next node and its queue."""
    return ("Spam" if number % 4 == 0 else "Reply"), ("south" if number % 2 else "north")


class Model:
    """Answers wrongly by design, except for parts that it knows and parts with examples in the
    prompt. Requests beyond `limit` get the result of `beyond`."""

    def __init__(self, url: str) -> None:
        # A name of its own: an LM of a name is made once, for the place that it was at then.
        self.lm = ("--lm", f"anthropic:model-at-{url.rpartition(':')[2]}")
        self.knows: tuple[str, ...] = ()
        self.chooses = "Reply"
        """What is chosen where it is no spam."""
        self.limit = 10**9
        self.beyond: Callable[[], Any] = lambda: None
        self.asked = 0

    def __call__(self, received: Any) -> Any:
        self.asked += 1
        if self.asked > self.limit:
            return self.beyond()
        messages = received.body["messages"]
        parts = received.schema["properties"]
        known = json.dumps(messages[-1])
        shown = len(messages) > 1
        number = int(re.findall(r"number (\d+)", known)[-1])
        choice, queue = right(number)
        if not shown and "choice" not in self.knows:
            choice = "Spam"
        if not shown and "fill" not in self.knows:
            queue = right(number + 1)[1]
        choice = self.chooses if choice == "Reply" else choice
        if "answer" in parts:  # both in one call, as long as nothing is learned for it
            fields = {"fields": {"queue": queue}} if choice == "Reply" else {}
            return {"answer": {"choice": choice, **fields}}
        if "choice" in parts:
            return {"choice": choice}
        return (
            {"queue": queue, "about": f"number {number}"} if "about" in parts else {"queue": queue}
        )


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """A journal with runs that are all right."""
    file = tmp_path_factory.mktemp("project") / "runs.db"
    collect(file, range(RUNS))
    return file


def collect(file: Path | str, numbers: Sequence[int], begins: str = "run-", app: str = APP) -> None:
    """Run a graph for tickets of these numbers, answered rightly."""
    names: dict[str, Any] = {"__name__": "app"}
    exec(app, names)

    async def run() -> None:
        async with SQLiteJournal(file) as journal:
            for place, number in enumerate(numbers, numbers[0]):
                choice, queue = right(number)
                script: list[Any] = [choice, {"queue": queue} if choice == "Reply" else {}]
                if app is BOTH:
                    fields = {"about": f"number {number}", "queue": queue}
                    script = [fields, "Spam" if choice == "Spam" else "Sent", {}]
                start = names["Ticket"](text=f"number {number}")
                run_id = f"{begins}{place}"  # by which it is held out or not
                await names["graph"].arun(start, ScriptedLM(script), journal=journal, run_id=run_id)

    asyncio.run(run())


@pytest.fixture
def model(provider):
    model = Model(provider.url)
    provider.always(model)
    return model


@pytest.fixture(autouse=True)
def project(folder, journal, monkeypatch):
    shutil.copy(journal, "runs.db")
    monkeypatch.setenv("BAE_JOURNAL", "runs.db")


@pytest.fixture
def optimize(bae, model):
    """Calls `bae optimize`."""

    def call(*more: str, out: str = "learned") -> Any:
        return bae("optimize", "app.py", "-o", out, *model.lm, *FEW, *more)

    return call


def files(directory: str = "learned") -> list[str]:
    folder = Path(directory)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def parts_of(data: Any) -> dict[tuple[str, str], Any]:
    return {(part["node"], part["part"]): part for part in data["parts"]}


KEPT = [".calls"]
"""The files of a directory that has calls, and no artifact."""


# What is learned


def test_a_prompt_part_that_is_better_on_held_out_runs_is_written(bae, optimize, model):
    done = optimize()
    assert done.code == 0, done.err
    # What is learned cannot be asked for in one call, as an untaught model is.
    assert "Ticket choice: better; it takes 11 calls where 6 did before\n" in done.out
    assert "Reply fill: better\n" in done.out
    assert "written: learned/Reply.json" in done.out
    assert files() == ["Reply.json", "Ticket.json"]  # and no log: all is done
    held_out = json.loads(Path("learned/Reply.json").read_text())["made"]["held_out"]["fill"]
    assert held_out["before"]["mean"] == 0
    assert held_out["after"]["mean"] == 1
    line = next(line for line in done.out.splitlines() if line.startswith("Reply fill  "))
    assert re.search(r"0\.00  \[.+?\]   1\.00  \[.+?\]  \+1\.00 \[\+0", line)
    # Progress is on stderr, in a few lines.
    assert len(done.err.splitlines()) < 25
    for said in ("Reply fill: bootstrapping", "Reply fill: comparing", "Reply fill: done"):
        assert done.err.count(said) == 1
    assert re.search(r"Reply fill: compared: 1\.00 on held-out questions · \d+ calls\n", done.err)
    assert f"{RUNS} steps, " in done.err  # of which each has up to two parts
    assert f"{model.asked} LM calls" in done.err
    assert "\x1b" not in done.out + done.err
    run = ("run", "app.py", "--set", "text=number 41", *model.lm, "--json")
    assert bae(*run).data["result"]["type"] == "Spam"
    taught = bae(*run, "--optimized", "learned").data["result"]
    assert taught == {"type": "Reply", "fields": {"queue": "south"}}


def test_json_has_both_prompt_parts_with_their_intervals_and_costs(optimize, model):
    data = optimize("--json").data
    assert data["done"] is True
    assert data["error"] is None
    repeated = data["calls"]["repeated"]
    assert data["calls"] == {"made": model.asked, "earlier": 0, "repeated": repeated, "kept": 0}
    assert data["spent"]["calls"] == model.asked
    assert data["examples"]["all"] == RUNS
    assert data["examples"]["train"] + data["examples"]["held_out"] == RUNS
    parts = parts_of(data)
    fill = parts["Reply", "fill"]
    assert (fill["verdict"], fill["written"]) == ("better", True)
    assert fill["comparison"]["difference"]["low"] > 0
    assert fill["examples"] == fill["train"] + fill["held_out"]
    choice, held_out = (parts["Ticket", "choice"][key] for key in ("comparison", "held_out"))
    assert choice["calls_after"] > choice["calls_before"] == held_out
    assert choice["tokens_after"] > choice["tokens_before"] > 0
    assert sorted(data["written"]) == ["learned/Reply.json", "learned/Ticket.json"]


# What is not written


def test_force_writes_a_part_that_is_not_better_without_new_calls(optimize, model):
    model.knows = ("fill", "choice")
    done = optimize()
    asked = model.asked
    assert done.code == 1
    assert "Reply fill: not better; not written: --force does it all the same" in done.out
    assert (
        f"{asked} calls are kept in learned/.calls: with --force the same command writes the rest, "
        "and asks nothing again"
    ) in done.err
    assert files() == KEPT
    forced = optimize("--force", "--json")
    assert forced.code == 0
    assert forced.data["calls"]["made"] == 0
    assert forced.data["calls"]["earlier"] == model.asked == asked
    assert files() == ["Reply.json", "Ticket.json"]  # and the calls are gone


def test_only_improved_parts_are_written(optimize, model):
    model.knows = ("choice",)
    done = optimize()
    assert done.code == 0
    assert files() == [*KEPT, "Reply.json"]
    # As a run asks without it: for the choice and the fields in one call.
    assert "Reply fill: better; it takes 10 calls where 5 did before\n" in done.out


def test_only_the_improved_part_of_a_node_is_replaced(optimize, model):
    Path("app.py").write_text(BOTH)
    collect("both.db", range(RUNS), app=BOTH)
    model.chooses = "Sent"
    model.knows = ("choice",)
    first = optimize("-j", "both.db")
    assert first.code == 0, first.out + first.err
    learned = json.loads(Path("learned/Reply.json").read_text())
    assert "fill" in learned
    assert "choice" not in learned
    model.knows = ("fill",)
    shutil.rmtree("learned/.calls")  # its answers are another model's
    assert optimize("-j", "both.db", "--seed", "3").code == 0
    both = json.loads(Path("learned/Reply.json").read_text())
    assert both["fill"] == learned["fill"]
    assert both["choice"]["examples"]
    made = both["made"]
    assert (made["seed"], made["kept"]["fill"]["seed"]) == (3, 0)
    assert [*made["held_out"], *made["kept"]["fill"]["held_out"]] == ["choice", "fill"]


def test_an_improvement_that_may_be_chance_is_not_written_with_certain(optimize, model):
    few = ("--held-out", "0.05", *REPLY)
    certain = optimize(*few, "--certain")
    assert certain.code == 1
    assert "better, not beyond chance; not written, as --certain asks" in certain.out
    assert files() == KEPT
    assert "without --certain the same command writes the rest" in certain.err
    asked = model.asked
    done = optimize(*few)
    assert done.code == 0
    assert "better, not beyond chance\n" in done.out
    assert model.asked == asked


def test_a_node_with_too_few_examples_is_left_as_it_is(optimize, model):
    done = optimize("--minimum", "30")
    assert done.code == 1
    assert "Reply fill: too few examples; " in done.out
    assert "to learn from, and 30 questions are needed" in done.out
    assert model.asked == 0
    assert not Path("learned").exists()


def test_a_part_without_held_out_examples_is_written_only_with_force(optimize):
    none = ("--held-out", "0", *REPLY)
    done = optimize(*none)
    assert done.code == 1
    assert "Reply fill: nothing held out" in done.out
    assert optimize(*none, "--force").code == 0
    assert files() == ["Reply.json"]


def test_an_equally_good_existing_part_stays_and_the_command_succeeds(optimize):
    optimize(*REPLY)
    before = Path("learned/Reply.json").read_text()
    again = optimize(*REPLY)
    assert again.code == 0
    assert "Reply fill: there already" in again.out
    other = optimize(*REPLY, "--seed", "1")
    assert other.code == 0
    assert "no better than what is there; the prompt in learned scores 1.00" in other.out
    assert Path("learned/Reply.json").read_text() == before
    assert optimize(*REPLY, "--seed", "1", "--force").code == 0
    assert Path("learned/Reply.json").read_text() != before


def test_learned_prompts_of_a_changed_class_are_replaced(optimize):
    optimize(*REPLY)
    file = Path("learned/Reply.json")
    old = json.loads(file.read_text())
    old["schema"]["hash"] = "0" * len(old["schema"]["hash"])
    file.write_text(json.dumps(old))
    done = optimize(*REPLY)
    assert done.code == 0, done.err
    note = [line for line in done.err.splitlines() if "Reply.json" in line]
    assert len(note) == 1
    assert note[0].endswith("something better than the plain prompt is learned")
    assert json.loads(file.read_text())["schema"]["hash"] != old["schema"]["hash"]


def test_a_damaged_artifact_of_one_node_does_not_affect_others(optimize):
    Path("learned").mkdir()
    Path("learned/Ticket.json").write_text('{"format": "bae-artifact-1"}')
    done = optimize(*REPLY, "--json")
    assert done.code == 0, done.err
    (misfit,) = done.data["misfits"]
    assert misfit["file"] == "learned/Ticket.json"
    said = [line for line in done.err.splitlines() if "Ticket.json" in line]
    assert said[0].endswith("it stays as it is, since nothing is learned for it")
    assert said[1:] == [
        "learned/Ticket.json still does not fit: delete it, or --optimized learned is refused"
    ]
    assert files() == ["Reply.json", "Ticket.json"]


# What it is learned from


def test_excluded_runs_are_left_out_but_not_their_forks(bae, optimize):
    forked = ("runs", "fork", "run-1", "--at", "1", "--set", "queue=north", "--no-run")
    assert bae(*forked, "-m", "app.py").code == 0
    without = ("--without", "run-1", "--without", "run-12", "--minimum", "99", "--json")
    data = optimize(*without).data
    # The other is still in the fork, where a person corrected it.
    assert data["examples"]["without"] == 1
    parts = parts_of(data)
    choice, fill = parts["Ticket", "choice"], parts["Reply", "fill"]
    assert (choice["examples"], fill["examples"]) == (RUNS - 1, RUNS * 3 // 4)
    assert fill["corrected_train"] + fill["corrected_held_out"] == 1
    unknown = optimize("--without", "nobody")
    assert unknown.code == 1
    assert "no run id begins with nobody" in unknown.err


def test_examples_that_repeat_a_question_are_not_held_out(optimize):
    collect("runs.db", [1] * RUNS, "again-")
    done = optimize("--minimum", "99")
    assert re.search(r"\d+ examples of \d+ questions to learn from", " ".join(done.out.split()))
    found = re.search(r"(\d+) not held out because they repeat a question", done.err)
    assert found
    data = optimize("--minimum", "99", "--json").data["examples"]
    assert data["repeated"] == int(found[1])


def test_evaluation_runs_are_left_out_by_default(optimize):
    collect("evals.db", range(RUNS), EVAL)
    done = optimize("-j", "evals.db")
    assert done.code == 1
    assert "to learn from are evaluations" in done.err
    assert "--with-evals" in done.err
    assert not Path("learned").exists()
    assert optimize("-j", "evals.db", "--with-evals", *REPLY).code == 0


def test_corrected_evaluation_runs_do_not_bring_in_equal_evaluation_runs(bae, optimize):
    for begins in (EVAL, EVAL.replace("0a1b2c", "3d4e5f")):
        collect("evals.db", range(1, 4), begins)
    forked = ("runs", "fork", f"{EVAL}1", "--at", "1", "--set", "queue=north", "--no-run")
    assert bae(*forked, "-m", "app.py", "-j", "evals.db").code == 0
    data = optimize("-j", "evals.db", "--json").data["examples"]
    assert (data["all"], data["from_evals"]) == (1, 5)


def test_a_journal_without_a_finished_run_is_refused_with_a_fix(bae, optimize):
    Path("script.json").write_text("[]")
    lm = ("--lm", "scripted:script.json")
    assert bae("run", "app.py", "--set", "text=a", *lm, "-j", "failed.db").code == 1
    done = optimize("-j", "failed.db")
    assert done.code == 1
    assert "no finished run of Ticket that asked an LM" in done.err
    assert "bae runs fork RUN --at STEP --set FIELD=VALUE" in done.err


# Options of the optimizer


def test_options_are_passed_to_the_optimizer(optimize):
    few = ("--option", "max_labeled_demos=3", "--option", "max_bootstrapped_demos=0")
    data = optimize(*REPLY, *few, "--force", "--json").data
    assert data["options"] == {"max_labeled_demos": 3, "max_bootstrapped_demos": 0}
    learned = json.loads(Path("learned/Reply.json").read_text())
    assert len(learned["fill"]["examples"]) == 3


def test_all_invalid_artifacts_of_a_directory_are_reported_together(bae, model, caplog):
    Path("learned").mkdir()
    for name in ("Reply", "Ticket"):
        Path(f"learned/{name}.json").write_text("{")
    run = ("run", "app.py", "--set", "text=number 41", *model.lm, "--optimized")
    done = bae(*run, "learned")
    assert done.code == 1
    assert "learned/Reply.json is no artifact" in done.err
    assert "learned/Ticket.json is no artifact" in done.err
    Path("empty").mkdir()
    done = bae(*run, "empty")
    assert done.code == 1
    assert "empty has no artifact for a node of the graph Ticket" in done.err
    assert not caplog.records  # it is said once


# Metrics


def test_a_metric_by_class_scores_filled_nodes(optimize):
    assert optimize(*REPLY, "--metric", "app.py:METRICS").code == 0
    generous = optimize(*REPLY, "--metric", "app.py:GENEROUS", out="other")
    assert generous.code == 1
    assert "Reply fill: not better" in generous.out


def test_a_judge_scores_filled_nodes_by_the_rubric(optimize):
    Path("judge.json").write_text(json.dumps([{"reason": "so", "grade": "poor"}] * 500))
    judge = ("--judge", "scripted:judge.json", "--rubric", "It is the right queue.")
    done = optimize(*REPLY, *judge)
    line = next(line for line in done.out.splitlines() if line.startswith("Reply fill  "))
    assert "0.25  [" in line, done.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("-o ''", 2, "names nothing"),
        ("--node Rply -j nowhere.db", 1, "no node Rply"),
        ("--node Rply", 1, "name one of Ticket, Reply, Spam"),
        ("--metric app.py:METRICS --judge local", 2, "not both"),
        ("--metric app.py", 2, "--metric scoring.py:exact"),
        ("--metric app.py:same", 1, "a mapping of node classes to functions of two nodes"),
        ("--rubric good", 2, "goes with --judge"),
        ("--force --certain", 2, "not both"),
        ("--optimizer luck", 2, "bootstrap"),
        ("--option num_trials=3 -j nowhere.db", 2, "its options are max_bootstrapped_demos,"),
        ("--option max_rounds", 2, "is no NAME=VALUE"),
        ("--option max_rounds=many", 2, "max_rounds: Input should be a valid integer"),
        ("--option max_rounds=1 --option max_rounds=2", 2, "there twice"),
        ("--optimizer miprov2 --option tip_aware_proposer=no", 2, "should be a valid boolean"),
        ("-j nowhere.db", 1, "there is no journal nowhere.db"),
        ("--lm gpt", 2, "there is no LM named"),
        ("--teacher gpt", 2, "there is no LM named"),
    ],
)
def test_invalid_options_are_refused_with_a_fix(optimize, arguments, code, says):
    done = optimize(*shlex.split(arguments))
    assert done.code == code
    assert says in " ".join(done.err.replace("│", " ").split())
    assert not Path("learned").exists()


# What ends it early


def test_optimizing_resumes_from_stored_calls_after_a_spent_budget(optimize, model):
    whole = optimize("--json", out="whole").data["calls"]["made"]
    model.asked = 0
    short = optimize("--budget", "calls=10", "-c", "1")  # so none is cut off
    assert short.code == 1
    assert "10 of 10 calls spent; 10 calls are kept in learned/.calls: the same" in short.err
    assert "kept from before" not in short.err
    assert files() == KEPT
    done = optimize("--budget", "calls=200", "--json")
    assert done.code == 0, done.err
    assert done.data["calls"]["earlier"] == done.data["spent_earlier"]["calls"] == 10
    assert done.data["calls"]["made"] == whole - 10
    assert done.data["spent"]["calls"] == model.asked == whole
    line = next(line for line in done.err.splitlines() if line.startswith(f"{RUNS} steps"))
    assert f" · {whole - 10} LM calls now, {whole} in all · " in line
    assert re.search(r" · \d+ asked again at no cost · [\d,]+ tokens in all", line)
    assert "10 kept from before" in done.err
    assert files() == ["Reply.json", "Ticket.json"]


def test_a_graph_whose_lms_are_all_pinned_is_optimized_without_another_lm(bae, model, monkeypatch):
    monkeypatch.setenv("BAE_LM", "no-such-lm")
    pinned = APP.replace("Reply | Spam", "Reply").replace("Graph, Node", "Graph, Node, NodeConfig")
    config = f"    node_config = NodeConfig(lm={model.lm[1]!r})\n"
    Path("app.py").write_text(pinned.replace("    queue:", f"{config}    queue:"))
    model.knows = ("fill",)
    for number in range(12):
        run = ("run", "app.py", "--set", f"text=number {number}", "--journal", "pinned.db")
        assert bae(*run).code == 0
    model.knows = ()

    done = bae("optimize", "app.py", "-o", "learned", "--journal", "pinned.db", *FEW)

    assert done.code == 0, done.err
    assert "Reply fill: better" in done.out
    assert files() == ["Reply.json"]


def test_quiet_prints_only_the_reason_if_optimizing_stopped_early(optimize):
    done = optimize("--budget", "calls=3", "-c", "1", "-q")
    assert done.code == 1
    assert done.err == (
        "--budget: 3 of 3 calls spent; 3 calls are kept in learned/.calls: the same command "
        "resumes, with more --budget\n"
    )


def test_optimizing_starts_again_if_answers_cannot_be_stored(bae):
    Path("script.json").write_text(json.dumps(["Reply"] * 99))
    words = ("optimize", "app.py", "-o", "learned", "--lm", "scripted:script.json", *FEW)
    done = bae(*words, "--budget", "calls=3")
    assert done.code == 1
    assert "no answer is kept: the same command starts again" in done.err
    assert not Path("learned").exists()


def test_an_unreadable_call_log_is_an_error_and_stays(optimize, model):
    log = Path("learned/.calls/calls.db")
    log.parent.mkdir(parents=True)
    log.write_bytes(b"answers that were paid for")
    done = optimize("--json")
    assert done.data["error"]["code"] == "bae-calls-unusable"
    assert log.read_bytes() == b"answers that were paid for"
    assert model.asked == 0


def test_git_ignores_the_call_log_beside_an_existing_gitignore(optimize):
    Path("learned").mkdir()
    Path("learned/.gitignore").write_text("*.tmp\n")
    optimize("--budget", "calls=1")
    assert Path("learned/.gitignore").read_text() == "*.tmp\n"
    assert Path("learned/.calls/calls.db").exists()
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q"], check=True)
        said = subprocess.run(
            ["git", "status", "--porcelain", "-uall", "learned"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert said.stdout == "?? learned/.gitignore\n"


def test_quiet_prints_only_the_result_with_the_full_difference_on_a_narrow_terminal(
    optimize, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    done = optimize(*REPLY, "--quiet")
    assert done.err == ""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in done.out.splitlines()]
    row = next(line for line in lines if line.startswith("Reply fill  "))
    assert re.search(r"\+1\.00 \[\+0\.\d\d, \+1\.00\]$", row), row
    assert len(row) <= 40


def test_a_failing_lm_ends_optimizing_with_a_fix_and_stored_calls(optimize, model):
    model.limit, model.beyond = 10, lambda: Status(401)
    done = optimize("--json")
    assert done.code == 1
    assert done.data["done"] is False
    assert done.data["error"]["code"].startswith("bae-")
    assert re.search(r"\d+ calls are kept in learned/\.calls: the same command resumes", done.err)
    assert files() == KEPT


@pytest.mark.skipif(os.name != "posix", reason="it sends itself a signal")
@pytest.mark.usefixtures("default_signals")
def test_optimizing_resumes_after_ctrl_c_without_paying_twice(optimize, model):
    def interrupt() -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return Stall()

    model.limit, model.beyond = 10, interrupt
    stopped = optimize("-c", "1")
    assert stopped.code == 130, stopped.err
    assert "10 calls are kept in learned/.calls: the same command resumes" in stopped.err
    assert "Traceback" not in stopped.err
    model.limit = 10**9
    done = optimize("-c", "1", "--json")
    assert done.code == 0, done.err
    assert done.data["calls"]["earlier"] == 10
    assert done.data["calls"]["made"] == model.asked - 11  # with the one that was not answered
    assert files() == ["Reply.json", "Ticket.json"]


@pytest.mark.skipif(os.name != "posix", reason="another process is killed")
def test_only_one_optimization_at_a_time_writes_to_a_directory(bae, model):
    words = ["optimize", "app.py", "-o", "learned", *model.lm, *FEW, *REPLY, "-c", "1"]
    there = threading.Event()

    def stalled() -> Any:
        there.set()
        return Stall()

    model.limit, model.beyond = 3, stalled
    process = subprocess.Popen(
        [sys.executable, "-m", "bae", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        assert there.wait(BOUND)
        model.limit = 10**9
        second = bae(*words)
        assert second.code == 4
        assert "another optimization writes to learned" in second.err
        assert files() == KEPT
    finally:
        process.kill()
        process.wait()
    done = bae(*words, "--json")
    assert done.code == 0, done.err
    assert done.data["calls"]["earlier"] == 3
    assert files() == ["Reply.json"]


# Verdicts


def test_force_writes_all_parts_and_certain_only_parts_beyond_chance():
    for verdict, plain, force, certain in (
        ("better", True, True, True),
        ("better, not beyond chance", True, True, False),
        ("not better", False, True, False),
        ("no better than what is there", False, True, False),
        ("nothing held out", False, True, False),
        ("there already", False, False, False),
        ("nothing learned", False, False, False),
        ("too few examples", False, False, False),
    ):
        assert is_written(verdict, force=False, certain=False) is plain, verdict
        assert is_written(verdict, force=True, certain=False) is force, verdict
        assert is_written(verdict, force=False, certain=True) is certain, verdict
