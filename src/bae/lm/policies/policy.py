"""What every policy is: a backend around a backend. Filling and choosing are written on top of the
outermost, so a wrapped LM has all the methods of an LM, and policies nest in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bae.lm.adapter import LMAdapter, decide_with, make_with
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.requests import checked

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node
    from bae.usage import Usage

N = TypeVar("N", bound="Node")


def _of_inner(name: str) -> Any:
    """An attribute of `Backend` that is read from the LM inside, each time."""
    return property(lambda policy: getattr(policy.inner, name), doc=f"`{name}` of the LM inside.")


class Policy(Backend):
    """Wraps any LM, or the one that a name such as "local" stands for, and answers as it does.
    Subclass it and write `answer`, which asks the LM inside with `await self.ask(prompt)`.

    `model`, `settings`, `attempts` and the like are those of the LM inside: change them there.
    """

    model: str = _of_inner("model")
    answers_unions: bool = _of_inner("answers_unions")
    attempts: int = _of_inner("attempts")
    retries: int = _of_inner("retries")
    first_wait: float = _of_inner("first_wait")
    free: bool = _of_inner("free")
    one_call: bool = _of_inner("one_call")

    def __init__(self, lm: LM | str) -> None:
        # Not Backend.__init__: its attributes are read from the LM inside.
        self.inner = as_backend(lm)

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside."""
        return await self.ask(prompt)

    async def ask(self, prompt: Prompt) -> Answer:
        """Ask the LM inside, once. A request to a model is charged to the budgets around it."""
        return await self.inner.request(prompt)

    async def request(self, prompt: Prompt) -> Answer:
        """Answer once. Nothing is charged here, but where the LM inside sends a request."""
        return checked(self, await self.answer(prompt))

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        if isinstance(innermost(self), LMAdapter):
            return await make_with(self, node, target)
        return await super().make(node, target)

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        if isinstance(innermost(self), LMAdapter):
            return await decide_with(self, node)
        return await super().decide(node)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What, besides the prompt and the model, changes answers."""
        return self.inner.settings

    def least_cost(self, usage: Usage) -> float | None:
        """What a request costs at least; None where its cost will not be known."""
        return self.inner.least_cost(usage)

    def at_once(self, source: Node | None, fillable: Sequence[type[Node]]) -> Sequence[type[Node]]:
        """Those of `fillable` that may be filled by the answer that chooses."""
        return self.inner.at_once(source, fillable)

    def pinned(self, lm: LM) -> LM:
        """The LM that is pinned to a node, as the LM inside would have it asked. A policy is only
        for the LM that it wraps."""
        return self.inner.pinned(lm)

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer to this prompt was not valid."""
        await self.inner.reject(prompt)

    async def aclose(self) -> None:
        """Close the LM inside."""
        await self.inner.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


def as_backend(lm: LM | str) -> Backend:
    """The LM itself where it is a backend, the one a name stands for, and any other through an
    adapter. So is a backend that overrides the four methods: policies would bypass these."""
    if isinstance(lm, str):
        from bae.lm.registry import resolve

        lm = resolve(lm)
    return lm if isinstance(lm, Backend) and _has_usual_methods(type(lm)) else LMAdapter(lm)


def innermost(backend: Backend) -> Backend:
    """The backend inside all policies."""
    while isinstance(backend, Policy):
        backend = backend.inner
    return backend


def _has_usual_methods(cls: type[Backend]) -> bool:
    return all(
        getattr(cls, name) in [getattr(known, name) for known in (Backend, Policy, LMAdapter)]
        for name in ("make", "decide", "choose_type", "fill")
    )
