"""Find examples with equal questions, and split examples into a training list and a held-out list
for comparisons. A run and its forks stay together, and no question is in both lists."""

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
    """Return the questions that an example answers, as texts. The key of a question is its part of
    the node: "choice" or "fill". If the example is for one part only, the key is ""."""
    if "next_node_type" not in example:
        return {"": question_of(example)}
    metadata = metadata_of(example)
    types = metadata.get("types") or [example.get("node_type"), example.get("next_node_type")]
    previous = previous_of(example)
    questions = {"choice": _text([types[0], previous])}
    answer = _answer_values(example)
    if answer is not None and answer.get("fields"):
        questions["fill"] = _text([types[1], previous, answer.get("context") or {}])
    left_out = metadata.get(WITHOUT) or ()
    return {part: text for part, text in questions.items() if part not in left_out}


def question_of(example: Any) -> str:
    """Return the question that an example of one part answers, as one text."""
    return _text([sorted(_outputs(example)), _inputs(example)])


def with_corrections(examples: Iterable[Any]) -> list[Any]:
    """Put a person's correction into all examples with the same question, and mark these examples
    as corrected. The newest correction wins. Changed examples are copies, so the arguments do not
    change."""
    pairs = [(example, questions_of(example).get("fill")) for example in examples]
    best: dict[str | None, Any] = {}
    for candidate, question in sorted(pairs, key=lambda pair: -_corrected_at(pair[0])):
        if question is not None and candidate.get("corrected"):
            best.setdefault(question, candidate)
    return [
        _with_best_answer(candidate, best.get(question, candidate)) for candidate, question in pairs
    ]


def _corrected_at(example: Any) -> float:
    return metadata_of(example).get("corrected_at", 0.0)


def distinct(examples: Sequence[Any]) -> list[Any]:
    """Return one example for each question, in the order of the questions. The example has the
    corrected answer, or otherwise the most frequent answer."""
    groups: dict[str, list[Any]] = {}
    for example in examples:
        groups.setdefault(question_of(example), []).append(example)
    return [_choose_trusted(group) for group in groups.values()]


def is_corrected(example: Any) -> bool:
    """Whether a person corrected the answer in an example of one part."""
    return bool(metadata_of(example).get("corrected"))


def without(example: Any, parts: Collection[str]) -> Any:
    """Return a copy of an example that must not be used for these parts of a node."""
    left_out = [*(metadata_of(example).get(WITHOUT) or ()), *parts]
    return _copy_with(example, **{BAE: {**metadata_of(example), WITHOUT: left_out}})


def _choose_trusted(group: Sequence[Any]) -> Any:
    for member in group:
        if is_corrected(member):
            return member
    answers = [_text(_outputs(member)) for member in group]
    most, _ = Counter(answers).most_common(1)[0]  # on a tie, the first
    return group[answers.index(most)]


def _with_best_answer(example: Any, best: Any) -> Any:
    fields, better = _answer_values(example), _answer_values(best)
    if example is best or fields is None or better is None:
        return example
    corrected = list(best["corrected"])
    if fields["fields"] == better["fields"] and example.get("corrected") == corrected:
        return example
    # Copy the mark too, because the corrected example may be on the other side of a split.
    answer = {**fields, "fields": better["fields"]}
    return _copy_with(example, next_node=answer, corrected=corrected)


def _copy_with(example: Any, **values: Any) -> Any:
    # An example may be a plain mapping.
    if isinstance(example, dict):
        return {**cast("dict[str, Any]", example), **values}
    return example.copy(**values)


def _answer_values(example: Any) -> Mapping[str, Any] | None:
    answer = example.get("next_node")
    return cast("Mapping[str, Any]", answer) if isinstance(answer, Mapping) else None


def _inputs(example: Any) -> dict[str, Any]:
    try:
        return dict(example.inputs().items())
    except (AttributeError, ValueError):  # a mapping, or an example without declared inputs
        return {name: value for name, value in example.items() if name != BAE}


def _outputs(example: Any) -> dict[str, Any]:
    inputs = _inputs(example)
    return {name: value for name, value in example.items() if name not in inputs and name != BAE}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


E = TypeVar("E")

_LOG: Final = logging.getLogger("bae.optimizer")


