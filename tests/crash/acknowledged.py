"""Which effects of `newsroom.py` are done for good, going by the records of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bae import Node
from bae.journal import (
    CallEnded,
    ChoiceMade,
    FillEnded,
    ItemEnded,
    LMAnswered,
    Record,
    Returned,
    RunEnded,
    SourceEnded,
    StepStarted,
)
from bae.plan import plan_of
from crash.newsroom import INSIDE, OUTSIDE, REMADE, START, History, Printed, Round, label


def count_effects(records: Iterable[Record]) -> Counter[str]:
    """How often each effect is done for good, going by the records of a run."""
    nodes: dict[tuple[str, int], Node] = {}
    bodies: set[tuple[str, int]] = set()
    done: Counter[str] = Counter()
    for record in records:
        before = nodes.get((record.path, record.step - 1))
        if isinstance(record, StepStarted):
            nodes[record.path, record.step] = record.node
        ends = isinstance(record, RunEnded) and record.outcome == "ended"
        follows = ends or isinstance(record, StepStarted | Returned)
        if follows and before is not None and plan_of(type(before)).written:
            bodies.add((record.path, record.step - 1))
        done.update(_effects_of(record, before))
    done.update(f"body {label(nodes[spot])}" for spot in bodies)
    return done


def calls(effects: Counter[str]) -> int:
    """How many of these effects are calls of the LM."""
    return sum(n for name, n in effects.items() if name.startswith(("choose", "fill")))


def _effects_of(record: Record, before: Node | None) -> Iterator[str]:
    match record:
        case SourceEnded(source="dep", error=None):
            if record.by not in REMADE | INSIDE | OUTSIDE:
                yield record.by
        case CallEnded():
            yield record.by
        case ItemEnded(field="facts"):
            yield f"look_up {START.topic} {record.index}"
        case ItemEnded(field="letters" | "set_up"):
            yield f"count_letters {_words(record, before)[record.index]}"
        case ChoiceMade():
            yield f"choose from {label(record.node)}"
        case FillEnded():
            assert before is not None
            if not isinstance(record.node, Printed):  # which comes with the choice
                yield f"fill {type(record.node).__name__} from {label(before)}"
        case LMAnswered():
            about = label(before) if record.asker.kind == "body" and before else "Tone"
            yield f"fill {record.target} from {about}"
        case _:
            pass


def _words(record: ItemEnded, before: Node | None) -> list[str]:
    if record.node_type is History:
        return ["one", "two", "three"]
    if record.node_type is Printed:
        return ["front", "back"]
    assert isinstance(before, Round)
    return before.heads
