"""Chats in the page: turns that grow, questions and files inside them, and the last turn again."""

from __future__ import annotations

from typing import Annotated, Any

from playwright.async_api import expect

from bae import Graph, Image, Messages, Node, NodeConfig, Thread, Tool, ToolCall, Tools
from bae.testing import Call, ScriptedLM, Streamed
from opened_studio import open_studio

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)


def look_up(number: str) -> str:
    """What an order is."""
    return f"{number} is a lamp"


def cancel(number: str) -> str:
    """Cancel an order."""
    return f"{number} is cancelled"


class Message(Node):
    node_config = NodeConfig(text="text")
    text: str
    language: str = "English"

    async def __call__(self) -> Reply: ...


class Reply(Node):
    history: Annotated[Messages, Thread(last=20)]
    calls: Annotated[list[ToolCall], Tools(look_up, Tool(cancel, approve=True))]
    text: str

    async def __call__(self) -> None: ...


support = Graph(start=Message, end=Reply, name="support")


class Photo(Node):
    text: str
    photo: Image | None = None

    async def __call__(self) -> Seen: ...


class Seen(Node):
    text: str

    async def __call__(self) -> None: ...


photos = Graph(start=Photo, end=Seen, name="photos")


async def test_a_streaming_turn_asks_for_approval_of_a_tool_call(page: Any) -> None:
    long = "\n\n".join(f"Paragraph {number} of the reply." for number in range(90))
    lm = ScriptedLM(
        {
            Reply: [
                Call("look_up", number="A-17"),
                Call("cancel", number="A-17"),
                Streamed({"text": f"**Done.**\n\n{long}"}, size=20, pause=0.03),
            ]
        }
    )
    async with open_studio(support, lm=lm) as opened:
        await opened.show(page, "/chat")
        await page.get_by_label("Message").fill("Cancel my order A-17.")
        await page.keyboard.press("Enter")
        turns = page.get_by_role("log")
        await turns.get_by_role("button", name="Approve", exact=True).click()

        # It follows the end, until somebody reads what is above.
        await expect(turns.get_by_text("Paragraph 20 ")).to_be_attached()
        await expect(turns.get_by_role("status")).to_be_in_viewport()
        await turns.evaluate("log => log.scrollTo(0, 0)")
        await expect(page.get_by_role("button", name="↓ new")).to_be_visible()
        assert await turns.evaluate("log => log.scrollTop") == 0
        await expect(turns.get_by_text("Paragraph 89 ")).to_be_attached()
        await expect(turns.get_by_role("link", name="Open run")).to_be_attached()
        assert await turns.evaluate("log => log.scrollTop") == 0
        await page.get_by_role("button", name="↓ new").click()
        await expect(turns.get_by_role("link", name="Open run")).to_be_in_viewport()

        await expect(turns.get_by_text("Done.")).to_have_css("font-weight", "700")
        folded = turns.get_by_text("called look_up, cancel 2 calls")
        await expect(turns.get_by_text("A-17 is cancelled")).to_be_hidden()
        await folded.click()
        await expect(turns.get_by_text("A-17 is cancelled")).to_be_visible()

        # The conversation is in the journal: after a reload all of it is there.
        address = page.url
        await page.reload()
        assert page.url == address
        await expect(turns.get_by_text("Cancel my order A-17.")).to_be_attached()
        await expect(turns.get_by_text("Paragraph 89 ")).to_be_in_viewport()
        port, logins = int(opened.url.rsplit(":", 1)[1]), opened.studio.logins

    # Another server goes on in its place: what was typed meanwhile is sent to that.
    await expect(page.get_by_text("Reconnecting.")).to_be_visible()
    await page.get_by_label("Message").fill("Thanks!")
    more = ScriptedLM({Reply: [{"text": "You are welcome."}]})
    again = {"journal": opened.journal, "lm": more, "port": port, "logins": logins}
    async with open_studio(support, **again):
        await expect(page.get_by_text("Reconnecting.")).to_be_hidden(timeout=15_000)
        await page.get_by_label("Message").press("Enter")
        await expect(turns.get_by_text("You are welcome.")).to_be_visible()
        assert len(more.prompts[-1].conversation) == 3


