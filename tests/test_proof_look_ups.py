"""What the proof says about arguments from the run: that they are there, that they fit, and that
fields do not wait for each other."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from bae import LM, Dep, DepError, Graph, Map, Node, Recall
from bae.resolver import resolve_fields, validate_node_deps
from end_node import EndNode, leading_to
from proving import Mood, codes, problems, the_error, the_problem


def search(query: str, top: int = 5) -> list[str]:
    return [query] * top


def feel(mood: Annotated[Mood, Recall()]) -> str:
    return mood.name


def feel_more(felt: Annotated[str, Dep(feel)]) -> str:
    return felt * 2


def node(**fields: Any) -> type[Node]:
    """A node class that the run ends at."""
    return leading_to(None, name="Page", **fields)


def after(following: type[Node], **fields: Any) -> type[Node]:
    """A node class that leads to another."""
    return leading_to(following, name="Ask", **fields)


# Bindings


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        (Dep(search, qery="text"), "search has no such parameter; it has: query, top"),
        (Dep(search, query="text"), "bound to the field 'text', and Page has no such field"),
        (Dep(feel, mood="word"), "its annotation says Recall, which fills it"),
        (Dep(feel_more, felt="word"), "its annotation says Dep, which fills it"),
        (Dep(lambda word, lm: "", word=Recall()), "by the type of word, which is not annotated"),
    ],
)
def test_an_impossible_binding_is_an_error_that_names_the_possible_bindings(marker: Dep, said: str):
    reported = problems(node(word=str, hits=Annotated[Any, marker]))

    (problem,) = (candidate for candidate in reported if candidate.code == "bae-dep-binding")
    assert (problem.severity, problem.place) == ("error", "Page.hits")
    assert said in problem.message


def test_an_error_for_a_binding_of_a_graph_names_its_start_fields():
    class Inner(EndNode):
        topic: str
        mood: Annotated[Mood, Dep(Mood)]

    graph = Graph(start=Inner, name="Inside")
    problem = the_problem(node(word=str, x=Annotated[Inner, Dep(graph, topic="word", to="word")]))

    assert "Inside has no such field of its start node; it has: topic" in problem.message
    fitting = node(word=str, x=Annotated[Inner, Dep(graph, topic="word")])
    assert problems(fitting) == []
    other = node(word=int, x=Annotated[Inner, Dep(graph, topic="word")])
    assert codes(other) == [("bae-dep-type", "Page.x")]


def test_a_bound_field_of_the_wrong_type_is_an_error():
    page = node(word=str | None, hits=Annotated[list[str], Dep(search, query="word")])
    problem = the_error("bae-dep-type", "Page.hits", page)
    assert "search(query) takes str, but the field word is str | None" in problem.message


def test_an_unbound_parameter_is_an_error_that_shows_how_to_bind_it():
    missing = problems(node(number=int, hits=Annotated[list[str], Dep(search, top="number")]))
    assert [(problem.code, problem.message) for problem in missing] == [
        ("bae-dep-unfilled", "nothing can fill the parameter query of search")
    ]
    assert 'Dep(search, query="…")' in missing[0].fix


def test_only_a_recall_can_be_bound_on_a_parameter():
    def rank(hits: Annotated[list[str], Dep(search, query="word")]) -> int:
        return 1

    page = node(word=str, best=Annotated[int, Dep(rank)])
    problem = the_error("bae-dep-binding", "Page.best", page)
    assert "a parameter of a function sees no fields" in problem.message


def test_options_of_a_marker_cannot_be_bound_as_parameters():
    def fetch(timeout: str, lm: LM) -> str:
        return timeout

    problem = the_problem(node(word=str, x=Annotated[str, Dep(fetch)]))
    assert "timeout is an option of Dep" in problem.fix
    with pytest.raises(ValueError, match="timeout is an option of Dep; a parameter of that name"):
        Dep(fetch, timeout="word")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="retries is an option of Map"):
        Map(fetch, over="words", retries=Recall())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"functools\.partial\(…, top=5\)"):
        Dep(search, top=5)  # type: ignore[arg-type]


def test_markers_with_different_bindings_are_unequal_and_get_no_warning():
    assert Dep(search, query="a", top="b") == Dep(search, top="b", query="a")
    assert Dep(search, query="a") != Dep(search, query="b")
    both = node(
        a=str,
        b=str,
        x=Annotated[list[str], Dep(search, query="a")],
        y=Annotated[list[str], Dep(search, query="b")],
    )
    assert problems(both) == []


def test_a_map_leaves_one_parameter_for_the_item_besides_the_bound_parameters():
    def rate(item: str, query: str, scale: int) -> int:
        return scale

    bound = {"words": list[str], "query": str, "scale": int}
    good = node(**bound, x=Annotated[list[int], Map(rate, "words", query="query", scale="scale")])
    assert problems(good) == []
    bad = node(**bound, x=Annotated[list[int], Map(rate, "words", query="query")])
    assert codes(bad) == [("bae-map-item", "Page.x")]


# Paths


def test_a_recalled_parameter_is_proved_on_every_path():
    page = node(x=Annotated[str, Dep(feel_more)])
    good = after(page, mood=Mood)
    bad = after(page, word=str)
    unsure = after(page, mood=Mood | None)
    two = after(page, a=Mood, b=Mood)
    bound = after(node(x=Annotated[list[str], Dep(search, query=Recall(bad))]), word=str)

    assert problems(good) == []
    assert codes(bad) == [("bae-recall-path", "Page.x(felt)(mood)")]
    assert codes(unsure) == [("bae-recall-unsure", "Page.x(felt)(mood)")]
    assert codes(two) == [("bae-recall-ambiguous", "Page.x(felt)(mood)")]
    assert codes(bound) == [("bae-recall-path", "Page.x(query)")]
    assert codes(page) == [("bae-recall-start", "Page.x(felt)(mood)")]
    assert "give the parameter a default" in problems(bad)[0].fix
    assert any("Recall() on the start node" in line for line in validate_node_deps(page, True))


def test_a_default_of_the_parameter_or_field_replaces_a_missing_recall():
    def feel_maybe(mood: Annotated[Mood | None, Recall()] = None) -> str:
        return ""

    class Defaults(EndNode):
        a: Annotated[str, Dep(feel_maybe)]
        b: Annotated[str, Dep(feel)] = "none"

    assert problems(Defaults) == []


def test_a_recalled_parameter_in_a_subgraph_finds_values_of_the_outer_trace():
    inner = node(x=Annotated[str, Dep(feel)])
    outer = type(Node)("Outer", (node(inside=Annotated[inner, Dep(inner)]),), {})

    assert problems(after(outer, mood=Mood)) == []
    assert codes(after(outer, word=str)) == [("bae-recall-path", "Page.x(mood)")]


# Cycles


def test_fields_that_wait_for_each_other_are_an_error_with_the_path():
    def first(items: list[str]) -> str:
        return items[0]

    circle = node(
        a=Annotated[list[str], Dep(search, query="b")],
        b=Annotated[str, Dep(first, items="c")],
        c=Annotated[list[str], Map(str.upper, over="a")],
        d=Annotated[list[str], Dep(search, query="b")],
    )
    (problem,) = (problem for problem in problems(circle) if problem.severity == "error")

    assert (problem.code, problem.place) == ("bae-dep-cycle", "Page.a")
    assert "Page.a -> Page.b -> Page.c -> Page.a" in problem.message
    itself = node(a=Annotated[list[str], Dep(search, query="a")])
    assert ("bae-dep-cycle", "Page.a") in codes(itself)


async def test_resolve_fields_refuses_fields_that_wait_for_each_other():
    with pytest.raises(DepError, match="fields wait for each other"):
        await resolve_fields(node(a=Annotated[str, Dep(feel_any, word="a")]))


def feel_any(word: str) -> str:
    return word
