"""A gate: the LM proposes, a person decides, and nothing is paid before.

Run it with `python examples/approve_a_refund.py`.
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated

from pydantic import Field

from bae import Gate, Graph, Node, OpenGate
from bae.testing import ScriptedLM


class Complaint(Node):
    text: str

    async def __call__(self) -> Proposal: ...  # the LM proposes


class Proposal(Node):
    euros: int
    reply: str

    async def __call__(self) -> Approval:
        return Approval(euros=self.euros, reply=self.reply)


class Approval(Node):
    # What the person needs to see is given before the gate opens.
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
    """Stands in for a person: a real one would be asked on a screen and take their time."""
    print(f"{gate.question} {gate.context['euros']} EUR, {gate.context['reply']!r}")
    return gate.context["euros"] <= 50


def main() -> None:
    complaint = Complaint(text="The umbrella arrived wet.")

    print("With nobody to answer, the run stops at the gate:")
    stopped = graph.run(complaint, lm=scripted())
    for gate in stopped.waiting:
        print(f"{gate.place} waits: {gate.question}")

    print("\nWith somebody to answer, it goes on:")
    answered = graph.run(complaint, lm=scripted(), answer=clerk)
    print(repr(answered.result))


def scripted() -> ScriptedLM:
    return ScriptedLM({Proposal: {"euros": 20, "reply": "Sorry! Here is your money back."}})


if __name__ == "__main__":
    main()
