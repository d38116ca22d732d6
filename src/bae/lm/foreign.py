"""Any LM as a backend, so that policies go around one that has the four methods and no more: a
`ScriptedLM`, or a class of your own. It is asked through those methods, as the run would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import urandom
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pydantic_core import from_json

from bae.language_model import is_lm
from bae.lm import asking
from bae.lm.backend import Answer, Backend, Prompt, Question
from bae.usage import Attempt, Usage, tell

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node

N = TypeVar("N", bound="Node")


class Foreign(Backend):
    """An LM that is no backend, or one that overrides the methods of backends. It asks again by
    itself, so nothing asks it again; and it chooses first and fills then."""

    def __init__(self, lm: LM) -> None:
        if isinstance(lm, type) or not is_lm(lm):
            from bae.failures import not_an_lm

            raise not_an_lm(lm)
        super().__init__(attempts=0, retries=0, one_call=False)
        self.lm = lm
        named = getattr(lm, "model", None)
        self.model = named if isinstance(named, str) and named else _class_of(lm)
        self._instance = urandom(8).hex()

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its class and its own `settings`. One without any is told apart from all others."""
        given = getattr(self.lm, "settings", None)
        if not isinstance(given, Mapping):
            return {"lm": _class_of(self.lm), "instance": self._instance}
        return {"lm": _class_of(self.lm), "settings": dict(cast(Mapping[str, Any], given))}

    @property
    def has_settings(self) -> bool:
        """Whether the LM says what changes its answers."""
        return isinstance(getattr(self.lm, "settings", None), Mapping)

    async def answer(self, prompt: Prompt) -> Answer:
        """Have the LM do what is asked, by the method that was called. What it reports meanwhile
        is the usage of the answer."""
        question = prompt.question
        match question.method:
            case "make":
                value, text = await self._make(question)
            case "decide":
                value, text = await self._decide(prompt)
            case _ if question.types:
                value, text = await self._choose(prompt), ""
            case _:
                value, text = await self._fill(question)
        # Where it reports nothing it was asked all the same, and nobody knows what it cost.
        return Answer(text, Usage(calls=1, cost=None), value=value)

    def least_cost(self, usage: Usage) -> float | None:
        """Nothing: whether its cost is known at all is seen by what it reports."""
        return 0.0

    async def aclose(self) -> None:
        """Close the LM, where it has an `aclose`."""
        close = getattr(self.lm, "aclose", None)
        if close is not None:
            await close()

    async def make(self, node: Node, target: type[N]) -> N:
        """Have the LM build a `target` by its own `make`."""
        return await made(self, node, target)

    async def decide(self, node: Node) -> Node | None:
        """Have the LM choose and build by its own `decide`."""
        return await decided(self, node)

    def __getattr__(self, name: str) -> Any:
        # What a written body knows its LM by, besides the four methods, is there still.
        if name == "lm":
            raise AttributeError(name)
        return getattr(self.lm, name)

    def __repr__(self) -> str:
        return repr(self.lm)

    async def _choose(self, prompt: Prompt) -> Any:
        question = prompt.question
        context = question.context
        if context is None:
            context = {} if question.source is None else dict(question.source)
        chosen = await self.lm.choose_type(question.types, context)
        # Where it has no name it was not offered, as the asking layer says.
        return {"choice": _name_of(prompt, chosen) or repr(chosen)}

    async def _fill(self, question: Question) -> tuple[Any, str]:
        from bae.failures import filled_other
        from bae.plan import plan_of

        target = cast("type[Node]", question.target)
        node = await self.lm.fill(
            target, question.resolved, question.instruction, source=question.source
        )
        if type(node) is not target:
            raise filled_other(plan_of(target), node)
        return node, _said(node)

    async def _make(self, question: Question) -> tuple[Any, str]:
        from bae.failures import filled_other
        from bae.plan import plan_of

        target = cast("type[Node]", question.target)
        node = await self.lm.make(cast("Node", question.source), target)
        if not isinstance(cast(object, node), target):
            raise filled_other(plan_of(target), node)
        return node, _said(node)

    async def _decide(self, prompt: Prompt) -> tuple[Any, str]:
        from bae.failures import undeclared
        from bae.node import Node
        from bae.plan import plan_of

        source = cast("Node", prompt.question.source)
        node: object = await self.lm.decide(source)
        name = _name_of(prompt, type(node))
        if isinstance(node, Node):
            said = _said(node) if name is not None else ""
            return node, said and f'{{"choice":{json.dumps(name)},"fields":{said}}}'
        if node is not None or name is None:
            raise undeclared(plan_of(type(source)), node)
        return {"choice": name}, ""


