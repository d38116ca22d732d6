"""The command `bae check`. It finds the errors of a graph without running it, and the unfinished
runs that cannot be resumed with the current classes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from bae.cli import exits
from bae.cli.journals import JournalName, use
from bae.cli.lm import check_lm
from bae.cli.loading import Loaded, load, relative_path
from bae.cli.options import AsJSON, Module, examples, flag, lm_names, option
from bae.cli.printing import as_data, error_data, note, out, print_hanging, print_json
from bae.cli.wording import count, in_lines
from bae.exceptions import BaeError, BaeLMError, Problem
from bae.graph import Graph
from bae.graph_plan import plan_of_graph
from bae.journal.compatibility import BrokenRun
from bae.journal.compatibility import check as find_broken_runs
from bae.journal.store import Journal
from bae.node import Node

EPILOG: Final = examples(
    "bae check app.py",
    "bae check wardrobe.nodes:graph --strict",
    "bae check app.py --lm 'ollama:qwen3?max_tokens=800'",
    "bae check app.py --against .bae/runs.db",
)
_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_INDENT: Final = 8


def check(
    module: Module = None,
    strict: Annotated[bool, flag("--strict", "Fail on warnings too.")] = False,
    durable: Annotated[
        bool,
        flag(
            "--durable",
            "Also report values that a journal cannot store, and calls that a resumed run repeats.",
        ),
    ] = False,
    lm: Annotated[
        str | None,
        option(
            "--lm -b SPEC",
            "Also report what this language model lacks here: a package, a key, an option. It is "
            "not called.",
            autocompletion=lm_names,
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "--against FILE|URL",
            "A journal: list its unfinished runs that could not be resumed with this code. It is "
            "only read.",
        ),
    ] = None,
    was: Annotated[
        list[str] | None,
        option("--was NAME", "With --against: an earlier name of the graph. Repeatable."),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Check a graph: print every mistake that its types show, each with a fix.

    Nothing is run: no function and no language model is called. The exit code is 1 if there are
    errors, or runs that would break.
    """
    if was and not against:
        raise typer.BadParameter("--was goes with --against FILE", param_hint="--was")
    loaded = load(module)
    graph = loaded.graph
    problems = [
        (problem, _find_problem_line(graph, problem.place))
        for problem in graph.validate(journal=durable)
    ]
    problems += [(problem, None) for problem in _find_lm_problems(graph, lm)]
    severities = [problem.severity for problem, _ in problems]
    unreached = _find_unreached(loaded)
    if not as_json:
        _print_proof(loaded, problems, unreached)
    broken: list[BrokenRun] | None = None
    error: BaeError | None = None
    # Unfinished runs can only be checked against a valid graph.
    if against and "error" not in severities:

        async def look(journal: Journal) -> list[BrokenRun]:
            return await find_broken_runs(graph, journal, was=was or ())

        try:
            broken = use(against, look)
        except BaeError as raised:  # raise it after the problems of the graph are printed
            error = raised
    failed = "error" in severities or bool(broken) or (strict and "warning" in severities)
    if as_json:
        proof = _as_data(loaded, problems, unreached)
        runs = broken and [as_data(run.info) | {"changes": as_data(run.changes)} for run in broken]
        ok = not failed and error is None
        print_json({"ok": ok, **proof, "broken_runs": runs, "error": error_data(error)})
    elif against and error is None:
        _print_broken(graph.name, JournalName.of(against), broken)
    if error is not None:
        raise error
    if failed:
        raise typer.Exit(exits.FAILED)


def _find_lm_problems(graph: Graph[Any, Any], lm: str | None) -> list[Problem]:
    """Find out what the LM `lm` lacks on this machine. Raises for an unknown name."""
    if lm is None:
        return []
    try:
        check_lm(graph, lm)
    except BaeLMError as error:
        return [Problem("error", error.code, "--lm", error.message, error.fix or "")]
    return []


def _find_unreached(loaded: Loaded) -> list[str]:
    """List the node classes of a module that no graph of the module reaches.

    They are missing in a return type, or obsolete. Base classes and names with an underscore are
    left out. If the edges of a node are unknown, the list is empty.
    """
    members = list(vars(sys.modules[loaded.module]).items()) if loaded.module in sys.modules else []
    graphs: list[Any] = [loaded.graph, *(value for _, value in members if isinstance(value, Graph))]
    inside = [inner for graph in graphs for inner in graph.graphs]
    plans = {cls: plan for nested in inside for cls, plan in plan_of_graph(nested).plans.items()}
    if any(plan.misrouted or plan.unresolved for plan in plans.values()):
        return []
    nodes = [
        member for member in members if isinstance(member[1], type) and issubclass(member[1], Node)
    ]
    own_nodes = [cls for name, cls in nodes if cls.__module__ == loaded.module and name[0] != "_"]
    bases = {base for cls in (*plans, *own_nodes) for base in cls.__mro__[1:]}
    return [
        class_.__name__
        for class_ in dict.fromkeys(own_nodes)
        if class_ not in plans and class_ not in bases
    ]


# --- output ---------------------------------------------------------------------------------------

