"""The adapter for an LM that is no `Backend`, such as a `ScriptedLM` or your own class with the
four methods of `bae.LM`. Policies and budgets can wrap the adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from os import urandom
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pydantic_core import from_json

from bae.failures import no_tools_error, not_an_lm_error, undeclared_route_error, wrong_node_error
from bae.language_model import RoutingLM, ask_lm, is_lm, scene_around
from bae.lm.answers import Wrong, attempt, build, choice_error, read_choice, read_fill, read_json
from bae.lm.backend import Backend, ask_to_fill, record_wrong
from bae.lm.requests import Answer, ask, send
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.messages import Prompt, Question
from bae.prompts.questions import choice_of, fill_question, names_of
from bae.prompts.values import list_fields_to_fill
from bae.secrets import mask_values
from bae.usage import Usage, tell

if TYPE_CHECKING:
    from bae.language_model import LM, Scene
    from bae.usage import Attempt

N = TypeVar("N", bound="Node")


class LMAdapter(Backend):
    """Makes an LM with its own `fill`, `choose_type`, `make` and `decide` usable as a `Backend`.

    The LM corrects invalid answers itself, so the adapter never asks again. The choice of a node
    and its fill are two separate calls of the LM.
    """

    runs_tools = False

    def __init__(self, lm: LM) -> None:
        if isinstance(lm, type) or not is_lm(lm):
            raise not_an_lm_error(lm)
        super().__init__(attempts=0, retries=0, one_call=False)
        self.lm = lm
        self.native_tools = lm.native_tools if isinstance(lm, RoutingLM) else frozenset()
        # An LM that is no `RoutingLM` gets nodes instead of a prompt, with files of all kinds.
        self.takes_files = (lm if isinstance(lm, RoutingLM) else RoutingLM).takes_files
        model = getattr(lm, "model", None)
        self.model = model if isinstance(model, str) and model else _class_of(lm)
        self._instance = urandom(8).hex()

    @property
    def settings(self) -> Mapping[str, Any]:
        """The LM's class and its `settings`, for cache keys. An LM without `settings` gets a random
        id instead, so that it shares no cache entry with another LM."""
        if not self.has_settings:
            return {"lm": _class_of(self.lm), "instance": self._instance}
        return {"lm": _class_of(self.lm), "settings": dict(cast(Any, self.lm).settings)}

    @property
    def has_settings(self) -> bool:
        """Whether the LM has a mapping `settings` for cache keys."""
        return isinstance(getattr(self.lm, "settings", None), Mapping)

    async def answer(self, prompt: Prompt) -> Answer:
        """Answer the prompt by calling the LM's own `fill`, `choose_type`, `make` or `decide`.

        If the LM reports usage during the call, `request` charges the reported usage.
        """
        question = prompt.question
        if question.method == "decide":
            value, text = await self._decide(question)
        elif question.target is None:
            context = question.context
            if context is None:
                context = (
                    {}
                    if question.previous is None
                    else mask_values(question.previous, question.scene.hidden)
                )
            chosen = await ask_lm(
                self.lm, "choose_type", question.scene, [*question.types], context
            )
            # A type that was not offered has no name. Validation of the answer reports the error.
            value, text = {"choice": _name_of(question, chosen) or repr(chosen)}, ""
        else:
            value = await self._build(question, question.target)
            text = _json_of(value) if prompt.schema is not None else _text_of(value)
        # If the LM reports no usage, count one call of unknown cost.
        return Answer(text, Usage(calls=1, cost=None), value=value)

    async def request(self, prompt: Prompt) -> Answer:
        """Call `answer` once and charge the active budgets. If the LM asks a backend, the budgets
        are charged for the backend's request instead."""
        return await send(self, prompt, asks_others=True)

    def least_cost(self, usage: Usage) -> float | None:
        """Return 0.0, because only the usage that the LM reports has a cost."""
        return 0.0

    async def aclose(self) -> None:
        """Close the LM if it has an `aclose`."""
        close = getattr(self.lm, "aclose", None)
        if close is not None:
            await close()

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """Build a `target` with the LM's own `make`."""
        return await make_with(self, node, target, scene or scene_around.get())

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """Choose and build the successor of `node` with the LM's own `decide`. None ends the
        run."""
        return await decide_with(self, node, scene or scene_around.get())

    def __getattr__(self, name: str) -> Any:
        # A node's body may use attributes of its LM beyond the four methods.
        if name == "lm":
            raise AttributeError(name)
        return getattr(self.lm, name)

    def __repr__(self) -> str:
        return repr(self.lm)

    async def _build(self, question: Question, target: type[Node]) -> Node:
        previous, scene = question.previous, question.scene
        if scene.toolbox is not None and not isinstance(self.lm, RoutingLM):
            raise no_tools_error(self.lm, target)
        if question.method == "make":
            node = await ask_lm(self.lm, "make", scene, previous, target)
            is_right = isinstance(cast(object, node), target)
        else:
            resolved, instruction = question.resolved, question.instruction
            node = await ask_lm(
                self.lm, "fill", scene, target, resolved, instruction, source=previous
            )
            is_right = type(node) is target
        if not is_right:
            raise wrong_node_error(plan_of(target), node)
        return node

    async def _decide(self, question: Question) -> tuple[Any, str]:
        previous = cast("Node", question.previous)
        node: object = await ask_lm(self.lm, "decide", question.scene, previous)
        name = _name_of(question, type(node))
        if isinstance(node, Node):
            text = _json_of(node) if name is not None else ""
            return node, text and f'{{"choice":{json.dumps(name)},"fields":{text}}}'
        if node is not None or name is None:
            raise undeclared_route_error(plan_of(type(previous)), node)
        return {"choice": name}, ""


