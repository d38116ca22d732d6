"""Building a node without what has a source, in a way that all three checkers accept."""

from typing import Annotated, assert_type

from pydantic import Field

from bae import Dep, Gate, Graph, Map, Node, Recall


async def get_price() -> int:
    return 12


async def length(word: str) -> int:
    return len(word)


class Ask(Node):
    item: str

    async def __call__(self) -> "Quote":
        return Quote(item=self.item, words=["a"])


class Quote(Node):
    item: str
    words: list[str]
    price: Annotated[int, Dep(get_price)] = Field(init=False)
    lengths: Annotated[list[int], Map(length, over="words")] = Field(init=False)
    asked: Annotated[Ask, Recall()] = Field(init=False, description="the question")
    fine: Annotated[bool, Gate("fine?")] = Field(init=False)

    async def __call__(self) -> None: ...


graph = Graph(start=Ask, end=Quote)


def fields(quote: Quote) -> None:
    assert_type(quote.price, int)
    assert_type(quote.lengths, list[int])
