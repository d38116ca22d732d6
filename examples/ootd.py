"""The outfit of the day: a message, what the day brings, and a recommendation for it.

Run it on the embedded model with `python examples/ootd.py`, on another with its name:

    python examples/ootd.py --lm claude-cli:sonnet "ugh, just got up"
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import argparse
import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, HttpUrl

from bae import Dep, Graph, Node, Recall

DATA = Path(__file__).with_name("ootd_data")


class Location(BaseModel):
    city: str
    country: str


class Weather(BaseModel):
    sky: str
    celsius_low: int
    celsius_high: int
    wind_kmh: int


class Event(BaseModel):
    at: str
    what: str


class Mood(Enum):
    TIRED = "tired"
    STEADY = "steady"
    EAGER = "eager"


class Formality(Enum):
    CASUAL = "casual"
    SMART = "smart"
    FORMAL = "formal"


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


async def get_location() -> Location:
    return Location(**read("location"))


async def get_weather(location: Annotated[Location, Dep(get_location)]) -> Weather:
    return Weather(**read("weather")[location.city])


def get_calendar() -> list[Event]:  # not async: it runs in a thread
    return [Event(**each) for each in read("calendar")]


class GettingDressed(Node):
    message: str

    async def __call__(self) -> AnticipateDay: ...


class AnticipateDay(Node):
    location: Annotated[Location, Dep(get_location)]
    weather: Annotated[Weather, Dep(get_weather)]
    calendar: Annotated[list[Event], Dep(get_calendar)]
    mood: Mood = Field(description="how the person feels, from their message")
    formality: Formality = Field(description="what the most formal event of the day asks for")

    async def __call__(self) -> RecommendOutfit: ...


class RecommendOutfit(Node):
    mood: Annotated[Mood, Recall()]
    top: str = Field(description="a specific garment for the upper body", max_length=80)
    bottom: str = Field(description="specific trousers, a skirt or the like", max_length=80)
    footwear: str = Field(description="a specific pair of shoes", max_length=80)
    accessories: list[Annotated[str, Field(max_length=60)]] = Field(
        description="what else to take, at most five things", max_length=5
    )
    casual_answer: str = Field(
        description="one or two friendly sentences to the person, about the choice", max_length=300
    )
    links: list[HttpUrl] = Field(
        default=[], description="pages that show such garments; none if unsure", max_length=3
    )

    async def __call__(self) -> None: ...


graph = Graph(start=GettingDressed, end=RecommendOutfit)


def main() -> None:
    parser = argparse.ArgumentParser(description="What to wear today.")
    parser.add_argument("message", nargs="?", default="ugh, just got up", help="how you are")
    parser.add_argument("--lm", default="local", help="the model: a name such as claude-cli:sonnet")
    given = parser.parse_args()
    run = graph.run(GettingDressed(message=given.message), lm=given.lm)
    outfit = run.result
    print(f"top          {outfit.top}")
    print(f"bottom       {outfit.bottom}")
    print(f"footwear     {outfit.footwear}")
    print(f"accessories  {', '.join(outfit.accessories)}")
    print(f"\n{outfit.casual_answer}")
    for link in outfit.links:
        print(link)
    used = run.usage
    cost = "unknown" if used.cost is None else f"{used.cost:.4f} dollars"
    print(f"\n{used.calls} calls, {used.tokens} tokens, cost {cost}")


if __name__ == "__main__":
    main()
