"""The base class of policies, and the small policies `Retry`, `Timeout` and `Budgeted`. A policy is
a backend around a backend, so a wrapped LM has all methods of an LM."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bae.failures import awaitable
from bae.language_model import scene_around
from bae.lm.adapter import LMAdapter, decide_with, make_with
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.file_limits import FileLimits
from bae.lm.policies.budget import Budget, scope_in_force
from bae.lm.requests import check_answer, in_time, retrying, worth_retrying

if TYPE_CHECKING:
    from bae.language_model import LM, RoutingLM, Scene
    from bae.node import Node
    from bae.usage import Usage

N = TypeVar("N", bound="Node")


def _of_inner(name: str) -> Any:
    """An attribute of `Backend` that is read from the LM inside on each access."""
    return property(lambda policy: getattr(policy.inner, name), doc=f"`{name}` of the LM inside.")


class Policy(Backend):
    """Wraps an LM, or the name of an LM such as "local". Subclass it and write `answer`, which asks
    the LM inside with `await self.ask(prompt)`.

    `model`, `settings`, `attempts` and similar attributes come from the LM inside: change them
    there.
    """

    model: str = _of_inner("model")
    answers_unions: bool = _of_inner("answers_unions")
    attempts: int = _of_inner("attempts")
    retries: int = _of_inner("retries")
    first_wait: float = _of_inner("first_wait")
    free: bool = _of_inner("free")
    one_call: bool = _of_inner("one_call")
    calls_tools: bool = _of_inner("calls_tools")
    runs_tools: bool = _of_inner("runs_tools")
    context_window: int | None = _of_inner("context_window")
    native_tools: frozenset[str] | None = _of_inner("native_tools")
    takes_files: frozenset[str] = _of_inner("takes_files")
    file_limits: FileLimits = _of_inner("file_limits")

    inner: Backend

    def __init__(self, lm: LM | str) -> None:
        # No super().__init__(): these attributes are read from the LM inside.
        self.inner = as_backend(lm)

    @property
    def inners(self) -> tuple[Backend, ...]:
        """The LMs inside. A `Fallback` has several, any other policy has one."""
        return (self.inner,)

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside."""
        return await self.ask(prompt)

    async def ask(self, prompt: Prompt) -> Answer:
        """Ask the LM inside once. Requests to a model are charged to the active budgets."""
        return await awaitable(self.inner.request(prompt), self.inner, "request")

    async def request(self, prompt: Prompt) -> Answer:
        """Answer once. The LM inside charges the budgets, not the policy."""
        return check_answer(self, await awaitable(self.answer(prompt), self, "answer"))

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """Build a `target` from the fields of `node`."""
        here = scene or scene_around.get()
        if _has_adapter(self):
            return await make_with(self, node, target, here)
        return await super().make(node, target, scene=here)

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """Choose among the successors of `node` and build the chosen node. None ends the run."""
        here = scene or scene_around.get()
        if _has_adapter(self):
            return await decide_with(self, node, here)
        return await super().decide(node, scene=here)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the LM inside that change answers."""
        return self.inner.settings

    @property
    def secrets(self) -> Iterable[str]:
        """The API keys that the LM inside sends."""
        return self.inner.secrets

    def find_refuser(self, kind: str) -> RoutingLM | None:
        """The LM inside that takes no files of this kind, or None if all take them."""
        if kind in self.takes_files:
            return None
        return next(filter(None, (lm.find_refuser(kind) for lm in self.inners)), self)

    def least_cost(self, usage: Usage) -> float | None:
        """The lowest cost of a request, or None if its cost will stay unknown."""
        return self.inner.least_cost(usage)

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """The types in `fillable` that the answer which chooses may fill too."""
        return self.inner.at_once(previous, fillable)

    def with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt as the LM inside sends it."""
        return self.inner.with_learned(prompt)

    def pinned(self, lm: LM) -> LM:
        """The LM to ask for a node that pins `lm`. The policy itself does not wrap pinned LMs."""
        return self.inner.pinned(lm)

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to the budgets inside."""
        self.inner.restore(run_id, used, seconds)

    def budgets(self) -> list[Budget]:
        """The budgets inside that each request is charged to, the outermost first."""
        return budgets_of(self.inner)

    async def reject(self, prompt: Prompt) -> None:
        """Report an invalid answer to the LM inside."""
        await self.inner.reject(prompt)

    async def aclose(self) -> None:
        """Close the LM inside."""
        await self.inner.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class Retry(Policy):
    """Sends a failed request again, up to `retries` times, if the provider was busy or unreachable
    or took too long.

    The backoff starts at `first` seconds and grows by `factor`, up to `longest`. Each wait is
    shortened at random by up to the share `jitter`. If a provider asks for a longer wait, the
    policy waits at least that long. If the provider asks for more than `longest`, the error is
    raised at once. The last error is raised with a note on the number of tries.
    """

    def __init__(
        self,
        lm: LM | str,
        retries: int = 4,
        *,
        first: float = 0.5,
        longest: float = 60.0,
        factor: float = 2.0,
        jitter: float = 0.5,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        super().__init__(lm)
        if type(retries) is not int or retries < 0:
            raise ValueError(f"Retry(retries={retries!r}): give 0 or more")
        waits = {"first": first, "longest": longest, "factor": factor, "jitter": jitter}
        for name, value in waits.items():
            least, most = float(name == "factor"), 1.0 if name == "jitter" else inf
            if not (least <= value <= most and value < inf):
                bounds = f"from {least:g} to {most:g}" if most < inf else f"{least:g} or more"
                raise ValueError(f"Retry({name}={value!r}): give {bounds}")
        self.times = retries
        self._waits = waits
        self._sleep = sleep

    @property
    def retries(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """0: this policy replaces the retries of the LM inside."""
        return 0

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside until it answers."""
        return await retrying(
            lambda: self.ask(prompt),
            self.times,
            sleep=self._sleep,
            is_worth=worth_retrying,
            **self._waits,
        )


