"""For tests of runs: a run that fails instead of waiting forever, its exception, and a pause
without sleep."""

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

import pytest

from bae import Dep, Graph, GraphResult, Node
from end_node import EndNode

E = TypeVar("E", bound=BaseException)

BOUND = 30  # seconds until a test that would wait for ever fails instead


async def some_turns() -> None:
    """Take a while: several turns of the loop, in which everything that is ready runs."""
    for _ in range(5):
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()


async def run(start: Node, lm: Any = None, **options: Any) -> GraphResult[Any]:
    async with asyncio.timeout(BOUND):
        return await Graph(start=type(start)).arun(start, lm, **options)


async def value_from(fn: Any, lm: Any = None, **options: Any) -> Any:
    """The value of a field annotated `Dep(fn, **options)` after a run."""

    class Holder(EndNode):
        value: Annotated[Any, Dep(fn, **options)]

    return (await run(Holder(), lm)).result.value


async def error_from(kind: type[E], running: Awaitable[Any]) -> E:
    """The error that something awaited raises, which is of this kind."""
    with pytest.raises(kind) as caught:
        await running
    return caught.value
