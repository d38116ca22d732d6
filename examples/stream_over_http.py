"""An endpoint that streams a run: server-sent events, as FastAPI has them, from `graph.stream`.

A client that goes away cancels its run, and with it the call to the model. What was done by then is
in the journal, and the run can be resumed. It needs `pip install fastapi uvicorn`.

    uvicorn --app-dir examples stream_over_http:app --port 8000
    URL=http://127.0.0.1:8000
    curl -N -H 'content-type: application/json' -d '{"likes": "the sea"}' "$URL/runs/monday"
    curl -X POST "$URL/runs/monday/resume"

    bae run examples/stream_over_http.py --set likes="the sea"    # the same graph, at a terminal
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field

from bae import LM, BaeError, Dep, Graph, JournalError, Node
from bae.journal import (
    FieldText,
    Journal,
    Record,
    SourceEnded,
    SQLiteJournal,
    StepStarted,
    TextVoided,
)


async def get_shelf() -> list[str]:
    return ["The Old Man and the Sea", "Walden", "The Martian"]


class Reader(Node):
    likes: str = Field(description="what you like to read about")

    async def __call__(self) -> Pick: ...


class Pick(Node):
    shelf: Annotated[list[str], Dep(get_shelf)]
    title: str = Field(description="one book of the shelf", max_length=60)
    why: str = Field(description="one sentence to the reader", max_length=160)

    async def __call__(self) -> None: ...


graph = Graph(start=Reader, end=Pick)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with SQLiteJournal(os.environ.get("BAE_JOURNAL", "runs.db")) as journal:
        app.state.journal = journal
        yield


def get_journal(request: Request) -> Journal:
    journal: Journal = request.app.state.journal
    return journal


def get_lm() -> LM | None:
    return None  # what BAE_LM names, or what the machine offers


app = FastAPI(lifespan=lifespan)
Runs = Annotated[Journal, Depends(get_journal)]
Model = Annotated[LM | None, Depends(get_lm)]


@app.post("/runs/{run_id}", response_class=EventSourceResponse)
async def begin(
    run_id: str, reader: Reader, journal: Runs, lm: Model
) -> AsyncGenerator[ServerSentEvent]:
    """Begin a run, and tell how it goes. Leaving the block cancels it."""
    try:
        async with graph.stream(reader, lm, journal=journal, run_id=run_id) as records:
            async for record in records:
                if (event := event_of(record)) is not None:
                    yield event
            yield ServerSentEvent(event="result", data=records.result.result)
    except BaeError as error:  # the status is sent by now: what went wrong is an event
        yield ServerSentEvent(event="error", data=told(error))


@app.post("/runs/{run_id}/resume")
async def resume(run_id: str, journal: Runs, lm: Model) -> Pick:
    """Go on with a run that was cut off, or look at one that has ended."""
    return (await graph.resume(run_id, lm, journal=journal)).result


@app.exception_handler(BaeError)
async def refuse(request: Request, error: BaeError) -> JSONResponse:
    """All that a run can raise, as a status and a body."""
    if error.code == "bae-run-unknown":
        status = 404
    elif isinstance(error, JournalError):  # another process has it, for example
        status = 409
    else:  # most often the model, or something else behind this server
        status = 502
    return JSONResponse(told(error), status)


def told(error: BaeError) -> dict[str, str]:
    return {"code": error.code, "text": error.message}


def event_of(record: Record) -> ServerSentEvent | None:
    """What a page would show of it; nothing for the rest."""
    match record:
        case StepStarted(node=node):
            return ServerSentEvent(event="node", data=type(node).__name__)
        case SourceEnded(field=field, seconds=seconds, error=None):
            return ServerSentEvent(event="field", data={"name": field, "seconds": seconds})
        case FieldText(place=place, delta=delta):
            return ServerSentEvent(event="text", data={"name": place.field, "delta": delta})
        case TextVoided(places=places):
            return ServerSentEvent(event="void", data=[place.field for place in places])
        case _:
            return None
