"""What bae's exceptions promise: a code that never changes and can be looked up, the cause, the run
they come from, and a text that ends in something to do."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import ValidationError

import bae
from bae import (
    ArtifactError,
    BaeError,
    BaeLMError,
    BaeParseError,
    BudgetError,
    Dep,
    DepError,
    FillError,
    GateError,
    Graph,
    HintError,
    JournalError,
    LimitError,
    Node,
    NodeError,
    OpenGate,
    Problem,
    ProofError,
    RecallError,
    ReplayError,
    RouteError,
    RunCancelled,
    RunFailed,
    ToolCall,
    ToolCallError,
    ToolError,
    ToolServerError,
    Usage,
)
from bae.exceptions import CallTimeout
from bae.journal import RunEnded
from bae.testing import ScriptedLM, ScriptError
from bounded import error_from
from end_node import EndNode


class Worn(EndNode):
    top: int = 0


CALL = ToolCall(id="c1", name="wash", arguments={})
GATE = OpenGate("fine?", Worn, "top", int)

# Every class with its default code and the arguments of its own.
CLASSES: list[tuple[type[BaeError], str, dict[str, Any]]] = [
    (BaeError, "bae-error", {"path": "A -> B"}),
    (HintError, "bae-hint-unresolved", {"path": "looked in x"}),
    (ProofError, "bae-proof-failed", {"problems": [Problem("error", "bae-x", "A", "is wrong")]}),
    (NodeError, "bae-node-failed", {"node_type": Worn}),
    (RouteError, "bae-route-undeclared", {"node_type": Worn}),
    (DepError, "bae-dep-failed", {"node_type": Worn, "field_name": "top", "path": "A.x <- f()"}),
    (ToolServerError, "bae-mcp-failed", {"server": "git"}),
    (
        ToolCallError,
        "bae-tool-failed",
        {"node_type": Worn, "field_name": "top", "calls": [CALL]},
    ),
    (RecallError, "bae-recall-missing", {"node_type": Worn, "field_name": "top"}),
    (GateError, "bae-gate-unanswered", {"gates": [GATE], "node_type": Worn, "field_name": "top"}),
    (LimitError, "bae-limit-reached", {"limit": "max_iters", "bound": 10, "used": 9}),
    (
        BudgetError,
        "bae-budget-spent",
        {"limit": "calls", "bound": 3, "used": 3, "scope": "day", "usage": Usage(calls=3)},
    ),
    (
        BaeLMError,
        "bae-lm-failed",
        {"retryable": True, "retry_after": 2.0, "status": 429, "usage": Usage(calls=1)},
    ),
    (BaeParseError, "bae-lm-unparsable", {"sent": False}),
    (
        FillError,
        "bae-fill-invalid",
        {"node_type": Worn, "validation_errors": ({"type": "missing"},), "attempts": 3},
    ),
    (JournalError, "bae-journal-failed", {"run_id": "an id"}),
    (RunCancelled, "bae-run-cancelled", {}),
    (RunFailed, "bae-run-failed", {}),
    (ReplayError, "bae-replay-diverged", {"diff": "-a\n+b"}),
    (
        ArtifactError,
        "bae-artifact-invalid",
        {"file": "learned/Worn.json", "node_type": Worn, "changes": ["top: was str, is int"]},
    ),
    (ScriptError, "bae-script-exhausted", {}),
]

each_class = pytest.mark.parametrize(
    ("cls", "code", "given"), CLASSES, ids=[cls.__name__ for cls, *_ in CLASSES]
)


def has(error: BaeError, given: dict[str, Any]) -> bool:
    """Whether an error has what it was given, lists as tuples."""
    return all(
        getattr(error, name) == (tuple(value) if isinstance(value, list) else value)
        for name, value in given.items()
    )


def test_these_tests_cover_every_exception_of_bae():
    public = {
        value
        for value in (getattr(bae, name) for name in bae.__all__)
        if isinstance(value, type) and issubclass(value, BaseException)
    }

    assert public - {ToolError} | {ScriptError} == {cls for cls, *_ in CLASSES}
    assert all(issubclass(cls, BaeError) for cls in public - {ToolError})  # users raise that
    assert issubclass(RouteError, NodeError)
    assert issubclass(ScriptError, BaeLMError)
    assert issubclass(CallTimeout, TimeoutError)


@each_class
def test_an_error_needs_only_a_message(cls: type[BaeError], code: str, given: Any):
    error = cls("it broke")

    assert str(error) == f"[{code}] it broke"
    assert (error.message, error.code, error.fix, error.path) == ("it broke", code, None, None)
    assert (error.cause, error.__cause__) == (None, None)
    assert (error.trace, error.journal, error.run_id) == ([], None, None)
    assert error.args == ("it broke",)


@each_class
def test_an_error_keeps_its_arguments_and_chains_its_cause(
    cls: type[BaeError], code: str, given: Any
):
    cause = LookupError("gone\nfor good")
    error = cls("it broke", cause=cause, fix="fix it", **given)

    assert has(error, given)
    assert error.code == code
    assert error.cause is cause
    assert error.__cause__ is cause
    lines = str(error).splitlines()
    assert lines[0] == f"[{code}] it broke"
    assert lines[-2:] == ["  cause: LookupError: gone", "  try:   fix it"]


@each_class
def test_an_error_survives_pickling(cls: type[BaeError], code: str, given: Any):
    error = cls("it broke", cause=LookupError("gone"), fix="fix it", **given)
    error.trace, error.run_id = [Worn(top=3)], "an id"
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is cls
    assert str(copy) == str(error)
    assert (copy.code, copy.message, copy.fix) == (code, "it broke", "fix it")
    assert has(copy, given)
    assert isinstance(copy.cause, LookupError)
    assert copy.__cause__ is copy.cause
    assert (copy.trace, copy.run_id) == ([Worn(top=3)], "an id")


def test_omitted_attributes_of_an_error_are_empty():
    assert (LimitError("x").limit, LimitError("x").bound, LimitError("x").used) == ("", 0, 0)
    assert (FillError("x").validation_errors, FillError("x").attempts) == ((), 0)
    assert (GateError("x").gates, ProofError("x").problems) == ((), ())
    assert (DepError("x").node_type, DepError("x").field_name) == (None, "")


def fails() -> int:
    raise LookupError("gone")


class Fails(EndNode):
    top: Annotated[int, Dep(fails)]


class Fills(Node):
    async def __call__(self) -> Worn: ...


@pytest.mark.parametrize(
    ("graph", "start", "lm"),
    [
        (Graph(start=Fails), Fails(), None),
        (Graph(start=Fills), Fills(), ScriptedLM([{"top": "x"}] * 3)),
    ],
    ids=["dependency", "fill"],
)
async def test_an_error_of_a_run_survives_pickling_with_its_journal(
    graph: Graph[Any, Any], start: Node, lm: Any
):
    error = await error_from(BaeError, graph.arun(start, lm))
    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == str(error)
    assert copy.run_id == error.run_id
    assert [type(r) for r in copy.journal] == [type(r) for r in error.journal]
    # What the journal says the run failed with is the very error that carries the journal.
    assert copy.journal.of(RunEnded)[-1].error is copy


async def test_a_fill_error_has_the_message_of_pydantic():
    error = await error_from(
        FillError, Graph(start=Fills).arun(Fills(), ScriptedLM([{"top": "x"}] * 3))
    )
    assert isinstance(error.cause, ValidationError)
    assert list(error.validation_errors) == error.cause.errors(include_url=False)
    assert (error.node_type, error.attempts) == (Worn, 3)


# The codes and their page

ROOT = Path(__file__).resolve().parents[1]


def explained_codes() -> dict[str, str]:
    """The codes on the page, each with its entry and what is above the list."""
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    codes: dict[str, str] = {}
    for section in page.split("\n## "):
        above = section.partition("\n- ")[0]
        for entry, named in re.findall(r"^(- (`bae-.+?): .+)$", section, re.MULTILINE):
            codes |= dict.fromkeys(re.findall(r"bae-[a-z-]+", named), f"{above} {entry}")
    return codes


def test_the_explained_error_codes_are_exactly_the_codes_in_the_source():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    codes = set(re.findall(r"""["'](bae-[a-z][a-z-]*)["']""", source))
    codes.discard("bae-graphs")  # the name of the package

    assert re.findall(r"""f["']bae-(?!graphs\b)[^"']*""", source) == []
    assert explained_codes().keys() == codes


@each_class
def test_the_page_names_the_exception_of_each_default_code(
    cls: type[BaeError], code: str, given: Any
):
    assert f"`{cls.__name__}`" in explained_codes()[code]
