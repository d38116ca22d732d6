"""`bae runs`: lists and shows runs of a journal, moves, deletes and redacts them, and refuses wrong
requests."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import select
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from bae import Graph, Node
from bae.cli import main
from bae.journal import SQLiteJournal
from bae.testing import ScriptedLM, Streamed
from bounded import BOUND
from wardrobe_runs import (
    WARDROBE,
    files,
    flat,
    read_notes,
    read_output,
    read_refusal,
    runs,
    write_runs,
)

pytestmark = pytest.mark.once
DB = ("-j", "runs.db")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a project: with a module, and nothing else."""
    (tmp_path / "wardrobe.py").write_text(WARDROBE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("BAE_JOURNAL", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    yield tmp_path
    for name in ("wardrobe", "talks"):
        sys.modules.pop(name, None)


@pytest.fixture
def journal(folder):
    asyncio.run(write_runs())
    return folder


CHAT = """
from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bae import Gate, Graph, Messages, Node, Thread


class Say(Node):
    text: str

    async def __call__(self) -> Reply:
        return Reply()


class Reply(Node):
    history: Annotated[Messages, Thread()] = Field(init=False)

    async def __call__(self) -> Said:
        before = [turn.reply for turn in self.history]
        return Said(text=f"{len(before)} before: {before[-1][:8] if before else ''}")


class Said(Node):
    text: str

    async def __call__(self) -> None: ...


class Ask(Node):
    sure: Annotated[bool, Gate("Are you sure?")]

    async def __call__(self) -> None: ...


graph = Graph(start=Say, end=Said)
asking = Graph(start=Ask, end=Ask)
"""


def test_a_conversation_is_run_listed_shown_and_written_as_a_test(folder, capsys):
    (folder / "talks.py").write_text(CHAT)
    for number in range(3):
        texts = ["--set", f"text=hello {number}", "--run-id", f"r{number}", "-q", "--json"]
        about = ["--metadata", "user_id=u1", "--metadata", f"n={number}"]
        assert main(["run", "talks.py", *texts, *about, "--thread", "ana", *DB]) == 0
    assert "2 before: 1 before" in capsys.readouterr().out
    main(["run", "talks.py", "--set", "text=other", "-q", *DB])
    capsys.readouterr()
    listed = json.loads(read_output(capsys, "list", *DB, "--thread", "ana", "--json"))
    assert [info["run_id"] for info in listed] == ["r2", "r1", "r0"]
    assert listed[0]["metadata"] == {"user_id": "u1", "n": 2}
    data = json.loads(read_output(capsys, "list", *DB, "--metadata", "n=1", "--json"))
    assert [info["run_id"] for info in data] == ["r1"]
    assert read_notes(capsys, "list", *DB, "--metadata", 'n="1"') == "no runs\n"
    shown = flat(read_output(capsys, "show", "r2", *DB))
    assert "thread ana" in shown
    assert 'metadata {"user_id": "u1", "n": 2}' in shown
    assert "<- 2 earlier turns, r0 to r1" in shown
    assert "2 earlier turns, r0 to r1" in read_output(capsys, "why", "r2", "Reply.history", *DB)
    assert "went the same way" in read_output(capsys, "replay", "r2", "-m", "talks.py", *DB)
    runs(capsys, "test", "r2", "-m", "talks.py", "-o", "test_talks.py", *DB)
    assert "recorded.run(graph, 'r2')" in (folder / "test_talks.py").read_text().replace('"', "'")
    assert (folder / "test_talks.jsonl").read_text().count('"bae":"run"') == 3
    runs(capsys, "export", "ana.jsonl", "--thread", "ana", *DB)
    assert (folder / "ana.jsonl").read_text().count('"bae":"run"') == 3


def test_a_run_is_cancelled_by_its_id(folder, capsys):
    (folder / "talks.py").write_text(CHAT)
    for name in ("one", "two"):
        main(["run", "talks.py:asking", "--no-ask", "-q", "--run-id", name, *DB])
    capsys.readouterr()
    assert read_notes(capsys, "cancel", "one", *DB) == "the run one is cancelled\n"
    assert json.loads(read_output(capsys, "cancel", "two", "--json", *DB)) == {
        "run_id": "two",
        "status": "cancelled",
    }
    assert "one" in read_output(capsys, "list", "--status", "cancelled", *DB)
    main(["run", "talks.py", "--set", "text=hi", "-q", "--run-id", "over", *DB])
    capsys.readouterr()
    assert "it has ended" in read_refusal(capsys, "cancel", "over", *DB)


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "list", "--metadata", "user"),
        ("runs", "list", "--metadata", "a=[1]"),
        ("runs", "cancel", "one", "--wait", "soon"),
        ("run", "talks.py", "--thread", "ana", "--no-journal"),
    ],
)
def test_invalid_thread_options_exit_with_2(arguments, folder, capsys):
    (folder / "talks.py").write_text(CHAT)
    assert main([*arguments]) == 2
    assert capsys.readouterr().err


