"""The scripted LLM of the demo. It plans, works with tools and reviews, with answers from the files
beside this file. It waits before each answer, so that you can watch the work.
`--lm python:examples/team/scripted_lm.py:make_lm` names it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from bae.testing import Asked, Call, ScriptedLM

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("DEMO_SECONDS", "1"))
"""Seconds before each answer."""


def edit(name: str) -> Call:
    """Return the call for an edit that is in a file."""
    return Call("edit", text=(HERE / "edits" / f"{name}.md").read_text("utf-8"))


def check(*tests: str) -> Call:
    """Return the call that runs some tests, or all."""
    return Call("check", tests=list(tests))


CONVERSATIONS: dict[str, list[Call | list[Call] | str]] = {
    "words": [
        Call("outline"),
        edit("words"),
        check(),
        "split finds words with a regular expression. All tests pass.",
    ],
    "chart": [
        Call("outline"),
        edit("chart"),
        check("tests/test_chart.py"),  # fails
        Call("run", command="python -c 'print(1 * 20 // 40)'"),
        edit("chart-corrected"),
        check("tests/test_chart.py"),
        "draw scales the bars. A small count was rounded to no sign: each bar has one now.",
    ],
    "counts": [
        [Call("find", pattern="def split"), Call("look", path="textfacts/words.py")],
        edit("counts"),
        check("tests/test_counts.py"),
        "most_frequent counts what split finds. Its tests pass.",
    ],
    "lengths": [
        Call("look", path="textfacts/words.py"),
        edit("lengths"),
        "longest uses split.",  # refused: no test proves it
        edit("lengths-test"),
        check("tests/test_lengths.py"),
        "longest uses split, and has tests now.",
    ],
    "report": [
        Call("outline", path="textfacts"),
        Call("ask", question="How many of the most frequent words should the report show?"),
        edit("report"),
        Call("run", command="python -m textfacts textfacts/words.py"),
        check(),
        "The report shows the five most frequent words, as answered. I ran the command.",
    ],
}
"""The messages of each task's LLM, round by round: tool calls, and a text to submit the work."""

MISSING_CASE = {
    "kind": "missing-case",
    "file": "textfacts/report.py",
    "line": 14,
    "text": "No test has a text without words, for which `longest` is followed by nothing.",
    "blocking": False,
}


class DemoLM(ScriptedLM):
    """Answers by the class that is asked for."""

    async def fill(self, *args: Any, **kwargs: Any) -> Any:
        """Think for a moment, and answer."""
        await asyncio.sleep(SECONDS)
        return await super().fill(*args, **kwargs)


def make_lm() -> DemoLM:
    """Return the LLM, which plans, works and reviews."""
    return DemoLM(
        {
            "OpenQuestions": lambda question: {"questions": []},
            "Requirements": lambda question: (HERE / "requirements.md").read_text("utf-8"),
            "Plan": lambda question: {"tasks": json.loads((HERE / "plan.json").read_text("utf-8"))},
            "WorkerLoop": work,
            "WorkReview": review,
        }
    )


def work(question: Asked) -> Call | list[Call] | str:
    """Return the next message of a worker's LLM. The number of its earlier messages selects the
    message, so the script also continues a killed run."""
    request: Any = question.previous
    answers = [message for message in question.prompt.conversation if message.role == "assistant"]
    return CONVERSATIONS[request.task][len(answers)]


def review(question: Asked) -> dict[str, Any]:
    """Return the reviewer's answer, which has one finding for the task `report`."""
    request: Any = question.previous
    if request.task == "report":
        return {"findings": [MISSING_CASE], "summary": "The report is as the task says."}
    return {"findings": [], "summary": "The work does what the task says, and no more."}
