"""What every policy is: a backend around a backend. The asking layer stands on the outermost, so a
wrapped LM has all the methods of an LM, and policies nest in any order. An LM that is no backend
is asked through `foreign.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.foreign import Foreign, decided, made
from bae.lm.policies.charging import charged

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node
    from bae.usage import Usage

N = TypeVar("N", bound="Node")


class Policy(Backend):
    """Wraps any LM, or the one that a name such as "local" stands for, and answers as it does.
    Subclass it and write `answer`, which asks what is inside with `await self.ask(prompt)`.

    What the LM says of itself (`model`, `settings`, `attempts` and so on) is what it says now:
    change it there.
    """

    def __init__(self, lm: LM | str) -> None:
        # Not Backend.__init__: what it would keep is read from what is inside.
        self.inner = as_backend(lm)

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask what is inside."""
        return await self.ask(prompt)

    async def ask(self, prompt: Prompt) -> Answer:
        """Ask what is inside, once. A request to a model is charged to the budgets around it."""
        return await charged(self.inner, prompt)

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        if isinstance(innermost(self), Foreign):
            return await made(self, node, target)
        return await super().make(node, target)

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        if isinstance(innermost(self), Foreign):
            return await decided(self, node)
        return await super().decide(node)

    # Plain attributes in `Backend`, and here read from what is inside, whenever they are asked for.

    @property
    def model(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The model that answers."""
        return self.inner.model

    @property
    def answers_unions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether the model can be held to a schema with alternatives."""
        return self.inner.answers_unions

    @property
    def attempts(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """How many more times a wrong answer is asked for again."""
        return self.inner.attempts

    @property
    def retries(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """How many more times the asking layer sends a request that failed."""
        return self.inner.retries

    @property
    def first_wait(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Seconds until the asking layer first sends a request that failed again."""
        return self.inner.first_wait

    @property
    def free(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether requests cost nothing."""
        return self.inner.free

    @property
    def one_call(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether a choice and the filling of what is chosen may be one request."""
        return self.inner.one_call

    @property
    def settings(self) -> Mapping[str, Any]:
        """What, besides the prompt and the model, changes answers."""
        return self.inner.settings

    def least_cost(self, usage: Usage) -> float | None:
        """What a request costs at least; None where its cost will not be known."""
        return self.inner.least_cost(usage)

    def at_once(self, source: Node | None, fillable: Sequence[type[Node]]) -> Sequence[type[Node]]:
        """Those of `fillable` that may be filled by the very answer that chooses."""
        return self.inner.at_once(source, fillable)

    def pinned(self, lm: LM) -> LM:
        """The LM that is pinned to a node, as what is inside would have it asked. A policy is for
        the LM that it is around alone."""
        return self.inner.pinned(lm)

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer to this prompt was not valid."""
        await self.inner.reject(prompt)

    async def aclose(self) -> None:
        """Close what is inside."""
        await self.inner.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


def as_backend(lm: LM | str) -> Backend:
    """The LM itself where it is a backend, the one a name stands for, and any other through its
    four methods. So is a backend that overrides these: it would be asked past them otherwise."""
    if isinstance(lm, str):
        from bae.lm.named import resolve

        lm = resolve(lm)
    return lm if isinstance(lm, Backend) and _asks_as_others_do(type(lm)) else Foreign(lm)


def innermost(backend: Backend) -> Backend:
    """What is asked in the end, inside all policies."""
    while isinstance(backend, Policy):
        backend = backend.inner
    return backend


def _asks_as_others_do(cls: type[Backend]) -> bool:
    return all(
        getattr(cls, name) in [getattr(known, name) for known in (Backend, Policy, Foreign)]
        for name in ("make", "decide", "choose_type", "fill")
    )
