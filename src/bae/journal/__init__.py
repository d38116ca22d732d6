"""The journal: the append-only list of typed records that a run is."""

from bae.journal.memory import MemoryJournal
from bae.journal.records import (
    AnswerJudged,
    AnswerRestarted,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMUsed,
    Recalled,
    Record,
    RunEnded,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
    TextArrived,
)

__all__ = [
    "AnswerJudged",
    "AnswerRestarted",
    "ChoiceMade",
    "ChoiceStarted",
    "FillEnded",
    "FillStarted",
    "GateOpened",
    "ItemEnded",
    "LMUsed",
    "MemoryJournal",
    "Recalled",
    "Record",
    "RunEnded",
    "RunStarted",
    "SourceEnded",
    "SourceStarted",
    "StepStarted",
    "TextArrived",
]
