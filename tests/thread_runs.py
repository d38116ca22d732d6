"""A chat for tests of threads, in this process and in others: `python thread_runs.py JOURNAL TEXT`
says one text in the thread "ana"."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated

from bae import Dep, Gate, Graph, Messages, Node, Thread
from bae.journal import SQLiteJournal
from bae.testing import ScriptedLM


class World:
    """What the graphs do outside of a run. `hold` holds the turn of a text until it is set."""

    def __init__(self) -> None:
        self.hold: dict[str, asyncio.Event] = {}
        self.began: dict[str, asyncio.Event] = {}
        self.working = 0
        self.most = 0
        self.looked_up: list[str] = []
        self.killed_at = ""

    def waits_at(self, text: str) -> asyncio.Event:
        """Let the turn of a text wait; the returned event is set when it waits."""
        self.hold[text] = asyncio.Event()
        self.began[text] = asyncio.Event()
        return self.began[text]


WORLD = World()


async def look_up(text: str) -> str:
    """Something outside that takes as long as the test wants."""
    WORLD.looked_up.append(text)
    WORLD.working += 1
    WORLD.most = max(WORLD.most, WORLD.working)
    try:
        if text in WORLD.hold:
            WORLD.began[text].set()
            await WORLD.hold[text].wait()
        await asyncio.sleep(0)
        if text == WORLD.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if text.startswith("fail"):
            raise ValueError(text)
    finally:
        WORLD.working -= 1
    return f"facts about {text}"


class Say(Node):
    text: str
    facts: Annotated[str, Dep(look_up, text="text")]

    async def __call__(self) -> Reply: ...


class Reply(Node):
    history: Annotated[Messages, Thread(last=4)]
    text: str

    async def __call__(self) -> None: ...


class Refund(Node):
    text: str
    approved: Annotated[str, Gate("Refund it?")]

    async def __call__(self) -> Reply: ...


chat = Graph(start=Say, end=Reply)
refunds = Graph(start=Refund, end=Reply)


def replying() -> ScriptedLM:
    """Answers each text with itself."""
    return ScriptedLM({Reply: lambda asked: {"text": f"re: {asked.source.text}"}})


async def main(path: str, text: str, mode: str) -> None:
    if mode == "kill":
        WORLD.killed_at = text
    if mode == "hold":
        began = WORLD.waits_at(text)

        async def say() -> None:
            await began.wait()
            with open(f"{path}.began", "x"):  # noqa: ASYNC230 - it is there at once
                pass

        told = asyncio.create_task(say())
    async with SQLiteJournal(path) as journal:
        run = chat.arun(Say(text=text), replying(), thread="ana", journal=journal, run_id=text)
        result = await run
        print(len(result.trace[-1].history))
    if mode == "hold":
        await told


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
