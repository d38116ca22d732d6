"""What waits for a person, and how it is answered in the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from playwright.async_api import expect
from pydantic import BaseModel, Field

from bae import Gate, Graph, Node, Tool, ToolCall, Tools
from bae.serve import API
from bae.team import PlannedTask, Project, Repository, ServedTeam, Store, add_teams
from bae.testing import Call, ScriptedLM
from opened_studio import OpenedStudio, open_studio

paid: list[tuple[str, float, str]] = []


class Decision(BaseModel):
    approved: bool
    euros: float = Field(ge=0, le=500)
    method: Literal["card", "voucher"] = "card"
    notes: list[str] = []


class Complaint(Node):
    text: str

    async def __call__(self) -> Approval:
        return Approval(text=self.text)


class Approval(Node):
    text: str
    decision: Annotated[Decision, Gate("Send this refund?")] = Field(init=False)

    async def __call__(self) -> Refunded:
        return Refunded(**self.decision.model_dump())


class Refunded(Node):
    approved: bool
    euros: float
    method: str
    notes: list[str]

    async def __call__(self) -> None: ...


refunds = Graph(start=Complaint, end=Refunded, name="refunds")


def pay(order: str, euros: Annotated[float, Field(le=100)], reason: str = "other") -> str:
    """Pay money back."""
    paid.append((order, euros, reason))
    return "paid"


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(Tool(pay, approve=True))]
    text: str

    async def __call__(self) -> None: ...


support = Graph(start=Question, end=Reply, name="support")


async def ask(opened: OpenedStudio, run: str, text: str) -> None:
    """Have a run of `refunds` wait."""
    await refunds.arun(Complaint(text=text), journal=opened.journal, run_id=run)


async def test_a_gate_has_an_answer_form_for_its_type(page: Any) -> None:
    async with open_studio(refunds) as opened:
        await ask(opened, "wet", "It arrived wet.")
        await ask(opened, "late", "It is late.")
        await opened.show(page, "/")
        await expect(page).to_have_title("(2) bae studio")
        question = page.get_by_role("region", name="Question")
        await expect(question).to_contain_text("It arrived wet.")  # the oldest is first
        await question.get_by_role("radio", name="yes").check()
        await question.get_by_label("euros").fill("900")
        await question.get_by_label("method").select_option("voucher")
        await question.get_by_role("button", name="Add to notes").click()
        await question.get_by_label("notes 1").fill("a gift")
        await question.get_by_role("button", name="Send answer").click()
        await expect(question.get_by_label("euros")).to_have_attribute("aria-invalid", "true")
        await question.get_by_label("euros").fill("20")
        await page.keyboard.press("Control+Enter")

        # The next question has the focus, and the answered one stays where it was.
        await expect(question).to_contain_text("It is late.")
        await expect(question.get_by_role("heading")).to_be_focused()
        first = page.get_by_role("navigation", name="Questions").get_by_role("button").first
        await expect(first).to_contain_text("ana said approved: yes, euros: 20")
        await expect(page).to_have_title("(1) bae studio")
        run = await refunds.resume("wet", journal=opened.journal)
        assert run.result == Refunded(approved=True, euros=20, method="voucher", notes=["a gift"])


async def test_a_tool_call_can_be_approved_with_edited_arguments(page: Any) -> None:
    call = Call("pay", order="A-17", euros=90, reason="broken")
    lm = ScriptedLM({Reply: [call, {"text": "Paid."}]})
    paid.clear()
    async with open_studio(support, lm=lm) as opened:
        await support.arun(Question(text="Broken!"), lm, journal=opened.journal, run_id="q")
        await opened.show(page, "/inbox")
        await page.get_by_role("button", name="Approve with edits…").click()
        assert await page.get_by_role("textbox", name="order").input_value() == "A-17"
        await page.get_by_role("textbox", name="euros").fill("900")
        await page.get_by_role("button", name="Approve with edits").click()
        await expect(page.get_by_role("alert")).to_contain_text("100")
        await page.get_by_role("textbox", name="euros").fill("45.5")
        await page.reload()  # what is typed stays
        await page.get_by_role("button", name="Approve with edits").click()
        row = page.get_by_role("navigation", name="Questions").get_by_role("button")
        await expect(row).to_contain_text("ana said yes, with other arguments")
        await expect(page).to_have_title("bae studio")
        await opened.api.owner.wait("q", 5)
        assert paid == [("A-17", 45.5, "broken")]


async def test_answers_of_other_users_do_not_move_the_page_during_typing(page: Any) -> None:
    async with open_studio(refunds) as opened:
        for run in ("one", "two", "three"):
            await ask(opened, run, f"This is {run}.")
        await opened.show(page, "/inbox")
        rows = page.get_by_role("navigation", name="Questions").get_by_role("button")
        await rows.nth(1).click()
        question = page.get_by_role("region", name="Question")
        await question.get_by_label("euros").fill("12")

        no = {"approved": False, "euros": 0}
        await refunds.answer("one", "decision", no, journal=opened.journal, by="ben", go_on=False)
        await ask(opened, "four", "This is four.")
        await expect(rows.nth(0)).to_contain_text("ben said approved: no, euros: 0")
        await expect(rows.nth(3)).to_contain_text("four")
        await expect(rows.nth(1)).to_have_attribute("aria-current", "true")
        await expect(question.get_by_label("euros")).to_have_value("12")
        await expect(question.get_by_label("euros")).to_be_focused()

        # An answer that comes too late is told who was first.
        await page.route("**/api/inbox**", lambda route: route.abort())
        await question.get_by_role("radio", name="yes").check()
        await refunds.answer("two", "decision", no, journal=opened.journal, by="ben", go_on=False)
        await question.get_by_role("button", name="Send answer").click()
        await expect(question).to_contain_text("ben said approved: no, euros: 0")
        await expect(rows.nth(1)).to_contain_text("ben said approved: no")
        await page.unroute("**/api/inbox**")


async def test_questions_of_a_team_can_be_answered_on_a_phone(phone: Any, tmp_path: Path) -> None:
    repository = await Repository.create(tmp_path / "shop")
    about = {"name": "shop", "root": str(repository.root), "branch": "bae/team"}
    async with await Store.open(tmp_path / "team.db") as store, store.journal() as journal:
        project = await store.save_project(Project(id=0, **about, test_command=("pytest",)))
        tasks = [
            PlannedTask(key="greet", title="Greet people"),
            PlannedTask(key="docs", title="Write a page", proof="none"),
            PlannedTask(key="part", title="Say goodbye"),
        ]
        added = await store.add_tasks(project.id, tasks, approved=False)
        await store.add_blocker(added[0].id, "How formal is it?")

        def prepare(api: API) -> None:
            add_teams(api, {"shop": ServedTeam(store, project, repository, journal)})

        async with open_studio(prepare=prepare, teams=["shop"]) as opened:
            await opened.show(phone, "/inbox")
            await phone.get_by_role("button", name="How formal is it?").click()
            question = phone.get_by_role("region", name="Question")
            await expect(question.get_by_role("link", name="greet")).to_be_visible()
            await question.get_by_role("textbox", name="Answer").fill("Not at all.")
            send = question.get_by_role("button", name="Send answer")
            assert (await send.bounding_box())["height"] >= 44
            await send.click()
            await expect(phone.get_by_role("button", name="How formal")).to_contain_text("ana said")

            await phone.get_by_role("button", name="Approve 3 tasks?").click()
            await expect(question.get_by_role("checkbox", name="Write a page")).not_to_be_checked()
            await question.get_by_role("checkbox", name="Say goodbye").uncheck()
            await question.get_by_role("button", name="Approve 1 of 3").click()
            await phone.get_by_role("button", name="Approve 2 tasks?").click()
            await question.get_by_role("button", name="Choose all").click()
            await question.get_by_role("button", name="Approve all 2").click()
            await expect(phone.get_by_text("Waiting for you 0")).to_be_visible()
        assert all(task.approved for task in await store.tasks(project.id))
        assert [blocker.answer for blocker in await store.blockers(project.id)] == ["Not at all."]
