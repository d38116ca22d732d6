"""A graph behind FastAPI: its runs are started and followed over HTTP, and outlive connections.
The same graph runs at a terminal.

    BAE_SERVE_TOKEN=secret uvicorn --app-dir examples stream_over_http:app
    bae run examples/stream_over_http.py --set likes="the sea"  # at a terminal"""

import os
from typing import Annotated

from fastapi import FastAPI
from pydantic import Field

from bae import Dep, Graph, Node
from bae.journal import SQLiteJournal
from bae.serve import bearer, router


async def get_shelf() -> list[str]:
    return ["The Old Man and the Sea", "Walden", "The Martian"]


class Pick(Node):
    shelf: Annotated[list[str], Dep(get_shelf)]
    title: str = Field(description="one book of the shelf", max_length=60)
    why: str = Field(description="one sentence to the reader", max_length=160)

    async def __call__(self) -> None: ...


class Reader(Node):
    likes: str = Field(description="what you like to read about")

    async def __call__(self) -> Pick: ...


graph = Graph(start=Reader, end=Pick, name="books")
token = os.environ.get("BAE_SERVE_TOKEN") or os.urandom(16).hex()
api = router(graph, journal=SQLiteJournal("runs.db"), auth=bearer(token))
app = FastAPI(lifespan=api.open)
app.mount("/bae", api)
