"""Random small graphs for tests of runs with a journal, as source text: hypothesis draws a readable
program. Its effects go through one `Outside`, which counts them, fails them or cancels the run
there. Nothing in it depends on time or chance, so an interrupted run must have the same result as
an uninterrupted run."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType, NoneType
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

from bae import Graph
from bae.lm import Answer, Backend, Prompt
from journal_graphs import Trouble

HEAD = """
from collections.abc import AsyncIterator
from typing import Annotated, Union
from pydantic import BaseModel
from bae import LM, Dep, Gate, Graph, Map, Node, Recall


class Topic(BaseModel):
    name: str = "none"
"""


def number(*parts: object) -> int:
    """A number that depends only on its inputs."""
    return crc32(repr(parts).encode()) % 89


# What happens outside of a run


class Outside:
    """Where the effects of a run happen, each at once with its record: nothing is awaited after
    it. Those in threads are the exception, and say so in their names."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.when: list[tuple[str, int, int]] = []
        """Every effect with the number of lines, and of steps, that were stored before it."""
        self.stop: tuple[str, int] | None = None
        """How to interrupt the run, and at which effect from here on."""
        self.run: asyncio.Task[Any] | None = None
        self.lines: Any = lambda: ()
        self.tried: set[str] = set()
        self._broken = ""

    def interrupt(self, how: str, at: int) -> None:
        """Have an effect fail, or the run cancelled there; `at` counts the effects from now."""
        self.stop, self._broken = (how, at), ""

    def go_on(self) -> None:
        self.stop, self._broken = None, ""

    async def act(self, what: str, turns: int = 0, *, tolerated: bool = False) -> None:
        """Do something outside. With `tolerated` a failure would not end the run."""
        for _ in range(turns):
            await asyncio.sleep(0)
        how = self._met(what)
        if how == "cancel" or (how == "fail" and tolerated):
            assert self.run is not None
            self.run.cancel()
            await asyncio.Event().wait()
        if how == "fail":
            raise Trouble(what)
        self._do(what)

    def act_sync(self, what: str) -> None:
        """The same from a sync function."""
        if self._met(what) == "fail":
            raise Trouble(what)
        self._do(what)

    def stumble(self, what: str) -> None:
        """Fail the first time, and only then."""
        if what not in self.tried:
            self.tried.add(what)
            raise Trouble(what)

    def _met(self, what: str) -> str:
        if what == self._broken:
            return "fail"
        if self.stop is None:
            return ""
        how, left = self.stop
        self.stop = (how, left - 1)
        if left != 0:
            return ""
        self.stop = None
        if how == "fail":
            self._broken = what
        return how

    def _do(self, what: str) -> None:
        lines = self.lines()
        steps = sum(
            1 for line in lines if line.kind in ("StepStarted", "RunForked") and not line.path
        )
        self.done[what] += 1
        self.when.append((what, len(lines), steps))


class Filler(Backend):
    """An LLM whose answers depend only on the question, and are sometimes wrong."""

    model = "filler"
    first_wait = 0.0

    def __init__(self, outside: Outside, **options: Any) -> None:
        super().__init__(**options)
        self._outside = outside

    async def answer(self, prompt: Prompt) -> Answer:
        asked, seed = prompt.question, number(prompt.text, len(prompt.corrections))
        wrong = not prompt.corrections and number(prompt.text) % 5 == 0
        said = "wrong answer" if wrong else "lm answer"
        await self._outside.act(f"{said} {prompt.name} {seed}", seed % 4)
        if wrong:
            return Answer("{}")
        if not asked.types:
            wanted: Any = asked.target
            made = _fields(wanted, seed, asked.source)
            return Answer(json.dumps({name: made[name] for name in asked.fields}))
        chosen = _choose_next(asked.types, dict(asked.source or asked.context or {}))
        name = "None" if chosen is NoneType else chosen.__name__
        if not asked.fillable:
            return Answer(json.dumps({"choice": name}))
        routed: dict[str, Any] = {"choice": name}
        if chosen in asked.fillable:
            routed["fields"] = _fields(chosen, seed, asked.source)
        return Answer(json.dumps({"answer": routed}))


def _choose_next(types: Any, context: Any) -> Any:
    """Leave a loop when the node asks for it; elsewhere choose by the context."""
    if "left" in context:
        return types[0] if context["left"] > 0 else types[-1]
    return types[number(dict(context)) % len(types)]