async def made(backend: Backend, node: Node, target: type[N]) -> N:
    """A `target` from the `make` of an LM that stands inside policies, or by itself."""
    from bae.lm.prompts import fill_prompt
    from bae.lm.reading import read
    from bae.lm.schemas import asked_fields

    name = target.__name__
    prompt = _by("make", fill_prompt(target, asked_fields(target), {}, name, node))
    answer = await asking.ask(backend, prompt)
    if isinstance(answer.value, target):
        _judged(answer)
        return answer.value
    first = prompt, answer, read(answer).value  # as a cache keeps it
    return await asking.fill(backend, target, {}, name, node, first)


async def decided(backend: Backend, node: Node) -> Node | None:
    """A successor of `node` from the `decide` of such an LM; None to end the run."""
    from bae.lm.prompts import choice_prompt, names_of
    from bae.lm.reading import read, text_of
    from bae.lm.verdicts import choice_failed
    from bae.node import Node
    from bae.plan import plan_of

    names = names_of(plan_of(type(node), strict=True).offered)
    prompt = _by("decide", choice_prompt(names, (), node, None))
    answer = await asking.ask(backend, prompt)
    if isinstance(answer.value, Node):
        _judged(answer)
        return answer.value
    got = read(answer)
    said = got.value or {}
    chosen = names.get(str(said.get("choice")))
    fields: Any = said.get("fields")
    if chosen is None:
        errors = got.errors or ("choice: it is not among what was offered",)
        wrong = Attempt(1, text_of(answer), "invalid", errors, answer.usage)
        tell(wrong)
        await backend.reject(prompt)
        raise choice_failed(names, node, [wrong])
    if chosen is not NoneType and isinstance(fields, dict):  # as a cache keeps it
        first = prompt, answer, cast(dict[str, Any], fields)
        return await asking.fill(backend, chosen, {}, chosen.__name__, node, first)
    _judged(answer)
    return None if chosen is NoneType else await backend.make(node, chosen)


def keeps(prompt: Prompt, answer: Answer) -> bool:
    """Whether the text of an answer says all of a node that an LM has built, so that the same node
    can be made of it again. JSON does not say every value, and serializers may hide some."""
    from bae.lm.reading import build
    from bae.lm.schemas import asked_fields
    from bae.node import Node

    node, question = answer.value, prompt.question
    if not isinstance(node, Node):
        return True
    cls = type(node)
    try:
        said = from_json(answer.text)
        fields = said["fields"] if question.method == "decide" else said
        again = build(question.target or cls, asked_fields(cls), fields, question.resolved).node
        # Of equal values, such as True and 1, one may stand for the other.
        return again == node and repr(again) == repr(node)
    except Exception:  # validators and comparisons are code of the node's own
        return False


def _said(node: Node) -> str:
    """What an LM has filled in of a node, as JSON; nothing where that cannot be said."""
    from bae.lm.schemas import asked_fields

    try:
        fields = set(asked_fields(type(node)))
        return node.model_dump_json(include=fields, by_alias=False, round_trip=True, warnings=False)
    except Exception:  # serializers are code of the node's own
        return ""


def _judged(answer: Answer) -> None:
    from bae.lm.reading import text_of

    tell(Attempt(1, text_of(answer), "valid", (), answer.usage))


def _by(method: Literal["make", "decide"], prompt: Prompt) -> Prompt:
    return replace(prompt, question=replace(prompt.question, method=method))


def _name_of(prompt: Prompt, chosen: object) -> str | None:
    """The name that a model would choose it by, where it is among what is offered."""
    names: Sequence[str] = prompt.schema["properties"]["choice"]["enum"]
    for cls, name in zip(prompt.question.types, names, strict=True):
        if chosen is cls:
            return name
    return None


def _class_of(lm: LM) -> str:
    return f"{type(lm).__module__}.{type(lm).__qualname__}"
