"""A gate: the LLM proposes a refund, and a person decides, now or in a week.

At a terminal `bae run` asks you. Without a terminal the run is parked in its journal, and
`bae runs answer` resumes it.

    bae run examples/approve_a_refund.py --set text="The umbrella arrived wet."
    python examples/approve_a_refund.py                       # scripted: no model is asked
"""

from __future__ import annotations  # not needed on Python 3.14 and later

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import Field

from bae import Gate, Graph, Node, OpenGate
from bae.journal import SQLiteJournal
from bae.testing import ScriptedLM


class Complaint(Node):
    text: str = Field(description="what the customer writes")

    async def __call__(self) -> Proposal: ...  # the LLM proposes


class Proposal(Node):
    # If the model's answer is out of bounds, the model is asked again.
    euros: int = Field(description="the refund, 0 if there is no reason for one", ge=0, le=200)
    reply: str = Field(description="two friendly sentences to the customer", max_length=300)

    async def __call__(self) -> Approval:
        return Approval(euros=self.euros, reply=self.reply)


class Approval(Node):
    # The person sees these fields with the question.
    euros: int
    reply: str
    approved: Annotated[bool, Gate("Send this refund?")] = Field(init=False)

    async def __call__(self) -> Refunded | Declined:
        return Refunded(euros=self.euros) if self.approved else Declined()


class Refunded(Node):
    euros: int

    async def __call__(self) -> None: ...


class Declined(Node):
    async def __call__(self) -> None: ...


graph = Graph(start=Complaint, end=(Refunded, Declined))


async def clerk(gate: OpenGate) -> bool:
    """Answer in place of a person, who would see the question on a screen and answer later."""
    print(f"{gate.question} {gate.context['euros']} EUR, {gate.context['reply']!r}")
    return gate.context["euros"] <= 50


async def park(path: Path, complaint: Complaint) -> None:
    async with SQLiteJournal(path) as journal:
        run = await graph.arun(complaint, lm=scripted_lm(), journal=journal, run_id="complaint-7")
        for gate in run.waiting:
            print(f"{gate.place} waits: {gate.question}")


async def answer(path: Path) -> None:
    async with SQLiteJournal(path) as journal:
        for info in await journal.runs(status="waiting"):
            for gate in info.waiting:
                print(f"{info.run_id}: {gate.question} Yes.")
                run = await graph.answer(
                    info.run_id, gate.address, True, scripted_lm(), journal=journal
                )
                print(repr(run.result))


def main() -> None:
    complaint = Complaint(text="The umbrella arrived wet.")

    print("With a person who answers, the run continues:")
    run = graph.run(complaint, lm=scripted_lm(), answer=clerk)
    print(repr(run.result))

    with TemporaryDirectory() as folder:
        path = Path(folder, "runs.db")
        print("\nWithout one, and with a journal, it is parked:")
        asyncio.run(park(path, complaint))
        print("\nAnother process takes it up when there is an answer:")
        asyncio.run(answer(path))


def scripted_lm() -> ScriptedLM:
    return ScriptedLM({Proposal: {"euros": 20, "reply": "Sorry! Here is your money back."}})


if __name__ == "__main__":
    main()
