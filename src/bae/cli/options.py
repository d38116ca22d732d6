"""Arguments and options that several commands share, with help texts and shell completions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.usage import read_number

if TYPE_CHECKING:
    from bae.journal.stored_runs import RunInfo
    from bae.lm.policies.budget import Budget


NEWEST: Final = "last"
"""The argument RUN that means the newest run."""
_MOST: Final = 40
"""Maximum completions of a word."""


# --- shell completions: they are fast and raise no errors -----------------------------------------


def modules(incomplete: str) -> list[str]:
    """Complete paths of Python files and directories."""
    try:
        paths = _complete_path(incomplete)
        # A shell adds a blank after an only match. After a directory, the user could then not
        # continue, so offer the files of the directory instead.
        while len(paths) == 1 and paths[0].endswith("/"):
            paths = _complete_path(paths[0])
    except OSError:
        return []
    return [path for path in paths if _PLAIN.fullmatch(path)]


def lm_names(incomplete: str) -> list[str]:
    """Complete names of LMs. If a model must follow the name, the completion ends in a colon."""
    from bae.lm.registry import KINDS

    names = [f"{name}:" if kind.needs_rest else name for name, kind in KINDS.items()]
    return [name for name in names if name.startswith(incomplete)]


def run_ids(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Complete ids of the newest runs, each with its graph and status. `last` is the newest run."""
    try:
        runs = [(info.run_id, f"{info.graph}, {info.status}") for info in _read_newest_runs(ctx)]
    except Exception:  # the journal is missing, damaged or locked: offer nothing
        return []
    if runs:
        newest, description = runs[0]
        runs.insert(0, (NEWEST, f"{newest}: {description}"))
    return _filter_completions(runs, incomplete)


