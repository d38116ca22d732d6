"""Training data from journals: the steps that an LLM took in finished runs, and the answers that
people corrected by forking a run, each once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr

import bae.invoke
from bae import BaeError, Dep, Gate, Graph, Map, Node, Recall
from bae.evals import Case, evaluate
from bae.journal import Journal, MemoryJournal, RunInfo
from bae.optimizer import examples_from
from bae.optimizer.transitions import Transition, transitions_from
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


async def run_ticket(
    journal: Journal, run_id: str, script: Sequence[Any] = REPLIED, text: str = "help"
) -> None:
    await tickets.arun(Ticket(text=text), ScriptedLM(script), journal=journal, run_id=run_id)


def ways(found: Sequence[Transition]) -> list[str]:
    """The transitions in short, with the first field that the LLM filled and its corrections."""
    return [
        f"{type(transition.node).__name__}->{_describe_node(transition.next_node)}"
        + (f" ({', '.join(transition.corrected)})" if transition.corrected else "")
        for transition in found
    ]


def _describe_node(node: Node | None) -> str:
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


async def collect_ways(journal: Journal, **options: Any) -> list[str]:
    return ways(await transitions_from(journal, tickets, **options))


# Evaluations


EVAL = "eval-20300102-030405-0a1b2c-1"


async def test_evaluation_runs_are_left_out_by_default(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    steps = ["Sorted->Reply wait", "Ticket->Sorted bill"]
    await run_ticket(journal, EVAL)
    with caplog.at_level(logging.INFO, "bae.optimizer"):
        assert await collect_ways(journal) == []
        await run_ticket(journal, "eval-monday")
        assert sorted(await collect_ways(journal)) == steps
        assert sorted(await collect_ways(journal, limit=2)) == steps  # none of them is counted
    told = [(record.levelname, record.message.split(":")[0]) for record in caplog.records]
    said = "steps in runs of Ticket were left out"
    assert told[:2] == [("WARNING", said), ("INFO", said)]
    assert "2 because they are from evaluations, which evals=True includes" in caplog.text

    assert sorted(await collect_ways(journal, evals=True)) == sorted(2 * steps)


async def test_a_correction_in_an_evaluation_is_collected(journal: Journal):
    await run_ticket(journal, EVAL)
    forked = await tickets.fork(EVAL, at=1, kind="lost", journal=journal)
    await tickets.resume(forked, ScriptedLM(REPLIED[1:]), journal=journal)

    assert await collect_ways(journal) == ["Ticket->Sorted lost (kind)"]


async def test_evaluation_runs_are_recognized_by_their_ids(journal: Journal):
    cases, lms = [Case({"text": "help"})], {"it": ScriptedLM(REPLIED)}
    done = await evaluate(tickets, cases, lms, journal=journal)
    assert not done.contenders[0].cases[0].error

    assert await collect_ways(journal) == []
    assert len(await collect_ways(journal, evals=True)) == 2


# Runs


async def test_only_steps_by_the_lm_are_collected(
    journal: Journal,
):
    await run_ticket(journal, "one")
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


async def test_only_ended_runs_are_collected(journal: Journal):
    with pytest.raises(BaeError):
        await run_ticket(journal, "failed", [SORTED, ValueError("out")])
    assert await collect_ways(journal) == []
    await tickets.resume("failed", ScriptedLM([None]), journal=journal)
    assert await collect_ways(journal) == ["Ticket->Sorted bill", "Sorted->None"]


async def test_runs_of_other_graphs_are_not_collected(journal: Journal):
    await Graph(start=Ticket, name="others").arun(
        Ticket(text="hello"), ScriptedLM([SORTED, None]), journal=journal
    )
    await run_ticket(journal, "one", [SORTED, None])
    transitions = await transitions_from(journal, tickets)
    assert {transition.run_id for transition in transitions} == {"one"}


async def test_runs_under_an_old_graph_name_are_collected_if_the_name_is_passed(
    journal: Journal,
):
    await Graph(start=Ticket, name="old").arun(
        Ticket(text="a"), ScriptedLM([SORTED, None]), journal=journal, run_id="before"
    )
    await run_ticket(journal, "after", [SORTED, None])
    transitions = await transitions_from(journal, tickets, was="old")
    assert [transition.run_id for transition in transitions] == [
        "after",
        "after",
        "before",
        "before",
    ]


async def test_the_newest_runs_are_collected_first_up_to_the_limit(journal: Journal):
    for name in ("one", "two", "three"):
        await run_ticket(journal, name)
    transitions = await transitions_from(journal, tickets, limit=3)
    assert [(transition.run_id, transition.step) for transition in transitions] == [
        ("three", 0),
        ("three", 1),
        ("two", 0),
    ]
    assert await transitions_from(journal, tickets, limit=0) == []
    with pytest.raises(ValueError, match="limit=-1"):
        await transitions_from(journal, tickets, limit=-1)


async def test_one_call_for_choice_and_fill_gives_the_same_transitions(journal: Journal):
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


async def test_a_step_without_a_question_to_the_lm_is_not_collected(memory: MemoryJournal):
    class Begin(Node):
        value: int

        async def __call__(self) -> Looked: ...

    class Looked(Node):
        desk: Annotated[str, Dep(get_desk)]

        async def __call__(self) -> None: ...

    graph = Graph(start=Begin)
    await graph.arun(Begin(value=1), journal=memory)
    assert await transitions_from(memory, graph) == []


# People's corrections


async def fork(journal: Journal, of: str, new: str, at: int, *script: Any, **changes: Any) -> None:
    """Fork a run; with a script, the fork is run to its end."""
    await tickets.fork(of, at=at, journal=journal, new_id=new, **changes)
    if script:
        answers = [answer for answer in script if answer != "no answers"]
        await tickets.resume(new, ScriptedLM(answers), journal=journal)


FORKS: dict[str, tuple[list[tuple[Any, ...]], list[str]]] = {
    "a correction replaces the answer of the LM, and what followed that stays": (
        [("one", "two", 1, {"kind": "claim"}, "Refund", {"amount": 9})],
        ["two Ticket->Sorted claim (kind)", "two Sorted->Refund 9", "one Sorted->Reply wait"],
    ),
    "a correction counts though the fork was not resumed": (
        [("one", "two", 2, {"body": "soon"})],
        ["two Sorted->Reply soon (body)", "one Ticket->Sorted bill"],
    ),
    "of several corrections the newest counts": (
        [("one", body, 2, {"body": body}) for body in ("soon", "later", "never")],
        ["never Sorted->Reply never (body)", "one Ticket->Sorted bill"],
    ),
    "a correction of a correction has both": (
        [("one", "two", 1, {"kind": "claim"}), ("two", "three", 1, {"urgent": True})],
        ["three Ticket->Sorted claim (kind, urgent)", "one Sorted->Reply wait"],
    ),
    "a fork of a fork keeps the correction before it": (
        [
            ("one", "two", 1, {"kind": "claim"}, "Reply", {"body": "no"}),
            ("two", "three", 2, {"body": "yes"}, "no answers"),
        ],
        [
            "two Ticket->Sorted claim (kind)",
            "three Sorted->Reply yes (body)",
            "one Sorted->Reply wait",
        ],
    ),
    "a fork at the start is another input and no correction": (
        [("one", "two", 0, {"text": "refund me"}, SORTED, "Refund", {"amount": 2})],
        [
            *("two Ticket->Sorted bill", "two Sorted->Refund 2"),
            *("one Ticket->Sorted bill", "one Sorted->Reply wait"),
        ],
    ),
    "what was looked up or recalled can be changed without correcting the LM": (
        [
            ("one", "two", 1, {"desk": "desk 9"}, None),
            ("one", "three", 2, {"kind": "other"}, "no answers"),
        ],
        ["one Ticket->Sorted bill", "one Sorted->Reply wait", "two Sorted->None"],
    ),
    "a change to what a written body made is no correction": (
        [("one", "two", 3, {"letter": "Dear all"}, "no answers")],
        ["one Ticket->Sorted bill", "one Sorted->Reply wait"],
    ),
    "steps that runs share count once and for the run that took them": (
        [
            ("one", "two", 2, {}, "no answers"),
            ("one", "three", 2, {}, "no answers"),
            ("three", "four", 1, {}, None),
        ],
        ["one Ticket->Sorted bill", "four Sorted->None", "one Sorted->Reply wait"],
    ),
}


@pytest.mark.parametrize("rule", FORKS)
async def test_forks_add_their_corrections_to_the_steps_of_their_parent(
    rule: str, journal: Journal
):
    forks, expected = FORKS[rule]
    await run_ticket(journal, "one")
    for of, new, at, changes, *script in forks:
        await fork(journal, of, new, at, *script, **changes)
    transitions = await transitions_from(journal, tickets)
    told = [
        f"{transition.run_id} {way}"
        for transition, way in zip(transitions, ways(transitions), strict=True)
    ]
    assert told == expected
    assert {transition.root for transition in transitions} == {"one"}
    for transition in transitions:  # the rest of a corrected node stays as it was
        assert not isinstance(transition.next_node, Sorted) or transition.next_node.desk == "desk 4"


@pytest.mark.parametrize("forked", [False, True])
async def test_training_uses_corrections_of_failed_runs_and_steps_of_ended_forks(
    forked: bool, journal: Journal
):
    with pytest.raises(BaeError):
        await run_ticket(journal, "one", [SORTED, "Refund", ValueError("out")])
    if forked:
        await fork(journal, "one", "two", 1, None)
        assert await collect_ways(journal) == ["Ticket->Sorted bill", "Sorted->None"]
    else:
        await fork(journal, "one", "two", 1, kind="claim")
        assert await collect_ways(journal) == ["Ticket->Sorted claim (kind)"]


async def test_excluded_runs_contribute_no_answers_or_corrections(journal: Journal):
    await run_ticket(journal, "one")
    await run_ticket(journal, "other")
    await fork(journal, "one", "mistaken", 2, "no answers", body="never")
    without = await transitions_from(journal, tickets, without=["mistaken"])
    assert sorted(ways(without)) == ["Sorted->Reply wait"] * 2 + ["Ticket->Sorted bill"] * 2

    pytest.importorskip("dspy")
    examples = await examples_from(journal, tickets, without=["mistaken"])
    said = [
        example.next_node["fields"] for example in examples if example.next_node_type == "Reply"
    ]
    assert said == [{"body": "wait"}] * 2  # and not what the fork says to the same question
    assert await collect_ways(journal, without=["one", "mistaken", "other"]) == []
    # A fork has the steps of the run before it, too.
    assert await collect_ways(journal, without=["one", "other"]) == ["Sorted->Reply never (body)"]


# Gates, secrets, and what was redacted


class Claim(Node):
    text: str

    async def __call__(self) -> Judged: ...


class Judged(Node):
    sure: Annotated[bool, Gate("Sure?")]
    verdict: str

    async def __call__(self) -> None: ...


claims = Graph(start=Claim)


async def test_a_parked_run_is_collected_once_it_has_ended(journal: Journal):
    lm = ScriptedLM([{"verdict": "yes"}])
    await claims.arun(Claim(text="?"), lm, journal=journal, run_id="one")
    assert await transitions_from(journal, claims) == []
    await claims.answer("one", "1:Judged.sure", True, lm, journal=journal)
    (transition,) = await transitions_from(journal, claims)
    assert transition.next_node == Judged(sure=True, verdict="yes")
    await claims.fork("one", at=1, journal=journal, sure=False)
    (transition,) = await transitions_from(journal, claims)
    assert (transition.next_node, transition.corrected) == (Judged(sure=True, verdict="yes"), ())


async def test_steps_with_redacted_values_are_left_out(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    await run_ticket(journal, "one")
    await run_ticket(journal, "two")
    await journal.redact("one", "Sorted.kind")
    await journal.redact("two", "Ticket.text")
    assert await collect_ways(journal) == ["Sorted->Reply wait"]
    await journal.redact("two", "Reply.body")
    caplog.clear()
    assert await collect_ways(journal) == []
    assert "Ticket.text are secret or redacted" in caplog.text


class Entered(Node):
    user: str
    token: SecretStr
    session: str = Field("s355ion", repr=False, exclude=True)

    async def __call__(self) -> Greeted: ...


class Greeted(Node):
    words: str

    async def __call__(self) -> None: ...


async def test_a_step_with_a_secret_unseen_by_the_lm_is_collected(journal: Journal):
    graph = Graph(start=Entered)
    start = Entered(user="ada", token=SecretStr("t0p"))
    await graph.arun(start, ScriptedLM([{"words": "hi ada"}]), journal=journal)
    (transition,) = await transitions_from(journal, graph)
    assert transition.next_node == Greeted(words="hi ada")
    assert "t0p" not in repr(transition)
    assert "s355ion" not in repr(transition)


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


async def test_steps_of_inner_graphs_are_collected_with_their_path(journal: Journal):
    await papers.arun(Paper(parts=["a", "b"]), reader(True), journal=journal)
    transitions = await transitions_from(journal, papers)
    assert Counter(
        (transition.path, transition.next_type.__name__) for transition in transitions
    ) == {
        ("0:Paper.gists[0]", "Gist"): 1,
        ("0:Paper.gists[0]", "NoneType"): 1,
        ("0:Paper.gists[1]", "Gist"): 1,
        ("0:Paper.gists[1]", "NoneType"): 1,
        ("0:Paper.weight", "Weight"): 1,
        ("0:Paper.weight", "Checked"): 1,
        ("", "Report"): 1,
    }
    gists = {
        transition.path: transition.next_node
        for transition in transitions
        if transition.next_type is Gist
    }
    assert gists["0:Paper.gists[1]"] == Gist(words="of b")


async def test_steps_of_a_failed_inner_graph_are_left_out(journal: Journal):
    await papers.arun(Paper(parts=[]), reader("maybe not"), journal=journal)
    transitions = await transitions_from(journal, papers)
    assert [transition.next_type for transition in transitions] == [Report]


class Tried(Node):
    parts: list[str]
    gists: Annotated[list[Gist], Map(Graph(start=Part, end=Gist), over="parts", retries=1)]

    async def __call__(self) -> None: ...


async def test_only_the_last_attempt_of_a_retried_graph_is_collected(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bae.invoke, "FIRST_PAUSE", 0.0)
    graph = Graph(start=Tried)
    first: list[Any] = [{"words": "first"}, "Part", {"text": "more"}, {"words": "further"}]
    lm = ScriptedLM([*first, ValueError("out"), {"words": "second"}, None])
    await graph.arun(Tried(parts=["a"]), lm, journal=journal)
    transitions = await transitions_from(journal, graph)
    assert [transition.next_node for transition in transitions] == [Gist(words="second"), None]


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


async def run_script(journal: Journal, graph: Graph[Any, Any], script: Sequence[Any]) -> None:
    await graph.arun(graph.start(text="hi"), ScriptedLM(script), journal=journal)


async def test_runs_unreadable_with_the_current_classes_are_skipped_with_a_warning(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    old = ticket_graph()
    await run_script(journal, old, ["Answer", {"words": "hello"}])
    await run_script(journal, old, ["Hold", {"minutes": 4}])
    new = ticket_graph(**{"words: str": "words: int"})
    transitions = await transitions_from(journal, new)
    assert [transition.next_type.__name__ for transition in transitions] == ["Hold"]
    (warning,) = [record for record in caplog.records if record.name == "bae.optimizer"]
    assert warning.levelno == logging.WARNING
    assert "1 of 2 runs of Call are skipped" in warning.getMessage()
    assert "Answer" in warning.getMessage()


async def test_a_step_that_no_lm_takes_in_the_current_graph_is_left_out(
    journal: Journal, caplog: pytest.LogCaptureFixture
):
    await run_script(journal, ticket_graph(), ["Hold", {"minutes": 4}])
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


async def test_runs_from_before_a_new_default_field_or_edge_are_collected(journal: Journal):
    await run_script(journal, ticket_graph(), ["Hold", {"minutes": 4}])
    new = ticket_graph(**{"minutes: int": "minutes: int\n    tune: str = 'none'"})
    (transition,) = await transitions_from(journal, new)
    assert transition.next_node is not None
    assert dict(transition.next_node) == {"minutes": 4, "tune": "none"}


async def test_a_run_with_a_damaged_line_is_skipped(
    memory: MemoryJournal, caplog: pytest.LogCaptureFixture
):
    await run_ticket(memory, "one")
    await run_ticket(memory, "two")
    stored = await memory.read("one")
    lines = (line._replace(data="{") if line.n == 2 else line for line in stored.lines)
    await memory.replace([replace(stored, lines=tuple(lines))])
    transitions = await transitions_from(memory, tickets)
    assert {transition.run_id for transition in transitions} == {"two"}
    assert "1 of 2 runs" in caplog.text


class Forgetful(MemoryJournal):
    """Loses a run between listing and reading it."""

    async def runs(self, **options: Any) -> list[RunInfo]:
        runs = await super().runs(**options)
        await self.delete(["one"])
        return runs


async def test_a_run_that_is_deleted_during_collection_is_skipped(caplog: pytest.LogCaptureFixture):
    async with Forgetful() as journal:
        await run_ticket(journal, "one")
        await run_ticket(journal, "two")
        transitions = await transitions_from(journal, tickets)
    assert {transition.run_id for transition in transitions} == {"two"}
    assert not [record for record in caplog.records if record.name == "bae.optimizer"]
