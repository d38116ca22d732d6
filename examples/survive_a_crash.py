"""A journal: a run whose process is killed, twice, goes on and does nothing again that was done.

Run it with `python examples/survive_a_crash.py`. It starts itself three times on one journal, as
`python examples/survive_a_crash.py runs.db "asking for Rome"` would, which dies there.
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field

from bae import Graph, GraphResult, JournalError, Map, Node
from bae.journal import SQLiteJournal
from bae.testing import Asked, ScriptedLM

DEADLY = sys.argv[2] if len(sys.argv) > 2 else ""


def do(what: str) -> None:
    """Everything that happens outside of the run: it is printed, or is the last thing done."""
    print(f"  {what}", flush=True)
    if what == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)  # nobody gets to clean up


async def get_price(city: str) -> int:
    do(f"asking for {city}")
    return {"Bern": 120, "Rome": 90, "Oslo": 150}[city]


class Trip(Node):
    cities: list[str]
    prices: Annotated[list[int], Map(get_price, over="cities", limit=1)] = Field(init=False)

    async def __call__(self) -> Choice: ...  # the LM


class Choice(Node):
    city: str

    async def __call__(self) -> Booking:
        do(f"booking {self.city}")
        return Booking(city=self.city, number="B-17")


class Booking(Node):
    city: str
    number: str

    async def __call__(self) -> None: ...


graph = Graph(start=Trip, end=Booking)


def choose(asked: Asked) -> dict[str, str]:
    do("asking the LM")
    return {"city": "Rome"}


async def travel(path: str) -> GraphResult[Booking]:
    lm = ScriptedLM({Choice: choose})
    # A run can be taken over when its owner has given no sign of life for so many seconds.
    async with SQLiteJournal(path, lease=0.5) as journal:
        try:
            trip = Trip(cities=["Bern", "Rome", "Oslo"])
            return await graph.arun(trip, lm, journal=journal, run_id="trip")
        except JournalError as error:
            if error.code != "bae-run-exists":
                raise
        while True:
            try:
                return await graph.resume("trip", lm, journal=journal)
            except JournalError as error:
                if error.code != "bae-run-owned":
                    raise
                await asyncio.sleep(0.05)


def main() -> None:
    if len(sys.argv) > 1:
        print(f"  {asyncio.run(travel(sys.argv[1])).result!r}")
        return
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "runs.db"))
        for deadly in ("asking for Rome", "booking Rome", ""):
            print("A process starts:", flush=True)
            done = subprocess.run([sys.executable, __file__, path, deadly], check=False)
            print("It was killed." if done.returncode < 0 else "It has ended.", flush=True)


if __name__ == "__main__":
    main()
