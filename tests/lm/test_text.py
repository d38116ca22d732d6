"""Free text: a field that the LM answers in plain text instead of JSON, with or without a function
that parses it."""

from __future__ import annotations

import ast
import asyncio
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from asked_nodes import attempts_of
from bae import LM, Dep, FillError, Graph, Map, Node, NodeError, Recall, Text
from bae.journal import AnswerJudged, SQLiteJournal
from bae.lm import Answer, Cached, LearnedPrompt, NodePrompts, PromptExample, WithPrompts
from bae.prompts.questions import SYSTEM
from bae.testing import ScriptedLM
from bounded import run
from end_node import EndNode
from toy_backend import ToyBackend, choose, route

POEM = 'Roses are "red",\n{violets} are \\blue.\n'


class Topic(Node):
    word: str

    async def __call__(self) -> Poem: ...


class Poem(EndNode):
    body: Annotated[str, Text()]


# Asking


async def test_a_text_field_gets_the_answer_unchanged():
    lm = ToyBackend(POEM)
    result = await run(Topic(word="roses"), lm)

    assert result.result == Poem(body=POEM)
    (asked,) = lm.prompts
    assert asked.schema is None
    assert asked.text == 'Poem\n\n{"Topic":{"word":"roses"}}\n\nAnswer in plain text, not in JSON.'
    assert "JSON object" in SYSTEM
    assert "JSON object" not in asked.system
    assert attempts_of(result) == [(1, "valid", ())]


class Slogan(EndNode):
    text: Annotated[str, Text()] = Field(description="four  words\nat most", max_length=20)


class Pitch(Node):
    async def __call__(self) -> Slogan: ...


async def test_a_text_prompt_contains_the_field_description():
    lm = ToyBackend("s" * 21, "Just do it.")
    result = await run(Pitch(), lm)

    assert result.result == Slogan(text="Just do it.")
    ending = "Answer in plain text, not in JSON: at most 20 characters; four words at most"
    assert lm.prompts[0].text.endswith(ending)
    (turn,) = lm.prompts[1].corrections
    assert turn.answer == "s" * 21
    assert turn.correction == (
        "That was not valid:\n- text: String should have at most 20 characters\nAnswer again."
    )
    assert lm.prompts[1].schema is None


# Parsing


class Function(BaseModel):
    name: str
    source: str


def parse_function(text: str) -> Function:
    """The one function of a module."""
    match ast.parse(text).body:
        case [ast.FunctionDef(name=name)]:
            return Function(name=name, source=text)
        case found:
            raise ValueError(f"{len(found)} statements:\nwrite one function")


class Task(Node):
    wanted: str

    async def __call__(self) -> Code: ...


class Code(EndNode):
    function: Annotated[Function, Text(parse_function)] = Field(description="Python")


ADD = "def add(a, b):\n    return a + b\n"


async def test_an_exception_of_the_parser_is_sent_back_to_the_lm():
    lm = ToyBackend("def add(", "a = 1\nb = 2", ADD)
    result = await run(Task(wanted="a sum"), lm)

    assert result.result.function.name == "add"
    first, second = lm.prompts[2].corrections
    assert first.answer == "def add("
    assert first.correction.startswith("That was not valid:\n- function: SyntaxError: ")
    assert second.correction == (
        "That was not valid:\n- function: 2 statements:\nwrite one function\nAnswer again."
    )
    assert lm.rejected == lm.prompts[:2]
    assert [verdict for _, verdict, _ in attempts_of(result)] == ["invalid", "invalid", "valid"]


async def test_attempts_to_parse_a_text_are_bounded():
    with pytest.raises(FillError, match="3 answers, none valid: function: 2 statements") as caught:
        await run(Task(wanted="a sum"), ToyBackend(*["a = 1\nb = 2"] * 3))
    assert caught.value.code == "bae-fill-invalid"
    assert caught.value.attempts == 3
    (error,) = caught.value.validation_errors
    assert (error["loc"], error["type"]) == (("function",), "text_parsing")
    assert isinstance(caught.value.cause.__cause__, ValueError)


class Opaque:
    def __init__(self, text: str) -> None:
        self.text = text


class Live(EndNode):
    opaque: Annotated[Opaque, Text(Opaque)]


class Count(EndNode):
    number: Annotated[int, Text(int), Field(strict=True)]


async def test_a_parsed_text_may_be_of_any_type():
    assert (await ToyBackend("anything").fill(Live, {}, "Live")).opaque.text == "anything"
    lm = ToyBackend("seven", "7")
    assert await lm.fill(Count, {}, "Count") == Count(number=7)
    assert "number: invalid literal for int()" in lm.prompts[1].corrections[0].correction


# Answers that are no text


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (Answer(" \n"), "bae-fill-empty", "That was no answer. Answer in plain text, not in JSON."),
        (
            Answer("Roses are", stop="cut-off"),
            "bae-fill-cut-off",
            "That was cut off for its length. Answer again, and shorter.",
        ),
        (
            Answer("half \ud83d"),
            "bae-fill-invalid",
            "That was not valid:\n- body: character 5 is half of a surrogate pair\nAnswer again.",
        ),
    ],
)
async def test_an_answer_without_a_complete_text_is_asked_for_again(
    given: Answer, code: str, said: str
):
    lm = ToyBackend(given, POEM)
    assert (await run(Topic(word="x"), lm)).result.body == POEM
    assert lm.prompts[1].corrections[0].correction == said
    with pytest.raises(FillError) as caught:
        await run(Topic(word="x"), ToyBackend(given, given, given))
    assert caught.value.code == code


