"""Arguments and options that several commands have in common, with one help text each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.completing import lm_names, modules, run_ids

if TYPE_CHECKING:
    from bae.lm.policies.budget import Budget


def never_empty(said: Any) -> Any:
    """What an option names, once or several times. An empty name would be that of this directory,
    and most likely comes of a variable that is not set."""
    given: Sequence[str] = [said] if isinstance(said, str) else said or ()
    if not all(each.strip() for each in given):
        raise typer.BadParameter("this names nothing. Give a name, or leave the option out")
    return said


Module = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE",
        show_default=False,
        autocompletion=modules,
        help="Where the graph is: a file as `app.py`, a module as `wardrobe.nodes`, or either with "
        "a name, as `app.py:refunds`: that of a graph, of a function that makes one, or of the "
        "node class to start at. Without a name it is `graph` or `create_graph()`. Left out: what "
        "`[tool.bae] graph` in pyproject.toml says.",
    ),
]
OfModule = Annotated[
    str | None,
    typer.Option(
        "--module",
        "-m",
        metavar="MODULE",
        show_default=False,
        autocompletion=modules,
        help="Where the graph of the run is, as `bae run` takes it. Left out: what `[tool.bae] "
        "graph` in pyproject.toml says.",
    ),
]
_RUN: Final = "A run: its id, or how that begins; `last` is the newest one."
OneRun = Annotated[
    str, typer.Argument(metavar="RUN", show_default=False, autocompletion=run_ids, help=_RUN)
]
NewestRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        autocompletion=run_ids,
        help=f"{_RUN} Left out: that.",
    ),
]
JournalFile = Annotated[
    str | None,
    typer.Option(
        "--journal",
        "-j",
        metavar="FILE",
        envvar="BAE_JOURNAL",
        show_default=False,
        help="The journal of the runs. Left out: `.bae/runs.db` of the project, beside the "
        "pyproject.toml with [tool.bae], or else of this directory.",
    ),
]
LMName = Annotated[
    str | None,
    typer.Option(
        "--lm",
        "-b",
        metavar="SPEC",
        show_default=False,
        autocompletion=lm_names,
        help="The language model, as `local` or `claude-cli:sonnet`; `bae lm list` has them all. "
        "Left out: what BAE_LM names, or else what this machine offers.",
    ),
]
Optimized = Annotated[
    str | None,
    typer.Option(
        "--optimized",
        metavar="DIR",
        show_default=False,
        callback=never_empty,
        help="Ask with a learned prompt: the artifacts that `bae optimize` has written to this "
        "directory.",
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for a script.")]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        "-i",
        metavar="JSON",
        show_default=False,
        help="The fields of the start node as a JSON object, `@FILE` for a file of it, `-` for "
        "stdin. Where there is one field to give, its value alone will do.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        show_default=False,
        help="A field. The value is JSON where that is valid for the field, and else text: `n=5`, "
        '`tags=["a"]`, `name=Ann`. A text in quotes loses them, as it is JSON; `name="\\"a\\""` '
        "keeps them. May be given several times, once for each field.",
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NODE.FIELD=VALUE",
        show_default=False,
        help="A secret that the journal does not keep, as `Login.token=…`; may be given several "
        "times. Left out, it is asked for at a terminal.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the result and errors, and no progress.")
]
NoAsk = Annotated[
    bool,
    typer.Option(
        "--no-ask", help="Ask nothing at the terminal: what is missing is an error, a gate parks."
    ),
]
MaxIters = Annotated[
    int, typer.Option("--max-iters", metavar="N", min=0, help="How many nodes may run; 0: any.")
]


def budget_option(what: str) -> Any:
    """`--budget`, as a command has it for what it does: `the run`."""
    return typer.Option(
        "--budget",
        metavar="LIMITS",
        show_default=False,
        help=f"What {what} may spend, as `calls=20,cost=0.10`: `calls` of the language model, "
        "`tokens` in and out, `cost` in US dollars, `seconds` on the clock.",
    )


BudgetLimits = Annotated[str | None, budget_option("the run")]
_LIMITS: Final = ("calls", "tokens", "cost", "seconds")


def budget_of(said: str | None) -> Budget | None:
    """The budget that a command line asks for. Raises `typer.BadParameter`."""
    if said is None:
        return None
    from bae.lm.policies.budget import Budget

    limits: dict[str, Any] = {}
    for part in said.split(","):
        name, equals, amount = (each.strip() for each in part.partition("="))
        if not equals or name not in _LIMITS:
            raise _wrong(f"{part.strip()!r} is none of {', '.join(f'{n}=…' for n in _LIMITS)}")
        if name in limits:
            raise _wrong(f"{name} is there twice")
        limits[name] = _number(name, amount)
    return Budget(**limits, scope="--budget")


def _number(name: str, amount: str) -> float:
    whole = name in ("calls", "tokens")
    try:
        number = float(amount.removeprefix("$").replace("_", ""))
        number = int(number) if whole and number == int(number) else number
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number < float("inf") or (whole and not isinstance(number, int)):
        kind = "a whole number" if whole else "a number"
        raise _wrong(f"{name}={amount} is not {kind}, 0 or more")
    return number


def _wrong(message: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"{message}. Write it as calls=20,tokens=50000", param_hint="'--budget'"
    )


def id_of_new(said: str | None) -> str | None:
    """What a new run is to be called, as an option gives it."""
    if said is not None:
        from bae.exceptions import JournalError
        from bae.journal.store import check_names

        try:
            check_names(said, "graph")
        except JournalError as error:
            raise typer.BadParameter(f"{error.message}. Leave it out for a random id") from error
    return said


def above_zero(said: float) -> float:
    """A number of seconds in which something can be done."""
    if not said > 0:
        raise typer.BadParameter("must be more than 0 seconds")
    return said


def once(said: list[str]) -> list[str]:
    """What may be given once alone, as a list, since all but the last would be lost otherwise."""
    if len(said) > 1:
        raise typer.BadParameter(f"it is there {len(said)} times, and only one can be meant")
    return said


def refuse_both_journals(context: typer.Context, *, no_journal: bool) -> None:
    """Refuse --no-journal beside --journal. A variable may well name a journal."""
    source = context.get_parameter_source("journal")
    if no_journal and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(
            "--journal names one. Leave one of the two out", context, param_hint="'--no-journal'"
        )


def examples(*lines: str) -> str:
    """The epilog of a command: command lines to copy, and sentences that begin with a capital."""
    commands = "\n".join(f"  {line}" for line in lines if not line[0].isupper())
    notes = "".join(f"\n\n{line}" for line in lines if line[0].isupper())
    return f"\b\nExamples:\n{commands}{notes}"
