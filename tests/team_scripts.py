"""An LLM for tests of teams that answers from a script, by task and attempt. It reads both from the
prompt and remembers nothing, so that a team that is killed and started again gets the same."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bae import LM
from bae.lm import Answer, Backend, Prompt, Usage
from bae.team.models import Project, Task, TaskStatus
from bae.team.store import Store
from bae.team.workbench import Workbench
from bae.team.worker import worker_class

_S = TaskStatus

Script = Mapping[str, str | Sequence[str | BaseException]]
"""The answers to the attempts at each task, by its key; the last one is that of all later ones."""

Told = Callable[[str, int], Awaitable[None]]
"""Awaited before an answer, with the key of the task and the number of the attempt."""


async def _at_once(key: str, attempt: int) -> None:
    pass


class TeamScript(Backend):
    """`TeamScript({"add-login": [wrong, right]})`. `asked` has what was asked, in order."""

    model = "script"
    free = True

    def __init__(self, script: Script, told: Told = _at_once) -> None:
        super().__init__(attempts=0, retries=0)
        self.script = script
        self.told = told
        self.asked: list[tuple[str, int]] = []
        self.prompts: list[str] = []

    async def answer(self, prompt: Prompt) -> Answer:
        text = prompt.flat()
        turn = json.loads(re.findall(r'\{"Turn":(\{.+?\})\}', text)[-1])
        key, attempt = turn["task"], turn["attempt"]
        self.asked.append((key, attempt))
        self.prompts.append(text)
        await self.told(key, attempt)
        answers = self.script[key]
        given = answers if isinstance(answers, str) else answers[min(attempt, len(answers)) - 1]
        if isinstance(given, BaseException):
            raise given
        return Answer(given, Usage(input_tokens=len(text) // 4, output_tokens=len(given) // 4))


async def run_team(
    project: Project, store: Store, lm: LM, *, max_agents: int = 4, **options: Any
) -> None:
    """Have workers carry out the tasks of a project, all at one bench; then deliver."""
    turns = asyncio.Semaphore(max_agents)
    async with Workbench.open(project, store, **options) as bench:

        async def work(task: Task) -> None:
            async with turns:
                for before, after in ((_S.PENDING, _S.READY), (_S.READY, _S.IN_PROGRESS)):
                    await store.move(task.id, before, after)
                worker = worker_class(task.kind)(project_id=project.id, bench=bench, lm=lm)
                result = await worker.execute_task(task)
                if result.question:
                    await store.add_blocker(task.id, result.question)
                after = {"completed": _S.COMPLETED, "blocked": _S.BLOCKED, "failed": _S.FAILED}
                await store.move(
                    task.id, _S.IN_PROGRESS, after[result.status], commit=result.commit
                )

        async with asyncio.TaskGroup() as group:
            for task in await store.tasks(project.id):
                group.create_task(work(task))
        await bench.integration.deliver()
