"""The questions to LMs in a stored run, read without the run's code: their usage, their answers
with verdicts, and their rounds with tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from bae.journal.decoder import read_history
from bae.journal.provenance import JudgedAnswer, ToolRound
from bae.journal.stored_runs import StoredRun
from bae.journal.why import judged_answers, tool_rounds
from bae.records import error_text
from bae.usage import Usage
from bae.work import LMQuestion, State, Step, ToolLoop


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question to an LM, with all answers until a valid answer."""

    by: str
    """The part of the graph that asked, as `filling Outfit`."""
    place: str
    """The place of the node whose step has the question, as `1:Outfit`."""
    at: float
    """The time when the question began, in seconds since 1970."""
    seconds: float
    """How long the question took."""
    outcome: State
    """The outcome of the question: "interrupted" if the process ended before the answer."""
    error: str
    """Why the question failed, in one line; empty if it did not fail."""
    usage: Usage
    """The usage of the question. If the question was cut off, the usage until then."""
    answers: tuple[JudgedAnswer, ...] = ()
    """The answers of the LM with their verdicts."""
    rounds: tuple[ToolRound, ...] = ()
    """The rounds of the conversation, if the LM could call tools."""
    asked: str = ""
    """The text with which a conversation with tools begins, if it is recorded."""


def list_questions(stored: StoredRun) -> list[AskedQuestion]:
    """Return the questions to LMs in a run and in the graphs inside it, in the order in which they
    began. Raises `bae-journal-damaged` if a line is damaged."""
    history = read_history(stored)
    if "" not in history.graphs:
        return []
    steps = (step for graph in history.run.tree() for step in graph.trace)
    questions = [question for step in steps for question in _read_step(step)]
    return sorted(questions, key=lambda question: question.at)


def _read_step(step: Step) -> list[AskedQuestion]:
    listed_loops: list[ToolLoop] = []
    questions: list[AskedQuestion] = []
    for question in reversed([*step.questions]):
        loop = question.loop
        # After a resume, a conversation belongs to two questions: list it with the last question.
        is_listed = loop is not None and any(loop is listed for listed in listed_loops)
        if loop is not None and not is_listed:
            listed_loops.append(loop)
        questions.append(_read_question(question, step, None if is_listed else loop, is_listed))
    return questions


def _read_question(
    question: LMQuestion, step: Step, loop: ToolLoop | None, is_listed: bool
) -> AskedQuestion:
    usage = question.usage if is_listed else question.paid
    return AskedQuestion(
        str(question.asker),
        str(step.place),
        question.started,
        question.took or sum(span.seconds for span in question.spans),
        "interrupted" if question.is_open else question.state,
        "" if question.error is None else error_text(question.error),
        usage,
        tuple(judged_answers(question)),
        () if loop is None else tuple(tool_rounds(loop, question.asker)),
        "" if loop is None else loop.asked,
    )
