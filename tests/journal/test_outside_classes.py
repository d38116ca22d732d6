"""Node classes that a body has an LM make and that are none of the graph's: what they look up
counts for the rest of the run, after a resume too, and their secrets stay out of journals."""

from __future__ import annotations

import io
import json
from functools import wraps
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from bae import LM, Dep, Graph, Map, Node, Recall, Usage
from bae.exceptions import JournalError, ReplayError
from bae.journal import MemoryJournal
from bae.journal.sqlite.lease import SQLiteClaim
from bae.lm import Answer
from bae.testing import ScriptedLM
from end_node import EndNode
from journal_graphs import Trouble, World, cut_journal
from toy_backend import ToyBackend

WORLD = World()


@pytest.fixture(autouse=True)
def world() -> World:
    WORLD.__init__()
    return WORLD


async def make_key() -> str:
    WORLD.done["key"] += 1
    return f"key-{WORLD.done['key']}"


async def sign(text: str, key: Annotated[str, Dep(make_key)]) -> str:
    WORLD.done["sign"] += 1
    return f"{text} signed with {key} #{WORLD.done['sign']}"


async def look_around() -> str:
    WORLD.done["around"] += 1
    return f"view {WORLD.done['around']}"


class Draft(EndNode):
    """Of no graph."""

    topic: Annotated[str, Recall()]
    key: Annotated[str, Dep(make_key)]
    signed: Annotated[str, Dep(sign, text="topic")]
    view: Annotated[str, Dep(look_around)]
    text: str


class Sketch(EndNode):
    """Of no graph either."""

    view: Annotated[str, Dep(look_around)]
    text: str


class Letter(Node):
    used: str
    topic: Annotated[str, Recall()]
    key: Annotated[str, Dep(make_key)]
    signed: Annotated[str, Dep(sign, text="topic")]

    async def __call__(self, lm: LM) -> Posted:
        sketch = await lm.make(self, Sketch)
        return Posted(used=self.used, last=f"{self.key}, {self.signed}, {sketch.view}")


class Posted(EndNode):
    used: str
    last: str


class Ask(Node):
    topic: str

    async def __call__(self, lm: LM) -> Letter:
        draft = await lm.make(self, Draft)
        return Letter(used=f"{draft.key}, {draft.signed}, {draft.view}")


LETTERS = Graph(start=Ask, end=Posted)
FILLED = {"text": "fine"}


async def check_every_cut(graph: Graph[Any, Any], start: Node, check: Any) -> None:
    """Run a graph, cut its journal after each line, resume it there, and replay what came out."""
    journal = MemoryJournal()
    lm = ToyBackend(lambda _: FILLED)
    whole = await graph.arun(start, lm, journal=journal, run_id="one")
    check(whole.result)
    assert (await graph.replay("one", journal=journal)).trace == whole.trace
    lines = (await journal.read("one")).lines
    for cut in range(1, len(lines)):
        stored = await cut_journal(journal, cut)
        called = {line.data for line in lines[:cut] if line.kind in ("CallEnded", "SourceEnded")}
        before = WORLD.done.copy()
        result = await graph.resume("one", ToyBackend(lambda _: FILLED), journal=stored)
        check(result.result)
        for what in ("key", "sign", "around"):
            is_known = any(f'"by":"{NAMES[what]}"' in data for data in called)
            assert WORLD.done[what] - before[what] == (0 if is_known else 1), (cut, what)
        again = await graph.replay("one", journal=stored)
        assert again.trace == result.trace
        why = await stored.why("one", result.trace[1].__class__.__name__ + ".key")
        assert why.value == result.trace[1].key
        assert "dep_cache" not in why.note


NAMES = {"key": "make_key", "sign": "sign", "around": "look_around"}


async def test_look_ups_for_an_outside_class_happen_once_wherever_a_run_is_cut():
    def check(posted: Posted) -> None:
        assert posted.used == posted.last

    await check_every_cut(LETTERS, Ask(topic="rain"), check)


