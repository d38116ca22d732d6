"""Filling and choosing, written once on top of a backend's one method: ask, judge the answer, keep
what is valid and ask again for the rest, a bounded number of times. Every attempt is told to those
who watch the run, and its usage is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bae.draft import from_resolved, with_resolved
from bae.lm.answers import Answer, build, choice_failed, correction, fill_failed, read, text_of
from bae.lm.prompts import Choice, Prompt, Turn, choice_of, fill_prompt
from bae.lm.requests import ask
from bae.lm.schemas import asked_fields
from bae.usage import Attempt, Verdict, tell

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.node import Node

    NodeOrEnd = type[Node] | type[None]

N = TypeVar("N", bound="Node")


async def fill(
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


async def choose(
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
                node = await fill(backend, target, {}, target.__name__, source, first, tried)
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
