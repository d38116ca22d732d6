"""The next steps that `bae` prints: suggested commands work unchanged, a resumed run reports
another model, useless values are not asked for, and an error names the line of the user's code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.lm.registry import LMKind

pytestmark = pytest.mark.once

APP = """
from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field

from bae import Dep, Gate, Graph, Node


def weather() -> str:
    return "Wet. " * 100


def down() -> str:
    raise RuntimeError("the service is down")  # dep


class Complaint(Node):
    text: str = Field(description="what the customer writes")

    async def __call__(self) -> Proposal: ...


class Proposal(Node):
    weather: Annotated[str, Dep(weather)]
    euros: int

    async def __call__(self) -> Approval:
        return Approval()


class Approval(Node):
    approved: Annotated[bool, Gate("Give it back?")]

    async def __call__(self) -> Letter: ...


class Letter(Node):
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Complaint, end=Letter)


class Silence(Node):
    sure: Annotated[bool, Gate("Sure?")]
    name: Annotated[str, Gate("Who?")]

    async def __call__(self) -> None: ...


class Shaky(Node):
    found: Annotated[str, Dep(down)]

    async def __call__(self) -> None: ...


class Alone(Node):
    name: Annotated[str, Gate("Who?")]

    async def __call__(self) -> None: ...


class Ask(Node):
    async def __call__(self) -> Letter:
        json.loads("{")  # body
        return Letter(text="")


class Around(Node):
    inner: Annotated[Letter, Dep(Ask)]

    async def __call__(self) -> None: ...


class First(Node):
    async def __call__(self) -> Last:
        return Last()


class Last(Node):
    async def __call__(self) -> None: ...


class Again(Node):
    async def __call__(self) -> Again:
        return Again()
"""
SCRIPT = {"fills": {"Proposal": [{"euros": 20}], "Letter": [{"text": "Here it is."}]}}
LM = ("--lm", "scripted:script.json")


@pytest.fixture(autouse=True)
def _script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("script.json").write_text(json.dumps(SCRIPT))
    monkeypatch.delenv("BAE_LM", raising=False)


@pytest.fixture
def machine(bae: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that offers a script for runs that are given no LM."""
    Path("other.json").write_text(json.dumps(SCRIPT))
    found = [LMKind("scripted", "", "", "scripted:other.json")]
    monkeypatch.setattr("bae.lm.registry.candidates", lambda: found)


def park_run(bae: Any, run_id: str = "g1") -> Any:
    done = bae("run", "app.py", "--set", "text=wet", *LM, "--run-id", run_id, "--no-ask")
    assert done.code == 3
    return done


# The model of a run that goes on


@pytest.mark.usefixtures("machine")
def test_a_run_resumed_with_another_lm_reports_the_change_once(
    bae: Any, caplog: pytest.LogCaptureFixture
) -> None:
    park_run(bae)
    done = bae("runs", "answer", "g1", "yes", "-m", "app.py")
    assert done.code == 0, done.err
    said = "the LM of this run so far was one without a name, such as a script; continuing with "
    # pytest has set up logging, which is left to show it then; else it is above the run.
    assert caplog.messages == [f"{said}scripted:other.json, --lm chooses another"]


