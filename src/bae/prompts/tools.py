"""Prompts of a conversation with tools. The rounds so far are messages. For models without native
tool calls, the question lists the tools, and one schema allows a call or the answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from bae.files import File, find_visible, in_use
from bae.prompts.files import labeled
from bae.prompts.messages import (
    CallPart,
    FilePart,
    Message,
    Part,
    Prompt,
    ResultPart,
    TextPart,
    replace_blank,
)
from bae.prompts.questions import STEP, system_text, text_form
from bae.prompts.schemas import changed, fill_schema, outline
from bae.prompts.values import text_of_answer, text_of_json

if TYPE_CHECKING:
    from bae.node import Node
    from bae.prompts.messages import ToolSpec
    from bae.toolbox import Round, Toolbox
    from bae.tools import ToolCall

_CALL = "Call the tools that you need, and read their results. When you know enough, answer with"
TOOL_SYSTEM: Final = f"{STEP} {_CALL} one JSON object that fits the schema, and with nothing else."
TOOL_TEXT_SYSTEM: Final = f"{STEP} {_CALL} the text that is to be made, and with nothing else."
TOOL_ONLY_SYSTEM: Final = f"{STEP} {_CALL} a few words that say what you did."
STRUCTURED_SYSTEM: Final = (
    f"{STEP} Answer with one JSON object that fits the schema, and with nothing else: a call of a "
    "tool, whose result you will be told, or, when you know enough, the answer."
)
NO_RESULTS: Final = "no results"
WRAPPER: Final = "next_step"
"""The only property of a structured answer. The alternatives are below this property, because some
providers do not accept alternatives at the top of a schema."""


def result_text(call: ToolCall, limit: int) -> str:
    """Return the result of a call as text for the model. A text over `limit` characters is cut
    after a list item or a line. A note at the end then has the sizes before and after the cut."""
    if call.error is not None:
        return _cut_lines(call.error, limit)
    value = call.result
    if value is None:
        return "done"
    if isinstance(value, str | list | dict) and not value:
        return NO_RESULTS
    if isinstance(value, str):
        return _cut_lines(value, limit)
    text = text_of_json(value)
    if len(text) <= limit:
        return text
    if isinstance(value, list):
        return _cut_items(cast("list[Any]", value), len(text), limit)
    return _cut_lines(text, limit)


def _cut_lines(text: str, limit: int) -> str:
    """Return the beginning of a text, cut after a line where possible, with a note on how much is
    shown."""
    if len(text) <= limit:
        return text
    shown_text = text[:limit]
    line = shown_text.rfind("\n")
    if line > limit // 2:
        shown_text = shown_text[:line]
    return f"{shown_text}\n[cut: {len(shown_text):,} of {len(text):,} characters are shown]"


def _cut_items(items: list[Any], size: int, limit: int) -> str:
    """Return as many items of a list as fit the limit, with a note on how many items are shown."""
    shown_items: list[str] = []
    characters_left = limit
    for item in items:
        text = text_of_json(item)
        characters_left -= len(text) + 1
        if characters_left < 0:
            break
        shown_items.append(text)
    if not shown_items:
        return _cut_lines(text_of_json(items), limit)
    return (
        f"[{','.join(shown_items)}]\n[cut: {len(shown_items):,} of {len(items):,} items are shown, "
        f"{limit - characters_left:,} of {size:,} characters]"
    )


class ToolPrompts:
    """The prompts of one conversation with tools. Each prompt begins with the messages of the
    prompt before, unchanged, unless results are cut."""

    def __init__(
        self,
        question: Prompt,
        specs: Sequence[ToolSpec],
        *,
        is_native: bool,
        takes_files: Collection[str] = (),
    ) -> None:
        target = cast("type[Node]", question.question.target)
        fields = question.question.fields
        self.is_native = is_native
        self._takes_files = takes_files
        self._question, self._form = question, text_form(target)
        if is_native:
            system = TOOL_TEXT_SYSTEM if self._form else TOOL_SYSTEM if fields else TOOL_ONLY_SYSTEM
            schema = question.schema if fields else None
            self.first = replace(question, schema=schema, tools=tuple(specs))
        else:
            system, form = STRUCTURED_SYSTEM, self._form
            text = question.text.removesuffix(form).rstrip() if form else question.text
            self.first = replace(
                question.with_question(f"{text}\n\n{tools_text(specs)}"),
                schema=_make_round_schema(target, fields, bool(form), specs),
            )
        self.first = replace(self.first, system=_make_system_text(question, system))
        """The question with the tools, for the first round."""
        self._shown: list[list[Message]] = []
        """The messages of each round, as they were sent. The next prompt makes the messages of the
        last round again."""
        self._cut = 0

    def next(
        self,
        box: Toolbox,
        must_answer: bool,
        cut: int | None = None,
        rounds: Sequence[Round] | None = None,
    ) -> Prompt:
        """Return the prompt after `rounds`, by default after all rounds so far. The results of
        rounds up to number `cut` are left out."""
        first, rounds = self.first, box.rounds if rounds is None else rounds
        messages = self._make_messages(box, rounds, box.cut if cut is None else cut)
        if self.is_native:
            conversation = (*first.conversation, *messages)
            return replace(first, conversation=conversation, may_call=not must_answer)
        if must_answer and rounds:
            messages.append(_make_last_request(self._form))
        conversation = _merge_neighbors((*first.conversation, *messages))
        schema = self._question.schema if must_answer else first.schema
        return replace(first, conversation=conversation, schema=schema)

    def _make_messages(self, box: Toolbox, rounds: Sequence[Round], cut: int) -> list[Message]:
        """Return the messages of the rounds. The messages of earlier rounds are reused as they were
        sent."""
        if self._cut != cut:
            self._shown, self._cut = [], cut
        del self._shown[max(0, len(rounds) - 1) :]  # the last round may have new replies
        for round_ in rounds[len(self._shown) :]:
            self._shown.append(self._make_round_messages(box, round_, round_.number <= cut))
        messages_so_far = [_make_message(text) for text in box.first_messages]
        for messages in self._shown:
            messages_so_far += messages
        return messages_so_far

    def _make_round_messages(self, box: Toolbox, round_: Round, is_cut: bool) -> list[Message]:
        """Return the messages of one round: the model's text and calls, then the results and
        replies."""
        text = replace_blank(round_.text, "" if round_.calls else "(no answer)")
        content: list[Part] = [TextPart(text)] if text else []
        results = [_make_result_part(box, call, is_cut, self._takes_files) for call in round_.calls]
        messages: list[Message] = []
        if self.is_native:
            content += round_.calls
        elif round_.number > 1 and box.must_answer(is_native=False, before=round_):
            messages.append(_make_last_request(self._form))
        messages.append(Message("assistant", tuple(content), "round", round_.echo))
        parts: list[Part] = []
        for part in results:
            parts += (part,) if self.is_native else (*part.files, TextPart(part.text))
        parts += [TextPart(text) for text in round_.replies]
        if parts:
            messages.append(Message("user", tuple(parts), "round"))
        return messages


def _make_system_text(question: Prompt, text: str) -> str:
    """Return the system text of the graph, or else `text` with sentences about the earlier steps
    and turns in the question."""
    return system_text(question.question.scene, question.question.turns, text)


def _merge_neighbors(conversation: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation, with neighboring messages of rounds merged if they have the same
    role."""
    merged: list[Message] = []
    for message in conversation:
        if (
            merged
            and merged[-1].role == message.role
            and message.kind == merged[-1].kind == "round"
        ):
            merged[-1] = replace(merged[-1], parts=(*merged[-1].parts, *message.parts))
        else:
            merged.append(message)
    return tuple(merged)


