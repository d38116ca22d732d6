"""The graph of the work on a task. The LLM works, bae commits the edits, tests judge the work, and
accepted work is merged. The reason of a refusal goes back to the LLM.

Every step is in the journal. So a killed run continues where it stopped, and no answer is paid for
twice."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from bae import (
    LM,
    Dep,
    FillError,
    Graph,
    Node,
    Recall,
    Text,
    ToolCall,
    ToolCallError,
    ToolError,
)
from bae.lm import Usage, metered
from bae.team.desk import (
    SHOWN_FAILURE,
    Desk,
    PersonNeeded,
    Try,
    WorkRefusal,
    ask_about,
    ask_after_failures,
    get_desk,
)
from bae.team.edit_format import UNCHANGED, EditError, format_instructions, parse_answer
from bae.team.events import CorrectionAttempt
from bae.team.models import Task, bounded, headline
from bae.team.program_turns import ProgramResult, describe_no_work, take_turn
from bae.team.task_context import Context
from bae.team.worker_tools import TOOLS, LoopEnded, LoopStopped, submit_work

if TYPE_CHECKING:
    from bae.team.edit_format import EditFormat

ASKED_AGAIN: Final = 2
"""How often the LLM is asked again if its edits cannot be applied. The first time, the prompt has
the nearest lines of the file. The second time, the prompt asks for complete files."""
SYSTEM: Final = (
    "You are a member of a team that works on a project in a git repository. You carry out one "
    "task by editing its files. Your edits are applied as they are, the tests of the project are "
    "run, and your work is merged if they pass."
)


async def write_brief(desk: Annotated[Desk, Dep(get_desk)], attempt: Try) -> str:
    """Write the prompt of an attempt. The journal stores it as the value of `brief`."""
    worker, task = desk.worker, desk.task
    if attempt.number == attempt.first and not attempt.asked:
        await worker.say(task, f"works on {task.title}")
    brief = await worker.brief(task, await worker.build_context(task), attempt.failure)
    failed_before = await desk.describe_failed_before()
    parts = [brief if failed_before in attempt.failure else add_failed_before(brief, failed_before)]
    if attempt.refused:
        parts.append(f"# Your last answer\n{bounded(attempt.answer, _SHOWN_ANSWER)}")
        parts.append(f"# Why it was not applied\n{bounded(attempt.refused, _SHOWN_ANSWER)}")
    if attempt.asked >= ASKED_AGAIN and attempt.missed:
        parts.append(f"Write these files completely this time: {', '.join(attempt.missed)}.")
    return "\n\n".join(parts)


def read_answer(text: str) -> str:
    """Return the answer. Raise EditError if it has neither edits nor a question."""
    if question_in(text) is None:
        parse_answer(text)
    return text


class WorkerAnswer(Node):
    """The answer of the LLM."""

    former_name: ClassVar[str] = "Answer"
    """The name of this node in the scripts of a `ScriptedLM` for earlier versions of bae."""
    text: Annotated[str, Text(read_answer)] = Field(
        description="edits in the form that is shown above, or a question"
    )

    async def __call__(self) -> None: ...


class WorkRequest(Node):
    """A short form of the request, which the LLM answers."""

    task: str
    attempt: int
    asked_again: int = 0
    """How often an answer of this attempt could not be applied."""


class Assignment(Node):
    """The start: a task. Its body decides what to do first, such as an attempt or a question."""

    task_id: int
    key: str
    failure: str = Field(default="", description="the failure of an attempt, to be corrected")
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(
        self,
    ) -> Draft | WorkConversation | ProgramTurn | Checks | Delivered | Blocked | Stopped:
        desk = self.desk
        attempts = await desk.bench.store.attempts(self.task_id)
        number = max((attempt.number for attempt in attempts), default=0) + 1
        next_try = Try(first=number, number=number)
        if (outcome := await desk.finish_merged(next_try)) is not None:
            return await _follow_merge(desk, next_try, outcome)
        workspace = await desk.worker.workspace(desk.task)
        conflict = await workspace.update()
        if conflict is None and (outcome := await desk.finish_unchanged(next_try)) is not None:
            return await _follow_merge(desk, next_try, outcome)
        # A feature's acceptance tests fail before its work. The team's status must not show that
        # as a problem of the project.
        check = await desk.bench.check_base(workspace.base, keep=not desk.task.feature)
        if check.problem:
            return Blocked(question=ask_about(desk.task, check.cause, check.output))
        if attempts and attempts[-1].outcome == "error" and not (self.failure or conflict):
            number = attempts[-1].number  # the work of this attempt was committed, but never judged
            return Checks(attempt=Try(first=number, number=number, usage=attempts[-1].usage))
        failure = "\n\n".join(filter(None, (self.failure, conflict.text if conflict else "")))
        first = number - 1 if self.failure else number
        attempt = Try(first=first, number=number, failure=failure)
        if not failure and await desk.is_to_be_merged():
            return Checks(attempt=attempt)
        return await begin_attempt(desk, attempt)


async def begin_attempt(desk: Desk, attempt: Try) -> Draft | WorkConversation | ProgramTurn:
    """Return the node in which the worker makes its next attempt."""
    if desk.bench.program is not None:
        return ProgramTurn(attempt=attempt)
    if await desk.worker.find_mode() == "loop":
        return WorkConversation(attempt=attempt)
    return Draft(attempt=attempt)


class WorkConversation(Node):
    """The LLM works with tools until its work is merged, or a person is needed."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)
    brief: Annotated[str, Dep(write_brief, timeout=None, attempt="attempt")] = Field(init=False)

    async def __call__(self, lm: LM) -> WorkerLoop | Blocked | Stopped:
        desk, attempt = self.desk, self.attempt
        desk.brief, desk.attempt = self.brief, attempt
        request = WorkRequest(task=desk.task.key, attempt=attempt.number)
        try:
            with metered() as desk.used:
                return await lm.fill(WorkerLoop, {}, self.brief, request)
        except (LoopEnded, FillError, ToolCallError) as error:
            reason = _describe_end(desk.task, error)
            if reason is None:
                raise
            attempts = await desk.bench.store.attempts(desk.task.id)
            has_own_attempt = attempts and attempts[-1].number >= attempt.number
            failure = attempts[-1].failure if has_own_attempt else ""
            refusal_text = (
                f" It was refused: {headline(failure, 200).rstrip('.:')}." if failure else ""
            )
            question = f"{reason}{refusal_text} What should be done differently?"
            if failure:
                question += f"\n\nThe last failure:\n{bounded(failure, SHOWN_FAILURE)}"
            return Blocked(question=question)
        except LoopStopped:
            return Stopped(number=attempt.number)


