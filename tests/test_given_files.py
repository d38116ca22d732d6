"""Files that a user or another program names: whatever is there, bae reads a file of a bounded size
or says why it does not, and never waits for it."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bae import BaeError, Graph, Node
from bae.evals import load_cases
from bae.journal import MemoryJournal
from bae.journal.export import RecordedRuns
from bae.lm import LocalBackend, resolve
from bae.testing import ScriptedLM

pytestmark = pytest.mark.once

APP = """
from __future__ import annotations

from bae import Graph, Node


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    answer: str

    async def __call__(self) -> None: ...


graph = Graph(start=Question)
"""


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    answer: str

    async def __call__(self) -> None: ...


graph = Graph(start=Question)


@pytest.fixture(autouse=True)
def _within_seconds() -> Iterator[None]:
    """What waits for a pipe fails."""

    def fail(*_: object) -> None:
        raise AssertionError("it still waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


async def load(path: Path) -> object:
    return await MemoryJournal().load(path)


READERS: dict[str, Callable[[Path], Any]] = {
    ".jsonl": lambda path: load_cases(path, graph),
    ".json": lambda path: load_cases(path, graph, own_metric=True),
    ".yaml": lambda path: load_cases(path, graph),
    ".script": ScriptedLM.from_file,
    ".scripted": lambda path: resolve(f"scripted:{path}"),
    ".py": lambda path: resolve(f"python:{path}:lm"),
    ".gguf": LocalBackend,
    ".runs": RecordedRuns.of,
    ".load": load,
}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("kind", ["named pipe", "device"])
async def test_a_file_that_is_not_a_regular_file_is_refused_at_once(
    tmp_path: Path, suffix: str, kind: str
):
    for package in {".gguf": ("xllamacpp",), ".json": ("pydantic_evals",)}.get(suffix, ()):
        pytest.importorskip(package)
    path = tmp_path / f"given{suffix}"
    if kind == "named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(BaeError) as raised:
        value = READERS[suffix](path)
        if hasattr(value, "__await__"):
            await value
    assert f"it is a {kind}, and only regular files are read" in str(raised.value)
    assert str(path) in str(raised.value) or suffix in raised.value.message


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".script"])
async def test_a_file_that_is_too_large_is_refused_with_the_bound(tmp_path: Path, suffix: str):
    path = tmp_path / f"large{suffix}"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)  # it takes no space
    with pytest.raises(BaeError, match="has more than 67,108,864 bytes"):
        READERS[suffix](path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    Path("script.json").write_text('[{"answer": "yes"}]')
    return tmp_path


def run_with_input(given: str) -> int:
    from bae.cli import main

    sys.modules.pop("app", None)
    arguments = ["run", "app.py", "--lm", "scripted:script.json", "--no-journal", "-i", given]
    return main(arguments)


def test_the_input_of_a_run_is_a_regular_file_of_a_bounded_size(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    os.mkfifo("pipe")
    for given, why in {
        "@pipe": "it is a named pipe",
        "@/dev/zero": "it is a device",
        "@": "No such file",
        "@.": "Is a directory",
        "-": "stdin has more than 67,108,864 bytes",
    }.items():
        monkeypatch.setattr(sys, "stdin", io.StringIO("x" * (64 << 20) + "x"))
        assert run_with_input(given) == 1
        assert why in capsys.readouterr().err


def test_the_input_of_a_run_may_come_from_a_command_of_the_shell(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    reading, writing = os.pipe()  # as for `-i @<(command)`

    def write() -> None:
        os.write(writing, b'{"text": ')
        while fcntl.ioctl(reading, termios.FIONREAD, b"1234") != bytes(4):
            time.sleep(0)  # until that was read, so that the rest is waited for
        os.write(writing, b'"hi"}')
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert run_with_input(f"@/dev/fd/{reading}") == 0, capsys.readouterr().err
    finally:
        writer.join()
        os.close(reading)
    assert "answer: yes" in capsys.readouterr().out


# Aliases of YAML


def test_yaml_aliases_that_expand_too_far_are_refused(tmp_path: Path):
    pytest.importorskip("pydantic_evals")
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for name, inner in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{inner}'] * 9)}]")
    within = tmp_path / "within.yaml"
    within.write_text("\n".join([*lines, "cases:", "- inputs: {text: *i}"]))
    long = tmp_path / "long.yaml"
    long.write_text(
        f"cases:\n- inputs: {{text: &t {'x' * 1000}}}\n" + "- inputs: {text: *t}\n" * 1001
    )
    itself = tmp_path / "itself.yaml"
    itself.write_text("cases:\n- inputs: &i {text: *i}\n")
    merged = tmp_path / "merged.yaml"
    merged.write_text("\n".join([*lines, "cases:", "- inputs: {text: a, <<: {more: *i}}"]))
    for file in (within, long, itself, merged):
        for own_metric in (False, True):
            with pytest.raises(BaeError, match=r"aliases \(\*name\) repeat more than") as raised:
                load_cases(file, graph, own_metric=own_metric)
            assert file.name in raised.value.message


@pytest.mark.parametrize("number", ["59:" * 2000 + "59", "59:" * 2000 + "5.5", "0b" + "1" * 9000])
def test_a_number_in_yaml_that_takes_long_to_parse_is_refused(number: str, tmp_path: Path):
    pytest.importorskip("pydantic_evals")
    file = tmp_path / "cases.yaml"
    file.write_text(f"cases:\n- inputs: {{text: {number}}}\n")
    with pytest.raises(BaeError, match="a number with more than 4,300 characters"):
        load_cases(file, graph)


def test_a_dataset_of_yaml_may_use_aliases_and_merge_keys(tmp_path: Path):
    pytest.importorskip("pydantic_evals")
    file = tmp_path / "cases.yaml"
    file.write_text(
        "cases:\n"
        "- {name: one, inputs: &i {text: wet}, expected_output: &e {answer: dry}}\n"
        "- {name: two, inputs: *i, expected_output: {<<: *e}}\n"
    )
    cases = load_cases(file, graph, own_metric=True)
    assert [case.name for case in cases] == ["one", "two"]
    assert [case.inputs for case in cases] == [{"text": "wet"}] * 2
    assert [case.expected for case in cases] == [{"answer": "dry"}] * 2
