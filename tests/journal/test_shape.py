"""What the shape of a graph promises: the same for the same classes, wherever and whenever they are
defined; and what has changed where they are not the same any more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, create_model

from bae import Graph, Node
from bae.journal import Change, RunInfo, StoredRun
from bae.journal.compatibility import changes_for
from bae.journal.decoder import read_history
from bae.journal.report import report_run
from bae.journal.shape import Shape, ShapeView, hash_of, shape_of
from bae.place import Place
from changed_code import CODE, graph
from end_node import EndNode
from journal_parts import expect_refusal

pytestmark = pytest.mark.once


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Size:
    wide: float


def changes(old: Shape, new: Graph[Any, Any]) -> list[Change]:
    """The changes for a run that has stored nothing yet."""
    info = RunInfo("r1", "Start", "running", 0.0, 0.0, old.hash)
    return changes_for(StoredRun(info, old.json, (), {}), new)


def changes_after(old: str, new: str) -> list[Change]:
    return changes(shape_of(graph(old)), graph(new))


def only(old: str, new: str) -> Change:
    changes = changes_after(old, new)
    assert len(changes) == 1, [str(change) for change in changes]
    return changes[0]


# The shape.


def test_equal_classes_of_two_modules_have_the_same_shape():
    assert shape_of(graph(module="here")) == shape_of(graph(module="there.and_deeper"))


def test_a_graph_that_is_only_renamed_has_the_same_hash():
    one, two = shape_of(graph(name="one")), shape_of(graph(name="two"))

    assert one.hash == two.hash
    assert changes(one, graph(name="two")) == []


def test_a_shape_is_the_same_in_every_process_and_on_every_python():
    class Start(EndNode):
        at: Point
        size: Size | None = None
        on: date
        tags: set[Literal["b", "a"]] = {"a", "b"}

    # Written down, so that it is compared with what other Pythons make of it, and with what other
    # hashes of text would make of the order in sets.
    fields = {
        "at": ("Point", True, "f84b4244ab335e0c"),
        "size": ("Size | None", False, "8d3e7664ff3e302c"),
        "on": ("date", True, "9e1c6f320adb183f"),
        "tags": ("set[Literal['b', 'a']]", False, "f8ffd018c558c235"),
    }
    assert json.loads(shape_of(Graph(start=Start)).json) == {
        "format": 2,
        "graphs": [
            {
                "name": "Start",
                "start": "Start",
                "classes": {
                    "Start": {
                        "fields": {
                            name: {"kind": "plain", "type": t, "required": r, "schema": schema}
                            for name, (t, r, schema) in fields.items()
                        },
                        "next": [],
                        "ends": True,
                        "written": False,
                    }
                },
            }
        ],
        "calls": [],
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 99}', "{}"])
def test_an_unreadable_stored_shape_is_ignored(text: str):
    assert changes(Shape(text, "another"), graph()) == []
    assert ShapeView(text, "").call_at(Place(node="Day", field="weather")) is None


@pytest.mark.parametrize(("old", "new"), [('"call":0', '"call":99'), ('"kind"', '"kin"')])
@pytest.mark.parametrize("claimed", ["the old one", "none of a graph", "its own"])
def test_a_damaged_stored_shape_is_reported(claimed: str, old: str, new: str):
    shape = shape_of(graph())
    text = shape.json.replace(old, new)
    assert text != shape.json
    hashes = {"the old one": shape.hash, "its own": hash_of(json.loads(text))}
    info = RunInfo("damaged", "Day", "ended", 0.0, 0.0, hashes.get(claimed, claimed))
    stored = StoredRun(info, text, (), {})

    for read in (read_history, report_run, lambda run: changes_for(run, graph(PLAIN))):
        with expect_refusal("bae-journal-damaged"):
            read(stored)


# What has changed.

PLAIN = """
class Start(Node):
    a: int
    async def __call__(self) -> None: ...
