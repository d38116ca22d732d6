"""The list of runs, the form that starts one, and two runs side by side."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from bae import Gate, Graph, Node
from bae.journal import Journal, MemoryJournal
from bae.serve import User
from opened_studio import OpenedStudio, open_studio

HOSTILE = '<img src=x onerror="throw 1">'
MANY = 10_000


class Order(Node):
    """An order of a shop."""

    sku: str = Field(description="what is ordered", max_length=60)
    count: Annotated[int, Field(ge=1, le=100)] = 1

    async def __call__(self) -> Price | Approval:
        if self.sku == HOSTILE:
            raise RuntimeError(HOSTILE)
        if self.count > 10:
            return Approval(count=self.count)
        return Price(euros=self.count * 2)


class Approval(Node):
    count: int
    approved: Annotated[bool, Gate("Sell so many?")] = Field(init=False)

    async def __call__(self) -> Price:
        return Price(euros=self.count)


class Price(Node):
    euros: int

    async def __call__(self) -> None: ...


orders = Graph(start=Order, end=Price, name="orders")


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Transfer(BaseModel):
    kind: Literal["transfer"] = "transfer"
    iban: str


class Parcel(Node):
    payment: Card | Transfer = Field(discriminator="kind")
    weights: dict[str, Decimal] = {}
    size: tuple[int, str] = (1, "m")
    note: Any = None

    async def __call__(self) -> None: ...


parcels = Graph(start=Parcel, end=Parcel, name="parcels")


async def order(opened: OpenedStudio, run_id: str, sku: str = "lamp", count: int = 1) -> None:
    """A run of the studio itself."""
    await opened.api.owner.start(orders, Order(sku=sku, count=count), run_id)
    await opened.api.owner.wait(run_id, 10)


async def fill(journal: Journal, count: int) -> None:
    """Store copies of a run."""
    await orders.arun(Order(sku="lamp"), journal=journal, run_id="first")
    first = await journal.read("first")
    await journal.delete(["first"])
    for number in range(count):
        info = replace(first.info, run_id=f"run-{number:05}", started=1e9 + number)
        await journal.create(replace(first, info=info), claim=False)


def rows(page: Any) -> Any:
    return page.locator(".runs-rows [role=row]")


def ids(page: Any) -> Any:
    return page.locator(".run-link").all_inner_texts()


@pytest.fixture
def expect() -> Any:
    return pytest.importorskip("playwright.async_api").expect


async def test_a_list_of_ten_thousand_runs_scrolls_to_the_last_run(page: Any, expect: Any):
    journal = MemoryJournal()
    await fill(journal, MANY)
    async with open_studio(orders, journal=journal) as opened:
        await opened.show(page, "/runs")
        await expect(page.get_by_role("link", name="run-09999")).to_be_visible()
        last = page.get_by_role("link", name="run-00000")
        # Each page that comes makes the list longer.
        down = "() => { window.timer = setInterval(() => scrollTo(0, 1e7), 20) }"
        await page.evaluate(down)
        await expect(last).to_be_in_viewport(timeout=60_000)
        await page.evaluate("() => clearInterval(window.timer)")
        assert await rows(page).count() < 80
        await expect(page.get_by_text("10,000 runs", exact=True)).to_be_visible()
        table = page.get_by_role("table", name="Runs")
        await expect(table).to_have_attribute("aria-rowcount", str(MANY + 1))
        await page.evaluate("() => scrollTo(0, 0)")
        await page.keyboard.press("j")
        for _ in range(30):
            await page.keyboard.press("j")
        await expect(page.get_by_role("link", name="run-09969")).to_be_focused()
        await expect(page.get_by_role("link", name="run-09969")).to_be_in_viewport()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/runs/run-09969")


async def test_new_runs_wait_behind_a_bar_and_changed_rows_stay_in_their_places(
    page: Any, expect: Any
):
    async with open_studio(orders) as opened:
        await order(opened, "wait", "kettle", 20)
        for number in range(60):
            await order(opened, f"old-{number:02}")
        await opened.show(page, "/runs")
        await expect(page.get_by_role("link", name="old-59")).to_be_visible()
        await page.get_by_role("checkbox", name="Select old-58").check()
        await page.evaluate("() => scrollTo(0, document.body.scrollHeight)")
        waiting = rows(page).filter(has=page.get_by_role("link", name="wait", exact=True))
        await expect(waiting.get_by_text("waiting")).to_be_visible()
        place = await waiting.bounding_box()

        await order(opened, "new-1")
        await order(opened, "new-2")
        await opened.journal.answer("wait", "1:Approval.approved", "true")
        await opened.api.owner.resume(orders, "wait")
        await expect(waiting.get_by_text("ended")).to_be_visible()
        await expect(waiting.get_by_text("kettle")).to_be_visible()
        assert await waiting.bounding_box() == place
        await page.get_by_role("button", name="Clear").click()
        bar = page.get_by_role("button", name="2 new runs")
        await expect(bar).to_be_visible()
        assert await page.get_by_role("link", name="new-1").count() == 0
        assert await waiting.bounding_box() == place
        await bar.click()
        await expect(page.get_by_role("link", name="new-2")).to_be_in_viewport()
        assert (await ids(page))[:3] == ["new-2", "new-1", "old-59"]
        await expect(bar).to_have_count(0)


async def test_filter_and_search_survive_a_reload(page: Any, expect: Any):
    async with open_studio(orders) as opened:
        await order(opened, "one", "a red lamp")
        await order(opened, "two", "a kettle", 20)
        await order(opened, "three", "a red kettle", 30)
        await opened.show(page, "/runs")
        await page.get_by_role("button", name="waiting 2").click()
        await page.keyboard.press("/")
        await page.keyboard.type("RED")
        await expect(rows(page)).to_have_count(1)
        assert await ids(page) == ["three"]
        await page.reload()
        await expect(rows(page)).to_have_count(1)
        assert await ids(page) == ["three"]
        await expect(page.get_by_role("searchbox")).to_have_value("RED")
        assert "status=waiting" in page.url
        await page.get_by_role("searchbox").fill("nothing like it")
        await page.get_by_role("button", name="Clear the filter").click()
        await expect(rows(page)).to_have_count(3)
        assert page.url == f"{opened.url}/runs"


async def test_the_start_form_shows_errors_at_their_fields(phone: Any, expect: Any):
    page = phone
    async with open_studio(orders, parcels) as opened:
        await opened.show(page, "/runs?start=orders")
        await page.get_by_role("button", name="Close").click()
        await expect(page.get_by_text("bae run app.py:orders --set 'sku=")).to_be_visible()
        await page.get_by_role("main").get_by_role("button", name="Start a run").first.click()
        await expect(page.get_by_label("count optional")).to_have_value("1")
        await page.get_by_label("sku").fill("lamp")
        await page.get_by_label("count optional").fill("300")
        await page.get_by_text("Run id, thread and metadata").click()
        await page.get_by_label("Run id").fill("a/b")
        await page.get_by_role("button", name="Start the run").click()
        count = page.get_by_label("count optional")
        await expect(count).to_have_attribute("aria-invalid", "true")
        await expect(page.get_by_text("less than or equal to 100")).to_be_visible()
        await page.get_by_role("button", name="Close").click()
        await page.reload()
        await page.get_by_role("main").get_by_role("button", name="Start a run").first.click()
        await page.get_by_label("sku").fill("lamp")
        await page.get_by_label("count optional").fill("3")
        await page.get_by_role("button", name="Close").click()
        await page.get_by_role("main").get_by_role("button", name="Start a run").first.click()
        await expect(page.get_by_label("sku")).to_have_value("lamp")
        await page.get_by_text("Run id, thread and metadata").click()
        await page.get_by_label("Run id").fill("a/b")
        await page.get_by_role("button", name="Start the run").click()
        await page.wait_for_url("**/runs/a%2Fb")
        assert (await opened.journal.read("a/b")).info.graph == "orders"

        await page.goto(f"{opened.url}/runs?start=parcels")
        start = page.get_by_role("button", name="Start the run")
        note = page.get_by_label("note optional")
        await note.fill("fragile")  # text in a box for JSON is in quotes
        await start.click()
        await expect(note).to_be_focused()
        await expect(page.get_by_text("Not started")).to_be_visible()
        await note.fill('"fragile"')
        # The options of a union have the names of their classes, and faults of that class alone.
        await page.get_by_label("Kind of payment").select_option(label="Card")
        for number, (key, weight) in enumerate((("lamp", "0.10"), ("7", "12")), 1):
            await page.get_by_role("button", name="Add to weights").click()
            await page.get_by_label(f"Key {number} of weights").fill(key)
            await page.get_by_label(f"Value {number} of weights").fill(weight)
        await expect(page.get_by_label("Key 1 of weights")).to_have_value("lamp")
        await page.get_by_role("group", name="size").get_by_label("2").fill("xl")
        await start.click()
        card = page.get_by_label("number", exact=True)
        await expect(card).to_be_focused()
        await expect(page.locator(".fault")).to_have_text(
            ["Field required", re.compile("Not started")]
        )
        await card.fill("4111")
        await start.click()
        await page.wait_for_url(re.compile("/runs/[0-9a-f]{8}"))
        run_id = page.url.rpartition("/")[2]
        await opened.api.owner.wait(run_id, 10)
        ended = await parcels.result(run_id, journal=opened.journal)
        assert ended.result == Parcel(
            payment=Card(number="4111"),
            weights={"lamp": Decimal("0.10"), "7": Decimal(12)},
            size=(1, "xl"),
            note="fragile",
        )


async def test_two_selected_runs_can_be_compared(page: Any, expect: Any):
    async with open_studio(orders) as opened:
        await order(opened, "cheap", "lamp", 2)
        await order(opened, "dear", "lamp", 5)
        await opened.show(page, "/runs")
        await page.get_by_role("checkbox", name="Select cheap").check()
        await expect(page.get_by_role("button", name="Compare")).to_be_disabled()
        await page.get_by_role("checkbox", name="Select dear").check()
        await page.get_by_role("button", name="Compare").click()
        await page.wait_for_url("**/runs/cheap/vs/dear")
        await expect(page.get_by_text("The first difference is at 0:Order")).to_be_visible()
        price = page.get_by_role("article", name="Price, differs")
        await expect(price.get_by_role("cell")).to_contain_text(["4", "10"])
        replay = page.get_by_role("region", name="Run A").get_by_role("button", name="Replay")
        await replay.click()
        await expect(page.get_by_text("The current code takes the same path.")).to_be_visible()


async def test_hostile_ids_metadata_and_errors_are_shown_as_text(page: Any, expect: Any):
    journal = MemoryJournal()
    async with open_studio(orders, journal=journal) as opened:
        thread = "'\"><svg/onload=alert(1)>"
        with pytest.raises(Exception, match="img"):
            await orders.arun(
                Order(sku=HOSTILE),
                journal=journal,
                run_id=HOSTILE,
                thread=thread,
                metadata={HOSTILE: HOSTILE},
            )
        await order(opened, "../../etc?x#y 100%", "javascript:alert(1)")
        await opened.show(page, "/runs")
        await expect(rows(page)).to_have_count(2)
        assert await ids(page) == ["../../etc?x#y 100%", HOSTILE]
        await expect(page.get_by_title("RuntimeError").first).to_contain_text("<img src=x")
        await page.get_by_label("Thread").select_option(thread)
        await expect(rows(page)).to_have_count(1)
        assert await page.locator("main img, main script, main svg").count() == 0
        await page.get_by_label("Thread").select_option("")
        await page.get_by_role("link", name="../../etc?x#y 100%").click()
        await page.wait_for_url("**/runs/..%2F..%2Fetc%3Fx%23y%20100%25")
        await page.reload()
        heading = page.get_by_role("heading", name="../../etc?x#y 100%")
        await expect(heading).to_be_visible()

        await order(opened, "first", count=20)
        await order(opened, "a%2Fb+c&d", count=30)
        await page.goto(f"{opened.url}/inbox")
        await page.locator(".inbox-row").filter(has_text="a%2Fb+c&d").click()
        question = page.get_by_role("link", name="a%2Fb+c&d", exact=True)
        await expect(question).to_be_visible()
        await page.reload()
        await expect(question).to_be_visible()


async def test_a_page_without_a_module_names_the_command_that_enables_actions(
    page: Any, expect: Any
):
    journal, reader = MemoryJournal(), User("ana", frozenset({"read"}))
    await orders.arun(Order(sku="lamp", count=20), journal=journal, run_id="wait")
    async with open_studio(
        journal=journal, user=reader, serve_command="bae studio MODULE --journal runs.db"
    ) as opened:
        await opened.show(page, "/inbox")
        command = "bae studio MODULE --journal runs.db"
        await expect(page.get_by_text("Read-only: no graph is served.")).to_contain_text(command)
        question = page.get_by_role("region", name="Question")
        await expect(question.get_by_text(f"read-only. Start: {command}")).to_be_visible()
        await page.goto(f"{opened.url}/runs/wait")
        await expect(page.get_by_role("article", name="Step 1, Approval")).to_be_visible()
        await expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
