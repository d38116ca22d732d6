"""The command `bae optimize`: learn prompts from the runs of a journal, score answers with and
without the learned prompts on held-out runs, and write the prompts that are better."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from bae.cli.eval import refusing_metric
from bae.cli.exits import refusal
from bae.cli.journals import file_to_read, find_run_id, open_to_read
from bae.cli.live.screen import ProgressLine
from bae.cli.lm import check_lm, make_lm
from bae.cli.loading import load_object, load_proved
from bae.cli.optimize_output import how_to_resume, print_result
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    Module,
    Quiet,
    budget_of,
    budget_option,
    examples,
    lm_names,
    never_empty,
    option,
    run_ids,
)
from bae.cli.printing import err
from bae.cli.signals import work
from bae.cli.wording import count
from bae.evals.case_types import every_node
from bae.evals.evaluation import check_node_metrics
from bae.lm.extras import load_dspy
from bae.lm.policies.budget import Budget

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm import LM
    from bae.node import Node
    from bae.optimizer import Improvement, Progress

EPILOG: Final = examples(
    "bae optimize app.py -o learned --lm local",
    "bae optimize app.py -o learned --lm local --teacher claude-cli --budget calls=500",
    "bae optimize app.py -o learned --optimizer gepa --node Reply --metric scoring.py:METRICS",
    "bae optimize app.py -o learned --optimizer miprov2 --option num_trials=20",
    "bae optimize app.py -o learned --judge anthropic --rubric 'Polite, and answers the question.'",
)


def optimize(
    module: Module = None,
    *,
    output: Annotated[
        str,
        option(
            "--output -o DIR",
            "The directory for the learned prompts, a JSON file per node, for `--optimized DIR`.",
            callback=never_empty,
        ),
    ],
    journal: JournalFile = None,
    lm: LMName = None,
    teacher: Annotated[
        str | None,
        option(
            "--teacher SPEC",
            "The language model that makes examples and proposes instructions. Default: the one "
            "that learns.",
            autocompletion=lm_names,
        ),
    ] = None,
    optimizer: Annotated[
        Literal["bootstrap", "miprov2", "gepa"],
        option(
            "--optimizer NAME",
            "`bootstrap` selects few-shot examples, `miprov2` also searches instructions, `gepa` "
            "rewrites instructions from mistakes.",
        ),
    ] = "bootstrap",
    option: Annotated[
        list[str] | None,
        option(
            "--option NAME=VALUE",
            "An option of the optimizer, with a JSON value, as `max_labeled_demos=4`. Repeatable. "
            "For an unknown name, the error lists the known names.",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        option("--node NAME", "Optimize only this node. Repeatable. Default: all nodes."),
    ] = None,
    metric: Annotated[
        str | None,
        option(
            "--metric MODULE:NAME",
            "How an answer is scored: a mapping of node classes to functions of the expected and "
            "the actual node, as `scoring.py:METRICS`, or one DSPy-style function of an example "
            "and a prediction. "
            "Default: field by field.",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        option(
            "--judge SPEC",
            "A language model that scores filled fields that no metric scores.",
            autocompletion=lm_names,
        ),
    ] = None,
    rubric: Annotated[
        str | None, option("--rubric TEXT", "With --judge: what makes a good answer.")
    ] = None,
    budget: Annotated[str | None, budget_option("the optimization")] = None,
    held_out: Annotated[
        float,
        option(
            "--held-out X",
            "The share of the runs that is held out for the comparison.",
            min=0,
            max=0.9,
        ),
    ] = 0.3,
    seed: Annotated[int, option("--seed N", "The seed for held-out runs and random choices.")] = 0,
    concurrency: Annotated[
        int,
        option("--concurrency -c N", "The number of concurrent calls.", min=1),
    ] = 4,
    minimum: Annotated[
        int,
        option(
            "--minimum N",
            "The number of different questions that a node needs.",
            min=1,
        ),
    ] = 10,
    without: Annotated[
        list[str] | None,
        option(
            "--without RUN",
            "Exclude a run, by its id or the beginning of one, such as one with a wrong choice, "
            "which a fork cannot correct. Repeatable.",
            callback=never_empty,
            autocompletion=run_ids,
        ),
    ] = None,
    with_evals: Annotated[
        bool,
        typer.Option(
            "--with-evals",
            help="Also learn from runs of `bae eval`. They are left out by default, because a case "
            "that was learned no longer measures anything.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write learned prompts even if they are not better.")
    ] = False,
    certain: Annotated[
        bool, typer.Option("--certain", help="Write only what is better beyond chance.")
    ] = False,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Learn from the runs of a journal, and write the learned prompts that make the graph better.

    Finished runs, and corrections that people made in forks of the runs, are split: one part is for
    learning, the other part for comparing before and after. If the answers of a node are not
    better, its prompts are not written. After an interruption, the same command resumes.
    """
    limits = budget_of(budget)
    if judge is not None and metric is not None:
        raise typer.BadParameter("give --metric or --judge, not both", param_hint="--judge")
    if rubric is not None and judge is None:
        raise typer.BadParameter("--rubric goes with --judge SPEC", param_hint="--rubric")
    if force and certain:
        raise typer.BadParameter("give --force or --certain, not both", param_hint="--certain")
    load_dspy("bae optimize")
    from bae.optimizer import Improvement, Judge

    options = _parse_options(optimizer, option or ())
    graph = load_proved(module)
    classes = _find_classes(graph, node or ())
    file = file_to_read(journal)
    student = _check_and_make_lm(graph, lm, quiet=quiet)
    scored_by = _load_metric(metric, graph)
    if judge is not None:
        scored_by = Judge(_check_and_make_lm(graph, judge), rubric or "")
    teacher_lm = None if teacher is None else _check_and_make_lm(graph, teacher)
    progress = _Progress(ProgressLine(err(), quiet=quiet))
    improvements: list[Improvement] = []

    async def improve() -> None:
        progress.line.update(f"reading {file}", milestone=True)
        async with open_to_read(file) as opened:
            improvement = Improvement(
                graph,
                opened,
                output,
                student,
                teacher_lm,
                scored_by,
                optimizer,
                options,
                nodes=classes,
                without=[await find_run_id(opened, reference) for reference in without or ()],
                evals=with_evals,
                held_out=held_out,
                minimum=minimum,
                seed=seed,
                concurrency=concurrency,
                budget=limits or Budget(scope="--budget"),
                force=force,
                certain=certain,
                progress=progress.update,
            )
            improvements.append(improvement)
            await improvement.run()

    ended = work(
        improve, progress.line, lambda: how_to_resume(improvements[0]) if improvements else ""
    )
    if not improvements:
        raise ended.error or typer.Exit(ended.code)
    print_result(improvements[0], file, ended, as_json=as_json, quiet=quiet)


