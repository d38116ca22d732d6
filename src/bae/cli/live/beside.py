"""What others print while a display has the terminal: dependencies, libraries, logging. It is taken
line by line, so that it tears neither the tree nor a question. `display.py` and `tree.py` say where
the lines go."""

from __future__ import annotations

import io
import logging
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any, Final, TextIO, cast

MOST: Final = 10_000
"""Lines that are kept while somebody is asked something: the last ones."""
Take = Callable[[TextIO, str], None]
"""Gets a line without its end, and the stream that it was meant for."""


class Diversion:
    """Has the lines that are written to stderr, and to stdout if that is a terminal too, go to
    `take` from `start` until `stop`. Log handlers that write there are turned as well."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._streams: dict[str, _Lines] = {}

    def start(self) -> None:
        """Take what is printed from now on."""
        for name in ("stderr", "stdout"):
            real = getattr(sys, name)
            # What is printed to a file or a pipe goes there.
            if real is None or (name == "stdout" and not _is_terminal(real)):
                continue
            lines = self._streams[name] = _Lines(real, self._take)
            setattr(sys, name, lines)
            _turn_logging(real, lines)

    def stop(self) -> None:
        """Leave it alone again; a line that is begun is taken as it is."""
        while self._streams:
            name, lines = self._streams.popitem()
            if getattr(sys, name) is lines:
                setattr(sys, name, lines.rich_proxied_file)
            _turn_logging(lines, lines.rich_proxied_file)
            lines.end()


@contextmanager
def held_back() -> Generator[None]:
    """Keep what is printed in the block until it is over: somebody is asked something."""
    kept: deque[tuple[TextIO, str]] = deque(maxlen=MOST)

    def keep(real: TextIO, line: str) -> None:
        kept.append((real, line))

    diversion = Diversion(keep)
    diversion.start()
    try:
        yield
    finally:
        diversion.stop()
        for real, line in kept:
            with suppress(OSError, ValueError):  # it is gone, which is nothing to the run
                print(line, file=real, flush=True)


class _Lines(io.TextIOBase):
    """Stands for a stream, and gives away whole lines. Rich finds the stream behind it by the name
    of the attribute, so that consoles write past it."""

    def __init__(self, real: TextIO, take: Take) -> None:
        super().__init__()
        self.rich_proxied_file = real
        self._take = take
        self._begun = ""
        self._lock = RLock()  # of threads; and of a `take` that prints

    def write(self, text: str, /) -> int:
        with self._lock:
            *whole, self._begun = (self._begun + text).split("\n")
            # A carriage return begins the line anew, as bars of progress do all the time.
            self._begun = self._begun[self._begun.rfind("\r", 0, -1) + 1 :]
        for line in whole:
            self._give(line)
        return len(text)

    def flush(self) -> None:
        """Does nothing: half a line is no line."""

    def end(self) -> None:
        """Give away the line that is begun."""
        with self._lock:
            line, self._begun = self._begun, ""
        if line.strip():
            self._give(line)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.rich_proxied_file.isatty()

    def fileno(self) -> int:
        return self.rich_proxied_file.fileno()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  as it is
        return self.rich_proxied_file.encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def _give(self, line: str) -> None:
        line = line.removesuffix("\r")
        self._take(self.rich_proxied_file, line[line.rfind("\r") + 1 :])


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # closed, or nothing of the kind
        return False


def _turn_logging(before: Any, after: Any) -> None:
    """Have log handlers that write to one stream write to another."""
    for handler in _handlers():
        if isinstance(handler, logging.StreamHandler):
            written = cast("logging.StreamHandler[Any]", handler)
            if written.stream is before:
                written.setStream(after)


def _handlers() -> Iterator[logging.Handler]:
    root = logging.getLogger()
    yield from root.handlers
    for each in [*root.manager.loggerDict.values()]:
        if isinstance(each, logging.Logger):
            yield from each.handlers
