"""A worker in a conversation with tools that kills itself at a random instant, in the work or in a
record: `python killed_conversation.py FILE PROJECT TASK LOG SEED`; without a seed it works to the
end. Started again, it continues. It notes what its LLM is asked, before it answers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from bae.observers import observing
from bae.team import BackendWorkerAgent, Store, Workbench
from bae.team.worker_graph import WorkerLoop
from bae.testing import Call, ScriptedLM
from bae.testing.scripted import Asked
from team_parts import SUB, WRONG, edits

QUESTION = "Integers only?"
ROUNDS = (
    [Call("look", path="calc.sh"), Call("find", pattern="add")],
    Call("run", command=". ./calc.sh; add 2 3"),
    Call("ask", question=QUESTION),
    Call("edit", text=edits({"calc.sh": WRONG, "notes.txt": "sub\n"})),
    Call("check", tests=["sub.test.sh"]),
    "I wrote sub.",
    Call("edit", text=edits({"calc.sh": SUB})),
    Call("check"),
    "I corrected sub.",
)
CALLS = ("look", "find", "run", "ask", "edit", "check", "edit", "check")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_random(chance: random.Random) -> Any:
    """End the process at a random record, or at a random time. Returns an observer."""
    left = chance.randrange(1, 60)
    if chance.random() < 0.5:
        timer = threading.Timer(chance.uniform(0.2, 3.0), kill)
        timer.daemon = True
        timer.start()
        left = 1_000

    def observe(_: object, __: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            kill()

    return observe


async def main(path: Path, project_id: int, task_id: int, log: Path, seed: str) -> None:
    def answer(asked: Asked) -> Any:
        rounds = len(asked.prompt.conversation) // 2  # each answer, and what followed it
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{rounds}\n".encode())  # all of it or nothing
        os.close(file)
        return ROUNDS[rounds]

    async with await Store.open(path) as store:
        project = await store.project(project_id)
        observer = kill_at_random(random.Random(seed)) if seed else lambda *_: None
        async with Workbench.open(project, store) as bench:
            assert not (await bench.integration.recover()).problems
            lm = ScriptedLM({WorkerLoop: answer})
            worker = BackendWorkerAgent(project_id=project_id, bench=bench, lm=lm)
            with observing(observer):
                result = await worker.execute_task(await store.task(task_id))
            if result.question:
                await store.add_blocker(task_id, result.question)
            os.write(1, f"{result.status}: {result.question or result.error or ''}\n".encode())


if __name__ == "__main__":
    where, number, task, asked, *given = sys.argv[1:]
    asyncio.run(main(Path(where), int(number), int(task), Path(asked), "".join(given)))
