"""Imports optional packages when they are first needed. If a package is missing, the error says how
to install it."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bae.exceptions import BaeLMError


def need(module: str, *, extra: str, by: str) -> Any:
    """Import `module`. If it is missing, the error says that `by` needs it, and how to install it
    with `extra`, an extra of bae."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # the module is installed, but a package that it imports is missing
        raise BaeLMError(
            f"{by} needs the package {module.partition('.')[0]}, which is not installed",
            code="bae-lm-extra-missing",
            sent=False,
            cause=error,
            fix=install_line(extra),
        ) from error


def install_line(extra: str) -> str:
    """Return the command that installs an extra of bae from a clone. bae is not on PyPI yet."""
    return f"pip install '.[{extra}]' in a clone of bae"


def is_there(module: str) -> bool:
    """Whether a package is installed. For a name such as `google.genai`, imports only `google`."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # there is no such namespace
        return False
    except ValueError:  # code has created the module without a spec
        return True


def load_dspy(by: str) -> Any:
    """Import `dspy`. If it is missing, the error says that `by` needs it."""
    # dspy asks some providers through LiteLLM. Without this variable, LiteLLM downloads a price
    # list when it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return need("dspy", extra="dspy", by=by)
