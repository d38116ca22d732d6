"""The LM of a run that was resumed without one: found when it is first asked, since what is left of
the run may ask for none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bae.draft import with_resolved
from bae.lm.backend import Answer, Backend, Prompt

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node

N = TypeVar("N", bound="Node")


class LateLM(Backend):
    """Asks what `bae.lm.named.default` finds, once somebody asks; `why` says what needs an LM."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why
        self._found: LM | None = None

    @property
    def lm(self) -> LM:
        """The LM itself. Raises where this machine has none."""
        if self._found is None:
            from bae.lm.named import default

            self._found = default(self._why)
        return self._found

    async def answer(self, prompt: Prompt) -> Answer:
        """Have a backend answer, where one was found."""
        return await self._backend.answer(prompt)

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        return await self.lm.make(node, target)

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        return await self.lm.decide(node)

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Choose one of `types`, and nothing else."""
        return await self.lm.choose_type(types, context)

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Fill the plain fields of `target` and build it together with the `resolved` ones."""
        node = await self.lm.fill(target, resolved, instruction, source=source)
        return node if isinstance(self.lm, Backend) else with_resolved(node, resolved)

    async def route(
        self,
        node: Node,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
    ) -> tuple[type[Node] | type[None], Node | None]:
        """Choose, and fill in the same call where the LM can."""
        if isinstance(self.lm, Backend):
            return await self.lm.route(node, types, fillable)
        return await self.lm.choose_type(types, dict(node)), None

    @property
    def _backend(self) -> Backend:
        from bae.lm.policies.policy import as_backend

        return as_backend(self.lm)