class Timeout(Policy):
    """Cancels a request after `seconds` and raises `BaeLMError` with the code `bae-lm-timeout`,
    which `Retry` retries.

    The time covers everything inside this policy. Put it inside `Retry`, so that each try has its
    own time, and inside `Concurrency` and `RateLimit`, so that time in their queues does not count.
    """

    def __init__(self, lm: LM | str, seconds: float) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, seconds), int | float) or not 0 < seconds < inf:
            raise ValueError(f"Timeout(seconds={seconds!r}): give a number above 0")
        self.seconds = seconds

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside, and wait at most `seconds`."""
        bound = asyncio.timeout(self.seconds)
        try:
            async with bound:
                return await self.ask(prompt)
        except TimeoutError as error:
            if not bound.expired():
                raise  # a timeout from inside
            from bae.lm.http import timeout_error

            who = self.model or type(self.inner).__name__
            raise timeout_error(who, self.seconds, error) from error


class Budgeted(Policy):
    """Charges the requests to an LM to a budget: `Budgeted(lm, Budget(calls=100))`.

    One budget may serve several LMs. A request is charged to it once, even if the budget is around
    the request twice. Answers from a cache inside are free; every retry inside is charged.
    """

    def __init__(self, lm: LM | str, budget: Budget) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, budget), Budget):
            raise TypeError(f"Budgeted(lm, {budget!r}): give a Budget, as Budget(calls=100)")
        self.budget = budget

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LM inside, if the budget allows the request."""
        token = scope_in_force.set(self.budget.scope_here())
        try:
            return await in_time(lambda: self.ask(prompt))
        finally:
            scope_in_force.reset(token)

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to this budget and to the budgets inside."""
        for budget in self.budget.line():
            budget.carry(run_id, used, seconds)
        super().restore(run_id, used, seconds)

    def budgets(self) -> list[Budget]:
        """This budget and those around it, and the budgets of the LM inside."""
        return [*self.budget.line(), *super().budgets()]


def budgets_of(lm: object) -> list[Budget]:
    """The budgets that all requests to an LM are charged to, the outermost first."""
    return [*dict.fromkeys(lm.budgets())] if isinstance(lm, Policy) else []


def as_backend(lm: LM | str) -> Backend:
    """The LM as a backend that policies can wrap. A name is resolved. An LM that is no backend, or
    that overrides one of the four methods of LMs, gets an adapter that calls these methods."""
    if isinstance(lm, str):
        from bae.lm.registry import resolve

        lm = resolve(lm)
    return lm if isinstance(lm, Backend) and _has_usual_methods(type(lm)) else LMAdapter(lm)


def innermost(backend: Backend) -> Backend:
    """The backend inside all policies. For a `Fallback`, the first."""
    while isinstance(backend, Policy):
        backend = backend.inner
    return backend


def all_innermost(backend: Backend) -> Iterator[Backend]:
    """The backends inside all policies."""
    if not isinstance(backend, Policy):
        yield backend
        return
    for inner in backend.inners:
        yield from all_innermost(inner)


def identity_of(backend: Backend) -> dict[str, Any]:
    """The model and classes that identify a backend in the keys of a cache, next to its settings.
    The classes are the backend's and those of policies outside bae, which may change the prompt. A
    class in `__main__` is named by the file of the script."""
    layers: list[object] = []
    model = innermost(backend).model
    while isinstance(backend, Policy):
        if not type(backend).__module__.startswith("bae."):
            layers.append(backend)
        backend = backend.inner
    layers.append(backend.lm if isinstance(backend, LMAdapter) else backend)
    script: str = getattr(sys.modules.get("__main__"), "__file__", None) or "__main__"
    by = [
        f"{script if (module := type(layer).__module__) == '__main__' else module}"
        f".{type(layer).__qualname__}"
        for layer in layers
    ]
    return {"by": by, "model": model}


def _has_adapter(backend: Backend) -> bool:
    """Whether an LM inside is adapted, so that its own `make` and `decide` are called."""
    return any(isinstance(each, LMAdapter) for each in all_innermost(backend))


def _has_usual_methods(cls: type[Backend]) -> bool:
    return all(
        getattr(cls, name) in [getattr(known, name) for known in (Backend, Policy, LMAdapter)]
        for name in ("make", "decide", "choose_type", "fill")
    )
