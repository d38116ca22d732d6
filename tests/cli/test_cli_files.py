"""Images and documents at the command line: a person gives a file by its path, sees what a run has,
and saves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bae.cli import main
from file_parts import DOT, NOTE, png

pytestmark = pytest.mark.once

APP = """
from __future__ import annotations
from bae import Document, Graph, Image, Node

class Claim(Node):
    text: str
    photo: Image
    papers: list[Document] = []

    async def __call__(self) -> Seen: ...

class Seen(Node):
    text: str

    async def __call__(self) -> Framed:
        return Framed(text=self.text)

class Framed(Node):
    text: str

    async def __call__(self) -> None: ...

graph = Graph(start=Claim, end=Framed)
"""
RUN = ["run", "app.py", "--lm", "scripted:script.json", "--journal", "runs.db"]


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    Path("script.json").write_text('[{"text": "white"}]')
    Path("dot.png").write_bytes(DOT.data)
    Path("note.txt").write_bytes(NOTE.data)
    return tmp_path


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main([*arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def run_with_files(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    sets = ["--set", "text=hi", "--set", "photo=@dot.png", "--set", 'papers=["@note.txt"]']
    return run(*RUN, *sets, *more, capsys=capsys)


def test_a_file_is_passed_by_path_and_shown_with_its_type_and_size(capsys):
    status, _, told = run_with_files(capsys)
    assert status == 0
    assert f"photo=Image(dot.png, image/png, {DOT.size} bytes)" in told
    status, shown, _ = run("runs", "show", "--journal", "runs.db", capsys=capsys)
    assert f'"[image dot.png, image/png, {DOT.size} bytes]"' in shown
    assert f"document note.txt, text/plain, {NOTE.size} bytes, {NOTE.hash[:19]}" in shown
    _, full, _ = run("runs", "show", "--full", "--journal", "runs.db", capsys=capsys)
    _, report, _ = run("runs", "show", "--json", "--journal", "runs.db", capsys=capsys)
    assert [file["hash"] for file in json.loads(report)["files"]] == [DOT.hash, NOTE.hash]
    assert DOT.base64[:30] not in report + full


@pytest.mark.parametrize("name", [DOT.hash, DOT.hash[7:15], "dot.png"])
def test_a_file_of_a_run_is_saved_by_its_name_or_hash(name, capsys):
    run_with_files(capsys)
    save = ["runs", "file", "last", name, "-o", "copy.png", "--journal", "runs.db"]
    assert run(*save, capsys=capsys)[0] == 0
    assert Path("copy.png").read_bytes() == DOT.data
    status, _, why = run(*save, capsys=capsys)
    assert status == 1
    assert "copy.png" in why
    assert run(*save, "--force", capsys=capsys)[0] == 0


def test_an_unknown_file_of_a_run_is_an_error_that_lists_its_files(capsys):
    run_with_files(capsys)
    save = ["runs", "file", "last", "other.png", "-o", "copy.png", "--journal", "runs.db"]
    status, _, why = run(*save, capsys=capsys)
    assert status == 1
    assert "no file of that name or hash: other.png" in why
    assert "image dot.png" in why
    assert not Path("copy.png").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("photo=@nothing.png", "nothing.png cannot be read: No such file or directory"),
        ("photo=@.", "cannot be read"),
        ("photo=@note.txt", "no JPEG, PNG, GIF or WebP"),
        ("photo=dot.png", "data URL"),
        ("photo=/etc/passwd", "data URL"),
        ("papers=@dot.png", "no PDF and no text"),
    ],
)
def test_an_unusable_file_is_an_error_with_the_reason(given, why, capsys):
    sets = ["--set", "text=hi", "--set", given]
    if not given.startswith("photo"):
        sets += ["--set", "photo=@dot.png"]
    status, _, told = run(*RUN, *sets, capsys=capsys)
    assert status == 1
    assert why in " ".join(told.split())


def test_a_path_in_json_input_is_not_read(capsys):
    for path in ("@dot.png", "dot.png"):
        given = json.dumps({"text": "hi", "photo": path})
        status, _, told = run(*RUN, "-i", given, capsys=capsys)
        assert status == 1
        assert "data URL" in told
    given = json.dumps({"text": "hi", "photo": DOT.data_url})
    assert run(*RUN, "-i", given, capsys=capsys)[0] == 0


def test_a_text_field_keeps_a_leading_at_sign(capsys):
    status, out, _ = run(
        *RUN, "--set", "text=@dot.png", "--set", "photo=@dot.png", "--json", capsys=capsys
    )
    assert status == 0
    assert "dot.png" not in json.dumps(json.loads(out).get("result", {}).get("photo", ""))


def test_a_missing_file_field_is_reported_with_an_example(capsys):
    status, _, told = run(*RUN, "--set", "text=hi", "--no-ask", capsys=capsys)
    assert status == 1
    assert "photo: @FILE, image" in told
    assert "--set photo=@FILE" in told


def test_the_prompts_of_a_graph_show_the_files_that_are_sent(capsys):
    Path("wide.png").write_bytes(png(40, 30))
    sets = ["--set", "text=hi", "--set", "photo=@wide.png"]
    status, shown, _ = run("prompts", "app.py", *sets, capsys=capsys)
    assert status == 0
    assert "image 1" in shown
    assert "wide.png, image/png" in shown
    _, listed, _ = run("prompts", "app.py", *sets, "--json", capsys=capsys)
    prompt = json.loads(listed)["prompts"][0]
    assert prompt["files"][0]["label"] == "image 1"
    assert prompt["files"][0]["type"] == "image/png"
