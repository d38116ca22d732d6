"""Values that a run with a journal stores, withholds, and computes again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from pydantic import Field, SecretStr

from bae import Dep, DepError, Graph, JournalError, Map, Node, NodeError, ProofError, Recall
from bae.journal import Journal
from end_node import EndNode
from journal_graphs import WORLD, Client, make_client
from journal_parts import expect_refusal


async def get_key() -> SecretStr:
    WORLD.do("key")
    return SecretStr("k-123")


class Login(Node):
    user: str
    token: SecretStr
    note: str = Field(default="", repr=False)
    key: Annotated[SecretStr, Dep(get_key)]

    async def __call__(self) -> Page:
        WORLD.do("login")
        return Page(text=f"{self.user} {len(self.token.get_secret_value())} {self.note}")


class Page(Node):
    text: str

    async def __call__(self) -> None:
        WORLD.do("page")


graph = Graph(start=Login, end=Page)


def start() -> Login:
    return Login(user="ann", token=SecretStr("t-456"), note="n-789")


async def read_journal(journal: Journal) -> str:
    return "\n".join(line.data for line in (await journal.read("one")).lines)


async def test_secrets_are_not_stored_by_default(journal: Journal):
    await graph.arun(start(), journal=journal, run_id="one")
    text = await read_journal(journal)
    assert "ann" in text
    assert "k-123" not in text
    assert "t-456" not in text
    # The body has put the note into a field of its own, which is its doing.
    assert text.count("n-789") == 1
    again = await graph.resume("one", journal=journal)  # which has ended: none is needed
    assert (again.result, again.trace[0].user) == (Page(text="ann 5 n-789"), "ann")


async def test_a_run_with_secrets_resumes_when_they_are_given_again(journal: Journal):
    WORLD.failing.add("login")
    with pytest.raises(NodeError):
        await graph.arun(start(), journal=journal, run_id="one")
    WORLD.mend()
    with expect_refusal("bae-journal-secret") as caught:
        await graph.resume("one", journal=journal)
    assert "Login.token" in str(caught.value)
    assert "Login.note" in str(caught.value)
    secrets = {"Login.token": SecretStr("t-456"), "Login.note": "n-789"}
    result = await graph.resume("one", journal=journal, given=secrets)
    assert result.result == Page(text="ann 5 n-789")
    assert WORLD.done == {"key": 2, "login": 1, "page": 1}


class Copy(EndNode):
    page: Annotated[str, Recall()]
    size: int


class Begin(Node):
    page: str

    async def __call__(self) -> Copy:
        WORLD.do("inside")
        return Copy(size=len(self.page))


class Outside(EndNode):
    diary: str = Field(repr=False)
    pages: list[str] = Field(repr=False)
    copy_: Annotated[Copy, Dep(Graph(start=Begin, end=Copy), page="diary")]
    copies: Annotated[list[Copy], Map(Graph(start=Begin, end=Copy), over="pages")]

    async def __call__(self) -> None:
        WORLD.do("outside")


async def test_secrets_given_to_subgraphs_are_not_stored(
    journal: Journal,
):
    outside, began = Graph(start=Outside), Outside(diary="d-123", pages=["d-456"])
    WORLD.failing.add("outside")
    with pytest.raises(NodeError):
        await outside.arun(began, journal=journal, run_id="one")
    WORLD.mend()
    assert "d-" not in await read_journal(journal)
    assert '"size"' in await read_journal(journal)
    given = {"Outside.diary": "d-123", "Outside.pages": ["d-456"]}
    result = await outside.resume("one", journal=journal, given=given)
    (end,) = result.trace
    assert (end.copy_, end.copies) == (Copy(page="d-123", size=5), [Copy(page="d-456", size=5)])
    assert WORLD.done["inside"] == 2


async def test_secrets_are_stored_on_request(journal: Journal):
    journal.secrets = True
    WORLD.failing.add("login")
    with pytest.raises(NodeError):
        await graph.arun(start(), journal=journal, run_id="one")
    WORLD.mend()
    assert "t-456" in await read_journal(journal)
    result = await graph.resume("one", journal=journal)
    assert result.result == Page(text="ann 5 n-789")
    assert WORLD.done == {"key": 1, "login": 1, "page": 1}


class Reads(EndNode):
    handle: Annotated[Client, Dep(make_client)]
    key: Annotated[SecretStr, Dep(get_key)]
    token: SecretStr


class Holds(EndNode):
    handle: Client


def test_validate_reports_fields_that_the_journal_does_not_store():
    assert Graph(start=Reads).validate() == []
    notes = Graph(start=Reads).validate(journal=True)
    said = {(note.severity, note.code, note.place) for note in notes}
    assert said == {
        ("note", "bae-journal-live", "Reads.handle"),
        ("note", "bae-journal-withheld", "Reads.key"),
        ("note", "bae-journal-withheld", "Reads.token"),
    }


async def test_an_unstorable_plain_field_is_refused_before_a_run(journal: Journal):
    holds = Graph(start=Holds)
    assert [p.code for p in holds.validate(journal=True)] == ["bae-journal-field"]
    with pytest.raises(ProofError, match=r"Holds\.handle"):
        await holds.arun(Holds(handle=Client()), journal=journal)
    assert await journal.runs() == []
    assert (await holds.arun(Holds(handle=Client()))).trace


async def test_two_classes_with_one_name_are_refused_before_a_run(journal: Journal):
    def other() -> type[Node]:
        class Twin(EndNode):
            number: int

        return Twin

    One = other()

    class Twin(Node):
        async def __call__(self) -> One:  # type: ignore[valid-type]
            return One(number=1)

    twins: Graph[Any, Any] = Graph(start=Twin)
    with pytest.raises(ProofError, match="one of them"):
        await twins.arun(Twin(), journal=journal)


async def test_prompt_texts_can_be_left_out_of_the_journal(journal: Journal):
    class Topic(Node):
        name: str

        async def __call__(self) -> Essay: ...

    class Essay(EndNode):
        text: str

    from toy_backend import ToyBackend

    essays = Graph(start=Topic)
    await essays.arun(Topic(name="x"), ToyBackend({"text": "t"}), journal=journal, run_id="one")
    assert '"asked"' in await read_journal(journal)
    journal.prompts = False
    await essays.arun(Topic(name="x"), ToyBackend({"text": "t"}), journal=journal, run_id="two")
    lines = (await journal.read("two")).lines
    judged = [line.data for line in lines if line.kind == "AnswerJudged"]
    assert len(judged) == 1
    assert '"asked"' not in judged[0]
    assert '"prompt"' in judged[0]


class Item(Node):
    code: SecretStr

    async def __call__(self) -> Sent:
        WORLD.do(f"send {self.code.get_secret_value()}")
        return Sent(length=len(self.code.get_secret_value()))


class Sent(Node):
    length: int

    async def __call__(self) -> None:
        WORLD.do(f"sent {self.length}")


class Batch(EndNode):
    codes: list[SecretStr]
    sent: Annotated[list[Sent], Map(Item, over="codes", limit=1)]


async def test_secret_map_items_are_given_again_through_the_map_field(journal: Journal):
    batch = Graph(start=Batch)
    codes = [SecretStr("a"), SecretStr("bb")]
    WORLD.failing.add("sent 2")
    with pytest.raises(DepError):
        await batch.arun(Batch(codes=codes), journal=journal, run_id="one")
    WORLD.mend()
    result = await batch.resume("one", journal=journal, given={"Batch.codes": codes})
    assert [sent.length for sent in result.trace[-1].sent] == [1, 2]
    assert WORLD.done == {"send a": 1, "send bb": 1, "sent 1": 1, "sent 2": 1}


async def test_an_unknown_field_name_in_given_is_reported(journal: Journal):
    with expect_refusal("bae-journal-given"):
        await graph.resume("one", journal=journal, given={"Login.tokn": "x"})


class Spot(NamedTuple):
    x: int
    y: int


def find_spot() -> tuple[int, int]:
    WORLD.do("spot")
    return Spot(1, 2)


def find_distance(spot: Annotated[tuple[int, int], Dep(find_spot)]) -> int:
    WORLD.do("distance")
    return spot.x  # type: ignore[attr-defined]


class Far(Node):
    distance: Annotated[int, Dep(find_distance)]
    when: datetime = datetime(2024, 10, 27, 2, 30, tzinfo=UTC)

    async def __call__(self) -> None:
        WORLD.do("far")


async def test_a_value_that_json_would_truncate_is_computed_again_on_resume(journal: Journal):
    far = Graph(start=Far)
    WORLD.failing.add("distance")
    with pytest.raises(DepError):
        await far.arun(Far(), journal=journal, run_id="one")
    WORLD.mend()
    result = await far.resume("one", journal=journal)
    assert result.trace[-1].distance == 1
    assert WORLD.done == {"spot": 2, "distance": 1, "far": 1}
    assert result.trace[-1].when == Far().when


async def test_a_time_whose_zone_would_be_lost_is_refused_with_a_fix(journal: Journal):
    start = Far(when=datetime(2024, 6, 1, tzinfo=ZoneInfo("Europe/Berlin")))
    with pytest.raises(
        JournalError, match=r"Far\.when: .*Europe/Berlin; convert it to UTC"
    ) as raised:
        await Graph(start=Far).arun(start, journal=journal, run_id="one")
    assert raised.value.code == "bae-journal-field"


class Zoned(EndNode):
    when: datetime = datetime(2024, 6, 1, tzinfo=ZoneInfo("Europe/Berlin"))


def test_a_default_that_would_not_read_back_is_reported_before_a_run():
    (problem,) = Graph(start=Zoned).validate(journal=True)
    assert (problem.severity, problem.code) == ("warning", "bae-journal-field")
    assert problem.place == "Zoned.when"
    assert "Europe/Berlin" in problem.message
