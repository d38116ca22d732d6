"""What stands beside the display of a run: what others print and log meanwhile, and readers that do
not read. Nobody is waited for, and no line is torn."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import BinaryIO, TextIO

import pytest

pytest.importorskip("rich")

from rich.console import Console

from bae.cli.live import Display, LiveTree, PlainLines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminals(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """stdout and stderr as terminals. No fixture: pytest has its own streams in a test."""
    both = SimpleNamespace(out=Terminal(), err=Terminal())
    monkeypatch.setattr(sys, "stdout", both.out)
    monkeypatch.setattr(sys, "stderr", both.err)
    return both


@pytest.mark.parametrize("kind", [LiveTree, PlainLines, Display])
def test_what_others_print_while_somebody_is_asked_comes_when_that_is_over(
    monkeypatch: pytest.MonkeyPatch, kind: type[Display]
):
    streams = terminals(monkeypatch)
    handler = logging.StreamHandler(streams.err)  # as made by basicConfig on import
    log = logging.getLogger("bae-test-of-output")
    log.addHandler(handler)
    display = kind(Console(stderr=True, color_system=None, width=60))
    try:
        with display, display.paused():
            shown = streams.err.getvalue(), streams.out.getvalue()
            print("printed")
            print("printed too", file=sys.stderr)
            sys.stderr.write("half a line")
            log.warning("logged")
            display.say("note: said")
            display.console.print("the question")
            now = streams.err.getvalue(), streams.out.getvalue()
            assert now == (f"{shown[0]}the question\n", shown[1])
    finally:
        log.removeHandler(handler)
    said = streams.err.getvalue()
    assert "printed\n" in streams.out.getvalue()
    assert "printed too\n" in said
    assert "half a line" in said
    assert "logged\n" in said
    assert "note: said\n" in said
    assert sys.stdout is streams.out
    assert sys.stderr is streams.err
    assert handler.stream is streams.err


def test_what_others_print_stands_above_the_tree_in_whole_lines(monkeypatch: pytest.MonkeyPatch):
    streams = terminals(monkeypatch)
    handler = logging.StreamHandler(streams.err)
    log = logging.getLogger("bae-test-of-output")
    log.addHandler(handler)
    tree = LiveTree(Console(stderr=True, color_system=None, width=60, legacy_windows=False))
    try:
        with tree:
            sys.stderr.write("half a ")
            sys.stderr.flush()
            assert "half" not in streams.err.getvalue()
            log.warning("logged")
            sys.stderr.write("\r10%\r20%\r\n")
            print("\x1b[2Jprinted")
    finally:
        log.removeHandler(handler)
    said = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", streams.err.getvalue())
    lines = [line for line in said.replace("\r", "\n").splitlines() if "nodes" not in line]
    assert [line for line in lines if line.strip()] == ["half a logged", "20%", "printed"]
    assert handler.stream is streams.err


@contextmanager
def piped() -> Generator[tuple[BinaryIO, TextIO]]:
    """The two ends of a pipe."""
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "w", encoding="utf-8") as file:
        yield reader, file


async def test_a_run_does_not_wait_for_a_reader_that_has_stalled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bae.cli.live.writing.MOST", 50)
    with piped() as (reader, file):
        lines = PlainLines(Console(file=file, color_system=None))
        with lines:
            for number in range(2000):  # far more than a pipe holds
                lines.say(f"{number:4} {'x' * 150}")
            closing = asyncio.create_task(asyncio.to_thread(lines.__exit__, None, None, None))
            got = b""
            shown: list[int] = []
            left_out = 0
            while len(shown) + left_out < 2000:  # now it is read again
                got += await asyncio.to_thread(os.read, reader.fileno(), 65536)
                whole = got[: got.rfind(b"\n") + 1].decode().splitlines()
                shown = [int(line[:4]) for line in whole if not line.startswith("…")]
                notes = re.findall(
                    r"… ([\d,]+) lines left out, since nobody read them", "\n".join(whole)
                )
                left_out = sum(int(note.replace(",", "")) for note in notes)
            await closing
        assert shown == sorted(set(shown))
        assert 50 < len(shown) < 1500
        assert left_out == 2000 - len(shown)


async def test_at_its_end_a_run_waits_no_longer_than_a_moment_for_a_reader(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("bae.cli.live.writing.LineWriter.close.__defaults__", (0.05,))
    with piped() as (reader, file):
        lines = PlainLines(Console(file=file, color_system=None))
        with lines:
            for _ in range(1000):
                lines.say("x" * 150)
        left_out, summary = lines.summary().plain.splitlines()
        assert re.fullmatch(r"… [\d,]+ lines left out", left_out)
        assert summary.startswith("0 nodes")
        os.set_blocking(reader.fileno(), False)
        assert reader.read()  # the thread, which is in the middle of a line, ends
        for thread in threading.enumerate():
            if thread.name == "bae lines":
                await asyncio.to_thread(thread.join)


def test_what_is_said_beside_a_run_has_nothing_that_a_terminal_obeys():
    for kind in (PlainLines, Display, LiveTree):
        display = kind(Console(file=io.StringIO(), width=80, color_system=None))
        display.say("note: \x1b]0;mine\x07 \u202e")
        assert display.console.file.getvalue() == "note: \\x1b]0;mine\\x07 \\u202e\n"
