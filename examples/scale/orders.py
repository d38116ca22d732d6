"""Orders of five steps. Each step takes a while, and writes a line into a file when it begins."""

from __future__ import annotations

import asyncio
import os

from bae import Graph, Node

STEPS = ("reserve", "charge", "pack", "label", "ship")


class Order(Node):
    number: int
    step: int = 0

    async def __call__(self) -> Order | Shipped:
        report(f"{os.environ['SCALE_WORKER']} {self.number} {STEPS[self.step]}\n")
        await asyncio.sleep(0.4)  # where an LLM or a service would be asked
        if self.step + 1 < len(STEPS):
            return Order(number=self.number, step=self.step + 1)
        return Shipped(number=self.number)


class Shipped(Node):
    number: int

    async def __call__(self) -> None: ...


def report(line: str) -> None:
    with open(os.environ["SCALE_LOG"], "a", encoding="utf-8") as log:
        log.write(line)


graph = Graph(start=Order, end=Shipped, name="orders")