async def test_a_body_of_an_inner_graph_may_make_a_class_of_the_outer_graph():
    class First(Node):
        topic: str

        async def __call__(self) -> Second: ...

    class Second(Node):
        made: Annotated[Made, Dep(Inner)]

        async def __call__(self) -> Third: ...

    class Inner(Node):
        async def __call__(self, lm: LM) -> Made:
            return Made(used=(await lm.make(self, Third)).key)

    class Made(EndNode):
        used: str

    class Third(EndNode):
        key: Annotated[str, Dep(make_key)]
        text: str

    graph, journal = Graph(start=First, end=Third), MemoryJournal()
    lm = ToyBackend(lambda _: FILLED)
    whole = await graph.arun(First(topic="x"), lm, journal=journal, run_id="one")
    assert whole.trace[1].made.used == whole.result.key == "key-1"
    for cut in range(1, len((await journal.read("one")).lines)):
        stored = await cut_journal(journal, cut)
        result = await graph.resume("one", ToyBackend(lambda _: FILLED), journal=stored)
        assert result.trace[1].made.used == result.result.key, cut
        assert (await graph.replay("one", journal=stored)).trace == result.trace


async def test_a_local_function_is_called_again_after_a_resume():
    async def local() -> str:
        WORLD.done["local"] += 1
        return f"local-{WORLD.done['local']}"

    class Outside(EndNode):
        found: Annotated[str, Dep(local)]
        text: str

    class Start(Node):
        async def __call__(self, lm: LM) -> Told:
            made = [await lm.make(self, Outside), await lm.make(self, Outside)]
            return Told(text=" ".join(node.found for node in made))

    class Told(EndNode):
        text: str

    graph, journal = Graph(start=Start, end=Told), MemoryJournal()
    await graph.arun(Start(), ToyBackend(lambda _: FILLED), journal=journal, run_id="one")
    assert WORLD.done["local"] == 1
    for cut in range(1, len((await journal.read("one")).lines)):
        stored = await cut_journal(journal, cut)
        await graph.resume("one", ToyBackend(lambda _: FILLED), journal=stored)


def shout_after(fn: Any) -> Any:
    @wraps(fn)
    async def shouted() -> str:
        return (await fn()).upper()

    return shouted


async def test_a_decorated_function_is_distinguished_from_the_function_it_wraps():
    class Both(EndNode):
        plain: Annotated[str, Dep(make_key)]
        loud: Annotated[str, Dep(shout_after(make_key))]
        text: str

    class Start(Node):
        async def __call__(self, lm: LM) -> Told:
            made = await lm.make(self, Both)
            return Told(text=f"{made.plain} {made.loud}")

    class Told(EndNode):
        text: str

    graph, journal = Graph(start=Start, end=Told), MemoryJournal()
    await graph.arun(Start(), ToyBackend(lambda _: FILLED), journal=journal, run_id="one")
    for cut in range(1, len((await journal.read("one")).lines)):
        stored = await cut_journal(journal, cut)
        result = await graph.resume("one", ToyBackend(lambda _: FILLED), journal=stored)
        plain, loud = result.result.text.split()
        assert (plain[:4], loud[:4]) == ("key-", "KEY-"), cut


async def test_a_dependency_value_of_the_caller_stays_in_use_after_a_resume():
    class Start(Node):
        async def __call__(self, lm: LM) -> Second:
            return Second(used=(await lm.make(self, Sketch)).view)

    class Second(Node):
        used: str

        async def __call__(self, lm: LM) -> Posted:
            return Posted(used=self.used, last=(await lm.make(self, Sketch)).view)

    graph, journal = Graph(start=Start, end=Posted), MemoryJournal()
    lm, given = ToyBackend(lambda _: FILLED), {look_around: "given"}
    await graph.arun(Start(), lm, journal=journal, run_id="one", dep_cache=given)
    for cut in range(1, len((await journal.read("one")).lines)):
        stored = await cut_journal(journal, cut)
        result = await graph.resume("one", ToyBackend(lambda _: FILLED), journal=stored)
        assert result.result.used == result.result.last, cut


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    name: str


NOW: list[Any] = []


async def get_now() -> Any:
    return NOW[0]


async def describe(what: Any) -> str:
    WORLD.done["describe"] += 1
    return what.get_secret_value() if isinstance(what, SecretStr) else repr(what)


