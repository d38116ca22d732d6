"""Stored runs of every kind, for the tests of stored formats. `python tests/format_runs.py` writes
them with the code of today into `tests/journal/formats`, into the folder of today's version."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ForwardRef, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from bae import (
    LM,
    Ask,
    BaeError,
    BaeLMError,
    Dep,
    Gate,
    Graph,
    Image,
    ImageUrl,
    Map,
    Node,
    Recall,
    Tool,
    ToolCall,
    ToolError,
    Tools,
)
from bae.journal import Journal, Line, ParkedGate, RunInfo, SQLiteJournal, StoredRun, shape
from bae.journal.export import write_run
from bae.journal.lines import DATA, AskerData, CallData, ErrorData, StoredNode, ToolData
from bae.journal.sqlite import lease
from bae.journal.stored_runs import FORMAT
from bae.lm import Retry
from bae.records import Origin
from bae.testing import Call, ScriptedLM
from bae.usage import Usage
from toy_backend import ToyBackend, route

FORMATS = Path(__file__).parent / "journal" / "formats"
FAILING = {"stock": False}
"""Whether the stock cannot be counted."""
DYING = "BAE_TESTS_DIE"
"""The environment variable that makes a body, or a tool, end its process: it names the run."""


class Stock(BaseModel):
    lamps: int
    place: str


async def get_place() -> str:
    return "Bern"


async def count_stock(place: Annotated[str, Dep(get_place)]) -> Stock:
    if FAILING["stock"]:
        raise ConnectionError("the store does not answer")
    return Stock(lamps=3, place=place)


async def spell(word: str) -> str:
    return word.upper()


class Word(Node):
    text: str

    async def __call__(self) -> Length:
        return Length(count=len(self.text))


class Length(Node):
    count: int

    async def __call__(self) -> None: ...


class Order(Node):
    text: str

    async def __call__(self) -> Parcel | Refusal: ...


class Refusal(Node):
    reason: str

    async def __call__(self) -> None: ...


class Note(Node):
    words: list[str]

    async def __call__(self) -> None: ...


class Parcel(Node):
    stock: Annotated[Stock, Dep(count_stock)]
    lamps: int
    items: list[str]
    labels: Annotated[list[str], Map(spell, over="items")]
    lengths: Annotated[list[Length], Map(Graph(start=Word, end=Length), over="items")]

    async def __call__(self, lm: LM) -> Shipment:
        first = await lm.make(self, Note)
        second = await lm.make(self, Note)
        if os.environ.get(DYING):
            os._exit(9)
        return Shipment(words=[*first.words, *second.words])


class Shipment(Node):
    words: list[str]
    order: Annotated[Order, Recall()]
    place: Annotated[str, Dep(get_place)]
    approved: Annotated[bool, Gate("Send it?")]

    async def __call__(self) -> Sent | None:
        return Sent(number="C-17") if self.approved else None


class Sent(Node):
    number: str

    async def __call__(self) -> None: ...


class Login(Node):
    user: str
    token: SecretStr
    place: Annotated[str, Dep(get_place)]

    async def __call__(self) -> None: ...


class Stamp(Node):
    """No class of a graph."""

    place: Annotated[str, Dep(get_place)]
    code: SecretStr

    async def __call__(self) -> None: ...


class Letter(Node):
    text: str

    async def __call__(self, lm: LM) -> Stamped:
        return Stamped(place_on_stamp=(await lm.make(self, Stamp)).place)


class Stamped(Node):
    place_on_stamp: str
    place: Annotated[str, Dep(get_place)]

    async def __call__(self) -> None: ...


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


async def search(word: str, place: Annotated[str, Dep(get_place)]) -> list[str]:
    """Search the catalog."""
    if word == "nothing":
        raise ToolError("search for something")
    if os.environ.get(DYING) and word == "bulb":
        os._exit(9)
    return [f"{word} in {place}"]


async def refuse_short(reply: Reply) -> None:
    if len(reply.text) < 3:
        raise ToolError("write more")


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


class Reply(Node):
    question: Annotated[str, Recall(Question)]
    calls: Annotated[
        list[ToolCall],
        Tools(search, Tool(count_words, name="count", repeat="reuse"), accept=refuse_short),
    ]
    text: str

    async def __call__(self, lm: LM) -> Checked:
        check = await lm.make(self, Check)
        return Checked(is_right=check.is_right, calls=len(check.calls))


class Check(Node):
    """Asked for in a body, with a tool of its own."""

    calls: Annotated[list[ToolCall], Tools(Graph(start=Word, end=Length))]
    is_right: bool

    async def __call__(self) -> None: ...


class Checked(Node):
    is_right: bool
    calls: int

    async def __call__(self) -> None: ...


async def pay_back(order: str) -> str:
    """Pay an order back."""
    return f"paid {order}"


class Complaint(Node):
    text: str

    async def __call__(self) -> Settled: ...


class Settled(Node):
    calls: Annotated[list[ToolCall], Tools(Tool(pay_back, approve=True), Ask(int))]
    text: str

    async def __call__(self) -> None: ...


ORDERS = Graph(start=Order)
COMPLAINTS = Graph(start=Complaint, end=Settled)
QUESTIONS = Graph(start=Question, end=Checked)
LETTERS = Graph(start=Letter, end=Stamped)
LOGINS = Graph(start=Login, end=Login)
START = Order(text="two lamps")
TOKEN = SecretStr("swordfish")
LOGIN = Login.model_construct(user="ann", token=TOKEN)
FILLED = {"lamps": 2, "items": ["lamp", "bulb"]}
WORDS = [{"words": ["careful"]}, {"words": ["fragile", "up"]}]
ENDED = ["finished", "resumed", "refused", "secret"]
SINCE = {"outside": 2, "tools": 5, "photo": 7}
"""Other runs that have ended, with the first version that has them."""
UNFINISHED = ["failed", "parked", "answered", "interrupted", "forked"]
UNFINISHED_SINCE = {"calling": 5, "asked": 5}
"""Other runs that have not ended."""
QUESTION = Question(text="a lamp?")
REPLIES: list[Any] = [
    [Call("search", word="lamp"), Call("search", word="nothing"), Call("count", text="a b")],
    [Call("search", word="bulb"), Call("count", text="a b"), Call("sell", word="bulb")],
    {"text": "no"},
    {"text": 7},
    {"text": "a lamp in Bern"},
]
SETTLING = [
    *(Call("pay_back", order=order) for order in "ABC"),
    Call("ask_person", question="how many?"),
]
CHECKS: list[Any] = [Call("Word", text="lamp"), {"is_right": True}]


DOT = Image.from_data_url(
    "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAAAAAAALAAAAAABAAEAAAIBRAA7", "dot.gif"
)


class Photo(Node):
    image: Image
    seen: list[Image | ImageUrl]

    async def __call__(self) -> Framed:
        return Framed(image=self.image)


class Framed(Node):
    image: Image

    async def __call__(self) -> None: ...


PHOTOS = Graph(start=Photo, end=Framed)
PHOTO = Photo(image=DOT, seen=[DOT, Image.from_url("https://example.org/a.png")])


def fields(journal_file: Path) -> str:
    """All that is stored, one field a line: the data of lines by kind and the parts of it, the
    header and the lines of an export, the tables of a journal."""
    parts = (StoredNode, AskerData, ErrorData, Usage, Origin, ParkedGate, ToolData, CallData)
    forms: dict[str, Any] = {part.__name__: part.__annotations__ for part in parts} | {**DATA}
    listed = [
        f"{form}.{name}: {_describe_type(t)}" for form in forms for name, t in forms[form].items()
    ]
    info = RunInfo("run", "graph", "ended", 0.0, 0.0, "hash")
    lines = (Line(0, "kind", 0.0, "", 0, "{}"),)
    written = write_run(StoredRun(info, "", lines, {}, {DOT.hash: DOT.data}))
    listed.append(f"shape: notation {shape.FORMAT}")
    listed += [f"export: {', '.join(json.loads(each))}" for each in written]
    with closing(sqlite3.connect(journal_file)) as db:
        tables = db.execute("select sql from sqlite_master where sql is not null order by name")
        listed += [" ".join(sql.split()) for (sql,) in tables]
    return "\n".join([*listed, ""])


def _describe_type(kind: Any) -> str:
    """A type as text, the same on every Python; with its default where it may be left out."""
    if isinstance(kind, tuple):
        return f"{_describe_type(kind[0])} = {kind[1]!r}"
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _describe_type(args[0])
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__
    if not args:
        return kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
    if origin in (Union, UnionType):
        return " | ".join(map(_describe_type, args))
    return f"{getattr(origin, '__name__', origin)}[{', '.join(map(_describe_type, args))}]"


def lm() -> ScriptedLM:
    """An LM that answers whatever is asked after any step."""
    return ScriptedLM({Parcel: [FILLED], Note: WORDS}, choices=[Parcel])


def calling_lm(rounds: int = 0) -> ScriptedLM:
    """An LM that calls tools, from a round on."""
    return ScriptedLM({Reply: REPLIES[rounds:], Check: CHECKS})


async def write_runs(journal: Journal) -> None:
    """A run of every kind but an interrupted one."""

    async def yes(gate: object) -> bool:
        return True

    await ORDERS.arun(START, lm(), journal=journal, run_id="finished", answer=yes)
    await ORDERS.arun(START, lm(), journal=journal, run_id="parked")
    await ORDERS.arun(START, lm(), journal=journal, run_id="answered")
    await ORDERS.answer("answered", "Shipment.approved", True, journal=journal, go_on=False)
    FAILING["stock"] = True
    try:
        await ORDERS.arun(START, lm(), journal=journal, run_id="failed")
    except BaeError:
        FAILING["stock"] = False
    await ORDERS.fork("finished", at=1, journal=journal, new_id="forked", lamps=1)
    FAILING["stock"] = True
    try:
        await ORDERS.arun(START, lm(), journal=journal, run_id="resumed")
    except BaeError:
        FAILING["stock"] = False
    again = ScriptedLM({Parcel: [FILLED], Note: WORDS})
    await ORDERS.resume("resumed", again, journal=journal, answer=yes)
    busy = BaeLMError("busy", code="bae-lm-overloaded")
    busy.retryable = True
    model = ToyBackend(
        busy,
        route("Refusal", reason=1),
        {"reason": "no lamps"},
    )
    await ORDERS.arun(START, Retry(model, first=0), journal=journal, run_id="refused")
    await LOGINS.arun(LOGIN, journal=journal, run_id="secret")
    stamp = ToyBackend({"code": "swordfish"})
    await LETTERS.arun(Letter(text="hi"), stamp, journal=journal, run_id="outside")
    await QUESTIONS.arun(QUESTION, calling_lm(), journal=journal, run_id="tools")
    await PHOTOS.arun(PHOTO, journal=journal, run_id="photo")
    settling = ScriptedLM({Settled: [SETTLING]})
    await COMPLAINTS.arun(Complaint(text="wet"), settling, journal=journal, run_id="asked")
    answers = {"c1": "run", "c2": "no: it was dry", "c3": {"arguments": {"order": "D"}}}
    for call, answer in answers.items():
        await COMPLAINTS.answer("asked", call, answer, journal=journal, go_on=False)
    await COMPLAINTS.tell("asked", "hurry", journal=journal)


async def _write(path: Path) -> None:
    lease._host = lambda: "elsewhere"  # and not the name of this machine
    async with SQLiteJournal(path, lease=1) as journal:
        if os.environ.get(DYING) == "interrupted":
            await ORDERS.arun(START, lm(), journal=journal, run_id="interrupted")
        if os.environ.get(DYING) == "calling":
            await QUESTIONS.arun(QUESTION, calling_lm(), journal=journal, run_id="calling")
        await write_runs(journal)


async def _export(path: Path, target: Path) -> None:
    async with SQLiteJournal(path) as journal:
        await journal.export(target)


def main() -> None:
    """Write the runs of today's format, and have two of them killed."""
    if os.environ.get(DYING):
        asyncio.run(_write(Path(sys.argv[1])))
    folder = FORMATS / str(FORMAT)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "journal.sqlite"
    path.unlink(missing_ok=True)
    asyncio.run(_write(path))
    for run_id in ("calling", "interrupted"):
        env = {**os.environ, DYING: run_id}
        done = subprocess.run([sys.executable, __file__, str(path)], env=env)
        assert done.returncode == 9, done
    asyncio.run(_export(path, folder / "export.jsonl"))
    with closing(sqlite3.connect(path)) as db:  # small pages: most tables are nearly empty
        for statement in ("journal_mode = delete", "page_size = 1024"):
            db.execute(f"pragma {statement}")
        db.execute("update owners set until = 0")  # by any clock
        db.commit()
        db.execute("vacuum")
        db.execute("pragma journal_mode = wal")
    (folder / "fields.txt").write_text(fields(path))
    os.chmod(path, 0o644)
    os.chmod(folder / "export.jsonl", 0o644)


if __name__ == "__main__":
    main()
