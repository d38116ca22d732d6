"""Nodes for tests to derive their own from, or to lead to them: what a test is about are the fields
that they add, or the node that they lead to."""

from typing import Any, Union

from bae import Node


class EndNode(Node):
    async def __call__(self) -> None: ...


def leading_to(*following: Any, name: str = "Start", **fields: Any) -> type[Any]:
    """A node class with these fields, from which the LM goes on to one of these classes, or ends
    the run with None."""

    async def call(self: Node): ...

    call.__annotations__ = {"return": Union[following]}
    body = {"__annotations__": fields, "__call__": call, "__module__": __name__}
    return type(Node)(name, (Node,), body)
