"""What the questions about paths promise, on plain graphs of numbers and letters: the shortest way
around what is to be avoided, and the loops that lead nowhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bae.proof import endless_loops, path_avoiding

DIAMOND = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}


def free(place: object) -> bool:
    return False


def test_the_first_of_several_shortest_paths_is_taken():
    assert path_avoiding(DIAMOND, "a", "d", free) == ["a", "b", "d"]


def test_the_goal_itself_may_be_one_of_the_avoided():
    assert path_avoiding(DIAMOND, "a", "d", lambda p: p == "d") == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("edges", "exits", "loops"),
    [
        ({"a": []}, ["a"], []),
        ({"a": ["b"], "b": []}, [], []),
        ({"a": ["a"]}, [], [["a"]]),
        ({"a": ["a"]}, ["a"], []),
        ({"a": ["b"], "b": ["a"]}, [], [["a", "b"]]),
        ({"a": ["b"], "b": ["a", "c"], "c": []}, ["c"], []),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, [], [["b", "c"]]),
        ({"a": ["b", "c"], "b": ["b"], "c": ["c"]}, [], [["b"], ["c"]]),
        ({"a": ["b"], "b": ["a", "c"], "c": ["c"]}, [], [["c"]]),
        ({"a": ["b", "x"], "b": ["a"], "x": []}, ["x"], []),
        ({"a": ["b", "x"], "b": ["b"], "x": []}, ["x"], [["b"]]),
    ],
    ids=str,
)
def test_the_loops_that_no_path_leaves_are_found(
    edges: dict[str, list[str]], exits: list[str], loops: list[list[str]]
):
    assert endless_loops(edges, exits) == loops


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, list[int]]:
    count = draw(st.integers(1, 6))
    onward = st.lists(st.integers(0, count - 1), max_size=3, unique=True)
    return {place: draw(onward) for place in range(count)}


def simple_paths(edges: dict[int, list[int]], start: int, goal: int) -> list[tuple[int, ...]]:
    """Every path that visits no place twice."""
    others = [place for place in edges if place not in (start, goal)]
    if start == goal:
        return [(start,)]
    return [
        path
        for count in range(len(others) + 1)
        for between in itertools.permutations(others, count)
        for path in [(start, *between, goal)]
        if all(b in edges[a] for a, b in itertools.pairwise(path))
    ]


@given(graphs(), st.data(), st.sets(st.integers(0, 5)))
def test_a_path_is_found_exactly_when_there_is_one_and_none_is_shorter(
    edges: dict[int, list[int]], data: st.DataObject, avoided: set[int]
):
    start, goal = (data.draw(st.sampled_from(sorted(edges))) for _ in range(2))
    fine = [p for p in simple_paths(edges, start, goal) if not avoided.intersection(p[:-1])]
    found = path_avoiding(edges, start, goal, lambda place: place in avoided)

    if not fine:
        assert found is None
    else:
        assert found is not None
        assert tuple(found) in fine
        assert len(found) == min(map(len, fine))


@given(graphs(), st.sets(st.integers(0, 5)))
def test_every_place_that_cannot_get_out_leads_to_a_loop_that_is_told_and_no_other_does(
    edges: dict[int, list[int]], drawn: set[int]
):
    # A place that leads nowhere is an end; in a graph of nodes it returns None.
    exits = {place for place in edges if place in drawn or not edges[place]}
    loops = endless_loops(edges, exits)
    reach = {place: reachable(edges, place) for place in edges}

    for loop in loops:
        for here, onward in zip(loop, [*loop[1:], loop[0]], strict=True):
            assert onward in edges[here]
            assert not exits & ({here} | reach[here])
    for place in edges:
        stuck = not exits & ({place} | reach[place])
        told = any(set(loop) & ({place} | reach[place]) for loop in loops)
        if stuck:
            assert told
    assert len({frozenset(reach[loop[0]]) for loop in loops}) == len(loops)


def reachable(edges: dict[int, list[int]], start: int) -> set[int]:
    seen: set[int] = set()
    ahead = [*edges[start]]
    while ahead:
        place = ahead.pop()
        if place not in seen:
            seen.add(place)
            ahead.extend(edges[place])
    return seen