class Described(EndNode):
    what: Annotated[Any, Dep(get_now, cache=False)]
    words: Annotated[str, Dep(describe, what="what")]
    text: str


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([Cat(name="x")], [Dog(name="x")]),
        (SecretStr("one"), SecretStr("other")),
        ({"a": 1}, {"a": True}),
        ("1", 1),
        ({"x", "y", "z"}, {"x", "y"}),
    ],
    ids=["class", "secret", "bool", "text", "set"],
)
async def test_different_arguments_are_distinguished_after_a_resume(one, other):
    class Start(Node):
        async def __call__(self, lm: LM) -> Told:
            words: list[str] = []
            for NOW[:] in ([one], [other]):
                words.append((await lm.make(self, Described)).words)
            return Told(same=words[0] == words[1])

    class Told(EndNode):
        same: bool

    graph, journal = Graph(start=Start, end=Told), MemoryJournal()
    await graph.arun(Start(), ToyBackend(lambda _: FILLED), journal=journal, run_id="one")
    for cut in range(1, len((await journal.read("one")).lines)):
        stored = await cut_journal(journal, cut)
        result = await graph.resume("one", ToyBackend(lambda _: FILLED), journal=stored)
        assert not result.result.same, cut


async def test_a_replay_calls_nothing_for_a_class_outside_the_graph():
    class Client: ...

    async def connect() -> Client:
        WORLD.done["connect"] += 1
        return Client()

    class Outside(EndNode):
        client: Annotated[Client, Dep(connect)]
        text: str

    class Start(Node):
        async def __call__(self, lm: LM) -> Told:
            return Told(text=(await lm.make(self, Outside)).text)

    class Told(EndNode):
        text: str

    graph, journal = Graph(start=Start, end=Told), MemoryJournal()
    whole = await graph.arun(Start(), ScriptedLM([FILLED]), journal=journal, run_id="one")
    with pytest.raises(ReplayError, match=r"has no value of .*connect") as refused:
        await graph.replay("one", journal=journal)

    assert (refused.value.code, WORLD.done["connect"]) == ("bae-replay-live", 1)
    again = await graph.replay("one", journal=journal, dep_cache={connect: Client()})
    assert again.trace == whole.trace


async def test_usage_for_a_class_outside_the_graph_is_included_after_a_resume():
    async def judge(lm: LM) -> str:
        return (await lm.make(Ask(topic="x"), Sketch)).text

    class Judged(EndNode):
        verdict: Annotated[str, Dep(judge)]
        text: str

    class Start(Node):
        async def __call__(self, lm: LM) -> Told:
            await lm.make(self, Judged)
            if "down" in WORLD.failing:
                raise Trouble("down")
            return Told(text="x")

    class Told(EndNode):
        text: str

    WORLD.failing.add("down")
    usage = Usage(calls=1, input_tokens=10, output_tokens=5)
    lm = ToyBackend(lambda _: Answer(json.dumps(FILLED), usage=usage))
    graph, journal = Graph(start=Start, end=Told), MemoryJournal()
    with pytest.raises(Exception, match="down"):
        await graph.arun(Start(), lm, journal=journal, run_id="one")
    WORLD.mend()
    result = await graph.resume("one", lm, journal=journal)

    assert lm.calls == 2
    assert result.usage.input_tokens == 20


async def test_a_map_of_a_class_outside_the_graph_is_stored():
    class Many(EndNode):
        keys: Annotated[list[str], Dep(get_words)]
        loud: Annotated[list[str], Map(shout, over="keys")]
        text: str

    class Start(Node):
        async def __call__(self, lm: LM) -> Told:
            return Told(text=str((await lm.make(self, Many)).loud))

    class Told(EndNode):
        text: str

    graph, journal = Graph(start=Start, end=Told), MemoryJournal()
    whole = await graph.arun(Start(), ScriptedLM([FILLED]), journal=journal, run_id="one")
    assert whole.result.text == "['A', 'B']"
    assert (await graph.replay("one", journal=journal)).trace == whole.trace


async def get_words() -> list[str]:
    return ["a", "b"]


async def shout(word: str) -> str:
    return word.upper()


# Secrets

SECRET = "hunter2-correct-horse"


async def get_password() -> SecretStr:
    return SecretStr(SECRET)


class Login(EndNode):
    """Of no graph, with secrets of each kind."""

    password: Annotated[SecretStr, Dep(get_password)]
    token: SecretStr
    pin: str = Field(repr=False)


class Done(EndNode):
    text: str


class Enter(Node):
    async def __call__(self, lm: LM) -> Done:
        login = await lm.make(self, Login)
        if "enter" in WORLD.failing:
            raise Trouble(f"no entry with {login.token.get_secret_value()}")
        return Done(text="in")


ENTERS = Graph(start=Enter, end=Done)