def _make_message(text: str) -> Message:
    return Message("user", (TextPart(text),), "round")


def _make_result_part(
    box: Toolbox, call: CallPart, is_cut: bool, takes_files: Collection[str]
) -> ResultPart:
    result, files = box.result(call), ()
    if in_use():
        result, files = _with_labels(box, call, result, takes_files)
    text = result_text(result, box.result_limit(call.name))
    if is_cut:
        text, files = f"[cut, {len(text):,} characters: call it again if you need it]", ()
    if isinstance(call.arguments, Mapping) and result.arguments != box.mask_arguments(call):
        text = f"[a person changed the arguments: {text_of_json(result.arguments)}]\n{text}"
    return ResultPart(call.id, call.name, text, result.error is not None, files)


def _with_labels(
    box: Toolbox, call: CallPart, result: ToolCall, takes_files: Collection[str]
) -> tuple[ToolCall, tuple[FilePart, ...]]:
    """Return the result with labels in place of files, and the files. The labels include the id of
    the call, because the question already uses plain numbers. For a file of a kind that the model
    does not accept, the model reads its name, type and size."""

    def find(hash: str) -> File | None:
        return box.files.get(hash) or find_visible(hash)

    value, files = labeled(result.result, find, call.id, takes_files)
    is_same = value == result.result
    return (result if is_same else result.model_copy(update={"result": value})), files


def _make_last_request(form: str) -> Message:
    """Return the message that asks for the answer, when no more calls are allowed."""
    text = "Answer now. No tool can be called any more."
    return _make_message(f"{text} {form}" if form else text)


# --- models without native tool calls -----------------------------------------------------------


def tools_text(specs: Sequence[ToolSpec]) -> str:
    """Return the list of tools that a model reads in a question."""
    lines = ["Tools:"]
    for spec in specs:
        about = " ".join(spec.description.split())
        lines.append(f"- {spec.name}: {about}" if about else f"- {spec.name}")
        if spec.schema.get("properties"):
            lines.append(f"  {outline(spec.schema)}".replace("\n", "\n  "))
    return "\n".join(lines)


