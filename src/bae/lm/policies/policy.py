"""The base class of policies, and the small policies `Retry`, `Timeout` and `Budgeted`. A policy
wraps a backend and is a backend itself, so it has all methods of an LM."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bae.failures import check_awaitable
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


def _read_from_inner(name: str) -> Any:
    """Return a property that reads the attribute `name` of the wrapped LM on each access."""
    return property(lambda policy: getattr(policy.inner, name), doc=f"`{name}` of the wrapped LM.")


class Policy(Backend):
    """The base class of policies. A policy wraps an LM, or the name of an LM such as "local".

    Subclass it and write `answer`. In `answer`, `await self.ask(prompt)` asks the wrapped LM.

    `model`, `settings`, `attempts` and similar attributes are attributes of the wrapped LM. To
    change them, change the wrapped LM.
    """

    model: str = _read_from_inner("model")
    answers_unions: bool = _read_from_inner("answers_unions")
    attempts: int = _read_from_inner("attempts")
    retries: int = _read_from_inner("retries")
    first_wait: float = _read_from_inner("first_wait")
    free: bool = _read_from_inner("free")
    one_call: bool = _read_from_inner("one_call")
    calls_tools: bool = _read_from_inner("calls_tools")
    runs_tools: bool = _read_from_inner("runs_tools")
    context_window: int | None = _read_from_inner("context_window")
    native_tools: frozenset[str] | None = _read_from_inner("native_tools")
    takes_files: frozenset[str] = _read_from_inner("takes_files")
    file_limits: FileLimits = _read_from_inner("file_limits")

    inner: Backend
    """The wrapped LM."""

    def __init__(self, lm: LM | str) -> None:
        # No super().__init__(): it would set attributes that the wrapped LM has.
        self.inner = as_backend(lm)

    @property
    def inners(self) -> tuple[Backend, ...]:
        """The wrapped LMs. A `Fallback` has several, any other policy has one."""
        return (self.inner,)

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the wrapped LM."""
        return await self.ask(prompt)

    async def ask(self, prompt: Prompt) -> Answer:
        """Ask the wrapped LM once. Each request to a model counts against the active budgets."""
        return await check_awaitable(self.inner.request(prompt), self.inner, "request")

    async def request(self, prompt: Prompt) -> Answer:
        """Call `answer` once. The wrapped LM charges the budgets, so this method does not."""
        return check_answer(self, await check_awaitable(self.answer(prompt), self, "answer"))

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """Build a `target` from the fields of `node`."""
        scene = scene or scene_around.get()
        if _has_adapter(self):
            return await make_with(self, node, target, scene)
        return await super().make(node, target, scene=scene)

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """Choose a successor of `node` and build it. Return None to end the run."""
        scene = scene or scene_around.get()
        if _has_adapter(self):
            return await decide_with(self, node, scene)
        return await super().decide(node, scene=scene)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the wrapped LM that change answers."""
        return self.inner.settings

    @property
    def secrets(self) -> Iterable[str]:
        """The API keys that the wrapped LM sends."""
        return self.inner.secrets

    def find_refuser(self, kind: str) -> RoutingLM | None:
        """Return the wrapped LM that takes no files of this kind. None if all LMs take them."""
        if kind in self.takes_files:
            return None
        return next(filter(None, (lm.find_refuser(kind) for lm in self.inners)), self)

    def least_cost(self, usage: Usage) -> float | None:
        """Return the lowest cost of a request with this usage. None if the cost will stay
        unknown."""
        return self.inner.least_cost(usage)

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """Return the types in `fillable` that the LM may fill in the answer with the choice."""
        return self.inner.at_once(previous, fillable)

    def with_learned(self, prompt: Prompt) -> Prompt:
        """Return the prompt as the wrapped LM sends it."""
        return self.inner.with_learned(prompt)

    def pinned(self, lm: LM) -> LM:
        """Return the LM to ask for a node that pins `lm`. A policy does not wrap pinned LMs, unless
        a subclass overrides this method."""
        return self.inner.pinned(lm)

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to the budgets inside this policy."""
        self.inner.restore(run_id, used, seconds)

    def budgets(self) -> list[Budget]:
        """Return the budgets inside this policy that count each request, the outermost first."""
        return budgets_of(self.inner)

    async def reject(self, prompt: Prompt) -> None:
        """Report an invalid answer to the wrapped LM."""
        await self.inner.reject(prompt)

    async def aclose(self) -> None:
        """Close the wrapped LM."""
        await self.inner.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"