@pytest.mark.usefixtures("machine")
def test_the_lm_is_not_mentioned_if_it_is_named_or_not_needed(
    bae: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    park_run(bae)
    assert "LM of this run" not in bae("runs", "answer", "g1", "yes", "-m", "app.py", *LM).err
    assert "LM of this run" not in bae("runs", "resume", "g1", "-m", "app.py").err
    park_run(bae, "g2")
    monkeypatch.setenv("BAE_LM", "scripted:script.json")
    assert "LM of this run" not in bae("runs", "answer", "g2", "yes", "-m", "app.py").err
    bae("run", "app.py:Alone", "--run-id", "a1", "--no-ask")
    monkeypatch.delenv("BAE_LM")
    assert "LM of this run" not in bae("runs", "answer", "a1", "Ann", "-m", "app.py:Alone").err


@pytest.mark.parametrize(
    ("model", "models", "same"),
    [
        ("SmolLM2-135M-Instruct", ("SmolLM2-135M-Instruct",), True),
        ("sonnet", ("claude-sonnet-4-5",), True),
        ("openai:gpt-5-mini", ("gpt-5-mini-2025-08-07",), True),
        ("gpt-5-mini", ("SmolLM2-135M-Instruct",), False),
        ("gpt-5-mini", (), False),
        ("", ("gpt-5-mini",), False),
    ],
)
def test_a_stored_model_name_is_matched_with_the_lm_option(
    model: str, models: tuple[str, ...], same: bool
) -> None:
    from bae.cli.lm import has_answered

    assert has_answered(model, models) is same


def test_an_unavailable_lm_is_refused_before_the_first_question(
    bae: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bae.cli.start.can_ask", lambda: pytest.fail("it looked for somebody"))
    monkeypatch.setenv("BAE_LM", "none")
    done = bae("run", "app.py")
    assert done.code == 1
    assert "bae-lm-missing" in done.err
    done = bae("run", "app.py", "--lm", "scripted:gone.json")
    assert "the script gone.json cannot be read" in done.err
    assert not Path(".bae").exists()


def test_an_error_reports_whether_the_previous_answer_is_stored(bae: Any) -> None:
    park_run(bae)
    answer = ("runs", "answer", "g1", "approved", "yes", "-m", "app.py")
    for name, code in (("scripted:no", 1), ("zzz", 2)):
        done = bae(*answer, "--lm", name)
        assert done.code == code
        assert "no answer is stored: the run still waits for it" in done.err
        assert "resume with" not in done.err
    Path("short.json").write_text('{"fills": {"Proposal": [{"euros": 20}]}}')
    done = bae(*answer, "--lm", "scripted:short.json")
    assert done.code == 1
    assert "the answer is stored, and progress is saved; after fixing it" in done.err
    (again,) = done.commands
    Path("short.json").write_text(json.dumps(SCRIPT))
    assert bae(*again).code == 0


# Commands to copy


def test_suggested_commands_name_the_module_unless_pyproject_does(bae: Any) -> None:
    park_run(bae)
    (command,) = bae("runs", "show", "g1").commands
    assert command == ["runs", "answer", "g1", "VALUE", "-m", "MODULE"]
    Path("pyproject.toml").write_text('[tool.bae]\ngraph = "app.py"\n')
    (command,) = bae("runs", "show", "g1").commands
    assert command == ["runs", "answer", "g1", "VALUE"]
    assert bae(*command[:-1], "yes", *LM).code == 0


def test_resuming_with_another_graph_is_refused_with_the_right_command(bae: Any) -> None:
    park_run(bae)
    done = bae("runs", "resume", "g1", "-m", "app.py:Alone")
    assert "name the module of the graph that it was begun with" in done.err
    assert done.commands == [["runs", "resume", "g1", "-m", "MODULE"]]
    bae("runs", "answer", "g1", "yes", "-m", "app.py", *LM)
    done = bae("runs", "resume", "g1", "-m", "app.py:Alone")
    assert "has ended before" not in done.err
    done = bae("runs", "resume", "g1", "-m", "app.py")
    assert "the run g1 has ended before, and nothing is done again" in done.err


def test_an_answer_to_an_ended_run_is_refused_with_its_outcome(bae: Any) -> None:
    park_run(bae)
    bae("runs", "answer", "g1", "yes", "-m", "app.py", *LM)
    for given in (["approved", "yes"], ["nothing", "yes"], ["yes"], []):
        done = bae("runs", "answer", "g1", *given, "-m", "app.py")
        assert done.code == 1
        assert "the run g1 has ended: it waits for no answer" in done.err
        assert done.commands == [["runs", "show", "g1"]]


def test_a_test_that_cannot_be_written_leaves_no_recording_behind(bae: Any) -> None:
    bae("run", "app.py:Alone", "--run-id", "a1", "--no-ask")
    Path("test_a1.py").mkdir()
    done = bae("runs", "test", "a1", "-m", "app.py:Alone", "-o", "test_a1.py", "--force")
    assert done.code == 1
    assert "test_a1.py could not be written" in done.err
    assert not Path("test_a1.jsonl").exists()


def test_a_replay_accepts_redacted_values_from_the_caller(bae: Any) -> None:
    park_run(bae)
    bae("runs", "answer", "g1", "yes", "-m", "app.py", *LM)
    bae("runs", "redact", "g1", "Complaint.text", "-y")
    done = bae("runs", "replay", "g1", "-m", "app.py")
    assert done.code == 1
    assert "give it again with --set Complaint.text=…" in done.err
    done = bae("runs", "replay", "g1", "-m", "app.py", "--set", "Complaint.text=wet")
    assert done.out == "went the same way: Complaint -> Proposal -> Approval -> Letter\n"
    done = bae("runs", "test", "g1", "-m", "app.py", "-o", "test_g1.py")
    assert "given=" not in done.err


@pytest.mark.parametrize("command", ["resume", "replay", "answer"])
def test_a_missing_module_is_reported_with_its_option(bae: Any, command: str) -> None:
    park_run(bae)
    done = bae("runs", command)
    assert done.code == 2
    assert "no MODULE was given" in done.err
    assert "with -m, as `-m app.py`" in done.err


# Answers without the name of the gate


def test_a_single_word_is_the_answer_to_the_only_open_gate(bae: Any) -> None:
    bae("run", "app.py:Alone", "--run-id", "a1", "--no-ask")
    done = bae("runs", "answer", "a1", "Alone.nam", "-m", "app.py:Alone")
    assert done.code == 1, "nearly the name of the gate"
    assert done.commands == [["runs", "answer", "a1", "Alone.name", "…", "-m", "app.py:Alone"]]
    done = bae("runs", "answer", "a1", "Ann Lee", "-m", "app.py:Alone")
    assert (done.code, done.out) == (0, "Alone\n  name: Ann Lee\n")


def test_an_answer_without_a_gate_is_refused_if_several_gates_are_open(bae: Any) -> None:
    bae("run", "app.py:Silence", "--run-id", "s1", "--no-ask")
    for given in (["yes"], []):
        done = bae("runs", "answer", "s1", *given, "-m", "app.py:Silence")
        assert done.code == 1
        first, second = done.commands
        assert first == ["runs", "answer", "s1", "Silence.sure", "yes", "-m", "app.py:Silence"]
        assert second == ["runs", "answer", "s1", "Silence.name", "…", "-m", "app.py:Silence"]
    assert bae(*first).code == 3
    assert bae(*second).code == 0


# Command lines that make no sense


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["run"], "no MODULE was given"),
        (["check"], "no MODULE was given"),
        (["run", "app.py", "--set", "text"], "--set text has no FIELD=VALUE"),
        (["run", "app.py", "--set", "text=a", "--set", "text=b"], "--set gives text twice"),
        (["run", "app.py", "--lm", "nonsense"], "there is no LM named 'nonsense'"),
        (["runs", "test", "-m", "app.py", "-o", "x.txt"], "x.txt is no Python file"),
    ],
)
def test_an_invalid_command_line_has_the_exit_code_2(bae: Any, given: list[str], said: str) -> None:
    done = bae(*given, *(LM if given[:2] == ["run", "app.py"] and "--lm" not in given else ()))
    assert done.code == 2
    assert f"error {said}" in done.err
    assert "  try:   " in done.err
    assert not list(Path().glob("x.*"))


