"""Questions to a model, the same for all backends. The text has the instruction, then the known
values as JSON. The schema of the answer is sent beside the text. Equal input gives exactly the same
prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

from bae.files import in_use
from bae.language_model import PLAIN_SCENE
from bae.plan import NodePlan, plan_of
from bae.prompts.files import with_labels
from bae.prompts.messages import Correction, Prompt, Question, ask_in_text
from bae.prompts.schemas import choice_schema, fill_schema, notes_on
from bae.prompts.values import (
    as_json,
    context_of,
    drop_shown_values,
    find_turns,
    list_fields_to_fill,
    once,
    show_nodes,
    text_of_json,
    text_of_question,
)
from bae.turns import Messages

if TYPE_CHECKING:
    from bae.answer_form import AnswerForm
    from bae.language_model import Scene
    from bae.node import Node

Resolved = Mapping["type[Node]", Mapping[str, Any]]
"""The values of fields with a source, for several node classes."""

STEP = (
    "You carry out one step of a program. The first line says what to make. The JSON after it is "
    'what is known; values under "context" were looked up for this step.'
)
SYSTEM = (
    f"{STEP} Answer with one JSON object that fits the schema you are given, and with nothing else."
)
TEXT_SYSTEM = f"{STEP} Answer with the text that is to be made, and with nothing else."
IN_TEXT = "Answer in plain text, not in JSON"
CHOOSE = "Choose what comes next."
CHOOSE_AND_MAKE = "Choose what comes next, and make it."
OR_STOP = '"None" is to stop here.'
CHOSEN = "answer", "choice"
CHOSEN_FIELDS = "answer", "fields"
"""Paths in an answer that chooses and fills: `CHOSEN` leads to the class name, and `CHOSEN_FIELDS`
to the fields. See `choice_schema`."""
EARLIER = 'Earlier steps are under "before", the oldest first.'
CONVERSATION = (
    "The messages before the question are the conversation with the user so far; they are no "
    "examples of an answer."
)


_NOTHING: Mapping[str, Any] = {}


def system_text(scene: Scene, turns: Messages | None, default: str = SYSTEM) -> str:
    """Return the system text of a question. If the graph has a system text, it is used unchanged.
    Otherwise `default` is used, with a sentence about earlier steps or turns if the question has
    any."""
    if scene.system is not None:
        return scene.system
    if scene.shown or scene.omitted:
        default = f"{default} {EARLIER}"
    # The first turn has the sentence too, so that the beginning of the prompt stays the same.
    return default if turns is None else f"{default} {CONVERSATION}"


def fill_prompt(
    target: type[Node],
    fields: tuple[str, ...],
    resolved: Mapping[str, Any],
    instruction: str,
    previous: Node | None,
    scene: Scene = PLAIN_SCENE,
    corrections: tuple[Correction, ...] = (),
) -> Prompt:
    """Return the prompt to fill some fields of a node."""
    form, schema, name = _make_answer_parts(target, fields)
    question_parts = target, resolved, previous, scene
    if in_use():
        known, files = with_labels(partial(_known_values_for_fill, *question_parts))
    else:
        known, files = _known_values_for_fill(*question_parts), ()
    text = text_of_question(instruction, known, form)
    turns = find_turns(scene, previous, (target, resolved)) if NodePlan.any_turns else None
    contents = (), (), target, fields, resolved, None, instruction, previous, "", scene, turns
    return Prompt(
        system_text(scene, turns, TEXT_SYSTEM if form else SYSTEM),
        ask_in_text(text, corrections, files, turns),
        schema,
        name,
        Question(*contents),
    )


def _known_values_for_fill(
    target: type[Node], resolved: Mapping[str, Any], previous: Node | None, scene: Scene
) -> dict[str, Any]:
    """Return the known values in the question for a node, as JSON."""
    known = show_nodes(previous, scene)
    turns_field = plan_of(target).turns if resolved else None
    if len(resolved) > (turns_field is not None and turns_field.name in resolved):
        context = context_of(target, resolved, scene.hidden)
        context_left = drop_shown_values(target, context, known, previous, scene)
        if context_left or not context:
            known["context"] = context_left
    return known


def fill_question(
    target: type[Node],
    resolved: Mapping[str, Any],
    instruction: str,
    previous: Node | None,
    scene: Scene,
) -> Prompt:
    """Return the prompt to fill all fields of a node that a model fills."""
    return fill_prompt(target, list_fields_to_fill(target), resolved, instruction, previous, scene)


def _make_answer_parts(
    target: type[Node], fields: tuple[str, ...]
) -> tuple[str, dict[str, Any] | None, str]:
    """Return what depends on the form of the answer: the end of the prompt, the schema, and a name
    that every provider accepts. For JSON, the end of the prompt is empty. For plain text, the
    schema is None."""

    def make() -> tuple[str, dict[str, Any] | None, str]:
        form, name = text_form(target), re.sub(r"[^A-Za-z0-9_-]", "_", target.__name__)[:64]
        return form, None if form else fill_schema(target, fields), name

    return once(target, fields, make)


def text_form(target: type[Node]) -> str:
    """Return the end of a prompt for plain text: how to answer, with the description of the field.
    If no function parses the text, the bounds of the text are included. Return an empty text if the
    answer is JSON."""

    def make() -> str:
        fields = plan_of(target, strict=True).plain
        field = next((field for field in fields if field.fills == "text"), None)
        if field is None:
            return ""
        about = " ".join((field.info.description or "").split())
        if not field.is_parsed:
            schema = fill_schema(target, (field.name,))["properties"][field.name]
            about = notes_on(schema)
        return f"{IN_TEXT}: {about}" if about else f"{IN_TEXT}."

    return once(target, "text", make)


class Choice:
    """A choice among types. All prompts for the same choice share these parts, so they are computed
    once."""

    __slots__ = ("fillable", "instruction", "names", "schema", "types")

    def __init__(
        self, types: tuple[type[Node] | type[None], ...], fillable: tuple[type[Node], ...]
    ) -> None:
        self.types = types
        self.names = names_of(types)
        self.fillable = tuple(cls for cls in fillable if cls in types and _has_json(cls))
        self.instruction = choice_instruction(types, make=bool(self.fillable))
        options = [
            option_text(name, cls, filled=cls in self.fillable)
            for name, cls in self.names.items()
            if cls is not NoneType
        ]
        if any("\n" in option or ": " in option for option in options):
            self.instruction = "\n".join([self.instruction, *options])
        filled = {cls: (cls, list_fields_to_fill(cls)) for cls in self.fillable}
        self.schema = choice_schema({n: filled.get(cast(Any, c)) for n, c in self.names.items()})

    def prompt(
        self,
        previous: Node | None,
        context: Mapping[str, Any] | None = None,
        resolved: Resolved | None = None,
        scene: Scene = PLAIN_SCENE,
        corrections: tuple[Correction, ...] = (),
    ) -> Prompt:
        """Return the prompt for the choice. `resolved` has the values of sources, for the options
        that the same answer fills."""
        turns = None
        if NodePlan.any_turns:
            turns = find_turns(scene, previous, *(() if resolved is None else resolved.items()))
        if context is not None:
            turn_values = [
                context_value
                for context_value in context.values()
                if isinstance(context_value, Messages)
            ]
            if turn_values:
                turns, items = turn_values[0], context.items()
                context = {n: value for n, value in items if not isinstance(value, Messages)}

        question_parts = context, resolved, previous, scene
        if in_use():
            known, files = with_labels(partial(self._collect_known_values, *question_parts))
        else:
            known, files = self._collect_known_values(*question_parts), ()
        contents = self.types, self.fillable, None, (), _NOTHING, context, "", previous, "", scene
        return Prompt(
            system_text(scene, turns),
            ask_in_text(text_of_question(self.instruction, known), corrections, files, turns),
            self.schema,
            "Choice",
            Question(*contents, turns),
        )

    def _collect_known_values(
        self,
        context: Mapping[str, Any] | None,
        resolved: Resolved | None,
        previous: Node | None,
        scene: Scene,
    ) -> dict[str, Any]:
        known = show_nodes(previous, scene)
        if context is not None:
            known["context"] = as_json(context, "the context of a choice", scene.hidden)
        elif resolved and (contexts := self._collect_contexts(resolved, known, previous, scene)):
            known["context"] = contexts
        return known

    def _collect_contexts(
        self,
        resolved: Resolved,
        known: Mapping[str, Any],
        previous: Node | None,
        scene: Scene,
    ) -> dict[str, Any]:
        """Return the resolved values for the options, by option name. A value that several options
        share appears once, under all their names."""
        owners: dict[str, list[str]] = {}
        values_by_name: dict[str, tuple[str, Any]] = {}
        for name, cls in self.names.items():
            if cls in self.fillable and cls in resolved:
                context = context_of(cls, resolved[cls], scene.hidden)
                for field, value in drop_shown_values(cls, context, known, previous, scene).items():
                    key = text_of_json([field, value])
                    owners.setdefault(key, []).append(name)
                    values_by_name[key] = field, value
        contexts: dict[str, Any] = {}
        for key, (field, value) in values_by_name.items():
            contexts.setdefault(", ".join(owners[key]), {})[field] = value
        return contexts


def option_text(name: str, cls: type[Node], *, filled: bool) -> str:
    """Return the description of an option for a model. If the option is `filled` by the answer that
    chooses it, the description includes the instruction. Otherwise the description includes the
    fields of the option, because the schema of the choice does not have them."""
    plan = plan_of(cls, strict=True)
    lines = f"- {name}: {plan.description}" if plan.description else f"- {name}"
    if form := text_form(cls):
        about = form.removeprefix(IN_TEXT).lstrip(":. ")
        lines += f"\nIt is a text: {about}" if about else "\nIt is a text."
    elif not filled and (fields := list_fields_to_fill(cls)):
        schema = _make_answer_parts(cls, fields)[1] or {}
        parts = {key: schema[key] for key in ("properties", "required", "$defs") if key in schema}
        lines += f"\nIts fields: {text_of_json(parts)}"
    elif filled and plan.instruction != plan.name:
        lines += f"\nTo make it: {plan.instruction}"
    return lines.replace("\n", "\n  ")


def _has_json(cls: type[Node]) -> bool:
    """Return whether an answer in JSON can fill fields of the class."""
    has_fields = bool(list_fields_to_fill(cls)) and not text_form(cls)
    return has_fields and plan_of(cls).tools is None  # a node with tools needs a conversation


def choice_of(
    types: tuple[type[Node] | type[None], ...],
    fillable: tuple[type[Node], ...],
    resolved: tuple[type[Node], ...] = (),
) -> Choice:
    """Return the choice among `types`. The same answer fills an option in `fillable`, if the option
    has fields for an answer in JSON. An option with sources must also be in `resolved`."""

    def make() -> Choice:
        filled = (c for c in fillable if c in resolved or not plan_of(c, strict=True).context)
        return Choice(types, tuple(filled))

    for cls in types:
        if cls is not NoneType:
            return once(cls, (types, fillable, resolved), make)
    return make()


def choice_question(
    types: Sequence[type[Node] | type[None]],
    fillable: Sequence[type[Node]],
    previous: Node | None,
    context: Mapping[str, Any] | None,
    resolved: Resolved | None,
    scene: Scene,
) -> Prompt:
    """Return the prompt to choose the next node. If the chosen node is in `fillable`, the same
    answer may fill it."""
    choice = choice_of(tuple(types), tuple(fillable), tuple(resolved or ()))
    return choice.prompt(previous, context, resolved, scene)


def answer_form(prompt: Prompt) -> AnswerForm:
    """Return where the answer to a prompt has the fields of nodes."""
    from bae.answer_form import AnswerForm

    question, schema = prompt.question, prompt.schema
    target = question.target
    if target is None:
        filled = {
            name: (cls, list_fields_to_fill(cls))
            for name, cls in names_of(question.types).items()
            if cls is not NoneType and cls in question.fillable
        }
        return AnswerForm(filled, CHOSEN_FIELDS, CHOSEN) if filled else AnswerForm()
    if schema is not None and plan_of(target).tools is not None:
        from bae.prompts.tools import answer_option

        option = answer_option(schema)
        if option is not None:
            wrapper, tag, name = option
            names = {name: (target, question.fields)}
            renamed = {"text": question.fields[0]} if text_form(target) else {}
            return AnswerForm(names, (wrapper,), (wrapper, tag), renamed=renamed)
    return AnswerForm({"": (target, question.fields)}, is_text=schema is None)


def choice_instruction(types: Sequence[type[Node] | type[None]], *, make: bool = False) -> str:
    """Return the instruction to choose among `types`. With `make`, the model is to make the chosen
    node too."""
    text = CHOOSE_AND_MAKE if make else CHOOSE
    return f"{text} {OR_STOP}" if NoneType in types else text


def names_of(types: Sequence[type[Node] | type[None]]) -> dict[str, type[Node] | type[None]]:
    """Return the types by their names for a model. A name is the class name, with a number if two
    classes share the name."""
    names: dict[str, type[Node] | type[None]] = {}
    for cls in types:
        name = class_name = "None" if cls is NoneType else cls.__name__
        number = 1
        while name in names:
            number += 1
            name = f"{class_name}_{number}"
        names[name] = cls
    return names
