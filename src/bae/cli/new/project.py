"""A new project as files: the names that it may have, and the texts that go into it, from the
templates beside this module. `__init__.py` writes them."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bae.cli.new.origin import Origin
from bae.cli.refusals import refused

FILES: Final = {
    "module.py.txt": "@module@.py",
    "test_module.py.txt": "tests/test_@module@.py",
    "answers.json.txt": "tests/answers.json",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
}
"""The templates, and where each goes."""
TEMPLATES: Final = Path(__file__).parent / "template"
SCRIPT: Final = "scripted:tests/answers.json"
"""The LM that is there whatever else is not."""
_START: Final = "text=Where is my parcel?"
_TAKEN: Final = ("bae", "tests", "conftest", "setup")


@dataclass(frozen=True, slots=True)
class Project:
    """What is to be written: the project's name, that of its module, and the LM for the command
    lines in it, empty for the one that a run finds by itself."""

    name: str
    module: str
    lm: str = ""

    @property
    def commands(self) -> list[str]:
        """What to do next, in the directory of the project."""
        return [self.run, "bae check", "pytest"]

    @property
    def run(self) -> str:
        """The command that runs the graph."""
        words = ["bae", "run", "--set", _START]
        return shlex.join([*words, "--lm", self.lm] if self.lm else words)

    def files(self, origin: Origin) -> dict[str, str]:
        """The text of every file, by its path in the project."""
        values = {
            "project": self.name,
            "module": self.module,
            "run": self.run,
            "install": origin.install,
            "dependency": origin.dependency,
        }

        def filled(text: str) -> str:
            return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)

        return {
            filled(path): filled((TEMPLATES / template).read_text(encoding="utf-8"))
            for template, path in FILES.items()
        }


def named(name: str, lm: str = "") -> Project:
    """The project of a name, which must do for a distribution and, with `-` as `_`, a module."""
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        raise refused(
            f"{name!r} cannot be the name of a project",
            fix="use letters, digits, - and _, with a letter first"
            + (f", as in {near}" if near else ""),
        )
    module = name.lower().replace("-", "_")
    if keyword.iskeyword(module) or module in _TAKEN:
        raise refused(
            f"{name} cannot be the name of a project: {module} means something else in Python",
            fix=f"give it another name, as {name}-agent",
        )
    if module in sys.stdlib_module_names or _is_installed(module):
        raise refused(
            f"{name} cannot be the name of a project: there is a module {module} already, which it "
            "would hide",
            fix=f"give it another name, as {name}-agent",
        )
    return Project(name, module, lm)


def _is_installed(module: str) -> bool:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    # A mere directory has no origin: that may be the project, seen from beside it.
    return spec is not None and spec.origin is not None
