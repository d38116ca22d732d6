"""The graph that is crashed: a little of everything a graph can have, every part with a named
effect. `oracle.py` is its LLM, and `acknowledged.py` reads the finished effects from a journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import sleep
from typing import Annotated

from pydantic import ConfigDict, SecretStr

from bae import LM, Dep, Gate, Graph, Map, Node, Recall
from crash.effects import effect

FAN_OUT = 50
ROUNDS = 3
REMADE = frozenset({"open_wire", "get_key", "ask_stringer"})
"""Effects that each process has for itself: a thing that is opened, a secret that is not stored,
and a dependency that always fails."""
INSIDE = frozenset({"Background", "Shelf"})
"""Dependencies that are graphs: what has effects is inside them."""
OUTSIDE = frozenset({"get_ink", "get_photo"})
"""Dependencies that a class outside the graph asks for first."""


# --- dependencies ------------------------------------------------------------------------------


async def work(turns: int = 1) -> None:
    """Take a while, so that a kill finds work in progress."""
    await asyncio.sleep(0.0005 * turns)


class Wire:
    """A thing that is opened, and no journal can hold."""

    def __init__(self) -> None:
        self.is_open = True

    async def fetch(self, what: str) -> str:
        assert self.is_open, "it was closed, or comes from a process that is gone"
        await work(len(what) % 5)
        return what.upper()


async def open_wire() -> AsyncIterator[Wire]:
    with effect("open_wire"):
        wire = Wire()
    yield wire
    wire.is_open = False


async def get_desk() -> str:
    with effect("get_desk"):
        await work(2)
        return "foreign desk"


def get_day(desk: Annotated[str, Dep(get_desk)]) -> int:
    with effect("get_day"):
        sleep(0.001)
        return len(desk)


def get_edition(day: Annotated[int, Dep(get_day, cache=False)]) -> str:
    with effect("get_edition"):
        return f"edition {day}"


def get_key() -> SecretStr:
    with effect("get_key"):
        return SecretStr("hush")


class Shelf(Node):
    """A graph behind a parameter of a dependency."""

    day: Annotated[int, Dep(get_day)]

    async def __call__(self) -> Box:
        with effect("body Shelf"):
            await work()
            return Box(number=self.day + 1, stamp=self.day)


class Box(Node):
    number: int
    stamp: int

    async def __call__(self) -> None:
        with effect("body Box"):
            await work()


async def search_archive(
    desk: Annotated[str, Dep(get_desk)],
    edition: Annotated[str, Dep(get_edition, inline=True)],
    key: Annotated[SecretStr, Dep(get_key)],
    box: Annotated[Box, Dep(Shelf)],
) -> list[str]:
    with effect("search_archive"):
        assert key.get_secret_value() == "hush"
        await work(3)
        return [f"{desk} of {edition}", f"box {box.number}"]


async def get_stamp() -> int:
    with effect("get_stamp"):
        await work()
        return 7


async def get_paper() -> str:
    with effect("get_paper"):
        await work(3)
        return "The Daily"


async def get_ink() -> str:
    with effect("get_ink"):
        await work()
        return "black"


async def get_photo(ink: Annotated[str, Dep(get_ink)]) -> str:
    with effect("get_photo"):
        await work()
        return f"a cloud in {ink}"


async def ask_stringer() -> str:
    with effect("ask_stringer"):
        await work()
    raise ConnectionError("the stringer is out")


async def look_up(word: str, wire: Annotated[Wire, Dep(open_wire)]) -> str:
    with effect(f"look_up {word}"):
        return await wire.fetch(word)


def count_letters(word: str, stamp: Annotated[int, Dep(get_stamp)]) -> int:
    with effect(f"count_letters {word}"):
        sleep(0.001)
        return len(word) + stamp


class Tone(Node):
    """The target of a dependency that asks the LLM itself."""

    desk: str


class Mood(Node):
    word: str


async def feel_tone(lm: LM, desk: Annotated[str, Dep(get_desk)]) -> str:
    mood = await lm.make(Tone(desk=desk), Mood)
    with effect("feel_tone"):
        await work()
        return mood.word


# --- graphs inside -----------------------------------------------------------------------------


class Check(Node):
    """One item of a map is checked, in two steps, with something from the run around it."""

    claim: str
    topic: Annotated[str, Recall()]
    desk: Annotated[str, Dep(get_desk)]

    async def __call__(self) -> Verdict:
        with effect(f"body Check {self.claim}"):
            await work()
            return Verdict(claim=self.claim)


class Verdict(Node):
    claim: str
    stamp: Annotated[int, Dep(get_stamp, cache=False)]

    async def __call__(self) -> Settled: ...


class Settled(Node):
    claim: Annotated[str, Recall(Verdict)]
    holds: bool

    async def __call__(self) -> None:
        with effect(f"body Settled {self.claim}"):
            await work()


class Background(Node):
    """A graph as a dependency, with a map of its own."""

    desk: Annotated[str, Dep(get_desk)]

    async def __call__(self) -> History:
        with effect("body Background"):
            await work()
            return History(years=["one", "two", "three"])


class History(Node):
    years: list[str]
    letters: Annotated[list[int], Map(count_letters, over="years", limit=2)]

    async def __call__(self) -> None: ...


class SignOff(Node):
    """A gate in an item of a map."""

    editor: str
    agrees: Annotated[bool, Gate("Do you agree?")]
    day: Annotated[int, Dep(get_day)]

    async def __call__(self) -> None:
        with effect(f"body SignOff {self.editor}"):
            await work()


# --- the run itself ----------------------------------------------------------------------------


class Assignment(Node):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    topic: str
    archive: Annotated[list[str], Dep(search_archive)]
    wire: Annotated[Wire, Dep(open_wire)]

    async def __call__(self) -> Outline:
        """Answers a draft: most fields of what it returns have a source."""
        with effect("body Assignment"):
            await work()
            words = [f"{self.topic} {number}" for number in range(FAN_OUT)]
            return Outline(words=words, claims=words[:4])


class Outline(Node):
    words: list[str]
    claims: list[str]
    facts: Annotated[list[str], Map(look_up, over="words", limit=20)]
    checks: Annotated[list[Settled], Map(Graph(start=Check), over="claims")]
    background: Annotated[History, Dep(Graph(start=Background))]
    stamp: Annotated[int, Dep(get_stamp, cache=False)]
    other_stamp: Annotated[int, Dep(get_stamp, cache=False)]
    tone: Annotated[str, Dep(feel_tone)]
    stringer: Annotated[str, Dep(ask_stringer)] = "nobody"

    async def __call__(self) -> Report | Retraction: ...


class Retraction(Node):
    apology: str

    async def __call__(self) -> None: ...


class Report(Node):
    topic: Annotated[str, Recall()]
    edition: Annotated[str, Dep(get_edition, inline=True)]
    text: str

    async def __call__(self, lm: LM) -> Round:
        """Asks the LM twice, the same question."""
        first = await lm.make(self, Headline)
        with effect("body Report"):
            second = await lm.make(self, Headline)
            return Round(left=ROUNDS, heads=[first.text, second.text])


class Headline(Node):
    """No class of the graph. A later one needs the ink too, and another outside it the photo."""

    photo: Annotated[str, Dep(get_photo)]
    text: str


class Caption(Node):
    """No class of the graph."""

    photo: Annotated[str, Dep(get_photo)]
    ink: Annotated[str, Dep(get_ink)]
    text: str


class Round(Node):
    """A loop: one that answers whole nodes. What it depends on is sure to come while the LM still
    fills the node before it."""

    left: int
    heads: list[str]
    paper: Annotated[str, Dep(get_paper)]

    async def __call__(self) -> Round | Review:
        with effect(f"body Round {self.left}"):
            await work()
            if self.left:
                heads = [*self.heads, f"round {self.left}"]
                return Round(left=self.left - 1, heads=heads, paper=self.paper)
            return Review(heads=self.heads, editors=["Ann", "Bob"])


class Review(Node):
    heads: list[str]
    print_it: Annotated[bool, Gate("Print it?")]
    letters: Annotated[list[int], Map(count_letters, over="heads")]
    editors: list[str]
    sign_offs: Annotated[list[SignOff], Map(SignOff, over="editors")]

    async def __call__(self) -> Printed | Spiked: ...


class Spiked(Node):
    why: str

    async def __call__(self) -> None: ...


class Printed(Node):
    """Chosen and filled in one call of the LM: nothing of it comes before."""

    title: str
    parts: list[str]
    set_up: Annotated[list[int], Map(count_letters, over="parts")]

    async def __call__(self, lm: LM) -> Sold:
        caption = await lm.make(self, Caption)
        with effect("body Printed"):
            await work()
            return Sold(copies=1000, caption=f"{caption.photo}: {caption.text}")


class Sold(Node):
    copies: int
    caption: str
    desk: Annotated[str, Dep(get_desk)]
    ink: Annotated[str, Dep(get_ink)]

    async def __call__(self) -> None:
        with effect("body Sold"):
            await work()


graph = Graph(start=Assignment, end=(Sold, Retraction, Spiked), name="newsroom")
START = Assignment(topic="rain")
MAX_ITERS = 20


def label(node: Node) -> str:
    """A node as effects name it."""
    match node:
        case Check() | Verdict() | Settled():
            return f"{type(node).__name__} {node.claim}"
        case SignOff():
            return f"SignOff {node.editor}"
        case Round():
            return f"Round {node.left}"
    return type(node).__name__
