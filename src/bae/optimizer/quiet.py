"""DSPy prints, logs and draws bars while it optimises. Here nothing of that reaches the terminal,
while the prints of all other threads do; what is worth knowing is told as `Progress`."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from bae.lm.extras import load_dspy

QUIET = "bae_quiet"
"""The setting of DSPy that marks its optimiser's threads: it hands its settings on to them."""


@contextmanager
def quiet() -> Generator[None]:
    """Within this block, threads with the setting `QUIET` write nothing, and DSPy and what it
    stands on warn of nothing."""
    _enter()
    try:
        yield
    finally:
        _leave()


class _Selective:
    """A stream that drops what is written by threads which are to be quiet."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if _is_quiet() else self.stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not _is_quiet():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _is_quiet() -> bool:
    return bool(load_dspy("optimize_node").settings.get(QUIET, False))


class _State:
    users = 0
    ignoring: tuple[list[Any], list[Any]] = [], []
    interval: Any = None
    streams: tuple[_Selective, _Selective] | None = None


def _enter() -> None:
    tqdm: Any = sys.modules.get("tqdm")
    with _lock:
        _State.users += 1
        if _State.users > 1:
            return
        # Not to be ended by a filter that makes errors of warnings which nobody here can mend.
        _State.ignoring = _ignore()
        if tqdm is not None:
            # Its bars would start a thread that stays for good.
            _State.interval, tqdm.tqdm.monitor_interval = tqdm.tqdm.monitor_interval, 0
        _State.streams = _Selective(sys.stdout), _Selective(sys.stderr)
        sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", _State.streams)


def _leave() -> None:
    tqdm: Any = sys.modules.get("tqdm")
    with _lock:
        _State.users -= 1
        if _State.users:
            return
        if _State.streams is not None:
            out, err = _State.streams
            # Where somebody else has put theirs meanwhile, that stays.
            if cast(object, sys.stdout) is out:
                sys.stdout = out.stream
            if cast(object, sys.stderr) is err:
                sys.stderr = err.stream
        if tqdm is not None and _State.interval is not None:
            tqdm.tqdm.monitor_interval = _State.interval
        _heed(*_State.ignoring)
        _State.ignoring = [], []
        _State.interval = _State.streams = None


def _ignore() -> tuple[list[Any], list[Any]]:
    """Put filters of warnings before those there are; answers where they are now, and which.

    Not `catch_warnings`, which would throw away what others set while the optimiser runs.
    """
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message=_OURS, module=r"(dspy|gepa|optuna|tqdm)(\.|$)")
    # It may be half imported, by another optimisation in its thread.
    experimental = getattr(sys.modules.get("optuna.exceptions"), "ExperimentalWarning", None)
    if experimental is not None:
        warnings.filterwarnings("ignore", _OURS, experimental)
    there = cast("list[Any]", warnings.filters)
    return there, [each for each in there if each not in before]


def _heed(there: list[Any], filters: list[Any]) -> None:
    """Take these filters away, and leave all others as they are."""
    # A block of somebody's that began meanwhile has a list of its own, and puts the old one back.
    for each in (there, cast("list[Any]", warnings.filters)):
        each[:] = [found for found in each if found not in filters]


_OURS = "(?#bae)"
"""A pattern of any text. That it is nobody else's tells our filters from equal ones."""


_lock = threading.Lock()
