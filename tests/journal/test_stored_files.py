"""Images and documents in journals: each is stored once, beside the lines that refer to it, and is
deleted with the last run that has it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator

from bae import (
    BaeError,
    Dep,
    Document,
    Gate,
    Graph,
    Image,
    ImageUrl,
    JournalError,
    Map,
    Messages,
    Node,
    Recall,
    Thread,
    ToolCall,
    Tools,
)
from bae.journal import Journal, MemoryJournal, SQLiteJournal, check
from bae.journal.report import report_run
from bae.testing import Call, ScriptedLM
from file_parts import DOT, NOTE, gif, png
from journal_parts import execute, expect_refusal

OTHER = Image.from_bytes(png(2, 2), "other.png")
THUMB = Image.from_bytes(gif(), "thumb.gif")
BIG = Image.from_bytes(png(64, 64) + os.urandom(200_000), "big.png")


async def find_photos() -> list[Image]:
    return [DOT, OTHER]


async def make_thumb(photo: Image) -> Image:
    CALLED.append(photo.name)
    return THUMB


async def read_text(paper: Document) -> str:
    return paper.text


def zoom(part: str) -> Image:
    """Zoom into a part."""
    CALLED.append(part)
    return OTHER


CALLED: list[str] = []


class Claim(Node):
    text: str
    photos: list[Image | ImageUrl]
    papers: tuple[Document, ...] = ()

    async def __call__(self) -> Look: ...


class Look(Node):
    photos: Annotated[list[Image | ImageUrl], Recall()]
    thumbs: Annotated[list[Image], Map(make_thumb, over="seen")]
    seen: Annotated[list[Image], Dep(find_photos)]
    calls: Annotated[list[ToolCall], Tools(zoom)]
    text: str

    async def __call__(self) -> Signed:
        return Signed(photo=self.seen[0])


class Signed(Node):
    photo: Image
    paper: Annotated[Document, Gate("the signed paper?")]

    async def __call__(self) -> None: ...


GRAPH = Graph(start=Claim, end=Signed)
CLAIM = Claim(
    text="broken", photos=[DOT, BIG, ImageUrl("https://example.org/a.png")], papers=(NOTE,)
)
FILES = {file.hash: file.data for file in (DOT, BIG, NOTE, OTHER, THUMB)}


def lm() -> ScriptedLM:
    return ScriptedLM([[Call("zoom", part="left")], {"text": "seen"}])


async def paper(gate: object) -> Document:
    return NOTE


def count_files(path: Path) -> int:
    return execute(path, "select count(*) from files")[0][0]


@pytest.fixture
async def journal(tmp_path):
    async with SQLiteJournal(tmp_path / "runs.db") as made:
        yield made


async def test_files_of_a_run_are_stored_once_and_apart_from_lines(journal, tmp_path):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
    again = Claim(text="again", photos=[BIG])
    await GRAPH.arun(again, lm(), journal=journal, run_id="two", answer=paper)
    stored = await journal.read("one")
    assert stored.files == FILES
    text = "".join(line.data for line in stored.lines)
    assert len(text) < 10_000
    assert BIG.base64[:50] not in text
    assert count_files(Path(journal.path)) == len(FILES)


async def test_resumed_and_replayed_runs_have_their_files(journal):
    first = await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one")
    assert [gate.place for gate in first.waiting] == ["Signed.paper"]
    CALLED.clear()
    done = await GRAPH.answer("one", "Signed.paper", NOTE, journal=journal)
    assert done.result == Signed(photo=DOT, paper=NOTE)
    assert done.trace[0] == CLAIM
    assert done.trace[1].thumbs == [THUMB, THUMB]
    replayed = await GRAPH.replay("one", journal=journal)
    assert replayed.trace == done.trace
    assert CALLED == []


async def test_a_person_answers_a_gate_with_a_data_url_from_another_process(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one")
    given = {"data": Document.from_bytes(b"signed").data_url, "name": "signed.txt"}
    done = await GRAPH.answer("one", "Signed.paper", given, journal=journal)
    assert done.result.paper == Document.from_bytes(b"signed", "signed.txt")
    for wrong in ("/etc/passwd", "file:///etc/passwd", BIG.hash[:-1] + "0"):
        await GRAPH.arun(CLAIM, lm(), journal=journal, run_id=f"two {len(wrong)}")
        with pytest.raises(BaeError):
            await GRAPH.answer(f"two {len(wrong)}", "Signed.paper", wrong, journal=journal)


@pytest.mark.parametrize("cut", range(4, 22, 3))
async def test_a_run_cut_after_any_line_resumes_with_its_files(cut, tmp_path):
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
        whole = await journal.read("one")
    execute(tmp_path / "runs.db", f"delete from lines where id & 4294967295 >= {cut}")
    execute(tmp_path / "runs.db", "update runs set status = 'running', owner = null")
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        model = ScriptedLM({Look: [[Call("zoom", part="left")], {"text": "seen"}]})
        rounds = sum(line.kind == "RoundMade" for line in whole.lines[:cut])
        if rounds:
            model = ScriptedLM({Look: [[Call("zoom", part="left")], {"text": "seen"}][rounds:]})
        done = await GRAPH.resume("one", model, journal=journal, answer=paper)
        assert done.result == Signed(photo=DOT, paper=NOTE)
        assert (await journal.read("one")).files == FILES
        for prompt in model.prompts[-1:]:  # with the file of the tool, also if it ran before
            assert OTHER in [part.file for part in prompt.files]


FROM_A_TOOL = """
import asyncio, sys
from typing import Annotated
from bae import BaeError, Document, Graph, Node, ToolCall, Tools
from bae.journal import SQLiteJournal
from bae.testing import Call, ScriptedLM

