"""Loads the graph of a command. MODULE names a file or a module, and may end in the name of the
graph. Without MODULE, pyproject.toml names the graph. If the user's code fails, the error names the
line."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import CoroutineType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from bae.cli.exits import Misuse, refusal
from bae.exceptions import BaeError, ProofError
from bae.given_files import read_text
from bae.graph import Graph
from bae.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType


@dataclass(frozen=True, slots=True)
class Loaded:
    """A graph and its names."""

    graph: Graph[Any, Any]
    reference: str
    """The MODULE of the graph on a command line, such as `app.py` or `wardrobe.nodes:graph`."""
    module: str
    """The name of the imported module."""
    attribute: str
    """The name in the module: of the graph, of a function that returns it, or of its start node."""


def load(reference: str | None, option: str = "") -> Loaded:
    """Load the graph that `reference` names, as `MODULE[:NAME]`. With None, load the graph of the
    current project. If the command has an option in place of the argument MODULE, pass the name of
    the option, for errors."""
    root = Path.cwd()
    if reference is None:
        reference, root = _read_configured(option)
    module, where, name = load_module(reference, root)
    reference = reference if name else where  # removes the colon of `app.py:`
    graph, attribute = _find_graph(module, where, name)
    return Loaded(graph, reference, module.__name__, attribute)


def load_proved(reference: str | None) -> Graph[Any, Any]:
    """Load a graph as `load` does, and validate the graph. If there are errors, raise a ProofError
    whose fix is the command that lists all problems."""
    graph = load(reference).graph
    try:
        graph.prove()
    except ProofError as error:
        error.fix = (
            f"fix it; `{shlex.join(['bae', 'check', *([reference] if reference else [])])}` "
        )
        error.fix += "lists all problems, warnings too"
        raise
    return graph


def load_module(reference: str, root: Path | None = None) -> tuple[ModuleType, str, str]:
    """Import the module of a reference `MODULE[:NAME]`. Returns the module, MODULE and NAME.

    If MODULE is not a file, Python searches `root` for the module first. By default, `root` is this
    directory.
    """
    root = root or Path.cwd()
    where, name = _split_name(reference)
    if _is_path(where):
        return _load_file(Path(where).absolute(), where), where, name
    if not all(part.isidentifier() for part in where.split(".")):
        raise _unknown_module_error(
            f"{where!r} is no module and no file", "write a file as app.py, or a module as a.b.c"
        )
    _put_on_path(root)
    return _import_module(where, where), where, name


def load_object(reference: str, option: str) -> Any:
    """Load the object that an option names in a module or file, such as `scoring.py:exact`."""
    name = reference.rpartition(":")[2]
    if ":" not in reference or not name.isidentifier():
        raise Misuse(
            f"{option} {reference} names nothing in a module",
            code="bae-command-refused",
            fix=f"write a file or a module, a colon and a name: {option} scoring.py:exact",
        )
    try:
        module, where, name = load_module(reference)
    except BaeError as error:
        error.message = f"{option} {reference}: {error.message}"
        raise
    if not hasattr(module, name):
        own_names = [
            member
            for member, value in vars(module).items()
            if not member.startswith("_")
            and (isinstance(value, dict) or getattr(value, "__module__", "") == module.__name__)
        ]
        raise refusal(
            f"{option} {reference}: {where} has no {name}",
            fix=f"it has {', '.join(own_names)}" if own_names else f"write it into {where}",
        )
    return getattr(module, name)


# --- the project --------------------------------------------------------------------------------


class ProjectFile(NamedTuple):
    """A pyproject.toml."""

    file: Path
    table: dict[str, Any] | None
    """The table `[tool.bae]`, or None if the file has no such table."""


def project_file() -> ProjectFile | None:
    """Read the pyproject.toml in this directory or the nearest parent directory. Return None if
    there is no such file. Raises if the file cannot be read."""
    here = Path.cwd()
    files = (folder / "pyproject.toml" for folder in (here, *here.parents))
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    try:
        tools = tomllib.loads(read_text(file)).get("tool", {})
        table = tools.get("bae")
        if table is not None and not isinstance(table, dict):
            raise ValueError(f"[tool.bae] is {table!r}, and no table")
    except (AttributeError, ValueError, RecursionError, OSError) as error:
        raise _unknown_module_error(
            f"{relative_path(file)} cannot be read", "fix it, or name a MODULE", error
        ) from error
    return ProjectFile(file, cast("dict[str, Any] | None", table))


def is_configured() -> bool:
    """Return whether pyproject.toml names a graph, so that MODULE is optional."""
    try:
        _read_configured()
    except (BaeError, OSError):
        return False
    return True


def _read_configured(option: str = "") -> tuple[str, Path]:
    """Return the graph that pyproject.toml names, as `MODULE[:NAME]`, and the directory of the
    file."""
    project = project_file()
    graph_name: object = (project.table or {}).get("graph") if project else None
    if project and isinstance(graph_name, str) and graph_name:
        where, _ = _split_name(graph_name)
        if _is_path(where) and project.file.parent != Path.cwd():
            graph_name = os.path.relpath(project.file.parent / where) + graph_name[len(where) :]
        return graph_name, project.file.parent
    if project and graph_name is not None:
        raise _unknown_module_error(
            f"[tool.bae] graph in {relative_path(project.file)} is {graph_name!r}, which names "
            "nothing",
            'write graph = "app.py", or another file or module',
        )
    example = f" with {option}, as `{option} app.py`" if option else ", as `app.py`"
    raise Misuse(
        "no MODULE was given",
        code="bae-module-unknown",
        fix=f'name a file or a module{example}; or write [tool.bae] and graph = "app.py" into the '
        "pyproject.toml of your project",
    )


def _split_name(reference: str) -> tuple[str, str]:
    """Split `MODULE:NAME` at the first colon that is not after a drive letter."""
    start = 2 if len(reference) > 1 and reference[1] == ":" and reference[2:3] in ("\\", "/") else 0
    where, _, name = reference[start:].partition(":")
    return reference[:start] + where, name


def _is_path(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where or where in (".", "..")


# --- the graph in a module ----------------------------------------------------------------------


def _find_graph(module: ModuleType, where: str, name: str) -> tuple[Graph[Any, Any], str]:
    if not name:
        name = next(
            (
                default_name
                for default_name in ("graph", "create_graph")
                if hasattr(module, default_name)
            ),
            "",
        )
        if not name:
            raise _no_graph_error(
                module, where, f"{where} has neither `graph` nor `create_graph()`"
            )
    candidate: Any = module
    for part in name.split("."):
        if not hasattr(candidate, part):
            raise _no_graph_error(module, where, f"{where} has no {name}")
        candidate = getattr(candidate, part)
    if isinstance(candidate, type) and issubclass(candidate, Node):
        return Graph(start=candidate), name
    description = f"{where}:{name}"
    if isinstance(candidate, FunctionType | MethodType | partial):
        description = f"{where}:{name}()"
        with _explain_errors(description, "called"):
            candidate = cast("Callable[[], object]", candidate)()
        if isinstance(candidate, CoroutineType):
            candidate.close()
    if not isinstance(candidate, Graph):
        kind = type(cast(object, candidate)).__name__
        raise _no_graph_error(module, where, f"{description} is no Graph: its type is {kind}")
    return cast("Graph[Any, Any]", candidate), name


def _no_graph_error(module: ModuleType, where: str, message: str) -> BaeError:
    members = vars(module).items()
    names = [name for name, value in members if isinstance(value, Graph)]
    nodes = [
        member for member in members if isinstance(member[1], type) and issubclass(member[1], Node)
    ]
    names += [name for name, cls in nodes if cls.__module__ == module.__name__]
    fix = "write graph = Graph(start=YourFirstNode) into it"
    if names:
        fix += f", or name a graph or a first node: {', '.join(f'{where}:{n}' for n in names[:6])}"
    return BaeError(message, code="bae-module-no-graph", fix=fix)


# --- modules of user code -----------------------------------------------------------------------


def _load_file(path: Path, reference: str) -> ModuleType:
    """Import the module in a file. If the file is in a package, import it as part of the
    package."""
    # Unlike methods of `Path`, functions of `os.path` do not raise for impossible file names.
    if os.path.isfile(path / "__init__.py"):
        path /= "__init__.py"
    if os.path.isdir(path):
        raise _unknown_module_error(f"{reference} is a directory", "name a Python file in it")
    if not os.path.isfile(path):
        raise _unknown_module_error(
            f"there is no file {reference}", f"give its path from here{_near_files(path)}"
        )
    path = path.resolve()
    top = path.parent
    names = [path.stem]
    while (top / "__init__.py").is_file():
        names.insert(0, top.name)
        top = top.parent
    _put_on_path(top)
    if len(names) > 1 or names == ["__init__"]:
        return _import_module(".".join(names).removesuffix(".__init__"), reference)
    return _execute_file(path, reference)


def _put_on_path(folder: Path) -> None:
    """Put a folder first on the module search path, as `python app.py` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _execute_file(path: Path, reference: str) -> ModuleType:
    stem = path.stem
    imported = sys.modules.get(stem)
    if imported is not None and getattr(imported, "__file__", None) == str(path):
        return imported
    if imported is not None or stem in sys.stdlib_module_names:
        stem = f"{stem}_"  # do not replace an imported module
    spec = spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise _unknown_module_error(
            f"{reference} is no Python file", "name a file with the suffix .py"
        )
    module = module_from_spec(spec)
    sys.modules[stem] = module
    try:
        with _explain_errors(reference):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(stem, None)
        raise
    return module


