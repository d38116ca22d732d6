"""`bae eval`: a graph over cases, each LM with and without its learned prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli import exits
from bae.cli.options import (
    AsJSON,
    JournalFile,
    Module,
    Quiet,
    above_zero,
    budget_option,
    examples,
    lm_names,
    never_empty,
    once,
    refuse_both_journals,
)

if TYPE_CHECKING:
    from bae.cli.live.screen import ProgressLine
    from bae.evals.cases import Case
    from bae.evals.report import CaseResult, Evaluation
    from bae.graph import Graph

EPILOG: Final = examples(
    "bae eval app.py --data cases.jsonl --lm local",
    "bae eval app.py --data cases.jsonl --lm local --optimized learned",
    "bae eval app.py --data cases.jsonl --lm local --lm claude-cli --metric scoring.py:exact",
    "bae eval app.py --data cases.jsonl --fail-under 0.8 -o report.md -o report.json",
)

Data = Annotated[
    list[str],
    typer.Option(
        "--data",
        "-d",
        metavar="FILE",
        callback=once,
        help='The cases: a `.jsonl` file with one JSON object per line, as `{"input": {…}, '
        '"expected": {…}}`, or a pydantic-evals dataset, `.yaml` or `.json`.',
    ),
]
CaseMetric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="MODULE:NAME",
        show_default=False,
        help="How a case is scored: a function of the case and the result of its run, as "
        "`scoring.py:exact`; or functions of two nodes by their class, for the scores of "
        "nodes. Default: the expected fields, one by one.",
    ),
]
EvaluatorClasses = Annotated[
    list[str] | None,
    typer.Option(
        "--evaluator",
        metavar="MODULE:CLASS",
        show_default=False,
        help="An evaluator class that a pydantic-evals dataset names, as `scoring.py:Polite`. "
        "Repeatable.",
    ),
]
LMNames = Annotated[
    list[str] | None,
    typer.Option(
        "--lm",
        metavar="SPEC",
        show_default=False,
        autocompletion=lm_names,
        help="The language model, such as `local`; `bae lm list` shows all. Repeat to compare "
        "several. Default: BAE_LM, or what this machine offers.",
    ),
]
Directories = Annotated[
    list[str] | None,
    typer.Option(
        "--optimized",
        metavar="DIR",
        show_default=False,
        callback=never_empty,
        help="Also evaluate each language model with the learned prompts that `bae optimize` wrote "
        "to this directory. Repeatable.",
    ),
]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", "-c", metavar="N", min=1, help="The number of concurrent cases."),
]
MaxIters = Annotated[
    int,
    typer.Option(
        "--max-iters",
        metavar="N",
        min=0,
        help="The maximum number of nodes per case; 0 for no limit.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        callback=above_zero,
        help="The timeout of a case, more than 0.",
    ),
]
CaseLimits = Annotated[str | None, budget_option("the evaluation, all its cases together,")]
NoJournal = Annotated[
    bool, typer.Option("--no-journal", help="Do not store the runs of the cases.")
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        show_default=False,
        callback=never_empty,
        help="Where to write the report: `.md`, `.json` or `.csv`. Repeatable. Default: "
        "`.bae/evals`, in Markdown and JSON.",
    ),
]
FailUnder = Annotated[
    float | None,
    typer.Option(
        "--fail-under",
        metavar="X",
        min=0,
        max=1,
        show_default=False,
        help="Exit with 1 if a total score is below this.",
    ),
]


def evaluate(
    context: typer.Context,
    module: Module = None,
    *,
    data: Data,
    metric: CaseMetric = None,
    evaluator: EvaluatorClasses = None,
    lm: LMNames = None,
    optimized: Directories = None,
    concurrency: Concurrency = 8,
    budget: CaseLimits = None,
    max_iters: MaxIters = 10,
    timeout: Timeout = 600.0,
    journal: JournalFile = None,
    no_journal: NoJournal = False,
    output: Outputs = None,
    fail_under: FailUnder = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Run a graph over cases, and print its score, validity, cost and latency.

    Each language model, with and without learned prompts, has its rows, in total and for every
    node. The score has a confidence interval. A case that failed scores 0, and is printed with the
    command that shows its run. The exit code is 1 if a case was not run or could not be scored, if
    all failed, or if a score is below --fail-under.
    """
    from bae.cli.options import budget_of

    limits = budget_of(budget)
    refuse_both_journals(context, no_journal=no_journal)
    from bae.cli.eval_output import (
        check_files,
        default_folder,
        print_evaluation,
        reasons_to_fail,
        report_files,
        write_evaluation,
    )
    from bae.cli.journals import journal_for
    from bae.cli.learned import contenders
    from bae.cli.live.screen import ProgressLine
    from bae.cli.lm import prove
    from bae.cli.loading import load
    from bae.cli.metric_option import case_metric
    from bae.cli.outcome import CommandLine
    from bae.cli.printing import err, note, out, print_json
    from bae.cli.signals import work

    check_files(output or ())
    graph = load(module).graph
    prove(graph, module)
    by_case, by_node = case_metric(metric, graph)
    cases = _cases(data[0], graph, evaluator or [], own_metric=by_case is not None)
    lms = contenders(graph, lm or [], optimized or [], quiet=quiet)
    file = None
    if not no_journal:
        file = journal_for(graph, journal, "the runs of cases cannot be looked into")
    folder = None if output else default_folder()
    progress = _Progress(ProgressLine(err(), quiet=quiet), len(cases) * len(lms))
    options: dict[str, Any] = {
        "metric": by_case,
        "node_metrics": by_node,
        "concurrency": concurrency,
        "max_iters": max_iters,
        "timeout": timeout,
        "budget": limits,
        "progress": progress.update,
    }
    ended = work(lambda: _evaluated(file, graph, cases, lms, options), progress.line, lambda: "")
    unwritten, reasons = None, []
    if (found := ended.value) is not None:
        files = output or report_files(folder)
        try:
            write_evaluation(found, files)
        except Exception as error:  # it is paid for, so it is printed whatever happens
            unwritten, files = error, []
        if as_json:
            print_json({**found.to_json(), "files": files})
        else:
            print_evaluation(out(), found, CommandLine(None, file))
        if files and not quiet:
            note(f"written to {' and '.join(files)}")
        reasons = [*reasons_to_fail(found, fail_under)]
        for each in reasons:
            note(each)
    if ended.error is not None or unwritten is not None:
        raise ended.error or unwritten or AssertionError
    if ended.code or reasons:
        raise typer.Exit(ended.code or exits.FAILED)


