"""The journal of a run: an append-only list of typed records, and the stores for it."""

from typing import TYPE_CHECKING

from bae.approvals import Grant
from bae.place import Place
from bae.records import (
    AnswerBegan,
    AnswerJudged,
    AnswerRestarted,
    Asker,
    CallEnded,
    ChoiceMade,
    ChoiceStarted,
    ClassMet,
    FieldText,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMAnswered,
    LMFailed,
    LMUsed,
    Origin,
    Recalled,
    Record,
    Returned,
    RoundMade,
    RoundReplied,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
    TextVoided,
    Thinking,
    ToolEnded,
    ToolReported,
    ToolsOffered,
    ToolStarted,
    TurnsShown,
    TurnStarted,
)
from bae.result import Recovered, RunJournal
from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.journal.compatibility import BrokenRun, Change, check
    from bae.journal.critical_paths import CriticalPart, CriticalPath, critical_path
    from bae.journal.feeds import Feed, FeedBatch, FeedItem, FeedPage, Feeds, Subscriber, subscribe
    from bae.journal.memory import MemoryJournal
    from bae.journal.postgres import PostgresJournal
    from bae.journal.provenance import JudgedAnswer, MadeCall, Provenance, ToolRound
    from bae.journal.questions import AskedQuestion, list_questions
    from bae.journal.redaction import Redaction
    from bae.journal.report import Timeline, timeline
    from bae.journal.run_checks import thread_busy
    from bae.journal.run_lists import list_runs
    from bae.journal.sqlite import SQLiteJournal
    from bae.journal.store import Journal
    from bae.journal.stored_runs import (
        Claim,
        Line,
        Listed,
        ParkedGate,
        RunInfo,
        RunLines,
        RunStatus,
        RunSummary,
        StoredRun,
    )
    from bae.journal.stored_thread import StoredThread, ThreadTurn

__all__ = [
    "AnswerBegan",
    "AnswerJudged",
    "AnswerRestarted",
    "AskedQuestion",
    "Asker",
    "BrokenRun",
    "CallEnded",
    "Change",
    "ChoiceMade",
    "ChoiceStarted",
    "Claim",
    "ClassMet",
    "CriticalPart",
    "CriticalPath",
    "Feed",
    "FeedBatch",
    "FeedItem",
    "FeedPage",
    "Feeds",
    "FieldText",
    "FillEnded",
    "FillStarted",
    "GateOpened",
    "Grant",
    "ItemEnded",
    "Journal",
    "JudgedAnswer",
    "LMAnswered",
    "LMFailed",
    "LMUsed",
    "Line",
    "Listed",
    "MadeCall",
    "MemoryJournal",
    "Origin",
    "ParkedGate",
    "Place",
    "PostgresJournal",
    "Provenance",
    "Recalled",
    "Record",
    "Recovered",
    "Redaction",
    "Returned",
    "RoundMade",
    "RoundReplied",
    "RunEnded",
    "RunForked",
    "RunInfo",
    "RunJournal",
    "RunLines",
    "RunResumed",
    "RunStarted",
    "RunStatus",
    "RunSummary",
    "SQLiteJournal",
    "SourceEnded",
    "SourceStarted",
    "StepStarted",
    "StoredRun",
    "StoredThread",
    "Subscriber",
    "TextVoided",
    "Thinking",
    "ThreadTurn",
    "Timeline",
    "ToolEnded",
    "ToolReported",
    "ToolRound",
    "ToolStarted",
    "ToolsOffered",
    "TurnStarted",
    "TurnsShown",
    "check",
    "critical_path",
    "list_questions",
    "list_runs",
    "subscribe",
    "thread_busy",
    "timeline",
]

# These modules are imported at their first use, because a run without a journal needs none of them.
__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "compatibility": "BrokenRun Change check",
        "critical_paths": "CriticalPart CriticalPath critical_path",
        "feeds": "Feed FeedBatch FeedItem FeedPage Feeds Subscriber subscribe",
        "memory": "MemoryJournal",
        "postgres.journal": "PostgresJournal",
        "provenance": "JudgedAnswer MadeCall Provenance ToolRound",
        "questions": "AskedQuestion list_questions",
        "redaction": "Redaction",
        "report": "Timeline timeline",
        "sqlite.journal": "SQLiteJournal",
        "run_checks": "thread_busy",
        "run_lists": "list_runs",
        "store": "Journal",
        "stored_runs": (
            "Claim Line Listed ParkedGate RunInfo RunLines RunSummary RunStatus StoredRun"
        ),
        "stored_thread": "StoredThread ThreadTurn",
    },
)