# --- list ----------------------------------------------------------------------------------------


def test_runs_are_listed_as_a_table(journal, capsys):
    lines = read_output(capsys, "list", *DB).splitlines()
    assert lines[0].split() == ["RUN", "GRAPH", "STATUS", "STARTED", "LASTED"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["bad789", "Morning", "failed"],
        ["ask456", "Ask", "waiting"],
        ["abc123", "Morning", "ended"],
    ]
    assert "ScriptedLM raised ValueError" in lines[1]
    assert lines[2].endswith("Ask.sure: Are you sure?")
    assert read_output(capsys, "list", *DB, "--status", "ended").count("\n") == 2
    assert read_output(capsys, "list", *DB, "--graph", "Ask").count("\n") == 2
    out, err = runs(capsys, "list", *DB, "--limit", "2")
    assert out.count("\n") == 3
    assert "--limit shows more" in err
    assert read_notes(capsys, "list", *DB, "--graph", "Nothing") == "no runs\n"


def test_the_runs_commands_read_the_default_journal_of_bae_run(journal, capsys, monkeypatch):
    assert "there is no journal here" in read_refusal(capsys, "list")
    (journal / ".bae").mkdir()
    (journal / "runs.db").rename(journal / ".bae" / "runs.db")
    assert "abc123" in read_output(capsys, "list")
    (journal / ".bae" / "runs.db").rename(journal / "elsewhere.db")
    monkeypatch.setenv("BAE_JOURNAL", "elsewhere.db")
    assert "abc123" in read_output(capsys, "list")


def test_the_table_of_runs_fits_the_terminal(journal, capsys, monkeypatch):
    # A pipe has no width: there nothing is cut.
    assert "ask456  Ask" in read_output(capsys, "list", *DB)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as at a terminal
    monkeypatch.delenv("NO_COLOR")
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = re.sub(r"\x1b\[[0-9;]*m", "", read_output(capsys, "list", *DB))
        assert max(map(len, out.splitlines())) <= columns
        assert [line.split()[0] for line in out.splitlines()[1:]] == ["bad789", "ask456", "abc123"]


# --- show and why --------------------------------------------------------------------------------


def test_a_run_is_shown_from_its_start_to_its_end(journal, capsys):
    text = read_output(capsys, "show", "abc123", *DB)
    assert text.startswith("Morning, run abc123: ended\n")
    for part in (
        r'0  Morning\n +message  "ugh"   <- given',
        r"1  Day   <- filled in .*; 1 LM call",
        r'weather  {"degrees": 7, "day": "2026-03-01"}   <- get_weather',
        r'mood     "grumpy"   <- LM',
        r"2  Outfit   <- chosen among Outfit, Rest",
        r'mood   "grumpy"   <- recalled from 1:Day.mood',
        r'top    "a thick jumper"   <- LM',
        r"3  Worn\n",
        r'items    \["a thick jumper", "boots"\]   <- returned by Outfit',
        r'seen     {"degrees": 7, "day": "2026-03-01"}   <- get_weather, called before',
        r"ended at Worn\n$",
    ):
        assert re.search(part, text), f"{part}\n{text}"
    waiting = read_output(capsys, "show", "ask456", *DB)
    assert "sure      <- waits for a person: Are you sure?" in waiting
    assert "waits at 0:Ask.sure: Are you sure?" in waiting
    assert waiting.endswith("answer with: bae runs answer ask456 VALUE -m MODULE -j runs.db\n")
    failed = read_output(capsys, "show", "bad789", *DB)
    assert "failed: " in failed
    assert failed.endswith("resume with: bae runs resume bad789 -m MODULE -j runs.db\n")
    assert "answer:" in read_output(capsys, "show", "abc123", *DB, "--full")


