"""`bae eval`: cases run with one LLM or several, the printed and written reports, and failures;
`--optimized` on every command that runs a graph."""

from __future__ import annotations

import asyncio
import csv
import gc
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from rich.console import Console
from rich.text import Text

from bae.cli.live.screen import ProgressLine
from bae.cli.signals import work
from bae.evals.page import format_cost, format_count, format_share
from bae.journal import SQLiteJournal
from default_signals import restore_signals

BOUND = 30.0
SOURCE = Path(__file__).parents[2] / "src"
APP = """
from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bae import Gate, Graph, Node


class Ticket(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    answer: str
    score: int = 0

    async def __call__(self) -> None: ...


graph = Graph(start=Ticket, end=Reply)


class Plain(Node):
    text: str

    async def __call__(self) -> Done:
        return Done(text=self.text.upper())


class Done(Node):
    text: str

    async def __call__(self) -> None: ...


class Careful(Node):
    text: str

    async def __call__(self) -> Reply:
        if "late" in self.text:
            raise RuntimeError("too late")
        return Reply(answer="dry it", score=1)


class Parked(Node):
    text: str

    async def __call__(self) -> Approval: ...


class Approval(Node):
    ok: Annotated[bool, Gate("Send it?")]

    async def __call__(self) -> Reply: ...


def exact(case, result):
    return result.result.model_dump().items() >= case.expected.items()


def longer(expected, given):
    return float(len(given.answer) >= len(expected.answer))


def choosy(case, result):
    if case.name == "gone":
        raise KeyError("no such thing")
    return 1.0


def near(case, result):
    return 0.997


def nearly(case, result):
    return 1 - 1e-9


def spoiling(case, result):
    Path("out/a.md").mkdir(exist_ok=True)
    return 1.0


async def held(case, result):
    if case.name == "late":
        import asyncio
        print("held", flush=True)
        await asyncio.Event().wait()
    return 1.0


def one_argument(case):
    return 1.0


BY_NODE = {Reply: longer}
WRONG = {"Reply": longer}
ELSEWHERE = {Done: longer}
ONE_NODE = {Reply: one_argument}
NUMBER = 5
"""
CASES = [
    {"name": "wet", "input": {"text": "It is wet."}, "expected": {"answer": "dry it"}},
    {"name": "late", "input": {"text": "It is late."}, "expected": {"score": 1}},
    {"name": "gone", "input": {"text": "It is gone."}, "expected": {"score": 1}},
]
SCRIPTS = {
    "good": [{"answer": "dry it", "score": 1}],
    "poor": [{"answer": "dry it", "score": 0}],
    "fails": [],
    "parked": [{}, {"answer": "x"}],
}
"""Every run starts a script again."""
RUN = ("run", "app.py", "--set", "text=a", "--lm", "scripted:good.json")


@pytest.fixture(autouse=True)
def project(folder):
    write_cases(*CASES)
    for name, script in SCRIPTS.items():
        Path(f"{name}.json").write_text(json.dumps(script))


@pytest.fixture
def evaluate(bae):
    """Calls `bae eval` with scripts."""

    def call(*more: str, lms: tuple[str, ...] = ("good",), app: str = "app.py") -> Any:
        named = [word for lm in lms for word in ("--lm", f"scripted:{lm}.json")]
        return bae("eval", app, "--data", "cases.jsonl", *named, "--concurrency", "1", *more)

    return call


def write_cases(*cases: Any) -> None:
    Path("cases.jsonl").write_text("".join(f"{json.dumps(case_)}\n" for case_ in cases))


def row(said: str, name: str) -> list[str]:
    """The words of the row that begins so."""
    line = next(line for line in said.splitlines() if line.strip().startswith(name))
    return line.strip().removeprefix(name).split()


def first_contender(file: str) -> Any:
    return json.loads(Path(file).read_text())["contenders"][0]


# Printed and written reports


def test_eval_prints_only_the_table_on_stdout(evaluate):
    done = evaluate(lms=("poor",))
    assert done.code == 0
    assert row(done.out, "total")[0] == "0.33"
    assert row(done.out, "total")[3:5] == ["3", "100"]  # cases, and the share of valid answers
    assert row(done.out, "Reply")[:1] == ["0.33"]
    assert "3 of 3 cases" in done.err
    assert "written to .bae/evals/" in done.err
    assert "\x1b" not in done.out + done.err
    quiet = evaluate("--quiet")
    assert quiet.err == ""
    assert row(quiet.out, "total")


