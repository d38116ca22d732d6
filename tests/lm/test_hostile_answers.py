"""The answer of a provider is Unicode and JSON that can be stored, or it is asked for again: on
every backend, streamed or not, with a journal or without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

pytest.importorskip("h11")

from bae import Graph, Node
from bae.journal import MemoryJournal
from bae.lm import Answer, Backend, Prompt
from bae.observers import observing
from bae.records import AnswerJudged, FieldText, Record
from bae.testing import Call, Calls, Provider
from bae.usage import tell
from end_node import EndNode
from field_texts import Seen
from http_backends import BACKENDS, Make
from tool_nodes import QUESTION, Question

BOUND = 60
KEY = "sk-ant-very-secret-0123456789"


class Size(BaseModel):
    number: float


class Begin(Node):
    async def __call__(self) -> Filled: ...


class Filled(EndNode):
    text: str
    held: Any = None
    others: dict[str, Any] = {}
    count: int = 0
    size: Size | None = None


graph = Graph(start=Begin)
FINE = '{"text": "fine"}'


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Make:
    return BACKENDS[request.param]


async def run_and_resume(
    provider: Provider, make: Make, *answers: str
) -> tuple[Filled, list[Record]]:
    """The result of a run with a journal, which a resume must repeat, and its records."""
    seen: list[Record] = []
    provider.script(*answers)
    async with make(provider) as lm, MemoryJournal() as journal, asyncio.timeout(BOUND):
        with observing(lambda run, record: seen.append(record)):
            result = await graph.arun(Begin(), lm=lm, journal=journal, run_id="a")
        again = await graph.resume("a", journal=journal)
    filled = result.result
    assert isinstance(filled, Filled)
    assert repr(again.result) == repr(filled)
    for record in seen:
        if isinstance(record, FieldText):
            record.delta.encode()
        elif isinstance(record, AnswerJudged):
            record.attempt.answer.encode()
    return filled, seen


WRONG = {
    "half": '{"text": "a \ud800 b"}',
    "halves the wrong way round": '{"text": "\ude00\ud83d"}',
    "half in a key": '{"text": "a", "others": {"\ud800": 1}}',
    "half in anything": '{"text": "a", "held": [{"\ud800": "\udfff"}]}',
    "half escaped": '{"text": "\\ud800"}',
    "long int": f'{{"text": "a", "count": {"9" * 4301}}}',
    "long int in anything": f'{{"text": "a", "held": {"9" * 4301}}}',
    "no number": '{"text": "a", "size": {"number": NaN}}',
    "endless": '{"text": "a", "size": {"number": 1e999}}',
    "deep": f'{{"text": "a", "held": {"[" * 300}{"]" * 300}}}',
    "deep for a record": f'{{"text": "a", "held": {"[" * 195}{"]" * 195}}}',
    "blank": " \n",
    "control character": '{"text": "\x00"}',
}


async def test_an_invalid_or_unstorable_text_is_asked_for_again(
    provider: Provider, make: Make
) -> None:
    for number, (name, wrong) in enumerate(WRONG.items(), 1):
        filled, seen = await run_and_resume(provider, make, wrong, FINE)
        assert filled.text in ("fine", "a"), name  # where the text was right, it is kept
        judged = [record.attempt for record in seen if isinstance(record, AnswerJudged)]
        assert [event.verdict for event in judged][1:] == ["valid"], name
        assert judged[0].errors
        assert len(provider.requests) == 2 * number


RIGHT = {
    '{"text": "a \ud83d\ude00"}': "a \U0001f600",
    '{"text": "\\ud83d\\ude00"}': "\U0001f600",
    '{"text": "\\u0000\\u001b"}': "\x00\x1b",
    '{"text": "\ufffd"}': "\ufffd",
}


async def test_surrogate_halves_of_a_character_are_joined(provider: Provider, make: Make) -> None:
    for answer, text in RIGHT.items():
        filled, seen = await run_and_resume(provider, make, answer)
        assert filled.text == text
        assert Seen(seen).now["1:Filled.text"] == text


texts = st.text(
    st.characters(exclude_characters='"\\', min_codepoint=32)
    | st.sampled_from("\ud800\ud83d\ude00\udfff"),
    max_size=12,
)
values = st.sampled_from(
    ["null", "NaN", "-Infinity", "1e999", "9" * 4_300, "9" * 4_301, "[[1e400]]"]
)


@settings(
    deadline=None,
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=texts, key=texts, value=values)
async def test_any_text_in_an_answer_is_accepted_or_asked_for_again(
    provider: Provider, make: Make, text: str, key: str, value: str
) -> None:
    held = f'{{"text": "{text}", "held": {value}, "others": {{"{key}": {value}}}}}'
    provider.always({"text": "fine", "held": 1, "others": {}})
    filled, _ = await run_and_resume(provider, make, held)
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert filled.text in ("fine", whole)


class Streaming(Backend):
    """A backend that streams pieces, and answers with all of them."""

    model = "streaming"
    free = True

    def __init__(self, *answers: list[str]) -> None:
        super().__init__()
        self.answers = list(answers)

    async def answer(self, prompt: Prompt) -> Answer:
        pieces = self.answers.pop(0)
        for piece in pieces:
            tell(piece)
        return Answer("".join(pieces))


@given(cut=st.lists(st.integers(1, 5), min_size=30, max_size=30))
async def test_characters_split_between_pieces_arrive_intact(cut: list[int]) -> None:
    text, pieces = '{"text": "%s é"}' % ("\ud83d\ude00" * 10), list[str]()
    for size in [*cut, len(text)]:
        pieces.append(text[:size])
        text = text[size:]
    seen: list[Record] = []
    with observing(lambda run, record: seen.append(record)):
        await graph.arun(Begin(), lm=Streaming(['{"text": "\ud83d'], [*filter(None, pieces)]))
    first = next(n for n, event in enumerate(seen) if isinstance(event, AnswerJudged))
    assert not any(isinstance(record, FieldText) for record in seen[:first])
    assert Seen(seen).now == {"1:Filled.text": "%s é" % ("\U0001f600" * 10)}


class Parsing(Backend):
    """Gives its answer as a value, and a key with it."""

    def __init__(self, value: Any) -> None:
        super().__init__(attempts=0)
        self.value = value

    async def answer(self, prompt: Prompt) -> Answer:
        return Answer(value={"text": KEY, "held": self.value, "others": {KEY: KEY}})

    @property
    def secrets(self) -> Iterator[str]:
        yield KEY


async def test_a_key_is_masked_anywhere_in_an_answer() -> None:
    deep: Any = "leaf"
    for _ in range(90):
        deep = {"parts": [deep, 1]}
    for value, found in ((deep, deep), ([{"a": [KEY]}], [{"a": ["***"]}])):
        filled = await Parsing(value).fill(Filled, {}, "Filled")
        assert (filled.text, filled.held, filled.others) == ("***", found, {"***": "***"})


HOSTILE_CALLS = {
    "half a character": Calls(Call("search", query="a \ud800 b")),
    "half escaped": Calls(Call("search"), raw='{"query": "\\ud800"}'),
    "half before the call": Calls(Call("now"), text="a \ud800 b", thinking="a \ud800 b"),
    "half in the name": Calls(Call("\ud800")),
    "no name": Calls(Call("")),
    "deep": Calls(Call("search"), raw=f'{{"query": {"[" * 190}{"]" * 190}}}'),
    "deeper": Calls(Call("search"), raw=f'{{"query": {"[" * 300}{"]" * 300}}}'),
    "deepest": Calls(Call("search"), raw=f'{{"query": {"[" * 20_000}{"]" * 20_000}}}'),
    "long int": Calls(Call("search"), raw=f'{{"query": "a", "limit": {"9" * 5000}}}'),
    "no number": Calls(Call("search"), raw='{"query": NaN}'),
    "endless": Calls(Call("search"), raw='{"query": "a", "limit": 1e999}'),
    "a list": Calls(Call("search"), raw="[]"),
    "a text": Calls(Call("search"), raw='"a"'),
    "nothing": Calls(Call("search"), raw=""),
}


async def test_hostile_tool_calls_can_be_stored_and_sent_back(
    provider: Provider, make: Make
) -> None:
    for name, said in HOSTILE_CALLS.items():
        provider.script(said, {"answer": "fine", "pages": []})
        async with make(provider, retries=0) as lm, MemoryJournal() as journal:
            async with asyncio.timeout(BOUND):
                run = await QUESTION.arun(Question(text="?"), lm, journal=journal, run_id="a")
                again = await QUESTION.resume("a", journal=journal)
        assert repr(again.result) == repr(run.result), name
        (call,) = run.result.calls
        assert (call.result == "noon") == (name == "half before the call"), name


async def test_an_invalid_text_after_tool_calls_is_asked_for_again(
    provider: Provider, make: Make
) -> None:
    provider.script(Call("now"), '{"answer": "a \ud800 b", "pages": []}')
    provider.script({"answer": "fine", "pages": []})
    async with make(provider) as lm, MemoryJournal() as journal, asyncio.timeout(BOUND):
        run = await QUESTION.arun(Question(text="?"), lm, journal=journal)
    assert run.result.answer == "fine"
    assert len(provider.requests) == 3
