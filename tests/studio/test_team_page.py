"""The page of a team: a real team in a repository of its own, with a scripted LLM."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("playwright.async_api")

from playwright.async_api import expect

from axe_faults import axe_page, find_faults
from bae.lm import LM
from bae.serve import API
from bae.team import PlannedTask, Project, Repository, ServedTeam, Store, Task, add_teams
from bae.team.lead import LeadAgent
from bae.team.models import TaskAttempt
from bae.team.workbench import Workbench
from bae.team.worker_graph import WorkerLoop
from bae.testing import Call, ScriptedLM
from bae.testing.scripted import Asked
from bounded import BOUND
from git_repositories import TEAM, git, make_repository
from opened_studio import OpenedStudio, open_studio
from team_parts import CALC, FAILING, FIX_TASK, RUN_SHELL, SUB, WRONG, edits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
RIGHT = Call("edit", text=edits({"calc.sh": SUB}))
WRONG_EDIT = Call("edit", text=edits({"calc.sh": WRONG}))
DONE = "I added sub, and checked it with its test."


@pytest.fixture(autouse=True)
def _no_configuration_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


class HeldLM(ScriptedLM):
    """Answers when it may."""

    def __init__(self, *rounds: Any) -> None:
        super().__init__({WorkerLoop: self._answer})
        self.rounds = list(rounds)
        self.seen: list[str] = []
        self.may_answer = asyncio.Event()

    async def fill(self, *args: Any, **options: Any) -> Any:
        await self.may_answer.wait()
        return await super().fill(*args, **options)

    def _answer(self, asked: Asked) -> Any:
        self.seen.append("\n".join(message.text for message in asked.prompt.conversation))
        return self.rounds[len(self.seen) - 1]


@dataclass
class OpenedTeam:
    """A team, and the studio that shows it."""

    studio: OpenedStudio
    store: Store
    project: Project
    tasks: list[Task]

    async def run(self, lm: LM) -> None:
        """Let the team run the approved tasks."""
        options: dict[str, Any] = {"review": "off", "limits": {"timeout": BOUND}}
        async with Workbench.open(self.project, self.store, **options) as bench:
            await LeadAgent(bench, lm, max_agents=2, wait=False, timeout=None).run()


@asynccontextmanager
async def open_team(
    tmp_path: Path,
    *tasks: PlannedTask,
    files: Mapping[str, str] = FAILING,
    approved: bool = True,
) -> AsyncGenerator[OpenedTeam]:
    root = make_repository(tmp_path / "project", files)
    async with (
        await Store.open(tmp_path / "state" / "team.db") as store,
        store.journal() as journal,
    ):
        about: dict[str, Any] = {"name": "calc", "root": str(root), "branch": TEAM}
        project = await store.save_project(Project(id=0, **about, test_command=RUN_SHELL))
        added = await store.add_tasks(project.id, tasks or (FIX_TASK,), approved=approved)
        served = ServedTeam(store, project, await Repository.open(root), journal)

        def prepare(api: API) -> None:
            add_teams(api, {"calc": served})

        async with open_studio(journal=journal, prepare=prepare, teams=["calc"]) as studio:
            yield OpenedTeam(studio, store, project, added)


def column(page: Any, name: str) -> Any:
    return page.get_by_role("region", name=re.compile(f"^{name}, "))


async def test_a_plan_can_be_approved_and_watched_to_the_end(page: Any, tmp_path: Path):
    lm = HeldLM(Call("look", path="calc.sh"), RIGHT, Call("check", tests=["sub.test.sh"]), DONE)
    async with open_team(tmp_path, approved=False) as team:
        await team.studio.show(page, "/team")
        await expect(page.get_by_text("One task waits for your approval")).to_be_visible()
        await page.get_by_role("button", name="Review the plan").click()
        await page.get_by_role("button", name="Approve all (1)").click()
        await expect(page.get_by_text("1 task is approved.")).to_be_visible()
        await page.get_by_role("tab", name="Board").click()
        await expect(column(page, "To do").get_by_role("link", name="Subtract")).to_be_visible()

        run = asyncio.create_task(team.run(lm))
        working = column(page, "Working")
        await expect(working.get_by_text("attempt 1")).to_be_visible()
        await expect(page.get_by_role("button", name="Kill")).to_be_visible()
        lm.may_answer.set()
        await run
        done = column(page, "Done")
        await expect(done.get_by_role("link", name="Subtract")).to_be_visible()
        await expect(done.get_by_text("passed")).to_be_visible()
        await expect(page.get_by_text("All tasks are done.")).to_be_visible()
        await expect(page.get_by_text("bae team merge")).to_be_visible()
        await expect(page.get_by_text("not running")).to_be_visible()
        await page.goto(f"{team.studio.url}/")  # a team alone is the front page
        await expect(page.get_by_text("All tasks are done.")).to_be_visible()


async def test_the_first_answerer_of_a_question_is_shown_beside_the_typed_text(
    page: Any, tmp_path: Path
):
    async with open_team(tmp_path) as team:
        [task] = team.tasks
        await team.store.add_blocker(task.id, "May it be negative?")
        await team.studio.show(page, "/team/calc")
        card = column(page, "Needs you").get_by_role("article")
        await expect(card.get_by_text("May it be negative?")).to_be_visible()
        box = card.get_by_role("textbox", name="Answer to sub")
        await box.fill("Yes, it")
        await team.store.add_note(task.id, "Something else happens.")
        await box.press_sequentially(" may.")
        await expect(box).to_have_value("Yes, it may.")

        [asked] = await team.store.blockers(team.project.id)
        await team.store.answer_blocker(asked.id, "No.", by="ben")
        await expect(page.get_by_text("ben was first:")).to_be_visible()
        await expect(page.get_by_text("Not sent: Yes, it may.")).to_be_visible()
        await page.get_by_role("button", name="Discard").click()

        await team.store.add_blocker(task.id, "How fast?")
        await page.get_by_role("textbox", name="Answer to sub").fill("At once.")
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_text("How fast?")).to_have_count(0)
        last = (await team.store.blockers(team.project.id))[-1]
        assert (last.answer, last.answered_by) == ("At once.", "ana")


async def test_failed_tests_and_their_correction_are_shown_with_their_diffs(
    page: Any, tmp_path: Path
):
    lm = HeldLM(WRONG_EDIT, "I added sub.", RIGHT, DONE)
    lm.may_answer.set()
    async with open_team(tmp_path) as team:
        await team.run(lm)
        await team.studio.show(page, "/team/calc/tasks/sub")
        attempts = page.get_by_role("region", name="Attempts").get_by_role("listitem")
        await expect(attempts).to_have_count(2)
        await expect(attempts.first).to_contain_text("Shown to attempt 2, which corrected it:")
        await expect(attempts.first).to_contain_text("sub is 8")

        await attempts.first.get_by_role("link", name="tests").click()
        report = page.get_by_role("region", name="Attempt 1")
        first = report.get_by_role("listitem").first
        await expect(first).to_contain_text("failed:sub.test.sh::sub")
        await expect(first).to_contain_text("sub is 8")

        await page.get_by_role("tab", name="Diff").click()
        lines = page.get_by_role("region", name="Lines of the change")
        wrong, right = "sub() { echo $(($1 + $2)); }", "sub() { echo $(($1 - $2)); }"
        await expect(lines).to_contain_text(wrong)
        await page.get_by_role("button", name="Merge").click()
        await expect(lines).to_contain_text(right)
        await expect(lines).not_to_contain_text(wrong)
        await page.reload()
        await expect(lines).to_contain_text(right)

        await page.get_by_role("tab", name="Log").click()
        submission = page.get_by_role("listitem").filter(has_text=f"submission{DONE}")
        await submission.locator("summary").click()
        link = submission.get_by_role("link", name="open the run of the agent")
        await expect(link).to_have_attribute("href", re.compile(r"^/team/calc/runs/task-1-"))


async def test_a_note_about_a_line_of_the_change_reaches_the_agent_at_work(
    page: Any, tmp_path: Path
):
    lm = HeldLM(Call("look", path="calc.sh"), RIGHT, DONE)
    async with open_team(tmp_path) as team:
        [task] = team.tasks
        root = Path(team.project.root)
        git(root, "checkout", "--quiet", "-b", "other")
        (root / "calc.sh").write_text(f"{CALC}half() {{ echo $(($1 / 2)); }}\n")
        git(root, "commit", "--quiet", "-am", "half")
        commit = git(root, "rev-parse", "HEAD")
        git(root, "checkout", "--quiet", "main")
        attempt = TaskAttempt(task_id=task.id, number=1, outcome="failed", commit=commit)
        await team.store.add_attempt(attempt)
        run = asyncio.create_task(team.run(lm))
        await team.studio.show(page, "/team/calc/tasks/sub?tab=diff&attempt=1")
        await expect(page.get_by_text("Note to the agent: it reads it")).to_have_count(0)
        await page.get_by_role("button", name="Note about line 2").click()
        box = page.get_by_role("textbox", name="Note to the agent")
        await expect(box).to_be_focused()
        await expect(box).to_have_value("calc.sh:2 `half() { echo $(($1 / 2)); }`: ")
        await box.press_sequentially("nobody wants halves")
        await expect(page.get_by_role("button", name="Kill").first).to_be_visible()
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_text("The note: the run takes it now.")).to_be_visible()
        await expect(box).to_have_value("")
        lm.may_answer.set()
        await run
        assert any("nobody wants halves" in text for text in lm.seen)


async def test_a_plan_can_be_edited_on_the_page(page: Any, tmp_path: Path):
    async with open_team(tmp_path) as team:
        await team.studio.show(page, "/team/calc?view=plan")
        await page.get_by_role("button", name="Add a task").click()
        form = page.get_by_role("dialog", name="Add a task")
        await form.get_by_label("key", exact=True).fill("Two Words")
        await form.get_by_label("title", exact=True).fill("Halve")
        await form.get_by_role("button", name="Add", exact=True).last.click()
        await expect(form.get_by_role("alert").first).to_contain_text("One field is not right yet")
        await expect(form.get_by_label("key", exact=True)).to_have_attribute("aria-invalid", "true")
        await form.get_by_label("key", exact=True).fill("half")
        await form.get_by_role("button", name="Add", exact=True).last.click()
        await expect(form).to_have_count(0)
        await expect(page.get_by_role("checkbox", name="Choose Halve")).to_be_visible()

        await page.get_by_role("button", name="Change Halve").click()
        await page.get_by_role("menuitem", name="Edit…").click()
        await page.get_by_label("title", exact=True).fill("Halve numbers")
        await page.get_by_role("button", name="Save").click()
        await page.get_by_role("button", name="Change Halve numbers").click()
        await page.get_by_role("menuitem", name="Drop…").click()
        await page.get_by_role("dialog").get_by_role("button", name="Drop", exact=True).click()
        await expect(page.get_by_role("link", name="Halve numbers")).to_have_count(0)
        assert [task.key for task in await team.store.tasks(team.project.id)] == ["sub"]

        await page.get_by_role("tab", name="Board").click()
        await expect(page.get_by_role("link", name="Subtract")).to_be_visible()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("complementary", name="Task sub")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("link", name="Subtract")).to_be_focused()


async def test_hostile_titles_paths_and_lines_are_shown_as_text(page: Any, tmp_path: Path):
    image = "<img src=x onerror=document.title='owned'>"
    task = PlannedTask(
        key="bad",
        title=f"{image} \u202etxt.exe",
        description=f"{image}\n\n[click](javascript:document.title='owned') ![x](http://x/y)",
        criteria=(f"<script>{image}</script>",),
        new_files=(f"{image}.sh",),
    )
    async with open_team(tmp_path, task) as team:
        [added] = team.tasks
        root = Path(team.project.root)
        git(root, "checkout", "--quiet", "-b", "other")
        (root / f"{image.replace('/', '')}.sh").write_text(f"{image}\n</code></pre>{image}\n")
        (root / "long.txt").write_text("".join(f"line {n} {image}\n" for n in range(19_000)))
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", "bad")
        commit = git(root, "rev-parse", "HEAD")
        git(root, "checkout", "--quiet", "main")
        await team.store.add_attempt(
            TaskAttempt(task_id=added.id, number=1, outcome="failed", commit=commit, failure=image)
        )
        await team.store.add_blocker(added.id, f"{image}?")
        await team.studio.show(page, "/team/calc")
        await page.get_by_role("link", name=image).click()
        panel = page.get_by_role("complementary", name="Task bad")
        await expect(panel.get_by_text(f"<script>{image}</script>")).to_be_visible()
        await expect(panel.get_by_text("Attempt 1", exact=True)).to_be_visible()
        await panel.get_by_role("link", name="diff").click()
        lines = panel.get_by_role("region", name="Lines of the change")
        await expect(lines).to_contain_text(f"</code></pre>{image}")
        await lines.get_by_role("button", name="long.txt").click()
        await expect(lines).to_contain_text("line 5 ")
        await lines.evaluate("each => { each.scrollTop = each.scrollHeight; }")
        await panel.get_by_role("button", name="Show all of it").click()
        await expect(lines.get_by_text("Show all of it")).to_have_count(0)
        await lines.evaluate("each => { each.scrollTop = each.scrollHeight; }")
        await expect(lines).to_contain_text("line 18999 ")
        assert await lines.locator(".diff-row").count() < 200
        assert await page.locator("img[src=x]").count() == 0
        assert "owned" not in await page.title()


@pytest.mark.slow
async def test_axe_finds_no_serious_fault_on_the_pages_of_a_team(browser: Any, tmp_path: Path):
    waiting = PlannedTask(key="docs", title="Write the docs", depends_on=("sub",), proof="none")
    async with open_team(tmp_path, FIX_TASK, waiting) as team:
        root, [fix, docs] = Path(team.project.root), team.tasks
        git(root, "checkout", "--quiet", "-b", "other")
        (root / "calc.sh").write_text(SUB)
        git(root, "commit", "--quiet", "-am", "Subtract")
        commit = git(root, "rev-parse", "HEAD")
        git(root, "checkout", "--quiet", "main")
        attempt = TaskAttempt(task_id=fix.id, number=1, outcome="failed", commit=commit)
        await team.store.add_attempt(attempt)
        await team.store.add_blocker(docs.id, "For whom?")
        faults: list[str] = []
        async with axe_page(browser) as page:
            await team.studio.show(page, "/team/calc")
            task = f"/team/calc/tasks/{fix.key}"
            for path in (
                *("/inbox", "/team/calc", "/team/calc?view=graph", "/team/calc?view=plan"),
                *(task, f"{task}?tab=diff", f"{task}?tab=tests", f"{task}?tab=log"),
                *(f"{task}?tab=reviews", "/team/calc/tasks/docs"),
            ):
                await page.goto(team.studio.url + path)
                faults += await find_faults(page, path)
            await page.goto(f"{team.studio.url}/team/calc?view=plan")
            await page.get_by_role("button", name="Add a task").click()
            faults += await find_faults(page, "a new task")
        assert not faults, "\n".join(faults)
