"""A team at work that is made to be killed: `python killed_team.py ROOT TASKS`. Started again, it
cleans up and continues. It prints what must not get lost, before anything can kill it for it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bae.team.integration import Integrated
from git_repositories import open_team, write


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # all of it or nothing


async def main(root: Path, tasks: int) -> None:
    say("started")
    workspaces, integration = await open_team(root)
    done = await integration.recover()
    assert not done.problems, done.problems

    async def work(number: int) -> None:
        branch = f"bae/task-{number}-x"
        if not await integration.merged_as(branch):
            workspace = await workspaces.start(branch)
            write(workspace.path, {f"{number}.txt": f"{number}\n", "notes.txt": f"note {number}\n"})
            say(f"wrote {number}")
            commit = await workspace.commit([f"{number}.txt"], f"work {number}")
            if commit:
                say(f"committed {commit}")
            assert isinstance(await integration.integrate(branch, f"Task {number}"), Integrated)
            await workspaces.remove(workspace)

    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(work(number))
    moved = await integration.deliver()
    assert not moved.reason, moved.reason
    await integration.recover()
    say("done")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
