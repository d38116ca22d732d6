"""Arguments and options that several commands have in common, with one help text each."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bae.cli.completing import lm_names, modules, run_ids

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
        metavar="[RUN]",
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
        help="The journal of the runs. Left out: `.bae/runs.db` in this directory.",
    ),
]
LMName = Annotated[
    str | None,
    typer.Option(
        "--lm",
        metavar="SPEC",
        show_default=False,
        autocompletion=lm_names,
        help="The language model, as `local` or `claude-cli:sonnet`; `bae lm list` has them all. "
        "Left out: what BAE_LM names, or else what this machine offers.",
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for a script.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        show_default=False,
        help="A field. The value is JSON where it is valid for the field, and else text; may be "
        "given several times.",
    ),
]
