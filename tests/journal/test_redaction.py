"""`journal.redact`: a redacted value is removed from the lines of the run, from runs that share
them, and from the bytes of the file; the rest is unchanged, and the run can resume."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from bae import LM, Dep, Gate, Graph, Map, Node, Recall
from bae.journal import Journal, MemoryJournal, SQLiteJournal
from end_node import EndNode
from journal_parts import expect_refusal
from toy_backend import ToyBackend

pytestmark = pytest.mark.once

SECRET = 'ada "the \u00e9nchantress" <ada@example.org>\n'


class Place(BaseModel):
    street: str
    town: str


def find_place() -> Place:
    return Place(street="12 Secret Lane", town="Oxford")


def greet(place: Annotated[Place, Dep(find_place)]) -> str:
    return f"Hello {place.town}"


def shout(name: str) -> str:
    return name.upper()


class Person(Node):
    name: str
    email: str

    async def __call__(self) -> Letter: ...


class Letter(Node):
    email: Annotated[str, Recall(Person)]
    greeting: Annotated[str, Dep(greet)]
    place: Annotated[Place, Dep(find_place)]
    text: str
    words: list[str]
    loud: Annotated[list[str], Map(shout, over="words")]

    async def __call__(self, lm: LM) -> Sent:
        made = await lm.make(self, Stamp)
        return Sent(text=self.text, price=made.price)


class Stamp(EndNode):
    price: int


class Sent(EndNode):
    text: str
    price: int
    signed: Annotated[str, Gate("Who signs?")]


graph = Graph(start=Person, end=Sent)


def answers(prompt: Any) -> Any:
    if "text" in prompt.schema["properties"]:
        return {"text": "Dear Ada", "words": ["alpha", "omega"]}
    return {"price": 4321}


async def signs(gate: Any) -> str:
    return "Grace Hopper"


async def record_run(journal: Journal, run_id: str = "run", **options: Any) -> Any:
    start = Person(name="Ada", email=SECRET)
    lm = ToyBackend(answers)
    return await graph.arun(start, lm, journal=journal, run_id=run_id, **options)


def everything(lines: Any) -> str:
    return "\n".join(json.dumps(json.loads(line.data), ensure_ascii=False) for line in lines)


def forms(text: str) -> list[bytes]:
    """The text as it may stand in a file: as it is, or inside JSON, or inside JSON in JSON."""
    once = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    twice = {json.dumps(form, ensure_ascii=False)[1:-1] for form in once}
    return [form.encode() for form in once | twice]


def in_files(folder: Path, text: str) -> list[str]:
    """The files that have the text in them."""
    return [
        path.name
        for path in folder.iterdir()
        if any(form in path.read_bytes() for form in forms(text))
    ]


# --- what is gone, and what is not ---------------------------------------------------------------


async def test_redaction_removes_a_value_from_every_line_and_nothing_else():
    async with MemoryJournal() as journal:
        await record_run(journal, answer=signs)
        before = (await journal.read("run")).lines
        assert json.dumps(SECRET, ensure_ascii=False)[1:-1] in everything(before)
        done = await journal.redact("run", "Person.email")
        after = (await journal.read("run")).lines
    assert "ada@example.org" not in everything(after)
    assert done.runs == ("run",)
    assert done.places == ("Letter.email", "Person.email")
    assert done.values == 1
    assert done.texts > 0
    assert "1 value of Letter.email, Person.email" in str(done)
    assert [line._replace(data="") for line in before] == [line._replace(data="") for line in after]
    start = json.loads(after[0].data)["node"]
    assert start == {"type": "Person", "fields": {"name": "Ada"}, "withheld": ["email"]}
    changed = [o.kind for o, n in zip(before, after, strict=True) if o != n]
    assert set(changed) == {"RunStarted", "AnswerJudged", "LMAnswered"}
    # What an LM call used, and what was found of its answer, is still told.
    for line in after:
        if line.kind == "AnswerJudged":
            assert {"asker", "number", "verdict", "usage", "prompt"} <= json.loads(line.data).keys()


@pytest.mark.parametrize(
    ("place", "text", "places", "values"),
    [
        ("Letter.place", "Secret Lane", ("Letter.place",), 1),
        ("Letter.words", "omega", ("Letter.words",), 1),
        ("Letter.loud", "OMEGA", ("Letter.loud",), 2),
        ("Sent.signed", "Grace Hopper", ("Sent.signed",), 1),
        ("Letter.email", "ada@example.org", ("Letter.email", "Person.email"), 1),
        ("Person", "ada@example.org", ("Letter.email", "Person.email", "Person.name"), 2),
    ],
)
async def test_redaction_finds_every_copy_made_by_a_source(place, text, places, values):
    journal = MemoryJournal()
    await record_run(journal, answer=signs)
    assert text in everything((await journal.read("run")).lines)
    done = await journal.redact("run", place)
    assert (done.places, done.values) == (places, values)
    assert text not in everything((await journal.read("run")).lines)


@pytest.mark.parametrize(
    ("places", "text"),
    [(("Letter.text", "Sent.text"), "Dear Ada"), (("Stamp.price", "Sent.price"), "4321")],
)
async def test_a_copy_made_by_a_body_is_redacted_only_by_name(places, text):
    journal = MemoryJournal()
    await record_run(journal, answer=signs)
    await journal.redact("run", places[0])
    assert text in everything((await journal.read("run")).lines)
    done = await journal.redact("run", *places)
    assert (set(done.places), done.values) == (set(places), 1)
    assert text not in everything((await journal.read("run")).lines)


async def test_validation_errors_of_a_redacted_answer_do_not_reveal_it():
    journal = MemoryJournal()
    tries = iter([{"text": "x", "words": "ada's words"}, {"text": "Dear", "words": ["w"]}])

    def wrong_first(prompt: Any) -> Any:
        return {"price": 1} if "price" in prompt.schema["properties"] else next(tries)

    start = Person(name="Ada", email=SECRET)
    await graph.arun(start, ToyBackend(wrong_first), journal=journal, run_id="run", answer=signs)
    await journal.redact("run", "Letter.words")
    lines = (await journal.read("run")).lines
    judged = [json.loads(line.data) for line in lines if line.kind == "AnswerJudged"]
    assert judged[0]["verdict"] == "invalid"
    assert judged[0]["errors"] == ["words: withheld"]


async def test_redaction_removes_error_messages_everywhere():
    class Failing(Node):
        token: str

        async def __call__(self) -> None:
            raise ValueError(f"cannot use {self.token}")

    failing = Graph(start=Failing)
    journal = MemoryJournal()
    with pytest.raises(Exception, match="Failing"):
        await failing.arun(Failing(token="tok-123456"), journal=journal, run_id="run")
    before = await journal.read("run")
    assert "tok-123456" in everything(before.lines)
    assert "Failing" in before.info.error
    await journal.redact("run", "Failing.token")
    stored = await journal.read("run")
    assert "tok-123456" not in everything(stored.lines)
    assert stored.info.error == "[bae-node-failed] withheld"
    assert stored.info.status == "failed"


# --- graphs inside, maps of graphs, dependencies that are shared ---------------------------------


class Item(Node):
    code: str

    async def __call__(self) -> Checked: ...


class Checked(EndNode):
    verdict: str
    note: Annotated[str, Dep(lambda: "noted-by-hand")]


class Batch(Node):
    codes: list[str]
    checks: Annotated[list[Checked], Map(Graph(start=Item, end=Checked), over="codes")]
    place: Annotated[Place, Dep(find_place)]

    async def __call__(self) -> Report: ...


class Report(EndNode):
    where: Annotated[Place, Dep(find_place)]
    title: str


batch = Graph(start=Batch, end=Report)


def batch_answers(prompt: Any) -> Any:
    if "title" in prompt.schema["properties"]:
        return {"title": "all is well"}
    return {"verdict": "verdict-of-the-model"}


async def record_batch(journal: Journal) -> None:
    start = Batch(codes=["code-one", "code-two"])
    await batch.arun(start, ToyBackend(batch_answers), journal=journal, run_id="run")


@pytest.mark.parametrize(
    ("places", "text"),
    [
        (["Batch.codes"], "code-one"),  # which the graphs inside begin with
        (["Checked.verdict"], "verdict-of-the-model"),  # which is in the value of the map too
        (["Batch.checks"], "verdict-of-the-model"),  # which graphs inside have made
        (["Report.where"], "Secret Lane"),  # which another field asked for first
        (["Batch.place"], "Secret Lane"),
    ],
)
async def test_redaction_finds_values_in_subgraphs_and_shared_dependencies(places, text):
    journal = MemoryJournal()
    await record_batch(journal)
    assert text in everything((await journal.read("run")).lines)
    done = await journal.redact("run", *places)
    assert text not in everything((await journal.read("run")).lines)
    assert done.values > 0


async def test_a_redacted_dependency_and_a_redacted_map_of_graphs_are_computed_again():
    called: list[str] = []

    def look_up() -> str:
        called.append("looked up")
        return "found-by-looking"

    class Asked(EndNode):
        found: Annotated[str, Dep(look_up)]
        codes: list[str]
        checks: Annotated[list[Checked], Map(Graph(start=Item, end=Checked), over="codes")]
        sure: Annotated[bool, Gate("Sure?")]

    asked, journal, lm = Graph(start=Asked), MemoryJournal(), ToyBackend(batch_answers)
    start = Asked.model_construct(codes=["code-one", "code-two"])
    result = await asked.arun(start, lm, journal=journal, run_id="run")
    assert (result.waiting[0].place, lm.calls) == ("Asked.sure", 2)
    await journal.redact("run", "Asked.found", "Asked.checks")
    left = everything((await journal.read("run")).lines)
    assert "found-by-looking" not in left
    assert "verdict-of-the-model" not in left
    result = await asked.answer("run", "Asked.sure", True, lm, journal=journal)
    assert [check.verdict for check in result.trace[0].checks] == ["verdict-of-the-model"] * 2
    assert result.trace[0].found == "found-by-looking"
    assert called == ["looked up", "looked up"]
    # What the calls of before used is not forgotten.
    assert lm.calls == 4
    assert result.usage.calls == 4


# --- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["run", "fork", "fork of the fork"])
async def test_runs_that_share_lines_are_redacted_together(named):
    async with MemoryJournal() as journal:
        await record_run(journal, answer=signs)
        await graph.fork("run", at=1, journal=journal, new_id="fork", text="Dear Ada, again")
        await graph.resume("fork", ToyBackend(answers), journal=journal, answer=signs)
        await graph.fork("fork", at=2, journal=journal, new_id="fork of the fork")
        await record_run(journal, "stranger", answer=signs)
        done = await journal.redact(named, "Person.email")
        assert done.runs[0] == named
        assert set(done.runs) == {"run", "fork", "fork of the fork"}
        assert done.values == 2  # in the start that all share, and in the node that was forked
        for run in done.runs:
            assert "ada@example.org" not in everything((await journal.read(run)).lines)
        assert "ada@example.org" in everything((await journal.read("stranger")).lines)
        statuses = {info.run_id: info.status for info in await journal.runs()}
    assert statuses["run"] == statuses["fork"] == "ended"
    assert statuses["fork of the fork"] == "running"


# --- the bytes of the file -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [20, 40_000], ids="{} characters".format)
async def test_no_redacted_text_stays_in_the_files_of_the_database(size, tmp_path):
    """Short values, values that fill pages, and values that go over to pages of their own, among
    many runs, so that pages were split and filled again."""
    mark = f"secret-{size:05}-"
    secret = mark * (size // 13 + 1)
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal:
        for n in range(8):
            start = Person(name=f"Somebody {n}", email=f"{n}@example.org" + "x" * (size // 2))
            await graph.arun(
                start, ToyBackend(answers), journal=journal, run_id=f"a{n}", answer=signs
            )
        await asyncio.gather(
            *(
                graph.arun(
                    Person(name="Ada", email=secret),
                    ToyBackend(answers),
                    journal=journal,
                    run_id=f"run{n}",
                    answer=signs,
                )
                for n in range(3)
            )
        )
        await graph.fork("run0", at=1, journal=journal, new_id="fork", text="other")
        await journal.delete([f"a{n}" for n in range(0, 8, 2)])
        assert in_files(tmp_path, mark)
        for n in range(3):
            await journal.redact(f"run{n}", "Person.email")
        # While the journal is open, with its log beside it, and after it is closed.
        assert in_files(tmp_path, mark) == []
        assert (await journal.read("run0")).lines[0].kind == "RunStarted"
    assert in_files(tmp_path, mark) == []


async def test_no_redacted_gate_answer_stays_in_the_database(tmp_path):
    path = tmp_path / "runs.db"
    async with SQLiteJournal(path) as journal:
        result = await record_run(journal)
        assert result.waiting
        await graph.answer("run", "Sent.signed", "Margaret H.", journal=journal, go_on=False)
        await graph.fork("run", at=1, journal=journal, new_id="fork")
        assert in_files(tmp_path, "Margaret H.")
        await journal.redact("run", "Sent.signed")
        assert in_files(tmp_path, "Margaret H.") == []
        stored = await journal.read("run")
        assert stored.answers == {}
        assert stored.info.status == "waiting"
        assert [gate.place for gate in stored.info.waiting] == ["Sent.signed"]
        # And so it is asked once more.
        result = await graph.answer(
            "run", "Sent.signed", "Somebody", ToyBackend(answers), journal=journal
        )
        assert result.result.signed == "Somebody"


# --- what comes after ----------------------------------------------------------------------------


async def test_a_resumed_run_asks_for_redacted_values_again():
    async with MemoryJournal() as journal:
        await record_run(journal)
        await journal.redact("run", "Person.email")
        lm = ToyBackend(answers)
        with expect_refusal("bae-journal-secret") as raised:
            await graph.resume("run", lm, journal=journal, answer=signs)
        assert "Person.email" in str(raised.value)
        result = await graph.resume(
            "run", lm, journal=journal, answer=signs, given={"Person.email": "new@example.org"}
        )
        assert result.result.signed == "Grace Hopper"
        assert result.trace[0].email == "new@example.org"
        assert lm.calls == 0  # all that was recorded stands


async def test_a_redacted_ended_run_can_be_read_and_listed(tmp_path):
    async with MemoryJournal() as journal:
        await record_run(journal, answer=signs)
        await journal.redact("run", "Person.email", "Letter.place")
        result = await graph.resume("run", journal=journal)
        assert result.result.text == "Dear Ada"
        assert "email" not in result.trace[0].__dict__
        assert "withheld" in str(await journal.why("run", "Person.email"))
        await journal.export(tmp_path / "run.jsonl", ["run"])
    assert "ada@example.org" not in (tmp_path / "run.jsonl").read_text("utf-8")


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["Persn.email", "Person.mail", "a/b"])
async def test_redacting_an_unknown_field_is_refused_with_the_known_fields(place):
    journal = MemoryJournal()
    await record_run(journal, answer=signs)
    before = (await journal.read("run")).lines
    with expect_refusal("bae-redact-unknown") as raised:
        await journal.redact("run", "Person.name", place)
    assert "Person.email" in (raised.value.fix or "")
    assert (await journal.read("run")).lines == before


async def test_redacting_no_field_or_an_unknown_run_is_refused():
    journal = MemoryJournal()
    with pytest.raises(TypeError, match="name a field"):
        await journal.redact("run")
    with expect_refusal("bae-run-unknown"):
        await journal.redact("run", "Person.email")


async def test_a_run_in_progress_is_not_redacted():
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def waits(gate: Any) -> str:
        arrived.set()
        await go_on.wait()
        return "Grace"

    async with MemoryJournal() as journal:
        task = asyncio.ensure_future(record_run(journal, answer=waits))
        await arrived.wait()
        with expect_refusal("bae-run-owned"):
            await journal.redact("run", "Person.email")
        go_on.set()
        assert (await task).result.signed == "Grace"
        assert (await journal.redact("run", "Person.email")).values == 1


async def test_a_cancelled_redaction_releases_the_run():
    class Slow(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.replacing = asyncio.Event()

        async def replace(self, runs: Any, claims: Any = (), *, erase: bool = False) -> None:
            self.replacing.set()
            await asyncio.Event().wait()

    journal = Slow()
    await record_run(journal)
    task = asyncio.ensure_future(journal.redact("run", "Person.email"))
    await journal.replacing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    info = (await journal.read("run")).info
    assert (info.status, info.owner) == ("waiting", None)
    assert [gate.place for gate in info.waiting] == ["Sent.signed"]
