"""A web page that shows an answer while the model writes it. A reader who leaves cancels the run.
It needs `pip install fastapi uvicorn`.

    uvicorn --app-dir examples stream_to_a_page:app
    bae run examples/stream_to_a_page.py --set subject=rain    # the same graph, at a terminal
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from collections.abc import AsyncGenerator
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field

from bae import LM, BaeError, Graph, Node
from bae.journal import FieldText, TextVoided


class Topic(Node):
    subject: str = Field(description="what the story is about")

    async def __call__(self) -> Story: ...


class Story(Node):
    title: str = Field(description="a few words", max_length=40)
    text: str = Field(description="three sentences", max_length=400)

    async def __call__(self) -> None: ...


graph = Graph(start=Topic, end=Story)
lm: LM | None = None  # what BAE_LM names, or what the machine offers
app = FastAPI()


@app.get("/")
def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("page.html"))


@app.get("/story", response_class=EventSourceResponse)
async def story(subject: str) -> AsyncGenerator[ServerSentEvent]:
    try:
        async with graph.stream(Topic(subject=subject), lm) as records:
            async for record in records:
                match record:
                    case FieldText(place=place, delta=delta):
                        yield ServerSentEvent(event="text", data=[str(place), delta])
                    case TextVoided(places=places):
                        yield ServerSentEvent(event="void", data=[str(place) for place in places])
                    case _:
                        pass
        yield ServerSentEvent(event="end", data="The end.")
    except BaeError as error:
        yield ServerSentEvent(event="end", data=error.message)
