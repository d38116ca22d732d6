"""A run whose node is filled after tool calls, for tests of what shows and measures runs: two
rounds of calls, with a result, an error that the LM reads, wrong arguments, and a graph as a
tool."""

from typing import Annotated

from bae import LM, Dep, Graph, GraphResult, Node, Recall, Tool, ToolCall, ToolError, Tools
from bae.testing import Call, ScriptedLM
from bae.tools import report
from end_node import EndNode


class Topic(Node):
    topic: str

    async def __call__(self) -> "Brief": ...


class Brief(EndNode):
    topic: Annotated[str, Recall(Topic)]
    brief: str


RESEARCH = Graph(start=Topic, end=Brief)


async def get_shop() -> dict[str, list[str]]:
    return {"kettle": ["Kettle One", "Kettle Two"]}


async def search(query: str, shop: Annotated[dict[str, list[str]], Dep(get_shop)]) -> list[str]:
    """Search the catalog."""
    return shop.get(query, [])


def read_page(page: str) -> str:
    """Read a page."""
    report("reading", 1, 2)
    if page == "missing":
        raise ToolError("there is no such page")
    return f"A kettle holds 1.7 liters, says {page}. " * 40


class Question(Node):
    text: str

    async def __call__(self) -> "Reply": ...


class Reply(EndNode):
    question: Annotated[str, Recall(Question)]
    calls: Annotated[
        list[ToolCall], Tools(search, read_page, Tool(RESEARCH, name="research"), limit=6)
    ]
    text: str


GRAPH = Graph(start=Question, end=Reply)

SCRIPT: list[object] = [
    [Call("search", query="kettle"), Call("read_page", page="kettle-one")],
    [
        Call("read_page", page="missing"),
        Call("search", word="kettle"),
        Call("research", topic="descaling"),
    ],
    {"text": "It holds 1.7 liters."},
]


def make_scripted_lm() -> ScriptedLM:
    return ScriptedLM({"Reply": [*SCRIPT], "Brief": [{"brief": "Use vinegar."}]})  # type: ignore[dict-item]


async def run_to_end() -> GraphResult[Reply]:
    return await GRAPH.arun(Question(text="How large is the kettle?"), make_scripted_lm())


class Note(EndNode):
    text: str


async def ask_expert(question: str, lm: LM) -> str:
    """Ask an expert, who is an LM too."""
    return (await lm.make(Question(text=question), Note)).text


class Answer(EndNode):
    calls: Annotated[list[ToolCall], Tools(search, Tool(RESEARCH, name="research"))]
    text: str


class AskedInBody(Node):
    """A node whose body has an LM fill a node with tools."""

    text: str

    async def __call__(self, lm: LM) -> Answer:
        return await lm.make(self, Answer)