async def test_a_turn_can_be_stopped_retried_and_edited(page: Any) -> None:
    answers = [Streamed({"text": "word " * 5_000}, size=5, pause=0.02)]
    answers += [{"text": "A first reply."}, {"text": "A second reply."}, {"text": "A third reply."}]
    lm = ScriptedLM({Reply: answers})
    async with open_studio(support, lm=lm) as opened:
        await opened.show(page, "/chat/support/ana-42")
        box = page.get_by_label("Message")
        turns = page.get_by_role("log")
        await box.fill("What is A-17?\n")
        await page.get_by_role("button", name="Send").click()
        await expect(turns.get_by_text("word word")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(turns).to_contain_text("Stopped. Later turns do not see this one.")

        await turns.get_by_role("button", name="Try again").click()
        await expect(turns.get_by_text("A first reply.")).to_be_visible()
        await expect(turns.get_by_text("Stopped.")).to_have_count(0)
        await turns.get_by_role("button", name="Edit").click()
        await expect(box).to_have_value("What is A-17?\n")
        await box.fill("What is B-4?")
        await page.keyboard.press("Enter")
        await expect(turns.get_by_text("A second reply.")).to_be_visible()
        await expect(turns.get_by_text("A first reply.")).to_have_count(0)

        await page.get_by_role("button", name="Fields").click()
        await page.get_by_label("language").fill("French")
        await box.fill("And now?")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("Bye.")
        await page.keyboard.press("Enter")
        await expect(turns.get_by_text("A third reply.")).to_be_visible()
        seen = await support.thread("ana-42", journal=opened.journal).messages()
        assert [turn.user for turn in seen] == ["What is B-4?", "And now?\nBye."]
        assert '"language":"French"' in lm.prompts[-1].conversation[-1].text


async def test_an_image_pasted_into_a_chat_is_shown_in_its_turn(page: Any) -> None:
    lm = ScriptedLM({Seen: [{"text": "A dot."}]})
    async with open_studio(photos, lm=lm) as opened:
        await opened.show(page, "/chat")
        await page.get_by_label("Message").fill("What is it?")
        paste = """(box, data) => {
            const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File([bytes], "dot.png", { type: "image/png" }));
            box.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }"""
        await page.get_by_label("Message").evaluate(paste, PIXEL)
        await expect(page.get_by_role("list", name="Attached").get_by_role("img")).to_be_visible()
        await page.keyboard.press("Enter")
        turns = page.get_by_role("log")
        await expect(turns.get_by_text("A dot.")).to_be_visible()
        await page.reload()
        shown = turns.get_by_role("img", name="dot.png")
        await expect(shown).to_be_visible()
        assert await shown.evaluate("image => image.naturalWidth") == 1
        [run] = await opened.journal.runs()
        assert len((await opened.journal.read(run.run_id)).files) == 1


async def test_hostile_markdown_is_shown_as_text(page: Any) -> None:
    hostile = "\n\n".join(
        [
            "<script>window.hit = 1</script> <img src='https://evil.test/a.png' onerror='hit = 1'>",
            "![pixel](https://evil.test/pixel.png) [click](javascript:window.hit=1)",
            "<a href='//evil.test'>x</a> [ok](https://example.com/)",
            "***a" * 20_000,
        ]
    )
    deep = "> " * 3_000 + "deep"
    lm = ScriptedLM({Reply: [Streamed({"text": hostile}, size=4_000), {"text": deep}]})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    async with open_studio(support, lm=lm) as opened:
        await opened.show(page, "/chat/support/t")
        turns = page.get_by_role("log")
        for text, shown in (("<b>One</b>", "click"), ("Two", "deep")):
            await page.get_by_label("Message").fill(text)
            await page.keyboard.press("Enter")
            await expect(turns.get_by_text(shown)).to_be_visible()
            await expect(turns).to_have_attribute("aria-busy", "false")
        await expect(turns.get_by_text("<b>One</b>")).to_be_visible()
        await expect(turns.get_by_text("<script>window.hit = 1</script>")).to_be_visible()
        links = await turns.get_by_role("link").evaluate_all("all => all.map((a) => a.href)")
        outside = [link for link in links if not link.startswith(opened.url)]
        assert outside == ["https://evil.test/pixel.png", "https://example.com/"]
        assert await page.evaluate("window.hit") is None
        assert all(url.startswith((opened.url, "blob:")) for url in asked)
        await page.get_by_label("Message").fill("still here")
        await expect(page.get_by_label("Message")).to_have_value("still here")