def test_full_shows_the_thinking_of_a_model_before_its_answer(folder, capsys):
    class Write(Node):
        async def __call__(self) -> Written: ...

    class Written(Node):
        text: str

        async def __call__(self) -> None: ...

    async def write() -> None:
        lm = ScriptedLM({Written: Streamed({"text": "Rain."}, thinking="First, the sky.")})
        async with SQLiteJournal("runs.db", thinking=True) as journal:
            await Graph(start=Write).arun(Write(), lm, journal=journal)

    asyncio.run(write())
    assert "thinking:\n" in read_output(capsys, "show", *DB, "--full")
    assert "First, the sky." in read_output(capsys, "show", *DB, "--full")
    assert "First, the sky." not in read_output(capsys, "show", *DB)


def test_a_run_is_shown_with_a_timeline_of_its_work(journal, capsys):
    text = read_output(capsys, "show", "abc123", *DB)
    for row in ("1 Day", "  weather <- get_weather", "  LM fills Day", "  LM chooses Outfit"):
        assert re.search(rf"^{row} .*[━╸╺─╴╶]", text, re.MULTILINE), f"{row}\n{text}"
    assert "LM fills Day" not in read_output(capsys, "show", "abc123", *DB, "--no-timeline")
    assert "sure <- a person" in read_output(capsys, "show", "ask456", *DB)


def test_a_run_is_found_by_the_beginning_of_its_id_or_as_the_newest(journal, capsys):
    assert "run abc123" in read_output(capsys, "show", "abc", *DB)
    assert "run bad789" in read_output(capsys, "show", *DB)
    assert "run bad789" in read_output(capsys, "show", "last", *DB)
    assert "no run id begins with xyz" in read_refusal(capsys, "show", "xyz", *DB)
    assert "several runs begin with a: " in read_refusal(capsys, "show", "a", *DB)


def test_a_journal_without_runs_shows_how_to_record_a_run(journal, capsys):
    every = ("--status", "ended", "--status", "failed", "--status", "waiting")
    assert "3 runs" in read_notes(capsys, "prune", "--older-than", "0s", *every, *DB)
    assert "the journal has no runs" in read_refusal(capsys, "show", *DB)


def test_the_timeline_names_the_critical_path(journal, capsys):
    shown = read_output(capsys, "timeline", "abc123", *DB)
    assert "critical path: " in shown
    path = json.loads(read_output(capsys, "timeline", "abc123", *DB, "--json"))["critical_path"]
    assert path["is_exact"]
    assert [part["place"] for part in path["parts"]][-1].endswith((":Outfit", ":Worn"))
    assert {part["place"] for part in path["slack"]} >= {part["place"] for part in path["parts"]}


def test_a_run_is_shown_as_json_with_its_fields_the_work_and_times_in_iso(journal, capsys):
    data = json.loads(read_output(capsys, "show", "abc123", *DB, "--json"))
    assert (data["run_id"], data["status"], data["ended_at"]) == ("abc123", "ended", "Worn")
    nodes = data["graphs"][0]["nodes"]
    assert [node["name"] for node in nodes] == ["Morning", "Day", "Outfit", "Worn"]
    told = {
        f"{node['name']}.{field['field']}": (field["source"], field["value"])
        for node in nodes
        for field in node["fields"]
    }
    weather = {"degrees": 7, "day": "2026-03-01"}
    assert told["Morning.message"] == ("caller", "ugh")
    assert told["Day.weather"] == ("dep", weather)
    assert told["Day.mood"] == ("lm", "grumpy")
    assert told["Outfit.mood"] == ("recall", "grumpy")
    assert told["Worn.warm"] == ("body", True)
    assert told["Worn.seen"] == ("dep", weather)
    assert data["usage"]["calls"] == 3
    for work in data["work"]:
        first, last = work["spans"][0], work["spans"][-1]
        assert data["lives"][0]["start"] <= first["start"] <= last["end"]
    listed = json.loads(read_output(capsys, "list", *DB, "--json"))[0]
    why = json.loads(read_output(capsys, "why", "abc123", "Day.weather", *DB, "--json"))
    assert why["value"] == weather
    for time in (listed["started"], data["updated"], first["start"], why["at"]):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d", time)


RUN_KEYS = {
    *("run_id", "graph", "status", "started", "updated", "seconds", "parent", "owner", "waiting"),
    *("error", "lease_until", "shape", "thread", "metadata", "summary", "change"),
}
USAGE_KEYS = {
    *("calls", "input_tokens", "output_tokens", "cached_tokens", "cost", "attempts", "seconds"),
    "models",
}


