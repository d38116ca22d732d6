"""The turns of a coding program that works on a task. A turn sends the prompt, charges the usage
and commits the changed files. A turn that ended before a kill is not repeated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from bae import Dep
from bae.lm import Usage, report_usage
from bae.team.desk import Desk, Try, get_desk
from bae.team.edits import find_refused
from bae.team.events import CommitCreated
from bae.team.files import delete_folder, make_accessible
from bae.team.git import shown_path
from bae.team.models import Task, bounded
from bae.team.programs import CodingProgram, EndedTurn, ProgramError, ProgramEvent, TurnEnd
from bae.team.task_context import FROM_PEOPLE
from bae.team.test_runs import find_variables, split_commands

if TYPE_CHECKING:
    from bae.team.task_context import Context
    from bae.team.workbench import Workbench
    from bae.team.workspaces import Workspace


class ProgramResult(BaseModel):
    """The result of a turn of a coding program."""

    model_config = ConfigDict(frozen=True)

    session: str = Field(default="", description="the id of the conversation, to resume it")
    summary: str = Field(default="", description="the last message of the program")
    usage: Usage = Usage()
    end: TurnEnd = "done"
    files: tuple[str, ...] = Field(default=(), description="the files that are committed")
    refused: str = Field(default="", description="why the changed files were not committed")


class _Progress(BaseModel):
    """The stored progress of a program's work on a task. The file is beside the program's home
    directory."""

    session: str = ""
    total: Usage = Usage()
    """The usage of the conversation so far."""
    mark: str = ""
    """The mark of the last attempt that ended."""
    result: ProgramResult | None = None
    """The result of this attempt."""


async def take_turn(desk: Annotated[Desk, Dep(get_desk)], attempt: Try) -> ProgramResult:
    """Run the team's program for an attempt, and commit the files that the program changed. If the
    turn ended before a kill, return its result without running the program again."""
    program = desk.bench.program
    assert program is not None
    turn = _Turn(desk, attempt, program)
    if (result := await turn.find_ended()) is None:
        result = await turn.run()
        usage = result.usage
        report_usage(usage if usage.models else replace(usage, models=(program.name,)))
    return result


async def forget_program(bench: Workbench, task: Task) -> None:
    """Delete the program's conversation about a task."""
    await asyncio.to_thread(delete_folder, _find_folder(bench, task))


class _Turn:
    """The turn of a program for one attempt."""

    def __init__(self, desk: Desk, attempt: Try, program: CodingProgram) -> None:
        self.desk = desk
        self.attempt = attempt
        self.program = program
        self.mark = f"{desk.run}/{attempt.number}"
        self.folder = _find_folder(desk.bench, desk.task)
        self.progress = _Progress()
        self.last_activity = ""

    async def find_ended(self) -> ProgramResult | None:
        """Return the result of this turn if the turn ended before the team was killed."""
        self.progress = await asyncio.to_thread(_read_progress, self.folder)
        if self.progress.mark == self.mark:
            return self.progress.result
        workspace = await self.desk.worker.workspace(self.desk.task)
        commit = await workspace.find_attempt(self.mark)
        if commit is None:
            return None
        files = await self.desk.bench.repository.changed_files(f"{commit}^", commit)
        return ProgramResult(session=self.progress.session, files=tuple(map(shown_path, files)))

    async def run(self) -> ProgramResult:
        """Run the program until it ends. The program resumes its conversation about the task. If
        the conversation cannot be resumed, the program begins a new one."""
        worker, task = self.desk.worker, self.desk.task
        workspace = await worker.workspace(task)
        await worker.say(task, f"works on {task.title} with {self.program.name}")
        session = self.progress.session
        if session and (kept_ref := await workspace.bring_back()):
            await worker.say(
                task, f"continues with the uncommitted files of the last turn, {kept_ref}"
            )
        try:
            ended_turn = await self._run_program(workspace, session)
        except ProgramError:
            if not session or self.progress.session:
                raise
            await worker.say(task, "begins a new conversation: the last one cannot be resumed")
            ended_turn = await self._run_program(workspace, "")
        files, refused = await self._commit_files(workspace)
        result = ProgramResult(
            session=ended_turn.session,
            summary=ended_turn.summary,
            usage=ended_turn.used,
            end=ended_turn.end,
            files=files,
            refused=refused,
        )
        total = self.progress.total + ended_turn.used
        await self._save_progress(
            session=ended_turn.session, total=total, mark=self.mark, result=result
        )
        if ended_turn.used.cost is None:
            usage = (
                f"{ended_turn.used.tokens} tokens"
                if ended_turn.used.tokens
                else "nothing of what it used"
            )
            await worker.say(task, f"{self.program.name} reports {usage}: its cost is unknown")
        return result

    async def _run_program(self, workspace: Workspace, session: str) -> EndedTurn:
        bench, task = self.desk.bench, self.desk.task
        row, cost_left = 0, None
        if bench.budgets is not None:
            knows_cost = self.program.reports_cost
            row, cost_left = await bench.budgets.begin_turn(
                task, self.program.name, knows_cost=knows_cost
            )
        has_answered = False

        async def on_event(event: ProgramEvent, usage: Usage) -> None:
            nonlocal has_answered
            bench.on_progress(task.id)
            if event.session and event.session != self.progress.session:
                await self._save_progress(session=event.session)
            has_answered = has_answered or usage.tokens > 0
            if event.activity and event.activity != self.last_activity:
                self.last_activity = event.activity
                activity = event.activity.replace(f"{workspace.path}/", "")
                activity = bounded(activity, _SHOWN_ACTIVITY)
                await self.desk.worker.say(task, activity, program=self.program.name)
            if bench.budgets is not None and (event.used or event.total):
                await bench.budgets.charge(task, row, usage)

        prompt = await self._write_prompt(workspace, resumed=bool(session))
        project = bench.project
        variables = await asyncio.to_thread(find_variables, project, workspace.path)
        try:
            return await self.program.run(
                prompt,
                workspace.path,
                self.folder / "home",
                session=session,
                cost=cost_left,
                before=self.progress.total,
                hidden=[project.root],
                like=split_commands(project.test_command),
                variables=variables,
                should_stop=lambda: bench.should_stop(task.id),
                on_event=on_event,
            )
        except ProgramError:
            if session and not has_answered:
                await self._save_progress(session="", total=Usage())
            raise

    async def _write_prompt(self, workspace: Workspace, *, resumed: bool) -> str:
        failure = self.attempt.failure
        worker, task = self.desk.worker, self.desk.task
        context = await worker.build_context(task)
        if resumed and failure:
            people = context.sections[FROM_PEOPLE]  # with notes since the last turn
            from_people = f"# {FROM_PEOPLE}\n{people}" if people else ""
            return "\n\n".join(filter(None, (_REFUSED, failure, from_people, _RULES)))
        diff = await workspace.diff()
        failed_before = await self.desk.describe_failed_before()
        return compose_prompt(worker.role, context, failure, diff, failed_before)

    async def _commit_files(self, workspace: Workspace) -> tuple[tuple[str, ...], str]:
        """Commit the changed files with the mark of the attempt, and return them with an empty
        text. If a file is refused, commit nothing, and return no files and the reason."""
        task = self.desk.task
        await asyncio.to_thread(make_accessible, workspace.path)
        names = await workspace.uncommitted()
        args = (workspace.path, names, workspace.submodules)
        problems = await asyncio.to_thread(find_refused, *args)
        if problems:
            return (), _LEFT.format(
                bounded("\n".join(f"- {problem}" for problem in problems), 4000)
            )
        commit = await workspace.commit_attempt(names, task.title, self.mark)
        files = tuple(map(shown_path, names))
        if commit:
            await self.desk.bench.emit(CommitCreated(task.project_id, task.id, commit, files))
        return files if commit else (), ""

    async def _save_progress(self, **changed: object) -> None:
        self.progress = self.progress.model_copy(update=changed)
        text = self.progress.model_dump_json()
        await asyncio.to_thread(_write_progress, self.folder, text)


