"""The tool loop: a conversation in which the model calls tools until it answers. The loop is the
same for native tool calls and for tool calls by structured output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bae.failures import find_tools_error
from bae.lm.answers import (
    Wrong,
    attempt,
    build,
    correction,
    fill_error,
    no_text,
    read_fill,
    read_json,
)
from bae.lm.policies.budget import estimate_tokens
from bae.lm.requests import UNPARSED, Answer, ask, can_be_stored
from bae.prompts.messages import CallPart, Prompt, Question, ResultPart
from bae.prompts.questions import fill_prompt, text_form
from bae.prompts.tools import WRAPPER, ToolPrompts, action_text, read_action
from bae.prompts.values import list_fields_to_fill
from bae.unicode import readable
from bae.usage import Discard, Usage, tell

if TYPE_CHECKING:
    from bae.language_model import Scene
    from bae.lm.backend import Backend
    from bae.node import Node
    from bae.toolbox import Round, Toolbox
    from bae.usage import Attempt

N = TypeVar("N", bound="Node")


async def fill_with_tools(
    backend: Backend,
    target: type[N],
    resolved: Mapping[str, Any],
    instruction: str,
    previous: Node | None,
    scene: Scene,
    box: Toolbox,
) -> N:
    """Let the model call tools until it fills a `target`, and return the `target`."""
    if (refused := find_tools_error(backend, box.plan)) is not None:
        raise refused
    asked, is_native = list_fields_to_fill(target), backend.calls_tools
    question = fill_prompt(target, asked, resolved, instruction, previous, scene.offering(None))
    await box.open(lambda: question.text)
    prompts = ToolPrompts(question, box.specs, is_native=is_native, takes_files=backend.takes_files)
    wrong_attempts: list[Attempt] = []
    thoughts: list[str] = []
    while True:
        round_ = box.open_round
        if round_ is None:
            must_answer = box.must_answer(is_native)
            box.check_limit()
            if must_answer and not asked:
                node = await _finish(target, resolved, scene, box)
                if node is not None:
                    return node
                continue
            await box.prepare_round()
            prompt = _next_prompt(backend, box, prompts, must_answer)
            answer = await ask(backend, prompt)
            thoughts += [answer.thinking] if answer.thinking else []
            text = answer.text
            if not text and answer.value is not UNPARSED:
                text = attempt(1, prompt, answer).answer
            round_ = _record_round(box, replace(answer, text=text), is_native, must_answer)
        else:  # the run is resumed in this round
            must_answer = box.must_answer(is_native, before=round_)
            prompt = prompts.next(box, must_answer, rounds=box.rounds[: round_.number - 1])
            text = round_.text
        if round_.calls:
            tell(Discard())
            await box.run_calls(round_, not must_answer)
            if box.wrong_rounds > backend.attempts:
                raise box.wrong_too_often(backend.attempts)
            continue
        final = Answer(text, Usage(), round_.stop, thinking="\n\n".join(thoughts))
        thoughts.clear()
        # The JSON of a structured round has one property, WRAPPER, around the call or the answer.
        # The last round asks for a field of this name without the wrapper.
        is_plain = is_native or (must_answer and asked == (WRAPPER,))
        fields = _read_values(final, target, asked, is_plain, box)
        node: Any = fields
        if not isinstance(fields, Wrong):
            values = {**resolved, box.field.name: box.calls}
            filled = {name: fields[name] for name in asked if name in fields}
            node = build(target, asked, filled, values, scene)
        exchange = _last_exchange(prompt)
        if not isinstance(node, Wrong):
            tell(attempt(round_.number, exchange, final))
            if await box.accept(round_, node):
                return node
            continue
        wrong_attempts.append(attempt(round_.number, exchange, final, node))
        tell(wrong_attempts[-1])
        await backend.reject(prompt)
        form = text_form(target)
        turn = (
            correction(wrong_attempts[-1], (), form) if form else correction(wrong_attempts[-1], ())
        )
        box.reply(round_, turn.correction)
        if node.verdict == "refused" or box.wrong_rounds > backend.attempts:
            raise fill_error(target, wrong_attempts, node.cause)


def _next_prompt(backend: Backend, box: Toolbox, prompts: ToolPrompts, must_answer: bool) -> Prompt:
    """Return the next request. If the request is longer than the model or `Tools(context=…)`
    allows, cut the results of the oldest rounds."""
    prompt, cut = prompts.next(box, must_answer), box.cut
    bounds = [
        tokens for tokens in (box.marker.context, backend.context_window) if tokens is not None
    ]
    if not bounds:
        return prompt
    most = min(bounds)
    uncut = [round_.number for round_ in box.rounds[:-1] if round_.calls and round_.number > cut]
    while (size := estimate_tokens(prompt)) > most:
        if not uncut:
            raise box.error(
                f"the conversation has about {size:,} tokens, and the limit is {most:,}; the "
                "results of earlier rounds are cut already",
                "bound results with Tool(…, result_limit=…), raise Tools(…, context=…), or use a "
                "model with a larger window",
                code="bae-tools-context",
            )
        cut = uncut.pop(0)
        prompt = prompts.next(box, must_answer, cut)
    if cut > box.cut:
        box.cut_results(cut)
    return prompt


def _record_round(box: Toolbox, answer: Answer, is_native: bool, must_answer: bool) -> Round:
    """Record an answer as a round, and return the round."""
    text = readable(answer.text, 0)  # a lone surrogate cannot be stored or sent back
    if is_native:
        ran = tuple((_storable(call), _readable(result)) for call, result in answer.ran)
        if answer.stop != "end":  # may end in half a call, which every provider would refuse
            return box.take(text, (), None, answer.usage, ran, answer.stop)
        calls = tuple(map(_storable, answer.calls))
        return box.take(text, calls, answer.echo, answer.usage, ran)
    action = None if must_answer or answer.stop != "end" else _parse_action(answer.text, box)
    if isinstance(action, CallPart):
        action = _storable(action)
        call_text = action_text(action, box.specs, list_fields_to_fill(box.plan.node))
        return box.take(call_text, (action,), None, answer.usage)
    return box.take(text, (), None, answer.usage, (), answer.stop)


def _storable(call: CallPart) -> CallPart:
    """Return a copy of a call that can be stored and sent back. If the arguments cannot be stored,
    a text replaces them, and the model gets the error that they are no JSON object."""
    arguments = call.arguments
    if isinstance(arguments, str):
        arguments = readable(arguments, 0)
    else:
        is_storable = isinstance(cast(object, arguments), Mapping) and can_be_stored(arguments)
        arguments = dict(arguments) if is_storable else "(they cannot be stored)"
    return CallPart(call.id, readable(call.name), arguments)


def _readable(result: ResultPart) -> ResultPart:
    return replace(result, result=readable(result.result, 0))


def _parse_action(text: str, box: Toolbox) -> CallPart | dict[str, Any] | str | None:
    """Return the action in a round of structured output: a call, an answer, or an error. None if
    the text is no such round."""
    value = read_json(Answer(text))
    if isinstance(value, Wrong) or value.keys() != {WRAPPER}:
        return None
    return read_action(value, box.specs, list_fields_to_fill(box.plan.node))


def _read_values(
    answer: Answer, target: type[Node], asked: tuple[str, ...], is_plain: bool, box: Toolbox
) -> dict[str, Any] | Wrong:
    """Return the field values in an answer. If `is_plain`, the answer is not in the wrapper of a
    structured round."""
    if not asked:
        return {} if answer.stop == "end" else no_text(answer)
    form = text_form(target)
    action = None if is_plain else _parse_action(answer.text, box)
    if isinstance(action, str):
        return Wrong("invalid", (action,), asked)
    if isinstance(action, CallPart):
        return Wrong("invalid", ("no tool can be called any more",), asked)
    if action is not None:
        if not form:
            return action
        answer = replace(answer, text=str(action.get("text", "")))
    question = Question(target=target, fields=asked)
    return read_fill(Prompt("", (), None if form else {}, "", question), answer)


async def _finish(
    target: type[N], resolved: Mapping[str, Any], scene: Scene, box: Toolbox
) -> N | None:
    """Build a node that has tool calls and no fields for the LLM, once the LLM may call no more
    tools. Return None if the node is not accepted."""
    node = build(target, (), {}, {**resolved, box.field.name: box.calls}, scene)
    if isinstance(node, Wrong):
        raise box.error("; ".join(node.errors), f"fix the validators of {target.__name__}")
    if await box.accept(box.rounds[-1], node):
        return node
    if box.is_over:
        raise box.over_limit()
    return None


def _last_exchange(prompt: Prompt) -> Prompt:
    """Return the prompt with only the last messages to the model, because the records have the
    earlier rounds. Messages of the model at the end are left out too: a resumed conversation may
    have an answer there, which the records have as well."""
    conversation = prompt.conversation
    while conversation[-1].role == "assistant":
        conversation = conversation[:-1]
    last = max((n for n, m in enumerate(conversation) if m.role == "assistant"), default=-1)
    return replace(prompt, conversation=conversation[last + 1 :] or conversation)
