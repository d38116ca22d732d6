"""A loop: the LLM writes a slogan, your code checks it, and a limit ends the loop.

A written body decides where the run goes. An empty body leaves the choice to the LLM.

    bae run examples/shorten_a_slogan.py --set product="an umbrella" --max-iters 6
    python examples/shorten_a_slogan.py                       # scripted: no model is asked
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated

from pydantic import Field

from bae import Graph, LimitError, Node, Recall
from bae.testing import ScriptedLM

MOST_WORDS = 4


class Brief(Node):
    product: str

    async def __call__(self) -> Draft: ...  # the LLM writes a first draft


class Draft(Node):
    product: Annotated[str, Recall(Brief)]  # the LLM sees it for each draft
    text: str = Field(description="a slogan", max_length=100)

    async def __call__(self) -> TooLong | Slogan:  # your code decides
        words = len(self.text.split())
        if words > MOST_WORDS:
            return TooLong(text=self.text, cut=words - MOST_WORDS)
        return Slogan(text=self.text)


class TooLong(Node):
    text: str
    cut: int

    async def __call__(
        self,
    ) -> Draft: ...  # the LLM drafts again, and sees this node


class Slogan(Node):
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Brief, end=Slogan)


def main() -> None:
    drafts = ["The umbrella that dries itself", "Dries before you do"]
    run = graph.run(Brief(product="an umbrella"), lm=ScriptedLM({Draft: slogans(drafts)}))
    for node in run.trace:
        print(f"{type(node).__name__:<8}  {node}")

    print("\nAn LM that never gets it right:")
    stubborn = ScriptedLM({Draft: slogans(["The umbrella that dries itself"] * 5)})
    try:
        graph.run(Brief(product="an umbrella"), lm=stubborn, max_iters=6)
    except LimitError as error:
        print(error)
        print(f"the last draft: {error.trace[-1]}")


def slogans(texts: list[str]) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


if __name__ == "__main__":
    main()
