"""What the shape of a graph promises: the same for the same classes, wherever and whenever they are
defined; and what `changes` says about classes that are not the same any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, TypeAdapter, create_model

from bae import Graph, Node
from bae.journal.shape.changes import Change, changes
from bae.journal.shape.shapes import ShapeView, segments, shape_of

pytestmark = pytest.mark.once


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Size:
    wide: float


HEAD = """
from __future__ import annotations
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from pydantic import BaseModel, Field
from bae import LM, Dep, Gate, Graph, Map, Node, Recall
"""


def classes(text: str, module: str = "somewhere") -> dict[str, Any]:
    """The names that a piece of code defines, as a module of its own would."""
    names: dict[str, Any] = {"__name__": module}
    exec(HEAD + textwrap.dedent(text), names)
    return names


def graph(text: str, start: str = "Start", name: str | None = None) -> Graph[Any, Any]:
    return Graph(start=classes(text)[start], name=name)


def changed(old: str, new: str) -> list[Change]:
    return changes(shape_of(graph(old)).json, shape_of(graph(new)))


def only(old: str, new: str) -> Change:
    found = changed(old, new)
    assert len(found) == 1, [str(each) for each in found]
    return found[0]


DAY = """
class Mood(str, Enum):
    low = "low"
    high = "high"

class Weather(BaseModel):
    '''Docstrings are for people.'''
    degrees: float
    words: list[str] = []

async def get_city() -> str: ...
async def get_weather(city: Annotated[str, Dep(get_city)]) -> Weather: ...
async def shout(word: str, city: Annotated[str, Dep(get_city)]) -> str: ...

class Summary(Node):
    text: str
    city: Annotated[str, Dep(get_city)]
    async def __call__(self) -> None: ...

class Start(Node):
    message: str
    async def __call__(self) -> Day: ...