def test_reports_without_a_given_name_are_written_beside_the_journal(
    evaluate,
):
    evaluate()
    evaluate()
    files = sorted(Path(".bae/evals").iterdir())
    assert sorted(file.suffix for file in files) == [".json", ".json", ".md", ".md"]
    assert Path(".bae/.gitignore").read_text() == "*\n"
    assert Path(".bae/runs.db").is_file()
    assert json.loads(next(f for f in files if f.suffix == ".json").read_text())["graph"]


def test_the_suffix_of_an_output_file_decides_its_format(evaluate):
    Path("real.md").write_text("old")
    Path("a.md").symlink_to("real.md")
    done = evaluate("-o", "a.md", "-o", "out/a.json", "-o", "out/a.csv")
    assert done.code == 0
    assert Path("a.md").is_symlink()
    assert "| scripted:good.json |" in Path("real.md").read_text()
    assert not [path for path in Path().iterdir() if path.name.endswith("writing")]
    assert first_contender("out/a.json")["total"]["calls"] == 3
    rows = list(csv.reader(io.StringIO(Path("out/a.csv").read_text())))
    assert {"scripted:good.json"} <= {cell for line in rows for cell in line}
    assert not Path(".bae/evals").exists()


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_report_that_cannot_be_written_at_the_end_is_printed_anyway(evaluate, how):
    done = evaluate("-o", "out/a.md", "--metric", "app.py:spoiling", *how)
    assert done.code == 1
    assert "out/a.md could not be written" in done.err
    if how:
        assert done.data["contenders"][0]["total"]["score"]["mean"] == 1.0
        assert done.data["files"] == []
    else:
        assert row(done.out, "total")[0] == "1.00"


def test_the_report_is_printed_with_a_note_if_no_file_can_be_written(evaluate):
    Path(".bae").write_text("no directory")
    done = evaluate()
    assert done.code == 0, done.err
    assert row(done.out, "total")[0] == "1.00"
    assert "no report is written, because .bae/evals cannot be written" in done.err
    assert "-o FILE" in done.err


def test_the_table_counts_scored_cases_and_never_rounds_a_score_up_to_1(evaluate):
    write_cases({"input": "a", "expected": {"score": 1}}, {"input": "b"}, {"input": "c"})
    done = evaluate()
    titles = done.out.splitlines()[0].split()
    at = titles.index("SCORED") - titles.index("VALID")
    for name, scored, cases in (("total", "3", "3"), ("Reply", "1", "3")):
        words = row(done.out, name)
        assert words[words.index("%") - 1 + at] == scored
        assert words[-1] == cases
    near = evaluate("--metric", "app.py:near")
    assert "of 3 cases, 3 scored less than 1" in near.out
    assert "  0.997  case 1" in near.out
    assert row(near.out, "total")[0] == "0.997"


def test_each_lm_has_a_row_in_the_table_with_its_difference(evaluate):
    done = evaluate(lms=("poor", "good"))
    assert done.code == 0
    lines = done.out.splitlines()
    total = lines.index("total")
    assert lines[total + 1].split()[:2] == ["scripted:poor.json", "0.33"]
    assert lines[total + 2].split()[:2] == ["scripted:good.json", "1.00"]
    assert "Reply" in lines[total + 3 :]
    assert "scripted:good.json against scripted:poor.json: +0.67 [" in done.out
    data = evaluate("--json", lms=("poor", "good")).data
    poor, good = data["contenders"]
    assert (poor["name"], good["name"]) == ("scripted:poor.json", "scripted:good.json")
    assert [case["score"] for case in poor["cases"]] == [1.0, 0.0, 0.0]
    assert data["differences"][0]["score"]["mean"] == pytest.approx(2 / 3)
    assert len(data["files"]) == 2
    assert all(Path(file).is_file() for file in data["files"])


def test_a_failed_case_scores_0_and_is_listed_with_the_command_that_shows_it(bae):
    done = bae("eval", "app.py:Careful", "--data", "cases.jsonl")
    assert done.code == 0, done.err  # the others ended
    assert row(done.out, "total")[0] == "0.67"
    assert "of 3 cases, 1 failed" in done.out
    assert "failed  late: " in done.out
    assert "too late" in done.out
    shown = bae(*done.command("runs show"))
    assert shown.code == 0
    assert "It is late." in shown.out


