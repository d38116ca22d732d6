"""A run that is in progress for as long as a test wants: its only dependency waits at a named pipe
until the test opens the other end."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

from bae import Dep, Graph, Node
from crash.effects import effect

PIPE: ContextVar[str] = ContextVar("PIPE")


def wait_at_pipe() -> str:
    with effect("wait_at_pipe"):
        return Path(PIPE.get()).read_text()


class Waiting(Node):
    text: Annotated[str, Dep(wait_at_pipe)]

    async def __call__(self) -> None: ...


graph = Graph(start=Waiting, name="waiting_run")