# Lines


def test_a_long_value_is_shortened_but_not_its_duration(bae: Any) -> None:
    slow = "import time; time.sleep(0.02); return"
    Path("app.py").write_text(APP.replace('return "Wet.', f'{slow} "Wet.'))
    done = park_run(bae)
    (line,) = [line for line in done.err.splitlines() if "'Wet." in line]
    assert re.search(r"Wet\..*…  \(0\.\d+ s\)$", line), line
    assert len(line) <= 200


def test_a_failure_is_reported_with_its_node_and_its_error(bae: Any) -> None:
    done = bae("run", "app.py:Shaky", "--no-journal")
    assert done.err.count("the service is down") == 2
    assert not re.search(r"s  failed\b", done.err)


# Where the user's own code raised, and errors in the words of a command line


def line_of(mark: str) -> int:
    return next(i for i, line in enumerate(APP.splitlines(), 1) if line.endswith(f"# {mark}"))


def run_failing(bae: Any, *arguments: str) -> str:
    """Run a command that fails, and return its stderr."""
    done = bae(*arguments)
    assert done.code == 1
    return done.err


@pytest.mark.parametrize(
    ("name", "mark", "function"),
    [("Ask", "body", "__call__"), ("Shaky", "dep", "down"), ("Around", "body", "__call__")],
    ids=["a body", "a dep", "a body in a graph inside"],
)
def test_an_error_in_user_code_names_its_line_and_the_debug_option(
    name: str, mark: str, function: str, bae: Any
) -> None:
    done = bae("run", f"app.py:{name}", "--quiet", "--json")
    at = f"app.py:{line_of(mark)} in {function}"
    assert (done.code, done.data["error"]["at"]) == (1, at)
    printed_errors = done.err
    assert f"\n  at:    {at}\n" in printed_errors
    assert "; --debug shows the traceback\n" in printed_errors
    assert ".trace;" not in printed_errors