"""


def test_changed_docstrings_descriptions_and_code_are_not_reported():
    described = CODE.replace("    short: str\n", "    short: str = Field(description='brief')\n")
    other = described.replace("Docstrings are for people.", "Other words.")

    assert changes_after(described, other.replace("brief", "long").replace("upper", "lower")) == []


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("b: str", "is new and has no default"),
        ("b: int = 3", "is new"),
        ("b: Annotated[int, Gate('How many?')]", "is new"),
        ("b: Annotated[int, Dep(int)]", "is new"),
    ],
)
def test_new_and_removed_fields_are_reported(field: str, what: str):
    more = PLAIN.replace("    a: int\n", f"    a: int\n    {field}\n")
    new, gone = only(PLAIN, more), only(more, PLAIN)

    assert (new.place, new.kind, str(new)) == ("Start.b", "new", f"Start.b {what}")
    assert (gone.place, gone.kind, str(gone)) == ("Start.b", "gone", "Start.b is gone")


def test_a_renamed_class_is_reported_as_a_removed_and_a_new_class():
    changes = changes_after(CODE, CODE.replace("Outfit", "Clothes"))

    assert {(c.place, c.kind) for c in changes} == {
        ("Outfit", "gone"),
        ("Clothes", "new"),
        ("Day -> Outfit", "gone"),
        ("Day -> Clothes", "new"),
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "-> Day: ...",
            "-> Day: return Day(mood=Mood.low, words=[])",
            "Start had an empty body and has a written body now",
        ),
        (
            'Annotated[bool, Gate("Fine?")]',
            "bool",
            "Outfit.fine had a Gate and has no source now",
        ),
        (
            "get_weather",
            "ask_weather",
            "Day.weather had the function get_weather and has the function ask_weather now",
        ),
        (
            "    top: str\n",
            "    top: str = ''\n",
            "Outfit.top had no default and has a default now",
        ),
        (
            "    top: str\n",
            "    top: int\n",
            "Outfit.top had the type str and has the type int now",
        ),
        (
            "    text: str\n",
            "    text: str\n    length: int\n",
            "Summary.length (in the graph Summary) is new and has no default",
        ),
        ("degrees: float", "degrees: str", "Day.weather has a type that has changed"),
        ("Outfit | AskBack", "Outfit", "Day -> AskBack is gone"),
        (
            "top: str\n    async def __call__(self) -> None",
            "top: str\n    async def __call__(self) -> Start",
            "Outfit -> None is gone",
        ),
    ],
)
def test_a_change_shows_the_old_and_the_new_value(old: str, new: str, said: str):
    assert said in [str(change) for change in changes_after(CODE, CODE.replace(old, new))]


def test_a_changed_indirect_dependency_is_reported_at_every_dependent_field():
    changes = changes_after(CODE, CODE.replace("get_city", "find_city"))

    assert {(c.place, c.graph) for c in changes} == {
        ("Day.weather(city)", ""),
        ("Outfit.place", ""),
        ("Summary.city", "Summary"),
    }


json_types = st.recursive(
    st.sampled_from([int, str, float, bool, None]),
    lambda inner: (
        inner.map(lambda t: list[t])
        | inner.map(lambda t: dict[str, t])
        | inner.map(lambda t: create_model("Held", a=(t, ...), b=(list[t], [])))
    ),
    max_leaves=5,
)


def holding(tp: Any) -> Graph[Any, Any]:
    async def call(self: Any) -> None: ...

    body = {"__annotations__": {"a": tp}, "__call__": call, "__module__": __name__}
    return Graph(start=type("Start", (Node,), body))


@settings(max_examples=30)
@given(json_types, json_types)
def test_different_types_have_different_shapes(one: Any, two: Any):
    first, second = shape_of(holding(one)), shape_of(holding(two))

    assert first == shape_of(holding(one))
    if TypeAdapter(one).json_schema() != TypeAdapter(two).json_schema():
        assert first.hash != second.hash
        assert [c.place for c in changes(first, holding(two))] == ["Start.a"]


WORDS = """
from bae import NodeConfig

class Start(Node):
    async def __call__(self) -> End | None: ...

class End(Node):
    node_config = NodeConfig(instruction="Sum it up.", description="a summary")
    text: str
    async def __call__(self) -> None: ...
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Sum it up.", "Sum up.", "had the instruction 'Sum it up.' and has the instruction"),
        ("a summary", "the end", "had the description 'a summary' and has the description"),
        ('node_config = NodeConfig(instruction="Sum it up.", description="a summary")', "", "had"),
    ],
)
def test_changed_prompt_words_are_reported_but_break_no_run(old, new, said):
    (change,) = changes_after(WORDS, WORDS.replace(old, new))
    assert change.place == "End"
    assert change.what.startswith(said)
    assert not change.breaks


def test_a_changed_system_text_is_reported_but_breaks_no_run():
    before = shape_of(graph(WORDS, system="Be brief."))
    (change,) = changes(before, graph(WORDS))
    assert str(change) == "the graph had the system 'Be brief.'"
    assert not change.breaks


def test_recursive_graphs_have_a_shape():
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
    assert shape["calls"] == [{"by": "Start", "inputs": {}, "graph": 0}]
