"""`bae check`: what can be known to go wrong before the first LM call, and which unfinished runs of
a journal the classes of today would break."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from bae.cli import exits
from bae.cli.journals import use
from bae.cli.loading import Loaded, load, relative_path
from bae.cli.options import AsJSON, Module, examples
from bae.cli.printing import as_data, error_data, note, out, print_hanging, print_json
from bae.cli.wording import count, in_lines
from bae.exceptions import BaeError, Problem
from bae.graph import Graph
from bae.journal.compatibility import BrokenRun
from bae.journal.compatibility import check as broken_runs
from bae.journal.store import Journal
from bae.node import Node

EPILOG: Final = examples(
    "bae check app.py",
    "bae check wardrobe.nodes:graph --strict",
    "bae check app.py --against .bae/runs.db",
)


def check(
    module: Module = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    durable: Annotated[
        bool,
        typer.Option(
            "--durable",
            help="Also report what a journal cannot store, and what is called again when a run is "
            "resumed.",
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="FILE",
            show_default=False,
            help="A journal: list its unfinished runs that could not be resumed with this code. "
            "It is only read.",
        ),
    ] = None,
    was: Annotated[
        list[str] | None,
        typer.Option(
            "--was",
            metavar="NAME",
            show_default=False,
            help="With --against: an earlier name of the graph. Repeatable.",
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Check a graph: print every mistake that its types show, each with a fix.

    Nothing is run: no function and no language model is called. The exit code is 1 if there are
    errors, or runs that would break.
    """
    if was and not against:
        raise typer.BadParameter("--was goes with --against FILE", param_hint="--was")
    if _check(module, strict, durable, against, was or [], as_json):
        raise typer.Exit(exits.FAILED)


def _check(
    module: str | None,
    strict: bool,
    durable: bool,
    against: str | None,
    was: Sequence[str],
    as_json: bool,
) -> bool:
    loaded = load(module)
    problems = loaded.graph.validate(journal=durable)
    found = [(problem, line_of(loaded.graph, problem.place)) for problem in problems]
    errors = any(problem.severity == "error" for problem in problems)
    warned = any(problem.severity == "warning" for problem in problems)
    left = _find_unreached(loaded)
    if not as_json:
        for problem, line in found:
            _print_problem(problem, line)
        _print_sum(loaded, problems)
        _print_unreached(left)
    # What an unfinished run would meet can only be told of a graph that can run at all.
    broken: list[BrokenRun] | None = None
    error: BaeError | None = None
    if against and not errors:
        try:
            broken = _find_broken(loaded, against, was)
        except BaeError as raised:  # what was proved is told all the same
            error = raised
    failed = errors or bool(broken) or (strict and warned) or error is not None
    if as_json:
        _print_data(loaded, found, left, broken, error, failed)
    elif against and error is None:
        _print_broken(loaded, against, broken)
    if error is not None:
        raise error
    return failed


def _find_unreached(loaded: Loaded) -> list[str]:
    """The node classes that the module defines and that no graph of it, nor a graph inside one,
    leads to: one that was left behind, or that a return type forgets. Base classes are left out,
    and names that begin with an underscore. Empty where it is not known where some node leads."""
    module = sys.modules.get(loaded.module)
    there = list(vars(module).items()) if module else []
    graphs: list[Any] = [loaded.graph, *(each for _, each in there if isinstance(each, Graph))]
    inside = [inner for each in graphs for inner in each.graphs]
    plans = {cls: plan for each in inside for cls, plan in each.plans.items()}
    if any(plan.misrouted or plan.unresolved for plan in plans.values()):
        return []
    defined = [
        each
        for name, each in there
        if isinstance(each, type)
        and issubclass(each, Node)
        and each.__module__ == loaded.module
        and not name.startswith("_")
    ]
    known = {*plans, *defined}
    return [
        cls.__name__
        for cls in dict.fromkeys(defined)
        if cls not in plans and not any(cls in other.__mro__[1:] for other in known)
    ]


def _find_broken(loaded: Loaded, file: str, was: Sequence[str]) -> list[BrokenRun]:
    async def look(journal: Journal) -> list[BrokenRun]:
        return await broken_runs(loaded.graph, journal, was=was)

    return use(file, look)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int


_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_INDENT: Final = 8


def _print_problem(problem: Problem, line: SourceLine | None) -> None:
    said = Text(in_lines(str(problem)))
    said.stylize(_STYLES[problem.severity], 0, len(problem.severity))
    said.stylize("bold", _INDENT, _INDENT + len(problem.place))
    if problem.fix:
        at = said.plain.index("\n")
        said.stylize("green", at + 1 + _INDENT, at + 1 + _INDENT + len("fix:"))
    where = f"{relative_path(Path(line.file))}:{line.line}  " if line is not None else ""
    said.append(f"\n{' ' * _INDENT}{where}[{problem.code}]", style="dim")
    print_hanging(out(), said, _INDENT)


