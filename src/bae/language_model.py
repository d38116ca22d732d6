"""The `LM` protocol: what a graph asks of a language model. Backends implement it; the runner and
written bodies use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from bae.node import Node

N = TypeVar("N", bound="Node")


@runtime_checkable
class LM(Protocol):
    """Four async methods. Annotate a parameter of a written body, or of a dependency, with `LM`
    to be given the one of the run."""

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        ...

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        ...

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Choose one of `types`, and nothing else; `type(None)`, where offered, ends the run."""
        ...

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Fill the plain fields of `target` and build it together with the `resolved` ones.

        Build it by calling the class, `target(**resolved, **answer)`: that runs the model's own
        validation, and leaves out what is resolved after the answer.
        """
        ...


def is_lm(value: object) -> bool:
    """Whether an object has the four methods. A check with isinstance takes longer than a short
    run."""
    return all(hasattr(value, name) for name in ("make", "decide", "choose_type", "fill"))