@pytest.mark.parametrize("fails", [False, True], ids=["ended", "failed"])
@pytest.mark.parametrize("valid", [True, False], ids=["valid", "asked again"])
async def test_secrets_of_a_class_outside_the_graph_are_not_stored(fails, valid):
    answers = [{"token": SECRET, "pin": SECRET}]
    if not valid:
        answers.insert(0, {"token": SECRET, "pin": {"not": SECRET}})
    if fails:
        WORLD.failing.add("enter")
    journal = MemoryJournal()
    try:
        await ENTERS.arun(Enter(), ToyBackend(*answers), journal=journal, run_id="one")
    except Exception as error:
        assert fails, error  # noqa: PT017
    stored = await journal.read("one")

    assert not [line for line in stored.lines if SECRET in line.data]
    assert SECRET not in stored.info.error
    exported = io.StringIO()
    await journal.export(exported)
    assert SECRET not in exported.getvalue()


async def test_a_journal_with_secrets_stores_the_secrets_of_a_class_outside_the_graph():
    journal = MemoryJournal(secrets=True)
    lm = ToyBackend({"token": SECRET, "pin": SECRET})
    await ENTERS.arun(Enter(), lm, journal=journal, run_id="one")

    assert SECRET in "".join(line.data for line in (await journal.read("one")).lines)
    assert (await ENTERS.replay("one", journal=journal)).result == Done(text="in")


async def test_a_call_with_a_secret_of_an_outside_class_is_not_recorded():
    async def show_password(password: Annotated[SecretStr, Dep(get_password)]) -> str:
        return "shown"

    class Shows(EndNode):
        shown: Annotated[str, Dep(show_password)]
        text: str

    class Start(Node):
        async def __call__(self, lm: LM) -> Done:
            return Done(text=(await lm.make(self, Shows)).shown)

    journal = MemoryJournal()
    graph = Graph(start=Start, end=Done)
    await graph.arun(Start(), ScriptedLM([FILLED]), journal=journal, run_id="one")

    assert SECRET not in "".join(line.data for line in (await journal.read("one")).lines)


async def log_in(password: Annotated[SecretStr, Dep(get_password)]) -> str:
    raise Trouble(f"no entry with {password.get_secret_value()}")


class Entered(EndNode):
    """Of no graph, with no secret, but one behind its field."""

    session: Annotated[str, Dep(log_in)]
    text: str


async def test_an_error_of_a_function_with_a_secret_is_stored_without_its_message():
    class Start(Node):
        async def __call__(self, lm: LM) -> Done:
            return Done(text=(await lm.make(self, Entered)).text)

    journal, graph = MemoryJournal(), Graph(start=Start, end=Done)
    with pytest.raises(Exception, match="no entry"):
        await graph.arun(Start(), ScriptedLM([FILLED]), journal=journal, run_id="one")
    stored = await journal.read("one")

    assert SECRET not in stored.info.error
    assert SECRET not in "".join(line.data for line in stored.lines)


async def get_pin() -> str:
    return "1234"


class Checked(EndNode):
    pin: Annotated[str, Dep(get_pin)] = Field(repr=False)
    words: Annotated[str, Dep(describe, what="pin")]
    text: str


async def test_no_hash_of_a_secret_argument_is_stored():
    class Start(Node):
        async def __call__(self, lm: LM) -> Done:
            return Done(text=(await lm.make(self, Checked)).text)

    journal, graph = MemoryJournal(), Graph(start=Start, end=Done)
    await graph.arun(Start(), ScriptedLM([FILLED]), journal=journal, run_id="one")

    assert "arguments" not in "".join(line.data for line in (await journal.read("one")).lines)


# A run that was taken over


async def test_a_body_of_a_run_that_was_taken_over_sends_no_more_requests(monkeypatch):
    class Slow(Node):
        async def __call__(self, lm: LM) -> Done:
            monkeypatch.setattr(SQLiteClaim, "is_in_doubt", lambda _: True)
            monkeypatch.setattr(MemoryJournal, "append", refuse)
            return await lm.make(self, Done)

    def refuse(*_: Any) -> Any:
        raise JournalError("another process has the run", code="bae-run-taken")

    lm = ScriptedLM([FILLED])
    with pytest.raises(JournalError, match="another process has the run"):
        await Graph(start=Slow, end=Done).arun(Slow(), lm, journal=MemoryJournal())

    assert not lm.asked
