"""The LM named `python:FILE.py:NAME` or `python:MODULE:NAME`: one of the user's own, or a function
that makes one."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from bae.exceptions import BaeLMError

if TYPE_CHECKING:
    from bae.language_model import LM


def imported_lm(where: str) -> LM:
    """The LM of a name in a file, or in a module that is looked for in this directory too."""
    place, _, name = where.rpartition(":")
    if not place or not name.isidentifier():
        raise _wrong(f"{where!r} names no LM in a file or module")
    try:
        found: Any = getattr(load_module(place), name)
        lm = found if _is_lm(found) or not callable(found) else found()
    except BaeLMError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise _wrong(f"the LM {name} of {place} cannot be made", error) from error
    if not _is_lm(lm):
        raise _wrong(f"{name} of {place} is no LM, and makes none: it is {type(lm).__name__}")
    return lm


def load_module(place: str) -> ModuleType:
    """A module by its file, or by its name, looked for in this directory too."""
    if not place.endswith(".py"):
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return import_module(place)
    path = Path(place).resolve()
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Classes look up the names in their annotations there.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _is_lm(value: object) -> TypeGuard[LM]:
    return not isinstance(value, type) and callable(getattr(value, "fill", None))


def _wrong(message: str, cause: BaseException | None = None) -> BaeLMError:
    return BaeLMError(
        message,
        code="bae-lm-unknown-name",
        cause=cause,
        fix="write python:app.py:lm or python:shop.models:make_lm: an LM, or a function without "
        "parameters that returns one",
    )