def test_the_lowest_scored_cases_are_listed_first_up_to_five(evaluate):
    write_cases(
        {"input": "a", "expected": {"answer": "dry it all"}},
        *({"input": f"{n}", "expected": {"answer": "no"}} for n in range(8)),
    )
    done = evaluate()
    listed = [line for line in done.out.splitlines() if line.startswith("  0.")]
    assert len(listed) == 5
    assert all(line.startswith("  0.00") for line in listed)
    assert "and 4 more, which the files have" in done.out


def test_eval_stores_its_runs_in_the_named_journal_or_nowhere(evaluate):
    none = evaluate("--no-journal", "-o", "a.md", lms=("poor",))
    assert none.code == 0
    assert "bae runs show" not in none.out
    assert not Path(".bae").exists()
    assert "-j mine.db" in evaluate("-j", "mine.db", lms=("poor",)).out

    async def ids() -> list[str]:
        async with SQLiteJournal("mine.db") as journal:
            return [info.run_id for info in await journal.runs()]

    assert [run_id[:5] for run_id in asyncio.run(ids())] == ["eval-"] * 3


def test_a_graph_without_llm_calls_needs_no_lm(bae):
    write_cases(*({"input": text, "expected": {"text": "A"}} for text in "ab"))
    done = bae("eval", "app.py:Plain", "--data", "cases.jsonl")
    assert done.code == 0, done.err
    assert row(done.out, "total")[0] == "0.50"


# When it fails


def test_a_score_below_fail_under_fails_the_command_and_names_the_lm(evaluate):
    done = evaluate("--fail-under", "0.5", lms=("good", "poor"))
    assert done.code == 1
    assert "scripted:poor.json scores 0.3333, which is less than --fail-under 0.5" in done.err
    assert "scripted:good.json scores" not in done.err
    assert evaluate("--fail-under", "0.5").code == 0
    near = evaluate("--fail-under", "1", "--metric", "app.py:nearly")
    assert near.code == 1
    assert "scripted:good.json scores 0.999999999, which is less" in near.err


def test_the_eval_command_fails_if_every_case_fails(evaluate):
    done = evaluate(lms=("fails",))
    assert done.code == 1
    assert "every case failed" in done.err
    assert "of 3 cases, 3 failed" in done.out


def test_a_case_has_the_answers_to_its_gates_or_fails(bae, evaluate):
    write_cases({"input": "a"})
    none = evaluate(lms=("parked",), app="app.py:Parked")
    assert none.code == 1
    assert "failed  case 1: " in none.out
    assert "of 1 case, 1 failed" in none.out
    assert '"answers": {"Approval.ok": …}' in none.out
    assert bae("runs", "list", "--status", "waiting", "--json").data == []  # for nobody to answer
    write_cases(
        {"input": "a", "answers": {"Approval.ok": True}, "nodes": {"Approval": {"ok": True}}},
        {"input": "b", "answers": {"Approval.ok": False}, "nodes": {"Approval": {"ok": True}}},
    )
    done = evaluate("-o", "a.json", lms=("parked",), app="app.py:Parked")
    assert done.code == 0, done.out
    assert row(done.out, "total")[0] == "0.50"
    assert row(done.out, "Approval")[0] == "0.50"
    assert first_contender("a.json")["cases"][1]["answers"] == {"Approval.ok": False}