# Beside other fields, in choices and in bodies


async def find_rhymes() -> list[str]:
    return ["dead", "bed"]


def count_letters(line: str) -> int:
    return len(line)


class Rhymed(EndNode):
    word: Annotated[str, Recall()]
    rhymes: Annotated[list[str], Dep(find_rhymes)]
    lines: Annotated[list[str], Text(str.splitlines)]
    lengths: Annotated[list[int], Map(count_letters, over="lines")]


class Wish(Node):
    word: str

    async def __call__(self) -> Rhymed: ...


async def test_a_map_works_on_the_parsed_value():
    lm = ToyBackend("one\nthree")
    result = await run(Wish(word="red"), lm)
    assert result.result.lines == ["one", "three"]
    assert result.result.lengths == [3, 5]
    assert '{"Wish":{"word":"red"},"context":{"rhymes":["dead","bed"]}}' in lm.prompts[0].text


class Refusal(EndNode):
    reason: str


class Request(Node):
    word: str

    async def __call__(self) -> Poem | Refusal: ...


async def test_a_chosen_node_with_a_text_field_is_filled_in_a_second_call():
    lm = ToyBackend(route("Refusal", reason="no"))
    assert (await run(Request(word="x"), lm)).result == Refusal(reason="no")

    lm = ToyBackend(route("Poem"), POEM)
    result = await run(Request(word="x"), lm)
    assert result.result == Poem(body=POEM)
    choice, fill = lm.prompts
    assert choice.question.fillable == (Refusal,)
    assert choice.schema is not None
    assert fill.schema is None


class Editor(Node):
    word: str

    async def __call__(self, lm: LM) -> Poem:
        return await lm.make(self, Poem)


class Fork(Node):
    async def __call__(self, lm: LM) -> Poem | Code | None:
        return await lm.decide(Fork())  # pyright: ignore[reportReturnType]


async def test_a_body_can_make_a_node_with_a_text_field():
    assert (await run(Editor(word="x"), ToyBackend(POEM))).result == Poem(body=POEM)
    lm = ToyBackend(choose("Code"), ADD)
    assert (await run(Fork(), lm)).result.function.name == "add"


class Twice(EndNode):
    body: Annotated[str, Text()]
    title: str


# Streaming, policies, journal


class Settled(ScriptedLM):
    settings: dict[str, Any] = {}


@pytest.mark.parametrize(
    "inner", [ToyBackend(POEM), Settled([{"body": POEM}])], ids=["backend", "lm"]
)
async def test_a_cache_repeats_a_text_answer(tmp_path: Path, inner: Any):
    lm = Cached(inner, tmp_path / "answers.sqlite")
    for _ in range(2):
        assert (await run(Topic(word="x"), lm)).result == Poem(body=POEM)
    assert lm.statistics().hits == 1
    await lm.aclose()


async def test_a_cache_stores_the_unparsed_text_of_a_backend():
    lm = Cached(ToyBackend("def f(", ADD, ADD))
    for _ in range(3):
        assert (await run(Task(wanted="x"), lm)).result.function.name == "add"
    assert lm.statistics().hits == 1  # the text that could not be parsed was dropped

    lm = Cached(ScriptedLM([{"function": Function(name="f", source="")}, ADD]))
    for name in ("f", "add"):
        assert (await run(Task(wanted="x"), lm)).result.function.name == name
    assert lm.statistics().unstored == 2


async def test_a_run_is_recorded_resumed_and_replayed(tmp_path: Path):
    async with SQLiteJournal(tmp_path / "runs.sqlite") as journal:
        graph = Graph(start=Task)
        lm = ToyBackend("def f(", ADD)
        done = await graph.arun(Task(wanted="x"), lm, journal=journal)
        assert done.run_id is not None
        again = await graph.replay(done.run_id, journal=journal)
        assert again.result == done.result
        resumed = await graph.resume(done.run_id, journal=journal, lm=ToyBackend())
        assert resumed.result == done.result
        judged = resumed.journal.of(AnswerJudged)
        assert [record.attempt.answer for record in judged] == ["def f(", ADD]


class Vault(EndNode):
    word: Annotated[SecretStr, Text()]


class Guess(Node):
    async def __call__(self) -> Vault: ...


def test_a_secret_text_is_not_stored(tmp_path: Path):
    async def record() -> None:
        async with SQLiteJournal(tmp_path / "runs.sqlite") as journal:
            done = await run(Guess(), ToyBackend("open sesame"), journal=journal)
            assert done.result.word.get_secret_value() == "open sesame"

    asyncio.run(record())
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"Vault" in stored
    assert b"sesame" not in stored


# Few-shot examples and scripts