def compose_prompt(role: str, context: Context, failure: str, diff: str, failed_before: str) -> str:
    """Return the prompt for a coding program. It has no files, because the program reads files
    itself."""
    context = context.without_failure() if failure else context
    parts = [role, *(f"# {title}\n{text}" for title, text in context.sections.items() if text)]
    parts = [part for part in parts if not part.startswith(_READ_BY_ITSELF)]
    if failed_before:
        parts.append(f"# Tests that failed before\n{failed_before}")
    if diff:
        parts.append(f"# What was changed for this task so far\n{diff}")
    if failure:
        parts.append(f"# What is wrong with it, to be corrected now\n{failure}")
    parts.append(f"# How to work\n{_RULES}\n{_ASK}")
    return "\n\n".join(parts)


def describe_no_work(turn: ProgramResult) -> str:
    """Return the message to a program that has changed no file."""
    causes = {
        "limit": "what it may spend was spent",
        "timeout": "its time was over",
        "stopped": "a person stopped it",
    }
    cause = f" It ended since {causes[turn.end]}." if turn.end != "done" else ""
    message = f"\nThe last message was:\n{turn.summary}" if turn.summary else ""
    return f"No file was changed, so there is nothing to judge.{cause}{message}"


def _find_folder(bench: Workbench, task: Task) -> Path:
    return bench.store.path.parent / "programs" / f"task-{task.id}"


def _read_progress(folder: Path) -> _Progress:
    try:
        return _Progress.model_validate_json((folder / _PROGRESS).read_bytes())
    except (OSError, ValueError):  # no progress is stored yet
        return _Progress()


def _write_progress(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = folder / f"{_PROGRESS}.new"
    new.write_text(text, "utf-8")
    new.replace(folder / _PROGRESS)


_PROGRESS: Final = "progress.json"
_SHOWN_ACTIVITY: Final = 200
_READ_BY_ITSELF: Final = ("# Files\n", "# Files of the repository\n")
_RULES: Final = (
    "Edit the files in the folder that you are started in. Write nowhere else. Do not commit: git "
    "does not work here. When you end, your changes are committed as they are, the tests are run "
    "in a fresh copy, and the work is merged if they pass. End with a summary in a few lines."
)
_REFUSED: Final = (
    "Your work was not accepted. The folder has what was committed of it. Correct it there:"
)
_ASK: Final = (
    "If, and only if, the task cannot be done before a person has decided something, change no "
    "file and end with one question, as `QUESTION: …`."
)
_LEFT: Final = (
    "Nothing of your work was committed, since these files cannot be taken:\n{}\n"
    "Undo or remove them; your other changes are still in the folder."
)
