"""Tools as nodes: the LM picks a tool and fills its arguments, until it answers.

Each tool is a node: its fields are the arguments, typed and validated, and its body is what it
does. What was found goes on to the next choice. After so many findings there are no tools any more,
and the LM answers with what it has, so that the loop ends by itself.

    bae run examples/answer_with_tools.py --set text="What is a lamp in pounds?"
    python examples/answer_with_tools.py                      # scripted: no model is asked
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated, Literal

from pydantic import Field

from bae import Graph, Node, Recall
from bae.testing import ScriptedLM

MOST_FINDINGS = 3
PRICES = {"lamp": 40.0, "umbrella": 29.0}
RATES = {"pounds": 0.86, "dollars": 1.08}


class Question(Node):
    text: str = Field(description="what you want to know")

    async def __call__(self) -> Consider:
        return Consider(question=self.text, findings=[])


class Consider(Node):
    question: str
    findings: list[str]

    # The LM chooses, and fills the arguments of what it has chosen.
    async def __call__(self) -> LookUpPrice | ConvertEuros | Answer: ...


# The tools. What goes wrong in one is a finding too: the LM can do better the next time.


class LookUpPrice(Node):
    so_far: Annotated[Consider, Recall()] = Field(init=False)
    item: str = Field(description="what it is the price of, as one word", max_length=20)

    async def __call__(self) -> Consider | Conclude:
        if self.item in PRICES:
            return go_on(self.so_far, f"a {self.item} costs {PRICES[self.item]:.2f} euros")
        return go_on(self.so_far, f"no {self.item} is sold; what is: {', '.join(PRICES)}")


class ConvertEuros(Node):
    so_far: Annotated[Consider, Recall()] = Field(init=False)
    euros: float = Field(description="how much to convert", ge=0)
    to: Literal["pounds", "dollars"] = Field(description="what to have it in")

    async def __call__(self) -> Consider | Conclude:
        amount = self.euros * RATES[self.to]
        return go_on(self.so_far, f"{self.euros:.2f} euros are {amount:.2f} {self.to}")


def go_on(so_far: Consider, finding: str) -> Consider | Conclude:
    findings = [*so_far.findings, finding]
    if len(findings) < MOST_FINDINGS:
        return Consider(question=so_far.question, findings=findings)
    return Conclude(question=so_far.question, findings=findings)


class Conclude(Node):
    question: str
    findings: list[str]

    async def __call__(self) -> Answer: ...  # no choice any more


class Answer(Node):
    text: str = Field(description="the answer, from the findings", max_length=120)

    async def __call__(self) -> None: ...


graph = Graph(start=Question, end=Answer)


def main() -> None:
    lm = ScriptedLM(
        [
            *(LookUpPrice, {"item": "lamp"}),
            *(ConvertEuros, {"euros": 40, "to": "pounds"}),
            *(Answer, {"text": "A lamp is 34.40 pounds."}),
        ]
    )
    run = graph.run(Question(text="What is a lamp in pounds?"), lm=lm)
    for node in run.trace:
        match node:
            case LookUpPrice(item=item):
                print(f"look up  {item}")
            case ConvertEuros(euros=euros, to=to):
                print(f"convert  {euros} to {to}")
            case Consider(findings=[*_, finding]) | Conclude(findings=[*_, finding]):
                print(f"found    {finding}")
            case _:
                pass
    print(f"answer   {run.result.text}")

    print("\nAn LM that would look things up for ever:")
    curious = ScriptedLM(
        {LookUpPrice: [{"item": "moon"}] * 3, Answer: [{"text": "There is none."}]},
        choices=[LookUpPrice] * 3,
    )
    run = graph.run(Question(text="What is the moon?"), lm=curious)
    print(" -> ".join(type(node).__name__ for node in run.trace))


if __name__ == "__main__":
    main()
