"""The code of a graph, to be changed while runs of it are stored."""

from __future__ import annotations

import textwrap
from typing import Any

from bae import Graph

HEAD = """
from __future__ import annotations
from enum import Enum
from typing import Annotated, Any, Literal
from pydantic import AfterValidator, BaseModel, Field, SecretStr, field_validator, model_validator
from bae import Dep, Gate, Graph, Map, Node, Recall
called = []

def no(value):
    raise ValueError("no")
"""

CODE = """
class Mood(str, Enum):
    low = "low"
    high = "high"

class Weather(BaseModel):
    '''Docstrings are for people.'''
    degrees: float

async def get_city() -> str:
    called.append("get_city")
    return "Oslo"

async def get_weather(city: Annotated[str, Dep(get_city)]) -> Weather:
    called.append("get_weather")
    return Weather(degrees=3)

async def shout(word: str) -> str:
    called.append("shout")
    return word.upper()

class Summary(Node):
    text: str
    city: Annotated[str, Dep(get_city)]
    async def __call__(self) -> Done: ...

class Done(Node):
    short: str
    async def __call__(self) -> None: ...

class Start(Node):
    message: str
    async def __call__(self) -> Day: ...

class Day(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    mood: Mood
    words: list[str]
    tags: list[str]
    loud: Annotated[list[str], Map(shout, over="words")]
    summaries: Annotated[list[Done], Map(Summary, over="words")]
    async def __call__(self) -> Outfit | AskBack: ...

class AskBack(Node):
    question: str
    async def __call__(self) -> Start: ...

class Outfit(Node):
    mood: Annotated[Mood, Recall()]
    place: Annotated[str, Dep(get_city)]
    fine: Annotated[bool, Gate("Fine?")]
    top: str
    async def __call__(self) -> None: ...
"""


def graph(
    code: str = CODE, start: str = "Start", module: str = "somewhere", **options: Any
) -> Graph[Any, Any]:
    """The graph of a piece of code, as a module of its own would define it."""
    names: dict[str, Any] = {"__name__": module}
    exec(HEAD + textwrap.dedent(code), names)
    return Graph(start=names[start], **options)
