"""A node that ends its run, for tests to derive their own from."""

from bae import Node


class EndNode(Node):
    async def __call__(self) -> None: ...
