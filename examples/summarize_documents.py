"""A map and a join: a graph summarizes each document, several at a time, and one report is made
from all summaries.

    bae run examples/summarize_documents.py
    python examples/summarize_documents.py                    # scripted: no model is asked
"""

from __future__ import annotations  # not needed on Python 3.14 and later

from typing import Annotated

from pydantic import BaseModel, Field

from bae import Dep, Graph, Map, Node
from bae.testing import ScriptedLM


class Document(BaseModel):
    title: str
    text: str


def load_documents() -> list[Document]:
    return [
        Document(title="Minutes", text="We met. We will meet again."),
        Document(title="Invoice", text="Two umbrellas, 58 EUR, due on Friday."),
        Document(title="Letter", text="The umbrella arrived wet."),
    ]


# The inner graph: one document in, one summary out.


class Read(Node):
    document: Document

    async def __call__(self) -> Summary: ...


class Summary(Node):
    line: str = Field(description="the document in one line", max_length=100)
    urgent: bool = Field(description="whether someone must act on it today")

    async def __call__(self) -> None: ...


summarize = Graph(start=Read, end=Summary, name="summarize")


# The outer graph: all documents in, one report out.


class Morning(Node):
    async def __call__(self) -> Report: ...


class Report(Node):
    documents: Annotated[list[Document], Dep(load_documents)]
    summaries: Annotated[list[Summary], Map(summarize, over="documents", limit=8)]
    # The LLM sees the summaries.
    headline: str = Field(description="what matters today", max_length=80)

    async def __call__(self) -> None: ...


graph = Graph(start=Morning, end=Report)


def main() -> None:
    run = graph.run(Morning(), lm=scripted_lm())
    print(run.result.headline)
    for document, summary in zip(run.result.documents, run.result.summaries, strict=True):
        print(f"{'!' if summary.urgent else ' '} {document.title:<8}  {summary.line}")
    print(f"\n{run.usage.calls} LM calls, {len(run.nested)} graphs inside the run:")
    for place, nodes in run.nested.items():
        print(f"{place}  {' -> '.join(type(node).__name__ for node in nodes)}")


def scripted_lm() -> ScriptedLM:
    """Return a script in place of a model. Name a real model instead: `lm="claude-cli:sonnet"`."""
    return ScriptedLM(
        {
            Summary: [
                {"line": "Nothing was decided.", "urgent": False},
                {"line": "58 EUR are due on Friday.", "urgent": True},
                {"line": "A customer complains.", "urgent": False},
            ],
            Report: {"headline": "Pay the invoice."},
        }
    )


if __name__ == "__main__":
    main()