class Retry(Policy):
    """Sends a failed request again, up to `retries` times, if the provider was busy, unreachable or
    too slow.

    - `first`: seconds of the first wait.
    - `factor`: each further wait is this many times longer than the wait before.
    - `longest`: the most seconds of a wait.
    - `jitter`: the largest share of a wait, from 0 to 1, that is cut off at random.
    - `sleep`: the function that waits, for tests.

    If the provider asks for a longer wait, the policy waits at least that long. If the provider
    asks for more than `longest`, the error is raised at once. The last error is raised with a note
    on the number of tries.
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
        """Always 0, because this policy replaces the retries of the wrapped LM."""
        return 0

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the wrapped LM until it answers or the retries are used up."""
        return await retrying(
            lambda: self.ask(prompt),
            self.times,
            sleep=self._sleep,
            is_worth=worth_retrying,
            **self._waits,
        )


class Timeout(Policy):
    """Cancels a request after `seconds` and raises `BaeLMError` with the code `bae-lm-timeout`.
    `Retry` sends such a request again.

    The time includes the policies inside this policy. Put a `Timeout` inside `Retry`, so that each
    try has its own time. Put it inside `Concurrency` and `RateLimit`, so that the time in their
    queues does not count.
    """

    def __init__(self, lm: LM | str, seconds: float) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, seconds), int | float) or not 0 < seconds < inf:
            raise ValueError(f"Timeout(seconds={seconds!r}): give a number above 0")
        self.seconds = seconds

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the wrapped LM, and wait at most `seconds`."""
        bound = asyncio.timeout(self.seconds)
        try:
            async with bound:
                return await self.ask(prompt)
        except TimeoutError as error:
            if not bound.expired():
                raise  # the wrapped LM raised it
            from bae.lm.http import timeout_error

            name = self.model or type(self.inner).__name__
            raise timeout_error(name, self.seconds, error) from error


class Budgeted(Policy):
    """Counts the requests to an LM against a budget: `Budgeted(lm, Budget(calls=100))`.

    Several LMs may share one budget. A request counts once, even if two policies around it have the
    same budget. Answers from a cache inside this policy are free. Every retry inside this policy
    counts.
    """

    def __init__(self, lm: LM | str, budget: Budget) -> None:
        super().__init__(lm)
        if not isinstance(cast(object, budget), Budget):
            raise TypeError(f"Budgeted(lm, {budget!r}): give a Budget, as Budget(calls=100)")
        self.budget = budget

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the wrapped LM. If the budget does not allow the request, raise `BudgetError`."""
        token = scope_in_force.set(self.budget.scope_here())
        try:
            return await in_time(lambda: self.ask(prompt))
        finally:
            scope_in_force.reset(token)

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to this budget, its outer budgets, and the
        budgets inside this policy."""
        for budget in self.budget.line():
            budget.carry(run_id, used, seconds)
        super().restore(run_id, used, seconds)

    def budgets(self) -> list[Budget]:
        """Return this budget, its outer budgets, and the budgets of the wrapped LM."""
        return [*self.budget.line(), *super().budgets()]


def budgets_of(lm: object) -> list[Budget]:
    """Return the budgets that count all requests to an LM, the outermost first."""
    return [*dict.fromkeys(lm.budgets())] if isinstance(lm, Policy) else []


def as_backend(lm: LM | str) -> Backend:
    """Return an LM as a backend that policies can wrap. A name is resolved to its LM. If the LM is
    no backend, or overrides one of the four methods of `LM`, the result is an adapter that calls
    these methods."""
    if isinstance(lm, str):
        from bae.lm.registry import resolve

        lm = resolve(lm)
    return lm if isinstance(lm, Backend) and _has_usual_methods(type(lm)) else LMAdapter(lm)


def innermost(backend: Backend) -> Backend:
    """Return the backend inside all policies. For a `Fallback`, follow its first LM."""
    while isinstance(backend, Policy):
        backend = backend.inner
    return backend


def all_innermost(backend: Backend) -> Iterator[Backend]:
    """Return every backend inside all policies."""
    if not isinstance(backend, Policy):
        yield backend
        return
    for inner in backend.inners:
        yield from all_innermost(inner)


def identity_of(backend: Backend) -> dict[str, Any]:
    """Return the model and the classes that identify a backend in a cache key. The key has the
    backend's settings too.

    The classes are the backend's class and the classes of policies outside bae, because such
    policies may change the prompt. For a class in `__main__`, the script's file replaces the module
    name.
    """
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
    """Return whether a backend inside all policies is an adapter. If so, bae calls the adapted LM's
    own `make` and `decide`."""
    return any(isinstance(inner, LMAdapter) for inner in all_innermost(backend))


def _has_usual_methods(cls: type[Backend]) -> bool:
    return all(
        getattr(cls, name) in [getattr(base, name) for base in (Backend, Policy, LMAdapter)]
        for name in ("make", "decide", "choose_type", "fill")
    )