def _describe_end(task: Task, error: LoopEnded | FillError | ToolCallError) -> str | None:
    """Describe to a person why a conversation ended. Return None if the LLM is not the cause."""
    if isinstance(error, LoopEnded):
        return error.message
    if isinstance(error, ToolCallError) and error.code not in _HOPELESS:
        return None
    return f"The work on {task.title!r} ended without a result: {headline(error.message, 300)}."


_HOPELESS: Final = ("bae-tools-context", "bae-tool-wrong-rounds")
"""Errors of which the LLM is the cause: the conversation is too long, or its last rounds had no
valid call."""


class WorkerLoop(Node):
    """A conversation: the LLM calls tools, and its last message submits the work."""

    calls: Annotated[list[ToolCall], TOOLS]
    summary: Annotated[str, Text()] = Field(
        description="the submission: what you changed and how you checked it, in a few lines"
    )

    async def __call__(self) -> Submission:
        return Submission()


class Submission(Node):
    """The outcome of the conversation's last submission."""

    attempt: Annotated[Try, Recall(WorkConversation)] = Field(init=False)
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Delivered | Blocked:
        desk, task = self.desk, self.desk.task
        try:
            # If the run was killed after its submission was accepted, `desk.outcome` is not set.
            outcome = desk.outcome or await submit_work(desk, self.attempt)
        except ToolError as refused:
            outcome = PersonNeeded(ask_after_failures(task, 1, str(refused)))
        return (
            _make_blocked(outcome)
            if isinstance(outcome, PersonNeeded)
            else Delivered(commit=outcome)
        )


