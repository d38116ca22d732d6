"""What to wear today: look at the day, take the mood of a message, then dress or ask back.

Run it with `make demo`: the language model is a small one that runs inside the process. Give
another as an argument, such as `claude-cli:sonnet`; `script` is the script at the bottom.
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import asyncio
import sys
import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from bae import Dep, Graph, Node, Recall
from bae.journal import ChoiceMade, Recalled, Record, SourceEnded, SourceStarted, StepStarted
from bae.resolver import classify_fields
from bae.testing import ScriptedLM

Mood = Literal["groggy", "steady", "eager"]
Top = Literal["grey wool jumper", "linen shirt", "rain jacket"]  # the wardrobe: nothing else fits
Shoes = Literal["sandals", "rain boots", "running shoes"]


class Location(BaseModel):
    city: str


class Weather(BaseModel):
    sky: str
    celsius: int


async def get_location() -> Location:
    await asyncio.sleep(0.1)  # stands in for a request
    return Location(city="Lisbon")


async def get_weather(place: Annotated[Location, Dep(get_location)]) -> Weather:
    await asyncio.sleep(0.2)
    return Weather(sky=f"rain over {place.city}", celsius=11)


def get_calendar() -> list[str]:  # not async: it runs in a thread, and holds nothing up
    time.sleep(0.2)
    return ["09:30 dentist", "19:00 dinner with Ana"]


class GettingDressed(Node):
    message: str  # the start node: the caller gives it

    async def __call__(self) -> AnticipateDay: ...  # empty: the LM goes on from here


class AnticipateDay(Node):
    weather: Annotated[Weather, Dep(get_weather)]  # bae calls get_weather, get_location first
    calendar: Annotated[list[str], Dep(get_calendar)]  # and get_calendar at the same time
    mood: Mood  # no source named: the LM fills it

    async def __call__(self) -> Outfit | AskBack: ...  # the LM chooses one, then fills it


class Outfit(Node):
    mood: Annotated[Mood, Recall()]  # what AnticipateDay found, from the trace
    top: Top = Field(description="what suits the weather")
    shoes: Shoes = Field(description="what suits the weather")

    async def __call__(self) -> None: ...  # the end: this node is the answer


class AskBack(Node):
    question: str = Field(max_length=80)

    async def __call__(self) -> None: ...


graph = Graph(start=GettingDressed, end=(Outfit, AskBack))


async def main(name: str) -> None:
    lm = script if name == "script" else name
    run = graph.stream(GettingDressed(message="ugh, just got up"), lm=lm)
    began = time.time()
    async with run:
        async for record in run:
            if line := account(record):
                print(f"{record.at - began:5.2f} s  {line}")

    answer = run.result.result  # an Outfit | AskBack, as end= says
    match answer:
        case Outfit():
            print(f"\nWear the {answer.top} and the {answer.shoes}.")
        case AskBack():
            print(f"\n{answer.question}")


def account(record: Record) -> str:
    """One line for what a reader wants to know, nothing for the rest."""
    match record:
        case StepStarted(node=node):
            kinds = classify_fields(type(node))
            given = [f"{name}={value!r}" for name, value in node if kinds[name] == "plain"]
            return f"{type(node).__name__:<16}  {' '.join(given)}"
        case SourceStarted(by=function, node_type=node, field=field):
            return f"  {function:<14}  called for {node.__name__}.{field}"
        case SourceEnded(by=function, value=value):
            return f"  {function:<14}  {value}"
        case ChoiceMade(chosen=chosen):
            return f"  {'LM chose':<14}  {chosen.__name__}"
        case Recalled(field=field, value=value):
            return f"  {'recalled':<14}  {field}={value!r}"
        case _:
            return ""


# What a scripted LM answers, in order: the mood, which way to go on, the outfit.
script = ScriptedLM(
    [
        {"mood": "groggy"},
        Outfit,
        {"top": "grey wool jumper", "shoes": "rain boots"},
    ]
)

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