def test_the_json_of_a_run_has_the_documented_keys(journal, capsys):
    listed = json.loads(read_output(capsys, "list", *DB, "--json"))
    assert [run["run_id"] for run in listed] == ["bad789", "ask456", "abc123"]
    assert [run["status"] for run in listed] == ["failed", "waiting", "ended"]
    (gate,) = listed[1]["waiting"]
    assert (gate["gate"], gate["address"], gate["call"]) == ("0:Ask.sure", "0:Ask.sure", None)
    assert json.loads(read_output(capsys, "list", *DB, "--graph", "Nothing", "--json")) == []
    for listed_run in listed:
        assert set(listed_run) == RUN_KEYS
        assert bool(listed_run["error"]) == (listed_run["status"] == "failed")
        data = json.loads(read_output(capsys, "show", listed_run["run_id"], *DB, "--json"))
        assert set(data) == RUN_KEYS | {
            *("ended_at", "usage", "resumed", "graphs", "files", "lives", "work")
        }
        assert data["error"] == listed_run["error"]
        assert set(data["usage"]) == USAGE_KEYS
        for node in data["graphs"][0]["nodes"]:
            assert {"step", "name", "whole", "chosen_among", "calls", "fields"} <= set(node)
            for field in node["fields"]:
                assert {"field", "state", "source", "by", "kept", "value", "seconds"} <= set(field)
        for work in data["work"]:
            assert set(work) == {
                *("kind", "place", "name", "spans", "outcome", "error", "note", "marks", "usage"),
                *("inside", "waits"),
            }
    replayed = json.loads(
        read_output(capsys, "replay", "abc123", *DB, "-m", "wardrobe.py", "--json")
    )
    assert set(replayed) == {"run_id", "outcome", "trace", "waiting", "error"}


def test_a_long_loop_is_shortened_to_its_first_and_last_nodes(folder, capsys):
    (folder / "loop.py").write_text(LOOP)
    assert main(["run", "loop.py", "-i", "150", "--max-iters", "0", "-q", *DB]) == 0
    capsys.readouterr()
    text = read_output(capsys, "show", *DB, "--no-timeline")
    assert "  … 111 more nodes: --full shows them\n" in text
    assert re.search(r"^ 19  Count\n", text, re.MULTILINE)
    assert re.search(r"^131  Count\n", text, re.MULTILINE)
    assert not re.search(r"^ 20  Count\n", text, re.MULTILINE)
    assert "in 5:Count.inside" in text
    assert "in 50:Count.inside" not in text
    assert " more graphs inside: --full shows them\n" in text
    full = read_output(capsys, "show", *DB, "--no-timeline", "--full")
    assert "more" not in full
    assert "in 50:Count.inside" in full


LOOP = """
from __future__ import annotations
from typing import Annotated
from bae import Dep, Graph, Node
from pydantic import Field


class Inner(Node):
    async def __call__(self) -> None: ...


class Count(Node):
    left: int
    inside: Annotated[Inner, Dep(Graph(start=Inner), cache=False)] = Field(init=False)

    async def __call__(self) -> Count | None:
        return Count(left=self.left - 1) if self.left else None


graph = Graph(start=Count)
"""


def test_the_origin_of_a_value_is_shown(journal, capsys):
    assert "get_weather" in read_output(capsys, "why", "abc123", "Day.weather", *DB)
    assert "recalled" in read_output(capsys, "why", "abc", "Outfit.mood", "--step", "2", *DB)
    assert "did you mean 1:Day.weather?" in read_refusal(capsys, "why", "abc123", "Day.wether", *DB)
    data = json.loads(read_output(capsys, "why", "abc", "Outfit.mood", "--json", *DB))
    assert (data["source"], data["origin"]["source"]) == ("recall", "lm")


def dump_journal(file: str = "runs.db") -> list[str]:
    """The content of a journal as SQL. Its bytes may differ, since SQLite decides when it merges
    its log into the file."""

    async def exported() -> bytes:
        written = io.BytesIO()
        async with SQLiteJournal(file) as kept:
            await kept.export(written)
        return written.getvalue()

    return asyncio.run(exported()).decode().splitlines()


