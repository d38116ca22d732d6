"""Functions that are imported when they are first called, so that a command answers `--help`
without the packages that only its work needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def call_later(module: str, names: str) -> list[Callable[..., Any]]:
    """The functions of a module by their names, with spaces between them. The module is imported
    when one of them is first called."""
    return [_defer(module, name) for name in names.split()]


def _defer(module: str, name: str) -> Callable[..., Any]:
    @cache
    def find() -> Callable[..., Any]:
        return getattr(import_module(module), name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return find()(*args, **kwargs)

    return call
