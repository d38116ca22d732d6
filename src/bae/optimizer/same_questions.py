"""Examples that ask the same: what a model is told of the node a run is at, and, where it fills the
next one, of that one's context. Runs repeat themselves, so an answer that a person has put right
stands for all equal questions, and each is taught, and held out, once. `splitting.py`,
`collecting.py` and `part_training.py` go by this."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from bae.optimizer.examples import BAE, WITHOUT, noted, source_of


def questions_of(example: Any) -> dict[str, str]:
    """The questions that an example answers, each as one text, by the part of a node it belongs to.
    An example of one part answers one, under the name ""."""
    if "next_node_type" not in example:
        return {"": question_of(example)}
    about = noted(example)
    types = about.get("types") or [example.get("node_type"), example.get("next_node_type")]
    source = source_of(example)
    found = {"choice": _text([types[0], source])}
    made = _made(example)
    if made is not None and made.get("fields"):
        found["fill"] = _text([types[1], source, made.get("context") or {}])
    left_out = about.get(WITHOUT) or ()
    return {part: text for part, text in found.items() if part not in left_out}


def question_of(example: Any) -> str:
    """The question that an example of one part answers, as one text."""
    return _text([sorted(_outputs(example)), _inputs(example)])


def with_corrections(examples: Iterable[Any], times: Sequence[float] = ()) -> list[Any]:
    """The examples, where the answer that a person has given stands in the place of every other
    one to the same question, and is marked as corrected there: of several the newest, where there
    are `times`, or else that which comes first. They are those of `examples_from`, and stay as they
    are: what is changed is a copy."""
    given = list(examples)
    asked = [questions_of(each).get("fill") for each in given]
    best: dict[str, Any] = {}
    for place in sorted(range(len(times)), key=lambda place: -times[place]) or range(len(given)):
        question = asked[place]
        if question is not None and given[place].get("corrected"):
            best.setdefault(question, given[place])
    if not best:
        return given
    return [
        each if question not in best else _answered_as(each, best[question])
        for each, question in zip(given, asked, strict=True)
    ]


def distinct(examples: Sequence[Any]) -> list[Any]:
    """One example of a part for each question, in the order in which they come: with the answer
    that a person has put right, or else the one that was given most often."""
    groups: dict[str, list[Any]] = {}
    for each in examples:
        groups.setdefault(question_of(each), []).append(each)
    return [_most_trusted(group) for group in groups.values()]


def is_corrected(example: Any) -> bool:
    """Whether a person has put right the answer in an example of one part."""
    about = noted(example)
    # A node may have a field of that name.
    return about.keys() == {"run_id", "root", "corrected"} and bool(about["corrected"])


def without(example: Any, parts: Collection[str]) -> Any:
    """A copy of an example that answers nothing for these parts of a node."""
    left_out = [*(noted(example).get(WITHOUT) or ()), *parts]
    return _with(example, **{BAE: {**noted(example), WITHOUT: left_out}})


def _most_trusted(group: Sequence[Any]) -> Any:
    for each in group:
        if is_corrected(each):
            return each
    answers = [_text(_outputs(each)) for each in group]
    most, _ = Counter(answers).most_common(1)[0]  # of equally many the first
    return group[answers.index(most)]


def _answered_as(example: Any, best: Any) -> Any:
    fields, better = _made(example), _made(best)
    if example is best or fields is None or better is None:
        return example
    corrected = list(best["corrected"])
    if fields["fields"] == better["fields"] and example.get("corrected") == corrected:
        return example
    # With the mark: the person's own example may come to the other side of a split.
    made = {**fields, "fields": better["fields"]}
    return _with(example, next_node=made, corrected=corrected)


def _with(example: Any, **values: Any) -> Any:
    # A plain mapping does for an example, too.
    if isinstance(example, dict):
        return {**cast("dict[str, Any]", example), **values}
    return example.copy(**values)


def _made(example: Any) -> Mapping[str, Any] | None:
    made = example.get("next_node")
    return cast("Mapping[str, Any]", made) if isinstance(made, Mapping) else None


def _inputs(example: Any) -> dict[str, Any]:
    try:
        return dict(example.inputs().items())
    except (AttributeError, ValueError):  # a mapping; or an example that says nothing of inputs
        return {name: value for name, value in example.items() if name != BAE}


def _outputs(example: Any) -> dict[str, Any]:
    inputs = _inputs(example)
    return {n: v for n, v in example.items() if n not in inputs and n != BAE}


def _text(said: Any) -> str:
    return json.dumps(said, sort_keys=True, default=str)