class Split(NamedTuple, Generic[E]):
    """The lists of examples that `split_apart` returns.

    An example may repeat a question for one part of a node, and have a new question for the other
    part. Then `held_out` and `left_out` have a copy of the example, each for one part.
    """

    train: list[E]
    """Examples to train with."""
    held_out: list[E]
    """Examples to compare on."""
    left_out: list[E]
    """Examples that were not held out because they repeat a question."""


def split_apart(examples: Iterable[E], held_out: float = 0.3, seed: int = 0) -> Split[E]:
    """Split examples into a training list and a held-out list. The held-out list has approximately
    the share `held_out`.

    All examples of a run and its forks are on the same side. If there are two runs or more and
    `held_out` is not 0, each side gets at least one run. The same examples and the same `seed` give
    the same lists. The order of the examples does not matter.

    A held-out question is not in the training list, and is held out only once. Examples that repeat
    a question go from the held-out list to a third list, `left_out`. If runs repeat questions, the
    held-out list may therefore be smaller than the share, or even empty. A corrected answer
    replaces the answers to all equal questions. The newest correction wins.
    """
    if not 0 <= held_out < 1:
        raise ValueError(
            f"split_apart(held_out={held_out}): give a share from 0 up to, not including, 1"
        )
    corrected = with_corrections(examples)
    train, held_places = sides(corrected, held_out, seed)
    new, left_out = _set_aside_repeated(
        [corrected[place] for place in train], [corrected[place] for place in held_places]
    )
    if left_out:
        _LOG.info(
            "%d of %d held-out examples were left out, because they repeat a question",
            len(left_out),
            len(held_places),
        )
    return Split([corrected[place] for place in train], new, left_out)


def split(examples: Iterable[E], held_out: float = 0.3, seed: int = 0) -> tuple[list[E], list[E]]:
    """Return the first two lists of `split_apart`. Deprecated."""
    return split_apart(examples, held_out, seed)[:2]


def sides(examples: Sequence[Any], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Split examples by runs. Return the indexes for the training list and for the held-out
    list."""
    groups = _group_by_root(examples, seed)
    count = _count_held_out(list(map(len, groups)), share)
    held_places = [place for group in groups[:count] for place in group]
    return [place for group in groups[count:] for place in group], held_places


def _set_aside_repeated(train: Sequence[E], held: Sequence[E]) -> tuple[list[E], list[E]]:
    """Divide held-out examples into examples with a new question and examples that repeat a
    question. If an example repeats a question for only one part of the node, each list gets a copy
    for one part."""
    known_questions = {item for example in train for item in questions_of(example).items()}
    new: list[E] = []
    left_out: list[E] = []
    for example in held:
        questions = questions_of(example)
        repeated_parts = {
            part for part, question in questions.items() if (part, question) in known_questions
        }
        known_questions.update(questions.items())
        if not repeated_parts:
            new.append(example)
        elif repeated_parts == questions.keys():
            left_out.append(example)
        else:
            new.append(without(example, sorted(repeated_parts)))
            left_out.append(without(example, sorted(questions.keys() - repeated_parts)))
    return new, left_out


def _group_by_root(examples: Sequence[Any], seed: int) -> list[list[int]]:
    """Return the indexes of the examples of each run. The order depends only on the seed and on the
    content of the examples."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for place, example in enumerate(examples):
        text = _text(dict(example.items()))
        # Examples without a run are grouped if they are equal.
        groups.setdefault(root_of(example) or text, []).append((text, place))
    ordered = sorted(groups, key=lambda root: (_sort_key(seed, root), root))
    return [
        [place for _, place in sorted(groups[root], key=lambda pair: pair[0])] for root in ordered
    ]


def _count_held_out(sizes: list[int], share: float) -> int:
    """Return how many groups to hold out to get closest to the share."""
    if not share or len(sizes) < 2:
        return 0
    target = share * sum(sizes)
    sums = [0, *accumulate(sizes)]
    return min(range(1, len(sizes)), key=lambda count: abs(sums[count] - target))


def _sort_key(seed: int, root: str) -> str:
    return sha256(f"{seed}:{root}".encode("utf-8", "backslashreplace")).hexdigest()
