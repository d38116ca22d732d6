"""A `BaseException` that is no `Exception` (of a test framework, a library in Rust, a generator)
ends a run like any failure: it is raised, or is the cause of the raised error, nothing is left
open, and the journal records it. So does an exception whose text cannot be computed or written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import field_validator

from bae import BaeError, Dep, Gate, Graph, Map, Node
from bae.exceptions import describe
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from bae.journal.decoder import decode
from bae.lm import Answer, Backend, Prompt
from end_node import EndNode, leading_to


class Panic(BaseException):
    pass


RAISED: list[BaseException] = []
OPENED: list[str] = []
CLOSED: list[str] = []


def boom(*_: Any) -> Any:
    raise RAISED[0]


async def abroken() -> str | None:
    return boom()


def broken() -> str | None:
    return boom()


async def abroken_item(item: int) -> str | None:
    return boom() if item == 1 else str(item)


def broken_item(item: int) -> str | None:
    return boom() if item == 1 else str(item)


async def agenerator() -> AsyncIterator[str]:
    yield "a"
    boom()


def generator() -> Iterator[str]:
    yield "a"
    boom()


@asynccontextmanager
async def amanager() -> AsyncIterator[str]:
    yield "a"
    boom()


@contextmanager
def manager() -> Iterator[str]:
    yield "a"
    boom()


def broken_opening() -> Iterator[str]:
    boom()
    yield "a"


async def opened() -> AsyncIterator[str]:
    OPENED.append("async")
    try:
        yield "open"
    finally:
        CLOSED.append("async")


def opened_in_thread() -> Iterator[str]:
    OPENED.append("sync")
    try:
        yield "open"
    finally:
        CLOSED.append("sync")


class Base(EndNode):
    first: Annotated[str, Dep(opened)]
    second: Annotated[str, Dep(opened_in_thread)]


class Mapped(Base):
    numbers: list[int] = [0, 1, 2]


def with_source(kind: Any, source: Any, base: type[Node] = Base, **default: Any) -> type[Node]:
    """A node that opens two things, and then has the source."""
    return type(
        "Broken", (base,), {"__annotations__": {"value": Annotated[kind, source]}, **default}
    )


class Body(Base):
    async def __call__(self) -> None:
        boom()


class Validated(Base):
    value: Annotated[str, Dep(lambda: "a")]

    _check = field_validator("value")(lambda value: boom())


class Asking(leading_to(leading_to(None, name="Filled", text=str))):  # type: ignore[misc]
    first: Annotated[str, Dep(opened)]
    second: Annotated[str, Dep(opened_in_thread)]


class Inside(Node):
    async def __call__(self) -> None:
        boom()


class BrokenLM(Backend):
    model = "broken"
    free = True

    async def answer(self, prompt: Prompt) -> Answer:
        return boom()


async def broken_answer(gate: Any) -> Any:
    return boom()


class BelowDefault(EndNode):
    value: Annotated[str | None, Dep(abroken)]


PLACES: dict[str, type[Node]] = {
    "body": Body,
    "async function": with_source(str | None, Dep(abroken)),
    "sync function": with_source(str | None, Dep(broken)),
    "inline function": with_source(str | None, Dep(broken, inline=True)),
    "retried function": with_source(str | None, Dep(abroken, retries=2)),
    "async item": with_source(list[str | None], Map(abroken_item, "numbers"), Mapped),
    "sync item": with_source(list[str | None], Map(broken_item, "numbers"), Mapped),
    "inline item": with_source(list[str | None], Map(broken_item, "numbers", inline=True), Mapped),
    "opening": with_source(str, Dep(broken_opening)),
    "closing an async generator": with_source(str, Dep(agenerator)),
    "closing a generator": with_source(str, Dep(generator)),
    "closing an inline generator": with_source(str, Dep(generator, inline=True)),
    "closing an async manager": with_source(str, Dep(amanager)),
    "closing a manager": with_source(str, Dep(manager)),
    "graph inside": with_source(Inside, Dep(Inside)),
    "validator": Validated,
    "language model": Asking,
    "answer to a gate": with_source(str, Gate("Sure?")),
    # A default stands in for an `Exception` alone.
    "function with a default": with_source(str | None, Dep(abroken), value=None),
    "graph with a default": with_source(BelowDefault | None, Dep(BelowDefault), value=None),
}
OFTEN = ["body", "async function", "closing an async generator", "language model"]
"""Where every kind and every text is raised; the other places differ by how they are called."""
KINDS = [
    Panic("out of order"),
    GeneratorExit("out of order"),
    BaseExceptionGroup("out of order", [Panic("inside")]),
    pytest.fail.Exception("out of order"),
]


@pytest.mark.parametrize(
    ("place", "raised"),
    [
        *((place, KINDS[0]) for place in PLACES),
        *((place, kind) for place in OFTEN for kind in KINDS[1:]),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
async def test_a_base_exception_ends_the_run_and_closes_every_resource(
    place: str, raised: BaseException
):
    RAISED[:], OPENED[:], CLOSED[:] = [raised], [], []
    before = asyncio.all_tasks()
    async with MemoryJournal() as journal:
        error: Any = await run_failing(Graph(start=PLACES[place]), journal)
        (run,) = await journal.runs()
    while isinstance(error, BaeError):
        error = error.cause
    assert error is raised
    assert sorted(CLOSED) == sorted(OPENED)
    assert run.status == "failed"
    assert run.owner is None
    assert asyncio.all_tasks() == before


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Panicking(Exception):
    def __str__(self) -> str:
        raise Panic("no text")

    __repr__ = __str__


class Numbered(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]

    __repr__ = __str__


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception without settable attributes, not even notes."""

    number: int = 7


