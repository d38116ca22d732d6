"""Examples with equal questions, and splits of examples into a training part and a held-out part
for comparisons. A run and its forks stay together, and no question is in both parts."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from bae.optimizer.examples import BAE, WITHOUT, metadata_of, previous_of, root_of


def questions_of(example: Any) -> dict[str, str]:
    """The texts of the questions that an example answers. The key of a question is its part of the
    node: "choice" or "fill". If the example is for one part only, the key is ""."""
    if "next_node_type" not in example:
        return {"": question_of(example)}
    about = metadata_of(example)
    types = about.get("types") or [example.get("node_type"), example.get("next_node_type")]
    previous = previous_of(example)
    questions = {"choice": _text([types[0], previous])}
    made = _made_values(example)
    if made is not None and made.get("fields"):
        questions["fill"] = _text([types[1], previous, made.get("context") or {}])
    left_out = about.get(WITHOUT) or ()
    return {part: text for part, text in questions.items() if part not in left_out}


def question_of(example: Any) -> str:
    """The question that an example of one part answers, as one text."""
    return _text([sorted(_outputs(example)), _inputs(example)])


def with_corrections(examples: Iterable[Any]) -> list[Any]:
    """Use a person's correction in all examples with the same question, and mark these examples as
    corrected. The newest correction wins. The given examples are not changed: an example that needs
    a change is copied."""
    given = [(example, questions_of(example).get("fill")) for example in examples]
    best: dict[str | None, Any] = {}
    for each, question in sorted(given, key=lambda pair: -_corrected_at(pair[0])):
        if question is not None and each.get("corrected"):
            best.setdefault(question, each)
    return [_answered_as(each, best.get(question, each)) for each, question in given]


def _corrected_at(example: Any) -> float:
    return metadata_of(example).get("corrected_at", 0.0)


def distinct(examples: Sequence[Any]) -> list[Any]:
    """One example for each question, in the order in which the questions first appear. It is the
    example with the corrected answer, otherwise an example with the most frequent answer."""
    groups: dict[str, list[Any]] = {}
    for example in examples:
        groups.setdefault(question_of(example), []).append(example)
    return [_most_trusted(group) for group in groups.values()]


def is_corrected(example: Any) -> bool:
    """Whether a person corrected the answer in an example of one part."""
    return bool(metadata_of(example).get("corrected"))


def without(example: Any, parts: Collection[str]) -> Any:
    """A copy of an example that does not count for these parts of a node."""
    left_out = [*(metadata_of(example).get(WITHOUT) or ()), *parts]
    return _with(example, **{BAE: {**metadata_of(example), WITHOUT: left_out}})


def _most_trusted(group: Sequence[Any]) -> Any:
    for each in group:
        if is_corrected(each):
            return each
    answers = [_text(_outputs(each)) for each in group]
    most, _ = Counter(answers).most_common(1)[0]  # on a tie, the first
    return group[answers.index(most)]


def _answered_as(example: Any, best: Any) -> Any:
    fields, better = _made_values(example), _made_values(best)
    if example is best or fields is None or better is None:
        return example
    corrected = list(best["corrected"])
    if fields["fields"] == better["fields"] and example.get("corrected") == corrected:
        return example
    # Copy the mark too, since the corrected example may be on the other side of a split.
    made = {**fields, "fields": better["fields"]}
    return _with(example, next_node=made, corrected=corrected)


def _with(example: Any, **values: Any) -> Any:
    # An example may be a plain mapping.
    if isinstance(example, dict):
        return {**cast("dict[str, Any]", example), **values}
    return example.copy(**values)


def _made_values(example: Any) -> Mapping[str, Any] | None:
    made = example.get("next_node")
    return cast("Mapping[str, Any]", made) if isinstance(made, Mapping) else None


def _inputs(example: Any) -> dict[str, Any]:
    try:
        return dict(example.inputs().items())
    except (AttributeError, ValueError):  # a mapping, or an example without declared inputs
        return {name: value for name, value in example.items() if name != BAE}


def _outputs(example: Any) -> dict[str, Any]:
    inputs = _inputs(example)
    return {n: v for n, v in example.items() if n not in inputs and n != BAE}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


E = TypeVar("E")

_LOG: Final = logging.getLogger("bae.optimizer")


class Split(NamedTuple, Generic[E]):
    """Examples to train with (`train`), examples to compare on (`held_out`), and examples that were
    not held out because they repeat a question (`left_out`). An example may repeat a question for
    one part of a node and not for the other. It is then in `held_out` and `left_out`, and
    `fill_examples` and `choice_examples` count it for the right part."""

    train: list[E]
    held_out: list[E]
    left_out: list[E]


def split_apart(examples: Iterable[E], held_out: float = 0.3, seed: int = 0) -> Split[E]:
    """Split examples into a training list and a held-out list, approximately with the share
    `held_out` in the second.

    All examples of a run and of its forks are on the same side. With two runs or more, neither side
    is empty unless `held_out` is 0. The same examples and the same `seed` give the same lists. The
    order of the examples does not matter.

    A held-out question is not in the training list, and is held out only once. If runs repeat
    questions, the held-out list is smaller than the share, or even empty: the third list,
    `left_out`, has the other examples. A corrected answer replaces the answers to all equal
    questions; the newest correction wins.
    """
    if not 0 <= held_out < 1:
        raise ValueError(
            f"split_apart(held_out={held_out}): give a share from 0 up to, not including, 1"
        )
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


def split(examples: Iterable[E], held_out: float = 0.3, seed: int = 0) -> tuple[list[E], list[E]]:
    """Return the first two lists of `split_apart`. Deprecated."""
    return split_apart(examples, held_out, seed)[:2]


def sides(examples: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
    """The indexes of the examples on the two sides, split by runs."""
    groups = _by_root(examples, seed)
    count = _count_held_out(list(map(len, groups)), share)
    held = [place for group in groups[:count] for place in group]
    return [place for group in groups[count:] for place in group], held


def _new(train: Sequence[E], held: Sequence[E]) -> tuple[list[E], list[E]]:
    """Divide held-out examples into examples with a new question and examples that repeat a
    question. An example may be in both lists, for different parts of the node."""
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
    """The indexes of the examples of each run. The order depends only on the seed and on their
    content."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for place, example in enumerate(examples):
        text = _text(dict(example.items()))
        # Equal examples that come from no run form a group.
        groups.setdefault(root_of(example) or text, []).append((text, place))
    ordered = sorted(groups, key=lambda root: (_number(seed, root), root))
    return [
        [place for _, place in sorted(groups[root], key=lambda each: each[0])] for root in ordered
    ]


def _count_held_out(sizes: list[int], share: float) -> int:
    """How many groups to hold out to come closest to the share."""
    if not share or len(sizes) < 2:
        return 0
    wanted = share * sum(sizes)
    sums = [0, *accumulate(sizes)]
    return min(range(1, len(sizes)), key=lambda count: abs(sums[count] - wanted))


def _number(seed: int, root: str) -> str:
    return sha256(f"{seed}:{root}".encode("utf-8", "backslashreplace")).hexdigest()
