"""What a backend is: one method, from a prompt with a JSON schema to an answer with its usage.
Filling and choosing are written once on top of it: ask, judge the answer, keep what is valid and
ask again for the rest, a bounded number of times. Policies wrap it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from bae.draft import from_resolved, with_resolved
from bae.language_model import RoutingLM
from bae.lm.answers import (
    UNPARSED,
    Answer,
    build,
    choice_failed,
    correction,
    fill_failed,
    read,
    text_of,
)
from bae.lm.prompts import Choice, FewShot, Prompt, Question, Turn, choice_of, fill_prompt
from bae.lm.requests import ask, send
from bae.lm.schemas import asked_fields
from bae.plan import plan_of
from bae.usage import Attempt, Verdict, tell

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node
    from bae.usage import Usage

    NodeOrEnd = type[Node] | type[None]

__all__ = ["UNPARSED", "Answer", "Backend", "FewShot", "Prompt", "Question", "Turn"]

N = TypeVar("N", bound="Node")


class Backend(RoutingLM):
    """A language model. Subclass it and write `answer`, and that alone: the four methods of
    `bae.LM` are written on top of it. Policies ask a backend that overrides these through them, as
    they ask an LM that is no backend.
    """

    model: str = ""
    """The model that answers, as its provider names it."""

    answers_unions: bool = True
    """Whether the model can be held to a schema with alternatives, for one-call routing."""

    attempts: int = 2
    """How many more times a wrong answer is asked for again, with its errors."""

    retries: int = 2
    """How many more times a failed request is sent, where that can help. `bae.lm.Retry` around the
    backend has more options."""

    first_wait: float = 0.5
    """Seconds until a failed request is first sent again; later waits are longer."""

    one_call: bool = True
    """Whether a choice and the filling of what is chosen may be one request."""

    free: bool = False
    """Whether requests cost nothing, failed ones too, as with a model on this machine."""

    def __init__(self, *, attempts: int = 2, retries: int = 2, one_call: bool = True) -> None:
        for name, value in (("attempts", attempts), ("retries", retries)):
            if type(value) is not int or value < 0:
                raise ValueError(f"{type(self).__name__}({name}={value!r}): give 0 or more")
        self.attempts = attempts
        self.retries = retries
        self.one_call = one_call

    @abstractmethod
    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the model once.

        Raise `BaeLMError`, with `retryable` and `retry_after` where they are known, when there is
        no answer: with `sent=False` where nothing was sent, and `usage` where it is known. A wrong
        answer is no error here: return it as it is.
        """

    async def request(self, prompt: Prompt) -> Answer:
        """Have `answer` send one request, charged to the budgets in force. Policies and the methods
        below ask through this."""
        return await send(self, prompt)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What, besides the prompt and the model, changes answers: for cache keys. JSON values."""
        return {}

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs at least, in dollars; None where its cost will not
        be known. A budget that limits cost asks before the request is sent. Override it in a
        backend that reports the cost of its answers, or costs nothing."""
        from bae.lm.prices import cost_of

        return cost_of(self.model, usage) if self.model and not self.free else 0.0

    def at_once(self, source: Node | None, fillable: Sequence[type[Node]]) -> Sequence[type[Node]]:
        """Those of `fillable` that may be filled by the answer that chooses the successor of
        `source`: all of them here, and fewer where some are asked for in another way."""
        return fillable

    def pinned(self, lm: LM) -> LM:
        """The LM that is pinned to a node, as it is asked in a run with this LM: `lm` itself here,
        and `lm` with the same learned prompts where this has some. The same object each time."""
        return lm

    @property
    def keeps_resolved(self) -> bool:
        """Whether `fill` leaves the fields alone that were resolved: not where it is overridden."""
        return type(self).fill is Backend.fill

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge what a run has used before to the budgets around this LM: none here."""

    async def reject(self, prompt: Prompt) -> None:
        """Called when the answer to this prompt was not valid: a cache forgets it."""

    async def aclose(self) -> None:
        """Close connections. When the backend is used again, it opens new ones."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self.model) if self.model else ''})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Have the model fill the plain fields of `target`; wrong ones are asked for again."""
        return await ask_to_fill(self, target, resolved, instruction, source)

    async def choose_type(
        self, types: Sequence[NodeOrEnd], context: Mapping[str, Any]
    ) -> NodeOrEnd:
        """Have the model choose one of `types` by name; a single type needs no call."""
        chosen, _ = await ask_to_choose(self, types, context=context)
        return chosen

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        return await self.fill(target, {}, target.__name__, node)

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        plan = plan_of(type(node), strict=True)
        chosen, filled = await self.route(node, plan.offered, plan.successors)
        if chosen is NoneType or filled is not None:
            return filled
        return await self.make(node, chosen)

    async def route(
        self, node: Node, types: Sequence[NodeOrEnd], fillable: Sequence[type[Node]] = ()
    ) -> tuple[NodeOrEnd, Node | None]:
        """Choose one of `types` as the successor of `node`, and fill it in the same call where it
        is among `fillable` and the model can. The second value is None where the chosen one is
        still to be filled."""
        cls = type(self)
        if cls.choose_type is not Backend.choose_type:  # it has its own way to choose
            return await self.choose_type(types, dict(node)), None
        if cls.fill is not Backend.fill:
            fillable = ()
        return await ask_to_choose(self, types, node, fillable=fillable)


