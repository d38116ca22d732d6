"""A worker's conversation with its LLM: the tools, the submission of the work, and the limits that
end the conversation early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from bae import (
    Ask,
    Dep,
    Node,
    Tool,
    ToolCall,
    ToolError,
    ToolProgress,
    Tools,
    idempotency_key,
)
from bae.lm import Usage
from bae.team import trials
from bae.team.budgets import reserve_round
from bae.team.desk import (
    SHOWN_FAILURE,
    Desk,
    PersonNeeded,
    Try,
    WorkRefusal,
    ask_after_failures,
    get_desk,
)
from bae.team.edit_format import EditError, format_instructions
from bae.team.events import CorrectionAttempt
from bae.team.models import TeamError, bounded, headline
from bae.team.reading import find, look, outline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bae.team.models import Task

_EQUAL: Final = 3
"""A conversation ends after so many equal calls in a row, or so many submissions of the same work
in a row."""
_LAST: Final = 3
"""The LLM is warned so many rounds before a limit."""
_MOST_ROUNDS: Final = 1_000
_MOST_CALLS: Final = 10
"""How many calls one round may have. With more calls, the results might not fit into the
conversation."""
_ASKS: Final = "ask"


class LoopEnded(TeamError):
    """A conversation ended without accepted work. bae asks a person, with this error's message as
    the reason."""

    code: str = "bae-team-loop"


class LoopStopped(TeamError):
    """A person stopped the task between two rounds of its conversation."""

    code: str = "bae-team-stopped"


async def edit(text: str, *, desk: Annotated[Desk, Dep(get_desk)]) -> str:
    """Change files. Overridden by a description with the format."""
    try:
        mark = idempotency_key()
        files = await desk.worker.apply_file_changes(desk.task, text, mark=mark)
    except EditError as error:
        problems = "\n- ".join(error.reasons) or error.message
        raise ToolError(f"Nothing was changed:\n- {problems}") from error
    return f"changed: {', '.join(files)}"


async def run(
    command: str,
    seconds: Annotated[float, Field(gt=0, le=300)] = 60,
    *,
    desk: Annotated[Desk, Dep(get_desk)],
) -> str:
    """Run a shell command on a throw-away copy of the files, in a sandbox without a network. What
    it changes there is not kept: only `edit` changes files.

    Args:
        command: as for `sh -c`
        seconds: after which it is ended
    """
    workspace = await desk.worker.workspace(desk.task)
    return await trials.run_command(desk.bench, desk.task, workspace, command, timeout=seconds)


async def check(tests: tuple[str, ...] = (), *, desk: Annotated[Desk, Dep(get_desk)]) -> str:
    """Run tests on a throw-away copy of the files, and see what fails. Failures from before your
    work are marked.

    Args:
        tests: ids, files or groups of tests, as tests/test_login.py::test_a_name; all without any
    """
    workspace = await desk.worker.workspace(desk.task)
    return await trials.check_tests(desk.bench, desk.task, workspace, tests)


async def submit(work: Node, *, desk: Annotated[Desk, Dep(get_desk)]) -> None:
    """Judge and merge the work. If the work is refused, the reason is the next message of the
    conversation."""
    desk.summary = str(getattr(work, "summary", ""))
    desk.outcome = await submit_work(desk, desk.attempt)


async def submit_work(desk: Desk, attempt: Try) -> str | PersonNeeded:
    """Judge the committed work and merge it. Return the merged commit, or a question to a person.

    If the work is refused and the LLM may submit again, raise ToolError with the reason. Refused
    work is not judged again before it changes."""
    bench, task = desk.bench, desk.task
    match await desk.finish_merged(attempt) or await desk.finish_unchanged(attempt):
        case WorkRefusal() as refusal:
            raise ToolError(f"The work was refused:\n\n{refusal.text}")
        case None:
            pass
        case merged:
            return merged
    workspace = await desk.worker.workspace(task)
    if not await _is_changed(desk):
        raise ToolError("No file is changed yet. Use `edit`, or `ask` if the task cannot be done.")
    attempts = [
        stored for stored in await bench.store.attempts(task.id) if stored.number >= attempt.number
    ]
    number = attempts[-1].number + 1 if attempts else attempt.number
    if attempts and attempts[-1].commit == await workspace.head():
        if attempts[-1].outcome in ("failed", "refused"):
            raise ToolError(f"The work, as it is now, was refused:\n\n{attempts[-1].failure}")
        number = attempts[-1].number
    usage = Usage.total(desk.used)  # the usage since the last submission
    desk.used.clear()
    outcome = await desk.submit(Try(first=attempt.first, number=number, usage=usage))
    if not isinstance(outcome, WorkRefusal):
        return outcome
    corrections_done, failure = number - attempt.first, outcome.text
    if corrections_done >= bench.corrections:
        return PersonNeeded(ask_after_failures(task, corrections_done + 1, failure))
    shown_failure = bounded(failure, SHOWN_FAILURE)
    await bench.emit(
        CorrectionAttempt(task.project_id, task.id, corrections_done + 1, shown_failure)
    )
    submissions_left = bench.corrections - corrections_done
    times = "once more" if submissions_left == 1 else f"{submissions_left} more times"
    raise ToolError(f"The work was refused:\n\n{failure}\n\nCorrect it. You can submit {times}.")


async def steer(progress: ToolProgress, *, desk: Annotated[Desk, Dep(get_desk)]) -> str | None:
    """Write the message to the LLM before its next round: new notes of people, and a warning if few
    rounds are left.

    Raise LoopEnded if the conversation repeats itself, makes no progress, or has used all its
    rounds. Raise LoopStopped if a person stopped the task."""
    bench, task = desk.bench, desk.task
    if bench.should_stop(task.id):
        raise LoopStopped(f"the work on {task.title!r} was stopped")
    idle_rounds = _count_since((edit.__name__, _ASKS), progress.by_round)
    last = progress.calls[-_EQUAL:]
    if len(last) == _EQUAL and len({(call.name, str(call.arguments)) for call in last}) == 1:
        raise _make_ended(
            task, f"it made the same call {_EQUAL} times: {headline(str(last[0]), 200)}"
        )
    if len(progress.by_round) >= _EQUAL and not any(progress.by_round[-_EQUAL:]):
        action = "submitted the same work" if await _is_changed(desk) else "submitted no change"
        words = f": {headline(desk.summary, 200)!r}" if desk.summary else ""
        raise _make_ended(task, f"it {action} {_EQUAL} times{words}")
    if idle_rounds >= bench.idle_rounds:
        raise _make_ended(task, f"it changed nothing in {idle_rounds} rounds")
    question_round = progress.rounds - _count_since((_ASKS,), progress.by_round)
    # After a late answer of a person, the LLM has a few more rounds to act on it.
    limit = max(bench.rounds, question_round and question_round + _LAST)
    rounds_left = limit - progress.rounds
    if rounds_left <= 0:
        raise _make_ended(task, f"it was not done after {progress.rounds} rounds (--max-rounds)")
    await reserve_round()
    conversation = "\n".join(("", desk.brief, *progress.messages, ""))
    notes = (await bench.store.task(task.id)).notes
    new = [f"A person says: {note}" for note in notes if f"\n{note}\n" not in conversation]
    messages = [text for text in new if f"\n{text}\n" not in conversation]
    if rounds_left <= _LAST:
        rounds = "This is the last round" if rounds_left == 1 else f"{rounds_left} rounds are left"
        messages.append(f"{rounds}: submit by answering without a call, or ask.")
    elif bench.idle_rounds - idle_rounds == _LAST:
        messages.append(
            f"Nothing was changed in {idle_rounds} rounds: edit, submit or ask within {_LAST}."
        )
    return "\n\n".join(messages) or None


async def _is_changed(desk: Desk) -> bool:
    """Return whether the task has changed a file."""
    return bool(await (await desk.worker.workspace(desk.task)).changed())


def _count_since(names: Sequence[str], rounds: Sequence[Sequence[ToolCall]]) -> int:
    """Count the rounds since the last successful call of a tool in `names`."""
    for count, calls in enumerate(reversed(rounds)):
        if any(call.name in names and call.error is None for call in calls):
            return count
    return len(rounds)


def _make_ended(task: Task, why: str) -> LoopEnded:
    return LoopEnded(f"The work on {task.title!r} ended without a result: {why}.")


_EDIT: Final = (
    "Change files: all edits of `text`, or none. An edit that cannot be applied, or that breaks "
    f"the syntax of a file, is refused with the reason.\n\n{format_instructions()}\n\nA unified "
    "diff is read too."
)
_ASK: Final = (
    "Ask the person you work for. Use it only if the task cannot be done before they have decided "
    "something. The work waits for the answer."
)


TOOLS: Final = Tools(
    Tool(look, unfinished="repeat"),
    Tool(find, unfinished="repeat"),
    Tool(outline, unfinished="repeat"),
    Tool(edit, description=_EDIT, unfinished="repeat"),
    Tool(run, timeout=None, unfinished="repeat"),
    Tool(check, timeout=None, unfinished="repeat"),
    Ask(str, name=_ASKS, description=_ASK),
    limit=_MOST_ROUNDS,
    accept=submit,
    accept_timeout=None,  # test runs have a limit of their own
    before_round=steer,
    context=60_000,
    max_calls=_MOST_CALLS,
    at_once=1,  # calls run in their order, so that a check sees the edit before it
)
"""The tools of a worker's conversation."""
