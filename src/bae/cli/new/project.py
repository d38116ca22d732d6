"""A new project as files: the names that it may have, and the texts that go into it, from the
templates beside this module. `__init__.py` writes them."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bae.cli.exits import refused
from bae.cli.new.origin import Origin

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
_NAME: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
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
            "source": origin.source,
        }

        def filled(text: str) -> str:
            return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)

        return {
            filled(path): filled((TEMPLATES / template).read_text(encoding="utf-8"))
            for template, path in FILES.items()
        }


def named(name: str, lm: str = "", folder: Path = Path()) -> Project:
    """The project of a name, which must do for a distribution and, with `-` as `_`, a module.
    `folder` is where it goes: what lies there already is its own."""
    if not _NAME.fullmatch(name):
        near = _near(name)
        raise refused(
            f"{name!r} cannot be the name of a project",
            fix="use the letters a to z, digits, - and _, with a letter first and no - or _ last"
            + (f", as in {near}" if near else ""),
        )
    taken = _taken(_module(name), folder)
    if taken:
        raise refused(
            f"{name} cannot be the name of a project: {taken}",
            fix=f"give it another name, as {name}-agent",
        )
    return Project(name, _module(name), lm)


def _module(name: str) -> str:
    return name.lower().replace("-", "_")


def _near(name: str) -> str:
    """A name like one that cannot be: without accents, and with a word where it needs one."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    # Of a name in another script only scraps are left, which nobody would know again.
    if not words or len(words) < sum(letter.isalnum() for letter in name) / 2:
        return ""
    if words[0].isdigit():
        return f"agent-{words}"
    return f"{words}-agent" if _taken(_module(words), Path()) else words


def _taken(module: str, folder: Path) -> str:
    """Why a module cannot be called that; empty where it can."""
    if keyword.iskeyword(module) or module in _TAKEN:
        return f"{module} means something else in Python"
    if module in sys.stdlib_module_names or _is_installed(module, folder):
        return f"there is a module {module} already, which it would hide"
    return ""


def _is_installed(module: str, folder: Path) -> bool:
    """Whether Python finds such a module elsewhere than here and in the folder of the project: with
    `python -m bae` it looks in this directory too, where the project may stand already."""
    own = {Path.cwd(), folder.resolve()}
    elsewhere = [path for path in sys.path if Path(path).resolve() not in own]
    for finder in sys.meta_path:
        spec = finder.find_spec(module, elsewhere)
        # A mere directory has no origin, and hides nothing.
        if spec is not None and spec.origin is not None:
            return True
    return False