async def ask_to_fill(
    backend: Backend,
    target: type[N],
    resolved: Mapping[str, Any],
    instruction: str,
    source: Node | None,
    first: tuple[Prompt, Answer, dict[str, Any] | None] | None = None,
    before: Sequence[Attempt] = (),
) -> N:
    """A `target` whose plain fields the model has filled.

    `first` is an answer that is there already, from a choice that came filled, with the values in
    it, and `before` are the attempts at that choice: they count.
    """
    asked = asked_fields(target)
    if not asked:
        return from_resolved(target, resolved)
    kept: dict[str, Any] = {}
    wanted = asked
    tried = list(before)
    turns: tuple[Turn, ...] = ()
    for number in count(len(tried) + 1):
        if first is not None:
            prompt, answer, values = first
            verdict: Verdict = "cut-off" if answer.stop == "cut-off" else "invalid"
            errors: tuple[str, ...] = ("fields: they are no object",)
            first = None
        else:
            prompt = fill_prompt(target, wanted, resolved, instruction, source, turns)
            answer = await ask(backend, prompt)
            if type(answer.value) is target:  # from an LM that builds nodes by itself
                tell(attempt(number, prompt, answer))
                return with_resolved(answer.value, resolved)
            got = read(answer)
            values, verdict, errors = got.value, got.verdict, got.errors
        cause = None
        if values is not None:
            kept |= {name: values[name] for name in wanted if name in values}
            built = build(target, asked, kept, resolved)
            if built.node is not None:
                tell(attempt(number, prompt, answer))
                return built.node
            verdict = "cut-off" if answer.stop == "cut-off" else "invalid"
            errors, cause, wanted = built.errors, built.cause, built.wrong
            kept = {name: value for name, value in kept.items() if name not in wanted}
        tried.append(attempt(number, prompt, answer, verdict, errors))
        tell(tried[-1])
        await backend.reject(prompt)
        if number > backend.attempts or verdict == "refused":
            details = cause.errors(include_url=False) if cause is not None else ()
            raise fill_failed(target, tried, details, cause)
        turns = (*turns, correction(answer, verdict, errors, wanted))
    raise AssertionError  # the loop ends in a return or a raise


async def ask_to_choose(
    backend: Backend,
    types: Sequence[NodeOrEnd],
    source: Node | None = None,
    *,
    context: Mapping[str, Any] | None = None,
    fillable: Sequence[type[Node]] = (),
) -> tuple[NodeOrEnd, Node | None]:
    """One of `types`, chosen by name, and the node itself where it came filled. A single type needs
    no call."""
    if not types:
        raise ValueError("there is nothing to choose from: give choose_type one type or more")
    if len(types) == 1:
        return types[0], None
    choice = choice_with(backend, types, fillable, source)
    names, filled = choice.names, choice.fillable
    tried: list[Attempt] = []
    turns: tuple[Turn, ...] = ()
    for number in count(1):
        prompt = choice.prompt(source, context, turns)
        answer = await ask(backend, prompt)
        got = read(answer)
        verdict, errors = got.verdict, got.errors
        if got.value is not None:
            # Where fields can come with it, a choice is one level down: see `route_schema`.
            inner: Any = got.value.get("answer") if filled else got.value
            is_object = isinstance(inner, dict)
            name: Any = cast(dict[str, Any], inner).get("choice") if is_object else None
            chosen = names.get(name) if isinstance(name, str) else None
            if chosen is not None and chosen in filled:
                target: type[Node] = chosen
                fields: Any = inner.get("fields", {})
                values = cast(dict[str, Any], fields) if isinstance(fields, dict) else None
                first = prompt, answer, values
                node = await ask_to_fill(backend, target, {}, target.__name__, source, first, tried)
                return target, node
            if chosen is not None:
                tell(attempt(number, prompt, answer))
                return chosen, None
            verdict = "cut-off" if answer.stop == "cut-off" else "invalid"
            errors = (f"choice: {repr(name)[:200]} is not one of {', '.join(names)}",)
            if filled and not is_object:
                errors = ("answer: there is no such object, and the choice belongs into it",)
        tried.append(attempt(number, prompt, answer, verdict, errors))
        tell(tried[-1])
        await backend.reject(prompt)
        if number > backend.attempts or verdict == "refused":
            raise choice_failed(names, source, tried)
        turns = (*turns, correction(answer, verdict, errors, ()))
    raise AssertionError  # the loop ends in a return or a raise


def choice_with(
    backend: Backend,
    types: Sequence[NodeOrEnd],
    fillable: Sequence[type[Node]],
    source: Node | None,
) -> Choice:
    """The choice among `types` as a backend is asked for it: with the fields of those in `fillable`
    that the model can answer in the same call."""
    if not fillable or not backend.one_call or not backend.answers_unions:
        return choice_of(tuple(types), ())
    return choice_of(tuple(types), tuple(backend.at_once(source, fillable)))


def attempt(
    number: int,
    prompt: Prompt,
    answer: Answer,
    verdict: Verdict = "valid",
    errors: tuple[str, ...] = (),
) -> Attempt:
    """The record of an answer that was judged."""
    return Attempt(number, text_of(answer), verdict, errors, answer.usage, prompt.flat())
