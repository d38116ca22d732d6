"""User code as modules: from a file, or by name. What goes wrong while it is imported is an error
that says where in that code, and what to do; `loading.py` takes the graph out of the module."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from bae.cli.raised_at import last_line, place_of, shown
from bae.cli.taken_names import is_taken, put_on_path
from bae.exceptions import BaeError, text_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType


def from_file(path: Path, said: str) -> ModuleType:
    """The module in a file, imported as its package knows it where it is in one."""
    # Those of `os.path` raise nothing for names that no file can have, which are in no folder.
    if os.path.isfile(path / "__init__.py"):
        path /= "__init__.py"
    if os.path.isdir(path):
        inside = [os.path.join(said, each.name) for each in sorted(path.glob("*.py"))[:5]]
        raise unknown(
            f"{said} is a directory",
            f"name a file in it: {', '.join(inside)}" if inside else "name a Python file",
        )
    if path.suffix == ".ipynb":
        raise _notebook(said)
    if not os.path.isfile(path):
        raise unknown(
            f"there is no file {said}",
            f"give its path from this directory, {Path.cwd()}{_near_files(path)}",
        )
    path = path.resolve()
    top = path.parent
    names = [path.stem]
    while (top / "__init__.py").is_file():
        names.insert(0, top.name)
        top = top.parent
    put_on_path(top)
    if len(names) > 1 or names == ["__init__"]:
        return _imported(".".join(names).removesuffix(".__init__"), said)
    return _executed(path, said)


def from_name(name: str, root: Path) -> ModuleType:
    """The module of a name, looked for in a directory first."""
    if name.endswith(".ipynb"):
        raise _notebook(name)
    if not all(part.isidentifier() for part in name.split(".")):
        raise unknown(
            f"{name!r} is no module and no file", "write a file as app.py, or a module as a.b.c"
        )
    put_on_path(root)
    return _imported(name, name)


def unknown(message: str, fix: str, cause: BaseException | None = None) -> BaeError:
    """The error of a module that is not where it was said to be."""
    return BaeError(message, code="bae-module-unknown", fix=fix, cause=cause)


def _notebook(said: str) -> BaeError:
    """The error of a notebook, which is no module."""
    return unknown(
        f"{said} is a notebook, which is not loaded",
        "write the nodes and the graph into a .py file, and import that in the notebook",
    )


@contextmanager
def explained(said: str, done: str = "imported") -> Generator[None]:
    """Say of an error that it came up while user code was imported or called, and where in it."""
    try:
        yield
    except (BaeError, KeyboardInterrupt) as error:
        error.add_note(f"while {said} was {done}{place_of(error)}")
        raise
    except BaseException as error:  # of a test framework, say, or of a library in Rust
        how = "could not be imported" if done == "imported" else "failed"
        raise BaeError(
            f"{said} {how}{place_of(error)}",
            code="bae-module-failed",
            cause=error,
            fix=_way_out(error),
        ) from error


def _executed(path: Path, said: str) -> ModuleType:
    stem = path.stem
    known = sys.modules.get(stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if known is not None or is_taken(stem):
        stem = f"{stem}_"  # not in the place of another
    spec = spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise unknown(f"{said} is no Python file", "give one that ends in .py")
    module = module_from_spec(spec)
    sys.modules[stem] = module
    try:
        with explained(said):
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(stem, None)
        if isinstance(error, BaeError) and _is_relative(error.cause, stem):
            error.fix = _as_package(path)
        raise
    return module


def _imported(name: str, said: str) -> ModuleType:
    try:
        with explained(said):
            return import_module(name)
    except BaeError as error:
        missing = error.cause
        if not isinstance(missing, ModuleNotFoundError) or missing.name is None:
            raise
        parent, _, last = name.rpartition(".")
        if missing.name == name and hasattr(sys.modules.get(parent), last):
            raise unknown(
                f"there is no module {said}, and {parent} has the name {last}",
                f"a name in a module stands after a colon: {parent}:{last}",
                missing,
            ) from missing
        if f"{name}.".startswith(f"{missing.name}."):
            raise unknown(
                f"there is no module {said}",
                "run bae where the module is found, or name its file"
                + _near_files(Path(*name.split(".")).with_suffix(".py")),
                missing,
            ) from missing
        raise


def _is_relative(cause: BaseException | None, stem: str) -> bool:
    """Whether a file failed since it imports from a package, and was loaded as in none."""
    said = "" if cause is None else text_of(cause)
    return isinstance(cause, ImportError) and (
        "no known parent package" in said or f"'{stem}' is not a package" in said
    )


def _as_package(path: Path) -> str:
    """What to do with a file that is in a package without an `__init__.py`."""
    folder = path.parent
    beside = f"put an empty __init__.py into {shown(folder)}"
    try:
        parts = path.with_suffix("").relative_to(Path.cwd().resolve()).parts
    except ValueError:
        return beside
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return f"put an empty __init__.py beside {path.name}"
    return f"it imports from its package: name it as a module, {'.'.join(parts)}, or {beside}"


def _way_out(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install what has the module {error.name}, into {sys.executable}"
    if isinstance(error, SystemExit):
        return 'put what runs the program under if __name__ == "__main__":'
    if isinstance(error, NameError) and error.name and _defines(error):
        return (
            f"{error.name} is defined further down: write `from __future__ import annotations` as "
            "the first line, so that a hint may name it before that"
        )
    return "mend what stands there; --debug shows the whole traceback"


def _defines(error: NameError) -> bool:
    """Whether the file in which a name was missing defines it at its top level, somewhere."""
    import ast

    line = last_line(error.__traceback__)
    if line is None:
        return False
    try:
        tree = ast.parse(Path(line.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return False
    defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(each, defined) and each.name == error.name for each in tree.body)


def _near_files(path: Path) -> str:
    """A hint at a file that may have been meant."""
    from difflib import get_close_matches

    try:
        there = [each.name for each in path.parent.iterdir() if each.suffix == ".py"]
    except OSError:
        return ""
    near = get_close_matches(path.name, there, n=3, cutoff=0.7)
    return f"; near it are: {', '.join(near)}" if near else ""
