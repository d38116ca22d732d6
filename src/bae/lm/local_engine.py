"""llama.cpp in this process, through the package xllamacpp: loaded quietly, and left without a hang
when the process ends or forks. `local_model.py` shares what is loaded here."""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bae.exceptions import BaeLMError
from bae.lm.weights import ENGINE, INSTALL

BATCH: Final = 64
"""Tokens of a prompt that are read at once. A call can be stopped between two batches, and on a CPU
larger ones are not faster. One token of every slot has to fit into a batch as well."""

MOST_SLOTS: Final = 256
MOST_THREADS: Final = 512
"""What the engine takes; it ends the process over more threads."""

LEAST_CONTEXT: Final = 64
"""Tokens. The engine ends the process over a context of one, and no prompt is shorter than this."""

MOST_TOKENS: Final = 2**31 - 1
"""What the engine can count to, in a context and in an answer."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How a model is loaded. What differs in any of it needs a copy of its own."""

    path: Path
    context: int
    slots: int
    threads: int


def load(loading: Loading) -> Any:
    """Load a model, in a thread of its own.

    The engine holds the interpreter up while it does so: a fifth of a second for a small model.
    What can be slower, reading the file, is done before, without that.
    """
    _read(loading.path)
    engine = _engine()
    try:
        server = engine.Server(_params(engine, loading))
        server.handle_metrics()  # it can be taken down only when it has begun to take requests
        return server
    except Exception as error:
        raise BaeLMError(
            f"{loading.path} could not be loaded",
            code="bae-lm-weights-unreadable",
            sent=False,
            cause=error,
            fix="check that the file is whole, that llama.cpp knows this kind of model, and that "
            f"there is memory for {loading.slots} × {loading.context} tokens of context",
        ) from error


def _params(engine: Any, loading: Loading) -> Any:
    params = engine.CommonParams()
    params.model.path = str(loading.path)
    params.n_ctx = loading.context * loading.slots
    params.n_parallel = loading.slots
    params.cpuparams.n_threads = loading.threads
    params.cpuparams_batch.n_threads = loading.threads
    params.n_batch = params.n_ubatch = max(BATCH, loading.slots)
    params.cache_ram_mib = 0  # or it keeps up to 8 GiB of old prompts
    # Finding out what fits into the memory of a GPU takes as long as loading, so only with one.
    params.fit_params = any(each["type"].value for each in engine.get_device_info())
    params.warmup = False
    params.verbosity = -1
    params.offline = True
    # The text of an answer is taken as it is: a grammar leaves nothing in it to be parsed.
    params.force_pure_content_parser = True
    params.enable_reasoning = 0
    params.endpoint_metrics = True
    params.endpoint_slots = False
    params.ui = False
    # It also listens on a port of the loopback interface, which nobody is to use.
    params.api_keys = [secrets.token_urlsafe(32)]
    params.n_threads_http = 1
    return params


def grammar_of(schema: Mapping[str, Any]) -> str:
    """The grammar of a schema, which a model is held to. JSON is written on one line: space is not
    for a model to fill an answer with."""
    spacing = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return _engine().json_schema_to_grammar({**schema, "x-guidance": spacing})


def is_running() -> bool:
    """Whether the engine has threads in this process, or had them before it was forked."""
    return ENGINE in sys.modules


def leave_alone(server: Any) -> None:
    """Never take a server down, in a child whose parent it belongs to: its threads were not copied
    by the fork, and would be waited for without end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def end_without_cleaning_up() -> None:
    """Have this process, a forked child, end without the cleaning up of C++, which would wait for
    threads of the parent too. Python's own is done by then."""
    program = ctypes.CDLL(None)
    with suppress(AttributeError):  # not every system has it
        program.on_exit(program._exit, None)


def cores() -> int:
    """The processors this process may use: those it is bound to, or the share it is given."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = _share()
    return max(1, min(bound or 1, share or sys.maxsize))


def _read(path: Path) -> None:
    """Have the file in memory."""
    room = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(room):
            pass


def _share() -> int | None:
    """The limit of a container, in whole processors."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def begin_as_child() -> None:
    """Forget, in a forked child, that a thread of the parent was importing the engine."""
    global _importing
    _importing = threading.Lock()


def _engine() -> Any:
    # One thread at a time, so that the environment is put back once.
    with _importing:
        # Where someone else is importing it, this waits until it is there as a whole.
        return import_module(ENGINE) if ENGINE in sys.modules else _imported()


def _imported() -> Any:
    # Threads that wait for each other by spinning are slow where others use the processor too.
    # This is read once, when the library is loaded.
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return import_module(ENGINE)
    except ImportError as error:
        fix = f"install it again: {INSTALL}"
        if "libgomp" in str(error):  # part of the system, and not of every small one
            fix = "install GNU's OpenMP library; on Debian and Ubuntu: apt-get install libgomp1"
        raise BaeLMError(
            f"the package {ENGINE} cannot be imported",
            code="bae-lm-extra-missing",
            sent=False,
            cause=error,
            fix=fix,
        ) from error
    finally:
        if before is None:
            os.environ.pop("OMP_WAIT_POLICY", None)


_importing = threading.Lock()
