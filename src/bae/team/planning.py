"""The graph that plans a goal. It asks the questions that the goal leaves open, writes the
requirements and plans tasks. The tasks are stored, and a person approves them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from bae import (
    LM,
    Dep,
    Gate,
    GateAnswerer,
    Graph,
    GraphResult,
    JournalError,
    Map,
    Node,
    NodeConfig,
    OpenGate,
    Problem,
    Recall,
    Text,
    ToolCall,
    ToolError,
    Tools,
)
from bae.journal import Journal
from bae.team.features import find_feature_problems
from bae.team.git import Repository
from bae.team.models import PlannedTask, Project, Task, TeamError, as_planned
from bae.team.planned_files import find_file_problems, find_shared_files, list_files
from bae.team.reading import CodeTree, find, get_tree, look, outline
from bae.team.repository import CodeReader
from bae.team.schedule import ENDED, find_problems
from bae.team.store import Store
from bae.team.test_runs import write_command

_log = logging.getLogger("bae.team")
KINDS: Final = ("backend", "frontend", "test", "docs")
MOST_QUESTIONS: Final = 6
MOST_TASKS: Final = 60
MOST_ROUNDS: Final = 24
"""Rounds that the LLM has to read the repository and to correct its answer."""
DECIDE: Final = "Not answered: decide this yourself, and write down what you assume."
"""The answer to a question that a person leaves to the LLM."""


async def plan_tasks(
    goal: str,
    project: Project,
    store: Store,
    lm: LM | str | None = None,
    *,
    journal: Journal | None = None,
    answer: GateAnswerer | None = None,
    kinds: Sequence[str] = KINDS,
    acceptance: bool = True,
) -> Planning:
    """Plan the tasks of a goal, and store the tasks for approval. If questions stay open, because
    `answer` is None or leaves them open, no task is stored, and the result lists the `questions`.

    With a `journal`, planning that waits or has crashed continues when the same goal is planned
    again. If a version of bae with other node classes began that planning, bae logs a warning and
    begins again.
    """
    repository = await Repository.open(Path(project.root))
    before = await store.tasks(project.id)
    tree = CodeTree(CodeReader(repository))
    code = await tree.read()
    matches = await asyncio.to_thread(code.search, goal)
    start = Goal(
        goal=goal,
        requirements=project.requirements,
        planned=[as_planned(task, description="") for task in before],
        kinds=list(kinds),
        acceptance=acceptance,
        languages=list(project.languages),
        test_command=write_command(project.test_command),
        conventions=await asyncio.to_thread(code.conventions),
        repository=await asyncio.to_thread(code.outline, [match.path for match in matches]),
    )
    run_id = await _choose_run_id(goal, journal)

    async def run_graph() -> GraphResult[StoredPlan]:
        return await planning.arun(
            start,
            lm,
            0,
            answer=answer,
            dep_cache={open_plan: _Plan(store, project, repository), get_tree: tree},
            journal=journal,
            run_id=run_id,
            resume=journal is not None,
        )

    try:
        result = await run_graph()
    except JournalError as error:
        if error.code != "bae-run-changed" or journal is None or run_id is None:
            raise
        _log.warning("another version of bae began to plan this goal: planning begins again")
        await journal.delete([run_id])
        result = await run_graph()
    if result.waiting:
        return Planning(goal, questions=tuple(str(g.context["question"]) for g in result.waiting))
    stored = result.result
    tasks_by_id = {task.id: task for task in await store.tasks(project.id)}
    tasks = tuple(tasks_by_id[number] for number in stored.ids if number in tasks_by_id)
    return Planning(goal, requirements=stored.document, tasks=tasks)


async def open_goals(journal: Journal) -> list[str]:
    """Return the goals whose planning waits for answers, newest first."""
    goals: list[str] = []
    for info in await journal.runs(status="waiting", graph=planning.name):
        why = await journal.why(info.run_id, "Goal.goal")
        goals.append(str(why.value))
    return goals


@dataclass(frozen=True, slots=True)
class Planning:
    """The result of planning: open questions, or the stored tasks and the requirements."""

    goal: str
    questions: tuple[str, ...] = ()
    requirements: str = ""
    tasks: tuple[Task, ...] = ()


class Goal(Node):
    """The start: the goal and the state of the repository."""

    goal: str
    requirements: str = Field(description="the requirements document so far")
    planned: list[PlannedTask] = Field(description="tasks that exist already")
    kinds: list[str] = Field(description="the kinds of workers that there are")
    acceptance: bool = Field(description="whether features begin with acceptance tests")
    languages: list[str]
    test_command: str
    conventions: str
    repository: str = Field(description="the files of the repository, with what they define")

    async def __call__(self) -> OpenQuestions: ...


class OpenQuestions(Node):
    """The questions that the goal leaves open."""

    node_config = NodeConfig(
        instruction="Read the goal and the repository. Ask the person who set the goal only what "
        "neither of them answers, what changes the work if it is answered differently, and what "
        "you could not sensibly decide yourself. Ask nothing where the goal is clear enough. The "
        "outline may leave files out: read what the goal is about with the tools first."
    )
    calls: Annotated[
        list[ToolCall], Tools(look, find, outline, limit=MOST_ROUNDS, on_limit="answer")
    ]
    questions: list[str] = Field(
        max_length=MOST_QUESTIONS, description="each a whole question, the most important one first"
    )

    async def __call__(self) -> Answers:
        return Answers(questions=list(dict.fromkeys(self.questions)))


class GoalQuestion(Node):
    """One question, and the answer of a person."""

    question: str
    answer: Annotated[str, Gate("A question about the goal")] = Field(init=False)

    async def __call__(self) -> None: ...


class Answers(Node):
    """All questions with their answers."""

    questions: list[str]
    answers: Annotated[list[GoalQuestion], Map(GoalQuestion, over="questions")] = Field(init=False)

    async def __call__(self) -> Requirements: ...


class Requirements(Node):
    """The requirements document."""

    node_config = NodeConfig(
        instruction="Write the requirements document for the goal, with the answers that were "
        "given: what is to be built and for whom, how it behaves, its interfaces with exact names, "
        "its limits and errors, what is not part of it, and what you assumed. Where there is a "
        "document already, write it again as a whole, with the goal worked in. Every worker reads "
        "it; be precise and short."
    )
    document: Annotated[str, Text()] = Field(
        max_length=30_000, description="Markdown, without a code fence around it"
    )

    async def __call__(self) -> Plan: ...


class _Plan:
    """Checks and stores a plan."""

    def __init__(self, store: Store, project: Project, repository: Repository) -> None:
        self._store = store
        self._project = project
        self._repository = repository

    async def find_problems(self, tasks: Sequence[PlannedTask]) -> list[Problem]:
        """Find wrong or shared files in tasks. A task may share a file with a task that has
        ended."""
        stored = await self._store.tasks(self._project.id)
        files = await list_files(self._repository, self._project.branch)
        others = [task for task in stored if task.key not in {planned.key for planned in tasks}]
        working = [task for task in others if task.status not in ENDED]

        def find() -> list[Problem]:
            return [*find_file_problems(tasks, others, files), *find_shared_files(tasks, working)]

        return await asyncio.to_thread(find)

    async def save(self, document: str, tasks: Sequence[PlannedTask]) -> list[int]:
        """Store the plan, and return the ids of its tasks. If a run stored the tasks before it
        crashed, they are not stored again."""
        stored = {task.key: task for task in await self._store.tasks(self._project.id)}
        if not all(task.key in stored and stored[task.key].title == task.title for task in tasks):
            described = [describe_acceptance(task, tasks) for task in tasks]
            added = await self._store.add_tasks(self._project.id, described, approved=False)
            stored |= {task.key: task for task in added}
        project = await self._store.project(self._project.id)
        await self._store.save_project(project.model_copy(update={"requirements": document}))
        return [stored[task.key].id for task in tasks]


def describe_acceptance(task: PlannedTask, tasks: Sequence[PlannedTask]) -> PlannedTask:
    """Add a feature's criteria to the task that writes its acceptance tests. The criteria of the
    feature's other tasks are added to the description. A task that writes no acceptance tests is
    returned unchanged."""
    if task.proof != "failing-tests":
        return task
    parts = [task.description]
    for other in tasks:
        if other.feature == task.feature and other.key != task.key and other.criteria:
            where = f" in {', '.join(other.tests)}" if other.tests else ""
            lines = "\n".join(f"- {criterion}" for criterion in other.criteria)
            parts.append(f"For {other.key!r} ({other.title}){where}:\n{lines}")
    return as_planned(task, description="\n\n".join(filter(None, parts))[:20_000])


async def open_plan() -> _Plan:
    """Raise TeamError. A run must pass its own plan in `dep_cache`."""
    raise TeamError("planning has no store for the plan", fix="call plan_tasks")


async def check_plan(plan: Plan, place: Annotated[_Plan, Dep(open_plan)]) -> None:
    """Refuse a plan with wrong files. The error names the nearest paths."""
    problems = await place.find_problems(plan.tasks)
    if problems:
        raise ToolError(_list_problems(problems))


def _list_problems(problems: Sequence[Problem]) -> str:
    return "\n".join(f"{problem.place}: {problem.message}; {problem.fix}" for problem in problems)


class Plan(Node):
    """The tasks of the plan. They must fit together, and fit the existing tasks."""

    node_config = NodeConfig(
        instruction="Split the goal into tasks for workers that write code and tests at the same "
        "time, each in a copy of the repository that holds the finished work of its dependencies. "
        "A task is one change that can be tested by itself, with the exact names that other tasks "
        "rely on in its description. It depends on another one only if it needs the code of that "
        "one. Read the code that the goal is about with the tools before you plan. Name the "
        "files of each task: in files those that exist, in new_files those that it creates. Of two "
        "tasks that name the same file, one depends on the other. Every task but those of kind "
        "docs has a criterion that a test can check: a call, what is put in, and what comes out. "
        "Every task brings its own "
        "tests: at least one has to fail without the change. A refactoring, or a task that has "
        "tests that fail pass, names its tests and has the proof named-tests. Use the proof none "
        "only where nothing can be tested, as for documentation, which is of kind docs. A "
        "task of kind test is for tests across tasks. Where `acceptance` is true, and several "
        "tasks make up a behavior that people use, give them the same `feature`, and plan one more "
        "task of this feature: of kind test, with the proof failing-tests. Its worker writes the "
        "acceptance tests of the whole feature from the criteria, before the others begin: one new "
        "file of tests for each of the other tasks, and stubs of the interfaces between them, with "
        "signatures and types. Name all these files in its new_files. The others depend on it, and "
        "name in `tests` the file that they make pass, and in `files` the stubs that they fill. "
        "One task alone needs no feature. Let a task change tests that exist only if "
        "the goal makes them wrong."
    )
    calls: Annotated[
        list[ToolCall],
        Tools(look, find, outline, limit=MOST_ROUNDS, on_limit="answer", accept=check_plan),
    ]
    planned: Annotated[list[PlannedTask], Recall(Goal)]
    kinds: Annotated[list[str], Recall(Goal)]
    acceptance: Annotated[bool, Recall(Goal)]
    tasks: list[PlannedTask] = Field(min_length=1, max_length=MOST_TASKS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problems = find_problems([*self.planned, *self.tasks])
        problems += find_feature_problems(self.tasks, self.planned)
        for task in self.tasks:
            if task.kind not in self.kinds:
                message = f"there is no worker of kind {task.kind!r}"
                fix = f"use one of {', '.join(self.kinds)}"
                problems.append(Problem("error", "bae-team-unknown", task.key, message, fix))
            if task.feature and not self.acceptance:
                message, fix = (
                    "has a feature, and acceptance tests are not wanted",
                    "plan without it",
                )
                problems.append(Problem("error", "bae-team-feature", task.key, message, fix))
            untested = task.kind == "docs" or task.proof == "none"
            if not untested and not any(criterion.strip() for criterion in task.criteria):
                message = "has no criterion"
                fix = "write in criteria what a test can check: what is put in, what comes out"
                problems.append(Problem("error", "bae-team-criteria", task.key, message, fix))
        if problems:
            raise ValueError(_list_problems(problems))
        return self

    async def __call__(self) -> StoredPlan:
        return StoredPlan(tasks=self.tasks)


async def store_plan(
    plan: Annotated[_Plan, Dep(open_plan)],
    document: Annotated[str, Recall(Requirements)],
    tasks: list[PlannedTask],
) -> list[int]:
    """Store the plan and return the ids of its tasks."""
    return await plan.save(document, tasks)


class StoredPlan(Node):
    """The stored plan."""

    document: Annotated[str, Recall(Requirements)] = Field(init=False)
    tasks: list[PlannedTask]
    ids: Annotated[list[int], Dep(store_plan, tasks="tasks")] = Field(init=False)

    async def __call__(self) -> None: ...


planning = Graph(start=Goal, end=StoredPlan, context="start", context_limit=60_000)


class FromAnswers:
    """An `answer=` for planning that reads the answers from a document of `format_questions`. A
    question that the document does not answer is passed to `otherwise`, or stays open."""

    def __init__(self, document: str, otherwise: GateAnswerer | None = None) -> None:
        self._answers = read_answers(document)
        self._otherwise = otherwise

    async def __call__(self, gate: OpenGate) -> str:
        """Return the answer to a question."""
        answer = self._answers.get(_normalize_question(str(gate.context.get("question", ""))))
        if answer:
            return answer
        if self._otherwise is None:
            gate.leave_open()
        return await self._otherwise(gate)


async def decide_yourself(gate: OpenGate) -> str:
    """Leave every question to the LLM. Pass this function to planning as `answer=`."""
    return DECIDE


def format_questions(questions: Sequence[str]) -> str:
    """Return a document with the questions as headings. A person writes the answers below them."""
    return "".join(f"## {' '.join(question.split())}\n\n\n" for question in questions)


def read_answers(document: str) -> Mapping[str, str]:
    """Return the answers in a document of `format_questions`, by the normalized text of the
    question."""
    _, *parts = re.split(r"^#+ +(.+)$", document, flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {
        _normalize_question(question): answer.strip()
        for question, answer in pairs
        if answer.strip()
    }


def _normalize_question(question: str) -> str:
    return " ".join(re.findall(r"\w+", question.casefold()))


async def _choose_run_id(goal: str, journal: Journal | None) -> str | None:
    """Return the id of the unfinished run for this goal. If there is none, return a new id. Return
    None without a journal."""
    if journal is None:
        return None
    name = f"plan-{hashlib.sha256(goal.encode('utf-8', 'replace')).hexdigest()[:12]}"
    number = 1
    try:
        while (await journal.read(f"{name}-{number}")).info.status == "ended":
            number += 1
    except JournalError as error:
        if error.code != "bae-run-unknown":
            raise
    return f"{name}-{number}"