def _check_and_make_lm(graph: Graph[Any, Any], named: str | None, *, quiet: bool = True) -> LM:
    check_lm(graph, named, begins=True)
    return make_lm(graph, named, quiet=quiet)


def _load_metric(reference: str | None, graph: Graph[Any, Any]) -> Any:
    """Load the metric of --metric, or return None without --metric.

    The metric is a DSPy-style function of an example and a prediction, or a mapping of node classes
    to functions of an expected and an actual node.
    """
    from bae.optimizer.metrics import metrics_for

    if reference is None:
        return None
    metric = load_object(reference, "--metric")
    with refusing_metric(reference):
        if metric is None:
            raise TypeError("it is None")
        if isinstance(metric, Mapping):
            metric = cast("Mapping[Any, Any]", metric)
            check_node_metrics(graph, metric)
        for cls in every_node(graph):
            metrics_for(cls, "fill", metric)
    return metric


def _parse_options(optimizer: str, texts: Sequence[str]) -> dict[str, Any]:
    """Parse the settings of --option. A value that is not JSON is text. Raises
    `typer.BadParameter` for an option that the optimizer does not have."""
    from bae.optimizer.optimizers import OPTIONS, checked_options

    values: dict[str, Any] = {}
    try:
        for setting in texts:
            name, equals, text = (part.strip() for part in setting.partition("="))
            if not equals or not name:
                example = ", ".join(f"{name}=…" for name in OPTIONS[optimizer])
                raise ValueError(f"{setting!r} is no NAME=VALUE: {optimizer} takes {example}")
            if name in values:
                raise ValueError(f"{name} is there twice")
            try:
                values[name] = json.loads(text)
            except (ValueError, RecursionError):
                values[name] = text
        checked_options(optimizer, values)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--option") from error
    return values


def _find_classes(graph: Graph[Any, Any], names: Sequence[str]) -> tuple[type[Node], ...]:
    """Find the node classes of --node. Without names, return all node classes of the graph."""
    classes = every_node(graph)
    class_names = [cls.__name__ for cls in classes]
    for name in names:
        if name not in class_names:
            raise refusal(
                f"there is no node {name} in the graph {graph.name}",
                fix=f"name one of {', '.join(class_names)}",
            )
    return tuple(cls for cls in classes if not names or cls.__name__ in names)


class _Progress:
    """Shows the phase of the current node and the number of LM calls."""

    def __init__(self, line: ProgressLine) -> None:
        self.line = line
        self._phases: set[tuple[str, str]] = set()

    def update(self, progress: Progress) -> None:
        if progress.phase == "skipped":  # the result has the reason
            return
        place = f"{progress.node} {progress.part}"
        if progress.note:
            about = f"{place}: " if progress.part else ""
            counts = progress.phase == "read" and progress.part
            self.line.inform(f"{'' if counts else 'note: '}{about}{progress.note}")
            return
        parts = [f"{place}: {progress.phase}", count(progress.calls, "call")]
        best = progress.best
        if progress.phase == "compared" and best is not None:
            # The score of the selected candidate would be too high, because it decided the
            # selection.
            parts[0] += f": {best:.2f} on held-out questions"
            best = None
        if progress.earlier:
            parts.append(f"{progress.earlier:,} kept from before")
        if best is not None:
            parts.append(f"best {best:.2f}")
        # Some optimizers change phases hundreds of times. Print a line only for a new phase.
        phase = place, progress.phase
        new = phase not in self._phases or progress.phase in ("done", "compared")
        self._phases.add(phase)
        self.line.update(" · ".join(parts), milestone=new)
