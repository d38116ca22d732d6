"""How often the answers of the local model are valid: ten shapes of node, filled again and again at
several temperatures by the model that comes with bae.

    python -m benchmarks.local_validity

Every fill has to end in a valid node or in a clean `FillError`. It prints the table that
docs/local-model.md carries, and exits with 1 when a fill ended in anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, Field, HttpUrl, field_validator, model_validator

from bae import BaeLMError, FillError, Node
from bae.lm import Attempt, LocalBackend, Usage, metered

TEMPERATURES = (0.0, 0.7, 1.5)
FILLS = 10


class Day(Node):
    """What every fill starts from."""

    number: int
    message: str

    async def __call__(self) -> Texts: ...


class Texts(Node):
    title: str = Field(description="a short title")
    body: str = Field(description="one sentence about the day")
    code: str = Field(pattern=r"^[A-Z]{3}-\d{2,4}$", description="a code such as ABC-123")

    async def __call__(self) -> None: ...


class WholeNumbers(Node):
    stars: int = Field(ge=1, le=5)
    steps: int = Field(ge=0)
    dozens: int = Field(gt=0, lt=500, multiple_of=12)

    async def __call__(self) -> None: ...


class Size(Enum):
    SMALL = "S"
    MEDIUM = "M"
    LARGE = "L"


class Choices(Node):
    mood: Literal["calm", "tired", "keen"]
    size: Size
    level: Literal[1, 2, 3]
    rain: bool

    async def __call__(self) -> None: ...


class Address(BaseModel):
    street: str = Field(max_length=40)
    town: str = Field(max_length=30)
    postcode: int = Field(ge=1000, le=99999)


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=30)
    home: Address


class Nested(Node):
    person: Person

    async def __call__(self) -> None: ...


class Garment(BaseModel):
    name: str = Field(max_length=30)
    colour: Literal["red", "green", "blue", "grey"]
    warmth: int = Field(ge=1, le=5)


class ListOfModels(Node):
    garments: list[Garment] = Field(min_length=1, max_length=3)
    tags: list[str]

    async def __call__(self) -> None: ...


class DatesAndLinks(Node):
    day: date
    link: HttpUrl

    async def __call__(self) -> None: ...


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[Annotated[str, Field(max_length=20)]]


class Unions(Node):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    note: str | None
    amount: int | float

    async def __call__(self) -> None: ...


class Task(BaseModel):
    name: str = Field(max_length=30)
    steps: list[Task]


class Recursive(Node):
    task: Task

    async def __call__(self) -> None: ...


class Dicts(Node):
    prices: dict[str, int] = Field(min_length=1)
    by_size: dict[Size, bool]

    async def __call__(self) -> None: ...


class Validated(Node):
    share: float = Field(gt=0, lt=1)
    low: float = Field(ge=-10, le=40)
    high: float = Field(ge=-10, le=40)
    even: int = Field(ge=0, le=99)

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("give an even number")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Validated:
        if self.low > self.high:
            raise ValueError("low has to be at most high")
        return self

    async def __call__(self) -> None: ...


SHAPES: dict[str, type[Node]] = {
    "texts, one with a pattern": Texts,
    "whole numbers with bounds": WholeNumbers,
    "literals, enum, bool": Choices,
    "nested models": Nested,
    "list of models": ListOfModels,
    "date and URL": DatesAndLinks,
    "tagged union, optional": Unions,
    "recursive model": Recursive,
    "dicts": Dicts,
    "floats, own validators": Validated,
}
MESSAGES = (
    "ugh, just got up",
    "it rains, and the bus is late",
    "a long walk by the sea",
    "the meeting was moved to nine",
    "nothing to eat in the house",
    "two friends come for dinner",
    "the cat is missing again",
    "a parcel from an aunt",
    "first snow this year",
    "the bicycle has a flat tyre",
)


@dataclass
class Count:
    """How the fills of one shape at one temperature ended."""

    ends: Counter[str] = field(default_factory=Counter[str])
    usage: Usage = field(default_factory=Usage)

    @property
    def speed(self) -> float:
        return self.usage.output_tokens / self.usage.seconds if self.usage.seconds else 0.0


async def fill(lm: LocalBackend, shape: type[Node], number: int, count: Count) -> None:
    """Fill one node, and count how that ended."""
    day = Day(number=number, message=MESSAGES[number % len(MESSAGES)])
    tried: list[object] = []
    with metered(tried.append) as used:
        try:
            node = await lm.fill(shape, {}, shape.__name__, day)
            assert type(node).model_validate(node.model_dump()) == node
            attempts = sum(isinstance(event, Attempt) for event in tried)
            end = "first" if attempts == 1 else "again"
        except FillError:
            end = "FillError"
        except BaeLMError as error:
            end = error.code
    count.ends[end] += 1
    count.usage += Usage.total(used)


async def measure(
    shapes: Sequence[str], temperatures: Sequence[float], fills: int
) -> dict[tuple[str, float], Count]:
    """Fill every shape so many times at every temperature."""
    counts: dict[tuple[str, float], Count] = {}
    for temperature in temperatures:
        lm = LocalBackend(temperature=temperature, seed=1)
        for name in shapes:
            began = time.perf_counter()
            count = counts[name, temperature] = Count()
            for number in range(fills):
                await fill(lm, SHAPES[name], number, count)
            seconds = time.perf_counter() - began
            print(f"{temperature:g} {name}: {dict(count.ends)} {seconds:.0f} s", file=sys.stderr)
    return counts


def table(counts: dict[tuple[str, float], Count]) -> str:
    """Return the counts as Markdown: valid at first, valid after a retry, and FillError."""
    names = list(dict.fromkeys(name for name, _ in counts))
    temperatures = list(dict.fromkeys(temperature for _, temperature in counts))
    heads = ["shape", *(f"at {temperature:g}" for temperature in temperatures), "tokens/s"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]

    def row(name: str, by_temperature: list[Count]) -> str:
        cells = [" / ".join(str(outcome.ends[end]) for end in ENDS) for outcome in by_temperature]
        usage = Usage.total(outcome.usage for outcome in by_temperature)
        return "| " + " | ".join([name, *cells, f"{Count(usage=usage).speed:.0f}"]) + " |"

    for name in names:
        lines.append(row(name, [counts[name, temperature] for temperature in temperatures]))
    totals: list[Count] = []
    for temperature in temperatures:
        total = Count()
        for name in names:
            total.ends += counts[name, temperature].ends
            total.usage += counts[name, temperature].usage
        totals.append(total)
    return "\n".join([*lines, row("all", totals)])


ENDS = ("first", "again", "FillError")


def unclean(counts: dict[tuple[str, float], Count]) -> list[str]:
    """Return the fills that ended neither in a node nor in a FillError."""
    return [
        f"{name} at {temperature:g}: {end} × {number}"
        for (name, temperature), count in counts.items()
        for end, number in count.ends.items()
        if end not in ENDS
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.local_validity",
        description="Count the valid answers of the local model. Progress goes to standard error, "
        "the table to standard output: valid at once / valid when asked again / FillError.",
    )
    parser.add_argument("--fills", type=int, default=FILLS, metavar="N", help="of each shape")
    parser.add_argument(
        "--temperature", type=float, nargs="+", default=TEMPERATURES, metavar="T", dest="at"
    )
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    options = parser.parse_args()
    counts = asyncio.run(measure(options.shape, options.at, options.fills))
    print(table(counts))
    problems = unclean(counts)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
