"""Processes that used the local model: they end, and say nothing on the side."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bounded import BOUND
from local_parts import need_the_model

need_the_model()

ROOT = Path(__file__).resolve().parents[2]


def ended(code: str) -> str:
    """What a process prints that runs this code; it has to end well, and without a word on the
    side."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(code)],
        capture_output=True,
        encoding="utf-8",
        timeout=2 * BOUND,
        check=False,
        cwd=ROOT / "src",
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


PROGRAM = """
    import asyncio, os, sys, threading
    from bae import Node
    from bae.lm import LocalBackend, metered
    from pydantic import Field, field_validator

    class Day(Node):
        message: str
        async def __call__(self) -> None: ...

    class Short(Node):
        size: int = Field(ge=1, le=4)
        async def __call__(self) -> None: ...

    class Novel(Node):
        text: str = Field(min_length=3000)
        async def __call__(self) -> None: ...

    lm = LocalBackend(context=2048)

    async def fill(target, watch=None):
        with metered(watch):
            return await lm.fill(target, {}, target.__name__, Day(message="hello"))
"""


def test_threads_that_load_the_engine_at_once_get_it_whole_and_leave_the_environment():
    code = """
        import bae.lm.local_engine as engine
        barrier, seen = threading.Barrier(8), []
        def load():
            barrier.wait()
            engine.grammar_of({"type": "object"})
            seen.append("OMP_WAIT_POLICY" in os.environ)
        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(seen)
    """
    assert ended(code) == f"{[False] * 8}\n"


def test_one_backend_serves_one_loop_after_another_and_several_threads():
    code = """
        for _ in range(2):
            asyncio.run(fill(Short))
        def run():
            print(asyncio.run(fill(Short)).size > 0)
        threads = [threading.Thread(target=run) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(lm.shared.statistics())
    """
    assert ended(code) == ("True\nTrue\nStatistics(slots=1, running=0, waiting=0, loaded=True)\n")


def test_a_process_can_end_after_a_fill_was_cancelled():
    code = """
        async def main():
            started = asyncio.Event()
            task = asyncio.create_task(fill(Novel, lambda event: started.set()))
            await started.wait()
            task.cancel()
            print(await asyncio.gather(task, return_exceptions=True))

        asyncio.run(main())
    """
    assert ended(code) == "[CancelledError('')]\n"


def test_a_process_can_end_while_other_threads_are_still_asking():
    code = """
        started = threading.Event()
        def ask():
            asyncio.run(fill(Novel, lambda event: started.set()))
        for _ in "abc":
            threading.Thread(target=ask, daemon=True).start()
        started.wait()
        print("end")
    """
    assert ended(code) == "end\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_loads_a_model_of_its_own_and_both_end():
    code = """
        import warnings
        warnings.simplefilter("ignore")  # newer Pythons warn of forking where there are threads
        asyncio.run(fill(Short))
        child = os.fork()
        if not child:
            loaded = lm.shared.statistics().loaded
            asyncio.run(fill(Short))
            asyncio.run(lm.aclose())
            print("child", loaded, flush=True)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(type(asyncio.run(fill(Short))).__name__)
    """
    assert ended(code) == "child False\n7\nShort\n"


def test_a_system_without_the_library_for_threads_is_told_how_to_get_it(tmp_path):
    missing = "libgomp.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({missing!r})")
    printed = ended(
        f"""
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            asyncio.run(lm.load())
        except Exception as error:
            print(error.code, error.fix)
        """
    )
    assert printed.startswith("bae-lm-extra-missing")
    assert "apt-get install libgomp1" in printed
