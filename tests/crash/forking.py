"""The process that all others are forked from, run as `python -m crash.forking`: it has imported
and prepared everything and holds no thread, so that a fork is ready at once. `forks.py` talks to
it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import selectors
import signal
import threading
import traceback
from typing import Any

from bae.journal import MemoryJournal, SQLiteJournal
from bae.journal.decoder import decode
from bae.threads import THREAD_LIMIT, set_thread_limit
from crash import newsroom
from crash.child import answer_all, do, job_of
from crash.effects import HERE, Effects
from crash.oracle import Oracle


def main() -> None:
    """Take jobs from stdin, a line each, and fork for each of them; say on stdout when a process
    has begun and when it is gone, with what it reported."""
    logging.getLogger("bae").setLevel(logging.ERROR)
    warm_up()
    gc.freeze()  # or a collection in a child would copy every page of this process
    say({"ready": os.getpid()})
    orders = selectors.DefaultSelector()
    orders.register(0, selectors.EVENT_READ)
    children: dict[int, Child] = {}
    pending = b""
    while True:
        for key, _ in orders.select():
            said = os.read(key.fd, 1 << 16)
            if key.fd != 0:
                child = children[key.fd]
                if not child.heard(said):
                    orders.unregister(key.fd)
                    del children[key.fd]
                    child.gone()
            elif not said:
                for child in children.values():
                    child.send()
                return
            else:
                *lines, pending = (pending + said).split(b"\n")
                for line in lines:
                    order: dict[str, Any] = json.loads(line)
                    if "job" in order:
                        child = Child(order)
                        children[child.pipe] = child
                        orders.register(child.pipe, selectors.EVENT_READ)
                    else:
                        for child in children.values():
                            if child.number == order["number"]:
                                child.told(order)


class Child:
    """A process that was forked for a job."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.number: int = order["number"]
        self.pipe, report = os.pipe()
        go, self._go = os.pipe()
        self._said = b""
        self._has_begun = False
        self.pid = os.fork()
        if not self.pid:
            os.close(self._go)
            _work(order["job"], report, go)
        os.close(report)
        os.close(go)

    def heard(self, said: bytes) -> bool:
        """Take in what the process says; False when it says no more."""
        if said and not self._has_begun:
            self._has_begun = True
            say({"number": self.number, "begun": True})
        self._said += said
        return bool(said)

    def told(self, order: dict[str, Any]) -> None:
        """Send the process a signal, or let it begin."""
        if "signal" in order:
            self.send(order["signal"])
        else:
            os.write(self._go, b"!")

    def send(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            os.waitpid(self.pid, os.WUNTRACED)
            say({"number": self.number, "stopped": True})

    def gone(self) -> None:
        """Say how the process ended."""
        os.close(self.pipe)
        os.close(self._go)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        report = None if code else json.loads(self._said[1:])
        say({"number": self.number, "exit": code, "report": report})


def _work(said: dict[str, Any], report: int, go: int) -> None:
    code = 1
    try:
        os.dup2(2, 1)  # stdout is for what this module says
        job = job_of(said)
        os.write(report, b"!")
        if job.at_once:
            os.read(go, 1)
        text = json.dumps(do(job)).encode()
        while text:
            text = text[os.write(report, text) :]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def say(what: dict[str, Any]) -> None:
    text = json.dumps(what).encode() + b"\n"
    while text:
        text = text[os.write(1, text) :]


def warm_up() -> None:
    """Run the graph once, so that all that is made once per process is made; then let go of every
    thread, since none of them would be there in a fork."""
    assert SQLiteJournal

    async def run() -> None:
        HERE.set(Effects(os.devnull, 0))
        options: dict[str, Any] = {"max_iters": newsroom.MAX_ITERS, "journal": MemoryJournal()}
        lm = Oracle()
        await newsroom.graph.arun(newsroom.START, lm, run_id="warm", **options)
        await answer_all("warm", lm, options)
        stored = await options["journal"].read("warm")
        decode(newsroom.graph, stored.lines)

    asyncio.run(run())
    set_thread_limit(THREAD_LIMIT)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


if __name__ == "__main__":
    main()
