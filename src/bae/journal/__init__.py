"""The journal: the append-only list of typed records that a run is."""

from bae.journal.memory import MemoryJournal
from bae.journal.records import (
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
)

__all__ = [
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
]