class ProgramTurn(Node):
    """A coding program works in the worktree until it ends, and bae commits the files that it
    left."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)
    turn: Annotated[ProgramResult, Dep(take_turn, timeout=None, attempt="attempt")] = Field(
        init=False
    )

    async def __call__(self) -> Checks | Draft | WorkConversation | ProgramTurn | Blocked | Stopped:
        desk, turn = self.desk, self.turn
        used = Usage.total([self.attempt.usage, turn.usage])
        attempt = self.attempt.model_copy(update={"usage": used})
        workspace = await desk.worker.workspace(desk.task)
        is_first = attempt.number == attempt.first
        if turn.files or (is_first and not turn.refused and await workspace.changed()):
            return Checks(attempt=attempt)
        if not turn.refused and (question := question_in(turn.summary)) is not None:
            return Blocked(question=question)
        failure = turn.refused or describe_no_work(turn)
        await desk.keep(attempt, "refused", None, failure)
        return await try_again(desk, attempt, WorkRefusal(failure))


class Draft(Node):
    """An attempt in `oneshot`: the LLM is asked for edits."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)
    brief: Annotated[str, Dep(write_brief, timeout=None, attempt="attempt")] = Field(init=False)

    async def __call__(self, lm: LM) -> Edits | Blocked:
        worker, task, attempt = self.desk.worker, self.desk.task, self.attempt
        request = WorkRequest(task=task.key, attempt=attempt.number, asked_again=attempt.asked)
        with metered() as used:
            text = await worker.generate_code(task, self.brief, lm=lm, request=request)
        question = question_in(text)
        if question is not None:
            return Blocked(question=question)
        if attempt.repeated and digest(text) == attempt.repeated:
            failure = attempt.refused or attempt.failure
            await self.desk.keep(attempt, "refused", None, REPEATED)
            return Blocked(question=_ask_about_repetition(task, failure))
        answered = {"answer": text, "usage": Usage.total([attempt.usage, *used])}
        return Edits(attempt=attempt.model_copy(update=answered))


class Edits(Node):
    """bae applies and commits the edits of an answer, all or none."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Checks | Draft | WorkConversation | ProgramTurn | Blocked | Stopped:
        desk, attempt = self.desk, self.attempt
        mark = f"{desk.run}/{attempt.number}"
        try:
            await desk.worker.apply_file_changes(desk.task, attempt.answer, mark=mark)
        except EditError as error:
            if await _repeats_earlier_work(desk, attempt, error):
                return Checks(attempt=attempt)
            if attempt.asked < ASKED_AGAIN:
                refusal = {"refused": error.message, "missed": error.missed}
                retry = {"asked": attempt.asked + 1, "repeated": digest(attempt.answer)}
                return Draft(attempt=attempt.model_copy(update=refusal | retry))
            await desk.keep(attempt, "refused", None, error.message)
            failure = attempt.failure  # the earlier failure remains, because no file was changed
            if error.message not in failure:
                failure = f"{error.message}\n\n{failure}".rstrip()
            return await try_again(desk, attempt, WorkRefusal(failure))
        return Checks(attempt=attempt)


async def _repeats_earlier_work(desk: Desk, attempt: Try, error: EditError) -> bool:
    """Return whether an answer repeats the work of an earlier run.

    If so, tests judge that work again, because a person may have fixed the cause of its failure
    outside of the code."""
    if attempt.number != attempt.first or error.reasons != (UNCHANGED,):
        return False
    return bool(await (await desk.worker.workspace(desk.task)).changed())


class Checks(Node):
    """Tests judge the committed work."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(self) -> Merge | Draft | WorkConversation | ProgramTurn | Blocked | Stopped:
        match await self.desk.judge(self.attempt):
            case WorkRefusal() as refusal:
                return await try_again(self.desk, self.attempt, refusal)
            case PersonNeeded() as needed:
                return _make_blocked(needed)
            case _:
                return Merge(attempt=self.attempt)


class Merge(Node):
    """bae merges the work into the team's branch, and tests the merged tree."""

    attempt: Try
    desk: Annotated[Desk, Dep(get_desk)] = Field(init=False)

    async def __call__(
        self,
    ) -> Delivered | Draft | WorkConversation | ProgramTurn | Blocked | Stopped:
        return await _follow_merge(self.desk, self.attempt, await self.desk.merge(self.attempt))


class Delivered(Node):
    """The end: the work is merged."""

    commit: str

    async def __call__(self) -> None: ...


class Blocked(Node):
    """The end: bae asks a person."""

    question: str
    digest: str | None = None
    """A digest of the content that the answer `yes` accepts."""

    async def __call__(self) -> None: ...


class Stopped(Node):
    """The end: a person stopped the task."""

    number: int

    async def __call__(self) -> None: ...


async def _follow_merge(
    desk: Desk, attempt: Try, outcome: str | WorkRefusal | PersonNeeded
) -> Delivered | Draft | WorkConversation | ProgramTurn | Blocked | Stopped:
    """Return the node that follows the outcome of a merge: a commit, a refusal or a question."""
    match outcome:
        case WorkRefusal() as refusal:
            return await try_again(desk, attempt, refusal)
        case PersonNeeded() as needed:
            return _make_blocked(needed)
        case commit:
            return Delivered(commit=commit)


