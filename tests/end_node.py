"""Base nodes for tests, so that a test shows only the fields that it adds or the node that it leads
to."""

from typing import Any, Union

from bae import Node


class EndNode(Node):
    async def __call__(self) -> None: ...


def leading_to(*following: Any, name: str = "Start", **fields: Any) -> type[Any]:
    """A node class with these fields, after which the LLM chooses one of these classes, or ends the
    run with None."""

    async def call(self: Node): ...

    call.__annotations__ = {"return": Union[following]}
    body = {"__annotations__": fields, "__call__": call, "__module__": __name__}
    return type(Node)(name, (Node,), body)
