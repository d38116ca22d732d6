"""Planning: its questions, the stored plan, and interruptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("sqlalchemy")

from pydantic import Field

from bae import Gate, Graph, Map, Node
from bae.exceptions import BaeLMError, DepError, ToolCallError
from bae.journal import SQLiteJournal
from bae.team.models import PlannedTask, Project
from bae.team.planning import (
    DECIDE,
    FromAnswers,
    Plan,
    Planning,
    decide_yourself,
    format_questions,
    open_goals,
    plan_tasks,
    planning,
    read_answers,
)
from bae.team.store import Store
from bae.testing import Call, ScriptedLM
from git_repositories import commit_files, make_repository

GOAL = "A shop that ships"
TASKS = [
    {"key": "prices", "title": "Prices", "criteria": ["price() adds tax"], "files": ["shop.py"]},
    {"key": "orders", "title": "Orders", "criteria": ["order() is 1"], "depends_on": ["prices"]},
    {
        "key": "page",
        "title": "A page",
        "criteria": ["page() has a title"],
        "new_files": ["page.py"],
        "kind": "frontend",
        "depends_on": ["orders"],
    },
]


@dataclass
class Team:
    project: Project
    store: Store
    journal: SQLiteJournal

    async def plan(self, lm: Any, goal: str = GOAL, **options: Any) -> Planning:
        project = await self.store.project(self.project.id)
        return await plan_tasks(goal, project, self.store, lm, journal=self.journal, **options)

    async def keys(self) -> list[str]:
        return [task.key for task in await self.store.tasks(self.project.id)]


@pytest.fixture
async def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Team]:
    root = make_repository(
        tmp_path / "shop",
        {"shop.py": "def total():\n    return 0\n", "AGENTS.md": "Use tabs.\n", ".env": "KEY=1\n"},
    )
    async with (
        await Store.open(tmp_path / "team.db") as store,
        SQLiteJournal(tmp_path / "runs.db") as journal,
    ):
        values: dict[str, Any] = {"branch": "bae/team", "test_command": ("pytest",)}
        project = Project(id=0, name="shop", root=str(root), languages=("python",), **values)
        yield Team(await store.save_project(project), store, journal)


def script(*answers: Any) -> ScriptedLM:
    return ScriptedLM(list(answers))


def text_of(prompt: Any) -> str:
    """All messages of a conversation."""
    return "\n".join(message.text for message in prompt.conversation)


def test_the_planning_graph_has_no_problems():
    assert planning.validate() == []


async def test_the_plan_of_a_clear_goal_waits_for_approval(team: Team):
    lm = script({"questions": []}, "# Shop\nIt ships.", {"tasks": TASKS})
    planned = await team.plan(lm)
    assert planned.questions == ()
    assert [task.key for task in planned.tasks] == ["prices", "orders", "page"]
    assert [task.depends_on for task in planned.tasks] == [(), ("prices",), ("orders",)]
    assert not any(task.approved for task in planned.tasks)
    assert (await team.store.project(team.project.id)).requirements == "# Shop\nIt ships."
    await team.store.approve_tasks([planned.tasks[0].id])
    stored = await team.store.tasks(team.project.id)
    assert [task.approved for task in stored] == [True, False, False]


async def test_the_planning_llm_sees_the_repository_without_secrets(team: Team):
    lm = script({"questions": []}, "It ships.", {"tasks": TASKS})
    await team.plan(lm)
    for prompt in lm.prompts:
        assert GOAL in prompt.text
        assert "def total()" in prompt.text
        assert "Use tabs." in prompt.text
        assert ".env" not in prompt.text
    assert "It ships." in text_of(lm.prompts[-1])


async def test_answers_to_open_questions_are_shown_to_the_llm(team: Team):
    asked: list[str] = []

    async def answer(gate: Any) -> str:
        asked.append(gate.context["question"])
        return "Only to Portugal."

    lm = script({"questions": ["Where to?"]}, "To Portugal.", {"tasks": TASKS})
    planned = await team.plan(lm, answer=answer)
    assert asked == ["Where to?"]
    assert "Only to Portugal." in text_of(lm.prompts[1])
    assert len(planned.tasks) == 3


async def test_unanswered_questions_park_the_plan(team: Team):
    questions = ["Where to?", "By which courier?"]
    planned = await team.plan(script({"questions": questions}))
    assert planned.questions == tuple(questions)
    assert planned.tasks == ()
    assert await team.keys() == []
    assert await open_goals(team.journal) == [GOAL]

    first, second = format_questions(questions).split("## By")
    document = f"{first}Portugal\n## By{second}"
    planned = await team.plan(script(), answer=FromAnswers(document))
    assert planned.questions == ("By which courier?",)

    lm = script("To Portugal.", {"tasks": TASKS})  # the questions are not paid for again
    document = "## by which courier\n\nAny.\n"  # the first answer is stored
    planned = await team.plan(lm, answer=FromAnswers(document))
    assert await team.keys() == ["prices", "orders", "page"]
    assert await open_goals(team.journal) == []


async def test_planning_by_another_bae_version_restarts_with_a_warning(
    team: Team, caplog: pytest.LogCaptureFixture
):
    class Asked(Node):
        question: str
        reply: Annotated[str, Gate("Which answer?")] = Field(init=False)

        async def __call__(self) -> None: ...

    class Goal(Node):
        goal: str
        questions: list[str] = ["Where to?"]
        answers: Annotated[list[Asked], Map(Asked, over="questions")] = Field(init=False)

        async def __call__(self) -> None: ...

    await team.plan(script({"questions": ["Where to?"]}))
    (parked,) = await team.journal.runs()
    await team.journal.delete([parked.run_id])
    former = Graph(start=Goal)
    await former.arun(Goal(goal=GOAL), journal=team.journal, run_id=parked.run_id)
    assert await open_goals(team.journal) == [GOAL]

    planned = await team.plan(script({"questions": ["To whom?"]}))
    assert planned.questions == ("To whom?",)
    assert "planning begins again" in caplog.text
    planned = await team.plan(script("It ships.", {"tasks": TASKS}), answer=decide_yourself)
    assert len(planned.tasks) == 3


async def test_a_person_may_leave_the_questions_to_the_llm(team: Team):
    lm = script({"questions": ["Where to?"]}, "Assumed: Portugal.", {"tasks": TASKS})
    planned = await team.plan(lm, answer=decide_yourself)
    assert DECIDE in text_of(lm.prompts[1])
    assert len(planned.tasks) == 3


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([{**TASKS[0], "depends_on": ["orders"]}, TASKS[1]], "depends on itself: "),
        ([TASKS[1]], "depends on 'prices', and there is no such task"),
        ([TASKS[0], TASKS[0]], "two tasks have the key 'prices'"),
        ([{**TASKS[0], "kind": "wizard"}], "there is no worker of kind 'wizard'"),
        ([{**TASKS[0], "key": "No Key"}], "String should match pattern"),
        ([{**TASKS[0], "criteria": [" "]}], "prices: has no criterion"),
    ],
)
async def test_an_invalid_plan_is_asked_for_again_with_its_errors(
    team: Team, tasks: list[Any], said: str
):
    lm = script({"questions": []}, "It ships.", {"tasks": tasks}, {"tasks": TASKS})
    await team.plan(lm)
    assert said in "\n".join(lm.asked[-1].errors)
    assert await team.keys() == ["prices", "orders", "page"]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([{**TASKS[0], "files": ["src/shop.py"]}], "no such file; name one of shop.py, or mark"),
        ([{**TASKS[0], "files": [], "new_files": ["shop.py"]}], "creates shop.py, which exists"),
        ([TASKS[0], {**TASKS[1], "depends_on": [], "files": ["shop.py"]}], "shares shop.py with"),
        (
            [{**TASKS[0], "new_files": ["a.py"]}, {**TASKS[1], "new_files": ["a.py"]}],
            "creates a.py, which exists by then",
        ),
        ([{**TASKS[0], "new_files": ["./a.py"]}], "no path inside the repository"),
        ([{**TASKS[0], "new_files": ["../a.py"]}], "no path inside the repository"),
    ],
)
async def test_a_plan_with_wrong_files_is_refused_in_its_conversation(
    team: Team, tasks: list[Any], said: str
):
    lm = script({"questions": []}, "It ships.", {"tasks": tasks}, {"tasks": TASKS})
    await team.plan(lm)
    assert said in text_of(lm.prompts[-1])
    assert await team.keys() == ["prices", "orders", "page"]


async def test_a_task_may_change_a_file_that_its_prerequisite_creates(team: Team):
    later = {**TASKS[1], "key": "style", "title": "Style", "files": ["page.py"]}
    plan = [*TASKS, {**later, "depends_on": ["page"]}]
    await team.plan(script({"questions": []}, "It ships.", {"tasks": plan}))
    assert await team.keys() == ["prices", "orders", "page", "style"]


async def test_a_new_plan_shares_no_file_with_a_task_that_is_not_done(team: Team):
    await team.plan(script({"questions": []}, "It ships.", {"tasks": TASKS[:1]}))
    more = {**TASKS[0], "key": "sums", "title": "Sums"}
    ordered = {**more, "depends_on": ["prices"]}
    lm = script({"questions": []}, "Sums.", {"tasks": [more]}, {"tasks": [ordered]})
    await team.plan(lm, "Sums")
    assert "sums: shares shop.py with 'prices'" in text_of(lm.prompts[-1])
    assert await team.keys() == ["prices", "sums"]


async def test_the_planner_reads_the_repository_before_planning(team: Team):
    lm = script(
        Call("find", pattern="def total"),
        {"questions": []},
        "It ships.",
        [Call("look", path="shop.py"), Call("outline", path="shop.py")],
        {"tasks": TASKS},
    )
    await team.plan(lm)
    assert "shop.py:1: def total" in text_of(lm.prompts[1])
    assert "1|def total" in text_of(lm.prompts[-1])
    assert await team.keys() == ["prices", "orders", "page"]


async def test_interrupted_planning_does_not_read_files_again(team: Team):
    lm = script({"questions": []}, "It ships.", Call("look", path="shop.py"), TimeoutError("busy"))
    with pytest.raises(BaeLMError, match="busy"):
        await team.plan(lm)
    commit_files(Path(team.project.root), {"shop.py": "changed = True\n"})
    lm = script({"tasks": TASKS})
    await team.plan(lm)
    assert "1|def total" in text_of(lm.prompts[-1])


FEATURE = [
    {
        "key": "accept",
        "title": "Test prices",
        "kind": "test",
        "criteria": ["all of it"],
        "proof": "failing-tests",
        "feature": "prices",
        "new_files": ["test_tax.py", "tax.py"],
    },
    {
        "key": "tax",
        "title": "Tax",
        "criteria": ["tax(100) is 23"],
        "feature": "prices",
        "files": ["tax.py"],
        "tests": ["test_tax.py"],
        "depends_on": ["accept"],
    },
]


async def test_the_author_of_acceptance_tests_gets_the_criteria_of_the_feature(team: Team):
    planned = await team.plan(script({"questions": []}, "It ships.", {"tasks": FEATURE}))
    assert "For 'tax' (Tax) in test_tax.py:\n- tax(100) is 23" in planned.tasks[0].description
    assert [task.feature_branch for task in planned.tasks] == ["bae/feature-prices"] * 2


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([FEATURE[1] | {"depends_on": [], "files": []}], "has 0 tasks with the proof failing"),
        ([FEATURE[0], FEATURE[1] | {"depends_on": [], "files": []}], "does not wait for the acc"),
        ([FEATURE[0], FEATURE[1] | {"tests": ["test_shop.py"]}], "names no acceptance test"),
        ([FEATURE[0], FEATURE[1] | {"tests": ["test_shop.py"]}], "no task makes test_tax.py pass"),
        ([FEATURE[0], FEATURE[1] | {"may": "change-tests"}], "by tests that it changed"),
    ],
)
async def test_a_plan_with_incomplete_features_is_asked_for_again(
    team: Team, tasks: list[Any], said: str
):
    lm = script({"questions": []}, "It ships.", {"tasks": tasks}, {"tasks": FEATURE})
    await team.plan(lm)
    assert said in "\n".join(lm.asked[-1].errors)


async def test_a_second_goal_needs_its_own_feature(team: Team):
    await team.plan(script({"questions": []}, "It ships.", {"tasks": FEATURE}))
    again = FEATURE[0] | {"key": "accept-more", "title": "Test more"}
    again |= {"new_files": ["test_more.py", "more.py"]}
    more = {"key": "more", "title": "More", "files": ["more.py"], "tests": ["test_more.py"]}
    tasks = [again, FEATURE[1] | more | {"depends_on": ["accept-more"]}]
    other = [task | {"feature": "discounts"} for task in tasks]
    lm = script({"questions": []}, "It ships.", {"tasks": tasks}, {"tasks": other})
    await team.plan(lm, goal="More prices")
    errors = "\n".join(lm.asked[-1].errors)
    assert "the feature 'prices' has acceptance tests already, of 'accept'" in errors
    assert await team.keys() == ["accept", "tax", "accept-more", "more"]


async def test_acceptance_tests_can_be_switched_off(team: Team):
    lm = script({"questions": []}, "It ships.", {"tasks": FEATURE}, {"tasks": TASKS})
    await team.plan(lm, acceptance=False)
    assert "acceptance tests are not wanted" in "\n".join(lm.asked[-1].errors)
    assert await team.keys() == ["prices", "orders", "page"]


async def test_a_plan_that_stays_invalid_is_not_stored(team: Team):
    lm = script({"questions": []}, "It ships.", *[{"tasks": [TASKS[1]]}] * 3)
    with pytest.raises(ToolCallError, match="no such task"):
        await team.plan(lm)
    assert await team.keys() == []


async def test_a_second_goal_builds_on_the_tasks_of_the_first(team: Team):
    await team.plan(script({"questions": []}, "It ships.", {"tasks": TASKS}))
    more = {**TASKS[1], "key": "returns", "title": "Returns", "depends_on": ["orders"]}
    lm = script(
        {"questions": []}, "It ships, and takes back.", {"tasks": [TASKS[0]]}, {"tasks": [more]}
    )
    planned = await team.plan(lm, "Take back what was sent")
    assert "two tasks have the key 'prices'" in "\n".join(lm.asked[-1].errors)
    assert "It ships." in lm.prompts[0].text
    assert [task.key for task in planned.tasks] == ["returns"]
    assert (await team.store.project(team.project.id)).requirements == "It ships, and takes back."


async def test_failed_planning_continues_without_repeated_calls(team: Team):
    lm = script({"questions": []}, "It ships.", TimeoutError("overloaded"))
    with pytest.raises(BaeLMError, match="overloaded"):
        await team.plan(lm)
    planned = await team.plan(script({"tasks": TASKS}))
    assert planned.requirements == "It ships."
    assert len(await team.keys()) == 3


async def test_a_plan_is_stored_only_once_after_an_interruption(
    team: Team, monkeypatch: pytest.MonkeyPatch
):
    async def save_project(project: Project) -> Project:
        raise OSError("the disk is full")

    with monkeypatch.context() as at, pytest.raises(DepError, match="the disk is full"):
        at.setattr(team.store, "save_project", save_project)
        await team.plan(script({"questions": []}, "It ships.", {"tasks": TASKS}))
    assert len(await team.keys()) == 3
    planned = await team.plan(script())
    assert [task.key for task in planned.tasks] == ["prices", "orders", "page"]
    assert (await team.store.project(team.project.id)).requirements == "It ships."


async def test_a_repeated_goal_is_planned_again_after_its_plan_is_stored(team: Team):
    await team.plan(script({"questions": []}, "It ships.", {"tasks": TASKS[:1]}))
    planned = await team.plan(script({"questions": []}, "It ships.", {"tasks": TASKS[1:2]}))
    assert [task.key for task in planned.tasks] == ["orders"]


def test_a_task_may_need_an_existing_task():
    before = PlannedTask(key="prices", title="Prices")
    tasks = [PlannedTask.model_validate(TASKS[1])]
    about: dict[str, Any] = {"calls": [], "kinds": ["backend"], "acceptance": True}
    plan = Plan(**about, planned=[before], tasks=tasks)
    assert plan.tasks[0].depends_on == ("prices",)


def test_answers_in_a_file_are_matched_by_their_questions():
    document = "# Where  to\n\nPortugal\nand Spain\n\n## Unanswered?\n\n## How?\nBy sea.\n"
    assert read_answers(document) == {"where to": "Portugal\nand Spain", "how": "By sea."}
