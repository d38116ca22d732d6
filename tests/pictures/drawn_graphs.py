"""Graphs that the tests of pictures draw: made from a shape, and a graph with every feature."""

from __future__ import annotations

from typing import Annotated, Any, Union

from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from bae import Dep, Gate, Graph, Map, Node, NodeConfig, Recall
from bae.pictures import Picture
from end_node import EndNode

Edge = tuple[str, str, str]

NODES = st.tuples(
    st.lists(st.integers(0, 39), max_size=3, unique=True), st.booleans(), st.booleans()
)
SHAPES = st.lists(NODES, min_size=1, max_size=9)
"""For each node its successors, whether it may end, whether its body is written."""


def build(shape: list[tuple[list[int], bool, bool]], name: str = "N{}") -> list[type[Node]]:
    """Node classes of a shape."""
    classes = [create_model(name.format(i), __base__=Node) for i in range(len(shape))]
    for cls, (onward, may_end, written) in zip(classes, shape, strict=True):
        targets = [classes[i % len(classes)] for i in onward]
        ends = [None] if may_end or not targets else []
        call = _make_call() if written else _empty()
        call.__annotations__ = {"return": Union[(*targets, *ends)]}
        type.__setattr__(cls, "__call__", call)
    return classes


def _empty() -> Any:
    async def call(self: Node): ...

    return call


def _make_call() -> Any:
    async def call(self: Node):
        raise NotImplementedError

    return call


def make_graph(shape: list[tuple[list[int], bool, bool]], name: str = "N{}") -> Graph[Any, Any]:
    """A graph of a shape."""
    return Graph(start=build(shape, name)[0])


def make_named_graph(*names: str) -> Graph[Any, Any]:
    """A graph of two nodes with any names; the first may lead to itself."""
    classes = build([([1, 0], False, False), ([], True, False)])
    for cls, name in zip(classes, names, strict=True):
        cls.__name__ = name
    return Graph(start=classes[0], name=names[0])


def edges_of(picture: Picture) -> set[Edge]:
    """The arrows of a picture."""
    return {(arrow.tail, arrow.head, arrow.kind) for arrow in picture.arrows}


class Doc(BaseModel):
    text: str


def get_client() -> str:
    return "client"


async def search(client: Annotated[str, Dep(get_client)]) -> list[Doc]:
    return [Doc(text=client)]


class SumUp(Node):
    doc: Doc

    async def __call__(self) -> Summary: ...


class Summary(EndNode):
    text: str = Field(description='short & "sweet", <b>not</b> long')


class Request(Node):
    """What a reader wants to know."""

    topic: str

    async def __call__(self) -> Research: ...


class Research(Node):
    found: Annotated[list[Doc], Dep(search)]
    parts: Annotated[list[Summary], Map(SumUp, over="found")]
    topic: Annotated[str, Recall(Request)]
    note: Annotated[str, Recall()] = ""
    ok: Annotated[bool, Gate("Is <that> all?")]
    gaps: list[str]

    async def __call__(self) -> Research | Report | None: ...


class Report(Node):
    node_config = NodeConfig(lm="local")
    text: str

    async def __call__(self) -> Request | Filed:
        return Filed(place=self.text)


class Filed(EndNode):
    place: str


library = Graph(start=Request, name="Library")