_Placed = Sequence[tuple[Problem, tuple[str, int] | None]]
"""Pairs of a problem and its file and line. If the line is unknown, the pair has None."""


def _print_proof(loaded: Loaded, problems: _Placed, unreached: Sequence[str]) -> None:
    for problem, line in problems:
        text = Text(in_lines(str(problem)))
        text.stylize(_STYLES[problem.severity], 0, len(problem.severity))
        text.stylize("bold", _INDENT, _INDENT + len(problem.place))
        if problem.fix:
            at = text.plain.index("\n") + 1 + _INDENT
            text.stylize("green", at, at + len("fix:"))
        location = f"{relative_path(Path(line[0]))}:{line[1]}  " if line is not None else ""
        text.append(f"\n{' ' * _INDENT}{location}[{problem.code}]", style="dim")
        print_hanging(out(), text, _INDENT)
    graph, name = loaded.graph, loaded.reference
    if not name.endswith(f":{loaded.attribute}"):
        name += f":{loaded.attribute}"
    edges = count(sum(map(len, graph.edges.values())), "edge")
    ends = " | ".join(cls.__name__ for cls in graph.terminal_nodes)
    text = Text(f"{name}: {count(len(graph.nodes), 'node')}, {edges}, ")
    text.append(f"{f'ends at {ends}' if ends else 'no end'}: ")
    severities = [problem.severity for problem, _ in problems]
    counts = [
        Text(count(severities.count(severity), severity), style=style)
        for severity, style in _STYLES.items()
        if severity in severities
    ]
    text.append_text(Text(", ").join(counts) if counts else Text("no problems", "bold green"))
    print_hanging(out(), text, 2)
    for field, tools in _list_tools(graph).items():
        listed = ", ".join(
            tool["name"]
            + (f"({', '.join(names)})" if (names := tool["parameters"]) is not None else "")
            for tool in tools
        )
        print_hanging(out(), Text(f"tools of {field}: {listed}"), 2)
    if unreached:
        print_hanging(out(), Text(f"not reached: {', '.join(unreached)}", style="dim"), 2)


def _list_tools(graph: Graph[Any, Any]) -> dict[str, list[dict[str, Any]]]:
    """List the tools of each field. A tool has the names of the parameters that the LLM passes, or
    None if the parameters are known only in a run."""
    tools_by_field: dict[str, list[dict[str, Any]]] = {}
    for plan in plan_of_graph(graph).plans_with_tools:
        field = plan.tools
        if field is None or any(problem.severity == "error" for problem in field.problems(plan)):
            continue
        parameters_by_tool = {
            spec.name: [*spec.schema.get("properties", ())] for spec in field.tool_specs
        }
        tools_by_field[f"{plan.name}.{field.name}"] = [
            {"name": name, "parameters": parameters_by_tool.get(name)} for name in field.tool_names
        ]
    return tools_by_field


def _print_broken(name: str, file: str, broken: Sequence[BrokenRun] | None) -> None:
    if broken is None:
        note(f"{file} was not looked at: fix the errors first")
        return
    for run in broken:
        print_hanging(out(), Text(in_lines(str(run), 6)), 4)
    last = Text(f"{file}: every unfinished run of {name} can be resumed", "green")
    if broken:
        last = Text(f"{file}: {count(len(broken), 'run')} of {name} cannot be resumed", "bold red")
    print_hanging(out(), last, 2)


def _as_data(loaded: Loaded, problems: _Placed, unreached: Sequence[str]) -> dict[str, Any]:
    graph = loaded.graph
    edges = [(tail, head) for tail, heads in graph.edges.items() for head in heads]
    return {
        "graph": graph.name,
        "module": loaded.module,
        "attribute": loaded.attribute,
        "nodes": [cls.__name__ for cls in graph.nodes],
        "edges": [[tail.__name__, head.__name__] for tail, head in edges],
        "ends": [cls.__name__ for cls in graph.terminal_nodes],
        "tools": [{"field": field, "tools": tools} for field, tools in _list_tools(graph).items()],
        "not_reached": unreached,
        "problems": [
            asdict(problem) | dict(zip(("file", "line"), line or (None, None), strict=True))
            for problem, line in problems
        ],
    }


# --- lines in the source --------------------------------------------------------------------------


def _find_problem_line(graph: Graph[Any, Any], place: str) -> tuple[str, int] | None:
    """Find the file and line of a problem.

    For `Outfit.mood`, it is the line of the field. For `Walk -> Rest`, it is the line of the class
    `Walk`. Returns None if the line is unknown, as for a class without source code.
    """
    name, _, member = place.partition(" ")[0].partition(".")
    for cls in (cls for inner in graph.graphs for cls in (*inner.nodes, *inner.end)):
        has_member = not member or hasattr(cls, member) or member in cls.__pydantic_fields__
        if cls.__name__ == name and has_member:
            return (_find_definition(cls, member) if member else None) or _find_definition(cls, "")
    return None


def _find_definition(cls: type, member: str) -> tuple[str, int] | None:
    """Find the file and line of a class, or of a member in the class or its bases."""
    # Match at most four blanks of indentation: deeper lines, as in docstrings, may begin with the
    # same name.
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
                return file, number
    return None