def test_read_commands_do_not_change_the_journal(journal, capsys):
    before = dump_journal()
    read_output(capsys, "list", *DB)
    read_output(capsys, "show", "abc123", *DB)
    read_output(capsys, "why", "abc123", "Day.mood", *DB)
    read_output(capsys, "replay", "abc123", *DB, "-m", "wardrobe.py")
    assert dump_journal() == before
    assert files(journal) == ["runs.db", "wardrobe.py"]


def test_the_content_of_a_run_cannot_control_the_terminal(folder, capsys):
    import wardrobe  # pyright: ignore[reportMissingImports]

    async def write() -> None:
        nasty = "\x1b[2J\x9b31m\r[red]x[/red]"
        async with SQLiteJournal("runs.db") as journal:
            start = wardrobe.Ask.model_construct(question=nasty)
            await wardrobe.asking.arun(start, journal=journal, run_id="id")
        with closing(sqlite3.connect("runs.db")) as db:  # no run can be called so, but by others
            db.execute("update runs set id = ?", (f"id{nasty}",))
            db.commit()

    asyncio.run(write())
    for command in (["list"], ["show"], ["show", "--full"], ["why", "last", "Ask.question"]):
        text = read_output(capsys, *command, *DB)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), repr(text)
        assert "[red]x[/red]" in text


@pytest.mark.parametrize("columns", ["40", "80", "160"])
def test_a_run_is_shown_in_ascii_on_an_ascii_terminal(journal, columns, monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", written)
    assert main(["runs", "show", "abc123", *DB]) == 0
    written.flush()
    text = written.buffer.getvalue().decode("ascii")
    assert re.search(r"weather <- .*=", text)


# --- out and in ----------------------------------------------------------------------------------


def test_runs_are_loaded_from_a_shell_process_substitution(journal, capsys):
    read_notes(capsys, "export", "all.jsonl", *DB)
    reading, writing = os.pipe()  # as for `bae runs load <(command)`
    os.write(writing, Path("all.jsonl").read_bytes())
    os.close(writing)
    try:
        _, err = runs(capsys, "load", f"/dev/fd/{reading}", "-j", "new.db")
    finally:
        os.close(reading)
    assert err == "new.db: 3 runs loaded\n"
    os.mkfifo("pipe.jsonl")
    assert "it is a named pipe" in read_refusal(capsys, "load", "pipe.jsonl", "-j", "new.db")


def test_runs_are_exported_and_loaded(journal, capsys):
    assert read_notes(capsys, "export", "all.jsonl", *DB) == "all.jsonl: 3 runs\n"
    assert read_notes(capsys, "export", "one.jsonl", "abc", *DB) == "one.jsonl: 1 run\n"
    assert "one.jsonl is there already" in read_refusal(capsys, "export", "one.jsonl", "ask", *DB)
    read_notes(capsys, "export", "one.jsonl", "abc", "--force", *DB)
    out, err = runs(capsys, "load", "one.jsonl", "-j", "new.db")
    assert (out, err) == ("abc123\n", "new.db: 1 run loaded\n")
    assert "already" in read_refusal(capsys, "load", "all.jsonl", "-j", "new.db")
    runs(capsys, "load", "all.jsonl", "-j", "new.db", "--existing", "keep")
    listed = read_output(capsys, "list", "-j", "new.db").splitlines()
    assert sorted(line.split()[0] for line in listed[1:]) == ["abc123", "ask456", "bad789"]
    # And what only reads takes the exported file as it is.
    assert "run abc123" in read_output(capsys, "show", "abc", "-j", "all.jsonl")
    shown = read_output(capsys, "show", "abc123", "-j", "new.db")
    assert shown == read_output(capsys, "show", "abc123", *DB)
    for command in (["prune", "--older-than", "1d"], ["redact", "abc", "Outfit.top"]):
        error = read_refusal(capsys, *command, "-j", "all.jsonl")
        assert "no journal that can be written" in error


def test_runs_are_loaded_into_a_new_default_journal(journal, capsys):
    read_notes(capsys, "export", "all.jsonl", *DB)
    assert "there is no file nothing.jsonl" in read_refusal(capsys, "load", "nothing.jsonl")
    assert not Path(".bae").exists()
    loaded = runs(capsys, "load", "all.jsonl", "--json")[0]
    assert sorted(json.loads(loaded)) == ["abc123", "ask456", "bad789"]
    assert "abc123" in read_output(capsys, "list")


def test_runs_are_exported_to_stdout_and_loaded_from_stdin(journal, capfdbinary, monkeypatch):
    assert main(["runs", "export", "-", *DB]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    assert len(out.splitlines()) > 3
    assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out)))
    assert main(["runs", "load", "-", "-j", "new.db"]) == 0
    assert b"new.db: 3 runs loaded" in capfdbinary.readouterr().err


