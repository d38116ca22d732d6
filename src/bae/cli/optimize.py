"""`bae optimize`: learned prompts from the runs of a journal, compared on runs that were held out,
and written where they are better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    Module,
    Quiet,
    budget_option,
    examples,
    lm_names,
    never_empty,
    run_ids,
)

if TYPE_CHECKING:
    from bae.cli.live.screen import ProgressLine
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

Directory = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        callback=never_empty,
        help="The directory for the learned prompts, a JSON file per node, for `--optimized DIR`.",
    ),
]
Teacher = Annotated[
    str | None,
    typer.Option(
        "--teacher",
        metavar="SPEC",
        show_default=False,
        autocompletion=lm_names,
        help="The language model that makes examples and proposes instructions. Default: the one "
        "that learns.",
    ),
]
Optimizer = Annotated[
    Literal["bootstrap", "miprov2", "gepa"],
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="`bootstrap` selects few-shot examples, `miprov2` also searches instructions, `gepa` "
        "rewrites instructions from mistakes.",
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        show_default=False,
        help="An option of the optimizer, with a JSON value, as `max_labeled_demos=4`. Repeatable. "
        "An unknown name is answered with the known ones.",
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME",
        show_default=False,
        help="Optimize only this node. Repeatable. Default: all nodes.",
    ),
]
TrainingMetric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="MODULE:NAME",
        show_default=False,
        help="How an answer is scored: functions of the expected and the given node by their "
        "class, as `scoring.py:METRICS`, or one DSPy-style function of an example and a "
        "prediction. Default: field by field.",
    ),
]
JudgeName = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="SPEC",
        show_default=False,
        autocompletion=lm_names,
        help="A language model that scores filled fields that no metric scores.",
    ),
]
Rubric = Annotated[
    str | None,
    typer.Option(
        "--rubric",
        metavar="TEXT",
        show_default=False,
        help="With --judge: what makes a good answer.",
    ),
]
SpendingLimits = Annotated[str | None, budget_option("the optimization")]
HeldOut = Annotated[
    float,
    typer.Option(
        "--held-out",
        metavar="X",
        min=0,
        max=0.9,
        help="The share of the runs that is held out for the comparison.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="The seed for held-out runs and random choices.")
]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", "-c", metavar="N", min=1, help="The number of concurrent calls."),
]
Minimum = Annotated[
    int,
    typer.Option(
        "--minimum",
        metavar="N",
        min=1,
        help="The number of different questions that a node needs.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="RUN",
        show_default=False,
        callback=never_empty,
        autocompletion=run_ids,
        help="Exclude a run, by its id or the beginning of one, such as one with a wrong choice, "
        "which a fork cannot correct. Repeatable.",
    ),
]
WithEvals = Annotated[
    bool,
    typer.Option(
        "--with-evals",
        help="Also learn from runs of `bae eval`. They are left out by default, because a case "
        "that was learned no longer measures anything.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write learned prompts even if they are not better.")
]
Certain = Annotated[
    bool,
    typer.Option("--certain", help="Write only what is better beyond chance."),
]


def optimize(
    module: Module = None,
    *,
    output: Directory,
    journal: JournalFile = None,
    lm: LMName = None,
    teacher: Teacher = None,
    optimizer: Optimizer = "bootstrap",
    option: Options = None,
    node: Nodes = None,
    metric: TrainingMetric = None,
    judge: JudgeName = None,
    rubric: Rubric = None,
    budget: SpendingLimits = None,
    held_out: HeldOut = 0.3,
    seed: Seed = 0,
    concurrency: Concurrency = 4,
    minimum: Minimum = 10,
    without: Without = None,
    with_evals: WithEvals = False,
    force: Force = False,
    certain: Certain = False,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Learn from the runs of a journal, and write the learned prompts that make the graph better.

    Finished runs, and corrections that people made in forks of them, are split: one part is learned
    from, the other is for comparing before and after. A node whose answers are not better is not
    written. If interrupted, the same command resumes.
    """
    from bae.cli.options import budget_of

    limits = budget_of(budget)
    if judge is not None and metric is not None:
        raise typer.BadParameter("give --metric or --judge, not both", param_hint="--judge")
    if rubric is not None and judge is None:
        raise typer.BadParameter("--rubric goes with --judge SPEC", param_hint="--rubric")
    if force and certain:
        raise typer.BadParameter("give --force or --certain, not both", param_hint="--certain")
    from bae.cli import optimize_output as result
    from bae.cli.journals import file_to_read, open_to_read, run_meant
    from bae.cli.live.screen import ProgressLine
    from bae.cli.lm import prove
    from bae.cli.loading import load
    from bae.cli.metric_option import training_metric
    from bae.cli.printing import err
    from bae.cli.signals import work
    from bae.lm.extras import load_dspy
    from bae.lm.policies.budget import Budget
    from bae.optimizer import Improvement, Judge

    load_dspy("bae optimize")
    options = _options(optimizer, option or ())
    graph = load(module).graph
    prove(graph, module)
    classes = _classes(graph, node or ())
    file = file_to_read(journal)
    student = _lm(graph, lm, quiet=quiet)
    scored_by = training_metric(metric, graph)
    if judge is not None:
        scored_by = Judge(_lm(graph, judge), rubric or "")
    by = None if teacher is None else _lm(graph, teacher)
    progress = _Progress(ProgressLine(err(), quiet=quiet))
    made: list[Improvement] = []

    async def improve() -> None:
        progress.line.update(f"reading {file}", milestone=True)
        async with open_to_read(file) as opened:
            improvement = Improvement(
                graph,
                opened,
                output,
                student,
                by,
                scored_by,
                optimizer,
                options,
                nodes=classes,
                without=[await run_meant(opened, each) for each in without or ()],
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
            made.append(improvement)
            with result.notes_once(quiet):
                await improvement.run()

    ended = work(improve, progress.line, lambda: result.how_to_resume(made[0]) if made else "")
    if not made:
        raise ended.error or typer.Exit(ended.code)
    result.print_result(made[0], file, ended, as_json=as_json, quiet=quiet)


def _lm(graph: Graph[Any, Any], named: str | None, *, quiet: bool = True) -> LM:
    from bae.cli.exits import refused
    from bae.cli.learned import make_lm
    from bae.cli.lm import check_lm
    from bae.optimizer import every_node
    from bae.plan import plan_of

    check_lm(graph, named, begins=True)
    pinned = any(plan_of(cls).lm is not None for cls in every_node(graph))
    if named is None and not graph.needs_lm and not pinned:
        raise refused(
            f"the graph {graph.name} asks no language model, so there is nothing to learn",
            fix="name a graph in which a model fills nodes or chooses between them",
        )
    return make_lm(graph, named, quiet=quiet)


def _options(optimizer: str, texts: Sequence[str]) -> dict[str, Any]:
    """The options of the optimizer, their values as JSON, or else as text."""
    import json

    from bae.optimizer.optimizers import OPTIONS, checked_options

    def wrong(why: str) -> typer.BadParameter:
        return typer.BadParameter(why, param_hint="--option")

    given: dict[str, Any] = {}
    for each in texts:
        name, equals, text = (part.strip() for part in each.partition("="))
        if not equals or not name:
            known = ", ".join(f"{name}=…" for name in OPTIONS[optimizer])
            raise wrong(f"{each!r} is no NAME=VALUE: {optimizer} takes {known}")
        if name in given:
            raise wrong(f"{name} is there twice")
        try:
            given[name] = json.loads(text)
        except (ValueError, RecursionError):
            given[name] = text
    try:
        checked_options(optimizer, given)
    except (TypeError, ValueError) as error:
        raise wrong(str(error)) from error
    return given


def _classes(graph: Graph[Any, Any], names: Sequence[str]) -> tuple[type[Node], ...]:
    """The node classes of a graph with these names; without any, all."""
    from bae.cli.exits import refused
    from bae.optimizer import every_node

    every = every_node(graph)
    known = [cls.__name__ for cls in every]
    for name in names:
        if name not in known:
            raise refused(
                f"there is no node {name} in the graph {graph.name}",
                fix=f"name one of {', '.join(known)}",
            )
    return tuple(cls for cls in every if not names or cls.__name__ in names)


class _Progress:
    """How far it is: the phase of a part of a node, and the calls."""

    def __init__(self, line: ProgressLine) -> None:
        self.line = line
        self._phases: set[tuple[str, str]] = set()

    def update(self, progress: Progress) -> None:
        from bae.cli.wording import count

        if progress.phase == "skipped":  # it is in the result
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
            # Not the score of the candidates, which were selected by theirs.
            parts[0] += f": {best:.2f} on what was held out"
            best = None
        if progress.earlier:
            parts.append(f"{progress.earlier:,} kept from before")
        if best is not None:
            parts.append(f"best {best:.2f}")
        # Some optimizers change between phases hundreds of times.
        phase = place, progress.phase
        new = phase not in self._phases or progress.phase in ("done", "compared")
        self._phases.add(phase)
        self.line.update(" · ".join(parts), milestone=new)
