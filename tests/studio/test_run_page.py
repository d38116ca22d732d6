"""The page of a run: what happens, what happened and why, and what can be done about it."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Annotated, Any, Literal

from pydantic import Field

from bae import Dep, Gate, Graph, Node
from bae.journal import MemoryJournal, SQLiteJournal
from bae.lm import Budget, Budgeted
from bae.serve.studio_login import Logins
from bae.testing import ScriptedLM, Streamed
from opened_studio import OpenedStudio, open_studio

LETTER = "Dear Ana, your kettle arrived broken, and we are sorry for that. " * 4
GROWING = "[data-place='1:Letter.text'] .growing"
may_send = asyncio.Event()


class Complaint(Node):
    message: str

    async def __call__(self) -> Letter: ...


async def count_words(text: str) -> int:
    return len(text.split())


class Letter(Node):
    reason: Literal["broken", "late"]
    text: str

    async def __call__(self) -> Sent:
        return Sent(text=self.text)


async def send(text: str) -> str:
    await may_send.wait()
    return f"sent {len(text)} characters"


class Sent(Node):
    text: str
    receipt: Annotated[str, Dep(send, text="text")]
    words: Annotated[int, Dep(count_words, text="text")]

    async def __call__(self) -> None: ...


letters = Graph(start=Complaint, end=Sent, name="letters")


def writer(pause: float = 0.0) -> ScriptedLM:
    wrong = {"reason": "heavy", "text": "no"}
    right = Streamed({"reason": "broken", "text": LETTER}, pause=pause)
    return ScriptedLM({Letter: lambda asked: right if asked.errors else wrong})


class Trip(Node):
    city: str

    async def __call__(self) -> Forecast:
        return Forecast(city=self.city)


async def find_weather(city: str) -> str:
    if city == "Ghent":
        raise TimeoutError(f"nothing about {city} in 10 s")
    return f"rain in {city}"


class Forecast(Node):
    city: str
    weather: Annotated[str, Dep(find_weather, city="city")]

    async def __call__(self) -> None: ...


trips = Graph(start=Trip, end=Forecast, name="trips")


async def load_orders() -> list[str]:
    await asyncio.sleep(0.3)  # it is what takes long
    return ["kettle"]


async def load_rules() -> str:
    return "within 30 days"


class Request(Node):
    orders: Annotated[list[str], Dep(load_orders)]
    rules: Annotated[str, Dep(load_rules)]

    async def __call__(self) -> Refund:
        return Refund(orders=self.orders)


class Refund(Node):
    orders: list[str]
    approved: Annotated[bool, Gate("Send the money?")] = Field(init=False)

    async def __call__(self) -> None: ...


refunds = Graph(start=Request, end=Refund, name="refunds")


class Count(Node):
    number: int

    async def __call__(self) -> Count | Counted:
        return Count(number=self.number + 1) if self.number < 4998 else Counted(total=self.number)


class Counted(Node):
    total: int

    async def __call__(self) -> None: ...


counts = Graph(start=Count, end=Counted, name="counts")


async def start(opened: OpenedStudio, graph: Graph[Any, Any], node: Node, run_id: str) -> None:
    """Start a run in the studio, as its page does."""
    async with opened.api.owner.alone(run_id):
        await opened.api.owner.start(graph, node, run_id)


async def test_streamed_text_of_a_run_does_not_move_the_page(page: Any):
    may_send.clear()
    lm = Budgeted(writer(pause=0.03), Budget(calls=20))
    async with open_studio(letters, lm=lm) as opened:
        await start(opened, letters, Complaint(message="My kettle is broken."), "letter-1")
        await opened.show(page, "/runs/letter-1")
        await page.get_by_text("of at most 10 nodes").wait_for()
        await page.get_by_text("budget 0 of 20 calls").wait_for()
        first = page.get_by_role("article", name="Step 0, Complaint")
        where = await first.bounding_box()
        growing = page.locator(GROWING)
        await growing.get_by_text("Dear Ana").wait_for()
        length = len(await growing.inner_text())
        await page.wait_for_function(
            "([place, length]) => document.querySelector(place)?.innerText.length > length",
            arg=[GROWING, length],
        )
        assert len(await growing.inner_text()) < len(LETTER)
        sent = page.get_by_role("article", name="Step 2, Sent")
        await sent.get_by_text("in progress").first.wait_for()
        assert await growing.count() == 0
        assert await first.bounding_box() == where
        may_send.set()
        await sent.get_by_text("sent 260 characters").wait_for()
        await page.locator("header .status").get_by_text("ended").wait_for()
        await page.get_by_role("button", name="Sent, a run can end here, visited once").wait_for()


async def test_the_origin_of_a_value_leads_back_to_a_model_answer(page: Any):
    may_send.set()
    async with open_studio(letters, lm=writer()) as opened:
        await start(opened, letters, Complaint(message="It is broken."), "letter-1")
        await opened.show(page, "/runs/letter-1")
        await page.get_by_role("button", name="Why Sent.words").click()
        why = page.get_by_role("complementary", name="Why Sent.words")
        await why.get_by_text("count_words").wait_for()
        await why.get_by_role("button", name="2:Sent.text").click()
        await page.get_by_role("complementary", name="Why Sent.text").get_by_text("step 1").click()
        await page.get_by_role("button", name="Why Letter.text").click()
        why = page.get_by_role("complementary", name="Why Letter.text")
        await why.get_by_text("attempt 1 invalid").wait_for()
        await why.get_by_text("Input should be 'broken' or 'late'").wait_for()
        await why.get_by_text("attempt 2 valid").wait_for()
        assert page.url.endswith("step=1&field=text")
        await page.keyboard.press("Escape")
        await why.wait_for(state="detached")
        await page.go_back()
        await why.wait_for()


async def test_an_error_is_shown_where_it_happened_with_its_cause_and_fix(page: Any):
    async with open_studio(trips) as opened:
        await start(opened, trips, Trip(city="Ghent"), "trip-1")
        await opened.show(page, "/runs/trip-1")
        error = page.get_by_role("region", name="Error")
        await error.get_by_text("bae-dep-failed").wait_for()
        await error.get_by_text("TimeoutError: nothing about Ghent in 10 s").wait_for()
        await error.get_by_text("fix find_weather, retry it with retries=").wait_for()
        await error.get_by_role("button", name="1:Forecast.weather").click()
        why = page.get_by_role("complementary", name="Why Forecast.weather")
        await why.get_by_text("find_weather").first.wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Forecast, a run can end here").wait_for()
        await page.get_by_role("button", name="Resume").click()
        await page.get_by_text("TimeoutError").first.wait_for()


async def test_a_fork_with_an_edited_field_is_a_new_run_that_shows_the_change(page: Any):
    async with open_studio(trips) as opened:
        await start(opened, trips, Trip(city="Ghent"), "trip-1")
        await opened.show(page, "/runs/trip-1?step=0")
        await page.get_by_role("article", name="Step 0, Trip").wait_for()
        await page.keyboard.press("f")
        dialog = page.get_by_role("dialog", name="Fork trip-1")
        city = dialog.get_by_role("textbox", name="city")
        await city.fill("Oslo")
        await dialog.get_by_label("Run id").fill("trip-2")
        await dialog.get_by_role("button", name="Fork with city").click()
        await page.get_by_role("heading", name="trip-2").wait_for()
        await page.get_by_text("rain in Oslo").first.wait_for()
        changed = page.get_by_role("article", name="Step 0, Trip")
        await changed.get_by_text("changed", exact=True).wait_for()
        await changed.get_by_text("fork of trip-1").wait_for()
        stored_run = await opened.journal.read("trip-1")
        assert stored_run.info.status == "failed"
        await page.get_by_role("link", name="trip-1", exact=True).click()
        await page.get_by_role("heading", name="trip-1").wait_for()


async def test_a_timeline_cuts_out_the_wait_for_a_person(page: Any):
    async with open_studio(refunds) as opened:
        await start(opened, refunds, Request(), "refund-1")
        await opened.api.owner.wait("refund-1", 20)
        await opened.show(page, "/runs/refund-1")
        timeline = page.get_by_role("region", name="Timeline")
        summary = timeline.get_by_text(re.compile(r"^Critical path \d"))
        said = await summary.inner_text()
        assert re.search(r"of [\d.]+ m?s: 0:Request\.orders \d+ ms", said), said
        assert "for a person" in said
        critical = timeline.get_by_role(
            "button", name=re.compile("orders load_orders ?, on the critical")
        )
        await critical.wait_for()
        rules = timeline.locator(".tl-bar", has_text="load_rules")
        assert "longer without delaying the run" in await rules.get_attribute("title")
        await timeline.get_by_role("button", name="approved").click()
        why = page.get_by_role("complementary", name="Why Refund.approved")
        await why.get_by_text("It waits for a person.").wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="Answer…").click()
        await page.wait_for_url(re.compile("/inbox"))
        await page.get_by_text("Send the money?").first.wait_for()


async def test_every_step_of_a_5000_step_run_can_be_reached(page: Any):
    async with open_studio(counts, journal=MemoryJournal()) as opened:
        await counts.arun(Count(number=0), journal=opened.journal, run_id="long", max_iters=6000)
        page.set_default_timeout(30_000)
        await opened.show(page, "/runs/long")
        await page.get_by_role("button", name="Count ×4,999 show").wait_for()
        await page.get_by_role("button", name="All nodes in order show").click()
        await page.get_by_role("article", name="Step 3, Count").wait_for()
        box = page.locator(".trace-scroll")
        await box.evaluate("box => box.scrollTop = box.scrollHeight / 2")
        await page.get_by_text("number=2500").first.wait_for()
        await box.evaluate("box => box.scrollTop = box.scrollHeight")
        await page.get_by_role("article", name="Step 4999, Counted").wait_for()
        assert await page.locator("li, article").count() < 200
        await opened.show(page, "/runs/long?step=4321")
        step = page.get_by_role("article", name="Step 4321, Count")
        await step.get_by_text("4321").first.wait_for()
        await page.get_by_role("region", name="Timeline").get_by_text("4321 Count").wait_for()
        await page.keyboard.press("]")
        await (
            page.get_by_role("article", name="Step 4322, Count").get_by_text("returned").wait_for()
        )
        await page.get_by_role("searchbox", name="Filter nodes").fill("counted")
        await page.get_by_text("1 node", exact=True).wait_for()


async def test_a_link_opens_the_same_view_after_a_server_restart(page: Any, tmp_path: Any):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, logins = tmp_path / "runs.db", Logins(tmp_path / "logins.db")
    view = "/runs/trip%2F1?step=1&field=weather"
    why = page.get_by_role("complementary", name="Why Forecast.weather")
    async with (
        SQLiteJournal(path) as journal,
        open_studio(trips, journal=journal, port=port, logins=logins) as opened,
    ):
        await trips.arun(Trip(city="Oslo"), journal=journal, run_id="trip/1")
        await opened.show(page, view)
        await why.get_by_text("find_weather").first.wait_for()
    await page.get_by_text("Reconnecting").wait_for()
    await why.get_by_text("rain in Oslo").first.wait_for()
    async with (
        SQLiteJournal(path) as journal,
        open_studio(trips, journal=journal, port=port, logins=logins),
    ):
        await page.get_by_text("Reconnecting").wait_for(state="detached")
        await why.wait_for()
        await page.reload()
        await why.get_by_text("rain in Oslo").first.wait_for()
        assert page.url.endswith(view)
    logins.__exit__()
