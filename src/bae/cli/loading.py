"""`load` finds the graph that a command is about: in a file, in a module, under a name in either,
or where the pyproject.toml of the project says. `importing.py` makes modules of user code."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from bae.cli.importing import explained, from_file, from_name, unknown
from bae.cli.project_file import project_file
from bae.cli.raised_at import shown
from bae.cli.refusals import Misuse
from bae.exceptions import BaeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bae.graph import Graph


@dataclass(frozen=True, slots=True)
class Loaded:
    """A graph, and how it was asked for."""

    graph: Graph[Any, Any]
    said: str
    """What names it on a command line, to be said again: `app.py`, `wardrobe.nodes:graph`."""
    module: str
    attribute: str
    """Where a program would import it from; of a node class or a function that makes the graph, the
    name of that."""


def load(said: str | None, option: str = "") -> Loaded:
    """The graph of `MODULE[:NAME]`; of None, that of the project around this directory. `option` is
    what MODULE is given with, where it is no argument."""
    root = _here()
    if said is None:
        said, root = _configured(option)
    module, where, name = load_module(said, root)
    said = said if name else where  # of `app.py:` too
    graph, attribute = _graph_in(module, where, name)
    return Loaded(graph, said, module.__name__, attribute)


def load_module(said: str, root: Path | None = None) -> tuple[ModuleType, str, str]:
    """The module of `MODULE[:NAME]`, how it is called there, and the name. It is looked for from
    this directory, or from `root`."""
    root = root or _here()
    where, name = _parts(said)
    if _is_path(where):
        return from_file(Path(where).absolute(), where), where, name
    return from_name(where, root), where, name


def is_configured() -> bool:
    """Whether the project around this directory names a graph, so that nobody has to."""
    try:
        _configured()
    except (BaeError, OSError):
        return False
    return True


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise unknown(
            "the directory that this is called in is not there any more",
            "go to one that is, with cd",
            error,
        ) from error


def _configured(option: str = "") -> tuple[str, Path]:
    """What the nearest pyproject.toml says, and where it stands."""
    project = project_file()
    said: object = (project.table or {}).get("graph") if project else None
    if project and isinstance(said, str) and said:
        return _from_here(said, project.folder), project.folder
    if project and said is not None:
        raise unknown(
            f"[tool.bae] graph in {shown(project.file)} is {said!r}, which names nothing",
            'write graph = "app.py", or another file or module',
        )
    example = f" with {option}, as `{option} app.py`" if option else ", as `app.py`"
    raise Misuse(
        "no MODULE was given",
        code="bae-module-unknown",
        fix=f'name a file or a module{example}; or write [tool.bae] and graph = "app.py" into the '
        "pyproject.toml of your project",
    )


def _from_here(said: str, folder: Path) -> str:
    """The same, as it must be said in this directory."""
    where, _ = _parts(said)
    if not _is_path(where) or folder == Path.cwd():
        return said
    return os.path.relpath(folder / where) + said[len(where) :]


def _parts(said: str) -> tuple[str, str]:
    """The module and the name in it. A drive letter is no module."""
    start = 2 if len(said) > 1 and said[1] == ":" and said[2:3] in ("\\", "/") else 0
    where, _, name = said[start:].partition(":")
    return said[:start] + where, name


def _is_path(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where or where in (".", "..")


def _graph_in(module: ModuleType, where: str, name: str) -> tuple[Graph[Any, Any], str]:
    from bae.graph import Graph
    from bae.node import Node

    if not name:
        name = next((each for each in ("graph", "create_graph") if hasattr(module, each)), "")
        if not name:
            raise _no_graph(module, where, f"{where} has neither `graph` nor `create_graph()`")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise _no_graph(module, where, f"{where} has no {name}")
        found = getattr(found, part)
    if isinstance(found, type) and issubclass(found, Node):
        return Graph(start=found), name
    said = f"{where}:{name} is"
    if isinstance(found, FunctionType | MethodType | partial):
        said = f"{where}:{name}() returned"
        found = _made(cast("Callable[[], object]", found), f"{where}:{name}")
    if not isinstance(found, Graph):
        message = f"{said} {_kind(cast(object, found))}, and no Graph"
        raise _no_graph(module, where, message)
    return cast("Graph[Any, Any]", found), name


def _made(make: Callable[[], object], said: str) -> object:
    """What a function makes; it is given nothing."""
    import inspect

    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise BaeError(
            f"{said} wants arguments, and there are none to give it",
            code="bae-module-no-graph",
            cause=error,
            fix="give its parameters defaults, or name a graph",
        ) from error
    with explained(f"{said}()", "called"):
        found = make()
    if inspect.iscoroutine(found):
        found.close()
        raise BaeError(
            f"{said} is an async function",
            code="bae-module-no-graph",
            fix="make it a plain one: a graph is made of classes alone, and waits for nothing",
        )
    return found


def _kind(found: object) -> str:
    if found is None:
        return "None"
    if isinstance(found, type):
        return f"the class {found.__name__}"
    name = type(found).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _no_graph(module: ModuleType, where: str, message: str) -> BaeError:
    from bae.graph import Graph
    from bae.node import Node

    named = vars(module).items()
    graphs = [name for name, value in named if isinstance(value, Graph)]
    starts = [
        name
        for name, value in named
        if isinstance(value, type)
        and issubclass(value, Node)
        and value.__module__ == module.__name__
    ]
    fix = "write graph = Graph(start=YourFirstNode) into it"
    if graphs:
        fix = f"name a graph: {', '.join(f'{where}:{name}' for name in graphs[:8])}"
    elif starts:
        fix += f", or name the node class to start at: {where}:{starts[0]}"
        fix += f" (its node classes are {', '.join(starts[:8])})" if len(starts) > 1 else ""
    return BaeError(message, code="bae-module-no-graph", fix=fix)