def test_a_waiting_run_is_loaded_as_cancelled_by_default(journal, capsys):
    read_notes(capsys, "export", "out.jsonl", "ask456", *DB)
    runs(capsys, "load", "out.jsonl", "-j", "one.db")
    assert "cancelled" in read_output(capsys, "list", "-j", "one.db")
    runs(capsys, "load", "out.jsonl", "-j", "two.db", "--unfinished", "keep")
    assert "waiting" in read_output(capsys, "list", "-j", "two.db")
    assert read_notes(capsys, "list", "-j", "two.db", "--status", "interrupted") == "no runs\n"


# --- less ----------------------------------------------------------------------------------------


def test_old_runs_are_pruned_and_waiting_runs_stay(journal, capsys):
    old = ("prune", *DB, "--older-than")
    assert read_notes(capsys, *old, "30d") == "0 runs deleted\n"
    out, err = runs(capsys, *old, "0s", "--dry-run")
    assert (sorted(out.split()), err) == (["abc123", "bad789"], "2 runs would be deleted\n")
    assert read_notes(capsys, *old, "0s") == "2 runs deleted\n"
    assert read_output(capsys, "list", *DB).count("\n") == 2
    both = ("--status", "waiting", "--status", "ended", "--json")
    shown = json.loads(read_output(capsys, *old, "0s", *both, "--dry-run"))
    assert shown == {"runs": ["ask456"], "deleted": 0, "dry_run": True}
    done = json.loads(read_output(capsys, *old, "0s", *both))
    assert done == {"runs": ["ask456"], "deleted": 1, "dry_run": False}


@pytest.fixture
def forked(journal):
    """Two forks that were never resumed, which count as interrupted, and a resumed fork."""
    import wardrobe  # pyright: ignore[reportMissingImports]

    with asyncio.Runner() as runner:
        kept = SQLiteJournal("runs.db")
        for name in ("gone1", "here", "gone2"):
            runner.run(wardrobe.graph.fork("abc123", at=1, journal=kept, new_id=name))
        runner.run(kept.claim("here"))
        yield journal
        runner.run(kept.close())


def test_only_runs_of_a_live_process_are_listed_as_running(forked, capsys):
    def listed(*arguments: str) -> list[str]:
        data = json.loads(read_output(capsys, "list", "--json", *arguments, *DB))
        return [run["run_id"] for run in data]

    assert listed("--status", "running") == ["here"]
    assert listed("--status", "interrupted") == ["gone2", "gone1"]
    assert listed("--status", "interrupted", "--limit", "1") == ["gone2"]
    assert read_notes(capsys, "export", "r.jsonl", "--status", "running", *DB) == "r.jsonl: 1 run\n"
    all_runs = json.loads(read_output(capsys, "list", "--json", *DB))
    statuses = {run["run_id"]: run["status"] for run in all_runs}
    assert (statuses["here"], statuses["gone1"]) == ("running", "interrupted")


def test_interrupted_runs_are_pruned_and_running_runs_stay(forked, capsys):
    prune = ("prune", "--older-than", "0s", "--json", *DB)
    out, err = runs(capsys, *prune, "--status", "running")
    assert json.loads(out)["runs"] == []
    assert "--status interrupted" in err
    data = json.loads(read_output(capsys, *prune, "--status", "interrupted"))
    assert (sorted(data["runs"]), data["deleted"]) == (["gone1", "gone2"], 2)
    assert "here" in read_output(capsys, "list", *DB)
    # Lines that another run shares stay, and are not reported as deleted.
    assert json.loads(read_output(capsys, *prune, "--status", "ended"))["runs"] == []


def test_runs_redact_removes_values(journal, capsys):
    text = read_output(capsys, "redact", "abc123", "Outfit.top", "Worn.items", *DB)
    assert "2 values of Outfit.top, Worn.items" in text
    shown = read_output(capsys, "show", "abc123", *DB)
    assert "thick jumper" not in shown
    assert "(withheld)" in shown
    assert b"thick jumper" not in Path("runs.db").read_bytes()
    assert "no field Outfit.tip" in read_refusal(capsys, "redact", "abc123", "Outfit.tip", *DB)


