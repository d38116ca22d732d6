"""The LLM of the demo: it says what is in the files beside it, after a moment, so that the work can
be watched. `--lm python:examples/team/scripted_lm.py:make_lm` names it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from bae.testing import Asked, ScriptedLM

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("DEMO_SECONDS", "1"))
"""How long it takes for an answer."""


class DemoLM(ScriptedLM):
    """Answers by what is asked for."""

    async def fill(self, *args: Any, **kwargs: Any) -> Any:
        """Think for a moment, and answer."""
        await asyncio.sleep(SECONDS)
        return await super().fill(*args, **kwargs)


def make_lm() -> DemoLM:
    """The LLM, which plans and writes."""
    return DemoLM(
        {
            "OpenQuestions": lambda asked: {"questions": []},
            "Requirements": lambda asked: (HERE / "requirements.md").read_text("utf-8"),
            "Plan": lambda asked: {"tasks": json.loads((HERE / "plan.json").read_text("utf-8"))},
            "WorkerAnswer": write_code,
        }
    )


def write_code(asked: Asked) -> str:
    """What a worker's LLM writes: wrong at first for the chart, and a question for the report."""
    turn: Any = asked.previous
    second = turn.attempt > 1 or "Answer:" in (asked.instruction or "")
    path = HERE / "answers" / f"{turn.task}.md"
    if not path.exists():
        path = path.with_stem(f"{turn.task}-{2 if second else 1}")
    return path.read_text("utf-8")