def action_names(specs: Sequence[ToolSpec], fields: Sequence[str]) -> tuple[str, str]:
    """Return the property that names the action, and its value for the answer. No tool, parameter
    or field of the answer has one of these names."""
    tag, answer = "action", "answer"
    parameters = {name for spec in specs for name in spec.schema.get("properties", ())}
    while tag in parameters or tag in fields:
        tag = f"_{tag}"
    while any(spec.name == answer for spec in specs):
        answer = f"final_{answer}"
    return tag, answer


def _make_round_schema(
    target: type[Node], fields: tuple[str, ...], is_text: bool, specs: Sequence[ToolSpec]
) -> dict[str, Any]:
    """Return the schema of a round: a call of one tool, or the answer."""
    tag, answer = action_names(specs, fields)
    answered: dict[str, Any] = {}
    if is_text:
        answered = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
    elif fields:
        answered = fill_schema(target, fields)
    shared: dict[str, Any] = {}
    options = [
        _make_option_schema(tag, spec.name, spec.schema, shared, f"{spec.name}_") for spec in specs
    ]
    options.append(_make_option_schema(tag, answer, answered, shared, ""))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {WRAPPER: {"anyOf": options}},
        "required": [WRAPPER],
        "additionalProperties": False,
        "title": target.__name__,
    }
    return {**schema, "$defs": shared} if shared else schema


def _make_option_schema(
    tag: str, name: str, schema: Mapping[str, Any], shared: dict[str, Any], prefix: str
) -> dict[str, Any]:
    """Return one alternative: an object with the tag, then the properties of `schema`. Move the
    definitions to `shared`, and put the prefix before their names."""

    def move(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        moved = changed(cast("dict[str, Any]", part), move)
        if "$ref" in moved:
            moved["$ref"] = str(moved["$ref"]).replace("#/$defs/", f"#/$defs/{prefix}")
        return moved

    moved_schema = cast("dict[str, Any]", move({k: v for k, v in schema.items() if k != "$defs"}))
    for title, definition in schema.get("$defs", {}).items():
        shared[f"{prefix}{title}"] = move(definition)
    properties = {tag: {"type": "string", "const": name}, **moved_schema.get("properties", {})}
    return {
        "type": "object",
        "properties": properties,
        "required": [tag, *moved_schema.get("required", ())],
        "additionalProperties": False,
    }


def answer_option(schema: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return where the answer is if the schema allows a call or the answer. The result has the
    property around both, the property that names the action, and its value for the answer. Return
    None for any other schema."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    if [*properties] != [WRAPPER] or "anyOf" not in properties[WRAPPER]:
        return None
    answer: Mapping[str, Any] = properties[WRAPPER]["anyOf"][-1].get("properties", {})
    tag = next(iter(answer), "")
    return (WRAPPER, tag, answer[tag]["const"]) if "const" in answer.get(tag, ()) else None


def is_round(prompt: Prompt) -> bool:
    """Return whether the prompt asks a model without native tool calls for a call or the answer."""
    return answer_option(prompt.schema or {}) is not None


def example_answer(prompt: Prompt, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an example's answer in the form that the prompt asks for."""
    option = answer_option(prompt.schema or {})
    if option is None:
        return values
    wrapper, tag, name = option
    target = prompt.question.target
    if target is not None and text_form(target):
        values = {"text": values[prompt.question.fields[0]]}
    return {wrapper: {tag: name, **values}}


def read_action(
    value: Mapping[str, Any], specs: Sequence[ToolSpec], fields: Sequence[str]
) -> CallPart | dict[str, Any] | str:
    """Return the action in a structured answer: a call, the values of the final answer, or an error
    text."""
    tag, answer = action_names(specs, fields)
    inner = value.get(WRAPPER)
    if not isinstance(inner, dict):
        return f'{WRAPPER}: there is no such object: answer {{"{WRAPPER}": {{"{tag}": …}}}}'
    action = dict(cast("dict[str, Any]", inner))
    name = action.pop(tag, None)
    if name == answer:
        return action
    if not any(spec.name == name for spec in specs):
        names = ", ".join([*(spec.name for spec in specs), answer])
        return f"{tag}: {repr(name)[:200]} is none of {names}"
    return CallPart("", cast(str, name), action)


def action_text(call: CallPart, specs: Sequence[ToolSpec], fields: Sequence[str]) -> str:
    """Return a call in the form that a model without native tool calls writes."""
    tag, _ = action_names(specs, fields)
    arguments: Mapping[str, Any] = {} if isinstance(call.arguments, str) else call.arguments
    return text_of_answer({WRAPPER: {tag: call.name, **arguments}})
