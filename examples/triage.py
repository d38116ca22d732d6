"""Prompt optimization: a support ticket goes to one of three queues, with its subject.

bae learns better prompts for this small graph from its runs. `triage_data/cases.jsonl` has 120
tickets with the right answers, to measure a model. docs/optimize.md is the guide.

    bae run examples/triage.py --set text="Where do I change the signature under my mails?"
    bae eval examples/triage.py --data examples/triage_data/cases.jsonl
    bae optimize examples/triage.py --journal runs.db -o learned
    python examples/triage.py                                 # scripted: no model is asked
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Literal

from pydantic import Field

from bae import Graph, Node
from bae.testing import ScriptedLM


class Ticket(Node):
    text: str = Field(description="what the customer wrote")

    # bae learns a prompt for this choice.
    async def __call__(self) -> Refund | Outage | HowTo: ...


# For each of these classes, bae learns a prompt to fill the fields.


class Refund(Node):
    item: str = Field(description="what was paid for, in one to three words", max_length=30)

    async def __call__(self) -> None: ...


class Outage(Node):
    item: str = Field(description="what does not work, in one to three words", max_length=30)
    urgency: Literal["low", "high"] = Field(description="high if it cannot wait until tomorrow")

    async def __call__(self) -> None: ...


class HowTo(Node):
    item: str = Field(description="what it is about, in one to three words", max_length=30)

    async def __call__(self) -> None: ...


graph = Graph(start=Ticket)


def main() -> None:
    tickets = [
        "The trial was supposed to be free, yet 9.99 left my account.",
        "None of us can log in since eight o'clock.",
        "Where do I change the signature under my mails?",
    ]
    lm = ScriptedLM(
        [
            *(Refund, {"item": "trial"}),
            *(Outage, {"item": "login", "urgency": "high"}),
            *(HowTo, {"item": "signature"}),
        ]
    )
    for text in tickets:
        run = graph.run(Ticket(text=text), lm=lm)
        match run.result:
            case Outage(item=item, urgency="high"):
                print(f"now       Outage  {item}")
            case Refund(item=item) | Outage(item=item) | HowTo(item=item):
                print(f"tomorrow  {type(run.result).__name__:<6}  {item}")
            case _:
                pass


if __name__ == "__main__":
    main()
