"""A line of LMs, of which the next is asked where one fails for a reason that the next may not
have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from bae.exceptions import BaeLMError, BudgetError, add_note, describe
from bae.failures import awaitable
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.policies.budget import budgets_in_force
from bae.lm.policies.policy import Policy, as_backend, identity_of
from bae.lm.requests import worth_retrying
from bae.usage import Restart, report, tell

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node
    from bae.usage import Usage

FallbackOn = int | str | type[Exception] | Callable[[Exception], bool]
"""An error after which the next LM is asked: its HTTP status, its code, its class, or a function
that says so. "refused" is an answer that is a refusal."""

LONGEST_SKIP: Final = 600.0
"""Seconds for which an LM is asked last at most, whatever its provider asks for."""

_REFUSED: Final = "refused"
_ALL_FAILED: Final = "bae-lm-all-failed"
_CODES: Final = frozenset(
    {
        "bae-lm-rate-limited",  # no money left is reported like that too, and is not retryable
        "bae-lm-rate-wait",
        "bae-lm-unavailable",
        "bae-lm-unreachable",
        "bae-lm-timeout",
    }
)
_NO_MONEY: Final = 402
_OF_PROVIDER: Final = frozenset({"bae-lm-unauthorized", "bae-lm-not-found"})
"""Errors that the next request to the same LM would have too, though no other LM is asked after
them by default."""


@dataclass(frozen=True, slots=True)
class FallbackStatistics:
    """How often an LM of a `Fallback` was `asked`, has `answered` and has `failed`, and for how
    many seconds more it is asked last."""

    model: str
    asked: int
    answered: int
    failed: int
    skipped_for: float


class _Line:
    """What is known of one LM of the line."""

    __slots__ = ("answered", "asked", "failed", "lm", "until")

    def __init__(self, lm: Backend) -> None:
        self.lm = lm
        self.asked = self.answered = self.failed = 0
        self.until = 0.0


class Fallback(Policy):
    """Asks the first LM, and the next one where it fails for a reason that the next may not have:
    `Fallback("anthropic", "openai:gpt-5-mini")`.

    The next LM is asked when a provider is overloaded, unreachable, too slow or broken, when a rate
    limit or the money is used up, and when a budget around that LM alone is. A wrong key, a wrong
    name, a request that the provider refuses, a prompt that is too long and an answer that does not
    fit are raised at once, or asked again: another LM would hide them. `on` adds to these errors:
    HTTP statuses, error codes, classes, functions, and "refused" for refusals.

    An LM that failed is asked after the others for `skip_for` seconds, or as long as its provider
    asks to wait; 0 asks it first each time. When all fail, `BaeLMError` with the code
    `bae-lm-all-failed` lists the error of each, and has them in `.failures`.

    Who answered is in the usage and the records of the run, and why others failed. Each request is
    charged to the budgets around it, whoever is asked. `clock` is for tests.
    """

    def __init__(
        self,
        first: LM | str,
        *others: LM | str,
        on: Iterable[FallbackOn] = (),
        skip_for: float = 30.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not others:
            raise TypeError("Fallback(lm): give two LMs or more, as Fallback(first, second)")
        if not isinstance(cast(object, skip_for), int | float) or not (
            isfinite(skip_for) and skip_for >= 0
        ):
            raise ValueError(f"Fallback(skip_for={skip_for!r}): give 0 or more seconds")
        super().__init__(first)
        self._line = [_Line(self.inner), *(_Line(as_backend(lm)) for lm in others)]
        self._on = tuple(map(_checked, (on,) if isinstance(on, int | str) else on))
        self.skip_for = skip_for
        self._clock = clock

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the LMs in turn until one answers."""
        if not self.runs_tools and prompt.question.scene.toolbox is not None:
            self._check_tools()
        failures: list[tuple[Backend, Exception]] = []
        order = self._order()
        for each, following in zip(order, [*order[1:], None], strict=True):
            each.asked += 1
            try:
                answer = await awaitable(each.lm.request(prompt), each.lm, "request")
                if answer.stop != _REFUSED or _REFUSED not in self._on or following is None:
                    each.answered += 1
                    each.until = 0.0
                    return answer
                report(answer.usage)  # the answer that is returned reports its own alone
                error: Exception = _refusal(each.lm, answer)
            except Exception as raised:
                if not self._falls_back(raised):
                    for lm, before in failures:
                        add_note(raised, f"asked after {lm!r} had failed: {describe(before)}")
                    raise
                error = raised
                self._skip(each, raised)
            each.failed += 1
            failures.append((each.lm, error))
            if following is not None:
                tell(Restart(error, 0.0, following.lm.model or type(following.lm).__name__))
        raise _all_failed(failures)

    def statistics(self) -> tuple[FallbackStatistics, ...]:
        """How often each LM was asked, in their order."""
        now = self._clock()
        return tuple(
            FallbackStatistics(
                each.lm.model, each.asked, each.answered, each.failed, max(0.0, each.until - now)
            )
            for each in self._line
        )

    def _check_tools(self) -> None:
        if any(lm.runs_tools for lm in self.inners):
            raise BaeLMError(
                f"{self!r} has LMs that call tools by themselves beside backends, for which bae"
                " calls them: none could continue the conversation of another",
                code="bae-tools-lm",
                sent=False,
                fix="give a Fallback of backends alone to nodes with tools",
            )

    def _order(self) -> list[_Line]:
        """The LMs in the order in which they are asked: those that failed lately come last."""
        now = self._clock()
        return sorted(self._line, key=lambda each: each.until > now)

    def _falls_back(self, error: Exception) -> bool:
        if isinstance(error, BudgetError):
            # A budget around this policy would refuse the others too.
            return error.budget not in budgets_in_force()
        if failures := _failures_inside(error):
            return any(map(self._falls_back, failures))
        return may_pass_elsewhere(error) or any(_matches(error, each) for each in self._on)

    def _skip(self, line: _Line, error: Exception) -> None:
        code = error.code if isinstance(error, BaeLMError) else ""
        if self.skip_for and (may_pass_elsewhere(error) or code in _OF_PROVIDER):
            wanted = min(getattr(error, "retry_after", None) or 0.0, LONGEST_SKIP)
            line.until = self._clock() + max(self.skip_for, wanted)

    # What the LMs have in common

    @property
    def inners(self) -> tuple[Backend, ...]:
        """The LMs, in the order in which they are asked."""
        return tuple(each.lm for each in self._line)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The class, model and settings of each LM: a cache around this policy has answers of its
        own, whoever gave them."""
        return {"fallback": [{**identity_of(lm), "settings": lm.settings} for lm in self.inners]}

    @property
    def secrets(self) -> Iterable[str]:
        """Keys that the LMs send."""
        return [secret for lm in self.inners for secret in lm.secrets]

    @property
    def answers_unions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether all can be held to a schema with alternatives."""
        return all(lm.answers_unions for lm in self.inners)

    @property
    def one_call(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether all may choose and fill in one request."""
        return all(lm.one_call for lm in self.inners)

    @property
    def free(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether requests to all of them cost nothing."""
        return all(lm.free for lm in self.inners)

    @property
    def calls_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether all have native tool calls. Otherwise all call tools by structured output, so
        that any of them can continue a conversation."""
        return all(lm.calls_tools for lm in self.inners)

    @property
    def runs_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """Whether bae has the conversation with tools for all of them."""
        return all(lm.runs_tools for lm in self.inners)

    @property
    def native_tools(self) -> frozenset[str] | None:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The tools that the providers of all of them run."""
        found: frozenset[str] | None = None
        for lm in self.inners:
            known = lm.native_tools
            found = known if found is None or known is None else found & known
        return found

    @property
    def takes_files(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The kinds of files that all of them take."""
        first, *others = (lm.takes_files for lm in self.inners)
        return first.intersection(*others)

    @property
    def context_window(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The smallest that is known."""
        known = [lm.context_window for lm in self.inners if lm.context_window is not None]
        return min(known, default=None)

    @property
    def attempts(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """The most that one of them has."""
        return max(lm.attempts for lm in self.inners)

    @property
    def retries(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - read only here
        """How many more times all are asked in turn where all have failed: the least that one of
        them has, which is 0 with `Retry` inside."""
        return min(lm.retries for lm in self.inners)

    def least_cost(self, usage: Usage) -> float | None:
        """What a request costs at least; None where the cost of one of them will not be known."""
        costs = [lm.least_cost(usage) for lm in self.inners]
        return None if None in costs else min(cost for cost in costs if cost is not None)

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """Those of `fillable` that may be filled by the answer that chooses, by all of them."""
        for lm in self.inners:
            fillable = lm.at_once(previous, fillable)
        return fillable

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge what a run has used before to the budgets inside."""
        for lm in self.inners:
            lm.restore(run_id, used, seconds)

    async def reject(self, prompt: Prompt) -> None:
        """Pass on that the answer to this prompt was not valid."""
        for lm in self.inners:
            await lm.reject(prompt)

    async def aclose(self) -> None:
        """Close all LMs. The first error is raised when all are closed."""
        errors: list[Exception] = []
        for lm in self.inners:
            try:
                await lm.aclose()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.inners))})"


def may_pass_elsewhere(error: Exception) -> bool:
    """Whether a request that failed with this error may be answered by another LM: by its type, its
    code and its status, as the table in `docs/policies.md` has it."""
    if worth_retrying(error) or any(map(may_pass_elsewhere, _failures_inside(error))):
        return True
    return isinstance(error, BaeLMError) and (error.code in _CODES or error.status == _NO_MONEY)


def _failures_inside(error: Exception) -> list[Exception]:
    """The errors of the LMs of a `Fallback` inside, where all have failed."""
    if not isinstance(error, BaeLMError) or error.code != _ALL_FAILED:
        return []
    return [each for each in error.failures if isinstance(each, Exception)]


def _matches(error: Exception, wanted: FallbackOn) -> bool:
    if isinstance(wanted, int):
        return getattr(error, "status", None) == wanted
    if isinstance(wanted, str):
        return getattr(error, "code", None) == wanted
    if isinstance(wanted, type):
        return isinstance(error, wanted)
    return bool(wanted(error))


def _checked(wanted: FallbackOn) -> FallbackOn:
    """What `on` has. Raises where no error can be meant by it."""
    given: Any = wanted
    match given:
        case bool():
            is_right = False
        case int():
            is_right = 300 <= given <= 599
        case str():
            is_right = given == _REFUSED or given.startswith("bae-")
        case type():
            is_right = issubclass(given, Exception)
        case _:
            is_right = callable(given)
    if not is_right:
        raise ValueError(
            f'Fallback(on={given!r}): give HTTP statuses, codes of errors as "bae-lm-not-found", '
            'classes of errors, functions that say so of an error, or "refused"'
        )
    return wanted


def _refusal(lm: Backend, answer: Answer) -> BaeLMError:
    return BaeLMError(
        f"{lm!r} refused to answer: {' '.join(answer.text.split())[:500] or 'it gave no reason'}",
        code="bae-fill-refused",
    )


def _all_failed(failures: Sequence[tuple[Backend, Exception]]) -> BaseException:
    """The error where no LM has answered."""
    errors = [error for _, error in failures]
    waits = [getattr(error, "retry_after", None) for error in errors if worth_retrying(error)]
    said = "; ".join(f"{number}. {_line(*each)}" for number, each in enumerate(failures, 1))
    return BaeLMError(
        f"none of {len(failures)} LMs has answered: {said}",
        code=_ALL_FAILED,
        retryable=bool(waits),
        retry_after=min((wait for wait in waits if wait), default=None) if all(waits) else None,
        sent=any(getattr(error, "sent", True) for error in errors),
        failures=errors,
        fix="see .failures for each error; bae.lm.Retry(Fallback(…)) asks all of them again",
    )


def _line(lm: Backend, error: Exception) -> str:
    said = error.message if isinstance(error, BaeLMError | BudgetError) else describe(error)
    return f"{lm!r}: {said}"
