"""What journals have to teach: the steps that an LM took in runs that have ended, and the answers
that people put right by forking a run, each once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, SecretStr

import bae.invoke
from bae import BaeError, Dep, Gate, Graph, Map, Node, NodeConfig, Recall
from bae.evals import Case, evaluate
from bae.journal import Journal, Line, MemoryJournal, RunInfo, SQLiteJournal, StoredRun
from bae.optimizer import Transition, examples_from, transitions_from
from bae.testing import ScriptedLM
from toy_backend import ToyBackend

pytestmark = pytest.mark.once


@pytest.fixture
async def journal() -> AsyncIterator[Journal]:
    async with MemoryJournal() as made:  # its tables are those of an SQLite file
        yield made


@pytest.fixture
def memory() -> MemoryJournal:
    return MemoryJournal()


def get_desk() -> str:
    return "desk 4"


class Ticket(Node):
    text: str

    async def __call__(self) -> Sorted: ...


class Sorted(Node):
    desk: Annotated[str, Dep(get_desk)]
    kind: str
    urgent: bool

    async def __call__(self) -> Reply | Refund | None: ...


class Refund(Node):
    amount: int

    async def __call__(self) -> None: ...


class Reply(Node):
    kind: Annotated[str, Recall(Sorted)]
    body: str

    async def __call__(self) -> Sent:
        return Sent(letter=f"Dear you, {self.body}")


class Sent(Node):
    letter: str

    async def __call__(self) -> None: ...


tickets = Graph(start=Ticket)

SORTED = {"kind": "bill", "urgent": False}
REPLIED: list[Any] = [SORTED, "Reply", {"body": "wait"}]


async def ran(
    journal: Journal, run_id: str, script: Sequence[Any] = REPLIED, text: str = "help"
) -> None:
    await tickets.arun(Ticket(text=text), ScriptedLM(script), journal=journal, run_id=run_id)


def ways(found: Sequence[Transition]) -> list[str]:
    """The transitions in short, with the first field that the LM filled and what was put right."""
    return [
        f"{type(each.node).__name__}->{_told(each.next_node)}"
        + (f" ({', '.join(each.corrected)})" if each.corrected else "")
        for each in found
    ]


def _told(node: Node | None) -> str:
    match node:
        case None:
            return "None"
        case Sorted():
            return f"Sorted {node.kind}"
        case Reply():
            return f"Reply {node.body}"
        case Refund():
            return f"Refund {node.amount}"
        case _:
            return type(node).__name__


async def collected(journal: Journal, **options: Any) -> list[str]:
    return ways(await transitions_from(journal, tickets, **options))


# Evaluations


EVAL = "eval-20300102-030405-0a1b2c-1"


async def test_runs_of_evaluations_are_left_out_unless_they_are_asked_for(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    steps = ["Sorted->Reply wait", "Ticket->Sorted bill"]
    await ran(journal, EVAL)
    with caplog.at_level(logging.INFO, "bae.optimizer"):
        assert await collected(journal) == []
        await ran(journal, "eval-monday")
        assert sorted(await collected(journal)) == steps
        assert sorted(await collected(journal, limit=2)) == steps  # none of them is counted
    told = [(record.levelname, record.message.split(":")[0]) for record in caplog.records]
    said = "2 steps in evaluations of Ticket left out"
    assert told[:2] == [("WARNING", said), ("INFO", said)]

    assert sorted(await collected(journal, evals=True)) == sorted(2 * steps)


async def test_a_correction_in_an_evaluation_counts(journal: Journal):
    await ran(journal, EVAL)
    forked = await tickets.fork(EVAL, at=1, kind="lost", journal=journal)
    await tickets.resume(forked, ScriptedLM(REPLIED[1:]), journal=journal)

    assert await collected(journal) == ["Ticket->Sorted lost (kind)"]


async def test_the_runs_of_an_evaluation_are_known_by_the_ids_that_it_gives_them(journal: Journal):
    cases, lms = [Case({"text": "help"})], {"it": ScriptedLM(REPLIED)}
    done = await evaluate(tickets, cases, lms, journal=journal)
    assert not done.contenders[0].cases[0].error

    assert await collected(journal) == []
    assert len(await collected(journal, evals=True)) == 2


# Runs


async def test_the_steps_that_the_lm_took_are_found_and_those_of_written_bodies_are_not(
    journal: Journal,
):
    await ran(journal, "one")
    first, second = await transitions_from(journal, tickets)
    assert first == Transition(
        Ticket(text="help"),
        Sorted,
        Sorted(desk="desk 4", kind="bill", urgent=False),
        *("one", "", 0, "one"),
    )
    assert second == Transition(
        Sorted(desk="desk 4", kind="bill", urgent=False),
        Reply,
        Reply(kind="bill", body="wait"),
        *("one", "", 1, "one"),
    )


async def test_an_end_that_the_lm_chose_is_a_step_to_none(journal: Journal):
    await ran(journal, "one", [SORTED, None])
    assert await collected(journal) == ["Ticket->Sorted bill", "Sorted->None"]


async def test_an_end_that_is_the_only_way_is_no_step(journal: Journal):
    await ran(journal, "one", [SORTED, "Refund", {"amount": 3}])
    assert await collected(journal) == ["Ticket->Sorted bill", "Sorted->Refund 3"]


async def test_only_runs_that_have_ended_count(journal: Journal):
    with pytest.raises(BaeError):
        await ran(journal, "failed", [SORTED, ValueError("out")])
    assert await collected(journal) == []
    await tickets.resume("failed", ScriptedLM([None]), journal=journal)
    assert await collected(journal) == ["Ticket->Sorted bill", "Sorted->None"]


async def test_runs_of_other_graphs_do_not_count(journal: Journal):
    await Graph(start=Ticket, name="others").arun(
        Ticket(text="hello"), ScriptedLM([SORTED, None]), journal=journal
    )
    await ran(journal, "one", [SORTED, None])
    found = await transitions_from(journal, tickets)
    assert {each.run_id for each in found} == {"one"}


async def test_runs_from_before_a_graph_was_renamed_count_where_its_old_name_is_given(
    journal: Journal,
):
    await Graph(start=Ticket, name="old").arun(
        Ticket(text="a"), ScriptedLM([SORTED, None]), journal=journal, run_id="before"
    )
    await ran(journal, "after", [SORTED, None])
    found = await transitions_from(journal, tickets, was="old")
    assert [each.run_id for each in found] == ["after", "after", "before", "before"]


async def test_the_newest_runs_come_first_and_no_more_than_asked_for(journal: Journal):
    for name in ("one", "two", "three"):
        await ran(journal, name)
    found = await transitions_from(journal, tickets, limit=3)
    assert [(each.run_id, each.step) for each in found] == [("three", 0), ("three", 1), ("two", 0)]
    assert await transitions_from(journal, tickets, limit=0) == []
    with pytest.raises(ValueError, match="limit=-1"):
        await transitions_from(journal, tickets, limit=-1)


async def test_a_choice_and_fill_in_one_call_are_the_same_transitions(journal: Journal):
    answers: list[Any] = [{"kind": "bill", "urgent": False}]
    once = [*answers, {"answer": {"choice": "Refund", "fields": {"amount": 3}}}]
    twice = [*answers, {"choice": "Refund"}, {"amount": 3}]
    found: list[list[Transition]] = []
    for name, script, one_call in (("once", once, True), ("twice", twice, False)):
        lm = ToyBackend(*script, one_call=one_call)
        await tickets.arun(Ticket(text="help"), lm, journal=journal, run_id=name)
    for name in ("once", "twice"):
        taken = [t for t in await transitions_from(journal, tickets) if t.run_id == name]
        found.append(taken)
    assert ways(found[0]) == ways(found[1]) == ["Ticket->Sorted bill", "Sorted->Refund 3"]
    assert [(t.node, t.next_node) for t in found[0]] == [(t.node, t.next_node) for t in found[1]]


async def test_a_step_for_which_no_lm_was_asked_is_none(memory: MemoryJournal):
    class Begin(Node):
        value: int

        async def __call__(self) -> Looked: ...

    class Looked(Node):
        desk: Annotated[str, Dep(get_desk)]

        async def __call__(self) -> None: ...

    graph = Graph(start=Begin)
    await graph.arun(Begin(value=1), journal=memory)
    assert await transitions_from(memory, graph) == []


PINNED = ScriptedLM({"Pinned": lambda _: {"value": 8}})


class Begun(Node):
    value: int

    async def __call__(self) -> Pinned: ...


class Pinned(Node):
    value: int
    node_config = NodeConfig(lm=PINNED)

    async def __call__(self) -> None: ...


async def test_what_an_lm_of_a_nodes_own_answered_counts(journal: Journal):
    graph = Graph(start=Begun)
    await graph.arun(Begun(value=1), ScriptedLM([]), journal=journal)
    (found,) = await transitions_from(journal, graph)
    assert found.next_node == Pinned(value=8)


# People's corrections


async def test_a_corrected_field_is_the_better_answer_and_the_lms_own_is_left_out(
    journal: Journal,
):
    await ran(journal, "one")
    new = await tickets.fork("one", at=1, journal=journal, new_id="two", kind="claim")
    await tickets.resume(new, ScriptedLM(["Refund", {"amount": 9}]), journal=journal)
    found = await transitions_from(journal, tickets)
    assert ways(found) == [
        "Ticket->Sorted claim (kind)",
        "Sorted->Refund 9",
        "Sorted->Reply wait",  # what the first run did after its own answer
    ]
    assert [(each.run_id, each.root) for each in found] == [
        ("two", "one"),
        ("two", "one"),
        ("one", "one"),
    ]
    assert found[0].next_node == Sorted(desk="desk 4", kind="claim", urgent=False)


async def test_a_correction_counts_though_the_fork_was_not_resumed(journal: Journal):
    await ran(journal, "one")
    await tickets.fork("one", at=2, journal=journal, body="soon")
    assert await collected(journal) == ["Sorted->Reply soon (body)", "Ticket->Sorted bill"]


async def test_a_correction_of_a_run_that_failed_later_counts_and_nothing_else_of_it(
    journal: Journal,
):
    with pytest.raises(BaeError):
        await ran(journal, "one", [SORTED, ValueError("out")])
    await tickets.fork("one", at=1, journal=journal, kind="claim")
    assert await collected(journal) == ["Ticket->Sorted claim (kind)"]


async def test_of_several_corrections_the_newest_counts(journal: Journal):
    await ran(journal, "one")
    for body in ("soon", "later", "never"):
        await tickets.fork("one", at=2, journal=journal, new_id=body, body=body)
    found = await transitions_from(journal, tickets)
    assert ways(found) == ["Sorted->Reply never (body)", "Ticket->Sorted bill"]
    assert found[0].run_id == "never"


async def test_of_runs_that_are_left_out_neither_answers_nor_corrections_count(journal: Journal):
    await ran(journal, "one")
    await ran(journal, "other")
    await tickets.fork("one", at=2, journal=journal, new_id="mistaken", body="never")
    without = await transitions_from(journal, tickets, without=["mistaken"])
    assert sorted(ways(without)) == ["Sorted->Reply wait"] * 2 + ["Ticket->Sorted bill"] * 2

    pytest.importorskip("dspy")
    examples = await examples_from(journal, tickets, without=["mistaken"])
    said = [each.next_node["fields"] for each in examples if each.next_node_type == "Reply"]
    assert said == [{"body": "wait"}] * 2  # and not what the fork says to the same question
    assert await collected(journal, without=["one", "mistaken", "other"]) == []


async def test_steps_that_a_fork_shares_with_a_run_that_is_left_out_are_left_out(journal: Journal):
    await ran(journal, "one")
    new = await tickets.fork("one", at=2, journal=journal, new_id="two", body="soon")
    await tickets.resume(new, ScriptedLM([]), journal=journal)
    assert await collected(journal, without=["one"]) == ["Sorted->Reply soon (body)"]


async def test_a_correction_of_a_correction_has_both(journal: Journal):
    await ran(journal, "one")
    await tickets.fork("one", at=1, journal=journal, new_id="two", kind="claim")
    await tickets.fork("two", at=1, journal=journal, new_id="three", urgent=True)
    found = await transitions_from(journal, tickets)
    assert ways(found) == ["Ticket->Sorted claim (kind, urgent)", "Sorted->Reply wait"]
    assert found[0].next_node == Sorted(desk="desk 4", kind="claim", urgent=True)
    assert found[0].root == "one"


async def test_a_fork_of_a_fork_keeps_the_correction_before_it(journal: Journal):
    await ran(journal, "one")
    await tickets.fork("one", at=1, journal=journal, new_id="two", kind="claim")
    await tickets.resume("two", ScriptedLM(["Reply", {"body": "no"}]), journal=journal)
    await tickets.fork("two", at=2, journal=journal, new_id="three", body="yes")
    await tickets.resume("three", ScriptedLM([]), journal=journal)
    found = await transitions_from(journal, tickets)
    assert ways(found) == [
        "Ticket->Sorted claim (kind)",
        "Sorted->Reply yes (body)",
        "Sorted->Reply wait",
    ]
    assert [each.run_id for each in found] == ["two", "three", "one"]
    assert {each.root for each in found} == {"one"}


async def test_a_fork_at_the_start_is_another_input_and_no_correction(journal: Journal):
    await ran(journal, "one", [SORTED, None])
    await tickets.fork("one", at=0, journal=journal, new_id="two", text="refund me")
    await tickets.resume("two", ScriptedLM([SORTED, "Refund", {"amount": 2}]), journal=journal)
    found = await transitions_from(journal, tickets)
    assert ways(found) == [
        "Ticket->Sorted bill",
        "Sorted->Refund 2",
        "Ticket->Sorted bill",
        "Sorted->None",
    ]
    assert [each.node for each in found[::2]] == [Ticket(text="refund me"), Ticket(text="help")]
    assert {each.root for each in found} == {"one"}


async def test_what_was_looked_up_can_be_changed_without_correcting_the_lm(journal: Journal):
    await ran(journal, "one")
    await tickets.fork("one", at=1, journal=journal, new_id="two", desk="desk 9")
    await tickets.fork("one", at=2, journal=journal, new_id="three", kind="other")
    for name in ("two", "three"):
        await tickets.resume(name, ScriptedLM([None]), journal=journal)
    found = await transitions_from(journal, tickets)
    assert Counter(ways(found)) == {
        "Ticket->Sorted bill": 1,
        "Sorted->Reply wait": 1,
        "Sorted->None": 1,
    }
    answered = next(each for each in found if each.next_type is Sorted)
    assert answered.next_node == Sorted(desk="desk 4", kind="bill", urgent=False)


async def test_a_change_to_what_a_written_body_made_is_no_correction(journal: Journal):
    await ran(journal, "one")
    await tickets.fork("one", at=3, journal=journal, new_id="two", letter="Dear all")
    await tickets.resume("two", ScriptedLM([]), journal=journal)
    assert await collected(journal) == ["Ticket->Sorted bill", "Sorted->Reply wait"]


async def test_steps_that_runs_share_count_once_and_for_the_run_that_took_them(journal: Journal):
    await ran(journal, "one")
    for name in ("two", "three"):
        await tickets.fork("one", at=2, journal=journal, new_id=name)
        await tickets.resume(name, ScriptedLM([]), journal=journal)
    await tickets.fork("three", at=1, journal=journal, new_id="four")
    await tickets.resume("four", ScriptedLM([None]), journal=journal)
    found = await transitions_from(journal, tickets)
    assert [(each.run_id, each.step) for each in found] == [("one", 0), ("four", 1), ("one", 1)]


async def test_steps_that_an_ended_fork_shares_with_a_failed_run_count(journal: Journal):
    with pytest.raises(BaeError):
        await ran(journal, "one", [SORTED, "Refund", ValueError("out")])
    await tickets.fork("one", at=1, journal=journal, new_id="two")
    await tickets.resume("two", ScriptedLM([None]), journal=journal)
    assert await collected(journal) == ["Ticket->Sorted bill", "Sorted->None"]


# Gates, secrets, and what was redacted


class Claim(Node):
    text: str

    async def __call__(self) -> Judged: ...


class Judged(Node):
    sure: Annotated[bool, Gate("Sure?")]
    verdict: str

    async def __call__(self) -> None: ...


claims = Graph(start=Claim)


async def test_a_parked_run_counts_when_it_was_answered_and_has_ended(journal: Journal):
    lm = ScriptedLM([{"verdict": "yes"}])
    await claims.arun(Claim(text="?"), lm, journal=journal, run_id="one")
    assert await transitions_from(journal, claims) == []
    await claims.answer("one", "1:Judged.sure", True, lm, journal=journal)
    (found,) = await transitions_from(journal, claims)
    assert found.next_node == Judged(sure=True, verdict="yes")
    await claims.fork("one", at=1, journal=journal, sure=False)
    (found,) = await transitions_from(journal, claims)
    assert (found.next_node, found.corrected) == (Judged(sure=True, verdict="yes"), ())


async def test_steps_that_saw_what_was_redacted_are_left_out(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    await ran(journal, "one")
    await ran(journal, "two")
    await journal.redact("one", "Sorted.kind")
    await journal.redact("two", "Ticket.text")
    assert await collected(journal) == ["Sorted->Reply wait"]
    await journal.redact("two", "Reply.body")
    caplog.clear()
    assert await collected(journal) == []
    assert "Ticket.text are secret or redacted" in caplog.text


class Login(Node):
    user: str
    token: SecretStr

    async def __call__(self) -> Diary: ...


class Diary(Node):
    entry: str = Field(repr=False)

    async def __call__(self) -> Mood: ...


class Mood(Node):
    entry: Annotated[str, Recall(Diary)]
    mood: str

    async def __call__(self) -> Song | Poem: ...


class Song(Node):
    title: str

    async def __call__(self) -> None: ...


class Poem(Node):
    title: str

    async def __call__(self) -> None: ...


diaries = Graph(start=Login)


@pytest.mark.parametrize("secrets", [False, True])
async def test_steps_that_show_a_secret_are_left_out(secrets: bool, tmp_path: Path):
    async with SQLiteJournal(tmp_path / "runs.db", secrets=secrets) as journal:
        start = Login(user="ada", token=SecretStr("t0p"))
        script = [{"entry": "I cried"}, {"mood": "low"}, "Song", {"title": "Blue"}]
        await diaries.arun(start, ScriptedLM(script), journal=journal)
        # Diary.entry is hidden, and Mood recalls it; Login shows an LM only that there is a token.
        assert await transitions_from(journal, diaries) == []


class Entered(Node):
    user: str
    token: SecretStr
    session: str = Field("s355ion", repr=False, exclude=True)

    async def __call__(self) -> Greeted: ...


class Greeted(Node):
    words: str

    async def __call__(self) -> None: ...


async def test_a_secret_that_no_lm_ever_saw_is_no_reason_to_leave_a_step_out(journal: Journal):
    graph = Graph(start=Entered)
    start = Entered(user="ada", token=SecretStr("t0p"))
    await graph.arun(start, ScriptedLM([{"words": "hi ada"}]), journal=journal)
    (found,) = await transitions_from(journal, graph)
    assert found.next_node == Greeted(words="hi ada")
    assert "t0p" not in repr(found)
    assert "s355ion" not in repr(found)


# Graphs inside


class Part(Node):
    text: str

    async def __call__(self) -> Gist: ...


class Gist(Node):
    words: str

    async def __call__(self) -> Part | None: ...


class Weighed(Node):
    value: int = 1

    async def __call__(self) -> Weight: ...


class Weight(Node):
    grams: int

    async def __call__(self) -> Checked: ...


class Checked(Node):
    fits: bool

    async def __call__(self) -> None: ...


class Paper(Node):
    parts: list[str]
    gists: Annotated[list[Gist], Map(Graph(start=Part, end=Gist), over="parts")]
    weight: Annotated[Checked | None, Dep(Weighed)] = None

    async def __call__(self) -> Report: ...


class Report(Node):
    text: str

    async def __call__(self) -> None: ...


papers = Graph(start=Paper)


def reader(fits: object) -> ScriptedLM:
    return ScriptedLM(
        {
            Gist: lambda asked: {"words": f"of {getattr(asked.source, 'text', '')}"},
            Weight: [{"grams": 7}],
            Checked: [{"fits": fits}],
            Report: [{"text": "all"}],
        },
        choices=[None, None],
        attempts=1,
    )


async def test_steps_of_graphs_inside_a_run_count_with_their_place(journal: Journal):
    await papers.arun(Paper(parts=["a", "b"]), reader(True), journal=journal)
    found = await transitions_from(journal, papers)
    assert Counter((each.path, each.next_type.__name__) for each in found) == {
        ("0:Paper.gists[0]", "Gist"): 1,
        ("0:Paper.gists[0]", "NoneType"): 1,
        ("0:Paper.gists[1]", "Gist"): 1,
        ("0:Paper.gists[1]", "NoneType"): 1,
        ("0:Paper.weight", "Weight"): 1,
        ("0:Paper.weight", "Checked"): 1,
        ("", "Report"): 1,
    }
    gists = {each.path: each.next_node for each in found if each.next_type is Gist}
    assert gists["0:Paper.gists[1]"] == Gist(words="of b")


async def test_steps_of_a_failed_graph_inside_an_ended_run_are_left_out(journal: Journal):
    await papers.arun(Paper(parts=[]), reader("maybe not"), journal=journal)
    found = await transitions_from(journal, papers)
    assert [each.next_type for each in found] == [Report]


class Tried(Node):
    parts: list[str]
    gists: Annotated[list[Gist], Map(Graph(start=Part, end=Gist), over="parts", retries=1)]

    async def __call__(self) -> None: ...


async def test_of_a_retried_graph_only_the_last_attempt_counts(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bae.invoke, "FIRST_PAUSE", 0.0)
    graph = Graph(start=Tried)
    first: list[Any] = [{"words": "first"}, "Part", {"text": "more"}, {"words": "further"}]
    lm = ScriptedLM([*first, ValueError("out"), {"words": "second"}, None])
    await graph.arun(Tried(parts=["a"]), lm, journal=journal)
    found = await transitions_from(journal, graph)
    assert [each.next_node for each in found] == [Gist(words="second"), None]


# Classes that have changed, and lines that cannot be read


CALLS = """
from __future__ import annotations
from bae import Graph, Node
class Call(Node):
    text: str
    async def __call__(self) -> Answer | Hold: ...