def read(page: int) -> Document:
    return Document.from_bytes(b"page one", "page.txt")

class Reply(Node):
    calls: Annotated[list[ToolCall], Tools(read)]
    text: str
    async def __call__(self) -> None: ...

class Ask(Node):
    async def __call__(self) -> Reply: ...

async def main(path, is_first):
    graph = Graph(start=Ask, end=Reply)
    async with SQLiteJournal(path) as journal:
        if is_first:
            try:
                lm = ScriptedLM([[Call("read", page=1)]])
                await graph.arun(Ask(), lm, journal=journal, run_id="one")
            except BaeError:
                return
        lm = ScriptedLM([{"text": "seen"}])
        await graph.resume("one", lm, journal=journal)
        print([(part.file.name, part.file.data) for part in lm.prompts[-1].files])

asyncio.run(main(sys.argv[1], sys.argv[2] == "first"))
"""


def test_another_process_shows_the_model_a_file_returned_by_a_tool(tmp_path):
    for process in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", FROM_A_TOOL, tmp_path / "runs.db", process],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == "[('page.txt', b'page one')]"


KILLED = """
import asyncio, os, signal, sys
sys.path[:0] = {paths!r}
from bae.journal.sqlite import writer
from test_stored_files import *

async def main():
    async with SQLiteJournal(sys.argv[1]) as journal:
        await GRAPH.arun(Claim(text="broken", photos=[DOT]), lm(), journal=journal, run_id="one")

def die(statement):
    global left
    left -= statement.startswith(sys.argv[2])
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

left = int(sys.argv[3])
connect = writer.SQLiteWriter.connect

def connect_and_die(self):
    found = connect(self)
    found.set_trace_callback(die)
    return found

