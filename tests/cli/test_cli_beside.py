"""What stands beside the display of a run: what others print and log meanwhile, and readers that do
not read. Nobody is waited for, and no line is torn."""

from __future__ import annotations

import io
import logging
import re
import sys
from types import SimpleNamespace

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


def test_what_others_print_stands_above_the_tree_in_whole_lines(monkeypatch: pytest.MonkeyPatch):
    streams = terminals(monkeypatch)
    handler = logging.StreamHandler(streams.err)
    log = logging.getLogger("bae-test-of-output")
    log.addHandler(handler)
    tree = LiveTree(Console(stderr=True, color_system=None, width=60, legacy_windows=False))
    try:
        with tree:
            sys.stderr.write("half a ")
            log.warning("logged")
            print("\x1b[2Jprinted")
    finally:
        log.removeHandler(handler)
    said = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", streams.err.getvalue())
    lines = [line for line in said.replace("\r", "\n").splitlines() if "nodes" not in line]
    assert [line for line in lines if line.strip()] == ["half a logged", "printed"]
    assert handler.stream is streams.err


def test_what_is_said_beside_a_run_has_nothing_that_a_terminal_obeys():
    for kind in (PlainLines, Display, LiveTree):
        display = kind(Console(file=io.StringIO(), width=80, color_system=None))
        display.say("note: \x1b]0;mine\x07 \u202e")
        assert display.console.file.getvalue() == "note: \\x1b]0;mine\\x07 \\u202e\n"
