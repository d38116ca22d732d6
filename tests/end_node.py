"""A node that ends its run, for tests to derive their own from: what a test is about are the fields
that they add."""

from bae import Node


class EndNode(Node):
    async def __call__(self) -> None: ...
