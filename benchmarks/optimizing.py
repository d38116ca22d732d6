"""Whether a graph gets better from its own runs: the support tickets of examples/triage.py, from
the first run to the last, offline.

    python -m benchmarks.optimizing

A scripted teacher, which knows the answers, runs the graph on three quarters of the tickets, and
slips now and then; a person corrects those runs by forking them. The small local model of bae
learns from that journal. Then it runs tickets that were used for neither training nor selection,
without and with the learned prompts. It prints the tables that docs/benchmarks.md carries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from bae import GraphResult
from bae.evals import Case, Evaluation, Row, evaluate, load_cases
from bae.evals.case_types import every_node
from bae.journal import Journal, SQLiteJournal
from bae.lm import Answer, Backend, LocalBackend, Prompt
from bae.optimizer import (
    Comparison,
    aoptimize_node,
    compare,
    examples_from,
    save_optimized,
    split_apart,
)
from bae.optimizer.predictors import NodePredictor, fresh_predictor

ROOT = Path(__file__).resolve().parents[1]
TICKETS = ROOT / "examples" / "triage_data" / "cases.jsonl"
UNSEEN = ROOT / "examples" / "triage_data" / "unseen.jsonl"
"""Tickets to evaluate on. Nothing about the example or this measurement was decided by them: once
something is, they have to be replaced by others."""
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- optimization figures: begin, written by python -m benchmarks.optimizing --write -->"
END = "<!-- optimization figures: end -->"
SEEN = 90
"""How many tickets become runs to learn from. By the others the example was tried out while it was
written, so they are neither learned from nor evaluated on."""
SLIPS = 12
"""Every so many runs the teacher is wrong, and a person corrects it."""
HELD_OUT = 0.4
SHOWN = 4
"""Examples that the model is shown: with eight it did worse in trials."""


def load_triage() -> ModuleType:
    """Import the example from its file."""
    if "triage" not in sys.modules:
        spec = spec_from_file_location("triage", ROOT / "examples" / "triage.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["triage"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["triage"]


class Teacher(Backend):
    """A model that knows the answers to these tickets, and nothing else. Of the tickets in `slips`
    it does not know what they are about."""

    model = "teacher"
    free = True

    def __init__(self, cases: Sequence[Case], slips: Sequence[Case] = ()) -> None:
        super().__init__()
        self._answers = {text_of(case): case for case in cases}
        self._slips = {text_of(case) for case in slips}

    async def answer(self, prompt: Prompt) -> Answer:
        """Look the ticket up by its text, which the prompt has as JSON after the instruction."""
        text = json.loads(prompt.text.partition("\n\n")[2])["Ticket"]["text"]
        case = self._answers[text]
        fields = dict(case.expected or {})
        if text in self._slips:
            fields["item"] = "account"
        if prompt.question.target is not None:
            return Answer(value=fields)
        chosen: dict[str, Any] = {"choice": case.expected_type}
        if prompt.question.fillable:  # the choice and the fields in one answer
            return Answer(value={"answer": {**chosen, "fields": fields}})
        return Answer(value=chosen)


def text_of(case: Case) -> str:
    """Return the text of the ticket."""
    assert isinstance(case.inputs, Mapping)
    return str(case.inputs["text"])


@dataclass
class Measured:
    """All that one round of learning came to."""

    runs: int = 0
    corrected: int = 0
    examples: tuple[int, int, int] = (0, 0, 0)
    """To learn from, held out, and left out because the same was asked before."""
    comparisons: list[Comparison] = field(default_factory=list[Comparison])
    written: list[Path] = field(default_factory=list[Path])
    evaluation: Evaluation | None = None
    last: GraphResult[Any] | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])


async def collect(journal: Journal, cases: Sequence[Case], slip: int = SLIPS) -> tuple[int, int]:
    """Have the teacher run the tickets into a journal, and correct its wrong answers like a person:
    fork the run with the right value. Returns the number of runs and of corrections."""
    graph = load_triage().graph
    slips = cases[slip - 1 :: slip]
    teacher = Teacher(cases, slips)
    for case in cases:
        assert isinstance(case.inputs, Mapping)
        await graph.arun(graph.start(**case.inputs), teacher, journal=journal, run_id=case.name)
    for case in slips:
        assert case.expected is not None
        corrected = await graph.fork(
            case.name,
            at=1,
            journal=journal,
            new_id=f"{case.name}-corrected",
            item=case.expected["item"],
        )
        await graph.resume(corrected, teacher, journal=journal)
    return len(cases), len(slips)


async def learn(
    journal: Journal,
    folder: Path,
    lm: Backend,
    teacher: Backend,
    found: Measured,
    *,
    seed: int = 0,
    nodes: Sequence[str] = (),
    part: float = HELD_OUT,
    force: bool = False,
    shown: int = SHOWN,
) -> None:
    """Learn from the runs of a journal, node by node, like `bae optimize`. Keeps prompts that are
    better on the held-out `part` of the runs, or all prompts with `force`. A prompt has at most
    `shown` examples."""
    graph = load_triage().graph
    train, held_out, left_out = split_apart(await examples_from(journal, graph), part, seed)
    found.examples = len(train), len(held_out), len(left_out)
    for cls in (
        candidate for candidate in every_node(graph) if not nodes or candidate.__name__ in nodes
    ):
        learned: NodePredictor = await aoptimize_node(
            cls,
            train,
            lm=lm,
            teacher=teacher,
            seed=seed,
            calls=folder / "calls.db",
            max_bootstrapped_demos=shown,
            max_labeled_demos=shown,
        )
        compared = await compare(
            cls, learned, held_out, lm=lm, calls=folder / "calls.db", concurrency=1, graph=graph
        )
        found.comparisons += compared
        for comparison in compared:
            print(f"  {comparison}", file=sys.stderr)
            if not comparison.better and not force:  # as it was before
                setattr(learned, comparison.part, getattr(fresh_predictor(cls), comparison.part))
        found.written += save_optimized({cls: learned}, folder / "learned", among=graph)


async def measure(
    folder: Path,
    known: Sequence[Case],
    new: Sequence[Case],
    **options: Any,
) -> Measured:
    """Run `known` tickets and learn from them, evaluate on `new` tickets, load the learned prompts,
    and run with them. The options are the options of `learn`."""
    from bae.compiler import create_optimized_lm

    graph = load_triage().graph
    lm = LocalBackend(slots=4)  # so that prompts of each kind are read once
    measured = Measured()
    clock = Clock(measured.seconds)
    async with SQLiteJournal(folder / "runs.db", durability="normal") as journal:
        measured.runs, measured.corrected = await collect(journal, known)
        clock.lap("collect")
        teacher = Teacher(known)
        await learn(journal, folder, lm, teacher, measured, **options)
        clock.lap("learn")
        (folder / "learned").mkdir(exist_ok=True)  # missing where nothing was better
        optimized = create_optimized_lm(graph, folder / "learned", lm)
        measured.evaluation = await evaluate(
            graph, new, {"local": lm, "optimized": optimized}, journal=journal, concurrency=1
        )
        clock.lap("evaluate")
        ticket = graph.start(text="Where do I change the picture beside my name?")
        measured.last = await graph.arun(ticket, optimized, journal=journal, run_id="the-last")
        clock.lap("run")
    return measured


class Clock:
    """Seconds of each part of the way, as they go by."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._seconds[name], self._at = now - self._at, now
        print(f"{name}: {self._seconds[name]:.1f} s", file=sys.stderr)


