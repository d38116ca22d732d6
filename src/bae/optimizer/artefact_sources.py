"""Where the examples of an artefact come from: each shows the fields of a node that leads to the
class which was learnt for. When that node's class changes, the examples show what no run asks any
more; `artefact_fit.py` refuses the artefact then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from bae.lm.prompts import once, shown_fields
from bae.optimizer.type_texts import type_text
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.node import Node
    from bae.optimizer.artefacts import Artefact, LearnedExample

CONTEXT = "context"
"""What an example calls the values that were looked up, beside the node that the run comes from."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The node classes that lead to a class, as far as they are known: `whole` says whether these
    are all, as where a graph was given."""

    target: type[Node]
    classes: tuple[type[Node], ...]
    whole: bool = False

    def named(self, name: str) -> list[type[Node]]:
        """Those of a name."""
        return [cls for cls in self.classes if cls.__name__ == name]


def sources_of(target: type[Node], among: Iterable[type[Node]], *, whole: bool) -> Sources:
    """Those of the classes that lead to a class."""
    leading = (cls for cls in among if target in plan_of(cls, strict=True).offered)
    return Sources(target, tuple(leading), whole)


def seen_fields(cls: type[Node]) -> dict[str, str]:
    """What a model sees of a node: the fields by name, each with its type."""

    def find() -> dict[str, str]:
        plan, shown = plan_of(cls, strict=True), shown_fields(cls)
        hidden = {name for name, field in cls.__pydantic_fields__.items() if field.exclude}
        seen = {
            field.name: type_text(plan, field)
            for field in plan.fields.values()
            if field.name in shown - hidden
        }
        computed = cls.__pydantic_computed_fields__
        return seen | {name: "computed" for name in computed if name in shown}

    return once(cls, "seen", find)


def recorded(artefact: Artefact, sources: Sources) -> dict[str, dict[str, str]]:
    """The classes that the examples of a fill come from, with what a model sees of each."""
    found = dict(artefact.sources)
    for name in _names(artefact):
        known = sources.named(name)
        if len(known) == 1:
            found[name] = dict(sorted(seen_fields(known[0]).items()))
    return {name: found[name] for name in sorted(_names(artefact) & found.keys())}


def source_changes(artefact: Artefact, sources: Sources) -> list[str]:
    """What is other than it was about the classes that examples come from."""
    changes: list[str] = []
    for name, then in artefact.sources.items():
        known = sources.named(name)
        if not known and sources.whole:
            changes.append(f"its examples come from {name}, which leads no more to it")
        elif known and all(seen_fields(cls) != then for cls in known):
            changes.extend(f"its examples show {each}" for each in _other(name, then, known[0]))
    return changes


def strange_source(part: str, example: LearnedExample, sources: Sources) -> str:
    """What is wrong with the node that an example comes from, with its place; empty where nothing
    is, as far as that can be known."""
    names = [name for name in example.known if part == "choice" or name != CONTEXT]
    if len(names) > 1:
        return f"known: it has {' and '.join(names)}, where a run comes from one node"
    for name in names:
        known = [sources.target] if part == "choice" else sources.named(name)
        if part == "choice" and name != sources.target.__name__:
            return f"known.{name}: the choice is made at {sources.target.__name__}"
        if not known:
            gone = f"known.{name}: no {name} leads to {sources.target.__name__}"
            return gone if sources.whole else ""
        said = [_unseen(cls, example.known[name]) for cls in known]
        if all(said):
            return f"known.{name}{said[0]}"
    return ""


def _names(artefact: Artefact) -> set[str]:
    examples: Sequence[LearnedExample] = artefact.fill.examples if artefact.fill else ()
    return {name for each in examples for name in each.known if name != CONTEXT}


def _other(name: str, then: Mapping[str, str], cls: type[Node]) -> Iterator[str]:
    now = seen_fields(cls)
    for field, text in then.items():
        if field not in now:
            yield f"{name}.{field}, which is gone (was {text})"
        elif now[field] != text:
            yield f"{name}.{field}, which was {text}, and is {now[field]}"
    for field, text in now.items():
        if field not in then:
            yield f"{name} without {field}, which is new ({text})"


def _unseen(cls: type[Node], said: Any) -> str:
    """Why a model cannot have seen this of a node; empty where it can."""
    if cls.__pydantic_decorators__.model_serializers:
        return ""  # it is said as its own code likes
    if not isinstance(said, dict):
        return ": it is no object"
    seen = seen_fields(cls)
    strange = [field for field in cast(dict[str, Any], said) if field not in seen]
    return f".{strange[0]}: {cls.__name__} has no such field that a model sees" if strange else ""