def test_cases_that_do_not_fit_are_refused_with_their_lines_before_anything_runs(evaluate):
    write_cases({"input": {"txt": "a"}}, {"inputs": 1})
    done = evaluate()
    assert done.code == 1
    for said in ("line 1", "line 2", "[bae-cases-invalid]"):
        assert said in done.err
    assert not Path(".bae").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("--lm scripted:good.json", 2, "is there twice"),
        ("--metric app.py", 2, "--metric scoring.py:exact"),
        ("--metric app.py:nothing", 1, "it has Ticket, Reply, "),
        ("--metric app.py:NUMBER", 1, "give a function of a case and the result of its run"),
        ("--metric app.py:Ticket", 1, "the metric is <class 'app.Ticket'>: give a function"),
        ("--metric app.py:WRONG", 1, "the nodes of the graph are app.Ticket, app.Reply"),
        ("--metric app.py:ELSEWHERE", 1, "there is a metric for <class 'app.Done'>"),
        ("--metric nowhere.py:exact", 1, "--metric nowhere.py:exact: there is no file nowhere.py"),
        ("--metric app.py:one_argument", 1, "the metric is <function one_argument"),
        ("--metric app.py:ONE_NODE", 1, "def same(expected, given)"),
        ("--lm gpt", 2, "there is no LM named"),
        ("--optimized nowhere", 1, "nowhere"),
        ("--optimized ''", 2, "this names nothing"),
        ("--budget calls", 2, "calls=20"),
        ("--timeout 0", 2, "more than 0"),
        ("--timeout nan", 2, "not a number"),
        ("--data other.jsonl", 2, "it is there 2 times"),
        ("--journal j.db --no-journal", 2, "--journal names one"),
        ("-o ''", 2, "this names nothing"),
        ("-o report.txt", 2, ".md, .json, .csv"),
        ("-o fine/a.json -o cases.jsonl/a.md", 1, "-o cases.jsonl/a.md cannot be written: "),
        ("-o fine/a.json -o folder.md", 1, "-o folder.md cannot be written: "),
        ("-o pipe.md", 1, "-o pipe.md cannot be written: "),
        ("--fail-under .x", 2, "not a number"),
        ("--fail-under .5 -o report.txt", 2, ".md, .json, .csv"),
    ],
)
def test_invalid_options_are_refused_with_a_fix(evaluate, arguments, code, says):
    Path("folder.md").mkdir()
    os.mkfifo("pipe.md")
    done = evaluate(*shlex.split(arguments))
    assert done.code == code
    assert says in " ".join(done.err.replace("│", " ").split())
    assert not Path(".bae").exists()


def test_a_run_refuses_an_empty_artifact_name_and_contradicting_journals(
    bae, evaluate, monkeypatch
):
    for wrong in (("--optimized", ""), ("--journal", "j.db", "--no-journal")):
        assert bae(*RUN, *wrong).code == 2
    monkeypatch.setenv("BAE_JOURNAL", "mine.db")  # which is there for all commands
    assert bae(*RUN, "--no-journal").code == 0
    assert evaluate("--no-journal", "-o", "a.md").code == 0
    assert not Path("mine.db").exists()


# Metrics


def test_metrics_of_a_file_score_the_cases_or_the_nodes(evaluate):
    Path("half.json").write_text('[{"answer": "dry", "score": 1}]')
    assert row(evaluate(lms=("half",)).out, "total")[0] != "0.67"  # which counts a part as a part
    for name in ("app.py:exact", "app:exact"):
        assert row(evaluate("--metric", name, lms=("half",)).out, "total")[0] == "0.67"
    by_node = evaluate("--metric", "app.py:BY_NODE", lms=("poor",))
    assert row(by_node.out, "Reply")[0] == "1.00"  # no answer is shorter than what was expected
    assert row(evaluate(lms=("poor",)).out, "Reply")[0] == "0.33"


def test_judge_usage_is_printed_below_the_table(evaluate):
    Path("judge.json").write_text('[{"reason": "no", "grade": "poor"}]')
    judge = "\nfrom bae.optimizer import Judge\nJUDGE = {Reply: Judge('scripted:judge.json')}\n"
    Path("app.py").write_text(APP + judge)
    write_cases({"input": "a", "expected": {"score": 5}})
    done = evaluate("--metric", "app.py:JUDGE", "-o", "a.json", "-o", "a.md")
    assert done.code == 0, done.err
    assert done.out.splitlines()[3] == "judged with 1 LM call · 0 tokens · $0"
    assert "judged with 1 LM call" in Path("a.md").read_text()
    assert first_contender("a.json")["judging"]["calls"] == 1
    two = evaluate("--metric", "app.py:JUDGE", lms=("good", "poor"))
    assert "scripted:poor.json: judged with 1 LM call · 0 tokens · $0" in two.out
    assert "judged with" not in evaluate().out


def test_a_metric_that_raises_for_a_later_case_keeps_earlier_scores(evaluate):
    done = evaluate("--metric", "app.py:choosy", "-o", "a.json", "--quiet")
    assert done.code == 1
    assert row(done.out, "total")[0] == "1.00"
    assert "of 3 cases, 1 could not be scored" in done.out
    assert "1 case could not be scored, so the scores cover only the other cases" in done.err
    assert "no such thing" in done.err
    assert [case["score"] for case in first_contender("a.json")["cases"]] == [1.0, 1.0, None]


