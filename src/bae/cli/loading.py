"""Finds the graph of a command: in a file, in a module, under a name in either, or by the
pyproject.toml of the project. An error in user code names the line that raised it."""

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
    """A graph, and how the command line named it."""

    graph: Graph[Any, Any]
    reference: str
    """Its name on a command line, for commands to copy: `app.py`, `wardrobe.nodes:graph`."""
    module: str
    attribute: str
    """The name to import: of the graph itself, or of the node class or function that makes it."""


def load(reference: str | None, option: str = "") -> Loaded:
    """Load the graph of `MODULE[:NAME]`, or the graph of the current project if `reference` is
    None. `option` is the option that takes MODULE, if it is not an argument."""
    root = Path.cwd()
    if reference is None:
        reference, root = _read_configured(option)
    module, where, name = load_module(reference, root)
    reference = reference if name else where  # of `app.py:` too
    graph, attribute = _find_graph(module, where, name)
    return Loaded(graph, reference, module.__name__, attribute)


def load_proved(reference: str | None) -> Graph[Any, Any]:
    """Load a graph as `load` does. If it has errors, refuse it and name the command that lists them
    all."""
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
    """Import the module of `MODULE[:NAME]`. Returns it with its name on the command line and NAME.
    The search starts in this directory, or in `root`."""
    root = root or Path.cwd()
    where, name = _split_name(reference)
    if _is_path(where):
        return _load_file(Path(where).absolute(), where), where, name
    if not all(part.isidentifier() for part in where.split(".")):
        raise _unknown_module(
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
        own = [
            each
            for each, value in vars(module).items()
            if not each.startswith("_")
            and (isinstance(value, dict) or getattr(value, "__module__", "") == module.__name__)
        ]
        raise refusal(
            f"{option} {reference}: {where} has no {name}",
            fix=f"it has {', '.join(own)}" if own else f"write it into {where}",
        )
    return getattr(module, name)


# --- the project --------------------------------------------------------------------------------


class ProjectFile(NamedTuple):
    """A pyproject.toml and its table `[tool.bae]`, None if it has no such table."""

    file: Path
    table: dict[str, Any] | None


def project_file() -> ProjectFile | None:
    """The pyproject.toml with a `[tool.bae]` in this directory or the nearest parent; otherwise the
    nearest pyproject.toml."""
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
        raise _unknown_module(
            f"{relative_path(file)} cannot be read", "fix it, or name a MODULE", error
        ) from error
    return ProjectFile(file, cast("dict[str, Any] | None", table))


def is_configured() -> bool:
    """Whether the current project names a graph, which makes MODULE optional."""
    try:
        _read_configured()
    except (BaeError, OSError):
        return False
    return True


def _read_configured(option: str = "") -> tuple[str, Path]:
    """The graph that the nearest pyproject.toml names, and the directory of that file."""
    project = project_file()
    graph_name: object = (project.table or {}).get("graph") if project else None
    if project and isinstance(graph_name, str) and graph_name:
        where, _ = _split_name(graph_name)
        if _is_path(where) and project.file.parent != Path.cwd():
            graph_name = os.path.relpath(project.file.parent / where) + graph_name[len(where) :]
        return graph_name, project.file.parent
    if project and graph_name is not None:
        raise _unknown_module(
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
    """Split `MODULE:NAME`. The colon of a drive letter does not count."""
    start = 2 if len(reference) > 1 and reference[1] == ":" and reference[2:3] in ("\\", "/") else 0
    where, _, name = reference[start:].partition(":")
    return reference[:start] + where, name


def _is_path(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where or where in (".", "..")


# --- the graph in a module ----------------------------------------------------------------------


def _find_graph(module: ModuleType, where: str, name: str) -> tuple[Graph[Any, Any], str]:
    if not name:
        name = next((each for each in ("graph", "create_graph") if hasattr(module, each)), "")
        if not name:
            raise _no_graph(module, where, f"{where} has neither `graph` nor `create_graph()`")
    candidate: Any = module
    for part in name.split("."):
        if not hasattr(candidate, part):
            raise _no_graph(module, where, f"{where} has no {name}")
        candidate = getattr(candidate, part)
    if isinstance(candidate, type) and issubclass(candidate, Node):
        return Graph(start=candidate), name
    what = f"{where}:{name}"
    if isinstance(candidate, FunctionType | MethodType | partial):
        what = f"{where}:{name}()"
        with _explain_errors(what, "called"):
            candidate = cast("Callable[[], object]", candidate)()
        if isinstance(candidate, CoroutineType):
            candidate.close()
    if not isinstance(candidate, Graph):
        kind = type(cast(object, candidate)).__name__
        raise _no_graph(module, where, f"{what} is no Graph: its type is {kind}")
    return cast("Graph[Any, Any]", candidate), name


def _no_graph(module: ModuleType, where: str, message: str) -> BaeError:
    named = vars(module).items()
    names = [name for name, value in named if isinstance(value, Graph)]
    nodes = [each for each in named if isinstance(each[1], type) and issubclass(each[1], Node)]
    names += [name for name, cls in nodes if cls.__module__ == module.__name__]
    fix = "write graph = Graph(start=YourFirstNode) into it"
    if names:
        fix += f", or name a graph or a first node: {', '.join(f'{where}:{n}' for n in names[:6])}"
    return BaeError(message, code="bae-module-no-graph", fix=fix)


# --- modules of user code -----------------------------------------------------------------------


def _load_file(path: Path, reference: str) -> ModuleType:
    """Import the module in a file, as part of its package if it has one."""
    # The functions of `os.path` raise nothing for impossible file names.
    if os.path.isfile(path / "__init__.py"):
        path /= "__init__.py"
    if os.path.isdir(path):
        raise _unknown_module(f"{reference} is a directory", "name a Python file in it")
    if not os.path.isfile(path):
        raise _unknown_module(
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
    """Put a folder first on the module search path, as `python file.py` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _execute_file(path: Path, reference: str) -> ModuleType:
    stem = path.stem
    known = sys.modules.get(stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if known is not None or stem in sys.stdlib_module_names:
        stem = f"{stem}_"  # do not replace an imported module
    spec = spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise _unknown_module(f"{reference} is no Python file", "give one that ends in .py")
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
            raise  # the module exists, and imports a missing one
        parent, _, last = name.rpartition(".")
        message = f"there is no module {reference}"
        fix = "run bae where the module is found, or name its file"
        if missing.name == name and hasattr(sys.modules.get(parent), last):
            message += f", and {parent} has the name {last}"
            fix = f"a name in a module stands after a colon: {parent}:{last}"
        raise _unknown_module(message, fix, missing) from missing


def _unknown_module(message: str, fix: str, cause: BaseException | None = None) -> BaeError:
    """The error about a module that does not exist."""
    return BaeError(message, code="bae-module-unknown", fix=fix, cause=cause)


@contextmanager
def _explain_errors(reference: str, done: str = "imported") -> Generator[None]:
    """Turn an error of user code into a bae error that says whether importing or calling failed,
    and where."""
    try:
        yield
    except (BaeError, KeyboardInterrupt) as error:
        error.add_note(f"while {reference} was {done}{place_of(error)}")
        raise
    except BaseException as error:  # for example from a test framework or a library in Rust
        how = "could not be imported" if done == "imported" else "failed"
        raise BaeError(
            f"{reference} {how}{place_of(error)}",
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
            "annotations` as the first line, so that a hint may name it before that"
        )
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return "name it as a module, as a.b, or put an empty __init__.py beside it"
    return "fix this line; --debug shows the whole traceback"


def _near_files(path: Path) -> str:
    """A hint at similar file names."""
    try:
        there = [each.name for each in path.parent.iterdir() if each.suffix == ".py"]
    except OSError:
        return ""
    near = get_close_matches(path.name, there, n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else f", {Path.cwd()}"


# --- where in the user's code an error came up --------------------------------------------------


def raised_at(error: BaseException) -> str | None:
    """The line of user code that raised an error, as `desk.py:9 in __call__`. None if user code did
    not raise it, or if the error names the line already."""
    if isinstance(error, BaeError) and error.code in ("bae-module-failed", "bae-run-ended-itself"):
        return None
    while isinstance(error, BaeError) and error.cause is not None:
        error = error.cause
    return " in ".join(_find_line(error)) or None


def place_of(error: BaseException) -> str:
    """The line that raised an error, as the end of a message: `, desk.py:9`. Empty if unknown.
    Syntax errors have a line too."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno is not None:
        return f", {relative_path(Path(error.filename))}:{error.lineno}"
    return "".join(f", {line}" for line in _find_line(error)[:1])


def _find_line(error: BaseException) -> tuple[str, ...]:
    """The innermost line of user code and its function: code of bae, Python and installed packages
    is skipped."""
    for frame, number in reversed([*walk_tb(error.__traceback__)]):
        file = Path(frame.f_code.co_filename)
        foreign = file.is_relative_to(_OURS) or file.is_relative_to(_LIBRARY)
        if not foreign and not str(file).startswith("<") and not _INSTALLED & set(file.parts):
            return f"{relative_path(file)}:{number}", frame.f_code.co_name
    return ()


def relative_path(path: Path) -> str:
    """A path relative to this directory, if it is inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


_OURS: Final = Path(__file__).parents[1]
_LIBRARY: Final = Path(os.__file__).parent
_INSTALLED: Final = {"site-packages", "dist-packages"}
