"""`bae optimize`: what the runs of a journal have to teach, learnt for each node, proved on runs
that were held out, and written where it is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bae.cli import exits
from bae.cli.completing import lm_names, run_ids
from bae.cli.options import (
    AsJSON,
    JournalFile,
    LMName,
    Module,
    Quiet,
    budget_option,
    examples,
    never_empty,
)

if TYPE_CHECKING:
    from bae.cli.improving.kept_calls import KeptCalls
    from bae.cli.improving.wanted import Learnt, Wanted
    from bae.cli.improving.working import Ended
    from bae.graph import Graph
    from bae.lm import LM

EPILOG: Final = examples(
    "bae optimize app.py -o learnt --lm local",
    "bae optimize app.py -o learnt --lm local --teacher claude-cli --budget calls=500",
    "bae optimize app.py -o learnt --optimizer gepa --node Reply --metric scoring.py:METRICS",
    "bae optimize app.py -o learnt --optimizer miprov2 --option num_trials=20",
    "bae optimize app.py -o learnt --judge anthropic --rubric 'Polite, and answers the question.'",
)

Directory = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        callback=never_empty,
        help="Where the artefacts go, a JSON file for each node, for `--optimized DIR`.",
    ),
]
Teacher = Annotated[
    str | None,
    typer.Option(
        "--teacher",
        metavar="SPEC",
        show_default=False,
        autocompletion=lm_names,
        help="The language model that makes demonstrations and proposes instructions. Left out: "
        "the one that learns.",
    ),
]
Optimizer = Annotated[
    Literal["bootstrap", "miprov2", "gepa"],
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="How it is learnt: `bootstrap` shows examples, `miprov2` looks for instructions as "
        "well, `gepa` rewrites instructions by what went wrong.",
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        show_default=False,
        help="An option of the optimizer, the value as JSON, as `max_labeled_demos=4`; may be "
        "given several times. A name that there is not is answered with those there are.",
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME",
        show_default=False,
        help="Learn for this node alone; may be given several times. Left out: for all.",
    ),
]
TrainingMetric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="MODULE:NAME",
        show_default=False,
        help="How an answer is scored: functions of the expected and the given node by their "
        "class, in a module or a file, as `scoring.py:METRICS`, or one function of an example and "
        "a prediction, as DSPy has them. Left out: field by field.",
    ),
]
JudgeName = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="SPEC",
        show_default=False,
        autocompletion=lm_names,
        help="A language model that scores the filled fields, where no metric does.",
    ),
]
Rubric = Annotated[
    str | None,
    typer.Option(
        "--rubric",
        metavar="TEXT",
        show_default=False,
        help="With --judge: what a good answer is.",
    ),
]
SpendingLimits = Annotated[str | None, budget_option("the optimisation")]
HeldOut = Annotated[
    float,
    typer.Option(
        "--held-out",
        metavar="X",
        min=0,
        max=0.9,
        help="The part of the runs that nothing is learnt from, and before and after are compared "
        "on.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="Decides which runs are held out, and chance.")
]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", "-c", metavar="N", min=1, help="Calls that are made at once."),
]
Minimum = Annotated[
    int,
    typer.Option(
        "--minimum",
        metavar="N",
        min=1,
        help="Different questions that a node needs to be learnt for.",
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
        help="Leave out a run, by its id or how that begins: one that chose wrongly, which a fork "
        "cannot put right. May be given several times.",
    ),
]
WithEvals = Annotated[
    bool,
    typer.Option(
        "--with-evals",
        help="Learn from the runs of `bae eval` too, which are left out otherwise: cases that were "
        "learnt tell nothing any more.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write what was learnt though it is not better.")
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
    """Learn from the runs of a journal, and write what makes the graph better.

    The runs that have ended, and what people have corrected in forks of them, are split: from one
    part it is learnt, on the other before and after are compared. A node whose answers are not
    better is not written. Interrupted, the same command goes on where it was.
    """
    from bae.cli.options import budget_of

    limits = budget_of(budget)
    if judge is not None and metric is not None:
        raise typer.BadParameter("give --metric or --judge, not both", param_hint="--judge")
    if rubric is not None and judge is None:
        raise typer.BadParameter("--rubric goes with --judge SPEC", param_hint="--rubric")
    if force and certain:
        raise typer.BadParameter("give --force or --certain, not both", param_hint="--certain")
    from pathlib import Path

    from bae.cli.improving.material import classes_named
    from bae.cli.improving.metrics import training_metric
    from bae.cli.improving.optimizer_options import options_of
    from bae.cli.improving.wanted import Wanted
    from bae.cli.journals import file_to_read
    from bae.cli.loading import load
    from bae.cli.models import prove
    from bae.lm.extras import load_dspy
    from bae.lm.policies.budget import Budget

    load_dspy("bae optimize")
    options = options_of(optimizer, option or ())
    graph = load(module).graph
    prove(graph, module)
    classes = classes_named(graph, node or ())
    file = file_to_read(journal)
    model = _lm(graph, lm, quiet=quiet)
    wanted = Wanted(
        graph,
        file,
        Path(output),
        model,
        _lm(graph, teacher) if teacher is not None else None,
        _judge(graph, judge, rubric) if judge is not None else training_metric(metric, graph),
        optimizer,
        classes,
        tuple(without or ()),
        with_evals,
        held_out,
        minimum,
        seed,
        concurrency,
        limits or Budget(scope="--budget"),
        options,
        force,
        certain,
    )
    for each in wanted.judges:
        each.ready()
    _carry_out(wanted, as_json=as_json, quiet=quiet)


def _lm(graph: Graph[Any, Any], named: str | None, *, quiet: bool = True) -> LM:
    from bae.cli.exits import refused
    from bae.cli.models import check_lm, made_lm

    check_lm(graph, named, begins=True)
    if named is None and not graph.needs_lm:
        from bae.lm.registry import LazyLM
        from bae.optimizer import every_node
        from bae.plan import plan_of

        if any(plan_of(cls).lm is not None for cls in every_node(graph)):
            # All that is asked for has an LM pinned to it, which learns in the place of this one.
            return LazyLM(f"the LM of {graph.name} was asked")
        raise refused(
            f"the graph {graph.name} asks no language model, so there is nothing to learn",
            fix="name a graph in which a model fills nodes or chooses between them",
        )
    return made_lm(graph, named, quiet=quiet)


def _judge(graph: Graph[Any, Any], named: str, rubric: str | None) -> Any:
    from bae.optimizer import Judge

    return Judge(_lm(graph, named), rubric or "")


def _carry_out(wanted: Wanted, *, as_json: bool, quiet: bool) -> None:
    from bae.cli.improving.ended_notes import tell_kept, tell_spent, tell_unfinished
    from bae.cli.improving.kept_calls import KeptCalls
    from bae.cli.improving.learning import Learning
    from bae.cli.improving.learnt_data import as_data
    from bae.cli.improving.learnt_table import print_learnt
    from bae.cli.improving.status import status_for
    from bae.cli.improving.working import work
    from bae.cli.printing import err, out, print_json

    with KeptCalls(wanted.directory, wanted.asked) as kept:
        status = status_for(err(), quiet=quiet)
        learning = Learning(wanted, kept.calls, status, quiet=quiet)
        ended = work(lambda: kept.around(learning.learn), status, kept.goes_on)
        learnt = learning.learnt
        done = ended.error is None and not ended.code and learnt.done
        kept.let_go(useful=not done or bool(learnt.unwritten))
    if as_json:
        print_json(as_data(wanted, learnt, kept, ended.error))
    elif learnt.parts:
        if not quiet and err().is_terminal:
            err().print()  # between what was shown of the work and what came of it
        print_learnt(out(), wanted, learnt)
    if not quiet:
        tell_spent(wanted, learnt, kept)
        tell_kept(wanted, learnt, kept)
    tell_unfinished(learnt, kept, interrupted=bool(ended.code))
    _raise(ended, learnt, kept)


def _raise(ended: Ended[Any], learnt: Learnt, kept: KeptCalls) -> None:
    """End as the work did. It fails where it did not come to its end, and where nothing was written
    and nothing as good is there."""
    if ended.error is not None:
        if kept.statistics.calls or kept.number:
            ended.error.add_note(kept.goes_on())
        raise ended.error
    if ended.code:
        raise typer.Exit(ended.code)
    stands = ("there already", "no better than what is there")
    stays = any(part.verdict in stands for part in learnt.parts)
    if not learnt.done or not (learnt.files or stays):
        raise typer.Exit(exits.FAILED)
