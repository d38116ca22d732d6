"""Wrong uses that each of the three checkers reports, on the lines marked so and on no other."""

from typing import Annotated, assert_type

from bae import Dep, Gate, Graph, GraphResult, Map, Node, NodeConfig, Recall


class NotANode:
    pass


class A(Node):
    m: str

    async def __call__(self) -> "B": ...


class B(Node):
    n: int

    async def __call__(self) -> None: ...


class Other(Node):
    async def __call__(self) -> None: ...


start = A(m="x")

Graph(start=NotANode)  # refused
Graph(start=A, end=NotANode)  # refused
Graph(start=A, end=(B, NotANode))  # refused
Graph(start=start)  # refused
Graph()  # refused
Graph(start=A, system=1)  # refused

graph = Graph(start=A, end=B)

graph.run(B)  # refused
graph.run(B(n=1))  # refused
graph.stream(Other())  # refused
graph.run("a start")  # refused
graph.run(start, lm=5)  # refused
graph.run(start, max_iters="many")  # refused
graph.run(start).result.missing  # refused
graph.run(start, answer=lambda gate: True)  # refused

other: Other = graph.run(start).result  # refused
wider: GraphResult[Other] = graph.run(start)  # refused
assert_type(graph.run(start).result, Other)  # refused

A(m=3)  # refused
A()  # refused
A(m="x", n=1)  # refused

Dep(3)  # refused
Dep(len, timeout="long")  # refused
Dep(len, 3)  # refused
Map(len)  # refused
Map(len, over=3)  # refused
Recall(NotANode)  # refused
Gate()  # refused
NodeConfig(lm=5)  # refused


class Returns(Node):
    field: Annotated[str, Recall()]

    async def __call__(self) -> B:
        return A(m=self.field)  # refused


class NotAsync(Node):
    def __call__(self) -> None: ...  # refused
