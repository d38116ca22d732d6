"""Values that JSON has no way to say (half a character, a number of too many digits, NaN) are
stored as they are, or refused when they are written: no line that was stored is unreadable."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter

from bae import Dep, Gate, Graph, JournalError, Node, OpenGate, records
from bae.exceptions import FillError, NodeError, describe, faults
from bae.journal import MemoryJournal
from bae.journal.codec import ANYTHING, Unkeepable, same, value_codec
from bae.journal.lines import DATA, Encoder, parse_line
from bae.journal.node_codec import node_codec
from bae.journal.stored_runs import Line
from bae.lm import Answer, Usage
from bae.unicode import LONGEST_TEXT
from bae.usage import Attempt
from end_node import EndNode
from toy_backend import ToyBackend

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
    "any": (Any, anything | st.dates() | st.tuples(anything)),
    "dict": (dict, st.dictionaries(texts, anything)),
    "numbered": (dict[int, str], st.dictionaries(ints, texts)),
    "set": (set[str], st.sets(texts)),
    "union": (bool | int | float | str | None, st.booleans() | numbers | texts | st.none()),
    "dates": (dt.date | str, st.dates() | texts | st.dates().map(str)),
    "sets": (list[int] | set[int], st.lists(ints) | st.sets(ints)),
    "models": (
        dict[str, Inner],
        st.dictionaries(texts, st.builds(Inner, text=texts, number=st.floats())),
    ),
}


def node_with(declared: Any) -> type[Node]:
    return type("Held", (Node,), {"__annotations__": {"value": declared}})


def write_or_refuse(write: Callable[[], str]) -> str | None:
    """The stored text, or None where the value is rightly refused."""
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
def test_a_field_value_reads_back_unchanged_or_is_refused(kind: str, data: st.DataObject) -> None:
    declared, values = KINDS[kind]
    value = data.draw(values)
    for codec in (value_codec(declared), ANYTHING):  # what a dependency returns
        with suppress(Unkeepable):
            assert same(codec.load(json.loads(codec.dump(value))), value)
    node = NODES[kind].model_construct(value=value)
    text = write_or_refuse(lambda: node_codec(NODES[kind]).dump(node))
    if text is None:
        return
    line = Line(0, "Returned", 0.0, "", 0, f'{{"node":{text}}}')
    stored = parse_line(line)["node"]
    assert same(node_codec(NODES[kind]).load(vars(stored)), node)


class Open(Node):
    model_config = ConfigDict(extra="allow")


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(texts, anything, max_size=3))
def test_an_undeclared_field_reads_back_unchanged_or_is_refused(extra: dict[str, Any]) -> None:
    node = Open.model_construct(**{f"x{name}": value for name, value in extra.items()})
    text = write_or_refuse(lambda: node_codec(Open).dump(node))
    assert text is None or same(node_codec(Open).load(json.loads(text)), node)


# Every field of every record.


async def fetch() -> Any: ...


class Told(EndNode):
    text: str = ""


class Asked(Node):
    found: Annotated[Any, Dep(fetch)]
    sure: Annotated[Any, Gate("Sure?")]

    async def __call__(self) -> Told | None: ...


ENCODER = Encoder(Graph(start=Asked))
usages = st.builds(
    Usage,
    calls=ints,
    input_tokens=ints,
    cost=st.none() | st.floats(),
    seconds=st.floats(),
    models=st.lists(texts, max_size=2).map(tuple),
)
gates = st.builds(
    OpenGate,
    question=texts,
    node_type=st.just(Asked),
    field_name=st.just("sure"),
    type=st.just(Any),
    context=st.just({}),
    path=texts,
    step=st.integers(0, 9),
    deadline=st.floats(),
)
errors = (
    texts.map(ValueError)
    | texts.map(lambda text: records.RecordedError("Lost", text))
    | texts.map(lambda text: NodeError(text, node_type=Told, code=text))
)
nodes = texts.map(lambda text: Told.model_construct(text=text))
several = st.lists(texts, max_size=2).map(tuple)
objects = st.dictionaries(texts, anything, max_size=3)
called = st.fixed_dictionaries(
    {"id": texts, "name": texts, "arguments": objects}, optional={"result": anything}
)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "str | None": texts | st.none(),
    "bool": st.booleans(),
    "dict[str, Any]": objects,
    "tuple[dict[str, Any], ...]": st.lists(called, max_size=2).map(tuple),
    "int": ints,
    "int | None": ints | st.none(),
    "Hashable": st.none(),
    "float": st.floats(),
    "tuple[str, ...]": several,
    "Any": anything,
    "BaseException": errors,
    "BaseException | None": errors | st.none(),
    "Usage": usages,
    "Attempt": st.builds(Attempt, ints, texts, st.just("invalid"), several, usages, texts),
    "Asker": st.just(records.Asker("fill", Told)),
    "Origin": st.builds(records.Origin, texts, ints, texts),
    "OpenGate": gates,
    "tuple[OpenGate, ...]": st.lists(gates, max_size=2).map(tuple),
    "Node": nodes,
    "Node | None": nodes | st.none(),
    "Node | type[Node] | type[None] | None": nodes | st.sampled_from([Told, None]),
    "type[Node]": st.just(Asked),
    "type[Node] | type[None]": st.sampled_from([Told, type(None)]),
    "tuple[type[Node] | type[None], ...]": st.just((Told, type(None))),
    "Literal['', 'cut-off', 'refused']": st.sampled_from(["", "cut-off", "refused"]),
}
BY_NAME = {"at": 1.0, "path": "", "step": 0, "made": (), "field": "found", "parameter": ""}
BY_NAME |= {"source": "dep", "method": "make", "outcome": "failed", "resolved": {}}
BY_NAME |= {"kind": "told"}
"""What is the name of something else, or one of a few words."""


@settings(deadline=None, max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("kind", DATA)
def test_a_record_with_arbitrary_values_is_refused_or_readable(
    kind: str, data: st.DataObject
) -> None:
    cls = getattr(records, kind)
    record = cls(**{f.name: BY_NAME.get(f.name) for f in fields(cls)})
    for field in fields(cls):
        if field.name not in BY_NAME:
            setattr(record, field.name, data.draw(BY_TYPE[str(field.type)]))
    text = write_or_refuse(lambda: ENCODER.encode(record))
    if text is not None:
        parse_line(Line(0, kind, 1.0, "", 0, text.encode().decode()))


# Answers of a model.


class Begin(Node):
    async def __call__(self) -> Filled: ...


class Filled(EndNode):
    inner: Inner
    note: str = ""


FINE = {"inner": {"text": "a", "number": 1}}


@pytest.mark.parametrize("said", ["NaN", "1e999", "-Infinity"])
async def test_an_unstorable_llm_answer_is_requested_again(said: str) -> None:
    lm = ToyBackend(f'{{"note": "b", "inner": {{"text": "a", "number": {said}}}}}', FINE)
    async with MemoryJournal() as journal:
        result = await Graph(start=Begin).arun(Begin(), lm=lm, journal=journal)
    assert result.result == Filled(inner=Inner(text="a", number=1), note="b")
    (turn,) = lm.prompts[1].corrections
    assert "- inner: it cannot be stored: " in turn.correction
    assert "with these fields alone: inner" in turn.correction


@settings(deadline=None, max_examples=20)
@given(anything)
async def test_any_parsed_answer_is_stored_or_requested_again(value: Any) -> None:
    class Told(EndNode):
        value: Any

    class Asks(Node):
        async def __call__(self) -> Told: ...

    lm = ToyBackend(Answer(value={"value": value}), {"value": "fine"})
    told = Graph(start=Asks)
    async with MemoryJournal() as journal:
        result = await told.arun(Asks(), lm=lm, journal=journal, run_id="a")
        again = await told.resume("a", journal=journal)
    assert same(result.result, again.result)


# The text of errors.


def test_error_texts_of_pydantic_are_bounded() -> None:
    with pytest.raises(ValueError) as raised:
        TypeAdapter(list[int]).validate_python(["x"] * 10_000)
    found = faults(raised.value)  # type: ignore[arg-type]
    assert found[-1].startswith("and ")
    assert found[-1].endswith(" more")
    assert sum(map(len, found)) < LONGEST_TEXT + 100
    assert len(describe(raised.value)) < LONGEST_TEXT * 2


async def test_the_line_of_a_failed_run_has_each_error_once() -> None:
    lm = ToyBackend(*[{"inner": {"text": 1, "number": "no"}}] * 3)
    async with MemoryJournal() as journal:
        with pytest.raises(FillError):
            await Graph(start=Begin).arun(Begin(), lm=lm, journal=journal)
        (run,) = await journal.runs()
    assert run.error.count("inner.text") == 1
    assert "ValidationError" in run.error