def _print_sum(loaded: Loaded, problems: Sequence[Problem]) -> None:
    graph = loaded.graph
    nodes = count(len(graph.nodes), "node")
    edges = count(sum(map(len, graph.edges.values())), "edge")
    ends = " | ".join(cls.__name__ for cls in graph.terminal_nodes)
    said = Text(f"{_name(loaded)}: {nodes}, {edges}, {f'ends at {ends}' if ends else 'no end'}: ")
    said.append_text(_verdict(problems))
    print_hanging(out(), said, 2)


def _print_unreached(left: Sequence[str]) -> None:
    if left:
        print_hanging(out(), Text(f"not reached: {', '.join(left)}", style="dim"), 2)


def _verdict(problems: Sequence[Problem]) -> Text:
    counts: list[Text] = []
    for severity, style in _STYLES.items():
        number = sum(problem.severity == severity for problem in problems)
        if number:
            counts.append(Text(count(number, severity), style=style))
    return Text(", ").join(counts) if counts else Text("no problems", style="bold green")


def _print_broken(loaded: Loaded, file: str, broken: Sequence[BrokenRun] | None) -> None:
    name = loaded.graph.name
    if broken is None:
        note(f"{file} was not looked at: fix the errors first")
        return
    for run in broken:
        print_hanging(out(), Text(in_lines(str(run), 6)), 4)
    if broken:
        last = Text(f"{file}: {count(len(broken), 'run')} of {name} cannot be resumed", "bold red")
    else:
        last = Text(f"{file}: every unfinished run of {name} can be resumed", "green")
    print_hanging(out(), last, 2)


def _print_data(
    loaded: Loaded,
    found: Sequence[tuple[Problem, SourceLine | None]],
    left: Sequence[str],
    broken: Sequence[BrokenRun] | None,
    error: BaeError | None,
    failed: bool,
) -> None:
    graph = loaded.graph
    print_json(
        {
            "ok": not failed,
            "graph": graph.name,
            "module": loaded.module,
            "attribute": loaded.attribute,
            "nodes": [cls.__name__ for cls in graph.nodes],
            "edges": [
                [cls.__name__, target.__name__]
                for cls, targets in graph.edges.items()
                for target in targets
            ],
            "ends": [cls.__name__ for cls in graph.terminal_nodes],
            "not_reached": left,
            "problems": [
                asdict(problem) | (asdict(line) if line else {"file": None, "line": None})
                for problem, line in found
            ],
            "broken_runs": broken
            and [as_data(run.info) | {"changes": as_data(run.changes)} for run in broken],
            "error": error_data(error),
        }
    )


def _name(loaded: Loaded) -> str:
    named = loaded.said.endswith(f":{loaded.attribute}")
    return loaded.said if named else f"{loaded.said}:{loaded.attribute}"


# --- where in the source -------------------------------------------------------------------------


def line_of(graph: Graph[Any, Any], place: str) -> SourceLine | None:
    """The line that the place of a problem is at: of `Outfit.mood` that of the field, of
    `Walk -> Rest` that of `Walk`. None where it is not known, as of a class made by a program."""
    name, _, member = place.partition(" ")[0].partition(".")
    classes = [cls for each in graph.graphs for cls in (*each.plans, *each.end)]
    for cls in classes:
        if cls.__name__ == name and (not member or hasattr(cls, member) or _has_field(cls, member)):
            return (_line_in(cls, member) if member else None) or _line_in(cls, "")
    return None


def _has_field(cls: type[Node], name: str) -> bool:
    return name in cls.__pydantic_fields__


def _line_in(cls: type, member: str) -> SourceLine | None:
    """The line of a class, or of what it or a class above it defines under a name."""
    # No deeper than the body of the class: its docstring may list the same names.
    sought = rf"(\t| {{1,4}})(async def |def )?{member}\s*[:(]" if member else r"class\s"
    for owner in cls.__mro__:
        if owner.__module__ in ("builtins", "pydantic.main", "bae.node"):
            continue
        try:
            file = inspect.getsourcefile(owner)
            lines, begin = inspect.getsourcelines(owner)
        except (OSError, TypeError):
            return None
        for number, line in enumerate(dedent("".join(lines)).splitlines(), begin):
            if file is not None and re.match(sought, line):
                return SourceLine(file, number)
    return None
