"""Examples for DSPy, from traces and from journals: their content, their exclusions, and the split
into training and held-out examples."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import date
from enum import Enum
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    Field,
    PlainSerializer,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)

pytest.importorskip("dspy")

import dspy

from bae import Dep, Graph, Map, Node, Recall
from bae.journal import MemoryJournal, SQLiteJournal
from bae.lm.signatures import node_to_signature, with_source
from bae.optimizer import examples_from, split_apart, trace_to_examples
from bae.optimizer.examples import choice_examples, fill_examples
from bae.optimizer.transitions import transitions_from
from bae.testing import ScriptedLM
from journal_graphs import Trouble
from toy_backend import ToyBackend

pytestmark = pytest.mark.once


class Kind(Enum):
    BILL = "bill"
    CLAIM = "claim"


class Due(BaseModel):
    day: date
    amount: float


def get_due() -> Due:
    return Due(day=date(2026, 3, 1), amount=2.5)


def get_hint() -> str:
    raise Trouble("no hint")


class Ticket(Node):
    text: str
    root: str = "mail"

    async def __call__(self) -> Sorted: ...


class Sorted(Node):
    due: Annotated[Due, Dep(get_due)]
    hint: Annotated[str, Dep(get_hint)] = "none"
    kind: Kind

    async def __call__(self) -> Reply | Refund | None: ...


class Refund(Node):
    amount: float

    async def __call__(self) -> None: ...


class Reply(Node):
    kind: Annotated[Kind, Recall(Sorted)]
    body: str

    async def __call__(self) -> Sent:
        return Sent(letter=f"Dear you, {self.body}")


class Sent(Node):
    letter: str

    async def __call__(self) -> None: ...


tickets = Graph(start=Ticket)
REPLIED: list[Any] = [{"kind": "bill"}, "Reply", {"body": "wait"}]


async def run_ticket(script: Sequence[Any] = REPLIED, **options: Any) -> Any:
    return await tickets.arun(Ticket(text="help"), ScriptedLM(script), **options)


# What is in an example


async def test_an_example_has_its_fields_its_types_and_its_inputs():
    first, second, third = trace_to_examples((await run_ticket(run_id="one")).trace)
    assert first.inputs().toDict() == {"text": "help", "root_": "mail", "node_type": "Ticket"}
    assert (first.node_type, first.next_node_type) == ("Ticket", "Sorted")
    due = {"day": "2026-03-01", "amount": 2.5}
    assert first.next_node == {"context": {"due": due}, "fields": {"kind": "bill"}}
    assert second.inputs().toDict() == {
        "due": due,
        "hint": "none",
        "kind": "bill",
        "node_type": "Sorted",
    }
    assert second.next_node == {"context": {"kind": "bill"}, "fields": {"body": "wait"}}
    assert (third.node_type, third.next_node_type) == ("Reply", "Sent")


async def test_an_example_of_a_forked_run_names_the_run_it_comes_from():
    async with MemoryJournal() as journal:
        await run_ticket(run_id="one", journal=journal)
        await tickets.fork("one", at=2, journal=journal, new_id="two", body="soon")
        result = await tickets.resume("two", ScriptedLM([]), journal=journal)
    assert {(example.run_id, example.root) for example in trace_to_examples(result)} == {
        ("two", "one")
    }


async def test_a_trace_without_a_run_has_its_own_stable_root():
    one, other = (await run_ticket()).trace, [Ticket(text="other"), *(await run_ticket()).trace[1:]]
    roots = [{example.root for example in trace_to_examples(t)} for t in (one, other, list(one))]
    assert [len(root) for root in roots] == [1, 1, 1]
    assert roots[0] == roots[2] != roots[1]


async def test_an_example_contains_the_exact_question_to_the_model():
    lm = ToyBackend({"kind": "claim"}, {"choice": "Reply"}, {"body": "so"}, one_call=False)
    result = await tickets.arun(Ticket(text="h\u00e9lp \U0001f600"), lm)
    asked = [json.loads(prompt.text.partition("\n\n")[2]) for prompt in lm.prompts]
    examples = trace_to_examples(result)
    (sorted_,), (reply,) = fill_examples(Sorted, examples), fill_examples(Reply, examples)
    (choice,) = choice_examples(Sorted, examples)
    assert {**sorted_.source, "context": {"due": sorted_.due}} == asked[0]
    assert choice.known == asked[1]
    assert reply.source == asked[2]  # which has the value that is recalled from it once
    assert reply.kind == reply.source["Sorted"]["kind"]


# What is trained with


async def test_examples_of_a_fill_use_the_names_of_its_signature():
    (example,) = fill_examples(Reply, trace_to_examples(await run_ticket(run_id="one")))
    signature = with_source(node_to_signature(Reply))
    assert example.inputs().keys() == list(signature.input_fields)
    assert example.inputs().source == {
        "Sorted": {"due": {"day": "2026-03-01", "amount": 2.5}, "hint": "none", "kind": "bill"}
    }
    assert example.body == "wait"
    assert example["bae"] == {"run_id": "one", "root": "one", "corrected": []}
    assert "bae" not in example.inputs()


class Odd(Node):
    base: str

    async def __call__(self) -> Strange: ...


def get_config() -> str:
    return "fast"


class Strange(Node):
    config: Annotated[str, Dep(get_config)]
    source: Annotated[str, Dep(get_config)]
    instructions: str
    lm: str
    inputs: str

    async def __call__(self) -> None: ...


async def test_fields_with_names_that_dspy_reserves_are_renamed():
    said = {"instructions": "go", "lm": "gpt", "inputs": "none"}
    result = await Graph(start=Odd).arun(Odd(base="b"), ScriptedLM([said]))
    (whole,) = trace_to_examples(result)
    assert whole.inputs().toDict() == {"base": "b", "node_type": "Odd"}
    (example,) = fill_examples(Strange, [whole])
    assert set(with_source(node_to_signature(Strange)).fields) == set(example.keys()) - {"bae"}
    assert example.toDict() == {
        "source_": {"Odd": {"base": "b"}},
        "config_": "fast",
        "source": "fast",
        "instructions_": "go",
        "lm_": "gpt",
        "inputs": "none",
        "bae": example["bae"],
    }


async def test_steps_of_written_bodies_are_not_used_for_training():
    examples = trace_to_examples(await run_ticket())
    assert examples[2].next_node == {"context": {}, "fields": {"letter": "Dear you, wait"}}
    assert fill_examples(Sent, examples) == choice_examples(Reply, examples) == []
    assert choice_examples(Ticket, examples) == []  # there is nothing to choose


async def test_the_choice_to_stop_is_a_training_example():
    *others, last = trace_to_examples(await run_ticket([{"kind": "bill"}, None]))
    assert (last.node_type, last.next_node_type, last.next_node) == ("Sorted", "None", None)
    (example,) = choice_examples(Sorted, [*others, last])
    assert example.choice == "None"
    assert example.inputs().keys() == ["known"]


async def test_a_step_without_fields_to_fill_gives_no_fill_example():
    class Begin(Node):
        value: int

        async def __call__(self) -> Look | None: ...

    class Look(Node):
        due: Annotated[Due, Dep(get_due)]

        async def __call__(self) -> None: ...

    examples = trace_to_examples(await Graph(start=Begin).arun(Begin(value=1), ScriptedLM([Look])))
    assert fill_examples(Look, examples) == []
    assert [example.choice for example in choice_examples(Begin, examples)] == ["Look"]


def test_examples_written_by_hand_are_accepted():
    by_hand = dspy.Example(
        text="help",
        node_type="Ticket",
        next_node_type="Sorted",
        next_node={"fields": {"kind": "bill"}},
    ).with_inputs("text", "node_type")
    (example,) = fill_examples(Sorted, [by_hand])
    assert example.toDict() == {
        "source": {"Ticket": {"text": "help"}},
        "kind": "bill",
        "bae": {"run_id": "", "root": "", "corrected": []},
    }
    stop = dspy.Example(kind="bill", node_type="Sorted", next_node_type="None")
    (choice,) = choice_examples(Sorted, [stop, by_hand])
    assert (choice.known, choice.choice) == ({"Sorted": {"kind": "bill"}}, "None")


class Thought(Node):
    text: str

    async def __call__(self) -> Answer: ...


class Answer(Node):
    reasoning: str = Field(exclude=True)
    day: date
    pieces: list[str]
    sizes: Annotated[list[int], Map(len, over="pieces")]

    @field_serializer("day")
    def _in_words(self, day: date) -> str:
        return f"{day:%d %B}"

    async def __call__(self) -> None: ...


async def test_an_example_answer_is_valid_for_its_class():
    said = {"reasoning": "since", "day": "2026-03-01", "pieces": ["a", "bc"]}
    graph = Graph(start=Thought)
    (whole,) = trace_to_examples(await graph.arun(Thought(text="?"), ScriptedLM([said])))
    # Not "01 March", which no date is read from; nor what is worked out of the answer afterwards.
    assert whole.next_node == {"context": {}, "fields": said}
    (example,) = fill_examples(Answer, [whole])
    assert set(example.labels().keys()) == {"reasoning", "day", "pieces", "bae"}


class Sample(Node):
    raw: bytes
    tags: set[str] = {"d", "a", "c", "b"}
    grams: Annotated[float, PlainSerializer(round)]
    loud: str

    @field_validator("loud")
    @classmethod
    def _louder(cls, loud: str) -> str:
        return f"{loud}!"

    async def __call__(self) -> None: ...


def test_an_example_answer_keeps_the_original_values():
    (whole,) = trace_to_examples([Thought(text="?"), Sample(raw=b"a b", grams=2.53, loud="hey")])
    # Neither what a serializer makes less of, nor bytes as a journal has them; a set in one order.
    assert whole.next_node["fields"] == {
        "raw": "a b",
        "tags": ["a", "b", "c", "d"],
        "grams": 2.53,
        "loud": "hey!",
    }


# What is never in one


def get_token() -> str:
    return "t0p-token"


class Login(Node):
    user: str
    password: SecretStr
    diary: str = Field(repr=False)

    @computed_field
    @property
    def hello(self) -> str:
        return f"{self.user} wrote {self.diary}"

    async def __call__(self) -> Mood: ...


class Mood(Node):
    diary: Annotated[str, Recall(Login)]
    token: Annotated[str, Dep(get_token)] = Field(repr=False)
    key: Annotated[str, Dep(get_token)]
    mood: str

    async def __call__(self) -> Pin: ...


class Pin(Node):
    pin: str = Field(repr=False)

    async def __call__(self) -> None: ...


async def test_secrets_are_in_no_example():
    start = Login(user="ada", password=SecretStr("pa55"), diary="I cried")
    lm = ScriptedLM([{"mood": "low"}, {"pin": "1234"}])
    result = await Graph(start=Login).arun(start, lm)
    examples = trace_to_examples(result)
    assert len(examples) == 2
    assert examples[0].inputs().toDict() == {"user": "ada", "node_type": "Login"}
    assert examples[0].next_node == {"context": {}, "fields": {"mood": "low"}}
    assert examples[1].next_node is None
    told = repr([*examples, *fill_examples(Mood, examples), *fill_examples(Pin, examples)])
    for secret in ("pa55", "cried", "t0p", "1234", "***"):
        assert secret not in told


@pytest.mark.parametrize("secrets", [False, True])
async def test_steps_that_show_a_journaled_secret_are_left_out(secrets: bool, tmp_path: Path):
    start = Login(user="ada", password=SecretStr("pa55"), diary="I cried")
    async with SQLiteJournal(tmp_path / "runs.db", secrets=secrets) as journal:
        graph = Graph(start=Login)
        lm = ScriptedLM([{"mood": "low"}, {"pin": "1234"}])
        await graph.arun(start, lm, journal=journal)
        assert await transitions_from(journal, graph) == await examples_from(journal, graph) == []


# Out of journals


async def test_a_journal_gives_the_examples_of_a_trace_without_written_bodies():
    async with MemoryJournal() as journal:
        result = await run_ticket(journal=journal, run_id="one")
        examples = await examples_from(journal, tickets)
    expected = trace_to_examples(result)[:2]
    assert examples == expected
    assert [e.inputs().toDict() for e in examples] == [e.inputs().toDict() for e in expected]


async def test_a_correction_replaces_the_original_training_answer():
    async with MemoryJournal() as journal:
        await run_ticket(journal=journal, run_id="one")
        await tickets.fork("one", at=2, journal=journal, new_id="two", body="soon")
        examples = await examples_from(journal, tickets)
        assert len(await examples_from(journal, tickets, limit=1)) == 1
    (fill,), (choice,) = fill_examples(Reply, examples), choice_examples(Sorted, examples)
    assert fill.body == "soon"
    assert fill["bae"] == {"run_id": "two", "root": "one", "corrected": ["body"]}
    assert choice.choice == "Reply"
    assert choice["bae"] == {"run_id": "two", "root": "one", "corrected": []}


class Client:
    name = "a client"


def get_client() -> Client:
    return Client()


class Served(Node):
    client: Annotated[Client, Dep(get_client)]
    text: str
    model_config = {"arbitrary_types_allowed": True}

    @computed_field
    @property
    def by(self) -> str:
        return self.client.name

    async def __call__(self) -> Refund: ...


async def test_a_step_that_depends_on_a_live_value_is_left_out(
    caplog: pytest.LogCaptureFixture,
):
    graph = Graph(start=Served)
    async with MemoryJournal() as journal:
        await graph.arun(Served(text="a"), ScriptedLM([{"amount": 1}]), journal=journal)
        assert len(await transitions_from(journal, graph)) == 1
        assert await examples_from(journal, graph) == []
    assert "steps in runs of Served were left out: 1 because" in caplog.text


async def test_a_correction_applies_to_the_same_question_of_other_runs():
    async with MemoryJournal() as journal:
        for name in ("one", "two", "three"):
            await run_ticket(run_id=name, journal=journal)
        await tickets.fork("one", at=1, journal=journal, new_id="old", kind="claim")
        await tickets.fork("two", at=1, journal=journal, new_id="new", kind="bill")
        # It is listed before the others, but what it has of a correction is the oldest.
        last = await tickets.fork("old", at=1, journal=journal, new_id="latest")
        await tickets.resume(last, ScriptedLM(["Refund", {"amount": 9}]), journal=journal)
        assert {
            example["kind"]
            for example in fill_examples(Sorted, await examples_from(journal, tickets))
        } == {"bill"}

        await tickets.fork("three", at=1, journal=journal, new_id="newest", kind="claim")
        examples = fill_examples(Sorted, await examples_from(journal, tickets))
    assert {example["kind"] for example in examples} == {"claim"}
    assert len(examples) == 3


# Splitting

SORTED = Sorted(due=get_due(), kind=Kind.BILL)

examples = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 3)).map(
        lambda pair: {"text": str(pair[1]), "root": f"run {pair[0]}", "next_node_type": "Sorted"}
    ),
    max_size=40,
)
shares = st.floats(0.05, 0.95)


def roots(some: Sequence[Any]) -> set[str]:
    return {example["root"] for example in some}


def texts(some: Sequence[Any]) -> list[str]:
    return [example["text"] for example in some]


@settings(derandomize=True)
@given(examples, shares, st.integers(0, 5), st.randoms(use_true_random=False))
def test_no_run_or_question_is_on_both_sides_of_a_split(
    some: list[Any], share: float, seed: int, random: Random
):
    train, held_out, left_out = split_apart(some, share, seed)
    apart = [*held_out, *left_out]
    # Nothing is lost, and no run is on both sides.
    assert not roots(train) & roots(apart)
    key = lambda example: (example["root"], example["text"])  # noqa: E731
    assert sorted([*train, *apart], key=key) == sorted(some, key=key)
    # What is held out is asked nowhere else.
    assert not set(texts(held_out)) & set(texts(train))
    assert len(set(texts(held_out))) == len(held_out)
    assert set(texts(left_out)) <= {*texts(held_out), *texts(train)}
    # The share is met to within one run.
    sizes = [sum(1 for example in some if example["root"] == root) for root in roots(some)]
    if len(sizes) > 1:
        assert train
        assert apart
        assert abs(len(apart) - share * len(some)) <= max(sizes)
    # The order of the examples changes nothing.
    mixed = list(some)
    random.shuffle(mixed)
    assert split_apart(mixed, share, seed)[:2] == (train, held_out)


def test_different_seeds_hold_out_different_runs():
    some = [{"text": n, "root": f"run {n}", "next_node_type": "Sorted"} for n in range(20)]
    held = {tuple(sorted(roots(split_apart(some, 0.3, seed).held_out))) for seed in range(5)}
    assert len(held) == 5
    assert {len(run_ids) for run_ids in held} == {6}


async def test_examples_of_one_run_all_go_to_training():
    training, held_out, _ = split_apart(trace_to_examples(await run_ticket()))
    assert (len(training), held_out) == (3, [])


async def test_examples_of_a_part_are_split_by_their_runs_too():
    every = [
        example
        for n in range(4)
        for example in trace_to_examples([Ticket(text=f"nr {n}"), SORTED, Refund(amount=n)])
    ]
    fills = [*fill_examples(Sorted, every), *fill_examples(Refund, every)]
    training, held_out, _ = split_apart(fills, 0.5)
    sides = [{example["bae"]["root"] for example in side} for side in (training, held_out)]
    assert [len(side) for side in sides] == [2, 2]
    assert not sides[0] & sides[1]


def steps(run: str, *nodes: Node) -> list[Any]:
    """The training example of a run with this path."""
    return [example.copy(run_id=run, root=run) for example in trace_to_examples(nodes)]


def test_repeated_runs_are_not_held_out(
    caplog: pytest.LogCaptureFixture,
):
    every = [e for n in range(20) for e in steps(f"run {n}", Ticket(text="help"), SORTED)]
    with caplog.at_level(logging.INFO, "bae.optimizer"):
        train, held_out, left_out = split_apart(every, 0.3)
    assert (len(train), held_out, len(left_out)) == (28, [], 12)  # to Sorted, and on to None
    assert "12 of 12 held-out examples were left out, because they repeat a question" in caplog.text


def test_a_repeated_question_does_not_prevent_holding_out_other_nodes():
    every = [e for n in range(20) for e in steps(f"run {n}", Ticket(text=f"nr {n}"), SORTED)]
    train, held_out, left_out = split_apart(every, 0.3)
    assert len(fill_examples(Sorted, train)) == 14
    assert len(fill_examples(Sorted, held_out)) == 6
    assert choice_examples(Sorted, held_out) == []  # from Sorted, which is the same each time
    assert len(choice_examples(Sorted, left_out)) == 6
    assert fill_examples(Sorted, left_out) == []


def test_an_example_can_be_held_out_only_for_its_fill():
    every = [e for n in range(9) for e in steps(f"run {n}", SORTED, Refund(amount=n))]
    every += steps("run 9", SORTED, Reply(kind=Kind.BILL, body="wait"))
    splits = [split_apart(every, 0.3, seed) for seed in range(10)]
    _, held_out, left_out = next(split for split in splits if fill_examples(Reply, split.held_out))
    assert [example["root"] for example in held_out] == ["run 9"]
    assert choice_examples(Sorted, held_out) == []  # as in all other runs
    assert len(choice_examples(Sorted, left_out)) == 3
    assert fill_examples(Reply, left_out) == []
    assert len(fill_examples(Refund, left_out)) == 2


def test_held_out_questions_are_scored_against_corrections():
    every = [e for n in range(20) for e in steps(f"run {n}", Ticket(text=f"nr {n % 10}"), SORTED)]
    sorted_ = Sorted(due=get_due(), kind=Kind.CLAIM)
    for number in range(10):
        (corrected, _) = steps(f"fork {number}", Ticket(text=f"nr {number}"), sorted_)
        every.append(corrected.copy(corrected=["kind"]))
    for side in split_apart(every, 0.4)[:2]:
        fills = fill_examples(Sorted, side)
        assert fills
        assert {fill.kind for fill in fills} == {"claim"}
    assert every[0].next_node["fields"] == {"kind": "bill"}  # what was given stays as it is


@pytest.mark.parametrize("share", [-0.1, 1, 2.5, float("nan")])
def test_a_wrong_share_is_refused(share: float):
    with pytest.raises(ValueError, match="held_out="):
        split_apart([], share)
