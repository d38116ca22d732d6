"""For tests that send SIGINT or SIGHUP: `nohup` and background jobs of a script ignore these
signals, and a process inherits that. This module restores their default handlers."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULTS = {
    getattr(signal, name): handler
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL))
    if hasattr(signal, name)
}


def restore_signals() -> None:
    """Have this process start as from a shell; as the `preexec_fn` of a child."""
    for each in DEFAULTS:
        signal.signal(each, signal.SIG_DFL)


@contextmanager
def default_signals() -> Iterator[None]:
    """Handle the signals in the block as a process started from a shell does."""
    before = {each: signal.signal(each, handler) for each, handler in DEFAULTS.items()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
