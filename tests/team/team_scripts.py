"""An LLM for tests of teams that answers from a script, by task and attempt. It reads both from the
prompt and remembers nothing, so that a team that is killed and started again gets the same."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bae import LM
from bae.lm import Answer, Backend, Prompt, Usage
from bae.team.lead import LeadAgent, TeamSummary
from bae.team.models import Project
from bae.team.store import Store
from bae.team.workbench import Workbench

Given = str | BaseException
Script = Mapping[str, str | Sequence[Given] | Callable[[str], Given]]
"""The answers to the attempts at each task, by its key; the last one is that of all later ones. Or
a function of the prompt."""

Told = Callable[[str, int], Awaitable[None]]
"""Awaited before an answer, with the key of the task and the number of the attempt."""


async def _at_once(key: str, attempt: int) -> None:
    pass


class TeamScript(Backend):
    """`TeamScript({"add-login": [wrong, right]})`. `asked` has the questions, in order."""

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
        request = json.loads(re.findall(r'\{"WorkRequest":(\{.+?\})\}', text)[-1])
        key, attempt = request["task"], request["attempt"]
        self.asked.append((key, attempt))
        self.prompts.append(text)
        await self.told(key, attempt)
        answers = self.script[key]
        if callable(answers):
            answers = [answers(text)]
        given = answers if isinstance(answers, str) else answers[min(attempt, len(answers)) - 1]
        if isinstance(given, BaseException):
            raise given
        return Answer(given, Usage(input_tokens=len(text) // 4, output_tokens=len(given) // 4))


async def run_team(
    project: Project,
    store: Store,
    lm: LM,
    *,
    max_agents: int = 4,
    wait: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> TeamSummary:
    """Let a team execute the tasks of a project; `options` go to its bench."""
    async with Workbench.open(project, store, **{"review": "off"} | options) as bench:
        lead = LeadAgent(bench, lm, max_agents=max_agents, wait=wait, timeout=timeout)
        return await lead.run()