@pytest.fixture
def at_a_terminal(monkeypatch):
    """Make stdin and stderr a terminal, at which the given text has been typed already."""
    opened: list[Any] = []

    def typed(text: str) -> int:
        master, slave = os.openpty()
        opened.append(os.fdopen(master, "rb", buffering=0))
        for name, mode in (("stdin", "r"), ("stderr", "w")):
            opened.append(os.fdopen(os.dup(slave), mode))
            monkeypatch.setattr(sys, name, opened[-1])
        os.close(slave)
        os.write(master, text.encode())
        return master

    yield typed
    monkeypatch.undo()
    for journal in opened:
        journal.close()


def read_terminal(terminal: int, until: str) -> str:
    """Read a terminal until a text has arrived, which may come in pieces."""
    found = ""
    while until not in found:
        assert select.select([terminal], [], [], BOUND)[0], found
        found += os.read(terminal, 4096).decode()
    return found


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    "command", [["prune", "--older-than", "0s"], ["redact", "abc123", "Outfit.top"]]
)
def test_deleting_at_a_terminal_asks_for_confirmation_first(command, journal, at_a_terminal):
    before = dump_journal()
    terminal = at_a_terminal("n\n")
    assert main(["runs", *command, *DB]) == 1
    assert read_terminal(terminal, "It cannot be undone")
    assert dump_journal() == before
    at_a_terminal("y\n")
    assert main(["runs", *command, *DB]) == 0
    assert dump_journal() != before


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_deleting_with_yes_asks_for_no_confirmation(journal, at_a_terminal):
    terminal = at_a_terminal("")
    assert main(["runs", "prune", "--older-than", "0s", "--yes", *DB]) == 0
    assert "cannot be undone" not in read_terminal(terminal, "2 runs deleted")


# --- gates ---------------------------------------------------------------------------------------


def test_a_gate_is_answered_and_the_run_is_left_for_a_later_resume(journal, capsys):
    asked = ("answer", "ask", "sure")
    of = (*DB, "-m", "wardrobe.py:asking", "--no-run")
    runs(capsys, *asked, "perhaps", *of, code=1)
    runs(capsys, *asked, "true", *of)
    text = read_output(capsys, "show", "ask456", *DB)
    assert "(answered)" in text
    assert text.endswith("resume with: bae runs resume ask456 -m MODULE -j runs.db\n")
    assert "(answered)" in read_output(capsys, "list", *DB)
    runs(capsys, *asked, "true", *of, code=1)

    async def go_on() -> list[Any]:
        import wardrobe  # pyright: ignore[reportMissingImports]

        async with SQLiteJournal("runs.db") as kept:
            return await wardrobe.asking.recover(journal=kept)

    (done,) = asyncio.run(go_on())
    assert done.result.result.sure is True


# --- replay --------------------------------------------------------------------------------------


def test_a_replay_with_the_same_outcome_is_reported_with_its_trace(journal, capsys):
    text = read_output(capsys, "replay", "abc", "-m", "wardrobe.py", *DB)
    assert text == "went the same way: Morning -> Day -> Outfit -> Worn\n"
    text = read_output(capsys, "replay", "ask", "-m", "wardrobe.py:asking", *DB)
    assert "and waits for Ask.sure" in text
    text = read_output(capsys, "replay", "bad", "-m", "wardrobe", *DB)
    assert "and failed as it did then: " in text
    data = json.loads(read_output(capsys, "replay", "abc", "-m", "wardrobe.py", "--json", *DB))
    assert (data["outcome"], data["trace"][-1]) == ("ended", "Worn")


def test_a_replay_that_deviates_shows_the_difference_and_exits_with_1(journal, capsys, monkeypatch):
    import wardrobe  # pyright: ignore[reportMissingImports]

    async def other(self: Any) -> Any:
        return wardrobe.Worn(items=["a hat"], warm=False, tags=set(), weather=None)

    monkeypatch.setattr(wardrobe.Outfit, "__call__", other)
    monkeypatch.setattr(wardrobe, "graph", Graph(start=wardrobe.Morning))
    error = read_refusal(capsys, "replay", "abc", "-m", "wardrobe", *DB)
    assert "bae-replay-diverged" in error
    assert re.search(r"\+ +\"a hat\"", error)
    assert re.search(r"- +\"a thick jumper\"", error)
    out, _ = runs(capsys, "replay", "abc", "-m", "wardrobe", "--json", *DB, code=1)
    data = json.loads(out)
    assert (data["ok"], data["error"]["code"]) == (False, "bae-replay-diverged")
    assert '"a hat"' in data["error"]["diff"]


