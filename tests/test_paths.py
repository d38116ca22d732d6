"""Which loops lead nowhere, on plain graphs of numbers and letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bae.proof import endless_loops


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
