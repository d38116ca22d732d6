"""A worker that kills itself: `python killed_worker.py FILE PROJECT TASK EVENT` works on a task and
ends as by a crash when it has sent so many events. Started again, it continues. It prints what the
LLM is asked."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from bae.team import BackendWorkerAgent, Store, Workbench
from bae.team.worker_graph import WorkerAnswer, WorkRequest
from bae.testing import ScriptedLM
from bae.testing.scripted import Asked
from team_parts import SUB, WRONG, edits


class Killer:
    def __init__(self, event: int) -> None:
        self.left = event

    async def broadcast(self, message: dict[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def answer(asked: Asked) -> str:
    assert isinstance(asked.source, WorkRequest)
    os.write(1, f"asked {asked.source.attempt}\n".encode())
    return edits({"calc.sh": WRONG if asked.source.attempt == 1 else SUB})


async def main(path: Path, project_id: int, task_id: int, event: int) -> None:
    async with await Store.open(path) as store:
        project = await store.project(project_id)
        async with Workbench.open(project, store, ws_manager=Killer(event)) as bench:
            assert not (await bench.integration.recover()).problems
            lm = ScriptedLM({WorkerAnswer: answer})
            worker = BackendWorkerAgent(project_id=project_id, bench=bench, lm=lm)
            result = await worker.execute_task(await store.task(task_id))
            os.write(1, f"{result.status} after {result.attempts}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