async def make_with(backend: Backend, node: Node, target: type[N], scene: Scene) -> N:
    """Build a `target` with the `make` of an adapted LM. `backend` is the LM's adapter, or a policy
    around the adapter."""
    instruction = plan_of(target).instruction
    prompt = _with_method("make", fill_question(target, {}, instruction, node, scene))
    answer = await ask(backend, prompt)
    if isinstance(answer.value, target):
        tell(attempt(1, prompt, answer))
        return answer.value
    first = prompt, answer, read_fill(prompt, answer)  # a cached answer is JSON instead of a node
    return await ask_to_fill(backend, target, {}, instruction, node, scene, first)


async def decide_with(backend: Backend, node: Node, scene: Scene) -> Node | None:
    """Choose and build a successor of `node` with the `decide` of an adapted LM. None ends the
    run."""
    choice = choice_of(plan_of(type(node), strict=True).offered, ())
    prompt = _with_method("decide", choice.prompt(node, scene=scene))
    answer = await ask(backend, prompt)
    if isinstance(answer.value, Node):
        tell(attempt(1, prompt, answer))
        return answer.value
    data = read_json(answer)
    choice_read = data if isinstance(data, Wrong) else read_choice(choice, data)
    if isinstance(choice_read, Wrong):
        tried: list[Attempt] = []
        await record_wrong(backend, prompt, answer, choice_read, tried)
        raise choice_error(choice.names, node, tried)
    chosen, fields = choice_read[0], cast(dict[str, Any], data).get("fields")
    if chosen is not NoneType and isinstance(fields, dict):  # a cached answer is JSON
        first = prompt, answer, cast(dict[str, Any], fields)
        instruction = plan_of(chosen).instruction
        return await ask_to_fill(backend, chosen, {}, instruction, node, scene, first)
    tell(attempt(1, prompt, answer))
    return None if chosen is NoneType else await backend.make(node, chosen, scene=scene)


def is_lossless(prompt: Prompt, answer: Answer) -> bool:
    """Whether an equal node can be built from the text of an answer. JSON cannot express every
    value, and a node's serializers may hide values."""
    node, question = answer.value, prompt.question
    if not isinstance(node, Node):
        return True
    cls = type(node)
    try:
        if prompt.schema is None:  # the one field is parsed from the text
            fields = {list_fields_to_fill(cls)[0]: answer.text}
        else:
            data = from_json(answer.text)
            fields = data["fields"] if question.method == "decide" else data
        rebuilt = build(question.target or cls, list_fields_to_fill(cls), fields, question.resolved)
        # Equal values may still differ, such as True and 1, so compare their texts too.
        return rebuilt == node and repr(rebuilt) == repr(node)
    except Exception:  # the node's own validators and comparisons may raise anything
        return False


def _json_of(node: Node) -> str:
    """Return the LM-filled fields of a node as JSON. Empty if JSON cannot express the values."""
    try:
        fields = set(list_fields_to_fill(type(node)))
        return node.model_dump_json(include=fields, by_alias=False, round_trip=True, warnings=False)
    except Exception:  # the node's own serializers may raise anything
        return ""


def _text_of(node: Node) -> str:
    """Return the value of a node's free-text field, or JSON if the value is no string."""
    value = getattr(node, list_fields_to_fill(type(node))[0])
    return value if isinstance(value, str) else _json_of(node)


def _with_method(method: Literal["make", "decide"], prompt: Prompt) -> Prompt:
    return replace(prompt, question=replace(prompt.question, method=method))


def _name_of(question: Question, chosen: Any) -> str | None:
    """Return the name of a chosen type, or None if the question did not offer the type."""
    return next((name for name, cls in names_of(question.types).items() if cls is chosen), None)


def _class_of(lm: LM) -> str:
    return f"{type(lm).__module__}.{type(lm).__qualname__}"
