"""A process that stores events: `python team_event_process.py FILE PROJECT FIRST COUNT`."""

from __future__ import annotations

import asyncio
import sys

from bae.team.events import ActivityUpdate
from bae.team.store import Store


async def main(path: str, project_id: int, first: int, count: int) -> None:
    async with await Store.open(path) as store:
        for number in range(first, first + count):
            text = f"other {number}"
            await store.add_events([ActivityUpdate(project_id=project_id, text=text)])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