# --- the command line itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["dance"],
        ["list", "--limit", "0"],
        ["list", "--status", "over"],
        ["why", "x"],
        ["export"],
        ["load", "x", "--existing", "perhaps"],
        ["prune"],
        ["prune", "--older-than", "soon"],
        ["prune", "--older-than", "1d", "--status", "over"],
        ["redact", "run"],
        ["test", "run"],
    ],
)
def test_an_invalid_command_line_exits_with_2(arguments, capsys):
    out, err = runs(capsys, *arguments, code=2)
    assert out == ""
    assert "Usage: " in err


@pytest.mark.parametrize("text", ["", "3", "d", "-1d", "1y", "1d2h", "∞d", "1.d.d", "nand", "1e3s"])
def test_an_invalid_duration_is_refused(text, capsys):
    _, err = runs(capsys, "prune", f"--older-than={text}", code=2)
    assert "length of time" in flat(err)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43200), ("30d", 2592000), ("2w", 1209600), ("1.5h", 5400)],
)
def test_durations_are_parsed_with_their_units(text, seconds):
    from bae.cli.runs import parse_duration

    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["show", "x"],
        ["why", "x", "A.b"],
        ["prune", "--older-than", "1d"],
        ["redact", "x", "A.b"],
        ["export", "x.jsonl"],
        ["replay", "x", "-m", "wardrobe.py"],
    ],
)
@pytest.mark.parametrize("name", ["nothing.db", "."])
def test_commands_on_a_missing_journal_do_not_create_it(arguments, name, folder, capsys):
    assert "there is no journal" in read_refusal(capsys, *arguments, "-j", name)
    assert files(folder) == ["wardrobe.py"]


def test_a_file_that_is_not_a_journal_is_refused_with_a_readable_error(folder, capsys):
    Path("text").write_text("hello\n")
    assert "text, line 1" in flat(read_refusal(capsys, "list", "-j", "text"))
    Path("torn.db").write_bytes(b"SQLite format 3\x00" + b"x" * 5000)
    read_refusal(capsys, "list", "-j", "torn.db")
    assert "no journal" in read_refusal(capsys, "load", "torn.db", "-j", "text")
    assert Path("text").read_text() == "hello\n"


def test_a_long_line_of_a_node_wraps_with_indentation_at_a_terminal(journal, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("COLUMNS", "50")
    out = re.sub(r"\x1b\[[0-9;]*m", "", read_output(capsys, "show", "abc123", *DB, "--no-timeline"))
    assert "  2  Outfit   <- chosen among Outfit, Rest; filled" in out
    assert re.search(r"\n         in .*; 2 LM calls\n", out), out
    assert all(line.startswith(" ") for line in out.splitlines()[1:-2] if line)


def test_times_are_in_the_time_zone_of_the_reader(journal, capsys, monkeypatch):
    import time

    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        listed, shown = read_output(capsys, "list", *DB), read_output(capsys, "show", "abc123", *DB)
        why = read_output(capsys, "why", "abc123", "Day.mood", *DB)
    time.tzset()
    for text in (listed, shown, why):
        assert re.search(r"\d\d:\d\d:\d\d\+09:00", text), text


def test_generated_run_ids_are_shortened_at_a_terminal(folder, capsys, monkeypatch):
    import wardrobe  # pyright: ignore[reportMissingImports]

    given = ["0123456789abcdef00000000", "fedcba98765432100000000f", "a-name-that-somebody-gave-it"]

    async def write() -> None:
        async with SQLiteJournal("runs.db") as journal:
            for name in given:
                start = wardrobe.Ask.model_construct(question="?")
                await wardrobe.asking.arun(start, journal=journal, run_id=name)

    asyncio.run(write())
    assert [line.split()[0] for line in read_output(capsys, "list", *DB).splitlines()[1:]] == given[
        ::-1
    ]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR")
    out = re.sub(r"\x1b\[[0-9;]*m", "", read_output(capsys, "list", *DB))
    ids = [line.split()[0] for line in out.splitlines()[1:]]
    assert ids == ["a-name-that-somebody-gave-it", "fedcba98", "01234567"]
