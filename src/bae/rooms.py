"""What the core asks other packages of bae to do. Each function imports its package when it is
called: a run that needs none of them loads none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bae.exceptions import BaeLMError, Problem
    from bae.graph import Graph
    from bae.journal.gates import answer_gate as answer_gate
    from bae.journal.replay import replay as replay
    from bae.journal.resume import begin_or_resume as begin_or_resume
    from bae.journal.resume import fork as fork
    from bae.journal.resume import recover as recover
    from bae.journal.resume import resume as resume
    from bae.journal.store import Journal as Journal
    from bae.language_model import LM
    from bae.lm.policies.budget import Budget as Budget
    from bae.lm.requests import Prompt as Prompt
    from bae.node import Node


_JOURNAL = {
    "answer_gate": "gates",
    "begin_or_resume": "resume",
    "fork": "resume",
    "recover": "resume",
    "replay": "replay",
    "resume": "resume",
}


def __getattr__(name: str) -> Any:
    """What graphs have the journal do with stored runs."""
    if name not in _JOURNAL:
        raise AttributeError(f"module 'bae.rooms' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"bae.journal.{_JOURNAL[name]}"), name)


class QuestionText(NamedTuple):
    """What an LM is asked: the system prompt and the prompt, without the schema of the answer."""

    system: str
    text: str


def named_lm(name: str) -> LM:
    """The LM of a name such as "local", the same one each time."""
    from bae.lm.registry import cached_lm

    return cached_lm(name)


def misnamed_lm(name: str) -> BaeLMError | None:
    """The error of a name that no LM has; None if there is one."""
    from bae.lm.registry import name_error

    return name_error(name)


def default_lm(why: str) -> LM:
    """The LM of a run that was given none; `why` says what needs one."""
    from bae.lm import registry

    return registry.default_lm(why)


def late_lm(why: str) -> LM:
    """The same, looked for when it is first asked: what is left of a run may ask for none."""
    from bae.lm.registry import LazyLM

    return LazyLM(why)


def fill_question(
    target: type[Node], resolved: Mapping[str, Any], instruction: str, source: Node | None
) -> QuestionText:
    """What an LM is asked that fills a node."""
    from bae.lm.prompts import asked_fields, fill_prompt

    prompt = fill_prompt(target, asked_fields(target), resolved, instruction, source)
    return QuestionText(prompt.system, prompt.text)


def shown_fields(cls: type[Node]) -> frozenset[str]:
    """The fields of a class that a model may see."""
    from bae.lm import prompts

    return prompts.shown_fields(cls)


def nodes_that_fit(nodes: Sequence[Node], limit: int) -> tuple[Node, ...]:
    """The newest of some nodes whose text in a prompt has at most `limit` characters."""
    from bae.lm import prompts

    return prompts.nodes_that_fit(nodes, limit)


def choice_question(
    offered: Sequence[type[Node] | type[None]],
    fillable: Sequence[type[Node]],
    source: Node | None,
    context: Mapping[str, Any] | None,
    resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
) -> QuestionText:
    """What an LM is asked that chooses the next node; it may fill one of `fillable` at once."""
    from bae.lm.prompts import choice_of

    choice = choice_of(tuple(offered), tuple(fillable), tuple(resolved or ()))
    prompt = choice.prompt(source, context, resolved=resolved)
    return QuestionText(prompt.system, prompt.text)


def prompts_of(graph: Graph[Any, Any], nodes: Sequence[Node], lm: LM | str | None) -> list[Prompt]:
    """The prompts that a graph can send."""
    from bae.testing.prompts import prompts_of

    return prompts_of(graph, nodes, lm)


def filled_options(
    offered: Sequence[type[Node] | type[None]], asked: str
) -> tuple[type[Node], ...]:
    """Those of a choice that an LM may have filled at once, by the text that it was asked."""
    from bae.lm import prompts

    return prompts.filled_options(offered, asked)


def journal_type() -> type[Journal]:
    """The class of all journals."""
    from bae.journal.store import Journal

    return Journal


def journal_problems(graph: Graph[Any, Any]) -> tuple[list[Problem], list[Problem]]:
    """What keeps a graph from running with a journal, and notes on what a journal does not hold."""
    from bae.journal.keepable import notes, unkeepable

    return unkeepable(graph), notes(graph)


def mermaid_of(graph: Graph[Any, Any], *, fields: bool) -> str:
    """A graph as a Mermaid flowchart."""
    from bae.pictures import to_mermaid

    return to_mermaid(graph, fields=fields)


def svg_of(graph: Graph[Any, Any]) -> str:
    """A graph as an SVG picture."""
    from bae.pictures import to_svg

    return to_svg(graph)