def _fields(target: Any, seed: int, source: Any) -> dict[str, Any]:
    from bae.plan import plan_of

    made: dict[str, Any] = {
        "value": seed,
        "items": list(range(seed, seed + seed % 4)),
        "left": max(0, getattr(source, "left", 3) - 1),
    }
    return {f.name: made[f.name] for f in plan_of(target).plain if f.name in made}


# The programs


@dataclass(repr=False)
class Made:
    """A program: its text, and what it is run with. With `retries`, what fails may be done again
    from its beginning; with `parked`, gates are answered by hand, and the run is parked until
    then; `in_vain` is one that would do more if sources were asked early."""

    text: str
    retries: bool
    prefetch: bool
    one_call: bool
    parked: bool
    in_vain: bool
    graph: Graph[Any, Any] = field(init=False)
    outside: Outside = field(init=False)
    names: Any = field(init=False)

    def __repr__(self) -> str:
        options = f"{self.retries=} {self.prefetch=} {self.one_call=} {self.parked=}"
        return f"# {options}\n{self.text}"

    def build(self) -> Made:
        """Make the classes anew; answers itself."""
        module = ModuleType("made_graph")
        self.outside = Outside()
        module.__dict__.update(
            act=self.outside.act,
            act_sync=self.outside.act_sync,
            stumble=self.outside.stumble,
            number=number,
            Trouble=Trouble,
        )
        sys.modules["made_graph"] = module
        exec(compile(self.text, "<made graph>", "exec"), module.__dict__)
        self.names = module
        self.graph = module.main
        return self

    @property
    def lm(self) -> Any:
        return Filler(self.outside, one_call=self.one_call)

    @property
    def stand_ins(self) -> dict[Any, Any]:
        """The replacements for live values in a replay."""
        opening = {n: fn for n, fn in vars(self.names).items() if n.startswith("opening")}
        values = {name: number(name) for name in opening}
        return {fn: None if values[n] % 7 == 0 else values[n] for n, fn in opening.items()}

    def start(self) -> Any:
        return self.graph.start(value=5, items=[1, 2, 3], topic=self.names.Topic(name="t"))