writer.SQLiteWriter.connect = connect_and_die
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("statement", "number"),
    [("insert or ignore into files", 0), ("insert or ignore into file_uses", 0), ("commit", 2)],
)
def test_a_kill_at_any_time_leaves_no_line_without_its_file(statement, number, tmp_path):
    here = Path(__file__).parent
    program = KILLED.format(paths=[str(here), str(here.parent)])
    path = tmp_path / "runs.db"
    done = subprocess.run(
        [sys.executable, "-c", program, path, statement, str(number)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with closing(sqlite3.connect(path)) as db:
        lines = "".join(text for (text,) in db.execute("select data from lines"))
        hashes = {hash for (hash,) in db.execute("select hash from files")}
        used = {hash for (hash,) in db.execute("select hash from file_uses")}
    named = {each[:71] for each in lines.split('"hash":"')[1:] for each in [each]}
    assert named <= hashes == used

    async def resume() -> None:
        async with SQLiteJournal(path, lease=0.5) as journal:
            if await journal.runs():
                done = await GRAPH.resume("one", lm(), journal=journal, answer=paper)
                assert done.result.photo == DOT

    asyncio.run(resume())


DELETED = """
import asyncio, os, signal, sys
from bae.journal import SQLiteJournal
from bae.journal.sqlite import writer

def die(statement):
    if statement.startswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

connect = writer.SQLiteWriter.connect

def connect_and_die(self):
    found = connect(self)
    found.set_trace_callback(die)
    return found

async def main():
    async with SQLiteJournal(sys.argv[1]) as journal:
        writer.SQLiteWriter.connect = connect_and_die
        await journal.delete(["one"])

asyncio.run(main())
"""


@pytest.mark.parametrize("statement", ["delete from lines", "delete from files", "COMMIT"])
async def test_a_killed_delete_deletes_nothing(statement, tmp_path):
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal:
        await ANYTHING.arun(SOMETHING, journal=journal, run_id="one")
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DELETED, path, statement.lower()
    )
    assert await asyncio.wait_for(killed.wait(), 60) == -signal.SIGKILL
    async with SQLiteJournal(path) as journal:
        assert (await ANYTHING.replay("one", journal=journal)).result == SOMETHING
        assert await journal.delete(["one"]) == 1
    assert (count_files(path), execute(path, "select count(*) from file_uses")) == (0, [(0,)])


async def test_deleting_a_run_keeps_files_that_another_run_has(tmp_path):
    path = tmp_path / "runs.db"

    async def start_and_delete(name: str) -> None:
        async with SQLiteJournal(path, durability="normal") as journal:
            for number in range(20):
                await ANYTHING.arun(SOMETHING, journal=journal, run_id=f"{name}{number}")
                if number:
                    assert await journal.delete([f"{name}{number - 1}"]) == 1
                stored = await journal.read(f"{name}{number}")
                assert stored.files == {DOT.hash: DOT.data}

    await asyncio.gather(*map(start_and_delete, "abc"))
    async with SQLiteJournal(path) as journal:
        assert count_files(path) == 1
        assert await journal.prune(older_than=0) == 3
    assert count_files(path) == 0


async def test_ten_turns_with_the_same_image_store_it_once(journal):
    model = ScriptedLM([{"text": "a dot"}] * 10)
    for number in range(10):
        asked = Asked(text=f"question {number}", photo=BIG)
        await CHAT.arun(asked, model, journal=journal, thread="ana")
    assert execute(journal.path, "select count(*), sum(length(data)) from files") == [(1, BIG.size)]
    assert execute(journal.path, "select sum(length(data)) from lines")[0][0] < 20_000


async def test_a_fork_shares_files_and_may_add_new_files(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
    same = await GRAPH.fork("one", at=0, journal=journal, changed={"text": "other"})
    new = await GRAPH.fork("one", at=0, journal=journal, changed={"photos": [THUMB]})
    for run_id, photos in ((same, CLAIM.photos), (new, [THUMB])):
        done = await GRAPH.resume(run_id, lm(), journal=journal, answer=paper)
        assert done.trace[0].photos == photos
    assert count_files(Path(journal.path)) == len(FILES)


async def test_a_file_is_deleted_with_the_last_run_that_has_it(journal):
    path = Path(journal.path)
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
    await GRAPH.arun(
        Claim(text="b", photos=[BIG]), lm(), journal=journal, run_id="two", answer=paper
    )
    await GRAPH.arun(
        Claim(text="c", photos=[]), lm(), journal=journal, run_id="three", answer=paper
    )
    await journal.delete(["one"])
    assert BIG.hash in (await journal.read("two")).files
    assert CLAIM.photos[1] == (await GRAPH.replay("two", journal=journal)).trace[0].photos[0]
    await journal.delete(["two"])
    left = execute(path, "select hash from files")
    assert BIG.hash not in [hash for (hash,) in left]
    assert await journal.prune(older_than=0) == 1
    assert count_files(path) == 0
    assert execute(path, "select count(*) from file_uses") == [(0,)]


# --- export and load ----------------------------------------------------------------------------


async def export_journal(journal: Journal) -> bytes:
    file = io.BytesIO()
    await journal.export(file)
    return file.getvalue()


async def test_an_export_has_each_file_once_and_loads_into_any_journal(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="two", answer=paper)
    text = await export_journal(journal)
    rows = [json.loads(row) for row in text.splitlines()]
    assert sum(row.get("bae") == "file" for row in rows) == len(FILES)
    async with MemoryJournal() as other:
        assert await other.load(io.BytesIO(text)) == ["one", "two"]
        assert (await other.read("two")).files == FILES
        assert (await GRAPH.replay("two", journal=other)).trace[0] == CLAIM
        assert await export_journal(other) == text


DAMAGE = {
    "other bytes": lambda row: {**row, "data": "AAAA"},
    "no base64": lambda row: {**row, "data": "!"},
    "no hash": lambda row: {**row, "hash": "sha256:1"},
    "no data": lambda row: {k: v for k, v in row.items() if k != "data"},
    "a newer version": lambda row: {**row, "version": 99},
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_an_export_with_a_damaged_file_is_refused_completely(damage, journal):
    await GRAPH.arun(Claim(text="a", photos=[DOT]), lm(), journal=journal, answer=paper)
    first, *rest = (await export_journal(journal)).splitlines()
    row = json.dumps(DAMAGE[damage](json.loads(first)), separators=(",", ":")).encode()
    async with MemoryJournal() as other:
        with pytest.raises(JournalError, match="line 1") as raised:
            await other.load(io.BytesIO(b"\n".join([row, *rest])))
        assert raised.value.code in ("bae-journal-damaged", "bae-journal-version")
        with expect_refusal("bae-journal-damaged"):
            await other.load(io.BytesIO(b"\n".join(rest)))  # without the file
        assert await other.runs() == []


# --- redaction ----------------------------------------------------------------------------------


async def test_redaction_removes_files_that_only_redacted_values_use(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
    await journal.redact("one", "Claim.photos")
    stored = await journal.read("one")
    assert BIG.hash not in stored.files
    assert NOTE.hash in stored.files
    data = b"".join(path.read_bytes() for path in Path(journal.path).parent.iterdir())
    assert BIG.data[-1_000:] not in data


async def test_a_file_of_a_secret_field_is_not_stored(journal):
    from pydantic import Field

    class Start(Node):
        photo: Image = Field(repr=False)

        async def __call__(self) -> Done:
            return Done(text="x")

    class Done(Node):
        text: str

        async def __call__(self) -> None: ...

    await Graph(start=Start, end=Done).arun(Start(photo=BIG), journal=journal, run_id="one")
    assert (await journal.read("one")).files == {}


# --- any value ----------------------------------------------------------------------------------

IMAGES = st.sampled_from([DOT, OTHER, THUMB, Image.from_bytes(png(), "another.png")])
URLS = st.just(ImageUrl("https://example.org/b.png"))
DOCUMENTS = st.builds(
    lambda text, name: Document.from_bytes(f"x{text}".encode(), name),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    st.text(max_size=5),
)


class Anything(Node):
    photos: list[Image | ImageUrl]
    by_name: dict[str, tuple[Image, Document] | None]
    papers: list[Document | str]

    async def __call__(self) -> None: ...


ANYTHING = Graph(start=Anything, end=Anything)
SOMETHING = Anything(photos=[DOT], by_name={}, papers=[])


@given(
    photos=st.lists(IMAGES | URLS, max_size=4),
    by_name=st.dictionaries(st.text(max_size=3), st.none() | st.tuples(IMAGES, DOCUMENTS)),
    papers=st.lists(DOCUMENTS, max_size=3),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_with_files_reads_back_from_a_journal_and_from_an_export(photos, by_name, papers):
    async def check() -> None:
        start = Anything(photos=photos, by_name=by_name, papers=papers)
        async with MemoryJournal() as journal, MemoryJournal() as other:
            await ANYTHING.arun(start, journal=journal, run_id="one")
            assert (await ANYTHING.resume("one", journal=journal)).result == start
            await other.load(io.BytesIO(await export_journal(journal)))
            assert (await ANYTHING.replay("one", journal=other)).result == start

    asyncio.run(check())


# --- stores without files -----------------------------------------------------------------------


class WithoutFiles(MemoryJournal):
    put_files = Journal.put_files


async def test_a_store_without_file_support_refuses_only_runs_with_files(journal):
    async with WithoutFiles() as own:
        with expect_refusal("bae-journal-files"):
            await GRAPH.arun(CLAIM, lm(), journal=own, run_id="one")
        assert await own.runs() == []

        class Plain(Node):
            text: str

            async def __call__(self) -> None: ...

        await Graph(start=Plain, end=Plain).arun(Plain(text="a"), journal=own)
        await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
        with expect_refusal("bae-journal-files"):
            await own.load(io.BytesIO(await export_journal(journal)))


def test_a_resume_succeeds_with_a_file_from_an_untyped_function():
    async def make() -> Any:
        return DOT

    class Start(Node):
        text: str

        async def __call__(self) -> Done: ...

    class Done(Node):
        photo: Annotated[Image, Dep(make)]
        text: str

        async def __call__(self) -> None: ...

    async def main() -> None:
        async with MemoryJournal() as journal:
            graph = Graph(start=Start, end=Done)
            model = ScriptedLM([{"text": "a"}])
            await graph.arun(Start(text="a"), model, journal=journal, run_id="one")
            assert (await graph.resume("one", journal=journal)).result.text == "a"

    asyncio.run(main())


async def test_an_answer_may_name_only_files_of_its_own_run_by_hash(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one")
    await GRAPH.arun(Claim(text="b", photos=[]), lm(), journal=journal, run_id="two")
    with pytest.raises(BaeError, match="no file"):
        await GRAPH.answer("two", "Signed.paper", {"hash": NOTE.hash}, journal=journal)
    done = await GRAPH.answer("one", "Signed.paper", {"hash": NOTE.hash}, journal=journal)
    assert done.result.paper.data == NOTE.data


async def test_an_image_of_an_earlier_turn_is_sent_as_a_placeholder(journal):
    model = ScriptedLM([{"text": "a dot"}, {"text": "white"}])
    for number, photo in enumerate((DOT, None)):
        asked = Asked(text=f"question {number}", photo=photo)
        await CHAT.arun(asked, model, journal=journal, thread="ana")
    first, second = model.prompts
    assert [part.file for part in first.files] == [DOT]
    assert second.files == ()
    assert DOT.placeholder in str(second)


class Asked(Node):
    text: str
    photo: Image | None

    async def __call__(self) -> Said: ...


class Said(Node):
    history: Annotated[Messages, Thread(last=5)]
    text: str

    async def __call__(self) -> None: ...


CHAT = Graph(start=Asked, end=Said)


# --- answers to gates ---------------------------------------------------------------------------


async def test_the_file_in_an_answer_is_stored_once_and_not_in_the_answer(journal):
    paper = Document.from_bytes(b"%PDF-1.4 " + os.urandom(300_000), "signed.pdf")
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one")
    given = {"data": paper.data_url, "name": paper.name}
    waits = await GRAPH.answer("one", "Signed.paper", given, journal=journal, go_on=False)
    assert waits.waiting == ()
    stored = await journal.read("one")
    assert len("".join(stored.answers.values())) < 300
    assert stored.files[paper.hash] == paper.data
    text = await export_journal(journal)
    await journal.redact("one", "Claim.text")
    assert (await journal.read("one")).files[paper.hash] == paper.data
    async with MemoryJournal() as other:
        await other.load(io.BytesIO(text), unfinished="keep")
        for each in (journal, other):
            done = await GRAPH.resume("one", journal=each, given={"Claim.text": "broken"})
            assert done.result.paper == paper
    assert count_files(Path(journal.path)) == len(FILES) + 1


async def test_redacting_an_answer_removes_its_file(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one")
    await GRAPH.answer("one", "Signed.paper", BIG_PAPER, journal=journal)
    await journal.redact("one", "Signed.paper")
    stored = await journal.read("one")
    assert BIG_PAPER.hash not in stored.files
    assert BIG_PAPER.hash not in str(stored)


BIG_PAPER = Document.from_bytes(b"%PDF-1.4 " + os.urandom(9_000), "big.pdf")


async def test_an_answered_file_is_validated_only_once(journal):
    def number(value: Any) -> Any:
        return Document(value.data, f"{value.name}+") if isinstance(value, Document) else value

    class Ask(Node):
        async def __call__(self) -> Kept:
            return Kept()

    class Kept(Node):
        paper: Annotated[Annotated[Document, AfterValidator(number)], Gate("the paper?")]

        async def __call__(self) -> None: ...

    graph = Graph(start=Ask, end=Kept)
    await graph.arun(Ask(), journal=journal, run_id="one")
    given = {"data": NOTE.data_url, "name": "a"}
    done = await graph.answer("one", "Kept.paper", given, journal=journal)
    assert done.result.paper.data == NOTE.data
    assert done.result.paper.name == "a+"


async def test_a_gate_answered_twice_has_the_file_of_the_first_answer(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one")
    await GRAPH.answer("one", "Signed.paper", BIG_PAPER, journal=journal, go_on=False)
    with pytest.raises(BaeError, match="an answer already"):
        await GRAPH.answer("one", "Signed.paper", NOTE, journal=journal)

    async def late(gate: object) -> Document:
        return NOTE

    done = await GRAPH.resume("one", journal=journal, answer=late)
    assert done.result.paper == BIG_PAPER


# --- changed code and forks ---------------------------------------------------------------------


def make_changed_graph(*, with_note: bool) -> Graph[Any, Any]:
    if with_note:

        class Start(Node):
            photo: Image
            note: str = ""

            async def __call__(self) -> Last:
                return Last(photo=self.photo)
    else:

        class Start(Node):
            photo: Image

            async def __call__(self) -> Last:
                return Last(photo=self.photo)

    class Last(Node):
        photo: Image
        paper: Annotated[Document, Gate("the paper?")]

        async def __call__(self) -> None: ...

    Start.__call__.__annotations__["return"] = Last
    return Graph(start=Start, end=Last, name="changed")


async def test_a_run_with_files_resumes_after_its_classes_have_changed(journal):
    old, new = make_changed_graph(with_note=False), make_changed_graph(with_note=True)
    await old.arun(old.start(photo=DOT), journal=journal, run_id="one")
    await old.answer("one", "Last.paper", NOTE, journal=journal, go_on=False)
    assert await check(new, journal) == []
    done = await new.resume("one", journal=journal)
    assert (done.result.photo, done.result.paper) == (DOT, NOTE)


async def test_a_fork_may_name_a_file_of_its_run_by_hash(journal):
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="one", answer=paper)
    photos = [{"hash": BIG.hash, "name": "first.png"}]
    changed = await GRAPH.fork("one", at=0, journal=journal, changed={"photos": photos})
    done = await GRAPH.resume(changed, lm(), journal=journal)
    assert done.trace[0].photos[0].data == BIG.data
    await GRAPH.arun(CLAIM, lm(), journal=journal, run_id="two")
    await GRAPH.answer("two", "Signed.paper", BIG_PAPER, journal=journal)
    fork = await GRAPH.fork("two", at=1, journal=journal)
    assert BIG_PAPER.hash not in (await journal.read(fork)).files
    assert {**(await journal.read(fork)).files} == FILES


# --- exports of others --------------------------------------------------------------------------


async def test_a_run_with_an_invalid_file_can_be_loaded_and_inspected(journal):
    data = b"\x7fELF\0\0"
    hash = f"sha256:{sha256(data).hexdigest()}"
    await GRAPH.arun(Claim(text="a", photos=[DOT]), lm(), journal=journal, run_id="one")
    text = (await export_journal(journal)).replace(DOT.hash.encode(), hash.encode())
    text = text.replace(DOT.base64.encode(), base64.b64encode(data))
    async with MemoryJournal() as other:
        await other.load(io.BytesIO(text), unfinished="keep")
        report = report_run(await other.read("one"))
        assert report.files[0].media_type == "application/octet-stream"
        with pytest.raises(JournalError):
            await GRAPH.resume("one", lm(), journal=other, answer=paper)