def _import_module(name: str, reference: str) -> ModuleType:
    try:
        with _explain_errors(reference):
            return import_module(name)
    except BaeError as error:
        missing = error.cause
        if not isinstance(missing, ModuleNotFoundError) or missing.name is None:
            raise
        if not f"{name}.".startswith(f"{missing.name}."):
            raise  # the module exists, and imports a module that is missing
        parent, _, last = name.rpartition(".")
        message = f"there is no module {reference}"
        fix = "run bae where the module is found, or name its file"
        if missing.name == name and hasattr(sys.modules.get(parent), last):
            message += f", and {parent} has the name {last}"
            fix = f"a name in a module stands after a colon: {parent}:{last}"
        raise _unknown_module_error(message, fix, missing) from missing


def _unknown_module_error(message: str, fix: str, cause: BaseException | None = None) -> BaeError:
    """Make the error about a MODULE that cannot be found."""
    return BaeError(message, code="bae-module-unknown", fix=fix, cause=cause)


@contextmanager
def _explain_errors(reference: str, action: str = "imported") -> Generator[None]:
    """Turn an error in the user's code into a BaeError with the line that failed. `action` is what
    bae did with `reference`: "imported" or "called". A BaeError is raised unchanged, with the
    line as a note."""
    try:
        yield
    except (BaeError, KeyboardInterrupt) as error:
        error.add_note(f"while {reference} was {action}{place_of(error)}")
        raise
    except BaseException as error:  # some libraries raise errors that are not an Exception
        failure = "could not be imported" if action == "imported" else "failed"
        raise BaeError(
            f"{reference} {failure}{place_of(error)}",
            code="bae-module-failed",
            cause=error,
            fix=_suggest_fix(error),
        ) from error