# --- the tables -------------------------------------------------------------------------------


def figures(found: Measured) -> str:
    """Return the measurements as Markdown."""
    assert found.evaluation is not None
    assert found.last is not None
    train, held_out, left_out = found.examples
    again = f", and {left_out} left out that ask the same again" if left_out else ""
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found.seconds.items())
    return "\n\n".join(
        [
            f"{found.runs} runs of the teacher, {found.corrected} of them corrected, give "
            f"{train} examples to learn from and {held_out} held out{again}. On those that were "
            "held out:",
            table(
                ["node", "part", "n", "before", "after", "difference", "calls", "tokens", ""],
                [
                    [
                        *(
                            comparison.node,
                            comparison.part,
                            str(comparison.n),
                            str(comparison.before),
                            str(comparison.after),
                        ),
                        str(comparison.difference),
                        f"{comparison.calls_before:,} → {comparison.calls_after:,}",
                        f"{comparison.tokens_before:,} → {comparison.tokens_after:,}",
                        verdict(comparison),
                    ]
                    for comparison in found.comparisons
                ],
            ),
            f"And {found.evaluation.contenders[0].total.cases} tickets that nothing was learned or "
            "decided by, through the whole graph:",
            format_evaluation(found.evaluation),
            f"And the last step, a run with what was learned: “{found.last.trace[0].text}” comes "
            f"out as `{found.last.result!r}`.",
            f"Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, with the model that comes with bae: {took}.",
        ]
    )


def verdict(compared: Comparison) -> str:
    if not compared.better:
        return "not better: not kept"
    return "better" if compared.certain else "better, not beyond chance"


def format_evaluation(evaluation: Evaluation) -> str:
    rows: list[list[str]] = []
    for contender in evaluation.contenders:
        for row in (contender.total, *contender.nodes):
            rows.append([contender.name, row.node or "**all**", *cells(row)])
    for difference in evaluation.differences:
        if difference.interval is not None:
            rows.append(
                [
                    f"{difference.contender} − {difference.against}",
                    "**all**",
                    "",
                    str(difference.interval.n),
                    str(difference.interval),
                    *[""] * 4,
                ]
            )
    heads = ["", "node", "met", "scored", "score", "valid", "calls", "tokens", "seconds a case"]
    return table(heads, rows)


def cells(row: Row) -> list[str]:
    return [
        str(row.cases),
        "–" if row.score is None else str(row.score.n),
        str(row.score or "–"),
        "–" if row.validity is None else f"{row.validity:.0%}",
        str(row.calls),
        f"{row.tokens:,}",
        f"{row.seconds_mean:.2f}",
    ]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join(["---"] * len(heads)) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def write(page: Path, text: str) -> None:
    """Put the figures between the marks of a page."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no place for figures: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.optimizing",
        description="Learn from runs, offline, and see what came of it. The tables go to standard "
        "output, how far it is to standard error.",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--seen", type=int, default=SEEN, metavar="N", help="tickets to learn from")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep journal and artifacts here")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cases = load_cases(TICKETS, load_triage().graph)
        known, new = cases[: options.seen], load_cases(UNSEEN, load_triage().graph)
        measured = asyncio.run(measure(folder, known, new, seed=options.seed))
    text = figures(measured)
    print(text)
    if options.write:
        write(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
