"""Images and documents over the real SDKs: the requests that a provider on loopback gets, and the
limits that are checked first."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from bae import (
    BaeLMError,
    BudgetError,
    Document,
    DocumentUrl,
    Graph,
    Image,
    ImageUrl,
    Node,
    Tool,
    ToolCall,
    Tools,
)
from bae.lm import (
    Answer,
    Backend,
    Budget,
    Budgeted,
    CallPart,
    FileLimits,
    Prompt,
)
from bae.lm.policies.budget import estimate_tokens
from bae.testing import Call, Calls, Provider, ScriptedLM
from end_node import EndNode
from file_parts import DOT, NOTE, PAPER, png
from http_backends import WIRES

pytestmark = pytest.mark.once

OTHER = Image.from_bytes(png(2, 2), "other.png")


class Seen(EndNode):
    text: str


class Claim(Node):
    photos: list[Image]
    papers: list[Document] = []
    more: list[ImageUrl | DocumentUrl] = []

    async def __call__(self) -> Seen: ...


GRAPH = Graph(start=Claim, end=Seen)


def images_in(value: Any) -> Iterator[bytes]:
    """The bytes of the images in a request, in order, whatever its form."""
    if isinstance(value, list):
        for part in value:
            yield from images_in(part)
    elif isinstance(value, dict):
        source = value.get("source")
        if value.get("type") == "image" and source["type"] == "base64":
            assert source["media_type"] == "image/png"
            yield base64.b64decode(source["data"])
        elif value.get("type") == "image_url" and value["image_url"]["url"].startswith("data:"):
            head, _, data = value["image_url"]["url"].partition(",")
            assert head == "data:image/png;base64"
            yield base64.b64decode(data)
        else:
            for part in value.values():
                yield from images_in(part)


@pytest.mark.parametrize("wire", WIRES)
async def test_images_are_sent_before_the_text_with_labels(wire):
    async with Provider() as provider, WIRES[wire](provider) as lm:
        await GRAPH.arun(Claim(photos=[DOT, OTHER]), lm=lm)
        (request,) = provider.requests
        content = request.body["messages"][-1]["content"]
        texts = [part["text"] for part in content if part["type"] == "text"]
        assert [*images_in(content)] == [DOT.data, OTHER.data]
        assert texts[:2] == ["image 1:", "image 2:"]
        assert "[image 1: dot.png, image/png" in texts[2]
        kinds = [part["type"].removesuffix("_url") for part in content]
        assert kinds == ["text", "image", "text", "image", "text"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_single_image_has_no_label(wire):
    async with Provider() as provider, WIRES[wire](provider) as lm:
        await GRAPH.arun(Claim(photos=[DOT]), lm=lm)
        await GRAPH.arun(Claim(photos=[]), lm=lm)
        with_image, without = (
            request.body["messages"][-1]["content"] for request in provider.requests
        )
        assert [part["type"].removesuffix("_url") for part in with_image] == ["image", "text"]
        assert [*images_in(without)] == []


@pytest.mark.parametrize("wire", [name for name in WIRES if name != "dspy"])
async def test_documents_and_addresses_are_sent(wire):
    more = [Image.from_url("https://example.org/a.png")]
    async with Provider() as provider, WIRES[wire](provider) as lm:
        await GRAPH.arun(Claim(photos=[], papers=[PAPER, NOTE], more=more), lm=lm)
        text = str(provider.requests[0].body["messages"])
        assert PAPER.base64 in text
        assert "a note, ä" in text
        assert "https://example.org/a.png" in text


async def test_the_responses_api_gets_files_of_tools_inside_the_tool_result():
    pytest.importorskip("pydantic_ai")
    pytest.importorskip("openai")
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from bae.lm import PydanticAIBackend

    more = [Image.from_url("https://example.org/a.png"), Document.from_url("https://a.org/b.pdf")]
    async with Provider() as provider:
        service = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="a key")
        async with PydanticAIBackend(OpenAIResponsesModel("gpt-5-mini", provider=service)) as lm:
            await GRAPH.arun(Claim(photos=[DOT], papers=[PAPER], more=more), lm=lm)
            content = provider.requests[0].body["input"][-1]["content"]
            sent = [
                part.get("image_url") or part.get("file_data") or part.get("file_url")
                for part in content
                if part["type"] != "input_text"
            ]
            assert sent == [DOT.data_url, PAPER.data_url, more[0].url, more[1].url]
            provider.script(Calls(Call("look")), {"text": "white"})
            await TOOLS.arun(Question(text="?"), lm=lm)
            (result,) = (
                request
                for request in provider.requests[-1].body["input"]
                if request.get("type") == "function_call_output"
            )
            images = [part["image_url"] for part in result["output"] if "image_url" in part]
            assert images == [DOT.data_url, OTHER.data_url]


async def test_dspy_refuses_documents_by_name_if_the_api_takes_none():
    pytest.importorskip("dspy")
    from bae.lm import DSPyBackend

    claim = Claim(photos=[DOT], papers=[PAPER, NOTE])
    async with Provider() as provider:
        where = {"api_base": f"{provider.url}/v1", "api_key": "a key"}
        async with DSPyBackend("anthropic/claude-sonnet-4-6", **where) as claude:
            await GRAPH.arun(claim, lm=claude)
            text = str(provider.requests[0].body["messages"])
            assert PAPER.base64 in text
            assert "a note, ä" in text
            with pytest.raises(BaeLMError, match=r"an image may have 5\.2 MB"):
                await GRAPH.arun(Claim(photos=[heavy(4_000_000)]), lm=claude)
        async with DSPyBackend("openai/gpt-4o-mini", **where) as chat:
            with pytest.raises(
                BaeLMError, match=r"takes no documents by this API: paper\.pdf"
            ) as it:
                await GRAPH.arun(claim, lm=chat)
            assert (it.value.code, it.value.sent) == ("bae-lm-files", False)
            assert 'model_type="responses"' in it.value.fix
        async with DSPyBackend("openai/gpt-4o-mini", model_type="responses", **where) as other:
            await GRAPH.arun(claim, lm=other)
        assert len(provider.requests) == 2


async def test_claude_gets_the_names_of_documents_and_their_true_types():
    async with Provider() as provider, WIRES["anthropic"](provider) as lm:
        fake = Document.from_bytes(NOTE.data, "note.pdf")
        await GRAPH.arun(Claim(photos=[], papers=[PAPER, fake]), lm=lm)
        content = provider.requests[0].body["messages"][-1]["content"]
        papers = [part for part in content if part["type"] == "document"]
        assert [(paper["title"], paper["source"]["media_type"]) for paper in papers] == [
            ("paper.pdf", "application/pdf"),
            ("note.pdf", "text/plain"),
        ]


def look() -> list[Image]:
    """Look at the item."""
    return [DOT, OTHER]


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(Tool(look))]
    text: str

    async def __call__(self) -> None: ...


TOOLS = Graph(start=Question, end=Reply)


@pytest.mark.parametrize("wire", [name for name in WIRES if name != "dspy"])
async def test_the_images_of_a_tool_follow_its_result(wire):
    async with Provider() as provider, WIRES[wire](provider) as lm:
        provider.script(Calls(Call("look")), {"text": "white"})
        done = await TOOLS.arun(Question(text="?"), lm=lm)
        assert done.result.text == "white"
        first, second = (request.body["messages"] for request in provider.requests)
        assert [*images_in(first)] == []
        assert [*images_in(second)] == [DOT.data, OTHER.data]
        assert "[image c1.2: other.png" in str(second)
        if "anthropic" in wire:  # inside the result
            (result,) = (part for part in second[-1]["content"] if part["type"] == "tool_result")
            assert [*images_in(result)] == [DOT.data, OTHER.data]
            assert result["content"][0]["type"] == "text"


async def test_a_model_without_tool_calls_gets_tool_images_in_its_message():
    async with Provider() as provider, WIRES["dspy"](provider) as lm:
        provider.script(
            {"next_step": {"action": "look"}},
            {"next_step": {"action": "answer", "text": "white"}},
        )
        assert (await TOOLS.arun(Question(text="?"), lm=lm)).result.text == "white"
        assert [*images_in(provider.requests[1].body["messages"])] == [DOT.data, OTHER.data]


async def test_an_echo_of_a_wrong_answer_keeps_the_image_of_the_question():
    async with Provider() as provider, WIRES["anthropic"](provider) as lm:
        provider.script({"text": 3}, {"text": "white"})
        await GRAPH.arun(Claim(photos=[DOT]), lm=lm)
        again = provider.requests[1].body["messages"]
        assert [*images_in(again[0])] == [DOT.data]
        assert [*images_in(again[1:])] == []


# --- what a model takes -------------------------------------------------------------------------


async def test_a_model_without_image_input_is_refused_before_the_run():
    pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.test import TestModel

    from bae.lm import PydanticAIBackend

    blind: Any = {"supports_image_input": False}
    lm = PydanticAIBackend(TestModel(profile=blind))
    assert lm.takes_files == {"document"}

    class Photo(Node):
        photo: Image

        async def __call__(self) -> Seen: ...

    with pytest.raises(BaeLMError, match=r"takes no images, and is to see Photo\.photo"):
        await Graph(start=Photo, end=Seen).arun(Photo(photo=DOT), lm=lm)


def wide(width: int, height: int = 1) -> Image:
    return Image.from_bytes(png(width, height), f"{width}.png")


def heavy(size: int) -> Image:
    return Image.from_bytes(png() + b"\0" * size, "heavy.png")


TOO_MUCH = {
    "8,001 × 1 pixels": Claim(photos=[wide(8_001)]),
    "1 × 9,000 pixels": Claim(photos=[wide(1, 9_000)]),
    "among more than 20 may have 2,000": Claim(photos=[wide(2_001), *map(wide, range(1, 21))]),
    "an image may have 5.2 MB": Claim(photos=[heavy(4_000_000)]),
    "601 images, and a request may have 600": Claim(photos=[*map(wide, range(1, 602))]),
    "a request may have 33.6 MB": Claim(
        photos=[],
        papers=[Document.from_bytes(b"x" * 12_700_000 + bytes([n])) for n in (65, 66)],
    ),
}


@pytest.mark.parametrize("why", TOO_MUCH)
async def test_files_that_claude_would_refuse_are_not_sent(why):
    async with Provider() as provider, WIRES["anthropic"](provider) as lm:
        with pytest.raises(BaeLMError) as raised:
            await GRAPH.arun(TOO_MUCH[why], lm=lm)
        assert why in raised.value.message
        assert (raised.value.code, raised.value.sent) == ("bae-lm-files-limit", False)
        assert provider.requests == []


async def test_files_that_claude_accepts_are_sent():
    claim = Claim(photos=[wide(2_000), *map(wide, range(1, 21))])
    async with Provider() as provider, WIRES["anthropic"](provider) as lm:
        await GRAPH.arun(claim, lm=lm)
        await GRAPH.arun(Claim(photos=[wide(8_000), heavy(3_900_000)]), lm=lm)
        assert len(provider.requests) == 2


class Counting(Backend):
    model = "counting"
    takes_files = frozenset({"image", "document"})
    file_limits = FileLimits(images=1)
    free = True

    async def answer(self, prompt: Prompt) -> Answer:
        return Answer('{"text": "seen"}')


def test_a_custom_backend_sets_its_own_file_limits():
    assert GRAPH.run(Claim(photos=[DOT]), lm=Counting()).result.text == "seen"
    with pytest.raises(BaeLMError, match="2 images, and a request may have 1"):
        GRAPH.run(Claim(photos=[DOT, OTHER]), lm=Counting())


def test_a_budget_counts_files_before_they_are_sent():
    def tokens(*photos: Image) -> int:
        lm = ScriptedLM([{"text": "a"}])
        GRAPH.run(Claim(photos=[*photos]), lm=lm)
        return estimate_tokens(lm.prompts[0])

    large = wide(1_000, 1_000)
    assert 1_200 < tokens(large) - tokens() < 1_500
    with pytest.raises(BudgetError) as raised:
        GRAPH.run(Claim(photos=[large]), lm=Budgeted(Counting(), Budget(tokens=1_000)))
    assert raised.value.code == "bae-budget-spent"


@pytest.mark.parametrize(
    "address", ["http://{0}/a.pdf", "http://{0}/a.txt", "https://example.org/a"]
)
async def test_an_address_that_bae_would_have_to_download_is_refused(address):
    async with Provider() as provider, WIRES["pydantic-ai-openai"](provider) as lm:
        more = [Document.from_url(address.format(provider.url.partition("://")[2]))]
        with pytest.raises(BaeLMError) as raised:
            await GRAPH.arun(Claim(photos=[], more=more), lm=lm)
        assert raised.value.code == "bae-lm-files"
        assert not raised.value.sent
        assert "Document.from_" in raised.value.fix
        assert provider.requests == []


class Blind(Backend):
    model = "blind"
    calls_tools = True
    free = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Prompt] = []

    async def answer(self, prompt: Prompt) -> Answer:
        self.asked.append(prompt)
        if len(self.asked) == 1:
            return Answer("", calls=(CallPart("1", "look", {}),))
        return Answer('{"text": "white"}')


async def test_a_model_without_image_input_reads_the_text_of_a_tools_image():
    blind = Blind()
    assert (await TOOLS.arun(Question(text="?"), lm=blind)).result.text == "white"
    last = blind.asked[-1]
    assert last.files == ()
    assert f'"{OTHER.placeholder}"' in last.conversation[-1].text