class Day(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    mood: Mood = Field(description="how it feels")
    words: list[str]
    loud: Annotated[list[str], Map(shout, over="words")]
    summaries: Annotated[list[Summary], Map(Summary, over="words")]
    fine: Annotated[bool, Gate("Fine?")] = True
    async def __call__(self) -> Outfit | Start: ...

class Outfit(Node):
    mood: Annotated[Mood, Recall()]
    top: str
    async def __call__(self) -> None:
        print(self.top)
"""


# The shape.


def test_a_shape_says_what_the_classes_look_like():
    shape = json.loads(shape_of(graph(DAY)).json)

    run, summary = shape["graphs"]
    assert run["start"] == "Start"
    assert list(run["classes"]) == ["Start", "Day", "Outfit"]
    assert summary["name"] == "Summary"
    day = run["classes"]["Day"]
    assert day["next"] == ["Outfit", "Start"]
    assert not day["ends"]
    assert not day["written"]
    assert run["classes"]["Outfit"]["written"]
    assert run["classes"]["Outfit"]["ends"]
    kinds = {name: field["kind"] for name, field in day["fields"].items()}
    assert kinds == {
        "weather": "dep",
        "mood": "plain",
        "words": "plain",
        "loud": "map",
        "summaries": "map",
        "fine": "gate",
    }
    assert day["fields"]["mood"] == {
        "kind": "plain",
        "type": "Mood",
        "required": True,
        "description": "how it feels",
        "schema": {"$ref": "Mood"},
    }
    assert day["fields"]["fine"]["question"] == "Fine?"
    assert not day["fields"]["fine"]["required"]
    assert day["fields"]["loud"]["over"] == "words"
    assert shape["types"]["Weather"] == {
        "type": "object",
        "properties": {
            "degrees": {"type": "number"},
            "words": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["degrees"],
    }


def test_the_same_function_behind_two_fields_is_the_same_call():
    view = ShapeView(shape_of(graph(DAY)).json)

    city = view.call_at("", "Day", "weather", "(city)")
    assert city is not None
    assert view.calls[city]["by"] == "get_city"
    assert view.call_at("", "Day", "loud", "(city)") == city
    assert view.call_at("1:Day.summaries[7]", "Summary", "city") == city
    assert view.is_shared("1:Day.summaries[7]", "Summary", "city")
    assert not view.is_shared("", "Day", "loud")
    assert view.call_at("", "Day", "mood") is None
    assert view.call_at("", "Day", "weather", "(nobody)") is None
    assert view.call_at("9:Nobody.field", "Summary", "city") is None


def test_a_dependency_that_is_called_for_each_field_is_not_shared():
    view = ShapeView(
        shape_of(graph(DAY.replace("Dep(get_weather)", "Dep(get_weather, cache=False)"))).json
    )

    assert not view.is_shared("", "Day", "weather")
    assert view.is_shared("", "Day", "weather", "(city)")


def test_a_shape_is_worked_out_once_for_a_graph():
    day = graph(DAY)

    assert shape_of(day) is shape_of(day)


def test_classes_that_are_defined_twice_have_one_shape():
    one = Graph(start=classes(DAY, "here")["Start"])
    two = Graph(start=classes(DAY, "there.and_deeper")["Start"])

    assert shape_of(one) == shape_of(two)


def test_classes_inside_a_function_have_the_shape_of_those_of_a_module():
    inside = "def make():\n" + textwrap.indent(textwrap.dedent(DAY), "    ") + "    return Start\n"

    assert shape_of(Graph(start=classes(inside)["make"]())) == shape_of(graph(DAY))


def test_two_types_of_one_name_are_told_apart_without_their_modules():
    text = """
    def inner():
        class Mood(BaseModel):
            level: int
        return Mood
    Other = inner()
    class Mood(BaseModel):
        word: str
    class Start(Node):
        one: Mood
        two: Other
        async def __call__(self) -> None: ...
    """
    here = shape_of(Graph(start=classes(text, "here")["Start"]))

    assert list(json.loads(here.json)["types"]) == ["Mood", "Mood-2"]
    assert here == shape_of(Graph(start=classes(text, "there")["Start"]))


def test_a_graph_that_is_only_renamed_has_the_same_hash():
    one, two = shape_of(graph(DAY, name="one")), shape_of(graph(DAY, name="two"))

    assert one.hash == two.hash
    assert changes(one.json, two) == []


def test_a_shape_is_the_same_in_every_process():
    code = HEAD + DAY + "from bae.journal.shape.shapes import shape_of\n"
    code += 'Start.__annotations__; s = shape_of(Graph(start=Start)); print(s.hash, s.json, sep="")'
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "77")
    }

    here = shape_of(graph(DAY))
    assert texts == {here.hash + here.json}


def test_a_shape_is_the_same_on_every_python():
    class Start(Node):
        at: Point
        size: Size | None = None
        on: date
        tags: set[Literal["b", "a"]] = {"a", "b"}

        async def __call__(self) -> None: ...

    # Written down, so that it is compared with what other Pythons make of it.
    assert json.loads(shape_of(Graph(start=Start)).json) == {
        "format": 1,
        "graphs": [
            {
                "name": "Start",
                "start": "Start",
                "classes": {
                    "Start": {
                        "fields": {
                            "at": {
                                "kind": "plain",
                                "type": "Point",
                                "required": True,
                                "schema": {"$ref": "Point"},
                            },
                            "size": {
                                "kind": "plain",
                                "type": "Size | None",
                                "required": False,
                                "schema": {"anyOf": [{"$ref": "Size"}, {"type": "null"}]},
                            },
                            "on": {
                                "kind": "plain",
                                "type": "date",
                                "required": True,
                                "schema": {"type": "string", "format": "date"},
                            },
                            "tags": {
                                "kind": "plain",
                                "type": "set[Literal['b', 'a']]",
                                "required": False,
                                "schema": {
                                    "type": "array",
                                    "items": {"type": "string", "enum": ["b", "a"]},
                                    "uniqueItems": True,
                                },
                            },
                        },
                        "next": [],
                        "ends": True,
                        "written": False,
                    }
                },
            }
        ],
        "calls": [],
        "types": {
            "Point": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "integer"}],
                "minItems": 1,
                "maxItems": 2,
            },
            "Size": {
                "type": "object",
                "properties": {"wide": {"type": "number"}},
                "required": ["wide"],
            },
        },
    }


def test_types_that_json_cannot_say_have_a_shape_too():
    text = """
    class Client: ...
    class Odd:
        @classmethod
        def __get_pydantic_core_schema__(cls, source, handler):
            from pydantic_core import core_schema
            return core_schema.any_schema()
        @classmethod
        def __get_pydantic_json_schema__(cls, schema, handler):
            raise RuntimeError("no")
    class Extra(BaseModel):
        model_config = {"json_schema_extra": {"on": date(2026, 1, 1)}}
        a: int
    def client() -> Client: ...
    def unsaid(): ...
    def odd() -> Odd: ...
    class Start(Node):
        client: Annotated[Client, Dep(client)]
        clients: Annotated[list[Client], Dep(unsaid)]
        odd: Annotated[Odd, Dep(odd)]
        extra: Extra
        async def __call__(self) -> None: ...
    """
    shape = shape_of(graph(text))
    fields = json.loads(shape.json)["graphs"][0]["classes"]["Start"]["fields"]

    assert fields["client"]["schema"] == {"python": "Client"}
    assert fields["clients"]["schema"] == {"type": "array", "items": {"python": "Client"}}
    assert "schema" not in fields["odd"]
    assert json.loads(shape.json)["types"]["Extra"]["on"] == "<date>"
    assert "0x" not in shape.json
    assert shape == shape_of(graph(text))


def test_graphs_that_lead_to_each_other_have_a_shape():
    text = """
    class Start(Node):
        again: Annotated[Start, Dep(Start)]
        tree: Tree
        async def __call__(self) -> Start | None: ...
    class Tree(BaseModel):
        branches: list[Tree]
    """
    shape = json.loads(shape_of(graph(text)).json)

    assert len(shape["graphs"]) == 1
    assert shape["calls"] == [{"by": "Start", "kind": "graph", "inputs": {}, "graph": 0}]


def test_a_function_that_many_parameters_lead_to_is_said_once():
    rows = ["def f0() -> int: ..."]
    rows += [
        f"def f{n}(a: Annotated[int, Dep(f{n - 1})], b: Annotated[int, Dep(f{n - 1})]) -> int: ..."
        for n in range(1, 30)
    ]
    text = (
        "\n".join(rows)
        + """
class Start(Node):
    n: Annotated[int, Dep(f29)]
    async def __call__(self) -> None: ...
"""
    )
    shape = shape_of(graph(text))

    assert len(json.loads(shape.json)["calls"]) == 30
    assert len(shape.json) < 10_000
    assert changes(shape.json, shape) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 99}', "{}"])
def test_a_stored_shape_that_cannot_be_read_is_passed_over(text: str):
    assert changes(text, shape_of(graph(DAY))) == []
    assert ShapeView(text).call_at("", "Day", "weather") is None


def test_paths_are_taken_apart():
    assert [
        tuple(part) for part in segments("2:Report.x(by)(client)/1:Pair[int].b[3]/Out") or ()
    ] == [
        (2, "Report", "x", "(by)(client)", None),
        (1, "Pair[int]", "b", "", 3),
        (None, "Out", "", "", None),
    ]
    assert segments("") == []
    assert segments("a//b") is None


# What has changed.

PLAIN = """
class Start(Node):
    a: int
    async def __call__(self) -> None: ...
"""


def test_classes_that_are_the_same_have_not_changed():
    assert changed(DAY, DAY) == []


def test_docstrings_and_code_are_no_changes():
    other = DAY.replace("Docstrings are for people.", "Other words.").replace("print", "repr")

    assert changed(DAY, other) == []


def test_a_new_field_with_a_default_or_a_source_breaks_nothing():
    for field in (
        "    b: int = 3",
        "    b: Annotated[int, Gate('How many?')]",
        "    b: Annotated[int, Dep(int)]",
    ):
        change = only(PLAIN, PLAIN.replace("    a: int\n", f"    a: int\n{field}\n"))
        assert change.place == "Start.b"
        assert change.kind == "field-new"
        assert not change.breaks


def test_a_new_plain_field_without_a_default_may_break_a_run():
    change = only(PLAIN, PLAIN.replace("    a: int\n", "    a: int\n    b: str\n"))

    assert change.place == "Start.b"
    assert change.breaks
    assert str(change) == (
        "Start.b is new and has no default: a node that was stored without it cannot be built"
    )
    assert change.fix == "give Start.b a default, or a source"


def test_a_field_that_is_gone_breaks_nothing():
    change = only(PLAIN.replace("    a: int\n", "    a: int\n    b: str\n"), PLAIN)

    assert (change.place, change.kind, change.breaks) == ("Start.b", "field-gone", False)


def test_a_description_breaks_nothing():
    change = only(DAY, DAY.replace("how it feels", "how you feel"))

    assert (change.place, change.kind, change.breaks) == ("Day.mood", "description", False)


def test_a_class_that_is_gone_may_break_a_run_and_a_new_one_does_not():
    found = changed(DAY, DAY.replace("Outfit", "Clothes"))

    assert {(c.place, c.kind, c.breaks) for c in found} == {
        ("Outfit", "class-gone", True),
        ("Clothes", "class-new", False),
        ("Day -> Outfit", "route-gone", True),
        ("Day -> Clothes", "route-new", False),
    }
    gone = next(c for c in found if c.kind == "class-gone")
    assert "renamed" in gone.fix


def test_a_route_that_is_gone_may_break_a_run():
    change = only(DAY, DAY.replace("Outfit | Start", "Outfit"))

    assert (change.place, change.kind, change.breaks) == ("Day -> Start", "route-gone", True)


def test_the_end_is_a_route_too():
    change = only(PLAIN.replace("-> None", "-> Start | None"), PLAIN.replace("-> None", "-> Start"))

    assert (change.place, change.kind, change.breaks) == ("Start -> None", "route-gone", True)


def test_a_body_that_is_written_now_is_said():
    change = only(DAY, DAY.replace("-> Day: ...", "-> Day: return Day(mood=Mood.low, words=[])"))

    assert (change.place, change.kind, change.breaks) == ("Start", "body", False)


def test_a_source_that_became_another_kind_may_break_a_run():
    change = only(DAY, DAY.replace('Annotated[bool, Gate("Fine?")] = True', "bool = True"))

    assert (change.place, change.kind, change.breaks) == ("Day.fine", "source", True)
    assert change.what == "had Gate and has no source now"


def test_another_function_behind_a_field_breaks_nothing():
    change = only(DAY, DAY.replace("get_weather", "ask_weather"))

    assert (change.place, change.kind, change.breaks) == ("Day.weather", "by", False)
    assert "ask_weather" in change.what
    assert "get_weather" in change.what


def test_another_function_further_down_is_said_at_every_field_that_it_is_behind():
    found = changed(DAY, DAY.replace("get_city", "find_city"))

    assert {(c.place, c.graph) for c in found} == {
        ("Day.weather(city)", ""),
        ("Day.loud(city)", ""),
        ("Summary.city", "Summary"),
    }
    assert not any(c.breaks for c in found)


def test_a_changed_class_of_a_graph_inside_is_found_and_named():
    change = only(DAY, DAY.replace("    text: str\n", "    text: str\n    length: int\n"))

    assert (change.place, change.graph, change.breaks) == ("Summary.length", "Summary", True)
    assert "in the graph Summary" in str(change)


def test_a_changed_type_inside_a_field_is_named_at_its_place():
    found = changed(DAY, DAY.replace("    degrees: float\n", "    degrees: str\n"))

    assert [(c.place, c.kind, c.breaks) for c in found] == [("Day.weather.degrees", "type", True)]
    assert found[0].what == "was number and is string now"


def test_what_a_function_returns_is_compared_where_the_field_says_something_else():
    old = DAY.replace("weather: Annotated[Weather", "weather: Annotated[Any")
    change = only(old, old.replace("    degrees: float\n", "    degrees: str\n"))

    assert (change.place, change.kind, change.breaks) == ("Day.weather", "type", True)
    assert change.what == "what get_weather returns.degrees was number and is string now"


def test_another_start_is_said():
    text = DAY.replace(
        "async def __call__(self) -> Day: ...", "async def __call__(self) -> Day: ..."
    )
    found = changes(shape_of(graph(text)).json, shape_of(graph(text, "Day")))

    assert [(c.place, c.kind, c.breaks) for c in found] == [("Day", "start", False)]


WIDER = [
    ("int", "float"),
    ("int", "int | None"),
    ("int", "int | str"),
    ("int", "Any"),
    ("list[int]", "list[int | str]"),
    ("Literal['a']", "Literal['a', 'b']"),
    ("Literal['a']", "str"),
    ("Annotated[int, Field(ge=3)]", "int"),
    ("Annotated[int, Field(ge=3)]", "Annotated[int, Field(ge=0)]"),
    ("Annotated[str, Field(max_length=3)]", "Annotated[str, Field(max_length=30)]"),
    ("dict[str, int]", "dict[str, float]"),
    ("list[int]", "set[int]"),
    ("int | None", "None | int"),
]


@pytest.mark.parametrize(("old", "new"), WIDER, ids=lambda each: str(each))
def test_a_wider_type_breaks_nothing(old: str, new: str):
    found = changed(PLAIN.replace("a: int", f"a: {old}"), PLAIN.replace("a: int", f"a: {new}"))

    assert found
    assert not any(change.breaks for change in found), [str(each) for each in found]


NARROWER = [
    ("int", "str"),
    ("float", "int"),
    ("int | None", "int"),
    ("Any", "int"),
    ("list[int]", "list[str]"),
    ("list[int]", "dict[str, int]"),
    ("list", "list[int]"),
    ("dict", "dict[str, int]"),
    ("Literal['a', 'b']", "Literal['a']"),
    ("str", "Literal['a']"),
    ("int", "Annotated[int, Field(ge=3)]"),
    ("str", "date"),
    ("date", "datetime"),
    ("str", "Annotated[str, Field(pattern='^a')]"),
    ("tuple[int, int]", "tuple[int, int, int]"),
    ("tuple[int, str]", "tuple[int, int]"),
    ("dict[str, int]", "dict[str, str]"),
    ("Annotated[int, Field(le=9)]", "Annotated[int, Field(le=3)]"),
]


@pytest.mark.parametrize(("old", "new"), NARROWER, ids=lambda each: str(each))
def test_a_narrower_or_other_type_may_break_a_run(old: str, new: str):
    found = changed(PLAIN.replace("a: int", f"a: {old}"), PLAIN.replace("a: int", f"a: {new}"))

    assert any(change.breaks for change in found), [str(each) for each in found]
    assert all(change.place.startswith("Start.a") for change in found)


def test_changes_inside_a_model_are_found_and_judged():
    old = """
    class Size(BaseModel):
        wide: int
        tall: int = 0
        inner: Size | None = None
    class Start(Node):
        a: list[Size]
        async def __call__(self) -> None: ...
    """
    assert not only(
        old, old.replace("tall: int = 0", "tall: int = 0\n        deep: int = 0")
    ).breaks
    assert only(old, old.replace("tall: int = 0", "tall: int = 0\n        deep: int")).breaks
    assert not only(old, old.replace("        tall: int = 0\n", "")).breaks
    assert only(old, old.replace("tall: int = 0", "tall: int")).breaks
    renamed = only(old, old.replace("tall: int = 0", "tall: str = ''"))
    assert renamed.place == "Start.a[].tall"
    assert renamed.what == "was integer and is string now"
    assert only(
        old, old.replace("wide: int", "model_config = {'json_schema_extra': {'odd': 1}}; wide: int")
    ).breaks
    closed = changed(
        old, old.replace("        tall: int = 0\n", "        model_config = {'extra': 'forbid'}\n")
    )
    assert any(change.breaks and change.place.endswith(".tall") for change in closed)


def test_types_that_lead_to_each_other_in_many_ways_are_compared_at_once():
    models = "".join(
        f"class M{n}(BaseModel):\n    to: "
        + " | ".join(f"M{(n + step) % 12}" for step in range(1, 6))
        + f" | {'int' if n else 'A'}\n"
        for n in range(12)
    )
    old = models + PLAIN.replace("a: int", "a: M3")

    found = changed(old.replace("| A", "| str"), old.replace("| A", "| date | int"))

    assert any(change.breaks for change in found)
    assert changed(old.replace("| A", "| str"), old.replace("| A", "| str")) == []


def test_a_type_that_was_only_renamed_takes_what_was_stored():
    old = PLAIN.replace("a: int", "a: Size")
    size = "class Size(BaseModel):\n    wide: int\n"
    change = only(size + old, (size + old).replace("Size", "Extent"))

    assert (change.what, change.breaks) == ("was Size and is Extent now", False)


json_types = st.recursive(
    st.sampled_from([int, str, float, bool, None]),
    lambda inner: (
        inner.map(lambda t: list[t])
        | inner.map(lambda t: dict[str, t])
        | st.tuples(inner, inner).map(lambda ts: ts[0] | ts[1] if _joins(*ts) else list[ts[0]])
        | inner.map(
            lambda t: create_model("Held", a=(t, ...), b=(t | None if _joins(t, None) else t, None))
        )
    ),
    max_leaves=5,
)


def _joins(one: Any, two: Any) -> bool:
    try:
        _ = one | two
    except TypeError:
        return False
    return True


def holding(tp: Any, **more: Any) -> Graph[Any, Any]:
    async def call(self: Any) -> None: ...

    body = {"__annotations__": {"a": tp}, "__call__": call, "__module__": __name__, **more}
    return Graph(start=type("Start", (Node,), body))


@given(json_types)
def test_any_type_is_the_same_as_itself_and_narrower_than_any(tp: Any):
    shape, anything = shape_of(holding(tp)), shape_of(holding(Any))

    assert shape == shape_of(holding(tp))
    assert changes(shape.json, shape_of(holding(tp))) == []
    assert not any(c.breaks for c in changes(shape.json, anything))
    assert all(c.breaks for c in changes(anything.json, shape) if c.kind == "type")


@given(json_types, json_types)
def test_a_union_takes_whatever_its_members_took(one: Any, two: Any):
    if not _joins(one, two):
        return
    both = shape_of(holding(one | two))

    assert not any(c.breaks for c in changes(shape_of(holding(one)).json, both))
    assert not any(c.breaks for c in changes(shape_of(holding(two)).json, both))


Valued = tuple[Any, st.SearchStrategy[Any]]

LEAVES: list[Valued] = [
    (int, st.integers(-(2**50), 2**50)),
    (str, st.text(max_size=3)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (None, st.none()),
    (date, st.dates()),
    (Annotated[int, Field(ge=0, le=9)], st.integers(0, 9)),
    (Annotated[int, Field(ge=3)], st.integers(3, 99)),
    (Annotated[str, Field(max_length=2)], st.text(max_size=2)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal["a", 1], st.sampled_from(["a", 1])),
]


def _model(required: Valued, optional: Valued, closed: bool) -> Valued:
    config = ConfigDict(extra="forbid" if closed else "ignore")
    model = create_model(
        "Held", __config__=config, a=(required[0], ...), b=(Optional[optional[0]], None)
    )
    return model, st.builds(model, a=required[1], b=st.none() | optional[1])


def _either(one: Valued, two: Valued) -> Valued:
    return Union[one[0], two[0]], one[1] | two[1]


valued = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        inner.map(lambda v: (list[v[0]], st.lists(v[1], max_size=2)))
        | inner.map(lambda v: (dict[str, v[0]], st.dictionaries(st.text("ab", max_size=1), v[1])))
        | st.tuples(inner, inner).map(lambda vs: _either(*vs))
        | st.tuples(inner, inner, st.booleans()).map(lambda vs: _model(*vs))
        | st.tuples(inner, inner).map(
            lambda vs: (tuple[vs[0][0], vs[1][0]], st.tuples(vs[0][1], vs[1][1]))
        )
    ),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(valued, valued, st.data())
def test_a_type_that_is_said_to_take_the_old_values_takes_them(
    one: Valued, two: Valued, data: st.DataObject
):
    found = changes(shape_of(holding(one[0])).json, shape_of(holding(two[0])))
    if any(change.breaks for change in found):
        return
    stored = TypeAdapter(one[0]).dump_json(data.draw(one[1]))

    TypeAdapter(two[0]).validate_json(stored)


def test_a_field_info_is_not_looked_into_for_its_default():
    text = PLAIN.replace("a: int", "a: int = Field(default_factory=lambda: 1 / 0)")

    field = json.loads(shape_of(graph(text)).json)["graphs"][0]["classes"]["Start"]["fields"]["a"]
    assert field == {
        "kind": "plain",
        "type": "int",
        "required": False,
        "schema": {"type": "integer"},
    }