class Bare(BaeError):
    """An exception that does not call the constructor of its base."""

    def __init__(self) -> None:
        pass


TEXTS: dict[str, Callable[[], Exception]] = {
    "no text": Silent,
    "panic": Panicking,
    "number": Numbered,
    "half a character": lambda: ValueError("half \ud800 of \udfff it"),
    "half a character of bae's": lambda: BaeError("half \ud800", code="own-\ud800", fix="\udfff"),
    "control characters": lambda: ValueError("\x00\x1b[31m\x9b\u2028"),
    "long": lambda: ValueError("long " * 1_000_000),
    "long of bae's": lambda: BaeError("long " * 1_000_000),
    "bare": Bare,
    "frozen": Frozen,
    "group": lambda: ExceptionGroup("\ud800", [Silent()]),
}


@pytest.mark.parametrize("text", TEXTS)
async def test_a_failed_run_can_be_read_whatever_the_text_of_its_exception(
    text: str, tmp_path: Path
):
    journals: list[tuple[str, Journal]] = [
        ("async function", SQLiteJournal(tmp_path / "runs.db")),
        ("language model", MemoryJournal()),
    ]
    for place, journal in journals:
        RAISED[:], OPENED[:], CLOSED[:] = [TEXTS[text]()], [], []
        graph = Graph(start=PLACES[place])
        async with journal:
            caught = await run_failing(graph, journal)
            assert isinstance(caught, Exception)
            (run,) = await journal.runs()
            stored = await journal.read("a")
        assert (run.status, run.owner) == ("failed", None)
        assert sorted(CLOSED) == sorted(OPENED)
        assert len(run.error.encode()) < 20_000
        assert max(len(line.data.encode()) for line in stored.lines) < 20_000
        decode(graph, stored.lines)
        assert len(describe(caught).encode()) < 20_000


async def run_failing(graph: Graph[Any, Any], journal: Journal) -> BaseException:
    with pytest.raises(BaseException) as caught:
        await graph.arun(
            graph.start(), lm=BrokenLM(), journal=journal, run_id="a", answer=broken_answer
        )
    return caught.value
