"""The cost of an agent with tools, with a model that answers at once:

- a round (the model calls a function and reads its result) in bae and in PydanticAI, in
  conversations of 10, 40 and 160 rounds;
- 50 calls of 10 ms in one round, against a plain `asyncio.gather` of the same function.

    python -m benchmarks.tools

It prints the tables and exits with 1 when a target is missed. `--write FILE` puts them between the
marker lines of FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from bae import Graph, Node, ToolCall, Tools, Usage, __version__
from bae.lm import Answer, Backend, CallPart, Prompt
from benchmarks.report import Result, Verdict, figure, publish

ROUNDS = (10, 40, 160)
CALLS, SECONDS = 50, 0.010
MOST_OF_PYDANTIC_AI = 1 / 3
MOST_OVER_GATHER = 0.005
SAMPLES = 15
BEGIN = "<!-- tool figures: begin, written by python -m benchmarks.tools --write -->"
END = "<!-- tool figures: end -->"
ANSWER = '{"text":"It costs 40 euros."}'
Run = Callable[[], Awaitable[Any]]


async def search(query: str, most: int = 10) -> list[str]:
    """Search the catalog.

    Args:
        query: words to look for
        most: how many hits to return
    """
    return [f"{query}: blue kettle", f"{query}: red lamp"][:most]


async def wait(number: int) -> int:
    """Wait a little."""
    await asyncio.sleep(SECONDS)
    return number


# --- a round ------------------------------------------------------------------------------------


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(search, limit=1000)]
    text: str

    async def __call__(self) -> None: ...


class Instant(Backend):
    """A model that makes one call in each round, and then answers, without a delay."""

    model = "instant"
    calls_tools = True
    free = True

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds

    async def answer(self, prompt: Prompt) -> Answer:
        rounds = sum(message.role == "assistant" for message in prompt.conversation)
        usage = Usage(calls=1, input_tokens=100, output_tokens=10)
        if rounds == self.rounds:
            return Answer(ANSWER, usage)
        call = CallPart(f"p{rounds}", "search", {"query": f"kettle {rounds}", "most": 2})
        return Answer("", usage, calls=(call,))


class Plain(BaseModel):
    text: str


def in_bae(rounds: int) -> Run:
    graph, lm = Graph(start=Question, end=Reply), Instant(rounds)

    async def run() -> tuple[int, str]:
        made = (await graph.arun(Question(text="What does a kettle cost?"), lm)).result
        return len(made.calls), made.text

    return run


def in_pydantic_ai(rounds: int) -> Run:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        count = sum(message.kind == "response" for message in messages)
        usage = RequestUsage(input_tokens=100, output_tokens=10)
        if count == rounds:
            return ModelResponse([TextPart(ANSWER)], usage=usage)
        arguments = {"query": f"kettle {count}", "most": 2}
        return ModelResponse([ToolCallPart("search", arguments, f"p{count}")], usage=usage)

    agent = Agent(FunctionModel(answer), output_type=NativeOutput(Plain), tools=[search])
    limits = UsageLimits(request_limit=None)

    async def run() -> tuple[int, str]:
        result = await agent.run("What does a kettle cost?", usage_limits=limits)
        parts = [part for message in result.all_messages() for part in message.parts]
        return sum(part.part_kind == "tool-return" for part in parts), result.output.text

    return run


async def processor_time(runs: dict[str, Run], wanted: Any, samples: int) -> dict[str, list[float]]:
    """Return the seconds of processor time per run, one figure per sample. The contenders take
    turns."""
    repeats: dict[str, int] = {}
    for name, run in runs.items():
        began = time.process_time()
        assert await run() == wanted, name
        repeats[name] = max(1, round(0.1 / (time.process_time() - began)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(samples):
        for name in runs if number % 2 else reversed(runs):
            gc.collect()
            began = time.process_time()
            results = [await runs[name]() for _ in range(repeats[name])]
            times[name].append((time.process_time() - began) / repeats[name])
            assert results == [wanted] * repeats[name], name
    return times


def compare_rounds(samples: int) -> Result:
    rows, verdicts = list[list[str]](), list[Verdict]()
    for rounds in ROUNDS:
        runs = {"bae": in_bae(rounds), "PydanticAI": in_pydantic_ai(rounds)}
        wanted = rounds, "It costs 40 euros."
        found = asyncio.run(processor_time(runs, wanted, samples))
        # The last answer is a request too, without a call.
        mine, theirs = ([seconds / (rounds + 1) for seconds in found[name]] for name in runs)
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        ratio = statistics.median(ratios)
        rows.append(
            [
                f"{rounds} rounds",
                *(figure(statistics.median(times) * 1000) for times in (mine, theirs)),
                f"{ratio:.2f}",
                f"{min(ratios):.2f}–{max(ratios):.2f}",
            ]
        )
        target = f"a round of {rounds} costs at most a third of PydanticAI's"
        met = ratio <= MOST_OF_PYDANTIC_AI
        verdicts.append(Verdict("rounds", target, f"{ratio:.2f} of it", met))
    return Result(
        "rounds",
        "A round, with a model that answers at once (ms of processor time)",
        ["in a conversation of", "bae", "PydanticAI", "ratio", "lowest–highest"],
        rows,
        verdicts,
    )


# --- calls at the same time ---------------------------------------------------------------------


class Crowd(Node):
    text: str

    async def __call__(self) -> Waited: ...


class Waited(Node):
    calls: Annotated[list[ToolCall], Tools(wait, at_once=CALLS)]
    text: str

    async def __call__(self) -> None: ...


class Crowding(Backend):
    """A model that makes all calls in its first round."""

    model = "crowding"
    calls_tools = True
    free = True

    async def answer(self, prompt: Prompt) -> Answer:
        if len(prompt.conversation) > 1:
            return Answer(ANSWER)
        calls = tuple(CallPart(f"p{n}", "wait", {"number": n}) for n in range(CALLS))
        return Answer("", calls=calls)


async def over_gather(samples: int) -> tuple[list[float], list[float]]:
    """Return the seconds of a run with all calls in one round, and of a plain gather, measured in
    turns."""
    graph, lm, start = Graph(start=Crowd, end=Waited), Crowding(), Crowd(text="all")

    async def by_bae() -> list[Any]:
        return [call.result for call in (await graph.arun(start, lm)).result.calls]

    async def by_hand() -> list[Any]:
        return await asyncio.gather(*(wait(number) for number in range(CALLS)))

    times: dict[str, list[float]] = {"bae": [], "gather": []}
    runs = {"bae": by_bae, "gather": by_hand}
    for number in range(samples + 1):
        for name in runs if number % 2 else reversed(runs):
            gc.collect()
            began = time.perf_counter()
            results = await runs[name]()
            seconds = time.perf_counter() - began
            assert results == [*range(CALLS)], name
            if number:  # the first is a warm-up
                times[name].append(seconds)
    return times["bae"], times["gather"]


def compare_gather(samples: int) -> Result:
    mine, plain = asyncio.run(over_gather(samples))
    added = [a - b for a, b in zip(mine, plain, strict=True)]
    longer = statistics.median(added)
    rows = [
        [
            f"{CALLS} calls of {SECONDS * 1000:.0f} ms",
            *(figure(statistics.median(times) * 1000) for times in (mine, plain)),
            figure(longer * 1000),
            f"{figure(min(added) * 1000)}–{figure(max(added) * 1000)}",
        ]
    ]
    target = f"{CALLS} calls take at most {MOST_OVER_GATHER * 1000:.0f} ms longer than a gather"
    met = longer <= MOST_OVER_GATHER
    return Result(
        "calls",
        "Calls at the same time, without a journal (ms, the whole run)",
        ["one round with", "bae", "gather", "longer", "lowest–highest"],
        rows,
        [Verdict("calls", target, f"{figure(longer * 1000)} ms longer", met)],
        ["A sample is one run on the clock. Other programs add time: use an idle machine."],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools")
    parser.add_argument("--samples", type=int, default=SAMPLES, metavar="N")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into FILE")
    options = parser.parse_args()
    results = [compare_rounds(options.samples), compare_gather(options.samples)]
    where = (
        f"Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {options.samples} interleaved samples. bae "
        f"{__version__}, PydanticAI {version('pydantic-ai-slim')}."
    )
    verdicts = [verdict for result in results for verdict in result.verdicts]
    print(where, *(result.markdown() for result in results), sep="\n\n")
    print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    if options.write:
        publish(options.write, where, results, BEGIN, END)
    return 0 if all(verdict.met for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