async def test_learned_prompts_show_their_examples_in_plain_text():
    example = PromptExample({"Topic": {"word": "sea"}}, {"body": "The sea\n"})
    inner = ToyBackend(POEM)
    lm = WithPrompts(inner, {Poem: NodePrompts(fill=LearnedPrompt("Rhyme.", (example,)))})
    assert (await run(Topic(word="x"), lm)).result.body == POEM
    (shown,) = inner.prompts[0].examples
    ending = "\n\nAnswer in plain text, not in JSON."
    assert shown.asked == f'Rhyme.\n\n{{"Topic":{{"word":"sea"}}}}{ending}'
    assert shown.answer == "The sea\n"
    assert inner.prompts[0].text == f'Rhyme.\n\n{{"Topic":{{"word":"x"}}}}{ending}'


async def test_a_script_can_contain_the_text_or_the_parsed_values():
    lm = ScriptedLM({Code: ["def f(", ADD]})
    result = await run(Task(wanted="x"), lm)
    assert result.result.function.name == "add"
    assert lm.asked[1].errors[0].startswith("function: SyntaxError")
    assert [verdict for _, verdict, _ in attempts_of(result)] == ["invalid", "valid"]

    values = {"function": Function(name="f", source="")}
    assert (await run(Task(wanted="x"), ScriptedLM([values]))).result == Code(**values)
    assert (await run(Request(word="x"), ScriptedLM(["Poem", POEM]))).result.body == POEM


# The proof


def make_day(text: str) -> date:
    return date.fromisoformat(text)


async def make_late(text: str) -> str:
    return text


def make_of_bytes(text: bytes) -> str:
    return text.decode()


def make_of_two(text: str, other: str) -> str:
    return text + other


def field(annotation: Any, **more: Any) -> list[tuple[str, str]]:
    async def call(self: Node) -> None: ...

    body = {"__annotations__": {"body": annotation, **more}, "__call__": call}
    call.__annotations__ = {"return": None}
    made = type("Made", (Node,), {**body, "__module__": __name__})
    problems = Graph(start=made).validate()
    return [(problem.code, problem.place) for problem in problems]


@pytest.mark.parametrize(
    ("annotation", "code"),
    [
        (Annotated[str, Text()], None),
        (Annotated[str | None, Text()], None),
        (Annotated[date, Text(make_day)], None),
        (Annotated[int, Text(int)], None),
        (Annotated[list[str], Text(str.splitlines)], None),
        (Annotated[int, Text()], "bae-text-type"),
        (Annotated[str, Text(make_day)], "bae-text-type"),
        (Annotated[str, Text(make_late)], "bae-text-parse"),
        (Annotated[str, Text(make_of_bytes)], "bae-text-parse"),
        (Annotated[str, Text(make_of_two)], "bae-text-parse"),
        (Annotated[str, Text(), Recall()], "bae-field-sources"),
        (Annotated[str, Text], "bae-field-bare"),
        (list[Annotated[str, Text()]], "bae-field-buried"),
    ],
)
def test_validation_checks_the_type_and_the_parser_of_a_text_field(
    annotation: Any, code: str | None
):
    assert field(annotation) == ([] if code is None else [(code, "Made.body")])


def test_validation_requires_a_text_field_to_be_the_only_lm_field():
    assert field(Annotated[str, Text()], title=str) == [("bae-text-not-alone", "Made.body")]
    problems = Graph(start=Twice).validate()
    assert (
        "the LM answers it in plain text, so it cannot fill other fields of the node: title"
        in str(problems[0])
    )
    other = Annotated[str, Text()]
    assert field(other, more=other) == [("bae-text-not-alone", "Made.body")]


# Optimizing


def chorus(prompt: Any) -> str:
    """Says the last word that an example has for the topic, and otherwise nothing of use."""
    lines = [example.answer for example in prompt.examples]
    return lines[-1] if lines else "no idea"


async def test_the_optimizer_learns_from_text_fields():
    pytest.importorskip("dspy")
    from bae.optimizer import aoptimize_node, trace_to_examples
    from bae.optimizer.predictors import artifact_of

    results = [await run(Topic(word=f"w{n}"), ToyBackend(f"{n}\n")) for n in range(6)]
    examples = [example for result in results for example in trace_to_examples(result)]
    lm = ToyBackend(chorus)
    optimized = await aoptimize_node(Poem, examples, lm=lm, minimum=4, max_labeled_demos=3)
    assert {prompt.schema for prompt in lm.prompts} == {None}
    ending = "\n\nAnswer in plain text, not in JSON."
    assert all(prompt.text.endswith(ending) for prompt in lm.prompts)

    taught = WithPrompts(lm, {Poem: artifact_of(optimized).prompts()})
    said = (await run(Topic(word="w9"), taught)).result.body
    assert said in [f"{n}\n" for n in range(6)]
    assert lm.prompts[-1].examples[-1].answer == said


async def test_filling_an_invalid_class_outside_a_graph_is_refused():
    with pytest.raises(NodeError, match="cannot fill other fields of the node: title") as caught:
        await ToyBackend().fill(Twice, {}, "Twice")
    assert caught.value.code == "bae-text-not-alone"
