"""Recommend an outfit from a message, the weather and the calendar.

This small graph teaches the basics of bae: dependencies that run at the same time, fields that the
LLM fills, a value recalled from the previous node, and an answer that its types constrain.

    bae run examples/ootd.py --set message="ugh, just got up"
    bae run examples/ootd.py --set message="ugh, just got up" --lm claude-cli:sonnet
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import asyncio
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from bae import Dep, Graph, Node, Recall

DATA = Path(__file__).with_name("ootd_data")

Mood = Literal["tired", "steady", "eager"]

# The choices. A model cannot recommend clothes that you do not own, or make up an address.
Top = Literal["white shirt", "grey wool jumper", "linen shirt", "navy blazer", "rain jacket"]
Bottom = Literal["jeans", "wool trousers", "chinos", "pleated skirt", "shorts"]
Footwear = Literal["leather boots", "rain boots", "white trainers", "sandals", "loafers"]
Accessory = Literal["umbrella", "scarf", "sunglasses", "watch", "tote bag"]
Link = Literal[
    "https://en.wikipedia.org/wiki/Layered_clothing",
    "https://en.wikipedia.org/wiki/Smart_casual",
    "https://en.wikipedia.org/wiki/Raincoat",
]
Sentence = Annotated[str, Field(pattern=r"^[A-Z][^.!?]+[.!?]$", max_length=140)]


class Location(BaseModel):
    city: str
    country: str


class Weather(BaseModel):
    sky: str
    celsius: int
    wind_kmh: int


class Event(BaseModel):
    at: str
    what: str


forecasts = TypeAdapter(dict[str, Weather])
events = TypeAdapter(list[Event])


def read(name: str) -> bytes:
    return (DATA / f"{name}.json").read_bytes()


async def get_location() -> Location:
    await asyncio.sleep(0.3)  # replaces a request, like the other functions
    # An async function must not block the others, so it reads a file in a thread.
    return Location.model_validate_json(await asyncio.to_thread(read, "location"))


async def get_weather(location: Annotated[Location, Dep(get_location)]) -> Weather:
    await asyncio.sleep(0.4)
    return forecasts.validate_json(await asyncio.to_thread(read, "weather"))[location.city]


def get_calendar() -> list[Event]:  # not async: bae calls it in a thread, so it may block
    time.sleep(0.5)
    return events.validate_json(read("calendar"))


class GettingDressed(Node):
    message: str = Field(description="how you are, in a few words")  # the caller gives it

    async def __call__(self) -> AnticipateDay: ...  # empty: the LLM makes the next node


class AnticipateDay(Node):
    message: Annotated[str, Recall(GettingDressed)]  # so the LLM sees it for the next node too
    location: Annotated[Location, Dep(get_location)]
    weather: Annotated[Weather, Dep(get_weather)]  # as soon as the location is there
    calendar: Annotated[list[Event], Dep(get_calendar)]  # at the same time as both
    mood: Mood = Field(description="how the person feels, from their message")  # the LLM

    async def __call__(self) -> RecommendOutfit: ...


class RecommendOutfit(Node):
    mood: Annotated[Mood, Recall()]  # the mood of AnticipateDay
    top: Top = Field(description="for the upper body; it suits the weather and the events")
    bottom: Bottom = Field(description="goes with the top")
    footwear: Footwear = Field(description="suits the weather")
    accessories: list[Accessory] = Field(description="what else to take", max_length=2)
    casual_answer: Sentence = Field(description="a friendly word on the weather and the outfit")
    links: list[Link] = Field(default=[], description="worth a look; often none", max_length=1)

    async def __call__(self) -> None: ...  # the end: this node is the answer


graph = Graph(start=GettingDressed, end=RecommendOutfit)
