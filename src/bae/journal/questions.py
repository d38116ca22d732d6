"""The questions to LMs in a stored run, read without its code: each question with its usage, the
answers and their verdicts, and the rounds in which tools were called."""

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
    """A question to an LM, until it was answered.

    - `by` and `place`: the asker, and the node that it asked for.
    - `at` and `seconds`: when the question began, and how long it took.
    - `outcome` and `error`: its outcome. A question that was open when the process ended is
      "interrupted".
    - `usage`: its usage, also if it was cut off.
    - `answers`: the answers of the LM. `rounds`: the rounds with tool calls, if it could call
      tools. `asked`: the text that this conversation begins with, if a backend was asked.
    """

    by: str
    place: str
    at: float
    seconds: float
    outcome: State
    error: str
    usage: Usage
    answers: tuple[JudgedAnswer, ...] = ()
    rounds: tuple[ToolRound, ...] = ()
    asked: str = ""


def list_questions(stored: StoredRun) -> list[AskedQuestion]:
    """The questions to LMs in a run, in order, including graphs inside it. Raises
    `bae-journal-damaged` for a damaged line."""
    history = read_history(stored)
    if "" not in history.graphs:
        return []
    steps = (step for graph in history.run.tree() for step in graph.trace)
    questions = [each for step in steps for each in _read_step(step)]
    return sorted(questions, key=lambda each: each.at)


def _read_step(step: Step) -> list[AskedQuestion]:
    told: list[ToolLoop] = []
    questions: list[AskedQuestion] = []
    for question in reversed([*step.questions]):
        loop = question.loop
        # A resumed conversation is another question: list it once, with the last question.
        is_told = loop is not None and any(loop is each for each in told)
        if loop is not None and not is_told:
            told.append(loop)
        questions.append(_read_question(question, step, None if is_told else loop, is_told))
    return questions


def _read_question(
    question: LMQuestion, step: Step, loop: ToolLoop | None, is_told: bool
) -> AskedQuestion:
    used = question.usage if is_told else question.paid
    return AskedQuestion(
        str(question.asker),
        str(step.place),
        question.started,
        question.took or sum(span.seconds for span in question.spans),
        "interrupted" if question.is_open else question.state,
        "" if question.error is None else error_text(question.error),
        used,
        tuple(judged_answers(question)),
        () if loop is None else tuple(tool_rounds(loop, question.asker)),
        "" if loop is None else loop.asked,
    )
