"""What the commands say to somebody who is new: where their own code raised, and what to do next in
the words of a command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae.cli import main

pytestmark = pytest.mark.usefixtures("folder")
APP = """
from __future__ import annotations

import json
from typing import Annotated

from bae import Dep, Graph, Node


def get_name() -> str:
    return {}["name"]  # dep


class Wear(Node):
    name: Annotated[str, Dep(get_name)]

    async def __call__(self) -> None: ...


class Ask(Node):
    async def __call__(self) -> Answer:
        json.loads("{")  # body
        return Answer(text="")


class Answer(Node):
    text: str

    async def __call__(self) -> None: ...


class Around(Node):
    inner: Annotated[Answer, Dep(Ask)]

    async def __call__(self) -> None: ...


class Empty(Node):
    async def __call__(self) -> Answer: ...


class First(Node):
    async def __call__(self) -> Last:
        return Last()


class Last(Node):
    async def __call__(self) -> None: ...


class Again(Node):
    async def __call__(self) -> Again:
        return Again()


graph = Graph(start=Ask)
"""


def line_of(mark: str) -> int:
    return next(i for i, line in enumerate(APP.splitlines(), 1) if line.endswith(f"# {mark}"))


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says on stderr that comes to nothing."""
    assert main([*arguments]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "mark", "function"),
    [("Ask", "body", "__call__"), ("Wear", "dep", "get_name"), ("Around", "body", "__call__")],
    ids=["a body", "a dep", "a body in a graph inside"],
)
def test_an_error_of_the_users_own_code_names_its_line_and_the_way_to_the_traceback(
    name: str, mark: str, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failed(capsys, "run", f"app.py:{name}", "--quiet")
    assert f"\n  at:    app.py:{line_of(mark)} in {function}\n" in said
    assert "; --debug shows the traceback\n" in said
    assert ".trace;" not in said


def test_the_line_of_an_error_is_in_its_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "app.py", "--json", "--quiet"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["at"] == f"app.py:{line_of('body')} in __call__"


def test_an_error_that_no_code_of_the_user_raised_has_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = failed(capsys, "run", "app.py:Again", "--max-iters", "2", "--quiet")
    assert "bae-limit-reached" in said
    assert "  at:" not in said
    assert "traceback" not in said


def test_a_module_that_cannot_be_imported_names_its_line_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("broken.py").write_text("def fail():\n    raise ValueError('no')\n\n\nfail()\n")
    said = failed(capsys, "check", "broken.py")
    assert "broken.py could not be imported, broken.py:2  [bae-module-failed]" in said
    assert said.count("broken.py:2") == 1
    assert said.count("traceback") == 1


def test_a_missing_language_model_is_told_in_a_line_each_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = failed(capsys, "run", "app.py:Empty", "--quiet")
    first, *lacking = said.partition("  try:   ")[2].splitlines()
    assert first == "name one with --lm, as --lm local, or set BAE_LM; `bae lm list` says more"
    assert [line.split(":")[0].strip() for line in lacking] == [
        "- anthropic",
        "- openai",
        "- claude-cli",
        "- local",
    ]
    assert "NodeConfig" not in said
    said = failed(capsys, "lm", "try")
    assert "try:   name one as in `bae lm try local`, or set BAE_LM; `bae lm list` says" in said


def test_a_bound_is_told_of_one_node_as_of_several_and_of_a_loop_only_where_there_is_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = failed(capsys, "run", "app.py:First", "--max-iters", "1", "--quiet", "--no-journal")
    assert "error exceeded 1 iterations: Last would be one more (First -> Last)  [" in said
    assert "  try:   --max-iters 2  (0 is no bound)\n" in said
    said = failed(capsys, "run", "app.py:Again", "--max-iters", "1", "--quiet", "--no-journal")
    assert "exceeded 1 iterations: Again would be one more (Again -> Again)" in said
    assert "; or give the loop a way out" in said


def test_an_unknown_field_is_told_with_something_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    said = failed(capsys, "run", "app.py:Answer", "--set", "zzz=1")
    assert "  try:   give one of its fields: text\n" in said
    said = failed(capsys, "run", "app.py:Answer", "--set", "txt=1")
    assert "  try:   did you mean text? Its fields are text\n" in said
    said = failed(capsys, "run", "app.py:Last", "--set", "zzz=1")
    assert "  try:   leave it out: it has no fields\n" in said


def test_a_step_that_a_run_has_not_is_told_by_the_option_that_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "app.py:First", "--run-id", "r1", "--quiet"]) == 0
    capsys.readouterr()
    said = failed(capsys, "runs", "fork", "r1", "--at", "9", "-m", "app.py:First")
    assert "give --at the number of a node" in said
    assert "at=" not in said


def test_a_failed_run_that_waits_for_nobody_is_not_said_to_have_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "app.py:Ask", "--run-id", "r2", "--quiet"]) == 1
    capsys.readouterr()
    for given in (["Ask.ok", "yes"], []):
        said = failed(capsys, "runs", "answer", "r2", *given, "-m", "app.py:First")
        assert "waits for no answer: it has failed" in said
