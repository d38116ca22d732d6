"""`bae new`: create a small working project from the files in `template`. It requires the version
of bae that wrote it, or a later one."""

from __future__ import annotations

import json
import keyword
import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

from rich.text import Text

from bae import __version__
from bae.cli.exits import Misuse, refusal
from bae.cli.options import AsJSON, LMName, argument, examples, flag
from bae.cli.printing import out, print_hanging, print_json
from bae.lm.extras import is_there
from bae.lm.registry import find_default_name, name_error

EPILOG: Final = examples("bae new wardrobe", "bae new support-desk --lm claude-cli:sonnet")
FILES: Final = {
    "module.py.txt": "@module@.py",
    "test_module.py.txt": "tests/test_@module@.py",
    "answers.json.txt": "tests/answers.json",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
}
"""The templates and their target paths."""
TEMPLATES: Final = Path(__file__).parent / "template"
_SCRIPT: Final = "scripted:tests/answers.json"
"""The LM that always exists."""
_NAME: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_TAKEN: Final = ("bae", "tests", "conftest", "setup")
REQUIREMENT: Final = f"bae-graphs[cli]>={__version__}"
"""The requirement of a new project, as pip and uv read it."""


def new(
    name: Annotated[
        str,
        argument(
            "NAME",
            "The name of the project, and of the directory that is created here; or a path.",
        ),
    ],
    lm: LMName = None,
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Create a small project that works: a graph, a test that needs no model, a README.

    With `--lm` the command lines in it name that language model.
    """
    error = name_error(lm) if lm is not None else None
    if error is not None:
        raise error
    if not name.strip():
        raise Misuse(
            "no NAME was given",
            code="bae-command-refused",
            fix="give one, as `bae new wardrobe`; `bae new .` takes this directory",
        )
    folder = Path(name)
    project = _make_project(folder.resolve().name, lm or "", folder)
    files = project.files()
    _refuse_existing(folder, files, force)
    _write(folder, files)
    if as_json:
        print_json({"path": str(folder), "files": list(files)})
    else:
        _print_next(folder, project, list(files))


def _print_next(folder: Path, project: NewProject, files: list[str]) -> None:
    text = Text(f"created {folder} with {len(files)} files:\n")
    for path in files:
        text.append(f"  {path}\n", style="cyan")
    text.append("\nNext:\n", style="bold")
    none = not project.lm and not find_default_name().name
    commands = [(replace(project, lm=_SCRIPT) if none else project).run, "bae check"]
    commands += ["pytest"] if is_there("pytest") else ["pip install pytest", "pytest"]
    if str(folder) != ".":
        commands.insert(0, f"cd {shlex.quote(str(folder))}")
    for step in commands:
        text.append(f"  {step}\n", style="bold")
    if none:
        text.append(
            "\nNo language model is ready here, so the run takes its answers from a file. "
            "`bae lm list` names the missing parts.\n"
        )
    text.right_crop(1)
    print_hanging(out(), text, 2)


# --- the project --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewProject:
    """The values of a new project: its name, its module, and the LM for its commands, empty for the
    default LM."""

    name: str
    module: str
    lm: str = ""

    @property
    def run(self) -> str:
        """The command that runs the graph."""
        words = ["bae", "run", "--set", "text=Where is my parcel?"]
        return shlex.join([*words, "--lm", self.lm] if self.lm else words)

    def files(self) -> dict[str, str]:
        """The text of each file by its path in the project."""
        values = {
            "project": self.name,
            "module": self.module,
            "run": self.run,
            "install": shlex.quote(REQUIREMENT),
            "dependency": json.dumps(REQUIREMENT),
        }

        def fill_template(template: str) -> str:
            return re.sub(r"@(\w+)@", lambda found: values[found[1]], template)

        return {
            fill_template(path): fill_template((TEMPLATES / template).read_text(encoding="utf-8"))
            for template, path in FILES.items()
        }


def _make_project(name: str, lm: str, folder: Path) -> NewProject:
    """Validate the name of a project, which must be valid for a distribution and, with `-` as `_`,
    for a module. Existing files in `folder` do not conflict."""
    if not _NAME.fullmatch(name):
        raise refusal(
            f"{name!r} cannot be the name of a project",
            fix="use the letters a to z, digits, - and _, with a letter first and no - or _ last",
        )
    module = name.lower().replace("-", "_")
    own = {Path.cwd(), folder.resolve()}
    spec = PathFinder.find_spec(module, [p for p in sys.path if Path(p).resolve() not in own])
    taken = ""
    if keyword.iskeyword(module) or module in _TAKEN:
        taken = f"{module} means something else in Python"
    elif module in sys.stdlib_module_names or (spec and spec.origin):  # a mere directory is fine
        taken = f"there is a module {module} already, which it would hide"
    if taken:
        raise refusal(
            f"{name} cannot be the name of a project: {taken}",
            fix=f"give it another name, as {name}-agent",
        )
    return NewProject(name, module, lm)


# --- files --------------------------------------------------------------------------------------


def _refuse_existing(folder: Path, files: dict[str, str], force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise refusal(f"{folder} is there already, and no directory", fix="give another name")
    there = [path for path in files if (folder / path).exists()]
    for path in there:
        if (folder / path).is_dir():
            raise refusal(f"{folder / path} is a directory", fix="give another name, or move it")
    if there and not force:
        raise refusal(
            f"{folder} has {', '.join(there)} already, and nothing was written",
            fix=f"give another name, or --force to write over {'them' if there[1:] else 'it'}",
        )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files under a folder, and create it if needed. They are first written to temporary
    files: after a failure, everything is as before."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".bae-new-", dir=folder) as beside:
            for path, text in files.items():
                written = Path(beside, path)
                written.parent.mkdir(parents=True, exist_ok=True)
                written.write_text(text, encoding="utf-8")
            for path in files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
            for path in files:
                os.replace(Path(beside, path), folder / path)
    except OSError as error:
        with suppress(OSError):  # a folder with other files stays
            folder.rmdir()
        raise refusal(
            f"{folder} could not be written: {error.strerror}",
            fix="choose a directory that can be written to",
            cause=error,
        ) from error