@pytest.mark.once
def test_evaluators_of_a_dataset_are_ignored_if_a_metric_is_given(bae, evaluate):
    pytest.importorskip("pydantic_evals")
    pytest.importorskip("yaml")
    Path("polite.py").write_text(
        "from dataclasses import dataclass\n"
        "from pydantic_evals.evaluators import Evaluator\n"
        "@dataclass\n"
        "class Polite(Evaluator):\n"
        "    def evaluate(self, ctx):\n"
        "        return 'please' in ctx.output.answer\n"
        "polite = Polite()\n"
    )
    Path("set.yaml").write_text(
        "cases:\n- name: wet\n  inputs: {text: a}\n  expected_output: {answer: dry it}\n"
        "evaluators:\n- Polite\n"
    )
    begin = ("eval", "app.py", "--data", "set.yaml", "--lm", "scripted:good.json")
    unnamed = bae(*begin)
    assert unnamed.code == 1
    assert "--evaluator scoring.py:Polite" in unnamed.err
    assert not Path(".bae").exists()
    named = bae(*begin, "--evaluator", "polite.py:Polite")
    assert named.code == 0, named.err
    assert row(named.out, "total")[0] == "0.00"
    scored = bae(*begin, "--metric", "app.py:near")
    assert scored.code == 0, scored.err
    assert row(scored.out, "total")[0] == "0.997"
    wrong = bae(*begin, "--evaluator", "polite.py:polite")
    assert "--evaluator polite.py:polite is no class" in wrong.err
    for refused in (
        evaluate("--evaluator", "polite.py:Polite"),  # of lines of JSON
        bae(*begin, "--evaluator", "polite.py:Polite", "--metric", "app.py:near"),
    ):
        assert refused.code == 1
        assert "--evaluator has no use" in refused.err


# Learned prompts


def learn(directory: str = "learned", answer: str = "dry it", known: Any = None) -> None:
    """Write an artifact for the replies of app.py."""
    sys.path.insert(0, ".")
    import app  # pyright: ignore[reportMissingImports]  # it is written by the test

    from bae.lm import LearnedPrompt, PromptExample
    from bae.optimizer.artifacts import Artifact, save_artifacts
    from bae.optimizer.node_schemas import schema_of

    known = known or {"Ticket": {"text": "Wet!"}}
    example = PromptExample(known=known, answer={"answer": answer})
    learned = LearnedPrompt(instruction="Reply in two words", examples=[example])
    artifact = Artifact(node="Reply", schema=schema_of(app.Reply), fill=learned)
    save_artifacts({app.Reply: artifact}, directory)


def test_each_lm_is_evaluated_with_and_without_learned_prompts(evaluate):
    learn()
    learn("more")
    done = evaluate("--optimized", "learned", "--optimized", "./more", lms=("poor", "good"))
    assert done.code == 0, done.err
    names = [line.strip().split("  ")[0] for line in done.out.splitlines()]
    with_prompts = ("", " + learned/", " + ./more/")
    assert names[2:8] == [
        f"scripted:{lm}.json{prompts}" for lm in ("poor", "good") for prompts in with_prompts
    ]
    Path("link").symlink_to("learned")
    twice = evaluate("--optimized", "learned", "--optimized", "link")
    assert twice.code == 2
    assert "--optimized link is there twice, once as learned" in twice.err


def test_a_learned_prompt_of_a_changed_class_is_refused_by_name(bae, evaluate):
    learn()
    Path("app.py").write_text(APP.replace("score: int = 0", "score: int = 0\n    mood: str"))
    for done in (evaluate("--optimized", "learned"), bae(*RUN, "--optimized", "learned")):
        assert done.code == 1
        for said in ("[bae-artifact-changed]", "Reply", "mood"):
            assert said in done.err


def test_a_parked_run_prints_a_command_that_keeps_its_learned_prompts(bae):
    learn(known={"Approval": {"ok": True}})
    run = ("run", "app.py:Parked", "--set", "text=a", "--lm", "scripted:parked.json", "--no-ask")
    done = bae(*run, "--optimized", "learned")
    assert done.code == 3
    assert "learned prompts from learned/: Reply (fill)" in done.err
    command = done.command("runs answer")
    assert "--optimized learned" in " ".join(command)
    Path("parked.json").write_text('[{"answer": "x"}]')
    answered = bae(*command)
    assert answered.code == 0, answered.err
    assert "learned prompts from learned/: Reply (fill)" in answered.err


