"""Values that a model never sees: secrets and fields with `repr=False`, at any depth and in every
copy that bae made, unless a node class shows them on purpose."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import pytest
from pydantic import (
    BaseModel,
    Field,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    WrapSerializer,
    computed_field,
    model_serializer,
)

from bae import LM, Dep, Graph, Map, Node, NodeConfig, Recall, Text
from bae.journal import MemoryJournal
from bae.lm import LearnedPrompt, NodePrompts, Prompt, PromptExample, WithPrompts
from bae.testing import ScriptedLM
from end_node import EndNode
from toy_backend import ToyBackend, route

MASK = "**********"
TOKEN = "hush-4711"  # in every hidden value


class Account(BaseModel):
    name: str
    token: str = Field(repr=False)


class Renamed(Account):
    name: str = Field(repr=False)


@dataclasses.dataclass
class Covered:
    name: str
    key: str = dataclasses.field(repr=False)


class Pin(RootModel[str]):
    root: str = Field(repr=False)


class Wrapped(BaseModel):
    word: str
    key: str = Field(repr=False)

    @model_serializer(mode="wrap")
    def write(self, write: Any) -> Any:
        return {**write(self), "more": 1}


def around(value: Any, write: Any) -> Any:
    return write(value)


class Out(EndNode):
    text: str


def known(prompt: Prompt) -> dict[str, Any]:
    return json.loads(prompt.text.partition("\n\n")[2])


def text_of(prompts: list[Prompt]) -> str:
    return "\n".join(map(str, prompts))


SHOWN: list[tuple[Any, Any, Any]] = [
    (Annotated[str, Field(repr=False)], TOKEN, MASK),
    (Annotated[int, Field(repr=False)], 4711, MASK),
    (Annotated[str | None, Field(repr=False)], None, None),
    (Annotated[list[str], Field(repr=False)], [TOKEN], MASK),
    (SecretStr, SecretStr(TOKEN), MASK),
    (SecretBytes, SecretBytes(TOKEN.encode()), MASK),
    (Secret[str], Secret[str](TOKEN), MASK),
    (Account, Account(name="a", token=TOKEN), {"name": "a", "token": MASK}),
    (Account, Renamed(name=TOKEN, token=TOKEN), {"name": MASK, "token": MASK}),
    (Covered, Covered("c", TOKEN), {"name": "c", "key": MASK}),
    (Pin, Pin(TOKEN), MASK),
    (Wrapped, Wrapped(word="w", key=TOKEN), {"word": "w", "key": MASK, "more": 1}),
    (list[Pin], [Pin(TOKEN)], [MASK]),
    (list[Account], [Account(name="a", token=TOKEN)], [{"name": "a", "token": MASK}]),
    (
        dict[str, tuple[Account | Covered, ...]],
        {"z": (Account(name="a", token=TOKEN), Covered("c", TOKEN))},
        {"z": [{"name": "a", "token": MASK}, {"name": "c", "key": MASK}]},
    ),
    (
        Annotated[list[Account], WrapSerializer(around)],
        [Account(name="a", token=TOKEN)],
        [{"name": "a", "token": MASK}],
    ),
    (Any, {"b": [Account(name="a", token=TOKEN)]}, {"b": [{"name": "a", "token": MASK}]}),
    (Any, Pin(TOKEN), MASK),
]


@pytest.mark.parametrize(("kind", "value", "shown"), SHOWN, ids=range(len(SHOWN)))
async def test_a_model_sees_a_mask_instead_of_a_hidden_value(kind: Any, value: Any, shown: Any):
    class Holder(Node):
        word: str = "w"
        held: kind

        async def __call__(self) -> Out: ...

    lm, graph = ToyBackend({"text": "t"}), Graph(start=Holder)
    await graph.arun(Holder(held=value), lm)

    assert known(lm.prompts[0]) == {"Holder": {"word": "w", "held": shown}}
    assert [prompt.text for prompt in graph.prompts(Holder(held=value))] == [lm.prompts[0].text]


def get_token() -> str:
    return TOKEN


def get_account() -> Account:
    return Account(name="a", token=TOKEN)


def lengthen(word: str) -> str:
    return word * 2


class Login(Node):
    user: str
    token: str = Field(repr=False)

    @computed_field(repr=False)
    @property
    def link(self) -> str:
        return f"https://{self.token}"

    async def __call__(self) -> Session | Refused: ...


class Session(Node):
    login: Annotated[Login, Recall()]
    token: Annotated[str, Recall(Login)]
    made: Annotated[str, Dep(get_token)] = Field(repr=False)
    made_too: Annotated[str, Dep(get_token)]
    account: Annotated[Account, Dep(get_account)]
    words: list[str] = Field(repr=False)
    longer: Annotated[list[str], Map(lengthen, over="words")] = Field(repr=False)
    pin: str = Field(repr=False, description="four digits")

    async def __call__(self) -> Closed: ...


class Refused(Node):
    why: str

    async def __call__(self) -> None: ...


class Closed(Node):
    pin: Annotated[str, Recall(Session)]
    words: str

    async def __call__(self, lm: LM) -> Out:
        return await lm.make(self, Out)


async def test_no_prompt_of_a_run_contains_a_hidden_value():
    lm = ToyBackend(
        {"choice": "Session"},
        {"words": [TOKEN], "pin": TOKEN},
        {"words": "bye"},
        {"text": "t"},
        one_call=False,
    )
    graph = Graph(start=Login, context="trace")
    start = Login(user="ada", token=TOKEN)
    result = await graph.arun(start, lm)

    assert result.trace[2].pin == TOKEN  # the program has it all
    choice, fill, closed, made = (known(prompt) for prompt in lm.prompts)
    login = {"user": "ada", "token": MASK, "link": MASK}
    account = {"name": "a", "token": MASK}
    context = {"login": login, "token": MASK, "made": MASK, "made_too": MASK, "account": account}
    assert choice == {"Login": login}
    assert fill == {"Login": login, "context": context}
    assert "four digits" in str(lm.prompts[1].schema)
    session = {**context, "words": MASK, "longer": MASK, "pin": MASK}
    assert closed["Session"] == session
    assert closed["before"] == [{"Login": login}]
    assert closed["context"] == {"pin": MASK}
    assert made["Closed"] == {"pin": MASK, "words": "bye"}
    assert TOKEN not in text_of(lm.prompts)
    assert TOKEN not in text_of(graph.prompts(start, *result.trace[1:3]))
    assert "sample Login.token" not in text_of(graph.prompts())


async def test_options_filled_with_the_choice_show_no_hidden_value():
    class First(Node):
        word: str = Field(repr=False)

        async def __call__(self) -> Second | Out: ...

    class Second(EndNode):
        word: Annotated[str, Recall(First)]
        text: str

    lm = ToyBackend(route("Second", text="t"))
    result = await Graph(start=First).arun(First(word=TOKEN), lm)

    assert result.trace[1].word == TOKEN
    assert known(lm.prompts[0]) == {"First": {"word": MASK}, "context": {"Second": {"word": MASK}}}


async def test_hidden_values_stay_hidden_inside_an_inner_graph():
    class Summary(EndNode):
        text: str

    class Begin(Node):
        page: str
        number: int = 1

        async def __call__(self) -> Summary: ...

    inner = Graph(start=Begin, end=Summary, system="Be brief.")

    class Outer(Node):
        diary: str = Field(repr=False)
        pages: list[str] = Field(repr=False)
        summary: Annotated[Summary, Dep(inner, page="diary")]
        summaries: Annotated[list[Summary], Map(inner, over="pages")]

        async def __call__(self) -> Later: ...

    class Later(EndNode):
        summary: Annotated[Summary, Dep(inner, cache=False, page=Recall(Outer))]
        text: str

    lm, graph = ToyBackend(lambda _: {"text": "t"}), Graph(start=Outer)
    start = Outer(diary=TOKEN, pages=[TOKEN])
    await graph.arun(start, lm)

    assert [known(prompt)["Begin"] for prompt in lm.prompts[:3]] == [
        {"page": MASK, "number": 1}
    ] * 3
    assert TOKEN not in text_of(graph.prompts(start))
    assert TOKEN not in text_of(lm.prompts)
    assert "Be brief." in text_of(lm.prompts[:1])


async def test_a_custom_choose_type_gets_masks_instead_of_hidden_values():
    class Own:
        def __init__(self, inner: ToyBackend) -> None:
            self.inner = inner

        async def make(self, node: Any, target: Any) -> Any:
            return await self.inner.make(node, target)

        async def decide(self, node: Any) -> Any:
            return await self.inner.decide(node)

        async def choose_type(self, types: Any, context: Any) -> Any:
            return await self.inner.choose_type(types, context)

        async def fill(
            self, target: Any, resolved: Any, instruction: str, source: Any = None
        ) -> Any:
            return await self.inner.fill(target, resolved, instruction, source)

    inner = ToyBackend({"choice": "Refused"}, {"why": "w"})
    await Graph(start=Login).arun(Login(user="ada", token=TOKEN), Own(inner))

    assert known(inner.prompts[0]) == {"context": {"user": "ada", "token": MASK}}
    assert TOKEN not in text_of(inner.prompts)
    scripted = ScriptedLM(["Refused", {"why": "w"}])
    await Graph(start=Login).arun(Login(user="ada", token=TOKEN), scripted)
    assert TOKEN not in text_of(scripted.prompts)


async def test_a_corrected_hidden_answer_is_masked_in_later_prompts():
    class Made(Node):
        pin: str = Field(repr=False, max_length=20)
        size: int

        async def __call__(self) -> Out: ...

    class Start(Node):
        word: str

        async def __call__(self) -> Made: ...

    lm = ToyBackend({"pin": TOKEN, "size": "x"}, {"size": 1}, {"text": "t"})
    await Graph(start=Start).arun(Start(word="w"), lm)

    assert known(lm.prompts[2]) == {"Made": {"pin": MASK, "size": 1}}


async def test_a_hidden_text_is_masked_in_later_prompts():
    class Written(Node):
        poem: Annotated[str, Text()] = Field(repr=False)

        async def __call__(self) -> Out: ...

    class Start(Node):
        word: str

        async def __call__(self) -> Written: ...

    lm = ToyBackend(TOKEN, {"text": "t"})
    await Graph(start=Start).arun(Start(word="w"), lm)

    assert known(lm.prompts[1]) == {"Written": {"poem": MASK}}


# Shown on purpose


class Shows(Node):
    node_config = NodeConfig(show=("token", "key", "account", "pins"))
    token: str = Field(repr=False)
    key: SecretStr
    account: Account
    pins: tuple[Secret[int], Pin]
    other: str = Field(repr=False)

    async def __call__(self) -> Out: ...


def shows() -> Shows:
    return Shows(
        token="t-1",
        key=SecretStr("k-2"),
        account=Account(name="a", token="a-3"),
        pins=(Secret[int](4), Pin("p-5")),
        other=TOKEN,
    )


CLEAR = {
    "token": "t-1",
    "key": "k-2",
    "account": {"name": "a", "token": "a-3"},
    "pins": [4, "p-5"],
    "other": MASK,
}


async def test_a_node_class_can_show_its_hidden_fields_to_the_model():
    lm, graph = ToyBackend({"text": "t"}), Graph(start=Shows)
    async with MemoryJournal() as journal:
        await graph.arun(shows(), lm, journal=journal, run_id="one")
        lines = (await journal.read("one")).lines

    assert known(lm.prompts[0]) == {"Shows": CLEAR}
    assert known(graph.prompts(shows())[0]) == {"Shows": CLEAR}
    stored = "".join(line.data for line in lines)
    for hidden in ("t-1", "k-2", "a-3", "p-5", TOKEN):
        assert hidden not in stored  # it is shown to the model, and to nothing else


async def test_a_recalled_secret_is_shown_if_its_own_class_shows_it():
    class First(Node):
        token: str = Field(repr=False)

        async def __call__(self) -> Second: ...

    class Second(EndNode):
        node_config = NodeConfig(show=("token",))
        token: Annotated[str, Recall(First)]
        text: str

    lm = ToyBackend({"text": "t"})
    await Graph(start=First).arun(First(token=TOKEN), lm)

    assert known(lm.prompts[0]) == {"First": {"token": MASK}, "context": {"token": TOKEN}}


def test_a_graph_that_shows_an_unknown_field_is_refused():
    class Wrong(Node):
        node_config = NodeConfig(show=("tokens",))
        token: str = Field(repr=False)

        async def __call__(self) -> Out: ...

    (problem,) = Graph(start=Wrong).validate()
    assert (problem.code, problem.place) == ("bae-show-unknown", "Wrong")
    assert "tokens" in problem.message
    assert "token" in problem.fix


@pytest.mark.parametrize("wrong", ["token", (), (1,), ["token"]])
def test_a_setting_that_names_no_fields_is_refused(wrong: Any):
    with pytest.raises(TypeError, match="give a tuple of field names"):
        NodeConfig(show=wrong)


def test_a_model_does_not_see_a_hidden_input():
    class Asked(Node):
        question: str = Field(repr=False)

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        word: str

        async def __call__(self) -> Last: ...

    class Last(EndNode):
        question: Annotated[str, Recall(Asked)] = Field(repr=False)
        text: str

    class Plainly(Asked):
        topic: str

    assert Graph(start=Asked).validate() == []  # there is nothing that a model could see
    (problem,) = Graph(start=Plainly).validate()
    assert problem.code == "bae-context-lost"


# Few-shot examples


def test_handwritten_examples_show_no_hidden_fields():
    dspy = pytest.importorskip("dspy")
    from bae.lm import OptimizedLM, node_to_signature

    class Reply(EndNode):
        token: Annotated[str, Dep(get_token)] = Field(repr=False)
        account: Annotated[Account, Dep(get_account)]
        text: str

    predictor = dspy.Predict(node_to_signature(Reply))
    account = Account(name="a", token=TOKEN)
    predictor.demos = [dspy.Example(token=TOKEN, account=account, text="t")]

    class Start(Node):
        word: str

        async def __call__(self) -> Reply: ...

    lm = OptimizedLM({Reply: predictor}, dspy.LM("openai/none", api_key="none"))
    (prompt,) = Graph(start=Start).prompts(lm=lm)
    assert len(prompt.examples) == 1
    assert TOKEN not in str(prompt)
    assert f'"account":{{"name":"a","token":"{MASK}"}}' in prompt.examples[0].asked


def test_a_learned_prompt_keeps_the_mask():
    class Start(Node):
        word: str = Field(repr=False)

        async def __call__(self) -> Out: ...

    example = PromptExample({"Start": {"word": MASK}}, {"text": "t"})
    lm = WithPrompts(ToyBackend(), {Out: NodePrompts(fill=LearnedPrompt("Write.", (example,)))})
    (prompt,) = Graph(start=Start).prompts(Start(word=TOKEN), lm=lm)
    assert TOKEN not in str(prompt)


class Defaulted(BaseModel):
    name: str = "x"
    key: str = Field(default=TOKEN, repr=False)


class Keyed(EndNode):
    made: Defaulted = Defaulted()
    renamed: str = Field(default=TOKEN, repr=False, alias="other")
    pin: str = Field(default=TOKEN, repr=False)
    text: str


@pytest.mark.parametrize("offers", [Keyed, Keyed | Out], ids=["fill", "choice"])
async def test_no_schema_has_the_default_of_a_hidden_field(offers):
    class Start(Node):
        async def __call__(self, lm: LM) -> offers: ...

    filled = {"text": "x"} if offers is Keyed else route("Keyed", text="x")
    lm = ToyBackend(filled)
    result = await Graph(start=Start).arun(Start(), lm)

    assert TOKEN not in json.dumps([prompt.schema for prompt in lm.prompts])
    assert TOKEN not in text_of(lm.prompts)
    assert (result.result.pin, result.result.made.key) == (TOKEN, TOKEN)
