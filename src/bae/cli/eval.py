"""The command `bae eval`: run a graph over cases with each LM, with and without learned prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from bae.cli import exits
from bae.cli.eval_output import (
    check_files,
    print_evaluation,
    reasons_to_fail,
    report_files,
    write_evaluation,
)
from bae.cli.exits import refusal
from bae.cli.journals import journal_for, open_to_write
from bae.cli.learned import contenders
from bae.cli.live.screen import ProgressLine
from bae.cli.loading import load_object, load_proved
from bae.cli.options import (
    AsJSON,
    JournalFile,
    Module,
    Quiet,
    above_zero,
    budget_of,
    budget_option,
    examples,
    lm_names,
    never_empty,
    once,
    option,
    refuse_both_journals,
)
from bae.cli.outcome import CommandLine
from bae.cli.printing import err, note, out, print_json
from bae.cli.signals import work
from bae.cli.wording import cost, count
from bae.evals import evaluate as run_cases
from bae.evals import load_cases
from bae.evals.evaluation import check_metrics
from bae.exceptions import BaeError
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.evals.cases import Case
    from bae.evals.report import CaseResult, Evaluation
    from bae.graph import Graph

EPILOG: Final = examples(
    "bae eval app.py --data cases.jsonl --lm local",
    "bae eval app.py --data cases.jsonl --lm local --optimized learned",
    "bae eval app.py --data cases.jsonl --lm local --lm claude-cli --metric scoring.py:exact",
    "bae eval app.py --data cases.jsonl --fail-under 0.8 -o report.md -o report.json",
)
_LINES: Final = 10
"""Maximum progress lines, approximately, if stderr is not a terminal."""


def evaluate(
    context: typer.Context,
    module: Module = None,
    *,
    data: Annotated[
        list[str],
        option(
            "--data -d FILE",
            'The cases: a `.jsonl` file with one JSON object per line, as `{"input": {…}, '
            '"expected": {…}}`, or a pydantic-evals dataset, `.yaml` or `.json`.',
            callback=once,
        ),
    ],
    metric: Annotated[
        str | None,
        option(
            "--metric MODULE:NAME",
            "How a case is scored: a function of the case and the result of its run, as "
            "`scoring.py:exact`; or a mapping of node classes to functions of the expected and "
            "the actual node, for the scores of nodes. Default: the expected fields, one by one.",
        ),
    ] = None,
    evaluator: Annotated[
        list[str] | None,
        option(
            "--evaluator MODULE:CLASS",
            "An evaluator class that a pydantic-evals dataset names, as `scoring.py:Polite`. "
            "Repeatable.",
        ),
    ] = None,
    lm: Annotated[
        list[str] | None,
        option(
            "--lm SPEC",
            "The language model, such as `local`; `bae lm list` shows all. Repeat to compare "
            "several. Default: BAE_LM, or what this machine offers.",
            autocompletion=lm_names,
        ),
    ] = None,
    optimized: Annotated[
        list[str] | None,
        option(
            "--optimized DIR",
            "Also evaluate each language model with the learned prompts that `bae optimize` wrote "
            "to this directory. Repeatable.",
            callback=never_empty,
        ),
    ] = None,
    concurrency: Annotated[
        int,
        option("--concurrency -c N", "The number of concurrent cases.", min=1),
    ] = 8,
    budget: Annotated[str | None, budget_option("the evaluation, all its cases together,")] = None,
    max_iters: Annotated[
        int,
        option(
            "--max-iters N",
            "The maximum number of nodes per case; 0 for no limit.",
            min=0,
        ),
    ] = 10,
    timeout: Annotated[
        float,
        option(
            "--timeout SECONDS",
            "The timeout of a case, more than 0.",
            callback=above_zero,
        ),
    ] = 600.0,
    journal: JournalFile = None,
    no_journal: Annotated[
        bool, typer.Option("--no-journal", help="Do not store the runs of the cases.")
    ] = False,
    output: Annotated[
        list[str] | None,
        option(
            "--output -o FILE",
            "Where to write the report: `.md`, `.json` or `.csv`. Repeatable. Default: "
            "`.bae/evals`, in Markdown and JSON.",
            callback=never_empty,
        ),
    ] = None,
    fail_under: Annotated[
        float | None,
        option("--fail-under X", "Exit with 1 if a total score is below this.", min=0, max=1),
    ] = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Run a graph over cases, and print its score, validity, cost and latency.

    The table has rows for each language model, with and without learned prompts: in total and for
    every node. Each score has a confidence interval. A failed case scores 0, and is printed with
    the command that shows its run. The exit code is 1 if a case was not run or could not be scored,
    if all cases failed, or if a total score is below --fail-under.
    """
    limits = budget_of(budget)
    refuse_both_journals(context, no_journal=no_journal)
    check_files(output or ())
    graph = load_proved(module)
    by_case, by_node = _load_metrics(metric, graph)
    cases = _load_cases(data[0], graph, evaluator or [], own_metric=by_case is not None)
    lms = contenders(graph, lm or [], optimized or [], quiet=quiet)
    file = None
    if not no_journal:
        file = journal_for(graph, journal, "the runs of cases cannot be looked into")
    files = output or report_files()
    progress = _EvalProgress(ProgressLine(err(), quiet=quiet), len(cases) * len(lms))

    async def begin() -> Evaluation:
        stop = asyncio.Event()
        async with open_to_write(file) if file is not None else nullcontext() as opened:
            task = asyncio.ensure_future(
                run_cases(
                    graph,
                    cases,
                    lms,
                    metric=by_case,
                    node_metrics=by_node,
                    journal=opened,
                    concurrency=concurrency,
                    max_iters=max_iters,
                    timeout=timeout,
                    budget=limits,
                    progress=progress.update,
                    stop=stop,
                )
            )
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:  # after a signal, evaluate the finished cases
                stop.set()
                return await task
            finally:
                if not task.done():  # cancelled again
                    task.cancel()
                    await asyncio.wait([task])

    ended = work(begin, progress.line, str)
    reasons: list[str] = []
    if (evaluation := ended.value) is not None:
        try:
            write_evaluation(evaluation, files)
        except Exception as error:  # print the evaluation anyway, because it has cost money
            ended.error, files = ended.error or error, []
        if as_json:
            print_json({**evaluation.to_json(), "files": files})
        else:
            print_evaluation(out(), evaluation, CommandLine(None, file))
        if files and not quiet:
            note(f"written to {' and '.join(files)}")
        reasons = [*reasons_to_fail(evaluation, fail_under)]
        for reason in reasons:
            note(reason)
    if ended.error is not None:
        raise ended.error
    if ended.code or reasons:
        raise typer.Exit(ended.code or exits.FAILED)