class Answer(Node):
    words: str
    async def __call__(self) -> None: ...
class Hold(Node):
    minutes: int
    async def __call__(self) -> None: ...
graph = Graph(start=Call)
"""


def ticket_graph(**changes: str) -> Graph[Any, Any]:
    """The graph of a small program, whose text can be another."""
    text = CALLS
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    names: dict[str, Any] = {"__name__": "calls"}
    exec(compile(text, "<calls>", "exec"), names)
    return names["graph"]


async def called(journal: Journal, graph: Graph[Any, Any], script: Sequence[Any]) -> None:
    await graph.arun(graph.start(text="hi"), ScriptedLM(script), journal=journal)


async def test_runs_that_todays_classes_cannot_read_are_skipped_with_a_warning(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    old = ticket_graph()
    await called(journal, old, ["Answer", {"words": "hello"}])
    await called(journal, old, ["Hold", {"minutes": 4}])
    new = ticket_graph(**{"words: str": "words: int"})
    found = await transitions_from(journal, new)
    assert [each.next_type.__name__ for each in found] == ["Hold"]
    (warning,) = [each for each in caplog.records if each.name == "bae.optimizer"]
    assert warning.levelno == logging.WARNING
    assert "1 of 2 runs of Call are skipped" in warning.getMessage()
    assert "Answer" in warning.getMessage()


async def test_a_step_that_no_lm_would_take_today_is_left_out(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    await called(journal, ticket_graph(), ["Hold", {"minutes": 4}])
    new = ticket_graph(
        **{
            "text: str\n    async def __call__(self) -> Answer | Hold": "text: str\n"
            "    async def __call__(self) -> Answer",
            "words: str\n    async def __call__(self) -> None": "words: str\n"
            "    async def __call__(self) -> Hold",
        }
    )
    assert await transitions_from(journal, new) == []
    assert "no LM leads from Call to Hold today" in caplog.text


async def test_a_new_field_with_a_default_and_a_new_way_on_do_no_harm(journal: Journal):
    await called(journal, ticket_graph(), ["Hold", {"minutes": 4}])
    new = ticket_graph(**{"minutes: int": "minutes: int\n    tune: str = 'none'"})
    (found,) = await transitions_from(journal, new)
    assert found.next_node is not None
    assert dict(found.next_node) == {"minutes": 4, "tune": "none"}


async def test_a_run_with_a_damaged_line_is_skipped(
    memory: MemoryJournal, caplog: pytest.LogCaptureFixture
):
    await ran(memory, "one")
    await ran(memory, "two")
    lines = (await memory.read("one")).lines
    await memory.replace("one", [lines[2]._replace(data="{")])
    found = await transitions_from(memory, tickets)
    assert {each.run_id for each in found} == {"two"}
    assert "1 of 2 runs" in caplog.text


class Forgetful(MemoryJournal):
    """Loses a run between listing and reading it."""

    async def runs(self, **options: Any) -> list[RunInfo]:
        found = await super().runs(**options)
        await self.delete(["one"])
        return found


async def test_a_run_that_is_deleted_meanwhile_is_not_missed(caplog: pytest.LogCaptureFixture):
    async with Forgetful() as journal:
        await ran(journal, "one")
        await ran(journal, "two")
        found = await transitions_from(journal, tickets)
    assert {each.run_id for each in found} == {"two"}
    assert not [each for each in caplog.records if each.name == "bae.optimizer"]


# Many runs


async def copied(journal: Journal, of: str, count: int) -> None:
    """The same run over and over, each under an id of its own."""
    run = await journal.read(of)
    for number in range(count):
        name = f"{of}-{number}"
        lines = tuple(
            Line(*line[:5], line.data.replace(json.dumps(of), json.dumps(name)))
            for line in run.lines
        )
        info = RunInfo(name, run.info.graph, "ended", run.info.started, 0.0, run.info.shape)
        await journal.put(StoredRun(info, run.shape, lines, {}))


async def test_a_thousand_runs_are_read_within_seconds_and_off_the_loop(memory: MemoryJournal):
    await ran(memory, "run")
    await copied(memory, "run", 999)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    try:
        async with asyncio.timeout(20):
            found = await transitions_from(memory, tickets)
    finally:
        turning.cancel()
    assert len(found) == 2000
    assert turns > 100


# Any journal


@dataclass
class Model:
    """What the runs of a journal are to teach, worked out from what was done: every answer of the
    LM, by a number, as it stands now."""

    answers: dict[int, tuple[str, set[str]]] = field(default_factory=dict)
    corrected: set[int] = field(default_factory=set)
    """The answers that a person has put right."""
    runs: dict[str, Past] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def expected(self) -> Counter[str]:
        ended = {n for run in self.runs.values() if run.ended for n in run.taken}
        return Counter(
            f"{text} {sorted(names)}"
            for number, (text, names) in self.answers.items()
            if number in ended | self.corrected
        )


@dataclass
class Past:
    """A run so far: the nodes of its trace, the number of the answer behind each one that an LM
    filled, and what a person has put right in it, by that number."""

    nodes: list[dict[str, Any]]
    numbers: list[int | None]
    put_right: dict[int, set[str]] = field(default_factory=dict)
    ended: bool = False
    last: int | None = None
    """The number of the choice to end it."""

    @property
    def taken(self) -> set[int]:
        return {n for n in [*self.numbers, self.last] if n is not None}


def say(node: dict[str, Any] | None) -> str:
    return "None" if node is None else repr(node)


ASKED = {"kind", "urgent", "body", "amount"}
ends = st.sampled_from(["Reply", "Refund", "None", "fails"])
changes = st.sets(st.sampled_from(["text", "desk", "kind", "urgent", "body", "amount", "letter"]))
deeds = st.one_of(
    st.tuples(st.just("run"), ends),
    st.tuples(st.just("fork"), ends, st.integers(0, 9), st.integers(0, 3), changes, st.booleans()),
)


class Doing:
    """Does things to a journal and to the model of it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.model = Model()

    async def do(self, deed: tuple[Any, ...]) -> None:
        model = self.model
        run_id = f"run {len(model.runs)}"
        if deed[0] == "run":
            model.runs[run_id] = Past([{"text": run_id}], [None])
            script = self.script(model.runs[run_id], deed[1])
            with suppress(BaeError):
                await ran(self.journal, run_id, script, run_id)
        elif model.runs:
            await self.fork(run_id, *deed[1:])

    async def fork(
        self, run_id: str, end: str, which: int, at: int, names: set[str], goes_on: bool
    ) -> None:
        model = self.model
        parent = list(model.runs)[which % len(model.runs)]
        past = model.runs[parent]
        at %= len(past.nodes)
        node = {**past.nodes[at]}
        changed = {n: self.other(n) for n in names if n in node}
        await tickets.fork(parent, at=at, journal=self.journal, new_id=run_id, **changed)
        node |= changed
        now = Past([*past.nodes[:at], node], past.numbers[: at + 1])
        now.put_right = {n: r for n, r in past.put_right.items() if n in now.taken}
        number, fields = now.numbers[at], {n for n in changed if at and n in ASKED}
        if at == 2 and "kind" in node:  # which is recalled there
            fields.discard("kind")
        if number is not None and fields:
            now.put_right[number] = now.put_right.get(number, set()) | fields
            model.corrected.add(number)
            model.answers[number] = say(node), now.put_right[number]
        model.runs[run_id] = now
        if goes_on:
            with suppress(BaeError):
                lm = ScriptedLM(self.script(now, end))
                await tickets.resume(run_id, lm, journal=self.journal)

    def other(self, name: str) -> Any:
        number = next(self.model.numbers)
        return {"urgent": number % 2 == 0, "amount": number}.get(name, f"{name} {number}")

    def script(self, past: Past, end: str) -> list[Any]:
        """What the LM says in the rest of a run."""
        script: list[Any] = []
        if len(past.nodes) == 1:
            made = {name: self.other(name) for name in ("kind", "urgent")}
            script.append(made)
            self.took(past, {"desk": "desk 4", **made})
        if len(past.nodes) == 2:
            if end == "fails":
                return [*script, ValueError("out")]
            script.append(None if end == "None" else end)
            if end == "None":
                past.last = self.noted(None)
            else:
                name = {"Reply": "body", "Refund": "amount"}[end]
                made = {name: self.other(name)}
                script.append(made)
                recalled = {"kind": past.nodes[1]["kind"]} if end == "Reply" else {}
                self.took(past, {**recalled, **made})
        if len(past.nodes) == 3 and "body" in past.nodes[2]:
            past.nodes.append({"letter": f"Dear you, {past.nodes[2]['body']}"})
            past.numbers.append(None)
        past.ended = True
        return script

    def took(self, past: Past, node: dict[str, Any]) -> None:
        past.nodes.append(node)
        past.numbers.append(self.noted(node))

    def noted(self, node: dict[str, Any] | None) -> int:
        number = next(self.model.numbers)
        self.model.answers[number] = say(node), set()
        return number


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(deeds, max_size=12))
def test_of_any_runs_and_forks_each_answer_is_found_once_as_people_left_it(deeds: list[Any]):
    async def run() -> tuple[Counter[str], Counter[str]]:
        async with MemoryJournal() as journal:
            doing = Doing(journal)
            for deed in deeds:
                await doing.do(deed)
            found = await transitions_from(journal, tickets)
            told = Counter(
                f"{say(each.next_node and dict(each.next_node))} {sorted(each.corrected)}"
                for each in found
            )
            return told, doing.model.expected()

    found, expected = asyncio.run(run())
    assert found == expected
