"""Choosing and filling, written once on top of a backend's one method: ask, judge the answer, keep
what is valid and ask again for the rest, a bounded number of times. Every answer is told to
whoever watches the run, and what it used is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bae.draft import from_resolved, with_resolved
from bae.usage import Attempt, Verdict, report, tell

if TYPE_CHECKING:
    from bae.lm.backend import Answer, Backend, Prompt, Turn
    from bae.node import Node

    Chosen = type[Node] | type[None]

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

    `first` is an answer that is there already, from a choice that was filled at once, with the
    values in it, and `before` are the attempts at that choice: they count.
    """
    from bae.lm.prompts import fill_prompt
    from bae.lm.reading import build, read
    from bae.lm.schemas import asked_fields
    from bae.lm.verdicts import fill_failed, turn

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
                tell(_attempt(number, prompt, answer, "valid", ()))
                return with_resolved(answer.value, resolved)
            got = read(answer)
            values, verdict, errors = got.value, got.verdict, got.errors
        cause = None
        if values is not None:
            kept |= {name: values[name] for name in wanted if name in values}
            built = build(target, asked, kept, resolved)
            if built.node is not None:
                tell(_attempt(number, prompt, answer, "valid", ()))
                return built.node
            verdict = "cut-off" if answer.stop == "cut-off" else "invalid"
            errors, cause, wanted = built.errors, built.cause, built.wrong
            kept = {name: value for name, value in kept.items() if name not in wanted}
        tried.append(_attempt(number, prompt, answer, verdict, errors))
        tell(tried[-1])
        await backend.reject(prompt)
        if number > backend.attempts or verdict == "refused":
            details = cause.errors(include_url=False) if cause is not None else ()
            raise fill_failed(target, tried, details, cause)
        turns = (*turns, turn(answer, verdict, errors, wanted))
    raise AssertionError  # the loop ends in a return or a raise


async def choose(
    backend: Backend,
    types: Sequence[Chosen],
    source: Node | None = None,
    *,
    context: Mapping[str, Any] | None = None,
    fillable: Sequence[type[Node]] = (),
) -> tuple[Chosen, Node | None]:
    """One of `types`, chosen by name, and the node itself where it could be filled in the same
    call. One alone needs no call."""
    from bae.lm.prompts import choice_prompt, names_of
    from bae.lm.reading import read
    from bae.lm.verdicts import choice_failed, turn

    if not types:
        raise ValueError("there is nothing to choose from: give choose_type one type or more")
    if len(types) == 1:
        return types[0], None
    names = names_of(types)
    at_once = filled_at_once(backend, types, fillable, source)
    tried: list[Attempt] = []
    turns: tuple[Turn, ...] = ()
    for number in count(1):
        prompt = choice_prompt(names, at_once, source, context, turns)
        answer = await ask(backend, prompt)
        got = read(answer)
        verdict, errors = got.verdict, got.errors
        if got.value is not None:
            # Where fields can come with it, a choice is one level down: see `route_schema`.
            inner: Any = got.value.get("answer") if at_once else got.value
            name: Any = cast(dict[str, Any], inner).get("choice") if _is_object(inner) else None
            chosen = names.get(name) if isinstance(name, str) else None
            if chosen is not None and chosen in at_once:
                target: type[Node] = chosen
                fields: Any = inner.get("fields", {})
                values = cast(dict[str, Any], fields) if _is_object(fields) else None
                first = prompt, answer, values
                node = await fill(backend, target, {}, target.__name__, source, first, tried)
                return target, node
            if chosen is not None:
                tell(_attempt(number, prompt, answer, "valid", ()))
                return chosen, None
            verdict = "cut-off" if answer.stop == "cut-off" else "invalid"
            errors = (f"choice: {repr(name)[:200]} is not one of {', '.join(names)}",)
            if at_once and not _is_object(inner):
                errors = ("answer: there is no such object, and the choice belongs into it",)
        tried.append(_attempt(number, prompt, answer, verdict, errors))
        tell(tried[-1])
        await backend.reject(prompt)
        if number > backend.attempts or verdict == "refused":
            raise choice_failed(names, source, tried)
        turns = (*turns, turn(answer, verdict, errors, ()))
    raise AssertionError  # the loop ends in a return or a raise


def filled_at_once(
    backend: Backend,
    types: Sequence[Chosen],
    fillable: Sequence[type[Node]],
    source: Node | None,
) -> tuple[type[Node], ...]:
    """The types whose fields can be asked for together with the choice: nothing that the model is
    to see has to be looked up for them first, and there is something to ask for."""
    from bae.lm.schemas import asked_fields
    from bae.plan import plan_of

    if not backend.one_call or not backend.answers_unions:
        return ()
    return tuple(
        cls
        for cls in backend.at_once(source, fillable)
        if cls in types and asked_fields(cls) and not plan_of(cls, strict=True).context
    )


async def ask(backend: Backend, prompt: Prompt) -> Answer:
    """Ask once; send a request that failed again where that may help. What the answer used is
    reported here, and what failed where it was sent."""
    from bae.lm.policies.charging import charged, in_time
    from bae.lm.policies.retry import retrying

    async def send() -> Answer:
        return await charged(backend, prompt)

    answer = await in_time(lambda: retrying(send, backend.retries, first=backend.first_wait))
    # An LM that asks again by itself has judged its answers, too.
    used = replace(answer.usage, attempts=answer.usage.attempts or 1)
    report(used)
    return replace(answer, usage=used)


def _attempt(
    number: int, prompt: Prompt, answer: Answer, verdict: Verdict, errors: tuple[str, ...]
) -> Attempt:
    from bae.lm.reading import text_of

    return Attempt(number, text_of(answer), verdict, errors, answer.usage, prompt.flat())


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
