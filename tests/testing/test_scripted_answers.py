"""`ScriptedLM.has_answers`: whether a script can answer for a class."""

from __future__ import annotations

from bae import Node
from bae.testing import ScriptedLM


class Summary(Node):
    text: str

    async def __call__(self) -> None: ...


def test_has_answers_is_true_for_classes_with_answers_left() -> None:
    lm = ScriptedLM({Summary: [{"text": "short"}], "Review": lambda asked: {}, "Outfit": []})
    assert lm.has_answers(Summary)
    assert lm.has_answers("Review")
    assert not lm.has_answers("Outfit")
    assert not lm.has_answers("Letter")
    assert not ScriptedLM([{"text": "short"}]).has_answers(Summary)
