"""The pyproject.toml of the project around this directory, and what its `[tool.bae]` says:
`loading.py` takes the graph from it, and `journals.py` keeps the runs beside it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bae.cli.importing import unknown
from bae.cli.raised_at import shown


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """The file, and its table `[tool.bae]`; None where it has none."""

    file: Path
    table: dict[str, Any] | None

    @property
    def folder(self) -> Path:
        """Where the project stands."""
        return self.file.parent


def project_file() -> ProjectFile | None:
    """The pyproject.toml of this directory, or else of the nearest one above that has one."""
    here = Path.cwd()
    files = (folder / "pyproject.toml" for folder in (here, *here.parents))
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None
    try:
        written = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise unknown(
            f"{shown(file)} cannot be read", "mend it, or name a MODULE", error
        ) from error
    tools = _table(written, "tool", "[tool]", file) or {}
    return ProjectFile(file, _table(tools, "bae", "[tool.bae]", file))


def _table(of: dict[str, Any], name: str, called: str, file: Path) -> dict[str, Any] | None:
    """A table of a pyproject.toml; None where there is none."""
    found: object = of.get(name)
    if found is not None and not isinstance(found, dict):
        raise unknown(
            f"{called} in {shown(file)} is {found!r}, and no table",
            'write [tool.bae] on a line, and graph = "app.py" below it',
        )
    return cast("dict[str, Any] | None", found)
