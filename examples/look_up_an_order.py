"""A graph inside a graph: the inner graph finds the order that a letter is about.

The inner graph has its own nodes, one LLM call and two ends. To the outer graph it is a dependency
like any other: it runs concurrently with the others, and its value is the node that it ends at.

    bae run examples/look_up_an_order.py --set text="Where is A-17?"
    python examples/look_up_an_order.py                       # scripted: no model is asked
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated

from pydantic import Field

from bae import Dep, Graph, Node, Recall
from bae.testing import ScriptedLM

ORDERS = {"A-17": "two umbrellas, sent on Monday", "B-4": "a lamp, waits for its shade"}


# The inner graph: finds the order, if the shop has it.


class FindOrder(Node):
    letter: Annotated[Letter, Recall()] = Field(init=False)  # from the run around it

    async def __call__(self) -> Reference: ...  # the LLM reads the letter


class Reference(Node):
    number: str = Field(
        description="the number of the order, as A-1; - if there is none", max_length=10
    )

    async def __call__(self) -> Order | NoOrder:
        if self.number in ORDERS:
            return Order(number=self.number, state=ORDERS[self.number])
        return NoOrder()


class Order(Node):
    number: str
    state: str

    async def __call__(self) -> None: ...


class NoOrder(Node):
    advice: str = "ask for the number, which is on the bill"

    async def __call__(self) -> None: ...


find_order = Graph(start=FindOrder, end=(Order, NoOrder), name="find_order")


# The outer graph: a letter in, a reply out.


async def get_opening_hours() -> str:
    return "9 to 17 o'clock, Monday to Friday"


class Letter(Node):
    text: str = Field(description="what the customer writes")

    async def __call__(self) -> Reply: ...


class Reply(Node):
    about: Annotated[Order | NoOrder, Dep(find_order)]
    opening_hours: Annotated[str, Dep(get_opening_hours)]  # at the same time
    text: str = Field(description="a short and friendly reply", max_length=200)

    async def __call__(self) -> None: ...


graph = Graph(start=Letter, end=Reply)


def main() -> None:
    answers = {
        Reference: [{"number": "A-17"}, {"number": "-"}],
        Reply: [{"text": "It was sent on Monday."}, {"text": "What is its number?"}],
    }
    lm = ScriptedLM(answers)
    for text in ("Where is A-17?", "Where is my lamp?"):
        run = graph.run(Letter(text=text), lm=lm)
        print(f"{text}  {run.result.text}")
        print(f"  about  {run.result.about!r}")
        for place, nodes in run.nested.items():
            print(f"  {place}  {' -> '.join(type(node).__name__ for node in nodes)}")


if __name__ == "__main__":
    main()
