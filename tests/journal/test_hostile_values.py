"""Values that JSON has no way to say (half a character, a number of too many digits, NaN) are
stored as they are, or refused when they are written: no line that was stored is unreadable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter

from bae import Dep, Gate, Graph, JournalError, Map, Node, OpenGate
from bae.exceptions import FillError, NodeError, describe, faults
from bae.journal import MemoryJournal
from bae.journal.codec import ANYTHING, Unkeepable, same, value_codec
from bae.journal.lines import DATA, Encoder, parse_line
from bae.journal.node_codec import node_codec
from bae.journal.store import Line
from bae.lm import Answer, Backend, Prompt, Usage
from bae.records import (
    AnswerJudged,
    AnswerRestarted,
    Asker,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    GateOpened,
    ItemEnded,
    LMAnswered,
    LMUsed,
    Origin,
    Recalled,
    Record,
    RecordedError,
    Returned,
    RunEnded,
    RunForked,
    RunResumed,
    RunStarted,
    SourceEnded,
    SourceStarted,
    StepStarted,
)
from bae.unicode import LONGEST_TEXT
from bae.usage import Attempt
from end_node import EndNode

HALVES = "\ud800\udbff\udc00\udfff"
texts = st.text(st.characters() | st.sampled_from(HALVES + "\x00\x1b\ufffd\u2028"), max_size=8)
ints = st.integers() | st.sampled_from([4_299, 4_300, 5_000]).map(lambda digits: -(10**digits))
numbers = ints | st.floats()
anything = st.recursive(
    st.none() | st.booleans() | texts | numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


class Inner(BaseModel):
    text: str
    number: float
    others: dict[str, Any] = {}


KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "str": (str, texts),
    "any": (Any, anything),
    "dict": (dict, st.dictionaries(texts, anything)),
    "numbered": (dict[int, str], st.dictionaries(ints, texts)),
    "set": (set[str], st.sets(texts)),
    "union": (int | str | None, ints | texts),
    "models": (
        dict[str, Inner],
        st.dictionaries(texts, st.builds(Inner, text=texts, number=st.floats())),
    ),
}


def node_with(declared: Any) -> type[Node]:
    return type("Held", (Node,), {"__annotations__": {"value": declared}})


def written(write: Callable[[], str]) -> str | None:
    """What is stored, or None where it is refused as it must be."""
    try:
        return write()
    except JournalError as error:
        if error.code != "bae-journal-field":
            raise
        return None


NODES = {name: node_with(declared) for name, (declared, _) in KINDS.items()}


@settings(deadline=None, max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_a_field_reads_back_as_it_is_or_is_refused(kind: str, data: st.DataObject) -> None:
    declared, values = KINDS[kind]
    value = data.draw(values)
    for codec in (value_codec(declared), ANYTHING):  # what a dependency returns
        with suppress(Unkeepable):
            assert same(codec.load(json.loads(codec.dump(value))), value)
    node = NODES[kind].model_construct(value=value)
    text = written(lambda: node_codec(NODES[kind]).dump(node))
    if text is None:
        return
    line = Line(0, "Returned", 0.0, "", 0, f'{{"node":{text}}}')
    stored = parse_line(line)["node"]
    assert same(node_codec(NODES[kind]).load(vars(stored)), node)


class Open(Node):
    model_config = ConfigDict(extra="allow")


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(texts, anything, max_size=3))
def test_an_undeclared_field_reads_back_as_it_is_or_is_refused(extra: dict[str, Any]) -> None:
    node = Open.model_construct(**{f"x{name}": value for name, value in extra.items()})
    text = written(lambda: node_codec(Open).dump(node))
    assert text is None or same(node_codec(Open).load(json.loads(text)), node)


# Every field of every record.


async def fetch() -> Any: ...


class Told(EndNode):
    text: str = ""


class Asked(Node):
    found: Annotated[Any, Dep(fetch)]
    items: list[str] = []
    each: Annotated[list[Any], Map(fetch, over="items")]
    sure: Annotated[Any, Gate("Sure?")]

    async def __call__(self) -> Told | None: ...


graph = Graph(start=Asked)
ASKER = Asker("fill", Told)
AT = 1.0, "", 0
GATE = OpenGate("Sure?", Asked, "sure", Any, {}, None, "", 0, 2.0)
RECORDS: dict[str, Callable[[], Record]] = {
    "RunStarted": lambda: RunStarted(*AT, "a", "Asked", Told()),
    "StepStarted": lambda: StepStarted(*AT, Told()),
    "Returned": lambda: Returned(*AT, Told()),
    "RunResumed": lambda: RunResumed(*AT, "me", ("one",)),
    "RunForked": lambda: RunForked(*AT, "b", Told(), ("text",)),
    "SourceStarted": lambda: SourceStarted(*AT, Asked, "found", "dep", "fetch"),
    "SourceEnded": lambda: SourceEnded(*AT, Asked, "found", "dep", "fetch", 1.0, "a"),
    "ItemEnded": lambda: ItemEnded(*AT, Asked, "each", 0, "a"),
    "Recalled": lambda: Recalled(*AT, Asked, "found", "a", Origin("", 0, "text")),
    "GateOpened": lambda: GateOpened(*AT, GATE),
    "ChoiceStarted": lambda: ChoiceStarted(*AT, Asked.model_construct(), (Told, type(None))),
    "ChoiceMade": lambda: ChoiceMade(*AT, Asked.model_construct(), Told, 1.0, Usage()),
    "FillStarted": lambda: FillStarted(*AT, Told, {}),
    "FillEnded": lambda: FillEnded(*AT, Told(), 1.0, Usage()),
    "AnswerJudged": lambda: AnswerJudged(*AT, ASKER, Attempt(1, "", "valid")),
    "AnswerRestarted": lambda: AnswerRestarted(*AT, ASKER, ValueError("a"), 1.0),
    "LMAnswered": lambda: LMAnswered(*AT, ASKER, "make", "0", "Told", Told()),
    "LMUsed": lambda: LMUsed(*AT, ASKER, Usage()),
    "RunEnded": lambda: RunEnded(*AT, "failed", None, ValueError("a")),
}
usages = st.builds(
    Usage,
    calls=ints,
    input_tokens=ints,
    cost=st.none() | st.floats(),
    seconds=st.floats(),
    models=st.lists(texts, max_size=2).map(tuple),
)
errors = (
    texts.map(ValueError)
    | texts.map(lambda text: RecordedError("Lost", text))
    | texts.map(lambda text: NodeError(text, node_type=Told, code=text))
)
HOSTILE: dict[str, st.SearchStrategy[Any]] = {
    "run_id": texts, "graph": texts, "max_iters": ints, "owner": texts, "parent": texts,
    "changes": st.lists(texts).map(tuple), "changed": st.lists(texts).map(tuple), "by": texts,
    "seconds": st.floats(), "value": anything, "error": errors, "index": ints, "wait": st.floats(),
    "usage": usages, "asked": texts, "target": texts,
    "origin": st.builds(Origin, texts, ints, texts),
    "gate": st.builds(OpenGate, texts, st.just(Asked), st.just("sure"), st.just(Any), st.just({}),
                      st.none(), texts, st.integers(0, 9), st.floats()),
    "attempt": st.builds(Attempt, ints, texts, st.just("invalid"), st.lists(texts).map(tuple),
                         usages, texts),
    "node": texts.map(lambda text: Told.model_construct(text=text)),
}  # fmt: skip
"""What the fields of records may hold that comes from outside."""


def hostile_fields() -> Iterator[Any]:
    for kind in DATA:
        record = RECORDS[kind]()
        for field in fields(record):
            if kind in ("ChoiceStarted", "ChoiceMade") and field.name == "node":
                continue  # of which only the class is written
            if (kind, field.name) in (("FillStarted", "target"), ("LMAnswered", "value")):
                continue  # a class, and a node
            if field.name in HOSTILE and not (kind == "RunEnded" and field.name == "node"):
                yield pytest.param(kind, field.name, id=f"{kind}.{field.name}")


@settings(deadline=None, max_examples=6)
@given(data=st.data())
@pytest.mark.parametrize(("kind", "name"), [*hostile_fields()])
def test_a_record_with_anything_in_it_is_refused_or_can_be_read(
    kind: str, name: str, data: st.DataObject
) -> None:
    record = RECORDS[kind]()
    setattr(record, name, data.draw(HOSTILE[name]))
    text = written(lambda: Encoder(graph).encode(record))
    if text is not None:
        parse_line(Line(0, kind, *AT, text.encode().decode()))


# Answers of a model.


class Model(Backend):
    model = "told"
    free = True

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.answers = list(answers)
        self.prompts: list[Prompt] = []

    async def answer(self, prompt: Prompt) -> Answer:
        self.prompts.append(prompt)
        return self.answers.pop(0)


class Begin(Node):
    async def __call__(self) -> Filled: ...


class Filled(EndNode):
    inner: Inner
    note: str = ""


FINE = Answer('{"inner": {"text": "a", "number": 1}}')


@pytest.mark.parametrize("said", ["NaN", "1e999", "-Infinity"])
async def test_what_a_journal_cannot_store_of_an_answer_is_asked_for_again(said: str) -> None:
    lm = Model(Answer(f'{{"note": "b", "inner": {{"text": "a", "number": {said}}}}}'), FINE)
    async with MemoryJournal() as journal:
        result = await Graph(start=Begin).arun(Begin(), lm=lm, journal=journal)
    assert result.result == Filled(inner=Inner(text="a", number=1), note="b")
    (turn,) = lm.prompts[1].turns
    assert "- inner: it cannot be stored: " in turn.correction
    assert "with these fields alone: inner" in turn.correction


@settings(deadline=None, max_examples=20)
@given(anything)
async def test_any_parsed_answer_is_stored_or_asked_for_again(value: Any) -> None:
    class Told(EndNode):
        value: Any

    class Asks(Node):
        async def __call__(self) -> Told: ...

    lm = Model(Answer(value={"value": value}), Answer('{"value": "fine"}'))
    told = Graph(start=Asks)
    async with MemoryJournal() as journal:
        result = await told.arun(Asks(), lm=lm, journal=journal, run_id="a")
        again = await told.resume("a", journal=journal)
    assert same(result.result, again.result)


# The text of errors.


def test_what_pydantic_found_wrong_is_bounded() -> None:
    with pytest.raises(ValueError) as raised:
        TypeAdapter(list[int]).validate_python(["x"] * 10_000)
    found = faults(raised.value)  # type: ignore[arg-type]
    assert found[-1].startswith("and ")
    assert found[-1].endswith(" more")
    assert sum(map(len, found)) < LONGEST_TEXT + 100
    assert len(describe(raised.value)) < LONGEST_TEXT * 2


async def test_the_line_of_a_failed_run_has_each_error_once() -> None:
    lm = Model(*[Answer('{"inner": {"text": 1, "number": "no"}}')] * 3)
    async with MemoryJournal() as journal:
        with pytest.raises(FillError):
            await Graph(start=Begin).arun(Begin(), lm=lm, journal=journal)
        (run,) = await journal.runs()
    assert run.error.count("inner.text") == 1
    assert "ValidationError" in run.error
