"""The cost of a fill through bae above a direct call of the same SDK. A provider on loopback
answers, in a process of its own, so that only the caller's processor time is counted:

    python -m benchmarks.fills

It prints a table and exits with 1 when a backend is over the target.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from pydantic import BaseModel, Field

from bae import Node
from bae.lm import AnthropicBackend, DSPyBackend, PydanticAIBackend
from bae.testing import Provider

TARGET = 0.3
"""Milliseconds of processor time a call that bae may add."""
ROUNDS = 15
CALLS = 40
Call = Callable[[], Awaitable[Any]]

PROMPT = "Outfit\n\n" + json.dumps({"Day": {"message": "ugh, just got up", "celsius": 11}})
SYSTEM = "Answer with one JSON object that fits the schema."


class Day(Node):
    message: str
    celsius: int

    async def __call__(self) -> Outfit: ...


class Outfit(Node):
    top: str = Field(description="a specific garment")
    shoes: str = Field(description="a specific pair")
    layers: int = Field(ge=1, le=4)

    async def __call__(self) -> None: ...


class Plain(BaseModel):
    top: str = Field(description="a specific garment")
    shoes: str = Field(description="a specific pair")
    layers: int = Field(ge=1, le=4)


DAY = Day(message="ugh, just got up", celsius=11)
ANSWER = {"top": "grey wool jumper", "shoes": "rain boots", "layers": 2}


@asynccontextmanager
async def anthropic(url: str) -> AsyncIterator[dict[str, Call]]:
    from anthropic import AsyncAnthropic, transform_schema

    schema = transform_schema(Plain)
    client = AsyncAnthropic(api_key="x", base_url=url, max_retries=0)

    async def by_hand() -> Plain:
        text = ""
        async with await client.messages.create(
            model="claude-sonnet-5-5",
            max_tokens=1000,
            system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": PROMPT}],
            output_config={"format": {"type": "json_schema", "schema": schema}},
            stream=True,
        ) as events:
            async for event in events:
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    text += event.delta.text
        return Plain.model_validate_json(text)

    async with AnthropicBackend(api_key="x", base_url=url) as lm:
        yield {"by hand": by_hand, "bae": lambda: lm.make(DAY, Outfit)}
    await client.close()


@asynccontextmanager
async def pydantic_ai(url: str) -> AsyncIterator[dict[str, Call]]:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    clients: list[AsyncOpenAI] = []

    def model() -> OpenAIChatModel:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        clients.append(client)
        return OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(openai_client=client))

    agent = Agent(model(), output_type=NativeOutput(Plain), instructions=SYSTEM)

    async def by_hand() -> Plain:
        return (await agent.run(PROMPT)).output

    lm = PydanticAIBackend(model())
    yield {"by hand": by_hand, "bae": lambda: lm.make(DAY, Outfit)}
    for client in clients:
        await client.close()


@asynccontextmanager
async def dspy(url: str) -> AsyncIterator[dict[str, Call]]:
    import dspy

    def model() -> Any:
        return dspy.LM(
            "openai/gpt-5-mini",
            api_base=f"{url}/v1",
            api_key="x",
            cache=False,
            temperature=None,
            max_tokens=None,
        )

    class Dress(dspy.Signature):
        """Outfit"""

        day: str = dspy.InputField()
        top: str = dspy.OutputField(desc="a specific garment")
        shoes: str = dspy.OutputField(desc="a specific pair")
        layers: int = dspy.OutputField()

    predictor = dspy.Predict(Dress)
    by_hand_lm = model()

    async def by_hand() -> Any:
        with dspy.context(lm=by_hand_lm, adapter=dspy.JSONAdapter()):
            return await predictor.acall(day=PROMPT)

    async with DSPyBackend(lm=model()) as lm:
        yield {"by hand": by_hand, "bae": lambda: lm.make(DAY, Outfit)}


async def measure_processor_time(calls: dict[str, Call]) -> dict[str, list[float]]:
    """Return the milliseconds of processor time per call, one figure per round. The contenders take
    turns."""
    for call in calls.values():
        for _ in range(10):
            await call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS):
        order = list(calls) if number % 2 else list(reversed(calls))
        for name in order:
            gc.collect()
            began = time.process_time()
            for _ in range(CALLS):
                await calls[name]()
            times[name].append((time.process_time() - began) / CALLS * 1000)
    return times


async def compare_fills(made: Callable[[str], Any], url: str) -> dict[str, list[float]]:
    async with made(url) as calls:
        return await measure_processor_time(calls)


def main() -> int:
    worst = 0.0
    print("| SDK | by hand, ms | through bae, ms | bae adds, ms (median) | lowest | highest |")
    print("| --- | --- | --- | --- | --- | --- |")
    for contender in (anthropic, pydantic_ai, dspy):
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fills", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            assert server.stdin is not None
            figures = asyncio.run(compare_fills(contender, server.stdout.readline().strip()))
            server.stdin.close()
        pairs = zip(figures["bae"], figures["by hand"], strict=True)
        added = [through - alone for through, alone in pairs]
        worst = max(worst, statistics.median(added))
        print(
            f"| {contender.__name__} | {statistics.median(figures['by hand']):.2f} "
            f"| {statistics.median(figures['bae']):.2f} | {statistics.median(added):.2f} "
            f"| {min(added):.2f} | {max(added):.2f} |"
        )
    print(f"\nthe target is at most {TARGET} ms; the most added is {worst:.2f} ms")
    return 0 if worst <= TARGET else 1


async def serve() -> None:
    """Answer until standard input ends."""
    async with Provider() as provider:
        provider.always(ANSWER)
        print(provider.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(serve())
    else:
        os.environ.setdefault("OPENAI_API_KEY", "x")
        sys.exit(main())
