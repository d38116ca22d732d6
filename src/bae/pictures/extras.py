"""The packages that bring PDF and PNG, which bae does not need: asked for when they are used, with
an error that says how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bae.exceptions import BaeError


def need(module: str, *, by: str) -> Any:
    """Import a module of the extra `pictures`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise  # it is there, and misses something itself
        raise BaeError(
            f"{by} needs the package {package}, which is not installed",
            code="bae-picture-extra-missing",
            cause=error,
            fix="pip install 'bae-graphs[pictures]', or write an .svg or .html, which need nothing",
        ) from error
