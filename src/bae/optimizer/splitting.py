"""Examples in two parts: one to train with, and one that is held out to see whether that helped.
A run and its forks stay together, since they have steps in common; and what training asks is not
held out, since a model would be asked what it has learnt by heart."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, TypeVar

from bae.optimizer.examples import root_of
from bae.optimizer.same_questions import questions_of, with_corrections, without

E = TypeVar("E")

_LOG: Final = logging.getLogger("bae.optimizer")


class Split(NamedTuple, Generic[E]):
    """Examples to train with, those to hold out, and those that were left out of the latter because
    the same was asked before. One that asks something new for one part of a node alone is in both
    of the last two, each time for the parts that it counts for: `fill_examples` and
    `choice_examples` know."""

    train: list[E]
    held_out: list[E]
    left_out: list[E]


def split(examples: Iterable[E], held_out: float = 0.3, seed: int = 0) -> tuple[list[E], list[E]]:
    """Examples to train with, and those to hold out: about the share `held_out` of them.

    All examples of a run, and of the runs that were forked from it, come to the same side. With two
    runs or more there is something on both sides, unless `held_out` is 0. The same examples and
    the same `seed` give the same two lists, in whatever order the examples are given.

    What the examples to train with ask in the same words is then left out of those to hold out, and
    of equal questions there one is kept, so that a score counts none twice: where runs repeat
    themselves, less than the share is held out, and perhaps nothing. `split_apart` says what was
    left out. The answer that a person has put right stands for all equal questions; where there
    are several, the first that is given does.
    """
    return split_apart(examples, held_out, seed)[:2]


def split_apart(examples: Iterable[E], held_out: float = 0.3, seed: int = 0) -> Split[E]:
    """The same as `split`, with what was left out."""
    if not 0 <= held_out < 1:
        raise ValueError(f"split(held_out={held_out}): give a share from 0 up to, not including, 1")
    every = with_corrections(examples)
    train, held = sides(every, held_out, seed)
    kept, left_out = _new([every[place] for place in train], [every[place] for place in held])
    if left_out:
        _LOG.info(
            "%d of %d examples to hold out were left out, for what was asked before",
            len(left_out),
            len(held),
        )
    return Split([every[place] for place in train], kept, left_out)


def sides(examples: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
    """The places of the examples of the two sides, by their runs alone."""
    groups = _by_root(examples, seed)
    count = _held(list(map(len, groups)), share)
    held = [place for group in groups[:count] for place in group]
    return [place for group in groups[count:] for place in group], held


def _new(train: Sequence[E], held: Sequence[E]) -> tuple[list[E], list[E]]:
    """Those held out that ask something new, and those that do not; some in one way do and in
    another do not."""
    met = {item for each in train for item in questions_of(each).items()}
    kept: list[E] = []
    left_out: list[E] = []
    for each in held:
        asked = questions_of(each)
        again = {part for part, question in asked.items() if (part, question) in met}
        met.update(asked.items())
        if not again:
            kept.append(each)
        elif again == asked.keys():
            left_out.append(each)
        else:
            kept.append(without(each, sorted(again)))
            left_out.append(without(each, sorted(asked.keys() - again)))
    return kept, left_out


def _by_root(examples: Sequence[Any], seed: int) -> list[list[int]]:
    """The places of the examples of each run, in an order that the seed and their words decide."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for place, example in enumerate(examples):
        said = _said(example)
        # One that comes from no run stands for itself, and with those that are the same.
        groups.setdefault(root_of(example) or said, []).append((said, place))
    ordered = sorted(groups, key=lambda root: (_number(seed, root), root))
    return [
        [place for _, place in sorted(groups[root], key=lambda each: each[0])] for root in ordered
    ]


def _held(sizes: list[int], share: float) -> int:
    """How many groups to hold out: as many as come closest to the share."""
    if not share or len(sizes) < 2:
        return 0
    wanted = share * sum(sizes)
    sums = [0, *accumulate(sizes)]
    return min(range(1, len(sizes)), key=lambda count: abs(sums[count] - wanted))


def _number(seed: int, root: str) -> str:
    return sha256(f"{seed}:{root}".encode("utf-8", "backslashreplace")).hexdigest()


def _said(example: Any) -> str:
    return json.dumps(dict(example.items()), sort_keys=True, default=str)
