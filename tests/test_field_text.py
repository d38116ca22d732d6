"""The text of fields as a follower sees it: each string as it grows, decoded, at its own place, and
its void parts. A run without a follower has no such text."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from bae import LM, BaeError, BaeLMError, Dep, Graph, Map, Node, Text, ToolCall, Tools
from bae.journal import (
    AnswerBegan,
    AnswerJudged,
    FieldText,
    MemoryJournal,
    StepStarted,
    TextVoided,
    Thinking,
)
from bae.json_strings import JSONPath, JSONStrings
from bae.lm import Answer, Backend, Budgeted, Cached, Concurrency, Prompt, Retry, Timeout, tell
from bae.lm.policies.budget import Budget
from bae.observers import observing
from bae.place import Place
from bae.testing import Call, ScriptedLM, Streamed
from bae.unicode import readable
from bae.usage import Discard, Thought
from bounded import BOUND
from end_node import EndNode
from field_texts import Seen

# --- the decoder --------------------------------------------------------------------------------

texts = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["\ud83d\ude00", "\U0001f600", 'a "quoted" \\ /', "\n\t\b\f\r\x00", "\ud83d", "\ude00x", ""]
)
keys = st.text(max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(keys, values, max_size=4)


def strings_in(value: Any, path: JSONPath = ()) -> dict[JSONPath, str]:
    if isinstance(value, str):
        return {path: readable(value, 0)} if value else {}
    parts = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value) if isinstance(value, list) else parts
    strings: dict[JSONPath, str] = {}
    for key, child in parts:
        key = readable(key, 0) if isinstance(key, str) else key
        strings |= strings_in(child, (*path, key))
    return strings


def decode_pieces(*pieces: str) -> dict[JSONPath, str]:
    decoder, found = JSONStrings(), dict[JSONPath, str]()
    for piece in pieces:
        for path, text in decoder.feed(piece):
            found[path] = found.get(path, "") + text
    assert not decoder.broken
    return found


@settings(max_examples=60)
@given(value=objects, ascii=st.booleans(), indent=st.sampled_from([None, 1]))
def test_json_cut_into_any_pieces_has_the_strings_that_json_loads_finds(
    value: Any, ascii: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    text = readable(text, 0)
    right = strings_in(json.loads(text))
    assert decode_pieces(*text) == right
    for cut in range(len(text)):
        assert decode_pieces(text[:cut], text[cut:]) == right


@settings(max_examples=100)
@given(value=objects, data=st.data())
def test_text_that_json_loads_refuses_is_broken(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from('{}[]",:\\x1-. \n')) + text[at + 1 :]

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key comes twice")
        return dict(pairs)

    try:
        right = json.loads(text, object_pairs_hook=once)
    except ValueError:
        right = None
    decoder = JSONStrings()
    decoder.feed(text)
    decoder.feed("}")  # the end of what is cut off, or one too many
    if isinstance(right, dict):
        assert decoder.broken
        assert decode_pieces(text) == strings_in(right)


@pytest.mark.parametrize(
    "text",
    [
        *("```json\n{}", "Sure: {}", "[1]", '"a"', '{"a": 1, "a": 2}', '{"a": tru}', '{"a": 01}'),
        *('{"a" "b"}', '{"a": "\n"}', '{"a": "\\x"}', '{"a": "\\u12g4"}', "{} {}", "{,}", "[}"),
        '{"a": ' + "[" * 300,
    ],
)
def test_a_broken_json_object_yields_no_further_strings(text: str) -> None:
    decoder = JSONStrings()
    for char in text:
        decoder.feed(char)
    assert decoder.broken
    assert decoder.feed('{"a": "b"}') == []


# --- places -------------------------------------------------------------------------------------


@given(within=st.lists(st.text(max_size=4) | st.integers(0, 999) | st.sampled_from("/.[]()\"'")))
def test_a_place_inside_a_value_survives_being_written_and_parsed(within: list[str | int]) -> None:
    place = Place("", 1, "Report", "sections", "", 0, tuple(within))
    try:
        str(place).encode()
    except UnicodeEncodeError:
        return
    assert Place.parse(str(place)) == place
    assert str(place).count("/") == 0


# --- fields -------------------------------------------------------------------------------------


class Pieces(Backend):
    """Streams its answers in pieces, and waits for `go` between them."""

    def __init__(self, *answers: Any, size: int = 3, **options: Any) -> None:
        super().__init__(retries=0, **options)
        self.answers = list(answers)
        self.size = size
        self.prompts: list[Prompt] = []

    async def answer(self, prompt: Prompt) -> Answer:
        self.prompts.append(prompt)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return await answer(prompt)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        for at in range(0, len(text), self.size):
            tell(text[at : at + self.size])
            await asyncio.sleep(0)
        return Answer(text)


class Section(BaseModel):
    title: str
    lines: list[str] = []


class Ask(Node):
    about: str = "rain"

    async def __call__(self) -> Article: ...


class Article(EndNode):
    headline: str = Field(max_length=10)
    sections: list[Section] = []
    notes: dict[str, str] = {}
    size: int = 0


ASKING = Graph(start=Ask)
WHOLE = {
    "headline": "Rain é",
    "sections": [{"title": "One 😀", "lines": ["a", "b\nc"]}],
    "notes": {"x/y": "z"},
    "size": 3,
}
TEXTS = {
    "1:Article.headline": "Rain é",
    "1:Article.sections[0].title": "One 😀",
    "1:Article.sections[0].lines[0]": "a",
    "1:Article.sections[0].lines[1]": "b\nc",
    '1:Article.notes["x\\u002fy"]': "z",
}


async def follow(graph: Graph[Any, Any], start: Node, lm: Any, **options: Any) -> Seen:
    seen = Seen()
    async with asyncio.timeout(BOUND), graph.stream(start, lm, **options) as records:
        async for record in records:
            seen.add(record)
    return seen


@settings(max_examples=30)
@given(size=st.integers(1, 60))
async def test_every_string_of_an_answer_has_its_place_and_text_however_it_is_cut(
    size: int,
) -> None:
    seen = await follow(ASKING, Ask(), Pieces(WHOLE, size=size))
    assert seen.now == TEXTS
    place = seen.places["1:Article.sections[0].lines[1]"]
    assert place == Place("", 1, "Article", "sections", "", 0, ("lines", 1))
    assert seen.kinds[0] == "AnswerBegan"


async def test_text_is_available_before_the_answer() -> None:
    seen = Seen()

    async def halting(prompt: Prompt) -> Answer:
        tell('{"headline": "Ra')
        await seen.wait(lambda seen: seen.now == {"1:Article.headline": "Ra"})
        tell('in"}')
        return Answer('{"headline": "Rain"}')

    with observing(seen):
        await ASKING.arun(Ask(), Pieces(halting))
    assert seen.now == {"1:Article.headline": "Rain"}
    assert seen.deltas == [("1:Article.headline", "Ra"), ("1:Article.headline", "in")]


async def test_many_small_pieces_become_few_records() -> None:
    text = json.dumps({"headline": "x" * 9, "notes": {"a": "word " * 4_000}})
    seen = Seen()

    async def quick(prompt: Prompt) -> Answer:
        for at in range(0, len(text), 4):
            tell(text[at : at + 4])
        return Answer(text)

    with observing(seen):
        await ASKING.arun(Ask(), Pieces(quick))
    assert seen.now["1:Article.notes.a"] == "word " * 4_000
    assert len(seen.deltas) < 20


async def test_a_run_without_a_follower_records_no_text() -> None:
    result = await ASKING.arun(Ask(), Pieces(WHOLE))
    assert not result.journal.of(FieldText)
    assert not result.journal.of(AnswerBegan)


async def test_fields_of_an_llm_that_does_not_stream_arrive_together() -> None:
    async def whole(prompt: Prompt) -> Answer:
        return Answer(json.dumps(WHOLE))

    async def parsed(prompt: Prompt) -> Answer:
        return Answer(value=WHOLE)

    for lm in (Pieces(whole), Pieces(parsed), ScriptedLM({Article: WHOLE})):
        seen = await follow(ASKING, Ask(), lm)
        assert seen.now == TEXTS
        assert len(seen.deltas) == len(TEXTS)
        assert "AnswerBegan" not in seen.kinds


async def test_text_streamed_from_a_thread_is_accepted() -> None:
    async def threaded(prompt: Prompt) -> Answer:
        await asyncio.to_thread(lambda: (tell('{"headline": '), tell('"Rain"}')))
        return Answer('{"headline": "Rain"}')

    seen = await follow(ASKING, Ask(), Pieces(threaded))
    assert seen.now == {"1:Article.headline": "Rain"}
    assert threading.active_count() > 0


# --- what is void -------------------------------------------------------------------------------


async def test_a_wrong_answer_voids_only_its_wrong_fields() -> None:
    wrong = {**WHOLE, "headline": "much too long for it"}
    seen = await follow(ASKING, Ask(), Pieces(wrong, {"headline": "Rain é"}))
    assert seen.now == TEXTS
    [voided] = [record for record in seen.records if isinstance(record, TextVoided)]
    assert [str(place) for place in voided.places] == ["1:Article.headline"]
    attempts = [record.attempt for record in seen.records if isinstance(record, FieldText)]
    assert {*attempts[:-1]} == {1}
    assert attempts[-1] == 2
    order = seen.kinds
    assert order.index("TextVoided") > order.index("AnswerJudged")


async def test_a_wrong_answer_that_did_not_stream_still_shows_its_valid_fields() -> None:
    async def whole(prompt: Prompt) -> Answer:
        return Answer(json.dumps({**WHOLE, "headline": "much too long for it"}))

    seen = await follow(ASKING, Ask(), Pieces(whole, {"headline": "Rain é"}))
    assert seen.now == TEXTS
    assert "TextVoided" not in seen.kinds


@pytest.mark.parametrize("text", ["Sure! " + json.dumps(WHOLE), '{"headline": "Rain", "headline"'])
async def test_an_answer_that_is_not_json_has_no_text_or_void_text(text: str) -> None:
    seen = await follow(ASKING, Ask(), Pieces(text, WHOLE))
    assert seen.now == TEXTS


async def test_the_last_value_of_a_repeated_key_wins() -> None:
    text = '{"headline": "one", "notes": {"a": "b"}, "headline": "two"}'
    seen = await follow(ASKING, Ask(), Pieces(text))
    assert seen.now == {"1:Article.headline": "two", "1:Article.notes.a": "b"}


async def test_all_text_of_a_question_that_fails_is_void() -> None:
    too_long = {"headline": "much too long for it", "notes": {"a": "b"}}
    seen = Seen()
    with observing(seen), pytest.raises(BaeError):
        await ASKING.arun(Ask(), Pieces(*[too_long] * 3))
    assert seen.deltas
    assert seen.now == {}


async def test_a_retried_or_timed_out_request_voids_its_text() -> None:
    seen = Seen()

    async def breaks(prompt: Prompt) -> Answer:
        tell('{"headline": "No')
        await seen.wait(lambda seen: seen.now == {"1:Article.headline": "No"})
        raise ConnectionError("gone")

    async def hangs(prompt: Prompt) -> Answer:
        tell('{"headline": "Nor')
        await asyncio.Event().wait()
        raise AssertionError

    lm = Pieces(breaks, hangs, WHOLE)
    with observing(seen):
        await ASKING.arun(Ask(), Retry(Timeout(lm, 0.3), first=0.0))
    assert seen.now == TEXTS
    voided = [record.attempt for record in seen.records if isinstance(record, TextVoided)]
    assert voided == [1, 2]
    assert [record.attempt for record in seen.records if isinstance(record, AnswerBegan)] == [
        1,
        2,
        3,
    ]


async def test_policies_pass_streamed_text_through_and_a_cached_answer_has_all_its_text() -> None:
    lm = Cached(Concurrency(Budgeted(Retry(Pieces(WHOLE)), Budget(calls=3)), 1))
    first = await follow(ASKING, Ask(), lm)
    again = await follow(ASKING, Ask(), lm)
    assert first.now == again.now == TEXTS
    assert "AnswerBegan" in first.kinds
    assert "AnswerBegan" not in again.kinds


async def test_text_that_a_backend_discards_is_void() -> None:
    seen = Seen()

    async def discards(prompt: Prompt) -> Answer:
        tell("I will")
        await seen.wait(lambda seen: seen.now)
        tell(Discard())
        assert seen.now == {}
        tell("It rains.")
        return Answer("It rains.")

    with observing(seen):
        await Graph(start=Write).arun(Write(), Pieces(discards))
    assert seen.now == {"1:Letter.text": "It rains."}


class Write(Node):
    async def __call__(self) -> Letter: ...


class Letter(EndNode):
    text: Annotated[str, Text()]


async def test_free_text_streams_unchanged() -> None:
    seen = await follow(Graph(start=Write), Write(), Pieces('It {"rains".'))
    assert seen.now == {"1:Letter.text": 'It {"rains".'}


# --- what may not be shown ----------------------------------------------------------------------


class Login(BaseModel):
    name: str
    password: SecretStr


class Account(EndNode):
    name: str
    token: SecretStr
    pin: str = Field(repr=False)
    login: Login


class Register(Node):
    async def __call__(self) -> Account: ...


async def test_a_field_that_may_not_be_shown_never_streams() -> None:
    answer = {
        "name": "Ana",
        "token": "s3cret",
        "pin": "s3cret",
        "login": {"name": "ana", "password": "s3cret"},
    }

    async def thinks_of_it(prompt: Prompt) -> Answer:
        tell(Thought("the token is s3cret"))
        return Answer(json.dumps(answer))

    for answering in (answer, thinks_of_it):
        seen = await follow(Graph(start=Register), Register(), Pieces(answering))
        assert seen.now == {"1:Account.name": "Ana"}
        shown = [
            record
            for record in seen.records
            if isinstance(record, FieldText | Thinking | TextVoided)
        ]
        assert "s3cret" not in repr(shown)


# --- which question it is of --------------------------------------------------------------------


class Choose(Node):
    async def __call__(self) -> Article | Letter | None: ...


async def test_a_filled_choice_streams_only_its_fields() -> None:
    graph = Graph(start=Choose)
    first = {"answer": {"choice": "Article", "fields": WHOLE}}
    late = {"answer": {"fields": WHOLE, "choice": "Article"}}
    for answer in (first, late):
        seen = await follow(graph, Choose(), Pieces(answer))
        assert seen.now == TEXTS
    wrong = {"answer": {"choice": "Article", "fields": {**WHOLE, "headline": "x" * 11}}}
    seen = await follow(graph, Choose(), Pieces(wrong, {"headline": "Rain é"}))
    assert seen.now == TEXTS
    seen = await follow(graph, Choose(), Pieces({"answer": {"choice": "Letter"}}, "Dear"))
    assert seen.now == {"1:Letter.text": "Dear"}


class Summary(EndNode):
    text: str


class Read(Node):
    line: str

    async def __call__(self) -> Summary: ...


async def judge(line: str, lm: LM) -> Summary:
    return await lm.make(Read(line=line), Summary)


class Digest(EndNode):
    lines: list[str]
    summaries: Annotated[list[Summary], Map(Graph(start=Read), over="lines")]
    judged: Annotated[list[Summary], Map(judge, over="lines")]
    first: Annotated[Summary, Dep()]
    second: Annotated[Summary, Dep()]


async def test_concurrent_questions_have_their_own_places() -> None:
    lm = Pieces(*[{"text": "short"}] * 6)
    seen = await follow(Graph(start=Digest), Digest(lines=["a", "b"]), lm)
    assert seen.now == dict.fromkeys(
        [
            "0:Digest.summaries[0]/1:Summary.text",
            "0:Digest.summaries[1]/1:Summary.text",
            "0:Digest.judged[0]/0:Summary.text",
            "0:Digest.judged[1]/0:Summary.text",
            "0:Digest.first/0:Summary.text",
            "0:Digest.second/0:Summary.text",
        ],
        "short",
    )
    assert all(Place.parse(place) is not None for place in seen.now)


class Begin(Node):
    async def __call__(self, lm: LM) -> Summary:
        drafts = await asyncio.gather(*(lm.make(self, Summary) for _ in range(2)))
        return Summary(text="".join(draft.text for draft in drafts))


async def test_every_question_of_a_body_has_its_own_place() -> None:
    seen = await follow(Graph(start=Begin), Begin(), Pieces({"text": "a"}, {"text": "b"}))
    assert {*seen.now} == {"0:Begin/0:Summary.text", "0:Begin/1:Summary.text"}
    assert {*seen.now.values()} == {"a", "b"}


async def test_text_of_a_retried_graph_is_void() -> None:
    def fail_once() -> int:
        failed.append(1)
        if len(failed) == 1:
            raise ConnectionError("try again")
        return 1

    class Ends(EndNode):
        number: Annotated[int, Dep(fail_once)]

    class Drafts(Node):
        text: str

        async def __call__(self) -> Ends: ...

    class Starts(Node):
        async def __call__(self) -> Drafts: ...

    class Uses(EndNode):
        ends: Annotated[Ends, Dep(Graph(start=Starts), retries=1)]

    failed: list[int] = []
    seen = await follow(Graph(start=Uses), Uses(), Pieces({"text": "one"}, {"text": "two"}))
    assert seen.now == {"0:Uses.ends/1:Drafts.text": "two"}
    assert "TextVoided" in seen.kinds


def look() -> str:
    """Look."""
    return "rain"


class Answered(EndNode):
    calls: Annotated[list[ToolCall], Tools(look)]
    text: Annotated[str, Text()]


class Wonder(Node):
    async def __call__(self) -> Answered: ...


async def test_a_conversation_with_tools_streams_only_its_answer() -> None:
    rounds = [
        {"next_step": {"action": "look"}},
        {"next_step": {"action": "answer", "text": "It rains."}},
    ]
    seen = await follow(Graph(start=Wonder), Wonder(), Pieces(*rounds))
    assert seen.now == {"1:Answered.text": "It rains."}
    scripted = ScriptedLM({Answered: [Call("look"), Streamed("It rains.", thinking="Hm.")]})
    seen = await follow(Graph(start=Wonder), Wonder(), scripted)
    assert seen.now == {"1:Answered": "Hm.", "1:Answered.text": "It rains."}
    (judged,) = [record for record in seen.records if isinstance(record, AnswerJudged)]
    assert judged.attempt.thinking == "Hm."


# --- thinking -----------------------------------------------------------------------------------


class Twice(Node):
    async def __call__(self) -> Middle: ...


class Middle(Node):
    text: str

    async def __call__(self) -> Summary: ...


async def test_thinking_streams_without_entering_prompts_or_journals() -> None:
    def thinking(text: str) -> Callable[[Prompt], Any]:
        async def answer(prompt: Prompt) -> Answer:
            tell(Thought("hush "))
            tell(Thought("hush"))
            tell(json.dumps({"text": text}))
            return Answer(json.dumps({"text": text}))

        return answer

    lm = Pieces(thinking("a"), thinking("b"))
    async with MemoryJournal() as journal:
        seen = await follow(Graph(start=Twice), Twice(), lm, journal=journal, run_id="one")
        stored = await journal.read("one")
    assert seen.now == {
        "1:Middle": "hush hush",
        "1:Middle.text": "a",
        "2:Summary": "hush hush",
        "2:Summary.text": "b",
    }
    assert not any("hush" in str(prompt) for prompt in lm.prompts)
    assert not any("hush" in str(line) for line in stored.lines)
    kinds = {line.kind for line in stored.lines}
    assert kinds.isdisjoint({"FieldText", "Thinking", "TextVoided", "AnswerBegan"})


def thinks(*thoughts: str, fails: bool = False) -> Callable[[Prompt], Any]:
    async def answer(prompt: Prompt) -> Answer:
        for thought in thoughts:
            tell(Thought(thought))
        if fails:
            raise BaeLMError("busy", retryable=True)
        return Answer('{"text": "short"}')

    return answer


async def thinking_in(journal: MemoryJournal, run_id: str) -> list[str]:
    lines = (await journal.read(run_id)).lines
    judged = [json.loads(line.data) for line in lines if line.kind == "AnswerJudged"]
    return [attempt["thinking"] for attempt in judged if "thinking" in attempt]


async def test_a_journal_stores_thinking_if_configured_and_a_redaction_removes_it() -> None:
    graph, start = Graph(start=Read), Read(line="a")
    failed = thinks("of a request that fails", fails=True)
    for prompts in (True, False):
        async with MemoryJournal(thinking=True, prompts=prompts) as journal:
            lm = Retry(Pieces(failed, thinks("hush ", "hush")), first=0.0)
            run = await graph.arun(start, lm, journal=journal, run_id="one")
            assert await thinking_in(journal, "one") == ["hush hush"]
            [judged] = run.journal.of(AnswerJudged)
            assert judged.attempt.thinking == "hush hush"
            [answer] = (await journal.why("one", "Summary.text")).attempts
            assert answer.thinking == "hush hush"
            await journal.redact("one", "Read.line")
            assert "hush" not in "".join(line.data for line in (await journal.read("one")).lines)


async def test_a_journal_keeps_the_thinking_of_all_rounds_with_the_answer_after_them() -> None:
    async def calls(prompt: Prompt) -> Answer:
        tell(Thought("What is it?"))
        return Answer('{"next_step": {"action": "look"}}')

    async def answers(prompt: Prompt) -> Answer:
        tell(Thought("Rain."))
        return Answer('{"next_step": {"action": "answer", "text": "It rains."}}')

    async with MemoryJournal(thinking=True) as journal:
        lm = Pieces(calls, answers)
        await Graph(start=Wonder).arun(Wonder(), lm, journal=journal, run_id="one")
        assert await thinking_in(journal, "one") == ["What is it?\n\nRain."]


async def test_thinking_about_a_secret_is_not_stored() -> None:
    async def answer(prompt: Prompt) -> Answer:
        tell(Thought("the token is s3cret"))
        values = {"name": "Ana", "token": "s3cret", "pin": "s3cret"}
        return Answer(json.dumps({**values, "login": {"name": "a", "password": "s3cret"}}))

    graph = Graph(start=Register)
    async with MemoryJournal(thinking=True) as journal:
        await graph.arun(Register(), Pieces(answer), journal=journal, run_id="one")
        assert "s3cret" not in "".join(line.data for line in (await journal.read("one")).lines)


async def test_a_cached_answer_has_no_thinking() -> None:
    lm = Cached(Pieces(thinks("hush")))
    for thoughts in (["hush"], []):
        async with MemoryJournal(thinking=True) as journal:
            graph = Graph(start=Read)
            await graph.arun(Read(line="a"), lm, journal=journal, run_id="one")
            assert await thinking_in(journal, "one") == thoughts


async def test_thinking_of_a_request_that_fails_is_void() -> None:
    script = {Summary: Streamed({"text": "short"}, thinking="Hm.", restarts=1, pause=0.06)}
    seen = await follow(Graph(start=Read), Read(line="a"), ScriptedLM(script))
    assert seen.now == {"1:Summary": "Hm.", "1:Summary.text": "short"}
    assert [type(record) for record in seen.records if isinstance(record, Thinking)]
    assert seen.kinds.count("AnswerRestarted") == 1
    assert seen.kinds.count("TextVoided") == 1


async def test_thinking_of_a_wrong_answer_is_void_and_every_answer_keeps_its_own() -> None:
    script = {
        Article: [
            Streamed({"headline": "much too long for it"}, thinking="Long."),
            Streamed({"headline": "Rain"}, thinking="Short."),
        ]
    }
    async with MemoryJournal(thinking=True) as journal:
        lm = ScriptedLM(script)
        seen = await follow(ASKING, Ask(), lm, journal=journal, run_id="one")
        assert seen.now == {"1:Article": "Short.", "1:Article.headline": "Rain"}
        assert ("1:Article", "Long.") in seen.deltas
        assert await thinking_in(journal, "one") == ["Long.", "Short."]


async def test_stored_thinking_stays_with_its_answer_and_out_of_prompts() -> None:
    graph = Graph(start=Twice)

    def lm(*answers: Any) -> Pieces:
        made.append(Pieces(*answers))
        return made[-1]

    made: list[Pieces] = []
    file = io.StringIO()
    async with MemoryJournal(thinking=True) as journal:
        failing = lm(thinks("hush"), BaeLMError("no luck"))
        with pytest.raises(BaeLMError):
            await graph.arun(Twice(), failing, journal=journal, run_id="one", thread="t")
        await graph.resume("one", lm(thinks("more hush")), journal=journal)
        fork = await graph.fork("one", at=1, journal=journal, new_id="two", thread="t")
        await graph.resume(fork, lm(thinks("hush too")), journal=journal)
        await graph.replay("two", journal=journal)
        assert await thinking_in(journal, "one") == ["hush", "more hush"]
        assert await thinking_in(journal, "two") == ["hush", "hush too"]
        await journal.export(file, thread="t")
    file.seek(0)
    async with MemoryJournal() as other:  # what was stored is copied; nothing is added
        await other.load(file)
        assert await thinking_in(other, "one") == ["hush", "more hush"]
        await graph.arun(Twice(), lm(*[thinks("hush")] * 2), journal=other, run_id="three")
        assert await thinking_in(other, "three") == []
    assert not any("hush" in str(prompt) for lm in made for prompt in lm.prompts)


# --- scripts ------------------------------------------------------------------------------------


async def test_a_script_streams_its_answers() -> None:
    script = [Streamed({"text": "word by word"}, size=8, pause=0.06)]
    seen = await follow(Graph(start=Read), Read(line="a"), ScriptedLM(script))
    assert "".join(text for _, text in seen.deltas) == "word by word"
    assert len(seen.deltas) > 1
    assert [type(record) for record in seen.records if isinstance(record, StepStarted)]


def test_a_scripted_stream_with_an_impossible_piece_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size"):
        Streamed({}, size=0)
