"""A process that works on the state of a team: `python team_store_process.py race|write FILE …`."""

from __future__ import annotations

import asyncio
import sys

from bae.team.models import TaskAttempt, TaskStatus
from bae.team.store import Store


async def race(path: str, tasks: int) -> None:
    """Claim every ready task after a signal to start; print the won tasks."""
    async with await Store.open(path) as store:
        print("open", flush=True)
        sys.stdin.readline()
        for number in range(1, tasks + 1):
            if await store.move(number, TaskStatus.READY, TaskStatus.IN_PROGRESS):
                print(number, flush=True)


async def write(path: str, first: int) -> None:
    """Write until killed; print the acknowledged writes."""
    async with await Store.open(path) as store:
        number = first
        while True:
            await store.add_attempt(TaskAttempt(task_id=1, number=number, outcome="failed"))
            blocker = await store.add_blocker(1, f"question {number}")
            print(number, blocker.id, flush=True)
            number += 1


if __name__ == "__main__":
    work = {"race": race, "write": write}[sys.argv[1]]
    asyncio.run(work(sys.argv[2], int(sys.argv[3])))
