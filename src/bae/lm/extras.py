"""Packages that a backend needs and bae does not: imported when the backend is made, with an error
that says how to get them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bae.exceptions import BaeLMError


def need(module: str, *, extra: str, by: str) -> Any:
    """Import `module`, which `by` cannot do without and the extra named `extra` brings."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and misses something itself
        raise BaeLMError(
            f"{by} needs the package {module.partition('.')[0]}, which is not installed",
            code="bae-lm-extra-missing",
            sent=False,
            cause=error,
            fix=f"pip install 'bae-graphs[{extra}]'",
        ) from error


def is_there(module: str) -> bool:
    """Whether a top-level package is installed, found out without importing it."""
    try:
        return find_spec(module) is not None
    except ValueError:  # it is imported, and was made by hand: it has no spec
        return True