async def try_again(
    desk: Desk, attempt: Try, refusal: WorkRefusal
) -> Draft | WorkConversation | ProgramTurn | Blocked | Stopped:
    """Return the node of the next attempt after a refusal.

    If the failure repeats, or if there were too many corrections, ask a person instead."""
    task, corrections_done, failure = desk.task, attempt.number - attempt.first, refusal.text
    is_repeated = is_same_failure(failure, attempt.failure)
    if desk.bench.should_stop(task.id):
        return Stopped(number=attempt.number)
    if is_repeated or corrections_done >= desk.bench.corrections:
        return Blocked(
            question=ask_after_failures(task, corrections_done + 1, failure, again=is_repeated)
        )
    shown_failure = bounded(failure, SHOWN_FAILURE)
    await desk.bench.emit(
        CorrectionAttempt(task.project_id, task.id, corrections_done + 1, shown_failure)
    )
    # After a conflict, the LLM may repeat its answer: the answer may resolve the conflict.
    repeated = "" if refusal.is_conflict else digest(attempt.answer)
    number, first = attempt.number + 1, attempt.first
    following = Try(first=first, number=number, failure=failure, repeated=repeated)
    return await begin_attempt(desk, following)


def _make_blocked(needed: PersonNeeded) -> Blocked:
    return Blocked(question=needed.question, digest=needed.digest)


worker_graph = Graph(start=Assignment, end=(Delivered, Blocked, Stopped), system=SYSTEM)


def compose_brief(
    role: str, context: Context, failure: str, diff: str, form: EditFormat | None
) -> str:
    """Write the complete prompt of an attempt. `form` is the form of edits; None means that the LLM
    works with tools."""
    parts = [role, str(context.without_failure() if failure else context)]
    if diff:
        stays = _STAYS if failure and form else ""
        parts.append(f"# What was changed for this task so far\n{diff}{stays}")
    if failure:
        parts.append(f"# What is wrong with it, to be corrected now\n{failure}")
    instructions = f"# How to answer\n{format_instructions(form)}\n\n{_ASK}" if form else _LOOP
    return "\n\n".join(filter(None, (*parts, instructions, context.reminder)))


def add_failed_before(brief: str, failed_before: str) -> str:
    """Add the tests that failed before the task to a brief, if there are any."""
    return f"{brief}\n\n# Tests that failed before\n{failed_before}" if failed_before else brief


def question_in(answer: str) -> str | None:
    """Return the question in an answer, or None if the answer is not a question."""
    match = _QUESTION.match(answer)
    return bounded(match[1].strip(), SHOWN_FAILURE) if match else None


def digest(answer: str) -> str:
    """Return a digest of an answer's words, or an empty text for an empty answer."""
    words = " ".join(answer.split())
    return sha256(words.encode()).hexdigest()[:16] if words else ""


def is_same_failure(first: str, second: str) -> bool:
    """Return whether two texts describe the same failure. Times, addresses, line numbers and
    temporary paths may differ."""
    return bool(first) and _VARYING.sub("", first) == _VARYING.sub("", second)


def _ask_about_repetition(task: Task, failure: str) -> str:
    reason = headline(failure, 200).rstrip(".:")
    return (
        f"The LLM repeated its answer for {task.title!r} word for word. It had failed: {reason}. "
        f"What should be done differently?\n\nThe failure:\n{bounded(failure, SHOWN_FAILURE)}"
    )


REPEATED: Final = "the LLM repeated its last answer word for word"
_SHOWN_ANSWER: Final = 40_000
_STAYS: Final = "\n\nYour answer continues from there: delete the files that are not to stay."
_ASK: Final = (
    "If, and only if, the task cannot be done before a person has decided something, write no "
    "edits but one question, as `QUESTION: …`."
)
_LOOP: Final = """# How to work
- Look before you edit: `find`, `outline` and `look` show the repository, `run` tries a command.
- `edit` is the only way to change files. Write the test first where a new test proves the work.
- `check` runs tests. Check your work before you submit it; failures that are marked are not yours.
- To submit, answer without a call: say in a few lines what you changed and how you checked it. Then
  all tests run in a fresh copy, and the work is merged if it is accepted. A refusal comes back to
  you as a message: correct the work and submit again.
- `ask` is for what only a person can decide."""
_QUESTION: Final = re.compile(r"\s*QUESTION:\s*(\S.*)", re.DOTALL)
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?\s?m?s\b|:\d+(:\d+)?|/tmp/\S+|\s+")
