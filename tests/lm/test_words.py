"""A user's own words in a prompt: the system text of a graph."""

from __future__ import annotations

from typing import Annotated

import pytest
from tests.toy_backend import ToyBackend

from bae import LM, Dep, Graph, Node
from bae.lm.prompts import SYSTEM

MAIL = "You sort the mail of a bakery."


class Verdict(Node):
    text: str

    async def __call__(self) -> None: ...


class Letter(Node):
    text: str

    async def __call__(self) -> Verdict: ...


def systems(lm: ToyBackend) -> list[str]:
    return [prompt.system for prompt in lm.prompts]


async def test_the_system_text_of_a_graph_replaces_bae_s_own():
    lm = ToyBackend(lambda prompt: {"text": "fine"})
    await Graph(start=Letter, system=MAIL).arun(Letter(text="Hi"), lm)
    await Graph(start=Letter).arun(Letter(text="Hi"), lm)
    assert systems(lm) == [MAIL, SYSTEM]


@pytest.mark.parametrize("system", ["", "  ", 3])
def test_a_system_text_that_is_none_is_refused(system):
    with pytest.raises(TypeError, match=r"Graph\(system="):
        Graph(start=Letter, system=system)


async def test_bodies_functions_and_graphs_inside_ask_with_the_system_text_around_them():
    class Asked(Node):
        async def __call__(self, lm: LM) -> Verdict:
            return await lm.make(self, Verdict)

    inner = Graph(start=Asked)
    other = Graph(start=Asked, name="other", system="Be brief.")

    async def rated(lm: LM) -> str:
        return (await lm.fill(Verdict, {}, "Rate")).text

    async def apart(lm: LM) -> str:  # a run of its own
        return (await Graph(start=Asked).arun(Asked(), lm)).trace[-1].text  # pyright: ignore

    class Sorted(Node):
        own: Annotated[str, Dep(rated)]
        inside: Annotated[Node, Dep(inner)]
        another: Annotated[Node, Dep(other)]
        apart: Annotated[str, Dep(apart)]

        async def __call__(self) -> None: ...

    lm = ToyBackend(lambda prompt: {"text": "fine"})
    await Graph(start=Sorted, system=MAIL).arun(Sorted(), lm)
    assert sorted(systems(lm)) == sorted([MAIL, MAIL, "Be brief.", SYSTEM])
