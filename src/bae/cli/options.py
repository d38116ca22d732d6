"""Arguments and options that several commands have in common, with one help text each."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bae.cli.completing import lm_names, modules, run_ids
from bae.cli.sane_values import never_empty

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
        help="Ask with a learned prompt: the artefacts that `bae optimize` has written to this "
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


def examples(*lines: str) -> str:
    """The epilog of a command: command lines to copy, and sentences that begin with a capital."""
    commands = "\n".join(f"  {line}" for line in lines if not line[0].isupper())
    notes = "".join(f"\n\n{line}" for line in lines if line[0].isupper())
    return f"\b\nExamples:\n{commands}{notes}"