def test_an_error_outside_user_code_has_no_line(bae: Any) -> None:
    message = run_failing(bae, "run", "app.py:Again", "--max-iters", "2", "--quiet")
    assert "bae-limit-reached" in message
    assert "  at:" not in message
    assert "traceback" not in message


def test_a_module_that_cannot_be_imported_names_its_line_once(bae: Any) -> None:
    Path("broken.py").write_text("def fail():\n    raise ValueError('no')\n\n\nfail()\n")
    message = run_failing(bae, "check", "broken.py")
    assert "broken.py could not be imported, broken.py:2  [bae-module-failed]" in message
    assert message.count("broken.py:2") == 1
    assert message.count("traceback") == 1


def test_a_missing_lm_is_reported_with_a_line_for_each_alternative(
    bae: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAE_LM", "none")
    message = run_failing(bae, "run", "app.py", "--quiet")
    first, *lacking = message.partition("  try:   ")[2].splitlines()
    assert first == "name one with --lm, as --lm local, or set BAE_LM; `bae lm list` says more"
    assert [line.split(":")[0].strip() for line in lacking] == [
        "- anthropic",
        "- openai",
        "- claude-cli",
        "- local",
    ]
    assert "NodeConfig" not in message
    message = run_failing(bae, "lm", "try")
    assert "try:   name one as in `bae lm try local`, or set BAE_LM; `bae lm list` says" in message


def test_a_reached_limit_mentions_a_loop_only_if_the_graph_has_one(
    bae: Any,
) -> None:
    message = run_failing(bae, "run", "app.py:First", "--max-iters", "1", "--quiet", "--no-journal")
    assert "error exceeded 1 iterations: Last would be one more (First -> Last)  [" in message
    assert "  try:   --max-iters 2  (0 is no bound)\n" in message
    message = run_failing(bae, "run", "app.py:Again", "--max-iters", "1", "--quiet", "--no-journal")
    assert "exceeded 1 iterations: Again would be one more (Again -> Again)" in message
    assert "; or give the loop a way out" in message


def test_an_unknown_field_is_reported_with_a_fix(bae: Any) -> None:
    message = run_failing(bae, "run", "app.py:Letter", "--set", "zzz=1")
    assert "  try:   give one of its fields: text\n" in message
    message = run_failing(bae, "run", "app.py:Letter", "--set", "txt=1")
    assert "  try:   did you mean text? Its fields are text\n" in message
    message = run_failing(bae, "run", "app.py:Last", "--set", "zzz=1")
    assert "  try:   leave it out: it has no fields\n" in message


def test_an_unknown_step_is_reported_with_its_option(bae: Any) -> None:
    assert bae("run", "app.py:First", "--run-id", "r1", "--quiet").code == 0
    message = run_failing(bae, "runs", "fork", "r1", "--at", "9", "-m", "app.py:First")
    assert "give --at the number of a node" in message
    assert "at=" not in message


def test_an_answer_to_a_failed_run_reports_the_failure(bae: Any) -> None:
    assert bae("run", "app.py:Ask", "--run-id", "r2", "--quiet").code == 1
    for given in (["Ask.ok", "yes"], []):
        message = run_failing(bae, "runs", "answer", "r2", *given, "-m", "app.py:First")
        assert "waits for no answer: it has failed" in message