def _load_metrics(reference: str | None, graph: Graph[Any, Any]) -> tuple[Any, Mapping[Any, Any]]:
    """Load the metric of --metric.

    Returns a function of a case and its result, or None, and a mapping of node classes to functions
    of an expected and an actual node. The object of --metric is the function or the mapping.
    """
    metric = None if reference is None else load_object(reference, "--metric")
    by_node: Mapping[Any, Any] = {}
    if isinstance(metric, Mapping):
        metric, by_node = None, cast("Mapping[Any, Any]", metric)
    with refusing_metric(reference):
        check_metrics(graph, metric, by_node)
    return metric, by_node


@contextmanager
def refusing_metric(reference: str | None) -> Generator[None]:
    """Turn a TypeError or ValueError about a metric into an error that names --metric."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise refusal(
            f"--metric {reference}: {error}",
            fix="name a function, or a mapping of node classes to functions of two nodes",
            cause=error,
        ) from error


def _load_cases(
    data: str, graph: Graph[Any, Any], evaluators: list[str], *, own_metric: bool
) -> list[Case]:
    """Load the cases from a file. With --metric, the evaluator classes of a dataset are not
    needed."""
    if evaluators and (own_metric or Path(data).suffix == ".jsonl"):
        why = "--metric scores the cases" if own_metric else f"{data} names none"
        raise refusal(f"--evaluator has no use: {why}", fix="leave one out")
    classes = {evaluator: load_object(evaluator, "--evaluator") for evaluator in evaluators}
    for reference, cls in classes.items():
        if not isinstance(cls, type):
            raise refusal(
                f"--evaluator {reference} is no class", fix="name the class of evaluators"
            )
    try:
        return load_cases(data, graph, evaluators=[*classes.values()], own_metric=own_metric)
    except BaeError as error:
        if isinstance(error.__cause__, ExceptionGroup):  # the dataset needs evaluator classes
            error.fix = (
                "name each class with --evaluator scoring.py:Polite; or score the cases with "
                "--metric, which leaves the evaluators out"
            )
        raise


class _EvalProgress:
    """Shows how many cases have finished and failed, and what they have cost."""

    def __init__(self, line: ProgressLine, total: int) -> None:
        self.line = line
        self._total = total
        self._failed = 0
        self._used = Usage()
        line.update(f"0 of {count(total, 'case')}")

    def update(self, done: int, total: int, contender: str, result: CaseResult) -> None:
        self._failed += result.failed
        self._used += result.usage + result.judging
        parts = [
            f"{done:,} of {count(self._total, 'case')}",
            f"{self._failed:,} failed" if self._failed else "",
            count(self._used.calls, "LM call") if self._used.calls else "",
            count(self._used.tokens, "token") if self._used.tokens else "",
            cost(self._used),
        ]
        step = max(1, -(-self._total // _LINES))
        milestone = done % step == 0 or done == self._total
        self.line.update(" · ".join(filter(None, parts)), milestone=milestone)
