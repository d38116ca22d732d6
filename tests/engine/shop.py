"""A graph for tests of workers: five steps, each with an effect that is written to a file beside
what the journal says about it."""

from __future__ import annotations

import asyncio
import os
from time import time
from typing import Annotated

from pydantic import SecretStr

from bae import Gate, Graph, Node, fencing_token

STEPS = 5


async def effect(run: str, step: int) -> None:
    """Begin and end something outside, which takes a while. One write is one line."""
    seconds = float(os.environ.get("SHOP_SECONDS", "0.01"))
    _say(f"begin {run} {step} {os.getpid()} {fencing_token()}")
    await asyncio.sleep(seconds)
    _say(f"end {run} {step} {os.getpid()} {fencing_token()}")


def _say(line: str) -> None:
    with open(os.environ["SHOP_LOG"], "a") as log:
        log.write(f"{time()} {line}\n")


class Order(Node):
    run: str
    step: int = 0

    async def __call__(self) -> Order | Shipped:
        await effect(self.run, self.step)
        if self.step + 1 < STEPS:
            return Order(run=self.run, step=self.step + 1)
        return Shipped(run=self.run)


class Shipped(Node):
    run: str

    async def __call__(self) -> None: ...


class Refund(Node):
    amount: int
    approved: Annotated[bool, Gate("refund?")]

    async def __call__(self) -> Refunded:
        return Refunded(paid=self.amount if self.approved else 0)


class Refunded(Node):
    paid: int

    async def __call__(self) -> None: ...


class Poison(Node):
    async def __call__(self) -> Shipped:
        os.kill(os.getpid(), 9)
        return Shipped(run="never")


class Login(Node):
    token: SecretStr

    async def __call__(self) -> Shipped:
        return Shipped(run=self.token.get_secret_value())


orders = Graph(start=Order, end=Shipped, name="orders")
refunds = Graph(start=Refund, end=Refunded, name="refunds")
poison = Graph(start=Poison, end=Shipped, name="poison")
logins = Graph(start=Login, end=Shipped, name="logins")
