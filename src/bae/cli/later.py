"""Functions that bae imports at their first call. This keeps `--help` fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def call_later(module: str, names: str) -> list[Callable[..., Any]]:
    """Return functions that stand in for functions of a module. `names` has the functions' names,
    separated by spaces. The first call of a function imports the module."""
    return [_defer(module, name) for name in names.split()]


def _defer(module: str, name: str) -> Callable[..., Any]:
    @cache
    def find() -> Callable[..., Any]:
        return getattr(import_module(module), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return find()(*args, **kwargs)

    return call
