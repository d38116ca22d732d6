"""Functions that are imported at their first call, which keeps `--help` fast without their
packages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def call_later(module: str, names: str) -> list[Callable[..., Any]]:
    """The named functions of a module, as names separated by spaces. The first call of any of them
    imports the module."""
    return [_defer(module, name) for name in names.split()]


def _defer(module: str, name: str) -> Callable[..., Any]:
    @cache
    def find() -> Callable[..., Any]:
        return getattr(import_module(module), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return find()(*args, **kwargs)

    return call
