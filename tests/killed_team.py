"""A team at work that is made to be killed: `python killed_team.py ROOT TASKS`. Started again, it
cleans up and continues. It prints what must not get lost, before anything can kill it for it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bae.team.integration import Integrated
from git_repositories import open_team, write


async def main(root: Path, tasks: int) -> None:
    print("started", flush=True)
    workspaces, integration = await open_team(root)
    done = await workspaces.recover()
    assert not done.problems, done.problems

    async def work(number: int) -> None:
        branch = f"bae/task-{number}-x"
        if not await integration.merged_as(branch):
            workspace = await workspaces.start(branch)
            write(workspace.path, {f"{number}.txt": f"{number}\n", "notes.txt": f"note {number}\n"})
            print("wrote", number, flush=True)
            commit = await workspace.commit([f"{number}.txt"], f"work {number}")
            if commit:
                print("committed", commit, flush=True)
            assert isinstance(await integration.integrate(branch, f"Task {number}"), Integrated)
            await workspaces.remove(workspace)

    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(work(number))
    moved = await integration.deliver()
    assert not moved.reason, moved.reason
    await workspaces.recover()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