def _cases(
    data: str, graph: Graph[Any, Any], evaluators: list[str], *, own_metric: bool
) -> list[Case]:
    """The cases in a file. The evaluators of a dataset are not needed if a metric scores them."""
    from bae.evals import load_cases, load_dataset
    from bae.exceptions import BaeError

    if evaluators:
        from bae.cli.metric_option import evaluator_classes

        return load_dataset(data, graph, evaluator_classes(evaluators, data, own_metric))
    try:
        return load_cases(data, graph, own_metric=own_metric)
    except BaeError as error:
        if error.fix and "load_dataset(" in error.fix:  # the fix for a program
            error.fix = (
                "name each class with --evaluator scoring.py:Polite; or score the cases with "
                "--metric, which leaves the evaluators out"
            )
        raise


async def _evaluated(
    file: str | None, graph: Graph[Any, Any], cases: list[Case], lms: Any, options: dict[str, Any]
) -> Evaluation:
    """Evaluate, with the journal open. A signal ends it early, with the cases run so far."""
    import asyncio
    from contextlib import AsyncExitStack

    from bae.cli.journals import open_to_write
    from bae.evals import evaluate

    stop = asyncio.Event()
    async with AsyncExitStack() as opened:
        journal = None
        if file is not None:
            journal = await opened.enter_async_context(open_to_write(file))
        task = asyncio.ensure_future(
            evaluate(graph, cases, lms, journal=journal, stop=stop, **options)
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            stop.set()
            return await task
        finally:
            if not task.done():  # cancelled once more
                task.cancel()
                await asyncio.wait([task])


class _Progress:
    """How many cases are done, how many failed, and what they used."""

    def __init__(self, line: ProgressLine, total: int) -> None:
        from bae.usage import Usage

        self.line = line
        self._total = total
        self._failed = 0
        self._used = Usage()
        line.update(self._text(0))

    def update(self, done: int, total: int, contender: str, result: CaseResult) -> None:
        self._failed += result.failed
        self._used += result.usage + result.judging
        step = max(1, -(-self._total // _LINES))
        self.line.update(self._text(done), milestone=done % step == 0 or done == self._total)

    def _text(self, done: int) -> str:
        from bae.cli.wording import cost, count

        parts = [
            f"{done:,} of {count(self._total, 'case')}",
            f"{self._failed:,} failed" if self._failed else "",
            count(self._used.calls, "LM call") if self._used.calls else "",
            count(self._used.tokens, "token") if self._used.tokens else "",
            cost(self._used),
        ]
        return " · ".join(filter(None, parts))


_LINES: Final = 10
"""Lines of progress without a terminal."""
