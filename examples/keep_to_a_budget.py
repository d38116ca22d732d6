"""A budget and a cache: the budget limits the LLM calls, and the cache answers equal questions.

The budget is checked before each call. If the budget stops a run, no work is lost: with a journal
the run resumes under a larger budget, and does not ask again for stored answers.

    bae run examples/keep_to_a_budget.py --budget calls=2 -i '{"letters": ["It broke.", "Hi!"]}'
    bae runs resume --module examples/keep_to_a_budget.py --budget calls=10
    python examples/keep_to_a_budget.py                       # scripted: no model is asked
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import asyncio
from typing import Annotated, Literal

from pydantic import Field

from bae import Graph, Map, Node
from bae.journal import MemoryJournal
from bae.lm import Budget, Cached
from bae.testing import Asked, ScriptedLM


class Read(Node):
    letter: str

    async def __call__(self) -> Label: ...


class Label(Node):
    kind: Literal["complaint", "order", "praise"] = Field(description="what the letter is")

    async def __call__(self) -> None: ...


label = Graph(start=Read, end=Label, name="label")


class Inbox(Node):
    letters: list[str] = Field(description="what came today")
    labels: Annotated[list[Label], Map(label, over="letters", limit=1)] = Field(init=False)

    async def __call__(self) -> Day: ...


class Day(Node):
    headline: str = Field(description="the day in a few words", max_length=80)

    async def __call__(self) -> None: ...


graph = Graph(start=Inbox, end=Day)


async def main() -> None:
    lm = Cached(ScriptedLM({Label: label_letter, Day: {"headline": "Mostly lamps."}}))
    monday = Inbox(letters=["It broke.", "A lamp, please.", "It broke.", "How fine!"])

    async with MemoryJournal() as journal:  # a SQLiteJournal outlives the process
        with Budget(calls=2, quiet=True) as morning:  # quiet: running out is no error here
            await graph.arun(monday, lm, journal=journal, run_id="monday")
        if morning.error is not None:
            print(f"{morning.error.limit} ran out after {morning.usage.calls}")

        with Budget(calls=10) as afternoon:
            run = await graph.resume("monday", lm, journal=journal)
            print(f"{run.result.headline} {afternoon.usage.calls} of {afternoon.calls} calls spent")

    with Budget(calls=0):  # the same letters again cost nothing
        run = await graph.arun(monday, lm)
        print(f"{run.result.headline} {run.usage.calls} calls, {lm.statistics().hits} hits")


def label_letter(question: Asked) -> dict[str, str]:
    """Answer in place of a model. Name a real model instead: Cached("claude-cli:haiku")."""
    assert isinstance(question.previous, Read)
    labels = {"It broke.": "complaint", "A lamp, please.": "order"}
    return {"kind": labels.get(question.previous.letter, "praise")}


if __name__ == "__main__":
    asyncio.run(main())
