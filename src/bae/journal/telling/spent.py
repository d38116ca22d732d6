"""What the LM calls behind a value used, and what became of their answers. `why.py` says which
lines of a run belong to the value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from bae.journal.shape import Json
from bae.journal.telling.provenance import JudgedAnswer, Provenance
from bae.journal.telling.story import Entry, Story
from bae.usage import Usage

SUMS: Final = ("ChoiceMade", "FillEnded", "LMUsed")
"""The lines that say what LM calls used; those of single answers are parts of these."""


def with_usage(story: Story, made: Provenance, entries: Sequence[Entry]) -> Provenance:
    """The same with what the calls in these lines used, and those in the graphs inside it; the
    answers are those of these lines alone."""
    paths = [made.inside, *(item.inside for item in made.items if item is not None)]
    every = [*entries, *(e for path in paths if path for e in story.inside(path))]
    usage = Usage.total(usage_of(e.data) for e in every if e.line.kind in SUMS)
    judged = [e for e in every if e.line.kind == "AnswerJudged"]
    models = dict.fromkeys(usage.models)
    models |= dict.fromkeys(model for e in judged for model in usage_of(e.data).models)
    return replace(
        made,
        usage=usage,
        models=tuple(models),
        prompts=tuple(dict.fromkeys(e.data["prompt"] for e in judged if e.data.get("prompt"))),
        attempts=tuple(_judged(e) for e in entries if e.line.kind == "AnswerJudged"),
    )


def _judged(entry: Entry) -> JudgedAnswer:
    data = entry.data
    return JudgedAnswer(
        data["number"],
        data["verdict"],
        tuple(data.get("errors", ())),
        data.get("prompt", ""),
        entry.line.at,
        usage_of(data),
        data.get("asked"),
        data.get("answer"),
    )


def usage_of(data: Json) -> Usage:
    """What a line says was used; nothing where it says nothing."""
    said: Any = data.get("usage")
    if not isinstance(said, dict):
        return Usage()
    known = {k: v for k, v in cast(Json, said).items() if k in Usage.__dataclass_fields__}
    known["models"] = tuple(known.get("models", ()))
    return Usage(**known)
