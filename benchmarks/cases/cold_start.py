"""Case g: how long a program takes that starts, makes a first run of two steps, and exits.

Each sample is a fresh interpreter, its start and its exit included, as a command or a serverless
function pays them. Bytecode is compiled by a first pass, as in case f.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.contenders import BAE, FLOOR, Contender
from benchmarks.report import Result, Verdict, figure, spread
from benchmarks.sampling import Samples, Settings, turns
from benchmarks.work import expect

MOST_OF_FLOOR = 1.2
ROUNDS = 41
PROGRAMS = {
    FLOOR: """
import asyncio
from pydantic import BaseModel

class Question(BaseModel):
    text: str
    async def __call__(self):
        return Reply(text=self.text.upper())

class Reply(BaseModel):
    text: str
    async def __call__(self):
        return None

async def run(node):
    trace = [node]
    while (node := await node()) is not None:
        trace.append(node)
    return trace[-1]

print(asyncio.run(run(Question(text="hello"))).text)
""",
    BAE: """
from __future__ import annotations
from bae import Graph, Node

class Question(Node):
    text: str
    async def __call__(self) -> Reply:
        return Reply(text=self.text.upper())

class Reply(Node):
    text: str
    async def __call__(self) -> None:
        return None

print(Graph(start=Question, end=Reply).run(Question(text="hello")).result.text)
""",
}


def measure(case: str, contenders: Mapping[str, Contender], settings: Settings) -> Result:
    samples = {key: Samples() for key in PROGRAMS if key in contenders}
    rounds = 5 if settings.quick else max(settings.rounds, ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        # Files, since bae reads from the source whether a body is empty.
        programs = {key: Path(folder, f"of_{key}.py") for key in samples}
        for key, path in programs.items():
            path.write_text(PROGRAMS[key], encoding="utf-8")
            _seconds(path)
        for order in turns(list(programs), rounds):
            for key in order:
                samples[key].append(_seconds(programs[key]))
    target = f"bae takes at most {MOST_OF_FLOOR:g} × the floor"
    verdict = Verdict(case, target, "bae or the floor did not run", None)
    if len(samples) == len(PROGRAMS):
        ratio = samples[BAE].ratio_to(samples[FLOOR])
        verdict = Verdict(case, target, f"{ratio:.2f} ×", ratio <= MOST_OF_FLOOR)
    return Result(
        case=case,
        title="g. A program that starts, runs two steps and exits (ms)",
        header=["", "median", "lowest–highest", "× floor"],
        rows=[
            [
                contenders[key].name,
                figure(mine.median * 1e3),
                spread(mine, 1e3),
                f"{mine.ratio_to(samples.get(FLOOR, mine)):.2f}",
            ]
            for key, mine in samples.items()
        ],
        verdicts=[verdict],
        notes=[],
        samples=samples,
    )


def _seconds(program: Path) -> float:
    """Return the seconds of a program in a new interpreter."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(program.parent)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - start
    expect("what the program prints", process.stdout, "HELLO\n")
    return seconds
