"""A run in progress, as a tree and as lines: its display, and the promise that no value of a run
breaks the display and no display breaks the run."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest

pytest.importorskip("rich")

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr
from rich.cells import cell_len
from rich.console import Console

from bae import Dep, Gate, Graph, Map, Node, Recall, ToolCall
from bae.cli.live import Display, LiveTree, PlainLines, display_for
from bae.cli.live.display import MOST_STEPS
from bae.cli.live.screen import ProgressLine
from bae.cli.printing import err
from bae.cli.wording import describe_duration, summary_of, text_of
from bae.journal import MemoryJournal
from bae.lm import LM
from bae.observers import ObservedRun, observing
from bae.records import FieldText, Record, RunResumed, RunStarted
from bae.testing import ScriptedLM
from bae.usage import Attempt, Restart, Usage, report_usage, tell
from bounded import BOUND

Mood = Literal["groggy", "steady"]
_look: list[Callable[[], None]] = [lambda: None]


def look() -> None:
    """A moment in the middle of a run: `see` takes a frame then."""
    _look[0]()


_arrived: list[asyncio.Event] = [asyncio.Event()]


def _note_text(run: ObservedRun, record: Record) -> None:
    if isinstance(record, FieldText):
        _arrived[0].set()


class Location(BaseModel):
    city: str


async def get_client() -> SecretStr:
    look()
    return SecretStr("hunter2")


async def get_location(client: Annotated[SecretStr, Dep(get_client)]) -> Location:
    look()
    return Location(city="Lisbon")


async def get_weather(place: Annotated[Location, Dep(get_location)]) -> str:
    look()
    return f"rain over {place.city}"


def boom() -> str:
    raise TimeoutError("no answer from the weather service")


class End(Node):
    async def __call__(self) -> None: ...


class Wake(Node):
    message: str
    hour: int = 7

    async def __call__(self) -> Day: ...


class Day(Node):
    weather: Annotated[str, Dep(get_weather)]
    again: Annotated[str, Dep(get_weather)]
    mood: Mood

    async def __call__(self) -> Outfit | AskBack: ...


class Outfit(Node):
    mood: Annotated[Mood, Recall()]
    top: str

    async def __call__(self) -> Packed:
        return Packed(bag=f"{self.top} in a bag")


class AskBack(End):
    question: str


class Packed(End):
    bag: str


class Read(Node):
    text: str

    async def __call__(self) -> Summary: ...


class Summary(End):
    line: str


class Think(Node):
    async def __call__(self) -> Thought: ...


class Thought(End):
    idea: str


dressing = Graph(start=Wake, end=(Packed, AskBack), name="dressing")
summarise = Graph(start=Read, end=Summary, name="summarise")
thinking = Graph(start=Think, end=Thought, name="thinking")


class Report(End):
    texts: list[str]
    lengths: Annotated[list[int], Map(len, over="texts")]
    summaries: Annotated[list[Summary], Map(summarise, over="texts", limit=8)]
    thought: Annotated[Thought, Dep(thinking)]


class Asks(End):
    amount: int
    place: Annotated[Location, Dep(get_location)]
    approved: Annotated[bool, Gate("Really?")]


class Count(Node):
    n: int

    async def __call__(self) -> Count | None:
        look()
        return Count(n=self.n + 1) if self.n < 1999 else None


class Fails(End):
    weather: Annotated[str, Dep(boom)]
    mood: Mood


class FailsFirst(Node):
    async def __call__(self) -> Fails: ...


class DoesWithout(End):
    calm: Annotated[str, Dep(boom)] = "calm"


class Waiting(Exception):
    """Called like what the run itself raises where a person is to answer."""


def not_there() -> str:
    raise Waiting("nope")


class Waits(End):
    there: Annotated[str, Dep(not_there)]


class Breaks(Node):
    async def __call__(self) -> None:
        raise RuntimeError("first line\nsecond line")


class Item(Node):
    number: int

    async def __call__(self) -> None:
        if self.number == 33:
            raise ValueError("33 is bad")


class All(End):
    numbers: list[int]
    done: Annotated[list[Item], Map(Graph(start=Item, name="each"), over="numbers", limit=2)]


report_graph = Graph(start=Report, end=Report, name="reporting")


def script(*answers: Any) -> ScriptedLM:
    return ScriptedLM([*(answers or ({"mood": "groggy"}, Outfit, {"top": "jumper"}))])


def summing_up() -> ScriptedLM:
    def summary(asked: Any) -> dict[str, str]:
        look()
        return {"line": f"in short: {asked.source.text}"}

    return ScriptedLM({Summary: summary, Thought: lambda asked: {"idea": "hm"}})


class Speaking:
    """An LLM that answers from a script and reports its progress."""

    def __init__(self, answers: dict[str, dict[str, Any]], telling: Sequence[Any] = ()) -> None:
        self._answers = answers
        self._telling = telling

    async def choose_type(self, types: Sequence[type], context: Any) -> Any:
        look()
        return types[0]

    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any = None) -> Any:
        for each in self._telling:
            arrived = _arrived[0] = asyncio.Event()
            tell(each)
            if isinstance(each, str):
                async with asyncio.timeout(BOUND):
                    await arrived.wait()
            look()
        report_usage(Usage(1, 1000, 204, 0, 0.0041, 1, 0.5, ("claude",)))
        return target(**self._answers[target.__name__], **resolved)

    async def make(self, node: Any, target: Any) -> Any:
        return await self.fill(target, {}, "", node)

    async def decide(self, node: Any) -> Any:
        raise NotImplementedError


def console(width: int = 80, height: int = 40, **kwargs: Any) -> Console:
    options = {"force_terminal": True, "color_system": None, "highlight": False, **kwargs}
    return Console(file=io.StringIO(), width=width, height=height, **options)


def plain(lines: Sequence[Any]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


def remove_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def without_times(text: str) -> str:
    return re.sub(r"( ·)? +\d[\d.]* s\b", "", text)


class Seen:
    """A run under a tree and under lines: the frames at the moments when it calls `look`, the whole
    tree, the lines, and what it raised."""

    def __init__(self, tree: LiveTree | None, **size: Any) -> None:
        self.tree = tree or LiveTree(console(**size))
        self._lines = PlainLines(console(force_terminal=False))
        self.frames: list[str] = []
        self.raised: BaseException | None = None

    async def run(self, begin: Callable[[], Any]) -> Seen:
        _look[0] = lambda: self.frames.append(plain(self.tree.frame()))
        try:
            with (
                observing(self.tree.observe),
                observing(self._lines.observe),
                observing(_note_text),
            ):
                await begin()
        except (Exception, asyncio.CancelledError) as error:
            self.raised = error
        finally:
            _look[0] = lambda: None
        return self

    @property
    def whole(self) -> str:
        return plain(self.tree.all_lines())

    @property
    def lines(self) -> str:
        return self._lines.console.file.getvalue()

    @property
    def everything(self) -> str:
        return "\n".join([*self.frames, self.whole, self.lines])


async def see(
    start: Node,
    lm: Any = None,
    graph: Graph[Any, Any] | None = None,
    *,
    tree: LiveTree | None = None,
    width: int = 80,
    height: int = 40,
    **options: Any,
) -> Seen:
    """Run a graph under displays, whatever comes of it."""
    graph = graph or Graph(start=type(start))
    seen = Seen(tree, width=width, height=height)
    return await seen.run(lambda: graph.arun(start, lm, **options))


some = settings(max_examples=60, deadline=None)
ugh = Wake(message="ugh")


# The tree of a run.


async def test_every_field_is_shown_with_its_value_and_its_source():
    run = await see(ugh, script())
    assert without_times(run.whole).splitlines() == [
        "✓ Wake",
        "│   message  'ugh'  given",
        "│   hour     7      default",
        "✓ Day",
        "│   weather      'rain over Lisbon'  get_weather",
        "│   <- place     city='Lisbon'       get_location",
        "│     <- client  (withheld)          get_client",
        "│   again        'rain over Lisbon'  get_weather, called before",
        "│   mood         'groggy'            LM",
        "│   → Outfit  LM chose from Outfit | AskBack",
        "✓ Outfit",
        "│   mood  'groggy'  recalled from Day",
        "│   top   'jumper'  LM",
        "✓ Packed",
        "    bag  'jumper in a bag'  from Outfit",
    ]


async def test_a_waiting_field_shows_its_function():
    first, second, third, *_ = (await see(ugh, script())).frames
    assert re.search(r"· weather +get_weather$", first, re.M) or "waits for get_client" in first
    assert re.search(r"⠋|⠙|⠹|⠸|⠼|⠴|⠦|⠧|⠇|⠏", first)
    assert "get_weather waits for get_location" in second
    assert re.search(r"\S +<- place .*get_location", second)
    assert "city='Lisbon'" in third
    assert "waits for" not in third


async def test_the_tree_shows_the_streamed_text_of_the_lm():
    telling = [
        '{"mood": "not',
        ' so\\nbad"',
        Attempt(1, "…", "invalid", ("mood: Input should be 'groggy'",), Usage(1, 300, 7)),
        '{"mood": "aga',
        Restart(ConnectionError("429, too many"), 30.0),
    ]
    lm = Speaking({"Day": {"mood": "groggy"}, "Outfit": {"top": "jumper"}}, telling)
    run = await see(ugh, lm, dep_cache={get_weather: "rain"})
    first, second, wrong, again, restarted, choosing, *_ = run.frames
    assert re.search(r"LM  filling mood$", without_times(first), re.M)
    assert "    mood: not\n" in first
    assert "    mood: not so\n" in second
    assert "    bad\n" in second
    assert "LM  filling mood, answer 2 after: mood: Input should be 'groggy'" in wrong
    assert "307 tokens" in wrong
    assert "bad" not in wrong
    assert "    mood: aga\n" in again
    assert re.search(r"mood, again in (30\.0|29\.\d) s after ConnectionError: 429", restarted)
    assert "LM  choosing from Outfit | AskBack" in choosing
    assert "1,204 tokens · $0.0041" in choosing


async def test_an_lm_call_of_a_body_is_shown_with_its_node():
    class Makes(Node):
        async def __call__(self, lm: LM) -> Thought:
            return await lm.make(self, Thought)

    run = await see(Makes(), Speaking({"Thought": {"idea": "hm"}}, ['{"idea": "it stre', 'ams"}']))
    assert "    idea: it streams" in run.frames[1]
    assert "1,204 tokens · $0.0041" in run.whole


async def test_subgraphs_are_subtrees_and_map_items_are_rows():
    run = await see(Report(texts=["a", "b"]), summing_up(), width=120)
    assert without_times(run.whole).splitlines() == [
        "✓ Report",
        "    texts      ['a', 'b']                                                  given",
        "    lengths    [1, 1]                                                      len, 2 items",
        "    summaries  [Summary(line='in short: a'), Summary(line='in short: b')]  "
        "summarise, 2 items",
        "    ✓ [0] Summary  line='in short: a'",
        "    ✓ [1] Summary  line='in short: b'",
        "    thought    idea='hm'                                                   thinking",
        "    ✓ Think",
        "    ✓ Thought",
        "        idea  'hm'  LM",
    ]


async def test_a_map_of_many_items_has_rows_for_items_in_progress_and_few_lines():
    texts = [f"text {number}" for number in range(60)]
    run = await see(Report(texts=texts), summing_up(), height=20)
    assert all(frame.count("\n") < 19 for frame in run.frames)
    late = next(frame for frame in run.frames if re.search(r"summaries .* 4\d/60", frame))
    assert len(re.findall(r"\[\d+\] Summary", late)) <= 5
    assert re.search(r"… (\d+ more in progress, )?4\d done", late)
    assert "[0]" not in late
    assert "summarise, 60 items" in run.whole
    assert "[59]" not in run.whole
    assert "summaries[9]  Read" in run.lines
    assert "summaries[10]" not in run.lines
    assert run.lines.count("\n") < 60
    assert max(map(len, run.lines.splitlines())) <= 200


@pytest.mark.parametrize(
    ("start", "answers", "marks", "shows"),
    [
        (
            FailsFirst(),
            [],
            ["Fails", "weather"],
            "TimeoutError: no answer from the weather service",
        ),
        (DoesWithout(), [], ["calm"], "its default is used"),
        (ugh, [ValueError("down")], ["Day"], "ValueError: down"),
        (ugh, [{"mood": "groggy"}, ValueError("down")], ["Day"], "ValueError: down"),
        (ugh, [{"mood": "groggy"}, Outfit, ValueError("down")], ["Outfit"], "ValueError: down"),
        (ugh, [{"mood": "groggy"}, AskBack, {}, {}, {}], ["AskBack"], "3 answers in a row"),
        (Waits(), [], ["Waits", "there"], "Waiting: nope"),
        (Breaks(), [], ["Breaks"], "Breaks.__call__ raised RuntimeError: first line"),
        (All(numbers=[*range(50)]), [], ["All", "done", "[33]"], "raised ValueError: 33 is bad"),
    ],
)
async def test_a_failure_is_marked_with_its_error(start, answers, marks, shows):
    run = await see(start, ScriptedLM(answers), width=120)
    assert re.findall(r"✗ (\S+)", run.whole) == marks
    assert shows in run.whole
    assert (run.raised is None) == (shows not in run.lines) == (marks == ["calm"])


async def test_errors_are_printed_in_red():
    tree = LiveTree(console(color_system="truecolor", no_color=False))
    with tree:
        await see(DoesWithout(), tree=tree)
    assert re.search(r"\x1b\[[\d;]*31m[^\x1b]*TimeoutError", tree.console.file.getvalue())


async def test_a_cancelled_run_shows_its_work_in_progress():
    begun = asyncio.Event()

    async def forever() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    class Stays(End):
        value: Annotated[str, Dep(forever)]

    async def cancelled() -> None:
        task = asyncio.ensure_future(Graph(start=Stays).arun(Stays()))
        await begun.wait()
        task.cancel()
        await task

    run = await Seen(None).run(cancelled)
    assert re.search(r"- Stays .*cancelled\n +- value +forever.* cancelled", run.whole)


async def test_a_run_resumed_after_an_answer_marks_earlier_work():
    graph, journal = Graph(start=Asks), MemoryJournal()
    parked = await see(Asks(amount=3), None, graph, journal=journal, run_id="monday")
    assert re.search(r"\? Asks", parked.whole)
    assert re.search(r"\? approved +Really\? +waits for an answer", parked.whole)
    assert "waits for       an answer to 'Really?'" in parked.lines
    assert re.search(r" s  waiting$", parked.lines, re.M)

    async def answer(gate: Any) -> bool:
        look()
        return True

    run = await Seen(None).run(lambda: graph.resume("monday", journal=journal, answer=answer))
    assert re.search(r"place +city='Lisbon' +get_location.*from before", run.frames[-1])
    assert "waits for an answer" in run.frames[-1]
    assert re.search(r"✓ Asks(.|\n)*approved +True +answered", run.whole)
    assert "resumed" in run.lines


async def test_nodes_from_before_a_resume_are_marked():
    journal, down = MemoryJournal(), script({"mood": "groggy"}, ValueError("down"))
    await see(ugh, down, dressing, journal=journal, run_id="monday")
    lm = script(Outfit, {"top": "jumper"})
    run = await Seen(None).run(lambda: dressing.resume("monday", lm, journal=journal))
    whole = without_times(run.whole)
    assert whole.startswith("✓ Wake  from before")
    assert "✓ Day  from before" in whole
    assert "✓ Outfit\n" in whole
    assert "✓ Packed\n" in whole
    assert "✗" not in whole


async def test_runs_started_by_a_body_are_shown_completely_below_their_parent():
    together = asyncio.Barrier(6)

    class Meets(Node):
        async def __call__(self) -> Ends:
            await together.wait()
            return Ends()

    class Ends(Node):
        async def __call__(self) -> None: ...

    class Starts(Node):
        async def __call__(self) -> None:
            await asyncio.gather(*(Graph(start=Meets).arun(Meets()) for _ in range(6)))

    run = await see(Starts())
    assert run.whole.startswith("✓ Starts")
    assert len(re.findall(r"✓ Meets  a run of its own\n✓ Meets.*\n✓ Ends", run.whole)) == 6
    assert run.tree.summary().plain.startswith("1 node in")


async def test_a_long_run_shows_its_newest_nodes_and_keeps_a_bounded_number():
    tree = LiveTree(console(height=24))
    with observing(tree.observe):
        await Graph(start=Count).arun(Count(n=0), max_iters=0)
    frame = plain(tree.frame())
    assert "n  1999" in frame
    assert frame.count("\n") < 24
    assert re.match(r"… [\d,]+ more\n", frame)
    assert re.search(r"… 1,\d\d\d more nodes\n", plain(tree.all_lines()))
    assert tree.summary().plain.startswith("2,000 nodes in")
    (view,) = tree.views.values()
    assert len(view.history.run.steps) <= MOST_STEPS


async def test_finished_nodes_are_printed_once_above_the_live_tree():
    tree = LiveTree(console())
    with tree:
        run = await see(Count(n=1990), tree=tree)
    assert [re.findall(r"n  (\d+)", frame) for frame in run.frames] == [
        [str(number)] for number in range(1990, 2000)
    ]
    written = remove_escapes(tree.console.file.getvalue())
    assert len(re.findall(r"│   n  1994  from Count", written)) == 1


async def test_finished_items_of_a_map_of_graphs_are_released():
    run = await see(All(numbers=[*range(34, 534)]))
    (view,) = run.tree.views.values()
    assert len(view.history.graphs) < 10
    assert run.tree.summary().plain.startswith("501 nodes in")


# What must not be shown.


class Login(BaseModel):
    user: str
    password: SecretStr
    pin: str = Field(repr=False)


def halve(key: Annotated[str, Recall()]) -> int:
    return len(key) // 2


class Secretive(Node):
    login: Login
    key: str = Field(repr=False)
    made: Annotated[str, Dep(lambda: "sesame-1"), Field(repr=False)]
    url: str

    async def __call__(self) -> Answer: ...


class Answer(End):
    key: Annotated[str, Recall(Secretive), Field(repr=False)]
    length: Annotated[int, Dep(lambda key: len(key), key="key")]
    half: Annotated[int, Dep(halve)]
    said: str


async def test_secrets_are_hidden_in_the_tree_and_in_plain_lines():
    login = Login(user="ana", password=SecretStr("sesame-2"), pin="sesame-3")
    start = Secretive(login=login, key="sesame-4", url="https://ana:sesame-5@host/?key=sesame-6")
    telling = ['{"said": "sesame-7', Attempt(1, "", "invalid", ("sesame-8",))]
    run = await see(start, Speaking({"Answer": {"said": "open"}}, telling))
    for shown in ("user='ana'", "host", "(withheld)", "said", "half"):
        assert shown in run.whole
        assert shown in run.lines
    assert run.frames
    assert "sesame" not in run.everything


class Odd:
    def __repr__(self) -> str:
        raise ValueError("no")


class Hushed(BaseModel):
    password: str

    def __repr_args__(self) -> Any:
        return []


class Token(str):
    def __repr__(self) -> str:
        return "Token(…)"


@dataclass
class Point:
    x: int
    hidden: str = field(default="hidden", repr=False)


def test_values_of_any_kind_are_shown():
    around: list[Any] = [1]
    around.append(around)
    assert text_of(Odd()) == "<Odd>"
    assert text_of([Odd(), 1]) == "<list>"
    assert text_of(object()) == "<object>"
    assert text_of(around).startswith("[1, [1, [")
    assert text_of(Point(1)) == "Point(x=1)"
    called = ToolCall(id="c1", name="add", arguments={"a": 1, "b": [2]}, result=3, seconds=0.1)
    assert text_of([called, called]) == "[add(a=1, b=[2]), add(a=1, b=[2])]"
    assert text_of(10**5000) == "<int>"
    assert len(text_of("x" * 10_000_000)) <= 400
    assert len(text_of([list(range(1000))] * 100_000)) <= 400
    assert text_of(Location(city="Lisbon")) == "city='Lisbon'"
    assert text_of([Location(city="Lisbon")]) == "[Location(city='Lisbon')]"
    assert "sesame" not in text_of({"a": Hushed(password="sesame"), "b": [SecretStr("sesame")]})
    assert text_of(["👩\u200d👧", "\\u200d"]) == "['👩\u200d👧', '\\\\u200d']"
    assert text_of(Token("sesame")) == text_of([Token("sesame")])[1:-1] == "Token(…)"


def test_only_the_beginning_of_a_large_nested_value_is_formatted():
    large = Location(city="x" * 20_000_000)
    tracemalloc.start()
    text_of({"all": [large, large]})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


texts = st.text(st.characters(codec=None), max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(texts, inner)
        | st.tuples(inner, inner)
        | st.builds(Location.model_construct, city=inner)
    ),
)


@pytest.mark.once
@some
@given(values, st.integers(1, 500))
def test_no_value_exceeds_its_limit_or_contains_terminal_commands(value, longest):
    text = text_of(value, longest)
    assert len(text) <= longest
    assert re.sub("[\u200c\u200d]", "", text).isprintable()
    text.encode()


async def test_control_characters_reach_no_terminal():
    evil = "\x1b[2J\x1b]0;title\x07\u202egnp\x9b31m\r\n"

    async def get_it() -> str:
        return evil

    class Evil(Node):
        given: str
        found: Annotated[str, Dep(get_it)]
        mapped: Annotated[list[str], Map(str.upper, over="many")]
        many: list[str]

        async def __call__(self) -> Thought: ...

    class Worse(Exception):
        pass

    said = f'{{"idea": {json.dumps(evil)}'
    lm = Speaking({"Thought": {"idea": evil}}, [said, Restart(Worse(evil), 1.0), said])
    run = await see(Evil(given=evil, many=[evil]), lm)
    assert all(char.isprintable() or char == "\n" for char in run.everything)
    assert "gnp" in run.frames[0]
    for kind in (PlainLines, Display, LiveTree):
        display = kind(console())
        display.say("note: \x1b]0;mine\x07 \u202e")
        assert display.console.file.getvalue() == "note: \\x1b]0;mine\\x07 \\u202e\n"


# Whatever a run does.


class Runs(list[list[Record]]):
    def __repr__(self) -> str:  # what Hypothesis shows of it
        return f"<the records of {len(self)} runs>"


@pytest.fixture(scope="module")
def runs() -> Runs:
    """The records of runs of all kinds."""

    async def recorded(start: Node, lm: Any = None, journal: Any = None) -> list[Record]:
        records: list[Record] = []
        with observing(lambda run, record: records.append(record)), suppress(Exception):
            await Graph(start=type(start)).arun(start, lm, journal=journal)
        return records

    async def all_of_them() -> list[list[Record]]:
        journal = MemoryJournal()
        telling = ["text", Restart(ValueError("x"), 1.0)]
        return [
            await recorded(ugh, script()),
            await recorded(ugh, script(), journal),
            await recorded(Report(texts=list("abcdef")), summing_up()),
            await recorded(Report(texts=list("ab")), ScriptedLM([])),
            await recorded(Asks(amount=1)),
            await recorded(Asks(amount=1), None, journal),
            await recorded(ugh, Speaking({"Day": {"mood": "groggy"}}, telling)),
        ]

    return Runs(asyncio.run(all_of_them()))


def draws(picture: Sequence[Record], width: int, height: int, past: Sequence[Record] = ()) -> None:
    tree = LiveTree(console(width=width, height=height))
    run = ObservedRun("run", tuple(past))
    for record in picture:
        tree.observe(run, record)
    frame, whole = tree.frame(), tree.all_lines()
    assert len(frame) <= max(2, height - 1)
    assert all(cell_len(line.plain) <= width for line in (*frame, *whole))
    assert all("\n" not in line.plain for line in (*frame, *whole))


which, share, seed = st.integers(0, 6), st.floats(0, 1), st.integers(0, 2**32)
size = st.tuples(st.integers(1, 200), st.integers(1, 60))


@pytest.mark.once
@some
@given(which, share, size)
def test_a_resumed_run_is_drawn_wherever_it_was_interrupted(runs, which, share, size):
    records = runs[which]
    cut = round(share * len(records))
    resumed = RunResumed(records[-1].at, "", 0, "somebody")
    rest = [record for record in records[cut:] if not isinstance(record, RunStarted)]
    draws([resumed, *rest], *size, records[:cut])


@pytest.mark.once
@some
@given(which, share, seed, size)
def test_a_run_is_drawn_from_interleaved_and_missing_records(runs, which, share, seed, size):
    random = Random(seed)
    by_path: dict[str, list[Record]] = {}
    for record in runs[which]:
        if random.random() <= share:
            by_path.setdefault(record.path, []).append(record)
    mixed: list[Record] = []
    while by_path:
        path = random.choice(sorted(by_path))
        mixed.append(by_path[path].pop(0))
        if not by_path[path]:
            del by_path[path]
    draws(mixed, *size)


def test_records_may_come_from_several_threads(runs):
    tree = LiveTree(console())

    def tell_of(records: list[Record]) -> None:
        run = ObservedRun("run")
        for record in records:
            tree.observe(run, record)
            tree.frame()

    threads = [threading.Thread(target=tell_of, args=(records,)) for records in runs[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "✓ Wake" in plain(tree.all_lines()) or "Report" in plain(tree.whole())


@pytest.mark.parametrize("width", [80, 160])
def test_notes_are_listed_in_separate_lines(runs, width):
    tree, run = LiveTree(console(width=width)), ObservedRun("run")
    for record in runs[0]:
        tree.observe(run, record)
    rows = [line for line in plain(tree.all_lines()).splitlines() if " get_" in line]
    assert len({row.index(" get_") for row in rows}) == 1


# On the screen.


async def test_the_tree_is_redrawn_in_place_and_stays_when_the_run_is_over():
    tree = LiveTree(console(color_system="standard"))
    with tree:
        await see(ugh, script(), tree=tree)
    written = tree.console.file.getvalue()
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor
    drawn, _, left = written.rpartition("\x1b[1A\x1b[2K")
    assert "Packed" in drawn
    assert remove_escapes(left) == plain(tree.all_lines()) + "\n"
    assert "✓ Packed" in remove_escapes(left)


async def test_the_tree_leaves_the_screen_while_a_question_is_open():
    tree = LiveTree(console())
    written = tree.console.file.getvalue
    with tree:
        await see(ugh, script(), tree=tree)
        with tree.asking():
            off = written()
            assert off.endswith("\n\n"), "what led to the question, and room for it"
            assert off.count("\x1b[?25l") == off.count("\x1b[?25h")
        assert written().count("\x1b[?25l") == off.count("\x1b[?25l") + 1
    assert plain(tree.all_lines()) in written()


async def test_the_cursor_is_restored_after_an_error():
    tree = LiveTree(console())
    with pytest.raises(KeyboardInterrupt), tree:
        raise KeyboardInterrupt
    written = tree.console.file.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")


class Gone(io.StringIO):
    gone = False

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("kind", [LiveTree, PlainLines])
async def test_a_run_that_loses_its_terminal_has_the_same_outcome(kind, caplog, monkeypatch):
    file = Gone()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setenv("FORCE_COLOR", "1")
    display = kind(err())
    with display, observing(display.observe):
        file.gone = True
        result = await dressing.arun(ugh, lm=script())
    assert type(result.result) is Packed
    assert not caplog.records


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
async def test_a_terminal_without_unicode_gets_plain_characters(encoding):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    tree = LiveTree(Console(file=file, force_terminal=True, width=80, height=20))
    lines = PlainLines(Console(file=file, width=80))
    with observing(lines.observe):
        with tree:
            await see(Wake(message="日本 … é"), script(), tree=tree)
        tree.console.print(tree.summary())
    file.flush()
    left = remove_escapes(raw.getvalue().decode(encoding))
    assert "+ Wake" in left
    assert "-> Outfit" in left
    assert "\\u65e5" in left


# Lines.


async def test_plain_lines_report_one_event_each_without_escapes():
    written = (await see(ugh, script())).lines
    assert "\x1b" not in written
    without_facts = re.sub(r"  \(\d.*\)$", "", written, flags=re.M)
    assert [line[10:] for line in without_facts.splitlines()] == [
        "Wake              message='ugh' hour=7",
        "  get_client      called for Day.weather(place)(client)",
        "  get_client      (withheld)",
        "  get_location    called for Day.weather(place)",
        "  get_location    city='Lisbon'",
        "  get_weather     called for Day.weather",
        "  get_weather     'rain over Lisbon'",
        "  LM              is filling mood",
        "Day               mood='groggy'",
        "  LM              is choosing from Outfit | AskBack",
        "  LM chose        Outfit",
        "  recalled        mood='groggy' from Day",
        "  LM              is filling top",
        "Outfit            top='jumper'",
        "Packed            bag='jumper in a bag'",
    ]
    assert all(re.match(r" +\d+\.\d\d s  ", line) for line in written.splitlines())


async def test_plain_lines_report_invalid_answers_and_failures():
    failed = await see(ugh, script({"mood": "grim"}, {"mood": "groggy"}, ValueError("down")))
    assert "LM              answer 1 was invalid: mood: Input should be" in failed.lines
    assert re.search(r" s  failed  .*ValueError: down", failed.lines)


# Which display, and the sum.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("file", "environment", "quiet", "kind"),
    [
        (Terminal(), {"TERM": "xterm-256color"}, False, LiveTree),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False, LiveTree),
        (Terminal(), {"TERM": "dumb"}, False, PlainLines),
        (io.StringIO(), {"TERM": "xterm"}, False, PlainLines),
        (io.StringIO(), {"TERM": "xterm", "FORCE_COLOR": "1"}, False, PlainLines),
        (Terminal(), {"TERM": "xterm"}, True, Display),
        (Terminal(), {"TERM": "xterm", "COLUMNS": "1"}, False, PlainLines),
        (Terminal(), {"TERM": "xterm", "COLUMNS": "19"}, False, PlainLines),
        (Terminal(), {"TERM": "xterm", "COLUMNS": "20"}, False, LiveTree),
    ],
)
def test_the_kind_of_display_fits_the_terminal(file, environment, quiet, kind):
    chosen = display_for(Console(file=file, _environ=environment), quiet=quiet)
    assert type(chosen) is kind


async def test_a_quiet_display_prints_nothing_and_still_has_a_summary():
    silent = Display(console())
    with silent, observing(silent.observe):
        await dressing.arun(ugh, lm=script())
    assert silent.console.file.getvalue() == ""
    assert re.match(r"4 nodes in \S+ s · 3 LM calls · \$0$", silent.summary().plain)


@pytest.mark.parametrize(
    ("nodes", "seconds", "usage", "said"),
    [
        (3, 4.31, Usage(2, 1000, 204, 0, 0.0041), "2 LM calls · 1,204 tokens · $0.0041"),
        (1, 0.0, Usage(), ""),
        (0, 75.2, Usage(1, 0, 1, 0, None), "1 LM call · 1 token · cost unknown"),
        (2, 0.05, Usage(1, 5, 5, 0, 0.0), "1 LM call · 10 tokens · $0"),
        (2, 7200, Usage(9, 10**6, 0, 0, 12.345), "9 LM calls · 1,000,000 tokens · $12.35"),
        (1, 1, Usage(1, 5, 5, 0, 0.00001234), "1 LM call · 10 tokens · $0.000012"),
        (1, 1, Usage(1, 1, 0, 0, 0.5, models=("a", "b")), "1 LM call · 1 token · $0.50 · a, b"),
    ],
)
def test_the_summary_of_a_run_is_one_line(nodes, seconds, usage, said):
    first = f"{nodes} node{'s' * (nodes != 1)} in {describe_duration(seconds) or '0 s'}"
    assert summary_of(nodes, seconds, usage) == (f"{first} · {said}" if said else first)


def test_durations_are_shown_in_a_suitable_unit():
    said = [
        describe_duration(seconds)
        for seconds in (-1, 0.001, 0.06, 0.1, 59.94, 59.96, 3599.4, 3599.6)
    ]
    assert said == ["", "", "0.06 s", "0.1 s", "59.9 s", "1 min 00 s", "59 min 59 s", "1 h 00 min"]


# What must not be said of a run.


class Hopeful(Node):
    async def __call__(self) -> Hoping:
        return Hoping(text="given", words=["a", "b"])


async def look_at_it(word: str) -> str:
    look()
    return word


class Hoping(End):
    text: str
    words: list[str]
    there: Annotated[str, Dep(get_weather)]
    looked: Annotated[list[str], Map(look_at_it, over="words")]


async def test_fields_with_a_source_are_not_shown_as_fields_of_the_lm():
    run = await see(Hopeful())
    assert "· text" in run.frames[0]
    assert not any("LM" in frame for frame in run.frames)
    assert "look_at_it, 2 items" in run.whole


async def test_fields_that_the_lm_never_filled_are_marked_after_a_failure():
    run = await see(FailsFirst(), ScriptedLM([]))
    assert re.search(r"· mood +LM$", run.whole, re.M)


# What others print.


def test_printed_output_appears_above_the_tree_in_whole_lines(
    monkeypatch: pytest.MonkeyPatch,
):
    # No fixture: pytest has its own streams in a test.
    streams = SimpleNamespace(out=Terminal(), err=Terminal())
    monkeypatch.setattr(sys, "stdout", streams.out)
    monkeypatch.setattr(sys, "stderr", streams.err)
    handler = logging.StreamHandler(streams.err)
    log = logging.getLogger("bae-test-of-output")
    log.addHandler(handler)
    tree = LiveTree(Console(stderr=True, color_system=None, width=60, legacy_windows=False))
    try:
        with tree:
            sys.stderr.write("half a [/tmp] ")
            sys.stderr.flush()
            log.warning("logged")
            print("\x1b[2Jprinted")
            print("begun", end="", flush=True)
    finally:
        log.removeHandler(handler)
    printed = remove_escapes(streams.err.getvalue())
    lines = [line for line in printed.replace("\r", "\n").splitlines() if "nodes" not in line]
    assert [line for line in lines if line.strip()] == ["half a [/tmp] logged", "printed", "begun"]
    assert handler.stream is streams.err


def test_a_progress_line_is_redrawn_below_its_notes():
    file = Terminal()
    line = ProgressLine(Console(file=file, width=60, _environ={"TERM": "xterm"}), quiet=False)
    with line:
        line.update("1 of 2 cases")
        line.inform("note: \x1b[2Jhalf")
    printed = remove_escapes(file.getvalue())
    assert "note: \\x1b[2Jhalf\n" in printed
    assert re.search(r"\S 1 of 2 cases( · [\d.]+ s)?\n", printed)
