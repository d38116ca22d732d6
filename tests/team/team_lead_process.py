"""The scripted LLM of a team on a project in shell, and a process that runs such a team until it is
done or killed: `python team_lead_process.py STATE [KEY…]`. Tasks that are named wait for ever."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

from bae.lm import Answer, Backend, Prompt, Usage
from bae.team.lead import LeadAgent
from bae.team.store import Store
from bae.team.workbench import Workbench
from bae.team.worker_graph import WorkRequest
from bounded import BOUND
from team_parts import edits


def right(key: str) -> str:
    """The answer of an LLM that does a task: a module of its name, with a test."""
    test = f'. ./{key}.sh\n[ "$(f)" = 1 ]\n'
    return edits({f"{key}.sh": "f() { echo 1; }\n", f"{key}.test.sh": test})


class TeamLM(Backend):
    """Answers by the task and the number of questions about it; right by default."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(retries=0, attempts=0)
        self.answers = {key.replace("_", "-"): answer for key, answer in answers.items()}
        self.asked: list[str] = []
        self.is_asked = asyncio.Event()

    async def answer(self, prompt: Prompt) -> Answer:
        turn = prompt.question.source
        assert isinstance(turn, WorkRequest)
        self.asked.append(turn.task)
        self.is_asked.set()
        said: Any = self.answers.get(turn.task, right(turn.task))
        if callable(said):
            said = said(self.asked.count(turn.task))
        if isinstance(said, Awaitable):
            said = await said
        if isinstance(said, BaseException):
            raise said
        return Answer(said, Usage(1, 100, 100, cost=0.1))

    def least_cost(self, usage: Usage) -> float | None:
        return 0.1


async def never(_: int = 0) -> str:
    """An answer that does not come."""
    await asyncio.Event().wait()
    return ""


class Printer:
    """Prints every event as a line."""

    async def broadcast(self, message: dict[str, Any], /) -> None:
        print(json.dumps(message), flush=True)


async def main(state: str, *waiting: str) -> None:
    async with await Store.open(state) as store:
        [project] = await store.projects()
        opening = Workbench.open(
            project, store, ws_manager=Printer(), limits={"timeout": BOUND}, review="off"
        )
        async with opening as bench:
            lm = TeamLM(**dict.fromkeys(waiting, never))
            summary = await LeadAgent(bench, lm, max_agents=3, poll=0.02).run()
            print(json.dumps({"ended": summary.ended, "calls": summary.spent.calls}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