def open_gates(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Complete the open gates of the run on the command line, with their questions."""
    try:
        reference = (None if ctx is None else ctx.params.get("run")) or NEWEST
        runs = [
            info
            for info in _read_newest_runs(ctx)
            if reference == NEWEST or info.run_id.startswith(reference)
        ]
        gates = [gate for gate in runs[0].waiting if not gate.answered] if runs else []
    except Exception:  # the journal is missing, damaged or locked: offer nothing
        return []
    places = [gate.place for gate in gates]
    names = (gate.place if places.count(gate.place) == 1 else gate.address for gate in gates)
    return _filter_completions(
        zip(names, (gate.question for gate in gates), strict=True), incomplete
    )


def _filter_completions(words: Iterable[tuple[str, str]], incomplete: str) -> list[tuple[str, str]]:
    """Return the words that begin with the typed text. Words with shell syntax are left out,
    because another person may have chosen the id of a run."""
    from bae.cli.wording import in_one_line

    return [
        (word, in_one_line(about))
        for word, about in words
        if word.startswith(incomplete) and _PLAIN.fullmatch(word)
    ][:_MOST]


def _read_newest_runs(ctx: Any) -> Iterable[RunInfo]:
    import asyncio  # keeps `bae --help` fast

    from bae.cli.journals import file_to_read, open_to_read

    named: str | None = None if ctx is None else ctx.params.get("journal")

    async def list_newest() -> list[RunInfo]:
        file = file_to_read(named or os.environ.get("BAE_JOURNAL"))
        async with asyncio.timeout(_TIMEOUT), open_to_read(file, patience=0) as journal:
            return await journal.runs(limit=200)

    return asyncio.run(list_newest())


_TIMEOUT: Final = 2.0
"""Maximum seconds that completions wait for a database."""
_PLAIN: Final = re.compile(r"(?!-)[\w./~+@%=:,-]+")
"""Matches a word that has no shell syntax and is not an option."""
_LEFT_OUT: Final = ("__pycache__", "node_modules")


def _complete_path(incomplete: str) -> list[str]:
    folder, prefix = os.path.split(incomplete)
    paths: list[str] = []
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in entries:
            if not entry.name.startswith(prefix) or (entry.name.startswith(".") and not prefix):
                continue
            path = os.path.join(folder, entry.name).replace(os.sep, "/")
            if entry.is_dir() and entry.name not in _LEFT_OUT:
                paths.append(f"{path}/")
            elif entry.name.endswith(".py"):
                paths.append(path)
    return sorted(paths)


# --- arguments and options ----------------------------------------------------------------------


def option(words: str, about: str, **more: Any) -> Any:
    """Declare an option with a value. `words` has the names of the option and the name of the
    value, as `--journal -j FILE`."""
    *names, value = words.split()
    return typer.Option(*names, metavar=value, help=about, **more)


def flag(names: str, about: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(*names.split(), help=about)


def argument(value: str, about: str, **more: Any) -> Any:
    """Declare an argument. `value` is its name in the help."""
    return typer.Argument(metavar=value, help=about, show_default=False, **more)


def never_empty(value: Any) -> Any:
    """Refuse empty values of an option. They usually come from an unset shell variable, and an
    empty path would mean this directory."""
    values: Sequence[str] = [value] if isinstance(value, str) else value or ()
    if not all(name.strip() for name in values):
        raise typer.BadParameter("this names nothing. Give a name, or leave the option out")
    return value


def id_of_new(run_id: str | None) -> str | None:
    """Validate the id for a new run, and return it. Raises `typer.BadParameter`."""
    if run_id is not None:
        from bae.exceptions import JournalError
        from bae.journal.run_checks import check_names

        try:
            check_names(run_id, "graph")
        except JournalError as error:
            raise typer.BadParameter(f"{error.message}. Leave it out for a random id") from error
    return run_id


Module = Annotated[
    str | None,
    argument(
        "MODULE",
        "The graph: a file (`app.py`), a module (`wardrobe.nodes`), or either with the name of a "
        "graph, of a function that returns one, or of the node class to start at "
        "(`app.py:refunds`). Without a name: `graph` or `create_graph()`. Default: "
        "`[tool.bae] graph` in pyproject.toml.",
        autocompletion=modules,
    ),
]
Modules = Annotated[
    list[str] | None,
    argument(
        "MODULE",
        "The graphs, each a file (`app.py`), a module (`wardrobe.nodes`), or either with a name in "
        "it (`app.py:refunds`). Default: `[tool.bae] graph` in pyproject.toml, if there is one.",
        autocompletion=modules,
    ),
]
OfModule = Annotated[
    str | None,
    option(
        "--module -m MODULE",
        "The graph of the run, named as for `bae run`. Default: `[tool.bae] graph` in "
        "pyproject.toml.",
        autocompletion=modules,
    ),
]
_RUN: Final = "A run id or the beginning of one; `last` is the newest run."
OneRun = Annotated[str, argument("RUN", _RUN, autocompletion=run_ids)]
NewestRun = Annotated[
    str | None, argument("RUN", f"{_RUN} Default: the newest.", autocompletion=run_ids)
]
JournalFile = Annotated[
    str | None,
    option(
        "--journal -j FILE|URL",
        "The journal: a file, or a database as postgresql://HOST/DATABASE. Default: `journal` of "
        "[tool.bae] in pyproject.toml, or `.bae/runs.db` beside it, else in this directory.",
        envvar="BAE_JOURNAL",
    ),
]
LMName = Annotated[
    str | None,
    option(
        "--lm -b SPEC",
        "The language model, such as `local` or `claude-cli:sonnet`; `bae lm list` shows all. "
        "Default: BAE_LM, or what this machine offers.",
        autocompletion=lm_names,
    ),
]
Optimized = Annotated[
    str | None,
    option(
        "--optimized DIR",
        "Use the learned prompts that `bae optimize` wrote to this directory.",
        callback=never_empty,
    ),
]
AsJSON = Annotated[bool, flag("--json", "Print JSON, for scripts.")]
Metadata = Annotated[
    list[str] | None,
    option(
        "--metadata KEY=VALUE",
        "Data stored with the run, as `user_id=ana`; JSON if the value is JSON, otherwise "
        "text. Repeat for each key.",
    ),
]
InputOption = Annotated[
    str | None,
    option(
        "--input -i JSON",
        "The fields of the start node as a JSON object; `@FILE` reads a file, `-` stdin. If there "
        "is only one field to give, its value is enough.",
    ),
]
Sets = Annotated[
    list[str] | None,
    option(
        "--set FIELD=VALUE",
        "A field. The value is JSON if that is valid for the field, otherwise text: `n=5`, "
        '`tags=["a"]`, `name=Ann`. Quoted text is JSON and loses its quotes; `name="\\"a\\""` '
        "keeps them. `photo=@a.png` reads a file, for a field that holds an image or a document. "
        "Repeat for each field.",
    ),
]
SecretsOption = Annotated[
    list[str] | None,
    option(
        "--set NODE.FIELD=VALUE",
        "A secret that the journal does not store, such as `Login.token=…`; repeatable. Default: "
        "asked for at a terminal.",
    ),
]
Quiet = Annotated[bool, flag("--quiet -q", "Print only the result and errors.")]
NoAsk = Annotated[
    bool,
    flag(
        "--no-ask",
        "Ask nothing at the terminal: a missing field is an error, a gate parks the run.",
    ),
]
_NODES: Final = "The maximum number of nodes"
MaxIters = Annotated[int, option("--max-iters N", f"{_NODES}; 0 for no limit.", min=0)]
MoreIters = Annotated[
    int | None,
    option(
        "--max-iters N",
        f"{_NODES}, counted from the start of the run; 0 for no limit. Default: as it was.",
        min=0,
    ),
]
NewId = Annotated[str | None, option("--run-id ID", "The id of the new run.", callback=id_of_new)]
NoRun = Annotated[bool, flag("--no-run", "Do not resume the run.")]
Force = Annotated[bool, flag("--force -f", "Overwrite existing files.")]
Yes = Annotated[bool, flag("--yes -y", "Do not ask for confirmation.")]


def budget_option(what: str) -> Any:
    """Declare the option `--budget`. `what` names the limited work in the help, such as `the
    run`."""
    return option(
        "--budget LIMITS",
        f"What {what} may spend, such as `calls=20,cost=0.10`: LLM `calls`, `tokens` in and out, "
        "`cost` in US dollars, `seconds` on the clock.",
    )


BudgetLimits = Annotated[str | None, budget_option("the run")]
_LIMITS: Final = ("calls", "tokens", "cost", "seconds")


def budget_of(text: str | None) -> Budget | None:
    """Parse the value of `--budget`. Raises `typer.BadParameter`."""
    if text is None:
        return None
    from bae.lm.policies.budget import Budget

    limits: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, amount = (word.strip() for word in part.partition("="))
        if not equals or name not in _LIMITS:
            raise _budget_error(
                f"{part.strip()!r} is none of {', '.join(f'{n}=…' for n in _LIMITS)}"
            )
        if name in limits:
            raise _budget_error(f"{name} is there twice")
        is_whole = name in ("calls", "tokens")
        number = read_number(amount if is_whole else amount.removeprefix("$"))
        if number is None or (is_whole and not number.is_integer()):
            kind = "a whole number such as 20" if is_whole else "a number such as 0.5"
            raise _budget_error(f"{name}={amount} is not {kind}")
        limits[name] = int(number) if is_whole else number
    return Budget(**limits, scope="--budget")


def _budget_error(message: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"{message}. Write it as calls=20,tokens=50000", param_hint="'--budget'"
    )


def metadata_of(settings: list[str] | None) -> dict[str, Any]:
    """Parse the values of `--metadata`. Raises `typer.BadParameter`."""
    metadata: dict[str, Any] = {}
    for setting in settings or ():
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(
                f"{setting!r} has no KEY=VALUE. Write it as user_id=ana", param_hint="'--metadata'"
            )
        try:
            metadata[name.strip()] = json.loads(text)
        except ValueError:
            metadata[name.strip()] = text
    return metadata


def above_zero(seconds: float) -> float:
    """Return a timeout. Raises `typer.BadParameter` if it is not more than 0."""
    if not seconds > 0:
        raise typer.BadParameter("must be more than 0 seconds")
    return seconds


def once(values: list[str]) -> list[str]:
    """Refuse a repeated option. Without this callback, Typer would use only the last value."""
    if len(values) > 1:
        raise typer.BadParameter(f"it is there {len(values)} times. Give it once")
    return values


def refuse_both_journals(context: typer.Context, *, no_journal: bool) -> None:
    """Refuse --no-journal together with --journal. A journal in BAE_JOURNAL is allowed."""
    source = context.get_parameter_source("journal")
    if no_journal and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(
            "--journal names one. Leave one of the two out", context, param_hint="'--no-journal'"
        )


def examples(*lines: str) -> str:
    """Make the epilog of a command's help from command lines and sentences. A sentence begins with
    a capital letter."""
    commands = "\n".join(f"  {line}" for line in lines if not line[0].isupper())
    notes = "".join(f"\n\n{line}" for line in lines if line[0].isupper())
    return f"\b\nExamples:\n{commands}{notes}"


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration(text: str) -> float:
    """Parse a duration such as 90s, 30m, 12h, 30d or 2w into seconds. Raises
    `typer.BadParameter`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no length of time: write 90s, 30m, 12h, 30d or 2w")
    return float(match[1]) * _UNITS[match[2]]
