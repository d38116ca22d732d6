#!/usr/bin/env python3
"""A picture of a terminal: runs a command in a pseudo-terminal, and writes the screen and the lines
that scrolled out of it as a self-contained SVG (or as text, for a file named .txt). It can record
the screen while the command still runs, and type keys.

    python tools/record_terminal.py --columns 90 -o run.svg -- bae run examples/ootd.py
    python tools/record_terminal.py --wait 'get_weather' -o half.svg -- bae run examples/ootd.py
    python tools/record_terminal.py --keys 'Approve?=>y\\r' -o asked.svg -- bae run refund.py

It needs pyte, which is among the development tools.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyte


@dataclass
class Keys:
    """What to type, and the text that must be on the screen before it is typed."""

    typed: bytes
    after: str = ""


@dataclass
class Taken:
    """The screen as it was, top line first, and how the command ended: None where it was ended
    by the recorder."""

    columns: int
    lines: list[list[Any]] = field(repr=False)
    code: int | None

    @property
    def text(self) -> str:
        """What there is to read, without colours."""
        return "".join(_plain(line) + "\n" for line in self.lines)


def record(
    command: Sequence[str],
    columns: int = 90,
    rows: int = 24,
    keys: Sequence[Keys] = (),
    wait: str | None = None,
    at: float | None = None,
    timeout: float = 120.0,
    shown: str | None = None,
) -> Taken:
    """Run a command in a terminal of this size and take its screen: at its end, or as soon as the
    text `wait` is there, or after `at` seconds. `shown` is the command line to show above."""
    screen = _Screen(columns, rows, history=10_000, ratio=0.5)
    stream = pyte.ByteStream(screen)
    if shown:
        stream.feed(f"\x1b[1;32m$\x1b[0m {shown}\r\n".encode())
    pending, end = list(keys), time.monotonic() + timeout
    mid = None if at is None else time.monotonic() + at
    with _start_command(command, columns, rows) as (process, terminal):
        screen.answer_on(terminal)
        while True:
            now = time.monotonic()
            if mid is not None and now >= mid:
                return Taken(columns, screen.all_lines(), None)
            if now >= end:
                read = "".join(_plain(line) + "\n" for line in screen.all_lines())
                raise SystemExit(f"no end after {timeout:g} s; the screen was:\n{read}")
            until = end if mid is None else min(mid, end)
            if not select.select([terminal], [], [], until - now)[0]:
                continue
            if not (printed := _read(terminal)):
                break
            stream.feed(printed)
            there = screen.visible_text() if pending or wait else ""
            if pending and pending[0].after in there:
                os.write(terminal, pending.pop(0).typed)
            if wait and not pending and wait in there:
                return Taken(columns, screen.all_lines(), None)
        code = process.wait(timeout=max(1.0, end - time.monotonic()))
    if wait:
        read = "".join(_plain(line) + "\n" for line in screen.all_lines())
        raise SystemExit(f"{wait!r} never was on the screen, which was at last:\n{read}")
    return Taken(columns, screen.all_lines(), code)


def as_svg(taken: Taken, title: str) -> str:
    """Draw a dark window with a title, which can be read on light and on dark pages."""
    wide, high = 8.4, 18.0  # a cell, for letters of 14 pixels
    left, top = 18.0, 52.0
    width = left * 2 + taken.columns * wide
    height = top + len(taken.lines) * high + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{_quote_attribute(title)}">',
        f"<title>{escape(title)}</title>",
        "<style>",
        f"text {{ font-family: {FONTS}; font-size: 14px; white-space: pre; }}",
        ".b { font-weight: bold } .i { font-style: italic } .d { opacity: .62 } "
        ".u { text-decoration: underline } .s { text-decoration: line-through }",
        "</style>",
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="9" '
        f'fill="{BACKGROUND}" stroke="#6b7280"/>',
        *(
            f'<circle cx="{22 + 20 * at}" cy="21" r="6" fill="{colour}"/>'
            for at, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        f'<text x="{width / 2:g}" y="26" fill="#9ca3af" text-anchor="middle">',
        f"{escape(_fit_title(title, taken.columns - 16))}</text>",
    ]
    for row, line in enumerate(taken.lines):
        for start, length, text, char in _runs(line):
            x, y = left + start * wide, top + row * high
            fg, bg = _colour(char.fg, FOREGROUND), _colour(char.bg, BACKGROUND)
            if char.reverse:
                fg, bg = bg, fg
            if bg != BACKGROUND:
                parts.append(
                    f'<rect x="{x:g}" y="{y - 13:g}" width="{length * wide:g}" height="{high:g}" '
                    f'fill="{bg}"/>'
                )
            elif not char.underscore:
                length -= len(text) - len(text.rstrip(" "))
                text = text.rstrip(" ")
            if text.strip():
                styles = _classes(char)
                parts.append(
                    f'<text x="{x:g}" y="{y:g}" fill="{fg}" textLength="{length * wide:g}" '
                    f'lengthAdjust="spacingAndGlyphs"{styles}>{escape(text)}</text>'
                )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=int, default=90, help="the width (90)")
    parser.add_argument("--rows", type=int, default=24, help="the height of the terminal (24)")
    parser.add_argument(
        *("--keys", "-k"),
        action="append",
        default=[],
        metavar="[TEXT=>]KEYS",
        help=r"type KEYS, once TEXT is on the screen; \r is Enter, \x03 Ctrl-C; may be repeated",
    )
    moment = parser.add_mutually_exclusive_group()
    moment.add_argument("--at", type=float, metavar="SECONDS", help="take the screen then")
    moment.add_argument("--wait", metavar="TEXT", help="take the screen when TEXT is on it")
    parser.add_argument("--timeout", type=float, default=120.0, help="give up after (120)")
    parser.add_argument("--title", help="of the window; the command, where it is left out")
    parser.add_argument("--show", metavar="TEXT", help="the command line to show; '' for none")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=".svg or .txt")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args()
    command = shlex.join(options.command)
    shown = command if options.show is None else options.show
    recording = record(
        options.command,
        columns=options.columns,
        rows=options.rows,
        keys=[_keys(key) for key in options.keys],
        wait=options.wait,
        at=options.at,
        timeout=options.timeout,
        shown=shown,
    )
    made = (
        recording.text
        if options.output.endswith(".txt")
        else as_svg(recording, (shown or command) if options.title is None else options.title)
    )
    Path(options.output).write_text(made, encoding="utf-8")
    ending = "taken while it ran" if recording.code is None else f"exit code {recording.code}"
    print(
        f"{options.output}: {len(recording.lines)} lines of {recording.columns} columns, {ending}"
    )


FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
BACKGROUND = "#16181d"
FOREGROUND = "#d7dae0"
COLOURS = {
    "black": "#4b5263",
    "red": "#f0717b",
    "green": "#8fce7e",
    "brown": "#e5c07b",  # pyte's word for yellow
    "blue": "#6cb2f7",
    "magenta": "#d18be8",
    "cyan": "#5fc4cf",
    "white": "#d7dae0",
    "brightblack": "#7f8796",
    "brightred": "#ff8f98",
    "brightgreen": "#a9e69a",
    "brightbrown": "#ffdc97",
    "brightblue": "#8cc8ff",
    "brightmagenta": "#e6a6fa",
    "bfightmagenta": "#e6a6fa",  # as pyte 0.8 spells it
    "brightcyan": "#86dfe8",
    "brightwhite": "#ffffff",
}


class _Screen(pyte.HistoryScreen):
    """A screen that adds dim letters to pyte and answers the queries of a program to its terminal.
    A picture does not blink, so the attribute for blinking stores dim."""

    _terminal: int | None = None

    def answer_on(self, terminal: int) -> None:
        self._terminal = terminal

    def write_process_input(self, data: str) -> None:
        if self._terminal is not None:
            os.write(self._terminal, data.encode())

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        if private:
            return
        codes: list[int] = []
        numbers = iter(attrs)
        for number in numbers:
            if number in (38, 48):  # a colour, whose numbers mean something else
                kind = next(numbers, 5)
                codes += [number, kind, *(next(numbers, 0) for _ in range(3 if kind == 2 else 1))]
            elif number == 2:
                codes.append(5)
            elif number == 22:
                codes += [22, 25]
            elif number not in (5, 6, 25):
                codes.append(number)
        super().select_graphic_rendition(*codes)

    def visible_text(self) -> str:
        return "\n".join(line.rstrip() for line in self.display)

    def all_lines(self) -> list[list[Any]]:
        rows = [*self.history.top, *(self.buffer[row] for row in range(self.lines))]
        lines = [[line[column] for column in range(self.columns)] for line in rows]
        while lines and not _plain(lines[-1]):
            lines.pop()
        return lines


def _plain(line: list[Any]) -> str:
    return "".join(char.data for char in line).rstrip()


def _runs(line: list[Any]) -> Iterator[tuple[int, int, str, Any]]:
    """The stretches of a line with the same style: column, number of cells, text and style. A wide
    letter takes two cells, of which the second is empty, and is a stretch of its own."""

    def look(item: tuple[int, Any]) -> Any:
        at, char = item
        wide = not char.data or (at + 1 < len(line) and not line[at + 1].data)
        return char._replace(data=""), (at if char.data else at - 1) if wide else -1

    for _, stretch in groupby(enumerate(line), look):
        items = list(stretch)
        text = "".join(char.data for _, char in items)
        yield items[0][0], len(items), text, items[0][1]


def _classes(char: Any) -> str:
    on = {
        "b": char.bold,
        "i": char.italics,
        "u": char.underscore,
        "s": char.strikethrough,
        "d": char.blink,
    }
    names = " ".join(name for name, is_on in on.items() if is_on)
    return f' class="{names}"' if names else ""


def _colour(name: str, default: str) -> str:
    return default if name == "default" else COLOURS.get(name, f"#{name}")


def _fit_title(title: str, columns: int) -> str:
    """Cut a title to leave room for the buttons of the window."""
    return title if len(title) <= columns else f"{title[: max(columns - 1, 0)]}…"


def _quote_attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def _keys(said: str) -> Keys:
    after, arrow, typed = said.rpartition("=>")
    return Keys(codecs.escape_decode(typed.encode())[0], after if arrow else "")


@contextlib.contextmanager
def _start_command(
    command: Sequence[str], columns: int, rows: int
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command at its own terminal, and yield the process and our end of the terminal. The
    process is killed when the block ends."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    surroundings = {
        key: value
        for key, value in os.environ.items()
        if key not in {"COLUMNS", "LINES", "FORCE_COLOR"}
    }
    surroundings |= {"TERM": "xterm-256color"}
    try:
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=surroundings,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
    except OSError as error:
        os.close(ours)
        raise SystemExit(f"{command[0]} cannot be started: {error}") from None
    finally:
        os.close(theirs)
    try:
        yield process, ours
    finally:
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)


def _take_terminal() -> None:
    """In the command's process: Ctrl-C at the terminal reaches it, and is heeded also where the
    recorder runs in the background of a script, which ignores it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # on Linux: the last who had it open has closed it
        return b""


if __name__ == "__main__":
    if "--" not in sys.argv and not {"-h", "--help"} & set(sys.argv):
        raise SystemExit("put -- before the command")
    main()
