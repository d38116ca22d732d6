"""For tests of `bae runs`: a small project in a folder of its own, a journal with three runs of it,
and what commands print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bae
from bae.cli import main
from bae.journal import SQLiteJournal
from bae.testing import ScriptedLM

WARDROBE = """
from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import BaseModel

from bae import Dep, Gate, Graph, Node, Recall


class Weather(BaseModel):
    degrees: int
    day: date


def get_weather() -> Weather:
    return Weather(degrees=7, day=date(2026, 3, 1))


class Morning(Node):
    message: str

    async def __call__(self) -> Day: ...


class Day(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    mood: str

    async def __call__(self) -> Outfit | Rest: ...


class Rest(Node):
    async def __call__(self) -> None: ...


class Outfit(Node):
    mood: Annotated[str, Recall(Day)]
    top: str
    shoes: list[str]

    async def __call__(self) -> Worn:
        return Worn(items=[self.top, *self.shoes], warm=True, tags={"b", "a"}, weather=None)


class Worn(Node):
    items: list[str]
    warm: bool
    tags: set[str]
    weather: Weather | None
    seen: Annotated[Weather, Dep(get_weather)]

    async def __call__(self) -> None: ...


graph = Graph(start=Morning, end=(Worn, Rest))
not_a_graph = 12


def make_graph() -> Graph:
    return Graph(start=Morning, end=(Worn, Rest))


class Ask(Node):
    question: str
    sure: Annotated[bool, Gate("Are you sure?")]

    async def __call__(self) -> None: ...


asking = Graph(start=Ask, end=Ask)


class Holder:
    graph = graph
"""
SCRIPT: list[Any] = [
    {"mood": "grumpy"},
    "Outfit",
    {"top": "a thick jumper", "shoes": ["boots"]},
]


async def write_runs() -> None:
    """A finished run, a waiting run and a failed run, the newest last."""
    import wardrobe  # pyright: ignore[reportMissingImports]

    async with SQLiteJournal("runs.db") as journal:
        await wardrobe.graph.arun(
            wardrobe.Morning(message="ugh"), ScriptedLM(SCRIPT), journal=journal, run_id="abc123"
        )
        await wardrobe.asking.arun(
            wardrobe.Ask.model_construct(question="now?"), journal=journal, run_id="ask456"
        )
        with pytest.raises(bae.BaeError):
            await wardrobe.graph.arun(
                wardrobe.Morning(message="oh"),
                ScriptedLM([ValueError("the model is out")]),
                journal=journal,
                run_id="bad789",
            )


def runs(capsys: Any, *arguments: str, code: int = 0) -> tuple[str, str]:
    """The output of a command of `bae runs`, on stdout and on stderr."""
    done = main(["runs", *arguments])
    out, err = capsys.readouterr()
    assert done == code, out + err
    assert "Traceback" not in err
    return out, err


def read_output(capsys: Any, *arguments: str) -> str:
    """The stdout of a command that must print nothing on stderr."""
    out, err = runs(capsys, *arguments)
    assert err == ""
    return out


def read_notes(capsys: Any, *arguments: str) -> str:
    """The stderr of a command that must print nothing on stdout."""
    out, err = runs(capsys, *arguments)
    assert out == ""
    return err


def read_refusal(capsys: Any, *arguments: str) -> str:
    """The stderr of a command that must refuse."""
    out, err = runs(capsys, *arguments, code=1)
    assert out == ""
    assert err.startswith("error ")
    return err


def flat(text: str) -> str:
    """A text without the line breaks of a terminal."""
    return " ".join(text.split())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())