def _suggest_fix(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install the package with the module {error.name}, into {sys.executable}"
    if isinstance(error, SystemExit):
        return 'put what runs the program under if __name__ == "__main__":'
    if isinstance(error, NameError) and error.name:
        return (
            f"define {error.name}; if it is defined further down, write `from __future__ import "
            "annotations` as the first line, so that a type hint above may use the name"
        )
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return "name it as a module, as a.b, or put an empty __init__.py beside it"
    return "fix this line; --debug shows the whole traceback"


def _near_files(path: Path) -> str:
    """Return the end of a message about a missing file: similar file names, or this directory."""
    try:
        names = [file.name for file in path.parent.iterdir() if file.suffix == ".py"]
    except OSError:
        return ""
    near = get_close_matches(path.name, names, n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else f", {Path.cwd()}"


# --- the line of user code that raised an error -------------------------------------------------


def raised_at(error: BaseException) -> str | None:
    """Return the line of user code that raised an error, as `desk.py:9 in __call__`. Return None if
    user code did not raise it, or if the message of the error has the line."""
    if isinstance(error, BaeError) and error.code in ("bae-module-failed", "bae-run-ended-itself"):
        return None
    while isinstance(error, BaeError) and error.cause is not None:
        error = error.cause
    return " in ".join(_find_line(error)) or None


def place_of(error: BaseException) -> str:
    """Return the line of user code that raised an error, as the end of a message: `, desk.py:9`.
    For a SyntaxError, it is the line with the wrong syntax. If the line is unknown, return an empty
    text."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno is not None:
        return f", {relative_path(Path(error.filename))}:{error.lineno}"
    return "".join(f", {line}" for line in _find_line(error)[:1])


def _find_line(error: BaseException) -> tuple[str, ...]:
    """Find the innermost line of user code in a traceback. Returns `FILE:LINE` and the name of the
    function, or nothing. Code of bae, Python and installed packages is skipped."""
    for frame, number in reversed([*walk_tb(error.__traceback__)]):
        file = Path(frame.f_code.co_filename)
        foreign = file.is_relative_to(_OURS) or file.is_relative_to(_LIBRARY)
        if not foreign and not str(file).startswith("<") and not _INSTALLED & set(file.parts):
            return f"{relative_path(file)}:{number}", frame.f_code.co_name
    return ()


def relative_path(path: Path) -> str:
    """Return a path relative to this directory. A path outside this directory is not changed."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


_OURS: Final = Path(__file__).parents[1]
_LIBRARY: Final = Path(os.__file__).parent
_INSTALLED: Final = {"site-packages", "dist-packages"}
