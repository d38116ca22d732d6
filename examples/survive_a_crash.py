"""A journal: a run resumes after its process is killed, and repeats no finished work.

    bae run examples/survive_a_crash.py -i '{"cities": ["Bern", "Rome", "Oslo"]}'
    python examples/survive_a_crash.py                        # scripted: no model is asked

The second command starts itself three times on one journal, and two of these processes kill
themselves, as `DEADLY="asking for Rome" python examples/survive_a_crash.py runs.db` does.
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field

from bae import Graph, GraphResult, Map, Node
from bae.journal import SQLiteJournal
from bae.testing import Asked, ScriptedLM

log = logging.getLogger("trip")


def do(what: str) -> None:
    """Log an effect outside of the run. If the effect is the deadly one, kill this process."""
    log.info(what)
    if what == os.environ.get("DEADLY"):
        os.kill(os.getpid(), signal.SIGKILL)  # no clean-up runs


async def get_price(city: str) -> int:
    do(f"asking for {city}")
    return {"Bern": 120, "Rome": 90, "Oslo": 150}[city]


class Trip(Node):
    cities: list[str]
    prices: Annotated[list[int], Map(get_price, over="cities", limit=1)] = Field(init=False)

    async def __call__(self) -> Choice: ...  # the LLM


class Choice(Node):
    city: str = Field(description="where to go, of the cities", max_length=40)

    async def __call__(self) -> Booking:
        do(f"booking {self.city}")
        return Booking(city=self.city, number="B-17")


class Booking(Node):
    city: str
    number: str

    async def __call__(self) -> None: ...


graph = Graph(start=Trip, end=Booking)


def choose(question: Asked) -> dict[str, str]:
    do("asking the LM")
    return {"city": "Rome"}


async def travel(path: str) -> GraphResult[Booking]:
    lm = ScriptedLM({Choice: choose})
    trip = Trip(cities=["Bern", "Rome", "Oslo"])
    async with SQLiteJournal(path) as journal:
        # Begin the run or resume it. On the same Linux machine the journal sees at once that the
        # earlier process is dead; elsewhere it waits for the end of the lease, 30 seconds.
        return await graph.arun(trip, lm, journal=journal, run_id="trip", resume=True)


def main() -> None:
    if len(sys.argv) > 1:
        logging.basicConfig(format="  %(message)s", level=logging.INFO, stream=sys.stdout)
        print(f"  {asyncio.run(travel(sys.argv[1])).result!r}")
        return
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "runs.db"))
        for deadly in ("asking for Rome", "booking Rome", ""):
            print("A process starts:", flush=True)
            killing = {**os.environ, "DEADLY": deadly}
            process = subprocess.run([sys.executable, __file__, path], env=killing, check=False)
            print("It was killed." if process.returncode < 0 else "It has ended.", flush=True)


if __name__ == "__main__":
    main()