@dataclass
class _Draw:
    draw: Any
    retries: bool
    in_vain: bool = False
    """Whether a body gives values that a source might be asked for early, and in vain."""
    lines: list[str] = field(default_factory=list[str])
    functions: list[str] = field(default_factory=list[str])
    lists: list[str] = field(default_factory=list[str])
    graphs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    mapped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    looking: list[str] = field(default_factory=list[str])
    numbers: Any = field(default_factory=count)

    def one(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def maybe(self, parts: int = 2) -> bool:
        return self.draw(st.integers(1, parts)) == parts

    def upto(self, most: int) -> int:
        return self.draw(st.integers(0, most))


def _options(d: _Draw, name: str) -> str:
    said = ", inline=True" if name.startswith("inline") else ""
    said += ", cache=False" if d.maybe(3) else ""
    again = name.startswith("stumbling") or (d.retries and d.maybe(4))
    return said + (", retries=1" if again else "")


def _source(d: _Draw) -> tuple[str, str]:
    """A type, and the marker of a dependency that has it."""
    if d.graphs and d.maybe(3):
        name, ends = d.one(*d.graphs)
        return ends, f"Dep({name}{_options(d, name)})"
    name = d.one(*d.functions)
    return "int | None", f"Dep({name}{_options(d, name)})"


def _function(d: _Draw) -> None:
    kind = d.one("on_loop", "on_loop", "on_loop", "inline", "thread", "stumbling", "opening")
    name = f"{kind}{next(d.numbers)}"
    lists = kind != "opening" and d.maybe(5)
    parameters: list[str] = []
    if d.functions and kind != "opening":
        for place in range(d.upto(2)):
            annotation, marker = _source(d)
            parameters.append(f"p{place}: Annotated[{annotation}, {marker}]")
    if kind != "opening" and d.maybe(5):
        parameters.append("newest: Annotated[Topic, Recall()] = Topic()")
    given = ", ".join(p.partition(":")[0] for p in parameters)
    asks = kind == "on_loop" and d.maybe(6)
    if asks:
        parameters.insert(0, "lm: LM")
    what = f'f"{name} {{({given})!r}}"'
    out = "[v, v + 1]" if lists else "None if v % 7 == 0 else v"
    returns = "list[int]" if lists else "int | None"
    on_loop = kind in ("on_loop", "stumbling", "opening")
    if kind == "opening":
        returns = f"AsyncIterator[{returns}]"
    define = "async def" if on_loop else "def"
    d.lines += ["", "", f"{define} {name}({', '.join(parameters)}) -> {returns}:"]
    if kind == "stumbling":
        d.lines.append(f"    stumble({what})")
    if asks:
        d.lines.append("    v = (await lm.make(Noted(value=3), Noted)).value")
    else:
        d.lines.append(
            f"    v = number({name!r}, {given})" if given else f"    v = number({name!r})"
        )
    act = f"await act({what}, {d.upto(4)})" if on_loop else f"act_sync({what})"
    d.lines += [f"    {act}", f"    {'yield' if kind == 'opening' else 'return'} {out}"]
    (d.lists if lists else d.functions).append(name)


def _taking(d: _Draw, kind: str, parameter: str, often: int, *, may_ask: bool = False) -> str:
    """Write a function that takes a value of the run; answers its name."""
    name = f"{kind}{next(d.numbers)}"
    more = ""
    if d.maybe(often):
        annotation, marker = _source(d)
        more = f", more: Annotated[{annotation}, {marker}]"
    asks = may_ask and d.maybe(5)
    more += ", lm: LM" if asks else ""
    d.lines += ["", "", f"async def {name}({parameter}: int{more}) -> int:"]
    if asks:
        made = f"lm.make(Noted(value={parameter}), Noted)"
        d.lines.append(f"    {parameter} = (await {made}).value")
    turns = f"{parameter} % {1 + d.upto(4)}"
    d.lines.append(f'    await act(f"{name} {{{parameter}}}", {turns})')
    d.lines.append(f"    return number({parameter})")
    return name


def _looking_up(d: _Draw) -> str:
    d.looking.append(_taking(d, "looking", "word", 2))
    return d.looking[-1]


def _item_function(d: _Draw) -> str:
    return _taking(d, "item", "item", 3, may_ask=True)


def _failing(d: _Draw) -> str:
    name = f"failing{next(d.numbers)}"
    d.lines += ["", "", f"async def {name}() -> int:", f'    raise Trouble("{name}")']
    return name


@dataclass
class _Node:
    name: str
    plain: list[str] = field(default_factory=list[str])
    sourced: list[str] = field(default_factory=list[str])
    explicit: dict[str, str] | None = field(default_factory=dict[str, str])
    """What a body could give for the sourced fields by itself; None where it cannot."""
    loops: bool = False


def _node(d: _Draw, name: str, start: str, gates: bool) -> _Node:
    node = _Node(name)
    node.plain.append("value: int = 7" if start == "dep" else "value: int")
    if start == "main":
        node.plain += ["items: list[int]", "topic: Topic"]
    elif not start and d.maybe(2):
        node.plain.append("items: list[int]")
    if not start and d.maybe(3):
        node.plain.append("left: int")
        node.loops = True
    explicit: dict[str, str] | None = {}
    for place in range(d.upto(3)):
        annotation, marker = _source(d)
        node.sourced.append(f"d{place}: Annotated[{annotation}, {marker}]")
        if annotation.startswith("int") and explicit is not None:
            explicit[f"d{place}"] = str(place)
        else:
            explicit = None
    if d.maybe(3):
        again = d.looking and d.maybe(2)
        made = d.one(*d.looking) if again else _looking_up(d)
        node.sourced.append(f"found: Annotated[int, Dep({made}, word='value'{_options(d, made)})]")
        explicit = None
    if d.lists and d.maybe(3):
        made = d.one(*d.lists)
        node.sourced.append(f"l: Annotated[list[int], Dep({made}{_options(d, made)})]")
        node.sourced.append(f"lm: Annotated[list[int], Map({_item_function(d)}, over='l')]")
        explicit = None
    if any(p.startswith("items") for p in node.plain) and d.maybe(2):
        limit = f", limit={1 + d.upto(2)}"
        if d.mapped and d.maybe(2):
            name, ends = d.one(*d.mapped)
            more = ", retries=1" if d.retries and d.maybe(3) else ""
            node.sourced.append(
                f"g: Annotated[list[{ends}], Map({name}, over='items'{limit}{more})]"
            )
            explicit = None
        else:
            node.sourced.append(
                f"m: Annotated[list[int], Map({_item_function(d)}, over='items'{limit})]"
            )
    if d.maybe(5):
        node.sourced.append("filled: Annotated[Noted, Dep()]")
        explicit = None
    if d.maybe(4):
        node.sourced.append("topic_again: Annotated[Topic, Recall()] = Topic()")
    if d.maybe(6):
        node.sourced.append(f"never: Annotated[int, Dep({_failing(d)})] = -1")
    if gates and d.maybe(5):
        node.sourced.append('ok: Annotated[bool, Gate("well?")]')
    node.explicit = (
        explicit
        if not any(s.startswith(("topic_again", "never", "ok", "m:")) for s in node.sourced)
        else None
    )
    return node


def _arguments(d: _Draw, target: _Node, whole: bool, left: str, value: str = "number(self)") -> str:
    said = [f"value={value}"]
    for plain in target.plain[1:]:
        if plain.startswith("items"):
            said.append("items=[self.value, 2]")
        if plain.startswith("left"):
            said.append(f"left={left}")
    if whole and target.explicit:
        d.in_vain = True
        said += [f"{name}={value}" for name, value in target.explicit.items()]
    return ", ".join(said)


def _body(d: _Draw, node: _Node, following: _Node | None, stop: _Node | None) -> list[str]:
    act = f'        await act(f"{node.name} {{self!r}}", {d.upto(3)})'
    if following is None:
        if d.maybe(2):
            return ["    async def __call__(self) -> None:", act]
        return ["    async def __call__(self) -> None: ..."]
    way = d.one("whole", "draft", "fill", "choose", "end", "make", "decide")
    name = following.name
    others = {"choose": [stop.name if stop is not None else name], "end": ["None"]}.get(way, [])
    hint = " | ".join([*[node.name] * node.loops, name, *others])
    if node.loops:  # the class is not there yet when its own annotation is read
        hint = f'"{hint}"'
    again: list[str] = []
    if node.loops:
        again = [
            "        if self.left > 0:",
            f"            return {node.name}({_arguments(d, node, False, 'self.left - 1')})",
        ]
    match way:
        case "whole" | "draft":
            made = _arguments(d, following, way == "whole", "1")
            body = [act, *again, f"        return {name}({made})"]
        case "make":
            body = [
                *again,
                "        made = await lm.make(self, Noted)",
                "        other = await lm.make(made, Noted)",
                act,
                f"        return {name}({_arguments(d, following, False, '1', 'other.value')})",
            ]
        case "decide":
            body = ["        found = await lm.decide(self)", act, "        return found"]
        case _:
            return [f"    async def __call__(self) -> {hint}: ..."]
    lm = ", lm: LM" if way in ("make", "decide") else ""
    return [f"    async def __call__(self{lm}) -> {hint}:", *body]


def _class(node: _Node, body: list[str]) -> list[str]:
    fields = sorted([*node.plain, *node.sourced], key=lambda field: " = " in field)
    return ["", "", f"class {node.name}(Node):", *(f"    {f}" for f in fields), "", *body]


def _graph(d: _Draw, name: str, start: str, gates: bool, most: int) -> str:
    """Write the classes of a graph, the last one first, and the graph; answers the type of its
    ends."""
    length = 1 + d.upto(most)
    nodes = [
        _node(d, f"{name.title()}N{place}", "" if place else start, gates)
        for place in range(length)
    ]
    stop = _Node(f"{name.title()}Stop", ["value: int"]) if d.maybe(2) else None
    if stop is not None:
        d.lines += _class(stop, ["    async def __call__(self) -> None: ..."])
    for place in reversed(range(length)):
        following = nodes[place + 1] if place + 1 < length else None
        body = _body(d, nodes[place], following, stop)
        d.lines += _class(nodes[place], body)
    d.lines += ["", "", f"{name} = Graph(start={nodes[0].name})"]
    d.lines.append(f"{name}_ends = Union[{name}.terminal_nodes]")
    return f"{name}_ends"


@st.composite
def random_graphs(draw: Any, *, gates: bool = True) -> Made:
    """Programs with a graph `main`, and graphs inside it."""
    d = _Draw(draw, draw(st.booleans()))
    d.lines += HEAD.strip().splitlines()
    d.lines += _class(_Node("Noted", ["value: int"]), ["    async def __call__(self) -> None: ..."])
    _function(d)
    while not d.functions:
        _function(d)
    for _ in range(d.upto(2)):
        _function(d)
    for place in range(d.upto(2)):
        kind = d.one("dep", "map")
        name = f"inner{place}"
        found = (name, _graph(d, name, kind, gates, 2))
        (d.graphs if kind == "dep" else d.mapped).append(found)
        if d.maybe(2):
            _function(d)
    _graph(d, "main", "main", gates, 4)
    text = "\n".join(d.lines) + "\n"
    flags = d.maybe(), d.maybe(), gates and d.maybe()
    return Made(text, d.retries, *flags, d.in_vain)
