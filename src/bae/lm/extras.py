"""Packages that are no requirements of bae: imported when they are first needed, with an error that
says how to install them."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bae.exceptions import BaeLMError


def need(module: str, *, extra: str, by: str) -> Any:
    """Import `module`, which `by` needs and the extra named `extra` installs."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # it is installed, and lacks something itself
        raise BaeLMError(
            f"{by} needs the package {module.partition('.')[0]}, which is not installed",
            code="bae-lm-extra-missing",
            sent=False,
            cause=error,
            fix=install_line(extra),
        ) from error


def install_line(extra: str) -> str:
    """How an extra of bae is installed, which is not on PyPI yet."""
    return f"pip install '.[{extra}]' in a clone of bae"


def is_there(module: str) -> bool:
    """Whether a package is installed, found out without importing it. Of one in a namespace, such
    as `google.genai`, the namespace is imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # there is no such namespace
        return False
    except ValueError:  # it is imported, and was made by hand: it has no spec
        return True


def load_dspy(by: str) -> Any:
    """The module `dspy`, which `by` needs."""
    # LiteLLM, through which dspy asks some providers, fetches a list of prices when it is imported,
    # unless it is set to use its own copy.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return need("dspy", extra="dspy", by=by)