def test_a_fork_with_a_missing_artifact_directory_is_not_created(bae):
    bae(*RUN, "--run-id", "one")
    done = bae("runs", "fork", "one", "--at", "0", "-m", "app.py", "--optimized", "nowhere")
    assert done.code == 1
    assert "[bae-artifact-missing]" in done.err
    assert len(bae("runs", "list", "--json").data) == 1


@pytest.mark.once
def test_a_run_with_learned_prompts_shows_them_to_the_model(bae, provider):
    learn(answer="dry it well")
    provider.always({"answer": "so"})
    run = ("run", "app.py", "--set", "text=Rain.", "--lm", "anthropic")
    assert bae(*run).code == 0
    assert bae(*run, "--optimized", "learned").code == 0
    plain, taught = (json.dumps(request.body) for request in provider.requests)
    assert "dry it well" not in plain
    assert "dry it well" in taught
    assert "Reply in two words" in taught


# Budgets and signals


@pytest.mark.skipif(os.name != "posix", reason="it sends itself a signal")
@pytest.mark.usefixtures("default_signals")
def test_work_interrupted_before_its_start_is_never_started():
    begun: list[int] = []

    async def begin() -> None:
        begun.append(1)

    class Interrupted(ProgressLine):
        def __enter__(self) -> Self:
            os.kill(os.getpid(), signal.SIGINT)
            return super().__enter__()

    ended = work(begin, Interrupted(Console(), quiet=True), lambda: "")
    gc.collect()  # a coroutine that nobody has awaited would be a warning, which is an error here
    assert (ended.code, ended.value, ended.error, begun) == (130, None, None, [])


@pytest.mark.once
def test_a_spent_budget_ends_the_command_with_the_finished_cases(evaluate, provider):
    provider.always({"answer": "dry it"})
    done = evaluate("--lm", "anthropic", "--budget", "calls=2", lms=())
    assert provider.received == 2
    assert done.code == 1
    assert "1 not run" in done.out
    assert "not every case was run: " in done.err
    none = evaluate("--lm", "anthropic", "--budget", "calls=0", "--fail-under", "0", lms=())
    assert none.code == 1
    assert "anthropic has no score, but --fail-under 0 needs a score" in none.err


@pytest.mark.once
@pytest.mark.skipif(os.name != "posix", reason="signals are sent to another process")
def test_ctrl_c_ends_the_command_with_the_finished_cases_printed_and_written():
    words = "eval app.py --data cases.jsonl --metric app.py:held --lm scripted:good.json -c 1"
    process = subprocess.Popen(
        [sys.executable, "-m", "bae", *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        preexec_fn=restore_signals,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=BOUND)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert row(out, "total")[0] == "1.00"
    assert "2 not run" in out
    assert "not every case was run" in err
    assert len([*Path(".bae/evals").iterdir()]) == 2
    assert "Traceback" not in err


def test_optimizing_without_dspy_shows_what_to_install(bae, monkeypatch):
    bae(*RUN)
    monkeypatch.setitem(sys.modules, "dspy", None)
    done = bae("optimize", "app.py", "-o", "learned", "--lm", "scripted:good.json")
    assert done.code == 1
    assert "[bae-lm-extra-missing]" in done.err
    assert "pip install" in done.err
    assert not Path("learned").exists()


# Tables


@pytest.mark.parametrize("width", [60, 80, 100])
def test_long_lm_names_do_not_push_out_important_columns_at_any_width(evaluate, monkeypatch, width):
    long = "a-model-with-a-name-of-words-and-version"
    for name in ("good", "poor"):
        Path(f"{name}.json").rename(f"{name}-{long}.json")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", f"{width}")
    said = Text.from_ansi(evaluate(lms=(f"good-{long}", f"poor-{long}")).out).plain
    titles = said.splitlines()[0].split()
    assert {"VALID", "CALLS", "TIME"} <= {*titles}
    assert ("COST" in titles) == (width > 60)
    table = said.partition(" against ")[0].splitlines()[:-1]
    assert all(len(line) <= width for line in table)
    assert any(f"good-{long}" in line for line in table)


def test_amounts_are_short_and_never_rounded_up_to_100_percent():
    assert [format_count(count) for count in (999, 12_400, 1_300_000)] == ["999", "12.4k", "1.3M"]
    assert [format_share(share) for share in (None, 0.0, 0.999, 1.0)] == [
        "-",
        "0 %",
        "99 %",
        "100 %",
    ]
    assert [format_cost(cost) for cost in (None, 0.0, 0.004)] == ["?", "$0", "$0.0040"]
    assert format_cost(12.5) == "$12.50"
